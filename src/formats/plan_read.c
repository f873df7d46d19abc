/* Reads bucketpool.plan/1 back into a plan that has been validated and whose fingerprint is the one in the file. */
#include <bucketpool/formats.h>

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "core/arith.h"
#include "core/fail.h"
#include "formats/detail.h"
#include "formats/file.h"
#include "formats/json.h"

#define MOST_BYTES ((uint64_t)INT64_MAX)

static bp_status read_whole(const bp_json_at *object, const char *key, uint64_t least, uint64_t most, uint64_t *value)
{
    bp_json_at member = bp_json_member(object, key);
    return bp_json_whole(&member, least, most, value);
}

static bp_status read_name(const bp_json_at *object, const char *key, const char **name)
{
    bp_json_at member = bp_json_member(object, key);
    return bp_json_name(&member, name);
}

static bp_status read_summary(const bp_json_at *root, bp_plan_summary *summary)
{
    uint64_t number = 0;
    const char *text = NULL;
    *summary = (bp_plan_summary){.size = sizeof *summary, .feasible = 1, .stable = 1};
    BP_TRY(read_name(root, "policy", &text));
    bp_json_at policy = bp_json_member(root, "policy");
    BP_TRY(bp_json_fail_at(&policy, bp_policy_parse(text, &summary->policy)));
    if (summary->policy == BP_POLICY_DYNAMIC)
        return bp_json_fail(&policy,
                            "is \"dynamic\", whose requests have no addresses and which is never saved; make such "
                            "a plan from the model");
    BP_TRY(read_whole(root, "copies", 0, UINT32_MAX, &number));
    summary->copies = (uint32_t)number;
    BP_TRY(read_whole(root, "alignment", 1, MOST_BYTES, &summary->alignment));
    BP_TRY(read_whole(root, "bytes", 0, MOST_BYTES, &summary->bytes));
    static const char *const bound_members[] = {"lower_bound_bytes", "optimal", NULL};
    bp_json_at bound = bp_json_member(root, "bound");
    BP_TRY(bp_json_expect_object(&bound, bound_members));
    BP_TRY(read_whole(&bound, "lower_bound_bytes", 0, MOST_BYTES, &summary->lower_bound_bytes));
    bool optimal = false;
    bp_json_at flag = bp_json_member(&bound, "optimal");
    BP_TRY(bp_json_flag(&flag, &optimal));
    summary->optimal = optimal;
    return BP_OK;
}

static bp_status read_slabs(const bp_json_at *root, bp_plan_builder *builder)
{
    static const char *const members[] = {"group", "bytes", NULL};
    bp_json_at slabs = bp_json_member(root, "slabs");
    BP_TRY(bp_json_expect_list(&slabs));
    for (size_t i = 0; i < json_array_size(slabs.value); i++) {
        bp_json_at at = bp_json_element(&slabs, i);
        bp_plan_slab slab = {.size = sizeof slab};
        BP_TRY(bp_json_expect_object(&at, members));
        BP_TRY(read_name(&at, "group", &slab.group));
        BP_TRY(read_whole(&at, "bytes", 0, MOST_BYTES, &slab.bytes));
        BP_TRY(bp_json_fail_at(&at, bp_plan_builder_add_slab(builder, &slab)));
    }
    return BP_OK;
}

static bp_status read_class(const bp_json_at *at, bp_plan_builder *builder)
{
    static const char *const members[] = {"slab", "dtype", "copies", "offset", "stride", "bytes", NULL};
    bp_plan_class c = {.size = sizeof c};
    uint64_t slab = 0, copies = 0;
    BP_TRY(bp_json_expect_object(at, members));
    BP_TRY(read_whole(at, "slab", 0, UINT16_MAX, &slab));
    bp_json_at dtype = bp_json_member(at, "dtype");
    BP_TRY(bp_json_dtype(&dtype, &c.dtype));
    BP_TRY(read_whole(at, "copies", 1, UINT32_MAX, &copies));
    BP_TRY(read_whole(at, "offset", 0, MOST_BYTES, &c.offset));
    BP_TRY(read_whole(at, "stride", 0, MOST_BYTES, &c.stride));
    BP_TRY(read_whole(at, "bytes", 1, MOST_BYTES, &c.bytes));
    c.slab = (uint32_t)slab;
    c.copies = (uint32_t)copies;
    return bp_json_fail_at(at, bp_plan_builder_add_class(builder, &c));
}

