/* Static functions by the ribbon construction; succinct/static_function.py describes them. */

#include "row_reader.h"

#define PARITY(word) ((uint64_t)__builtin_parityll(word)) /* needs no instruction that counts bits */

/* The equation of a row: 64 coefficients from slot `start` on, the first of which is 1. */
static inline uint64_t start_of(uint64_t hash, uint64_t num_slots) {
    uint64_t upper = hash >> 32, lower = hash & 0xFFFFFFFFull, range = num_slots - 63;
    return (upper * range + (lower * range >> 32)) >> 32;
}

static inline uint64_t coefficients_of(uint64_t hash) { return mix64(hash + 0x9E3779B97F4A7C15ull) | 1; }

/* The mask that is combined with a row's number; see succinct/static_function.py. */
static inline uint64_t mask_of(uint64_t hash, Py_ssize_t width) {
    return mix64(hash + 0x3C6EF372FE94F82Aull) >> (64 - width);
}

static int is_number_of_slots(Py_ssize_t num_slots) {
    return num_slots >= 64 && num_slots % 64 == 0 && num_slots < (Py_ssize_t)1 << 32;
}

/* band_rows(hashes, values, num_slots, coefficients, results, left)
 *
 * Brings the equations of rows into triangular form. `coefficients[i]` and `results[i]` are the equation that begins at
 * slot i, or 0 if there is none. `left`, uint8[n], is 1 for a row whose equation contradicts those before it. */
KERNEL_FUNCTION(band_rows) {
    Array hashes, values, coefficients, results, left;
    Py_ssize_t num_slots;
    if (take(call, "88n8!8!1!.", &hashes, &values, &num_slots, &coefficients, &results, &left) < 0) return NULL;
    if (!is_number_of_slots(num_slots) || values.length != hashes.length || left.length != hashes.length ||
        coefficients.length != num_slots || results.length != num_slots)
        return refuse(DO_NOT_FIT);
    uint64_t *of_slot = coefficients.data, *result_of = results.data;
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t row = 0; row < hashes.length; row++) {
        uint64_t hash = ((const uint64_t *)hashes.data)[row], value = ((const uint64_t *)values.data)[row];
        uint64_t slot = start_of(hash, (uint64_t)num_slots), own = coefficients_of(hash);
        while (own && of_slot[slot]) { /* no coefficient of `own` is past the last slot, as in all equations */
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
    }
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

/* solve_slots(coefficients, results, width, words)
 *
 * Finds, from the last slot to the first, numbers of `width` bits that satisfy all equations. Bit j of 64 slots is the
 * word `words[slot / 64 * width + j]`; one more stretch after them is zero. `results` may have any number where a slot
 * has no equation. */
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
    uint64_t windows[64] = {0}; /* for each bit, that of 64 slots from the current one on */
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

/* The number of a hash whose equation begins at a slot. */
static inline uint64_t number_of(const uint64_t *words, Py_ssize_t width, uint64_t slot, uint64_t hash) {
    uint64_t number = 0, own = coefficients_of(hash), shift = slot & 63;
    const uint64_t *word = words + (Py_ssize_t)(slot >> 6) * width;
    for (Py_ssize_t j = 0; j < width; j++) {
        uint64_t window = word[j] >> shift | word[width + j] << 1 << (63 - shift);
        number |= PARITY(window & own) << j;
    }
    return number ^ mask_of(hash, width);
}

/* look_up(words, width, num_slots, hashes, out)
 *
 * The number of each hash, uint64[n]: for each bit, the parity of the slots' bits with coefficient 1, without the
 * mask. */
KERNEL_FUNCTION(look_up) {
    Array words, hashes, out;
    Py_ssize_t width, num_slots;
    if (take(call, "8nn88!.", &words, &width, &num_slots, &hashes, &out) < 0) return NULL;
    if (width < 1 || width > 64 || !is_number_of_slots(num_slots) || words.length != (num_slots / 64 + 1) * width ||
        out.length != hashes.length)
        return refuse(DO_NOT_FIT);
    PyThreadState *state = hashes.length * width > WORTH_RELEASING_GIL ? PyEval_SaveThread() : NULL;
    for (Py_ssize_t i = 0; i < hashes.length; i++) {
        uint64_t hash = ((const uint64_t *)hashes.data)[i];
        ((uint64_t *)out.data)[i] = number_of(words.data, width, start_of(hash, (uint64_t)num_slots), hash);
    }
    if (state) PyEval_RestoreThread(state);
    Py_RETURN_NONE;
}

/* -- rows by number ------------------------------------------------------------------------------------ */

static int64_t find_number(const RowReader *rows, const uint64_t *hash, Place *place) {
    const StaticFunction *function = &rows->function;
    uint64_t own = row_hash(hash, rows->salt), slot = start_of(own, (uint64_t)function->num_slots);
    uint64_t first = (slot >> 6) * (uint64_t)function->width;
    if (!blocks_are_verified(&rows->function_blocks, first, first + 2 * (uint64_t)function->width - 1))
        return DAMAGED_INDEX;
    uint64_t number = number_of(function->words, function->width, slot, own);
    int64_t low = 0, high = function->num_left;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (function->left_hashes[middle] < own)
            low = middle + 1;
        else
            high = middle;
    }
    if (low < function->num_left && function->left_hashes[low] == own) number = (uint64_t)function->left_numbers[low];
    if (number >= function->num_symbols) return NO_ROW;
    place->number = number / (uint64_t)rows->num_rows;
    return (int64_t)(number % (uint64_t)rows->num_rows);
}

