/* The kernel: the functions for which NumPy needs too many calls or passes. Each is described where it is defined;
 * _compiled.pyi has their types, and calls.py the arrays that they fill. Arguments are checked, so a caller's mistake
 * cannot cause a wrong access. Only the memory of mapped files is trusted. */

#include "row_reader.h"

static PyObject *make(PyTypeObject *type, PyObject *arguments, PyObject *keywords) {
    if (PyTuple_Size(arguments) || (keywords && PyDict_Size(keywords))) return refuse("RowReader takes no arguments");
    RowReader *self = (RowReader *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0); /* all zero */
    return (PyObject *)self;
}

static void release(PyObject *object) {
    RowReader *self = (RowReader *)object;
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

#define READER_ENTRY(NAME) {#NAME, (PyCFunction)(void (*)(void))reader_##NAME, METH_FASTCALL, NULL},
static PyMethodDef reader_methods[] = {EACH_READER_METHOD(READER_ENTRY){NULL, NULL, 0, NULL}};

static PyType_Slot reader_slots[] = {
    {Py_tp_new, (void *)make}, {Py_tp_dealloc, (void *)release}, {Py_tp_methods, reader_methods}, {0, NULL}};

static PyType_Spec reader_spec = {"feast_sketch_store.kernel._compiled.RowReader", sizeof(RowReader), 0,
                                  Py_TPFLAGS_DEFAULT, reader_slots};

static int add_reader(PyObject *module) {
    PyObject *type = PyType_FromModuleAndSpec(module, &reader_spec, NULL);
    if (!type) return -1;
    int failed = PyModule_AddType(module, (PyTypeObject *)type);
    Py_DECREF(type);
    return failed;
}

#define ENTRY(NAME) {#NAME, (PyCFunction)(void (*)(void))kernel_##NAME, METH_FASTCALL, NULL},
static PyMethodDef methods[] = {EACH_KERNEL_FUNCTION(ENTRY){NULL, NULL, 0, NULL}};

static int add_contents(PyObject *module) {
    if (add_reader(module) < 0 || kernel_add_buffers(module) < 0) return -1;
    if (PyModule_AddStringConstant(module, "BUILT_FROM", BUILT_FROM) < 0)
        return -1; /* by which a build knows it again */
    return PyModule_AddIntConstant(module, "MAX_NUM_HASHES", MAX_NUM_HASHES);
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, (void *)add_contents}, {0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_compiled", "The kernel; see _compiled.pyi.", 0, methods, slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__compiled(void) {
    kernel_choose_width();
    kernel_choose_select();
    kernel_choose_set_decoder();
    kernel_choose_list_decoder();
    return PyModuleDef_Init(&definition);
}
