/* SPDX-License-Identifier: Apache-2.0 */
/* The picture of `fit`: live bytes by kind over the steady step of the shown micro-batch. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/print.h"
#include "fit/fit.h"
#include "pictures/pictures.h"
#include "shared/cli.h"
#include "step/step.h"

_Static_assert((int)BP_MEMORY_KINDS <= (int)PICTURE_MAX_LIVE, "a picture has room for all kinds");
enum { COLUMNS = 720, TITLE_CHARS = FIT_VERDICT_CHARS + 300, PHASES = 3 };

/* Bytes of a kind that begin or end. */
typedef struct change {
    uint32_t event;
    uint8_t kind;
    bool begins;
    uint64_t bytes;
} change;

static int by_event(const void *left, const void *right)
{
    const change *a = left, *b = right;
    return a->event != b->event ? (a->event < b->event ? -1 : 1) : a->begins - b->begins;
}

/* Sums up the bytes that are live when the step begins, and lists the changes of its events in order. */
static change *find_changes(const step_answer *a, const bp_trace_step *step, uint64_t live[BP_MEMORY_KINDS],
                            size_t *count)
{
    change *changes = calloc(2 * a->allocations.count + 1, sizeof *changes);
    size_t used = 0;
    for (size_t i = 0; changes != NULL && i < a->allocations.count; i++) {
        const bp_allocation *each = &a->allocations.all[i];
        const uint8_t kind = a->attribution.kinds[i];
        const uint64_t bytes = bp_step_round(each->bytes);
        const bool is_before = each->begin == BP_TRACE_NONE || each->begin < step->begin;
        if (is_before && each->end != BP_TRACE_NONE && each->end < step->begin)
            continue;
        if (is_before)
            live[kind] += bytes;
        else if (each->begin < step->end)
            changes[used++] = (change){.event = each->begin, .kind = kind, .begins = true, .bytes = bytes};
        if (each->end < step->end && (is_before || each->begin < step->end)) /* BP_TRACE_NONE is not */
            changes[used++] = (change){.event = each->end, .kind = kind, .bytes = bytes};
    }
    if (changes != NULL)
        qsort(changes, used, sizeof *changes, by_event);
    *count = used;
    return changes;
}

static uint64_t sum_of(const uint64_t live[BP_MEMORY_KINDS])
{
    uint64_t sum = 0;
    for (unsigned k = 0; k < BP_MEMORY_KINDS; k++)
        sum += live[k];
    return sum;
}

/* Of the moments of a column, the one with most live bytes. false: out of memory. */
static bool find_columns(const step_answer *a, const bp_trace_step *step, uint64_t columns[COLUMNS][BP_MEMORY_KINDS])
{
    uint64_t live[BP_MEMORY_KINDS] = {0};
    size_t count = 0, next = 0;
    change *changes = find_changes(a, step, live, &count);
    for (size_t column = 0; changes != NULL && column < COLUMNS; column++) {
        const uint64_t end = step->begin + (uint64_t)(step->end - step->begin) * (column + 1) / COLUMNS;
        memcpy(columns[column], live, sizeof live);
        for (bool is_first = true; next < count && changes[next].event < end; is_first = false) {
            const uint32_t event = changes[next].event;
            for (; next < count && changes[next].event == event; next++)
                live[changes[next].kind] += changes[next].begins ? changes[next].bytes : -changes[next].bytes;
            if (is_first || sum_of(live) > sum_of(columns[column]))
                memcpy(columns[column], live, sizeof live);
        }
    }
    free(changes);
    return changes != NULL;
}

/* Kinds, those that are always there at the bottom; without those that are thinner than a line. */
static void find_kinds(uint64_t columns[COLUMNS][BP_MEMORY_KINDS], uint8_t order[BP_MEMORY_KINDS], size_t *count)
{
    enum { VISIBLE = 1000 }; /* the least part of the peak */
    uint64_t min[BP_MEMORY_KINDS], max[BP_MEMORY_KINDS] = {0}, peak = 0;
    memset(min, 0xFF, sizeof min);
    *count = 0;
    for (size_t column = 0; column < COLUMNS; column++) {
        for (unsigned k = 0; k < BP_MEMORY_KINDS; k++) {
            const uint64_t bytes = columns[column][k];
            min[k] = bytes < min[k] ? bytes : min[k];
            max[k] = bytes > max[k] ? bytes : max[k];
        }
        peak = sum_of(columns[column]) > peak ? sum_of(columns[column]) : peak;
    }
    for (unsigned k = 0; k < BP_MEMORY_KINDS; k++) {
        if (max[k] == 0 || max[k] < peak / VISIBLE)
            continue;
        size_t at = (*count)++;
        for (; at > 0 && min[order[at - 1]] < min[k]; at--)
            order[at] = order[at - 1];
        order[at] = (uint8_t)k;
    }
}

