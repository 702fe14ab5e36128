/* Lists, sets and counts of an entity with items in several layers: unsealed rows over sealed ones.
 *
 * rows/lists.py defines how they add up. The values of a set are items whose times are all 0; counted ones have counts in
 * place of times. Values are numbered as they are met, because each layer has its own vocabulary. */

#include <stdlib.h>

#include "row_reader.h"

/* -- their items ------------------------------------------------------------------------------------- */

/* The items of one row that are not too old, newest first. Ids of its layer are replaced by numbers of values met. */
typedef struct {
    const Layer *layer;
    const Feature *feature;
    int64_t row, count, next;
    int32_t *ids;
    const int64_t *times;
    const uint8_t *codes; /* NULL if no attribute is wanted */
    int is_cut; /* whether older items than the last may be missing */
} Run;

/* The values met so far, each with a number. */
typedef struct {
    int64_t *numbers; /* or slices, */
    Slice *slices;
    int32_t *names; /* of each in answers; NULL if ids have no common names */
    int64_t *last_tick, *last_item; /* in which it was shown */
    int32_t *removals;  /* its last removal, or -1 */
    int32_t *slots;     /* of a hash table, with numbers of values, or -1 */
    uint64_t last_slot, seed;
    int64_t count;
} Met;

/* A value that the row of a run removes from older rows, and the value's removal before this one, or -1. */
typedef struct {
    int64_t until;
    int run;
    int32_t before;
} Removal;

/* Reads the values of a sealed set; 0 or FAILED. */
static int begin_set(Place *place, Run *run, Arena *arena, int *state) {
    Place own = *place, *alone = &own;
    Content content = {.state = MISSING};
    own.layer = run->layer;
    own.row = run->row;
    own.num_pieces = 0;
    if (own.layer->rows->num_sets && !own.sets && sets_read(own.layer->rows, &alone, 1, arena) < 0) return FAILED;
    place->sets = own.sets; /* of all features: an entity is in one sealed layer */
    if (run->feature->read(&own, run->feature, arena, &content) < 0 || (content.count && !content.ids)) return FAILED;
    size_t size = (size_t)content.count * sizeof *run->ids;
    int64_t *times = arena_get(arena, (size_t)content.count * sizeof *times);
    run->ids = arena_get(arena, size);
    if (!run->ids || !times) return FAILED;
    if (size) memcpy(run->ids, content.ids, size);
    memset(times, 0, (size_t)content.count * sizeof *times);
    run->times = times;
    run->count = content.count;
    *state = content.state;
    return 0;
}

/* Takes the times of a run and the codes in their low bits apart; 0 or FAILED. */
static int split_stamps(Run *run, int bits, Arena *arena) {
    int64_t *times = arena_get(arena, (size_t)run->count * sizeof *times);
    uint8_t *codes = arena_get(arena, (size_t)run->count);
    if (!times || !codes) return FAILED;
    for (int64_t i = 0; i < run->count; i++) {
        times[i] = run->times[i] >> bits;
        codes[i] = (uint8_t)(run->times[i] & ((1 << bits) - 1));
    }
    run->times = times;
    run->codes = codes;
    return 0;
}

/* Reads the items of a run; 0 or FAILED. */
static int begin_run(Place *place, Py_ssize_t f, Run *run, Arena *arena, int *state) {
    const Feature *feature = run->feature;
    run->count = run->next = 0;
    *state = MISSING;
    if (!feature->read) return 0;
    if (feature->code.tables) {
        Content content = {.state = MISSING};
        int64_t *times;
        uint8_t *codes;
        if (!feature->counts != !items_are_counted(place->stack, f) ||
            items_read(place, run->layer, run->row, feature, arena, &content, &times, &codes) < 0)
            return FAILED;
        *state = content.state;
        run->count = content.count;
        run->is_cut = content.is_cut;
        run->ids = (int32_t *)content.ids;
        run->times = times;
        run->codes = codes;
        return 0;
    }
    int has_times = items_are_timed(place->stack, f), is_counted = items_are_counted(place->stack, f);
    if (!feature->is_items) return has_times || is_counted ? FAILED : begin_set(place, run, arena, state);
    int64_t start = feature->indptr[run->row], stop = feature->indptr[run->row + 1];
    if (start < 0 || stop < start || stop > feature->num_ids) return FAILED;
    *state = feature->row_states[run->row];
    if (*state > VALUE) return FAILED;
    int bits = feature->attribute.code_bits;
    int64_t resolution = place->stack->resolutions[f];
    if (has_times && place->until != INT64_MAX) { /* as of sealed items, only the ticks before that of `until` */
        int64_t too_new = floor_of(place->until, resolution) * resolution;
        while (start < stop && feature->weights[start] >> bits >= too_new) start++;
    }
    run->times = feature->weights + start;
    if (!has_times) run->count = stop - start;
    while (run->count < stop - start && run->times[run->count] >> bits >= place->since) run->count++;
    run->ids = arena_get(arena, (size_t)run->count * sizeof *run->ids);
    if (!run->ids) return FAILED;
    if (run->count) memcpy(run->ids, feature->ids + start, (size_t)run->count * sizeof *run->ids);
    return bits ? split_stamps(run, bits, arena) : 0;
}

