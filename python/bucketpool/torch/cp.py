# SPDX-License-Identifier: Apache-2.0
"""Packed sequences on context-parallel (CP) ranks: split a batch, shift labels, gather results.

    from bucketpool.torch.cp import PackedSplit

    split = PackedSplit(cu_seqlens, cp_group)
    ids, labels = split.split(ids), split.split(ids, shift="next")      # [local_tokens]
    logprobs = split.reassemble(local_logprobs)                         # [packed_tokens], on all ranks

A sequence is cut into 2 x ranks chunks of equal length, and a rank gets one from each end. So lengths are padded
to multiples of 2 x ranks. Tensors are [tokens, ...] of any dtype on a CPU or GPU; inputs are not written.

split() communicates nothing. reassemble() is collective: ranks compare batch, dtype and sizes first, and a
difference or an error of one rank is an exception on all (bucketpool.torch.comm). group=None is one rank, or the rank
given as a number: a loader can split a batch for any rank, without torch.distributed. On GPUs work is enqueued on the
current stream.

split_packed_seqs_for_context_parallel, reassemble_cp_packed_logprobs and postprocess_packed_seqs_context_parallel
are AReaL's functions with the group as an argument, allgather_cp_sharded_packed_tensor is SkyRL's.
docs/guides/context_parallelism.md describes the split and the shifts.
"""

import ctypes
import weakref
from typing import Any, Dict, Hashable, Optional, Sequence, Tuple, Union

import torch
import torch.distributed as dist

from .. import _abi
from .._abi import Uncopied
from .._library import call, configured, made, viewed
from .._library import logprob as library
from ..errors import InvalidArgument
from ..names import shown, whole
from . import _clients, _tensors
from ._passes import Untraced, only_once
from .comm import GroupComm, comm_of

__all__ = [
    "PackedSplit", "padding_multiple", "split_packed_seqs_for_context_parallel", "reassemble_cp_packed_logprobs",
    "postprocess_packed_seqs_context_parallel", "allgather_cp_sharded_packed_tensor"
]

ORDERS = {
    "packed": _abi.BP_CP_PACKED,
    "padded": _abi.BP_CP_PADDED,
    "local": _abi.BP_CP_LOCAL,
    "gathered": _abi.BP_CP_GATHERED
}
SHIFTS = {"keep": _abi.BP_CP_KEEP, "next": _abi.BP_CP_NEXT, "next_wrapped": _abi.BP_CP_NEXT_WRAPPED}
CuSeqlens = Union[torch.Tensor, Sequence[int]]


def _named(kind: str, names: Dict[str, int], name: str) -> int:
    if name not in names:
        raise InvalidArgument(f"unknown {kind} {name!r}; expected one of {', '.join(names)}")
    return names[name]


def padding_multiple(ranks: int, tp: int = 1, fp8: bool = False) -> int:
    """The number that padded lengths are multiples of, for CP ranks and tp ranks of sequence parallelism."""
    multiple = ctypes.c_uint64()
    call(library().bp_cp_multiple, ranks, tp, int(fp8), ctypes.byref(multiple))
    return multiple.value


