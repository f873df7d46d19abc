#include "schedule_report.h"

#include "cli.h"
#include "report.h"

static void print_unit(bp_json_writer *d, const char *key, const schedule_view *v, int32_t unit)
{
    bp_json_add_text(d, key, unit >= 0 ? bp_buckets_get_info(v->analysed->buckets)->units[unit].name : NULL);
}

static void print_request(bp_json_writer *d, const schedule_view *v, size_t index)
{
    request_view r;
    if (!schedule_view_request(v, (uint32_t)index, &r)) {
        bp_json_check(d, BP_ERR_INTERNAL);
        return;
    }
    bp_json_add_object(d, NULL);
    bp_json_add_text(d, "unit", r.unit);
    bp_json_add_text(d, "bucket", cli_bucket(r.bucket.name, r.bucket.ordinal));
    bp_json_add_text(d, "role", bp_role_name((bp_role)r.request.role));
    bp_json_add_number(d, "bytes", r.request.bytes);
    bp_json_end(d);
}

static void print_step(bp_json_writer *d, const schedule_view *v, size_t index)
{
    bp_step step = bp_schedule_get_info(v->analysed->schedule)->steps[index];
    bp_json_add_object(d, NULL);
    bp_json_add_text(d, "phase", schedule_view_phase_name(step.phase));
    print_unit(d, "unit", v, step.unit);
    bp_json_add_object(d, "live_bytes");
    for (size_t i = 0; i < v->role_count; i++)
        bp_json_add_number(d, schedule_view_role_name(&v->roles[i]), v->roles[i].by_step[index]);
    bp_json_end(d);
    if (step.forward_unit >= 0)
        print_unit(d, "forward_unit", v, step.forward_unit);
    bp_json_end(d);
}

static void print_event(bp_json_writer *d, const schedule_view *v, size_t index)
{
    const bp_schedule_event *e = &v->events[index];
    bp_json_add_object(d, NULL);
    bp_json_add_number(d, "step", e->step);
    bp_json_add_flag(d, "acquire", e->acquire);
    bp_json_add_number(d, "lane", e->lane);
    bp_json_add_number(d, "first_request", e->first_request);
    bp_json_add_number(d, "request_count", e->request_count);
    bp_json_end(d);
}

static void print_peak(bp_json_writer *d, const schedule_view *v, size_t index)
{
    const live_bytes *live = &v->roles[index];
    bp_json_add_object(d, NULL);
    bp_json_add_text(d, "role", schedule_view_role_name(live));
    bp_json_add_number(d, "bytes", live->peak_bytes);
    bp_json_add_number(d, "step", live->peak_step);
    bp_json_end(d);
}

static void print_overlap(bp_json_writer *d, const schedule_view *v, size_t index)
{
    const bp_overlap *overlap = &bp_schedule_get_info(v->analysed->schedule)->overlaps[index];
    bp_json_add_object(d, NULL);
    bp_json_add_number(d, "earlier", overlap->earlier);
    bp_json_add_number(d, "later", overlap->later);
    bp_json_end(d);
}

static void print_list(bp_json_writer *d, const char *key, const schedule_view *v, size_t count,
                       void print(bp_json_writer *, const schedule_view *, size_t))
{
    bp_json_add_list(d, key);
    for (size_t i = 0; i < count; i++)
        print(d, v, i);
    bp_json_end(d);
}

int schedule_report_print(const schedule_view *v, const plan_options *options)
{
    const bp_schedule *schedule = v->analysed->schedule;
    bp_json_writer d = {0};
    bp_json_add_object(&d, NULL);
    bp_json_add_text(&d, "format", "bucketpool.schedule/1");
    bp_json_add_text(&d, "model", v->analysed->name);
    report_options(&d, v->analysed, options);
    print_list(&d, "requests", v, bp_buckets_get_info(v->analysed->buckets)->request_count, print_request);
    print_list(&d, "steps", v, v->steps, print_step);
    print_list(&d, "events", v, v->event_count, print_event);
    print_list(&d, "peaks", v, v->role_count, print_peak);
    print_list(&d, "overlaps", v, bp_schedule_get_info(schedule)->overlap_count, print_overlap);
    bp_json_end(&d);
    return cli_print_json(&d);
}
