/* Any free copy, strict assignment, sealing and overflow. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "support.h"

#define SIX "1000 1000 1000 1000 1000 1000"

typedef struct messages {
    unsigned count;
    char last[600];
} messages;

static void on_message(void *user, const char *text)
{
    messages *m = user;
    m->count++;
    snprintf(m->last, sizeof m->last, "%s", text);
}

static kit any_copy(bp_strict strict, bp_selection selection, uint32_t copies, messages *m)
{
    kit k = begin_kit(new_device(), SIX, PARAM_ONLY, BP_POLICY_MAX, copies);
    bp_pool_config config = pool_config();
    config.selection = selection;
    config.strict = strict;
    config.on_message = m != NULL ? on_message : NULL;
    config.user = m;
    open_pool(&k, &config, 0);
    return k;
}

static uint64_t deviations(const kit *k)
{
    return statistics_of(k->pool).deviations;
}

/* The lowest free copy first, and the same again after that. */
static void assert_remembers(bp_strict level)
{
    messages m = {0};
    kit k = any_copy(level, BP_SELECT_ANY, 3, &m);
    char *copy[3], *u4;
    for (uint32_t u = 0; u < 3; u++)
        copy[u] = take(&k, param(&k, u), k.streams[0]);
    assert_true(copy[0] < copy[1] && copy[1] < copy[2]);
    for (uint32_t u = 0; u < 3; u++)
        drop(&k, param(&k, 2 - u), k.streams[0]);
    for (uint32_t u = 2; u < 3; u--) /* in another order: each gets its own */
        assert_ptr_equal(take(&k, param(&k, u), k.streams[0]), copy[u]);
    drop(&k, param(&k, 1), k.streams[0]);
    u4 = take(&k, param(&k, 4), k.streams[0]); /* the only free one */
    assert_ptr_equal(u4, copy[1]);
    drop(&k, param(&k, 0), k.streams[0]);
    drop(&k, param(&k, 4), k.streams[0]);
    assert_ptr_equal(take(&k, param(&k, 4), k.streams[0]), copy[1]); /* though copy 0 is free and lower */
    assert_int_equal(deviations(&k), 0);
    assert_int_equal(m.count, 0);
    end_kit(&k);
}

static void test_remembers(void **state)
{
    (void)state;
    assert_remembers(BP_STRICT_WARN);
    assert_remembers(BP_STRICT_ERROR);
}

/* pool.h, strict assignment: "a request gets the buffer it had before", and only what happens when that is held depends on
 * the level. */
static void test_remembers_when_off(void **state)
{
    (void)state;
    assert_remembers(BP_STRICT_OFF);
}

/* Another holds what u0 had, and a copy is free. */
static void test_deviation(void **state)
{
    (void)state;
    static const bp_strict levels[] = {BP_STRICT_OFF, BP_STRICT_WARN, BP_STRICT_ERROR};
    for (size_t i = 0; i < 6; i++) {
        messages m = {0};
        bool assigned = i >= 3, allowed = levels[i % 3] != BP_STRICT_ERROR;
        kit k = any_copy(levels[i % 3], assigned ? BP_SELECT_ASSIGNED : BP_SELECT_ANY, 2, &m);
        bp_pool_set_step(k.pool, 31337);
        char *first = take(&k, param(&k, 0), k.streams[0]);
        drop(&k, param(&k, 0), k.streams[0]);
        assert_ptr_equal(take(&k, param(&k, 2), k.streams[0]), first); /* lowest, or as the plan says */
        assert_int_equal(m.count, 0);
        if (!allowed) {
            int acquired = 9, can = 9;
            uint32_t id = param(&k, 0);
            for (int again = 0; again < 2; again++)
                assert_refused(&k, id, k.streams[0], "u0", "u2", "31337");
            assert_ok(bp_pool_try_acquire(k.pool, &id, 1, k.streams[0], NULL, &acquired));
            assert_int_equal(acquired, 0);
            assert_ok(bp_pool_can_acquire(k.pool, &id, 1, NULL, 0, &can));
            assert_int_equal(can, 0);
            take(&k, param(&k, 1), k.streams[0]); /* the free copy is for whoever had none */
            drop(&k, param(&k, 1), k.streams[0]);
            drop(&k, param(&k, 2), k.streams[0]);
            assert_ptr_equal(take(&k, id, k.streams[0]), first);
            assert_int_equal(deviations(&k), 0);
            assert_int_equal(m.count, 0);
            end_kit(&k);
            continue;
        }
        char *other = take(&k, param(&k, 0), k.streams[0]);
        assert_ptr_not_equal(other, first);
        assert_ptr_equal(address_of(&k, param(&k, 0)), other);
        assert_ptr_equal(take(&k, param(&k, 0), k.streams[1]), other); /* live: no new deviation */
        assert_refused(&k, param(&k, 4), k.streams[0], "u4");          /* all are held: never allowed */
        assert_int_equal(deviations(&k), 1);
        if (levels[i % 3] == BP_STRICT_WARN) {
            assert_int_equal(m.count, 1);
            assert_non_null(strstr(m.last, "u0"));
            assert_null(strchr(m.last, '\n'));
        } else
            assert_int_equal(m.count, 0);
        drop(&k, param(&k, 0), k.streams[0]);
        drop(&k, param(&k, 0), k.streams[0]);
        drop(&k, param(&k, 2), k.streams[0]);
        assert_ptr_equal(take(&k, param(&k, 0), k.streams[0]), first); /* it is still its own */
        end_kit(&k);
    }
}

