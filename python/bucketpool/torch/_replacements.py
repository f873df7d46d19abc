# SPDX-License-Identifier: Apache-2.0
"""Functions with the parameters of others' (adopt.py), computed by bucketpool.torch.logprob.

Each takes the names of the original's module first, then the original's parameters, whose names, kinds and defaults
adopt.py compares. It returns the original's result in the original's dtype, or a sentence: the reason why the original
has to compute this call.
"""

import os
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

import torch
import torch.distributed as dist
import torch.nn.functional as F

from ..errors import InvalidArgument
from . import _tensors, logprob
from ._passes import through_operator
from .distillation import linear_topk_logprobs
from .linear_loss import linear_cross_entropy

Module = Dict[str, Any]
KERNELS: List[str] = []  # of the library, for GPUs; adopt.py sets it
EVERY_ID: Dict[str, Any] = dict(ignore_index=None)  # each id must be in the vocabulary
REDUCTIONS = "none", "mean", "sum"

# ---- calls that are not ours -----------------------------------------------------------------------------------------


def _not_ours(logits: Any, labels: Any = None, temperature: Any = 1.0, mask: Any = None, several: bool = False,
              name: str = "logits") -> Optional[str]:
    """Reason why the original has to compute a call, or None. labels: ids of the tokens' shape, or several for each;
    mask: of the labels' shape.
    """
    if type(logits) not in (torch.Tensor, torch.nn.Parameter) or logits.is_nested or logits.layout != torch.strided:
        return f"{name} are a {type(logits).__name__}, not a plain strided tensor"
    if logits.dtype not in _tensors.FLOATS:
        return f"{name} of {logits.dtype}"
    if logits.device.type not in ("cpu", "cuda") or logits.device.type == "cuda" and not KERNELS:
        return f"{name} on {logits.device.type}, for which this build of bucketpool has no kernels"
    least = 1 if labels is None else 2
    if logits.dim() < least or logits.numel() == 0:
        return f"{name} of {logits.dim()} dimensions" if logits.dim() < least else f"{name} without elements"
    if type(temperature) not in (int, float) or not 2e-38 < temperature < 8e37:
        return f"temperature is not a positive number, but a {type(temperature).__name__}"
    if labels is not None:
        if type(labels) is not torch.Tensor or labels.dtype not in (torch.int64, torch.int32):
            return "labels are not a plain tensor of int64 or int32"
        of_token = labels.shape == logits.shape[:-1]
        of_k = several and labels.shape[:-1] == logits.shape[:-1] and 1 <= labels.shape[-1] <= 128
        if labels.device != logits.device or not (of_token or of_k):
            return "labels of another shape or device than the tokens"
    if mask is not None and (type(mask) is not torch.Tensor or mask.device != logits.device
                             or mask.shape != (logits.shape[:-1] if labels is None else labels.shape)):
        return "a mask of another shape or device than the tokens"
    return None


def _overwritable(logits: torch.Tensor) -> bool:
    """True if backward can overwrite the logits with their gradient."""
    if not logits.requires_grad or through_operator(logits):
        return False
    try:
        logprob._check_overwritten("adopt", logits)
    except InvalidArgument:
        return False
    return True


def _softmax_dtype(logits: torch.Tensor) -> torch.dtype:
    """The dtype of log_softmax, which autocast decides too."""
    if logits.dtype == torch.float32:
        return logits.dtype
    return F.log_softmax(logits.new_empty(0, 1), -1).dtype


def _product_dtype(weight: torch.Tensor) -> torch.dtype:
    """Of hidden states, which are cast to the weight's dtype, and the weight."""
    kind = weight.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else weight.dtype


# ---- TRL -------------------------------------------------------------------------------------------------------------


def _trl_dtype(module: Module, *arguments: Any) -> torch.dtype:
    """TRL's own kernel, where it runs, returns float32."""
    runs = module.get("_supports_trl_loss_kernel")
    if runs is not None and module["is_triton_available"]() and runs(*arguments):
        return torch.float32
    return _softmax_dtype(arguments[0])


