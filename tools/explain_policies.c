/* Which unit sets which buffer, and why. */
#include <stdio.h>
#include <string.h>

#include "cli.h"
#include "explain_parts.h"
#include "names.h"

static const char *plural(size_t count)
{
    return count == 1 ? "" : "s";
}

/* Units with requests that are live at the bound: requests come unit by unit. */
static size_t count_witness_units(const bp_plan_info *plan, const bp_plan_role *role)
{
    size_t units = 0;
    for (size_t i = 0; i < role->witness_count; i++) {
        const char *unit = plan->requests[role->witnesses[i]].unit;
        units += i == 0 || strcmp(unit, plan->requests[role->witnesses[i - 1]].unit) != 0;
    }
    return units;
}

/* The requests live at the bound, unit by unit. */
static void print_witness(const bp_plan_info *plan, const bp_plan_role *role)
{
    const uint64_t mask = plan->alignment - 1;
    uint64_t sum = 0;
    for (size_t i = 0; i < role->witness_count; i++) {
        const bp_plan_request *r = &plan->requests[role->witnesses[i]];
        sum += (r->bytes + mask) & ~mask;
        if (i + 1 < role->witness_count && strcmp(r->unit, plan->requests[role->witnesses[i + 1]].unit) == 0)
            continue;
        printf("    %s holds %s\n", r->unit, cli_bytes(sum));
        sum = 0;
    }
}

static void explain_bound(const analysis *a, const bp_plan_info *plan, const bp_plan_role *role)
{
    char text[STEP_TEXT_CHARS], roles[ROLES_TEXT_CHARS];
    size_t units = count_witness_units(plan, role);
    printf("%s: no plan takes less than %s (%llu bytes). That is what %zu unit%s hold%s at once in step %u (%s):\n",
           names_roles(role->roles, roles), cli_bytes(role->lower_bound_bytes),
           (unsigned long long)role->lower_bound_bytes, units, plural(units), units == 1 ? "s" : "",
           role->lower_bound_step, analysis_step_text(a, role->lower_bound_step, text));
    print_witness(plan, role);
}

static void explain_buffers(const bp_plan_info *plan, const bp_plan_role *role)
{
    for (size_t i = 0; i < role->buffer_count; i++) {
        const bp_plan_buffer *b = &role->buffers[i];
        const bp_plan_request *largest = &plan->requests[b->set_by];
        if (b->kind != BP_BUFFER_POOLED)
            continue;
        const char *bucket = cli_bucket(largest->bucket, largest->ordinal);
        printf("    %u x %s of %s for the %s%s bucket of a unit: ", b->copies, cli_bytes(b->bytes),
               bp_dtype_name(b->dtype),
               b->rank == 0   ? "largest"
               : b->rank == 1 ? "second largest"
                              : "next smaller",
               plan->policy == BP_POLICY_FIXED ? " (by position)" : "");
        if (b->users > 1)
            printf("%s/%s sets the size, %u buckets share it.\n", largest->unit, bucket, b->users);
        else
            printf("only %s/%s uses it.\n", largest->unit, bucket);
    }
}

/* The plan's entry for roles that another plan's entry is about; NULL: there is none. */
static const bp_plan_role *find_role(const bp_plan_info *plan, uint32_t roles)
{
    for (size_t i = 0; i < plan->role_count; i++) {
        if ((plan->roles[i].roles & roles) != 0)
            return &plan->roles[i];
    }
    return NULL;
}

/* Whether the offsets of a schedule-aware plan could do with less. */
static void explain_placement(const bp_plan_role *role)
{
    printf(": each bucket has one offset, which others use while it is not live.\n");
    if (role->optimal && role->bytes > role->lower_bound_bytes)
        puts("    A search has proven that no plan takes less; the bound cannot be reached.");
    else if (role->optimal)
        puts("    No plan takes less.");
    else
        printf("    Whether less is possible is not proven: at least %s are needed.\n", cli_bytes(role->proven_bytes));
}

