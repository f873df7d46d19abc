/* SPDX-License-Identifier: Apache-2.0 */
/* The pool of release groups of `bench offload`, moved through the library and by plain copies. */
#include "bench/offload.h"

#include <bucketpool/core/fail.h>

#include <stdio.h>
#include <stdlib.h>

#include "devices/memory/slab_callbacks.h"
#include "planner/from_info.h"
#include "shared/machine.h"

#define PAGE 4096u
#define PART_BYTES (UINT64_C(256) << 20)
#define UNIT "bench"

/* One slab of whole pages per group, in parts of at most PART_BYTES. */
static bp_status make_plan(bench_groups *g, uint64_t each, bp_plan_request *requests, bp_plan **plan)
{
    bp_plan_slab slabs[BENCH_OFFLOAD_MAX_GROUPS];
    for (uint32_t i = 0; i < g->count; i++) {
        snprintf(g->names[i], sizeof g->names[i], "state.%u", i);
        slabs[i] = (bp_plan_slab){.bytes = each, .group = g->names[i]};
        for (uint64_t offset = 0; offset < each; offset += PART_BYTES, g->part_count++) {
            const uint64_t bytes = each - offset < PART_BYTES ? each - offset : PART_BYTES;
            g->parts[g->part_count].bytes = bytes;
            requests[g->part_count] = (bp_plan_request){.unit = UNIT,
                                                        .ordinal = (uint32_t)g->part_count,
                                                        .role = BP_ROLE_STATE,
                                                        .dtype = BP_DTYPE_UINT8,
                                                        .placement = BP_PLACE_PLANNED,
                                                        .slab = i,
                                                        .offset = offset,
                                                        .bytes = bytes,
                                                        .used_bytes = bytes};
        }
    }
    const bp_plan_info info = {.policy = BP_POLICY_SCHEDULED,
                               .feasible = 1,
                               .stable = 1,
                               .optimal = 1,
                               .alignment = PAGE,
                               .bytes = g->bytes,
                               .lower_bound_bytes = g->bytes,
                               .request_count = g->part_count,
                               .requests = requests,
                               .slab_count = g->count,
                               .slabs = slabs};
    return bp_plan_from_info(&info, plan);
}

static bp_status note_mapped(void *user, uint32_t slab, void *address, uint64_t bytes)
{
    bench_groups *g = user;
    (void)slab, (void)address, (void)bytes;
    if (g->mapped <= 0)
        g->mapped = machine_seconds();
    return BP_OK;
}

static void note_unmapped(void *user, uint32_t slab, void *address, uint64_t bytes)
{
    (void)user, (void)slab, (void)address, (void)bytes;
}

/* Called on a thread of the device. */
static void note_copied(void *user, const char *group, uint64_t copied_bytes, uint64_t bytes)
{
    bench_groups *g = user;
    (void)group, (void)copied_bytes, (void)bytes;
    atomic_store(&g->copied_ns, (uint64_t)(1e9 * machine_seconds()));
}

static bp_status make_pool(bench_groups *g, uint64_t each)
{
    static const bp_slab_callbacks callbacks = {.attach = note_mapped, .detach = note_unmapped};
    const size_t parts = (size_t)(g->count * ((each + PART_BYTES - 1) / PART_BYTES));
    bp_plan *plan = NULL;
    bp_plan_request *requests = calloc(parts, sizeof *requests);
    g->parts = calloc(parts, sizeof *g->parts);
    bp_status status = BP_OK;
    if (g->parts == NULL || requests == NULL)
        status = bp_fail(BP_ERR_NO_HOST_MEMORY, "out of memory for the parts of groups");
    if (status == BP_OK)
        status = make_plan(g, each, requests, &plan);
    if (status == BP_OK)
        status = bp_pool_create(g->device->device, plan, NULL, &g->pool);
    bp_plan_destroy(&plan);
    free(requests);
    if (status != BP_OK)
        return status;
    BP_TRY(bp_pool_attach(g->pool, &callbacks, g));
    for (uint32_t i = 0; i < g->part_count; i++) {
        void *address = NULL;
        BP_TRY(bp_pool_acquire(g->pool, &i, 1, g->device->stream, &address));
        g->parts[i].address = address;
    }
    return BP_OK;
}

