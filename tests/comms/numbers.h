/* Elements of collectives, and what a serial reduction makes of them. */
#ifndef BP_TEST_NUMBERS_H
#define BP_TEST_NUMBERS_H

#include <bucketpool/comm.h>

#include <stddef.h>

/* The types that collectives serve. */
extern const bp_dtype SERVED[];
extern const size_t SERVED_COUNT;

/* Element i of a rank's data: small whole numbers, so that sums are exact in every type and order. */
int number_at(uint32_t rank, size_t i);
size_t element_bytes(bp_dtype dtype);
void put_number(void *memory, size_t i, bp_dtype dtype, int value);
/* The element as a number, and whether it is exactly `value`. */
int has_number(const void *memory, size_t i, bp_dtype dtype, int value);
/* Of element i of all ranks. */
int reduced_number(uint32_t ranks, size_t i, bp_reduction reduction);

#endif
