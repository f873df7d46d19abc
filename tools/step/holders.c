/* SPDX-License-Identifier: Apache-2.0 */
/* Sums live allocations of a moment up: by place in the code, by module, by phase, by kind. */
#include "core/print.h"
#include "step/step.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- names --------------------------------------------------------------------------------------------------------- */

/* Digits of a part of the module's name that is a number: the 3 of "layers.3.mlp". 0: no such part begins here. */
static size_t number_chars(const bp_stack_place *place, size_t at)
{
    size_t end = at;
    if (at > 0 && place->module[at - 1] != '.')
        return 0;
    while (end < place->module_bytes && isdigit((unsigned char)place->module[end]))
        end++;
    return end == place->module_bytes || place->module[end] == '.' ? end - at : 0;
}

/* Modules by their text. Unless `exactly`, numbers of layers are equal. */
static int by_module(const bp_stack_place *a, const bp_stack_place *b, bool exactly)
{
    size_t i = 0, k = 0;
    while (i < a->module_bytes && k < b->module_bytes) {
        const size_t left = exactly ? 0 : number_chars(a, i), right = exactly ? 0 : number_chars(b, k);
        if (left > 0 && right > 0) {
            i += left;
            k += right;
            continue;
        }
        if (left + right > 0) /* numbers before names */
            return left > 0 ? -1 : 1;
        if (a->module[i] != b->module[k])
            return (unsigned char)a->module[i] < (unsigned char)b->module[k] ? -1 : 1;
        i++;
        k++;
    }
    return (i < a->module_bytes) - (k < b->module_bytes);
}

const char *step_module(const step_holder *holder, char text[STEP_NAME_CHARS])
{
    size_t used = 0;
    const bp_stack_place *place = holder->place;
    for (size_t i = 0; place != NULL && i < place->module_bytes && used + 1 < STEP_NAME_CHARS; i++) {
        size_t digits = holder->is_pattern ? number_chars(place, i) : 0;
        text[used++] = digits > 0 ? '*' : place->module[i];
        i += digits > 0 ? digits - 1 : 0;
    }
    text[used] = '\0';
    return text;
}

static const char *place_name(const step_holder *holder, bool has_line, char text[STEP_NAME_CHARS])
{
    text[0] = '\0';
    if (holder->kind == BP_MEMORY_EARLIER)
        return bp_memory_kind_name(BP_MEMORY_EARLIER);
    const bp_trace_frame *frame = holder->place != NULL ? holder->place->frame : NULL;
    if (frame == NULL) /* autograd's thread has no frames of Python */
        return holder->phase == BP_TRACE_PHASE_BACKWARD ? "backward, without frames" : "without frames";
    return bp_trace_frame_name(frame, has_line, text, STEP_NAME_CHARS);
}

const char *step_holder_name(const step_holder *holder, step_grouping by, char text[STEP_NAME_CHARS])
{
    if (by == STEP_BY_KIND)
        return bp_memory_kind_name((bp_memory_kind)holder->kind);
    if (holder->kind == BP_MEMORY_EARLIER)
        return bp_memory_kind_name(BP_MEMORY_EARLIER);
    if (by == STEP_BY_PHASE)
        return bp_trace_phase_name((bp_trace_phase)holder->phase);
    if (by == STEP_BY_MODULE && holder->place != NULL && holder->place->module_bytes > 0)
        return step_module(holder, text);
    return place_name(holder, by == STEP_BY_PLACE, text);
}

/* ---- groups -------------------------------------------------------------------------------------------------------- */

static int by_frame(const bp_trace_frame *a, const bp_trace_frame *b, bool has_line)
{
    if (a == NULL || b == NULL)
        return (a != NULL) - (b != NULL);
    int order = strcmp(a->file, b->file);
    if (order == 0)
        order = strcmp(a->function, b->function);
    return order != 0 || !has_line ? order : (a->line > b->line) - (a->line < b->line);
}

static int by_number(unsigned a, unsigned b)
{
    return (a > b) - (a < b);
}

