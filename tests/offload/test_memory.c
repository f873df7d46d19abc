/* SPDX-License-Identifier: Apache-2.0 */
/* Memory is really freed: counts of the device, of the process and of the emulated driver; and the host memory that is retained. */
#include <unistd.h>

#include "stores.h"
#include "support/driver.h"

#define MIB (UINT64_C(1) << 20)
/* State of 24 MiB, main gradients of 48, an optimizer of 144. */
#define LARGE "6291456,6291456"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || defined(__SANITIZE_MEMORY__)
#define IS_WATCHED 1 /* a sanitizer allocates memory, too */
#else
#define IS_WATCHED 0
#endif

static const store_options STATE_ALONE = {.units = LARGE, .roles = BP_ROLES_STATE & ~OPTIMIZER};

/* Of the process: all pages, and those of files or shared memory, which the host device uses. */
static uint64_t resident(bool shared)
{
    unsigned long all = 0, of_files = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (file == NULL)
        return 0;
    int got = fscanf(file, "%*u %lu %lu", &all, &of_files);
    fclose(file);
    assert_int_equal(got, 2);
    return (uint64_t)(shared ? of_files : all) * (uint64_t)sysconf(_SC_PAGESIZE);
}

static uint64_t used_of_driver(void)
{
    uint64_t (*used)(int);
    *(void **)&used = has_driver() ? driver_symbol("fake_cuda_used") : NULL;
    return used != NULL ? used(0) : UINT64_MAX;
}

static void assert_near(uint64_t value, uint64_t expected, uint64_t slack)
{
    if (value + slack < expected || expected + slack < value)
        fail_msg("%llu bytes, expected %llu, %llu more or less", (unsigned long long)value,
                 (unsigned long long)expected, (unsigned long long)slack);
}

TEST(usage)
{
    STORE s = open_store(new_device(), NULL, NULL);
    uint64_t all = usage_of(s.k.device).committed_bytes, used = used_of_driver();
    for (int kept = 0; kept < 2; kept++) {
        bp_offload_group group = group_of(s.offload, "optimizer");
        if (kept)
            begin_keep(&s, "optimizer");
        else
            begin_discard(&s, "optimizer");
        assert_int_equal(usage_of(s.k.device).committed_bytes, all);
        finish_offload(&s, "optimizer");
        assert_int_equal(usage_of(s.k.device).committed_bytes, all - group.bytes);
        if (used != UINT64_MAX)
            assert_int_equal(used_of_driver(), used - group.bytes);
        begin_restore(&s, "optimizer", BP_RESTORE_ZERO);
        assert_int_equal(usage_of(s.k.device).committed_bytes, all);
        finish_restore(&s, "optimizer", BP_RESTORE_ZERO);
        assert_int_equal(usage_of(s.k.device).committed_bytes, all);
        if (used != UINT64_MAX)
            assert_int_equal(used_of_driver(), used);
    }
    assert_int_equal(usage_of(s.k.device).peak_committed_bytes, all);
}

/* Pages of the host device return to the system. */
TEST(pages_of_discarded_memory)
{
    if (has_driver() || IS_WATCHED)
        skip();
    STORE s = open_store(new_host(), &STATE_ALONE, NULL);
    uint64_t bytes = bytes_of_group(&s, "main_grad"), before = resident(false);
    assert_true(bytes >= 48 * MIB);
    discard(&s, "main_grad");
    assert_near(resident(false), before - bytes, 4 * MIB);
    bring_back(&s, "main_grad", BP_RESTORE_LEAVE);
    assert_true(resident(false) <= before + 4 * MIB);
    write_slab(&s, slab_of_group(&s, "main_grad"), s.k.streams[0]);
    assert_bytes(&s);
}

