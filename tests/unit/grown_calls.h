/* The structs of the interface that may grow, each with a call that reads or fills it. */
#ifndef BP_TEST_UNIT_GROWN_CALLS_H
#define BP_TEST_UNIT_GROWN_CALLS_H

#include "../contract/support.h"

typedef struct config_row {
    const char *name;
    size_t size;
    size_t oldest;                                /* bytes of the shortest struct that the call must take */
    bp_status (*init)(void *config, size_t size); /* NULL: there is none, zeros are the defaults */
    bp_status (*call)(void *config);              /* with a struct that `init` filled: BP_OK */
} config_row;

typedef struct output_row {
    const char *name;
    size_t size, oldest;
    bp_status (*fill)(void *output);
    size_t told; /* bytes that are the same in each call */
} output_row;

extern const config_row GROWN_CONFIGS[];
extern const size_t GROWN_CONFIG_COUNT;
extern const output_row GROWN_OUTPUTS[];
extern const size_t GROWN_OUTPUT_COUNT;

/* What the calls are made with: a host device, its plan and an open pool. The tests begin and end it. */
extern kit grown;

void ok(bp_status status); /* asserted */

/* Two units, acquired and released one after the other. */
bp_model *two_units(void);
bp_buckets *buckets_of(const bp_model *model);

#endif
