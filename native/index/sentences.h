/* Packed sentences: the terms of sentences in the binary form of commands (sentences.c). */
#pragma once

#include "index/structure.h"

/* Reads a varint of at most three bytes and returns its end. NULL: the number is longer, or the bytes end too early. */
const uint8_t *packed_number(const uint8_t *at, const uint8_t *end, uint32_t *number);
