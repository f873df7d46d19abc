"""Models: parameters or given buckets in units, and the order in which they are used."""

import ctypes
from typing import Any, Iterable, List, NamedTuple, Optional, Sequence, Tuple

from . import _abi
from ._library import call, configured, core, formats, put
from .errors import InvalidArgument
from .handle import Handle, Owner
from .names import (DType, Path, decoded, dtype, dtype_name, encoded, encoded_path, lane, member, optional, role,
                    role_bits, role_name, role_names, whole)

OUTSIDE = None  # the unit of parameters outside units


class ModelHandle(Handle):
    destroy = "bp_model_destroy"


class Unit(NamedTuple):
    """A module whose parameters are gathered together."""

    name: str
    parent: Optional[int]  # index of the enclosing unit


class Parameter(NamedTuple):
    """As bp_parameter in model.h. `copies` parameters of this very shape; unit None: outside units."""

    name: str
    unit: Optional[int]
    shape: Tuple[int, ...]
    dtype: str
    copies: int
    frozen: bool
    gemm: bool
    prediction: bool
    joint: bool
    tp_dim: Optional[int]
    tp_parts: int
    expert_dim: Optional[int]


class GivenBucket(NamedTuple):
    """A bucket that a runtime made itself. padded_numel 0: the padding rule decides; roles (): every role that
    applies."""

    name: Optional[str]
    unit: Optional[int]
    dtype: str
    numel: int
    padded_numel: int
    expert: bool
    frozen: bool
    roles: Tuple[str, ...]


class Event(NamedTuple):
    """An event of a recorded schedule. bucket None: all of the unit; lane None: that of the role."""

    acquire: bool
    unit: int
    role: str
    bucket: Optional[int]
    lane: Optional[int]


def _unit(unit: Optional[int]) -> int:
    if unit is None or unit == _abi.BP_OUTSIDE:
        return _abi.BP_OUTSIDE
    return whole(unit, 31, "a unit")


def _dimension(value: Optional[int], what: str) -> int:
    return -1 if value is None or value == -1 else whole(value, 31, what)


def _of_unit(unit: int) -> Optional[int]:
    return None if unit < 0 else unit


