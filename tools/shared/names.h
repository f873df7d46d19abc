/* What units and steps are called where there is little room. */
#ifndef TOOLS_SHARED_NAMES_H
#define TOOLS_SHARED_NAMES_H

#include <bucketpool/bucketpool.h>

/* How many characters all names of units begin with that need not be repeated: "model." or "model.layers."; a bare number says too
 * little, so then the word before it stays. */
size_t names_common_chars(const bp_buckets *buckets);

/* What a step computes, whether or not it is the half of a step in which gathers begin. */
bp_phase names_direction(const bp_step *step);

enum { ROLES_TEXT_CHARS = 80 };
/* "param+grad": the roles of a BP_ROLE_BIT mask. */
const char *names_roles(uint32_t roles, char text[ROLES_TEXT_CHARS]);

#endif
