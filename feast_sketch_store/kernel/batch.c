/* Reads of many entities from prepared rows in one call. Rows are looked up in groups, so that cache misses overlap.
 * Several sets are decoded at once, because a code can be read only after the one before it. */

#include <stdlib.h>

#include "prepared.h"

enum { BLOCK = 128, LANES = 4 };

/* A set to be decoded: `bit` is where its codes begin, and then the bit after them. */
typedef struct {
    uint64_t bit;
    int64_t size;
    int32_t *ids;
} Job;

/* The state of a set with `left` codes still to be read. */
typedef struct {
    uint64_t bit;
    int64_t next, left;
    int32_t *ids;
    Job *job;
} Lane;

/* The results of `width_of_gap`, by the difference of two levels. */
enum { NUM_LEVELS = 256 };
static uint8_t widths_of_gaps[2 * NUM_LEVELS];

static void prepare_widths(void) {
    for (int i = 0; i < 2 * NUM_LEVELS; i++) {
        int width = (i - NUM_LEVELS) >> 2;
        widths_of_gaps[i] = (uint8_t)(width < 0 ? 0 : width > MAX_WIDTH ? MAX_WIDTH : width);
    }
}

enum { LONGEST_CODE = 57 };

static ALWAYS_INLINE uint64_t read_number(const uint8_t *bytes, uint64_t *bit, uint32_t width) {
    uint64_t code;
    memcpy(&code, bytes + (*bit >> 3), sizeof code);
    code >>= *bit & 7; /* the longest code fits the bits that are left */
    uint32_t quotient = LOWEST(~code | 1ull << 63);
    if (quotient >= LONGEST_UNARY) {
        *bit += LONGEST_UNARY + 32;
        return code >> LONGEST_UNARY & 0xFFFFFFFF;
    }
    *bit += quotient + 1 + width;
    return (uint64_t)quotient << width | (code >> (quotient + 1) & ((1ull << width) - 1));
}

/* Reads the codes of one lane until this many are left; -1 if they are damaged. */
static ALWAYS_INLINE int read_until(const Sets *sets, const Code *code, Lane *lane, int64_t left) {
    const uint8_t *bytes = (const uint8_t *)sets->words;
    for (; lane->left > left; lane->left--) {
        if (lane->bit > sets->num_bits || lane->next >= code->num_symbols) return -1;
        lane->next += (int64_t)read_number(bytes, &lane->bit, (uint32_t)width_of_gap(code, lane->next, lane->left));
        *lane->ids++ = (int32_t)lane->next++;
    }
    return 0;
}

/* Begins a set, and reads those codes of a long set for which lanes have no widths. */
static ALWAYS_INLINE int begin(const Sets *sets, const Code *code, Lane *lane, Job *job) {
    *lane = (Lane){job->bit, 0, job->size, job->ids, job};
    return job->size < NUM_TOLD ? 0 : read_until(sets, code, lane, NUM_TOLD - 1);
}

/* The next code of a lane, whose number is constant here. */
#define READ_GAP(LANE, K)                                                                                       \
    if (next[LANE] >= num_symbols) return -1;                                                                   \
    next[LANE] += (int64_t)read_number(bytes, bit + LANE, width_of[(int)levels[next[LANE]] - (int)left[LANE][-(K)]]); \
    ids[LANE][K] = (int32_t)next[LANE]++;

/* Reads the same number of codes of each lane, in turns, so that no lane waits for another. -1 if one is damaged. */
static ALWAYS_INLINE int read_in_turns(const uint8_t *bytes, const Code *code, Lane *lanes, int64_t number) {
    const uint8_t *levels = code->levels, *width_of = widths_of_gaps + NUM_LEVELS, *left[LANES];
    const int64_t num_symbols = code->num_symbols;
    uint64_t bit[LANES];
    int64_t next[LANES];
    int32_t *ids[LANES];
    for (int i = 0; i < LANES; i++)
        bit[i] = lanes[i].bit, next[i] = lanes[i].next, ids[i] = lanes[i].ids, left[i] = code->left + lanes[i].left;
    for (int64_t k = 0; k < number; k++) {
        READ_GAP(0, k)
        READ_GAP(1, k)
        READ_GAP(2, k)
        READ_GAP(3, k)
    }
    for (int i = 0; i < LANES; i++)
        lanes[i].bit = bit[i], lanes[i].next = next[i], lanes[i].ids += number, lanes[i].left -= number;
    return 0;
}

