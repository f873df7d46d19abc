/* SPDX-License-Identifier: Apache-2.0 */
/* The server of a step plan. The slab is cut into atoms at the offsets where items begin and end: a live block is a run of atoms, and what
 * is live is a bitmap. Items of one size and stream are a class; a program is followed as a sequence of classes. */
#ifndef BP_ALLOCATORS_SERVE_SERVER_H
#define BP_ALLOCATORS_SERVE_SERVER_H

#include <bucketpool/step_serve.h>

#include <pthread.h>

#include "core/hash.h"

#define NONE UINT32_MAX

enum {
    WINDOW = 64,     /* an item is looked for so far from the place where the program is */
    GRAM = 8,        /* so many classes tell a place */
    LOST = 12,       /* after so many more misses than matches nothing is served until the place is known again */
    KEPT_EVENTS = 64 /* of each stream */
};

/* ---- tables, which do not change ----------------------------------------------------------------------------------- */

/* An item of the plan: atoms [first, end); none if it has no address. */
typedef struct serve_item {
    uint32_t class : 31, precedes_stream : 1;
    uint32_t first, end;
    uint32_t used; /* the lap of its kind in which it was taken */
} serve_item;

/* Sizes as requested, by stream of the plan. A slot of a hash table. */
typedef struct serve_class {
    uint64_t bytes;
    uint32_t stream, number; /* NONE: an empty slot */
} serve_class;

/* The first member of a class to look at: those before it are used, or too far behind. */
typedef struct serve_cursor {
    uint32_t lap, at;
} serve_cursor;

typedef struct serve_kind {
    uint32_t first, count; /* items */
    uint32_t position;     /* the item that is expected */
    uint32_t jump;         /* or this one, behind one that came early; 0: none */
    uint32_t lap;          /* counts steps and new places */
    bool is_first;
    uint32_t steps;
    uint32_t *marks, mark_count;
    uint32_t *members;       /* numbers of items in the kind, by class and ascending */
    uint32_t *members_begin; /* by class; one more */
    serve_cursor *cursors;   /* by class */
} serve_kind;

/* ---- streams ------------------------------------------------------------------------------------------------------- */

/* An event: time is the server's count of events. */
typedef struct serve_event {
    uint32_t time;
    uint32_t waited[BP_STEP_STREAMS]; /* what its stream had waited for */
} serve_event;

/* The atoms of a word of the bitmaps. */
typedef struct serve_word {
    uint32_t time;   /* the clock when they were freed together */
    uint32_t latest; /* the clock when the last of them was freed */
    uint32_t users;  /* streams that may have bits in `used`, a bit each */
} serve_word;

/* A stream of the caller. */
typedef struct serve_stream {
    uint32_t bound;                   /* stream of the plan, or NONE */
    uint32_t missed;                  /* so many more misses than matches */
    uint64_t last_step;               /* statistics.steps when it last matched */
    uint64_t points;                  /* events recorded */
    uint32_t waited[BP_STEP_STREAMS]; /* by other stream: times of the latest event that it waited for */
    uint64_t waits[BP_STEP_STREAMS];
    uint64_t *used;      /* bitmap of atoms: this stream is one of their last users. NULL: not seen yet */
    serve_event *events; /* the last KEPT_EVENTS, by number */
} serve_stream;

/* ---- all ----------------------------------------------------------------------------------------------------------- */

/* A live block: atoms up to `end`. */
typedef struct serve_block {
    uint32_t end;
    uint32_t item;  /* NONE: of bp_step_server_allocate_anywhere */
    uint32_t users; /* streams that use it, a bit each */
    uint32_t owner; /* the stream that it was handed to */
} serve_block;

enum { DEVIATION_SLOTS = 2 * BP_STEP_DEVIATIONS };

struct bp_step_server {
    pthread_mutex_t lock;
    bp_step_server_config config;

    serve_item *items;
    uint32_t item_count;
    serve_kind kinds[BP_STEP_PLAN_KINDS];
    uint32_t kind_count, active;
    uint32_t prefixes[BP_STEP_PLAN_KINDS]
                     [BP_STEP_PLAN_KINDS]; /* items that two kinds have in common at their beginnings */
    serve_class *classes;
    uint32_t class_slots, class_count;
    uint64_t *class_bytes; /* by class */
    uint64_t *grams;       /* by item: hash of the GRAM classes up to it, in its kind */
    uint32_t *next_equal;  /* by item: the next one with the same gram */
    uint32_t *gram_table;
    uint32_t gram_slots;

    uint64_t *atoms; /* offsets, and the end of the slab */
    uint32_t atom_count, words;
    uint32_t *begins; /* hash table of atoms by offset; NONE: an empty slot */
    uint32_t begin_slots;

    uint64_t *busy;      /* bitmap of atoms: live */
    uint64_t *starts;    /* bitmap of atoms: a live block begins here */
    serve_block *blocks; /* by atom of `starts` */
    uint64_t *requests;  /* by atom of `starts`: bytes that were requested, of blocks without an item */

