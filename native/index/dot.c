/* Dot products with the instructions of several processors. On x86, dot_function() chooses at run time: AVX-512 with
 * VNNI, AVX2 or portable C. On other processors, the compiler's target decides: NEON on 64-bit ARM, else portable C.
 *
 * The sum of 4,096 products of two 8-bit numbers fits into 32 bits, so every function computes the same number. VNNI
 * multiplies unsigned bytes with signed bytes. So dot_vnni adds 128 to each value of the query, and afterwards
 * subtracts 128 times the sum of the vector's values. */
#include "index/dot.h"

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#define HAS_X86 1
#elif defined(__aarch64__) && defined(__ARM_NEON)
#include <arm_neon.h>
#define HAS_NEON 1
#endif

void dot_portable(const int8_t *query, const int8_t *vectors, size_t count, size_t bytes, int32_t *out) {
    for (size_t i = 0; i < count; i++, vectors += bytes) {
        int32_t sum = 0;
        for (size_t j = 0; j < bytes; j++) sum += query[j] * vectors[j];
        out[i] = sum;
    }
}

#ifdef HAS_X86

/* A scan reads memory faster if it prefetches the next vectors. Prefetching beyond the end does no harm. AHEAD is the
 * distance in bytes. */
enum { AHEAD = 1024 };

__attribute__((target("avx512f,avx512bw,avx512vl,avx512vnni"))) static void
dot_vnni(const int8_t *query, const int8_t *vectors, size_t count, size_t bytes, int32_t *out) {
    const __m512i ones = _mm512_set1_epi8(1), top = _mm512_set1_epi8((char)0x80);
    for (size_t i = 0; i < count; i++, vectors += bytes) {
        __m512i products = _mm512_setzero_si512(), sums = products;
        for (size_t j = 0; j < bytes; j += 64) {
            __m512i values = _mm512_loadu_si512(vectors + j);
            __m512i raised = _mm512_xor_si512(_mm512_loadu_si512(query + j), top);
            _mm_prefetch((const char *)vectors + j + AHEAD, _MM_HINT_T0);
            products = _mm512_dpbusd_epi32(products, raised, values);
            sums = _mm512_dpbusd_epi32(sums, ones, values);
        }
        out[i] = _mm512_reduce_add_epi32(_mm512_sub_epi32(products, _mm512_slli_epi32(sums, 7)));
    }
}

__attribute__((target("avx2"))) static void dot_avx2(const int8_t *query, const int8_t *vectors, size_t count,
                                                     size_t bytes, int32_t *out) {
    for (size_t i = 0; i < count; i++, vectors += bytes) {
        __m256i sum = _mm256_setzero_si256();
        for (size_t j = 0; j < bytes; j += 16) {
            __m256i a = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(query + j)));
            __m256i b = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(vectors + j)));
            sum = _mm256_add_epi32(sum, _mm256_madd_epi16(a, b));
        }
        _mm_prefetch((const char *)vectors + AHEAD, _MM_HINT_T0);
        __m128i half = _mm_add_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
        half = _mm_add_epi32(half, _mm_shuffle_epi32(half, 0x4e));
        half = _mm_add_epi32(half, _mm_shuffle_epi32(half, 0xb1));
        out[i] = _mm_cvtsi128_si32(half);
    }
}

DotFunction dot_function(void) {
    if (__builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bw")) return dot_vnni;
    return __builtin_cpu_supports("avx2") ? dot_avx2 : dot_portable;
}

#elif defined(HAS_NEON)

static void dot_neon(const int8_t *query, const int8_t *vectors, size_t count, size_t bytes, int32_t *out) {
    for (size_t i = 0; i < count; i++, vectors += bytes) {
        int32x4_t sum = vdupq_n_s32(0);
        for (size_t j = 0; j < bytes; j += 16) {
            int8x16_t a = vld1q_s8(query + j), b = vld1q_s8(vectors + j);
            sum = vpadalq_s16(sum, vmull_s8(vget_low_s8(a), vget_low_s8(b)));
            sum = vpadalq_s16(sum, vmull_s8(vget_high_s8(a), vget_high_s8(b)));
        }
        out[i] = vaddvq_s32(sum);
    }
}

DotFunction dot_function(void) { return dot_neon; }

#else

DotFunction dot_function(void) { return dot_portable; }

#endif
