/* Checks a plan against its buckets and schedule. Shares the data structures with the planner but none of its arithmetic, so that
 * a mistake there shows here.
 *
 * Addresses: assignments are matched with requests by unit name, role and ordinal, each once, and their numbers compared.
 *
 * Time: a map from byte ranges to their latest user is swept over the intervals in order of begin. When an interval of r
 * begins, each range of r's bytes has one latest user u, whose interval began last before this one. That interval must have
 * ended (else two requests share bytes), and r must come after it: u is r itself, or r's predecessor list has u, or it has a p
 * whose latest interval began after u's had ended, has ended itself, and came after u in the same sense: p waited for u then,
 * and r waits for p. (What r knows through a p that has been acquired anew since is not counted: no planner needs it.)
 * Users before u need no entry, since u waited for them in turn. The sweep runs twice, because the schedule repeats: what the
 * last step left in the map comes before the first step. */
#include "planner/plan.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "core/fail.h"
#include "planner/schedule.h"

#define NOBODY UINT32_MAX

/* ---- assignments and requests ------------------------------------------------------------------------------------- */

typedef struct request_key {
    const char *unit;
    uint32_t role, ordinal, request;
} request_key;

static int compare_keys(const void *left, const void *right)
{
    const request_key *a = left, *b = right;
    int names = strcmp(a->unit, b->unit);
    if (names != 0)
        return names;
    if (a->role != b->role)
        return a->role < b->role ? -1 : 1;
    return (a->ordinal > b->ordinal) - (a->ordinal < b->ordinal);
}

typedef struct check {
    const bp_plan *plan;
    const bp_buckets *buckets;
    const bp_schedule *schedule;
    request_key *keys;
    uint32_t *request_of;    /* by assignment */
    uint32_t *assignment_of; /* by request; NOBODY */
} check;

/* "layers.3/dense (role 0)" */
typedef struct request_text {
    char text[128];
} request_text;

static request_text describe(const char *unit, const char *bucket, uint32_t ordinal, uint32_t role)
{
    char label[24];
    request_text out;
    const char *role_name = role < BP_ROLE_COUNT ? bp_role_name((bp_role)role) : NULL;
    if (role_name != NULL)
        snprintf(out.text, sizeof out.text, "%.60s/%.30s %s", unit, bp_bucket_label(bucket, ordinal, label), role_name);
    else
        snprintf(out.text, sizeof out.text, "%.60s/%.30s role %u", unit, bp_bucket_label(bucket, ordinal, label), role);
    return out;
}

static request_text describe_assignment(const bp_plan *plan, size_t index)
{
    const bp_assignment_data *a = &plan->assignments[index];
    return describe(plan->units[a->unit], a->bucket, a->ordinal, a->role);
}

static request_text describe_request(const bp_buckets *buckets, size_t index)
{
    const bp_request_data *r = &buckets->requests[index];
    const bp_bucket_data *b = &buckets->buckets[r->bucket];
    return describe(buckets->units[b->unit].name, b->name, b->ordinal, r->role);
}

static void collect_keys(check *c)
{
    for (size_t i = 0; i < c->buckets->request_count; i++) {
        const bp_request_data *r = &c->buckets->requests[i];
        const bp_bucket_data *b = &c->buckets->buckets[r->bucket];
        c->keys[i] = (request_key){c->buckets->units[b->unit].name, r->role, b->ordinal, (uint32_t)i};
        c->assignment_of[i] = NOBODY;
    }
    qsort(c->keys, c->buckets->request_count, sizeof *c->keys, compare_keys);
}

