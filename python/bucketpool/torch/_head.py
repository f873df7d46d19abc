# SPDX-License-Identifier: Apache-2.0
"""The passes of the fused head: clients, forward, backward, autograd and operators of PyTorch."""

import ctypes
from typing import Any, Dict, Hashable, List, NamedTuple, Optional, Tuple

import torch

from .. import _abi
from .._library import configured, made
from .._library import logprob as library
from ..errors import InvalidArgument
from . import _clients, _tensors
from ._clients import size_class
from ._passes import (SCHEMA, Agreed, Asked, Memory, Options, Outputs, Tokens, agreed, define, fake_outputs, flag,
                      for_operator, fresh, from_operator, most_targets, only_once, options_of, outputs_of,
                      outputs_struct, ran, ran_forward, real_outputs, refuse_second, set_tokens, targets_of,
                      through_operator, upstream, vocabulary, wanted, workspaces)
from .comm import GroupComm, comm_of

Maybe = Optional[torch.Tensor]

# ---- forward -------------------------------------------------------------------------------------------------------


class _Work(NamedTuple):
    """A forward pass that has run. start: the first id of this rank; vocab: as vocabulary()."""

    options: Options
    comm: Optional[GroupComm]
    tokens: Tokens
    outputs: Outputs
    start: int
    vocab: int
    dtype: torch.dtype


def _dtype(weight: torch.Tensor) -> torch.dtype:
    """The dtype of products."""
    kind = weight.device.type
    autocast = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else weight.dtype
    return autocast if autocast in _tensors.FLOATS else weight.dtype


