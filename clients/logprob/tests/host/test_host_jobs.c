/* Jobs of host engines: equal bits for any number of threads, stream order, the ring, concurrent streams, and no allocations. */
#include "support/harness.h"

#include <bucketpool/logprob.h>

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "calls.h"
#include "host/jobs.h"
#include "support/interpose.h"

#define ALL_KERNELS (BP_KERNELS_PLAIN | BP_KERNELS_AVX2 | BP_KERNELS_AVX512)

static void sleep_ms(long ms)
{
    struct timespec t = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&t, NULL);
}

/* ---- threads ------------------------------------------------------------------------------------------------------- */

static void compare_threads(uint32_t kernels, const call_options *options)
{
    call first = new_call(options);
    kit one = open_kit(1, kernels, options->columns);
    run_call(&one, &first);
    close_kit(&one);
    for (uint32_t threads = 2; threads <= 4; threads++) {
        kit k = open_kit(threads, kernels, options->columns);
        call c = new_call(options);
        run_call(&k, &c);
        assert_true(calls_are_equal(&c, &first));
        end_call(&c);
        close_kit(&k);
    }
    end_call(&first);
}

/* Threads share each row if rows are few, or get whole rows; when narrowing in place, rows are never shared. */
TEST(test_threads)
{
    static const uint32_t tables[] = {BP_KERNELS_PLAIN, BP_KERNELS_AVX2, BP_KERNELS_AVX512};
    static const uint64_t rows[] = {1, 3, 7, 9, 33};
    for (size_t t = 0; t < sizeof tables / sizeof *tables; t++) {
        for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
            call_options o = {.batch = 1, .sequence = rows[r], .scale = 1, .kind = ROW_SPARSE, .with_entropy = 1};
            o.columns = tables[t] == BP_KERNELS_PLAIN ? 20001 : 70001;
            o.dtype = (int)(r % 3), o.with_mask = r > 2, o.seed = r + 1;
            compare_threads(tables[t], &o);
            o.dtype = BP_ROW_FP32, o.out_dtype = BP_ROW_BF16, o.in_place = 1;
            compare_threads(tables[t], &o);
        }
    }
}

TEST(test_number_of_threads)
{
    bp_engine *engine = NULL;
    assert_int_equal(bp_engine_create_host(5000, ALL_KERNELS, 10, &engine), BP_ERR_INVALID_ARGUMENT);
    assert_null(engine);
    assert_ok(bp_engine_create_host(0, ALL_KERNELS, 10, &engine));
    assert_true(engine->threads > 0);
    engine->ops->destroy(engine);
    assert_ok(bp_engine_create_host(3, ALL_KERNELS, 10, &engine));
#ifdef __SANITIZE_THREAD__
    const bool has_openmp = false;
#else
    const bool has_openmp = dlopen("libgomp.so.1", RTLD_NOW) != NULL;
#endif
    assert_int_equal(engine->threads, has_openmp ? 3 : 1);
    engine->ops->destroy(engine);
}

/* ---- the ring ------------------------------------------------------------------------------------------------------ */

typedef struct gate {
    atomic_int is_open;
} gate;

static void wait_for_gate(void *argument)
{
    while (!atomic_load(&((gate *)argument)->is_open))
        sleep_ms(1);
}

static void *open_later(void *argument)
{
    sleep_ms(50);
    atomic_store(&((gate *)argument)->is_open, 1);
    return NULL;
}

/* 64 jobs may wait; the next call returns only after the first of them has run. */
TEST(test_full_ring)
{
    kit k = open_kit(2, ALL_KERNELS, 100);
    gate g = {0};
    pthread_t opener;
    call calls[80];
    call_options o = {.batch = 1, .sequence = 2, .columns = 100, .scale = 1};
    for (uint64_t i = 0; i < 80; i++) {
        o.seed = i + 1;
        calls[i] = new_call(&o);
        run_call(&k, &calls[i]);
        memset(calls[i].out, 0xff, calls[i].out_bytes);
    }
    assert_ok(bp_stream_call(k.streams[0], wait_for_gate, &g));
    for (int i = 0; i < 64; i++)
        enqueue_backward(&k, 0, &calls[i]);
    assert_int_equal(atomic_load(&g.is_open), 0);
    assert_int_equal(pthread_create(&opener, NULL, open_later, &g), 0);
    enqueue_backward(&k, 1, &calls[64]);
    assert_int_equal(atomic_load(&g.is_open), 1);
    for (int i = 65; i < 80; i++)
        enqueue_backward(&k, i % 2, &calls[i]);
    pthread_join(opener, NULL);
    assert_ok(bp_device_synchronize(k.device));
    for (uint64_t i = 0; i < 80; i++) {
        o.seed = i + 1;
        call original = new_call(&o);
        check_call(k.engine->kernels, &calls[i], &original);
        end_call(&original);
        end_call(&calls[i]);
    }
    close_kit(&k);
}

