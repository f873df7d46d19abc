/* SPDX-License-Identifier: Apache-2.0 */
/* Creates plans from their contents, for readers of saved plans, the command's scaled plans, and tests; and the checksum of saved plans. */
#ifndef BP_PLAN_FROM_INFO_H
#define BP_PLAN_FROM_INFO_H

#include <bucketpool/plan.h>

/* Copies the contents, without roles, into a new plan. bytes and bounds are not verified.
 *
 * Errors: BP_ERR_MISMATCH (requests or classes outside their slabs, not aligned, a request twice), BP_ERR_INVALID_ARGUMENT
 * (unknown policy, dtypes, roles, placements; more than 65535 slabs), BP_ERR_NO_HOST_MEMORY. */
BP_API bp_status bp_plan_from_info(const bp_plan_info *info, bp_plan **plan);

/* SHA-256 of the fingerprint, the model's name and the options: of all that a saved plan contains. */
BP_API bp_status bp_plan_checksum(const bp_plan *plan, char checksum[BP_FINGERPRINT_CHARS]);

#endif
