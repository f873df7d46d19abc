/* SPDX-License-Identifier: Apache-2.0 */
/* Clients of the emulated driver while each of its functions fails: in creation, calls, captures and destruction, once or for good. The error
 * names the function, nothing leaks, and a second try has the same bits. Arguments: the library of kernels. */
#include "support/harness.h"

#include <bucketpool/capture.h>
#include <bucketpool/core/fail.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../support/clients.h"
#include "devices/cuda.h"
#include "fake_cuda.h"
#include "support/pools.h"

enum { UNKNOWN = 999, OUT_OF_MEMORY = 2, ILLEGAL_ADDRESS = 700 };

typedef struct bench {
    bp_device *device;
    bp_stream *stream;
    client c;
    job j;
    bp_capture *capture;
    bp_graph *graph;
    bool is_capturing;
} bench;

static bp_cuda_driver table;
static fake_cuda_config settings;

/* A capture of a client without a pool is not declared. */
static bp_status call_captured(bench *b)
{
    bp_pool *pool = b->c.kind->pool(&b->c);
    if (pool != NULL)
        BP_TRY(bp_capture_begin(pool, NULL, &b->capture));
    BP_TRY(bp_graph_begin(b->stream));
    b->is_capturing = true;
    BP_TRY(b->c.kind->call(&b->c, &b->j, b->stream, true));
    BP_TRY(bp_graph_end(b->stream, &b->graph));
    b->is_capturing = false;
    if (pool != NULL) {
        BP_TRY(bp_capture_end(b->capture));
        BP_TRY(bp_capture_before_launch(b->capture, b->stream));
    }
    BP_TRY(bp_graph_launch(b->graph, b->stream));
    if (pool != NULL)
        BP_TRY(bp_capture_launched(b->capture, b->stream));
    return bp_stream_synchronize(b->stream);
}

static void end_capture(bench *b)
{
    if (b->is_capturing)
        (void)bp_graph_end(b->stream, &b->graph);
    b->is_capturing = false;
    (void)bp_stream_synchronize(b->stream);
    bp_graph_destroy(&b->graph);
    bp_capture_destroy(&b->capture);
}

static void begin_bench(bench *b, const client_kind *kind)
{
    bp_cuda_config config;
    *b = (bench){0};
    fake_cuda_reset();
    fake_cuda_configure(&settings);
    fake_cuda_table(&table);
    assert_int_equal(table.cuInit(0), 0);
    assert_ok(bp_cuda_config_init(&config, sizeof config));
    assert_ok(bp_device_create_cuda_from(&config, &table, &b->device));
    assert_ok(bp_stream_create(b->device, "caller", &b->stream));
    begin_job(&b->j, b->device, 0);
    begin_client(&b->c, kind, b->device, NULL);
}

/* `broken`: releasing fails as well. */
static void end_bench(bench *b, bool broken)
{
    destroy_client(&b->c);
    const bp_status freed = end_job(&b->j);
    end_client(&b->c);
    bp_stream_destroy(&b->stream);
    bp_device_destroy(&b->device);
    if (broken)
        return;
    assert_ok(freed);
    assert_string_equal(fake_cuda_broken(), "");
    assert_string_equal(fake_cuda_leaks(), "");
}

/* ---- driver calls ------------------------------------------------------------------------------------------------------ */

/* A pass is a launch and nothing else: no event, no query. For the default stream, which knows no context, the device is made current.
 * Forward and backward are a pass each, together two, as the rows are short; a divergence has three, its backward one, and range one. */
TEST(passes_are_launches)
{
    enum { PASSES = 9 };
    for (int checked = 0; checked < 2; checked++) {
        const client_kind *kind = &CLIENTS[checked];
        bench b;
        bp_stream *legacy;
        void *popped;
        begin_bench(&b, kind);
        assert_ok(kind->create(&b.c));
        assert_ok(bp_stream_import(b.device, 0, "default", &legacy));
        assert_int_equal(table.cuCtxPushCurrent(bp_cuda_of(b.device)->context), 0); /* as PyTorch's threads have it */
        bp_stream *const streams[] = {b.stream, b.stream, legacy};
        for (size_t i = 0; i < sizeof streams / sizeof *streams; i++) {
            const uint64_t calls = fake_cuda_calls_all(), launches = fake_cuda_calls("cuLaunchKernel");
            const uint64_t pushes = fake_cuda_calls("cuCtxPushCurrent");
            assert_ok(kind->call(&b.c, &b.j, streams[i], true));
            assert_int_equal(fake_cuda_calls("cuLaunchKernel") - launches, PASSES);
            assert_int_equal(fake_cuda_calls("cuCtxPushCurrent") - pushes, streams[i] == legacy ? PASSES : 0);
            assert_int_equal(fake_cuda_calls_all() - calls, streams[i] == legacy ? 3 * PASSES : PASSES);
            assert_ok(bp_stream_synchronize(streams[i]));
        }
        assert_int_equal(table.cuCtxPopCurrent(&popped), 0);
        bp_stream_destroy(&legacy);
        end_bench(&b, false);
    }
}

/* ---- faults ------------------------------------------------------------------------------------------------------------ */

/* A way to use a client, and the part in which the driver fails. */
typedef enum use { CREATION, CALLS_ON_OWN_STREAM, CALLS, CAPTURED_CALLS, DESTRUCTION, USES } use;
static const char *const use_names[USES] = {"creation", "calls without a stream", "calls", "captured calls",
                                            "destruction"};

