/* SPDX-License-Identifier: Apache-2.0 */
/* bp_units_parse and bp_units_write. */
#include "scratch.h"

#include <signal.h>
#include <sys/resource.h>

#define HEAD "{\"format\": \"bucketpool.units/1\", \"model\": \"m\", "
#define UNITS(units) HEAD "\"units\": [" units "]}"
#define WEIGHT(more) "{\"name\": \"w\", \"shape\": [2, 3], \"dtype\": \"bf16\"" more "}"
#define UNIT_WITH(kind, items) UNITS("{\"name\": \"a\", \"" kind "\": [" items "]}")

static bp_status parse(const char *text)
{
    bp_model *model = NULL;
    bp_status status = bp_units_parse(text, strlen(text), "d/u.json", NULL, &model);
    assert_true((status == BP_OK) == (model != NULL));
    bp_model_destroy(&model);
    return status;
}

TEST(test_document_errors)
{
    assert_ok(parse(UNIT_WITH("parameters", WEIGHT(""))));
    assert_fails(parse(""), BP_ERR_FORMAT, "d/u.json:", "empty");
    assert_fails(parse("{\n  \"format\": x}"), BP_ERR_FORMAT, "d/u.json:2:13:");
    assert_fails(parse("[]"), BP_ERR_FORMAT, "d/u.json: $:", "an object, got a list");
    assert_fails(parse("{\"a\": 1, \"a\": 2}"), BP_ERR_FORMAT, "d/u.json:1:", "duplicate", "\"a\"");
    assert_fails(parse("{}"), BP_ERR_FORMAT, "$.format", "missing");
    assert_fails(parse("{\"format\": \"bucketpool.units/2\", \"news\": 1}"), BP_ERR_FORMAT, "$.format",
                 "expected \"bucketpool.units/1\", got \"bucketpool.units/2\"");
    assert_fails(parse(HEAD "\"unitz\": []}"), BP_ERR_FORMAT, "$: unknown member \"unitz\"", "units, outside");
    assert_fails(parse("{\"format\": \"bucketpool.units/1\"}"), BP_ERR_FORMAT, "$.units", "missing; expected a list");
    assert_fails(parse(UNITS("")), BP_ERR_FORMAT, "d/u.json", "\"m\" is empty");
    assert_fails(parse(UNITS("3")), BP_ERR_FORMAT, "$.units[0]: expected an object, got 3");
    assert_fails(parse(UNITS("{\"nam\": 1}")), BP_ERR_FORMAT, "$.units[0]: unknown member \"nam\"", "parent");
    assert_fails(parse(UNITS("{}")), BP_ERR_FORMAT, "$.units[0].name: is missing");
    assert_fails(parse(UNITS("{\"name\": \"\"}")), BP_ERR_FORMAT, "$.units[0].name", "not empty");
    assert_fails(parse(UNITS("{\"name\": \"a\\nb\"}")), BP_ERR_FORMAT, "$.units[0].name", "a<0A>b");
    assert_fails(parse(UNITS("{\"name\": \"a\"}, {\"name\": \"a\"}")), BP_ERR_FORMAT, "$.units[1].name",
                 "\"a\" occurs twice");
    assert_fails(parse(UNITS("{\"name\": \"a\", \"parent\": \"b\"}, {\"name\": \"b\"}")), BP_ERR_FORMAT,
                 "$.units[0].parent", "\"b\" is not the name of a unit before this one");
    assert_fails(parse(UNITS("{\"name\": \"a\", \"parameters\": [], \"buckets\": []}")), BP_ERR_FORMAT, "$.units[0]",
                 "parameters and buckets");
    assert_fails(parse(UNITS("{\"name\": \"a\", \"parameters\": {}}")), BP_ERR_FORMAT, "$.units[0].parameters",
                 "a list");
    assert_fails(parse(HEAD "\"units\": [], \"outside\": {\"units\": []}}"), BP_ERR_FORMAT, "$.outside", "\"units\"");
}

