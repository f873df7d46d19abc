# SPDX-License-Identifier: Apache-2.0
"""Log-probabilities and entropies of logits, differentiable, on one rank or with the vocabulary split over a group.

    from bucketpool.torch.logprob import logprobs_from_logits

    logprobs = logprobs_from_logits(logits, targets, group=tp_group, temperature=0.7)
    (-(logprobs * mask).sum() / mask.sum()).backward()

- logprobs_from_logits, vocab_parallel_entropy, logprobs_and_entropy, token_statistics: functions of logits
- logprobs_with_gradient: log-probabilities and the gradient in one call, without autograd
- linear_logprobs, linear_logprobs_and_entropy, linear_token_statistics: functions of hidden states and the head's
  weight (lm_head.py)
- ChunkedDistributedLogprob, DistributedLogprob, FusedLinearChunkedDistributedLogprob: SkyRL's autograd
  functions; gather_logprobs, gather_logprobs_entropy: AReaL's functions; with the original argument order

Tensors. Logits: [..., sequence, columns], float32, bfloat16 or float16, on a CPU or GPU; copied only if the
elements of a row are not contiguous or rows overlap. Targets: int64 or int32 ids of the whole vocabulary, of the
shape of the logits without the last dimension, or with a last dimension of K targets. Results: float32; arithmetic
is float32, also for bfloat16 logits, and rounds logits only where round_to is given.

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
from typing import Any, Callable, Dict, Hashable, List, NamedTuple, Optional, Tuple

import torch
import torch.distributed as dist

from .. import _abi
from .._library import call, configured, made
from .._library import logprob as library
from ..errors import InvalidArgument
from . import _clients, _tensors
from ._calls import Call, Field, keep, key_of, layouts, transforms
from ._clients import free_clients, size_class
from ._passes import (ENTROPY, IGNORED, LOGPROB, LOGSUMEXP, MEAN_LOGPROB, OUTPUTS, SCHEMA, Agreed, Asked, Memory, Options,
                      Outputs, Temperature, Tokens, agreed, define, fake_outputs, flag, for_operator, fresh, from_operator, group_of, most_targets,
                      of_shard, of_target, only_once, options_of, outputs_of, outputs_struct, ran, ran_forward, real_outputs, refuse_in_place,
                      refuse_second, set_tokens, targets_of, through_operator, untraced, upstream, vocabulary, wanted, workspaces)
from .comm import GroupComm, comm_of, known_comms
from .lm_head import (FusedLinearChunkedDistributedLogprob, TokenStatistics, linear_logprobs,
                      linear_logprobs_and_entropy, linear_token_statistics)

__all__ = [
    "ChunkedDistributedLogprob", "DistributedLogprob", "VocabParallelEntropy", "VocabParallelLogprobEntropy",
    "FusedLinearChunkedDistributedLogprob", "LogprobsWithGradient", "TokenStatistics", "logprobs_from_logits",
    "vocab_parallel_entropy", "logprobs_and_entropy", "token_statistics", "logprobs_with_gradient", "gather_logprobs",
    "gather_logprobs_entropy", "linear_logprobs", "linear_logprobs_and_entropy", "linear_token_statistics",
    "check_targets", "free_clients"
]

# ---- forward -------------------------------------------------------------------------------------------------------


class _Work(NamedTuple):
    """A forward pass that has run. start: the first id of this rank; vocab: as vocabulary()."""

    options: Options
    tokens: Tokens
    outputs: Outputs
    start: int
    vocab: int


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
            columns: int, targets: int, most: int) -> _clients.Handle:
    def make() -> ctypes.c_void_p:
        config = configured(library().bp_logprob_config_init, _abi.bp_logprob_config, vocab=columns,
                            vocab_start=agreement.start, max_tokens=size_class(tokens), max_targets=most,
                            comm=None if comm is None else comm.handle, targets=targets,
                            threads=torch.get_num_threads())
        return made(library().bp_logprob_create, _tensors.device_of(device), ctypes.byref(config))

    with _clients.lock_of(comm):
        known = _clients.of(comm).known(key, agreement.start) if agreement.everybody is None else None
        return known or _clients.shared(comm, key, agreement.everybody, "bp_logprob_destroy", make, agreement.start)


def _key(device: torch.device, tokens: int, columns: int, start: Optional[int], targets: int,
         most: int) -> Hashable:
    return "logprob", device, size_class(tokens), columns, start, targets, most, torch.get_num_threads()


class _Planned(NamedTuple):
    """Serves calls with equal options and layouts. client: tokens, columns, targets and most of _client(). call: takes
    logits, the tensors of Tokens and the outputs. likes: tensors of the shapes of Outputs, without their memory; None
    where they are not wanted.
    """

    options: Options
    key: Hashable
    client: Tuple[int, int, int, int]
    call: Call
    likes: Tuple[Any, ...]


def _batch(logits: torch.Tensor, options: Options, tokens: Tokens) -> Tuple[_abi.bp_logprob_batch, Any]:
    """The struct, and the tensors that must live until the call is enqueued."""
    logits = _tensors.readable(logits)
    batch = fresh("bp_logprob_batch_init", _abi.bp_logprob_batch)
    batch.logits = _tensors.rows(logits)
    return batch, (logits, set_tokens(batch.tokens, options, tokens, logits))


def _fields(logits: torch.Tensor, tokens: Tokens, kept: Any) -> List[Field]:
    """The fields of the tensors of a batch. kept: as _batch() returns it."""
    given = zip(tokens._fields, tokens, kept[1])
    return [(0, "logits.data", kept[0] is not logits),
            *[(0, f"tokens.{name}.data", used is not tensor) for name, tensor, used in given if tensor is not None]]


def _plan(logits: Any, target: Any, options: Options, tokens: Tokens, saves: bool) -> _Planned:
    shape, device = logits.shape[:-1], logits.device
    batch, kept = _batch(logits, options, tokens)
    outputs = outputs_of(options.outputs, logits, target, saves)
    one = torch.empty((), dtype=torch.float32, device=device)
    likes = tuple([None if each is None else one.expand(each.shape) for each in outputs])
    structs = batch, outputs_struct(outputs, len(shape))
    fields = _fields(logits, tokens, kept)
    fields += [(1, "saved" if name == "saved" else f"{name}.data", False)
               for name, output in zip((*OUTPUTS, "saved"), outputs) if output is not None]
    most = most_targets(options.targets)
    client = shape.numel(), logits.shape[-1], targets_of(options), most
    key = _key(device, client[0], client[1], options.start, *client[2:])
    call = Call("bp_logprob_forward", structs, fields, kept[1] if target is None else None)
    return _Planned(options, key, client, call, likes)


def _planned(calls: Dict[Hashable, Any], logits: Any, target: Any, asked: Asked,
             saves: bool) -> Tuple[_Planned, Tokens]:
    """The plan of an earlier call with these options and layouts, or a new one."""
    temperature, mask = asked.temperature, asked.mask
    options: Tuple[Any, ...] = *asked[:2], *asked[3:6], *asked[8:], saves  # without group, temperature and mask
    temperatures = None
    if isinstance(temperature, torch.Tensor) and temperature.dim() > 0:
        temperatures = temperature
    else:
        options = (*options, temperature)
    key = key_of(options, (logits, target, mask, temperatures))
    known: Optional[_Planned] = None if key is None else calls.get(key)
    if known is not None:
        return known, Tokens(target, None if mask is None else _tensors.bytes_of(mask),
                             None if temperatures is None else temperatures.detach())
    _check_logits(asked.what, logits)
    converted, tokens = options_of(asked, logits.shape[-1], logits.shape[:-1], target, logits.device)
    saves = not flag("inference_only", asked.inference_only) and saves
    made: _Planned = keep(calls, key, _plan(logits, target, converted, tokens, saves))
    return made, tokens


def _check_logits(what: str, logits: Any) -> None:
    _tensors.check_floats("logits", logits)
    if not logits.shape or logits.shape[-1] == 0:
        raise InvalidArgument(f"{what}: logits of shape {list(logits.shape)} have no columns; pass [..., sequence, "
                              "columns], and a column at least on each rank")


def _compared(logits: torch.Tensor, options: Options) -> Dict[str, int]:
    """Numbers that are equal on all ranks."""
    batch, sequence = _tensors.shape_of(logits.shape[:-1])
    return dict(batch=batch, sequence=sequence, dtype=_tensors.DTYPES[logits.dtype], gradient=0, hidden=0,
                chunk=options.chunk)


def _forward(logits: Any, target: Any, asked: Asked, saves: bool, failure: Optional[Exception] = None,
             gradient: Optional[Callable[[Options], Any]] = None) -> _Work:
    """Collective with a group. failure: of this rank, before the call. gradient: returns the struct of the gradients
    (and what must live), for both passes in one call.
    """
    comm = None if asked.group is None else comm_of(asked.group)
    options, key, same, columns = None, None, {}, 0
    try:  # conversions and allocations before the comparison, so that a failure reaches the other ranks
        if failure is not None:
            raise failure
        plan, tokens = _planned(_clients.of(comm).calls, logits, target, asked, saves)
        options, key, columns = plan.options, plan.key, logits.shape[-1]
        if options.in_place and plan.likes[4] is not None:
            _check_overwritten(asked.what, logits)
        if comm is not None:
            same = _compared(logits, options)
        outputs: Any = [None if like is None else torch.empty_like(like) for like in plan.likes]
        given = None if gradient is None else gradient(options)
    except Exception as error:  # any, because agreed() reports it to the other ranks
        failure = error
    agreement = agreed(comm, asked.what, key, same, options, columns, failure)
    assert options is not None
    device = logits.device
    client = _client(comm, key, agreement, device, *plan.client)
    call = plan.call if given is None else plan.call.with_struct("bp_logprob_forward_backward", given[0])
    ran_forward(options, comm, client, device, call, library().bp_logprob_check,
                [each for each in (logits, *tokens, *outputs) if each is not None])
    vocab = columns if comm is None else vocabulary(comm, options, library().bp_logprob_get_info, client, columns)
    return _Work(options, tokens, tuple(outputs), agreement.start, vocab)


# ---- backward ------------------------------------------------------------------------------------------------------


def _gradient_dtype(logits: torch.Tensor) -> torch.dtype:
    """The dtype in which autograd passes the gradient on; another one would cost a copy."""
    asked = getattr(logits, "grad_dtype", logits.dtype) if logits.is_leaf and logits.requires_grad else logits.dtype
    return torch.float32 if asked in (None, torch.float32) else logits.dtype


def _plan_backward(tensors: Tuple[Any, ...], options: Options, start: int,
                   in_place: bool) -> Tuple[Call, Hashable, Tuple[int, int, int, int]]:
    """The call, and its client as _Planned has it."""
    logits, *given, saved, gradient = tensors
    tokens, grads = Tokens(*given[:3]), tuple(given[3:])
    batch, kept = _batch(logits, options, tokens)
    gradients = fresh("bp_logprob_gradients_init", _abi.bp_logprob_gradients)
    gradients.in_place = in_place
    used = upstream(gradients, grads, saved, logits.dim() - 1)
    gradients.logits_grad = batch.logits if in_place else _tensors.rows(gradient)
    above = [(f"{name}_grad.data", grad) for name, grad in zip(OUTPUTS, grads) if grad is not None]
    fields = _fields(logits, tokens, kept)
    fields += [(1, name, held is not each) for (name, each), held in zip((*above, ("saved", saved)), used)]
    fields.append((1, "logits_grad.data", False))
    client = logits.shape[:-1].numel(), logits.shape[-1], targets_of(options), most_targets(options.targets)
    call = Call("bp_logprob_backward", (batch, gradients), fields, kept[1] if tokens.target is None else None)
    return call, _key(logits.device, client[0], client[1], start, *client[2:]), client


def _backward(grads: Tuple[Optional[torch.Tensor], ...], logits: torch.Tensor, tokens: Tokens, saved: torch.Tensor,
              start: int, vocab: int, options: Options, gradient: torch.Tensor, in_place: bool) -> None:
    """Writes the gradient, by a client of this process alone, because nothing is communicated."""
    columns = logits.shape[-1]
    if columns != vocab:
        grads = of_shard(grads, columns / vocab)
    tensors = (logits, *tokens, *grads, saved, gradient)
    calls = _clients.of(None).calls
    key = options, start, in_place, torch.get_num_threads(), layouts(tensors)
    call, of_client, more = calls.get(key) or keep(calls, key, _plan_backward(tensors, options, start, in_place))
    client = _client(None, of_client, Agreed(start, None), logits.device, *more)
    ran(None, client, logits.device, call, [each for each in tensors if each is not None])


class _FromLogits(torch.autograd.Function):
    """Connects the outputs of a pass, which has run, with the logits."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, work: _Work) -> Tuple[Any, ...]:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(logits, work.outputs[4], *work.tokens)
        ctx.of_forward = work.start, work.vocab, work.options, _gradient_dtype(logits)
        return work.outputs[:4]

    @staticmethod
    def backward(ctx: Any, *grads: Optional[torch.Tensor]) -> Tuple[Optional[torch.Tensor], ...]:
        if not [grad for grad in grads if grad is not None]:
            return None, None
        logits, saved, *tokens = ctx.saved_tensors
        start, vocab, options, dtype = ctx.of_forward
        in_place = options.in_place
        if in_place and torch.is_grad_enabled():
            raise InvalidArgument(f"{options.what}: in_place and create_graph exclude each other; pass in_place=False")
        if in_place:
            logits = _tensors.readable(logits)  # hooks of saved tensors may change strides
            gradient = logits.detach()
        else:
            gradient = _tensors.empty_like(logits, dtype)
        _backward(grads, logits, Tokens(*tokens), saved, start, vocab, options, gradient, in_place)
        if in_place:
            torch.autograd.graph.increment_version(logits)
        return only_once(options.what, gradient, logits, *grads), None


