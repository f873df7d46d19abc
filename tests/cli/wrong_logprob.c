/* SPDX-License-Identifier: Apache-2.0 */
/* Loaded before bucketpool-logprob: results that are a little wrong, to see that they are found. WRONG_LOGPROB says which. */
#include <bucketpool/lm_head.h>

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

static int is_wrong(const char *what)
{
    const char *wanted = getenv("WRONG_LOGPROB");
    return wanted != NULL && strcmp(wanted, what) == 0;
}

static void *next(const char *name)
{
    return dlsym(RTLD_NEXT, name);
}

BP_API bp_status bp_logprob_forward(bp_logprob *client, const bp_logprob_batch *batch,
                                    const bp_logprob_outputs *outputs, bp_stream *stream)
{
    bp_status (*forward)(bp_logprob *, const bp_logprob_batch *, const bp_logprob_outputs *, bp_stream *);
    bp_logprob_batch warmer = *batch;
    bp_logprob_outputs fewer = *outputs;
    *(void **)&forward = next("bp_logprob_forward");
    if (is_wrong("forward"))
        warmer.tokens.temperature = 1.001f;
    if (is_wrong("unwritten"))
        fewer.logprob.data = NULL;
    return forward(client, &warmer, &fewer, stream);
}

BP_API bp_status bp_logprob_backward(bp_logprob *client, const bp_logprob_batch *batch,
                                     const bp_logprob_gradients *gradients, bp_stream *stream)
{
    bp_status (*backward)(bp_logprob *, const bp_logprob_batch *, const bp_logprob_gradients *, bp_stream *);
    bp_logprob_gradients fewer = *gradients;
    *(void **)&backward = next("bp_logprob_backward");
    if (is_wrong("backward"))
        fewer.logprob_grad.data = NULL;
    if (is_wrong("entropy"))
        fewer.entropy_grad.data = NULL;
    return backward(client, batch, &fewer, stream);
}

BP_API bp_status bp_lm_head_backward(bp_lm_head *head, const bp_lm_head_batch *batch,
                                     const bp_lm_head_gradients *gradients, bp_stream *stream)
{
    bp_status (*backward)(bp_lm_head *, const bp_lm_head_batch *, const bp_lm_head_gradients *, bp_stream *);
    bp_lm_head_gradients fewer = *gradients;
    *(void **)&backward = next("bp_lm_head_backward");
    if (is_wrong("weight"))
        fewer.weight_grad = NULL;
    if (is_wrong("hidden"))
        fewer.hidden_grad.data = NULL;
    return backward(head, batch, &fewer, stream);
}