TEST(test_arguments)
{
    bp_model *model = NULL;
    bp_reader_options options = {.size = 4};
    assert_fails(bp_units_parse(NULL, 0, "x", NULL, &model), BP_ERR_INVALID_ARGUMENT, "NULL");
    assert_fails(bp_units_parse("{}", 2, "x", &options, &model), BP_ERR_INVALID_ARGUMENT, "size of a struct is 4");
    assert_ok(bp_reader_options_init(&options, sizeof options));
    options.name = "";
    assert_fails(bp_units_parse("{}", 2, "x", &options, &model), BP_ERR_INVALID_ARGUMENT, "name");
    options.name = NULL;
    options.dtype = (bp_dtype)99;
    assert_fails(bp_units_parse("{}", 2, "x", &options, &model), BP_ERR_INVALID_ARGUMENT, "99");
    assert_fails(bp_reader_options_init(&options, 3), BP_ERR_INVALID_ARGUMENT, "size of a struct is 3");
    assert_fails(bp_units_write(NULL, "x"), BP_ERR_INVALID_ARGUMENT, "model");
}

TEST(test_parameter_errors)
{
#define P(more) parse(UNIT_WITH("parameters", WEIGHT(more)))
#define RAW(parameter) parse(UNIT_WITH("parameters", parameter))
    const char *at = "d/u.json: $.units[0].parameters[0]";
    assert_fails(RAW("7"), BP_ERR_FORMAT, at, "an object");
    assert_fails(RAW("{\"shape\": [], \"dtype\": \"bf16\"}"), BP_ERR_FORMAT, at, ".name: is missing");
    assert_fails(RAW("{\"name\": \"w\", \"dtype\": \"bf16\"}"), BP_ERR_FORMAT, at, ".shape: is missing");
    assert_fails(RAW("{\"name\": \"w\", \"shape\": []}"), BP_ERR_FORMAT, at, ".dtype: is missing");
    assert_fails(RAW("{\"name\": \"w\", \"shape\": [], \"dtype\": \"bf15\"}"), BP_ERR_FORMAT, at, ".dtype:", "bf15",
                 "bf16");
    assert_fails(RAW("{\"name\": \"w\", \"shape\": [2, 0], \"dtype\": \"bf16\"}"), BP_ERR_FORMAT, at,
                 ".shape[1]: expected a positive integer, got 0");
    assert_fails(RAW("{\"name\": \"w\", \"shape\": [2.5], \"dtype\": \"bf16\"}"), BP_ERR_FORMAT, at,
                 "a fraction (2.5)");
    assert_fails(RAW("{\"name\": \"w\", \"shape\": [NaN], \"dtype\": \"bf16\"}"), BP_ERR_FORMAT, "d/u.json:1:", "NaN");
    assert_fails(RAW("{\"name\": \"w\", \"shape\": [1,1,1,1,1,1,1,1,1], \"dtype\": \"bf16\"}"), BP_ERR_FORMAT, at,
                 ".shape: 9 dimensions");
    assert_fails(RAW("{\"name\": \"w\", \"shape\": [4611686018427387904, 4], \"dtype\": \"bf16\"}"), BP_ERR_FORMAT, at,
                 "\"w\"");
    assert_fails(RAW("{\"name\": \"w\", \"shape\": [9223372036854775808], \"dtype\": \"bf16\"}"), BP_ERR_FORMAT,
                 "exceeds 64 bits");
    assert_fails(P(", \"gem\": true"), BP_ERR_FORMAT, at, "unknown member \"gem\"", "gemm");
    assert_fails(P(", \"gemm\": 1"), BP_ERR_FORMAT, at, ".gemm: expected true or false, got 1");
    assert_fails(P(", \"gemm\": null"), BP_ERR_FORMAT, at, ".gemm: expected true or false, got null");
    assert_fails(P(", \"copies\": 0"), BP_ERR_FORMAT, at, ".copies", "got 0");
    assert_fails(P(", \"copies\": 4294967296"), BP_ERR_FORMAT, at, ".copies", "from 1 to 4294967295");
    assert_fails(P(", \"copies\": 2"), BP_ERR_FORMAT, at, "'*'");
    assert_fails(P(", \"tp_dim\": 2"), BP_ERR_FORMAT, at, ".tp_dim: expected an integer from 0 to 1, got 2");
    assert_fails(P(", \"tp_dim\": -1"), BP_ERR_FORMAT, at, ".tp_dim", "got -1");
    assert_fails(P(", \"expert_dim\": \"0\""), BP_ERR_FORMAT, at, ".expert_dim", "got \"0\"");
    assert_fails(P(", \"position\": 1"), BP_ERR_FORMAT, at, ".position", "from 0 to 0, got 1");
    assert_fails(RAW("{\"name\": \"w\", \"shape\": [], \"dtype\": \"bf16\", \"tp_dim\": 0}"), BP_ERR_FORMAT, at,
                 "dimension");
    assert_fails(RAW(WEIGHT("") ", " WEIGHT("")), BP_ERR_FORMAT, "d/u.json", "\"w\" occurs twice");
    assert_fails(RAW(WEIGHT(", \"position\": 1") ", " WEIGHT("")), BP_ERR_FORMAT, "$.units[0].parameters[1]",
                 "place 2 of 2");
#undef P
#undef RAW
}

