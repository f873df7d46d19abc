"""Common parts of passes over logits and over the fused head: checks of arguments, agreement of ranks, operators."""

import ctypes
import math
import numbers
import operator
import struct
from typing import Any, Callable, Dict, Hashable, List, NamedTuple, Optional, Tuple, Type, TypeVar

import torch
import torch.distributed as dist

from .. import _abi
from .._library import call, logprob
from ..errors import InvalidArgument, Unsupported
from . import _clients, _tensors
from .comm import GroupComm

S = TypeVar("S", bound=ctypes.Structure)
Outputs = Tuple[Optional[torch.Tensor], Optional[torch.Tensor], torch.Tensor]  # log-probability, entropy, saved

_library: Any = torch.library
OPERATORS: Any = _library.Library("bucketpool", "FRAGMENT")
_TAGS = tuple(
    getattr(torch.Tag, name) for name in ("pt2_compliant_tag", "cudagraph_unsafe") if hasattr(torch.Tag, name))


class Options(NamedTuple):
    """Converted options of a pass. start, end: vocabulary bounds of this rank; None: consecutive shards."""

    what: str
    start: Optional[int]
    end: Optional[int]
    chunk: int
    temperature: float
    ignore_index: Optional[int]
    logprob: bool
    entropy: bool
    checked_targets: bool = False
    in_place: bool = False
    partial_hidden_grad: bool = False


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


# ---- arguments -----------------------------------------------------------------------------------------------------


def number(name: str, value: Any) -> float:
    """A real number, or the value of a tensor of one element, for which the host waits on GPUs."""
    if type(value) is float:
        return value
    if isinstance(value, torch.Tensor) and value.dim() == 0 and not value.dtype.is_complex:
        value = value.item()
    if not isinstance(value, numbers.Real):
        raise InvalidArgument(f"{name}: expected a number, got {_shown(value)}")
    try:
        return float(value)
    except OverflowError:
        raise InvalidArgument(f"{name}: {value} is too large for a float; pass a smaller number") from None


def integer(name: str, value: Any) -> Optional[int]:
    """An integer of 64 bits, or None."""
    if value is None:
        return None
    if type(value) is not int:
        try:
            value = operator.index(value)
        except TypeError:
            raise InvalidArgument(f"{name}: expected an integer or None, got {_shown(value)}") from None
    if not -1 << 63 <= value < 1 << 63:
        raise InvalidArgument(f"{name}: {value} does not fit 64 bits; pass a smaller number")
    return value


def flag(name: str, value: Any) -> bool:
    if value is True or value is False:
        return value
    if isinstance(value, numbers.Integral) and value in (0, 1) or type(value).__name__ in ("bool_", "bool"):
        return bool(value)
    raise InvalidArgument(f"{name}: expected True or False, got {_shown(value)}")


