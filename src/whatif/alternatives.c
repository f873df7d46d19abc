/* What-if: how many bytes plans of other schedules need. */
#include <bucketpool/whatif.h>

#include <stdlib.h>

#include "core/arith.h"
#include "core/fail.h"
#include "core/structs.h"
#include "plan/bound.h"
#include "plan/plan.h"

#define DEFAULT_WORK (UINT64_C(1) << 24)
#define ALL_ROLES (BP_ROLE_BIT(BP_ROLE_COUNT) - 1)
#define GRADIENTS (BP_ROLE_BIT(BP_ROLE_GRAD) | BP_ROLE_BIT(BP_ROLE_GRAD_COMM))
#define PARAMETERS (BP_ROLE_BIT(BP_ROLE_PARAM) | BP_ROLE_BIT(BP_ROLE_PARAM_TRANSPOSE))

struct bp_alternatives {
    bp_alternative *items;
    size_t count, capacity;
    bp_alternatives_info info;
};

typedef struct survey {
    const bp_buckets *buckets;
    const bp_schedule_config *schedule;
    const bp_plan_config *plan;
    const bp_alternatives_config *config;
    bp_alternative present; /* what tells the choices apart, no sums */
    bp_alternatives *made;
} survey;

static const bp_alternatives_config alternatives_defaults = {
    .size = sizeof alternatives_defaults, .max_prefetch = 4, .work = DEFAULT_WORK};

bp_status bp_alternatives_config_init(bp_alternatives_config *config, size_t size)
{
    return bp_struct_init("bp_alternatives_config_init", config, size, &alternatives_defaults,
                          sizeof alternatives_defaults);
}

/* What a plan needs. */
typedef struct plan_bytes {
    uint64_t bytes, lower_bound_bytes, proven_bytes;
    bool optimal, feasible;
} plan_bytes;

static bp_status read_sums(const bp_plan *plan, plan_bytes *sums)
{
    const bp_plan_info *info = bp_plan_get_info(plan);
    *sums = (plan_bytes){.bytes = info->bytes,
                         .lower_bound_bytes = info->lower_bound_bytes,
                         .optimal = info->optimal,
                         .feasible = info->feasible};
    for (size_t i = 0; i < info->role_count; i++) {
        if (!bp_add_u64(sums->proven_bytes, info->roles[i].proven_bytes, &sums->proven_bytes))
            return bp_fail(BP_ERR_OVERFLOW, "the proven bytes of the roles of model \"%s\" do not fit 64 bits",
                           info->model);
    }
    return BP_OK;
}

static bp_status plan_sums(const bp_buckets *buckets, const bp_schedule *schedule, const bp_plan_config *config,
                           bp_policy policy, uint64_t work, plan_bytes *sums)
{
    bp_plan_config changed = *config;
    bp_plan *plan;
    changed.policy = policy;
    changed.work = work;
    BP_TRY(bp_plan_create(buckets, schedule, &changed, &plan));
    bp_status status = read_sums(plan, sums);
    bp_plan_destroy(&plan);
    return status;
}

/* ---- one schedule --------------------------------------------------------------------------------------------------- */

static bp_status make_schedule(const survey *s, const bp_alternative *choice, bp_schedule **schedule)
{
    bp_schedule_config config = *s->schedule;
    config.prefetch = choice->prefetch;
    config.prefetch_backward = choice->prefetch_backward;
    config.streams = choice->streams;
    return bp_schedule_create_training(s->buckets, &config, schedule);
}

static bp_status add_sums(const survey *s, const bp_schedule *schedule, const bp_plan_config *plan,
                          bp_alternative *choice)
{
    plan_bytes scheduled, max;
    bp_bound live;
    if (choice->is_present && s->config->present != NULL)
        BP_TRY(read_sums(s->config->present, &scheduled));
    else
        BP_TRY(plan_sums(s->buckets, schedule, plan, BP_POLICY_SCHEDULED,
                         choice->is_present ? plan->work : s->config->work, &scheduled));
    BP_TRY(plan_sums(s->buckets, schedule, plan, BP_POLICY_MAX, 0, &max));
    BP_TRY(bp_bound_of(s->buckets, schedule, ALL_ROLES, plan->alignment, NULL, NULL, &live));
    choice->optimal = scheduled.optimal;
    choice->bytes = scheduled.bytes;
    choice->lower_bound_bytes = scheduled.lower_bound_bytes;
    choice->proven_bytes = scheduled.proven_bytes;
    choice->max_bytes = max.feasible ? max.bytes : 0;
    choice->live_bytes = live.bytes;
    return BP_OK;
}