TEST(test_bucket_errors)
{
#define B(bucket) parse(UNIT_WITH("buckets", bucket))
    const char *at = "d/u.json: $.units[0].buckets[0]";
    assert_ok(B("{\"dtype\": \"bf16\", \"numel\": 0}"));
    assert_fails(B("{\"numel\": 1}"), BP_ERR_FORMAT, at, ".dtype: is missing");
    assert_fails(B("{\"dtype\": \"bf16\"}"), BP_ERR_FORMAT, at, ".numel: is missing");
    assert_fails(B("{\"dtype\": \"bf16\", \"numel\": -4}"), BP_ERR_FORMAT, at, ".numel", "got -4");
    assert_fails(B("{\"dtype\": \"bf16\", \"numel\": 9223372036854775807}"), BP_ERR_FORMAT, at, "too large");
    assert_fails(B("{\"dtype\": \"bf16\", \"numel\": 5, \"padded_numel\": 4}"), BP_ERR_FORMAT, at, ".padded_numel",
                 "at least 5, got 4");
    assert_fails(B("{\"dtype\": \"bf16\", \"numel\": 5, \"roles\": []}"), BP_ERR_FORMAT, at, ".roles", "empty");
    assert_fails(B("{\"dtype\": \"bf16\", \"numel\": 5, \"roles\": [\"grat\"]}"), BP_ERR_FORMAT, at, ".roles[0]",
                 "grat");
    assert_fails(B("{\"dtype\": \"bf16\", \"numel\": 5, \"roles\": [32]}"), BP_ERR_FORMAT, at, ".roles[0]",
                 "from 0 to 31");
    assert_fails(B("{\"dtype\": \"bf16\", \"numel\": 5, \"extra\": 1}"), BP_ERR_FORMAT, at, "padded_numel");
    assert_fails(B("{\"dtype\": \"bf16\", \"numel\": 5}, {\"name\": \"bucket.0\", \"dtype\": \"bf16\", \"numel\": 5}"),
                 BP_ERR_FORMAT, "$.units[0].buckets[1]", "\"bucket.0\" occurs twice");
#undef B
}

#define TWO_UNITS                                                                                                      \
    HEAD "\"units\": [{\"name\": \"a\", \"buckets\": [{\"dtype\": \"bf16\", \"numel\": 5}]}, {\"name\": \"b\"}], "