class Model(Owner[ModelHandle]):
    """Units, their parameters or buckets, and possibly a recorded schedule. Not for several threads at once while it
    is built.

    Model("mine") is empty; Model.read() reads files."""

    def __init__(self, name: str) -> None:
        self._handle = ModelHandle()
        call(core().bp_model_create, encoded(name, "a model's name"), ctypes.byref(self._handle))

    @classmethod
    def _made(cls, function: Any, *arguments: Any) -> "Model":
        handle = ModelHandle()
        call(function, *arguments, ctypes.byref(handle))
        model = cls.__new__(cls)
        model._handle = handle
        return model

    @classmethod
    def read(cls, path: Path, name: Optional[str] = None, units: Optional[str] = None, dtype: DType = None) -> "Model":
        """Reads config.json, safetensors headers or units.json, or the folder of the first two.

        units: names of units of safetensors, with N for the number, as "layers.N,blocks.N". dtype: of config.json's
        parameters. Raises FileError, FormatError (naming line or JSON path), Unsupported (an unknown model_type)."""
        library = formats()
        options = configured(library.bp_reader_options_init, _abi.bp_reader_options, name=optional(name, "a name"),
                             units=optional(units, "units"), dtype=_dtype(dtype))
        return cls._made(library.bp_model_read, encoded_path(path), ctypes.byref(options))

    def add_unit(self, name: str, parent: Optional[int] = None) -> int:
        """Appends a unit in execution order; the index that it gets. parent: index of the enclosing unit."""
        index = ctypes.c_uint32()
        call(core().bp_model_add_unit, self.handle, encoded(name, "a unit's name"), _unit(parent), ctypes.byref(index))
        return index.value

    def add_parameter(self, name: str, shape: Sequence[int], dtype: DType, unit: Optional[int] = None,
                      frozen: bool = False, gemm: bool = False, expert_copies: int = 0, copies: int = 0,
                      prediction: bool = False, joint: bool = False, tp_dim: Optional[int] = None, tp_parts: int = 0,
                      expert_dim: Optional[int] = None) -> None:
        """Appends a parameter. unit None: outside units, gathered once and kept.

        expert_copies: so many experts of this shape, which expert parallelism splits; copies: so many parameters of
        this shape. The name then has one '*' for the number. gemm: a weight of matrix products, stored in fp8 where
        that is asked for. Raises InvalidArgument (unknown unit or dtype, a zero dimension), SizeOverflow."""
        lengths = [whole(length, 64, f"a dimension of {name}") for length in shape]
        if len(lengths) > _abi.BP_MAX_DIMS:
            raise InvalidArgument(
                f"parameter {name} has {len(lengths)} dimensions; at most {_abi.BP_MAX_DIMS} are possible")
        if copies and expert_copies:
            raise InvalidArgument(
                f"parameter {name} has {copies} copies and {expert_copies} expert copies: it is one or the other")
        flags = (_abi.BP_PARAMETER_FROZEN * bool(frozen) | _abi.BP_PARAMETER_GEMM * bool(gemm)
                 | _abi.BP_PARAMETER_PREDICTION * bool(prediction) | _abi.BP_PARAMETER_JOINT * bool(joint)
                 | _abi.BP_PARAMETER_EXPERT_COPIES * bool(expert_copies))
        struct = configured(core().bp_parameter_init, _abi.bp_parameter, name=encoded(name, "a parameter's name"),
                            unit=_unit(unit), dims=len(lengths), dtype=_dtype(dtype), flags=flags,
                            copies=whole(expert_copies or copies, 32, "copies"), tp_dim=_dimension(tp_dim, "tp_dim"),
                            tp_parts=whole(tp_parts, 32, "tp_parts"), expert_dim=_dimension(expert_dim, "expert_dim"))
        for index, length in enumerate(lengths):
            struct.shape[index] = length
        call(core().bp_model_add_parameter, self.handle, ctypes.byref(struct))

    def add_bucket(self, unit: Optional[int], dtype: DType, numel: int, name: Optional[str] = None,
                   padded_numel: int = 0, expert: bool = False, frozen: bool = False,
                   roles: Iterable[Any] = ()) -> None:
        """Appends a bucket as a runtime made it: `numel` elements, `padded_numel` with padding (0: the padding rule
        decides).

        roles: which of the roles asked for it has; (): all that apply. Raises InvalidArgument, SizeOverflow."""
        struct = _abi.bp_given_bucket()
        for field, value in (("name", optional(name,
                                               "a bucket's name")), ("unit", _unit(unit)), ("dtype", _dtype(dtype)),
                             ("numel", whole(numel, 64,
                                             "numel")), ("padded_numel", whole(padded_numel, 64, "padded_numel")),
                             ("expert", int(bool(expert))), ("frozen", int(bool(frozen))), ("roles", role_bits(roles))):
            put(struct, field, value)
        call(core().bp_model_add_bucket, self.handle, ctypes.byref(struct))

    def add_event(self, acquire: bool, unit: int, role: Any, bucket: Optional[int] = None, lane: Any = None) -> None:
        """Appends an event of the schedule that the model brings along, in the order in which the host issues them.

        bucket: ordinal in the unit, None: all. lane: name or number, None: that of the role."""
        struct = _abi.bp_model_event(acquire=int(bool(acquire)), unit=_unit(unit),
                                     bucket=_dimension(bucket, "a bucket"), role=_role(role), lane=_lane(lane))
        call(core().bp_model_add_event, self.handle, ctypes.byref(struct))

    def set_order(self, units: Sequence[int]) -> None:
        """In which order units run forward; one may appear several times. Raises InvalidArgument (a unit missing)."""
        array = (ctypes.c_uint32 * len(units))(*[whole(unit, 32, "a unit") for unit in units])
        call(core().bp_model_set_order, self.handle, array, len(units))

    def with_layout(self, layout: str) -> "Model":
        """A copy with the modules of "hf" (the published code) or "megatron" (what Megatron-Core builds from it)."""
        return self._made(core().bp_model_with_layout, self.handle, member("BP_LAYOUT_", layout, "layout"))

    def shard(self, tp: int = 1, ep: int = 1) -> "Model":
        """What a rank of tp tensor-parallel and ep expert-parallel ranks holds, before it is sharded over dp.

        Raises InvalidArgument (a size that tp or ep does not divide), Unsupported (tp > 1 where the model knows of no
        splits)."""
        return self._made(core().bp_model_shard, self.handle, whole(tp, 32, "tp"), whole(ep, 32, "ep"))

    def validate(self) -> None:
        """Raises InvalidArgument where a name is there twice, or nothing at all."""
        call(core().bp_model_validate, self.handle)

    def write_units(self, path: Path) -> None:
        """Writes the model as bucketpool.units/1, whole or not at all. Raises FileError, InvalidArgument."""
        call(formats().bp_units_write, self.handle, encoded_path(path))

    @property
    def name(self) -> str:
        handle = self.handle
        return decoded(core().bp_model_get_info(handle).contents.name)

    @property
    def units(self) -> List[Unit]:
        handle = self.handle
        info = core().bp_model_get_info(handle).contents
        return [Unit(decoded(unit.name), _of_unit(unit.parent)) for unit in info.units[:info.unit_count]]

    @property
    def parameters(self) -> List[Parameter]:
        handle = self.handle
        info = core().bp_model_get_info(handle).contents
        return [_parameter(parameter) for parameter in info.parameters[:info.parameter_count]]

    @property
    def buckets(self) -> List[GivenBucket]:
        """Those of add_bucket."""
        handle = self.handle
        info = core().bp_model_get_info(handle).contents
        return [
            GivenBucket(None if b.name is None else decoded(b.name), _of_unit(b.unit), dtype_name(b.dtype), b.numel,
                        b.padded_numel, bool(b.expert), bool(b.frozen), tuple(role_names(b.roles)))
            for b in info.given_buckets[:info.given_bucket_count]
        ]

    @property
    def events(self) -> List[Event]:
        """Of the schedule that the model brings along."""
        handle = self.handle
        info = core().bp_model_get_info(handle).contents
        return [
            Event(bool(e.acquire), e.unit, role_name(e.role), None if e.bucket < 0 else e.bucket,
                  None if e.lane == _abi.BP_MODEL_EVENT_NO_LANE else e.lane) for e in info.events[:info.event_count]
        ]

    @property
    def order(self) -> List[int]:
        """In which units run forward, as set or by default."""
        handle = self.handle
        info = core().bp_model_get_info(handle).contents
        return list(info.order[:info.order_count])

    @property
    def notes(self) -> List[str]:
        """Sentences about parts of the file that are not counted: a vision tower, prediction layers that no table knows."""
        handle = self.handle
        info = core().bp_model_get_info(handle).contents
        return [decoded(note) for note in info.notes[:info.note_count]]

    @property
    def numel(self) -> int:
        """Elements of all parameters and given buckets, without multi-token prediction layers."""
        handle = self.handle
        return int(core().bp_model_get_info(handle).contents.numel)

    def __repr__(self) -> str:
        if self.closed:
            return "<Model, closed>"
        return f"<Model {self.name!r}: {len(self.units)} units, {self.numel} elements>"


def _parameter(p: _abi.bp_parameter) -> Parameter:
    return Parameter(decoded(p.name), _of_unit(p.unit), tuple(p.shape[:p.dims]), dtype_name(p.dtype), p.copies,
                     bool(p.flags & _abi.BP_PARAMETER_FROZEN), bool(p.flags & _abi.BP_PARAMETER_GEMM),
                     bool(p.flags & _abi.BP_PARAMETER_PREDICTION), bool(p.flags & _abi.BP_PARAMETER_JOINT),
                     _of_unit(p.tp_dim), p.tp_parts, _of_unit(p.expert_dim))


# Arguments of these names hide the functions.
_dtype, _role, _lane = dtype, role, lane
