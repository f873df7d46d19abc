#include "schedule_report.h"

#include <jansson.h>
#include <stdio.h>

#include "cli.h"
#include "report.h"

#define SIZE(value) ((json_int_t)(value))

/* NULL from any of these is an allocation that failed; json_*_new and "s:o" pass it on, so that the top sees it. */

/* A list of what `make` gives for each index. */
static json_t *list(const schedule_view *v, size_t count, json_t *make(const schedule_view *, size_t))
{
    json_t *items = json_array();
    for (size_t i = 0; i < count; i++) {
        if (json_array_append_new(items, make(v, i)) != 0) {
            json_decref(items);
            return NULL;
        }
    }
    return items;
}

static json_t *unit_json(const schedule_view *v, int32_t unit)
{
    return unit >= 0 ? json_string(bp_buckets_unit_name(v->analysed->buckets, (size_t)unit)) : json_null();
}

static json_t *request_json(const schedule_view *v, size_t index)
{
    request_view r;
    if (!schedule_view_request(v, (uint32_t)index, &r))
        return NULL;
    return json_pack("{s:s, s:s, s:s, s:I}", "unit", r.unit, "bucket", cli_bucket(r.bucket.name, r.bucket.ordinal),
                     "role", bp_role_name((bp_role)r.request.role), "bytes", SIZE(r.request.bytes));
}

static json_t *step_json(const schedule_view *v, size_t index)
{
    bp_step step = {.size = sizeof step};
    json_t *live = json_object();
    if (bp_schedule_step(v->analysed->schedule, index, &step) != BP_OK)
        return NULL;
    for (size_t i = 0; i < v->role_count; i++)
        json_object_set_new(live, schedule_view_role_name(&v->roles[i]),
                            json_integer(SIZE(v->roles[i].by_step[index])));
    json_t *made = json_pack("{s:s, s:o, s:o}", "phase", schedule_view_phase_name(step.phase), "unit",
                             unit_json(v, step.unit), "live_bytes", live);
    if (step.forward_unit >= 0)
        json_object_set_new(made, "forward_unit", unit_json(v, step.forward_unit));
    return made;
}

static json_t *event_json(const schedule_view *v, size_t index)
{
    const bp_schedule_event *e = &v->events[index];
    return json_pack("{s:I, s:b, s:I, s:I, s:I}", "step", SIZE(e->step), "acquire", (int)e->acquire, "lane",
                     SIZE(e->lane), "first_request", SIZE(e->first_request), "request_count", SIZE(e->request_count));
}

static json_t *peak_json(const schedule_view *v, size_t index)
{
    const live_bytes *live = &v->roles[index];
    return json_pack("{s:s, s:I, s:I}", "role", schedule_view_role_name(live), "bytes", SIZE(live->peak_bytes), "step",
                     SIZE(live->peak_step));
}

static json_t *overlap_json(const schedule_view *v, size_t index)
{
    const bp_overlap *overlap = &bp_schedule_overlaps(v->analysed->schedule)[index];
    return json_pack("{s:I, s:I}", "earlier", SIZE(overlap->earlier), "later", SIZE(overlap->later));
}

static json_t *wait_json(const schedule_view *v, size_t index)
{
    bp_wait wait = {.size = sizeof wait};
    if (bp_schedule_wait(v->analysed->schedule, index, &wait) != BP_OK)
        return NULL;
    return json_pack("{s:I, s:I, s:I, s:I}", "step", SIZE(wait.step), "waits", SIZE(wait.waits), "waits_for",
                     SIZE(wait.waits_for), "exposed_bytes", SIZE(wait.exposed_bytes));
}

int schedule_report_print(const schedule_view *v, const plan_options *options)
{
    const bp_schedule *schedule = v->analysed->schedule;
    json_t *document = json_pack("{s:s, s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "format", "bucketpool.schedule/1",
                                 "model", v->analysed->name, "options", report_options(v->analysed, options),
                                 "requests", list(v, bp_buckets_request_count(v->analysed->buckets), request_json),
                                 "steps", list(v, v->steps, step_json), "events", list(v, v->event_count, event_json),
                                 "peaks", list(v, v->role_count, peak_json), "overlaps",
                                 list(v, bp_schedule_overlap_count(schedule), overlap_json), "waits",
                                 list(v, bp_schedule_wait_count(schedule), wait_json));
    bool failed = document == NULL || json_dumpf(document, stdout, JSON_INDENT(2)) != 0 || putchar('\n') == EOF ||
                  fflush(stdout) != 0;
    json_decref(document);
    return failed ? cli_fail(EXIT_ENVIRONMENT, "the document could not be written") : EXIT_GO_ON;
}
