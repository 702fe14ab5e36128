/* Sets of ids in Golomb-Rice codes, and the rows that they belong to; succinct/golomb_sets.py has the formulas. */

#include "kernel.h"

#define LONGEST_UNARY 24 /* as many ones stand for a number of 32 bits that follows */
#define MAX_WIDTH 30

/* Integers of `width` bits back to back, and a word behind them that is read and not used. */
typedef struct {
    const uint64_t *words;
    int width;
} Packed;

static inline uint64_t get_packed(const Packed *packed, uint64_t place) {
    if (!packed->width) return 0;
    uint64_t bit = place * (uint64_t)packed->width, word = bit >> 6, shift = bit & 63;
    uint64_t number = packed->words[word] >> shift | packed->words[word + 1] << 1 << (63 - shift);
    return number & (~0ull >> (64 - packed->width));
}

/* 0, or -1 with an exception. Places below `length` are inside the buffer when it is 0. */
static int init_packed(Packed *packed, const Array *words, Py_ssize_t width, Py_ssize_t length) {
    if (width < 0 || width > 64 || length < 0 ||
        (width && length && (length > (words->length - 1) * 64 / width || words->length < 1))) {
        refuse("packed numbers do not fit their words");
        return -1;
    }
    packed->words = words->data;
    packed->width = (int)width;
    return 0;
}

/* take_packed(words, width, length, places, numbers)
 *
 * The numbers, uint64[n], at `places`, int64[n] below `length`. */
KERNEL_FUNCTION(take_packed) {
    Array words, places, numbers;
    Py_ssize_t width, length;
    Packed packed;
    if (take(call, "8nn88!.", &words, &width, &length, &places, &numbers) < 0 ||
        init_packed(&packed, &words, width, length) < 0)
        return NULL;
    if (numbers.length != places.length) return refuse(DO_NOT_FIT);
    const int64_t *place = places.data;
    for (Py_ssize_t i = 0; i < places.length; i++) {
        if (place[i] < 0 || place[i] >= length) return refuse("there is no such packed number");
        ((uint64_t *)numbers.data)[i] = get_packed(&packed, (uint64_t)place[i]);
    }
    Py_RETURN_NONE;
}

/* row_hashes(hashes, salt, salt, out): uint64[n, 2] -> uint64[n] */
KERNEL_FUNCTION(row_hashes) {
    Array hashes, out;
    uint64_t salt[2];
    if (take(call, "8ww8!.", &hashes, &salt[0], &salt[1], &out) < 0) return NULL;
    if (hashes.length != 2 * out.length) return refuse(DO_NOT_FIT);
    const uint64_t *hash = hashes.data;
    for (Py_ssize_t i = 0; i < out.length; i++)
        ((uint64_t *)out.data)[i] = mix64(mix64(hash[2 * i] ^ salt[1]) + (hash[2 * i + 1] ^ salt[0]));
    Py_RETURN_NONE;
}

/* find_rows(start_words, start_width, num_buckets, rest_words, rest_width, num_rows, fingerprints, rows)
 *
 * The row of each fingerprint: its upper bits are the number of a bucket, its lower `rest_width` bits are looked
 * for among those of the bucket's rows. `rows` is int64[n], -1 for one that is not there. */
KERNEL_FUNCTION(find_rows) {
    Array start_words, rest_words, fingerprints, rows;
    Py_ssize_t start_width, num_buckets, rest_width, num_rows;
    if (take(call, "8nn8nn88!.", &start_words, &start_width, &num_buckets, &rest_words, &rest_width, &num_rows,
             &fingerprints, &rows) < 0)
        return NULL;
    Py_ssize_t n = fingerprints.length;
    if (rows.length != n || rest_width > 63 || num_buckets < 0 || num_buckets == PY_SSIZE_T_MAX)
        return refuse(DO_NOT_FIT);
    Packed starts, rests;
    if (init_packed(&starts, &start_words, start_width, num_buckets + 1) < 0 ||
        init_packed(&rests, &rest_words, rest_width, num_rows) < 0)
        return NULL;
    const uint64_t *wanted = fingerprints.data;
    int64_t *found = rows.data;
    uint64_t mask = (1ull << rest_width) - 1;
    for (Py_ssize_t i = 0; i < n; i++) {
        uint64_t bucket = wanted[i] >> rest_width, rest = wanted[i] & mask;
        found[i] = -1;
        if (bucket >= (uint64_t)num_buckets) continue;
        uint64_t row = get_packed(&starts, bucket), stop = get_packed(&starts, bucket + 1);
        if (stop > (uint64_t)num_rows) return refuse("a bucket has rows that do not exist");
        for (; row < stop; row++)
            if (get_packed(&rests, row) == rest) {
                found[i] = (int64_t)row;
                break;
            }
    }
    Py_RETURN_NONE;
}

