/* SPDX-License-Identifier: Apache-2.0 */
/* Fixtures of the packing tests: instances as plain arrays, packings made from them, random instances, assertions. */
#ifndef BP_TEST_PACKING_INSTANCES_H
#define BP_TEST_PACKING_INSTANCES_H

#include "support/status.h"

#include <bucketpool/pack.h>

#include <stdbool.h>

typedef struct interval {
    uint32_t item;
    uint64_t begin, end;
} interval;

typedef struct pair {
    uint32_t item, other;
} pair;

typedef struct instance {
    uint64_t *sizes;
    interval *intervals;
    pair *pairs;
    uint32_t count, interval_count, pair_count;
    uint32_t room, interval_room, pair_room;
} instance;

/* Starts as {0}. */
uint32_t add_item(instance *in, uint64_t size);
void add_interval(instance *in, uint32_t item, uint64_t begin, uint64_t end);
void add_pair(instance *in, uint32_t item, uint32_t other);
/* Removes the last item, with its intervals and conflicts, which are the last ones. */
void drop_item(instance *in);
instance copy_instance(const instance *in);
void end_instance(instance *in);

/* The item is live in the steps of the bit mask, with an interval for each run of bits. */
uint32_t add_masked_item(instance *in, uint64_t size, uint32_t steps);

bp_packing *make_packing(const instance *in);
void print_instance(const instance *in);

/* ---- assertions that show the instance ----------------------------------------------------------------------------- */

#define assert_for(in, condition) check_for(in, condition, #condition, __FILE__, __LINE__)

void check_for(const instance *in, bool holds, const char *condition, const char *file, int line);

/* ---- random numbers ------------------------------------------------------------------------------------------------ */

/* Equal seeds give equal numbers on every machine. */
void seed(uint64_t value);
uint64_t random_below(uint64_t limit);
/* Inclusive on both ends. */
uint64_t random_between(uint64_t min, uint64_t max);
bool one_in(uint64_t chances);

typedef struct random_options {
    uint32_t items, steps, intervals; /* intervals: largest number of intervals of an item */
    uint32_t longest;                 /* interval, in steps; 0: unlimited */
    uint64_t min_size, max_size;
    uint32_t pairs;         /* largest number of added conflicts */
    bool empty, never_live; /* some items of size 0, some never live */
} random_options;

/* An instance of `items` items with random order, sizes and intervals. */
instance random_instance(random_options options);
void shuffle(uint32_t *numbers, uint32_t count);

#endif
