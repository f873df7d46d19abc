/* SPDX-License-Identifier: Apache-2.0 */
/* Fixtures of the pool tests: rows of allocators and devices, small pools, streams blocked by gates. */
#ifndef BP_TEST_CONTRACT_SUPPORT_H
#define BP_TEST_CONTRACT_SUPPORT_H

#include <bucketpool/device_ops.h>
#include <bucketpool/pool.h>

#include <stdatomic.h>
#include <stdbool.h>

#include "scenarios.h"
#include "suite/suite.h"
#include "trace_device.h"

/* ---- rows ---------------------------------------------------------------------------------------------------------- */

typedef struct allocator_row {
    const char *name;
    bp_policy policy; /* of the plan */
    bp_strict strict;
    bool pooled;   /* memory is shared and made at creation */
    bool assigned; /* one address per request */
} allocator_row;

/* Access to a device's bytes: none, by the host directly, by copies in stream order. */
typedef enum row_memory { NO_MEMORY, HOST_READS, BY_COPY } row_memory;

typedef struct device_row {
    const char *name;
    bp_device *(*create)(void);
    row_memory memory;
} device_row;

extern const allocator_row ALLOCATORS[];
extern const size_t ALLOCATOR_COUNT;

/* Rows: host, null and trace(host); with a driver (../support/driver.h) cuda and trace(cuda). The first has memory. */
size_t device_count(void);
const device_row *device_at(size_t row);
/* The row with the cheapest acquire and release: null, or cuda. */
const device_row *light_device(void);

/* The device of the first row. */
bp_device *new_device(void);
/* Without a driver, streams pause up to `max_delay_us` before each piece of work. */
bp_device *new_slow_device(uint32_t max_delay_us, uint64_t delay_seed);

bp_device *new_host(void);
bp_device *new_slow_host(uint32_t max_delay_us, uint64_t delay_seed);
bp_device *new_null(void);

typedef struct op_counts {
    atomic_ulong calls[OP_COUNT];
} op_counts;

/* A device that forwards to `inner`, which it owns, and counts each call first. */
bp_device *new_counted(bp_device *inner, op_counts *counts);

bp_device_usage usage_of(const bp_device *device);

/* BUCKETPOOL_BRIEF is set: runs a share of what other tests repeat in full. */
bool is_brief(void);

/* ---- pools --------------------------------------------------------------------------------------------------------- */

/* Units "u0", "u1", ... separated by blanks, of buckets separated by commas: elements of bf16, with "/padded", "f" for frozen,
 * "q" for fp8_e4m3 after them. "-" is a unit without buckets. */
bp_model *model_of(const char *units);

/* Two kinds of units; every size leaves slack before the next multiple of 256 bytes. With prefetch 1, two units have buffers. */
#define UNITS "300,100 300,100 300,100 300,100 700 300,100"
#define KIT_STREAMS 4

typedef struct kit {
    scenario w;
    bp_plan *plan;
    bp_device *device;
    bp_stream *streams[KIT_STREAMS]; /* "s0" to "s3" */
    bp_pool *pool;
    uint32_t *ids; /* of the requests of the plan: 0, 1, ... */
    size_t requests;
} kit;

extern const scenario_options TRAINING; /* params and gradients, prefetch 1 */

/* Takes the device over. `units` may be NULL if the caller sets fixture and plan. */
kit begin_kit(bp_device *device, const char *units, scenario_options options, bp_policy policy, uint32_t copies);
void end_kit(kit *k); /* asserts that everything was freed */
/* A kit that ends with its block. */
#define KIT __attribute__((cleanup(end_kit))) kit

bp_pool_config pool_config(void);
bp_pool_config config_of(const allocator_row *row);
/* Makes the pool. */
void open_pool(kit *k, const bp_pool_config *config);
/* Both, with the default configuration. */
kit start_kit(bp_device *device, const char *units, scenario_options options, bp_policy policy, uint32_t copies);
/* Looks up the ids of a pool that the caller made. */
void number_requests(kit *k);
/* From now on all requests of the role are acquired on the stream. */
void promise_stream(const kit *k, bp_role role, bp_stream *stream);
/* Both, of UNITS. */
kit open_kit(const allocator_row *row, const device_row *device);

uint32_t id_of(const kit *k, uint32_t unit, bp_role role, uint32_t ordinal);
/* Parameters, first bucket. */
uint32_t param(const kit *k, uint32_t unit);
bp_bind bind_of(const char *unit, uint32_t ordinal, bp_role role, bp_dtype dtype, uint64_t bytes);

/* One id; asserted. */
void *take(const kit *k, uint32_t id, bp_stream *stream);
void drop(const kit *k, uint32_t id, bp_stream *stream);
bool try_take(const kit *k, uint32_t id, bp_stream *stream);
/* Asserts that an acquire is refused with these words and changes nothing. */
#define assert_refused(k, id, stream, ...)                                                                             \
    check_refused(k, id, stream, (const char *const[]){__VA_ARGS__, NULL}, __FILE__, __LINE__)
void check_refused(const kit *k, uint32_t id, bp_stream *stream, const char *const *words, const char *file, int line);

bp_pool_statistics statistics_of(const bp_pool *pool);
size_t live_count(const bp_pool *pool);
void *address_of(const kit *k, uint32_t id);

/* Everything that a failed call must leave unchanged. */
#define SNAPSHOT_LIVE 64
typedef struct snapshot {
    bp_live_request live[SNAPSHOT_LIVE];
    size_t live_count;
    uint64_t numbers[12];
} snapshot;

snapshot snapshot_of(const bp_pool *pool);
void assert_unchanged(const bp_pool *pool, const snapshot *before);

/* Runs the schedule `times` times: acquires on s0, fills, releases on s1, where the bytes are checked. Asserts that live requests are
 * disjoint. `addresses` (one per request, or NULL) gets the last ones; with `stable`, asserts that they never change. */
void walk(kit *k, unsigned times, void **addresses, bool stable);

/* ---- streams ------------------------------------------------------------------------------------------------------- */

/* Work that blocks its stream until the gate is opened, or for at most half a minute, so that no test hangs. */
typedef struct gate {
    atomic_int open;
    uint32_t *word; /* event that a driver's streams wait for */
} gate;

void pause_us(long us);

void block(bp_stream *stream, gate *g);
void unblock(gate *g);
/* A thread that opens its gate after a delay. */
void *unblock_later(void *closed);

/* Set by work on a stream. */
typedef atomic_int flag;

void raise_on(bp_stream *stream, flag *f);
bool is_raised_soon(flag *f);
bool stays_down(flag *f); /* for some milliseconds */

/* Bytes read by work on a stream. */
typedef struct check {
    const uint8_t *address;
    uint64_t bytes;
    uint8_t value;
    atomic_int wrong;
    uint8_t *copy; /* copy of the bytes, if the host cannot read them; else NULL */
} check;

void check_on(bp_stream *stream, check *c);

void order(bp_device *device, bp_stream *first,
           bp_stream *then); /* orders later work on `then` after the present work on `first` */

#endif
