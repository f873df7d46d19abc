/* SPDX-License-Identifier: Apache-2.0 */
/* The schedule of an analysis, from options and recordings, and its description. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/print.h"
#include "plan/analysis.h"
#include "shared/cli.h"

/* ---- one schedule ------------------------------------------------------------------------------------------------ */

static bool find_unit(const bp_buckets *buckets, const char *name, uint32_t *unit)
{
    for (size_t u = 0; u < bp_buckets_get_info(buckets)->unit_count; u++) {
        if (strcmp(bp_buckets_get_info(buckets)->units[u].name, name) == 0) {
            *unit = (uint32_t)u;
            return true;
        }
    }
    return false;
}

int analysis_schedule_config(const analysis *a, const schedule_options *o, bp_unit_prefetch *overrides,
                             bp_schedule_config *config)
{
    bp_status status = bp_schedule_config_init(config, sizeof *config);
    if (status != BP_OK)
        return cli_fail_status(status);
    config->prefetch = o->prefetch;
    config->prefetch_backward = o->prefetch_backward;
    config->grad_units = o->grad_units;
    config->passes = o->passes;
    config->keep_after_forward = o->keep_after_forward;
    config->recompute = o->recompute;
    config->streams = o->streams;
    config->outside = o->outside;
    config->microbatches = o->microbatches;
    config->combined = o->combined;
    config->override_count = (uint32_t)o->unit_prefetch_count;
    config->overrides = overrides;

    /* The units of --unit-prefetch by number. */
    for (size_t i = 0; i < o->unit_prefetch_count; i++) {
        const unit_prefetch *named = &o->unit_prefetches[i];
        overrides[i] = (bp_unit_prefetch){0, named->forward, named->backward};
        if (!find_unit(a->buckets, named->unit, &overrides[i].unit))
            return cli_fail(EXIT_BAD_INPUT,
                            "--unit-prefetch: %s has no unit \"%.80s\"; `bucketpool schedule` prints their names",
                            a->name, named->unit);
        for (size_t k = 0; k < i; k++) {
            if (overrides[k].unit == overrides[i].unit)
                return cli_fail(EXIT_BAD_INPUT, "--unit-prefetch: unit %.80s is given twice", named->unit);
        }
    }
    return EXIT_GO_ON;
}

static int generate(const char *path, const schedule_options *o, analysis *a)
{
    bp_schedule_config config;
    bp_unit_prefetch *overrides = calloc(o->unit_prefetch_count + 1, sizeof *overrides);
    if (overrides == NULL)
        return cli_fail(EXIT_ENVIRONMENT, "out of memory");
    int code = analysis_schedule_config(a, o, overrides, &config);
    if (code == EXIT_GO_ON) {
        bp_status status = bp_schedule_create_training(a->buckets, &config, &a->schedule);
        code = status == BP_OK ? EXIT_GO_ON : analysis_fail(path, status);
    }
    free(overrides);
    return code;
}

static bp_status record(const schedule_options *o, const bp_model *model, const bp_buckets *buckets, bool partial,
                        bp_schedule **schedule)
{
    bp_recorded_config config;
    bp_status status = bp_recorded_config_init(&config, sizeof config);
    config.overlap_window = o->overlap_window;
    config.partial = partial;
    return status == BP_OK ? bp_schedule_create_recorded(model, buckets, &config, schedule) : status;
}

/* ---- further recordings ------------------------------------------------------------------------------------------ */

static int fail_difference(const char *path, const analysis *a, const char *what)
{
    return cli_fail(EXIT_BAD_INPUT, "--schedules %s: %s; record it with the units and buckets of %s", path, what,
                    a->name);
}

/* The next request of a role, or SIZE_MAX. */
static size_t next_request(const bp_buckets *buckets, int32_t role, size_t index)
{
    const bp_buckets_info *info = bp_buckets_get_info(buckets);
    for (; index < info->request_count; index++) {
        if ((int32_t)info->requests[index].role == role)
            return index;
    }
    return SIZE_MAX;
}

/* "layers.3/all (grad)" */
static void describe(const bp_buckets *buckets, const bp_request *r, const bp_bucket *b, char text[160])
{
    bp_print(text, 160, "%.60s/%.40s (%s)", bp_buckets_get_info(buckets)->units[b->unit].name,
             cli_bucket(b->name, b->ordinal), bp_role_name((bp_role)r->role));
}

