/* SPDX-License-Identifier: Apache-2.0 */
/* `bucketpool bench offload`: options, turns, figures. */
#include "bench/offload.h"

#include <bucketpool/core/fail.h>

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/cli.h"
#include "shared/progress.h"

/* ---- options ----------------------------------------------------------------------------------------------------- */

#define MAX_BYTES (UINT64_C(1) << 46)
#define MIN_GROUP_BYTES 4096u

static const choice backings[] = {
    {"auto", BP_BACKING_AUTO}, {"pinned", BP_BACKING_PINNED}, {"staged", BP_BACKING_STAGED}, {0, 0}};

const char *bench_backing_name(bp_backing backing)
{
    return choice_name(backings, (int)backing);
}

static int parse_size(const char *name, const char *text, void *options)
{
    bench_offload_options *o = options;
    uint64_t *bytes = strcmp(name, "bytes") == 0 ? &o->bytes : &o->chunk_bytes;
    if (!cli_parse_bytes(text, bytes) || *bytes == 0 || *bytes > MAX_BYTES)
        return cli_fail(EXIT_BAD_INPUT, "--%s: expected a size such as 512MiB, of at most 64 TiB, got \"%.40s\"", name,
                        text);
    return EXIT_GO_ON;
}

#define FIELD(member) offsetof(bench_offload_options, member)

static const option_row offload_table[] = {
    {.kind = OPTION_HEADING, .text = "Memory:", .group = 1},
    {"bytes", "SIZE", "Total size of the groups (default 1GiB)", OPTION_OWN, .parse = parse_size},
    {"groups", "N", "Release groups of equal size, moved concurrently (default 1)", OPTION_U32, FIELD(groups), .min = 1,
     .max = BENCH_OFFLOAD_MAX_GROUPS},
    {"chunk", "SIZE", "Size of one copy (default 32MiB)", OPTION_OWN, .parse = parse_size},
    {"backing", "B",
     "Host memory: pinned, staged (ordinary memory through two pinned chunks) or auto: pinned if "
     "enough "
     "can be pinned (default auto)",
     OPTION_CHOICE, FIELD(backing), backings},
    OPTION_END,
};

/* Reads the arguments after `bench offload`. Returns EXIT_GO_ON, or the exit code after a message. */
static int parse_options(int argc, char **argv, bench_offload_options *options)
{
    *options = (bench_offload_options){.common.turns = 5,
                                       .bytes = UINT64_C(1) << 30,
                                       .chunk_bytes = UINT64_C(32) << 20,
                                       .groups = 1,
                                       .backing = BP_BACKING_AUTO};
    const options_command reading = {
        .name = "bench offload",
        .arguments = "",
        .text = "Measures offloading release groups to the host and restoring them, against plain copies of as "
                "many bytes to and from pinned memory, and the same without copies.\vRATIO is the time of a plain copy "
                "over "
                "that of the copies alone, RATIO OF TIME over the whole call. Restored bytes are compared with "
                "the original ones, and the device must have its memory back in between. Exit: 0 measured, 1 bytes or "
                "memory were wrong, 2 bad input, 3 environment.",
        .tables = {offload_table, bench_common_table},
        .options = options};
    int code = options_read(argc, argv, &reading);
    if (code != EXIT_GO_ON)
        return code;
    if (options->bytes / options->groups < MIN_GROUP_BYTES)
        return cli_fail(EXIT_BAD_INPUT,
                        "--bytes %llu: less than a page for each of %u groups; use more --bytes or fewer --groups",
                        (unsigned long long)options->bytes, options->groups);
    return EXIT_GO_ON;
}

/* ---- runs -------------------------------------------------------------------------------------------------------- */

#define POISON 0xa5

static bp_status look(bench_offload *b, bench_moment moment)
{
    BP_TRY(bench_device_used(&b->device, &b->used[moment]));
    return bench_device_seen(&b->device, &b->seen[moment]);
}

__attribute__((format(printf, 2, 3))) static void note_wrong(bench_offload *b, const char *format, ...)
{
    va_list arguments;
    if (*b->wrong != '\0')
        return;
    va_start(arguments, format);
    vsnprintf(b->wrong, sizeof b->wrong, format, arguments);
    va_end(arguments);
}

