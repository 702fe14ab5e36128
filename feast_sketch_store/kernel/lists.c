/* Lists of timed items; succinct/timed_lists.py says how they are coded. */

#include "kernel.h"

enum { AGES, SIZES, GAPS, KINDS };
#define PREFIX_BITS 12
#define PREFIXES (1 << PREFIX_BITS)
#define NUM_WIDTHS 5
#define LONGEST_UNARY 24 /* this many ones precede a number of 32 bits */
#define MAX_AGE (1ll << 60)

/* The next 64 bits; the word after the one in which they begin is read as well. */
static ALWAYS_INLINE uint64_t peek(const ListCode *code, uint64_t bit) {
    uint64_t word = bit >> 6, shift = bit & 63;
    return code->words[word] >> shift | code->words[word + 1] << 1 << (63 - shift);
}

/* The next number of a kind; -1 if it is damaged. */
static ALWAYS_INLINE int64_t read_number(const ListCode *code, uint64_t *bit, int kind) {
    uint64_t bits = peek(code, *bit);
    uint32_t entry = code->tables[kind * PREFIXES + (bits & (PREFIXES - 1))];
    if (!entry) return -1;
    uint32_t length = entry & 15, class = entry >> 4;
    *bit += length;
    if (class < 4) return class;
    uint32_t extra = (class >> 1) - 1;
    if (extra > 59) return -1;
    bits = extra + length <= 64 ? bits >> length : peek(code, *bit);
    *bit += extra;
    return (int64_t)((uint64_t)(2 | (class & 1)) << extra | (bits & ((1ull << extra) - 1)));
}

/* The next id of a tick with `left` ids left; none is below `next`. The id may be outside of the symbols. */
static ALWAYS_INLINE int64_t read_id(const ListCode *code, uint64_t *bit, int64_t next, int64_t left) {
    int octaves = left > 1 ? (int)HIGHEST((uint64_t)(left - 1)) + 1 : 0;
    int row = octaves < NUM_WIDTHS ? octaves : NUM_WIDTHS - 1;
    int width = code->widths[row * code->num_symbols + next] - (octaves - row);
    if (width < 0) width = 0;
    uint64_t bits = peek(code, *bit);
    uint32_t quotient = LOWEST(~bits | 1ull << 63);
    if (quotient < LONGEST_UNARY) {
        *bit += quotient + 1 + (uint32_t)width;
        return next + (int64_t)((uint64_t)quotient << width | (bits >> (quotient + 1) & ((1ull << width) - 1)));
    }
    *bit += LONGEST_UNARY + 32;
    return next + (int64_t)(bits >> LONGEST_UNARY & 0xFFFFFFFF);
}

int64_t read_list(const ListCode *code, uint64_t bit, uint64_t stop, int64_t limit, int64_t oldest, int64_t room,
                  int32_t *ids, int64_t *ages) {
    int64_t count = 0, age = -1;
    while (bit < stop && count < limit) {
        int64_t gap = read_number(code, &bit, age < 0 ? AGES : GAPS);
        if (gap < 0 || gap >= MAX_AGE || bit > stop) return -1;
        age += gap + 1;
        if (age >= MAX_AGE) return -1;
        int64_t left = read_number(code, &bit, SIZES) + 1, next = 0;
        if (left < 1 || left > code->num_symbols || bit > stop) return -1;
        if (age > oldest) break;
        for (; left && count < limit; left--) {
            if (count == room) return -2;
            if (next >= code->num_symbols) return -1;
            next = read_id(code, &bit, next, left);
            if (next >= code->num_symbols || bit > stop) return -1;
            ids[count] = (int32_t)next++;
            ages[count++] = age;
        }
    }
    return count;
}

int take_list_code(Call *call, ListCode *code, int64_t *num_bits) {
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
