/* SPDX-License-Identifier: Apache-2.0 */
/* Communicators of one rank and of callbacks: results, forwarded arguments, and invalid input. */
#include <bucketpool/comm_ops.h>

#include <time.h>

#include "comms/registration.h"
#include "numbers.h"
#include "support/exchange.h"
#include "support/scenarios.h"
#include "support/suite/suite.h"
#include <bucketpool/core/fail.h>

#define COUNT 1000

static bp_device *host;
static bp_stream *stream;

static int set_up(void **state)
{
    assert_ok(bp_device_create_host(NULL, &host));
    assert_ok(bp_stream_create(host, "s", &stream));
    return 0;
}

static int tear_down(void **state)
{
    bp_stream_destroy(&stream);
    bp_device_destroy(&host);
    return 0;
}

static bp_comm *new_self(void)
{
    bp_comm *comm = NULL;
    assert_ok(bp_comm_create_self(&comm));
    return comm;
}

/* ---- one rank ------------------------------------------------------------------------------------------------------ */

TEST(self_rank)
{
    bp_comm *comm = new_self();
    assert_int_equal(bp_comm_get_info(comm)->rank, 0);
    assert_int_equal(bp_comm_get_info(comm)->ranks, 1);
    assert_string_equal(bp_comm_get_info(comm)->name, "self");
    bp_comm_destroy(&comm);
    assert_null(comm);
    bp_comm_destroy(&comm);
    bp_comm_destroy(NULL);
}

TEST(self_exchange)
{
    bp_comm *comm = new_self();
    const char mine[] = "forty-two";
    char all[sizeof mine] = "";
    assert_ok(bp_comm_exchange(comm, mine, sizeof mine, all));
    assert_string_equal(all, mine);
    assert_ok(bp_comm_exchange(comm, NULL, 0, NULL));
    bp_comm_destroy(&comm);
}

TEST(self_collectives)
{
    bp_comm *comm = new_self();
    for (size_t d = 0; d < SERVED_COUNT; d++)
        for (int op = BP_REDUCE_SUM; op <= BP_REDUCE_MIN; op++) {
            size_t bytes = COUNT * element_bytes(SERVED[d]);
            char *from = malloc(bytes), *to[3];
            for (size_t i = 0; i < COUNT; i++)
                put_number(from, i, SERVED[d], number_at(0, i));
            for (int i = 0; i < 3; i++)
                to[i] = calloc(bytes, 1);
            assert_ok(bp_comm_all_gather(comm, from, to[0], bytes, stream));
            assert_ok(bp_comm_all_reduce(comm, from, to[1], COUNT, SERVED[d], (bp_reduction)op, stream));
            assert_ok(bp_comm_reduce_scatter(comm, from, to[2], COUNT, SERVED[d], (bp_reduction)op, stream));
            assert_ok(bp_stream_synchronize(stream));
            for (int i = 0; i < 3; i++) {
                assert_memory_equal(to[i], from, bytes);
                free(to[i]);
            }
            free(from);
        }
    bp_comm_destroy(&comm);
}

TEST(self_in_place_and_empty)
{
    bp_comm *comm = new_self();
    float numbers[4] = {1, 2, 3, 4};
    assert_ok(bp_comm_all_gather(comm, numbers, numbers, sizeof numbers, stream));
    assert_ok(bp_comm_all_reduce(comm, numbers, numbers, 4, BP_DTYPE_FP32, BP_REDUCE_SUM, stream));
    assert_ok(bp_comm_reduce_scatter(comm, numbers, numbers, 4, BP_DTYPE_FP32, BP_REDUCE_MAX, stream));
    assert_ok(bp_comm_all_gather(comm, NULL, NULL, 0, stream));
    assert_ok(bp_comm_all_reduce(comm, NULL, NULL, 0, BP_DTYPE_FP32, BP_REDUCE_SUM, stream));
    assert_ok(bp_stream_synchronize(stream));
    for (int i = 0; i < 4; i++)
        assert_true(numbers[i] == (float)(i + 1));
    bp_comm_destroy(&comm);
}

static void wait_for_flag(void *flag)
{
    struct timespec pause = {0, 5000000};
    nanosleep(&pause, NULL);
    *(int *)flag = 7;
}

