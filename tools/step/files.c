/* SPDX-License-Identifier: Apache-2.0 */
/* The files of `step`: the plan, and its picture. */
#include <bucketpool/core/fail.h>
#include <bucketpool/formats.h>
#include <bucketpool/pack.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/print.h"
#include "pictures/pictures.h"
#include "step/step.h"

static int fail_without_items(const char *option, const step_answer *a)
{
    size_t count = 0;
    if (a->trace->stream_count > BP_STEP_PLAN_STREAMS)
        return cli_fail(EXIT_BAD_INPUT, "%s: the recording has %zu streams; a plan has %u at most", option,
                        a->trace->stream_count, BP_STEP_PLAN_STREAMS);
    for (size_t kind = 0; kind < a->plan->kind_count; kind++)
        count += a->plan->kinds[kind].item_count;
    return cli_fail(EXIT_BAD_INPUT,
                    "%s: none of the %zu allocations of the steps gets an address: each is empty, live "
                    "during whole steps, or longer than its step; record whole training steps, three at least",
                    option, count);
}

/* ---- the plan ------------------------------------------------------------------------------------------------------ */

int step_write_plan(const step_answer *answer, const output *to)
{
    if (answer->plan->bytes == 0)
        return fail_without_items("-o", answer);
    bp_status status = bp_step_plan_write(answer->handle, to->written);
    if (status == BP_ERR_IO)
        return output_fail(to, strerror(errno));
    return status == BP_OK ? EXIT_GO_ON : cli_fail_status(status);
}

/* ---- the picture --------------------------------------------------------------------------------------------------- */

typedef struct step_picture {
    const step_answer *answer;
    const bp_step_plan_kind *kind; /* the largest */
    const bp_trace_step *step;     /* its reference */
    bp_packing *packing;
    uint64_t *offsets;
    uint8_t *groups; /* of items */
    char group_names[PICTURE_GROUPS][PICTURE_LABEL_CHARS];
    size_t group_count;
} step_picture;

/* Items with an address; time is the order of events in the reference step. */
static bp_status add_items(step_picture *p)
{
    const uint32_t length = p->step->end - p->step->begin;
    for (size_t order = 0; order < p->kind->item_count; order++) {
        const bp_step_plan_item *item = &p->kind->items[order];
        const bp_allocation *a = &p->answer->allocations.all[p->step->first + order];
        uint32_t begin = a->begin - p->step->begin;
        uint32_t end = a->end == BP_TRACE_NONE || a->end > p->step->end ? length : a->end - p->step->begin;
        bool is_drawn = item->offset != BP_STEP_OUTSIDE && begin < end;
        BP_TRY(bp_packing_add_item(p->packing, is_drawn ? bp_step_round(item->bytes) : 0, NULL));
        if (is_drawn)
            BP_TRY(bp_packing_add_interval(p->packing, order, begin, end));
        p->offsets[order] = is_drawn ? item->offset : 0;
    }
    return BP_OK;
}

/* True if two allocations are in one group; names of groups are unique. */
static bool is_in_group(const step_picture *p, step_grouping by, size_t order, const step_holders *group)
{
    return step_holders_index(p->answer, group, 1, by, p->step->first + order) == 0;
}

