/* The pool of release groups that `bench offload` moves, through the library and by plain copies. */
#include "bench/command/offload.h"

#include <stdio.h>
#include <stdlib.h>

#include "memory/slab_callbacks.h"
#include "plan/from_info.h"
#include "shared/machine.h"

#define PAGE 4096u
#define PART_BYTES (UINT64_C(256) << 20)
#define UNIT "bench"

static bp_status fail_memory(void)
{
    return bp_error_record(BP_ERR_NO_HOST_MEMORY, "out of memory for the parts of groups");
}

static uint64_t group_bytes(const bench_groups *g)
{
    return g->bytes / g->count;
}

static size_t group_parts(const bench_groups *g)
{
    return (size_t)((group_bytes(g) + PART_BYTES - 1) / PART_BYTES);
}

/* ---- the plan -------------------------------------------------------------------------------------------------------------- */

static void add_group(bench_groups *g, uint32_t number, bp_plan_slab *slab, bp_plan_request *requests)
{
    snprintf(g->names[number], sizeof g->names[number], "state.%u", number);
    *slab = (bp_plan_slab){.bytes = group_bytes(g), .group = g->names[number]};
    for (uint64_t offset = 0; offset < slab->bytes; offset += PART_BYTES) {
        bench_part *part = &g->parts[g->part_count];
        part->bytes = slab->bytes - offset < PART_BYTES ? slab->bytes - offset : PART_BYTES;
        requests[g->part_count] = (bp_plan_request){.unit = UNIT,
                                                    .ordinal = (uint32_t)g->part_count,
                                                    .role = BP_ROLE_STATE,
                                                    .dtype = BP_DTYPE_UINT8,
                                                    .placement = BP_PLACE_PLANNED,
                                                    .slab = number,
                                                    .offset = offset,
                                                    .bytes = part->bytes,
                                                    .used_bytes = part->bytes};
        g->part_count++;
    }
}

static bp_status make_plan(bench_groups *g, bp_plan **plan)
{
    bp_plan_slab slabs[BENCH_OFFLOAD_MOST_GROUPS];
    bp_plan_request *requests = calloc(g->count * group_parts(g), sizeof *requests);
    if (requests == NULL)
        return fail_memory();
    for (uint32_t i = 0; i < g->count; i++)
        add_group(g, i, &slabs[i], requests);
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
    bp_status status = bp_plan_from_info(&info, plan);
    free(requests);
    return status;
}

/* ---- the pool -------------------------------------------------------------------------------------------------------------- */

