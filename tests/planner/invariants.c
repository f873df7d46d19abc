/* SPDX-License-Identifier: Apache-2.0 */
/* Invariants of plans against the reference model: bounds, sums, checks, round trips, and the rules of each policy. */
#include "support/harness.h"

#include <bucketpool/plan.h>

#include <stdbool.h>
#include <string.h>

#include "invariants.h"
#include "naive.h"
#include "support/scenarios.h"

static void assert_bounds(const bp_plan *plan, const scenario *w, const naive_requests *all)
{
    const bp_plan_info *info = bp_plan_get_info(plan);
    uint64_t total = 0;
    uint32_t steps = (uint32_t)bp_schedule_get_info(w->schedule)->step_count;
    for (size_t r = 0; r < info->role_count; r++) {
        const bp_plan_role *role = &info->roles[r];
        uint32_t first_step;
        uint64_t bound = naive_bound(all, steps, role->role, &first_step), sum = 0;
        assert_int_equal(role->lower_bound_bytes, bound);
        assert_int_equal(role->lower_bound_step, first_step);
        total += bound;
        bool seen[MAX_REQUESTS] = {false};
        for (size_t k = 0; k < role->witness_count; k++) {
            size_t found = 0;
            while (found < all->count && all->items[found].id != role->witnesses[k])
                found++;
            assert_true(found < all->count && !seen[found]);
            seen[found] = true;
            assert_int_equal(all->items[found].role, role->role);
            assert_true(live_at(&all->items[found], first_step));
            sum += aligned(all->items[found].bytes);
        }
        assert_int_equal(sum, bound);
        uint32_t max_units = 0;
        for (uint32_t step = 0; step < steps; step++) {
            uint64_t units = 0;
            for (size_t i = 0; i < all->count; i++)
                if (all->items[i].role == role->role && live_at(&all->items[i], step))
                    units |= UINT64_C(1) << all->items[i].unit;
            uint32_t count = (uint32_t)__builtin_popcountll(units);
            max_units = count > max_units ? count : max_units;
        }
        assert_int_equal(role->live_units, max_units);
    }
    assert_int_equal(info->lower_bound_bytes, total);
    assert_true(!info->feasible || info->bytes >= total);
    bool reached = info->feasible && info->bytes == total;
    if (info->policy == BP_POLICY_SCHEDULED) /* a search may raise the proven bound */
        assert_true(info->optimal || !reached);
    else
        assert_int_equal(info->optimal, reached);
}

/* Bytes of roles, slabs and buffers add up. */
static void assert_sums(const bp_plan_info *info)
{
    uint64_t bytes = 0, slab_bytes = 0, dynamic_bytes = 0;
    uint32_t copies = 0;
    for (size_t r = 0; r < info->role_count; r++) {
        const bp_plan_role *role = &info->roles[r];
        assert_int_equal(role->bytes, role->pool_bytes + role->persistent_bytes + role->dynamic_bytes);
        bytes += role->bytes;
        dynamic_bytes += role->dynamic_bytes;
        copies = role->copies > copies ? role->copies : copies;
        uint64_t pooled = 0, persistent = 0;
        for (size_t b = 0; b < role->buffer_count; b++) {
            const bp_plan_buffer *buffer = &role->buffers[b];
            assert_int_equal(buffer->bytes % ALIGNMENT, 0);
            assert_true(buffer->set_by < info->request_count);
            assert_true(role->roles & BP_ROLE_BIT(info->requests[buffer->set_by].role));
            if (buffer->kind == BP_BUFFER_POOLED)
                pooled += buffer->copies * buffer->bytes;
            if (buffer->kind == BP_BUFFER_PERSISTENT)
                persistent += buffer->copies * buffer->bytes;
        }
        assert_int_equal(pooled, info->policy == BP_POLICY_SCHEDULED ? 0 : role->pool_bytes);
        assert_int_equal(persistent, role->persistent_bytes);
    }
    assert_int_equal(bytes, info->bytes);
    assert_int_equal(copies, info->copies);
    if (!info->feasible) {
        assert_int_equal(info->slab_count + info->class_count, 0);
        assert_true(strlen(info->infeasible_because) > 0);
        return;
    }
    assert_string_equal(info->infeasible_because, "");
    for (size_t s = 0; s < info->slab_count; s++)
        slab_bytes += info->slabs[s].bytes;
    assert_int_equal(slab_bytes, bytes - dynamic_bytes);
}

