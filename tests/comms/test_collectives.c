/* SPDX-License-Identifier: Apache-2.0 */
/* Exchanges and collectives of NCCL communicators against a serial reference. */
#include <bucketpool/comm_ops.h>

#include "device_memory.h"
#include "fakes/nccl/fake_nccl.h"
#include "numbers.h"
#include "plans.h"
#include "team.h"

#define COUNT 515

static void on_teams(team_function *function, void *user)
{
    for (uint32_t ranks = 1; ranks <= MAX_RANKS; ranks++)
        for (int over_nccl = 0; over_nccl <= 1; over_nccl++) {
            run_team(&(team_options){.ranks = ranks, .over_nccl = over_nccl}, function, user);
        }
}

/* ---- exchanges ----------------------------------------------------------------------------------------------------- */

static uint8_t byte_of(uint32_t number, uint64_t i)
{
    return (uint8_t)(number * 71 + i * 13 + (i >> 8));
}

static void exchange_sizes(rank *r, void *user)
{
    const uint64_t sizes[] = {1, 8, 4096, 0, 100003, 3};
    uint32_t ranks = bp_comm_get_info(r->comm)->ranks;
    expect(r, ranks == r->team->options.ranks && bp_comm_get_info(r->comm)->rank == r->number);
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        uint64_t bytes = sizes[s], wrong = 0;
        uint8_t *mine = malloc(bytes + 1), *all = malloc(bytes * ranks + 1);
        for (uint64_t i = 0; i < bytes; i++)
            mine[i] = byte_of(r->number, i);
        all[bytes * ranks] = 0xA5;
        expect_ok(r, bp_comm_exchange(r->comm, mine, bytes, all));
        for (uint32_t other = 0; other < ranks; other++)
            for (uint64_t i = 0; i < bytes; i++)
                wrong += all[other * bytes + i] != byte_of(other, i);
        expect(r, wrong == 0 && all[bytes * ranks] == 0xA5);
        free(mine);
        free(all);
    }
}

TEST(exchanges)
{
    on_teams(exchange_sizes, NULL);
}

/* ---- collectives --------------------------------------------------------------------------------------------------- */

typedef struct buffers {
    bp_dtype dtype;
    size_t bytes; /* for ranks * COUNT elements */
    char *host;
    char *from, *to;
} buffers;

static buffers open_buffers(rank *r, bp_dtype dtype)
{
    buffers b = {.dtype = dtype};
    b.bytes = COUNT * bp_comm_get_info(r->comm)->ranks * element_bytes(dtype);
    b.host = malloc(b.bytes);
    b.from = device_allocate(r, b.bytes);
    b.to = device_allocate(r, b.bytes);
    for (size_t i = 0; i < b.bytes / element_bytes(dtype); i++)
        put_number(b.host, i, dtype, number_at(r->number, i));
    expect_ok(r, bp_stream_copy(r->stream, b.from, b.host, b.bytes));
    expect_ok(r, bp_stream_fill(r->stream, b.to, 0x5A, b.bytes));
    return b;
}

static void close_buffers(rank *r, buffers *b)
{
    device_free(r, b->from);
    device_free(r, b->to);
    free(b->host);
}

static void fetch(rank *r, const buffers *b, const void *from)
{
    expect_ok(r, bp_stream_copy(r->stream, b->host, from, b->bytes));
    expect_ok(r, bp_stream_synchronize(r->stream));
}

static void gather_all(rank *r, void *user)
{
    for (size_t d = 0; d < SERVED_COUNT; d++) {
        buffers b = open_buffers(r, SERVED[d]);
        expect_ok(r, bp_comm_all_gather(r->comm, b.from, b.to, COUNT * element_bytes(b.dtype), r->stream));
        fetch(r, &b, b.to);
        size_t wrong = 0;
        for (uint32_t other = 0; other < bp_comm_get_info(r->comm)->ranks; other++)
            for (size_t i = 0; i < COUNT; i++)
                wrong += !has_number(b.host, other * COUNT + i, b.dtype, number_at(other, i));
        expect(r, wrong == 0);
        close_buffers(r, &b);
    }
}

TEST(all_gather)
{
    on_teams(gather_all, NULL);
}

static size_t wrong_numbers(const rank *r, const buffers *b, size_t first, size_t count, bp_reduction reduction)
{
    size_t wrong = 0;
    for (size_t i = 0; i < count; i++)
        wrong +=
            !has_number(b->host, i, b->dtype, reduced_number(bp_comm_get_info(r->comm)->ranks, first + i, reduction));
    return wrong;
}