class PackedSplit(Uncopied):
    """The split of one batch over CP ranks. It never changes; any thread may use it.

    - cu_seqlens: [sequences + 1], 0 and the end of each sequence; int32 or int64 on any device, or a sequence
      of integers; copied
    - group: the CP process group; None: one rank
    - rank, ranks: this CP rank and the number of CP ranks, instead of a group; reassemble() is then for one rank
    - cu_padded: the same for the padded batch; None: lengths are padded to `multiple`
    - multiple: 0: 2 x ranks; padding_multiple() has others
    - total_multiple: a dummy sequence fills the padded batch to a multiple of this multiple of `multiple`; 0: none
    - last_is_dummy: the last sequence only fills the batch

    Attributes: rank, ranks; sequences (an added dummy included), longest (padded length of the longest sequence);
    packed_tokens, padded_tokens, local_tokens (tokens without padding, with padding, and of this rank);
    data_sequences, data_tokens (without dummies).

    Orders of tokens: "packed" (as loaded), "padded", "local" (of this rank), "gathered" (local tokens of all ranks,
    by rank). Raises InvalidArgument.
    """

    def __init__(self, cu_seqlens: CuSeqlens, group: Optional[dist.ProcessGroup] = None, *, rank: Optional[int] = None,
                 ranks: Optional[int] = None, cu_padded: Optional[CuSeqlens] = None, multiple: int = 0,
                 total_multiple: int = 0, last_is_dummy: bool = False) -> None:
        self._handle: ctypes.c_void_p = _abi.bp_cp_split()
        self.group, self.comm = group, comm_of(group)
        if (rank is None) != (ranks is None) or (rank is not None and group is not None):
            given = "without a group" if group is None else "with a group"
            raise InvalidArgument(f"PackedSplit: rank={rank} and ranks={ranks} {given}; pass a group, or both numbers")
        own = (0, 1) if self.comm is None else (self.comm.rank, self.comm.ranks)
        self.rank: int = own[0] if rank is None else whole(rank, 32, "rank")
        self.ranks: int = own[1] if ranks is None else whole(ranks, 32, "ranks")
        begins = _begins("cu_seqlens", cu_seqlens)
        padded = None if cu_padded is None else _begins("cu_padded", cu_padded)
        if padded is not None and len(padded) != len(begins):
            raise InvalidArgument(f"cu_padded: {len(padded)} values, but cu_seqlens has {len(begins)}; pass as many")
        config = configured(library().bp_cp_split_config_init, _abi.bp_cp_split_config, cu_seqlens=begins.data_ptr(),
                            cu_padded=None if padded is None else padded.data_ptr(), cu_dtype=_abi.BP_DTYPE_INT64,
                            sequences=len(begins) - 1, ranks=self.ranks, rank=self.rank,
                            multiple=whole(multiple, 64, "multiple"), last_is_dummy=int(last_is_dummy),
                            total_multiple=whole(total_multiple, 64, "total_multiple"))
        self._handle = made(library().bp_cp_split_create, ctypes.byref(config))
        weakref.finalize(self, library().bp_cp_split_destroy, ctypes.byref(self._handle)).atexit = False
        info = viewed(library().bp_cp_split_get_info, self._handle)
        self.sequences, self.longest = info.sequences, info.longest
        self.packed_tokens, self.padded_tokens = info.packed_tokens, info.padded_tokens
        self.local_tokens = info.local_tokens
        self.data_sequences, self.data_tokens = info.data_sequences, info.data_tokens
        self._fingerprint = ctypes.c_int64(info.fingerprint).value

    def __copy__(self) -> "PackedSplit":
        return self  # and of deepcopy

    def tokens(self, order: str) -> int:
        """The number of tokens in an order."""
        return {"packed": self.packed_tokens, "local": self.local_tokens}.get(order, self.padded_tokens)

    def cu_seqlens(self, order: str = "local", dtype: torch.dtype = torch.int32) -> torch.Tensor:
        """Starts of the sequences in "packed", "padded" or "local" order, and the end: [sequences + 1] on the CPU."""
        begins = torch.empty(self.sequences + 1, dtype=dtype, device="cpu")
        call(library().bp_cp_split_cu_seqlens, self._handle, _named("order", ORDERS, order),
             _tensors.DTYPES.get(dtype, 0), begins.numel(), begins.data_ptr())
        return begins

    def index_map(self, source: str, target: str, shift: str = "keep") -> torch.Tensor:
        """The index map from one order to another: int64 [tokens of `target`] on the CPU.

        Each value is the position of the token in `source`; -1: it has none (padding). shift as in split().
        """
        places = torch.empty(self.tokens(target), dtype=torch.int64, device="cpu")
        call(library().bp_cp_split_map, self._handle, _named("order", ORDERS, source), _named("order", ORDERS, target),
             _named("shift", SHIFTS, shift), places.numel(),
             (ctypes.c_int64 * places.numel()).from_address(places.data_ptr()))
        return places

    def split(self, tensor: torch.Tensor, shift: str = "keep", fill: Union[int, float, bool] = 0,
              source: str = "packed") -> torch.Tensor:
        """The tokens of this rank, [local_tokens, ...], of a tensor in `source` order.

        - shift: "keep"; "next" for labels and their masks: each token gets the next one of its sequence, the last
          token gets `fill`; "next_wrapped": the last token gets the first one
        - fill: also the value of padding

        Differentiable with shift "keep". Communicates nothing.
        """
        _check_tensor("tensor", tensor)
        if shift != "keep" and tensor.requires_grad:
            raise InvalidArgument(f"split: shift={shift!r} of a tensor that requires a gradient is unsupported; shift "
                                  "only labels and masks")
        return _Rearranged.apply(tensor, self, source, "local", shift, fill)

    def reassemble(self, local: torch.Tensor, order: str = "packed", sum_gradients: bool = True) -> torch.Tensor:
        """Collective: gathers the tokens of all ranks in `order` ("packed" or "padded").

        Backward is a reduce-scatter: each rank gets the sum of all ranks' gradients of its tokens. With
        sum_gradients=False each rank takes its tokens from its own gradient, without communication. Use that for
        a loss that every rank computes from the whole, where the sum would be `ranks` times too large.
        """
        if self.comm is None and self.ranks > 1:
            raise InvalidArgument(f"reassemble: the split was created for rank {self.rank} of {self.ranks} without a "
                                  "group; create it with the CP process group")
        if self.comm is None:
            return _Rearranged.apply(local, self, "local", order, "keep", 0)
        return _Gathered.apply(local, self, self.comm, order, sum_gradients)


