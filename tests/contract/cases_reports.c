/* Reports of a pool: statistics, live requests, dumps, the hash of the sequence. */
#include "cases.h"

CASE(statistics_arguments)
{
    KIT k = open_kit(allocator, device);
    bp_pool_statistics s = {.size = 1};
    assert_fails(bp_pool_statistics_get(k.pool, NULL), BP_ERR_INVALID_ARGUMENT, NULL);
    assert_fails(bp_pool_statistics_get(k.pool, &s), BP_ERR_INVALID_ARGUMENT, NULL);
    s.size = sizeof s;
    assert_fails(bp_pool_statistics_get(NULL, &s), BP_ERR_INVALID_ARGUMENT, NULL);
}

CASE(live)
{
    KIT k = open_kit(allocator, device);
    bp_pool_set_step(k.pool, 31);
    uint32_t ids[] = {param(&k, 0), param(&k, 1), id_of(&k, 3, BP_ROLE_GRAD, 1)};
    void *addresses[3];
    addresses[2] = take(&k, ids[2], k.streams[2]); /* the order of ids, not of acquires */
    bp_pool_set_step(k.pool, 32);
    addresses[0] = take(&k, ids[0], k.streams[1]);
    addresses[1] = take(&k, ids[1], k.streams[0]);
    bp_pool_set_step(k.pool, 33);
    take(&k, ids[0], k.streams[3]);
    bp_live_request live[4];
    memset(live, 0x55, sizeof live);
    for (size_t i = 0; i < 4; i++)
        live[i].size = sizeof *live;
    bp_live_request untouched = live[3];
    size_t count = 0;
    assert_ok(bp_pool_live(k.pool, live, 3, &count));
    assert_int_equal(count, 3);
    assert_memory_equal(&live[3], &untouched, sizeof untouched);
    static const char *const units[] = {"u0", "u1", "u3"}, *const streams[] = {"s1", "s0", "s2"};
    for (size_t i = 0; i < 3; i++) {
        assert_true(i == 0 || live[i - 1].id < live[i].id);
        assert_int_equal(live[i].id, ids[i]);
        assert_string_equal(live[i].unit, units[i]);
        assert_string_equal(live[i].stream, streams[i]);
        assert_ptr_equal(live[i].address, addresses[i]);
        assert_int_equal(live[i].role, i == 2 ? BP_ROLE_GRAD : BP_ROLE_PARAM);
        assert_int_equal(live[i].ordinal, i == 2);
        assert_int_equal(live[i].bytes, i == 2 ? 200 : 600);
        assert_int_equal(live[i].references, i == 0 ? 2 : 1);
        assert_int_equal(live[i].step, i == 2 ? 31 : 32);
    }
    assert_true(live[2].acquire_number < live[0].acquire_number);
    assert_true(live[0].acquire_number < live[1].acquire_number);
    live[1].id = 555;
    assert_ok(bp_pool_live(k.pool, live, 1, &count)); /* room for one entry: all are counted */
    assert_int_equal(count, 3);
    assert_int_equal(live[1].id, 555);
    assert_ok(bp_pool_live(k.pool, NULL, 0, &count));
    assert_fails(bp_pool_live(k.pool, NULL, 1, &count), BP_ERR_INVALID_ARGUMENT, NULL);
    assert_fails(bp_pool_live(k.pool, live, 1, NULL), BP_ERR_INVALID_ARGUMENT, NULL);
    assert_fails(bp_pool_live(NULL, live, 1, &count), BP_ERR_INVALID_ARGUMENT, NULL);
    live[0].size = 1;
    assert_fails(bp_pool_live(k.pool, live, 1, &count), BP_ERR_INVALID_ARGUMENT, NULL);
}

static size_t lines_of(const char *text)
{
    size_t lines = 0;
    for (; *text != '\0'; text++)
        lines += *text == '\n';
    return lines;
}

CASE(dump)
{
    KIT k = open_kit(allocator, device);
    char whole[4000], text[4000];
    size_t idle = 0, needed = 0;
    assert_ok(bp_pool_dump(k.pool, NULL, 0, &idle));
    assert_true(idle > 0 && idle < sizeof whole);
    assert_ok(bp_pool_dump(k.pool, whole, sizeof whole, &needed));
    assert_int_equal(needed, idle);
    assert_int_equal(lines_of(whole), 1); /* the sums */
    take(&k, param(&k, 0), k.streams[1]);
    take(&k, param(&k, 1), k.streams[2]);
    take(&k, id_of(&k, 4, BP_ROLE_GRAD, 0), k.streams[2]);
    assert_ok(bp_pool_dump(k.pool, whole, sizeof whole, &needed));
    assert_int_equal(needed, strlen(whole) + 1);
    assert_int_equal(lines_of(whole), 4);
    assert_int_equal(whole[strlen(whole) - 1], '\n');
    const char *at = whole; /* in the order of ids */
    static const char *const units[] = {"u0", "u1", "u4"};
    for (size_t i = 0; i < 3; i++) {
        const char *found = strstr(at, units[i]);
        assert_non_null(found);
        assert_true(found < strchr(at, '\n'));
        at = strchr(at, '\n') + 1;
    }
    for (size_t capacity = 0; capacity <= needed + 1; capacity++) {
        size_t again = 0;
        memset(text, 'Z', sizeof text);
        assert_ok(bp_pool_dump(k.pool, text, capacity, &again));
        assert_int_equal(again, needed);
        for (size_t i = capacity; i < sizeof text; i++)
            assert_int_equal(text[i], 'Z');
        if (capacity == 0)
            continue;
        size_t length = strlen(text);
        assert_true(length < capacity);
        assert_memory_equal(text, whole, length); /* whole lines, as many as fit */
        assert_true(length == 0 || text[length - 1] == '\n');
        const char *next = strchr(whole + length, '\n');
        assert_true(next == NULL || (size_t)(next + 1 - whole) + 1 > capacity);
    }
    assert_fails(bp_pool_dump(k.pool, NULL, 10, &needed), BP_ERR_INVALID_ARGUMENT, NULL);
    assert_fails(bp_pool_dump(k.pool, text, 10, NULL), BP_ERR_INVALID_ARGUMENT, NULL);
    assert_fails(bp_pool_dump(NULL, text, 10, &needed), BP_ERR_INVALID_ARGUMENT, NULL);
}

