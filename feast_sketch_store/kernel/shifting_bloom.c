/* Reads and fills the table of a shifting Bloom filter. succinct/shifting_bloom.py has the formulas. */

#include "row_reader.h"

static inline uint64_t rotate_right(uint64_t word, uint32_t distance) {
    return word >> distance | word << (-distance & 63);
}

static inline void place_windows(uint64_t num_words, const uint64_t *salt, const uint64_t *hash, uint64_t first_word,
                                 int num_hashes, Windows *windows) {
    uint64_t start = mix64(hash[0] ^ salt[0]), step = mix64(hash[1] ^ salt[1]) | 1;
    for (int j = 0; j < num_hashes; j++) {
        uint64_t mixed = mix64(start + step * (uint64_t)j);
        uint64_t offset = ((mixed >> 32) * num_words >> 32) + first_word;
        windows->starts[j] = offset >= num_words ? offset - num_words : offset;
        windows->rotations[j] = mixed & 63;
    }
}

/* The words of all windows, combined; all windows at once, so that their cache misses overlap. Eight words stay in
 * registers. The hashes of group g end before `ends[g]`. `masks` has ones for the symbols that skip the hashes of a group,
 * `num_words` words for each group but the first. */
static ALWAYS_INLINE void and_groups(const uint64_t *words, const Windows *windows, const int64_t *ends, int num_groups,
                                     const uint64_t *masks, Py_ssize_t num_words, uint64_t *answers) {
    Py_ssize_t w = 0;
    for (; w + 8 <= num_words; w += 8) {
        uint64_t block[8];
        for (int b = 0; b < 8; b++) block[b] = ~0ull;
        for (int j = 0, group = 0; group < num_groups; group++) {
            uint64_t own[8];
            for (int b = 0; b < 8; b++) own[b] = ~0ull;
            for (; j < ends[group]; j++) {
                const uint64_t *window = words + windows->starts[j] + w;
                uint32_t right = windows->rotations[j], left = -right & 63;
                for (int b = 0; b < 8; b++) own[b] &= window[b] >> right | window[b] << left;
            }
            const uint64_t *mask = group ? masks + (group - 1) * num_words + w : NULL;
            for (int b = 0; b < 8 && group; b++) own[b] |= mask[b];
            for (int b = 0; b < 8; b++) block[b] &= own[b];
        }
        memcpy(answers + w, block, sizeof block);
    }
    for (; w < num_words; w++) {
        uint64_t word = ~0ull;
        for (int j = 0, group = 0; group < num_groups; group++) {
            uint64_t own = ~0ull;
            for (; j < ends[group]; j++) own &= rotate_right(words[windows->starts[j] + w], windows->rotations[j]);
            word &= group ? own | masks[(group - 1) * num_words + w] : own;
        }
        answers[w] = word;
    }
}

/* There is a version for each width of registers; one is chosen when the module is loaded. */
#define AND_WINDOWS(NAME, TARGET)                                                                               \
    TARGET static void NAME(const uint64_t *words, const Windows *windows, const int64_t *ends, int num_groups, \
                            const uint64_t *masks, Py_ssize_t num_words, uint64_t *answers) {                   \
        and_groups(words, windows, ends, num_groups, masks, num_words, answers);                                \
    }

AND_WINDOWS(and_windows_128, )
static void (*and_windows)(const uint64_t *, const Windows *, const int64_t *, int, const uint64_t *, Py_ssize_t,
                           uint64_t *) = and_windows_128;

/* Writes up to two ones of a word without a branch that depends on them, because most words have no more. Up to two ids
 * after the last one are overwritten. */
static inline Py_ssize_t write_ids(uint64_t word, int32_t first_id, int32_t *ids, Py_ssize_t count) {
    ids[count] = first_id + (int32_t)LOWEST(word | 1ull << 63);
    count += word != 0;
    word &= word - 1;
    ids[count] = first_id + (int32_t)LOWEST(word | 1ull << 63);
    count += word != 0;
    word &= word - (word != 0);
    for (; word; word &= word - 1) ids[count++] = first_id + (int32_t)LOWEST(word);
    return count;
}

