/* Python's pickle format, protocol 2, as little of it as PyTorch's memory viewer knows: no memo, no tuples, no classes. Lists are appended to in
 * batches of at most 1000, as the viewer passes a batch as arguments of one call. */
#ifndef BP_PROFILE_PICKLE_H
#define BP_PROFILE_PICKLE_H

#include <stdbool.h>

#include "files/files.h"

void bp_pickle_begin(bp_output *output);
void bp_pickle_end(bp_output *output);

/* A dictionary's members come between these: a key, then what it has. */
void bp_pickle_begin_dict(bp_output *output);
void bp_pickle_end_dict(bp_output *output);

typedef struct bp_pickle_list {
    uint32_t batch;
} bp_pickle_list;

/* bp_pickle_item comes before each element. */
void bp_pickle_begin_list(bp_output *output, bp_pickle_list *list);
void bp_pickle_item(bp_output *output, bp_pickle_list *list);
void bp_pickle_end_list(bp_output *output);

void bp_pickle_text(bp_output *output, const char *const *pieces, size_t count);
void bp_pickle_number(bp_output *output, uint64_t number);
void bp_pickle_signed(bp_output *output, int64_t number);
void bp_pickle_none(bp_output *output);

/* Members. The first is a key alone. */
void bp_pickle_key(bp_output *output, const char *key);
void bp_pickle_member_string(bp_output *output, const char *key, const char *text);
void bp_pickle_member_number(bp_output *output, const char *key, uint64_t number);
void bp_pickle_member_bool(bp_output *output, const char *key, bool value);

#endif
