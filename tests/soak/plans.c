/* SPDX-License-Identifier: Apache-2.0 */
/* Random models and units, their plans by all policies, and files of both. */
#include "soak.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_BYTES 65536 /* of a text that is read with wrong bytes */

static const char *const MODELS[] = {"Qwen3-0.6B",        "Nemotron-3-Nano-30B-A3B", "Gemma-3-1B-it",
                                     "Mixtral-8x7B",      "Qwen3-Next-80B-A3B",      "DeepSeek-V3",
                                     "Granite-4.0-H-Tiny"};
#define MODEL_COUNT ((uint32_t)(sizeof MODELS / sizeof *MODELS))

static uint32_t any(dice *d, const uint32_t *values, size_t count)
{
    return values[below(d, (uint32_t)count)];
}
#define ANY(d, ...) any(d, (const uint32_t[]){__VA_ARGS__}, sizeof((const uint32_t[]){__VA_ARGS__}) / sizeof(uint32_t))

static bp_model *random_model(dice *d, uint32_t units)
{
    bp_model *model = NULL;
    char name[32];
    must_ok(bp_model_create("soak", &model));
    for (uint32_t u = 0; u < units; u++) {
        uint32_t unit = 0;
        snprintf(name, sizeof name, "layers.%u", u);
        must_ok(bp_model_add_unit(model, name, BP_OUTSIDE, &unit));
        for (uint32_t buckets = 1 + below(d, 3); buckets > 0; buckets--) {
            bp_given_bucket bucket = {.size = sizeof bucket, .unit = (int32_t)unit, .frozen = chance(d, 10)};
            bucket.dtype = chance(d, 2) ? BP_DTYPE_BF16 : BP_DTYPE_FP32;
            bucket.numel = ANY(d, 100, 300, 5000);
            bucket.padded_numel = bucket.numel + (chance(d, 3) ? 256 : 0);
            must_ok(bp_model_add_bucket(model, &bucket));
        }
    }
    return model;
}

/* Acquires and releases whole units at random, each at least once. */
static void record(dice *d, bp_model *model, uint32_t units)
{
    bool live[16] = {false}, used[16] = {false};
    bp_model_event event = {.size = sizeof event, .bucket = -1, .role = BP_ROLE_PARAM, .lane = BP_MODEL_EVENT_NO_LANE};
    for (uint32_t n = 0; n < 4 * units; n++) {
        uint32_t u = n < 3 * units ? below(d, units) : n - 3 * units;
        if (n >= 3 * units && used[u])
            continue;
        event.unit = (int32_t)u;
        event.acquire = !live[u];
        live[u] = !live[u];
        used[u] = true;
        must_ok(bp_model_add_event(model, &event));
    }
    for (uint32_t u = 0; u < units; u++) {
        event.unit = (int32_t)u;
        event.acquire = 0;
        if (live[u])
            must_ok(bp_model_add_event(model, &event));
    }
}

static bp_schedule_config random_timing(dice *d, bool fsdp2)
{
    bp_schedule_config timing;
    must_ok(bp_schedule_config_init(&timing, sizeof timing));
    timing.prefetch = below(d, 3);
    timing.grad_units = 1 + below(d, 3);
    timing.passes = (bp_passes)below(d, 3);
    timing.prefetch_backward = chance(d, 2) ? BP_PREFETCH_SAME : below(d, 3);
    timing.keep_after_forward = chance(d, 4);
    timing.recompute = chance(d, 4);
    if (!fsdp2) { /* which does not have them */
        timing.streams = (bp_streams)below(d, 2);
        timing.outside = (bp_outside)below(d, 2);
    }
    timing.microbatches = chance(d, 6) ? 2 + below(d, 3) : 0;
    return timing;
}

