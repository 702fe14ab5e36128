/* Reads of many entities into arrays: which have rows, all their values, and ids as bits. */

#include <stdlib.h>

#include "prepared.h"

enum { STEPS_OF_A_ROW = 100 };

/* Some entities to be read, and how far the read is. */
typedef struct {
    const Prepared *stack;
    const uint64_t *hashes, *hash; /* of all; of the current one */
    Py_ssize_t n, next;
    int64_t expire_before, limit;
    int is_long;
} Walk;

/* Takes hashes, uint64[n, 2], and `expire_before`. 0, or -1 with an exception. */
static int begin_walk(Call *call, Walk *walk) {
    static const uint64_t none[2];
    Array hashes;
    Py_ssize_t expire_before;
    const Prepared *stack = (Prepared *)call->self;
    if (stack->kind != STACK) {
        refuse("there are no layers to read");
        return -1;
    }
    if (take(call, "8n", &hashes, &expire_before) < 0) return -1;
    if (hashes.length % 2) {
        refuse(DO_NOT_FIT);
        return -1;
    }
    Py_ssize_t n = hashes.length / 2;
    int is_long = n * STEPS_OF_A_ROW * (1 + num_shown(stack)) > WORTH_RELEASING_GIL;
    *walk = (Walk){stack, hashes.data, n ? hashes.data : none, n, 0, expire_before, INT64_MAX, is_long};
    return 0;
}

/* Finds the row of the next entity: FOUND, EXPIRED, ABSENT or FAILED. Only if there is one more. */
static int step(Walk *walk, Arena *arena, Place *place) {
    walk->hash = walk->hashes + 2 * walk->next++;
    if (walk->next < walk->n) expect(walk->stack, walk->hash + 2);
    int status = locate(walk->stack, walk->hash, walk->expire_before, arena, place);
    place->limit = walk->limit;
    return status;
}

/* found(hashes, expire_before, statuses, timestamps)
 *
 * For each entity a status, uint8[n], 1 if it has a row, 2 if that expired, and 0 if there is none; and the timestamp
 * of a row, int64[n]. */
PREPARED_METHOD(found) {
    Walk walk;
    Array statuses, timestamps;
    if (begin_walk(call, &walk) < 0 || take(call, "1!8!.", &statuses, &timestamps) < 0) return NULL;
    if (statuses.length != walk.n || timestamps.length != walk.n) return refuse(DO_NOT_FIT);
    int status = ABSENT;
    if (walk.is_long) release_gil();
    while (status != FAILED && walk.next < walk.n) {
        Arena arena;
        Place place;
        arena_init(&arena);
        status = step(&walk, &arena, &place);
        arena_free(&arena);
        ((uint8_t *)statuses.data)[walk.next - 1] = (uint8_t)status;
        ((int64_t *)timestamps.data)[walk.next - 1] = status == FOUND ? place.timestamp : 0;
    }
    if (walk.is_long) retake_gil();
    if (status == FAILED) return raise_fault(walk.hash);
    Py_RETURN_NONE;
}

/* Sets the bits of the names of the ids of the first feature of a row in `words`, which are zero; 0 or FAILED. A filter
 * has them without visiting each id. */
static int set_bits(Place *place, Arena *arena, Py_ssize_t num_words, uint64_t *words) {
    Content content = {MISSING, 0, NULL, NULL, NULL, NULL};
    const Feature *feature = place->layer->rows->features;
    if (!place->num_pieces && feature->form == IN_FILTER && feature->is_collection && !place->layer->names &&
        (number_of_symbols(feature->symbols) + 63) / 64 <= num_words)
        return read_bits(place, feature, words);
    if (read_feature(place, 0, &feature, arena, &content) < 0 || (content.count && !content.ids)) return FAILED;
    for (int64_t i = 0; i < content.count; i++) {
        int32_t name = name_of(place->layer, content.ids[i]);
        if (name == -2 || name >> 6 >= num_words) return FAILED;
        if (name >= 0) words[name >> 6] |= 1ull << (name & 63);
    }
    return 0;
}

