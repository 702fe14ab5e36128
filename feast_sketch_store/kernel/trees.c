/* Sets of ids in count trees, by an arithmetic coder; succinct/count_tree.py has the model. */

#include "prepared.h"

#define NUM_NODES 330 /* shares by concentrations */
#define MOST_TOLD 16 /* each count up to this one has a table of splits */
#define SMALL (MOST_TOLD + 2)
#define NUM_LARGE 6
#define LARGE 66
#define TABLE_BITS 15
#define NUM_SIZES 108
#define CAP 12
#define NUM_OF_CLASS ((CAP + 1) * (CAP + 2) / 2)
#define NUM_CONTEXTS (3 * 8 * NUM_OF_CLASS)
#define MOST_MASS (1 << 24) /* below this, one symbol is found at once */
#define DEEPEST 64
#define LEAST_RANGE 0x80000000u

static const int BINS[NUM_LARGE] = {16, 32, 32, 64, 64, 64};

/* How the sets of one feature are coded. */
typedef struct {
    const int64_t *mass;
    const uint16_t *nodes, *contexts;
    const uint8_t *classes;
    const uint32_t *sizes;
    int64_t num_symbols, no_set;
    int is_dependent;
} Tree;

struct Trees {
    Tree *of;
    Py_ssize_t number;
    size_t room;
    const uint16_t *small, *large;
};
typedef struct Trees Trees;

/* The distinct ids seen in a row, ascending. The mark of an id has 1 if the set right before has it, plus 2 if an
 * earlier one has it. */
typedef struct {
    int32_t *ids, *others;
    uint8_t *marks;
    int64_t number;
} Union;

static int take_trees(Call *call, Trees *trees) {
    Array parameters, starts, mass, nodes, classes, sizes, contexts, small, large;
    if (take(call, "888214222", &parameters, &starts, &mass, &nodes, &classes, &sizes, &contexts, &small, &large) < 0)
        return -1;
    Py_ssize_t number = trees->number = starts.length - 1;
    const int64_t *start = starts.data, *numbers = parameters.data;
    int fits = number >= 1 && parameters.length == 2 * number && start[0] == 0 && start[number] == nodes.length &&
               classes.length == nodes.length && mass.length == nodes.length + number &&
               sizes.length == number * (NUM_SIZES + 1) && contexts.length == number * NUM_CONTEXTS &&
               small.length == NUM_NODES * (MOST_TOLD + 1) * SMALL && large.length == NUM_NODES * NUM_LARGE * LARGE;
    trees->room = 0;
    for (Py_ssize_t f = 0; fits && f < number; f++) {
        int64_t size = start[f + 1] - start[f];
        fits = size >= 0 && size < 1 << 28 && numbers[2 * f] >= 0 && numbers[2 * f] <= 2 &&
               (numbers[2 * f + 1] == 0 || (f && size == start[f] - start[f - 1]));
        if (fits && (size_t)size > trees->room) trees->room = (size_t)size;
    }
    if (!fits) {
        refuse("the trees do not fit each other");
        return -1;
    }
    trees->small = small.data;
    trees->large = large.data;
    trees->of = scratch(call, sizeof(Tree) * (size_t)number);
    if (!trees->of) return -1;
    for (Py_ssize_t f = 0; f < number; f++)
        trees->of[f] = (Tree){(const int64_t *)mass.data + start[f] + f,
                              (const uint16_t *)nodes.data + start[f],
                              (const uint16_t *)contexts.data + f * NUM_CONTEXTS,
                              (const uint8_t *)classes.data + start[f],
                              (const uint32_t *)sizes.data + f * (NUM_SIZES + 1),
                              start[f + 1] - start[f],
                              numbers[2 * f],
                              numbers[2 * f + 1] != 0};
    return 0;
}

static size_t room_for_union(const Trees *trees) { return (trees->room + 1) * (2 * sizeof(int32_t) + 1); }

static void init_union(Union *seen, const Trees *trees, void *memory) {
    seen->ids = memory;
    seen->others = seen->ids + trees->room;
    seen->marks = (uint8_t *)(seen->others + trees->room);
}

static int take_union(Call *call, const Trees *trees, Union *seen) {
    void *memory = scratch(call, room_for_union(trees));
    if (!memory) return -1;
    init_union(seen, trees, memory);
    return 0;
}

