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
from typing import Any, Hashable, NamedTuple, Optional, Tuple

import torch
import torch.distributed as dist

from .. import _abi
from .._library import call, configured, made
from .._library import logprob as library
from ..errors import InvalidArgument
from . import _clients, _tensors
from ._clients import free_clients, size_class
from ._passes import (Agreed, Options, Outputs, agreed, define, fake_outputs, flag, fresh, group_of, name_of, only_once,
                      options_of, outputs_of, outputs_struct, ran, real_outputs, refuse_in_place,
                      refuse_second, targets_of,
                      through_operator, upstream)
from .comm import GroupComm, comm_of
from .lm_head import FusedLinearChunkedDistributedLogprob, linear_logprobs, linear_logprobs_and_entropy

__all__ = [
    "ChunkedDistributedLogprob", "DistributedLogprob", "VocabParallelEntropy", "VocabParallelLogprobEntropy",
    "FusedLinearChunkedDistributedLogprob", "logprobs_from_logits", "vocab_parallel_entropy", "logprobs_and_entropy",
    "gather_logprobs", "gather_logprobs_entropy", "linear_logprobs", "linear_logprobs_and_entropy", "free_clients"
]

# ---- forward -------------------------------------------------------------------------------------------------------


class _Work(NamedTuple):
    """A forward pass that has run. mask: uint8; start: the first id of this rank."""

    options: Options
    target: Optional[torch.Tensor]
    mask: Optional[torch.Tensor]
    outputs: Outputs
    start: int
    saves: bool


def _check_overwritten(what: str, logits: torch.Tensor) -> None:
    for leaf in (logits, logits._base if logits._is_view() else None):
        if leaf is not None and leaf.is_leaf and leaf.requires_grad:
            raise InvalidArgument(f"{what}: in_place would overwrite a leaf of shape {list(leaf.shape)} that requires "
                                  "a gradient; pass the result of an operation, or in_place=False")
    if not _tensors.rows_fit(logits):
        raise InvalidArgument(
            f"{what}: in_place cannot write logits with strides {list(logits.stride())}; make the elements of a row "
            "contiguous and rows disjoint, or pass in_place=False")


def _client(comm: Optional[GroupComm], key: Hashable, agreement: Agreed, device: torch.device, tokens: int,
            columns: int, targets: int) -> _clients.Handle:
    def make() -> ctypes.c_void_p:
        config = configured(library().bp_logprob_config_init, _abi.bp_logprob_config, vocab=columns,
                            vocab_start=agreement.start, max_tokens=size_class(tokens),
                            comm=None if comm is None else comm.handle, targets=targets,
                            threads=torch.get_num_threads())
        return made(library().bp_logprob_create, _tensors.device_of(device), ctypes.byref(config))

    with _clients.lock_of(comm):
        return _clients.shared(comm, key, agreement.everybody, "bp_logprob_destroy", make, agreement.start)


def _key(device: torch.device, tokens: int, columns: int, start: Optional[int], checked_targets: bool) -> Hashable:
    return ("logprob", device.type, device.index, size_class(tokens), columns, start, checked_targets,
            torch.get_num_threads())


def _batch(logits: torch.Tensor, target: Optional[torch.Tensor], mask: Optional[torch.Tensor],
           temperature: float) -> Tuple[_abi.bp_logprob_batch, Any]:
    """The struct, and the tensors that must live until the call is enqueued."""
    if target is None:  # entropies do not depend on targets
        target = torch.zeros((), dtype=torch.int64, device=logits.device).expand(logits.shape[:-1])
    logits = _tensors.readable(logits)
    batch = fresh("bp_logprob_batch_init", _abi.bp_logprob_batch)
    batch.logits, batch.tokens.temperature = _tensors.rows(logits), temperature
    batch.tokens.target_dtype = _tensors.DTYPES[target.dtype]
    batch.tokens.target, kept = _tensors.values(target)
    masks = None
    if mask is not None:
        batch.tokens.mask, masks = _tensors.values(mask)
    return batch, (logits, kept, masks)


