"""The fused language-model head: log-probabilities and entropies of hidden states, without storing logits.

    from bucketpool.torch.lm_head import linear_logprobs

    logprobs = linear_logprobs(hidden, weight, targets, group=tp_group)     # float32, of the shape of targets

Tensors. Hidden states: [..., sequence, hidden]; weight: [columns, hidden], this rank's part of the vocabulary;
float32, bfloat16 or float16. Under autocast both are cast to its dtype, otherwise hidden states to the dtype of
the weight. Products are accumulated in float32.

Memory. Two workspaces of chunk_size x columns float32 logits, whatever the number of tokens; they are allocated
once for each shape and kept until free_clients(). Forward saves hidden states, weight and 8 bytes for each token,
12 with entropy; backward computes the logits of a chunk again.

Targets, ranks, streams and errors are as in bucketpool.torch.logprob.
"""

import ctypes
from typing import Any, Dict, NamedTuple, Optional, Tuple

import torch
import torch.distributed as dist

from .. import _abi
from .._library import configured, made
from .._library import logprob as library
from ..errors import InvalidArgument
from . import _tensors
from ._clients import device_key, size_class
from ._passes import (Options, Outputs, Pass, Untraced, check_client, check_options, only_once, prepared, ran,
                      targets_of, upstream)
from .comm import GroupComm

__all__ = ["FusedLinearChunkedDistributedLogprob", "FusedLinearLogprobEntropy", "linear_logprobs",
           "linear_logprobs_and_entropy"]

Both = Tuple[Any, Any]  # tensors, or None for an output that is not requested


def _batch(hidden: torch.Tensor, weight: torch.Tensor, target: torch.Tensor,
           one: Pass) -> Tuple[_abi.bp_lm_head_batch, Any]:
    batch = configured(library().bp_lm_head_batch_init, _abi.bp_lm_head_batch, weight=weight.data_ptr(),
                       weight_stride=weight.stride(0) if weight.shape[0] > 1 else weight.shape[1])
    batch.hidden = _tensors.rows(hidden)
    batch.tokens.temperature = one.options.temperature
    batch.tokens.target_dtype = _tensors.DTYPES[target.dtype]
    batch.tokens.target, kept = _tensors.values(target)
    batch.tokens.mask, masks = _tensors.values(one.mask)
    return batch, (kept, masks)


def _chunk(options: Options, tokens: torch.Size) -> int:
    """Tokens of a chunk, at most those of the batch."""
    sequence = max(tokens[-1] if tokens else 1, 1)
    return min(options.chunk or sequence, sequence)


def _prepared(options: Options, hidden: torch.Tensor, weight: torch.Tensor, target: torch.Tensor,
              mask: Optional[torch.Tensor], gradient: bool) -> Tuple[Pass, Tuple[torch.Tensor, torch.Tensor, Outputs]]:
    def check() -> Tuple[Dict[str, int], Dict[str, int], Optional[torch.Tensor]]:
        _tensors.check_floats("hidden states", hidden)
        _tensors.check_floats("weights", weight)
        if weight.dim() != 2 or 0 in weight.shape or hidden.dim() == 0 or hidden.shape[-1] != weight.shape[1]:
            raise InvalidArgument(
                f"{options.what}: hidden states {list(hidden.shape)} and weight {list(weight.shape)} do not fit; pass "
                "[..., sequence, hidden] and [columns, hidden]")
        if hidden.device != weight.device:
            raise InvalidArgument(
                f"{options.what}: hidden states are on {hidden.device}, the weight is on {weight.device}; move one")
        check_options(options, weight.shape[0])
        tokens = hidden.shape[:-1]
        _tensors.check_target(target, tokens, hidden.device)
        batch, sequence = _tensors.shape_of(tokens)
        same = dict(batch=batch, sequence=sequence, dtype=_tensors.DTYPES[_dtype(weight)],
                    outputs=options.logprob + 2 * options.entropy, gradient=int(gradient), hidden=weight.shape[1],
                    chunk=_chunk(options, tokens))
        masks = _tensors.token_mask(mask, target, options.ignore_index, tokens, hidden.device)
        return same, dict(columns=weight.shape[0]), masks

    def memory() -> Tuple[torch.Tensor, torch.Tensor, Outputs]:
        return (_readable(hidden, _dtype(weight)), _readable(weight, _dtype(weight)),
                Outputs(options, hidden.shape[:-1], hidden.device, gradient))

    def make(start: int, comm: Optional[GroupComm]) -> ctypes.c_void_p:
        config = configured(library().bp_lm_head_config_init, _abi.bp_lm_head_config, hidden=weight.shape[1],
                            vocab=weight.shape[0], vocab_start=start, dtype=_tensors.DTYPES[_dtype(weight)],
                            chunk=_chunk(options, hidden.shape[:-1]), max_tokens=size_class(hidden.shape[:-1].numel()),
                            comm=None if comm is None else comm.handle, targets=targets_of(options),
                            threads=torch.get_num_threads(), forward_only=int(not gradient),
                            partial_hidden_grad=int(options.partial_hidden_grad))
        return made(library().bp_lm_head_create, _tensors.device_of(hidden.device), ctypes.byref(config))

    return prepared(
        options, check, memory, make, "bp_lm_head_destroy",
        lambda: ("lm_head", device_key(hidden.device), size_class(hidden.shape[:-1].numel()), tuple(weight.shape),
                 _dtype(weight), _chunk(options, hidden.shape[:-1]), gradient, options.partial_hidden_grad))