/* Merges ids into those seen; both ascend, and there is room for all. -1 if an id is in both. */
static int add_seen(Union *seen, const int32_t *ids, int64_t number) {
    int64_t i = seen->number - 1, k = number - 1, place = seen->number + number;
    seen->number = place;
    while (k >= 0) {
        if (i >= 0 && seen->ids[i] == ids[k]) return -1;
        if (i >= 0 && seen->ids[i] > ids[k]) {
            seen->ids[--place] = seen->ids[i];
            seen->marks[place] = seen->marks[i--];
        } else {
            seen->ids[--place] = ids[k--];
            seen->marks[place] = 1;
        }
    }
    return 0;
}

static inline int large_class(int64_t number) {
    int octave = (int)HIGHEST((uint64_t)number) - 4;
    return octave < 0 ? 0 : octave >= NUM_LARGE ? NUM_LARGE - 1 : octave;
}

/* Where a bin of counts begins. */
static inline int64_t bin_start(int64_t bin, int64_t number, int bins) { return (bin * (number + 1) + bins - 1) / bins; }

/* The context, within its class, of `ones` members among `seen` ids. */
static inline int64_t place_of(int64_t seen, int64_t ones) {
    if (seen > CAP) {
        ones = (2 * ones * CAP + seen) / (2 * seen);
        seen = CAP;
    }
    return seen * (seen + 1) / 2 + ones;
}

static inline uint32_t share_of(const Tree *tree, const Union *seen, int64_t place, int64_t ones) {
    int64_t kind = (seen->marks[place] - 1) * 8 + (tree->classes[seen->ids[place]] & 7);
    return tree->contexts[kind * NUM_OF_CLASS + place_of(place, ones)];
}

/* The bucket of a size, and how many lower bits distinguish it inside the bucket. */
static inline int size_bucket(int64_t size, int *rest) {
    *rest = 0;
    if (size < 8) return (int)size;
    int octave = (int)HIGHEST((uint64_t)size);
    *rest = octave - 2;
    return 8 + (octave - 3) * 4 + (int)(size >> *rest & 3);
}

/* -- writing ------------------------------------------------------------------------------------------ */

typedef struct {
    uint64_t *words; /* NULL to count only; bits from the highest of each word on */
    uint64_t bit, num_bits, low, range;
    int is_impossible;
} Encoder;

static void put(Encoder *coder, int bit) {
    if (coder->words && coder->bit < coder->num_bits && bit)
        coder->words[coder->bit >> 6] |= 1ull << (63 - (coder->bit & 63));
    coder->bit++;
}

static void carry(Encoder *coder) {
    for (uint64_t bit = coder->bit; coder->words && bit-- > 0;) {
        if (bit >= coder->num_bits) continue;
        coder->words[bit >> 6] ^= 1ull << (63 - (bit & 63));
        if (coder->words[bit >> 6] >> (63 - (bit & 63)) & 1) return;
    }
}

static void encode(Encoder *coder, uint64_t before, uint64_t own, uint64_t all) {
    if (!own) coder->is_impossible = 1;
    uint64_t unit = coder->range / all;
    coder->low += before * unit;
    coder->range = before + own == all ? coder->range - before * unit : own * unit;
    if (coder->low >> 32) {
        carry(coder);
        coder->low &= 0xFFFFFFFF;
    }
    while (coder->range < LEAST_RANGE && coder->range) {
        put(coder, (int)(coder->low >> 31));
        coder->low = coder->low << 1 & 0xFFFFFFFF;
        coder->range <<= 1;
    }
}

/* Writes the fewest bits that identify the row, whatever follows. */
static void finish(Encoder *coder) {
    for (int length = 0; length <= 32; length++) {
        uint64_t step = 1ull << (32 - length), value = (coder->low + step - 1) / step * step;
        if (value + step > coder->low + coder->range) continue;
        if (value >> 32) carry(coder);
        for (int i = 0; i < length; i++) put(coder, (int)(value >> (31 - i) & 1));
        return;
    }
}