/* Not the one that holds the buffer that the plan had in mind. */
static void test_names_who_holds_it(void **state)
{
    (void)state;
    kit k = any_copy(BP_STRICT_ERROR, BP_SELECT_ANY, 2, NULL);
    char *low = take(&k, param(&k, 1), k.streams[0]); /* the plan's copy 1 */
    drop(&k, param(&k, 1), k.streams[0]);
    assert_ptr_equal(take(&k, param(&k, 0), k.streams[0]), low);
    char *high = take(&k, param(&k, 3), k.streams[0]);
    assert_ptr_not_equal(high, low);
    assert_refused(&k, param(&k, 1), k.streams[0], "u1", "u0");
    assert_null(strstr(bp_error_detail(), "u3"));
    drop(&k, param(&k, 0), k.streams[0]);
    assert_ptr_equal(take(&k, param(&k, 2), k.streams[0]), low);
    assert_refused(&k, param(&k, 1), k.streams[0], "u1", "u2");
    end_kit(&k);
}

/* What deviates is ordered like anything else. */
static void test_deviation_is_ordered(void **state)
{
    (void)state;
    kit k = any_copy(BP_STRICT_OFF, BP_SELECT_ANY, 2, NULL);
    gate g = {0};
    flag done = 0;
    void *low = take(&k, param(&k, 0), k.streams[0]), *high = take(&k, param(&k, 1), k.streams[0]);
    drop(&k, param(&k, 0), k.streams[0]);
    block(k.streams[1], &g);
    drop(&k, param(&k, 1), k.streams[1]);
    assert_ptr_equal(take(&k, param(&k, 2), k.streams[2]), low);
    assert_ptr_equal(take(&k, param(&k, 0), k.streams[3]), high);
    raise_on(k.streams[3], &done);
    assert_true(stays_down(&done));
    unblock(&g);
    assert_true(is_raised_soon(&done));
    end_kit(&k);
}

static void test_seal(void **state)
{
    (void)state;
    static const bp_strict levels[] = {BP_STRICT_OFF, BP_STRICT_WARN};
    for (size_t i = 0; i < 2; i++) {
        messages m = {0};
        kit k = any_copy(levels[i], BP_SELECT_ANY, 2, &m);
        void *low = take(&k, param(&k, 0), k.streams[0]);
        void *high = take(&k, param(&k, 1), k.streams[0]);
        drop(&k, param(&k, 0), k.streams[0]);
        take(&k, param(&k, 2), k.streams[0]); /* shares with u0 */
        drop(&k, param(&k, 1), k.streams[0]);
        assert_ok(bp_pool_seal(k.pool)); /* with a live request */
        assert_refused(&k, param(&k, 0), k.streams[0], "u0", "u2");
        int answer = 9;
        uint32_t id = param(&k, 0);
        assert_ok(bp_pool_can_acquire(k.pool, &id, 1, NULL, 0, &answer));
        assert_int_equal(answer, 0);
        assert_false(try_take(&k, id, k.streams[0]));
        assert_ptr_equal(take(&k, param(&k, 1), k.streams[0]), high);
        drop(&k, param(&k, 2), k.streams[0]);
        assert_ptr_equal(take(&k, id, k.streams[0]), low);
        assert_int_equal(deviations(&k), 0);
        assert_int_equal(m.count, 0);
        end_kit(&k);
    }
}

