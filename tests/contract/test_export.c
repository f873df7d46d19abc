/* SPDX-License-Identifier: Apache-2.0 */
/* DLPack tensors over a pool's memory: they hold no request live, and their memory outlives the pool. */
#include <bucketpool/dlpack.h>

#include <pthread.h>

#include "allocators/pool.h"
#include "support/pools.h"

/* The structs of the specification, declared independently, with the tags of the library: sanitizers compare the types of functions. */
typedef struct tensor {
    char *data;
    int32_t device_type, device_id, ndim;
    uint8_t code, bits;
    uint16_t lanes;
    int64_t *shape, *strides;
    uint64_t byte_offset;
} tensor;

typedef struct dl_managed {
    tensor dl;
    void *context;
    void (*deleter)(struct dl_managed *);
} managed;

typedef struct dl_managed_versioned {
    uint32_t major, minor;
    void *context;
    void (*deleter)(struct dl_managed_versioned *);
    uint64_t flags;
    tensor dl;
} managed_versioned;

static kit three_units(bp_device *device)
{
    kit k = begin_kit(device, "1000 1000 1000", PARAM_ONLY, BP_POLICY_MAX, 2);
    bp_pool_config config = pool_config();
    config.persistent_bytes = 4096;
    open_pool(&k, &config);
    return k;
}

static void *export_tensor(const kit *k, uint32_t id, bp_dtype dtype, int32_t versioned)
{
    bp_export_config what;
    void *made = NULL;
    assert_ok(bp_export_config_init(&what, sizeof what));
    what.id = id;
    what.dtype = dtype;
    what.versioned = versioned;
    assert_ok(bp_pool_export(k->pool, &what, &made));
    return made;
}

static void assert_tensor(const tensor *t, void *address, uint8_t code, uint8_t bits, int64_t numel)
{
    assert_ptr_equal(t->data, address);
    assert_int_equal(t->ndim, 1);
    assert_int_equal(t->code, code);
    assert_int_equal(t->bits, bits);
    assert_int_equal(t->lanes, 1);
    assert_int_equal(t->shape[0], numel);
    assert_int_equal(t->strides[0], 1);
    assert_int_equal(t->byte_offset, 0);
}

TEST(tensors)
{
    KIT k = three_units(new_device());
    char *address = take(&k, param(&k, 0), k.streams[0]);
    managed *plain = export_tensor(&k, param(&k, 0), BP_DTYPE_NONE, 0);
    assert_tensor(&plain->dl, address, 4, 16, 1000);
    managed_versioned *versioned = export_tensor(&k, param(&k, 0), BP_DTYPE_FP32, 1);
    assert_tensor(&versioned->dl, address, 2, 32, 500);
    assert_int_equal(versioned->major, 1);
    assert_int_equal(versioned->minor, 0);
    assert_int_equal(versioned->flags, 0);
    assert_int_equal(versioned->dl.device_type, bp_device_is_host_accessible(k.device) ? 1 : 2);
    assert_int_equal(versioned->dl.device_id, 0);
    assert_int_equal(bp_pool_export_count(k.pool), 2);
    plain->deleter(plain);
    versioned->deleter(versioned);
    assert_int_equal(bp_pool_export_count(k.pool), 0);
    drop(&k, param(&k, 0), k.streams[0]);
}

/* The first and the last unit share a buffer: an exported tensor delays no acquire. */
TEST(tensors_hold_nothing)
{
    KIT k = three_units(new_device());
    char *address = take(&k, param(&k, 0), k.streams[0]);
    void *saved = export_tensor(&k, param(&k, 0), BP_DTYPE_UINT8, 0);
    drop(&k, param(&k, 0), k.streams[0]);
    assert_int_equal(live_count(k.pool), 0);
    assert_ptr_equal(take(&k, param(&k, 2), k.streams[0]), address);
    drop(&k, param(&k, 2), k.streams[0]);
    bp_export_delete(&saved);
    assert_null(saved);
    bp_export_delete(&saved);
    bp_export_delete(NULL);
}

/* The bytes exist until the last tensor is deleted. */
TEST(tensors_outlive_pools)
{
    KIT k = three_units(new_host());
    take(&k, param(&k, 0), k.streams[0]);
    assert_ok(bp_stream_fill(k.streams[0], address_of(&k, param(&k, 0)), 7, 2000));
    managed *first = export_tensor(&k, param(&k, 0), BP_DTYPE_UINT8, 0);
    managed_versioned *second = export_tensor(&k, param(&k, 2), BP_DTYPE_UINT8, 1);
    bp_pool_destroy(&k.pool);
    assert_true(usage_of(k.device).committed_bytes > 0);
    assert_int_equal(first->dl.data[1999], 7);
    second->dl.data[0] = 9;
    second->deleter(second);
    assert_true(usage_of(k.device).committed_bytes > 0);
    first->dl.data[1] = 9;
    first->deleter(first);
    assert_int_equal(usage_of(k.device).committed_bytes, 0);
}

