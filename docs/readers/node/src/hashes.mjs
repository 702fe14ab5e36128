// Hashes and entity keys. All integers of 64 bits are BigInt.

import { inspect } from "node:util";

const MASK = (1n << 64n) - 1n;
const u64 = (x) => x & MASK;
const rotateLeft = (x, by) => u64(x << by) | (x >> (64n - by));
const rotateRight = (x, by) => (x >> by) | u64(x << (64n - by));

/** The finalizer of SplitMix64. */
export function mix64(x) {
  x = u64((x ^ (x >> 30n)) * 0xbf58476d1ce4e5b9n);
  x = u64((x ^ (x >> 27n)) * 0x94d049bb133111ebn);
  return x ^ (x >> 31n);
}

/** MurmurHash3 x64 128 with seed 0 of a Buffer: a Buffer of 16 bytes. */
export function murmur128(bytes) {
  const [c1, c2] = [0x87c37b91114253d5n, 0x4cf5ad432745937fn];
  const mixFirst = (k) => u64(rotateLeft(u64(k * c1), 31n) * c2);
  const mixSecond = (k) => u64(rotateLeft(u64(k * c2), 33n) * c1);
  const finish = (k) => {
    k = u64((k ^ (k >> 33n)) * 0xff51afd7ed558ccdn);
    k = u64((k ^ (k >> 33n)) * 0xc4ceb9fe1a85ec53n);
    return k ^ (k >> 33n);
  };
  const blocks = Math.floor(bytes.length / 16);
  let [h1, h2] = [0n, 0n];
  for (let i = 0; i < blocks; i++) {
    h1 ^= mixFirst(bytes.readBigUInt64LE(16 * i));
    h1 = u64(u64(rotateLeft(h1, 27n) + h2) * 5n + 0x52dce729n);
    h2 ^= mixSecond(bytes.readBigUInt64LE(16 * i + 8));
    h2 = u64(u64(rotateLeft(h2, 31n) + h1) * 5n + 0x38495ab5n);
  }
  const tail = Buffer.alloc(16);
  bytes.copy(tail, 0, 16 * blocks);
  h2 ^= mixSecond(tail.readBigUInt64LE(8));
  h1 ^= mixFirst(tail.readBigUInt64LE(0));
  const length = BigInt(bytes.length);
  h1 ^= length;
  h2 ^= length;
  h1 = u64(h1 + h2);
  h2 = u64(h2 + h1);
  h1 = finish(h1);
  h2 = finish(h2);
  h1 = u64(h1 + h2);
  h2 = u64(h2 + h1);
  const digest = Buffer.alloc(16);
  digest.writeBigUInt64LE(h1, 0);
  digest.writeBigUInt64LE(h2, 8);
  return digest;
}

/** The checksum of a Buffer, in hexadecimal. */
export const checksum = (bytes) => murmur128(bytes).toString("hex");

const BLAKE2B_IV = [
  0x6a09e667f3bcc908n, 0xbb67ae8584caa73bn, 0x3c6ef372fe94f82bn, 0xa54ff53a5f1d36f1n,
  0x510e527fade682d1n, 0x9b05688c2b3e6c1fn, 0x1f83d9abfb41bd6bn, 0x5be0cd19137e2179n,
];
const BLAKE2B_SIGMA = [
  [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15],
  [14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3],
  [11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4],
  [7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8],
  [9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13],
  [2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9],
  [12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11],
  [13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10],
  [6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5],
  [10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0],
];

/** BLAKE2b with a digest of 16 bytes, RFC 7693: Node's crypto has no digests of that length. */
export function blake2b128(bytes) {
  const state = [...BLAKE2B_IV];
  state[0] ^= 0x01010000n ^ 16n;
  const blocks = Math.max(1, Math.ceil(bytes.length / 128));
  for (let block = 0; block < blocks; block++) {
    const content = Buffer.alloc(128);
    bytes.copy(content, 0, 128 * block);
    const m = Array.from({ length: 16 }, (_, i) => content.readBigUInt64LE(8 * i));
    const v = [...state, ...BLAKE2B_IV];
    v[12] ^= BigInt(Math.min(bytes.length, 128 * (block + 1)));
    if (block === blocks - 1) v[14] ^= MASK;
    const mix = (a, b, c, d, x, y) => {
      v[a] = u64(v[a] + v[b] + x);
      v[d] = rotateRight(v[d] ^ v[a], 32n);
      v[c] = u64(v[c] + v[d]);
      v[b] = rotateRight(v[b] ^ v[c], 24n);
      v[a] = u64(v[a] + v[b] + y);
      v[d] = rotateRight(v[d] ^ v[a], 16n);
      v[c] = u64(v[c] + v[d]);
      v[b] = rotateRight(v[b] ^ v[c], 63n);
    };
    for (let round = 0; round < 12; round++) {
      const s = BLAKE2B_SIGMA[round % 10];
      for (let i = 0; i < 4; i++) mix(i, 4 + i, 8 + i, 12 + i, m[s[2 * i]], m[s[2 * i + 1]]);
      for (let i = 0; i < 4; i++) {
        mix(i, 4 + ((i + 1) % 4), 8 + ((i + 2) % 4), 12 + ((i + 3) % 4), m[s[8 + 2 * i]], m[s[9 + 2 * i]]);
      }
    }
    for (let i = 0; i < 8; i++) state[i] ^= v[i] ^ v[i + 8];
  }
  const digest = Buffer.alloc(16);
  digest.writeBigUInt64LE(state[0], 0);
  digest.writeBigUInt64LE(state[1], 8);
  return digest;
}

