/* Reads of entities as arrays: sinks of the walk. */

#include <stdlib.h>

#include "row_reader.h"

/* The number of rows found, at the end of a method; NULL if it failed.
 * By address, because the walk, an argument itself, counts them. */
static PyObject *finish(Walk *walk, int failed, const Py_ssize_t *num_found) {
    walk_free(walk);
    return failed ? NULL : PyLong_FromSsize_t(*num_found);
}

enum { STEPS_OF_A_ROW = 100 };

/* -- which entities have rows --------------------------------------------------------------------------- */

typedef struct {
    uint8_t *statuses;
    int64_t *timestamps;
} Found;

static int note_found(void *self, Py_ssize_t i, int status, Place *place, Arena *arena) {
    Found *found = self;
    (void)arena;
    found->statuses[i] = (uint8_t)status;
    found->timestamps[i] = status == FOUND ? place->timestamp : 0;
    return 0;
}

/* found(hashes, expire_before, statuses, timestamps)
 *
 * For each entity a status, uint8[n], 1 if it has a row, 2 if that expired, and 0 if there is none; and the timestamp
 * of a row, int64[n]. */
READER_METHOD(found) {
    Walk walk;
    Array statuses, timestamps;
    if (walk_begin(call, &walk, 1) < 0 || take(call, "1!8!.", &statuses, &timestamps) < 0) return NULL;
    if (statuses.length != walk.n || timestamps.length != walk.n) return refuse(DO_NOT_FIT);
    Found found = {statuses.data, timestamps.data};
    int failed = walk_run(&walk, note_found, &found, STEPS_OF_A_ROW);
    walk_free(&walk);
    if (failed) return NULL;
    Py_RETURN_NONE;
}

/* -- the ids of the first feature, as bits and as weights ------------------------------------------------- */

/* Reads the first feature of a row, with each id once; 0 or FAILED. */
static int read_first(Place *place, const Feature **feature, Arena *arena, Content *content) {
    if (feature_read(place, 0, feature, arena, content) < 0) return FAILED;
    int is_list = place->limits && items_are_timed(place->stack, 0);
    return is_list ? content_make_distinct(place, arena, content) : 0;
}

/* Words that have a bit for each name. */
typedef struct {
    uint64_t *words;
    Py_ssize_t num_words;
} Bits;

/* Sets or clears the bits of the names of ids; 0 or FAILED. */
static int write_bits(const Bits *bits, const Place *place, const Content *content, int is_set) {
    if (content->count && !content->ids) return FAILED;
    for (int64_t i = 0; i < content->count; i++) {
        int32_t name = layer_name(place->layer, content->ids[i]);
        if (name == -2 || name >> 6 >= bits->num_words) return FAILED;
        if (name < 0) continue;
        uint64_t bit = 1ull << (name & 63), *word = bits->words + (name >> 6);
        *word = is_set ? *word | bit : *word & ~bit;
    }
    return 0;
}

/* Whether the bits of the first feature of a row are in a filter, in the order of names. */
static int has_bits(const Place *place, Py_ssize_t num_words) {
    const Feature *feature = place->layer->rows->features;
    return !place->num_pieces && feature->symbols && feature->is_collection && !place->layer->names &&
           feature->symbols->num_words <= num_words;
}

typedef struct {
    Bits bits; /* of the first entity, before those of the others */
    Py_ssize_t num_found;
} BitRows;

static int set_bits(void *self, Py_ssize_t i, int status, Place *place, Arena *arena) {
    BitRows *rows = self;
    Bits bits = {rows->bits.words + i * rows->bits.num_words, rows->bits.num_words};
    Content content;
    const Feature *feature;
    if (status != FOUND) return 0;
    rows->num_found++;
    if (has_bits(place, bits.num_words)) return filter_read_bits(place, place->layer->rows->features, bits.words);
    return read_first(place, &feature, arena, &content) < 0 ? FAILED : write_bits(&bits, place, &content, 1);
}

/* bits(hashes, expire_before, num_words, out) -> number of rows
 *
 * Sets the bits of the names of the ids of the first feature of each entity in `out`, uint64[n, num_words], which is
 * zero. */
