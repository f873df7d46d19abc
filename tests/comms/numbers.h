/* SPDX-License-Identifier: Apache-2.0 */
/* Input elements of collectives, and the results of a serial reduction. */
#ifndef BP_TEST_NUMBERS_H
#define BP_TEST_NUMBERS_H

#include <bucketpool/comm.h>

#include <stddef.h>

/* The dtypes that collectives support. */
extern const bp_dtype SERVED[];
extern const size_t SERVED_COUNT;

/* Element i of a rank's data: a small integer, so that sums are exact in every dtype and order. */
int number_at(uint32_t rank, size_t i);
size_t element_bytes(bp_dtype dtype);
void put_number(void *memory, size_t i, bp_dtype dtype, int value);
/* True if the element is exactly `value`. */
int has_number(const void *memory, size_t i, bp_dtype dtype, int value);
/* The serial reduction of element i over all ranks. */
int reduced_number(uint32_t ranks, size_t i, bp_reduction reduction);

#endif