def _readable(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return _tensors.readable(tensor if tensor.dtype == dtype else tensor.detach().to(dtype))


def _chunk(chunk: int, tokens: torch.Size) -> int:
    """Tokens of a chunk; at most those of a sequence, rounded up to a power of two, so that sequences of similar
    length share a client.
    """
    sequence = max(tokens[-1] if tokens else 1, 1)
    return min(chunk or sequence, 1 << (sequence - 1).bit_length())


def _key(weight: torch.Tensor, dtype: torch.dtype, tokens: torch.Size, start: Optional[int],
         gradient: bool, options: Options) -> Hashable:
    return ("lm_head", *weight.shape, weight.device, size_class(tokens.numel()), dtype,
            _chunk(options.chunk, tokens), start, targets_of(options), gradient, options.partial_hidden_grad,
            most_targets(options.targets), torch.get_num_threads())


def _client(comm: Optional[GroupComm], key: Hashable, agreement: Agreed, weight: torch.Tensor, dtype: torch.dtype,
            tokens: torch.Size, gradient: bool, options: Options) -> _clients.Handle:
    def make() -> ctypes.c_void_p:
        config = configured(library().bp_lm_head_config_init, _abi.bp_lm_head_config, hidden=weight.shape[1],
                            vocab=weight.shape[0], vocab_start=agreement.start, dtype=_tensors.DTYPES[dtype],
                            chunk=_chunk(options.chunk, tokens), max_tokens=size_class(tokens.numel()),
                            max_targets=most_targets(options.targets), comm=None if comm is None else comm.handle,
                            targets=targets_of(options), threads=torch.get_num_threads(),
                            passes=_abi.BP_LM_HEAD_FORWARD | int(gradient) * _abi.BP_LM_HEAD_BACKWARD,
                            partial_hidden_grad=int(options.partial_hidden_grad))
        return made(library().bp_lm_head_create, _tensors.device_of(weight.device), ctypes.byref(config))

    with _clients.lock_of(comm):
        return _clients.shared(comm, key, agreement.everybody, "bp_lm_head_destroy", make, agreement.start)


def _batch(hidden: torch.Tensor, weight: torch.Tensor, bias: Maybe, options: Options, tokens: Tokens,
           dtype: torch.dtype) -> Tuple[_abi.bp_lm_head_batch, Any]:
    """The struct, and the tensors that must live until the call is enqueued."""
    hidden, weight = _readable(hidden, dtype), _readable(weight, dtype)
    batch = fresh("bp_lm_head_batch_init", _abi.bp_lm_head_batch)
    batch.hidden, batch.weight = _tensors.rows(hidden), weight.data_ptr()
    batch.weight_stride = weight.stride(0) if weight.shape[0] > 1 else weight.shape[1]
    if bias is not None:
        bias = bias.detach().float().contiguous()
        batch.bias = ctypes.cast(bias.data_ptr(), ctypes.POINTER(ctypes.c_float))
    return batch, (hidden, weight, bias, set_tokens(batch.tokens, options, tokens, hidden))


def check_shapes(what: str, hidden: Any, weight: Any, bias: Any = None, of: str = "") -> None:
    """of: precedes the names of the tensors in messages."""
    _tensors.check_floats(f"{of}hidden states", hidden)
    _tensors.check_floats(f"{of}weights", weight)
    if weight.dim() != 2 or 0 in weight.shape or hidden.dim() == 0 or hidden.shape[-1] != weight.shape[1]:
        raise InvalidArgument(
            f"{what}: {of}hidden states {list(hidden.shape)} and weight {list(weight.shape)} do not fit; pass "
            "[..., sequence, hidden] and [columns, hidden], with a column at least on each rank")
    if hidden.device != weight.device:
        raise InvalidArgument(
            f"{what}: {of}hidden states are on {hidden.device}, the weight is on {weight.device}; move one")
    if bias is not None:
        _tensors.check_floats(f"{of}bias", bias)
        if bias.shape != weight.shape[:1] or bias.device != weight.device:
            raise InvalidArgument(f"{what}: {of}bias of shape {list(bias.shape)} on {bias.device} for weight "
                                  f"{list(weight.shape)} on {weight.device}; pass one for each column")


def _forward(hidden: Any, weight: Any, bias: Any, target: Any, asked: Asked, saves: bool,
             dtype: Optional[torch.dtype] = None, failure: Optional[Exception] = None) -> _Work:
    """Collective with a group. failure: of this rank, before the call."""
    comm = None if asked.group is None else comm_of(asked.group)
    options, key, columns = None, None, 0
    same: Dict[str, int] = {}
    try:  # conversions and allocations before the comparison, so that a failure reaches the other ranks
        if failure is not None:
            raise failure
        check_shapes(asked.what, hidden, weight, bias)
        columns, shape, device = weight.shape[0], hidden.shape[:-1], hidden.device
        options, tokens = options_of(asked, columns, shape, target, device)
        saves = not flag("inference_only", asked.inference_only) and saves
        dtype = dtype or _dtype(weight)
        if comm is not None:
            batch, sequence = _tensors.shape_of(shape)
            same = dict(batch=batch, sequence=sequence, dtype=_tensors.DTYPES[dtype], gradient=int(saves),
                        hidden=weight.shape[1], chunk=_chunk(options.chunk, shape), bias=int(bias is not None))
        key = _key(weight, dtype, shape, options.start, saves, options)
        work, kept = _batch(hidden, weight, bias, options, tokens, dtype)
        outputs = outputs_of(options.outputs, hidden, target, saves)
        results = outputs_struct(outputs, len(shape))
    except Exception as error:  # any, because agreed() reports it to the other ranks
        failure = error
    agreement = agreed(comm, asked.what, key, same, options, columns, failure)
    assert options is not None and dtype is not None
    client = _client(comm, key, agreement, weight, dtype, shape, saves, options)
    ran_forward(options, comm, client, device, library().bp_lm_head_forward, library().bp_lm_head_check,
                ctypes.byref(work), ctypes.byref(results))
    del kept
    vocab = vocabulary(comm, options, library().bp_lm_head_get_info, client, columns)
    return _Work(options, comm, tokens, outputs, agreement.start, vocab, dtype)


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
    return _client(comm, keys[1], agreement, weight, dtype, tokens, True, options)


def _backward(options: Options, comm: Optional[GroupComm], grads: Tuple[Maybe, ...], tensors: Any, start: int,
              vocab: int, dtype: torch.dtype, needs: Tuple[bool, ...]) -> Tuple[Maybe, Maybe, Maybe]:
    """Collective with a group, unless partial_hidden_grad is set. tensors: returns hidden states, weight, bias, the
    saved values, and the tensors of Tokens; called where a failure reaches the other ranks. Gradients in the dtypes of
    their tensors.
    """
    absent, failure = all(grad is None for grad in grads), None
    hidden_grad = weight_grad = bias_grad = None
    keys: Tuple[Hashable, Hashable] = (None, None)
    generation = 0
    try:
        hidden, weight, bias, saved, *rest = tensors()
        tokens = hidden.shape[:-1]
        # the client of forward, which knows the bounds as they were passed; or one that backward has made
        keys = (_key(weight, dtype, tokens, options.start, True, options),
                _key(weight, dtype, tokens, start, True, options))
        with _clients.lock_of(comm):
            found = [_clients.of(comm).known(key, start) for key in keys]
            generation = next((handle.generation for handle in found if handle is not None), 0)
        if not absent:
            batch, kept = _batch(hidden, weight, bias, options, Tokens(*rest), dtype)
            gradients = fresh("bp_lm_head_gradients_init", _abi.bp_lm_head_gradients)
            alone = comm is not None and options.partial_hidden_grad and not any(found)  # see _backward_client
            above = upstream(gradients, grads, saved, len(tokens), weight.shape[0] / vocab if alone else 1.0)
            like = batch.hidden
            gradients.hidden_grad = _abi.bp_token_rows(None, _abi.BP_DTYPE_FP32, like.batch, like.sequence,
                                                       like.columns)
            if needs[0]:
                hidden_grad = _tensors.empty_like(hidden, dtype if hidden.dtype == dtype else torch.float32)
                gradients.hidden_grad = _tensors.rows(hidden_grad)
            if needs[1]:
                weight_grad = torch.zeros(weight.shape, dtype=torch.float32, device=weight.device)
                gradients.weight_grad = weight_grad.data_ptr()
            if needs[2]:
                bias_grad = torch.zeros(bias.shape, dtype=torch.float32, device=weight.device)
                gradients.bias_grad = ctypes.cast(bias_grad.data_ptr(), ctypes.POINTER(ctypes.c_float))
    except Exception as error:  # any, because agree() reports it to the other ranks
        failure = error
    everybody = None
    if comm is not None and not comm.trusting and not options.partial_hidden_grad:
        everybody = comm.agree(f"{options.what}, backward", dict(hidden_grad=int(needs[0]), no_gradient=int(absent)),
                               dict(client=generation), failure)
    elif failure is not None:
        raise failure
    if absent:
        return None, None, None
    client = _backward_client(options, comm, start, weight, dtype, tokens, Agreed(start, everybody), keys)
    ran(comm, client, hidden.device, library().bp_lm_head_backward, ctypes.byref(batch), ctypes.byref(gradients))
    del kept, above
    return (None if hidden_grad is None else hidden_grad.to(hidden.dtype),
            None if weight_grad is None else weight_grad.to(weight.dtype),
            None if bias_grad is None else bias_grad.to(bias.dtype))


class _FromHidden(torch.autograd.Function):
    """Connects the outputs of a pass, which has run, with hidden states, weight and bias."""

    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, bias: Maybe, work: _Work) -> Tuple[Maybe, ...]:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(hidden, weight, bias, work.outputs[4], *work.tokens)
        ctx.options, ctx.comm, ctx.dtype = work.options, work.comm, work.dtype
        ctx.start, ctx.vocab = work.start, work.vocab
        return work.outputs[:4]

    @staticmethod
    def backward(ctx: Any, *grads: Maybe) -> Tuple[Maybe, ...]:
        got = _backward(ctx.options, ctx.comm, grads, lambda: ctx.saved_tensors, ctx.start, ctx.vocab, ctx.dtype,
                        ctx.needs_input_grad[:3])
        if not torch.is_grad_enabled():
            return (*got, None)
        sources = *ctx.saved_tensors[:3], *grads
        return (*[only_once(ctx.options.what, gradient, *sources) for gradient in got], None)