_connected: Any = super(torch.autograd.Function, _FromLogits).apply  # without Python's part, which is for functorch


def _outputs(logits: Any, target: Any, asked: Asked) -> Tuple[Any, ...]:
    """The four outputs; None where they are not wanted."""
    failure: Optional[Exception] = None
    if type(logits) is not torch.Tensor and _tensors.is_dtensor(logits):
        try:
            logits, group = _tensors.local_shard("logits", logits, -1, asked.group)
            asked = asked._replace(group=group)
        except Exception as error:  # any, because agreed() reports it to the other ranks
            failure = error
    saves = torch.is_grad_enabled() and isinstance(logits, torch.Tensor) and logits.requires_grad
    if failure is None and through_operator(logits):
        saves = saves and not asked.inference_only
        exact = saves and not torch.compiler.is_compiling() and _gradient_dtype(logits) == torch.float32
        options, temperatures = for_operator(asked)
        outputs = _logits_forward(logits, target, asked.mask, temperatures, *options, saves, exact,
                                  asked.in_place and saves)
        return wanted(asked.outputs, outputs)
    work = _forward(logits, target, asked, saves, failure)
    if work.outputs[4] is None:  # nothing is saved
        return work.outputs[:4]
    connected: Any = _FromLogits.apply if transforms() else _connected  # the former refuses them
    result: Tuple[Any, ...] = connected(logits, work)
    return result


