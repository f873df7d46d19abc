"""Log-probabilities and entropies of logits, differentiable, on one rank or with the vocabulary split over a group.

    from bucketpool.torch.logprob import logprobs_from_logits

    logprobs = logprobs_from_logits(logits, targets, group=tp_group, temperature=0.7)
    (-(logprobs * mask).sum() / mask.sum()).backward()

- logprobs_from_logits, vocab_parallel_entropy, logprobs_and_entropy: functions of logits
- linear_logprobs, linear_logprobs_and_entropy: functions of hidden states and the head's weight (lm_head.py)
- ChunkedDistributedLogprob, DistributedLogprob, FusedLinearChunkedDistributedLogprob: SkyRL's autograd
  functions; gather_logprobs, gather_logprobs_entropy: AReaL's functions; with the original argument order

Tensors. Logits: [..., sequence, columns], float32, bfloat16 or float16, on a CPU or GPU; copied only if the
elements of a row are not contiguous or rows overlap. Targets: int64 or int32 ids of the whole vocabulary, of the
shape of the logits without the last dimension. Results: float32 of that shape; arithmetic is float32.

Memory. Forward saves the logits, without a copy, and 8 bytes for each token, 12 with entropy. Backward allocates
the gradient in the dtype of the logits; in_place=True overwrites the logits with it instead.

Ranks. A call with a group is collective: the same shapes, dtypes and options on all ranks. Ranks compare first,
and a difference or an error of one rank is an exception on all (bucketpool.torch.comm). group=None is this
process alone, not the default group. Backward of logits communicates nothing.

Streams. On GPUs work is enqueued on the current stream; on CPUs results are ready on return.

Raises InvalidArgument, Mismatch, Unsupported, CommError. docs/guides/log_probabilities.md has the differences from
SkyRL and AReaL, and the rules of autograd.
"""

import ctypes
from typing import Any, Dict, Optional, Tuple

import torch
import torch.distributed as dist

from .. import _abi
from .._library import configured, made
from .._library import logprob as library
from ..errors import InvalidArgument
from . import _tensors
from ._clients import device_key, free_clients, size_class
from ._passes import (Options, Outputs, Pass, Untraced, check_client, check_options, only_once, prepared, ran,
                      targets_of, upstream)
from .comm import GroupComm
from .lm_head import FusedLinearChunkedDistributedLogprob, linear_logprobs, linear_logprobs_and_entropy

__all__ = [
    "ChunkedDistributedLogprob", "DistributedLogprob", "VocabParallelEntropy", "VocabParallelLogprobEntropy",
    "FusedLinearChunkedDistributedLogprob", "logprobs_from_logits", "vocab_parallel_entropy", "logprobs_and_entropy",
    "gather_logprobs", "gather_logprobs_entropy", "linear_logprobs", "linear_logprobs_and_entropy", "free_clients"
]

# ---- one pass ------------------------------------------------------------------------------------------------------


def _batch(logits: torch.Tensor, target: torch.Tensor, one: Pass) -> Tuple[_abi.bp_logprob_batch, Any]:
    batch = configured(library().bp_logprob_batch_init, _abi.bp_logprob_batch)
    batch.logits = _tensors.rows(logits)
    batch.tokens.temperature = one.options.temperature
    batch.tokens.target_dtype = _tensors.DTYPES[target.dtype]
    batch.tokens.target, kept = _tensors.values(target)
    batch.tokens.mask, masks = _tensors.values(one.mask)
    return batch, (kept, masks)


def _check_overwritten(what: str, logits: torch.Tensor) -> None:
    for leaf in (logits, logits._base if logits._is_view() else None):
        if leaf is not None and leaf.is_leaf and leaf.requires_grad:
            raise InvalidArgument(f"{what}: in_place would overwrite a leaf of shape {list(leaf.shape)} that requires "
                                  "a gradient; pass the result of an operation, or in_place=False")
    if not _tensors.rows_fit(logits):
        raise InvalidArgument(
            f"{what}: in_place cannot write logits with strides {list(logits.stride())}; make the elements of a row "
            "contiguous and rows disjoint, or pass in_place=False")


def _gradient_dtype(logits: torch.Tensor) -> torch.dtype:
    """The dtype in which autograd passes the gradient on; another one would cost a copy."""
    asked = getattr(logits, "grad_dtype", logits.dtype) if logits.is_leaf and logits.requires_grad else logits.dtype
    return torch.float32 if asked in (None, torch.float32) else logits.dtype


