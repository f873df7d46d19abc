/* How the events of a pool are played. */
#ifndef TOOLS_VIEW_TIMELINE_PLAY_H
#define TOOLS_VIEW_TIMELINE_PLAY_H

#include "view/timeline.h"

#define VIEW_NO_SPAN UINT32_MAX
#define VIEW_NO_REQUEST UINT32_MAX

/* Spans that may come of slabs that get their memory back: a short file can have many of them for many buckets. */
static inline size_t view_most_returns(const view_pool *pool)
{
    return ((size_t)1 << 16) + 4 * (pool->info->live_count + pool->info->event_count + pool->info->slab_event_count);
}

/* A request that is held: live while there is memory below it. */
typedef struct view_hold {
    uint64_t address, stream, step;
    uint32_t span;         /* VIEW_NO_SPAN: not live */
    uint32_t slab;         /* VIEW_OUTSIDE: none */
    uint32_t next, before; /* held in the slab; VIEW_NO_REQUEST: none */
    bool is_held;
} view_hold;

typedef struct view_player {
    view_pool *pool;
    view_hold *holds;     /* by request */
    uint32_t *first_held; /* by slab */
    bool *resident;       /* by slab */
    size_t next_slab_event, number, span_capacity, returns;
    uint32_t *by_address; /* slabs */
    uint64_t live, role_live[VIEW_MOST_ROLES];
    size_t peak_event, peak_slab_events; /* how many were before it */
    uint32_t *free_tracks;               /* a heap, the lowest first */
    size_t free_count;
} view_player;

#endif