static void reduce_all(rank *r, void *user)
{
    bool in_place = user != NULL;
    for (size_t d = 0; d < SERVED_COUNT; d++)
        for (int op = BP_REDUCE_SUM; op <= BP_REDUCE_MIN; op++) {
            buffers b = open_buffers(r, SERVED[d]);
            void *to = in_place ? b.from : b.to;
            expect_ok(r, bp_comm_all_reduce(r->comm, b.from, to, COUNT, b.dtype, (bp_reduction)op, r->stream));
            fetch(r, &b, to);
            expect(r, wrong_numbers(r, &b, 0, COUNT, (bp_reduction)op) == 0);
            close_buffers(r, &b);
        }
}

TEST(all_reduce)
{
    on_teams(reduce_all, NULL);
}

TEST(all_reduce_in_place)
{
    int in_place = 1;
    on_teams(reduce_all, &in_place);
}

static void scatter_all(rank *r, void *user)
{
    for (size_t d = 0; d < SERVED_COUNT; d++)
        for (int op = BP_REDUCE_SUM; op <= BP_REDUCE_MIN; op++) {
            buffers b = open_buffers(r, SERVED[d]);
            expect_ok(r, bp_comm_reduce_scatter(r->comm, b.from, b.to, COUNT, b.dtype, (bp_reduction)op, r->stream));
            fetch(r, &b, b.to);
            expect(r, wrong_numbers(r, &b, COUNT * r->number, COUNT, (bp_reduction)op) == 0);
            /* nothing is written past the end */
            size_t end = COUNT * element_bytes(b.dtype);
            for (size_t i = end; i < b.bytes && i < end + 64; i++)
                expect(r, b.host[i] == 0x5A);
            close_buffers(r, &b);
        }
}

TEST(reduce_scatter)
{
    on_teams(scatter_all, NULL);
}

/* A collective runs after the earlier work of its stream, without synchronization by the caller. */
static void order_work(rank *r, void *user)
{
    buffers b = open_buffers(r, BP_DTYPE_INT32);
    expect_ok(r, bp_stream_fill(r->stream, b.from, (uint8_t)(r->number + 1), 4));
    expect_ok(r, bp_comm_all_reduce(r->comm, b.from, b.to, 1, BP_DTYPE_INT32, BP_REDUCE_MAX, r->stream));
    expect_ok(r, bp_stream_fill(r->stream, b.from, 0xFF, 4));
    fetch(r, &b, b.to);
    expect(r, has_number(b.host, 0, BP_DTYPE_INT32, 0x01010101 * (int)bp_comm_get_info(r->comm)->ranks));
    close_buffers(r, &b);
}

TEST(stream_order)
{
    on_teams(order_work, NULL);
}

/* A captured collective reads memory at each launch. */
static void replay_captured(rank *r, void *user)
{
    bp_graph *graph = NULL;
    bp_comm *self = NULL;
    buffers b = open_buffers(r, BP_DTYPE_INT32);
    const uint32_t ranks = bp_comm_get_info(r->comm)->ranks;
    uint32_t *found = (uint32_t *)(void *)b.host;
    expect_ok(r, bp_comm_create_self(&self));
    expect_ok(r, bp_graph_begin(r->stream));
    expect_ok(r, bp_comm_all_reduce(r->comm, b.from, b.to, 1, BP_DTYPE_INT32, BP_REDUCE_MAX, r->stream));
    expect_ok(r, bp_comm_all_gather(r->comm, b.from, b.to + 4, 4, r->stream));
    expect_ok(r, bp_comm_all_gather(self, b.to, b.from + 4, 4, r->stream));
    expect_ok(r, bp_comm_reduce_scatter(self, b.from, b.from + 8, 1, BP_DTYPE_INT32, BP_REDUCE_SUM, r->stream));
    expect_ok(r, bp_graph_end(r->stream, &graph));
    for (uint32_t launch = 0; launch < 3; launch++) {
        expect_ok(r, bp_stream_fill(r->stream, b.from, (uint8_t)(16 * launch + r->number), 4));
        expect_ok(r, bp_graph_launch(graph, r->stream));
        fetch(r, &b, b.to);
        expect(r, found[0] == 0x01010101 * (16 * launch + ranks - 1));
        for (uint32_t other = 0; other < ranks; other++)
            expect(r, found[1 + other] == 0x01010101 * (16 * launch + other));
        fetch(r, &b, b.from);
        expect(r, found[1] == 0x01010101 * (16 * launch + ranks - 1) && found[2] == found[0]);
    }
    bp_graph_destroy(&graph);
    bp_comm_destroy(&self);
    close_buffers(r, &b);
}

TEST(captured_collectives)
{
    on_teams(replay_captured, NULL);
}

/* A communicator whose collectives block the host, as those of MPI do. */
static void forget(void *self)
{
}

static bp_status alone(void *self, bp_comm_traits *traits)
{
    traits->ranks = 1;
    return BP_OK;
}

static bp_status exchange_nothing(void *self, const void *mine, uint64_t bytes, void *all)
{
    memcpy(all, mine, bytes);
    return BP_OK;
}