/* How many codes of each lane can be read without a check for the end of the words. */
static ALWAYS_INLINE int64_t fewest_left(const Sets *sets, const Lane *lanes) {
    int64_t fewest = INT64_MAX;
    for (int i = 0; i < LANES; i++) {
        int64_t left = lanes[i].left;
        if (lanes[i].bit > sets->num_bits) return 0;
        if (left > (int64_t)((sets->num_bits - lanes[i].bit) / LONGEST_CODE)) left = 0;
        if (left < fewest) fewest = left;
    }
    return fewest;
}

/* Decodes non-empty sets of one feature that are coded by themselves; -1 if one is damaged. */
#define DECODE(NAME)                                                                                            \
    static int NAME(const Sets *sets, const Code *code, Job *jobs, Py_ssize_t number) {                         \
        Lane lanes[LANES];                                                                                      \
        Py_ssize_t taken = 0;                                                                                   \
        int busy = 0;                                                                                           \
        for (; busy < LANES && taken < number; busy++)                                                          \
            if (begin(sets, code, lanes + busy, jobs + taken++) < 0) return -1;                                 \
        for (int64_t all; busy == LANES && (all = fewest_left(sets, lanes)) > 0;) {                             \
            if (read_in_turns((const uint8_t *)sets->words, code, lanes, all) < 0) return -1;                   \
            for (int i = 0; i < busy;) {                                                                        \
                if (lanes[i].left) {                                                                            \
                    i++;                                                                                        \
                    continue;                                                                                   \
                }                                                                                               \
                if (lanes[i].next > code->num_symbols) return -1;                                               \
                lanes[i].job->bit = lanes[i].bit;                                                               \
                if (taken == number)                                                                            \
                    lanes[i] = lanes[--busy];                                                                   \
                else if (begin(sets, code, lanes + i++, jobs + taken++) < 0)                                    \
                    return -1;                                                                                  \
            }                                                                                                   \
        }                                                                                                       \
        for (int i = 0;; i++) {                                                                                 \
            if (i >= busy) {                                                                                    \
                if (taken == number) return 0;                                                                  \
                if (begin(sets, code, lanes + (i = 0), jobs + taken++) < 0) return -1;                          \
                busy = 1;                                                                                       \
            }                                                                                                   \
            if (read_until(sets, code, lanes + i, 0) < 0 || lanes[i].next > code->num_symbols) return -1;       \
            lanes[i].job->bit = lanes[i].bit;                                                                   \
        }                                                                                                       \
    }

/* There is a second version for processors with shifts that keep the flags; one is chosen when the module is loaded. */
DECODE(decode_anywhere)
static int (*decode)(const Sets *, const Code *, Job *, Py_ssize_t) = decode_anywhere;

#if defined(__x86_64__) && defined(__GNUC__)
__attribute__((target("bmi,bmi2"))) DECODE(decode_bmi2)

void kernel_choose_decoder(void) {
    prepare_widths();
    __builtin_cpu_init();
    if (__builtin_cpu_supports("bmi2")) decode = decode_bmi2;
}
#else
void kernel_choose_decoder(void) { prepare_widths(); }
#endif

/* -- where the rows are ------------------------------------------------------------------------------ */

static int has_unchecked(const Blocks *blocks) {
    uint8_t marks = 0;
    for (uint64_t b = 0; blocks->unchecked && b < blocks->number; b++) marks |= blocks->unchecked[b];
    return marks;
}

static int are_all_checked(const CheckedAscending *checked) {
    return !has_unchecked(&checked->highs) && !has_unchecked(&checked->lows) && !has_unchecked(&checked->samples);
}