static int read_digit(const Place *place, const Feature *feature, Arena *arena, Content *content) {
    content->state = state_read(place, feature);
    if (content->state != VALUE) return content->state < 0 ? FAILED : 0;
    int32_t *id = arena_get(arena, sizeof *id);
    if (!id || feature->values.length < 1) return FAILED;
    *id = (int32_t)(place->number / feature->divisor % (uint64_t)feature->values.length);
    content->ids = id;
    content->count = 1;
    return 0;
}

static int date_number(const RowReader *rows, int64_t expire_before, Place *place) {
    place->timestamp = rows->oldest[place->row];
    return rows->newest[place->row] < expire_before ? EXPIRED : FOUND;
}

static void expect_number(const RowReader *rows, const uint64_t *hash) {
    const StaticFunction *function = &rows->function;
    uint64_t slot = start_of(row_hash(hash, rows->salt), (uint64_t)function->num_slots);
    const uint64_t *words = function->words + (slot >> 6) * (uint64_t)function->width;
    PREFETCH(words);
    PREFETCH(words + 2 * function->width - 1);
}

/* numbered(salt, salt, words, width, num_slots, num_symbols, left_hashes, left_numbers, oldest, newest,
 *          check)
 *
 * Rows that a static function maps to numbers, see layers/static_rows.py. `oldest` and `newest`, int64, bound the
 * timestamps of each shape, which is the lowest digit. The blocks are those of the words. */
READER_METHOD(numbered) {
    RowReader *self = (RowReader *)call->self;
    StaticFunction *function = &self->function;
    Array words, hashes, numbers, oldest, newest;
    Py_ssize_t width, num_slots;
    if (!reader_is_empty(self)) return NULL;
    if (take(call, "ww8nnw8888", &self->salt[0], &self->salt[1], &words, &width, &num_slots, &function->num_symbols,
             &hashes, &numbers, &oldest, &newest) < 0 ||
        blocks_take(call, &self->function_blocks) < 0 || take(call, ".") < 0)
        return NULL;
    if (width < 1 || width > 64 || !is_number_of_slots(num_slots) || words.length != (num_slots / 64 + 1) * width ||
        hashes.length != numbers.length || oldest.length < 1 || newest.length != oldest.length)
        return refuse(DO_NOT_FIT);
    function->words = words.data;
    function->width = width;
    function->num_slots = num_slots;
    function->left_hashes = hashes.data;
    function->left_numbers = numbers.data;
    function->num_left = hashes.length;
    self->oldest = oldest.data;
    self->newest = newest.data;
    self->num_rows = oldest.length;
    if (reader_keep(self, call) < 0) return NULL;
    self->find = find_number;
    self->date = date_number;
    self->expect = expect_number;
    self->kind = NUMBERED;
    Py_RETURN_NONE;
}

/* from_number(divisor): the feature is a digit of the numbers; `states` says which rows have values. */
READER_METHOD(from_number) {
    RowReader *self = (RowReader *)call->self;
    Feature *feature = feature_begun(self, NUMBERED);
    if (!feature || take(call, "w.", &feature->divisor) < 0) return NULL;
    if (!feature->divisor || feature->divisor % (uint64_t)self->num_rows) return refuse(DO_NOT_FIT);
    feature->divisor /= (uint64_t)self->num_rows; /* `find_number` removes the shape */
    if (reader_keep(self, call) < 0) return NULL;
    feature->read = read_digit;
    Py_RETURN_NONE;
}
