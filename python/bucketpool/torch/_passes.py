# SPDX-License-Identifier: Apache-2.0
"""Common parts of passes over logits and over the fused head: checks of arguments, agreement of ranks, operators."""

import ctypes
import math
import numbers
import operator
import struct
from typing import Any, Callable, Dict, Hashable, Iterable, List, NamedTuple, Optional, Tuple, Type, TypeVar, Union

import torch
import torch.distributed as dist

from .. import _abi
from .._library import call, logprob, viewed
from ..errors import InvalidArgument, Unsupported
from . import _clients, _tensors
from .comm import GroupComm

S = TypeVar("S", bound=ctypes.Structure)
R = TypeVar("R")
MaybeTensor = Optional[torch.Tensor]
Outputs = Tuple[MaybeTensor, MaybeTensor, MaybeTensor, MaybeTensor, MaybeTensor]  # as OUTPUTS, then saved
OUTPUTS = "logprob", "entropy", "logsumexp", "mean_logprob"  # fields of bp_logprob_outputs; bits 1, 2, 4, 8
LOGPROB, ENTROPY, LOGSUMEXP, MEAN_LOGPROB = 1, 2, 4, 8
Temperature = Union[float, torch.Tensor]
IGNORED = _abi.BP_LOGPROB_IGNORED  # -100, also PyTorch's default
OUTSIDE = {"error": _abi.BP_TARGETS_ERROR, "check": _abi.BP_TARGETS_ERROR, "mask": _abi.BP_TARGETS_MASK}

GRANULARITY = 2 << 20  # of a GPU's physical memory

_is_compiling: Any = torch.compiler.is_compiling
_modes: Any = torch._C._len_torch_dispatch_stack
_library: Any = torch.library
OPERATORS: Any = _library.Library("bucketpool", "FRAGMENT")
_TAGS = tuple(
    getattr(torch.Tag, name) for name in ("pt2_compliant_tag", "cudagraph_unsafe") if hasattr(torch.Tag, name))


class Asked(NamedTuple):
    """Options of a call as they were passed. outputs: bits of OUTPUTS; start, end: vocabulary bounds of this rank."""

    what: str
    outputs: int
    group: Any = None
    start: Any = None
    end: Any = None
    chunk: Any = None
    temperature: Any = 1.0
    mask: Any = None
    ignore_index: Any = IGNORED
    soft_cap: Any = None
    round_to: Any = None
    outside: Any = "error"
    in_place: Any = False
    inference_only: Any = False
    partial_hidden_grad: Any = False
    memory: Any = None


class Options(NamedTuple):
    """Converted options of a pass. start, end: None: consecutive shards; temperature 0: one for each token."""

    what: str
    outputs: int
    start: Optional[int]
    end: Optional[int]
    chunk: int
    temperature: float
    soft_cap: float
    rounding: int
    ignore_index: Optional[int]
    targets: int
    outside: str
    in_place: bool
    partial_hidden_grad: bool


class Tokens(NamedTuple):
    """The tensors of each token besides logits or hidden states. mask: uint8; temperatures: float32."""

    target: MaybeTensor
    mask: MaybeTensor
    temperatures: MaybeTensor


class Untraced(torch.autograd.Function):
    """An autograd function that calls the library; torch.compile breaks the graph around it."""

    @classmethod
    def apply(cls, *arguments: Any) -> Any:
        compiler: Any = torch.compiler
        function: Any = super().apply
        return (compiler.disable(function) if compiler.is_compiling() else function)(*arguments)


def untraced(function: Callable[..., R]) -> Callable[..., R]:
    """The function; while a graph is traced, one that breaks it."""
    compiler: Any = torch.compiler
    return compiler.disable(function) if compiler.is_compiling() else function


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


