# SPDX-License-Identifier: Apache-2.0
"""The passes of the fused head: clients, forward, backward, autograd and operators of PyTorch."""

import ctypes
import functools
from typing import Any, Callable, Dict, Hashable, List, NamedTuple, Optional, Tuple

import torch

from .. import _abi
from .._library import configured, filled, made
from .._library import logprob as library
from ..errors import InvalidArgument
from . import _clients, _tensors
from ._calls import keep, transforms
from ._clients import size_class
from ._passes import (SCHEMA, Agreed, Asked, Memory, Options, Outputs, Tokens, agreed, define, fake_outputs, flag,
                      for_operator, fresh, from_operator, group_of, integer, most_targets, only_once, options_of, outputs_of,
                      outputs_struct, ran, ran_forward, real_outputs, refuse_second, set_tokens, targets_of,
                      through_operator, upstream, vocabulary, wanted, workspaces)
from .comm import GroupComm, comm_of

Maybe = Optional[torch.Tensor]
FORWARD, BACKWARD = _abi.BP_LM_HEAD_FORWARD, _abi.BP_LM_HEAD_BACKWARD
MEMORY = 1 << 30  # bytes for logits, the library's default
ONE_CALL, KEPT = _abi.BP_LM_HEAD_ONE_CALL, _abi.BP_LM_HEAD_KEPT

# ---- forward -------------------------------------------------------------------------------------------------------


class _Work(NamedTuple):
    """A forward pass that has run. logits: those kept for backward; start: the first id of this rank; vocab: as
    vocabulary().
    """

    options: Options
    comm: Optional[GroupComm]
    tokens: Tokens
    outputs: Outputs
    logits: Maybe
    start: int
    vocab: int
    dtype: torch.dtype
    memory: int


def _dtype(weight: torch.Tensor) -> torch.dtype:
    """The dtype of products."""
    kind = weight.device.type
    autocast = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else weight.dtype
    return autocast if autocast in _tensors.FLOATS else weight.dtype


