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
#else
#define ALWAYS_INLINE inline
#define PREFETCH(address) ((void)(address))
static inline uint32_t LOWEST(uint64_t word) {
    uint32_t place = 0;
    while (!(word >> place & 1)) place++;
    return place;
}
static inline Py_ssize_t POPULATION(uint64_t word) {
    Py_ssize_t count = 0;
    for (; word; word &= word - 1) count++;
    return count;
}
#endif

/* Giving the GIL away and waiting for it again may take longer than a small read. */
#define WORTH_RELEASING_GIL 20000 /* steps of about a nanosecond */

/* The number of elements in a buffer, or -1 with an exception if it is no whole number. */
static inline Py_ssize_t count_of(const Py_buffer *buffer, Py_ssize_t itemsize) {
    if (buffer->len % itemsize) {
        PyErr_SetString(PyExc_ValueError, "a buffer is of another type");
        return -1;
    }
    return buffer->len / itemsize;
}

/* The finalizer of SplitMix64; see reference.py. */
static inline uint64_t mix64(uint64_t x) {
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ x >> 27) * 0x94D049BB133111EBull;
    return x ^ x >> 31;
}

void kernel_choose_width(void); /* to be called before any of the following */

PyObject *kernel_possible_symbols(PyObject *module, PyObject *arguments);
PyObject *kernel_windows(PyObject *module, PyObject *arguments);
PyObject *kernel_contains(PyObject *module, PyObject *arguments);
PyObject *kernel_scores(PyObject *module, PyObject *arguments);
PyObject *kernel_touch_blocks(PyObject *module, PyObject *arguments);
PyObject *kernel_add_facts(PyObject *module, PyObject *arguments);
PyObject *kernel_hash_int64_keys(PyObject *module, PyObject *arguments);
PyObject *kernel_parse_int64_keys(PyObject *module, PyObject *arguments);
PyObject *kernel_hash_keys(PyObject *module, PyObject *arguments);
PyObject *kernel_index_int64(PyObject *module, PyObject *arguments);
PyObject *kernel_find_int64(PyObject *module, PyObject *arguments);
PyObject *kernel_index_bytes(PyObject *module, PyObject *arguments);
PyObject *kernel_find_bytes(PyObject *module, PyObject *arguments);
PyObject *kernel_sort_rows(PyObject *module, PyObject *arguments);
PyObject *kernel_encode_values(PyObject *module, PyObject *arguments);
PyObject *kernel_take_packed(PyObject *module, PyObject *arguments);
PyObject *kernel_row_hashes(PyObject *module, PyObject *arguments);
PyObject *kernel_find_rows(PyObject *module, PyObject *arguments);
PyObject *kernel_write_sets(PyObject *module, PyObject *arguments);
PyObject *kernel_read_sets(PyObject *module, PyObject *arguments);

#endif
