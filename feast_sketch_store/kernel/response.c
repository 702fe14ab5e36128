/* Rows in protobuf's wire format, as Values or as vectors of a response; adapter/responses.py has the layout
 * of vectors. A Value is
 *
 *     number in a collection   field of Value, length, | 1, length, | element element ...   (packed)
 *     other in a collection    field of Value, length, |              1, length, element  1, length, ...
 *     scalar                   field of Value,         |              element (a length first if not a number)
 *
 * Source: protobuf.dev, "Encoding". */

#include "row_reader.h"

/* A feature to be written. */
typedef struct {
    const Feature *feature;
    Content content;
    int64_t elements_size, size; /* bytes of all elements, and of the Value */
} Part;

static inline int64_t size_of_element(const Part *part, int64_t i) {
    const Content *content = &part->content;
    switch (part->feature->wire) {
    case VARINT: return varint_size((uint64_t)content->numbers[i]);
    case FIXED32: return 4;
    case FIXED64: return 8;
    case DELIMITED: {
        int64_t length = content->slices[i].length;
        return part->feature->is_collection + varint_size((uint64_t)length) + length;
    }
    default: return 0;
    }
}

static int is_packed(const Feature *feature) { return feature->is_collection && feature->wire != DELIMITED; }

static int64_t size_of_list(const Part *part) {
    int64_t size = part->elements_size;
    return is_packed(part->feature) && size ? 1 + varint_size((uint64_t)size) + size : size;
}

/* Reads feature `f` and measures its Value; 0 or FAILED. */
static int measure(Part *part, Place *place, Py_ssize_t f, Arena *arena) {
    Content *content = &part->content;
    if (feature_read(place, f, &part->feature, arena, content) < 0) return FAILED;
    const Feature *feature = part->feature;
    part->elements_size = part->size = 0;
    if (content->state < EMPTY) return 0;
    if (content_resolve(&feature->values, arena, content) < 0 ||
        (content->count && (feature->wire == DELIMITED ? !content->slices : !content->numbers)) ||
        (!feature->is_collection && content->count > 1))
        return FAILED;
    for (int64_t i = 0; i < content->count; i++) {
        part->elements_size += size_of_element(part, i);
        if (feature->is_text && !is_utf8(content->slices[i].bytes, content->slices[i].length)) return FAILED;
    }
    if (feature->is_collection) {
        int64_t list = size_of_list(part);
        part->size = feature->tag_size + varint_size((uint64_t)list) + list;
    } else if (part->elements_size) {
        part->size = feature->tag_size + part->elements_size;
    }
    return 0;
}

static uint8_t *write_value(uint8_t *place, const Part *part) {
    const Feature *feature = part->feature;
    const Content *content = &part->content;
    *place++ = 0x0a;
    place = varint_write(place, (uint64_t)part->size);
    if (!part->size) return place;
    memcpy(place, feature->tag, (size_t)feature->tag_size);
    place += feature->tag_size;
    if (feature->is_collection) place = varint_write(place, (uint64_t)size_of_list(part));
    if (is_packed(feature) && part->elements_size) {
        *place++ = 0x0a;
        place = varint_write(place, (uint64_t)part->elements_size);
    }
    for (int64_t i = 0; i < content->count; i++) {
        if (feature->wire == VARINT) {
            place = varint_write(place, (uint64_t)content->numbers[i]);
        } else if (feature->wire != DELIMITED) {
            size_t size = feature->wire == FIXED32 ? 4 : 8;
            memcpy(place, content->numbers + i, size);
            place += size;
        } else {
            const Slice *slice = content->slices + i;
            if (feature->is_collection) *place++ = 0x0a;
            place = varint_write(place, (uint64_t)slice->length);
            memcpy(place, slice->bytes, (size_t)slice->length);
            place += slice->length;
        }
    }
    return place;
}

static inline int64_t size_of_field(int64_t size) { return 1 + varint_size((uint64_t)size) + size; }

/* Measures all features of a row, one part each; 0 or FAILED. */
static int measure_row(Part *parts, Py_ssize_t number, int status, Place *place, Arena *arena) {
    if (status != FOUND) memset(parts, 0, sizeof(Part) * (size_t)number);
    for (Py_ssize_t f = 0; status == FOUND && f < number; f++)
        if (measure(parts + f, place, f, arena) < 0) return FAILED;
    return 0;
}

