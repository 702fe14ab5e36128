/* Hashes serialized entity keys, many per call; entity_keys.py says which hash a key gets. */

#include "kernel.h"

/* -- MurmurHash3 x64 128, seed 0 (Austin Appleby, public domain) ---------------------------------- */

static inline uint64_t rotate_left(uint64_t x, int distance) { return x << distance | x >> (64 - distance); }

static inline uint64_t load64(const uint8_t *bytes) {
    uint64_t word;
    memcpy(&word, bytes, 8);
    return word;
}

static inline uint64_t finish64(uint64_t k) {
    k = (k ^ k >> 33) * 0xff51afd7ed558ccdull;
    k = (k ^ k >> 33) * 0xc4ceb9fe1a85ec53ull;
    return k ^ k >> 33;
}

static inline uint64_t scramble1(uint64_t k) {
    return rotate_left(k * 0x87c37b91114253d5ull, 31) * 0x4cf5ad432745937full;
}

static inline uint64_t scramble2(uint64_t k) {
    return rotate_left(k * 0x4cf5ad432745937full, 33) * 0x87c37b91114253d5ull;
}

static inline void mix_block(uint64_t *h, uint64_t first, uint64_t second) {
    h[0] = (rotate_left(h[0] ^ scramble1(first), 27) + h[1]) * 5 + 0x52dce729;
    h[1] = (rotate_left(h[1] ^ scramble2(second), 31) + h[0]) * 5 + 0x38495ab5;
}

/* Ends with the bytes after the last block, and zeros. */
static inline void finish(const uint64_t *h, uint64_t first, uint64_t second, size_t length, uint64_t *digest) {
    uint64_t h1 = h[0] ^ scramble1(first) ^ length; /* 0 if there are no bytes: 0 scrambles to 0 */
    uint64_t h2 = h[1] ^ scramble2(second) ^ length;
    h1 += h2;
    h2 += h1;
    h1 = finish64(h1);
    h2 = finish64(h2);
    digest[0] = h1 + h2;
    digest[1] = h2 + digest[0];
}

void murmur3_128(const uint8_t *key, size_t length, uint64_t *digest) {
    uint64_t h[2] = {0, 0}, tail[2] = {0, 0};
    size_t place = 0;
    for (; place + 16 <= length; place += 16) mix_block(h, load64(key + place), load64(key + place + 8));
    memcpy(tail, key + place, length - place);
    finish(h, tail[0], tail[1], length, digest);
}

/* -- BLAKE2b with a digest of 16 bytes and no key (RFC 7693) --------------------------------------- */

static const uint64_t BLAKE2B_IV[8] = {0x6a09e667f3bcc908ull, 0xbb67ae8584caa73bull, 0x3c6ef372fe94f82bull,
                                       0xa54ff53a5f1d36f1ull, 0x510e527fade682d1ull, 0x9b05688c2b3e6c1full,
                                       0x1f83d9abfb41bd6bull, 0x5be0cd19137e2179ull};

static const uint8_t BLAKE2B_SIGMA[12][16] = {
    {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3},
    {11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4}, {7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8},
    {9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13}, {2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9},
    {12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11}, {13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10},
    {6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5}, {10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0},
    {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3}};

static inline void blake2b_mix(uint64_t *v, int a, int b, int c, int d, uint64_t x, uint64_t y) {
    v[a] += v[b] + x;
    v[d] = rotate_left(v[d] ^ v[a], 32);
    v[c] += v[d];
    v[b] = rotate_left(v[b] ^ v[c], 40);
    v[a] += v[b] + y;
    v[d] = rotate_left(v[d] ^ v[a], 48);
    v[c] += v[d];
    v[b] = rotate_left(v[b] ^ v[c], 1);
}

static void blake2b_compress(uint64_t *h, const uint8_t *block, uint64_t counter, int is_last) {
    uint64_t m[16], v[16];
    memcpy(m, block, 128);
    memcpy(v, h, 64);
    memcpy(v + 8, BLAKE2B_IV, 64);
    v[12] ^= counter;
    if (is_last) v[14] = ~v[14];
    for (int round = 0; round < 12; round++) {
        const uint8_t *s = BLAKE2B_SIGMA[round];
        blake2b_mix(v, 0, 4, 8, 12, m[s[0]], m[s[1]]);
        blake2b_mix(v, 1, 5, 9, 13, m[s[2]], m[s[3]]);
        blake2b_mix(v, 2, 6, 10, 14, m[s[4]], m[s[5]]);
        blake2b_mix(v, 3, 7, 11, 15, m[s[6]], m[s[7]]);
        blake2b_mix(v, 0, 5, 10, 15, m[s[8]], m[s[9]]);
        blake2b_mix(v, 1, 6, 11, 12, m[s[10]], m[s[11]]);
        blake2b_mix(v, 2, 7, 8, 13, m[s[12]], m[s[13]]);
        blake2b_mix(v, 3, 4, 9, 14, m[s[14]], m[s[15]]);
    }
    for (int i = 0; i < 8; i++) h[i] ^= v[i] ^ v[i + 8];
}

