// The structures that keep features: each class reads one kind.
//
// `found` is what presence knows of an entity: {hash, row, states}. A feature's `read(found)` gives {state, values} of
// stored values; those of lists have `times` as well.

import { Ascending, BitReader, Packed, bigInteger, bitsAt, decodeText, fieldOf, float, halfOctaves, integer, vocabulary } from "./codes.mjs";
import { must } from "./container.mjs";
import { filterPlace, mix64, rowHash } from "./hashes.mjs";

export const [MISSING, NULL, EMPTY, VALUE] = [0, 1, 2, 3];
const MAX_NUM_HASHES = 64;
const MAX_NUM_WORDS = 2 ** 32 - 1;
const MAX_CODE_WIDTH = 30;

export function list(description, key, rule = "layer.parts") {
  must(Array.isArray(description?.[key]), rule, `${key} is no list`);
  return description[key];
}

export function text(description, key) {
  must(typeof description?.[key] === "string", "layer.parts", `${key} is no string`);
  return description[key];
}

export function salt(description) {
  const halves = list(description, "salt");
  const isFine = halves.length === 2 && halves.every((half) => /^[0-9a-f]{16}$/.test(half));
  must(isFine, "layer.parts", "the salt is not two numbers of 64 bits");
  return halves.map((half) => BigInt(`0x${half}`));
}

const sum = (numbers) => numbers.reduce((total, n) => total + n, 0);
const wordsFor = (symbols) => Math.ceil(symbols / 64);

export function named(entries, make) {
  const features = new Map();
  for (const [number, entry] of entries.entries()) {
    const feature = make(entry, number);
    must(!features.has(entry.name), "layer.parts", `feature ${entry.name} is there twice`);
    features.set(text(entry, "name"), feature);
  }
  return features;
}

// -- filters -----------------------------------------------------------------------------------------

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
    const facts = list(entry, "facts_per_hash");
    const firsts = list(entry, "first_symbols");
    const rate = float(entry, "false_positive_rate", "layer.parts");
    must([...facts, ...firsts].every(Number.isSafeInteger), "layer.parts", "a number of facts or symbols is none");
    const falls = facts.every((n, i) => n >= 0 && (!i || n <= facts[i - 1]));
    const rises = firsts.every((n, i) => n < this.numSymbols && (i ? n >= firsts[i - 1] : n === 0));
    const isFine =
      this.firstWord >= 0 && this.numSymbols >= 0 && facts.length >= 1 && facts.length <= MAX_NUM_HASHES && falls && rises &&
      (firsts.length ? firsts.length === facts.length : facts[0] === facts.at(-1)) &&
      rate >= 0 && rate <= 1 && (!facts[0] || (rate > 0 && rate < 1));
    must(isFine, "bloom", "a range of symbols cannot be");
    this.firsts = firsts.length ? firsts : facts.map(() => 0);
    this.numWords = wordsFor(this.numSymbols);
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

class Bloom {
  static kind = "bloom";
  tellsStates = false;
  numRows = null;