/* Answers as ids: their number; and the ids, with memory for two more. */
#define LIST_ONES(COUNT, LIST, TARGET)                                                                         \
    TARGET static Py_ssize_t COUNT(const uint64_t *words, Py_ssize_t num_words) {                              \
        Py_ssize_t count = 0;                                                                                  \
        for (Py_ssize_t w = 0; w < num_words; w++) count += POPULATION(words[w]);                              \
        return count;                                                                                          \
    }                                                                                                          \
    TARGET static Py_ssize_t LIST(const uint64_t *words, Py_ssize_t num_words, int32_t *ids) {                 \
        Py_ssize_t count = 0;                                                                                  \
        for (Py_ssize_t w = 0; w < num_words; w++) count = write_ids(words[w], (int32_t)(64 * w), ids, count); \
        return count;                                                                                          \
    }

LIST_ONES(count_ones_anywhere, list_ones_anywhere, )
Py_ssize_t (*ones_count)(const uint64_t *, Py_ssize_t) = count_ones_anywhere;
Py_ssize_t (*ones_list)(const uint64_t *, Py_ssize_t, int32_t *) = list_ones_anywhere;

#if defined(__x86_64__)
LIST_ONES(count_ones_bmi, list_ones_bmi, __attribute__((target("bmi,popcnt"))))
AND_WINDOWS(and_windows_256, __attribute__((target("avx2"))))
AND_WINDOWS(and_windows_512, __attribute__((target("avx512f"))))

void kernel_choose_width(void) {
    __builtin_cpu_init();
    if (__builtin_cpu_supports("bmi") && __builtin_cpu_supports("popcnt")) {
        ones_count = count_ones_bmi;
        ones_list = list_ones_bmi;
    }
    if (__builtin_cpu_supports("avx2")) and_windows = and_windows_256;
    if (__builtin_cpu_supports("avx512f")) and_windows = and_windows_512;
}
#else
void kernel_choose_width(void) {}
#endif

static inline void prefetch_windows(const uint64_t *words, const Windows *windows, int num_hashes,
                                    Py_ssize_t num_words) {
    Py_ssize_t lines = num_words < 32 ? (num_words + 7) / 8 : 4; /* then the hardware prefetches the rest */
    for (int j = 0; j < num_hashes; j++)
        for (Py_ssize_t line = 0; line < lines; line++) PREFETCH(words + windows->starts[j] + 8 * line);
}

static inline Py_ssize_t words_for(int64_t num_symbols) { return (Py_ssize_t)((num_symbols + 63) / 64); }

void windows_place(const Symbols *symbols, const uint64_t *hash, Windows *windows) {
    place_windows(symbols->num_words_of_table, symbols->salt, hash, symbols->first_word, symbols->num_hashes, windows);
    prefetch_windows(symbols->words, windows, symbols->num_hashes, symbols->num_words);
}

/* First the hashes that cover all symbols of a word, then those that cover some. */
static void and_suffixes(const Symbols *symbols, const Windows *windows, uint64_t *answers) {
    const int64_t *firsts = symbols->firsts;
    for (int j = 0; j < symbols->num_hashes; j++) {
        Py_ssize_t word = words_for(firsts[j]);
        Py_ssize_t stop = j + 1 < symbols->num_hashes ? words_for(firsts[j + 1]) : symbols->num_words;
        int64_t number = j + 1;
        if (word < stop) and_windows(symbols->words + word, windows, &number, 1, NULL, stop - word, answers + word);
    }
    for (int j = 1; j < symbols->num_hashes; j++)
        if (firsts[j] % 64) {
            Py_ssize_t word = (Py_ssize_t)(firsts[j] / 64);
            answers[word] &= rotate_right(symbols->words[windows->starts[j] + (uint64_t)word], windows->rotations[j]) |
                             ((1ull << firsts[j] % 64) - 1);
        }
}

/* `masks` are those of the entity's cluster. */
void windows_read(const Symbols *symbols, const Windows *windows, const uint64_t *masks, uint64_t *answers) {
    int64_t all = symbols->num_hashes;
    if (symbols->firsts)
        and_suffixes(symbols, windows, answers);
    else
        and_windows(symbols->words, windows, masks ? symbols->ends : &all, masks ? symbols->num_groups : 1, masks,
                    symbols->num_words, answers);
    answers[symbols->num_words - 1] &= symbols->last_word;
}

