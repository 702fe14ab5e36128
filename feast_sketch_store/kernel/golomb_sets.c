/* Reads sets of ids in Golomb-Rice codes, and features in the sets of listed rows. */

#include "golomb_sets.h"

#define MAX_WIDTH 30
#define MAX_LEVEL 123 /* of a gap of 30 bits */
#define MAX_GROUP_ROWS 64

static ALWAYS_INLINE int64_t header_of(const Code *code, uint64_t rank) {
    return rank < NUM_RANKED ? code->headers[rank] : (int64_t)rank;
}

enum { IS_WANTED = 1, IS_NEEDED = 2 }; /* a set itself; its ids, to read one after it */

/* A set to be read: `bit` is where its header begins, then its codes, and then the bit after them. At first that is the
 * beginning of its row's group, which has `num_before` rows before its own. */
typedef struct {
    uint64_t bit;
    int64_t group, num_before, size;
    int32_t *ids;
    int32_t header;
} Job;

/* Memory for ids. */
typedef struct {
    int32_t *ids;
    int64_t length;
} Scratch;

int codes_take(Call *call, Codes *codes) {
    Array parameters, level_starts, levels, left, headers;
    if (take(call, "88111", &parameters, &level_starts, &levels, &left, &headers) < 0) return -1;
    Py_ssize_t number = codes->number = level_starts.length - 1;
    const int64_t *starts = level_starts.data, *numbers = parameters.data;
    int fits = number >= 1 && parameters.length == 3 * number && starts[0] == 0 && starts[number] == levels.length &&
               left.length == NUM_LEFT * number && headers.length == NUM_RANKED * number;
    codes->capacity = 0;
    for (Py_ssize_t f = 0; fits && f < number; f++) {
        const int64_t *own = numbers + 3 * f;
        int64_t size = starts[f + 1] - starts[f];
        fits = size >= 0 && own[0] >= 0 && own[0] <= MAX_WIDTH && own[1] >= 0 && own[1] <= 2 && own[2] >= -1 &&
               own[2] <= MAX_WIDTH && (own[2] < 0 || (f && size == starts[f] - starts[f - 1]));
        if (own[2] >= 0 && (size_t)size > codes->capacity) codes->capacity = (size_t)size;
    }
    uint8_t highest = 0;
    for (Py_ssize_t i = 0; i < levels.length; i++) {
        uint8_t level = ((const uint8_t *)levels.data)[i];
        highest = level > highest ? level : highest;
    }
    if (!fits || highest > MAX_LEVEL) {
        refuse("the codes do not fit each other");
        return -1;
    }
    codes->of = scratch(call, sizeof(Code) * (size_t)number);
    if (!codes->of) return -1;
    for (Py_ssize_t f = 0; f < number; f++) {
        Code *code = codes->of + f;
        code->levels = (const uint8_t *)levels.data + starts[f];
        code->left = (const uint8_t *)left.data + NUM_LEFT * f;
        code->headers = (const uint8_t *)headers.data + NUM_RANKED * f;
        code->num_symbols = starts[f + 1] - starts[f];
        code->header_width = (int)numbers[3 * f];
        code->no_set = numbers[3 * f + 1];
        code->others_width = (int)numbers[3 * f + 2];
    }
    return 0;
}

int ids_merge(int32_t *ids, int64_t *count, const int32_t *more, int64_t number) {
    int64_t i = *count - 1, k = number - 1, place = *count + number;
    *count = place;
    while (k >= 0) {
        if (i >= 0 && ids[i] == more[k]) return -1;
        if (i >= 0 && ids[i] > more[k]) {
            ids[--place] = ids[i--];
        } else {
            ids[--place] = more[k--];
        }
    }
    return 0;
}

static void mark_wanted(const Codes *codes, Py_ssize_t feature, uint8_t *marks) {
    marks[feature] |= IS_WANTED;
    for (; codes->of[feature].others_width >= 0; feature--) marks[feature - 1] |= IS_NEEDED;
}

/* The words end with one that is read but not used; `bit` is at most `num_bits` before each call. */
typedef struct {
    const uint64_t *words;
    uint64_t bit, num_bits;
} Bits;

