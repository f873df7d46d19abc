/* SPDX-License-Identifier: Apache-2.0 */
/* Advice beside a plan: options without an effect, policies that take the same, and the data-parallel ranks that a budget needs. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "plan/analysis.h"
#include "shared/cli.h"

/* ---- options without an effect ----------------------------------------------------------------------------------- */

static bool is_named(const char *name, const char *const *names)
{
    while (*names != NULL && strcmp(*names, name) != 0)
        names++;
    return *names != NULL;
}

static size_t field_bytes(const option_row *row)
{
    switch (row->kind) {
    case OPTION_FLAG: return sizeof(bool);
    case OPTION_U64: return sizeof(uint64_t);
    case OPTION_U32:
    case OPTION_CHOICE:
    case OPTION_DTYPE: return sizeof(uint32_t);
    default: return 0;
    }
}

/* Gives an option another value: its default, or another dtype. False for options that are not examined, and for one that has its default:
 * who writes a default wants no other effect. */
static bool change(const option_row *row, plan_options *options)
{
    /* a plan always depends on these, or a check refuses them */
    static const char *const others[] = {"bucketing",      "padding", "layout", "passes", "share",
                                         "overlap-window", "strict",  "json",   "color",  NULL};
    plan_options defaults;
    options_init(&defaults);
    size_t bytes = field_bytes(row);
    if (strcmp(row->name, "unit-prefetch") == 0) {
        options->schedule.unit_prefetch_count = 0;
        return true;
    }
    bool is_own = row->field + bytes > sizeof *options; /* of a command's struct that begins with these options */
    /* Shard(1) refuses ranks that do not divide a dimension */
    bool is_risky = options->padding == BP_PADDING_FSDP2_SHARD1 && strcmp(row->name, "ep") == 0;
    if (bytes == 0 || is_own || is_risky || (row->applies & OPTION_MAKES_PLANS) != 0 || is_named(row->name, others))
        return false;
    void *field = (char *)options + row->field;
    const void *unasked = (const char *)&defaults + row->field;
    if (memcmp(field, unasked, bytes) == 0)
        return false;
    if (row->kind == OPTION_DTYPE)
        *(bp_dtype *)field = *(bp_dtype *)field == BP_DTYPE_FP32 ? BP_DTYPE_BF16 : BP_DTYPE_FP32;
    else
        memcpy(field, unasked, bytes);
    return true;
}

static bool is_same_state(const state_bytes *x, const state_bytes *y)
{
    return x->outside == y->outside && x->unsharded == y->unsharded && x->param_shards == y->param_shards &&
           x->grad_shards == y->grad_shards && x->optimizer == y->optimizer;
}

static bool has_same_requests(const bp_buckets_info *x, const bp_buckets_info *y)
{
    bool same = x->request_count == y->request_count;
    for (size_t i = 0; same && i < x->request_count; i++) {
        const bp_request *a = &x->requests[i], *b = &y->requests[i];
        same = a->bytes == b->bytes && a->role == b->role && a->dtype == b->dtype && a->bucket == b->bucket;
    }
    return same;
}

static bool has_same_events(const bp_schedule_info *x, const bp_schedule_info *y)
{
    bool same = x->event_count == y->event_count && x->step_count == y->step_count;
    for (size_t i = 0; same && i < x->event_count; i++) {
        const bp_schedule_event *a = &x->events[i], *b = &y->events[i];
        same = a->step == b->step && a->acquire == b->acquire && a->lane == b->lane &&
               a->first_request == b->first_request && a->request_count == b->request_count;
    }
    return same;
}

/* Compares the planned bytes, and the model state where it is shown. */
static bool is_same(const analysis *x, const analysis *y, bool shows_state)
{
    return has_same_requests(bp_buckets_get_info(x->buckets), bp_buckets_get_info(y->buckets)) &&
           has_same_events(bp_schedule_get_info(x->schedule), bp_schedule_get_info(y->schedule)) &&
           (!shows_state || is_same_state(&x->state, &y->state));
}

/* A pipe can be read once. Names of models are no paths. */
static bool can_read_again(const char *given)
{
    struct stat about;
    return strcmp(given, "-") != 0 && (stat(given, &about) != 0 || S_ISREG(about.st_mode) || S_ISDIR(about.st_mode));
}

/* *same: the model has the same plans and state with these options. */
static int compare(const char *path, const plan_options *changed, const analysis *a, bool *same)
{
    analysis other = {0};
    bp_model *model = NULL;
    int code = analysis_read(path, changed, &other, &model);
    if (code == EXIT_GO_ON)
        code = analysis_make_schedule(path, changed, model, &other);
    bp_model_destroy(&model);
    if (code == EXIT_GO_ON)
        *same = is_same(a, &other, changed->budget > 0 || changed->json);
    analysis_finish(&other);
    return code;
}