/* Compares unit, bucket and size of two requests (SIZE_MAX: none), and describes a difference in `text`. */
static bool is_same_request(const bp_buckets *one, size_t index, const bp_buckets *other, size_t others, char text[512])
{
    char planned[160] = "", needed[160] = "";
    bp_request x = {0}, y = {0};
    bp_bucket b = {0}, c = {0};
    if (index != SIZE_MAX) {
        x = bp_buckets_get_info(one)->requests[index];
        b = bp_buckets_get_info(one)->buckets[x.bucket];
        describe(one, &x, &b, planned);
    }
    if (others != SIZE_MAX) {
        y = bp_buckets_get_info(other)->requests[others];
        c = bp_buckets_get_info(other)->buckets[y.bucket];
        describe(other, &y, &c, needed);
    }
    if (*planned == '\0' || *needed == '\0')
        bp_print(text, 512, *needed == '\0' ? "it lacks %s" : "%s is not in the plan",
                 *needed == '\0' ? planned : needed);
    else if (b.unit != c.unit || b.ordinal != c.ordinal || x.dtype != y.dtype || x.bytes != y.bytes)
        bp_print(text, 512, "it has %llu bytes of %s for %s instead of %llu of %s for %s", (unsigned long long)y.bytes,
                 bp_dtype_name(y.dtype), needed, (unsigned long long)x.bytes, bp_dtype_name(x.dtype), planned);
    return *text == '\0';
}

/* Requests of a role are sorted by unit and bucket. A whole role may be missing: an evaluation has no gradients. */
static int compare_role(const char *path, const analysis *a, const bp_buckets *other, int32_t role)
{
    char text[512] = "";
    size_t i = next_request(a->buckets, role, 0), k = next_request(other, role, 0);
    if (k == SIZE_MAX)
        return EXIT_GO_ON;
    while (i != SIZE_MAX || k != SIZE_MAX) {
        if (!is_same_request(a->buckets, i, other, k, text))
            return fail_difference(path, a, text);
        i = next_request(a->buckets, role, i + 1);
        k = next_request(other, role, k + 1);
    }
    return EXIT_GO_ON;
}

static int compare(const char *path, const analysis *a, const bp_buckets *other)
{
    char text[256] = "";
    size_t units = bp_buckets_get_info(a->buckets)->unit_count;
    if (bp_buckets_get_info(other)->unit_count != units) {
        snprintf(text, sizeof text, "it has %zu units instead of %zu", bp_buckets_get_info(other)->unit_count, units);
        return fail_difference(path, a, text);
    }
    for (size_t u = 0; u < units; u++) {
        const char *name = bp_buckets_get_info(a->buckets)->units[u].name,
                   *others = bp_buckets_get_info(other)->units[u].name;
        if (strcmp(name, others) != 0) {
            bp_print(text, sizeof text, "its unit %zu is \"%.80s\" instead of \"%.80s\"", u, others, name);
            return fail_difference(path, a, text);
        }
    }
    int code = EXIT_GO_ON;
    for (int32_t role = 0; code == EXIT_GO_ON && role < BP_ROLE_COUNT; role++)
        code = compare_role(path, a, other, role);
    return code;
}

/* Reads a recorded schedule of the same units and buckets. */
static int record_other(const char *path, const plan_options *options, const analysis *a, bp_schedule **schedule)
{
    analysis other = {0};
    bp_model *model = NULL;
    int code = analysis_read(path, options, &other, &model);
    if (code == EXIT_GO_ON && bp_model_get_info(model)->event_count == 0)
        code = cli_fail(EXIT_BAD_INPUT,
                        "--schedules %s: no recorded schedule in this file; give a units.json with events", path);
    if (code == EXIT_GO_ON)
        code = compare(path, a, other.buckets);
    if (code == EXIT_GO_ON) {
        bp_status status = record(&options->schedule, model, a->buckets, true, schedule);
        code = status == BP_OK ? EXIT_GO_ON : analysis_fail(path, status);
    }
    bp_model_destroy(&model);
    bp_buckets_destroy(&other.buckets);
    free(other.name);
    return code;
}

static int add_others(const char *path, const plan_options *options, analysis *a)
{
    size_t count = options->schedule.other_count + 1;
    bp_schedule **all = calloc(count, sizeof *all), *merged = NULL;
    if (all == NULL)
        return cli_fail(EXIT_ENVIRONMENT, "out of memory");
    int code = EXIT_GO_ON;
    for (size_t i = 1; code == EXIT_GO_ON && i < count; i++)
        code = record_other(options->schedule.others[i - 1], options, a, &all[i]);
    if (code == EXIT_GO_ON) {
        all[0] = a->schedule;
        bp_status status = bp_schedule_create_merged((const bp_schedule *const *)all, count, &merged);
        code = status == BP_OK ? EXIT_GO_ON : analysis_fail(path, status);
    }
    if (code == EXIT_GO_ON) {
        bp_schedule_destroy(&a->schedule);
        a->schedule = merged;
    }
    for (size_t i = 1; i < count; i++)
        bp_schedule_destroy(&all[i]);
    free(all);
    return code;
}

