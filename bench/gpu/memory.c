/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of a GPU: creating and destroying a pool's slab against the driver's allocators; a sequence of layer buffers from a pool and from
 * caching allocators; offload and restore of a release group; registration with NCCL. */
#include "gpu/gpu.h"

#include <bucketpool/nccl.h>

#include <dlfcn.h>
#include <stdio.h>

#include "bench/offload.h"
#include "pools.h"

#define GIB ((uint64_t)1 << 30)
#define MIB ((uint64_t)1 << 20)

typedef struct memory {
    const gpu *gpu;
    bp_device *device;
    bp_plan *plan;
    uint64_t bytes;
    void *stream;
    const pool_fixture *fixture;
} memory;

/* ---- single allocations ---------------------------------------------------------------------------------------------- */

static void make_pool(void *user)
{
    const memory *m = user;
    bp_pool *pool;
    must(bp_pool_create(m->device, m->plan, NULL, &pool));
    bp_pool_destroy(&pool);
}

/* Times creation only. */
static double run_create(void *user, size_t pairs)
{
    const memory *m = user;
    bp_pool *pool;
    double took = 0;
    for (size_t i = 0; i < pairs; i++) {
        double begin = bench_now_ns();
        must(bp_pool_create(m->device, m->plan, NULL, &pool));
        took += bench_now_ns() - begin;
        bp_pool_destroy(&pool);
    }
    return took;
}

static void allocate_plain(void *user)
{
    const memory *m = user;
    uint64_t address;
    gpu_must(m->gpu, m->gpu->driver.cuMemAlloc(&address, m->bytes), "cuMemAlloc");
    gpu_must(m->gpu, m->gpu->driver.cuMemFree(address), "cuMemFree");
}

/* Synchronizes after each, so that the driver's pool unmaps the memory, as by default. */
static void allocate_stream_ordered(void *user)
{
    const memory *m = user;
    const bp_cuda_driver *driver = &m->gpu->driver;
    uint64_t address;
    gpu_must(m->gpu, driver->cuMemAllocAsync(&address, m->bytes, m->stream), "cuMemAllocAsync");
    gpu_must(m->gpu, driver->cuMemFreeAsync(address, m->stream), "cuMemFreeAsync");
    gpu_must(m->gpu, driver->cuStreamSynchronize(m->stream), "cuStreamSynchronize");
}

static void creation(const gpu *g, uint64_t bytes, const char *group)
{
    if (!bench_begin(group) || !gpu_has_room(g, 4 * bytes))
        return;
    memory m = {.gpu = g, .device = gpu_device(g), .plan = one_slab_plan(bytes), .bytes = bytes};
    gpu_must(g, g->driver.cuStreamCreate(&m.stream, 1), "making a stream");
    bench_turns(15);
    bench_bytes(bytes);
    bench_add_once("cuMemAlloc, cuMemFree", allocate_plain, &m, NULL, 1);
    bench_add_once("pool: create, destroy", make_pool, &m, NULL, 1);
    bench_add_run("pool: create", run_create, &m, 1);
    bench_add_once("cuMemAllocAsync, cuMemFreeAsync, synchronized", allocate_stream_ordered, &m, NULL, 1);
    bench_end();
    gpu_must(g, g->driver.cuStreamDestroy(m.stream), "destroying a stream");
    bp_plan_destroy(&m.plan);
    bp_device_destroy(&m.device);
}

/* ---- sequences of layers --------------------------------------------------------------------------------------------- */

#define TURNS 64u

/* Two layers are live at a time: allocates the next one, then frees the previous one. */
static double run_layers_of_pool(void *user, size_t pairs)
{
    const memory *m = user;
    const pool_fixture *w = m->fixture;
    double begin = bench_now_ns();
    for (size_t i = 0; i <= pairs; i++) {
        void *address;
        if (i < pairs)
            must(bp_pool_acquire(w->pool, &w->ids[i % w->count], 1, w->streams[0], &address));
        if (i > 0)
            must(bp_pool_release(w->pool, &w->ids[(i - 1) % w->count], 1, w->streams[0]));
    }
    double took = bench_now_ns() - begin;
    must(bp_stream_synchronize(w->streams[0]));
    return took;
}