/* Whether one symbol is possibly present. */
uint8_t windows_have(const Symbols *symbols, const Windows *windows, const uint64_t *masks, uint32_t symbol) {
    uint64_t bit = 1;
    if (!masks) {
        const int64_t *firsts = symbols->firsts;
        for (int j = 0; j < symbols->num_hashes && bit && (!firsts || firsts[j] <= (int64_t)symbol); j++)
            bit = symbols->words[windows->starts[j] + (symbol >> 6)] >> ((symbol + windows->rotations[j]) & 63) & 1;
        return (uint8_t)bit;
    }
    for (int j = 0, group = 0; group < symbols->num_groups && bit; group++) {
        int is_left_out = group && masks[(group - 1) * symbols->num_words + (symbol >> 6)] >> (symbol & 63) & 1;
        for (; j < symbols->ends[group]; j++)
            if (!is_left_out)
                bit &= symbols->words[windows->starts[j] + (symbol >> 6)] >> ((symbol + windows->rotations[j]) & 63);
        bit &= 1;
    }
    return (uint8_t)bit;
}

/* Whether the number of hashes is allowed; if not, sets an exception. */
static int is_number_of_hashes(Py_ssize_t num_hashes) {
    if (num_hashes >= 1 && num_hashes <= MAX_NUM_HASHES) return 1;
    PyErr_Format(PyExc_ValueError, "%zd hashes; a fact has 1 to %d", num_hashes, MAX_NUM_HASHES);
    return 0;
}

/* Whether `firsts` is missing, or ascends from 0 within the symbols; if not, sets an exception. */
static int are_firsts(const Array *firsts, Py_ssize_t num_hashes, Py_ssize_t num_symbols) {
    const int64_t *first = firsts->data;
    if (!first) return 1;
    int fits = firsts->length == num_hashes && num_hashes && !first[0];
    for (Py_ssize_t j = 0; fits && j < num_hashes; j++)
        fits = first[j] < num_symbols && (!j || first[j - 1] <= first[j]);
    if (!fits) refuse("the hashes do not fit the symbols");
    return fits;
}

/* Takes masks, and the clusters of some entities. Whether there are none, or they fit hashes in groups; if not, sets an
 * exception. */
static int take_masks(Symbols *symbols, Call *call, Py_ssize_t num_entities, const int32_t **clusters) {
    Array ends, masks, own;
    if (take(call, "8?8?4?", &ends, &masks, &own) < 0) return 0;
    symbols->masks = masks.data;
    symbols->num_clusters = 0;
    *clusters = own.data;
    if (!masks.data) return 1;
    const int64_t *end = ends.data;
    const int32_t *cluster = own.data;
    Py_ssize_t stride = (ends.length - 1) * symbols->num_words;
    int fits = end && cluster && !symbols->firsts && ends.length > 1 && ends.length <= MAX_NUM_HASHES + 1 &&
               own.length == num_entities && masks.length % stride == 0 && end[0] >= 0 &&
               end[ends.length - 1] == symbols->num_hashes;
    for (Py_ssize_t group = 1; fits && group < ends.length; group++) fits = end[group - 1] <= end[group];
    for (Py_ssize_t i = 0; fits && i < own.length; i++) fits = cluster[i] >= 0 && cluster[i] < masks.length / stride;
    if (!fits) refuse("the masks do not fit the symbols");
    symbols->num_clusters = fits ? masks.length / stride : 0;
    symbols->ends = end;
    symbols->num_groups = (int)ends.length;
    return fits;
}

/* Entities that are asked about symbols one after the other; the windows of the next one are prefetched. */
typedef struct {
    Symbols symbols;
    const uint64_t *hashes;
    const int32_t *clusters;
    const uint8_t *wanted; /* whether an entity is to be answered; NULL if all are */
    Py_ssize_t num_entities;
    Windows windows[2];
} Reader;

/* Takes the arguments with which all reads begin:
 *
 *     words, num_words, salt, salt, hashes, first_word, num_symbols, num_hashes, firsts, ends, masks, clusters
 *
 * 0, or -1 with an exception. After 0, nothing outside the arrays is accessed. */
