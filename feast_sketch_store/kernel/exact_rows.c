/* Unsealed rows in the order of their hashes, and features that they store one row after the other. */

#include "row_reader.h"

/* The index of a hash among ascending ones, or NO_ROW. */
int64_t hashes_find(const uint64_t *hashes, int64_t number, const uint64_t *hash) {
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

static int64_t find_exact(const RowReader *rows, const uint64_t *hash, Place *place) {
    (void)place;
    return hashes_find(rows->hashes, rows->num_rows, hash);
}

static int date_exact(const RowReader *rows, int64_t expire_before, Place *place) {
    if (rows->deleted[place->row]) return ABSENT;
    place->timestamp = rows->event_timestamps[place->row];
    return place->timestamp < expire_before ? EXPIRED : FOUND;
}

/* exact(hashes, event_timestamps, deleted): uint64[n, 2] ascending, int64[n], bool[n]. */
READER_METHOD(exact) {
    RowReader *self = (RowReader *)call->self;
    Array hashes, timestamps, deleted;
    if (!reader_is_empty(self) || take(call, "881.", &hashes, &timestamps, &deleted) < 0) return NULL;
    if (hashes.length != 2 * timestamps.length || deleted.length != timestamps.length) return refuse(DO_NOT_FIT);
    self->hashes = hashes.data;
    self->event_timestamps = timestamps.data;
    self->deleted = deleted.data;
    self->num_rows = timestamps.length;
    if (reader_keep(self, call) < 0) return NULL;
    self->find = find_exact;
    self->date = date_exact;
    self->kind = EXACT;
    Py_RETURN_NONE;
}

/* fenced(delete_barriers): bool[n], the rows that hide all rows of their entity in older layers. */
READER_METHOD(fenced) {
    RowReader *self = (RowReader *)call->self;
    Array delete_barriers;
    if (take(call, "1.", &delete_barriers) < 0) return NULL;
    if (self->kind != EXACT || self->delete_barriers || delete_barriers.length != self->num_rows)
        return refuse(DO_NOT_FIT);
    self->delete_barriers = delete_barriers.data;
    return reader_done(self, call);
}

/* -- features --------------------------------------------------------------------------------------------------- */

/* The ids of a row, with its times or counts; or these, in their unit; 0 or FAILED. */
static int read_exact(const Place *place, const Feature *feature, Arena *arena, Content *content) {
    int64_t start = feature->indptr[place->row], stop = feature->indptr[place->row + 1];
    if (start < 0 || stop < start || stop > feature->num_ids) return FAILED;
    content->state = feature->row_states[place->row];
    content->count = stop - start;
    content->weights = feature->weights ? feature->weights + start : NULL;
    if (feature->attribute.code_bits) return FAILED; /* only merged */
    if (feature->unit) {
        int64_t *numbers = arena_get(arena, (size_t)content->count * sizeof *numbers);
        if (!numbers) return FAILED;
        for (int64_t i = 0; i < content->count; i++) numbers[i] = floor_of(content->weights[i], feature->unit);
        content->numbers = numbers;
    } else {
        content->ids = feature->ids + start;
    }
    return content->state > VALUE ? FAILED : 0;
}

/* Has a feature read arrays that are stored one row after the other. */
static PyObject *keep_arrays(Call *call, Feature *feature, Array states, Array indptr, Array ids, Array weights) {
    feature->row_states = states.data;
    feature->indptr = indptr.data;
    feature->ids = ids.data;
    feature->weights = weights.data;
    feature->num_ids = ids.length;
    feature->read = read_exact;
    return reader_done((RowReader *)call->self, call);
}

/* from_rows(states, indptr, ids): uint8[n], int64[n + 1], int32[nnz]. */
READER_METHOD(from_rows) {
    RowReader *self = (RowReader *)call->self;
    Feature *feature = feature_begun(self, EXACT);
    Array states, indptr, ids;
    if (!feature || take(call, "184.", &states, &indptr, &ids) < 0) return NULL;
    if (states.length != self->num_rows || indptr.length != self->num_rows + 1) return refuse(DO_NOT_FIT);
    return keep_arrays(call, feature, states, indptr, ids, (Array){NULL, 0});
}

/* from_items(states, indptr, ids, weights, unit): uint8[n], int64[n + 1], int32[nnz], int64[nnz]
 *
 * Its items are stored one row after the other: ids with times, the newest of a row first; or with counts. The elements
 * are the ids; or if `unit` is above 0, times in units of as many microseconds, or counts in units of 1. */
READER_METHOD(from_items) {
    RowReader *self = (RowReader *)call->self;
    Feature *feature = feature_begun(self, EXACT);
    Array states, indptr, ids, weights;
    Py_ssize_t unit;
    if (!feature || take(call, "1848n.", &states, &indptr, &ids, &weights, &unit) < 0) return NULL;
    if (states.length != self->num_rows || indptr.length != self->num_rows + 1 || ids.length != weights.length ||
        unit < 0)
        return refuse(DO_NOT_FIT);
    feature->unit = unit;
    feature->is_items = 1;
    return keep_arrays(call, feature, states, indptr, ids, weights);
}

/* removals(states, indptr, ids, until, numbers, offsets, data): what rows remove of the last feature in older layers
 *
 * A row removes all of it if its state is EMPTY, and some values, each up to a time, if it is VALUE. Ids are those
 * of numbers or of bytes. */
READER_METHOD(removals) {
    RowReader *self = (RowReader *)call->self;
    Array states, indptr, ids, until, numbers, offsets, data;
    if (take(call, "18488?8?1?.", &states, &indptr, &ids, &until, &numbers, &offsets, &data) < 0) return NULL;
    Feature *feature = self->num_features ? self->features + self->num_features - 1 : NULL;
    if (!feature || !feature->is_items || feature->removal_states || states.length != self->num_rows ||
        indptr.length != self->num_rows + 1 || ids.length != until.length || (offsets.data && !offsets.length))
        return refuse(DO_NOT_FIT);
    feature->removal_states = states.data;
    feature->removal_indptr = indptr.data;
    feature->removed_ids = ids.data;
    feature->until = until.data;
    feature->num_removed = ids.length;
    feature->removed = (Values){numbers.data, offsets.data, data.data, numbers.length, data.length};
    if (offsets.data) feature->removed.length = offsets.length - 1;
    return reader_done(self, call);
}
