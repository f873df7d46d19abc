/* SPDX-License-Identifier: Apache-2.0 */
/* The plan of a run: made here or read from a file, then scaled down by a power of two. The layout stays the same,
 * but the slabs fit this machine. */
#include "core/print.h"
#include "run/run.h"

#include <bucketpool/formats.h>

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "planner/from_info.h"
#include "shared/cli.h"
#include "shared/progress.h"

/* ---- scaling ----------------------------------------------------------------------------------------------------- */

/* Rounds up. Offsets are multiples of the scale, so rounding creates no overlap. */
static uint64_t scaled_bytes(uint64_t bytes, uint64_t scale)
{
    return bytes / scale + (bytes % scale != 0);
}

/* Copies of the plan's arrays, scaled. */
typedef struct arrays {
    bp_plan_slab *slabs;
    bp_plan_class *classes;
    bp_plan_request *requests;
} arrays;

static bool allocate_arrays(const bp_plan_info *plan, arrays *a)
{
    a->slabs = malloc((plan->slab_count + 1) * sizeof *a->slabs);
    a->classes = malloc((plan->class_count + 1) * sizeof *a->classes);
    a->requests = malloc((plan->request_count + 1) * sizeof *a->requests);
    return a->slabs != NULL && a->classes != NULL && a->requests != NULL;
}

/* The plan with all offsets and sizes divided; its alignment must be a multiple of `scale`. The caller owns *scaled.
 * Errors: those of the plan builder. */
static bp_status scale_plan(const bp_plan *plan, uint64_t scale, bp_plan **scaled)
{
    bp_plan_info info = *bp_plan_get_info(plan);
    arrays a = {0};
    bp_status status = bp_error_record(BP_ERR_NO_HOST_MEMORY, "out of memory for the scaled plan");
    if (allocate_arrays(&info, &a)) {
        for (size_t i = 0; i < info.slab_count; i++) {
            bp_plan_slab slab = info.slabs[i];
            slab.bytes = scaled_bytes(slab.bytes, scale);
            a.slabs[i] = slab;
        }
        for (size_t i = 0; i < info.class_count; i++) {
            bp_plan_class c = info.classes[i];
            c.offset = scaled_bytes(c.offset, scale);
            c.stride = scaled_bytes(c.stride, scale);
            c.bytes = scaled_bytes(c.bytes, scale);
            a.classes[i] = c;
        }
        for (size_t i = 0; i < info.request_count; i++) {
            bp_plan_request r = info.requests[i];
            r.offset = scaled_bytes(r.offset, scale);
            r.bytes = scaled_bytes(r.bytes, scale);
            r.used_bytes = scaled_bytes(r.used_bytes, scale);
            a.requests[i] = r;
        }

        info.alignment /= scale;
        info.bytes = scaled_bytes(info.bytes, scale);
        info.lower_bound_bytes = scaled_bytes(info.lower_bound_bytes, scale);
        info.slabs = a.slabs;
        info.classes = a.classes;
        info.requests = a.requests;
        status = bp_plan_from_info(&info, scaled);
    }
    free(a.slabs);
    free(a.classes);
    free(a.requests);
    return status;
}

/* Bytes that one iteration writes into buckets, which determine the time of a run; UINT64_MAX on overflow. */
static uint64_t iteration_bytes(const bp_buckets *buckets, const bp_schedule *schedule)
{
    uint64_t sum = 0;
    const bp_buckets_info *info = bp_buckets_get_info(buckets);
    for (size_t i = 0; i < info->request_count; i++) {
        uint64_t bytes, count = bp_schedule_get_info(schedule)->requests[i].interval_count;
        if (__builtin_mul_overflow(info->requests[i].bytes, count, &bytes) || __builtin_add_overflow(sum, bytes, &sum))
            return UINT64_MAX;
    }
    return sum;
}

/* ---- the plan of a run ------------------------------------------------------------------------------------------- */

/* Targets of --scale auto: a run takes seconds and a quarter of the machine's memory. */
#define AUTO_ITERATION_BYTES ((uint64_t)2 << 30)
#define AUTO_MEMORY_SHARE 4

static uint64_t physical_bytes(void)
{
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    return pages > 0 && page > 0 ? (uint64_t)pages * (uint64_t)page : (uint64_t)1 << 30;
}

static uint64_t memory_for_auto(void)
{
    return physical_bytes() / AUTO_MEMORY_SHARE;
}

/* The smallest power of two that brings `bytes` down to `most`. */
static uint64_t scale_for(uint64_t bytes, uint64_t max)
{
    uint64_t scale = 1;
    while (scaled_bytes(bytes, scale) > max && scale < MAX_SCALE)
        scale *= 2;
    return scale;
}

