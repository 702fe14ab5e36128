/* Attributes of the items of lists: each item has a code, one number for all its attributes. rows/listing.py says how
 * codes are made, and succinct/attribute_codes.py how those of sealed rows are coded. */

#include "row_reader.h"

/* attribute(code_bits, is_wanted, step, numbers, offsets, data)
 *
 * The items of the last feature have codes; in rows that are stored one after the other, in the low bits of their
 * times. If they are wanted, they are there in the times that are read, too; or with values, the elements are those of
 * one attribute, a digit of the code, in place of the ids. */
READER_METHOD(attribute) {
    RowReader *self = (RowReader *)call->self;
    Array numbers, offsets, data;
    Py_ssize_t code_bits, is_wanted, step;
    if (take(call, "nnn8?8?1?.", &code_bits, &is_wanted, &step, &numbers, &offsets, &data) < 0) return NULL;
    Feature *feature = self->num_features ? self->features + self->num_features - 1 : NULL;
    if (!feature || !(feature->is_items || feature->code.tables) || code_bits < 1 || code_bits > MAX_CODE_BITS ||
        step < 1 || (offsets.data && !offsets.length))
        return refuse(DO_NOT_FIT);
    Attribute *attribute = &feature->attribute;
    attribute->code_bits = (int)code_bits;
    attribute->is_wanted = is_wanted != 0;
    attribute->step = step;
    attribute->values = (Values){numbers.data, offsets.data, data.data, numbers.length, data.length};
    if (offsets.data) attribute->values.length = offsets.length - 1;
    return reader_done(self, call);
}

/* attribute_codes(table, block_items, num_codes, usual, words, num_bits, check, starts ...): the codes of sealed items. */
READER_METHOD(attribute_codes) {
    RowReader *self = (RowReader *)call->self;
    Array table, words;
    Py_ssize_t block_items, num_codes, usual, num_bits;
    Feature *feature = self->num_features ? self->features + self->num_features - 1 : NULL;
    if (!feature || !feature->attribute.code_bits || !feature->code.tables || feature->attribute.table)
        return refuse(DO_NOT_FIT);
    Attribute *attribute = &feature->attribute;
    if (take(call, "2nnn8n", &table, &block_items, &num_codes, &usual, &words, &num_bits) < 0 ||
        blocks_take(call, &attribute->blocks) < 0 || checked_take(call, &attribute->starts, 0) < 0 ||
        take(call, ".") < 0)
        return NULL;
    if (table.length != 1 << PREFIX_BITS || block_items < 1 || num_codes < 2 || num_codes > 1 << MAX_CODE_BITS ||
        usual < 0 || usual >= num_codes || words.length < 2 || num_bits < 0 || num_bits > 64 * (words.length - 2) ||
        attribute->starts.numbers.length != self->num_rows)
        return refuse(DO_NOT_FIT);
    attribute->block_items = block_items;
    attribute->num_codes = (uint32_t)num_codes;
    attribute->usual = (uint8_t)usual;
    attribute->words = words.data;
    attribute->num_bits = (uint64_t)num_bits;
    if (reader_keep(self, call) < 0) return NULL;
    attribute->table = table.data;
    Py_RETURN_NONE;
}

uint8_t *codes_read(int64_t row, const Attribute *attribute, int64_t first, int64_t count, Arena *arena) {
    uint8_t *codes = arena_get(arena, (size_t)count);
    if (!attribute->table || !codes) return NULL;
    uint64_t bit, stop;
    if (row_bits_get(&attribute->starts, row, attribute->num_bits, &attribute->blocks, &bit, &stop) < 0) return NULL;
    memset(codes, attribute->usual, (size_t)count); /* also of items after the last bit */
    for (int64_t item = 0; item < first + count && bit < stop; item += attribute->block_items) {
        uint32_t entry = attribute->table[bits_at(attribute->words, bit) & ((1 << PREFIX_BITS) - 1)],
                 block = entry >> 4;
        bit += entry & 15;
        if (!entry || bit > stop) return NULL;
        for (int64_t i = item; i < item + attribute->block_items && i < first + count;
             i++, block /= attribute->num_codes)
            if (i >= first) codes[i - first] = (uint8_t)(block % attribute->num_codes);
    }
    return codes;
}

int attribute_elements(const Attribute *attribute, const uint8_t *codes, int64_t *times, Arena *arena,
                       Content *content) {
    const Values *values = &attribute->values;
    int64_t count = content->count;
    if (!values->length) {
        for (int64_t i = 0; i < count; i++) times[i] = (int64_t)((uint64_t)times[i] << attribute->code_bits | codes[i]);
        return 0;
    }
    int32_t *digits = arena_get(arena, (size_t)count * sizeof *digits);
    if (!digits) return FAILED;
    for (int64_t i = 0; i < count; i++) digits[i] = (int32_t)(codes[i] / attribute->step % values->length);
    content->ids = digits;
    if (content_resolve(values, arena, content) < 0) return FAILED;
    content->ids = NULL; /* not those of the list's values */
    return 0;
}
