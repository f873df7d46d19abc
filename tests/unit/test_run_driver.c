/* SPDX-License-Identifier: Apache-2.0 */
/* The pool driver of `run`. It must detect faults that correct pools never have, so it runs on devices that omit waits or fail; also
 * patterns and programs of steps. */
#include "support/harness.h"

#include <bucketpool/bucketpool.h>
#include <bucketpool/device_ops.h>

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "devices/device.h"
#include "run/driver.h"
#include "support/trace_device.h"

/* ---- patterns ------------------------------------------------------------------------------------------------------------- */

TEST(test_patterns)
{
    enum { MOST = 1400 };
    unsigned char memory[MOST + 8];
    pattern_difference difference;
    for (size_t bytes = 0; bytes < MOST; bytes += bytes < 20 ? 1 : 37) {
        unsigned char *at = memory + bytes % 8; /* any alignment */
        memset(memory, 0xaa, sizeof memory);
        pattern_fill(at, bytes, bytes);
        assert_int_equal(at[bytes], 0xaa);
        assert_true(pattern_check(at, bytes, bytes, &difference));
        for (size_t wrong = 0; wrong < bytes; wrong += 1 + bytes / 50) {
            at[wrong] ^= 0x10;
            assert_false(pattern_check(at, bytes, bytes, &difference));
            assert_int_equal(difference.offset, wrong);
            assert_int_equal(difference.found, at[wrong]);
            assert_int_equal(difference.expected, at[wrong] ^ 0x10);
            at[wrong] ^= 0x10;
        }
    }
}

/* One byte in 256 of another bucket's pattern matches by chance, but every word differs. */
TEST(test_patterns_differ)
{
    enum { BYTES = 8192 };
    static unsigned char one[BYTES], other[BYTES];
    const uint64_t seeds[] = {pattern_seed(1, 0, 0, 0), pattern_seed(1, 1, 0, 0), pattern_seed(1, 0, 1, 0),
                              pattern_seed(1, 0, 0, 1), pattern_seed(2, 0, 0, 0), pattern_seed(1, 1, 1, 1)};
    for (size_t i = 0; i < sizeof seeds / sizeof *seeds; i++) {
        for (size_t k = 0; k < i; k++) {
            size_t equal = 0;
            pattern_fill(one, BYTES, seeds[i]);
            pattern_fill(other, BYTES, seeds[k]);
            for (size_t b = 0; b < BYTES; b++)
                equal += one[b] == other[b];
            assert_in_range(equal, 1, 3 * BYTES / 256);
        }
    }
}

/* Filling in pieces equals filling at once, and digests of pieces add up; digests depend on every byte and its position. */
TEST(test_pieces)
{
    enum { BYTES = 5003, PIECE = 1024 };
    static unsigned char whole[BYTES], pieces[BYTES];
    uint64_t digest = 0;
    pattern_fill(whole, BYTES, 7);
    for (uint64_t at = 0; at < BYTES; at += PIECE) {
        uint64_t bytes = BYTES - at < PIECE ? BYTES - at : PIECE;
        pattern_fill(pieces + at, bytes, pattern_seed_at(7, at));
        digest += pattern_digest(pieces + at, bytes, pattern_seed_at(7, at));
    }
    assert_memory_equal(whole, pieces, BYTES);
    assert_true(digest == pattern_digest(whole, BYTES, 7));
    assert_true(digest != pattern_digest(whole, BYTES, 8));
    for (size_t at = 0; at < BYTES; at += 61) {
        whole[at] ^= 0x01;
        assert_true(digest != pattern_digest(whole, BYTES, 7));
        whole[at] ^= 0x01;
    }
    memcpy(pieces, whole + 8, 8);
    memcpy(pieces + 8, whole, 8);
    assert_true(digest != pattern_digest(pieces, BYTES, 7));
}

/* ---- a model, its plan and its pool ------------------------------------------------------------------------------------------ */

#define ALL_ROLES                                                                                                      \
    (BP_ROLE_BIT(BP_ROLE_PARAM) | BP_ROLE_BIT(BP_ROLE_PARAM_TRANSPOSE) | BP_ROLE_BIT(BP_ROLE_GRAD) |                   \
     BP_ROLE_BIT(BP_ROLE_GRAD_COMM) | BP_ROLES_STATE)