/* The rows of some entities; `layer` is NULL for an entity without a row, or with a withheld one. */
typedef struct {
    const Layer *layer[BLOCK];
    int64_t row[BLOCK];
    uint64_t own[BLOCK]; /* hashes of rows */
    int is_done[BLOCK];
} Rows;

static int locate_listed(const Layer *layer, const uint64_t *hashes, Py_ssize_t n, int64_t expire_before, Rows *found) {
    const Prepared *rows = layer->rows;
    int is_checked = are_all_checked(&rows->fingerprints);
    for (Py_ssize_t i = 0; i < n; i++) {
        found->own[i] = row_hash(hashes + 2 * i, rows->salt);
        expect_row(&rows->index, found->own[i]);
    }
    for (Py_ssize_t i = 0; i < n; i++) {
        if (found->is_done[i]) continue;
        int64_t row = is_checked ? find_row(&rows->index, found->own[i]) : find_hashed(rows, found->own[i]);
        if (row == NO_ROW) continue;
        if (row < 0 || row >= rows->num_rows) return FAILED;
        found->is_done[i] = 1;
        found->row[i] = row;
        found->layer[i] = layer;
        if (expire_before == INT64_MIN) continue;
        Place place;
        place.layer = layer;
        place.row = row;
        int status = date_listed(rows, expire_before, &place);
        if (status == FAILED) return FAILED;
        if (status != FOUND) found->layer[i] = NULL;
    }
    return 0;
}

static void locate_exact(const Layer *layer, const uint64_t *hashes, Py_ssize_t n, int64_t expire_before, Rows *found) {
    const Prepared *rows = layer->rows;
    for (Py_ssize_t i = 0; i < n; i++) {
        if (found->is_done[i]) continue;
        int64_t row = find_exact(rows, hashes + 2 * i);
        if (row == NO_ROW) continue;
        found->is_done[i] = 1;
        found->row[i] = row;
        if (!rows->deleted[row] && rows->event_timestamps[row] >= expire_before) found->layer[i] = layer;
    }
}

/* Until the end, entities that are not in the list of a delta count as done. */
static int locate_in_delta(const Layer *layer, const uint64_t *hashes, Py_ssize_t n, int64_t expire_before, Rows *found) {
    enum { OF_OTHERS = 2 };
    uint8_t is_wanted[BLOCK];
    for (Py_ssize_t i = 0; i < n; i++) {
        is_wanted[i] = 0;
        if (found->is_done[i]) continue;
        int64_t listed = find_listed(layer, hashes + 2 * i);
        is_wanted[i] = listed != NO_ROW && !layer->deleted[listed];
        if (!is_wanted[i]) found->is_done[i] = listed == NO_ROW ? OF_OTHERS : 1;
    }
    if (locate_listed(layer, hashes, n, expire_before, found) < 0) return FAILED;
    for (Py_ssize_t i = 0; i < n; i++) {
        if (is_wanted[i] && !found->is_done[i]) return FAILED; /* a listed entity has no row */
        if (found->is_done[i] == OF_OTHERS) found->is_done[i] = 0;
    }
    return 0;
}

static int locate_all(const Prepared *stack, const uint64_t *hashes, Py_ssize_t n, int64_t expire_before, Rows *found) {
    memset(found->is_done, 0, sizeof found->is_done);
    memset(found->layer, 0, sizeof found->layer);
    for (Py_ssize_t l = 0; l < stack->num_layers; l++) {
        const Layer *layer = stack->layers + l;
        if (layer->rows->kind == EXACT)
            locate_exact(layer, hashes, n, expire_before, found);
        else if ((layer->hashes ? locate_in_delta(layer, hashes, n, expire_before, found)
                                : locate_listed(layer, hashes, n, expire_before, found)) < 0)
            return FAILED;
    }
    return 0;
}

/* -- their values ------------------------------------------------------------------------------------ */