def _readable(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return _tensors.readable(tensor if tensor.dtype == dtype else tensor.detach().to(dtype))


def _memory(asked: Any) -> int:
    """Bytes for logits, and for their gradient."""
    memory = integer("memory", asked)
    if memory is None:
        return MEMORY
    if memory <= 0:
        raise InvalidArgument(f"memory: {memory} bytes; pass a positive number, or None for 1 GiB")
    return memory


def _keeps(saves: bool, asked: Asked, weight: Any, hidden: Any) -> bool:
    """True if forward keeps its logits for backward, in half of the memory. Not in torch.compile, whose graphs are for
    any number of tokens.
    """
    if not saves or asked.chunk or torch.compiler.is_compiling() or not (
            isinstance(weight, torch.Tensor) and isinstance(hidden, torch.Tensor) and weight.dim() and hidden.dim()):
        return False
    return bool(0 < hidden.shape[:-1].numel() * weight.shape[0] * 8 <= _memory(asked.memory))


Fields = Dict[str, int]  # of bp_lm_head_config


def _fields(weight: torch.Tensor, dtype: torch.dtype, tokens: torch.Size, passes: int, options: Options,
            memory: int) -> Fields:
    """Those that do not depend on the ranks. A chunk is at most a sequence, rounded up to a power of two, so that
    sequences of similar length share a client.
    """
    chunk = options.chunk
    if chunk:
        chunk = min(chunk, 1 << (max(tokens[-1] if tokens else 1, 1) - 1).bit_length())
    return dict(hidden=weight.shape[1], vocab=weight.shape[0], dtype=_tensors.DTYPES[dtype], chunk=chunk,
                memory_bytes=memory // 2 if passes == KEPT else memory, max_tokens=size_class(tokens.numel()),
                max_targets=most_targets(options.targets), targets=targets_of(options), passes=passes,
                partial_hidden_grad=int(options.partial_hidden_grad))


def _key(fields: Fields, device: torch.device, start: Optional[int]) -> Hashable:
    return ("lm_head", device, start, torch.get_num_threads(), *fields.values())


def _client(comm: Optional[GroupComm], key: Hashable, agreement: Agreed, device: torch.device,
            fields: Fields) -> _clients.Handle:
    def make() -> ctypes.c_void_p:
        config = configured(library().bp_lm_head_config_init, _abi.bp_lm_head_config, vocab_start=agreement.start,
                            comm=None if comm is None else comm.handle, threads=torch.get_num_threads(), **fields)
        return made(library().bp_lm_head_create, _tensors.device_of(device), ctypes.byref(config))

    with _clients.lock_of(comm):
        return _clients.shared(comm, key, agreement.everybody, "bp_lm_head_destroy", make, agreement.start)


@functools.lru_cache(maxsize=256)
def _sizes(ranks: int, is_host: bool, *fields: Tuple[str, int]) -> _abi.bp_lm_head_sizes:
    config = configured(library().bp_lm_head_config_init, _abi.bp_lm_head_config, **dict(fields))
    return filled(library().bp_lm_head_estimate, _abi.bp_lm_head_sizes, ctypes.byref(config), ranks, int(is_host))


def _floats(tensor: torch.Tensor) -> Any:
    """For a field that points to floats."""
    return (ctypes.c_float * 1).from_address(tensor.data_ptr())


def _batch(hidden: torch.Tensor, weight: torch.Tensor, bias: Maybe, options: Options, tokens: Tokens,
           dtype: torch.dtype, logits: Maybe = None) -> Tuple[_abi.bp_lm_head_batch, Any]:
    """The struct, and the tensors that must live until the call is enqueued."""
    hidden, weight = _readable(hidden, dtype), _readable(weight, dtype)
    batch = fresh("bp_lm_head_batch_init", _abi.bp_lm_head_batch)
    batch.hidden, batch.weight = _tensors.rows(hidden), weight.data_ptr()
    batch.weight_stride = weight.stride(0) if weight.shape[0] > 1 else weight.shape[1]
    if logits is not None:
        logits = logits.contiguous()  # hooks of saved tensors may change strides
        batch.logits = _floats(logits)
    if bias is not None:
        bias = _tensors.contiguous(bias.detach().float())
        batch.bias = _floats(bias)
    return batch, (hidden, weight, bias, logits, set_tokens(batch.tokens, options, tokens, hidden))


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


Gradients = Tuple[Maybe, Maybe, Maybe]  # of hidden states, weight and bias


def _forward(hidden: Any, weight: Any, bias: Any, target: Any, asked: Asked, saves: bool,
             dtype: Optional[torch.dtype] = None, failure: Optional[Exception] = None, keeps: bool = False,
             above: Optional[Callable[[], Tuple[Maybe, ...]]] = None,
             needs: Tuple[bool, ...] = ()) -> Tuple[_Work, Gradients]:
    """Collective with a group. failure: of this rank, before the call. keeps: logits for backward. above: makes the
    upstream gradients, for both passes in one call, which returns the gradients that `needs` names.
    """
    comm = None if asked.group is None else comm_of(asked.group)
    options, key, columns = None, None, 0
    same: Dict[str, int] = {}
    try:  # conversions and allocations before the comparison, so that a failure reaches the other ranks
        if failure is not None:
            raise failure
        check_shapes(asked.what, hidden, weight, bias)
        columns, shape, device = weight.shape[0], hidden.shape[:-1], hidden.device
        options, tokens = options_of(asked, columns, shape, target, device)
        memory = _memory(asked.memory)
        saves = not flag("inference_only", asked.inference_only) and saves
        dtype = dtype or _dtype(weight)
        if keeps and comm is not None:
            alike = "keeps", shape.numel(), columns, memory
            keeps = not comm.trusting and _clients.of(comm).calls.get(alike, True)
        passes = ONE_CALL if above is not None else KEPT if keeps else FORWARD | BACKWARD if saves else FORWARD
        fields = _fields(weight, dtype, shape, passes, options, memory)
        if comm is not None:
            batch, sequence = _tensors.shape_of(shape)
            same = dict(batch=batch, sequence=sequence, dtype=fields["dtype"], hidden=weight.shape[1],
                        passes=FORWARD | BACKWARD if keeps else passes, chunk=fields["chunk"], memory=memory,
                        bias=int(bias is not None))
        key = _key(fields, device, options.start)
        logits = hidden.new_empty((shape.numel(), columns), dtype=torch.float32) if keeps else None
        work, kept = _batch(hidden, weight, bias, options, tokens, dtype, logits)
        outputs = outputs_of(options.outputs, hidden, target, saves)
        results = outputs_struct(outputs, len(shape))
        if above is not None:
            gradients, made_of, held = _gradients(above(), None, 1.0, hidden, weight, bias, dtype, needs,
                                                  _is_narrow(comm, fields, shape, weight))
    except Exception as error:  # any, because agreed() reports it to the other ranks
        failure = error
    told = None if comm is None else dict(keeps=int(keeps))
    agreement = agreed(comm, asked.what, key, same, options, columns, failure, told)
    assert options is not None and dtype is not None
    if keeps and agreement.everybody is not None and not all(one["keeps"] for one in agreement.everybody):
        keep(_clients.of(comm).calls, alike, False)  # a larger shard does not fit; the next call knows it
        logits = work.logits = None
        fields = _fields(weight, dtype, shape, FORWARD | BACKWARD, options, memory)
        key = _key(fields, device, options.start)
    client = _client(comm, key, agreement, device, fields)
    function = library().bp_lm_head_forward
    more: Tuple[Any, ...] = ()
    if above is not None:
        function, more = library().bp_lm_head_forward_backward, (ctypes.byref(gradients), )
    ran_forward(options, comm, client, device, function, library().bp_lm_head_check, ctypes.byref(work),
                ctypes.byref(results), *more)
    vocab = vocabulary(comm, options, library().bp_lm_head_get_info, client, columns)
    result = _Work(options, comm, tokens, outputs, logits, agreement.start, vocab, dtype, memory)
    if above is None:
        return result, (None, None, None)
    del kept, held
    return result, _narrowed(made_of, hidden, weight, bias)


# ---- backward ------------------------------------------------------------------------------------------------------


def _is_narrow(comm: Optional[GroupComm], fields: Fields, tokens: torch.Size, weight: torch.Tensor) -> bool:
    """True if the gradient of the weight is one product, which may round it to the dtype of products. Ranks may have
    larger shards, and smaller pieces.
    """
    return (comm is None and weight.dtype != torch.float32
            and tokens.numel() <= _sizes(1, weight.device.type == "cpu", *fields.items()).piece_tokens)


def _gradients(above: Tuple[Maybe, ...], saved: Maybe, share: float, hidden: torch.Tensor, weight: torch.Tensor,
               bias: Maybe, dtype: torch.dtype, needs: Tuple[bool, ...],
               is_narrow: bool) -> Tuple[_abi.bp_lm_head_gradients, Gradients, Any]:
    """The struct, the gradients that it points to, and what must live until the call is enqueued."""
    struct_of = fresh("bp_lm_head_gradients_init", _abi.bp_lm_head_gradients)
    held = upstream(struct_of, above, saved, hidden.dim() - 1, share)
    batch, sequence = _tensors.shape_of(hidden.shape[:-1])
    struct_of.hidden_grad = _abi.bp_token_rows(None, _abi.BP_DTYPE_FP32, batch, sequence, hidden.shape[-1])
    hidden_grad = weight_grad = bias_grad = None
    if needs[0]:
        hidden_grad = _tensors.empty_like(hidden, dtype if hidden.dtype == dtype else torch.float32)
        struct_of.hidden_grad = _tensors.rows(hidden_grad)
    if needs[1]:
        weight_grad = _tensors.empty_like(weight, dtype if is_narrow and weight.dtype == dtype else torch.float32)
        struct_of.weight_grad, struct_of.weight_grad_dtype = weight_grad.data_ptr(), _tensors.DTYPES[weight_grad.dtype]
    if needs[2] and bias is not None:
        bias_grad = _tensors.empty_like(bias, torch.float32)
        struct_of.bias_grad = _floats(bias_grad)
    return struct_of, (hidden_grad, weight_grad, bias_grad), held


def _narrowed(gradients: Gradients, *sources: Maybe) -> Gradients:
    """In the dtypes of their tensors."""
    return tuple(None if gradient is None or source is None else gradient.to(source.dtype)
                 for gradient, source in zip(gradients, sources))  # type: ignore[return-value]


def _backward_client(options: Options, comm: Optional[GroupComm], start: int, device: torch.device, fields: Fields,
                     agreement: Agreed, keys: Tuple[Hashable, Hashable]) -> _clients.Handle:
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
        return _backward_client(options, None, start, device, fields, Agreed(start, None), keys)
    return _client(comm, keys[1], agreement, device, fields)


class _Saved(NamedTuple):
    """Of a forward pass, for its backward, beside tensors."""

    options: Options
    comm: Optional[GroupComm]
    start: int
    vocab: int
    dtype: torch.dtype
    memory: int


def _backward(of: _Saved, grads: Tuple[Maybe, ...], tensors: Any, needs: Tuple[bool, ...]) -> Gradients:
    """Collective with a group, unless partial_hidden_grad is set. tensors: returns hidden states, weight, bias, the
    kept logits, the saved values, and the tensors of Tokens; called where a failure reaches the other ranks. Gradients
    in the dtypes of their tensors.
    """
    options, comm, start = of.options, of.comm, of.start
    absent, failure = all(grad is None for grad in grads), None
    keys: Tuple[Hashable, Hashable] = (None, None)
    generation = 0
    try:
        hidden, weight, bias, logits, saved, *rest = tensors()
        tokens, device = hidden.shape[:-1], hidden.device
        fields = _fields(weight, of.dtype, tokens, FORWARD | BACKWARD if logits is None else KEPT, options, of.memory)
        # the client of forward, which knows the bounds as they were passed; or one that backward has made
        keys = _key(fields, device, options.start), _key(fields, device, start)
        with _clients.lock_of(comm):
            found = [_clients.of(comm).known(key, start) for key in keys]
            generation = next((handle.generation for handle in found if handle is not None), 0)
        if not absent:
            batch, kept = _batch(hidden, weight, bias, options, Tokens(*rest), of.dtype, logits)
            alone = comm is not None and options.partial_hidden_grad and not any(found)  # see _backward_client
            gradients, made_of, held = _gradients(grads, saved, weight.shape[0] / of.vocab if alone else 1.0, hidden,
                                                  weight, bias, of.dtype, needs,
                                                  _is_narrow(comm, fields, tokens, weight))
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
    client = _backward_client(options, comm, start, device, fields, Agreed(start, everybody), keys)
    ran(comm, client, device, library().bp_lm_head_backward, ctypes.byref(batch), ctypes.byref(gradients))
    del kept, held
    return _narrowed(made_of, hidden, weight, bias)


class _FromHidden(torch.autograd.Function):
    """Connects the outputs of a pass, which has run, with hidden states, weight and bias."""

    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, bias: Maybe, work: _Work) -> Tuple[Maybe, ...]:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(hidden, weight, bias, work.logits, work.outputs[4], *work.tokens)
        ctx.saved = _Saved(work.options, work.comm, work.start, work.vocab, work.dtype, work.memory)
        return work.outputs[:4]

    @staticmethod
    def backward(ctx: Any, *grads: Maybe) -> Tuple[Maybe, ...]:
        got = _backward(ctx.saved, grads, lambda: ctx.saved_tensors, ctx.needs_input_grad[:3])
        if not torch.is_grad_enabled():
            return (*got, None)
        sources = *ctx.saved_tensors[:3], *grads
        return (*[only_once(ctx.saved.options.what, gradient, *sources) for gradient in got], None)