/* The plan has every request of the buckets under its name; requests that are ever live have memory. */
static void assert_requests(const bp_plan *plan, const scenario *w, const naive_requests *all)
{
    const bp_plan_info *info = bp_plan_get_info(plan);
    size_t live = 0;
    assert_int_equal(info->request_count, bp_buckets_get_info(w->buckets)->request_count);
    for (uint32_t i = 0; i < info->request_count; i++) {
        const bp_plan_request *r = &info->requests[i];
        const bool is_live = live < all->count && all->items[live].id == i, has_memory = info->feasible && is_live;
        live += is_live;
        assert_int_equal(r->placement != BP_PLACE_NONE, has_memory);
        assert_true(r->placement != BP_PLACE_DYNAMIC || !info->stable);
        if (r->placement != BP_PLACE_PLANNED)
            assert_int_equal(r->slab + r->offset, 0);
        uint32_t id = UINT32_MAX;
        bp_status status = bp_plan_find(plan, r->unit, r->ordinal, (bp_role)r->role, r->dtype, r->bytes, &id);
        if (has_memory)
            assert_ok(status);
        else
            assert_fails(status, BP_ERR_MISMATCH, r->unit, "no memory");
        assert_int_equal(id, has_memory ? i : UINT32_MAX);
    }
}

/* No request outside a class uses memory of its copies. */
static void assert_classes(const bp_plan_info *info)
{
    for (size_t i = 0; i < info->class_count; i++) {
        const bp_plan_class *c = &info->classes[i];
        for (size_t r = 0; r < info->request_count; r++) {
            const bp_plan_request *request = &info->requests[r];
            for (uint64_t copy = 0; copy < c->copies && copy < 8; copy++) {
                const uint64_t begin = c->offset + copy * c->stride;
                if (request->placement != BP_PLACE_PLANNED || request->slab != c->slab ||
                    request->offset + request->bytes <= begin || request->offset >= begin + c->bytes)
                    continue;
                assert_int_equal(request->offset, begin);
                assert_int_equal(request->dtype, c->dtype);
                assert_true(request->bytes <= c->bytes);
            }
        }
    }
}

void assert_same_fingerprint(const bp_plan *a, const bp_plan *b, bool same)
{
    char first[BP_FINGERPRINT_CHARS], second[BP_FINGERPRINT_CHARS];
    assert_ok(bp_plan_fingerprint(a, first));
    assert_ok(bp_plan_fingerprint(b, second));
    assert_int_equal(strlen(first), BP_FINGERPRINT_CHARS - 1);
    assert_int_equal(strcmp(first, second) == 0, same);
}

static void assert_roundtrip(const bp_plan *plan, const scenario *w)
{
    SCOPED(bp_plan_destroy) bp_plan *again = NULL;
    char naive[BP_FINGERPRINT_CHARS], fingerprint[BP_FINGERPRINT_CHARS];
    again = copy_plan(plan);
    assert_same_fingerprint(plan, again, true);
    naive_fingerprint(plan, naive);
    assert_ok(bp_plan_fingerprint(again, fingerprint));
    assert_string_equal(naive, fingerprint);
    const bp_plan_info *before = bp_plan_get_info(plan), *after = bp_plan_get_info(again);
    assert_int_equal(before->policy, after->policy);
    assert_int_equal(before->copies, after->copies);
    assert_int_equal(before->feasible, after->feasible);
    assert_int_equal(before->stable, after->stable);
    assert_int_equal(before->alignment, after->alignment);
    assert_int_equal(before->bytes, after->bytes);
    assert_int_equal(before->lower_bound_bytes, after->lower_bound_bytes);
    assert_int_equal(before->request_count, after->request_count);
    for (size_t i = 0; i < before->request_count; i++) {
        assert_string_equal(before->requests[i].unit, after->requests[i].unit);
        assert_int_equal(before->requests[i].placement, after->requests[i].placement);
        assert_int_equal(before->requests[i].offset, after->requests[i].offset);
    }
    assert_ok(bp_plan_check(again, w->buckets, w->schedule));
}

