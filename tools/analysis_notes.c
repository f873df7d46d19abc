/* The options of a plan as text, for saving. */
#include <inttypes.h>
#include <stdio.h>

#include "analysis_parts.h"

static bp_status note_number(bp_plan *plan, const char *key, uint64_t value)
{
    char text[32];
    snprintf(text, sizeof text, "%" PRIu64, value);
    return bp_plan_set_option(plan, key, text);
}

static bp_status note_rules(const analysis *a, bp_plan *plan)
{
    bp_status status = bp_plan_set_option(plan, "bucketing", options_bucketing_name(a->bucketing));
    if (status == BP_OK)
        status = bp_plan_set_option(plan, "padding", options_padding_name(a->padding));
    if (status == BP_OK)
        status = bp_plan_set_option(plan, "layout", options_layout_name(a->layout));
    return status;
}

static bp_status note_dtypes(const plan_options *o, bp_plan *plan)
{
    const struct {
        const char *key;
        bp_dtype dtype;
    } dtypes[] = {{"param_dtype", o->param_dtype},
                  {"grad_dtype", o->grad_dtype},
                  {"grad_comm_dtype", o->grad_comm_dtype},
                  {"main_grad_dtype", o->main_grad_dtype},
                  {"optimizer_dtype", o->optimizer_dtype}};
    bp_status status = BP_OK;
    for (size_t i = 0; status == BP_OK && i < sizeof dtypes / sizeof *dtypes; i++) {
        if (dtypes[i].dtype != BP_DTYPE_NONE)
            status = bp_plan_set_option(plan, dtypes[i].key, bp_dtype_name(dtypes[i].dtype));
    }
    return status;
}

static bp_status note_numbers(const plan_options *o, bp_plan *plan)
{
    const schedule_options *s = &o->schedule;
    const struct {
        const char *key;
        uint64_t value, unasked; /* what is not noted; UINT64_MAX: everything is */
    } numbers[] = {{"dp", o->dp, UINT64_MAX},
                   {"ep", o->ep, UINT64_MAX},
                   {"tp", o->tp, UINT64_MAX},
                   {"prefetch", s->prefetch, UINT64_MAX},
                   {"prefetch_backward", s->prefetch_backward, BP_PREFETCH_SAME},
                   {"buffers", o->buffers, UINT64_MAX},
                   {"grad_units", s->grad_units, UINT64_MAX},
                   {"eval", s->passes == BP_PASSES_EVAL, UINT64_MAX},
                   {"keep_after_forward", s->keep_after_forward, 0},
                   {"recompute", s->recompute, 0},
                   {"microbatches", s->microbatches, 0},
                   {"combined", s->combined, 0},
                   {"overlap_window", s->overlap_window, 0},
                   {"optimizer_tensors", o->optimizer_tensors, OPTIONS_OPTIMIZER_TENSORS},
                   {"joint", o->joint, 0},
                   {"work", o->work, 0},
                   {"share", s->share, 0}};
    bp_status status = BP_OK;
    for (size_t i = 0; status == BP_OK && i < sizeof numbers / sizeof *numbers; i++) {
        if (numbers[i].value != numbers[i].unasked)
            status = note_number(plan, numbers[i].key, numbers[i].value);
    }
    return status;
}

/* "layers.3=2:1" as an option "unit_prefetch.layers.3" with value "2:1". */
static bp_status note_units(const schedule_options *o, bp_plan *plan)
{
    bp_status status = BP_OK;
    for (size_t i = 0; status == BP_OK && i < o->unit_prefetch_count; i++) {
        char key[256], value[32];
        snprintf(key, sizeof key, "unit_prefetch.%.200s", o->unit_prefetches[i].unit);
        snprintf(value, sizeof value, "%u:%u", o->unit_prefetches[i].forward, o->unit_prefetches[i].backward);
        status = bp_plan_set_option(plan, key, value);
    }
    return status;
}

const char *analysis_schedule_kind(const analysis *a, const schedule_options *o)
{
    static const char *const kinds[] = {
        [BP_PASSES_TRAIN] = "training", [BP_PASSES_EVAL] = "evaluation", [BP_PASSES_BOTH] = "training and evaluation"};
    return a->recorded == a->models ? "recorded" : a->recorded > 0 ? "mixed" : kinds[o->passes];
}

static bp_status note_schedule(const schedule_options *o, const analysis *a, bp_plan *plan)
{
    bp_status status = bp_plan_set_option(plan, "schedule", analysis_schedule_kind(a, o));
    if (status == BP_OK && o->streams != BP_STREAMS_SEPARATE)
        status = bp_plan_set_option(plan, "streams", options_streams_name(o->streams));
    if (status == BP_OK && o->outside != BP_OUTSIDE_PREFETCHES_NOTHING)
        status = bp_plan_set_option(plan, "outside", options_outside_name(o->outside));
    if (status == BP_OK && o->other_count > 0)
        status = note_number(plan, "schedules", o->other_count);
    return status == BP_OK ? note_units(o, plan) : status;
}

bp_status analysis_note(const plan_options *options, const analysis *a, bp_plan *plan)
{
    bp_status status = bp_plan_set_model(plan, a->name);
    if (status == BP_OK)
        status = note_rules(a, plan);
    if (status == BP_OK)
        status = note_schedule(&options->schedule, a, plan);
    if (status == BP_OK)
        status = note_numbers(options, plan);
    return status == BP_OK ? note_dtypes(options, plan) : status;
}