/* Whether the assignment is the request that it claims to be. */
static bp_status check_identity(check *c, size_t index)
{
    const bp_assignment_data *a = &c->plan->assignments[index];
    request_key wanted = {c->plan->units[a->unit], a->role, a->ordinal, 0};
    const request_key *key = bsearch(&wanted, c->keys, c->buckets->request_count, sizeof *c->keys, compare_keys);
    if (key == NULL)
        return bp_fail(BP_ERR_MISMATCH, "assignment %zu (%s): there is no such request", index,
                       describe_assignment(c->plan, index).text);
    const bp_request_data *r = &c->buckets->requests[key->request];
    const char *name = c->buckets->buckets[r->bucket].name;
    char plan_label[24], bucket_label[24];
    if (strcmp(bp_bucket_label(a->bucket, a->ordinal, plan_label), bp_bucket_label(name, a->ordinal, bucket_label)) !=
        0)
        return bp_fail(BP_ERR_MISMATCH, "assignment %zu (%s): the bucket's name is \"%s\"", index,
                       describe_assignment(c->plan, index).text, bp_bucket_label(name, a->ordinal, bucket_label));
    if (c->assignment_of[key->request] != NOBODY)
        return bp_fail(BP_ERR_MISMATCH, "assignment %zu (%s): assignment %u is the same request", index,
                       describe_assignment(c->plan, index).text, c->assignment_of[key->request]);
    if (a->dtype != r->dtype)
        return bp_fail(BP_ERR_MISMATCH, "assignment %zu (%s): dtype %s, the request has %s", index,
                       describe_assignment(c->plan, index).text, bp_dtype_name((bp_dtype)a->dtype),
                       bp_dtype_name((bp_dtype)r->dtype));
    if (a->bytes != r->bytes)
        return bp_fail(BP_ERR_MISMATCH, "assignment %zu (%s): %llu bytes, the request needs %llu", index,
                       describe_assignment(c->plan, index).text, (unsigned long long)a->bytes,
                       (unsigned long long)r->bytes);
    c->request_of[index] = key->request;
    c->assignment_of[key->request] = (uint32_t)index;
    return BP_OK;
}

static bp_status check_address(const bp_plan *plan, size_t index)
{
    const bp_assignment_data *a = &plan->assignments[index];
    if (a->slab >= plan->slab_count)
        return bp_fail(BP_ERR_MISMATCH, "assignment %zu (%s): slab %u, there are %zu", index,
                       describe_assignment(plan, index).text, a->slab, plan->slab_count);
    if (a->offset % plan->summary.alignment != 0)
        return bp_fail(BP_ERR_MISMATCH, "assignment %zu (%s): offset %llu is no multiple of %llu", index,
                       describe_assignment(plan, index).text, (unsigned long long)a->offset,
                       (unsigned long long)plan->summary.alignment);
    uint64_t slab_bytes = plan->slabs[a->slab].bytes;
    if (a->offset > slab_bytes || a->bytes > slab_bytes - a->offset)
        return bp_fail(BP_ERR_MISMATCH, "assignment %zu (%s): %llu bytes at %llu leave slab %u of %llu bytes", index,
                       describe_assignment(plan, index).text, (unsigned long long)a->bytes,
                       (unsigned long long)a->offset, a->slab, (unsigned long long)slab_bytes);
    const uint32_t *predecessors;
    size_t count = bp_predecessors_of(plan, index, &predecessors);
    for (size_t i = 0; i < count; i++)
        if (predecessors[i] >= plan->assignment_count)
            return bp_fail(BP_ERR_MISMATCH, "assignment %zu (%s): predecessor %u, there are %zu assignments", index,
                           describe_assignment(plan, index).text, predecessors[i], plan->assignment_count);
    return BP_OK;
}

static bp_status check_assignments(check *c)
{
    for (size_t i = 0; i < c->plan->assignment_count; i++) {
        BP_TRY(check_identity(c, i));
        BP_TRY(check_address(c->plan, i));
    }
    for (size_t i = 0; i < c->buckets->request_count; i++) {
        size_t intervals;
        bp_schedule_intervals(c->schedule, i, &intervals);
        if (intervals > 0 && c->buckets->requests[i].bytes > 0 && c->assignment_of[i] == NOBODY)
            return bp_fail(BP_ERR_MISMATCH, "%s: %llu bytes are needed, the plan has no address for them",
                           describe_request(c->buckets, i).text, (unsigned long long)c->buckets->requests[i].bytes);
    }
    return BP_OK;
}

/* ---- a set of small integers with the nearest member at or below and above a value ---------------------------------- */

#define LEVELS 6 /* 64^6 members */

typedef struct position_set {
    uint64_t *words; /* all levels behind each other, the members first */
    uint64_t *level[LEVELS];
} position_set;

static bp_status set_create(position_set *set, size_t members)
{
    size_t words[LEVELS], total = 0;
    for (int l = 0; l < LEVELS; l++) {
        members = members / 64 + 1;
        words[l] = members;
        total += members;
    }
    void *memory;
    BP_TRY(bp_new_array(total, sizeof *set->words, &memory));
    set->words = memory;
    for (int l = 0; l < LEVELS; l++)
        set->level[l] = l == 0 ? set->words : set->level[l - 1] + words[l - 1];
    return BP_OK;
}

