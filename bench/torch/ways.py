# SPDX-License-Identifier: Apache-2.0
"""Implementations ("ways") of target log-probabilities in PyTorch: bucketpool, PyTorch, and other packages.

A way is a function of (logits, target) or (hidden, weight, target); tensors are [tokens, columns]. WAYS and HEAD_WAYS are tables of
them."""

import os
from typing import Any, Callable, NamedTuple

import torch
import torch.distributed as dist
from torch.nn import functional

from peers import Unavailable, attribute, skyrl

# ---- from logits -------------------------------------------------------------------------------------------------------


def plain(logits, target):
    """log_softmax of the logits in fp32, gathered."""
    return logits.float().log_softmax(-1).gather(-1, target[..., None])[..., 0]


def narrow(logits, target):
    """log_softmax in the logits' dtype, gathered."""
    return logits.log_softmax(-1).gather(-1, target[..., None])[..., 0]


def chunked(logits, target):
    """Like plain, in pieces of 1024 tokens that are recomputed in backward."""
    from torch.utils.checkpoint import checkpoint
    return torch.cat([checkpoint(plain, *piece, use_reentrant=False) for piece in zip(logits.split(1024, -2), target.split(1024, -1))], -1)


def bucketpool(logits, target, in_place=False):
    from bucketpool.torch import logprob
    return logprob.logprobs_from_logits(logits, target, in_place=in_place)


def in_place(logits, target):
    return bucketpool(logits, target, True)


def difference(logits, target):
    logits = logits.float()
    return logits.gather(-1, target[..., None])[..., 0] - logits.logsumexp(-1)


# ---- from hidden states ------------------------------------------------------------------------------------------------


def linear(hidden, weight, target):
    """The head's logits, then like plain."""
    return plain(functional.linear(hidden, weight), target)


def fused(hidden, weight, target, memory=None):
    """In pieces of the tokens; with memory for all logits they are kept for backward."""
    from bucketpool.torch import logprob
    return logprob.linear_logprobs(hidden, weight, target, memory=memory)


def kept(hidden, weight, target):
    return fused(hidden, weight, target, memory=8 * len(hidden) * len(weight))


def one_call(hidden, weight, target):
    """The sum, with gradients that forward makes."""
    from bucketpool.torch.linear_loss import linear_cross_entropy
    return linear_cross_entropy(hidden, weight, target, reduction="sum").loss


# ---- tables of ways ----------------------------------------------------------------------------------------------------


class Way(NamedTuple):
    """`make(device)` returns the function of two-dimensional tensors, or raises Unavailable. The function returns log-probabilities, or
    with `loss` their negatives, or with `summed` the sum of these, whose gradient is known in forward. `grad`: the dtype in which the gradient
    is computed before it is cast, None: that of the result. `in_place`: it overwrites the logits."""

    name: str
    make: Callable[[str], Callable[..., Any]]
    loss: bool = False
    summed: bool = False
    grad: Any = None
    in_place: bool = False
    ours: bool = False
    compiles: bool = False  # compiles kernels on the first call, for an unknown time


COMPILER = "inductor"  # "eager" compiles nothing, for rehearsals


def _of(function):
    return lambda device: function


def _compiled(device):
    return torch.compile(difference, dynamic=False, backend=COMPILER)


def _skyrl(name, *chunk, head=False):
    """SkyRL's autograd function over a group of this process alone."""
    def make(device):
        apply = skyrl(name).apply
        if not dist.is_initialized():
            dist.init_process_group("nccl" if device == "cuda" else "gloo", store=dist.HashStore(), rank=0, world_size=1)

        def function(*tensors):
            columns = tensors[-2].shape[0 if head else -1]
            return apply(tensors[0][None], *tensors[1:-1], tensors[-1][None], 0, columns, *chunk, dist.group.WORLD, False)[0]
        return function
    return make


def _needs_triton(device):
    """Triton's kernels run on a GPU or interpreted."""
    if device != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
        raise Unavailable("its Triton kernels need a GPU")
    attribute("triton", "__version__")


def _liger(reduction):
    def make(device):
        _needs_triton(device)
        apply = attribute("liger_kernel.ops.cross_entropy", "LigerCrossEntropyFunction").apply
        return lambda logits, target: apply(logits, target, None, -100, 0.0, 0.0, reduction)[0]
    return make


def _liger_head(reduction):
    def make(device):
        _needs_triton(device)
        apply = attribute("liger_kernel.ops.fused_linear_cross_entropy", "LigerFusedLinearCrossEntropyFunction").apply
        return lambda hidden, weight, target: apply(hidden, weight, target, None, None, -100, 0.0, 0.0, reduction)[0]
    return make


def _cce(filter_eps):
    def make(device):
        _needs_triton(device)
        if device != "cuda":
            raise Unavailable("its kernels do not run interpreted")
        function = attribute("cut_cross_entropy", "linear_cross_entropy")
        return lambda hidden, weight, target: function(hidden, weight, target, reduction="none", filter_eps=filter_eps)
    return make


def _fla(device):
    _needs_triton(device)
    function = attribute("fla.modules.fused_linear_cross_entropy", "fused_linear_cross_entropy_loss")
    return lambda hidden, weight, target: function(hidden, target, weight, reduction="sum")


WAYS = [
    Way("bucketpool", _of(bucketpool), ours=True),
    Way("bucketpool, in place", _of(in_place), in_place=True, ours=True),
    Way("torch log_softmax in fp32, gather", _of(plain), grad="float32"),
    Way("Liger cross entropy, reduction none", _liger("none"), compiles=True, loss=True),
    Way("the same in checkpointed chunks of 1024", _of(chunked), grad="float32"),
    Way("SkyRL, chunks of 1024", _skyrl("ChunkedDistributedLogprob", 1024), grad="float32"),
    Way("SkyRL, without chunks", _skyrl("DistributedLogprob"), grad="float32"),
    Way("torch cross_entropy, reduction none",
        lambda device: lambda logits, target: functional.cross_entropy(logits, target, reduction="none"), loss=True),
    Way("Liger cross entropy, reduction sum", _liger("sum"), compiles=True, loss=True, summed=True, in_place=True),
    Way("torch log_softmax, gather", _of(narrow)),
    Way("torch.compile of gather - logsumexp", _compiled, compiles=True),
]
HEAD_WAYS = [
    Way("bucketpool, one call, sum", _of(one_call), loss=True, summed=True, grad="float32", ours=True),
    Way("bucketpool", _of(fused), ours=True),
    Way("bucketpool, logits kept", _of(kept), ours=True),
    Way("torch linear, log_softmax in fp32, gather", _of(linear)),
    Way("SkyRL fused linear, chunks of 1024", _skyrl("FusedLinearChunkedDistributedLogprob", 1024, head=True), grad="float32"),
    Way("Liger fused linear cross entropy, reduction none", _liger_head("none"), compiles=True, loss=True),
    Way("cut-cross-entropy, all gradients", _cce(None), compiles=True, loss=True),
    Way("cut-cross-entropy, small gradients left out", _cce("high"), compiles=True, loss=True),
    Way("Liger fused linear cross entropy, reduction sum", _liger_head("sum"), compiles=True, loss=True, summed=True),
    Way("fla fused linear cross entropy, reduction sum", _fla, compiles=True, loss=True, summed=True, grad="float32"),
]
