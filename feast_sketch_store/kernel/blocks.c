/* Checksums of the blocks of arrays; succinct/blocks.py has the format. And what a read does that meets damage. */

#include "row_reader.h"

#if defined(__unix__) || defined(__APPLE__)
#include <sys/mman.h>
#include <unistd.h>
#endif

_Thread_local Fault fault;

static _Thread_local PyThreadState *released; /* while other threads may run */

void gil_release(void) { released = PyEval_SaveThread(); }

void gil_retake(void) {
    PyThreadState *state = released;
    released = NULL;
    PyEval_RestoreThread(state);
}

int fault_note(int status) {
    fault = (Fault){status, NULL, 0, 0};
    return FAILED;
}

PyObject *fault_raise(const uint64_t *hash) {
    Fault own = fault;
    fault = (Fault){DAMAGED, NULL, 0, 0};
    if (own.status == NO_MEMORY) return PyErr_NoMemory();
    if (own.blocks) { /* its check knows the array and the file */
        PyObject *reported = PyObject_CallMethod(own.blocks->check, "report", "n", (Py_ssize_t)own.block);
        Py_XDECREF(reported);
        if (!reported) return NULL;
    }
    PyObject *module = PyImport_ImportModule("feast_sketch_store.kernel.faults"), *error = NULL;
    /* Not by the format y#: built with headers of Python 3.13, it fails on Pythons before. */
    PyObject *bytes = PyBytes_FromStringAndSize((const char *)hash, 16);
    if (module && bytes) error = PyObject_CallMethod(module, "ReadFault", "inO", own.status, own.feature, bytes);
    if (error) PyErr_SetObject((PyObject *)Py_TYPE(error), error);
    Py_XDECREF(error);
    Py_XDECREF(bytes);
    Py_XDECREF(module);
    return NULL;
}

static uint64_t words_of_block(const Blocks *blocks, uint64_t block) {
    uint64_t left = blocks->num_words - block * blocks->block_words;
    return left < blocks->block_words ? left : blocks->block_words;
}

/* Asks the system for a block of a mapped file. Scattered reads of it would load page after page. */
static void expect_block(const Blocks *blocks, uint64_t block) {
#if defined(__unix__) || defined(__APPLE__)
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), start = (uintptr_t)(blocks->words + block * blocks->block_words);
    uintptr_t first = start / page * page;
    (void)madvise((void *)first, start - first + 8 * (size_t)words_of_block(blocks, block), MADV_WILLNEED);
#else
    (void)blocks, (void)block;
#endif
}

void blocks_expect(const Blocks *blocks, uint64_t first_word, uint64_t last_word) {
    if (blocks_are_finished(blocks)) return;
    for (uint64_t b = first_word / blocks->block_words; b <= last_word / blocks->block_words && b < blocks->number; b++)
        if (blocks->unchecked[b]) expect_block(blocks, b);
}

static int is_intact(const Blocks *blocks, uint64_t block) {
    uint64_t digest[2];
    murmur3_128((const uint8_t *)(blocks->words + block * blocks->block_words),
                8 * (size_t)words_of_block(blocks, block), digest);
    return !memcmp(digest, blocks->checksums + 16 * block, 16);
}

int blocks_verify(const Blocks *blocks, uint64_t first, uint64_t last) {
    int are_intact = 1, is_held = !released; /* the disk may have to be waited for */
    if (is_held) gil_release();
    for (uint64_t b = first; b <= last && b < blocks->number; b++)
        if (blocks->unchecked[b]) expect_block(blocks, b);
    for (uint64_t b = first; are_intact && b <= last && b < blocks->number; b++) {
        if (!blocks->unchecked[b]) continue;
        if (is_intact(blocks, b)) {
            blocks->unchecked[b] = 0;
            continue;
        }
        fault = (Fault){DAMAGED, blocks, b, 0};
        are_intact = 0;
    }
    if (!memchr(blocks->unchecked, 1, (size_t)blocks->number)) *blocks->pending = 0;
    if (is_held) gil_retake();
    return are_intact;
}

static int blocks_init(Blocks *blocks, const Array *words, const Array *checksums, const Array *unchecked,
                       Py_ssize_t block_words) {
    if (block_words < 1 || unchecked->length != words->length / block_words + (words->length % block_words != 0) ||
        checksums->length % 16 || checksums->length / 16 != unchecked->length) {
        refuse("the checksums of blocks do not fit their array");
        return -1;
    }
    *blocks = (Blocks){
        .words = words->data,
        .checksums = checksums->data,
        .unchecked = unchecked->data,
        .num_words = (uint64_t)words->length,
        .block_words = (uint64_t)block_words,
        .number = (uint64_t)unchecked->length,
    };
    return 0;
}

int blocks_take(Call *call, Blocks *blocks) {
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
    if (blocks_init(blocks, &words, &checksums, &unchecked, block_words) < 0) return -1;
    if (pending.length != 1 || call->num_objects == MAX_OBJECTS) {
        refuse(DO_NOT_FIT);
        return -1;
    }
    call->objects[call->num_objects++] = Py_NewRef(check);
    blocks->check = check;
    blocks->pending = pending.data;
    return 0;
}

/* check_blocks(words, checksums, block_words, unchecked, first, number)
 *
 * Clears the marks, uint8, of those of `number` blocks from `first` on that match their 16-byte checksums. */
KERNEL_FUNCTION(check_blocks) {
    Array words, checksums, unchecked;
    Py_ssize_t block_words, first, number;
    if (take(call, "81n1!nn.", &words, &checksums, &block_words, &unchecked, &first, &number) < 0) return NULL;
    Blocks blocks;
    if (blocks_init(&blocks, &words, &checksums, &unchecked, block_words) < 0) return NULL;
    if (first < 0 || number < 0 || first > unchecked.length || number > unchecked.length - first)
        return refuse(DO_NOT_FIT);
    PyThreadState *state = PyEval_SaveThread();
    for (Py_ssize_t b = first; b < first + number; b++)
        if (is_intact(&blocks, (uint64_t)b)) blocks.unchecked[b] = 0;
    PyEval_RestoreThread(state);
    Py_RETURN_NONE;
}
