/* SPDX-License-Identifier: Apache-2.0 */
/* Work on the emulated CUDA driver that has no like on the host: captures and their launches, imported streams, PyTorch's allocator. */
#include "soak.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#define MIB ((uint64_t)1 << 20)

static void *driver_symbol(const soak *s, const char *name)
{
    void *library = dlopen(s->driver, RTLD_NOW | RTLD_LOCAL);
    must(library != NULL);
    void *symbol = dlsym(library, name);
    must(symbol != NULL && dlclose(library) == 0);
    return symbol;
}

/* Nothing, or what the driver says. */
static bool is_silent(const soak *s, const char *question)
{
    const char *(*ask)(void);
    *(void **)&ask = driver_symbol(s, question);
    const char *answer = ask();
    if (*answer != '\0')
        fprintf(stderr, "%s: %s\n", question, answer);
    return *answer == '\0';
}

void end_driver(const soak *s)
{
    void (*reset)(void);
    must(is_silent(s, "fake_cuda_broken") && is_silent(s, "fake_cuda_leaks"));
    *(void **)&reset = driver_symbol(s, "fake_cuda_reset");
    reset();
}

/* ---- captures ------------------------------------------------------------------------------------------------------- */

static void hand_over(const bench *b, bp_stream *from, bp_stream *to)
{
    bp_event *event = NULL;
    must_ok(bp_event_create(b->device, &event));
    must_ok(bp_event_record(event, from));
    must_ok(bp_stream_wait(to, event));
    bp_event_destroy(&event);
}

static bp_graph *record_iteration(bench *b)
{
    bp_graph *graph = NULL;
    must_ok(bp_graph_begin(b->streams[0]));
    for (size_t i = 1; i < LANES; i++)
        hand_over(b, b->streams[0], b->streams[i]);
    iterate(b);
    for (size_t i = 1; i < LANES; i++)
        hand_over(b, b->streams[i], b->streams[0]);
    must_ok(bp_graph_end(b->streams[0], &graph));
    return graph;
}

void capture_round(soak *s)
{
    bench b = open_bench(s, CUDA, false);
    bp_capture *capture = NULL;
    bp_capture_config config;
    while (!bp_plan_get_info(b.plan)->stable) { /* dynamic requests cannot be captured */
        close_bench(&b);
        b = open_bench(s, CUDA, false);
    }
    iterate(&b);
    hold_state(&b);
    check_bench(&b);
    must_ok(bp_capture_config_init(&config, sizeof config));
    config.owned = b.state;
    config.owned_count = b.state_count;
    must_ok(bp_capture_begin(b.pool, &config, &capture));
    bp_graph *graph = record_iteration(&b);
    bool abandoned = chance(b.dice, 5);
    if (!abandoned)
        must_ok(bp_capture_end(capture));
    for (uint32_t n = abandoned ? 0 : below(b.dice, 5); n > 0; n--) {
        bp_stream *stream = b.streams[below(b.dice, LANES)];
        must_ok(bp_capture_before_launch(capture, stream));
        must_ok(bp_graph_launch(graph, stream));
        must_ok(bp_capture_launched(capture, stream));
        must_ok(bp_device_synchronize(b.device)); /* the reads of two launches write to the same memory */
    }
    bp_graph_destroy(&graph);
    if (abandoned || chance(b.dice, 2))
        bp_capture_destroy(&capture);
    check_bench(&b);
    iterate(&b);
    read_state(&b);
    check_bench(&b);
    bp_pool_destroy(&b.pool);
    bp_capture_destroy(&capture);
    close_bench(&b);
}

/* ---- streams of other software -------------------------------------------------------------------------------------- */

static void *native(bp_stream *stream)
{
    uint64_t handle;
    must_ok(bp_stream_native(stream, &handle));
    return (void *)(uintptr_t)handle; /* NOLINT(performance-no-int-to-ptr): that is what it was */
}

/* Another device of the same GPU plays the runtime that owns the stream. */
static void import_stream(soak *s, bp_device *device)
{
    bp_device *runtime = random_device(s, CUDA);
    bp_stream *theirs = NULL, *ours = NULL;
    bp_event *event = NULL;
    uint64_t handle;
    must_ok(bp_stream_create(runtime, "theirs", &theirs));
    must_ok(bp_stream_native(theirs, &handle));
    must_ok(bp_stream_import(device, handle, "imported", &ours));
    must_ok(bp_event_create(device, &event));
    must_ok(bp_event_record(event, ours));
    must_ok(bp_event_synchronize(event));
    bp_event_destroy(&event);
    bp_stream_destroy(&ours);
    bp_stream_destroy(&theirs);
    bp_device_destroy(&runtime);
}

void segment_round(soak *s)
{
    dice *d = &s->dice;
    bp_device *device = random_device(s, CUDA);
    bp_stream *streams[2];
    bp_torch_config config;
    void *segments[8] = {NULL};
    size_t bytes[8] = {0};
    for (size_t i = 0; i < 2; i++)
        must_ok(bp_stream_create(device, NULL, &streams[i]));
    must_ok(bp_torch_config_init(&config, sizeof config));
    config.device = device;
    config.bytes = 16 * MIB;
    must_ok(bp_torch_serve(&config));
    for (int n = 0; n < 40; n++) {
        uint32_t i = below(d, 8);
        void *stream = native(streams[below(d, 2)]);
        if (segments[i] != NULL) {
            bp_torch_free(segments[i], bytes[i], 0, stream);
            segments[i] = NULL;
            continue;
        }
        bytes[i] = 2 * MIB * (1 + below(d, 3));
        segments[i] = bp_torch_malloc(bytes[i], 0, stream); /* NULL: full */
    }
    for (size_t i = 0; i < 8; i++)
        if (segments[i] != NULL)
            bp_torch_free(segments[i], bytes[i], 0, native(streams[0]));
    must_ok(bp_torch_stop(0));
    import_stream(s, device);
    for (size_t i = 0; i < 2; i++)
        bp_stream_destroy(&streams[i]);
    bp_device_destroy(&device);
}