# ---- operators -----------------------------------------------------------------------------------------------------


Maybe = Optional[torch.Tensor]


def _run_forward(logits: torch.Tensor, target: Maybe, mask: Maybe, temperatures: Maybe,
                 *given: Any) -> Tuple[torch.Tensor, ...]:
    *options, saves, _, in_place = given
    refuse_in_place(given[0], in_place)
    work = _forward(logits, target, from_operator(tuple(options), mask, temperatures), saves)
    return real_outputs(logits, work.outputs, work.start, work.vocab)


def _fake_forward(logits: torch.Tensor, target: Maybe, mask: Maybe, temperatures: Maybe,
                  *given: Any) -> Tuple[torch.Tensor, ...]:
    what, outputs, *_, saves, _, in_place = given
    refuse_in_place(what, in_place)
    _tensors.check_floats("logits", logits)
    return fake_outputs(logits, logits.shape[:-1], target, outputs, saves)


def _run_backward(logprob_grad: Maybe, entropy_grad: Maybe, logsumexp_grad: Maybe, mean_logprob_grad: Maybe,
                  logits: torch.Tensor, target: Maybe, mask: Maybe, temperatures: Maybe, saved: torch.Tensor,
                  place: torch.Tensor, *given: Any) -> torch.Tensor:
    *of_forward, exact = given
    gradient = _tensors.empty_like(logits, torch.float32 if exact else logits.dtype)
    asked = from_operator(tuple(of_forward), mask, temperatures)
    options, tokens = options_of(asked, logits.shape[-1], logits.shape[:-1], target, logits.device)
    start, vocab = place.tolist()
    _backward((logprob_grad, entropy_grad, logsumexp_grad, mean_logprob_grad), logits, tokens, saved, start, vocab,
              options, gradient, False)
    return gradient


