# SPDX-License-Identifier: Apache-2.0
"""Models: units with parameters or given buckets, and the order in which units run."""

import ctypes
import json
import os
import sys
from typing import Any, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

from . import _abi
from ._library import call, configured, core, formats, put
from .errors import InvalidArgument
from .handle import Handle, Owner
from .names import (DType, Path, decoded, dtype, dtype_name, encoded, encoded_path, flag, lane, list_of, member,
                    optional, role, role_bits, role_name, role_names, utf8, whole)

__all__ = ["Event", "GivenBucket", "Model", "OUTSIDE", "Parameter", "Unit"]

OUTSIDE = None  # the unit of persistent parameters


class ModelHandle(Handle, _abi.bp_model):
    destroy = "bp_model_destroy"


class Unit(NamedTuple):
    """An FSDP unit: a module whose parameters are gathered together. parent: index of the enclosing unit."""

    name: str
    parent: Optional[int]


class Parameter(NamedTuple):
    """A parameter, as bp_parameter in model.h; Model.add_parameter describes the fields.

    copies: number of parameters of this shape. unit None: persistent.
    """

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
    """A bucket with a given size. padded_numel 0: by the padding rule; roles (): all roles that apply."""

    name: Optional[str]
    unit: Optional[int]
    dtype: str
    numel: int
    padded_numel: int
    expert: bool
    frozen: bool
    roles: Tuple[str, ...]


class Event(NamedTuple):
    """An event of a recorded schedule. bucket None: all buckets of the unit; lane None: the lane of the role."""

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


def _model_folders() -> bytes:
    """Folders of bundled models: of BUCKETPOOL_MODELS, of a wheel, of the source tree, of an installation."""
    package = os.path.dirname(os.path.abspath(__file__))
    folders = [os.path.join(package, "models"), os.path.join(package, os.pardir, os.pardir, "examples", "models"),
               *(os.path.join(root, "share", "bucketpool", "models") for root in (sys.prefix, "/usr/local", "/usr"))]
    found = [os.path.realpath(folder) for folder in folders if os.path.isdir(folder)]
    return os.fsencode(":".join(filter(None, [os.environ.get("BUCKETPOOL_MODELS", ""), *dict.fromkeys(found)])))


