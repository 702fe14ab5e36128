// Lists of items with times, and counts, which are coded alike.

import { Ascending, BitReader, Packed, bigInteger, bitsAt, fieldOf, integer, vocabulary, wordsFor } from "./codes.mjs";
import { MAX_CODE_WIDTH, list, object, text, sum, named } from "./common.mjs";
import { must } from "./container.mjs";

const [AGES, SIZES, GAPS] = [0, 1, 2];
const LAST_CLASS = 121;
const PREFIX_BITS = 12;
const NUM_TABLES = 5;
const MAX_COUNT = 2n ** 54n;

export class Lists {
  static kind = "lists";
  tellsStates = false;

  constructor(parts, description) {
    this.features = named(list(description, "features"), (entry, number) => new List(parts.at(`features.${number}`), entry));
    const rows = new Set([...this.features.values()].map((feature) => feature.starts.length));
    must(rows.size === 1, "layer.rows", "the lists are not those of the same rows");
    [this.numRows] = rows;
  }
}

export class Counts {
  static kind = "counts";
  tellsStates = false;

  constructor(parts, description) {
    this.features = named(list(description, "features"), (entry, number) => new Counted(parts.at(`features.${number}`), entry));
    const rows = new Set([...this.features.values()].map((feature) => feature.starts.length));
    must(rows.size === 1, "layer.rows", "the counts are not those of the same rows");
    [this.numRows] = rows;
  }
}

/** Values of rows, with a number beside each: an age, or that of a count. */
class Numbered {
  constructor(parts, entry) {
    this.name = text(entry, "name");
    this.field = fieldOf(entry.value_field);
    this.values = vocabulary(parts, "vocabulary", this.field);
    this.words = parts.words("codes");
    this.numBits = integer(entry, "num_bits", "layer.parts");
    this.starts = new Ascending(parts, "starts", entry.starts, false);
    must(this.numBits >= 0 && this.words.length === wordsFor(this.numBits), "lists", "the lists do not fit their words");
    const lengths = parts.array("lengths", "U8", 2);
    must(lengths.shape[0] === 3 && lengths.shape[1] === 128, "lists", "the lengths are not those of three kinds");
    this.codes = [AGES, SIZES, GAPS].map((kind) => prefixCodes(lengths.values.subarray(128 * kind, 128 * (kind + 1))));
    this.tables = widthTables(parts, this.values.length);
  }

  items(row) {
    const reader = rowReader(this, row);
    const [values, ages] = [[], []];
    let age = -1n;
    while (reader.place < reader.end) {
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
        ages.push(age);
        next = id + 1;
      }
    }
    return { values, ages };
  }

  number(reader, kind) {
    const number = nextSymbol(reader, this.codes[kind]);
    must(number <= LAST_CLASS, "lists", "a code is none");
    const extra = Math.max(0, (number >> 1) - 1);
    const head = number < 4 ? BigInt(number) : BigInt(2 | (number & 1)) << BigInt(extra);
    if (!extra) return head;
    const rest = bitsAt(reader.words, reader.place) & ((1n << BigInt(extra)) - 1n);
    reader.advance(extra);
    return head | rest;
  }
}

class List extends Numbered {
  constructor(parts, entry) {
    super(parts, entry);
    this.resolution = bigInteger(entry, "resolution_microseconds", "layer.parts");
    this.newestTick = bigInteger(entry, "newest_tick", "layer.parts");
    this.limit = entry.limit === null ? undefined : integer(entry, "limit", "layer.parts");
    must(this.resolution >= 1n, "lists", "a tick takes no time");
    if ("attributes" in entry) this.attributes = new Attributes(parts.at("attributes"), object(entry, "attributes"));
    must(!this.attributes || this.attributes.starts.length === this.starts.length, "lists", "attributes are not of the same rows");
  }

  read({ row, states }) {
    const all = this.items(row);
    const [values, ages] = [all.values, all.ages].map((each) => each.slice(0, this.limit)); // the newest
    const times = ages.map((age) => (this.newestTick - age) * this.resolution);
    return { state: states.get(this.name), values, times, attributes: this.attributes?.read(row, values.length) };
  }
}

