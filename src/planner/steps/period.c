/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the step that repeats in a trace without marks.
 *
 * Allocations are compared by size and stream, in order. A gram (GRAM consecutive allocations) that occurs rarely is at
 * one place of the step, while those of layers occur once for each layer; so the distances of rare grams vote for the
 * length of the step. The length is confirmed by comparing the trace with itself, shifted. The occurrences of the gram
 * that repeats most often at about this distance cut the trace into steps, and each cut moves to the moment nearby when
 * the fewest bytes are live. Layers, microbatches and the loop of an optimizer repeat as well: is_training decides. */
#include <bucketpool/core/fail.h>

#include <stdlib.h>
#include <string.h>

#include "core/hash.h"
#include "planner/steps/step_finder.h"

enum { GRAM = 12, RARE = 64, MAX_CANDIDATES = 64, NEIGHBOURS = 8, AROUND = 8, MAX_LENGTHS = 8 };
#define REGULAR 0.8 /* the share of allocations that agree, of regular steps */

typedef struct period_finder {
    const bp_step_finder *base;
    const uint64_t *tokens;
    size_t count;
    uint64_t *grams;  /* by allocation: it and those before it */
    uint32_t *places; /* hash table of grams: the last allocation; capacity is a power of two */
    uint32_t *occurrences;
    size_t capacity;
} period_finder;

typedef struct period_vote {
    size_t distance, votes;
} period_vote;

/* ---- grams --------------------------------------------------------------------------------------------------------- */

/* A rolling hash, in which each token counts with the power of its distance, hashed with the key of the process. */
static void hash_grams(period_finder *f)
{
    const uint64_t base = 0x9ddfea08eb382d69u;
    uint64_t power = 1, hash = 0;
    for (size_t i = 0; i < GRAM; i++)
        power *= base;
    for (size_t i = 0; i < f->count; i++) {
        hash = hash * base + f->tokens[i] - (i >= GRAM ? f->tokens[i - GRAM] * power : 0);
        f->grams[i] = bp_hash_number(hash);
    }
}

static size_t gram_slot(const period_finder *f, size_t at)
{
    size_t slot = f->grams[at] & (f->capacity - 1);
    while (f->places[slot] != BP_TRACE_NONE && f->grams[f->places[slot]] != f->grams[at])
        slot = (slot + 1) & (f->capacity - 1);
    return slot;
}

static void count_grams(period_finder *f)
{
    memset(f->places, 0xff, f->capacity * sizeof *f->places);
    memset(f->occurrences, 0, f->capacity * sizeof *f->occurrences);
    for (size_t i = GRAM - 1; i < f->count; i++) {
        size_t slot = gram_slot(f, i);
        f->places[slot] = (uint32_t)i;
        f->occurrences[slot]++;
    }
}

/* ---- the length of the step ---------------------------------------------------------------------------------------- */

static int by_votes(const void *left, const void *right)
{
    const period_vote *a = left, *b = right;
    if (a->votes != b->votes)
        return a->votes > b->votes ? -1 : 1;
    return (a->distance > b->distance) - (a->distance < b->distance);
}

static int by_distance(const void *left, const void *right)
{
    const uint32_t *a = left, *b = right;
    return (*a > *b) - (*a < *b);
}

/* The distances between occurrences of rare grams, most frequent first. `distances` has room for `count`. */
static size_t vote(period_finder *f, uint32_t *distances, period_vote *votes)
{
    size_t found = 0, kinds = 0;
    uint32_t rare = UINT32_MAX;
    for (size_t slot = 0; slot < f->capacity; slot++)
        rare = f->occurrences[slot] > 1 && f->occurrences[slot] < rare ? f->occurrences[slot] : rare;
    rare = rare < RARE ? RARE : rare;
    memset(f->places, 0xff, f->capacity * sizeof *f->places);
    /* Slots are found again in the order in which they were made: a gram's first occurrence fixes its slot. */
    for (size_t i = GRAM - 1; i < f->count; i++) {
        size_t slot = gram_slot(f, i);
        if (f->places[slot] != BP_TRACE_NONE && f->occurrences[slot] <= rare)
            distances[found++] = (uint32_t)(i - f->places[slot]);
        f->places[slot] = (uint32_t)i;
    }
    qsort(distances, found, sizeof *distances, by_distance);
    for (size_t i = 0, end = 0; i < found; i = end) {
        while (end < found && distances[end] == distances[i])
            end++;
        const period_vote next = {.distance = distances[i], .votes = end - i};
        if (kinds < MAX_CANDIDATES)
            votes[kinds++] = next;
        else if (next.votes > votes[kinds - 1].votes)
            votes[kinds - 1] = next;
        for (size_t k = kinds - 1; k > 0 && by_votes(&votes[k], &votes[k - 1]) < 0; k--) {
            const period_vote moved = votes[k];
            votes[k] = votes[k - 1];
            votes[k - 1] = moved;
        }
    }
    return kinds;
}