def outputs_of_head(hidden: Any, weight: Any, bias: Any, target: Any, asked: Asked,
             drop_masked: Any = False) -> Tuple[Any, ...]:
    """The four outputs; None where they are not wanted."""
    failure: Optional[Exception] = None
    dropped: Any = None
    try:
        if _tensors.is_dtensor(weight) or _tensors.is_dtensor(hidden) or _tensors.is_dtensor(bias):
            _tensors.refuse_dtensor("hidden states", hidden)
            weight, group = _tensors.local_shard("weights", weight, 0, asked.group)
            if bias is not None:
                bias, _ = _tensors.local_shard("bias", bias, 0, group)
            asked = asked._replace(group=group)
        if flag("drop_masked", drop_masked):
            hidden, target, asked, dropped = _without_masked(hidden, weight, target, asked)
    except Exception as error:  # any, because agreed() reports it to the other ranks
        failure = error
    saves = torch.is_grad_enabled() and any(
        isinstance(tensor, torch.Tensor) and tensor.requires_grad for tensor in (hidden, weight, bias))
    outputs: Tuple[Any, ...]
    if failure is None and (through_operator(hidden) or through_operator(weight)):
        options, temperatures = for_operator(asked)
        outputs = wanted(asked.outputs, _head_forward(hidden, weight, bias, target, asked.mask, temperatures, *options,
                                                      asked.partial_hidden_grad, saves and not asked.inference_only,
                                                      _dtype(weight)))
    else:
        work = _forward(hidden, weight, bias, target, asked, saves, None, failure)
        outputs = work.outputs[:4]
        if work.outputs[4] is not None:  # values for backward
            connected: Any = _FromHidden.apply
            outputs = connected(hidden, weight, bias, work)
    return outputs if dropped is None else tuple(None if one is None else dropped(one) for one in outputs)


