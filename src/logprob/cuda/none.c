/* Builds without CUDA kernels: there is no engine. */
#include "core/fail.h"
#include "logprob/engine.h"

bp_status bp_engine_create_cuda(bp_device *device, bp_engine **engine)
{
    (void)engine;
    return bp_fail(
        BP_ERR_UNSUPPORTED,
        "this build of bucketpool-logprob has no CUDA kernels, so device %s is of no use to it: build it where "
        "nvcc is (meson setup -Dkernels=enabled)",
        bp_device_name(device));
}
