/* SPDX-License-Identifier: Apache-2.0 */
/* Device copies of a head case's tensors, where the host cannot access device memory. */
#ifndef BP_TEST_KERNELS_HEAD_DEVICE_TENSORS_H
#define BP_TEST_KERNELS_HEAD_DEVICE_TENSORS_H

#include "base.h"
#include "head_cases.h"

/* On the device, and the host copies for filling and checking. */
typedef struct device_tensors {
    head_values v;
    head_tensors here, there;
    bp_workspace memory;
    uint8_t *base;
    bp_stream *stream;
} device_tensors;

/* Must not be moved. Columns [first, first + columns) of the vocabulary. Asserts. */
void begin_device_tensors(device_tensors *w, bp_device *device, const head_case *c, uint64_t first, uint64_t columns);
void end_device_tensors(device_tensors *w);
/* To the device, or back; synchronous. */
void copy_device_tensors(device_tensors *w, bool back);
/* Restores the initial contents. */
void reset_device_tensors(device_tensors *w);
/* Prints errors. */
bool matches_reference(device_tensors *w);

#endif