static void encode_size(Encoder *coder, const Tree *tree, int64_t size) {
    int rest, bucket = size_bucket(size, &rest);
    const uint32_t *sizes = tree->sizes;
    if (bucket >= NUM_SIZES || !sizes[NUM_SIZES]) {
        coder->is_impossible = 1;
        return;
    }
    encode(coder, sizes[bucket], sizes[bucket + 1] - sizes[bucket], sizes[NUM_SIZES]);
    if (rest) encode(coder, (uint64_t)size & ((1ull << rest) - 1), 1, 1ull << rest);
}

static void encode_ids(Encoder *coder, const Trees *trees, const Tree *tree, const int32_t *ids, int64_t low,
                       int64_t high, int64_t number) {
    while (number && number < high - low) {
        const int64_t *mass = tree->mass;
        if (number == 1 && mass[high] - mass[low] < MOST_MASS) {
            encode(coder, (uint64_t)(mass[ids[0]] - mass[low]), (uint64_t)(mass[ids[0] + 1] - mass[ids[0]]),
                   (uint64_t)(mass[high] - mass[low]));
            return;
        }
        int64_t middle = low + (high - low) / 2, left = 0;
        while (left < number && ids[left] < middle) left++;
        int64_t least = number > high - middle ? number - (high - middle) : 0;
        int64_t most = number < middle - low ? number : middle - low;
        if (least < most && number <= MOST_TOLD) {
            const uint16_t *table = trees->small + (tree->nodes[middle] * (MOST_TOLD + 1) + number) * SMALL;
            encode(coder, table[left], (uint64_t)(table[left + 1] - table[left]), 1 << TABLE_BITS);
        } else if (least < most) {
            int kind = large_class(number), bins = BINS[kind];
            const uint16_t *table = trees->large + (tree->nodes[middle] * NUM_LARGE + kind) * LARGE;
            int64_t bin = left * bins / (number + 1);
            encode(coder, table[bin], (uint64_t)(table[bin + 1] - table[bin]), 1 << TABLE_BITS);
            int64_t first = bin_start(bin, number, bins), end = bin_start(bin + 1, number, bins);
            if (first < least) first = least;
            if (end > most + 1) end = most + 1;
            if (end - first > 1) encode(coder, (uint64_t)(left - first), 1, (uint64_t)(end - first));
        }
        encode_ids(coder, trees, tree, ids, low, middle, left);
        ids += left; /* the right half follows in this loop */
        number -= left;
        low = middle;
    }
}

static void encode_row(Encoder *coder, const Trees *trees, Union *seen, const int32_t *headers, const int64_t *bounds,
                       const int32_t *ids) {
    coder->low = 0;
    coder->range = 0xFFFFFFFF;
    seen->number = 0;
    for (Py_ssize_t f = 0; f < trees->number; f++) {
        const Tree *tree = trees->of + f;
        const int32_t *own = ids + bounds[f];
        int64_t size = bounds[f + 1] - bounds[f], num_others = 0;
        if (!tree->is_dependent) seen->number = 0;
        for (int64_t i = 0, k = 0; i < size; i++) {
            while (k < seen->number && seen->ids[k] < own[i]) k++;
            if (k == seen->number || seen->ids[k] != own[i]) seen->others[num_others++] = own[i];
        }
        int has_set = headers[f] >= tree->no_set;
        encode_size(coder, tree, has_set ? tree->no_set + num_others : headers[f]);
        for (int64_t k = 0, i = 0, ones = 0; k < seen->number; k++) {
            while (i < size && own[i] < seen->ids[k]) i++;
            int is_member = i < size && own[i] == seen->ids[k];
            uint32_t share = share_of(tree, seen, k, ones);
            if (has_set) encode(coder, is_member ? 0 : share, is_member ? share : (1 << TABLE_BITS) - share, 1 << TABLE_BITS);
            ones += is_member;
            seen->marks[k] = (uint8_t)(is_member | 2);
        }
        encode_ids(coder, trees, tree, seen->others, 0, tree->num_symbols, num_others);
        if (f + 1 < trees->number && tree[1].is_dependent) add_seen(seen, seen->others, num_others);
    }
    finish(coder);
}