/* A collective runs after the earlier work of its stream. */
TEST(self_stream_order)
{
    bp_comm *comm = new_self();
    int from = 0, to = 0;
    assert_ok(bp_stream_call(stream, wait_for_flag, &from));
    assert_ok(bp_comm_all_reduce(comm, &from, &to, 1, BP_DTYPE_INT32, BP_REDUCE_SUM, stream));
    assert_ok(bp_stream_synchronize(stream));
    assert_int_equal(to, 7);
    bp_comm_destroy(&comm);
}

/* ---- invalid input ------------------------------------------------------------------------------------------------- */

TEST(bad_input)
{
    bp_comm *comm = new_self();
    char memory[16] = "";
    assert_invalid(bp_comm_create_self(NULL));
    assert_invalid(bp_comm_exchange(NULL, memory, 1, memory));
    assert_invalid(bp_comm_exchange(comm, NULL, 1, memory));
    assert_invalid(bp_comm_exchange(comm, memory, 1, NULL));
    assert_invalid(bp_comm_all_gather(comm, memory, memory, 1, NULL));
    assert_invalid(bp_comm_all_gather(comm, NULL, memory, 1, stream));
    assert_invalid(bp_comm_all_gather(NULL, memory, memory, 1, stream));
    assert_invalid(bp_comm_all_reduce(comm, memory, NULL, 1, BP_DTYPE_FP32, BP_REDUCE_SUM, stream));
    assert_invalid(bp_comm_all_reduce(comm, memory, memory, 1, BP_DTYPE_FP32, (bp_reduction)9, stream));
    assert_invalid(bp_comm_abort(NULL));
    bp_comm_forget(NULL);
    bp_comm_destroy(&comm);
}

TEST(unsupported_dtypes)
{
    bp_comm *comm = new_self();
    const bp_dtype others[] = {BP_DTYPE_FP64, BP_DTYPE_FP8_E4M3, BP_DTYPE_UINT4, BP_DTYPE_BOOL, BP_DTYPE_COMPLEX64};
    char memory[16] = "";
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        assert_fails(bp_comm_all_reduce(comm, memory, memory, 1, others[i], BP_REDUCE_SUM, stream), BP_ERR_UNSUPPORTED,
                     bp_dtype_name(others[i]));
        assert_fails(bp_comm_reduce_scatter(comm, memory, memory, 1, others[i], BP_REDUCE_SUM, stream),
                     BP_ERR_UNSUPPORTED, bp_dtype_name(others[i]));
    }
    bp_comm_destroy(&comm);
}

/* Sizes whose sum over all ranks exceeds 64 bits never reach a provider. */
TEST(size_overflow)
{
    bp_comm *comm = new_self();
    char memory[16] = "";
    assert_fails(bp_comm_all_reduce(comm, memory, memory, UINT64_MAX / 2, BP_DTYPE_INT64, BP_REDUCE_SUM, stream),
                 BP_ERR_OVERFLOW, "");
    assert_fails(bp_comm_reduce_scatter(comm, memory, memory, UINT64_MAX / 2, BP_DTYPE_INT64, BP_REDUCE_SUM, stream),
                 BP_ERR_OVERFLOW, "");
    bp_comm_destroy(&comm);
}

TEST(incomplete_callbacks)
{
    exchange_room room;
    exchange_begin(&room, 2);
    exchange_seat seat = {.room = &room};
    bp_comm_callbacks good = exchange_callbacks(&seat), bad = good;
    bp_comm *comm = NULL;
    assert_invalid(bp_comm_create_callback(NULL, &seat, NULL, &comm));
    assert_invalid(bp_comm_create_callback(&good, &seat, NULL, NULL));
    bad.rank = 2;
    assert_fails(bp_comm_create_callback(&bad, &seat, NULL, &comm), BP_ERR_INVALID_ARGUMENT, "2");
    bad = good;
    bad.ranks = 0;
    assert_invalid(bp_comm_create_callback(&bad, &seat, NULL, &comm));
    bad = good;
    bad.exchange = NULL;
    assert_fails(bp_comm_create_callback(&bad, &seat, NULL, &comm), BP_ERR_INVALID_ARGUMENT, "exchange");
    bad = good;
    bad.size = 4;
    assert_invalid(bp_comm_create_callback(&bad, &seat, NULL, &comm));
    assert_null(comm);
    assert_int_equal(seat.destroys, 0);
    exchange_end(&room);
}

/* ---- callbacks ----------------------------------------------------------------------------------------------------- */

