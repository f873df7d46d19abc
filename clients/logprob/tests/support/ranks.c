/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks that are threads, and host collectives built on their exchanges. */
#include "support/harness.h"

#include "ranks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "reference.h"
#include "support/pools.h"

/* ---- collectives --------------------------------------------------------------------------------------------------- */

typedef struct job {
    host_rank *r;
    const void *mine;
    void *all;
    uint64_t bytes, count; /* count 0: all-gather */
    uint64_t first;        /* index of this rank's first element */
    bp_dtype dtype;
    bp_reduction reduction;
    bp_status status;
} job;

static double reduced(double a, double b, bp_reduction reduction)
{
    return reduction == BP_REDUCE_SUM ? a + b : (reduction == BP_REDUCE_MAX) == (b > a) ? b : a;
}

static void run_job(void *argument)
{
    job *j = argument;
    bp_comm_callbacks callbacks = exchange_callbacks(&j->r->seat);
    char *parts = j->count == 0 ? j->all : malloc(j->bytes * j->r->ranks + 1);
    j->status = callbacks.exchange(&j->r->seat, j->mine, j->bytes, parts);
    for (uint64_t i = 0; i < j->count && j->status == BP_OK; i++) {
        const int64_t at = (int64_t)(j->first + i);
        double value = element_at(parts, j->dtype, at);
        for (uint32_t rank = 1; rank < j->r->ranks; rank++)
            value = reduced(value, element_at(parts + rank * j->bytes, j->dtype, at), j->reduction);
        put_element(j->all, j->dtype, (int64_t)i, value);
    }
    if (j->count != 0)
        free(parts);
}

static void run_and_free(void *argument)
{
    run_job(argument);
    free(argument);
}

static bp_status serve(host_rank *r, job *j, bp_stream *stream)
{
    if (r->enqueues) {
        job *later = malloc(sizeof *later);
        *later = *j;
        return bp_stream_call(stream, run_and_free, later);
    }
    bp_status status = bp_stream_synchronize(stream);
    if (status != BP_OK)
        return status;
    run_job(j);
    return j->status;
}

static bp_status all_gather(void *user, const void *mine, void *all, uint64_t bytes, bp_stream *stream)
{
    job j = {.r = user, .mine = mine, .all = all, .bytes = bytes};
    return serve(user, &j, stream);
}

static bp_status all_reduce(void *user, const void *from, void *to, uint64_t count, bp_dtype dtype,
                            bp_reduction reduction, bp_stream *stream)
{
    uint64_t bytes = count * (bp_dtype_bits(dtype) / 8);
    job j = {
        .r = user, .mine = from, .all = to, .bytes = bytes, .count = count, .dtype = dtype, .reduction = reduction};
    return serve(user, &j, stream);
}

static bp_status reduce_scatter(void *user, const void *from, void *to, uint64_t count, bp_dtype dtype,
                                bp_reduction reduction, bp_stream *stream)
{
    host_rank *r = user;
    job j = {.r = r,
             .mine = from,
             .all = to,
             .bytes = r->ranks * count * (bp_dtype_bits(dtype) / 8),
             .count = count,
             .first = r->number * count,
             .dtype = dtype,
             .reduction = reduction};
    return serve(r, &j, stream);
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__OPTIMIZE__)
#define HAS_LARGE_FRAMES true
#else
#define HAS_LARGE_FRAMES false
#endif

/* ---- threads ------------------------------------------------------------------------------------------------------- */

static void *run_rank(void *argument)
{
    host_rank *r = ((void **)argument)[0];
    rank_function *function = *(rank_function **)((void **)argument)[1];
    r->good = function(r);
    return NULL;
}

static void open_rank(host_rank *r, uint32_t max_delay_us)
{
    r->device = new_slow_host(max_delay_us, r->number + 1);
    assert_ok(bp_stream_create(r->device, "rank", &r->stream));
    bp_comm_callbacks callbacks = exchange_callbacks(&r->seat);
    callbacks.all_gather = all_gather;
    callbacks.all_reduce = all_reduce;
    callbacks.reduce_scatter = reduce_scatter;
    assert_ok(bp_comm_create_callback(&callbacks, r, "threads", &r->comm));
}

/* The default stack of musl's threads: callers may have no larger one. Frames of sanitizers and of vectors without optimization, and calls of BLAS libraries take more. */
static void start_rank(pthread_t *thread, void *arguments[2])
{
    pthread_attr_t attributes;
    assert_int_equal(pthread_attr_init(&attributes), 0);
    if (!HAS_LARGE_FRAMES)
        assert_int_equal(pthread_attr_setstacksize(&attributes, 128 << 10), 0);
    assert_int_equal(pthread_create(thread, &attributes, run_rank, arguments), 0);
    pthread_attr_destroy(&attributes);
}

void run_host_ranks(uint32_t ranks, bool enqueues, uint32_t max_delay_us, rank_function *function, void *user)
{
    exchange_room room;
    host_rank all[EXCHANGE_RANKS];
    pthread_t threads[EXCHANGE_RANKS];
    void *arguments[EXCHANGE_RANKS][2];
    exchange_begin(&room, ranks);
    for (uint32_t i = 0; i < ranks; i++) {
        all[i] = (host_rank){
            .seat = {.room = &room, .rank = i}, .enqueues = enqueues, .number = i, .ranks = ranks, .user = user};
        open_rank(&all[i], max_delay_us);
    }
    for (uint32_t i = 0; i < ranks; i++) {
        arguments[i][0] = &all[i];
        arguments[i][1] = &function;
        start_rank(&threads[i], arguments[i]);
    }
    bool good = true;
    for (uint32_t i = 0; i < ranks; i++) {
        pthread_join(threads[i], NULL);
        good = good && all[i].good;
        bp_comm_destroy(&all[i].comm);
        bp_stream_destroy(&all[i].stream);
        bp_device_destroy(&all[i].device);
    }
    bool gave_up = room.given_up;
    exchange_end(&room);
    assert_false(gave_up);
    assert_true(good);
}

bool is_status(bp_status status, bp_status expected, const char *const *words, const char *where)
{
    bool good = status == expected;
    for (size_t i = 0; good && words != NULL && words[i] != NULL; i++)
        good = strstr(bp_error_detail(), words[i]) != NULL;
    if (!good)
        fprintf(stderr, "%s: \"%s\" (%s), expected \"%s\"\n", where, bp_status_name(status),
                status == BP_OK ? "" : bp_error_detail(), bp_status_name(expected));
    return good;
}
