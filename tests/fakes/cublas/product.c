/* SPDX-License-Identifier: Apache-2.0 */
/* Matrix products: column-major, with sums in fp32. */
#include "internal.h"

#include "../cuda/fake_cuda.h"

#include <math.h>
#include <string.h>

/* ---- elements ---------------------------------------------------------------------------------------------------- */

static float fp32_of_bf16(uint16_t bits)
{
    const uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    return value;
}

static float fp32_of_fp16(uint16_t bits)
{
    const int exponent = bits >> 10 & 31, fraction = bits & 1023;
    float magnitude = exponent == 0 ? ldexpf((float)fraction, -24) : ldexpf((float)(fraction + 1024), exponent - 25);
    if (exponent == 31)
        magnitude = fraction == 0 ? INFINITY : NAN;
    return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

/* Rounds to the nearest of the magnitudes 0 to `infinity`, half-way to even. */
static uint16_t nearest(float value, uint16_t infinity, float (*widen)(uint16_t))
{
    const float magnitude = fabsf(value);
    uint16_t low = 0, high = infinity;
    const uint16_t sign = signbit(value) ? 0x8000 : 0;
    if (isnan(value))
        return sign | (uint16_t)(infinity + 1);
    while (high - low > 1) {
        const uint16_t middle = (uint16_t)((low + high) / 2);
        if (widen(middle) <= magnitude)
            low = middle;
        else
            high = middle;
    }
    /* for rounding, infinity is the number after the largest finite one */
    const double below = widen(low);
    const double above = high < infinity
                             ? widen(high)
                             : 2 * (double)widen((uint16_t)(infinity - 1)) - (double)widen((uint16_t)(infinity - 2));
    const double down = (double)magnitude - below, up = above - (double)magnitude;
    if (down < up || (!(up < down) && low % 2 == 0))
        return sign | low;
    return sign | high;
}

static float get(const matrix *m, bool transposed, int64_t row, int64_t column)
{
    const int64_t at = transposed ? column + row * m->leading : row + column * m->leading;
    if (m->type == FP32)
        return ((const float *)m->data)[at];
    const uint16_t bits = ((const uint16_t *)m->data)[at];
    return m->type == BF16 ? fp32_of_bf16(bits) : fp32_of_fp16(bits);
}

static void set(const matrix *m, int64_t row, int64_t column, float value)
{
    const int64_t at = row + column * m->leading;
    if (m->type == FP32)
        ((float *)m->data)[at] = value;
    else
        ((uint16_t *)m->data)[at] =
            m->type == BF16 ? nearest(value, 0x7f80, fp32_of_bf16) : nearest(value, 0x7c00, fp32_of_fp16);
}

/* ---- workspaces -------------------------------------------------------------------------------------------------- */

/* Writes the user's mark to both ends of the workspace. */
static void mark(const product *p)
{
    if (p->workspace_bytes < 2 * sizeof p)
        return;
    memcpy(p->workspace, (const void *)&p, sizeof p);
    memcpy((char *)p->workspace + p->workspace_bytes - sizeof p, (const void *)&p, sizeof p);
}

static bool is_marked(const product *p)
{
    const char *end = (const char *)p->workspace + p->workspace_bytes - sizeof p;
    return p->workspace_bytes < 2 * sizeof p ||
           (memcmp(p->workspace, (const void *)&p, sizeof p) == 0 && memcmp(end, (const void *)&p, sizeof p) == 0);
}

/* ---- products ---------------------------------------------------------------------------------------------------- */

static void run(const unsigned grid[3], const unsigned block[3], unsigned shared_bytes, const void *argument)
{
    const product *p = argument;
    (void)grid;
    (void)block;
    (void)shared_bytes;
    mark(p);
    for (int64_t column = 0; column < p->n; column++)
        for (int64_t row = 0; row < p->m; row++) {
            float sum = 0;
            for (int64_t i = 0; i < p->k; i++)
                sum += get(&p->a, p->transpose_a, row, i) * get(&p->b, p->transpose_b, i, column);
            sum *= p->alpha;
            if (p->beta != 0) /* else c is not read */
                sum += p->beta * get(&p->c, false, row, column);
            set(&p->c, row, column, sum);
        }
    if (!is_marked(p))
        fake_cuda_record_broken("cublas_workspace_is_its", "another product wrote to the workspace of one that ran");
}

int enqueue_product(const product *p, void *stream)
{
    static const fake_kernel kernel = {"cublas_product", sizeof(product), run};
    return fake_cuda_launch(&kernel, p, stream) == 0 ? OK : EXECUTION_FAILED;
}