/* Records its arguments, and returns what the test asks for. */
typedef struct recorder {
    bp_status answer;
    unsigned calls, aborts, destroys;
    const void *from;
    void *to;
    uint64_t count;
    bp_dtype dtype;
    bp_reduction reduction;
    bp_stream *stream;
} recorder;

static bp_status record(recorder *r, const void *from, void *to, uint64_t count)
{
    r->calls++;
    r->from = from;
    r->to = to;
    r->count = count;
    return r->answer == BP_OK ? BP_OK : bp_error_record(r->answer, "refused by the group");
}

static bp_status record_exchange(void *user, const void *mine, uint64_t bytes, void *all)
{
    return record(user, mine, all, bytes);
}

static bp_status record_gather(void *user, const void *mine, void *all, uint64_t bytes, bp_stream *on)
{
    ((recorder *)user)->stream = on;
    return record(user, mine, all, bytes);
}

static bp_status record_reduction(void *user, const void *from, void *to, uint64_t count, bp_dtype dtype,
                                  bp_reduction reduction, bp_stream *on)
{
    recorder *r = user;
    r->dtype = dtype;
    r->reduction = reduction;
    r->stream = on;
    return record(r, from, to, count);
}

static bp_status record_abort(void *user)
{
    ((recorder *)user)->aborts++;
    return BP_OK;
}

static void record_destroy(void *user)
{
    ((recorder *)user)->destroys++;
}

static bp_comm *new_recorded(recorder *r, const char *name)
{
    *r = (recorder){.answer = BP_OK};
    bp_comm_callbacks callbacks = {.size = sizeof callbacks,
                                   .rank = 1,
                                   .ranks = 3,
                                   .exchange = record_exchange,
                                   .all_gather = record_gather,
                                   .all_reduce = record_reduction,
                                   .reduce_scatter = record_reduction,
                                   .abort = record_abort,
                                   .destroy = record_destroy};
    bp_comm *comm = NULL;
    assert_ok(bp_comm_create_callback(&callbacks, r, name, &comm));
    return comm;
}

TEST(callback_arguments)
{
    recorder r;
    char name[] = "data parallel", from[64] = "", to[64] = "";
    bp_comm *comm = new_recorded(&r, name);
    name[0] = '?';
    assert_string_equal(bp_comm_get_info(comm)->name, "data parallel");
    assert_int_equal(bp_comm_get_info(comm)->rank, 1);
    assert_int_equal(bp_comm_get_info(comm)->ranks, 3);
    assert_ok(bp_comm_exchange(comm, from, 5, to));
    assert_true(r.calls == 1 && r.from == from && r.to == to && r.count == 5);
    assert_ok(bp_comm_all_gather(comm, from, to, 6, stream));
    assert_true(r.calls == 2 && r.count == 6 && r.stream == stream);
    assert_ok(bp_comm_all_reduce(comm, from, to, 7, BP_DTYPE_BF16, BP_REDUCE_MIN, stream));
    assert_true(r.calls == 3 && r.count == 7 && r.dtype == BP_DTYPE_BF16 && r.reduction == BP_REDUCE_MIN);
    assert_ok(bp_comm_reduce_scatter(comm, from, to, 2, BP_DTYPE_INT64, BP_REDUCE_MAX, stream));
    assert_true(r.calls == 4 && r.count == 2 && r.dtype == BP_DTYPE_INT64 && r.reduction == BP_REDUCE_MAX);
    bp_comm_destroy(&comm);
    assert_int_equal(r.destroys, 1);
    assert_int_equal(r.aborts, 0);
}

TEST(default_name)
{
    recorder r;
    bp_comm *comm = new_recorded(&r, NULL);
    assert_string_equal(bp_comm_get_info(comm)->name, "callback");
    bp_comm_destroy(&comm);
}

TEST(callback_results)
{
    recorder r;
    char memory[64] = "";
    bp_comm *comm = new_recorded(&r, NULL);
    r.answer = BP_ERR_IO;
    assert_fails(bp_comm_exchange(comm, memory, 5, memory), BP_ERR_IO, "refused by the group");
    assert_fails(bp_comm_all_gather(comm, memory, memory, 5, stream), BP_ERR_IO, "refused by the group");
    r.answer = BP_ERR_NO_DEVICE_MEMORY;
    assert_fails(bp_comm_all_reduce(comm, memory, memory, 5, BP_DTYPE_FP32, BP_REDUCE_SUM, stream),
                 BP_ERR_NO_DEVICE_MEMORY, "refused by the group");
    r.answer = (bp_status)77;
    assert_fails(bp_comm_exchange(comm, memory, 5, memory), BP_ERR_COMM, "77", "not a bp_status",
                 "refused by the group");
    r.answer = BP_OK;
    assert_ok(bp_comm_exchange(comm, memory, 5, memory));
    bp_comm_destroy(&comm);
}