TEST(test_order_and_schedule_errors)
{
    assert_fails(parse(TWO_UNITS "\"order\": []}"), BP_ERR_FORMAT, "d/u.json: $.order");
    assert_fails(parse(TWO_UNITS "\"order\": [\"a\", \"c\"]}"), BP_ERR_FORMAT, "$.order[1]", "\"c\"");
    assert_fails(parse(TWO_UNITS "\"order\": [\"a\"]}"), BP_ERR_FORMAT, "$.order", "\"b\" never runs");
    assert_fails(parse(TWO_UNITS "\"order\": \"a\"}"), BP_ERR_FORMAT, "$.order", "a list");
#define S(event) parse(TWO_UNITS "\"schedule\": [" event "]}")
    assert_ok(S("{\"acquire\": \"a\", \"role\": \"grad\", \"bucket\": \"bucket.0\"}"));
    assert_fails(parse(TWO_UNITS "\"schedule\": {}}"), BP_ERR_FORMAT, "$.schedule", "a list");
    assert_fails(S("{\"role\": \"grad\"}"), BP_ERR_FORMAT, "$.schedule[0]", "\"acquire\" and \"release\"");
    assert_fails(S("{\"acquire\": \"a\", \"release\": \"a\", \"role\": \"grad\"}"), BP_ERR_FORMAT, "$.schedule[0]",
                 "one of");
    assert_fails(S("{\"acquire\": \"c\", \"role\": \"grad\"}"), BP_ERR_FORMAT, "$.schedule[0].acquire", "\"c\"");
    assert_fails(S("{\"acquire\": \"a\", \"role\": \"grad\", \"lane\": \"gahter\"}"), BP_ERR_FORMAT,
                 "$.schedule[0].lane", "\"gahter\"", "outer_reduce");
    assert_fails(S("{\"acquire\": \"a\", \"role\": \"grad\", \"lane\": 16}"), BP_ERR_FORMAT, "$.schedule[0].lane",
                 "16");
    assert_fails(S("{\"acquire\": \"a\"}"), BP_ERR_FORMAT, "$.schedule[0].role", "missing");
    assert_fails(S("{\"acquire\": \"a\", \"role\": -1}"), BP_ERR_FORMAT, "$.schedule[0].role", "got -1");
    assert_fails(S("{\"acquire\": \"a\", \"role\": \"grad\", \"bucket\": \"x\"}"), BP_ERR_FORMAT,
                 "$.schedule[0].bucket", "unit \"a\" has no bucket \"x\"");
    assert_fails(S("{\"acquire\": \"a\", \"role\": \"grad\", \"bucket\": -1}"), BP_ERR_FORMAT, "$.schedule[0].bucket",
                 "got -1");
#undef S
}

static void add_parameter(bp_model *model, const char *name, int32_t unit, uint64_t rows, bp_parameter more)
{
    bp_parameter p = more;
    p.size = sizeof p;
    p.name = name;
    p.unit = unit;
    p.dims = 2;
    p.shape[0] = rows;
    p.shape[1] = 3;
    p.dtype = BP_DTYPE_BF16;
    assert_ok(bp_model_add_parameter(model, &p));
}

static void add_event(bp_model *model, uint32_t acquire, int32_t unit, int32_t bucket, uint32_t role, uint32_t lane)
{
    bp_model_event event = {sizeof event, acquire, unit, bucket, role, lane};
    assert_ok(bp_model_add_event(model, &event));
}

/* A model with every feature of the format, with an execution order that differs from the order of the units. */
static bp_model *make_model(void)
{
    bp_model *model = NULL;
    assert_ok(bp_model_create("a \"model\" \xc3\xa9", &model));
    assert_ok(bp_model_add_unit(model, "layers.0", BP_OUTSIDE, NULL));
    assert_ok(bp_model_add_unit(model, "layers.0.inner", 0, NULL));
    assert_ok(bp_model_add_unit(model, "layers.1", BP_OUTSIDE, NULL));
    bp_parameter plain = {.tp_dim = -1, .expert_dim = -1};
    add_parameter(model, "embedding", BP_OUTSIDE, 7, plain);
    add_parameter(model, "first", 0, 1,
                  (bp_parameter){.tp_dim = 1, .tp_parts = 3, .expert_dim = -1, .flags = BP_PARAMETER_GEMM});
    add_parameter(model, "inner.*", 1, 2,
                  (bp_parameter){.tp_dim = -1, .expert_dim = -1, .copies = 4, .flags = BP_PARAMETER_EXPERT_COPIES});
    add_parameter(
        model, "last", 0, 3,
        (bp_parameter){.tp_dim = -1, .expert_dim = 0, .flags = BP_PARAMETER_FROZEN | BP_PARAMETER_PREDICTION});
    add_parameter(model, "head", BP_OUTSIDE, UINT64_C(1) << 50, plain);
    bp_given_bucket buckets[] = {
        {.name = "x", .unit = 2, .dtype = BP_DTYPE_FP8_E4M3, .numel = 5, .padded_numel = 8, .expert = 1, .frozen = 1},
        {.unit = BP_OUTSIDE, .dtype = BP_DTYPE_UINT8, .numel = 9},
        {.unit = 2, .dtype = BP_DTYPE_FP32, .numel = 0, .roles = BP_ROLE_BIT(BP_ROLE_GRAD) | 1u << 31},
    };
    for (size_t i = 0; i < 3; i++) {
        buckets[i].size = sizeof *buckets;
        assert_ok(bp_model_add_bucket(model, &buckets[i]));
    }
    const uint32_t order[] = {2, 0, 2};
    assert_ok(bp_model_set_order(model, order, 3));
    add_event(model, 1, 2, 1, BP_ROLE_GRAD, BP_MODEL_EVENT_NO_LANE);
    add_event(model, 0, 2, -1, 4000000000u, BP_LANE_OUTER_REDUCE);
    add_event(model, 0, 2, -1, BP_ROLE_GRAD, BP_LANE_COUNT - 1);
    return model;
}