/* The sum of buffers is what counts, whichever are held. */
static void test_three_buffers(void **state)
{
    (void)state;
    kit k = any_copy(BP_STRICT_OFF, BP_SELECT_ANY, 3, NULL);
    bool live[6] = {false};
    unsigned held = 0, said_no = 0;
    seed(17);
    for (int step = 0; step < 2000; step++) {
        uint32_t u = random_below(6);
        if (live[u]) {
            drop(&k, param(&k, u), k.streams[random_below(KIT_STREAMS)]);
            held--;
            live[u] = false;
            continue;
        }
        live[u] = try_take(&k, param(&k, u), k.streams[random_below(KIT_STREAMS)]);
        assert_int_equal(live[u], held < 3);
        held += live[u];
        said_no += !live[u];
        void *addresses[6];
        for (uint32_t i = 0, n = 0; i < 6; i++) {
            if (!live[i])
                continue;
            addresses[n] = address_of(&k, param(&k, i));
            for (uint32_t j = 0; j < n; j++)
                assert_ptr_not_equal(addresses[j], addresses[n]);
            n++;
        }
    }
    assert_int_equal(statistics_of(k.pool).said_no, said_no);
    assert_true(said_no > 100);
    end_kit(&k);
}

/* ---- overflow ------------------------------------------------------------------------------------------------------ */

static void test_overflow(void **state)
{
    (void)state;
    static const bp_selection selections[] = {BP_SELECT_ASSIGNED, BP_SELECT_ANY};
    for (size_t i = 0; i < 2; i++) {
        kit k = begin_kit(new_device(), SIX, PARAM_ONLY, BP_POLICY_MAX, 2);
        bp_pool_config config = pool_config();
        config.selection = selections[i];
        assert_ok(bp_pool_create(k.device, k.plan, &config, &k.pool));
        assert_fails(bp_pool_allow_overflow(k.pool, 1), BP_ERR_UNSUPPORTED, NULL);
        bp_pool_destroy(&k.pool);
        config.overflow_bytes = 2 * aligned(2000); /* two requests at once */
        open_pool(&k, &config, 0);
        uint64_t committed = usage_of(k.device).committed_bytes;
        void *own[4], *places[2];
        for (uint32_t u = 0; u < 2; u++)
            own[u] = take(&k, param(&k, u), k.streams[0]);
        assert_refused(&k, param(&k, 2), k.streams[0], "u2"); /* until it is allowed */
        assert_ok(bp_pool_allow_overflow(k.pool, 1));
        bp_pool_slab slab = {.size = sizeof slab};
        size_t last = bp_pool_slab_count(k.pool);
        do
            assert_ok(bp_pool_slab_get(k.pool, --last, &slab));
        while (strcmp(slab.group, "overflow") != 0);
        for (uint32_t u = 0; u < 2; u++) {
            places[u] = take(&k, param(&k, 2 + u), k.streams[0]);
            assert_ptr_not_equal(places[u], own[0]);
            assert_ptr_not_equal(places[u], own[1]);
            assert_true((char *)places[u] >= (char *)slab.address);
            assert_true((char *)places[u] + 2000 <= (char *)slab.address + slab.bytes);
            assert_ptr_equal(address_of(&k, param(&k, 2 + u)), places[u]);
        }
        assert_ptr_not_equal(places[0], places[1]);
        assert_int_equal(statistics_of(k.pool).overflows, 2);
        assert_refused(&k, param(&k, 4), k.streams[0], "u4"); /* used up */
        assert_fails(bp_pool_seal(k.pool), BP_ERR_SCHEDULE, "u2");
        gate g = {0};
        flag done = 0;
        block(k.streams[1], &g);
        drop(&k, param(&k, 3), k.streams[1]);
        assert_ptr_equal(take(&k, param(&k, 4), k.streams[2]), places[1]); /* free again, and ordered */
        raise_on(k.streams[2], &done);
        assert_true(stays_down(&done));
        unblock(&g);
        assert_true(is_raised_soon(&done));
        assert_ok(bp_pool_allow_overflow(k.pool, 0)); /* what is held stays */
        assert_ptr_equal(take(&k, param(&k, 4), k.streams[2]), places[1]);
        drop(&k, param(&k, 4), k.streams[2]);
        drop(&k, param(&k, 4), k.streams[2]);
        assert_refused(&k, param(&k, 4), k.streams[0], "u4");
        drop(&k, param(&k, 0), k.streams[0]);
        drop(&k, param(&k, 2), k.streams[0]);
        own[2] = take(&k, param(&k, 2), k.streams[0]); /* overflow is no buffer to be remembered */
        assert_ptr_equal(own[2], own[0]);
        assert_ok(bp_pool_seal(k.pool));
        assert_fails(bp_pool_allow_overflow(k.pool, 1), BP_ERR_SCHEDULE, NULL);
        assert_refused(&k, param(&k, 4), k.streams[0], "u4");
        assert_int_equal(usage_of(k.device).committed_bytes, committed);
        assert_int_equal(statistics_of(k.pool).overflows, 3);
        end_kit(&k);
    }
}

