/* Vectors of a response in protobuf's wire format as JSON, as Feast's feature server writes them
 * (feast/feature_server_utils.py). Anything unknown or incomplete is left to that. */

#include <math.h>

#include "kernel.h"

#define DEEPEST 20 /* lists in lists */

/* The output. Freed with PyMem_Free. */
typedef struct {
    uint8_t *bytes;
    size_t length, capacity;
} Text;

/* Allocates memory for more: 0, or -1 with an exception. */
static int reserve(Text *text, size_t size) {
    if (text->capacity - text->length >= size) return 0;
    size_t capacity = 2 * text->capacity + size;
    uint8_t *bytes = PyMem_Realloc(text->bytes, capacity);
    if (!bytes) {
        PyErr_NoMemory();
        return -1;
    }
    text->bytes = bytes;
    text->capacity = capacity;
    return 0;
}

static int add(Text *text, const void *bytes, size_t size) {
    if (reserve(text, size) < 0) return -1;
    memcpy(text->bytes + text->length, bytes, size);
    text->length += size;
    return 0;
}

#define ADD(text, literal) add(text, literal, sizeof(literal) - 1)

/* -- messages ----------------------------------------------------------------------------------------- */

typedef struct {
    const uint8_t *place, *stop;
} Message;

/* A field of a message: its number, its wire type, and its number or content. */
typedef struct {
    uint64_t number, value;
    int wire;
    Message content;
} Field;

/* Takes the next field: 1; 0 at the end; -1 if it is incomplete. */
static int next_field(Message *message, Field *field) {
    uint64_t key, length;
    if (message->place == message->stop) return 0;
    if (varint_read(&message->place, message->stop, &key) < 0) return -1;
    field->number = key >> 3;
    field->wire = (int)(key & 7);
    if (field->wire == VARINT) return varint_read(&message->place, message->stop, &field->value) < 0 ? -1 : 1;
    if (field->wire == FIXED64 || field->wire == FIXED32) {
        length = field->wire == FIXED64 ? 8 : 4;
    } else if (field->wire != DELIMITED || varint_read(&message->place, message->stop, &length) < 0) {
        return -1;
    }
    if (length > (uint64_t)(message->stop - message->place)) return -1;
    field->content.place = message->place;
    field->content.stop = message->place += length;
    field->value = 0;
    if (field->wire != DELIMITED) memcpy(&field->value, field->content.place, (size_t)length);
    return 1;
}

/* -- values ------------------------------------------------------------------------------------------- */

enum { UNKNOWN, BYTES, TEXT, INT32, INT64, DOUBLE, FLOAT, BOOL, NOTHING, VALUES, LIST = 16 };

/* By field of a Value. Missing are maps, whose order only protobuf knows, and values with a time zone. */
static const uint8_t kinds[] = {
    [1] = BYTES,         [2] = TEXT,           [3] = INT32,          [4] = INT64,          [5] = DOUBLE,
    [6] = FLOAT,         [7] = BOOL,           [8] = INT64,          [11] = LIST | BYTES,  [12] = LIST | TEXT,
    [13] = LIST | INT32, [14] = LIST | INT64,  [15] = LIST | DOUBLE, [16] = LIST | FLOAT,  [17] = LIST | BOOL,
    [18] = LIST | INT64, [19] = NOTHING,       [22] = LIST | BYTES,  [23] = LIST | TEXT,   [24] = LIST | INT32,
    [25] = LIST | INT64, [26] = LIST | DOUBLE, [27] = LIST | FLOAT,  [28] = LIST | BOOL,   [29] = LIST | INT64,
    [32] = TEXT,         [33] = LIST | TEXT,   [36] = TEXT,          [37] = TEXT,          [38] = LIST | TEXT,
    [39] = LIST | TEXT,  [40] = LIST | TEXT,   [41] = LIST | TEXT,   [42] = LIST | VALUES, [43] = LIST | VALUES,
    [44] = TEXT,         [45] = LIST | TEXT,   [46] = LIST | TEXT,
};

