/* Which files a safetensors checkpoint consists of. */
#ifndef BP_FORMATS_SHARDS_H
#define BP_FORMATS_SHARDS_H

#include <stddef.h>

#include "formats/json.h"

typedef struct bp_shards {
    char *directory;
    char **names; /* sorted naturally */
    size_t count;
} bp_shards;

/* The files that an index's weight_map names. Errors: BP_ERR_FORMAT, also for names that lead out of the directory. */
bp_status bp_shards_from_index(bp_shards *shards, const bp_json_at *weight_map);

/* The files in a directory: *index is the path of the one index file (free() it; there are no shards then), or NULL and
 * the shards are model.safetensors by itself, else all *.safetensors, which must be complete if they are numbered.
 * Errors: BP_ERR_FORMAT (several index files, missing shards, nothing there), BP_ERR_IO. */
bp_status bp_shards_from_directory(bp_shards *shards, const char *directory, char **index);

/* The tensors found (name -> index of shard) are exactly those of the weight map, each in its file. */
bp_status bp_shards_check(const bp_shards *shards, const bp_json_at *weight_map, json_t *found);

void bp_shards_finish(bp_shards *shards);

#endif
