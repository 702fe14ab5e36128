// A view: its shards, and an entity is in the one that the first bits of its hash name.

import { existsSync, readFileSync, readdirSync } from "node:fs";
import { join } from "node:path";
import { must, parseJson } from "./container.mjs";
import { checksum, hashKey, serializeKey } from "./hashes.mjs";
import { lookAtLog } from "./log.mjs";
import { Shard } from "./shard.mjs";

const RULE = "shards";
const MAX_SHARDS = 4096;
const MAX_ATTEMPTS = 10;

/**
 * Open a view's folder. Throws a `RefusedError` if a file is damaged; or if rows were written since the snapshots,
 * unless `allowOld` is set.
 */
export function openView(folder, { allowOld = false } = {}) {
  // The store removes files that were replaced, also between a list of a folder and a read of its files.
  for (let attempts = 1; ; attempts++) {
    try {
      return readView(folder, allowOld);
    } catch (error) {
      const isGone = (error.cause ?? error).code === "ENOENT";
      if (!isGone || attempts === MAX_ATTEMPTS) throw error;
    }
  }
}

function readView(folder, allowOld) {
  const source = join(folder, "view.json");
  if (!existsSync(source)) return new View([new Shard(folder, { allowOld })]);
  const text = readFileSync(source, "utf8");
  const file = parseJson(text, RULE, source);
  const digits = /^[0-9a-f]{32}$/.test(file?.checksum) ? file.checksum : null;
  const isWhole = digits && checksum(Buffer.from(text.replace(digits, "0".repeat(32)))) === digits;
  must(isWhole, RULE, `${source}: its checksum does not match`);
  const told = file?.shards;
  const number = told?.num_shards;
  const isPower = Number.isSafeInteger(number) && number >= 1 && number <= MAX_SHARDS && (number & (number - 1)) === 0;
  const isFolder = typeof told?.folder === "string" && (/^shards-[0-9]+-[0-9]+(-[0-9a-f]{8})?\/$/.test(told.folder) || (told.folder === "" && number === 1));
  must(file?.format_version === 1 && isPower && isFolder, RULE, `${source}: does not tell of shards`);
  if (!told.folder) return new View([openShard(folder, allowOld)]);
  const folders = Array.from({ length: number }, (_, i) => join(folder, told.folder, String(i).padStart(2, "0")));
  const view = new View(folders.map((each) => openShard(each, allowOld)));
  // A shard without a folder has no rows, unless the rows went to other shards meanwhile.
  return readFileSync(source, "utf8") === text ? view : readView(folder, allowOld);
}

/** The rows of a view as of its newest snapshots. */
export class View {
  /** `shards` are a power of two. */
  constructor(shards) {
    this.shards = shards;
    this.bits = Math.log2(shards.length);
  }

  /** Whether rows were written since the snapshots. */
  get isOld() {
    return this.shards.some((shard) => shard.isOld);
  }

  /** The names of all features. */
  get features() {
    return [...new Set(this.shards.flatMap((shard) => shard.features))];
  }

  /** Formulas of features that nobody writes, by name. */
  get formulas() {
    return this.shards.find((shard) => shard.base)?.base.formulas ?? new Map();
  }

  /** The row of an entity, `{joinKey: [type, value], ...}`; null if it has none. */
  read(joinKeys) {
    return this.readHash(hashKey(serializeKey(joinKeys)));
  }

  /** The row of an entity by its hash, two BigInt. */
  readHash(hash) {
    return this.shardOf(hash).readHash(hash);
  }

  /** What the formula of a feature gives for an entity, given its hash; null if it has no row in the base. */
  computed(hash, feature) {
    return this.shardOf(hash).base?.computed(hash, feature) ?? null;
  }

  shardOf(hash) {
    return this.shards[this.bits ? Number(hash[0] >> BigInt(64 - this.bits)) : 0];
  }
}

/** A shard, which may have no sealed rows yet. */
function openShard(folder, allowOld) {
  const snapshots = join(folder, "snapshots");
  if (existsSync(snapshots) && readdirSync(snapshots).some((name) => name.endsWith(".json"))) return new Shard(folder, { allowOld });
  const isOld = lookAtLog(folder).newest >= 0;
  must(allowOld || !isOld, "log.newer", `${folder}: no row was sealed yet; run \`feast-sketch seal\`, or allow old rows`);
  return { isOld, base: null, features: [], readHash: () => null };
}
