/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks as threads. */
#include "team.h"
#include "devices/cuda.h"
#include "fakes/cuda/fake_cuda.h"
#include "fakes/nccl/abi.h"
#include "support/suite/suite.h"

/* ---- expectations -------------------------------------------------------------------------------------------------- */

bool expect_that(rank *r, bool condition, const char *text, const char *file, int line)
{
    if (!condition) {
        fprintf(stderr, "%s:%d: rank %u: expected: %s\n", file, line, r->number, text);
        atomic_fetch_add(&r->team->wrong, 1);
    }
    return condition;
}

bool expect_status(rank *r, bp_status status, bp_status expected, const char *text, const char *word, const char *file,
                   int line)
{
    bool as_expected = status == expected && (word == NULL || strstr(bp_error_detail(), word) != NULL);
    if (!as_expected) {
        fprintf(stderr, "%s:%d: rank %u: %s: \"%s\" (%s), expected \"%s\" with \"%s\"\n", file, line, r->number, text,
                bp_status_name(status), status == BP_OK ? "" : bp_error_detail(), bp_status_name(expected),
                word == NULL ? "" : word);
        atomic_fetch_add(&r->team->wrong, 1);
    }
    return as_expected;
}

bool expect_word(rank *r, const char *text, const char *word, const char *file, int line)
{
    bool is_there = text != NULL && strstr(text, word) != NULL;
    if (!is_there) {
        fprintf(stderr, "%s:%d: rank %u: \"%s\" is not in: %s\n", file, line, r->number, word,
                text == NULL ? "(none)" : text);
        atomic_fetch_add(&r->team->wrong, 1);
    }
    return is_there;
}

/* ---- threads ------------------------------------------------------------------------------------------------------- */

typedef struct thread_job {
    rank *r;
    team_function *function;
    void *user;
} thread_job;

int cuCtxGetCurrent(void **context);

static void *run_rank(void *argument)
{
    const thread_job *job = argument;
    void *before = NULL, *after = NULL;
    cuCtxGetCurrent(&before);
    job->function(job->r, job->user);
    cuCtxGetCurrent(&after);
    expect(job->r, before == after);
    return NULL;
}

static unsigned run_threads(team *t, team_function *function, void *user)
{
    pthread_t threads[MAX_RANKS];
    thread_job jobs[MAX_RANKS];
    for (uint32_t i = 0; i < t->options.ranks; i++) {
        jobs[i] = (thread_job){&t->ranks[i], function, user};
        assert_int_equal(pthread_create(&threads[i], NULL, run_rank, &jobs[i]), 0);
    }
    for (uint32_t i = 0; i < t->options.ranks; i++)
        pthread_join(threads[i], NULL);
    return atomic_load(&t->wrong);
}

void team_run(team *t, team_function *function, void *user)
{
    assert_int_equal(run_threads(t, function, user), 0);
}

/* ---- creation ------------------------------------------------------------------------------------------------------ */

int cuCtxSetCurrent(void *context);

static bool open_device(rank *r)
{
    bp_cuda_driver driver;
    fake_cuda_table(&driver);
    bp_cuda_config config;
    bool made = expect(r, driver.cuInit(0) == 0) && expect_ok(r, bp_cuda_config_init(&config, sizeof config));
    if (!made)
        return false;
    config.ordinal = r->team->options.shared_device ? 0 : (int32_t)r->number;
    return expect_ok(r, bp_device_create_cuda_from(&config, &driver, &r->device)) &&
           expect_ok(r, bp_stream_create(r->device, "work", &r->stream));
}

/* Makes the context current for this call only, as a program does that sets its device for it. */
static bool open_nccl(rank *r, const unique_id *id)
{
    void *context = NULL;
    bp_cuda_driver driver;
    fake_cuda_table(&driver);
    int device = r->team->options.shared_device ? 0 : (int)r->number;
    bool made = expect(r, driver.cuDevicePrimaryCtxRetain(&context, device) == 0) &&
                expect(r, driver.cuCtxPushCurrent(context) == 0) &&
                expect(r, ncclCommInitRank(&r->nccl, (int)r->team->options.ranks, *id, (int)r->number) == 0);
    made = made && expect(r, driver.cuCtxPopCurrent(&context) == 0);
    driver.cuDevicePrimaryCtxRelease(device);
    return made;
}