def trl_logprobs(module: Module, logits: Any, index: Any, temperature: Any = 1.0, row_mask: Any = None) -> Any:
    reason = _not_ours(logits, index, temperature, row_mask, several=True)
    if reason:
        return reason
    kept = None if row_mask is None else row_mask != 0
    of_token = index.shape == logits.shape[:-1]
    result = logprob.logprobs_from_logits(logits, index, temperature=temperature, mask=kept if of_token else None,
                                          **EVERY_ID)
    if kept is not None and not of_token:
        result = result.masked_fill(~kept, 0.0)
    return result.to(_trl_dtype(module, logits, index, row_mask))


def trl_entropy(module: Module, logits: Any, chunk_size: Any = 128) -> Any:
    return _not_ours(logits) or logprob.vocab_parallel_entropy(logits).to(_trl_dtype(module, logits))


def trl_both(module: Module, logits: Any, index: Any, entropy_requires_grad: Any = True, temperature: Any = 1.0,
             row_mask: Any = None) -> Any:
    reason = _not_ours(logits, index, temperature, row_mask)
    if reason:
        return reason
    kept = None if row_mask is None else row_mask != 0
    logprobs, entropy = logprob.logprobs_and_entropy(logits, index, temperature=temperature, mask=kept, **EVERY_ID)
    dtype = _trl_dtype(module, logits, index, row_mask)
    return logprobs.to(dtype), (entropy if entropy_requires_grad else entropy.detach()).to(dtype)


# ---- verl and SkyRL --------------------------------------------------------------------------------------------------


def _flash(module: Module) -> bool:
    """True if the original calls flash-attn: results in float32, -100 is ignored, and backward overwrites logits."""
    if module.get("FLAH_ATTN_CROSS_ENTROPY_LOSS_AVAILABLE"):  # verl spells it so
        return os.environ.get("VERL_DISABLE_FLASH_ATTN_CE", "0") != "1"
    return bool(module.get("FLASH_ATTN_CROSS_ENTROPY_LOSS_AVAILABLE"))


def verl_logprobs(module: Module, logits: Any, labels: Any, inplace_backward: Any = True) -> Any:
    flash = _flash(module)
    if flash and isinstance(labels, torch.Tensor) and labels.numel() == logits.shape[:-1].numel():
        labels = labels.reshape(logits.shape[:-1])
    reason = _not_ours(logits, labels)
    if reason:
        return reason
    if flash:
        return logprob.logprobs_from_logits(logits, labels, in_place=inplace_backward and _overwritable(logits),
                                            **{**EVERY_ID, "ignore_index": -100})
    return logprob.logprobs_from_logits(logits, labels, **EVERY_ID).to(_softmax_dtype(logits))


def verl_entropy(module: Module, logits: Any) -> Any:
    return _not_ours(logits) or logprob.vocab_parallel_entropy(logits).to(_softmax_dtype(logits))


def verl_entropy_chunks(module: Module, logits: Any, chunk_size: Any = 2048) -> Any:
    reason = _not_ours(logits) or (f"logits of {logits.dim()} dimensions" if logits.dim() != 2 else None)
    return reason or logprob.vocab_parallel_entropy(logits).to(torch.get_default_dtype())


def skyrl_entropy(module: Module, logits: Any, requires_grad: Any = False, attention_mask: Any = None,
                  chunk_size: Any = 1024) -> Any:
    reason = _not_ours(logits, mask=attention_mask)
    if reason or logits.dim() != 3:
        return reason or f"logits of {logits.dim()} dimensions"
    kept = None if attention_mask is None else attention_mask != 0
    result = logprob.vocab_parallel_entropy(logits, mask=kept, inference_only=not requires_grad)
    return (result if attention_mask is None else result * attention_mask).to(logits.dtype)


# ---- tensor-parallel ranks of Megatron, in verl and SkyRL ------------------------------------------------------------


