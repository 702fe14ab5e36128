/* Reading and filling the table of a shifting Bloom filter; filters/shifting_bloom.py has the formulas. */

#include "kernel.h"

#define MAX_NUM_HASHES 128

typedef struct {
    Py_buffer words;
    Py_ssize_t num_words;
    unsigned long long salt[2];
} Table;

/* Where the windows of one entity begin, and how far their words are rotated. */
typedef struct {
    uint64_t starts[MAX_NUM_HASHES];
    uint32_t rotations[MAX_NUM_HASHES];
} Windows;

static inline uint64_t rotate_right(uint64_t word, uint32_t distance) {
    return word >> distance | word << (-distance & 63);
}

static inline void place_windows(uint64_t num_words, const unsigned long long *salt, const uint64_t *hash,
                                 uint64_t first_word, int num_hashes, Windows *windows) {
    uint64_t start = mix64(hash[0] ^ salt[0]), step = mix64(hash[1] ^ salt[1]) | 1;
    for (int j = 0; j < num_hashes; j++) {
        uint64_t mixed = mix64(start + step * (uint64_t)j);
        uint64_t offset = ((mixed >> 32) * num_words >> 32) + first_word;
        windows->starts[j] = offset >= num_words ? offset - num_words : offset;
        windows->rotations[j] = mixed & 63;
    }
}

/* All windows at once, so that their cache misses overlap; eight words stay in registers. */
#define AND_WINDOWS(NAME)                                                                                       \
    static void NAME(const uint64_t *words, const Windows *windows, int num_hashes, Py_ssize_t num_words,       \
                     uint64_t *answers) {                                                                       \
        Py_ssize_t w = 0;                                                                                       \
        for (; w + 8 <= num_words; w += 8) {                                                                    \
            uint64_t block[8];                                                                                  \
            for (int b = 0; b < 8; b++) block[b] = ~0ull;                                                       \
            for (int j = 0; j < num_hashes; j++) {                                                              \
                const uint64_t *window = words + windows->starts[j] + w;                                        \
                uint32_t right = windows->rotations[j], left = -right & 63;                                     \
                for (int b = 0; b < 8; b++) block[b] &= window[b] >> right | window[b] << left;                 \
            }                                                                                                   \
            memcpy(answers + w, block, sizeof block);                                                           \
        }                                                                                                       \
        for (; w < num_words; w++) {                                                                            \
            uint64_t word = ~0ull;                                                                              \
            for (int j = 0; j < num_hashes && word; j++)                                                        \
                word &= rotate_right(words[windows->starts[j] + w], windows->rotations[j]);                     \
            answers[w] = word;                                                                                  \
        }                                                                                                       \
    }

/* One build has a version for each width of registers, and picks one when it is loaded. */
AND_WINDOWS(and_windows_128)
static void (*and_windows)(const uint64_t *, const Windows *, int, Py_ssize_t, uint64_t *) = and_windows_128;

#if defined(__x86_64__) && defined(__GNUC__)
__attribute__((target("avx2"))) AND_WINDOWS(and_windows_256)
__attribute__((target("avx512f"))) AND_WINDOWS(and_windows_512)

void kernel_choose_width(void) {
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2")) and_windows = and_windows_256;
    if (__builtin_cpu_supports("avx512f")) and_windows = and_windows_512;
}
#else
void kernel_choose_width(void) {}
#endif

static inline void prefetch_windows(const uint64_t *words, const Windows *windows, int num_hashes,
                                    Py_ssize_t num_words) {
    Py_ssize_t lines = num_words < 32 ? (num_words + 7) / 8 : 4; /* the hardware sees a stream by then */
    for (int j = 0; j < num_hashes; j++)
        for (Py_ssize_t line = 0; line < lines; line++)
            PREFETCH(words + windows->starts[j] + 8 * line);
}

