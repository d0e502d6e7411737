/* A check that ends the test, and an allocator that counts the allocated bytes. */
#pragma once

#include <stdio.h>
#include <stdlib.h>

__attribute__((unused)) static unsigned long round_number; /* set by tests that run in rounds; CHECK prints it */

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "%s:%d: %s (round %lu)\n", __FILE__, __LINE__, #condition, round_number);                  \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

static size_t held, most_held;

/* Stores the size before each allocation. */
static inline void *count_alloc(size_t bytes) {
    size_t *piece = malloc(bytes + 16);
    *piece = bytes;
    held += bytes;
    if (held > most_held) most_held = held;
    return (char *)piece + 16;
}

static inline void count_free(void *pointer) {
    size_t *piece = (size_t *)((char *)pointer - 16);
    held -= *piece;
    free(piece);
}
