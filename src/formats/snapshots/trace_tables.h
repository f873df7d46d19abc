/* SPDX-License-Identifier: Apache-2.0 */
/* Tables of a trace file that is being read: texts, frames, stacks and events, each stored once. */
#ifndef BP_FORMATS_SNAPSHOTS_TRACE_TABLES_H
#define BP_FORMATS_SNAPSHOTS_TRACE_TABLES_H

#include "core/index.h"
#include "formats/snapshots/pickle.h"
#include "planner/steps/trace.h"

/* An array that grows; its memory counts in the budget. */
typedef struct bp_table {
    void *memory;
    size_t count, capacity, element_bytes;
} bp_table;

/* A list of events: those of a device. */
typedef struct bp_event_list {
    size_t first, count;
} bp_event_list;

typedef struct bp_trace_tables {
    const char *origin;
    unsigned char *data; /* the file; pages that were read are released. NULL: keep all */
    struct bp_text_block *blocks;
    size_t budget, used;   /* bytes */
    bp_table texts;        /* bp_pickle_text, NUL-terminated and printable */
    bp_table words;        /* uint8_t, by text: trace_word */
    bp_table frames;       /* bp_trace_frame */
    bp_table stacks;       /* bp_event_list: ranges of stack_frames */
    bp_table stack_frames; /* uint32_t */
    bp_table streams;      /* uint64_t */
    bp_table events;       /* bp_trace_event */
    bp_table lists;        /* bp_event_list */
    bp_index text_index, frame_index, stack_index;
    uint16_t stream; /* of the last event */
    uint64_t unknown_events;
    const char *unknown_name;
    bp_pickle_reducer reducer;
} bp_trace_tables;

/* Bytes of memory that a file's tables may take. */
#define BP_TRACE_MAX_MEMORY ((size_t)4 << 30)

void bp_trace_tables_init(bp_trace_tables *tables, const char *origin, unsigned char *data);
void bp_trace_tables_finish(bp_trace_tables *tables);

/* Index of the call stack of a value, BP_TRACE_NONE for a value without frames. */
uint32_t bp_trace_stack_of(const bp_pickle *pickle, bp_pickle_ref ref);
/* The events of a value of device_traces; false: it is neither a list of events nor an empty list. */
bool bp_trace_list_of(const bp_trace_tables *tables, bp_pickle_value value, bp_event_list *list);
bp_status bp_trace_stream(bp_trace_tables *tables, uint64_t stream, uint16_t *index);

#endif
