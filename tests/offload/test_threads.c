/* SPDX-License-Identifier: Apache-2.0 */
/* Leases on several threads, and work in other groups, while groups are offloaded and restored. */
#include <pthread.h>

#include "graphs.h"
#include "support/driver.h"
#include "support/trace_device.h"

#define READERS 3

/* ---- leases -------------------------------------------------------------------------------------------------------- */

typedef struct reader {
    store *s;
    atomic_int *over;
    bp_stream *stream;
    uint8_t *copy;
    unsigned took, was_refused, wrong;
    char name[16];
} reader;

/* group_of for threads: cmocka's assertions only work on the main one. */
static bool look_at(const bp_offload *offload, const char *name, bp_offload_group *group)
{
    bp_offload_group groups[MAX_GROUPS] = {{.size = sizeof groups[0]}};
    size_t count = 0;
    bool good = bp_offload_groups(offload, groups, MAX_GROUPS, &count) == BP_OK;
    for (size_t i = 0; i < count; i++) {
        if (strcmp(groups[i].name, name) == 0) {
            *group = groups[i];
            return good;
        }
    }
    return false;
}

/* A group with a lease has its bytes. */
static void *read_often(void *argument)
{
    reader *r = argument;
    size_t slab = slab_of_group(r->s, "optimizer");
    while (!atomic_load(r->over)) {
        bp_lease *lease = NULL;
        bp_offload_group group;
        r->wrong += !look_at(r->s->offload, "optimizer", &group);
        bp_status status = bp_lease_take(r->s->offload, "optimizer", r->name, &lease);
        if (status != BP_OK) {
            r->wrong += status != BP_ERR_SCHEDULE;
            r->was_refused++;
            pause_us(50);
            continue;
        }
        r->took++;
        r->wrong += !look_at(r->s->offload, "optimizer", &group) || group.residency != BP_RESIDENT ||
                    group.leases < 1 || group.leases > READERS;
        r->wrong += bp_stream_copy(r->stream, r->copy, r->s->slabs[slab].address, r->s->slabs[slab].bytes) != BP_OK;
        if (r->took % 2 == 0)
            r->wrong += bp_stream_synchronize(r->stream) != BP_OK;
        bp_lease_return(&lease); /* else the next offload waits for the copy */
        r->wrong += bp_stream_synchronize(r->stream) != BP_OK;
        r->wrong += memcmp(r->copy, r->s->bytes[slab], r->s->slabs[slab].bytes) != 0;
        pause_us(200);
    }
    return NULL;
}

TEST(leases)
{
    STORE s = open_store(new_device(), NULL, NULL);
    atomic_int over = 0;
    reader readers[READERS];
    pthread_t threads[READERS];
    for (int i = 0; i < READERS; i++) {
        readers[i] = (reader){.s = &s, .over = &over, .stream = s.k.streams[i]};
        memcpy(readers[i].name, (const char[]){'r', 'e', 'a', 'd', 'e', 'r', (char)('0' + i), 0}, 8);
        readers[i].copy = malloc(s.slabs[slab_of_group(&s, "optimizer")].bytes);
        assert_non_null(readers[i].copy);
        assert_int_equal(pthread_create(&threads[i], NULL, read_often, &readers[i]), 0);
    }
    unsigned went = 0, blocked = 0;
    for (int round = 0; round < 4000 && (went < 40 || blocked < 5); round++) {
        bp_status status = bp_offload_begin(s.offload, "optimizer", BP_OFFLOAD_KEEP);
        if (status != BP_OK) {
            assert_fails(status, BP_ERR_SCHEDULE, "reader");
            blocked++;
            pause_us(100);
            continue;
        }
        finish_offload(&s, "optimizer");
        bring_back(&s, "optimizer", BP_RESTORE_LEAVE);
        went++;
        pause_us(300);
    }
    atomic_store(&over, 1);
    unsigned took = 0;
    for (int i = 0; i < READERS; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_int_equal(readers[i].wrong, 0);
        took += readers[i].took;
        free(readers[i].copy);
    }
    assert_true(went >= 5);
    assert_true(took >= 5);
    assert_int_equal(group_of(s.offload, "optimizer").leases, 0);
    assert_bytes(&s);
}

/* ---- concurrent work ----------------------------------------------------------------------------------------------- */

typedef struct worker {
    store *s;
    atomic_int *over;
    bp_stream *stream;
    uint32_t ids[2]; /* of its role */
    atomic_uint served;
    unsigned wrong;
} worker;

/* A thread may not have run yet on a busy machine. Bounded: a thread that is refused for ever fails the test. */
static void wait_until_served(atomic_uint *served)
{
    for (int i = 0; i < 20000 && atomic_load(served) == 0; i++)
        pause_us(1000);
}

