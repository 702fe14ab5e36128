/* Checksums of the blocks of arrays; snapshot/blocks.py has the format. */

#include "kernel.h"

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