typedef struct scenario {
    bp_model *model;
    bp_buckets *buckets;
    bp_schedule *schedule;
    bp_plan *plan;
} scenario;

static bp_schedule_config default_schedule(void)
{
    bp_schedule_config config;
    assert_ok(bp_schedule_config_init(&config, sizeof config));
    return config;
}

/* Schedules that cover every kind of step. */
enum { SCHEDULES = 6 };
static bp_schedule_config numbered_schedule(int number)
{
    bp_schedule_config config = default_schedule();
    config.streams = number % 2 == 1 ? BP_STREAMS_UNIFIED : BP_STREAMS_SEPARATE;
    config.outside = number >= 2 ? BP_OUTSIDE_PREFETCHES_SUCCESSOR : BP_OUTSIDE_PREFETCHES_NOTHING;
    config.passes = number >= 3 ? BP_PASSES_BOTH : BP_PASSES_TRAIN;
    config.microbatches = number >= 4 ? 2 : 0;
    config.combined = number >= 4;
    config.keep_after_forward = number == 2;
    config.recompute = number == 3;
    config.prefetch = number == 5 ? 3 : 1;
    config.grad_units = number == 5 ? 4 : 2;
    return config;
}

/* Eight units of two buckets, one of them fp8; the third encloses the fourth, and the fifth runs twice. */
static scenario make_scenario(bp_schedule_config schedule_config)
{
    scenario s = {0};
    assert_ok(bp_model_create("scenario", &s.model));
    for (uint32_t u = 0; u < 8; u++) {
        char name[8] = {'u', (char)('0' + u), '\0'};
        uint32_t unit;
        assert_ok(bp_model_add_unit(s.model, name, u == 3 ? 2 : BP_OUTSIDE, &unit));
        for (int i = 0; i < 2; i++) {
            const bp_given_bucket bucket = {.size = sizeof bucket,
                                            .unit = (int32_t)unit,
                                            .dtype = i == 0 ? BP_DTYPE_BF16 : BP_DTYPE_FP8_E4M3,
                                            .numel = 20000 + 100 * u + (uint32_t)i};
            assert_ok(bp_model_add_bucket(s.model, &bucket));
        }
    }
    static const uint32_t order[] = {0, 1, 2, 4, 5, 4, 6, 7};
    assert_ok(bp_model_set_order(s.model, order, sizeof order / sizeof *order));
    bp_buckets_config buckets_config;
    assert_ok(bp_buckets_config_init(&buckets_config, sizeof buckets_config));
    buckets_config.bucketing = BP_BUCKETING_GIVEN;
    buckets_config.padding = BP_PADDING_GIVEN;
    buckets_config.roles = ALL_ROLES;
    assert_ok(bp_buckets_create(s.model, &buckets_config, &s.buckets));
    assert_ok(bp_schedule_create_training(s.buckets, &schedule_config, &s.schedule));
    bp_plan_config plan_config;
    assert_ok(bp_plan_config_init(&plan_config, sizeof plan_config));
    assert_ok(bp_plan_create(s.buckets, s.schedule, &plan_config, &s.plan));
    return s;
}

static void free_scenario(scenario *s)
{
    bp_plan_destroy(&s->plan);
    bp_schedule_destroy(&s->schedule);
    bp_buckets_destroy(&s->buckets);
    bp_model_destroy(&s->model);
}

/* ---- programs ------------------------------------------------------------------------------------------------------------------ */

static size_t count_entries(const program *p, program_action action, uint32_t step, uint32_t request, uint32_t interval)
{
    size_t found = 0;
    for (size_t i = p->begins[action][step]; i < p->begins[action][step + 1]; i++)
        found += p->entries[action][i].request == request && p->entries[action][i].interval == interval;
    return found;
}

static bool computes_in(const scenario *s, uint32_t request, uint32_t index)
{
    bp_step step = bp_schedule_get_info(s->schedule)->steps[index];
    bp_request r = bp_buckets_get_info(s->buckets)->requests[request];
    bp_bucket b = bp_buckets_get_info(s->buckets)->buckets[r.bucket];
    return step.unit == b.unit || step.forward_unit == b.unit;
}

