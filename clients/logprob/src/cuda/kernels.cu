/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels, one entry point per dtype combination, with the names that engine.c builds. Each takes one structure of work.h by value. */
#include "cuda/divergence.cuh"
#include "cuda/fused.cuh"
#include "cuda/range.cuh"
#include "cuda/sequences.cuh"

/* Limit of kernel arguments on every GPU. */
static_assert(sizeof(bp_rearrange_work) <= 4096, "a group of sequences is too large for a kernel's argument");
static_assert(sizeof(bp_sums_work) <= 4096, "a group of sequences is too large for a kernel's argument");
static_assert(sizeof(bp_seed_work) <= 4096, "a group of sequences is too large for a kernel's argument");

/* The general form has more to keep in registers, and one block less. `blocks`: on a multiprocessor. */
#define FORMS(blocks, ...) FORMS_OF(BP_MAX_THREADS, blocks, __VA_ARGS__)
/* The general form of realigned rows would spill registers. */
#define FUSED(x, y)                                                                                                    \
    FORMS_OF(BP_FUSED_THREADS, 2, bp_fused_##x##_##y, bp_fused_work, make_fused, device::x, device::y, false)          \
    FIRST_FORMS(BP_FUSED_THREADS, 2, bp_fused_realigned_##x##_##y, bp_fused_work, make_fused, device::x, device::y,    \
                true)

#define FIRST_FORMS(threads, blocks, name, work_type, function, ...)                                                   \
    BP_KERNEL_OF(threads, blocks) name(BP_ARGUMENT work_type work)                                                     \
    {                                                                                                                  \
        device::function<__VA_ARGS__, device::PLAIN>(work);                                                            \
    }                                                                                                                  \
    BP_KERNEL_OF(threads, blocks) name##_entropy(BP_ARGUMENT work_type work)                                           \
    {                                                                                                                  \
        device::function<__VA_ARGS__, device::ENTROPY>(work);                                                          \
    }

#define FORMS_OF(threads, blocks, name, work_type, function, ...)                                                      \
    FIRST_FORMS(threads, blocks, name, work_type, function, __VA_ARGS__)                                               \
    BP_KERNEL_OF(threads, (blocks) > 2 ? (blocks)-1 : (blocks)) name##_general(BP_ARGUMENT work_type work)             \
    {                                                                                                                  \
        device::function<__VA_ARGS__, device::GENERAL>(work);                                                          \
    }

FORMS(3, bp_forward_fp32, bp_forward_work, make_forward, device::fp32)
FORMS(6, bp_forward_bf16, bp_forward_work, make_forward, device::bf16)
FORMS(6, bp_forward_fp16, bp_forward_work, make_forward, device::fp16)

FORMS(6, bp_gradient_fp32_fp32, bp_gradient_work, make_gradient, device::fp32, device::fp32)
FORMS(6, bp_gradient_bf16_fp32, bp_gradient_work, make_gradient, device::bf16, device::fp32)
FORMS(6, bp_gradient_bf16_bf16, bp_gradient_work, make_gradient, device::bf16, device::bf16)
FORMS(6, bp_gradient_fp16_fp32, bp_gradient_work, make_gradient, device::fp16, device::fp32)
FORMS(6, bp_gradient_fp16_fp16, bp_gradient_work, make_gradient, device::fp16, device::fp16)
FORMS(6, bp_gradient_fp32_bf16, bp_gradient_work, make_narrower_gradient, device::bf16)
FORMS(6, bp_gradient_fp32_fp16, bp_gradient_work, make_narrower_gradient, device::fp16)

FUSED(fp32, fp32)
FUSED(bf16, fp32)
FUSED(bf16, bf16)
FUSED(fp16, fp32)
FUSED(fp16, fp16)

BP_KERNEL(2) bp_finish(BP_ARGUMENT bp_finish_work work)
{
    device::make_results(work);
}

#define DIVERGENCE(x)                                                                                                  \
    BP_KERNEL(3) bp_divergence_##x(BP_ARGUMENT bp_divergence_work work)                                                \
    {                                                                                                                  \
        device::make_divergence<device::x>(work);                                                                      \
    }
#define DIVERGENCE_GRADIENT(x, y)                                                                                      \
    BP_KERNEL(6) bp_divergence_gradient_##x##_##y(BP_ARGUMENT bp_divergence_gradient_work work)                        \
    {                                                                                                                  \
        device::make_divergence_gradient<device::x, device::y>(work);                                                  \
    }

DIVERGENCE(fp32)
DIVERGENCE(bf16)
DIVERGENCE(fp16)
DIVERGENCE_GRADIENT(fp32, fp32)
DIVERGENCE_GRADIENT(bf16, fp32)
DIVERGENCE_GRADIENT(bf16, bf16)
DIVERGENCE_GRADIENT(fp16, fp32)
DIVERGENCE_GRADIENT(fp16, fp16)

BP_KERNEL(2) bp_divergence_finish(BP_ARGUMENT bp_divergence_finish_work work)
{
    device::make_divergence_results(work);
}

#define ROWS(name, x, y, same)                                                                                         \
    BP_KERNEL(2) bp_rows_##name(BP_ARGUMENT bp_rows_work work)                                                         \
    {                                                                                                                  \
        device::copy_rows<device::x, device::y, same>(work);                                                           \
    }

ROWS(32, fp32, fp32, true)
ROWS(16, bf16, bf16, true)
ROWS(fp32_bf16, fp32, bf16, false)
ROWS(fp32_fp16, fp32, fp16, false)

#define COLUMNS(x)                                                                                                     \
    BP_KERNEL(8) bp_columns_##x(BP_ARGUMENT bp_columns_work work)                                                      \
    {                                                                                                                  \
        device::sum_columns<device::x>(work);                                                                          \
    }

COLUMNS(fp32)
COLUMNS(bf16)
COLUMNS(fp16)

#define RANGE(x)                                                                                                       \
    BP_KERNEL(8) bp_range_##x(BP_ARGUMENT bp_range_work work)                                                          \
    {                                                                                                                  \
        device::make_ranges<device::x>(work);                                                                          \
    }

RANGE(fp32)
RANGE(bf16)
RANGE(fp16)

#define REARRANGE(bytes)                                                                                               \
    BP_KERNEL(8) bp_rearrange_##bytes(BP_ARGUMENT bp_rearrange_work work)                                              \
    {                                                                                                                  \
        device::rearrange_tokens<device::word<bytes>>(work);                                                           \
    }

REARRANGE(1)
REARRANGE(2)
REARRANGE(4)
REARRANGE(8)
REARRANGE(16)

BP_KERNEL_OF(BP_SUMS_THREADS, 2) bp_sums(BP_ARGUMENT bp_sums_work work)
{
    device::sum_pieces(work);
}

BP_KERNEL_OF(BP_SUMS_THREADS, 2) bp_merge_sums(BP_ARGUMENT bp_sums_work work)
{
    device::merge_pieces(work);
}

BP_KERNEL(8) bp_seed(BP_ARGUMENT bp_seed_work work)
{
    device::make_seeds(work);
}
