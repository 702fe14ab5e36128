// Sets in Golomb-Rice codes.

import { Ascending, BitReader, fieldOf, halfOctaves, integer, vocabulary, wordsFor } from "./codes.mjs";
import { EMPTY, VALUE, MAX_CODE_WIDTH, list, named, knownFrom } from "./common.mjs";
import { must } from "./container.mjs";

export class Sets {
  static kind = "sets";
  tellsStates = true;

  constructor(parts, description) {
    this.words = parts.words("codes");
    this.numBits = integer(description, "num_bits", "layer.parts");
    this.starts = new Ascending(parts, "starts", description.starts, false);
    [this.numRows, this.groupRows] = ["num_rows", "group_rows"].map((key) => integer(description, key, "layer.parts"));
    must(this.numBits >= 0 && this.words.length === wordsFor(this.numBits), "sets", "the sets do not fit their words");
    must(this.groupRows >= 1 && this.groupRows <= 64, "sets", "a group has 1 to 64 rows");
    must(this.starts.length === Math.ceil(this.numRows / this.groupRows), "sets", "the groups do not fit the rows");
    this.codes = [];
    let values = null;
    this.features = named(list(description, "features"), (entry, number) => {
      const field = fieldOf(entry.value_field);
      must(field.isCollection, "layer.parts", `${entry.name} is not a collection`);
      const [header, noSet, others] = ["header_width", "no_set", "others_width"].map((key) => integer(entry, key, "layer.parts"));
      const own = parts.at(`features.${number}`);
      if (others < 0) values = vocabulary(own, "vocabulary", field);
      const before = this.codes.at(-1)?.field.kind;
      must(values !== null && (others < 0 || before === field.kind), "sets", `${entry.name} has nothing to be coded with`);
      const widths = header >= 0 && header <= MAX_CODE_WIDTH && others >= -1 && others <= MAX_CODE_WIDTH;
      must(widths && [0, 2].includes(noSet), "sets", `sets of ${entry.name} cannot be coded so`);
      const levels = Sets.levels(own, values.length);
      const known = knownFrom(own, values.length, integer(entry, "num_values", "layer.parts"), "sets");
      this.codes.push({ field, header, noSet, others, values, known, ...levels });
      return { field, read: ({ row }) => this.read(row, number) };
    });
    must(this.codes.length, "layer.parts", "there are no sets");
  }

  static levels(parts, size) {
    const ends = [...parts.array("level_ends", "I64").values].map(Number);
    const all = parts.array("levels", "U8").values;
    const ascend = ends.every((end, i) => end >= (i ? ends[i - 1] : 0));
    const runs = all.subarray(0, ends.length);
    const [left, headers] = [all.subarray(ends.length, ends.length + 64), all.subarray(ends.length + 64)];
    const isFine = ascend && (ends.at(-1) ?? 0) === size && left.length === 64 && runs.every((level) => level <= 123);
    must(isFine, "sets", "the levels do not fit the vocabulary");
    const isPermutation = headers.length <= 256 && headers.toSorted().every((header, i) => header === i);
    must(isPermutation, "sets", "the headers are no permutation");
    const levels = new Uint8Array(size);
    ends.forEach((end, i) => levels.fill(runs[i], i ? ends[i - 1] : 0, end));
    return { levels, left, headers };
  }

  read(row, wanted) {
    const start = Number(this.starts.at(Math.floor(row / this.groupRows)));
    must(start <= this.numBits, "sets", "a row lies outside of the codes");
    const reader = new BitReader(this.words, start, this.numBits, "sets");
    for (let skipped = row % this.groupRows; skipped; skipped--) this.readRow(reader, this.codes.length - 1);
    const { code, header, ids } = this.readRow(reader, wanted);
    if (header < code.noSet) return { state: header, values: [] };
    must(ids.every(code.known), "sets", "a row has a value that its feature lacks");
    return { state: header > code.noSet ? VALUE : EMPTY, values: ids.map((id) => code.values[id]) };
  }

  // The sets of the next row up to that of one feature, which is returned.
  readRow(reader, wanted) {
    let seen = [];
    for (let number = 0; ; number++) {
      const code = this.codes[number];
      const rank = reader.rice(code.header);
      const header = code.headers[rank] ?? rank;
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
      if (number === wanted) return { code, header, ids };
    }
  }

  gaps(reader, count, { levels, left }) {
    const ids = [];
    let next = 0;
    for (let k = count; k > 0; k--) {
      must(next < levels.length, "sets", "an id lies outside of its vocabulary");
      const width = Math.max(0, levels[next] - left[halfOctaves(k)]) >> 2;
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
