/* SPDX-License-Identifier: Apache-2.0 */
/* The device is out of memory at a restore, because of other allocations: everything is undone, the bytes stay on the host, and a retry
 * is possible. */
#include <bucketpool/device_ops.h>

#include "faults.h"
#include "support/driver.h"

#define LIMIT (UINT64_C(96) << 20)

static const store_options SHARDS = {.groups = {[2] = "shards", [3] = "shards", [4] = "shards"}};

static bp_device *new_limited(void)
{
    bp_device *device = NULL;
    if (has_driver()) {
        bp_cuda_config config;
        assert_ok(bp_cuda_config_init(&config, sizeof config));
        config.memory_bytes = LIMIT;
        assert_ok(bp_device_create_cuda_from(&config, driver(), &device));
        return device;
    }
    bp_host_config config;
    assert_ok(bp_host_config_init(&config, sizeof config));
    config.memory_bytes = LIMIT;
    assert_ok(bp_device_create_host(&config, &device));
    return device;
}

/* Allocates the device's memory except `left` bytes, rounded up to the granularity. */
typedef struct squatter {
    const bp_device_ops *ops;
    void *self;
    uint64_t handle;
} squatter;

static squatter squat(const bp_device *device, uint64_t left)
{
    squatter other;
    other.ops = bp_device_table(device, &other.self);
    uint64_t granularity = granularity_of(device), free_bytes = LIMIT - usage_of(device).committed_bytes;
    assert_true(free_bytes > left);
    uint64_t bytes = (free_bytes - left) / granularity * granularity;
    assert_ok(other.ops->commit(other.self, bytes, &other.handle));
    return other;
}

static void leave(squatter *other)
{
    assert_ok(other->ops->decommit(other->self, other->handle));
}

static void come_back_late(bool kept, bp_restore fill)
{
    const trip t = {"shards", kept, fill};
    STORE s = open_store(new_limited(), &SHARDS, NULL);
    uint64_t needs[3] = {0, s.slabs[2].bytes, s.slabs[2].bytes + s.slabs[3].bytes};
    for (int fits = 0; fits < 3; fits++) { /* slabs that fit */
        char wanted[32];
        advance_to(&s, &t, BEGIN_RESTORE);
        squatter other = squat(s.k.device, needs[fits]);
        snprintf(wanted, sizeof wanted, "%llu", (unsigned long long)s.slabs[2 + fits].bytes);
        store_state before = state_of(&s);
        for (int again = 0; again < 2; again++) {
            assert_fails(bp_restore_begin(s.offload, "shards", fill), BP_ERR_NO_DEVICE_MEMORY, wanted);
            assert_same_state(&s, &before);
        }
        work_on(&s, of_role(&s, BP_ROLE_PARAM), s.k.streams[0], s.k.streams[1]);
        keep(&s, "grad"); /* other groups are offloaded and restored meanwhile */
        bring_back(&s, "grad", BP_RESTORE_LEAVE);
        assert_bytes(&s);
        leave(&other);
        recover(&s, &t);
    }
    assert_bytes(&s);
}

TEST(kept)
{
    come_back_late(true, BP_RESTORE_LEAVE);
}

TEST(discarded)
{
    come_back_late(false, BP_RESTORE_ZERO);
}

/* The caller may make room by offloading another group. */
TEST(room_is_made)
{
    STORE s = open_store(new_limited(), NULL, NULL);
    keep(&s, "main_grad");
    squatter other = squat(s.k.device, 0);
    assert_fails(bp_restore_begin(s.offload, "main_grad", BP_RESTORE_LEAVE), BP_ERR_NO_DEVICE_MEMORY, NULL);
    keep(&s, "optimizer");
    bring_back(&s, "main_grad", BP_RESTORE_LEAVE);
    assert_bytes(&s);
    leave(&other);
    bring_back(&s, "optimizer", BP_RESTORE_LEAVE);
    assert_bytes(&s);
}

/* A pool destroyed with groups that could not be restored. */
TEST(given_up)
{
    STORE s = open_store(new_limited(), NULL, NULL);
    keep(&s, "main_grad");
    squatter other = squat(s.k.device, 0);
    assert_fails(bp_restore_begin(s.offload, "main_grad", BP_RESTORE_LEAVE), BP_ERR_NO_DEVICE_MEMORY, NULL);
    leave(&other);
}