/* Finds the row of the next entity and the bits of its first feature: FOUND, EXPIRED, ABSENT or FAILED. */
static int step_bits(Walk *walk, Py_ssize_t num_words, uint64_t *words) {
    Arena arena;
    Place place;
    arena_init(&arena);
    int status = step(walk, &arena, &place);
    if (status == FOUND && set_bits(&place, &arena, num_words, words) < 0) status = FAILED;
    arena_free(&arena);
    return status;
}

/* bits(hashes, expire_before, num_words, out) -> number of rows
 *
 * Sets the bits of the names of the ids of the first feature of each entity in `out`, uint64[n, num_words], which is
 * zero. */
PREPARED_METHOD(bits) {
    Walk walk;
    Array out;
    Py_ssize_t num_words, num_found = 0;
    if (begin_walk(call, &walk) < 0 || take(call, "n8!.", &num_words, &out) < 0) return NULL;
    if (num_words < 0 || out.length != walk.n * num_words || !num_shown(walk.stack)) return refuse(DO_NOT_FIT);
    int status = ABSENT;
    if (walk.is_long) release_gil();
    while (status != FAILED && walk.next < walk.n) {
        status = step_bits(&walk, num_words, (uint64_t *)out.data + walk.next * num_words);
        num_found += status == FOUND;
    }
    if (walk.is_long) retake_gil();
    return status == FAILED ? raise_fault(walk.hash) : PyLong_FromSsize_t(num_found);
}

/* contains(hashes, expire_before, num_words, wanted, per_entity, out) -> number of rows
 *
 * Whether the first feature of each entity has names, int32, below 64 * `num_words`; no entity has -1. There are
 * `per_entity` of them for each entity in turn, or for all. `out` is bool[n, ...]. */
PREPARED_METHOD(contains) {
    Walk walk;
    Array wanted, out;
    Py_ssize_t num_words, per_entity, num_found = 0;
    if (begin_walk(call, &walk) < 0 || take(call, "n4n1!.", &num_words, &wanted, &per_entity, &out) < 0) return NULL;
    Py_ssize_t number = per_entity ? per_entity : wanted.length;
    if (num_words < 0 || per_entity < 0 || !num_shown(walk.stack) || out.length != walk.n * number ||
        (per_entity && wanted.length != out.length))
        return refuse(DO_NOT_FIT);
    for (Py_ssize_t i = 0; i < wanted.length; i++)
        if (((const int32_t *)wanted.data)[i] < -1 || ((const int32_t *)wanted.data)[i] >> 6 >= num_words)
            return refuse(DO_NOT_FIT);
    uint64_t *words = scratch(call, (size_t)(num_words + 1) * 8);
    if (!words) return NULL;
    int status = ABSENT;
    if (walk.is_long) release_gil();
    while (status != FAILED && walk.next < walk.n) {
        const int32_t *own = (const int32_t *)wanted.data + walk.next * per_entity;
        uint8_t *found = (uint8_t *)out.data + walk.next * number;
        memset(words, 0, (size_t)num_words * 8);
        status = step_bits(&walk, num_words, words);
        for (Py_ssize_t i = 0; i < number; i++)
            found[i] = status == FOUND && own[i] >= 0 && words[own[i] >> 6] >> (own[i] & 63) & 1;
        num_found += status == FOUND;
    }
    if (walk.is_long) retake_gil();
    return status == FAILED ? raise_fault(walk.hash) : PyLong_FromSsize_t(num_found);
}

/* scores(hashes, expire_before, weights, out) -> number of rows
 *
 * The sum of the weights, float64, of the names of the ids of the first feature of each entity, float64[n]. */
