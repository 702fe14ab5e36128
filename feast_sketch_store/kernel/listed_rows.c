/* Rows that a layer lists in the order of their fingerprints, and features in columns of such rows, or in digits of
 * numbers. */

#include "row_reader.h"

static int64_t find_listed(const RowReader *rows, const uint64_t *hash, Place *place) {
    (void)place;
    uint64_t own = row_hash(hash, rows->salt);
    if (!checked_is_finished(&rows->fingerprints)) {
        uint64_t bucket = index_bucket(&rows->index, own);
        if (!checked_has_sample(&rows->fingerprints, (bucket ? bucket - 1 : 0) / SAMPLED)) return DAMAGED_INDEX;
    }
    return index_find(&rows->index, own);
}

/* The newest timestamp that a row in this bucket may have; 0 or FAILED. */
static int newest_of(const RowReader *rows, int64_t timestamp, int64_t *newest) {
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

static int date_listed(const RowReader *rows, int64_t expire_before, Place *place) {
    if (!place->is_dated && expire_before == INT64_MIN) return FOUND;
    if (rows->num_distinct_timestamps == 1) {
        place->timestamp = rows->distinct_timestamps[0];
    } else {
        if (numbers_get(&rows->timestamps, (uint64_t)place->row, &place->timestamp) < 0) return FAILED;
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

static void expect_listed(const RowReader *rows, const uint64_t *hash) {
    index_expect(&rows->index, row_hash(hash, rows->salt));
}

/* listed(salt, salt, fingerprints ..., range, twins, timestamps ..., distinct_timestamps, bucket_bounds)
 *
 * Rows in the order of their fingerprints, see layers/presence.py; `...` are the arguments of `checked_take` and
 * `numbers_take`. */
READER_METHOD(listed) {
    RowReader *self = (RowReader *)call->self;
    Array twins, distinct, bounds;
    if (!reader_is_empty(self) || take(call, "ww", &self->salt[0], &self->salt[1]) < 0 ||
        checked_take(call, &self->fingerprints, 1) < 0 || take(call, "w8", &self->index.range, &twins) < 0 ||
        numbers_take(call, &self->timestamps) < 0 || take(call, "8?8?.", &distinct, &bounds) < 0)
        return NULL;
    self->index.fingerprints = self->fingerprints.numbers;
    self->index.twins = twins.data;
    self->index.num_twins = twins.length;
    int64_t num_rows = self->index.fingerprints.length;
    if (!index_fits(&self->index) || (int64_t)self->timestamps.length != num_rows || bounds.length % 2)
        return refuse(DO_NOT_FIT);
    self->num_rows = num_rows;
    self->distinct_timestamps = distinct.data;
    self->num_distinct_timestamps = distinct.length;
    self->bucket_bounds = bounds.data;
    self->num_buckets = bounds.length / 2;
    if (reader_keep(self, call) < 0) return NULL;
    self->find = find_listed;
    self->date = date_listed;
    self->expect = expect_listed;
    self->kind = LISTED;
    Py_RETURN_NONE;
}

/* -- columns ---------------------------------------------------------------------------------------------------- */

static int read_column(const Place *place, const Feature *feature, Arena *arena, Content *content) {
    uint64_t first = (uint64_t)place->row;
    int64_t state, start = place->row, stop = start + 1;
    if (numbers_get(&feature->states, first, &state) < 0) return FAILED;
    int64_t base = (int64_t)feature->states.base;
    if (state < base || state - base > VALUE || base < MISSING || base > VALUE) return FAILED;
    state = base + feature->state_step * (state - base);
    if (state > VALUE) return FAILED;
    content->state = (int)state;
    if (feature->has_bounds) {
        if (numbers_get(&feature->bounds, first, &start) < 0 || numbers_get(&feature->bounds, first + 1, &stop) < 0)
            return FAILED;
    } else if (state != VALUE) {
        return 0;
    }
    int64_t num_elements = (int64_t)feature->elements.length - (feature->elements_are == AS_BYTES);
    if (start < 0 || stop < start || stop > num_elements) return FAILED;
    content->count = stop - start;
    size_t count = (size_t)content->count;
    if (feature->elements_are == AS_IDS) {
        int32_t *ids = arena_get(arena, count * sizeof *ids);
        if (!ids) return FAILED;
        content->ids = ids;
        for (int64_t id, i = start; i < stop; i++, *ids++ = (int32_t)id)
            if (numbers_get(&feature->elements, (uint64_t)i, &id) < 0 || id < 0 || id >= feature->values.length)
                return FAILED;
    } else if (feature->elements_are == AS_NUMBERS) {
        int64_t *numbers = arena_get(arena, count * sizeof *numbers);
        if (!numbers) return FAILED;
        content->numbers = numbers;
        for (int64_t i = start; i < stop; i++)
            if (numbers_get(&feature->elements, (uint64_t)i, numbers++) < 0) return FAILED;
    } else {
        Slice *slices = arena_get(arena, count * sizeof *slices);
        int64_t begin = 0, end;
        if (!slices) return FAILED;
        content->slices = slices;
        if (count && numbers_get(&feature->elements, (uint64_t)start, &begin) < 0) return FAILED;
        for (int64_t i = start; i < stop; i++, begin = end) {
            if (numbers_get(&feature->elements, (uint64_t)i + 1, &end) < 0 || begin < 0 || end < begin ||
                end > feature->num_content_bytes ||
                (end > begin &&
                 !blocks_are_verified(&feature->content_blocks, (uint64_t)begin >> 3, (uint64_t)(end - 1) >> 3)))
                return FAILED;
            *slices++ = (Slice){feature->content + begin, end - begin};
        }
    }
    return 0;
}

static int read_digits(const Place *place, const Feature *feature, Arena *arena, Content *content) {
    int64_t number;
    if (numbers_get(&feature->elements, (uint64_t)place->row, &number) < 0) return FAILED;
    uint64_t symbol = (uint64_t)number / feature->divisor % feature->num_symbols;
    if (symbol >= (uint64_t)feature->values.length) {
        content->state = feature->others[symbol - (uint64_t)feature->values.length];
        return content->state > VALUE ? FAILED : 0;
    }
    int32_t *id = arena_get(arena, sizeof *id);
    if (!id) return FAILED;
    *id = (int32_t)symbol;
    content->ids = id;
    content->count = 1;
    content->state = VALUE;
    return 0;
}

/* from_column(states ..., step, bounds ... of a collection, else Nones, elements ..., elements_are, is_text,
 *             content, check): see structures/columns.py. */
READER_METHOD(from_column) {
    RowReader *self = (RowReader *)call->self;
    Feature *feature = feature_begun(self, LISTED);
    Array content;
    Py_ssize_t step, elements_are, is_text;
    if (!feature || numbers_take(call, &feature->states) < 0 || take(call, "n", &step) < 0 ||
        numbers_take(call, &feature->bounds) < 0 || numbers_take(call, &feature->elements) < 0 ||
        take(call, "nn8?", &elements_are, &is_text, &content) < 0 || blocks_take(call, &feature->content_blocks) < 0 ||
        take(call, ".") < 0)
        return NULL;
    if (step < 1 || elements_are < AS_IDS || elements_are > AS_BYTES) return refuse(DO_NOT_FIT);
    feature->state_step = step;
    feature->has_bounds = feature->bounds.length != 0;
    feature->elements_are = (unsigned)elements_are;
    feature->is_text = is_text != 0;
    feature->content = content.data;
    feature->num_content_bytes = 8 * content.length;
    feature->read = read_column;
    return reader_done(self, call);
}

/* from_digits(numbers ..., divisor, others): `others` are states, uint8; see structures/scalars.py. */
READER_METHOD(from_digits) {
    RowReader *self = (RowReader *)call->self;
    Feature *feature = feature_begun(self, LISTED);
    Array others;
    if (!feature || numbers_take(call, &feature->elements) < 0 || take(call, "w1.", &feature->divisor, &others) < 0)
        return NULL;
    feature->num_others = (uint64_t)others.length;
    feature->num_symbols = (uint64_t)feature->values.length + feature->num_others;
    if (!feature->divisor || !feature->num_symbols) return refuse(DO_NOT_FIT);
    feature->others = others.data;
    feature->read = read_digits;
    return reader_done(self, call);
}