def _not_megatron(logits: Any, labels: Any = None) -> Optional[str]:
    reason = _not_ours(logits, labels)
    return reason or ("autocast" if torch.is_autocast_enabled(logits.device.type) else None)


def tp_entropy(module: Module, vocab_parallel_logits: Any) -> Any:
    reason = _not_megatron(vocab_parallel_logits)
    group = module["mpu"].get_tensor_model_parallel_group()
    return reason or logprob.vocab_parallel_entropy(vocab_parallel_logits, group).to(vocab_parallel_logits.dtype)


def tp_entropy_chunks(module: Module, vocab_parallel_logits: Any, chunk_size: Any = 2048) -> Any:
    reason = _not_megatron(vocab_parallel_logits)
    if reason or vocab_parallel_logits.dim() != 3:
        return reason or f"logits of {vocab_parallel_logits.dim()} dimensions"
    group = module["mpu"].get_tensor_model_parallel_group()
    return logprob.vocab_parallel_entropy(vocab_parallel_logits, group).to(torch.get_default_dtype())


def tp_logprobs(module: Module, logits: Any, labels: Any) -> Any:
    group = module["mpu"].get_tensor_model_parallel_group()
    return _not_megatron(logits, labels) or logprob.logprobs_from_logits(logits, labels, group=group, **EVERY_ID)


def _group(group: Any) -> Any:
    """SkyRL passes None to torch.distributed: the default group."""
    return dist.group.WORLD if group is None else group


def skyrl_logprob(module: Module, vocab_parallel_logits: Any, target: Any, vocab_start_index: Any,
                  vocab_end_index: Any, group: Any, inference_only: Any = False) -> Any:
    return _not_ours(vocab_parallel_logits, target) or logprob.DistributedLogprob.apply(
        vocab_parallel_logits, target, vocab_start_index, vocab_end_index, _group(group), inference_only)


def skyrl_chunks(module: Module, vocab_parallel_logits: Any, target: Any, vocab_start_index: Any,
                 vocab_end_index: Any, chunk_size: Any, tp_group: Any, inference_only: Any = False) -> Any:
    return _not_ours(vocab_parallel_logits, target) or logprob.ChunkedDistributedLogprob.apply(
        vocab_parallel_logits, target, vocab_start_index, vocab_end_index, chunk_size, _group(tp_group), inference_only)


def skyrl_head(module: Module, hidden: Any, weight: Any, target: Any, vocab_start_index: Any, vocab_end_index: Any,
               chunk_size: Any, tp_group: Any, inference_only: Any = False) -> Any:
    reason = _not_ours(hidden, target, name="hidden states") or _not_ours(weight, name="weights")
    if reason:
        return reason
    dtype = _product_dtype(weight)  # of their logits
    return logprob.linear_logprobs(hidden, weight, target, group=_group(tp_group), vocab_start_index=vocab_start_index,
                                   vocab_end_index=vocab_end_index, chunk_size=chunk_size, ignore_index=None,
                                   outside="mask", inference_only=inference_only, partial_hidden_grad=True,
                                   round_to=None if dtype == torch.float32 else dtype)


# ---- AReaL -----------------------------------------------------------------------------------------------------------


def _areal(one: Any, of_ranks: Any, logits: Any, labels: Any, temperature: Any, tp_group: Any) -> Any:
    reason = _not_ours(logits, labels, temperature)
    if reason:
        return reason
    if tp_group is None or dist.get_world_size(tp_group) == 1:
        return one(logits, labels, temperature=temperature, **EVERY_ID)
    return of_ranks(logits, labels, temperature, tp_group)


def areal_logprobs(module: Module, logits: Any, labels: Any, temperature: Any = 1.0, tp_group: Any = None,
                   chunk_size: Any = 1024) -> Any:
    return _areal(logprob.logprobs_from_logits, logprob.gather_logprobs, logits, labels, temperature, tp_group)


def areal_both(module: Module, logits: Any, labels: Any, temperature: Any = 1.0, tp_group: Any = None,
               chunk_size: Any = 1024) -> Any:
    return _areal(logprob.logprobs_and_entropy, logprob.gather_logprobs_entropy, logits, labels, temperature, tp_group)


