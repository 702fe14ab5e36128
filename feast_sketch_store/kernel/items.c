/* Features in lists: items with times, or values with counts; see structures/lists.py. */

#include "prepared.h"

/* The bits of a row's codes, if they are checked; 0 or FAILED. */
static int find_codes(const Layer *layer, int64_t row, const Feature *feature, uint64_t *start, uint64_t *stop) {
    *start = get_checked(&feature->starts, row);
    *stop = feature->num_code_bits;
    if (row + 1 < layer->rows->num_rows) *stop = get_checked(&feature->starts, row + 1);
    if (*start > *stop || *stop > feature->num_code_bits) return FAILED;
    return are_verified(&feature->content_blocks, *start >> 6, (*stop >> 6) + 1) ? 0 : FAILED;
}

/* The age of the oldest item that may be shown. */
static int64_t oldest_of(const Place *place, const Feature *feature) {
    if (feature->counts || place->since == INT64_MIN) return INT64_MAX;
    int64_t tick = place->since / feature->resolution; /* then the first tick that begins at `since` or later */
    tick += place->since % feature->resolution > 0;
    return tick < -(1ll << 62) ? INT64_MAX : feature->newest_tick - tick;
}

static int64_t limit_of(const Place *place, const Feature *feature) {
    if (!place->limits) return place->limit;
    int64_t own = place->limits[feature - place->layer->rows->features];
    return own < place->limit ? own : place->limit;
}

/* Turns ages into times in a unit of microseconds, rounded down, or into counts; 0 or FAILED. */
static int weigh(const Feature *feature, int64_t unit, int64_t *ages, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        if (feature->counts) {
            if (ages[i] >= feature->num_counts) return FAILED;
            ages[i] = feature->counts[ages[i]];
            continue;
        }
        if (ages[i] >= (1ll << 62) / feature->resolution) return FAILED;
        int64_t time = (feature->newest_tick - ages[i]) * feature->resolution;
        ages[i] = time / unit - (time % unit < 0);
    }
    return 0;
}

/* Reads the newest items of a row: ids, and times in a unit of microseconds or counts; 0 or FAILED. */
static int read_newest(const Place *place, const Layer *layer, int64_t row, const Feature *feature, int64_t limit,
                       int64_t unit, Arena *arena, Content *content, int64_t **weights) {
    enum { BITS_OF_ITEM = 3 }; /* usually at least; a list with more items is read twice */
    int64_t state, count = -2;
    uint64_t start, stop;
    if (get_number(&feature->states, (uint64_t)row, &state) < 0 || state < MISSING || state > VALUE ||
        find_codes(layer, row, feature, &start, &stop) < 0)
        return FAILED;
    int64_t *ages = NULL;
    int32_t *ids = NULL;
    for (int64_t room = (int64_t)(stop - start) / BITS_OF_ITEM + 1; count == -2; room *= BITS_OF_ITEM) {
        if (room > limit) room = limit;
        ages = arena_get(arena, (size_t)room * sizeof *ages);
        ids = arena_get(arena, (size_t)room * sizeof *ids);
        if (!ages || !ids) return FAILED;
        count = read_list(&feature->code, start, stop, limit, oldest_of(place, feature), room, ids, ages);
    }
    if (count < 0 || weigh(feature, unit, ages, count) < 0) return FAILED;
    content->state = (int)state;
    content->count = count;
    content->ids = ids;
    *weights = ages;
    return 0;
}

int read_all_items(const Place *place, const Layer *layer, int64_t row, const Feature *feature, Arena *arena,
                   Content *content, int64_t **times) {
    return read_newest(place, layer, row, feature, INT64_MAX, 1, arena, content, times);
}

static int read_items(const Place *place, const Feature *feature, Arena *arena, Content *content) {
    int64_t *weights, unit = feature->unit ? feature->unit : 1;
    if (read_newest(place, place->layer, place->row, feature, limit_of(place, feature), unit, arena, content, &weights) < 0)
        return FAILED;
    if (content->state == VALUE && !content->count && place->limits) content->state = EMPTY;
    content->weights = weights;
    if (feature->unit) {
        content->numbers = weights;
        content->ids = NULL;
    }
    return 0;
}

