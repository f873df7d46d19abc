/* Depth-first search over canonical placements: those of the least sum of offsets. In such a placement every item rests on the floor
 * or on an item it conflicts with, and none could be moved whole into a gap below it. Items are placed in the order of their offsets
 * (the idea of canonical solutions: MiniMalloc, ASPLOS 2023), so that when one is placed at a height everything below is decided.
 *
 * At the lowest height at which anything may still begin, one section is chosen: the tightest, or the one with the fewest
 * candidates. Either one of its items begins there, or none does, and then all its candidates begin at the next height at which
 * something could support them. These cases exclude each other. A section in which what is left no longer fits above its floor ends a
 * branch; the parts that no item left joins in time are solved one by one.
 *
 * Items may be fixed: they begin where they do, supported or not, and everything else is as before. */
#include "packing/branching.h"

#include "core/fail.h"

bool bp_search_remember(bp_search *s, uint32_t item)
{
    bp_status status = bp_grow_array((void **)&s->arena, &s->arena_capacity, s->arena_used, sizeof *s->arena);
    if (status != BP_OK)
        bp_placing_stop(&s->placing, status);
    else
        s->arena[s->arena_used++] = item;
    return status == BP_OK;
}

typedef struct heights {
    uint64_t lowest;     /* at which an item may begin; UINT64_MAX: all are placed */
    uint64_t lowest_end; /* that an item could have if it were placed now */
} heights;

static heights find_heights(bp_search *s, bp_part of)
{
    heights h = {UINT64_MAX, UINT64_MAX};
    s->placing.work.spent += of.count;
    for (size_t i = 0; i < of.count; i++) {
        uint32_t item = s->arena[of.first + i];
        if (s->placing.placed[item])
            continue;
        h.lowest = s->placing.lowest[item] < h.lowest ? s->placing.lowest[item] : h.lowest;
        uint64_t end = s->placing.supported[item] + s->placing.p->sizes[item];
        if (end < h.lowest_end && !bp_is_fixed(&s->placing, item))
            h.lowest_end = end;
    }
    return h;
}

/* Raises what may begin at `height` but has no support there. False: that leaves no room. */
static bool raise_unsupported(bp_search *s, bp_part of, uint64_t height, bool *raised)
{
    *raised = false;
    for (size_t i = 0; i < of.count; i++) {
        uint32_t item = s->arena[of.first + i];
        if (s->placing.placed[item] || s->placing.lowest[item] != height || s->placing.supported[item] == height ||
            bp_is_fixed(&s->placing, item))
            continue;
        *raised = true;
        s->placing.stamps++;
        if (!bp_raise(&s->placing, item, bp_next_support(&s->placing, item)) ||
            !bp_check_sections_of(&s->placing, item, height))
            return false;
    }
    return true;
}

static bool is_candidate(const bp_search *s, uint32_t item, uint64_t height)
{
    return !s->placing.placed[item] && s->placing.lowest[item] == height;
}

/* Counts, for every section with candidates, how many. */
static void count_candidates(bp_search *s, bp_part of, uint64_t height)
{
    const bp_problem *p = s->placing.p;
    s->placing.stamps++;
    for (size_t i = 0; i < of.count; i++) {
        uint32_t item = s->arena[of.first + i];
        if (!is_candidate(s, item, height))
            continue;
        s->placing.work.spent += p->memberships.first[item + 1] - p->memberships.first[item];
        for (uint32_t m = p->memberships.first[item]; m < p->memberships.first[item + 1]; m++) {
            uint32_t section = p->memberships.entries[m];
            s->candidates[section] = s->placing.stamp[section] == s->placing.stamps ? s->candidates[section] + 1 : 1;
            s->placing.stamp[section] = s->placing.stamps;
        }
    }
}

static uint32_t pick_section(bp_search *s, bp_part of, uint64_t height)
{
    const bp_problem *p = s->placing.p;
    uint32_t best = 0, fewest = UINT32_MAX;
    uint64_t tightest = UINT64_MAX;
    count_candidates(s, of, height);
    for (size_t i = 0; i < of.count; i++) {
        uint32_t item = s->arena[of.first + i];
        if (!is_candidate(s, item, height))
            continue;
        for (uint32_t m = p->memberships.first[item]; m < p->memberships.first[item + 1]; m++) {
            uint32_t section = p->memberships.entries[m], count = s->candidates[section];
            uint64_t slack = s->placing.capacity - s->placing.floor_of[section] - s->placing.rest[section];
            bool better = s->pick == BP_PICK_TIGHTEST ? slack < tightest || (slack == tightest && count < fewest)
                                                      : count < fewest || (count == fewest && slack < tightest);
            if (better) {
                best = section;
                fewest = count;
                tightest = slack;
            }
        }
    }
    return best;
}

