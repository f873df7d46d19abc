/* SPDX-License-Identifier: Apache-2.0 */
/* The MPI communicator between the processes of the job. Argument: the side that initializes MPI, "library" or
 * "caller". */
#include <bucketpool/comm_mpi.h>

#include <mpi.h>

#include "comms/numbers.h"
#include "support/pools.h"

static bool by_caller;
static bp_comm *everybody;
static uint32_t rank, ranks;
static bp_device *device;
static bp_stream *stream;

static bool is_started(void)
{
    int started = 0;
    MPI_Initialized(&started);
    return started != 0;
}

static bool is_over(void)
{
    int over = 0;
    MPI_Finalized(&over);
    return over != 0;
}

TEST(start)
{
    assert_int_equal(is_started(), by_caller);
    assert_fails(bp_comm_create_mpi(NULL, 0, NULL), BP_ERR_INVALID_ARGUMENT, "NULL");
    assert_ok(bp_comm_create_mpi(NULL, 0, &everybody));
    assert_true(is_started());
    int expected_rank, expected_ranks;
    MPI_Comm_rank(MPI_COMM_WORLD, &expected_rank);
    MPI_Comm_size(MPI_COMM_WORLD, &expected_ranks);
    rank = bp_comm_get_info(everybody)->rank;
    ranks = bp_comm_get_info(everybody)->ranks;
    assert_int_equal(rank, expected_rank);
    assert_int_equal(ranks, expected_ranks);
    assert_string_equal(bp_comm_get_info(everybody)->name, "mpi");
    MPI_Comm null = MPI_COMM_NULL;
    bp_comm *none = NULL;
    assert_fails(bp_comm_create_mpi(&null, 0, &none), BP_ERR_INVALID_ARGUMENT, "MPI_COMM_NULL");
    assert_false(is_over());
}

TEST(exchange)
{
    uint32_t mine[3] = {rank, rank * 7, 99}, *all = calloc(ranks, sizeof mine);
    assert_non_null(all);
    assert_ok(bp_comm_exchange(everybody, mine, sizeof mine, all));
    for (uint32_t i = 0; i < ranks; i++)
        assert_true(all[3 * i] == i && all[3 * i + 1] == 7 * i && all[3 * i + 2] == 99);
    free(all);
}

/* Communicators of the ranks in reverse order, and of half of them. */
TEST(other_communicators)
{
    MPI_Comm reversed, part;
    bp_comm *comm = NULL;
    MPI_Comm_split(MPI_COMM_WORLD, 0, (int)(ranks - rank), &reversed);
    assert_ok(bp_comm_create_mpi(&reversed, 0, &comm));
    MPI_Comm_free(&reversed); /* the library has a duplicate */
    assert_int_equal(bp_comm_get_info(comm)->rank, ranks - 1 - rank);
    uint32_t all[64];
    assert_ok(bp_comm_exchange(comm, &rank, sizeof rank, all));
    for (uint32_t i = 0; i < ranks; i++)
        assert_int_equal(all[i], ranks - 1 - i);
    bp_comm_destroy(&comm);
    MPI_Comm_split(MPI_COMM_WORLD, (int)rank % 2, (int)rank, &part);
    assert_ok(bp_comm_create_mpi(&part, 0, &comm));
    assert_int_equal(bp_comm_get_info(comm)->ranks, ranks / 2 + (ranks % 2 != 0 && rank % 2 == 0));
    assert_ok(bp_comm_abort(comm));
    assert_fails(bp_comm_exchange(comm, &rank, sizeof rank, all), BP_ERR_INVALID_ARGUMENT, "was aborted");
    bp_comm_destroy(&comm);
    MPI_Comm_free(&part);
    assert_false(is_over());
}

/* ---- collectives ---------------------------------------------------------------------------------------------------- */

#define COUNT 37

static void check_reductions(bp_dtype dtype, bp_reduction reduction)
{
    const size_t bytes = element_bytes(dtype);
    size_t total = (size_t)COUNT * ranks;
    uint8_t *from = calloc(total, bytes), *to = calloc(total, bytes), *expected = calloc(total, bytes);
    assert_true(from != NULL && to != NULL && expected != NULL);
    for (size_t i = 0; i < total; i++) {
        put_number(from, i, dtype, number_at(rank, i));
        put_number(expected, i, dtype, reduced_number(ranks, i, reduction));
    }
    const uint8_t *block = expected + rank * COUNT * bytes;
    assert_ok(bp_comm_reduce_scatter(everybody, from, to, COUNT, dtype, reduction, stream));
    assert_memory_equal(to, block, COUNT * bytes);
    assert_ok(bp_comm_all_reduce(everybody, from, to, total, dtype, reduction, stream));
    assert_memory_equal(to, expected, total * bytes);
    memcpy(to, from, total * bytes); /* in place */
    assert_ok(bp_comm_reduce_scatter(everybody, to, to + rank * COUNT * bytes, COUNT, dtype, reduction, stream));
    assert_memory_equal(to + rank * COUNT * bytes, block, COUNT * bytes);
    assert_ok(bp_comm_all_reduce(everybody, from, from, total, dtype, reduction, stream));
    assert_memory_equal(from, expected, total * bytes);
    free(from);
    free(to);
    free(expected);
}

TEST(reductions)
{
    for (size_t d = 0; d < SERVED_COUNT; d++)
        for (int reduction = BP_REDUCE_SUM; reduction <= BP_REDUCE_MIN; reduction++)
            check_reductions(SERVED[d], (bp_reduction)reduction);
    uint8_t bytes[64] = {0};
    assert_fails(bp_comm_all_reduce(everybody, bytes, bytes, 8, BP_DTYPE_FP8_E4M3, BP_REDUCE_SUM, stream),
                 BP_ERR_UNSUPPORTED, "fp8_e4m3");
    assert_fails(bp_comm_all_reduce(everybody, bytes, bytes, 8, BP_DTYPE_FP32, (bp_reduction)9, stream),
                 BP_ERR_INVALID_ARGUMENT, "reduction 9");
}

