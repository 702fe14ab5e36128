/* Values: their ids in a vocabulary, many per call. */

#include "kernel.h"

#define FIND_AT_ONCE 32 /* so that their cache misses overlap */

/* -- an index of a vocabulary: open addressing, linear probing; an empty slot is -1 ----------------- */

/* Binary values as Arrow lays them out. */
typedef struct {
    const int64_t *offsets;
    const uint8_t *data;
    Py_ssize_t length;
} Strings;

static int as_strings(Strings *strings, const Array *offsets, const Array *data) {
    strings->length = offsets->length - 1;
    strings->offsets = offsets->data;
    strings->data = data->data;
    int fits = strings->length >= 0 && strings->offsets[0] >= 0 && strings->offsets[strings->length] <= data->length;
    for (Py_ssize_t i = 0; fits && i < strings->length; i++) fits = strings->offsets[i] <= strings->offsets[i + 1];
    return fits;
}

static inline int64_t length_of(const Strings *strings, Py_ssize_t i) {
    return strings->offsets[i + 1] - strings->offsets[i];
}

/* Whether the number of slots is a power of two, and one is empty to end every search. */
static int is_index_of(const Array *slots, Py_ssize_t num_values) {
    Py_ssize_t size = slots->length;
    return size > num_values && (size & (size - 1)) == 0 && num_values < INT32_MAX;
}

/* index_int64(values, seed, slots): fill int32 slots, all -1, with the ids of distinct int64 values. */
KERNEL_FUNCTION(index_int64) {
    Array values, slots;
    uint64_t seed;
    if (take(call, "8w4!.", &values, &seed, &slots) < 0) return NULL;
    if (!is_index_of(&slots, values.length)) return refuse(DO_NOT_FIT);
    int32_t *slot = slots.data;
    uint64_t last = (uint64_t)slots.length - 1;
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t i = 0; i < values.length; i++) {
        uint64_t place = mix(((const uint64_t *)values.data)[i] ^ seed) & last;
        while (slot[place] >= 0) place = (place + 1) & last;
        slot[place] = (int32_t)i;
    }
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

/* find_int64(values, seed, slots, wanted, out): the ids of int64 values, int32; -1 for a value that is not there. */
KERNEL_FUNCTION(find_int64) {
    Array values, slots, wanted, out;
    uint64_t seed;
    if (take(call, "8w484!.", &values, &seed, &slots, &wanted, &out) < 0) return NULL;
    Py_ssize_t n = values.length, m = wanted.length;
    if (out.length != m || !is_index_of(&slots, n)) return refuse(DO_NOT_FIT);
    const int32_t *slot = slots.data;
    const uint64_t *known = values.data;
    uint64_t last = (uint64_t)slots.length - 1, places[FIND_AT_ONCE];
    PyThreadState *state = m * 10 > WORTH_RELEASING_GIL ? PyEval_SaveThread() : NULL;
    for (Py_ssize_t first = 0; first < m; first += FIND_AT_ONCE) {
        const uint64_t *value = (const uint64_t *)wanted.data + first;
        Py_ssize_t count = m - first < FIND_AT_ONCE ? m - first : FIND_AT_ONCE;
        for (Py_ssize_t i = 0; i < count; i++) {
            places[i] = mix(value[i] ^ seed) & last;
            PREFETCH(slot + places[i]);
        }
        for (Py_ssize_t i = 0; i < count; i++)
            if (slot[places[i]] >= 0 && slot[places[i]] < n) PREFETCH(known + slot[places[i]]);
        for (Py_ssize_t i = 0; i < count; i++) {
            uint64_t place = places[i];
            int32_t id;
            for (; (id = slot[place]) >= 0; place = (place + 1) & last)
                if (id < n && known[id] == value[i]) break;
            ((int32_t *)out.data)[first + i] = id;
        }
    }
    if (state) PyEval_RestoreThread(state);
    Py_RETURN_NONE;
}

/* index_bytes(offsets, data, seed, slots): fill int32 slots, all -1, with the ids of distinct binary values. */
KERNEL_FUNCTION(index_bytes) {
    Array offsets, data, slots;
    uint64_t seed;
    Strings values;
    if (take(call, "81w4!.", &offsets, &data, &seed, &slots) < 0) return NULL;
    if (!as_strings(&values, &offsets, &data) || !is_index_of(&slots, values.length)) return refuse(DO_NOT_FIT);
    int32_t *slot = slots.data;
    uint64_t last = (uint64_t)slots.length - 1;
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t i = 0; i < values.length; i++) {
        uint64_t place = hash_bytes(values.data + values.offsets[i], length_of(&values, i), seed) & last;
        while (slot[place] >= 0) place = (place + 1) & last;
        slot[place] = (int32_t)i;
    }
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