/* Also if the tensor holds the last reference to the device. */
TEST(tensors_outlive_devices)
{
    KIT k = three_units(new_host());
    managed *exported = export_tensor(&k, param(&k, 0), BP_DTYPE_UINT8, 0);
    bp_pool_destroy(&k.pool);
    for (int i = 0; i < KIT_STREAMS; i++)
        bp_stream_destroy(&k.streams[i]);
    bp_device_destroy(&k.device);
    exported->dl.data[0] = 9;
    exported->deleter(exported);
    k.device = new_device();
}

/* A tensor's user may have work in flight on streams unknown to the pool. */
TEST(the_last_waits_for_work)
{
    gate g = {0};
    KIT k = three_units(new_device());
    managed *exported = export_tensor(&k, param(&k, 0), BP_DTYPE_UINT8, 0);
    flag done = 0;
    pthread_t opener;
    bp_pool_destroy(&k.pool);
    block(k.streams[1], &g);
    assert_ok(bp_stream_fill(k.streams[1], exported->dl.data, 3, 2000));
    raise_on(k.streams[1], &done);
    assert_int_equal(pthread_create(&opener, NULL, unblock_later, &g), 0);
    exported->deleter(exported);
    assert_int_equal(atomic_load(&done), 1);
    assert_int_equal(pthread_join(opener, NULL), 0);
    assert_int_equal(usage_of(k.device).committed_bytes, 0);
}

static void *give_back(void *tensors)
{
    void **made = tensors;
    for (int i = 0; i < 64; i++)
        bp_export_delete(&made[i]);
    return NULL;
}

/* The pool is destroyed while threads delete tensors. */
TEST(threads)
{
    KIT k = three_units(new_device());
    void *made[4][64];
    pthread_t threads[4];
    for (int t = 0; t < 4; t++)
        for (int i = 0; i < 64; i++)
            made[t][i] = export_tensor(&k, param(&k, 0), BP_DTYPE_UINT8, i % 2);
    assert_int_equal(bp_pool_export_count(k.pool), 256);
    for (int t = 0; t < 4; t++)
        assert_int_equal(pthread_create(&threads[t], NULL, give_back, made[t]), 0);
    bp_pool_destroy(&k.pool);
    for (int t = 0; t < 4; t++)
        pthread_join(threads[t], NULL);
    assert_int_equal(usage_of(k.device).committed_bytes, 0);
}

TEST(refusals)
{
    kit k = three_units(new_device());
    bp_export_config what;
    void *made = &k;
    assert_invalid(bp_export_config_init(&what, 4));
    assert_ok(bp_export_config_init(&what, sizeof what));
    assert_invalid(bp_pool_export(NULL, &what, &made));
    what.id = 99;
    assert_fails(bp_pool_export(k.pool, &what, &made), BP_ERR_INVALID_ARGUMENT, "99");
    what.id = param(&k, 0);
    what.dtype = BP_DTYPE_FP8_E4M3;
    assert_fails(bp_pool_export(k.pool, &what, &made), BP_ERR_UNSUPPORTED, "fp8_e4m3", "uint8");
    what.dtype = (bp_dtype)-3;
    assert_fails(bp_pool_export(k.pool, &what, &made), BP_ERR_UNSUPPORTED, NULL);
    bp_bind odd = bind_of("", 0, BP_ROLE_PARAM, BP_DTYPE_UINT8, 1001);
    odd.placement = BP_PLACE_PERSISTENT;
    assert_ok(bp_pool_bind(k.pool, &odd, &what.id));
    what.dtype = BP_DTYPE_BF16;
    assert_fails(bp_pool_export(k.pool, &what, &made), BP_ERR_INVALID_ARGUMENT, "1001", "bf16");
    bp_bind dynamic = bind_of("", 1, BP_ROLE_PARAM, BP_DTYPE_UINT8, 1000);
    dynamic.placement = BP_PLACE_DYNAMIC;
    assert_ok(bp_pool_bind(k.pool, &dynamic, &what.id));
    take(&k, what.id, k.streams[0]);
    assert_fails(bp_pool_export(k.pool, &what, &made), BP_ERR_UNSUPPORTED, "dynamic");
    drop(&k, what.id, k.streams[0]);
    assert_ptr_equal(made, &k);
    assert_int_equal(bp_pool_export_count(k.pool), 0);
    end_kit(&k);
    k = three_units(new_null());
    what.id = param(&k, 0);
    what.dtype = BP_DTYPE_NONE;
    assert_fails(bp_pool_export(k.pool, &what, &made), BP_ERR_UNSUPPORTED, "null");
    end_kit(&k);
}
