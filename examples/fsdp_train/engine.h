/* SPDX-License-Identifier: Apache-2.0 */
/* Runs operations: at once, on a stream of the host device, or as a CUDA kernel. */
#ifndef FSDP_TRAIN_ENGINE_H
#define FSDP_TRAIN_ENGINE_H

#include <bucketpool/bucketpool.h>

#include "driver.h"
#include "operations.h"
#include "work.h"

typedef enum engine_kind { ENGINE_NOW, ENGINE_HOST, ENGINE_CUDA } engine_kind;

/* An operation on its way through a stream of the host device, which keeps no copy of arguments. */
typedef struct engine_call {
    int operation;
    work work;
} engine_call;

typedef struct engine {
    engine_kind kind;
    engine_call *calls; /* of the step */
    size_t capacity, used;
    driver *cuda;
    void *kernels[OPERATION_COUNT];
    /* streams that sleep before each piece of work */
    const bp_stream *slow[3];
    size_t slow_count;
    unsigned slow_us;
} engine;

/* `cuda`: of ENGINE_CUDA, which keeps it; else NULL. `calls`: at most so many in a step. */
bp_status engine_create(engine_kind kind, driver *cuda, size_t calls, engine *e);
void engine_destroy(engine *e);

/* The stream sleeps before each piece of work from now on. */
void engine_slow_down(engine *e, const bp_stream *stream, unsigned microseconds);
/* Enqueues the sleep of a slow stream, before work other than operations. */
bp_status engine_dawdle(engine *e, bp_stream *stream);

/* All work of the step before is done. */
void engine_begin_step(engine *e);
/* In the order of the stream (ENGINE_NOW: before it returns). */
bp_status engine_run(engine *e, int operation, const work *w, bp_stream *stream);

#endif
