/* Lists of items with times, or of values with counts; succinct/timed_lists.py says how they are coded, and
 * structures/lists.py what they are. */

#include "row_reader.h"

enum { AGES, SIZES, GAPS, KINDS };
#define PREFIXES (1 << PREFIX_BITS)
#define SHORT_BITS 8u /* most codes are no longer */
#define NUM_WIDTHS 5
#define LONGEST_UNARY 24 /* this many ones precede a number of 32 bits */
#define MAX_AGE (1ll << 60)
#define PEEKED 57 /* bits from any bit on in a word that is loaded at a whole byte */

/* A place in the codes: from bit `bit` on, `bits` has the next `known` bits. */
typedef struct {
    const ListCode *code;
    uint64_t bit, bits;
    uint32_t known;
} Cursor;

static ALWAYS_INLINE void peek(Cursor *cursor) {
    memcpy(&cursor->bits, (const uint8_t *)cursor->code->words + (cursor->bit >> 3), sizeof cursor->bits);
    cursor->bits >>= cursor->bit & 7;
    cursor->known = PEEKED;
}

static ALWAYS_INLINE void skip(Cursor *cursor, uint32_t number) {
    cursor->bit += number;
    cursor->bits >>= number;
    cursor->known -= number;
}

/* The next number of a kind; -1 if it is damaged. Classes are as good as random: no branch depends on them. */
static ALWAYS_INLINE int64_t read_number(Cursor *cursor, int kind) {
    if (cursor->known < PREFIX_BITS) peek(cursor);
    const uint16_t *table = cursor->code->tables + kind * PREFIXES;
    uint32_t entry =
        table[cursor->bits & ((1 << SHORT_BITS) - 1)]; /* so that usually few lines of the cache are needed */
    if ((entry & 15) - 1 >= SHORT_BITS) entry = table[cursor->bits & (PREFIXES - 1)];
    uint32_t length = entry & 15, class = entry >> 4, is_whole = class < 4;
    uint32_t extra = is_whole ? 0 : (class >> 1) - 1, highest = is_whole ? class : 2 | (class & 1);
    if (!entry || extra > 59) return -1;
    skip(cursor, length);
    if (extra > cursor->known) cursor->bits = bits_at(cursor->code->words, cursor->bit), cursor->known = 64;
    int64_t number = (int64_t)((uint64_t)highest << extra | (cursor->bits & ((1ull << extra) - 1)));
    skip(cursor, extra);
    return number;
}

/* The next id of a tick with `left` ids left; none is below `next`. The id may be outside of the symbols. */
static ALWAYS_INLINE int64_t read_id(Cursor *cursor, int64_t next, int64_t left) {
    uint32_t octaves = left > 1 ? HIGHEST((uint64_t)(left - 1)) + 1 : 0;
    uint32_t row = octaves < NUM_WIDTHS ? octaves : NUM_WIDTHS - 1;
    uint32_t width = cursor->code->widths[row * cursor->code->num_symbols + next];
    width = width > octaves - row ? width - (octaves - row) : 0;
    uint32_t quotient = LOWEST(~cursor->bits | 1ull << 63);
    if (quotient + 1 + width > cursor->known) {
        peek(cursor);
        quotient = LOWEST(~cursor->bits | 1ull << 63);
    }
    if (quotient >= LONGEST_UNARY) {
        peek(cursor);
        next += cursor->bits >> LONGEST_UNARY & 0xFFFFFFFF;
        skip(cursor, LONGEST_UNARY + 32);
        return next;
    }
    skip(cursor, quotient + 1);
    next += (int64_t)((uint64_t)quotient << width | (cursor->bits & ((1ull << width) - 1)));
    skip(cursor, width);
    return next;
}

/* Which items of a list are wanted: those of some ages, the newest of them. */
typedef struct {
    int64_t youngest, oldest, limit;
} Window;

/* Reads a list from bit `bit` to bit `stop`, which is at most `num_bits`. Returns the number of items; -1 if the list
 * is damaged, -2 if there are more than `capacity`. `num_coded` receives the number of all its items if the wanted ones may
 * lack older ones, which are not there any more; else -1. `num_newer` receives how many are too young. */
