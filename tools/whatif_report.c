#include "whatif_report.h"

#include "cli.h"
#include "report.h"

static void print_alternative(document *d, const whatif *w, size_t index)
{
    bp_alternative a = {.size = sizeof a};
    if (!document_check(d, bp_alternatives_get(w->alternatives, index, &a)))
        return;
    document_object(d, NULL);
    document_flag(d, "present", a.is_present);
    document_number(d, "prefetch", a.prefetch);
    document_number(d, "prefetch_backward", a.prefetch_backward);
    document_text(d, "streams", options_streams_name(a.streams));
    document_flag(d, "joint", a.joint);
    document_number(d, "bytes", a.bytes);
    document_number(d, "lower_bound_bytes", a.lower_bound_bytes);
    document_number(d, "proven_bytes", a.proven_bytes);
    document_flag(d, "optimal", a.optimal);
    if (a.max_bytes > 0)
        document_number(d, "max_bytes", a.max_bytes);
    else
        document_null(d, "max_bytes");
    document_number(d, "live_bytes", a.live_bytes);
    document_end(d);
}

static void print_holder(document *d, const whatif *w, size_t peak, size_t index)
{
    bp_peak_holder holder = {.size = sizeof holder};
    if (!document_check(d, bp_peaks_holder(w->peaks, peak, index, &holder)))
        return;
    document_object(d, NULL);
    document_text(d, "unit", bp_buckets_unit_name(w->analysed->buckets, holder.unit));
    document_text(d, "role", bp_role_name((bp_role)holder.role));
    document_number(d, "bytes", holder.bytes);
    document_end(d);
}

static void print_peak(document *d, const whatif *w, size_t index)
{
    bp_peak peak = {.size = sizeof peak};
    if (!document_check(d, bp_peaks_get(w->peaks, index, &peak)))
        return;
    document_object(d, NULL);
    report_roles(d, "roles", peak.roles);
    document_number(d, "bytes", peak.bytes);
    document_number(d, "step", peak.step);
    document_list(d, "holders");
    for (size_t i = 0; i < peak.holders; i++)
        print_holder(d, w, index, i);
    document_end(d);
    document_number(d, "steps", peak.steps);
    document_number(d, "sets", peak.sets);
    document_number(d, "next_bytes", peak.next_bytes);
    document_number(d, "next_step", peak.next_step);
    document_number(d, "below_bytes", peak.below_bytes);
    document_number(d, "below_step", peak.below_step);
    document_end(d);
}

static void print_model(document *d, const whatif *w, const plan_options *options)
{
    document_object(d, NULL);
    document_text(d, "model", w->analysed->name);
    report_options(d, w->analysed, options);
    if (w->alternatives != NULL) {
        document_list(d, "alternatives");
        for (size_t i = 0; i < bp_alternatives_count(w->alternatives); i++)
            print_alternative(d, w, i);
        document_end(d);
    } else {
        document_null(d, "alternatives");
    }
    document_list(d, "peaks");
    for (size_t i = 0; i < bp_peaks_count(w->peaks); i++)
        print_peak(d, w, i);
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
