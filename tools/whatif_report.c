#include "whatif_report.h"

#include "cli.h"
#include "report.h"

static void print_alternative(bp_json_writer *d, const bp_alternative *a)
{
    bp_json_add_object(d, NULL);
    bp_json_add_flag(d, "present", a->is_present);
    bp_json_add_number(d, "prefetch", a->prefetch);
    bp_json_add_number(d, "prefetch_backward", a->prefetch_backward);
    bp_json_add_text(d, "streams", options_streams_name(a->streams));
    bp_json_add_flag(d, "joint", a->joint);
    bp_json_add_number(d, "bytes", a->bytes);
    bp_json_add_number(d, "lower_bound_bytes", a->lower_bound_bytes);
    bp_json_add_number(d, "proven_bytes", a->proven_bytes);
    bp_json_add_flag(d, "optimal", a->optimal);
    if (a->max_bytes > 0)
        bp_json_add_number(d, "max_bytes", a->max_bytes);
    else
        bp_json_add_null(d, "max_bytes");
    bp_json_add_number(d, "live_bytes", a->live_bytes);
    bp_json_end(d);
}

static void print_holder(bp_json_writer *d, const whatif *w, const bp_peak_holder *holder)
{
    bp_json_add_object(d, NULL);
    bp_json_add_text(d, "unit", bp_buckets_get_info(w->analysed->buckets)->units[holder->unit].name);
    bp_json_add_text(d, "role", bp_role_name((bp_role)holder->role));
    bp_json_add_number(d, "bytes", holder->bytes);
    bp_json_end(d);
}

static void print_peak(bp_json_writer *d, const whatif *w, const bp_peak *peak)
{
    bp_json_add_object(d, NULL);
    report_roles(d, "roles", peak->roles);
    bp_json_add_number(d, "bytes", peak->bytes);
    bp_json_add_number(d, "step", peak->step);
    bp_json_add_list(d, "holders");
    for (size_t i = 0; i < peak->holder_count; i++)
        print_holder(d, w, &peak->holders[i]);
    bp_json_end(d);
    bp_json_add_number(d, "steps", peak->step_count);
    bp_json_add_number(d, "sets", peak->set_count);
    bp_json_add_number(d, "next_bytes", peak->next_bytes);
    bp_json_add_number(d, "next_step", peak->next_step);
    bp_json_add_number(d, "below_bytes", peak->below_bytes);
    bp_json_add_number(d, "below_step", peak->below_step);
    bp_json_end(d);
}

static void print_model(bp_json_writer *d, const whatif *w, const plan_options *options)
{
    bp_json_add_object(d, NULL);
    bp_json_add_text(d, "model", w->analysed->name);
    report_options(d, w->analysed, options);
    if (w->alternatives != NULL) {
        bp_json_add_list(d, "alternatives");
        const bp_alternatives_info *info = bp_alternatives_get_info(w->alternatives);
        for (size_t i = 0; i < info->alternative_count; i++)
            print_alternative(d, &info->alternatives[i]);
        bp_json_end(d);
    } else {
        bp_json_add_null(d, "alternatives");
    }
    bp_json_add_list(d, "peaks");
    const bp_peaks_info *peaks = bp_peaks_get_info(w->peaks);
    for (size_t i = 0; peaks != NULL && i < peaks->peak_count; i++)
        print_peak(d, w, &peaks->peaks[i]);
    bp_json_end(d);
    bp_json_end(d);
}

int whatif_report_print(const whatif *answers, size_t count, const plan_options *options)
{
    bp_json_writer d = {0};
    bp_json_add_object(&d, NULL);
    bp_json_add_text(&d, "format", "bucketpool.whatif/1");
    bp_json_add_list(&d, "models");
    for (size_t i = 0; i < count; i++)
        print_model(&d, &answers[i], options);
    bp_json_end(&d);
    bp_json_end(&d);
    return cli_print_json(&d);
}
