/* SPDX-License-Identifier: Apache-2.0 */
/* A device that tracks pinned memory, and a random walk over pinned memory against a reference model. */
#ifndef TESTS_PINNED_SUPPORT_H
#define TESTS_PINNED_SUPPORT_H

#include <bucketpool/device_ops.h>
#include <bucketpool/pinned.h>

#include <stdbool.h>

#include "support/suite/suite.h"
#include "support/trace_device.h"

#define KIB ((uint64_t)1 << 10)
#define MIB ((uint64_t)1 << 20)

#define assert_ok(call) assert_status((call), BP_OK, "", #call, __FILE__, __LINE__)
/* The detail has `word` in it. */
#define assert_fails(call, status, word) assert_status((call), (status), (word), #call, __FILE__, __LINE__)
void assert_status(bp_status status, bp_status expected, const char *word, const char *call, const char *file,
                   int line);

/* A trace device over a host device that pins. Misuse (not whole pages, pinned twice, never pinned) fails the test. One at a time. */
bp_device *new_device(void);
/* Asserts that nothing is pinned any more. */
void end_device(bp_device **device);
/* Variables that end with their block. */
#define DEVICE __attribute__((cleanup(end_device))) bp_device
#define PINNED __attribute__((cleanup(bp_pinned_destroy))) bp_pinned

/* The `nth` call of `operation` (pin, unpin) fails, and with `keep` all later ones. 0: none. */
void fail_device(device_operation operation, unsigned nth, bool keep);
bool has_failed(void);

bool is_pinned(const void *address, uint64_t bytes);
uint64_t pinned_bytes(void);
size_t pinned_ranges(void);

uint64_t next_random(uint64_t *state);

bp_pinned *new_pinned(bp_device *device, const bp_pinned_config *config);
bp_pinned_config small_config(bp_pinned_allocator allocator, uint64_t slab_bytes);
bp_pinned_statistics statistics_of(const bp_pinned *pinned);

/* Allocates and frees at random; in the end all is free. Running out of room is allowed; *refused counts it unless NULL. */
void walk(bp_pinned *pinned, uint64_t seed, unsigned steps, uint64_t max_bytes, unsigned *refused);

#endif
