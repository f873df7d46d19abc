/* A loss client does not allocate after its creation, on any thread: steps, errors, seeds and statistics. */
#include "support/harness.h"

#include "../support/allocations.h"
#include "../support/hosts.h"
#include "loss_ranks.h"

#include "support/pools.h"

static const corpus_options SMALL = {.seed = 29, .sequences = 30, .longest = 25, .empty_in_8 = 1, .masked_in_8 = 1};

TEST(counting_counts)
{
    count_allocations();
    corpus c = new_corpus(&SMALL);
    assert_true(counted_allocations() > 0);
    free_corpus(&c);
}

static bool serve(seat *at, int times)
{
    for (int i = 0; i < times; i++) {
        bp_loss_statistics s = {.size = sizeof s};
        bp_loss_values wrong = at->slices[0].values;
        wrong.tokens++;
        EXPECT(step(at, i % 3 == 1));
        EXPECT(bp_loss_statistics_get(at->loss, &s) == BP_OK && bp_loss_get_info(at->loss)->sequence_count > 0);
        for (uint32_t m = 0; m < at->micros; m++) {
            const slice *v = &at->slices[m];
            EXPECT(bp_loss_seed(at->loss, at->splits[m], v->tokens, &v->values.mask, -1, &v->seed,
                                i % 2 == 0 ? at->stream : NULL) == BP_OK);
        }
        EXPECT(bp_loss_begin(at->loss) == BP_OK);
        EXPECT(bp_loss_add(at->loss, at->splits[0], &wrong, at->stream) == BP_ERR_INVALID_ARGUMENT);
        EXPECT(bp_loss_reduce(at->loss, BP_ERR_IO, NULL) != BP_OK);
    }
    return true;
}

/* Rank 0 counts, after every rank's first step, because OpenMP starts its threads with a stream's first work. */
static bool run_counted(host_rank *r)
{
    seat at;
    uint8_t mine = 0, all[EXCHANGE_RANKS];
    bool good = take_seat(r, &at) && serve(&at, 2);
    EXPECT(bp_comm_exchange(r->comm, &mine, 1, all) == BP_OK);
    if (r->number == 0)
        count_allocations();
    EXPECT(bp_comm_exchange(r->comm, &mine, 1, all) == BP_OK);
    good = good && serve(&at, 30);
    EXPECT(bp_comm_exchange(r->comm, &mine, 1, all) == BP_OK);
    if (r->number == 0)
        *(unsigned long *)at.s->user = counted_allocations();
    EXPECT(bp_comm_exchange(r->comm, &mine, 1, all) == BP_OK);
    leave_seat(&at);
    return good;
}

TEST(steps_do_not_allocate)
{
    corpus c = new_corpus(&SMALL);
    static const uint32_t shapes[][3] = {{1, 1, 1}, {2, 2, 1}, {1, 3, 2}};
    for (size_t i = 0; i < 3; i++) {
        unsigned long seen = 1;
        const topology t = topology_of(shapes[i][0], shapes[i][1], shapes[i][2]);
        setting s = new_setting(&c, &t, 1);
        s.user = &seen;
        run_scene_ranks(&s, run_counted);
        assert_int_equal(seen, 0);
        free_setting(&s);
    }
    free_corpus(&c);
}

TEST(device_memory_stays_as_it_was_made)
{
    bp_device *own = new_host();
    bp_stream *stream = NULL;
    assert_ok(bp_stream_create(own, "s", &stream));
    const bp_device_usage before = usage_of(own);
    corpus c = new_corpus(&SMALL);
    const topology t = topology_of(1, 1, 1);
    setting s = new_setting(&c, &t, 1);
    s.own_streams = true;
    host_rank r = {.ranks = 1, .device = own, .stream = stream, .user = &s};
    seat at;
    assert_true(take_seat(&r, &at));
    at.stream = stream;
    const bp_device_usage made = usage_of(own);
    assert_true(made.committed_bytes > 0);
    assert_true(serve(&at, 10));
    const bp_device_usage after = usage_of(own);
    assert_true(after.committed_bytes == made.committed_bytes && after.peak_committed_bytes == made.committed_bytes);
    assert_true(after.peak_allocated_bytes == 0 && after.streams == made.streams && after.events == made.events);
    leave_seat(&at);
    const bp_device_usage end = usage_of(own);
    assert_true(end.committed_bytes == 0 && end.streams == before.streams && end.events == before.events);
    bp_stream_destroy(&stream);
    bp_device_destroy(&own);
    free_setting(&s);
    free_corpus(&c);
}

TESTS(open_host, close_host)
