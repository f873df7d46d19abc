# SPDX-License-Identifier: Apache-2.0
"""The loss of packed sequences over tensor-, context- and data-parallel ranks (TP, CP, DP), and its statistics.

    from bucketpool.torch.loss import Loss, logit_range

    loss = Loss(max_sequences=64, group=all_ranks, tp=tp_group, cp=cp_group, dp=dp_group)
    with loss.step():                                   # an error of one rank is an error of all
        for split, mask, logits, labels in micro_batches:
            logprobs, entropies = logprobs_and_entropy(logits, labels, group=tp_group)
            loss.add(split, mask, logprobs, entropies, logit_range(logits))
    print(loss.statistics.loss, loss.statistics.perplexity)        # the same on all ranks
    logprobs.backward(loss.seed(split, mask))           # the gradient of loss.statistics.loss, after averaging

With log-probabilities lp and a mask over all tokens of all DP and CP ranks, the loss is - sum(lp mask) /
(epsilon + n), n = sum(mask). Ranks exchange sums and counts, never tokens: the statistics do not depend on the
arrangement of the ranks. Padding and dummy sequences never count.

Masks and values are those of the local tokens of a PackedSplit, [local_tokens] or [1, local_tokens]; labels and
masks are shifted with "next". docs/guides/context_parallelism.md explains statistics, gradients and micro-batches.
"""

import ctypes
import functools
from contextlib import contextmanager
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Tuple, TypeVar, Union

import torch
import torch.distributed as dist

from .. import _abi
from .._abi import Uncopied
from .._library import call, configured, filled, made, recorded, viewed
from .._library import logprob as library
from ..errors import Error, InvalidArgument, ScheduleError
from ..names import member, shown, whole
from . import _clients, _tensors
from .comm import comm_of
from .cp import PackedSplit
from .memory import with_index

__all__ = ["Loss", "Place", "SequenceResult", "Statistics", "logit_range"]

Place = Union[None, dist.ProcessGroup, Tuple[int, int]]
Range = Tuple[torch.Tensor, torch.Tensor]
F = TypeVar("F", bound=Callable[..., Any])


def _untraced(function: F) -> F:
    """The function; torch.compile breaks the graph around it."""

    @functools.wraps(function)
    def call_outside(*arguments: Any, **options: Any) -> Any:
        compiler: Any = torch.compiler
        return (compiler.disable(function) if compiler.is_compiling() else function)(*arguments, **options)

    outside: Any = call_outside
    typed: F = outside
    return typed


class Statistics(NamedTuple):
    """Statistics of all ranks, as bp_loss_statistics in loss.h. valid: the number n of tokens in the mask.

    Each sum has its denominator. Quotients (loss, entropy, perplexity) are 0 if the denominator is 0. logit_min and
    logit_max are those of valid tokens: +inf and -inf without any, NaN if one is NaN.
    """

    sequences: int
    tokens: int
    valid: int
    logprob_sum: float
    entropy_sum: float
    perplexity_sum: float
    perplexity_sequences: int
    logit_min: float
    logit_max: float
    epsilon: float
    loss: float
    entropy: float
    perplexity: float

    def merged(self, step: "Statistics") -> "Statistics":
        """The statistics of both. Every token has the same weight, and epsilon counts once.

        For an evaluation of many steps: functools.reduce(Statistics.merged, statistics_of_steps).
        """
        total = _struct_of(self)
        call(library().bp_loss_statistics_merge, ctypes.byref(_struct_of(step)), ctypes.byref(total))
        return _statistics_of(total)


class SequenceResult(NamedTuple):
    """The results of a sequence over all CP ranks. perplexity is 0 without valid tokens."""

    valid: int
    logprob_sum: float
    entropy_sum: float
    perplexity: float


def _struct_of(statistics: Statistics) -> _abi.bp_loss_statistics:
    return configured(library().bp_loss_statistics_init, _abi.bp_loss_statistics, **statistics._asdict())


def _statistics_of(struct: _abi.bp_loss_statistics) -> Statistics:
    return Statistics(*[getattr(struct, field) for field in Statistics._fields])


class _Client(_clients.Handle):
    """A client outside the cache: it has the state of a step, so no two Loss objects share one."""

    def __init__(self, made_loss: ctypes.c_void_p) -> None:
        self._value, self._destroy = made_loss, "bp_loss_destroy"

    @property
    def value(self) -> ctypes.c_void_p:
        if self._value is None:
            raise ScheduleError("Loss: freed by close(), comm.close() or free_clients(); create another Loss")
        return self._value


