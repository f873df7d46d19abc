# SPDX-License-Identifier: Apache-2.0
"""Distillation: divergences of a student from a teacher, and the top-k log-probabilities of a teacher.

    from bucketpool.torch.distillation import divergence, linear_topk_logprobs

    loss = (divergence(logits, teacher_logits, beta=0.5, group=tp_group) * mask).sum() / mask.sum()

- divergence, linear_divergence: over the whole vocabulary, from logits and from hidden states of both models
- topk_logprobs, linear_topk_logprobs: the k most likely ids of each token and their log-probabilities

Divergences at the top-k ids of a teacher are plain PyTorch over the student's log-probabilities of these ids:

    teacher, ids = linear_topk_logprobs(teacher_hidden, teacher_weight, 64, group=tp_group)
    student = logprobs_from_logits(logits, ids, group=tp_group)
    forward_kl = (teacher.exp() * (teacher - student)).sum(-1)
    reverse_kl = (student.exp() * (student - teacher)).sum(-1)

Products of the functions of hidden states are PyTorch's in float32, chunk by chunk, with a copy of each weight in
float32 if its dtype is another one. torch.compile breaks the graph at the functions of this module.

Tensors, ranks, streams and errors are as in bucketpool.torch.logprob. A call with a group is collective.

Source of the divergences: Agarwal et al., "On-Policy Distillation of Language Models" (arXiv 2306.13649).
"""

import ctypes
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Tuple

import torch
import torch.distributed as dist

from .. import _abi
from .._library import logprob as library
from ..errors import InvalidArgument
from . import _clients, _tensors
from ._passes import (Agreed, Asked, Options, Temperature, Tokens, agreed, bits, flag, fresh, integer, number, only_once,
                      options_of, ran, untraced)
from .comm import GroupComm, comm_of
from ._head import check_shapes
from .logprob import (_batch, _check_logits, _check_overwritten, _client, _compared, _gradient_dtype, _key,
                      logprobs_from_logits)

__all__ = ["divergence", "linear_divergence", "linear_topk_logprobs", "topk_logprobs"]

MASK = _abi.BP_TARGETS_MASK  # no targets are read
SAVED = 5  # floats for each token, bp_logprob_divergence_saved_bytes

# ---- divergences of logits -----------------------------------------------------------------------------------------


def _beta(value: Any) -> float:
    beta = number("beta", value)
    if not 0 <= beta <= 1:
        raise InvalidArgument(f"beta: {beta}; expected a number in [0, 1]")
    return beta


def _args(reference: torch.Tensor, beta: float, saved: torch.Tensor) -> Any:
    args = fresh("bp_logprob_divergence_args_init", _abi.bp_logprob_divergence_args)
    args.reference, args.beta = _tensors.rows(reference), beta
    args.saved, args.saved_bytes = saved.data_ptr(), saved.numel() * 4
    return args


def _run(comm: Optional[GroupComm], client: _clients.Handle, logits: torch.Tensor, reference: torch.Tensor, beta: float,
         options: Options, tokens: Tokens, saved: torch.Tensor, result: torch.Tensor) -> None:
    batch, kept = _batch(logits, options, tokens)
    reference = _tensors.readable(reference)
    args = _args(reference, beta, saved)
    args.divergence = _tensors.values(result)[0]
    ran(comm, client, logits.device, library().bp_logprob_divergence, ctypes.byref(batch), ctypes.byref(args))
    del kept


def _run_backward(start: int, above: torch.Tensor, logits: torch.Tensor, reference: torch.Tensor, beta: float,
                  options: Options, tokens: Tokens, saved: torch.Tensor, gradient: torch.Tensor,
                  in_place: bool) -> None:
    """Writes the gradient, by a client of this process alone, because nothing is communicated."""
    batch, kept = _batch(logits, options, tokens)
    reference, saved = _tensors.readable(reference), saved.contiguous()
    args = _args(reference, beta, saved)
    args.divergence_grad, held = _tensors.values(above)
    args.logits_grad, args.in_place = batch.logits if in_place else _tensors.rows(gradient), in_place
    device, count, columns = logits.device, logits.shape[:-1].numel(), logits.shape[-1]
    client = _client(None, _key(device, count, columns, start, MASK, 1), Agreed(start, None), device, count, columns,
                     MASK, 1)
    ran(None, client, device, library().bp_logprob_divergence_backward, ctypes.byref(batch), ctypes.byref(args))
    del kept, held


