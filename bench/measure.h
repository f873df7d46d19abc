/* Figures that hold on a noisy machine: the entries of a group run in turns, in short windows, so that what disturbs one disturbs its
 * neighbours too. A ratio is taken between windows of the same turn; of the ratios of all turns the median is reported, with the interval
 * that holds the true median in 95 of 100 runs (from their order alone: the sign test turned round). */
#ifndef BP_BENCH_MEASURE_H
#define BP_BENCH_MEASURE_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* ---- windows ----------------------------------------------------------------------------------------------------- */

/* Does the work `pairs` times and returns what that took, in nanoseconds. */
typedef double bench_run(void *user, size_t pairs);
/* Does the work `pairs` times. */
typedef void bench_loop(void *user, size_t pairs);

#define BENCH_NO_ENTRY SIZE_MAX

/* NULL: all; else only the groups whose name begins so. */
void bench_settings(int turns, const char *only);

/* Only the group of exactly this name. */
void bench_only(const char *group);

/* From now on bench_begin measures no group: it hands the name to the visitor. NULL: groups are measured again. */
typedef void bench_visitor(void *user, const char *group);
void bench_visit(bench_visitor *visitor, void *user);

/* Groups are measured when they end, and not at all when they were not asked for: bench_begin then returns 0. */
int bench_begin(const char *group);
/* Fewer turns for the group that has begun: its windows are long. */
void bench_turns(int most);
/* pairs 0: as many as fill a window. Returns the entry's number in the group; entry 0 is what the others' ratios are to. */
size_t bench_add_run(const char *name, bench_run *run, void *user, size_t pairs);
size_t bench_add(const char *name, bench_loop *loop, void *user, size_t pairs);
/* Divides an entry's time: pairs of several requests. */
void bench_per(size_t number, unsigned requests);
/* How much memory a pair of this group is about, for figures per GiB. */
void bench_bytes(uint64_t bytes);
/* What a pair of an entry reads and writes, and of how many logits, where it is of logits: then its part of the bandwidth of entry 0 is reported, of the ratios of
 * the turns the median. */
void bench_moves(size_t number, uint64_t bytes, uint64_t logits);
/* Reports an entry also less another of its group, or less a part of it, turn by turn: what a call takes beside the device. */
void bench_less(size_t number, size_t device);
void bench_end(void);
/* The group that has begun cannot be measured. Prints the reason, which the JSON has too. */
__attribute__((format(printf, 1, 2))) void bench_skip(const char *format, ...);
/* 77 where groups were skipped and none was measured, after a line with the last reason; else 0. */
int bench_exit_status(void);

double bench_now_ns(void);

/* Writes all figures so far. The file is replaced as a whole; 1 where it cannot be written, and says so. */
int bench_write_json_file(const char *path, const char *date);
/* Writes this file now and after each group, so that a crash keeps the groups before it. */
void bench_json(const char *path, const char *date);
/* The device of the figures, for the head of the JSON. */
void bench_measured_on(const char *name, uint64_t bytes, uint64_t free_bytes);

/* ---- documents --------------------------------------------------------------------------------------------------- */

/* The beginning of a bucketpool.bench/1 document: which program on which machine the figures are of. */

/* In quotes; control characters are left out. */
void bench_print_string(FILE *file, const char *text);

/* Members from "format" to "machine", without the comma after them. `date` may be NULL. */
void bench_print_head(FILE *file, const char *date);

#endif
