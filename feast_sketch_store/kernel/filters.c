/* Reads of one entity from a shifting Bloom filter: its row by shape, and the values of its features. */

#include "prepared.h"

enum { MAX_SHAPE_WORDS = 8 }; /* at least as many shapes as a layer may have */

/* shaped(range ..., oldest, newest, unchecked, block_words)
 *
 * Rows whose shapes are in a filter, see layers/shapes.py. For each shape, the bounds of its rows' timestamps, int64.
 * `...` are the arguments of `take_symbols`, and the blocks are those of the table. */
PREPARED_METHOD(shaped) {
    Prepared *self = (Prepared *)call->self;
    Array oldest, newest;
    if (self->kind != NOTHING) return refuse("the rows are there already");
    self->shapes = take_symbols(call);
    if (!self->shapes || take(call, "88", &oldest, &newest) < 0 || take_blocks(call, &self->shape_blocks) < 0 ||
        take(call, ".") < 0)
        return NULL;
    int64_t number = number_of_symbols(self->shapes);
    if (number > 64 * MAX_SHAPE_WORDS || number_of_clusters(self->shapes) || oldest.length != number || newest.length != number) return refuse(DO_NOT_FIT);
    self->oldest = oldest.data;
    self->newest = newest.data;
    self->num_rows = number;
    if (keep(self, call) < 0) return NULL;
    self->kind = SHAPED;
    Py_RETURN_NONE;
}

/* from_filter(range ..., unchecked, block_words): the feature is in a filter; `states` says which rows have values. */
PREPARED_METHOD(from_filter) {
    Prepared *self = (Prepared *)call->self;
    Feature *feature = self->kind == SHAPED ? begun(self, SHAPED) : begun(self, LISTED);
    if (!feature) return NULL;
    feature->symbols = take_symbols(call);
    if (!feature->symbols || take_blocks(call, &feature->content_blocks) < 0 || take(call, ".") < 0) return NULL;
    if (number_of_symbols(feature->symbols) != feature->values.length) return refuse(DO_NOT_FIT);
    if (keep(self, call) < 0) return NULL;
    feature->form = IN_FILTER;
    Py_RETURN_NONE;
}

/* clusters(numbers ...): of rows, for the last feature, which is in a filter. */
PREPARED_METHOD(clusters) {
    Prepared *self = (Prepared *)call->self;
    Feature *feature = self->num_features ? self->features + self->num_features - 1 : NULL;
    if (self->kind != LISTED || !feature || feature->form != IN_FILTER) return refuse("no feature was begun");
    if (take_numbers(call, &feature->clusters) < 0 || take(call, ".") < 0) return NULL;
    if ((int64_t)feature->clusters.length != self->num_rows) return refuse(DO_NOT_FIT);
    if (keep(self, call) < 0) return NULL;
    Py_RETURN_NONE;
}

/* states(numbers ...): the states of the last feature by row, if its values do not imply them. */
PREPARED_METHOD(states) {
    Prepared *self = (Prepared *)call->self;
    if (!self->num_features) return refuse("no feature was begun");
    Feature *feature = self->features + self->num_features - 1;
    if (take_numbers(call, &feature->states) < 0 || take(call, ".") < 0) return NULL;
    if ((int64_t)feature->states.length != self->num_rows) return refuse(DO_NOT_FIT);
    if (keep(self, call) < 0) return NULL;
    Py_RETURN_NONE;
}

int64_t find_shape(const Prepared *rows, const uint64_t *hash) {
    uint64_t words[MAX_SHAPE_WORDS];
    int64_t num_words = (number_of_symbols(rows->shapes) + 63) / 64, shape = NO_ROW;
    if (read_symbols(rows->shapes, &rows->shape_blocks, hash, 0, words) < 0) return DAMAGED_INDEX;
    for (int64_t w = 0; w < num_words; w++) {
        if (!words[w]) continue;
        /* There may be several shapes: the usual way finds out which one counts. */
        if (shape != NO_ROW || words[w] & (words[w] - 1)) return DAMAGED_INDEX;
        shape = 64 * w + LOWEST(words[w]);
    }
    return shape;
}

int date_shape(const Prepared *rows, int64_t expire_before, Place *place) {
    place->timestamp = rows->oldest[place->row];
    return rows->newest[place->row] < expire_before ? EXPIRED : FOUND;
}

int read_filter(const Place *place, const Feature *feature, Arena *arena, Content *content) {
    int64_t state, num_words = (number_of_symbols(feature->symbols) + 63) / 64;
    if (get_number(&feature->states, (uint64_t)place->row, &state) < 0 || state < MISSING || state > VALUE) return REFUSED;
    content->state = (int)state;
    if (state != VALUE) return 0;
    int64_t cluster = 0, num_clusters = number_of_clusters(feature->symbols);
    if (num_clusters && (get_number(&feature->clusters, (uint64_t)place->row, &cluster) < 0 || cluster < 0 ||
                         cluster >= num_clusters))
        return REFUSED;
    uint64_t *words = arena_get(arena, (size_t)num_words * sizeof *words);
    if (!words || read_symbols(feature->symbols, &feature->content_blocks, place->hash, cluster, words) < 0) return REFUSED;
    for (int64_t w = 0; w < num_words; w++) content->count += POPULATION(words[w]);
    int32_t *ids = arena_get(arena, ((size_t)content->count + 2) * sizeof *ids); /* two more may be overwritten */
    if (!ids) return REFUSED;
    Py_ssize_t count = 0;
    for (int64_t w = 0; w < num_words; w++) count = write_ids(words[w], (int32_t)(64 * w), ids, count);
    content->ids = ids;
    if (feature->is_collection) return 0;
    /* The first value of a scalar is the most probable one. Without any, the shape is a false positive. */
    if (!content->count) content->state = IS_NULL;
    content->count = content->count != 0;
    return 0;
}
