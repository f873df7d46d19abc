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

enum { GRAM = 12, RARE = 64, MOST_CANDIDATES = 64, MOST_DIFFERENCES = 2048, NEIGHBOURS = 8, AROUND = 8 };

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

/* Two sequences, and the furthest reaching paths of Myers' algorithm ("An O(ND) Difference Algorithm", 1986):
 * reached[d][k] is how far d insertions and deletions lead in `a` on the diagonal k - d, which is the place in `a` minus
 * that in `b`. */
typedef struct comparison {
    const uint64_t *a, *b;
    size_t a_count, b_count;
    uint32_t *reached[MOST_DIFFERENCES + 1];
    size_t differences, most; /* found; more than `most` are not looked for */
} comparison;

/* True if the path to diagonal k of d differences comes from the diagonal above, by skipping an element of `b`. */
static bool skips_b(const comparison *c, size_t d, size_t k)
{
    const uint32_t *before = c->reached[d - 1];
    return k == 0 || (k < 2 * d && before[k - 2] < before[k]);
}

/* Fills `reached` until the ends of both are reached. False: more differences, or no memory. */
static bool compare_steps(comparison *c)
{
    for (size_t d = 0; d <= c->most; d++) {
        uint32_t *now = c->reached[d] = malloc((2 * d + 1) * sizeof *now);
        c->differences = d;
        for (size_t k = 0; now != NULL && k <= 2 * d; k += 2) {
            size_t x = d == 0 ? 0 : skips_b(c, d, k) ? c->reached[d - 1][k] : c->reached[d - 1][k - 2] + 1u;
            while (x < c->a_count && x + d - k < c->b_count && c->a[x] == c->b[x + d - k])
                x++;
            now[k] = (uint32_t)x;
            if (x >= c->a_count && x + d - k >= c->b_count)
                return true;
        }
        if (now == NULL)
            return false;
    }
    return false;
}

/* Walks the path back from the ends. Elements of `a` get the places in `b` that they match, plus `begin`. Returns how
 * many. */
static size_t walk_back(const comparison *c, uint32_t begin, uint32_t *orders)
{
    size_t x = c->a_count, y = c->b_count, matched = 0;
    for (size_t d = c->differences;; d--) {
        size_t k = x + d - y, x_before = 0, y_before = 0;
        if (d > 0) {
            size_t from = skips_b(c, d, k) ? k : k - 2;
            x_before = c->reached[d - 1][from];
            y_before = x_before + (d - 1) - from;
        }
        for (; x > x_before && y > y_before; matched++)
            orders[--x] = begin + (uint32_t)--y;
        if (d == 0)
            return matched;
        x = x_before;
        y = y_before;
    }
}

