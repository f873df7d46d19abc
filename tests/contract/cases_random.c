/* Random calls, compared with a reference model of places and buffers. */
#include <stdlib.h>

#include "cases.h"

#define MOST_IDS 4

typedef struct naive {
    const allocator_row *allocator;
    size_t requests;
    bp_plan_request places[SNAPSHOT_LIVE]; /* of the plan */
    int64_t class_of[SNAPSHOT_LIVE];       /* -1: separate memory */
    uint32_t copies[SNAPSHOT_LIVE];        /* of a class */
    uint32_t references[SNAPSHOT_LIVE];
    bool used[SNAPSHOT_LIVE];
    uint64_t acquires, repeated, releases, cancelled, busy, refused;
} naive;

static naive naive_of(const kit *k, const allocator_row *allocator)
{
    naive n = {.allocator = allocator, .requests = k->requests};
    const bp_plan_info *plan = bp_plan_get_info(k->plan);
    for (size_t i = 0; i < plan->request_count; i++) {
        n.places[i] = plan->requests[i];
        n.class_of[i] = -1;
        for (size_t c = 0; c < plan->class_count; c++) {
            const bp_plan_class class = plan->classes[c];
            uint64_t beyond = n.places[i].offset - class.offset; /* copies lie between those of other classes */
            if (class.slab == n.places[i].slab && n.places[i].offset >= class.offset && beyond % class.stride == 0 &&
                beyond / class.stride < class.copies) {
                n.class_of[i] = (int64_t)c;
                n.copies[c] = class.copies;
            }
        }
    }
    return n;
}

/* True if the requests in `holds` fit beside each other. */
static bool fits(const naive *n, const uint32_t *references)
{
    if (!n->allocator->pooled)
        return true;
    for (size_t i = 0; i < n->requests; i++) {
        uint32_t same_class = 0;
        for (size_t j = 0; j < n->requests && references[i] > 0; j++) {
            const bp_plan_request *a = &n->places[i], *b = &n->places[j];
            bool overlap = a->slab == b->slab && a->offset < b->offset + b->bytes && b->offset < a->offset + a->bytes;
            if (n->allocator->assigned && i != j && references[j] > 0 && overlap)
                return false;
            same_class += references[j] > 0 && n->class_of[i] >= 0 && n->class_of[j] == n->class_of[i];
        }
        if (!n->allocator->assigned && n->class_of[i] >= 0 && same_class > n->copies[n->class_of[i]])
            return false;
    }
    return true;
}

static size_t random_ids(const naive *n, uint32_t *ids, bool distinct)
{
    size_t count = 1 + random_below(MOST_IDS);
    for (size_t i = 0; i < count; i++) {
        ids[i] = random_below((uint32_t)n->requests);
        for (size_t j = 0; distinct && j < i; j++) {
            if (ids[i] == ids[j]) {
                i--;
                break;
            }
        }
    }
    return count;
}

static bool is_wrong(const naive *n, const uint32_t *ids, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        for (size_t j = 0; j < i; j++)
            if (ids[i] == ids[j])
                return true;
        if (ids[i] >= n->requests)
            return true;
    }
    return false;
}

static void acquire(kit *k, naive *n, const uint32_t *ids, size_t count)
{
    uint32_t after[SNAPSHOT_LIVE];
    bool wrong = is_wrong(n, ids, count), tries = random_below(2) == 0;
    int got = -1;
    for (size_t i = 0; i < n->requests; i++)
        after[i] = n->references[i];
    for (size_t i = 0; i < count && !wrong; i++)
        after[ids[i]]++;
    bool possible = !wrong && fits(n, after);
    bp_stream *stream = k->streams[random_below(KIT_STREAMS)];
    void *addresses[MOST_IDS];
    bp_status status = tries ? bp_pool_try_acquire(k->pool, ids, count, stream, addresses, &got)
                             : bp_pool_acquire(k->pool, ids, count, stream, addresses);
    bp_status refusal = tries ? BP_OK : BP_ERR_SCHEDULE;
    if (wrong) /* try_acquire may report busy before that is detected */
        assert_true(status == BP_ERR_INVALID_ARGUMENT || status == BP_ERR_SCHEDULE || (status == BP_OK && got == 0));
    else
        assert_int_equal(status, possible ? BP_OK : refusal);
    if (tries && !wrong)
        assert_int_equal(got, possible);
    n->refused += status != BP_OK;
    n->busy += tries && status == BP_OK && got == 0;
    for (size_t i = 0; i < count && possible; i++) {
        assert_ptr_equal(addresses[i], address_of(k, ids[i]));
        n->acquires++;
        n->repeated += n->references[ids[i]] > 0;
        n->used[ids[i]] = n->references[ids[i]]++ > 0; /* the second reference is taken by use */
    }
}

