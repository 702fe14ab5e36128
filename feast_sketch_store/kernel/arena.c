/* Memory for the duration of a read. */

#include <stdlib.h>

#include "prepared.h"

struct Block {
    Block *before;
    size_t room;
    uint64_t memory[];
};

void *arena_get(Arena *arena, size_t size) {
    enum { BLOCK_SIZE = 1 << 16 };
    size = (size + 7) & ~(size_t)7;
    if (size > (size_t)(arena->stop - arena->next)) {
        size_t room = size > BLOCK_SIZE ? size : BLOCK_SIZE;
        Block *block = malloc(sizeof(Block) + room);
        if (!block) {
            fail(NO_MEMORY);
            return NULL;
        }
        *block = (Block){arena->blocks, room};
        arena->blocks = block;
        arena->next = (uint8_t *)block->memory;
        arena->stop = arena->next + room;
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
    arena->stop = arena->next + arena->blocks->room;
}

void arena_free(Arena *arena) {
    if (!arena->blocks) return;
    free_before(arena->blocks);
    free(arena->blocks);
}
