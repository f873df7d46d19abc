/* SPDX-License-Identifier: Apache-2.0 */
/* Times of pinned memory on the host device, where pinning costs nothing: a planned GiB by threads of the first touch and by page size;
 * small pieces of each allocator against separate allocations.
 * Run: bench_pinned [--turns N] [--json FILE] [--date TEXT]
 *
 * Figures are nanoseconds per GiB, or per allocation and free of a small piece; "ratio" is to the first line of a table. */
#include "measure.h"

#include <bucketpool/pinned.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KIB ((uint64_t)1 << 10)
#define MIB ((uint64_t)1 << 20)

static bp_pinned_config defaults(void)
{
    bp_pinned_config config;
    must(bp_pinned_config_init(&config, sizeof config));
    return config;
}

/* ---- a GiB -------------------------------------------------------------------------------------------------------- */

static double make_gib(void *user, size_t times)
{
    double took = 0;
    for (size_t i = 0; i < times; i++) {
        void *piece;
        const double begin = bench_now_ns();
        must(bp_pinned_allocate(user, 1024 * MIB, 0, &piece));
        took += bench_now_ns() - begin;
        must(bp_pinned_free(user, piece));
    }
    return took;
}

static void measure_gib(bp_device *device)
{
    bp_pinned *pinned[4];
    static const char *const names[] = {"ordinary pages, one thread", "ordinary pages, all threads",
                                        "huge pages, one thread", "huge pages, all threads"};
    if (!bench_begin("a planned piece of 1 GiB"))
        return;
    bench_turns(5);
    for (unsigned i = 0; i < 4; i++) {
        bp_pinned_config config = defaults();
        config.no_huge_pages = i < 2;
        config.touch_threads = i % 2 == 0;
        must(bp_pinned_create(device, &config, &pinned[i]));
        bench_add_run(names[i], make_gib, pinned[i], 1);
    }
    bench_end();
    for (unsigned i = 0; i < 4; i++)
        bp_pinned_destroy(&pinned[i]);
}

/* ---- small pieces ------------------------------------------------------------------------------------------------- */

typedef struct pieces {
    bp_pinned *pinned;
    uint64_t bytes;
} pieces;

static void allocate_and_free(void *user, size_t times)
{
    const pieces *p = user;
    for (size_t i = 0; i < times; i++) {
        void *piece;
        must(bp_pinned_allocate(p->pinned, p->bytes, 0, &piece));
        must(bp_pinned_free(p->pinned, piece));
    }
}

/* Fragments a slab: allocates pieces and frees every second one. */
static void fill(bp_pinned *pinned)
{
    void *held[64];
    for (unsigned i = 0; i < 64; i++)
        must(bp_pinned_allocate(pinned, 300 * KIB, 0, &held[i]));
    for (unsigned i = 0; i < 64; i += 2)
        must(bp_pinned_free(pinned, held[i]));
}

static void measure_small(bp_device *device, uint64_t bytes)
{
    static const bp_pinned_allocator allocators[] = {BP_PINNED_PLAIN, BP_PINNED_AUTO, BP_PINNED_PLAIN};
    char group[64];
    pieces p[3];
    snprintf(group, sizeof group, "a small piece of %llu KiB", (unsigned long long)(bytes / KIB));
    if (!bench_begin(group))
        return;
    for (unsigned i = 0; i < 3; i++) {
        bp_pinned_config config = defaults();
        config.planned_bytes = i == 2 ? bytes : 2 * bytes + MIB;
        config.allocator = allocators[i];
        p[i].bytes = bytes;
        must(bp_pinned_create(device, &config, &p[i].pinned));
        bp_pinned_statistics statistics = {.size = sizeof statistics};
        must(bp_pinned_statistics_get(p[i].pinned, &statistics));
        const char *name = statistics.allocator;
        if (i < 2)
            fill(p[i].pinned);
        if (i != 1 || strcmp(name, "plain") != 0)
            bench_add(i == 2 ? "separate allocation" : name, allocate_and_free, &p[i], 0);
    }
    bench_end();
    for (unsigned i = 0; i < 3; i++)
        bp_pinned_destroy(&p[i].pinned);
}

int main(int argc, char **argv)
{
    bp_device *device;
    bench_start(argc, argv, 31, "", NULL, 0, 0);
    must(bp_device_create_host(NULL, &device));
    measure_gib(device);
    measure_small(device, 64 * KIB);
    measure_small(device, MIB);
    bp_device_destroy(&device);
    return bench_finish_groups();
}
