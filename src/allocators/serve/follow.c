/* SPDX-License-Identifier: Apache-2.0 */
/* Follows a program through the plan: which item is this allocation?
 *
 * Mostly it is the expected one. Otherwise, in this order: the one behind an item that came early; an item of another kind of step that begins
 * like this one; the nearest unused item of the class around the expected one; the place in any kind where the last GRAM classes occur. */
#include "allocators/serve/server.h"

uint64_t serve_gram(const uint32_t classes[GRAM], uint32_t at)
{
    uint64_t hash = 0;
    for (uint32_t i = 0; i < GRAM; i++)
        hash = (hash ^ (classes[(at + i) % GRAM] + 1u)) * 0x9ddfea08eb382d69u;
    return hash ^ hash >> 32;
}

/* ---- steps --------------------------------------------------------------------------------------------------------- */

/* A step can be of this kind now: the first kind only before any other. */
static bool is_possible(const bp_step_server *s, uint32_t kind)
{
    return !s->kinds[kind].is_first || s->kinds[s->active].is_first;
}

/* The kind that most recorded steps have, without the first; that, if it is the only one. */
static uint32_t usual_kind(const bp_step_server *s)
{
    uint32_t best = NONE;
    for (uint32_t k = 0; k < s->kind_count; k++) {
        if (!s->kinds[k].is_first && (best == NONE || s->kinds[k].steps > s->kinds[best].steps))
            best = k;
    }
    return best == NONE ? s->active : best;
}

/* All items of the active kind may be taken again. */
static void begin_lap(bp_step_server *s)
{
    s->kinds[s->active].lap++;
    s->kinds[s->active].jump = 0;
    s->missed = 0;
}

static void enter_step(bp_step_server *s)
{
    s->statistics.steps += s->matched > 0;
    s->matched = 0;
    if (s->kinds[s->active].is_first)
        s->active = usual_kind(s);
    s->kinds[s->active].position = 0;
    begin_lap(s);
}

/* The next step begins at a mark, too. */
static bool begins_at_mark(const serve_kind *kind)
{
    return kind->is_first || (kind->mark_count > 0 && kind->marks[0] == 0);
}

void serve_mark(bp_step_server *s)
{
    serve_kind *kind = &s->kinds[s->active];
    uint32_t best = NONE, nearest = NONE;
    /* If nothing was found since the last mark, that was elsewhere: try the beginning. */
    const bool is_lost = s->has_asked && !s->has_matched && begins_at_mark(kind);
    s->has_asked = s->has_matched = false;
    s->statistics.marks++;
    for (uint32_t i = 0; i < kind->mark_count + begins_at_mark(kind); i++) {
        const uint32_t mark = i < kind->mark_count ? kind->marks[i] : kind->count;
        const uint32_t distance = mark < kind->position ? kind->position - mark : mark - kind->position;
        if (distance < nearest || best == NONE) {
            nearest = distance;
            best = mark;
        }
    }
    if (best == 0 || best == kind->count || is_lost) {
        enter_step(s);
    } else if (best != NONE) {
        kind->position = best;
        kind->jump = 0;
        s->missed = 0;
    }
}

void serve_skip_first(bp_step_server *s)
{
    if (s->kinds[s->active].is_first)
        enter_step(s);
}

/* ---- items --------------------------------------------------------------------------------------------------------- */

static bool is_at(const bp_step_server *s, uint32_t kind, uint32_t at, uint32_t class)
{
    const serve_kind *k = &s->kinds[kind];
    if (at >= k->count)
        return false;
    const serve_item *item = &s->items[k->first + at];
    return item->class == class && item->used != k->lap;
}

/* The unused item of the class that is nearest to the position, in the window; behind the end, those at the beginning, if no mark
 * is to come. NONE: none. Members that are used or too far behind are passed once in each lap. */