class Loss(Uncopied):
    """The loss of a step and its statistics. Creation is collective with a group.

    - max_sequences: sequences of all micro-batches of a step, at most; the same on all ranks
    - group: process group of all TP x CP x DP ranks, in any order; None: this process alone
    - tp, cp, dp: the place of this rank in each kind of parallelism: a process group, or (rank, ranks); None: one
      rank. dp is data parallelism without CP.
    - epsilon: 0 or more
    - gradients: "averaged" or "summed" by the runtime over the DP x CP ranks
    - device: device of masks and values; None: the current GPU if PyTorch finds one, else the CPU

    For a separate loss on each DP rank: the group of its TP x CP ranks, and dp=None.

    Raises Mismatch (the group does not have TP x CP x DP ranks, two ranks have the same place, arguments differ),
    InvalidArgument, Unsupported, CommError. One call at a time. Steps must not be captured; seed() may be.
    """

    def __init__(self, max_sequences: int, group: Optional[dist.ProcessGroup] = None, *, tp: Place = None,
                 cp: Place = None, dp: Place = None, epsilon: float = 1e-5, gradients: str = "averaged",
                 device: Union[None, str, torch.device] = None) -> None:
        self.comm = comm_of(group)
        self._failure: Optional[Exception] = None
        failure: Optional[Exception] = None
        fields: Dict[str, Any] = {}
        try:
            self.device = _device_of(device)
            for name, rank, place in (("tp", "tp_rank", tp), ("cp", "cp_rank", cp), ("dp", "dp_rank", dp)):
                fields[rank], fields[name] = _place_of(name, place)
            fields.update(max_sequences=whole(max_sequences, 64, "max_sequences"), epsilon=float(epsilon),
                          gradients=member("BP_LOSS_", gradients, "gradients"), threads=torch.get_num_threads())
            library_device = _tensors.device_of(self.device)
        except Exception as error:  # any, because agree() reports it to the other ranks
            failure = error
        if self.comm is not None:
            self.comm.agree("Loss", {}, {}, failure)
        elif failure is not None:
            raise failure

        def make() -> ctypes.c_void_p:
            config = configured(library().bp_loss_config_init, _abi.bp_loss_config,
                                comm=None if self.comm is None else self.comm.handle, **fields)
            return made(library().bp_loss_create, library_device, ctypes.byref(config))

        with _clients.lock_of(self.comm):
            self._client = _Client(make() if self.comm is None else self.comm.run(make))
            _clients.of(self.comm)._all.add(self._client)  # which closes it before the communicator

    def close(self) -> None:
        """Frees the workspace. Not collective; may be repeated. Groups and exit free it, too."""
        with _clients.lock_of(self.comm):
            self._client.close()

    def _run(self, function: Any, *arguments: Any) -> None:
        """Runs a call whose last argument is the current stream."""
        with _clients.lock_of(self.comm):
            if self.comm is None:
                _tensors.run(self.device, function, self._client.value, *arguments)
            else:
                self.comm.run(_tensors.run, self.device, function, self._client.value, *arguments)

    # ---- a step ----------------------------------------------------------------------------------------------------

    @contextmanager
    def step(self) -> Iterator[None]:
        """A context around a step: begin(), and reduce() at its end.

        An exception inside is raised here, and on the other ranks at the end of their blocks, as an exception that
        names this rank. Ranks must not wait for each other inside: call agree() before a collective that does not
        compare its arguments first.
        """
        self.begin()
        try:
            yield
        except Exception as error:
            self.reduce(error)
            raise
        self.reduce()

    @_untraced
    def begin(self) -> None:
        """Begins a step: drops added values and errors. The results of the last reduce() stay until the next one."""
        self._failure = None
        call(library().bp_loss_begin, self._client.value)

    @_untraced
    def add(self, split: PackedSplit, mask: torch.Tensor, logprobs: Optional[torch.Tensor] = None,
            entropies: Optional[torch.Tensor] = None, logits: Optional[Range] = None) -> None:
        """Adds a micro-batch. Not collective. The same kinds of values in all micro-batches, on all ranks.

        - mask: bool or numbers; 0: the token is not in the loss. Shifted like the labels
        - logprobs, entropies: float32; logprobs=None: tokens are only counted
        - logits: the result of logit_range(), for logit_min and logit_max

        Raises InvalidArgument; reduce() reports the error to the other ranks.
        """
        least, largest = (None, None) if logits is None else logits
        try:
            values = configured(library().bp_loss_values_init, _abi.bp_loss_values, tokens=split.local_tokens)
            values.mask, kept = _tensors.values(self._mask(split, mask))
            others = [
                self._values(values, field, name, split, tensor)
                for field, name, tensor in (("logprob", "logprobs", logprobs), ("entropy", "entropies", entropies),
                                            ("logit_min", "logits[0]", least), ("logit_max", "logits[1]", largest))
            ]
            self._run(library().bp_loss_add, split._handle, ctypes.byref(values))
            del kept, others
        except Exception as error:  # any, because reduce() reports it to the other ranks
            self._failure = self._failure or error
            raise

    @_untraced
    def agree(self, error: Optional[Exception] = None) -> None:
        """Collective: raises if a rank failed in add(), or passes an exception. Waits for no work.

        Call it before other collectives (the forward pass of TP ranks), so that no rank waits for one that has
        failed. Raises as reduce().
        """
        self._agreed(error, lambda status: call(library().bp_loss_agree, self._client.value, status))

    @_untraced
    def reduce(self, error: Optional[Exception] = None) -> Statistics:
        """Collective, the only exchange of a step: adds up the sums of all ranks and returns the statistics.

        All ranks call it, also those that have failed; error: the exception of this rank in any part of the step.
        It is raised here. The other ranks raise one that names this rank; then there are no statistics, and seeds
        are 0.

        Raises Mismatch (CP or TP ranks of one DP rank added different batches, or ranks added different kinds of
        values), CommError, RankTimeout.
        """
        self._agreed(error, lambda status: self._run(library().bp_loss_reduce, status))
        return self.statistics

    def _agreed(self, error: Optional[Exception], exchange: Any) -> None:
        failure, told = self._failure or error, None
        try:
            with _clients.lock_of(self.comm):
                exchange(_abi.BP_OK if failure is None else recorded(failure))
        except Error as of_all:
            told = of_all
        if failure is not None:
            self._failure = failure
            raise failure
        if told is not None:
            raise told

    # ---- gradients -------------------------------------------------------------------------------------------------

    def set_count(self, valid: int) -> None:
        """Sets n, the number of tokens in the mask on all ranks, if it is known before reduce(). The same on all
        ranks. seed() then needs no reduce().
        """
        call(library().bp_loss_count_set, self._client.value, whole(valid, 64, "valid"))

    @_untraced
    def seed(self, split: PackedSplit, mask: torch.Tensor, factor: float = -1.0) -> torch.Tensor:
        """The upstream gradient for backward, float32 of the shape of `mask`: factor mask DP CP / (epsilon + n),
        without DP CP if gradients are summed.

        - factor: -1 for log-probabilities; -c for entropies if - c sum(H mask) / (epsilon + n) is part of the loss

        For another loss of the log-probabilities multiply by its derivative, such as advantages x ratios. n is that
        of the last reduce() or set_count(). Raises ScheduleError (n is not known), InvalidArgument.
        """
        ones = self._mask(split, mask)
        result = torch.empty(mask.shape, dtype=torch.float32, device=self.device)
        masks, kept = _tensors.values(ones)
        seeds, _ = _tensors.values(result)
        self._run(library().bp_loss_seed, split._handle, split.local_tokens, ctypes.byref(masks), float(factor),
                  ctypes.byref(seeds))
        del kept
        return result

    # ---- results ---------------------------------------------------------------------------------------------------

    @property
    def statistics(self) -> Statistics:
        """The statistics of the last reduce(). Raises ScheduleError (none yet, or it failed)."""
        return _statistics_of(
            filled(library().bp_loss_statistics_get, _abi.bp_loss_statistics, self._client.value))

    @property
    def sequences(self) -> List[SequenceResult]:
        """The sequences of this DP rank in the last reduce(), in the order of add(), without dummies."""
        with _clients.lock_of(self.comm):
            info = viewed(library().bp_loss_get_info, self._client.value)
            return [
                SequenceResult(s.valid, s.logprob_sum, s.entropy_sum, s.perplexity)
                for s in info.sequences[:info.sequence_count]
            ]

    # ---- tensors ---------------------------------------------------------------------------------------------------

    def _check(self, name: str, split: PackedSplit, tensor: Any) -> None:
        if not isinstance(tensor, torch.Tensor):
            raise InvalidArgument(f"{name}: expected a tensor, got {type(tensor).__name__}")
        if tensor.dim() == 0 or tensor.shape[-1] != split.local_tokens or tensor.shape[:-1].numel() != 1:
            raise InvalidArgument(f"{name}: shape {list(tensor.shape)}, but the split has {split.local_tokens} local "
                                  f"tokens; pass [{split.local_tokens}]")
        if tensor.device != self.device:
            raise InvalidArgument(f"{name}: on {tensor.device}, but the Loss is on {self.device}; move the tensor, or "
                                  "create the Loss with its device")

    def _mask(self, split: PackedSplit, mask: Any) -> torch.Tensor:
        self._check("mask", split, mask)
        booleans: torch.Tensor = mask if mask.dtype == torch.bool else mask != 0
        return booleans.view(torch.uint8)

    def _values(self, struct: _abi.bp_loss_values, field: str, name: str, split: PackedSplit,
                tensor: Optional[torch.Tensor]) -> Optional[torch.Tensor]:
        if tensor is None:
            return None
        self._check(name, split, tensor)
        if tensor.dtype != torch.float32:
            raise InvalidArgument(f"{name}: unsupported dtype {tensor.dtype}; pass float32")
        value, kept = _tensors.values(tensor.detach())
        setattr(struct, field, value)
        return kept


