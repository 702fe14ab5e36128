/* Packed and ascending numbers, and the rows of entities, which are found by ascending fingerprints. The layouts are in
 * succinct: packed.py, elias_fano.py and fingerprints.py. Nothing in a file makes reads access other memory. */

#include "row_reader.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

/* 0, or -1 with an exception. After 0, reads of indexes below `length` stay inside the buffer. */
static int packed_init(Packed *packed, const Array *words, Py_ssize_t width, Py_ssize_t length) {
    if (width < 0 || width > 64 || length < 0 ||
        (width && length && (length > (words->length - 1) * 64 / width || words->length < 1))) {
        refuse("packed numbers do not fit their words");
        return -1;
    }
    packed->words = words->data;
    packed->width = (int)width;
    return 0;
}

int numbers_take(Call *call, Numbers *numbers) {
    Array words;
    Py_ssize_t width, length;
    if (take(call, "8nwn", &words, &width, &numbers->base, &length) < 0 ||
        packed_init(&numbers->packed, &words, width, length) < 0)
        return -1;
    numbers->length = (uint64_t)length;
    return blocks_take(call, &numbers->blocks);
}

/* take_packed(words, width, length, places, numbers)
 *
 * The numbers, uint64[n], with the indexes `places`, int64[n], all below `length`. */
KERNEL_FUNCTION(take_packed) {
    Array words, places, numbers;
    Py_ssize_t width, length;
    Packed packed;
    if (take(call, "8nn88!.", &words, &width, &length, &places, &numbers) < 0 ||
        packed_init(&packed, &words, width, length) < 0)
        return NULL;
    if (numbers.length != places.length) return refuse(DO_NOT_FIT);
    const int64_t *place = places.data;
    for (Py_ssize_t i = 0; i < places.length; i++) {
        if (place[i] < 0 || place[i] >= length) return refuse("there is no such packed number");
        ((uint64_t *)numbers.data)[i] = packed_get(&packed, (uint64_t)place[i]);
    }
    Py_RETURN_NONE;
}

/* -- ascending numbers -------------------------------------------------------------------------------- */

/* Takes the arguments of `checked_take`, without checks. */
static int ascending_take(Call *call, Ascending *numbers, int by_value) {
    Array highs, lows, samples;
    Py_ssize_t num_buckets, length, low_width, sample_width;
    if (take(call, "8nn8n8n", &highs, &num_buckets, &length, &lows, &low_width, &samples, &sample_width) < 0) return -1;
    const Py_ssize_t most = PY_SSIZE_T_MAX / 4;
    if (num_buckets < 1 || length < 0 || num_buckets > most || length > most || low_width > 63 ||
        highs.length < (length + num_buckets + 63) / 64) {
        refuse("ascending numbers do not fit their words");
        return -1;
    }
    Py_ssize_t num_sampled = by_value ? num_buckets : length, num_samples = (num_sampled + SAMPLED - 1) / SAMPLED;
    if (packed_init(&numbers->lows, &lows, low_width, length) < 0 ||
        packed_init(&numbers->samples, &samples, sample_width, num_samples) < 0)
        return -1;
    numbers->highs = highs.data;
    numbers->num_bits = (uint64_t)(length + num_buckets);
    numbers->length = length;
    numbers->num_buckets = num_buckets;
    numbers->flipped = by_value ? ~0ull : 0;
    numbers->bits_per_sampled = (double)numbers->num_bits / (double)(num_sampled ? num_sampled : 1);
    return 0;
}

#define EACH_BYTE 0x0101010101010101ull

/* For each byte, the number of ones up to its end. */
static inline uint64_t ones_up_to_each_byte(uint64_t bits) {
    bits -= bits >> 1 & 0x55 * EACH_BYTE;
    bits = (bits & 0x33 * EACH_BYTE) + (bits >> 2 & 0x33 * EACH_BYTE);
    return ((bits + (bits >> 4)) & 0x0F * EACH_BYTE) * EACH_BYTE;
}

/* How many bytes, from the lowest on, are at most `number`, which is below 128; the bytes ascend, up to 64. */
static inline uint64_t bytes_up_to(uint64_t bytes, uint64_t number) {
    uint64_t reached = ((number * EACH_BYTE | 0x80 * EACH_BYTE) - bytes) & 0x80 * EACH_BYTE;
    return (reached >> 7) * EACH_BYTE >> 56;
}