/* write_trees(parameters, symbol_starts, mass, nodes, classes, sizes, contexts, small, large, headers, indptr, ids,
 *             words, ends)
 *
 * `headers` are int32[n, F]. Row `row * F + feature` of the CSR matrix `indptr`, int64[n * F + 1], and `ids`, int32,
 * has the ascending ids of a set. `ends`, int64[n], receives the bit after each row. A first call without `words` finds
 * out how many are needed. */
KERNEL_FUNCTION(write_trees) {
    Array headers, indptr, ids, words, ends;
    Trees trees;
    Union seen;
    if (take_trees(call, &trees) < 0 || take(call, "4848!8!.", &headers, &indptr, &ids, &words, &ends) < 0) return NULL;
    Py_ssize_t n = ends.length, m = ids.length, num_features = trees.number;
    const int64_t *bounds = indptr.data;
    const int32_t *header = headers.data, *id = ids.data;
    int fits = headers.length == n * num_features && indptr.length == n * num_features + 1 && bounds[0] == 0 &&
               bounds[n * num_features] == m;
    for (Py_ssize_t s = 0; fits && s < n * num_features; s++) {
        const Tree *tree = trees.of + s % num_features;
        int64_t size = bounds[s + 1] - bounds[s];
        fits = header[s] >= 0 && size == (header[s] < tree->no_set ? 0 : header[s] - tree->no_set);
        for (int64_t i = bounds[s]; fits && i < bounds[s + 1]; i++)
            fits = id[i] >= 0 && id[i] < tree->num_symbols && (i == bounds[s] || id[i - 1] < id[i]);
    }
    if (!fits) return refuse("the sets do not fit their trees");
    if (take_union(call, &trees, &seen) < 0) return NULL;
    Encoder coder = {words.length ? words.data : NULL, 0, 64 * (uint64_t)words.length, 0, 0, 0};
    for (Py_ssize_t i = 0; i < n && !coder.is_impossible; i++) {
        encode_row(&coder, &trees, &seen, header + i * num_features, bounds + i * num_features, id);
        ((int64_t *)ends.data)[i] = (int64_t)coder.bit;
    }
    if (coder.is_impossible) return refuse("the sets do not fit their trees");
    if (coder.words && coder.bit > coder.num_bits) return refuse("the words are too few for the sets");
    Py_RETURN_NONE;
}

/* -- reading ------------------------------------------------------------------------------------------ */

/* The last two words may be read, but are not used. */
typedef struct {
    const uint64_t *words;
    uint64_t bit, limit;
    uint32_t value, range;
    int is_damaged;
} Decoder;

static ALWAYS_INLINE uint64_t next_bits(const Decoder *coder) {
    uint64_t word = coder->bit >> 6, shift = coder->bit & 63;
    return coder->words[word] << shift | coder->words[word + 1] >> 1 >> (63 - shift);
}

static ALWAYS_INLINE void consume(Decoder *coder, uint32_t before, uint32_t own, uint32_t unit, int is_last) {
    coder->value -= before * unit;
    coder->range = is_last ? coder->range - before * unit : own * unit;
    if (coder->range >= LEAST_RANGE) return;
    int shift = coder->range ? 31 - (int)HIGHEST((uint64_t)coder->range) : 31;
    coder->value = coder->value << shift | (uint32_t)(next_bits(coder) >> (64 - shift));
    coder->range = coder->range ? coder->range << shift : LEAST_RANGE;
    coder->bit += (uint64_t)shift;
    if (coder->bit > coder->limit) {
        coder->bit = coder->limit;
        coder->is_damaged = 1;
    }
}

/* A number below `all`; all are equally likely. */
static inline uint32_t decode_flat(Decoder *coder, uint32_t all) {
    uint32_t unit = coder->range / all, number = coder->value / unit;
    if (number >= all) number = all - 1;
    consume(coder, number, 1, unit, number + 1 == all);
    return number;
}

static int64_t decode_size(Decoder *coder, const Tree *tree) {
    const uint32_t *sizes = tree->sizes;
    uint32_t all = sizes[NUM_SIZES];
    if (!all) {
        coder->is_damaged = 1;
        return 0;
    }
    uint32_t unit = coder->range / all, number = coder->value / unit;
    int bucket = 0;
    if (number >= all) number = all - 1;
    while (bucket < NUM_SIZES - 1 && sizes[bucket + 1] <= number) bucket++;
    consume(coder, sizes[bucket], sizes[bucket + 1] - sizes[bucket], unit, sizes[bucket + 1] == all);
    if (bucket < 8) return bucket;
    int rest = 1 + (bucket - 8) / 4;
    int64_t base = (int64_t)(4 + (bucket - 8) % 4) << rest;
    return base + decode_flat(coder, 1u << rest);
}

