/* What a kind of device does for the clients: kernels in stream order. Arguments were checked before. */
#ifndef BP_LOGPROB_ENGINE_H
#define BP_LOGPROB_ENGINE_H

#include <bucketpool/device.h>

#include "logprob/work.h"

typedef struct bp_engine bp_engine;

typedef struct bp_engine_ops {
    void (*destroy)(bp_engine *engine); /* all its work is done */
    bp_status (*partials)(bp_engine *engine, const bp_partials_work *work, bp_stream *stream);
    bp_status (*finish)(bp_engine *engine, const bp_finish_work *work, bp_stream *stream);
    bp_status (*gradient)(bp_engine *engine, const bp_gradient_work *work, bp_stream *stream);
    bp_status (*range)(bp_engine *engine, const bp_range_work *work, bp_stream *stream);
    bp_status (*rearrange)(bp_engine *engine, const bp_rearrange_work *work, bp_stream *stream);
    bp_status (*sums)(bp_engine *engine, const bp_sums_work *work, bp_stream *stream);
    bp_status (*seed)(bp_engine *engine, const bp_seed_work *work, bp_stream *stream);
} bp_engine_ops;

struct bp_engine {
    const bp_engine_ops *ops;
    const char *kernels; /* "plain", "avx2", "avx512", "cuda" */
    uint32_t threads;
};

/* `columns`: the most a row will have. `threads`, `kernels`: as in bp_logprob_config. */
bp_status bp_engine_create_host(uint32_t threads, uint32_t kernels, uint64_t columns, bp_engine **engine);
/* BP_ERR_UNSUPPORTED in builds without CUDA kernels, and on devices of another architecture. */
bp_status bp_engine_create_cuda(bp_device *device, bp_engine **engine);

#endif