/* Memory for at most this many values; 0 or FAILED. */
static int begin_met(Met *met, const RowReader *stack, const Values *values, int64_t most, Arena *arena) {
    uint64_t size = 16;
    while (size < 2 * (uint64_t)most) size *= 2;
    memset(met, 0, sizeof *met);
    met->seed = stack->seed;
    met->last_slot = size - 1;
    met->slots = arena_get(arena, (size_t)size * sizeof *met->slots);
    met->last_tick = arena_get(arena, (size_t)most * sizeof *met->last_tick);
    met->last_item = arena_get(arena, (size_t)most * sizeof *met->last_item);
    met->removals = arena_get(arena, (size_t)most * sizeof *met->removals);
    if (values->numbers)
        met->numbers = arena_get(arena, (size_t)most * sizeof *met->numbers);
    else
        met->slices = arena_get(arena, (size_t)most * sizeof *met->slices);
    if (stack->is_named) met->names = arena_get(arena, (size_t)most * sizeof *met->names);
    if (!met->slots || !met->last_tick || !met->last_item || !met->removals || !(met->numbers || met->slices) ||
        (stack->is_named && !met->names))
        return FAILED;
    memset(met->slots, 0xff, (size_t)size * sizeof *met->slots);
    return 0;
}

/* The slot of a value: with its number, or an empty one. -1 if there is no such id. */
static int64_t slot_of(const Met *met, const Values *values, int64_t id, int64_t *number, Slice *slice) {
    int32_t known;
    uint64_t slot;
    if (id < 0 || id >= values->length) return -1;
    if (met->numbers) {
        if (!values->numbers) return -1;
        *number = values->numbers[id];
        slot = mix64((uint64_t)*number ^ met->seed) & met->last_slot;
        while ((known = met->slots[slot]) >= 0 && met->numbers[known] != *number) slot = (slot + 1) & met->last_slot;
        return (int64_t)slot;
    }
    if (!values->offsets) return -1;
    int64_t start = values->offsets[id], stop = values->offsets[id + 1];
    if (start < 0 || stop < start || stop > values->num_bytes) return -1;
    *slice = (Slice){values->data + start, stop - start};
    slot = hash_bytes(slice->bytes, slice->length, met->seed) & met->last_slot;
    while ((known = met->slots[slot]) >= 0 && (met->slices[known].length != slice->length ||
                                               !are_equal(met->slices[known].bytes, slice->bytes, slice->length)))
        slot = (slot + 1) & met->last_slot;
    return (int64_t)slot;
}

/* Replaces the ids of a run by the numbers of their values; 0 or FAILED. */
static int meet(Met *met, Run *run) {
    const Values *values = &run->feature->values;
    for (int64_t i = 0; i < run->count; i++) {
        int64_t number = 0;
        Slice slice = {NULL, 0};
        int64_t slot = slot_of(met, values, run->ids[i], &number, &slice);
        if (slot < 0) return FAILED;
        int32_t known = met->slots[slot];
        if (known < 0) {
            known = met->slots[slot] = (int32_t)met->count++;
            if (met->numbers)
                met->numbers[known] = number;
            else
                met->slices[known] = slice;
            met->last_tick[known] = INT64_MAX; /* later than any */
            met->removals[known] = -1;
            if (met->names && (met->names[known] = layer_name(run->layer, run->ids[i])) == -2) return FAILED;
        }
        run->ids[i] = known;
    }
    return 0;
}

