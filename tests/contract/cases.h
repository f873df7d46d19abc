/* Cases of the pool contract, one function each. Each runs on every allocator and every device. */
#ifndef BP_TEST_CONTRACT_CASES_H
#define BP_TEST_CONTRACT_CASES_H

#include "support/pools.h"

typedef void contract_case(const allocator_row *allocator, const device_row *device);

typedef struct named_case {
    const char *name;
    contract_case *function;
} named_case;

extern const named_case HOLD_CASES[], REQUEST_CASES[], PLACE_CASES[], REPORT_CASES[], RANDOM_CASES[],
    EDGE_CASES[]; /* each ends with a NULL */

#endif