READER_METHOD(bits) {
    Walk walk;
    Array out;
    Py_ssize_t num_words;
    if (walk_begin(call, &walk, 0) < 0 || take(call, "n8!.", &num_words, &out) < 0) return NULL;
    if (num_words < 0 || out.length != walk.n * num_words || !reader_num_shown(walk.stack)) return refuse(DO_NOT_FIT);
    BitRows rows = {{out.data, num_words}, 0};
    return finish(&walk, walk_run(&walk, set_bits, &rows, STEPS_OF_A_ROW), &rows.num_found);
}

typedef struct {
    Bits bits; /* zero between rows; so is a word before them, with the bit of -1 */
    const int32_t *wanted;
    Py_ssize_t number, per_entity, num_found;
    uint8_t *out;
} Names;

static int mark_names(void *self, Py_ssize_t i, int status, Place *place, Arena *arena) {
    enum { WORDS_PER_NAME = 4 }; /* more words take longer to read than the name's own bits */
    Names *names = self;
    const int32_t *own = names->wanted + i * names->per_entity;
    uint8_t *found = names->out + i * names->number;
    const Bits *bits = &names->bits;
    Content content;
    const Feature *feature;
    if (status != FOUND) {
        memset(found, 0, (size_t)names->number);
        return 0;
    }
    names->num_found++;
    int is_filter = has_bits(place, bits->num_words);
    if (is_filter && names->number * WORDS_PER_NAME < place->layer->rows->features->symbols->num_words)
        return filter_read_some(place, place->layer->rows->features, own, names->number, found);
    if (is_filter ? filter_read_bits(place, place->layer->rows->features, bits->words) < 0
                  : read_first(place, &feature, arena, &content) < 0 || write_bits(bits, place, &content, 1) < 0)
        return FAILED;
    for (Py_ssize_t k = 0; k < names->number; k++) found[k] = bits->words[own[k] >> 6] >> (own[k] & 63) & 1;
    if (!is_filter) return write_bits(bits, place, &content, 0);
    memset(bits->words, 0, (size_t)bits->num_words * 8);
    return 0;
}

/* contains(hashes, expire_before, num_names, wanted, per_entity, out) -> number of rows
 *
 * Whether the first feature of each entity has names, int32, below `num_names`; no entity has -1. There are `per_entity`
 * of them for each entity in turn, or 0 if all are for all. `out` is bool[n, ...]. */
READER_METHOD(contains) {
    Walk walk;
    Array wanted, out;
    Py_ssize_t num_names, per_entity;
    if (walk_begin(call, &walk, 0) < 0 || take(call, "n4n1!.", &num_names, &wanted, &per_entity, &out) < 0) return NULL;
    Py_ssize_t number = per_entity ? per_entity : wanted.length, num_words = num_names / 64 + 1;
    if (num_names < 0 || per_entity < 0 || !reader_num_shown(walk.stack) || out.length != walk.n * number ||
        (per_entity && wanted.length != out.length))
        return refuse(DO_NOT_FIT);
    const int32_t *given = wanted.data;
    int are_wrong = num_names > INT32_MAX;
    for (Py_ssize_t i = 0; i < wanted.length; i++) are_wrong |= (given[i] < -1) | (given[i] >= (int32_t)num_names);
    if (are_wrong) return refuse(DO_NOT_FIT);
    uint64_t *words = scratch(call, (size_t)(num_words + 1) * 8);
    if (!words) return NULL;
    memset(words, 0, (size_t)(num_words + 1) * 8);
    Names names = {{words + 1, num_words}, given, number, per_entity, 0, out.data};
    return finish(&walk, walk_run(&walk, mark_names, &names, STEPS_OF_A_ROW + number), &names.num_found);
}

typedef struct {
    const double *weights;
    Py_ssize_t num_weights, num_found;
    int is_counted;
    double *out;
} Scores;

/* Adds the weights of the bits of a filter, which need not become ids first. */
static int add_weights_of_bits(const Scores *scores, const Place *place, Arena *arena, double *out) {
    const Feature *feature = place->layer->rows->features;
    size_t size = (size_t)feature->symbols->num_words * sizeof(uint64_t);
    uint64_t *words = arena_get(arena, size);
    double sum = 0;
    if (!words || feature->symbols->num_symbols > scores->num_weights) return FAILED;
    memset(words, 0, size);
    if (filter_read_bits(place, feature, words) < 0) return FAILED;
    for (Py_ssize_t w = 0; w < feature->symbols->num_words; w++) {
        const double *weights = scores->weights + 64 * w;
        for (uint64_t word = words[w]; word; word &= word - 1) sum += weights[LOWEST(word)];
    }
    *out = sum;
    return 0;
}