const TYPES = { bytes: 1, string: 2, int32: 3, int64: 4, timestamp: 8 };

/** The bytes of a value. What would have to be converted is refused, as it may become the key of another entity. */
function keyValue(name, type, value) {
  const refuse = (what) => {
    throw new TypeError(`join key ${name} of type ${type} takes ${what}, not ${inspect(value)}`);
  };
  if (type === "bytes") return value instanceof Uint8Array ? Buffer.from(value) : refuse("a Buffer");
  if (type === "string") {
    return typeof value === "string" && value.isWellFormed() ? Buffer.from(value, "utf8") : refuse("a string without half surrogate pairs");
  }
  const bits = type === "int32" ? 32 : 64;
  const isInteger = typeof value === "bigint" || Number.isSafeInteger(value);
  if (!isInteger || BigInt.asIntN(bits, BigInt(value)) !== BigInt(value)) refuse(`a BigInt of ${bits} bits or a safe integer`);
  const content = Buffer.alloc(8);
  content.writeBigInt64LE(BigInt(value));
  return content.subarray(0, bits / 8);
}

/** The serialized key of an entity: `{name: [type, value], ...}`, a type being one of `TYPES`. */
export function serializeKey(joinKeys) {
  const u32 = (...numbers) => {
    const content = Buffer.alloc(4 * numbers.length);
    numbers.forEach((number, i) => content.writeUInt32LE(number, 4 * i));
    return content;
  };
  const encoded = Object.entries(joinKeys).map(([name, [type, value]]) => {
    if (!Object.hasOwn(TYPES, type)) throw new TypeError(`join key ${name} has type ${type}; give ${Object.keys(TYPES)}`);
    return { name: Buffer.from(name, "utf8"), type: TYPES[type], content: keyValue(name, type, value) };
  });
  encoded.sort((a, b) => Buffer.compare(a.name, b.name)); // in UTF-8 as by code points
  return Buffer.concat([
    u32(encoded.length),
    ...encoded.flatMap(({ name }) => [u32(TYPES.string, name.length), name]),
    ...encoded.flatMap(({ type, content }) => [u32(type, content.length), content]),
  ]);
}

/** The hash of a serialized key: two BigInt. */
export function hashKey(key) {
  const nameLength = key.length >= 12 ? key.readUInt32LE(8) : -1;
  const isInt64 =
    key.length === 28 + nameLength &&
    key.readUInt32LE(0) === 1 &&
    key.readUInt32LE(4) === TYPES.string &&
    key.readUInt32LE(12 + nameLength) === TYPES.int64 &&
    key.readUInt32LE(16 + nameLength) === 8;
  const digest = isInt64 ? murmur128(key) : blake2b128(key);
  return [digest.readBigUInt64LE(0), digest.readBigUInt64LE(8)];
}

/** The row hash of an entity hash under a salt. */
export const rowHash = ([h0, h1], [s0, s1]) => mix64(u64(mix64(h0 ^ s0) + (h1 ^ s1)));

/** The fingerprint of a row hash: below `range`, a BigInt. */
export const fingerprint = (hash, range) => (hash * range) >> 64n;

/** Where hash `j` of an entity points in a table of so many words: a word and a rotation. */
export function filterPlace([h0, h1], [s0, s1], j, numWords) {
  const start = mix64(h0 ^ s0);
  const step = mix64(h1 ^ s1) | 1n;
  const m = mix64(u64(start + step * BigInt(j)));
  return [Number(((m >> 32n) * BigInt(numWords)) >> 32n), Number(m & 63n)];
}

/** Twice the logarithm to base 2, rounded; 0 of 0. */
export function halfOctaves(n) {
  if (n === 0) return 0;
  const octaves = Math.floor(Math.log2(n));
  const exact = 2 ** octaves > n ? octaves - 1 : 2 ** (octaves + 1) <= n ? octaves + 1 : octaves;
  return 2 * exact + (BigInt(n) ** 2n >= 2n << BigInt(2 * exact) ? 1 : 0);
}
