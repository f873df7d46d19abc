/* SPDX-License-Identifier: Apache-2.0 */
/* Element types: sizes in bits, names and aliases, storage types. */
#include <bucketpool/core/arith.h>
#include <bucketpool/core/fail.h>
#include <bucketpool/dtype.h>

#include <stdbool.h>
#include <string.h>
#include <strings.h>

static const struct {
    const char *name;
    uint32_t bits;
} dtypes[BP_DTYPE_COUNT] = {
    [BP_DTYPE_NONE] = {"none", 0},
    [BP_DTYPE_FP64] = {"fp64", 64},
    [BP_DTYPE_FP32] = {"fp32", 32},
    [BP_DTYPE_FP16] = {"fp16", 16},
    [BP_DTYPE_BF16] = {"bf16", 16},
    [BP_DTYPE_FP8_E4M3] = {"fp8_e4m3", 8},
    [BP_DTYPE_FP8_E5M2] = {"fp8_e5m2", 8},
    [BP_DTYPE_FP8_E8M0] = {"fp8_e8m0", 8},
    [BP_DTYPE_FP6_E2M3] = {"fp6_e2m3", 6},
    [BP_DTYPE_FP6_E3M2] = {"fp6_e3m2", 6},
    [BP_DTYPE_FP4_E2M1] = {"fp4_e2m1", 4},
    [BP_DTYPE_UINT4] = {"uint4", 4},
    [BP_DTYPE_INT4] = {"int4", 4},
    [BP_DTYPE_UINT8] = {"uint8", 8},
    [BP_DTYPE_INT8] = {"int8", 8},
    [BP_DTYPE_UINT16] = {"uint16", 16},
    [BP_DTYPE_INT16] = {"int16", 16},
    [BP_DTYPE_UINT32] = {"uint32", 32},
    [BP_DTYPE_INT32] = {"int32", 32},
    [BP_DTYPE_UINT64] = {"uint64", 64},
    [BP_DTYPE_INT64] = {"int64", 64},
    [BP_DTYPE_BOOL] = {"bool", 8},
    [BP_DTYPE_COMPLEX64] = {"complex64", 64},
};

/* Aliases: those of PyTorch, numpy and safetensors (github.com/huggingface/safetensors, README "Format"). */
static const struct {
    const char *spelling;
    bp_dtype dtype;
} spellings[] = {
    {"float64", BP_DTYPE_FP64},
    {"double", BP_DTYPE_FP64},
    {"f64", BP_DTYPE_FP64},
    {"float32", BP_DTYPE_FP32},
    {"float", BP_DTYPE_FP32},
    {"f32", BP_DTYPE_FP32},
    {"float16", BP_DTYPE_FP16},
    {"half", BP_DTYPE_FP16},
    {"f16", BP_DTYPE_FP16},
    {"bfloat16", BP_DTYPE_BF16},
    {"fp8", BP_DTYPE_FP8_E4M3},
    {"float8", BP_DTYPE_FP8_E4M3},
    {"f8_e4m3", BP_DTYPE_FP8_E4M3},
    {"float8_e4m3fn", BP_DTYPE_FP8_E4M3},
    {"float8_e5m2", BP_DTYPE_FP8_E5M2},
    {"f8_e5m2", BP_DTYPE_FP8_E5M2},
    {"f8_e8m0", BP_DTYPE_FP8_E8M0},
    {"float8_e8m0fnu", BP_DTYPE_FP8_E8M0},
    {"f6_e2m3", BP_DTYPE_FP6_E2M3},
    {"f6_e3m2", BP_DTYPE_FP6_E3M2},
    {"f4", BP_DTYPE_FP4_E2M1},
    {"float4_e2m1fn_x2", BP_DTYPE_FP4_E2M1},
    {"u8", BP_DTYPE_UINT8},
    {"i8", BP_DTYPE_INT8},
    {"u16", BP_DTYPE_UINT16},
    {"i16", BP_DTYPE_INT16},
    {"u32", BP_DTYPE_UINT32},
    {"i32", BP_DTYPE_INT32},
    {"u64", BP_DTYPE_UINT64},
    {"i64", BP_DTYPE_INT64},
    {"boolean", BP_DTYPE_BOOL},
    {"c64", BP_DTYPE_COMPLEX64},
};

static bool is_dtype(bp_dtype dtype)
{
    return (int)dtype > BP_DTYPE_NONE && (int)dtype < BP_DTYPE_COUNT;
}

uint32_t bp_dtype_bits(bp_dtype dtype)
{
    return is_dtype(dtype) ? dtypes[dtype].bits : 0;
}

const char *bp_dtype_name(bp_dtype dtype)
{
    return is_dtype(dtype) || dtype == BP_DTYPE_NONE ? dtypes[dtype].name : "invalid";
}

bp_status bp_dtype_parse(const char *name, bp_dtype *dtype)
{
    if (name == NULL || dtype == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_dtype_parse: the name or the output is NULL");
    const char *plain = strncasecmp(name, "torch.", 6) == 0 ? name + 6 : name;
    for (int i = BP_DTYPE_NONE + 1; i < BP_DTYPE_COUNT; i++) {
        if (strcasecmp(plain, dtypes[i].name) == 0) {
            *dtype = (bp_dtype)i;
            return BP_OK;
        }
    }
    for (size_t i = 0; i < sizeof spellings / sizeof *spellings; i++) {
        if (strcasecmp(plain, spellings[i].spelling) == 0) {
            *dtype = spellings[i].dtype;
            return BP_OK;
        }
    }
    char known[320];
    size_t used = 0;
    for (int i = BP_DTYPE_NONE + 1; i < BP_DTYPE_COUNT && used < sizeof known; i++)
        used += (size_t)snprintf(known + used, sizeof known - used, "%s%s", i > 1 ? ", " : "", dtypes[i].name);
    return bp_fail(BP_ERR_INVALID_ARGUMENT, "unknown dtype \"%.40s\"; known: %s", name, known);
}

bp_dtype bp_dtype_storage(bp_dtype dtype)
{
    return dtype == BP_DTYPE_FP8_E4M3 || dtype == BP_DTYPE_FP8_E5M2 || dtype == BP_DTYPE_FP8_E8M0 ? BP_DTYPE_UINT8
                                                                                                  : dtype;
}

int bp_dtype_is_gradient(bp_dtype dtype)
{
    return dtype == BP_DTYPE_FP64 || dtype == BP_DTYPE_FP32 || dtype == BP_DTYPE_FP16 || dtype == BP_DTYPE_BF16;
}

bp_status bp_dtype_bytes(bp_dtype dtype, uint64_t numel, uint64_t *bytes)
{
    if (!is_dtype(dtype) || bytes == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_dtype_bytes: unknown dtype %d", (int)dtype);
    /* eight elements are `bits` bytes; the number of bits may overflow */
    uint64_t bits = dtypes[dtype].bits, whole, rest = (numel % 8 * bits + 7) / 8;
    if (!bp_mul_u64(numel / 8, bits, &whole) || !bp_add_u64(whole, rest, &whole))
        return bp_fail(BP_ERR_OVERFLOW, "bp_dtype_bytes: the size of %llu elements of %s exceeds 64 bits",
                       (unsigned long long)numel, dtypes[dtype].name);
    *bytes = whole;
    return BP_OK;
}
