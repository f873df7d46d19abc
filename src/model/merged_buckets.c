/* Buckets of several models that share a pool: the parts' units, buckets and requests behind each other. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/arith.h"
#include "core/fail.h"
#include "model/buckets.h"

/* ---- names --------------------------------------------------------------------------------------------------------- */

static int merged_buckets_compare_names(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Without a '/' in parts' names, units of different parts have different names. */
static bp_status check_names(const char *const *names, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (names[i] == NULL || *names[i] == '\0')
            return bp_fail(BP_ERR_INVALID_ARGUMENT, "part %zu has no name", i);
        if (strchr(names[i], '/') != NULL)
            return bp_fail(BP_ERR_INVALID_ARGUMENT, "part \"%s\": a '/' separates the names of parts and units",
                           names[i]);
    }
    void *memory;
    BP_TRY(bp_new_array(count, sizeof *names, &memory));
    const char **sorted = memcpy(memory, names, count * sizeof *names);
    qsort(sorted, count, sizeof *sorted, merged_buckets_compare_names);
    bp_status status = BP_OK;
    for (size_t i = 1; status == BP_OK && i < count; i++) {
        if (strcmp(sorted[i - 1], sorted[i]) == 0)
            status = bp_fail(BP_ERR_INVALID_ARGUMENT, "two parts are called \"%s\"", sorted[i]);
    }
    free(sorted);
    return status;
}

/* "<part>/<unit>" */
static bp_status join_names(bp_strings *strings, const char *part, const char *unit, const char **joined)
{
    size_t bytes = strlen(part) + strlen(unit) + 2;
    void *memory;
    BP_TRY(bp_new_array(bytes, 1, &memory));
    char *text = memory;
    snprintf(text, bytes, "%s/%s", part, unit);
    bp_status status = bp_strings_add(strings, text, joined);
    free(text);
    return status;
}

/* The name of the model in messages. */
static bp_status name_model(bp_buckets *m, const char *const *names, size_t count)
{
    char text[128];
    if (count == 1)
        return bp_strings_add(&m->strings, names[0], &m->model);
    snprintf(text, sizeof text, "%.80s and %zu more", names[0], count - 1);
    return bp_strings_add(&m->strings, text, &m->model);
}

/* ---- sizes --------------------------------------------------------------------------------------------------------- */

static bp_status count_parts(const bp_buckets *const *parts, size_t count, bp_buckets *m)
{
    for (size_t i = 0; i < count; i++) {
        const bp_buckets *part = parts[i];
        m->parts[i] = (bp_buckets_part){(uint32_t)m->unit_count, (uint32_t)part->unit_count, (uint32_t)m->request_count,
                                        (uint32_t)part->request_count};
        m->unit_count += part->unit_count;
        m->order_count += part->order_count;
        m->bucket_count += part->bucket_count;
        m->request_count += part->request_count;
        m->group_count += part->group_count;
        if (m->unit_count > INT32_MAX || m->bucket_count > INT32_MAX || m->request_count > INT32_MAX)
            return bp_fail(BP_ERR_OVERFLOW, "%zu parts have more than %d units, buckets or requests", i + 1, INT32_MAX);
        if (!bp_add_u64(m->persistent_bytes, part->persistent_bytes, &m->persistent_bytes))
            return bp_fail(BP_ERR_OVERFLOW, "the persistent parameters of %zu parts do not fit 64 bits", i + 1);
    }
    return BP_OK;
}

static bp_status merged_buckets_allocate(bp_buckets *m)
{
    BP_TRY(bp_new_array(m->unit_count, sizeof *m->units, (void **)&m->units));
    BP_TRY(bp_new_array(m->order_count, sizeof *m->order, (void **)&m->order));
    BP_TRY(bp_new_array(m->bucket_count, sizeof *m->buckets, (void **)&m->buckets));
    BP_TRY(bp_new_array(m->request_count, sizeof *m->requests, (void **)&m->requests));
    return bp_new_array(m->group_count, sizeof *m->groups, (void **)&m->groups);
}

