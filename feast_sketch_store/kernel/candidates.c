/* Which of some candidates a row has: by their ids, ascending or not, and by their values. */

#include "prepared.h"

/* Sets `out` at the places of those ascending names that a row has. 0 or FAILED. */
static int mark_names(const Layer *layer, const Content *content, const Array *names, const Array *places,
                      const Array *out) {
    const int32_t *name = names->data;
    const int64_t *position = places->data;
    int32_t before = -1;
    Py_ssize_t first = 0, n = names->length;
    for (int64_t i = 0; i < content->count; i++) {
        int32_t wanted = name_of(layer, content->ids[i]);
        if (wanted == -2) return FAILED;
        if (wanted < 0) continue;
        if (wanted < before) first = 0; /* names of another layer's ids need not ascend */
        before = wanted;
        Py_ssize_t step = 1, low = first, high;
        while (low + step < n && name[low + step] < wanted) { /* gallop, then halve */
            low += step;
            step *= 2;
        }
        high = low + step < n ? low + step : n;
        while (low < high) {
            Py_ssize_t middle = low + (high - low) / 2;
            if (name[middle] < wanted)
                low = middle + 1;
            else
                high = middle;
        }
        for (first = low; low < n && name[low] == wanted; low++) {
            if (position[low] < 0 || position[low] >= out->length) return FAILED;
            ((uint8_t *)out->data)[position[low]] = 1;
        }
    }
    return 0;
}

/* contains_ids(hash, expire_before, names, places, out) -> True
 *
 * `names` are ascending int32, perhaps repeated. `out`, bool[n], is set at `places`, int64, of those that the row
 * has. */
PREPARED_METHOD(contains_ids) {
    uint64_t hash[2];
    int64_t expire_before;
    Array names, places, out;
    if (take_question(call, hash, &expire_before) < 0 || take(call, "481!.", &names, &places, &out) < 0) return NULL;
    if (names.length != places.length) return refuse(DO_NOT_FIT);
    BEGIN_READ;
    if (status == ABSENT) return absent(&arena);
    if (status == FAILED || (content.count && !content.ids)) return failed_at(hash, &arena);
    if (mark_names(place.layer, &content, &names, &places, &out) < 0) return failed_at(hash, &arena);
    arena_free(&arena);
    Py_RETURN_TRUE;
}

/* -- candidates by their values: each is looked up among the few values of the row -------------------- */

/* The elements of a row by value. Few marks are set, so they rule out most candidates at once. Slots have the numbers
 * of elements, or -1. */
typedef struct {
    uint64_t *marks;
    int32_t *slots;
    uint64_t last_mark, last_slot;
} Index;

/* An index with many marks and at least four slots per element; 0 or FAILED. */
static int make_index(Index *index, Arena *arena, int64_t count) {
    uint64_t size = 16;
    while (size < 4 * (uint64_t)count) size *= 2;
    index->slots = arena_get(arena, (size_t)size * sizeof *index->slots);
    index->marks = arena_get(arena, (size_t)size * 2);
    if (!index->slots || !index->marks) return FAILED;
    memset(index->slots, 0xff, (size_t)size * sizeof *index->slots);
    memset(index->marks, 0, (size_t)size * 2);
    index->last_slot = size - 1;
    index->last_mark = 16 * size - 1;
    return 0;
}

/* Spreads a value over the marks. */
static inline uint64_t mark_of(const Index *index, uint64_t value, uint64_t seed) {
    return ((value ^ seed >> 7) * (seed | 1)) >> 32 & index->last_mark;
}

static inline int is_marked(const Index *index, uint64_t mark) { return index->marks[mark >> 6] >> (mark & 63) & 1; }

static inline void put(Index *index, uint64_t mark, uint64_t slot, int64_t element) {
    index->marks[mark >> 6] |= 1ull << (mark & 63);
    for (slot &= index->last_slot; index->slots[slot] >= 0; slot = (slot + 1) & index->last_slot) {}
    index->slots[slot] = (int32_t)element;
}

/* contains_numbers(hash, expire_before, seed, values, out) -> True: which of int64[n] the row has, bool[n]. */
PREPARED_METHOD(contains_numbers) {
    uint64_t hash[2], seed;
    int64_t expire_before;
    Array values, out;
    if (take_question(call, hash, &expire_before) < 0 || take(call, "w81!.", &seed, &values, &out) < 0) return NULL;
    if (values.length != out.length) return refuse(DO_NOT_FIT);
    BEGIN_READ;
    Index index;
    if (status == ABSENT) {
        memset(out.data, 0, (size_t)out.length);
        return absent(&arena);
    }
    if (status == FAILED || resolve(place.layer->rows->features, &arena, &content) < 0 ||
        (content.count && !content.numbers) || make_index(&index, &arena, content.count) < 0)
        return failed_at(hash, &arena);
    const int64_t *own = content.numbers, *value = values.data;
    for (int64_t i = 0; i < content.count; i++)
        put(&index, mark_of(&index, (uint64_t)own[i], seed), mix64((uint64_t)own[i] ^ seed), i);
    uint8_t *found = out.data;
    PyThreadState *state = values.length * 3 > WORTH_RELEASING_GIL ? PyEval_SaveThread() : NULL;
    for (Py_ssize_t i = 0; i < values.length; i++)
        found[i] = (uint8_t)is_marked(&index, mark_of(&index, (uint64_t)value[i], seed));
    for (Py_ssize_t i = 0; i < values.length; i++) {
        if (!found[i]) continue;
        uint64_t slot = mix64((uint64_t)value[i] ^ seed) & index.last_slot;
        int32_t element;
        while ((element = index.slots[slot]) >= 0 && own[element] != value[i]) slot = (slot + 1) & index.last_slot;
        found[i] = element >= 0;
    }
    if (state) PyEval_RestoreThread(state);
    arena_free(&arena);
    Py_RETURN_TRUE;
}

