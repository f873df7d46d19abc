/* Plans made from what a file says, and the checks a plan can be given on its own. */
#include <stdlib.h>
#include <string.h>

#include "core/arith.h"
#include "core/fail.h"
#include "model/buckets.h"
#include "planner/plan.h"

struct bp_plan_builder {
    bp_plan *plan;
    uint32_t *unit_table; /* open addressing by name: unit + 1, 0 is empty */
    size_t table_size;    /* a power of two */
};

bp_status bp_plan_builder_create(const bp_plan_summary *summary, bp_plan_builder **builder)
{
    if (summary == NULL || builder == NULL || summary->size < sizeof *summary)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_plan_builder_create: needs a summary with its size");
    void *memory;
    BP_TRY(bp_new_array(1, sizeof **builder, &memory));
    bp_plan_builder *created = memory;
    bp_status status = bp_plan_new(&created->plan);
    if (status == BP_OK) {
        created->plan->summary = *summary;
        status = bp_strings_add(&created->plan->strings,
                                summary->infeasible_because != NULL ? summary->infeasible_because : "",
                                &created->plan->summary.infeasible_because);
    }
    if (status != BP_OK) {
        bp_plan_builder_destroy(&created);
        return status;
    }
    *builder = created;
    return BP_OK;
}

void bp_plan_builder_destroy(bp_plan_builder **builder)
{
    if (builder == NULL || *builder == NULL)
        return;
    bp_plan_destroy(&(*builder)->plan);
    free((*builder)->unit_table);
    free(*builder);
    *builder = NULL;
}

bp_status bp_plan_builder_add_slab(bp_plan_builder *builder, const bp_plan_slab *slab)
{
    if (builder == NULL || slab == NULL || slab->size < sizeof *slab || slab->group == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_plan_builder_add_slab: a slab needs a builder, a size and a group");
    bp_plan *plan = builder->plan;
    if (plan->slab_count >= UINT16_MAX)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "a plan has at most %d slabs", UINT16_MAX);
    BP_TRY(bp_grow_array((void **)&plan->slabs, &plan->slab_capacity, plan->slab_count, sizeof *plan->slabs));
    plan->slabs[plan->slab_count] = *slab;
    BP_TRY(bp_strings_add(&plan->strings, slab->group, &plan->slabs[plan->slab_count].group));
    plan->slab_count++;
    return BP_OK;
}

bp_status bp_plan_builder_add_class(bp_plan_builder *builder, const bp_plan_class *added)
{
    if (builder == NULL || added == NULL || added->size < sizeof *added)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_plan_builder_add_class: needs a builder and a class with its size");
    bp_plan *plan = builder->plan;
    BP_TRY(bp_grow_array((void **)&plan->classes, &plan->class_capacity, plan->class_count, sizeof *plan->classes));
    plan->classes[plan->class_count++] = *added;
    return BP_OK;
}

/* FNV-1a. */
static size_t hash_name(const char *name)
{
    uint64_t hash = 0xcbf29ce484222325u;
    for (; *name != '\0'; name++)
        hash = (hash ^ (uint8_t)*name) * 0x100000001b3u;
    return (size_t)(hash ^ hash >> 32);
}

static bp_status grow_table(bp_plan_builder *builder)
{
    size_t size = builder->table_size > 0 ? 2 * builder->table_size : 64;
    void *memory;
    BP_TRY(bp_new_array(size, sizeof *builder->unit_table, &memory));
    uint32_t *table = memory;
    for (uint32_t u = 0; u < builder->plan->unit_count; u++) {
        size_t at = hash_name(builder->plan->units[u]) & (size - 1);
        while (table[at] != 0)
            at = (at + 1) & (size - 1);
        table[at] = u + 1;
    }
    free(builder->unit_table);
    builder->unit_table = table;
    builder->table_size = size;
    return BP_OK;
}