    bool is_paused;
    uint32_t missed;
    uint32_t matched;            /* allocations of the current step that were found in the plan */
    bool has_asked, has_matched; /* since the last mark: an allocation; one that was found in the plan */
    uint32_t recent[GRAM], recent_count;

    serve_stream streams[BP_STEP_STREAMS];
    uint32_t holders[BP_STEP_PLAN_STREAMS]; /* by stream of the plan: the one that is bound to it, or NONE */
    uint32_t plan_stream_count;
    uint32_t seen;  /* streams that allocated or used something, a bit each */
    uint32_t clock; /* events recorded */
    uint32_t *
        times; /* by atom: the clock when it was freed, unless its word has a later one; valid with more than one stream */
    serve_word *order; /* by word of the bitmaps; likewise */
    uint64_t *stream_memory;

    bp_step_statistics statistics;
    bp_step_deviation deviations[BP_STEP_DEVIATIONS];
    uint32_t deviation_slots[DEVIATION_SLOTS], deviation_count;
};

/* ---- bitmaps ------------------------------------------------------------------------------------------------------- */

static inline uint64_t serve_bits_from(uint32_t first)
{
    return ~(uint64_t)0 << first % 64;
}

static inline uint64_t serve_bits_to(uint32_t end)
{
    return ~(uint64_t)0 >> (63 - (end - 1) % 64);
}

/* True if one of the bits [first, end) is set; first < end. */
static inline bool serve_any(const uint64_t *bits, uint32_t first, uint32_t end)
{
    uint32_t word = first / 64, last = (end - 1) / 64;
    if (word == last)
        return (bits[word] & serve_bits_from(first) & serve_bits_to(end)) != 0;
    uint64_t found = bits[word] & serve_bits_from(first);
    for (word++; word < last; word++)
        found |= bits[word];
    return (found | (bits[last] & serve_bits_to(end))) != 0;
}

static inline void serve_set(uint64_t *bits, uint32_t first, uint32_t end, bool value)
{
    for (uint32_t word = first / 64, last = (end - 1) / 64; word <= last; word++) {
        uint64_t mask = (word == first / 64 ? serve_bits_from(first) : ~(uint64_t)0) &
                        (word == last ? serve_bits_to(end) : ~(uint64_t)0);
        bits[word] = value ? bits[word] | mask : bits[word] & ~mask;
    }
}

/* The slot of the atom at an offset, or an empty one. */
static inline uint32_t serve_begin_slot(const bp_step_server *s, uint64_t offset)
{
    uint32_t slot = (uint32_t)bp_hash_number(offset) & (s->begin_slots - 1);
    while (s->begins[slot] != NONE && s->atoms[s->begins[slot]] != offset)
        slot = (slot + 1) & (s->begin_slots - 1);
    return slot;
}

/* The atom at an offset, or NONE. */
static inline uint32_t serve_atom_at(const bp_step_server *s, uint64_t offset)
{
    return s->begins[serve_begin_slot(s, offset)];
}

/* The class of a size on a stream of the plan, or NONE. */
static inline uint32_t serve_class_of(const bp_step_server *s, uint64_t bytes, uint32_t stream)
{
    uint32_t slot = (uint32_t)bp_hash_number(bytes ^ (uint64_t)(stream + 1) << 56) & (s->class_slots - 1);
    while (s->classes[slot].number != NONE) {
        if (s->classes[slot].bytes == bytes && s->classes[slot].stream == stream)
            return s->classes[slot].number;
        slot = (slot + 1) & (s->class_slots - 1);
    }
    return NONE;
}

/* The kind that an item is of. */
static inline uint32_t serve_kind_of(const bp_step_server *s, uint32_t item)
{
    uint32_t kind = 0;
    while (item - s->kinds[kind].first >= s->kinds[kind].count)
        kind++;
    return kind;
}

/* ---- follow.c ------------------------------------------------------------------------------------------------------ */

/* The item for an allocation, which is taken, or NONE. `outcome`: BP_STEP_UNKNOWN or BP_STEP_MISPLACED with NONE. */
uint32_t serve_follow(bp_step_server *s, uint64_t bytes, uint32_t stream, bp_step_outcome *outcome);
/* An optimizer has ended its step. */
void serve_mark(bp_step_server *s);
/* The first step was before. */
void serve_skip_first(bp_step_server *s);
/* The hash of GRAM classes, the oldest first; those of a ring begin at `at`. */
uint64_t serve_gram(const uint32_t classes[GRAM], uint32_t at);

/* ---- order.c ------------------------------------------------------------------------------------------------------- */

/* Takes it that all streams used all memory until now. */
void serve_forget_order(bp_step_server *s);
/* Takes notice of a stream. */
void serve_see(bp_step_server *s, uint32_t stream);
/* Makes a stream wait for the last users of atoms, where it did not yet. False: not possible now. */
bool serve_order(bp_step_server *s, uint32_t stream, uint32_t first, uint32_t end);
/* Streams have used atoms that are free from now on. `records`: record their events now. */
void serve_release(bp_step_server *s, uint32_t users, uint32_t first, uint32_t end, bool records);

#endif
