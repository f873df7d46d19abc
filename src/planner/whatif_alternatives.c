/* What plans of other schedules take. */
#include <stdlib.h>

#include "core/fail.h"
#include "planner/bound.h"
#include "planner/whatif.h"

#define DEFAULT_WORK (UINT64_C(1) << 24)
#define ALL_ROLES (BP_ROLE_BIT(BP_ROLE_COUNT) - 1)
#define GRADIENTS (BP_ROLE_BIT(BP_ROLE_GRAD) | BP_ROLE_BIT(BP_ROLE_GRAD_COMM))
#define PARAMETERS (BP_ROLE_BIT(BP_ROLE_PARAM) | BP_ROLE_BIT(BP_ROLE_PARAM_TRANSPOSE))

struct bp_alternatives {
    bp_alternative *items;
    size_t count, capacity;
};

typedef struct survey {
    const bp_buckets *buckets;
    const bp_schedule_config *schedule;
    const bp_plan_config *plan;
    const bp_alternatives_config *config;
    bp_alternative present; /* what tells the choices apart, no sums */
    bp_alternatives *made;
} survey;

bp_status bp_alternatives_config_init(bp_alternatives_config *config, size_t size)
{
    if (config == NULL || size < sizeof *config)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_alternatives_config_init: size %zu, expected at least %zu", size,
                       sizeof *config);
    *config = (bp_alternatives_config){.size = sizeof *config, .most_prefetch = 4, .work = DEFAULT_WORK};
    return BP_OK;
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
    bp_plan_sums scheduled, max;
    bp_bound live;
    if (choice->is_present && s->config->present != NULL)
        BP_TRY(bp_whatif_sums(s->config->present, &scheduled));
    else
        BP_TRY(bp_whatif_plan(s->buckets, schedule, plan, BP_POLICY_SCHEDULED,
                              choice->is_present ? plan->work : s->config->work, &scheduled));
    BP_TRY(bp_whatif_plan(s->buckets, schedule, plan, BP_POLICY_MAX, 0, &max));
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
    choice.size = sizeof choice;
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
    uint32_t most = s->config->most_prefetch;
    if (s->present.prefetch != s->present.prefetch_backward || s->present.prefetch > most)
        BP_TRY(add_choice(s, s->present));
    for (uint32_t prefetch = 0; prefetch <= most; prefetch++) {
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
    if (buckets == NULL || schedule == NULL || schedule->size < sizeof *schedule || plan == NULL ||
        plan->size < sizeof *plan || config == NULL || config->size < sizeof *config || alternatives == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT,
                       "bp_alternatives_create: needs buckets and initialised configurations of a schedule, a plan and "
                       "the alternatives");
    if (config->most_prefetch > BP_MOST_WHATIF_PREFETCH)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "most_prefetch is %u, at most %u are compared", config->most_prefetch,
                       BP_MOST_WHATIF_PREFETCH);
    void *memory;
    BP_TRY(bp_new_array(1, sizeof(bp_alternatives), &memory));
    survey s = {buckets, schedule, plan, config, {.joint = plan->joint != 0}, memory};
    s.present.prefetch = s.present.prefetch_backward = schedule->prefetch;
    if (schedule->prefetch_backward != BP_PREFETCH_SAME)
        s.present.prefetch_backward = schedule->prefetch_backward;
    s.present.streams = schedule->streams;
    bp_status status = add_all(&s);
    if (status != BP_OK) {
        bp_alternatives_destroy(&s.made);
        return status;
    }
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

size_t bp_alternatives_count(const bp_alternatives *alternatives)
{
    return alternatives->count;
}

bp_status bp_alternatives_get(const bp_alternatives *alternatives, size_t index, bp_alternative *alternative)
{
    if (index >= alternatives->count || alternative->size < sizeof *alternative)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "alternative %zu of %zu, size %zu of at least %zu", index,
                       alternatives->count, alternative->size, sizeof *alternative);
    *alternative = alternatives->items[index];
    return BP_OK;
}
