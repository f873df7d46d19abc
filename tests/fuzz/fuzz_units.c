/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzes bp_units_parse: accepted models can be written. */
#include <bucketpool/formats.h>

#include <stdlib.h>

#include "pipeline.h"
#include "target.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    bp_model *model = NULL;
    bp_status status = bp_units_parse((const char *)data, size, "input", NULL, &model);
    if ((status == BP_OK) != (model != NULL) || (status != BP_OK && *bp_error_detail() == '\0'))
        abort();
    if (model != NULL && bp_units_write(model, "/dev/null") != BP_OK)
        abort();
    if (model != NULL)
        fuzz_plan_model(model);
    bp_model_destroy(&model);
    return 0;
}
