/* Copies of bytes: in chunks, direct or staged, ordered after the streams' work, without blocking. */
#include "pages.h"
#include "support/trace_device.h"

#define CHUNK (3 * PAGE) /* divides no slab of these tests */

/* ---- progress ------------------------------------------------------------------------------------------------------- */

typedef struct seen {
    uint64_t calls[2], copied[2]; /* of param, of grad */
    unsigned wrong[2];
} seen;

static void watch(void *user, const char *group, uint64_t copied_bytes, uint64_t bytes)
{
    seen *s = user;
    const int which = strcmp(group, "grad") == 0;
    s->wrong[which] +=
        copied_bytes <= s->copied[which] || copied_bytes > bytes || copied_bytes - s->copied[which] > CHUNK;
    s->copied[which] = copied_bytes;
    s->calls[which]++;
}

static void assert_seen(seen *s, const pages *p, int which)
{
    const uint64_t bytes = p->slabs[which].bytes;
    assert_int_equal(s->wrong[which], 0);
    assert_int_equal(s->copied[which], bytes);
    assert_int_equal(s->calls[which], (bytes + CHUNK - 1) / CHUNK);
    assert_int_equal(group_in(p->offload, p->slabs[which].group).copied_bytes, bytes);
    s->calls[which] = s->copied[which] = 0;
}

static void assert_round(bp_backing backing, uint32_t max_delay_us)
{
    seen s = {0};
    bp_offload_config config = config_with(backing, CHUNK - 5);
    config.progress = watch;
    config.user = &s;
    PAGES p = open_pages(new_slow_host(max_delay_us, 7), &config);
    for (uint32_t round = 0; round < 2; round++) { /* both groups in transition at once, in both directions */
        assert_ok(bp_offload_begin(p.offload, "param", BP_OFFLOAD_KEEP));
        assert_ok(bp_offload_begin(p.offload, "grad", BP_OFFLOAD_KEEP));
        assert_ok(bp_offload_finish(p.offload, "grad"));
        assert_seen(&s, &p, 1);
        assert_ok(bp_restore_begin(p.offload, "grad", BP_RESTORE_LEAVE)); /* while param may still be copied out */
        assert_ok(bp_offload_finish(p.offload, "param"));
        assert_seen(&s, &p, 0);
        assert_ok(bp_restore_begin(p.offload, "param", BP_RESTORE_LEAVE));
        assert_ok(bp_restore_finish(p.offload, "param"));
        assert_ok(bp_restore_finish(p.offload, "grad"));
        assert_seen(&s, &p, 0);
        assert_seen(&s, &p, 1);
        for (uint32_t i = 0; i < 2; i++) {
            assert_pages(&p.slabs[i], 2 * round + i);
            write_pages(&p.slabs[i], 2 * round + 2 + i);
        }
    }
    assert_int_equal(group_in(p.offload, "param").pinned, backing == BP_BACKING_PINNED);
}

TEST(pinned)
{
    assert_round(BP_BACKING_PINNED, 0);
    assert_round(BP_BACKING_PINNED, 200);
}

TEST(staged)
{
    assert_round(BP_BACKING_STAGED, 0);
    assert_round(BP_BACKING_STAGED, 200);
}

/* ---- resources ------------------------------------------------------------------------------------------------------ */

static uint64_t pinned_bytes(const bp_pinned *pinned)
{
    bp_pinned_statistics statistics = {.size = sizeof statistics};
    assert_ok(bp_pinned_statistics_get(pinned, &statistics));
    return statistics.pinned_bytes;
}

static void go_and_come(const pages *p, const char *group)
{
    assert_ok(bp_offload_begin(p->offload, group, BP_OFFLOAD_KEEP));
    assert_ok(bp_offload_finish(p->offload, group));
    assert_ok(bp_restore_begin(p->offload, group, BP_RESTORE_ZERO));
    assert_ok(bp_restore_finish(p->offload, group));
}

