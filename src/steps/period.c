/* Finds the step that repeats in a trace.
 *
 * Allocations are compared by size and stream, in order. A gram (GRAM consecutive allocations) that occurs rarely is at
 * one place of the step, while those of layers occur once for each layer; so the distances of rare grams vote for the
 * length of the step. The length is confirmed by comparing the trace with itself, shifted. The occurrences of the gram
 * that repeats most often at about this distance cut the trace into steps, and each cut moves to the moment nearby when
 * the fewest bytes are live. */
#include <stdlib.h>
#include <string.h>

#include "core/fail.h"
#include "steps/steps.h"

enum { GRAM = 12, RARE = 64, MOST_CANDIDATES = 64, LOOK_AHEAD = 512, AGREE = 4 };

typedef struct period_finder {
    const bp_trace *trace;
    const bp_allocations *allocations;
    const bp_allocation *made; /* those that the trace has the begin of */
    size_t count;
    uint64_t *tokens; /* by allocation: size and stream */
    uint64_t *grams;  /* by allocation: it and those before it */
    uint32_t *places; /* hash table of grams: the last allocation; capacity is a power of two */
    uint32_t *occurrences;
    size_t capacity;
    bp_steps *steps;
} period_finder;

typedef struct period_vote {
    size_t distance, votes;
} period_vote;

/* ---- grams --------------------------------------------------------------------------------------------------------- */

static uint64_t mix(uint64_t value)
{
    value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9u;
    value = (value ^ value >> 27) * 0x94d049bb133111ebu;
    return value ^ value >> 31;
}