static int take_entities(Symbols *symbols, Call *call, Array *hashes, const int32_t **clusters) {
    Array words, firsts;
    Py_ssize_t table_words, first_word, num_symbols, num_hashes;
    if (take(call, "8nww8nnn8?", &words, &table_words, &symbols->salt[0], &symbols->salt[1], hashes, &first_word,
             &num_symbols, &num_hashes, &firsts) < 0 ||
        !is_number_of_hashes(num_hashes))
        return -1;
    Py_ssize_t num_words = num_symbols / 64 + (num_symbols % 64 != 0);
    if (hashes->length % 2 || num_symbols < 1 || first_word < 0 || table_words < 1 || first_word > table_words ||
        num_words > words.length - table_words) {
        refuse("the symbols do not lie in the table's window");
        return -1;
    }
    if (!are_firsts(&firsts, num_hashes, num_symbols)) return -1;
    symbols->words = words.data;
    symbols->num_words_of_table = (uint64_t)table_words;
    symbols->num_table_words = words.length;
    symbols->first_word = (uint64_t)first_word;
    symbols->num_symbols = num_symbols;
    symbols->num_words = num_words;
    symbols->num_hashes = (int)num_hashes;
    symbols->firsts = firsts.data;
    symbols->last_word = ~0ull >> (num_words * 64 - num_symbols);
    return take_masks(symbols, call, hashes->length / 2, clusters) ? 0 : -1;
}

/* The arguments of `take_entities`, without entities. */
Symbols *symbols_take(Call *call) {
    Array nobody;
    const int32_t *clusters;
    Symbols *symbols = scratch(call, sizeof *symbols);
    return symbols && take_entities(symbols, call, &nobody, &clusters) == 0 ? symbols : NULL;
}

static int take_reader(Reader *reader, Call *call) {
    Array hashes;
    if (take_entities(&reader->symbols, call, &hashes, &reader->clusters) < 0) return -1;
    reader->hashes = hashes.data;
    reader->num_entities = hashes.length / 2;
    return 0;
}

/* Takes the arguments of `take_reader`, and `wanted`. Memory for the answers of an entity, or NULL with an
 * exception. */
static uint64_t *take_wanting_reader(Reader *reader, Call *call) {
    Array wanted;
    if (take_reader(reader, call) < 0 || take(call, "1?", &wanted) < 0) return NULL;
    if (wanted.data && wanted.length != reader->num_entities) {
        refuse(DO_NOT_FIT);
        return NULL;
    }
    reader->wanted = wanted.data;
    return scratch(call, 8 * (size_t)reader->symbols.num_words);
}

/* If it is not inlined, GCC 12 removes its stores as dead (-fipa-modref). */
static ALWAYS_INLINE void look_ahead(Reader *reader, Py_ssize_t entity) {
    if (entity >= reader->num_entities) return;
    windows_place(&reader->symbols, reader->hashes + 2 * entity, &reader->windows[entity & 1]);
}

/* Whether an entity is wanted. */
static ALWAYS_INLINE int next_entity(Reader *reader, Py_ssize_t entity) {
    look_ahead(reader, entity + 1);
    return !reader->wanted || reader->wanted[entity];
}

static inline const uint64_t *masks_of_entity(const Reader *reader, Py_ssize_t entity) {
    return reader->symbols.masks ? masks_of(&reader->symbols, reader->clusters[entity]) : NULL;
}

static void read_entity(const Reader *reader, Py_ssize_t entity, uint64_t *answers) {
    windows_read(&reader->symbols, &reader->windows[entity & 1], masks_of_entity(reader, entity), answers);
}

static int is_worth_releasing(const Reader *reader, Py_ssize_t begin) {
    return (reader->num_entities - begin) * reader->symbols.num_words * reader->symbols.num_hashes / 4 >
           WORTH_RELEASING_GIL;
}

/* possible_symbols(words, num_words, salt, salt, hashes, first_word, num_symbols, num_hashes, firsts, ends, masks,
 *                  clusters, wanted, begin, indptr, ids) -> entities done
 *
 * Continues with entity `begin`, and stops before an entity whose ids might not fit. */
