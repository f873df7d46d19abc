#include "schedule_report.h"

#include "cli.h"
#include "report.h"

static void print_unit(document *d, const char *key, const schedule_view *v, int32_t unit)
{
    document_text(d, key, unit >= 0 ? bp_buckets_get_info(v->analysed->buckets)->units[unit].name : NULL);
}

static void print_request(document *d, const schedule_view *v, size_t index)
{
    request_view r;
    if (!schedule_view_request(v, (uint32_t)index, &r)) {
        document_check(d, BP_ERR_INTERNAL);
        return;
    }
    document_object(d, NULL);
    document_text(d, "unit", r.unit);
    document_text(d, "bucket", cli_bucket(r.bucket.name, r.bucket.ordinal));
    document_text(d, "role", bp_role_name((bp_role)r.request.role));
    document_number(d, "bytes", r.request.bytes);
    document_end(d);
}

static void print_step(document *d, const schedule_view *v, size_t index)
{
    bp_step step = bp_schedule_get_info(v->analysed->schedule)->steps[index];
    document_object(d, NULL);
    document_text(d, "phase", schedule_view_phase_name(step.phase));
    print_unit(d, "unit", v, step.unit);
    document_object(d, "live_bytes");
    for (size_t i = 0; i < v->role_count; i++)
        document_number(d, schedule_view_role_name(&v->roles[i]), v->roles[i].by_step[index]);
    document_end(d);
    if (step.forward_unit >= 0)
        print_unit(d, "forward_unit", v, step.forward_unit);
    document_end(d);
}

static void print_event(document *d, const schedule_view *v, size_t index)
{
    const bp_schedule_event *e = &v->events[index];
    document_object(d, NULL);
    document_number(d, "step", e->step);
    document_flag(d, "acquire", e->acquire);
    document_number(d, "lane", e->lane);
    document_number(d, "first_request", e->first_request);
    document_number(d, "request_count", e->request_count);
    document_end(d);
}

static void print_peak(document *d, const schedule_view *v, size_t index)
{
    const live_bytes *live = &v->roles[index];
    document_object(d, NULL);
    document_text(d, "role", schedule_view_role_name(live));
    document_number(d, "bytes", live->peak_bytes);
    document_number(d, "step", live->peak_step);
    document_end(d);
}

static void print_overlap(document *d, const schedule_view *v, size_t index)
{
    const bp_overlap *overlap = &bp_schedule_get_info(v->analysed->schedule)->overlaps[index];
    document_object(d, NULL);
    document_number(d, "earlier", overlap->earlier);
    document_number(d, "later", overlap->later);
    document_end(d);
}

static void print_list(document *d, const char *key, const schedule_view *v, size_t count,
                       void print(document *, const schedule_view *, size_t))
{
    document_list(d, key);
    for (size_t i = 0; i < count; i++)
        print(d, v, i);
    document_end(d);
}

int schedule_report_print(const schedule_view *v, const plan_options *options)
{
    const bp_schedule *schedule = v->analysed->schedule;
    document d = document_new();
    document_object(&d, NULL);
    document_text(&d, "format", "bucketpool.schedule/1");
    document_text(&d, "model", v->analysed->name);
    report_options(&d, v->analysed, options);
    print_list(&d, "requests", v, bp_buckets_get_info(v->analysed->buckets)->request_count, print_request);
    print_list(&d, "steps", v, v->steps, print_step);
    print_list(&d, "events", v, v->event_count, print_event);
    print_list(&d, "peaks", v, v->role_count, print_peak);
    print_list(&d, "overlaps", v, bp_schedule_get_info(schedule)->overlap_count, print_overlap);
    document_end(&d);
    return document_finish(&d);
}
