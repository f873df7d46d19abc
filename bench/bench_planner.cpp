/* SPDX-License-Identifier: Apache-2.0 */
// Speed of the planner: alone, and on real models from file to plan. Run: meson test -C build --benchmark --verbose
#include <bucketpool/bucketpool.h>
#include <bucketpool/formats.h>

#include <benchmark/benchmark.h>

#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

namespace
{

void must(bp_status status)
{
    if (status != BP_OK) {
        fprintf(stderr, "bench: %s\n", bp_error_detail());
        exit(1);
    }
}

// All roles except the copies of fp8 parameters.
constexpr uint32_t SIX_ROLES = (BP_ROLE_BIT(BP_ROLE_COUNT) - 1) & ~BP_ROLE_BIT(BP_ROLE_PARAM_TRANSPOSE);

bp_buckets *make_buckets(const bp_model *model, bp_bucketing bucketing, bp_padding padding, uint32_t dp,
                         uint32_t roles = BP_ROLE_BIT(BP_ROLE_PARAM))
{
    bp_buckets_config config;
    must(bp_buckets_config_init(&config, sizeof config));
    config.bucketing = bucketing;
    config.padding = padding;
    config.dp = dp;
    config.roles = roles;
    config.grad_comm_dtype = BP_DTYPE_FP32;
    bp_buckets *buckets;
    must(bp_buckets_create(model, &config, &buckets));
    return buckets;
}

bp_schedule *make_schedule(const bp_buckets *buckets, uint32_t prefetch = 1)
{
    bp_schedule_config config;
    must(bp_schedule_config_init(&config, sizeof config));
    config.prefetch = prefetch;
    bp_schedule *schedule;
    must(bp_schedule_create_training(buckets, &config, &schedule));
    return schedule;
}

bp_plan *make_plan(const bp_buckets *buckets, const bp_schedule *schedule, bp_policy policy = BP_POLICY_MAX)
{
    bp_plan_config config;
    must(bp_plan_config_init(&config, sizeof config));
    config.policy = policy;
    bp_plan *plan;
    must(bp_plan_create(buckets, schedule, &config, &plan));
    return plan;
}

// ---- hybrid models of arbitrary length -------------------------------------------------------------------------------------

// Mamba, experts, attention and MLP layers, from the configurations under examples/models.
const char *const sequences[] = {
    "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",     // Nemotron-3-Nano-30B-A3B
    "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-",     // Nemotron-H-8B
    "M-MEM-ME*-MEM-MEM-MEM-ME*-MEM-ME",                         // Jamba: a mixer and its MLP are separate units
    "M-M-M-MM-M-M-M*-M-M-M*-M-M-M-M*-M-M-M-M*-M-MM-M-M-M-M-M-", // Nemotron-Nano-9B-v2
};

struct widths {
    uint64_t hidden, inner, heads, experts, of_expert; // elements, except `experts`
};

// xorshift64*. Source: Marsaglia 2003, Vigna 2016.
uint64_t random_between(uint64_t *state, uint64_t low, uint64_t high)
{
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return low + (*state * UINT64_C(0x2545f4914f6cdd1d) >> 32) % (high - low + 1);
}

widths draw(uint64_t *state)
{
    widths w = {};
    w.hidden = 128 * random_between(state, 16, 64);
    w.inner = 128 * random_between(state, 32, 160);
    w.heads = 128 * random_between(state, 16, 64);
    w.experts = 8 * random_between(state, 1, 16);
    w.of_expert = 64 * random_between(state, 8, 48);
    return w;
}

// Elements of a unit's buckets.
std::vector<uint64_t> measure(char kind, const widths &w)
{
    switch (kind) {
    case 'M': return {(4 * w.heads + 2048) * w.hidden, 2 * w.heads * w.hidden, 5 * (2 * w.heads + 2048), w.hidden};
    case 'E':
        return {w.experts * w.of_expert * w.hidden, w.experts * w.of_expert * w.hidden, 2 * w.of_expert * w.hidden,
                w.experts * w.hidden};
    case '*': return {w.heads * w.hidden, 2048 * w.hidden, w.heads * w.hidden, w.hidden};
    default: return {w.inner * w.hidden, w.inner * w.hidden, w.inner, w.hidden};
    }
}

void add_unit(bp_model *model, unsigned number, unsigned buckets,
              const std::function<void(unsigned, bp_given_bucket &)> &size)
{
    uint32_t unit;
    must(bp_model_add_unit(model, ("layers." + std::to_string(number)).c_str(), BP_OUTSIDE, &unit));
    for (unsigned b = 0; b < buckets; b++) {
        bp_given_bucket bucket = {};
        bucket.size = sizeof bucket;
        bucket.unit = (int32_t)unit;
        bucket.dtype = BP_DTYPE_BF16;
        size(b, bucket);
        must(bp_model_add_bucket(model, &bucket));
    }
}

// Layer sequences of published models, concatenated, with random widths: per repetition of a sequence, as in a model,
// or per unit, so that no two are alike. Deterministic on every machine.
bp_model *hybrid_model(unsigned units, bool units_differ)
{
    uint64_t state = UINT64_C(88172645463325252);
    bp_model *model;
    must(bp_model_create("hybrids", &model));
    for (unsigned unit = 0; unit < units;) {
        const char *sequence = sequences[random_between(&state, 0, sizeof sequences / sizeof *sequences - 1)];
        widths w = draw(&state);
        for (; *sequence != '\0' && unit < units; sequence++, unit++) {
            if (units_differ)
                w = draw(&state);
            const std::vector<uint64_t> numel = measure(*sequence, w);
            add_unit(model, unit, 4, [&](unsigned b, bp_given_bucket &bucket) { bucket.numel = numel[b]; });
        }
    }
    return model;
}

// ---- figures -----------------------------------------------------------------------------------------------------------

void file_to_plan(benchmark::State &state, const std::string &path)
{
    for (auto _ : state) {
        bp_model *published, *fused, *local;
        must(bp_model_read(path.c_str(), nullptr, &published));
        must(bp_model_with_layout(published, BP_LAYOUT_MEGATRON, &fused));
        must(bp_model_shard(fused, 1, 1, &local));
        bp_buckets *buckets = make_buckets(local, BP_BUCKETING_MEGATRON, BP_PADDING_MEGATRON_LCM, 64);
        bp_schedule *schedule = make_schedule(buckets);
        bp_plan *plan = make_plan(buckets, schedule);
        benchmark::DoNotOptimize(plan);
        bp_plan_destroy(&plan);
        bp_schedule_destroy(&schedule);
        bp_buckets_destroy(&buckets);
        bp_model_destroy(&local);
        bp_model_destroy(&fused);
        bp_model_destroy(&published);
    }
}

// 10,000 units of 64 buckets of random sizes, in two dtypes, with a fixed seed.
bp_model *large_model(unsigned units, unsigned buckets)
{
    uint64_t seed = 88172645463325252u;
    bp_model *model;
    must(bp_model_create("large", &model));
    for (unsigned u = 0; u < units; u++)
        add_unit(model, u, buckets, [&](unsigned b, bp_given_bucket &bucket) {
            seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
            bucket.dtype = b % 4 == 3 ? BP_DTYPE_FP32 : BP_DTYPE_BF16;
            bucket.numel = 128 * (1 + seed % 100000);
        });
    return model;
}

void max_of_large_model(benchmark::State &state)
{
    bp_model *model = large_model((unsigned)state.range(0), (unsigned)state.range(1));
    bp_buckets *buckets = make_buckets(model, BP_BUCKETING_GIVEN, BP_PADDING_GIVEN, 1);
    bp_schedule *schedule = make_schedule(buckets);
    for (auto _ : state) {
        bp_plan *plan = make_plan(buckets, schedule);
        benchmark::DoNotOptimize(plan);
        bp_plan_destroy(&plan);
    }
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    state.counters["peak_MiB"] = (double)usage.ru_maxrss / 1024; // of the process, including the model
    bp_schedule_destroy(&schedule);
    bp_buckets_destroy(&buckets);
    bp_model_destroy(&model);
}

// Planning time as a function of the number of layers: layers of thirteen sizes, two buckets each.
void grow(benchmark::State &state, bp_policy policy, uint32_t roles)
{
    bp_model *model;
    must(bp_model_create("growth", &model));
    for (unsigned u = 0; u < (unsigned)state.range(0); u++)
        add_unit(model, u, 2, [u](unsigned b, bp_given_bucket &bucket) {
            bucket.dtype = b > 0 ? BP_DTYPE_FP32 : BP_DTYPE_BF16;
            bucket.numel = 4096 * (1 + (7 * u + b) % 13);
        });
    for (auto _ : state) {
        bp_buckets *buckets = make_buckets(model, BP_BUCKETING_GIVEN, BP_PADDING_GIVEN, 1, roles);
        bp_schedule *schedule = make_schedule(buckets);
        bp_plan *plan = make_plan(buckets, schedule, policy);
        state.counters["requests"] = (double)bp_plan_get_info(plan)->request_count;
        bp_plan_destroy(&plan);
        bp_schedule_destroy(&schedule);
        bp_buckets_destroy(&buckets);
    }
    state.counters["s_per_request"] = benchmark::Counter(state.counters["requests"] * (double)state.iterations(),
                                                         benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
    bp_model_destroy(&model);
}

void register_growth()
{
    const struct {
        const char *name;
        bp_policy policy;
    } policies[] = {{"fixed", BP_POLICY_FIXED}, {"max", BP_POLICY_MAX}, {"scheduled", BP_POLICY_SCHEDULED}};
    for (const auto &p : policies)
        for (uint32_t roles : {BP_ROLE_BIT(BP_ROLE_PARAM), SIX_ROLES}) {
            std::string name = std::string("growth/") + p.name + (roles == SIX_ROLES ? "/roles:6" : "/roles:1");
            benchmark::RegisterBenchmark(name.c_str(), grow, p.policy, roles)
                ->Arg(1000)
                ->Arg(10000)
                ->Arg(100000)
                ->Unit(benchmark::kMillisecond);
        }
}

// From given buckets to a scheduled plan; reports its bytes over the lower bound.
void schedule_hybrids(benchmark::State &state, bool units_differ, uint32_t prefetch)
{
    bp_model *model = hybrid_model((unsigned)state.range(0), units_differ);
    bp_plan_info info = {};
    for (auto _ : state) {
        bp_buckets *buckets = make_buckets(model, BP_BUCKETING_GIVEN, BP_PADDING_GIVEN, 1);
        bp_schedule *schedule = make_schedule(buckets, prefetch);
        bp_plan *plan = make_plan(buckets, schedule, BP_POLICY_SCHEDULED);
        info = *bp_plan_get_info(plan);
        bp_plan_destroy(&plan);
        bp_schedule_destroy(&schedule);
        bp_buckets_destroy(&buckets);
    }
    state.counters["MiB"] = (double)info.bytes / (1 << 20);
    state.counters["bound_MiB"] = (double)info.lower_bound_bytes / (1 << 20);
    state.counters["gap_percent"] = 100 * ((double)info.bytes / (double)info.lower_bound_bytes - 1);
    state.counters["optimal"] = info.optimal;
    bp_model_destroy(&model);
}

void register_hybrids(uint32_t prefetch)
{
    for (bool units_differ : {false, true}) {
        std::string name = units_differ ? "scheduled/units" : "scheduled/hybrids";
        benchmark::RegisterBenchmark((name + "/prefetch:" + std::to_string(prefetch)).c_str(), schedule_hybrids,
                                     units_differ, prefetch)
            ->Arg(10000)
            ->Unit(benchmark::kMillisecond);
    }
}

void write_file(const std::string &path, const std::string &text)
{
    FILE *file = fopen(path.c_str(), "wb");
    if (file == nullptr || fwrite(text.data(), 1, text.size(), file) != text.size() || fclose(file) != 0) {
        perror(path.c_str());
        exit(1);
    }
}

// An index and shards of 2 x 2 bf16 tensors; only headers are read, so the data is a hole in the file.
std::string write_checkpoint(unsigned tensors, unsigned shards)
{
    char folder[] = "/tmp/bucketpool-bench-XXXXXX";
    if (mkdtemp(folder) == nullptr)
        exit(1);
    std::string index = "{\"metadata\": {\"total_size\": 0}, \"weight_map\": {", root = folder;
    unsigned each = (tensors + shards - 1) / shards, tensor = 0;
    for (unsigned s = 0; s < shards; s++) {
        std::string header = "{", name = "model-" + std::to_string(s) + ".safetensors";
        uint64_t offset = 0;
        for (unsigned i = 0; i < each && tensor < tensors; i++, tensor++) {
            std::string key = "model.layers." + std::to_string(tensor / 500) + ".mlp.experts." +
                              std::to_string(tensor % 500 / 3) + ".w" + std::to_string(tensor % 500 % 3) + ".weight";
            header += (i > 0 ? ",\"" : "\"") + key + "\":{\"dtype\":\"BF16\",\"shape\":[2,2],\"data_offsets\":[" +
                      std::to_string(offset) + "," + std::to_string(offset + 8) + "]}";
            index += (tensor > 0 ? ",\"" : "\"") + key + "\":\"" + name + "\"";
            offset += 8;
        }
        header += "}";
        std::string file(8, '\0');
        for (int i = 0; i < 8; i++)
            file[(size_t)i] = (char)(header.size() >> (8 * i));
        write_file(root + "/" + name, file + header);
        if (truncate((root + "/" + name).c_str(), (off_t)(8 + header.size() + offset)) != 0)
            exit(1);
    }
    write_file(root + "/model.safetensors.index.json", index + "}}");
    return root;
}

void read_checkpoint(benchmark::State &state)
{
    std::string root = write_checkpoint((unsigned)state.range(0), 200);
    for (auto _ : state) {
        bp_model *model;
        must(bp_safetensors_read(root.c_str(), nullptr, &model));
        benchmark::DoNotOptimize(model);
        bp_model_destroy(&model);
    }
    std::string command = "rm -r " + root;
    if (system(command.c_str()) != 0)
        perror("rm");
}

} // namespace

// Arguments: the folder of the bundled models, then google-benchmark's.
int main(int argc, char **argv)
{
    if (argc < 2)
        return 2;
    std::vector<std::string> models;
    if (DIR *folder = opendir(argv[1])) {
        while (struct dirent *entry = readdir(folder)) {
            if (entry->d_name[0] != '.')
                models.push_back(entry->d_name);
        }
        closedir(folder);
    }
    std::sort(models.begin(), models.end());
    // largest first, because peak memory is that of the process
    benchmark::RegisterBenchmark("max/large", max_of_large_model)->Args({10000, 64})->Unit(benchmark::kMillisecond);
    for (uint32_t prefetch : {1u, 2u})
        register_hybrids(prefetch);
    register_growth();
    for (const std::string &model : models)
        benchmark::RegisterBenchmark(("file_to_plan/" + model).c_str(), file_to_plan,
                                     std::string(argv[1]) + "/" + model)
            ->Unit(benchmark::kMillisecond);
    benchmark::RegisterBenchmark("safetensors/index", read_checkpoint)->Arg(100000)->Unit(benchmark::kMillisecond);
    argc--, argv++;
    benchmark::Initialize(&argc, argv);
    benchmark::RunSpecifiedBenchmarks();
    return 0;
}