/* Why a policy takes what it takes for `roles`, which may share a slab with others. */
static void explain_policy(const bp_plan_info *plan, uint32_t roles)
{
    char text[ROLES_TEXT_CHARS];
    const bp_plan_role *role = find_role(plan, roles);
    if (role == NULL)
        return;
    const char *policy = bp_policy_name(plan->policy);
    if (role->roles != roles && !(roles & BP_ROLE_BIT(role->role))) {
        printf("  %s has it in the slab of %s.\n", policy, bp_role_name((bp_role)role->role));
        return;
    }
    bool joint = role->roles != roles;
    printf("  %s takes %s%s%s, %.2f x %s bound", policy, cli_bytes(role->bytes), joint ? " for " : "",
           joint ? names_roles(role->roles, text) : "",
           role->lower_bound_bytes > 0 ? (double)role->bytes / (double)role->lower_bound_bytes : 1.0,
           joint ? "their joint" : "the");
    if (BP_ROLES_STATE & BP_ROLE_BIT(role->role)) {
        puts(": it is live all the time, so every shard keeps memory of its own.");
        return;
    }
    switch (plan->policy) {
    case BP_POLICY_DYNAMIC:
        puts(": memory comes and goes with each unit, so nothing is wasted, but addresses change, which rules out "
             "captured "
             "graphs and registered buffers.");
        break;
    case BP_POLICY_FIXED:
        printf(": %s are shared by the units of the most frequent kind in %u set%s.\n", cli_bytes(role->pool_bytes),
               role->copies, plural(role->copies));
        explain_buffers(plan, role);
        if (role->persistent_bytes > 0)
            printf("    All other units differ from that kind and keep memory of their own: %s that nobody else can "
                   "use.\n",
                   cli_bytes(role->persistent_bytes));
        if (role->dynamic_bytes > 0)
            printf("    All other units differ from that kind and are allocated on demand: %s at most, without fixed "
                   "addresses.\n",
                   cli_bytes(role->dynamic_bytes));
        break;
    case BP_POLICY_MAX:
        if (role->copies == 1)
            puts(": its one set must hold the largest unit of every kind at once.");
        else
            printf(": each of the %u sets must hold the largest unit of every kind at once.\n", role->copies);
        explain_buffers(plan, role);
        if (role->bytes > role->lower_bound_bytes)
            printf("    %s more than the bound, because units that are live together are rarely all as large as the "
                   "largest.\n",
                   cli_bytes(role->bytes - role->lower_bound_bytes));
        break;
    case BP_POLICY_SCHEDULED: explain_placement(role); break;
    }
    if (!plan->feasible)
        printf("    It is infeasible: %s.\n", plan->infeasible_because);
}

/* Whether two roles of a plan have the same sums and the same buffers, set by the same buckets. */
static bool same_role(const bp_plan_info *plan, const bp_plan_role *x, const bp_plan_role *y)
{
    if (x->bytes != y->bytes || x->lower_bound_bytes != y->lower_bound_bytes || x->live_units != y->live_units ||
        x->buffer_count != y->buffer_count)
        return false;
    for (size_t i = 0; i < x->buffer_count; i++) {
        const bp_plan_buffer *a = &x->buffers[i], *b = &y->buffers[i];
        const bp_plan_request *one = &plan->requests[a->set_by], *other = &plan->requests[b->set_by];
        if (a->bytes != b->bytes || a->copies != b->copies || a->users != b->users || a->dtype != b->dtype ||
            one->ordinal != other->ordinal || strcmp(one->unit, other->unit) != 0)
            return false;
    }
    return true;
}

/* Whether a role repeats the one before it under every policy that has buffers: gradients of the parameters' dtype do. */
static bool same_as_before(const analysis *a, size_t index)
{
    bool any_buffers = false;
    if (index == 0)
        return false;
    const bp_plan_role *roles = bp_plan_get_info(a->plans[0])->roles;
    for (size_t p = 0; p < a->plan_count; p++) {
        const bp_plan_info *plan = bp_plan_get_info(a->plans[p]);
        const bp_plan_role *one = find_role(plan, roles[index - 1].roles), *other = find_role(plan, roles[index].roles);
        if (one == other) /* a slab of both */
            continue;
        if (one == NULL || other == NULL || !same_role(plan, one, other))
            return false;
        any_buffers = any_buffers || other->buffer_count > 0;
    }
    return any_buffers;
}

static void explain_repetition(const analysis *a, const bp_plan_role *before, const bp_plan_role *role)
{
    char text[STEP_TEXT_CHARS];
    printf("%s: as %s, buffer for buffer: the same buckets set the same sizes. The bound of %s is first reached in "
           "step %u (%s).\n",
           bp_role_name((bp_role)role->role), bp_role_name((bp_role)before->role), cli_bytes(role->lower_bound_bytes),
           role->lower_bound_step, analysis_step_text(a, role->lower_bound_step, text));
}

void explain_policies(const analysis *a, const plan_options *options)
{
    printf("%s has %s parameters in %zu unit%s; %s of parameters lie outside units and stay gathered.\n", a->name,
           cli_count(a->parameters), a->units, plural(a->units), cli_bytes(a->state.outside));
    if (a->notes[0] != '\0')
        printf("%s: %s.\n", a->name, a->notes);
    char schedule[SCHEDULE_TEXT_CHARS];
    printf("Planned for dp %u, ep %u, tp %u, %s", options->dp, options->ep, options->tp,
           analysis_schedule_text(a, options, schedule));
    if (a->recorded == 0)
        printf(": an iteration has %zu steps of compute", bp_schedule_get_info(a->schedule)->step_count);
    puts(".");
    const bp_plan_info *first = bp_plan_get_info(a->plans[0]);
    for (size_t i = 0; i < first->role_count; i++) {
        putchar('\n');
        if (same_as_before(a, i)) {
            explain_repetition(a, &first->roles[i - 1], &first->roles[i]);
            continue;
        }
        explain_bound(a, first, &first->roles[i]);
        for (size_t p = 0; p < a->plan_count; p++)
            explain_policy(bp_plan_get_info(a->plans[p]), first->roles[i].roles);
    }
}
