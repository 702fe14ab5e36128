// Compact sets: an arithmetic code of how many ids of a set lie in each half of a tree.

import { Ascending, Packed, fieldOf, integer, vocabulary, wordsFor } from "./codes.mjs";
import { must } from "./container.mjs";
import { EMPTY, VALUE, knownFrom, list, named } from "./common.mjs";

const RULE = "compact_sets";
const WHOLE = 1 << 15;
const TWICE_CONCENTRATIONS = [1, 2, 4, 8, 16, 32, 64, 128, 256, 20000];
const NUM_SHARES = 33;
const MOST_TOLD = 16;
const BINS = [16, 32, 32, 64, 64, 64];
const LARGE_SIZES = [23, 45, 90, 180, 360, 1000];
const NUM_SIZES = 108;
const CAP = 12;
const NUM_CLASSES = 8;
const NUM_OF_CLASS = ((CAP + 1) * (CAP + 2)) / 2;
const UNUSED_CONTEXT = 40;
const MOST_MASS = 2 ** 24;
const LEAST_RANGE = 2 ** 31;

// The three lists of numbers of the page.
const LEFT_SHARES = [
  22, 36, 60, 98, 162, 267, 439, 720, 1179, 1921, 3108, 4971, 7812, 11955, 17625, 24743, 32768,
];
const BOUNDS = [
  452, 745, 1228, 2024, 3337, 5502, 9072, 14957, 24660, 40658, 67033, 110519, 182215, 300422, 495312, 816632,
  1346398, 2219835, 3659890, 6034138, 9948612, 16402488, 27043131, 44586586, 73510853, 121198907, 199823216,
  329452786, 543175816, 895545521, 1476504949, 2434345116,
];
const CONTEXT_SHARES = [
  11, 13, 16, 20, 24, 30, 36, 45, 54, 66, 81, 99, 121, 147, 180, 219, 267, 326, 397, 484, 589, 717, 872, 1058,
  1283, 1554, 1878, 2266, 2725, 3269, 3906, 4648, 5504, 6482, 7585, 8813, 10159, 11611, 13150, 14751, 16384,
  18017, 19618, 21157, 22609, 23955, 25183, 26286, 27264, 28120, 28862, 29499, 30043, 30502, 30890, 31214,
  31485, 31710, 31896, 32051, 32179, 32284, 32371, 32442,
];

// -- tables ------------------------------------------------------------------------------------------

const bits = (x) => (x ? x.toString(2).length : 0);
const shifted = (x, by) => (by < 0 ? x << BigInt(-by) : x >> BigInt(by));

/** In proportion to the probabilities of 0 to `number` ids on the left: BigInt below 2**31. */
function weights(left, right, number) {
  const found = [{ weight: 1n << 30n, exponent: 0 }];
  for (let count = 0; count < number; count++) {
    const above = BigInt(number - count) * ((BigInt(count) << 17n) + left);
    const below = BigInt(count + 1) * ((BigInt(number - count - 1) << 17n) + right);
    const raised = 62 - bits(above);
    const quotient = (above << BigInt(raised)) / below;
    const longer = bits(quotient) - 31;
    const { weight, exponent } = found[count];
    const product = weight * shifted(quotient, longer);
    const isLong = Number(product >> 61n);
    found.push({ weight: product >> BigInt(30 + isLong), exponent: exponent + longer - raised + 30 + isLong });
  }
  const highest = Math.max(...found.map(({ exponent }) => exponent));
  return found.map(({ weight, exponent }) => weight >> BigInt(Math.min(highest - exponent, 31)));
}

/** Shares of 2**15, none of which is 0, from 0 on. */
function cumulated(parts) {
  const whole = parts.reduce((sum, weight) => sum + weight, 0n);
  const shares = parts.map((weight) => 1 + Number((weight * BigInt(WHOLE - parts.length)) / whole));
  const largest = shares.indexOf(Math.max(...shares));
  shares[largest] += WHOLE - shares.reduce((sum, share) => sum + share, 0);
  let sum = 0;
  return [0, ...shares.map((share) => (sum += share))];
}

const known = new Map();

/** The table of a node for a number of ids: of counts up to 16, and of bins of larger ones, by `-1 - kind`. */
function tableOf(node, number) {
  const key = `${node} ${number}`;
  if (!known.has(key)) known.set(key, computed(Math.floor(node / NUM_SHARES), node % NUM_SHARES, number));
  return known.get(key);
}