def _dtype(weight: torch.Tensor) -> torch.dtype:
    kind = weight.device.type
    autocast = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else weight.dtype
    return autocast if autocast in _tensors.FLOATS else weight.dtype


def _readable(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return _tensors.readable(tensor.to(dtype))


def _forward(ctx: Any, options: Options, hidden: torch.Tensor, weight: torch.Tensor, target: torch.Tensor,
             mask: Optional[torch.Tensor], inference_only: bool) -> Both:
    gradient = any(ctx.needs_input_grad[:2]) and not inference_only
    one, (states, table, outputs) = _prepared(options, hidden, weight, target, mask, gradient)
    batch, kept = _batch(states, table, target, one)
    ran(one, hidden.device, library().bp_lm_head_forward, ctypes.byref(batch), ctypes.byref(outputs.struct))
    del kept
    check_client(one, hidden.device, library().bp_lm_head_check)
    if inference_only:
        ctx.mark_non_differentiable(*[out for out in (outputs.logprob, outputs.entropy) if out is not None])
    elif gradient:
        ctx.set_materialize_grads(False)
        ctx.one, ctx.dtypes = one, (hidden.dtype, weight.dtype)
        ctx.save_for_backward(states, table, target, outputs.saved, one.mask)
    return outputs.logprob, outputs.entropy


class _Work(NamedTuple):
    """A backward pass with its memory. kept: tensors that must live until the call is enqueued."""

    one: Pass
    device: torch.device
    batch: _abi.bp_lm_head_batch
    gradients: _abi.bp_lm_head_gradients
    hidden_grad: Optional[torch.Tensor]
    weight_grad: Optional[torch.Tensor]
    sources: Tuple[Optional[torch.Tensor], ...]
    kept: Any


def _work(ctx: Any, logprob_grad: Optional[torch.Tensor], entropy_grad: Optional[torch.Tensor]) -> _Work:
    hidden, weight, target, saved, mask = ctx.saved_tensors
    hidden, weight = _tensors.readable(hidden), _tensors.readable(weight)  # hooks may change strides
    one: Pass = ctx.one._replace(mask=mask)
    batch, kept = _batch(hidden, weight, target, one)
    gradients = configured(library().bp_lm_head_gradients_init, _abi.bp_lm_head_gradients)
    above = upstream(gradients, logprob_grad, entropy_grad, saved)
    hidden_grad = weight_grad = None
    gradients.hidden_grad = _abi.bp_token_rows(None, *_shape(batch.hidden))
    if ctx.needs_input_grad[0]:
        hidden_grad = torch.empty(hidden.shape, dtype=hidden.dtype if ctx.dtypes[0] == hidden.dtype else torch.float32,
                                  device=hidden.device)
        gradients.hidden_grad = _tensors.rows(hidden_grad)
    if ctx.needs_input_grad[1]:
        weight_grad = torch.zeros(weight.shape, dtype=torch.float32, device=weight.device)
        gradients.weight_grad = weight_grad.data_ptr()
    one.client.value  # raises ScheduleError if it was freed
    return _Work(one, hidden.device, batch, gradients, hidden_grad, weight_grad,
                 (hidden, weight, logprob_grad, entropy_grad), (kept, above))


def _agree(ctx: Any, absent: bool, failure: Optional[BaseException]) -> None:
    """Agreement of ranks before a collective backward (hidden_grad summed over ranks): an error of one is an
    error of all.
    """
    one: Pass = ctx.one
    if one.comm is not None and not one.comm.trusting and not one.options.partial_hidden_grad:
        one.comm.agree(f"{one.options.what}, backward",
                       dict(hidden_grad=int(ctx.needs_input_grad[0]), no_gradient=int(absent)), {}, failure)
    elif failure is not None:
        raise failure


def _backward(ctx: Any, logprob_grad: Optional[torch.Tensor], entropy_grad: Optional[torch.Tensor]) -> Both:
    absent = logprob_grad is None and entropy_grad is None
    work, failure = None, None
    try:
        work = None if absent else _work(ctx, logprob_grad, entropy_grad)
    except Exception as error:  # any, because _agree() reports it to the other ranks
        failure = error
    _agree(ctx, absent, failure)
    if work is None:
        return None, None
    ran(work.one, work.device, library().bp_lm_head_backward, ctypes.byref(work.batch),
        ctypes.byref(work.gradients))
    what = work.one.options.what
    return (only_once(what, _cast(work.hidden_grad, ctx.dtypes[0]), *work.sources),
            only_once(what, _cast(work.weight_grad, ctx.dtypes[1]), *work.sources))


def _shape(like: _abi.bp_token_rows) -> Tuple[int, ...]:
    return _abi.BP_DTYPE_FP32, like.batch, like.sequence, like.columns, 0, 0


def _cast(gradient: Optional[torch.Tensor], dtype: torch.dtype) -> Optional[torch.Tensor]:
    return None if gradient is None else gradient.to(dtype)


# ---- autograd functions --------------------------------------------------------------------------------------------


class FusedLinearChunkedDistributedLogprob(Untraced):
    """Log-probabilities of targets, with SkyRL's arguments first. Use apply, or linear_logprobs:

        .apply(hidden, weight, target, vocab_start_index, vocab_end_index, chunk_size, tp_group,
               inference_only=False, temperature=1.0, mask=None, partial_hidden_grad=True, ignore_index=None)

    - chunk_size: tokens whose logits are computed at once; None and 0: the sequence
    - partial_hidden_grad: True: the gradient of the hidden states is this rank's part, as in SkyRL, and the layers
      before the head sum the parts, as Megatron's do. False: backward sums it over the ranks (collective).
    """

    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, target: torch.Tensor,
                vocab_start_index: Optional[int], vocab_end_index: Optional[int], chunk_size: Optional[int],
                tp_group: Optional[dist.ProcessGroup], inference_only: bool = False, temperature: float = 1.0,
                mask: Optional[torch.Tensor] = None, partial_hidden_grad: bool = True,
                ignore_index: Optional[int] = None) -> torch.Tensor:
        options = Options("FusedLinearChunkedDistributedLogprob", vocab_start_index, vocab_end_index, chunk_size,
                          tp_group, temperature, ignore_index=ignore_index, partial_hidden_grad=partial_hidden_grad)
        return _forward(ctx, options, hidden, weight, target, mask, inference_only)[0]

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Optional[torch.Tensor]) -> Tuple[Optional[torch.Tensor], ...]:
        return _backward(ctx, grad_outputs[0], None) + (None, ) * 10


