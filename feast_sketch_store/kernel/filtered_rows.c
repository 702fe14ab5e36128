/* Rows and features in shifting Bloom filters. */

#include "row_reader.h"

/* The windows of an entity, computed and prefetched unless they are among the recent ones. */
static const Windows *find_windows(RecentWindows *recent, const Symbols *symbols, const uint64_t *hash) {
    for (int i = 0; i < NUM_RECENT; i++)
        if (recent->hashes[i] == hash && recent->symbols[i] == symbols) return recent->windows + i;
    int own = recent->next++ % NUM_RECENT;
    recent->hashes[own] = hash;
    recent->symbols[own] = symbols;
    windows_place(symbols, hash, recent->windows + own);
    return recent->windows + own;
}

void windows_expect(RecentWindows *recent, const Symbols *symbols, const uint64_t *hash) {
    find_windows(recent, symbols, hash);
}

/* The windows of an entity in intact blocks; NULL if one is damaged. */
static const Windows *verified_windows(const Place *place, const Symbols *symbols, const Blocks *blocks) {
    const Windows *windows = find_windows(place->recent, symbols, place->hash);
    if (blocks_are_finished(blocks)) return windows;
    for (int j = 0; j < symbols->num_hashes; j++)
        blocks_expect(blocks, windows->starts[j], windows->starts[j] + (uint64_t)symbols->num_words - 1);
    for (int j = 0; j < symbols->num_hashes; j++)
        if (!blocks_are_verified(blocks, windows->starts[j], windows->starts[j] + (uint64_t)symbols->num_words - 1))
            return NULL;
    return windows;
}

enum { MAX_SHAPE_WORDS = 8 }; /* at least as many shapes as a range may have */

/* Takes the next range of shapes; NULL with an exception. */
static Range *take_range(RowReader *self, Call *call) {
    Range *ranges = PyMem_Realloc(self->ranges, sizeof(Range) * (size_t)(self->num_ranges + 1)), *range;
    if (!ranges) {
        PyErr_NoMemory();
        return NULL;
    }
    self->ranges = ranges;
    range = ranges + self->num_ranges;
    range->is_wanted = !self->num_ranges;
    range->shapes = symbols_take(call);
    if (!range->shapes || blocks_take(call, &range->blocks) < 0) return NULL;
    if (range->shapes->num_symbols <= 64 * MAX_SHAPE_WORDS && !range->shapes->num_clusters) return range;
    refuse(DO_NOT_FIT);
    return NULL;
}

/* The shapes of a range that an entity may have, as bits of words; 0 or FAILED. */
static int read_shapes(const Place *place, const Range *range, uint64_t *words) {
    const Windows *windows = verified_windows(place, range->shapes, &range->blocks);
    if (!windows) return FAILED;
    windows_read(range->shapes, windows, NULL, words);
    return 0;
}

/* The first shape of a range that an entity may have, NO_ROW, or DAMAGED_INDEX. Notes if there are more. */
static int64_t first_shape(const Range *range, Place *place) {
    uint64_t words[MAX_SHAPE_WORDS];
    int64_t shape = NO_ROW;
    if (read_shapes(place, range, words) < 0) return DAMAGED_INDEX;
    for (int64_t w = 0; w < range->shapes->num_words; w++) {
        if (!words[w]) continue;
        if (shape != NO_ROW || words[w] & (words[w] - 1)) place->is_ambiguous = 1;
        if (shape == NO_ROW) shape = 64 * w + LOWEST(words[w]);
    }
    return shape;
}

static int64_t find_shape(const RowReader *rows, const uint64_t *hash, Place *place) {
    (void)hash;
    place->is_ambiguous = rows->num_ranges > 1;
    if (!rows->num_ranges) return NO_ROW;
    int64_t shape = first_shape(rows->ranges, place);
    for (Py_ssize_t r = 1; shape >= 0 && r < rows->num_ranges; r++) {
        if (!rows->ranges[r].is_wanted) continue;
        int64_t other = first_shape(rows->ranges + r, place);
        if (other < 0) shape = other;
    }
    return shape;
}

