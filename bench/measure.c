/* SPDX-License-Identifier: Apache-2.0 */
/* Measurement harness: windows in turns, medians, tables and JSON. */
#include "measure.h"

#include <bucketpool/status.h>

#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define MAX_ENTRIES 16
#define MAX_FIGURES 512
#define MAX_SKIPPED 64
#define WINDOW_NS 250e3

typedef struct entry {
    char name[72];
    bench_run *run; /* one of the three */
    bench_loop *loop;
    bench_once *once;
    bp_stream *stream;
    void *user;
    size_t pairs, less;
    unsigned per;
    uint64_t moved, logits;
    double ns[BENCH_MAX_TURNS];
} entry;

typedef struct figure {
    char group[72], name[72], to[72], less[72];
    double min, median, ratio, own; /* of the medians; own: net of the device */
    double low, high;               /* interval of the ratio */
    uint64_t bytes;
    double of_logit, of_second, fraction; /* bytes; fraction of the bandwidth of entry 0 */
    size_t pairs;
    int turns;
} figure;

typedef struct skipped_group {
    char name[72], reason[200];
} skipped_group;

static entry entries[MAX_ENTRIES];
static size_t entry_count;
static figure figures[MAX_FIGURES];
static size_t figure_count;
static skipped_group skipped[MAX_SKIPPED];
static size_t skipped_count;
static const char *current, *json_path, *json_date, *only;
static char json_unfinished[4096];
static char device_name[256];
static uint64_t device_bytes, device_free_bytes;
static int turns; /* of the current group */
static int usual_turns;
static uint64_t bytes_each; /* of the current group */
static enum { MEASURING, PRINTING_NAMES, LOOKING_FOR_A_NAME } mode;
static int found; /* --only named this group; others are not measured */

static _Noreturn void refuse(const char *what, const char *name)
{
    fprintf(stderr, "bench: %s: %s\n", name, what);
    exit(1);
}

/* ---- programs ---------------------------------------------------------------------------------------------------- */

void must(bp_status status)
{
    if (status != BP_OK)
        refuse(bp_error_detail(), bp_status_name(status));
}

int bench_start(int argc, char **argv, int turns_otherwise, const char *more_usage, const bench_option *more,
                size_t count, int takes_files)
{
    const bench_option common[] = {
        {"--json", .text = &json_path},
        {"--date", .text = &json_date},
        {"--only", .text = &only},
        {"--turns", .number = &usual_turns},
    };
    const size_t common_count = sizeof common / sizeof *common;
    int at = 1;
    bool good = true;
    usual_turns = turns_otherwise;
    for (; good && at < argc && strncmp(argv[at], "--", 2) == 0; at++) {
        const bench_option *option = NULL;
        for (size_t k = 0; option == NULL && k < common_count + count; k++) {
            const bench_option *other = k < common_count ? &common[k] : &more[k - common_count];
            option = strcmp(other->name, argv[at]) == 0 ? other : NULL;
        }
        good = option != NULL && (option->flag != NULL || at + 1 < argc);
        if (!good)
            fprintf(stderr, option == NULL ? "%s: unknown option %s\n" : "%s: %s requires a value\n",
                    program_invocation_short_name, argv[at]);
        else if (option->flag != NULL)
            *option->flag = 1;
        else if (option->text != NULL)
            *option->text = argv[++at];
        else
            *option->number = (int)strtol(argv[++at], NULL, 0);
    }
    if (!good || (at < argc) != (takes_files != 0)) {
        fprintf(stderr, "usage: %s [--json FILE] [--date TEXT] [--only GROUP] [--turns N]%s\n",
                program_invocation_short_name, more_usage);
        exit(2);
    }
    usual_turns = usual_turns < 1 ? 1 : usual_turns > BENCH_MAX_TURNS ? BENCH_MAX_TURNS : usual_turns;
    if (json_path != NULL &&
        snprintf(json_unfinished, sizeof json_unfinished, "%s.new", json_path) >= (int)sizeof json_unfinished)
        refuse("the name of the JSON file is too long", json_path);
    return at;
}

int bench_asked_turns(void)
{
    return usual_turns;
}

double bench_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

/* ---- documents --------------------------------------------------------------------------------------------------- */

void bench_print_string(FILE *file, const char *text)
{
    fputc('"', file);
    for (; *text != 0; text++) {
        if (*text == '"' || *text == '\\')
            fputc('\\', file);
        if ((unsigned char)*text >= ' ')
            fputc(*text, file);
    }
    fputc('"', file);
}