static int wire_of(int kind) {
    if (kind == BYTES || kind == TEXT || kind == VALUES) return DELIMITED;
    return kind == DOUBLE ? FIXED64 : kind == FLOAT ? FIXED32 : VARINT;
}

static int add_integer(Text *text, int64_t number) {
    uint8_t digits[20], *first = digits + sizeof digits;
    uint64_t rest = number < 0 ? 0 - (uint64_t)number : (uint64_t)number;
    do *--first = (uint8_t)('0' + rest % 10);
    while (rest /= 10);
    if (number < 0) *--first = '-';
    return add(text, first, (size_t)(digits + sizeof digits - first));
}

static int add_double(Text *text, double number) {
    if (isnan(number)) return ADD(text, "\"NaN\"");
    if (isinf(number)) return number > 0 ? ADD(text, "\"Infinity\"") : ADD(text, "\"-Infinity\"");
    char *digits = PyOS_double_to_string(number, 'r', 0, Py_DTSF_ADD_DOT_0, NULL);
    if (!digits) return -1;
    int failed = add(text, digits, strlen(digits));
    PyMem_Free(digits);
    return failed;
}

static int add_float(Text *text, uint32_t bits) {
    float number;
    memcpy(&number, &bits, 4);
    return add_double(text, (double)number);
}

/* A character that must be escaped in a string. */
static int add_escaped(Text *text, uint8_t character) {
    static const char short_ones[] = "\"\"\\\\\nn\rr\tt\bb\ff", digits[] = "0123456789abcdef";
    for (const char *known = short_ones; *known; known += 2)
        if ((uint8_t)*known == character) {
            char escaped[2] = {'\\', known[1]};
            return add(text, escaped, 2);
        }
    char escaped[6] = {'\\', 'u', '0', '0', digits[character >> 4], digits[character & 15]};
    return add(text, escaped, 6);
}

static int add_string(Text *text, Message content) {
    if (!is_utf8(content.place, content.stop - content.place) || ADD(text, "\"") < 0) return -1;
    while (content.place < content.stop) {
        const uint8_t *first = content.place;
        while (content.place < content.stop && *content.place >= ' ' && *content.place != '"' && *content.place != '\\')
            content.place++;
        if (add(text, first, (size_t)(content.place - first)) < 0) return -1;
        if (content.place < content.stop && add_escaped(text, *content.place++) < 0) return -1;
    }
    return ADD(text, "\"");
}

static int add_base64(Text *text, Message content) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    size_t length = (size_t)(content.stop - content.place);
    if (reserve(text, (length + 2) / 3 * 4 + 2) < 0) return -1;
    uint8_t *target = text->bytes + text->length;
    *target++ = '"';
    for (const uint8_t *place = content.place; place < content.stop; place += 3) {
        size_t left = (size_t)(content.stop - place);
        uint32_t bits = (uint32_t)place[0] << 16 | (left > 1 ? (uint32_t)place[1] << 8 : 0) | (left > 2 ? place[2] : 0);
        *target++ = (uint8_t)digits[bits >> 18];
        *target++ = (uint8_t)digits[bits >> 12 & 63];
        *target++ = (uint8_t)(left > 1 ? digits[bits >> 6 & 63] : '=');
        *target++ = (uint8_t)(left > 2 ? digits[bits & 63] : '=');
    }
    *target++ = '"';
    text->length = (size_t)(target - text->bytes);
    return 0;
}

static int add_value(Text *text, Message message, int depth);

static int add_one(Text *text, int kind, const Field *field, int depth) {
    switch (kind) {
    case BYTES: return add_base64(text, field->content);
    case TEXT: return add_string(text, field->content);
    case INT32: return add_integer(text, (int32_t)(uint32_t)field->value);
    case INT64: return add_integer(text, (int64_t)field->value);
    case FLOAT: return add_float(text, (uint32_t)field->value);
    case BOOL: return field->value ? ADD(text, "true") : ADD(text, "false");
    case NOTHING: return ADD(text, "null");
    case VALUES: return add_value(text, field->content, depth + 1);
    default: break;
    }
    double number;
    memcpy(&number, &field->value, 8);
    return add_double(text, number);
}

