/* SPDX-License-Identifier: Apache-2.0 */
/* A forked child of a process with devices, whose threads hold locks and have work in flight. The child's calls are refused, destroying
 * frees nothing, and nothing hangs. Slabs are unmapped in the child, and the parent is unaffected. */
#include <bucketpool/capture.h>
#include <bucketpool/comm.h>
#include <bucketpool/dlpack.h>
#include <bucketpool/pinned.h>
#include <bucketpool/profile.h>

#include <signal.h>
#include <sys/resource.h>

#include "../offload/stores.h"
#include "allocators/offload/offload.h"
#include "allocators/pool.h"
#include "devices/pinned/pinned.h"
#include "support/children.h"
#include "support/emulation.h"
#include "support/trace_device.h"

#define NOT_SANITIZED __attribute__((no_sanitize("address"), noinline))

/* One object of each kind. */
typedef struct family {
    store s;
    bp_event *event;
    bp_lease *lease;
    bp_pinned *pinned;
    void *piece, *tensor;
    bp_profile *profile;
    bp_comm *comm;
    bp_registration *registration;
    bp_stream *stream; /* its work waits for the gate */
    gate gate;
    uint32_t id;
    bool has_memory;
} family;

static family open_family(const device_row *row)
{
    static const store_options bare = {.bare = true, .persistent_bytes = 4096};
    family f = {.has_memory = row->memory != NO_MEMORY};
    f.s = open_store(row->create(), &bare, NULL);
    kit *k = &f.s.k;
    if (f.has_memory) {
        assert_ok(bp_offload_create(k->pool, NULL, &f.s.offload));
        assert_ok(bp_lease_take(f.s.offload, "optimizer", "reader", &f.lease));
    }
    assert_ok(bp_event_create(k->device, &f.event));
    f.id = param(k, 0);
    f.stream = k->streams[0];
    assert_ok(bp_event_record(f.event, f.stream));
    assert_ok(bp_pinned_create(k->device, NULL, &f.pinned));
    assert_ok(bp_pinned_allocate(f.pinned, 100, 0, &f.piece));
    bp_profile_config profile;
    assert_ok(bp_profile_config_init(&profile, sizeof profile));
    profile.directory = "/nowhere/at/all"; /* nothing is written before a recording stops */
    assert_ok(bp_profile_create(&k->pool, 1, &profile, &f.profile));
    assert_ok(bp_comm_create_self(&f.comm));
    bp_registration_entry entry;
    assert_ok(bp_registration_entry_init(&entry, sizeof entry));
    entry.comm = f.comm;
    entry.kind = BP_REGISTER_NONE;
    assert_ok(bp_registration_create(k->pool, &entry, 1, &f.registration));
    return f;
}

static void close_family(family *f)
{
    bp_registration_destroy(&f->registration);
    bp_comm_destroy(&f->comm);
    bp_profile_destroy(&f->profile);
    assert_ok(bp_pinned_free(f->pinned, f->piece));
    bp_pinned_destroy(&f->pinned);
    bp_lease_return(&f->lease);
    bp_event_destroy(&f->event);
    close_store(&f->s);
}

/* Locks that threads may hold while another one forks. */
static void hold_locks(family *f, bool held)
{
    pthread_mutex_t *locks[] = {&f->s.k.pool->binding, &f->s.k.device->rings_lock, &f->pinned->lock,
                                f->has_memory ? &f->s.offload->lock : NULL};
    for (size_t i = 0; i < sizeof locks / sizeof *locks && locks[i] != NULL; i++)
        held ? pthread_mutex_lock(locks[i]) : pthread_mutex_unlock(locks[i]);
}

static bp_status nothing(void *user, uint32_t slab, void *address, uint64_t bytes)
{
    return BP_OK;
}

static void nothing_more(void *user, uint32_t slab, void *address, uint64_t bytes)
{
}

static void no_work(void *argument)
{
}

static bp_status allow(void *user, const device_call *call)
{
    return BP_OK;
}

static void use_devices(void *argument)
{
    family *f = argument;
    bp_device *device = f->s.k.device, *traced;
    bp_stream *stream;
    bp_event *event;
    uint64_t capture;
    char bytes[8] = "";
    must(bp_device_is_inherited(device));
    must_refuse(bp_device_synchronize(device));
    must_refuse(trace_device_create(device, allow, NULL, &traced));
    must_refuse(bp_stream_create(device, NULL, &stream));
    must_refuse(bp_stream_import(device, 0, NULL, &stream));
    must_refuse(bp_stream_synchronize(f->stream));
    must_refuse(bp_stream_call(f->stream, no_work, NULL));
    must_refuse(bp_stream_fill(f->stream, bytes, 1, sizeof bytes));
    must_refuse(bp_stream_copy(f->stream, bytes, bytes, sizeof bytes));
    must_refuse(bp_stream_capture_of(f->stream, &capture));
    must_refuse(bp_graph_begin(f->stream));
    must_refuse(bp_event_create(device, &event));
    must_refuse(bp_event_record(f->event, f->stream));
    must_refuse(bp_event_synchronize(f->event));
    must_refuse(bp_stream_wait(f->s.k.streams[1], f->event));
    must_refuse(bp_device_pin(device, bytes, sizeof bytes));
    must_refuse(bp_device_unpin(device, bytes, sizeof bytes));
}