/* Gives the answers of entity after entity, while the windows of the next are on their way to the cache. */
typedef struct {
    const uint64_t *words, *hashes;
    uint64_t num_words_of_table, first_word;
    const unsigned long long *salt;
    Py_ssize_t num_entities, num_words;
    int num_hashes;
    const int64_t *firsts; /* of each hash, the first symbol that it is used for; NULL if it is for all */
    uint64_t last_word;    /* masks what lies behind the last symbol */
    Windows windows[2];
} Reader;

/* Not inlined, GCC 12 takes its stores for dead (-fipa-modref). */
static ALWAYS_INLINE void look_ahead(Reader *reader, Py_ssize_t entity) {
    if (entity >= reader->num_entities) return;
    Windows *windows = &reader->windows[entity & 1];
    place_windows(reader->num_words_of_table, reader->salt, reader->hashes + 2 * entity, reader->first_word,
                  reader->num_hashes, windows);
    prefetch_windows(reader->words, windows, reader->num_hashes, reader->num_words);
}

static inline Py_ssize_t words_for(int64_t num_symbols) { return (Py_ssize_t)((num_symbols + 63) / 64); }

/* Each word with the hashes that are for all of its symbols; then hashes that are for some symbols of a word. */
static void and_tiers(const Reader *reader, const Windows *windows, uint64_t *answers) {
    const int64_t *firsts = reader->firsts;
    for (int j = 0; j < reader->num_hashes; j++) {
        Py_ssize_t word = words_for(firsts[j]);
        Py_ssize_t stop = j + 1 < reader->num_hashes ? words_for(firsts[j + 1]) : reader->num_words;
        if (word < stop) and_windows(reader->words + word, windows, j + 1, stop - word, answers + word);
    }
    for (int j = 1; j < reader->num_hashes; j++)
        if (firsts[j] % 64) {
            Py_ssize_t word = (Py_ssize_t)(firsts[j] / 64);
            answers[word] &= rotate_right(reader->words[windows->starts[j] + (uint64_t)word], windows->rotations[j]) |
                             ((1ull << firsts[j] % 64) - 1);
        }
}

static void read_entity(Reader *reader, Py_ssize_t entity, uint64_t *answers) {
    look_ahead(reader, entity + 1);
    const Windows *windows = &reader->windows[entity & 1];
    if (reader->firsts)
        and_tiers(reader, windows, answers);
    else
        and_windows(reader->words, windows, reader->num_hashes, reader->num_words, answers);
    answers[reader->num_words - 1] &= reader->last_word;
}

/* Whether the first symbols of hashes ascend from 0 within the symbols, or are not given; else with an exception. */
static int are_firsts(const Py_buffer *firsts, int num_hashes, Py_ssize_t num_symbols) {
    const int64_t *first = firsts->buf;
    if (!first) return 1;
    int fits = firsts->len == 8 * (Py_ssize_t)num_hashes && num_hashes && !first[0];
    for (int j = 0; fits && j < num_hashes; j++) fits = first[j] < num_symbols && (!j || first[j - 1] <= first[j]);
    if (!fits) PyErr_SetString(PyExc_ValueError, "the hashes do not fit the symbols");
    return fits;
}

/* 0, or -1 with an exception. Nothing outside the buffers is touched when it is 0. */
static int init_reader(Reader *reader, const Table *table, const Py_buffer *hashes, Py_ssize_t first_word,
                       Py_ssize_t num_symbols, int num_hashes, const Py_buffer *firsts) {
    Py_ssize_t length = count_of(&table->words, 8), num_halves = count_of(hashes, 8);
    if (length < 0 || num_halves < 0) return -1;
    Py_ssize_t num_words = num_symbols / 64 + (num_symbols % 64 != 0);
    if (num_halves % 2 || num_symbols < 1 || first_word < 0 || table->num_words < 1 || first_word > table->num_words ||
        num_words > length - table->num_words || num_hashes < 1 || num_hashes > MAX_NUM_HASHES) {
        PyErr_SetString(PyExc_ValueError, "the symbols do not lie in the table's window");
        return -1;
    }
    if (!are_firsts(firsts, num_hashes, num_symbols)) return -1;
    reader->firsts = firsts->buf;
    reader->words = table->words.buf;
    reader->hashes = hashes->buf;
    reader->num_words_of_table = (uint64_t)table->num_words;
    reader->first_word = (uint64_t)first_word;
    reader->salt = table->salt;
    reader->num_entities = num_halves / 2;
    reader->num_words = num_words;
    reader->num_hashes = num_hashes;
    reader->last_word = ~0ull >> (num_words * 64 - num_symbols);
    return 0;
}

