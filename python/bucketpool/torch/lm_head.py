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
from typing import Any, Dict, Hashable, NamedTuple, Optional, Tuple

import torch
import torch.distributed as dist

from .. import _abi
from .._library import call, configured, made
from .._library import logprob as library
from ..errors import InvalidArgument
from . import _clients, _tensors
from ._clients import device_key, size_class
from ._passes import (Agreed, Options, Outputs, agreed, define, fake_outputs, flag, fresh, group_of, name_of, only_once,
                      options_of, outputs_of, outputs_struct, ran, real_outputs, refuse_second, targets_of,
                      through_operator, upstream)
from .comm import GroupComm, comm_of

__all__ = ["FusedLinearChunkedDistributedLogprob", "FusedLinearLogprobEntropy", "linear_logprobs",
           "linear_logprobs_and_entropy"]

Both = Tuple[Any, Any]  # tensors, or None for an output that is not requested

# ---- forward -------------------------------------------------------------------------------------------------------


class _Work(NamedTuple):
    """A forward pass that has run. mask: uint8; start: the first id of this rank."""

    options: Options
    comm: Optional[GroupComm]
    target: torch.Tensor
    mask: Optional[torch.Tensor]
    outputs: Outputs
    start: int
    dtype: torch.dtype


def _dtype(weight: torch.Tensor) -> torch.dtype:
    """The dtype of products."""
    kind = weight.device.type
    autocast = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else weight.dtype
    return autocast if autocast in _tensors.FLOATS else weight.dtype