function computed(place, share, number) {
  const twice = TWICE_CONCENTRATIONS[place];
  const left = LEFT_SHARES[Math.min(share, NUM_SHARES - 1 - share)];
  const size = number > 0 ? number : LARGE_SIZES[-1 - number];
  const found = weights(BigInt(twice * left), BigInt(twice * (2 ** 16 - left)), size);
  if (share >= LEFT_SHARES.length) found.reverse();
  if (number > 0) return cumulated(found);
  const summed = new Array(BINS[-1 - number]).fill(0n);
  found.forEach((weight, count) => {
    summed[Math.floor((count * summed.length) / (size + 1))] += weight;
  });
  return cumulated(summed);
}

/** CRC-32 of all tables, for the test values of the page. */
export function tablesChecksum() {
  const padded = (table, length) => [...table, ...new Array(length - table.length).fill(0)];
  const nodes = Array.from({ length: TWICE_CONCENTRATIONS.length * NUM_SHARES }, (_, node) => node);
  const of = (numbers, length) =>
    nodes.flatMap((node) => numbers.flatMap((number) => padded(number ? tableOf(node, number) : [], length)));
  const small = of(Array.from({ length: MOST_TOLD + 1 }, (_, number) => number), MOST_TOLD + 2);
  const large = of(BINS.map((_, kind) => -1 - kind), Math.max(...BINS) + 2);
  return crc32(new Uint8Array(Uint16Array.from([...small, ...large]).buffer));
}

function crc32(bytes) {
  let crc = 0xffffffff;
  for (const byte of bytes) {
    crc ^= byte;
    for (let bit = 0; bit < 8; bit++) crc = crc & 1 ? (crc >>> 1) ^ 0xedb88320 : crc >>> 1;
  }
  return (crc ^ 0xffffffff) >>> 0;
}

// -- the decoder -------------------------------------------------------------------------------------

class Decoder {
  constructor(words, bit, numBits) {
    must(bit <= numBits, RULE, "a row lies outside of the codes");
    Object.assign(this, { words, bit, limit: numBits + 32, range: 2 ** 32 - 1, value: 0, unit: 1 });
    this.take(32);
  }

  take(length) {
    // Bits run from the highest of each word on.
    const word = Math.floor(this.bit / 64);
    const both = (this.words.at(word) << 64n) | this.words.at(word + 1);
    const taken = Number((both >> BigInt(128 - (this.bit % 64) - length)) & ((1n << BigInt(length)) - 1n));
    this.value = (this.value * 2 ** length + taken) % 2 ** 32;
    this.bit += length;
    must(this.bit <= this.limit, RULE, "a code ends behind the codes");
  }

  /** Which of `whole` units the value lies in. */
  of(whole) {
    this.unit = Math.floor(this.range / whole);
    return Math.floor(this.value / this.unit);
  }

  consume(before, own, isLast) {
    this.value -= before * this.unit;
    this.range = isLast ? this.range - before * this.unit : own * this.unit;
    must(this.value >= 0 && this.range > 0, RULE, "a code is none");
    let shift = 0;
    while (this.range < LEAST_RANGE) {
      this.range *= 2;
      shift++;
    }
    if (shift) this.take(shift);
  }

  flat(whole) {
    const number = Math.min(this.of(whole), whole - 1);
    this.consume(number, 1, number + 1 === whole);
    return number;
  }

  /** The entry of a cumulated table, of `length` shares, that the value lies in. */
  entry(table, length, whole = table[length]) {
    const value = Math.min(this.of(whole), whole - 1);
    let place = length - 1;
    while (place > 0 && table[place] > value) place--;
    this.consume(table[place], table[place + 1] - table[place], table[place + 1] === whole);
    return place;
  }
}

// -- the structure -----------------------------------------------------------------------------------

export class CompactSets {
  static kind = "compact_sets";
  tellsStates = true;

