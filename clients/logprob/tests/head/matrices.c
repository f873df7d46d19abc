/* SPDX-License-Identifier: Apache-2.0 */
/* Matrices of random numbers. */
#include "support/harness.h"

#include "matrices.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "devices/device.h"
#include "support/driver.h"
#include "support/pools.h"

#define POISON 0x7b /* 3e36 in bf16, 61,000 in fp16: visible in results if read */

static uint64_t randomness = 1;

static uint32_t random_bits(void)
{
    randomness = randomness * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(randomness >> 32);
}

uint64_t bytes_of(bp_dtype dtype)
{
    return dtype == BP_DTYPE_FP32 ? 4 : 2;
}

double value_at(bp_dtype dtype, const uint8_t *data, uint64_t at)
{
    uint16_t bits;
    float value;
    if (dtype == BP_DTYPE_FP32) {
        memcpy(&value, data + 4 * at, sizeof value);
        return value;
    }
    memcpy(&bits, data + 2 * at, sizeof bits);
    const int wide = dtype == BP_DTYPE_BF16 ? 7 : 10; /* fraction bits */
    const int exponent = (bits & 0x7fff) >> wide, fraction = bits & ((1 << wide) - 1);
    const int bias = dtype == BP_DTYPE_BF16 ? 127 : 15;
    const double magnitude =
        exponent == 0 ? ldexp(fraction, 1 - bias - wide) : ldexp(fraction + (1 << wide), exponent - bias - wide);
    return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

/* A number with a magnitude in [1/64, 1] and a random fraction. */
static void put_random(bp_dtype dtype, uint8_t *data, uint64_t at)
{
    const uint32_t bits = random_bits(), scale = random_bits() % 6;
    const float wide = ldexpf((float)((bits >> 8) | 0x800000), -24 - (int)scale) * ((bits & 1) != 0 ? -1.0f : 1.0f);
    const uint16_t narrow =
        (uint16_t)((bits & 0x8000) |
                   (dtype == BP_DTYPE_BF16 ? (126 - scale) << 7 | (bits & 0x7f) : (14 - scale) << 10 | (bits & 0x3ff)));
    if (dtype == BP_DTYPE_FP32)
        memcpy(data + 4 * at, &wide, sizeof wide);
    else
        memcpy(data + 2 * at, &narrow, sizeof narrow);
}

desk new_desk(void)
{
    desk d = {.device = has_driver() ? new_cuda() : new_host()};
    assert_ok(bp_stream_create(d.device, "products", &d.stream));
    return d;
}

void end_desk(desk *d)
{
    bp_stream_destroy(&d->stream);
    bp_device_destroy(&d->device);
}

void upload(const desk *d, const sheet *s)
{
    assert_ok(bp_stream_copy(d->stream, s->matrix.data, s->host, s->bytes));
    assert_ok(bp_stream_synchronize(d->stream));
}

void download(const desk *d, const sheet *s, uint8_t *to)
{
    assert_ok(bp_stream_copy(d->stream, to, s->matrix.data, s->bytes));
    assert_ok(bp_stream_synchronize(d->stream));
}

sheet new_sheet(const desk *d, uint64_t rows, uint64_t columns, uint64_t stride, bp_dtype dtype)
{
    sheet s = {rows, columns, ((rows - 1) * stride + columns) * bytes_of(dtype), {NULL, dtype, (int64_t)stride}, NULL};
    s.host = malloc(s.bytes);
    assert_non_null(s.host);
    memset(s.host, POISON, s.bytes);
    for (uint64_t r = 0; r < rows; r++)
        for (uint64_t c = 0; c < columns; c++)
            put_random(dtype, s.host, r * stride + c);
    assert_ok(bp_device_allocate(d->device, s.bytes, d->stream, &s.matrix.data));
    upload(d, &s);
    return s;
}

void end_sheet(const desk *d, sheet *s)
{
    assert_ok(bp_device_free(d->device, s->matrix.data, s->bytes, d->stream));
    free(s->host);
}

double element(const sheet *s, uint64_t row, uint64_t column)
{
    return value_at(s->matrix.dtype, s->host, row * (uint64_t)s->matrix.stride + column);
}
