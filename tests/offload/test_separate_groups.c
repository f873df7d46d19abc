/* SPDX-License-Identifier: Apache-2.0 */
/* Independence of groups. SkyRL, PR 563: weight syncing needs the model alone on the GPU, but gradients were restored with it, their size
 * was not saved, and the condition to restore them could never hold. */
#include "stores.h"
#include "support/driver.h"

static const char *const ALL[] = {"param", "grad", "state", "main_grad", "optimizer", "persistent"};
#define ALL_COUNT (sizeof ALL / sizeof *ALL)

static const store_options WITH_PERSISTENT = {.persistent_bytes = 20000};

/* Optimizer and gradients are offloaded while parameters are used and sent; afterwards gradients and optimizer are as they were. */
TEST(weight_sync)
{
    STORE s = open_store(new_slow_device(50, 9), NULL, NULL);
    for (int step = 0; step < 5; step++) {
        for (size_t i = 0; i < s.k.requests; i++) { /* an iteration writes everything */
            if (is_state(request_at(&s, s.k.ids[i])))
                write_request(&s, s.k.ids[i], s.k.streams[0]);
            else
                work_on(&s, s.k.ids[i], s.k.streams[1], s.k.streams[2]);
        }
        begin_keep(&s, "optimizer");
        begin_keep(&s, "main_grad");
        begin_keep(&s, "grad");
        finish_offload(&s, "main_grad");
        finish_offload(&s, "optimizer");
        finish_offload(&s, "grad");
        assert_bytes(&s); /* the weights are resident for sending */
        work_on(&s, of_role(&s, BP_ROLE_PARAM), s.k.streams[1], s.k.streams[2]);
        keep(&s, "param"); /* generation: only what it needs is resident */
        keep(&s, "state");
        bring_back(&s, "param", BP_RESTORE_LEAVE);
        bring_back(&s, "state", BP_RESTORE_LEAVE);
        begin_restore(&s, "grad", BP_RESTORE_ZERO); /* kept bytes are restored, whatever fill is passed */
        begin_restore(&s, "optimizer", BP_RESTORE_ZERO);
        begin_restore(&s, "main_grad", BP_RESTORE_LEAVE);
        finish_restore(&s, "main_grad", BP_RESTORE_LEAVE);
        finish_restore(&s, "grad", BP_RESTORE_ZERO);
        finish_restore(&s, "optimizer", BP_RESTORE_ZERO);
        assert_bytes(&s);
    }
}

/* All groups together, restored in every rotation of their order. */
TEST(all_at_once)
{
    STORE s = open_store(new_slow_device(50, 11), &WITH_PERSISTENT, NULL);
    for (unsigned shift = 0; shift < ALL_COUNT; shift++) {
        for (unsigned i = 0; i < ALL_COUNT; i++)
            begin_keep(&s, ALL[i]);
        for (unsigned i = 0; i < ALL_COUNT; i++)
            finish_offload(&s, ALL[(i + shift) % ALL_COUNT]);
        assert_int_equal(usage_of(s.k.device).committed_bytes, 0);
        for (unsigned i = 0; i < ALL_COUNT; i++)
            begin_restore(&s, ALL[(i + 2 * shift) % ALL_COUNT], BP_RESTORE_LEAVE);
        for (unsigned i = ALL_COUNT; i-- > 0;)
            finish_restore(&s, ALL[(i + shift) % ALL_COUNT], BP_RESTORE_LEAVE);
        assert_bytes(&s);
        for (size_t i = 0; i < s.slab_count; i++)
            write_slab(&s, i, s.k.streams[0]);
    }
}

/* Slabs with the same name from the caller are one group. */
TEST(named_groups)
{
    STORE s =
        open_store(new_device(), &(store_options){.groups = {[3] = "training only", [4] = "training only"}}, NULL);
    assert_int_equal(group_count(s.offload), 4);
    bp_offload_group group = group_of(s.offload, "training only");
    assert_int_equal(group.slabs, 2);
    assert_int_equal(group.bytes, s.slabs[3].bytes + s.slabs[4].bytes);
    uint64_t all = usage_of(s.k.device).committed_bytes;
    keep(&s, "training only");
    assert_int_equal(usage_of(s.k.device).committed_bytes, all - group.bytes);
    assert_refused(&s.k, of_role(&s, BP_ROLE_OPTIMIZER), s.k.streams[0], "training only");
    assert_refused(&s.k, of_role(&s, BP_ROLE_MAIN_GRAD), s.k.streams[0], "training only");
    assert_fails(bp_offload_begin(s.offload, "optimizer", BP_OFFLOAD_KEEP), BP_ERR_INVALID_ARGUMENT, "training only");
    bring_back(&s, "training only", BP_RESTORE_LEAVE);
    assert_bytes(&s);
}

/* Sealing fixes the assignment of buffers: groups can still be offloaded and restored. */
TEST(sealed)
{
    for (int before = 0; before < 2; before++) {
        STORE s = open_store(new_device(), NULL, NULL);
        if (before) {
            bp_offload_destroy(&s.offload);
            assert_ok(bp_pool_seal(s.k.pool));
            assert_ok(bp_offload_create(s.k.pool, NULL, &s.offload));
        } else
            assert_ok(bp_pool_seal(s.k.pool));
        keep(&s, "param");
        discard(&s, "grad");
        bring_back(&s, "param", BP_RESTORE_LEAVE);
        bring_back(&s, "grad", BP_RESTORE_ZERO);
        assert_bytes(&s);
    }
}
