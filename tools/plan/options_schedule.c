/* The options of schedules, declared, parsed and checked. */
#include "plan/options.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "shared/cli.h"

static const choice pass_names[] = {
    {"train", BP_PASSES_TRAIN}, {"eval", BP_PASSES_EVAL}, {"both", BP_PASSES_BOTH}, {0, 0}};
static const choice stream_names[] = {{"separate", BP_STREAMS_SEPARATE}, {"unified", BP_STREAMS_UNIFIED}, {0, 0}};
static const choice outside_names[] = {
    {"nothing", BP_OUTSIDE_PREFETCHES_NOTHING}, {"successor", BP_OUTSIDE_PREFETCHES_SUCCESSOR}, {0, 0}};

const char *options_passes_name(bp_passes passes)
{
    return choice_name(pass_names, (int)passes);
}

const char *options_streams_name(bp_streams streams)
{
    return choice_name(stream_names, (int)streams);
}

const char *options_outside_name(bp_outside outside)
{
    return choice_name(outside_names, (int)outside);
}

/* One more element at the end of an array; false when memory runs out. */
static bool grow(void *array, size_t count, size_t each)
{
    void *memory;
    memcpy(&memory, array, sizeof memory);
    memory = reallocarray(memory, count + 1, each);
    if (memory == NULL)
        return false;
    memcpy(array, &memory, sizeof memory);
    return true;
}

/* "layers.3=2" or "layers.3=2:1". BP_PREFETCH_SAME is no number of units. */
static int add_unit_prefetch(const char *word, void *user)
{
    schedule_options *o = &((plan_options *)user)->schedule;
    char *unit = strdup(word);
    if (unit == NULL || !grow(&o->unit_prefetches, o->unit_prefetch_count, sizeof *o->unit_prefetches)) {
        free(unit);
        return cli_fail(EXIT_ENVIRONMENT, "out of memory");
    }
    unit_prefetch *added = &o->unit_prefetches[o->unit_prefetch_count++];
    *added = (unit_prefetch){.unit = unit};
    char *forward = strrchr(unit, '='), *backward = forward != NULL ? strchr(forward, ':') : NULL;
    if (forward == NULL || forward == unit)
        return cli_fail(EXIT_BAD_INPUT, "--unit-prefetch: expected UNIT=F or UNIT=F:B, got \"%.80s\"", word);
    *forward++ = '\0';
    if (backward != NULL)
        *backward++ = '\0';
    int code = value_u32("unit-prefetch", forward, 0, &added->forward);
    uint64_t number = added->forward;
    if (code == EXIT_GO_ON && backward != NULL)
        code = value_number("unit-prefetch", backward, 0, BP_PREFETCH_SAME - 1, &number);
    added->backward = (uint32_t)number;
    return code;
}

static int parse_unit_prefetches(const char *name, const char *text, void *options)
{
    return value_list(name, text, add_unit_prefetch, options);
}

static int add_other(const char *word, void *user)
{
    schedule_options *o = &((plan_options *)user)->schedule;
    char *copy = strdup(word);
    if (copy == NULL || !grow(&o->others, o->other_count, sizeof *o->others)) {
        free(copy);
        return cli_fail(EXIT_ENVIRONMENT, "out of memory");
    }
    o->others[o->other_count++] = copy;
    return EXIT_GO_ON;
}

static int parse_others(const char *name, const char *text, void *options)
{
    return value_list(name, text, add_other, options);
}

static int parse_eval(const char *name, const char *text, void *options)
{
    (void)name;
    (void)text;
    ((plan_options *)options)->schedule.passes = BP_PASSES_EVAL;
    return EXIT_GO_ON;
}

#define FIELD(member) offsetof(plan_options, schedule.member)

