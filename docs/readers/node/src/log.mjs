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
  const fresh = newestFresh(join(view, "fresh")); // first: rows that move to the table meanwhile are then found there
  const table = lookAtTable(join(view, "rows", "_delta_log"));
  return { newest: Math.max(fresh, table.newest), snapshot: table.snapshot };
}

function newestFresh(folder) {
  const names = listed(folder).filter((name) => /^([0-9a-f]{32}-)?\d{20}\.log$/.test(name));
  const root = join(folder, "log");
  const identity = existsSync(root) ? readFileSync(root).subarray(32, 48).toString("hex") : null;
  const mark = markOf(join(folder, "end"));
  let newest = -1;
  for (const name of names) {
    if (identity !== null && !name.startsWith(identity)) continue; // of a log that was dropped
    const content = readFileSync(join(folder, name));
    for (const { kind, number } of records(content, join(folder, name), mark, identity !== null)) {
      if (kind === ROWS || kind === FILE) newest = Math.max(newest, number);
    }
  }
  return newest;
}

/** The log, the segment and its bytes that were acknowledged; null if the mark is not whole. */
function markOf(path) {
  const content = existsSync(path) ? readFileSync(path) : Buffer.alloc(0);
  if (content.length !== 48 || !murmur128(content.subarray(0, 32)).equals(content.subarray(32))) return null;
  return { identity: content.subarray(0, 16), first: content.readBigUInt64LE(16), bytes: Number(content.readBigUInt64LE(24)) };
}

/** How many bytes of a segment were acknowledged; in a bucket, which has no mark, all. */
function acknowledged(content, mark, isInBucket) {
  if (isInBucket) return content.length;
  if (mark === null || !mark.identity.equals(content.subarray(32, 48))) return 0;
  const first = content.readBigUInt64LE(24);
  return mark.first === first ? mark.bytes : mark.first > first ? Infinity : 0;
}

/** The whole records of a segment. What is none was never acknowledged, or is damaged. */
export function* records(content, source, mark, isInBucket) {
  if (content.length < SEGMENT_BYTES || content.readBigUInt64LE(56) === 0n) return;
  const isSegment = content.subarray(0, 16).toString("latin1") === "feast_sketch_log";
  const fits = isSegment && murmur128(content.subarray(0, 48)).equals(content.subarray(48, 64));
  must(fits && content.readBigUInt64LE(16) === 1n, "log.damaged", `${source}: the head of a segment is damaged`);
  const durable = acknowledged(content, mark, isInBucket);
  let number = Number(content.readBigUInt64LE(24));
  let place = SEGMENT_BYTES;
  while (place < durable || content.length - place >= RECORD_BYTES) {
    const record = recordAt(content, place, number);
    must(record !== null || place >= durable, "log.damaged", `${source}: the record at byte ${place} is damaged`);
    if (record === null) return;
    yield record;
    if (record.kind === CLOSED) return;
    [place, number] = [record.end, number + 1];
  }
}

/** The record at a byte; null if there is none, or it is not whole. */
function recordAt(content, place, number) {
  const start = place + RECORD_BYTES;
  if (start > content.length) return null;
  const head = content.subarray(place, place + 24);
  const kind = head.readUInt32LE(4);
  const isSound =
    head.subarray(0, 4).toString("latin1") === "FSLR" &&
    murmur128(head).subarray(0, 8).equals(content.subarray(place + 24, place + 32)) &&
    Number(head.readBigUInt64LE(8)) === number && kind >= ROWS && kind <= CLOSED;
  if (!isSound) return null;
  const length = Number(head.readBigUInt64LE(16));
  const end = start + Math.ceil(length / 8) * 8;
  const payload = content.subarray(start, start + length);
  const isWhole =
    end <= content.length &&
    murmur128(payload).equals(content.subarray(place + 32, start)) &&
    content.subarray(start + length, end).every((byte) => byte === 0);
  return isWhole ? { kind, number, payload, end } : null;
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