def _without_masked(hidden: Any, weight: Any, target: Any, asked: Asked) -> Tuple[Any, Any, Asked, Any]:
    """The tokens that are neither masked nor ignored, as one sequence, and a function that puts outputs back among
    zeros; None without a mask.
    """
    check_shapes(asked.what, hidden, weight)
    shape = hidden.shape[:-1]
    options, tokens = options_of(asked, weight.shape[0], shape, target, hidden.device)
    mask = _kept(tokens, options, shape)
    if mask is None:
        return hidden, target, asked, None
    index = mask.reshape(-1).nonzero()[:, 0]  # on GPUs the host waits for their number

    def kept(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.reshape(-1, *tensor.shape[len(shape):])[index]

    def put_back(output: torch.Tensor) -> torch.Tensor:
        whole = output.new_zeros((shape.numel(), *output.shape[1:]))
        return whole.index_copy(0, index, output).reshape(*shape, *output.shape[1:])

    temperature = asked.temperature if tokens.temperatures is None else kept(tokens.temperatures)
    chunk = asked.chunk or max(shape[-1] if shape else 1, 1)
    return kept(hidden), None if target is None else kept(target), asked._replace(
        mask=None, temperature=temperature, chunk=chunk), put_back


def _kept(tokens: Tokens, options: Options, shape: torch.Size) -> Maybe:
    """True for the tokens that are neither masked nor ignored; None without mask and ignored targets."""
    mask = None if tokens.mask is None else tokens.mask != 0
    if options.ignore_index is None or tokens.target is None:
        return mask
    kept = tokens.target != options.ignore_index
    kept = kept if kept.shape == shape else kept.any(-1)
    return kept if mask is None else mask & kept


# ---- operators -----------------------------------------------------------------------------------------------------


def _run_forward(hidden: torch.Tensor, weight: torch.Tensor, bias: Maybe, target: Maybe, mask: Maybe,
                 temperatures: Maybe, *given: Any) -> Tuple[torch.Tensor, ...]:
    *options, partial, saves, dtype = given
    asked = from_operator(tuple(options), mask, temperatures)._replace(partial_hidden_grad=partial)
    work = _forward(hidden, weight, bias, target, asked, saves, dtype)
    return real_outputs(hidden, work.outputs, work.start, work.vocab)


def _fake_forward(hidden: torch.Tensor, weight: torch.Tensor, bias: Maybe, target: Maybe, mask: Maybe,
                  temperatures: Maybe, *given: Any) -> Tuple[torch.Tensor, ...]:
    _tensors.check_floats("hidden states", hidden)
    _tensors.check_floats("weights", weight)
    return fake_outputs(hidden, hidden.shape[:-1], target, given[1], given[-2])


def _run_backward(logprob_grad: Maybe, entropy_grad: Maybe, logsumexp_grad: Maybe, mean_logprob_grad: Maybe,
                  hidden: torch.Tensor, weight: torch.Tensor, bias: Maybe, target: Maybe, mask: Maybe,
                  temperatures: Maybe, saved: torch.Tensor, place: torch.Tensor,
                  *given: Any) -> Tuple[torch.Tensor, ...]:
    *of_forward, partial, dtype, needs_hidden, needs_weight, needs_bias = given
    needs = needs_hidden, needs_weight, needs_bias
    asked = from_operator(tuple(of_forward), mask, temperatures)._replace(partial_hidden_grad=partial)
    options, tokens = options_of(asked, weight.shape[0], hidden.shape[:-1], target, hidden.device)
    start, vocab = place.tolist()
    got = _backward(options, None if asked.group is None else comm_of(asked.group),
                    (logprob_grad, entropy_grad, logsumexp_grad, mean_logprob_grad),
                    lambda: (hidden, weight, bias, saved, *tokens), start, vocab, dtype, needs)
    return tuple(
        gradient if gradient is not None else hidden.new_empty(0) if source is None or not needed else
        torch.zeros_like(source) for gradient, source, needed in zip(got, (hidden, weight, bias), needs))


def _fake_backward(logprob_grad: Maybe, entropy_grad: Maybe, logsumexp_grad: Maybe, mean_logprob_grad: Maybe,
                   hidden: torch.Tensor, weight: torch.Tensor, bias: Maybe, *given: Any) -> Tuple[torch.Tensor, ...]:
    return tuple(
        _tensors.empty_like(source, source.dtype)
        if source is not None and needed else hidden.new_empty(0)
        for source, needed in zip((hidden, weight, bias), given[-3:]))


def _setup_context(ctx: Any, inputs: Tuple[Any, ...], output: Tuple[torch.Tensor, ...]) -> None:
    *options, partial, saves, dtype = inputs[6:]
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(*(output[4:] if saves else output))
    ctx.save_for_backward(*inputs[:6], *output[4:])
    ctx.options = *options, partial, dtype


def _operator_backward(ctx: Any, *grads: Maybe) -> Tuple[Maybe, ...]:
    needs = ctx.needs_input_grad[:3]
    got = _head_backward(*grads[:4], *ctx.saved_tensors, *ctx.options, *needs)
    return (*[gradient if needed else None for gradient, needed in zip(got, needs)], ) + (None, ) * 17


_CUBLAS_BYTES = 32 << 20  # workspace of products (cublas.c of the library)


def _workspaces(hidden: torch.Tensor, weight: torch.Tensor, target: Maybe, group: str, chunk: Any, dtype: torch.dtype,
                sums: bool, gradient: bool) -> Dict[Hashable, int]:
    """Of the head's client on a GPU (lm_head.c of the library)."""
    tokens = size_class(hidden.shape[:-1].numel())
    rows = min(_chunk(int(chunk or 0), hidden.shape[:-1]), tokens)
    targets = most_targets(1 if target is None or target.shape == hidden.shape[:-1] else target.shape[-1])
    piece, narrow = rows * weight.shape[0] * 4, min(rows, 1024) * weight.shape[1] * dtype.itemsize
    sizes = [piece, piece if rows < tokens else 0, _CUBLAS_BYTES + narrow,
             rows * weight.shape[1] * 4 if sums and gradient and group else 0]
    key = "lm_head", *weight.shape, tokens, dtype, rows, targets, group, sums, gradient
    return {key: workspaces(sizes, tokens, targets, group)}


def _forward_memory(hidden: torch.Tensor, weight: torch.Tensor, bias: Maybe, target: Maybe, *given: Any) -> Memory:
    """Operands in the dtype of products, if they have another one."""
    group, chunk, partial, saves, dtype = given[4], given[7], *given[-3:]
    kept = _workspaces(hidden, weight, target, group, chunk, dtype, not partial, saves)
    return _converted(hidden, weight, dtype), kept


def _backward_memory(*given: Any) -> Memory:
    """Gradients in fp32, or in the dtype of products, before they are converted."""
    hidden, weight, bias, target = given[4:8]
    group, chunk, partial, dtype, needs_hidden, needs_weight, _ = given[14], given[17], *given[-5:]
    temporary, narrowed = [], 0
    for of, needed, kept in ((hidden, needs_hidden, (dtype, torch.float32)), (weight, needs_weight, (torch.float32, ))):
        if needed and of.dtype not in kept:
            temporary.append(4 * of.numel())
            narrowed += of.numel() * of.element_size()
    # converted operands end before gradients are narrowed, whose results are counted already
    temporary.append(max(0, sum(_converted(hidden, weight, dtype)) - narrowed))
    return temporary, _workspaces(hidden, weight, target, group, chunk, dtype, not partial, True)


def _converted(hidden: torch.Tensor, weight: torch.Tensor, dtype: torch.dtype) -> List[int]:
    return [each.numel() * dtype.itemsize for each in (hidden, weight)
            if each.dtype != dtype or not _tensors.rows_fit(each)]


_head_forward = define(
    "head_forward", "(Tensor hidden, Tensor weight, Tensor? bias, Tensor? target, Tensor? mask, Tensor? temperatures, "
    f"{SCHEMA}, bool partial, bool saves, ScalarType dtype) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    _run_forward, _fake_forward, _operator_backward, _setup_context, memory=_forward_memory)
_head_backward = define(
    "head_backward", "(Tensor? logprob_grad, Tensor? entropy_grad, Tensor? logsumexp_grad, Tensor? mean_logprob_grad, "
    "Tensor hidden, Tensor weight, Tensor? bias, Tensor? target, Tensor? mask, Tensor? temperatures, Tensor saved, "
    f"Tensor place, {SCHEMA}, bool partial, ScalarType dtype, bool needs_hidden, bool needs_weight, bool needs_bias) "
    "-> (Tensor, Tensor, Tensor)", _run_backward, _fake_backward, refuse_second("backward of the fused head"),
    memory=_backward_memory)