/* Offloads with contents and restores; plain copies in the same directions follow. */
static bp_status keep(bench_offload *b, uint64_t turn, double times[LEG_COUNT])
{
    bench_groups *g = &b->groups;
    const uint64_t each = g->bytes / g->count;
    BP_TRY(bench_groups_offload(g, BP_OFFLOAD_KEEP, &times[LEG_KEPT_OUT], &times[LEG_COPIES_OUT]));
    BP_TRY(look(b, MOMENT_KEPT));
    BP_TRY(bench_groups_restore(g, &times[LEG_KEPT_BACK], &times[LEG_COPIES_BACK]));
    memset(g->buffer, POISON, g->bytes);
    BP_TRY(bench_groups_copy(g, true, &times[LEG_PLAIN_OUT]));
    uint64_t at = bench_groups_compare(g, turn);
    if (at < g->bytes)
        note_wrong(b, "turn %llu: group %s was restored with wrong bytes, from byte %llu on", (unsigned long long)turn,
                   g->names[at / each], (unsigned long long)(at % each));
    return BP_OK;
}

/* Offloads without contents; a plain copy writes the freshly mapped memory. */
static bp_status discard(bench_offload *b, uint64_t turn, double times[LEG_COUNT])
{
    bench_groups *g = &b->groups;
    double none;
    bench_groups_write(g, turn + 1);
    BP_TRY(bench_groups_offload(g, BP_OFFLOAD_DISCARD, &times[LEG_DISCARDED_OUT], &none));
    BP_TRY(look(b, MOMENT_DISCARDED));
    BP_TRY(bench_groups_restore(g, &times[LEG_DISCARDED_BACK], &none));
    return bench_groups_copy(g, false, &times[LEG_PLAIN_BACK]);
}

/* The first turn is not counted: it pins host memory. */
static bp_status take_turns(bench_offload *b, progress *p)
{
    bench_groups *g = &b->groups;
    double ignored;
    bench_groups_write(g, 0);
    BP_TRY(bench_groups_copy(g, false, &ignored));
    for (uint64_t turn = 0; turn <= b->options->common.turns && !interrupt_came(); turn++) {
        double *times = turn == 0 ? b->first : b->turns[turn - 1];
        progress_show(p, turn);
        if (turn <= 1) /* from the first turn on, host memory is allocated */
            BP_TRY(look(b, MOMENT_BEFORE));
        BP_TRY(keep(b, turn, times));
        BP_TRY(discard(b, turn, times));
        b->done = turn;
    }
    return look(b, MOMENT_AFTER);
}

/* ---- figures ----------------------------------------------------------------------------------------------------- */

/* Spread of a leg's times, or of their ratio to those of the plain leg (LEG_COUNT: no ratio). */
static bench_spread spread_of(const bench_offload *b, bench_leg leg, bench_leg plain, double *values)
{
    for (uint64_t i = 0; i < b->done; i++) {
        values[i] = b->turns[i][leg];
        if (plain != LEG_COUNT)
            values[i] = b->turns[i][plain] / (values[i] > 0 ? values[i] : 1e-9);
    }
    return bench_spread_of(values, b->done);
}

static bench_way settle(const bench_offload *b, bench_leg whole, bench_leg copies, bench_leg without, bench_leg plain,
                        double *values)
{
    return (bench_way){.whole = spread_of(b, whole, LEG_COUNT, values),
                       .copies = spread_of(b, copies, LEG_COUNT, values),
                       .without = spread_of(b, without, LEG_COUNT, values),
                       .plain = spread_of(b, plain, LEG_COUNT, values),
                       .ratio = spread_of(b, copies, plain, values),
                       .whole_ratio = spread_of(b, whole, plain, values)};
}

static bp_status note_backing(bench_offload *b)
{
    const bench_groups *g = &b->groups;
    bp_offload_group groups[BENCH_OFFLOAD_MAX_GROUPS] = {{.size = sizeof groups[0]}};
    size_t count = 0;
    b->kept.size = sizeof b->kept;
    b->pinned = true;
    BP_TRY(bp_pinned_statistics_get(g->kept, &b->kept));
    BP_TRY(bp_offload_groups(g->offload, groups, BENCH_OFFLOAD_MAX_GROUPS, &count));
    for (size_t i = 0; i < count && i < BENCH_OFFLOAD_MAX_GROUPS; i++) { /* the bench's own groups only */
        b->host_bytes += groups[i].host_bytes;
        b->pinned = b->pinned && groups[i].pinned != 0;
    }
    return BP_OK;
}

