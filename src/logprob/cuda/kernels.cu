/* The kernels: of each a name for its dtypes, as engine.c puts it together. An argument is one structure of work.h, by value. */
#include "logprob/cuda/finish.cuh"
#include "logprob/cuda/gradient.cuh"
#include "logprob/cuda/partials.cuh"
#include "logprob/cuda/rows.cuh"

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

/* One thread, after bp_finish. */
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