def _device_of(device: Union[None, str, torch.device]) -> torch.device:
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        return with_index(torch.device(device))
    except (RuntimeError, TypeError) as error:
        raise InvalidArgument(f"device: expected cpu or cuda, got {shown(device)} ({str(error).splitlines()[0]})") from None


def _place_of(name: str, place: Place) -> Tuple[int, int]:
    if isinstance(place, tuple):
        if len(place) != 2:
            raise InvalidArgument(f"{name}: expected a process group or (rank, ranks), got {place!r}")
        return whole(place[0], 32, f"{name}: rank"), whole(place[1], 32, f"{name}: ranks")
    comm = comm_of(place)
    return (0, 1) if comm is None else (comm.rank, comm.ranks)


# ---- logit ranges --------------------------------------------------------------------------------------------------


@_untraced
def logit_range(logits: torch.Tensor, mask: Optional[torch.Tensor] = None) -> Range:
    """The smallest and the largest logit of each token, float32, for statistics. Not differentiable.

    - logits: [..., columns], float32, bfloat16 or float16; of a split vocabulary the columns of this rank
    - mask: of the shape of the tokens; 0: the token is not read, its results are 0

    A separate pass over the logits, without communication; Loss reduces the ranges over TP ranks. NaN if a logit of
    the token is NaN. Temperatures have no effect. Raises InvalidArgument.
    """
    _tensors.check_floats("logits", logits)
    if logits.dim() == 0 or logits.shape[-1] == 0:
        raise InvalidArgument(f"logit_range: logits of shape {list(logits.shape)} have no columns; pass [..., columns]")
    tokens, device, columns = logits.shape[:-1], logits.device, logits.shape[-1]
    most = _clients.size_class(tokens.numel())
    least, largest = (torch.empty(tokens, dtype=torch.float32, device=device) for _ in range(2))
    if tokens.numel() == 0:
        return least, largest
    read = _tensors.readable(logits.detach())
    batch = configured(library().bp_logprob_batch_init, _abi.bp_logprob_batch)
    batch.logits = _tensors.rows(read)
    batch.tokens.mask, kept = _tensors.values(_tensors.token_mask(mask, tokens, device))
    structs = [_tensors.values(each)[0] for each in (least, largest)]

    def make() -> ctypes.c_void_p:
        config = configured(library().bp_logprob_config_init, _abi.bp_logprob_config, vocab=columns, max_tokens=most,
                            targets=_abi.BP_TARGETS_MASK,
                            threads=torch.get_num_threads())
        return made(library().bp_logprob_create, _tensors.device_of(device), ctypes.byref(config))

    key = ("logit_range", device, most, columns, torch.get_num_threads())
    with _clients.lock_of(None):
        client = _clients.of(None).get(key, "bp_logprob_destroy", make)
        _tensors.run(device,
                     library().bp_logprob_range, client.value, ctypes.byref(batch), *map(ctypes.byref, structs))
    del kept
    return least, largest
