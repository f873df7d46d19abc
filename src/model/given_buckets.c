/* Buckets that the model brings along, and the order of all by unit. */
#include <stdlib.h>

#include "core/arith.h"
#include "core/fail.h"
#include "model/buckets.h"

bp_status bp_buckets_take_given(const bp_model *model, const bp_buckets_config *config, bp_buckets *buckets)
{
    void *memory;
    BP_TRY(bp_new_array(model->unit_count + 1, sizeof(uint32_t), &memory));
    uint32_t *ordinals = memory;
    bp_status status = BP_OK;
    for (size_t i = 0; i < buckets->bucket_count; i++) /* made of parameters before */
        ordinals[buckets->buckets[i].unit >= 0 ? (size_t)buckets->buckets[i].unit : model->unit_count]++;
    for (size_t i = 0; status == BP_OK && i < model->bucket_count; i++) {
        const bp_given_bucket *given = &model->buckets[i];
        uint32_t shards = given->expert ? config->dp / config->ep : config->dp;
        uint64_t padded = given->padded_numel != 0 ? given->padded_numel : given->numel, step;
        char text[24];
        uint32_t *ordinal = &ordinals[given->unit >= 0 ? (size_t)given->unit : model->unit_count];
        /* without rows to go by, the other rules make shards equal */
        uint64_t each = config->padding == BP_PADDING_FLAT ? config->flat_alignment : 1;
        if (given->padded_numel == 0 && config->padding != BP_PADDING_GIVEN &&
            (!bp_mul_u64(each, shards, &step) || !bp_round_up_u64(given->numel, step, &padded)))
            status = bp_fail(BP_ERR_OVERFLOW, "the padded size of bucket %s does not fit 64 bits",
                             bp_bucket_label(given->name, *ordinal, text));
        if (status == BP_OK && (given->roles & ~(BP_ROLE_BIT(BP_ROLE_COUNT) - 1)) != 0)
            status = bp_fail(BP_ERR_UNSUPPORTED, "bucket %s: roles 0x%x: roles of a runtime's own are not planned",
                             bp_bucket_label(given->name, *ordinal, text), given->roles);
        bp_bucket bucket = {.unit = given->unit,
                            .ordinal = (*ordinal)++,
                            .numel = given->numel,
                            .padded_numel = padded,
                            .grad_numel = given->numel,
                            .grad_padded_numel = padded,
                            .shards = shards,
                            .roles = given->roles != 0 ? given->roles : ~0u,
                            .dtype = given->dtype,
                            .grad_dtype = bp_gradient_dtype(config, given->dtype),
                            .expert = given->expert != 0,
                            .frozen = given->frozen != 0 || !bp_dtype_is_float(given->dtype)};
        if (status == BP_OK && given->name != NULL)
            status = bp_strings_add(&buckets->strings, given->name, &bucket.name);
        if (status == BP_OK)
            status = bp_buckets_append(buckets, &bucket);
    }
    free(ordinals);
    return status;
}

/* Given buckets may come in any order: the rest of the library has them by unit, those of persistent parameters last. Stable. */
bp_status bp_buckets_order_by_unit(bp_buckets *buckets)
{
    void *memory;
    BP_TRY(bp_new_array(buckets->unit_count + 2, sizeof(size_t), &memory));
    size_t *starts = memory;
    bp_status status = bp_new_array(buckets->bucket_count, sizeof *buckets->buckets, &memory);
    if (status != BP_OK) {
        free(starts);
        return status;
    }
    bp_bucket *sorted = memory;
    for (size_t i = 0; i < buckets->bucket_count; i++) {
        int32_t unit = buckets->buckets[i].unit;
        starts[(unit >= 0 ? (size_t)unit : buckets->unit_count) + 1]++;
    }
    for (size_t u = 1; u < buckets->unit_count + 2; u++)
        starts[u] += starts[u - 1];
    for (size_t i = 0; i < buckets->bucket_count; i++) {
        int32_t unit = buckets->buckets[i].unit;
        sorted[starts[unit >= 0 ? (size_t)unit : buckets->unit_count]++] = buckets->buckets[i];
    }
    free(buckets->buckets);
    free(starts);
    buckets->buckets = sorted;
    buckets->bucket_capacity = buckets->bucket_count;
    return BP_OK;
}
