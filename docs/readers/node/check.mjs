// Checks the reader against test vectors: node check.mjs DIR, a folder of `python -m tests.conformance.kit DIR`.

import { readFileSync } from "node:fs";
import { join } from "node:path";
import { Ascending, BitReader, Packed, fieldOf, halfOctaves, vocabulary } from "./src/codes.mjs";
import { checksum, filterPlace, fingerprint, hashKey, mix64, rowHash, serializeKey } from "./src/hashes.mjs";
import { RefusedError, openView } from "./index.mjs";

const failures = [];
let count = 0;

function same(found, wanted, what) {
  count++;
  const [a, b] = [JSON.stringify(found), JSON.stringify(wanted)];
  if (a !== b) failures.push(`${what}: ${a?.slice(0, 300)} instead of ${b?.slice(0, 300)}`);
}

/** A key of the vectors, as the reader takes it. */
function keyFrom(key) {
  const value = (type, given) => (type === "string" ? given : type === "bytes" ? Buffer.from(given, "hex") : BigInt(given));
  return Object.fromEntries(Object.entries(key).map(([name, [type, given]]) => [name, [type, value(type, given)]]));
}

function valueJson(value, kind) {
  if (kind === "string" || kind === "bool") return value;
  if (kind === "bytes" || kind === "message") return value.toString("hex");
  if (kind !== "double" && kind !== "float") return String(value);
  const bits = Buffer.alloc(kind === "double" ? 8 : 4);
  if (kind === "double") bits.writeDoubleBE(value);
  else bits.writeFloatBE(value);
  return bits.toString("hex");
}

function rowJson(row) {
  if (row === null) return null;
  const features = Object.entries(row.features).map(([name, feature]) => [name, featureJson(feature)]);
  return { event_timestamp: String(row.eventTimestamp), features: Object.fromEntries(features) };
}

function featureJson({ state, valueField, values, times, counts, attributes }) {
  const { kind } = fieldOf(valueField);
  const shown = { value_field: valueField, state, values: values.map((value) => valueJson(value, kind)) };
  if (times) shown.times = times.map(String);
  if (attributes) {
    const all = Object.entries(attributes).map(([attribute, own]) => [attribute, own.map(String)]);
    shown.attributes = Object.fromEntries(all);
  }
  if (counts) shown.counts = counts.map(String);
  return shown;
}

/** Sorted by name, since structures have features in any order. */
const sorted = (row) => row && { ...row, features: Object.fromEntries(Object.entries(row.features).sort()) };

function checkHashes(vectors) {
  for (const { bytes, checksum: wanted } of vectors.checksum) same(checksum(Buffer.from(bytes, "hex")), wanted, "checksum");
  for (const { number, mixed } of vectors.mix64) same(String(mix64(BigInt(number))), mixed, "mix64");
  const salt = vectors.salt.map((half) => BigInt(`0x${half}`));
  for (const { key, serialized, entity_hash: hash, row_hash: wanted, fingerprints, filter_places: places } of vectors.keys) {
    const content = serializeKey(keyFrom(key));
    same(content.toString("hex"), serialized, "serialized key");
    const own = hashKey(content);
    same(own.map(String), hash, `entity hash of ${JSON.stringify(key)}`);
    same(String(rowHash(own, salt)), wanted, "row hash");
    for (const { range, fingerprint: told } of fingerprints) same(String(fingerprint(rowHash(own, salt), BigInt(range))), told, "fingerprint");
    places.forEach((place, j) => same(filterPlace(own, salt, j, 1000), place, "place in a filter"));
  }
  for (const { number, half_octaves: half } of vectors.half_octaves) same(halfOctaves(number), half, `half(${number})`);
}

/** Values that are none of a join key's type, although JavaScript would convert most of them. */
function checkWrongKeys() {
  const wrong = {
    int64: ["", "5", true, null, 5.5, 2 ** 53, 2n ** 63n],
    int32: [5.5, 2 ** 31],
    timestamp: [new Date(0)],
    string: [5, ["a"], "\ud800"],
    bytes: ["a", [1]],
    toString: [1n],
  };
  for (const [type, values] of Object.entries(wrong)) {
    for (const value of values) {
      count++;
      try {
        serializeKey({ user_id: [type, value] });
        failures.push(`${type} ${value}: was not refused`);
      } catch (error) {
        if (!error.message.startsWith("join key user_id")) failures.push(`${type} ${value}: ${error.stack}`);
      }
    }
  }
}