/* The second of two ranks sends arbitrary data: a status, and one byte repeated for everything else. */
typedef struct hostile_rank {
    uint32_t status;
    uint8_t byte;
} hostile_rank;

static bp_status receive(void *user, const void *mine, uint64_t bytes, void *all)
{
    const hostile_rank *other = user;
    uint8_t *theirs = (uint8_t *)all + bytes;
    memcpy(all, mine, bytes);
    memset(theirs, other->byte, bytes);
    memcpy(theirs, &other->status, sizeof other->status);
    memset(theirs + offsetof(bp_verdict, named), 0, sizeof(uint32_t));
    return BP_OK;
}

TEST(data_of_other_ranks)
{
    static const uint32_t sent[] = {BP_ERR_IO, BP_STATUS_COUNT, 4711, UINT32_MAX, 1u << 31};
    for (size_t i = 0; i < sizeof sent / sizeof *sent; i++) {
        hostile_rank other = {.status = sent[i], .byte = i % 2 == 0 ? 0x1b : 0xff};
        bp_comm_callbacks callbacks = {.size = sizeof callbacks, .rank = 0, .ranks = 2, .exchange = receive};
        bp_comm *comm = NULL;
        bp_verdict verdict;
        char number[16];
        assert_ok(bp_comm_create_callback(&callbacks, &other, "pair", &comm));
        bp_verdict_take(&verdict, BP_OK);
        assert_ok(bp_verdict_agree(comm, &verdict));
        for (const char *c = verdict.words; *c != '\0'; c++)
            assert_true(*c >= 0x20 && *c < 0x7f);
        snprintf(number, sizeof number, "status %u", sent[i]);
        bool known = sent[i] == BP_ERR_IO;
        assert_fails(bp_verdict_status(&verdict), known ? BP_ERR_IO : BP_ERR_COMM, "rank 1", known ? "???" : number);
        bp_comm_destroy(&comm);
    }
}

TEST(missing_collectives)
{
    exchange_room room;
    exchange_begin(&room, 1);
    exchange_seat seat = {.room = &room};
    bp_comm_callbacks callbacks = exchange_callbacks(&seat);
    bp_comm *comm = NULL;
    char memory[16] = "";
    assert_ok(bp_comm_create_callback(&callbacks, &seat, "hosts", &comm));
    assert_fails(bp_comm_all_gather(comm, memory, memory, 1, stream), BP_ERR_UNSUPPORTED, "hosts");
    assert_fails(bp_comm_all_reduce(comm, memory, memory, 1, BP_DTYPE_FP32, BP_REDUCE_SUM, stream), BP_ERR_UNSUPPORTED,
                 "hosts");
    assert_fails(bp_comm_reduce_scatter(comm, memory, memory, 1, BP_DTYPE_FP32, BP_REDUCE_SUM, stream),
                 BP_ERR_UNSUPPORTED, "hosts");
    bp_comm_destroy(&comm);
    exchange_end(&room);
}

/* ---- abort and forget ---------------------------------------------------------------------------------------------- */

static void assert_dead(bp_comm *comm, const recorder *r)
{
    char memory[16] = "";
    unsigned calls = r->calls;
    assert_fails(bp_comm_exchange(comm, memory, 1, memory), BP_ERR_INVALID_ARGUMENT, "was aborted");
    assert_fails(bp_comm_all_gather(comm, memory, memory, 1, stream), BP_ERR_INVALID_ARGUMENT, "was aborted");
    assert_fails(bp_comm_all_reduce(comm, memory, memory, 1, BP_DTYPE_FP32, BP_REDUCE_SUM, stream),
                 BP_ERR_INVALID_ARGUMENT, "was aborted");
    assert_fails(bp_comm_reduce_scatter(comm, memory, memory, 1, BP_DTYPE_FP32, BP_REDUCE_SUM, stream),
                 BP_ERR_INVALID_ARGUMENT, "was aborted");
    assert_int_equal(r->calls, calls);
}