static int is_worth_releasing(const Reader *reader, Py_ssize_t begin) {
    return (reader->num_entities - begin) * reader->num_words * reader->num_hashes / 4 > WORTH_RELEASING_GIL;
}

/* Up to two ones of a word without a branch that depends on them: most words have no more. */
static inline Py_ssize_t write_ids(uint64_t word, int32_t first_id, int32_t *ids, Py_ssize_t count) {
    ids[count] = first_id + (int32_t)LOWEST(word | 1ull << 63);
    count += word != 0;
    word &= word - 1;
    ids[count] = first_id + (int32_t)LOWEST(word | 1ull << 63);
    count += word != 0;
    word &= word - (word != 0);
    for (; word; word &= word - 1) ids[count++] = first_id + (int32_t)LOWEST(word);
    return count;
}

/* possible_symbols(words, num_words, salt, salt, hashes, first_word, num_symbols, num_hashes, firsts, wanted, begin,
 *                  indptr, ids) -> entities done
 *
 * Goes on at entity `begin` and stops before one whose ids might not fit. */
PyObject *kernel_possible_symbols(PyObject *module, PyObject *arguments) {
    Table table;
    Py_buffer hashes, firsts, wanted, indptr, ids;
    Py_ssize_t first_word, num_symbols, begin, done = -1;
    int num_hashes;
    if (!PyArg_ParseTuple(arguments, "y*nKKy*nniz*z*nw*w*", &table.words, &table.num_words, &table.salt[0],
                          &table.salt[1], &hashes, &first_word, &num_symbols, &num_hashes, &firsts, &wanted, &begin,
                          &indptr, &ids))
        return NULL;
    Reader reader;
    uint64_t *answers = NULL;
    if (init_reader(&reader, &table, &hashes, first_word, num_symbols, num_hashes, &firsts) < 0) goto end;
    Py_ssize_t n = reader.num_entities, capacity = ids.len / 4;
    if (begin < 0 || begin > n || indptr.len != 8 * (n + 1) || (wanted.buf && wanted.len != n) ||
        num_symbols > INT32_MAX) {
        PyErr_SetString(PyExc_ValueError, "the arrays do not fit each other");
        goto end;
    }
    int64_t *ends = indptr.buf;
    const uint8_t *is_wanted = wanted.buf;
    Py_ssize_t count = (Py_ssize_t)ends[begin];
    answers = PyMem_Malloc(8 * (size_t)reader.num_words);
    if (!answers || count < 0) {
        PyErr_NoMemory();
        goto end;
    }
    PyThreadState *state = is_worth_releasing(&reader, begin) ? PyEval_SaveThread() : NULL;
    look_ahead(&reader, begin);
    Py_ssize_t entity = begin;
    for (; entity < n; entity++) {
        if (is_wanted && !is_wanted[entity]) {
            look_ahead(&reader, entity + 1);
        } else {
            read_entity(&reader, entity, answers);
            Py_ssize_t ones = 0;
            for (Py_ssize_t w = 0; w < reader.num_words; w++) ones += POPULATION(answers[w]);
            if (count + ones + 2 > capacity) break; /* write_ids writes up to two more than it counts */
            for (Py_ssize_t w = 0; w < reader.num_words; w++)
                count = write_ids(answers[w], (int32_t)(64 * w), ids.buf, count);
        }
        ends[entity + 1] = count;
    }
    done = entity;
    if (state) PyEval_RestoreThread(state);
end:
    PyMem_Free(answers);
    PyBuffer_Release(&table.words);
    PyBuffer_Release(&hashes);
    if (firsts.buf) PyBuffer_Release(&firsts);
    if (wanted.buf) PyBuffer_Release(&wanted);
    PyBuffer_Release(&indptr);
    PyBuffer_Release(&ids);
    return done < 0 ? NULL : PyLong_FromSsize_t(done);
}

