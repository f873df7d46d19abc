/* SPDX-License-Identifier: Apache-2.0 */
/* Registration of a pool with the NCCL of the machine: with one rank, and with two processes that share a GPU as if they were two hosts.
 * Argument: the number of ranks. Each is a separate process. BP_TEST_NCCL names NCCL's library (libnccl.so.2).
 *
 * One GPU can show that memory is accepted, that collectives in it are right, and that everything is freed, but not that copies are saved. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <bucketpool/nccl.h>

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/driver.h"
#include "support/pools.h"

#define PIECE 256u /* bytes of a rank */
#define SKIPPED 77

typedef struct unique_id { /* the tag of the emulation: sanitizers compare the types of functions */
    char internal[128];
} unique_id;

typedef struct nccl {
    int (*ncclGetUniqueId)(unique_id *id);
    int (*ncclCommInitRank)(void **comm, int ranks, unique_id id, int rank);
    int (*ncclCommDestroy)(void *comm);
    const char *(*ncclGetLastError)(void *comm);
    bool emulated;
} nccl;

/* Shared between the ranks of a test: rank 0 writes NCCL's id, the others read it. */
typedef struct rank {
    int number, count;
    int id_pipe[2];
} rank;

static bool find_nccl(nccl *n)
{
    const char *name = getenv("BP_TEST_NCCL");
    void *library = dlopen(name != NULL && *name != '\0' ? name : "libnccl.so.2", RTLD_NOW);
    if (library == NULL) {
        printf("no NCCL: %s\n", dlerror());
        return false;
    }
    *(void **)&n->ncclGetUniqueId = dlsym(library, "ncclGetUniqueId");
    *(void **)&n->ncclCommInitRank = dlsym(library, "ncclCommInitRank");
    *(void **)&n->ncclCommDestroy = dlsym(library, "ncclCommDestroy");
    *(void **)&n->ncclGetLastError = dlsym(library, "ncclGetLastError");
    n->emulated = dlsym(library, "fake_nccl_broken") != NULL;
    return n->ncclGetUniqueId != NULL && n->ncclCommInitRank != NULL && n->ncclCommDestroy != NULL;
}

static unique_id shared_id(const rank *r, const nccl *n)
{
    unique_id id = {{0}};
    if (r->number == 0) {
        assert_int_equal(n->ncclGetUniqueId(&id), 0);
        for (int i = 1; i < r->count; i++)
            assert_int_equal(write(r->id_pipe[1], &id, sizeof id), sizeof id);
    } else
        assert_int_equal(read(r->id_pipe[0], &id, sizeof id), sizeof id);
    return id;
}

/* ---- collectives in registered memory ------------------------------------------------------------------------------ */

static void assert_gathers(kit *k, bp_comm *comm, const rank *r)
{
    char *all = take(k, param(k, 0), k->streams[0]), *mine = take(k, param(k, 1), k->streams[0]);
    check checks[2];
    assert_true(r->count <= 2);
    assert_ok(bp_stream_fill(k->streams[0], mine, (uint8_t)(0x50 + r->number), PIECE));
    assert_ok(bp_comm_all_gather(comm, mine, all, PIECE, k->streams[0]));
    for (int i = 0; i < r->count; i++) {
        checks[i] =
            (check){.address = (uint8_t *)all + (size_t)i * PIECE, .bytes = PIECE, .value = (uint8_t)(0x50 + i)};
        check_on(k->streams[0], &checks[i]);
    }
    assert_ok(bp_stream_synchronize(k->streams[0]));
    for (int i = 0; i < r->count; i++)
        assert_int_equal(checks[i].wrong, 0);
    drop(k, param(k, 0), k->streams[0]);
    drop(k, param(k, 1), k->streams[0]);
}

/* Integers whose bytes are all equal can be summed bytewise. */
static void assert_reduces(kit *k, bp_comm *comm, const rank *r)
{
    uint32_t from_id = id_of(k, 0, BP_ROLE_GRAD, 0), to_id = id_of(k, 1, BP_ROLE_GRAD, 0);
    char *from = take(k, from_id, k->streams[0]), *to = take(k, to_id, k->streams[0]);
    uint8_t sum = 0;
    for (int i = 0; i < r->count; i++)
        sum = (uint8_t)(sum + i + 1);
    assert_ok(bp_stream_fill(k->streams[0], from, (uint8_t)(r->number + 1), (uint64_t)r->count * PIECE));
    assert_ok(bp_comm_reduce_scatter(comm, from, to, PIECE / 4, BP_DTYPE_INT32, BP_REDUCE_SUM, k->streams[0]));
    check c = {.address = (uint8_t *)to, .bytes = PIECE, .value = sum};
    check_on(k->streams[0], &c);
    assert_ok(bp_stream_synchronize(k->streams[0]));
    assert_int_equal(c.wrong, 0);
    drop(k, from_id, k->streams[0]);
    drop(k, to_id, k->streams[0]);
}

/* ---- registration -------------------------------------------------------------------------------------------------- */

static void print_report(const bp_registration *registration)
{
    char text[8192];
    size_t needed = 0;
    assert_ok(bp_registration_report(registration, text, sizeof text, &needed));
    printf("%s", text);
}