scenario random_scenario(dice *d)
{
    scenario c = {0};
    uint32_t units = 2 + below(d, 8);
    bool recorded = chance(d, 4);
    c.model = random_model(d, units);
    if (recorded)
        record(d, c.model, units);
    bp_buckets_config config;
    must_ok(bp_buckets_config_init(&config, sizeof config));
    c.fsdp2 = !recorded && chance(d, 4);
    config.bucketing = c.fsdp2 ? BP_BUCKETING_FSDP2 : BP_BUCKETING_GIVEN;
    config.padding = BP_PADDING_GIVEN;
    config.dp = 1;
    config.roles = BP_ROLE_BIT(BP_ROLE_PARAM);
    if (!recorded)
        config.roles |= ANY(d, 0, BP_ROLE_BIT(BP_ROLE_GRAD), BP_ROLE_BIT(BP_ROLE_GRAD) | BP_ROLES_STATE);
    must_ok(bp_buckets_create(c.model, &config, &c.buckets));
    if (recorded) {
        bp_recorded_config recording;
        must_ok(bp_recorded_config_init(&recording, sizeof recording));
        recording.overlap_window = below(d, 3);
        must_ok(bp_schedule_create_recorded(c.model, c.buckets, &recording, &c.schedule));
        return c;
    }
    bp_schedule_config timing = random_timing(d, c.fsdp2);
    must_ok(bp_schedule_create_training(c.buckets, &timing, &c.schedule));
    if (!chance(d, 4))
        return c;
    bp_schedule *parts[2] = {c.schedule, NULL}, *merged = NULL;
    timing = random_timing(d, c.fsdp2);
    must_ok(bp_schedule_create_training(c.buckets, &timing, &parts[1]));
    must_ok(bp_schedule_create_merged((const bp_schedule *const *)parts, 2, &merged));
    for (size_t i = 0; i < 2; i++)
        bp_schedule_destroy(&parts[i]);
    c.schedule = merged;
    return c;
}

void free_scenario(scenario *c)
{
    bp_schedule_destroy(&c->schedule);
    bp_buckets_destroy(&c->buckets);
    bp_model_destroy(&c->model);
}

bp_plan *random_plan(dice *d, const scenario *c)
{
    bp_plan_config config;
    bp_plan *plan = NULL;
    must_ok(bp_plan_config_init(&config, sizeof config));
    config.policy = (bp_policy)(1 + below(d, 4));
    config.fallback = chance(d, 2) ? BP_FALLBACK_PERSISTENT : BP_FALLBACK_DYNAMIC;
    config.alignment = ANY(d, 256, 512, 4096);
    config.joint = config.policy == BP_POLICY_SCHEDULED && chance(d, 3);
    config.work = 1u << 16;
    must_ok(bp_plan_create(c->buckets, c->schedule, &config, &plan));
    must(bp_plan_get_info(plan)->feasible);
    bp_status status = bp_plan_check(plan, c->buckets, c->schedule);
    must(status == BP_OK ||
         (status == BP_ERR_UNSUPPORTED && !bp_plan_get_info(plan)->stable)); /* no address to check */
    if (bp_plan_get_info(plan)->slab_count > 0 && chance(d, 4))
        must_ok(bp_plan_set_group(plan, 0, "first"));
    must_ok(bp_plan_set_option(plan, "soak", "random"));
    return plan;
}

bp_plan *stable_plan(dice *d, const scenario *c)
{
    bp_plan *plan = random_plan(d, c);
    while (!bp_plan_get_info(plan)->stable) {
        bp_plan_destroy(&plan);
        plan = random_plan(d, c);
    }
    return plan;
}

/* ---- planning ------------------------------------------------------------------------------------------------------- */

static void look_around(dice *d, const scenario *c)
{
    bp_plan_config config;
    bp_schedule_config timing = random_timing(d, c->fsdp2);
    bp_alternatives_config around;
    bp_alternatives *alternatives = NULL;
    bp_plan *plan = NULL;
    bp_peaks *peaks = NULL;
    must_ok(bp_plan_config_init(&config, sizeof config));
    must_ok(bp_alternatives_config_init(&around, sizeof around));
    config.policy = BP_POLICY_SCHEDULED;
    config.work = around.work = 1u << 14;
    around.max_prefetch = 1;
    must_ok(bp_alternatives_create(c->buckets, &timing, &config, &around, &alternatives));
    must(bp_alternatives_get_info(alternatives)->alternative_count > 0);
    must_ok(bp_plan_create(c->buckets, c->schedule, &config, &plan));
    must_ok(bp_peaks_create(c->buckets, c->schedule, plan, &peaks));
    must(bp_peaks_get_info(peaks)->peak_count > 0);
    bp_peaks_destroy(&peaks);
    bp_plan_destroy(&plan);
    bp_alternatives_destroy(&alternatives);
}