FILE *bench_open_json(void)
{
    char line[256], model[256] = "unknown";
    if (json_path == NULL)
        return NULL;
    FILE *info = fopen("/proc/cpuinfo", "r");
    while (info != NULL && fgets(line, sizeof line, info) != NULL) {
        const char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || colon == NULL)
            continue;
        snprintf(model, sizeof model, "%s", colon + 1 + strspn(colon + 1, " "));
        model[strcspn(model, "\n")] = 0;
        break;
    }
    if (info != NULL)
        fclose(info);
    FILE *file = fopen(json_unfinished, "w");
    if (file == NULL)
        refuse("cannot be written", json_unfinished);
    fprintf(file, "{\n  \"format\": \"bucketpool.bench/1\",\n  \"version\": ");
    bench_print_string(file, bp_version());
    if (json_date != NULL) {
        fprintf(file, ",\n  \"date\": ");
        bench_print_string(file, json_date);
    }
    fprintf(file, ",\n  \"compiler\": ");
    bench_print_string(file, __VERSION__);
    fprintf(file, ",\n  \"machine\": {\"cpu\": ");
    bench_print_string(file, model);
    fprintf(file, ", \"cores\": %ld}", sysconf(_SC_NPROCESSORS_ONLN));
    return file;
}

int bench_close_json(FILE *file)
{
    if (file == NULL)
        return 0;
    fprintf(file, "\n}\n");
    const int written = ferror(file) == 0;
    if (fclose(file) == 0 && written && rename(json_unfinished, json_path) == 0)
        return 0;
    perror(json_path);
    return 1;
}

static void print_figure(FILE *file, const figure *f)
{
    fprintf(file, "    {\"group\": ");
    bench_print_string(file, f->group);
    fprintf(file, ", \"name\": ");
    bench_print_string(file, f->name);
    fprintf(file, ", \"ns_min\": %.4f, \"ns_median\": %.4f", f->min, f->median);
    if (f->to[0] != 0) {
        fprintf(file, ", \"ratio_median\": %.4f, \"ratio_interval_95\": [%.4f, %.4f], \"ratio_to\": ", f->ratio, f->low,
                f->high);
        bench_print_string(file, f->to);
    }
    if (f->less[0] != 0) {
        fprintf(file, ", \"beside_ns_median\": %.2f, \"beside\": ", f->own);
        bench_print_string(file, f->less);
    }
    if (f->bytes != 0)
        fprintf(file, ", \"bytes\": %llu, \"us_per_gib_median\": %.3f", (unsigned long long)f->bytes,
                f->median / 1e3 * (double)(1u << 30) / (double)f->bytes);
    if (f->of_logit != 0)
        fprintf(file, ", \"bytes_per_logit\": %.3f", f->of_logit);
    if (f->of_second != 0)
        fprintf(file, ", \"gb_per_s\": %.2f, \"bandwidth_fraction\": %.4f", f->of_second, f->fraction);
    fprintf(file, ", \"windows\": %d, \"pairs_per_window\": %zu}", f->turns, f->pairs);
}

static void keep_json(void)
{
    FILE *file = bench_open_json();
    if (file == NULL)
        return;
    if (device_name[0] != 0) {
        fprintf(file, ",\n  \"device\": {\"name\": ");
        bench_print_string(file, device_name);
        fprintf(file, ", \"memory_bytes\": %llu, \"free_bytes\": %llu}", (unsigned long long)device_bytes,
                (unsigned long long)device_free_bytes);
    }
    fprintf(file, ",\n  \"figures\": [");
    for (size_t i = 0; i < figure_count; i++) {
        fprintf(file, "%s\n", i > 0 ? "," : "");
        print_figure(file, &figures[i]);
    }
    fprintf(file, "%s],\n  \"skipped\": [", figure_count > 0 ? "\n  " : "");
    for (size_t i = 0; i < skipped_count; i++) {
        fprintf(file, "%s\n    {\"name\": ", i > 0 ? "," : "");
        bench_print_string(file, skipped[i].name);
        fprintf(file, ", \"reason\": ");
        bench_print_string(file, skipped[i].reason);
        fprintf(file, "}");
    }
    fprintf(file, "%s]", skipped_count > 0 ? "\n  " : "");
    if (bench_close_json(file) != 0)
        exit(1);
}