/* The program acquires and releases the interval once, at the schedule's steps, and checks it in its last step; gathered buckets also in
 * each step in which their unit computes. Returns the number of checks. */
static size_t assert_interval(const scenario *s, const program *p, const bp_interval *live, uint32_t request,
                              uint32_t number)
{
    bp_request r = bp_buckets_get_info(s->buckets)->requests[request];
    bool gathered = r.role == BP_ROLE_PARAM || r.role == BP_ROLE_PARAM_TRANSPOSE;
    program_action begin = gathered ? ACTION_GATHER : ACTION_PRODUCE;
    program_action check = gathered ? ACTION_COMPUTE : ACTION_DRAIN;
    assert_int_equal(count_entries(p, begin, live->begin, request, number), 1);
    assert_int_equal(count_entries(p, ACTION_RELEASE, live->end - 1, request, number), 1);
    size_t checks = 0;
    for (uint32_t t = live->begin; t < live->end; t++) {
        size_t wanted = t + 1 == live->end || (gathered && computes_in(s, request, t));
        assert_int_equal(count_entries(p, check, t, request, number), wanted);
        checks += wanted;
    }
    return checks;
}

static void assert_program(const scenario *s)
{
    program p;
    assert_ok(program_init(s->buckets, s->schedule, &p));
    assert_int_equal(p.steps, bp_schedule_get_info(s->schedule)->step_count);
    size_t intervals = 0, held = 0, checks = 0;
    for (uint32_t i = 0; i < p.requests; i++) {
        size_t count = bp_schedule_get_info(s->schedule)->requests[i].interval_count;
        const bp_interval *live = bp_schedule_get_info(s->schedule)->requests[i].intervals;
        bp_request r = bp_buckets_get_info(s->buckets)->requests[i];
        if (BP_ROLES_STATE & BP_ROLE_BIT(r.role)) {
            assert_int_equal(p.held[held++].request, i);
            assert_int_equal(count_entries(&p, ACTION_DRAIN, p.steps - 1, i, 0), 1);
            continue;
        }
        for (uint32_t k = 0; k < count; k++, intervals++)
            checks += assert_interval(s, &p, &live[k], i, k);
    }
    assert_int_equal(held, p.held_count);
    assert_true(checks > intervals); /* nested units, and the last unit's two steps in one interval */
    assert_int_equal(p.fills, intervals);
    assert_int_equal(p.begins[ACTION_RELEASE][p.steps], intervals);
    assert_int_equal(p.checks, checks + held);
    program_finish(&p);
}

TEST(test_programs)
{
    for (int number = 0; number < SCHEDULES; number++) {
        SCOPED(free_scenario) scenario s = make_scenario(numbered_schedule(number));
        assert_program(&s);
    }
}

/* ---- runs ---------------------------------------------------------------------------------------------------------------------- */

typedef struct outcome {
    bp_status status;
    driver_result result;
} outcome;

static outcome drive_in_pieces(scenario *s, bp_device *device, bool has_memory, int iterations, uint64_t piece_bytes)
{
    bp_pool *pool = NULL;
    driver *d = NULL;
    outcome o = {.status = bp_pool_create(device, s->plan, NULL, &pool)};
    const driver_config config = {.device = device,
                                  .pool = pool,
                                  .buckets = s->buckets,
                                  .schedule = s->schedule,
                                  .seed = 1,
                                  .has_memory = has_memory,
                                  .steps_ahead = MAX_STEPS_AHEAD,
                                  .promises = true,
                                  .piece_bytes = piece_bytes};
    if (o.status == BP_OK)
        o.status = driver_create(&config, &d);
    if (o.status == BP_OK)
        o.status = driver_begin(d);
    for (int i = 0; o.status == BP_OK && i < iterations; i++)
        o.status = driver_iterate(d, false);
    if (o.status == BP_OK)
        o.status = driver_end(d);
    if (d != NULL) {
        driver_drain(d);
        driver_result_get(d, &o.result);
    }
    bp_pool_destroy(&pool);
    driver_destroy(&d);
    return o;
}

static outcome drive(scenario *s, bp_device *device, bool has_memory, int iterations)
{
    return drive_in_pieces(s, device, has_memory, iterations, 0);
}