  constructor(parts, description) {
    this.words = parts.words("codes");
    this.numBits = integer(description, "num_bits", "layer.parts");
    this.starts = new Ascending(parts, "starts", description.starts, false);
    this.numRows = this.starts.length;
    must(this.numBits >= 0 && this.words.length === wordsFor(this.numBits), RULE, "the sets do not fit their words");
    this.codes = [];
    let [values, head] = [null, null];
    this.features = named(list(description, "features"), (entry, number) => {
      const field = fieldOf(entry.value_field);
      must(field.isCollection, "layer.parts", `${entry.name} is not a collection`);
      const isAlone = entry.classes === undefined;
      if (isAlone) values = vocabulary(parts, `${number}.vocabulary`, field);
      must(values !== null && (isAlone || this.codes.at(-1).field.kind === field.kind), RULE, `${entry.name} has nothing to be coded with`);
      const known = knownFrom(parts, number, values.length, integer(entry, "num_values", "layer.parts"), RULE);
      const noSet = integer(entry, "no_set", "layer.parts");
      must([0, 2].includes(noSet), RULE, `sets of ${entry.name} cannot be coded so`);
      const tree = treeFrom(parts, number, entry, values.length) ?? head;
      must(tree !== null, RULE, `${entry.name} has no tree`);
      if (isAlone) head = tree;
      const sizes = numbersFrom(parts, number, "sizes", entry.sizes, bucketOf(noSet + values.length) + 1, 2 ** 16);
      const sum = sizes.reduce((a, b) => a + b, 0);
      must(sizes.length <= NUM_SIZES && sum > 0 && sum < 2 ** 16, RULE, "sizes have no such shares");
      let before = 0;
      const cumulatedSizes = [0, ...sizes.map((share) => (before += share))];
      const members = isAlone ? null : membersFrom(parts, number, entry, values.length);
      this.codes.push({ field, values, known, noSet, tree, sizes: cumulatedSizes, members });
      return { field, read: ({ row }) => this.read(row, number) };
    });
    must(this.codes.length, "layer.parts", "there are no sets");
  }

  read(row, wanted) {
    const decoder = new Decoder(this.words, Number(this.starts.at(row)), this.numBits);
    let seen = new Map(); // by id, 1 in the set right before, 2 in one before that, 3 in both
    for (let number = 0; ; number++) {
      const code = this.codes[number];
      if (code.members === null) seen = new Map();
      const size = sizeOf(decoder, code.sizes);
      const numOthers = Math.max(0, size - code.noSet);
      must(numOthers <= code.values.length - seen.size, RULE, "a set has more ids than there are");
      const members = size >= code.noSet ? membersOf(decoder, code.members, seen) : [];
      const others = [];
      decodeIds(decoder, code.tree, numOthers, 0, code.values.length, others);
      must(others.every((id) => !seen.has(id)), RULE, "an id is both seen and another");
      if (number < wanted) {
        const chosen = new Set(members);
        const marks = [...[...seen.keys()].map((id) => [id, 2 | Number(chosen.has(id))]), ...others.map((id) => [id, 1])];
        seen = new Map(marks.sort(([a], [b]) => a - b));
        continue;
      }
      if (size < code.noSet) return { state: size, values: [] };
      const ids = [...members, ...others].sort((a, b) => a - b);
      must(ids.every(code.known), RULE, "a row has a value that its feature lacks");
      return { state: ids.length ? VALUE : EMPTY, values: ids.map((id) => code.values[id]) };
    }
  }
}

function numbersFrom(parts, number, name, described, length, most) {
  const packed = Packed.from(parts, `${number}.${name}`, described);
  must(packed.length === length, RULE, `${packed.length} ${name} instead of ${length}`);
  const numbers = Array.from({ length }, (_, i) => packed.number(i));
  must(numbers.every((n) => n >= 0 && n <= most), RULE, `${name} lie outside of 0 to ${most}`);
  return numbers;
}

/** The cumulated masses of symbols, and the node of each middle. */
function treeFrom(parts, number, entry, size) {
  if (entry.tree === undefined) return null;
  const pairs = numbersFrom(parts, number, "tree", entry.tree, size, 639);
  const mass = [0];
  pairs.forEach((pair) => mass.push(mass.at(-1) + massOf(Math.floor(pair / TWICE_CONCENTRATIONS.length))));
  const shares = new Array(size).fill(NUM_SHARES >> 1);
  const split = (low, high) => {
    if (high - low < 2) return;
    const middle = low + Math.floor((high - low) / 2);
    const halves = [mass[middle] - mass[low], mass[high] - mass[middle]].map(BigInt);
    const tooLong = BigInt(Math.max(0, ...halves.map((half) => bits(half) - 31)));
    const [left, right] = halves.map((half) => half >> tooLong);
    shares[middle] = BOUNDS.filter((bound) => left << 20n >= right * BigInt(bound)).length;
    split(low, middle);
    split(middle, high);
  };
  split(0, size);
  const nodes = pairs.map((pair, i) => (pair % TWICE_CONCENTRATIONS.length) * NUM_SHARES + shares[i]);
  return { mass, nodes };
}