/* The share of the last `window` allocations that are as those `distance` before them. */
static double agreement(const period_finder *f, size_t distance, size_t window)
{
    size_t same = 0, first = f->count - window < distance ? distance : f->count - window;
    for (size_t i = first; i < f->count; i++)
        same += f->tokens[i] == f->tokens[i - distance];
    return first < f->count ? (double)same / (double)(f->count - first) : 0;
}

/* The length of the step in allocations; 0: none. Regular steps have the smallest distance at which the end of the trace
 * agrees with itself. All are compared over one window, of the longest distance that agrees: otherwise a model of many
 * equal layers would agree at the distance of a layer. */
static size_t step_length(const period_finder *f, const period_vote *votes, size_t count)
{
    const double tolerance = 0.002;
    size_t window = 0, length = 0;
    for (size_t i = 0; i < count; i++) {
        size_t distance = votes[i].distance;
        if (distance > window && distance <= f->count / 2 && agreement(f, distance, distance) >= REGULAR)
            window = distance;
    }
    double best = 0;
    for (size_t i = 0; i < count && window > 0; i++) {
        double share = votes[i].distance <= window ? agreement(f, votes[i].distance, window) : 0;
        best = share > best ? share : best;
    }
    for (size_t i = 0; i < count && window > 0; i++) {
        size_t distance = votes[i].distance;
        bool is_shorter = length == 0 || distance < length;
        if (is_shorter && distance <= window && agreement(f, distance, window) >= best - tolerance)
            length = distance;
    }
    if (length > 0 || count == 0)
        return length;
    /* Irregular steps: the distances near which there are the most votes. */
    size_t max = 0;
    for (size_t i = 0; i < count; i++) {
        size_t near = 0, distance = votes[i].distance;
        for (size_t k = 0; k < count; k++) {
            size_t other = votes[k].distance;
            near += other >= distance - distance / 16 && other <= distance + distance / 16 ? votes[k].votes : 0;
        }
        if (near > max || (near == max && distance > length)) {
            max = near;
            length = distance;
        }
    }
    return length;
}

/* The smallest distance above this one at which the end of the trace agrees with itself: a shorter one was a layer or a
 * microbatch. 0: none. */
static size_t longer_length(const period_finder *f, const period_vote *votes, size_t count, size_t length)
{
    size_t longer = 0;
    for (size_t i = 0; i < count; i++) {
        size_t distance = votes[i].distance;
        bool is_next = distance > length && distance <= f->count / 2 && (longer == 0 || distance < longer);
        if (is_next && agreement(f, distance, distance) >= REGULAR)
            longer = distance;
    }
    return longer;
}

/* ---- cuts ---------------------------------------------------------------------------------------------------------- */

/* The chain of a gram: its occurrences, from the last one back, at distances of half a step to one and a half. */
static size_t chain(const period_finder *f, uint64_t gram, size_t last, size_t length, size_t *places)
{
    size_t links = 0;
    for (size_t at = last + 1; at-- > GRAM - 1;) {
        if (f->grams[at] != gram || (links > 0 && places[links - 1] - at < (length + 1) / 2))
            continue;
        if (links > 0 && places[links - 1] - at > length + length / 2)
            break;
        places[links++] = at;
    }
    return links;
}