PREPARED_METHOD(scores) {
    Walk walk;
    Array weights, out;
    Py_ssize_t num_found = 0;
    if (begin_walk(call, &walk) < 0 || take(call, "88!.", &weights, &out) < 0) return NULL;
    if (!num_shown(walk.stack) || out.length != walk.n) return refuse(DO_NOT_FIT);
    Py_ssize_t num_words = weights.length / 64 + (weights.length % 64 != 0);
    uint64_t *words = scratch(call, (size_t)(num_words + 1) * 8);
    if (!words) return NULL;
    int status = ABSENT;
    if (walk.is_long) release_gil();
    while (status != FAILED && walk.next < walk.n) {
        double sum = 0, *own = (double *)out.data + walk.next;
        memset(words, 0, (size_t)num_words * 8);
        status = step_bits(&walk, num_words, words);
        if (num_words && status == FOUND && weights.length % 64 && words[num_words - 1] >> weights.length % 64)
            status = FAILED;
        for (Py_ssize_t w = 0; status == FOUND && w < num_words; w++)
            for (uint64_t word = words[w]; word; word &= word - 1)
                sum += ((const double *)weights.data)[64 * w + LOWEST(word)];
        *own = sum;
        num_found += status == FOUND;
    }
    if (walk.is_long) retake_gil();
    return status == FAILED ? raise_fault(walk.hash) : PyLong_FromSsize_t(num_found);
}

/* -- all values --------------------------------------------------------------------------------------- */

/* Bytes that grow. */
typedef struct {
    uint8_t *bytes;
    size_t length, room;
} Buffer;

/* Room for this many more bytes at the end, also for none; NULL if there is no memory. */
static void *extend(Buffer *buffer, size_t size) {
    if (!buffer->bytes || size > buffer->room - buffer->length) {
        size_t room = 2 * buffer->length + size + 1024;
        uint8_t *moved = realloc(buffer->bytes, room);
        if (!moved) {
            fail(NO_MEMORY);
            return NULL;
        }
        buffer->bytes = moved;
        buffer->room = room;
    }
    void *end = buffer->bytes + buffer->length;
    buffer->length += size;
    return end;
}

/* What the elements of a column are: names of ids; numbers; or bytes. */
enum { NAMES = 1, NUMBERS, BYTES, WITH_WEIGHTS = 8 };

typedef struct {
    int kind, has_weights;
    uint8_t *states;
    int64_t *indptr, num_elements;
    Buffer elements, ends, weights; /* `ends`: of bytes, int64 */
} Column;

/* Adds the content of a row to a column; 0 or FAILED. */
static int add(Column *column, const Place *place, const Feature *feature, Content *content, Arena *arena) {
    int64_t count = content->count, kept = 0;
    if (column->kind != NAMES && resolve(feature, arena, content) < 0) return FAILED;
    const void *elements = column->kind == NAMES     ? (const void *)content->ids
                           : column->kind == NUMBERS ? (const void *)content->numbers
                                                     : (const void *)content->slices;
    if (!count) return 0;
    int64_t *weights = column->has_weights ? extend(&column->weights, (size_t)count * 8) : NULL;
    if (!elements || (column->has_weights && !weights)) return FAILED;
    for (int64_t i = 0; weights && i < count; i++) weights[i] = content->weights ? content->weights[i] : 1;
    if (column->kind == NAMES) {
        int32_t *names = extend(&column->elements, (size_t)count * 4);
        if (!names) return FAILED;
        for (int64_t i = 0; i < count; i++) {
            int32_t name = name_of(place->layer, content->ids[i]);
            if (name == -2) return FAILED;
            if (name < 0) continue;
            if (weights) weights[kept] = weights[i];
            names[kept++] = name;
        }
        column->elements.length -= (size_t)(count - kept) * 4;
        if (weights) column->weights.length -= (size_t)(count - kept) * 8;
        column->num_elements += kept;
        return 0;
    }
    column->num_elements += count;
    if (column->kind == NUMBERS) {
        int64_t *numbers = extend(&column->elements, (size_t)count * 8);
        if (numbers) memcpy(numbers, content->numbers, (size_t)count * 8);
        return numbers ? 0 : FAILED;
    }
    for (int64_t i = 0; i < count; i++) {
        const Slice *slice = content->slices + i;
        if (feature->is_text && !is_utf8(slice->bytes, slice->length)) return FAILED;
        uint8_t *bytes = extend(&column->elements, (size_t)slice->length);
        int64_t *end = extend(&column->ends, 8);
        if (!bytes || !end) return FAILED;
        if (slice->length) memcpy(bytes, slice->bytes, (size_t)slice->length);
        *end = (int64_t)column->elements.length;
    }
    return 0;
}

