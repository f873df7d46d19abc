#include "logprob/host/kernels.h"

const bp_host_kernels *bp_kernels_choose(uint32_t allowed)
{
    const bp_host_kernels *best = bp_kernels_of_machine(allowed);
    return best != NULL ? best : &bp_kernels_plain;
}