/* Ids of rows, one row after the other; they may move when they grow. */
typedef struct {
    int32_t *ids;
    int64_t length, room;
} Ids;

/* Makes room for this many more; -1 if there is none. */
static int make_room(Ids *ids, int64_t number, Py_ssize_t rows_left) {
    if (number <= ids->room - ids->length) return 0;
    int64_t room = ids->length + number * (1 + rows_left / BLOCK); /* estimated from the rows so far */
    if (room > PY_SSIZE_T_MAX / 8) return fail(NO_MEMORY);
    int32_t *moved = realloc(ids->ids, (size_t)room * sizeof *moved);
    if (!moved) return fail(NO_MEMORY);
    ids->ids = moved;
    ids->room = room;
    return 0;
}

/* Whether the sets of a feature, and of those before it, are coded by themselves. */
static int is_decodable(const Feature *feature, const Sets *sets) {
    for (Py_ssize_t f = 0; f <= feature->number; f++)
        if (sets->codes.of[f].others_width >= 0) return 0;
    return 1;
}

/* Reads the headers of the sets of a feature, one per job, and decodes the sets that are not empty. */
static int read_headers(const Sets *sets, const Code *code, Job *jobs, Py_ssize_t number) {
    for (Py_ssize_t i = 0; i < number; i++) {
        if (jobs[i].bit > sets->num_bits) return FAILED;
        int64_t header = (int64_t)read_number((const uint8_t *)sets->words, &jobs[i].bit, (uint32_t)code->header_width);
        jobs[i].size = header < code->no_set ? 0 : header - code->no_set;
        if (jobs[i].size > code->num_symbols) return FAILED;
    }
    return 0;
}

/* Decodes the non-empty sets among some sets. */
static int decode_all(const Sets *sets, const Code *code, Job *jobs, Py_ssize_t number) {
    Job some[BLOCK];
    Py_ssize_t places[BLOCK], count = 0;
    for (Py_ssize_t i = 0; i < number; i++)
        if (jobs[i].size) places[count] = i, some[count++] = jobs[i];
    if (decode(sets, code, some, count) < 0) return FAILED;
    for (Py_ssize_t k = 0; k < count; k++) jobs[places[k]].bit = some[k].bit;
    return 0;
}

/* Skips the sets of a feature. Their ids are overwritten by the wanted ones, which come next. */
static int pass(const Sets *sets, const Code *code, Job *jobs, Py_ssize_t number, Ids *ids) {
    int64_t total = 0;
    for (Py_ssize_t i = 0; i < number; i++) total += jobs[i].size;
    if (make_room(ids, total, 0) < 0) return FAILED;
    int32_t *place = ids->ids + ids->length;
    for (Py_ssize_t i = 0; i < number; place += jobs[i++].size) jobs[i].ids = place;
    return decode_all(sets, code, jobs, number);
}

/* Where the sets of rows in one layer begin. */
static int begin_sets(const Prepared *rows, const int64_t *numbers, Job *jobs, Py_ssize_t n) {
    int is_checked = are_all_checked(&rows->starts), are_codes_checked = !has_unchecked(&rows->code_blocks);
    for (Py_ssize_t i = 0; i < n; i++) expect_ascending(&rows->starts.numbers, numbers[i]);
    for (Py_ssize_t i = 0; i < n; i++) {
        uint64_t first = is_checked ? get_ascending(&rows->starts.numbers, numbers[i])
                                    : get_checked(&rows->starts, numbers[i]);
        uint64_t stop = rows->sets.num_bits;
        if (first > stop) return FAILED;
        PREFETCH(rows->sets.words + (first >> 6));
        jobs[i] = (Job){first, 0, NULL};
        if (are_codes_checked) continue;
        if (numbers[i] + 1 < rows->num_rows) stop = get_checked(&rows->starts, numbers[i] + 1);
        if (first > stop || stop > rows->sets.num_bits ||
            !are_verified(&rows->code_blocks, first >> 6, (stop >> 6) + 1))
            return FAILED;
    }
    return 0;
}

