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
static size_t count_witness_units(const bp_plan *plan, size_t role)
{
    const char *unit = "";
    size_t units = 0;
    for (size_t i = 0; i < bp_plan_witness_count(plan, role); i++) {
        bp_plan_witness w = {.size = sizeof w};
        if (bp_plan_witness_get(plan, role, i, &w) != BP_OK)
            break;
        units += units == 0 || strcmp(unit, w.unit) != 0;
        unit = w.unit;
    }
    return units;
}

/* The requests live at the bound, unit by unit. */
static void print_witness(const bp_plan *plan, size_t role)
{
    size_t count = bp_plan_witness_count(plan, role);
    const char *unit = NULL;
    uint64_t sum = 0;
    for (size_t i = 0; i <= count; i++) {
        bp_plan_witness w = {.size = sizeof w};
        bool ends = i == count || bp_plan_witness_get(plan, role, i, &w) != BP_OK;
        if (unit != NULL && (ends || strcmp(unit, w.unit) != 0)) {
            printf("    %s holds %s\n", unit, cli_bytes(sum));
            sum = 0;
        }
        if (ends)
            break;
        unit = w.unit;
        sum += w.bytes;
    }
}

static void explain_bound(const analysis *a, const bp_plan *plan, size_t index)
{
    bp_plan_role role = {.size = sizeof role};
    char text[STEP_TEXT_CHARS], roles[ROLES_TEXT_CHARS];
    if (bp_plan_role_get(plan, index, &role) != BP_OK)
        return;
    size_t units = count_witness_units(plan, index);
    printf("%s: no plan takes less than %s (%llu bytes). That is what %zu unit%s hold%s at once in step %u (%s):\n",
           names_roles(role.roles, roles), cli_bytes(role.lower_bound_bytes),
           (unsigned long long)role.lower_bound_bytes, units, plural(units), units == 1 ? "s" : "",
           role.lower_bound_step, analysis_step_text(a, role.lower_bound_step, text));
    print_witness(plan, index);
}

static void explain_buffers(const bp_plan *plan, size_t index, const bp_plan_role *role, const char *policy)
{
    for (size_t i = 0; i < role->buffers; i++) {
        bp_plan_buffer b = {.size = sizeof b};
        if (bp_plan_buffer_get(plan, index, i, &b) != BP_OK || b.kind != BP_BUFFER_POOLED)
            continue;
        const char *bucket = cli_bucket(b.set_by_bucket, b.set_by_ordinal);
        printf("    %u x %s of %s for the %s%s bucket of a unit: ", b.copies, cli_bytes(b.bytes),
               bp_dtype_name(b.dtype),
               b.rank == 0   ? "largest"
               : b.rank == 1 ? "second largest"
                             : "next smaller",
               strcmp(policy, "fixed") == 0 ? " (by position)" : "");
        if (b.tenants > 1)
            printf("%s/%s sets the size, %u buckets share it.\n", b.set_by_unit, bucket, b.tenants);
        else
            printf("only %s/%s uses it.\n", b.set_by_unit, bucket);
    }
}

