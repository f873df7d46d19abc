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


def adopted(function, names):
    """A replacement of bucketpool.torch.adopt, which leaves calls to the original for a reason; here they fail with it.
    names: those of the peer's module.
    """
    @functools.wraps(function)
    def call(*arguments, **keywords):
        result = function(names, *arguments, **keywords)
        if isinstance(result, str):
            raise NotOffered(result)
        return result
    return call


def applied(function):
    """A class whose apply is `function`, as autograd functions have it."""
    return type("Applied", (), {"apply": staticmethod(counted(function))})


# ---- SkyRL ---------------------------------------------------------------------------------------------------------


def skyrl(names):
    from bucketpool.torch import _replacements as ours
    from bucketpool.torch import logprob

    def entropy(vocab_parallel_logits, chunk_size=None, chunk_memory_mb=512):
        reason = ours._not_ours(vocab_parallel_logits)
        if reason:
            raise NotOffered(reason)
        return logprob.vocab_parallel_entropy(vocab_parallel_logits, chunk_size=chunk_size,
                                              chunk_memory_mb=chunk_memory_mb)

    def weighted_sum(vocab_parallel_logits, weights, chunk_size=None, chunk_memory_mb=512):
        return (entropy(vocab_parallel_logits) * weights).sum()

    return {"ChunkedDistributedLogprob": applied(adopted(ours.skyrl_chunks, names)),
            "DistributedLogprob": applied(adopted(ours.skyrl_logprob, names)),
            "FusedLinearChunkedDistributedLogprob": applied(adopted(ours.skyrl_head, names)),
            "vocab_parallel_entropy": counted(entropy), "vocab_parallel_entropy_weighted_sum": counted(weighted_sum)}


# ---- AReaL ---------------------------------------------------------------------------------------------------------


def areal(names):
    from bucketpool.torch import _replacements as ours
    from bucketpool.torch import logprob

    def logprobs(logits, labels, tp_group, temperature=1.0):
        return logprob.gather_logprobs(logits, labels, temperature, tp_group)

    def logprobs_entropy(logits, labels, tp_group, temperature=1.0):
        return logprob.gather_logprobs_entropy(logits, labels, temperature, tp_group)

    return {"_vocab_parallel_logprobs": counted(logprobs),
            "_vocab_parallel_logprobs_entropy": counted(logprobs_entropy),
            "gather_logprobs": counted(adopted(ours.areal_logprobs, names)),
            "gather_logprobs_entropy": counted(adopted(ours.areal_both, names))}


# ---- verl ----------------------------------------------------------------------------------------------------------


def verl_logits(names):
    from bucketpool.torch import _replacements as ours

    names["FLAH_ATTN_CROSS_ENTROPY_LOSS_AVAILABLE"] = True  # verl's tests run where flash-attn is installed
    return {"logprobs_from_logits": counted(adopted(ours.verl_logprobs, names)),
            "entropy_from_logits": counted(adopted(ours.verl_entropy, names))}


def verl_head(names):
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


def liger(names):
    from bucketpool.torch import _replacements as ours

    def asserted(function, ids, classes):
        """Their error of an id outside the vocabulary is an AssertionError."""
        def call(*arguments, **keywords):
            target, columns = arguments[ids], classes(*arguments)
            ignored = keywords.get("ignore_index", arguments[ids + 2] if len(arguments) > ids + 2 else -100)
            assert ((target == ignored) | (target >= 0) & (target < columns)).all(), "a target is out of bounds"
            return function(*arguments, **keywords)
        return call

    loss = asserted(adopted(ours.liger_loss, names), 1, lambda logits, *_: logits.shape[-1])
    return {"LigerCrossEntropyFunction": applied(loss),
            "LigerFusedLinearCrossEntropyFunction": applied(adopted(ours.liger_head, names))}


def liger_vocab_parallel(names):
    from bucketpool.torch import _replacements as ours

    def vocab_parallel(logits, *arguments):
        if logits.dim() != 3:
            raise ValueError("logits are not 3-D")
        return adopted(ours.liger_ranks, names)(logits, *arguments)

    return {"LigerVocabParallelCEFunction": applied(vocab_parallel)}


# ---- TRL -----------------------------------------------------------------------------------------------------------


def trl(names):
    import torch

    from bucketpool.torch import _replacements as ours
    from bucketpool.torch import logprob

    def chunked(hidden, weight, targets, temperature, chunk_size, final_logit_softcapping=None, logit_scale=1.0):
        scaled = hidden if logit_scale == 1 else hidden * logit_scale
        narrow = hidden.dtype == weight.dtype == torch.bfloat16  # their logits have that dtype
        return logprob.linear_logprobs_and_entropy(scaled, weight, targets, temperature=temperature,
                                                   soft_cap=final_logit_softcapping,
                                                   round_to=torch.bfloat16 if narrow else None)

    return {"selective_log_softmax": counted(adopted(ours.trl_logprobs, names)),
            "entropy_from_logits": counted(adopted(ours.trl_entropy, names)),
            "_ChunkedLogProbFunction": applied(chunked)}


REPLACED = {
    "SkyRL": {"skyrl.backends.skyrl_train.distributed.megatron.model_utils": skyrl},
    "AReaL": {"areal.utils.functional.vocab_parallel": areal},
    "verl": {"verl.utils.torch_functional": verl_logits, "verl.utils.kernel.linear_cross_entropy": verl_head},
    "Liger-Kernel": {"liger_kernel.ops": liger,
                     "liger_kernel.ops.vocab_parallel_cross_entropy": liger_vocab_parallel},
    "trl": {"trl.trainer.utils": trl},
}