/* Aligns a step with a reference step: orders of its allocations in the reference. Returns how many have one. */
static size_t align(const period_finder *f, const bp_trace_step *step, const bp_trace_step *reference, uint32_t *orders)
{
    const uint64_t *a = f->tokens + (step->first - f->allocations->live_at_start);
    const uint64_t *b = f->tokens + (reference->first - f->allocations->live_at_start);
    size_t shorter = step->count < reference->count ? step->count : reference->count, begin = 0, end = 0, matched = 0;
    for (size_t i = 0; i < step->count; i++)
        orders[i] = BP_TRACE_NONE;
    for (; begin < shorter && a[begin] == b[begin]; begin++)
        orders[begin] = (uint32_t)begin;
    for (; end < shorter - begin && a[step->count - 1 - end] == b[reference->count - 1 - end]; end++)
        orders[step->count - 1 - end] = (uint32_t)(reference->count - 1 - end);
    comparison *c = calloc(1, sizeof *c); /* without it, what is between is not aligned */
    if (c != NULL) {
        c->a = a + begin;
        c->b = b + begin;
        c->a_count = step->count - begin - end;
        c->b_count = reference->count - begin - end;
        c->most = (step->count + reference->count) / 8; /* steps of a kind have less than a ninth */
        c->most = c->most < MOST_DIFFERENCES ? c->most : MOST_DIFFERENCES;
        if (compare_steps(c))
            matched = walk_back(c, (uint32_t)begin, orders + begin);
        for (size_t d = 0; d <= c->differences; d++)
            free(c->reached[d]);
        free(c);
    }
    return begin + end + matched;
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

static void measure_step(const period_finder *f, const uint32_t *ends, const uint64_t *live, bp_trace_step *step)
{
    const bp_allocation *all = f->allocations->all;
    size_t next = step->first - f->allocations->live_at_start;
    uint64_t bytes = live[next];
    step->begin_bytes = step->peak_bytes = bytes;
    step->peak_event = step->begin;
    for (uint32_t event = step->begin; event < step->end; event++) {
        if (ends[event] != BP_TRACE_NONE && event > step->begin) /* live[next] is without it */
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

/* True if one of the steps near this one is like it. */
static bool has_like(const period_finder *f, const bp_trace_step *steps, size_t count, size_t step, uint32_t *orders)
{
    size_t first = step > NEIGHBOURS ? step - NEIGHBOURS : 0;
    size_t last = count - step > NEIGHBOURS ? step + NEIGHBOURS : count - 1;
    for (size_t i = first; i <= last; i++) {
        if (i != step && is_alike(f, &steps[step], &steps[i], orders))
            return true;
    }
    return false;
}

/* Steps between the cuts. The first and the last cut are guesses, since the trace may begin with other steps (warm-up)
 * and begin and end within a step: steps at both ends count if there is one like them. Kept, if more than `*most` steps
 * have one like them. `cuts`: `count` allocations, increasing. */
static bp_status make_steps(period_finder *f, const size_t *cuts, size_t count, const uint32_t *ends,
                            const uint64_t *live, size_t *most)
{
    uint32_t *orders = malloc((f->count + 1) * sizeof *orders);
    bp_trace_step *steps = calloc(count, sizeof *steps);
    size_t made = 0, alike = 0;
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
        measure_step(f, ends, live, &steps[made++]);
    }
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
    if (alike <= *most) {
        free(steps);
        return BP_OK;
    }
    *most = alike;
    free(f->steps->steps);
    f->steps->steps = steps;
    f->steps->count = made;
    f->steps->repeats = true;
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

/* Cuts the trace in three ways, and takes that which has the most steps with one like them, the first of these: steps of one length between
 * moments with few live bytes; those that end with the trace; steps of different lengths at the chain of a gram.
 * `places`, `scratch`: room for two more than there are allocations. */
static bp_status cut_steps(period_finder *f, size_t length, size_t *places, size_t *scratch)
{
    uint32_t *ends = NULL;
    size_t most = 0;
    uint64_t *live = malloc((f->count + 1) * sizeof *live);
    if (live == NULL)
        return bp_fail_memory(f->count * sizeof *live);
    bp_status status = bp_allocations_ends(f->trace, f->allocations, &ends);
    if (status == BP_OK) {
        sweep(f, ends, live);
        const size_t lasts[] = {quietest(live, f->count - length + 1, f->count + 1), f->count};
        for (size_t i = 0; i < 2 && status == BP_OK; i++) {
            size_t count = cut_regularly(f, lasts[i], length, places);
            status = make_steps(f, places, count, ends, live, &most);
        }
        size_t links = status == BP_OK ? longest_chain(f, length, places, scratch) : 0;
        if (links > 1) {
            size_t count = cut_at_chain(f, live, length, places, links);
            status = make_steps(f, places, count, ends, live, &most);
        }
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
        measure_step(f, ends, live, step);
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
    size_t *places = malloc((f->count + 2) * sizeof *places), *scratch = malloc((f->count + 2) * sizeof *scratch);
    bp_status status = BP_OK;
    if (distances == NULL || places == NULL || scratch == NULL)
        status = bp_fail_memory(f->count * (sizeof *distances + 2 * sizeof *places));
    if (status == BP_OK) {
        period_vote votes[MOST_CANDIDATES];
        hash_grams(f);
        count_grams(f);
        size_t length = step_length(f, votes, vote(f, distances, votes));
        if (length > 0)
            status = cut_steps(f, length, places, scratch);
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