static PyObject *bytes_of(const Buffer *buffer) {
    return PyByteArray_FromStringAndSize((const char *)buffer->bytes, (Py_ssize_t)buffer->length);
}

/* columns(hashes, expire_before, limit, kinds, statuses, timestamps, states, indptr) -> list of (elements, ends, weights)
 *
 * Statuses and timestamps are as of `found`. For each feature, `states`, uint8[F, n], and `indptr`, int64[F, n + 1],
 * receive the state of each entity and where its elements begin. `kinds` has a byte for each feature: 1 for names of its
 * ids, int32, which only the first feature has if layers have different ids; 2 for numbers, int64; 3 for bytes, with their
 * ends, int64; and 8 more for weights, int64. Lists have at most `limit` items. */
PREPARED_METHOD(columns) {
    Walk walk;
    Array kinds, statuses, timestamps, states, indptr;
    Py_ssize_t limit;
    if (begin_walk(call, &walk) < 0 ||
        take(call, "n11!8!1!8!.", &limit, &kinds, &statuses, &timestamps, &states, &indptr) < 0)
        return NULL;
    Py_ssize_t number = num_shown(walk.stack), n = walk.n;
    if (limit < 1 || kinds.length != number || statuses.length != n || timestamps.length != n ||
        states.length != number * n || indptr.length != number * (n + 1))
        return refuse(DO_NOT_FIT);
    walk.limit = limit;
    Column *columns = scratch(call, (size_t)(number + 1) * sizeof *columns);
    if (!columns) return NULL;
    memset(columns, 0, (size_t)(number + 1) * sizeof *columns);
    memset(states.data, MISSING, (size_t)states.length);
    for (Py_ssize_t f = 0; f < number; f++) {
        uint8_t kind = ((const uint8_t *)kinds.data)[f];
        columns[f].kind = kind % WITH_WEIGHTS;
        columns[f].has_weights = kind >= WITH_WEIGHTS;
        columns[f].states = (uint8_t *)states.data + f * n;
        columns[f].indptr = (int64_t *)indptr.data + f * (n + 1);
        columns[f].indptr[0] = 0;
        if (columns[f].kind < NAMES || columns[f].kind > BYTES) return refuse(DO_NOT_FIT);
    }
    int status = ABSENT;
    if (walk.is_long) release_gil();
    while (status != FAILED && walk.next < n) {
        Arena arena;
        Place place;
        Py_ssize_t i = walk.next;
        arena_init(&arena);
        status = step(&walk, &arena, &place);
        ((uint8_t *)statuses.data)[i] = (uint8_t)status;
        ((int64_t *)timestamps.data)[i] = status == FOUND ? place.timestamp : 0;
        for (Py_ssize_t f = 0; status != FAILED && f < number; f++) {
            Content content;
            const Feature *feature;
            if (status == FOUND) {
                if (read_feature(&place, f, &feature, &arena, &content) < 0 ||
                    add(columns + f, &place, feature, &content, &arena) < 0)
                    status = FAILED;
                else
                    columns[f].states[i] = (uint8_t)content.state;
            }
            columns[f].indptr[i + 1] = columns[f].num_elements;
        }
        arena_free(&arena);
    }
    if (walk.is_long) retake_gil();
    PyObject *answer = status == FAILED ? raise_fault(walk.hash) : PyList_New(number);
    for (Py_ssize_t f = 0; f < number; f++) {
        Column *column = columns + f;
        if (answer) {
            PyObject *parts = Py_BuildValue("(NNN)", bytes_of(&column->elements), bytes_of(&column->ends), bytes_of(&column->weights));
            if (!parts || PyList_SetItem(answer, f, parts) < 0) Py_CLEAR(answer);
        }
        free(column->elements.bytes);
        free(column->ends.bytes);
        free(column->weights.bytes);
    }
    return answer;
}
