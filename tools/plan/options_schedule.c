/* The options of schedules, declared, parsed and checked. */
#include "plan/options.h"

#include <stdlib.h>
#include <string.h>

#include "shared/cli.h"

enum {
    OPT_PREFETCH = 256,
    OPT_PREFETCH_BACKWARD,
    OPT_UNIT_PREFETCH,
    OPT_GRAD_UNITS,
    OPT_PASSES,
    OPT_EVAL,
    OPT_KEEP,
    OPT_RECOMPUTE,
    OPT_STREAMS,
    OPT_OUTSIDE,
    OPT_MICROBATCHES,
    OPT_COMBINED,
    OPT_OVERLAP_WINDOW,
    OPT_SCHEDULES,
    OPT_SHARE,
};

static const struct argp_option table[] = {
    {"prefetch", OPT_PREFETCH, "N", 0, "Prefetch depth: units gathered ahead of the one that computes (default 1)", 3},
    {"prefetch-backward", OPT_PREFETCH_BACKWARD, "N", 0, "The same in backward (default: as forward)", 0},
    {"unit-prefetch", OPT_UNIT_PREFETCH, "UNIT=F[:B],...", 0,
     "Prefetch depth of UNIT: F, B in backward (default: F); may be repeated", 0},
    {"grad-units", OPT_GRAD_UNITS, "N", 0, "Units whose gradients are live while their reduction drains (default 2)",
     0},
    {"passes", OPT_PASSES, "P", 0, "train, eval or both: a training step, then an evaluation (default train)", 0},
    {"eval", OPT_EVAL, 0, 0, "Forward only: --passes eval", 0},
    {"keep-after-forward", OPT_KEEP, 0, 0, "Parameters stay gathered from forward until their backward is done", 0},
    {"recompute", OPT_RECOMPUTE, 0, 0, "Backward runs forward again: fp8 models gather row-wise parameters there too",
     0},
    {"streams", OPT_STREAMS, "S", 0,
     "separate: gathers and reductions run beside each other; unified: one stream for both (default separate)", 0},
    {"outside", OPT_OUTSIDE, "O", 0,
     "What parameters outside units gather ahead: nothing or successor (default nothing)", 0},
    {"microbatches", OPT_MICROBATCHES, "M", 0, "Forward passes in flight in a 1F1B pipeline stage", 0},
    {"combined", OPT_COMBINED, 0, 0,
     "The pipeline runs the forward of one microbatch and the backward of another side by side", 0},
    {"overlap-window", OPT_OVERLAP_WINDOW, "N", 0,
     "Recorded schedules: memory that one lane released is kept from the next N units of another (default 0)", 0},
    {"schedules", OPT_SCHEDULES, "FILE,...", 0,
     "Further units.json of the same units and buckets: what they recorded is planned too", 0},
    {"share", OPT_SHARE, 0, 0, "The MODELs share one pool, one after the other", 0},
    {0, 0, 0, 0, 0, 0},
};

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

/* BP_PREFETCH_SAME is no number of units. */
static int parse_backward(const char *option, const char *text, uint32_t *backward)
{
    uint64_t number = 0;
    int code = value_number(option, text, 0, BP_PREFETCH_SAME - 1, &number);
    if (code == EXIT_GO_ON)
        *backward = (uint32_t)number;
    return code;
}

/* "layers.3=2" or "layers.3=2:1". */
static int add_unit_prefetch(const char *word, void *user)
{
    schedule_options *o = user;
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
    added->backward = added->forward;
    if (code == EXIT_GO_ON && backward != NULL)
        code = parse_backward("unit-prefetch", backward, &added->backward);
    return code;
}

static int add_other(const char *word, void *user)
{
    schedule_options *o = user;
    char *copy = strdup(word);
    if (copy == NULL || !grow(&o->others, o->other_count, sizeof *o->others)) {
        free(copy);
        return cli_fail(EXIT_ENVIRONMENT, "out of memory");
    }
    o->others[o->other_count++] = copy;
    return EXIT_GO_ON;
}

static int parse_microbatches(const char *text, uint32_t *microbatches)
{
    uint64_t number = 0;
    int code = value_number("microbatches", text, 1, BP_MAX_MICROBATCHES, &number);
    *microbatches = (uint32_t)number;
    return code;
}

static int parse(int key, char *text, schedule_options *o)
{
    int value = 0, code;
    switch (key) {
    case OPT_PREFETCH: return value_u32("prefetch", text, 0, &o->prefetch);
    case OPT_PREFETCH_BACKWARD: return parse_backward("prefetch-backward", text, &o->prefetch_backward);
    case OPT_UNIT_PREFETCH: return value_list("unit-prefetch", text, add_unit_prefetch, o);
    case OPT_GRAD_UNITS: return value_u32("grad-units", text, 1, &o->grad_units);
    case OPT_PASSES:
        code = value_choice("passes", text, pass_names, &value);
        o->passes = (bp_passes)value;
        return code;
    case OPT_EVAL: o->passes = BP_PASSES_EVAL; return EXIT_GO_ON;
    case OPT_KEEP: o->keep_after_forward = true; return EXIT_GO_ON;
    case OPT_RECOMPUTE: o->recompute = true; return EXIT_GO_ON;
    case OPT_STREAMS:
        code = value_choice("streams", text, stream_names, &value);
        o->streams = (bp_streams)value;
        return code;
    case OPT_OUTSIDE:
        code = value_choice("outside", text, outside_names, &value);
        o->outside = (bp_outside)value;
        return code;
    case OPT_MICROBATCHES: return parse_microbatches(text, &o->microbatches);
    case OPT_COMBINED: o->combined = true; return EXIT_GO_ON;
    case OPT_OVERLAP_WINDOW: return value_u32("overlap-window", text, 0, &o->overlap_window);
    case OPT_SCHEDULES: return value_list("schedules", text, add_other, o);
    default: o->share = true; return EXIT_GO_ON;
    }
}

static error_t parse_key(int key, char *text, struct argp_state *state)
{
    if (key < OPT_PREFETCH || key > OPT_SHARE)
        return ARGP_ERR_UNKNOWN;
    schedule_options *options = state->input;
    options->given |= 1u << (key - OPT_PREFETCH);
    int code = parse(key, text, options);
    if (code != EXIT_GO_ON)
        exit(code); /* the message is out */
    return 0;
}

const struct argp options_schedule_argp = {table, parse_key, 0, 0, 0, 0, 0};

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

const char *options_schedule_generating(const schedule_options *o)
{
    for (const struct argp_option *option = table; option->name != NULL; option++) {
        bool given = (o->given >> (option->key - OPT_PREFETCH) & 1) != 0;
        bool evaluates = option->key == OPT_EVAL || (option->key == OPT_PASSES && o->passes == BP_PASSES_EVAL);
        if (given && option->key <= OPT_COMBINED &&
            !evaluates) /* roles and state of an evaluation are of any schedule */
            return option->name;
    }
    return NULL;
}
