/* SPDX-License-Identifier: Apache-2.0 */
/* Plans as bucketpool.plan/1: written, and read into a validated plan whose fingerprint and checksum equal the file's.
 * docs/reference/formats.md describes every member. */
#include <bucketpool/core/arith.h>
#include <bucketpool/core/fail.h>
#include <bucketpool/formats.h>

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/json_writer.h"
#include "formats/file.h"
#include "formats/json.h"
#include "planner/from_info.h"

/* ---- writing ----------------------------------------------------------------------------------------------------- */

static void write_request(bp_json_writer *w, const bp_plan_request *r)
{
    char name[32];
    snprintf(name, sizeof name, "bucket.%u", r->ordinal);
    bp_json_add_object(w, NULL);
    bp_json_add_text(w, "unit", r->unit);
    bp_json_add_text(w, "bucket", r->bucket != NULL ? r->bucket : name);
    bp_json_add_number(w, "ordinal", r->ordinal);
    bp_json_add_text(w, "role", bp_role_name((bp_role)r->role));
    bp_json_add_text(w, "dtype", bp_dtype_name(r->dtype));
    bp_json_add_number(w, "bytes", r->bytes);
    bp_json_add_number(w, "used_bytes", r->used_bytes);
    if (r->placement == BP_PLACE_PLANNED) {
        bp_json_add_number(w, "slab", r->slab);
        bp_json_add_number(w, "offset", r->offset);
    }
    bp_json_end(w);
}

static bp_status check_saveable(const bp_plan_info *plan)
{
    if (!plan->feasible || !plan->stable)
        return bp_fail(BP_ERR_UNSUPPORTED,
                       "a plan of policy %s %s cannot be saved: its requests have no fixed addresses%s%s",
                       bp_policy_name(plan->policy), plan->feasible ? "with dynamic memory" : "that is infeasible",
                       plan->feasible ? "" : "; ", plan->infeasible_because);
    for (size_t i = 0; i < plan->request_count; i++) {
        if (plan->requests[i].placement == BP_PLACE_PLANNED)
            return BP_OK;
    }
    return bp_fail(BP_ERR_UNSUPPORTED, "a plan whose requests are never live cannot be saved");
}

static void write_plan_document(bp_json_writer *w, const bp_plan_info *plan, const char *fingerprint,
                                const char *checksum)
{
    bp_json_add_object(w, NULL);
    bp_json_add_text(w, "format", "bucketpool.plan/1");
    bp_json_add_text(w, "model", plan->model);
    bp_json_add_object(w, "options");
    for (size_t i = 0; i < plan->option_count; i++)
        bp_json_add_text(w, plan->options[i].key, plan->options[i].value);
    bp_json_end(w);
    bp_json_add_text(w, "policy", bp_policy_name(plan->policy));
    bp_json_add_number(w, "copies", plan->copies);
    bp_json_add_number(w, "alignment", plan->alignment);
    bp_json_add_number(w, "bytes", plan->bytes);
    bp_json_add_object(w, "bound");
    bp_json_add_number(w, "lower_bound_bytes", plan->lower_bound_bytes);
    bp_json_add_flag(w, "optimal", plan->optimal);
    bp_json_end(w);
    bp_json_add_list(w, "slabs");
    for (size_t i = 0; i < plan->slab_count; i++) {
        bp_json_add_object(w, NULL);
        bp_json_add_text(w, "group", plan->slabs[i].group);
        bp_json_add_number(w, "bytes", plan->slabs[i].bytes);
        bp_json_end(w);
    }
    bp_json_end(w);
    bp_json_add_list(w, "classes");
    for (size_t i = 0; i < plan->class_count; i++) {
        const bp_plan_class *c = &plan->classes[i];
        bp_json_add_object(w, NULL);
        bp_json_add_number(w, "slab", c->slab);
        bp_json_add_text(w, "dtype", bp_dtype_name(c->dtype));
        bp_json_add_number(w, "copies", c->copies);
        bp_json_add_number(w, "offset", c->offset);
        bp_json_add_number(w, "stride", c->stride);
        bp_json_add_number(w, "bytes", c->bytes);
        bp_json_end(w);
    }
    bp_json_end(w);
    bp_json_add_list(w, "requests");
    for (size_t i = 0; i < plan->request_count; i++)
        write_request(w, &plan->requests[i]);
    bp_json_end(w);
    bp_json_add_text(w, "fingerprint", fingerprint);
    bp_json_add_text(w, "checksum", checksum);
    bp_json_end(w);
}