def options_of(asked: Asked, columns: int, shape: torch.Size, target: Any, device: torch.device) -> Tuple[Options, Tokens]:
    """Converts and checks options for tokens of `shape`. Raises InvalidArgument, with the name of the argument."""
    what, start, end = asked.what, integer("vocab_start_index", asked.start), integer("vocab_end_index", asked.end)
    chunk, temperature, soft_cap = integer("chunk_size", asked.chunk) or 0, asked.temperature, 0.0
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
    temperatures = None
    if isinstance(temperature, torch.Tensor) and temperature.dim() > 0:
        temperatures, temperature = _tensors.token_temperatures(temperature, shape, device), 0.0
    else:
        temperature = number("temperature", temperature)
        if not 1.2e-38 <= temperature <= 8.5e37:
            raise InvalidArgument(f"{what}: temperature {temperature}; expected a number in [1.2e-38, 8.5e37]")
    if asked.soft_cap is not None:
        soft_cap = number("soft_cap", asked.soft_cap)
        if not 1.2e-38 <= soft_cap <= 8.5e37:
            raise InvalidArgument(f"{what}: soft_cap {soft_cap}; expected None or a number in [1.2e-38, 8.5e37]")
    rounding = _abi.BP_DTYPE_FP32
    if asked.round_to is not None:
        if asked.round_to not in (torch.bfloat16, torch.float16):
            raise InvalidArgument(f"{what}: round_to {asked.round_to!r}; expected None, torch.bfloat16 or "
                                  "torch.float16")
        rounding = _tensors.DTYPES[asked.round_to]
    ignore_index, targets = integer("ignore_index", asked.ignore_index), 1
    if ignore_index == _abi.BP_LOGPROB_IGNORE_NONE:
        raise InvalidArgument(f"ignore_index: {ignore_index} is the library's number for none; pass None")
    if target is not None or asked.outputs & LOGPROB:
        targets = _tensors.check_target(target, shape, device)
    if not isinstance(asked.outside, str) or asked.outside not in OUTSIDE:
        raise InvalidArgument(f"outside: expected {', '.join(map(repr, OUTSIDE))}, got {_shown(asked.outside)}")
    outside = asked.outside if target is not None else "mask"  # set_tokens passes zeros, which may be of another rank
    options = Options(what, asked.outputs, start, end, chunk, temperature, soft_cap, rounding, ignore_index, targets,
                      outside, flag("in_place", asked.in_place),
                      flag("partial_hidden_grad", asked.partial_hidden_grad))
    return options, Tokens(target, _tensors.token_mask(asked.mask, shape, device), temperatures)


# ---- agreement of ranks --------------------------------------------------------------------------------------------


def bits(value: float) -> int:
    """The bits of a number in float32, to compare it."""
    return int(struct.unpack("i", struct.pack("f", value))[0])


class Agreed(NamedTuple):
    """The result of an agreement of ranks. everybody: the numbers of all ranks, None if they were not compared."""

    start: int
    everybody: Optional[List[Dict[str, int]]]


def agreed(comm: Optional[GroupComm], what: str, key: Hashable, same: Dict[str, int], options: Optional[Options],
           columns: int, failure: Optional[Exception], told: Optional[Dict[str, int]] = None) -> Agreed:
    """Compares the arguments of this rank with those of the other ranks. An error of one rank is an error of all.
    told: further numbers, which may differ.
    """
    if comm is None or comm.trusting:
        if failure is not None:
            raise failure
        start = None if options is None else options.start
        if start is None and comm is not None:
            raise InvalidArgument(f"{what}: no vocabulary bounds, and ranks of a trusted group do not exchange them; "
                                  "pass vocab_start_index and vocab_end_index")
        return Agreed(start or 0, None)
    if options is not None:
        ignored = _abi.BP_LOGPROB_IGNORE_NONE if options.ignore_index is None else options.ignore_index
        same = {**same, "outputs": options.outputs, "temperature": bits(options.temperature),
                "soft_cap": bits(options.soft_cap), "round_to": options.rounding, "targets": options.targets,
                "ignore_index": ignored, "outside": OUTSIDE[options.outside]}
    everybody = comm.agree(what, same, dict(columns=columns, client=_clients.of(comm).generation_of(key), **(told or {})),
                           failure)
    if options is not None and options.start is not None:
        return Agreed(options.start, everybody)
    return Agreed(sum(one["columns"] for one in everybody[:comm.rank]), everybody)


