// Packed and ascending integers, Rice codes, vocabularies, values.

import { Float, must, isCount } from "./container.mjs";
import { halfOctaves } from "./hashes.mjs";

export { halfOctaves };

const SAMPLED = 64;
const LONGEST_UNARY = 24;
const MAX_STRING_BYTES = 255; // of a front-coded one

const maskOf = (width) => (1n << BigInt(width)) - 1n;

/** 64 bits from a bit on: a BigInt. `words` is anything with `at(i)`. */
export function bitsAt(words, bit) {
  const word = Math.floor(bit / 64);
  const shift = BigInt(bit % 64);
  const low = words.at(word) >> shift;
  return shift ? low | (BigInt.asUintN(64, words.at(word + 1) << (64n - shift))) : low;
}

/** The integer of a description, as a number; large ones are refused. */
export function integer(description, key, rule) {
  const value = description?.[key];
  must(Number.isSafeInteger(value), rule, `${key} is ${shown(value)}`);
  return value;
}

/** The integer of a description, as a BigInt. */
export function bigInteger(description, key, rule) {
  const value = description?.[key];
  must(typeof value === "bigint" || Number.isSafeInteger(value), rule, `${key} is ${shown(value)}`);
  return BigInt(value);
}

/** The number with a point of a description. */
export function float(description, key, rule) {
  const value = description?.[key];
  must(value instanceof Float, rule, `${key} is ${shown(value)}`);
  return value.value;
}

const shown = (value) => (value instanceof Float ? `${value.value}` : String(value));

/** The words of so many bits: two more than they fill, none of none. */
export const wordsFor = (bits) => (bits ? Math.ceil(bits / 64) + 2 : 0);

/** Integers of equal width. */
export class Packed {
  constructor(words, width, base, length) {
    must(isCount(width) && width <= 64 && isCount(length), "packed", `${length} numbers of ${width} bits`);
    must(base >= -(2n ** 63n) && base < 2n ** 63n, "packed", `numbers from ${base} on`);
    const needed = wordsFor(length * width);
    must(words.length === needed, "packed", `${length} numbers of ${width} bits do not take ${words.length} words`);
    Object.assign(this, { words, width, base, length, mask: maskOf(width) });
  }

  static from(parts, name, description, minWidth = 0) {
    const width = integer(description, "width", "layer.parts");
    must(width >= minWidth, "packed", `numbers of ${width} bits`);
    const base = bigInteger(description, "base", "layer.parts");
    return new Packed(parts.words(name), width, base, integer(description, "length", "layer.parts"));
  }

  /** Integer `i`, a BigInt. */
  at(i) {
    must(i >= 0 && i < this.length, "packed", `there is no packed number ${i}`);
    if (!this.width) return this.base;
    return BigInt.asIntN(64, this.base + (bitsAt(this.words, i * this.width) & this.mask));
  }

  number(i) {
    return Number(this.at(i));
  }
}

/** Ascending integers in Elias and Fano's form. */
export class Ascending {
  constructor(parts, name, description, byValue) {
    const length = integer(description, "length", "layer.parts");
    const buckets = integer(description, "num_buckets", "layer.parts");
    const width = integer(description, "low_width", "layer.parts");
    const sampleWidth = integer(description, "sample_width", "layer.parts");
    must(length >= 0 && buckets >= 1 && width >= 0 && width <= 63, "ascending", `${length} numbers in ${buckets} buckets`);
    this.highs = parts.words(`${name}.highs`);
    this.lows = new Packed(parts.words(`${name}.lows`), width, 0n, length);
    const samples = Math.ceil((byValue ? buckets : length) / SAMPLED);
    this.samples = new Packed(parts.words(`${name}.samples`), sampleWidth, 0n, samples);
    this.numBits = length + buckets;
    must(this.highs.length === wordsFor(this.numBits), "ascending", "the parts of ascending numbers do not fit");
    Object.assign(this, { length, buckets, width, byValue });
  }

  bit(place) {
    return Number((this.highs.at(Math.floor(place / 64)) >> BigInt(place % 64)) & 1n);
  }