def _fake_backward(logprob_grad: Maybe, entropy_grad: Maybe, logsumexp_grad: Maybe, mean_logprob_grad: Maybe,
                   logits: torch.Tensor, *given: Any) -> torch.Tensor:
    return _tensors.empty_like(logits, torch.float32 if given[-1] else logits.dtype)


def _setup_context(ctx: Any, inputs: Tuple[Any, ...], output: Tuple[torch.Tensor, ...]) -> None:
    *options, saves, exact, _ = inputs[4:]
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(*(output[4:] if saves else output))
    ctx.save_for_backward(*inputs[:4], *output[4:])
    ctx.options = *options, exact


def _operator_backward(ctx: Any, *grads: Optional[torch.Tensor]) -> Tuple[Optional[torch.Tensor], ...]:
    gradient = None
    if any(grad is not None for grad in grads[:4]):
        gradient = _logits_backward(*grads[:4], *ctx.saved_tensors, *ctx.options)
    return (gradient, ) + (None, ) * 17


def _forward_memory(logits: torch.Tensor, target: Maybe, *given: Any) -> Memory:
    """Logits that are no rows are copied."""
    count, columns, group = logits.shape[:-1].numel(), logits.shape[-1], given[4]
    most = most_targets(1 if target is None or target.shape == logits.shape[:-1] else target.shape[-1])
    of, tokens = group_of(group), size_class(count)
    ranks = 0 if of is None else of.size()
    partials = tokens * (16 + 4 * most) if ranks else 0  # base.c of the library; 8: the first bad target
    return _copy(logits), {("logprob", tokens, columns, most, group): workspaces((8, partials, partials * ranks))}