static bool set_has(const position_set *set, size_t member)
{
    return set->level[0][member / 64] >> member % 64 & 1;
}

static void set_add(position_set *set, size_t member)
{
    for (int l = 0; l < LEVELS; l++, member /= 64)
        set->level[l][member / 64] |= UINT64_C(1) << member % 64;
}

static void set_remove(position_set *set, size_t member)
{
    for (int l = 0; l < LEVELS; l++, member /= 64) {
        set->level[l][member / 64] &= ~(UINT64_C(1) << member % 64);
        if (set->level[l][member / 64] != 0)
            return;
    }
}

/* The largest member that is at most `value`; there is one. */
static size_t set_at_or_below(const position_set *set, size_t value)
{
    int l = 0;
    uint64_t word = set->level[0][value / 64] & (UINT64_MAX >> (63 - value % 64));
    while (word == 0) {
        value /= 64;
        l++;
        word = set->level[l][value / 64] & ((UINT64_C(1) << value % 64) - 1);
    }
    value = value / 64 * 64 + (size_t)(63 - __builtin_clzll(word));
    for (; l > 0; l--)
        value = value * 64 + (size_t)(63 - __builtin_clzll(set->level[l - 1][value]));
    return value;
}

/* The smallest member that is larger than `value`; there is one. */
static size_t set_above(const position_set *set, size_t value)
{
    int l = 0;
    uint64_t word;
    for (;; l++, value /= 64) {
        word = set->level[l][value / 64] & ~(UINT64_MAX >> (63 - value % 64));
        if (word != 0)
            break;
    }
    value = value / 64 * 64 + (size_t)__builtin_ctzll(word);
    for (; l > 0; l--)
        value = value * 64 + (size_t)__builtin_ctzll(set->level[l - 1][value]);
    return value;
}

/* ---- the sweep ----------------------------------------------------------------------------------------------------- */

typedef struct cut {
    uint64_t offset;
    uint32_t slab;
} cut;

static int compare_cuts(const void *left, const void *right)
{
    const cut *a = left, *b = right;
    if (a->slab != b->slab)
        return a->slab < b->slab ? -1 : 1;
    return (a->offset > b->offset) - (a->offset < b->offset);
}

typedef struct event {
    uint32_t assignment, end;
} event;

typedef struct sweep {
    cut *cuts; /* where ranges may begin and end, sorted, each once, of all slabs */
    size_t cut_count;
    position_set starts; /* cuts at which a range of the map begins; it reaches to the next */
    uint32_t *user;      /* by cut that is in `starts`: the range's latest user */
    uint32_t *end_step;  /* by assignment: of its latest interval, counted on through both passes; 0: there was none */
    uint32_t *begin_step;
    uint32_t *seen_at; /* by assignment: the latest search that looked at it */
    uint32_t *stack;   /* of a search */
    uint32_t searches;
    event *events;       /* intervals in order of begin */
    size_t *first_event; /* by step */
} sweep;

static size_t find_cut(const sweep *s, uint32_t slab, uint64_t offset)
{
    cut wanted = {offset, slab};
    const cut *found = bsearch(&wanted, s->cuts, s->cut_count, sizeof *s->cuts, compare_cuts);
    return (size_t)(found - s->cuts);
}

static void collect_cuts(const bp_plan *plan, sweep *s)
{
    size_t count = 0;
    for (size_t i = 0; i < plan->assignment_count; i++) {
        const bp_assignment_data *a = &plan->assignments[i];
        s->cuts[count++] = (cut){a->offset, a->slab};
        s->cuts[count++] = (cut){a->offset + a->bytes, a->slab};
    }
    qsort(s->cuts, count, sizeof *s->cuts, compare_cuts);
    for (size_t i = 0; i < count; i++)
        if (i == 0 || compare_cuts(&s->cuts[i], &s->cuts[s->cut_count - 1]) != 0)
            s->cuts[s->cut_count++] = s->cuts[i];
}

/* Counting sort by begin, so that ties stay in the order of the assignments. */
static void collect_events(const check *c, sweep *s)
{
    for (int counting = 1; counting >= 0; counting--) {
        for (size_t i = 0; i < c->plan->assignment_count; i++) {
            size_t count;
            const bp_interval *intervals = bp_schedule_intervals(c->schedule, c->request_of[i], &count);
            for (size_t k = 0; k < count && c->plan->assignments[i].bytes > 0; k++) {
                if (counting)
                    s->first_event[intervals[k].begin + 2]++;
                else
                    s->events[s->first_event[intervals[k].begin + 1]++] = (event){(uint32_t)i, intervals[k].end};
            }
        }
        for (size_t t = 2; counting && t < c->schedule->step_count + 2; t++)
            s->first_event[t] += s->first_event[t - 1];
    }
}

