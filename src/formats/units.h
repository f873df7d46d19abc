/* Shared by the reader and the writer of bucketpool.units/1. docs/formats.md describes the format. */
#ifndef BP_FORMATS_UNITS_H
#define BP_FORMATS_UNITS_H

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

/* The index of the unit that `at` names. */
bp_status bp_units_find(const bp_units_reader *reader, const bp_json_at *at, uint32_t *unit);

/* A role: its name, or a number for a runtime's own. */
bp_status bp_units_role(const bp_json_at *at, uint64_t most, uint32_t *role);

/* "gather", "compute", ...; NULL for a lane that goes by its number. */
const char *bp_units_lane_name(uint32_t lane);

/* Adds the parameters and the buckets of all units and of `outside`, which may be absent, to the model. */
bp_status bp_units_add_items(bp_units_reader *reader, const bp_json_at *units, const bp_json_at *outside);

#endif