def _backward_memory(*given: Any) -> Memory:
    """Backward communicates nothing: by a client of this process alone."""
    return _forward_memory(given[4], given[5], *given[6:8], "", 0, "")


def _copy(logits: torch.Tensor) -> List[int]:
    return [] if _tensors.rows_fit(logits) else [logits.numel() * logits.element_size()]


_logits_forward = define(
    "logits_forward", f"(Tensor logits, Tensor? target, Tensor? mask, Tensor? temperatures, {SCHEMA}, "
    "bool saves, bool exact, bool in_place) -> "
    "(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)", _run_forward, _fake_forward, _operator_backward, _setup_context,
    memory=_forward_memory)
_logits_backward = define(
    "logits_backward", "(Tensor? logprob_grad, Tensor? entropy_grad, Tensor? logsumexp_grad, "
    "Tensor? mean_logprob_grad, Tensor logits, Tensor? target, Tensor? mask, Tensor? temperatures, Tensor saved, "
    f"Tensor place, {SCHEMA}, bool exact) -> Tensor", _run_backward, _fake_backward,
    refuse_second("backward of log-probabilities"), memory=_backward_memory)

# ---- the functions of SkyRL ----------------------------------------------------------------------------------------


class ChunkedDistributedLogprob:
    """Log-probabilities of targets, with SkyRL's arguments first. Use apply:

        .apply(vocab_parallel_logits, target, vocab_start_index, vocab_end_index, chunk_size, tp_group,
               inference_only=False, temperature=1.0, mask=None, in_place=False, ignore_index=None, outside="mask")

    - vocab_start_index, vocab_end_index: the columns of the logits are the ids [start, end)
    - chunk_size: accepted, without effect on results, memory or time
    - inference_only: nothing is saved, and the result has no gradient
    - target: as SkyRL's function, a target outside the vocabulary, -100 among them, has the log-probability 0 and the
      gradient -p: mask it, or pass ignore_index=-100, outside="error", the defaults of logprobs_from_logits

    Further arguments as in logprobs_from_logits.
    """

    @staticmethod
    def apply(vocab_parallel_logits: torch.Tensor, target: torch.Tensor, vocab_start_index: Optional[int],
              vocab_end_index: Optional[int], chunk_size: Optional[int], tp_group: Optional[dist.ProcessGroup],
              inference_only: bool = False, temperature: Temperature = 1.0, mask: Optional[torch.Tensor] = None,
              in_place: bool = False, ignore_index: Optional[int] = None, outside: str = "mask") -> torch.Tensor:
        asked = Asked("ChunkedDistributedLogprob", LOGPROB, tp_group, vocab_start_index, vocab_end_index, chunk_size,
                      temperature, mask, ignore_index, None, None, outside, in_place, inference_only)
        logprobs: torch.Tensor = _outputs(vocab_parallel_logits, target, asked)[0]
        return logprobs


class DistributedLogprob:
    """ChunkedDistributedLogprob without a chunk size; the results are the same bits. Use apply:

        .apply(vocab_parallel_logits, target, vocab_start_index, vocab_end_index, group, inference_only=False,
               temperature=1.0, mask=None, in_place=False)

    SkyRL's function of this name saves a softmax; this one saves 8 bytes for each token. Targets outside the
    vocabulary are as in ChunkedDistributedLogprob.
    """

    @staticmethod
    def apply(vocab_parallel_logits: torch.Tensor, target: torch.Tensor, vocab_start_index: Optional[int],
              vocab_end_index: Optional[int], group: Optional[dist.ProcessGroup], inference_only: bool = False,
              temperature: Temperature = 1.0, mask: Optional[torch.Tensor] = None, in_place: bool = False) -> torch.Tensor:
        asked = Asked("DistributedLogprob", LOGPROB, group, vocab_start_index, vocab_end_index, None, temperature, mask,
                      None, outside="mask", in_place=in_place, inference_only=inference_only)
        logprobs: torch.Tensor = _outputs(vocab_parallel_logits, target, asked)[0]
        return logprobs