/* Of several possible shapes the one counts that hides least: the oldest time is reported, the newest expires. */
static int date_shape(const RowReader *rows, int64_t expire_before, Place *place) {
    int64_t newest = rows->newest[place->row];
    place->timestamp = rows->oldest[place->row];
    if (place->is_ambiguous) {
        uint64_t words[MAX_SHAPE_WORDS];
        if (read_shapes(place, rows->ranges, words) < 0) return FAILED;
        for (int64_t shape = 0; shape < rows->num_rows; shape++) {
            if (!(words[shape >> 6] >> (shape & 63) & 1)) continue;
            if (rows->oldest[shape] < place->timestamp) place->timestamp = rows->oldest[shape];
            if (rows->newest[shape] > newest) newest = rows->newest[shape];
        }
    }
    return newest < expire_before ? EXPIRED : FOUND;
}

int state_read(const Place *place, const Feature *feature) {
    const RowReader *rows = place->layer->rows;
    int64_t state;
    if (!place->is_ambiguous) {
        if (numbers_get(&feature->states, (uint64_t)place->row, &state) < 0) return FAILED;
        return state < MISSING || state > VALUE ? FAILED : (int)state;
    }
    uint64_t words[MAX_SHAPE_WORDS];
    int highest = MISSING;
    if (read_shapes(place, rows->ranges + feature->range, words) < 0) return FAILED;
    for (uint64_t shape = 0; shape < feature->states.length; shape++) {
        if (!(words[shape >> 6] >> (shape & 63) & 1)) continue;
        if (numbers_get(&feature->states, shape, &state) < 0 || state < MISSING || state > VALUE) return FAILED;
        if (state > highest) highest = (int)state;
    }
    return highest;
}

static int read_only_state(const Place *place, const Feature *feature, Arena *arena, Content *content) {
    (void)arena;
    return (content->state = state_read(place, feature)) < 0 ? FAILED : 0;
}

/* from_states(): of the feature only `states` are known. */
READER_METHOD(from_states) {
    RowReader *self = (RowReader *)call->self;
    Feature *feature = feature_begun(self, (int)self->kind);
    if (!feature || take(call, ".") < 0) return NULL;
    feature->read = read_only_state;
    Py_RETURN_NONE;
}

/* The windows of a row that has values, and the masks of its cluster; NULL if they cannot be read. */
static const Windows *windows_of(const Place *place, const Feature *feature, const uint64_t **masks) {
    const Symbols *symbols = feature->symbols;
    int64_t cluster = 0;
    if (symbols->num_clusters && (numbers_get(&feature->clusters, (uint64_t)place->row, &cluster) < 0 || cluster < 0 ||
                                  cluster >= symbols->num_clusters))
        return NULL;
    *masks = masks_of(symbols, cluster);
    return verified_windows(place, symbols, &feature->content_blocks);
}

int filter_read_bits(const Place *place, const Feature *feature, uint64_t *words) {
    const uint64_t *masks;
    int state = state_read(place, feature);
    if (state != VALUE) return state < 0 ? FAILED : 0;
    const Windows *windows = windows_of(place, feature, &masks);
    if (!windows) return FAILED;
    windows_read(feature->symbols, windows, masks, words);
    return 0;
}

int filter_read_some(const Place *place, const Feature *feature, const int32_t *symbols, Py_ssize_t number,
                     uint8_t *found) {
    const uint64_t *masks;
    int state = state_read(place, feature);
    memset(found, 0, (size_t)number);
    if (state != VALUE) return state < 0 ? FAILED : 0;
    const Windows *windows = windows_of(place, feature, &masks);
    if (!windows) return FAILED;
    for (Py_ssize_t i = 0; i < number; i++)
        if (symbols[i] >= 0 && symbols[i] < feature->symbols->num_symbols)
            found[i] = windows_have(feature->symbols, windows, masks, (uint32_t)symbols[i]);
    return 0;
}