static void use_pools(void *argument)
{
    family *f = argument;
    kit *k = &f->s.k;
    bp_pool *pool = k->pool, *made;
    bp_bind bind = bind_of("new", 0, BP_ROLE_PARAM, BP_DTYPE_BF16, 100);
    bp_slab_callbacks callbacks = {.attach = nothing, .detach = nothing_more};
    bp_capture *capture;
    bp_export_config export_tensor;
    void *address;
    uint32_t id;
    int answer;
    must_refuse(bp_pool_create(k->device, k->plan, NULL, &made));
    must_refuse(bp_pool_bind(pool, &bind, &id));
    must_refuse(bp_pool_set_stream(pool, &f->id, 1, NULL));
    must_refuse(bp_pool_set_zero(pool, &f->id, 1, BP_ZERO_ALL));
    must_refuse(bp_pool_acquire(pool, &f->id, 1, f->stream, &address));
    must_refuse(bp_pool_acquire(pool, &f->id, 1, NULL, &address));
    must_refuse(bp_pool_try_acquire(pool, &f->id, 1, f->stream, &address, &answer));
    must_refuse(bp_pool_can_acquire(pool, &f->id, 1, NULL, 0, &answer));
    must_refuse(bp_pool_use(pool, &f->id, 1, f->stream));
    must_refuse(bp_pool_release(pool, &f->id, 1, f->stream));
    must_refuse(bp_pool_cancel(pool, &f->id, 1));
    must_refuse(bp_pool_attach(pool, &callbacks, NULL));
    must_refuse(bp_pool_detach(pool, &callbacks, NULL));
    must_refuse(bp_capture_begin(pool, NULL, &capture));
    must(bp_export_config_init(&export_tensor, sizeof export_tensor) == BP_OK);
    export_tensor.id = f->id;
    must_refuse(bp_pool_export(pool, &export_tensor, &address));
    must(bp_pool_export_count(pool) == 0);
    bp_pool_statistics statistics = {.size = sizeof statistics}; /* of the copy */
    must(bp_pool_statistics_get(pool, &statistics) == BP_OK);
}

static void use_others(void *argument)
{
    family *f = argument;
    kit *k = &f->s.k;
    bp_offload *offload;
    size_t count;
    bp_lease *lease;
    bp_pinned *pinned;
    bp_profile *profile;
    bp_registration *registration;
    bp_registration_entry entry;
    bp_pinned_statistics statistics = {.size = sizeof statistics};
    void *address;
    char byte = 0;
    must_refuse(bp_pinned_create(k->device, NULL, &pinned));
    must_refuse(bp_pinned_allocate(f->pinned, 100, 0, &address));
    must_refuse(bp_pinned_free(f->pinned, f->piece));
    must_refuse(bp_pinned_statistics_get(f->pinned, &statistics));
    must_refuse(bp_profile_create(&k->pool, 1, NULL, &profile));
    must_refuse(bp_profile_step(f->profile, 1));
    must_refuse(bp_profile_start(f->profile, "child"));
    must_refuse(bp_profile_stop(f->profile));
    must_refuse(bp_profile_write(f->profile, BP_PROFILE_PICKLE, "/nowhere/at/all"));
    must_refuse(bp_comm_exchange(f->comm, &byte, 1, &byte));
    must_refuse(bp_comm_all_gather(f->comm, &byte, &byte, 1, f->stream));
    must_refuse(bp_comm_abort(f->comm));
    must(bp_registration_entry_init(&entry, sizeof entry) == BP_OK);
    entry.comm = f->comm;
    must_refuse(bp_registration_create(k->pool, &entry, 1, &registration));
    must_refuse(bp_offload_create(k->pool, NULL, &offload));
    if (!f->has_memory)
        return;
    must_refuse(bp_offload_begin(f->s.offload, "optimizer", BP_OFFLOAD_DISCARD));
    must_refuse(bp_offload_finish(f->s.offload, "optimizer"));
    must_refuse(bp_restore_begin(f->s.offload, "optimizer", BP_RESTORE_LEAVE));
    must_refuse(bp_restore_finish(f->s.offload, "optimizer"));
    must_refuse(bp_offload_groups(f->s.offload, NULL, 0, &count));
    must_refuse(bp_lease_take(f->s.offload, "optimizer", "child", &lease));
    bp_offload_trim(f->s.offload);
}

