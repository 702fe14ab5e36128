/* Shared by the parts of the kernel. */

#ifndef FEAST_SKETCH_STORE_KERNEL_H
#define FEAST_SKETCH_STORE_KERNEL_H

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000 /* one build for all Pythons from 3.11 on */
#include <Python.h>

#include <stdint.h>
#include <string.h>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "tables, keys and messages are little-endian"
#endif

#ifndef __GNUC__
#error "the kernel needs GCC or Clang"
#endif

#define ALWAYS_INLINE inline __attribute__((always_inline))
/* GCC removes calls of functions that only prefetch, unless something in them is volatile. */
#define PREFETCH(address)            \
    do {                             \
        __builtin_prefetch(address); \
        __asm__ volatile("");        \
    } while (0)
#define POPULATION(word) ((Py_ssize_t)__builtin_popcountll(word))
#define LOWEST(word) ((uint32_t)__builtin_ctzll(word))
#define HIGHEST(word) (63u - (uint32_t)__builtin_clzll(word))

#define MAX_NUM_HASHES 64 /* of a fact; formulas.py has the same number */

/* Releasing the GIL and taking it again may take longer than a small read. */
#define WORTH_RELEASING_GIL 20000 /* steps of about a nanosecond */

/* The finalizer of SplitMix64; see formulas.py. */
static inline uint64_t mix64(uint64_t x) {
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ x >> 27) * 0x94D049BB133111EBull;
    return x ^ x >> 31;
}

/* -- arguments -------------------------------------------------------------------------------------- */

/* An array of the caller: `length` elements. `data` is NULL if the argument was None. */
typedef struct {
    void *data;
    Py_ssize_t length;
} Array;

#define MAX_ARRAYS 32
#define MAX_OBJECTS 8
#define MAX_SCRATCHES 2

/* A call: the arguments that are not taken yet, and what `run` releases when it returns. */
typedef struct {
    PyObject *self; /* the object of a method; NULL for a function */
    PyObject *const *next, *const *stop;
    void *scratches[MAX_SCRATCHES];
    int num_buffers, num_objects, num_scratches;
    PyObject *objects[MAX_OBJECTS]; /* that the object of a method will keep */
    Py_buffer buffers[MAX_ARRAYS];
} Call;

/* Takes the next arguments: 0, or -1 with an exception. `types` has one of these for each:
 *
 *     1 2 4 8   an array of elements of this many bytes, aligned to it -> Array *
 *               1! an array to be written; 1? one that may be None
 *     n         an integer -> Py_ssize_t *
 *     o         any object, borrowed -> PyObject **
 *     w         64 bits of an integer -> uint64_t *
 *     .         the end of the arguments */
int take(Call *call, const char *types, ...);

/* Memory for the duration of a call; a call may ask twice. NULL with an exception if there is none. */
void *scratch(Call *call, size_t size);

/* Sets a ValueError and returns NULL. */
PyObject *refuse(const char *message);
#define DO_NOT_FIT "the arrays do not fit each other"

PyObject *run(PyObject *(*body)(Call *), PyObject *self, PyObject *const *arguments, Py_ssize_t number);

/* Begins the definition of a function of the module; its body has `call`, and returns a new reference or NULL. */
#define KERNEL_FUNCTION(NAME)                                                                        \
    static PyObject *NAME##_body(Call *call);                                                        \
    PyObject *kernel_##NAME(PyObject *module, PyObject *const *arguments, Py_ssize_t number) {       \
        (void)module;                                                                                \
        return run(NAME##_body, NULL, arguments, number);                                                \
    }                                                                                                \
    static PyObject *NAME##_body(Call *call)

/* -- MurmurHash3 x64 128 with seed 0: keys.c ----------------------------------------------------------- */

void murmur3_128(const uint8_t *key, size_t length, uint64_t *digest);

/* -- hash tables of values --------------------------------------------------------------------------- */

