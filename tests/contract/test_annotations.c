/* SPDX-License-Identifier: Apache-2.0 */
/* Annotations as an injection library receives them. Argument: its path, or "" if the library was built without NVTX. */
#include <dlfcn.h>

#include <bucketpool/capture.h>
#include <bucketpool/comm.h>

#include "fakes/nvtx/fake_nvtx.h"
#include "support/interpose.h"
#include "support/pools.h"

static fake_nvtx_look *look;
static fake_nvtx_saw *saw;
static fake_nvtx_region *region_bytes;

static fake_nvtx_counts seen(void)
{
    fake_nvtx_counts counts;
    look(&counts);
    assert_string_equal(counts.first, "");
    assert_int_equal(counts.wrong, 0);
    return counts;
}

static void assert_closed(void)
{
    const fake_nvtx_counts counts = seen();
    assert_int_equal(counts.open_heaps, 0);
    assert_int_equal(counts.open_regions, 0);
    assert_int_equal(counts.open_ranges, 0);
    assert_int_equal(counts.depth, 0);
}

static const device_row HOST = {"host", new_host, HOST_READS};

static kit open_annotated(const allocator_row *row, const device_row *device, bp_annotate annotate)
{
    kit k = begin_kit(device->create(), UNITS, TRAINING, row->policy, 0);
    bp_pool_config config = config_of(row);
    config.annotate = annotate;
    config.name = "annotated";
    open_pool(&k, &config);
    return k;
}

/* Regions are the live requests, with their bound sizes; slabs are heaps. */
TEST(holds)
{
    for (size_t a = 0; a < ALLOCATOR_COUNT; a++) {
        const fake_nvtx_counts before = seen();
        kit k = open_annotated(&ALLOCATORS[a], &HOST, BP_ANNOTATE_ON);
        assert_true(bp_pool_get_info(k.pool)->annotated);
        fake_nvtx_counts now = seen();
        assert_int_equal(now.heaps - before.heaps, bp_pool_get_info(k.pool)->slab_count);
        assert_int_equal(now.open_heaps, bp_pool_get_info(k.pool)->slab_count);
        assert_int_equal(now.pushes - before.pushes, 1); /* creation */
        uint32_t u0 = param(&k, 0), u1 = param(&k, 1);
        const bool in_slabs = ALLOCATORS[a].pooled;
        const unsigned char *address = take(&k, u0, k.streams[0]);
        assert_string_equal(seen().text, "u0/bucket.0 param");
        if (in_slabs)
            assert_string_equal(seen().region, "u0/bucket.0 param");
        const bp_plan_request r = bp_pool_get_info(k.pool)->requests[u0];
        assert_int_equal(region_bytes(address), in_slabs ? r.bytes : 0);
        assert_int_equal(region_bytes(address + r.bytes), 0);
        take(&k, u0, k.streams[1]); /* again: still one region */
        assert_ok(bp_pool_use(k.pool, &u0, 1, k.streams[2]));
        take(&k, u1, k.streams[0]);
        now = seen();
        assert_int_equal(now.open_regions, in_slabs ? 2 : 0);
        assert_int_equal(now.open_ranges, 2);
        drop(&k, u0, k.streams[1]);
        assert_int_equal(seen().open_ranges, 2);
        drop(&k, u0, k.streams[0]);
        assert_int_equal(region_bytes(address), 0);
        assert_ok(bp_pool_cancel(k.pool, &u1, 1));
        now = seen();
        assert_int_equal(now.open_regions, 0);
        assert_int_equal(now.open_ranges, 0);
        end_kit(&k);
        assert_closed();
    }
}

/* Whole training steps on every allocator and device. */
TEST(walks)
{
    for (size_t a = 0; a < ALLOCATOR_COUNT; a++) {
        for (size_t d = 0; d < device_count(); d++) {
            kit k = open_annotated(&ALLOCATORS[a], device_at(d), BP_ANNOTATE_ON);
            const fake_nvtx_counts before = seen();
            walk(&k, 3, NULL, false);
            const fake_nvtx_counts now = seen();
            const bp_pool_statistics s = statistics_of(k.pool);
            assert_int_equal(now.ranges - before.ranges, s.acquires - s.repeated);
            assert_int_equal(now.regions - before.regions, ALLOCATORS[a].pooled ? s.acquires - s.repeated : 0);
            end_kit(&k);
            assert_closed();
        }
    }
}

/* Zeros are written into a region; a refused acquire leaves none. */
TEST(zeros_and_refusals)
{
    kit k = begin_kit(new_host(), UNITS, TRAINING, BP_POLICY_MAX, 0);
    bp_pool_config config = pool_config();
    config.annotate = BP_ANNOTATE_ON;
    config.persistent_bytes = 1 << 16;
    open_pool(&k, &config);
    bp_bind bind = bind_of("", 0, BP_ROLE_PARAM, BP_DTYPE_BF16, 1000);
    uint32_t id;
    assert_ok(bp_pool_bind(k.pool, &bind, &id));
    assert_ok(bp_pool_set_zero(k.pool, &id, 1, BP_ZERO_ALL));
    const unsigned char *address = take(&k, id, k.streams[0]);
    assert_int_equal(region_bytes(address), 1000);
    assert_int_equal(seen().open_regions, 1);
    assert_string_equal(seen().text, "outside units/bucket.0 param");
    drop(&k, id, k.streams[0]);
    take(&k, param(&k, 0), k.streams[0]);
    take(&k, param(&k, 1), k.streams[0]);
    const fake_nvtx_counts before = seen();
    assert_refused(&k, param(&k, 2), k.streams[0], "u2");
    assert_int_equal(seen().regions, before.regions);
    assert_int_equal(seen().ranges, before.ranges);
    drop(&k, param(&k, 0), k.streams[0]);
    drop(&k, param(&k, 1), k.streams[0]);
    end_kit(&k);
    assert_closed();
}

