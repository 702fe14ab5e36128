/* The types of rows and of what a read finds. Functions on them are in row_reader.h. */

#ifndef FEAST_SKETCH_STORE_TYPES_H
#define FEAST_SKETCH_STORE_TYPES_H

#include "kernel.h"

/* -- codes -------------------------------------------------------------------------------------------- */

/* Integers of `width` bits without gaps, and one more word that is read but not used. */
typedef struct {
    const uint64_t *words;
    int width;
} Packed;

#define SAMPLED 64 /* the position of every 64th bit that is searched for is stored; as in formulas.py */

/* Ascending numbers in Elias-Fano form; succinct/elias_fano.py describes it. The contents of the arrays may be wrong:
 * no function reads outside of them. */
typedef struct {
    const uint64_t *highs;
    uint64_t num_bits; /* of `highs` */
    int64_t length, num_buckets;
    Packed lows, samples;
    uint64_t flipped; /* ~0 if samples are positions of zeros, else 0 */
    double bits_per_sampled; /* bits of `highs` for each one, or each zero, of the sampled kind */
} Ascending;

/* Finds rows by the hashes of their entities; succinct/fingerprints.py describes it. */
typedef struct {
    Ascending fingerprints;
    uint64_t range; /* fingerprints are below it */
    const uint64_t *twins;
    int64_t num_twins;
} RowIndex;

/* How the sets of one feature are coded. */
typedef struct {
    const uint8_t *levels, *left; /* of symbols, and of how many ids are left; see succinct/golomb_sets.py */
    const uint8_t *headers;       /* by their rank; ranks from 256 on are headers themselves */
    int64_t num_symbols, no_set; /* headers below `no_set` mean that a row has no set */
    int header_width;
    int others_width; /* -1 if the set is coded by itself; see succinct/golomb_sets.py */
} Code;

/* The codes of F features; sets that others are coded relative to have at most `capacity` ids. */
typedef struct {
    Code *of;
    Py_ssize_t number;
    size_t capacity;
} Codes;

/* The sets of rows. It is known where every `group_rows`-th row begins. */
typedef struct {
    Codes codes;
    const uint64_t *words; /* the last one is read but not used */
    uint64_t num_bits;
    int64_t group_rows;
} Sets;

/* A set of a row as it was read. */
typedef struct {
    int32_t header;
    const int32_t *ids;
} SetOfRow;

#define PREFIX_BITS 12 /* the most bits of a code word of a prefix code */

/* How the lists of one feature are coded. */
typedef struct {
    const uint16_t *tables;
    const uint8_t *widths;
    int64_t num_symbols;
    const uint64_t *words;
} ListCode;

/* -- parts of rows ------------------------------------------------------------------------------------ */

/* The blocks of an array, each verified by its checksum when a read first needs it; see succinct/blocks.py. */
typedef struct {
    PyObject *check; /* the object that reports a damaged block */
    const uint64_t *words;
    const uint8_t *checksums; /* 16 bytes a block */
    uint8_t *unchecked;       /* marks of blocks; NULL if all are verified */
    uint8_t *pending;         /* 0 once all are verified */
    uint64_t num_words, block_words, number;
} Blocks;

/* `length` integers, each `base` plus the packed number. */
typedef struct {
    Packed packed;
    uint64_t base, length;
    Blocks blocks;
} Numbers;

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

/* The codes of a list's items, and one of their digits, if there are values. */
enum { MAX_CODE_BITS = 8 };
typedef struct {
    int code_bits; /* 0 if items have no codes */
    int is_wanted; /* whether codes are read */
    int64_t step;  /* from one value to the next */
    Values values;
    /* of sealed rows; `table` is NULL if they are not wanted */
    const uint16_t *table; /* of a prefix code: number of a block << 4 | bits of its code */
    int64_t block_items;   /* how many items a block has the codes of */
    uint32_t num_codes;
    uint8_t usual; /* code of all items after a row's last bit */
    const uint64_t *words;
    uint64_t num_bits;
    Blocks blocks;
    CheckedAscending starts;
} Attribute;

typedef struct {
    const uint64_t *words;
    int64_t width, num_slots;
    uint64_t num_symbols; /* numbers below it mean that a key is present */
    const uint64_t *left_hashes; /* ascending: keys that are not in the table, and their numbers */
    const int64_t *left_numbers;
    int64_t num_left;
} StaticFunction;

