/* Cuts a trace into steps at the annotations that programs and PyTorch write: torch.profiler's "ProfilerStep#3", a
 * program's own "step 3", the ranges of optimizers ("Optimizer.step#AdamW.step"). */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "core/fail.h"
#include "steps/step_finder.h"

/* ---- marks of steps ------------------------------------------------------------------------------------------------ */

/* Names of a step, without numbers, spaces and case. The first that occurs has the marks: others may be inside it. */
static const char *const step_names[] = {"profilerstep", "step",           "trainstep",
                                         "trainingstep", "iteration",      "trainingiteration",
                                         "trainiter",    "trainiteration", "iter"};

/* The letters of a name in lower case, if no letter follows a digit: "ProfilerStep#12" is "profilerstep". */
static bool letters_of(const char *name, char letters[24])
{
    size_t used = 0;
    bool has_number = false;
    for (; *name != '\0'; name++) {
        unsigned char at = (unsigned char)*name;
        if (isalpha(at) && (has_number || used == 23))
            return false;
        if (isalpha(at))
            letters[used++] = (char)tolower(at);
        else
            has_number = has_number || isdigit(at);
    }
    letters[used] = '\0';
    return used > 0;
}

static bool is_named(const bp_trace_annotation *annotation, const char *step_name)
{
    char letters[24];
    return letters_of(annotation->name, letters) && strcmp(letters, step_name) == 0;
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

/* From each beginning to the next one; the last step ends where its range does, if the trace has that. */
static size_t cut_at_beginnings(const bp_step_finder *f, const char *name, size_t *cuts)
{
    const bp_trace *trace = f->trace;
    size_t count = 0, end = f->count;
    for (size_t i = 0; i < trace->annotation_count; i++) {
        const bp_trace_annotation *a = &trace->annotations[i];
        if (!is_named(a, name))
            continue;
        size_t at = allocation_at(f, a->event);
        if (a->is_end)
            end = at;
        else if (count == 0 || at >= cuts[count - 1]) {
            cuts[count++] = at;
            end = f->count;
        }
    }
    if (count > 0)
        cuts[count++] = end;
    return count;
}

/* ---- optimizers ---------------------------------------------------------------------------------------------------- */

/* The rise of live bytes above those before the first of the allocations [from, to). */
static uint64_t rise(const bp_step_finder *f, size_t from, size_t to)
{
    uint64_t most = 0;
    for (size_t i = from; i < to; i++) {
        uint64_t after = f->live[i] + bp_step_round(f->made[i].bytes);
        most = after > f->live[from] && after - f->live[from] > most ? after - f->live[from] : most;
    }
    return most;
}

/* A step ends behind its optimizers. A program may have several, or one for each layer inside backward: only where live
 * bytes then rise by an eighth of what they ever rise by, a forward pass follows. */
static size_t cut_behind_optimizers(const bp_step_finder *f, size_t *cuts)
{
    const bp_trace *trace = f->trace;
    uint64_t least = UINT64_MAX;
    size_t count = 0, behind = SIZE_MAX;
    for (size_t i = 0; i <= f->count; i++)
        least = f->live[i] < least ? f->live[i] : least;
    const uint64_t forward = (f->steps->peak_bytes - least) / 8;
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
    *count = 0;
    for (size_t i = 0; i < sizeof step_names / sizeof *step_names && *count == 0; i++)
        *count = cut_at_beginnings(f, step_names[i], cuts);
    if (*count == 0) {
        *count = cut_behind_optimizers(f, cuts);
        if (*count > 0)
            BP_TRY(add_first(f, cuts, count));
    }
    return BP_OK;
}
