/* Sets of ids in Golomb-Rice codes, and the rows that they belong to; filters/golomb_sets.py has the formulas. */

#include "kernel.h"

#define LONGEST_UNARY 24 /* as many ones stand for a number of 32 bits that follows */
#define MAX_WIDTH 30

/* Integers of `width` bits back to back, and a word behind them that is read and not used. */
typedef struct {
    const uint64_t *words;
    Py_ssize_t num_words;
    int width;
} Packed;

static inline uint64_t get_packed(const Packed *packed, uint64_t place) {
    if (!packed->width) return 0;
    uint64_t bit = place * (uint64_t)packed->width, word = bit >> 6, shift = bit & 63;
    uint64_t number = packed->words[word] >> shift | packed->words[word + 1] << 1 << (63 - shift);
    return number & (~0ull >> (64 - packed->width));
}

/* 0, or -1 with an exception. Places below `length` are inside the buffer when it is 0. */
static int init_packed(Packed *packed, const Py_buffer *words, int width, Py_ssize_t length) {
    Py_ssize_t num_words = count_of(words, 8);
    if (num_words < 0) return -1;
    if (width < 0 || width > 64 || length < 0 ||
        (width && length && (length > (num_words - 1) * 64 / width || num_words < 1))) {
        PyErr_SetString(PyExc_ValueError, "packed numbers do not fit their words");
        return -1;
    }
    packed->words = words->buf;
    packed->num_words = num_words;
    packed->width = width;
    return 0;
}

/* take_packed(words, width, length, places, numbers)
 *
 * The numbers, uint64[n], at `places`, int64[n] below `length`. */
PyObject *kernel_take_packed(PyObject *module, PyObject *arguments) {
    Py_buffer words, places, numbers;
    int width, failed = 1;
    Py_ssize_t length;
    if (!PyArg_ParseTuple(arguments, "y*iny*w*", &words, &width, &length, &places, &numbers)) return NULL;
    Packed packed;
    Py_ssize_t n = places.len / 8;
    if (init_packed(&packed, &words, width, length) < 0) goto end;
    if (numbers.len != places.len) {
        PyErr_SetString(PyExc_ValueError, "the arrays do not fit each other");
        goto end;
    }
    const int64_t *place = places.buf;
    for (Py_ssize_t i = 0; i < n; i++) {
        if (place[i] < 0 || place[i] >= length) {
            PyErr_SetString(PyExc_ValueError, "there is no such packed number");
            goto end;
        }
        ((uint64_t *)numbers.buf)[i] = get_packed(&packed, (uint64_t)place[i]);
    }
    failed = 0;
end:
    PyBuffer_Release(&words);
    PyBuffer_Release(&places);
    PyBuffer_Release(&numbers);
    if (failed) return NULL;
    Py_RETURN_NONE;
}

/* row_hashes(hashes, salt, salt, out): uint64[n, 2] -> uint64[n] */
PyObject *kernel_row_hashes(PyObject *module, PyObject *arguments) {
    Py_buffer hashes, out;
    unsigned long long salt[2];
    if (!PyArg_ParseTuple(arguments, "y*KKw*", &hashes, &salt[0], &salt[1], &out)) return NULL;
    int fits = hashes.len == 2 * out.len && out.len % 8 == 0;
    const uint64_t *hash = hashes.buf;
    for (Py_ssize_t i = 0; fits && i < out.len / 8; i++)
        ((uint64_t *)out.buf)[i] = mix64(mix64(hash[2 * i] ^ salt[1]) + (hash[2 * i + 1] ^ salt[0]));
    if (!fits) PyErr_SetString(PyExc_ValueError, "the arrays do not fit each other");
    PyBuffer_Release(&hashes);
    PyBuffer_Release(&out);
    if (!fits) return NULL;
    Py_RETURN_NONE;
}

/* find_rows(start_words, start_width, num_buckets, rest_words, rest_width, num_rows, fingerprints, rows)
 *
 * The row of each fingerprint: its upper bits are the number of a bucket, its lower `rest_width` bits are looked
 * for among those of the bucket's rows. `rows` is int64[n], -1 for one that is not there. */