/* First candidate of --scale auto, from the time of a step. Steps of device null write no bytes. */
static uint64_t first_scale(const run_options *options, const analysis *a)
{
    if (options->scale != 0 || options->device == RUN_NULL)
        return options->scale != 0 ? options->scale : 1;
    return scale_for(iteration_bytes(a->buckets, a->schedule), AUTO_ITERATION_BYTES);
}

/* Plans at an alignment that the scale divides. A larger scale aligns more coarsely, so each candidate is checked again. */
static int plan_here(const run_options *options, const analysis *a, run_plan *plan)
{
    for (plan->scale = first_scale(options, a);; plan->scale *= 2) {
        uint64_t alignment;
        if (__builtin_mul_overflow(options->planning.alignment, plan->scale, &alignment))
            return cli_fail(EXIT_BAD_INPUT, "--align %llu times --scale %llu exceeds 64 bits; use a smaller --scale",
                            (unsigned long long)options->planning.alignment, (unsigned long long)plan->scale);
        bp_plan_destroy(&plan->full);
        bp_status status = analysis_plan(a, &options->planning, options->policy, alignment, &plan->full);
        if (status != BP_OK)
            return cli_fail(status == BP_ERR_NO_HOST_MEMORY ? EXIT_ENVIRONMENT : EXIT_BAD_INPUT, "%s: %s",
                            options->planning.models[0], bp_error_detail());
        bool fits = scaled_bytes(bp_plan_get_info(plan->full)->bytes, plan->scale) <= memory_for_auto();
        if (options->scale != 0 || options->device == RUN_NULL || fits || plan->scale >= MAX_SCALE)
            return EXIT_GO_ON;
    }
}

/* ---- plans of files ---------------------------------------------------------------------------------------------- */

/* Value of an option recorded in a plan; NULL: not recorded, the default. */
static const char *noted(const bp_plan *plan, const char *key)
{
    const bp_plan_info *info = bp_plan_get_info(plan);
    for (size_t i = 0; i < info->option_count; i++) {
        if (strcmp(info->options[i].key, key) == 0)
            return info->options[i].value;
    }
    return NULL;
}

static bool is_one_of(const char *key, const char *const *names)
{
    while (*names != NULL && strcmp(*names, key) != 0)
        names++;
    return *names != NULL;
}

/* Formats a recorded option as typed: "with --prefetch 1", "without --recompute". */
static void describe_option(const char *key, const char *value, char text[160])
{
    static const char *const flags[] = {"eval", "keep_after_forward", "recompute", "combined", "share", NULL};
    char option[80];
    const char *unit = strncmp(key, "unit_prefetch.", 14) == 0 ? key + 14 : NULL;
    snprintf(option, sizeof option, "%s", unit != NULL ? "unit_prefetch" : key);
    for (char *c = option; *c != '\0'; c++)
        *c = *c == '_' ? '-' : *c;
    if (strcmp(key, "schedule") == 0)
        bp_print(text, 160, "for the schedule \"%s\"", value != NULL ? value : "");
    else if (value == NULL || (is_one_of(key, flags) && strcmp(value, "0") == 0))
        bp_print(text, 160, "without --%s%s%.40s", option, unit != NULL ? " " : "", unit != NULL ? unit : "");
    else if (is_one_of(key, flags))
        bp_print(text, 160, "with --%s", option);
    else
        bp_print(text, 160, "with --%s %.40s%s%.40s", option, unit != NULL ? unit : "", unit != NULL ? "=" : "", value);
}

/* Finds the first option that differs, and formats both values ("with --dp 64"). Options of the search are ignored. */
static bool find_difference(const bp_plan *one, const bp_plan *other, char in_one[160], char in_other[160])
{
    static const char *const making[] = {"buffers", "joint", "work", NULL};
    const bp_plan_info *info = bp_plan_get_info(one);
    for (size_t i = 0; i < info->option_count; i++) {
        const bp_plan_option *o = &info->options[i];
        const char *others = noted(other, o->key);
        if (is_one_of(o->key, making) || (others != NULL && strcmp(o->value, others) == 0))
            continue;
        describe_option(o->key, o->value, in_one);
        describe_option(o->key, others, in_other);
        return true;
    }
    return false;
}

/* The plan checker accepts a plan for other options if it is valid for them too, for example with a smaller prefetch
 * depth. */
static int compare_options(const run_options *options, const analysis *a, const bp_plan *plan)
{
    bp_plan *here = NULL;
    char made[160], asked[160];
    if (noted(plan, "dp") == NULL) /* written by another program, without options */
        return EXIT_GO_ON;
    bp_status status = analysis_plan(a, &options->planning, BP_POLICY_DYNAMIC, options->planning.alignment, &here);
    if (status != BP_OK)
        return cli_fail_status(status);
    bool differs = find_difference(plan, here, made, asked) || find_difference(here, plan, asked, made);
    bp_plan_destroy(&here);
    return !differs ? EXIT_GO_ON
                    : cli_fail(EXIT_BAD_INPUT,
                               "%s was planned %s, this run is %s; give both the same options, or use --unchecked",
                               options->plan, made, asked);
}