def _readable(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return _tensors.readable(tensor if tensor.dtype == dtype else tensor.detach().to(dtype))


def _chunk(chunk: int, tokens: torch.Size) -> int:
    """Tokens of a chunk, at most those of the batch."""
    sequence = max(tokens[-1] if tokens else 1, 1)
    return min(chunk or sequence, sequence)


def _key(weight: torch.Tensor, dtype: torch.dtype, tokens: torch.Size, chunk: int, start: Optional[int],
         checked_targets: bool, gradient: bool, partial: bool) -> Hashable:
    return ("lm_head", *weight.shape, device_key(weight.device), size_class(tokens.numel()), dtype,
            _chunk(chunk, tokens), start, checked_targets, gradient, partial, torch.get_num_threads())


def _client(comm: Optional[GroupComm], key: Hashable, agreement: Agreed, weight: torch.Tensor, dtype: torch.dtype,
            tokens: torch.Size, chunk: int, targets: int, gradient: bool, partial: bool) -> _clients.Handle:
    def make() -> ctypes.c_void_p:
        config = configured(library().bp_lm_head_config_init, _abi.bp_lm_head_config, hidden=weight.shape[1],
                            vocab=weight.shape[0], vocab_start=agreement.start, dtype=_tensors.DTYPES[dtype],
                            chunk=_chunk(chunk, tokens), max_tokens=size_class(tokens.numel()),
                            comm=None if comm is None else comm.handle, targets=targets,
                            threads=torch.get_num_threads(), forward_only=int(not gradient),
                            partial_hidden_grad=int(partial))
        return made(library().bp_lm_head_create, _tensors.device_of(weight.device), ctypes.byref(config))

    with _clients.lock_of(comm):
        return _clients.shared(comm, key, agreement.everybody, "bp_lm_head_destroy", make, agreement.start)


def _batch(hidden: torch.Tensor, weight: torch.Tensor, target: torch.Tensor, mask: Optional[torch.Tensor],
           temperature: float, dtype: torch.dtype) -> Tuple[_abi.bp_lm_head_batch, Any]:
    """The struct, and the tensors that must live until the call is enqueued."""
    hidden, weight = _readable(hidden, dtype), _readable(weight, dtype)
    batch = fresh("bp_lm_head_batch_init", _abi.bp_lm_head_batch)
    batch.hidden, batch.weight, batch.tokens.temperature = _tensors.rows(hidden), weight.data_ptr(), temperature
    batch.weight_stride = weight.stride(0) if weight.shape[0] > 1 else weight.shape[1]
    batch.tokens.target_dtype = _tensors.DTYPES[target.dtype]
    batch.tokens.target, kept = _tensors.values(target)
    masks = None
    if mask is not None:
        batch.tokens.mask, masks = _tensors.values(mask)
    return batch, (hidden, weight, kept, masks)


def _check_shapes(what: str, hidden: Any, weight: Any) -> None:
    _tensors.check_floats("hidden states", hidden)
    _tensors.check_floats("weights", weight)
    if weight.dim() != 2 or 0 in weight.shape or hidden.dim() == 0 or hidden.shape[-1] != weight.shape[1]:
        raise InvalidArgument(
            f"{what}: hidden states {list(hidden.shape)} and weight {list(weight.shape)} do not fit; pass "
            "[..., sequence, hidden] and [columns, hidden], with a column at least on each rank")
    if hidden.device != weight.device:
        raise InvalidArgument(
            f"{what}: hidden states are on {hidden.device}, the weight is on {weight.device}; move one")


def _forward(what: str, hidden: Any, weight: Any, target: Any, mask: Any, start: Any, end: Any, chunk: Any,
             group: Optional[dist.ProcessGroup], temperature: Any, ignore_index: Any, entropy: bool, partial: Any,
             inference_only: Any, saves: bool, dtype: Optional[torch.dtype],
             failure: Optional[Exception] = None) -> Tuple[_Work, bool]:
    """Collective with a group. failure: of this rank, before the call. Returns the pass, and True if it saves."""
    comm = None if group is None else comm_of(group)
    options, key, columns = None, None, 0
    same: Dict[str, int] = {}
    try:  # conversions and allocations before the comparison, so that a failure reaches the other ranks
        if failure is not None:
            raise failure
        _check_shapes(what, hidden, weight)
        columns, tokens, device = weight.shape[0], hidden.shape[:-1], hidden.device
        options = options_of(what, columns, start, end, chunk, temperature, ignore_index, True, entropy,
                             partial_hidden_grad=partial)
        saves = not flag("inference_only", inference_only) and saves
        _tensors.check_target(target, tokens, device)
        masks = _tensors.token_mask(mask, target, options.ignore_index, tokens, device)
        dtype = dtype or _dtype(weight)
        if comm is not None:
            batch, sequence = _tensors.shape_of(tokens)
            same = dict(batch=batch, sequence=sequence, dtype=_tensors.DTYPES[dtype], gradient=int(saves),
                        hidden=weight.shape[1], chunk=_chunk(options.chunk, tokens))
        key = _key(weight, dtype, tokens, options.chunk, options.start, options.checked_targets, saves,
                   options.partial_hidden_grad)
        work, kept = _batch(hidden, weight, target, masks, options.temperature, dtype)
        outputs = outputs_of(options, tokens, device, saves)
        results = outputs_struct(outputs)
    except Exception as error:  # any, because agreed() reports it to the other ranks
        failure = error
    agreement = agreed(comm, what, key, same, options, columns, failure)
    assert options is not None and dtype is not None
    client = _client(comm, key, agreement, weight, dtype, tokens, options.chunk, targets_of(options), saves,
                     options.partial_hidden_grad)
    ran(comm, client, device, library().bp_lm_head_forward, ctypes.byref(work), ctypes.byref(results))
    del kept
    return _Work(options, comm, target, masks, outputs, agreement.start, dtype), saves


# ---- backward ------------------------------------------------------------------------------------------------------


def _backward_client(options: Options, comm: Optional[GroupComm], start: int, weight: torch.Tensor, dtype: torch.dtype,
                     tokens: torch.Size, agreement: Agreed, keys: Tuple[Hashable, Hashable]) -> _clients.Handle:
    """The client of the forward pass if it is in the cache, and a new one otherwise: one of this process alone where
    backward communicates nothing.
    """
    with _clients.lock_of(comm):
        partial = options.partial_hidden_grad
        for key in keys:
            known = _clients.of(comm).known(key, start)
            if known is not None and (partial or agreement.everybody is None
                                      or len({one["client"] for one in agreement.everybody}) == 1):
                return known
    if comm is not None and partial:
        return _backward_client(options, None, start, weight, dtype, tokens, Agreed(start, None), keys)
    return _client(comm, keys[1], agreement, weight, dtype, tokens, options.chunk, _abi.BP_TARGETS_ANY, True, partial)


def _backward(options: Options, comm: Optional[GroupComm], logprob_grad: Optional[torch.Tensor],
              entropy_grad: Optional[torch.Tensor], tensors: Any, start: int, dtype: torch.dtype,
              needs: Tuple[bool, bool]) -> Both:
    """Collective with a group, unless partial_hidden_grad is set. tensors: returns hidden states, weight, target, mask
    and the saved values; called where a failure reaches the other ranks. Gradients in the dtypes of their tensors.
    """
    absent, failure = logprob_grad is None and entropy_grad is None, None
    hidden_grad = weight_grad = None
    keys: Tuple[Hashable, Hashable] = (None, None)
    generation = 0
    try:
        hidden, weight, target, mask, saved = tensors()
        tokens = hidden.shape[:-1]
        # the client of forward, which knows the bounds as they were passed; or one that backward has made
        keys = (_key(weight, dtype, tokens, options.chunk, options.start, False, True, options.partial_hidden_grad),
                _key(weight, dtype, tokens, options.chunk, start, False, True, options.partial_hidden_grad))
        with _clients.lock_of(comm):
            found = [_clients.of(comm).known(key, start) for key in keys]
            generation = next((handle.generation for handle in found if handle is not None), 0)
        if not absent:
            batch, kept = _batch(hidden, weight, target, mask, options.temperature, dtype)
            gradients = fresh("bp_lm_head_gradients_init", _abi.bp_lm_head_gradients)
            above = upstream(gradients, logprob_grad, entropy_grad, saved)
            like = batch.hidden
            gradients.hidden_grad = _abi.bp_token_rows(None, _abi.BP_DTYPE_FP32, like.batch, like.sequence,
                                                       like.columns)
            if needs[0]:
                hidden_grad = torch.empty(hidden.shape, dtype=dtype if hidden.dtype == dtype else torch.float32,
                                          device=hidden.device)
                gradients.hidden_grad = _tensors.rows(hidden_grad)
            if needs[1]:
                weight_grad = torch.zeros(weight.shape, dtype=torch.float32, device=weight.device)
                gradients.weight_grad = weight_grad.data_ptr()
    except Exception as error:  # any, because agree() reports it to the other ranks
        failure = error
    everybody = None
    if comm is not None and not comm.trusting and not options.partial_hidden_grad:
        everybody = comm.agree(f"{options.what}, backward", dict(hidden_grad=int(needs[0]), no_gradient=int(absent)),
                               dict(client=generation), failure)
    elif failure is not None:
        raise failure
    if absent:
        return None, None
    client = _backward_client(options, comm, start, weight, dtype, tokens, Agreed(start, everybody), keys)
    ran(comm, client, hidden.device, library().bp_lm_head_backward, ctypes.byref(batch), ctypes.byref(gradients))
    del kept, above
    return (None if hidden_grad is None else hidden_grad.to(hidden.dtype),
            None if weight_grad is None else weight_grad.to(weight.dtype))


class _FromHidden(torch.autograd.Function):
    """Connects the outputs of a pass, which has run, with the hidden states and the weight."""

    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, work: _Work) -> Both:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(hidden, weight, work.target, work.mask, work.outputs[2])
        ctx.options, ctx.comm, ctx.start, ctx.dtype = work.options, work.comm, work.start, work.dtype
        return work.outputs[:2]

    @staticmethod
    def backward(ctx: Any, *grads: Optional[torch.Tensor]) -> Tuple[Optional[torch.Tensor], ...]:
        got = _backward(ctx.options, ctx.comm, grads[0], grads[1], lambda: ctx.saved_tensors, ctx.start, ctx.dtype,
                        ctx.needs_input_grad[:2])
        if not torch.is_grad_enabled():
            return (*got, None)
        sources = *ctx.saved_tensors[:2], *grads
        return (*[only_once(ctx.options.what, gradient, *sources) for gradient in got], None)


