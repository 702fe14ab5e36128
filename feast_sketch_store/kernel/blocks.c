/* Checksums of the blocks of arrays; snapshot/blocks.py has the format. And what a read does that meets damage. */

#include "prepared.h"

#if defined(__unix__) || defined(__APPLE__)
#include <sys/mman.h>
#include <unistd.h>
#endif

_Thread_local Fault fault;

static _Thread_local PyThreadState *released; /* while other threads may run */

void release_gil(void) { released = PyEval_SaveThread(); }

void retake_gil(void) {
    PyThreadState *state = released;
    released = NULL;
    PyEval_RestoreThread(state);
}

int fail(int status) {
    fault = (Fault){status, NULL, 0, 0};
    return FAILED;
}

PyObject *raise_fault(const uint64_t *hash) {
    Fault own = fault;
    fault = (Fault){DAMAGED, NULL, 0, 0};
    if (own.status == NO_MEMORY) return PyErr_NoMemory();
    if (own.blocks) { /* its check knows the array and the file */
        PyObject *told = PyObject_CallMethod(own.blocks->check, "report", "n", (Py_ssize_t)own.block);
        Py_XDECREF(told);
        if (!told) return NULL;
    }
    PyObject *module = PyImport_ImportModule("feast_sketch_store.kernel.faults"), *error = NULL;
    if (module)
        error = PyObject_CallMethod(module, "ReadFault", "iny#", own.status, own.feature, (const char *)hash,
                                    (Py_ssize_t)16);
    if (error) PyErr_SetObject((PyObject *)Py_TYPE(error), error);
    Py_XDECREF(error);
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

void expect_words(const Blocks *blocks, uint64_t first_word, uint64_t last_word) {
    if (is_finished(blocks)) return;
    for (uint64_t b = first_word / blocks->block_words; b <= last_word / blocks->block_words && b < blocks->number; b++)
        if (blocks->unchecked[b]) expect_block(blocks, b);
}

static int is_intact(const Blocks *blocks, uint64_t block) {
    uint64_t digest[2];
    murmur3_128((const uint8_t *)(blocks->words + block * blocks->block_words),
                8 * (size_t)words_of_block(blocks, block), digest);
    return !memcmp(digest, blocks->checksums + 16 * block, 16);
}

int verify_blocks(const Blocks *blocks, uint64_t first, uint64_t last) {
    int are_intact = 1, is_held = !released; /* the disk may have to be waited for */
    if (is_held) release_gil();
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
    if (is_held) retake_gil();
    return are_intact;
}

/* check_blocks(words, checksums, block_words, unchecked, first, number)
 *
 * Clears the marks, uint8, of those of `number` blocks from `first` on that match their 16-byte checksums. */
KERNEL_FUNCTION(check_blocks) {
    Array words, checksums, unchecked;
    Py_ssize_t block_words, first, number;
    if (take(call, "81n1!nn.", &words, &checksums, &block_words, &unchecked, &first, &number) < 0) return NULL;
    Py_ssize_t blocks = unchecked.length;
    if (block_words < 1 || first < 0 || number < 0 || first > blocks || number > blocks - first ||
        checksums.length / 16 != blocks || checksums.length % 16 ||
        blocks != words.length / block_words + (words.length % block_words != 0))
        return refuse(DO_NOT_FIT);
    PyThreadState *state = PyEval_SaveThread();
    for (Py_ssize_t b = first; b < first + number; b++) {
        Py_ssize_t start = b * block_words, left = words.length - start;
        uint64_t digest[2];
        murmur3_128((const uint8_t *)((const uint64_t *)words.data + start),
                    8 * (size_t)(left < block_words ? left : block_words), digest);
        if (!memcmp(digest, (const uint8_t *)checksums.data + 16 * b, 16)) ((uint8_t *)unchecked.data)[b] = 0;
    }
    PyEval_RestoreThread(state);
    Py_RETURN_NONE;
}