/* A row as a tuple; `parts` are those of its features. */
static PyObject *row_of(const Part *parts, Py_ssize_t number, int64_t timestamp) {
    int64_t total = 0;
    for (Py_ssize_t f = 0; f < number; f++) total += size_of_field(parts[f].size);
    PyObject *row = NULL, *states = PyBytes_FromStringAndSize(NULL, number);
    PyObject *message = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)total);
    if (states && message) {
        uint8_t *target = (uint8_t *)PyBytes_AsString(message), *state = (uint8_t *)PyBytes_AsString(states);
        for (Py_ssize_t f = 0; f < number; f++) {
            state[f] = (uint8_t)parts[f].content.state;
            target = write_value(target, parts + f);
        }
        row = Py_BuildValue("LOO", (long long)timestamp, states, message);
    }
    Py_XDECREF(states);
    Py_XDECREF(message);
    return row;
}

typedef struct {
    PyObject *all;
    Py_ssize_t num_features, num_found;
} Rows;

static int add_row(void *self, Py_ssize_t i, int status, Place *place, Arena *arena) {
    Rows *rows = self;
    PyObject *row = Py_NewRef(status == EXPIRED ? Py_False : Py_None);
    if (status == FOUND) {
        Py_DECREF(row);
        Part *parts = arena_get(arena, sizeof(Part) * (size_t)rows->num_features);
        if (!parts || measure_row(parts, rows->num_features, status, place, arena) < 0) return FAILED;
        row = row_of(parts, rows->num_features, place->timestamp);
        rows->num_found++;
    }
    return !row || PyList_SetItem(rows->all, i, row) < 0 ? FAILED : 0;
}

/* rows(hashes, expire_before) -> list, number of rows
 *
 * For each entity its timestamp, states and message; None if it has no row, and False if that has expired. The message
 * has the Value of each feature as an element of field 1, the states are a byte for each. */
READER_METHOD(rows) {
    Walk walk;
    if (walk_begin(call, &walk, 1) < 0 || take(call, ".") < 0) return NULL;
    Rows rows = {PyList_New(walk.n), reader_num_shown(walk.stack), 0};
    if (!rows.all) return NULL;
    if (walk_run(&walk, add_row, &rows, 0) < 0) Py_CLEAR(rows.all); /* it makes objects */
    walk_free(&walk);
    return rows.all ? Py_BuildValue("Nn", rows.all, rows.num_found) : NULL;
}

/* A Timestamp in wire format, at most 32 bytes: returns its size. */
static int64_t write_timestamp(uint8_t *place, int64_t microseconds) {
    uint8_t *first = place;
    int64_t seconds = microseconds / 1000000, rest = microseconds % 1000000;
    if (rest < 0) {
        rest += 1000000;
        seconds--;
    }
    if (seconds) {
        *place++ = 0x08;
        place = varint_write(place, (uint64_t)seconds);
    }
    if (rest) {
        *place++ = 0x10;
        place = varint_write(place, (uint64_t)rest * 1000);
    }
    return place - first;
}

/* The timestamp of an entity's row in wire format; empty without a row. */
typedef struct {
    int64_t moment_size;
    uint8_t moment[31], is_expired;
} Moment;

/* Bytes of the vector of a feature; the part of entity `i` is `parts[i * stride]`. */
static int64_t size_of_vector(const Part *parts, const Moment *moments, Py_ssize_t n, Py_ssize_t stride) {
    int64_t size = size_of_field(n);
    for (Py_ssize_t i = 0; i < n; i++)
        size += size_of_field(parts[i * stride].size) + size_of_field(moments[i].moment_size);
    return size;
}

static uint8_t *write_vector(uint8_t *place, const Part *parts, const Moment *moments, Py_ssize_t n, Py_ssize_t stride,
                             const uint8_t *statuses) {
    for (Py_ssize_t i = 0; i < n; i++) place = write_value(place, parts + i * stride);
    *place++ = 0x12;
    place = varint_write(place, (uint64_t)n);
    for (Py_ssize_t i = 0; i < n; i++)
        *place++ = statuses[moments[i].is_expired ? VALUE + 1 : parts[i * stride].content.state];
    for (Py_ssize_t i = 0; i < n; i++) {
        *place++ = 0x1a;
        place = varint_write(place, (uint64_t)moments[i].moment_size);
        memcpy(place, moments[i].moment, (size_t)moments[i].moment_size);
        place += moments[i].moment_size;
    }
    return place;
}