int analysis_make_schedule(const char *path, const plan_options *options, const bp_model *model, analysis *a)
{
    a->models = 1;
    a->recorded = bp_model_get_info(model)->event_count > 0;
    int code = EXIT_GO_ON;
    if (a->recorded > 0) {
        bp_status status = record(&options->schedule, model, a->buckets, false, &a->schedule);
        code = status == BP_OK ? EXIT_GO_ON : analysis_fail(path, status);
    } else {
        code = generate(path, &options->schedule, a);
    }
    return code == EXIT_GO_ON && options->schedule.other_count > 0 ? add_others(path, options, a) : code;
}

/* ---- names ------------------------------------------------------------------------------------------------------- */

const char *analysis_schedule_text(const analysis *a, const plan_options *options, char text[SCHEDULE_TEXT_CHARS])
{
    const schedule_options *o = &options->schedule;
    size_t recorded = a->recorded + o->other_count;
    *text = '\0';
    if (a->recorded < a->models) {
        cli_append(text, SCHEDULE_TEXT_CHARS, "prefetch %u", o->prefetch);
        if (o->prefetch_backward != BP_PREFETCH_SAME && o->prefetch_backward != o->prefetch)
            cli_append(text, SCHEDULE_TEXT_CHARS, " (backward %u)", o->prefetch_backward);
        if (o->unit_prefetch_count > 0)
            cli_append(text, SCHEDULE_TEXT_CHARS, ", %zu unit%s with another prefetch", o->unit_prefetch_count,
                       o->unit_prefetch_count == 1 ? "" : "s");
        if (o->passes != BP_PASSES_TRAIN)
            cli_append(text, SCHEDULE_TEXT_CHARS, ", %s",
                       o->passes == BP_PASSES_EVAL ? "evaluation" : "training and evaluation");
        if (o->grad_units != 2 && o->passes != BP_PASSES_EVAL)
            cli_append(text, SCHEDULE_TEXT_CHARS, ", gradients of %u unit%s", o->grad_units,
                       o->grad_units == 1 ? "" : "s");
        if (o->keep_after_forward)
            cli_append(text, SCHEDULE_TEXT_CHARS, ", kept after forward");
        if (o->recompute)
            cli_append(text, SCHEDULE_TEXT_CHARS, ", recompute");
        if (o->streams == BP_STREAMS_UNIFIED)
            cli_append(text, SCHEDULE_TEXT_CHARS, ", unified streams");
        if (o->outside == BP_OUTSIDE_PREFETCHES_SUCCESSOR)
            cli_append(text, SCHEDULE_TEXT_CHARS, ", outside prefetches successor");
        if (o->microbatches > 1)
            cli_append(text, SCHEDULE_TEXT_CHARS, ", %u microbatches", o->microbatches);
        if (o->combined)
            cli_append(text, SCHEDULE_TEXT_CHARS, ", combined passes");
    }
    if (a->recorded == a->models)
        cli_append(text, SCHEDULE_TEXT_CHARS, "recorded schedule%s of %zu events", recorded == 1 ? "" : "s",
                   bp_schedule_get_info(a->schedule)->step_count);
    else if (recorded > 0)
        cli_append(text, SCHEDULE_TEXT_CHARS, ", %zu recorded schedule%s", recorded, recorded == 1 ? "" : "s");
    if (recorded > 0 && o->overlap_window > 0)
        cli_append(text, SCHEDULE_TEXT_CHARS, ", overlap window %u", o->overlap_window);
    return text;
}

static const char *unit_name(const analysis *a, int32_t unit)
{
    const char *name = unit >= 0 ? bp_buckets_get_info(a->buckets)->units[unit].name : NULL;
    return name != NULL ? name : "outside";
}

const char *analysis_step_text(const analysis *a, uint32_t index, char text[STEP_TEXT_CHARS])
{
    static const char *const whats[] = {[BP_PHASE_FORWARD] = "forward of",
                                        [BP_PHASE_BACKWARD] = "backward of",
                                        [BP_PHASE_RECORDED] = "event of",
                                        [BP_PHASE_OUTSIDE] = "outside units",
                                        [BP_PHASE_BACKWARD_GATHER] = "all-gathers in backward at",
                                        [BP_PHASE_COMBINED] = "backward of",
                                        [BP_PHASE_REDUCE] = "reduce-scatter of"};
    const bp_schedule_info *info = bp_schedule_get_info(a->schedule);
    *text = '\0';
    if (index >= info->step_count)
        return text;
    bp_step step = info->steps[index];
    if (step.phase == BP_PHASE_OUTSIDE)
        bp_print(text, STEP_TEXT_CHARS, "%s", whats[step.phase]);
    else
        bp_print(text, STEP_TEXT_CHARS, "%s %.100s", whats[step.phase], unit_name(a, step.unit));
    if (step.phase == BP_PHASE_COMBINED)
        cli_append(text, SCHEDULE_TEXT_CHARS, " beside forward of %.100s", unit_name(a, step.forward_unit));
    return text;
}
