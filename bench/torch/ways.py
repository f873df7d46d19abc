"""Implementations ("ways") of target log-probabilities in PyTorch: bucketpool, PyTorch, and other packages.

A way is a function of (logits, target) or (hidden, weight, target); tensors are [..., tokens, columns]. With `entropy` it returns two
outputs. WAYS and HEAD_WAYS are tables of them."""

import os
from typing import Any, Callable, NamedTuple

import torch
from torch.nn import functional

from wheels import Unavailable, attribute

# ---- from logits -------------------------------------------------------------------------------------------------------


def plain(logits, target, entropy=False):
    """log_softmax of the logits in fp32, gathered."""
    logs = logits.float().log_softmax(-1)
    lp = logs.gather(-1, target[..., None])[..., 0]
    return (lp, -(logs.exp() * logs).sum(-1)) if entropy else (lp, )


def narrow(logits, target):
    """log_softmax in the logits' dtype, gathered."""
    return (logits.log_softmax(-1).gather(-1, target[..., None])[..., 0], )


def chunked(logits, target, entropy=False):
    """Like plain, in pieces of 1024 tokens that are recomputed in backward."""
    from torch.utils.checkpoint import checkpoint
    pieces = [checkpoint(plain, *piece, entropy, use_reentrant=False) for piece in zip(logits.split(1024, -2), target.split(1024, -1))]
    return tuple(torch.cat(parts, -1) for parts in zip(*pieces))


class Recomputed(torch.autograd.Function):
    """The algorithm of SkyRL's chunked function: fp32 softmax of 1024 tokens at a time, recomputed in backward, which fills one fp32
    gradient; autograd casts it to the logits' dtype."""

    @staticmethod
    def forward(ctx, logits, target):
        ctx.save_for_backward(logits, target)
        pieces = [plain(*piece)[0] for piece in zip(logits.split(1024, -2), target.split(1024, -1))]
        return torch.cat(pieces, -1)

    @staticmethod
    def backward(ctx, upstream):
        logits, target = ctx.saved_tensors
        gradient = torch.empty(logits.shape, dtype=torch.float32, device=logits.device)
        for out, x, t, g in zip(gradient.split(1024, -2), logits.split(1024, -2), target.split(1024, -1), upstream.split(1024, -1)):
            torch.softmax(x.float(), -1, out=out)
            out.neg_().scatter_add_(-1, t[..., None], torch.ones_like(g)[..., None]).mul_(g[..., None])
        return gradient, None


def bucketpool(logits, target, entropy=False, in_place=False):
    from bucketpool.torch import logprob
    if entropy:
        return logprob.logprobs_and_entropy(logits, target, in_place=in_place)
    return (logprob.logprobs_from_logits(logits, target, in_place=in_place), )


def in_place(logits, target, entropy=False):
    return bucketpool(logits, target, entropy, True)


def difference(logits, target):
    logits = logits.float()
    return logits.gather(-1, target[..., None])[..., 0] - logits.logsumexp(-1)


# ---- from hidden states ------------------------------------------------------------------------------------------------


def linear(hidden, weight, target, entropy=False):
    """The head's logits, then like plain."""
    return plain(functional.linear(hidden, weight), target, entropy)


def fused(hidden, weight, target, entropy=False, chunk_size=1024):
    """In chunks of the default size."""
    from bucketpool.torch import logprob
    if entropy:
        return logprob.linear_logprobs_and_entropy(hidden, weight, target, chunk_size=chunk_size)
    return (logprob.linear_logprobs(hidden, weight, target, chunk_size=chunk_size), )


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


def _of(function):
    return lambda device: lambda *tensors: function(*tensors)[0]


def _compiled(device):
    # On a CPU without the code generator, which would take longer than all other ways together.
    return torch.compile(difference, dynamic=False, backend="inductor" if device == "cuda" else "eager")


def _needs_triton(device):
    """Triton's kernels run on a GPU or interpreted."""
    attribute("triton", "__version__")
    if device != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
        raise Unavailable("its Triton kernels need a GPU")


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
    Way("SkyRL's algorithm, chunks of 1024", lambda device: Recomputed.apply, grad="float32"),
    Way("torch cross_entropy, reduction none",
        lambda device: lambda logits, target: functional.cross_entropy(logits, target, reduction="none"), loss=True),
    Way("Liger cross entropy, reduction sum", _liger("sum"), compiles=True, loss=True, summed=True, in_place=True),
    Way("torch log_softmax, gather", _of(narrow)),
    Way("torch.compile of gather - logsumexp", _compiled, compiles=True),
]
HEAD_WAYS = [
    Way("bucketpool", lambda device: lambda *tensors: fused(*tensors, chunk_size=1024)[0], grad="float32", ours=True),
    Way("torch linear, log_softmax in fp32, gather", _of(linear)),
    Way("Liger fused linear cross entropy, reduction none", _liger_head("none"), compiles=True, loss=True),
    Way("cut-cross-entropy, all gradients", _cce(None), compiles=True, loss=True),
    Way("cut-cross-entropy, small gradients left out", _cce("high"), compiles=True, loss=True),
    Way("Liger fused linear cross entropy, reduction sum", _liger_head("sum"), compiles=True, loss=True, summed=True),
    Way("fla fused linear cross entropy, reduction sum", _fla, compiles=True, loss=True, summed=True, grad="float32"),
]