/* The longest chain of grams that occur once in the last step, of 32 places in it. In decreasing order. */
static size_t longest_chain(const period_finder *f, size_t length, size_t *places, size_t *scratch)
{
    size_t max = 0, window = length < f->count ? length : f->count;
    for (size_t k = 0; k < 32; k++) {
        size_t at = f->count - 1 - k * window / 32, once = 0;
        if (at < GRAM - 1)
            continue;
        for (size_t i = f->count - window; i < f->count; i++)
            once += f->grams[i] == f->grams[at];
        size_t links = once == 1 ? chain(f, f->grams[at], at, length, scratch) : 0;
        if (links > max) {
            max = links;
            memcpy(places, scratch, links * sizeof *places);
        }
    }
    return max;
}

/* The allocation in [from, to) before which the fewest bytes are live; the first such. `live`: rounded bytes before each
 * allocation. */
static size_t quietest(const uint64_t *live, size_t from, size_t to)
{
    size_t best = from;
    for (size_t i = from; i < to; i++)
        best = live[i] < live[best] ? i : best;
    return best;
}

/* True if the allocations around two cuts are the same, as far as the trace goes. */
static bool is_same_place(const period_finder *f, size_t a, size_t b)
{
    size_t ahead = f->count - (a < b ? b : a);
    ahead = ahead < AROUND ? ahead : AROUND;
    return a >= AROUND && b >= AROUND &&
           memcmp(&f->tokens[a - AROUND], &f->tokens[b - AROUND], (AROUND + ahead) * sizeof *f->tokens) == 0;
}

/* As quietest, but only at the same place of the step as another cut, if there is one. */
static size_t quietest_like(const period_finder *f, const uint64_t *live, size_t from, size_t to, size_t model)
{
    size_t best = to;
    for (size_t i = from; i < to; i++) {
        if ((best == to || live[i] < live[best]) && is_same_place(f, i, model))
            best = i;
    }
    return best < to ? best : quietest(live, from, to);
}

/* True if one of the steps near this one is like it. */
static bool has_like(const period_finder *f, const bp_trace_step *steps, size_t count, size_t step, uint32_t *orders)
{
    size_t first = step > NEIGHBOURS ? step - NEIGHBOURS : 0;
    size_t last = count - step > NEIGHBOURS ? step + NEIGHBOURS : count - 1;
    for (size_t i = first; i <= last; i++) {
        if (i != step && bp_steps_are_alike(f->base, &steps[step], &steps[i], orders))
            return true;
    }
    return false;
}

static size_t count_of_phase(const bp_step_finder *base, bp_trace_phase phase, size_t first, size_t end)
{
    size_t count = 0;
    for (size_t i = first; i < end; i++)
        count += bp_allocation_phase(&base->allocations->all[i], base->places) == phase;
    return count;
}

/* True if three of four steps have what the frames say of a training: a backward pass, and the optimizer, unless it allocates nowhere
 * behind the beginning of the first step. Without frames: true. */
static bool has_phases(const bp_step_finder *base, const bp_trace_step *steps, size_t count)
{
    bool optimizes = count_of_phase(base, BP_TRACE_PHASE_OPTIMIZER, steps[0].first, base->allocations->count) > 0;
    size_t passes = 0;
    const bool have_frames = base->places->have_python || base->places->have_native;
    for (size_t i = 0; i < count && have_frames; i++) {
        const size_t first = steps[i].first, end = first + steps[i].count;
        passes += count_of_phase(base, BP_TRACE_PHASE_BACKWARD, first, end) > 0 &&
                  (!optimizes || count_of_phase(base, BP_TRACE_PHASE_OPTIMIZER, first, end) > 0);
    }
    return !have_frames || passes >= count - count / 4;
}

static int by_bytes_of_begin(const void *left, const void *right)
{
    const uint64_t *a = left, *b = right;
    return (*a > *b) - (*a < *b);
}

/* True if the live bytes between steps are lower again and again, but not mostly: then gradients stay between microbatches, and go
 * with the step. The first step may have made the optimizer's state. `begins`: scratch. */