/* The position of the one that `number` others precede. It has no branch, because that would be unpredictable.
 * Source: Vigna, "Broadword implementation of rank/select queries", 2008. */
static inline uint64_t place_of_one(uint64_t bits, uint64_t number) {
    uint64_t counts = ones_up_to_each_byte(bits), first = bytes_up_to(counts, number) << 3;
    number -= counts << 8 >> first & 0xFF;
    uint64_t spread = (bits >> first & 0xFF) * EACH_BYTE & 0x8040201008040201ull; /* a bit in each byte */
    uint64_t ones = (((spread | 0x80 * EACH_BYTE) - EACH_BYTE) | spread) >> 7 & EACH_BYTE;
    return first + bytes_up_to(ones * EACH_BYTE, number);
}

/* The position of a bit of the sampled kind by its index; ~0 if it is not there. COUNT is the number of ones of a word, and
 * SELECT the position of the one that so many others precede. */
#define FIND_BIT(NAME, TARGET, COUNT, SELECT)                                                                   \
    TARGET static uint64_t NAME(const Ascending *numbers, uint64_t number) {                                    \
        uint64_t place = packed_get(&numbers->samples, number / SAMPLED), left = number % SAMPLED, count;       \
        if (place >= numbers->num_bits) return ~0ull;                                                           \
        uint64_t word = place >> 6, last = (numbers->num_bits - 1) >> 6;                                        \
        uint64_t bits = (numbers->highs[word] ^ numbers->flipped) & ~0ull << (place & 63);                      \
        if (word + 2 <= last) { /* usually it is in one of three words; which one is unpredictable */           \
            uint64_t second = numbers->highs[word + 1] ^ numbers->flipped;                                      \
            uint64_t third = numbers->highs[word + 2] ^ numbers->flipped;                                       \
            uint64_t before_second = COUNT(bits), before_third = before_second + COUNT(second);                 \
            uint64_t skipped = left >= before_third ? before_third : left >= before_second ? before_second : 0; \
            bits = left >= before_third ? third : left >= before_second ? second : bits;                        \
            word += (uint64_t)(left >= before_second) + (uint64_t)(left >= before_third);                       \
            left -= skipped;                                                                                    \
        }                                                                                                       \
        for (; left >= (count = COUNT(bits)); left -= count) {                                                  \
            if (++word > last) return ~0ull;                                                                    \
            bits = numbers->highs[word] ^ numbers->flipped;                                                     \
        }                                                                                                       \
        place = word << 6 | SELECT(bits, left);                                                                 \
        return place < numbers->num_bits ? place : ~0ull;                                                       \
    }

/* There is a second version for processors with instructions for it; one is chosen when the module is loaded. */
#define COUNT_ONES(bits) (ones_up_to_each_byte(bits) >> 56)
FIND_BIT(find_bit_anywhere, , COUNT_ONES, place_of_one)
static uint64_t (*find_bit)(const Ascending *, uint64_t) = find_bit_anywhere;

#if defined(__x86_64__)
#define DEPOSITED_ONE(bits, number) LOWEST(_pdep_u64(1ull << (number), bits))
FIND_BIT(find_bit_bmi2, __attribute__((target("popcnt,bmi,bmi2"))), (uint64_t)POPULATION, DEPOSITED_ONE)

void kernel_choose_select(void) {
    __builtin_cpu_init();
    int is_fast = !__builtin_cpu_is("znver1") && !__builtin_cpu_is("znver2"); /* they have pdep in microcode */
    if (is_fast && __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("popcnt")) find_bit = find_bit_bmi2;
}
#else
void kernel_choose_select(void) {}
#endif

/* Prefetches the words that `find_bit` will probably read. */
static inline void expect_bit(const Ascending *numbers, uint64_t number) {
    uint64_t place = packed_get(&numbers->samples, number / SAMPLED);
    place += (uint64_t)((double)(number % SAMPLED) * numbers->bits_per_sampled);
    if (place >= numbers->num_bits) return;
    PREFETCH(numbers->highs + (place >> 6));
    uint64_t low = numbers->flipped ? place - number : number;
    if (low < (uint64_t)numbers->length) PREFETCH(numbers->lows.words + (low * (uint64_t)numbers->lows.width >> 6));
}

/* The position of the next one from bit `place` on; ~0 if there is none. */
static inline uint64_t next_one(const Ascending *numbers, uint64_t place) {
    if (place >= numbers->num_bits) return ~0ull;
    uint64_t word = place >> 6, last = (numbers->num_bits - 1) >> 6,
             bits = numbers->highs[word] & ~0ull << (place & 63);
    while (!bits && word < last) bits = numbers->highs[++word];
    place = word << 6 | LOWEST(bits | 1ull << 63);
    return bits && place < numbers->num_bits ? place : ~0ull;
}