/* A rolling hash: each token counts with the power of its distance. */
static void hash_grams(period_finder *f)
{
    const uint64_t base = 0x9ddfea08eb382d69u;
    uint64_t power = 1, hash = 0;
    for (size_t i = 0; i < GRAM; i++)
        power *= base;
    for (size_t i = 0; i < f->count; i++) {
        f->tokens[i] = mix(bp_step_round(f->made[i].bytes) ^ mix(f->made[i].stream + 1u));
        hash = hash * base + f->tokens[i] - (i >= GRAM ? f->tokens[i - GRAM] * power : 0);
        f->grams[i] = mix(hash);
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
        if (kinds < MOST_CANDIDATES)
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
    const double regular = 0.8, tolerance = 0.002;
    size_t window = 0, length = 0;
    for (size_t i = 0; i < count; i++) {
        size_t distance = votes[i].distance;
        if (distance > window && distance <= f->count / 2 && agreement(f, distance, distance) >= regular)
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
    size_t most = 0;
    for (size_t i = 0; i < count; i++) {
        size_t near = 0, distance = votes[i].distance;
        for (size_t k = 0; k < count; k++) {
            size_t other = votes[k].distance;
            near += other >= distance - distance / 16 && other <= distance + distance / 16 ? votes[k].votes : 0;
        }
        if (near > most || (near == most && distance > length)) {
            most = near;
            length = distance;
        }
    }
    return length;
}

/* ---- alignment ----------------------------------------------------------------------------------------------------- */

/* Finds the next places in two sequences that agree for AGREE allocations (or to the ends), nearest first. */
static void resume(const uint64_t *a, size_t a_count, const uint64_t *b, size_t b_count, size_t *i, size_t *k)
{
    for (size_t sum = 1; sum <= LOOK_AHEAD; sum++) {
        for (size_t skip = 0; skip <= sum; skip++) {
            size_t x = *i + skip, y = *k + sum - skip, same = 0;
            while (same < AGREE && x + same < a_count && y + same < b_count && a[x + same] == b[y + same])
                same++;
            if (same == AGREE || (same > 0 && x + same == a_count && y + same == b_count)) {
                *i = x;
                *k = y;
                return;
            }
        }
    }
    *i += 1;
    *k += 1;
}

/* Aligns a step with a reference step: orders of its allocations in the reference. Returns how many have one. */
static size_t align(const period_finder *f, const bp_trace_step *step, const bp_trace_step *reference, uint32_t *orders)
{
    const uint64_t *a = f->tokens + (step->first - f->allocations->live_at_start);
    const uint64_t *b = f->tokens + (reference->first - f->allocations->live_at_start);
    size_t i = 0, k = 0, matched = 0;
    for (size_t x = 0; x < step->count; x++)
        orders[x] = BP_TRACE_NONE;
    while (i < step->count && k < reference->count) {
        if (a[i] == b[k]) {
            orders[i++] = (uint32_t)k++;
            matched++;
            continue;
        }
        resume(a, step->count, b, reference->count, &i, &k);
    }
    return matched;
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
    size_t most = 0, window = length < f->count ? length : f->count;
    for (size_t k = 0; k < 32; k++) {
        size_t at = f->count - 1 - k * window / 32, once = 0;
        if (at < GRAM - 1)
            continue;
        for (size_t i = f->count - window; i < f->count; i++)
            once += f->grams[i] == f->grams[at];
        size_t links = once == 1 ? chain(f, f->grams[at], at, length, scratch) : 0;
        if (links > most) {
            most = links;
            memcpy(places, scratch, links * sizeof *places);
        }
    }
    return most;
}

/* Between two cuts: the allocation before which the fewest bytes are live, and the first such. `live`: rounded bytes
 * before each allocation. */
static size_t quietest(const uint64_t *live, size_t from, size_t to)
{
    size_t best = from;
    for (size_t i = from; i < to; i++)
        best = live[i] < live[best] ? i : best;
    return best;
}

/* Live bytes before each allocation, and at the end (`live`), rounded. */
static void sweep(const period_finder *f, const uint32_t *ends, uint64_t *live)
{
    const bp_allocation *all = f->allocations->all;
    uint64_t bytes = 0;
    size_t next = 0;
    for (size_t i = 0; i < f->allocations->live_at_start; i++)
        bytes += bp_step_round(all[i].bytes);
    for (uint32_t event = 0; event < f->trace->event_count; event++) {
        if (ends[event] != BP_TRACE_NONE)
            bytes -= bp_step_round(all[ends[event]].bytes);
        if (next < f->count && f->made[next].begin == event) {
            live[next] = bytes;
            bytes += bp_step_round(f->made[next++].bytes);
        }
    }
    live[f->count] = bytes;
}

static void measure(const period_finder *f, const uint32_t *ends, const uint64_t *live, bp_trace_step *step)
{
    const bp_allocation *all = f->allocations->all;
    size_t next = step->first - f->allocations->live_at_start;
    uint64_t bytes = live[next];
    step->begin_bytes = step->peak_bytes = bytes;
    step->peak_event = step->begin;
    for (uint32_t event = step->begin; event < step->end; event++) {
        if (ends[event] != BP_TRACE_NONE)
            bytes -= bp_step_round(all[ends[event]].bytes);
        if (next < f->count && f->made[next].begin == event)
            bytes += bp_step_round(f->made[next++].bytes);
        if (bytes > step->peak_bytes) {
            step->peak_bytes = bytes;
            step->peak_event = event;
        }
    }
}

/* True if two steps are of one kind: nine of ten of the longer one's allocations agree. `orders`: scratch. */
static bool is_alike(const period_finder *f, const bp_trace_step *step, const bp_trace_step *reference,
                     uint32_t *orders)
{
    size_t longer = step->count > reference->count ? step->count : reference->count;
    return align(f, step, reference, orders) >= longer - longer / 10;
}

/* Steps between the cuts. The first and the last cut are guesses, since the trace may begin and end within a step: such
 * a step counts if it is like its neighbour. `cuts`: `count` allocations, increasing. */
static bp_status make_steps(period_finder *f, const size_t *cuts, size_t count, const uint32_t *ends,
                            const uint64_t *live)
{
    uint32_t *orders = malloc((f->count + 1) * sizeof *orders);
    bp_trace_step *steps = calloc(count, sizeof *steps);
    size_t made = 0;
    if (orders == NULL || steps == NULL) {
        free(orders);
        free(steps);
        return bp_fail_memory(f->count * sizeof *orders);
    }
    for (size_t i = 0; i + 1 < count; i++) {
        if (cuts[i] == cuts[i + 1])
            continue;
        steps[made] = (bp_trace_step){.first = f->allocations->live_at_start + cuts[i],
                                      .count = cuts[i + 1] - cuts[i],
                                      .begin = f->made[cuts[i]].begin,
                                      .end = cuts[i + 1] < f->count ? f->made[cuts[i + 1]].begin
                                                                    : (uint32_t)f->trace->event_count};
        measure(f, ends, live, &steps[made++]);
    }
    if (made > 1 && !is_alike(f, &steps[made - 1], &steps[made - 2], orders))
        made--;
    if (made > 1 && !is_alike(f, &steps[0], &steps[1], orders))
        memmove(steps, steps + 1, --made * sizeof *steps);
    free(orders);
    f->steps->steps = steps;
    f->steps->count = made;
    f->steps->repeats = made > 0;
    return BP_OK;
}

/* `places`: the chain, decreasing; its memory has room for two more. */
static bp_status cut(period_finder *f, size_t *places, size_t links, size_t length)
{
    uint32_t *ends = NULL;
    uint64_t *live = malloc((f->count + 1) * sizeof *live);
    if (live == NULL)
        return bp_fail_memory(f->count * sizeof *live);
    bp_status status = bp_allocations_ends(f->trace, f->allocations, &ends);
    if (status == BP_OK) {
        sweep(f, ends, live);
        size_t reach = length + length / 4, oldest = places[links - 1];
        size_t begin = quietest(live, oldest > reach ? oldest - reach : 0, oldest + 1);
        for (size_t i = 0, k = links - 1; i < k; i++, k--) {
            size_t swapped = places[i];
            places[i] = places[k];
            places[k] = swapped;
        }
        for (size_t i = 0; i + 1 < links; i++) /* each cut replaces the place before it */
            places[i] = quietest(live, places[i], places[i + 1]);
        places[links - 1] = quietest(live, places[links - 1], f->count + 1);
        memmove(places + 1, places, links * sizeof *places);
        places[0] = begin;
        status = make_steps(f, places, links + 1, ends, live);
    }
    free(live);
    free(ends);
    return status;
}

/* ---- kinds --------------------------------------------------------------------------------------------------------- */

/* From the last step back, the trace's last one at the end, because what is live then may end later: a step is of the
 * first kind whose reference has nine of ten of its allocations, else of a new kind. */
static bp_status sort_kinds(period_finder *f)
{
    bp_steps *s = f->steps;
    size_t longest = 0;
    for (size_t i = 0; i < s->count; i++)
        longest = s->steps[i].count > longest ? s->steps[i].count : longest;
    uint32_t *orders = malloc((longest + 1) * sizeof *orders);
    s->orders = malloc((f->allocations->count + 1) * sizeof *s->orders);
    if (orders == NULL || s->orders == NULL) {
        free(orders);
        return bp_fail_memory((f->allocations->count + longest) * sizeof *orders);
    }
    memset(s->orders, 0xff, (f->allocations->count + 1) * sizeof *s->orders);
    for (size_t left = s->count; left-- > 0;) {
        const size_t i = (left + s->count - 1) % s->count;
        bp_trace_step *step = &s->steps[i];
        bool is_known = false;
        for (uint32_t kind = 0; kind <= s->kind_count && !is_known; kind++) {
            if (kind == s->kind_count && kind < BP_STEP_MOST_KINDS)
                s->kinds[s->kind_count++] = (bp_step_kind){.reference = i, .allocations = step->count};
            else if (kind == s->kind_count)
                break;
            const bp_trace_step *reference = &s->steps[s->kinds[kind].reference];
            size_t matched = align(f, step, reference, orders);
            size_t longer = step->count > reference->count ? step->count : reference->count;
            is_known = matched >= longer - longer / 10;
            /* With as many kinds as there can be, other steps are of the one that is most alike. */
            if (is_known || (s->kind_count == BP_STEP_MOST_KINDS && matched > step->matched)) {
                step->kind = kind;
                step->matched = matched;
                memcpy(&s->orders[step->first], orders, step->count * sizeof *orders);
            }
        }
        s->kinds[step->kind].steps++;
        s->allocations += step->count;
        s->matched += step->matched;
    }
    free(orders);
    return BP_OK;
}

/* ---- all ----------------------------------------------------------------------------------------------------------- */

/* The whole trace as one step. */
static bp_status take_all(period_finder *f)
{
    uint32_t *ends = NULL;
    uint64_t *live = malloc((f->count + 1) * sizeof *live);
    bp_trace_step *step = calloc(1, sizeof *step);
    bp_status status = live == NULL || step == NULL ? bp_fail_memory(f->count * sizeof *live) : BP_OK;
    if (status == BP_OK)
        status = bp_allocations_ends(f->trace, f->allocations, &ends);
    if (status == BP_OK) {
        sweep(f, ends, live);
        *step = (bp_trace_step){.first = f->allocations->live_at_start,
                                .count = f->count,
                                .begin = f->made[0].begin,
                                .end = (uint32_t)f->trace->event_count};
        measure(f, ends, live, step);
        f->steps->steps = step;
        f->steps->count = 1;
        step = NULL;
    }
    free(step);
    free(live);
    free(ends);
    return status;
}

static bp_status find(period_finder *f)
{
    uint32_t *distances = malloc((f->count + 1) * sizeof *distances);
    size_t *places = malloc((f->count + 2) * sizeof *places), *scratch = malloc((f->count + 1) * sizeof *scratch);
    bp_status status = BP_OK;
    if (distances == NULL || places == NULL || scratch == NULL)
        status = bp_fail_memory(f->count * (sizeof *distances + 2 * sizeof *places));
    if (status == BP_OK) {
        period_vote votes[MOST_CANDIDATES];
        hash_grams(f);
        count_grams(f);
        size_t length = step_length(f, votes, vote(f, distances, votes));
        size_t links = length > 0 ? longest_chain(f, length, places, scratch) : 0;
        if (links > 1)
            status = cut(f, places, links, length);
    }
    free(distances);
    free(places);
    free(scratch);
    if (status == BP_OK && f->steps->count == 0 && f->count > 0)
        status = take_all(f);
    return status == BP_OK ? sort_kinds(f) : status;
}

bp_status bp_steps_init(const bp_trace *trace, const bp_allocations *allocations, bp_steps *steps)
{
    bp_steps found = {0};
    period_finder f = {.trace = trace,
                       .allocations = allocations,
                       .made = allocations->all + allocations->live_at_start,
                       .count = allocations->count - allocations->live_at_start,
                       .capacity = 1024,
                       .steps = &found};
    while (f.capacity < 2 * f.count)
        f.capacity *= 2;
    f.tokens = malloc((f.count + 1) * sizeof *f.tokens);
    f.grams = malloc((f.count + 1) * sizeof *f.grams);
    f.places = malloc(f.capacity * sizeof *f.places);
    f.occurrences = malloc(f.capacity * sizeof *f.occurrences);
    bp_status status = BP_OK;
    if (f.tokens == NULL || f.grams == NULL || f.places == NULL || f.occurrences == NULL)
        status = bp_fail_memory(f.capacity * 2 * sizeof *f.places);
    if (status == BP_OK)
        status = find(&f);
    free(f.tokens);
    free(f.grams);
    free(f.places);
    free(f.occurrences);
    if (status == BP_OK)
        *steps = found;
    else
        bp_steps_finish(&found);
    return status;
}

void bp_steps_finish(bp_steps *steps)
{
    free(steps->steps);
    free(steps->orders);
    *steps = (bp_steps){0};
}