/* Two models that run one after the other in one pool. */
static void share(dice *d)
{
    scenario parts[2] = {random_scenario(d), random_scenario(d)}, whole = {0};
    bp_schedule *embedded[2] = {NULL, NULL};
    must_ok(bp_buckets_create_merged((const bp_buckets *const[]){parts[0].buckets, parts[1].buckets},
                                     (const char *const[]){"policy", "reference"}, 2, &whole.buckets));
    for (size_t i = 0; i < 2; i++)
        must_ok(bp_schedule_create_embedded(parts[i].schedule, whole.buckets, i, &embedded[i]));
    must_ok(bp_schedule_create_merged((const bp_schedule *const *)embedded, 2, &whole.schedule));
    bp_plan *plan = random_plan(d, &whole);
    bp_plan_destroy(&plan);
    for (size_t i = 0; i < 2; i++) {
        bp_schedule_destroy(&embedded[i]);
        free_scenario(&parts[i]);
    }
    free_scenario(&whole);
}

static bp_model *published_model(const soak *s, dice *d)
{
    char path[512];
    bp_model *model = NULL, *sharded = NULL;
    snprintf(path, sizeof path, "%s/examples/models/%s", s->sources, MODELS[below(d, MODEL_COUNT)]);
    must_ok(bp_model_read(path, NULL, &model));
    bp_model *laid_out = NULL;
    must_ok(bp_model_with_layout(model, chance(d, 2) ? BP_LAYOUT_HF : BP_LAYOUT_MEGATRON, &laid_out));
    must_ok(bp_model_shard(laid_out, 1, 1, &sharded));
    bp_model_destroy(&laid_out);
    bp_model_destroy(&model);
    return sharded;
}

static void plan_published(const soak *s, dice *d)
{
    scenario c = {.model = published_model(s, d)};
    bp_schedule_config timing = random_timing(d, false);
    bp_plan_config config;
    bp_plan *plan = NULL;
    timing.microbatches = 0;
    must_ok(bp_buckets_create(c.model, NULL, &c.buckets));
    must_ok(bp_schedule_create_training(c.buckets, &timing, &c.schedule));
    must_ok(bp_plan_config_init(&config, sizeof config));
    config.policy = (bp_policy)(2 + below(d, 3));
    config.work = 1u << 18;
    must_ok(bp_plan_create(c.buckets, c.schedule, &config, &plan));
    bp_plan_destroy(&plan);
    free_scenario(&c);
}

void plan_round(soak *s)
{
    dice *d = &s->dice;
    scenario c = random_scenario(d);
    for (uint32_t n = 1 + below(d, 4); n > 0; n--) {
        bp_plan *plan = random_plan(d, &c);
        bp_plan_destroy(&plan);
    }
    look_around(d, &c);
    free_scenario(&c);
    share(d);
    if (chance(d, 4))
        plan_published(s, d);
}

/* ---- files ---------------------------------------------------------------------------------------------------------- */

static size_t load(const char *path, char *text)
{
    FILE *file = fopen(path, "re");
    must(file != NULL);
    size_t bytes = fread(text, 1, MAX_BYTES, file);
    fclose(file);
    return bytes;
}

/* Reads the text with a few wrong bytes, or cut: an error or an object, never more. */
static void misread(soak *s, char *text, size_t bytes, int kind)
{
    dice *d = &s->dice;
    for (uint32_t n = 1 + below(d, 4); n > 0 && bytes > 0; n--)
        text[below(d, (uint32_t)bytes)] = (char)below(d, 256);
    if (chance(d, 4))
        bytes = below(d, (uint32_t)bytes + 1);
    bp_model *model = NULL;
    bp_plan *plan = NULL;
    bp_status status = kind == 0   ? bp_units_parse(text, bytes, "wrong bytes", NULL, &model)
                       : kind == 1 ? bp_plan_parse(text, bytes, "wrong bytes", &plan)
                                   : bp_config_parse(text, bytes, "wrong bytes", NULL, &model);
    must(status == BP_OK || (model == NULL && plan == NULL && *bp_error_detail() != '\0'));
    s->refusals += status != BP_OK;
    bp_model_destroy(&model);
    bp_plan_destroy(&plan);
}

