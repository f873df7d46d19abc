/* SPDX-License-Identifier: Apache-2.0 */
/* A schedule step by step: acquires, releases, live bytes and their peak. */
#include "schedule/view.h"

#include <stdlib.h>

#include "shared/cli.h"

bool schedule_view_request(const schedule_view *v, uint32_t index, request_view *r)
{
    const bp_buckets_info *info = bp_buckets_get_info(v->analysed->buckets);
    if (index >= info->request_count)
        return false;
    const bp_bucket *bucket = &info->buckets[info->requests[index].bucket];
    *r = (request_view){info->requests[index], *bucket, info->units[bucket->unit].name};
    return true;
}

uint64_t schedule_view_bytes(const schedule_view *v, const request_view *r)
{
    return (r->request.bytes + v->alignment - 1) & ~(v->alignment - 1);
}

static bool is_same_group(const schedule_view *v, uint32_t one, uint32_t other)
{
    request_view a, b;
    return schedule_view_request(v, one, &a) && schedule_view_request(v, other, &b) &&
           a.request.role == b.request.role && a.bucket.unit == b.bucket.unit;
}

bool schedule_view_is_part(const schedule_view *v, const bp_schedule_event *event)
{
    uint32_t first = event->first_request, end = first + event->request_count;
    return (first > 0 && is_same_group(v, first - 1, first)) || is_same_group(v, first, end);
}

const char *schedule_view_role_name(const live_bytes *live)
{
    return live->role < BP_ROLE_COUNT ? bp_role_name((bp_role)live->role) : "all";
}

const char *schedule_view_phase_name(bp_phase phase)
{
    static const char *const names[] = {[BP_PHASE_FORWARD] = "forward",
                                        [BP_PHASE_BACKWARD] = "backward",
                                        [BP_PHASE_RECORDED] = "recorded",
                                        [BP_PHASE_OUTSIDE] = "outside",
                                        [BP_PHASE_BACKWARD_GATHER] = "backward_gather",
                                        [BP_PHASE_COMBINED] = "combined",
                                        [BP_PHASE_REDUCE] = "reduce"};
    return names[phase];
}

/* ---- live bytes -------------------------------------------------------------------------------------------------- */

/* Adds the roles that are shown and have requests, then their sum if there are several. */
static void find_roles(schedule_view *v, uint32_t roles)
{
    uint32_t used = 0;
    for (uint32_t i = 0; i < bp_buckets_get_info(v->analysed->buckets)->request_count; i++) {
        request_view r;
        if (schedule_view_request(v, i, &r))
            used |= BP_ROLE_BIT(r.request.role);
    }
    for (uint32_t role = 0; role < BP_ROLE_COUNT; role++) {
        if (used & roles & BP_ROLE_BIT(role))
            v->roles[v->role_count++].role = role;
    }
    if (v->role_count > 1)
        v->roles[v->role_count++].role = BP_ROLE_COUNT;
}

static bool add_bytes(live_bytes *live, uint64_t bytes, const bp_interval *intervals, size_t count, uint64_t *sum)
{
    for (size_t k = 0; k < count; k++) { /* changes, summed later */
        live->by_step[intervals[k].begin] += bytes;
        live->by_step[intervals[k].end] -= bytes;
    }
    return !__builtin_add_overflow(*sum, bytes, sum);
}

/* false: the sum of all requests overflows 64 bits, so the sum of a step may too. */
static bool add_requests(schedule_view *v)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < bp_buckets_get_info(v->analysed->buckets)->request_count; i++) {
        request_view r;
        const bp_interval *intervals = bp_schedule_get_info(v->analysed->schedule)->requests[i].intervals;
        size_t count = bp_schedule_get_info(v->analysed->schedule)->requests[i].interval_count;
        if (!schedule_view_request(v, i, &r) || r.request.bytes > UINT64_MAX - v->alignment)
            return false;
        uint64_t bytes = schedule_view_bytes(v, &r);
        for (size_t k = 0; k < v->role_count; k++) {
            if (v->roles[k].role == r.request.role && !add_bytes(&v->roles[k], bytes, intervals, count, &sum))
                return false;
        }
    }
    return true;
}

/* ---- events ------------------------------------------------------------------------------------------------------ */

static bool is_shown(const schedule_view *v, const bp_schedule_event *event)
{
    request_view r;
    bool shown = false;
    for (size_t i = 0; i < v->role_count && schedule_view_request(v, event->first_request, &r); i++)
        shown = shown || v->roles[i].role == r.request.role;
    return shown;
}

static int make(schedule_view *v, uint32_t roles)
{
    bool failed = false;
    find_roles(v, roles);
    for (size_t i = 0; i < v->role_count; i++) {
        v->roles[i].by_step = calloc((size_t)v->steps + 1, sizeof *v->roles[i].by_step);
        failed = failed || v->roles[i].by_step == NULL;
    }
    v->first_event = calloc((size_t)v->steps + 2, sizeof *v->first_event);
    v->events = calloc(bp_schedule_get_info(v->analysed->schedule)->event_count + 1, sizeof *v->events);
    if (failed || v->first_event == NULL || v->events == NULL)
        return cli_fail(EXIT_ENVIRONMENT, "out of memory");
    if (v->role_count == 0)
        return v->analysed->single_ranks
                   ? cli_fail(EXIT_BAD_INPUT, "%s: %s", v->analysed->name, v->analysed->notes)
                   : cli_fail(EXIT_BAD_INPUT, "%s has no buckets in the roles asked for", v->analysed->name);
    if (!add_requests(v))
        return cli_fail(EXIT_BAD_INPUT, "%s: the sum of all buckets does not fit 64 bits", v->analysed->name);

    live_bytes *all = v->role_count > 1 ? &v->roles[v->role_count - 1] : NULL;
    for (live_bytes *live = v->roles; live < v->roles + v->role_count; live++) {
        uint64_t sum = 0;
        for (uint32_t step = 0; step < v->steps; step++) {
            sum += live->by_step[step];
            if (all != NULL && live != all) /* the sum, at the end, gets all changes */
                all->by_step[step] += live->by_step[step];
            live->by_step[step] = sum;
            if (sum > live->peak_bytes) {
                live->peak_bytes = sum;
                live->peak_step = step;
            }
        }
    }

    const bp_schedule_info *info = bp_schedule_get_info(v->analysed->schedule);
    for (size_t i = 0; i < info->event_count; i++) {
        if (is_shown(v, &info->events[i]))
            v->events[v->event_count++] = info->events[i];
    }
    size_t at = 0;
    for (uint32_t step = 0; step <= v->steps; step++) {
        v->first_event[step] = at;
        while (at < v->event_count && v->events[at].step == step)
            at++;
    }
    v->first_event[v->steps + 1] = v->event_count;

    return EXIT_GO_ON;
}

int schedule_view_init(const analysis *a, uint32_t roles, uint64_t alignment, schedule_view *v)
{
    *v = (schedule_view){.analysed = a,
                         .alignment = alignment,
                         .steps = (uint32_t)bp_schedule_get_info(a->schedule)->step_count,
                         .common_chars = names_common_chars(a->buckets)};
    return make(v, roles);
}

void schedule_view_finish(schedule_view *v)
{
    for (size_t i = 0; i < v->role_count; i++)
        free(v->roles[i].by_step);
    free(v->events);
    free(v->first_event);
    *v = (schedule_view){0};
}