/* The number with index `place`, given the position of its one; ~0 if the arrays lack it. */
static inline uint64_t number_of_one(const Ascending *numbers, uint64_t place, uint64_t bit) {
    if (bit < place || bit == ~0ull) return ~0ull;
    return (bit - place) << numbers->lows.width | packed_get(&numbers->lows, place);
}

void ascending_expect(const Ascending *numbers, int64_t place) { expect_bit(numbers, (uint64_t)place); }

/* Whether everything from a sample to the next one is intact; with samples of zeros, the lows as well. */
int checked_has_sample(const CheckedAscending *checked, uint64_t sample) {
    if (checked_is_finished(checked)) return 1;
    const Ascending *numbers = &checked->numbers;
    int by_value = numbers->flipped != 0;
    uint64_t number = (uint64_t)(by_value ? numbers->num_buckets : numbers->length);
    uint64_t last = number ? (number - 1) / SAMPLED : 0, before = sample * SAMPLED;
    uint64_t word = sample * (uint64_t)numbers->samples.width >> 6;
    uint64_t last_word = (sample + 1) * (uint64_t)numbers->samples.width >> 6;
    if (!number || sample > last || !blocks_are_verified(&checked->samples, word, last_word + 1)) return 0;
    uint64_t start = sample ? packed_get(&numbers->samples, sample) : 0;
    uint64_t stop = sample < last ? packed_get(&numbers->samples, sample + 1) : numbers->num_bits - 1;
    if (start > stop || stop >= numbers->num_bits || !blocks_are_verified(&checked->highs, start >> 6, stop >> 6))
        return 0;
    if (!by_value || !numbers->lows.width) return 1;
    if ((sample && start < before) || stop < before) return 0;
    uint64_t width = (uint64_t)numbers->lows.width, row = sample ? start - before : 0;
    return blocks_are_verified(&checked->lows, row * width >> 6, ((stop - before) * width >> 6) + 1);
}

/* Whether everything that a number is read from is intact. */
static int checked_has(const CheckedAscending *checked, int64_t place) {
    uint64_t word = (uint64_t)place * (uint64_t)checked->numbers.lows.width >> 6;
    return checked_has_sample(checked, (uint64_t)place / SAMPLED) &&
           (!checked->numbers.lows.width || blocks_are_verified(&checked->lows, word, word + 1));
}

int row_bits_get(const CheckedAscending *starts, int64_t row, uint64_t num_bits, const Blocks *blocks, uint64_t *start,
                 uint64_t *stop) {
    const Ascending *numbers = &starts->numbers;
    int64_t next = row + 1 < numbers->length ? row + 1 : row;
    int is_finished = checked_is_finished(starts);
    if (!is_finished && !(checked_has(starts, row) && checked_has(starts, next))) return -1;
    uint64_t bit = find_bit(numbers, (uint64_t)row), after = num_bits;
    *start = number_of_one(numbers, (uint64_t)row, bit);
    if (!stop && is_finished && blocks_are_finished(blocks)) return *start <= num_bits ? 0 : -1;
    if (next > row) after = number_of_one(numbers, (uint64_t)next, next_one(numbers, bit + 1));
    if (*start > after || after > num_bits) return -1;
    if (stop) *stop = after;
    return blocks_are_verified(blocks, *start >> 6, (after >> 6) + 1) ? 0 : -1;
}

int checked_take(Call *call, CheckedAscending *checked, int by_value) {
    if (ascending_take(call, &checked->numbers, by_value) < 0 || blocks_take(call, &checked->highs) < 0 ||
        blocks_take(call, &checked->lows) < 0 || blocks_take(call, &checked->samples) < 0)
        return -1;
    return 0;
}

/* take_ascending(*numbers, places, out)
 *
 * The numbers, uint64[n], with the indexes `places`, int64[n]; they are given as to `checked_take`, without checks. */