/* windows(words, num_words, salt, salt, hashes, first_word, num_symbols, num_hashes, firsts, answers) */
PyObject *kernel_windows(PyObject *module, PyObject *arguments) {
    Table table;
    Py_buffer hashes, firsts, answers;
    Py_ssize_t first_word, num_symbols;
    int num_hashes, failed = 1;
    if (!PyArg_ParseTuple(arguments, "y*nKKy*nniz*w*", &table.words, &table.num_words, &table.salt[0],
                          &table.salt[1], &hashes, &first_word, &num_symbols, &num_hashes, &firsts, &answers))
        return NULL;
    Reader reader;
    if (init_reader(&reader, &table, &hashes, first_word, num_symbols, num_hashes, &firsts) < 0) goto end;
    if (answers.len != 8 * reader.num_entities * reader.num_words) {
        PyErr_SetString(PyExc_ValueError, "the arrays do not fit each other");
        goto end;
    }
    PyThreadState *state = is_worth_releasing(&reader, 0) ? PyEval_SaveThread() : NULL;
    look_ahead(&reader, 0);
    for (Py_ssize_t entity = 0; entity < reader.num_entities; entity++)
        read_entity(&reader, entity, (uint64_t *)answers.buf + entity * reader.num_words);
    if (state) PyEval_RestoreThread(state);
    failed = 0;
end:
    PyBuffer_Release(&table.words);
    PyBuffer_Release(&hashes);
    if (firsts.buf) PyBuffer_Release(&firsts);
    PyBuffer_Release(&answers);
    if (failed) return NULL;
    Py_RETURN_NONE;
}

/* contains(words, num_words, salt, salt, hashes, first_word, num_symbols, num_hashes, firsts, wanted, symbols, per_entity,
 *          out)
 *
 * `symbols` are int32[per_entity] asked of every entity, or int32[n, per_entity]; one outside the range, like
 * -1, is nobody's. `out` is uint8[n, per_entity]. */