static void assert_right(scenario *s)
{
    bp_device *devices[2];
    assert_ok(bp_device_create_host(NULL, &devices[0]));
    assert_ok(bp_device_create_null(&devices[1]));
    for (int i = 0; i < 2; i++) {
        outcome o = drive(s, devices[i], i == 0, 7);
        assert_ok(o.status);
        assert_int_equal(o.result.iterations, 7);
        assert_int_equal(o.result.corrupted, 0);
        assert_int_equal(o.result.checked > 0, i == 0);
        bp_device_destroy(&devices[i]);
    }
}

TEST(test_right_pool)
{
    for (int number = 0; number < SCHEDULES; number++) {
        SCOPED(free_scenario) scenario s = make_scenario(numbered_schedule(number));
        assert_right(&s);
    }
}

/* A host device that declares its memory unreachable for the host, and counts the copies. */
static const bp_device_ops *reachable;
static atomic_int pins, unpins, copies;

static bp_status hide(void *self, bp_device_traits *traits)
{
    bp_status status = reachable->traits(self, traits);
    traits->host_accessible = 0;
    return status;
}

static bp_status pin(void *self, void *address, uint64_t bytes)
{
    (void)self;
    assert_int_equal((uintptr_t)address % 4096, 0);
    assert_int_equal(bytes % 4096, 0);
    pins++;
    return BP_OK;
}

static bp_status unpin(void *self, void *address, uint64_t bytes)
{
    (void)self;
    (void)address;
    (void)bytes;
    unpins++;
    return BP_OK;
}

static bp_status count_copy(void *self, void *stream, void *to, const void *from, uint64_t bytes)
{
    copies++;
    return reachable->copy(self, stream, to, from, bytes);
}

static void keep(void *self)
{
    (void)self;
}

/* Staging through the host, in pieces of any size, checks the same buckets and bytes. */
TEST(test_staging)
{
    for (int number = 0; number < SCHEDULES; number++) {
        SCOPED(free_scenario) scenario s = make_scenario(numbered_schedule(number));
        bp_device *host, *hidden;
        void *self;
        assert_ok(bp_device_create_host(NULL, &host));
        outcome direct = drive(&s, host, true, 4);
        assert_ok(direct.status);
        reachable = bp_device_table(host, &self);
        bp_device_ops ops = *reachable;
        ops.traits = hide;
        ops.pin = pin;
        ops.unpin = unpin;
        ops.copy = count_copy;
        ops.destroy = keep;
        for (uint64_t piece = 4096; piece <= 65536; piece *= 4) {
            pins = unpins = copies = 0;
            assert_ok(bp_device_create(&ops, self, &hidden));
            assert_int_equal(bp_device_is_host_accessible(hidden), 0);
            outcome o = drive_in_pieces(&s, hidden, true, 4, piece);
            assert_ok(o.status);
            assert_int_equal(o.result.corrupted, 0);
            assert_int_equal(o.result.checked, direct.result.checked);
            assert_int_equal(o.result.checked_bytes, direct.result.checked_bytes);
            assert_int_equal(o.result.filled_bytes, direct.result.filled_bytes);
            assert_true(o.result.digest == direct.result.digest);
            assert_in_range(pins, 1, STREAM_COUNT);
            assert_int_equal(pins, unpins);
            assert_in_range(copies, (direct.result.checked_bytes + direct.result.filled_bytes) / piece, 1u << 24);
            bp_device_destroy(&hidden);
        }
        bp_device_destroy(&host);
    }
}

/* Distinguishes the pool's waits in an acquire from those of the driver. */
static bool in_acquire;
bp_status __real_bp_pool_acquire(bp_pool *pool, const uint32_t *ids, size_t count, bp_stream *stream, void **addresses);
bp_status __wrap_bp_pool_acquire(bp_pool *pool, const uint32_t *ids, size_t count, bp_stream *stream, void **addresses);

bp_status __wrap_bp_pool_acquire(bp_pool *pool, const uint32_t *ids, size_t count, bp_stream *stream, void **addresses)
{
    in_acquire = true;
    bp_status status = __real_bp_pool_acquire(pool, ids, count, stream, addresses);
    in_acquire = false;
    return status;
}

