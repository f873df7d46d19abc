/* SPDX-License-Identifier: Apache-2.0 */
/** @file
 * Element types of parameters, gradients and state. Sizes are in bits because packed 4-bit types exist.
 *
 * All functions are pure. They may be called from any thread and during a capture. */
#ifndef BUCKETPOOL_DTYPE_H
#define BUCKETPOOL_DTYPE_H

#include <bucketpool/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Values are part of the ABI and of saved plans' fingerprints: never renumbered, never reused. */
typedef enum bp_dtype {
    BP_DTYPE_NONE = 0, /**< "not set" in configurations; never the type of a bucket */
    BP_DTYPE_FP64 = 1,
    BP_DTYPE_FP32 = 2,
    BP_DTYPE_FP16 = 3,
    BP_DTYPE_BF16 = 4,
    BP_DTYPE_FP8_E4M3 = 5,
    BP_DTYPE_FP8_E5M2 = 6,
    BP_DTYPE_FP8_E8M0 = 7, /**< block scales */
    BP_DTYPE_FP6_E2M3 = 8,
    BP_DTYPE_FP6_E3M2 = 9,
    BP_DTYPE_FP4_E2M1 = 10, /**< two elements a byte */
    BP_DTYPE_UINT4 = 11,    /**< two elements a byte */
    BP_DTYPE_INT4 = 12,     /**< two elements a byte */
    BP_DTYPE_UINT8 = 13,
    BP_DTYPE_INT8 = 14,
    BP_DTYPE_UINT16 = 15,
    BP_DTYPE_INT16 = 16,
    BP_DTYPE_UINT32 = 17,
    BP_DTYPE_INT32 = 18,
    BP_DTYPE_UINT64 = 19,
    BP_DTYPE_INT64 = 20,
    BP_DTYPE_BOOL = 21, /**< one byte an element */
    BP_DTYPE_COMPLEX64 = 22
} bp_dtype;
#define BP_DTYPE_COUNT 23

/** Bits of one element; 0 for BP_DTYPE_NONE and unknown values. */
BP_API uint32_t bp_dtype_bits(bp_dtype dtype);

/** The canonical lower-case name ("bf16", "fp8_e4m3"); "none" for BP_DTYPE_NONE, "invalid" for unknown values. Static. */
BP_API const char *bp_dtype_name(bp_dtype dtype);

/** Parses the name of a dtype: the canonical name or another common spelling (bfloat16, torch.bfloat16, float32, F32,
 * F8_E4M3, fp8 for fp8_e4m3). Case is ignored.
 *
 * Errors: BP_ERR_INVALID_ARGUMENT (an unknown name; the message lists the canonical names). */
BP_API bp_status bp_dtype_parse(const char *name, bp_dtype *dtype);

/** The dtype of the buffer that holds elements of `dtype`: uint8 for the fp8 types, else `dtype` itself.
 *
 * Source: MaxPoolAllocator of Megatron-FSDP, which maps "float8" to torch.uint8. */
BP_API bp_dtype bp_dtype_storage(bp_dtype dtype);

/** 1 if gradients can have this dtype (fp64, fp32, fp16, bf16), else 0. */
BP_API int bp_dtype_is_gradient(bp_dtype dtype);

/** Bytes of `numel` elements, rounded up to a whole byte.
 *
 * Errors: BP_ERR_INVALID_ARGUMENT (an unknown dtype), BP_ERR_OVERFLOW (the result does not fit 64 bits). */
BP_API bp_status bp_dtype_bytes(bp_dtype dtype, uint64_t numel, uint64_t *bytes);

#ifdef __cplusplus
}
#endif
#endif
