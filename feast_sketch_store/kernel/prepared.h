/* Functions on prepared rows, by file; each file calls only those below it here. */

#ifndef FEAST_SKETCH_STORE_PREPARED_H
#define FEAST_SKETCH_STORE_PREPARED_H

#include "types.h"

/* -- faults, and blocks that are verified when they are first needed: blocks.c -------------------------- */

extern _Thread_local Fault fault; /* of this thread's last failed read, until it is raised */

/* Notes why a read fails, and returns FAILED. */
int fail(int status);

/* Raises the fault of this thread's read, which it met at an entity, and returns NULL. */
PyObject *raise_fault(const uint64_t *hash);

/* Lets other threads run until `retake_gil`. In between, damage may be noted, and objects must not be touched. */
void release_gil(void);
void retake_gil(void);

/* Verifies the unchecked ones of some blocks. Whether all are intact; if not, the fault of this thread has the block. */
int verify_blocks(const Blocks *blocks, uint64_t first, uint64_t last);

/* Asks the system to load the unchecked ones of the blocks of some words, which will be verified soon. */
void expect_words(const Blocks *blocks, uint64_t first_word, uint64_t last_word);

static inline int is_finished(const Blocks *blocks) { return !blocks->unchecked || !*blocks->pending; }

static inline int are_verified(const Blocks *blocks, uint64_t first_word, uint64_t last_word) {
    if (is_finished(blocks)) return 1;
    uint64_t last = last_word / blocks->block_words;
    for (uint64_t b = first_word / blocks->block_words; b <= last && b < blocks->number; b++)
        if (blocks->unchecked[b]) return verify_blocks(blocks, b, last);
    return 1;
}

/* 0, or -1 if there is no such number, or its block is damaged. */
static inline int get_number(const Numbers *numbers, uint64_t place, int64_t *number) {
    uint64_t word = place * (uint64_t)numbers->packed.width >> 6;
    if (place >= numbers->length || (numbers->packed.width && !are_verified(&numbers->blocks, word, word + 1))) return -1;
    *number = (int64_t)(get_packed(&numbers->packed, place) + numbers->base);
    return 0;
}

/* -- memory for the duration of a read: arena.c ---------------------------------------------------------- */

static inline void arena_init(Arena *arena) {
    arena->next = (uint8_t *)arena->own;
    arena->stop = arena->next + sizeof arena->own;
    arena->blocks = NULL;
}

/* Memory aligned to 8; NULL if there is none. */
void *arena_get(Arena *arena, size_t size);
void arena_reset(Arena *arena); /* gives all memory back, for further use */
void arena_free(Arena *arena);

/* -- bytes that grow: buffers.c ---------------------------------------------------------------------------- */

typedef struct {
    uint8_t *bytes;
    size_t length, room;
} Buffer;

/* Room for this many more bytes at the end, also for none; NULL if there is no memory. */
void *buffer_extend(Buffer *buffer, size_t size);

/* An object that owns the bytes; the buffer is empty then. NULL with an exception. */
PyObject *buffer_give(Buffer *buffer);

/* -- construction: prepared.c ---------------------------------------------------------------------------- */

int keep(Prepared *self, Call *call); /* hands the arguments of a call over to the object */
PyObject *done(Prepared *self, Call *call); /* the same, and returns None */
int take_blocks(Call *call, Blocks *blocks); /* a `Check`, or None */
int take_checked(Call *call, CheckedAscending *checked, int by_value); /* as `take_ascending`, with blocks of parts */
int take_numbers(Call *call, Numbers *numbers); /* words, width, base, length and a `Check` */
int is_first(const Prepared *self); /* whether there are no rows yet; if not, sets an exception */
Feature *begun(Prepared *self, int kind); /* the last feature, if it was just begun; NULL with an exception */

/* -- where the rows are: locate.c ------------------------------------------------------------------------ */

/* The number with index `place`, which is below the length; ~0 if it cannot be read here. */
uint64_t get_checked(const CheckedAscending *checked, int64_t place);

/* Finds the row of an entity: FOUND, EXPIRED, ABSENT or FAILED. */
int locate(const Prepared *stack, const uint64_t *hash, int64_t expire_before, Arena *arena, Place *place);

/* Prefetches what `locate` needs first. */
void expect(const Prepared *stack, const uint64_t *hash);

/* Reads feature `f` of one row or of all pieces, and sets `feature` to what to write it as; 0 or FAILED. */
int read_feature(Place *place, Py_ssize_t f, const Feature **feature, Arena *arena, Content *content);

/* Replaces ids by their values; 0 or FAILED. */
int resolve(const Feature *feature, Arena *arena, Content *content);

/* The number of features in answers. */
static inline Py_ssize_t num_shown(const Prepared *stack) {
    return stack->limits ? stack->num_shown : stack->layers[0].rows->num_features;
}

/* The name of an id; -1 if it has no name, -2 if there is no such id. */
static inline int32_t name_of(const Layer *layer, int32_t id) {
    if (!layer->names) return id;
    return id < 0 || id >= layer->num_names ? -2 : layer->names[id];
}

/* -- lists whose rows add up: merge.c --------------------------------------------------------------------- */

