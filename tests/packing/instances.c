/* SPDX-License-Identifier: Apache-2.0 */
/* Instances and assertions of the packing tests. */
#include "support/harness.h"

#include "instances.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Makes room for one more element. */
static void *grown(void *array, uint32_t count, uint32_t *room, size_t element_bytes)
{
    if (count < *room)
        return array;
    *room = *room > 0 ? 2 * *room : 8;
    void *memory = realloc(array, *room * element_bytes);
    assert_non_null(memory);
    return memory;
}

uint32_t add_item(instance *in, uint64_t size)
{
    in->sizes = grown(in->sizes, in->count, &in->room, sizeof *in->sizes);
    in->sizes[in->count] = size;
    return in->count++;
}

void add_interval(instance *in, uint32_t item, uint64_t begin, uint64_t end)
{
    in->intervals = grown(in->intervals, in->interval_count, &in->interval_room, sizeof *in->intervals);
    in->intervals[in->interval_count++] = (interval){item, begin, end};
}

void add_pair(instance *in, uint32_t item, uint32_t other)
{
    in->pairs = grown(in->pairs, in->pair_count, &in->pair_room, sizeof *in->pairs);
    in->pairs[in->pair_count++] = (pair){item, other};
}

void drop_item(instance *in)
{
    in->count--;
    while (in->interval_count > 0 && in->intervals[in->interval_count - 1].item == in->count)
        in->interval_count--;
    while (in->pair_count > 0 &&
           (in->pairs[in->pair_count - 1].item == in->count || in->pairs[in->pair_count - 1].other == in->count))
        in->pair_count--;
}

instance copy_instance(const instance *in)
{
    instance copy = {0};
    for (uint32_t i = 0; i < in->count; i++)
        add_item(&copy, in->sizes[i]);
    for (uint32_t i = 0; i < in->interval_count; i++)
        add_interval(&copy, in->intervals[i].item, in->intervals[i].begin, in->intervals[i].end);
    for (uint32_t i = 0; i < in->pair_count; i++)
        add_pair(&copy, in->pairs[i].item, in->pairs[i].other);
    return copy;
}

void end_instance(instance *in)
{
    free(in->sizes);
    free(in->intervals);
    free(in->pairs);
    *in = (instance){0};
}

uint32_t add_masked_item(instance *in, uint64_t size, uint32_t steps)
{
    uint32_t item = add_item(in, size);
    for (uint32_t begin = 0; begin < 32; begin++) {
        uint32_t end = begin;
        while (end < 32 && (steps >> end & 1))
            end++;
        if (end > begin)
            add_interval(in, item, begin, end);
        begin = end;
    }
    return item;
}

bp_packing *make_packing(const instance *in)
{
    bp_packing *packing = NULL;
    assert_ok(bp_packing_create(&packing));
    for (uint32_t i = 0; i < in->count; i++) {
        size_t item = SIZE_MAX;
        assert_ok(bp_packing_add_item(packing, in->sizes[i], &item));
        assert_int_equal(item, i);
    }
    for (uint32_t i = 0; i < in->interval_count; i++)
        assert_ok(
            bp_packing_add_interval(packing, in->intervals[i].item, in->intervals[i].begin, in->intervals[i].end));
    for (uint32_t i = 0; i < in->pair_count; i++)
        assert_ok(bp_packing_add_conflict(packing, in->pairs[i].item, in->pairs[i].other));
    return packing;
}

void print_instance(const instance *in)
{
    for (uint32_t i = 0; i < in->count && i < 60; i++) {
        print_error("item %u: size %" PRIu64 ", live", i, in->sizes[i]);
        for (uint32_t k = 0; k < in->interval_count; k++)
            if (in->intervals[k].item == i)
                print_error(" [%" PRIu64 ", %" PRIu64 ")", in->intervals[k].begin, in->intervals[k].end);
        for (uint32_t k = 0; k < in->pair_count; k++)
            if (in->pairs[k].item == i || in->pairs[k].other == i)
                print_error(", conflicts with %u", in->pairs[k].item + in->pairs[k].other - i);
        print_error("\n");
    }
    print_error("%u items\n", in->count);
}

/* ---- assertions ---------------------------------------------------------------------------------------------------- */

void check_for(const instance *in, bool holds, const char *condition, const char *file, int line)
{
    if (holds)
        return;
    print_error("assertion failed: %s\n", condition);
    print_instance(in);
    _fail(file, line);
}

/* ---- random numbers ------------------------------------------------------------------------------------------------ */

/* splitmix64 */
static uint64_t random_state;

void seed(uint64_t value)
{
    random_state = value;
}

uint64_t random_below(uint64_t limit)
{
    uint64_t z = random_state += UINT64_C(0x9E3779B97F4A7C15);
    z = (z ^ z >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ z >> 27) * UINT64_C(0x94D049BB133111EB);
    return (z ^ z >> 31) % limit;
}

uint64_t random_between(uint64_t min, uint64_t max)
{
    return min + random_below(max - min + 1);
}

bool one_in(uint64_t chances)
{
    return random_below(chances) == 0;
}

instance random_instance(random_options options)
{
    instance in = {0};
    for (uint32_t i = 0; i < options.items; i++) {
        bool empty = options.empty && one_in(8), never_live = options.never_live && one_in(8);
        add_item(&in, empty ? 0 : random_between(options.min_size, options.max_size));
        for (uint64_t intervals = never_live ? 0 : random_between(1, options.intervals); intervals > 0; intervals--) {
            uint64_t begin = random_below(options.steps);
            uint64_t left = options.steps - begin, longest = options.longest;
            add_interval(&in, i, begin, begin + random_between(1, longest > 0 && longest < left ? longest : left));
        }
    }
    for (uint64_t pairs = random_below(options.pairs + 1); pairs > 0 && in.count > 1; pairs--) {
        uint32_t item = (uint32_t)random_below(in.count), other = (uint32_t)random_below(in.count);
        if (item != other)
            add_pair(&in, item, other);
    }
    return in;
}

void shuffle(uint32_t *numbers, uint32_t count)
{
    for (uint32_t i = count; i > 1; i--) {
        uint32_t other = (uint32_t)random_below(i), kept = numbers[i - 1];
        numbers[i - 1] = numbers[other];
        numbers[other] = kept;
    }
}