def targets_of(options: Options) -> int:
    return OUTSIDE[options.outside]


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


def set_tokens(struct_of: _abi.bp_logprob_tokens, options: Options, tokens: Tokens, rows: torch.Tensor) -> Any:
    """Sets the inputs of each token, [..., columns] in `rows`. Returns the tensors that must live until the call is
    enqueued.
    """
    target, masks, temperatures = tokens.target, None, None
    if target is None:  # other outputs than log-probabilities do not depend on targets
        target = torch.zeros((), dtype=torch.int64, device=rows.device).expand(rows.shape[:-1])
    struct_of.target_dtype = _tensors.DTYPES[target.dtype]
    if target.dim() == rows.dim():
        struct_of.target, kept = _tensors.values(target, True)
        struct_of.targets = options.targets
    else:
        struct_of.target, kept = _tensors.values(target)
    if tokens.mask is not None:
        struct_of.mask, masks = _tensors.values(tokens.mask)
    if tokens.temperatures is not None:
        struct_of.temperatures, temperatures = _tensors.values(tokens.temperatures)
    else:
        struct_of.temperature = options.temperature
    if options.soft_cap:
        struct_of.soft_cap = options.soft_cap
    if options.rounding != _abi.BP_DTYPE_FP32:
        struct_of.rounding = options.rounding
    if tokens.target is None or options.ignore_index is None:
        struct_of.ignore_index = _abi.BP_LOGPROB_IGNORE_NONE
    elif options.ignore_index != IGNORED:
        struct_of.ignore_index = options.ignore_index
    return kept, masks, temperatures


def vocabulary(comm: Optional[GroupComm], options: Options, get_info: Any, client: _clients.Handle,
               columns: int) -> int:
    """The columns of all ranks, where the gradient needs them."""
    if comm is None or not options.outputs & MEAN_LOGPROB:
        return columns
    return int(viewed(get_info, client.value).vocab)


def most_targets(targets: int) -> int:
    """The number of targets of a client: calls with similar numbers share it."""
    return 1 if targets == 1 else 1 << (targets - 1).bit_length()


def _floats(outputs: int, tokens: int) -> int:
    return (3 if outputs & ENTROPY else 2) * tokens


def outputs_of(outputs: int, like: torch.Tensor, target: MaybeTensor, saves: bool) -> Outputs:
    """Memory of a forward pass over the rows of `like`, with the values saved for backward."""
    shape = like.shape[:-1]

    def new(size: Any) -> torch.Tensor:
        return like.new_empty(tuple(size), dtype=torch.float32)  # torch.Size costs a microsecond more

    return (new(shape if target is None else target.shape) if outputs & LOGPROB else None,
            new(shape) if outputs & ENTROPY else None, new(shape) if outputs & LOGSUMEXP else None,
            new(shape) if outputs & MEAN_LOGPROB else None,
            new((_floats(outputs, shape.numel()), )) if saves else None)


def outputs_struct(outputs: Outputs, tokens: int) -> _abi.bp_logprob_outputs:
    """tokens: the number of dimensions of the tokens."""
    struct_of = fresh("bp_logprob_outputs_init", _abi.bp_logprob_outputs)
    for name, output in zip(OUTPUTS, outputs):
        if output is not None:
            setattr(struct_of, name, _tensors.values(output, output.dim() > tokens)[0])
    saved = outputs[4]
    if saved is not None:
        struct_of.saved, struct_of.saved_bytes = saved.data_ptr(), saved.numel() * 4
    return struct_of