/* bf16 has 8 significant bits: 256 + 1 rounds, at each step. */
TEST(halves_round)
{
    uint16_t from = 0, to = 0;
    put_number(&from, 0, BP_DTYPE_BF16, rank == 0 ? 256 : 1);
    assert_ok(bp_comm_all_reduce(everybody, &from, &to, 1, BP_DTYPE_BF16, BP_REDUCE_SUM, stream));
    uint32_t bits = (uint32_t)to << 16;
    float sum;
    memcpy(&sum, &bits, sizeof sum);
    assert_true(sum >= 256 && sum <= 260);
}

TEST(gathers)
{
    uint8_t mine[100], *all = calloc(ranks, sizeof mine);
    assert_non_null(all);
    memset(mine, (int)rank + 1, sizeof mine);
    for (int in_place = 0; in_place < 2; in_place++) {
        memset(all, 0, ranks * sizeof mine);
        uint8_t *from = in_place ? memcpy(all + rank * sizeof mine, mine, sizeof mine) : mine;
        assert_ok(bp_comm_all_gather(everybody, from, all, sizeof mine, stream));
        for (size_t i = 0; i < ranks * sizeof mine; i++)
            assert_int_equal(all[i], i / sizeof mine + 1);
    }
    assert_ok(bp_comm_all_gather(everybody, NULL, NULL, 0, stream));
    free(all);
}

/* Collectives wait for the earlier work of the stream. */
TEST(stream_order)
{
    int32_t value = -1, sum = 0;
    for (int round = 0; round < 20; round++) {
        int32_t next = round + (int32_t)rank;
        assert_ok(bp_stream_copy(stream, &value, &next, sizeof next));
        assert_ok(bp_comm_all_reduce(everybody, &value, &sum, 1, BP_DTYPE_INT32, BP_REDUCE_SUM, stream));
        assert_int_equal(sum, (int32_t)ranks * round + (int32_t)(ranks * (ranks - 1) / 2));
    }
}

/* ---- registration --------------------------------------------------------------------------------------------------- */

static kit open_with(const char *units)
{
    kit k = start_kit(new_host(), units, TRAINING, BP_POLICY_SCHEDULED, 0);
    return k;
}

TEST(registration)
{
    KIT k = open_with(UNITS);
    bp_registration_entry entry;
    bp_registration *registration = NULL;
    assert_ok(bp_registration_entry_init(&entry, sizeof entry));
    entry.comm = everybody;
    assert_ok(bp_registration_create(k.pool, &entry, 1, &registration));
    const bp_registration_window window = bp_registration_get_info(registration)->windows[0];
    assert_int_equal(window.asked, BP_REGISTER_SYMMETRIC);
    assert_int_equal(window.granted, BP_REGISTER_NONE);
    assert_non_null(strstr(window.because, "mpi"));
    bp_registration_destroy(&registration);
}

/* The last rank has another plan: all name it; with two ranks they name rank 0. */
TEST(plans_differ)
{
    if (ranks == 1)
        return;
    KIT k = open_with(rank == ranks - 1 ? "500 500 500 500" : UNITS);
    bp_registration_entry entry;
    bp_registration *registration = NULL;
    assert_ok(bp_registration_entry_init(&entry, sizeof entry));
    entry.comm = everybody;
    char named[64], mine[64] = "", *all = calloc(ranks, 512);
    assert_non_null(all);
    snprintf(named, sizeof named, "rank %u of communicator mpi has the plan with", ranks - 1);
    snprintf(mine, sizeof mine, "%.60s", bp_pool_get_info(k.pool)->fingerprint);
    assert_fails(bp_registration_create(k.pool, &entry, 1, &registration), BP_ERR_MISMATCH, named, mine);
    char detail[512] = "";
    snprintf(detail, sizeof detail, "%s", bp_error_detail());
    assert_ok(bp_comm_exchange(everybody, detail, sizeof detail, all));
    for (uint32_t i = 0; i < ranks; i++)
        assert_string_equal(all + 512 * (size_t)i, detail);
    assert_null(registration);
    free(all);
}

TEST(end)
{
    bp_comm *second = NULL;
    assert_ok(bp_comm_create_mpi(NULL, 0, &second));
    bp_comm_destroy(&everybody);
    assert_false(is_over());
    bp_comm_destroy(&second);
    assert_int_equal(is_over(), !by_caller);
    if (by_caller) {
        assert_ok(bp_comm_create_mpi(NULL, 0, &second));
        MPI_Finalize();
        bp_comm_destroy(&second); /* a caller may destroy it before MPI_Finalize: nothing is left to free */
    }
    assert_fails(bp_comm_create_mpi(NULL, 0, &second), BP_ERR_INVALID_ARGUMENT, "finalized");
    assert_null(second);
}

int main(int argc, char **argv)
{
    by_caller = argc > 1 && strcmp(argv[1], "caller") == 0;
    if (by_caller)
        MPI_Init(&argc, &argv);
    device = new_slow_host(300, 7);
    if (bp_stream_create(device, "work", &stream) != BP_OK)
        return 1;
    int failed = run_suite();
    bp_stream_destroy(&stream);
    bp_device_destroy(&device);
    if (failed != 0 && is_started() && !is_over())
        MPI_Abort(MPI_COMM_WORLD, 1); /* other processes may be waiting */
    return failed != 0;
}