static int add_weights(void *self, Py_ssize_t i, int status, Place *place, Arena *arena) {
    Scores *scores = self;
    Content content;
    const Feature *feature;
    scores->out[i] = 0;
    if (status != FOUND) return 0;
    scores->num_found++;
    if (!scores->is_counted && has_bits(place, scores->num_weights / 64 + 1))
        return add_weights_of_bits(scores, place, arena, scores->out + i);
    int failed = scores->is_counted ? feature_read(place, 0, &feature, arena, &content)
                                    : read_first(place, &feature, arena, &content);
    if (failed < 0 || (content.count && !content.ids)) return FAILED;
    const int64_t *counts = scores->is_counted ? content.weights : NULL;
    double sums[4] = {0}; /* four, so that additions need not wait for each other */
    for (int64_t k = 0; k < content.count; k++) {
        int32_t name = layer_name(place->layer, content.ids[k]);
        if (name == -1) continue;
        if (name < 0 || name >= scores->num_weights) return FAILED;
        sums[k & 3] += counts ? (double)counts[k] * scores->weights[name] : scores->weights[name];
    }
    scores->out[i] = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    return 0;
}

/* scores(hashes, expire_before, weights, is_counted, out) -> number of rows
 *
 * The sum of the weights, float64, of the names of the ids of the first feature of each entity, float64[n]; with
 * `is_counted` each weight as often as the id was counted. */
READER_METHOD(scores) {
    Walk walk;
    Array weights, out;
    Py_ssize_t is_counted;
    if (walk_begin(call, &walk, 0) < 0 || take(call, "8n8!.", &weights, &is_counted, &out) < 0) return NULL;
    if (!reader_num_shown(walk.stack) || out.length != walk.n) return refuse(DO_NOT_FIT);
    Scores scores = {weights.data, weights.length, 0, is_counted != 0, out.data};
    return finish(&walk, walk_run(&walk, add_weights, &scores, STEPS_OF_A_ROW), &scores.num_found);
}

/* -- all values ------------------------------------------------------------------------------------------- */

/* What the elements of a column are: names of ids; numbers; or bytes. */
enum { NAMES = 1, NUMBERS, BYTES, WITH_WEIGHTS = 8 };

typedef struct {
    int kind, has_weights;
    uint8_t *states; /* NULL if these are not asked for */
    uint8_t *cut;    /* the same */
    int64_t *indptr, num_elements;
    Buffer elements, ends, weights; /* `ends`: of bytes, int64 */
} Column;

/* Adds the names of the ids of a row, and their weights; 0 or FAILED. */
static int add_names(Column *column, const Place *place, const Content *content, int64_t *weights) {
    size_t size = (size_t)content->count * sizeof(int32_t);
    int32_t *names = buffer_extend(&column->elements, size);
    int64_t kept = 0;
    if (!names) return FAILED;
    if (!place->layer->names) {
        memcpy(names, content->ids, size);
        column->num_elements += content->count;
        return 0;
    }
    for (int64_t i = 0; i < content->count; i++) {
        int32_t name = layer_name(place->layer, content->ids[i]);
        if (name == -2) return FAILED;
        if (name < 0) continue;
        if (weights) weights[kept] = weights[i];
        names[kept++] = name;
    }
    if (place->limits && !weights) kept = ids_make_distinct(names, kept); /* ascending */
    column->elements.length -= (size_t)(content->count - kept) * sizeof(int32_t);
    if (weights) column->weights.length -= (size_t)(content->count - kept) * sizeof *weights;
    column->num_elements += kept;
    return 0;
}