/* From the first allocation of each phase to that of the next. */
static size_t find_phases(const step_answer *a, const bp_trace_step *step, step_span spans[PHASES])
{
    static const bp_trace_phase phases[PHASES] = {BP_TRACE_PHASE_FORWARD, BP_TRACE_PHASE_BACKWARD,
                                                  BP_TRACE_PHASE_OPTIMIZER};
    const double length = step->end - step->begin;
    size_t count = 0;
    unsigned next = 0;
    for (size_t i = step->first; i < step->first + step->count && next < PHASES; i++) {
        unsigned phase = next;
        while (phase < PHASES && a->attribution.phases[i] != phases[phase])
            phase++;
        if (phase == PHASES)
            continue;
        const double begin = count == 0 ? 0 : (a->allocations.all[i].begin - step->begin) / length;
        if (count > 0)
            spans[count - 1].end = begin;
        spans[count++] = (step_span){bp_trace_phase_name(phases[phase]), begin, 1};
        next = phase + 1;
    }
    return count;
}

static int draw(const bp_fit_info *info, const step_answer *a, const output *to)
{
    static const char *const names[BP_FIT_TOTALS] = {"default", "expandable", "served", "peak live"};
    const bp_trace_step *step = bp_steps_steady(&a->steps);
    uint64_t(*columns)[BP_MEMORY_KINDS] = calloc(COLUMNS, sizeof *columns);
    uint64_t *live = calloc((size_t)COLUMNS * BP_MEMORY_KINDS, sizeof *live);
    uint8_t order[BP_MEMORY_KINDS];
    step_level levels[BP_FIT_TOTALS];
    step_span phases[PHASES];
    char title[TITLE_CHARS], verdict[FIT_VERDICT_CHARS];
    live_picture picture = {.title = title,
                            .live = live,
                            .column_count = COLUMNS,
                            .levels = levels,
                            .level_count = BP_FIT_TOTALS,
                            .limit = {"limit", info->limit_bytes},
                            .phases = phases,
                            .phase_count = find_phases(a, step, phases)};
    int code = EXIT_GO_ON;
    if (columns == NULL || live == NULL || !find_columns(a, step, columns)) {
        code = cli_fail(EXIT_ENVIRONMENT, "out of memory");
    } else {
        find_kinds(columns, order, &picture.kind_count);
        for (size_t k = 0; k < picture.kind_count; k++) {
            picture.kinds[k] = bp_memory_kind_name((bp_memory_kind)order[k]);
            picture.colours[k] = (uint8_t)((order[k] + PICTURE_GROUPS - 1) % PICTURE_GROUPS);
            for (size_t column = 0; column < COLUMNS; column++)
                live[column * picture.kind_count + k] = columns[column][order[k]];
        }
        for (unsigned t = 0; t < BP_FIT_TOTALS; t++)
            levels[t] = (step_level){names[t], info->shown->worst.bytes[t]};
        fit_verdict(info, verdict);
        bp_print(title, sizeof title, "%.120s, a step of micro-batch %llu\n%s", info->model,
                 (unsigned long long)info->shown_batch, verdict);
        const char *error = picture_draw_live(&picture, to);
        if (error != NULL)
            code = cli_fail(EXIT_ENVIRONMENT, "--plot %s: %s", to->path, error);
    }
    free(columns);
    free(live);
    return code;
}

int fit_draw(const bp_fit_info *info, const output *to)
{
    bp_trace_file *file = NULL;
    if (info->recording == NULL)
        return cli_fail(EXIT_BAD_INPUT, "--plot: the answer names no recording; run fit on the model");
    bp_status status = bp_trace_file_read(info->recording, &file);
    if (status == BP_ERR_IO)
        return cli_fail(EXIT_BAD_INPUT,
                        "--plot: the recording of the step is gone (%s); run fit on the model with "
                        "--fresh",
                        bp_error_detail());
    if (status != BP_OK)
        return cli_fail_status(status);
    const bp_trace_file_info *recorded = bp_trace_file_get_info(file);
    step_answer answer = {0};
    int code =
        recorded->trace_count > 0 ? step_answer_find(info->recording, &recorded->traces[0], &answer) : EXIT_GO_ON;
    if (code == EXIT_GO_ON && answer.steps.count == 0)
        code = cli_fail(EXIT_BAD_INPUT, "--plot: %.300s: no recorded allocations", info->recording);
    if (code == EXIT_GO_ON)
        code = draw(info, &answer, to);
    step_answer_finish(&answer);
    bp_trace_file_destroy(&file);
    return code;
}
