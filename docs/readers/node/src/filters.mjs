// Filters, static functions, and features that another store has.
//
// `found` is what presence knows of an entity: {hash, row, states}. A feature's `read(found)` gives {state, values} of
// stored values; those of lists have `times` and perhaps `attributes`, and those of counts `counts`.

import { Packed, bitsAt, fieldOf, integer, vocabulary } from "./codes.mjs";
import { NULL, VALUE, list, salt, named } from "./common.mjs";
import { must } from "./container.mjs";
import { filterPlace, mix64, rowHash } from "./hashes.mjs";

const MAX_NUM_HASHES = 64;
const MAX_NUM_WORDS = 2 ** 32 - 1;

const windowWords = (symbols) => Math.ceil(symbols / 64);

/** A table of bits. */
class Table {
  constructor(parts, description, windowWords, rule) {
    this.numWords = integer(description, "num_words", "layer.parts");
    this.salt = salt(description);
    this.words = parts.words("table");
    must(windowWords <= this.numWords && this.numWords <= MAX_NUM_WORDS, rule, `a table of ${this.numWords} words`);
    must(this.words.length === this.numWords + windowWords, rule, "the table's length is not that of its words and window");
  }

  /** The window of a hash: a function that tells whether the bit of a symbol is one. */
  window(hash, j, firstWord) {
    const [offset, rotation] = filterPlace(hash, this.salt, j, this.numWords);
    const start = (offset + firstWord) % this.numWords;
    return (s) => (this.words.at(start + Math.floor(s / 64)) >> BigInt((rotation + s) % 64)) & 1n;
  }
}

/** Consecutive symbols of a filter. */
class Range {
  constructor(entry) {
    this.firstWord = integer(entry, "first_word", "layer.parts");
    this.numSymbols = integer(entry, "num_symbols", "layer.parts");
    const numHashes = integer(entry, "num_hashes", "layer.parts");
    const firsts = list(entry, "first_symbols");
    must(firsts.every(Number.isSafeInteger), "layer.parts", "a number of symbols is none");
    const rises = firsts.every((n, i) => n < this.numSymbols && (i ? n >= firsts[i - 1] : n === 0));
    const isFine =
      this.firstWord >= 0 && this.numSymbols >= 0 && numHashes >= 1 && numHashes <= MAX_NUM_HASHES && rises &&
      [0, numHashes].includes(firsts.length);
    must(isFine, "bloom", "a range of symbols cannot be");
    this.firsts = firsts.length ? firsts : new Array(numHashes).fill(0);
    this.numWords = windowWords(this.numSymbols);
  }

  /** The symbols that an entity possibly has, ascending. */
  symbols(table, hash) {
    const windows = this.firsts.map((_, j) => table.window(hash, j, this.firstWord));
    const found = [];
    for (let s = 0; s < this.numSymbols; s++) {
      if (windows.every((has, j) => s < this.firsts[j] || has(s))) found.push(s);
    }
    return found;
  }
}

export class Bloom {
  static kind = "bloom";
  tellsStates = false;
  numRows = null;

  constructor(parts, description) {
    const features = list(description, "features").map((entry) => new Range(entry));
    this.rows = list(description, "rows").map((entry) => new Range(entry));
    let behind = 0;
    const inOrder = [...features, ...this.rows].sort((a, b) => a.firstWord - b.firstWord || a.numWords - b.numWords);
    for (const range of inOrder) {
      must(range.firstWord === behind, "bloom", "the ranges of symbols are not consecutive");
      behind += range.numWords;
    }
    this.table = new Table(parts, description, Math.max(1, behind), "bloom");
    this.features = named(description.features, (entry, number) => {
      const field = fieldOf(entry.value_field);
      const values = vocabulary(parts, `features.${number}.vocabulary`, field);
      must(values.length === features[number].numSymbols, "layer.parts", "a vocabulary does not fit its symbols");
      return { field, read: (found) => this.read(found, entry.name, field, features[number], values) };
    });
  }

  read({ hash, states }, name, field, range, values) {
    const state = states.get(name);
    if (state !== VALUE) return { state, values: [] };
    const symbols = range.symbols(this.table, hash);
    if (field.isCollection) return { state, values: symbols.map((s) => values[s]) };
    return symbols.length ? { state, values: [values[symbols[0]]] } : { state: NULL, values: [] };
  }
}

export class Clustered {
  static kind = "clustered";
  tellsStates = false;