static inline uint64_t mix(uint64_t x) {
    x = (x ^ x >> 32) * 0xd6e8feb86659fd93ull;
    x = (x ^ x >> 32) * 0xd6e8feb86659fd93ull;
    return x ^ x >> 32;
}

static inline uint64_t hash_bytes(const uint8_t *value, int64_t length, uint64_t seed) {
    uint64_t hash = mix(seed ^ (uint64_t)length), word;
    if (length < 8) {
        word = 0;
        for (int64_t i = 0; i < length; i++) word = word << 8 | value[i];
        return mix(hash ^ word);
    }
    const uint8_t *last = value + length - 8;
    for (; value < last; value += 8) {
        memcpy(&word, value, 8);
        hash = mix(hash ^ word);
    }
    memcpy(&word, last, 8); /* may overlap the word before */
    return mix(hash ^ word);
}

static inline int are_equal(const uint8_t *a, const uint8_t *b, int64_t length) {
    uint64_t word_a, word_b;
    if (length < 8 || length > 16) return !memcmp(a, b, (size_t)length);
    memcpy(&word_a, a, 8);
    memcpy(&word_b, b, 8);
    if (word_a != word_b) return 0;
    memcpy(&word_a, a + length - 8, 8);
    memcpy(&word_b, b + length - 8, 8);
    return word_a == word_b;
}

/* -- protobuf's wire format --------------------------------------------------------------------------- */

static inline uint8_t *write_varint(uint8_t *place, uint64_t number) {
    for (; number >= 0x80; number >>= 7) *place++ = (uint8_t)(number | 0x80);
    *place++ = (uint8_t)number;
    return place;
}

static inline int64_t size_of_varint(uint64_t number) {
    int64_t size = 1;
    for (; number >= 0x80; number >>= 7) size++;
    return size;
}

/* Reads a varint byte by byte; -1 if the message ends first. */
static inline int read_varint(const uint8_t **place, const uint8_t *stop, uint64_t *number) {
    *number = 0;
    for (int shift = 0; *place < stop && shift < 70; shift += 7) {
        uint8_t byte = *(*place)++;
        *number |= (uint64_t)(byte & 0x7f) << (shift < 64 ? shift : 63);
        if (!(byte & 0x80)) return 0;
    }
    return -1;
}

/* Wire types. */
enum { VARINT = 0, FIXED64 = 1, DELIMITED = 2, FIXED32 = 5 };

int is_utf8(const uint8_t *place, int64_t length); /* as protobuf requires of strings: response.c */

/* -- packed and ascending numbers, and the rows of entities: rows.c ----------------------------------- */

/* Integers of `width` bits without gaps, and one more word that is read but not used. */
typedef struct {
    const uint64_t *words;
    int width;
} Packed;

static inline uint64_t get_packed(const Packed *packed, uint64_t place) {
    if (!packed->width) return 0;
    uint64_t bit = place * (uint64_t)packed->width, word = bit >> 6, shift = bit & 63;
    uint64_t number = packed->words[word] >> shift | packed->words[word + 1] << 1 << (63 - shift);
    return number & (~0ull >> (64 - packed->width));
}

/* 0, or -1 with an exception. After 0, reads of indexes below `length` stay inside the buffer. */
int init_packed(Packed *packed, const Array *words, Py_ssize_t width, Py_ssize_t length);

#define SAMPLED 64 /* the position of every 64th bit that is searched for is stored; as in formulas.py */

/* Ascending numbers in Elias-Fano form; succinct/elias_fano.py describes it. The contents of the arrays may be wrong:
 * no function reads outside of them. */
typedef struct {
    const uint64_t *highs;
    uint64_t num_bits; /* of `highs` */
    int64_t length, num_buckets;
    Packed lows, samples;
    uint64_t flipped; /* ~0 if samples are positions of zeros, else 0 */
    double bits_per_sampled; /* bits of `highs` for each one, or each zero, of the sampled kind */
} Ascending;

/* Takes highs, num_buckets, length, low words, low width, sample words and sample width. Samples are positions of zeros
 * if numbers are found by value, and of ones if they are found by index. 0, or -1 with an exception. */