/* Allowed, and then sealed: refused like any deviation. One request that fits is the least that overflow is for. */
static void test_overflow_and_seal(void **state)
{
    (void)state;
    kit k = begin_kit(new_device(), SIX, PARAM_ONLY, BP_POLICY_MAX, 2);
    bp_pool_config config = pool_config();
    config.overflow_bytes = aligned(2000);
    open_pool(&k, &config, 0);
    assert_ok(bp_pool_allow_overflow(k.pool, 1));
    take(&k, param(&k, 0), k.streams[0]);
    take(&k, param(&k, 1), k.streams[0]);
    take(&k, param(&k, 2), k.streams[0]);
    assert_false(try_take(&k, param(&k, 3), k.streams[0]));
    drop(&k, param(&k, 2), k.streams[0]);
    assert_ok(bp_pool_seal(k.pool));
    assert_refused(&k, param(&k, 2), k.streams[0], "u2");
    assert_false(try_take(&k, param(&k, 2), k.streams[0]));
    end_kit(&k);
}

/* Overflow smaller than the largest request is for the small ones. */
static void test_small_overflow(void **state)
{
    (void)state;
    kit k = begin_kit(new_device(), "1000,100 1000,100 1000,100", PARAM_ONLY, BP_POLICY_MAX, 2);
    bp_pool_config config = pool_config();
    config.overflow_bytes = aligned(200);
    open_pool(&k, &config, 0);
    assert_ok(bp_pool_allow_overflow(k.pool, 1));
    for (uint32_t u = 0; u < 2; u++) {
        take(&k, id_of(&k, u, BP_ROLE_PARAM, 0), k.streams[0]);
        take(&k, id_of(&k, u, BP_ROLE_PARAM, 1), k.streams[0]);
    }
    assert_refused(&k, id_of(&k, 2, BP_ROLE_PARAM, 0), k.streams[0], "u2");
    take(&k, id_of(&k, 2, BP_ROLE_PARAM, 1), k.streams[0]);
    assert_int_equal(statistics_of(k.pool).overflows, 1);
    end_kit(&k);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_remembers),          cmocka_unit_test(test_remembers_when_off),
        cmocka_unit_test(test_deviation),          cmocka_unit_test(test_deviation_is_ordered),
        cmocka_unit_test(test_names_who_holds_it), cmocka_unit_test(test_seal),
        cmocka_unit_test(test_three_buffers),      cmocka_unit_test(test_overflow),
        cmocka_unit_test(test_overflow_and_seal),  cmocka_unit_test(test_small_overflow),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