static bp_status hold(bench_groups *g, uint32_t id)
{
    void *address = NULL;
    bp_status status = bp_pool_acquire(g->pool, &id, 1, g->device->stream, &address);
    g->parts[id].address = address;
    return status;
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

/* On a thread of the device. */
static void note_copied(void *user, const char *group, uint64_t copied_bytes, uint64_t bytes)
{
    bench_groups *g = user;
    (void)group, (void)copied_bytes, (void)bytes;
    atomic_store(&g->copied_ns, (uint64_t)(1e9 * machine_seconds()));
}

static bp_status make_pool(bench_groups *g)
{
    static const bp_slab_callbacks callbacks = {.attach = note_mapped, .detach = note_unmapped};
    bp_plan *plan = NULL;
    g->parts = calloc(g->count * group_parts(g), sizeof *g->parts);
    if (g->parts == NULL)
        return fail_memory();
    bp_status status = make_plan(g, &plan);
    if (status == BP_OK)
        status = bp_pool_create(g->device->device, plan, NULL, &g->pool);
    bp_plan_destroy(&plan);
    if (status == BP_OK)
        status = bp_pool_attach(g->pool, &callbacks, g);
    for (uint32_t i = 0; status == BP_OK && i < g->part_count; i++)
        status = hold(g, i);
    return status;
}

static bp_status make_offload(const bench_offload_options *options, bench_groups *g)
{
    bp_offload_config config;
    void *buffer = NULL;
    bp_status status = bp_pinned_create(g->device->device, NULL, &g->plain);
    if (status == BP_OK)
        status = bp_pinned_allocate(g->plain, g->bytes, PAGE, &buffer);
    g->buffer = buffer;
    if (status == BP_OK)
        status = bp_pinned_create(g->device->device, NULL, &g->kept);
    if (status == BP_OK)
        status = bp_offload_config_init(&config, sizeof config);
    if (status != BP_OK)
        return status;
    config.pinned = g->kept;
    config.backing = options->backing;
    config.chunk_bytes = options->chunk_bytes;
    config.progress = note_copied;
    config.user = g;
    return bp_offload_create(g->pool, &config, &g->offload);
}

/* The buffer and what is kept, and on the host the groups too. */
static bp_status check_room(const bench_groups *g)
{
    uint64_t most = machine_available_bytes(), needed = (g->device->cuda ? 2 : 3) * g->bytes;
    char text[160];
    if (most == 0 || needed <= most)
        return BP_OK;
    snprintf(text, sizeof text, "%llu bytes of host memory are needed, %llu are free", (unsigned long long)needed,
             (unsigned long long)most);
    return bp_error_record(BP_ERR_NO_HOST_MEMORY, text);
}

bp_status bench_groups_init(const bench_device *device, const bench_offload_options *options, bench_groups *g)
{
    *g = (bench_groups){.device = device, .count = options->groups};
    uint64_t each = (options->bytes / options->groups + PAGE - 1) / PAGE * PAGE;
    g->bytes = each * options->groups;
    bp_status status = check_room(g);
    if (status == BP_OK)
        status = make_pool(g);
    return status == BP_OK ? make_offload(options, g) : status;
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

/* ---- away and back --------------------------------------------------------------------------------------------------------- */

static double copied_since(const bench_groups *g, double begin)
{
    return 1e-9 * (double)atomic_load(&g->copied_ns) - begin;
}

bp_status bench_groups_away(bench_groups *g, uint32_t flags, double *seconds, double *copies)
{
    bp_status status = BP_OK;
    double begin = machine_seconds();
    for (uint32_t i = 0; status == BP_OK && i < g->count; i++)
        status = bp_offload_begin(g->offload, g->names[i], flags);
    for (uint32_t i = 0; status == BP_OK && i < g->count; i++)
        status = bp_offload_finish(g->offload, g->names[i]);
    *seconds = machine_seconds() - begin;
    *copies = copied_since(g, begin);
    return status;
}

bp_status bench_groups_back(bench_groups *g, double *seconds, double *copies)
{
    bp_status status = BP_OK;
    g->mapped = 0;
    double begin = machine_seconds();
    for (uint32_t i = 0; status == BP_OK && i < g->count; i++)
        status = bp_restore_begin(g->offload, g->names[i], BP_RESTORE_LEAVE);
    for (uint32_t i = 0; status == BP_OK && i < g->count; i++)
        status = bp_restore_finish(g->offload, g->names[i]);
    *seconds = machine_seconds() - begin;
    *copies = copied_since(g, g->mapped);
    return status;
}

bp_status bench_groups_copy(bench_groups *g, bool out, double *seconds)
{
    bp_status status = BP_OK;
    uint8_t *at = g->buffer;
    double begin = machine_seconds();
    for (size_t i = 0; status == BP_OK && i < g->part_count; at += g->parts[i++].bytes) {
        const bench_part *part = &g->parts[i];
        status = bp_stream_copy(g->device->stream, out ? at : part->address, out ? part->address : at, part->bytes);
    }
    if (status == BP_OK)
        status = bp_stream_synchronize(g->device->stream);
    *seconds = machine_seconds() - begin;
    return status;
}

/* ---- bytes ------------------------------------------------------------------------------------------------------------------- */

/* Every word another one: multiplication by an odd number is a permutation. */
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
