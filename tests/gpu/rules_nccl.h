/* SPDX-License-Identifier: Apache-2.0 */
/* A function for each rule: HOLDS, FAILS or SKIPPED. */
#ifndef BP_TEST_RULES_NCCL_H
#define BP_TEST_RULES_NCCL_H

#include "nccl_api.h"

#define RULE(id, sentence, source) int id(rule_rank *r);
FAKE_NCCL_RULES(RULE)
#undef RULE

#endif