/* Notes which values met so far the row of a run removes; 0 or FAILED. */
static int note_removals(Met *met, const Run *run, int number, Removal *removals, int32_t *count) {
    const Feature *feature = run->feature;
    if (!feature->removal_states || feature->removal_states[run->row] != VALUE) return 0;
    for (int64_t i = feature->removal_indptr[run->row]; i < feature->removal_indptr[run->row + 1]; i++) {
        int64_t known;
        Slice slice;
        int64_t slot = slot_of(met, &feature->removed, feature->removed_ids[i], &known, &slice);
        if (slot < 0) return FAILED;
        int32_t value = met->slots[slot];
        if (value < 0) continue;
        removals[*count] = (Removal){feature->until[i] >> feature->attribute.code_bits, number, met->removals[value]};
        met->removals[value] = (*count)++;
    }
    return 0;
}

/* The number of values that the row of a run removes; -1 if it cannot be read. */
static int64_t num_removals(const Run *run) {
    const Feature *feature = run->feature;
    if (!feature->removal_states) return 0;
    int64_t start = feature->removal_indptr[run->row], stop = feature->removal_indptr[run->row + 1];
    return start < 0 || stop < start || stop > feature->num_removed ? -1 : stop - start;
}

static int is_removed(const Met *met, const Removal *removals, int32_t value, int run, int64_t time) {
    for (int32_t r = met->removals[value]; r >= 0; r = removals[r].before)
        if (removals[r].run < run && time <= removals[r].until) return 1;
    return 0;
}

/* Merges the items of runs in the order of their times, each value once in a tick, and returns their number. Of equal
 * times those of the newest row come first. `codes`, unless NULL, receives the highest code of each value in a tick. */
static int64_t merge(Run *runs, int number, const Met *met, const Removal *removals, int64_t resolution, int64_t limit,
                     int32_t *values, int64_t *times, uint8_t *codes) {
    int64_t count = 0;
    while (count < limit || codes) {
        int best = -1;
        for (int r = 0; r < number; r++)
            if (runs[r].next < runs[r].count &&
                (best < 0 || runs[r].times[runs[r].next] > runs[best].times[runs[best].next]))
                best = r;
        if (best < 0) break;
        int64_t time = runs[best].times[runs[best].next], tick = floor_of(time, resolution);
        if (count == limit && (!count || tick < floor_of(times[count - 1], resolution))) break;
        int64_t own = runs[best].next++;
        int32_t value = runs[best].ids[own];
        if (is_removed(met, removals, value, best, time)) continue;
        if (met->last_tick[value] == tick) {
            uint8_t *code = codes ? codes + met->last_item[value] : NULL;
            if (code && *code < runs[best].codes[own]) *code = runs[best].codes[own];
            continue;
        }
        if (count == limit) continue; /* further codes of its tick may count */
        if (codes) codes[count] = runs[best].codes[own];
        met->last_tick[value] = tick;
        met->last_item[value] = count;
        values[count] = value;
        times[count++] = time;
    }
    return count;
}

/* Adds up the counts of the values of runs, and returns the number of values. */
static int64_t add_up(const Run *runs, int number, const Met *met, const Removal *removals, int32_t *values,
                      int64_t *counts) {
    const int64_t most = 1ll << 53; /* as in rows/counting.py */
    int64_t count = 0;
    memset(counts, 0, (size_t)met->count * sizeof *counts);
    for (int r = 0; r < number; r++)
        for (int64_t i = 0; i < runs[r].count; i++) {
            int32_t value = runs[r].ids[i];
            int64_t own = runs[r].times[i];
            if (is_removed(met, removals, value, r, 0)) continue;
            counts[value] += own < most - counts[value] ? own : most - counts[value];
        }
    for (int32_t value = 0; value < met->count; value++) {
        if (counts[value] <= 0) continue;
        counts[count] = counts[value];
        values[count++] = value;
    }
    return count;
}

/* Whether items missing after the end of a run might belong between merged ones, or after them. */
static int is_cut(const Run *runs, int number, int64_t limit, const int64_t *times, int64_t count) {
    for (int r = 0; r < number; r++) {
        if (!runs[r].is_cut || runs[r].next < runs[r].count) continue;
        if (count < limit || !runs[r].count || times[count - 1] < runs[r].times[runs[r].count - 1]) return 1;
    }
    return 0;
}