# ---- Liger Kernel ----------------------------------------------------------------------------------------------------

LOGITS = logprob.logprobs_from_logits, logprob.token_statistics
HEAD = logprob.linear_logprobs, logprob.linear_token_statistics


class _Losses(NamedTuple):
    """Of each token, in float32. z_losses: None without them."""

    logprobs: torch.Tensor
    losses: torch.Tensor
    z_losses: Optional[torch.Tensor]


def _smoothed(functions: Any, inputs: Tuple[Any, ...], label_smoothing: Any, lse_square_scale: Any,
              **options: Any) -> _Losses:
    logprobs, statistics = functions
    if not label_smoothing and not lse_square_scale:
        plain = logprobs(*inputs, **options)
        return _Losses(plain, -plain, None)
    of_token = statistics(*inputs, **options)
    losses = (label_smoothing - 1) * of_token.logprobs
    return _Losses(of_token.logprobs, losses - label_smoothing * of_token.mean_logprobs if label_smoothing else losses,
                   lse_square_scale * of_token.logsumexp.square())


def _factors(target: torch.Tensor, kept: torch.Tensor, weight: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor]:
    """Class weights of tokens, and their sum; 1 without any token."""
    factors = weight.detach().float()[target.where(kept, 0).clamp(0, len(weight) - 1)] * kept
    return factors, torch.where(kept.any(), factors.sum(), 1.0)


def _reduced(found: _Losses, target: torch.Tensor, kept: torch.Tensor, weight: Any, reduction: str,
             scales: Any = None) -> Tuple[torch.Tensor, torch.Tensor]:
    """Liger's loss with its z-loss, and the z-loss alone. A mean of losses is over their class weights, one of
    z-losses over tokens.
    """
    losses, z_losses = found.losses, found.z_losses
    over = count = kept.sum().clamp(min=1)
    if weight is not None:
        factors, over = _factors(target, kept, weight)
        losses = losses * factors

    def summed(values: torch.Tensor, divisor: torch.Tensor) -> torch.Tensor:
        values = values if scales is None else values * scales
        if reduction == "none":
            return values
        return values.sum() / divisor if reduction == "mean" else values.sum()

    loss = summed(losses, over)
    if z_losses is None:
        return loss, torch.zeros_like(loss)
    z_loss = summed(z_losses, count)
    return loss + z_loss, z_loss.detach()


def _predictions(predicted: torch.Tensor, target: torch.Tensor, kept: torch.Tensor, reduction: str) -> Tuple[Any, Any]:
    """Liger's accuracy, and the ids of the largest logits, -1 for ignored tokens."""
    right = ((predicted == target) & kept).float()
    return right if reduction == "none" else right.sum() / kept.sum(), predicted.where(kept, -1)


def _not_liger(columns: int, weight: Any, label_smoothing: Any, reduction: Any, soft_cap: Any) -> Optional[str]:
    asked = {f"reduction {reduction}": reduction not in REDUCTIONS,
             "a soft cap that is not positive": soft_cap is not None and not soft_cap > 0,
             "label smoothing over class weights": weight is not None and label_smoothing,
             "class weights of another shape than the classes":
             weight is not None and (not isinstance(weight, torch.Tensor) or weight.shape != (columns, ))}
    return next((name for name, is_asked in asked.items() if is_asked), None)


