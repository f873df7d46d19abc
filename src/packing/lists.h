/* Lists of small numbers, one after the other in one array. */
#ifndef BP_PACKING_LISTS_H
#define BP_PACKING_LISTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <bucketpool/status.h>

/* List i is entries[first[i]] .. entries[first[i + 1] - 1]. */
typedef struct bp_lists {
    uint32_t *first, *entries;
    uint32_t count;
} bp_lists;

void bp_lists_finish(bp_lists *lists);

/* The lists the other way round: for each entry below `entry_limit`, which lists have it, in increasing order. */
bp_status bp_lists_invert(const bp_lists *lists, uint32_t entry_limit, bp_lists *inverse);

/* Whether two lists have the same entries in the same order. */
bool bp_lists_equal(const bp_lists *lists, uint32_t one, uint32_t other);

uint64_t bp_hash_list(const uint32_t *entries, uint32_t count);

/* For qsort and bsearch over numbers. */
int bp_compare_numbers(const void *left, const void *right);

/* Lists that are being written, the newest last. All zeros: none. */
typedef struct bp_list_writer {
    bp_lists lists;
    size_t first_capacity, entry_count, entry_capacity;
} bp_list_writer;

/* Begins a list. Errors of both: BP_ERR_UNSUPPORTED (more entries than are worth searching), BP_ERR_NO_HOST_MEMORY. */
bp_status bp_list_begin(bp_list_writer *writer);
bp_status bp_list_add(bp_list_writer *writer, uint32_t entry);
/* Hands the lists over. */
bp_status bp_list_writer_take(bp_list_writer *writer, bp_lists *lists);
void bp_list_writer_finish(bp_list_writer *writer);

#endif