TEST(stages)
{
    kit k = open_annotated(&ALLOCATORS[0], &HOST, BP_ANNOTATE_ON);
    assert_true(saw("create annotated"));
    for (uint64_t step = 40; step < 43; step++)
        bp_pool_set_step(k.pool, step);
    assert_true(saw("annotated step 40"));
    assert_true(saw("annotated step 42"));
    assert_false(saw("annotated step 43"));
    assert_int_equal(seen().open_ranges, 1);
    bp_comm *comm;
    bp_registration *registration;
    bp_registration_entry entry;
    assert_ok(bp_comm_create_self(&comm));
    assert_ok(bp_registration_entry_init(&entry, sizeof entry));
    entry.comm = comm;
    assert_ok(bp_registration_create(k.pool, &entry, 1, &registration));
    assert_true(saw("register annotated"));
    bp_registration_destroy(&registration);
    bp_comm_destroy(&comm);
    bp_capture *capture;
    assert_ok(bp_capture_begin(k.pool, NULL, &capture));
    assert_true(saw("capture capture.0"));
    assert_int_equal(seen().open_ranges, 2);
    assert_ok(bp_capture_end(capture));
    assert_int_equal(seen().open_ranges, 1);
    bp_capture_destroy(&capture);
    end_kit(&k);
    assert_closed();
}

/* Annotations of live requests end with the pool, and with a cancelled capture. */
TEST(early_ends)
{
    kit k = open_annotated(&ALLOCATORS[1], &HOST, BP_ANNOTATE_ON);
    bp_capture *capture;
    assert_ok(bp_capture_begin(k.pool, NULL, &capture));
    take(&k, param(&k, 0), k.streams[0]);
    assert_int_equal(seen().open_ranges, 2);
    bp_capture_destroy(&capture);
    assert_int_equal(seen().open_ranges, 0);
    assert_int_equal(seen().open_regions, 0);
    take(&k, param(&k, 0), k.streams[0]);
    bp_pool_set_step(k.pool, 7);
    bp_pool_destroy(&k.pool);
    end_kit(&k);
    assert_closed();
}

TEST(off)
{
    const fake_nvtx_counts before = seen();
    kit k = open_annotated(&ALLOCATORS[0], &HOST, BP_ANNOTATE_OFF);
    assert_false(bp_pool_get_info(k.pool)->annotated);
    walk(&k, 1, NULL, false);
    bp_pool_set_step(k.pool, 1);
    end_kit(&k);
    const fake_nvtx_counts now = seen();
    assert_memory_equal(&before, &now, sizeof now);
}

TEST(environment)
{
    char *path = strdup(getenv("NVTX_INJECTION64_PATH"));
    static const struct {
        bool injection;
        const char *variable;
        bool on;
    } cases[] = {{true, NULL, true}, {false, NULL, false}, {false, "1", true}, {false, "0", false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        unsetenv("NVTX_INJECTION64_PATH");
        unsetenv("BUCKETPOOL_NVTX");
        if (cases[i].injection)
            setenv("NVTX_INJECTION64_PATH", path, 1);
        if (cases[i].variable != NULL)
            setenv("BUCKETPOOL_NVTX", cases[i].variable, 1);
        KIT k = open_annotated(&ALLOCATORS[0], &HOST, BP_ANNOTATE_ENVIRONMENT);
        assert_int_equal(bp_pool_get_info(k.pool)->annotated, cases[i].on);
    }
    setenv("NVTX_INJECTION64_PATH", path, 1);
    free(path);
    kit k = begin_kit(new_host(), UNITS, TRAINING, BP_POLICY_MAX, 0);
    bp_pool_config config = pool_config();
    config.annotate = (bp_annotate)3;
    assert_int_equal(bp_pool_create(k.device, k.plan, &config, &k.pool), BP_ERR_INVALID_ARGUMENT);
    end_kit(&k);
    assert_closed();
}

/* With annotations on, the hot path still allocates nothing and takes no locks. */
TEST(nothing_of_ours)
{
    for (size_t a = 0; a < ALLOCATOR_COUNT; a++) {
        if (!ALLOCATORS[a].pooled)
            continue;
        KIT k = open_annotated(&ALLOCATORS[a], &HOST, BP_ANNOTATE_ON);
        uint32_t id = param(&k, 0);
        take(&k, id, k.streams[0]);
        drop(&k, id, k.streams[0]);
        watch();
        bp_status taken = bp_pool_acquire(k.pool, &id, 1, k.streams[0], NULL);
        bp_pool_set_step(k.pool, 3);
        bp_status dropped = bp_pool_release(k.pool, &id, 1, k.streams[0]);
        const watched w = unwatch();
        assert_ok(taken);
        assert_ok(dropped);
        assert_int_equal(w.allocations, 0);
        assert_int_equal(w.locks, 0);
    }
}

int main(int argc, char **argv)
{
    if (argc < 2 || *argv[1] == '\0') {
        puts("NVTX's headers were not found when this was built");
        return 77;
    }
    void *library = dlopen(argv[1], RTLD_NOW);
    if (library == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    void *functions[] = {dlsym(library, "fake_nvtx_counts_get"), dlsym(library, "fake_nvtx_saw_range"),
                         dlsym(library, "fake_nvtx_region_bytes")};
    memcpy(&look, &functions[0], sizeof look);
    memcpy(&saw, &functions[1], sizeof saw);
    memcpy(&region_bytes, &functions[2], sizeof region_bytes);
    setenv("NVTX_INJECTION64_PATH", argv[1], 1);
    return run_suite();
}