PyObject *kernel_contains(PyObject *module, PyObject *arguments) {
    Table table;
    Py_buffer hashes, firsts, wanted, symbols, out;
    Py_ssize_t first_word, num_symbols, per_entity;
    int num_hashes, failed = 1;
    if (!PyArg_ParseTuple(arguments, "y*nKKy*nniz*z*y*nw*", &table.words, &table.num_words, &table.salt[0],
                          &table.salt[1], &hashes, &first_word, &num_symbols, &num_hashes, &firsts, &wanted, &symbols,
                          &per_entity, &out))
        return NULL;
    Reader reader;
    uint64_t *answers = NULL;
    if (init_reader(&reader, &table, &hashes, first_word, num_symbols, num_hashes, &firsts) < 0) goto end;
    Py_ssize_t n = reader.num_entities;
    if (per_entity < 0 || out.len != n * per_entity || (wanted.buf && wanted.len != n) ||
        (symbols.len != 4 * per_entity && symbols.len != 4 * n * per_entity)) {
        PyErr_SetString(PyExc_ValueError, "the arrays do not fit each other");
        goto end;
    }
    Py_ssize_t stride = symbols.len == 4 * per_entity ? 0 : per_entity;
    answers = PyMem_Malloc(8 * (size_t)reader.num_words);
    if (!answers) {
        PyErr_NoMemory();
        goto end;
    }
    /* Many questions are cheaper to answer from the whole row, few from the bits they are about. */
    int whole_rows = per_entity * 4 > reader.num_words;
    Py_ssize_t steps = n * num_hashes * (whole_rows ? reader.num_words / 4 + 1 : per_entity * 4) + n * per_entity;
    PyThreadState *state = steps > WORTH_RELEASING_GIL ? PyEval_SaveThread() : NULL;
    look_ahead(&reader, 0);
    for (Py_ssize_t entity = 0; entity < n; entity++) {
        const int32_t *asked = (const int32_t *)symbols.buf + entity * stride;
        uint8_t *found = (uint8_t *)out.buf + entity * per_entity;
        if (wanted.buf && !((const uint8_t *)wanted.buf)[entity]) {
            memset(found, 0, (size_t)per_entity);
            look_ahead(&reader, entity + 1);
            continue;
        }
        if (whole_rows)
            read_entity(&reader, entity, answers);
        else
            look_ahead(&reader, entity + 1);
        const Windows *windows = &reader.windows[entity & 1];
        for (Py_ssize_t i = 0; i < per_entity; i++) {
            uint32_t symbol = (uint32_t)asked[i];
            if (asked[i] < 0 || symbol >= num_symbols) {
                found[i] = 0;
            } else if (whole_rows) {
                found[i] = answers[symbol >> 6] >> (symbol & 63) & 1;
            } else {
                uint64_t bit = 1;
                for (int j = 0; j < num_hashes && bit && (!reader.firsts || reader.firsts[j] <= (int64_t)symbol); j++)
                    bit = reader.words[windows->starts[j] + (symbol >> 6)] >>
                              ((symbol + windows->rotations[j]) & 63) & 1;
                found[i] = (uint8_t)bit;
            }
        }
    }
    if (state) PyEval_RestoreThread(state);
    failed = 0;
end:
    PyMem_Free(answers);
    PyBuffer_Release(&table.words);
    PyBuffer_Release(&hashes);
    if (firsts.buf) PyBuffer_Release(&firsts);
    if (wanted.buf) PyBuffer_Release(&wanted);
    PyBuffer_Release(&symbols);
    PyBuffer_Release(&out);
    if (failed) return NULL;
    Py_RETURN_NONE;
}

/* scores(words, num_words, salt, salt, hashes, first_word, num_symbols, num_hashes, firsts, wanted, weights, out)
 *
 * `weights` is float64[num_symbols]; added to `out`, float64[n], is the sum of those of the entity's symbols. */
PyObject *kernel_scores(PyObject *module, PyObject *arguments) {
    Table table;
    Py_buffer hashes, firsts, wanted, weights, out;
    Py_ssize_t first_word, num_symbols;
    int num_hashes, failed = 1;
    if (!PyArg_ParseTuple(arguments, "y*nKKy*nniz*z*y*w*", &table.words, &table.num_words, &table.salt[0],
                          &table.salt[1], &hashes, &first_word, &num_symbols, &num_hashes, &firsts, &wanted, &weights,
                          &out))
        return NULL;
    Reader reader;
    uint64_t *answers = NULL;
    if (init_reader(&reader, &table, &hashes, first_word, num_symbols, num_hashes, &firsts) < 0) goto end;
    Py_ssize_t n = reader.num_entities;
    if (weights.len != 8 * num_symbols || out.len != 8 * n || (wanted.buf && wanted.len != n)) {
        PyErr_SetString(PyExc_ValueError, "the arrays do not fit each other");
        goto end;
    }
    answers = PyMem_Malloc(8 * (size_t)reader.num_words);
    if (!answers) {
        PyErr_NoMemory();
        goto end;
    }
    const uint8_t *is_wanted = wanted.buf;
    PyThreadState *state = is_worth_releasing(&reader, 0) ? PyEval_SaveThread() : NULL;
    look_ahead(&reader, 0);
    for (Py_ssize_t entity = 0; entity < n; entity++) {
        if (is_wanted && !is_wanted[entity]) {
            look_ahead(&reader, entity + 1);
            continue;
        }
        read_entity(&reader, entity, answers);
        double sum = 0;
        for (Py_ssize_t w = 0; w < reader.num_words; w++) {
            const double *weight = (const double *)weights.buf + 64 * w;
            for (uint64_t word = answers[w]; word; word &= word - 1) sum += weight[LOWEST(word)];
        }
        ((double *)out.buf)[entity] += sum;
    }
    if (state) PyEval_RestoreThread(state);
    failed = 0;
end:
    PyMem_Free(answers);
    PyBuffer_Release(&table.words);
    PyBuffer_Release(&hashes);
    if (firsts.buf) PyBuffer_Release(&firsts);
    if (wanted.buf) PyBuffer_Release(&wanted);
    PyBuffer_Release(&weights);
    PyBuffer_Release(&out);
    if (failed) return NULL;
    Py_RETURN_NONE;
}