TEST(aborted_communicator)
{
    recorder r;
    bp_comm *comm = new_recorded(&r, "dp");
    assert_ok(bp_comm_abort(comm));
    assert_int_equal(r.aborts, 1);
    assert_dead(comm, &r);
    assert_fails(bp_comm_abort(comm), BP_ERR_INVALID_ARGUMENT, "was aborted");
    assert_int_equal(r.aborts, 1);
    bp_comm_forget(comm);
    bp_comm_destroy(&comm);
    assert_int_equal(r.destroys, 1);
}

TEST(forgotten_communicator)
{
    recorder r;
    bp_comm *comm = new_recorded(&r, "dp");
    bp_comm_forget(comm);
    assert_dead(comm, &r);
    assert_int_equal(r.aborts, 0);
    bp_comm_destroy(&comm);
}

/* ---- providers ----------------------------------------------------------------------------------------------------- */

static bp_status traits_of(void *self, bp_comm_traits *traits)
{
    *traits = *(const bp_comm_traits *)self;
    return BP_OK;
}

static bp_status failing_traits(void *self, bp_comm_traits *traits)
{
    return bp_error_record(BP_ERR_IO, "no traits today");
}

static unsigned provider_ends;

static void end_provider(void *self)
{
    provider_ends++;
}

TEST(provider_tables)
{
    bp_comm_traits traits = {.size = sizeof traits, .rank = 0, .ranks = 1, .version_name = ""};
    const bp_comm_ops good = {.size = sizeof good,
                              .name = "made up",
                              .destroy = end_provider,
                              .traits = traits_of,
                              .exchange = record_exchange};
    bp_comm *comm = NULL;
    provider_ends = 0;
    bp_comm_ops bad = good;
    bad.size = offsetof(bp_comm_ops, exchange); /* an older table that ends before a required function */
    assert_fails(bp_comm_create(&bad, &traits, NULL, &comm), BP_ERR_INVALID_ARGUMENT, "exchange");
    struct {
        bp_comm_ops known;
        void (*later)(void);
    } newer = {good, NULL};
    newer.known.size = sizeof newer;
    assert_ok(bp_comm_create(&newer.known, &traits, NULL, &comm));
    bp_comm_destroy(&comm);
    assert_int_equal(provider_ends, 1);
    newer.later = (void (*)(void))end_provider;
    assert_fails(bp_comm_create(&newer.known, &traits, NULL, &comm), BP_ERR_UNSUPPORTED, "update the library");
    provider_ends = 0;
    bad = good;
    bad.exchange = NULL;
    assert_invalid(bp_comm_create(&bad, &traits, NULL, &comm));
    bad = good;
    bad.traits = NULL;
    assert_invalid(bp_comm_create(&bad, &traits, NULL, &comm));
    assert_invalid(bp_comm_create(NULL, &traits, NULL, &comm));
    assert_invalid(bp_comm_create(&good, &traits, NULL, NULL));
    assert_int_equal(provider_ends, 0);
    bad = good;
    bad.traits = failing_traits;
    assert_fails(bp_comm_create(&bad, &traits, NULL, &comm), BP_ERR_IO, "no traits today");
    assert_int_equal(provider_ends, 1);
    assert_null(comm);
    assert_ok(bp_comm_create(&good, &traits, NULL, &comm));
    assert_string_equal(bp_comm_get_info(comm)->name, "made up");
    bp_comm_destroy(&comm);
    assert_int_equal(provider_ends, 2);
}

TEST(missing_registration_functions)
{
    bp_comm_traits traits = {.size = sizeof traits, .rank = 0, .ranks = 1, .version_name = ""};
    bp_comm_ops ops = {
        .size = sizeof ops, .name = "half", .destroy = end_provider, .traits = traits_of, .exchange = record_exchange};
    ops.deregister_memory = (bp_status(*)(void *, bp_register_kind, void *))(void (*)(void))failing_traits;
    bp_comm *comm = NULL;
    assert_invalid(bp_comm_create(&ops, &traits, NULL, &comm));
}

TEST(names_of_kinds)
{
    assert_string_equal(bp_register_kind_name(BP_REGISTER_NONE), "none");
    assert_string_equal(bp_register_kind_name(BP_REGISTER_BUFFER), "buffer");
    assert_string_equal(bp_register_kind_name(BP_REGISTER_WINDOW), "window");
    assert_string_equal(bp_register_kind_name(BP_REGISTER_SYMMETRIC), "symmetric window");
    assert_non_null(bp_register_kind_name((bp_register_kind)77));
}

SUITE_WITHIN(set_up, tear_down)