/* The largest groups at the peak of the step, then those of other items, have a colour each; the rest shares the last one. */
static int find_groups(step_picture *p, step_grouping by)
{
    step_holders holders = {0};
    CLI_TRY(step_holders_find(p->answer, p->step->peak_event, by, &holders));
    memset(p->groups, PICTURE_GROUPS, p->kind->item_count);
    for (size_t i = 0; i < holders.count && p->group_count < PICTURE_GROUPS - 1; i++) {
        const step_holders group = {.all = &holders.all[i], .count = 1};
        char name[STEP_NAME_CHARS];
        bool is_used = false;
        uint64_t drawn = 0; /* at the peak */
        for (size_t order = 0; order < p->kind->item_count; order++) {
            if (p->groups[order] != PICTURE_GROUPS || !is_in_group(p, by, order, &group))
                continue;
            p->groups[order] = (uint8_t)p->group_count;
            is_used = true;
            const bp_step_plan_item *item = &p->kind->items[order];
            const bp_allocation *a = &p->answer->allocations.all[p->step->first + order];
            if (item->offset != BP_STEP_OUTSIDE && a->begin <= p->step->peak_event &&
                (a->end == BP_TRACE_NONE || a->end > p->step->peak_event))
                drawn += bp_step_round(item->bytes);
        }
        if (is_used)
            bp_print(p->group_names[p->group_count++], PICTURE_LABEL_CHARS, "%.300s: %s at the peak",
                     step_holder_name(&holders.all[i], by, name), cli_bytes(drawn));
    }
    free(holders.all);
    for (size_t order = 0; order < p->kind->item_count; order++) {
        if (p->groups[order] != PICTURE_GROUPS)
            continue;
        step_holder holder = step_holder_of(p->answer, p->step->first + order);
        const step_holders group = {.all = &holder, .count = 1};
        const bool is_last = p->group_count == PICTURE_GROUPS - 1;
        char name[STEP_NAME_CHARS];
        for (size_t other = order; other < p->kind->item_count; other++) {
            if (p->groups[other] == PICTURE_GROUPS && (is_last || is_in_group(p, by, other, &group)))
                p->groups[other] = (uint8_t)p->group_count;
        }
        bp_print(p->group_names[p->group_count++], PICTURE_LABEL_CHARS, "%.300s",
                 is_last ? "others" : step_holder_name(&holder, by, name));
    }
    return EXIT_GO_ON;
}

static const char *label_of(const void *user, size_t item, char text[PICTURE_LABEL_CHARS])
{
    const step_picture *p = user;
    const step_holder holder = step_holder_of(p->answer, p->step->first + item);
    return step_holder_name(&holder, STEP_BY_PLACE, text);
}

static int draw(step_picture *p, const step_options *options, const output *to)
{
    char title[256], proof[240], peak[64];
    bp_status status = bp_packing_create(&p->packing);
    if (status == BP_OK)
        status = add_items(p);
    if (status != BP_OK)
        return cli_fail_status(status);
    CLI_TRY(find_groups(p, options->by == STEP_BY_PLACE ? STEP_BY_KIND : (step_grouping)options->by));
    bp_print(title, sizeof title, "%.120s: %zu allocations of a step", bp_trace_file_name(p->answer->path),
             p->kind->item_count);
    const uint64_t outside = p->answer->plan->outside_bytes;
    bp_print(proof, sizeof proof, "planned %s, peak live %s%s; beside them %s live during whole steps%s",
             cli_bytes(p->kind->bytes), cli_bytes(p->kind->lower_bound_bytes),
             p->answer->plan->optimal ? ": optimal" : "", cli_bytes(p->answer->plan->persistent_bytes),
             outside > 0 ? cli_text(", and %s not planned", cli_bytes(outside)) : "");
    bp_print(peak, sizeof peak, "peak: %s live", cli_bytes(p->step->peak_bytes));
    const packing_picture input = {.title = title,
                                   .proof = proof,
                                   .packing = p->packing,
                                   .offsets = p->offsets,
                                   .total = p->kind->bytes,
                                   .bound = p->kind->lower_bound_bytes,
                                   .label = label_of,
                                   .user = p,
                                   .groups = p->groups,
                                   .group_names = p->group_names,
                                   .group_count = p->group_count,
                                   .unit = "events of the step",
                                   .mark = peak,
                                   .mark_time = p->step->peak_event - p->step->begin};
    const char *error = picture_draw_packing(&input, to);
    return error == NULL ? EXIT_GO_ON : cli_fail(EXIT_ENVIRONMENT, "--plot %s: %s", to->path, error);
}

int step_draw(const step_answer *answer, const step_options *options, const output *to)
{
    size_t largest = 0;
    for (size_t i = 1; i < answer->plan->kind_count; i++)
        largest = answer->plan->kinds[i].bytes > answer->plan->kinds[largest].bytes ? i : largest;
    const bp_step_plan_kind *kind = &answer->plan->kinds[largest];
    if (kind->bytes == 0)
        return fail_without_items("--plot", answer);
    step_picture p = {.answer = answer,
                      .kind = kind,
                      .step = &answer->references[largest],
                      .offsets = calloc(kind->item_count, sizeof *p.offsets),
                      .groups = calloc(kind->item_count, sizeof *p.groups)};
    int code =
        p.offsets == NULL || p.groups == NULL ? cli_fail(EXIT_ENVIRONMENT, "out of memory") : draw(&p, options, to);
    bp_packing_destroy(&p.packing);
    free(p.offsets);
    free(p.groups);
    return code;
}
