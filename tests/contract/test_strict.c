/* SPDX-License-Identifier: Apache-2.0 */
/* Strict assignment: the planned copy or any free one; sealing and overflow. */
#include "support/pools.h"

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

static kit six_units(bp_strict strict, uint32_t copies, messages *m)
{
    scenario_options options = PARAM_ONLY;
    options.prefetch = copies - 1;
    kit k = begin_kit(new_device(), SIX, options, BP_POLICY_MAX, copies);
    bp_pool_config config = pool_config();
    config.strict = strict;
    config.on_message = m != NULL ? on_message : NULL;
    config.user = m;
    open_pool(&k, &config);
    return k;
}

static uint64_t deviations(const kit *k)
{
    return statistics_of(k->pool).deviations;
}

static const bp_strict LEVELS[] = {BP_STRICT_OFF, BP_STRICT_WARN, BP_STRICT_ERROR};

/* Another request holds the copy of u0, and another copy is free. */
TEST(deviation)
{
    for (size_t i = 0; i < 3; i++) {
        messages m = {0};
        bool allowed = LEVELS[i] != BP_STRICT_ERROR;
        kit k = six_units(LEVELS[i], 2, &m);
        bp_pool_set_step(k.pool, 31337);
        char *first = take(&k, param(&k, 0), k.streams[0]);
        drop(&k, param(&k, 0), k.streams[0]);
        assert_ptr_equal(take(&k, param(&k, 2), k.streams[0]), first); /* as planned */
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
            take(&k, param(&k, 1), k.streams[0]); /* the free copy is only for requests planned on it */
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
        if (LEVELS[i] == BP_STRICT_WARN) {
            assert_int_equal(m.count, 1);
            assert_non_null(strstr(m.last, "u0"));
            assert_null(strchr(m.last, '\n'));
        } else
            assert_int_equal(m.count, 0);
        drop(&k, param(&k, 0), k.streams[0]);
        drop(&k, param(&k, 0), k.streams[0]);
        drop(&k, param(&k, 2), k.streams[0]);
        assert_ptr_equal(take(&k, param(&k, 0), k.streams[0]), first); /* the copy is still its planned one */
        end_kit(&k);
    }
}

/* A refusal names the holder of the planned copy, also if that deviates. */
TEST(refusal_names_holder)
{
    kit k = six_units(BP_STRICT_ERROR, 2, NULL);
    take(&k, param(&k, 0), k.streams[0]);
    take(&k, param(&k, 3), k.streams[0]);
    assert_refused(&k, param(&k, 1), k.streams[0], "u1", "u3");
    assert_null(strstr(bp_error_detail(), "u0"));
    assert_refused(&k, param(&k, 2), k.streams[0], "u2", "u0");
    end_kit(&k);
    k = six_units(BP_STRICT_OFF, 2, NULL);
    take(&k, param(&k, 0), k.streams[0]);
    take(&k, param(&k, 2), k.streams[0]); /* the copy of u1 */
    assert_refused(&k, param(&k, 1), k.streams[0], "u1", "u2");
    assert_null(strstr(bp_error_detail(), "u0"));
    assert_refused(&k, param(&k, 4), k.streams[0], "u4", "u0");
    end_kit(&k);
}

/* Deviating requests are ordered like any other. */
TEST(deviation_is_ordered)
{
    gate g = {0};
    KIT k = six_units(BP_STRICT_OFF, 2, NULL);
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
}

/* ---- overflow ------------------------------------------------------------------------------------------------------ */

TEST(overflow)
{
    static const bp_strict levels[] = {BP_STRICT_ERROR, BP_STRICT_OFF};
    for (size_t i = 0; i < 2; i++) {
        gate g = {0};
        KIT k = begin_kit(new_device(), SIX, PARAM_ONLY, BP_POLICY_MAX, 2);
        bp_pool_config config = pool_config();
        config.strict = levels[i];
        assert_ok(bp_pool_create(k.device, k.plan, &config, &k.pool));
        assert_fails(bp_pool_allow_overflow(k.pool, 1), BP_ERR_UNSUPPORTED, NULL);
        bp_pool_destroy(&k.pool);
        config.overflow_bytes = 2 * aligned(2000); /* two requests at once */
        open_pool(&k, &config);
        uint64_t committed = usage_of(k.device).committed_bytes;
        void *own[4], *places[2];
        for (uint32_t u = 0; u < 2; u++)
            own[u] = take(&k, param(&k, u), k.streams[0]);
        assert_refused(&k, param(&k, 2), k.streams[0], "u2"); /* until it is allowed */
        assert_ok(bp_pool_allow_overflow(k.pool, 1));
        const bp_pool_info *info = bp_pool_get_info(k.pool);
        const bp_pool_slab slab = info->slabs[info->slab_count - 1];
        assert_string_equal(slab.group, "overflow");
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
        flag done = 0;
        block(k.streams[1], &g);
        drop(&k, param(&k, 3), k.streams[1]);
        assert_ptr_equal(take(&k, param(&k, 4), k.streams[2]), places[1]); /* free again, and ordered */
        raise_on(k.streams[2], &done);
        assert_true(stays_down(&done));
        unblock(&g);
        assert_true(is_raised_soon(&done));
        assert_ok(bp_pool_allow_overflow(k.pool, 0)); /* live requests keep their memory */
        assert_ptr_equal(take(&k, param(&k, 4), k.streams[2]), places[1]);
        drop(&k, param(&k, 4), k.streams[2]);
        drop(&k, param(&k, 4), k.streams[2]);
        assert_refused(&k, param(&k, 4), k.streams[0], "u4");
        drop(&k, param(&k, 0), k.streams[0]);
        drop(&k, param(&k, 2), k.streams[0]);
        own[2] = take(&k, param(&k, 2), k.streams[0]); /* the planned copy again */
        assert_ptr_equal(own[2], own[0]);
        assert_ok(bp_pool_seal(k.pool));
        assert_fails(bp_pool_allow_overflow(k.pool, 1), BP_ERR_SCHEDULE, NULL);
        assert_refused(&k, param(&k, 4), k.streams[0], "u4");
        assert_int_equal(usage_of(k.device).committed_bytes, committed);
        assert_int_equal(statistics_of(k.pool).overflows, 3);
    }
}

/* Overflow memory smaller than the largest request serves small ones. */
TEST(small_overflow)
{
    KIT k = begin_kit(new_device(), "1000,100 1000,100 1000,100", PARAM_ONLY, BP_POLICY_MAX, 2);
    bp_pool_config config = pool_config();
    config.overflow_bytes = aligned(200);
    open_pool(&k, &config);
    assert_ok(bp_pool_allow_overflow(k.pool, 1));
    for (uint32_t u = 0; u < 2; u++) {
        take(&k, id_of(&k, u, BP_ROLE_PARAM, 0), k.streams[0]);
        take(&k, id_of(&k, u, BP_ROLE_PARAM, 1), k.streams[0]);
    }
    assert_refused(&k, id_of(&k, 2, BP_ROLE_PARAM, 0), k.streams[0], "u2");
    take(&k, id_of(&k, 2, BP_ROLE_PARAM, 1), k.streams[0]);
    assert_int_equal(statistics_of(k.pool).overflows, 1);
}
