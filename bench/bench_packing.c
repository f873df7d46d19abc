/* What packing takes, instance by instance: time, bytes, bound, and nanoseconds for a step of work, by which searches are bounded.
 * Run: bench_packing [--capacity N] [--work N] [--turns N] [--json FILE] [--date TEXT] FILE|FOLDER...
 *
 * The instances run in turns, and a figure is the median of its turns. Time is the processor's, so that what else runs counts less;
 * "wall" is the clock's. Reading a file is not counted. */
#include "formats/packing_file.h"
#include "measure.h"

#include <bucketpool/bucketpool.h>

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#define MOST_INSTANCES 256
#define MOST_TURNS 101

typedef struct instance {
    char path[1024];
    bp_packing_file *file;
    uint64_t *offsets;
    bp_pack_result result;
    double processor_ms[MOST_TURNS], wall_ms[MOST_TURNS];
} instance;

typedef struct bench {
    instance *instances;
    size_t count;
    bp_pack_config config;
    int turns;
    const char *json, *date;
} bench;

static void must(bp_status status, const char *path)
{
    if (status != BP_OK) {
        fprintf(stderr, "bench: %s: %s\n", path, bp_error_detail());
        exit(1);
    }
}

/* ---- instances ------------------------------------------------------------------------------------------------------- */

static void add_file(bench *b, const char *path)
{
    if (b->count == MOST_INSTANCES) {
        fprintf(stderr, "bench: more than %d instances\n", MOST_INSTANCES);
        exit(2);
    }
    instance *i = &b->instances[b->count++];
    snprintf(i->path, sizeof i->path, "%s", path);
    must(bp_packing_file_read(path, &i->file), path);
    i->offsets = calloc(bp_packing_get_info(bp_packing_file_packing(i->file))->item_count + 1, sizeof *i->offsets);
    i->result.size = sizeof i->result;
    if (i->offsets == NULL)
        must(BP_ERR_NO_HOST_MEMORY, path);
}

static int is_csv(const struct dirent *entry)
{
    const char *end = strrchr(entry->d_name, '.');
    return end != NULL && strcmp(end, ".csv") == 0;
}

/* A file, or every *.csv of a folder, by name. */
static void add(bench *b, const char *path)
{
    struct dirent **entries;
    struct stat about;
    if (stat(path, &about) != 0 || !S_ISDIR(about.st_mode)) {
        add_file(b, path);
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
        add_file(b, file);
        free(entries[i]);
    }
    free(entries);
}

/* ---- figures --------------------------------------------------------------------------------------------------------- */