def _shown(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {list(value.shape)}"
    kind = type(value).__name__
    return f"{kind} {str(value)[:40]!r}" if isinstance(value, (str, int, float)) else kind


def options_of(what: str, columns: int, start: Any, end: Any, chunk: Any, temperature: Any, ignore_index: Any,
               logprob: bool, entropy: bool, checked_targets: Any = False, in_place: Any = False,
               partial_hidden_grad: Any = False) -> Options:
    """Converts and checks options. Raises InvalidArgument, with the name of the argument."""
    start, end = integer("vocab_start_index", start), integer("vocab_end_index", end)
    chunk, temperature = integer("chunk_size", chunk) or 0, number("temperature", temperature)
    if (start is None) != (end is None):
        raise InvalidArgument(
            f"{what}: vocabulary bounds {start} to {end}: one is missing; pass both or none")
    if start is not None and end is not None:
        if start < 0 or end < start:
            raise InvalidArgument(f"{what}: vocabulary bounds {start} to {end} are not a range; pass 0 <= start <= end")
        if end - start != columns:
            raise InvalidArgument(f"{what}: vocabulary bounds {start} to {end} are {end - start} ids, but there are "
                                  f"{columns} columns; pass the bounds of the columns")
    if chunk < 0:
        raise InvalidArgument(f"{what}: chunk size {chunk} is negative; None and 0 mean one piece")
    if not 1.2e-38 <= temperature <= 8.5e37:
        raise InvalidArgument(f"{what}: temperature {temperature}; expected a number in [1.2e-38, 8.5e37]")
    return Options(what, start, end, chunk, temperature, integer("ignore_index", ignore_index), logprob, entropy,
                   flag("checked_targets", checked_targets), flag("in_place", in_place),
                   flag("partial_hidden_grad", partial_hidden_grad))


# ---- agreement of ranks --------------------------------------------------------------------------------------------


class Agreed(NamedTuple):
    """The result of an agreement of ranks. everybody: the numbers of all ranks, None if they were not compared."""

    start: int
    everybody: Optional[List[Dict[str, int]]]


def agreed(comm: Optional[GroupComm], what: str, key: Hashable, same: Dict[str, int], options: Optional[Options],
           columns: int, failure: Optional[Exception]) -> Agreed:
    """Compares the arguments of this rank with those of the other ranks. An error of one rank is an error of all."""
    if comm is None or comm.trusting:
        if failure is not None:
            raise failure
        start = None if options is None else options.start
        if start is None and comm is not None:
            raise InvalidArgument(f"{what}: no vocabulary bounds, and ranks of a trusted group do not exchange them; "
                                  "pass vocab_start_index and vocab_end_index")
        return Agreed(start or 0, None)
    if options is not None:
        same = {**same, "outputs": options.logprob + 2 * options.entropy,
                "temperature": struct.unpack("i", struct.pack("f", options.temperature))[0]}
    everybody = comm.agree(what, same, dict(columns=columns, client=_clients.of(comm).generation_of(key)), failure)
    if options is not None and options.start is not None:
        return Agreed(options.start, everybody)
    return Agreed(sum(one["columns"] for one in everybody[:comm.rank]), everybody)


def targets_of(options: Options) -> int:
    return _abi.BP_TARGETS_CHECKED if options.checked_targets else _abi.BP_TARGETS_ANY


# ---- structs of the library ----------------------------------------------------------------------------------------

_defaults: Dict[Type[ctypes.Structure], bytes] = {}


def fresh(init: str, kind: Type[S]) -> S:
    """A struct with the library's defaults, which `init` sets once."""
    known = _defaults.get(kind)
    if known is None:
        made = kind()
        call(getattr(logprob(), init), ctypes.byref(made), ctypes.sizeof(kind))
        known = _defaults[kind] = bytes(made)
    return kind.from_buffer_copy(known)


def outputs_of(options: Options, shape: torch.Size, device: torch.device, saves: bool) -> Outputs:
    """Memory of a forward pass over `shape` tokens, with the values saved for backward."""
    floats = (3 if options.entropy else 2) * shape.numel() if saves else 0
    return (torch.empty(shape, dtype=torch.float32, device=device) if options.logprob else None,
            torch.empty(shape, dtype=torch.float32, device=device) if options.entropy else None,
            torch.empty(floats, dtype=torch.float32, device=device))


def outputs_struct(outputs: Outputs) -> _abi.bp_logprob_outputs:
    struct_of = fresh("bp_logprob_outputs_init", _abi.bp_logprob_outputs)
    logprob_out, entropy_out, saved = outputs
    if logprob_out is not None:
        struct_of.logprob = _tensors.values(logprob_out)[0]
    if entropy_out is not None:
        struct_of.entropy = _tensors.values(entropy_out)[0]
    if saved.numel():
        struct_of.saved, struct_of.saved_bytes = saved.data_ptr(), saved.numel() * 4
    return struct_of


def upstream(struct_of: Any, logprob_grad: Optional[torch.Tensor], entropy_grad: Optional[torch.Tensor],
             saved: torch.Tensor) -> Tuple[Any, ...]:
    """Sets the upstream gradients. Returns the tensors that must live until the call is enqueued."""
    first = second = None
    if logprob_grad is not None:
        struct_of.logprob_grad, first = _tensors.values(logprob_grad)
    if entropy_grad is not None:
        struct_of.entropy_grad, second = _tensors.values(entropy_grad)
    saved = saved.contiguous()  # hooks of saved tensors may change strides; the caller keeps the copy
    struct_of.saved, struct_of.saved_bytes = saved.data_ptr(), saved.numel() * 4
    return first, second, saved


def ran(comm: Optional[GroupComm], client: _clients.Handle, device: torch.device, function: Any,
        *arguments: Any) -> None:
    """Runs a call of the client on the current stream, one call at a time."""
    with _clients.lock_of(comm):
        if comm is None:
            _tensors.run(device, function, client.value, *arguments)
        else:
            comm.run(_tensors.run, device, function, client.value, *arguments)


# ---- operators -----------------------------------------------------------------------------------------------------


def through_operator(tensor: Any) -> bool:
    """True if a graph is traced or a mode or subclass of tensors intercepts operators. They see calls through the
    dispatcher only. Otherwise calls bypass it, which saves its time.
    """
    return (torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack() > 0
            or type(tensor) not in (torch.Tensor, torch.nn.Parameter) and isinstance(tensor, torch.Tensor))


def refuse_in_place(what: str, in_place: bool) -> None:
    if in_place:
        raise InvalidArgument(f"{what}: in_place is unsupported in graphs of torch.compile or torch.export, in "
                              "dispatch modes and for subclasses of tensors, where backward would overwrite a tensor "
                              "that the graph may use elsewhere; pass in_place=False")


def name_of(group: Optional[dist.ProcessGroup]) -> str:
    """The name of a group as operators take it; "" for None."""
    return "" if group is None else group.group_name


def group_of(name: str) -> Optional[dist.ProcessGroup]:
    registry: Any = dist.distributed_c10d
    return registry._resolve_process_group(name) if name else None


def define(name: str, schema: str, run: Callable[..., Any], fake: Callable[..., Any], backward: Callable[..., Any],
           setup_context: Optional[Callable[..., None]] = None) -> Any:
    """Registers an operator of torch.ops.bucketpool, and returns it."""
    OPERATORS.define(f"{name}{schema}", tags=_TAGS)
    for kind in ("CPU", "CUDA"):
        OPERATORS.impl(name, run, kind)
    _library.register_fake(f"bucketpool::{name}", fake, lib=OPERATORS)
    _library.register_autograd(f"bucketpool::{name}", backward, setup_context=setup_context, lib=OPERATORS)
    return getattr(torch.ops.bucketpool, name).default


def fake_outputs(like: torch.Tensor, shape: Any, logprob: bool, entropy: bool, saves: bool) -> Tuple[torch.Tensor, ...]:
    """Outputs of a forward operator, with the first id of this rank; without elements where they are not wanted."""
    def new(wanted: bool) -> torch.Tensor:
        return like.new_empty(shape if wanted else (0, ), dtype=torch.float32)

    floats = (3 if entropy else 2) * math.prod(shape) if saves else 0
    return (new(logprob), new(entropy), like.new_empty((floats, ), dtype=torch.float32),
            torch.empty((), dtype=torch.int64, device="cpu"))


def real_outputs(outputs: Outputs, start: int) -> Tuple[torch.Tensor, ...]:
    logprob_out, entropy_out, saved = outputs
    return (saved.new_empty(0) if logprob_out is None else logprob_out,
            saved.new_empty(0) if entropy_out is None else entropy_out, saved,
            torch.tensor(start, dtype=torch.int64, device="cpu"))


def refuse_second(what: str) -> Callable[..., Any]:
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise Unsupported(f"{what}: second derivatives are unsupported; differentiate once")

    return backward
