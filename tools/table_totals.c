#include "table_totals.h"

#include <stdio.h>

#include "cli.h"
#include "sheet.h"

/* The columns: one for each role, and one for the roles that share a slab, where a plan is joint. */
typedef struct columns {
    uint32_t roles[BP_ROLE_COUNT];
    size_t role_count;
    uint32_t joint; /* roles that share a slab, 0: none do */
} columns;

const char *table_ratio_text(uint64_t bytes, uint64_t bound, char text[16])
{
    snprintf(text, 16, "%.2f", bound > 0 ? (double)bytes / (double)bound : 1.0);
    return text;
}

static bool is_joint(const bp_plan_role *role)
{
    return (role->roles & (role->roles - 1)) != 0;
}

static columns find_columns(const analysis *a)
{
    columns c = {.role_count = 0};
    uint32_t used = 0;
    for (size_t p = 0; p < a->plan_count; p++) {
        const bp_plan_info *plan = bp_plan_get_info(a->plans[p]);
        for (size_t i = 0; i < plan->role_count; i++) {
            const bp_plan_role *role = &plan->roles[i];
            c.joint |= is_joint(role) ? role->roles : 0;
            used |= is_joint(role) ? 0 : role->roles;
        }
    }
    for (uint32_t role = 0; role < BP_ROLE_COUNT; role++) {
        if (used & BP_ROLE_BIT(role))
            c.roles[c.role_count++] = role;
    }
    return c;
}

static void add_columns(sheet *s, const columns *c, bool budget)
{
    sheet_add_column(s, "POLICY", false);
    for (size_t i = 0; i < c->role_count; i++)
        sheet_add_column(s, bp_role_name((bp_role)c->roles[i]), true);
    if (c->joint != 0)
        sheet_add_column(s, "joint", true);
    static const char *const titles[] = {"TOTAL", "x BOUND", "PROVEN", "ADDRESSES", "WITH STATE", "FITS"};
    for (size_t i = 0; i < (budget ? 6 : 4); i++)
        sheet_add_column(s, titles[i], i < 2 || i == 4);
}

/* What the plan takes, or could take at least, for a column's roles; "" where it has no entry of its own for them. */
static const char *bytes_text(const bp_plan_info *plan, uint32_t roles, bool bound)
{
    for (size_t i = 0; i < plan->role_count; i++) {
        if (plan->roles[i].roles == roles)
            return cli_bytes(bound ? plan->roles[i].lower_bound_bytes : plan->roles[i].bytes);
    }
    return "";
}

/* Returns the column after those of the roles. */
static size_t set_roles(sheet *s, const columns *c, const bp_plan_info *plan, bool bound)
{
    size_t column = 1;
    for (size_t i = 0; i < c->role_count; i++)
        sheet_set_cell(s, column++, bytes_text(plan, BP_ROLE_BIT(c->roles[i]), bound));
    if (c->joint != 0)
        sheet_set_cell(s, column++, bytes_text(plan, c->joint, bound));
    return column;
}

static const char *addresses_text(const bp_plan_info *s)
{
    return !s->feasible ? "infeasible" : s->stable ? "one each" : "change";
}

/* Whether fewer bytes are known to be impossible. That more are needed than it takes is not said of a policy that does not look. */
static const char *proven_text(const bp_plan_info *s)
{
    return !s->feasible ? "-" : s->optimal ? "optimal" : s->policy == BP_POLICY_SCHEDULED ? "not proven" : "";
}

static void add_policy(sheet *s, const columns *c, const analysis *a, const plan_options *o, const bp_plan *of)
{
    const bp_plan_info *plan = bp_plan_get_info(of);
    char ratio[16];
    sheet_add_line(s);
    sheet_set_cell(s, 0, bp_policy_name(plan->policy));
    size_t column = set_roles(s, c, plan, false);
    sheet_set_cell(s, column++, cli_bytes(plan->bytes));
    sheet_set_cell(s, column++, plan->feasible ? table_ratio_text(plan->bytes, plan->lower_bound_bytes, ratio) : "-");
    sheet_set_cell(s, column++, proven_text(plan));
    sheet_set_cell(s, column++, addresses_text(plan));
    if (!plan->feasible)
        sheet_color_line(s, "red");
    else if (plan->stable && plan->optimal)
        sheet_color_line(s, "green");
    if (o->budget > 0) {
        uint64_t needed = analysis_needed(a, of);
        sheet_set_cell(s, column++, cli_bytes(needed));
        sheet_set_cell(s, column++, needed <= o->budget ? "yes" : "no");
    }
}

/* What no plan can beat: with a slab for each role, or jointly. */
static void add_bound(sheet *s, const columns *c, const bp_plan_info *plan, const char *name)
{
    sheet_add_line(s);
    sheet_set_cell(s, 0, name);
    size_t column = set_roles(s, c, plan, true);
    sheet_set_cell(s, column++, cli_bytes(plan->lower_bound_bytes));
    sheet_set_cell(s, column, "1.00");
}

static bool has_joint(const bp_plan_info *plan)
{
    bool any = false;
    for (size_t i = 0; i < plan->role_count; i++)
        any = any || is_joint(&plan->roles[i]);
    return any;
}

int table_print_totals(const analysis *a, const plan_options *options, bool color)
{
    sheet s = sheet_new(color);
    columns c = find_columns(a);
    const bp_plan_info *apart = NULL, *joint = NULL;
    add_columns(&s, &c, options->budget > 0);
    for (size_t p = 0; p < a->plan_count; p++) {
        const bp_plan_info *plan = bp_plan_get_info(a->plans[p]), **kind = has_joint(plan) ? &joint : &apart;
        *kind = *kind != NULL ? *kind : plan;
        add_policy(&s, &c, a, options, a->plans[p]);
    }
    if (apart != NULL)
        add_bound(&s, &c, apart, "lower bound");
    if (joint != NULL)
        add_bound(&s, &c, joint, "joint bound");
    return sheet_finish(&s);
}