def liger_loss(module: Module, _input: Any, target: Any, weight: Any, ignore_index: Any = -100,
               lse_square_scale: Any = 0.0, label_smoothing: Any = 0.0, reduction: Any = "mean", softcap: Any = None,
               return_z_loss: Any = False, return_token_accuracy: Any = False,
               return_predicted_tokens: Any = False) -> Any:
    reason = _not_ours(_input, target) or _not_liger(_input.shape[-1], weight, label_smoothing, reduction, softcap)
    if reason or _input.dim() != 2:
        return reason or f"logits of {_input.dim()} dimensions"
    found = _smoothed(LOGITS, (_input, target), label_smoothing, lse_square_scale, soft_cap=softcap,
                      in_place=_overwritable(_input), **{**EVERY_ID, "ignore_index": ignore_index})
    kept = target != ignore_index
    loss, z_loss = [one.to(_input.dtype) for one in _reduced(found, target, kept, weight, reduction)]
    accuracy, predicted = None, None
    if return_token_accuracy or return_predicted_tokens:
        accuracy, predicted = _predictions(_input.detach().argmax(-1), target, kept, reduction)
    return (loss, z_loss if return_z_loss else None, accuracy if return_token_accuracy else None,
            predicted if return_predicted_tokens else None)


def liger_head(module: Module, _input: Any, weight: Any, target: Any, bias: Any = None, ce_weight: Any = None,
               ignore_index: Any = -100, lse_square_scale: Any = 0.0, label_smoothing: Any = 0.0,
               reduction: Any = "mean", softcap: Any = None, return_z_loss: Any = False, accum_dtype: Any = None,
               use_token_scaling: Any = False, return_token_accuracy: Any = False, return_predicted_tokens: Any = False,
               ce_impl: Any = None, ce_mode: Any = None, chunk_mem_const: Any = 1) -> Any:
    reason = _not_ours(_input, target, name="hidden states") or _not_ours(weight, name="weights")
    reason = reason or _not_liger(weight.shape[0], ce_weight, label_smoothing, reduction, softcap)
    if reason or _input.dim() != 2:
        return reason or f"hidden states of {_input.dim()} dimensions"
    kept, options = target != ignore_index, dict(bias=bias, soft_cap=softcap, ignore_index=ignore_index)
    if reduction == "none" or lse_square_scale or use_token_scaling:
        found = _smoothed(HEAD, (_input, weight, target), label_smoothing, lse_square_scale, **options)
        scales = found.logprobs.detach().exp() if use_token_scaling else None
        loss, z_loss = _reduced(found, target, kept, ce_weight, reduction, scales)
    else:  # forward makes the gradients
        if ce_weight is not None:
            factors, over = _factors(target, kept, ce_weight)
            options.update(token_weights=factors / over if reduction == "mean" else factors)
        loss = linear_cross_entropy(_input, weight, target, label_smoothing=label_smoothing, **options,
                                    reduction="mean" if reduction == "mean" and ce_weight is None else "sum").loss
        z_loss = torch.zeros_like(loss)
    accuracy, predicted = None, None
    if return_token_accuracy or return_predicted_tokens:
        _, ids = linear_topk_logprobs(_input.detach(), weight.detach(), 1, bias=None if bias is None else bias.detach())
        accuracy, predicted = _predictions(ids[:, 0], target, kept, reduction)
    return (loss, z_loss.to(_input.dtype) if return_z_loss else None, accuracy if return_token_accuracy else None,
            predicted if return_predicted_tokens else None)


def liger_ranks(module: Module, vocab_parallel_logits: Any, target: Any, tp_group: Any, ignore_index: Any,
                label_smoothing: Any, label_smoothing_formula: Any, label_smoothing_mode: Any) -> Any:
    reason = _not_ours(vocab_parallel_logits, target)
    if reason or vocab_parallel_logits.dim() != 3:
        return reason or f"logits of {vocab_parallel_logits.dim()} dimensions"
    group = tp_group if tp_group is not None and tp_group.size() > 1 else None
    if label_smoothing and group is not None and label_smoothing_mode != "global":
        return "label smoothing over the columns of each rank"
    if label_smoothing and label_smoothing_formula == "megatron":
        columns = vocab_parallel_logits.shape[-1] * (1 if group is None else group.size())
        label_smoothing = label_smoothing * columns / (columns - 1)
    return _smoothed(LOGITS, (vocab_parallel_logits, target), label_smoothing, 0.0, group=group, outside="mask",
                     **{**EVERY_ID, "ignore_index": ignore_index}).losses
