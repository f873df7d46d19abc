/* SPDX-License-Identifier: Apache-2.0 */
/* Cuts a trace into steps at the annotations that programs and PyTorch write: torch.profiler's "ProfilerStep#3", a
 * program's own "step 3", the ranges of optimizers ("Optimizer.step#AdamW.step"); or at the ends of optimizers alone. */
#include <bucketpool/core/fail.h>

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "planner/steps/step_finder.h"

/* ---- marks of steps ------------------------------------------------------------------------------------------------ */

/* Words of names of steps: "ProfilerStep#3", "Training step 3 of 100", "global_step=3". One of the first four is in each. */
static const char *const step_words[] = {"profilerstep", "step",    "iteration",    "batch",    "trainstep",
                                         "iter",         "global",  "train",        "training", "epoch",
                                         "of",           "trainer", "optimization", "trainiter"};
enum { STEP_WORDS = sizeof step_words / sizeof *step_words, NAMING_WORDS = 6 };

/* The set of words of a name, as bits; 0: it does not name a step. */
static uint32_t words_of(const char *name)
{
    uint32_t words = 0;
    while (*name != '\0') {
        char word[24];
        size_t used = 0;
        for (; isalpha((unsigned char)*name); name++) {
            if (used + 1 < sizeof word)
                word[used++] = (char)tolower((unsigned char)*name);
        }
        word[used] = '\0';
        size_t known = 0;
        while (used > 0 && known < STEP_WORDS && strcmp(step_words[known], word) != 0)
            known++;
        if (known == STEP_WORDS)
            return 0;
        words |= used > 0 ? 1u << known : 0;
        while (*name != '\0' && !isalpha((unsigned char)*name))
            name++;
    }
    return (words & ((1u << NAMING_WORDS) - 1)) != 0 ? words : 0;
}