/* The vectors of all features of some entities. */
typedef struct {
    Py_ssize_t n, num_features, num_present, num_found, num_expired;
    Part *parts;
    Moment *moments;
    int64_t *sizes; /* of the vectors */
} Vectors;

static int measure_entity(void *self, Py_ssize_t i, int status, Place *place, Arena *arena) {
    Vectors *vectors = self;
    Moment *moment = vectors->moments + i;
    moment->moment_size = status == FOUND ? write_timestamp(moment->moment, place->timestamp) : 0;
    moment->is_expired = status == EXPIRED;
    vectors->num_found += status == FOUND;
    vectors->num_expired += status == EXPIRED;
    return measure_row(vectors->parts + i * vectors->num_features, vectors->num_features, status, place, arena);
}

/* The size of the message; FAILED if it would be too long. */
static int64_t measure_all(Vectors *vectors, int64_t max_size) {
    Py_ssize_t number = vectors->num_features, largest = 0;
    int64_t total = 0;
    for (Py_ssize_t f = 0; f < number; f++) {
        vectors->sizes[f] = size_of_vector(vectors->parts + f, vectors->moments, vectors->n, number);
        if (vectors->sizes[f] > vectors->sizes[largest]) largest = f;
        total += size_of_field(vectors->sizes[f]);
    }
    if (number && (vectors->sizes[largest] > max_size || total > INT32_MAX)) { /* no message may be longer */
        fault_note(TOO_LONG);
        fault.feature = largest;
        return FAILED;
    }
    return total;
}

static void write_all(Vectors *vectors, const uint8_t *statuses, uint8_t *target) {
    Py_ssize_t number = vectors->num_features, n = vectors->n;
    for (Py_ssize_t f = 0; f < number; f++) {
        *target++ = 0x12;
        target = varint_write(target, (uint64_t)vectors->sizes[f]);
        target = write_vector(target, vectors->parts + f, vectors->moments, n, number, statuses);
    }
    for (Py_ssize_t i = 0; i < n * number; i++) vectors->num_present += vectors->parts[i].content.state != MISSING;
}

/* vectors(hashes, expire_before, statuses, max_size) -> message, number of present values, of rows, of expired rows
 *
 * The message has a vector of all entities for each feature, as elements of field 2; `hashes` has 16 bytes for each
 * entity. `statuses` has a byte for each state, its FieldStatus, the first for a missing feature; and one for features
 * of expired rows. The read fails if a vector would be longer than `max_size`. */
READER_METHOD(vectors) {
    enum { STEPS_OF_A_VALUE = 100 };
    static const uint64_t nobody[2];
    Walk walk;
    Array statuses;
    Py_ssize_t max_size;
    if (walk_begin(call, &walk, 1) < 0 || take(call, "1n.", &statuses, &max_size) < 0) return NULL;
    if (statuses.length != VALUE + 2) return refuse(DO_NOT_FIT);
    Py_ssize_t number = reader_num_shown(walk.stack), n = walk.n;
    Vectors vectors = {n, number, 0, 0, 0, NULL, NULL, NULL};
    walk.is_whole = 1;
    vectors.parts = arena_get(&walk.arena, sizeof(Part) * (size_t)(n * number));
    vectors.moments = arena_get(&walk.arena, sizeof(Moment) * (size_t)n);
    vectors.sizes = arena_get(&walk.arena, sizeof(int64_t) * (size_t)number);
    PyObject *message = NULL;
    int64_t total = FAILED;
    if (!vectors.parts || !vectors.moments || !vectors.sizes)
        PyErr_NoMemory();
    else if (walk_run(&walk, measure_entity, &vectors, STEPS_OF_A_VALUE * number) == 0 &&
             (total = measure_all(&vectors, max_size)) == FAILED)
        fault_raise(n ? walk.hash : nobody);
    if (total != FAILED) message = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)total);
    uint8_t *target = message ? (uint8_t *)PyBytes_AsString(message) : NULL;
    if (target) {
        if (walk.is_long) gil_release();
        write_all(&vectors, statuses.data, target);
        if (walk.is_long) gil_retake();
    }
    walk_free(&walk);
    if (!message) return NULL;
    return Py_BuildValue("Nnnn", message, vectors.num_present, vectors.num_found, vectors.num_expired);
}
