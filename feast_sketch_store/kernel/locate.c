/* Where the row of an entity is, and what its features are, in a layer or a stack of layers.
 *
 * Nothing in a file makes reads access other memory. A read that meets damage notes it and fails. */

#include "prepared.h"

/* Whether everything from a sample to the next one is intact; with samples of zeros, the lows as well. */
static int is_sample_checked(const CheckedAscending *checked, uint64_t sample) {
    if (is_finished(&checked->highs) && is_finished(&checked->lows) && is_finished(&checked->samples)) return 1;
    const Ascending *numbers = &checked->numbers;
    int by_value = numbers->flipped != 0;
    uint64_t number = (uint64_t)(by_value ? numbers->num_buckets : numbers->length);
    uint64_t last = number ? (number - 1) / SAMPLED : 0, before = sample * SAMPLED;
    uint64_t word = sample * (uint64_t)numbers->samples.width >> 6;
    uint64_t last_word = (sample + 1) * (uint64_t)numbers->samples.width >> 6;
    if (!number || sample > last || !are_verified(&checked->samples, word, last_word + 1)) return 0;
    uint64_t start = sample ? get_packed(&numbers->samples, sample) : 0;
    uint64_t stop = sample < last ? get_packed(&numbers->samples, sample + 1) : numbers->num_bits - 1;
    if (start > stop || stop >= numbers->num_bits || !are_verified(&checked->highs, start >> 6, stop >> 6)) return 0;
    if (!by_value || !numbers->lows.width) return 1;
    if ((sample && start < before) || stop < before) return 0;
    uint64_t width = (uint64_t)numbers->lows.width, row = sample ? start - before : 0;
    return are_verified(&checked->lows, row * width >> 6, ((stop - before) * width >> 6) + 1);
}

static int64_t find_listed(const Prepared *rows, const uint64_t *hash, Place *place) {
    (void)place;
    uint64_t own = row_hash(hash, rows->salt), bucket = bucket_of(&rows->index, own);
    if (!is_sample_checked(&rows->fingerprints, (bucket ? bucket - 1 : 0) / SAMPLED)) return DAMAGED_INDEX;
    return find_row(&rows->index, own);
}

uint64_t get_checked(const CheckedAscending *checked, int64_t place) {
    uint64_t word = (uint64_t)place * (uint64_t)checked->numbers.lows.width >> 6;
    if (!is_sample_checked(checked, (uint64_t)place / SAMPLED) ||
        (checked->numbers.lows.width && !are_verified(&checked->lows, word, word + 1)))
        return ~0ull;
    return get_ascending(&checked->numbers, place);
}

/* The index of a hash among ascending ones, or NO_ROW. */
static int64_t find_hash(const uint64_t *hashes, int64_t number, const uint64_t *hash) {
    int64_t low = 0, high = number;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        const uint64_t *other = hashes + 2 * middle;
        if (other[0] < hash[0] || (other[0] == hash[0] && other[1] < hash[1]))
            low = middle + 1;
        else
            high = middle;
    }
    return low < number && hashes[2 * low] == hash[0] && hashes[2 * low + 1] == hash[1] ? low : NO_ROW;
}

static int64_t find_exact(const Prepared *rows, const uint64_t *hash, Place *place) {
    (void)place;
    return find_hash(rows->hashes, rows->num_rows, hash);
}

static int date_exact(const Prepared *rows, int64_t expire_before, Place *place) {
    if (rows->deleted[place->row]) return ABSENT;
    place->timestamp = rows->event_timestamps[place->row];
    return place->timestamp < expire_before ? EXPIRED : FOUND;
}

/* The newest timestamp that a row in this bucket may have; 0 or FAILED. */
static int newest_of(const Prepared *rows, int64_t timestamp, int64_t *newest) {
    *newest = timestamp;
    if (!rows->num_buckets) return 0;
    int64_t low = 0, high = rows->num_buckets;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (rows->bucket_bounds[2 * middle] < timestamp)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == rows->num_buckets || rows->bucket_bounds[2 * low] != timestamp) return FAILED;
    *newest = rows->bucket_bounds[2 * low + 1];
    return 0;
}

static int date_listed(const Prepared *rows, int64_t expire_before, Place *place) {
    if (!place->is_dated && expire_before == INT64_MIN) return FOUND;
    if (rows->num_distinct_timestamps == 1) {
        place->timestamp = rows->distinct_timestamps[0];
    } else {
        if (get_number(&rows->timestamps, (uint64_t)place->row, &place->timestamp) < 0) return FAILED;
        if (rows->distinct_timestamps) {
            if (place->timestamp < 0 || place->timestamp >= rows->num_distinct_timestamps) return FAILED;
            place->timestamp = rows->distinct_timestamps[place->timestamp];
        }
    }
    if (expire_before == INT64_MIN) return FOUND;
    int64_t newest;
    if (newest_of(rows, place->timestamp, &newest) < 0) return FAILED;
    return newest < expire_before ? EXPIRED : FOUND;
}

static void expect_listed(const Prepared *rows, const uint64_t *hash) {
    expect_row(&rows->index, row_hash(hash, rows->salt));
}

/* listed(salt, salt, fingerprints ..., range, twins, timestamps ..., distinct_timestamps, bucket_bounds)
 *
 * Rows in the order of their fingerprints, see layers/listed.py; `...` are the arguments of `take_checked` and
 * `take_numbers`. */
