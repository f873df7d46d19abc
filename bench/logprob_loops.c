/* Baselines of log-probability kernels: scalar loops with libm, and loops that only move as much memory. */
#include "logprob_loops.h"

#include <math.h>
#include <string.h>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

static float fp32_of(uint16_t bf16)
{
    uint32_t bits = (uint32_t)bf16 << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline float element(const loop_row *row, size_t i)
{
    return row->is_bf16 ? fp32_of(((const uint16_t *)row->x)[i]) : ((const float *)row->x)[i];
}

float scalar_forward(const loop_row *row, size_t target, loop_statistics *statistics)
{
    float max = -INFINITY, sum = 0;
    for (size_t i = 0; i < row->columns; i++)
        max = element(row, i) > max ? element(row, i) : max;
    for (size_t i = 0; i < row->columns; i++)
        sum += expf(element(row, i) - max);
    *statistics = (loop_statistics){max, logf(sum)};
    return element(row, target) - max - statistics->log_sum;
}

void scalar_backward(const loop_row *row, size_t target, const loop_statistics *statistics, float upstream, float *out)
{
    for (size_t i = 0; i < row->columns; i++)
        out[i] = -upstream * expf(element(row, i) - statistics->max - statistics->log_sum);
    out[target] += upstream;
}

double exact_forward(const loop_row *row, size_t target)
{
    double max = -INFINITY, sum = 0;
    for (size_t i = 0; i < row->columns; i++)
        max = fmax(max, element(row, i));
    for (size_t i = 0; i < row->columns; i++)
        sum += exp(element(row, i) - max);
    return element(row, target) - max - log(sum);
}

void read_bytes(const void *from, size_t bytes)
{
    static volatile uint64_t seen; /* so that the loop is not left out */
    const uint64_t *words = from;
    uint64_t a = 0, b = 0, c = 0, d = 0, e = 0, f = 0, g = 0, h = 0;
    for (size_t i = 0; i < bytes / sizeof *words; i += 8) {
        a ^= words[i], b ^= words[i + 1], c ^= words[i + 2], d ^= words[i + 3];
        e ^= words[i + 4], f ^= words[i + 5], g ^= words[i + 6], h ^= words[i + 7];
    }
    seen = a ^ b ^ c ^ d ^ e ^ f ^ g ^ h;
    (void)seen;
}

#if defined(__x86_64__)
void spread_bytes(const void *from, size_t bytes, int doubles, void *to)
{
    const __m128i *in = from, zero = _mm_setzero_si128();
    __m128i *out = to;
    for (size_t i = 0; i < bytes / sizeof *in; i++) {
        __m128i values = _mm_loadu_si128(in + i);
        if (doubles) {
            _mm_stream_si128(out++, _mm_unpacklo_epi16(zero, values));
            _mm_stream_si128(out++, _mm_unpackhi_epi16(zero, values));
        } else {
            _mm_stream_si128(out++, values);
        }
    }
    _mm_sfence();
}
#else
void spread_bytes(const void *from, size_t bytes, int doubles, void *to)
{
    const uint16_t *in = from;
    uint32_t *out = to;
    if (!doubles)
        memcpy(to, from, bytes);
    for (size_t i = 0; doubles && i < bytes / sizeof *in; i++)
        out[i] = (uint32_t)in[i] << 16;
}
#endif