typedef struct sequence {
    uint64_t hash, acquires;
} sequence;

static sequence sequence_of(const kit *k)
{
    sequence s = {0, 77};
    assert_ok(bp_pool_sequence(k->pool, &s.hash, &s.acquires));
    return s;
}

static void pass(const kit *k, uint32_t unit, bp_role role, uint32_t ordinal, int stream)
{
    uint32_t id = id_of(k, unit, role, ordinal);
    take(k, id, k->streams[stream]);
    drop(k, id, k->streams[stream]);
}

/* u3 to u0, with a bucket each. */
static bp_model *backwards(void)
{
    bp_model *model = new_model();
    for (uint32_t u = 3; u < 4; u--)
        add_bucket(model, add_numbered_unit(model, u), BP_DTYPE_BF16, 300, 0);
    return model;
}

CASE(sequence)
{
    /* The hash depends on units, not on ids: the other plan has the units in another order. */
    kit k = open_kit(allocator, device), other = begin_kit(device->create(), NULL, TRAINING, allocator->policy, 0);
    other.w = make_scenario(backwards(), TRAINING);
    other.plan = make_plan(&other.w, allocator->policy, 0, BP_FALLBACK_PERSISTENT);
    bp_pool_config config = config_of(allocator);
    open_pool(&other, &config);
    assert_int_not_equal(param(&other, 0), param(&k, 0));
    sequence none = sequence_of(&k);
    assert_int_equal(none.acquires, 0);
    assert_int_equal(sequence_of(&other).hash, none.hash);
    for (uint32_t u = 0; u < 4; u++) {
        pass(&k, u, BP_ROLE_PARAM, 0, 0);
        pass(&other, u, BP_ROLE_PARAM, 0, 2);
        assert_int_equal(sequence_of(&other).hash, sequence_of(&k).hash);
        assert_int_equal(sequence_of(&other).acquires, u + 1);
        assert_true(sequence_of(&k).hash != none.hash);
        none = sequence_of(&k);
    }
    /* Failed calls, busy results and releases do not change the hash. */
    uint32_t none_such = 1000, twice[] = {param(&k, 0), param(&k, 0)};
    bp_pool_acquire(k.pool, &none_such, 1, k.streams[0], NULL);
    bp_pool_acquire(k.pool, twice, 2, k.streams[0], NULL);
    bp_pool_release(k.pool, twice, 1, k.streams[0]);
    assert_int_equal(sequence_of(&k).hash, none.hash);
    assert_int_equal(sequence_of(&k).acquires, none.acquires);
    /* The hash depends on order, role and ordinal. The count is the same. */
    static const struct {
        uint32_t unit;
        bp_role role;
        uint32_t ordinal;
    } ways[] = {{0, BP_ROLE_PARAM, 0}, {1, BP_ROLE_PARAM, 0}, {0, BP_ROLE_GRAD, 0}, {0, BP_ROLE_PARAM, 1}};
    sequence seen[4];
    for (size_t way = 0; way < 4; way++) {
        bp_pool_destroy(&k.pool);
        open_pool(&k, &config);
        pass(&k, ways[way].unit, ways[way].role, ways[way].ordinal, 0);
        pass(&k, 0, BP_ROLE_PARAM, 0, 0);
        seen[way] = sequence_of(&k);
        assert_int_equal(seen[way].acquires, 2);
        for (size_t i = 0; i < way; i++)
            assert_true(seen[i].hash != seen[way].hash);
    }
    bp_pool_destroy(&k.pool);
    open_pool(&k, &config);
    pass(&k, 0, BP_ROLE_PARAM, 0, 0);
    pass(&k, 1, BP_ROLE_PARAM, 0, 0);
    assert_true(sequence_of(&k).hash != seen[1].hash); /* the same two in reverse order */
    uint64_t number;
    assert_fails(bp_pool_sequence(k.pool, NULL, &number), BP_ERR_INVALID_ARGUMENT, NULL);
    assert_fails(bp_pool_sequence(NULL, &number, &number), BP_ERR_INVALID_ARGUMENT, NULL);
    end_kit(&other);
    end_kit(&k);
}
