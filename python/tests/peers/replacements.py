# SPDX-License-Identifier: Apache-2.0
"""Our functions with the arguments of the peers' functions, by the module and the name that they replace.

Each call is counted in the file BUCKETPOOL_PEER_CALLS, by whatever process makes it: a test that passes without a call
shows nothing."""

import functools
import os


def counted(function):
    @functools.wraps(function, updated=())
    def call(*arguments, **keywords):
        handle = os.open(os.environ["BUCKETPOOL_PEER_CALLS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(handle, b".")
        os.close(handle)
        return function(*arguments, **keywords)
    return call


class NotOffered(Exception):
    """A test asks for what ours do not compute."""


def unsupported(**options):
    asked = [name for name, value in options.items() if value]
    if asked:
        raise NotOffered(", ".join(asked))


def applied(function):
    """A class whose apply is `function`, as autograd functions have it."""
    return type("Applied", (), {"apply": staticmethod(counted(function))})


# ---- SkyRL ---------------------------------------------------------------------------------------------------------


def skyrl():
    import torch

    from bucketpool.torch import logprob

    def entropy(vocab_parallel_logits, chunk_size=None, chunk_memory_mb=512):
        return logprob.vocab_parallel_entropy(vocab_parallel_logits, chunk_size=chunk_size,
                                              chunk_memory_mb=chunk_memory_mb)

    def weighted_sum(vocab_parallel_logits, weights, chunk_size=None, chunk_memory_mb=512):
        return (entropy(vocab_parallel_logits) * weights).sum()

    def fused(hidden, weight, target, start, end, chunk_size, tp_group, inference_only=False):
        # their logits have the wider dtype of both
        narrow = hidden.dtype == weight.dtype == torch.bfloat16
        return logprob.linear_logprobs(hidden, weight, target, group=tp_group, vocab_start_index=start,
                                       vocab_end_index=end, chunk_size=chunk_size, inference_only=inference_only,
                                       partial_hidden_grad=True, round_to=torch.bfloat16 if narrow else None)

    names = ("ChunkedDistributedLogprob", "DistributedLogprob")
    return {**{name: applied(getattr(logprob, name).apply) for name in names},
            "FusedLinearChunkedDistributedLogprob": applied(fused),
            "vocab_parallel_entropy": counted(entropy), "vocab_parallel_entropy_weighted_sum": counted(weighted_sum)}


# ---- AReaL ---------------------------------------------------------------------------------------------------------


def areal():
    from bucketpool.torch import logprob

    def logprobs(logits, labels, tp_group, temperature=1.0):
        return logprob.gather_logprobs(logits, labels, temperature, tp_group)

    def logprobs_entropy(logits, labels, tp_group, temperature=1.0):
        return logprob.gather_logprobs_entropy(logits, labels, temperature, tp_group)

    return {"_vocab_parallel_logprobs": counted(logprobs),
            "_vocab_parallel_logprobs_entropy": counted(logprobs_entropy),
            "gather_logprobs": counted(logprob.gather_logprobs),
            "gather_logprobs_entropy": counted(logprob.gather_logprobs_entropy)}


# ---- verl ----------------------------------------------------------------------------------------------------------


def verl_logits():
    from bucketpool.torch import logprob

    def logprobs(logits, labels, inplace_backward=True):
        in_place = inplace_backward and logits.requires_grad and not logits.is_leaf
        return logprob.logprobs_from_logits(logits, labels.reshape(logits.shape[:-1]), in_place=in_place)

    return {"logprobs_from_logits": counted(logprobs),
            "entropy_from_logits": counted(logprob.vocab_parallel_entropy)}


def verl_head():
    from bucketpool.torch import logprob

    def both(hidden, weight, labels, temperature=1.0, reduction="none", dist_process_group=None):
        if reduction != "none":
            raise NotOffered("reduction")
        # the caller sums the gradient of the hidden states over the ranks
        return logprob.linear_logprobs_and_entropy(hidden.flatten(0, -2), weight, labels.flatten(),
                                                   group=dist_process_group, temperature=temperature,
                                                   partial_hidden_grad=dist_process_group is not None)

    return {"linear_cross_entropy": counted(both)}


# ---- Liger ---------------------------------------------------------------------------------------------------------


def reduced(values, kept, reduction):
    return values if reduction == "none" else values.sum() / (kept.sum() if reduction == "mean" else 1)


def in_the_vocabulary(target, ignore_index, columns):
    assert ((target == ignore_index) | (target >= 0) & (target < columns)).all(), "a target is out of bounds"


def smoothed(statistics, label_smoothing, lse_square_scale=0.0):
    """The loss of each token, and its z-loss."""
    z_loss = lse_square_scale * statistics.logsumexp**2
    logprobs, mean = statistics.logprobs, statistics.mean_logprobs
    return (label_smoothing - 1) * logprobs - (label_smoothing * mean if label_smoothing else 0) + z_loss, z_loss


def liger():
    from bucketpool.torch import logprob

    def outputs(statistics, target, ignore_index, lse_square_scale, label_smoothing, reduction, return_z_loss, dtype):
        kept = target != ignore_index
        loss, z_loss = (reduced(values, kept, reduction).to(dtype)
                        for values in smoothed(statistics, label_smoothing, lse_square_scale))
        return loss, z_loss if return_z_loss else None, None, None

    def cross_entropy(logits, target, weight=None, ignore_index=-100, lse_square_scale=0.0, label_smoothing=0.0,
                      reduction="mean", softcap=None, return_z_loss=False, return_token_accuracy=False,
                      return_predicted_tokens=False):
        unsupported(weight=weight is not None, token_accuracy=return_token_accuracy,
                    predicted_tokens=return_predicted_tokens)
        in_the_vocabulary(target, ignore_index, logits.shape[-1])
        statistics = logprob.token_statistics(logits, target, ignore_index=ignore_index, soft_cap=softcap)
        return outputs(statistics, target, ignore_index, lse_square_scale, label_smoothing, reduction, return_z_loss,
                       logits.dtype)

    def fused(hidden, weight, target, bias=None, ce_weight=None, ignore_index=-100, lse_square_scale=0.0,
              label_smoothing=0.0, reduction="mean", softcap=None, return_z_loss=False, accum_dtype=None,
              use_token_scaling=False, return_token_accuracy=False, return_predicted_tokens=False):
        unsupported(weight=ce_weight is not None, token_scaling=use_token_scaling,
                    token_accuracy=return_token_accuracy, predicted_tokens=return_predicted_tokens)
        in_the_vocabulary(target, ignore_index, weight.shape[0])
        statistics = logprob.linear_token_statistics(hidden, weight, target, ignore_index=ignore_index, bias=bias,
                                                     soft_cap=softcap)
        return outputs(statistics, target, ignore_index, lse_square_scale, label_smoothing, reduction, return_z_loss,
                       statistics.logsumexp.dtype)

    return {"LigerCrossEntropyFunction": applied(cross_entropy),
            "LigerFusedLinearCrossEntropyFunction": applied(fused)}


def liger_vocab_parallel():
    from bucketpool.torch import logprob

    def vocab_parallel(logits, target, tp_group, ignore_index, label_smoothing, label_smoothing_formula,
                       label_smoothing_mode):
        if logits.dim() != 3:
            raise ValueError("logits are not 3-D")
        group = tp_group if tp_group is not None and tp_group.size() > 1 else None
        unsupported(smoothing_by_rank=label_smoothing and group is not None and label_smoothing_mode != "global")
        columns = logits.shape[-1] * (1 if group is None else group.size())
        if label_smoothing_formula == "megatron":
            label_smoothing *= columns / (columns - 1)
        statistics = logprob.token_statistics(logits, target, group=group, ignore_index=ignore_index)
        return smoothed(statistics, label_smoothing)[0]

    return {"LigerVocabParallelCEFunction": applied(vocab_parallel)}


# ---- TRL -----------------------------------------------------------------------------------------------------------


def trl():
    import torch

    from bucketpool.torch import logprob

    def selective(logits, index):
        return logprob.logprobs_from_logits(logits, index).to(logits.dtype)

    def chunked(hidden, weight, targets, temperature, chunk_size, final_logit_softcapping=None, logit_scale=1.0):
        scaled = hidden if logit_scale == 1 else hidden * logit_scale
        narrow = hidden.dtype == weight.dtype == torch.bfloat16  # their logits have that dtype
        return logprob.linear_logprobs_and_entropy(scaled, weight, targets, temperature=temperature,
                                                   soft_cap=final_logit_softcapping,
                                                   round_to=torch.bfloat16 if narrow else None)

    def entropy(logits, chunk_size=128):
        return logprob.vocab_parallel_entropy(logits, chunk_size=chunk_size).to(logits.dtype)

    return {"selective_log_softmax": counted(selective), "entropy_from_logits": counted(entropy),
            "_ChunkedLogProbFunction": applied(chunked)}


REPLACED = {
    "SkyRL": {"skyrl.backends.skyrl_train.distributed.megatron.model_utils": skyrl},
    "AReaL": {"areal.utils.functional.vocab_parallel": areal},
    "verl": {"verl.utils.torch_functional": verl_logits, "verl.utils.kernel.linear_cross_entropy": verl_head},
    "Liger-Kernel": {"liger_kernel.ops": liger,
                     "liger_kernel.ops.vocab_parallel_cross_entropy": liger_vocab_parallel},
    "trl": {"trl.trainer.utils": trl},
}