/* ---- contents ------------------------------------------------------------------------------------------------------ */

/* The filled part of each array. */
typedef struct position {
    size_t units, order, buckets, requests, groups;
} position;

static bp_status merged_buckets_add_units(bp_buckets *m, const bp_buckets *part, const char *name, position *at)
{
    for (size_t i = 0; i < part->unit_count; i++) {
        bp_unit *unit = &m->units[at->units + i];
        int32_t parent = part->units[i].parent;
        unit->parent = parent < 0 ? parent : parent + (int32_t)at->units;
        BP_TRY(join_names(&m->strings, name, part->units[i].name, &unit->name));
    }
    for (size_t i = 0; i < part->order_count; i++)
        m->order[at->order + i] = part->order[i] + (uint32_t)at->units;
    return BP_OK;
}

/* Those in units, or those of persistent parameters, which come last. */
static bp_status add_buckets(bp_buckets *m, const bp_buckets *part, size_t first_unit, bool persistent, position *at)
{
    for (size_t i = 0; i < part->bucket_count; i++) {
        const bp_bucket *from = &part->buckets[i];
        if ((from->unit < 0) != persistent)
            continue;
        bp_bucket *bucket = &m->buckets[at->buckets++];
        *bucket = *from;
        if (!persistent)
            bucket->unit += (int32_t)first_unit;
        if (from->name != NULL)
            BP_TRY(bp_strings_add(&m->strings, from->name, &bucket->name));
    }
    return BP_OK;
}

static void merged_buckets_add_requests(bp_buckets *m, const bp_buckets *part, size_t first_bucket, const position *at)
{
    for (size_t i = 0; i < part->request_count; i++) {
        bp_request *request = &m->requests[at->requests + i];
        *request = part->requests[i];
        request->bucket += (uint32_t)first_bucket; /* of buckets in units, which come first */
    }
    for (size_t i = 0; i < part->group_count; i++) {
        bp_request_group *group = &m->groups[at->groups + i];
        *group = part->groups[i];
        group->unit += (uint32_t)at->units;
        group->first += (uint32_t)at->requests;
    }
}

static bp_status merged_buckets_fill(bp_buckets *m, const bp_buckets *const *parts, const char *const *names,
                                     size_t count)
{
    position at = {0};
    BP_TRY(name_model(m, names, count));
    for (size_t i = 0; i < count; i++) {
        const bp_buckets *part = parts[i];
        size_t first_bucket = at.buckets;
        BP_TRY(merged_buckets_add_units(m, part, names[i], &at));
        BP_TRY(add_buckets(m, part, at.units, false, &at));
        merged_buckets_add_requests(m, part, first_bucket, &at);
        at.units += part->unit_count;
        at.order += part->order_count;
        at.requests += part->request_count;
        at.groups += part->group_count;
    }
    for (size_t i = 0; i < count; i++)
        BP_TRY(add_buckets(m, parts[i], 0, true, &at));
    return BP_OK;
}

bp_status bp_buckets_create_merged(const bp_buckets *const *parts, const char *const *names, size_t count,
                                   bp_buckets **merged)
{
    if (parts == NULL || names == NULL || count == 0 || merged == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_buckets_create_merged: needs at least one part and its name");
    for (size_t i = 0; i < count; i++) {
        if (parts[i] == NULL)
            return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_buckets_create_merged: part %zu is missing", i);
    }
    BP_TRY(check_names(names, count));
    void *memory;
    BP_TRY(bp_new_array(1, sizeof **merged, &memory));
    bp_buckets *m = memory;
    m->part_count = count;
    bp_status status = bp_new_array(count, sizeof *m->parts, (void **)&m->parts);
    if (status == BP_OK)
        status = count_parts(parts, count, m);
    if (status == BP_OK)
        status = merged_buckets_allocate(m);
    if (status == BP_OK)
        status = merged_buckets_fill(m, parts, names, count);
    if (status != BP_OK) {
        bp_buckets_destroy(&m);
        return status;
    }
    bp_buckets_publish(m);
    *merged = m;
    return BP_OK;
}