PyObject *kernel_find_rows(PyObject *module, PyObject *arguments) {
    Py_buffer start_words, rest_words, fingerprints, rows;
    int start_width, rest_width, failed = 1;
    Py_ssize_t num_buckets, num_rows;
    if (!PyArg_ParseTuple(arguments, "y*iny*iny*w*", &start_words, &start_width, &num_buckets, &rest_words,
                          &rest_width, &num_rows, &fingerprints, &rows))
        return NULL;
    Packed starts, rests;
    Py_ssize_t n = fingerprints.len / 8;
    if (init_packed(&starts, &start_words, start_width, num_buckets + 1) < 0 ||
        init_packed(&rests, &rest_words, rest_width, num_rows) < 0)
        goto end;
    if (rows.len != 8 * n || rest_width > 63 || num_buckets < 0) {
        PyErr_SetString(PyExc_ValueError, "the arrays do not fit each other");
        goto end;
    }
    const uint64_t *wanted = fingerprints.buf;
    int64_t *found = rows.buf;
    uint64_t mask = (1ull << rest_width) - 1;
    for (Py_ssize_t i = 0; i < n; i++) {
        uint64_t bucket = wanted[i] >> rest_width, rest = wanted[i] & mask;
        found[i] = -1;
        if (bucket >= (uint64_t)num_buckets) continue;
        uint64_t row = get_packed(&starts, bucket), stop = get_packed(&starts, bucket + 1);
        if (stop > (uint64_t)num_rows) {
            PyErr_SetString(PyExc_ValueError, "a bucket has rows that do not exist");
            goto end;
        }
        for (; row < stop; row++)
            if (get_packed(&rests, row) == rest) {
                found[i] = (int64_t)row;
                break;
            }
    }
    failed = 0;
end:
    PyBuffer_Release(&start_words);
    PyBuffer_Release(&rest_words);
    PyBuffer_Release(&fingerprints);
    PyBuffer_Release(&rows);
    if (failed) return NULL;
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

/* codes(int64[F, 2] of header_width and no_set), level_starts(int64[F + 1]), levels -> Code[F], or NULL. */
static Code *read_codes(const Py_buffer *parameters, const Py_buffer *level_starts, const Py_buffer *levels) {
    Py_ssize_t num_features = level_starts->len / 8 - 1;
    const int64_t *starts = level_starts->buf, *numbers = parameters->buf;
    int fits = num_features >= 1 && parameters->len == 16 * num_features && starts[0] == 0 &&
               starts[num_features] == levels->len;
    for (Py_ssize_t f = 0; fits && f < num_features; f++)
        fits = starts[f] <= starts[f + 1] && numbers[2 * f] >= 0 && numbers[2 * f] <= MAX_WIDTH &&
               numbers[2 * f + 1] >= 0 && numbers[2 * f + 1] <= 2;
    if (!fits) {
        PyErr_SetString(PyExc_ValueError, "the codes do not fit each other");
        return NULL;
    }
    Code *codes = PyMem_Malloc(sizeof(Code) * (size_t)num_features);
    if (!codes) {
        PyErr_NoMemory();
        return NULL;
    }
    for (Py_ssize_t f = 0; f < num_features; f++) {
        codes[f].levels = (const uint8_t *)levels->buf + starts[f];
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
PyObject *kernel_write_sets(PyObject *module, PyObject *arguments) {
    Py_buffer parameters, level_starts, levels, headers, indptr, ids, words, ends;
    int failed = 1;
    Code *codes = NULL;
    if (!PyArg_ParseTuple(arguments, "y*y*y*y*y*y*w*w*", &parameters, &level_starts, &levels, &headers, &indptr, &ids,
                          &words, &ends))
        return NULL;
    codes = read_codes(&parameters, &level_starts, &levels);
    if (!codes) goto end;
    Py_ssize_t num_features = level_starts.len / 8 - 1, n = ends.len / 8, m = ids.len / 4;
    const int64_t *bounds = indptr.buf;
    const int32_t *header = headers.buf, *id = ids.buf;
    int fits = headers.len == 4 * n * num_features && indptr.len == 8 * (n * num_features + 1) && bounds[0] == 0 &&
               bounds[n * num_features] == m;
    for (Py_ssize_t s = 0; fits && s < n * num_features; s++) {
        const Code *code = codes + s % num_features;
        int64_t size = bounds[s + 1] - bounds[s];
        fits = header[s] >= 0 && size == (header[s] < code->no_set ? 0 : header[s] - code->no_set);
        for (int64_t i = bounds[s]; fits && i < bounds[s + 1]; i++)
            fits = id[i] >= 0 && id[i] < code->num_symbols && (i == bounds[s] || id[i - 1] < id[i]);
    }
    if (!fits) {
        PyErr_SetString(PyExc_ValueError, "the sets do not fit their codes");
        goto end;
    }
    Writer writer = {words.len ? words.buf : NULL, 0, 8 * (uint64_t)words.len};
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
        ((int64_t *)ends.buf)[row] = (int64_t)writer.bit;
    }
    if (writer.words && writer.bit > writer.num_bits) {
        PyErr_SetString(PyExc_ValueError, "the words are too few for the sets");
        goto end;
    }
    failed = 0;
end:
    PyMem_Free(codes);
    PyBuffer_Release(&parameters);
    PyBuffer_Release(&level_starts);
    PyBuffer_Release(&levels);
    PyBuffer_Release(&headers);
    PyBuffer_Release(&indptr);
    PyBuffer_Release(&ids);
    PyBuffer_Release(&words);
    PyBuffer_Release(&ends);
    if (failed) return NULL;
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
PyObject *kernel_read_sets(PyObject *module, PyObject *arguments) {
    Py_buffer parameters, level_starts, levels, words, anchor_words, delta_words, rows, headers, indptr, ids;
    int anchor_width, delta_width;
    Py_ssize_t num_bits, num_rows, block_rows, feature, begin, done = -1;
    Code *codes = NULL;
    if (!PyArg_ParseTuple(arguments, "y*y*y*y*ny*iy*inny*nnw*w*w*", &parameters, &level_starts, &levels, &words,
                          &num_bits, &anchor_words, &anchor_width, &delta_words, &delta_width, &num_rows, &block_rows,
                          &rows, &feature, &begin, &headers, &indptr, &ids))
        return NULL;
    codes = read_codes(&parameters, &level_starts, &levels);
    if (!codes) goto end;
    Packed anchors, deltas;
    Py_ssize_t num_features = level_starts.len / 8 - 1, m = rows.len / 8, capacity = ids.len / 4;
    if (block_rows < 1 || init_packed(&deltas, &delta_words, delta_width, num_rows) < 0 ||
        init_packed(&anchors, &anchor_words, anchor_width, (num_rows + block_rows - 1) / block_rows) < 0) {
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "a block has no rows");
        goto end;
    }
    if (feature < 0 || feature >= num_features || begin < 0 || begin > m || headers.len != 4 * m ||
        indptr.len != 8 * (m + 1) || num_bits < 0 || words.len / 8 < num_bits / 64 + 2) {
        PyErr_SetString(PyExc_ValueError, "the arrays do not fit each other");
        goto end;
    }
    const int64_t *row = rows.buf;
    int64_t *ends = indptr.buf;
    int32_t *header = headers.buf, *id = ids.buf;
    Py_ssize_t count = (Py_ssize_t)ends[begin], i = begin;
    if (count < 0) goto damaged;
    Bits bits = {words.buf, 0, (uint64_t)num_bits};
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
                if (count + size > capacity) goto full;
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
full:
    done = i;
    goto end;
damaged:
    PyErr_SetString(PyExc_ValueError, "a set cannot be read");
end:
    PyMem_Free(codes);
    PyBuffer_Release(&parameters);
    PyBuffer_Release(&level_starts);
    PyBuffer_Release(&levels);
    PyBuffer_Release(&words);
    PyBuffer_Release(&anchor_words);
    PyBuffer_Release(&delta_words);
    PyBuffer_Release(&rows);
    PyBuffer_Release(&headers);
    PyBuffer_Release(&indptr);
    PyBuffer_Release(&ids);
    return done < 0 ? NULL : PyLong_FromSsize_t(done);
}