TEST(pages_of_kept_memory)
{
    if (has_driver() || IS_WATCHED)
        skip();
    for (int staged = 0; staged < 2; staged++) {
        bp_offload_config config = offload_config(4 * MIB, staged ? BP_BACKING_STAGED : BP_BACKING_PINNED);
        STORE s = open_store(new_host(), &STATE_ALONE, &config);
        uint64_t bytes = bytes_of_group(&s, "main_grad"), before = resident(false), files = resident(true);
        keep(&s, "main_grad");
        assert_near(resident(true), files - bytes, 4 * MIB);           /* the device's memory */
        assert_near(resident(false), before, (staged ? 12 : 4) * MIB); /* now in host memory */
        bring_back(&s, "main_grad", BP_RESTORE_LEAVE);
        assert_near(resident(true), files, 4 * MIB);
        bp_offload_trim(s.offload);
        assert_near(resident(false), before, 8 * MIB);
        assert_bytes(&s);
    }
}

/* Host memory is retained until trimmed; an offloaded group keeps its own. */
TEST(host_memory_is_retained)
{
    const bp_backing backings[] = {BP_BACKING_AUTO, BP_BACKING_PINNED, BP_BACKING_STAGED};
    for (size_t i = 0; i < 3; i++) {
        bp_offload_config config = offload_config(1 << 16, backings[i]);
        STORE s = open_store(new_device(), NULL, &config);
        uint64_t bytes = bytes_of_group(&s, "optimizer");
        keep(&s, "optimizer");
        keep(&s, "main_grad");
        bp_offload_group group = group_of(s.offload, "optimizer");
        uint64_t host_bytes = group.host_bytes;
        assert_int_equal(group.kept_bytes, bytes);
        assert_true(host_bytes >= bytes);
        assert_int_equal(group.pinned, backings[i] == BP_BACKING_STAGED ? 0 : 1);
        bring_back(&s, "optimizer", BP_RESTORE_LEAVE);
        assert_int_equal(group_of(s.offload, "optimizer").kept_bytes, 0);
        assert_int_equal(group_of(s.offload, "optimizer").host_bytes, host_bytes); /* retained */
        for (int round = 0; round < 3; round++) {
            keep(&s, "optimizer");
            assert_int_equal(group_of(s.offload, "optimizer").host_bytes, host_bytes); /* and no more */
            bring_back(&s, "optimizer", BP_RESTORE_LEAVE);
        }
        bp_offload_trim(s.offload);
        assert_int_equal(group_of(s.offload, "optimizer").host_bytes, 0);
        assert_true(group_of(s.offload, "main_grad").host_bytes >= bytes_of_group(&s, "main_grad"));
        keep(&s, "optimizer");
        bring_back(&s, "optimizer", BP_RESTORE_LEAVE);
        bring_back(&s, "main_grad", BP_RESTORE_LEAVE);
        assert_bytes(&s);
    }
}

static bp_pinned_statistics statistics_of_pinned(const bp_pinned *pinned)
{
    bp_pinned_statistics statistics = {.size = sizeof statistics};
    assert_ok(bp_pinned_statistics_get(pinned, &statistics));
    return statistics;
}

/* The caller's pinned memory: shared between offloads and freed; staging pins little. */
TEST(pinned_memory_of_the_caller)
{
    for (int staged = 0; staged < 2; staged++) {
        bp_device *device = new_device();
        bp_pinned *pinned = NULL;
        assert_ok(bp_pinned_create(device, NULL, &pinned));
        bp_offload_config config = offload_config(64 << 10, staged ? BP_BACKING_STAGED : BP_BACKING_PINNED);
        config.pinned = pinned;
        const store_options options = {.units = "1000000", .roles = BP_ROLES_STATE & ~OPTIMIZER};
        STORE s = open_store(device, &options, &config);
        uint64_t bytes = bytes_of_group(&s, "main_grad");
        keep(&s, "main_grad");
        bp_pinned_statistics now = statistics_of_pinned(pinned);
        if (staged)
            assert_true(now.planned_bytes + now.small_bytes <= 2 * (64 << 10));
        else
            assert_true(now.planned_bytes + now.small_bytes >= bytes);
        bring_back(&s, "main_grad", BP_RESTORE_LEAVE);
        bp_offload_trim(s.offload);
        now = statistics_of_pinned(pinned);
        if (!staged)
            assert_int_equal(now.planned_bytes + now.small_bytes, 0);
        bp_pinned *mine = pinned;
        bp_pinned_destroy(&mine); /* the offload has a reference */
        keep(&s, "main_grad");
        bring_back(&s, "main_grad", BP_RESTORE_LEAVE);
        assert_bytes(&s);
    }
}