  /** The place of a one, or of a zero of those found by value, by its number. */
  select(number) {
    const wanted = this.byValue ? 0 : 1;
    let place = this.samples.number(Math.floor(number / SAMPLED));
    let left = number % SAMPLED;
    for (; ; place++) {
      must(place < this.numBits, "ascending", "ascending numbers lie outside of their words");
      if (this.bit(place) === wanted && left-- === 0) return place;
    }
  }

  /** Integer `i`, of those found by number. */
  at(i) {
    must(i >= 0 && i < this.length, "ascending", `there is no number ${i}`);
    const bucket = this.select(i) - i;
    must(bucket >= 0, "ascending", "ascending numbers lie outside of their words");
    return (BigInt(bucket) << BigInt(this.width)) | this.lows.at(i);
  }
}

/** Reads bits one after the other, up to an end. */
export class BitReader {
  constructor(words, bit, end, rule) {
    Object.assign(this, { words, place: bit, end, rule });
  }

  bits(count) {
    const value = bitsAt(this.words, this.place) & maskOf(count);
    this.advance(count);
    return Number(value);
  }

  advance(count) {
    this.place += count;
    must(this.place <= this.end, this.rule, "a code ends behind the codes");
  }

  /** A number in a Rice code. */
  rice(width) {
    const code = bitsAt(this.words, this.place);
    let ones = 0;
    while (ones < LONGEST_UNARY && (code >> BigInt(ones)) & 1n) ones++;
    if (ones === LONGEST_UNARY) {
      this.advance(LONGEST_UNARY + 32);
      return Number((code >> BigInt(LONGEST_UNARY)) & maskOf(32));
    }
    this.advance(ones + 1 + width);
    return ones * 2 ** width + Number((code >> BigInt(ones + 1)) & maskOf(width));
  }
}

// -- values ----------------------------------------------------------------------------------------

const ELEMENTS = {
  bytes: "bytes", string: "string", int32: "int32", int64: "int64", double: "double", float: "float",
  bool: "bool", unix_timestamp: "timestamp", json: "string", uuid: "string", time_uuid: "string",
  decimal: "string", map: "message", struct: "message",
};
const SINGLE = {
  map_val: "message", struct_val: "message", scalar_map_val: "message", zoned_timestamp_val: "message",
  list_val: "message", set_val: "message",
};
const UTF8 = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

/** What a field of Feast's `Value` holds: whether it is a collection, and of which elements. */
export function fieldOf(valueField) {
  const field = String(valueField);
  const isCollection = field.endsWith("list_val") || field.endsWith("set_val");
  const kind = SINGLE[field] ?? ELEMENTS[field.replace(/(_list|_set)?_val$/, "")];
  must(kind !== undefined && typeof valueField === "string", "layer.parts", `there is no field ${shown(valueField)}`);
  const storesBytes = ["string", "bytes", "message"].includes(kind);
  return { valueField, isCollection, kind, storesBytes };
}

/** A stored value as JavaScript has it: BigInt for int64 and timestamps (in seconds), Buffer for bytes. */
export function decodeValue(stored, kind) {
  if (kind === "string") return decodeText(stored);
  if (kind === "bytes" || kind === "message") return stored;
  if (kind === "bool") return stored !== 0n;
  if (kind === "int32") return Number(stored);
  if (kind === "int64" || kind === "timestamp") return stored;
  const bits = new DataView(new ArrayBuffer(8));
  if (kind === "double") bits.setBigInt64(0, stored);
  else bits.setInt32(0, Number(BigInt.asIntN(32, stored)));
  return kind === "double" ? bits.getFloat64(0) : bits.getFloat32(0);
}

export function decodeText(bytes) {
  try {
    return UTF8.decode(bytes);
  } catch {
    must(false, "vocabulary", "a string is not UTF-8");
  }
}

/** The values of a vocabulary: an array of BigInt or Buffer. */
export function vocabulary(parts, name, field) {
  const own = parts.at(name);
  const values = own.has("shape") ? packedValues(own, field) : plainValues(own, field);
  if (field.kind === "string") values.forEach(decodeText);
  return values;
}