def _forward(what: str, logits: Any, target: Any, mask: Any, start: Any, end: Any, chunk: Any,
             group: Optional[dist.ProcessGroup], temperature: Any, ignore_index: Any, logprob: bool, entropy: bool,
             checked_targets: Any, in_place: Any, inference_only: Any, saves: bool,
             failure: Optional[Exception] = None) -> _Work:
    """Collective with a group. failure: of this rank, before the call."""
    comm = None if group is None else comm_of(group)
    options, key, same, columns = None, None, {}, 0
    try:  # conversions and allocations before the comparison, so that a failure reaches the other ranks
        if failure is not None:
            raise failure
        _tensors.check_floats("logits", logits)
        shape, device = logits.shape, logits.device
        if not shape or shape[-1] == 0:
            raise InvalidArgument(f"{what}: logits of shape {list(shape)} have no columns; pass [..., sequence, "
                                  "columns], and a column at least on each rank")
        columns, tokens = shape[-1], shape[:-1]
        options = options_of(what, columns, start, end, chunk, temperature, ignore_index, logprob, entropy,
                             checked_targets, in_place)
        saves = not flag("inference_only", inference_only) and saves
        if target is not None or logprob:
            _tensors.check_target(target, tokens, device)
        if options.in_place and saves:
            _check_overwritten(what, logits)
        masks = _tensors.token_mask(mask, target, options.ignore_index, tokens, device)
        count = tokens.numel()
        if comm is not None:
            batch, sequence = _tensors.shape_of(tokens)
            same = dict(batch=batch, sequence=sequence, dtype=_tensors.DTYPES[logits.dtype], gradient=0, hidden=0,
                        chunk=options.chunk)
        key = _key(device, count, columns, options.start, options.checked_targets)
        work, kept = _batch(logits, target, masks, options.temperature)
        outputs = outputs_of(options, tokens, device, saves)
        results = outputs_struct(outputs)
    except Exception as error:  # any, because agreed() reports it to the other ranks
        failure = error
    agreement = agreed(comm, what, key, same, options, columns, failure)
    assert options is not None
    client = _client(comm, key, agreement, device, count, columns, targets_of(options))
    ran(comm, client, device, library().bp_logprob_forward, ctypes.byref(work), ctypes.byref(results))
    del kept
    if options.checked_targets and device.type != "cpu":  # where calls only record invalid targets
        call(library().bp_logprob_check, client.value)
    return _Work(options, target, masks, outputs, agreement.start, saves)


# ---- backward ------------------------------------------------------------------------------------------------------


def _gradient_dtype(logits: torch.Tensor) -> torch.dtype:
    """The dtype in which autograd passes the gradient on; another one would cost a copy."""
    asked = getattr(logits, "grad_dtype", logits.dtype) if logits.is_leaf and logits.requires_grad else logits.dtype
    return torch.float32 if asked in (None, torch.float32) else logits.dtype


def _backward(logprob_grad: Optional[torch.Tensor], entropy_grad: Optional[torch.Tensor], logits: torch.Tensor,
              target: Optional[torch.Tensor], mask: Optional[torch.Tensor], saved: torch.Tensor, start: int,
              temperature: float, gradient: torch.Tensor, in_place: bool) -> None:
    """Writes the gradient, by a client of this process alone, because nothing is communicated."""
    device, tokens, columns = logits.device, logits.shape[:-1].numel(), logits.shape[-1]
    batch, kept = _batch(logits, target, mask, temperature)
    gradients = fresh("bp_logprob_gradients_init", _abi.bp_logprob_gradients)
    gradients.in_place = in_place
    above = upstream(gradients, logprob_grad, entropy_grad, saved)
    gradients.logits_grad = batch.logits if in_place else _tensors.rows(gradient)
    key = _key(device, tokens, columns, start, False)
    client = _client(None, key, Agreed(start, None), device, tokens, columns, _abi.BP_TARGETS_ANY)
    ran(None, client, device, library().bp_logprob_backward, ctypes.byref(batch), ctypes.byref(gradients))
    del kept, above


