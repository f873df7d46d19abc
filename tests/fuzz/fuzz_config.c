/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzes bp_config_parse: any bytes give a model or an error with a detail. */
#include <bucketpool/formats.h>

#include <stdlib.h>

#include "pipeline.h"
#include "target.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    bp_model *model = NULL;
    bp_status status = bp_config_parse((const char *)data, size, "input", NULL, &model);
    if ((status == BP_OK) != (model != NULL) || (status != BP_OK && *bp_error_detail() == '\0'))
        abort();
    if (model != NULL)
        fuzz_plan_model(model);
    bp_model_destroy(&model);
    return 0;
}