/* A symbol from `low` to below `high`, by its share of the mass. */
static ALWAYS_INLINE int64_t decode_one(Decoder *coder, const int64_t *mass, int64_t low, int64_t high) {
    uint32_t all = (uint32_t)(mass[high] - mass[low]), unit = coder->range / all, number = coder->value / unit;
    if (number >= all) number = all - 1;
    int64_t target = mass[low] + number, found = low;
    for (int64_t length = high - low; length > 1;) {
        int64_t half = length >> 1;
        found = mass[found + half] <= target ? found + half : found;
        length -= half;
    }
    consume(coder, (uint32_t)(mass[found] - mass[low]), (uint32_t)(mass[found + 1] - mass[found]), unit,
            mass[found + 1] == mass[high]);
    return found;
}

/* How many of `number` ids are in the left half; those from `least` to `most` are possible. */
static ALWAYS_INLINE int64_t decode_left(Decoder *coder, const Trees *trees, int64_t node, int64_t number,
                                         int64_t least, int64_t most) {
    uint32_t unit = coder->range >> TABLE_BITS, value = coder->value / unit;
    if (number <= MOST_TOLD) {
        const uint16_t *table = trees->small + (node * (MOST_TOLD + 1) + number) * SMALL;
        int64_t left = 0;
        while (left < number && table[left + 1] <= value) left++;
        consume(coder, table[left], (uint32_t)(table[left + 1] - table[left]), unit, left == number);
        return left;
    }
    int kind = large_class(number), bins = BINS[kind];
    const uint16_t *table = trees->large + (node * NUM_LARGE + kind) * LARGE;
    int64_t bin = 0;
    for (int step = bins / 2; step; step /= 2)
        if (table[bin + step] <= value) bin += step;
    consume(coder, table[bin], (uint32_t)(table[bin + 1] - table[bin]), unit, bin == bins - 1);
    int64_t first = bin_start(bin, number, bins), end = bin_start(bin + 1, number, bins);
    if (first < least) first = least;
    if (end > most + 1) end = most + 1;
    return end - first > 1 ? first + decode_flat(coder, (uint32_t)(end - first)) : first;
}

/* Reads the ids of a set into `ids`. -1 if they are damaged. */
static int decode_ids(Decoder *coder, const Trees *trees, const Tree *tree, int64_t number, int32_t *ids) {
    struct {
        int64_t low, high, number;
    } rights[DEEPEST];
    int depth = 0;
    int64_t low = 0, high = tree->num_symbols;
    for (;;) {
        if (number == high - low) {
            for (int64_t s = low; s < high; s++) *ids++ = (int32_t)s;
        } else if (number == 1 && tree->mass[high] - tree->mass[low] < MOST_MASS) {
            *ids++ = (int32_t)decode_one(coder, tree->mass, low, high);
        } else if (number) {
            int64_t middle = low + (high - low) / 2;
            int64_t least = number > high - middle ? number - (high - middle) : 0;
            int64_t most = number < middle - low ? number : middle - low;
            int64_t left = least < most ? decode_left(coder, trees, tree->nodes[middle], number, least, most) : least;
            if (left < least || left > most || coder->is_damaged || depth == DEEPEST) return -1;
            rights[depth].low = middle;
            rights[depth].high = high;
            rights[depth++].number = number - left;
            high = middle;
            number = left;
            continue;
        }
        if (!depth) return coder->is_damaged ? -1 : 0;
        low = rights[--depth].low;
        high = rights[depth].high;
        number = rights[depth].number;
    }
}

/* Reads the sets of a row up to feature `last`, and puts the `*size` ids of that one into `ids`. -1 if they are
 * damaged. */