/* The limit of pinned memory chooses between pinned and staged; an explicit choice that does not fit is an error, with the numbers. */
TEST(little_may_be_pinned)
{
    for (int automatic = 0; automatic < 2; automatic++) {
        bp_device *device = new_device();
        bp_pinned_config small;
        assert_ok(bp_pinned_config_init(&small, sizeof small));
        small.max_bytes = 1 << 20;
        small.slab_bytes = 512 << 10;
        small.planned_bytes = 1 << 20;
        bp_pinned *pinned = NULL;
        assert_ok(bp_pinned_create(device, &small, &pinned));
        bp_offload_config config = offload_config(64 << 10, automatic ? BP_BACKING_AUTO : BP_BACKING_PINNED);
        config.pinned = pinned;
        const store_options options = {.units = "1000000", .roles = BP_ROLES_STATE & ~OPTIMIZER};
        STORE s = open_store(device, &options, &config);
        bp_pinned_destroy(&pinned);
        if (automatic) {
            keep(&s, "main_grad");
            assert_int_equal(group_of(s.offload, "main_grad").pinned, 0);
            bring_back(&s, "main_grad", BP_RESTORE_LEAVE);
        } else {
            char number[32];
            snprintf(number, sizeof number, "%llu", (unsigned long long)bytes_of_group(&s, "main_grad"));
            store_state before = state_of(&s);
            assert_fails(bp_offload_begin(s.offload, "main_grad", BP_OFFLOAD_KEEP), BP_ERR_NO_HOST_MEMORY, number);
            assert_same_state(&s, &before);
            discard(&s, "main_grad"); /* uses none */
            bring_back(&s, "main_grad", BP_RESTORE_ZERO);
        }
        assert_bytes(&s);
    }
}

/* ---- progress ------------------------------------------------------------------------------------------------------ */

typedef struct told {
    char group[32];
    uint64_t last, bytes, max_step;
    unsigned calls, wrong;
} told;

static void listen(void *user, const char *group, uint64_t copied_bytes, uint64_t bytes)
{
    told *t = user;
    t += strcmp(group, "main_grad") == 0;
    uint64_t step = copied_bytes - t->last;
    t->wrong += copied_bytes <= t->last || copied_bytes > bytes || (t->calls > 0 && bytes != t->bytes);
    t->max_step = step > t->max_step ? step : t->max_step;
    t->last = copied_bytes;
    t->bytes = bytes;
    t->calls++;
    snprintf(t->group, sizeof t->group, "%s", group);
}

static void assert_told(told *t, const store *s, const char *group, uint64_t chunk_bytes)
{
    uint64_t bytes = bytes_of_group(s, group);
    assert_string_equal(t->group, group);
    assert_int_equal(t->wrong, 0);
    assert_int_equal(t->bytes, bytes);
    assert_int_equal(t->last, bytes);
    assert_true(t->max_step <= chunk_bytes);
    assert_int_equal(t->calls, (bytes + chunk_bytes - 1) / chunk_bytes);
    assert_int_equal(group_of(s->offload, group).copied_bytes, bytes);
    *t = (told){.calls = 0};
}