/* Their failure is ignored, as nothing can be done; what they release stays. */
static bool undoes(const char *function)
{
    static const char *const words[] = {"Destroy", "Free", "Unmap", "Release", "Unload", "Unregister"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strstr(function, words[i]) != NULL)
            return true;
    return false;
}

/* Functions of this test and of the emulated cuBLAS, of texts, and cuCtxPopCurrent, after whose failure every later call has another context. */
static bool is_spared(const char *function)
{
    return strncmp(function, "cuGet", 5) == 0 || strncmp(function, "cuCtxPop", 8) == 0 ||
           strcmp(function, "cuCtxGetCurrent") == 0 || strcmp(function, "cuInit") == 0;
}

static bp_status perform(bench *b, use part)
{
    switch (part) {
    case CREATION: return b->c.kind->create(&b->c);
    case CALLS_ON_OWN_STREAM: return b->c.kind->call(&b->c, &b->j, NULL, false);
    case CALLS: return b->c.kind->call(&b->c, &b->j, b->stream, false);
    case CAPTURED_CALLS: return call_captured(b);
    default: destroy_client(&b->c); return BP_OK;
    }
}

static bp_status expected_status(int error)
{
    return error == OUT_OF_MEMORY ? BP_ERR_NO_DEVICE_MEMORY : BP_ERR_DEVICE;
}

static client_tensors good; /* of calls without a fault */

static void assert_serves(bench *b, const char *words)
{
    if (!has_client(&b->c))
        assert_ok(b->c.kind->create(&b->c));
    fill_job(&b->j, 0);
    upload_job(&b->j, b->stream);
    if (b->c.kind->call(&b->c, &b->j, b->stream, false) != BP_OK)
        fail_msg("%s: then the second try failed: %s", words, bp_error_detail());
    download_job(&b->j, b->stream);
    if (memcmp(&b->j.here, &good, sizeof good) != 0)
        fail_msg("%s: then the second try has other results", words);
}

/* False: the function has fewer than n uses. */
static bool fail_use(const client_kind *kind, use part, const char *function, uint64_t nth, int error, bool for_good)
{
    bench b;
    char words[200];
    begin_bench(&b, kind);
    if (part != CREATION)
        assert_ok(kind->create(&b.c));
    const uint64_t before = fake_cuda_calls(function);
    assert_true((for_good ? fake_cuda_fail_for_good : fake_cuda_fail)(function, nth, error));
    bp_error_record(BP_OK, "an earlier error");
    const bp_status status = perform(&b, part);
    const bool met = fake_cuda_calls(function) - before >= nth;
    snprintf(words, sizeof words, "%s, %s: use %llu of %s fails %s with %d", kind->name, use_names[part],
             (unsigned long long)nth, function, for_good ? "for good" : "once", error);
    if (met && status == BP_OK && part != DESTRUCTION && !undoes(function))
        fail_msg("%s: no error", words);
    const bool named = undoes(function) || strstr(bp_error_detail(), function) != NULL ||
                       strstr(bp_error_detail(), ": cublas") != NULL; /* it calls the driver, too */
    if (status != BP_OK && (!met || status != expected_status(error) || !named))
        fail_msg("%s: %s: %s", words, bp_status_name(status), bp_error_detail());
    if (status == BP_OK && strcmp(bp_error_detail(), "an earlier error") != 0)
        fail_msg("%s: no error, but \"%s\"", words, bp_error_detail());
    assert_int_equal(has_client(&b.c), part != DESTRUCTION && (part != CREATION || status == BP_OK));
    if (!for_good) {
        void *popped;
        fake_cuda_fail_none();
        end_capture(&b);
        assert_int_equal(table.cuCtxPushCurrent(bp_cuda_of(b.device)->context), 0);
        assert_int_equal(table.cuCtxSynchronize(), 0);
        assert_int_equal(table.cuCtxPopCurrent(&popped), 0);
        assert_serves(&b, words);
    }
    end_capture(&b);
    end_bench(&b, for_good || part == DESTRUCTION || undoes(function));
    return met;
}

static unsigned fail_each(const client_kind *kind, use part, int error, bool for_good)
{
    unsigned failures = 0;
    for (size_t f = 0; fake_cuda_function(f) != NULL; f++) {
        const char *function = fake_cuda_function(f);
        for (uint64_t nth = 1; !is_spared(function); nth += 1 + nth / (error == UNKNOWN && !is_brief() ? 4 : 1)) {
            if (!fail_use(kind, part, function, nth, error, for_good))
                break;
            failures++;
        }
    }
    return failures;
}

static void fail_kinds(int error, bool for_good)
{
    FOR_CLIENTS(kind)
    {
        bench b;
        begin_bench(&b, kind);
        good = results_of(kind, b.device, 0, false);
        end_bench(&b, false);
        for (use part = 0; part < USES; part++) {
            if (part == CAPTURED_CALLS && kind->two_ranks)
                continue; /* exchanges are not captured */
            assert_true(fail_each(kind, part, error, for_good) >= 1);
        }
    }
}

TEST(test_once)
{
    fail_kinds(UNKNOWN, false);
}

TEST(test_out_of_memory)
{
    fail_kinds(OUT_OF_MEMORY, false);
}

/* As after an illegal address in a kernel: nothing can be waited for or released any more, but nothing hangs or crashes. */
TEST(test_for_good)
{
    fail_kinds(ILLEGAL_ADDRESS, true);
}

int main(int argc, char **argv)
{
    fake_cuda_config_init(&settings);
    settings.poison = 1 << 16; /* a workspace of cuBLAS has 32 MiB */
    settings.kernels = argc > 1 ? argv[1] : NULL;
    return run_registered(NULL, NULL, NULL, NULL);
}
