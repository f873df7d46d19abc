/* Which vector kernels an x86-64 machine, and its operating system, can run. */
#include <cpuid.h>

#include "logprob/host/kernels.h"

#include <bucketpool/logprob.h>

/* Not every compiler's __builtin_cpu_supports knows it. */
static bool has_f16c(void)
{
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C) != 0;
}

static bool has_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
}

static bool has_avx512(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") && has_avx2();
}

const bp_host_kernels *bp_kernels_of_machine(uint32_t allowed)
{
    __builtin_cpu_init();
    if ((allowed & BP_KERNELS_AVX512) != 0 && has_avx512())
        return &bp_kernels_avx512;
    if ((allowed & BP_KERNELS_AVX2) != 0 && has_avx2())
        return &bp_kernels_avx2;
    return NULL;
}