_connected: Any = super(torch.autograd.Function, _FromHidden).apply  # without Python's part, which is for functorch


def local_shards(hidden: Any, weight: Any, bias: Any, asked: Asked) -> Tuple[Any, Any, Asked]:
    """Weight, bias and options with the local shards of DTensors and their group."""
    if _tensors.is_dtensor(weight) or _tensors.is_dtensor(hidden) or _tensors.is_dtensor(bias):
        _tensors.refuse_dtensor("hidden states", hidden)
        weight, group = _tensors.local_shard("weights", weight, 0, asked.group)
        if bias is not None:
            bias, _ = _tensors.local_shard("bias", bias, 0, group)
        asked = asked._replace(group=group)
    return weight, bias, asked


def outputs_of_head(hidden: Any, weight: Any, bias: Any, target: Any, asked: Asked,
                    drop_masked: Any = False) -> Tuple[Any, ...]:
    """The four outputs; None where they are not wanted."""
    failure: Optional[Exception] = None
    dropped: Any = None
    keeps = False
    saves = torch.is_grad_enabled() and any(
        isinstance(tensor, torch.Tensor) and tensor.requires_grad for tensor in (hidden, weight, bias))
    try:
        weight, bias, asked = local_shards(hidden, weight, bias, asked)
        if flag("drop_masked", drop_masked):
            hidden, target, asked, dropped = _without_masked(hidden, weight, target, asked)
        keeps = _keeps(saves and not asked.inference_only, asked, weight, hidden)
    except Exception as error:  # any, because agreed() reports it to the other ranks
        failure = error
    outputs: Tuple[Any, ...]
    if failure is None and (through_operator(hidden) or through_operator(weight)):
        options, temperatures = for_operator(asked)
        outputs = wanted(asked.outputs, _head_forward(hidden, weight, bias, target, asked.mask, temperatures, *options,
                                                      asked.partial_hidden_grad, saves and not asked.inference_only,
                                                      _dtype(weight), _memory(asked.memory), keeps))
    else:
        work, _ = _forward(hidden, weight, bias, target, asked, saves, None, failure, keeps)
        outputs = work.outputs[:4]
        if work.outputs[4] is not None:  # values for backward
            connected: Any = _FromHidden.apply if transforms() else _connected  # the former refuses them
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
        return whole.index_copy(0, index, output).reshape((*shape, *output.shape[1:]))

    temperature = asked.temperature if tokens.temperatures is None else kept(tokens.temperatures)
    return kept(hidden), None if target is None else kept(target), asked._replace(
        mask=None, temperature=temperature), put_back


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
    *options, partial, saves, dtype, memory, keeps = given
    asked = from_operator(tuple(options), mask, temperatures)._replace(partial_hidden_grad=partial, memory=memory)
    work, _ = _forward(hidden, weight, bias, target, asked, saves, dtype, None, keeps)
    return (*real_outputs(hidden, work.outputs, work.start, work.vocab),
            hidden.new_empty(0, dtype=torch.float32) if work.logits is None else work.logits)


