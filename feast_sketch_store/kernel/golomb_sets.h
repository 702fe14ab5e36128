/* What the writer and the readers of sets in Golomb-Rice codes share. succinct/golomb_sets.py has the formulas. */

#ifndef FEAST_SKETCH_STORE_GOLOMB_SETS_H
#define FEAST_SKETCH_STORE_GOLOMB_SETS_H

#include "row_reader.h"

#define LONGEST_UNARY 24 /* this many ones precede a number of 32 bits */
#define DIRECT_CODES 256
#define NUM_LEFT (DIRECT_CODES + 64)
#define NUM_RANKED 256

/* Twice the logarithm of a count, rounded. */
static inline int half_octaves(uint64_t count) {
    int octaves = (int)HIGHEST(count | 1);
    return 2 * octaves + (count * count >= 2ull << 2 * octaves);
}

/* The width of a gap by the level of the symbol at which it begins, and that of how many ids are left. */
static ALWAYS_INLINE uint32_t width_of(uint8_t level, uint8_t left) {
    return level < left ? 0 : (uint32_t)(level - left) >> 2;
}

static ALWAYS_INLINE uint32_t width_of_gap(const Code *code, int64_t symbol, int64_t left) {
    int64_t class = left < DIRECT_CODES ? left : DIRECT_CODES + half_octaves((uint64_t)left);
    return width_of(code->levels[symbol], code->left[class]);
}

/* What is read of a row, up to some feature: for each feature, its header and where its ids end. */
typedef struct {
    int64_t *ends;
    int32_t *headers, *seen, *others;
    uint8_t *marks; /* by feature */
} RowOfSets;

static inline size_t room_for_row(const Codes *codes) {
    return (size_t)codes->number * (sizeof(int64_t) + sizeof(int32_t) + 1) + 2 * codes->capacity * sizeof(int32_t);
}

static inline void init_row(RowOfSets *row, const Codes *codes, void *memory) {
    row->ends = memory;
    row->headers = (int32_t *)(row->ends + codes->number);
    row->seen = row->headers + codes->number;
    row->others = row->seen + codes->capacity;
    row->marks = (uint8_t *)(row->others + codes->capacity);
}

/* How the members among `seen` ids are coded: not at all, as a bit each, or as the gaps between members or
 * non-members, whichever are fewer. */
typedef struct {
    int64_t coded; /* of gaps; 0 if there are none */
    int is_bitmap, is_reversed, width;
} Inside;

static inline Inside inside_of(int64_t seen, int64_t members) {
    Inside inside = {0, 0, 2 * members > seen, 0};
    int64_t fewer = inside.is_reversed ? seen - members : members;
    if (8 * fewer >= 3 * seen) {
        inside.is_bitmap = fewer > 0;
    } else {
        inside.coded = fewer;
        inside.width = (half_octaves((uint64_t)seen) - half_octaves((uint64_t)fewer) - 1) >> 1;
    }
    return inside;
}

/* Takes parameters, int64[F, 3] of header_width, no_set and others_width; level_starts, int64[F + 1]; levels, uint8;
 * uint8[F, 320], what to subtract from a level for 0 to 255 ids left, and then for more by half octaves; and uint8[F, 256],
 * headers by rank. 0, or -1 with an exception. */
int codes_take(Call *call, Codes *codes);

/* Merges ids into others, which have memory for all; both ascend. -1 if an id is in both. */
int ids_merge(int32_t *ids, int64_t *count, const int32_t *more, int64_t number);

#endif
