#include "whatif_report.h"

#include "cli.h"
#include "report.h"

static void print_alternative(document *d, const bp_alternative *a)
{
    document_object(d, NULL);
    document_flag(d, "present", a->is_present);
    document_number(d, "prefetch", a->prefetch);
    document_number(d, "prefetch_backward", a->prefetch_backward);
    document_text(d, "streams", options_streams_name(a->streams));
    document_flag(d, "joint", a->joint);
    document_number(d, "bytes", a->bytes);
    document_number(d, "lower_bound_bytes", a->lower_bound_bytes);
    document_number(d, "proven_bytes", a->proven_bytes);
    document_flag(d, "optimal", a->optimal);
    if (a->max_bytes > 0)
        document_number(d, "max_bytes", a->max_bytes);
    else
        document_null(d, "max_bytes");
    document_number(d, "live_bytes", a->live_bytes);
    document_end(d);
}

static void print_holder(document *d, const whatif *w, const bp_peak_holder *holder)
{
    document_object(d, NULL);
    document_text(d, "unit", bp_buckets_get_info(w->analysed->buckets)->units[holder->unit].name);
    document_text(d, "role", bp_role_name((bp_role)holder->role));
    document_number(d, "bytes", holder->bytes);
    document_end(d);
}

static void print_peak(document *d, const whatif *w, const bp_peak *peak)
{
    document_object(d, NULL);
    report_roles(d, "roles", peak->roles);
    document_number(d, "bytes", peak->bytes);
    document_number(d, "step", peak->step);
    document_list(d, "holders");
    for (size_t i = 0; i < peak->holder_count; i++)
        print_holder(d, w, &peak->holders[i]);
    document_end(d);
    document_number(d, "steps", peak->step_count);
    document_number(d, "sets", peak->set_count);
    document_number(d, "next_bytes", peak->next_bytes);
    document_number(d, "next_step", peak->next_step);
    document_number(d, "below_bytes", peak->below_bytes);
    document_number(d, "below_step", peak->below_step);
    document_end(d);
}

static void print_model(document *d, const whatif *w, const plan_options *options)
{
    document_object(d, NULL);
    document_text(d, "model", w->analysed->name);
    report_options(d, w->analysed, options);
    if (w->alternatives != NULL) {
        document_list(d, "alternatives");
        const bp_alternatives_info *info = bp_alternatives_get_info(w->alternatives);
        for (size_t i = 0; i < info->alternative_count; i++)
            print_alternative(d, &info->alternatives[i]);
        document_end(d);
    } else {
        document_null(d, "alternatives");
    }
    document_list(d, "peaks");
    const bp_peaks_info *peaks = bp_peaks_get_info(w->peaks);
    for (size_t i = 0; peaks != NULL && i < peaks->peak_count; i++)
        print_peak(d, w, &peaks->peaks[i]);
    document_end(d);
    document_end(d);
}

int whatif_report_print(const whatif *answers, size_t count, const plan_options *options)
{
    document d = document_new();
    document_object(&d, NULL);
    document_text(&d, "format", "bucketpool.whatif/1");
    document_list(&d, "models");
    for (size_t i = 0; i < count; i++)
        print_model(&d, &answers[i], options);
    document_end(&d);
    document_end(&d);
    return document_finish(&d);
}