/* An evaluation may be asked of any schedule: it decides about roles and state, too. */
const option_row options_schedule[] = {
    {.kind = OPTION_HEADING, .text = "Schedule:", .group = 3},
    {"prefetch", "N", "Prefetch depth: units gathered ahead of the one that computes (default 1)", OPTION_U32,
     FIELD(prefetch), .applies = OPTION_GENERATES},
    {"prefetch-backward", "N", "The same in backward (default: as forward)", OPTION_U32, FIELD(prefetch_backward),
     .most = BP_PREFETCH_SAME - 1, .applies = OPTION_GENERATES},
    {"unit-prefetch", "UNIT=F[:B],...", "Prefetch depth of UNIT: F, B in backward (default: F); may be repeated",
     OPTION_OWN, .parse = parse_unit_prefetches, .applies = OPTION_GENERATES},
    {"grad-units", "N", "Units whose gradients are live while their reduction drains (default 2)", OPTION_U32,
     FIELD(grad_units), .least = 1, .applies = OPTION_GENERATES},
    {"passes", "P", "train, eval or both: a training step, then an evaluation (default train)", OPTION_CHOICE,
     FIELD(passes), pass_names, .applies = OPTION_GENERATES},
    {"eval", NULL, "Forward only: --passes eval", OPTION_OWN, .parse = parse_eval},
    {"keep-after-forward", NULL, "Parameters stay gathered from forward until their backward is done", OPTION_FLAG,
     FIELD(keep_after_forward), .applies = OPTION_GENERATES},
    {"recompute", NULL, "Backward runs forward again: fp8 models gather row-wise parameters there too", OPTION_FLAG,
     FIELD(recompute), .applies = OPTION_GENERATES},
    {"streams", "S",
     "separate: gathers and reductions run beside each other; unified: one stream for both (default separate)",
     OPTION_CHOICE, FIELD(streams), stream_names, .applies = OPTION_GENERATES},
    {"outside", "O", "What parameters outside units gather ahead: nothing or successor (default nothing)",
     OPTION_CHOICE, FIELD(outside), outside_names, .applies = OPTION_GENERATES},
    {"microbatches", "M", "Forward passes in flight in a 1F1B pipeline stage", OPTION_U32, FIELD(microbatches),
     .least = 1, .most = BP_MAX_MICROBATCHES, .applies = OPTION_GENERATES},
    {"combined", NULL, "The pipeline runs the forward of one microbatch and the backward of another side by side",
     OPTION_FLAG, FIELD(combined), .applies = OPTION_GENERATES},
    {"overlap-window", "N",
     "Recorded schedules: memory that one lane released is kept from the next N units of another (default 0)",
     OPTION_U32, FIELD(overlap_window)},
    {"schedules", "FILE,...", "Further units.json of the same units and buckets: what they recorded is planned too",
     OPTION_OWN, .parse = parse_others},
    {"share", NULL, "The MODELs share one pool, one after the other", OPTION_FLAG, FIELD(share)},
    OPTION_END,
};

void options_schedule_init(schedule_options *options)
{
    *options = (schedule_options){.prefetch = 1, .prefetch_backward = BP_PREFETCH_SAME, .grad_units = 2};
}

void options_schedule_finish(schedule_options *options)
{
    for (size_t i = 0; i < options->unit_prefetch_count; i++)
        free(options->unit_prefetches[i].unit);
    for (size_t i = 0; i < options->other_count; i++)
        free(options->others[i]);
    free(options->unit_prefetches);
    free(options->others);
    *options = (schedule_options){0};
}

int options_schedule_check(const schedule_options *o, size_t models)
{
    if (o->share && models < 2)
        return cli_fail(EXIT_BAD_INPUT, "--share is about several models, %zu is given", models);
    if (o->other_count > 0 && models > 1)
        return cli_fail(EXIT_BAD_INPUT, "--schedules adds to the schedule of one model, %zu are given", models);
    if (o->passes == BP_PASSES_EVAL && (o->microbatches > 0 || o->combined))
        return cli_fail(EXIT_BAD_INPUT, "--%s is about training, and an evaluation is asked for; leave it out",
                        o->combined ? "combined" : "microbatches");
    return EXIT_GO_ON;
}

const char *options_schedule_generating(const plan_options *o)
{
    for (size_t i = 0; i < o->given.count; i++) {
        const option_row *row = o->given.rows[i];
        bool evaluates = row->field == FIELD(passes) && o->schedule.passes == BP_PASSES_EVAL;
        if ((row->applies & OPTION_GENERATES) != 0 && !evaluates)
            return row->name;
    }
    return NULL;
}