void bench_measured_on(const char *name, uint64_t bytes, uint64_t free_bytes)
{
    snprintf(device_name, sizeof device_name, "%s", name);
    device_bytes = bytes;
    device_free_bytes = free_bytes;
    keep_json();
}

int bench_finish_groups(void)
{
    keep_json();
    if (figure_count > 0 || skipped_count == 0)
        return 0;
    printf("%s\n", skipped[skipped_count - 1].reason);
    return 77;
}

/* ---- groups ------------------------------------------------------------------------------------------------------ */

void bench_begin_names(int print)
{
    mode = print ? PRINTING_NAMES : LOOKING_FOR_A_NAME;
    found = 0;
}

void bench_end_names(void)
{
    if (mode == LOOKING_FOR_A_NAME && only != NULL && !found) {
        fprintf(stderr, "%s: unknown group \"%s\"; --list prints the groups\n", program_invocation_short_name, only);
        exit(2);
    }
    mode = MEASURING;
}

int bench_begin(const char *group)
{
    const int is_wanted = only != NULL && strcmp(group, only) == 0;
    if (mode == PRINTING_NAMES)
        puts(group);
    if (mode == LOOKING_FOR_A_NAME)
        found = found || is_wanted;
    if (mode != MEASURING || (found && !is_wanted) || (only != NULL && strncmp(group, only, strlen(only)) != 0))
        return 0;
    current = group;
    entry_count = 0;
    bytes_each = 0;
    turns = usual_turns;
    return 1;
}

void bench_turns(int max)
{
    turns = turns < max ? turns : max;
}

void bench_bytes(uint64_t bytes)
{
    bytes_each = bytes;
}

static size_t add(const char *name, void *user, size_t pairs, entry e)
{
    if (entry_count == MAX_ENTRIES)
        refuse("the group has too many entries", current);
    e.user = user;
    e.pairs = pairs;
    e.per = 1;
    e.less = BENCH_NO_ENTRY;
    snprintf(e.name, sizeof e.name, "%s", name);
    entries[entry_count] = e;
    return entry_count++;
}

size_t bench_add_run(const char *name, bench_run *run, void *user, size_t pairs)
{
    return add(name, user, pairs, (entry){.run = run});
}

size_t bench_add(const char *name, bench_loop *loop, void *user, size_t pairs)
{
    return add(name, user, pairs, (entry){.loop = loop});
}

size_t bench_add_once(const char *name, bench_once *once, void *user, bp_stream *stream, size_t pairs)
{
    return add(name, user, pairs, (entry){.once = once, .stream = stream});
}

void bench_per(size_t number, unsigned requests)
{
    entries[number].per = requests;
}

void bench_moves(size_t number, uint64_t bytes, uint64_t logits)
{
    entries[number].moved = bytes;
    entries[number].logits = logits;
}

void bench_less(size_t number, size_t device)
{
    entries[number].less = device;
}

void bench_skip(const char *format, ...)
{
    va_list arguments;
    if (skipped_count == MAX_SKIPPED)
        refuse("too many skipped groups", current);
    skipped_group *s = &skipped[skipped_count++];
    snprintf(s->name, sizeof s->name, "%s", current);
    va_start(arguments, format);
    vsnprintf(s->reason, sizeof s->reason, format, arguments);
    va_end(arguments);
    printf("%s is skipped: %s\n\n", s->name, s->reason);
    fflush(stdout);
    keep_json();
}

/* ---- windows ----------------------------------------------------------------------------------------------------- */

/* Nanoseconds for `pairs`. */
static double run_window(const entry *e, size_t pairs)
{
    if (e->run != NULL)
        return e->run(e->user, pairs);
    double begin = bench_now_ns();
    if (e->loop != NULL)
        e->loop(e->user, pairs);
    for (size_t i = 0; e->once != NULL && i < pairs; i++)
        e->once(e->user);
    if (e->stream != NULL)
        must(bp_stream_synchronize(e->stream));
    return bench_now_ns() - begin;
}

/* Pairs that fill a window, by the minimum of three runs, to ignore cold and disturbed ones. */
static size_t calibrate(const entry *e)
{
    for (size_t pairs = 16;; pairs *= 2) {
        double least = run_window(e, pairs);
        for (int i = 0; i < 2; i++) {
            double took = run_window(e, pairs);
            least = took < least ? took : least;
        }
        if (least >= WINDOW_NS / 4 || pairs >= (size_t)1 << 24)
            return 1 + (size_t)(WINDOW_NS * (double)pairs / least);
    }
}

