/* SPDX-License-Identifier: Apache-2.0 */
/* Exact bytes of pools and lower bounds, and parameter totals, of the bundled models. The figures apply NVIDIA's rules to the
 * published architectures and were computed without this library; all at dp 64, bf16. Arguments: the source directory. */
#include "support/harness.h"

#include <bucketpool/formats.h>

#include <stdio.h>

static const char *source_root;

static void read_model(const char *name, bp_layout layout, bp_model **model)
{
    char path[1024];
    SCOPED(bp_model_destroy) bp_model *published = NULL;
    snprintf(path, sizeof path, "%s/examples/models/%s", source_root, name);
    if (bp_model_read(path, NULL, &published) != BP_OK)
        fail_msg("%s", bp_error_detail());
    assert_int_equal(bp_model_with_layout(published, layout, model), BP_OK);
}

typedef struct request {
    const char *model;
    uint32_t ep, prefetch;
    bp_padding padding;
    bp_policy policy;
} request;

/* Bytes of the parameter role, and its lower bound. */
static void plan_params(const request *r, uint64_t *bytes, uint64_t *bound)
{
    SCOPED(bp_model_destroy) bp_model *whole = NULL, *local = NULL;
    read_model(r->model, BP_LAYOUT_MEGATRON, &whole);
    assert_int_equal(bp_model_shard(whole, 1, r->ep, &local), BP_OK);
    bp_buckets_config buckets_config;
    assert_int_equal(bp_buckets_config_init(&buckets_config, sizeof buckets_config), BP_OK);
    buckets_config.dp = 64;
    buckets_config.ep = r->ep;
    buckets_config.padding = r->padding;
    SCOPED(bp_buckets_destroy) bp_buckets *buckets = NULL;
    assert_int_equal(bp_buckets_create(local, &buckets_config, &buckets), BP_OK);
    bp_schedule_config schedule_config;
    assert_int_equal(bp_schedule_config_init(&schedule_config, sizeof schedule_config), BP_OK);
    schedule_config.prefetch = r->prefetch;
    SCOPED(bp_schedule_destroy) bp_schedule *schedule = NULL;
    assert_int_equal(bp_schedule_create_training(buckets, &schedule_config, &schedule), BP_OK);
    bp_plan_config config;
    assert_int_equal(bp_plan_config_init(&config, sizeof config), BP_OK);
    config.policy = r->policy;
    SCOPED(bp_plan_destroy) bp_plan *plan = NULL;
    assert_int_equal(bp_plan_create(buckets, schedule, &config, &plan), BP_OK);
    assert_int_equal(bp_plan_get_info(plan)->role_count, 2);
    const bp_plan_role param = bp_plan_get_info(plan)->roles[0], grad = bp_plan_get_info(plan)->roles[1];
    *bytes = param.bytes;
    *bound = param.lower_bound_bytes;
    /* with prefetch depth 1 gradients of the same dtype have the conflicts of parameters */
    if (r->prefetch == 1) {
        assert_int_equal(grad.bytes, param.bytes);
        assert_int_equal(grad.lower_bound_bytes, param.lower_bound_bytes);
    }
}