__attribute__((format(printf, 2, 3))) static void add_note(analysis *a, const char *format, ...)
{
    char text[256];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    cli_append(a->notes, sizeof a->notes, "%s%s", a->notes[0] != '\0' ? "; " : "", text);
}

static const char *reason(const char *option, bool is_given)
{
    static const struct {
        const char *option, *text;
    } reasons[] = {
        {"ep", ": no parameter is an expert's"},
        {"recompute", ": no parameter is fp8"},
        {"main-grad-dtype", " without --budget or --roles main_grad"},
        {"optimizer-dtype", " without --budget or --roles optimizer"},
        {"optimizer-tensors", " without --budget or --roles optimizer"},
        {"flat-alignment", " without --padding flat"},
        {"grad-comm-dtype", " without --roles grad_comm, or where it is the dtype of gradients"},
    };
    if (is_given && (strcmp(option, "dp") == 0 || strcmp(option, "ep") == 0))
        return " without --budget: the buckets have given sizes";
    for (size_t i = 0; i < sizeof reasons / sizeof *reasons; i++) {
        if (strcmp(reasons[i].option, option) == 0)
            return reasons[i].text;
    }
    return "";
}

/* " 8" for a number. */
static const char *value_text(const option_row *row, const plan_options *options)
{
    const void *field = (const char *)options + row->field;
    return row->kind == OPTION_U32   ? cli_text(" %u", *(const uint32_t *)field)
           : row->kind == OPTION_U64 ? cli_text(" %llu", (unsigned long long)*(const uint64_t *)field)
                                     : "";
}

/* Depths beyond the units of the model act as the number of units. */
static int note_depth(const char *path, const plan_options *options, const option_row *row, analysis *a)
{
    static const char *const depths[] = {"prefetch", "prefetch-backward", "grad-units", NULL};
    plan_options limited = *options;
    uint32_t *depth = (uint32_t *)(void *)((char *)&limited + row->field), given = 0;
    if (!is_named(row->name, depths) || a->units == 0 || a->units > UINT32_MAX)
        return EXIT_GO_ON;
    given = *depth;
    uint32_t max = (uint32_t)a->units - (strcmp(row->name, "grad-units") != 0);
    bool same = false;
    if (given <= max || max == 0)
        return EXIT_GO_ON;
    *depth = max;
    CLI_TRY(compare(path, &limited, a, &same));
    if (same)
        add_note(a, "--%s %u acts as %u: there %s %zu unit%s", row->name, given, max, a->units == 1 ? "is" : "are",
                 a->units, a->units == 1 ? "" : "s");
    return EXIT_GO_ON;
}

int advice_note_options(const char *path, const plan_options *options, analysis *a)
{
    if (options->overridden[0] != '\0')
        add_note(a, "%s has no effect: --%s follows it", options->overridden, options->budget_option);
    bool again = can_read_again(path);
    for (size_t i = 0; again && i < options->given.count; i++) {
        const option_row *row = options->given.rows[i];
        plan_options changed = *options;
        bool same = false;
        bool is_derived = a->bucketing != BP_BUCKETING_GIVEN && strcmp(row->name, "dp") == 0; /* shards depend on it */
        if (is_derived || !change(row, &changed))
            continue;
        CLI_TRY(compare(path, &changed, a, &same));
        if (same)
            add_note(a, "--%s%s has no effect%s", row->name, value_text(row, options),
                     reason(row->name, a->bucketing == BP_BUCKETING_GIVEN));
        else
            CLI_TRY(note_depth(path, options, row, a));
    }
    return EXIT_GO_ON;
}

/* ---- verdict ------------------------------------------------------------------------------------------------------ */

void advice_print_verdict(const analysis *a)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < a->plan_count; i++) {
        const bp_plan_info *plan = bp_plan_get_info(a->plans[i]);
        if (!plan->feasible || (i > 0 && plan->bytes != bytes))
            return;
        bytes = plan->bytes;
    }
    if (a->plan_count > 1)
        printf("\nAll policies take the same, %s: nothing to win here.\n", cli_bytes(bytes));
}

/* ---- ranks that a budget needs -------------------------------------------------------------------------------------- */

#define MAX_RANKS (1u << 20)

