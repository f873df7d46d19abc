/* SPDX-License-Identifier: Apache-2.0 */
/* Helpers of the tests of the driver's rules. They need only libc and the core library, so that they can be built on the GPU machine. */
#ifndef BP_TESTS_RULES_SUPPORT_H
#define BP_TESTS_RULES_SUPPORT_H

#include "devices/cuda_driver.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PART_BYTES 4096u /* tests fill and read parts of the buffers */
#define PARTS 8u

/* Objects of a test, made before it and destroyed after it. */
typedef struct rules {
    bp_cuda_driver driver;
    int devices;
    bool pools;
    void *context;         /* of device 0; current */
    size_t granularity;    /* of physical memory */
    uint64_t memory;       /* PARTS parts, in device memory */
    unsigned char *host;   /* PARTS parts, registered */
    void *a, *b;           /* streams that do not wait for the legacy one */
    void *blocking;        /* a stream that waits for the legacy one */
    void *e, *f;           /* events */
    atomic_int open, late; /* the gate; true if it was not opened in time */
    const char *skipped;   /* the reason, or NULL */
    char failed[512];      /* the answer, or "" */
} rules;

typedef struct memory_part {
    uint64_t address;
    size_t bytes;
    unsigned long long handle;
} memory_part;

#define EXPECT(call, number)                                                                                           \
    do {                                                                                                               \
        if (!rules_check(r, __FILE__, __LINE__, #call, (call), (number)))                                              \
            return;                                                                                                    \
    } while (0)
#define OKAY(call) EXPECT(call, 0)
#define OKAY_OR_WANTS_CONTEXT(call)                                                                                    \
    do {                                                                                                               \
        const int answer_ = (call);                                                                                    \
        if (!rules_check(r, __FILE__, __LINE__, #call, answer_, answer_ == 201 ? 201 : 0))                             \
            return;                                                                                                    \
    } while (0)
#define REFUSED(call) HOLDS((call) != 0)
#define HOLDS(condition)                                                                                               \
    do {                                                                                                               \
        if (!rules_hold(r, __FILE__, __LINE__, #condition, (condition)))                                               \
            return;                                                                                                    \
    } while (0)
#define SKIP_UNLESS(condition, reason)                                                                                 \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            r->skipped = (reason);                                                                                     \
            return;                                                                                                    \
        }                                                                                                              \
    } while (0)

bool rules_check(rules *r, const char *file, int line, const char *call, int result, int wanted);
bool rules_hold(rules *r, const char *file, int line, const char *condition, bool holds);

/* Blocks the stream until open_gate; one stream at a time, because host functions of several may run one after another. */
int hold_up(rules *r, void *stream);
void open_gate(rules *r);
void pause_ms(int milliseconds);

/* A part of the device's buffer. */
uint64_t part(const rules *r, unsigned index);
int fill_part(rules *r, void *stream, unsigned index, unsigned char value);
/* Copies to the same part of the host's buffer. */
int read_part(rules *r, void *stream, unsigned index);
int copy_part(rules *r, void *stream, unsigned to, unsigned from);
bool host_part_is(const rules *r, unsigned index, unsigned char value);

/* Runs a function on a separate thread without a current context, and joins it. */
void in_thread(rules *r, void (*function)(rules *r));

/* 0: not captured, 1: captured, 2: invalidated, -1: no answer. */
int capture_status(rules *r, void *stream);
uint64_t capture_id(rules *r, void *stream);
/* Ends the capture of `stream` and makes the graph executable. */
int end_as_executable(rules *r, void *stream, void **executable);

/* Physical memory of that many granules, and a reservation for it; mapped with access if `mapped`. */
int make_memory(rules *r, size_t granules, bool mapped, memory_part *made);
int give_access(rules *r, const memory_part *memory);
int end_memory(rules *r, const memory_part *memory, bool mapped);

#define BP_DECLARE_RULE(id, sentence, source) void id(rules *r);

#endif