bp_status bp_plan_write(const bp_plan *plan, const char *path)
{
    if (plan == NULL || path == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_plan_write: plan and path must not be NULL");
    bp_json_writer writer = {.layout = BP_JSON_FITTED};
    char fingerprint[BP_FINGERPRINT_CHARS], checksum[BP_FINGERPRINT_CHARS];
    BP_TRY(check_saveable(bp_plan_get_info(plan)));
    BP_TRY(bp_plan_fingerprint(plan, fingerprint));
    BP_TRY(bp_plan_checksum(plan, checksum));
    write_plan_document(&writer, bp_plan_get_info(plan), fingerprint, checksum);
    if (writer.has_replaced)
        bp_json_check(&writer,
                      bp_fail(BP_ERR_INVALID_ARGUMENT, "a plan with names that are not UTF-8 cannot be saved"));
    return bp_json_save(&writer, path);
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

#define MAX_BYTES ((uint64_t)INT64_MAX)

static bp_status read_whole(const bp_json_at *object, const char *key, uint64_t min, uint64_t max, uint64_t *value)
{
    bp_json_at member = bp_json_member(object, key);
    return bp_json_whole(&member, min, max, value);
}

static bp_status plan_read_name(const bp_json_at *object, const char *key, const char **name)
{
    bp_json_at member = bp_json_member(object, key);
    return bp_json_name(&member, name);
}

/* The parsed document, before validation. Strings are those of the document. */
typedef struct contents {
    bp_plan_info info;
    bp_plan_slab *slabs;
    bp_plan_class *classes;
    bp_plan_request *requests;
    bp_plan_option *options;
} contents;

static bp_status read_head(const bp_json_at *root, bp_plan_info *info)
{
    uint64_t number = 0;
    const char *text = NULL;
    info->feasible = info->stable = 1;
    BP_TRY(plan_read_name(root, "model", &info->model));
    BP_TRY(plan_read_name(root, "policy", &text));
    bp_json_at policy = bp_json_member(root, "policy");
    BP_TRY(bp_json_fail_at(&policy, bp_policy_parse(text, &info->policy)));
    if (info->policy == BP_POLICY_DYNAMIC)
        return bp_json_fail(&policy, "is \"dynamic\": such plans have no addresses and are never saved; make one "
                                     "from the model");
    BP_TRY(read_whole(root, "copies", 0, UINT32_MAX, &number));
    info->copies = (uint32_t)number;
    BP_TRY(read_whole(root, "alignment", 1, MAX_BYTES, &info->alignment));
    BP_TRY(read_whole(root, "bytes", 0, MAX_BYTES, &info->bytes));
    static const char *const bound_members[] = {"lower_bound_bytes", "optimal", NULL};
    bp_json_at bound = bp_json_member(root, "bound");
    BP_TRY(bp_json_expect_object(&bound, bound_members));
    BP_TRY(read_whole(&bound, "lower_bound_bytes", 0, MAX_BYTES, &info->lower_bound_bytes));
    bool optimal = false;
    bp_json_at flag = bp_json_member(&bound, "optimal");
    BP_TRY(bp_json_flag(&flag, &optimal));
    info->optimal = optimal;
    return BP_OK;
}

static bp_status read_slab(const bp_json_at *at, void *element)
{
    static const char *const members[] = {"group", "bytes", NULL};
    bp_plan_slab *slab = element;
    BP_TRY(bp_json_expect_object(at, members));
    BP_TRY(plan_read_name(at, "group", &slab->group));
    return read_whole(at, "bytes", 0, MAX_BYTES, &slab->bytes);
}

static bp_status read_class(const bp_json_at *at, void *element)
{
    static const char *const members[] = {"slab", "dtype", "copies", "offset", "stride", "bytes", NULL};
    bp_plan_class *c = element;
    uint64_t slab = 0, copies = 0;
    BP_TRY(bp_json_expect_object(at, members));
    BP_TRY(read_whole(at, "slab", 0, UINT16_MAX, &slab));
    bp_json_at dtype = bp_json_member(at, "dtype");
    BP_TRY(bp_json_dtype(&dtype, &c->dtype));
    BP_TRY(read_whole(at, "copies", 1, UINT32_MAX, &copies));
    BP_TRY(read_whole(at, "offset", 0, MAX_BYTES, &c->offset));
    BP_TRY(read_whole(at, "stride", 0, MAX_BYTES, &c->stride));
    BP_TRY(read_whole(at, "bytes", 1, MAX_BYTES, &c->bytes));
    c->slab = (uint32_t)slab;
    c->copies = (uint32_t)copies;
    return BP_OK;
}

static bp_status read_request(const bp_json_at *at, void *element)
{
    static const char *const members[] = {"unit",  "bucket",     "ordinal", "role",   "dtype",
                                          "bytes", "used_bytes", "slab",    "offset", NULL};
    bp_plan_request *r = element;
    uint64_t ordinal = 0, slab = 0;
    const char *role_name = NULL;
    bp_role role = BP_ROLE_PARAM;
    BP_TRY(bp_json_expect_object(at, members));
    BP_TRY(plan_read_name(at, "unit", &r->unit));
    BP_TRY(plan_read_name(at, "bucket", &r->bucket));
    BP_TRY(read_whole(at, "ordinal", 0, UINT32_MAX, &ordinal));
    BP_TRY(plan_read_name(at, "role", &role_name));
    bp_json_at role_at = bp_json_member(at, "role"), dtype_at = bp_json_member(at, "dtype");
    BP_TRY(bp_json_fail_at(&role_at, bp_role_parse(role_name, &role)));
    BP_TRY(bp_json_dtype(&dtype_at, &r->dtype));
    BP_TRY(read_whole(at, "bytes", 0, MAX_BYTES, &r->bytes));
    BP_TRY(read_whole(at, "used_bytes", 0, r->bytes, &r->used_bytes));
    r->ordinal = (uint32_t)ordinal;
    r->role = role;
    /* A request without slab and offset has no memory: the schedule never uses it, or it has 0 bytes. */
    if (bp_json_member(at, "slab").value == NULL && bp_json_member(at, "offset").value == NULL)
        return BP_OK;
    r->placement = BP_PLACE_PLANNED;
    BP_TRY(read_whole(at, "slab", 0, UINT16_MAX, &slab));
    r->slab = (uint32_t)slab;
    return read_whole(at, "offset", 0, MAX_BYTES, &r->offset);
}

/* Reads a member that is a list into an array. */
static bp_status plan_read_list(const bp_json_at *root, const char *key, size_t element_bytes,
                                bp_status (*read)(const bp_json_at *at, void *element), void *array, size_t *count)
{
    bp_json_at list = bp_json_member(root, key);
    BP_TRY(bp_json_expect_list(&list));
    size_t n = json_array_size(list.value);
    char *elements = calloc(n + 1, element_bytes);
    if (elements == NULL)
        return bp_fail_memory((n + 1) * element_bytes);
    memcpy(array, &elements, sizeof elements);
    *count = n;
    for (size_t i = 0; i < n; i++) {
        bp_json_at at = bp_json_element(&list, i);
        BP_TRY(read(&at, elements + i * element_bytes));
    }
    return BP_OK;
}

static bp_status read_contents(const bp_json_at *root, contents *c)
{
    static const char *const members[] = {"format", "model", "options", "policy",   "copies",      "alignment", "bytes",
                                          "bound",  "slabs", "classes", "requests", "fingerprint", "checksum",  NULL};
    const char *format = NULL;
    BP_TRY(bp_json_expect_object(root, NULL));
    bp_json_at format_at = bp_json_member(root, "format");
    if (format_at.value == NULL)
        return bp_json_fail(&format_at,
                            "is missing, so this is not a plan; `bucketpool plan MODEL -o FILE` writes one");
    BP_TRY(plan_read_name(root, "format", &format));
    if (strcmp(format, "bucketpool.plan/1") != 0)
        return bp_json_fail(
            &format_at, "expected \"bucketpool.plan/1\", got \"%.*s\"; `bucketpool plan MODEL -o FILE` writes plans",
            BP_QUOTED, format);
    BP_TRY(bp_json_expect_object(root, members));
    BP_TRY(read_head(root, &c->info));
    BP_TRY(plan_read_list(root, "slabs", sizeof *c->slabs, read_slab, &c->slabs, &c->info.slab_count));
    BP_TRY(plan_read_list(root, "classes", sizeof *c->classes, read_class, &c->classes, &c->info.class_count));
    BP_TRY(plan_read_list(root, "requests", sizeof *c->requests, read_request, &c->requests, &c->info.request_count));
    bp_json_at list = bp_json_member(root, "requests");
    if (c->info.request_count == 0)
        return bp_json_fail(&list, "expected at least one request, got none");
    bp_json_at options = bp_json_member(root, "options");
    BP_TRY(bp_json_expect_object(&options, NULL));
    size_t n = json_object_size(options.value);
    c->options = calloc(n + 1, sizeof *c->options);
    if (c->options == NULL)
        return bp_fail_memory((n + 1) * sizeof *c->options);
    const char *key;
    json_t *value;
    json_object_foreach(options.value, key, value)
    {
        bp_json_at at = bp_json_member(&options, key);
        if (!json_is_string(value))
            return bp_json_fail_kind(&at, "a string");
        c->options[c->info.option_count++] = (bp_plan_option){key, json_string_value(value)};
    }
    return BP_OK;
}

/* A hash in the document must equal that of the plan which was read. */
static bp_status check_hash(const bp_json_at *root, const char *key,
                            bp_status (*hash)(const bp_plan *, char[BP_FINGERPRINT_CHARS]), const bp_plan *plan)
{
    bp_json_at member = bp_json_member(root, key);
    const char *written = NULL;
    char computed[BP_FINGERPRINT_CHARS];
    BP_TRY(bp_json_name(&member, &written));
    BP_TRY(hash(plan, computed));
    if (strcmp(written, computed) != 0)
        return bp_json_fail(&member,
                            "is %.16s..., but the file's content has %.16s...: it was changed after it was "
                            "made; plan again with other options instead",
                            written, computed);
    return BP_OK;
}

/* Refuses a plan that was edited or truncated: its slabs must be exactly those that the plan allocates, its bound at most
 * their bytes, and fingerprint and checksum must match. */
static bp_status check_unchanged(const bp_json_at *root, const bp_plan_info *info, const bp_plan *plan)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < info->slab_count && bp_add_u64(sum, info->slabs[i].bytes, &sum); i++)
        ;
    bp_json_at bytes = bp_json_member(root, "bytes"), bound = bp_json_member(root, "bound");
    bp_json_at lower_bound = bp_json_member(&bound, "lower_bound_bytes");
    if (sum != info->bytes)
        return bp_json_fail(&bytes, "is %llu, but the slabs have %llu bytes", (unsigned long long)info->bytes,
                            (unsigned long long)sum);
    if (info->lower_bound_bytes > info->bytes)
        return bp_json_fail(&lower_bound, "is %llu, more than the plan's %llu bytes",
                            (unsigned long long)info->lower_bound_bytes, (unsigned long long)info->bytes);
    BP_TRY(check_hash(root, "fingerprint", bp_plan_fingerprint, plan));
    return check_hash(root, "checksum", bp_plan_checksum, plan);
}