static double run_layers_stream_ordered(void *user, size_t pairs)
{
    const memory *m = user;
    const bp_cuda_driver *driver = &m->gpu->driver;
    uint64_t now = 0, before = 0;
    double begin = bench_now_ns();
    for (size_t i = 0; i <= pairs; i++, before = now) {
        if (i < pairs &&
            driver->cuMemAllocAsync(&now, m->bytes, m->stream) != 0) { /* retries until freed memory is available */
            gpu_must(m->gpu, driver->cuStreamSynchronize(m->stream), "cuStreamSynchronize");
            gpu_must(m->gpu, driver->cuMemAllocAsync(&now, m->bytes, m->stream), "cuMemAllocAsync");
        }
        if (i > 0)
            gpu_must(m->gpu, driver->cuMemFreeAsync(before, m->stream), "cuMemFreeAsync");
    }
    double took = bench_now_ns() - begin;
    gpu_must(m->gpu, driver->cuStreamSynchronize(m->stream), "cuStreamSynchronize");
    return took;
}

static double run_layers_plain(void *user, size_t pairs)
{
    const memory *m = user;
    uint64_t now = 0, before = 0;
    double begin = bench_now_ns();
    for (size_t i = 0; i <= pairs; i++, before = now) {
        if (i < pairs)
            gpu_must(m->gpu, m->gpu->driver.cuMemAlloc(&now, m->bytes), "cuMemAlloc");
        if (i > 0)
            gpu_must(m->gpu, m->gpu->driver.cuMemFree(before), "cuMemFree");
    }
    return bench_now_ns() - begin;
}

/* The driver's default pool, which unmaps freed memory at the next synchronization, unless a release threshold is set. */
typedef struct default_pool {
    void *pool;
    uint64_t threshold; /* original value */
    int (*set)(void *pool, int attribute, void *value);
    int (*trim)(void *pool, size_t keep);
} default_pool;

enum { RELEASE_THRESHOLD = 4 };

/* Raises the release threshold, as frameworks do. 0: not supported by this driver. */
static int keep_freed(const gpu *g, default_pool *p)
{
    int (*find)(void **, int), (*get)(void *, int, void *), number;
    uint64_t all = UINT64_MAX;
    return gpu_symbol(g->library, "cuDeviceGetDefaultMemPool", &find, sizeof find) &&
           gpu_symbol(g->library, "cuMemPoolGetAttribute", &get, sizeof get) &&
           gpu_symbol(g->library, "cuMemPoolSetAttribute", &p->set, sizeof p->set) &&
           gpu_symbol(g->library, "cuMemPoolTrimTo", &p->trim, sizeof p->trim) &&
           g->driver.cuDeviceGet(&number, 0) == 0 && find(&p->pool, number) == 0 &&
           get(p->pool, RELEASE_THRESHOLD, &p->threshold) == 0 && p->set(p->pool, RELEASE_THRESHOLD, &all) == 0;
}

static void layers(const gpu *g, uint64_t bytes, const char *group)
{
    if (!bench_begin(group) || !gpu_has_room(g, 8 * bytes))
        return;
    pool_fixture w = pool_fixture_create(
        &(pool_fixture_options){.device = gpu_device(g), .units = 8, .buckets = 1, .bytes = bytes, .promised = 1});
    memory m = {.gpu = g, .bytes = bytes, .fixture = &w};
    default_pool pool;
    const int kept = keep_freed(g, &pool);
    gpu_must(g, g->driver.cuStreamCreate(&m.stream, 1), "making a stream");
    bench_turns(51);
    bench_bytes(bytes);
    bench_add_run("pool: acquire, release", run_layers_of_pool, &m, TURNS);
    bench_add_run(kept ? "cuMemAllocAsync, cuMemFreeAsync, freed memory kept" : "cuMemAllocAsync, cuMemFreeAsync",
                  run_layers_stream_ordered, &m, TURNS);
    bench_add_run("cuMemAlloc, cuMemFree", run_layers_plain, &m, 4);
    bench_end();
    if (kept) { /* later groups measure unmapped memory */
        gpu_must(g, pool.set(pool.pool, RELEASE_THRESHOLD, &pool.threshold), "restoring the release threshold");
        gpu_must(g, pool.trim(pool.pool, 0), "cuMemPoolTrimTo");
    }
    gpu_must(g, g->driver.cuStreamDestroy(m.stream), "destroying a stream");
    pool_fixture_destroy(&w);
}