bp_status bench_groups_init(const bench_device *device, const bench_offload_options *options, bench_groups *g)
{
    *g = (bench_groups){.device = device, .count = options->groups};
    const uint64_t each = (options->bytes / options->groups + PAGE - 1) / PAGE * PAGE;
    g->bytes = each * options->groups;
    /* the buffer and the kept contents; on the host also the groups */
    uint64_t max = machine_available_bytes(), needed = (device->cuda ? 2 : 3) * g->bytes;
    if (max != 0 && needed > max)
        return bp_fail(BP_ERR_NO_HOST_MEMORY, "%llu bytes of host memory are needed, but %llu are free",
                       (unsigned long long)needed, (unsigned long long)max);
    BP_TRY(make_pool(g, each));
    bp_offload_config config;
    void *buffer = NULL;
    BP_TRY(bp_pinned_create(device->device, NULL, &g->plain));
    BP_TRY(bp_pinned_allocate(g->plain, g->bytes, PAGE, &buffer));
    g->buffer = buffer;
    BP_TRY(bp_pinned_create(device->device, NULL, &g->kept));
    BP_TRY(bp_offload_config_init(&config, sizeof config));
    config.pinned = g->kept;
    config.backing = options->backing;
    config.chunk_bytes = options->chunk_bytes;
    config.progress = note_copied;
    config.user = g;
    return bp_offload_create(g->pool, &config, &g->offload);
}

void bench_groups_finish(bench_groups *g)
{
    bp_offload_destroy(&g->offload);
    bp_pool_destroy(&g->pool);
    (void)bp_pinned_free(g->plain, g->buffer);
    bp_pinned_destroy(&g->plain);
    bp_pinned_destroy(&g->kept);
    free(g->parts);
}

/* ---- offload and restore ----------------------------------------------------------------------------------------- */

/* Begins all groups before finishing any. */
static bp_status move(bench_groups *g, bool back, uint32_t flags, double *seconds, double *copies)
{
    double begin = machine_seconds();
    for (uint32_t i = 0; i < g->count; i++)
        BP_TRY(back ? bp_restore_begin(g->offload, g->names[i], flags)
                    : bp_offload_begin(g->offload, g->names[i], flags));
    for (uint32_t i = 0; i < g->count; i++)
        BP_TRY(back ? bp_restore_finish(g->offload, g->names[i]) : bp_offload_finish(g->offload, g->names[i]));
    *seconds = machine_seconds() - begin;
    *copies = 1e-9 * (double)atomic_load(&g->copied_ns) - (back ? g->mapped : begin);
    return BP_OK;
}

bp_status bench_groups_offload(bench_groups *g, uint32_t flags, double *seconds, double *copies)
{
    return move(g, false, flags, seconds, copies);
}

bp_status bench_groups_restore(bench_groups *g, double *seconds, double *copies)
{
    g->mapped = 0;
    return move(g, true, BP_RESTORE_LEAVE, seconds, copies);
}

bp_status bench_groups_copy(bench_groups *g, bool out, double *seconds)
{
    uint8_t *at = g->buffer;
    double begin = machine_seconds();
    for (size_t i = 0; i < g->part_count; at += g->parts[i++].bytes) {
        const bench_part *part = &g->parts[i];
        BP_TRY(bp_stream_copy(g->device->stream, out ? at : part->address, out ? part->address : at, part->bytes));
    }
    BP_TRY(bp_stream_synchronize(g->device->stream));
    *seconds = machine_seconds() - begin;
    return BP_OK;
}

/* ---- bytes ------------------------------------------------------------------------------------------------------- */

/* Distinct words: multiplication by an odd number is a permutation. */
static uint64_t word_at(uint64_t index, uint64_t turn)
{
    return (index + (turn << 48)) * UINT64_C(0x9e3779b97f4a7c15);
}

void bench_groups_write(bench_groups *g, uint64_t turn)
{
    uint64_t *words = (uint64_t *)(void *)g->buffer;
    for (uint64_t i = 0; i < g->bytes / sizeof *words; i++)
        words[i] = word_at(i, turn);
}

uint64_t bench_groups_compare(const bench_groups *g, uint64_t turn)
{
    const uint64_t *words = (const uint64_t *)(const void *)g->buffer;
    for (uint64_t i = 0; i < g->bytes / sizeof *words; i++) {
        const uint64_t different = words[i] ^ word_at(i, turn);
        const uint8_t *bytes = (const uint8_t *)&different;
        for (size_t k = 0; different != 0 && k < sizeof different; k++) {
            if (bytes[k] != 0)
                return i * sizeof different + k;
        }
    }
    return g->bytes;
}
