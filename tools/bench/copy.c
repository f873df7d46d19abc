/* SPDX-License-Identifier: Apache-2.0 */
/* Copy bandwidth of a device, the baseline of the other figures. */
#include "bench/setup.h"

#include <bucketpool/core/fail.h>

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#if defined __x86_64__
#include <emmintrin.h>
#endif

#include "shared/machine.h"

#define CUDA_BYTES (UINT64_C(1) << 30)
#define MIN_HOST_BYTES (UINT64_C(64) << 20)
#define MAX_HOST_BYTES (UINT64_C(2) << 30)
#define CUDA_COPIES 4 /* per measurement, to hide the launch overhead */
#define PAGE 4096u

enum { FROM, TO };

uint64_t bench_copy_bytes(const bench_device *device)
{
    uint64_t bytes = 2 * machine_cache_bytes();
    if (device->cuda)
        bytes = CUDA_BYTES;
    else
        bytes = bytes < MIN_HOST_BYTES ? MIN_HOST_BYTES : bytes > MAX_HOST_BYTES ? MAX_HOST_BYTES : bytes;
    uint64_t max = device->free_bytes / 16;
    return 2 * ((bytes < max ? bytes : max) / PAGE * PAGE);
}

bp_status bench_copy_init(const bench_device *device, bench_copy *c)
{
    *c = (bench_copy){.device = device, .bytes = bench_copy_bytes(device) / 2, .threads = 1};
    const bench_tensors tensors = {.bytes = {[FROM] = c->bytes, [TO] = c->bytes}};
    if (c->bytes == 0)
        return bp_fail(BP_ERR_NO_DEVICE_MEMORY, "no memory is free for copies");
    BP_TRY(bench_memory_init(device->device, "copies", &tensors, 1, &c->memory));
    BP_TRY(bench_memory_take(&c->memory, 0, FROM, device->stream, &c->from));
    BP_TRY(bench_memory_take(&c->memory, 0, TO, device->stream, &c->to));
    /* untouched pages would all map the zero page */
    BP_TRY(bp_stream_fill(device->stream, c->from, 1, c->bytes));
    BP_TRY(bp_stream_fill(device->stream, c->to, 2, c->bytes));
    return bp_stream_synchronize(device->stream);
}

void bench_copy_finish(bench_copy *c)
{
    bench_memory_finish(&c->memory);
}

/* ---- threads of the host ----------------------------------------------------------------------------------------- */

typedef struct host_team {
    const bench_copy *copy;
    pthread_mutex_t gate; /* held until all threads have started */
    pthread_barrier_t barrier;
    bool complete;
} host_team;

typedef struct host_member {
    host_team *team;
    pthread_t thread;
    uint32_t number;
} host_member;

/* Whole pages per member, with non-temporal stores, as the kernels write large results. */
static void copy_part(const bench_copy *c, uint32_t number)
{
    uint64_t pages = c->bytes / PAGE, begin = pages * number / c->threads, end = pages * (number + 1) / c->threads;
    void *to = (uint8_t *)c->to + begin * PAGE;
    const void *from = (const uint8_t *)c->from + begin * PAGE;
    uint64_t bytes = (end - begin) * PAGE;
#if defined __x86_64__
    __m128i *out = to;
    const __m128i *in = from;
    for (uint64_t i = 0; i < bytes / sizeof *in; i += 4) {
        __m128i v[4] = {_mm_load_si128(in + i), _mm_load_si128(in + i + 1), _mm_load_si128(in + i + 2),
                        _mm_load_si128(in + i + 3)};
        for (int k = 0; k < 4; k++)
            _mm_stream_si128(out + i + k, v[k]);
    }
    _mm_sfence();
#else
    memcpy(to, from, bytes);
#endif
}

static void *run_member(void *argument)
{
    const host_member *member = argument;
    host_team *team = member->team;
    (void)pthread_mutex_lock(&team->gate);
    bool complete = team->complete;
    (void)pthread_mutex_unlock(&team->gate);
    if (!complete)
        return NULL;
    (void)pthread_barrier_wait(&team->barrier);
    copy_part(team->copy, member->number);
    (void)pthread_barrier_wait(&team->barrier);
    return NULL;
}

/* Starts the other threads and joins those that were started. */
static bp_status copy_on_host(const bench_copy *c, double *seconds)
{
    host_team team = {.copy = c, .gate = PTHREAD_MUTEX_INITIALIZER};
    host_member *members = calloc(c->threads, sizeof *members);
    uint32_t started = 1;
    (void)pthread_mutex_lock(&team.gate);
    for (; members != NULL && started < c->threads; started++) {
        members[started] = (host_member){.team = &team, .number = started};
        if (pthread_create(&members[started].thread, NULL, run_member, &members[started]) != 0)
            break;
    }
    const bool complete =
        members != NULL && started == c->threads && pthread_barrier_init(&team.barrier, NULL, c->threads) == 0;
    team.complete = complete;
    (void)pthread_mutex_unlock(&team.gate);
    if (complete) {
        (void)pthread_barrier_wait(&team.barrier);
        double begin = machine_seconds();
        copy_part(c, 0);
        (void)pthread_barrier_wait(&team.barrier);
        *seconds = machine_seconds() - begin;
    }
    for (uint32_t i = 1; i < started; i++)
        (void)pthread_join(members[i].thread, NULL);
    if (complete)
        (void)pthread_barrier_destroy(&team.barrier);
    free(members);
    return complete ? BP_OK : bp_fail(BP_ERR_NO_HOST_MEMORY, "the threads for copies could not be started");
}

/* ---- any device -------------------------------------------------------------------------------------------------- */

static bp_status copy_on_stream(const bench_copy *c, double *seconds)
{
    bp_stream *stream = c->device->stream;
    BP_TRY(bp_stream_synchronize(stream));
    double begin = machine_seconds();
    for (int i = 0; i < CUDA_COPIES; i++)
        BP_TRY(bp_stream_copy(stream, c->to, c->from, c->bytes));
    BP_TRY(bp_stream_synchronize(stream));
    *seconds = (machine_seconds() - begin) / CUDA_COPIES;
    return BP_OK;
}

bp_status bench_copy_measure(const bench_copy *c, double *bytes_per_s)
{
    double seconds = 0;
    BP_TRY(c->device->cuda ? copy_on_stream(c, &seconds) : copy_on_host(c, &seconds));
    *bytes_per_s = 2 * (double)c->bytes / (seconds > 0 ? seconds : 1e-9);
    return BP_OK;
}