TEST(progress)
{
    for (int staged = 0; staged < 2; staged++) {
        told t[2] = {{.calls = 0}, {.calls = 0}};
        bp_offload_config config = offload_config(8192, staged ? BP_BACKING_STAGED : BP_BACKING_PINNED);
        config.progress = listen;
        config.user = t;
        STORE s = open_store(new_slow_device(20, 5), NULL, &config);
        begin_keep(&s, "optimizer");
        begin_keep(&s, "main_grad");
        finish_offload(&s, "optimizer");
        finish_offload(&s, "main_grad");
        assert_told(&t[0], &s, "optimizer", 8192);
        assert_told(&t[1], &s, "main_grad", 8192);
        begin_restore(&s, "main_grad", BP_RESTORE_LEAVE);
        begin_restore(&s, "optimizer", BP_RESTORE_LEAVE);
        finish_restore(&s, "main_grad", BP_RESTORE_LEAVE);
        finish_restore(&s, "optimizer", BP_RESTORE_LEAVE);
        assert_told(&t[0], &s, "optimizer", 8192);
        assert_told(&t[1], &s, "main_grad", 8192);
        discard(&s, "optimizer");
        bring_back(&s, "optimizer", BP_RESTORE_ZERO);
        assert_int_equal(t[0].calls, 0); /* nothing was copied */
        assert_bytes(&s);
    }
}

/* ---- resources ------------------------------------------------------------------------------------------------------ */

#define PAGE ((uint64_t)sysconf(_SC_PAGESIZE))

/* Two chunks, whatever the size; smaller ones if they cannot be allocated, unless their size was explicit. */
TEST(stages_pin_little)
{
    const bp_backing backings[] = {BP_BACKING_STAGED, BP_BACKING_AUTO, BP_BACKING_AUTO, BP_BACKING_STAGED};
    const uint64_t max[] = {16 * PAGE, 16 * PAGE, 3 * PAGE, 3 * PAGE}, want[] = {8 * PAGE, 8 * PAGE, 2 * PAGE, 0};
    for (int i = 0; i < 4; i++) {
        bp_pinned_config limits;
        assert_ok(bp_pinned_config_init(&limits, sizeof limits));
        limits.max_bytes = max[i];
        limits.planned_bytes = PAGE;
        bp_device *device = new_device();
        bp_pinned *pinned = NULL;
        assert_ok(bp_pinned_create(device, &limits, &pinned));
        bp_offload_config config = offload_config(4 * PAGE, backings[i]);
        config.pinned = pinned;
        STORE s = open_store(device, NULL, &config);
        char limit[32];
        snprintf(limit, sizeof limit, "%llu", (unsigned long long)max[i]);
        if (want[i] > 0) {
            keep(&s, "optimizer");
            assert_int_equal(group_of(s.offload, "optimizer").host_bytes, bytes_of_group(&s, "optimizer"));
            bring_back(&s, "optimizer", BP_RESTORE_ZERO);
        } else
            assert_fails(bp_offload_begin(s.offload, "optimizer", BP_OFFLOAD_KEEP), BP_ERR_NO_HOST_MEMORY, limit);
        assert_bytes(&s);
        assert_int_equal(group_of(s.offload, "optimizer").pinned, 0);
        assert_int_equal(statistics_of_pinned(pinned).pinned_bytes, want[i]);
        bp_offload_trim(s.offload);
        assert_int_equal(statistics_of_pinned(pinned).pinned_bytes, 0);
        bp_pinned_destroy(&pinned);
    }
}

/* One event per group, for any number of chunks. */
TEST(events_do_not_grow)
{
    for (int staged = 0; staged < 2; staged++) {
        op_counts counts;
        memset(&counts, 0, sizeof counts);
        bp_offload_config config = offload_config(4 * PAGE, staged ? BP_BACKING_STAGED : BP_BACKING_PINNED);
        STORE s = open_store(new_counted(new_device(), &counts), NULL, &config);
        const unsigned long events = counts.calls[OP_EVENT_CREATE], copies = counts.calls[OP_COPY];
        const unsigned long chunks = (unsigned long)((bytes_of_group(&s, "optimizer") + 4 * PAGE - 1) / (4 * PAGE));
        for (int round = 0; round < 2; round++) {
            keep(&s, "optimizer");
            bring_back(&s, "optimizer", BP_RESTORE_ZERO);
        }
        assert_int_equal(counts.calls[OP_EVENT_CREATE], events + 1);
        assert_int_equal(counts.calls[OP_COPY], copies + 4 * chunks);
        assert_bytes(&s);
    }
}
