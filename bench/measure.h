/* Figures that hold on a noisy machine: the entries of a group run in turns, in short windows, so that what disturbs one disturbs its
 * neighbours too. A ratio is taken between windows of the same turn; of the ratios of all turns the median is reported, with the interval
 * that holds the true median in 95 of 100 runs (from their order alone: the sign test turned round). */
#ifndef BP_BENCH_MEASURE_H
#define BP_BENCH_MEASURE_H

#include <bucketpool/device.h>

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* ---- windows ----------------------------------------------------------------------------------------------------- */

/* Does the work `pairs` times and returns what that took, in nanoseconds. */
typedef double bench_run(void *user, size_t pairs);
/* Does the work `pairs` times. */
typedef void bench_loop(void *user, size_t pairs);

/* Does the work once. */
typedef void bench_once(void *user);

#define BENCH_NO_ENTRY SIZE_MAX
#define BENCH_MOST_TURNS 401

/* Groups are measured when they end, and not at all when they were not asked for: bench_begin then returns 0. */
int bench_begin(const char *group);
/* Fewer turns for the group that has begun: its windows are long. */
void bench_turns(int most);
/* pairs 0: as many as fill a window. `stream`, where there is one, is waited for at the end of a window. Returns the entry's number in the
 * group; entry 0 is what the others' ratios are to. */
size_t bench_add_run(const char *name, bench_run *run, void *user, size_t pairs);
size_t bench_add(const char *name, bench_loop *loop, void *user, size_t pairs);
size_t bench_add_once(const char *name, bench_once *once, void *user, bp_stream *stream, size_t pairs);
/* Divides an entry's time: pairs of several requests. */
void bench_per(size_t number, unsigned requests);
/* How much memory a pair of this group is about, for figures per GiB. */
void bench_bytes(uint64_t bytes);
/* What a pair of an entry reads and writes, and of how many logits, where it is of logits: its part of the bandwidth of entry 0 is reported,
 * of the ratios of the turns the median. */
void bench_moves(size_t number, uint64_t bytes, uint64_t logits);
/* Reports an entry also less another of its group, or less a part of it, turn by turn: what a call takes beside the device. */
void bench_less(size_t number, size_t device);
void bench_end(void);
/* The group that has begun cannot be measured. Prints the reason, which the JSON has too. */
__attribute__((format(printf, 1, 2))) void bench_skip(const char *format, ...);

double bench_now_ns(void);

/* Marsaglia's xorshift64; the state begins as BENCH_SEED. */
#define BENCH_SEED UINT64_C(88172645463325252)
static inline uint64_t bench_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

/* Of values that are put in order, the one in the middle. */
double bench_median(double *values, size_t count);

/* ---- programs ---------------------------------------------------------------------------------------------------- */

/* Ends the program where the library reports an error. */
void must(bp_status status);

/* An option that takes a value, a text or a number, or a flag. */
typedef struct bench_option {
    const char *name;
    const char **text;
    int *number, *flag;
} bench_option;

/* Reads those of every program (--json FILE, --date TEXT, --only GROUP: groups whose name begins so, --turns N: `turns` without it) and
 * `more`. Returns where further arguments begin (`takes_files`: there is one; else none); a mistake ends the program with the usage and 2. The file of --json is rewritten after each
 * group, so that a crash keeps the groups before it. */
int bench_start(int argc, char **argv, int turns, const char *more_usage, const bench_option *more, size_t count,
                int takes_files);
/* Of --turns. */
int bench_asked_turns(void);

/* From now on bench_begin measures no group: it prints the names, or looks for that of --only. */
void bench_begin_names(int print);
/* Groups are measured again, of --only the one with exactly this name. Ends the program with a message and 2 where there is none. */
void bench_end_names(void);

/* Writes the file of --json. Returns the program's exit status: 1 where the file cannot be written, and says so; 77 where groups were
 * skipped and none was measured, after a line with the last reason; else 0. */
int bench_finish_groups(void);

/* The device of the figures, for the head of the JSON. Writes the file of --json: what an earlier run has left there is no result of this
 * one. */
void bench_measured_on(const char *name, uint64_t bytes, uint64_t free_bytes);

/* ---- documents --------------------------------------------------------------------------------------------------- */

/* In quotes; control characters are left out. */
void bench_print_string(FILE *file, const char *text);
/* Begins the file of --json, a bucketpool.bench/1 document: members from "format" to "machine", without the comma after them. NULL where
 * there is none. */
FILE *bench_open_json(void);
/* Ends it, and gives it its name. Returns an exit status. */
int bench_close_json(FILE *file);

#endif