def _begins(name: str, given: CuSeqlens) -> torch.Tensor:
    try:
        begins = given if isinstance(given, torch.Tensor) else torch.as_tensor(given, device="cpu")
    except (RuntimeError, TypeError, ValueError):  # no numbers, or too large ones
        raise InvalidArgument(f"{name}: expected [sequences + 1] integers, got {shown(given)}") from None
    is_integer = not (begins.dtype.is_floating_point or begins.dtype.is_complex or begins.dtype == torch.bool)
    if not is_integer or begins.is_meta or begins.dim() != 1 or begins.numel() == 0:
        raise InvalidArgument(f"{name}: shape {list(begins.shape)} of {begins.dtype}; pass [sequences + 1] integers")
    return begins.detach().to("cpu", torch.int64).contiguous()


# ---- rearrangements ------------------------------------------------------------------------------------------------


def _check_tensor(name: str, given: Any) -> None:
    if not isinstance(given, torch.Tensor):
        raise InvalidArgument(f"{name}: expected a tensor, got {shown(given)}")


def _together(tensor: torch.Tensor, tokens: int, what: str) -> torch.Tensor:
    _check_tensor("tensor", tensor)
    if tensor.dim() == 0 or tensor.shape[0] != tokens:
        raise InvalidArgument(f"tensor of shape {list(tensor.shape)}: the batch has {tokens} tokens in {what} order; "
                              f"pass [{tokens}, ...]")
    return tensor if tensor[:1].is_contiguous() and (tokens < 2 or tensor.stride(0) != 0) else tensor.contiguous()


def _struct(tensor: torch.Tensor) -> _abi.bp_cp_tensor:
    size = tensor.element_size()
    token_bytes = tensor.shape[1:].numel() * size
    stride = tensor.stride(0) * size if tensor.shape[0] > 1 else 0
    return _abi.bp_cp_tensor(tensor.data_ptr(), tensor.shape[0], token_bytes, stride)


def _fill(rearrangement: _abi.bp_cp_rearrangement, value: Union[int, float, bool], dtype: torch.dtype) -> None:
    if value:
        pattern = torch.tensor([value], dtype=dtype, device="cpu").view(torch.uint8).tolist()
        rearrangement.fill_bytes = len(pattern)
        for i, byte in enumerate(pattern):
            rearrangement.fill[i] = byte


