/* SPDX-License-Identifier: Apache-2.0 */
/* Instances as schedules make them: chains of units in which each conflicts with the next few, forward and backward. */
#include "support/harness.h"

#include "answers.h"

#include <stdlib.h>

typedef struct chain_options {
    uint32_t units, buckets; /* buckets: largest number per unit */
    uint32_t ahead;          /* each unit conflicts with this many after it */
    uint32_t kinds;          /* number of different units; 0: all differ */
    uint32_t passes;         /* 1: forward; 2: forward, backward; 3: forward, backward, forward */
    bool turned;             /* the last units stay live from forward to backward */
    uint64_t unit_bytes;     /* sizes are multiples of it */
} chain_options;

/* Sizes of hybrid models: some kinds of units are many times larger than others. */
static void add_unit(instance *in, chain_options options, uint32_t kind)
{
    uint64_t kept = random_below(UINT64_MAX);
    seed(kind);
    uint64_t max = one_in(3) ? 1000 : 50, buckets = random_between(1, options.buckets);
    for (uint64_t i = 0; i < buckets; i++)
        add_item(in, options.unit_bytes * random_between(1, max));
    seed(kept);
}

/* The items of unit u are first[u] .. first[u + 1] - 1. */
static instance make_chain(chain_options options, uint32_t *first)
{
    instance in = {0};
    uint64_t length = options.units + (options.turned ? 0 : options.ahead);
    for (uint32_t u = 0; u < options.units; u++) {
        first[u] = in.count;
        add_unit(&in, options, options.kinds > 0 ? (uint32_t)random_below(options.kinds) : 1000 + u);
        for (uint32_t item = first[u]; item < in.count; item++) {
            for (uint32_t pass = 0; pass < options.passes; pass++) {
                uint64_t begin = pass * length + (pass % 2 == 0 ? u : options.units - 1 - u);
                uint64_t end = begin + options.ahead + 1;
                bool last = options.turned && pass + 1 < options.passes;
                add_interval(&in, item, begin, last && end > (pass + 1) * length ? (pass + 1) * length : end);
            }
        }
    }
    first[options.units] = in.count;
    return in;
}

static int by_size(const void *left, const void *right)
{
    uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;
    return (a < b) - (a > b);
}

/* Sum of the `count` largest units: the bytes of that many buffers. */
static uint64_t sum_of_largest(const instance *in, const uint32_t *first, uint32_t units, uint32_t count)
{
    uint64_t *sizes = calloc(units, sizeof *sizes), sum = 0;
    assert_non_null(sizes);
    for (uint32_t u = 0; u < units; u++)
        for (uint32_t item = first[u]; item < first[u + 1]; item++)
            sizes[u] += in->sizes[item];
    qsort(sizes, units, sizeof *sizes, by_size);
    for (uint32_t i = 0; i < count && i < units; i++)
        sum += sizes[i];
    free(sizes);
    return sum;
}

static chain_options random_chain(uint32_t max_units, uint32_t ahead)
{
    return (chain_options){.units = (uint32_t)random_between(1, max_units),
                           .buckets = (uint32_t)random_between(1, 4),
                           .ahead = ahead,
                           .kinds = one_in(3) ? 0 : (uint32_t)random_between(1, 5),
                           .passes = (uint32_t)random_between(1, 3),
                           .turned = one_in(2),
                           .unit_bytes = one_in(2) ? 1 : 131072};
}

static void try_chain(chain_options options, uint64_t work)
{
    uint32_t *first = calloc(options.units + 1, sizeof *first);
    assert_non_null(first);
    instance in = make_chain(options, first);
    bp_pack_config config = new_config();
    config.work = work;
    answer a = solve(&in, config);
    if (options.ahead == 1)
        assert_for(&in, a.result.optimal == 1 && a.result.bytes == a.result.bound);
    assert_for(&in, a.result.bytes <= sum_of_largest(&in, first, options.units, options.ahead + 1));
    end_answer(&a);
    end_instance(&in);
    free(first);
}

TEST(test_ahead_1)
{
    seed(1);
    for (int i = 0; i < 300; i++)
        try_chain(random_chain(60, 1), 0);
}

TEST(test_ahead_1_long)
{
    seed(2);
    for (uint32_t kinds = 0; kinds <= 4; kinds += 2)
        try_chain(
            (chain_options){.units = 800, .buckets = 4, .ahead = 1, .kinds = kinds, .passes = 2, .unit_bytes = 256}, 0);
    try_chain((chain_options){.units = 2000, .buckets = 1, .ahead = 1, .passes = 2, .turned = true, .unit_bytes = 1},
              0);
}

TEST(test_ahead_2)
{
    seed(4);
    for (int i = 0; i < 80; i++)
        try_chain(random_chain(40, 2), 3000000);
    try_chain((chain_options){.units = 400, .buckets = 3, .ahead = 2, .kinds = 4, .passes = 2, .unit_bytes = 256},
              10000000);
}

TEST(test_ahead_3)
{
    seed(5);
    for (int i = 0; i < 80; i++)
        try_chain(random_chain(40, 3), 3000000);
    try_chain((chain_options){.units = 400, .buckets = 3, .ahead = 3, .kinds = 4, .passes = 2, .unit_bytes = 256},
              10000000);
}

TESTS(NULL, NULL)