/* Two chunks, whatever the size; smaller ones if they cannot be allocated, unless their size was explicit. */
TEST(stages_pin_little)
{
    const bp_backing backings[] = {BP_BACKING_STAGED, BP_BACKING_AUTO, BP_BACKING_AUTO, BP_BACKING_STAGED};
    const uint64_t most[] = {16 * PAGE, 16 * PAGE, 3 * PAGE, 3 * PAGE}, want[] = {8 * PAGE, 8 * PAGE, 2 * PAGE, 0};
    for (int i = 0; i < 4; i++) {
        bp_pinned_config limits;
        assert_ok(bp_pinned_config_init(&limits, sizeof limits));
        limits.most_bytes = most[i];
        limits.planned_bytes = PAGE;
        bp_device *device = new_host();
        bp_pinned *pinned = NULL;
        assert_ok(bp_pinned_create(device, &limits, &pinned));
        bp_offload_config config = config_with(backings[i], 4 * PAGE);
        config.pinned = pinned;
        PAGES p = open_pages(device, &config);
        assert_int_equal(pinned_bytes(pinned), 0);
        if (want[i] > 0) {
            go_and_come(&p, "param");
            assert_int_equal(group_in(p.offload, "param").host_bytes, p.slabs[0].bytes);
        } else {
            char limit[32];
            snprintf(limit, sizeof limit, "%llu", (unsigned long long)most[i]);
            assert_fails(bp_offload_begin(p.offload, "param", BP_OFFLOAD_KEEP), BP_ERR_NO_HOST_MEMORY, limit);
        }
        assert_pages(&p.slabs[0], 0);
        assert_int_equal(group_in(p.offload, "param").pinned, 0);
        assert_int_equal(pinned_bytes(pinned), want[i]);
        bp_offload_trim(p.offload);
        assert_int_equal(pinned_bytes(pinned), 0);
        assert_int_equal(group_in(p.offload, "param").host_bytes, 0);
        bp_pinned_destroy(&pinned);
    }
}

/* A failed call does not change the report about earlier copies. */
TEST(failures_leave_numbers)
{
    PAGES p = open_pages(new_host(), NULL);
    go_and_come(&p, "param");
    const bp_offload_group before = group_in(p.offload, "param");
    assert_int_equal(before.copied_bytes, before.bytes);
    take(&p.k, param(&p.k, 0), p.k.streams[0]);
    assert_fails(bp_offload_begin(p.offload, "param", BP_OFFLOAD_KEEP), BP_ERR_SCHEDULE, "param", "u0");
    const bp_offload_group after = group_in(p.offload, "param");
    assert_int_equal(after.copied_bytes, before.copied_bytes);
    assert_int_equal(after.host_bytes, before.bytes);
    assert_int_equal(after.residency, BP_RESIDENT);
    drop(&p.k, param(&p.k, 0), p.k.streams[0]);
}

/* One event per group, for any number of chunks. */
TEST(events_do_not_grow)
{
    op_counts counts;
    memset(&counts, 0, sizeof counts);
    for (int staged = 0; staged < 2; staged++) {
        bp_offload_config config = config_with(staged ? BP_BACKING_STAGED : BP_BACKING_PINNED, PAGE);
        PAGES p = open_pages(new_counted(new_host(), &counts), &config);
        unsigned long events = atomic_load(&counts.calls[OP_EVENT_CREATE]);
        unsigned long copies = atomic_load(&counts.calls[OP_COPY]);
        go_and_come(&p, "param");
        go_and_come(&p, "param");
        assert_int_equal(atomic_load(&counts.calls[OP_EVENT_CREATE]), events + 1);
        assert_int_equal(atomic_load(&counts.calls[OP_COPY]), copies + 4 * (p.slabs[0].bytes / PAGE));
        assert_pages(&p.slabs[0], 0);
    }
}