/* The first allocation at an event or behind it. */
static size_t allocation_at(const bp_step_finder *f, uint32_t event)
{
    size_t low = 0, high = f->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (f->made[middle].begin < event)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The ranges of one name, in the order of the trace. */
typedef struct name_ranges {
    uint32_t words;
    size_t begins, ends;
    size_t depth, open;          /* of ranges in one another; where the outermost open one begins */
    size_t first, last, covered; /* allocations: from the first beginning to the last end, and in ranges */
} name_ranges;

enum { MAX_NAMES = 32 };

/* Counts the ranges of the names of steps. Returns how many names there are. */
static size_t find_names(const bp_step_finder *f, name_ranges names[MAX_NAMES])
{
    size_t count = 0;
    for (size_t i = 0; i < f->trace->annotation_count; i++) {
        const bp_trace_annotation *a = &f->trace->annotations[i];
        const uint32_t words = words_of(a->name);
        size_t k = 0;
        while (k < count && names[k].words != words)
            k++;
        if (words == 0 || k == MAX_NAMES)
            continue;
        if (k == count)
            names[count++] = (name_ranges){.words = words, .first = SIZE_MAX};
        name_ranges *n = &names[k];
        const size_t at = allocation_at(f, a->event);
        if (!a->is_end) {
            n->begins++;
            n->open = n->depth++ == 0 ? at : n->open;
            n->first = at < n->first ? at : n->first;
        } else {
            n->ends++;
            n->depth -= n->depth > 0;
            n->covered += n->depth == 0 && at > n->open ? at - n->open : 0;
            n->last = at;
        }
    }
    return count;
}

/* True if most allocations from the first to the last range are in ranges, or ends are not recorded: else the ranges are parts of steps,
 * such as the optimizer's. */
static bool is_whole_step(const name_ranges *n)
{
    return n->begins > 0 && (n->ends == 0 || n->last <= n->first || n->covered >= (n->last - n->first) / 2);
}

/* The name with the fewest ranges, but two at least, if there is one: others are inside of it. Those of the profiler come first. */
static const name_ranges *choose_name(const name_ranges *names, size_t count)
{
    const name_ranges *best = NULL;
    for (size_t i = 0; i < count; i++) {
        const name_ranges *n = &names[i];
        if (!is_whole_step(n))
            continue;
        if (n->words == 1)
            return n;
        bool is_better =
            best == NULL || (best->begins < 2 && n->begins >= 2) || (n->begins >= 2 && n->begins < best->begins);
        best = is_better ? n : best;
    }
    return best;
}

/* From each beginning to the next one; the last step ends where its range does, if the trace has that. A range that began before the oldest
 * event lacks what the ring has lost. */
static size_t cut_at_beginnings(const bp_step_finder *f, size_t *cuts)
{
    const bp_trace *trace = f->trace;
    name_ranges names[MAX_NAMES];
    const name_ranges *name = choose_name(names, find_names(f, names));
    size_t count = 0, end = f->count, depth = 0, early = 0;
    for (size_t i = 0; name != NULL && i < trace->annotation_count; i++) {
        const bp_trace_annotation *a = &trace->annotations[i];
        if (words_of(a->name) != name->words)
            continue;
        const size_t at = allocation_at(f, a->event);
        const bool is_inner = name->ends > 0 && depth > 0;
        depth = a->is_end ? depth - (depth > 0) : depth + 1;
        if (a->is_end && depth == 0)
            end = at;
        if (a->is_end || is_inner)
            continue;
        early += a->is_early;
        end = f->count;
        if (count == 0 || at > cuts[count - 1])
            cuts[count++] = at;
    }
    if (early > 1 && count > 1) { /* marks older than the events: the first step is a part */
        memmove(cuts, cuts + 1, (count - 1) * sizeof *cuts);
        count--;
    }
    if (count > 0 && end > cuts[count - 1])
        cuts[count++] = end;
    return count;
}

/* ---- optimizers ---------------------------------------------------------------------------------------------------- */

/* The rise of live bytes above those before the first of the allocations [from, to), by a forward pass where frames tell. */
static uint64_t rise(const bp_step_finder *f, size_t from, size_t to)
{
    uint64_t max = 0;
    for (size_t i = from; i < to; i++) {
        bp_trace_phase phase = bp_allocation_phase(&f->made[i], f->places);
        if (phase != BP_TRACE_PHASE_FORWARD && phase != BP_TRACE_PHASE_UNKNOWN)
            continue;
        uint64_t after = f->live[i] + bp_step_round(f->made[i].bytes);
        max = after > f->live[from] && after - f->live[from] > max ? after - f->live[from] : max;
    }
    return max;
}

/* A step ends behind its optimizers. A program may have several, or one for each layer inside backward: only where live
 * bytes then rise by an eighth of their whole range, a forward pass follows. */
static size_t cut_behind_optimizers(const bp_step_finder *f, size_t *cuts)
{
    const bp_trace *trace = f->trace;
    uint64_t min = UINT64_MAX;
    size_t count = 0, behind = SIZE_MAX;
    for (size_t i = 0; i <= f->count; i++)
        min = f->live[i] < min ? f->live[i] : min;
    const uint64_t forward = (f->steps->peak_bytes - min) / 8;
    for (size_t i = 0; i < trace->annotation_count; i++) {
        const bp_trace_annotation *a = &trace->annotations[i];
        if (strncmp(a->name, "Optimizer.step#", 15) != 0)
            continue;
        size_t at = allocation_at(f, a->event);
        if (!a->is_end && behind < at && rise(f, behind, at) >= forward && (count == 0 || behind > cuts[count - 1]))
            cuts[count++] = behind;
        behind = a->is_end ? at : SIZE_MAX;
    }
    if (behind != SIZE_MAX && (count == 0 || behind > cuts[count - 1]))
        cuts[count++] = behind;
    return count > 1 ? count : 0;
}

/* ---- marks --------------------------------------------------------------------------------------------------------- */

enum { MAX_ROUND = 4 };

/* The part of the trace between two marks, as a step; no allocations: false. */
static bool between_marks(const bp_step_finder *f, const size_t *marks, size_t i, bp_trace_step *part)
{
    *part = (bp_trace_step){.first = f->allocations->live_at_start + marks[i], .count = marks[i + 1] - marks[i]};
    return part->count > 0;
}

/* True if live bytes rise behind each of the marks by a sixteenth of their range, so that a forward pass follows. */
static bool rises_behind(const bp_step_finder *f, const size_t *marks, size_t i, uint64_t range)
{
    return rise(f, marks[i], marks[i + 1]) >= range / 16;
}

/* Marks of a round, such as the steps of two optimizers, or of a generator and a discriminator: the smallest number after
 * which the allocations are alike again, behind the first round, which makes the state of optimizers. 0: none. */
static size_t find_round(const bp_step_finder *f, const size_t *marks, size_t count, uint64_t range, uint32_t *orders)
{
    bool rises = true;
    for (size_t i = 0; i + 1 < count; i++)
        rises = rises && rises_behind(f, marks, i, range);
    /* Lengths in random order may be alike by chance for two rounds, but seldom for three. */
    for (size_t round = 1; round <= MAX_ROUND && (rises && round > 1 ? 4 : 3) * round <= count; round++) {
        bool repeats = true;
        for (size_t i = round - 1; repeats && i + round + 1 < count; i++) {
            bp_trace_step a, b;
            repeats = between_marks(f, marks, i, &a) && between_marks(f, marks, i + round, &b) &&
                      bp_steps_are_alike(f, &a, &b, orders);
        }
        if (repeats)
            return round;
    }
    return 0;
}

/* The mark behind which live bytes rise most: a step begins there. The first round, which makes gradients and the state of
 * optimizers, is whole before it. */
static size_t find_beginning(const bp_step_finder *f, const size_t *marks, size_t round)
{
    size_t best = round - 1;
    for (size_t i = round; i < 2 * round - 1; i++)
        best = rise(f, marks[i], marks[i + 1]) > rise(f, marks[best], marks[best + 1]) ? i : best;
    return best;
}

/* A step ends at each mark, or at that of each round. Otherwise, with several optimizers or lengths, it ends where live
 * bytes then rise by a sixteenth of their range before the next mark. */
static bp_status cut_at_optimizer_ends(const bp_step_finder *f, size_t *cuts, size_t *count)
{
    const size_t early = f->allocations->live_at_start, mark_count = f->steps->optimizer_end_count;
    size_t *marks = malloc((mark_count + 1) * sizeof *marks);
    uint32_t *orders = malloc((f->count + 1) * sizeof *orders);
    if (marks == NULL || orders == NULL) {
        free(marks);
        free(orders);
        return bp_fail_memory(f->count * sizeof *orders);
    }
    for (size_t i = 0; i < mark_count; i++)
        marks[i] = f->steps->optimizer_ends[i] - early;
    uint64_t min = UINT64_MAX, max = 0;
    for (size_t i = mark_count > 0 ? marks[0] : f->count; i <= f->count; i++) {
        min = f->live[i] < min ? f->live[i] : min;
        max = f->live[i] > max ? f->live[i] : max;
    }
    const size_t round = find_round(f, marks, mark_count, max - min, orders);
    for (size_t i = round > 0 ? find_beginning(f, marks, round) : 0; i<mark_count; i += round> 0 ? round : 1) {
        if (round > 0 || i + 1 == mark_count || rises_behind(f, marks, i, max - min))
            cuts[(*count)++] = marks[i];
    }
    free(marks);
    free(orders);
    *count = *count > 1 ? *count : 0;
    return BP_OK;
}

bp_status bp_steps_find_optimizer_ends(const bp_step_finder *base)
{
    const bp_trace *trace = base->trace;
    bp_steps *s = base->steps;
    const size_t early = base->allocations->live_at_start;
    s->optimizer_ends = malloc((trace->annotation_count + trace->mark_count + 1) * sizeof *s->optimizer_ends);
    if (s->optimizer_ends == NULL)
        return bp_fail_memory((trace->annotation_count + trace->mark_count) * sizeof *s->optimizer_ends);
    for (size_t i = 0; i < trace->annotation_count + trace->mark_count; i++) {
        const bp_trace_annotation *a = i < trace->annotation_count ? &trace->annotations[i] : NULL;
        if (a != NULL && (!a->is_end || a->is_early || strncmp(a->name, "Optimizer.step#", 15) != 0))
            continue;
        const uint32_t event = a != NULL ? a->event : trace->marks[i - trace->annotation_count];
        const uint32_t at = (uint32_t)(early + allocation_at(base, event));
        if (s->optimizer_end_count == 0 || s->optimizer_ends[s->optimizer_end_count - 1] < at)
            s->optimizer_ends[s->optimizer_end_count++] = at;
    }
    return BP_OK;
}

/* ---- all ----------------------------------------------------------------------------------------------------------- */

/* The first step of optimizers contains the model's construction, unless the recording began later. Then it is
 * like the second, and counts. */
static bp_status add_first(const bp_step_finder *f, size_t *cuts, size_t *count)
{
    const size_t with_first[] = {0, cuts[0], cuts[1]};
    bp_trace_step steps[2];
    uint32_t *orders = malloc((cuts[0] + 1) * sizeof *orders);
    if (orders == NULL)
        return bp_fail_memory(cuts[0] * sizeof *orders);
    if (bp_steps_between(f, with_first, 3, steps) == 2 && bp_steps_are_alike(f, &steps[0], &steps[1], orders)) {
        memmove(cuts + 1, cuts, *count * sizeof *cuts);
        cuts[0] = 0;
        ++*count;
    }
    free(orders);
    return BP_OK;
}

bp_status bp_steps_cut_at_marks(const bp_step_finder *f, size_t *cuts, size_t *count)
{
    *count = cut_at_beginnings(f, cuts);
    if (*count == 0) {
        if (f->trace->mark_count > 0)
            BP_TRY(cut_at_optimizer_ends(f, cuts, count));
        else
            *count = cut_behind_optimizers(f, cuts);
        if (*count > 0)
            BP_TRY(add_first(f, cuts, count));
    }
    return BP_OK;
}
