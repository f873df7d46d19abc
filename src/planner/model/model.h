/* SPDX-License-Identifier: Apache-2.0 */
/* The data behind bp_model, for the passes of this folder. */
#ifndef BP_MODEL_MODEL_H
#define BP_MODEL_MODEL_H

#include <bucketpool/model.h>

#include "core/memory.h"

struct bp_model {
    bp_model_info info; /* points to the arrays below */
    bp_strings strings; /* every name of the model */
    const char *name;
    bp_unit *units;
    size_t unit_count, unit_capacity;
    const bp_parameter **parameters;
    size_t parameter_count, parameter_capacity;
    const bp_given_bucket **buckets;
    size_t bucket_count, bucket_capacity;
    const bp_model_event **events;
    size_t event_count, event_capacity;
    uint32_t *order;
    size_t order_count, order_capacity;
    int order_is_set;
    const char **notes;
    size_t note_count, note_capacity;
    uint32_t published;
    uint64_t numel, prediction_numel; /* running totals: overflow is reported by the call that causes it */
};

/* Elements of one copy; cannot overflow in a model, which checks it. */
uint64_t bp_parameter_numel(const bp_parameter *parameter);

/* A new model with the units, order, given buckets and events of `model`, and no parameters. */
bp_status bp_model_copy_frame(const bp_model *model, bp_model **out);

#endif