/* Where a plan speaks of the roles that another's entry is about, SIZE_MAX: nowhere. */
static size_t find_role(const bp_plan *plan, uint32_t roles)
{
    for (size_t i = 0; i < bp_plan_role_count(plan); i++) {
        bp_plan_role role = {.size = sizeof role};
        if (bp_plan_role_get(plan, i, &role) == BP_OK && (role.roles & roles) != 0)
            return i;
    }
    return SIZE_MAX;
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
static void explain_policy(const bp_plan *plan, uint32_t roles)
{
    bp_plan_role role = {.size = sizeof role};
    bp_plan_summary summary = {.size = sizeof summary};
    char text[ROLES_TEXT_CHARS];
    size_t index = find_role(plan, roles);
    if (bp_plan_role_get(plan, index, &role) != BP_OK || bp_plan_summary_get(plan, &summary) != BP_OK)
        return;
    const char *policy = bp_policy_name(summary.policy);
    if (role.roles != roles && !(roles & BP_ROLE_BIT(role.role))) {
        printf("  %s has it in the slab of %s.\n", policy, bp_role_name((bp_role)role.role));
        return;
    }
    bool joint = role.roles != roles;
    printf("  %s takes %s%s%s, %.2f x %s bound", policy, cli_bytes(role.bytes), joint ? " for " : "",
           joint ? names_roles(role.roles, text) : "",
           role.lower_bound_bytes > 0 ? (double)role.bytes / (double)role.lower_bound_bytes : 1.0,
           joint ? "their joint" : "the");
    if (BP_ROLES_STATE & BP_ROLE_BIT(role.role)) {
        puts(": it is live all the time, so every shard keeps memory of its own.");
        return;
    }
    switch (summary.policy) {
    case BP_POLICY_DYNAMIC:
        puts(": memory comes and goes with each unit, so nothing is wasted, but addresses change, which rules out "
             "captured "
             "graphs and registered buffers.");
        break;
    case BP_POLICY_FIXED:
        printf(": %s are shared by the units of the most frequent kind in %u set%s.\n", cli_bytes(role.pool_bytes),
               role.copies, plural(role.copies));
        explain_buffers(plan, index, &role, policy);
        if (role.persistent_bytes > 0)
            printf("    All other units differ from that kind and keep memory of their own: %s that nobody else can "
                   "use.\n",
                   cli_bytes(role.persistent_bytes));
        if (role.dynamic_bytes > 0)
            printf("    All other units differ from that kind and are allocated on demand: %s at most, without fixed "
                   "addresses.\n",
                   cli_bytes(role.dynamic_bytes));
        break;
    case BP_POLICY_MAX:
        if (role.copies == 1)
            puts(": its one set must hold the largest unit of every kind at once.");
        else
            printf(": each of the %u sets must hold the largest unit of every kind at once.\n", role.copies);
        explain_buffers(plan, index, &role, policy);
        if (role.bytes > role.lower_bound_bytes)
            printf("    %s more than the bound, because units that are live together are rarely all as large as the "
                   "largest.\n",
                   cli_bytes(role.bytes - role.lower_bound_bytes));
        break;
    case BP_POLICY_SCHEDULED: explain_placement(&role); break;
    }
    if (!summary.feasible)
        printf("    It is infeasible: %s.\n", summary.infeasible_because);
}

/* Whether two roles of a plan have the same sums and the same buffers, set by the same buckets. */
static bool same_role(const bp_plan *plan, size_t one, size_t other)
{
    bp_plan_role x = {.size = sizeof x}, y = {.size = sizeof y};
    if (bp_plan_role_get(plan, one, &x) != BP_OK || bp_plan_role_get(plan, other, &y) != BP_OK || x.bytes != y.bytes ||
        x.lower_bound_bytes != y.lower_bound_bytes || x.live_units != y.live_units || x.buffers != y.buffers)
        return false;
    for (size_t i = 0; i < x.buffers; i++) {
        bp_plan_buffer a = {.size = sizeof a}, b = {.size = sizeof b};
        if (bp_plan_buffer_get(plan, one, i, &a) != BP_OK || bp_plan_buffer_get(plan, other, i, &b) != BP_OK ||
            a.bytes != b.bytes || a.copies != b.copies || a.tenants != b.tenants || a.dtype != b.dtype ||
            a.set_by_ordinal != b.set_by_ordinal || strcmp(a.set_by_unit, b.set_by_unit) != 0)
            return false;
    }
    return true;
}

/* Whether a role repeats the one before it under every policy that has buffers: gradients of the parameters' dtype do. */
static bool same_as_before(const analysis *a, size_t index)
{
    bool any_buffers = false;
    bp_plan_role before = {.size = sizeof before}, role = {.size = sizeof role};
    if (index == 0 || bp_plan_role_get(a->plans[0], index - 1, &before) != BP_OK ||
        bp_plan_role_get(a->plans[0], index, &role) != BP_OK)
        return false;
    for (size_t p = 0; p < a->plan_count; p++) {
        bp_plan_role entry = {.size = sizeof entry};
        size_t one = find_role(a->plans[p], before.roles), other = find_role(a->plans[p], role.roles);
        if (one == other) /* a slab of both */
            continue;
        if (!same_role(a->plans[p], one, other) || bp_plan_role_get(a->plans[p], other, &entry) != BP_OK)
            return false;
        any_buffers = any_buffers || entry.buffers > 0;
    }
    return any_buffers;
}

static void explain_repetition(const analysis *a, size_t index)
{
    bp_plan_role before = {.size = sizeof before}, role = {.size = sizeof role};
    char text[STEP_TEXT_CHARS];
    if (bp_plan_role_get(a->plans[0], index - 1, &before) != BP_OK ||
        bp_plan_role_get(a->plans[0], index, &role) != BP_OK)
        return;
    printf("%s: as %s, buffer for buffer: the same buckets set the same sizes. The bound of %s is first reached in "
           "step %u (%s).\n",
           bp_role_name((bp_role)role.role), bp_role_name((bp_role)before.role), cli_bytes(role.lower_bound_bytes),
           role.lower_bound_step, analysis_step_text(a, role.lower_bound_step, text));
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
    for (size_t role = 0; role < bp_plan_role_count(a->plans[0]); role++) {
        putchar('\n');
        if (same_as_before(a, role)) {
            explain_repetition(a, role);
            continue;
        }
        bp_plan_role entry = {.size = sizeof entry};
        explain_bound(a, a->plans[0], role);
        for (size_t p = 0; p < a->plan_count && bp_plan_role_get(a->plans[0], role, &entry) == BP_OK; p++)
            explain_policy(a->plans[p], entry.roles);
    }
}
