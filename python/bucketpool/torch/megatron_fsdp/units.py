# SPDX-License-Identifier: Apache-2.0
"""The buckets and units of Megatron-FSDP as a bucketpool model: a bucket for each parameter group."""

import dataclasses
import shlex
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import torch

from ...buckets import Buckets
from ...errors import InvalidArgument, Unsupported
from ...model import Model
from ...plan import Plan
from ...schedule import Schedule

FP8 = "float8"  # Megatron-FSDP's dtype of parameters that are fp8 tensors of Transformer Engine

DTYPES: Dict[Any, str] = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16", torch.float64: "fp64",
                          torch.uint8: "uint8", torch.int8: "int8", torch.float8_e4m3fn: "fp8_e4m3",
                          torch.float8_e5m2: "fp8_e5m2", FP8: "fp8_e4m3"}

ITEM_BYTES = {name: torch.empty(0, dtype=dtype).element_size() for dtype, name in DTYPES.items() if dtype != FP8}

ROLES = ("param", "param_transpose", "grad", "grad_comm")
STATE_ROLES = ("state", "main_grad", "optimizer")


def dtype_name(dtype: Any, whose: str) -> str:
    """The library's name of a torch dtype or of Megatron-FSDP's "float8". Raises InvalidArgument."""
    name = DTYPES.get(dtype)
    if name is None:
        known = ", ".join(sorted(str(each) for each in DTYPES))
        raise InvalidArgument(f"{whose}: unsupported dtype {dtype}; use one of {known}")
    return name


def bucket_name(bucket_id: int) -> str:
    """The name of a bucket in units.json and in plans: its id in Megatron-FSDP."""
    return f"id.{bucket_id}"


def bucket_id_of(name: Optional[str]) -> Optional[int]:
    """The id in a name of bucket_name(); None for other names."""
    if name is None or not name.startswith("id.") or not name[3:].isdigit():
        return None
    return int(name[3:])


@dataclasses.dataclass(frozen=True)
class Group:
    """A parameter group, which is one bucket. roles: those whose memory comes from a temporary allocator."""

    bucket_id: int
    unit: Optional[int]  # fsdp_unit_id, None outside units
    dtype: str
    grad_dtype: Optional[str]  # dtype of the reduce-scatter
    numel: int
    padded_numel: int
    expert: bool
    frozen: bool
    roles: Tuple[str, ...]
    shards: int  # ranks that it is sharded over
    comm_numel: int  # elements of the copy for the outer reduce-scatter of hybrid sharding

    def bytes(self, role: str) -> int:
        """Bytes of the bucket in a role."""
        numel = self.comm_numel if role == "grad_comm" else self.padded_numel
        dtype = self.grad_dtype if role in ("grad", "grad_comm") else self.dtype
        return numel * ITEM_BYTES[dtype] if dtype is not None else 0


def unit_ids(groups: Sequence[Any]) -> List[int]:
    """The units that parameter groups belong to."""
    return sorted({group.fsdp_unit_id for group in groups if group.fsdp_unit_id is not None})


def _distributed(*buffers: Any) -> bool:
    return any(buffer is not None and buffer.is_data_distributed for buffer in buffers)


def _gradient_roles(group: Any, grad_dtype: torch.dtype) -> List[str]:
    """Gradient roles with temporary memory: "grad" if gradients are sharded or communicated in another dtype, and
    "grad_comm" if hybrid sharding reduces a copy of its shard in another dtype.
    """
    buffer = group.hfsdp_helper_gbuf or group.main_grad_buffer
    if buffer is None:
        return []
    cast = grad_dtype != buffer.dtype
    roles = ["grad"] if _distributed(buffer) or cast else []
    return roles + (["grad_comm"] if group.hsdp_comm_gbuf is not None and cast else [])


def _read(bucket_id: int, group: Any, grad_dtype_of: Callable[[Any], torch.dtype]) -> Group:
    whose = f"parameter group {bucket_id}"
    weight, gradient = group.model_weight_buffer, group.main_grad_buffer
    numel = sum(_local(parameter).numel() for parameter in group.params)
    measured = weight or gradient
    roles = ["param"] if _distributed(group.hfsdp_helper_wbuf, weight) else []
    roles += ["param_transpose"] if _distributed(group.hfsdp_helper_wtbuf, group.transpose_weight_buffer) else []
    grad_dtype = grad_dtype_of(group) if gradient is not None else None
    roles += _gradient_roles(group, grad_dtype) if grad_dtype is not None else []
    outer = group.hsdp_comm_gbuf
    comm = 0
    if outer is not None:
        comm = outer.shard_bucket_index.size if outer.is_data_distributed else outer.bucket_index.size
    inner = outer or group.hfsdp_helper_wbuf or measured  # a rank's shard is of the inner ranks
    return Group(bucket_id, group.fsdp_unit_id, dtype_name(group.dtype, whose),
                 dtype_name(grad_dtype, whose) if grad_dtype is not None else None, numel,
                 measured.bucket_index.size if measured is not None else numel, bool(group.is_expert_param),
                 not group.requires_grad, tuple(roles), inner.dp_world_size if inner is not None else 1, comm)