/* Makes `position` the start of a range. */
static void split_range(sweep *s, size_t position)
{
    if (set_has(&s->starts, position))
        return;
    s->user[position] = s->user[set_at_or_below(&s->starts, position)];
    set_add(&s->starts, position);
}

/* Whether a chain of predecessors leads from the assignment, which begins now, back to `user`. Each link must have ended when
 * the one that waits for it began, and begun after `user` had ended, so that what was waited for is the use in question. */
static bool comes_after(const check *c, sweep *s, uint32_t now, uint32_t assignment, uint32_t user)
{
    size_t depth = 0;
    s->searches++;
    s->stack[depth++] = assignment;
    s->seen_at[assignment] = s->searches;
    while (depth > 0) {
        uint32_t at = s->stack[--depth];
        const uint32_t *predecessors;
        size_t count = bp_predecessors_of(c->plan, at, &predecessors);
        uint32_t began = at == assignment ? now : s->begin_step[at];
        for (size_t i = 0; i < count; i++) {
            uint32_t p = predecessors[i];
            if (p == user)
                return true;
            if (s->seen_at[p] == s->searches || s->end_step[p] == 0 || s->end_step[p] > began ||
                s->begin_step[p] < s->end_step[user])
                continue;
            s->seen_at[p] = s->searches;
            s->stack[depth++] = p;
        }
    }
    return false;
}

/* `now` counts steps on through both passes; conflicts are looked for in the first, order in the second. */
static bp_status check_user(const check *c, sweep *s, uint32_t now, uint32_t assignment, size_t position)
{
    uint32_t user = s->user[position], steps = (uint32_t)c->schedule->step_count;
    if (user == NOBODY || user == assignment)
        return BP_OK;
    const cut *at = &s->cuts[position];
    if (now < steps && s->end_step[user] > now)
        return bp_fail(BP_ERR_MISMATCH, "%s and %s both hold the bytes from %llu of slab %u at step %u",
                       describe_assignment(c->plan, user).text, describe_assignment(c->plan, assignment).text,
                       (unsigned long long)at->offset, at->slab, now);
    if (now >= steps && !comes_after(c, s, now, assignment, user))
        return bp_fail(BP_ERR_MISMATCH,
                       "%s at step %u: %s used the bytes from %llu of slab %u before and is no predecessor",
                       describe_assignment(c->plan, assignment).text, now - steps,
                       describe_assignment(c->plan, user).text, (unsigned long long)at->offset, at->slab);
    return BP_OK;
}

/* An interval of the assignment begins in the step, in the pass. */
static bp_status begin_interval(const check *c, sweep *s, uint32_t step, uint32_t pass, const event *e)
{
    const bp_assignment_data *a = &c->plan->assignments[e->assignment];
    size_t first = find_cut(s, a->slab, a->offset), last = find_cut(s, a->slab, a->offset + a->bytes);
    uint32_t passed = pass * (uint32_t)c->schedule->step_count;
    split_range(s, first);
    split_range(s, last);
    for (size_t position = first; position < last; position = set_above(&s->starts, position)) {
        BP_TRY(check_user(c, s, passed + step, e->assignment, position));
        if (position != first)
            set_remove(&s->starts, position);
    }
    s->user[first] = e->assignment;
    s->begin_step[e->assignment] = passed + step;
    s->end_step[e->assignment] = passed + e->end;
    return BP_OK;
}

static bp_status run_sweep(const check *c, sweep *s)
{
    set_add(&s->starts, 0);
    s->user[0] = NOBODY;
    for (uint32_t pass = 0; pass < 2; pass++)
        for (uint32_t step = 0; step < c->schedule->step_count; step++)
            for (size_t e = s->first_event[step]; e < s->first_event[step + 1]; e++)
                BP_TRY(begin_interval(c, s, step, pass, &s->events[e]));
    return BP_OK;
}