/* touch_blocks(words, num_words, salt, salt, hashes, first_word, num_symbols, num_hashes, firsts, block_words, unchecked,
 *              touched) -> count
 *
 * Marks in `touched` the blocks which a read would use and which are marked in `unchecked`, uint8[blocks] both. */
PyObject *kernel_touch_blocks(PyObject *module, PyObject *arguments) {
    Table table;
    Py_buffer hashes, firsts, unchecked, touched;
    Py_ssize_t first_word, num_symbols, block_words, count = -1;
    int num_hashes;
    if (!PyArg_ParseTuple(arguments, "y*nKKy*nniz*ny*w*", &table.words, &table.num_words, &table.salt[0],
                          &table.salt[1], &hashes, &first_word, &num_symbols, &num_hashes, &firsts, &block_words,
                          &unchecked, &touched))
        return NULL;
    Reader reader;
    if (init_reader(&reader, &table, &hashes, first_word, num_symbols, num_hashes, &firsts) < 0) goto end;
    Py_ssize_t length = table.words.len / 8;
    if (block_words < 1 || unchecked.len != touched.len || unchecked.len < (length + block_words - 1) / block_words) {
        PyErr_SetString(PyExc_ValueError, "the arrays do not fit each other");
        goto end;
    }
    const uint8_t *is_unchecked = unchecked.buf;
    uint8_t *is_touched = touched.buf;
    Windows *windows = &reader.windows[0];
    count = 0;
    for (Py_ssize_t entity = 0; entity < reader.num_entities; entity++) {
        place_windows(reader.num_words_of_table, reader.salt, reader.hashes + 2 * entity, reader.first_word,
                      num_hashes, windows);
        for (int j = 0; j < num_hashes; j++) {
            uint64_t last = (windows->starts[j] + (uint64_t)reader.num_words - 1) / (uint64_t)block_words;
            for (uint64_t block = windows->starts[j] / (uint64_t)block_words; block <= last; block++) {
                count += is_unchecked[block] && !is_touched[block];
                is_touched[block] |= is_unchecked[block];
            }
        }
    }
end:
    PyBuffer_Release(&table.words);
    PyBuffer_Release(&hashes);
    if (firsts.buf) PyBuffer_Release(&firsts);
    PyBuffer_Release(&unchecked);
    PyBuffer_Release(&touched);
    return count < 0 ? NULL : PyLong_FromSsize_t(count);
}

/* add_facts(part, first, num_words_of_part, num_words, salt, salt, hashes, places, indptr, symbols, symbol_size,
 *           first_symbol, num_hashes, firsts)
 *
 * Sets the bits of those windows that begin in words [first, first + num_words_of_part) of the table. `part` are
 * these words, and behind them those onto which their windows run on. Row i has the symbols `symbols[indptr[i] :
 * indptr[i + 1]]`, unsigned integers of 2 or 4 bytes, each `first_symbol` less than in the table, as are those of
 * `firsts`; its hash is number `places[i]`, int32. `firsts` as above, as few as the symbols of the facts. */