/* Translates the ids of a row in `from`, or those that `own_ids` has for them, to their names in `to`, which may be the
 * same memory. */
static int64_t name_all(const Layer *layer, const int32_t *own_ids, const int32_t *from, int64_t count, int32_t *to) {
    int64_t named = 0;
    for (int64_t i = 0; i < count; i++) {
        int32_t id = from[i];
        if (own_ids && (id = own_ids[id]) < 0) return FAILED;
        id = name_of(layer, id);
        if (id == -2) return FAILED;
        if (id >= 0) to[named++] = id;
    }
    return named;
}

/* Rows that are partly in sets of the layer `listed`, partly in layers that store ids one row after the other. */
static int read_fast(const Layer *listed, const Rows *found, Py_ssize_t n, Ids *ids, int64_t *ends, Py_ssize_t left) {
    Job jobs[BLOCK];
    int64_t numbers[BLOCK], total = 0;
    Py_ssize_t number = 0;
    const Feature *feature = listed ? listed->rows->features : NULL;
    for (Py_ssize_t i = 0; i < n; i++)
        if (found->layer[i] && found->layer[i] == listed) numbers[number++] = found->row[i];
    if (number) {
        const Sets *sets = &listed->rows->sets;
        if (begin_sets(listed->rows, numbers, jobs, number) < 0) return FAILED;
        for (Py_ssize_t f = 0; f <= feature->number; f++) {
            if (f && pass(sets, sets->codes.of + f - 1, jobs, number, ids) < 0) return FAILED;
            if (read_headers(sets, sets->codes.of + f, jobs, number) < 0) return FAILED;
        }
    }
    Content contents[BLOCK];
    for (Py_ssize_t i = 0, k = 0; i < n; i++) {
        contents[i].count = 0;
        contents[i].ids = NULL;
        if (!found->layer[i]) continue;
        if (found->layer[i] == listed)
            contents[i].count = jobs[k++].size;
        else if (found->layer[i]->rows->features->form == IN_ROWS) {
            Place place;
            place.layer = found->layer[i];
            place.row = found->row[i];
            if (read_exact(&place, place.layer->rows->features, contents + i) < 0) return FAILED;
        }
        total += contents[i].count;
    }
    if (make_room(ids, total, left) < 0) return FAILED;
    int32_t *place = ids->ids + ids->length;
    for (Py_ssize_t i = 0, k = 0; i < n; place += contents[i++].count)
        if (found->layer[i] && found->layer[i] == listed) jobs[k++].ids = place;
    if (number && decode_all(&listed->rows->sets, listed->rows->sets.codes.of + feature->number, jobs, number) < 0)
        return FAILED;
    const int32_t *from = ids->ids + ids->length;
    for (Py_ssize_t i = 0; i < n; i++) {
        const Layer *layer = found->layer[i];
        int64_t count = contents[i].count;
        int32_t *to = ids->ids + ids->length;
        if (!layer || !count) {
        } else if (contents[i].ids || layer->names || feature->own_ids) {
            const int32_t *own_ids = contents[i].ids ? NULL : feature->own_ids;
            int64_t named = name_all(layer, own_ids, contents[i].ids ? contents[i].ids : from, count, to);
            if (named < 0) return FAILED;
            ids->length += named;
        } else {
            if (to != from) memmove(to, from, (size_t)count * sizeof *to);
            ids->length += count;
        }
        from += count;
        ends[i] = ids->length;
    }
    return 0;
}

/* Adds the named ids of a row after the others; about `left` more rows will follow. 0 or FAILED. */
static int add_row(const Place *place, const Content *content, Ids *ids, Py_ssize_t left) {
    if ((content->count && !content->ids) || make_room(ids, content->count, left) < 0) return FAILED;
    int32_t *target = ids->ids + ids->length;
    int64_t named = name_all(place->layer, NULL, content->ids, content->count, target);
    if (named < 0) return FAILED;
    ids->length += named && place->limits ? distinct(target, named) : named;
    return 0;
}

