/* SPDX-License-Identifier: Apache-2.0 */
/* Bundled models. Exported for the command, in the node BUCKETPOOL_PRIVATE. */
#ifndef BP_FORMATS_MODELS_HUB_H
#define BP_FORMATS_MODELS_HUB_H

#include <bucketpool/formats.h>

#include <stddef.h>

/* A model of examples/models: the folder of its config.json, and its publisher's repository. */
typedef struct bp_bundled_model {
    const char *folder, *repository;
} bp_bundled_model;

/* By folder; NULL past the end. Static. */
BP_API const bp_bundled_model *bp_bundled(size_t index);

#endif
