/* The numbers that are measured with: the same in every run, known for each element without looking, exact in every dtype. */
#include "bench/command/setup.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define STAGING_BYTES (UINT64_C(4) << 20)
#define MOST_PERIODS 16 /* in one copy: more fall out of the caches of a host */

/* ---- numbers --------------------------------------------------------------------------------------------------------------- */

/* Steele, Lea and Flood, "Fast splittable pseudorandom number generators" (2014). */
static uint64_t mix(uint64_t x)
{
    x += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

bench_pattern bench_logits_pattern(void)
{
    return (bench_pattern){BENCH_LOGITS, -4};
}

bench_pattern bench_hidden_pattern(void)
{
    return (bench_pattern){BENCH_HIDDEN, -7};
}

bench_pattern bench_weight_pattern(uint64_t hidden)
{
    int shift = (int)lround(log2(6 / sqrt((double)hidden)));
    return (bench_pattern){BENCH_WEIGHT, (shift < -7 ? -7 : shift) - 7}; /* below, fp16 has no such small numbers */
}

/* At most 127 in size, so that 8 bits of significand hold it. */
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

static uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* Of a number that fp16 has, and not a subnormal one. */
static uint16_t to_fp16(float value)
{
    uint32_t bits = bits_of(value), sign = bits >> 16 & 0x8000u;
    return (uint16_t)((bits & 0x7fffffffu) == 0 ? sign : sign | (((bits & 0x7fffffffu) >> 13) - (112u << 10)));
}

static void write_element(void *data, bp_dtype dtype, uint64_t index, float value)
{
    switch (dtype) {
    case BP_DTYPE_BF16: ((uint16_t *)data)[index] = (uint16_t)(bits_of(value) >> 16); break;
    case BP_DTYPE_FP16: ((uint16_t *)data)[index] = to_fp16(value); break;
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

static double from_bf16(uint16_t bits)
{
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    return value;
}

double bench_read(const void *data, bp_dtype dtype, uint64_t index)
{
    switch (dtype) {
    case BP_DTYPE_BF16: return from_bf16(((const uint16_t *)data)[index]);
    case BP_DTYPE_FP16: return from_fp16(((const uint16_t *)data)[index]);
    default: return ((const float *)data)[index];
    }
}

/* ---- copies ---------------------------------------------------------------------------------------------------------------- */

bp_status bench_staging_init(const bench_device *device, bench_staging *s)
{
    *s = (bench_staging){.device = device};
    void *memory = aligned_alloc((size_t)sysconf(_SC_PAGESIZE), STAGING_BYTES);
    if (memory == NULL)
        return bp_error_record(BP_ERR_NO_HOST_MEMORY, "out of memory for copies to and from the device");
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
    bp_status status = bp_stream_copy(s->device->stream, to, from, bytes);
    return status == BP_OK ? bp_stream_synchronize(s->device->stream) : status;
}

/* What is there is copied behind itself, whole periods at a time. */
static bp_status repeat(const bench_staging *s, uint64_t period_bytes, uint64_t bytes, uint8_t *to)
{
    bp_status status = BP_OK;
    uint64_t done = period_bytes, step;
    for (; status == BP_OK && done < bytes; done += step) {
        uint64_t most = period_bytes * MOST_PERIODS;
        step = done < most ? done : most;
        step = step < bytes - done ? step : bytes - done;
        status = bp_stream_copy(s->device->stream, to + done, to, step);
    }
    return status == BP_OK ? bp_stream_synchronize(s->device->stream) : status;
}

bp_status bench_fill(bench_staging *s, bench_pattern pattern, bp_dtype dtype, uint64_t elements, void *to)
{
    uint64_t width = bp_dtype_bits(dtype) / 8, first = elements < BENCH_PERIOD ? elements : BENCH_PERIOD;
    for (uint64_t i = 0; i < first; i++)
        write_element(s->memory, dtype, i, (float)bench_element(pattern, i));
    bp_status status = copy(s, to, s->memory, first * width);
    return status == BP_OK ? repeat(s, first * width, elements * width, to) : status;
}

bp_status bench_upload(bench_staging *s, const void *from, uint64_t bytes, void *to)
{
    bp_status status = BP_OK;
    for (uint64_t done = 0; status == BP_OK && done < bytes; done += s->bytes) {
        uint64_t step = bytes - done < s->bytes ? bytes - done : s->bytes;
        memcpy(s->memory, (const uint8_t *)from + done, step);
        status = copy(s, (uint8_t *)to + done, s->memory, step);
    }
    return status;
}

bp_status bench_download(bench_staging *s, const void *from, uint64_t bytes, void *to)
{
    bp_status status = BP_OK;
    for (uint64_t done = 0; status == BP_OK && done < bytes; done += s->bytes) {
        uint64_t step = bytes - done < s->bytes ? bytes - done : s->bytes;
        status = copy(s, s->memory, (const uint8_t *)from + done, step);
        if (status == BP_OK)
            memcpy((uint8_t *)to + done, s->memory, step);
    }
    return status;
}