/* Reads rows one after the other, stored in any way. */
static int read_each(const Prepared *stack, const uint64_t *hashes, Py_ssize_t n, int64_t expire_before, Ids *ids,
                     int64_t *ends, Py_ssize_t *num_found) {
    for (Py_ssize_t i = 0; i < n; ends[i++] = ids->length) {
        Arena arena;
        Content content;
        Place place;
        if (i + 1 < n) expect(stack, hashes + 2 * (i + 1));
        arena_init(&arena);
        int status = ask(stack, hashes + 2 * i, expire_before, &arena, &place, &content);
        if (status == FOUND && add_row(&place, &content, ids, BLOCK * (n - i)) < 0) status = FAILED;
        arena_free(&arena);
        if (status == FAILED) return FAILED;
        *num_found += status == FOUND;
    }
    return 0;
}

static int read_rows(const Prepared *stack, const uint64_t *hashes, Py_ssize_t n, int64_t expire_before, Ids *ids,
                     int64_t *indptr, Py_ssize_t *num_found) {
    const Layer *listed = NULL; /* the layer whose sets are decoded several at once */
    int is_fast = !stack->limits;
    indptr[0] = ids->length;
    for (Py_ssize_t l = 0; is_fast && l < stack->num_layers; l++) {
        const Layer *layer = stack->layers + l;
        const Feature *feature = layer->rows->features;
        if (layer->rows->kind == LISTED && feature->form == IN_SETS && !listed && is_decodable(feature, &layer->rows->sets))
            listed = layer;
        else
            is_fast = layer->rows->kind == EXACT && (feature->form == IN_ROWS || feature->form == UNKNOWN);
    }
    if (!is_fast) return read_each(stack, hashes, n, expire_before, ids, indptr + 1, num_found);
    Rows found;
    for (Py_ssize_t first = 0; first < n; first += BLOCK) {
        Py_ssize_t number = n - first < BLOCK ? n - first : BLOCK;
        if (locate_all(stack, hashes + 2 * first, number, expire_before, &found) < 0) return FAILED;
        for (Py_ssize_t i = 0; i < number; i++) *num_found += found.layer[i] != NULL;
        if (read_fast(listed, &found, number, ids, indptr + first + 1, n - first - number) < 0) return FAILED;
    }
    return 0;
}

/* Entities ordered by shard, and where those of each shard begin; NULL if there is no memory. */
typedef struct {
    uint64_t *hashes;
    int64_t *order, *ends; /* `ends`: where the ids of each entity end; one more than entities */
    int64_t *firsts;
} Sorted;

static int sort_by_shard(const Prepared *stack, const uint64_t *hashes, Py_ssize_t n, Sorted *sorted) {
    size_t number = (size_t)n;
    sorted->hashes = malloc((number + 1) * 2 * sizeof *sorted->hashes);
    sorted->order = malloc((number + 1) * sizeof *sorted->order);
    sorted->ends = malloc((number + 1) * sizeof *sorted->ends);
    sorted->firsts = calloc((size_t)stack->num_shards + 2, sizeof *sorted->firsts);
    if (!sorted->hashes || !sorted->order || !sorted->ends || !sorted->firsts) return fail(NO_MEMORY);
    int64_t *next = sorted->firsts + 1; /* becomes `firsts` while entities are placed */
    for (Py_ssize_t i = 0; i < n; i++) next[shard_of(stack, hashes + 2 * i) + 1]++;
    for (int64_t s = 0; s < stack->num_shards; s++) next[s + 1] += next[s];
    for (Py_ssize_t i = 0; i < n; i++) {
        int64_t place = next[shard_of(stack, hashes + 2 * i)]++;
        memcpy(sorted->hashes + 2 * place, hashes + 2 * i, 16);
        sorted->order[place] = i;
    }
    return 0;
}

static void free_sorted(Sorted *sorted) {
    free(sorted->hashes);
    free(sorted->order);
    free(sorted->ends);
    free(sorted->firsts);
}