static uint32_t find_near(bp_step_server *s, uint32_t class)
{
    serve_kind *k = &s->kinds[s->active];
    serve_cursor *cursor = &k->cursors[class];
    const uint32_t end = k->members_begin[class + 1];
    const uint32_t low = k->position > WINDOW ? k->position - WINDOW : 0;
    uint32_t behind = NONE;
    if (cursor->lap != k->lap)
        *cursor = (serve_cursor){k->lap, k->members_begin[class]};
    while (cursor->at < end &&
           (k->members[cursor->at] < low || s->items[k->first + k->members[cursor->at]].used == k->lap))
        cursor->at++;
    for (uint32_t i = cursor->at; i < end && k->members[i] < k->position + WINDOW; i++) {
        const uint32_t at = k->members[i];
        if (s->items[k->first + at].used == k->lap)
            continue;
        if (at >= k->position)
            return behind == NONE || at - k->position <= k->position - behind ? at : behind;
        behind = at;
    }
    if (behind != NONE || k->position + WINDOW <= k->count || begins_at_mark(k))
        return behind;
    const uint32_t first = k->members_begin[class]; /* the next step, unmarked */
    if (first == end || k->members[first] >= k->position + WINDOW - k->count)
        return NONE;
    enter_step(s);
    return k->members[first];
}

/* The place of the last GRAM classes: the nearest one ahead in the active kind, else in another kind. An item, or NONE. */
static uint32_t find_gram(const bp_step_server *s)
{
    enum { LONGEST_CHAIN = 256 };
    uint32_t best = NONE, nearest = NONE;
    if (s->recent_count < GRAM)
        return NONE;
    const uint64_t gram = serve_gram(s->recent, s->recent_count % GRAM);
    uint32_t slot = (uint32_t)gram & (s->gram_slots - 1);
    while (s->gram_table[slot] != NONE && s->grams[s->gram_table[slot]] != gram)
        slot = (slot + 1) & (s->gram_slots - 1);
    uint32_t item = s->gram_table[slot];
    for (uint32_t i = 0; item != NONE && i < LONGEST_CHAIN; i++, item = s->next_equal[item]) {
        const serve_kind *active = &s->kinds[s->active];
        const uint32_t kind = serve_kind_of(s, item);
        const uint32_t at = item - s->kinds[kind].first;
        uint32_t distance = kind != s->active        ? active->count + s->item_count
                            : at >= active->position ? at - active->position
                                                     : at + active->count - active->position;
        if (is_possible(s, kind) && distance < nearest) {
            nearest = distance;
            best = item;
        }
    }
    return best;
}

/* The program is behind this item if it was expected. If not, it was perhaps inserted: the next allocation tells whether the program is there. */
static uint32_t take_item(bp_step_server *s, uint32_t at)
{
    serve_kind *k = &s->kinds[s->active];
    s->items[k->first + at].used = k->lap;
    if (at == k->position || (k->jump > 0 && at == k->jump)) {
        k->position = at + 1;
        k->jump = 0;
    } else if (at > k->position) {
        k->jump = at + 1;
    }
    while (k->position < k->count && s->items[k->first + k->position].used == k->lap)
        k->position++;
    s->matched++;
    s->has_matched = true;
    s->missed -= s->missed > 0;
    return k->first + at;
}

static uint32_t take_elsewhere(bp_step_server *s, uint32_t class)
{
    const uint32_t position = s->kinds[s->active].position, jump = s->kinds[s->active].jump;
    if (jump > 0 && is_at(s, s->active, jump, class) && s->missed < LOST)
        return take_item(s, jump);
    for (uint32_t k = 0; k < s->kind_count; k++) {
        if (k == s->active || s->prefixes[s->active][k] < position || !is_possible(s, k))
            continue;
        if (s->kinds[k].count > position && s->items[s->kinds[k].first + position].class == class) {
            s->active = k;
            s->kinds[k].position = position;
            begin_lap(s);
            s->statistics.kind_changes++;
            return take_item(s, position);
        }
    }
    const uint32_t near = s->missed < LOST ? find_near(s, class) : NONE;
    if (near != NONE)
        return take_item(s, near);
    if (position > 0 && (position == s->kinds[s->active].count || jump == s->kinds[s->active].count)) {
        enter_step(s); /* without a mark */
        return is_at(s, s->active, 0, class) ? take_item(s, 0) : take_elsewhere(s, class);
    }
    const uint32_t item = find_gram(s);
    if (item == NONE) {
        s->missed += s->missed < 2 * LOST;
        return NONE;
    }
    const uint32_t kind = serve_kind_of(s, item);
    s->statistics.kind_changes += kind != s->active;
    s->statistics.resyncs++;
    s->active = kind;
    s->kinds[kind].position = item - s->kinds[kind].first;
    begin_lap(s);
    return take_item(s, s->kinds[kind].position);
}