def _fake_forward(hidden: torch.Tensor, weight: torch.Tensor, bias: Maybe, target: Maybe, mask: Maybe,
                  temperatures: Maybe, *given: Any) -> Tuple[torch.Tensor, ...]:
    *_, saves, _, _, keeps = given
    _tensors.check_floats("hidden states", hidden)
    _tensors.check_floats("weights", weight)
    shape = (hidden.shape[:-1].numel(), weight.shape[0]) if keeps else (0, )
    return (*fake_outputs(hidden, hidden.shape[:-1], target, given[1], saves),
            hidden.new_empty(shape, dtype=torch.float32))


def _run_backward(logprob_grad: Maybe, entropy_grad: Maybe, logsumexp_grad: Maybe, mean_logprob_grad: Maybe,
                  hidden: torch.Tensor, weight: torch.Tensor, bias: Maybe, target: Maybe, mask: Maybe,
                  temperatures: Maybe, saved: torch.Tensor, place: torch.Tensor, logits: torch.Tensor,
                  *given: Any) -> Tuple[torch.Tensor, ...]:
    *of_forward, partial, dtype, memory, needs_hidden, needs_weight, needs_bias = given
    needs = needs_hidden, needs_weight, needs_bias
    asked = from_operator(tuple(of_forward), mask, temperatures)._replace(partial_hidden_grad=partial)
    options, tokens = options_of(asked, weight.shape[0], hidden.shape[:-1], target, hidden.device)
    start, vocab = place.tolist()
    of = _Saved(options, None if asked.group is None else comm_of(asked.group), start, vocab, dtype, memory)
    kept = logits if logits.numel() else None
    got = _backward(of, (logprob_grad, entropy_grad, logsumexp_grad, mean_logprob_grad),
                    lambda: (hidden, weight, bias, kept, saved, *tokens), needs)
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
    *options, partial, saves, dtype, memory, _ = inputs[6:]
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(*(output[4:] if saves else output))
    ctx.save_for_backward(*inputs[:6], *output[4:])
    ctx.options = *options, partial, dtype, memory