def _prepared(options: Options, logits: torch.Tensor, target: Optional[torch.Tensor], mask: Optional[torch.Tensor],
              gradient: bool) -> Tuple[Pass, Tuple[torch.Tensor, Outputs]]:
    def check() -> Tuple[Dict[str, int], Dict[str, int], Optional[torch.Tensor]]:
        _tensors.check_floats("logits", logits)
        if logits.dim() == 0 or logits.shape[-1] == 0:
            raise InvalidArgument(f"{options.what}: logits of shape {list(logits.shape)} have no columns; pass "
                                  "[..., sequence, columns]")
        check_options(options, logits.shape[-1])
        tokens = logits.shape[:-1]
        if target is not None:
            _tensors.check_target(target, tokens, logits.device)
        if options.in_place and gradient:
            _check_overwritten(options.what, logits)
        batch, sequence = _tensors.shape_of(tokens)
        same = dict(batch=batch, sequence=sequence, dtype=_tensors.DTYPES[logits.dtype],
                    outputs=options.logprob + 2 * options.entropy, gradient=0, hidden=0, chunk=options.chunk or 0)
        masks = _tensors.token_mask(mask, target, options.ignore_index, tokens, logits.device)
        return same, dict(columns=logits.shape[-1]), masks

    def memory() -> Tuple[torch.Tensor, Outputs]:
        return _tensors.readable(logits), Outputs(options, logits.shape[:-1], logits.device, gradient)

    def make(start: int, comm: Optional[GroupComm]) -> ctypes.c_void_p:
        config = configured(library().bp_logprob_config_init, _abi.bp_logprob_config, vocab=logits.shape[-1],
                            vocab_start=start, max_tokens=size_class(logits.shape[:-1].numel()),
                            comm=None if comm is None else comm.handle, targets=targets_of(options),
                            threads=torch.get_num_threads())
        return made(library().bp_logprob_create, _tensors.device_of(logits.device), ctypes.byref(config))

    return prepared(
        options, check, memory, make, "bp_logprob_destroy", lambda:
        ("logprob", device_key(logits.device), size_class(logits.shape[:-1].numel()), logits.shape[-1]))


def _forward(ctx: Any, options: Options, logits: torch.Tensor, target: Optional[torch.Tensor],
             mask: Optional[torch.Tensor], inference_only: bool) -> Tuple[Any, Any]:
    """Output tensors; None for outputs that the options do not ask for."""
    one, (read, outputs) = _prepared(options, logits, target, mask, ctx.needs_input_grad[0] and not inference_only)
    if target is None:  # entropies do not depend on targets
        target = torch.zeros((), dtype=torch.int64, device=logits.device).expand(logits.shape[:-1])
    batch, kept = _batch(read, target, one)
    ran(one, logits.device, library().bp_logprob_forward, ctypes.byref(batch), ctypes.byref(outputs.struct))
    del kept
    check_client(one, logits.device, library().bp_logprob_check)
    if inference_only:
        ctx.mark_non_differentiable(*[out for out in (outputs.logprob, outputs.entropy) if out is not None])
    elif ctx.needs_input_grad[0]:
        ctx.set_materialize_grads(False)
        ctx.one, ctx.gradient_dtype = one, _gradient_dtype(logits)
        ctx.save_for_backward(read, target, outputs.saved, one.mask)
    return outputs.logprob, outputs.entropy


def _backward(ctx: Any, logprob_grad: Optional[torch.Tensor],
              entropy_grad: Optional[torch.Tensor]) -> Optional[torch.Tensor]:
    if logprob_grad is None and entropy_grad is None or not ctx.needs_input_grad[0]:
        return None
    logits, target, saved, mask = ctx.saved_tensors
    logits = _tensors.readable(logits)  # hooks of saved tensors may change strides
    one: Pass = ctx.one._replace(mask=mask)
    in_place = one.options.in_place
    if in_place and torch.is_grad_enabled():
        raise InvalidArgument(f"{one.options.what}: in_place and create_graph exclude each other; pass in_place=False")
    gradient = logits.detach() if in_place else torch.empty(logits.shape, dtype=ctx.gradient_dtype,
                                                            device=logits.device)
    batch, kept = _batch(logits, target, one)
    gradients = configured(library().bp_logprob_gradients_init, _abi.bp_logprob_gradients, in_place=int(in_place))
    above = upstream(gradients, logprob_grad, entropy_grad, saved)
    gradients.logits_grad = _tensors.rows(gradient)
    ran(one, logits.device, library().bp_logprob_backward, ctypes.byref(batch), ctypes.byref(gradients))
    del kept, above
    if in_place:
        torch.autograd.graph.increment_version(logits)
    return only_once(one.options.what, gradient, logits, logprob_grad, entropy_grad)


# ---- autograd functions --------------------------------------------------------------------------------------------