static bool is_present(const survey *s, const bp_alternative *choice)
{
    return choice->prefetch == s->present.prefetch && choice->prefetch_backward == s->present.prefetch_backward &&
           choice->streams == s->present.streams && choice->joint == s->present.joint;
}

static bp_status add_choice(survey *s, bp_alternative choice)
{
    bp_plan_config plan = *s->plan;
    bp_schedule *schedule;
    choice.is_present = is_present(s, &choice);
    plan.joint = choice.joint;
    BP_TRY(bp_grow_array((void **)&s->made->items, &s->made->capacity, s->made->count, sizeof *s->made->items));
    BP_TRY(make_schedule(s, &choice, &schedule));
    bp_status status = add_sums(s, schedule, &plan, &choice);
    bp_schedule_destroy(&schedule);
    if (status == BP_OK)
        s->made->items[s->made->count++] = choice;
    return status;
}

/* ---- all of them ---------------------------------------------------------------------------------------------------- */

static uint32_t roles_of(const bp_buckets *buckets)
{
    uint32_t roles = 0;
    for (size_t g = 0; g < buckets->group_count; g++)
        roles |= BP_ROLE_BIT(buckets->groups[g].role);
    return roles;
}

static bp_status add_all(survey *s)
{
    uint32_t roles = roles_of(s->buckets), shared = roles & ~BP_ROLES_STATE;
    bool streams_matter =
        (roles & GRADIENTS) != 0 && (roles & PARAMETERS) != 0 && s->schedule->passes != BP_PASSES_EVAL;
    bool joint_matters = (shared & (shared - 1)) != 0;
    uint32_t max = s->config->max_prefetch;
    if (s->present.prefetch != s->present.prefetch_backward || s->present.prefetch > max)
        BP_TRY(add_choice(s, s->present));
    for (uint32_t prefetch = 0; prefetch <= max; prefetch++) {
        for (int streams = BP_STREAMS_SEPARATE; streams <= BP_STREAMS_UNIFIED; streams++) {
            for (uint32_t joint = 0; joint <= 1; joint++) {
                if ((!streams_matter && (bp_streams)streams != s->present.streams) ||
                    (!joint_matters && joint != s->present.joint))
                    continue;
                BP_TRY(add_choice(s, (bp_alternative){.prefetch = prefetch,
                                                      .prefetch_backward = prefetch,
                                                      .streams = (bp_streams)streams,
                                                      .joint = joint}));
            }
        }
    }
    return BP_OK;
}

bp_status bp_alternatives_create(const bp_buckets *buckets, const bp_schedule_config *schedule,
                                 const bp_plan_config *plan, const bp_alternatives_config *config,
                                 bp_alternatives **alternatives)
{
    static const char function[] = "bp_alternatives_create";
    bp_schedule_config schedule_config;
    bp_plan_config plan_config;
    bp_alternatives_config own_config = alternatives_defaults;
    if (buckets == NULL || alternatives == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: needs buckets and an output", function);
    BP_TRY(bp_schedule_config_init(&schedule_config, sizeof schedule_config));
    BP_TRY(bp_struct_read(function, schedule, false, &schedule_config, sizeof schedule_config));
    BP_TRY(bp_plan_config_init(&plan_config, sizeof plan_config));
    BP_TRY(bp_struct_read(function, plan, false, &plan_config, sizeof plan_config));
    BP_TRY(bp_struct_read(function, config, false, &own_config, sizeof own_config));
    if (own_config.max_prefetch > BP_MAX_WHATIF_PREFETCH)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "max_prefetch is %u, at most %u are compared", own_config.max_prefetch,
                       BP_MAX_WHATIF_PREFETCH);
    void *memory;
    BP_TRY(bp_new_array(1, sizeof(bp_alternatives), &memory));
    survey s = {buckets, &schedule_config, &plan_config, &own_config, {.joint = plan_config.joint != 0}, memory};
    s.present.prefetch = s.present.prefetch_backward = schedule_config.prefetch;
    if (schedule_config.prefetch_backward != BP_PREFETCH_SAME)
        s.present.prefetch_backward = schedule_config.prefetch_backward;
    s.present.streams = schedule_config.streams;
    bp_status status = add_all(&s);
    if (status != BP_OK) {
        bp_alternatives_destroy(&s.made);
        return status;
    }
    s.made->info = (bp_alternatives_info){s.made->count, s.made->items};
    *alternatives = s.made;
    return BP_OK;
}

void bp_alternatives_destroy(bp_alternatives **alternatives)
{
    if (alternatives == NULL || *alternatives == NULL)
        return;
    free((*alternatives)->items);
    free(*alternatives);
    *alternatives = NULL;
}

const bp_alternatives_info *bp_alternatives_get_info(const bp_alternatives *alternatives)
{
    return alternatives != NULL ? &alternatives->info : NULL;
}