def _operator_backward(ctx: Any, *grads: Maybe) -> Tuple[Maybe, ...]:
    needs = ctx.needs_input_grad[:3]
    got = _head_backward(*grads[:4], *ctx.saved_tensors, *ctx.options, *needs)
    return (*[gradient if needed else None for gradient, needed in zip(got, needs)], ) + (None, ) * 19


def _run_both(logprob_grad: Maybe, entropy_grad: Maybe, mean_logprob_grad: Maybe, hidden: torch.Tensor,
              weight: torch.Tensor, bias: Maybe, target: torch.Tensor, mask: Maybe, temperatures: Maybe,
              *given: Any) -> Tuple[torch.Tensor, ...]:
    *options, partial, dtype, memory, needs_hidden, needs_weight, needs_bias = given
    asked = from_operator(tuple(options), mask, temperatures)._replace(partial_hidden_grad=partial, memory=memory)
    work, gradients = _forward(hidden, weight, bias, target, asked, True, dtype, None, False,
                               lambda: (logprob_grad, entropy_grad, None, mean_logprob_grad),
                               (needs_hidden, needs_weight, needs_bias))
    return tuple(hidden.new_empty(0, dtype=torch.float32) if each is None else each
                 for each in (*work.outputs[:4], *gradients))


def _fake_both(logprob_grad: Maybe, entropy_grad: Maybe, mean_logprob_grad: Maybe, hidden: torch.Tensor,
               weight: torch.Tensor, bias: Maybe, target: torch.Tensor, mask: Maybe, temperatures: Maybe,
               *given: Any) -> Tuple[torch.Tensor, ...]:
    return (*fake_outputs(hidden, hidden.shape[:-1], target, given[1], False)[:4], *[
        _tensors.empty_like(source, source.dtype) if source is not None and needed else
        hidden.new_empty(0, dtype=torch.float32) for source, needed in zip((hidden, weight, bias), given[-3:])])


