/* SPDX-License-Identifier: Apache-2.0 */
/* Reference model of the planner, in the simplest code. */
#ifndef BP_TEST_NAIVE_H
#define BP_TEST_NAIVE_H

#include <bucketpool/plan.h>

#include <stdbool.h>

#include "support/scenarios.h"

typedef struct naive_request {
    uint32_t id;
    const char *unit_name;
    int32_t unit;
    uint32_t role, ordinal;
    bp_dtype dtype; /* storage dtype */
    uint64_t numel, bytes;
    const bp_interval *intervals;
    size_t interval_count;
} naive_request;

/* All requests that are ever live and not empty. */
typedef struct naive_requests {
    size_t count;
    naive_request items[MAX_REQUESTS];
} naive_requests;

void naive_collect(const scenario *s, naive_requests *all);

bool live_at(const naive_request *request, uint32_t step);

/* Reference model of bp_plan_check: every step and every block of ALIGNMENT bytes. Offsets are aligned, so requests share bytes iff they
 * share a block. */
bool naive_check(const bp_plan *plan, const scenario *s);

uint64_t naive_bound(const naive_requests *all, uint32_t steps, uint32_t role, uint32_t *first_step);

/* The copies that the units in `chosen` need in a role. */
uint32_t naive_copies(const naive_requests *all, uint32_t role, uint64_t chosen, uint32_t steps);

/* The rank of a request among those of its unit, role and storage dtype: unpadded elements, then larger ordinal first. */
uint32_t naive_rank(const naive_requests *all, const naive_request *request);

/* Bytes of max's class for `like`, and the number of its users. */
uint64_t naive_class(const naive_requests *all, const naive_request *like, uint32_t *users);

/* One buffer of each of max's classes. */
uint64_t naive_set_bytes(const naive_requests *all, uint32_t role);

/* Bit mask of fixed's pooled units: the most frequent kind, of equally frequent kinds the first. */
uint64_t naive_pooled_units(const naive_requests *all, uint32_t role);

/* Reference implementation of docs/reference/formats.md. */
void naive_fingerprint(const bp_plan *plan, char text[BP_FINGERPRINT_CHARS]);

#endif
