// A shard of a view: its newest snapshot, with deltas over it.

import { readFileSync, readdirSync, existsSync } from "node:fs";
import { join } from "node:path";
import { RefusedError, canonical, isCount, must, open, parseJson } from "./container.mjs";
import { checksum } from "./hashes.mjs";
import { Layer, Parts } from "./layer.mjs";
import { lookAtLog } from "./log.mjs";

const MAX_MANIFEST_BYTES = 1 << 20;
const MANIFEST_NAME = /^((\d{20})-(\d{4,})-[0-9a-f]{8})\.json$/;
const PIN_NAME = /^pin-\d{6}-(\d{20}-\d{4,}-[0-9a-f]{8})$/;
const FILE_NAME = /^[0-9a-zA-Z][0-9a-zA-Z._-]*$/;
const CHECKSUM = /^[0-9a-f]{32}$/;
const PARTS = ["base", "order"];

/** What a function gives; whatever it trips over in a file is a refusal that names the file. */
function guarded(source, work) {
  try {
    return work();
  } catch (error) {
    const [rule, reason] = error instanceof RefusedError ? [error.rule, error.reason] : ["layer.parts", error.message];
    throw new RefusedError(rule, reason.startsWith(source) ? reason : `${source}: ${reason}`);
  }
}

/** By version, number and name. */
function compareNames(a, b) {
  const parts = (name) => name.split("-").slice(0, 2).map(BigInt);
  const [[v, n], [w, m]] = [parts(a), parts(b)];
  return Number(v - w) || Number(n - m) || (a < b ? -1 : Number(a > b));
}

/**
 * The newest rows that a snapshot of a shard holds.
 *
 * `folder` is the shard's. Opening it throws a `RefusedError` if a file is damaged; or if rows were written since the
 * snapshot, unless `allowOld` is set.
 */
export class Shard {
  constructor(folder, { allowOld = false } = {}) {
    this.folder = join(folder, "snapshots");
    const names = existsSync(this.folder) ? readdirSync(this.folder) : [];
    const pin = names.filter((name) => PIN_NAME.test(name)).sort().at(-1);
    const published = names.filter((name) => MANIFEST_NAME.test(name)).map((name) => name.replace(/\.json$/, ""));
    this.name = pin ? PIN_NAME.exec(pin)[1] : published.sort(compareNames).at(-1);
    must(this.name !== undefined && published.includes(this.name), "manifest.files", `${this.folder}: there is no snapshot`);
    const manifest = readManifest(join(this.folder, `${this.name}.json`), this.name);
    this.version = manifest.row_log_version;
    this.isOld = false;
    if (!pin) this.checkNewest(folder, allowOld);
    const baseVersion = manifest.base_version ?? manifest.row_log_version;
    this.base = this.layer(manifest.files, baseVersion).layer;
    this.deltas = (manifest.deltas ?? []).map((delta) => this.delta(delta)).reverse();
  }

  checkNewest(folder, allowOld) {
    const log = lookAtLog(folder);
    const isReplaced = Boolean(log.snapshot) && compareNames(log.snapshot, this.name) > 0;
    const isOld = log.newest >= this.version || isReplaced;
    must(
      !isOld || allowOld,
      "log.newer",
      `${folder}: the snapshot holds the commits before ${this.version}, and rows were written since; run \`feast-sketch seal\`, or allow old rows`,
    );
    this.isOld = isOld;
  }

  layer(files, version) {
    const opened = {};
    for (const part of PARTS) {
      const { name, size_bytes: size, header_checksum: told } = files[part];
      const source = join(this.folder, name);
      const content = contentOf(source);
      must(content.length === size, "manifest.files", `${source}: ${content.length} bytes, the manifest says ${size}`);
      opened[part] = open(content, source);
      must(opened[part].headerChecksum === told, "manifest.files", `${source}: is not the file that its manifest names`);
    }
    const { description, arrays } = opened.base;
    must(description?.row_log_version === version, "manifest.files", `${files.base.name}: has the version of another snapshot`);
    const source = join(this.folder, files.base.name);
    return { layer: guarded(source, () => new Layer(description, arrays)), arrays };
  }