static int in_order(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double bench_median(double *values, size_t count)
{
    qsort(values, count, sizeof *values, in_order);
    return values[count / 2];
}

/* Number of values dropped at either end: the largest k such that at most k heads in `turns` coin tosses have a probability of at
 * most 1/40. With five values or fewer the interval spans all of them, with less confidence. */
static int left_out(void)
{
    double tosses = 1, sum = 0;
    for (int i = 0; i < turns; i++)
        tosses /= 2;
    for (int heads = 0;; heads++) {
        sum += tosses;
        if (sum > 0.025)
            return heads > 0 ? heads - 1 : 0;
        tosses *= (double)(turns - heads) / (heads + 1);
    }
}

/* Over the values of all turns. */
static figure figure_of(const entry *e)
{
    const size_t count = (size_t)turns;
    double each[BENCH_MAX_TURNS];
    figure f = {.turns = turns, .pairs = e->pairs, .bytes = bytes_each};
    snprintf(f.group, sizeof f.group, "%s", current);
    snprintf(f.name, sizeof f.name, "%s", e->name);
    memcpy(each, e->ns, count * sizeof *each);
    f.median = bench_median(each, count);
    f.min = each[0];
    if (e != entries) {
        for (int t = 0; t < turns; t++)
            each[t] = e->ns[t] / entries[0].ns[t];
        f.ratio = bench_median(each, count);
        f.low = each[left_out()];
        f.high = each[turns - 1 - left_out()];
        snprintf(f.to, sizeof f.to, "%s", entries[0].name);
    }
    if (e->less != BENCH_NO_ENTRY) {
        for (int t = 0; t < turns; t++)
            each[t] = e->ns[t] - entries[e->less].ns[t];
        f.own = bench_median(each, count);
        snprintf(f.less, sizeof f.less, "%s", entries[e->less].name);
    }
    if (e->moved != 0) {
        for (int t = 0; t < turns; t++)
            each[t] = (double)e->moved / e->ns[t] / ((double)entries[0].moved / entries[0].ns[t]);
        f.of_logit = e->logits != 0 ? (double)e->moved / (double)e->logits : 0;
        f.of_second = (double)e->moved / f.median;
        f.fraction = bench_median(each, count);
    }
    return f;
}

/* For nanoseconds: figures below ten are per element. */
static int decimals(double ns)
{
    return ns < 10 ? 3 : 1;
}

static void print_line(const figure *f)
{
    printf("  %-52s %10.*f %10.*f", f->name, decimals(f->min), f->min, decimals(f->median), f->median);
    if (f->to[0] != 0)
        printf(" %9.2f  %6.2f to %6.2f", f->ratio, f->low, f->high);
    else
        printf(" %9s %17s", "1", "");
    if (f->less[0] != 0)
        printf(" %9.1f", f->own);
    printf("\n");
    if (f->of_logit != 0)
        printf("    %.2f bytes a logit,", f->of_logit);
    if (f->of_second != 0)
        printf("%s%.0f GB/s, %.3f of the bandwidth of: %s\n", f->of_logit != 0 ? " " : "    ", f->of_second,
               f->fraction, entries[0].name);
}

void bench_end(void)
{
    size_t order[MAX_ENTRIES] = {0};
    uint64_t state = BENCH_SEED;
    for (size_t i = 0; i < entry_count; i++) {
        if (entries[i].pairs == 0)
            entries[i].pairs = calibrate(&entries[i]);
    }
    for (int t = 0; t < turns; t++) {
        /* random order per turn, so that no entry always follows the same one; deterministic seed */
        for (size_t i = 0; i < entry_count; i++)
            order[i] = i;
        for (size_t i = entry_count; i > 1; i--) {
            size_t j = (size_t)(bench_random(&state) % i), other = order[j];
            order[j] = order[i - 1];
            order[i - 1] = other;
        }
        for (size_t k = 0; k < entry_count; k++) {
            entry *e = &entries[order[k]];
            e->ns[t] = run_window(e, e->pairs) / (double)e->pairs / e->per;
        }
    }
    printf("%s\n  %-52s %10s %10s %9s %17s %9s\n", current, "", "ns min", "median", "ratio", "95 of 100", "beside");
    for (size_t i = 0; i < entry_count; i++) {
        if (figure_count == MAX_FIGURES)
            refuse("too many figures", current);
        figures[figure_count] = figure_of(&entries[i]);
        print_line(&figures[figure_count++]);
    }
    printf("\n");
    fflush(stdout);
    keep_json();
}
