/* SPDX-License-Identifier: Apache-2.0 */
/* Packing times per instance: time, bytes, bound, and nanoseconds per unit of work, which limits searches.
 * Run: bench_packing [--capacity N] [--work N] [--turns N] [--json FILE] [--date TEXT] FILE|FOLDER...
 *
 * Instances run in turns; figures are medians over turns. Times are processor times, to exclude other load; "wall" is elapsed time. File
 * reading is excluded. */
#include "formats/packing_file.h"
#include "measure.h"

#include <bucketpool/bucketpool.h>

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#define MAX_INSTANCES 256

typedef struct instance {
    char path[1024];
    bp_packing_file *file;
    uint64_t *offsets;
    bp_pack_result result;
    double processor_ms[BENCH_MAX_TURNS], wall_ms[BENCH_MAX_TURNS];
} instance;

static instance *instances;
static size_t instance_count;

static void must_for(bp_status status, const char *path)
{
    if (status != BP_OK) {
        fprintf(stderr, "bench: %s: %s\n", path, bp_error_detail());
        exit(1);
    }
}

static void add_file(const char *path)
{
    if (instance_count == MAX_INSTANCES) {
        fprintf(stderr, "bench: more than %d instances\n", MAX_INSTANCES);
        exit(2);
    }
    instance *i = &instances[instance_count++];
    snprintf(i->path, sizeof i->path, "%s", path);
    must_for(bp_packing_file_read(path, &i->file), path);
    i->offsets = calloc(bp_packing_get_info(bp_packing_file_packing(i->file))->item_count + 1, sizeof *i->offsets);
    i->result.size = sizeof i->result;
    if (i->offsets == NULL)
        must_for(BP_ERR_NO_HOST_MEMORY, path);
}

static int is_csv(const struct dirent *entry)
{
    const char *end = strrchr(entry->d_name, '.');
    return end != NULL && strcmp(end, ".csv") == 0;
}

/* A file, or every *.csv of a folder, by name. */
static void add(const char *path)
{
    struct dirent **entries;
    struct stat about;
    if (stat(path, &about) != 0 || !S_ISDIR(about.st_mode)) {
        add_file(path);
        return;
    }
    int count = scandir(path, &entries, is_csv, alphasort);
    if (count < 0) {
        perror(path);
        exit(2);
    }
    for (int i = 0; i < count; i++) {
        char file[1024];
        snprintf(file, sizeof file, "%s/%s", path, entries[i]->d_name);
        add_file(file);
        free(entries[i]);
    }
    free(entries);
}

/* ---- figures ----------------------------------------------------------------------------------------------------- */

static double now_ms(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static void measure(const bp_pack_config *config, instance *i, int turn)
{
    const bp_packing *packing = bp_packing_file_packing(i->file);
    double processor = now_ms(CLOCK_PROCESS_CPUTIME_ID), wall = now_ms(CLOCK_MONOTONIC);
    must_for(bp_pack(packing, config, i->offsets, &i->result), i->path);
    i->processor_ms[turn] = now_ms(CLOCK_PROCESS_CPUTIME_ID) - processor;
    i->wall_ms[turn] = now_ms(CLOCK_MONOTONIC) - wall;
    if (i->result.outcome == BP_PACK_PLACED)
        must_for(bp_packing_check(packing, i->offsets, i->result.bytes), i->path);
}

static const char *outcome_of(const instance *i)
{
    return i->result.outcome == BP_PACK_PLACED       ? i->result.optimal ? "optimal" : "placed"
           : i->result.outcome == BP_PACK_INFEASIBLE ? "infeasible"
                                                     : "not found";
}

static void report(int turns)
{
    double processor_sum = 0, wall_sum = 0;
    FILE *json = bench_open_json();
    if (json != NULL)
        fprintf(json, ",\n  \"figures\": [");
    printf("%-52s %10s %10s %14s %14s %14s %12s %7s  %-10s %s\n", "packing", "ms median", "wall", "bytes", "bound",
           "proven", "work", "ns/work", "outcome", "method");
    for (size_t k = 0; k < instance_count; k++) {
        instance *i = &instances[k];
        const bp_pack_result *r = &i->result;
        const char *slash = strrchr(i->path, '/'), *name = slash != NULL ? slash + 1 : i->path;
        const unsigned long long bytes = r->bytes, bound = r->bound, proven = r->proven, work = r->work;
        double processor = bench_median(i->processor_ms, (size_t)turns);
        double wall = bench_median(i->wall_ms, (size_t)turns);
        double ns_of_work = work > 0 ? processor * 1e6 / (double)work : 0;
        printf("%-52s %10.2f %10.2f %14llu %14llu %14llu %12llu %7.2f  %-10s %s\n", name, processor, wall, bytes, bound,
               proven, work, ns_of_work, outcome_of(i), r->method);
        processor_sum += processor;
        wall_sum += wall;
        if (json == NULL)
            continue;
        fprintf(json, "%s\n    {\"group\": \"packing\", \"name\": ", k > 0 ? "," : "");
        bench_print_string(json, name);
        fprintf(json, ", \"ms_median\": %.3f, \"wall_ms_median\": %.3f, \"turns\": %d", processor, wall, turns);
        fprintf(json, ", \"bytes\": %llu, \"bound\": %llu, \"proven\": %llu", bytes, bound, proven);
        fprintf(json, ", \"work\": %llu, \"ns_per_work\": %.3f, \"outcome\": \"%s\", \"method\": \"%s\"}", work,
                ns_of_work, outcome_of(i), r->method);
    }
    printf("%-52s %10.2f %10.2f\n", "sum", processor_sum, wall_sum);
    if (json != NULL)
        fprintf(json, "\n  ]");
    if (bench_close_json(json) != 0)
        exit(1);
}

int main(int argc, char **argv)
{
    const char *capacity = NULL, *work = NULL;
    const bench_option options[] = {{"--capacity", .text = &capacity}, {"--work", .text = &work}};
    int at = bench_start(argc, argv, 3, " [--capacity N] [--work N] FILE|FOLDER...", options,
                         sizeof options / sizeof *options, 1);
    bp_pack_config config;
    must(bp_pack_config_init(&config, sizeof config));
    if (capacity != NULL)
        config.capacity = strtoull(capacity, NULL, 10);
    if (work != NULL)
        config.work = strtoull(work, NULL, 10);
    instances = calloc(MAX_INSTANCES, sizeof *instances);
    if (instances == NULL)
        must(BP_ERR_NO_HOST_MEMORY);
    for (; at < argc; at++)
        add(argv[at]);
    const int turns = bench_asked_turns();
    for (int turn = 0; turn < turns; turn++) {
        for (size_t k = 0; k < instance_count; k++)
            measure(&config, &instances[k], turn);
    }
    report(turns);
    for (size_t k = 0; k < instance_count; k++) {
        bp_packing_file_destroy(&instances[k].file);
        free(instances[k].offsets);
    }
    free(instances);
    return 0;
}
