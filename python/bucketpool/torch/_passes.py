"""Common parts of passes over logits and over the fused head: options, checks of arguments, agreement of ranks."""

import ctypes
import struct
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple, TypeVar

import torch
import torch.distributed as dist

from .. import _abi
from .._library import call, configured, logprob
from ..errors import Error, InvalidArgument, Unsupported
from . import _clients, _tensors
from .comm import GroupComm, comm_of


T = TypeVar("T")


class Options(NamedTuple):
    """Options of a pass. start, end: vocabulary bounds of this rank; None: the shards of all ranks, in order."""

    what: str
    start: Optional[int] = None
    end: Optional[int] = None
    chunk: Optional[int] = None
    group: Optional[dist.ProcessGroup] = None
    temperature: float = 1.0
    logprob: bool = True
    entropy: bool = False
    ignore_index: Optional[int] = None
    checked_targets: bool = False
    in_place: bool = False
    partial_hidden_grad: bool = False


class Pass(NamedTuple):
    """A forward pass that all ranks have agreed on."""

    options: Options
    comm: Optional[GroupComm]
    client: _clients.Handle
    mask: Optional[torch.Tensor]


class Untraced(torch.autograd.Function):
    """An autograd function that calls the library; torch.compile breaks the graph around it."""

    @classmethod
    def apply(cls, *arguments: Any) -> Any:
        compiler: Any = torch.compiler
        function: Any = super().apply
        return (compiler.disable(function) if compiler.is_compiling() else function)(*arguments)


class _NotTwice(torch.autograd.Function):
    """Passes gradients through; its own backward raises Unsupported."""

    @staticmethod
    def forward(ctx: Any, gradient: torch.Tensor, what: str, *sources: torch.Tensor) -> torch.Tensor:
        ctx.what = what
        return gradient.view_as(gradient)

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        raise Unsupported(f"{ctx.what}: second derivatives are unsupported; differentiate once")


def only_once(what: str, gradient: Optional[torch.Tensor], *sources: Optional[torch.Tensor]) -> Optional[torch.Tensor]:
    """The gradient. With create_graph=True, a second differentiation raises Unsupported."""
    if gradient is None or not torch.is_grad_enabled():
        return gradient
    apply: Any = _NotTwice.apply
    refused: torch.Tensor = apply(gradient, what, *[source for source in sources if source is not None])
    return refused


# ---- before the pass -----------------------------------------------------------------------------------------------


def check_options(options: Options, columns: int) -> None:
    if (options.start is None) != (options.end is None):
        raise InvalidArgument(
            f"{options.what}: vocabulary bounds {options.start} to {options.end}: one is missing; pass both or none")
    if options.start is not None and options.end is not None:
        if options.start < 0 or options.end < options.start:
            raise InvalidArgument(
                f"{options.what}: vocabulary bounds {options.start} to {options.end} are not a range; pass "
                "0 <= start <= end")
        if options.end - options.start != columns:
            raise InvalidArgument(
                f"{options.what}: vocabulary bounds {options.start} to {options.end} are "
                f"{options.end - options.start} ids, but there are {columns} columns; pass the bounds of the columns")
    if options.chunk is not None and options.chunk < 0:
        raise InvalidArgument(f"{options.what}: chunk size {options.chunk} is negative; None and 0 mean one piece")
    if not 1.2e-38 <= options.temperature <= 8.5e37:
        raise InvalidArgument(f"{options.what}: temperature {options.temperature}; expected a number in "
                              "[1.2e-38, 8.5e37]")