static void blake2b_128(const uint8_t *key, size_t length, uint64_t *digest) {
    uint64_t h[8];
    memcpy(h, BLAKE2B_IV, 64);
    h[0] ^= 0x01010000 ^ 16;
    size_t place = 0;
    for (; length - place > 128; place += 128) blake2b_compress(h, key + place, place + 128, 0);
    uint8_t block[128] = {0};
    memcpy(block, key + place, length - place);
    blake2b_compress(h, block, length, 1);
    memcpy(digest, h, 16);
}

/* -- keys ------------------------------------------------------------------------------------------ */

/* hash_int64_keys(prefix, values, out): the hashes of keys that are `prefix` and 8 bytes of `values`, int64[n]. */
KERNEL_FUNCTION(hash_int64_keys) {
    Array prefix, values, out;
    if (take(call, "188!.", &prefix, &values, &out) < 0) return NULL;
    if (out.length != 2 * values.length) return refuse(DO_NOT_FIT);
    size_t length = (size_t)prefix.length, place = 0;
    uint64_t start[2] = {0, 0}, rest[2] = {0, 0}; /* of the prefix: the state after its blocks, and the other bytes */
    for (const uint8_t *key = prefix.data; place + 16 <= length; place += 16)
        mix_block(start, load64(key + place), load64(key + place + 8));
    memcpy(rest, (const uint8_t *)prefix.data + place, length - place);
    size_t word = (length - place) / 8, shift = length % 8 * 8;
    PyThreadState *state = values.length * 20 > WORTH_RELEASING_GIL ? PyEval_SaveThread() : NULL;
    for (Py_ssize_t i = 0; i < values.length; i++) {
        uint64_t value = ((const uint64_t *)values.data)[i], h[2] = {start[0], start[1]};
        uint64_t lower = value << shift, upper = value >> 1 >> (63 - shift), *digest = (uint64_t *)out.data + 2 * i;
        if (word) {
            mix_block(h, rest[0], rest[1] | lower);
            finish(h, upper, 0, length + 8, digest);
        } else {
            finish(h, rest[0] | lower, upper, length + 8, digest);
        }
    }
    if (state) PyEval_RestoreThread(state);
    Py_RETURN_NONE;
}

/* Whether a key is a single int64 join key: entity_keys.py has the layout. */
static int is_int64_key(const uint8_t *key, size_t length) {
    static const uint8_t one_name[8] = {1, 0, 0, 0, 2, 0, 0, 0}, int64_head[8] = {4, 0, 0, 0, 8, 0, 0, 0};
    uint32_t name_length;
    if (length < 28 || memcmp(key, one_name, 8) || memcmp(key + length - 16, int64_head, 8)) return 0;
    memcpy(&name_length, key + 8, 4);
    return name_length == length - 28;
}

/* Whether a message is an EntityKey with one join key, an int64, and nothing else. */
static int parse_int64_key(const uint8_t *place, const uint8_t *stop, const uint8_t **name, uint64_t *name_length,
                           uint64_t *value) {
    uint64_t size;
    if (place == stop || *place++ != 0x0a || varint_read(&place, stop, name_length)) return 0; /* 1: join_keys */
    if (*name_length > (uint64_t)(stop - place)) return 0;
    *name = place;
    place += *name_length;
    if (place == stop || *place++ != 0x12 || varint_read(&place, stop, &size)) return 0; /* 2: entity_values */
    if (size != (uint64_t)(stop - place)) return 0;
    if (place == stop || *place++ != 0x20 || varint_read(&place, stop, value)) return 0; /* 4: int64_val */
    return place == stop;
}

/* parse_int64_keys(messages, lengths, values) -> name, or None
 *
 * `messages` are EntityKeys in wire format, one after the other, with int64[n] `lengths`. If all have the same single
 * join key, and one int64 each, the numbers go into `values`, int64[n], and the bytes of the name are returned. */