/* A cheap hash of a binary value: its ends and its length. */
static inline uint64_t gist_of(const uint8_t *value, int64_t length) {
    uint64_t first = 0, last = 0;
    if (length >= 8) {
        memcpy(&first, value, 8);
        memcpy(&last, value + length - 8, 8);
    } else {
        for (int64_t i = 0; i < length; i++) last = last << 8 | value[i];
    }
    return (first + (uint64_t)length) * 0x9E3779B97F4A7C15ull ^ last;
}

/* The binary values to look for: slices; or if there are none, one after the other in `data`. */
typedef struct {
    const Slice *slices;
    const int64_t *starts;
    const uint8_t *data;
} Wanted;

static ALWAYS_INLINE Slice wanted_at(const Wanted *wanted, Py_ssize_t i) {
    if (wanted->slices) return wanted->slices[i];
    return (Slice){wanted->data + wanted->starts[i], wanted->starts[i + 1] - wanted->starts[i]};
}

/* Indexes the slices of a row; 0 or FAILED. */
static int index_slices(Index *index, Arena *arena, const Content *content, uint64_t seed) {
    if ((content->count && !content->slices) || make_index(index, arena, content->count) < 0) return FAILED;
    const Slice *own = content->slices;
    for (int64_t i = 0; i < content->count; i++)
        put(index, mark_of(index, mix64(gist_of(own[i].bytes, own[i].length)), seed),
            hash_bytes(own[i].bytes, own[i].length, seed), i);
    return 0;
}

/* Which of `n` values an index of slices has. */
static ALWAYS_INLINE void find_slices(const Index *index, const Slice *own, uint64_t seed, const Wanted *wanted,
                                      Py_ssize_t n, uint8_t *found) {
    for (Py_ssize_t i = 0; i < n; i++) {
        Slice value = wanted_at(wanted, i);
        found[i] = (uint8_t)is_marked(index, mark_of(index, mix64(gist_of(value.bytes, value.length)), seed));
    }
    for (Py_ssize_t i = 0; i < n; i++) {
        if (!found[i]) continue;
        Slice value = wanted_at(wanted, i);
        uint64_t slot = hash_bytes(value.bytes, value.length, seed) & index->last_slot;
        int32_t element;
        while ((element = index->slots[slot]) >= 0 &&
               (own[element].length != value.length || !are_equal(own[element].bytes, value.bytes, value.length)))
            slot = (slot + 1) & index->last_slot;
        found[i] = element >= 0;
    }
}

/* contains_bytes(hash, expire_before, seed, offsets, data, out) -> True: `contains_numbers` for binary values. */
PREPARED_METHOD(contains_bytes) {
    uint64_t hash[2], seed;
    int64_t expire_before;
    Array offsets, data, out;
    if (take_question(call, hash, &expire_before) < 0 || take(call, "w811!.", &seed, &offsets, &data, &out) < 0)
        return NULL;
    const int64_t *start = offsets.data;
    Py_ssize_t n = offsets.length - 1;
    int fits = n >= 0 && out.length == n && start[0] >= 0 && start[n] <= data.length;
    for (Py_ssize_t i = 0; fits && i < n; i++) fits = start[i] <= start[i + 1];
    if (!fits) return refuse(DO_NOT_FIT);
    BEGIN_READ;
    Index index;
    if (status == ABSENT) {
        memset(out.data, 0, (size_t)out.length);
        return absent(&arena);
    }
    if (status == FAILED || resolve(place.layer->rows->features, &arena, &content) < 0 ||
        index_slices(&index, &arena, &content, seed) < 0)
        return failed_at(hash, &arena);
    Wanted wanted = {NULL, start, data.data};
    PyThreadState *state = n * 10 > WORTH_RELEASING_GIL ? PyEval_SaveThread() : NULL;
    find_slices(&index, content.slices, seed, &wanted, n, out.data);
    if (state) PyEval_RestoreThread(state);
    arena_free(&arena);
    Py_RETURN_TRUE;
}