static ALWAYS_INLINE int64_t read_items_of(const ListCode *code, uint64_t bit, uint64_t stop, Window wanted,
                                           int64_t capacity, int32_t *restrict ids, int64_t *restrict ages,
                                           int64_t *num_coded, int64_t *num_newer) {
    int64_t count = 0, age = -1;
    Cursor cursor = {.code = code, .bit = bit};
    *num_coded = -1;
    *num_newer = 0;
    while (cursor.bit < stop && count < wanted.limit) {
        peek(&cursor);
        int64_t gap = read_number(&cursor, age < 0 ? AGES : GAPS);
        if (gap < 0 || gap >= MAX_AGE || cursor.bit > stop) return -1;
        age += gap + 1;
        if (age >= MAX_AGE) return -1;
        int64_t left = read_number(&cursor, SIZES) + 1, next = 0;
        if (left < 1 || left > code->num_symbols || cursor.bit > stop) return -1;
        if (age > wanted.oldest) return count;
        if (age < wanted.youngest) {
            for (*num_newer += left; left; left--) {
                if (next >= code->num_symbols) return -1;
                next = read_id(&cursor, next, left) + 1;
                if (next > code->num_symbols || cursor.bit > stop) return -1;
            }
            continue;
        }
        for (; left && count < wanted.limit; left--) {
            if (count == capacity) return -2;
            if (next >= code->num_symbols) return -1;
            next = read_id(&cursor, next, left);
            if (next >= code->num_symbols || cursor.bit > stop) return -1;
            ids[count] = (int32_t)next++;
            ages[count++] = age;
        }
    }
    if (count < wanted.limit) *num_coded = *num_newer + count;
    return count;
}

#define READ_LIST(NAME, TARGET)                                                                                    \
    TARGET static int64_t NAME(const ListCode *code, uint64_t bit, uint64_t stop, Window wanted, int64_t capacity, \
                               int32_t *ids, int64_t *ages, int64_t *num_coded, int64_t *num_newer) {              \
        return read_items_of(code, bit, stop, wanted, capacity, ids, ages, num_coded, num_newer);                  \
    }

/* As of sets, there is a second version for processors with shifts that keep the flags. */
READ_LIST(read_anywhere, )
static int64_t (*read_list)(const ListCode *, uint64_t, uint64_t, Window, int64_t, int32_t *, int64_t *, int64_t *,
                            int64_t *) = read_anywhere;

#if defined(__x86_64__)
READ_LIST(read_bmi2, __attribute__((target("bmi,bmi2"))))

void kernel_choose_list_decoder(void) {
    __builtin_cpu_init();
    if (__builtin_cpu_supports("bmi2")) read_list = read_bmi2;
}
#else
void kernel_choose_list_decoder(void) {}
#endif

/* Takes tables, widths, num_symbols and words; sets `num_bits` to the bits of the words. 0, or -1 with an exception. */
static int take_list_code(Call *call, ListCode *code, int64_t *num_bits) {
    Array tables, widths, words;
    Py_ssize_t num_symbols;
    if (take(call, "21n8", &tables, &widths, &num_symbols, &words) < 0) return -1;
    if (tables.length != KINDS * PREFIXES || num_symbols < 0 || num_symbols > INT32_MAX ||
        widths.length != NUM_WIDTHS * num_symbols || words.length < 2) {
        refuse(DO_NOT_FIT);
        return -1;
    }
    *code = (ListCode){tables.data, widths.data, num_symbols, words.data};
    *num_bits = 64 * (words.length - 2);
    return 0;
}

/* -- features of listed rows ------------------------------------------------------------------------------------ */

