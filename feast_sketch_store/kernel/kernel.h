/* What all files use: arguments of calls, hashes, and protobuf's wire format. */

#ifndef FEAST_SKETCH_STORE_KERNEL_H
#define FEAST_SKETCH_STORE_KERNEL_H

#define Py_LIMITED_API 0x030B0000 /* one build for all Pythons from 3.11 on */
#include <Python.h>

/* Headers of Python 3.12 and 3.13 do not count this reference, because None is immortal there. In 3.11 it is not: the
 * process would end once the count reaches 0. */
#undef Py_RETURN_NONE
#define Py_RETURN_NONE return Py_NewRef(Py_None)

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
#define MAX_SCRATCHES 3

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
#define KERNEL_FUNCTION(NAME)                                                                  \
    static PyObject *NAME##_body(Call *call);                                                  \
    PyObject *kernel_##NAME(PyObject *module, PyObject *const *arguments, Py_ssize_t number) { \
        (void)module;                                                                          \
        return run(NAME##_body, NULL, arguments, number);                                      \
    }                                                                                          \
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

static inline uint8_t *varint_write(uint8_t *place, uint64_t number) {
    for (; number >= 0x80; number >>= 7) *place++ = (uint8_t)(number | 0x80);
    *place++ = (uint8_t)number;
    return place;
}

static inline int64_t varint_size(uint64_t number) {
    int64_t size = 1;
    for (; number >= 0x80; number >>= 7) size++;
    return size;
}

/* Reads a varint byte by byte; -1 if the message ends first. */
static inline int varint_read(const uint8_t **place, const uint8_t *stop, uint64_t *number) {
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

int is_utf8(const uint8_t *place, int64_t length); /* as protobuf requires of strings: messages.c */

/* -- what the module has ------------------------------------------------------------------------------ */

/* clang-format off */
#define EACH_KERNEL_FUNCTION(DO)                                                                                \
    DO(possible_symbols) DO(contains) DO(touch_blocks) DO(add_facts)                                            \
    DO(hash_int64_keys) DO(parse_int64_keys) DO(hash_keys) DO(parse_packed_lists)                               \
    DO(index_int64) DO(find_int64) DO(index_bytes) DO(find_bytes) DO(sort_rows)                                 \
    DO(take_packed) DO(take_ascending) DO(row_hashes) DO(write_sets)                                            \
    DO(hash_int64_key) DO(hash_key) DO(hash_message)                                                            \
    DO(check_blocks) DO(band_rows) DO(solve_slots) DO(look_up) DO(vectors_to_json)
/* clang-format on */

#define DECLARE(NAME) PyObject *kernel_##NAME(PyObject *module, PyObject *const *arguments, Py_ssize_t number);
EACH_KERNEL_FUNCTION(DECLARE)

static inline int64_t floor_of(int64_t time, int64_t unit) { return time / unit - (time % unit < 0); }

int kernel_add_buffers(PyObject *module); /* 0, or -1 with an exception */
void kernel_choose_width(void); /* call these before any of them */
void kernel_choose_select(void);
void kernel_choose_set_decoder(void);
void kernel_choose_list_decoder(void);

#endif