static ALWAYS_INLINE uint64_t read_code(Bits *bits, int width) {
    uint64_t code = bits_at(bits->words, bits->bit);
    uint32_t quotient = LOWEST(~code | 1ull << 63);
    if (quotient < LONGEST_UNARY) {
        bits->bit += quotient + 1 + (uint32_t)width;
        return (uint64_t)quotient << width | (code >> (quotient + 1) & ((1ull << width) - 1));
    }
    bits->bit += LONGEST_UNARY + 32;
    return code >> LONGEST_UNARY & 0xFFFFFFFF;
}

/* Reads a set that is coded by itself into `ids`, which may be NULL. -1 if it is damaged. */
static ALWAYS_INLINE int read_gaps(Bits *bits, const Code *code, int64_t size, int32_t *ids) {
    Bits own = *bits; /* a copy stays in registers */
    int64_t next = 0;
    for (int64_t k = 0; k < size; k++) {
        if (own.bit > own.num_bits || next >= code->num_symbols) return -1;
        next += (int64_t)read_code(&own, (int)width_of_gap(code, next, size - k));
        if (ids) ids[k] = (int32_t)next;
        next++;
    }
    bits->bit = own.bit;
    return next > code->num_symbols ? -1 : 0;
}

/* Reads which of the ids `seen` are members into `ids`, which may be NULL. -1 if they are damaged. */
static int read_inside(Bits *bits, const int32_t *seen, int64_t num_seen, int64_t members, int32_t *ids) {
    Inside inside = inside_of(num_seen, members);
    if (inside.is_bitmap) {
        if (bits->bit + (uint64_t)num_seen > bits->num_bits) return -1;
        int64_t count = 0;
        for (int64_t first = 0; first < num_seen; first += 64) {
            int64_t left = num_seen - first < 64 ? num_seen - first : 64;
            uint64_t marks = bits_at(bits->words, bits->bit) & ~0ull >> (64 - left);
            bits->bit += (uint64_t)left;
            count += POPULATION(marks);
            if (count > members) return -1;
            for (; ids && marks; marks &= marks - 1) *ids++ = seen[first + LOWEST(marks)];
        }
        return count == members ? 0 : -1;
    }
    int64_t next = 0;
    for (int64_t k = 0; k < inside.coded; k++) {
        if (bits->bit > bits->num_bits) return -1;
        int64_t place = next + (int64_t)read_code(bits, inside.width);
        if (place >= num_seen) return -1;
        if (ids && !inside.is_reversed) *ids++ = seen[place];
        for (; ids && inside.is_reversed && next < place; next++) *ids++ = seen[next];
        next = place + 1;
    }
    for (; ids && inside.is_reversed && next < num_seen; next++) *ids++ = seen[next];
    return 0;
}

/* Reads a set of `size` ids that is coded relative to those before it into `ids`, unless that is NULL. If they
 * `are_needed`, ids that were not seen yet are merged into the seen ones. -1 if it is damaged. */
static int read_with(Bits *bits, const Code *code, const RowOfSets *row, int64_t *num_seen, int64_t size, int32_t *ids,
                     int are_needed) {
    int64_t num_others = size;
    if (size && *num_seen) {
        if (bits->bit > bits->num_bits) return -1;
        num_others = (int64_t)read_code(bits, code->others_width);
    }
    int64_t members = size - num_others;
    if (members < 0 || members > *num_seen || *num_seen + num_others > code->num_symbols ||
        read_inside(bits, row->seen, *num_seen, members, ids) < 0 ||
        read_gaps(bits, code, num_others, ids || are_needed ? row->others : NULL) < 0 ||
        (ids && ids_merge(ids, &members, row->others, num_others) < 0))
        return -1;
    if (are_needed) return ids_merge(row->seen, num_seen, row->others, num_others);
    *num_seen += num_others;
    return 0;
}

/* Reads the sets of a row up to feature `last`, and moves `bit` behind them. The ids of those that are wanted follow
 * each other in `ids`, which has `capacity` entries. 0, -1 if they are damaged, or the capacity that they need. */