def _outputs(what: str, hidden: Any, weight: Any, target: Any, mask: Any, start: Any, end: Any, chunk: Any, group: Any,
             temperature: Any, ignore_index: Any, entropy: bool, partial: Any, inference_only: Any) -> Both:
    """Log-probabilities and entropies; None where they are not wanted."""
    failure: Optional[Exception] = None
    if _tensors.is_dtensor(weight) or _tensors.is_dtensor(hidden):
        try:
            _tensors.refuse_dtensor("hidden states", hidden)
            weight, group = _tensors.local_shard("weights", weight, 0, group)
        except Exception as error:  # any, because agreed() reports it to the other ranks
            failure = error
    saves = torch.is_grad_enabled() and any(
        isinstance(tensor, torch.Tensor) and tensor.requires_grad for tensor in (hidden, weight))
    if failure is None and (through_operator(hidden) or through_operator(weight)):
        temperature = temperature.item() if isinstance(temperature, torch.Tensor) else temperature
        both = _head_forward(hidden, weight, target, mask, what, start, end, chunk, name_of(group), temperature,
                             ignore_index, entropy, partial, saves and not inference_only, _dtype(weight))
        return both[0], both[1] if entropy else None
    work, saves = _forward(what, hidden, weight, target, mask, start, end, chunk, group, temperature, ignore_index,
                           entropy, partial, inference_only, saves, None, failure)
    if not saves:
        return work.outputs[:2]
    connected: Any = _FromHidden.apply
    return connected(hidden, weight, work)