function plainValues(parts, { storesBytes }) {
  if (!storesBytes) return [...parts.array("values", "I64").values];
  const offsets = [...parts.array("offsets", "I64").values].map(Number);
  const data = parts.array("data", "U8").bytes;
  const isFine = offsets[0] === 0 && offsets.at(-1) === data.length && offsets.every((o, i) => !i || o >= offsets[i - 1]);
  must(isFine, "vocabulary", "the vocabulary's offsets do not describe slices of its data");
  return offsets.slice(1).map((end, i) => data.subarray(offsets[i], end));
}

function packedValues(parts, { storesBytes }) {
  const [length, width, ...rest] = [...parts.array("shape", "I64").values];
  const modulus = parts.has("highs") ? rest.pop() : undefined;
  const lengths = modulus === undefined ? [0, 2] : [2];
  const isFine = storesBytes ? lengths.includes(rest.length) : rest.length === 1;
  must(length !== undefined && width >= (modulus === undefined ? 1n : 0n) && isFine, "vocabulary", "the values do not fit their shape");
  if (modulus !== undefined) must(length <= 64n * BigInt(parts.array("highs", "U64").values.length), "vocabulary", "there are no highs of so many values");
  const numbers = (name, own, base = 0n) => {
    const words = parts.array(name, "U64").values;
    const packed = new Packed({ at: (i) => words[i] ?? 0n, length: words.length }, Number(own), base, Number(length));
    return Array.from({ length: Number(length) }, (_, i) => packed.at(i));
  };
  const main = (base) => (modulus === undefined ? numbers("packed", width, base) : turnedBack(parts, numbers("packed", width), width, modulus, base));
  if (!storesBytes) return main(rest[0]);
  const data = parts.array("data", "U8").bytes;
  if (!rest.length) return slices(main(0n), data);
  const places = main(0n).map(Number);
  must(new Set(places).size === places.length && places.every((p) => p >= 0 && p < places.length), "vocabulary", "the places are not those of all values");
  const prefixes = numbers("prefixes", rest[0]);
  const sorted = [];
  let before = Buffer.alloc(0);
  slices(numbers("suffixes", rest[1]), data).forEach((suffix, i) => {
    must(prefixes[i] >= 0n && prefixes[i] <= before.length, "vocabulary", "a value has more in common with the one before than there is");
    before = Buffer.concat([before.subarray(0, Number(prefixes[i])), suffix]);
    must(before.length <= MAX_STRING_BYTES, "vocabulary", "a front-coded value is too long");
    sorted.push(before);
  });
  return places.map((place) => sorted[place]);
}

// Numbers below a modulus, each written as many moduli larger as make all ascend.
function turnedBack(parts, lows, width, modulus, base) {
  const top = 1n << 63n;
  must(modulus >= 1n && base >= -top && base + modulus <= top && width <= 63n, "vocabulary", "there are no such numbers");
  const numbers = [];
  let bucket = 0n;
  for (const word of parts.array("highs", "U64").values) {
    for (let bit = 0n; bit < 64n; bit++) {
      if ((word >> bit) & 1n) {
        must(numbers.length < lows.length, "vocabulary", "there are more numbers than lower parts");
        const ascending = (bucket << width) | lows[numbers.length];
        must(ascending < top, "vocabulary", "ascending numbers have more than 63 bits");
        numbers.push((ascending % modulus) + base);
      } else bucket++;
    }
  }
  must(numbers.length === lows.length, "vocabulary", "there are fewer numbers than lower parts");
  return numbers;
}

function slices(lengths, data) {
  let end = 0n;
  const found = lengths.map((length) => {
    const start = end;
    end += length;
    must(length >= 0n && end <= data.length, "vocabulary", "the lengths are not those of the data");
    return data.subarray(Number(start), Number(end));
  });
  must(end === BigInt(data.length), "vocabulary", "the lengths are not those of the data");
  return found;
}