static int check_plan(const run_options *options, const analysis *a, const bp_plan *plan)
{
    int code = EXIT_GO_ON;
    if (strcmp(bp_plan_get_info(plan)->model, a->name) == 0)
        code = compare_options(options, a, plan);
    if (code != EXIT_GO_ON)
        return code;
    bp_status status = bp_plan_check(plan, a->buckets, a->schedule);
    if (status != BP_OK)
        return cli_fail(status == BP_ERR_NO_HOST_MEMORY ? EXIT_ENVIRONMENT : EXIT_NEGATIVE, "%s does not fit %s: %s",
                        options->plan, a->name, bp_error_detail());
    return compare_options(options, a, plan);
}

/* --unchecked: the requests must still be those of the plan, in the same order. */
static int match_requests(const run_options *options, const analysis *a, const bp_plan *plan)
{
    const bp_buckets_info *buckets = bp_buckets_get_info(a->buckets);
    for (size_t i = 0; i < buckets->request_count; i++) {
        const bp_request *r = &buckets->requests[i];
        const bp_bucket *b = &buckets->buckets[r->bucket];
        uint32_t id = 0;
        if (bp_plan_find(plan, buckets->units[b->unit].name, b->ordinal, (bp_role)r->role, r->dtype, r->bytes, &id) !=
            BP_OK)
            return cli_fail(EXIT_NEGATIVE, "%s does not fit %s: %s", options->plan, a->name, bp_error_detail());
        if (id != i)
            return cli_fail(
                EXIT_NEGATIVE,
                "%s does not fit %s: request %zu has number %u in the plan; give the run the plan's --roles",
                options->plan, a->name, i, id);
    }
    return EXIT_GO_ON;
}

static int read_plan(const run_options *options, const analysis *a, run_plan *plan)
{
    bp_status status = bp_plan_read(strcmp(options->plan, "-") == 0 ? "/dev/stdin" : options->plan, &plan->full);
    if (status != BP_OK)
        return cli_fail_status(status);
    CLI_TRY(options->unchecked ? match_requests(options, a, plan->full) : check_plan(options, a, plan->full));
    plan->scale = first_scale(options, a);
    uint64_t for_memory = scale_for(bp_plan_get_info(plan->full)->bytes, memory_for_auto());
    if (options->scale == 0 && options->device != RUN_NULL && for_memory > plan->scale)
        plan->scale = for_memory;
    uint64_t enough = 256 * plan->scale, alignment = bp_plan_get_info(plan->full)->alignment;
    if (alignment % plan->scale != 0)
        return cli_fail(EXIT_BAD_INPUT,
                        "%s: alignment %llu is not a multiple of --scale %llu; plan with --align %llu, or run with "
                        "--scale %llu or less",
                        options->plan, (unsigned long long)alignment, (unsigned long long)plan->scale,
                        (unsigned long long)enough, (unsigned long long)alignment);
    return EXIT_GO_ON;
}

int run_plan_init(const run_options *options, const analysis *a, run_plan *plan)
{
    *plan = (run_plan){.scale = 1};
    progress p;
    char what[160];
    bp_print(what, sizeof what, "%s: planning policy %s", a->name, bp_policy_name(options->policy));
    progress_watch(&p, options->plan != NULL ? "checking the plan" : what, NULL, NULL);
    int code = options->plan != NULL ? read_plan(options, a, plan) : plan_here(options, a, plan);
    progress_unwatch(&p);
    if (code != EXIT_GO_ON)
        return code;
    const bp_plan_info *info = bp_plan_get_info(plan->full);
    if (!info->feasible)
        return cli_fail(EXIT_NEGATIVE, "%s is infeasible: %s", bp_policy_name(info->policy), info->infeasible_because);
    if (!info->stable && options->graphs != DRIVER_GRAPHS_OFF)
        return cli_fail(EXIT_BAD_INPUT, "--graph requires stable addresses, and some buckets of the plan are dynamic; "
                                        "plan without --fallback dynamic");
    bp_status status = plan->scale > 1 ? scale_plan(plan->full, plan->scale, &plan->scaled) : BP_OK;
    return status == BP_OK ? EXIT_GO_ON : cli_fail_status(status);
}

const bp_plan *run_plan_driven(const run_plan *plan)
{
    return plan->scaled != NULL ? plan->scaled : plan->full;
}

void run_plan_finish(run_plan *plan)
{
    bp_plan_destroy(&plan->full);
    bp_plan_destroy(&plan->scaled);
}
