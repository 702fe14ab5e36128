/* Takes the arguments of a call, and releases them. */

#include <stdarg.h>

#include "kernel.h"

PyObject *run(PyObject *(*body)(Call *), PyObject *self, PyObject *const *arguments, Py_ssize_t number) {
    Call call; /* its buffers are initialized only when they are taken */
    call.self = self;
    call.next = arguments;
    call.stop = arguments + number;
    call.num_buffers = 0;
    call.num_objects = 0;
    call.num_scratches = 0;
    PyObject *result = body(&call);
    while (call.num_scratches) PyMem_Free(call.scratches[--call.num_scratches]);
    while (call.num_objects) Py_DECREF(call.objects[--call.num_objects]);
    while (call.num_buffers) PyBuffer_Release(&call.buffers[--call.num_buffers]);
    return result;
}

PyObject *refuse(const char *message) {
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, message);
    return NULL;
}

void *scratch(Call *call, size_t size) {
    void *memory = call->num_scratches < MAX_SCRATCHES ? PyMem_Malloc(size) : NULL;
    if (!memory) return PyErr_NoMemory();
    return call->scratches[call->num_scratches++] = memory;
}

static int take_array(Call *call, PyObject *argument, int itemsize, int is_written, Array *array) {
    Py_buffer *buffer = &call->buffers[call->num_buffers];
    if (call->num_buffers == MAX_ARRAYS) {
        PyErr_SetString(PyExc_SystemError, "MAX_ARRAYS is too small");
        return -1;
    }
    if (PyObject_GetBuffer(argument, buffer, is_written ? PyBUF_WRITABLE : PyBUF_SIMPLE) < 0) return -1;
    call->num_buffers++;
    if (buffer->len && (buffer->itemsize != itemsize || (uintptr_t)buffer->buf % (uintptr_t)itemsize)) {
        PyErr_Format(PyExc_ValueError, "an array is misaligned or of another type; its elements take %d bytes",
                     itemsize);
        return -1;
    }
    array->data = buffer->buf;
    array->length = buffer->len / itemsize;
    return 0;
}

static int take_one(Call *call, const char *type, va_list *targets) {
    if ((*type == '.') != (call->next == call->stop)) {
        PyErr_SetString(PyExc_TypeError, *type == '.' ? "too many arguments" : "too few arguments");
        return -1;
    }
    if (*type == '.') return 0;
    PyObject *argument = *call->next++;
    if (*type == 'n') {
        Py_ssize_t *number = va_arg(*targets, Py_ssize_t *);
        *number = PyNumber_AsSsize_t(argument, PyExc_OverflowError);
        return *number == -1 && PyErr_Occurred() ? -1 : 0;
    }
    if (*type == 'o') {
        *va_arg(*targets, PyObject **) = argument;
        return 0;
    }
    if (*type == 'w') {
        uint64_t *word = va_arg(*targets, uint64_t *);
        *word = PyLong_AsUnsignedLongLongMask(argument);
        return *word == UINT64_MAX && PyErr_Occurred() ? -1 : 0;
    }
    Array *array = va_arg(*targets, Array *);
    if (type[1] == '?' && Py_IsNone(argument)) {
        array->data = NULL;
        array->length = 0;
        return 0;
    }
    return take_array(call, argument, *type - '0', type[1] == '!' || (type[1] == '?' && type[2] == '!'), array);
}

int take(Call *call, const char *types, ...) {
    int failed = 0;
    va_list targets;
    va_start(targets, types);
    for (const char *type = types; *type && !failed; type++)
        if (*type != '!' && *type != '?') failed = take_one(call, type, &targets);
    va_end(targets);
    return failed;
}