class ChunkedDistributedLogprob(Untraced):
    """Log-probabilities of targets, with SkyRL's arguments first. Use apply:

        .apply(vocab_parallel_logits, target, vocab_start_index, vocab_end_index, chunk_size, tp_group,
               inference_only=False, temperature=1.0, mask=None, in_place=False, ignore_index=None,
               checked_targets=False)

    - vocab_start_index, vocab_end_index: the columns of the logits are the ids [start, end)
    - chunk_size: accepted, without effect on results, memory or time
    - inference_only: nothing is saved, and the result has no gradient

    Further arguments as in logprobs_from_logits.
    """

    @staticmethod
    def forward(ctx: Any, vocab_parallel_logits: torch.Tensor, target: torch.Tensor, vocab_start_index: Optional[int],
                vocab_end_index: Optional[int], chunk_size: Optional[int], tp_group: Optional[dist.ProcessGroup],
                inference_only: bool = False, temperature: float = 1.0, mask: Optional[torch.Tensor] = None,
                in_place: bool = False, ignore_index: Optional[int] = None,
                checked_targets: bool = False) -> torch.Tensor:
        options = Options("ChunkedDistributedLogprob", vocab_start_index, vocab_end_index, chunk_size, tp_group,
                          temperature, in_place=in_place, ignore_index=ignore_index, checked_targets=checked_targets)
        return _forward(ctx, options, vocab_parallel_logits, target, mask, inference_only)[0]

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Optional[torch.Tensor]) -> Tuple[Optional[torch.Tensor], ...]:
        return (_backward(ctx, grad_outputs[0], None), ) + (None, ) * 11


class DistributedLogprob(Untraced):
    """ChunkedDistributedLogprob without a chunk size; the results are the same bits. Use apply:

        .apply(vocab_parallel_logits, target, vocab_start_index, vocab_end_index, group, inference_only=False,
               temperature=1.0, mask=None, in_place=False)

    SkyRL's function of this name saves a softmax; this one saves 8 bytes for each token.
    """

    @staticmethod
    def forward(ctx: Any, vocab_parallel_logits: torch.Tensor, target: torch.Tensor, vocab_start_index: Optional[int],
                vocab_end_index: Optional[int], group: Optional[dist.ProcessGroup], inference_only: bool = False,
                temperature: float = 1.0, mask: Optional[torch.Tensor] = None, in_place: bool = False) -> torch.Tensor:
        options = Options("DistributedLogprob", vocab_start_index, vocab_end_index, None, group, temperature,
                          in_place=in_place)
        return _forward(ctx, options, vocab_parallel_logits, target, mask, inference_only)[0]

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Optional[torch.Tensor]) -> Tuple[Optional[torch.Tensor], ...]:
        return (_backward(ctx, grad_outputs[0], None), ) + (None, ) * 8


class VocabParallelEntropy(Untraced):
    """Entropies. Logits of -inf add 0. Use apply, or vocab_parallel_entropy:

        .apply(vocab_parallel_logits, group=None, vocab_start_index=None, vocab_end_index=None, temperature=1.0,
               mask=None, inference_only=False, in_place=False)
    """

    @staticmethod
    def forward(ctx: Any, vocab_parallel_logits: torch.Tensor, group: Optional[dist.ProcessGroup] = None,
                vocab_start_index: Optional[int] = None, vocab_end_index: Optional[int] = None,
                temperature: float = 1.0, mask: Optional[torch.Tensor] = None, inference_only: bool = False,
                in_place: bool = False) -> torch.Tensor:
        options = Options("VocabParallelEntropy", vocab_start_index, vocab_end_index, None, group, temperature,
                          logprob=False, entropy=True, in_place=in_place)
        return _forward(ctx, options, vocab_parallel_logits, None, mask, inference_only)[1]

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Optional[torch.Tensor]) -> Tuple[Optional[torch.Tensor], ...]:
        return (_backward(ctx, None, grad_outputs[0]), ) + (None, ) * 7


class VocabParallelLogprobEntropy(Untraced):
    """Log-probabilities and entropies of one pass. Use apply, or logprobs_and_entropy:

        .apply(vocab_parallel_logits, target, vocab_start_index, vocab_end_index, group, inference_only=False,
               temperature=1.0, mask=None, in_place=False, ignore_index=None, checked_targets=False)
    """

    @staticmethod
    def forward(ctx: Any, vocab_parallel_logits: torch.Tensor, target: torch.Tensor, vocab_start_index: Optional[int],
                vocab_end_index: Optional[int], group: Optional[dist.ProcessGroup], inference_only: bool = False,
                temperature: float = 1.0, mask: Optional[torch.Tensor] = None, in_place: bool = False,
                ignore_index: Optional[int] = None, checked_targets: bool = False) -> Tuple[torch.Tensor, torch.Tensor]:
        options = Options("VocabParallelLogprobEntropy", vocab_start_index, vocab_end_index, None, group, temperature,
                          entropy=True, in_place=in_place, ignore_index=ignore_index, checked_targets=checked_targets)
        return _forward(ctx, options, vocab_parallel_logits, target, mask, inference_only)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Optional[torch.Tensor]) -> Tuple[Optional[torch.Tensor], ...]:
        return (_backward(ctx, *grad_outputs), ) + (None, ) * 10