/* Adds the content of a row to a column; 0 or FAILED. */
static int add_content(Column *column, const Place *place, const Feature *feature, Content *content, Arena *arena) {
    int64_t count = content->count;
    if (column->kind != NAMES && content_resolve(&feature->values, arena, content) < 0) return FAILED;
    const void *elements = column->kind == NAMES     ? (const void *)content->ids
                           : column->kind == NUMBERS ? (const void *)content->numbers
                                                     : (const void *)content->slices;
    if (!count) return 0;
    int64_t *weights = column->has_weights ? buffer_extend(&column->weights, (size_t)count * 8) : NULL;
    if (!elements || (column->has_weights && !weights)) return FAILED;
    if (weights && content->weights) memcpy(weights, content->weights, (size_t)count * 8);
    for (int64_t i = 0; weights && !content->weights && i < count; i++) weights[i] = 1;
    if (column->kind == NAMES) return add_names(column, place, content, weights);
    column->num_elements += count;
    if (column->kind == NUMBERS) {
        int64_t *numbers = buffer_extend(&column->elements, (size_t)count * 8);
        if (numbers) memcpy(numbers, content->numbers, (size_t)count * 8);
        return numbers ? 0 : FAILED;
    }
    for (int64_t i = 0; i < count; i++) {
        const Slice *slice = content->slices + i;
        if (feature->is_text && !is_utf8(slice->bytes, slice->length)) return FAILED;
        uint8_t *bytes = buffer_extend(&column->elements, (size_t)slice->length);
        int64_t *end = buffer_extend(&column->ends, 8);
        if (!bytes || !end) return FAILED;
        if (slice->length) memcpy(bytes, slice->bytes, (size_t)slice->length);
        *end = (int64_t)column->elements.length;
    }
    return 0;
}

static void free_column(Column *column) {
    free(column->elements.bytes);
    free(column->ends.bytes);
    free(column->weights.bytes);
}

typedef struct {
    Column column;
    uint8_t *cut;
    Py_ssize_t num_found;
} Csr;

static int add_to_csr(void *self, Py_ssize_t i, int status, Place *place, Arena *arena) {
    Csr *csr = self;
    Column *column = &csr->column;
    Content content;
    const Feature *feature;
    if (status == FOUND) {
        csr->num_found++;
        int failed = column->kind == NAMES && !column->has_weights ? read_first(place, &feature, arena, &content)
                                                                   : feature_read(place, 0, &feature, arena, &content);
        if (failed < 0 || add_content(column, place, feature, &content, arena) < 0) return FAILED;
        if (csr->cut) csr->cut[i] = (uint8_t)content.is_cut;
    }
    if (column->indptr) column->indptr[i + 1] = column->num_elements;
    return 0;
}

/* csr(hashes, window, limit, kind, indptr, cut) -> (elements, ends, weights, number of rows), bytes each or None
 *
 * The elements of the first feature of each entity, of a kind as of `columns`: names of ids, each once; or with weights the
 * items of lists, newest first and at most `limit`, with their times, or values with their counts. `indptr`, int64[n + 1],
 * receives where those of each entity begin, and `cut`, bool[n], for which lists older items may be missing; both may be
 * None. */
READER_METHOD(csr) {
    Walk walk;
    Array indptr, cut;
    Py_ssize_t limit, kind;
    if (walk_begin(call, &walk, 0) < 0 || take(call, "nn8?1?!.", &limit, &kind, &indptr, &cut) < 0) return NULL;
    if (limit < 1 || kind % WITH_WEIGHTS < NAMES || kind % WITH_WEIGHTS > BYTES || !reader_num_shown(walk.stack) ||
        (indptr.data && indptr.length != walk.n + 1) || (cut.data && cut.length != walk.n))
        return refuse(DO_NOT_FIT);
    walk.limit = limit;
    Csr csr = {
        {.kind = (int)(kind % WITH_WEIGHTS), .has_weights = kind >= WITH_WEIGHTS, .indptr = indptr.data}, cut.data, 0};
    Column *column = &csr.column;
    if (indptr.data) column->indptr[0] = 0;
    int failed = walk_run(&walk, add_to_csr, &csr, STEPS_OF_A_ROW);
    walk_free(&walk);
    PyObject *answer = failed ? NULL : PyTuple_New(4); /* faster than Py_BuildValue */
    if (answer) {
        PyObject *parts[4] = {buffer_give(&column->elements),
                              column->kind == BYTES ? buffer_give(&column->ends) : Py_NewRef(Py_None),
                              column->has_weights ? buffer_give(&column->weights) : Py_NewRef(Py_None),
                              PyLong_FromSsize_t(csr.num_found)};
        for (int i = 0; i < 4; i++)
            if (!parts[i] || PyTuple_SetItem(answer, i, parts[i]) < 0) failed = 1;
        if (failed) Py_CLEAR(answer);
    }
    free_column(&csr.column);
    return answer;
}