class _FromLogits(torch.autograd.Function):
    """Connects the outputs of a pass, which has run, with the logits."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, work: _Work) -> Tuple[Any, Any]:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(logits, work.target, work.mask, work.outputs[2])
        ctx.options, ctx.start, ctx.gradient_dtype = work.options, work.start, _gradient_dtype(logits)
        return work.outputs[:2]

    @staticmethod
    def backward(ctx: Any, *grads: Optional[torch.Tensor]) -> Tuple[Optional[torch.Tensor], ...]:
        if grads[0] is None and grads[1] is None:
            return None, None
        logits, target, mask, saved = ctx.saved_tensors
        options: Options = ctx.options
        in_place = options.in_place
        if in_place and torch.is_grad_enabled():
            raise InvalidArgument(f"{options.what}: in_place and create_graph exclude each other; pass in_place=False")
        if in_place:
            logits = _tensors.readable(logits)  # hooks of saved tensors may change strides
            gradient = logits.detach()
        else:
            gradient = torch.empty(logits.shape, dtype=ctx.gradient_dtype, device=logits.device)
        _backward(grads[0], grads[1], logits, target, mask, saved, ctx.start, options.temperature, gradient, in_place)
        if in_place:
            torch.autograd.graph.increment_version(logits)
        return only_once(options.what, gradient, logits, *grads), None


def _outputs(what: str, logits: Any, target: Any, mask: Any, start: Any, end: Any, chunk: Any, group: Any,
             temperature: Any, ignore_index: Any, logprob: bool, entropy: bool, checked_targets: Any, in_place: Any,
             inference_only: Any) -> Tuple[Any, Any]:
    """Log-probabilities and entropies; None where they are not wanted."""
    failure: Optional[Exception] = None
    if _tensors.is_dtensor(logits):
        try:
            logits, group = _tensors.local_shard("logits", logits, -1, group)
        except Exception as error:  # any, because agreed() reports it to the other ranks
            failure = error
    saves = torch.is_grad_enabled() and isinstance(logits, torch.Tensor) and logits.requires_grad
    if failure is None and through_operator(logits):
        saves = saves and not inference_only
        temperature = temperature.item() if isinstance(temperature, torch.Tensor) else temperature
        exact = saves and not torch.compiler.is_compiling() and _gradient_dtype(logits) == torch.float32
        both = _logits_forward(logits, target, mask, what, start, end, chunk, name_of(group), temperature, ignore_index,
                               logprob, entropy, checked_targets, saves, exact, in_place and saves)
        return both[0] if logprob else None, both[1] if entropy else None
    work = _forward(what, logits, target, mask, start, end, chunk, group, temperature, ignore_index, logprob, entropy,
                    checked_targets, in_place, inference_only, saves, failure)
    if not work.saves:
        return work.outputs[:2]
    connected: Any = _FromLogits.apply
    return connected(logits, work)


# ---- operators -----------------------------------------------------------------------------------------------------


def _run_forward(logits: torch.Tensor, target: Optional[torch.Tensor], mask: Optional[torch.Tensor], what: str,
                 start: Optional[int], end: Optional[int], chunk: Optional[int], group: str, temperature: float,
                 ignore_index: Optional[int], logprob: bool, entropy: bool, checked_targets: bool, saves: bool,
                 exact: bool, in_place: bool) -> Tuple[torch.Tensor, ...]:
    refuse_in_place(what, in_place)
    work = _forward(what, logits, target, mask, start, end, chunk, group_of(group), temperature, ignore_index, logprob,
                    entropy, checked_targets, False, False, saves)
    return real_outputs(work.outputs, work.start)


def _fake_forward(logits: torch.Tensor, target: Optional[torch.Tensor], mask: Optional[torch.Tensor], what: str,
                  start: Any, end: Any, chunk: Any, group: str, temperature: float, ignore_index: Optional[int],
                  logprob: bool, entropy: bool, checked_targets: bool, saves: bool,
                  exact: bool, in_place: bool) -> Tuple[torch.Tensor, ...]:
    refuse_in_place(what, in_place)
    _tensors.check_floats("logits", logits)
    return fake_outputs(logits, logits.shape[:-1], logprob, entropy, saves)


def _run_backward(logprob_grad: Optional[torch.Tensor], entropy_grad: Optional[torch.Tensor], logits: torch.Tensor,
                  target: Optional[torch.Tensor], mask: Optional[torch.Tensor], saved: torch.Tensor,
                  start: torch.Tensor, what: str, temperature: float, ignore_index: Optional[int],
                  exact: bool) -> torch.Tensor:
    gradient = torch.empty(logits.shape, dtype=torch.float32 if exact else logits.dtype, device=logits.device)
    masks = _tensors.token_mask(mask, target, ignore_index, logits.shape[:-1], logits.device)
    _backward(logprob_grad, entropy_grad, logits, target, masks, saved, int(start), temperature, gradient, False)
    return gradient


def _fake_backward(logprob_grad: Optional[torch.Tensor], entropy_grad: Optional[torch.Tensor], logits: torch.Tensor,
                   target: Optional[torch.Tensor], mask: Optional[torch.Tensor], saved: torch.Tensor,
                   start: torch.Tensor, what: str, temperature: float, ignore_index: Optional[int],
                   exact: bool) -> torch.Tensor:
    return torch.empty(logits.shape, dtype=torch.float32 if exact else logits.dtype, device=logits.device)


def _setup_context(ctx: Any, inputs: Tuple[Any, ...], output: Tuple[torch.Tensor, ...]) -> None:
    logits, target, mask, what, temperature, ignore_index = *inputs[:4], *inputs[8:10]
    saves, exact = inputs[13:15]
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(*(output[2:] if saves else output))
    ctx.save_for_backward(logits, target, mask, *output[2:])
    ctx.options = what, temperature, ignore_index, exact


def _operator_backward(ctx: Any, *grads: Optional[torch.Tensor]) -> Tuple[Optional[torch.Tensor], ...]:
    gradient = None
    if grads[0] is not None or grads[1] is not None:
        gradient = _logits_backward(*grads[:2], *ctx.saved_tensors, *ctx.options)
    return (gradient, ) + (None, ) * 15


_logits_forward = define(
    "logits_forward", "(Tensor logits, Tensor? target, Tensor? mask, str what, SymInt? start, SymInt? end, "
    "SymInt? chunk, str group, float temperature, int? ignore_index, bool logprob, bool entropy, bool checked_targets, "
    "bool saves, bool exact, bool in_place) -> (Tensor, Tensor, Tensor, Tensor)", _run_forward, _fake_forward,
    _operator_backward, _setup_context)
_logits_backward = define(
    "logits_backward", "(Tensor? logprob_grad, Tensor? entropy_grad, Tensor logits, Tensor? target, Tensor? mask, "
    "Tensor saved, Tensor start, str what, float temperature, int? ignore_index, bool exact) -> Tensor", _run_backward,
    _fake_backward, refuse_second("backward of log-probabilities"))

# ---- the functions of SkyRL ----------------------------------------------------------------------------------------


class ChunkedDistributedLogprob:
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
    def apply(vocab_parallel_logits: torch.Tensor, target: torch.Tensor, vocab_start_index: Optional[int],
              vocab_end_index: Optional[int], chunk_size: Optional[int], tp_group: Optional[dist.ProcessGroup],
              inference_only: bool = False, temperature: float = 1.0, mask: Optional[torch.Tensor] = None,
              in_place: bool = False, ignore_index: Optional[int] = None,
              checked_targets: bool = False) -> torch.Tensor:
        return _outputs("ChunkedDistributedLogprob", vocab_parallel_logits, target, mask, vocab_start_index,
                        vocab_end_index, chunk_size, tp_group, temperature, ignore_index, True, False, checked_targets,
                        in_place, inference_only)[0]


class DistributedLogprob:
    """ChunkedDistributedLogprob without a chunk size; the results are the same bits. Use apply:

        .apply(vocab_parallel_logits, target, vocab_start_index, vocab_end_index, group, inference_only=False,
               temperature=1.0, mask=None, in_place=False)

    SkyRL's function of this name saves a softmax; this one saves 8 bytes for each token.
    """

    @staticmethod
    def apply(vocab_parallel_logits: torch.Tensor, target: torch.Tensor, vocab_start_index: Optional[int],
              vocab_end_index: Optional[int], group: Optional[dist.ProcessGroup], inference_only: bool = False,
              temperature: float = 1.0, mask: Optional[torch.Tensor] = None, in_place: bool = False) -> torch.Tensor:
        return _outputs("DistributedLogprob", vocab_parallel_logits, target, mask, vocab_start_index, vocab_end_index,
                        None, group, temperature, None, True, False, False, in_place, inference_only)[0]


class VocabParallelEntropy:
    """Entropies. Logits of -inf add 0. Use apply, or vocab_parallel_entropy:

        .apply(vocab_parallel_logits, group=None, vocab_start_index=None, vocab_end_index=None, temperature=1.0,
               mask=None, inference_only=False, in_place=False)
    """

    @staticmethod
    def apply(vocab_parallel_logits: torch.Tensor, group: Optional[dist.ProcessGroup] = None,
              vocab_start_index: Optional[int] = None, vocab_end_index: Optional[int] = None,
              temperature: float = 1.0, mask: Optional[torch.Tensor] = None, inference_only: bool = False,
              in_place: bool = False) -> torch.Tensor:
        return _outputs("VocabParallelEntropy", vocab_parallel_logits, None, mask, vocab_start_index, vocab_end_index,
                        None, group, temperature, None, False, True, False, in_place, inference_only)[1]


class VocabParallelLogprobEntropy:
    """Log-probabilities and entropies of one pass. Use apply, or logprobs_and_entropy:

        .apply(vocab_parallel_logits, target, vocab_start_index, vocab_end_index, group, inference_only=False,
               temperature=1.0, mask=None, in_place=False, ignore_index=None, checked_targets=False)
    """

    @staticmethod
    def apply(vocab_parallel_logits: torch.Tensor, target: torch.Tensor, vocab_start_index: Optional[int],
              vocab_end_index: Optional[int], group: Optional[dist.ProcessGroup], inference_only: bool = False,
              temperature: float = 1.0, mask: Optional[torch.Tensor] = None, in_place: bool = False,
              ignore_index: Optional[int] = None, checked_targets: bool = False) -> Tuple[torch.Tensor, torch.Tensor]:
        return _outputs("VocabParallelLogprobEntropy", vocab_parallel_logits, target, mask, vocab_start_index,
                        vocab_end_index, None, group, temperature, ignore_index, True, True, checked_targets, in_place,
                        inference_only)


# ---- functions -----------------------------------------------------------------------------------------------------


def logprobs_from_logits(logits: torch.Tensor, targets: torch.Tensor, *, group: Optional[dist.ProcessGroup] = None,
                         vocab_start_index: Optional[int] = None, vocab_end_index: Optional[int] = None,
                         temperature: float = 1.0, mask: Optional[torch.Tensor] = None,
                         ignore_index: Optional[int] = None, inference_only: bool = False, in_place: bool = False,
                         checked_targets: bool = False, chunk_size: Optional[int] = None) -> torch.Tensor:
    """Log-probabilities of targets: log softmax(logits / temperature)[targets], float32 of the shape of targets.

    - temperature: a number; for a tensor of one element the host waits on GPUs
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