/* In any order, like a scripting language at exit. */
static void destroy_all(void *argument)
{
    family *f = argument;
    bp_device_destroy(&f->s.k.device);
    bp_stream_destroy(&f->stream);
    for (int i = 1; i < KIT_STREAMS; i++)
        bp_stream_destroy(&f->s.k.streams[i]);
    bp_event_destroy(&f->event);
    bp_pool_destroy(&f->s.k.pool);
    bp_offload_destroy(&f->s.offload);
    bp_lease_return(&f->lease);
    bp_pinned_destroy(&f->pinned);
    bp_profile_destroy(&f->profile);
    bp_registration_destroy(&f->registration);
    bp_comm_destroy(&f->comm);
    must(f->s.k.device == NULL && f->stream == NULL && f->event == NULL && f->s.k.pool == NULL && f->pinned == NULL);
}

/* The whole life of a device. */
static void live_in_child(void *argument)
{
    bp_device *device;
    bp_stream *stream;
    uint8_t bytes[64] = {0};
    destroy_all(argument);
    must(bp_device_create_host(NULL, &device) == BP_OK && !bp_device_is_inherited(device));
    must(bp_stream_create(device, NULL, &stream) == BP_OK);
    must(bp_stream_fill(stream, bytes, 7, sizeof bytes) == BP_OK && bp_stream_synchronize(stream) == BP_OK);
    must(bytes[63] == 7);
    bp_stream_destroy(&stream);
    bp_device_destroy(&device);
}

/* Children of the child are refused its objects. */
static void fork_again(void *argument)
{
    family mine = *(family *)argument;
    must(bp_device_create_host(NULL, &mine.s.k.device) == BP_OK);
    must(bp_stream_create(mine.s.k.device, "a", &mine.stream) == BP_OK);
    mine.s.k.streams[1] = mine.stream;
    must(bp_event_create(mine.s.k.device, &mine.event) == BP_OK);
    must(status_of_child(use_devices, &mine) == 0);
    must(bp_stream_call(mine.stream, no_work, NULL) == BP_OK && bp_stream_synchronize(mine.stream) == BP_OK);
}

TEST(children)
{
#if defined(__SANITIZE_THREAD__)
    skip(); /* ThreadSanitizer ends children that start threads */
#endif
    static void (*const uses[])(void *) = {use_devices, use_pools, use_others, destroy_all, live_in_child, fork_again};
    for (size_t row = 0; row < device_count(); row++) {
        family f = open_family(device_at(row));
        kit *k = &f.s.k;
        void *address = take(k, f.id, f.stream);
        assert_ok(bp_stream_fill(f.stream, address, 0x5a, 100));
        assert_ok(bp_stream_synchronize(f.stream));
        if (f.has_memory)
            block(f.stream, &f.gate);
        for (size_t i = 0; i < sizeof uses / sizeof *uses; i++) {
            hold_locks(&f, true);
            int status = status_of_child(uses[i], &f);
            hold_locks(&f, false);
            assert_int_equal(status, 0);
        }
        if (f.has_memory)
            unblock(&f.gate);
        check c = {.address = address, .bytes = 100, .value = 0x5a};
        if (f.has_memory)
            check_on(f.stream, &c);
        assert_ok(bp_stream_synchronize(f.stream));
        assert_int_equal(c.wrong, 0);
        drop(k, f.id, f.stream);
        close_family(&f);
    }
}

/* ---- slabs ---------------------------------------------------------------------------------------------------------- */

NOT_SANITIZED static void write_byte(void *address)
{
    static const struct rlimit no_core = {0, 0};
    setrlimit(RLIMIT_CORE, &no_core);
    signal(SIGSEGV, SIG_DFL);
    signal(SIGBUS, SIG_DFL);
    *(volatile uint8_t *)address = 1;
}

/* Shared mappings, whose memory a child could keep alive. */
static void count_shared(void *expected)
{
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512];
    unsigned found = 0;
    must(maps != NULL);
    while (fgets(line, sizeof line, maps) != NULL)
        found += strstr(line, "/dev/zero") != NULL;
    fclose(maps);
    must((found > 0) == *(bool *)expected);
}

/* Also after a restore, which makes another mapping. */
TEST(slabs)
{
    if (is_emulated()) {
        print_message("skipped: children of an emulated process keep all memory\n");
        skip();
    }
    bool some = true, none = false;
    bp_device *device = new_host();
    void *self, *address;
    uint64_t handle, bytes = device->traits.granularity;
    const bp_device_ops *ops = bp_device_table(device, &self);
    assert_ok(ops->reserve(self, bytes, bytes, &address));
    assert_ok(bp_device_commit(device, bytes, &handle));
    for (int round = 0; round < 2; round++) {
        assert_ok(ops->map(self, address, bytes, handle));
        if (round == 0)
            memset(address, 0x5a, bytes);
        int status = status_of_child(write_byte, address);
        assert_true(WIFSIGNALED(status) && (WTERMSIG(status) == SIGSEGV || WTERMSIG(status) == SIGBUS));
        assert_int_equal(((uint8_t *)address)[0], 0x5a);
        count_shared(&some);
        assert_int_equal(status_of_child(count_shared, &none), 0);
        assert_ok(ops->unmap(self, address, bytes));
    }
    assert_ok(bp_device_decommit(device, bytes, handle));
    assert_ok(ops->unreserve(self, address, bytes));
    bp_device_destroy(&device);
}
