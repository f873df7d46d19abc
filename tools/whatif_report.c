#include "whatif_report.h"

#include <jansson.h>
#include <stdio.h>

#include "cli.h"
#include "report.h"

#define SIZE(value) ((json_int_t)(value))

/* NULL from any of these is an allocation that failed; json_*_new and "s:o" pass it on, so that the top sees it. */

/* A list of what `make` gives for each index. */
static json_t *list(const whatif *w, size_t count, json_t *make(const whatif *, size_t))
{
    json_t *items = json_array();
    for (size_t i = 0; i < count; i++) {
        if (json_array_append_new(items, make(w, i)) != 0) {
            json_decref(items);
            return NULL;
        }
    }
    return items;
}

static json_t *alternative_json(const whatif *w, size_t index)
{
    bp_alternative a = {.size = sizeof a};
    if (bp_alternatives_get(w->alternatives, index, &a) != BP_OK)
        return NULL;
    json_t *max = a.max_bytes > 0 ? json_integer(SIZE(a.max_bytes)) : json_null();
    return json_pack("{s:b, s:I, s:I, s:s, s:b, s:I, s:I, s:I, s:b, s:o, s:I}", "present", (int)a.is_present,
                     "prefetch", SIZE(a.prefetch), "prefetch_backward", SIZE(a.prefetch_backward), "streams",
                     options_streams_name(a.streams), "joint", (int)a.joint, "bytes", SIZE(a.bytes),
                     "lower_bound_bytes", SIZE(a.lower_bound_bytes), "proven_bytes", SIZE(a.proven_bytes), "optimal",
                     (int)a.optimal, "max_bytes", max, "live_bytes", SIZE(a.live_bytes));
}

static json_t *holder_json(const whatif *w, size_t peak, size_t index)
{
    bp_peak_holder holder = {.size = sizeof holder};
    if (bp_peaks_holder(w->peaks, peak, index, &holder) != BP_OK)
        return NULL;
    return json_pack("{s:s, s:s, s:I}", "unit", bp_buckets_unit_name(w->analysed->buckets, holder.unit), "role",
                     bp_role_name((bp_role)holder.role), "bytes", SIZE(holder.bytes));
}

static json_t *peak_json(const whatif *w, size_t index)
{
    bp_peak peak = {.size = sizeof peak};
    if (bp_peaks_get(w->peaks, index, &peak) != BP_OK)
        return NULL;
    json_t *holders = json_array();
    for (size_t i = 0; i < peak.holders; i++) {
        if (json_array_append_new(holders, holder_json(w, index, i)) != 0) {
            json_decref(holders);
            return NULL;
        }
    }
    return json_pack("{s:o, s:I, s:I, s:o, s:I, s:I, s:I, s:I, s:I, s:I}", "roles", report_roles(peak.roles), "bytes",
                     SIZE(peak.bytes), "step", SIZE(peak.step), "holders", holders, "steps", SIZE(peak.steps), "sets",
                     SIZE(peak.sets), "next_bytes", SIZE(peak.next_bytes), "next_step", SIZE(peak.next_step),
                     "below_bytes", SIZE(peak.below_bytes), "below_step", SIZE(peak.below_step));
}

static json_t *wait_json(const whatif *w, size_t point, size_t index)
{
    bp_wait wait = {.size = sizeof wait};
    named_request waits, other;
    if (bp_tradeoff_wait(w->tradeoff, point, index, &wait) != BP_OK || !whatif_request(w, wait.waits, &waits) ||
        !whatif_request(w, wait.waits_for, &other))
        return NULL;
    return json_pack("{s:I, s:s, s:s, s:s, s:{s:s, s:s, s:s}, s:I}", "step", SIZE(wait.step), "unit", waits.unit,
                     "bucket", cli_bucket(waits.bucket, waits.ordinal), "role", bp_role_name((bp_role)waits.role),
                     "for", "unit", other.unit, "bucket", cli_bucket(other.bucket, other.ordinal), "role",
                     bp_role_name((bp_role)other.role), "exposed_bytes", SIZE(wait.exposed_bytes));
}

static json_t *point_json(const whatif *w, size_t index)
{
    bp_tradeoff_point point = {.size = sizeof point};
    if (bp_tradeoff_get(w->tradeoff, index, &point) != BP_OK)
        return NULL;
    json_t *waits = json_array();
    for (size_t i = 0; i < point.waits; i++) {
        if (json_array_append_new(waits, wait_json(w, index, i)) != 0) {
            json_decref(waits);
            return NULL;
        }
    }
    return json_pack("{s:I, s:I, s:I, s:b, s:I, s:I, s:o}", "stalls", SIZE(point.stalls), "bytes", SIZE(point.bytes),
                     "lower_bound_bytes", SIZE(point.lower_bound_bytes), "optimal", (int)point.optimal, "saved_bytes",
                     SIZE(whatif_saved(w->tradeoff, index)), "exposed_bytes", SIZE(point.exposed_bytes), "waits",
                     waits);
}

static json_t *model_json(const whatif *w, const plan_options *options)
{
    json_t *alternatives =
        w->alternatives != NULL ? list(w, bp_alternatives_count(w->alternatives), alternative_json) : json_null();
    return json_pack(
        "{s:s, s:o, s:o, s:o, s:o, s:b}", "model", w->analysed->name, "options", report_options(w->analysed, options),
        "alternatives", alternatives, "peaks", list(w, bp_peaks_count(w->peaks), peak_json), "tradeoff",
        list(w, bp_tradeoff_count(w->tradeoff), point_json), "complete", (int)bp_tradeoff_is_complete(w->tradeoff));
}

int whatif_report_print(const whatif *answers, size_t count, const plan_options *options)
{
    json_t *models = json_array();
    bool failed = false;
    for (size_t i = 0; i < count; i++)
        failed |= json_array_append_new(models, model_json(&answers[i], options)) != 0;
    json_t *document = json_pack("{s:s, s:o}", "format", "bucketpool.whatif/1", "models", models);
    failed |= document == NULL || json_dumpf(document, stdout, JSON_INDENT(2)) != 0 || putchar('\n') == EOF ||
              fflush(stdout) != 0;
    json_decref(document);
    return failed ? cli_fail(EXIT_ENVIRONMENT, "the document could not be written") : EXIT_GO_ON;
}