def of_shard(gradients: Tuple[MaybeTensor, ...], share: float) -> Tuple[MaybeTensor, ...]:
    """Upstream gradients for a client of a share of the whole vocabulary V. The client has 1 / columns in the gradient
    of mean_logprob, m (1 / V - p) / T, which is m share (1 / columns - p) / T - m (1 - share) p / T.
    """
    if share == 1.0 or len(gradients) < 4 or gradients[3] is None:
        return gradients
    mean, whole = gradients[3], gradients[2]
    rest = mean * (share - 1.0)
    return (*gradients[:2], rest if whole is None else whole + rest, mean * share)


def upstream(struct_of: Any, gradients: Tuple[MaybeTensor, ...], saved: MaybeTensor, tokens: int,
             share: float = 1.0) -> Tuple[Any, ...]:
    """Sets the upstream gradients, in the order of OUTPUTS. Returns the tensors that must live until the call is
    enqueued. share: as in of_shard().
    """
    gradients = of_shard(gradients, share)
    kept: List[Any] = []
    for name, gradient in zip(OUTPUTS, gradients):
        if gradient is not None:
            value, held = _tensors.values(gradient, gradient.dim() > tokens)
            setattr(struct_of, name + "_grad", value)
            kept.append(held)
    if saved is not None:
        saved = saved.contiguous()  # hooks of saved tensors may change strides; the caller keeps the copy
        struct_of.saved, struct_of.saved_bytes = saved.data_ptr(), saved.numel() * 4
    return (*kept, saved)


def ran(comm: Optional[GroupComm], client: _clients.Handle, device: torch.device, function: Any,
        *arguments: Any) -> None:
    """Runs a call of the client on the current stream, one call at a time."""
    with _clients.lock_of(comm):
        if comm is None:
            _tensors.run(device, function, client.value, *arguments)
        else:
            comm.run(_tensors.run, device, function, client.value, *arguments)


def ran_forward(options: Options, comm: Optional[GroupComm], client: _clients.Handle, device: torch.device,
                function: Any, check: Any, *arguments: Any) -> None:
    """ran() of a forward pass. On CPUs, and with outside="check", it has reported targets outside the vocabulary."""
    try:
        ran(comm, client, device, function, *arguments)
        if options.outside == "check" and device.type != "cpu":  # where calls only record such targets
            call(check, client.value)
    except InvalidArgument as error:
        raise of_target(options.what, error, comm) from None


def of_target(what: str, error: InvalidArgument, comm: Optional[GroupComm]) -> InvalidArgument:
    """An error of the library. One about a target has its advice in the terms of Python."""
    found = str(error).partition("; ")[0]
    if "outside the vocabulary" not in found:
        return error
    if "on another rank" in found:
        return InvalidArgument(f"{what}: {error}")
    shards = ("if the columns are a shard of the vocabulary, pass group= (and vocab_start_index=, vocab_end_index= where "
              "shards are not in the order of the ranks)" if comm is None else
              "pass ids of the whole vocabulary, and the columns of each rank as vocab_start_index=, vocab_end_index=")
    return InvalidArgument(f"{what}: {found}; {shards}; ignore_index= is for targets without a result, outside='mask' "
                           "for the log-probability 0")


# ---- operators -----------------------------------------------------------------------------------------------------


def through_operator(tensor: Any) -> bool:
    """True if a graph is traced or a mode or subclass of tensors intercepts operators. They see calls through the
    dispatcher only. Otherwise calls bypass it, which saves its time.
    """
    return (_is_compiling() or _modes() > 0
            or type(tensor) is not torch.Tensor and type(tensor) is not torch.nn.Parameter
            and isinstance(tensor, torch.Tensor))


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


# Memory that operators take beside their results, for recordings of memory: from the arguments, the bytes of tensors that
# a call frees again, and those of each client's workspaces, which stay and are not of PyTorch's allocator, by a key.
Memory = Tuple[List[int], Dict[Hashable, int]]
MEMORY: Dict[Any, Callable[..., Memory]] = {}