/* A stream that refuses a job leaves its slot free. */
TEST(test_refused_jobs)
{
    kit k = open_kit(1, ALL_KERNELS, 10);
    call_options o = {.batch = 1, .sequence = 1, .columns = 10, .scale = 1, .seed = 1};
    call c = new_call(&o), original = new_call(&o);
    bp_stream *gone = k.streams[1], *other = gone;
    bp_stream_destroy(&other);
    for (int i = 0; i < 200; i++)
        assert_int_equal(k.engine->ops->forward(k.engine, &c.forward, gone), BP_ERR_INVALID_ARGUMENT);
    run_call(&k, &c);
    check_call(k.engine->kernels, &c, &original);
    end_call(&c);
    end_call(&original);
    k.streams[1] = NULL;
    close_kit(&k);
}

/* Few and many rows concurrently on two streams: each keeps its order, and the buffer of shared rows is not mixed up. */
TEST(test_two_streams)
{
    enum { CALLS = 12 };
    kit k = open_kit(2, ALL_KERNELS, 50000);
    call calls[CALLS], alone[CALLS];
    for (int i = 0; i < CALLS; i++) {
        call_options o = {.batch = 1, .columns = 50000, .scale = 1, .kind = ROW_SPARSE, .with_entropy = 1};
        o.sequence = i % 4 == 3 ? 9 : 1 + (uint64_t)i % 3, o.dtype = i % 3, o.seed = (uint64_t)i + 1;
        calls[i] = new_call(&o), alone[i] = new_call(&o);
        run_call(&k, &alone[i]);
    }
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < CALLS; i++) {
            enqueue_forward(&k, i % 2, &calls[i]);
            enqueue_backward(&k, i % 2, &calls[i]);
        }
        assert_ok(bp_device_synchronize(k.device));
        for (int i = 0; i < CALLS; i++) {
            assert_true(calls_are_equal(&calls[i], &alone[i]));
            for (uint64_t token = 0; token < calls[i].o.sequence; token++)
                memset(calls[i].out + token * (50000 + 3) * sizeof(float), 0x11, 50000 * sizeof(float));
        }
    }
    for (int i = 0; i < CALLS; i++) {
        end_call(&calls[i]);
        end_call(&alone[i]);
    }
    close_kit(&k);
}

/* ---- memory -------------------------------------------------------------------------------------------------------- */

/* Neither enqueuing nor the streams' jobs, which run here on the counting thread. */
TEST(test_no_allocation)
{
    kit k = open_kit(2, ALL_KERNELS, 40000);
    for (uint64_t rows = 1; rows < 12; rows += 10) {
        call_options o = {.batch = 1, .sequence = rows, .columns = 40000, .scale = 1, .with_entropy = 1, .seed = rows};
        call c = new_call(&o);
        watch();
        for (int i = 0; i < 100; i++) {
            enqueue_forward(&k, 0, &c);
            enqueue_backward(&k, 0, &c);
        }
        watched seen = unwatch();
        assert_ok(bp_stream_synchronize(k.streams[0]));
        assert_int_equal(seen.allocations, 0);
        bp_host_team team;
        watch();
        assert_ok(bp_host_team_init(2, ALL_KERNELS, 40000, &team));
        assert_true(unwatch().allocations > 0); /* counting works */
        watch();
        bp_host_forward(&team, &c.forward);
        bp_host_finish(&team, &c.finish);
        bp_host_gradient(&team, &c.backward);
        seen = unwatch();
        assert_int_equal(seen.allocations, 0);
        bp_host_team_finish(&team);
        end_call(&c);
    }
    close_kit(&k);
}

TESTS(NULL, NULL)