class VocabParallelEntropy:
    """Entropies. Logits of -inf add 0. Use apply, or vocab_parallel_entropy:

        .apply(vocab_parallel_logits, group=None, vocab_start_index=None, vocab_end_index=None, temperature=1.0,
               mask=None, inference_only=False, in_place=False)
    """

    @staticmethod
    def apply(vocab_parallel_logits: torch.Tensor, group: Optional[dist.ProcessGroup] = None,
              vocab_start_index: Optional[int] = None, vocab_end_index: Optional[int] = None,
              temperature: Temperature = 1.0, mask: Optional[torch.Tensor] = None, inference_only: bool = False,
              in_place: bool = False) -> torch.Tensor:
        asked = Asked("VocabParallelEntropy", ENTROPY, group, vocab_start_index, vocab_end_index, None, temperature,
                      mask, in_place=in_place, inference_only=inference_only)
        entropies: torch.Tensor = _outputs(vocab_parallel_logits, None, asked)[1]
        return entropies


class VocabParallelLogprobEntropy:
    """Log-probabilities and entropies of one pass. Use apply, or logprobs_and_entropy:

        .apply(vocab_parallel_logits, target, vocab_start_index, vocab_end_index, group, inference_only=False,
               temperature=1.0, mask=None, in_place=False, ignore_index=-100, outside="error")
    """

    @staticmethod
    def apply(vocab_parallel_logits: torch.Tensor, target: torch.Tensor, vocab_start_index: Optional[int],
              vocab_end_index: Optional[int], group: Optional[dist.ProcessGroup], inference_only: bool = False,
              temperature: Temperature = 1.0, mask: Optional[torch.Tensor] = None, in_place: bool = False,
              ignore_index: Optional[int] = IGNORED, outside: str = "error") -> Tuple[torch.Tensor, torch.Tensor]:
        asked = Asked("VocabParallelLogprobEntropy", LOGPROB | ENTROPY, group, vocab_start_index, vocab_end_index, None,
                      temperature, mask, ignore_index, None, None, outside, in_place, inference_only)
        return _outputs(vocab_parallel_logits, target, asked)[:2]


# ---- functions -----------------------------------------------------------------------------------------------------


def logprobs_from_logits(logits: torch.Tensor, targets: torch.Tensor, *, group: Optional[dist.ProcessGroup] = None,
                         vocab_start_index: Optional[int] = None, vocab_end_index: Optional[int] = None,
                         temperature: Temperature = 1.0, mask: Optional[torch.Tensor] = None,
                         ignore_index: Optional[int] = IGNORED, inference_only: bool = False, in_place: bool = False,
                         outside: str = "error", chunk_size: Optional[int] = None,
                         soft_cap: Optional[float] = None,
                         round_to: Optional[torch.dtype] = None) -> torch.Tensor:
    """Log-probabilities of targets: log softmax(logits / temperature)[targets], float32 of the shape of targets.

    - targets: [..., sequence], or [..., sequence, K] with K <= 128 for several of each token
    - temperature: a number, or float32 [..., sequence] with one for each token, which gets no gradient; a value
      outside [1.2e-38, 8.5e37] makes its token NaN. For a 0-d tensor, a number, the host waits on GPUs
    - group: process group that the vocabulary is split over; None: this process alone
    - vocab_start_index, vocab_end_index: the ids [start, end) of this rank's columns; None: consecutive shards in
      the order of the ranks
    - mask, ignore_index: tokens with mask 0 or this target are not read; their results and gradient are 0. Of several
      targets of a token, an ignored one has the log-probability 0 and no gradient; a token is not read if all are
      ignored. ignore_index=None: none
    - outside: any other target outside the whole vocabulary (without a group the columns of `logits`), in tokens that
      are not masked. "error": raises InvalidArgument with the token, the target and the vocabulary, on all ranks, also
      if one rank alone has it; on GPUs, where the host does not wait, all results and the gradient of the token are
      NaN, and check_targets() raises. "check": the host waits, and the call raises on GPUs as well. "mask": its
      log-probability is 0, its gradient -p, as in SkyRL's functions
    - inference_only: nothing is saved, and the result has no gradient
    - in_place: backward overwrites the logits with their gradient; leaves are refused
    - chunk_size: accepted, without effect
    - soft_cap: c replaces each logit x by c tanh(x / c), before the temperature; None: none
    - round_to: torch.bfloat16 or torch.float16: each logit is rounded to it first, to match an engine that stores
      its logits so; the gradient passes through unchanged. None: no rounding, logits are taken as float32

    Collective with a group. The module's help describes tensors, memory, ranks and streams.
    """
    asked = Asked("logprobs_from_logits", LOGPROB, group, vocab_start_index, vocab_end_index, chunk_size, temperature,
                  mask, ignore_index, soft_cap, round_to, outside, in_place, inference_only)
    logprobs: torch.Tensor = _outputs(logits, targets, asked)[0]
    return logprobs