static bp_status plan_read_make_plan(const bp_json_at *root, contents *c, bp_plan **plan)
{
    c->info.slabs = c->slabs;
    c->info.classes = c->classes;
    c->info.requests = c->requests;
    c->info.options = c->options;
    bp_plan *read = NULL;
    bp_status status = bp_plan_from_info(&c->info, &read);
    if (status == BP_ERR_MISMATCH)
        status = bp_fail_at(root->origin, BP_ERR_INVALID_ARGUMENT); /* the file contradicts itself: BP_ERR_FORMAT */
    if (status == BP_OK)
        status = check_unchanged(root, &c->info, read);
    if (status != BP_OK) {
        bp_plan_destroy(&read);
        return status;
    }
    *plan = read;
    return BP_OK;
}

bp_status bp_plan_parse(const char *text, size_t bytes, const char *origin, bp_plan **plan)
{
    if (text == NULL || origin == NULL || plan == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_plan_parse: text, origin and plan must not be NULL");
    json_t *document = NULL;
    BP_TRY(bp_json_parse(text, bytes, origin, NULL, &document));
    bp_json_at root = bp_json_root(document, origin);
    contents c = {0};
    bp_status status = read_contents(&root, &c);
    if (status == BP_OK)
        status = plan_read_make_plan(&root, &c, plan);
    free(c.slabs);
    free(c.classes);
    free(c.requests);
    free(c.options);
    json_decref(document);
    return status;
}

bp_status bp_plan_read(const char *path, bp_plan **plan)
{
    if (path == NULL || plan == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_plan_read: path and plan must not be NULL");
    char *text;
    size_t bytes;
    BP_TRY(bp_file_read(path, BP_LARGEST_JSON_BYTES, &text, &bytes));
    bp_status status = bp_plan_parse(text, bytes, path, plan);
    free(text);
    return status;
}
