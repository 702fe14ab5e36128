/* What the parts of the compiled kernel share. */

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

#if defined(__GNUC__)
#define ALWAYS_INLINE inline __attribute__((always_inline))
#define PREFETCH(address) __builtin_prefetch(address)
#define POPULATION(word) ((Py_ssize_t)__builtin_popcountll(word))
#define LOWEST(word) ((uint32_t)__builtin_ctzll(word))
#define HIGHEST(word) (63u - (uint32_t)__builtin_clzll(word))
#else
#define ALWAYS_INLINE inline
#define PREFETCH(address) ((void)(address))
static inline uint32_t LOWEST(uint64_t word) {
    uint32_t place = 0;
    while (!(word >> place & 1)) place++;
    return place;
}
static inline uint32_t HIGHEST(uint64_t word) {
    uint32_t place = 0;
    while (word >> place >> 1) place++;
    return place;
}
static inline Py_ssize_t POPULATION(uint64_t word) {
    Py_ssize_t count = 0;
    for (; word; word &= word - 1) count++;
    return count;
}
#endif

#define MAX_NUM_HASHES 64 /* of a fact; reference.py has the same number */

/* Giving the GIL away and waiting for it again may take longer than a small read. */
#define WORTH_RELEASING_GIL 20000 /* steps of about a nanosecond */

/* The finalizer of SplitMix64; see reference.py. */
static inline uint64_t mix64(uint64_t x) {
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ x >> 27) * 0x94D049BB133111EBull;
    return x ^ x >> 31;
}

/* -- arguments -------------------------------------------------------------------------------------- */

/* An array of the caller's: `length` elements. `data` is NULL where None was given for it. */
typedef struct {
    void *data;
    Py_ssize_t length;
} Array;

#define MAX_ARRAYS 12

/* A call: the arguments that were not taken yet, and what `run` gives back when it returns. */
typedef struct {
    PyObject *const *next, *const *stop;
    void *scratch;
    int num_buffers;
    Py_buffer buffers[MAX_ARRAYS];
} Call;

/* Takes the next arguments: 0, or -1 with an exception. `types` has for each of them
 *
 *     1 2 4 8   an array of elements of so many bytes, aligned to them -> Array *
 *               1! one that is written; 1? one that may be None
 *     n         an integer -> Py_ssize_t *
 *     w         64 bits of an integer -> uint64_t *
 *     .         none: the one before was the last */
int take(Call *call, const char *types, ...);

/* Memory for the time of a call, which may ask for it once; NULL with an exception if there is none. */
void *scratch(Call *call, size_t size);

/* NULL with a ValueError. */
PyObject *refuse(const char *message);
#define DO_NOT_FIT "the arrays do not fit each other"

PyObject *run(PyObject *(*body)(Call *), PyObject *const *arguments, Py_ssize_t number);

/* Begins the definition of a function of the module; its body has `call`, and returns a new reference or NULL. */
#define KERNEL_FUNCTION(NAME)                                                                        \
    static PyObject *NAME##_body(Call *call);                                                        \
    PyObject *kernel_##NAME(PyObject *module, PyObject *const *arguments, Py_ssize_t number) {       \
        (void)module;                                                                                \
        return run(NAME##_body, arguments, number);                                                  \
    }                                                                                                \
    static PyObject *NAME##_body(Call *call)

/* -- what the module has ------------------------------------------------------------------------------ */

#define EACH_KERNEL_FUNCTION(DO)                                                                     \
    DO(possible_symbols) DO(windows) DO(contains) DO(scores) DO(touch_blocks) DO(add_facts)          \
    DO(hash_int64_keys) DO(parse_int64_keys) DO(hash_keys)                                           \
    DO(index_int64) DO(find_int64) DO(index_bytes) DO(find_bytes) DO(sort_rows) DO(encode_values)    \
    DO(take_packed) DO(row_hashes) DO(find_rows) DO(write_sets) DO(read_sets)

#define DECLARE(NAME) PyObject *kernel_##NAME(PyObject *module, PyObject *const *arguments, Py_ssize_t number);
EACH_KERNEL_FUNCTION(DECLARE)

void kernel_choose_width(void); /* to be called before any of them */

#endif
