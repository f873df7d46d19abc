/* SPDX-License-Identifier: Apache-2.0 */
/* Log-probabilities and entropies of tokens and the gradient of their logits; then the same from hidden states, without any logits.
 * docs/concepts/log_probabilities.md goes through it. */
#include <bucketpool/bucketpool.h>
#include <bucketpool/lm_head.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { TOKENS = 3, HIDDEN = 2, VOCAB = 4 };

static float hidden[TOKENS][HIDDEN] = {{1, 0}, {0, 1}, {1, -2}};
static float weight[VOCAB][HIDDEN] = {{1, 0}, {2, 1}, {3, 0}, {4, -1}};
static int64_t target[TOKENS] = {2, 0, 3};
static float saved[3 * TOKENS]; /* 12 bytes a token, with entropies */

static void check(bp_status status)
{
    if (status != BP_OK) {
        fprintf(stderr, "%s: %s\n", bp_status_name(status), bp_error_detail());
        exit(1);
    }
}

/* A value for each token; with stride 0 the same value for all of them. */
static bp_token_values values(void *data, int64_t stride)
{
    return (bp_token_values){.data = data, .stride = stride};
}

static bp_token_rows rows(void *data, uint64_t columns)
{
    return (bp_token_rows){.data = data, .dtype = BP_DTYPE_FP32, .batch = 1, .sequence = TOKENS, .columns = columns};
}

static void use_logits(bp_device *device, bp_logprob_outputs *outputs, float *upstream)
{
    float logits[TOKENS][VOCAB], gradient[TOKENS][VOCAB];
    for (int i = 0; i < TOKENS * VOCAB; i++)
        logits[i / VOCAB][i % VOCAB] =
            hidden[i / VOCAB][0] * weight[i % VOCAB][0] + hidden[i / VOCAB][1] * weight[i % VOCAB][1];

    bp_logprob *client;
    bp_logprob_config config;
    bp_logprob_batch batch;
    bp_logprob_gradients gradients;
    check(bp_logprob_config_init(&config, sizeof config));
    check(bp_logprob_batch_init(&batch, sizeof batch));
    check(bp_logprob_gradients_init(&gradients, sizeof gradients));
    config.max_tokens = TOKENS;
    config.vocab = VOCAB;
    batch.logits = rows(logits, VOCAB);
    batch.tokens.target = values(target, 1);
    gradients.logprob_grad = values(upstream, 0);
    gradients.saved = saved;
    gradients.saved_bytes = sizeof saved;
    gradients.logits_grad = rows(gradient, VOCAB);
    check(bp_logprob_create(device, &config, &client));
    check(bp_logprob_forward(client, &batch, outputs, NULL)); /* without a stream: done when it returns */
    check(bp_logprob_backward(client, &batch, &gradients, NULL));
    bp_logprob_destroy(&client);

    const float *logprob = outputs->logprob.data, *entropy = outputs->entropy.data;
    for (int t = 0; t < TOKENS; t++)
        printf("token %d: log-probability %.6f, entropy %.6f, gradient %.6f %.6f %.6f %.6f\n", t, logprob[t],
               entropy[t], gradient[t][0], gradient[t][1], gradient[t][2], gradient[t][3]);
}

/* Both passes in one call. Two tokens in one piece: that much of the logits is ever there. */
static int use_head(bp_device *device, bp_logprob_outputs *outputs, float *upstream)
{
    float hidden_grad[TOKENS][HIDDEN], weight_grad[VOCAB][HIDDEN];
    bp_lm_head *head;
    bp_lm_head_config config;
    bp_lm_head_batch batch;
    bp_lm_head_gradients gradients;
    check(bp_lm_head_config_init(&config, sizeof config));
    check(bp_lm_head_batch_init(&batch, sizeof batch));
    check(bp_lm_head_gradients_init(&gradients, sizeof gradients));
    config.max_tokens = TOKENS;
    config.hidden = HIDDEN;
    config.vocab = VOCAB;
    config.dtype = BP_DTYPE_FP32;
    config.chunk = 2;
    config.passes = BP_LM_HEAD_ONE_CALL;
    batch.hidden = rows(hidden, HIDDEN);
    batch.weight = weight;
    batch.tokens.target = values(target, 1);
    gradients.logprob_grad = values(upstream, 0);
    gradients.hidden_grad = rows(hidden_grad, HIDDEN);
    gradients.weight_grad = weight_grad;
    bp_status status = bp_lm_head_create(device, &config, &head);
    if (status == BP_ERR_UNSUPPORTED) { /* without a BLAS library */
        printf("no fused head: %s\n", bp_error_detail());
        return 0;
    }
    check(status);
    check(bp_lm_head_forward_backward(head, &batch, outputs, &gradients, NULL));
    bp_lm_head_destroy(&head);
    printf("fused head: gradient of the last hidden state %.6f %.6f, of the last row of the weight %.6f %.6f\n",
           hidden_grad[TOKENS - 1][0], hidden_grad[TOKENS - 1][1], weight_grad[VOCAB - 1][0],
           weight_grad[VOCAB - 1][1]);
    return 1;
}

int main(void)
{
    float logprob[TOKENS], entropy[TOKENS], head_logprob[TOKENS], head_entropy[TOKENS], upstream = 0.5f, apart = 0;
    bp_device *device;
    bp_logprob_outputs outputs;
    check(bp_device_create_host(NULL, &device));
    check(bp_logprob_outputs_init(&outputs, sizeof outputs));
    outputs.logprob = values(logprob, 1);
    outputs.entropy = values(entropy, 1);
    outputs.saved = saved;
    outputs.saved_bytes = sizeof saved;
    use_logits(device, &outputs, &upstream);

    outputs.logprob = values(head_logprob, 1);
    outputs.entropy = values(head_entropy, 1);
    if (use_head(device, &outputs, &upstream)) {
        for (int t = 0; t < TOKENS; t++)
            apart = fmaxf(apart, fmaxf(fabsf(logprob[t] - head_logprob[t]), fabsf(entropy[t] - head_entropy[t])));
        printf("with logits and without: %s\n", apart < 1e-5f ? "the same" : "not the same");
    }
    bp_device_destroy(&device);
    return apart >= 1e-5f;
}