/* A host device that omits the waits of acquires and delays one stream. */
static const bp_device_ops *right;
static void *made_second;
static int streams_made;

static bp_status forget_acquires(void *self, void *stream, void *event)
{
    return in_acquire ? BP_OK : right->stream_wait(self, stream, event);
}

static bp_status note_stream(void *self, void **stream)
{
    bp_status status = right->stream_create(self, stream);
    if (status == BP_OK && ++streams_made == 2)
        made_second = *stream;
    return status;
}

static void nap(void *argument)
{
    (void)argument;
    nanosleep(&(struct timespec){0, 2000000}, NULL);
}

static bp_status call_slowly(void *self, void *stream, bp_host_function *function, void *argument)
{
    bp_status status = stream == made_second ? right->call(self, stream, nap, NULL) : BP_OK;
    return status == BP_OK ? right->call(self, stream, function, argument) : status;
}

/* ThreadSanitizer would report the intended races. */
#if defined(__SANITIZE_THREAD__)
#define RACES_ARE_REPORTED 1
#else
#define RACES_ARE_REPORTED 0
#endif

TEST(test_forgotten_waits_are_found)
{
    if (RACES_ARE_REPORTED)
        return;
    SCOPED(free_scenario) scenario s = make_scenario(default_schedule());
    bp_device *host, *broken;
    void *self;
    assert_ok(bp_device_create_host(NULL, &host));
    right = bp_device_table(host, &self);
    bp_device_ops ops = *right;
    ops.stream_create = note_stream;
    ops.call = call_slowly;
    ops.destroy = keep;
    for (int i = 0; i < 4; i++) { /* directly, and through the host */
        bool forgets = i % 2 == 1;
        reachable = right;
        ops.traits = i < 2 ? right->traits : hide;
        made_second = NULL;
        streams_made = 0;
        ops.stream_wait = forgets ? forget_acquires : right->stream_wait;
        assert_ok(bp_device_create(&ops, self, &broken));
        outcome o = drive(&s, broken, true, 1);
        assert_ok(o.status);
        bp_device_destroy(&broken);
        if (!forgets) {
            assert_int_equal(o.result.corrupted, 0);
            continue;
        }
        assert_true(o.result.corrupted > 0);
        assert_int_equal(o.result.first.at.iteration, 0);
        assert_in_range(o.result.first.at.step, 0, bp_schedule_get_info(s.schedule)->step_count - 1);
        assert_in_range(o.result.first.request, 0, bp_buckets_get_info(s.buckets)->request_count - 1);
        assert_in_range(o.result.first.difference.offset, 0,
                        bp_plan_get_info(s.plan)->requests[o.result.first.request].bytes - 1);
    }
    bp_device_destroy(&host);
}

/* ---- devices that fail ------------------------------------------------------------------------------------------------------------ */

static int calls_left;

static bp_status fail_once(void *user, const device_call *call)
{
    (void)user;
    switch (call->operation) { /* cleanup operations must not fail: the test could not continue */
    case OP_UNRESERVE:
    case OP_DECOMMIT:
    case OP_UNMAP:
    case OP_FREE:
    case OP_STREAM_DESTROY:
    case OP_EVENT_DESTROY:
    case OP_STREAM_SYNCHRONIZE:
    case OP_SYNCHRONIZE: return BP_OK;
    default: return --calls_left == 0 ? bp_error_record(BP_ERR_NO_DEVICE_MEMORY, "one call failed") : BP_OK;
    }
}

TEST(test_failing_devices)
{
    SCOPED(free_scenario) scenario s = make_scenario(default_schedule());
    bool failed = true;
    for (int at = 1; failed; at += at < 200 ? 7 : 61) {
        bp_device *host, *device;
        assert_ok(bp_device_create_host(NULL, &host));
        assert_ok(trace_device_create(host, fail_once, NULL, &device));
        bp_device_destroy(&host);
        calls_left = at;
        outcome o = drive(&s, device, true, 2);
        failed = calls_left <= 0;
        assert_int_equal(o.status, failed ? BP_ERR_NO_DEVICE_MEMORY : BP_OK);
        assert_int_equal(o.result.corrupted, 0);
        bp_device_destroy(&device);
    }
}

TESTS(NULL, NULL)