TEST(test_max_pool_bytes)
{
    static const struct {
        const char *model;
        uint32_t ep, prefetch;
        bp_padding padding;
        uint64_t max, bound;
    } cases[] = {
        {"Nemotron-3-Nano-30B-A3B", 1, 1, BP_PADDING_MEGATRON_LCM, 5208440832, 2692300800},
        {"Nemotron-3-Nano-30B-A3B", 1, 2, BP_PADDING_MEGATRON_LCM, 7812661248, 5296521216},
        {"Nemotron-3-Nano-30B-A3B", 1, 1, BP_PADDING_MEGATRON_SPLIT, 5190811648, 2673356800},
        {"Nemotron-3-Nano-30B-A3B", 1, 2, BP_PADDING_MEGATRON_SPLIT, 7786217472, 5268762624},
        {"Nemotron-3-Nano-30B-A3B", 8, 1, BP_PADDING_MEGATRON_LCM, 738361344, 457261056},
        {"Nemotron-3-Nano-30B-A3B", 8, 2, BP_PADDING_MEGATRON_LCM, 1107542016, 826441728},
        {"Nemotron-3-Nano-30B-A3B", 8, 1, BP_PADDING_MEGATRON_SPLIT, 720732160, 438317056},
        {"Nemotron-3-Nano-30B-A3B", 8, 2, BP_PADDING_MEGATRON_SPLIT, 1081098240, 798683136},
        {"Nemotron-3-Super-120B-A12B", 8, 1, BP_PADDING_MEGATRON_LCM, 1629487104, 1034944512},
        {"Nemotron-3-Super-120B-A12B", 8, 2, BP_PADDING_MEGATRON_LCM, 2444230656, 1849688064},
        {"Nemotron-3-Super-120B-A12B", 8, 1, BP_PADDING_MEGATRON_SPLIT, 1628766208, 1034604544},
        {"Nemotron-3-Super-120B-A12B", 8, 2, BP_PADDING_MEGATRON_SPLIT, 2443149312, 1848987648},
        {"Nemotron-H-47B", 1, 1, BP_PADDING_MEGATRON_LCM, 2044723200, 2044723200},
        {"Nemotron-H-47B", 1, 2, BP_PADDING_MEGATRON_LCM, 3067084800, 3067084800},
        {"Nemotron-H-47B", 1, 1, BP_PADDING_MEGATRON_SPLIT, 2764046336, 2021130240},
        {"Nemotron-H-47B", 1, 2, BP_PADDING_MEGATRON_SPLIT, 4146069504, 3031695360},
        {"Nemotron-Nano-9B-v2", 1, 1, BP_PADDING_MEGATRON_LCM, 605552640, 605552640},
        {"Nemotron-Nano-9B-v2", 1, 2, BP_PADDING_MEGATRON_LCM, 908328960, 890552320},
        {"Nemotron-Nano-9B-v2", 1, 1, BP_PADDING_MEGATRON_SPLIT, 687226880, 592363520},
        {"Nemotron-Nano-9B-v2", 1, 2, BP_PADDING_MEGATRON_SPLIT, 1030840320, 875356160},
        {"DeepSeek-V3", 8, 1, BP_PADDING_MEGATRON_LCM, 6606028800, 6606028800},
        {"DeepSeek-V3", 8, 2, BP_PADDING_MEGATRON_LCM, 9909043200, 9909043200},
        {"DeepSeek-V3", 8, 1, BP_PADDING_MEGATRON_SPLIT, 6573260800, 6573260800},
        {"DeepSeek-V3", 8, 2, BP_PADDING_MEGATRON_SPLIT, 9859891200, 9859891200},
        {"DeepSeek-V3", 32, 1, BP_PADDING_MEGATRON_LCM, 3347054592, 2378170368},
        {"DeepSeek-V3", 32, 2, BP_PADDING_MEGATRON_LCM, 5020581888, 3567255552},
        {"DeepSeek-V3", 32, 1, BP_PADDING_MEGATRON_SPLIT, 2674917376, 2345402368},
        {"DeepSeek-V3", 32, 2, BP_PADDING_MEGATRON_SPLIT, 4012376064, 3518103552},
        {"Llama-3.1-8B", 1, 1, BP_PADDING_MEGATRON_LCM, 873463808, 873463808},
        {"Llama-3.1-8B", 1, 2, BP_PADDING_MEGATRON_LCM, 1310195712, 1310195712},
        {"Llama-3.1-8B", 1, 1, BP_PADDING_MEGATRON_SPLIT, 876085248, 876085248},
        {"Llama-3.1-8B", 1, 2, BP_PADDING_MEGATRON_SPLIT, 1314127872, 1314127872},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        request r = {cases[i].model, cases[i].ep, cases[i].prefetch, cases[i].padding, BP_POLICY_MAX};
        uint64_t bytes, bound;
        plan_params(&r, &bytes, &bound);
        if (bytes != cases[i].max || bound != cases[i].bound)
            fail_msg("%s ep %u prefetch %u padding %d: max %llu, bound %llu; expected %llu, %llu", r.model, r.ep,
                     r.prefetch, (int)r.padding, (unsigned long long)bytes, (unsigned long long)bound,
                     (unsigned long long)cases[i].max, (unsigned long long)cases[i].bound);
    }
}