def vocab_parallel_entropy(vocab_parallel_logits: torch.Tensor, group: Optional[dist.ProcessGroup] = None, *,
                           vocab_start_index: Optional[int] = None, vocab_end_index: Optional[int] = None,
                           temperature: Temperature = 1.0, mask: Optional[torch.Tensor] = None,
                           inference_only: bool = False, in_place: bool = False, chunk_size: Optional[int] = None,
                           chunk_memory_mb: Optional[float] = None, soft_cap: Optional[float] = None,
                           round_to: Optional[torch.dtype] = None) -> torch.Tensor:
    """Entropy of each token's distribution: - sum(p log p), float32 [..., sequence].

    - chunk_size, chunk_memory_mb: SkyRL's, accepted without effect

    Further arguments as in logprobs_from_logits. SkyRL's function of this name has no group argument.
    """
    del chunk_size, chunk_memory_mb
    asked = Asked("vocab_parallel_entropy", ENTROPY, group, vocab_start_index, vocab_end_index, None, temperature, mask,
                  None, soft_cap, round_to, in_place=in_place, inference_only=inference_only)
    entropies: torch.Tensor = _outputs(vocab_parallel_logits, None, asked)[1]
    return entropies


def logprobs_and_entropy(logits: torch.Tensor, targets: torch.Tensor, *, group: Optional[dist.ProcessGroup] = None,
                         vocab_start_index: Optional[int] = None, vocab_end_index: Optional[int] = None,
                         temperature: Temperature = 1.0, mask: Optional[torch.Tensor] = None,
                         ignore_index: Optional[int] = IGNORED, inference_only: bool = False, in_place: bool = False,
                         outside: str = "error", soft_cap: Optional[float] = None,
                         round_to: Optional[torch.dtype] = None) -> Tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities and entropies from one pass over the logits; both are differentiable.

    Arguments as in logprobs_from_logits.
    """
    asked = Asked("logprobs_and_entropy", LOGPROB | ENTROPY, group, vocab_start_index, vocab_end_index, None,
                  temperature, mask, ignore_index, soft_cap, round_to, outside, in_place, inference_only)
    logprobs, entropies, _, _ = _outputs(logits, targets, asked)
    return logprobs, entropies


def token_statistics(logits: torch.Tensor, targets: Optional[torch.Tensor] = None, *,
                     group: Optional[dist.ProcessGroup] = None, vocab_start_index: Optional[int] = None,
                     vocab_end_index: Optional[int] = None, temperature: Temperature = 1.0,
                     mask: Optional[torch.Tensor] = None, ignore_index: Optional[int] = IGNORED,
                     inference_only: bool = False, in_place: bool = False, outside: str = "error",
                     soft_cap: Optional[float] = None, round_to: Optional[torch.dtype] = None) -> TokenStatistics:
    """All outputs of one pass over the logits; all are differentiable. Arguments as in logprobs_from_logits.

    - logprobs: of the shape of targets; None without targets
    - entropy, [..., sequence]
    - logsumexp: log sum exp(logits / temperature), [..., sequence]; its square is the z-loss
    - mean_logprobs: the mean of log p over the whole vocabulary, [..., sequence], for label smoothing; -inf where a
      logit is -inf
    """
    outputs = ENTROPY | LOGSUMEXP | MEAN_LOGPROB | (0 if targets is None else LOGPROB)
    asked = Asked("token_statistics", outputs, group, vocab_start_index, vocab_end_index, None, temperature, mask,
                  ignore_index, soft_cap, round_to, outside, in_place, inference_only)
    return TokenStatistics(*_outputs(logits, targets, asked))


class LogprobsWithGradient(NamedTuple):
    """gradient: that of the logits. entropy: None without its upstream gradient."""

    logprobs: torch.Tensor
    entropy: Optional[torch.Tensor]
    gradient: torch.Tensor


def logprobs_with_gradient(logits: torch.Tensor, targets: torch.Tensor, logprob_grad: torch.Tensor,
                           entropy_grad: Optional[torch.Tensor] = None, *, in_place: bool = True,
                           group: Optional[dist.ProcessGroup] = None, vocab_start_index: Optional[int] = None,
                           vocab_end_index: Optional[int] = None, temperature: Temperature = 1.0,
                           mask: Optional[torch.Tensor] = None, ignore_index: Optional[int] = IGNORED,
                           outside: str = "error", soft_cap: Optional[float] = None,
                           round_to: Optional[torch.dtype] = None) -> LogprobsWithGradient:
    """Log-probabilities and the gradient of the logits in one call, for upstream gradients that are known before:
    supervised fine-tuning, policy gradients at ratio 1. Without autograd; the caller continues backward:

        result = logprobs_with_gradient(logits, targets, -mask / mask.sum())
        logits.backward(result.gradient)            # or torch.autograd.backward([logits, ...], [...])
        loss = -(result.logprobs * mask).sum() / mask.sum()

    With one rank each logit is read from memory once. The bits are those of the separate passes.

    - logprob_grad, entropy_grad: floating-point, of the shape of targets and of the tokens
    - in_place: the gradient overwrites the logits, and is their memory; leaves that require a gradient are refused.
      False: a new tensor in the dtype of the logits

    Further arguments as in logprobs_from_logits. Collective with a group. torch.compile breaks the graph here.
    """
    outputs = LOGPROB if entropy_grad is None else LOGPROB | ENTROPY
    asked = Asked("logprobs_with_gradient", outputs, group, vocab_start_index, vocab_end_index, None, temperature, mask,
                  ignore_index, soft_cap, round_to, outside, in_place)
    return untraced(_with_gradient)(logits, targets, logprob_grad, entropy_grad, asked)


def _with_gradient(logits: Any, target: Any, logprob_grad: Any, entropy_grad: Any,
                   asked: Asked) -> LogprobsWithGradient:
    gradients = fresh("bp_logprob_gradients_init", _abi.bp_logprob_gradients)
    gradient: Any = None

    def prepared(options: Options) -> Any:
        nonlocal gradient
        shape = logits.shape[:-1]
        above = [
            _tensors.token_gradient(name, given, wanted_shape, logits.device)
            for name, given, wanted_shape in (("logprob_grad", logprob_grad, target.shape),
                                              ("entropy_grad", entropy_grad, shape)) if given is not None
        ]
        if not above or logprob_grad is None:
            raise InvalidArgument("logprob_grad: expected a tensor of the shape of targets, got None")
        kept = upstream(gradients, tuple(above), None, len(shape))
        gradients.in_place = options.in_place
        gradient = logits.detach() if options.in_place else _tensors.empty_like(logits, _gradient_dtype(logits))
        gradients.logits_grad = _tensors.rows(gradient)
        return gradients, kept

    try:
        work = _forward(logits, target, asked, True, None, prepared)
    except Exception:  # of a target, for example: then both passes have run
        if gradient is not None and asked.in_place:
            torch.autograd.graph.increment_version(logits)
        raise
    if work.options.in_place:
        torch.autograd.graph.increment_version(logits)
    return LogprobsWithGradient(work.outputs[0], work.outputs[1], gradient)  # type: ignore[arg-type]


def check_targets() -> None:
    """Raises InvalidArgument for the first target outside the vocabulary in a call with outside="error" on a GPU since
    the last check, with its token: the cause of NaN among the results. The host waits for the GPU. Not collective.

    Reports of clients that free_clients(), comm.close() or the least-recently-used order of the cache has freed are
    lost. On CPUs the calls themselves raise.
    """
    for comm in (None, *known_comms()):
        with _clients.lock_of(comm):
            for key, client in _clients.of(comm).kept():
                kind = key[0] if isinstance(key, tuple) else None
                if kind in ("logprob", "lm_head"):
                    try:
                        call(library().bp_logprob_check if kind == "logprob" else library().bp_lm_head_check,
                             client.value)
                    except InvalidArgument as error:
                        raise of_target("check_targets", error, comm) from None


def _of_areal(tp_group: Optional[dist.ProcessGroup]) -> str:
    """AReaL's treatment of labels outside the vocabulary."""
    alone = not isinstance(tp_group, dist.ProcessGroup) or dist.get_world_size(tp_group) == 1
    return "error" if alone else "mask"