static int decode_row(Decoder *coder, const Trees *trees, Py_ssize_t last, Union *seen, int32_t *ids, int32_t *header,
                      int64_t *size) {
    seen->number = 0;
    for (Py_ssize_t f = 0; f <= last; f++) {
        const Tree *tree = trees->of + f;
        if (!tree->is_dependent) seen->number = 0;
        int64_t own = decode_size(coder, tree), num_others = own < tree->no_set ? 0 : own - tree->no_set, ones = 0;
        if (num_others > tree->num_symbols - seen->number || coder->is_damaged) return -1;
        for (int64_t k = 0; k < seen->number; k++) {
            int is_member = 0;
            if (own >= tree->no_set) {
                uint32_t share = share_of(tree, seen, k, ones), unit = coder->range >> TABLE_BITS;
                is_member = coder->value < share * unit;
                consume(coder, is_member ? 0 : share, is_member ? share : (1 << TABLE_BITS) - share, unit, !is_member);
            }
            if (f == last && is_member) ids[ones] = seen->ids[k];
            ones += is_member;
            seen->marks[k] = (uint8_t)(is_member | 2);
        }
        if (decode_ids(coder, trees, tree, num_others, seen->others) < 0) return -1;
        if (f == last) {
            for (int64_t i = 0, k = 0; i < seen->number && k < num_others;) {
                if (seen->ids[i] == seen->others[k]) return -1;
                if (seen->ids[i] < seen->others[k]) i++;
                else k++;
            }
            *header = (int32_t)(own < tree->no_set ? own : own + ones);
            *size = ones + num_others;
            for (int64_t i = ones - 1, k = num_others - 1, place = *size; k >= 0;) {
                ids[--place] = i >= 0 && ids[i] > seen->others[k] ? ids[i--] : seen->others[k--];
            }
        } else if (add_seen(seen, seen->others, num_others) < 0) {
            return -1;
        }
    }
    return 0;
}

static Decoder begin_row(const uint64_t *words, uint64_t num_bits, uint64_t start) {
    Decoder coder = {words, start, num_bits + 32, 0, 0xFFFFFFFF, 0};
    coder.value = (uint32_t)(next_bits(&coder) >> 32);
    coder.bit += 32;
    return coder;
}

/* read_trees(parameters, symbol_starts, mass, nodes, classes, sizes, contexts, small, large, words, num_bits, *starts,
 *            rows, feature, own_ids, begin, headers, indptr, ids) -> rows done
 *
 * `read_sets` of sets.c for what `write_trees` wrote. */
KERNEL_FUNCTION(read_trees) {
    Array words, rows, own_ids, headers, indptr, ids;
    Py_ssize_t feature, begin, num_bits;
    Trees trees;
    Ascending starts;
    Union seen;
    if (take_trees(call, &trees) < 0 || take(call, "8n", &words, &num_bits) < 0 ||
        take_ascending(call, &starts, 0) < 0 ||
        take(call, "8n4?n4!8!4!.", &rows, &feature, &own_ids, &begin, &headers, &indptr, &ids) < 0)
        return NULL;
    Py_ssize_t m = rows.length;
    if (num_bits < 0 || words.length < (num_bits + 32) / 64 + 2 || feature < 0 || feature >= trees.number || begin < 0 ||
        begin > m || headers.length != m || indptr.length != m + 1 ||
        (own_ids.data && own_ids.length != trees.of[feature].num_symbols))
        return refuse(DO_NOT_FIT);
    if (take_union(call, &trees, &seen) < 0) return NULL;
    const int64_t *number = rows.data;
    int64_t *ends = indptr.data, num_symbols = trees.of[feature].num_symbols;
    int32_t *id = ids.data;
    if (ends[begin] < 0) return refuse("a set cannot be read");
    for (Py_ssize_t k = begin; k < m; k++)
        if (number[k] < 0 || number[k] >= starts.length) return refuse("a set cannot be read");
    for (Py_ssize_t i = begin; i < m; i++) {
        if (ends[i] + num_symbols > ids.length) return PyLong_FromSsize_t(i);
        uint64_t start = get_ascending(&starts, number[i]);
        if (start > (uint64_t)num_bits) return refuse("a set cannot be read");
        Decoder coder = begin_row(words.data, (uint64_t)num_bits, start);
        int64_t size = 0;
        int failed = decode_row(&coder, &trees, feature, &seen, id + ends[i], (int32_t *)headers.data + i, &size);
        for (int64_t k = ends[i]; !failed && own_ids.data && k < ends[i] + size; k++) {
            id[k] = ((const int32_t *)own_ids.data)[id[k]];
            if (id[k] < 0) failed = -1;
        }
        if (failed) return refuse("a set cannot be read");
        ends[i + 1] = ends[i] + size;
    }
    return PyLong_FromSsize_t(m);
}