/* Replaces the numbers of values by the elements; 0 or FAILED. */
static int spell(const Met *met, int32_t *values, int64_t count, Arena *arena, Content *content) {
    int64_t *numbers = NULL;
    Slice *slices = NULL;
    if (met->numbers)
        numbers = arena_get(arena, (size_t)count * sizeof *numbers);
    else
        slices = arena_get(arena, (size_t)count * sizeof *slices);
    if (!numbers && !slices) return FAILED;
    for (int64_t i = 0; i < count; i++) {
        if (numbers)
            numbers[i] = met->numbers[values[i]];
        else
            slices[i] = met->slices[values[i]];
    }
    content->numbers = numbers;
    content->slices = slices;
    content->ids = met->names ? values : NULL;
    return 0;
}

/* Opens the runs of a feature, down to one that replaces those before it. Returns their number, or FAILED. */
static int begin_runs(Place *place, Py_ssize_t f, Run *runs, Arena *arena, int *state, int64_t *most) {
    int number = 0, is_replaced = 0;
    *state = MISSING;
    for (; number < place->num_pieces && !is_replaced; number++) {
        const Piece *piece = place->pieces + number;
        Run *run = runs + number;
        int own;
        *run = (Run){.layer = piece->layer, .feature = piece->layer->rows->features + f, .row = piece->row};
        if (begin_run(place, f, run, arena, &own) < 0) return FAILED;
        is_replaced =
            place->num_pieces > 1 && run->feature->removal_states && run->feature->removal_states[run->row] == EMPTY;
        if (own > *state) *state = own;
        *most += run->count;
    }
    if (is_replaced && *state < EMPTY) *state = EMPTY;
    return number;
}

int items_merge(Place *place, Py_ssize_t f, const Feature **feature, Arena *arena, Content *content) {
    Met met;
    Run *runs = arena_get(arena, (size_t)place->num_pieces * sizeof *runs);
    if (!runs) return FAILED;
    const RowReader *stack = place->stack;
    int64_t most = 0, capacity = 0;
    int state, number = begin_runs(place, f, runs, arena, &state, &most);
    if (number < 1 || most >= INT32_MAX) return FAILED;
    *content = (Content){.state = state};
    *feature = runs[0].feature;
    for (int r = 0; r < number; r++) { /* take the feature from a layer that has it */
        if (!(*feature)->read) *feature = runs[r].feature;
        if (runs[r].count && (*feature)->attribute.is_wanted && !runs[r].codes) return FAILED;
        int64_t removed = num_removals(runs + r);
        if (removed < 0) return FAILED;
        capacity += removed;
    }
    int64_t limit = stack->limits[f] < place->limit ? stack->limits[f] : place->limit;
    int64_t wanted = limit;
    if (limit > most || items_are_counted(stack, f)) limit = most;
    Removal *removals = arena_get(arena, (size_t)capacity * sizeof *removals);
    int32_t *values = arena_get(arena, (size_t)limit * sizeof *values), noted = 0;
    int64_t *times = arena_get(arena, (size_t)limit * sizeof *times);
    uint8_t *codes = (*feature)->attribute.is_wanted ? arena_get(arena, (size_t)limit) : NULL;
    if (!removals || !values || !times || ((*feature)->attribute.is_wanted && !codes) || capacity >= INT32_MAX)
        return FAILED;
    if (begin_met(&met, stack, &(*feature)->values, most, arena) < 0) return FAILED;
    for (int r = 0; r < number; r++)
        if (meet(&met, runs + r) < 0) return FAILED;
    for (int r = 0; r < number; r++)
        if (note_removals(&met, runs + r, r, removals, &noted) < 0) return FAILED;
    content->count = items_are_counted(stack, f)
                         ? add_up(runs, number, &met, removals, values, times)
                         : merge(runs, number, &met, removals, stack->resolutions[f], limit, values, times, codes);
    content->is_cut = is_cut(runs, number, wanted, times, content->count);
    if (state == VALUE && !content->count) content->state = EMPTY;
    if (codes && attribute_elements(&(*feature)->attribute, codes, times, arena, content) < 0) return FAILED;
    if ((*feature)->attribute.values.length) return 0;
    if ((*feature)->unit) {
        for (int64_t i = 0; i < content->count; i++) times[i] = floor_of(times[i], (*feature)->unit);
        content->numbers = times;
        return 0;
    }
    content->weights = stack->resolutions[f] != INT64_MAX ? times : NULL;
    place->together.names = met.names;
    place->together.num_names = met.count;
    place->spelled_numbers = met.numbers;
    place->spelled_slices = met.slices;
    return spell(&met, values, content->count, arena, content);
}