/* Pages of this process that are backed by files in memory, like slabs of the host device: as the kernel counts, late by 64 pages for each thread. */
static uint64_t shared_bytes(void)
{
    unsigned long size, resident, shared;
    FILE *file = fopen("/proc/self/statm", "r");
    assert_non_null(file);
    assert_int_equal(fscanf(file, "%lu %lu %lu", &size, &resident, &shared), 3);
    fclose(file);
    return (uint64_t)shared * PAGE;
}

TEST(memory_freed)
{
    bp_offload_config config = config_with(BP_BACKING_PINNED, 0);
    PAGES p = {.k = begin_kit(new_host(), "8000000", PARAM_ONLY, BP_POLICY_MAX, 0)};
    bp_pool_config pool = pool_config();
    open_pool(&p.k, &pool);
    assert_ok(bp_offload_create(p.k.pool, &config, &p.offload));
    p.slabs[0] = bp_pool_get_info(p.k.pool)->slabs[0];
    for (uint32_t flags = BP_OFFLOAD_KEEP; flags <= BP_OFFLOAD_DISCARD; flags++) {
        write_pages(&p.slabs[0], flags);
        const uint64_t before = shared_bytes();
        assert_ok(bp_offload_begin(p.offload, "param", flags));
        assert_ok(bp_offload_finish(p.offload, "param"));
        assert_true(shared_bytes() + p.slabs[0].bytes / 2 < before);
        assert_int_equal(usage_of(p.k.device).committed_bytes, 0);
        assert_ok(bp_restore_begin(p.offload, "param", BP_RESTORE_LEAVE));
        assert_ok(bp_restore_finish(p.offload, "param"));
    }
}

/* ---- order ---------------------------------------------------------------------------------------------------------- */

typedef struct faults {
    device_operation operation;
    unsigned until; /* 1: the next */
} faults;

static bp_status maybe_fail(void *user, const device_call *call)
{
    faults *f = user;
    return f->until > 0 && call->operation == f->operation && --f->until == 0 ? BP_ERR_IO : BP_OK;
}

/* Begin calls do not block, even if they fail after some copies were enqueued behind a blocked stream. Those copies have no effect, and
 * the next call succeeds. */
TEST(failures_do_not_wait)
{
    for (int staged = 0; staged < 2; staged++) {
        seen s = {0};
        faults f = {.until = 0};
        bp_device *inner = new_host(), *device = NULL;
        assert_ok(trace_device_create(inner, maybe_fail, &f, &device));
        bp_device_destroy(&inner);
        bp_offload_config config = config_with(staged ? BP_BACKING_STAGED : BP_BACKING_PINNED, CHUNK);
        config.progress = watch;
        config.user = &s;
        PAGES p = open_pages(device, &config);
        gate g = {0};
        block(p.k.streams[2], &g);
        assert_ok(bp_stream_fill(p.k.streams[2], p.slabs[1].address, 0x5a, p.slabs[1].bytes));
        for (unsigned nth = 1; nth <= 4; nth++) {
            f = (faults){OP_COPY, nth};
            assert_fails(bp_offload_begin(p.offload, "grad", BP_OFFLOAD_KEEP), BP_ERR_IO, "copy");
            assert_int_equal(f.until, 0);
            bp_offload_group group = group_in(p.offload, "grad");
            assert_int_equal(group.residency, BP_RESIDENT);
            assert_int_equal(group.host_bytes, 0);
        }
        assert_ok(bp_offload_begin(p.offload, "grad", BP_OFFLOAD_KEEP));
        assert_int_equal(s.calls[1], 0);
        unblock(&g);
        assert_ok(bp_offload_finish(p.offload, "grad"));
        assert_seen(&s, &p, 1);
        assert_ok(bp_restore_begin(p.offload, "grad", BP_RESTORE_ZERO));
        assert_ok(bp_restore_finish(p.offload, "grad"));
        const uint8_t *bytes = p.slabs[1].address;
        for (uint64_t i = 0; i < p.slabs[1].bytes; i++)
            assert_int_equal(bytes[i], 0x5a);
    }
}
