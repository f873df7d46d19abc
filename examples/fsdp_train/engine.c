/* SPDX-License-Identifier: Apache-2.0 */
#include "engine.h"

#include <stdint.h>
#include <stdlib.h>
#include <time.h>

#include "all.h"
#include "kernels.h"
#include "try.h"

#define THREADS 128
#define MAX_BLOCKS 4096

/* ---- the host ------------------------------------------------------------------------------------------------------- */

typedef void operation_function(const work *w, uint64_t item);

static operation_function *const functions[] = {
#define FUNCTION(name) (name),
    OPERATIONS(FUNCTION)};

static void run_now(int operation, const work *w)
{
    for (uint64_t item = 0; item < w->items; item++)
        functions[operation](w, item);
}

static void run_call(void *argument)
{
    const engine_call *call = argument;
    run_now(call->operation, &call->work);
}

static bp_status run_on_host(engine *e, int operation, const work *w, bp_stream *stream)
{
    if (e->used == e->capacity)
        return fail(BP_ERR_INTERNAL, "a step has more than the %zu operations there is room for", e->capacity);
    engine_call *call = &e->calls[e->used++];
    *call = (engine_call){operation, *w};
    return bp_stream_call(stream, run_call, call);
}

/* ---- CUDA ----------------------------------------------------------------------------------------------------------- */

static const char *const kernel_names[] = {
#define KERNEL_NAME(name) "fsdp_train_" #name,
    OPERATIONS(KERNEL_NAME)};

static bp_status load_kernels(engine *e, driver *cuda)
{
    const void *image = kernels_image();
    if (image == NULL)
        return fail(BP_ERR_UNSUPPORTED,
                    "this fsdp_train was built without nvcc, so it has no kernels for GPUs: install "
                    "the CUDA toolkit and build again, or use --device host");
    e->cuda = cuda;
    return driver_load(cuda, image, kernel_names, OPERATION_COUNT, e->kernels);
}

static bp_status launch(const engine *e, int operation, const work *w, bp_stream *stream)
{
    void *arguments[] = {(void *)w};
    uint64_t blocks = (w->items + THREADS - 1) / THREADS;
    if (w->items == 0)
        return BP_OK;
    return driver_launch(e->cuda, e->kernels[operation], blocks < MAX_BLOCKS ? (uint32_t)blocks : MAX_BLOCKS, THREADS,
                         arguments, stream);
}

/* ---- slow streams --------------------------------------------------------------------------------------------------- */

static void doze(void *argument)
{
    unsigned microseconds = (unsigned)(uintptr_t)argument;
    struct timespec pause = {microseconds / 1000000, (long)(microseconds % 1000000) * 1000};
    (void)nanosleep(&pause, NULL);
}

void engine_slow_down(engine *e, const bp_stream *stream, unsigned microseconds)
{
    e->slow[e->slow_count++] = stream;
    e->slow_us = microseconds;
}

bp_status engine_dawdle(engine *e, bp_stream *stream)
{
    for (size_t i = 0; i < e->slow_count; i++) {
        if (e->slow[i] == stream) /* NOLINTNEXTLINE(performance-no-int-to-ptr): a number in place of a pointer */
            return bp_stream_call(stream, doze, (void *)(uintptr_t)e->slow_us);
    }
    return BP_OK;
}

/* ---- life ----------------------------------------------------------------------------------------------------------- */

bp_status engine_create(engine_kind kind, driver *cuda, size_t calls, engine *e)
{
    *e = (engine){.kind = kind};
    if (kind == ENGINE_HOST) {
        e->calls = malloc(calls * sizeof *e->calls);
        e->capacity = calls;
        return e->calls != NULL ? BP_OK : fail_memory();
    }
    return kind == ENGINE_CUDA ? load_kernels(e, cuda) : BP_OK;
}

void engine_destroy(engine *e)
{
    free(e->calls);
    e->calls = NULL;
}

void engine_begin_step(engine *e)
{
    e->used = 0;
}

bp_status engine_run(engine *e, int operation, const work *w, bp_stream *stream)
{
    if (e->kind == ENGINE_NOW) {
        run_now(operation, w);
        return BP_OK;
    }
    TRY(engine_dawdle(e, stream));
    return e->kind == ENGINE_HOST ? run_on_host(e, operation, w, stream) : launch(e, operation, w, stream);
}