def define(name: str, schema: str, run: Callable[..., Any], fake: Callable[..., Any], backward: Callable[..., Any],
           setup_context: Optional[Callable[..., None]] = None, *, memory: Callable[..., Memory]) -> Any:
    """Registers an operator of torch.ops.bucketpool, and returns it. memory: see MEMORY."""
    OPERATORS.define(f"{name}{schema}", tags=_TAGS)
    for kind in ("CPU", "CUDA"):
        OPERATORS.impl(name, run, kind)
    _library.register_fake(f"bucketpool::{name}", fake, lib=OPERATORS)
    _library.register_autograd(f"bucketpool::{name}", backward, setup_context=setup_context, lib=OPERATORS)
    operator: Any = getattr(torch.ops.bucketpool, name).default
    MEMORY[operator] = memory
    return operator


def workspaces(sizes: Iterable[int]) -> int:
    """Bytes that workspaces of these sizes take on a GPU."""
    return sum(-(-each // GRANULARITY) * GRANULARITY for each in sizes)


# The options of operators: how an operator takes them, and how Asked is made of them again.
SCHEMA = ("str what, int outputs, str group, SymInt? start, SymInt? end, SymInt? chunk, float temperature, "
          "int? ignore_index, float? soft_cap, ScalarType? round_to, str outside")


def for_operator(asked: Asked) -> Tuple[Tuple[Any, ...], MaybeTensor]:
    """The arguments of SCHEMA, and the temperatures of tokens."""
    temperature: Any = asked.temperature
    temperatures = None
    if isinstance(temperature, torch.Tensor):
        if temperature.dim() > 0:
            temperature, temperatures = 1.0, temperature
        else:
            temperature = temperature.item()
    return (asked.what, asked.outputs, name_of(asked.group), asked.start, asked.end, asked.chunk, temperature,
            asked.ignore_index, asked.soft_cap, asked.round_to, asked.outside), temperatures


def from_operator(given: Tuple[Any, ...], mask: MaybeTensor, temperatures: MaybeTensor) -> Asked:
    what, outputs, group, start, end, chunk, temperature, ignore_index, soft_cap, round_to, outside = given
    return Asked(what, outputs, group_of(group), start, end, chunk,
                 temperature if temperatures is None else temperatures, mask, ignore_index, soft_cap, round_to, outside)


def fake_outputs(like: torch.Tensor, shape: Any, target: MaybeTensor, outputs: int,
                 saves: bool) -> Tuple[torch.Tensor, ...]:
    """Outputs of a forward operator, then the first id of this rank and the size of the vocabulary; without elements where they are not wanted."""
    def new(wanted: int, size: Any) -> torch.Tensor:
        return like.new_empty(size if wanted else (0, ), dtype=torch.float32)

    return (new(outputs & LOGPROB, shape if target is None else target.shape), new(outputs & ENTROPY, shape),
            new(outputs & LOGSUMEXP, shape), new(outputs & MEAN_LOGPROB, shape),
            new(saves, (_floats(outputs, math.prod(shape)), )), torch.empty((2, ), dtype=torch.int64, device="cpu"))


def real_outputs(like: torch.Tensor, outputs: Outputs, start: int, vocab: int) -> Tuple[torch.Tensor, ...]:
    return (*[like.new_empty(0, dtype=torch.float32) if output is None else output for output in outputs],
            torch.tensor((start, vocab), dtype=torch.int64, device="cpu"))


def wanted(outputs: int, given: Any) -> Tuple[MaybeTensor, ...]:
    """The first four outputs of an operator; None where they are not wanted."""
    return tuple(output if outputs >> i & 1 else None for i, output in enumerate(given[:4]))


def refuse_second(what: str) -> Callable[..., Any]:
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise Unsupported(f"{what}: second derivatives are unsupported; differentiate once")

    return backward
