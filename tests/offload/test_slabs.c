/* SPDX-License-Identifier: Apache-2.0 */
/* Unloading and loading of slabs: calls of observers and their order, and a failure of each device call. */
#include <unistd.h>

#include "devices/memory/slabs.h"
#include "support/failures/faulty.h"
#include "support/pools.h"

#define SLABS 3
#define PAGE ((uint64_t)sysconf(_SC_PAGESIZE))

/* ---- fixture -------------------------------------------------------------------------------------------------------- */

typedef struct fixture {
    bp_device *device;
    bp_slabs slabs;
    char heard[256]; /* "a0" observer a attached slab 0, "-a0" detached it, "a?" was asked */
    faults faults;
    bp_status others; /* answer of the other participants to the next agreement */
} fixture;

typedef struct listener {
    fixture *w;
    char name;
    int refuses; /* this slab; -1: none */
} listener;

static void hear(fixture *w, const char *before, char name, char what)
{
    size_t at = strlen(w->heard);
    snprintf(w->heard + at, sizeof w->heard - at, "%s%c%c ", before, name, what);
}

static bp_status attach(void *user, uint32_t slab, void *address, uint64_t bytes)
{
    const listener *l = user;
    if ((int)slab == l->refuses)
        return bp_error_record(BP_ERR_COMM, "refused");
    hear(l->w, "", l->name, (char)('0' + slab));
    memset(address, l->name, bytes); /* it is mapped */
    return BP_OK;
}

static void detach(void *user, uint32_t slab, void *address, uint64_t bytes)
{
    const listener *l = user;
    hear(l->w, "-", l->name, (char)('0' + slab));
    assert_int_equal(((uint8_t *)address)[bytes - 1] != 0, 1); /* it is still mapped */
}

static bp_status agree(void *user, bp_status so_far)
{
    const listener *l = user;
    const bp_status others = l->w->others;
    hear(l->w, "", l->name, '?');
    l->w->others = BP_OK;
    return so_far != BP_OK || others == BP_OK ? so_far : bp_error_record(others, "rank 1 failed");
}

static const bp_slab_callbacks plain = {.attach = attach, .detach = detach};
static const bp_slab_callbacks asking = {.attach = attach, .detach = detach, .agree = agree};

static void start(fixture *w)
{
    *w = (fixture){.others = BP_OK};
    w->device = new_faulty(new_host(), &w->faults);
    w->slabs = (bp_slabs){.device = w->device};
    for (int i = 0; i < SLABS; i++)
        assert_ok(bp_slabs_add(&w->slabs, (uint64_t)(i + 1) * PAGE, PAGE));
}

static void listen(fixture *w, listener *l, char name, const bp_slab_callbacks *callbacks)
{
    *l = (listener){w, name, -1};
    assert_ok(bp_slabs_attach(&w->slabs, callbacks, l));
}

static uint64_t committed(const fixture *w)
{
    return usage_of(w->device).committed_bytes;
}

static void finish(fixture *w)
{
    bp_slabs_finish(&w->slabs);
    assert_int_equal(committed(w), 0);
    bp_device_destroy(&w->device);
}

static void fail_next(fixture *w, device_operation operation, unsigned nth)
{
    inject(&w->faults, nth, operation, false, BP_ERR_DEVICE);
}

static void expect_heard(fixture *w, const char *heard)
{
    assert_string_equal(w->heard, heard);
    w->heard[0] = '\0';
}

static const bool FIRST_AND_LAST[SLABS] = {true, false, true};

/* ---- tests ---------------------------------------------------------------------------------------------------------- */