/* The unit's number, by first appearance. */
static bp_status number_unit(bp_plan_builder *builder, const char *name, uint32_t *unit)
{
    bp_plan *plan = builder->plan;
    if (plan->unit_count * 2 >= builder->table_size)
        BP_TRY(grow_table(builder));
    size_t at = hash_name(name) & (builder->table_size - 1);
    for (; builder->unit_table[at] != 0; at = (at + 1) & (builder->table_size - 1)) {
        *unit = builder->unit_table[at] - 1;
        if (strcmp(plan->units[*unit], name) == 0)
            return BP_OK;
    }
    BP_TRY(bp_grow_array((void **)&plan->units, &plan->unit_capacity, plan->unit_count, sizeof *plan->units));
    BP_TRY(bp_strings_add(&plan->strings, name, &plan->units[plan->unit_count]));
    *unit = (uint32_t)plan->unit_count++;
    builder->unit_table[at] = *unit + 1;
    return BP_OK;
}

bp_status bp_plan_builder_add_assignment(bp_plan_builder *builder, const bp_assignment *assignment)
{
    if (builder == NULL || assignment == NULL || assignment->size < sizeof *assignment || assignment->unit == NULL ||
        (assignment->predecessors == NULL && assignment->predecessor_count > 0))
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_plan_builder_add_assignment: needs a builder, a size and a unit");
    bp_plan *plan = builder->plan;
    if (bp_dtype_bits(assignment->dtype) == 0 || assignment->role > UINT8_MAX || assignment->slab > UINT16_MAX)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "assignment %zu (%s): dtype %d, role %u or slab %u is out of range",
                       plan->assignment_count, assignment->unit, (int)assignment->dtype, assignment->role,
                       assignment->slab);
    BP_TRY(bp_grow_array((void **)&plan->assignments, &plan->assignment_capacity, plan->assignment_count,
                         sizeof *plan->assignments));
    bp_assignment_data *added = &plan->assignments[plan->assignment_count];
    *added = (bp_assignment_data){.offset = assignment->offset,
                                  .bytes = assignment->bytes,
                                  .ordinal = assignment->ordinal,
                                  .first_predecessor = (uint32_t)plan->predecessor_count,
                                  .slab = (uint16_t)assignment->slab,
                                  .role = (uint8_t)assignment->role,
                                  .dtype = (uint8_t)assignment->dtype};
    BP_TRY(number_unit(builder, assignment->unit, &added->unit));
    if (assignment->bucket != NULL)
        BP_TRY(bp_strings_add(&plan->strings, assignment->bucket, &added->bucket));
    size_t count = assignment->predecessor_count;
    if (count > 0) { /* all or none: a call that fails leaves no part of a list behind */
        BP_TRY(bp_grow_array((void **)&plan->predecessors, &plan->predecessor_capacity, plan->predecessor_count + count,
                             sizeof *plan->predecessors));
        memcpy(plan->predecessors + plan->predecessor_count, assignment->predecessors,
               count * sizeof *plan->predecessors);
        plan->predecessor_count += count;
    }
    plan->assignment_count++;
    return BP_OK;
}

