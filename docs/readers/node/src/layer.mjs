// A layer: which entities have rows, and the structures that keep their features.

import { Ascending, Packed, bigInteger, decodeValue, fieldOf, integer } from "./codes.mjs";
import { Words, must } from "./container.mjs";
import { fingerprint, rowHash } from "./hashes.mjs";
import { VALUE, list, salt, text } from "./common.mjs";
import { elementsOf } from "./columns.mjs";
import { formulasOf } from "./formulas.mjs";
import { STRUCTURES } from "./structures.mjs";

/** The arrays of a part of a description: their names, which are paths, begin alike. */
export class Parts {
  constructor(arrays, prefix = "") {
    Object.assign(this, { arrays, prefix });
  }

  at(name) {
    return new Parts(this.arrays, `${this.prefix}${name}.`);
  }

  has(name) {
    return this.arrays.has(this.prefix + name);
  }

  /** An array of a type and a number of axes. */
  array(name, dtype, axes = 1) {
    const array = this.arrays.get(this.prefix + name);
    must(array !== undefined, "layer.parts", `there is no array '${this.prefix}${name}'`);
    must(array.dtype === dtype && array.shape.length === axes, "layer.parts", `${array.source} has another type`);
    return array;
  }

  /** Words that are checked before they are used; a file leaves them out if there are none. */
  words(name) {
    const full = `${name}.words`;
    if (!this.has(full)) return { at: () => 0n, length: 0, slice: () => Buffer.alloc(0) };
    return new Words(this.array(full, "U64"), this.arrays.get(`${this.prefix}${full}.checksums`));
  }
}

const expectObject = (value, name) => {
  must(value !== null && typeof value === "object" && !Array.isArray(value), "layer.parts", `${name} is not described`);
  return value;
};

/** Listed rows. */
class ListedRows {
  constructor(parts, description) {
    this.salt = salt(description);
    const index = expectObject(description.index, "the index");
    this.range = bigInteger(index, "range", "layer.parts");
    must(this.range >= 1n && this.range <= 2n ** 63n, "index", `a range of ${this.range}`);
    this.fingerprints = new Ascending(parts, "index", index, true);
    const buckets = ((this.range - 1n) >> BigInt(this.fingerprints.width)) + 1n;
    must(buckets === BigInt(this.fingerprints.buckets), "index", "the range does not give so many buckets");
    this.twins = [...parts.array("index.twins", "U64").values];
    must(this.twins.every((hash, i) => !i || hash > this.twins[i - 1]), "index", "twins do not ascend");
    this.length = this.fingerprints.length;
    this.timestamps = elementsOf(parts.at("timestamps"), expectObject(description.timestamps, "timestamps"), fieldOf("int64_val"), 0);
    this.bounds = bucketBounds(parts);
    const ascend = this.bounds.every(([a, b], i) => a <= b && (!i || this.bounds[i - 1][1] < a));
    must(ascend, "timestamps", "the buckets do not ascend");
    const states = list(description, "states");
    this.states = new Map(states.map((entry, i) => [text(entry, "name"), Packed.from(parts.at("states"), String(i), entry)]));
    must(this.states.size === states.length, "layer.parts", "states of a feature are there twice");
    const lengths = [this.timestamps.length, ...[...this.states.values()].map((packed) => packed.length)];
    must(lengths.every((length) => length === this.length), "layer.rows", "columns have another number of rows");
  }

  get features() {
    return [...this.states.keys()];
  }