/** The integer square root of 4 * 2 ** level, and 1 more. */
function massOf(level) {
  const target = 4n << BigInt(level);
  let root = BigInt(Math.floor(Math.sqrt(Number(target))));
  while (root * root > target) root--;
  while ((root + 1n) * (root + 1n) <= target) root++;
  return Number(root) + 1;
}

function membersFrom(parts, number, entry, size) {
  const classes = numbersFrom(parts, number, "classes", entry.classes, size, NUM_CLASSES - 1);
  const told = classes.some((kind) => kind) ? NUM_CLASSES : 1;
  const contexts = numbersFrom(parts, number, "contexts", entry.contexts, 3 * told * NUM_OF_CLASS, 63);
  const at = (mark, kind, place) => CONTEXT_SHARES[kind < told ? contexts[((mark - 1) * told + kind) * NUM_OF_CLASS + place] : UNUSED_CONTEXT];
  return { classes, at };
}

/** The bucket of a header. */
function bucketOf(size) {
  if (size < 8) return size;
  const rest = Math.floor(Math.log2(size)) - 2;
  return 8 + (rest - 1) * 4 + (Math.floor(size / 2 ** rest) & 3);
}

function sizeOf(decoder, sizes) {
  const bucket = decoder.entry(sizes, sizes.length - 1);
  if (bucket < 8) return bucket;
  const rest = 1 + ((bucket - 8) >> 2);
  return (4 + ((bucket - 8) & 3)) * 2 ** rest + decoder.flat(2 ** rest);
}

function membersOf(decoder, code, seen) {
  const members = [];
  let place = 0;
  for (const [id, mark] of seen) {
    let [told, ones] = [place++, members.length];
    if (told > CAP) [told, ones] = [CAP, Math.floor((2 * ones * CAP + told) / (2 * told))];
    const share = code.at(mark, code.classes[id], (told * (told + 1)) / 2 + ones);
    decoder.of(WHOLE);
    if (decoder.value < share * decoder.unit) {
      decoder.consume(0, share, false);
      members.push(id);
    } else {
      decoder.consume(share, WHOLE - share, true);
    }
  }
  return members;
}

function decodeIds(decoder, tree, number, low, high, ids) {
  const { mass } = tree;
  if (number === high - low) {
    for (let id = low; id < high; id++) ids.push(id);
    return;
  }
  if (!number) return;
  if (number === 1 && mass[high] - mass[low] < MOST_MASS) {
    const own = mass.slice(low, high + 1).map((m) => m - mass[low]);
    ids.push(low + decoder.entry(own, high - low));
    return;
  }
  const middle = low + Math.floor((high - low) / 2);
  const [least, most] = [Math.max(0, number - (high - middle)), Math.min(number, middle - low)];
  const left = least < most ? leftOf(decoder, tree.nodes[middle], number, least, most) : least;
  must(left >= least && left <= most, RULE, "a set has more ids than there are");
  decodeIds(decoder, tree, left, low, middle, ids);
  decodeIds(decoder, tree, number - left, middle, high, ids);
}

function leftOf(decoder, node, number, least, most) {
  if (number <= MOST_TOLD) return decoder.entry(tableOf(node, number), number + 1);
  const kind = Math.min(Math.max(Math.floor(Math.log2(number)) - 4, 0), BINS.length - 1);
  const bins = BINS[kind];
  const place = decoder.entry(tableOf(node, -1 - kind), bins);
  const begin = (bin) => Math.floor((bin * (number + 1) + bins - 1) / bins);
  const [first, end] = [Math.max(begin(place), least), Math.min(begin(place + 1), most + 1)];
  return end - first > 1 ? first + decoder.flat(end - first) : first;
}