/* find_bytes(offsets, data, seed, slots, wanted_offsets, wanted_data, out): `find_int64` for binary values. */
KERNEL_FUNCTION(find_bytes) {
    Array offsets, data, slots, wanted_offsets, wanted_data, out;
    uint64_t seed;
    Strings wanted;
    if (take(call, "81w4814!.", &offsets, &data, &seed, &slots, &wanted_offsets, &wanted_data, &out) < 0) return NULL;
    const int64_t *starts = offsets.data; /* of values; checked when these were indexed, or below */
    Py_ssize_t num_values = offsets.length - 1;
    int fits = num_values >= 0 && as_strings(&wanted, &wanted_offsets, &wanted_data) && out.length == wanted.length &&
               is_index_of(&slots, num_values);
    if (!fits) return refuse(DO_NOT_FIT);
    const int32_t *slot = slots.data;
    uint64_t last = (uint64_t)slots.length - 1;
    PyThreadState *state = wanted.length * 30 > WORTH_RELEASING_GIL ? PyEval_SaveThread() : NULL;
    uint64_t places[FIND_AT_ONCE];
    for (Py_ssize_t first = 0; first < wanted.length; first += FIND_AT_ONCE) {
        Py_ssize_t count = wanted.length - first < FIND_AT_ONCE ? wanted.length - first : FIND_AT_ONCE;
        for (Py_ssize_t i = 0; i < count; i++) {
            const uint8_t *value = wanted.data + wanted.offsets[first + i];
            places[i] = hash_bytes(value, length_of(&wanted, first + i), seed) & last;
            PREFETCH(slot + places[i]);
        }
        for (Py_ssize_t i = 0; i < count; i++)
            if (slot[places[i]] >= 0 && slot[places[i]] < num_values) PREFETCH(starts + slot[places[i]]);
        for (Py_ssize_t i = 0; i < count; i++) {
            const uint8_t *value = wanted.data + wanted.offsets[first + i];
            int64_t length = length_of(&wanted, first + i);
            uint64_t place = places[i];
            int32_t id;
            for (; (id = slot[place]) >= 0; place = (place + 1) & last) {
                if (id >= num_values || starts[id + 1] - starts[id] != length) continue;
                if (starts[id] < 0 || starts[id] > data.length - length) continue;
                if (are_equal((const uint8_t *)data.data + starts[id], value, length)) break;
            }
            ((int32_t *)out.data)[first + i] = id;
        }
    }
    if (state) PyEval_RestoreThread(state);
    Py_RETURN_NONE;
}

/* -- rows of ids ------------------------------------------------------------------------------------- */

static void sort_ids(int32_t *ids, int64_t count) {
    if (count > 64) { /* heap sort: no order of the ids makes it slow */
        for (int64_t start = count / 2, end = count; end > 1;) {
            int32_t sifted;
            if (start) {
                sifted = ids[--start];
            } else {
                sifted = ids[--end];
                ids[end] = ids[0];
            }
            int64_t root = start, child;
            while ((child = 2 * root + 1) < end) {
                if (child + 1 < end && ids[child + 1] > ids[child]) child++;
                if (ids[child] <= sifted) break;
                ids[root] = ids[child];
                root = child;
            }
            ids[root] = sifted;
        }
        return;
    }
    for (int64_t i = 1; i < count; i++) {
        int32_t id = ids[i];
        int64_t place = i;
        for (; place > 0 && ids[place - 1] > id; place--) ids[place] = ids[place - 1];
        ids[place] = id;
    }
}

/* sort_rows(indptr, ids): sort each row of ids, int32, in place and drop repetitions. `indptr`, int64[n + 1], is
 * changed to that of the remaining ids. */
KERNEL_FUNCTION(sort_rows) {
    Array indptr, ids;
    if (take(call, "8!4!.", &indptr, &ids) < 0) return NULL;
    Py_ssize_t n = indptr.length - 1;
    int64_t *ends = indptr.data;
    int32_t *id = ids.data;
    int fits = n >= 0 && ends[0] == 0 && ends[n] == ids.length;
    for (Py_ssize_t i = 0; fits && i < n; i++) fits = ends[i] <= ends[i + 1];
    if (!fits) return refuse(DO_NOT_FIT);
    Py_BEGIN_ALLOW_THREADS
    int64_t start = 0, kept = 0;
    for (Py_ssize_t row = 0; row < n; row++) {
        int64_t stop = ends[row + 1], first = kept;
        sort_ids(id + start, stop - start);
        for (; start < stop; start++)
            if (kept == first || id[start] != id[kept - 1]) id[kept++] = id[start];
        ends[row + 1] = kept;
    }
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}