/* -- reads of one entity ------------------------------------------------------------------------------- */

/* trees(parameters, symbol_starts, mass, nodes, classes, sizes, contexts, small, large, words, num_bits, unchecked,
 *       block_words, starts ...): the sets of listed rows in count trees */
PREPARED_METHOD(trees) {
    Prepared *self = (Prepared *)call->self;
    Array words;
    Py_ssize_t num_bits;
    if (self->kind != LISTED || self->trees) return refuse("there are no rows for the sets");
    Trees *trees = scratch(call, sizeof *trees);
    if (!trees || take_trees(call, trees) < 0 || take(call, "8n", &words, &num_bits) < 0 ||
        take_blocks(call, &self->tree_blocks) < 0 || take_checked(call, &self->tree_starts, 0) < 0 ||
        take(call, ".") < 0)
        return NULL;
    if (num_bits < 0 || words.length < num_bits / 64 + 3 || self->tree_starts.numbers.length != self->num_rows)
        return refuse(DO_NOT_FIT);
    self->tree_words = words.data;
    self->num_tree_words = (uint64_t)words.length;
    self->num_tree_bits = (uint64_t)num_bits;
    if (keep(self, call) < 0) return NULL;
    self->trees = trees;
    Py_RETURN_NONE;
}

/* from_tree(number, own_ids): the feature is in the sets in trees. */
PREPARED_METHOD(from_tree) {
    Prepared *self = (Prepared *)call->self;
    Feature *feature = begun(self, LISTED);
    Array own_ids;
    if (!feature || take(call, "n4?.", &feature->number, &own_ids) < 0) return NULL;
    if (!self->trees || feature->number < 0 || feature->number >= self->trees->number ||
        (own_ids.data && own_ids.length != self->trees->of[feature->number].num_symbols))
        return refuse(DO_NOT_FIT);
    feature->own_ids = own_ids.data;
    if (keep(self, call) < 0) return NULL;
    feature->form = IN_TREES;
    Py_RETURN_NONE;
}

/* Whether the words of a row are checked; a decoder is up to 32 bits ahead, and reads the word after those. */
static int are_codes_checked(const Prepared *rows, int64_t row, uint64_t start) {
    uint64_t stop = rows->num_tree_bits;
    if (!rows->tree_blocks.unchecked) return 1;
    if (row + 1 < rows->num_rows) stop = get_checked(&rows->tree_starts, row + 1);
    if (start > stop || stop > rows->num_tree_bits) return 0;
    uint64_t last = ((stop + 32) >> 6) + 1;
    return are_checked(&rows->tree_blocks, start >> 6, last < rows->num_tree_words ? last : rows->num_tree_words - 1);
}

int read_tree(const Place *place, const Feature *feature, Arena *arena, Content *content) {
    const Prepared *rows = place->layer->rows;
    const Trees *trees = rows->trees;
    const Tree *tree = trees->of + feature->number;
    uint64_t start = get_checked(&rows->tree_starts, place->row);
    if (start > rows->num_tree_bits || !are_codes_checked(rows, place->row, start)) return REFUSED;
    Union seen;
    void *memory = arena_get(arena, room_for_union(trees));
    int32_t header, *ids = arena_get(arena, (size_t)tree->num_symbols * sizeof *ids);
    if (!memory || !ids) return REFUSED;
    init_union(&seen, trees, memory);
    Decoder coder = begin_row(rows->tree_words, rows->num_tree_bits, start);
    if (decode_row(&coder, trees, feature->number, &seen, ids, &header, &content->count) < 0) return REFUSED;
    for (int64_t i = 0; feature->own_ids && i < content->count; i++)
        if ((ids[i] = feature->own_ids[ids[i]]) < 0) return REFUSED;
    content->state = header < tree->no_set ? header : content->count ? VALUE : EMPTY;
    content->ids = ids;
    return 0;
}
