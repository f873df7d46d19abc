/* SPDX-License-Identifier: Apache-2.0 */
/* Four MPI ranks with a time-out, some of which stop. The others print each error with the seconds it took, and end
 * together.
 *
 * test_timeout stopped|two|large|registration|creation|shortest|environment FOLDER RANKS_THAT_END */
#include <bucketpool/bucketpool.h>
#include <bucketpool/comm_mpi.h>

#include <mpi.h>

#include <signal.h>
#include <time.h>
#include <unistd.h>

#include "../comms/plans.h"

enum { TIMEOUT_MS = 2000, LARGE_BYTES = 300000 };

static int rank;

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

/* With one write, so that lines of ranks do not mix. */
static void report(const char *step, bp_status status, double begin)
{
    char line[768];
    int length = snprintf(line, sizeof line, "rank %d: %s: %s after %.3f s: %s\n", rank, step, bp_status_name(status),
                          now() - begin, status == BP_OK ? "" : bp_error_detail());
    if (write(STDOUT_FILENO, line, (size_t)length) != length)
        _exit(9);
}

static void must(bp_status status, const char *step)
{
    if (status != BP_OK) {
        report(step, status, now());
        _exit(8);
    }
}

/* mpirun ends all ranks once one has ended without MPI_Finalize, so ranks wait for the others' files, a minute at
 * most. */
static int end(char **argv)
{
    char path[512];
    const int count = atoi(argv[3]);
    snprintf(path, sizeof path, "%s/%d", argv[2], rank);
    FILE *file = fopen(path, "w");
    if (file == NULL || fclose(file) != 0)
        return 7;
    for (int left = 600, there = 0; there < count && left > 0; left--) {
        there = 0;
        for (int i = 0; i < 4; i++) {
            snprintf(path, sizeof path, "%s/%d", argv[2], i);
            there += access(path, F_OK) == 0;
        }
        if (there < count)
            nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
    }
    return 0; /* without MPI_Finalize */
}

/* mpirun sends SIGCONT to a stopped process before it ends it. */
static void stop(void)
{
    raise(SIGSTOP);
    for (;;)
        pause();
}

static bp_status exchange_large(bp_comm *comm)
{
    static uint8_t mine[LARGE_BYTES], all[4 * LARGE_BYTES];
    for (size_t i = 0; i < sizeof mine; i++)
        mine[i] = (uint8_t)(i * 7 + (size_t)rank);
    bp_status status = bp_comm_exchange(comm, mine, sizeof mine, all);
    for (size_t i = 0; i < sizeof all && status == BP_OK; i++)
        if (all[i] != (uint8_t)(i % sizeof mine * 7 + i / sizeof mine))
            return bp_error_record(BP_ERR_INTERNAL, "wrong bytes");
    return status;
}

static bp_status exchange_small(bp_comm *comm)
{
    uint32_t mine = (uint32_t)rank * 3, all[4];
    bp_status status = bp_comm_exchange(comm, &mine, sizeof mine, all);
    for (uint32_t i = 0; i < 4 && status == BP_OK; i++)
        if (all[i] != i * 3)
            return bp_error_record(BP_ERR_INTERNAL, "wrong numbers");
    return status;
}

static bp_status register_pool(bp_comm *comm, bp_pool *pool)
{
    bp_registration_entry entry;
    bp_registration *registration = NULL;
    must(bp_registration_entry_init(&entry, sizeof entry), "bp_registration_entry_init");
    entry.comm = comm;
    bp_status status = bp_registration_create(pool, &entry, 1, &registration);
    bp_registration_destroy(&registration);
    return status;
}

static bp_pool *make_pool(void)
{
    bp_device *device;
    bp_pool *pool;
    bp_plan *plan = plan_of(UNITS);
    bp_pool_config config;
    must(bp_device_create_host(NULL, &device), "bp_device_create_host");
    must(bp_pool_config_init(&config, sizeof config), "bp_pool_config_init");
    must(bp_pool_create(device, plan, &config, &pool), "bp_pool_create");
    return pool;
}

static uint32_t timeout_of(const char *what)
{
    const char *number = getenv("OMPI_COMM_WORLD_RANK");
    if (strcmp(what, "environment") == 0)
        return 0;
    if (strcmp(what, "shortest") == 0 && number != NULL && strcmp(number, "1") != 0)
        return BP_COMM_NO_TIMEOUT;
    return TIMEOUT_MS;
}

int main(int argc, char **argv)
{
    const char *what = argv[1];
    bp_comm *comm = NULL;
    bp_pool *pool = NULL;
    double begin;
    if (argc != 4)
        return 2;
    const int here = strcmp(what, "creation") == 0;
    if (here) { /* the caller initializes MPI */
        MPI_Init(NULL, NULL);
        MPI_Comm_rank(MPI_COMM_WORLD, &rank);
        if (rank == 2)
            stop();
    }
    begin = now();
    bp_status status = bp_comm_create_mpi(NULL, timeout_of(what), &comm);
    if (here) {
        report("creation", status, begin);
        return end(argv);
    }
    if (status == BP_ERR_INVALID_ARGUMENT) {
        report("creation", status, begin);
        return 0;
    }
    must(status, "creation");
    rank = (int)bp_comm_get_info(comm)->rank;
    must(exchange_small(comm), "exchange");
    must(exchange_large(comm), "large exchange");
    must(exchange_small(comm), "exchange");
    if (strcmp(what, "registration") == 0) {
        pool = make_pool();
        must(register_pool(comm, pool), "registration");
    }
    if (rank == 2 || (strcmp(what, "two") == 0 && rank == 0))
        stop();
    begin = now();
    status = pool != NULL                 ? register_pool(comm, pool)
             : strcmp(what, "large") == 0 ? exchange_large(comm)
                                          : exchange_small(comm);
    report("first", status, begin);
    begin = now();
    report("second", exchange_small(comm), begin);
    begin = now();
    bp_pool_destroy(&pool);
    bp_comm_destroy(&comm);
    report("end", BP_OK, begin);
    return end(argv);
}
