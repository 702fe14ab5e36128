/* Reads of one entity from a shifting Bloom filter: its row by shape, and the values of its features. */

#include "prepared.h"

enum { MAX_SHAPE_WORDS = 8 }; /* at least as many shapes as a range may have */

/* Takes the next range of shapes; NULL with an exception. */
static Range *take_range(Prepared *self, Call *call) {
    Range *ranges = PyMem_Realloc(self->ranges, sizeof(Range) * (size_t)(self->num_ranges + 1)), *range;
    if (!ranges) {
        PyErr_NoMemory();
        return NULL;
    }
    self->ranges = ranges;
    range = ranges + self->num_ranges;
    range->is_wanted = !self->num_ranges;
    range->shapes = take_symbols(call);
    if (!range->shapes || take_blocks(call, &range->blocks) < 0) return NULL;
    if (number_of_symbols(range->shapes) <= 64 * MAX_SHAPE_WORDS && !number_of_clusters(range->shapes)) return range;
    refuse(DO_NOT_FIT);
    return NULL;
}

/* shaped(range ..., check, oldest, newest)
 *
 * Rows whose shapes are in a filter, see layers/shapes.py. For each shape, the bounds of its rows' timestamps, int64.
 * `...` are the arguments of `take_symbols`. Without shapes there are no rows; then the bounds alone are given. */
PREPARED_METHOD(shaped) {
    Prepared *self = (Prepared *)call->self;
    Array oldest, newest;
    if (self->kind != NOTHING) return refuse("the rows are there already");
    Range *range = call->stop - call->next == 2 ? NULL : take_range(self, call);
    if (PyErr_Occurred() || take(call, "88.", &oldest, &newest) < 0) return NULL;
    int64_t number = range ? number_of_symbols(range->shapes) : 0;
    if (oldest.length != number || newest.length != number) return refuse(DO_NOT_FIT);
    self->oldest = oldest.data;
    self->newest = newest.data;
    self->num_rows = number;
    if (keep(self, call) < 0) return NULL;
    self->num_ranges = range != NULL;
    self->kind = SHAPED;
    Py_RETURN_NONE;
}

/* shapes(range ..., check): the next range of shapes. */
PREPARED_METHOD(shapes) {
    Prepared *self = (Prepared *)call->self;
    if (self->kind != SHAPED || !self->num_ranges) return refuse("there are no rows");
    if (!take_range(self, call) || take(call, ".") < 0 || keep(self, call) < 0) return NULL;
    self->num_ranges++;
    Py_RETURN_NONE;
}

/* from_states(): of the feature only `states` are known. */
PREPARED_METHOD(from_states) {
    Prepared *self = (Prepared *)call->self;
    Feature *feature = begun(self, (int)self->kind);
    if (!feature || take(call, ".") < 0) return NULL;
    feature->form = IN_STATES;
    Py_RETURN_NONE;
}

/* from_filter(range ..., check): the feature is in a filter; `states` says which rows have values. */
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

/* states(numbers ..., range): the states of the last feature by row, or by the shapes of a range; if its values do not
 * imply them. */
PREPARED_METHOD(states) {
    Prepared *self = (Prepared *)call->self;
    if (!self->num_features) return refuse("no feature was begun");
    Feature *feature = self->features + self->num_features - 1;
    Py_ssize_t range;
    if (take_numbers(call, &feature->states) < 0 || take(call, "n.", &range) < 0) return NULL;
    if (range < 0 || (range && range >= self->num_ranges) ||
        (int64_t)feature->states.length != (range ? number_of_symbols(self->ranges[range].shapes) : self->num_rows))
        return refuse(DO_NOT_FIT);
    if (keep(self, call) < 0) return NULL;
    feature->range = range;
    if (range) self->ranges[range].is_wanted = 1;
    Py_RETURN_NONE;
}

/* ones(tag, wire_type): the last feature has a one for each of its values instead of these. */
PREPARED_METHOD(ones) {
    Prepared *self = (Prepared *)call->self;
    Array tag;
    Py_ssize_t wire;
    if (!self->num_features) return refuse("no feature was begun");
    Feature *feature = self->features + self->num_features - 1;
    if (take(call, "1n.", &tag, &wire) < 0) return NULL;
    if (tag.length > (Py_ssize_t)sizeof feature->tag || wire != VARINT) return refuse(DO_NOT_FIT);
    memcpy(feature->tag, tag.data, (size_t)tag.length);
    feature->tag_size = tag.length;
    feature->wire = (int)wire;
    feature->is_ones = 1;
    Py_RETURN_NONE;
}

