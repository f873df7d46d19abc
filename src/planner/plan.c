#include "planner/plan.h"

#include <stdlib.h>
#include <string.h>

#include "core/fail.h"

bp_status bp_plan_new(bp_plan **plan)
{
    void *memory;
    BP_TRY(bp_new_array(1, sizeof **plan, &memory));
    *plan = memory;
    (*plan)->summary.size = sizeof(*plan)->summary;
    (*plan)->summary.infeasible_because = "";
    return BP_OK;
}

void bp_plan_destroy(bp_plan **plan)
{
    if (plan == NULL || *plan == NULL)
        return;
    bp_plan *p = *plan;
    bp_strings_finish(&p->strings);
    free(p->model);
    for (size_t i = 0; i < p->option_count; i++) {
        free(p->options[i].key);
        free(p->options[i].value);
    }
    free(p->options);
    free(p->units);
    free(p->roles);
    free(p->buffers);
    free(p->witnesses);
    free(p->slabs);
    free(p->assignments);
    free(p->classes);
    free(p->predecessors);
    free(p);
    *plan = NULL;
}

static bp_status check_entry(const char *what, size_t index, size_t count, size_t size, size_t expected)
{
    if (index >= count || size < expected)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s %zu of %zu, size %zu of at least %zu", what, index, count, size,
                       expected);
    return BP_OK;
}

bp_status bp_plan_summary_get(const bp_plan *plan, bp_plan_summary *summary)
{
    BP_TRY(check_entry("summary", 0, 1, summary->size, sizeof *summary));
    *summary = plan->summary;
    return BP_OK;
}

size_t bp_plan_role_count(const bp_plan *plan)
{
    return plan->role_count;
}

bp_status bp_plan_role_get(const bp_plan *plan, size_t index, bp_plan_role *role)
{
    BP_TRY(check_entry("role", index, plan->role_count, role->size, sizeof *role));
    *role = plan->roles[index].info;
    return BP_OK;
}

bp_status bp_plan_buffer_get(const bp_plan *plan, size_t role_index, size_t buffer, bp_plan_buffer *out)
{
    BP_TRY(check_entry("role", role_index, plan->role_count, out->size, sizeof *out));
    BP_TRY(check_entry("buffer", buffer, plan->roles[role_index].info.buffers, out->size, sizeof *out));
    const bp_buffer_data *b = &plan->buffers[plan->roles[role_index].first_buffer + buffer];
    *out = (bp_plan_buffer){.size = sizeof *out,
                            .kind = (bp_buffer_kind)b->kind,
                            .dtype = (bp_dtype)b->dtype,
                            .rank = b->rank,
                            .copies = b->copies,
                            .bytes = b->bytes,
                            .set_by_unit = plan->units[b->set_by_unit],
                            .set_by_bucket = b->set_by_bucket,
                            .set_by_ordinal = b->set_by_ordinal,
                            .tenants = b->tenants};
    return BP_OK;
}

size_t bp_plan_witness_count(const bp_plan *plan, size_t role_index)
{
    return role_index < plan->role_count ? plan->roles[role_index].witness_count : 0;
}

bp_status bp_plan_witness_get(const bp_plan *plan, size_t role_index, size_t index, bp_plan_witness *witness)
{
    BP_TRY(check_entry("role", role_index, plan->role_count, witness->size, sizeof *witness));
    BP_TRY(check_entry("witness", index, plan->roles[role_index].witness_count, witness->size, sizeof *witness));
    const bp_witness_data *w = &plan->witnesses[plan->roles[role_index].first_witness + index];
    *witness = (bp_plan_witness){.size = sizeof *witness,
                                 .unit = plan->units[w->unit],
                                 .bucket = w->bucket,
                                 .ordinal = w->ordinal,
                                 .bytes = w->bytes,
                                 .role = w->role};
    return BP_OK;
}

size_t bp_plan_slab_count(const bp_plan *plan)
{
    return plan->slab_count;
}