KERNEL_FUNCTION(parse_int64_keys) {
    Array messages, lengths, values;
    if (take(call, "188!.", &messages, &lengths, &values) < 0) return NULL;
    Py_ssize_t n = lengths.length, left = messages.length;
    const uint8_t *place = messages.data, *name = NULL, *own_name;
    uint64_t name_length = 0, own_length;
    int is_usual = n > 0 && values.length == n;
    for (Py_ssize_t i = 0; is_usual && i < n; i++) {
        int64_t length = ((const int64_t *)lengths.data)[i];
        is_usual = length >= 0 && length <= left &&
                   parse_int64_key(place, place + length, &own_name, &own_length, (uint64_t *)values.data + i);
        if (!is_usual) break;
        if (i == 0) {
            name = own_name;
            name_length = own_length;
        }
        is_usual = own_length == name_length && !memcmp(own_name, name, (size_t)name_length);
        place += length;
        left -= (Py_ssize_t)length;
    }
    if (is_usual) return PyBytes_FromStringAndSize((const char *)name, (Py_ssize_t)name_length);
    Py_RETURN_NONE;
}

/* hash_keys(offsets, data, out): the hashes of keys `data[offsets[i]:offsets[i + 1]]`, int64[n + 1]. */
KERNEL_FUNCTION(hash_keys) {
    Array offsets, data, out;
    if (take(call, "818!.", &offsets, &data, &out) < 0) return NULL;
    Py_ssize_t n = offsets.length - 1;
    const int64_t *starts = offsets.data;
    int fits = n >= 0 && out.length == 2 * n && starts[0] >= 0 && starts[n] <= data.length;
    for (Py_ssize_t i = 0; fits && i < n; i++) fits = starts[i] <= starts[i + 1];
    if (!fits) return refuse(DO_NOT_FIT);
    PyThreadState *state = n * 100 > WORTH_RELEASING_GIL ? PyEval_SaveThread() : NULL;
    for (Py_ssize_t i = 0; i < n; i++) {
        const uint8_t *key = (const uint8_t *)data.data + starts[i];
        size_t length = (size_t)(starts[i + 1] - starts[i]);
        (is_int64_key(key, length) ? murmur3_128 : blake2b_128)(key, length, (uint64_t *)out.data + 2 * i);
    }
    if (state) PyEval_RestoreThread(state);
    Py_RETURN_NONE;
}

/* -- a single key: its hash is 16 bytes -------------------------------------------------------------- */

static PyObject *as_bytes(const uint64_t *digest) { return PyBytes_FromStringAndSize((const char *)digest, 16); }

/* hash_int64_key(prefix, value) -> bytes: the hash of a key that is `prefix` and 8 bytes of an int64. */
KERNEL_FUNCTION(hash_int64_key) {
    Array prefix;
    PyObject *number;
    if (take(call, "1o.", &prefix, &number) < 0) return NULL;
    long long value = PyLong_AsLongLong(number); /* raises for a number that does not fit */
    if (value == -1 && PyErr_Occurred()) return NULL;
    uint8_t own[256], *key = own;
    size_t length = (size_t)prefix.length + 8;
    if (length > sizeof own && !(key = scratch(call, length))) return NULL;
    memcpy(key, prefix.data, (size_t)prefix.length);
    memcpy(key + prefix.length, &value, 8);
    uint64_t digest[2];
    murmur3_128(key, length, digest);
    return as_bytes(digest);
}

/* hash_key(key) -> bytes: the hash of a serialized key. */
KERNEL_FUNCTION(hash_key) {
    Array key;
    if (take(call, "1.", &key) < 0) return NULL;
    uint64_t digest[2];
    (is_int64_key(key.data, (size_t)key.length) ? murmur3_128 : blake2b_128)(key.data, (size_t)key.length, digest);
    return as_bytes(digest);
}

/* hash_message(message) -> bytes, or None: the hash of an EntityKey in wire format with one join key, an int64. */
KERNEL_FUNCTION(hash_message) {
    Array message;
    if (take(call, "1.", &message) < 0) return NULL;
    const uint8_t *name, *place = message.data;
    uint64_t name_length, value, digest[2];
    if (!parse_int64_key(place, place + message.length, &name, &name_length, &value)) Py_RETURN_NONE;
    uint8_t own[256], *key = own;
    size_t length = 28 + (size_t)name_length;
    if (length > sizeof own && !(key = scratch(call, length))) return NULL;
    const uint32_t head[3] = {1, 2, (uint32_t)name_length}, kind[2] = {4, 8};
    memcpy(key, head, 12);
    memcpy(key + 12, name, (size_t)name_length);
    memcpy(key + 12 + name_length, kind, 8);
    memcpy(key + 20 + name_length, &value, 8);
    murmur3_128(key, length, digest);
    return as_bytes(digest);
}