/** Attributes of items: one code for all of an item, several codes in a block. */
class Attributes {
  constructor(parts, entry) {
    this.features = list(entry, "features", "lists").map((given) => {
      must(Array.isArray(given) && given.length === 3 && Array.isArray(given[2]), "lists", "an attribute is not declared");
      const [name, valueField, values] = given;
      const isNumber = fieldOf(valueField).kind !== "string";
      must(values.every((value) => typeof value === (isNumber ? "number" : "string")), "lists", "an attribute is of another type");
      must(values.length >= 2, "lists", "an attribute has fewer than two values");
      return { name, values };
    });
    this.numCodes = this.features.reduce((product, { values }) => product * values.length, 1);
    this.blockItems = integer(entry, "block_items", "lists");
    this.usual = integer(entry, "usual", "lists");
    this.numBits = integer(entry, "num_bits", "layer.parts");
    this.words = parts.words("codes");
    this.starts = new Ascending(parts, "starts", entry.starts, false);
    const lengths = parts.array("lengths", "U8").values;
    must(this.numCodes <= 256 && this.usual >= 0 && this.usual < this.numCodes, "lists", "there is no such code of attributes");
    must(this.blockItems >= 1 && lengths.length === this.numCodes ** this.blockItems, "lists", "the blocks are not those of the codes");
    must(this.numBits >= 0 && this.words.length === wordsFor(this.numBits), "lists", "the attributes do not fit their words");
    this.blocks = prefixCodes(lengths);
  }

  /** The attributes of the first items of a row, by their names. */
  read(row, count) {
    const codes = this.codes(row, count);
    let step = this.numCodes;
    return Object.fromEntries(
      this.features.map(({ name, values }) => {
        step /= values.length;
        return [name, codes.map((code) => values[Math.floor(code / step) % values.length])];
      }),
    );
  }

  codes(row, count) {
    const reader = rowReader(this, row);
    const codes = [];
    while (codes.length < count && reader.place < reader.end) {
      let block = nextSymbol(reader, this.blocks);
      for (let item = 0; item < this.blockItems; item++, block = Math.floor(block / this.numCodes)) {
        codes.push(block % this.numCodes);
      }
    }
    while (codes.length < count) codes.push(this.usual);
    return codes.slice(0, count);
  }
}

class Counted extends Numbered {
  constructor(parts, entry) {
    super(parts, entry);
    this.countsFeature = text(entry, "counts_feature");
    const packed = Packed.from(parts, "counts", entry.counts);
    this.counts = Array.from({ length: packed.length }, (_, number) => packed.at(number));
    const firsts = entry.firsts === null ? packed : Packed.from(parts, "firsts", entry.firsts);
    must(firsts.length === packed.length, "counts", "the rounded counts do not fit each other");
    must(this.counts.every((count) => count >= 1n && count <= MAX_COUNT), "counts", "a count is none");
  }

  read({ row, states }) {
    const { values, ages } = this.items(row);
    must(ages.every((age) => age < this.counts.length), "counts", "a value has a count that does not exist");
    return { state: states.get(this.name), values, counts: ages.map((age) => this.counts[Number(age)]) };
  }
}

/** Reads the bits of a row of codes. */
function rowReader({ starts, words, numBits }, row) {
  const start = Number(starts.at(row));
  const end = row + 1 < starts.length ? Number(starts.at(row + 1)) : numBits;
  must(start <= end && end <= numBits, "lists", "a row lies outside of the codes");
  return new BitReader(words, start, end, "lists");
}

/** The number that the next code of a prefix code stands for. */
function nextSymbol(reader, table) {
  const entry = table.get(Number(bitsAt(reader.words, reader.place) & ((1n << BigInt(PREFIX_BITS)) - 1n)));
  must(entry !== undefined, "lists", "a code is none");
  reader.advance(entry.length);
  return entry.number;
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
