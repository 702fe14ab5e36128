// A view with shards: each is a small view, and an entity is in the one that the first bits of its hash name.

import { existsSync, readFileSync, readdirSync } from "node:fs";
import { join } from "node:path";
import { must, parseJson } from "./container.mjs";
import { hashKey, serializeKey } from "./hashes.mjs";
import { lookAtLog } from "./log.mjs";
import { View } from "./view.mjs";

const RULE = "shards";
const MAX_SHARDS = 4096;

/** Open a view's folder: a `View`, or a `ShardedView`, which reads alike. */
export function openView(folder, options = {}) {
  const source = join(folder, "shards.json");
  if (!existsSync(source)) return new View(folder, options);
  const told = parseJson(readFileSync(source, "utf8"), RULE, source);
  const number = told?.num_shards;
  const isPower = Number.isSafeInteger(number) && number >= 1 && number <= MAX_SHARDS && (number & (number - 1)) === 0;
  const isFolder = typeof told?.folder === "string" && (/^shards-[0-9]+\/$/.test(told.folder) || (told.folder === "" && number === 1));
  must(told?.format_version === 1 && isPower && isFolder, RULE, `${source}: does not tell of shards`);
  return told.folder ? new ShardedView(join(folder, told.folder), number, options) : new View(folder, options);
}

export class ShardedView {
  constructor(folder, number, options) {
    this.bits = Math.log2(number);
    this.shards = Array.from({ length: number }, (_, i) => shard(join(folder, String(i).padStart(2, "0")), options));
  }

  /** The names of all features. */
  get features() {
    return [...new Set(this.shards.flatMap((view) => view?.features ?? []))];
  }

  /** The row of an entity, `{joinKey: [type, value], ...}`; null if it has none. */
  read(joinKeys) {
    return this.readHash(hashKey(serializeKey(joinKeys)));
  }

  /** The row of an entity by its hash, two BigInt. */
  readHash(hash) {
    const view = this.shards[this.bits ? Number(hash[0] >> BigInt(64 - this.bits)) : 0];
    return view === null ? null : view.readHash(hash);
  }
}

/** A shard; null of one that has no rows yet. */
function shard(folder, options) {
  const snapshots = join(folder, "snapshots");
  if (existsSync(snapshots) && readdirSync(snapshots).some((name) => name.endsWith(".json"))) return new View(folder, options);
  must(options.allowOld || lookAtLog(folder).newest < 0, "log.newer", `${folder}: no row of the shard was sealed yet; run \`feast-sketch seal\``);
  return null;
}
