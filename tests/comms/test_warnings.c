/* SPDX-License-Identifier: Apache-2.0 */
/* Warnings and reports of conditions in which NCCL does not use registered memory. */
#include "fakes/nccl/fake_nccl.h"
#include "plan_fixture.h"
#include "team.h"

#define FILE_HANDLES_SUPPORTED 103 /* a device attribute */

static int forget_environment(void **state)
{
    unsetenv("NCCL_LOCAL_REGISTER");
    unsetenv("NCCL_CUMEM_ENABLE");
    return 0;
}

/* ---- warnings ------------------------------------------------------------------------------------------------------ */

typedef struct wanted {
    bp_register_kind kind;
    uint32_t traffic;
    const char *word; /* must occur in a warning; NULL: no warning */
    bool absent;      /* `word` must not occur instead */
} wanted;

static const char *warning_with(const rank *r, const char *word)
{
    const bp_registration_info *info = bp_registration_get_info(r->registration);
    for (size_t i = 0; i < info->warning_count; i++) {
        const char *text = info->warnings[i].text;
        if (strcasestr(text, word) != NULL)
            return text;
    }
    return NULL;
}

static void print_warnings(const rank *r)
{
    const bp_registration_info *info = bp_registration_get_info(r->registration);
    for (size_t i = 0; i < info->warning_count; i++)
        fprintf(stderr, "    %s\n", info->warnings[i].text);
}

static void register_and_read(rank *r, void *user)
{
    const wanted *w = user;
    bp_registration_entry entry = entry_of(r, w->kind);
    entry.traffic = w->traffic;
    if (!expect_ok(r, bp_registration_create(r->pool, &entry, 1, &r->registration)))
        return;
    if (w->word == NULL) {
        if (!expect(r, bp_registration_get_info(r->registration)->warning_count == 0))
            print_warnings(r);
        return;
    }
    const char *warning = warning_with(r, w->word);
    if (!expect(r, (warning == NULL) == w->absent))
        print_warnings(r);
    if (warning == NULL)
        return;
    char *report = report_of(r->registration);
    expect_words(r, report, warning);
    free(report);
}

static void check_warnings(const team_options *options, const wanted *w)
{
    TEAM t;
    team_options o = *options;
    o.plan = plan;
    team_begin(&t, &o);
    wanted copy = *w;
    team_run(&t, register_and_read, &copy);
}

static const team_options ONE = {.ranks = 1}, TWO = {.ranks = 2};

TEST(no_warnings)
{
    check_warnings(&ONE, &(wanted){BP_REGISTER_SYMMETRIC, BP_TRAFFIC_GATHER, NULL, false});
    check_warnings(&ONE, &(wanted){BP_REGISTER_BUFFER, BP_TRAFFIC_GATHER, NULL, false});
    check_warnings(&ONE, &(wanted){BP_REGISTER_SYMMETRIC, 0, NULL, false});
}

TEST(float_averages)
{
    const uint32_t average = BP_TRAFFIC_REDUCE_SCATTER | BP_TRAFFIC_FLOAT_AVG;
    check_warnings(&ONE, &(wanted){BP_REGISTER_SYMMETRIC, average, "ncclAvg", false});
    check_warnings(&ONE, &(wanted){BP_REGISTER_BUFFER, average, "ncclAvg", false});
    check_warnings(&ONE, &(wanted){BP_REGISTER_SYMMETRIC, BP_TRAFFIC_REDUCE_SCATTER, "avg", true});
}

TEST(all_reduces_in_place)
{
    const uint32_t in_place = BP_TRAFFIC_IN_PLACE_RING;
    check_warnings(&ONE, &(wanted){BP_REGISTER_BUFFER, in_place, "in place", false});
    check_warnings(&ONE, &(wanted){BP_REGISTER_BUFFER, BP_TRAFFIC_GATHER, "in place", true});
}

TEST(several_ranks_in_one_process)
{
    check_warnings(&TWO, &(wanted){BP_REGISTER_SYMMETRIC, BP_TRAFFIC_GATHER, "one process", false});
    check_warnings(&TWO, &(wanted){BP_REGISTER_BUFFER, BP_TRAFFIC_GATHER, "one process", false});
    check_warnings(&ONE, &(wanted){BP_REGISTER_SYMMETRIC, BP_TRAFFIC_GATHER, "process", true});
}

TEST(memory_without_export)
{
    team_options none = ONE;
    none.fake_attribute = FILE_HANDLES_SUPPORTED;
    none.fake_value = 0;
    check_warnings(&none, &(wanted){BP_REGISTER_SYMMETRIC, BP_TRAFFIC_GATHER, "export", false});
    check_warnings(&ONE, &(wanted){BP_REGISTER_SYMMETRIC, BP_TRAFFIC_GATHER, "export", true});
}