  rowOf(hash) {
    const { fingerprints } = this;
    const own = rowHash(hash, this.salt);
    const wanted = fingerprint(own, this.range);
    const bucket = Number(wanted >> BigInt(fingerprints.width));
    const low = wanted & ((1n << BigInt(fingerprints.width)) - 1n);
    const candidates = [];
    let place = bucket ? fingerprints.select(bucket - 1) + 1 : 0;
    must(place >= bucket, "index", "a bucket has rows that do not exist");
    for (; place < fingerprints.numBits && fingerprints.bit(place); place++) {
      must(place - bucket < this.length, "index", "a bucket has rows that do not exist");
      if (fingerprints.lows.at(place - bucket) === low) candidates.push(place - bucket);
    }
    if (candidates.length <= 1) return candidates[0] ?? -1;
    const twin = this.twins.indexOf(own);
    if (twin < 0) return -1;
    const row = candidates[0] + twin - this.twins.findIndex((hash) => fingerprint(hash, this.range) === wanted);
    must(row < this.length, "index", "a twin has a row that does not exist");
    return row;
  }

  find(hash) {
    const row = this.rowOf(hash);
    if (row < 0) return null;
    const timestamp = this.timestamps.at(row);
    let newest = timestamp;
    if (this.bounds.length) {
      const bucket = this.bounds.find(([oldest]) => oldest === timestamp);
      must(bucket !== undefined, "timestamps", "a row has a timestamp bucket that does not exist");
      [, newest] = bucket;
    }
    const states = new Map();
    for (const [name, packed] of this.states) {
      const state = packed.number(row);
      must(state >= 0 && state <= VALUE, "states", `a state of ${state}`);
      states.set(name, state);
    }
    return { hash, row, timestamp, newest, states };
  }
}

function bucketBounds(parts) {
  const { shape, values } = parts.array("bucket_bounds", "I64", 2);
  must(shape[1] === 2, "layer.parts", "a bucket has not two bounds");
  return Array.from({ length: shape[0] }, (_, i) => [values[2 * i], values[2 * i + 1]]);
}

/** Shapes, and the buckets of timestamps, by ranges. */
class ShapeRanges {
  constructor(parts, description) {
    this.length = null;
    this.bounds = bucketBounds(parts);
    this.ranges = list(description, "shapes").map((entry, number) => {
      const names = list(entry, "features");
      must(names.every((name) => typeof name === "string"), "layer.parts", "shapes have no features");
      const states = parts.array(`shapes.${number}.states`, "U8", 2);
      const buckets = parts.array(`shapes.${number}.buckets`, "U8").values;
      const isFine = states.shape[0] === buckets.length && states.shape[1] === names.length && states.values.every((s) => s <= VALUE);
      must(isFine, "states", "shapes do not fit their features");
      must(buckets.every((bucket) => bucket < this.bounds.length), "timestamps", "a shape has a bucket that does not exist");
      return { names, states: states.values, buckets };
    });
  }

  get features() {
    return this.ranges.flatMap(({ names }) => names);
  }

  /** What possible shapes of each range tell of a row. */
  found(hash, shapesOf) {
    const states = new Map();
    let [timestamp, newest] = [null, null];
    for (const [number, { names, states: table, buckets }] of this.ranges.entries()) {
      const shapes = shapesOf(number);
      if (!shapes.length) return null;
      names.forEach((name, column) => {
        states.set(name, Math.max(...shapes.map((shape) => table[shape * names.length + column])));
      });
      if (number === 0) {
        const bounds = shapes.map((shape) => this.bounds[buckets[shape]]);
        timestamp = bounds.map(([oldest]) => oldest).reduce((a, b) => (a < b ? a : b));
        newest = bounds.map(([, last]) => last).reduce((a, b) => (a > b ? a : b));
      }
    }
    return { hash, row: null, timestamp, newest, states };
  }
}

function among(structures, kind) {
  const found = structures.find((structure) => structure.constructor.kind === kind);
  must(found !== undefined, "layer.parts", `there is no structure ${kind} that knows the rows`);
  return found;
}

/** Rows that a filter knows by their shapes. */
class ShapedRows extends ShapeRanges {
  constructor(parts, description, structures) {
    super(parts, description);
    this.filter = among(structures, "bloom");
    const { rows } = this.filter;
    const fit = this.ranges.length && this.ranges.length === rows.length;
    must(fit && this.ranges.every((r, i) => rows[i].numSymbols === r.buckets.length), "states", "the shapes are not those of the filter");
  }