static double now_ms(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static void measure(const bench *b, instance *i, int turn)
{
    const bp_packing *packing = bp_packing_file_packing(i->file);
    double processor = now_ms(CLOCK_PROCESS_CPUTIME_ID), wall = now_ms(CLOCK_MONOTONIC);
    must(bp_pack(packing, &b->config, i->offsets, &i->result), i->path);
    i->processor_ms[turn] = now_ms(CLOCK_PROCESS_CPUTIME_ID) - processor;
    i->wall_ms[turn] = now_ms(CLOCK_MONOTONIC) - wall;
    if (i->result.outcome == BP_PACK_PLACED)
        must(bp_packing_check(packing, i->offsets, i->result.bytes), i->path);
}

static int in_order(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Sorts the values. */
static double median(double *values, int count)
{
    qsort(values, (size_t)count, sizeof *values, in_order);
    return values[count / 2];
}

static const char *outcome_of(const instance *i)
{
    return i->result.outcome == BP_PACK_PLACED       ? i->result.optimal ? "optimal" : "placed"
           : i->result.outcome == BP_PACK_INFEASIBLE ? "infeasible"
                                                     : "not found";
}

static double ns_of_work(const instance *i, double ms)
{
    return i->result.work > 0 ? ms * 1e6 / (double)i->result.work : 0;
}

static const char *name_of(const instance *i)
{
    const char *slash = strrchr(i->path, '/');
    return slash != NULL ? slash + 1 : i->path;
}

static void print_json(FILE *file, const bench *b, const instance *i, double processor, double wall)
{
    const bp_pack_result *r = &i->result;
    fprintf(file, "    {\"group\": \"packing\", \"name\": ");
    bench_print_string(file, name_of(i));
    fprintf(file, ", \"ms_median\": %.3f, \"wall_ms_median\": %.3f, \"turns\": %d", processor, wall, b->turns);
    fprintf(file, ", \"bytes\": %llu, \"bound\": %llu, \"proven\": %llu", (unsigned long long)r->bytes,
            (unsigned long long)r->bound, (unsigned long long)r->proven);
    fprintf(file, ", \"work\": %llu, \"ns_per_work\": %.3f, \"outcome\": \"%s\", \"method\": \"%s\"}",
            (unsigned long long)r->work, ns_of_work(i, processor), outcome_of(i), r->method);
}

static void report(const bench *b, FILE *json)
{
    double processor_sum = 0, wall_sum = 0;
    printf("%-52s %10s %10s %14s %14s %14s %12s %7s  %-10s %s\n", "packing", "ms median", "wall", "bytes", "bound",
           "proven", "work", "ns/work", "outcome", "method");
    for (size_t k = 0; k < b->count; k++) {
        instance *i = &b->instances[k];
        const bp_pack_result *r = &i->result;
        double processor = median(i->processor_ms, b->turns), wall = median(i->wall_ms, b->turns);
        printf("%-52s %10.2f %10.2f %14llu %14llu %14llu %12llu %7.2f  %-10s %s\n", name_of(i), processor, wall,
               (unsigned long long)r->bytes, (unsigned long long)r->bound, (unsigned long long)r->proven,
               (unsigned long long)r->work, ns_of_work(i, processor), outcome_of(i), r->method);
        processor_sum += processor;
        wall_sum += wall;
        if (json != NULL) {
            print_json(json, b, i, processor, wall);
            fprintf(json, "%s\n", k + 1 < b->count ? "," : "");
        }
    }
    printf("%-52s %10.2f %10.2f\n", "sum", processor_sum, wall_sum);
}

static int report_all(const bench *b)
{
    FILE *json = NULL;
    if (b->json != NULL) {
        json = fopen(b->json, "w");
        if (json == NULL) {
            perror(b->json);
            return 1;
        }
        bench_print_head(json, b->date);
        fprintf(json, ",\n  \"figures\": [\n");
    }
    report(b, json);
    if (json == NULL)
        return 0;
    fprintf(json, "  ]\n}\n");
    return fclose(json) == 0 ? 0 : 1;
}

/* ---- main ------------------------------------------------------------------------------------------------------------ */

static int read_option(bench *b, const char *name, const char *value)
{
    if (strcmp(name, "--capacity") == 0)
        b->config.capacity = strtoull(value, NULL, 10);
    else if (strcmp(name, "--work") == 0)
        b->config.work = strtoull(value, NULL, 10);
    else if (strcmp(name, "--turns") == 0)
        b->turns = atoi(value);
    else if (strcmp(name, "--json") == 0)
        b->json = value;
    else if (strcmp(name, "--date") == 0)
        b->date = value;
    else
        return 0;
    return b->turns >= 1 && b->turns <= MOST_TURNS;
}

int main(int argc, char **argv)
{
    bench b = {.turns = 3, .instances = calloc(MOST_INSTANCES, sizeof *b.instances)};
    must(bp_pack_config_init(&b.config, sizeof b.config), "configuration");
    int good = b.instances != NULL, at = 1;
    for (; good && at + 1 < argc && strncmp(argv[at], "--", 2) == 0; at += 2)
        good = read_option(&b, argv[at], argv[at + 1]);
    if (!good || at == argc) {
        fprintf(stderr,
                "usage: bench_packing [--capacity N] [--work N] [--turns 1..%d] [--json FILE] [--date TEXT] "
                "FILE|FOLDER...\n",
                MOST_TURNS);
        return 2;
    }
    for (; at < argc; at++)
        add(&b, argv[at]);
    for (int turn = 0; turn < b.turns; turn++) {
        for (size_t k = 0; k < b.count; k++)
            measure(&b, &b.instances[k], turn);
    }
    int code = report_all(&b);
    for (size_t k = 0; k < b.count; k++) {
        bp_packing_file_destroy(&b.instances[k].file);
        free(b.instances[k].offsets);
    }
    free(b.instances);
    return code;
}