int take_ascending(Call *call, Ascending *numbers, int by_value);

/* The number with index `place`, which is below `length`; ~0 if the arrays lack it. */
uint64_t get_ascending(const Ascending *numbers, int64_t place);

/* Finds rows by the hashes of their entities; succinct/fingerprints.py describes it. */
typedef struct {
    Ascending fingerprints;
    uint64_t range; /* fingerprints are below it */
    const uint64_t *twins;
    int64_t num_twins;
} RowIndex;

/* Takes the arguments of `take_ascending`, range and twins. 0, or -1 with an exception. */
int take_row_index(Call *call, RowIndex *index);

int is_row_index(const RowIndex *index); /* whether the range fits the fingerprints */
uint64_t bucket_of(const RowIndex *index, uint64_t hash);

#define NO_ROW (-1)
#define DAMAGED_INDEX (-2)

/* The hash that determines the row of an entity, by its upper part. */
static inline uint64_t row_hash(const uint64_t *hash, const uint64_t *salt) {
    return mix64(mix64(hash[0] ^ salt[0]) + (hash[1] ^ salt[1]));
}

/* The row of an entity by its row hash, `NO_ROW`, or `DAMAGED_INDEX`. */
int64_t find_row(const RowIndex *index, uint64_t hash);

/* Prefetches the words from which the row of a hash, or a number, will probably be read. */
void expect_row(const RowIndex *index, uint64_t hash);
void expect_ascending(const Ascending *numbers, int64_t place);

/* -- sets: sets.c ------------------------------------------------------------------------------------- */

/* How the sets of one feature are coded. */
typedef struct {
    const uint8_t *levels, *left; /* of symbols, and of how many ids are left; see succinct/gap_levels.py */
    int64_t num_symbols, no_set; /* headers below `no_set` stand for a row that has no set */
    int header_width;
    int others_width; /* -1 if the set is coded by itself; see succinct/golomb_sets.py */
} Code;

#define LONGEST_UNARY 24 /* this many ones precede a number of 32 bits */
#define MAX_WIDTH 30
#define DIRECT_CODES 256
#define NUM_LEFT (DIRECT_CODES + 64)

/* Twice the logarithm of a count, rounded. */
static inline int half_octaves(uint64_t count) {
    int octaves = (int)HIGHEST(count | 1);
    return 2 * octaves + (count * count >= 2ull << 2 * octaves);
}

/* The width of a gap that begins at a symbol, in a set with `left` ids left. */
static ALWAYS_INLINE int width_of_gap(const Code *code, int64_t symbol, int64_t left) {
    int own = code->left[left < DIRECT_CODES ? left : DIRECT_CODES + half_octaves((uint64_t)left)];
    int width = (code->levels[symbol] - own) >> 2;
    return width < 0 ? 0 : width > MAX_WIDTH ? MAX_WIDTH : width;
}

/* The codes of F features; sets that others are coded relative to have at most `room` ids. */
typedef struct {
    Code *of;
    Py_ssize_t number;
    size_t room;
} Codes;

/* The sets of rows; `starts` are the bits at which they begin. */
typedef struct {
    Codes codes;
    const uint64_t *words; /* the last one is read but not used */
    uint64_t num_bits;
    Ascending starts;
} Sets;

/* Takes codes, words and num_bits, but not `starts`. 0, or -1 with an exception. */
int take_words_of_sets(Call *call, Sets *sets);

enum { IS_WANTED = 1, IS_NEEDED = 2 }; /* a set itself; its ids, to read one after it */

/* What is read of a row, up to some feature: for each feature, its header and where its ids end. */
typedef struct {
    int64_t *ends;
    int32_t *headers, *seen, *others;
    uint8_t *marks; /* by feature */
} RowOfSets;