void assert_plan_holds(const bp_plan *plan, const scenario *w)
{
    static naive_requests all;
    const bp_plan_info *info = bp_plan_get_info(plan);
    naive_collect(w, &all);
    assert_bounds(plan, w, &all);
    assert_sums(info);
    assert_requests(plan, w, &all);
    assert_classes(info);
    if (!info->feasible || !info->stable) {
        assert_fails(bp_plan_check(plan, w->buckets, w->schedule), BP_ERR_UNSUPPORTED, NULL);
        return;
    }
    assert_ok(bp_plan_check(plan, w->buckets, w->schedule));
    assert_true(naive_check(plan, w));
    assert_roundtrip(plan, w);
}

/* State is live all the time: its memory is never shared. */
static void assert_state_persists(const bp_plan_role *role)
{
    assert_int_equal(role->copies, 0);
    assert_int_equal(role->persistent_bytes, role->bytes);
    assert_int_equal(role->bytes, role->lower_bound_bytes);
}

void assert_max_holds(const scenario *w, uint32_t copies)
{
    static naive_requests all;
    naive_collect(w, &all);
    SCOPED(bp_plan_destroy) bp_plan *plan = make_max(w, copies);
    const bp_plan_info *info = bp_plan_get_info(plan);
    uint32_t steps = (uint32_t)bp_schedule_get_info(w->schedule)->step_count, most = 0;
    assert_plan_holds(plan, w);
    for (size_t r = 0; r < info->role_count; r++) {
        const bp_plan_role role = info->roles[r];
        if (STATE & BP_ROLE_BIT(role.role)) {
            assert_state_persists(&role);
            continue;
        }
        uint32_t needed = naive_copies(&all, role.role, UINT64_MAX, steps);
        most = needed > most ? needed : most;
        if (needed == 0) { /* gradients in evaluation */
            assert_int_equal(role.bytes, 0);
            continue;
        }
        assert_int_equal(role.copies, copies == 0 ? needed : copies);
        assert_int_equal(role.bytes, role.copies * naive_set_bytes(&all, role.role));
        assert_int_equal(role.persistent_bytes + role.dynamic_bytes, 0);
        for (size_t b = 0; b < role.buffer_count; b++) {
            const bp_plan_buffer buffer = role.buffers[b];
            bool set_by_fits = false;
            for (size_t i = 0; i < all.count; i++) {
                const naive_request *request = &all.items[i];
                uint32_t users;
                if (request->role != role.role || request->dtype != buffer.dtype ||
                    naive_rank(&all, request) != buffer.rank)
                    continue;
                assert_int_equal(buffer.bytes, naive_class(&all, request, &users));
                assert_int_equal(buffer.users, users);
                set_by_fits = set_by_fits || (request->id == buffer.set_by && aligned(request->bytes) == buffer.bytes);
            }
            assert_true(set_by_fits);
            assert_int_equal(buffer.copies, role.copies);
        }
    }
    assert_int_equal(info->feasible, copies == 0 || copies >= most);
}

static void assert_fixed_holds(const scenario *w, uint32_t copies, bp_fallback fallback)
{
    static naive_requests all, rest;
    naive_collect(w, &all);
    SCOPED(bp_plan_destroy) bp_plan *plan = make_plan(w, BP_POLICY_FIXED, copies, fallback);
    const bp_plan_info *info = bp_plan_get_info(plan);
    uint32_t steps = (uint32_t)bp_schedule_get_info(w->schedule)->step_count, most = 0;
    bool any_rest = false;
    assert_plan_holds(plan, w);
    for (size_t r = 0; r < info->role_count; r++) {
        const bp_plan_role role = info->roles[r];
        if (STATE & BP_ROLE_BIT(role.role)) {
            assert_state_persists(&role);
            continue;
        }
        uint64_t pooled = naive_pooled_units(&all, role.role), set = 0, persistent = 0;
        uint32_t needed = naive_copies(&all, role.role, pooled, steps), first_step;
        most = needed > most ? needed : most;
        if (needed == 0) {
            assert_int_equal(role.bytes, 0);
            continue;
        }
        rest.count = 0;
        /* The buffer of each position in a unit holds the largest padded bucket of that position. */
        uint64_t position_bytes[MAX_REQUESTS] = {0};
        int32_t last_unit = -1;
        size_t position = 0;
        for (size_t i = 0; i < all.count; i++) {
            const naive_request *request = &all.items[i];
            if (request->role != role.role)
                continue;
            position = request->unit == last_unit ? position + 1 : 0;
            last_unit = request->unit;
            uint64_t bytes = aligned(request->bytes);
            if (!(pooled >> request->unit & 1)) {
                rest.items[rest.count++] = *request;
                persistent += bytes;
            } else if (bytes > position_bytes[position]) {
                set += bytes - position_bytes[position];
                position_bytes[position] = bytes;
            }
        }
        any_rest = any_rest || rest.count > 0;
        /* As many buffer sets as units, pooled or not, are live at once. */
        uint32_t by_default = needed > role.live_units ? needed : role.live_units;
        assert_int_equal(role.copies, copies == 0 ? by_default : copies);
        assert_int_equal(role.pool_bytes, role.copies * set);
        assert_int_equal(role.persistent_bytes, fallback == BP_FALLBACK_PERSISTENT ? persistent : 0);
        assert_int_equal(role.dynamic_bytes,
                         fallback == BP_FALLBACK_DYNAMIC ? naive_bound(&rest, steps, role.role, &first_step) : 0);
    }
    assert_int_equal(info->feasible, copies == 0 || copies >= most);
    if (info->feasible)
        assert_int_equal(info->stable, fallback == BP_FALLBACK_PERSISTENT || !any_rest);
}