  constructor(parts, description) {
    const features = list(description, "features").map((entry) => new Range(entry));
    this.rows = list(description, "rows").map((entry) => new Range(entry));
    let windowWords = 0;
    const inOrder = [...features, ...this.rows].sort((a, b) => a.firstWord - b.firstWord || a.numWords - b.numWords);
    for (const range of inOrder) {
      must(range.firstWord === windowWords, "bloom", "the ranges of symbols are not consecutive");
      windowWords += range.numWords;
    }
    this.table = new Table(parts, description, Math.max(1, windowWords), "bloom");
    this.features = named(description.features, (entry, number) => {
      const field = fieldOf(entry.value_field);
      const values = vocabulary(parts, `${number}.vocabulary`, field);
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

class Clustered {
  static kind = "clustered";
  tellsStates = false;

  constructor(parts, description) {
    this.clusters = Packed.from(parts, "clusters", list({ l: [description?.clusters] }, "l")[0]);
    this.numRows = this.clusters.length;
    this.numClusters = list(description, "shares").length;
    const fill = float(description, "fill", "layer.parts");
    must(fill > 0 && fill < 1 && this.numClusters >= 1, "clustered", "the table cannot be so full");
    let firstWord = 0;
    this.features = named(list(description, "features"), (entry, number) => {
      const field = fieldOf(entry.value_field);
      const values = vocabulary(parts, `${number}.vocabulary`, field);
      const hashes = list(entry, "hashes");
      const masks = parts.array(`${number}.masks`, "U64", 3);
      const words = wordsFor(values.length);
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
class Static {
  static kind = "static";
  tellsStates = false;
  numRows = null;

  constructor(parts, description) {
    this.salt = salt(description);
    this.width = integer(description, "width", "layer.parts");
    this.numShapes = integer(description, "num_shapes", "layer.parts");
    must(this.numShapes >= 1 && integer(description, "num_entities", "layer.parts") >= 0, "static", `${this.numShapes} shapes`);
    let divisor = BigInt(this.numShapes);
    this.features = named(list(description, "features"), (entry, number) => {
      const field = fieldOf(entry.value_field);
      must(!field.isCollection, "static", `${entry.name} is a collection`);
      const values = vocabulary(parts, `${number}.vocabulary`, field);
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
    let number = 0n;
    for (let j = 0; j < this.width; j++) {
      const word = (segment) => this.words.at((Math.floor(start / 64) + segment) * this.width + j);
      const window = bitsAt({ at: word }, start % 64) & coefficients;
      const ones = [...window.toString(2)].filter((bit) => bit === "1").length;
      if (ones % 2) number |= 1n << BigInt(j);
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

class Backed {
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

// -- columns -----------------------------------------------------------------------------------------

/** Elements of a column: a function from a place to a stored value, and how many there are. */
function elementsOf(parts, description, field, minWidth) {
  const form = description?.form;
  if (form === "dictionary") {
    const ids = Packed.from(parts, "ids", description.ids, 1);
    const values = vocabulary(parts, "vocabulary", field);
    const at = (i) => {
      const id = ids.number(i);
      must(id >= 0 && id < values.length, "columns", "an id lies outside of its vocabulary");
      return values[id];
    };
    return { at, length: ids.length };
  }
  if (form === "numbers" && !field.storesBytes) {
    const numbers = Packed.from(parts, "numbers", description.numbers, minWidth);
    return { at: (i) => numbers.at(i), length: numbers.length };
  }
  must(form === "bytes" && field.storesBytes, "layer.parts", `elements cannot have the form ${form}`);
  const offsets = Packed.from(parts, "offsets", description.offsets, 1);
  const content = parts.words("content");
  must(offsets.length >= 1, "layer.parts", "bytes have no offsets");
  const at = (i) => {
    const [start, end] = [offsets.at(i), offsets.at(i + 1)];
    must(start >= 0n && start <= end && end <= 8n * BigInt(content.length), "columns", "an element lies outside of its bytes");
    const bytes = content.slice(Number(start), Number(end));
    if (field.kind === "string") decodeText(bytes);
    return bytes;
  };
  return { at, length: offsets.length - 1 };
}

export class Column {
  constructor(parts, description, minWidth = 1) {
    this.field = fieldOf(description?.value_field);
    this.states = Packed.from(parts, "states", description.states);
    this.step = integer(description, "state_step", "layer.parts");
    this.elements = elementsOf(parts, description.elements, this.field, minWidth);
    this.bounds = this.field.isCollection ? Packed.from(parts, "bounds", description.bounds) : null;
    this.numRows = this.bounds ? this.bounds.length - 1 : this.elements.length;
    must(this.states.length === this.numRows, "layer.rows", `the states of ${description.name} are not as many as its rows`);
    must(this.step >= 1 && this.step <= VALUE, "layer.parts", "the states are too far apart");
  }

  read({ row }) {
    const { base } = this.states;
    const state = Number(base + BigInt(this.step) * (this.states.at(row) - base));
    must(state >= MISSING && state <= VALUE, "states", `a state of ${state}`);
    if (!this.bounds) return { state, values: state === VALUE ? [this.elements.at(row)] : [] };
    const [start, end] = [this.bounds.number(row), this.bounds.number(row + 1)];
    must(start >= 0 && start <= end && end <= this.elements.length, "columns", "a row lies outside of its elements");
    return { state, values: Array.from({ length: end - start }, (_, i) => this.elements.at(start + i)) };
  }
}

class Columns {
  static kind = "columns";
  tellsStates = true;

  constructor(parts, description) {
    this.features = named(list(description, "features"), (entry, number) => new Column(parts.at(String(number)), entry));
    const [first] = this.features.values();
    must(first !== undefined, "layer.parts", "there are no columns");
    this.numRows = first.numRows;
    must([...this.features.values()].every((c) => c.numRows === this.numRows), "layer.rows", "columns have different rows");
  }
}

class Scalars {
  static kind = "scalars";
  tellsStates = true;

  constructor(parts, description) {
    const entries = list(description, "features");
    const numbers = list(description, "numbers").map((entry, g) => Packed.from(parts.at("numbers"), String(g), entry));
    let [group, product] = [-1, 2n ** 63n];
    const products = [];
    this.features = named(entries, (entry, number) => {
      const field = fieldOf(entry.value_field);
      const values = vocabulary(parts, `${number}.vocabulary`, field);
      const others = list(entry, "others");
      const isFine = !field.isCollection && others.every((s) => [MISSING, NULL, EMPTY].includes(s));
      must(isFine && integer(entry, "num_values", "layer.parts") === values.length, "scalars", `${entry.name} is no such scalar`);
      const symbols = BigInt(Math.max(1, values.length + others.length));
      if (product * symbols > 2n ** 63n || group < 0) [group, product] = [group + 1, 1n];
      const [own, divisor] = [numbers[group], product];
      product *= symbols;
      products[group] = product;
      return { field, read: ({ row }) => Scalars.read(own.at(row), divisor, symbols, values, others) };
    });
    must(numbers.length === products.length && numbers.length > 0, "scalars", "the scalars are not those of their numbers");
    numbers.forEach((each, g) => {
      const width = (products[g] - 1n).toString(2).replace(/^0$/, "").length;
      must(each.width === width && each.base === 0n && each.length === numbers[0].length, "scalars", "numbers of another width");
    });
    this.numRows = numbers[0].length;
  }

  static read(number, divisor, symbols, values, others) {
    const symbol = Number((BigInt.asUintN(64, number) / divisor) % symbols);
    if (symbol < values.length) return { state: VALUE, values: [values[symbol]] };
    return { state: others[symbol - values.length] ?? MISSING, values: [] };
  }
}

// -- sets --------------------------------------------------------------------------------------------

/** Which values of the vocabulary that it shares a feature has. */
export function knownFrom(parts, number, size, count, rule) {
  if (count === size) return () => true;
  const bytes = parts.array(`${number}.known`, "U8").values;
  const isKnown = (id) => ((bytes[id >> 3] >> (id & 7)) & 1) === 1;
  const ones = sum(Array.from({ length: 8 * bytes.length }, (_, id) => Number(isKnown(id))));
  const inside = sum(Array.from({ length: size }, (_, id) => Number(isKnown(id))));
  must(bytes.length === Math.ceil(size / 8) && ones === count && inside === count, rule, "the known values are not as many as is told");
  return isKnown;
}

class Sets {
  static kind = "sets";
  tellsStates = true;

  constructor(parts, description) {
    this.words = parts.words("codes");
    this.numBits = integer(description, "num_bits", "layer.parts");
    this.starts = new Ascending(parts, "starts", description.starts, false);
    this.numRows = this.starts.length;
    must(this.numBits >= 0 && Math.floor(this.numBits / 64) <= this.words.length - 2, "sets", "the sets do not fit their words");
    this.codes = [];
    let values = null;
    this.features = named(list(description, "features"), (entry, number) => {
      const field = fieldOf(entry.value_field);
      must(field.isCollection, "layer.parts", `${entry.name} is not a collection`);
      const [header, noSet, others] = ["header_width", "no_set", "others_width"].map((key) => integer(entry, key, "layer.parts"));
      if (others < 0) values = vocabulary(parts, `${number}.vocabulary`, field);
      const before = this.codes.at(-1)?.field.kind;
      must(values !== null && (others < 0 || before === field.kind), "sets", `${entry.name} has nothing to be coded with`);
      const widths = header >= 0 && header <= MAX_CODE_WIDTH && others >= -1 && others <= MAX_CODE_WIDTH;
      must(widths && [0, 2].includes(noSet), "sets", `sets of ${entry.name} cannot be coded so`);
      const levels = Sets.levels(parts, number, values.length);
      const known = knownFrom(parts, number, values.length, integer(entry, "num_values", "layer.parts"), "sets");
      this.codes.push({ field, header, noSet, others, values, known, ...levels });
      return { field, read: ({ row }) => this.read(row, number) };
    });
    must(this.codes.length, "layer.parts", "there are no sets");
  }

  static levels(parts, number, size) {
    const ends = [...parts.array(`${number}.level_ends`, "I64").values].map(Number);
    const all = parts.array(`${number}.levels`, "U8").values;
    const ascend = ends.every((end, i) => end >= (i ? ends[i - 1] : 0));
    const runs = all.subarray(0, ends.length);
    const isFine = ascend && (ends.at(-1) ?? 0) === size && all.length === ends.length + 64 && runs.every((level) => level <= 123);
    must(isFine, "sets", "the levels do not fit the vocabulary");
    const levels = new Uint8Array(size);
    ends.forEach((end, i) => levels.fill(runs[i], i ? ends[i - 1] : 0, end));
    return { levels, left: all.subarray(ends.length) };
  }

  read(row, wanted) {
    const start = Number(this.starts.at(row));
    must(start <= this.numBits, "sets", "a row lies outside of the codes");
    const reader = new BitReader(this.words, start, this.numBits, "sets");
    let seen = [];
    for (let number = 0; ; number++) {
      const code = this.codes[number];
      const header = reader.rice(code.header);
      const size = Math.max(0, header - code.noSet);
      must(size <= code.values.length, "sets", "a set has more ids than there are");
      let ids;
      if (code.others < 0) {
        ids = seen = this.gaps(reader, size, code);
      } else {
        const numOthers = size && seen.length ? reader.rice(code.others) : size;
        must(numOthers <= size && size - numOthers <= seen.length, "sets", "a set has more members than were seen");
        const members = this.members(reader, seen, size - numOthers);
        const others = this.gaps(reader, numOthers, code);
        const union = (a, b) => [...a, ...b].sort((x, y) => x - y);
        ids = union(members, others);
        seen = union(seen, others);
        must(new Set(seen).size === seen.length, "sets", "an id is both seen and another");
      }
      if (number < wanted) continue;
      if (header < code.noSet) return { state: header, values: [] };
      must(ids.every(code.known), "sets", "a row has a value that its feature lacks");
      return { state: header > code.noSet ? VALUE : EMPTY, values: ids.map((id) => code.values[id]) };
    }
  }

  gaps(reader, count, { levels, left }) {
    const ids = [];
    let next = 0;
    for (let k = count; k > 0; k--) {
      must(next < levels.length, "sets", "an id lies outside of its vocabulary");
      const width = Math.min(MAX_CODE_WIDTH, Math.max(0, (levels[next] - left[halfOctaves(k)]) >> 2));
      const id = next + reader.rice(width);
      must(id < levels.length, "sets", "an id lies outside of its vocabulary");
      ids.push(id);
      next = id + 1;
    }
    return ids;
  }

  members(reader, seen, count) {
    const fewer = Math.min(count, seen.length - count);
    const isReversed = 2 * count > seen.length;
    if (8 * fewer >= 3 * seen.length && fewer > 0) {
      const chosen = seen.filter(() => reader.bits(1) === 1);
      must(chosen.length === count, "sets", "a set has another number of members than it says");
      return chosen;
    }
    const width = Math.max(0, halfOctaves(seen.length) - halfOctaves(fewer) - 1) >> 1;
    const places = new Set();
    for (let next = 0, i = 0; i < fewer; i++) {
      const place = next + reader.rice(width);
      must(place < seen.length, "sets", "a member lies outside of what was seen");
      places.add(place);
      next = place + 1;
    }
    return seen.filter((_, place) => places.has(place) !== isReversed);
  }
}

// -- lists -------------------------------------------------------------------------------------------

const [AGES, SIZES, GAPS] = [0, 1, 2];
const LAST_CLASS = 121;
const PREFIX_BITS = 12;
const NUM_TABLES = 5;

class Lists {
  static kind = "lists";
  tellsStates = false;

  constructor(parts, description) {
    this.features = named(list(description, "features"), (entry, number) => new List(parts.at(String(number)), entry));
    const rows = new Set([...this.features.values()].map((feature) => feature.starts.length));
    must(rows.size === 1, "layer.rows", "the lists are not those of the same rows");
    [this.numRows] = rows;
  }
}

class List {
  constructor(parts, entry) {
    this.name = text(entry, "name");
    this.field = fieldOf(entry.value_field);
    this.values = vocabulary(parts, "vocabulary", this.field);
    this.words = parts.words("codes");
    this.numBits = integer(entry, "num_bits", "layer.parts");
    this.starts = new Ascending(parts, "starts", entry.starts, false);
    this.resolution = bigInteger(entry, "resolution_microseconds", "layer.parts");
    this.newestTick = bigInteger(entry, "newest_tick", "layer.parts");
    must(this.resolution >= 1n && this.numBits >= 0 && this.numBits <= 64 * (this.words.length - 2), "lists", "the lists do not fit their words");
    const lengths = parts.array("lengths", "U8", 2);
    must(lengths.shape[0] === 3 && lengths.shape[1] === 128, "lists", "the lengths are not those of three kinds");
    this.codes = [AGES, SIZES, GAPS].map((kind) => prefixCodes(lengths.values.subarray(128 * kind, 128 * (kind + 1))));
    this.tables = widthTables(parts, this.values.length);
  }

  read({ row, states }) {
    const start = Number(this.starts.at(row));
    const end = row + 1 < this.starts.length ? Number(this.starts.at(row + 1)) : this.numBits;
    must(start <= end && end <= this.numBits, "lists", "a row lies outside of the codes");
    const reader = new BitReader(this.words, start, end, "lists");
    const [values, times] = [[], []];
    let age = -1n;
    while (reader.place < end) {
      age += this.number(reader, age < 0n ? AGES : GAPS) + 1n;
      must(age < 2n ** 60n, "lists", "an item is too old");
      const size = Number(this.number(reader, SIZES)) + 1;
      for (let next = 0, left = size; left > 0; left--) {
        must(next < this.values.length, "lists", "an id lies outside of its vocabulary");
        const octaves = (left - 1).toString(2).replace(/^0$/, "").length;
        const width = this.tables[Math.min(octaves, NUM_TABLES - 1)][next] - Math.max(0, octaves - NUM_TABLES + 1);
        const id = next + reader.rice(Math.max(0, width));
        must(id < this.values.length, "lists", "an id lies outside of its vocabulary");
        values.push(this.values[id]);
        times.push((this.newestTick - age) * this.resolution);
        next = id + 1;
      }
    }
    return { state: states.get(this.name), values, times };
  }

  number(reader, kind) {
    const ahead = Number(bitsAt(reader.words, reader.place) & ((1n << BigInt(PREFIX_BITS)) - 1n));
    const entry = this.codes[kind].get(ahead);
    must(entry !== undefined && entry.number <= LAST_CLASS, "lists", "a code is none");
    reader.advance(entry.length);
    const extra = Math.max(0, (entry.number >> 1) - 1);
    const head = entry.number < 4 ? BigInt(entry.number) : BigInt(2 | (entry.number & 1)) << BigInt(extra);
    if (!extra) return head;
    const rest = bitsAt(reader.words, reader.place) & ((1n << BigInt(extra)) - 1n);
    reader.advance(extra);
    return head | rest;
  }
}

/** By the next 12 bits, the class that begins with them and the length of its code. */
function prefixCodes(lengths) {
  const used = [...lengths.keys()].filter((number) => lengths[number]);
  must(used.every((n) => lengths[n] <= PREFIX_BITS), "lists", "a code is too long");
  must(sum(used.map((n) => 2 ** -lengths[n])) <= 1, "lists", "no prefix code has such lengths");
  used.sort((a, b) => lengths[a] - lengths[b] || a - b);
  const table = new Map();
  let [code, before] = [0, 0];
  for (const number of used) {
    const length = lengths[number];
    code = code * 2 ** (length - before);
    const reversed = parseInt([...code.toString(2).padStart(length, "0")].reverse().join(""), 2);
    for (let bits = reversed; bits < 1 << PREFIX_BITS; bits += 1 << length) table.set(bits, { number, length });
    [code, before] = [code + 1, length];
  }
  return table;
}

function widthTables(parts, size) {
  const ends = [...parts.array("run_ends", "I64").values].map(Number);
  const widths = parts.array("run_widths", "U8").values;
  must(ends.length === widths.length && widths.every((w) => w <= MAX_CODE_WIDTH), "lists", "widths of gaps cannot be so");
  const tables = [];
  let [table, start] = [new Uint8Array(size), 0];
  ends.forEach((end, i) => {
    must(end > start && end <= size, "lists", "a run of widths does not end behind its beginning");
    table.fill(widths[i], start, end);
    start = end;
    if (end === size) {
      tables.push(table);
      [table, start] = [new Uint8Array(size), 0];
    }
  });
  must(tables.length === (size ? NUM_TABLES : 0) && start === 0, "lists", "there are not five tables of widths");
  return tables;
}

export const STRUCTURES = new Map([Bloom, Columns, Scalars, Sets, Lists, Backed, Clustered, Static].map((kind) => [kind.kind, kind]));