KERNEL_FUNCTION(possible_symbols) {
    Reader reader;
    Array indptr, ids;
    Py_ssize_t begin;
    uint64_t *answers = take_wanting_reader(&reader, call);
    if (!answers || take(call, "n8!4!.", &begin, &indptr, &ids) < 0) return NULL;
    Py_ssize_t n = reader.num_entities;
    int64_t *ends = indptr.data;
    if (begin < 0 || begin > n || indptr.length != n + 1 || reader.symbols.num_symbols > INT32_MAX || ends[begin] < 0)
        return refuse(DO_NOT_FIT);
    Py_ssize_t count = (Py_ssize_t)ends[begin], entity = begin;
    PyThreadState *state = is_worth_releasing(&reader, begin) ? PyEval_SaveThread() : NULL;
    look_ahead(&reader, begin);
    for (; entity < n; entity++) {
        if (next_entity(&reader, entity)) {
            read_entity(&reader, entity, answers);
            Py_ssize_t num_words = reader.symbols.num_words;
            if (count + ones_count(answers, num_words) + 2 > ids.length) break;
            count += ones_list(answers, num_words, (int32_t *)ids.data + count);
        }
        ends[entity + 1] = count;
    }
    if (state) PyEval_RestoreThread(state);
    return PyLong_FromSsize_t(entity);
}

/* contains(words, num_words, salt, salt, hashes, first_word, num_symbols, num_hashes, firsts, ends, masks, clusters,
 *          wanted, symbols, per_entity, out)
 *
 * `symbols` are int32[per_entity], for every entity, or int32[n, per_entity]; no entity has a symbol outside of the
 * range, such as -1. `out` is uint8[n, per_entity]. */
KERNEL_FUNCTION(contains) {
    Reader reader;
    Array symbols, out;
    Py_ssize_t per_entity;
    uint64_t *answers = take_wanting_reader(&reader, call);
    if (!answers || take(call, "4n1!.", &symbols, &per_entity, &out) < 0) return NULL;
    Py_ssize_t n = reader.num_entities;
    if (per_entity < 0 || out.length != n * per_entity ||
        (symbols.length != per_entity && symbols.length != n * per_entity))
        return refuse(DO_NOT_FIT);
    Py_ssize_t stride = symbols.length == per_entity ? 0 : per_entity;
    /* Many symbols are read faster from the whole row, few from their own bits. */
    int whole_rows = per_entity * 4 > reader.symbols.num_words;
    Py_ssize_t steps =
        n * reader.symbols.num_hashes * (whole_rows ? reader.symbols.num_words / 4 + 1 : per_entity * 4) +
        n * per_entity;
    PyThreadState *state = steps > WORTH_RELEASING_GIL ? PyEval_SaveThread() : NULL;
    look_ahead(&reader, 0);
    for (Py_ssize_t entity = 0; entity < n; entity++) {
        const int32_t *asked = (const int32_t *)symbols.data + entity * stride;
        uint8_t *found = (uint8_t *)out.data + entity * per_entity;
        int is_wanted = next_entity(&reader, entity);
        if (is_wanted && whole_rows) read_entity(&reader, entity, answers);
        const Windows *windows = &reader.windows[entity & 1];
        const uint64_t *masks = masks_of_entity(&reader, entity);
        for (Py_ssize_t i = 0; i < per_entity; i++) {
            uint32_t symbol = (uint32_t)asked[i];
            if (!is_wanted || asked[i] < 0 || symbol >= reader.symbols.num_symbols)
                found[i] = 0;
            else if (whole_rows)
                found[i] = answers[symbol >> 6] >> (symbol & 63) & 1;
            else
                found[i] = windows_have(&reader.symbols, windows, masks, symbol);
        }
    }
    if (state) PyEval_RestoreThread(state);
    Py_RETURN_NONE;
}

/* touch_blocks(words, num_words, salt, salt, hashes, first_word, num_symbols, num_hashes, firsts, ends, masks, clusters,
 *              block_words, unchecked, touched)
 *
 * Marks in `touched` the blocks that a read would use and that `unchecked` marks, both uint8[blocks]. */
KERNEL_FUNCTION(touch_blocks) {
    Reader reader;
    Array unchecked, touched;
    Py_ssize_t block_words;
    if (take_reader(&reader, call) < 0 || take(call, "n11!.", &block_words, &unchecked, &touched) < 0) return NULL;
    if (block_words < 1 || unchecked.length != touched.length ||
        unchecked.length < (reader.symbols.num_table_words - 1) / block_words + 1)
        return refuse(DO_NOT_FIT);
    const uint8_t *is_unchecked = unchecked.data;
    uint8_t *is_touched = touched.data;
    Windows *windows = &reader.windows[0];
    for (Py_ssize_t entity = 0; entity < reader.num_entities; entity++) {
        place_windows(reader.symbols.num_words_of_table, reader.symbols.salt, reader.hashes + 2 * entity,
                      reader.symbols.first_word, reader.symbols.num_hashes, windows);
        for (int j = 0; j < reader.symbols.num_hashes; j++) {
            uint64_t last = (windows->starts[j] + (uint64_t)reader.symbols.num_words - 1) / (uint64_t)block_words;
            for (uint64_t block = windows->starts[j] / (uint64_t)block_words; block <= last; block++)
                is_touched[block] |= is_unchecked[block];
        }
    }
    Py_RETURN_NONE;
}