bp_status bp_plan_slab_get(const bp_plan *plan, size_t index, bp_plan_slab *slab)
{
    BP_TRY(check_entry("slab", index, plan->slab_count, slab->size, sizeof *slab));
    *slab = plan->slabs[index];
    return BP_OK;
}

size_t bp_plan_class_count(const bp_plan *plan)
{
    return plan->class_count;
}

bp_status bp_plan_class_get(const bp_plan *plan, size_t index, bp_plan_class *out)
{
    BP_TRY(check_entry("class", index, plan->class_count, out->size, sizeof *out));
    *out = plan->classes[index];
    return BP_OK;
}

size_t bp_plan_assignment_count(const bp_plan *plan)
{
    return plan->assignment_count;
}

bp_status bp_plan_assignment_get(const bp_plan *plan, size_t index, bp_assignment *assignment)
{
    BP_TRY(check_entry("assignment", index, plan->assignment_count, assignment->size, sizeof *assignment));
    const bp_assignment_data *a = &plan->assignments[index];
    *assignment = (bp_assignment){.size = sizeof *assignment,
                                  .unit = plan->units[a->unit],
                                  .bucket = a->bucket,
                                  .unit_index = a->unit,
                                  .ordinal = a->ordinal,
                                  .role = a->role,
                                  .dtype = (bp_dtype)a->dtype,
                                  .slab = a->slab,
                                  .offset = a->offset,
                                  .bytes = a->bytes};
    assignment->predecessor_count = bp_predecessors_of(plan, index, &assignment->predecessors);
    return BP_OK;
}

bp_status bp_plan_set_group(bp_plan *plan, size_t slab, const char *group)
{
    if (plan == NULL || group == NULL || *group == '\0')
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_plan_set_group: needs a plan and a name");
    if (slab >= plan->slab_count)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "release group \"%.40s\": slab %zu does not exist, the plan has %zu",
                       group, slab, plan->slab_count);
    return bp_strings_add(&plan->strings, group, &plan->slabs[slab].group);
}

bp_status bp_plan_set_model(bp_plan *plan, const char *name)
{
    if (plan == NULL || name == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_plan_set_model: needs a plan and a name");
    char *copy;
    BP_TRY(bp_copy_string(name, &copy));
    free(plan->model);
    plan->model = copy;
    return BP_OK;
}

const char *bp_plan_model(const bp_plan *plan)
{
    return plan->model != NULL ? plan->model : "";
}

static void remove_option(bp_plan *plan, size_t index)
{
    free(plan->options[index].key);
    free(plan->options[index].value);
    memmove(plan->options + index, plan->options + index + 1, (--plan->option_count - index) * sizeof *plan->options);
}

bp_status bp_plan_set_option(bp_plan *plan, const char *key, const char *value)
{
    if (plan == NULL || key == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_plan_set_option: needs a plan and a key");
    size_t i = 0;
    while (i < plan->option_count && strcmp(plan->options[i].key, key) != 0)
        i++;
    if (value == NULL) {
        if (i < plan->option_count)
            remove_option(plan, i);
        return BP_OK;
    }
    bp_option option = {0};
    BP_TRY(bp_copy_string(value, &option.value));
    if (i < plan->option_count) {
        free(plan->options[i].value);
        plan->options[i].value = option.value;
        return BP_OK;
    }
    bp_status status = bp_copy_string(key, &option.key);
    if (status == BP_OK)
        status = bp_grow_array((void **)&plan->options, &plan->option_capacity, i, sizeof *plan->options);
    if (status != BP_OK) {
        free(option.key);
        free(option.value);
        return status;
    }
    plan->options[plan->option_count++] = option;
    return BP_OK;
}

size_t bp_plan_option_count(const bp_plan *plan)
{
    return plan->option_count;
}

bp_status bp_plan_option(const bp_plan *plan, size_t index, const char **key, const char **value)
{
    BP_TRY(check_entry("option", index, plan->option_count, 0, 0));
    *key = plan->options[index].key;
    *value = plan->options[index].value;
    return BP_OK;
}