/* A release, a use or a cancel. */
static void work(kit *k, naive *n, const uint32_t *ids, size_t count, uint32_t what)
{
    bool wrong = is_wrong(n, ids, count), possible = !wrong;
    for (size_t i = 0; i < count && !wrong; i++) {
        uint32_t references = n->references[ids[i]];
        possible = possible && references > 0 && (what != 2 || (references == 1 && !n->used[ids[i]]));
    }
    bp_stream *stream = k->streams[random_below(KIT_STREAMS)];
    bp_status status = what == 0   ? bp_pool_release(k->pool, ids, count, stream)
                       : what == 1 ? bp_pool_use(k->pool, ids, count, stream)
                                   : bp_pool_cancel(k->pool, ids, count);
    if (wrong)
        assert_true(status != BP_OK);
    else
        assert_int_equal(status, possible ? BP_OK : BP_ERR_SCHEDULE);
    n->refused += status != BP_OK;
    for (size_t i = 0; i < count && possible; i++) {
        n->references[ids[i]] -= what != 1;
        n->releases += what == 0;
        n->cancelled += what == 2;
        n->used[ids[i]] |= what == 1;
    }
}

static void ask(const kit *k, const naive *n, const uint32_t *ids, size_t count)
{
    uint32_t after[SNAPSHOT_LIVE], releasing[MOST_IDS];
    size_t releasing_count = 0;
    for (size_t i = 0; i < n->requests; i++)
        after[i] = n->references[i];
    for (uint32_t i = random_below((uint32_t)n->requests); i < n->requests && releasing_count < 3; i += 3) {
        if (n->references[i] > 0) {
            releasing[releasing_count++] = i;
            after[i]--;
        }
    }
    for (size_t i = 0; i < count; i++)
        after[ids[i]]++;
    int can = -1;
    assert_ok(bp_pool_can_acquire(k->pool, ids, count, releasing, releasing_count, &can));
    assert_int_equal(can, fits(n, after));
}

static void assert_same(const kit *k, const naive *n)
{
    bp_live_request live[SNAPSHOT_LIVE];
    uint32_t references[SNAPSHOT_LIVE] = {0};
    size_t count;
    for (size_t i = 0; i < SNAPSHOT_LIVE; i++)
        live[i].size = sizeof *live;
    assert_ok(bp_pool_live(k->pool, live, SNAPSHOT_LIVE, &count));
    for (size_t i = 0; i < count; i++) {
        references[live[i].id] = live[i].references;
        for (size_t j = 0; j < i; j++) {
            const char *a = live[i].address, *b = live[j].address;
            assert_true(a + live[i].bytes <= b || b + live[j].bytes <= a);
        }
    }
    assert_memory_equal(references, n->references, n->requests * sizeof *references);
    bp_pool_statistics s = statistics_of(k->pool);
    assert_int_equal(s.acquires, n->acquires);
    assert_int_equal(s.repeated, n->repeated);
    assert_int_equal(s.releases, n->releases);
    assert_int_equal(s.cancelled, n->cancelled);
    assert_int_equal(s.busy, n->busy);
    assert_int_equal(s.refused, n->refused);
}

static void test_random_calls(const allocator_row *allocator, const device_row *device)
{
    seed(4242);
    for (int round = 0; round < 4; round++) {
        kit k = begin_kit(device->create(), NULL, TRAINING, allocator->policy, 0);
        k.w = make_scenario(random_model(8), TRAINING);
        k.plan = make_plan(&k.w, allocator->policy, 0, BP_FALLBACK_PERSISTENT);
        bp_pool_config config = config_of(allocator);
        open_pool(&k, &config);
        assert_true(k.requests <= SNAPSHOT_LIVE);
        naive n = naive_of(&k, allocator);
        for (int step = 0; step < 600; step++) {
            uint32_t ids[MOST_IDS + 1];
            size_t count = random_ids(&n, ids, random_below(8) != 0);
            if (random_below(40) == 0)
                ids[random_below((uint32_t)count)] = (uint32_t)n.requests + random_below(3);
            uint32_t what = random_below(8);
            for (uint32_t i = 0; what >= 4 && what < 7 && i < 20 && n.references[ids[0]] == 0; i++)
                ids[0] = random_below((uint32_t)n.requests); /* most releases are of live requests */
            if (what < 4)
                acquire(&k, &n, ids, what == 0 ? count : 1);
            else if (what < 7)
                work(&k, &n, ids, random_below(3) == 0 ? count : 1, what == 4 ? random_below(3) : 0);
            else if (!is_wrong(&n, ids, count))
                ask(&k, &n, ids, count);
            assert_same(&k, &n);
        }
        assert_true(n.acquires > 50 && n.releases > 50);
        assert_true(allocator->policy != BP_POLICY_MAX || n.busy > 5);
        end_kit(&k);
    }
}

const named_case RANDOM_CASES[] = {{"random calls", test_random_calls}, {NULL, NULL}};