/* The rows of entities shard by shard: `ids` gets their ids in the order of shards, `sorted` has the entities. Stops at
 * a shard that cannot be read, with an entity of it in `hash`. */
static int read_shards(const Prepared *stack, int64_t expire_before, Ids *ids, Sorted *sorted, int64_t *indptr,
                       Py_ssize_t *num_found, const uint64_t **hash) {
    int64_t *ends = sorted->ends, n = sorted->firsts[stack->num_shards];
    for (int64_t s = 0; s < stack->num_shards; s++) {
        int64_t first = sorted->firsts[s], end = sorted->firsts[s + 1];
        if (first == end) continue;
        *hash = sorted->hashes + 2 * first;
        if (!stack->is_served[s]) return fail(NOT_SERVED);
        Prepared own = *stack;
        own.first_layers = NULL;
        own.layers += stack->first_layers[s];
        own.num_layers = (Py_ssize_t)(stack->first_layers[s + 1] - stack->first_layers[s]);
        if (read_rows(&own, sorted->hashes + 2 * first, (Py_ssize_t)(end - first), expire_before, ids, ends + first,
                      num_found) < 0)
            return FAILED;
    }
    indptr[0] = 0;
    for (int64_t k = 0; k < n; k++) indptr[sorted->order[k] + 1] = ends[k + 1] - ends[k];
    for (int64_t i = 0; i < n; i++) indptr[i + 1] += indptr[i];
    return 0;
}

/* Moves ids from the order of shards to the order of entities. */
static void place_ids(const Sorted *sorted, int64_t n, const int32_t *ids, const int64_t *indptr, int32_t *target) {
    for (int64_t k = 0; k < n; k++) {
        int64_t count = sorted->ends[k + 1] - sorted->ends[k];
        if (count) memcpy(target + indptr[sorted->order[k]], ids + sorted->ends[k], (size_t)count * sizeof *ids);
    }
}

/* csr(hashes, expire_before, indptr) -> (bytearray of int32, number of rows)
 *
 * The names of the ids of the first feature of each entity, uint64[n, 2]. `indptr`, int64[n + 1], receives where they
 * begin. */
PREPARED_METHOD(csr) {
    Prepared *self = (Prepared *)call->self;
    Array hashes, indptr;
    Py_ssize_t expire_before, num_found = 0;
    if (self->kind != STACK || !self->layers->rows->num_features) return refuse("there are no layers to read");
    if (take(call, "8n8!.", &hashes, &expire_before, &indptr) < 0) return NULL;
    Py_ssize_t n = indptr.length - 1;
    if (n < 0 || hashes.length != 2 * n) return refuse(DO_NOT_FIT);
    enum { STEPS_OF_A_ROW = 100 };
    const uint64_t none[2] = {0, 0}, *hash = n ? hashes.data : none;
    Ids ids = {NULL, 0, 0};
    Sorted sorted = {NULL, NULL, NULL, NULL};
    int is_long = n * STEPS_OF_A_ROW > WORTH_RELEASING_GIL, failed;
    if (is_long) release_gil();
    if (!self->first_layers)
        failed = read_rows(self, hashes.data, n, expire_before, &ids, indptr.data, &num_found);
    else
        failed = sort_by_shard(self, hashes.data, n, &sorted) < 0 ||
                 read_shards(self, expire_before, &ids, &sorted, indptr.data, &num_found, &hash) < 0;
    if (is_long) retake_gil();
    PyObject *content = NULL;
    if (failed)
        raise_fault(hash);
    else
        content = PyByteArray_FromStringAndSize(self->first_layers ? NULL : (const char *)ids.ids,
                                                (Py_ssize_t)(ids.length * 4));
    if (content && self->first_layers)
        place_ids(&sorted, n, ids.ids, indptr.data, (int32_t *)(void *)PyByteArray_AsString(content));
    free_sorted(&sorted);
    free(ids.ids);
    return content ? Py_BuildValue("(Nn)", content, num_found) : NULL;
}