static int by_kind(const void *left, const void *right)
{
    const step_holder *a = left, *b = right;
    return by_number(a->kind, b->kind);
}

static int by_earlier(const step_holder *a, const step_holder *b)
{
    return by_number(a->kind == BP_MEMORY_EARLIER, b->kind == BP_MEMORY_EARLIER);
}

static int by_phase(const void *left, const void *right)
{
    const step_holder *a = left, *b = right;
    int order = by_earlier(a, b);
    return order != 0 ? order : by_number(a->phase, b->phase);
}

static const bp_stack_place no_place = {.module = ""};

static int by_module_or_place(const step_holder *a, const step_holder *b, bool has_line)
{
    const bp_stack_place *x = a->place != NULL ? a->place : &no_place, *y = b->place != NULL ? b->place : &no_place;
    int order = by_earlier(a, b);
    if (order != 0 || a->kind == BP_MEMORY_EARLIER)
        return order;
    order = by_module(x, y, false);
    return order != 0 || (x->module_bytes > 0 && !has_line) ? order : by_frame(x->frame, y->frame, has_line);
}

static int by_module_of(const void *left, const void *right)
{
    return by_module_or_place(left, right, false);
}

static int by_place(const void *left, const void *right)
{
    int order = by_module_or_place(left, right, true);
    return order != 0 ? order : by_phase(left, right);
}

static int by_bytes(const void *left, const void *right)
{
    const step_holder *a = left, *b = right;
    if (a->bytes != b->bytes)
        return a->bytes > b->bytes ? -1 : 1;
    return by_place(left, right);
}

typedef int holder_order(const void *, const void *);
static holder_order *const orders[STEP_GROUPINGS] = {by_place, by_module_of, by_phase, by_kind};

step_holder step_holder_of(const step_answer *answer, size_t allocation)
{
    const bp_allocation *a = &answer->allocations.all[allocation];
    return (step_holder){.place = a->stack == BP_TRACE_NONE ? NULL : &answer->places.all[a->stack],
                         .phase = answer->attribution.phases[allocation],
                         .kind = answer->attribution.kinds[allocation],
                         .bytes = bp_step_round(a->bytes),
                         .allocations = 1};
}

size_t step_holders_index(const step_answer *answer, const step_holders *holders, size_t max, step_grouping by,
                          size_t allocation)
{
    const step_holder holder = step_holder_of(answer, allocation);
    size_t i = 0;
    while (i < holders->count && i < max && orders[by](&holders->all[i], &holder) != 0)
        i++;
    return i;
}

int step_holders_find(const step_answer *answer, uint32_t event, step_grouping by, step_holders *holders)
{
    size_t live = 0, kept = 0;
    for (size_t i = 0; i < answer->allocations.count; i++)
        live += bp_allocation_is_live(&answer->allocations.all[i], event);
    step_holder *all = calloc(live + 1, sizeof *all);
    if (all == NULL)
        return cli_fail(EXIT_ENVIRONMENT, "out of memory");
    *holders = (step_holders){.all = all};
    for (size_t i = 0, next = 0; i < answer->allocations.count; i++) {
        const bp_allocation *a = &answer->allocations.all[i];
        if (!bp_allocation_is_live(a, event))
            continue;
        all[next++] = step_holder_of(answer, i);
        holders->bytes += bp_step_round(a->bytes);
        holders->requested_bytes += a->bytes;
    }
    qsort(all, live, sizeof *all, orders[by]);
    for (size_t i = 0; i < live; i++) {
        step_holder *last = kept > 0 ? &all[kept - 1] : NULL;
        if (last == NULL || orders[by](last, &all[i]) != 0) {
            all[kept++] = all[i];
            continue;
        }
        last->bytes += all[i].bytes;
        last->allocations++;
        last->is_pattern = last->is_pattern || (last->place != NULL && all[i].place != NULL &&
                                                by_module(last->place, all[i].place, true) != 0);
    }
    qsort(all, kept, sizeof *all, by_bytes);
    holders->count = kept;
    return EXIT_GO_ON;
}
