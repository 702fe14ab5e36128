/* Parses lists of numbers from Feast's `Value` messages in wire format, and checks their strings. */

#include "kernel.h"

int is_utf8(const uint8_t *place, int64_t length) {
    const uint8_t *stop = place + length;
    while (place < stop) {
        uint32_t first = *place++, least, character;
        int more;
        if (first < 0x80) continue;
        if (first >= 0xc2 && first < 0xe0)
            more = 1, least = 0x80, character = first & 0x1f;
        else if (first >= 0xe0 && first < 0xf0)
            more = 2, least = 0x800, character = first & 0x0f;
        else if (first >= 0xf0 && first < 0xf5)
            more = 3, least = 0x10000, character = first & 0x07;
        else
            return 0;
        if (stop - place < more) return 0;
        for (; more; more--, place++) {
            if ((*place & 0xc0) != 0x80) return 0;
            character = character << 6 | (*place & 0x3f);
        }
        if (character < least || character > 0x10ffff || (character >= 0xd800 && character < 0xe000)) return 0;
    }
    return 1;
}

/* A varint of at most 64 bits; -1 if there is none. */
static int read_number(const uint8_t **place, const uint8_t *stop, uint64_t *number) {
    *number = 0;
    for (int shift = 0; *place < stop && shift < 70; shift += 7) {
        uint8_t byte = *(*place)++;
        if (shift == 63 && byte > 1) return -1;
        *number |= (uint64_t)(byte & 0x7f) << shift;
        if (!(byte & 0x80)) return 0;
    }
    return -1;
}

/* Where the elements of a message begin: those of packed field 1 of the message in a field, if there is nothing
 * else. */
static const uint8_t *find_elements(const uint8_t *place, const uint8_t *stop, uint64_t field) {
    uint64_t number;
    if (place == stop) return stop;
    if (read_number(&place, stop, &number) || number != (field << 3 | 2)) return NULL;
    if (read_number(&place, stop, &number) || number != (uint64_t)(stop - place)) return NULL;
    if (place == stop) return stop;
    if (read_number(&place, stop, &number) || number != (1 << 3 | 2)) return NULL;
    if (read_number(&place, stop, &number) || number != (uint64_t)(stop - place)) return NULL;
    return place;
}

/* The number of elements; -1 if one is cut off. */
static Py_ssize_t count_elements(const uint8_t *place, const uint8_t *stop, Py_ssize_t width) {
    Py_ssize_t count = 0;
    if (width) return (stop - place) % width ? -1 : (stop - place) / width;
    if (place < stop && stop[-1] & 0x80) return -1;
    while (place < stop) count += !(*place++ & 0x80);
    return count;
}

/* Writes the elements: 0, or -1 if one is too large. */
static int put_elements(const uint8_t *place, const uint8_t *stop, Py_ssize_t width, uint8_t *out) {
    if (width) {
        memcpy(out, place, (size_t)(stop - place));
        return 0;
    }
    for (; place < stop; out += 8) {
        uint64_t number;
        if (read_number(&place, stop, &number)) return -1;
        memcpy(out, &number, 8);
    }
    return 0;
}

/* Parses all messages: 0, or -1 if one has other contents. `out` has memory for what `ends` count, or is NULL. */
static int parse_all(const uint8_t *place, Array lengths, uint64_t field, Py_ssize_t width, int64_t *ends,
                     uint8_t *out) {
    for (Py_ssize_t i = 0; i < lengths.length; i++) {
        const uint8_t *stop = place + ((const int64_t *)lengths.data)[i];
        const uint8_t *elements = find_elements(place, stop, field);
        Py_ssize_t count = elements ? count_elements(elements, stop, width) : -1;
        if (count < 0) return -1;
        if (out && put_elements(elements, stop, width, out + ends[i] * (width ? width : 8)) < 0) return -1;
        ends[i + 1] = ends[i] + count;
        place = stop;
    }
    return 0;
}

/* parse_packed_lists(messages, lengths, field, width, ends, elements) -> number of elements, or None
 *
 * `messages` are Values in wire format, one after the other, with int64[n] `lengths`. Each is empty, or has only a list
 * of numbers in a field. `ends`, int64[n + 1], receives where the lists end. `elements` receives the numbers, unless it
 * is empty: varints if `width` is 0, otherwise of 4 or 8 bytes. None for other messages. */
KERNEL_FUNCTION(parse_packed_lists) {
    Array messages, lengths, ends, elements;
    Py_ssize_t field, width;
    if (take(call, "18nn8!1!.", &messages, &lengths, &field, &width, &ends, &elements) < 0) return NULL;
    if (ends.length != lengths.length + 1 || (width != 0 && width != 4 && width != 8)) return refuse(DO_NOT_FIT);
    int64_t left = messages.length;
    for (Py_ssize_t i = 0; i < lengths.length; i++) {
        int64_t length = ((const int64_t *)lengths.data)[i];
        if (length < 0 || length > left) return refuse(DO_NOT_FIT);
        left -= length;
    }
    int64_t *stops = ends.data;
    stops[0] = 0;
    PyThreadState *state = messages.length > WORTH_RELEASING_GIL ? PyEval_SaveThread() : NULL;
    int failed = parse_all(messages.data, lengths, (uint64_t)field, width, stops, NULL);
    int has_room = !failed && elements.length == stops[lengths.length] * (width ? width : 8);
    if (!failed && elements.length && has_room)
        failed = parse_all(messages.data, lengths, (uint64_t)field, width, stops, elements.data);
    if (state) PyEval_RestoreThread(state);
    if (failed) Py_RETURN_NONE;
    if (elements.length && !has_room) return refuse(DO_NOT_FIT);
    return PyLong_FromLongLong(stops[lengths.length]);
}
