#include "tables.h"

#include <bucketpool/logprob.h>

const char *const dtype_names[DTYPES] = {"fp32", "bf16", "fp16"};

size_t tables(const bp_host_kernels *found[3])
{
    static const uint32_t bits[] = {BP_KERNELS_PLAIN, BP_KERNELS_AVX2, BP_KERNELS_AVX512};
    size_t count = 0;
    for (size_t i = 0; i < COUNT(bits); i++) {
        const bp_host_kernels *kernels = bp_kernels_choose(bits[i]);
        if (kernels->bit == bits[i])
            found[count++] = kernels;
    }
    return count;
}

void each(per_table *check)
{
    const bp_host_kernels *found[3];
    size_t count = tables(found);
    for (size_t i = 0; i < count; i++) {
        for (int dtype = 0; dtype < DTYPES; dtype++)
            check(found[i], dtype);
    }
}
