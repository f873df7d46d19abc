/* The kernels, one entry point per dtype combination, with the names that engine.c builds. Each takes one structure of work.h by value. */
#include "logprob/cuda/gradient.cuh"
#include "logprob/cuda/partials.cuh"
#include "logprob/cuda/range.cuh"
#include "logprob/cuda/sequences.cuh"

/* Limit of kernel arguments on every GPU. */
static_assert(sizeof(bp_rearrange_work) <= 4096, "a group of sequences is too large for a kernel's argument");
static_assert(sizeof(bp_sums_work) <= 4096, "a group of sequences is too large for a kernel's argument");
static_assert(sizeof(bp_seed_work) <= 4096, "a group of sequences is too large for a kernel's argument");

#define PARTIALS(x)                                                                                                    \
    BP_KERNEL(device::x::bytes == 2 ? 6 : 2) bp_partials_##x(BP_ARGUMENT bp_partials_work work)                        \
    {                                                                                                                  \
        device::make_partials<device::x, false>(work);                                                                 \
    }                                                                                                                  \
    BP_KERNEL(device::x::bytes == 2 ? 6 : 2) bp_partials_##x##_entropy(BP_ARGUMENT bp_partials_work work)              \
    {                                                                                                                  \
        device::make_partials<device::x, true>(work);                                                                  \
    }

#define GRADIENT(x, y)                                                                                                 \
    BP_KERNEL(6) bp_gradient_##x##_##y(BP_ARGUMENT bp_gradient_work work)                                              \
    {                                                                                                                  \
        device::make_gradient<device::x, device::y, false>(work);                                                      \
    }                                                                                                                  \
    BP_KERNEL(6) bp_gradient_##x##_##y##_entropy(BP_ARGUMENT bp_gradient_work work)                                    \
    {                                                                                                                  \
        device::make_gradient<device::x, device::y, true>(work);                                                       \
    }

#define NARROWER_GRADIENT(y)                                                                                           \
    BP_KERNEL(6) bp_gradient_fp32_##y(BP_ARGUMENT bp_gradient_work work)                                               \
    {                                                                                                                  \
        device::make_narrower_gradient<device::y, false>(work);                                                        \
    }                                                                                                                  \
    BP_KERNEL(6) bp_gradient_fp32_##y##_entropy(BP_ARGUMENT bp_gradient_work work)                                     \
    {                                                                                                                  \
        device::make_narrower_gradient<device::y, true>(work);                                                         \
    }

PARTIALS(fp32)
PARTIALS(bf16)
PARTIALS(fp16)

GRADIENT(fp32, fp32)
GRADIENT(bf16, fp32)
GRADIENT(bf16, bf16)
GRADIENT(fp16, fp32)
GRADIENT(fp16, fp16)
NARROWER_GRADIENT(bf16)
NARROWER_GRADIENT(fp16)

BP_KERNEL(2) bp_finish(BP_ARGUMENT bp_finish_work work)
{
    device::make_outputs(work);
}

/* A single thread, after bp_finish. */
BP_KERNEL(2) bp_finish_bad(BP_ARGUMENT bp_finish_work work)
{
    device::note_bad_value(work);
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
    device::sum_sequences(work);
}

BP_KERNEL(8) bp_seed(BP_ARGUMENT bp_seed_work work)
{
    device::make_seeds(work);
}