const wordsOf = (strings) => {
  const words = strings.map(BigInt);
  return { at: (i) => words[i] ?? 0n, length: words.length };
};

/** What `vocabulary` takes, of the arrays of a test vector. */
function partsOf(arrays) {
  const parts = {
    at: () => parts,
    has: (name) => name in arrays,
    array: (name, dtype) => {
      if (name === "data") return { bytes: Buffer.from(arrays.data, "hex") };
      const type = dtype === "U64" ? BigUint64Array : BigInt64Array;
      return { values: type.from(arrays[name].map(BigInt)) };
    },
  };
  return parts;
}

function checkCodes(vectors) {
  for (const { width, base, length, words, numbers } of vectors.packed) {
    const packed = new Packed(wordsOf(words), width, BigInt(base), length);
    same(numbers.map((_, i) => String(packed.at(i))), numbers, "packed integers");
  }
  for (const given of vectors.ascending) {
    const parts = { words: (name) => wordsOf(given[name.replace("n.", "")]) };
    const ascending = new Ascending(parts, "n", given, given.by_value);
    if (!given.by_value) same(given.numbers.map((_, i) => String(ascending.at(i))), given.numbers, "ascending integers");
    else checkZeros(ascending, given.numbers);
  }
  for (const { arrays, values } of vectors.vocabularies) {
    const found = vocabulary(partsOf(arrays), "", fieldOf("data" in arrays ? "bytes_val" : "int64_val"));
    same(found.map((value) => (Buffer.isBuffer(value) ? value.toString("hex") : String(value))), values, "vocabulary");
  }
  for (const { width, number, bits } of vectors.rice) {
    const word = BigInt(`0b${[...bits].reverse().join("")}`);
    const words = wordsOf([String(BigInt.asUintN(64, word)), String(word >> 64n)]);
    const reader = new BitReader(words, 0, bits.length, "sets");
    same([reader.rice(width), reader.place], [number, bits.length], "Rice code");
  }
}

/** Integers that are found by value: each bucket begins behind a zero. */
function checkZeros(ascending, numbers) {
  const found = [];
  for (let bucket = 0; bucket < ascending.buckets; bucket++) {
    let place = bucket ? ascending.select(bucket - 1) + 1 : 0;
    for (; ascending.bit(place); place++) {
      found.push(String((BigInt(bucket) << BigInt(ascending.width)) | ascending.lows.at(place - bucket)));
    }
  }
  same(found, numbers, "ascending integers by value");
}

function checkReads(folder, vectors) {
  for (const { view: name, keys, rows, computed } of vectors) {
    const view = openView(join(folder, name));
    same(view.isOld, false, `${name}: is old`);
    for (const feature of computed) checkFormula(view, feature, keys);
    keys.forEach((key, i) => same(sorted(rowJson(view.read(keyFrom(key)))), sorted(rows[i]), `${name}: ${JSON.stringify(key)}`));
  }
}

/** Rows have what their formulas give. */
function checkFormula(view, feature, keys) {
  for (const key of keys) {
    const hash = hashKey(serializeKey(keyFrom(key)));
    const row = view.readHash(hash);
    const values = row === null ? null : row.features[feature].values.map(String);
    const computed = view.computed(hash, feature);
    same(computed === null ? null : [String(computed)], values, `formula of ${feature}`);
  }
}

function checkRefusals(folder, vectors) {
  for (const { view: name, rule, keys } of vectors) {
    count++;
    try {
      const view = openView(join(folder, name));
      for (const key of keys) view.read(keyFrom(key));
      failures.push(`${name}: was not refused`);
    } catch (error) {
      if (!(error instanceof RefusedError)) failures.push(`${name}: ${error.stack}`);
      else if (error.rule !== rule) failures.push(`${name}: refused by ${error.message}, not by ${rule}`);
    }
    if (rule === "log.newer") same(openView(join(folder, name), { allowOld: true }).isOld, true, `${name}: is old`);
  }
}

const folder = process.argv[2];
const load = (name) => JSON.parse(readFileSync(join(folder, "vectors", `${name}.json`), "utf8"));
checkHashes(load("hashes"));
checkWrongKeys();
checkCodes(load("codes"));
checkReads(folder, load("reads"));
checkRefusals(folder, load("hostile"));
for (const failure of failures) console.error(failure);
console.log(`${count} checks, ${failures.length} failures`);
process.exitCode = failures.length ? 1 : 0;
