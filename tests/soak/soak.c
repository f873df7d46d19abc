/* SPDX-License-Identifier: Apache-2.0 */
/* Runs random rounds for a time, measures the process between them, and fails if it grows.
 *
 * usage: soak SOURCES FOLDER DRIVER AMOUNT PROCESS SEED [LEAKS]
 *   SOURCES: of the project; FOLDER: for files, shared with other processes; DRIVER: library of the emulated CUDA driver, or ""
 *   AMOUNT: rounds, or "3600s" for seconds; PROCESS: a name, for files that only this process writes
 *   LEAKS: what it leaks on purpose, of heap, descriptor, thread, mapping, file, separated by commas
 *
 * Criterion: the run is divided into quarters. The median of the last quarter may exceed that of the second by a limit for each quantity.
 * The first quarter is for caches to fill. A median ignores moments in which another process or a thread is about to end; a leak of r per
 * round moves it by r times half the rounds. */
#include "soak.h"

#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <malloc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define MAX_SAMPLES 400

/* ---- conditions and random numbers ---------------------------------------------------------------------------------- */

static uint64_t rounds;
static const char *round_name = "";

void fail(const char *file, int line, const char *condition)
{
    fprintf(stderr, "%s:%d: round %llu (%s), process %ld: %s; last error: %s\n", file, line, (unsigned long long)rounds,
            round_name, (long)getpid(), condition, bp_error_detail());
    _exit(1);
}

/* xorshift64* */
uint32_t below(dice *d, uint32_t limit)
{
    d->state ^= d->state >> 12;
    d->state ^= d->state << 25;
    d->state ^= d->state >> 27;
    return (uint32_t)((d->state * UINT64_C(0x2545F4914F6CDD1D) >> 32) % limit);
}

bool chance(dice *d, uint32_t one_in)
{
    return below(d, one_in) == 0;
}

const char *path_in(const soak *s, const char *name)
{
    static _Thread_local char path[512];
    must((size_t)snprintf(path, sizeof path, "%s/%s", s->folder, name) < sizeof path);
    return path;
}

const char *own_path(const soak *s, const char *name)
{
    char own[64];
    snprintf(own, sizeof own, "%s.%s", s->process, name);
    return path_in(s, own);
}

/* ---- measurements --------------------------------------------------------------------------------------------------- */

typedef enum quantity { HEAP = 0, RESIDENT, DESCRIPTORS, TASKS, MAPPINGS, FILES, QUANTITIES } quantity;

static const struct {
    const char *name;
    double unit;
    uint64_t limit; /* of growth between the second and the last quarter */
} ABOUT[QUANTITIES] = {
    [HEAP] = {"heap KiB", 1024, 64 << 10}, /* in use; what threads cache counts */
    [RESIDENT] = {"resident MiB", 1 << 20, 8 << 20},
    [DESCRIPTORS] = {"descriptors", 1, 0},
    [TASKS] = {"threads", 1, 0},
    [MAPPINGS] = {"mappings", 1, 16}, /* arenas and cached stacks come and go in pairs of mappings */
    [FILES] = {"files", 1, 8},        /* in the shared folder; the next process removes what a killed one began */
};

static uint64_t samples[MAX_SAMPLES][QUANTITIES];
static size_t sample_count;

static uint64_t entries_of(const char *folder)
{
    DIR *list = opendir(folder);
    uint64_t count = 0;
    must(list != NULL);
    for (const struct dirent *entry; (entry = readdir(list)) != NULL;)
        count += entry->d_name[0] != '.';
    closedir(list);
    return count;
}

static uint64_t lines_of(const char *path)
{
    char text[4096];
    uint64_t count = 0;
    int file = open(path, O_RDONLY | O_CLOEXEC);
    must(file >= 0);
    for (ssize_t got; (got = read(file, text, sizeof text)) > 0;)
        for (ssize_t i = 0; i < got; i++)
            count += text[i] == '\n';
    close(file);
    return count;
}

static uint64_t resident_bytes(void)
{
    unsigned long size, resident;
    FILE *file = fopen("/proc/self/statm", "re");
    must(file != NULL && fscanf(file, "%lu %lu", &size, &resident) == 2);
    fclose(file);
    return (uint64_t)resident * (uint64_t)sysconf(_SC_PAGESIZE);
}

