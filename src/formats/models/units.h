/* Shared by the reader and the writer of bucketpool.units/1. docs/formats.md describes the format. */
#ifndef BP_FORMATS_MODELS_UNITS_H
#define BP_FORMATS_MODELS_UNITS_H

#include <bucketpool/model.h>

#include "formats/json.h"

#define BP_UNITS_FORMAT "bucketpool.units/1"

#define BP_ROLE_BITS 32 /* a bucket's roles are bits of an uint32_t */

/* A document that is being read. */
typedef struct bp_units_reader {
    bp_model *model;
    json_t *units;   /* name -> index */
    json_t *buckets; /* for each unit, then for persistent ones: name -> ordinal */
} bp_units_reader;

/* "gather", "compute", ...; NULL for a lane that goes by its number. */
const char *bp_units_lane_name(uint32_t lane);

#endif