static bp_status read_classes(const bp_json_at *root, bp_plan_builder *builder)
{
    bp_json_at classes = bp_json_member(root, "classes");
    BP_TRY(bp_json_expect_list(&classes));
    for (size_t i = 0; i < json_array_size(classes.value); i++) {
        bp_json_at at = bp_json_element(&classes, i);
        BP_TRY(read_class(&at, builder));
    }
    return BP_OK;
}

/* The slabs are all that a plan allocates. */
static bp_status check_bytes(const bp_json_at *root, const bp_plan *plan)
{
    bp_plan_summary summary = {.size = sizeof summary};
    uint64_t sum = 0;
    BP_TRY(bp_plan_summary_get(plan, &summary));
    for (size_t i = 0; i < bp_plan_slab_count(plan); i++) {
        bp_plan_slab slab = {.size = sizeof slab};
        BP_TRY(bp_plan_slab_get(plan, i, &slab));
        if (!bp_add_u64(sum, slab.bytes, &sum))
            break;
    }
    bp_json_at at = bp_json_member(root, "bytes");
    if (sum != summary.bytes)
        return bp_json_fail(&at, "is %llu, but the slabs have %llu bytes", (unsigned long long)summary.bytes,
                            (unsigned long long)sum);
    return BP_OK;
}

static bp_status read_predecessors(const bp_json_at *assignment, size_t assignments, uint32_t **numbers, size_t *count)
{
    bp_json_at list = bp_json_member(assignment, "predecessors");
    BP_TRY(bp_json_expect_list(&list));
    size_t n = json_array_size(list.value);
    uint32_t *read = calloc(n + 1, sizeof *read);
    if (read == NULL)
        return bp_fail_memory((n + 1) * sizeof *read);
    for (size_t i = 0; i < n; i++) {
        bp_json_at at = bp_json_element(&list, i);
        uint64_t number = 0;
        bp_status status = bp_json_whole(&at, 0, assignments - 1, &number);
        if (status != BP_OK) {
            free(read);
            return status;
        }
        read[i] = (uint32_t)number;
    }
    *numbers = read;
    *count = n;
    return BP_OK;
}

static bp_status read_assignment(const bp_json_at *at, size_t assignments, bp_plan_builder *builder)
{
    static const char *const members[] = {"unit", "bucket", "ordinal", "role",         "dtype",
                                          "slab", "offset", "bytes",   "predecessors", NULL};
    bp_assignment a = {.size = sizeof a};
    uint64_t ordinal = 0, slab = 0;
    const char *role_name = NULL;
    bp_role role = BP_ROLE_PARAM;
    BP_TRY(bp_json_expect_object(at, members));
    BP_TRY(read_name(at, "unit", &a.unit));
    BP_TRY(read_name(at, "bucket", &a.bucket));
    BP_TRY(read_whole(at, "ordinal", 0, UINT32_MAX, &ordinal));
    BP_TRY(read_name(at, "role", &role_name));
    bp_json_at role_at = bp_json_member(at, "role"), dtype_at = bp_json_member(at, "dtype");
    BP_TRY(bp_json_fail_at(&role_at, bp_role_parse(role_name, &role)));
    BP_TRY(bp_json_dtype(&dtype_at, &a.dtype));
    BP_TRY(read_whole(at, "slab", 0, UINT16_MAX, &slab));
    BP_TRY(read_whole(at, "offset", 0, MOST_BYTES, &a.offset));
    BP_TRY(read_whole(at, "bytes", 1, MOST_BYTES, &a.bytes));
    a.ordinal = (uint32_t)ordinal;
    a.slab = (uint32_t)slab;
    a.role = role;
    uint32_t *predecessors = NULL;
    BP_TRY(read_predecessors(at, assignments, &predecessors, &a.predecessor_count));
    a.predecessors = predecessors;
    bp_status status = bp_json_fail_at(at, bp_plan_builder_add_assignment(builder, &a));
    free(predecessors);
    return status;
}

