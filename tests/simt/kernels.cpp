#include "kernels.h"

#include "launch.h"

#include "logprob/cuda/kernels.cu"

#include <atomic>
#include <cstdio>
#include <cstdlib>

static std::atomic<uint64_t> seed;

void simt_seed(uint64_t value)
{
    seed = value;
}

template <class Work, void (*kernel)(Work)> static void run_kernel(const void *argument)
{
    kernel(*static_cast<const Work *>(argument));
}

template <class Work, void (*kernel)(Work)>
static void run(const unsigned grid[3], const unsigned block[3], unsigned, const void *argument)
{
    const std::string wrong = simt::launch({grid[0], grid[1], grid[2]}, {block[0], block[1], block[2]}, seed++,
                                           run_kernel<Work, kernel>, argument);
    if (!wrong.empty()) {
        std::fprintf(stderr, "simt: %s\n", wrong.c_str());
        std::abort();
    }
}

#define KERNEL(work, name)                                                                                             \
    {#name, sizeof(work), run<work, name>},                                                                            \
    {                                                                                                                  \
#name "_entropy", sizeof(work), run < work, name##_entropy>                                                    \
    }

const fake_kernel fake_kernels[] = {
    KERNEL(bp_partials_work, bp_partials_fp32),
    KERNEL(bp_partials_work, bp_partials_bf16),
    KERNEL(bp_partials_work, bp_partials_fp16),
    KERNEL(bp_gradient_work, bp_gradient_fp32_fp32),
    KERNEL(bp_gradient_work, bp_gradient_bf16_fp32),
    KERNEL(bp_gradient_work, bp_gradient_bf16_bf16),
    KERNEL(bp_gradient_work, bp_gradient_fp16_fp32),
    KERNEL(bp_gradient_work, bp_gradient_fp16_fp16),
    KERNEL(bp_gradient_work, bp_gradient_fp32_bf16),
    KERNEL(bp_gradient_work, bp_gradient_fp32_fp16),
    {"bp_finish", sizeof(bp_finish_work), run<bp_finish_work, bp_finish>},
    {"bp_finish_bad", sizeof(bp_finish_work), run<bp_finish_work, bp_finish_bad>},
    {"bp_rows_32", sizeof(bp_rows_work), run<bp_rows_work, bp_rows_32>},
    {"bp_rows_16", sizeof(bp_rows_work), run<bp_rows_work, bp_rows_16>},
    {"bp_rows_fp32_bf16", sizeof(bp_rows_work), run<bp_rows_work, bp_rows_fp32_bf16>},
    {"bp_rows_fp32_fp16", sizeof(bp_rows_work), run<bp_rows_work, bp_rows_fp32_fp16>},
    {nullptr, 0, nullptr},
};