/* add_facts(part, first, num_words_of_part, num_words, salt, salt, hashes, places, indptr, narrow, wide, first_symbol,
 *           num_hashes, firsts)
 *
 * Sets the bits of those windows that begin in words [first, first + num_words_of_part) of the table. `part` has these
 * words, and then those into which their windows continue. Row i has the symbols `symbols[indptr[i]:indptr[i + 1]]`,
 * unsigned integers, either `narrow` of 2 bytes or `wide` of 4. They are less than in the table by `first_symbol`, and
 * so are `firsts`. The hash of row i is number `places[i]`, int32. */
KERNEL_FUNCTION(add_facts) {
    Array part, hashes, places, indptr, narrow_symbols, wide_symbols, firsts;
    Py_ssize_t first, num_words_of_part, num_words, first_symbol, num_hashes;
    uint64_t salt[2];
    if (take(call, "8!nnnww8482?4?nn8?.", &part, &first, &num_words_of_part, &num_words, &salt[0], &salt[1], &hashes,
             &places, &indptr, &narrow_symbols, &wide_symbols, &first_symbol, &num_hashes, &firsts) < 0 ||
        !is_number_of_hashes(num_hashes))
        return NULL;
    const uint16_t *narrow = narrow_symbols.data;
    const uint32_t *wide = wide_symbols.data;
    Py_ssize_t n = places.length, m = narrow ? narrow_symbols.length : wide_symbols.length;
    const int64_t *starts = indptr.data;
    const int32_t *keys = places.data;
    int fits = !narrow != !wide && indptr.length == n + 1 && first_symbol >= 0 && starts[0] >= 0 && starts[n] <= m &&
               num_words_of_part >= 0 && num_words_of_part <= part.length;
    uint64_t window_bits = fits ? 64 * (uint64_t)(part.length - num_words_of_part) : 0;
    for (Py_ssize_t i = 0; fits && i < n; i++)
        fits = starts[i] <= starts[i + 1] && keys[i] >= 0 && keys[i] < hashes.length / 2;
    for (Py_ssize_t i = 0; fits && i < m; i++)
        fits = (narrow ? narrow[i] : wide[i]) + (uint64_t)first_symbol < window_bits;
    if (!fits) return refuse("the facts do not fit the table");
    if (!are_firsts(&firsts, num_hashes, (Py_ssize_t)window_bits)) return NULL;
    const int64_t *first_of = firsts.data;
    Windows windows;
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t i = 0; i < n; i++) {
        if (starts[i] == starts[i + 1]) continue;
        place_windows((uint64_t)num_words, salt, (const uint64_t *)hashes.data + 2 * (Py_ssize_t)keys[i], 0,
                      (int)num_hashes, &windows);
        /* All words are prefetched before they are changed, so that cache misses overlap. */
        for (int change = 0; change < 2; change++) {
            for (int j = 0; j < num_hashes; j++) {
                uint64_t place = windows.starts[j] - (uint64_t)first;
                if (place >= (uint64_t)num_words_of_part) continue; /* another part's; the difference may wrap */
                uint64_t *window = (uint64_t *)part.data + place;
                uint32_t rotation = windows.rotations[j];
                for (int64_t fact = starts[i]; fact < starts[i + 1]; fact++) {
                    uint32_t symbol = narrow ? narrow[fact] : wide[fact];
                    if (first_of && first_of[j] > (int64_t)symbol) continue;
                    symbol += (uint32_t)first_symbol;
                    if (change)
                        window[symbol >> 6] |= 1ull << ((symbol + rotation) & 63);
                    else
                        PREFETCH(window + (symbol >> 6));
                }
            }
        }
    }
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}