/* Finds all rows of an entity whose items are combined, in the layers from `first` up to `end`: FOUND, EXPIRED if only
 * items may keep it alive, ABSENT or FAILED. */
int locate_items(const Prepared *stack, const uint64_t *hash, Py_ssize_t first, Py_ssize_t end, int64_t expire_before,
                 Arena *arena, Place *place);

/* The items of feature `f` in all pieces of a place, as values, and the feature to write them as; 0 or FAILED */
int read_together(Place *place, Py_ssize_t f, const Feature **feature, Arena *arena, Content *content);

/* Makes the ids of a list distinct and ascending; 0 or FAILED. */
int make_distinct(const Place *place, Arena *arena, Content *content);

/* Makes ids ascending and distinct, and returns their number. */
int64_t distinct(int32_t *ids, int64_t count);

/* -- kinds of features: features.c, items.c, filter.c, bloomier.c ----------------------------------------- */

/* The ids of a row, for a feature that stores them one row after the other; 0 or FAILED */
int read_exact(const Place *place, const Feature *feature, Arena *arena, Content *content);

/* All items of a row that are not too old, with times in microseconds; 0 or FAILED */
int read_all_items(const Place *place, const Layer *layer, int64_t row, const Feature *feature, Arena *arena,
                   Content *content, int64_t **times);

/* Reads the sets of rows of one layer, several at once; 0 or FAILED. */
int read_sets_of(const Prepared *rows, Place **places, Py_ssize_t number, Arena *arena);

/* The state of a feature of a row, as its shapes or a column say; FAILED if it cannot be read. */
int read_state(const Place *place, const Feature *feature);

/* Prefetches the windows of an entity, and keeps where they are. */
void expect_windows(RecentWindows *recent, const Symbols *symbols, const uint64_t *hash);

/* Reads a filter without visiting each id: bits of all symbols, or whether there are some symbols, -1 for none; 0 or
 * FAILED. */
int read_bits(const Place *place, const Feature *feature, uint64_t *words);
int read_some(const Place *place, const Feature *feature, const int32_t *symbols, Py_ssize_t number, uint8_t *found);

/* -- reads of many entities: batch_reads.c ------------------------------------------------------------------ */

enum { ROWS_AT_A_TIME = 64 };

/* Some entities to be read. */
typedef struct {
    const Prepared *stack;
    const uint64_t *hashes; /* of the entities; the one at which a read failed is `hash` */
    const uint64_t *hash;
    Py_ssize_t n;
    int64_t expire_before, limit; /* the most items of lists */
    int is_long;  /* whether other threads run meanwhile */
    int is_dated; /* whether timestamps of rows are wanted */
    int is_whole; /* whether contents live until `free_walk` */
    Arena arena;
} Walk;

/* What is done with entity `i`: 0 or FAILED. `place` is its row if the status is FOUND. */
typedef int (*Sink)(void *self, Py_ssize_t i, int status, Place *place, Arena *arena);

/* Takes the hashes of entities, 16 bytes each, and `expire_before`. 0, or -1 with an exception. */
int begin_walk(Call *call, Walk *walk, int is_dated);

/* Hands one entity after the other to a sink: 0, or -1 with an exception. */
int run_walk(Walk *walk, Sink sink, void *self, Py_ssize_t steps_of_a_row);

static inline void free_walk(Walk *walk) { arena_free(&walk->arena); }

/* Reads the first feature of a row, with each id once; 0 or FAILED. */
int read_first(Place *place, const Feature **feature, Arena *arena, Content *content);

/* -- methods ------------------------------------------------------------------------------------------------- */

#define ROW_METHODS(DO) DO(listed) DO(exact)

#define FEATURE_METHODS(DO) DO(feature) DO(from_set) DO(from_column) DO(from_digits) DO(from_rows) DO(from_states) DO(ones) DO(states)

#define FILTER_METHODS(DO) DO(shaped) DO(shapes) DO(from_filter) DO(clusters) DO(numbered) DO(from_number)

#define LIST_METHODS(DO) DO(from_list) DO(from_weights) DO(limits) DO(fenced) DO(from_items) DO(removals)

#define READ_METHODS(DO) DO(rows) DO(vectors) DO(columns) DO(csr) DO(bits) DO(contains) DO(contains_values) DO(scores) DO(found)

#define DECLARE_METHOD(NAME) PyObject *prepared_##NAME(PyObject *self, PyObject *const *arguments, Py_ssize_t number);
ROW_METHODS(DECLARE_METHOD)
FEATURE_METHODS(DECLARE_METHOD)
FILTER_METHODS(DECLARE_METHOD)
LIST_METHODS(DECLARE_METHOD)
READ_METHODS(DECLARE_METHOD)

/* As KERNEL_FUNCTION; the body has `self` as well. */
#define PREPARED_METHOD(NAME)                                                                        \
    static PyObject *NAME##_body(Call *call);                                                        \
    PyObject *prepared_##NAME(PyObject *object, PyObject *const *arguments, Py_ssize_t number) {     \
        return run(NAME##_body, object, arguments, number);                                          \
    }                                                                                                \
    static PyObject *NAME##_body(Call *call)

#endif
