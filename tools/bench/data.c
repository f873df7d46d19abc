/* SPDX-License-Identifier: Apache-2.0 */
/* Input data of the measurements: deterministic, a function of the element's index, exact in every dtype. */
#include "bench/setup.h"

#include <bucketpool/core/fail.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define STAGING_BYTES (UINT64_C(4) << 20) /* a period of the widest dtype fits */
#define MAX_PERIODS 16                    /* per copy; more would fall out of a host's caches */

/* ---- numbers --------------------------------------------------------------------------------------------------------------- */

/* Steele, Lea and Flood, "Fast splittable pseudorandom number generators" (2014). */
static uint64_t mix(uint64_t x)
{
    x += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

bench_pattern bench_pattern_of(bench_kind kind, uint64_t hidden)
{
    int shift = kind == BENCH_LOGITS ? -4 : -7;
    if (kind == BENCH_WEIGHT) {
        shift = (int)lround(log2(6 / sqrt((double)hidden)));
        shift = (shift < -7 ? -7 : shift) - 7; /* smaller ones are not representable in fp16 */
    }
    return (bench_pattern){kind, shift};
}

/* At most 127 in magnitude, for 8 bits of significand. */
static int integer_of(bench_kind kind, uint64_t index)
{
    uint64_t bits = mix((index % BENCH_PERIOD) * 4 + (uint64_t)kind);
    if (kind != BENCH_LOGITS)
        return (int)(bits % 255) - 127;
    int sum = -126;
    for (int i = 0; i < 4; i++)
        sum += (int)(bits >> (16 * i) & 63);
    return sum;
}

double bench_element(bench_pattern pattern, uint64_t index)
{
    return ldexp(integer_of(pattern.kind, index), pattern.shift);
}

int64_t bench_target(uint64_t token, uint64_t vocab)
{
    return (int64_t)(token == 0 ? vocab - 1 : mix(token) % vocab);
}

float bench_logprob_grad(uint64_t token)
{
    return (float)((double)(mix(token ^ 0x1234567) % 2001) / 1000 - 1);
}

float bench_entropy_grad(uint64_t token)
{
    return (float)((double)(mix(token ^ 0x7654321) % 2001) / 1000 - 1);
}

/* ---- elements in memory ------------------------------------------------------------------------------------------------------ */

/* Writes a normal number that the dtype represents exactly. */
static void write_element(void *data, bp_dtype dtype, uint64_t index, float value)
{
    uint32_t bits, sign;
    memcpy(&bits, &value, sizeof bits);
    sign = bits >> 16 & 0x8000u;
    bits &= 0x7fffffffu;
    switch (dtype) {
    case BP_DTYPE_BF16: ((uint16_t *)data)[index] = (uint16_t)(sign | bits >> 16); break;
    case BP_DTYPE_FP16:
        ((uint16_t *)data)[index] = (uint16_t)(bits == 0 ? sign : sign | ((bits >> 13) - (112u << 10)));
        break;
    default: ((float *)data)[index] = value; break;
    }
}

static double from_fp16(uint16_t bits)
{
    int exponent = bits >> 10 & 31, fraction = bits & 1023;
    double size = exponent == 31  ? (fraction == 0 ? HUGE_VAL : NAN)
                  : exponent == 0 ? ldexp(fraction, -24)
                                  : ldexp(fraction + 1024, exponent - 25);
    return (bits & 0x8000) != 0 ? -size : size;
}

double bench_read(const void *data, bp_dtype dtype, uint64_t index)
{
    float value;
    uint32_t wide;
    switch (dtype) {
    case BP_DTYPE_FP16: return from_fp16(((const uint16_t *)data)[index]);
    case BP_DTYPE_BF16:
        wide = (uint32_t)((const uint16_t *)data)[index] << 16;
        memcpy(&value, &wide, sizeof value);
        return value;
    default: return ((const float *)data)[index];
    }
}

/* ---- copies ------------------------------------------------------------------------------------------------------ */

bp_status bench_staging_init(const bench_device *device, bench_staging *s)
{
    *s = (bench_staging){.device = device};
    void *memory = aligned_alloc((size_t)sysconf(_SC_PAGESIZE), STAGING_BYTES);
    if (memory == NULL)
        return bp_fail(BP_ERR_NO_HOST_MEMORY, "out of memory for copies to and from the device");
    bp_status status = bp_device_pin(device->device, memory, STAGING_BYTES);
    if (status != BP_OK) {
        free(memory);
        return status;
    }
    s->memory = memory;
    s->bytes = STAGING_BYTES;
    return BP_OK;
}

void bench_staging_finish(bench_staging *s)
{
    if (s->memory != NULL)
        (void)bp_device_unpin(s->device->device, s->memory, s->bytes);
    free(s->memory);
    s->memory = NULL;
}

static bp_status copy(const bench_staging *s, void *to, const void *from, uint64_t bytes)
{
    BP_TRY(bp_stream_copy(s->device->stream, to, from, bytes));
    return bp_stream_synchronize(s->device->stream);
}

/* Writes the first period, then copies whole periods behind it. */
bp_status bench_fill(bench_staging *s, bench_pattern pattern, bp_dtype dtype, uint64_t elements, void *to)
{
    uint64_t width = bp_dtype_bits(dtype) / 8, first = elements < BENCH_PERIOD ? elements : BENCH_PERIOD;
    uint64_t bytes = elements * width, max = first * width * MAX_PERIODS;
    for (uint64_t i = 0; i < first; i++)
        write_element(s->memory, dtype, i, (float)bench_element(pattern, i));
    BP_TRY(copy(s, to, s->memory, first * width));
    for (uint64_t done = first * width, step; done < bytes; done += step) {
        step = done < max ? done : max;
        step = step < bytes - done ? step : bytes - done;
        BP_TRY(bp_stream_copy(s->device->stream, (uint8_t *)to + done, to, step));
    }
    return bp_stream_synchronize(s->device->stream);
}

bp_status bench_upload(bench_staging *s, const void *from, uint64_t bytes, void *to)
{
    memcpy(s->memory, from, bytes);
    return copy(s, to, s->memory, bytes);
}

bp_status bench_download(bench_staging *s, const void *from, uint64_t bytes, void *to)
{
    for (uint64_t done = 0; done < bytes; done += s->bytes) {
        uint64_t step = bytes - done < s->bytes ? bytes - done : s->bytes;
        BP_TRY(copy(s, s->memory, (const uint8_t *)from + done, step));
        memcpy((uint8_t *)to + done, s->memory, step);
    }
    return BP_OK;
}