static void assert_windows(const kit *k, const bp_registration *registration, bp_register_kind kind)
{
    size_t count = bp_registration_get_info(registration)->window_count;
    assert_int_equal(count, bp_pool_get_info(k->pool)->slab_count);
    for (size_t i = 0; i < count; i++) {
        const bp_registration_window window = bp_registration_get_info(registration)->windows[i];
        assert_int_equal(window.asked, kind);
        assert_true(window.granted <= kind);
        assert_true((window.handle == NULL) == (window.granted == BP_REGISTER_NONE));
        assert_true((*window.because == '\0') == (window.granted == kind));
    }
}

/* As many times as a run may: repeated registration must not use anything up. */
static void register_each_kind(kit *k, bp_comm *comm, const rank *r)
{
    for (int kind = BP_REGISTER_BUFFER; kind <= BP_REGISTER_SYMMETRIC; kind++) {
        for (int round = 0; round < 3; round++) {
            bp_registration_entry entry;
            bp_registration *registration = NULL;
            assert_ok(bp_registration_entry_init(&entry, sizeof entry));
            entry.comm = comm;
            entry.kind = (bp_register_kind)kind;
            entry.traffic = BP_TRAFFIC_GATHER | BP_TRAFFIC_REDUCE_SCATTER;
            assert_ok(bp_registration_create(k->pool, &entry, 1, &registration));
            assert_windows(k, registration, (bp_register_kind)kind);
            if (round == 0 && r->number == 0)
                print_report(registration);
            assert_gathers(k, comm, r);
            assert_reduces(k, comm, r);
            assert_ok(bp_device_synchronize(k->device));
            bp_registration_destroy(&registration);
            assert_gathers(k, comm, r); /* nor must NCCL miss it */
        }
    }
}

static int run_rank(const rank *r)
{
    nccl n;
    void *handle = NULL, *previous;
    bp_comm *comm = NULL;
    bp_nccl_config config;
    (void)driver(); /* ends the program without a GPU */
    if (!find_nccl(&n))
        return SKIPPED;
    if (n.emulated && r->count > 1) {
        printf("the emulated NCCL has all ranks in one process\n");
        return SKIPPED;
    }
    assert_int_equal(driver()->cuCtxPushCurrent(driver_context()), 0);
    int result = n.ncclCommInitRank(&handle, r->count, shared_id(r, &n), r->number);
    if (result != 0) {
        printf("NCCL refuses a communicator of %d processes on one GPU (%d): %s\n", r->count, result,
               n.ncclGetLastError != NULL ? n.ncclGetLastError(NULL) : "");
        return r->count > 1 ? SKIPPED : 1;
    }
    kit k = start_kit(new_cuda(), UNITS, TRAINING, BP_POLICY_MAX, 0);
    assert_ok(bp_nccl_config_init(&config, sizeof config));
    config.comm = handle;
    config.device = k.device;
    assert_ok(bp_comm_create_nccl(&config, &comm));
    assert_int_equal(bp_comm_get_info(comm)->rank, r->number);
    assert_int_equal(bp_comm_get_info(comm)->ranks, r->count);
    assert_gathers(&k, comm, r);
    register_each_kind(&k, comm, r);
    bp_comm_destroy(&comm);
    assert_int_equal(n.ncclCommDestroy(handle), 0);
    end_kit(&k);
    assert_int_equal(driver()->cuCtxPopCurrent(&previous), 0);
    return 0;
}

/* ---- processes ----------------------------------------------------------------------------------------------------- */

/* Hosts of different names, connected by sockets only. */
static void pretend_hosts(int number)
{
    char host[16];
    snprintf(host, sizeof host, "rank%d", number);
    setenv("NCCL_HOSTID", host, 1);
    setenv("NCCL_SOCKET_IFNAME", "lo", 1);
    setenv("NCCL_IB_DISABLE", "1", 1);
    setenv("NCCL_MNNVL_ENABLE", "0", 1);
    setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 0);
}

static pid_t start_rank(rank r)
{
    fflush(stdout);
    pid_t child = fork();
    if (child != 0)
        return child;
    if (r.count > 1)
        pretend_hosts(r.number);
    alarm(40); /* a rank whose peer has exited would wait forever */
    exit(run_rank(&r));
}

static int answer_of(pid_t child)
{
    int status;
    if (child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status))
        return 1;
    return WEXITSTATUS(status);
}

int main(int argc, char **argv)
{
    int count = argc > 1 ? atoi(argv[1]) : 1, pipe_ends[2], worst = 0;
    pid_t children[2];
    if (count < 1 || count > 2 || pipe(pipe_ends) != 0) {
        fprintf(stderr, "usage: test_registration [1 | 2]\n");
        return 2;
    }
    for (int i = 0; i < count; i++)
        children[i] = start_rank((rank){.number = i, .count = count, .id_pipe = {pipe_ends[0], pipe_ends[1]}});
    for (int i = 0; i < count; i++) {
        int answer = answer_of(children[i]);
        worst = worst == 0 || (worst == SKIPPED && answer != 0) ? answer : worst;
    }
    return worst;
}