typedef struct {
    Column *of;
    Py_ssize_t number;
    Found found;
} Columns;

static int add_to_columns(void *self, Py_ssize_t i, int status, Place *place, Arena *arena) {
    Columns *columns = self;
    note_found(&columns->found, i, status, place, arena);
    for (Py_ssize_t f = 0; f < columns->number; f++) {
        Column *column = columns->of + f;
        Content content;
        const Feature *feature;
        if (status == FOUND) {
            if (feature_read(place, f, &feature, arena, &content) < 0 ||
                add_content(column, place, feature, &content, arena) < 0)
                return FAILED;
            column->states[i] = (uint8_t)content.state;
            if (column->cut) column->cut[i] = (uint8_t)content.is_cut;
        }
        column->indptr[i + 1] = column->num_elements;
    }
    return 0;
}

/* columns(hashes, window, limit, kinds, statuses, timestamps, states, indptr, cut) -> list of (elements, ends, weights)
 *
 * Statuses and timestamps are as of `found`. For each feature, `states`, uint8[F, n], and `indptr`, int64[F, n + 1],
 * receive the state of each entity and where its elements begin, and `cut`, bool[F, n] or None, which lists may lack
 * older items. `kinds` has a byte for each feature: 1 for names of its
 * ids, int32, which only the first feature has if layers have different ids; 2 for numbers, int64; 3 for bytes, with their
 * ends, int64; and 8 more for weights, int64. Lists have at most `limit` items. */
READER_METHOD(columns) {
    Walk walk;
    Array kinds, statuses, timestamps, states, indptr, cut;
    Py_ssize_t limit;
    if (walk_begin(call, &walk, 1) < 0 ||
        take(call, "n11!8!1!8!1?!.", &limit, &kinds, &statuses, &timestamps, &states, &indptr, &cut) < 0)
        return NULL;
    Py_ssize_t number = reader_num_shown(walk.stack), n = walk.n;
    if (limit < 1 || kinds.length != number || statuses.length != n || timestamps.length != n ||
        states.length != number * n || indptr.length != number * (n + 1) || (cut.data && cut.length != number * n))
        return refuse(DO_NOT_FIT);
    walk.limit = limit;
    Columns columns = {scratch(call, (size_t)(number + 1) * sizeof(Column)), number, {statuses.data, timestamps.data}};
    if (!columns.of) return NULL;
    memset(columns.of, 0, (size_t)(number + 1) * sizeof(Column));
    memset(states.data, MISSING, (size_t)states.length);
    for (Py_ssize_t f = 0; f < number; f++) {
        Column *column = columns.of + f;
        uint8_t kind = ((const uint8_t *)kinds.data)[f];
        column->kind = kind % WITH_WEIGHTS;
        column->has_weights = kind >= WITH_WEIGHTS;
        column->states = (uint8_t *)states.data + f * n;
        column->cut = cut.data ? (uint8_t *)cut.data + f * n : NULL;
        column->indptr = (int64_t *)indptr.data + f * (n + 1);
        column->indptr[0] = 0;
        if (column->kind < NAMES || column->kind > BYTES) return refuse(DO_NOT_FIT);
    }
    int failed = walk_run(&walk, add_to_columns, &columns, STEPS_OF_A_ROW * (1 + number));
    walk_free(&walk);
    PyObject *answer = failed ? NULL : PyList_New(number);
    for (Py_ssize_t f = 0; f < number; f++) {
        Column *column = columns.of + f;
        if (answer) {
            PyObject *parts = Py_BuildValue("(NNN)", buffer_give(&column->elements), buffer_give(&column->ends),
                                            buffer_give(&column->weights));
            if (!parts || PyList_SetItem(answer, f, parts) < 0) Py_CLEAR(answer);
        }
        free_column(column);
    }
    return answer;
}
