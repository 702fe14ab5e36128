/* Reads of one entity from prepared rows: its row, the values of a feature in it, and answers as arrays.
 *
 * Nothing in a file makes them access other memory. A read that meets damage notes it and fails. */

#include <stdlib.h>

#include "prepared.h"

struct Block {
    Block *before;
    uint64_t memory[];
};

void *arena_get(Arena *arena, size_t size) {
    enum { BLOCK_SIZE = 1 << 16 };
    size = (size + 7) & ~(size_t)7;
    if (size > (size_t)(arena->stop - arena->next)) {
        size_t room = size > BLOCK_SIZE ? size : BLOCK_SIZE;
        Block *block = malloc(sizeof(Block) + room);
        if (!block) {
            fail(NO_MEMORY);
            return NULL;
        }
        block->before = arena->blocks;
        arena->blocks = block;
        arena->next = (uint8_t *)block->memory;
        arena->stop = arena->next + room;
    }
    void *memory = arena->next;
    arena->next += size;
    return memory;
}

void arena_free(Arena *arena) {
    while (arena->blocks) {
        Block *block = arena->blocks;
        arena->blocks = block->before;
        free(block);
    }
}

/* -- where an entity's row is ------------------------------------------------------------------------ */

/* Whether everything from a sample to the next one is intact; with samples of zeros, the lows as well. */
static int is_sample_checked(const CheckedAscending *checked, uint64_t sample) {
    if (!checked->highs.unchecked && !checked->lows.unchecked && !checked->samples.unchecked) return 1;
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

int64_t find_hashed(const Prepared *rows, uint64_t own) {
    uint64_t bucket = bucket_of(&rows->index, own);
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

int64_t find_exact(const Prepared *rows, const uint64_t *hash) { return find_hash(rows->hashes, rows->num_rows, hash); }

int64_t find_listed(const Layer *layer, const uint64_t *hash) { return find_hash(layer->hashes, layer->num_hashes, hash); }

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

int date_listed(const Prepared *rows, int64_t expire_before, Place *place) {
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

/* A row whose items expire one by one: FOUND, EXPIRED, ABSENT or FAILED. */
static int locate_lists(const Prepared *stack, const uint64_t *hash, Py_ssize_t first, Py_ssize_t end,
                        int64_t expire_before, Arena *arena, Place *place) {
    int status = locate_items(stack, hash, first, end, expire_before, arena, place);
    if (status != EXPIRED) return status;
    int found = has_items(place);
    return found == FAILED ? FAILED : found ? FOUND : EXPIRED;
}

int locate(const Prepared *stack, const uint64_t *hash, int64_t expire_before, Arena *arena, Place *place) {
    place->stack = stack;
    place->ids = NULL;
    place->num_pieces = 0;
    place->is_ambiguous = 0;
    place->hash = hash;
    place->limits = stack->limits;
    place->since = expire_before;
    place->limit = INT64_MAX;
    Py_ssize_t first = 0, end = stack->num_layers;
    if (stack->first_layers) {
        int64_t shard = shard_of(stack, hash);
        if (!stack->is_served[shard]) return fail(NOT_SERVED);
        first = stack->first_layers[shard];
        end = stack->first_layers[shard + 1];
    }
    if (stack->limits) return locate_lists(stack, hash, first, end, expire_before, arena, place);
    for (Py_ssize_t l = first; l < end; l++) {
        const Layer *layer = stack->layers + l;
        const Prepared *rows = layer->rows;
        if (layer->hashes) {
            int64_t listed = find_listed(layer, hash);
            if (listed == NO_ROW) continue;
            if (layer->deleted[listed]) return ABSENT;
        }
        place->layer = layer;
        place->row = rows->kind == EXACT      ? find_exact(rows, hash)
                     : rows->kind == SHAPED   ? find_shape(rows, hash, place)
                     : rows->kind == NUMBERED ? find_number(rows, hash, place)
                                              : find_hashed(rows, row_hash(hash, rows->salt));
        if (place->row == NO_ROW) {
            if (layer->hashes) return FAILED; /* a listed entity has no row */
            continue;
        }
        if (place->row < 0 || place->row >= rows->num_rows) return FAILED;
        if (rows->kind == SHAPED || rows->kind == NUMBERED) return date_shape(rows, expire_before, place);
        if (rows->kind == LISTED) return date_listed(rows, expire_before, place);
        if (rows->deleted[place->row]) return ABSENT;
        place->timestamp = rows->event_timestamps[place->row];
        return place->timestamp < expire_before ? EXPIRED : FOUND;
    }
    return ABSENT;
}

void expect(const Prepared *stack, const uint64_t *hash) {
    Py_ssize_t first = 0, end = stack->num_layers;
    if (stack->first_layers) {
        int64_t shard = shard_of(stack, hash);
        first = stack->first_layers[shard];
        end = stack->first_layers[shard + 1];
    }
    for (Py_ssize_t l = first; l < end; l++) {
        const Prepared *rows = stack->layers[l].rows;
        if (stack->layers[l].hashes) continue; /* few are in deltas */
        if (rows->kind == LISTED) expect_row(&rows->index, row_hash(hash, rows->salt));
        for (Py_ssize_t r = 0; r < rows->num_ranges; r++)
            if (rows->ranges[r].is_wanted) expect_symbols(rows->ranges[r].shapes, hash);
        for (Py_ssize_t f = 0; f < rows->num_features; f++)
            if (rows->features[f].form == IN_FILTER) expect_symbols(rows->features[f].symbols, hash);
    }
}

/* -- the values of features --------------------------------------------------------------------------- */

/* Reads all wanted sets of the row, once; 0 or FAILED. */
static int read_sets_of(Place *place, Arena *arena) {
    enum { EXPECTED_IDS = 256 };
    const Prepared *rows = place->layer->rows;
    const Sets *sets = &rows->sets;
    uint64_t first = get_checked(&rows->starts, place->row), stop = sets->num_bits;
    if (rows->code_blocks.unchecked) {
        if (place->row + 1 < rows->num_rows) stop = get_checked(&rows->starts, place->row + 1);
        if (first > stop || stop > sets->num_bits || !are_verified(&rows->code_blocks, first >> 6, (stop >> 6) + 1))
            return FAILED;
    }
    void *memory = arena_get(arena, room_for_row(&sets->codes));
    int64_t room = EXPECTED_IDS;
    int32_t *ids = arena_get(arena, (size_t)room * sizeof *ids);
    if (!memory || !ids) return FAILED;
    init_row(&place->sets, &sets->codes, memory);
    place->sets.marks = rows->marks;
    int64_t failed;
    while ((failed = read_row(sets, first, rows->last_set, &place->sets, ids, 0, room)) > 0) {
        room = 2 * failed;
        ids = arena_get(arena, (size_t)room * sizeof *ids);
        if (!ids) return FAILED;
    }
    if (failed) return FAILED;
    place->ids = ids;
    return 0;
}

static int read_set(Place *place, const Feature *feature, Arena *arena, Content *content) {
    if (!place->ids && read_sets_of(place, arena) < 0) return FAILED;
    int64_t no_set = place->layer->rows->sets.codes.of[feature->number].no_set;
    int64_t header = place->sets.headers[feature->number];
    content->state = header < no_set ? (int)header : header > no_set ? VALUE : EMPTY;
    content->count = header > no_set ? header - no_set : 0;
    int32_t *ids = place->ids + place->sets.ends[feature->number] - content->count;
    content->ids = ids;
    if (!feature->own_ids) return 0;
    int32_t *own = arena_get(arena, (size_t)content->count * sizeof *own);
    if (!own) return FAILED;
    content->ids = own;
    for (int64_t i = 0; i < content->count; i++) {
        own[i] = feature->own_ids[ids[i]];
        if (own[i] < 0) return FAILED;
    }
    return 0;
}

static int read_column(const Place *place, const Feature *feature, Arena *arena, Content *content) {
    uint64_t first = (uint64_t)place->row;
    int64_t state, start = place->row, stop = start + 1;
    if (get_number(&feature->states, first, &state) < 0) return FAILED;
    int64_t base = (int64_t)feature->states.base;
    if (state < base || state - base > VALUE || base < MISSING || base > VALUE) return FAILED;
    state = base + feature->state_step * (state - base);
    if (state > VALUE) return FAILED;
    content->state = (int)state;
    if (feature->has_bounds) {
        if (get_number(&feature->bounds, first, &start) < 0 || get_number(&feature->bounds, first + 1, &stop) < 0)
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
            if (get_number(&feature->elements, (uint64_t)i, &id) < 0 || id < 0 || id >= feature->values.length)
                return FAILED;
    } else if (feature->elements_are == AS_NUMBERS) {
        int64_t *numbers = arena_get(arena, count * sizeof *numbers);
        if (!numbers) return FAILED;
        content->numbers = numbers;
        for (int64_t i = start; i < stop; i++)
            if (get_number(&feature->elements, (uint64_t)i, numbers++) < 0) return FAILED;
    } else {
        Slice *slices = arena_get(arena, count * sizeof *slices);
        int64_t begin = 0, end;
        if (!slices) return FAILED;
        content->slices = slices;
        if (count && get_number(&feature->elements, (uint64_t)start, &begin) < 0) return FAILED;
        for (int64_t i = start; i < stop; i++, begin = end) {
            if (get_number(&feature->elements, (uint64_t)i + 1, &end) < 0 || begin < 0 || end < begin ||
                end > feature->num_content_bytes ||
                (end > begin && !are_verified(&feature->content_blocks, (uint64_t)begin >> 3, (uint64_t)(end - 1) >> 3)))
                return FAILED;
            *slices++ = (Slice){feature->content + begin, end - begin};
        }
    }
    return 0;
}

static int read_digits(const Place *place, const Feature *feature, Arena *arena, Content *content) {
    int64_t number;
    if (get_number(&feature->elements, (uint64_t)place->row, &number) < 0) return FAILED;
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

int read_exact(const Place *place, const Feature *feature, Content *content) {
    int64_t start = feature->indptr[place->row], stop = feature->indptr[place->row + 1];
    if (start < 0 || stop < start || stop > feature->num_ids) return FAILED;
    content->state = feature->row_states[place->row];
    content->count = stop - start;
    if (feature->form == IN_WEIGHTS) {
        content->numbers = feature->weights + start;
    } else {
        content->ids = feature->ids + start;
        content->weights = feature->weights ? feature->weights + start : NULL;
    }
    return content->state > VALUE ? FAILED : 0;
}

static int read_values(Place *place, const Feature *feature, Arena *arena, Content *content) {
    switch (feature->form) {
    case IN_SETS: return read_set(place, feature, arena, content);
    case IN_COLUMN: return read_column(place, feature, arena, content);
    case IN_DIGITS: return read_digits(place, feature, arena, content);
    case IN_ROWS: return read_exact(place, feature, content);
    case IN_FILTER: return read_filter(place, feature, arena, content);
    case IN_LISTS: return read_items(place, feature, arena, content);
    case IN_WEIGHTS: return read_exact(place, feature, content);
    case IN_NUMBER: return read_digit(place, feature, arena, content);
    case IN_ITEMS: return read_exact(place, feature, content);
    case IN_STATES: return (content->state = read_state(place, feature)) < 0 ? FAILED : 0;
    default: return 0;
    }
}

int read_content(Place *place, const Feature *feature, Arena *arena, Content *content) {
    *content = (Content){MISSING, 0, NULL, NULL, NULL, NULL};
    if (read_values(place, feature, arena, content) < 0) return FAILED;
    if (!feature->is_ones) return 0;
    int64_t *ones = arena_get(arena, (size_t)content->count * sizeof *ones);
    if (!ones) return FAILED;
    for (int64_t i = 0; i < content->count; i++) ones[i] = 1;
    *content = (Content){content->state, content->count, NULL, ones, NULL, NULL};
    return 0;
}

int read_feature(Place *place, Py_ssize_t f, const Feature **feature, Arena *arena, Content *content) {
    if (place->num_pieces) return read_together(place, f, feature, arena, content);
    *feature = place->layer->rows->features + f;
    return read_content(place, *feature, arena, content);
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

/* -- answers: False for an entity without a row --------------------------------------------------------- */

int take_question(Call *call, uint64_t *hash, int64_t *expire_before) {
    Array bytes;
    Py_ssize_t moment;
    if (((Prepared *)call->self)->kind != STACK) {
        refuse("there are no layers to read");
        return -1;
    }
    if (take(call, "1n", &bytes, &moment) < 0) return -1;
    if (bytes.length != 16) {
        refuse("a hash has 16 bytes");
        return -1;
    }
    memcpy(hash, bytes.data, 16);
    *expire_before = moment;
    return 0;
}

/* Makes the ids of a list distinct and ascending; 0 or FAILED. */
static int make_distinct(const Place *place, Arena *arena, Content *content) {
    if (!place->limits || !content->count || !content->ids) return 0;
    int32_t *ids = arena_get(arena, (size_t)content->count * sizeof *ids);
    if (!ids) return FAILED;
    memcpy(ids, content->ids, (size_t)content->count * sizeof *ids);
    content->count = distinct(ids, content->count);
    content->ids = ids;
    content->weights = NULL;
    return place->num_pieces ? spell_again(place, arena, content) : 0;
}

int ask(const Prepared *stack, const uint64_t *hash, int64_t expire_before, Arena *arena, Place *place,
               Content *content) {
    *content = (Content){MISSING, 0, NULL, NULL, NULL, NULL};
    int status = locate(stack, hash, expire_before, arena, place);
    if (status != FOUND) return status == FAILED ? FAILED : ABSENT;
    const Feature *feature;
    if (read_feature(place, 0, &feature, arena, content) < 0) return FAILED;
    return make_distinct(place, arena, content) < 0 ? FAILED : FOUND;
}

/* ids(hash, expire_before) -> bytearray of int32: the names of its ids. */
PREPARED_METHOD(ids) {
    uint64_t hash[2];
    int64_t expire_before;
    if (take_question(call, hash, &expire_before) < 0 || take(call, ".") < 0) return NULL;
    BEGIN_READ;
    if (status == ABSENT) return absent(&arena);
    if (status == FAILED || (content.count && !content.ids)) return failed_at(hash, &arena);
    PyObject *answer = NULL;
    if (content.count && place.layer->names) {
        int32_t *names = arena_get(&arena, (size_t)content.count * sizeof *names);
        int64_t count = 0;
        if (!names) return failed_at(hash, &arena);
        for (int64_t i = 0; i < content.count; i++) {
            int32_t name = name_of(place.layer, content.ids[i]);
            if (name == -2) return failed_at(hash, &arena);
            if (name >= 0) names[count++] = name;
        }
        if (place.limits) count = distinct(names, count); /* ascending */
        answer = PyByteArray_FromStringAndSize((const char *)names, (Py_ssize_t)(count * 4));
    } else {
        answer = PyByteArray_FromStringAndSize((const char *)content.ids, (Py_ssize_t)(content.count * 4));
    }
    arena_free(&arena);
    return answer;
}

/* score(hash, expire_before, weights) -> float: the sum of the weights, float64, of its ids. */
PREPARED_METHOD(score) {
    uint64_t hash[2];
    int64_t expire_before;
    Array weights;
    if (take_question(call, hash, &expire_before) < 0 || take(call, "8.", &weights) < 0) return NULL;
    BEGIN_READ;
    if (status == ABSENT) return absent(&arena);
    if (status == FAILED || (content.count && !content.ids)) return failed_at(hash, &arena);
    double sum = 0;
    for (int64_t i = 0; i < content.count; i++) {
        int32_t name = name_of(place.layer, content.ids[i]);
        if (name == -1) continue;
        if (name < 0 || name >= weights.length) return failed_at(hash, &arena);
        sum += ((const double *)weights.data)[name];
    }
    arena_free(&arena);
    return PyFloat_FromDouble(sum);
}