/* GiB in the reference table, rounded there to three significant digits: fixed, max, bound. 0: not in the table. */
TEST(test_table)
{
    static const struct {
        const char *model;
        uint32_t ep;
        double fixed, max, bound;
    } rows[] = {
        {"Nemotron-3-Nano-30B-A3B", 1, 56.3, 4.85, 2.51},
        {"Nemotron-3-Nano-30B-A3B", 8, 8.38, 0.69, 0.43},
        {"Nemotron-3-Super-120B-A12B", 1, 19.5, 10.7, 5.56},
        {"Nemotron-3-Super-120B-A12B", 8, 10.3, 1.52, 0.96},
        {"Nemotron-3-Ultra-550B-A55B", 8, 0, 5.77, 3.67},
        {"Nemotron-H-8B", 1, 8.85, 0.68, 0.54},
        {"Nemotron-H-47B", 1, 40.1, 1.90, 1.90},
        {"Nemotron-Nano-9B-v2", 1, 7.63, 0.56, 0.56},
        {"DeepSeek-V3", 8, 9.47, 6.15, 6.15},
        {"DeepSeek-V3", 32, 0, 3.12, 2.21},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const double expected[3] = {rows[i].fixed, rows[i].max, rows[i].bound};
        for (int k = 0; k < 2; k++) {
            request r = {rows[i].model, rows[i].ep, 1, BP_PADDING_MEGATRON_LCM,
                         k == 0 ? BP_POLICY_FIXED : BP_POLICY_MAX};
            uint64_t bytes, bound;
            plan_params(&r, &bytes, &bound);
            double got = (double)bytes / 0x1p30, digits = expected[k] >= 10 ? 0.1 : 0.01;
            if (expected[k] > 0 && (got < expected[k] - digits / 2 - 1e-9 || got > expected[k] + digits / 2 + 1e-9))
                fail_msg("%s ep %u: %.4f GiB, expected %.2f", r.model, r.ep, got, expected[k]);
            assert_true((double)bound / 0x1p30 > expected[2] - 0.006 && (double)bound / 0x1p30 < expected[2] + 0.006);
        }
    }
}

/* Uniform stacks: fixed and max both reach the bound. */
TEST(test_uniform_stacks)
{
    static const char *const models[] = {"Llama-3.1-8B", "Llama-3.1-70B", "Mixtral-8x7B", "Gemma-3-27B",
                                         "gpt-oss-120b"};
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        for (int k = 0; k < 2; k++) {
            request r = {models[i], 1, 1, BP_PADDING_MEGATRON_LCM, k == 0 ? BP_POLICY_FIXED : BP_POLICY_MAX};
            uint64_t bytes, bound;
            plan_params(&r, &bytes, &bound);
            assert_int_equal(bytes, bound);
        }
    }
}

/* Parameters without prediction layers. Megatron keeps the projection and norms of a prediction layer outside its units, so
 * they count; the publishers do not count them. docs/concepts/layouts.md explains the difference. */
TEST(test_parameter_totals)
{
    static const struct {
        const char *model;
        double megatron; /* billions, three decimals */
        uint64_t published;
    } totals[] = {
        {"DeepSeek-V3", 671.129, 671026419200},
        {"Gemma-3-27B", 27.009, 27009346304},
        {"Granite-4.0-H-Small", 32.207, 32207337984},
        {"Llama-3.1-8B", 8.030, 8030261248},
        {"Llama-3.1-70B", 70.554, 70553706496},
        {"Mixtral-8x7B", 46.703, 46702792704},
        {"Nemotron-3-Nano-30B-A3B", 31.578, 31577937344},
        {"Nemotron-3-Super-120B-A12B", 120.702, 120668687360},
        {"Nemotron-3-Ultra-550B-A55B", 549.443, 549308968960}, /* 549.309 without its prediction layer's projection */
        {"Nemotron-H-8B", 8.101, 8100852736},
        {"Nemotron-H-47B", 46.792, 46791554816},
        {"Nemotron-Nano-9B-v2", 8.888, 8888227328},
        {"Qwen3-Next-80B-A3B", 79.674, 79674391296},
        {"gpt-oss-120b", 116.829, 116829156672},
    };
    for (size_t i = 0; i < sizeof totals / sizeof *totals; i++) {
        SCOPED(bp_model_destroy) bp_model *model = NULL;
        read_model(totals[i].model, BP_LAYOUT_HF, &model);
        assert_int_equal(bp_model_get_info(model)->numel, totals[i].published);
        bp_model_destroy(&model);
        read_model(totals[i].model, BP_LAYOUT_MEGATRON, &model);
        double billions = (double)bp_model_get_info(model)->numel / 1e9;
        if (billions < totals[i].megatron - 0.0005 || billions > totals[i].megatron + 0.0005)
            fail_msg("%s: %.6f billion parameters, expected %.3f", totals[i].model, billions, totals[i].megatron);
    }
}

int main(int argc, char **argv)
{
    if (argc != 2)
        return 2;
    source_root = argv[1];
    return run_registered(NULL, NULL, NULL, NULL);
}