bp_status bp_plan_builder_finish(bp_plan_builder **builder, bp_plan **plan)
{
    if (builder == NULL || *builder == NULL || plan == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_plan_builder_finish: needs a builder and a place for the plan");
    bp_status status = bp_plan_validate((*builder)->plan);
    if (status == BP_OK) {
        *plan = (*builder)->plan;
        (*builder)->plan = NULL;
    }
    bp_plan_builder_destroy(builder);
    return status;
}

/* ---- validation ----------------------------------------------------------------------------------------------------- */

static int by_key(const void *a, const void *b)
{
    const bp_assignment_data *x = *(const bp_assignment_data *const *)a, *y = *(const bp_assignment_data *const *)b;
    if (x->unit != y->unit)
        return x->unit < y->unit ? -1 : 1;
    if (x->ordinal != y->ordinal)
        return x->ordinal < y->ordinal ? -1 : 1;
    return (int)x->role - (int)y->role;
}

static bp_status fail_assignment(const bp_plan *plan, const bp_assignment_data *a, const char *what)
{
    char text[24];
    return bp_fail(BP_ERR_MISMATCH, "assignment %td (%s/%s, %s) %s", a - plan->assignments, plan->units[a->unit],
                   bp_bucket_label(a->bucket, a->ordinal, text), bp_role_name((bp_role)a->role), what);
}

/* One assignment a (unit, bucket, role). */
static bp_status check_unique(const bp_plan *plan)
{
    void *memory;
    BP_TRY(bp_new_array(plan->assignment_count, sizeof(bp_assignment_data *), &memory));
    const bp_assignment_data **sorted = memory;
    for (size_t i = 0; i < plan->assignment_count; i++)
        sorted[i] = &plan->assignments[i];
    qsort(sorted, plan->assignment_count, sizeof *sorted, by_key);
    bp_status status = BP_OK;
    for (size_t i = 1; status == BP_OK && i < plan->assignment_count; i++) {
        if (by_key(&sorted[i - 1], &sorted[i]) == 0)
            status = fail_assignment(plan, sorted[i], "occurs twice");
    }
    free(sorted);
    return status;
}

static bp_status fail_class(size_t index, const char *what)
{
    return bp_fail(BP_ERR_MISMATCH, "class %zu of the plan %s", index, what);
}

static bp_status check_classes(const bp_plan *plan)
{
    for (size_t i = 0; i < plan->class_count; i++) {
        const bp_plan_class *c = &plan->classes[i];
        uint64_t end;
        if (c->slab >= plan->slab_count)
            return fail_class(i, "lies in a slab that does not exist");
        if (c->copies == 0 || c->bytes == 0 || bp_dtype_bits(c->dtype) == 0)
            return fail_class(i, "has no copies, no bytes or no dtype");
        if (c->copies > 1 && c->stride < c->bytes)
            return fail_class(i, "has copies that overlap");
        if (c->offset % plan->summary.alignment != 0 || (c->copies > 1 && c->stride % plan->summary.alignment != 0))
            return fail_class(i, "is not aligned");
        if (!bp_mul_u64(c->copies - 1, c->stride, &end) || !bp_add_u64(end, c->offset, &end) ||
            !bp_add_u64(end, c->bytes, &end) || end > plan->slabs[c->slab].bytes)
            return fail_class(i, "reaches beyond its slab");
    }
    return BP_OK;
}

bp_status bp_plan_validate(const bp_plan *plan)
{
    if (plan == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_plan_validate: no plan");
    uint64_t alignment = plan->summary.alignment;
    if (alignment == 0 || (alignment & (alignment - 1)) != 0)
        return bp_fail(BP_ERR_MISMATCH, "the plan's alignment %llu is no power of two", (unsigned long long)alignment);
    for (size_t i = 0; i < plan->assignment_count; i++) {
        const bp_assignment_data *a = &plan->assignments[i];
        if (a->slab >= plan->slab_count)
            return fail_assignment(plan, a, "lies in a slab that does not exist");
        uint64_t room = plan->slabs[a->slab].bytes;
        if (a->offset > room || a->bytes > room - a->offset)
            return fail_assignment(plan, a, "reaches beyond its slab");
        if (a->offset % alignment != 0)
            return fail_assignment(plan, a, "has an offset that is not aligned");
        const uint32_t *predecessors;
        size_t count = bp_predecessors_of(plan, i, &predecessors);
        for (size_t k = 0; k < count; k++) {
            if (predecessors[k] >= plan->assignment_count || predecessors[k] == i)
                return fail_assignment(plan, a, "has a predecessor that is not another assignment");
        }
    }
    BP_TRY(check_classes(plan));
    return check_unique(plan);
}