static void *work_often(void *argument)
{
    worker *w = argument;
    for (unsigned i = 0; !atomic_load(w->over); i++) {
        uint32_t id = w->ids[i % 2];
        void *address = NULL;
        bp_status status = bp_pool_acquire(w->s->k.pool, &id, 1, w->stream, &address);
        w->served += status == BP_OK;
        w->wrong += status != BP_OK;
        if (status != BP_OK)
            continue;
        const uint64_t bytes = bp_pool_get_info(w->s->k.pool)->requests[id].bytes;
        check c = {.address = address, .bytes = bytes, .value = (uint8_t)i};
        w->wrong += bp_stream_fill(w->stream, address, (uint8_t)i, bytes) != BP_OK;
        if (i % 16 == 0)
            check_on(w->stream, &c);
        w->wrong += bp_pool_release(w->s->k.pool, &id, 1, w->stream) != BP_OK;
        if (i % 16 == 0) {
            w->wrong += bp_stream_synchronize(w->stream) != BP_OK;
            w->wrong += (unsigned)atomic_load(&c.wrong);
        }
    }
    return NULL;
}

static worker worker_of(store *s, atomic_int *over, int stream, bp_role role)
{
    worker w = {.s = s, .over = over, .stream = s->k.streams[stream]};
    w.ids[0] = id_of(&s->k, 0, role, 0);
    w.ids[1] = id_of(&s->k, 1, role, 0);
    return w;
}

/* Parameters and gradients are used all the time and never refused, whatever happens to other groups. */
TEST(work_beside)
{
    STORE s = open_store(new_slow_device(20, 6), NULL, NULL);
    atomic_int over = 0;
    worker workers[2] = {worker_of(&s, &over, 1, BP_ROLE_PARAM), worker_of(&s, &over, 2, BP_ROLE_GRAD)};
    pthread_t threads[2];
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, work_often, &workers[i]), 0);
    for (int round = 0; round < 60; round++) {
        begin_keep(&s, "optimizer");
        begin_discard(&s, "main_grad");
        finish_offload(&s, "optimizer");
        keep(&s, "state");
        finish_offload(&s, "main_grad");
        begin_restore(&s, "main_grad", BP_RESTORE_ZERO);
        bring_back(&s, "optimizer", BP_RESTORE_LEAVE);
        bring_back(&s, "state", BP_RESTORE_LEAVE);
        finish_restore(&s, "main_grad", BP_RESTORE_ZERO);
        bp_offload_trim(s.offload);
        pause_us(100);
    }
    for (int i = 0; i < 2; i++)
        wait_until_served(&workers[i].served);
    atomic_store(&over, 1);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_int_equal(workers[i].wrong, 0);
        assert_true(workers[i].served > 0);
    }
    for (size_t i = 0; i < s.slab_count; i++) /* the model does not know what the workers wrote */
        if (is_in_group(&s, i, "param") || is_in_group(&s, i, "grad"))
            memset(s.known[i], 0, s.slabs[i].bytes);
    assert_bytes(&s);
}

/* Polls with try_acquire for a group in transition. */
typedef struct asker {
    store *s;
    atomic_int *over;
    bp_stream *stream;
    uint32_t id;
    size_t overflow; /* slab */
    atomic_uint served;
    unsigned was_told_no, wrong;
} asker;

static void *ask_often(void *argument)
{
    asker *a = argument;
    const bp_pool_slab *overflow = &a->s->slabs[a->overflow];
    while (!atomic_load(a->over)) {
        void *address = NULL;
        int acquired = 0;
        a->wrong += bp_pool_try_acquire(a->s->k.pool, &a->id, 1, a->stream, &address, &acquired) != BP_OK;
        if (!acquired) {
            a->was_told_no++;
            continue;
        }
        a->served++;
        const uintptr_t offset = (uintptr_t)address - (uintptr_t)overflow->address;
        a->wrong += offset < overflow->bytes; /* nobody holds its own memory */
        while (bp_pool_release(a->s->k.pool, &a->id, 1, a->stream) != BP_OK)
            ;         /* it is offloaded */
        pause_us(20); /* or the offload would wait for ever */
    }
    return NULL;
}

/* try_acquire during a transition is busy, as for an offloaded group: no error, and no overflow memory. */
TEST(asked_meanwhile)
{
    STORE s = open_store(new_host(), &(store_options){.overflow_bytes = 1 << 16}, NULL);
    atomic_int over = 0;
    const bp_role roles[] = {BP_ROLE_PARAM, BP_ROLE_GRAD};
    unsigned went = 0;
    asker askers[2];
    pthread_t threads[2];
    assert_ok(bp_pool_allow_overflow(s.k.pool, 1));
    for (int i = 0; i < 2; i++) {
        askers[i] = (asker){.s = &s, .over = &over, .stream = s.k.streams[1 + i], .id = of_role(&s, roles[i])};
        askers[i].overflow = slab_of_group(&s, "overflow");
        assert_int_equal(pthread_create(&threads[i], NULL, ask_often, &askers[i]), 0);
    }
    for (int round = 0; round < 100000 && went < 100; round++) {
        const char *group = round % 2 == 0 ? "param" : "grad";
        if (bp_offload_begin(s.offload, group, BP_OFFLOAD_KEEP) != BP_OK)
            continue; /* it is live */
        finish_offload(&s, group);
        assert_ok(bp_restore_begin(s.offload, group, BP_RESTORE_LEAVE));
        assert_ok(bp_restore_finish(s.offload, group));
        went++;
    }
    for (int i = 0; i < 2; i++)
        wait_until_served(&askers[i].served);
    atomic_store(&over, 1);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_int_equal(askers[i].wrong, 0);
        assert_true(askers[i].served > 0);
    }
    assert_true(went > 0);
    assert_bytes(&s);
}

