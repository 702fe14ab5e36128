/* How rows and their features begin, before their kinds add what they need. A reader keeps the arrays of these calls. */

#include "row_reader.h"

int reader_keep(RowReader *self, Call *call) {
    Py_ssize_t num_buffers = self->num_buffers + call->num_buffers, num_memory = self->num_memory + call->num_scratches;
    Py_ssize_t num_objects = self->num_objects + call->num_objects;
    Py_buffer *buffers = PyMem_Realloc(self->buffers, sizeof(Py_buffer) * (size_t)(num_buffers + 1));
    if (buffers) self->buffers = buffers;
    PyObject **objects = PyMem_Realloc(self->objects, sizeof(PyObject *) * (size_t)(num_objects + 1));
    if (objects) self->objects = objects;
    void **memory = PyMem_Realloc(self->memory, sizeof(void *) * (size_t)(num_memory + 1));
    if (memory) self->memory = memory;
    if (!buffers || !objects || !memory) {
        PyErr_NoMemory();
        return -1;
    }
    while (call->num_buffers) self->buffers[self->num_buffers++] = call->buffers[--call->num_buffers];
    while (call->num_objects) self->objects[self->num_objects++] = call->objects[--call->num_objects];
    while (call->num_scratches) self->memory[self->num_memory++] = call->scratches[--call->num_scratches];
    return 0;
}

/* Keeps the arguments and returns None. */
PyObject *reader_done(RowReader *self, Call *call) {
    if (reader_keep(self, call) < 0) return NULL;
    Py_RETURN_NONE;
}

int reader_is_empty(const RowReader *self) {
    if (self->kind == NOTHING) return 1;
    refuse("the rows are there already");
    return 0;
}

/* feature(tag, is_collection, wire_type, numbers, offsets, data)
 *
 * Begins a feature that the rows do not have yet. Its ids are those of int64 numbers, of bytes, or of nothing. */
READER_METHOD(feature) {
    RowReader *self = (RowReader *)call->self;
    Array tag, numbers, offsets, data;
    Py_ssize_t is_collection, wire;
    if (take(call, "1nn8?8?1?.", &tag, &is_collection, &wire, &numbers, &offsets, &data) < 0) return NULL;
    if ((self->kind != LISTED && self->kind != EXACT && self->kind != SHAPED && self->kind != NUMBERED) ||
        wire < VARINT || wire > FIXED32 || tag.length > (Py_ssize_t)sizeof self->features->tag ||
        (offsets.data && !offsets.length))
        return refuse(DO_NOT_FIT);
    size_t size = sizeof(Feature) * (size_t)(self->num_features + 1);
    Feature *features = PyMem_Realloc(self->features, size);
    if (!features) return PyErr_NoMemory();
    self->features = features;
    if (reader_keep(self, call) < 0) return NULL;
    Feature *feature = features + self->num_features++;
    memset(feature, 0, sizeof *feature);
    memcpy(feature->tag, tag.data, (size_t)tag.length);
    feature->tag_size = tag.length;
    feature->is_collection = is_collection != 0;
    feature->wire = (int)wire;
    feature->values = (Values){numbers.data, offsets.data, data.data, numbers.length, data.length};
    if (offsets.data) feature->values.length = offsets.length - 1;
    Py_RETURN_NONE;
}

Feature *feature_begun(RowReader *self, int kind) {
    if (self->kind == (unsigned)kind && self->num_features && !self->features[self->num_features - 1].read)
        return self->features + self->num_features - 1;
    refuse("no feature was begun");
    return NULL;
}

/* states(numbers ..., range): the states of the last feature by row, or by the shapes of a range; if its values do not
 * imply them. */
READER_METHOD(states) {
    RowReader *self = (RowReader *)call->self;
    if (!self->num_features) return refuse("no feature was begun");
    Feature *feature = self->features + self->num_features - 1;
    Py_ssize_t range;
    if (numbers_take(call, &feature->states) < 0 || take(call, "n.", &range) < 0) return NULL;
    if (range < 0 || (range && range >= self->num_ranges) ||
        (int64_t)feature->states.length != (range ? self->ranges[range].shapes->num_symbols : self->num_rows))
        return refuse(DO_NOT_FIT);
    if (reader_keep(self, call) < 0) return NULL;
    feature->range = range;
    if (range) self->ranges[range].is_wanted = 1;
    Py_RETURN_NONE;
}

/* ones(tag, wire_type): the last feature has a one for each of its values instead of these. */
READER_METHOD(ones) {
    RowReader *self = (RowReader *)call->self;
    Array tag;
    Py_ssize_t wire;
    if (!self->num_features) return refuse("no feature was begun");
    Feature *feature = self->features + self->num_features - 1;
    if (take(call, "1n.", &tag, &wire) < 0) return NULL;
    if (tag.length > (Py_ssize_t)sizeof feature->tag || wire != VARINT) return refuse(DO_NOT_FIT);
    memcpy(feature->tag, tag.data, (size_t)tag.length);
    feature->tag_size = tag.length;
    feature->wire = (int)wire;
    feature->is_ones = 1;
    feature->is_text = 0;
    Py_RETURN_NONE;
}

int content_resolve(const Values *values, Arena *arena, Content *content) {
    if (!content->ids || !content->count || content->numbers || content->slices) return 0;
    int64_t *numbers = NULL;
    Slice *slices = NULL;
    if (values->numbers)
        numbers = arena_get(arena, (size_t)content->count * sizeof *numbers);
    else if (values->offsets)
        slices = arena_get(arena, (size_t)content->count * sizeof *slices);
    if (!numbers && !slices) return FAILED;
    for (int64_t i = 0; i < content->count; i++) {
        int64_t id = content->ids[i];
        if (id < 0 || id >= values->length) return FAILED;
        if (numbers) {
            numbers[i] = values->numbers[id];
            continue;
        }
        int64_t start = values->offsets[id], stop = values->offsets[id + 1];
        if (start < 0 || stop < start || stop > values->num_bytes) return FAILED;
        slices[i] = (Slice){values->data + start, stop - start};
    }
    content->numbers = numbers;
    content->slices = slices;
    return 0;
}