def _local(parameter: torch.Tensor) -> torch.Tensor:
    return parameter.to_local() if hasattr(parameter, "to_local") else parameter


def _common_path(names: Sequence[str]) -> str:
    """The path of the innermost module that contains all these parameters."""
    paths = [name.split(".")[:-1] for name in names]
    common = paths[0] if paths else []
    for path in paths[1:]:
        same = [index for index, part in enumerate(common) if index >= len(path) or path[index] != part]
        common = common[:same[0]] if same else common
    return ".".join(common)


def _unit_names(groups: Sequence[Any], name_of: Optional[Callable[[Any], Optional[str]]]) -> Dict[int, str]:
    of_unit: Dict[int, List[str]] = {}
    for group in groups:
        if group.fsdp_unit_id is not None:
            names = [name_of(parameter) for parameter in group.params] if name_of is not None else []
            of_unit.setdefault(group.fsdp_unit_id, []).extend(name for name in names if name)
    paths = {unit: _common_path(names) for unit, names in of_unit.items()}
    alone = [path for path in paths.values() if path and list(paths.values()).count(path) == 1]
    return {unit: path if path in alone else f"unit.{unit}" for unit, path in paths.items()}


class Units:
    """Buckets and units of a module that Megatron-FSDP has wrapped, for the planner. Made by describe().

    Attributes: model (with given buckets, named by their ids); roles, grad_dtype, dp, ep (options of planning that
    units.json does not contain); groups (the parameter groups); buffers (fsdp_buffer_count).
    """

    def __init__(self, groups: Sequence[Group], unit_names: Dict[int, str], name: str, buffers: int = 2) -> None:
        self.groups, self.buffers = list(groups), buffers
        self._unit_names = unit_names
        inside = [group for group in self.groups if group.unit is not None]
        self.roles = tuple(role for role in ROLES
                           if any(role in group.roles for group in inside))
        if not self.roles:
            raise Unsupported(
                "nothing to pool: no unit of this module is sharded over more than one rank; use strategy "
                "optim_grads or optim_grads_params, with units in fsdp_unit_modules"
            )
        self.grad_dtype = self._gradients(inside)
        self.dp, self.ep = self._ranks()
        self._buckets: Optional[Buckets] = None
        self.model = Model(name)
        units = sorted({group.unit for group in self.groups if group.unit is not None})
        index = {unit: self.model.add_unit(unit_names[unit]) for unit in units}
        for group in self.groups:
            outside = group.unit is None
            roles = group.roles + (STATE_ROLES if "param" in group.roles else ())
            if outside or group.roles:
                self.model.add_bucket(None if group.unit is None else index[group.unit], group.dtype, group.numel,
                                      name=bucket_name(group.bucket_id), padded_numel=group.padded_numel,
                                      expert=group.expert, frozen=group.frozen, roles=() if outside else roles)

    def with_requests(self, asked: Dict[Tuple[str, int], Tuple[int, torch.dtype]]) -> "Units":
        """Units in which buckets have the elements and dtypes that were asked for, by role and id.

        Raises InvalidArgument (an unknown dtype), Unsupported (gradients of several dtypes).
        """
        groups = list(self.groups)
        for (role, bucket_id), (numel, dtype) in asked.items():
            group, name = groups[bucket_id], dtype_name(dtype, f"{role} bucket {bucket_id}")
            changes: Dict[str, Any] = {"roles": tuple(each for each in ROLES if each == role or each in group.roles)}
            changes["grad_dtype" if role in ("grad", "grad_comm") else "dtype"] = name
            size = "comm_numel" if role == "grad_comm" else "padded_numel"
            changes[size] = max(getattr(group, size), numel)
            groups[bucket_id] = dataclasses.replace(group, **changes)
        return Units(groups, self._unit_names, self.model.name, self.buffers)

    @staticmethod
    def _gradients(groups: Sequence[Group]) -> Optional[str]:
        """The dtype of all gradients; None if each has the dtype of its parameters (bf16 for fp8)."""
        made = [(group.dtype, group.grad_dtype) for group in groups if group.grad_dtype is not None]
        if all(grad == ("bf16" if dtype.startswith("fp8") else dtype) for dtype, grad in made):
            return None
        dtypes = sorted({grad for _, grad in made})
        if len(dtypes) > 1:
            raise Unsupported(
                f"gradients of {', '.join(dtypes)} in one module: unsupported unless each has the dtype of "
                "its parameters; set main_grads_dtype or grad_comm_dtype"
            )
        return dtypes[0]

    def _ranks(self) -> Tuple[int, int]:
        """Data- and expert-parallel ranks (dp, ep) that give each bucket its shards, and the copy of "grad_comm" its
        size.
        """
        if any("grad_comm" in group.roles and group.comm_numel == group.padded_numel for group in self.groups):
            return 1, 1  # gradients are not sharded: the copy is a whole bucket
        dense = [group.shards for group in self.groups if not group.expert]
        expert = [group.shards for group in self.groups if group.expert]
        if dense and expert and max(dense) % max(expert) == 0:
            return max(dense), max(dense) // max(expert)
        return max(dense + expert), 1

    def outside_bytes(self, role: str) -> int:
        """Bytes of pool memory for all buckets outside units in a role, each rounded up to 256."""
        return sum((group.bytes(role) + 255) // 256 * 256 for group in self.groups
                   if group.unit is None and role in group.roles)

    @property
    def buckets(self) -> Buckets:
        """The buckets and requests, as input of the planner."""
        if self._buckets is None:
            self._buckets = Buckets(self.model, bucketing="given", padding="given", dp=self.dp, ep=self.ep,
                                    roles=self.roles, grad_dtype=self.grad_dtype)
        return self._buckets

    def schedule(self, **options: Any) -> Schedule:
        """The schedule of Megatron-FSDP's step with its number of buffers: one unit is used, the others are gathered
        ahead. options: those of Schedule.training.
        """
        return Schedule.training(self.buckets, **{"prefetch": self.buffers - 1, "grad_units": self.buffers, **options})

    def plan(self, policy: str = "scheduled", schedule: Optional[Schedule] = None, **options: Any) -> Plan:
        """A plan for a schedule of these buckets; None: schedule(). options: those of Plan, except joint."""
        return Plan(self.buckets, self.schedule() if schedule is None else schedule, policy=policy, **options)

    def command(self, path: str, policy: str = "scheduled") -> str:
        """The command that plans the units.json at `path` with the options of this module."""
        words = ["bucketpool", "plan", shlex.quote(path), "--bucketing", "given", "--padding", "given"]
        words += ["--dp", str(self.dp)]
        words += ["--ep", str(self.ep)] if self.ep > 1 else []
        words += ["--grad-dtype", self.grad_dtype] if self.grad_dtype else []
        words += ["--prefetch", str(self.buffers - 1), "--grad-units", str(self.buffers)] if self.buffers != 2 else []
        return " ".join(words + ["--roles", ",".join(self.roles), "--policy", policy, "-o", "plan.json"])

    def write(self, path: str) -> str:
        """Writes units.json and returns the command that plans it. Raises FileError."""
        self.model.write_units(path)
        return self.command(path)


