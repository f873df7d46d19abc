/* What registering a pool's slab with NCCL takes, and taking it back. One rank: the figures are of the calls, and say nothing about copies
 * saved. Includes what ranks compare before (an exchange over NCCL). */
#include "bench/gpu/gpu.h"
#include "bench/measure.h"
#include "bench/pools.h"

#include <bucketpool/nccl.h>

#include <dlfcn.h>
#include <stdio.h>

#define GIB ((uint64_t)1 << 30)
#define MIB ((uint64_t)1 << 20)

typedef struct nccl_id {
    char internal[128];
} nccl_id;

typedef struct registering {
    bp_device *device;
    bp_comm *comm;
    bp_pool *pool;
    bp_register_kind kind, granted;
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

static double run_both(void *user, size_t pairs)
{
    double begin = bench_now_ns();
    for (size_t i = 0; i < pairs; i++) {
        bp_registration *registration = create(user);
        bp_registration_destroy(&registration);
    }
    return bench_now_ns() - begin;
}

/* Without taking it back. */
static double run_create(void *user, size_t pairs)
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

static void find_granted(registering *r)
{
    bp_registration *registration = create(r);
    r->granted = bp_registration_get_info(registration)->windows[0].granted;
    bp_registration_destroy(&registration);
}

/* ---- groups -------------------------------------------------------------------------------------------------------- */

/* NCCL with a communicator of one rank. */
typedef struct one_rank {
    int (*make_id)(nccl_id *), (*join)(void **, int, nccl_id, int), (*leave)(void *);
    void *handle;
    bp_device *device;
    bp_comm *comm;
} one_rank;

/* 0: there is none, and the group that has begun is skipped. */
static int open_rank(const gpu *g, const char *nccl, one_rank *r)
{
    const char *name = nccl != NULL ? nccl : "libnccl.so.2";
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
        bench_skip("%s lacks functions of NCCL", name);
        return 0;
    }
    if (r->make_id(&id) != 0 || r->join(&r->handle, 1, id, 0) != 0) {
        bench_skip("%s makes no communicator of one rank", name);
        return 0;
    }
    r->device = gpu_device(g);
    must(bp_nccl_config_init(&config, sizeof config));
    config.comm = r->handle;
    config.device = r->device;
    must(bp_comm_create_nccl(&config, &r->comm));
    return 1;
}

static void close_rank(one_rank *r)
{
    bp_comm_destroy(&r->comm);
    bp_device_destroy(&r->device);
    if (r->leave(r->handle) != 0)
        fprintf(stderr, "bench: ncclCommDestroy failed\n");
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
        r[i] = (registering){.device = rank->device, .comm = rank->comm, .kind = kinds[i]};
        if (i == 0)
            must(bp_pool_create(rank->device, plan, NULL, &r[i].pool));
        else
            r[i].pool = r[0].pool;
        find_granted(&r[i]);
        const char *granted = r[i].granted == r[i].kind ? "" : bp_register_kind_name(r[i].granted);
        snprintf(name, sizeof name, "%s: register%s%s", bp_register_kind_name(r[i].kind), *granted ? ", granted " : "",
                 granted);
        bench_add_run(name, run_create, &r[i], 1);
        snprintf(name, sizeof name, "%s: register, deregister", bp_register_kind_name(r[i].kind));
        bench_add_run(name, run_both, &r[i], 1);
    }
    bench_end();
    bp_pool_destroy(&r[0].pool);
    bp_plan_destroy(&plan);
}

static void one_size(const gpu *g, const char *nccl, uint64_t bytes, const char *group)
{
    one_rank rank = {.handle = NULL};
    if (!bench_begin(group) || !gpu_has_room(g, 4 * bytes) || !open_rank(g, nccl, &rank))
        return;
    measure(&rank, bytes);
    close_rank(&rank);
}

void gpu_registration(const gpu *g, const char *nccl)
{
    one_size(g, nccl, 32 * MIB, "nccl: slab of 32 MiB");
    one_size(g, nccl, GIB, "nccl: slab of 1 GiB");
    one_size(g, nccl, 8 * GIB, "nccl: slab of 8 GiB");
}