/* ---- streams ------------------------------------------------------------------------------------------------------- */

/* Items from the place of the program to the next one of the class; WINDOW: none is that near. */
static uint32_t distance_to(const bp_step_server *s, uint32_t class)
{
    const serve_kind *k = &s->kinds[s->active];
    const uint32_t end = k->members_begin[class + 1];
    uint32_t low = k->members_begin[class], high = end;
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        if (k->members[middle] < k->position)
            low = middle + 1;
        else
            high = middle;
    }
    return low < end && k->members[low] - k->position < WINDOW ? k->members[low] - k->position : WINDOW;
}

/* The caller's stream for a stream of the plan does not allocate as that does, or no longer. */
static bool is_doubtful(const bp_step_server *s, uint32_t stream)
{
    return s->streams[stream].missed >= LOST || s->streams[stream].last_step + 2 < s->statistics.steps;
}

/* Binds a stream to that of the plan which has such an item nearest ahead, or, if it is the stream's first one, alone has such items.
 * Streams of the plan that are bound already count if that is doubtful. */
static void bind(bp_step_server *s, uint64_t bytes, uint32_t stream)
{
    serve_stream *of = &s->streams[stream];
    uint32_t best = NONE, nearest = WINDOW, far = NONE, far_count = 0;
    for (uint32_t p = 0; p < s->plan_stream_count; p++) {
        const uint32_t class = serve_class_of(s, bytes, p), holder = s->holders[p];
        if (class == NONE || (holder != NONE && holder != stream && !is_doubtful(s, holder)))
            continue;
        const uint32_t distance = distance_to(s, class);
        if (distance < nearest) {
            nearest = distance;
            best = p;
        } else if (distance == WINDOW) {
            far = p;
            far_count++;
        }
    }
    if (best == NONE && of->bound == NONE && far_count == 1)
        best = far;
    if (best == NONE || best == of->bound)
        return;
    if (of->bound != NONE)
        s->holders[of->bound] = NONE;
    if (s->holders[best] != NONE)
        s->streams[s->holders[best]].bound = NONE;
    s->holders[best] = stream;
    of->bound = best;
    of->missed = 0;
}

uint32_t serve_follow(bp_step_server *s, uint64_t bytes, uint32_t stream, bp_step_outcome *outcome)
{
    serve_stream *of = &s->streams[stream];
    s->has_asked = true;
    if (of->bound == NONE || of->missed >= LOST)
        bind(s, bytes, stream);
    const uint32_t class = of->bound != NONE ? serve_class_of(s, bytes, of->bound) : NONE;
    const uint32_t position = s->kinds[s->active].position;
    uint32_t item = NONE;
    *outcome = class == NONE ? BP_STEP_UNKNOWN : BP_STEP_MISPLACED;
    if (class != NONE) {
        s->recent[s->recent_count % GRAM] = class;
        s->recent_count = s->recent_count == 2 * GRAM - 1 ? GRAM : s->recent_count + 1;
    }
    if (class != NONE && is_at(s, s->active, position, class) && s->missed < LOST)
        item = take_item(s, position);
    else if (class != NONE)
        item = take_elsewhere(s, class);
    if (item == NONE) {
        of->missed += of->missed < 2 * LOST;
    } else {
        of->missed -= of->missed > 0;
        of->last_step = s->statistics.steps;
    }
    return item;
}