static void parse_safetensors(dice *d)
{
    char data[1024] = {0}, *json = data + 8;
    uint32_t layers = 1 + below(d, 3), at = 0;
    size_t bytes = (size_t)snprintf(json, 1000, "{");
    for (uint32_t i = 0; i < layers; i++, at += 64)
        bytes +=
            (size_t)snprintf(json + bytes, 1000 - bytes,
                             "%s\"model.layers.%u.w\":{\"dtype\":\"F32\",\"shape\":[4,4],\"data_offsets\":[%u,%u]}",
                             i > 0 ? "," : "", i, at, at + 64);
    bytes += (size_t)snprintf(json + bytes, 1000 - bytes, "}");
    for (size_t i = 0; i < 8; i++)
        data[i] = (char)(bytes >> 8 * i & 0xff);
    bp_model *model = NULL;
    must_ok(bp_safetensors_parse(data, 8 + bytes, 8 + bytes + at, "tensors", NULL, &model));
    must(bp_model_get_info(model)->unit_count == layers);
    bp_model_destroy(&model);
}

/* Other processes of the soak write this file, too, and are killed meanwhile: it is complete or missing. */
static void share_file(const soak *s, const bp_plan *plan)
{
    bp_plan *read = NULL;
    const char *path = path_in(s, "shared.plan.json");
    must_ok(bp_plan_write(plan, path));
    must_ok(bp_plan_read(path, &read));
    bp_plan_destroy(&read);
}

void format_round(soak *s)
{
    dice *d = &s->dice;
    static char text[MAX_BYTES];
    char path[512], prints[2][BP_FINGERPRINT_CHARS];
    scenario c = random_scenario(d);
    bp_plan *plan = stable_plan(d, &c), *read = NULL;
    bp_model *model = NULL;
    must_ok(bp_units_write(c.model, own_path(s, "units.json")));
    must_ok(bp_model_read(own_path(s, "units.json"), NULL, &model));
    must(bp_model_get_info(model)->given_bucket_count == bp_model_get_info(c.model)->given_bucket_count);
    bp_model_destroy(&model);
    misread(s, text, load(own_path(s, "units.json"), text), 0);
    must_ok(bp_plan_write(plan, own_path(s, "plan.json")));
    must_ok(bp_plan_read(own_path(s, "plan.json"), &read));
    must_ok(bp_plan_fingerprint(plan, prints[0]));
    must_ok(bp_plan_fingerprint(read, prints[1]));
    must(strcmp(prints[0], prints[1]) == 0);
    bp_plan_destroy(&read);
    misread(s, text, load(own_path(s, "plan.json"), text), 1);
    snprintf(path, sizeof path, "%s/examples/models/%s/config.json", s->sources, MODELS[below(d, MODEL_COUNT)]);
    misread(s, text, load(path, text), 2);
    parse_safetensors(d);
    share_file(s, plan);
    must(bp_plan_read(path_in(s, "missing.json"), &read) == BP_ERR_IO);
    must(bp_plan_write(plan, path_in(s, "missing/soak.json")) == BP_ERR_IO);
    s->refusals += 2;
    bp_plan_destroy(&plan);
    free_scenario(&c);
}

/* ---- packing -------------------------------------------------------------------------------------------------------- */

void packing_round(soak *s)
{
    dice *d = &s->dice;
    bp_packing *packing = NULL;
    uint64_t offsets[64];
    uint32_t items = 4 + below(d, 60);
    must_ok(bp_packing_create(&packing));
    for (uint32_t i = 0; i < items; i++) {
        must_ok(bp_packing_add_item(packing, 1 + below(d, 40), NULL));
        for (uint32_t n = 1 + below(d, 2); n > 0; n--) {
            uint32_t begin = below(d, 100);
            must_ok(bp_packing_add_interval(packing, i, begin, begin + 1 + below(d, 30)));
        }
        if (i > 0 && chance(d, 4))
            must_ok(bp_packing_add_conflict(packing, i, below(d, i)));
    }
    bp_pack_config config;
    bp_pack_result result = {.size = sizeof result};
    must_ok(bp_pack_config_init(&config, sizeof config));
    config.work = 1u << 16;
    must_ok(bp_pack(packing, &config, offsets, &result));
    must(result.outcome == BP_PACK_PLACED);
    must_ok(bp_packing_check(packing, offsets, result.bytes));
    config.capacity = result.bytes > 80 ? result.bytes - 40 : result.bytes;
    config.known = offsets;
    bp_status status = bp_pack(packing, &config, offsets, &result);
    must(status == BP_OK || status == BP_ERR_INVALID_ARGUMENT);
    bp_packing_destroy(&packing);
}
