/* SPDX-License-Identifier: Apache-2.0 */
/* Matrices on the host and on a device, for tests of products. */
#ifndef BP_TEST_KERNELS_HEAD_MATRICES_H
#define BP_TEST_KERNELS_HEAD_MATRICES_H

#include "engine.h"

/* A matrix on the host and on the device, with gaps between its rows. */
typedef struct sheet {
    uint64_t rows, columns, bytes;
    bp_matrix matrix; /* in device memory */
    uint8_t *host;
} sheet;

typedef struct desk {
    bp_device *device;
    bp_stream *stream;
} desk;

uint64_t bytes_of(bp_dtype dtype);
/* An element of bf16, fp16 or fp32. */
double value_at(bp_dtype dtype, const uint8_t *data, uint64_t at);

/* The device under test (support/driver.h; without one the host), and a stream. */
desk new_desk(void);
void end_desk(desk *d);

/* Random numbers with magnitudes in [1/64, 1]; poison between rows. */
sheet new_sheet(const desk *d, uint64_t rows, uint64_t columns, uint64_t stride, bp_dtype dtype);
void end_sheet(const desk *d, sheet *s);
/* Copies to the device, and from it to `to`. Both are synchronous. */
void upload(const desk *d, const sheet *s);
void download(const desk *d, const sheet *s, uint8_t *to);
/* From the host's copy. */
double element(const sheet *s, uint64_t row, uint64_t column);

#endif
