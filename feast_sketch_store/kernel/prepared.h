/* Rows prepared for reads of one entity; prepared.c makes them, single.c and wire.c read them. */

#ifndef FEAST_SKETCH_STORE_PREPARED_H
#define FEAST_SKETCH_STORE_PREPARED_H

#include "kernel.h"

/* The blocks of an array, each verified by its checksum when a read first needs it; see snapshot/blocks.py. */
typedef struct {
    PyObject *check; /* the object that reports a damaged block */
    const uint64_t *words;
    const uint8_t *checksums; /* 16 bytes a block */
    uint8_t *unchecked;       /* marks of blocks; NULL if all are verified */
    uint64_t num_words, block_words, number;
} Blocks;

/* Verifies the unchecked ones of some blocks. Whether all are intact; if not, the fault of this thread has the block. */
int verify_blocks(const Blocks *blocks, uint64_t first, uint64_t last);

/* Asks the system to load the unchecked ones of the blocks of some words, which will be verified soon. */
void expect_words(const Blocks *blocks, uint64_t first_word, uint64_t last_word);

static inline int are_verified(const Blocks *blocks, uint64_t first_word, uint64_t last_word) {
    if (!blocks->unchecked) return 1;
    uint64_t last = last_word / blocks->block_words;
    for (uint64_t b = first_word / blocks->block_words; b <= last && b < blocks->number; b++)
        if (blocks->unchecked[b]) return verify_blocks(blocks, b, last);
    return 1;
}

/* `length` integers, each `base` plus the packed number. */
typedef struct {
    Packed packed;
    uint64_t base, length;
    Blocks blocks;
} Numbers;

/* 0, or -1 if there is no such number, or its block is damaged. */
static inline int get_number(const Numbers *numbers, uint64_t place, int64_t *number) {
    uint64_t word = place * (uint64_t)numbers->packed.width >> 6;
    if (place >= numbers->length || (numbers->packed.width && !are_verified(&numbers->blocks, word, word + 1))) return -1;
    *number = (int64_t)(get_packed(&numbers->packed, place) + numbers->base);
    return 0;
}

/* Ascending numbers; some blocks of highs, lows and samples may be unchecked. */
typedef struct {
    Ascending numbers;
    Blocks highs, lows, samples;
} CheckedAscending;

/* The values of ids: numbers, or binary values as Arrow lays them out. */
typedef struct {
    const int64_t *numbers, *offsets;
    const uint8_t *data;
    int64_t length, num_bytes;
} Values;

typedef struct {
    const uint8_t *bytes;
    int64_t length;
} Slice;

enum { MISSING, IS_NULL, EMPTY, VALUE }; /* states, as in codecs.py */

typedef struct {
    enum { UNKNOWN, IN_SETS, IN_COLUMN, IN_DIGITS, IN_ROWS, IN_FILTER, IN_LISTS, IN_WEIGHTS, IN_NUMBER, IN_ITEMS, IN_STATES } form;
    Values values; /* of ids, if the elements are ids */
    uint8_t tag[8];
    Py_ssize_t tag_size;
    int is_collection, wire;
    int is_ones; /* whether the elements are a one for each value */
    /* in sets: the number of its code, and the names of ids */
    Py_ssize_t number;
    const int32_t *own_ids;
    /* in a column */
    Numbers states, bounds, elements;
    Py_ssize_t range; /* of shapes, with the states */
    int64_t state_step;
    int has_bounds, is_text;
    enum { AS_IDS, AS_NUMBERS, AS_BYTES } elements_are;
    const uint8_t *content;
    int64_t num_content_bytes;
    Blocks content_blocks;
    /* in digits of `elements` */
    uint64_t divisor, num_symbols;
    const uint8_t *others; /* states of the symbols after the values */
    uint64_t num_others;
    /* in rows one after the other */
    const uint8_t *row_states;
    const int64_t *indptr;
    const int32_t *ids;
    int64_t num_ids;
    /* in a filter, whose blocks are those of the content */
    SymbolsOfTable *symbols;
    Numbers clusters; /* of rows */
    /* in lists, with codes in the blocks of the content: ids, each with a tick or with the number of a count */
    ListCode code;
    uint64_t num_code_bits;
    CheckedAscending starts;
    int64_t newest_tick, resolution; /* of ticks, in microseconds */
    const int64_t *counts;           /* NULL if there are ticks */
    int64_t num_counts;
    int64_t unit; /* unit of the times or counts that are the elements; 0 if the elements are the ids */
    /* in weights of rows, one row after the other as above; or in items, whose times they are */
    const int64_t *weights;
    /* what rows remove of the items in older layers; NULL if nothing */
    const uint8_t *removal_states;
    const int64_t *removal_indptr, *until;
    const int32_t *removed_ids;
    Values removed;
    int64_t num_removed;
} Feature;