def _local_client(device: torch.device) -> _clients.Handle:
    def make() -> ctypes.c_void_p:
        config = configured(library().bp_cp_config_init, _abi.bp_cp_config, threads=torch.get_num_threads())
        return made(library().bp_cp_create, _tensors.device_of(device), ctypes.byref(config))

    key = ("cp", device, torch.get_num_threads())
    return _clients.of(None).get(key, "bp_cp_destroy", make)


def _rearranged(tensor: torch.Tensor, split: PackedSplit, source: str, target: str, shift: str = "keep",
                fill: Union[int, float, bool] = 0) -> torch.Tensor:
    tensor = _together(tensor, split.tokens(source), source)
    result = torch.empty((split.tokens(target), *tensor.shape[1:]), dtype=tensor.dtype, device=tensor.device)
    if result.numel() == 0:
        return result
    work = configured(library().bp_cp_rearrangement_init, _abi.bp_cp_rearrangement,
                      from_order=_named("order", ORDERS, source), to_order=_named("order", ORDERS, target),
                      shift=_named("shift", SHIFTS, shift), to=_struct(result))
    setattr(work, "from", _struct(tensor))
    _fill(work, fill, tensor.dtype)
    with _clients.lock_of(None):
        _tensors.run(tensor.device,
                     library().bp_cp_rearrange,
                     _local_client(tensor.device).value, split._handle, ctypes.byref(work))
    return result


class _Rearranged(Untraced):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, split: PackedSplit, source: str, target: str, shift: str,
                fill: Union[int, float, bool]) -> torch.Tensor:
        ctx.split, ctx.orders = split, (source, target)
        return _rearranged(tensor, split, source, target, shift, fill)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Tuple[Optional[torch.Tensor], ...]:
        source, target = ctx.orders
        back = _rearranged(gradient.detach(), ctx.split, target, source)
        return only_once("PackedSplit.split", back, gradient), None, None, None, None, None


# ---- gathers -------------------------------------------------------------------------------------------------------


def _gather_client(comm: GroupComm, split: PackedSplit, local: torch.Tensor, order: str,
                   gradient: bool) -> Tuple[_clients.Handle, torch.Tensor, torch.Tensor]:
    """Collective: compares the arguments of the ranks. Returns a client for gathers of this size, this rank's tokens
    as they are sent, and memory for the result.
    """
    failure: Optional[Exception] = None
    token_bytes, most, key = 0, 0, None  # type: int, int, Hashable
    same: Dict[str, int] = {}
    try:
        sent = _together(local, split.local_tokens, "local")
        _named("order", {name: ORDERS[name] for name in ("packed", "padded")}, order)
        if gradient and local.dtype not in _tensors.FLOATS:
            raise InvalidArgument(f"gradient of {local.dtype}: cannot be summed over ranks; use float32, bfloat16 or "
                                  "float16")
        token_bytes = local.shape[1:].numel() * local.element_size()
        most = _clients.size_class(split.padded_tokens * token_bytes)
        key = ("cp", local.device, torch.get_num_threads(), most)
        same = dict(batch=split._fingerprint, bytes_of_a_token=token_bytes, order=ORDERS[order],
                    dtype=_tensors.DTYPES.get(local.dtype, 0), gradient=int(gradient))
        whole = torch.empty((split.tokens(order), *local.shape[1:]), dtype=local.dtype, device=local.device)
    except Exception as error:  # any, because agree() reports it to the other ranks
        if comm.trusting:
            raise
        failure = error
    everybody = None
    if not comm.trusting:
        everybody = comm.agree("PackedSplit.reassemble", same, dict(client=_clients.of(comm).generation_of(key)),
                               failure)

    def make() -> ctypes.c_void_p:
        config = configured(library().bp_cp_config_init, _abi.bp_cp_config, comm=comm.handle,
                            threads=torch.get_num_threads(), max_gathered_bytes=most, trusting=1)
        return made(library().bp_cp_create, _tensors.device_of(local.device), ctypes.byref(config))

    with comm.lock:
        return _clients.shared(comm, key, everybody, "bp_cp_destroy", make), sent, whole