static int compare(const void *a, const void *b) {
    int32_t one = *(const int32_t *)a, other = *(const int32_t *)b;
    return (one > other) - (one < other);
}

int64_t ids_make_distinct(int32_t *ids, int64_t count) {
    int64_t kept = 0;
    qsort(ids, (size_t)count, sizeof *ids, compare);
    for (int64_t i = 0; i < count; i++)
        if (!kept || ids[kept - 1] != ids[i]) ids[kept++] = ids[i];
    return kept;
}

int content_make_distinct(const Place *place, Arena *arena, Content *content) {
    if (!content->count || !content->ids) return 0;
    int32_t *ids = arena_get(arena, (size_t)content->count * sizeof *ids);
    if (!ids) return FAILED;
    memcpy(ids, content->ids, (size_t)content->count * sizeof *ids);
    content->count = ids_make_distinct(ids, content->count);
    content->ids = ids;
    content->weights = NULL;
    if (!place->num_pieces) return 0;
    Met met; /* look the values of these ids up again */
    memset(&met, 0, sizeof met);
    met.numbers = (int64_t *)place->spelled_numbers;
    met.slices = (Slice *)place->spelled_slices;
    met.names = (int32_t *)place->together.names;
    return spell(&met, ids, content->count, arena, content);
}

/* -- where they are -------------------------------------------------------------------------------------- */

/* Whether any list of a place has items; FAILED if that cannot be read. */
static int has_items(Place *place) {
    int64_t limit = place->limit;
    int is_found = 0;
    place->limit = 1;
    for (Py_ssize_t f = 0; !is_found && f < place->layer->rows->num_features; f++) {
        if (!items_are_timed(place->stack, f)) continue;
        Arena arena;
        Content content = {.state = MISSING};
        const Feature *feature = place->layer->rows->features + f;
        arena_init(&arena);
        int status = place->num_pieces ? items_merge(place, f, &feature, &arena, &content)
                     : feature->read   ? feature->read(place, feature, &arena, &content)
                                       : 0;
        arena_free(&arena);
        if (status < 0) return FAILED;
        is_found = content.count > 0;
    }
    place->limit = limit;
    return is_found;
}

/* The row of an entity in one layer, and its timestamp: FOUND, EXPIRED, ABSENT or FAILED. A deletion is ABSENT. `is_last`
 * says whether older layers have nothing to add. */
static int find_piece(const Layer *layer, const uint64_t *hash, int64_t expire_before, Place *place, int *is_last) {
    const RowReader *rows = layer->rows;
    *is_last = 0;
    place->row = rows->find(rows, hash, place);
    if (place->row == NO_ROW) return ABSENT;
    if (place->row < 0 || place->row >= rows->num_rows) return FAILED;
    if (rows->kind == EXACT) {
        if (!rows->delete_barriers) return FAILED;
        *is_last = rows->delete_barriers[place->row];
    }
    place->layer = layer;
    return rows->date(rows, expire_before, place);
}

int items_locate(const RowReader *stack, const uint64_t *hash, Py_ssize_t first, Py_ssize_t end, int64_t expire_before,
                 Arena *arena, Place *place) {
    int64_t newest = INT64_MIN;
    int is_last = 0, is_alive = 0;
    place->is_dated = 1; /* the newest of them counts */
    place->pieces = arena_get(arena, (size_t)(end - first) * sizeof *place->pieces);
    if (!place->pieces) return FAILED;
    for (Py_ssize_t l = first; l < end && !is_last; l++) {
        int status = find_piece(stack->layers + l, hash, expire_before, place, &is_last);
        if (status == FAILED) return FAILED;
        if (status == ABSENT) continue;
        is_alive |= status == FOUND;
        place->pieces[place->num_pieces++] = (Piece){stack->layers + l, place->row};
        if (place->timestamp > newest) newest = place->timestamp;
    }
    place->timestamp = newest;
    if (newest == INT64_MIN) return ABSENT; /* no rows, or rows that only remove, which do not count as a row */
    place->layer = place->pieces[0].layer;
    place->row = place->pieces[0].row;
    if (place->num_pieces == 1 && place->layer->rows->kind != EXACT) {
        place->num_pieces = 0;
    } else {
        place->together = (Layer){place->layer->rows, NULL, 0, NULL, NULL, 0};
        place->layer = &place->together;
    }
    if (is_alive) return FOUND;
    int found = has_items(place); /* which expire one by one */
    return found == FAILED ? FAILED : found ? FOUND : EXPIRED;
}