PyObject *kernel_add_facts(PyObject *module, PyObject *arguments) {
    Py_buffer part, hashes, places, indptr, symbols, firsts;
    Py_ssize_t first, num_words_of_part, num_words, first_symbol, symbol_size;
    unsigned long long salt[2];
    int num_hashes, failed = 1;
    if (!PyArg_ParseTuple(arguments, "w*nnnKKy*y*y*y*nniz*", &part, &first, &num_words_of_part, &num_words, &salt[0],
                          &salt[1], &hashes, &places, &indptr, &symbols, &symbol_size, &first_symbol, &num_hashes,
                          &firsts))
        return NULL;
    Py_ssize_t n = places.len / 4, m = symbol_size == 2 || symbol_size == 4 ? symbols.len / symbol_size : -1;
    Py_ssize_t num_keys = hashes.len / 16, length = part.len / 8;
    const int64_t *starts = indptr.buf;
    const int32_t *keys = places.buf;
    int fits = num_hashes >= 1 && num_hashes <= MAX_NUM_HASHES && indptr.len == 8 * (n + 1) && first_symbol >= 0 &&
               m >= 0 && starts[0] >= 0 && starts[n] <= m && num_words_of_part >= 0 && num_words_of_part <= length;
    uint64_t window_bits = fits ? 64 * (uint64_t)(length - num_words_of_part) : 0;
    for (Py_ssize_t i = 0; fits && i < n; i++)
        fits = starts[i] <= starts[i + 1] && keys[i] >= 0 && keys[i] < num_keys;
    const uint16_t *narrow = symbol_size == 2 ? symbols.buf : NULL;
    const uint32_t *wide = symbols.buf;
    for (Py_ssize_t i = 0; fits && i < m; i++)
        fits = (narrow ? narrow[i] : wide[i]) + (uint64_t)first_symbol < window_bits;
    if (!fits) {
        PyErr_SetString(PyExc_ValueError, "the facts do not fit the table");
        goto end;
    }
    if (!are_firsts(&firsts, num_hashes, (Py_ssize_t)window_bits)) goto end;
    const int64_t *first_of = firsts.buf;
    Windows windows;
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t i = 0; i < n; i++) {
        if (starts[i] == starts[i + 1]) continue;
        place_windows((uint64_t)num_words, salt, (const uint64_t *)hashes.buf + 2 * (Py_ssize_t)keys[i], 0, num_hashes,
                      &windows);
        /* First all words are asked for, then they are changed: their cache misses overlap. */
        for (int change = 0; change < 2; change++) {
            for (int j = 0; j < num_hashes; j++) {
                uint64_t place = windows.starts[j] - (uint64_t)first;
                if (place >= (uint64_t)num_words_of_part) continue; /* another part's; the difference may wrap */
                uint64_t *window = (uint64_t *)part.buf + place;
                uint32_t rotation = windows.rotations[j];
                for (int64_t fact = starts[i]; fact < starts[i + 1]; fact++) {
                    uint32_t symbol = narrow ? narrow[fact] : wide[fact];
                    if (first_of && first_of[j] > (int64_t)symbol) continue;
                    symbol += (uint32_t)first_symbol;
                    if (change)
                        window[symbol >> 6] |= 1ull << ((symbol + rotation) & 63);
                    else
                        PREFETCH(window + (symbol >> 6));
                }
            }
        }
    }
    Py_END_ALLOW_THREADS
    failed = 0;
end:
    PyBuffer_Release(&part);
    PyBuffer_Release(&hashes);
    PyBuffer_Release(&places);
    PyBuffer_Release(&indptr);
    PyBuffer_Release(&symbols);
    if (firsts.buf) PyBuffer_Release(&firsts);
    if (failed) return NULL;
    Py_RETURN_NONE;
}