void gpu_memory(const gpu *g)
{
    layers(g, 16 * MIB, "gpu: layers of 16 MiB in turn");
    layers(g, 256 * MIB, "gpu: layers of 256 MiB in turn");
    creation(g, 32 * MIB, "gpu: memory of 32 MiB");
    creation(g, GIB, "gpu: memory of 1 GiB");
    creation(g, 8 * GIB, "gpu: memory of 8 GiB");
}

/* ---- release groups ---------------------------------------------------------------------------------------------- */

/* Against plain copies of the same bytes to and from pinned memory: the figures of `bucketpool bench offload` where the command is not
 * built. */

#define CHUNK ((uint64_t)32 << 20)

/* Part of an offload and restore that a window times. */
typedef struct trip {
    bench_groups *groups;
    uint32_t flags;
    int back, copies;
} trip;

static double run_trip(void *user, size_t pairs)
{
    const trip *t = user;
    double took = 0;
    for (size_t i = 0; i < pairs; i++) {
        double seconds[2], copies[2];
        must(bench_groups_offload(t->groups, t->flags, &seconds[0], &copies[0]));
        must(bench_groups_restore(t->groups, &seconds[1], &copies[1]));
        took += 1e9 * (t->copies ? copies[t->back] : seconds[t->back]);
    }
    return took;
}

static double run_plain_copies(void *user, size_t pairs)
{
    const trip *t = user;
    double took = 0;
    for (size_t i = 0; i < pairs; i++) {
        double seconds;
        must(bench_groups_copy(t->groups, !t->back, &seconds));
        took += 1e9 * seconds;
    }
    return took;
}

/* Restored bytes are the original ones. */
static void check(bench_groups *groups)
{
    double seconds, copies;
    bench_groups_write(groups, 1);
    must(bench_groups_copy(groups, false, &seconds));
    must(bench_groups_offload(groups, BP_OFFLOAD_KEEP, &seconds, &copies));
    must(bench_groups_restore(groups, &seconds, &copies));
    bench_groups_write(groups, 2);
    must(bench_groups_copy(groups, true, &seconds));
    if (bench_groups_compare(groups, 1) != groups->bytes)
        must(bp_error_record(BP_ERR_INTERNAL, "restored bytes differ from the original ones"));
}

static void way(const gpu *g, int back, const char *group)
{
    const bench_offload_options options = {
        .bytes = GIB / g->divisor, .chunk_bytes = CHUNK, .groups = 1, .backing = BP_BACKING_PINNED};
    bench_groups groups;
    if (!bench_begin(group) || !gpu_has_room(g, 4 * options.bytes))
        return;
    bench_device device = {.device = gpu_device(g), .cuda = true};
    must(bp_stream_create(device.device, "bench", &device.stream));
    const bp_status status = bench_groups_init(&device, &options, &groups);
    if (status == BP_ERR_NO_HOST_MEMORY || status == BP_ERR_NO_DEVICE_MEMORY) {
        bench_skip("%s", bp_error_detail());
    } else {
        trip plain = {&groups, 0, back, 0};
        trip kept = {&groups, BP_OFFLOAD_KEEP, back, 0};
        trip copies = {&groups, BP_OFFLOAD_KEEP, back, 1};
        trip discarded = {&groups, BP_OFFLOAD_DISCARD, back, 0};
        must(status);
        check(&groups);
        bench_turns(15);
        bench_bytes(groups.bytes);
        bench_add_run("a plain copy", run_plain_copies, &plain, 1);
        bench_add_run("kept bytes: the copies alone", run_trip, &copies, 1);
        bench_add_run("kept bytes", run_trip, &kept, 1);
        bench_add_run("discarded bytes", run_trip, &discarded, 1);
        bench_end();
    }
    bench_groups_finish(&groups);
    bp_stream_destroy(&device.stream);
    bp_device_destroy(&device.device);
}

/* Skips groups that exceed the machine's memory. */
void gpu_offload(const gpu *g)
{
    way(g, 0, "gpu: offload of a group");
    way(g, 1, "gpu: restore of a group");
}

/* ---- registration with NCCL -------------------------------------------------------------------------------------- */

/* One rank: the figures are of the calls only, including the comparison between ranks before (an exchange over NCCL). */

typedef struct nccl_id {
    char internal[128];
} nccl_id;

typedef struct registering {
    bp_comm *comm;
    bp_pool *pool;
    bp_register_kind kind;
} registering;

