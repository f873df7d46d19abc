/* Windows in turns, medians, the table and the JSON. */
#include "measure.h"

#include <bucketpool/status.h>

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* ---- the head of a document -------------------------------------------------------------------------------------- */

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

static void print_cpu(FILE *file)
{
    char line[256], model[256] = "unknown";
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
    bench_print_string(file, model);
}

void bench_print_head(FILE *file, const char *date)
{
    fprintf(file, "{\n  \"format\": \"bucketpool.bench/1\",\n  \"version\": ");
    bench_print_string(file, bp_version());
    if (date != NULL) {
        fprintf(file, ",\n  \"date\": ");
        bench_print_string(file, date);
    }
    fprintf(file, ",\n  \"compiler\": ");
    bench_print_string(file, __VERSION__);
    fprintf(file, ",\n  \"machine\": {\"cpu\": ");
    print_cpu(file);
    fprintf(file, ", \"cores\": %ld}", sysconf(_SC_NPROCESSORS_ONLN));
}

/* ---- windows in turns -------------------------------------------------------------------------------------------- */

#define MOST_TURNS 401
#define MOST_ENTRIES 16
#define MOST_FIGURES 512
#define MOST_SKIPPED 64
#define WINDOW_NS 250e3

typedef struct entry {
    char name[72];
    bench_run *run;
    bench_loop *loop;
    void *user;
    size_t pairs, less;
    unsigned per;
    uint64_t moved, logits;
    double ns[MOST_TURNS];
} entry;

typedef struct figure {
    char group[72], name[72], to[72], less[72];
    double min, median, ratio, own; /* of the medians; own: less the device */
    double low, high;               /* of the ratio */
    uint64_t bytes;
    double of_logit, of_second, fraction; /* bytes; of the bandwidth of entry 0 */
    size_t pairs;
    int turns;
} figure;

typedef struct skipped_group {
    char name[72], reason[200];
} skipped_group;

static entry entries[MOST_ENTRIES];
static size_t entry_count;
static figure figures[MOST_FIGURES];
static size_t figure_count;
static skipped_group skipped[MOST_SKIPPED];
static size_t skipped_count;
static const char *current, *wanted, *wanted_exactly;
static bench_visitor *visitor;
static void *visitor_user;
static const char *json_path, *json_date;
static char device_name[256];
static uint64_t device_bytes, device_free_bytes;
static int turns = 101; /* of the current group */
static int usual_turns = 101;
static uint64_t bytes_each; /* of the current group */

double bench_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

void bench_settings(int new_turns, const char *only)
{
    usual_turns = new_turns < 1 ? 1 : new_turns > MOST_TURNS ? MOST_TURNS : new_turns;
    wanted = only;
}

void bench_only(const char *group)
{
    wanted_exactly = group;
}

void bench_visit(bench_visitor *new_visitor, void *user)
{
    visitor = new_visitor;
    visitor_user = user;
}

int bench_begin(const char *group)
{
    if (visitor != NULL) {
        visitor(visitor_user, group);
        return 0;
    }
    if ((wanted != NULL && strncmp(group, wanted, strlen(wanted)) != 0) ||
        (wanted_exactly != NULL && strcmp(group, wanted_exactly) != 0))
        return 0;
    current = group;
    entry_count = 0;
    bytes_each = 0;
    turns = usual_turns;
    return 1;
}

void bench_turns(int most)
{
    turns = turns < most ? turns : most;
}

void bench_bytes(uint64_t bytes)
{
    bytes_each = bytes;
}

static size_t add(const char *name, const entry *e)
{
    if (entry_count == MOST_ENTRIES) {
        fprintf(stderr, "bench: group %s has too many entries\n", current);
        exit(1);
    }
    entries[entry_count] = *e;
    snprintf(entries[entry_count].name, sizeof entries[entry_count].name, "%s", name);
    return entry_count++;
}

size_t bench_add_run(const char *name, bench_run *run, void *user, size_t pairs)
{
    return add(name, &(entry){.run = run, .user = user, .pairs = pairs, .per = 1, .less = BENCH_NO_ENTRY});
}