static int64_t read_row(const Sets *sets, uint64_t *bit, Py_ssize_t last, const RowOfSets *row, int32_t *ids,
                        int64_t capacity) {
    Bits bits = {sets->words, *bit, sets->num_bits};
    int64_t num_seen = 0, count = 0;
    for (Py_ssize_t f = 0; f <= last; f++) {
        const Code *code = sets->codes.of + f;
        if (bits.bit > bits.num_bits) return -1;
        int64_t header = header_of(code, read_code(&bits, code->header_width));
        int64_t size = header < code->no_set ? 0 : header - code->no_set;
        if (size > code->num_symbols) return -1;
        int32_t *target = NULL;
        int is_needed = row->marks[f] & IS_NEEDED, failed;
        row->headers[f] = (int32_t)header;
        if (row->marks[f] & IS_WANTED) {
            if (count + size > capacity) return count + size;
            target = ids + count;
            count += size;
        }
        row->ends[f] = count;
        if (code->others_width >= 0) {
            failed = read_with(&bits, code, row, &num_seen, size, target, is_needed);
        } else {
            if ((size_t)size > sets->codes.capacity && is_needed)
                return -1; /* sets that depend on it have fewer symbols */
            failed = read_gaps(&bits, code, size, target ? target : is_needed ? row->seen : NULL);
            if (target && is_needed) memcpy(row->seen, target, (size_t)size * sizeof(int32_t));
            num_seen = size;
        }
        if (failed) return -1;
    }
    *bit = bits.bit;
    return 0;
}

static int take_words_of_sets(Call *call, Sets *sets) {
    Array words;
    Py_ssize_t num_bits;
    if (codes_take(call, &sets->codes) < 0 || take(call, "8n", &words, &num_bits) < 0) return -1;
    if (num_bits < 0 || words.length < num_bits / 64 + 2) {
        refuse(DO_NOT_FIT);
        return -1;
    }
    sets->words = words.data;
    sets->num_bits = (uint64_t)num_bits;
    return 0;
}

/* -- sets of several rows ------------------------------------------------------------------------------ */

/* A code can be read only after the one before it, so sets of several rows are read in turns. */
enum { LANES = 4 };

/* The state of a set with `left` codes still to be read. */
typedef struct {
    uint64_t bit;
    int64_t next, left;
    int32_t *ids;
    Job *job;
} Lane;

enum { LONGEST_CODE = 57 };

static ALWAYS_INLINE uint64_t read_number(const uint8_t *bytes, uint64_t *bit, uint32_t width) {
    uint64_t code;
    memcpy(&code, bytes + (*bit >> 3), sizeof code);
    code >>= *bit & 7; /* the longest code fits the bits that are left */
    uint64_t zeros = ~code;
    if (__builtin_expect(!(zeros & ((1ull << LONGEST_UNARY) - 1)), 0)) {
        *bit += LONGEST_UNARY + 32;
        return code >> LONGEST_UNARY & 0xFFFFFFFF;
    }
    uint32_t quotient = LOWEST(zeros);
    *bit += quotient + 1 + width;
    return (uint64_t)quotient << width | (code >> (quotient + 1) & ((1ull << width) - 1));
}

/* Reads the codes of one lane until this many are left; -1 if they are damaged. */
static ALWAYS_INLINE int read_until(const Sets *sets, const Code *code, Lane *lane, int64_t left) {
    const uint8_t *bytes = (const uint8_t *)sets->words;
    for (; lane->left > left; lane->left--) {
        if (lane->bit > sets->num_bits || lane->next >= code->num_symbols) return -1;
        lane->next += (int64_t)read_number(bytes, &lane->bit, width_of_gap(code, lane->next, lane->left));
        *lane->ids++ = (int32_t)lane->next++;
    }
    return 0;
}

/* Begins a set, and reads those codes of a long set for which lanes have no widths. */
static ALWAYS_INLINE int begin(const Sets *sets, const Code *code, Lane *lane, Job *job) {
    *lane = (Lane){job->bit, 0, job->size, job->ids, job};
    return job->size < DIRECT_CODES ? 0 : read_until(sets, code, lane, DIRECT_CODES - 1);
}

/* The next code of a lane, whose number is constant here. */
#define READ_GAP(LANE, K)                                                                                  \
    if (next[LANE] >= num_symbols) return -1;                                                              \
    next[LANE] += (int64_t)read_number(bytes, bit + LANE, width_of(levels[next[LANE]], left[LANE][-(K)])); \
    ids[LANE][K] = (int32_t)next[LANE]++;

