/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzes bp_plan_parse: an accepted plan can be written and served. */
#include <bucketpool/formats.h>

#include <stdlib.h>

#include "serving.h"
#include "target.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    bp_plan *plan = NULL;
    bp_status status = bp_plan_parse((const char *)data, size, "input", &plan);
    if ((status == BP_OK) != (plan != NULL) || (status != BP_OK && *bp_error_detail() == '\0'))
        abort();
    if (plan != NULL && bp_plan_write(plan, "/dev/null") != BP_OK)
        abort();
    if (plan != NULL)
        fuzz_serve(plan);
    bp_plan_destroy(&plan);
    return 0;
}