/* How the sets of one feature are coded. */
typedef struct {
    const uint8_t *levels;
    int64_t num_symbols, no_set; /* headers below `no_set` stand for a row that has no set */
    int header_width;
} Code;

/* Twice the logarithm of a count, rounded. */
static inline int half_octaves(uint64_t count) {
    int octaves = 0;
    while (count >> octaves >> 1) octaves++;
    return 2 * octaves + (count * count >= 2ull << 2 * octaves);
}

static inline int width_of_gap(const Code *code, int64_t symbol, int size) {
    int width = (code->levels[symbol] - size + 1) >> 1;
    return width < 0 ? 0 : width > MAX_WIDTH ? MAX_WIDTH : width;
}

/* Takes parameters, int64[F, 2] of header_width and no_set; level_starts, int64[F + 1]; levels, uint8. Their codes,
 * one for each feature, or NULL with an exception. */
static Code *take_codes(Call *call, Py_ssize_t *num_features) {
    Array parameters, level_starts, levels;
    if (take(call, "881", &parameters, &level_starts, &levels) < 0) return NULL;
    Py_ssize_t number = *num_features = level_starts.length - 1;
    const int64_t *starts = level_starts.data, *numbers = parameters.data;
    int fits = number >= 1 && parameters.length == 2 * number && starts[0] == 0 && starts[number] == levels.length;
    for (Py_ssize_t f = 0; fits && f < number; f++)
        fits = starts[f] <= starts[f + 1] && numbers[2 * f] >= 0 && numbers[2 * f] <= MAX_WIDTH &&
               numbers[2 * f + 1] >= 0 && numbers[2 * f + 1] <= 2;
    if (!fits) {
        refuse("the codes do not fit each other");
        return NULL;
    }
    Code *codes = scratch(call, sizeof(Code) * (size_t)number);
    for (Py_ssize_t f = 0; codes && f < number; f++) {
        codes[f].levels = (const uint8_t *)levels.data + starts[f];
        codes[f].num_symbols = starts[f + 1] - starts[f];
        codes[f].header_width = (int)numbers[2 * f];
        codes[f].no_set = numbers[2 * f + 1];
    }
    return codes;
}

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

/* write_sets(parameters, level_starts, levels, headers, indptr, ids, words, ends)
 *
 * `headers` are int32[n, F]; segment `row * F + feature` of the CSR matrix `indptr`, int64[n * F + 1], and `ids`,
 * int32, are the ids of a set, ascending. `ends` becomes the bit behind each row, int64[n]; `words` are written if
 * there are any, so that a first call finds out how many it takes. */
KERNEL_FUNCTION(write_sets) {
    Array headers, indptr, ids, words, ends;
    Py_ssize_t num_features;
    const Code *codes = take_codes(call, &num_features);
    if (!codes || take(call, "4848!8!.", &headers, &indptr, &ids, &words, &ends) < 0) return NULL;
    Py_ssize_t n = ends.length, m = ids.length;
    const int64_t *bounds = indptr.data;
    const int32_t *header = headers.data, *id = ids.data;
    int fits = headers.length == n * num_features && indptr.length == n * num_features + 1 && bounds[0] == 0 &&
               bounds[n * num_features] == m;
    for (Py_ssize_t s = 0; fits && s < n * num_features; s++) {
        const Code *code = codes + s % num_features;
        int64_t size = bounds[s + 1] - bounds[s];
        fits = header[s] >= 0 && size == (header[s] < code->no_set ? 0 : header[s] - code->no_set);
        for (int64_t i = bounds[s]; fits && i < bounds[s + 1]; i++)
            fits = id[i] >= 0 && id[i] < code->num_symbols && (i == bounds[s] || id[i - 1] < id[i]);
    }
    if (!fits) return refuse("the sets do not fit their codes");
    Writer writer = {words.length ? words.data : NULL, 0, 64 * (uint64_t)words.length};
    for (Py_ssize_t row = 0; row < n; row++) {
        for (Py_ssize_t f = 0; f < num_features; f++) {
            Py_ssize_t s = row * num_features + f;
            write_code(&writer, (uint64_t)header[s], codes[f].header_width);
            int size = half_octaves((uint64_t)(bounds[s + 1] - bounds[s]));
            int64_t next = 0;
            for (int64_t i = bounds[s]; i < bounds[s + 1]; i++) {
                write_code(&writer, (uint64_t)(id[i] - next), width_of_gap(codes + f, next, size));
                next = (int64_t)id[i] + 1;
            }
        }
        ((int64_t *)ends.data)[row] = (int64_t)writer.bit;
    }
    if (writer.words && writer.bit > writer.num_bits) return refuse("the words are too few for the sets");
    Py_RETURN_NONE;
}