def prepared(options: Options, check: Callable[[], Tuple[Dict[str, int], Dict[str, int], Optional[torch.Tensor]]],
             memory: Callable[[], T], make: Callable[[int, Optional[GroupComm]], ctypes.c_void_p], destroy: str,
             key_of: Callable[[], Tuple[Any, ...]]) -> Tuple[Pass, T]:
    """Checks the arguments of this rank, compares them with those of the other ranks, and gets a client for the pass.
    An error of one rank is an error of all.

    - check: returns the values that must be equal on all ranks, those that may differ (with "columns"), the mask
    - memory: allocates the outputs, before the comparison, so that a failure reaches the other ranks
    - make: creates a client, from the first id of this rank and the communicator
    """
    comm = comm_of(options.group)
    failure: Optional[BaseException] = None
    same: Dict[str, int] = {}
    told: Dict[str, int] = {}
    mask = None
    key: Tuple[Any, ...] = ()
    try:
        same, told, mask = check()
        same["temperature"] = struct.unpack("i", struct.pack("f", options.temperature))[0]
        key = (options.checked_targets, torch.get_num_threads(), options.start, *key_of())
        ready = memory()
    except Exception as error:  # any, because agree() reports it to the other ranks
        if comm is None or comm.trusting:
            raise
        failure = error
    start, everybody = options.start, None
    if comm is not None and not comm.trusting:
        told["client"] = _clients.of(comm).generation_of(key)
        everybody = comm.agree(options.what, same, told, failure)
    if start is None:
        start = _start(options, comm, everybody)
    with _clients.lock_of(comm):
        client = _clients.shared(comm, key, everybody, destroy, lambda: make(start, comm))
    return Pass(options, comm, client, mask), ready


def _start(options: Options, comm: Optional[GroupComm], everybody: Optional[List[Dict[str, int]]]) -> int:
    if comm is None:
        return 0
    if everybody is None:
        raise InvalidArgument(
            f"{options.what}: no vocabulary bounds, and ranks of a trusted group do not exchange them; pass "
            "vocab_start_index and vocab_end_index")
    return sum(one["columns"] for one in everybody[:comm.rank])


def targets_of(options: Options) -> int:
    return _abi.BP_TARGETS_CHECKED if options.checked_targets else _abi.BP_TARGETS_ANY


# ---- the pass ------------------------------------------------------------------------------------------------------


class Outputs:
    """Outputs of a forward pass over `shape` tokens, with the values saved for backward. struct: for the library."""

    def __init__(self, options: Options, shape: torch.Size, device: torch.device, saves: bool) -> None:
        tokens = shape.numel()

        def new(wanted: bool) -> Optional[torch.Tensor]:
            return torch.empty(shape, dtype=torch.float32, device=device) if wanted else None

        self.logprob, self.entropy = new(options.logprob), new(options.entropy)
        size = saved_bytes(tokens, options.entropy)
        self.saved = torch.empty(size // 4 if saves else 0, dtype=torch.float32, device=device)
        self.struct = configured(logprob().bp_logprob_outputs_init, _abi.bp_logprob_outputs)
        self.struct.logprob, _ = _tensors.values(self.logprob)
        self.struct.entropy, _ = _tensors.values(self.entropy)
        if saves:
            self.struct.saved, self.struct.saved_bytes = self.saved.data_ptr(), size


def saved_bytes(tokens: int, entropy: bool) -> int:
    size = ctypes.c_uint64()
    call(logprob().bp_logprob_saved_bytes, tokens, int(entropy), ctypes.byref(size))
    return size.value


def upstream(struct_of: Any, logprob_grad: Optional[torch.Tensor], entropy_grad: Optional[torch.Tensor],
             saved: torch.Tensor) -> List[Any]:
    """Sets the upstream gradients. Returns the tensors that must live until the call is enqueued."""
    struct_of.logprob_grad, first = _tensors.values(logprob_grad)
    struct_of.entropy_grad, second = _tensors.values(entropy_grad)
    saved = saved.contiguous()  # hooks of saved tensors may change strides; the caller keeps the copy
    struct_of.saved, struct_of.saved_bytes = saved.data_ptr(), saved.numel() * 4
    return [first, second, saved]


def ran(one: Pass, device: torch.device, function: Any, *arguments: Any) -> None:
    """Runs a call of the client on the current stream, one call at a time."""
    with _clients.lock_of(one.comm):
        if one.comm is None:
            _tensors.run(device, function, one.client.value, *arguments)
        else:
            one.comm.run(_tensors.run, device, function, one.client.value, *arguments)


def check_client(one: Pass, device: torch.device, check: Any) -> None:
    """Raises the error of invalid targets, which calls on a stream only record."""
    if one.options.checked_targets and device.type != "cpu":
        call(check, one.client.value)
