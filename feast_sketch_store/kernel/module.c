/* The compiled kernel: what NumPy takes too many calls or passes for. Each function is described where it is
 * defined and by its twin in reference.py. Arguments are checked, so that no caller's mistake becomes a wrong
 * access; the memory of mapped files is the one thing that is trusted. */

#include "kernel.h"

static PyMethodDef methods[] = {
    {"possible_symbols", kernel_possible_symbols, METH_VARARGS, NULL},
    {"windows", kernel_windows, METH_VARARGS, NULL},
    {"contains", kernel_contains, METH_VARARGS, NULL},
    {"scores", kernel_scores, METH_VARARGS, NULL},
    {"touch_blocks", kernel_touch_blocks, METH_VARARGS, NULL},
    {"add_facts", kernel_add_facts, METH_VARARGS, NULL},
    {"hash_int64_keys", kernel_hash_int64_keys, METH_VARARGS, NULL},
    {"parse_int64_keys", kernel_parse_int64_keys, METH_VARARGS, NULL},
    {"hash_keys", kernel_hash_keys, METH_VARARGS, NULL},
    {"index_int64", kernel_index_int64, METH_VARARGS, NULL},
    {"find_int64", kernel_find_int64, METH_VARARGS, NULL},
    {"index_bytes", kernel_index_bytes, METH_VARARGS, NULL},
    {"find_bytes", kernel_find_bytes, METH_VARARGS, NULL},
    {"sort_rows", kernel_sort_rows, METH_VARARGS, NULL},
    {"encode_values", kernel_encode_values, METH_VARARGS, NULL},
    {"take_packed", kernel_take_packed, METH_VARARGS, NULL},
    {"row_hashes", kernel_row_hashes, METH_VARARGS, NULL},
    {"find_rows", kernel_find_rows, METH_VARARGS, NULL},
    {"write_sets", kernel_write_sets, METH_VARARGS, NULL},
    {"read_sets", kernel_read_sets, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {{0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_compiled", "The compiled kernel; see compiled.py.", 0, methods, slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__compiled(void) {
    kernel_choose_width();
    return PyModuleDef_Init(&definition);
}