/* Shapes of some features of rows, in a filter. */
typedef struct {
    SymbolsOfTable *shapes;
    Blocks blocks;
    int is_wanted; /* by a feature */
} Range;

/* A layer of rows, or a stack of such layers from the newest to the oldest. Does not change once it is shared. */
typedef struct Prepared Prepared;

typedef struct {
    Prepared *rows;
    const int32_t *names; /* the ids of the first feature in answers; NULL if they are the same */
    int64_t num_names;
    /* of a delta: the ascending entities that it decides, and which of them were deleted; NULL for other layers */
    const uint64_t *hashes;
    const uint8_t *deleted;
    int64_t num_hashes;
} Layer;

struct Prepared {
    PyObject_HEAD
    enum { NOTHING, LISTED, EXACT, SHAPED, NUMBERED, STACK } kind;
    int64_t num_rows;
    /* listed */
    uint64_t salt[2];
    RowIndex index;
    CheckedAscending fingerprints; /* of the index */
    const int64_t *distinct_timestamps; /* NULL if `timestamps` are not ids of them */
    int64_t num_distinct_timestamps;
    Numbers timestamps;
    const int64_t *bucket_bounds;
    int64_t num_buckets;
    /* exact */
    const uint64_t *hashes;
    const int64_t *event_timestamps;
    const uint8_t *deleted;
    const uint8_t *fences; /* of lists: the rows that hide those in older layers */
    /* by shapes, of which those of the first range are the numbers of rows */
    Range *ranges;
    Py_ssize_t num_ranges;
    const int64_t *oldest, *newest;
    /* by the numbers of a static function, whose lowest digits are shapes */
    StaticFunction function;
    Blocks function_blocks;
    /* either */
    Sets sets;
    Blocks code_blocks;
    CheckedAscending starts; /* of the sets */
    uint8_t *marks;
    Py_ssize_t last_set; /* that is wanted; -1 if none is */
    Feature *features;
    Py_ssize_t num_features;
    /* a stack */
    Layer *layers;
    Py_ssize_t num_layers;
    /* of features whose lists add up: how many items they show, and within how many microseconds a value is shown once;
     * NULL if rows replace each other */
    const int64_t *limits, *resolutions;
    Py_ssize_t num_shown; /* features in answers; the lists after them may keep a row alive */
    int is_named;  /* whether ids have names in one vocabulary */
    uint64_t seed; /* of hash tables of values */
    /* the highest bits of a hash are the number of its shard, whose layers begin at `first_layers`; NULL without
 * shards */
    const int64_t *first_layers;
    const uint8_t *is_served;
    int64_t num_shards;
    int shard_shift;
    /* the objects that all pointers point into */
    Py_buffer *buffers;
    PyObject **objects;
    void **memory;
    Py_ssize_t num_buffers, num_objects, num_memory;
};

/* -- construction: prepared.c -------------------------------------------------------------------------- */

int keep(Prepared *self, Call *call); /* hands the arguments of a call over to the object */
int take_blocks(Call *call, Blocks *blocks); /* a `Check`, or None */
int take_checked(Call *call, CheckedAscending *checked, int by_value); /* as `take_ascending`, with blocks of parts */
int take_numbers(Call *call, Numbers *numbers); /* words, width, base, length and a `Check` */
Feature *begun(Prepared *self, int kind); /* the last feature that was begun; NULL with an exception */

/* -- memory for the duration of a read ---------------------------------------------------------------- */

typedef struct Block Block;

typedef struct {
    uint64_t own[512];
    uint8_t *next, *stop; /* what is left of them, or of the last block */
    Block *blocks;
} Arena;

static inline void arena_init(Arena *arena) {
    arena->next = (uint8_t *)arena->own;
    arena->stop = arena->next + sizeof arena->own;
    arena->blocks = NULL;
}

/* Memory aligned to 8; NULL if there is none. */
void *arena_get(Arena *arena, size_t size);
void arena_free(Arena *arena);

/* -- reads and their faults ---------------------------------------------------------------------------- */

/* What a read finds. If it fails, the fault of this thread says why. */
enum { FAILED = -1, ABSENT = 0, FOUND = 1, EXPIRED = 2 };

/* Why a read failed: parts of a file contradict each other, or a block of it is damaged; the shard of an entity is not
 * read here; a message would be too long; there is no memory. */