static bp_registration *create(registering *r)
{
    bp_registration_entry entry;
    bp_registration *registration;
    must(bp_registration_entry_init(&entry, sizeof entry));
    entry.comm = r->comm;
    entry.kind = r->kind;
    must(bp_registration_create(r->pool, &entry, 1, &registration));
    return registration;
}

static void register_and_deregister(void *user)
{
    bp_registration *registration = create(user);
    bp_registration_destroy(&registration);
}

/* Times registration only. */
static double run_register(void *user, size_t pairs)
{
    double took = 0;
    for (size_t i = 0; i < pairs; i++) {
        double begin = bench_now_ns();
        bp_registration *registration = create(user);
        took += bench_now_ns() - begin;
        bp_registration_destroy(&registration);
    }
    return took;
}

/* NCCL with a communicator of one rank. */
typedef struct one_rank {
    int (*make_id)(nccl_id *), (*join)(void **, int, nccl_id, int), (*leave)(void *);
    void *handle;
    bp_device *device;
    bp_comm *comm;
} one_rank;

/* 0: no communicator, and the current group is skipped. */
static int open_rank(const gpu *g, one_rank *r)
{
    const char *name = g->nccl;
    void *library = dlopen(name, RTLD_NOW);
    nccl_id id;
    bp_nccl_config config;
    if (library == NULL) {
        bench_skip("no NCCL: %s", dlerror());
        return 0;
    }
    if (!gpu_symbol(library, "ncclGetUniqueId", &r->make_id, sizeof r->make_id) ||
        !gpu_symbol(library, "ncclCommInitRank", &r->join, sizeof r->join) ||
        !gpu_symbol(library, "ncclCommDestroy", &r->leave, sizeof r->leave)) {
        bench_skip("%s lacks NCCL functions", name);
        return 0;
    }
    if (r->make_id(&id) != 0 || r->join(&r->handle, 1, id, 0) != 0) {
        bench_skip("%s could not create a communicator of one rank", name);
        return 0;
    }
    r->device = gpu_device(g);
    must(bp_nccl_config_init(&config, sizeof config));
    config.comm = r->handle;
    config.device = r->device;
    must(bp_comm_create_nccl(&config, &r->comm));
    return 1;
}

static void measure(const one_rank *rank, uint64_t bytes)
{
    static const bp_register_kind kinds[] = {BP_REGISTER_BUFFER, BP_REGISTER_WINDOW, BP_REGISTER_SYMMETRIC};
    registering r[3];
    bp_plan *plan = one_slab_plan(bytes);
    bench_turns(15);
    bench_bytes(bytes);
    for (int i = 0; i < 3; i++) {
        char name[72];
        r[i] = (registering){.comm = rank->comm, .kind = kinds[i]};
        if (i == 0)
            must(bp_pool_create(rank->device, plan, NULL, &r[i].pool));
        else
            r[i].pool = r[0].pool;
        bp_registration *registration = create(&r[i]);
        const bp_register_kind kind = bp_registration_get_info(registration)->windows[0].granted;
        bp_registration_destroy(&registration);
        const char *granted = kind == kinds[i] ? "" : bp_register_kind_name(kind);
        snprintf(name, sizeof name, "%s: register%s%s", bp_register_kind_name(r[i].kind), *granted ? ", granted " : "",
                 granted);
        bench_add_run(name, run_register, &r[i], 1);
        snprintf(name, sizeof name, "%s: register, deregister", bp_register_kind_name(r[i].kind));
        bench_add_once(name, register_and_deregister, &r[i], NULL, 1);
    }
    bench_end();
    bp_pool_destroy(&r[0].pool);
    bp_plan_destroy(&plan);
}

static void one_size(const gpu *g, uint64_t bytes, const char *group)
{
    one_rank rank = {.handle = NULL};
    if (!bench_begin(group) || !gpu_has_room(g, 4 * bytes) || !open_rank(g, &rank))
        return;
    measure(&rank, bytes);
    bp_comm_destroy(&rank.comm);
    bp_device_destroy(&rank.device);
    if (rank.leave(rank.handle) != 0)
        fprintf(stderr, "bench: ncclCommDestroy failed\n");
}

void gpu_registration(const gpu *g)
{
    one_size(g, 32 * MIB, "nccl: slab of 32 MiB");
    one_size(g, GIB, "nccl: slab of 1 GiB");
    one_size(g, 8 * GIB, "nccl: slab of 8 GiB");
}