size_t bench_add(const char *name, bench_loop *loop, void *user, size_t pairs)
{
    return add(name, &(entry){.loop = loop, .user = user, .pairs = pairs, .per = 1, .less = BENCH_NO_ENTRY});
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

/* Nanoseconds for `pairs`. */
static double run_window(const entry *e, size_t pairs)
{
    if (e->run != NULL)
        return e->run(e->user, pairs);
    double begin = bench_now_ns();
    e->loop(e->user, pairs);
    return bench_now_ns() - begin;
}

/* The least of three: the first time is slow, and so is one that was disturbed. */
static double time_of(const entry *e, size_t pairs)
{
    double least = run_window(e, pairs);
    for (int i = 0; i < 2; i++) {
        double took = run_window(e, pairs);
        least = took < least ? took : least;
    }
    return least;
}

static void calibrate(entry *e)
{
    if (e->pairs > 0)
        return;
    size_t pairs = 16;
    double took = time_of(e, pairs);
    while (took < WINDOW_NS / 4 && pairs < (size_t)1 << 24)
        took = time_of(e, pairs *= 2);
    e->pairs = 1 + (size_t)(WINDOW_NS * (double)pairs / took);
}

static int in_order(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void sort(const double *values, double *sorted)
{
    memcpy(sorted, values, (size_t)turns * sizeof *sorted);
    qsort(sorted, (size_t)turns, sizeof *sorted, in_order);
}

static double median(const double *values, double *least)
{
    double sorted[MOST_TURNS];
    sort(values, sorted);
    if (least != NULL)
        *least = sorted[0];
    return sorted[turns / 2];
}

/* How many of the least, and of the greatest, values may be left out: of `turns` tosses of a coin so few, or fewer, show heads at most once
 * in forty runs. With five values or fewer the interval is all of them, and holds the median less often. */
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

static void take_ratio(figure *f, const double *each)
{
    double sorted[MOST_TURNS];
    const int out = left_out();
    sort(each, sorted);
    f->ratio = sorted[turns / 2];
    f->low = sorted[out];
    f->high = sorted[turns - 1 - out];
}

/* Of nanoseconds: what takes less than ten of them is an element of something. */
static int decimals(double ns)
{
    return ns < 10 ? 3 : 1;
}

static void take_bandwidth(figure *f, const entry *e)
{
    double each[MOST_TURNS];
    if (e->moved == 0)
        return;
    for (int t = 0; t < turns; t++)
        each[t] = (double)e->moved / e->ns[t] / ((double)entries[0].moved / entries[0].ns[t]);
    f->of_logit = e->logits != 0 ? (double)e->moved / (double)e->logits : 0;
    f->of_second = (double)e->moved / f->median;
    f->fraction = median(each, NULL);
}

static void report(const entry *e)
{
    if (figure_count == MOST_FIGURES) {
        fprintf(stderr, "bench: too many figures\n");
        exit(1);
    }
    figure *f = &figures[figure_count++];
    double each[MOST_TURNS];
    *f = (figure){.turns = turns, .pairs = e->pairs, .bytes = bytes_each};
    snprintf(f->group, sizeof f->group, "%s", current);
    snprintf(f->name, sizeof f->name, "%s", e->name);
    f->median = median(e->ns, &f->min);
    if (e != entries) {
        for (int t = 0; t < turns; t++)
            each[t] = e->ns[t] / entries[0].ns[t];
        take_ratio(f, each);
        snprintf(f->to, sizeof f->to, "%s", entries[0].name);
    }
    if (e->less != BENCH_NO_ENTRY) {
        for (int t = 0; t < turns; t++)
            each[t] = e->ns[t] - entries[e->less].ns[t];
        f->own = median(each, NULL);
        snprintf(f->less, sizeof f->less, "%s", entries[e->less].name);
    }
    take_bandwidth(f, e);
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

static void keep_json(void)
{
    if (json_path != NULL && bench_write_json_file(json_path, json_date) != 0)
        exit(1);
}

/* Another order in each turn, so that no entry always follows the same one. The same on every run. */
static void shuffle(size_t *order, uint64_t *state)
{
    for (size_t i = 0; i < entry_count; i++)
        order[i] = i;
    for (size_t i = entry_count; i > 1; i--) {
        *state ^= *state << 13, *state ^= *state >> 7, *state ^= *state << 17;
        size_t j = (size_t)(*state % i), other = order[j];
        order[j] = order[i - 1];
        order[i - 1] = other;
    }
}

void bench_end(void)
{
    size_t order[MOST_ENTRIES] = {0};
    uint64_t state = 88172645463325252u;
    for (size_t i = 0; i < entry_count; i++)
        calibrate(&entries[i]);
    for (int t = 0; t < turns; t++) {
        shuffle(order, &state);
        for (size_t k = 0; k < entry_count; k++) {
            entry *e = &entries[order[k]];
            e->ns[t] = run_window(e, e->pairs) / (double)e->pairs / e->per;
        }
    }
    printf("%s\n  %-52s %10s %10s %9s %17s %9s\n", current, "", "ns min", "median", "ratio", "95 of 100", "beside");
    for (size_t i = 0; i < entry_count; i++)
        report(&entries[i]);
    printf("\n");
    fflush(stdout);
    keep_json();
}

void bench_skip(const char *format, ...)
{
    va_list arguments;
    if (skipped_count == MOST_SKIPPED) {
        fprintf(stderr, "bench: too many skipped groups\n");
        exit(1);
    }
    skipped_group *s = &skipped[skipped_count++];
    snprintf(s->name, sizeof s->name, "%s", current);
    va_start(arguments, format);
    vsnprintf(s->reason, sizeof s->reason, format, arguments);
    va_end(arguments);
    printf("%s is skipped: %s\n\n", s->name, s->reason);
    fflush(stdout);
    keep_json();
}

int bench_exit_status(void)
{
    if (figure_count > 0 || skipped_count == 0)
        return 0;
    printf("%s\n", skipped[skipped_count - 1].reason);
    return 77;
}

/* ---- JSON ----------------------------------------------------------------------------------------------------------- */

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

static void print_skipped(FILE *file)
{
    fprintf(file, ",\n  \"skipped\": [");
    for (size_t i = 0; i < skipped_count; i++) {
        fprintf(file, "%s\n    {\"name\": ", i > 0 ? "," : "");
        bench_print_string(file, skipped[i].name);
        fprintf(file, ", \"reason\": ");
        bench_print_string(file, skipped[i].reason);
        fprintf(file, "}");
    }
    fprintf(file, "%s]", skipped_count > 0 ? "\n  " : "");
}

void bench_json(const char *path, const char *date)
{
    json_path = path;
    json_date = date;
    keep_json(); /* what an earlier run has left there is no result of this one */
}

void bench_measured_on(const char *name, uint64_t bytes, uint64_t free_bytes)
{
    snprintf(device_name, sizeof device_name, "%s", name);
    device_bytes = bytes;
    device_free_bytes = free_bytes;
}

static void write_json(FILE *file, const char *date)
{
    bench_print_head(file, date);
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
    fprintf(file, "%s]", figure_count > 0 ? "\n  " : "");
    print_skipped(file);
    fprintf(file, "\n}\n");
}

int bench_write_json_file(const char *path, const char *date)
{
    char unfinished[4096];
    if (snprintf(unfinished, sizeof unfinished, "%s.new", path) >= (int)sizeof unfinished) {
        fprintf(stderr, "bench: the name of the JSON file is too long: %s\n", path);
        return 1;
    }
    FILE *file = fopen(unfinished, "w");
    if (file == NULL) {
        perror(unfinished);
        return 1;
    }
    write_json(file, date);
    const int written = ferror(file) == 0;
    if (fclose(file) != 0 || !written || rename(unfinished, path) != 0) {
        perror(path);
        return 1;
    }
    return 0;
}
