// As much of the row log as tells whether a snapshot is up to date.

import { existsSync, readFileSync, readdirSync } from "node:fs";
import { join } from "node:path";
import { must } from "./container.mjs";
import { checksum, murmur128 } from "./hashes.mjs";

const SEGMENT_BYTES = 64;
const RECORD_BYTES = 48;
const [ROWS, FILE, REPLACED, CLOSED] = [1, 2, 3, 4];

const listed = (folder) => (existsSync(folder) ? readdirSync(folder).sort() : []);

/** The newest commit with rows, -1 for none, and the latest snapshot that rows were replaced by. */
export function lookAtLog(view) {
  const table = lookAtTable(join(view, "rows", "_delta_log"));
  return { newest: Math.max(newestFresh(join(view, "fresh")), table.newest), snapshot: table.snapshot };
}

function newestFresh(folder) {
  const names = listed(folder).filter((name) => /^([0-9a-f]{32}-)?\d{20}\.log$/.test(name));
  const root = join(folder, "log");
  const identity = existsSync(root) ? readFileSync(root).subarray(32, 48).toString("hex") : null;
  let newest = -1;
  for (const name of names) {
    if (identity !== null && !name.startsWith(identity)) continue; // of a log that was dropped
    for (const { kind, number } of records(readFileSync(join(folder, name)), join(folder, name))) {
      if (kind === ROWS || kind === FILE) newest = Math.max(newest, number);
    }
  }
  return newest;
}

/** The whole records of a segment. */
export function* records(content, source) {
  if (content.length < SEGMENT_BYTES) return;
  const isSegment = content.subarray(0, 16).toString("latin1") === "feast_sketch_log";
  const fits = isSegment && murmur128(content.subarray(0, 48)).equals(content.subarray(48, 64));
  must(fits && content.readBigUInt64LE(16) === 1n, "log.damaged", `${source}: the head of a segment is damaged`);
  let number = Number(content.readBigUInt64LE(24));
  let place = SEGMENT_BYTES;
  while (content.length - place >= RECORD_BYTES) {
    const head = content.subarray(place, place + 24);
    const kind = head.readUInt32LE(4);
    const isSound =
      head.subarray(0, 4).toString("latin1") === "FSLR" &&
      murmur128(head).subarray(0, 8).equals(content.subarray(place + 24, place + 32)) &&
      Number(head.readBigUInt64LE(8)) === number && kind >= ROWS && kind <= CLOSED;
    must(isSound, "log.damaged", `${source}: the head of the record at byte ${place} is damaged`);
    const length = Number(head.readBigUInt64LE(16));
    const start = place + RECORD_BYTES;
    const end = start + Math.ceil(length / 8) * 8;
    if (end > content.length) return; // cut off when its writer died
    const payload = content.subarray(start, start + length);
    const isWhole = murmur128(payload).equals(content.subarray(place + 32, start)) && content.subarray(start + length, end).every((byte) => byte === 0);
    must(isWhole, "log.damaged", `${source}: the record at byte ${place} is damaged`);
    yield { kind, number, payload };
    if (kind === CLOSED) return;
    [place, number] = [end, number + 1];
  }
}

function lookAtTable(folder) {
  const found = { newest: -1, snapshot: "" };
  for (const name of listed(folder).filter((each) => /^\d{20}\.json$/.test(each))) {
    const source = join(folder, name);
    const lines = readFileSync(source, "utf8").split("\n").filter((line) => line.trim());
    const info = lines.map((line) => JSON.parse(line).commitInfo).find((each) => each !== undefined) ?? {};
    if (info.feastSketchStore === undefined) {
      found.newest = Infinity; // another program's rows: only a seal knows them
      continue;
    }
    const text = info.feastSketchStore;
    must(checksum(Buffer.from(text)) === info.feastSketchStoreChecksum, "log.damaged", `${source}: its checksum does not match`);
    const own = JSON.parse(text);
    if (found.newest === Infinity) found.newest = -1; // the store has taken them up
    found.newest = Math.max(found.newest, own.through);
    if (own.is_compaction && own.snapshot) found.snapshot = own.snapshot;
  }
  return found;
}
