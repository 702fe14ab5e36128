/* Memory of a read: an arena, and bytes that grow and are handed to Python without a copy. */

#include <stdlib.h>

#include "row_reader.h"

struct Block {
    Block *before;
    size_t capacity;
    uint64_t memory[];
};

void *arena_get(Arena *arena, size_t size) {
    enum { BLOCK_SIZE = 1 << 16 };
    size = (size + 7) & ~(size_t)7;
    if (size > (size_t)(arena->stop - arena->next)) {
        size_t capacity = size > BLOCK_SIZE ? size : BLOCK_SIZE;
        Block *block = malloc(sizeof(Block) + capacity);
        if (!block) {
            fault_note(NO_MEMORY);
            return NULL;
        }
        *block = (Block){arena->blocks, capacity};
        arena->blocks = block;
        arena->next = (uint8_t *)block->memory;
        arena->stop = arena->next + capacity;
    }
    void *memory = arena->next;
    arena->next += size;
    return memory;
}

static void free_before(Block *block) {
    while (block->before) {
        Block *before = block->before;
        block->before = before->before;
        free(before);
    }
}

void arena_reset(Arena *arena) {
    if (!arena->blocks) {
        arena_init(arena);
        return;
    }
    free_before(arena->blocks);
    arena->next = (uint8_t *)arena->blocks->memory;
    arena->stop = arena->next + arena->blocks->capacity;
}

void arena_free(Arena *arena) {
    if (!arena->blocks) return;
    free_before(arena->blocks);
    free(arena->blocks);
}

/* -- bytes that grow -------------------------------------------------------------------------------------------- */

/* malloc keeps blocks of up to about this many bytes for each thread, and returns them at once */
enum { SMALL = 1024 };

void *buffer_extend(Buffer *buffer, size_t size) {
    if (!buffer->bytes || size > buffer->capacity - buffer->length) {
        size_t capacity = 2 * buffer->length + size + SMALL / 2;
        uint8_t *moved = realloc(buffer->bytes, capacity);
        if (!moved) {
            fault_note(NO_MEMORY);
            return NULL;
        }
        buffer->bytes = moved;
        buffer->capacity = capacity;
    }
    void *end = buffer->bytes + buffer->length;
    buffer->length += size;
    return end;
}

/* An object that owns bytes, and offers nothing but the buffer protocol. */
typedef struct {
    PyObject_HEAD
    uint8_t *bytes;
    Py_ssize_t length;
} Owned;

static PyTypeObject *owned_type;

/* The bytes without spare capacity behind them; NULL if they stay where they are. */
static uint8_t *fit(Buffer *buffer) {
    if (buffer->capacity > SMALL) return realloc(buffer->bytes, buffer->length);
    uint8_t *copy = malloc(buffer->length);
    if (!copy) return NULL;
    memcpy(copy, buffer->bytes, buffer->length);
    free(buffer->bytes);
    return copy;
}

PyObject *buffer_give(Buffer *buffer) {
    static uint8_t nothing;
    Owned *owned = PyObject_New(Owned, owned_type);
    if (!owned) return NULL;
    uint8_t *fitting = buffer->length ? fit(buffer) : NULL;
    owned->bytes = fitting ? fitting : buffer->length ? buffer->bytes : &nothing;
    owned->length = (Py_ssize_t)buffer->length;
    if (buffer->length) *buffer = (Buffer){NULL, 0, 0};
    return (PyObject *)owned;
}

static int get_buffer(PyObject *object, Py_buffer *view, int flags) {
    Owned *owned = (Owned *)object;
    return PyBuffer_FillInfo(view, object, owned->bytes, owned->length, 0, flags);
}

static void release(PyObject *object) {
    PyTypeObject *type = Py_TYPE(object);
    if (((Owned *)object)->length) free(((Owned *)object)->bytes);
    PyObject_Free(object);
    Py_DECREF((PyObject *)type);
}

static PyType_Slot slots[] = {{Py_bf_getbuffer, (void *)get_buffer}, {Py_tp_dealloc, (void *)release}, {0, NULL}};

static PyType_Spec spec = {"feast_sketch_store.kernel._compiled.Bytes", sizeof(Owned), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots};

int kernel_add_buffers(PyObject *module) {
    owned_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &spec, NULL);
    return owned_type ? 0 : -1;
}