class Model(Owner[ModelHandle]):
    """A model: units, their parameters or buckets, and possibly a recorded schedule.

    Model.read() reads a file; Model("mine") is empty, for add_unit and add_parameter. One thread builds a model;
    several may read it afterwards.

        model = Model("two layers")
        for layer in range(2):
            unit = model.add_unit(f"layers.{layer}")
            model.add_parameter(f"layers.{layer}.weight", [4096, 1024], "bf16", unit)
    """

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
    def read(cls, path: Path, name: Optional[str] = None, units: Optional[str] = None, dtype: DType = None,
             strict: bool = False) -> "Model":
        """Reads config.json, safetensors headers or units.json, or a folder with one of the first two.

        - path: also a model of the local cache of the Hugging Face hub ("meta-llama/Llama-3.1-8B"; nothing is
          downloaded), or a bundled model by its repository or its folder ("Llama-3.1-8B")
        - name: name of the model; None: that of the file or folder
        - units: patterns of unit names in safetensors, N for the number, such as "layers.N,blocks.N"
        - dtype: dtype of the parameters of config.json
        - strict: refuse a config.json of which the model would leave out parts or unread fields, instead of a note

        Raises FileError, FormatError (with the line or JSON path), Unsupported (an unknown model_type, or strict).
        """
        library, given, found = formats(), encoded_path(path), ctypes.create_string_buffer(4096)
        call(library.bp_model_find, given, _model_folders(), found, len(found))
        if found.value != given and name is None:  # snapshots of the cache are named by their commits
            name = os.fsdecode(given).rpartition("/")[2]
        options = configured(library.bp_reader_options_init, _abi.bp_reader_options, name=optional(name, "a name"),
                             units=optional(units, "units"), dtype=_dtype(dtype), strict=flag(strict, "strict"))
        return cls._made(library.bp_model_read, found.value, ctypes.byref(options))

    @classmethod
    def parse(cls, document: Union[str, bytes, Mapping[str, Any]], origin: str = "config.json",
              name: Optional[str] = None, dtype: DType = None, strict: bool = False) -> "Model":
        """Parses a Hugging Face configuration or a bucketpool.units/1 document: text, or a dictionary such as that of
        PretrainedConfig.to_dict().

        origin: name of the document in errors, and of the model without `name`; the rest as in read(). Raises
        FormatError, Unsupported.
        """
        text = document if isinstance(document, (str, bytes)) else json.dumps(document, default=str)
        data = utf8(text, "document") if isinstance(text, str) else text
        library = formats()
        options = configured(library.bp_reader_options_init, _abi.bp_reader_options, name=optional(name, "a name"),
                             dtype=_dtype(dtype), strict=flag(strict, "strict"))
        function = library.bp_units_parse if b'"bucketpool.units/' in data else library.bp_config_parse
        return cls._made(function, data, len(data), encoded(origin, "an origin"), ctypes.byref(options))

    def add_note(self, note: str) -> None:
        """Appends a note about parts that the model leaves out; see notes."""
        call(core().bp_model_add_note, self.handle, encoded(note, "a note"))

    def add_unit(self, name: str, parent: Optional[int] = None) -> int:
        """Appends a unit in execution order and returns its index. parent: index of the enclosing unit."""
        index = ctypes.c_uint32()
        call(core().bp_model_add_unit, self.handle, encoded(name, "a unit's name"), _unit(parent), ctypes.byref(index))
        return index.value

    def add_parameter(self, name: str, shape: Sequence[int], dtype: DType, unit: Optional[int] = None,
                      frozen: bool = False, gemm: bool = False, expert_copies: int = 0, copies: int = 0,
                      prediction: bool = False, joint: bool = False, tp_dim: Optional[int] = None, tp_parts: int = 0,
                      expert_dim: Optional[int] = None) -> None:
        """Appends a parameter.

        - unit: index; None: a persistent parameter, outside units, gathered once and kept
        - frozen: no gradient
        - gemm: a weight of a matrix multiplication, stored in fp8 with an fp8 param_dtype
        - copies, expert_copies: number of parameters of this shape; expert parallelism distributes expert
          copies. The name then has one '*' for the number.
        - prediction, joint: part of a multi-token prediction layer; connects one to the model
        - tp_dim, tp_parts: dimension that tensor parallelism splits, and the number of parts
        - expert_dim: dimension that expert parallelism splits

        Raises InvalidArgument (an unknown unit or dtype, a zero dimension), SizeOverflow.
        """
        lengths = [whole(length, 64, f"a dimension of {name}") for length in list_of(shape, "shape")]
        if len(lengths) > _abi.BP_MAX_DIMS:
            raise InvalidArgument(
                f"parameter {name}: {len(lengths)} dimensions; merge some, at most {_abi.BP_MAX_DIMS} are supported")
        if copies and expert_copies:
            raise InvalidArgument(
                f"parameter {name}: copies is {copies} and expert_copies is {expert_copies}; pass one of them")
        flags = (_abi.BP_PARAMETER_FROZEN * flag(frozen, "frozen") | _abi.BP_PARAMETER_GEMM * flag(gemm, "gemm")
                 | _abi.BP_PARAMETER_PREDICTION * flag(prediction, "prediction")
                 | _abi.BP_PARAMETER_JOINT * flag(joint, "joint")
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
        """Appends a given bucket with `numel` elements, or `padded_numel` with padding (0: by the padding rule).

        roles: possible roles; (): all that apply. Raises InvalidArgument, SizeOverflow.
        """
        struct = _abi.bp_given_bucket()
        for field, value in (("name", optional(name,
                                               "a bucket's name")), ("unit", _unit(unit)), ("dtype", _dtype(dtype)),
                             ("numel", whole(numel, 64,
                                             "numel")), ("padded_numel", whole(padded_numel, 64, "padded_numel")),
                             ("expert", flag(expert, "expert")), ("frozen", flag(frozen, "frozen")),
                             ("roles", role_bits(roles))):
            put(struct, field, value)
        call(core().bp_model_add_bucket, self.handle, ctypes.byref(struct))

    def add_event(self, acquire: bool, unit: int, role: Any, bucket: Optional[int] = None, lane: Any = None) -> None:
        """Appends an event to the recorded schedule, in the order in which the host issues events.

        bucket: ordinal in the unit; None: all. lane: name or number; None: the lane of the role.
        """
        struct = _abi.bp_model_event(acquire=flag(acquire, "acquire"), unit=_unit(unit),
                                     bucket=_dimension(bucket, "a bucket"), role=_role(role), lane=_lane(lane))
        call(core().bp_model_add_event, self.handle, ctypes.byref(struct))

    def set_order(self, units: Sequence[int]) -> None:
        """Sets the order in which units run forward. A unit may appear several times. Raises InvalidArgument (a
        missing unit).
        """
        numbers = [whole(unit, 32, "units") for unit in list_of(units, "units")]
        array = (ctypes.c_uint32 * len(numbers))(*numbers)
        call(core().bp_model_set_order, self.handle, array, len(units))

    def with_layout(self, layout: str) -> "Model":
        """Copies the model in another module layout: "hf" (the published code), "megatron" (Megatron-Core) or "stacked"
        (transformers 5).
        """
        return self._made(core().bp_model_with_layout, self.handle, member("BP_LAYOUT_", layout, "layout"))

    def shard(self, tp: int = 1, ep: int = 1) -> "Model":
        """The model of one rank of tp tensor-parallel and ep expert-parallel ranks, before data-parallel
        sharding.

        Raises InvalidArgument (tp or ep does not divide a size), Unsupported (tp > 1, and no parameter says
        how it splits).
        """
        return self._made(core().bp_model_shard, self.handle, whole(tp, 32, "tp"), whole(ep, 32, "ep"))

    def validate(self) -> None:
        """Checks the finished model. Raises InvalidArgument (a duplicate name, an empty model)."""
        call(core().bp_model_validate, self.handle)

    def write_units(self, path: Path) -> None:
        """Writes the model as bucketpool.units/1, atomically. Raises FileError, InvalidArgument."""
        call(formats().bp_units_write, self.handle, encoded_path(path))

    @property
    def name(self) -> str:
        handle = self.handle
        return decoded(core().bp_model_get_info(handle).contents.name)

    @property
    def units(self) -> List[Unit]:
        """The units in the order of add_unit."""
        handle = self.handle
        info = core().bp_model_get_info(handle).contents
        return [Unit(decoded(unit.name), _of_unit(unit.parent)) for unit in info.units[:info.unit_count]]

    @property
    def parameters(self) -> List[Parameter]:
        """The parameters in the order of add_parameter."""
        handle = self.handle
        info = core().bp_model_get_info(handle).contents
        return [_parameter(parameter.contents) for parameter in info.parameters[:info.parameter_count]]

    @property
    def buckets(self) -> List[GivenBucket]:
        """The given buckets, in the order of add_bucket."""
        handle = self.handle
        info = core().bp_model_get_info(handle).contents
        return [
            GivenBucket(None if b.name is None else decoded(b.name), _of_unit(b.unit), dtype_name(b.dtype), b.numel,
                        b.padded_numel, bool(b.expert), bool(b.frozen), tuple(role_names(b.roles)))
            for b in (each.contents for each in info.given_buckets[:info.given_bucket_count])
        ]

    @property
    def events(self) -> List[Event]:
        """Events of the recorded schedule; [] without one."""
        handle = self.handle
        info = core().bp_model_get_info(handle).contents
        return [
            Event(bool(e.acquire), e.unit, role_name(e.role), None if e.bucket < 0 else e.bucket,
                  None if e.lane == _abi.BP_MODEL_EVENT_NO_LANE else e.lane) for e in (each.contents for each in info.events[:info.event_count])
        ]

    @property
    def order(self) -> List[int]:
        """Indices of units in forward order, as set or by default."""
        handle = self.handle
        info = core().bp_model_get_info(handle).contents
        return list(info.order[:info.order_count])

    @property
    def notes(self) -> List[str]:
        """Notes about parts of the file that are not counted, such as a vision tower or unknown prediction
        layers.
        """
        handle = self.handle
        info = core().bp_model_get_info(handle).contents
        return [decoded(note) for note in info.notes[:info.note_count]]

    @property
    def published(self) -> bool:
        """True if it was read from a config.json or safetensors, whose experts a runtime may stack
        (with_layout("stacked")).
        """
        handle = self.handle
        return bool(core().bp_model_get_info(handle).contents.published)

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