static void assert_dynamic_holds(const scenario *w)
{
    SCOPED(bp_plan_destroy) bp_plan *plan = make_plan(w, BP_POLICY_DYNAMIC, 0, BP_FALLBACK_PERSISTENT);
    const bp_plan_info *info = bp_plan_get_info(plan);
    assert_plan_holds(plan, w);
    assert_int_equal(info->feasible, 1);
    assert_int_equal(info->stable, 0);
    assert_int_equal(info->copies, 0);
    assert_int_equal(info->bytes, info->lower_bound_bytes);
    assert_int_equal(info->slab_count, 0);
}

/* One checked address per request; bytes between the bound and those of max; small scenarios are solved to optimality. */
static void assert_scheduled_holds(const scenario *w, uint32_t joint)
{
    bp_plan_config config = plan_config(BP_POLICY_SCHEDULED, 0, BP_FALLBACK_PERSISTENT);
    config.joint = joint;
    config.work = 1 << 20; /* one to two milliseconds, nearly always enough here */
    SCOPED(bp_plan_destroy) bp_plan *plan = NULL, *again = NULL, *max = make_max(w, 0);
    static naive_requests all;
    naive_collect(w, &all);
    assert_ok(bp_plan_create(w->buckets, w->schedule, &config, &plan));
    assert_requests(plan, w, &all);
    assert_ok(bp_plan_check(plan, w->buckets, w->schedule));
    assert_true(naive_check(plan, w));
    assert_ok(bp_plan_create(w->buckets, w->schedule, &config, &again));
    assert_same_fingerprint(plan, again, true);
    const bp_plan_info *info = bp_plan_get_info(plan);
    assert_int_equal(info->feasible, 1);
    assert_int_equal(info->stable, 1);
    if (bp_buckets_get_info(w->buckets)->request_count <= 6) /* larger ones may exceed the work limit */
        assert_int_equal(info->optimal, 1);
    assert_true(info->bytes <= bp_plan_get_info(max)->bytes);
    assert_true(info->bytes >= info->lower_bound_bytes);
    if (!joint)
        assert_int_equal(info->lower_bound_bytes, bp_plan_get_info(max)->lower_bound_bytes);
    uint64_t sum = 0;
    for (size_t i = 0; i < info->role_count; i++) {
        const bp_plan_role role = info->roles[i];
        assert_int_equal(role.optimal, role.bytes == role.proven_bytes);
        assert_true(role.proven_bytes >= role.lower_bound_bytes);
        sum += role.bytes;
        uint64_t witnesses = 0;
        for (size_t k = 0; k < role.witness_count; k++)
            witnesses += aligned(info->requests[role.witnesses[k]].bytes);
        assert_int_equal(witnesses, role.lower_bound_bytes);
    }
    assert_int_equal(sum, info->bytes);
}

void assert_all_policies_hold(const scenario *w)
{
    assert_scheduled_holds(w, 0);
    assert_scheduled_holds(w, 1);
    for (uint32_t copies = 0; copies <= 5; copies++) {
        assert_max_holds(w, copies);
        assert_fixed_holds(w, copies, BP_FALLBACK_PERSISTENT);
        assert_fixed_holds(w, copies, BP_FALLBACK_DYNAMIC);
    }
    assert_dynamic_holds(w);
}