KERNEL_FUNCTION(take_ascending) {
    Array places, out;
    Ascending numbers;
    if (ascending_take(call, &numbers, 0) < 0 || take(call, "88!.", &places, &out) < 0) return NULL;
    if (out.length != places.length) return refuse(DO_NOT_FIT);
    const int64_t *place = places.data;
    for (Py_ssize_t i = 0; i < places.length; i++) {
        if (place[i] < 0 || place[i] >= numbers.length) return refuse("there is no such number");
        uint64_t number = number_of_one(&numbers, (uint64_t)place[i], find_bit(&numbers, (uint64_t)place[i]));
        if (number == ~0ull) return refuse("ascending numbers cannot be read");
        ((uint64_t *)out.data)[i] = number;
    }
    Py_RETURN_NONE;
}

/* -- rows --------------------------------------------------------------------------------------------- */

/* row_hashes(hashes, salt, salt, out): uint64[n, 2] -> uint64[n] */
KERNEL_FUNCTION(row_hashes) {
    Array hashes, out;
    uint64_t salt[2];
    if (take(call, "8ww8!.", &hashes, &salt[0], &salt[1], &out) < 0) return NULL;
    if (hashes.length != 2 * out.length) return refuse(DO_NOT_FIT);
    const uint64_t *hash = hashes.data;
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t i = 0; i < out.length; i++) ((uint64_t *)out.data)[i] = row_hash(hash + 2 * i, salt);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

/* The upper half of a product. */
static inline uint64_t multiply_high(uint64_t a, uint64_t b) {
#if defined(__SIZEOF_INT128__)
    return (uint64_t)((unsigned __int128)a * b >> 64);
#else
    uint64_t low = (a & 0xFFFFFFFF) * (b & 0xFFFFFFFF);
    uint64_t middle = (a >> 32) * (b & 0xFFFFFFFF) + (low >> 32);
    uint64_t other = (a & 0xFFFFFFFF) * (b >> 32) + (middle & 0xFFFFFFFF);
    return (a >> 32) * (b >> 32) + (middle >> 32) + (other >> 32);
#endif
}

uint64_t index_bucket(const RowIndex *index, uint64_t hash) {
    return multiply_high(hash, index->range) >> index->fingerprints.lows.width;
}

int index_fits(const RowIndex *index) {
    const Ascending *numbers = &index->fingerprints;
    return index->range && (index->range - 1) >> numbers->lows.width == (uint64_t)numbers->num_buckets - 1;
}

/* The row of a hash, among several from `first` on with the same fingerprint. */
static int64_t find_twin(const RowIndex *index, uint64_t hash, uint64_t fingerprint, int64_t first) {
    int64_t low = 0, high = index->num_twins;
    while (low < high) { /* the first twin with this fingerprint */
        int64_t middle = low + (high - low) / 2;
        if (multiply_high(index->twins[middle], index->range) < fingerprint) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    int64_t row = first;
    for (; low < index->num_twins && index->twins[low] <= hash; low++, row++)
        if (index->twins[low] == hash) return row < index->fingerprints.length ? row : DAMAGED_INDEX;
    return NO_ROW;
}

static inline int is_one(const Ascending *numbers, uint64_t place) {
    return place < numbers->num_bits && (numbers->highs[place >> 6] >> (place & 63) & 1);
}

int64_t index_find(const RowIndex *index, uint64_t hash) {
    const Ascending *numbers = &index->fingerprints;
    uint64_t fingerprint = multiply_high(hash, index->range);
    uint64_t bucket = fingerprint >> numbers->lows.width, low = fingerprint & ((1ull << numbers->lows.width) - 1);
    uint64_t place = bucket ? find_bit(numbers, bucket - 1) + 1 : 0; /* where the rows of the bucket begin */
    if (place < bucket || (bucket && !place)) return DAMAGED_INDEX;
    for (uint64_t row = place - bucket; is_one(numbers, place); place++, row++) {
        if (row >= (uint64_t)numbers->length) return DAMAGED_INDEX;
        if (packed_get(&numbers->lows, row) != low) continue;
        if (row + 1 == (uint64_t)numbers->length) /* read nothing after the last row */
            return is_one(numbers, place + 1) ? DAMAGED_INDEX : (int64_t)row;
        /* Whether the next row is in the bucket is unpredictable; whether it has the same low bits is not. */
        int is_twin = (packed_get(&numbers->lows, row + 1) == low) & is_one(numbers, place + 1);
        return is_twin ? find_twin(index, hash, fingerprint, (int64_t)row) : (int64_t)row;
    }
    return NO_ROW;
}

void index_expect(const RowIndex *index, uint64_t hash) {
    uint64_t bucket = index_bucket(index, hash);
    if (bucket) expect_bit(&index->fingerprints, bucket - 1);
}