def _run(comm: GroupComm, device: torch.device, function: Any, *arguments: Any) -> None:
    with comm.lock:
        comm.run(_tensors.run, device, function, *arguments)


class _Gathered(Untraced):
    @staticmethod
    def forward(ctx: Any, local: torch.Tensor, split: PackedSplit, comm: GroupComm, order: str,
                sum_gradients: bool) -> torch.Tensor:
        client, local, whole = _gather_client(comm, split, local, order, ctx.needs_input_grad[0] and sum_gradients)
        ctx.split, ctx.order, ctx.client, ctx.sums = split, order, client, sum_gradients
        if whole.numel() != 0:
            _run(comm, local.device,
                 library().bp_cp_gather, client.value, split._handle, ctypes.byref(_struct(local)), ORDERS[order],
                 ctypes.byref(_struct(whole)))
        return whole

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Tuple[Optional[torch.Tensor], ...]:
        split, order = ctx.split, ctx.order
        if not ctx.sums:
            own = _rearranged(gradient.detach(), split, order, "local")
            return only_once("PackedSplit.reassemble", own, gradient), None, None, None, None
        whole = _together(gradient.detach(), split.tokens(order), order)
        own = torch.empty((split.local_tokens, *whole.shape[1:]), dtype=whole.dtype, device=whole.device)
        if whole.numel() != 0:
            _run(split.comm, whole.device,
                 library().bp_cp_gather_backward, ctx.client.value, split._handle, ctypes.byref(_struct(whole)),
                 ORDERS[order], _tensors.DTYPES[whole.dtype], ctypes.byref(_struct(own)))
        return only_once("PackedSplit.reassemble", own, gradient), None, None, None, None


# ---- functions of AReaL and SkyRL ----------------------------------------------------------------------------------


def _padded(cu_seqlens: CuSeqlens, group: Optional[dist.ProcessGroup]) -> PackedSplit:
    return PackedSplit(cu_seqlens, group, cu_padded=cu_seqlens)


def split_packed_seqs_for_context_parallel(tensor: torch.Tensor, cu_seqlens: CuSeqlens,
                                           group: Optional[dist.ProcessGroup] = None) -> torch.Tensor:
    """AReaL's function: the tokens of this rank of a packed batch whose lengths are padded already.

    Shift labels and masks before, or use PackedSplit.split(..., shift="next").
    """
    return _padded(cu_seqlens, group).split(tensor)


def reassemble_cp_packed_logprobs(local_tensor: torch.Tensor, padded_cu_seqlens: CuSeqlens,
                                  group: Optional[dist.ProcessGroup] = None) -> torch.Tensor:
    """AReaL's function: the tokens of all ranks in packed order. Collective, also in backward, which sums the gradients
    of all ranks.
    """
    return _padded(padded_cu_seqlens, group).reassemble(local_tensor)


def allgather_cp_sharded_packed_tensor(tensor: torch.Tensor, cu_seqlens_padded: CuSeqlens,
                                       cp_group: Optional[dist.ProcessGroup]) -> torch.Tensor:
    """SkyRL's function: the tokens of all ranks in packed order. Collective.

    Backward takes this rank's tokens from its gradient of the whole and communicates nothing.
    """
    return _padded(cu_seqlens_padded, cp_group).reassemble(tensor, sum_gradients=False)


def postprocess_packed_seqs_context_parallel(output: torch.Tensor, cu_seqlens: Optional[CuSeqlens], post_process: bool,
                                             gather_output: bool = True,
                                             group: Optional[dist.ProcessGroup] = None) -> torch.Tensor:
    """AReaL's function: [1, local tokens, ...] to [tokens, ...], the tokens of all ranks. Collective.

    - post_process: False returns the output as it is
    - gather_output: False only drops the first dimension, as do one rank and cu_seqlens None

    Backward takes this rank's tokens from its own gradient and communicates nothing.
    """
    _check_tensor("output", output)
    if not post_process:
        return output
    if comm_of(group) is None or cu_seqlens is None or not gather_output:
        return output.squeeze(0)
    return _padded(cu_seqlens, group).reassemble(output.squeeze(0), sum_gradients=False)