def both(hidden: Any, weight: Any, bias: Any, target: Any, asked: Asked,
         above: Callable[[], Tuple[Maybe, ...]], needs: Tuple[bool, ...]) -> Tuple[Tuple[Maybe, ...], Gradients]:
    """The four outputs, and the gradients that `needs` names, in one call, for the upstream gradients that `above`
    makes (not of logsumexp). Without autograd.
    """
    failure: Optional[Exception] = None
    try:
        weight, bias, asked = local_shards(hidden, weight, bias, asked)
        if through_operator(hidden) or through_operator(weight):
            check_shapes(asked.what, hidden, weight, bias)
            given = above()
            options, temperatures = for_operator(asked)
            results = _head_both(*given[:2], given[3], hidden, weight, bias, target, asked.mask, temperatures, *options,
                                 asked.partial_hidden_grad, _dtype(weight), _memory(asked.memory), *needs)
            return wanted(asked.outputs, results), tuple(  # type: ignore[return-value]
                gradient if needed else None for gradient, needed in zip(results[4:], needs))
    except Exception as error:  # any, because agreed() reports it to the other ranks
        failure = error
    work, gradients = _forward(hidden, weight, bias, target, asked, True, None, failure, False, above, needs)
    return work.outputs[:4], gradients


# ---- memory of operators, for recordings ---------------------------------------------------------------------------


def _client_memory(hidden: torch.Tensor, weight: torch.Tensor, target: Maybe, schema: Tuple[Any, ...], passes: int,
                   partial: bool, dtype: torch.dtype, memory: int) -> Tuple[Dict[Hashable, int], bool]:
    """Bytes of the head's client on a GPU, and _is_narrow(). schema: values of SCHEMA."""
    group, chunk, outside = schema[2], schema[5], schema[10]
    tokens = hidden.shape[:-1]
    targets = 1 if target is None or target.shape == tokens else target.shape[-1]
    options = Options("", 0, None, None, int(chunk or 0), 1.0, 0.0, 0, None, targets, outside, False, partial)
    fields = _fields(weight, dtype, tokens, passes, options, memory)
    of = group_of(group)
    sizes = _sizes(1 if of is None else of.size(), hidden.device.type == "cpu", *fields.items())
    each = (sizes.chunk_bytes, sizes.second_chunk_bytes, sizes.scratch_bytes, sizes.hidden_grad_bytes, sizes.partials_bytes,
            sizes.gathered_bytes, sizes.target_bytes)
    is_narrow = of is None and tokens.numel() <= sizes.piece_tokens
    return {("lm_head", group, *fields.values()): workspaces(each)}, is_narrow