TEST(order)
{
    fixture w;
    listener a, b;
    start(&w);
    void *address = w.slabs.slabs[2].address;
    listen(&w, &a, 'a', &plain);
    listen(&w, &b, 'b', &asking);
    expect_heard(&w, "a0 a1 a2 b0 b1 b2 ");
    assert_ok(bp_slabs_unload(&w.slabs, FIRST_AND_LAST));
    expect_heard(&w, "-b2 -b0 -a2 -a0 b? ");
    assert_int_equal(committed(&w), 2 * PAGE);
    assert_ok(bp_slabs_load(&w.slabs, FIRST_AND_LAST));
    expect_heard(&w, "b? a0 a2 b0 b2 ");
    assert_ptr_equal(w.slabs.slabs[2].address, address);
    assert_int_equal(committed(&w), 6 * PAGE);
    finish(&w);
    expect_heard(&w, "-b2 -b1 -b0 -a2 -a1 -a0 ");
}

/* An observer that attaches meanwhile is called for the mapped slabs. */
TEST(attached_while_offloaded)
{
    fixture w;
    listener a;
    start(&w);
    assert_ok(bp_slabs_unload(&w.slabs, FIRST_AND_LAST));
    listen(&w, &a, 'a', &plain);
    expect_heard(&w, "a1 ");
    assert_ok(bp_slabs_load(&w.slabs, FIRST_AND_LAST));
    expect_heard(&w, "a0 a2 ");
    assert_ok(bp_slabs_unload(&w.slabs, FIRST_AND_LAST));
    w.heard[0] = '\0';
    finish(&w);
    expect_heard(&w, "-a1 ");
}

/* No slab is decommitted before all are unmapped: the bytes still exist. */
TEST(unmapping_fails)
{
    for (unsigned nth = 1; nth <= 2; nth++) {
        fixture w;
        listener a;
        start(&w);
        listen(&w, &a, 'a', &plain);
        memset(w.slabs.slabs[0].address, 7, PAGE);
        w.heard[0] = '\0';
        fail_next(&w, OP_UNMAP, nth);
        assert_int_equal(bp_slabs_unload(&w.slabs, FIRST_AND_LAST), BP_ERR_DEVICE);
        assert_memory_equal(bp_error_detail(), "injected", 8);
        expect_heard(&w, "-a2 -a0 a0 a2 ");
        assert_true(w.slabs.slabs[0].mapped && w.slabs.slabs[2].mapped);
        assert_int_equal(committed(&w), 6 * PAGE);
        finish(&w);
    }
}

TEST(others_cannot_unmap)
{
    fixture w;
    listener a;
    start(&w);
    listen(&w, &a, 'a', &asking);
    w.heard[0] = '\0';
    w.others = BP_ERR_COMM;
    assert_int_equal(bp_slabs_unload(&w.slabs, FIRST_AND_LAST), BP_ERR_COMM);
    assert_string_equal(bp_error_detail(), "rank 1 failed");
    assert_true(w.slabs.slabs[0].mapped && w.slabs.slabs[2].mapped);
    expect_heard(&w, "-a2 -a0 a? a? a0 a2 ");
    finish(&w);
}

TEST(memory_is_not_taken_back)
{
    fixture w;
    listener a;
    start(&w);
    listen(&w, &a, 'a', &plain);
    w.heard[0] = '\0';
    fail_next(&w, OP_DECOMMIT, 1);
    assert_int_equal(bp_slabs_unload(&w.slabs, FIRST_AND_LAST), BP_ERR_DEVICE);
    assert_false(w.slabs.slabs[2].mapped);
    assert_true(w.slabs.slabs[2].committed);
    assert_false(w.slabs.slabs[0].committed);
    assert_int_equal(committed(&w), 5 * PAGE);
    expect_heard(&w, "-a2 -a0 ");
    assert_ok(bp_slabs_load(&w.slabs, FIRST_AND_LAST));
    expect_heard(&w, "a0 a2 ");
    assert_int_equal(committed(&w), 6 * PAGE);
    finish(&w);
}