static bool wrap_nccl(rank *r)
{
    bp_nccl_functions functions = {.size = sizeof functions};
    fake_nccl_table(&functions);
    if (!r->team->options.over_nccl) {
        r->seat = (exchange_seat){.room = &r->team->room, .rank = r->number};
        bp_comm_callbacks callbacks = exchange_callbacks(&r->seat);
        if (!expect_ok(r, bp_comm_create_callback(&callbacks, &r->seat, "control", &r->control)))
            return false;
    }
    bp_nccl_config config;
    if (!expect_ok(r, bp_nccl_config_init(&config, sizeof config)))
        return false;
    config.comm = r->nccl;
    config.functions = &functions;
    config.device = r->device;
    config.control = r->control;
    config.timeout_ms = r->team->options.timeout_ms;
    return expect_ok(r, bp_comm_create_nccl(&config, &r->comm));
}

static void open_rank(rank *r, void *user)
{
    const team_options *o = &r->team->options;
    if (!open_device(r) || !open_nccl(r, user) || !wrap_nccl(r))
        return;
    const bp_plan *plan = o->odd_plan != NULL && o->odd_rank == r->number ? o->odd_plan : o->plan;
    if (plan != NULL)
        expect_ok(r, bp_pool_create(r->device, plan, NULL, &r->pool));
}

void team_begin(team *t, const team_options *options)
{
    memset(t, 0, sizeof *t);
    t->options = *options;
    fake_cuda_config config;
    fake_cuda_config_init(&config);
    config.devices = (options->shared_device ? 1 : (int)options->ranks) + options->spare_devices;
    config.peers = 1;
    fake_cuda_configure(&config);
    if (options->fake_attribute != 0)
        fake_cuda_set_attribute(options->fake_attribute, options->fake_value);
    assert_int_equal(fake_nccl_reset(), 0);
    if (options->nccl != NULL)
        assert_int_equal(fake_nccl_set(options->nccl), 0);
    if (options->shared_device)
        assert_int_equal(fake_nccl_set("share_gpu=1"), 0);
    exchange_begin(&t->room, options->ranks);
    for (uint32_t i = 0; i < options->ranks; i++)
        t->ranks[i] = (rank){.team = t, .number = i};
    unique_id id;
    assert_int_equal(ncclGetUniqueId(&id), 0);
    team_run(t, open_rank, &id);
}

/* ---- destruction --------------------------------------------------------------------------------------------------- */

static void close_rank(rank *r, void *user)
{
    bp_registration_destroy(&r->registration);
    bp_pool_destroy(&r->pool);
    bp_comm_destroy(&r->comm);
    bp_comm_destroy(&r->control);
    if (r->nccl != NULL)
        expect(r, ncclCommDestroy(r->nccl) == 0);
    bp_stream_destroy(&r->stream);
    bp_device_destroy(&r->device);
}

void assert_nothing_broken(void)
{
    char text[4096];
    if (fake_nccl_broken(text, sizeof text) > 0)
        fail_msg("rules of NCCL are broken:\n%s", text);
    assert_string_equal(fake_cuda_broken(), "");
}

void team_end(team *t)
{
    team_run(t, close_rank, NULL);
    if (!t->options.over_nccl)
        for (uint32_t i = 0; i < t->options.ranks; i++)
            assert_int_equal(t->ranks[i].seat.destroys, 1);
    exchange_end(&t->room);
    fake_nccl_counts counts;
    fake_nccl_count(&counts);
    assert_int_equal(counts.communicators, 0);
    assert_int_equal(counts.buffers, 0);
    assert_int_equal(counts.windows, 0);
    if (!t->breaks_rules)
        assert_nothing_broken();
    assert_int_equal(strcmp(fake_cuda_leaks(), "") != 0, t->leaks);
    assert_int_equal(fake_nccl_reset(), 0);
    fake_cuda_reset();
}

void run_team(const team_options *options, team_function *function, void *user)
{
    team t;
    team_begin(&t, options);
    team_run(&t, function, user);
    team_end(&t);
}

/* ---- registration -------------------------------------------------------------------------------------------------- */

bp_registration_entry entry_of(const rank *r, bp_register_kind kind)
{
    bp_registration_entry entry;
    bp_registration_entry_init(&entry, sizeof entry);
    entry.comm = r->comm;
    entry.kind = kind;
    return entry;
}

bp_status register_all(rank *r, bp_register_kind kind)
{
    bp_registration_entry entry = entry_of(r, kind);
    return bp_registration_create(r->pool, &entry, 1, &r->registration);
}

bp_registration_window window_at(const bp_registration *registration, size_t index)
{
    const bp_registration_info *info = bp_registration_get_info(registration);
    bp_registration_window w;
    memset(&w, 0xff, sizeof w);
    return index < info->window_count ? info->windows[index] : w;
}

char *report_of(const bp_registration *registration)
{
    size_t needed = 0;
    if (bp_registration_report(registration, NULL, 0, &needed) != BP_OK)
        return NULL;
    char *text = malloc(needed);
    if (text != NULL && bp_registration_report(registration, text, needed, &needed) != BP_OK)
        text[0] = '\0';
    return text;
}