/* Checks the device's allocation count, because other programs use a GPU, and resident pages are those of the whole process. */
static void check_memory(bench_offload *b)
{
    static const char *const names[] = {[MOMENT_KEPT] = "kept", [MOMENT_DISCARDED] = "discarded"};
    uint64_t before = b->used[MOMENT_BEFORE];
    for (int moment = MOMENT_KEPT; moment <= MOMENT_DISCARDED; moment++) {
        if (b->used[moment] > before || before - b->used[moment] < b->groups.bytes)
            note_wrong(b, "the device has %llu of %llu bytes allocated while %llu are %s: they were not unmapped",
                       (unsigned long long)b->used[moment], (unsigned long long)before,
                       (unsigned long long)b->groups.bytes, names[moment]);
    }
    if (b->used[MOMENT_AFTER] != before)
        note_wrong(b, "the device has %llu bytes allocated at the end, %llu at the start",
                   (unsigned long long)b->used[MOMENT_AFTER], (unsigned long long)before);
}

/* Wrong bytes and memory are recorded, not returned. */
static bp_status run(bench_offload *b, double *values)
{
    progress p;
    interrupt_watch(NULL);
    progress_init(&p, "turn", b->options->common.turns + 1);
    bp_status status = take_turns(b, &p);
    progress_erase(&p);
    if (status != BP_OK || b->done == 0)
        return status;
    BP_TRY(note_backing(b));
    check_memory(b);
    b->out = settle(b, LEG_KEPT_OUT, LEG_COPIES_OUT, LEG_DISCARDED_OUT, LEG_PLAIN_OUT, values);
    b->back = settle(b, LEG_KEPT_BACK, LEG_COPIES_BACK, LEG_DISCARDED_BACK, LEG_PLAIN_BACK, values);
    return BP_OK;
}

/* ---- the command ------------------------------------------------------------------------------------------------- */

static int run_and_answer(bench_offload *b)
{
    const bench_common *common = &b->options->common;
    b->turns = calloc(common->turns, sizeof *b->turns);
    double *values = calloc(common->turns, sizeof *values);
    if (b->turns == NULL || values == NULL) {
        free(values);
        return cli_fail(EXIT_ENVIRONMENT, "out of memory");
    }
    bp_status status = run(b, values);
    free(values);
    if (status != BP_OK)
        return cli_fail_status(status);
    if (b->done == 0)
        return cli_fail(EXIT_NEGATIVE, "interrupted before the first measured turn");
    int code = common->json ? bench_offload_json(b) : bench_offload_table(b);
    if (code == EXIT_GO_ON)
        code = cli_flush();
    if (code != EXIT_GO_ON)
        return code;
    if (b->done < common->turns)
        cli_fail(EXIT_GO_ON, "interrupted after %llu of %llu turns; the medians are of those",
                 (unsigned long long)b->done, (unsigned long long)common->turns);
    return *b->wrong != '\0' ? cli_fail(EXIT_NEGATIVE, "%s", b->wrong) : EXIT_ANSWERED;
}

int cli_bench_offload(int argc, char **argv)
{
    bench_offload_options options;
    int code = parse_options(argc, argv, &options);
    if (code != EXIT_GO_ON)
        return code;
    bench_offload b = {.options = &options};
    bp_status status = bench_device_init(options.common.cuda, options.common.ordinal, &b.device);
    if (status == BP_OK)
        status = bench_groups_init(&b.device, &options, &b.groups);
    if (status == BP_OK)
        code = run_and_answer(&b);
    else if (status == BP_ERR_NO_HOST_MEMORY)
        code = cli_fail(EXIT_ENVIRONMENT, "%s; use a smaller --bytes", bp_error_detail());
    else
        code = cli_fail_status(status);
    bench_groups_finish(&b.groups);
    bench_device_finish(&b.device);
    free(b.turns);
    interrupt_pass_on();
    return code;
}