class FusedLinearLogprobEntropy(Untraced):
    """Log-probabilities and entropies of one pass; arguments as FusedLinearChunkedDistributedLogprob."""

    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, target: torch.Tensor,
                vocab_start_index: Optional[int], vocab_end_index: Optional[int], chunk_size: Optional[int],
                tp_group: Optional[dist.ProcessGroup], inference_only: bool = False, temperature: float = 1.0,
                mask: Optional[torch.Tensor] = None, partial_hidden_grad: bool = True,
                ignore_index: Optional[int] = None) -> Both:
        options = Options("FusedLinearLogprobEntropy", vocab_start_index, vocab_end_index, chunk_size, tp_group,
                          temperature, entropy=True, ignore_index=ignore_index, partial_hidden_grad=partial_hidden_grad)
        return _forward(ctx, options, hidden, weight, target, mask, inference_only)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Optional[torch.Tensor]) -> Tuple[Optional[torch.Tensor], ...]:
        return _backward(ctx, *grad_outputs) + (None, ) * 10


# ---- functions -----------------------------------------------------------------------------------------------------


def linear_logprobs(hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor, *,
                    group: Optional[dist.ProcessGroup] = None, vocab_start_index: Optional[int] = None,
                    vocab_end_index: Optional[int] = None, chunk_size: Optional[int] = 1024, temperature: float = 1.0,
                    mask: Optional[torch.Tensor] = None, ignore_index: Optional[int] = None,
                    inference_only: bool = False, partial_hidden_grad: bool = False) -> torch.Tensor:
    """Log-probabilities of targets: log softmax(hidden weight^T / temperature)[targets], float32.

    - hidden, weight: [..., sequence, hidden] and [columns, hidden]
    - chunk_size: tokens whose logits are computed at once; None: the sequence
    - partial_hidden_grad: leaves the sum of the hidden states' gradient over the ranks to the caller; False:
      backward sums it (collective)

    Further arguments as in bucketpool.torch.logprob.logprobs_from_logits. Collective with a group.
    """
    return FusedLinearChunkedDistributedLogprob.apply(hidden, weight, targets, vocab_start_index, vocab_end_index,
                                                      chunk_size, group, inference_only, temperature, mask,
                                                      partial_hidden_grad, ignore_index)


def linear_logprobs_and_entropy(hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor, *,
                                group: Optional[dist.ProcessGroup] = None, vocab_start_index: Optional[int] = None,
                                vocab_end_index: Optional[int] = None, chunk_size: Optional[int] = 1024,
                                temperature: float = 1.0, mask: Optional[torch.Tensor] = None,
                                ignore_index: Optional[int] = None, inference_only: bool = False,
                                partial_hidden_grad: bool = False) -> Tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities and entropies of one pass; both are differentiable. Arguments as in linear_logprobs."""
    return FusedLinearLogprobEntropy.apply(hidden, weight, targets, vocab_start_index, vocab_end_index, chunk_size,
                                           group, inference_only, temperature, mask, partial_hidden_grad, ignore_index)