static void assert_same_models(const bp_model *a, const bp_model *b)
{
    assert_string_equal(bp_model_get_info(a)->name, bp_model_get_info(b)->name);
    assert_int_equal(bp_model_get_info(a)->unit_count, bp_model_get_info(b)->unit_count);
    for (size_t i = 0; i < bp_model_get_info(a)->unit_count; i++) {
        assert_string_equal(bp_model_get_info(a)->units[i].name, bp_model_get_info(b)->units[i].name);
        assert_int_equal(bp_model_get_info(a)->units[i].parent, bp_model_get_info(b)->units[i].parent);
    }
    assert_int_equal(bp_model_get_info(a)->parameter_count, bp_model_get_info(b)->parameter_count);
    for (size_t i = 0; i < bp_model_get_info(a)->parameter_count; i++) {
        bp_parameter p = parameter_at(a, i), q = parameter_at(b, i);
        assert_string_equal(p.name, q.name);
        p.name = q.name = NULL;
        assert_memory_equal(&p, &q, sizeof p);
    }
    assert_int_equal(bp_model_get_info(a)->given_bucket_count, bp_model_get_info(b)->given_bucket_count);
    for (size_t i = 0; i < bp_model_get_info(a)->given_bucket_count; i++) {
        bp_given_bucket p = *bp_model_get_info(a)->given_buckets[i], q = *bp_model_get_info(b)->given_buckets[i];
        assert_true((p.name == NULL) == (q.name == NULL) && (p.name == NULL || strcmp(p.name, q.name) == 0));
        assert_true(p.unit == q.unit && p.dtype == q.dtype && p.numel == q.numel && p.padded_numel == q.padded_numel);
        assert_true(p.expert == q.expert && p.frozen == q.frozen && p.roles == q.roles);
    }
    assert_int_equal(bp_model_get_info(a)->order_count, bp_model_get_info(b)->order_count);
    for (size_t i = 0; i < bp_model_get_info(a)->order_count; i++)
        assert_int_equal(bp_model_get_info(a)->order[i], bp_model_get_info(b)->order[i]);
    assert_int_equal(bp_model_get_info(a)->event_count, bp_model_get_info(b)->event_count);
    for (size_t i = 0; i < bp_model_get_info(a)->event_count; i++) {
        bp_model_event p = *bp_model_get_info(a)->events[i], q = *bp_model_get_info(b)->events[i];
        assert_true(p.acquire == q.acquire && p.unit == q.unit && p.bucket == q.bucket && p.role == q.role &&
                    p.lane == q.lane);
    }
    assert_int_equal(bp_model_get_info(a)->numel, bp_model_get_info(b)->numel);
    assert_int_equal(bp_model_get_info(a)->prediction_numel, bp_model_get_info(b)->prediction_numel);
}

SCRATCH_TEST(test_roundtrip)
{
    SCOPED(bp_model_destroy) bp_model *model = make_model(), *read = NULL;
    assert_ok(bp_units_write(model, in_scratch("u.json")));
    assert_ok(bp_model_read(in_scratch("u.json"), NULL, &read));
    assert_same_models(model, read);
    assert_ok(bp_units_write(read, in_scratch("v.json"))); /* the second round trip is byte-identical */
    FILE *first = fopen(in_scratch("u.json"), "r"), *second = fopen(in_scratch("v.json"), "r");
    int a, b;
    do {
        a = getc(first);
        b = getc(second);
        assert_int_equal(a, b);
    } while (a != EOF);
    fclose(first);
    fclose(second);
    bp_model_destroy(&read);
    bp_reader_options options = options_with_units(NULL);
    options.name = "other";
    assert_ok(bp_model_read(in_scratch("u.json"), &options, &read));
    assert_string_equal(bp_model_get_info(read)->name, "other");
}

