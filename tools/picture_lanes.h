/* What runs in each step of a schedule, on the rows of a picture. */
#ifndef BP_TOOLS_PICTURE_LANES_H
#define BP_TOOLS_PICTURE_LANES_H

#include "schedule_view.h"

typedef enum lane_row { ROW_GATHER, ROW_COMPUTE, ROW_REDUCE, ROW_COUNT } lane_row;

/* A gather may run from its acquire until compute needs it, a reduction from the end of compute until its memory is free. */
typedef struct lane_item {
    uint32_t begin, end; /* steps */
    int32_t unit;
    bp_phase phase; /* of what computes */
    uint8_t row;
    uint8_t track; /* of the row: items of a track do not overlap */
} lane_item;

enum { MOST_TRACKS = 6 };

typedef struct lane_items {
    lane_item *items;
    size_t count;
    uint32_t tracks[ROW_COUNT]; /* 0: the row is empty */
} lane_items;

/* false when memory runs out. Call lane_items_finish either way. */
bool lane_items_init(const schedule_view *v, lane_items *lanes);
void lane_items_finish(lane_items *lanes);

#endif