static bool keeps_gradients(const bp_trace_step *steps, size_t count, uint64_t rise, uint64_t *begins)
{
    size_t lower = 0;
    for (size_t i = 1; i < count; i++)
        begins[i - 1] = steps[i].begin_bytes;
    if (count < 4)
        return false;
    qsort(begins, count - 1, sizeof *begins, by_bytes_of_begin);
    const uint64_t median = begins[(count - 1) / 2];
    for (size_t i = 2; i < count; i++)
        lower += steps[i].begin_bytes + rise / 64 < median;
    return lower > 0 && lower < (count - 1) / 2;
}

/* True if the steps are training steps, and not layers, microbatches or the optimizer's loop:
 *  - less than a step is behind them, and before them are at most WARM_UP steps, and what stays live;
 *  - in three of four of them live bytes rise and fall by half of their whole range, as in forward and backward;
 *  - backward and the optimizer are in them, by their frames. */
static bool is_training(const period_finder *f, const bp_trace_step *steps, size_t count)
{
    enum { WARM_UP = 4 };
    const bp_step_finder *base = f->base;
    const bp_trace_step *last = &steps[count - 1];
    const size_t early = base->allocations->live_at_start, behind = last->first + last->count - early;
    size_t longest = 0, before = 0, passes = 0;
    uint64_t floor = base->live[behind];
    for (size_t i = 0; i < count; i++) {
        longest = steps[i].count > longest ? steps[i].count : longest;
        floor = steps[i].begin_bytes < floor ? steps[i].begin_bytes : floor;
    }
    for (size_t i = early; i < steps[0].first; i++)
        before += base->allocations->all[i].end < last->end;
    if (f->count - behind >= longest || before > WARM_UP * longest || !has_phases(base, steps, count))
        return false;
    const uint64_t half = (base->steps->peak_bytes - floor) / 2;
    for (size_t i = 0; i < count; i++) {
        uint64_t after = i + 1 < count ? steps[i + 1].begin_bytes : base->live[behind];
        passes += steps[i].peak_bytes - steps[i].begin_bytes >= half && steps[i].peak_bytes >= after + half;
    }
    uint64_t *begins = malloc(count * sizeof *begins);
    bool keeps = begins != NULL && keeps_gradients(steps, count, 2 * half, begins);
    free(begins);
    return half > 0 && passes >= count - count / 4 && !keeps;
}

/* Steps between the cuts. The first and the last cut are guesses, since the trace may begin with other steps (warm-up)
 * and begin and end within a step: steps at both ends count if there is one like them. Kept, if they are training steps and more than
 * `*most` of them have one like them. `cuts`: `count` allocations, increasing. */
static bp_status make_steps(const period_finder *f, const size_t *cuts, size_t count, size_t *max)
{
    uint32_t *orders = malloc((f->count + 1) * sizeof *orders);
    bp_trace_step *steps = calloc(count, sizeof *steps);
    if (orders == NULL || steps == NULL) {
        free(orders);
        free(steps);
        return bp_fail_memory(f->count * sizeof *orders);
    }
    size_t made = bp_steps_between(f->base, cuts, count, steps), alike = 0;
    while (made > 1 && !has_like(f, steps, made, made - 1, orders))
        made--;
    for (size_t i = made < 2 ? made : 2; i-- > 0 && made > 1;) {
        if (!has_like(f, steps, made, i, orders)) {
            made -= i + 1;
            memmove(steps, steps + i + 1, made * sizeof *steps);
            i = made < 2 ? made : 2;
        }
    }
    for (size_t i = 0; i < made && made > 1; i++)
        alike += has_like(f, steps, made, i, orders);
    free(orders);
    if (alike <= *max || !is_training(f, steps, made)) {
        free(steps);
        return BP_OK;
    }
    *max = alike;
    free(f->base->steps->steps);
    f->base->steps->steps = steps;
    f->base->steps->count = made;
    return BP_OK;
}