SCRATCH_TEST(test_write_refuses)
{
    bp_model *model = NULL;
    assert_ok(bp_model_create("m", &model));
    assert_fails(bp_units_write(model, in_scratch("u.json")), BP_ERR_INVALID_ARGUMENT, "empty");
    bp_model_destroy(&model);

    assert_ok(bp_model_create("m\x1b", &model));
    bp_given_bucket bucket = {.size = sizeof bucket, .unit = BP_OUTSIDE, .dtype = BP_DTYPE_INT8, .numel = 1};
    assert_ok(bp_model_add_bucket(model, &bucket));
    assert_fails(bp_units_write(model, NULL), BP_ERR_INVALID_ARGUMENT, "path");
    assert_fails(bp_units_write(model, in_scratch("u.json")), BP_ERR_INVALID_ARGUMENT, "m<1B>", "control");
    bp_model_destroy(&model);

    model = make_model();
    bucket.unit = 0;
    assert_ok(bp_model_add_bucket(model, &bucket));
    assert_fails(bp_units_write(model, in_scratch("u.json")), BP_ERR_INVALID_ARGUMENT, "layers.0",
                 "parameters and buckets");
    bp_model_destroy(&model);

    assert_ok(bp_model_create("m", &model));
    bucket = (bp_given_bucket){
        .size = sizeof bucket, .name = "\xff", .unit = BP_OUTSIDE, .dtype = BP_DTYPE_INT8, .numel = 1};
    assert_ok(bp_model_add_bucket(model, &bucket));
    assert_fails(bp_units_write(model, in_scratch("u.json")), BP_ERR_INVALID_ARGUMENT, "bucket \"<FF>\"", "UTF-8");
    bp_model_destroy(&model);
    assert_int_equal(count_entries(scratch), 0);
}

SCRATCH_TEST(test_write_fails_whole)
{
    SCOPED(bp_model_destroy) bp_model *model = make_model();
    make_directory("d");
    assert_fails(bp_units_write(model, in_scratch("d")), BP_ERR_IO, "/d:", "directory");
    assert_fails(bp_units_write(model, in_scratch("gone/u.json")), BP_ERR_IO, "gone/u.json", "No such file");
    assert_int_equal(count_entries(scratch), 1);

    /* A full disk: the old file stays as it was and no temporary one is left. */
    write_text("u.json", "old");
    struct rlimit before, little;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    little = before;
    little.rlim_cur = 100;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &little), 0);
    bp_status status = bp_units_write(model, in_scratch("u.json"));
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_fails(status, BP_ERR_IO, "u.json", "too large");
    assert_int_equal(count_entries(scratch), 2);
    char old[8] = "";
    FILE *file = fopen(in_scratch("u.json"), "r");
    assert_int_equal(fread(old, 1, sizeof old, file), 3);
    fclose(file);
    assert_string_equal(old, "old");
}

SCRATCH_TEST(test_write_keeps_links_and_modes)
{
    SCOPED(bp_model_destroy) bp_model *model = make_model(), *read = NULL;
    struct stat about;
    write_text("target.json", "old");
    assert_int_equal(chmod(in_scratch("target.json"), 0640), 0);
    assert_int_equal(symlink("target.json", in_scratch("link.json")), 0);
    assert_ok(bp_units_write(model, in_scratch("link.json")));
    assert_int_equal(lstat(in_scratch("link.json"), &about), 0);
    assert_true(S_ISLNK(about.st_mode));
    assert_int_equal(stat(in_scratch("target.json"), &about), 0);
    assert_int_equal(about.st_mode & 0777, 0640);
    assert_ok(bp_model_read(in_scratch("target.json"), NULL, &read));
    assert_int_equal(count_entries(scratch), 2);
    assert_ok(bp_units_write(model, "/dev/null"));
    assert_int_equal(stat("/dev/null", &about), 0);
    assert_true(S_ISCHR(about.st_mode));
}

TESTS(NULL, NULL)