# ---- functions -----------------------------------------------------------------------------------------------------


def logprobs_from_logits(logits: torch.Tensor, targets: torch.Tensor, *, group: Optional[dist.ProcessGroup] = None,
                         vocab_start_index: Optional[int] = None, vocab_end_index: Optional[int] = None,
                         temperature: float = 1.0, mask: Optional[torch.Tensor] = None,
                         ignore_index: Optional[int] = None, inference_only: bool = False, in_place: bool = False,
                         checked_targets: bool = False, chunk_size: Optional[int] = None) -> torch.Tensor:
    """Log-probabilities of targets: log softmax(logits / temperature)[targets], float32 of the shape of targets.

    - group: process group that the vocabulary is split over; None: this process alone
    - vocab_start_index, vocab_end_index: the ids [start, end) of this rank's columns; None: consecutive shards in
      the order of the ranks
    - mask, ignore_index: tokens with mask 0 or this target are not read; their result and gradient are 0
    - inference_only: nothing is saved, and the result has no gradient
    - in_place: backward overwrites the logits with their gradient; leaves are refused
    - checked_targets: a target outside the whole vocabulary raises InvalidArgument; without it, its
      log-probability is 0. On GPUs the host waits for the check.
    - chunk_size: accepted, without effect

    Collective with a group. The module's help describes tensors, memory, ranks and streams.
    """
    return ChunkedDistributedLogprob.apply(logits, targets, vocab_start_index, vocab_end_index, chunk_size, group,
                                           inference_only, temperature, mask, in_place, ignore_index, checked_targets)


def vocab_parallel_entropy(vocab_parallel_logits: torch.Tensor, group: Optional[dist.ProcessGroup] = None, *,
                           vocab_start_index: Optional[int] = None, vocab_end_index: Optional[int] = None,
                           temperature: float = 1.0, mask: Optional[torch.Tensor] = None, inference_only: bool = False,
                           in_place: bool = False, chunk_size: Optional[int] = None,
                           chunk_memory_mb: Optional[float] = None) -> torch.Tensor:
    """Entropy of each token's distribution: - sum(p log p), float32 [..., sequence].

    - chunk_size, chunk_memory_mb: SkyRL's, accepted without effect

    Further arguments as in logprobs_from_logits. SkyRL's function of this name has no group argument.
    """
    del chunk_size, chunk_memory_mb
    return VocabParallelEntropy.apply(vocab_parallel_logits, group, vocab_start_index, vocab_end_index, temperature,
                                      mask, inference_only, in_place)


def logprobs_and_entropy(logits: torch.Tensor, targets: torch.Tensor, *, group: Optional[dist.ProcessGroup] = None,
                         vocab_start_index: Optional[int] = None, vocab_end_index: Optional[int] = None,
                         temperature: float = 1.0, mask: Optional[torch.Tensor] = None,
                         ignore_index: Optional[int] = None, inference_only: bool = False, in_place: bool = False,
                         checked_targets: bool = False) -> Tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities and entropies from one pass over the logits; both are differentiable.

    Arguments as in logprobs_from_logits.
    """
    return VocabParallelLogprobEntropy.apply(logits, targets, vocab_start_index, vocab_end_index, group, inference_only,
                                             temperature, mask, in_place, ignore_index, checked_targets)


def gather_logprobs(logits: torch.Tensor, labels: torch.Tensor, temperature: float = 1.0,
                    tp_group: Optional[dist.ProcessGroup] = None, chunk_size: int = 1024) -> torch.Tensor:
    """logprobs_from_logits with AReaL's arguments. chunk_size has no effect."""
    return logprobs_from_logits(logits, labels, group=tp_group, temperature=temperature, chunk_size=chunk_size)


def gather_logprobs_entropy(logits: torch.Tensor, labels: torch.Tensor, temperature: float = 1.0,
                            tp_group: Optional[dist.ProcessGroup] = None,
                            chunk_size: int = 1024) -> Tuple[torch.Tensor, torch.Tensor]:
    """logprobs_and_entropy with AReaL's arguments. chunk_size has no effect."""
    return logprobs_and_entropy(logits, labels, group=tp_group, temperature=temperature)
