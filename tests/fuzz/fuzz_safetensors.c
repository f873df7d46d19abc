/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzes bp_safetensors_parse with whole files and nested patterns. */
#include <bucketpool/formats.h>

#include <stdlib.h>

#include "pipeline.h"
#include "target.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    bp_reader_options options;
    if (bp_reader_options_init(&options, sizeof options) != BP_OK)
        abort();
    options.units = "layers.N,h.N,layers.N.experts.N,embed";
    bp_model *model = NULL;
    bp_status status = bp_safetensors_parse(data, size, size, "input", &options, &model);
    if ((status == BP_OK) != (model != NULL) || (status != BP_OK && *bp_error_detail() == '\0'))
        abort();
    if (model != NULL)
        fuzz_plan_model(model);
    bp_model_destroy(&model);
    return 0;
}