static bp_status check_times(const check *c)
{
    size_t assignments = c->plan->assignment_count, intervals = 0;
    for (size_t i = 0; i < assignments; i++) {
        size_t count;
        bp_schedule_intervals(c->schedule, c->request_of[i], &count);
        intervals += count;
    }
    if (intervals == 0)
        return BP_OK;
    if (intervals >= INT32_MAX || c->schedule->step_count >= INT32_MAX)
        return bp_fail(BP_ERR_OVERFLOW, "%zu intervals are too many to check", intervals);
    sweep s = {0};
    bp_status status = bp_new_array(assignments * 2, sizeof *s.cuts, (void **)&s.cuts);
    if (status == BP_OK)
        status = set_create(&s.starts, assignments * 2);
    if (status == BP_OK)
        status = bp_new_array(assignments * 2, sizeof *s.user, (void **)&s.user);
    if (status == BP_OK)
        status = bp_new_array(assignments * 4, sizeof *s.end_step, (void **)&s.end_step);
    if (status == BP_OK)
        status = bp_new_array(intervals, sizeof *s.events, (void **)&s.events);
    if (status == BP_OK)
        status = bp_new_array(c->schedule->step_count + 2, sizeof *s.first_event, (void **)&s.first_event);
    if (status == BP_OK) {
        s.begin_step = s.end_step + assignments;
        s.seen_at = s.begin_step + assignments;
        s.stack = s.seen_at + assignments;
        collect_cuts(c->plan, &s);
        collect_events(c, &s);
        status = run_sweep(c, &s);
    }
    free(s.cuts);
    free(s.starts.words);
    free(s.user);
    free(s.end_step);
    free(s.events);
    free(s.first_event);
    return status;
}

/* ---- overlaps ------------------------------------------------------------------------------------------------------- */

/* No bytes are shared where that would make an acquire wait that the schedule wants to overlap. */
static bp_status check_overlaps(const check *c)
{
    size_t count = c->schedule->overlap_count;
    const bp_overlap *overlaps = c->schedule->overlaps;
    for (size_t i = 0; i < count; i++) {
        uint32_t earlier = c->assignment_of[overlaps[i].earlier], later = c->assignment_of[overlaps[i].later];
        if (earlier == NOBODY || later == NOBODY)
            continue;
        const bp_assignment_data *a = &c->plan->assignments[earlier], *b = &c->plan->assignments[later];
        bool apart = a->slab != b->slab || a->offset + a->bytes <= b->offset || b->offset + b->bytes <= a->offset;
        if (!apart)
            return bp_fail(BP_ERR_MISMATCH, "%s shares bytes with %s, and would wait for it where they are to overlap",
                           describe_assignment(c->plan, later).text, describe_assignment(c->plan, earlier).text);
    }
    return BP_OK;
}

/* ---- all of it ----------------------------------------------------------------------------------------------------- */

static bp_status check_all(check *c)
{
    BP_TRY(bp_new_array(c->buckets->request_count, sizeof *c->keys, (void **)&c->keys));
    BP_TRY(bp_new_array(c->buckets->request_count, sizeof *c->assignment_of, (void **)&c->assignment_of));
    BP_TRY(bp_new_array(c->plan->assignment_count, sizeof *c->request_of, (void **)&c->request_of));
    collect_keys(c);
    BP_TRY(check_assignments(c));
    BP_TRY(check_times(c));
    return check_overlaps(c);
}

bp_status bp_plan_check(const bp_plan *plan, const bp_buckets *buckets, const bp_schedule *schedule)
{
    if (plan == NULL || buckets == NULL || schedule == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_plan_check: a plan, buckets and a schedule are needed");
    if (schedule->request_count != buckets->request_count)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_plan_check: the schedule is of %zu requests, the buckets have %zu",
                       schedule->request_count, buckets->request_count);
    if (!plan->summary.feasible)
        return bp_fail(BP_ERR_UNSUPPORTED, "bp_plan_check: the plan is infeasible and has no addresses: %s",
                       plan->summary.infeasible_because);
    if (!plan->summary.stable)
        return bp_fail(BP_ERR_UNSUPPORTED, "bp_plan_check: not every request of the plan has an address (policy %s)",
                       bp_policy_name(plan->summary.policy));
    if (plan->summary.alignment == 0)
        return bp_fail(BP_ERR_MISMATCH, "the plan's alignment is 0");
    check c = {.plan = plan, .buckets = buckets, .schedule = schedule};
    bp_status status = check_all(&c);
    free(c.keys);
    free(c.assignment_of);
    free(c.request_of);
    return status;
}
