/* SPDX-License-Identifier: Apache-2.0 */
/* The growable structs of the interface, each with a call that reads or fills it. */
#ifndef BP_TEST_UNIT_GROWN_CALLS_H
#define BP_TEST_UNIT_GROWN_CALLS_H

#include "support/pools.h"

typedef struct config_row {
    const char *name;
    size_t size;
    size_t oldest;                                /* bytes of the shortest supported struct */
    bp_status (*init)(void *config, size_t size); /* NULL: no init function, zeros are the defaults */
    bp_status (*call)(void *config);              /* returns BP_OK for a struct that `init` filled */
} config_row;

typedef struct output_row {
    const char *name;
    size_t size, oldest;
    bp_status (*fill)(void *output);
    size_t told; /* leading bytes that every call fills equally */
} output_row;

extern const config_row GROWN_CONFIGS[];
extern const size_t GROWN_CONFIG_COUNT;
extern const output_row GROWN_OUTPUTS[];
extern const size_t GROWN_OUTPUT_COUNT;

/* Fixture of the calls: a host device, a plan and an open pool. The tests set it up and tear it down. */
extern kit grown;
/* A recording of two units, acquired and released in sequence. */
bp_model *two_units(void);
bp_buckets *buckets_of(const bp_model *model);

#endif