def describe(module: Any, name: str = "megatron_fsdp",
             grad_dtype_of: Optional[Callable[[Any], torch.dtype]] = None, buffers: Optional[int] = None) -> Units:
    """Describes the buckets of a module that Megatron-FSDP has wrapped, for the planner.

    - module: a MegatronFSDP, an object with a param_and_grad_buffer, that buffer, or a list of its parameter groups
    - name: of the model
    - grad_dtype_of: function from a group to the dtype in which its gradients are communicated; None: grad_comm_dtype
      of the mixed-precision policy, else the group's grad_dtype
    - buffers: units in memory at once; None: fsdp_buffer_count of the module, 2 for versions without it

    Raises InvalidArgument (another module, an unknown dtype), Unsupported (nothing is sharded).
    """
    buffer = getattr(module, "param_and_grad_buffer", module)
    groups = getattr(buffer, "parameter_groups", buffer)
    if not isinstance(groups, (list, tuple)) or not all(hasattr(group, "fsdp_unit_id") for group in groups):
        raise InvalidArgument(
            f"{type(module).__name__}: no parameter groups; pass the result of fully_shard_model(), or "
            "its param_and_grad_buffer"
        )
    policy = getattr(buffer, "mp_policy", None)
    comm = policy.grad_comm_dtype if policy is not None else None
    if grad_dtype_of is None:
        grad_dtype_of = (lambda group: comm) if comm is not None else (lambda group: group.grad_dtype)
    names = {id(parameter): text for parameter, text in getattr(buffer, "param_to_name", {}).items()}
    read = [_read(bucket_id, group, grad_dtype_of) for bucket_id, group in enumerate(groups)]
    if buffers is None:
        buffers = getattr(getattr(buffer, "ddp_config", None), "fsdp_buffer_count", 2)
    return Units(read, _unit_names(groups, lambda parameter: names.get(id(parameter))), name, buffers)
