/* The code table: BM25 weights in 8 bits.
 *
 * Code c of 1 to 255 represents the weight 0.02 * 110^((c - 1) / 254), rounded to a multiple of 2^-20:
 * - Code 1 is the weight 0.02: the weight of a term that occurs once in a sentence of about 1,800 terms. Lower weights
 *   get code 1, too.
 * - Code 255 is the weight 2.2, above every real weight.
 * - The weight of a code is 1.87 % above the weight of the code before. So the weight of the nearest code differs from
 *   the real weight by at most 0.94 %.
 * - Code 0 means that there is no posting.
 *
 * A replica must store the same codes as its primary, but the C libraries of two machines may round pow() and log()
 * differently. So the table is a constant, and the search for a weight's code only multiplies and compares. */
#include "index/codes.h"

#include <math.h>

static const double K1 = 1.2, B = 0.75, REFERENCE_LENGTH = 15.0;

const uint32_t CODE_WEIGHTS[256] = {
    0,       20972,   21363,   21762,   22169,   22583,   23005,   23434,   23872,   24318,   24772,   25235,   25706,
    26186,   26675,   27174,   27681,   28198,   28725,   29261,   29808,   30365,   30932,   31510,   32098,   32698,
    33308,   33931,   34564,   35210,   35868,   36538,   37220,   37915,   38623,   39345,   40080,   40828,   41591,
    42368,   43159,   43965,   44786,   45623,   46475,   47343,   48227,   49128,   50046,   50981,   51933,   52903,
    53891,   54898,   55923,   56967,   58031,   59115,   60220,   61344,   62490,   63657,   64846,   66058,   67291,
    68548,   69829,   71133,   72462,   73815,   75194,   76598,   78029,   79486,   80971,   82483,   84024,   85593,
    87192,   88821,   90480,   92170,   93891,   95645,   97431,   99251,   101105,  102994,  104917,  106877,  108873,
    110907,  112978,  115089,  117238,  119428,  121659,  123931,  126246,  128604,  131006,  133453,  135945,  138485,
    141071,  143706,  146390,  149125,  151910,  154748,  157638,  160582,  163582,  166637,  169750,  172920,  176150,
    179440,  182792,  186206,  189684,  193227,  196836,  200512,  204258,  208073,  211959,  215918,  219951,  224059,
    228244,  232508,  236850,  241274,  245781,  250372,  255048,  259812,  264665,  269608,  274644,  279774,  284999,
    290323,  295745,  301269,  306896,  312629,  318468,  324416,  330476,  336649,  342937,  349342,  355867,  362514,
    369285,  376183,  383209,  390367,  397658,  405085,  412652,  420359,  428211,  436209,  444356,  452656,  461111,
    469724,  478497,  487435,  496539,  505813,  515261,  524885,  534689,  544676,  554850,  565213,  575770,  586524,
    597480,  608639,  620008,  631588,  643385,  655402,  667644,  680114,  692818,  705758,  718940,  732369,  746048,
    759983,  774178,  788638,  803368,  818374,  833660,  849231,  865093,  881251,  897711,  914479,  931560,  948959,
    966684,  984740,  1003133, 1021870, 1040956, 1060399, 1080206, 1100382, 1120935, 1141872, 1163200, 1184926, 1207059,
    1229604, 1252571, 1275966, 1299799, 1324077, 1348808, 1374001, 1399665, 1425808, 1452440, 1479569, 1507204, 1535356,
    1564033, 1593247, 1623006, 1653320, 1684201, 1715659, 1747704, 1780348, 1813601, 1847476, 1881984, 1917135, 1952944,
    1989421, 2026580, 2064433, 2102992, 2142272, 2182286, 2223047, 2264569, 2306867,
};

double code_weight[256], code_root[256];

enum { KNOWN_FREQUENCIES = 4, KNOWN_LENGTHS = 128 };
static uint8_t known[KNOWN_FREQUENCIES][KNOWN_LENGTHS]; /* the codes of terms that occur 1 to 4 times in a sentence of
                                                         * fewer than 128 terms: the most frequent cases */

/* Returns the code whose weight is nearest to `weight` by ratio. Of two adjacent codes, the higher code is nearer if
 * the square of `weight` is above the product of the weights of both codes. */
static uint8_t nearest(double weight) {
    int low = 1, high = 255;
    while (low < high) {
        int middle = (low + high) / 2;
        if (weight * weight > code_weight[middle] * code_weight[middle + 1]) low = middle + 1;
        else high = middle;
    }
    return (uint8_t)low;
}

static double weight_of(double frequency, double length) {
    return frequency * (K1 + 1) / (frequency + K1 * (1 - B + B * length / REFERENCE_LENGTH));
}

/* Computes the arrays code_weight, code_root and known. index_new() and index_watch_new() call this function. Repeated
 * calls do no harm. */
void codes_prepare(void) {
    for (int code = 0; code < 256; code++) {
        code_weight[code] = (double)CODE_WEIGHTS[code] / (1 << 20);
        code_root[code] = sqrt(code_weight[code]);
    }
    for (int frequency = 0; frequency < KNOWN_FREQUENCIES; frequency++)
        for (int length = 0; length < KNOWN_LENGTHS; length++)
            known[frequency][length] = nearest(weight_of(frequency + 1, length));
}

uint8_t code_of(uint32_t frequency, uint32_t length) {
    if (frequency <= KNOWN_FREQUENCIES && length < KNOWN_LENGTHS) return known[frequency - 1][length];
    return nearest(weight_of(frequency, length));
}

double term_idf(double sentences, double frequency) {
    if (frequency > sentences) frequency = sentences;
    return log1p((sentences - frequency + 0.5) / (frequency + 0.5));
}

double index_code_weight(uint8_t code) { return (double)CODE_WEIGHTS[code] / (1 << 20); }