/* Every call of loading fails in turn: the slabs stay unloaded, and a second try succeeds. */
TEST(loading_fails)
{
    static const device_operation operations[] = {OP_COMMIT, OP_MAP};
    for (unsigned i = 0; i < 4; i++) {
        fixture w;
        listener a;
        start(&w);
        listen(&w, &a, 'a', &plain);
        assert_ok(bp_slabs_unload(&w.slabs, FIRST_AND_LAST));
        w.heard[0] = '\0';
        fail_next(&w, operations[i % 2], 1 + i / 2);
        assert_int_equal(bp_slabs_load(&w.slabs, FIRST_AND_LAST), BP_ERR_DEVICE);
        assert_memory_equal(bp_error_detail(), "injected", 8);
        assert_int_equal(committed(&w), 2 * PAGE);
        expect_heard(&w, "");
        assert_ok(bp_slabs_load(&w.slabs, FIRST_AND_LAST));
        expect_heard(&w, "a0 a2 ");
        finish(&w);
    }
}

TEST(an_observer_refuses)
{
    fixture w;
    listener a, b;
    start(&w);
    listen(&w, &a, 'a', &plain);
    listen(&w, &b, 'b', &asking);
    assert_ok(bp_slabs_unload(&w.slabs, FIRST_AND_LAST));
    w.heard[0] = '\0';
    b.refuses = 2;
    assert_int_equal(bp_slabs_load(&w.slabs, FIRST_AND_LAST), BP_ERR_COMM);
    assert_string_equal(bp_error_detail(), "refused");
    expect_heard(&w, "b? a0 a2 b0 -b0 -a2 -a0 ");
    assert_int_equal(committed(&w), 2 * PAGE);
    b.refuses = -1;
    assert_ok(bp_slabs_load(&w.slabs, FIRST_AND_LAST));
    finish(&w);
}

/* A slab that cannot be unmapped when loading is undone keeps its memory, which is used from then on: its bytes survive an unloading that
 * is undone. */
TEST(undoing_fails)
{
    fixture w;
    listener a;
    start(&w);
    listen(&w, &a, 'a', &plain);
    assert_ok(bp_slabs_unload(&w.slabs, FIRST_AND_LAST));
    a.refuses = 2;
    fail_next(&w, OP_UNMAP, 1);
    assert_int_equal(bp_slabs_load(&w.slabs, FIRST_AND_LAST), BP_ERR_COMM);
    assert_true(w.slabs.slabs[2].mapped && w.slabs.slabs[2].committed && w.slabs.slabs[2].absent);
    assert_int_equal(committed(&w), 5 * PAGE);
    a.refuses = -1;
    assert_ok(bp_slabs_load(&w.slabs, FIRST_AND_LAST));
    assert_int_equal(committed(&w), 6 * PAGE);
    assert_ok(bp_slabs_detach(&w.slabs, &plain, &a));
    memset(w.slabs.slabs[2].address, 7, 3 * PAGE);
    fail_next(&w, OP_UNMAP, 2);
    assert_int_equal(bp_slabs_unload(&w.slabs, FIRST_AND_LAST), BP_ERR_DEVICE);
    assert_int_equal(w.slabs.slabs[2].address[0], 7);
    assert_int_equal(w.slabs.slabs[2].address[3 * PAGE - 1], 7);
    finish(&w);
}

TEST(others_have_no_memory)
{
    fixture w;
    listener a;
    start(&w);
    listen(&w, &a, 'a', &asking);
    assert_ok(bp_slabs_unload(&w.slabs, FIRST_AND_LAST));
    w.heard[0] = '\0';
    w.others = BP_ERR_NO_DEVICE_MEMORY;
    assert_int_equal(bp_slabs_load(&w.slabs, FIRST_AND_LAST), BP_ERR_NO_DEVICE_MEMORY);
    expect_heard(&w, "a? ");
    assert_int_equal(committed(&w), 2 * PAGE);
    assert_ok(bp_slabs_load(&w.slabs, FIRST_AND_LAST));
    finish(&w);
}
