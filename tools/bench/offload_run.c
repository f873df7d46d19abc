#include "bench/offload_run.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "interrupt.h"
#include "progress.h"

#define POISON 0xa5

static bp_status look(bench_offload *b, bench_moment moment)
{
    bp_status status = bench_device_used(&b->device, &b->used[moment]);
    return status == BP_OK ? bench_device_seen(&b->device, &b->seen[moment]) : status;
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

/* ---- a turn ---------------------------------------------------------------------------------------------------------------- */

static void check_bytes(bench_offload *b, uint64_t turn)
{
    const bench_groups *g = &b->groups;
    uint64_t at = bench_groups_compare(g, turn);
    if (at < g->bytes)
        note_wrong(b, "turn %llu: group %s did not come back as it went, from byte %llu on", (unsigned long long)turn,
                   g->names[at / (g->bytes / g->count)], (unsigned long long)(at % (g->bytes / g->count)));
}

/* The bytes go and come back; a plain copy takes the way that they took. */
static bp_status keep(bench_offload *b, uint64_t turn, double times[LEG_COUNT])
{
    bench_groups *g = &b->groups;
    bp_status status = bench_groups_away(g, BP_OFFLOAD_KEEP, &times[LEG_KEPT_OUT], &times[LEG_COPIES_OUT]);
    if (status == BP_OK)
        status = look(b, MOMENT_KEPT);
    if (status == BP_OK)
        status = bench_groups_back(g, &times[LEG_KEPT_BACK], &times[LEG_COPIES_BACK]);
    memset(g->buffer, POISON, g->bytes);
    if (status == BP_OK)
        status = bench_groups_copy(g, true, &times[LEG_PLAIN_OUT]);
    if (status == BP_OK)
        check_bytes(b, turn);
    return status;
}

/* Memory without bytes, and a plain copy of other bytes into it. */
static bp_status discard(bench_offload *b, uint64_t turn, double times[LEG_COUNT])
{
    bench_groups *g = &b->groups;
    bench_groups_write(g, turn + 1);
    double none;
    bp_status status = bench_groups_away(g, BP_OFFLOAD_DISCARD, &times[LEG_DISCARDED_OUT], &none);
    if (status == BP_OK)
        status = look(b, MOMENT_DISCARDED);
    if (status == BP_OK)
        status = bench_groups_back(g, &times[LEG_DISCARDED_BACK], &none);
    return status == BP_OK ? bench_groups_copy(g, false, &times[LEG_PLAIN_BACK]) : status;
}

/* The first is not counted: in it host memory is pinned. */
static bp_status take_turns(bench_offload *b, progress *p)
{
    bench_groups *g = &b->groups;
    double ignored;
    bench_groups_write(g, 0);
    bp_status status = bench_groups_copy(g, false, &ignored);
    for (uint64_t turn = 0; status == BP_OK && turn <= b->options->turns && !interrupt_came(); turn++) {
        double *times = turn == 0 ? b->first : b->turns[turn - 1];
        progress_show(p, turn);
        if (turn <= 1) /* host memory is there from the first turn on */
            status = look(b, MOMENT_BEFORE);
        if (status == BP_OK)
            status = keep(b, turn, times);
        if (status == BP_OK)
            status = discard(b, turn, times);
        b->done = turn;
    }
    return status == BP_OK ? look(b, MOMENT_AFTER) : status;
}

/* ---- what it comes to -------------------------------------------------------------------------------------------------------- */

static bench_spread spread_of(const bench_offload *b, bench_leg leg, double *values)
{
    for (uint64_t i = 0; i < b->done; i++)
        values[i] = b->turns[i][leg];
    return bench_spread_of(values, b->done);
}

static bench_spread ratio_of(const bench_offload *b, bench_leg plain, bench_leg leg, double *values)
{
    for (uint64_t i = 0; i < b->done; i++)
        values[i] = b->turns[i][plain] / (b->turns[i][leg] > 0 ? b->turns[i][leg] : 1e-9);
    return bench_spread_of(values, b->done);
}

static bench_way settle(const bench_offload *b, bench_leg whole, bench_leg copies, bench_leg without, bench_leg plain,
                        double *values)
{
    return (bench_way){.whole = spread_of(b, whole, values),
                       .copies = spread_of(b, copies, values),
                       .without = spread_of(b, without, values),
                       .plain = spread_of(b, plain, values),
                       .ratio = ratio_of(b, plain, copies, values),
                       .whole_ratio = ratio_of(b, plain, whole, values)};
}

static bp_status note_backing(bench_offload *b)
{
    const bench_groups *g = &b->groups;
    b->kept.size = sizeof b->kept;
    b->pinned = true;
    bp_status status = bp_pinned_statistics_get(g->kept, &b->kept);
    bp_offload_group groups[BENCH_OFFLOAD_MOST_GROUPS] = {{.size = sizeof groups[0]}};
    size_t count = 0;
    if (status == BP_OK)
        status = bp_offload_groups(g->offload, groups, BENCH_OFFLOAD_MOST_GROUPS, &count);
    for (size_t i = 0; i < count && i < BENCH_OFFLOAD_MOST_GROUPS; i++) { /* all of them are the bench's */
        b->host_bytes += groups[i].host_bytes;
        b->pinned = b->pinned && groups[i].pinned != 0;
    }
    return status;
}

/* By the device's own account: other programs use a GPU too, and resident pages are those of the whole process. */
static void check_memory(bench_offload *b)
{
    static const char *const names[] = {[MOMENT_KEPT] = "kept", [MOMENT_DISCARDED] = "discarded"};
    uint64_t before = b->used[MOMENT_BEFORE];
    for (int moment = MOMENT_KEPT; moment <= MOMENT_DISCARDED; moment++) {
        if (b->used[moment] > before || before - b->used[moment] < b->groups.bytes)
            note_wrong(b, "the device has %llu of %llu bytes handed out while %llu are %s: they did not go back",
                       (unsigned long long)b->used[moment], (unsigned long long)before,
                       (unsigned long long)b->groups.bytes, names[moment]);
    }
    if (b->used[MOMENT_AFTER] != before)
        note_wrong(b, "the device has %llu bytes handed out in the end, %llu before",
                   (unsigned long long)b->used[MOMENT_AFTER], (unsigned long long)before);
}

int bench_offload_run(bench_offload *b)
{
    progress p;
    b->turns = calloc(b->options->turns, sizeof *b->turns);
    double *values = calloc(b->options->turns, sizeof *values);
    if (b->turns == NULL || values == NULL) {
        free(values);
        return cli_fail(EXIT_ENVIRONMENT, "out of memory");
    }
    interrupt_watch();
    progress_init(&p, "turn", b->options->turns + 1);
    bp_status status = take_turns(b, &p);
    progress_erase(&p);
    if (status == BP_OK && b->done == 0) {
        free(values);
        return cli_fail(EXIT_NEGATIVE, "interrupted before a turn was measured");
    }
    if (status == BP_OK)
        status = note_backing(b);
    if (status == BP_OK) {
        check_memory(b);
        b->out = settle(b, LEG_KEPT_OUT, LEG_COPIES_OUT, LEG_DISCARDED_OUT, LEG_PLAIN_OUT, values);
        b->back = settle(b, LEG_KEPT_BACK, LEG_COPIES_BACK, LEG_DISCARDED_BACK, LEG_PLAIN_BACK, values);
    }
    free(values);
    return status == BP_OK ? EXIT_GO_ON : cli_fail_status(status);
}