  find(hash) {
    return this.found(hash, (range) => this.filter.rows[range].symbols(this.filter.table, hash));
  }
}

/** Rows whose shapes are digits of the numbers of a static function. */
class StaticRows extends ShapeRanges {
  constructor(parts, description, structures) {
    super(parts, description);
    this.function = among(structures, "static");
    const fit = this.ranges.length === 1 && this.ranges[0].buckets.length === this.function.numShapes;
    must(fit, "states", "the shapes are not those of the static function");
  }

  find(hash) {
    const number = this.function.numberOf(hash);
    if (number === null) return null;
    const shape = Number(number % BigInt(this.function.numShapes));
    return { ...this.found(hash, () => [shape]), number };
  }
}

const PRESENCES = new Map([["list", ListedRows], ["shapes", ShapedRows], ["static", StaticRows]]);

/** Sealed rows. */
export class Layer {
  constructor(description, arrays) {
    const parts = new Parts(arrays);
    expectObject(description, "the layer");
    this.structures = Object.entries(expectObject(description.structures ?? {}, "structures")).map(([name, entry]) => {
      const kind = STRUCTURES.get(name);
      must(kind !== undefined, "layer.parts", `it has a structure of the kind '${name}', which this reader does not know`);
      return new kind(parts.at(`structures.${name}`), entry);
    });
    const presence = expectObject(description.presence, "presence");
    const known = PRESENCES.get(presence.kind);
    must(known !== undefined, "layer.parts", `unknown way to store presence: ${presence.kind}`);
    this.presence = new known(parts.at("presence"), presence, this.structures);
    this.numEntities = integer(description, "num_entities", "layer.parts");
    this.maxEventTimestamp = bigInteger(description, "max_event_timestamp", "layer.parts");
    this.features = new Map(this.structures.flatMap((structure) => [...structure.features]));
    this.checkFit();
    this.formulas = formulasOf(parts.at("formulas"), description, this.features);
  }

  checkFit() {
    const stateless = this.structures.filter((s) => !s.tellsStates).flatMap((s) => [...s.features.keys()]);
    const all = this.structures.flatMap((s) => [...s.features.keys()]);
    must(new Set(all).size === all.length, "layer.parts", "a feature is there twice");
    const isSame = JSON.stringify(stateless.sort()) === JSON.stringify([...this.presence.features].sort());
    must(isSame, "layer.rows", "the features and those whose states are known are not the same");
    const counts = [this.presence.length, ...this.structures.map((s) => s.numRows)].filter((n) => n !== null);
    const isListed = this.presence.length !== null;
    must(counts.every((n) => isListed && n === this.numEntities), "layer.rows", "the structures do not have the rows of the layer");
  }

  /** What a formula gives for the stored values of a row; null of an entity without one. */
  computed(hash, name) {
    const found = this.presence.find(hash);
    return found && this.formulas.get(name).of((source) => this.features.get(source).read(found).values);
  }

  /** The row of an entity hash; null if it has none. */
  read(hash) {
    const found = this.presence.find(hash);
    if (found === null) return null;
    // By entries: an assignment would lose a feature `__proto__`.
    const features = Object.fromEntries([...this.features].map(([name, feature]) => [name, shown(feature, found)]));
    return { eventTimestamp: found.timestamp, newestTimestamp: found.newest, features };
  }
}

/** What a feature has in a row. */
function shown(feature, found) {
  const { state, values, times, counts, attributes } = feature.read(found);
  const decoded = values.map((value) => decodeValue(value, feature.field.kind));
  const own = { state, valueField: feature.field.valueField, values: decoded };
  if (times) own.times = times;
  if (counts) own.counts = counts;
  if (attributes) own.attributes = attributes;
  if (feature.isBacked) own.isBacked = true;
  return own;
}
