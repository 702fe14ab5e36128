/* Functions on rows and their parts, by file. A file calls only files above it here, and those of kernel.h. */

#ifndef FEAST_SKETCH_STORE_ROW_READER_H
#define FEAST_SKETCH_STORE_ROW_READER_H

#include "types.h"

/* -- faults, and blocks that are verified when they are first needed: blocks.c -------------------------- */

extern _Thread_local Fault fault; /* of this thread's last failed read, until it is raised */

/* Notes why a read fails, and returns FAILED. */
int fault_note(int status);

/* Raises the fault of this thread's read, which it met at an entity, and returns NULL. */
PyObject *fault_raise(const uint64_t *hash);

/* Lets other threads run until `gil_retake`. In between, damage may be noted, and objects must not be touched. */
void gil_release(void);
void gil_retake(void);

int blocks_take(Call *call, Blocks *blocks); /* a `BlockChecks`, or None */

/* Verifies the unchecked ones of some blocks. Whether all are intact; if not, the fault of this thread has the block. */
int blocks_verify(const Blocks *blocks, uint64_t first, uint64_t last);

/* Asks the system to load the unchecked ones of the blocks of some words, which will be verified soon. */
void blocks_expect(const Blocks *blocks, uint64_t first_word, uint64_t last_word);

static inline int blocks_are_finished(const Blocks *blocks) { return !blocks->unchecked || !*blocks->pending; }

static inline int blocks_are_verified(const Blocks *blocks, uint64_t first_word, uint64_t last_word) {
    if (blocks_are_finished(blocks)) return 1;
    uint64_t last = last_word / blocks->block_words;
    for (uint64_t b = first_word / blocks->block_words; b <= last && b < blocks->number; b++)
        if (blocks->unchecked[b]) return blocks_verify(blocks, b, last);
    return 1;
}

/* -- memory of a read, and bytes that grow: memory.c ------------------------------------------------------ */

static inline void arena_init(Arena *arena) {
    arena->next = (uint8_t *)arena->own;
    arena->stop = arena->next + sizeof arena->own;
    arena->blocks = NULL;
}

/* Memory aligned to 8; NULL if there is none. */
void *arena_get(Arena *arena, size_t size);
void arena_reset(Arena *arena); /* releases all memory for further use */
void arena_free(Arena *arena);

/* Memory for this many more bytes at the end, also for none; NULL if there is none. */
void *buffer_extend(Buffer *buffer, size_t size);

/* An object that owns the bytes; the buffer is empty then. NULL with an exception. */
PyObject *buffer_give(Buffer *buffer);

/* -- packed and ascending numbers, and the rows of entities: elias_fano.c --------------------------------- */

/* The 64 bits from bit `bit` on; the word after the one in which they begin is read as well. */
static inline uint64_t bits_at(const uint64_t *words, uint64_t bit) {
    uint64_t word = bit >> 6, shift = bit & 63;
    return words[word] >> shift | words[word + 1] << 1 << (63 - shift);
}

static inline uint64_t packed_get(const Packed *packed, uint64_t place) {
    if (!packed->width) return 0;
    return bits_at(packed->words, place * (uint64_t)packed->width) & (~0ull >> (64 - packed->width));
}

/* 0, or -1 if there is no such number, or its block is damaged. */
static inline int numbers_get(const Numbers *numbers, uint64_t place, int64_t *number) {
    uint64_t word = place * (uint64_t)numbers->packed.width >> 6;
    if (place >= numbers->length || (numbers->packed.width && !blocks_are_verified(&numbers->blocks, word, word + 1)))
        return -1;
    *number = (int64_t)(packed_get(&numbers->packed, place) + numbers->base);
    return 0;
}

int numbers_take(Call *call, Numbers *numbers); /* words, width, base, length and a `BlockChecks` */

/* Takes highs, num_buckets, length, low words, low width, sample words and sample width, and `BlockChecks` of each of the
 * words. Samples are positions of zeros if numbers are found by value, and of ones if they are found by index. 0, or -1
 * with an exception. */
int checked_take(Call *call, CheckedAscending *checked, int by_value);

/* Whether all of it was found intact. */
static inline int checked_is_finished(const CheckedAscending *checked) {
    return blocks_are_finished(&checked->highs) && blocks_are_finished(&checked->lows) &&
           blocks_are_finished(&checked->samples);
}

/* Whether everything from a sample to the next one is intact; with samples of zeros, the lows as well. */
int checked_has_sample(const CheckedAscending *checked, uint64_t sample);

