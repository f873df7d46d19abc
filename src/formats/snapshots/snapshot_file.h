/* SPDX-License-Identifier: Apache-2.0 */
/* A snapshot in memory, and functions shared with the reader of traces. */
#ifndef BP_FORMATS_SNAPSHOTS_SNAPSHOT_FILE_H
#define BP_FORMATS_SNAPSHOTS_SNAPSHOT_FILE_H

#include "core/index.h"
#include "formats/snapshots/pickle.h"
#include "formats/snapshots/snapshot.h"

struct bp_snapshot {
    bp_snapshot_info info;
    struct bp_snapshot_block *blocks; /* all memory of the snapshot */
};

typedef struct bp_snapshot_reader {
    const char *origin;
    const bp_pickle *pickle;
    bp_snapshot *snapshot;
    struct bp_snapshot_copied *copied; /* interned texts */
    size_t copied_capacity;
    bp_index copied_index;
    size_t budget,
        left; /* budget for tables: a list may be referenced from many places, so the file's size does not limit the entries */
} bp_snapshot_reader;

/* A value with its path: "bucketpool.pools[0].events[17]". */
typedef struct bp_snapshot_at {
    bp_snapshot_reader *reader;
    bp_pickle_value value; /* BP_PICKLE_ABSENT: missing */
    const struct bp_snapshot_at *parent;
    const char *member; /* NULL: an item of a list */
    size_t index;
} bp_snapshot_at;

__attribute__((format(printf, 2, 3))) bp_status bp_snapshot_fail(const bp_snapshot_at *at, const char *format, ...);

bp_snapshot_at bp_snapshot_member(const bp_snapshot_at *at, const char *name);
/* An item of a list. */
bp_snapshot_at bp_snapshot_item(const bp_snapshot_at *at, size_t index);

/* Required values. Texts are copied and made printable; None is "". */
bp_status bp_snapshot_number(const bp_snapshot_at *at, uint64_t max, uint64_t *number);
bp_status bp_snapshot_text(const bp_snapshot_at *at, const char **text);
bp_status bp_snapshot_truth(const bp_snapshot_at *at, int *truth);
/* 0 or "" if absent. */
bp_status bp_snapshot_number_or_0(const bp_snapshot_at *at, uint64_t *number);
bp_status bp_snapshot_text_or_none(const bp_snapshot_at *at, const char **text);
/* Zeroed memory for the items of a list, or for `more` more; nothing for an absent list. */
bp_status bp_snapshot_list(const bp_snapshot_at *at, size_t element_bytes, void **entries, size_t *count);
bp_status bp_snapshot_room(bp_snapshot_reader *reader, size_t count, size_t element_bytes, void **entries);
/* The same, only for the time of reading: free() it. */
bp_status bp_snapshot_scratch(bp_snapshot_reader *reader, size_t count, size_t element_bytes, void **entries);
bp_status bp_snapshot_copy(bp_snapshot_reader *reader, const char *bytes, size_t count, const char **text);

/* In pools.c. */
bp_status bp_snapshot_read_ours(const bp_snapshot_at *ours);

#endif