/* Consecutive symbols of the table of a filter. If hashes are in groups, all but the first skip symbols by the
 * entity's cluster. Masks are [clusters][num_groups - 1][num_words], with ones for symbols that skip the hashes of the
 * group; else NULL. */
typedef struct {
    const uint64_t *words, *masks;
    uint64_t num_words_of_table, first_word, salt[2];
    uint64_t last_word; /* masks the bits after the last symbol */
    Py_ssize_t num_table_words; /* with the repeated head */
    Py_ssize_t num_symbols, num_words;
    const int64_t *firsts; /* first symbol covered by each hash; NULL if every hash covers all */
    const int64_t *ends;   /* of groups, the hash after the last one */
    int64_t num_clusters;  /* in the masks; 0 without masks */
    int num_hashes, num_groups;
} Symbols;

/* Where the windows of an entity begin in a table, and by how much their words are rotated. */
typedef struct {
    uint64_t starts[MAX_NUM_HASHES];
    uint32_t rotations[MAX_NUM_HASHES];
} Windows;

/* -- features ----------------------------------------------------------------------------------------- */

typedef struct Feature Feature;
typedef struct Place Place;
typedef struct RowReader RowReader;

enum { MISSING, IS_NULL, EMPTY, VALUE }; /* states, as in codecs.py */

/* The elements of a feature of a row, as ids or as values. */
typedef struct {
    int state;
    int64_t count;
    const int32_t *ids;
    const int64_t *numbers;
    const Slice *slices;
    const int64_t *weights; /* times of a list's items, or counts; else NULL */
    int is_cut; /* whether a list may have had older items, which a seal dropped behind its limit */
} Content;

typedef struct Block Block;

/* Memory for the duration of a read. */
typedef struct {
    uint64_t own[512];
    uint8_t *next, *stop; /* what is left of them, or of the last block */
    Block *blocks;
} Arena;

/* Bytes that grow. */
typedef struct {
    uint8_t *bytes;
    size_t length, capacity;
} Buffer;

struct Feature {
    /* Reads a row's content, which is empty before; 0 or FAILED. NULL if the rows do not have the feature. */
    int (*read)(const Place *place, const Feature *feature, Arena *arena, Content *content);
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
    const int32_t *ids; /* NULL if the elements are the weights */
    int64_t num_ids;
    /* in a filter, whose blocks are those of the content; else NULL */
    const Symbols *symbols;
    Numbers clusters; /* of rows */
    /* in lists, with codes in the blocks of the content: ids, each with a tick or with the number of a count */
    ListCode code;
    uint64_t num_code_bits;
    CheckedAscending starts;
    int64_t newest_tick, resolution; /* of ticks, in microseconds */
    const int64_t *counts;           /* NULL if there are ticks */
    int64_t num_counts;
    int64_t unit; /* unit of the times or counts that are the elements; 0 if the elements are the ids */
    Attribute attribute;
    /* of ids, or of items, whose times they are, one row after the other as above */
    const int64_t *weights;
    int is_items;
    /* what rows remove of the items in older layers; NULL if nothing */
    const uint8_t *removal_states;
    const int64_t *removal_indptr, *until;
    const int32_t *removed_ids;
    Values removed;
    int64_t num_removed;
};

/* -- rows ---------------------------------------------------------------------------------------------- */

/* Shapes of some features of rows, in a filter. */
typedef struct {
    const Symbols *shapes;
    Blocks blocks;
    int is_wanted; /* by a feature */
} Range;

typedef struct {
    RowReader *rows;
    const int32_t *names; /* the ids of the first feature in answers; NULL if they are the same */
    int64_t num_names;
    /* of a delta: the ascending entities that it decides, and which of them were deleted; NULL for other layers */
    const uint64_t *hashes;
    const uint8_t *deleted;
    int64_t num_hashes;
} Layer;