/* Steps of one length, back from `last`: as long as a step agrees with the one behind it. Cuts are increasing. */
static size_t cut_regularly(const period_finder *f, size_t last, size_t length, size_t *cuts)
{
    size_t count = 0, at = last;
    for (cuts[count++] = at; at >= length; cuts[count++] = at) {
        size_t same = 0;
        at -= length;
        for (size_t i = at; i < at + length && count > 1; i++)
            same += f->tokens[i] == f->tokens[i + length];
        if (count > 1 && same < length - length / 10)
            break;
    }
    for (size_t i = 0, k = count - 1; i < k; i++, k--) {
        size_t swapped = cuts[i];
        cuts[i] = cuts[k];
        cuts[k] = swapped;
    }
    return count;
}

/* Steps between the occurrences of a gram. `places`: the chain, decreasing; increasing cuts replace it. */
static size_t cut_at_chain(const period_finder *f, const uint64_t *live, size_t length, size_t *places, size_t links)
{
    const size_t reach = length + length / 4, oldest = places[links - 1];
    const size_t model = quietest(live, places[1], places[0]);
    const size_t begin = quietest_like(f, live, oldest > reach ? oldest - reach : 0, oldest + 1, model);
    for (size_t i = 0, k = links - 1; i < k; i++, k--) {
        size_t swapped = places[i];
        places[i] = places[k];
        places[k] = swapped;
    }
    for (size_t i = 0; i + 1 < links; i++) /* each cut replaces the place before it */
        places[i] = quietest_like(f, live, places[i], places[i + 1], model);
    places[links - 1] = quietest_like(f, live, places[links - 1], f->count + 1, model);
    memmove(places + 1, places, links * sizeof *places);
    places[0] = begin;
    return links + 1;
}

/* Cuts the trace in three ways, and takes the training steps of which most have one like them, the first of these: steps of one length
 * between moments with few live bytes; those that end with the trace; steps of different lengths at the chain of a gram.
 * `places`, `scratch`: room for two more than there are allocations. */
static bp_status cut_steps(const period_finder *f, size_t length, size_t *places, size_t *scratch)
{
    const uint64_t *live = f->base->live;
    const size_t lasts[] = {quietest(live, f->count - length + 1, f->count + 1), f->count};
    size_t max = 0;
    for (size_t i = 0; i < 2; i++) {
        size_t count = cut_regularly(f, lasts[i], length, places);
        BP_TRY(make_steps(f, places, count, &max));
    }
    size_t links = longest_chain(f, length, places, scratch);
    if (links > 1) {
        size_t count = cut_at_chain(f, live, length, places, links);
        BP_TRY(make_steps(f, places, count, &max));
    }
    return BP_OK;
}

static bp_status find_repeated(period_finder *f)
{
    uint32_t *distances = malloc((f->count + 1) * sizeof *distances);
    size_t *places = malloc((f->count + 2) * sizeof *places), *scratch = malloc((f->count + 2) * sizeof *scratch);
    bp_status status = BP_OK;
    if (distances == NULL || places == NULL || scratch == NULL)
        status = bp_fail_memory(f->count * (sizeof *distances + 2 * sizeof *places));
    if (status == BP_OK) {
        period_vote votes[MAX_CANDIDATES];
        hash_grams(f);
        count_grams(f);
        const size_t count = vote(f, distances, votes);
        size_t length = step_length(f, votes, count);
        for (size_t tries = 0; tries < MAX_LENGTHS && length > 0 && status == BP_OK; tries++) {
            status = cut_steps(f, length, places, scratch);
            length = f->base->steps->count > 0 ? 0 : longer_length(f, votes, count, length);
        }
    }
    free(distances);
    free(places);
    free(scratch);
    return status;
}

bp_status bp_steps_find_period(const bp_step_finder *base)
{
    period_finder f = {.base = base, .tokens = base->tokens, .count = base->count, .capacity = 1024};
    while (f.capacity < 2 * f.count)
        f.capacity *= 2;
    f.grams = malloc((f.count + 1) * sizeof *f.grams);
    f.places = malloc(f.capacity * sizeof *f.places);
    f.occurrences = malloc(f.capacity * sizeof *f.occurrences);
    bp_status status = f.grams == NULL || f.places == NULL || f.occurrences == NULL
                           ? bp_fail_memory(f.capacity * 2 * sizeof *f.places)
                           : find_repeated(&f);
    free(f.grams);
    free(f.places);
    free(f.occurrences);
    return status;
}