def gather_logprobs(logits: torch.Tensor, labels: torch.Tensor, temperature: Temperature = 1.0,
                    tp_group: Optional[dist.ProcessGroup] = None, chunk_size: int = 1024) -> torch.Tensor:
    """logprobs_from_logits with AReaL's arguments. chunk_size has no effect.

    Labels outside the vocabulary, -100 among them, as in AReaL's function: without a group (or with one rank) they are
    errors, as in torch.gather; with a group their log-probability is 0 and their gradient -p: mask them. None is
    ignored; logprobs_from_logits has ignore_index.
    """
    return logprobs_from_logits(logits, labels, group=tp_group, temperature=temperature, chunk_size=chunk_size,
                                ignore_index=None, outside=_of_areal(tp_group))


def gather_logprobs_entropy(logits: torch.Tensor, labels: torch.Tensor, temperature: Temperature = 1.0,
                            tp_group: Optional[dist.ProcessGroup] = None,
                            chunk_size: int = 1024) -> Tuple[torch.Tensor, torch.Tensor]:
    """logprobs_and_entropy with AReaL's arguments. chunk_size has no effect. Labels as in gather_logprobs."""
    return logprobs_and_entropy(logits, labels, group=tp_group, temperature=temperature, ignore_index=None,
                                outside=_of_areal(tp_group))