/* Numbers without keys. `is_first` says whether they come first. */
static int add_packed(Text *text, int kind, Message content, int *is_first) {
    Field field = {0};
    while (content.place < content.stop) {
        size_t width = kind == DOUBLE ? 8 : kind == FLOAT ? 4 : 0;
        if (width > (size_t)(content.stop - content.place)) return -1;
        if (width) {
            field.value = 0;
            memcpy(&field.value, content.place, width);
            content.place += width;
        } else if (varint_read(&content.place, content.stop, &field.value) < 0) {
            return -1;
        }
        if ((!*is_first && ADD(text, ",") < 0) || add_one(text, kind, &field, 0) < 0) return -1;
        *is_first = 0;
    }
    return 0;
}

static int add_list(Text *text, int kind, Message list, int depth) {
    int is_first = 1, more;
    Field field;
    if (ADD(text, "[") < 0) return -1;
    while ((more = next_field(&list, &field)) > 0) {
        if (field.number != 1) return -1;
        if (field.wire == wire_of(kind)) {
            if ((!is_first && ADD(text, ",") < 0) || add_one(text, kind, &field, depth) < 0) return -1;
            is_first = 0;
        } else if (field.wire != DELIMITED || add_packed(text, kind, field.content, &is_first) < 0) {
            return -1;
        }
    }
    return more < 0 ? -1 : ADD(text, "]");
}

static int add_value(Text *text, Message message, int depth) {
    Field field;
    if (depth > DEEPEST) return -1;
    if (message.place == message.stop) return ADD(text, "null");
    if (next_field(&message, &field) <= 0 || message.place < message.stop) return -1;
    int kind = field.number < sizeof kinds ? kinds[field.number] : UNKNOWN;
    if (kind & LIST) return field.wire == DELIMITED ? add_list(text, kind & ~LIST, field.content, depth) : -1;
    return kind != UNKNOWN && field.wire == wire_of(kind) ? add_one(text, kind, &field, depth) : -1;
}

/* -- vectors ------------------------------------------------------------------------------------------ */

static int add_status(Text *text, uint64_t status) {
    static const char *const names[] = {"\"INVALID\"", "\"PRESENT\"", "\"NULL_VALUE\"", "\"NOT_FOUND\"",
                                        "\"OUTSIDE_MAX_AGE\""};
    const char *name = names[(uint32_t)status < 5 ? (uint32_t)status : 0];
    return add(text, name, strlen(name));
}

static void put_digits(uint8_t *place, int64_t number, int count) {
    for (; count; number /= 10) place[--count] = (uint8_t)('0' + number % 10);
}

/* The date this many days after 1970-01-01, in the years 1000 to 9999, as YYYY-MM-DD. */
static void put_date(uint8_t *place, int64_t days) {
    /* Years that begin in March, so that the leap day is their last; eras of 400 years. */
    int64_t shifted = days + 719468, era = shifted / 146097, of_era = shifted % 146097;
    int64_t year = (of_era - of_era / 1460 + of_era / 36524 - of_era / 146096) / 365;
    int64_t of_year = of_era - (365 * year + year / 4 - year / 100), march = (5 * of_year + 2) / 153;
    put_digits(place, era * 400 + year + (march >= 10), 4);
    put_digits(place + 5, march < 10 ? march + 3 : march - 9, 2);
    put_digits(place + 8, of_year - (153 * march + 2) / 5 + 1, 2);
    place[4] = place[7] = '-';
}

#define YEAR_1000 (-30610224000ll) /* Feast writes earlier years with strftime, which differs between systems */
#define YEAR_10000 253402300800ll