/* A graph of parameters is launched all the time, independent of other groups. */
typedef struct launcher {
    bp_capture *capture;
    bp_stream *stream;
    atomic_int *over;
    unsigned launched, wrong;
} launcher;

static void *launch_often(void *argument)
{
    launcher *l = argument;
    while (!atomic_load(l->over)) {
        l->wrong += bp_capture_before_launch(l->capture, l->stream) != BP_OK;
        l->wrong += bp_capture_launched(l->capture, l->stream) != BP_OK;
        l->launched++;
    }
    return NULL;
}

TEST(launches_beside)
{
    STORE s = open_store(new_host(), NULL, NULL);
    atomic_int over = 0;
    launcher l = {.stream = s.k.streams[1], .over = &over};
    uint32_t owned[64], id = of_role(&s, BP_ROLE_PARAM);
    bp_capture_config config = capture_config(&s, owned);
    pthread_t thread;
    assert_ok(bp_capture_begin(s.k.pool, &config, &l.capture));
    take(&s.k, id, l.stream);
    drop(&s.k, id, l.stream);
    assert_ok(bp_capture_end(l.capture));
    assert_int_equal(pthread_create(&thread, NULL, launch_often, &l), 0);
    for (int round = 0; round < 40; round++) {
        assert_ok(bp_offload_begin(s.offload, "optimizer", BP_OFFLOAD_KEEP | BP_OFFLOAD_RECAPTURE));
        finish_offload(&s, "optimizer");
        bring_back(&s, "optimizer", BP_RESTORE_LEAVE);
        keep(&s, "state");
        bring_back(&s, "state", BP_RESTORE_LEAVE);
    }
    atomic_store(&over, 1);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(l.wrong, 0);
    assert_true(l.launched > 0);
    bp_capture_destroy(&l.capture);
}

/* ---- several pools -------------------------------------------------------------------------------------------------- */

typedef struct trainer {
    store s;
    unsigned wrong;
} trainer;

static void *go_and_come(void *argument)
{
    trainer *t = argument;
    for (int round = 0; round < 40; round++) {
        bp_offload *o = t->s.offload;
        t->wrong += bp_offload_begin(o, "optimizer", BP_OFFLOAD_KEEP) != BP_OK;
        t->wrong += bp_offload_begin(o, "main_grad", BP_OFFLOAD_KEEP) != BP_OK;
        t->wrong += bp_offload_finish(o, "optimizer") != BP_OK;
        t->wrong += bp_offload_finish(o, "main_grad") != BP_OK;
        t->wrong += bp_restore_begin(o, "main_grad", BP_RESTORE_LEAVE) != BP_OK;
        t->wrong += bp_restore_begin(o, "optimizer", BP_RESTORE_LEAVE) != BP_OK;
        t->wrong += bp_restore_finish(o, "optimizer") != BP_OK;
        t->wrong += bp_restore_finish(o, "main_grad") != BP_OK;
        if (round % 8 == 7)
            bp_offload_trim(o);
    }
    return NULL;
}

static bp_status let_through(void *user, const device_call *call)
{
    return BP_OK;
}

/* Two pools with an offload each, which share pinned memory, each used by one thread. */
TEST(pools_share_pinned_memory)
{
    bp_device *device = new_device();
    bp_pinned *pinned = NULL;
    assert_ok(bp_pinned_create(device, NULL, &pinned));
    bp_offload_config config = offload_config(8192, BP_BACKING_PINNED);
    config.pinned = pinned;
    trainer trainers[2];
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) {
        bp_device *own = NULL; /* counted separately; the memory is of one device */
        assert_ok(trace_device_create(device, let_through, NULL, &own));
        trainers[i] = (trainer){.s = open_store(own, NULL, &config)};
        config.backing = BP_BACKING_STAGED;
    }
    bp_pinned_destroy(&pinned);
    bp_device_destroy(&device);
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, go_and_come, &trainers[i]), 0);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_int_equal(trainers[i].wrong, 0);
    }
    for (int i = 0; i < 2; i++) {
        assert_bytes(&trainers[i].s);
        close_store(&trainers[i].s);
    }
}