enum { DAMAGED, NOT_SERVED, TOO_LONG, NO_MEMORY };

typedef struct {
    int status;
    const Blocks *blocks; /* with a damaged block; else NULL */
    uint64_t block;
    Py_ssize_t feature; /* whose values are too long */
} Fault;

extern _Thread_local Fault fault; /* of this thread's last failed read, until it is raised */

/* Notes why a read fails, and returns FAILED. */
int fail(int status);

/* Raises the fault of this thread's read, which it met at an entity, and returns NULL. */
PyObject *raise_fault(const uint64_t *hash);

/* Lets other threads run until `retake_gil`. In between, damage may be noted, and objects must not be touched. */
void release_gil(void);
void retake_gil(void);

/* One of the rows whose items are combined. */
typedef struct {
    const Layer *layer;
    int64_t row;
} Piece;

typedef struct {
    const Prepared *stack;
    const Layer *layer;
    const uint64_t *hash; /* of the entity */
    int64_t row, timestamp;
    uint64_t number; /* the entity's number in a static function, without its shape */
    const int64_t *limits; /* of its stack */
    int64_t since, limit;  /* of items of lists: the oldest time, and the most items */
    RowOfSets sets; /* set once they are read: then `ids` is not NULL */
    int32_t *ids;
    Py_ssize_t num_pieces; /* from the newest to the oldest; 0 if there is only this row */
    Piece *pieces;
    int is_ambiguous; /* whether the row may have several shapes of a range */
    Layer together; /* has the names of the values of pieces, once they are read */
    const int64_t *spelled_numbers; /* these values, or */
    const Slice *spelled_slices;
} Place;

/* The row of an entity in a listed layer by its row hash, or in an exact one; else NO_ROW or DAMAGED_INDEX. */
int64_t find_hashed(const Prepared *rows, uint64_t own);
int64_t find_exact(const Prepared *rows, const uint64_t *hash);

/* The index of an entity among those of a delta, or NO_ROW. */
int64_t find_listed(const Layer *layer, const uint64_t *hash);

/* A shape of an entity, NO_ROW, or DAMAGED_INDEX. */
int64_t find_shape(const Prepared *rows, const uint64_t *hash, Place *place);
int date_shape(const Prepared *rows, int64_t expire_before, Place *place); /* FOUND, EXPIRED or FAILED */

/* The state of a feature of a row, as its shapes or a column say; -1 if it cannot be read. */
int read_state(const Place *place, const Feature *feature);

/* The shape of an entity by its number in a static function; puts the other digits into `place`. */
int64_t find_number(const Prepared *rows, const uint64_t *hash, Place *place);

/* Reads the timestamp of a row of a listed layer: FOUND, EXPIRED or FAILED. */
int date_listed(const Prepared *rows, int64_t expire_before, Place *place);

/* The number with index `place`, which is below the length; ~0 if it cannot be read here. */
uint64_t get_checked(const CheckedAscending *checked, int64_t place);

static inline int64_t shard_of(const Prepared *stack, const uint64_t *hash) {
    return (int64_t)(hash[0] >> stack->shard_shift);
}

/* Finds the row of an entity: FOUND, EXPIRED, ABSENT or FAILED. */
int locate(const Prepared *stack, const uint64_t *hash, int64_t expire_before, Arena *arena, Place *place);

/* Prefetches what a read of an entity needs first. */
void expect(const Prepared *stack, const uint64_t *hash);

/* The elements of a feature of a row, as ids or as values. */
typedef struct {
    int state;
    int64_t count;
    const int32_t *ids;
    const int64_t *numbers;
    const Slice *slices;
    const int64_t *weights; /* times of a list's items, or counts; else NULL */
} Content;

/* The ids of a row, for a feature that stores them one row after the other; 0 or FAILED */
int read_exact(const Place *place, const Feature *feature, Content *content);

int read_digit(const Place *place, const Feature *feature, Arena *arena, Content *content);

/* The bits of the symbols of a feature in a filter, if its row has values; 0 or FAILED. */
int read_bits(const Place *place, const Feature *feature, uint64_t *words);
int read_filter(const Place *place, const Feature *feature, Arena *arena, Content *content);

/* The items of a list, or values with counts, or these times or counts; 0 or FAILED */
int read_items(const Place *place, const Feature *feature, Arena *arena, Content *content);

/* All items of a row that are not too old, with times in microseconds, or the numbers of counts; 0 or FAILED */
int read_all_items(const Place *place, const Layer *layer, int64_t row, const Feature *feature, Arena *arena,
                   Content *content, int64_t **times);