/* One that begins here and nowhere else; BP_NO_ITEM: there is none. */
static uint32_t fixed_candidate(const bp_search *s, bp_part of, uint64_t height)
{
    for (size_t i = 0; s->placing.fixed != NULL && i < of.count; i++) {
        uint32_t item = s->arena[of.first + i];
        if (bp_is_fixed(&s->placing, item) && is_candidate(s, item, height))
            return item;
    }
    return BP_NO_ITEM;
}

static uint32_t preferred_candidate(const bp_search *s, bp_part of, uint64_t height)
{
    uint32_t best = BP_NO_ITEM;
    for (size_t i = 0; i < of.count; i++) {
        uint32_t item = s->arena[of.first + i];
        if (is_candidate(s, item, height) && (best == BP_NO_ITEM || s->rank[item] < s->rank[best]))
            best = item;
    }
    return best;
}

/* Puts the candidates of one choice into the arena, preferred ones first. */
static bp_part branching_collect_candidates(bp_search *s, bp_part of, uint64_t height)
{
    const bp_problem *p = s->placing.p;
    bp_part candidates = {s->arena_used, 0};
    uint32_t only = fixed_candidate(s, of, height);
    if (only == BP_NO_ITEM && s->pick == BP_PICK_ITEM)
        only = preferred_candidate(s, of, height);
    if (only != BP_NO_ITEM) {
        candidates.count = bp_search_remember(s, only);
        return candidates;
    }
    uint32_t section = pick_section(s, of, height);
    for (uint32_t e = p->sections.first[section]; e < p->sections.first[section + 1]; e++) {
        uint32_t item = p->sections.entries[e];
        if (!is_candidate(s, item, height) || !bp_search_remember(s, item))
            continue;
        uint32_t *list = s->arena + candidates.first;
        size_t at = candidates.count++;
        for (; at > 0 && s->rank[list[at - 1]] > s->rank[item]; at--)
            list[at] = list[at - 1];
        list[at] = item;
    }
    return candidates;
}

/* None of the candidates begins at `height`. */
static bool pass_over(bp_search *s, bp_part candidates, uint64_t height)
{
    for (size_t i = 0; i < candidates.count; i++) {
        if (!bp_raise(&s->placing, s->arena[candidates.first + i], height + 1))
            return false;
    }
    for (size_t i = 0; i < candidates.count; i++) {
        uint32_t item = s->arena[candidates.first + i];
        if (!bp_raise(&s->placing, item, bp_next_support(&s->placing, item)))
            return false;
    }
    s->placing.stamps++;
    for (size_t i = 0; i < candidates.count; i++) {
        if (!bp_check_sections_of(&s->placing, s->arena[candidates.first + i], height))
            return false;
    }
    return true;
}

/* Places all items of the part. On failure everything is as before, unless the search has stopped. */
static bool solve(bp_search *s, bp_part of)
{
    size_t mark = s->placing.trail_count;
    for (bool fits = true; fits && !s->placing.stopped;) {
        if (bp_work_is_over(&s->placing.work)) {
            bp_placing_stop(&s->placing, BP_OK);
            break;
        }
        heights h = find_heights(s, of);
        if (h.lowest == UINT64_MAX)
            return true;
        if (h.lowest_end <= h.lowest)
            break; /* it would fit into the gap that was left below */
        bool raised;
        fits = raise_unsupported(s, of, h.lowest, &raised);
        if (!fits || raised)
            continue;
        bp_part candidates = branching_collect_candidates(s, of, h.lowest);
        for (size_t i = 0; i < candidates.count && !s->placing.stopped; i++) {
            size_t before = s->placing.trail_count;
            if (bp_place(&s->placing, s->arena[candidates.first + i], h.lowest) && bp_search_parts(s, of))
                return true;
            bp_placing_undo(&s->placing, before);
        }
        fits = pass_over(s, candidates, h.lowest);
        s->arena_used = candidates.first;
    }
    bp_placing_undo(&s->placing, mark);
    return false;
}

bool bp_search_parts(bp_search *s, bp_part of)
{
    const bp_lists *m = &s->placing.p->memberships;
    size_t first = s->arena_used;
    s->placing.work.spent += of.count;
    for (size_t i = 0; i < of.count; i++) {
        uint32_t item = s->arena[of.first + i];
        if (!s->placing.placed[item] && !bp_search_remember(s, item))
            return false;
    }
    size_t end = s->arena_used;
    bool solved = true;
    for (size_t from = first; solved && from < end;) {
        uint32_t reach = 0;
        size_t to = from;
        do {
            uint32_t last = m->entries[m->first[s->arena[to] + 1] - 1];
            reach = last > reach ? last : reach;
            to++;
        } while (to < end && m->entries[m->first[s->arena[to]]] <= reach);
        solved = solve(s, (bp_part){from, to - from});
        from = to;
    }
    s->arena_used = first;
    return solved;
}