/* A layer of rows, or a stack of such layers from the newest to the oldest. Does not change once it is shared. */
struct RowReader {
    PyObject_HEAD
    enum { NOTHING, LISTED, EXACT, SHAPED, NUMBERED, STACK } kind;
    int64_t num_rows;
    /* Finds the row of an entity: its number, NO_ROW or DAMAGED_INDEX. */
    int64_t (*find)(const RowReader *rows, const uint64_t *hash, Place *place);
    /* Reads the timestamp of a row: FOUND, EXPIRED, ABSENT if the row is a deletion, or FAILED. */
    int (*date)(const RowReader *rows, int64_t expire_before, Place *place);
    /* Prefetches what `find` needs; NULL if there is nothing. */
    void (*expect)(const RowReader *rows, const uint64_t *hash);
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
    const uint8_t *delete_barriers; /* of lists: the rows that hide those in older layers */
    /* by shapes, of which those of the first range are the numbers of rows */
    Range *ranges;
    Py_ssize_t num_ranges;
    const int64_t *oldest, *newest;
    /* by the numbers of a static function, whose lowest digits are shapes */
    StaticFunction function;
    Blocks function_blocks;
    /* of listed rows */
    Sets sets;
    Blocks code_blocks;
    CheckedAscending starts; /* of the sets */
    uint8_t *marks;
    Py_ssize_t num_sets; /* of each row that are read: up to the last one that is wanted */
    /* of any rows */
    Feature *features;
    Py_ssize_t num_features;
    /* a stack */
    Layer *layers;
    Py_ssize_t num_layers;
    /* of features whose lists add up: how many items they show, within how many microseconds a value is shown once, and
     * how many items a seal keeps; NULL if rows replace each other */
    const int64_t *limits, *resolutions, *most_sealed;
    Py_ssize_t num_shown; /* features in answers; the lists after them may keep a row alive */
    int is_named;  /* whether ids have names in one vocabulary */
    uint64_t seed; /* of hash tables of values */
    /* the highest bits of a hash are the number of its shard, whose layers begin at `first_layers`; NULL without
     * shards */
    const int64_t *first_layers;
    const uint8_t *is_served;
    int shard_shift;
    /* the objects that all pointers point into */
    Py_buffer *buffers;
    PyObject **objects;
    void **memory;
    Py_ssize_t num_buffers, num_objects, num_memory;
};

/* -- reads ---------------------------------------------------------------------------------------------- */

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

/* The windows that were computed last, by table and entity. */
enum { NUM_RECENT = 8 };
typedef struct {
    int next;
    const Symbols *symbols[NUM_RECENT];
    const uint64_t *hashes[NUM_RECENT];
    Windows windows[NUM_RECENT];
} RecentWindows;

/* One of the rows whose items are combined. */
typedef struct {
    const Layer *layer;
    int64_t row;
} Piece;

/* The row of an entity. */
struct Place {
    const RowReader *stack;
    const Layer *layer;
    const uint64_t *hash; /* of the entity */
    RecentWindows *recent;
    int64_t row, timestamp;
    int is_dated; /* whether the timestamp is wanted */
    uint64_t number;       /* the entity's number in a static function, without its shape */
    const int64_t *limits, *most_sealed; /* of its stack */
    int64_t since, until, limit; /* of items of lists: the oldest time, the tick that is too new, and the most items */
    const SetOfRow *sets; /* by number of code; NULL if the rows have none */
    Py_ssize_t num_pieces; /* from the newest to the oldest; 0 if there is only this row */
    Piece *pieces;
    int is_ambiguous; /* whether the row may have several shapes of a range */
    Layer together; /* has the names of the values of pieces, once they are read */
    const int64_t *spelled_numbers; /* these values, or */
    const Slice *spelled_slices;
};

enum { ROWS_AT_A_TIME = 64 };

/* Some entities to be read. */
typedef struct {
    const RowReader *stack;
    const uint64_t *hashes; /* of the entities; the one at which a read failed is `hash` */
    const uint64_t *hash;
    Py_ssize_t n;
    const int64_t *windows; /* of items of each entity's lists: the oldest time, and one in the first tick that is
                                   * too new; NULL if `expire_before` is the oldest of all */
    int64_t expire_before, limit; /* the most items of lists */
    int is_long; /* whether other threads run meanwhile */
    int is_dated; /* whether timestamps of rows are wanted */
    int is_whole; /* whether contents live until `walk_free` */
    Arena arena;
} Walk;

/* What is done with entity `i`: 0 or FAILED. `place` is its row if the status is FOUND. */
typedef int (*Sink)(void *self, Py_ssize_t i, int status, Place *place, Arena *arena);

#endif