/* from_list(tables, widths, num_symbols, words, num_bits, check, starts ..., newest_tick, resolution,
 *           counts, unit)
 *
 * The feature has items: each an id, and an age in ticks of `resolution` microseconds before `newest_tick`; or with
 * `counts`, int64, the number of one of these. The elements are the ids; or if `unit` is above 0, times in units of as
 * many microseconds, or counts. `states` says which rows have values. */
PREPARED_METHOD(from_list) {
    Prepared *self = (Prepared *)call->self;
    Feature *feature = begun(self, LISTED);
    Array counts;
    Py_ssize_t num_bits, newest_tick, resolution, unit;
    int64_t all_bits;
    if (!feature || take_list_code(call, &feature->code, &all_bits) < 0 || take(call, "n", &num_bits) < 0 ||
        take_blocks(call, &feature->content_blocks) < 0 || take_checked(call, &feature->starts, 0) < 0 ||
        take(call, "nn8?n.", &newest_tick, &resolution, &counts, &unit) < 0)
        return NULL;
    const int64_t most = 1ll << 62; /* so that no time overflows */
    if (num_bits < 0 || num_bits > all_bits || feature->starts.numbers.length != self->num_rows || resolution < 1 ||
        newest_tick >= most / resolution || newest_tick <= -most / resolution || unit < 0 ||
        (feature->values.length && feature->values.length != feature->code.num_symbols))
        return refuse(DO_NOT_FIT);
    feature->num_code_bits = (uint64_t)num_bits;
    feature->newest_tick = newest_tick;
    feature->resolution = resolution;
    feature->counts = counts.data;
    feature->num_counts = counts.length;
    feature->unit = unit;
    if (keep(self, call) < 0) return NULL;
    feature->read = read_items;
    Py_RETURN_NONE;
}

/* from_weights(states, indptr, weights): uint8[n], int64[n + 1], int64[nnz]; the elements are the weights. */
PREPARED_METHOD(from_weights) {
    Prepared *self = (Prepared *)call->self;
    Feature *feature = begun(self, EXACT);
    Array states, indptr, weights;
    if (!feature || take(call, "188.", &states, &indptr, &weights) < 0) return NULL;
    if (states.length != self->num_rows || indptr.length != self->num_rows + 1) return refuse(DO_NOT_FIT);
    feature->row_states = states.data;
    feature->indptr = indptr.data;
    feature->weights = weights.data;
    feature->num_ids = weights.length;
    if (keep(self, call) < 0) return NULL;
    feature->read = read_exact;
    Py_RETURN_NONE;
}

/* limits(limits, resolutions, num_shown, is_named, seed): rows of one entity add up from now on.
 *
 * Only the first features are shown in answers. `limits`, int64, say how many items the list of each feature shows, and `resolutions`, int64, within how many
 * microseconds it shows a value once. `is_named` says whether the names of ids are those of one vocabulary. */
PREPARED_METHOD(limits) {
    Prepared *self = (Prepared *)call->self;
    Array limits, resolutions;
    Py_ssize_t num_shown, is_named;
    uint64_t seed;
    if (take(call, "88nnw.", &limits, &resolutions, &num_shown, &is_named, &seed) < 0) return NULL;
    if (self->kind != STACK || self->limits || limits.length != self->layers->rows->num_features ||
        resolutions.length != limits.length || num_shown < 0 || num_shown > limits.length)
        return refuse(DO_NOT_FIT);
    for (Py_ssize_t f = 0; f < resolutions.length; f++)
        if (((const int64_t *)resolutions.data)[f] < 1) return refuse("a tick takes a microsecond or more");
    for (Py_ssize_t l = 0; l < self->num_layers; l++)
        if (self->layers[l].hashes || (self->layers[l].rows->kind != LISTED && self->layers[l].rows->kind != EXACT))
            return refuse("items are in listed and exact rows only");
    if (keep(self, call) < 0) return NULL;
    self->limits = limits.data;
    self->resolutions = resolutions.data;
    self->num_shown = num_shown;
    self->is_named = is_named != 0;
    self->seed = seed;
    Py_RETURN_NONE;
}
