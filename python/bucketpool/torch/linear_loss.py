# SPDX-License-Identifier: Apache-2.0
"""Losses of hidden states whose gradients are known in forward but for a factor: one call makes loss and gradients.

    from bucketpool.torch.linear_loss import linear_cross_entropy

    loss, logprobs = linear_cross_entropy(hidden, weight, labels)                          # labels of -100 are ignored
    loss, logprobs = linear_cross_entropy(hidden, weight, ids, token_weights=advantages)   # policy gradient at ratio 1
    loss.backward()                                                                        # multiplies the gradients

A piece of tokens has its logits, their gradient and the products with it in turn: three matrix products in all, as
many as with stored logits. linear_logprobs, whose upstream gradients come in backward, takes four where its logits do
not fit its memory.

Memory. Forward allocates the gradients of the tensors that require one, that of the weight in float32 where tokens
take several pieces, and the logits of a piece. Backward allocates nothing. Nothing else is saved.

Tensors, targets, ranks, streams and errors are as in bucketpool.torch.lm_head.
"""

from typing import Any, NamedTuple, Optional, Tuple

import torch
import torch.distributed as dist

from ..errors import InvalidArgument, Unsupported
from . import _tensors
from ._head import Gradients, Maybe, both, local_shards, outputs_of_head
from ._passes import (ENTROPY, IGNORED, LOGPROB, MEAN_LOGPROB, Asked, Temperature, integer, number, untraced)

__all__ = ["CrossEntropy", "LinearGradients", "linear_cross_entropy", "linear_logprobs_with_gradient"]


class CrossEntropy(NamedTuple):
    """loss: one number, differentiable. logprobs: of the shape of targets, not differentiable. Both float32."""

    loss: torch.Tensor
    logprobs: torch.Tensor


class LinearGradients(NamedTuple):
    """entropy: None without its upstream gradient. Gradients are in the dtype of their tensor, and None for tensors
    that require none.
    """

    logprobs: torch.Tensor
    entropy: Maybe
    hidden_grad: Maybe
    weight_grad: Maybe
    bias_grad: Maybe


def _require(*tensors: Any) -> Tuple[bool, ...]:
    return tuple(isinstance(tensor, torch.Tensor) and tensor.requires_grad for tensor in tensors)


def linear_logprobs_with_gradient(hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor,
                                  logprob_grad: torch.Tensor, entropy_grad: Optional[torch.Tensor] = None, *,
                                  bias: Optional[torch.Tensor] = None, group: Optional[dist.ProcessGroup] = None,
                                  vocab_start_index: Optional[int] = None, vocab_end_index: Optional[int] = None,
                                  chunk_size: Optional[int] = None, memory: Optional[int] = None,
                                  temperature: Temperature = 1.0, mask: Optional[torch.Tensor] = None,
                                  ignore_index: Optional[int] = IGNORED, outside: str = "error",
                                  partial_hidden_grad: bool = False, soft_cap: Optional[float] = None,
                                  round_to: Optional[torch.dtype] = None) -> LinearGradients:
    """Log-probabilities, and the gradients of hidden states, weight and bias for upstream gradients that are known
    before. Without autograd; the caller continues backward:

        result = linear_logprobs_with_gradient(hidden, weight, targets, -mask / mask.sum())
        weight.grad = result.weight_grad
        hidden.backward(result.hidden_grad)

    - logprob_grad, entropy_grad: floating-point, of the shape of targets and of the tokens

    Further arguments as in bucketpool.torch.lm_head.linear_logprobs. Collective with a group. torch.compile breaks the
    graph here.
    """
    outputs = LOGPROB if entropy_grad is None else LOGPROB | ENTROPY
    asked = Asked("linear_logprobs_with_gradient", outputs, group, vocab_start_index, vocab_end_index, chunk_size,
                  temperature, mask, ignore_index, soft_cap, round_to, outside, partial_hidden_grad=partial_hidden_grad,
                  memory=memory)
    return untraced(_with_gradient)(hidden, weight, bias, targets, logprob_grad, entropy_grad, asked)


def _with_gradient(hidden: Any, weight: Any, bias: Any, targets: Any, logprob_grad: Any, entropy_grad: Any,
                   asked: Asked) -> LinearGradients:

    def above() -> Tuple[Maybe, ...]:
        shape, device = hidden.shape[:-1], hidden.device
        return (_tensors.token_gradient("logprob_grad", logprob_grad, targets.shape, device),
                None if entropy_grad is None else _tensors.token_gradient("entropy_grad", entropy_grad, shape, device),
                None, None)

    with torch.no_grad():
        results, gradients = both(hidden, weight, bias, targets, asked, above, _require(hidden, weight, bias))
    return LinearGradients(results[0], results[1],  # type: ignore[arg-type]
                           *map(_tensors.sharded_as, gradients, (hidden, weight, bias)))


