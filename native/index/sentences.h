/* Packed sentences. */
#pragma once

#include "index/structure.h"

/* Reads a number of at most three bytes and returns its end. NULL: the number is invalid. */
const uint8_t *packed_number(const uint8_t *at, const uint8_t *end, uint32_t *number);
