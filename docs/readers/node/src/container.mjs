// The container: named arrays with checksums.

import { inflateSync } from "node:zlib";
import { checksum, murmur128 } from "./hashes.mjs";

/** A file that must not be read; `rule` is the one that it breaks. */
export class RefusedError extends Error {
  constructor(rule, message, options) {
    super(`${message} (${rule})`, options);
    this.name = "RefusedError";
    this.rule = rule;
    this.reason = message;
  }
}

/** Throw unless a condition holds. */
export function must(condition, rule, message) {
  if (!condition) throw new RefusedError(rule, message);
}

export const isCount = (x) => Number.isSafeInteger(x) && x >= 0;

const FORMAT_VERSION = 1;
const MAX_HEADER_BYTES = 1 << 22;
const MAX_ELEMENTS = 2 ** 48;
const ALIGNMENT = 64;
const BLOCK_BYTES = 1 << 16;
const CHECKSUM_BYTES = 16;
const PREFIX_BYTES = 8 + CHECKSUM_BYTES;
const CHECKSUMS = ".checksums";
const TYPES = { U64: BigUint64Array, I64: BigInt64Array, I32: Int32Array, U8: Uint8Array };

const ascii = (value) =>
  JSON.stringify(value).replace(/[^\x00-\x7f]/g, (unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, "0")}`);

/** Canonical JSON: without spaces, keys ordered by code points, everything escaped that is not ASCII. */
export function canonical(value) {
  if (Array.isArray(value)) return `[${value.map(canonical).join(",")}]`;
  if (value === null || typeof value !== "object") return typeof value === "bigint" ? String(value) : ascii(value);
  return ofPairs(Object.entries(value));
}

function ofPairs(pairs) {
  pairs.sort(([a], [b]) => Buffer.compare(Buffer.from(a), Buffer.from(b))); // in UTF-8 as by code points
  return `{${pairs.map(([key, value]) => `${ascii(key)}:${canonical(value)}`).join(",")}}`;
}

/** Parse JSON; integers too large for a number become BigInt, others with a point or exponent a Float. */
export function parseJson(text, rule, source) {
  try {
    return reviveIntegers(text);
  } catch (error) {
    throw new RefusedError(rule, `${source}: ${error.message}`);
  }
}

/** A number that was written with a point or an exponent, so that 7.0 is not taken for 7. */
export class Float {
  constructor(value) {
    this.value = value;
  }
}

function reviveIntegers(text) {
  // `JSON.parse` does not tell 7.0 from 7, nor all integers of 64 bits: mark such numbers outside of strings.
  const mark = "\u0000";
  const marked = text.replace(/"(?:[^"\\]|\\.)*"|-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?/g, (token) => {
    if (token[0] === '"') return token;
    if (/[.eE]/.test(token)) return `"\\u0000f${token}"`;
    return Number.isSafeInteger(Number(token)) ? token : `"\\u0000i${token}"`;
  });
  return JSON.parse(marked, (_, value) => {
    if (typeof value !== "string" || value[0] !== mark) return value;
    return value[1] === "f" ? new Float(Number(value.slice(2))) : BigInt(value.slice(2));
  });
}

/** An array of a file: `values` is a typed array, checked as a whole or, if it is large, in blocks. */
class FileArray {
  constructor(entry, values, source) {
    Object.assign(this, { shape: entry.shape, dtype: entry.dtype, values, source: `${source}: '${entry.name}'` });
  }

  get bytes() {
    return Buffer.from(this.values.buffer, this.values.byteOffset, this.values.byteLength);
  }
}

/** Words that are checked block by block, before their first use. */
export class Words {
  constructor(array, checksums) {
    const blocks = Math.ceil(array.values.byteLength / BLOCK_BYTES);
    const fits = checksums && checksums.dtype === "U8" && checksums.shape.length === 2;
    must(
      array.dtype === "U64" && array.shape.length === 1 && fits && checksums.shape[0] === blocks && checksums.shape[1] === 16,
      "container.blocks",
      `${array.source}: the checksums of its blocks do not fit it`,
    );
    this.array = array;
    this.checksums = checksums;
    this.length = array.values.length;
    this.isChecked = new Uint8Array(blocks);
  }

  /** Word `i`; 0 behind the last one, of which no bit counts. */
  at(i) {
    if (i >= this.length) return 0n;
    const block = Math.floor((i * 8) / BLOCK_BYTES);
    if (!this.isChecked[block]) this.check(block);
    return this.array.values[i];
  }

  check(block) {
    const bytes = this.array.bytes.subarray(block * BLOCK_BYTES, (block + 1) * BLOCK_BYTES);
    const expected = this.checksums.bytes.subarray(16 * block, 16 * (block + 1));
    must(murmur128(bytes).equals(expected), "container.blocks", `${this.array.source}: block ${block} is damaged`);
    this.isChecked[block] = 1;
  }

  /** All bytes, checked. */
  get bytes() {
    this.isChecked.forEach((_, block) => this.check(block));
    return this.array.bytes;
  }

  /** Bytes from one to before another, checked. */
  slice(start, end) {
    for (let block = Math.floor(start / BLOCK_BYTES); block * BLOCK_BYTES < end; block++) {
      if (!this.isChecked[block]) this.check(block);
    }
    return this.array.bytes.subarray(start, end);
  }
}

/**
 * Open the content of a file.
 *
 * Returns its description, its arrays by name, and the checksum of its header.
 */
export function open(content, source) {
  const length = content.length < PREFIX_BYTES ? 0n : content.readBigUInt64LE(0);
  must(
    length >= CHECKSUM_BYTES && length <= MAX_HEADER_BYTES && Number(length) + 8 <= content.length,
    "container.size",
    `${source}: ${content.length} bytes cannot hold a header of ${length}`,
  );
  const start = 8 + Number(length);
  const packed = content.subarray(PREFIX_BYTES, start);
  const fits = start % ALIGNMENT === 0 && murmur128(packed).equals(content.subarray(8, PREFIX_BYTES));
  must(fits, "container.checksum", `${source}: the header's checksum does not match`);
  const own = parseJson(unpacked(packed, source), "container.header", source);
  must(own?.constructor === Object, "container.header", `${source}: not a snapshot`);
  must(own.format_version === FORMAT_VERSION, "container.version", `${source}: format version ${own.format_version}`);
  must("description" in own && Array.isArray(own.arrays), "container.header", `${source}: a part is missing`);
  const entries = own.arrays.map((entry) => entryOf(entry, source));
  checkOrder(entries, source);
  const arrays = new Map();
  let place = start;
  for (const entry of entries) {
    must(place + entry.size <= content.length, "container.size", `${source}: the file is truncated`);
    // A copy is aligned, wherever the content is.
    const bytes = new Uint8Array(content.subarray(place, place + entry.size)).buffer;
    const array = new FileArray(entry, new TYPES[entry.dtype](bytes), source);
    if (!entry.hasBlocks) {
      must(checksum(array.bytes).slice(0, CHECKSUM_BYTES) === entry.checksum, "container.checksum", `${array.source}: its checksum does not match`);
    }
    arrays.set(entry.name, array);
    place += entry.size;
  }
  must(place === content.length, "container.size", `${source}: ${content.length} bytes, the header says ${place}`);
  return { description: own.description, arrays, headerChecksum: checksum(content.subarray(0, start)) };
}