/* The bits of a row in consecutive codes, if they are intact; 0 or -1. `stop` may be NULL: once all blocks are verified, only
 * where the row begins is read then. */
int row_bits_get(const CheckedAscending *starts, int64_t row, uint64_t num_bits, const Blocks *blocks, uint64_t *start,
                 uint64_t *stop);
void ascending_expect(const Ascending *numbers, int64_t place); /* prefetches its words */

int index_fits(const RowIndex *index); /* whether the range fits the fingerprints */
uint64_t index_bucket(const RowIndex *index, uint64_t hash);

#define NO_ROW (-1)
#define DAMAGED_INDEX (-2)

/* The hash that determines the row of an entity, by its upper part. */
static inline uint64_t row_hash(const uint64_t *hash, const uint64_t *salt) {
    return mix64(mix64(hash[0] ^ salt[0]) + (hash[1] ^ salt[1]));
}

/* The row of an entity by its row hash, `NO_ROW`, or `DAMAGED_INDEX`. */
int64_t index_find(const RowIndex *index, uint64_t hash);
void index_expect(const RowIndex *index, uint64_t hash); /* prefetches its words */

/* -- how rows and features begin: features.c -------------------------------------------------------------- */

int reader_keep(RowReader *self, Call *call); /* hands the arguments of a call over to the object */
PyObject *reader_done(RowReader *self, Call *call); /* the same, and returns None */
int reader_is_empty(const RowReader *self); /* whether there are no rows yet; if not, sets an exception */
Feature *feature_begun(RowReader *self, int kind); /* the last feature, if it was just begun; NULL with an exception */
int content_resolve(const Values *values, Arena *arena, Content *content); /* adds the values of ids; 0 or FAILED */

/* -- shifting Bloom filters: shifting_bloom.c ------------------------------------------------------------ */

/* Takes the symbols of a table, as scratch memory of the call; NULL with an exception. */
Symbols *symbols_take(Call *call);

void windows_place(const Symbols *symbols, const uint64_t *hash, Windows *windows); /* and prefetches them */

/* The masks of a cluster; NULL if there are none. */
static inline const uint64_t *masks_of(const Symbols *symbols, int64_t cluster) {
    return symbols->masks ? symbols->masks + cluster * (symbols->num_groups - 1) * symbols->num_words : NULL;
}

/* Which symbols an entity possibly has, as bits of words; and whether it possibly has one. `masks` are those of its cluster. */
void windows_read(const Symbols *symbols, const Windows *windows, const uint64_t *masks, uint64_t *answers);
uint8_t windows_have(const Symbols *symbols, const Windows *windows, const uint64_t *masks, uint32_t symbol);

/* How many bits of words are set; and which, with memory for two more than these. */
extern Py_ssize_t (*ones_count)(const uint64_t *words, Py_ssize_t num_words);
extern Py_ssize_t (*ones_list)(const uint64_t *words, Py_ssize_t num_words, int32_t *ids);

/* -- rows, and kinds of features, which are read by `Feature.read` ----------------------------------------- */

/* exact_rows.c: the index of a hash among ascending ones, or NO_ROW. */
int64_t hashes_find(const uint64_t *hashes, int64_t number, const uint64_t *hash);

/* golomb_sets.c: reads the sets of rows of one layer, several at once; 0 or FAILED. */
int sets_read(const RowReader *rows, Place **places, Py_ssize_t number, Arena *arena);

/* timed_lists.c: all items of a row that are not too old, with times in microseconds, and with codes if these are
 * wanted; 0 or FAILED. */
int items_read(const Place *place, const Layer *layer, int64_t row, const Feature *feature, Arena *arena,
               Content *content, int64_t **times, uint8_t **codes);

/* attributes.c: the codes of some items of a sealed row, from the item `first` on; NULL if they cannot be read. */
uint8_t *codes_read(int64_t row, const Attribute *attribute, int64_t first, int64_t count, Arena *arena);

/* Puts the codes of items into the low bits of their times; or if one attribute is wanted, its values in place of ids. 0
 * or FAILED. */
int attribute_elements(const Attribute *attribute, const uint8_t *codes, int64_t *times, Arena *arena,
                       Content *content);

/* The rest: filtered_rows.c. The state of a feature of a row, as its shapes or a column say; FAILED if it cannot be
 * read. */
int state_read(const Place *place, const Feature *feature);