# ---- operators -----------------------------------------------------------------------------------------------------


def _run_forward(hidden: torch.Tensor, weight: torch.Tensor, target: torch.Tensor, mask: Optional[torch.Tensor],
                 what: str, start: Optional[int], end: Optional[int], chunk: Optional[int], group: str,
                 temperature: float, ignore_index: Optional[int], entropy: bool, partial: bool, saves: bool,
                 dtype: torch.dtype) -> Tuple[torch.Tensor, ...]:
    work, _ = _forward(what, hidden, weight, target, mask, start, end, chunk, group_of(group), temperature,
                       ignore_index, entropy, partial, False, saves, dtype)
    return real_outputs(work.outputs, work.start)


def _fake_forward(hidden: torch.Tensor, weight: torch.Tensor, target: torch.Tensor, mask: Optional[torch.Tensor],
                  what: str, start: Any, end: Any, chunk: Any, group: str, temperature: float,
                  ignore_index: Optional[int], entropy: bool, partial: bool, saves: bool,
                  dtype: torch.dtype) -> Tuple[torch.Tensor, ...]:
    _tensors.check_floats("hidden states", hidden)
    _tensors.check_floats("weights", weight)
    return fake_outputs(hidden, hidden.shape[:-1], True, entropy, saves)


def _run_backward(logprob_grad: Optional[torch.Tensor], entropy_grad: Optional[torch.Tensor], hidden: torch.Tensor,
                  weight: torch.Tensor, target: torch.Tensor, mask: Optional[torch.Tensor], saved: torch.Tensor,
                  first: torch.Tensor, what: str, start: Optional[int], chunk: Optional[int], group: str,
                  temperature: float, ignore_index: Optional[int], entropy: bool, partial: bool, dtype: torch.dtype,
                  needs_hidden: bool, needs_weight: bool) -> Tuple[torch.Tensor, ...]:
    in_group = group_of(group)
    options = Options(what, start, None, chunk or 0, temperature, ignore_index, True, entropy,
                      partial_hidden_grad=partial)

    def tensors() -> Tuple[Any, ...]:
        return hidden, weight, target, _tensors.token_mask(mask, target, ignore_index, hidden.shape[:-1],
                                                           hidden.device), saved

    got = _backward(options, None if in_group is None else comm_of(in_group), logprob_grad, entropy_grad, tensors,
                    int(first), dtype, (needs_hidden, needs_weight))
    return tuple(
        gradient if gradient is not None else source.new_zeros(source.shape if needed else (0, ))
        for gradient, source, needed in zip(got, (hidden, weight), (needs_hidden, needs_weight)))


def _fake_backward(logprob_grad: Optional[torch.Tensor], entropy_grad: Optional[torch.Tensor], hidden: torch.Tensor,
                   weight: torch.Tensor, target: torch.Tensor, mask: Optional[torch.Tensor], saved: torch.Tensor,
                   first: torch.Tensor, what: str, start: Any, chunk: Any, group: str, temperature: float,
                   ignore_index: Optional[int], entropy: bool, partial: bool, dtype: torch.dtype, needs_hidden: bool,
                   needs_weight: bool) -> Tuple[torch.Tensor, ...]:
    return tuple(torch.empty(source.shape if needed else (0, ), dtype=source.dtype, device=source.device)
                 for source, needed in ((hidden, needs_hidden), (weight, needs_weight)))


