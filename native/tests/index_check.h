/* Functions for the tests of the index: an allocator, random numbers and a short way to add sentences. */
#pragma once

#include "index/index.h"
#include "index/memory.h"

#include "tests/check.h"

static const IndexAllocator ALLOCATOR = {count_alloc, count_free};
static const uint64_t KEY[2] = {7, 8};

static uint64_t state = 1;
static inline uint64_t next(void) { return mix(state += 0x9e3779b97f4a7c15ULL); }

/* Adds a sentence of different words, with spaces between them. */
static inline IndexStatus add(IndexPending *pending, const char *words) {
    uint8_t bytes[256], *at = bytes + 2, count = 0;
    while (*words) {
        uint8_t length = (uint8_t)strcspn(words, " ");
        *at++ = 1;
        *at++ = length;
        memcpy(at, words, length);
        at += length;
        words += length + (words[length] == ' ');
        count++;
    }
    bytes[0] = bytes[1] = count;
    return index_add(pending, bytes, (size_t)(at - bytes), 1);
}