static uint64_t found_files;

static int count_file(const char *path, const struct stat *about, int type, struct FTW *at)
{
    (void)path, (void)about, (void)at;
    found_files += type == FTW_F;
    return 0;
}

static void measure(const soak *s)
{
    uint64_t *sample = samples[sample_count];
    if (sample_count == MAX_SAMPLES)
        return;
    malloc_trim(0);
    const struct mallinfo2 heap = mallinfo2();
    sample[HEAP] = heap.uordblks + heap.hblkhd;
    sample[RESIDENT] = resident_bytes();
    sample[DESCRIPTORS] = entries_of("/proc/self/fd");
    sample[TASKS] = entries_of("/proc/self/task");
    sample[MAPPINGS] = lines_of("/proc/self/maps");
    found_files = 0;
    nftw(s->folder, count_file, 8, FTW_PHYS);
    sample[FILES] = found_files;
    sample_count++;
}

static int compare(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static uint64_t median(quantity q, uint32_t quarter)
{
    uint64_t values[MAX_SAMPLES];
    size_t count = 0;
    for (size_t i = sample_count * quarter / 4; i < sample_count * (quarter + 1) / 4; i++)
        values[count++] = samples[i][q];
    qsort(values, count, sizeof *values, compare);
    return values[count / 2];
}

/* Prints medians of the quarters and what grew. */
static bool is_flat(void)
{
    bool flat = true;
    must(sample_count >= 8);
    printf("%-13s %10s %10s %10s %10s %10s %10s\n", "median of", "quarter 1", "quarter 2", "quarter 3", "quarter 4",
           "growth", "limit");
    for (quantity q = 0; q < QUANTITIES; q++) {
        const double unit = ABOUT[q].unit;
        double growth = ((double)median(q, 3) - (double)median(q, 1)) / unit, limit = (double)ABOUT[q].limit / unit;
        const int digits = unit > 1 ? 1 : 0;
        printf("%-13s", ABOUT[q].name);
        for (uint32_t quarter = 0; quarter < 4; quarter++)
            printf(" %10.*f", digits, (double)median(q, quarter) / unit);
        printf(" %+10.*f %10.*f%s\n", digits, growth, digits, limit, growth > limit ? " grows" : "");
        flat = flat && growth <= limit;
    }
    return flat;
}

/* ---- leaks on purpose ----------------------------------------------------------------------------------------------- */

static void *sleep_forever(void *argument)
{
    for (;;)
        pause();
    return argument;
}

/* 1 KiB of the heap each round; the others every tenth. */
static void leak(const soak *s, const char *what)
{
    static void *kept;
    char name[32];
    pthread_t thread;
    if (strstr(what, "heap") != NULL) {
        void **piece = malloc(1024);
        must(piece != NULL);
        *piece = kept;
        kept = (void *)piece;
    }
    if (rounds % 10 != 0)
        return;
    if (strstr(what, "descriptor") != NULL)
        must(open("/dev/null", O_RDONLY | O_CLOEXEC) >= 0);
    if (strstr(what, "thread") != NULL)
        must(pthread_create(&thread, NULL, sleep_forever, NULL) == 0 && pthread_detach(thread) == 0);
    if (strstr(what, "mapping") != NULL) /* two kinds in turn, which the system cannot merge */
        must(mmap(NULL, 65536, rounds % 20 == 0 ? PROT_READ : PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) !=
             MAP_FAILED);
    snprintf(name, sizeof name, "leak-%llu", (unsigned long long)rounds);
    if (strstr(what, "file") != NULL)
        must(close(open(path_in(s, name), O_WRONLY | O_CREAT | O_CLOEXEC, 0600)) == 0);
}

/* ---- rounds --------------------------------------------------------------------------------------------------------- */

static void host_pool_round(soak *s)
{
    pool_round(s, HOST);
}

static void null_pool_round(soak *s)
{
    pool_round(s, NONE);
}

static void cuda_pool_round(soak *s)
{
    pool_round(s, CUDA);
}

static void host_offload_round(soak *s)
{
    offload_round(s, HOST);
}

static void cuda_offload_round(soak *s)
{
    offload_round(s, CUDA);
}

static struct {
    const char *name;
    void (*run)(soak *s);
    bool on_driver;
    uint64_t times, ns;
} ROUNDS[] = {
    {.name = "plans", .run = plan_round},
    {.name = "files", .run = format_round},
    {.name = "packing", .run = packing_round},
    {.name = "host pool", .run = host_pool_round},
    {.name = "null pool", .run = null_pool_round},
    {.name = "standing pools", .run = standing_round},
    {.name = "host offload", .run = host_offload_round},
    {.name = "log-probabilities", .run = logprob_round},
    {.name = "ranks", .run = rank_round},
    {.name = "threads", .run = thread_round},
    {.name = "fork", .run = fork_round},
    {.name = "lost rank", .run = lost_rank_round},
    {.name = "cuda pool", .run = cuda_pool_round, .on_driver = true},
    {.name = "cuda offload", .run = cuda_offload_round, .on_driver = true},
    {.name = "captures", .run = capture_round, .on_driver = true},
    {.name = "segments", .run = segment_round, .on_driver = true},
};
#define ROUND_COUNT (sizeof ROUNDS / sizeof *ROUNDS)

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void run_round(soak *s)
{
    size_t i = below(&s->dice, ROUND_COUNT);
    while (ROUNDS[i].on_driver && *s->driver == '\0')
        i = below(&s->dice, ROUND_COUNT);
    uint64_t begun = now_ns();
    round_name = ROUNDS[i].name;
    ROUNDS[i].run(s);
    if (ROUNDS[i].on_driver)
        end_driver(s);
    ROUNDS[i].times++;
    ROUNDS[i].ns += now_ns() - begun;
    rounds++;
}

/* "12/60 minutes": ./check shows it. */
static void show_progress(const soak *s, uint64_t minute, uint64_t minutes)
{
    const uint64_t *last = samples[sample_count - 1];
    printf("%llu/%llu minutes: %llu rounds, %llu kills, %.1f MiB, %llu descriptors, %llu threads, %llu mappings\n",
           (unsigned long long)minute, (unsigned long long)minutes, (unsigned long long)rounds,
           (unsigned long long)s->kills, (double)last[RESIDENT] / (1 << 20), (unsigned long long)last[DESCRIPTORS],
           (unsigned long long)last[TASKS], (unsigned long long)last[MAPPINGS]);
    fflush(stdout);
}

int main(int count, char **words)
{
    if (count < 7) {
        fprintf(stderr, "usage: soak SOURCES FOLDER DRIVER AMOUNT PROCESS SEED [LEAKS]\n");
        return 2;
    }
    soak s = {.sources = words[1], .folder = words[2], .driver = words[3], .process = words[5]};
    char *unit;
    const uint64_t amount = strtoull(words[4], &unit, 10), begun = now_ns();
    const bool timed = *unit == 's';
    const double whole = (double)amount * (timed ? 1e9 : 1);
    s.dice.state = strtoull(words[6], NULL, 10) * UINT64_C(0x9E3779B97F4A7C15) + 1;
    memset(samples, 0xff, sizeof samples); /* resident from now on */
    begin_standing(&s);
    for (uint64_t minute = 1;;) {
        const uint64_t elapsed = now_ns() - begun;
        const double share = (double)(timed ? elapsed : rounds) / whole;
        if (share >= 1)
            break;
        run_round(&s);
        leak(&s, count > 7 ? words[7] : "");
        if (share * MAX_SAMPLES >= (double)sample_count)
            measure(&s);
        if (timed && elapsed / 60000000000u >= minute)
            show_progress(&s, minute++, amount / 60);
    }
    end_standing(&s);
    for (size_t i = 0; i < ROUND_COUNT; i++)
        printf("%-18s %8llu rounds %8.1f ms each\n", ROUNDS[i].name, (unsigned long long)ROUNDS[i].times,
               ROUNDS[i].times > 0 ? (double)ROUNDS[i].ns / 1e6 / (double)ROUNDS[i].times : 0);
    printf("%llu rounds in %llu s, %llu killed children, %llu provoked errors, seed %s\n", (unsigned long long)rounds,
           (unsigned long long)((now_ns() - begun) / 1000000000u), (unsigned long long)s.kills,
           (unsigned long long)s.refusals, words[6]);
    return is_flat() ? 0 : 1;
}