def _setup_context(ctx: Any, inputs: Tuple[Any, ...], output: Tuple[torch.Tensor, ...]) -> None:
    what, start, _, chunk, group, temperature, ignore_index, entropy, partial, saves, dtype = inputs[4:]
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(*(output[2:] if saves else output))
    ctx.save_for_backward(*inputs[:4], *output[2:])
    ctx.options = what, start, chunk, group, temperature, ignore_index, entropy, partial, dtype


def _operator_backward(ctx: Any, *grads: Optional[torch.Tensor]) -> Tuple[Optional[torch.Tensor], ...]:
    needs = ctx.needs_input_grad[:2]
    got = _head_backward(*grads[:2], *ctx.saved_tensors, *ctx.options, *needs)
    return (*[gradient if needed else None for gradient, needed in zip(got, needs)], ) + (None, ) * 13


_head_forward = define(
    "head_forward", "(Tensor hidden, Tensor weight, Tensor target, Tensor? mask, str what, SymInt? start, SymInt? end, "
    "SymInt? chunk, str group, float temperature, int? ignore_index, bool entropy, bool partial, bool saves, "
    "ScalarType dtype) -> (Tensor, Tensor, Tensor, Tensor)", _run_forward, _fake_forward, _operator_backward,
    _setup_context)
_head_backward = define(
    "head_backward", "(Tensor? logprob_grad, Tensor? entropy_grad, Tensor hidden, Tensor weight, Tensor target, "
    "Tensor? mask, Tensor saved, Tensor first, str what, SymInt? start, SymInt? chunk, str group, float temperature, "
    "int? ignore_index, bool entropy, bool partial, ScalarType dtype, bool needs_hidden, bool needs_weight) -> "
    "(Tensor, Tensor)", _run_backward, _fake_backward, refuse_second("backward of the fused head"))

# ---- the functions of SkyRL ----------------------------------------------------------------------------------------


class FusedLinearChunkedDistributedLogprob:
    """Log-probabilities of targets, with SkyRL's arguments first. Use apply, or linear_logprobs:

        .apply(hidden, weight, target, vocab_start_index, vocab_end_index, chunk_size, tp_group,
               inference_only=False, temperature=1.0, mask=None, partial_hidden_grad=True, ignore_index=None)

    - chunk_size: tokens whose logits are computed at once; None and 0: the sequence
    - partial_hidden_grad: True: the gradient of the hidden states is this rank's part, as in SkyRL, and the layers
      before the head sum the parts, as Megatron's do. False: backward sums it over the ranks (collective).
    """

    @staticmethod
    def apply(hidden: torch.Tensor, weight: torch.Tensor, target: torch.Tensor, vocab_start_index: Optional[int],
              vocab_end_index: Optional[int], chunk_size: Optional[int], tp_group: Optional[dist.ProcessGroup],
              inference_only: bool = False, temperature: float = 1.0, mask: Optional[torch.Tensor] = None,
              partial_hidden_grad: bool = True, ignore_index: Optional[int] = None) -> torch.Tensor:
        return _outputs("FusedLinearChunkedDistributedLogprob", hidden, weight, target, mask, vocab_start_index,
                        vocab_end_index, chunk_size, tp_group, temperature, ignore_index, False, partial_hidden_grad,
                        inference_only)[0]


class FusedLinearLogprobEntropy:
    """Log-probabilities and entropies of one pass; arguments as FusedLinearChunkedDistributedLogprob."""

    @staticmethod
    def apply(hidden: torch.Tensor, weight: torch.Tensor, target: torch.Tensor, vocab_start_index: Optional[int],
              vocab_end_index: Optional[int], chunk_size: Optional[int], tp_group: Optional[dist.ProcessGroup],
              inference_only: bool = False, temperature: float = 1.0, mask: Optional[torch.Tensor] = None,
              partial_hidden_grad: bool = True, ignore_index: Optional[int] = None) -> Both:
        return _outputs("FusedLinearLogprobEntropy", hidden, weight, target, mask, vocab_start_index, vocab_end_index,
                        chunk_size, tp_group, temperature, ignore_index, True, partial_hidden_grad, inference_only)


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