/* The model state with this many data-parallel ranks. */
static int state_with(const char *path, const plan_options *options, uint32_t dp, uint64_t *bytes)
{
    plan_options changed = *options;
    changed.dp = dp;
    analysis other = {0};
    bp_model *model = NULL;
    int code = analysis_read(path, &changed, &other, &model);
    bp_model_destroy(&model);
    *bytes = other.state.total;
    analysis_finish(&other);
    return code;
}

/* A whole plan with this many ranks: buckets have another padding. */
static int fits_with(const char *path, const plan_options *options, bp_policy policy, uint32_t dp, bool *fits)
{
    plan_options changed = *options;
    changed.dp = dp;
    analysis other = {0};
    bp_model *model = NULL;
    int code = analysis_read(path, &changed, &other, &model);
    if (code == EXIT_GO_ON)
        code = analysis_make_schedule(path, &changed, model, &other);
    bp_model_destroy(&model);
    if (code == EXIT_GO_ON) {
        bp_status status = analysis_plan(&other, &changed, policy, changed.alignment, &other.plans[0]);
        code = status == BP_OK ? EXIT_GO_ON : analysis_fail(path, status);
        other.plan_count = status == BP_OK;
    }
    if (code == EXIT_GO_ON)
        *fits = analysis_needed(&other, other.plans[0]) <= options->budget;
    analysis_finish(&other);
    return code;
}

/* The least multiple of --ep above --dp with which the policy fits; 0: none. Bisects the state, and then plans. */
static int find_ranks(const char *path, const plan_options *o, const analysis *a, const bp_plan *plan, uint32_t *dp)
{
    uint64_t pool = analysis_needed(a, plan) - a->state.total, state = 0, low = o->dp / o->ep, high = low;
    *dp = 0;
    if (pool > o->budget || a->padding == BP_PADDING_FSDP2_SHARD1 || a->state.outside > o->budget - pool)
        return EXIT_GO_ON;
    do {
        low = high;
        high *= 2;
        if (high * o->ep > MAX_RANKS)
            return EXIT_GO_ON;
        CLI_TRY(state_with(path, o, (uint32_t)(high * o->ep), &state));
    } while (state > o->budget - pool);
    while (high - low > 1) {
        uint64_t middle = low + (high - low) / 2;
        CLI_TRY(state_with(path, o, (uint32_t)(middle * o->ep), &state));
        *(state > o->budget - pool ? &low : &high) = middle;
    }
    bool fits = false;
    for (uint64_t step = 1; !fits && high * o->ep <= MAX_RANKS; step *= 2) {
        CLI_TRY(fits_with(path, o, bp_plan_get_info(plan)->policy, (uint32_t)(high * o->ep), &fits));
        *dp = fits ? (uint32_t)(high * o->ep) : 0;
        high += step;
    }
    return EXIT_GO_ON;
}

int advice_print_ranks(const analysis *a, const plan_options *o)
{
    uint32_t ranks[MAX_POLICIES] = {0};
    bool misses[MAX_POLICIES] = {false}, is_one = o->model_count == 1 && can_read_again(o->models[0]);
    for (size_t i = 0; is_one && i < a->plan_count; i++) {
        misses[i] = bp_plan_get_info(a->plans[i])->feasible && analysis_needed(a, a->plans[i]) > o->budget;
        if (misses[i])
            CLI_TRY(find_ranks(o->models[0], o, a, a->plans[i], &ranks[i]));
    }
    for (size_t i = 0; i < a->plan_count; i++) { /* a line for each number of ranks */
        char names[80] = "";
        uint64_t min = UINT64_MAX;
        for (size_t k = i; misses[i] && k < a->plan_count; k++) {
            uint64_t kept = analysis_needed(a, a->plans[k]) - a->state.total + a->state.outside + a->state.unsharded;
            if (!misses[k] || ranks[k] != ranks[i])
                continue;
            cli_append(names, sizeof names, "%s%s", k > i ? ", " : "",
                       bp_policy_name(bp_plan_get_info(a->plans[k])->policy));
            min = kept < min ? kept : min;
            misses[k] = k == i;
        }
        if (misses[i] && ranks[i] == 0 && a->padding == BP_PADDING_FSDP2_SHARD1)
            continue; /* not searched */
        if (misses[i] && ranks[i] > 0)
            printf("Fits from --dp %u: %s.\n", ranks[i], names);
        else if (misses[i])
            printf("Fits with no --dp: %s; the pool and %s take %s.\n", names,
                   a->state.unsharded > 0 ? "unsharded parameters" : "parameters outside units", cli_bytes(min));
    }
    return EXIT_GO_ON;
}