def linear_cross_entropy(hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor, *,
                         token_weights: Optional[torch.Tensor] = None, reduction: str = "mean",
                         label_smoothing: float = 0.0, bias: Optional[torch.Tensor] = None,
                         group: Optional[dist.ProcessGroup] = None, vocab_start_index: Optional[int] = None,
                         vocab_end_index: Optional[int] = None, chunk_size: Optional[int] = None,
                         memory: Optional[int] = None, temperature: Temperature = 1.0,
                         mask: Optional[torch.Tensor] = None, ignore_index: Optional[int] = IGNORED,
                         outside: str = "error", partial_hidden_grad: bool = False, soft_cap: Optional[float] = None,
                         round_to: Optional[torch.dtype] = None) -> CrossEntropy:
    """The weighted cross entropy - sum of w ((1 - e) lp + e A), over the tokens that are neither masked nor ignored,
    with the log-probability lp of the target, the mean A over the vocabulary, and e = label_smoothing.

    - token_weights: w, floating-point, of the shape of targets; None: ones. Not differentiable: advantages, masks
    - reduction: "mean": divided by the number of these tokens, 0 without any; "sum"
    - targets: one for each token

    Backward may run once: it multiplies the gradients that forward has made, in their dtypes, by the gradient of the
    loss; on GPUs by 1, too. Factors in token_weights (with reduction="sum") cost no second rounding; in float16 that of
    GradScaler has to be there, or small gradients become 0.

    Further arguments as in bucketpool.torch.lm_head.linear_logprobs. Collective with a group. torch.compile breaks the
    graph here.
    """
    smoothing = number("label_smoothing", label_smoothing)
    what = "linear_cross_entropy"
    if not 0 <= smoothing <= 1:
        raise InvalidArgument(f"{what}: label_smoothing {smoothing}; expected a number in [0, 1]")
    if reduction not in ("mean", "sum"):
        raise InvalidArgument(f"{what}: reduction {reduction!r}; expected 'mean' or 'sum'")
    asked = Asked(what, LOGPROB | (MEAN_LOGPROB if smoothing else 0), group, vocab_start_index, vocab_end_index,
                  chunk_size, temperature, mask, ignore_index, soft_cap, round_to, outside,
                  partial_hidden_grad=partial_hidden_grad, memory=memory)
    return untraced(_cross_entropy)(hidden, weight, bias, targets, token_weights, reduction, smoothing, asked)


def _cross_entropy(hidden: Any, weight: Any, bias: Any, targets: Any, token_weights: Any, reduction: str,
                   smoothing: float, asked: Asked) -> CrossEntropy:
    factors: Any = None
    try:
        weight, bias, asked = local_shards(hidden, weight, bias, asked)
    except InvalidArgument:
        pass  # the call below raises it again, on all ranks

    def above() -> Tuple[Maybe, ...]:
        nonlocal factors
        factors = _factors(asked, hidden.shape[:-1], targets, token_weights, reduction)
        return factors * (1 - smoothing), None, None, factors * smoothing if smoothing else None

    needs = _require(hidden, weight, bias) if torch.is_grad_enabled() else (False, False, False)
    gradients: Gradients = (None, None, None)
    with torch.no_grad():
        if any(needs):
            results, gradients = both(hidden, weight, bias, targets, asked, above, needs)
        else:
            results = outputs_of_head(hidden, weight, bias, targets, asked)
            above()
        logprobs, means = results[0], results[3]
        assert logprobs is not None  # because `asked` has LOGPROB
        parts = logprobs if means is None else (1 - smoothing) * logprobs + smoothing * means
        loss = torch.where(factors == 0, 0.0, factors * parts).sum()  # 0 times -inf is 0 here
    if any(needs):
        connected: Any = _Multiplied.apply
        loss = connected(loss, hidden, weight, bias, *gradients)
    return CrossEntropy(loss, logprobs)


def _factors(asked: Asked, shape: torch.Size, targets: Any, weights: Any, reduction: str) -> torch.Tensor:
    """Derivatives of the loss by the log-probabilities, float32 of the shape of targets."""
    if _tensors.check_target(targets, shape, targets.device) > 1:
        raise InvalidArgument(f"{asked.what}: targets of shape {list(targets.shape)} for tokens {list(shape)}; pass one "
                              "for each token")
    mask = _tensors.token_mask(asked.mask, shape, targets.device)
    ignored = integer("ignore_index", asked.ignore_index)
    counts = torch.ones_like(targets, dtype=torch.bool) if ignored is None else targets != ignored
    if mask is not None:
        counts = counts & (mask != 0)
    factors = -counts.float()
    if weights is not None:
        if isinstance(weights, torch.Tensor) and weights.requires_grad:
            raise InvalidArgument(f"{asked.what}: token_weights require a gradient, which is not computed; pass "
                                  "token_weights.detach(), or use linear_logprobs")
        factors = torch.where(counts, -_tensors.token_gradient("token_weights", weights, shape, targets.device), 0.0)
    return factors if reduction == "sum" else factors / counts.sum().clamp(min=1)


class _Multiplied(torch.autograd.Function):
    """The loss, whose gradients have been made; backward multiplies them by the upstream gradient, in place."""

    @staticmethod
    def forward(ctx: Any, loss: torch.Tensor, hidden: torch.Tensor, weight: torch.Tensor, bias: Maybe,
                *gradients: Maybe) -> torch.Tensor:
        ctx.save_for_backward(*gradients)
        ctx.is_spent = False
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Tuple[Maybe, ...]:
        factor = grads[0]
        if ctx.is_spent or torch.is_grad_enabled():
            raise Unsupported("linear_cross_entropy: a second backward, or second derivatives: the gradients of forward "
                              "have been passed on; use linear_logprobs, whose backward may be repeated")
        ctx.is_spent = True
        gradients = ctx.saved_tensors
        if type(factor) is not torch.Tensor or factor.device.type != "cpu" or factor.item() != 1:
            for gradient in gradients:
                if gradient is not None:
                    gradient.mul_(factor)
        return (None, *gradients, None, None, None)
