/* Which of some candidates rows have, by their values: each is looked up among the few values of a row. */

#include "row_reader.h"

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

/* The values to look for: objects; slices; numbers; or bytes one after the other in `data`. */
typedef struct {
    uint64_t seed;
    PyObject *objects; /* a list of str, or of bytes; else NULL */
    int is_text;
    Slice *slices; /* of the objects, else NULL */
    const int64_t *numbers, *starts;
    const uint8_t *data;
    Py_ssize_t number, per_entity, num_found;
    uint8_t *out;
} Wanted;

static ALWAYS_INLINE Slice wanted_at(const Wanted *wanted, Py_ssize_t i) {
    if (wanted->slices) return wanted->slices[i];
    return (Slice){wanted->data + wanted->starts[i], wanted->starts[i + 1] - wanted->starts[i]};
}

/* Which of the numbers from `first` on a row has; 0 or FAILED. */
static int find_numbers(const Wanted *wanted, Py_ssize_t first, const Content *content, Arena *arena, uint8_t *found) {
    const int64_t *own = content->numbers, *value = wanted->numbers + first;
    uint64_t seed = wanted->seed;
    Index index;
    if ((content->count && !own) || make_index(&index, arena, content->count) < 0) return FAILED;
    for (int64_t i = 0; i < content->count; i++)
        put(&index, mark_of(&index, (uint64_t)own[i], seed), mix64((uint64_t)own[i] ^ seed), i);
    for (Py_ssize_t i = 0; i < wanted->number; i++)
        found[i] = (uint8_t)is_marked(&index, mark_of(&index, (uint64_t)value[i], seed));
    for (Py_ssize_t i = 0; i < wanted->number; i++) {
        if (!found[i]) continue;
        uint64_t slot = mix64((uint64_t)value[i] ^ seed) & index.last_slot;
        int32_t element;
        while ((element = index.slots[slot]) >= 0 && own[element] != value[i]) slot = (slot + 1) & index.last_slot;
        found[i] = element >= 0;
    }
    return 0;
}

/* The same for bytes. */
static int find_slices(const Wanted *wanted, Py_ssize_t first, const Content *content, Arena *arena, uint8_t *found) {
    const Slice *own = content->slices;
    uint64_t seed = wanted->seed;
    Index index;
    if ((content->count && !own) || make_index(&index, arena, content->count) < 0) return FAILED;
    for (int64_t i = 0; i < content->count; i++)
        put(&index, mark_of(&index, mix64(gist_of(own[i].bytes, own[i].length)), seed),
            hash_bytes(own[i].bytes, own[i].length, seed), i);
    for (Py_ssize_t i = 0; i < wanted->number; i++) {
        Slice value = wanted_at(wanted, first + i);
        found[i] = (uint8_t)is_marked(&index, mark_of(&index, mix64(gist_of(value.bytes, value.length)), seed));
    }
    for (Py_ssize_t i = 0; i < wanted->number; i++) {
        if (!found[i]) continue;
        Slice value = wanted_at(wanted, first + i);
        uint64_t slot = hash_bytes(value.bytes, value.length, seed) & index.last_slot;
        int32_t element;
        while ((element = index.slots[slot]) >= 0 &&
               (own[element].length != value.length || !are_equal(own[element].bytes, value.bytes, value.length)))
            slot = (slot + 1) & index.last_slot;
        found[i] = element >= 0;
    }
    return 0;
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

/* Reads the objects of a list, which cannot change before they are looked up, because the GIL is held; 0, or FAILED
 * with an exception. */
static int slice_objects(const Wanted *wanted) {
    int are_known = PyList_Size(wanted->objects) == wanted->number;
    for (Py_ssize_t i = 0; are_known && i < wanted->number; i++)
        are_known = slice_of(PyList_GetItem(wanted->objects, i), wanted->is_text, wanted->slices + i) == 0;
    if (are_known) return 0;
    PyErr_Clear();
    PyErr_SetString(PyExc_TypeError, "not all values are text, or not all are bytes");
    return FAILED;
}

static int mark_values(void *self, Py_ssize_t i, int status, Place *place, Arena *arena) {
    Wanted *wanted = self;
    Content content;
    const Feature *feature;
    Py_ssize_t first = i * wanted->per_entity;
    uint8_t *found = wanted->out + i * wanted->number;
    memset(found, 0, (size_t)wanted->number);
    if (status == FOUND) {
        wanted->num_found++;
        if (feature_read(place, 0, &feature, arena, &content) < 0 ||
            content_resolve(&feature->values, arena, &content) < 0)
            return FAILED;
    }
    if (wanted->objects && slice_objects(wanted) < 0) return FAILED;
    if (status != FOUND || !content.count) return 0;
    return wanted->numbers ? find_numbers(wanted, first, &content, arena, found)
                           : find_slices(wanted, first, &content, arena, found);
}

/* Takes the values to look for, and returns their number; -1 with an exception. */
static Py_ssize_t take_wanted(Call *call, Wanted *wanted) {
    Array numbers, offsets, data;
    PyObject *objects;
    Py_ssize_t is_text;
    if (take(call, "w8?8?1?on", &wanted->seed, &numbers, &offsets, &data, &objects, &is_text) < 0) return -1;
    wanted->numbers = numbers.data;
    wanted->starts = offsets.data;
    wanted->data = data.data;
    wanted->is_text = is_text != 0;
    wanted->objects = PyList_Check(objects) ? objects : NULL;
    if (numbers.data) return numbers.length;
    if (wanted->objects) {
        Py_ssize_t number = PyList_Size(objects);
        wanted->slices = scratch(call, (size_t)(number + 1) * sizeof *wanted->slices);
        return wanted->slices ? number : -1;
    }
    const int64_t *start = offsets.data;
    Py_ssize_t n = offsets.length - 1;
    int fits = start && n >= 0 && start[0] >= 0 && start[n] <= data.length;
    for (Py_ssize_t i = 0; fits && i < n; i++) fits = start[i] <= start[i + 1];
    if (!fits) refuse(DO_NOT_FIT);
    return fits ? n : -1;
}

/* contains_values(hashes, expire_before, seed, numbers, offsets, data, objects, is_text, per_entity, out) -> number of rows
 *
 * Which values the first feature of each entity has: `numbers`, int64; or binary values, `offsets`, int64, and `data`;
 * or `objects`, a list of str if `is_text`, else of bytes: TypeError if it has others. There are `per_entity` of them for
 * each entity in turn, or 0 if all are for all. `out` is bool[n, ...]. */
READER_METHOD(contains_values) {
    Walk walk;
    Wanted wanted;
    Array out;
    memset(&wanted, 0, sizeof wanted);
    if (walk_begin(call, &walk, 0) < 0) return NULL;
    Py_ssize_t all = take_wanted(call, &wanted);
    if (all < 0 || take(call, "n1!.", &wanted.per_entity, &out) < 0) return NULL;
    wanted.number = wanted.per_entity ? wanted.per_entity : all;
    wanted.out = out.data;
    if (wanted.per_entity < 0 || !reader_num_shown(walk.stack) || out.length != walk.n * wanted.number ||
        (wanted.per_entity && (wanted.objects || all != out.length)))
        return refuse(DO_NOT_FIT);
    int failed = walk_run(&walk, mark_values, &wanted, wanted.objects ? 0 : 100 + 5 * wanted.number);
    walk_free(&walk);
    return failed ? NULL : PyLong_FromSsize_t(wanted.num_found);
}