/* The words end with one that is read and not used; `bit` is at most `num_bits` before each call. */
typedef struct {
    const uint64_t *words;
    uint64_t bit, num_bits;
} Bits;

static ALWAYS_INLINE uint64_t read_code(Bits *bits, int width) {
    uint64_t word = bits->bit >> 6, shift = bits->bit & 63;
    uint64_t code = bits->words[word] >> shift | bits->words[word + 1] << 1 << (63 - shift);
    uint32_t quotient = LOWEST(~code | 1ull << 63);
    if (quotient < LONGEST_UNARY) {
        bits->bit += quotient + 1 + (uint32_t)width;
        return (uint64_t)quotient << width | (code >> (quotient + 1) & ((1ull << width) - 1));
    }
    bits->bit += LONGEST_UNARY + 32;
    return code >> LONGEST_UNARY & 0xFFFFFFFF;
}

/* read_sets(parameters, level_starts, levels, words, num_bits, anchor_words, anchor_width, delta_words, delta_width,
 *           num_rows, block_rows, rows, feature, begin, headers, indptr, ids) -> rows done
 *
 * Row `r` begins at bit `anchors[r / block_rows] + deltas[r]`. Goes on at number `begin` of `rows`, int64[m], and
 * stops before one whose ids might not fit. `headers` is int32[m], `indptr` int64[m + 1]. */
KERNEL_FUNCTION(read_sets) {
    Array words, anchor_words, delta_words, rows, headers, indptr, ids;
    Py_ssize_t num_features, num_bits, anchor_width, delta_width, num_rows, block_rows, feature, begin;
    const Code *codes = take_codes(call, &num_features);
    if (!codes || take(call, "8n8n8nnn8nn4!8!4!.", &words, &num_bits, &anchor_words, &anchor_width, &delta_words,
                       &delta_width, &num_rows, &block_rows, &rows, &feature, &begin, &headers, &indptr, &ids) < 0)
        return NULL;
    if (block_rows < 1) return refuse("a block has no rows");
    Packed anchors, deltas;
    if (init_packed(&deltas, &delta_words, delta_width, num_rows) < 0 ||
        init_packed(&anchors, &anchor_words, anchor_width, num_rows / block_rows + (num_rows % block_rows != 0)) < 0)
        return NULL;
    Py_ssize_t m = rows.length;
    if (feature < 0 || feature >= num_features || begin < 0 || begin > m || headers.length != m ||
        indptr.length != m + 1 || num_bits < 0 || words.length < num_bits / 64 + 2)
        return refuse(DO_NOT_FIT);
    const int64_t *row = rows.data;
    int64_t *ends = indptr.data, count = ends[begin];
    int32_t *header = headers.data, *id = ids.data;
    if (count < 0) goto damaged;
    Bits bits = {words.data, 0, (uint64_t)num_bits};
    Py_ssize_t i = begin;
    for (; i < m; i++) {
        if (row[i] < 0 || row[i] >= num_rows) goto damaged;
        bits.bit = get_packed(&anchors, (uint64_t)(row[i] / block_rows)) + get_packed(&deltas, (uint64_t)row[i]);
        for (Py_ssize_t f = 0; f <= feature; f++) {
            const Code *code = codes + f;
            if (bits.bit > bits.num_bits) goto damaged;
            int64_t head = (int64_t)read_code(&bits, code->header_width);
            int64_t size = head < code->no_set ? 0 : head - code->no_set, next = 0;
            if (size > code->num_symbols) goto damaged;
            int octaves = half_octaves((uint64_t)size);
            if (f == feature) {
                if (count + size > ids.length) return PyLong_FromSsize_t(i);
                header[i] = (int32_t)head;
            }
            for (int64_t k = 0; k < size; k++) {
                if (bits.bit > bits.num_bits || next >= code->num_symbols) goto damaged;
                next += (int64_t)read_code(&bits, width_of_gap(code, next, octaves));
                if (f == feature) id[count++] = (int32_t)next;
                next++;
            }
            if (next > code->num_symbols) goto damaged;
        }
        ends[i + 1] = count;
    }
    return PyLong_FromSsize_t(i);
damaged:
    return refuse("a set cannot be read");
}