  constructor(parts, description) {
    this.clusters = Packed.from(parts, "clusters", description.clusters);
    this.numRows = this.clusters.length;
    this.numClusters = integer(description, "num_clusters", "layer.parts");
    must(this.numClusters >= 1, "clustered", "there are no clusters");
    let firstWord = 0;
    this.features = named(list(description, "features"), (entry, number) => {
      const field = fieldOf(entry.value_field);
      const values = vocabulary(parts, `features.${number}.vocabulary`, field);
      const hashes = list(entry, "hashes");
      const masks = parts.array(`features.${number}.masks`, "U64", 3);
      const words = windowWords(values.length);
      const ascend = hashes.every((n, i) => Number.isSafeInteger(n) && n >= 0 && (!i || n > hashes[i - 1]));
      must(field.isCollection && hashes.length && ascend && hashes.at(-1) >= 1 && hashes.at(-1) <= MAX_NUM_HASHES, "clustered", `${entry.name} cannot have such hashes`);
      const shape = [this.numClusters, hashes.length - 1, words];
      must(shape.every((n, i) => n === masks.shape[i]), "clustered", `the masks of ${entry.name} have another shape`);
      const first = firstWord;
      firstWord += words;
      return { field, read: (found) => this.read(found, entry.name, { first, values, hashes, masks: masks.values, words }) };
    });
    this.table = new Table(parts, description, Math.max(1, firstWord), "clustered");
  }

  read({ hash, row, states }, name, { first, values, hashes, masks, words }) {
    const state = states.get(name);
    if (state !== VALUE) return { state, values: [] };
    const cluster = this.clusters.number(row);
    must(cluster >= 0 && cluster < this.numClusters, "clustered", `row ${row} has cluster ${cluster}`);
    const windows = Array.from({ length: hashes.at(-1) }, (_, j) => this.table.window(hash, j, first));
    const groups = hashes.map((end, g) => windows.slice(g ? hashes[g - 1] : 0, end));
    const isSpared = (g, s) => {
      const word = (cluster * (hashes.length - 1) + g - 1) * words + Math.floor(s / 64);
      return (masks[word] >> BigInt(s % 64)) & 1n;
    };
    const has = (s) => groups.every((group, g) => (g && isSpared(g, s)) || group.every((window) => window(s)));
    return { state, values: values.filter((_, s) => has(s)) };
  }
}

/** Scalars and shapes as digits of the numbers of a static function. */
export class Static {
  static kind = "static";
  tellsStates = false;
  numRows = null;

  constructor(parts, description) {
    this.salt = salt(description);
    this.width = integer(description, "width", "layer.parts");
    this.numShapes = integer(description, "num_shapes", "layer.parts");
    must(this.numShapes >= 1, "static", `${this.numShapes} shapes`);
    let divisor = BigInt(this.numShapes);
    this.features = named(list(description, "features"), (entry, number) => {
      const field = fieldOf(entry.value_field);
      must(!field.isCollection, "static", `${entry.name} is a collection`);
      const values = vocabulary(parts, `features.${number}.vocabulary`, field);
      const [own, size] = [divisor, BigInt(Math.max(1, values.length))];
      divisor *= size;
      return { field, read: (found) => Static.read(found, entry.name, values, own, size) };
    });
    this.numSymbols = divisor;
    this.words = parts.words("function");
    const fits = this.width >= 1 && this.width <= 62 && this.numSymbols <= 1n << BigInt(this.width);
    must(fits, "static", `${this.numSymbols} numbers do not fit ${this.width} bits`);
    this.numSlots = (this.words.length / this.width - 1) * 64;
    must(Number.isInteger(this.numSlots) && this.numSlots >= 64, "static", "the words are not those of slots");
    const hashes = [...parts.array("left.hashes", "U64").values];
    const numbers = [...parts.array("left.numbers", "I64").values];
    const ascend = hashes.every((hash, i) => !i || hash > hashes[i - 1]);
    const isFine = hashes.length === numbers.length && numbers.every((n) => n >= 0n && n < this.numSymbols);
    must(ascend && isFine, "static", "the hashes beside the function do not ascend or have no numbers");
    this.left = new Map(hashes.map((hash, i) => [hash, numbers[i]]));
  }

  /** The number of an entity, a BigInt; null if it has no row. */
  numberOf(entityHash) {
    const hash = rowHash(entityHash, this.salt);
    const known = this.left.get(hash);
    if (known !== undefined) return known;
    const start = Number((hash * BigInt(this.numSlots - 63)) >> 64n);
    const coefficients = mix64(BigInt.asUintN(64, hash + 0x9e3779b97f4a7c15n)) | 1n;
    let number = mix64(BigInt.asUintN(64, hash + 0x3c6ef372fe94f82an)) >> BigInt(64 - this.width);
    for (let j = 0; j < this.width; j++) {
      const word = (segment) => this.words.at((Math.floor(start / 64) + segment) * this.width + j);
      const window = bitsAt({ at: word }, start % 64) & coefficients;
      const ones = [...window.toString(2)].filter((bit) => bit === "1").length;
      if (ones % 2) number ^= 1n << BigInt(j);
    }
    return number < this.numSymbols ? number : null;
  }

  static read({ states, number }, name, values, divisor, size) {
    const state = states.get(name);
    if (state !== VALUE) return { state, values: [] };
    must(values.length, "static", `a row has a value of ${name}, which has none`);
    return { state, values: [values[Number((number / divisor) % size)]] };
  }
}

export class Backed {
  static kind = "backed";
  tellsStates = false;
  numRows = null;

  constructor(parts, description) {
    this.features = named(list(description, "features"), (entry) => ({
      field: fieldOf(entry.value_field),
      isBacked: true,
      read: ({ states }) => ({ state: states.get(entry.name), values: [] }),
    }));
  }
}
