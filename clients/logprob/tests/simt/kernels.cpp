/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels.h"

#include "launch.h"

#include "cuda/kernels.cu"

#include <atomic>
#include <cstdio>
#include <cstdlib>

static std::atomic<uint64_t> seed;

void simt_seed(uint64_t value)
{
    seed = value;
}

simt_traffic simt_take_traffic()
{
    return {simt::moved.loaded.exchange(0), simt::moved.stored.exchange(0), simt::moved.accesses.exchange(0)};
}

template <class Work, void (*kernel)(Work)> static void run_kernel(const void *argument)
{
    kernel(*static_cast<const Work *>(argument));
}

/* Kernels loop over what their blocks leave, so every other launch has fewer blocks: results must not depend on them. */
static unsigned some_of(unsigned blocks, uint64_t number)
{
    return number % 2 == 0 ? blocks : 1 + static_cast<unsigned>(number * 0x9e3779b97f4a7c15u >> 33) % blocks;
}

template <class Work, void (*kernel)(Work)>
static void run(const unsigned grid[3], const unsigned block[3], unsigned shared_bytes, const void *argument)
{
    const uint64_t number = seed++;
    const std::string wrong = simt::launch({some_of(grid[0], number), grid[1], grid[2]}, {block[0], block[1], block[2]},
                                           number, run_kernel<Work, kernel>, argument, shared_bytes);
    if (!wrong.empty()) {
        std::fprintf(stderr, "simt: %s\n", wrong.c_str());
        std::abort();
    }
}

template <class Work, void (*kernel)(Work)> static constexpr fake_kernel named(const char *name)
{
    return {name, sizeof(Work), run<Work, kernel>};
}

#define KERNEL(work, name) named<work, name>(#name)
#define TWO_KERNELS(work, name) KERNEL(work, name), KERNEL(work, name##_entropy)
#define KERNELS(work, name) TWO_KERNELS(work, name), KERNEL(work, name##_general)

const fake_kernel fake_kernels[] = {
    KERNELS(bp_forward_work, bp_forward_fp32),
    KERNELS(bp_forward_work, bp_forward_bf16),
    KERNELS(bp_forward_work, bp_forward_fp16),
    KERNELS(bp_gradient_work, bp_gradient_fp32_fp32),
    KERNELS(bp_gradient_work, bp_gradient_bf16_fp32),
    KERNELS(bp_gradient_work, bp_gradient_bf16_bf16),
    KERNELS(bp_gradient_work, bp_gradient_fp16_fp32),
    KERNELS(bp_gradient_work, bp_gradient_fp16_fp16),
    KERNELS(bp_gradient_work, bp_gradient_fp32_bf16),
    KERNELS(bp_gradient_work, bp_gradient_fp32_fp16),
    KERNELS(bp_fused_work, bp_fused_fp32_fp32),
    TWO_KERNELS(bp_fused_work, bp_fused_realigned_fp32_fp32),
    KERNELS(bp_fused_work, bp_fused_bf16_fp32),
    TWO_KERNELS(bp_fused_work, bp_fused_realigned_bf16_fp32),
    KERNELS(bp_fused_work, bp_fused_bf16_bf16),
    TWO_KERNELS(bp_fused_work, bp_fused_realigned_bf16_bf16),
    KERNELS(bp_fused_work, bp_fused_fp16_fp32),
    TWO_KERNELS(bp_fused_work, bp_fused_realigned_fp16_fp32),
    KERNELS(bp_fused_work, bp_fused_fp16_fp16),
    TWO_KERNELS(bp_fused_work, bp_fused_realigned_fp16_fp16),
    KERNEL(bp_finish_work, bp_finish),
    KERNEL(bp_divergence_work, bp_divergence_fp32),
    KERNEL(bp_divergence_work, bp_divergence_bf16),
    KERNEL(bp_divergence_work, bp_divergence_fp16),
    KERNEL(bp_divergence_gradient_work, bp_divergence_gradient_fp32_fp32),
    KERNEL(bp_divergence_gradient_work, bp_divergence_gradient_bf16_fp32),
    KERNEL(bp_divergence_gradient_work, bp_divergence_gradient_bf16_bf16),
    KERNEL(bp_divergence_gradient_work, bp_divergence_gradient_fp16_fp32),
    KERNEL(bp_divergence_gradient_work, bp_divergence_gradient_fp16_fp16),
    KERNEL(bp_divergence_finish_work, bp_divergence_finish),
    KERNEL(bp_rows_work, bp_rows_32),
    KERNEL(bp_rows_work, bp_rows_16),
    KERNEL(bp_rows_work, bp_rows_fp32_bf16),
    KERNEL(bp_rows_work, bp_rows_fp32_fp16),
    KERNEL(bp_columns_work, bp_columns_fp32),
    KERNEL(bp_columns_work, bp_columns_bf16),
    KERNEL(bp_columns_work, bp_columns_fp16),
    KERNEL(bp_range_work, bp_range_fp32),
    KERNEL(bp_range_work, bp_range_bf16),
    KERNEL(bp_range_work, bp_range_fp16),
    KERNEL(bp_rearrange_work, bp_rearrange_1),
    KERNEL(bp_rearrange_work, bp_rearrange_2),
    KERNEL(bp_rearrange_work, bp_rearrange_4),
    KERNEL(bp_rearrange_work, bp_rearrange_8),
    KERNEL(bp_rearrange_work, bp_rearrange_16),
    KERNEL(bp_sums_work, bp_sums),
    KERNEL(bp_sums_work, bp_merge_sums),
    KERNEL(bp_seed_work, bp_seed),
    {nullptr, 0, nullptr},
};