static int add_timestamp(Text *text, Message message) {
    int64_t seconds = 0, nanos = 0;
    int more;
    Field field;
    while ((more = next_field(&message, &field)) > 0) {
        if (field.wire != VARINT || field.number < 1 || field.number > 2) return -1;
        *(field.number == 1 ? &seconds : &nanos) = (int64_t)field.value;
    }
    if (more < 0 || seconds < YEAR_1000 || seconds >= YEAR_10000 || nanos < 0 || nanos > 999999999) return -1;
    int64_t days = seconds / 86400, rest = seconds % 86400;
    if (rest < 0) {
        rest += 86400;
        days--;
    }
    uint8_t written[32], *place = written + 20;
    written[0] = '"';
    put_date(written + 1, days);
    written[11] = 'T';
    put_digits(written + 12, rest / 3600, 2);
    put_digits(written + 15, rest / 60 % 60, 2);
    put_digits(written + 18, rest % 60, 2);
    written[14] = written[17] = ':';
    if (nanos) {
        int digits = nanos % 1000000 == 0 ? 3 : nanos % 1000 == 0 ? 6 : 9;
        *place++ = '.';
        put_digits(place, digits == 3 ? nanos / 1000000 : digits == 6 ? nanos / 1000 : nanos, digits);
        place += digits;
    }
    *place++ = 'Z';
    *place++ = '"';
    return add(text, written, (size_t)(place - written));
}

enum { OF_VALUES = 1, OF_STATUSES, OF_TIMESTAMPS }; /* fields of a vector */

static int add_statuses(Text *text, const Field *field, int *is_first) {
    Message packed = field->content;
    uint64_t status = field->value;
    int is_packed = field->wire == DELIMITED;
    if (!is_packed && field->wire != VARINT) return -1;
    while (!is_packed || packed.place < packed.stop) {
        if (is_packed && varint_read(&packed.place, packed.stop, &status) < 0) return -1;
        if ((!*is_first && ADD(text, ",") < 0) || add_status(text, status) < 0) return -1;
        *is_first = 0;
        if (!is_packed) break;
    }
    return 0;
}

/* The elements of one field of a vector. Returns the number of fields, or -1. */
static int add_elements(Text *text, Message vector, int wanted) {
    int is_first = 1, count = 0, more;
    Field field;
    while ((more = next_field(&vector, &field)) > 0) {
        if (field.number < OF_VALUES || field.number > OF_TIMESTAMPS) return -1;
        if (field.number != (uint64_t)wanted) continue;
        count++;
        if (wanted == OF_STATUSES) {
            if (add_statuses(text, &field, &is_first) < 0) return -1;
            continue;
        }
        if (field.wire != DELIMITED || (!is_first && ADD(text, ",") < 0)) return -1;
        is_first = 0;
        if ((wanted == OF_VALUES ? add_value(text, field.content, 0) : add_timestamp(text, field.content)) < 0)
            return -1;
    }
    return more < 0 ? -1 : count;
}

static int add_vector(Text *text, Message vector) {
    if (ADD(text, "{\"values\":[") < 0 || add_elements(text, vector, OF_VALUES) < 0) return -1;
    if (ADD(text, "],\"statuses\":[") < 0 || add_elements(text, vector, OF_STATUSES) < 0) return -1;
    size_t before = text->length;
    if (ADD(text, "],\"event_timestamps\":[") < 0) return -1;
    int count = add_elements(text, vector, OF_TIMESTAMPS);
    if (count == 0) text->length = before;
    return count < 0 ? -1 : ADD(text, "]}");
}

/* vectors_to_json(message) -> bytes, or None
 *
 * `message` has vectors as elements of field 2, as parts of a response have. They are written as JSON in UTF-8, with
 * commas between them. None if only Feast's own code can write some part. */
KERNEL_FUNCTION(vectors_to_json) {
    Array array;
    if (take(call, "1.", &array) < 0) return NULL;
    const uint8_t *first = array.data;
    Message message = {first, first + array.length};
    Text text = {NULL, 0, 0};
    Field field;
    int more, failed = reserve(&text, 2 * (size_t)array.length + 64) < 0;
    while (!failed && (more = next_field(&message, &field)) != 0) {
        failed = more < 0 || field.number != 2 || field.wire != DELIMITED || (text.length && ADD(&text, ",") < 0) ||
                 add_vector(&text, field.content) < 0;
    }
    PyObject *answer = NULL;
    if (!failed)
        answer = PyBytes_FromStringAndSize((const char *)text.bytes, (Py_ssize_t)text.length);
    else if (!PyErr_Occurred())
        answer = Py_NewRef(Py_None);
    PyMem_Free(text.bytes);
    return answer;
}
