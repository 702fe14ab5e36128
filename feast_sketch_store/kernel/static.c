/* Static functions by the ribbon construction; succinct/static_function.py describes them. */

#include "kernel.h"

#if defined(__GNUC__)
#define PARITY(word) ((uint64_t)__builtin_parityll(word)) /* needs no instruction that counts bits */
#else
#define PARITY(word) ((uint64_t)POPULATION(word) & 1)
#endif

/* The equation of a row: 64 coefficients, the first of which is 1, from slot `start` on. */
static inline uint64_t start_of(uint64_t hash, uint64_t num_slots) {
    uint64_t upper = hash >> 32, lower = hash & 0xFFFFFFFFull, range = num_slots - 63;
    return (upper * range + (lower * range >> 32)) >> 32;
}

static inline uint64_t coefficients_of(uint64_t hash) { return mix64(hash + 0x9E3779B97F4A7C15ull) | 1; }

static int is_number_of_slots(Py_ssize_t num_slots) {
    return num_slots >= 64 && num_slots % 64 == 0 && num_slots < (Py_ssize_t)1 << 32;
}

/* band_rows(hashes, values, num_slots, coefficients, results, left) -> rows left over
 *
 * Brings the equations of rows into triangular form: slot i has one that begins there, `coefficients[i]` and
 * `results[i]`, or 0 if there is none. `left`, uint8[n], is 1 for a row whose equation contradicts those before it. */
KERNEL_FUNCTION(band_rows) {
    Array hashes, values, coefficients, results, left;
    Py_ssize_t num_slots, count = 0;
    if (take(call, "88n8!8!1!.", &hashes, &values, &num_slots, &coefficients, &results, &left) < 0) return NULL;
    if (!is_number_of_slots(num_slots) || values.length != hashes.length || left.length != hashes.length ||
        coefficients.length != num_slots || results.length != num_slots)
        return refuse(DO_NOT_FIT);
    uint64_t *of_slot = coefficients.data, *result_of = results.data;
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t row = 0; row < hashes.length; row++) {
        uint64_t hash = ((const uint64_t *)hashes.data)[row], value = ((const uint64_t *)values.data)[row];
        uint64_t slot = start_of(hash, (uint64_t)num_slots), own = coefficients_of(hash);
        while (own && of_slot[slot]) { /* the rest of `own` is within the slots, as for each slot */
            own ^= of_slot[slot];
            value ^= result_of[slot];
            if (own) {
                uint32_t zeros = LOWEST(own);
                own >>= zeros;
                slot += zeros;
            }
        }
        if (own) {
            of_slot[slot] = own;
            result_of[slot] = value;
        }
        ((uint8_t *)left.data)[row] = !own && value;
        count += !own && value;
    }
    Py_END_ALLOW_THREADS
    return PyLong_FromSsize_t(count);
}

/* solve_slots(coefficients, results, width, words)
 *
 * From the last slot to the first, the numbers of `width` bits that satisfy all equations. Bit j of those of 64 slots is
 * `words[slot / 64 * width + j]`; after them is one more stretch, which is zero. `results` has any number where a
 * slot has no equation. */
KERNEL_FUNCTION(solve_slots) {
    Array coefficients, results, words;
    Py_ssize_t width;
    if (take(call, "88n8!.", &coefficients, &results, &width, &words) < 0) return NULL;
    Py_ssize_t num_slots = coefficients.length;
    if (width < 1 || width > 64 || !is_number_of_slots(num_slots) || results.length != num_slots ||
        words.length != (num_slots / 64 + 1) * width)
        return refuse(DO_NOT_FIT);
    const uint64_t *of_slot = coefficients.data, *result_of = results.data;
    Py_BEGIN_ALLOW_THREADS
    uint64_t windows[64] = {0}; /* each bit of the 64 slots from the current one on */
    for (Py_ssize_t slot = num_slots - 1; slot >= 0; slot--) {
        for (Py_ssize_t j = 0; j < width; j++) {
            uint64_t window = windows[j] << 1; /* the slot's own bit is its lowest */
            uint64_t bit = (result_of[slot] >> j & 1) ^ PARITY(window & of_slot[slot]);
            windows[j] = window | bit;
        }
        if (slot % 64 == 0) memcpy((uint64_t *)words.data + slot / 64 * width, windows, 8 * (size_t)width);
    }
    memset((uint64_t *)words.data + num_slots / 64 * width, 0, 8 * (size_t)width);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

/* look_up(words, width, num_slots, hashes, out)
 *
 * The number of each hash, uint64[n]: the parity of its coefficients with each bit of its slots. */
KERNEL_FUNCTION(look_up) {
    Array words, hashes, out;
    Py_ssize_t width, num_slots;
    if (take(call, "8nn88!.", &words, &width, &num_slots, &hashes, &out) < 0) return NULL;
    if (width < 1 || width > 64 || !is_number_of_slots(num_slots) || words.length != (num_slots / 64 + 1) * width ||
        out.length != hashes.length)
        return refuse(DO_NOT_FIT);
    PyThreadState *state = hashes.length * width > WORTH_RELEASING_GIL ? PyEval_SaveThread() : NULL;
    for (Py_ssize_t i = 0; i < hashes.length; i++) {
        uint64_t hash = ((const uint64_t *)hashes.data)[i], number = 0;
        uint64_t slot = start_of(hash, (uint64_t)num_slots), own = coefficients_of(hash), shift = slot & 63;
        const uint64_t *word = (const uint64_t *)words.data + (Py_ssize_t)(slot >> 6) * width;
        for (Py_ssize_t j = 0; j < width; j++) {
            uint64_t window = word[j] >> shift | word[width + j] << 1 << (63 - shift);
            number |= PARITY(window & own) << j;
        }
        ((uint64_t *)out.data)[i] = number;
    }
    if (state) PyEval_RestoreThread(state);
    Py_RETURN_NONE;
}