static int read_filter(const Place *place, const Feature *feature, Arena *arena, Content *content) {
    const Symbols *symbols = feature->symbols;
    const uint64_t *masks;
    content->state = state_read(place, feature);
    if (content->state != VALUE) return content->state < 0 ? FAILED : 0;
    uint64_t *words = arena_get(arena, (size_t)symbols->num_words * sizeof *words);
    const Windows *windows = words ? windows_of(place, feature, &masks) : NULL;
    if (!windows) return FAILED;
    windows_read(symbols, windows, masks, words);
    content->count = ones_count(words, symbols->num_words);
    int32_t *ids = arena_get(arena, ((size_t)content->count + 2) * sizeof *ids);
    if (!ids) return FAILED;
    ones_list(words, symbols->num_words, ids);
    content->ids = ids;
    if (feature->is_collection) return 0;
    /* The first value of a scalar is the most probable one. Without any, the shape is a false positive. */
    if (!content->count) content->state = IS_NULL;
    content->count = content->count != 0;
    return 0;
}

/* shaped(range ..., check, oldest, newest)
 *
 * Rows whose shapes are in a filter, see layers/presence.py. For each shape, the bounds of its rows' timestamps, int64.
 * `...` are the arguments of `symbols_take`. Without shapes there are no rows; then the bounds alone are given. */
READER_METHOD(shaped) {
    RowReader *self = (RowReader *)call->self;
    Array oldest, newest;
    if (!reader_is_empty(self)) return NULL;
    Range *range = call->stop - call->next == 2 ? NULL : take_range(self, call);
    if (PyErr_Occurred() || take(call, "88.", &oldest, &newest) < 0) return NULL;
    int64_t number = range ? range->shapes->num_symbols : 0;
    if (oldest.length != number || newest.length != number) return refuse(DO_NOT_FIT);
    self->oldest = oldest.data;
    self->newest = newest.data;
    self->num_rows = number;
    if (reader_keep(self, call) < 0) return NULL;
    self->num_ranges = range != NULL;
    self->find = find_shape;
    self->date = date_shape;
    self->kind = SHAPED;
    Py_RETURN_NONE;
}

/* shapes(range ..., check): the next range of shapes. */
READER_METHOD(shapes) {
    RowReader *self = (RowReader *)call->self;
    if (self->kind != SHAPED || !self->num_ranges) return refuse("there are no rows");
    if (!take_range(self, call) || take(call, ".") < 0 || reader_keep(self, call) < 0) return NULL;
    self->num_ranges++;
    Py_RETURN_NONE;
}

/* from_filter(range ..., check): the feature is in a filter; `states` says which rows have values. */
READER_METHOD(from_filter) {
    RowReader *self = (RowReader *)call->self;
    Feature *feature = self->kind == SHAPED ? feature_begun(self, SHAPED) : feature_begun(self, LISTED);
    if (!feature) return NULL;
    const Symbols *symbols = symbols_take(call);
    if (!symbols || blocks_take(call, &feature->content_blocks) < 0 || take(call, ".") < 0) return NULL;
    if (symbols->num_symbols != feature->values.length) return refuse(DO_NOT_FIT);
    if (reader_keep(self, call) < 0) return NULL;
    feature->symbols = symbols;
    feature->read = read_filter;
    Py_RETURN_NONE;
}

/* clusters(numbers ...): of rows, for the last feature, which is in a filter. */
READER_METHOD(clusters) {
    RowReader *self = (RowReader *)call->self;
    Feature *feature = self->num_features ? self->features + self->num_features - 1 : NULL;
    if (self->kind != LISTED || !feature || !feature->symbols) return refuse("no feature was begun");
    if (numbers_take(call, &feature->clusters) < 0 || take(call, ".") < 0) return NULL;
    if ((int64_t)feature->clusters.length != self->num_rows) return refuse(DO_NOT_FIT);
    return reader_done(self, call);
}
