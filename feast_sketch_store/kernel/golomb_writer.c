/* Writes sets of ids in Golomb-Rice codes. */

#include "golomb_sets.h"

typedef struct {
    uint64_t *words; /* NULL to count only */
    uint64_t bit, num_bits;
} Writer;

static inline void write_bits(Writer *writer, uint64_t number, int length) {
    if (writer->words && writer->bit + (uint64_t)length <= writer->num_bits) {
        uint64_t *word = writer->words + (writer->bit >> 6), shift = writer->bit & 63;
        word[0] |= number << shift;
        if (shift + (uint64_t)length > 64) word[1] |= number >> (64 - shift);
    }
    writer->bit += (uint64_t)length;
}

static inline void write_code(Writer *writer, uint64_t number, int width) {
    uint64_t quotient = number >> width;
    if (quotient < LONGEST_UNARY) {
        write_bits(writer, (1ull << quotient) - 1, (int)quotient + 1);
        if (width) write_bits(writer, number & ((1ull << width) - 1), width);
    } else {
        write_bits(writer, ((1ull << LONGEST_UNARY) - 1) | number << LONGEST_UNARY, LONGEST_UNARY + 32);
    }
}

static void write_gaps(Writer *writer, const Code *code, const int32_t *ids, int64_t number) {
    int64_t next = 0;
    for (int64_t i = 0; i < number; i++) {
        write_code(writer, (uint64_t)(ids[i] - next), (int)width_of_gap(code, next, number - i));
        next = (int64_t)ids[i] + 1;
    }
}

/* Writes a set that is coded relative to those before it, with the ids `seen`, and merges its other ids into them. */
static void write_with(Writer *writer, const Code *code, const RowOfSets *row, int64_t *num_seen, const int32_t *ids,
                       int64_t number) {
    int64_t num_others = 0;
    for (int64_t i = 0, k = 0; i < number; i++) {
        while (k < *num_seen && row->seen[k] < ids[i]) k++;
        if (k == *num_seen || row->seen[k] != ids[i]) row->others[num_others++] = ids[i];
    }
    if (number && *num_seen) write_code(writer, (uint64_t)num_others, code->others_width);
    Inside inside = inside_of(*num_seen, number - num_others);
    int64_t next = 0;
    for (int64_t k = 0, i = 0; k < *num_seen && (inside.is_bitmap || inside.coded); k++) {
        while (i < number && ids[i] < row->seen[k]) i++;
        int is_member = i < number && ids[i] == row->seen[k];
        if (inside.is_bitmap) {
            write_bits(writer, (uint64_t)is_member, 1);
        } else if (is_member != inside.is_reversed) {
            write_code(writer, (uint64_t)(k - next), inside.width);
            next = k + 1;
        }
    }
    write_gaps(writer, code, row->others, num_others);
    ids_merge(row->seen, num_seen, row->others, num_others);
}

/* write_sets(codes ..., headers, indptr, ids, words, ends)
 *
 * `headers` are int32[n, F]. Row `row * F + feature` of the CSR matrix `indptr`, int64[n * F + 1], and `ids`, int32,
 * has the ascending ids of a set. `ends`, int64[n], receives the bit after each row. A first call without `words` finds
 * out how many are needed. */
KERNEL_FUNCTION(write_sets) {
    Array headers, indptr, ids, words, ends;
    Codes codes;
    RowOfSets row;
    if (codes_take(call, &codes) < 0 || take(call, "4848!8!.", &headers, &indptr, &ids, &words, &ends) < 0) return NULL;
    Py_ssize_t n = ends.length, m = ids.length, num_features = codes.number;
    const int64_t *bounds = indptr.data;
    const int32_t *header = headers.data, *id = ids.data;
    int fits = headers.length == n * num_features && indptr.length == n * num_features + 1 && bounds[0] == 0 &&
               bounds[n * num_features] == m;
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t s = 0; fits && s < n * num_features; s++) {
        const Code *code = codes.of + s % num_features;
        int64_t size = bounds[s + 1] - bounds[s];
        fits = header[s] >= 0 && size == (header[s] < code->no_set ? 0 : header[s] - code->no_set);
        for (int64_t i = bounds[s]; fits && i < bounds[s + 1]; i++)
            fits = id[i] >= 0 && id[i] < code->num_symbols && (i == bounds[s] || id[i - 1] < id[i]);
    }
    Py_END_ALLOW_THREADS
    if (!fits) return refuse("the sets do not fit their codes");
    void *memory = scratch(call, room_for_row(&codes));
    uint8_t *ranks = scratch(call, NUM_RANKED * (size_t)num_features);
    if (!memory || !ranks) return NULL;
    init_row(&row, &codes, memory);
    for (Py_ssize_t f = 0; f < num_features; f++)
        for (int rank = 0; rank < NUM_RANKED; rank++) ranks[NUM_RANKED * f + codes.of[f].headers[rank]] = (uint8_t)rank;
    Writer writer = {words.length ? words.data : NULL, 0, 64 * (uint64_t)words.length};
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t i = 0; i < n; i++) {
        int64_t num_seen = 0;
        for (Py_ssize_t f = 0; f < num_features; f++) {
            Py_ssize_t s = i * num_features + f;
            const Code *code = codes.of + f;
            const int32_t *own = id + bounds[s];
            int64_t size = bounds[s + 1] - bounds[s];
            uint64_t rank = header[s] < NUM_RANKED ? ranks[NUM_RANKED * f + header[s]] : (uint64_t)header[s];
            write_code(&writer, rank, code->header_width);
            if (code->others_width >= 0) {
                write_with(&writer, code, &row, &num_seen, own, size);
                continue;
            }
            write_gaps(&writer, code, own, size);
            num_seen = 0;
            if (f + 1 < num_features && code[1].others_width >= 0) {
                memcpy(row.seen, own, (size_t)size * sizeof(int32_t));
                num_seen = size;
            }
        }
        ((int64_t *)ends.data)[i] = (int64_t)writer.bit;
    }
    Py_END_ALLOW_THREADS
    if (writer.words && writer.bit > writer.num_bits) return refuse("the words are too few for the sets");
    Py_RETURN_NONE;
}