class _Work(NamedTuple):
    """Divergences that have been computed. start: the first id of this rank."""

    options: Options
    tokens: Tokens
    beta: float
    result: torch.Tensor
    saved: torch.Tensor
    start: int


class _FromLogits(torch.autograd.Function):
    """Connects divergences, which have been computed, with the logits."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, reference: torch.Tensor, work: _Work) -> torch.Tensor:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(logits, reference, work.saved, *work.tokens)
        ctx.options, ctx.beta, ctx.start = work.options, work.beta, work.start
        ctx.gradient_dtype = _gradient_dtype(logits)
        return work.result

    @staticmethod
    def backward(ctx: Any, *grads: Optional[torch.Tensor]) -> Any:
        above, = grads
        if above is None:
            return None, None, None
        logits, reference, saved, *tokens = ctx.saved_tensors
        options: Options = ctx.options
        in_place = options.in_place
        if in_place and torch.is_grad_enabled():
            raise InvalidArgument(f"{options.what}: in_place and create_graph exclude each other; pass in_place=False")
        if in_place:
            logits = _tensors.readable(logits)  # hooks of saved tensors may change strides
        gradient = logits.detach() if in_place else _tensors.empty_like(logits, ctx.gradient_dtype)
        _run_backward(ctx.start, above, logits, reference, ctx.beta, options, Tokens(*tokens), saved, gradient, in_place)
        if in_place:
            torch.autograd.graph.increment_version(logits)
        return only_once(options.what, gradient, logits, above), None, None


def divergence(logits: torch.Tensor, reference: torch.Tensor, *, beta: float,
               group: Optional[dist.ProcessGroup] = None, vocab_start_index: Optional[int] = None,
               vocab_end_index: Optional[int] = None, temperature: Temperature = 1.0,
               mask: Optional[torch.Tensor] = None, inference_only: bool = False, in_place: bool = False,
               soft_cap: Optional[float] = None, round_to: Optional[torch.dtype] = None) -> torch.Tensor:
    """Divergence of each token's distribution from that of a reference, float32 [..., sequence], differentiable.

    With p of the logits and q of the reference:

    - beta = 0: forward KL, KL(q || p)
    - beta = 1: reverse KL, KL(p || q)
    - between: generalized Jensen-Shannon, beta KL(q || m) + (1 - beta) KL(p || m), m = (1 - beta) p + beta q
    - reference: logits of the shape and dtype of `logits`, of the same columns; it gets no gradient
    - temperature, soft_cap, round_to: apply to both

    Saves both logits, without a copy, and 20 bytes for each token. For equal rows, divergence and gradient are exactly
    0. Further arguments as in bucketpool.torch.logprob.logprobs_from_logits.
    """
    asked = Asked("divergence", 0, group, vocab_start_index, vocab_end_index, None, temperature, mask, None, soft_cap,
                  round_to, in_place=in_place, inference_only=inference_only)
    return untraced(_divergence)(logits, reference, beta, asked)


def _divergence(logits: Any, reference: Any, beta: Any, asked: Asked) -> torch.Tensor:
    failure: Optional[Exception] = None
    try:
        logits, group = _tensors.local_shard("logits", logits, -1, asked.group)
        reference, _ = _tensors.local_shard("reference", reference, -1, group)
        asked = asked._replace(group=group)
    except Exception as error:  # any, because agreed() reports it to the other ranks
        failure = error
    comm = None if asked.group is None else comm_of(asked.group)
    options, key, columns = None, None, 0
    same: Dict[str, int] = {}
    try:
        if failure is not None:
            raise failure
        _check_logits(asked.what, logits)
        _tensors.check_floats("reference", reference)
        if reference.shape != logits.shape or reference.dtype != logits.dtype or reference.device != logits.device:
            raise InvalidArgument(
                f"reference: {reference.dtype} {list(reference.shape)} on {reference.device} for logits {logits.dtype} "
                f"{list(logits.shape)} on {logits.device}; pass the same")
        shape, device, columns, beta = logits.shape[:-1], logits.device, logits.shape[-1], _beta(beta)
        options, tokens = options_of(asked, columns, shape, None, device)
        saves = (torch.is_grad_enabled() and logits.requires_grad
                 and not flag("inference_only", asked.inference_only))
        if options.in_place and saves:
            _check_overwritten(asked.what, logits)
        if comm is not None:
            same = dict(_compared(logits, options), beta=bits(beta))
        key = _key(device, shape.numel(), columns, options.start, MASK, 1)
        result, saved = (torch.empty(size, dtype=torch.float32, device=device)
                         for size in (shape, (SAVED * shape.numel(), )))
    except Exception as error:  # any, because agreed() reports it to the other ranks
        failure = error
    agreement = agreed(comm, asked.what, key, same, options, columns, failure)
    assert options is not None
    client = _client(comm, key, agreement, device, shape.numel(), columns, MASK, 1)
    _run(comm, client, logits, reference, beta, options, tokens, saved, result)
    if not saves:
        return result
    connected: Any = _FromLogits.apply
    divergences: torch.Tensor = connected(logits, reference.detach(),
                                          _Work(options, tokens, beta, result, saved, agreement.start))
    return divergences


# ---- divergences of heads ------------------------------------------------------------------------------------------


class _Heads(NamedTuple):
    """A divergence of two heads, with its client for forward."""

    options: Options
    tokens: Tokens
    beta: float
    chunk: int
    comm: Optional[GroupComm]
    start: int
    client: Optional[_clients.Handle]


def _flat(tensor: Optional[torch.Tensor]) -> Optional[torch.Tensor]:
    return None if tensor is None else tensor.reshape(-1)


def _wide(tensor: Optional[torch.Tensor]) -> Any:
    return None if tensor is None else tensor.float()


def _chunks(heads: Tuple[Any, ...], tokens: Tokens,
            chunk: int) -> Iterator[Tuple[slice, torch.Tensor, torch.Tensor, torch.Tensor, Tokens]]:
    """Of each chunk: its tokens, the student's hidden states in float32, the logits of both, and their Tokens.
    heads: hidden states, weight and bias of the student and of the reference; weights and biases in float32.
    """
    hidden, weight, bias, other, table, other_bias = heads
    linear, shape = torch.nn.functional.linear, hidden.shape[:-1]
    masks, temperatures = _flat(tokens.mask), _flat(tokens.temperatures)
    states, others = hidden.reshape(-1, hidden.shape[-1]), other.reshape(-1, other.shape[-1])
    for begin in range(0, shape.numel(), chunk):
        part = slice(begin, min(begin + chunk, shape.numel()))
        h, r = states[part].float(), others[part].float()
        mask = None if masks is None else masks[part]
        if mask is not None:  # the states of masked tokens may be anything, and products would spread NaN
            h = h.masked_fill((mask == 0)[:, None], 0)
        yield part, h, linear(h, weight, bias), linear(r, table, other_bias), Tokens(
            None, mask, None if temperatures is None else temperatures[part])


class _FromHeads(torch.autograd.Function):

    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, bias: Optional[torch.Tensor],
                other: torch.Tensor, table: torch.Tensor, other_bias: Optional[torch.Tensor],
                work: _Heads) -> torch.Tensor:
        ctx.set_materialize_grads(False)
        shape, device = hidden.shape[:-1], hidden.device
        result = torch.empty(shape.numel(), dtype=torch.float32, device=device)
        saved = torch.empty(SAVED * shape.numel(), dtype=torch.float32, device=device)
        assert work.client is not None
        with torch.autocast(device.type, enabled=False):
            heads = hidden, weight.float(), _wide(bias), other, table.float(), _wide(other_bias)
            for part, _, x, r, tokens in _chunks(heads, work.tokens, work.chunk):
                _run(work.comm, work.client, x, r, work.beta, work.options, tokens,
                     saved[SAVED * part.start:SAVED * part.stop], result[part])
        ctx.save_for_backward(hidden, weight, bias, other, table, other_bias, saved, *work.tokens)
        ctx.work = work._replace(tokens=Tokens(None, None, None), client=None)
        return result.reshape(shape)

    @staticmethod
    def backward(ctx: Any, *grads: Optional[torch.Tensor]) -> Any:
        above, = grads
        if above is None:
            return (None, ) * 7
        work: _Heads = ctx.work
        comm, options = work.comm, work.options
        failure: Optional[Exception] = None
        hidden_grad = weight_grad = bias_grad = None
        needs = ctx.needs_input_grad
        try:
            hidden, weight, bias, other, table, other_bias, saved, *tokens = ctx.saved_tensors
            with torch.no_grad(), torch.autocast(hidden.device.type, enabled=False):
                if needs[0]:
                    hidden_grad = torch.empty((hidden.shape[:-1].numel(), hidden.shape[-1]), dtype=torch.float32,
                                              device=hidden.device)
                if needs[1]:
                    weight_grad = torch.zeros(weight.shape, dtype=torch.float32, device=weight.device)
                if needs[2]:
                    bias_grad = torch.zeros(bias.shape, dtype=torch.float32, device=bias.device)
                wide, flat = weight.float(), above.reshape(-1)
                heads = hidden, wide, _wide(bias), other, table.float(), _wide(other_bias)
                for part, h, x, r, rest in _chunks(heads, Tokens(*tokens), work.chunk):
                    _run_backward(work.start, flat[part], x, r, work.beta, options, rest,
                                  saved[SAVED * part.start:SAVED * part.stop], x, True)
                    if hidden_grad is not None:
                        torch.mm(x, wide, out=hidden_grad[part])
                    if weight_grad is not None:
                        weight_grad.addmm_(x.t(), h)
                    if bias_grad is not None:
                        bias_grad += x.sum(0)
        except Exception as error:  # any, because agree() reports it to the other ranks
            failure = error
        if comm is not None and needs[0] and not options.partial_hidden_grad:
            if not comm.trusting:
                comm.agree(f"{options.what}, backward", {}, {}, failure)
            elif failure is not None:
                raise failure
            dist.all_reduce(hidden_grad, group=comm.group)
        elif failure is not None:
            raise failure
        got = (None if hidden_grad is None else hidden_grad.reshape(hidden.shape).to(hidden.dtype),
               None if weight_grad is None else weight_grad.to(weight.dtype),
               None if bias_grad is None else bias_grad.to(bias.dtype))
        return (*[only_once(options.what, gradient, hidden, weight, bias, above) for gradient in got], None, None, None,
                None)


def linear_divergence(hidden: torch.Tensor, weight: torch.Tensor, reference_hidden: torch.Tensor,
                      reference_weight: torch.Tensor, *, beta: float, chunk_size: Optional[int] = 1024,
                      group: Optional[dist.ProcessGroup] = None, vocab_start_index: Optional[int] = None,
                      vocab_end_index: Optional[int] = None, temperature: Temperature = 1.0,
                      mask: Optional[torch.Tensor] = None, soft_cap: Optional[float] = None,
                      round_to: Optional[torch.dtype] = None, partial_hidden_grad: bool = False,
                      bias: Optional[torch.Tensor] = None,
                      reference_bias: Optional[torch.Tensor] = None) -> torch.Tensor:
    """divergence() of the logits hidden weight^T + bias from reference_hidden reference_weight^T + reference_bias,
    float32 [..., sequence].

    - hidden, weight, bias: [..., sequence, hidden], [columns, hidden], [columns]; all get gradients
    - reference_hidden, reference_weight, reference_bias: the same tokens and columns, of any hidden size; they get no
      gradient
    - chunk_size: tokens whose logits, of both in float32, are computed at once; backward computes them again.
      None: all tokens
    - partial_hidden_grad: leaves the sum of the hidden states' gradient over the ranks to the caller; False:
      backward sums it (collective)

    Two exchanges between the ranks for each chunk. Further arguments as in divergence().
    """
    asked = Asked("linear_divergence", 0, group, vocab_start_index, vocab_end_index, chunk_size, temperature, mask, None,
                  soft_cap, round_to, partial_hidden_grad=partial_hidden_grad)
    return untraced(_linear_divergence)((hidden, weight, bias), (reference_hidden, reference_weight, reference_bias),
                                        beta, asked)


def _linear_divergence(student: Tuple[Any, Any, Any], reference: Tuple[Any, Any, Any], beta: Any,
                       asked: Asked) -> torch.Tensor:
    hidden, weight, bias = student
    other, table, other_bias = reference
    comm = None if asked.group is None else comm_of(asked.group)
    options, key, columns = None, None, 0
    same: Dict[str, int] = {}
    failure: Optional[Exception] = None
    try:
        check_shapes(asked.what, *student)
        check_shapes(asked.what, *reference, of="reference ")
        shape, device, columns, beta = hidden.shape[:-1], hidden.device, weight.shape[0], _beta(beta)
        if other.shape[:-1] != shape or table.shape[0] != columns or other.device != device:
            raise InvalidArgument(
                f"reference hidden states and weights: {list(other.shape)} and {list(table.shape)} on {other.device} for "
                f"{list(hidden.shape)} and {list(weight.shape)} on {device}; pass the same tokens, columns and device")
        options, tokens = options_of(asked, columns, shape, None, device)
        saves = torch.is_grad_enabled() and any(one is not None and one.requires_grad for one in student)
        chunk = max(min(options.chunk or shape.numel(), shape.numel()), 1)
        if comm is not None:
            batch, sequence = _tensors.shape_of(shape)
            same = dict(batch=batch, sequence=sequence, chunk=chunk, gradient=int(saves), beta=bits(beta),
                        bias=int(bias is not None), reference_bias=int(other_bias is not None))
        key = _key(device, chunk, columns, options.start, MASK, 1)
    except Exception as error:  # any, because agreed() reports it to the other ranks
        failure = error
    agreement = agreed(comm, asked.what, key, same, options, columns, failure)
    assert options is not None
    client = _client(comm, key, agreement, device, chunk, columns, MASK, 1)
    connected: Any = _FromHeads.apply
    divergences: torch.Tensor = connected(*student, *[None if one is None else one.detach() for one in reference],
                                          _Heads(options, tokens, beta, chunk, comm, agreement.start, client))
    return divergences


# ---- top-k ---------------------------------------------------------------------------------------------------------


def topk_logprobs(logits: torch.Tensor, k: int, *, group: Optional[dist.ProcessGroup] = None,
                  vocab_start_index: Optional[int] = None, vocab_end_index: Optional[int] = None,
                  temperature: Temperature = 1.0, mask: Optional[torch.Tensor] = None, inference_only: bool = False,
                  in_place: bool = False, soft_cap: Optional[float] = None,
                  round_to: Optional[torch.dtype] = None) -> Tuple[torch.Tensor, torch.Tensor]:
    """The k largest log-probabilities of each token, in descending order, and their ids: float32 and int64
    [..., sequence, k]. The log-probabilities are those of the whole vocabulary, and differentiable.

    - k: 1 to 128, at most the whole vocabulary; on a trusted group at most the columns of each rank
    - mask: tokens with mask 0 have log-probabilities and ids 0

    Further arguments as in bucketpool.torch.logprob.logprobs_from_logits. Which of equal logits are chosen is
    PyTorch's choice, the same on all ranks.
    """
    asked = Asked("topk_logprobs", 0, group, vocab_start_index, vocab_end_index, None, temperature, mask, None, soft_cap,
                  round_to, in_place=in_place, inference_only=inference_only)
    return untraced(_topk)(logits, k, asked)


def _topk(logits: Any, k: Any, asked: Asked) -> Tuple[torch.Tensor, torch.Tensor]:
    ids = _topk_ids(logits, k, asked)
    logprobs = logprobs_from_logits(logits, ids, group=asked.group, vocab_start_index=asked.start,
                                    vocab_end_index=asked.end, temperature=asked.temperature, mask=asked.mask,
                                    inference_only=asked.inference_only, in_place=asked.in_place,
                                    soft_cap=asked.soft_cap, round_to=asked.round_to, ignore_index=None,
                                    outside="mask")  # ids are in the vocabulary
    return logprobs, ids


def _count(k: Any) -> int:
    count = integer("k", k)
    if count is None or not 1 <= count <= _abi.BP_LOGPROB_MAX_TARGETS:
        raise InvalidArgument(f"k: {count}; expected a number in [1, {_abi.BP_LOGPROB_MAX_TARGETS}]")
    return count


def _topk_ids(logits: Any, k: Any, asked: Asked) -> torch.Tensor:
    comm, count = None if asked.group is None else comm_of(asked.group), 0
    options, columns = None, 0
    same: Dict[str, int] = {}
    failure: Optional[Exception] = None
    try:
        _check_logits(asked.what, logits)
        shape, columns, count = logits.shape[:-1], logits.shape[-1], _count(k)
        options, tokens = options_of(asked, columns, shape, None, logits.device)
        same = dict(_compared(logits, options), k=count)
        own = min(count, columns)
        if own < count and (comm is None or comm.trusting):
            raise InvalidArgument(f"k: {count} of a vocabulary with {columns} columns; pass at most {columns}")
        values, ids = logits.detach().topk(own, -1)
    except Exception as error:  # any, because agreed() reports it to the other ranks
        failure = error
    agreement = agreed(comm, asked.what, None, same, options, columns, failure)
    ids = ids + agreement.start
    if comm is not None:
        widths: List[int] = [one["columns"] for one in agreement.everybody or []] or [columns] * comm.ranks
        if agreement.everybody is not None and sum(widths) < count:
            raise InvalidArgument(f"k: {count} of a vocabulary with {sum(widths)} columns; pass at most that")
        mine = torch.zeros((2, *shape, count), dtype=torch.float64, device=logits.device)  # exact for floats and ids
        mine[0, ..., :own], mine[1, ..., :own] = values, ids
        gathered = mine.new_empty((comm.ranks, *mine.shape))
        dist.all_gather_into_tensor(gathered.view(-1), mine.view(-1), group=comm.group)
        candidates = torch.cat([one[..., :min(width, count)] for one, width in zip(gathered, widths)], -1)
        chosen = candidates[0].topk(count, -1).indices
        ids = candidates[1].gather(-1, chosen).long()
    return ids if tokens.mask is None else ids.masked_fill((tokens.mask == 0)[..., None], 0)


def linear_topk_logprobs(hidden: torch.Tensor, weight: torch.Tensor, k: int, *,
                         bias: Optional[torch.Tensor] = None, chunk_size: Optional[int] = 1024,
                         group: Optional[dist.ProcessGroup] = None, vocab_start_index: Optional[int] = None,
                         vocab_end_index: Optional[int] = None, temperature: Temperature = 1.0,
                         mask: Optional[torch.Tensor] = None, soft_cap: Optional[float] = None,
                         round_to: Optional[torch.dtype] = None) -> Tuple[torch.Tensor, torch.Tensor]:
    """topk_logprobs() of the logits hidden weight^T + bias, for a teacher: without gradients.

    - hidden, weight, bias: [..., sequence, hidden], [columns, hidden], [columns]
    - chunk_size: tokens whose logits, in float32, are computed at once; None: all tokens

    Further arguments as in topk_logprobs().
    """
    asked = Asked("linear_topk_logprobs", 0, group, vocab_start_index, vocab_end_index, chunk_size, temperature, mask,
                  None, soft_cap, round_to, inference_only=True)
    return untraced(_linear_topk)(hidden, weight, bias, k, asked)


def _linear_topk(hidden: Any, weight: Any, bias: Any, k: Any, asked: Asked) -> Tuple[torch.Tensor, torch.Tensor]:
    comm, count = None if asked.group is None else comm_of(asked.group), 0
    options, columns = None, 0
    same: Dict[str, int] = {}
    failure: Optional[Exception] = None
    try:
        check_shapes(asked.what, hidden, weight, bias)
        shape, columns, count = hidden.shape[:-1], weight.shape[0], _count(k)
        options, tokens = options_of(asked, columns, shape, None, hidden.device)
        chunk = max(min(options.chunk or shape.numel(), shape.numel()), 1)
        batch, sequence = _tensors.shape_of(shape)
        same = dict(batch=batch, sequence=sequence, chunk=chunk, k=count)
    except Exception as error:  # any, because agreed() reports it to the other ranks
        failure = error
    start = agreed(comm, asked.what, None, same, options, columns, failure).start
    assert options is not None
    temperatures, masks = _flat(tokens.temperatures), _flat(tokens.mask)
    logprobs = torch.empty((shape.numel(), count), dtype=torch.float32, device=hidden.device)
    ids = torch.empty((shape.numel(), count), dtype=torch.int64, device=hidden.device)
    with torch.no_grad(), torch.autocast(hidden.device.type, enabled=False):
        states, wide = hidden.reshape(-1, hidden.shape[-1]), weight.float()
        added = None if bias is None else bias.float()
        for begin in range(0, shape.numel(), chunk):
            part = slice(begin, begin + chunk)
            logits = torch.nn.functional.linear(states[part].float(), wide, added)
            logprobs[part], ids[part] = _topk(
                logits, count,
                asked._replace(start=start, end=start + columns, chunk=None,
                               temperature=options.temperature if temperatures is None else temperatures[part],
                               mask=None if masks is None else masks[part]))
    return logprobs.reshape(*shape, count), ids.reshape(*shape, count)