/* Prefetches the windows of an entity, and keeps where they are. */
void windows_expect(RecentWindows *recent, const Symbols *symbols, const uint64_t *hash);

/* Reads a filter without visiting each id: bits of all symbols, or whether there are some symbols, -1 for none; 0 or
 * FAILED. */
int filter_read_bits(const Place *place, const Feature *feature, uint64_t *words);
int filter_read_some(const Place *place, const Feature *feature, const int32_t *symbols, Py_ssize_t number,
                     uint8_t *found);

/* -- lists and sets whose rows add up: merge.c ------------------------------------------------------------ */

/* The name of an id; -1 if it has no name, -2 if there is no such id. */
static inline int32_t layer_name(const Layer *layer, int32_t id) {
    if (!layer->names) return id;
    return id < 0 || id >= layer->num_names ? -2 : layer->names[id];
}

/* Whether the numbers of equal values are counts, which are added up. */
static inline int items_are_counted(const RowReader *stack, Py_ssize_t f) { return !stack->resolutions[f]; }

/* Whether the items of a feature have times, by which they expire; those of a set have none. */
static inline int items_are_timed(const RowReader *stack, Py_ssize_t f) {
    return !items_are_counted(stack, f) && stack->resolutions[f] != INT64_MAX;
}

/* Finds all rows of an entity whose items are combined, in the layers from `first` up to `end`: FOUND, EXPIRED if only
 * items may keep it alive, ABSENT or FAILED. */
int items_locate(const RowReader *stack, const uint64_t *hash, Py_ssize_t first, Py_ssize_t end, int64_t expire_before,
                 Arena *arena, Place *place);

/* The items of feature `f` in all pieces of a row, as values, and the feature to write them as; 0 or FAILED */
int items_merge(Place *place, Py_ssize_t f, const Feature **feature, Arena *arena, Content *content);

/* Makes the ids of a list distinct and ascending; 0 or FAILED. */
int content_make_distinct(const Place *place, Arena *arena, Content *content);

/* Makes ids ascending and distinct, and returns their number. */
int64_t ids_make_distinct(int32_t *ids, int64_t count);

/* -- the walk: row_reader.c -------------------------------------------------------------------------------- */

/* Takes the hashes of entities, 16 bytes each, and `expire_before`. 0, or -1 with an exception. */
int walk_begin(Call *call, Walk *walk, int is_dated);

/* Hands one entity after the other to a sink: 0, or -1 with an exception. */
int walk_run(Walk *walk, Sink sink, void *self, Py_ssize_t steps_of_a_row);

static inline void walk_free(Walk *walk) { arena_free(&walk->arena); }

/* Reads feature `f` of one row or of all pieces, and sets `feature` to what to write it as; 0 or FAILED. */
int feature_read(Place *place, Py_ssize_t f, const Feature **feature, Arena *arena, Content *content);

/* The number of features in answers. */
static inline Py_ssize_t reader_num_shown(const RowReader *stack) {
    return stack->limits ? stack->num_shown : stack->layers[0].rows->num_features;
}

/* -- methods: of files above, and of the sinks in arrays.c, candidates.c and response.c; module.c has the type --- */

/* clang-format off */
#define EACH_READER_METHOD(DO)                                                                                  \
    DO(listed) DO(exact) DO(fenced) DO(shaped) DO(shapes) DO(numbered) DO(sets)                                 \
    DO(feature) DO(states) DO(ones) DO(from_set) DO(from_column) DO(from_digits) DO(from_rows)                  \
    DO(from_states) DO(from_filter) DO(clusters) DO(from_number) DO(from_list) DO(from_items)                   \
    DO(attribute) DO(attribute_codes) DO(removals) DO(layer) DO(limits) DO(shards)                              \
    DO(rows) DO(vectors) DO(columns) DO(csr) DO(bits) DO(contains) DO(contains_values) DO(scores) DO(found)
/* clang-format on */

#define DECLARE_METHOD(NAME) PyObject *reader_##NAME(PyObject *self, PyObject *const *arguments, Py_ssize_t number);
EACH_READER_METHOD(DECLARE_METHOD)

/* As KERNEL_FUNCTION; the call has `self` as well. */
#define READER_METHOD(NAME)                                                                    \
    static PyObject *NAME##_body(Call *call);                                                  \
    PyObject *reader_##NAME(PyObject *object, PyObject *const *arguments, Py_ssize_t number) { \
        return run(NAME##_body, object, arguments, number);                                    \
    }                                                                                          \
    static PyObject *NAME##_body(Call *call)

#endif
