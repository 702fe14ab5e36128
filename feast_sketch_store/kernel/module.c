/* The kernel: the functions for which NumPy needs too many calls or passes. Each is described where it is defined;
 * _compiled.pyi has their types, and calls.py the arrays that they fill. Arguments are checked, so a caller's mistake
 * cannot cause a wrong access. Only the memory of mapped files is trusted. */

#include "kernel.h"

#define METHOD(NAME) {#NAME, (PyCFunction)(void (*)(void))kernel_##NAME, METH_FASTCALL, NULL},
static PyMethodDef methods[] = {EACH_KERNEL_FUNCTION(METHOD){NULL, NULL, 0, NULL}};

static int add_contents(PyObject *module) {
    if (kernel_add_prepared(module) < 0 || kernel_add_buffers(module) < 0) return -1;
    return PyModule_AddIntConstant(module, "MAX_NUM_HASHES", MAX_NUM_HASHES);
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, (void *)add_contents}, {0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_compiled", "The kernel; see _compiled.pyi.", 0, methods, slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__compiled(void) {
    kernel_choose_width();
    kernel_choose_decoder();
    return PyModuleDef_Init(&definition);
}