/* Finds all rows of an entity whose items are combined, in the layers from `first` up to `end`: FOUND, EXPIRED if only
 * items may keep it alive, ABSENT or FAILED. */
int locate_items(const Prepared *stack, const uint64_t *hash, Py_ssize_t first, Py_ssize_t end, int64_t expire_before,
                 Arena *arena, Place *place);

/* Whether any feature of a place has items; FAILED if that cannot be read. */
int has_items(Place *place);

/* The items of feature `f` in all pieces of a place, as values, and the feature to write them as; 0 or FAILED */
int read_together(Place *place, Py_ssize_t f, const Feature **feature, Arena *arena, Content *content);

/* Looks the values of these ids up again, after some were left out; 0 or FAILED */
int spell_again(const Place *place, Arena *arena, Content *content);

/* Makes ids ascending and distinct, and returns their number. */
int64_t distinct(int32_t *ids, int64_t count);

/* Prefetches what a read of the symbols of an entity needs. */
void expect_symbols(const SymbolsOfTable *symbols, const uint64_t *hash);

/* Which symbols an entity of a cluster, or of any, has: bits of words; 0 or FAILED. */
int read_symbols(const SymbolsOfTable *symbols, const Blocks *blocks, const uint64_t *hash, int64_t cluster,
                 uint64_t *answers);

/* 0 or FAILED */
int read_content(Place *place, const Feature *feature, Arena *arena, Content *content);

/* Reads feature `f` of one row or of all pieces, and sets `feature` to what to write it as; 0 or FAILED. */
int read_feature(Place *place, Py_ssize_t f, const Feature **feature, Arena *arena, Content *content);

/* Replaces ids by their values; 0 or FAILED. */
int resolve(const Feature *feature, Arena *arena, Content *content);

/* The number of features in answers. */
static inline Py_ssize_t num_shown(const Prepared *stack) {
    return stack->limits ? stack->num_shown : stack->layers[0].rows->num_features;
}

/* Takes the hash of an entity and `expire_before`. 0, or -1 with an exception. */
int take_question(Call *call, uint64_t *hash, int64_t *expire_before);

/* The first feature of an entity, distinct: FOUND; ABSENT if there is no row, or it is withheld; or FAILED. */
int ask(const Prepared *stack, const uint64_t *hash, int64_t expire_before, Arena *arena, Place *place,
        Content *content);

/* The name of an id; -1 if it has no name, -2 if there is no such id. */
static inline int32_t name_of(const Layer *layer, int32_t id) {
    if (!layer->names) return id;
    return id < 0 || id >= layer->num_names ? -2 : layer->names[id];
}

static inline PyObject *failed_at(const uint64_t *hash, Arena *arena) {
    arena_free(arena);
    return raise_fault(hash);
}

static inline PyObject *absent(Arena *arena) {
    arena_free(arena);
    Py_RETURN_FALSE;
}

#define BEGIN_READ                                                                                   \
    Arena arena;                                                                                     \
    Place place;                                                                                     \
    Content content;                                                                                 \
    arena_init(&arena);                                                                              \
    int status = ask((Prepared *)call->self, hash, expire_before, &arena, &place, &content)

#define FILTER_METHODS(DO) DO(shaped) DO(shapes) DO(from_filter) DO(from_states) DO(ones) DO(clusters) DO(states) DO(numbered) DO(from_number)

#define LIST_METHODS(DO) DO(from_list) DO(from_weights) DO(limits) DO(items) DO(fenced) DO(from_items) DO(removals)

#define PREPARED_METHODS(DO) \
    DO(ids) DO(score) DO(contains_numbers) DO(contains_bytes) DO(contains_objects) DO(contains_ids) \
    DO(rows) DO(vectors) DO(csr) DO(columns) DO(bits) DO(contains) DO(scores) DO(found)

#define DECLARE_METHOD(NAME) PyObject *prepared_##NAME(PyObject *self, PyObject *const *arguments, Py_ssize_t number);
PREPARED_METHODS(DECLARE_METHOD)
FILTER_METHODS(DECLARE_METHOD)
LIST_METHODS(DECLARE_METHOD)

/* As KERNEL_FUNCTION; the body has `self` as well. */
#define PREPARED_METHOD(NAME)                                                                        \
    static PyObject *NAME##_body(Call *call);                                                        \
    PyObject *prepared_##NAME(PyObject *object, PyObject *const *arguments, Py_ssize_t number) {     \
        return run(NAME##_body, object, arguments, number);                                          \
    }                                                                                                \
    static PyObject *NAME##_body(Call *call)

#endif
