/* Weights as codes of 8 bits, and scores. A weight is the BM25 weight of a term in a sentence, without idf. */
#pragma once

#include "index/structure.h"

extern const uint32_t CODE_WEIGHTS[256]; /* in units of 2^-20 */
/* The weights of the codes as doubles, and the square roots of the weights. codes_prepare() fills both arrays. */
extern double code_weight[256], code_root[256];
void codes_prepare(void);
/* The code of a term that occurs `frequency` times in a sentence of `length` terms, counted with repetitions. */
uint8_t code_of(uint32_t frequency, uint32_t length);

/* A score is the sum of weight * idf over the terms of the question, plus the edges: 0.3 times the sum of sqrt(a * b)
 * over all pairs of terms, where a and b are the weight * idf of both terms. `sum` is the sum of weight * idf. `roots`
 * is the sum of the square roots of weight * idf. The sum over all pairs is then (roots * roots - sum) / 2. */

static const double EDGES = 0.3 * 0.5;
static const double SAFETY = 1 + 1e-12;

double term_idf(double sentences, double frequency);

static inline double score_of(double sum, double roots) { return sum + EDGES * (roots * roots - sum); }

/* An upper bound of a score. The numbers in `sum` and `roots` may have been added in a different order from the score,
 * which changes the rounding. */
static inline double bound(double sum, double roots) { return score_of(sum, roots) * SAFETY; }
