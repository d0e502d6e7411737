/* Weights as codes of 8 bits, and scores. */
#pragma once

#include "index/structure.h"

extern const uint32_t CODE_WEIGHTS[256]; /* in units of 2^-20 */
/* The same weights as doubles, and their square roots. codes_prepare() fills them. */
extern double code_weight[256], code_root[256];
void codes_prepare(void);
uint8_t code_of(uint32_t frequency, uint32_t length);

/* A score is the sum of weight * idf over the terms of the question, plus a part for the edges between the terms. `sum`
 * is the sum of weight * idf. `roots` is the sum of the square roots of weight * idf. */

static const double EDGES = 0.3 * 0.5;
static const double SAFETY = 1 + 1e-12;

double term_idf(double sentences, double frequency);

static inline double score_of(double sum, double roots) { return sum + EDGES * (roots * roots - sum); }

/* An upper bound of a score for sums that were added in a different order. */
static inline double bound(double sum, double roots) { return score_of(sum, roots) * SAFETY; }