static bp_status count_gather(void *self, const void *mine, void *all, uint64_t bytes, bp_stream *stream)
{
    ++*(int *)self;
    return BP_OK;
}

static void refuse_to_be_captured(rank *r, void *user)
{
    static const bp_comm_ops blocking = {.size = sizeof blocking,
                                         .name = "blocking",
                                         .destroy = forget,
                                         .traits = alone,
                                         .exchange = exchange_nothing,
                                         .all_gather = count_gather};
    int gathers = 0;
    char memory[16] = "";
    bp_comm *comm = NULL;
    bp_graph *graph = NULL;
    expect_ok(r, bp_comm_create(&blocking, &gathers, NULL, &comm));
    expect_ok(r, bp_graph_begin(r->stream));
    expect_fails(r, bp_comm_all_gather(comm, memory, memory + 8, 8, r->stream), BP_ERR_CAPTURE, "blocking");
    expect(r, gathers == 0);
    expect_ok(r, bp_graph_end(r->stream, &graph));
    expect_ok(r, bp_comm_all_gather(comm, memory, memory + 8, 8, r->stream));
    expect(r, gathers == 1);
    bp_graph_destroy(&graph);
    bp_comm_destroy(&comm);
}

TEST(capture_of_blocking_collectives)
{
    run_team(&(team_options){.ranks = 1}, refuse_to_be_captured, NULL);
}

static void refuse_bad_input(rank *r, void *user)
{
    char memory[16] = "";
    unsigned before = fake_nccl_calls("ncclAllReduce") + fake_nccl_calls("ncclAllGather");
    expect_fails(r, bp_comm_all_reduce(r->comm, memory, memory, 1, BP_DTYPE_FP8_E4M3, BP_REDUCE_SUM, r->stream),
                 BP_ERR_UNSUPPORTED, "fp8_e4m3");
    expect_fails(r, bp_comm_all_reduce(r->comm, memory, memory, 1, BP_DTYPE_FP32, (bp_reduction)7, r->stream),
                 BP_ERR_INVALID_ARGUMENT, NULL);
    expect_fails(r, bp_comm_all_reduce(r->comm, memory, memory, 1, BP_DTYPE_FP32, BP_REDUCE_SUM, NULL),
                 BP_ERR_INVALID_ARGUMENT, NULL);
    expect_fails(r, bp_comm_all_gather(r->comm, memory, NULL, 1, r->stream), BP_ERR_INVALID_ARGUMENT, NULL);
    expect(r, fake_nccl_calls("ncclAllReduce") + fake_nccl_calls("ncclAllGather") == before);
}

TEST(bad_input)
{
    run_team(&(team_options){.ranks = 1}, refuse_bad_input, NULL);
}

/* A stream of another device than the communicator's is refused. */
TEST(stream_of_another_device)
{
    TEAM t;
    char memory[16] = "";
    team_begin(&t, &(team_options){.ranks = 2});
    assert_invalid(
        bp_comm_all_reduce(t.ranks[0].comm, memory, memory, 1, BP_DTYPE_FP32, BP_REDUCE_SUM, t.ranks[1].stream));
}

/* ---- effects of registration --------------------------------------------------------------------------------------- */

static void gather_into_slab(rank *r, void *user)
{
    const char *what = user;
    const bp_pool_slab slab = bp_pool_get_info(r->pool)->slabs[0];
    void *from = device_allocate(r, 256);
    if (strcmp(what, "register") == 0)
        expect_ok(r, register_all(r, BP_REGISTER_SYMMETRIC));
    expect_ok(r, bp_comm_all_gather(r->comm, from, slab.address, 256, r->stream));
    expect_ok(r, bp_stream_synchronize(r->stream));
    device_free(r, from);
}

/* On the emulation only: it applies NCCL's conditions, and shows that the windows cover the pool's memory. */
TEST(all_gathers_in_windows)
{
    const struct {
        const char *nccl;
        bool symmetric, registered;
    } rows[] = {{"version=23007", true, false},
                {"version=21903", false, true},
                {"version=22907,symmetric=0", false, true},
                {"version=23007,same_process=1", false, false}};
    bp_plan *plan = plan_of(UNITS);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        TEAM t;
        fake_nccl_counts before, after;
        team_begin(&t, &(team_options){.ranks = 2, .nccl = rows[i].nccl, .plan = plan});
        char no[] = "do not", yes[] = "register";
        team_run(&t, gather_into_slab, no);
        fake_nccl_count(&before);
        assert_int_equal(before.copied, 2);
        team_run(&t, gather_into_slab, yes);
        fake_nccl_count(&after);
        assert_int_equal(after.symmetric, rows[i].symmetric ? 2 : 0);
        assert_int_equal(after.registered, rows[i].registered ? 2 : 0);
    }
    bp_plan_destroy(&plan);
}