/* The age of the newest item that may be shown. */
static int64_t youngest_of(const Place *place, const Feature *feature) {
    if (feature->counts || place->until == INT64_MAX) return 0;
    int64_t age = feature->newest_tick - floor_of(place->until, feature->resolution) + 1;
    return age < 0 ? 0 : age;
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

/* Turns ages, or numbers of counts, both ascending, into times in a unit of microseconds, rounded down, or into counts;
 * 0 or FAILED. */
static int weigh(const Feature *feature, int64_t unit, int64_t *ages, int64_t count) {
    const int64_t newest = feature->newest_tick, resolution = feature->resolution, *counts = feature->counts;
    const int64_t end = counts ? feature->num_counts : (1ll << 62) / resolution;
    if (count && ages[count - 1] >= end) return FAILED;
    for (int64_t i = 0; counts && i < count; i++) ages[i] = counts[ages[i]];
    for (int64_t i = 0; !counts && i < count; i++) ages[i] = (newest - ages[i]) * resolution;
    for (int64_t i = 0; !counts && unit > 1 && i < count; i++) ages[i] = floor_of(ages[i], unit);
    return 0;
}

/* Reads the newest items of a row: ids, times in a unit of microseconds or counts, and codes if they are wanted;
 * 0 or FAILED. */
static int read_newest(const Place *place, const Layer *layer, int64_t row, const Feature *feature, int64_t limit,
                       int64_t unit, Arena *arena, Content *content, int64_t **weights, uint8_t **codes) {
    enum { BITS_OF_ITEM = 3 }; /* usually at least; a list with more items is read twice */
    int64_t state, num_coded, num_newer = 0, count = -2;
    uint64_t start, stop;
    Window wanted = {youngest_of(place, feature), oldest_of(place, feature), limit};
    if (numbers_get(&feature->states, (uint64_t)row, &state) < 0 || state < MISSING || state > VALUE ||
        row_bits_get(&feature->starts, row, feature->num_code_bits, &feature->content_blocks, &start, &stop) < 0)
        return FAILED;
    int64_t *ages = NULL;
    int32_t *ids = NULL;
    for (int64_t capacity = (int64_t)(stop - start) / BITS_OF_ITEM + 1; count == -2; capacity *= BITS_OF_ITEM) {
        if (capacity > limit) capacity = limit;
        ages = arena_get(arena, (size_t)capacity * sizeof *ages);
        ids = arena_get(arena, (size_t)capacity * sizeof *ids);
        if (!ages || !ids) return FAILED;
        count = read_list(&feature->code, start, stop, wanted, capacity, ids, ages, &num_coded, &num_newer);
    }
    if (count < 0 || weigh(feature, unit, ages, count) < 0) return FAILED;
    *codes = feature->attribute.is_wanted ? codes_read(row, &feature->attribute, num_newer, count, arena) : NULL;
    if (feature->attribute.is_wanted && !*codes) return FAILED;
    content->state = (int)state;
    content->count = count;
    content->ids = ids;
    content->is_cut = place->most_sealed && num_coded >= place->most_sealed[feature - layer->rows->features];
    *weights = ages;
    return 0;
}

int items_read(const Place *place, const Layer *layer, int64_t row, const Feature *feature, Arena *arena,
               Content *content, int64_t **times, uint8_t **codes) {
    return read_newest(place, layer, row, feature, INT64_MAX, 1, arena, content, times, codes);
}

static int read_items(const Place *place, const Feature *feature, Arena *arena, Content *content) {
    int64_t *weights, unit = feature->unit ? feature->unit : 1;
    uint8_t *codes;
    if (read_newest(place, place->layer, place->row, feature, limit_of(place, feature), unit, arena, content, &weights,
                    &codes) < 0)
        return FAILED;
    if (content->state == VALUE && !content->count && place->limits) content->state = EMPTY;
    content->weights = weights;
    if (codes) return attribute_elements(&feature->attribute, codes, weights, arena, content);
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
READER_METHOD(from_list) {
    RowReader *self = (RowReader *)call->self;
    Feature *feature = feature_begun(self, LISTED);
    Array counts;
    Py_ssize_t num_bits, newest_tick, resolution, unit;
    int64_t all_bits;
    if (!feature || take_list_code(call, &feature->code, &all_bits) < 0 || take(call, "n", &num_bits) < 0 ||
        blocks_take(call, &feature->content_blocks) < 0 || checked_take(call, &feature->starts, 0) < 0 ||
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
    if (reader_keep(self, call) < 0) return NULL;
    feature->read = read_items;
    Py_RETURN_NONE;
}