TEST_WITHIN(local_registration_off, NULL, forget_environment)
{
    setenv("NCCL_LOCAL_REGISTER", "0", 1);
    team_options newest = ONE;
    newest.nccl = "version=23007";
    check_warnings(&newest, &(wanted){BP_REGISTER_SYMMETRIC, BP_TRAFFIC_GATHER, "NCCL_LOCAL_REGISTER", false});
    setenv("NCCL_LOCAL_REGISTER", "1", 1);
    check_warnings(&newest, &(wanted){BP_REGISTER_SYMMETRIC, BP_TRAFFIC_GATHER, "NCCL_LOCAL_REGISTER", true});
}

TEST_WITHIN(cumem_off, NULL, forget_environment)
{
    setenv("NCCL_CUMEM_ENABLE", "0", 1);
    team_options older = ONE;
    older.nccl = "version=21903";
    check_warnings(&older, &(wanted){BP_REGISTER_BUFFER, BP_TRAFFIC_GATHER, "NCCL_CUMEM_ENABLE", false});
    setenv("NCCL_CUMEM_ENABLE", "1", 1);
    check_warnings(&older, &(wanted){BP_REGISTER_BUFFER, BP_TRAFFIC_GATHER, "NCCL_CUMEM_ENABLE", true});
}

TEST(limits_of_versions)
{
    const struct {
        const char *version;
        bp_register_kind kind;
        const char *word; /* NULL: no reason is given */
    } rows[] = {{"version=21903", BP_REGISTER_BUFFER, "NVLink SHARP only"},
                {"version=22105", BP_REGISTER_BUFFER, "InfiniBand SHARP only; from 2.23"},
                {"version=22304", BP_REGISTER_BUFFER, "from 2.24"},
                {"version=22403", BP_REGISTER_BUFFER, NULL},
                {"version=22705", BP_REGISTER_SYMMETRIC, "plain buffers"},
                {"version=22809", BP_REGISTER_SYMMETRIC, NULL}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        team_options two = TWO;
        two.nccl = rows[i].version;
        const char *word = rows[i].word != NULL ? rows[i].word : "NCCL 2.";
        check_warnings(&two, &(wanted){rows[i].kind, BP_TRAFFIC_GATHER, word, rows[i].word == NULL});
    }
}

/* ---- reasons for lesser kinds -------------------------------------------------------------------------------------- */

typedef struct reason {
    bp_register_kind asked, granted;
    const char *word;
} reason;

static void register_and_ask_why(rank *r, void *user)
{
    const reason *w = user;
    if (!expect_ok(r, register_all(r, w->asked)))
        return;
    char *report = report_of(r->registration);
    for (size_t i = 0; i < bp_registration_get_info(r->registration)->window_count; i++) {
        bp_registration_window window = window_at(r->registration, i);
        expect(r, window.granted == w->granted);
        expect_words(r, window.because, w->word);
        expect_words(r, report, window.because);
    }
    free(report);
}

static void check_reason(const char *nccl, reason w)
{
    for (uint32_t ranks = 1; ranks <= 2; ranks++) {
        run_team(&(team_options){.ranks = ranks, .nccl = nccl, .plan = plan}, register_and_ask_why, &w);
    }
}

TEST_WITHIN(reasons_are_given, NULL, forget_environment)
{
    check_reason("version=21903", (reason){BP_REGISTER_SYMMETRIC, BP_REGISTER_BUFFER, "2.19.3"});
    check_reason("version=22907,symmetric=0", (reason){BP_REGISTER_SYMMETRIC, BP_REGISTER_BUFFER, "no window"});
    check_reason("version=22809,symmetric=0", (reason){BP_REGISTER_SYMMETRIC, BP_REGISTER_BUFFER, "peer access"});
    setenv("NCCL_CUMEM_ENABLE", "0", 1);
    check_reason("version=22809", (reason){BP_REGISTER_SYMMETRIC, BP_REGISTER_BUFFER, "NCCL_CUMEM_ENABLE"});
    check_reason("version=23007", (reason){BP_REGISTER_SYMMETRIC, BP_REGISTER_BUFFER, "NCCL_CUMEM_ENABLE"});
    unsetenv("NCCL_CUMEM_ENABLE");
    setenv("NCCL_LOCAL_REGISTER", "0", 1);
    check_reason("version=21903", (reason){BP_REGISTER_BUFFER, BP_REGISTER_NONE, "NCCL_LOCAL_REGISTER"});
}

/* 2.28 without symmetric support and without local registration returns success and writes no window. */
TEST_WITHIN(a_window_that_is_not_written, NULL, forget_environment)
{
    setenv("NCCL_LOCAL_REGISTER", "0", 1);
    check_reason("version=22809,symmetric=0", (reason){BP_REGISTER_SYMMETRIC, BP_REGISTER_NONE, ""});
}
