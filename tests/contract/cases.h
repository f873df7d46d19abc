/* SPDX-License-Identifier: Apache-2.0 */
/* Cases of the pool contract: CASE(name) { ... } is a case. Each runs on every allocator and every device. */
#ifndef BP_TEST_CONTRACT_CASES_H
#define BP_TEST_CONTRACT_CASES_H

#include "support/pools.h"

typedef void contract_case(const allocator_row *allocator, const device_row *device);

#define CASE(name)                                                                                                     \
    static contract_case case_##name;                                                                                  \
    __attribute__((constructor)) static void add_##name(void)                                                          \
    {                                                                                                                  \
        add_case(#name, case_##name);                                                                                  \
    }                                                                                                                  \
    static void case_##name(const allocator_row *allocator, const device_row *device)

void add_case(const char *name, contract_case *function);

#endif