  delta({ files, row_log_version: version }) {
    const { layer, arrays } = this.layer(files, version);
    const parts = new Parts(arrays, "listed.");
    const hashes = parts.array("entity_hashes", "U64", 2);
    const deleted = parts.array("deleted", "U8").values;
    must(hashes.shape[1] === 2 && hashes.shape[0] === deleted.length, "layer.parts", "the list of entities is none");
    const key = (i) => (hashes.values[2 * i] << 64n) | hashes.values[2 * i + 1];
    const listed = new Map();
    for (let i = 0; i < deleted.length; i++) {
      must(!i || key(i) > key(i - 1), "delta", "the list of entities does not ascend");
      listed.set(key(i), deleted[i] !== 0);
    }
    const alive = [...listed.values()].filter((isDeleted) => !isDeleted).length;
    must(alive === layer.numEntities, "delta", "the list of entities is not that of the rows");
    return { layer, listed };
  }

  /** The names of all features. */
  get features() {
    return [...this.base.features.keys()];
  }

  /** The row of an entity by its hash, two BigInt; null if it has none. */
  readHash(hash) {
    return guarded(join(this.folder, this.name), () => this.rowOf(hash));
  }

  rowOf(hash) {
    for (const { layer, listed } of this.deltas) {
      const isDeleted = listed.get((hash[0] << 64n) | hash[1]);
      if (isDeleted === undefined) continue;
      if (isDeleted) return null;
      const row = layer.read(hash);
      must(row !== null, "delta", "an entity of the list has no row");
      return row;
    }
    return this.base.read(hash);
  }
}

function contentOf(source) {
  try {
    return readFileSync(source);
  } catch (error) {
    throw new RefusedError("manifest.files", `${source}: ${error.message}`, { cause: error });
  }
}

function readManifest(source, name) {
  const content = readFileSync(source);
  must(content.length <= MAX_MANIFEST_BYTES, "manifest.damaged", `${source}: too long for a manifest`);
  const given = parseJson(content.toString("utf8"), "manifest.damaged", source);
  const isObject = given !== null && typeof given === "object" && !Array.isArray(given);
  must(isObject && "format_version" in given, "manifest.damaged", `${source}: not a manifest`);
  must(given.format_version === 1, "manifest.version", `${source}: manifest version ${given.format_version}`);
  const { checksum: told, ...rest } = given;
  const isCanonical = Buffer.from(`${canonical(given)}\n`).equals(content);
  const matches = checksum(Buffer.from(`${canonical(rest)}\n`)) === told;
  must(isCanonical && matches, "manifest.damaged", `${source}: the manifest was altered`);
  checkManifest(given, source);
  const [, , version, number] = MANIFEST_NAME.exec(`${name}.json`);
  const own = (given.deltas ?? [given]).at(-1).files;
  const names = PARTS.every((part) => own[part].name === `${name}.${part}.sketch`);
  const isOwn = Number(version) === given.row_log_version && Number(number) === given.number && names;
  must(isOwn, "manifest.name", `${source}: is the manifest of another snapshot`);
  return given;
}

function checkManifest(given, source) {
  const rule = "manifest.damaged";
  const deltas = given.deltas ?? [];
  must(Array.isArray(deltas) && typeof given.created_by === "string", rule, `${source}: a part has another type`);
  for (const files of [given.files, ...deltas.map((delta) => delta?.files)]) {
    for (const part of PARTS) checkFile(files?.[part], source);
  }
  const base = deltas.length ? given.base_version : given.row_log_version;
  const versions = [base, ...deltas.map((delta) => delta.row_log_version)];
  must([...versions, given.row_log_version, given.number].every(isCount), rule, `${source}: a number has another type`);
  const ascend = versions.every((v, i) => !i || v > versions[i - 1]) && versions.at(-1) === given.row_log_version;
  must(ascend, "manifest.order", `${source}: the versions of the base and the deltas do not ascend to that of the snapshot`);
}

function checkFile(file, source) {
  const isFile = file && FILE_NAME.test(file.name) && CHECKSUM.test(file.header_checksum) && isCount(file.size_bytes);
  must(isFile, "manifest.damaged", `${source}: does not name files`);
  if (file.chunks === undefined) return;
  const { size_bytes: size, checksums } = file.chunks;
  const fits = isCount(size) && size > 0 && Array.isArray(checksums) && checksums.every((c) => CHECKSUM.test(c));
  must(fits && checksums.length === Math.ceil(file.size_bytes / size), "manifest.damaged", `${source}: the chunks do not fit`);
}