/* The bytes of a Python str or bytes; -1 for other objects. They live as long as the object. */
static int slice_of(PyObject *value, int is_text, Slice *slice) {
    Py_ssize_t length;
    char *bytes = NULL;
    if (is_text && PyUnicode_Check(value))
        bytes = (char *)PyUnicode_AsUTF8AndSize(value, &length);
    else if (!is_text && PyBytes_Check(value) && PyBytes_AsStringAndSize(value, &bytes, &length) < 0)
        bytes = NULL;
    *slice = (Slice){(const uint8_t *)bytes, bytes ? length : 0};
    return bytes ? 0 : -1;
}

/* contains_objects(hash, expire_before, seed, values, is_text, out) -> True
 *
 * `contains_bytes` for a list of str, or of bytes. It cannot change meanwhile, because the GIL is held while its
 * objects are looked at. TypeError if it has others. */
PREPARED_METHOD(contains_objects) {
    uint64_t hash[2], seed;
    int64_t expire_before;
    PyObject *values;
    Py_ssize_t is_text;
    Array out;
    if (take_question(call, hash, &expire_before) < 0 || take(call, "won1!.", &seed, &values, &is_text, &out) < 0)
        return NULL;
    if (!PyList_Check(values) || PyList_Size(values) != out.length) return refuse(DO_NOT_FIT);
    BEGIN_READ;
    Index index;
    Slice *slices = arena_get(&arena, (size_t)out.length * sizeof *slices);
    int are_known = slices != NULL;
    for (Py_ssize_t i = 0; are_known && i < out.length; i++)
        are_known = slice_of(PyList_GetItem(values, i), is_text != 0, slices + i) == 0;
    if (!are_known) {
        PyErr_Clear();
        arena_free(&arena);
        PyErr_SetString(PyExc_TypeError, "not all values are text, or not all are bytes");
        return NULL;
    }
    if (status == ABSENT) {
        memset(out.data, 0, (size_t)out.length);
        return absent(&arena);
    }
    if (status == FAILED || resolve(place.layer->rows->features, &arena, &content) < 0 ||
        index_slices(&index, &arena, &content, seed) < 0)
        return failed_at(hash, &arena);
    Wanted wanted = {slices, NULL, NULL};
    find_slices(&index, content.slices, seed, &wanted, out.length, out.data);
    arena_free(&arena);
    Py_RETURN_TRUE;
}

/* -- many rows --------------------------------------------------------------------------------------- */

/* contains_rows(indptr, ids, num_symbols, wanted, per_row, out)
 *
 * Whether row `i`, which has `ids[indptr[i]:indptr[i + 1]]`, int32, has each of `wanted`, int32. There are `per_row` of
 * these for all rows, or for each row in turn, as in `out`, bool; -1 matches no symbol. */
KERNEL_FUNCTION(contains_rows) {
    Array indptr, ids, wanted, out;
    Py_ssize_t num_symbols, per_row;
    if (take(call, "84n4n1!.", &indptr, &ids, &num_symbols, &wanted, &per_row, &out) < 0) return NULL;
    Py_ssize_t n = indptr.length - 1, number = per_row ? per_row : wanted.length;
    const int64_t *starts = indptr.data;
    const int32_t *id = ids.data, *symbols = wanted.data;
    int fits = n >= 0 && n < INT32_MAX && num_symbols >= 0 && per_row >= 0 && (!n || out.length / n == number) &&
               out.length == n * number && (!per_row || wanted.length == n * per_row) && starts[0] >= 0 &&
               starts[n] <= ids.length;
    for (Py_ssize_t i = 0; fits && i < n; i++) fits = starts[i] <= starts[i + 1];
    for (int64_t i = fits ? starts[0] : 0; fits && i < starts[n]; i++) fits = id[i] >= 0 && id[i] < num_symbols;
    for (Py_ssize_t i = 0; fits && i < wanted.length; i++) fits = symbols[i] >= -1 && symbols[i] < num_symbols;
    if (!fits) return refuse(DO_NOT_FIT);
    /* The last row that has each symbol, counted from 1. The slot for -1, before the first symbol, stays 0. */
    int32_t *owners = scratch(call, ((size_t)num_symbols + 1) * sizeof *owners);
    if (!owners) return NULL;
    PyThreadState *state = n * number > WORTH_RELEASING_GIL ? PyEval_SaveThread() : NULL;
    memset(owners, 0, ((size_t)num_symbols + 1) * sizeof *owners);
    for (Py_ssize_t row = 0; row < n; row++) {
        int32_t mark = (int32_t)row + 1;
        for (int64_t i = starts[row]; i < starts[row + 1]; i++) owners[id[i] + 1] = mark;
        const int32_t *own = per_row ? symbols + row * per_row : symbols;
        uint8_t *found = (uint8_t *)out.data + row * number;
        for (Py_ssize_t i = 0; i < number; i++) found[i] = owners[own[i] + 1] == mark;
    }
    if (state) PyEval_RestoreThread(state);
    Py_RETURN_NONE;
}