function unpacked(packed, source) {
  try {
    const { buffer, engine } = inflateSync(packed, { maxOutputLength: MAX_HEADER_BYTES, info: true });
    const rest = packed.subarray(engine.bytesWritten);
    must(rest.length < ALIGNMENT && rest.every((byte) => byte === 0), "container.header", `${source}: bytes behind the header`);
    return buffer.toString("utf8");
  } catch (error) {
    if (error instanceof RefusedError) throw error;
    throw new RefusedError("container.header", `${source}: ${error.message}`);
  }
}

/** An array as the header describes it, `[name, dtype, shape, checksum]`. */
function entryOf(entry, source) {
  const rule = "container.arrays";
  must(Array.isArray(entry) && entry.length >= 3 && entry.length <= 4, "container.header", `${source}: an array is not described`);
  const [name, dtype, shape, told] = entry;
  must(typeof name === "string", rule, `${source}: an array's name is no string`);
  must(Object.hasOwn(TYPES, String(dtype)), rule, `${source}: an array has type ${dtype}`);
  must(Array.isArray(shape) && shape.length >= 1 && shape.length <= 4 && shape.every(isCount), rule, `${source}: a shape of ${shape}`);
  const padded = shape.reduce((product, n) => product * Math.max(1, n), 1);
  must(padded <= MAX_ELEMENTS, rule, `${source}: a size of ${shape}`);
  const size = shape.reduce((product, n) => product * n, 1) * TYPES[dtype].BYTES_PER_ELEMENT;
  return { name, dtype, shape, checksum: told, size };
}

function checkOrder(entries, source) {
  const width = (entry) => TYPES[entry.dtype].BYTES_PER_ELEMENT;
  for (let i = 1; i < entries.length; i++) {
    const [before, entry] = [entries[i - 1], entries[i]];
    const names = Buffer.compare(Buffer.from(before.name), Buffer.from(entry.name));
    const isOrdered = width(before) > width(entry) || (width(before) === width(entry) && names < 0);
    must(isOrdered, "container.arrays", `${source}: the arrays are not in the order in which they are written`);
  }
  must(new Set(entries.map(({ name }) => name)).size === entries.length, "container.arrays", `${source}: two arrays have one name`);
  const names = new Set(entries.map(({ name }) => name));
  for (const entry of entries) {
    const isOfBlocks = entry.name.endsWith(CHECKSUMS) && names.has(entry.name.slice(0, -CHECKSUMS.length));
    entry.hasBlocks = isOfBlocks || names.has(entry.name + CHECKSUMS);
    must(entry.hasBlocks === (entry.checksum === undefined), "container.header", `${source}: '${entry.name}' has no checksum, or two`);
  }
}