/* Reads the same number of codes of each lane, in turns, so that no lane waits for another. -1 if one is damaged. */
static ALWAYS_INLINE int read_in_turns(const uint8_t *bytes, const Code *code, Lane *lanes, int64_t number) {
    const uint8_t *levels = code->levels, *left[LANES];
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
static ALWAYS_INLINE int decode_in_lanes(const Sets *sets, const Code *code, Job **jobs, Py_ssize_t number) {
    Lane lanes[LANES];
    Py_ssize_t taken = 0;
    int busy = 0;
    for (; busy < LANES && taken < number; busy++)
        if (begin(sets, code, lanes + busy, jobs[taken++]) < 0) return -1;
    for (int64_t all; busy == LANES && (all = fewest_left(sets, lanes)) > 0;) {
        if (read_in_turns((const uint8_t *)sets->words, code, lanes, all) < 0) return -1;
        for (int i = 0; i < busy;) {
            if (lanes[i].left) {
                i++;
                continue;
            }
            if (lanes[i].next > code->num_symbols) return -1;
            lanes[i].job->bit = lanes[i].bit;
            if (taken == number)
                lanes[i] = lanes[--busy];
            else if (begin(sets, code, lanes + i++, jobs[taken++]) < 0)
                return -1;
        }
    }
    for (int i = 0;; i++) {
        if (i >= busy) {
            if (taken == number) return 0;
            if (begin(sets, code, lanes + (i = 0), jobs[taken++]) < 0) return -1;
            busy = 1;
        }
        if (read_until(sets, code, lanes + i, 0) < 0 || lanes[i].next > code->num_symbols) return -1;
        lanes[i].job->bit = lanes[i].bit;
    }
}

/* There is a second version for processors with shifts that keep the flags; one is chosen when the module is loaded. */
#define DECODE(NAME, TARGET)                                                                    \
    TARGET static int NAME(const Sets *sets, const Code *code, Job **jobs, Py_ssize_t number) { \
        return decode_in_lanes(sets, code, jobs, number);                                       \
    }

DECODE(decode_anywhere, )
static int (*decode)(const Sets *, const Code *, Job **, Py_ssize_t) = decode_anywhere;

#if defined(__x86_64__)
DECODE(decode_bmi2, __attribute__((target("bmi,bmi2"))))

void kernel_choose_set_decoder(void) {
    __builtin_cpu_init();
    if (__builtin_cpu_supports("bmi2")) decode = decode_bmi2;
}
#else
void kernel_choose_set_decoder(void) {}
#endif

static int read_headers(const Sets *sets, const Code *code, Job **jobs, Py_ssize_t number, int64_t *total) {
    *total = 0;
    for (Py_ssize_t i = 0; i < number; i++) {
        Job *job = jobs[i];
        if (job->bit > sets->num_bits) return -1;
        int64_t header =
            header_of(code, read_number((const uint8_t *)sets->words, &job->bit, (uint32_t)code->header_width));
        job->header = (int32_t)header;
        job->size = header < code->no_set ? 0 : header - code->no_set;
        if (job->size > code->num_symbols || (job->size && job->size + (int64_t)job->bit > (int64_t)sets->num_bits + 1))
            return -1; /* an id takes a bit or more */
        *total += job->size;
    }
    return 0;
}

/* Reads the next set of each job, which is of one feature and coded by itself, into memory of the arena, or into that of
 * `scratch` before. 0 or FAILED. */
static int read_alone(const Sets *sets, const Code *code, Job **jobs, Py_ssize_t number, Arena *arena,
                      Scratch *scratch) {
    Job *full[ROWS_AT_A_TIME];
    Py_ssize_t num_full = 0;
    int64_t total;
    if (read_headers(sets, code, jobs, number, &total) < 0) return FAILED;
    if (total > scratch->length) *scratch = (Scratch){arena_get(arena, (size_t)total * sizeof(int32_t)), total};
    int32_t *ids = scratch->ids;
    if (total && !ids) return FAILED;
    for (Py_ssize_t i = 0; i < number; i++) {
        jobs[i]->ids = ids;
        ids += jobs[i]->size;
        if (jobs[i]->size) full[num_full++] = jobs[i];
    }
    return decode(sets, code, full, num_full) < 0 ? FAILED : 0;
}

/* -- sets of listed rows ---------------------------------------------------------------------------------------- */

/* Whether a read of these rows' sets, or of those that it skips, must read them one by one. */
static int has_dependent(const RowReader *rows) {
    Py_ssize_t number = rows->sets.group_rows > 1 ? rows->sets.codes.number : rows->num_sets;
    for (Py_ssize_t f = 0; f < number; f++)
        if (rows->sets.codes.of[f].others_width >= 0) return 1;
    return 0;
}

/* Where the first row of each row's group begins, in blocks that are verified; 0 or FAILED. */
static int begin_groups(const RowReader *rows, Place **places, Py_ssize_t number, Job *jobs) {
    enum { WORDS_OF_LINE = 8, MOST_LINES = 4 }; /* then the hardware prefetches the rest */
    uint64_t mean = rows->sets.num_bits / (uint64_t)(rows->num_rows ? rows->num_rows : 1) / 64 + 1;
    uint64_t words = mean < WORDS_OF_LINE * MOST_LINES ? mean : WORDS_OF_LINE * MOST_LINES;
    int64_t group_rows = rows->sets.group_rows;
    for (Py_ssize_t i = 0; i < number; i++) {
        int64_t row = places[i]->row;
        jobs[i].group = group_rows == 1 ? row : row / group_rows; /* a division takes a third of a lookup */
        jobs[i].num_before = row - jobs[i].group * group_rows;
        ascending_expect(&rows->starts.numbers, jobs[i].group);
    }
    for (Py_ssize_t i = 0; i < number; i++) {
        uint64_t first;
        if (row_bits_get(&rows->starts, jobs[i].group, rows->sets.num_bits, &rows->code_blocks, &first, NULL) < 0)
            return FAILED;
        for (uint64_t word = 0; word <= words; word += WORDS_OF_LINE) PREFETCH(rows->sets.words + (first >> 6) + word);
        jobs[i].bit = first;
    }
    return 0;
}

/* Reads the sets of one row, some of which are coded relative to others; 0 or FAILED. */
static int read_dependent(const RowReader *rows, uint64_t start, SetOfRow *own, Arena *arena) {
    const Sets *sets = &rows->sets;
    RowOfSets row;
    int64_t capacity = 256, failed;
    void *memory = arena_get(arena, room_for_row(&sets->codes));
    int32_t *ids = arena_get(arena, (size_t)capacity * sizeof *ids);
    if (!memory || !ids) return FAILED;
    init_row(&row, &sets->codes, memory);
    row.marks = rows->marks;
    while ((failed = read_row(sets, &start, rows->num_sets - 1, &row, ids, capacity)) > 0) {
        capacity = 2 * failed;
        ids = arena_get(arena, (size_t)capacity * sizeof *ids);
        if (!ids) return FAILED;
    }
    if (failed) return FAILED;
    for (Py_ssize_t f = 0; f < rows->num_sets; f++)
        own[f] = (SetOfRow){row.headers[f], ids + (f ? row.ends[f - 1] : 0)};
    return 0;
}

/* Reads the sets of rows one by one, as some are coded relative to others; 0 or FAILED. */
static int read_one_by_one(const RowReader *rows, Py_ssize_t number, Job *jobs, SetOfRow *own, Arena *arena) {
    const Sets *sets = &rows->sets;
    RowOfSets skipped;
    void *memory = arena_get(arena, room_for_row(&sets->codes));
    if (!memory) return FAILED;
    init_row(&skipped, &sets->codes, memory);
    memset(skipped.marks, 0, (size_t)sets->codes.number);
    for (Py_ssize_t i = 0; i < number; i++) {
        for (int64_t left = jobs[i].num_before; left; left--)
            if (read_row(sets, &jobs[i].bit, sets->codes.number - 1, &skipped, NULL, 0)) return FAILED;
        if (read_dependent(rows, jobs[i].bit, own + i * rows->num_sets, arena) < 0) return FAILED;
    }
    return 0;
}

/* Moves each job to its own row, past the rows of its group before it; 0 or FAILED. */
static int skip_rows(const RowReader *rows, Py_ssize_t number, Job *jobs, Arena *arena) {
    const Sets *sets = &rows->sets;
    Scratch scratch = {NULL, 0};
    for (int64_t left = sets->group_rows - 1; left; left--) {
        Job *behind[ROWS_AT_A_TIME];
        Py_ssize_t num_behind = 0;
        for (Py_ssize_t i = 0; i < number; i++)
            if (jobs[i].num_before >= left) behind[num_behind++] = jobs + i;
        for (Py_ssize_t f = 0; num_behind && f < sets->codes.number; f++)
            if (read_alone(sets, sets->codes.of + f, behind, num_behind, arena, &scratch) < 0) return FAILED;
    }
    return 0;
}

/* Reads the sets of several rows, all of which are coded by themselves; 0 or FAILED. */
static int read_together(const RowReader *rows, Py_ssize_t number, Job *jobs, SetOfRow *own, Arena *arena) {
    Job *all[ROWS_AT_A_TIME];
    if (skip_rows(rows, number, jobs, arena) < 0) return FAILED;
    for (Py_ssize_t i = 0; i < number; i++) all[i] = jobs + i;
    for (Py_ssize_t f = 0; f < rows->num_sets; f++) {
        Scratch scratch = {NULL, 0};
        if (read_alone(&rows->sets, rows->sets.codes.of + f, all, number, arena, &scratch) < 0) return FAILED;
        const int32_t *ids = scratch.ids;
        for (Py_ssize_t i = 0; i < number; i++) {
            own[i * rows->num_sets + f] = (SetOfRow){jobs[i].header, ids};
            ids += jobs[i].size;
        }
    }
    return 0;
}

int sets_read(const RowReader *rows, Place **places, Py_ssize_t number, Arena *arena) {
    Job jobs[ROWS_AT_A_TIME];
    SetOfRow *own = arena_get(arena, (size_t)(number * rows->num_sets) * sizeof *own);
    if (!own || begin_groups(rows, places, number, jobs) < 0) return FAILED;
    int failed = has_dependent(rows) ? read_one_by_one(rows, number, jobs, own, arena)
                                     : read_together(rows, number, jobs, own, arena);
    if (failed) return FAILED;
    for (Py_ssize_t i = 0; i < number; i++) places[i]->sets = own + i * rows->num_sets;
    return 0;
}

static int read_set(const Place *place, const Feature *feature, Arena *arena, Content *content) {
    if (!place->sets) return FAILED;
    int64_t no_set = place->layer->rows->sets.codes.of[feature->number].no_set;
    const SetOfRow *set = place->sets + feature->number;
    content->state = set->header < no_set ? set->header : set->header > no_set ? VALUE : EMPTY;
    content->count = set->header > no_set ? set->header - no_set : 0;
    content->ids = set->ids;
    if (!feature->own_ids) return 0;
    int32_t *own = arena_get(arena, (size_t)content->count * sizeof *own);
    if (!own) return FAILED;
    content->ids = own;
    for (int64_t i = 0; i < content->count; i++) {
        own[i] = feature->own_ids[set->ids[i]];
        if (own[i] < 0) return FAILED;
    }
    return 0;
}

/* sets(codes ..., words, num_bits, check, starts ..., group_rows)
 *
 * `starts` are those of every `group_rows`-th row. */
READER_METHOD(sets) {
    RowReader *self = (RowReader *)call->self;
    Py_ssize_t group_rows;
    if (self->kind != LISTED || self->marks) return refuse("there are no rows for the sets");
    if (take_words_of_sets(call, &self->sets) < 0 || blocks_take(call, &self->code_blocks) < 0 ||
        checked_take(call, &self->starts, 0) < 0 || take(call, "n.", &group_rows) < 0)
        return NULL;
    if (group_rows < 1 || group_rows > MAX_GROUP_ROWS ||
        self->starts.numbers.length != (self->num_rows + group_rows - 1) / group_rows)
        return refuse(DO_NOT_FIT);
    self->sets.group_rows = group_rows;
    uint8_t *marks = scratch(call, (size_t)self->sets.codes.number);
    if (!marks) return NULL;
    memset(marks, 0, (size_t)self->sets.codes.number);
    if (reader_keep(self, call) < 0) return NULL;
    self->marks = marks;
    Py_RETURN_NONE;
}

/* from_set(number, own_ids): the feature is in the sets. */
READER_METHOD(from_set) {
    RowReader *self = (RowReader *)call->self;
    Feature *feature = feature_begun(self, LISTED);
    Array own_ids;
    if (!feature || take(call, "n4?.", &feature->number, &own_ids) < 0) return NULL;
    if (!self->marks || feature->number < 0 || feature->number >= self->sets.codes.number ||
        (own_ids.data && own_ids.length != self->sets.codes.of[feature->number].num_symbols))
        return refuse(DO_NOT_FIT);
    feature->own_ids = own_ids.data;
    mark_wanted(&self->sets.codes, feature->number, self->marks);
    if (feature->number >= self->num_sets) self->num_sets = feature->number + 1;
    feature->read = read_set;
    return reader_done(self, call);
}
