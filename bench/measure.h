/* SPDX-License-Identifier: Apache-2.0 */
/* Figures that are robust on a noisy machine: the entries of a group run in turns, in short windows, so that a disturbance hits
 * neighbouring windows alike. Ratios are between windows of the same turn; reported is their median with a 95 % confidence interval by
 * order statistics (inverted sign test). */
#ifndef BP_BENCH_MEASURE_H
#define BP_BENCH_MEASURE_H

#include <bucketpool/device.h>

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* ---- windows ----------------------------------------------------------------------------------------------------- */

/* Does the work `pairs` times and returns the nanoseconds it took. */
typedef double bench_run(void *user, size_t pairs);
/* Does the work `pairs` times. */
typedef void bench_loop(void *user, size_t pairs);

/* Does the work once. */
typedef void bench_once(void *user);

#define BENCH_NO_ENTRY SIZE_MAX
#define BENCH_MAX_TURNS 401

/* Groups are measured when they end. bench_begin returns 0 for a group that was not requested. */
int bench_begin(const char *group);
/* Limits the turns of the current group, for long windows. */
void bench_turns(int max);
/* pairs 0: as many as fill a window. `stream`, if given, is synchronized at the end of a window. Returns the entry's index in the group;
 * ratios are to entry 0. */
size_t bench_add_run(const char *name, bench_run *run, void *user, size_t pairs);
size_t bench_add(const char *name, bench_loop *loop, void *user, size_t pairs);
size_t bench_add_once(const char *name, bench_once *once, void *user, bp_stream *stream, size_t pairs);
/* Divides an entry's time by the number of requests per pair. */
void bench_per(size_t number, unsigned requests);
/* Bytes per pair of this group, for figures per GiB. */
void bench_bytes(uint64_t bytes);
/* Bytes that a pair of an entry moves, and its number of logits (0: none). Reports the fraction of entry 0's bandwidth, as the median of
 * the turns' ratios. */
void bench_moves(size_t number, uint64_t bytes, uint64_t logits);
/* Reports an entry also net of another entry of its group, or of part of it, per turn: the time net of the device. */
void bench_less(size_t number, size_t device);
void bench_end(void);
/* Skips the current group with a reason, which is printed and stored in the JSON. */
__attribute__((format(printf, 1, 2))) void bench_skip(const char *format, ...);

double bench_now_ns(void);

/* Marsaglia's xorshift64; initial state BENCH_SEED. */
#define BENCH_SEED UINT64_C(88172645463325252)
static inline uint64_t bench_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

/* Sorts the values and returns the middle one. */
double bench_median(double *values, size_t count);

/* ---- programs ---------------------------------------------------------------------------------------------------- */

/* Ends the program on a library error. */
void must(bp_status status);

/* An option with a text or number, or a flag. */
typedef struct bench_option {
    const char *name;
    const char **text;
    int *number, *flag;
} bench_option;

/* Parses the common options (--json FILE, --date TEXT, --only GROUP: a name prefix, --turns N: default `turns`) and `more`. Returns the
 * index of the first further argument (`takes_files`: at least one; else none); a usage error ends the program with 2. The JSON file is
 * rewritten after each group, so that a crash loses no earlier group. */
int bench_start(int argc, char **argv, int turns, const char *more_usage, const bench_option *more, size_t count,
                int takes_files);
/* The value of --turns. */
int bench_asked_turns(void);

/* From now on bench_begin measures nothing: it prints the names, or looks for that of --only. */
void bench_begin_names(int print);
/* Ends listing: groups are measured again, with --only the one of exactly this name. Ends the program with a message and 2 if there is
 * none. */
void bench_end_names(void);

/* Writes the JSON file. Returns the exit status: 1 if it cannot be written, after a message; 77 if groups were skipped and none was
 * measured, after a line with the last reason; else 0. */
int bench_finish_groups(void);

/* The measured device, for the JSON header. Writes the JSON file at once, to replace results of an earlier run. */
void bench_measured_on(const char *name, uint64_t bytes, uint64_t free_bytes);

/* ---- documents --------------------------------------------------------------------------------------------------- */

/* In quotes; omits control characters. */
void bench_print_string(FILE *file, const char *text);
/* Opens the JSON file as a bucketpool.bench/1 document: members from "format" to "machine", without a comma after them. NULL without
 * --json. */
FILE *bench_open_json(void);
/* Closes it and renames it into place. Returns an exit status. */
int bench_close_json(FILE *file);

#endif