static bp_status read_options(const bp_json_at *root, bp_plan *plan)
{
    bp_json_at options = bp_json_member(root, "options");
    BP_TRY(bp_json_expect_object(&options, NULL));
    const char *key;
    json_t *value;
    json_object_foreach(options.value, key, value)
    {
        bp_json_at at = bp_json_member(&options, key);
        if (!json_is_string(value))
            return bp_json_fail_kind(&at, "a string");
        BP_TRY(bp_plan_set_option(plan, key, json_string_value(value)));
    }
    return BP_OK;
}

static bp_status read_body(const bp_json_at *root, bp_plan_builder *builder)
{
    BP_TRY(read_slabs(root, builder));
    BP_TRY(read_classes(root, builder));
    bp_json_at list = bp_json_member(root, "assignments");
    BP_TRY(bp_json_expect_list(&list));
    size_t count = json_array_size(list.value);
    if (count == 0 || count > UINT32_MAX - 1)
        return bp_json_fail(&list, "expected 1 to %u assignments, got %zu", UINT32_MAX - 1, count);
    for (size_t i = 0; i < count; i++) {
        bp_json_at at = bp_json_element(&list, i);
        BP_TRY(read_assignment(&at, count, builder));
    }
    return BP_OK;
}

/* A plan that was edited, cut or mixed up no longer has the fingerprint that it was written with. */
static bp_status compare_fingerprint(const bp_json_at *root, const bp_plan *plan)
{
    const char *written = NULL;
    char computed[BP_FINGERPRINT_CHARS];
    BP_TRY(read_name(root, "fingerprint", &written));
    BP_TRY(bp_plan_fingerprint(plan, computed));
    bp_json_at at = bp_json_member(root, "fingerprint");
    if (strcmp(written, computed) != 0)
        return bp_json_fail(&at,
                            "is %.16s..., but the assignments have %.16s...: the plan was changed after it was made",
                            written, computed);
    return BP_OK;
}

static bp_status read_document(const bp_json_at *root, bp_plan **plan)
{
    static const char *const members[] = {"format",      "model",       "options", "policy", "copies",
                                          "alignment",   "bytes",       "bound",   "slabs",  "classes",
                                          "assignments", "fingerprint", NULL};
    const char *format = NULL, *model = NULL;
    BP_TRY(bp_json_expect_object(root, NULL));
    BP_TRY(read_name(root, "format", &format));
    bp_json_at format_at = bp_json_member(root, "format");
    if (strcmp(format, "bucketpool.plan/1") != 0)
        return bp_json_fail(&format_at, "expected \"bucketpool.plan/1\", got \"%.*s\"", BP_QUOTED, format);
    BP_TRY(bp_json_expect_object(root, members));
    BP_TRY(read_name(root, "model", &model));
    bp_plan_summary summary;
    BP_TRY(read_summary(root, &summary));
    bp_plan_builder *builder;
    BP_TRY(bp_plan_builder_create(&summary, &builder));
    bp_status status = read_body(root, builder);
    bp_plan *read = NULL;
    if (status == BP_OK) {
        status = bp_plan_builder_finish(&builder, &read);
        if (status == BP_ERR_MISMATCH)
            status = bp_fail_at(root->origin, BP_ERR_INVALID_ARGUMENT); /* the file contradicts itself: malformed */
    }
    bp_plan_builder_destroy(&builder);
    if (status == BP_OK)
        status = check_bytes(root, read);
    if (status == BP_OK)
        status = bp_plan_set_model(read, model);
    if (status == BP_OK)
        status = read_options(root, read);
    if (status == BP_OK)
        status = compare_fingerprint(root, read);
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
    BP_TRY(bp_json_parse(text, bytes, origin, BP_JSON_STRICT, &document));
    bp_json_at root = bp_json_root(document, origin);
    bp_status status = read_document(&root, plan);
    json_decref(document);
    return status;
}

bp_status bp_plan_read(const char *path, bp_plan **plan)
{
    if (path == NULL || plan == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_plan_read: needs a path and a place for the plan");
    char *text;
    size_t bytes;
    BP_TRY(bp_file_read(path, BP_LARGEST_JSON_BYTES, &text, &bytes));
    bp_status status = bp_plan_parse(text, bytes, path, plan);
    free(text);
    return status;
}