size_t room_for_row(const Codes *codes); /* bytes, aligned to 8, for `init_row`, which clears the marks */
void init_row(RowOfSets *row, const Codes *codes, void *memory);
void mark_wanted(const Codes *codes, Py_ssize_t feature, uint8_t *marks);

/* Reads the sets of a row that begins at `start`, features 0 to `last`. The ids of the wanted ones go to `ids`, one
 * after the other from `first` on. 0; -1 if they are damaged; or the least number of ids that need room. */
int64_t read_row(const Sets *sets, uint64_t start, Py_ssize_t last, const RowOfSets *row, int32_t *ids, int64_t first,
                 int64_t room);

/* A set of a row as it was read. */
typedef struct {
    int32_t header;
    const int32_t *ids;
} SetOfRow;

/* A set to be read: `bit` is where its header begins, then its codes, and then the bit after them. */
typedef struct {
    uint64_t bit;
    int64_t size;
    int32_t *ids;
    int32_t header;
} Job;

/* Reads the headers of sets of one feature, and adds up their sizes. -1 if they are damaged. */
int read_headers(const Sets *sets, const Code *code, Job *jobs, Py_ssize_t number, int64_t *total);

/* Reads non-empty sets of one feature that are coded by themselves. -1 if they are damaged. */
int read_alone(const Sets *sets, const Code *code, Job **jobs, Py_ssize_t number);

/* -- lists: lists.c ----------------------------------------------------------------------------------- */

/* How the lists of one feature are coded. */
typedef struct {
    const uint16_t *tables;
    const uint8_t *widths;
    int64_t num_symbols;
    const uint64_t *words;
} ListCode;

/* Takes tables, widths, num_symbols and words; sets `num_bits` to the bits of the words. 0, or -1 with an exception. */
int take_list_code(Call *call, ListCode *code, int64_t *num_bits);

/* Reads a list from bit `bit` to bit `stop`, which is at most `num_bits`. Returns the number of items; -1 if the list
 * is damaged, -2 if there are more than `room`. */
int64_t read_list(const ListCode *code, uint64_t bit, uint64_t stop, int64_t limit, int64_t oldest, int64_t room,
                  int32_t *ids, int64_t *ages);

/* Writes up to two ones of a word without a branch that depends on them, because most words have no more. Up to two ids
 * after the last one are overwritten. */
static inline Py_ssize_t write_ids(uint64_t word, int32_t first_id, int32_t *ids, Py_ssize_t count) {
    ids[count] = first_id + (int32_t)LOWEST(word | 1ull << 63);
    count += word != 0;
    word &= word - 1;
    ids[count] = first_id + (int32_t)LOWEST(word | 1ull << 63);
    count += word != 0;
    word &= word - (word != 0);
    for (; word; word &= word - 1) ids[count++] = first_id + (int32_t)LOWEST(word);
    return count;
}

/* -- what the module has ------------------------------------------------------------------------------ */

#define EACH_KERNEL_FUNCTION(DO)                                                                     \
    DO(possible_symbols) DO(contains) DO(touch_blocks) DO(add_facts)          \
    DO(hash_int64_keys) DO(parse_int64_keys) DO(hash_keys) DO(parse_packed_lists)                    \
    DO(index_int64) DO(find_int64) DO(index_bytes) DO(find_bytes) DO(sort_rows) DO(encode_values)    \
    DO(take_packed) DO(take_ascending) DO(row_hashes) DO(find_rows) DO(write_sets)                   \
    DO(hash_int64_key) DO(hash_key) DO(hash_message)                                                 \
    DO(check_blocks) DO(band_rows) DO(solve_slots) DO(look_up) DO(vectors_to_json)

#define DECLARE(NAME) PyObject *kernel_##NAME(PyObject *module, PyObject *const *arguments, Py_ssize_t number);
EACH_KERNEL_FUNCTION(DECLARE)

int kernel_add_prepared(PyObject *module); /* 0, or -1 with an exception */
int kernel_add_buffers(PyObject *module);
void kernel_choose_width(void); /* call these before any of them */
void kernel_choose_decoder(void);

#endif