PREPARED_METHOD(listed) {
    Prepared *self = (Prepared *)call->self;
    Array twins, distinct, bounds;
    if (!is_first(self) || take(call, "ww", &self->salt[0], &self->salt[1]) < 0 ||
        take_checked(call, &self->fingerprints, 1) < 0 || take(call, "w8", &self->index.range, &twins) < 0 ||
        take_numbers(call, &self->timestamps) < 0 || take(call, "8?8?.", &distinct, &bounds) < 0)
        return NULL;
    self->index.fingerprints = self->fingerprints.numbers;
    self->index.twins = twins.data;
    self->index.num_twins = twins.length;
    int64_t num_rows = self->index.fingerprints.length;
    if (!is_row_index(&self->index) || (int64_t)self->timestamps.length != num_rows || bounds.length % 2)
        return refuse(DO_NOT_FIT);
    self->num_rows = num_rows;
    self->distinct_timestamps = distinct.data;
    self->num_distinct_timestamps = distinct.length;
    self->bucket_bounds = bounds.data;
    self->num_buckets = bounds.length / 2;
    if (keep(self, call) < 0) return NULL;
    self->find = find_listed;
    self->date = date_listed;
    self->expect = expect_listed;
    self->kind = LISTED;
    Py_RETURN_NONE;
}

/* exact(hashes, event_timestamps, deleted): uint64[n, 2] ascending, int64[n], bool[n]. */
PREPARED_METHOD(exact) {
    Prepared *self = (Prepared *)call->self;
    Array hashes, timestamps, deleted;
    if (!is_first(self) || take(call, "881.", &hashes, &timestamps, &deleted) < 0) return NULL;
    if (hashes.length != 2 * timestamps.length || deleted.length != timestamps.length) return refuse(DO_NOT_FIT);
    self->hashes = hashes.data;
    self->event_timestamps = timestamps.data;
    self->deleted = deleted.data;
    self->num_rows = timestamps.length;
    if (keep(self, call) < 0) return NULL;
    self->find = find_exact;
    self->date = date_exact;
    self->kind = EXACT;
    Py_RETURN_NONE;
}

/* -- in a stack ------------------------------------------------------------------------------------------ */

/* The layers that an entity may be in; -1 if they are not read here. */
static int find_layers(const Prepared *stack, const uint64_t *hash, Py_ssize_t *first, Py_ssize_t *end) {
    *first = 0;
    *end = stack->num_layers;
    if (!stack->first_layers) return 0;
    uint64_t shard = hash[0] >> stack->shard_shift;
    *first = stack->first_layers[shard];
    *end = stack->first_layers[shard + 1];
    return stack->is_served[shard] ? 0 : -1;
}

int locate(const Prepared *stack, const uint64_t *hash, int64_t expire_before, Arena *arena, Place *place) {
    place->stack = stack;
    place->sets = NULL;
    place->num_pieces = 0;
    place->is_ambiguous = 0;
    place->hash = hash;
    place->limits = stack->limits;
    place->since = expire_before;
    Py_ssize_t first, end;
    if (find_layers(stack, hash, &first, &end) < 0) return fail(NOT_SERVED);
    if (stack->limits) return locate_items(stack, hash, first, end, expire_before, arena, place);
    for (Py_ssize_t l = first; l < end; l++) {
        const Layer *layer = stack->layers + l;
        const Prepared *rows = layer->rows;
        if (layer->hashes) {
            int64_t listed = find_hash(layer->hashes, layer->num_hashes, hash);
            if (listed == NO_ROW) continue;
            if (layer->deleted[listed]) return ABSENT;
        }
        place->layer = layer;
        place->row = rows->find(rows, hash, place);
        if (place->row == NO_ROW) {
            if (layer->hashes) return FAILED; /* a listed entity has no row */
            continue;
        }
        if (place->row < 0 || place->row >= rows->num_rows) return FAILED;
        return rows->date(rows, expire_before, place);
    }
    return ABSENT;
}

void expect(const Prepared *stack, const uint64_t *hash) {
    Py_ssize_t first, end;
    (void)find_layers(stack, hash, &first, &end);
    for (Py_ssize_t l = first; l < end; l++) {
        const Prepared *rows = stack->layers[l].rows;
        if (rows->expect && !stack->layers[l].hashes) rows->expect(rows, hash); /* few are in deltas */
    }
}

int read_feature(Place *place, Py_ssize_t f, const Feature **feature, Arena *arena, Content *content) {
    *content = (Content){MISSING, 0, NULL, NULL, NULL, NULL};
    if (place->num_pieces) return read_together(place, f, feature, arena, content);
    const Feature *own = *feature = place->layer->rows->features + f;
    if (!own->read) return 0;
    if (own->read(place, own, arena, content) < 0) return FAILED;
    if (!own->is_ones) return 0;
    int64_t *ones = arena_get(arena, (size_t)content->count * sizeof *ones);
    if (!ones) return FAILED;
    for (int64_t i = 0; i < content->count; i++) ones[i] = 1;
    *content = (Content){content->state, content->count, NULL, ones, NULL, NULL};
    return 0;
}

int resolve(const Feature *feature, Arena *arena, Content *content) {
    const Values *values = &feature->values;
    if (!content->ids || !content->count || content->numbers || content->slices) return 0;
    int64_t *numbers = NULL;
    Slice *slices = NULL;
    if (values->numbers)
        numbers = arena_get(arena, (size_t)content->count * sizeof *numbers);
    else if (values->offsets)
        slices = arena_get(arena, (size_t)content->count * sizeof *slices);
    if (!numbers && !slices) return FAILED;
    for (int64_t i = 0; i < content->count; i++) {
        int64_t id = content->ids[i];
        if (id < 0 || id >= values->length) return FAILED;
        if (numbers) {
            numbers[i] = values->numbers[id];
            continue;
        }
        int64_t start = values->offsets[id], stop = values->offsets[id + 1];
        if (start < 0 || stop < start || stop > values->num_bytes) return FAILED;
        slices[i] = (Slice){values->data + start, stop - start};
    }
    content->numbers = numbers;
    content->slices = slices;
    return 0;
}