def _temporaries(hidden: torch.Tensor, weight: torch.Tensor, dtype: torch.dtype, is_narrow: bool,
                 needs: Tuple[bool, ...]) -> List[int]:
    """Bytes of gradients in fp32, or in the dtype of products, before they are converted; of converted operands, which
    end before that.
    """
    temporary, narrowed = [], 0
    for of, needed, kept in ((hidden, needs[0], (dtype, torch.float32)),
                             (weight, needs[1], (torch.float32, dtype) if is_narrow else (torch.float32, ))):
        if needed and of.dtype not in kept:
            temporary.append(4 * of.numel())
            narrowed += of.numel() * of.element_size()
    temporary.append(max(0, sum(_converted(hidden, weight, dtype)) - narrowed))
    return temporary


def _converted(hidden: torch.Tensor, weight: torch.Tensor, dtype: torch.dtype) -> List[int]:
    return [each.numel() * dtype.itemsize for each in (hidden, weight)
            if each.dtype != dtype or not _tensors.rows_fit(each)]


def _forward_memory(hidden: torch.Tensor, weight: torch.Tensor, bias: Maybe, target: Maybe, *given: Any) -> Memory:
    """Operands in the dtype of products, if they have another one."""
    partial, saves, dtype, memory, keeps = given[-5:]
    passes = KEPT if keeps else FORWARD | BACKWARD if saves else FORWARD
    kept, _ = _client_memory(hidden, weight, target, given[2:13], passes, partial, dtype, memory)
    return _converted(hidden, weight, dtype), kept


def _backward_memory(*given: Any) -> Memory:
    hidden, weight, _, target = given[4:8]
    partial, dtype, memory, *needs = given[-6:]
    passes = KEPT if given[12].numel() else FORWARD | BACKWARD
    kept, is_narrow = _client_memory(hidden, weight, target, given[13:24], passes, partial, dtype, memory)
    return _temporaries(hidden, weight, dtype, is_narrow, tuple(needs)), kept


def _both_memory(*given: Any) -> Memory:
    hidden, weight, _, target = given[3:7]
    partial, dtype, memory, *needs = given[-6:]
    kept, is_narrow = _client_memory(hidden, weight, target, given[9:20], ONE_CALL, partial, dtype, memory)
    return _temporaries(hidden, weight, dtype, is_narrow, tuple(needs)), kept


_TENSORS = "Tensor hidden, Tensor weight, Tensor? bias, Tensor? target, Tensor? mask, Tensor? temperatures"
_NEEDS = "bool needs_hidden, bool needs_weight, bool needs_bias"
_head_forward = define(
    "head_forward", f"({_TENSORS}, {SCHEMA}, bool partial, bool saves, ScalarType dtype, int memory, bool keeps) -> "
    "(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    _run_forward, _fake_forward, _operator_backward, _setup_context, memory=_forward_memory)
_head_backward = define(
    "head_backward", "(Tensor? logprob_grad, Tensor? entropy_grad, Tensor? logsumexp_grad, Tensor? mean_logprob_grad, "
    f"{_TENSORS}, Tensor saved, Tensor place, Tensor logits, {SCHEMA}, bool partial, ScalarType dtype, int memory, "
    f"{_NEEDS}) -> (Tensor, Tensor, Tensor)", _run_backward, _fake_backward,
    refuse_second("backward of the fused head"), memory=_backward_memory)
_head_both = define(
    "head_both", "(Tensor? logprob_grad, Tensor? entropy_grad, Tensor? mean_logprob_grad, "
    f"{_TENSORS}, {SCHEMA}, bool partial, ScalarType dtype, int memory, {_NEEDS}) -> "
    "(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)", _run_both, _fake_both,
    refuse_second("both passes of the fused head"), memory=_both_memory)
