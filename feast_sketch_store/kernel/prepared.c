/* PreparedRows: a layer of rows, or a stack of such layers, in the form in which they are read.
 *
 * The methods before reads build one before it is shared; `layers/prepared.py` calls them. It keeps its arrays alive. */

#include "prepared.h"

int keep(Prepared *self, Call *call) {
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
PyObject *done(Prepared *self, Call *call) {
    if (keep(self, call) < 0) return NULL;
    Py_RETURN_NONE;
}

int take_blocks(Call *call, Blocks *blocks) {
    static const char *const names[] = {"words", "checksums", "unchecked", "pending", "block_words"};
    PyObject *check, *parts[5] = {NULL, NULL, NULL, NULL, NULL};
    Array words, checksums, unchecked, pending;
    Py_ssize_t block_words;
    memset(blocks, 0, sizeof *blocks);
    if (take(call, "o", &check) < 0) return -1;
    if (Py_IsNone(check)) return 0;
    int failed = 0;
    for (int i = 0; i < 5 && !failed; i++) failed = !(parts[i] = PyObject_GetAttrString(check, names[i]));
    if (!failed) {
        PyObject *const *next = call->next, *const *stop = call->stop;
        call->next = parts;
        call->stop = parts + 5;
        failed = take(call, "811!1!n", &words, &checksums, &unchecked, &pending, &block_words) < 0;
        call->next = next;
        call->stop = stop;
    }
    for (int i = 0; i < 5; i++) Py_XDECREF(parts[i]); /* the call has buffers of the arrays */
    if (failed) return -1;
    if (block_words < 1 || unchecked.length != words.length / block_words + (words.length % block_words != 0) ||
        checksums.length != 16 * unchecked.length || pending.length != 1 || call->num_objects == MAX_OBJECTS) {
        refuse("the checksums of blocks do not fit their array");
        return -1;
    }
    call->objects[call->num_objects++] = Py_NewRef(check);
    *blocks = (Blocks){check, words.data, checksums.data, unchecked.data, pending.data,
                       (uint64_t)words.length, (uint64_t)block_words, (uint64_t)unchecked.length};
    return 0;
}

int take_numbers(Call *call, Numbers *numbers) {
    Array words;
    Py_ssize_t width, length;
    if (take(call, "8nwn", &words, &width, &numbers->base, &length) < 0 ||
        init_packed(&numbers->packed, &words, width, length) < 0)
        return -1;
    numbers->length = (uint64_t)length;
    return take_blocks(call, &numbers->blocks);
}

int take_checked(Call *call, CheckedAscending *checked, int by_value) {
    if (take_ascending(call, &checked->numbers, by_value) < 0 || take_blocks(call, &checked->highs) < 0 ||
        take_blocks(call, &checked->lows) < 0 || take_blocks(call, &checked->samples) < 0)
        return -1;
    return 0;
}

#define CONSTRUCTION(DO) DO(sets) DO(layer) DO(shards)

CONSTRUCTION(DECLARE_METHOD)

int is_first(const Prepared *self) {
    if (self->kind == NOTHING) return 1;
    refuse("the rows are there already");
    return 0;
}

/* sets(parameters, level_starts, levels, words, num_bits, check, starts ...) */
PREPARED_METHOD(sets) {
    Prepared *self = (Prepared *)call->self;
    if (self->kind != LISTED || self->marks) return refuse("there are no rows for the sets");
    if (take_words_of_sets(call, &self->sets) < 0 || take_blocks(call, &self->code_blocks) < 0 ||
        take_checked(call, &self->starts, 0) < 0 || take(call, ".") < 0)
        return NULL;
    self->sets.starts = self->starts.numbers;
    if (self->sets.starts.length != self->num_rows) return refuse(DO_NOT_FIT);
    uint8_t *marks = scratch(call, (size_t)self->sets.codes.number);
    if (!marks) return NULL;
    memset(marks, 0, (size_t)self->sets.codes.number);
    if (keep(self, call) < 0) return NULL;
    self->marks = marks;
    Py_RETURN_NONE;
}

/* layer(rows, names, hashes, deleted): add a layer below the others.
 *
 * `names`, int32, are the ids in answers of its first feature's ids, or None. `hashes` and `deleted` are the entities
 * that a delta decides, uint64[n, 2] ascending and bool[n], or None. */
PREPARED_METHOD(layer) {
    Prepared *self = (Prepared *)call->self;
    PyObject *object;
    Array names, hashes, deleted;
    if (take(call, "o4?8?1?.", &object, &names, &hashes, &deleted) < 0) return NULL;
    if (hashes.length != 2 * deleted.length || !hashes.data != !deleted.data) return refuse(DO_NOT_FIT);
    Prepared *rows = (Prepared *)object;
    if ((self->kind != NOTHING && self->kind != STACK) || Py_TYPE(object) != Py_TYPE(call->self) ||
        (rows->kind != LISTED && rows->kind != EXACT && rows->kind != SHAPED && rows->kind != NUMBERED) ||
        (self->num_layers && self->layers[0].rows->num_features != rows->num_features))
        return refuse("this is not a layer of the same features");
    Layer *layers = PyMem_Realloc(self->layers, sizeof(Layer) * (size_t)(self->num_layers + 1));
    if (!layers) return PyErr_NoMemory();
    self->layers = layers;
    if (keep(self, call) < 0) return NULL;
    Py_INCREF(object);
    layers[self->num_layers++] = (Layer){rows, names.data, names.length, hashes.data, deleted.data, deleted.length};
    self->kind = STACK;
    Py_RETURN_NONE;
}

/* shards(shift, first_layers, is_served): divide the layers among shards of entities.
 *
 * `hash[0] >> shift` is the shard of an entity. `first_layers`, int64[S + 1], say where the layers of each shard begin;
 * `is_served`, bool[S], which shards may be read. Reads of entities in other shards are refused. */
PREPARED_METHOD(shards) {
    Prepared *self = (Prepared *)call->self;
    Array firsts, served;
    Py_ssize_t shift;
    if (take(call, "n81.", &shift, &firsts, &served) < 0) return NULL;
    const int64_t *first = firsts.data;
    if (self->kind != STACK || self->first_layers || shift < 1 || shift > 63 || served.length != 1ll << (64 - shift) ||
        firsts.length != served.length + 1 || first[0] != 0 || first[served.length] != self->num_layers)
        return refuse(DO_NOT_FIT);
    for (Py_ssize_t s = 0; s < served.length; s++)
        if (first[s] > first[s + 1]) return refuse(DO_NOT_FIT);
    if (keep(self, call) < 0) return NULL;
    self->first_layers = first;
    self->is_served = served.data;
    self->num_shards = served.length;
    self->shard_shift = (int)shift;
    Py_RETURN_NONE;
}

/* -- the type ---------------------------------------------------------------------------------------- */

static PyObject *make(PyTypeObject *type, PyObject *arguments, PyObject *keywords) {
    if (PyTuple_Size(arguments) || (keywords && PyDict_Size(keywords))) return refuse("PreparedRows takes no arguments");
    Prepared *self = (Prepared *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0); /* all zero */
    return (PyObject *)self;
}

static void release(PyObject *object) {
    Prepared *self = (Prepared *)object;
    PyTypeObject *type = Py_TYPE(object);
    while (self->num_layers) Py_DECREF((PyObject *)self->layers[--self->num_layers].rows);
    while (self->num_buffers) PyBuffer_Release(&self->buffers[--self->num_buffers]);
    while (self->num_objects) Py_DECREF(self->objects[--self->num_objects]);
    while (self->num_memory) PyMem_Free(self->memory[--self->num_memory]);
    PyMem_Free(self->ranges);
    PyMem_Free(self->layers);
    PyMem_Free(self->features);
    PyMem_Free(self->buffers);
    PyMem_Free(self->objects);
    PyMem_Free(self->memory);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF((PyObject *)type);
}

#define METHOD(NAME) {#NAME, (PyCFunction)(void (*)(void))prepared_##NAME, METH_FASTCALL, NULL},
static PyMethodDef methods[] = {
    CONSTRUCTION(METHOD) ROW_METHODS(METHOD) FEATURE_METHODS(METHOD) FILTER_METHODS(METHOD) LIST_METHODS(METHOD) READ_METHODS(METHOD){NULL, NULL, 0, NULL}};

static PyType_Slot slots[] = {
    {Py_tp_new, (void *)make}, {Py_tp_dealloc, (void *)release}, {Py_tp_methods, methods}, {0, NULL}};

static PyType_Spec spec = {"feast_sketch_store.kernel._compiled.PreparedRows", sizeof(Prepared), 0, Py_TPFLAGS_DEFAULT,
                           slots};

int kernel_add_prepared(PyObject *module) {
    PyObject *type = PyType_FromModuleAndSpec(module, &spec, NULL);
    if (!type) return -1;
    int failed = PyModule_AddType(module, (PyTypeObject *)type);
    Py_DECREF(type);
    return failed;
}
