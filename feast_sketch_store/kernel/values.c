/* Values: their ids in a vocabulary, and Values in protobuf's wire format, many per call. */

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
    for (Py_ssize_t i = 0; i < values.length; i++) {
        uint64_t place = mix(((const uint64_t *)values.data)[i] ^ seed) & last;
        while (slot[place] >= 0) place = (place + 1) & last;
        slot[place] = (int32_t)i;
    }
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
    for (Py_ssize_t i = 0; i < values.length; i++) {
        uint64_t place = hash_bytes(values.data + values.offsets[i], length_of(&values, i), seed) & last;
        while (slot[place] >= 0) place = (place + 1) & last;
        slot[place] = (int32_t)i;
    }
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

/* -- Feast values in wire format; codecs.py has the layout ------------------------------------------- */

typedef struct {
    const uint8_t *tag; /* of the field of Value */
    int64_t tag_size;
    int is_collection, is_packed;
} Field;

/* Bytes of a list or set message, and of a Value, with elements of `size` bytes. */
static inline int64_t list_size(const Field *field, int64_t size) {
    return field->is_packed && size ? 1 + varint_size((uint64_t)size) + size : size;
}

static inline int64_t value_size(const Field *field, int64_t size) {
    if (!field->is_collection) return size ? field->tag_size + size : 0;
    int64_t list = list_size(field, size);
    return field->tag_size + varint_size((uint64_t)list) + list;
}

static uint8_t *write_head(uint8_t *place, const Field *field, int64_t size) {
    *place++ = 0x0a;
    place = varint_write(place, (uint64_t)value_size(field, size));
    if (field->is_collection || size) {
        memcpy(place, field->tag, (size_t)field->tag_size);
        place += field->tag_size;
    }
    if (field->is_collection) {
        place = varint_write(place, (uint64_t)list_size(field, size));
        if (field->is_packed && size) {
            *place++ = 0x0a;
            place = varint_write(place, (uint64_t)size);
        }
    }
    return place;
}

/* encode_values(tag, is_collection, is_packed, is_present, indptr, ids, offsets, data, ends) -> bytes
 *
 * The elements of row i are `data[offsets[id]:offsets[id + 1]]` of its ids, int32; a row that is not present,
 * uint8[n], is an empty Value. `ends`, int64[n + 1], receives where the rows begin and end. */
KERNEL_FUNCTION(encode_values) {
    Array tag, is_present, indptr, ids, offsets, data, ends;
    Py_ssize_t is_collection, is_packed;
    if (take(call, "1nn184818!.", &tag, &is_collection, &is_packed, &is_present, &indptr, &ids, &offsets, &data,
             &ends) < 0)
        return NULL;
    Field field = {tag.data, tag.length, is_collection != 0, is_packed != 0};
    Strings fragments = {offsets.data, data.data, offsets.length - 1};
    Py_ssize_t n = is_present.length;
    const uint8_t *present = is_present.data;
    const int64_t *starts = indptr.data;
    const int32_t *id = ids.data;
    int64_t *end = ends.data;
    int fits = fragments.length >= 0 && indptr.length == n + 1 && ends.length == n + 1 && starts[0] >= 0 &&
               starts[n] <= ids.length;
    for (Py_ssize_t i = 0; fits && i < n; i++) fits = starts[i] <= starts[i + 1];
    /* Only the fragments in use are checked, because there may be a million. */
    for (int64_t i = fits ? starts[0] : 0; fits && i < starts[n]; i++)
        fits = id[i] >= 0 && id[i] < fragments.length && fragments.offsets[id[i]] >= 0 &&
               length_of(&fragments, id[i]) >= 0 && fragments.offsets[id[i] + 1] <= data.length;
    if (!fits) return refuse(DO_NOT_FIT);

    int64_t total = 0;
    end[0] = 0;
    for (Py_ssize_t row = 0; row < n; row++) {
        int64_t size = 0, of_value = 0;
        if (present[row]) {
            for (int64_t i = starts[row]; i < starts[row + 1]; i++) size += length_of(&fragments, id[i]);
            of_value = value_size(&field, size);
        }
        total += 1 + varint_size((uint64_t)of_value) + of_value;
        end[row + 1] = total;
    }
    PyObject *message = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)total);
    if (!message) return NULL;
    uint8_t *content = (uint8_t *)PyBytes_AsString(message), *stop = content + total;
    const uint8_t *data_stop = fragments.data + data.length;
    PyThreadState *state = total / 4 > WORTH_RELEASING_GIL ? PyEval_SaveThread() : NULL;
    for (Py_ssize_t row = 0; row < n; row++) {
        uint8_t *place = content + end[row];
        if (!present[row]) {
            *place++ = 0x0a;
            *place = 0;
            continue;
        }
        int64_t size = 0;
        for (int64_t i = starts[row]; i < starts[row + 1]; i++) size += length_of(&fragments, id[i]);
        place = write_head(place, &field, size);
        for (int64_t i = starts[row]; i < starts[row + 1]; i++) {
            const uint8_t *fragment = fragments.data + fragments.offsets[id[i]];
            int64_t length = length_of(&fragments, id[i]);
            if (length <= 16 && stop - place >= 16 && data_stop - fragment >= 16)
                memcpy(place, fragment, 16); /* a fixed size needs no call; excess bytes are overwritten */
            else
                memcpy(place, fragment, (size_t)length);
            place += length;
        }
    }
    if (state) PyEval_RestoreThread(state);
    return message;
}