/* The first shape of a range that an entity may have, NO_ROW, or DAMAGED_INDEX; and the bits of all of them. */
static int64_t first_shape(const Range *range, const uint64_t *hash, uint64_t *words, int *is_ambiguous) {
    int64_t num_words = (number_of_symbols(range->shapes) + 63) / 64, shape = NO_ROW;
    if (read_symbols(range->shapes, &range->blocks, hash, 0, words) < 0) return DAMAGED_INDEX;
    for (int64_t w = 0; w < num_words; w++) {
        if (!words[w]) continue;
        if (shape != NO_ROW || words[w] & (words[w] - 1)) *is_ambiguous = 1;
        if (shape == NO_ROW) shape = 64 * w + LOWEST(words[w]);
    }
    return shape;
}

int64_t find_shape(const Prepared *rows, const uint64_t *hash, Place *place) {
    uint64_t words[MAX_SHAPE_WORDS];
    place->is_ambiguous = rows->num_ranges > 1;
    if (!rows->num_ranges) return NO_ROW;
    int64_t shape = first_shape(rows->ranges, hash, words, &place->is_ambiguous);
    for (Py_ssize_t r = 1; shape >= 0 && r < rows->num_ranges; r++) {
        if (!rows->ranges[r].is_wanted) continue;
        int64_t other = first_shape(rows->ranges + r, hash, words, &place->is_ambiguous);
        if (other < 0) shape = other;
    }
    return shape;
}

/* Of several possible shapes the one counts that hides least: the oldest time is reported, the newest expires. */
int date_shape(const Prepared *rows, int64_t expire_before, Place *place) {
    int64_t newest = rows->newest[place->row];
    place->timestamp = rows->oldest[place->row];
    if (rows->kind == SHAPED && place->is_ambiguous) {
        uint64_t words[MAX_SHAPE_WORDS];
        if (read_symbols(rows->ranges->shapes, &rows->ranges->blocks, place->hash, 0, words) < 0) return FAILED;
        for (int64_t shape = 0; shape < rows->num_rows; shape++) {
            if (!(words[shape >> 6] >> (shape & 63) & 1)) continue;
            if (rows->oldest[shape] < place->timestamp) place->timestamp = rows->oldest[shape];
            if (rows->newest[shape] > newest) newest = rows->newest[shape];
        }
    }
    return newest < expire_before ? EXPIRED : FOUND;
}

int read_state(const Place *place, const Feature *feature) {
    const Prepared *rows = place->layer->rows;
    int64_t state;
    if (rows->kind != SHAPED || !place->is_ambiguous) {
        if (get_number(&feature->states, (uint64_t)place->row, &state) < 0) return FAILED;
        return state < MISSING || state > VALUE ? FAILED : (int)state;
    }
    uint64_t words[MAX_SHAPE_WORDS];
    const Range *range = rows->ranges + feature->range;
    int highest = MISSING;
    if (read_symbols(range->shapes, &range->blocks, place->hash, 0, words) < 0) return FAILED;
    for (uint64_t shape = 0; shape < feature->states.length; shape++) {
        if (!(words[shape >> 6] >> (shape & 63) & 1)) continue;
        if (get_number(&feature->states, shape, &state) < 0 || state < MISSING || state > VALUE) return FAILED;
        if (state > highest) highest = (int)state;
    }
    return highest;
}

/* The bits of the symbols of a row that has values; 0 or FAILED. */
static int read_windows_of(const Place *place, const Feature *feature, uint64_t *words) {
    int64_t cluster = 0, num_clusters = number_of_clusters(feature->symbols);
    if (num_clusters && (get_number(&feature->clusters, (uint64_t)place->row, &cluster) < 0 || cluster < 0 ||
                         cluster >= num_clusters))
        return FAILED;
    return read_symbols(feature->symbols, &feature->content_blocks, place->hash, cluster, words);
}

int read_bits(const Place *place, const Feature *feature, uint64_t *words) {
    int state = read_state(place, feature);
    if (state != VALUE) return state < 0 ? FAILED : 0;
    return read_windows_of(place, feature, words);
}

int read_filter(const Place *place, const Feature *feature, Arena *arena, Content *content) {
    int64_t num_words = (number_of_symbols(feature->symbols) + 63) / 64;
    content->state = read_state(place, feature);
    if (content->state != VALUE) return content->state < 0 ? FAILED : 0;
    uint64_t *words = arena_get(arena, (size_t)num_words * sizeof *words);
    if (!words || read_windows_of(place, feature, words) < 0) return FAILED;
    for (int64_t w = 0; w < num_words; w++) content->count += POPULATION(words[w]);
    int32_t *ids = arena_get(arena, ((size_t)content->count + 2) * sizeof *ids); /* two more may be overwritten */
    if (!ids) return FAILED;
    Py_ssize_t count = 0;
    for (int64_t w = 0; w < num_words; w++) count = write_ids(words[w], (int32_t)(64 * w), ids, count);
    content->ids = ids;
    if (feature->is_collection) return 0;
    /* The first value of a scalar is the most probable one. Without any, the shape is a false positive. */
    if (!content->count) content->state = IS_NULL;
    content->count = content->count != 0;
    return 0;
}
