"""The communication buffers of a fully_shard'ed module: one of each kind for a group of parameters.

FSDP2 has public setters for its communication objects but no getters, and does not expose its groups. Only
this module reads them from the state that fully_shard leaves on its modules, as in PyTorch 2.9 to 2.15.
Differences between versions are detected by attributes, not by the version number.
"""

import dataclasses
import functools
import re
from typing import Any, Dict, List, Optional, Tuple

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule

from ...errors import InvalidArgument, Mismatch, Unsupported
from ...names import dtype as library_dtype
from ..memory import with_index

# 2.11.0, 2.12.1, 2.13.0, 2.14.0 and 2.15.0 were read and run, 2.9.1 and 2.10.0 read. docs/guides/fsdp2.md: what differs.
KNOWN_VERSIONS = ((2, 9), (2, 10), (2, 11), (2, 12), (2, 13), (2, 14), (2, 15))
ROOT = "(root)"


@dataclasses.dataclass(eq=False)
class Group:
    """Parameters that FSDP2 communicates together, with the elements of whole buffers over all ranks; 0: no such
    collective.
    """

    name: str  # of its first module, in the root; "NAME[0]", "NAME[1]" where the module has several
    module: Any  # an FSDPModule
    ranks: int
    device: torch.device
    gather_numel: int
    gather_dtype: Optional[torch.dtype]  # None: extensions of the parameters decide (float8), only a recording tells
    reduce_numel: int  # when every parameter has a gradient; a step in which some have none reduces less
    reduce_dtype: Optional[torch.dtype]  # None with elements: that of the gradients, only a recording tells
    all_gather: Any  # the communication objects that it has
    reduce_scatter: Any
    handle: Any  # FSDP2's own object
    state: Any
    index: int = 0  # among the groups of its module
    siblings: int = 1  # how many these are


def _version(version: Tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"


def check_version(any_version: bool = False) -> None:
    """Raises Unsupported for a PyTorch whose FSDP2 has not been read; any_version: at the caller's risk."""
    found = re.match(r"(\d+)\.(\d+)", torch.__version__)
    version = (int(found.group(1)), int(found.group(2))) if found else (0, 0)
    if version not in KNOWN_VERSIONS and not any_version:
        known = ", ".join(map(_version, KNOWN_VERSIONS))
        raise Unsupported(f"PyTorch {torch.__version__}: when FSDP2 is done with a buffer is known of {known}. Use one "
                          "of these, or pass any_version=True and compare losses with and without the pool first")


def _field(owner: Any, name: str) -> Any:
    try:
        return getattr(owner, name)
    except AttributeError:
        raise Unsupported(f"FSDP2 of PyTorch {torch.__version__} has no {type(owner).__name__}.{name}: this adapter "
                          f"cannot see what it does. Use PyTorch {_version(KNOWN_VERSIONS[0])} to "
                          f"{_version(KNOWN_VERSIONS[-1])}") from None


def _device(device: torch.device) -> torch.device:
    if device.type == "cpu":
        return torch.device("cpu")
    if device.type == "cuda":
        return with_index(device)
    raise Unsupported(f"a module on {device} cannot have a pool: bucketpool has memory of CPUs and of CUDA's GPUs")


def _only(dtypes: List[torch.dtype]) -> torch.dtype:
    return dtypes[0] if len(set(dtypes)) == 1 else torch.uint8


def _gathered(parameters: List[Any], ranks: int) -> Tuple[int, Optional[torch.dtype]]:
    """Elements and dtype of the all-gather's output: mixed dtypes are packed as bytes."""
    if any(hasattr(_field(p, "_sharded_local_tensor"), "fsdp_pre_all_gather") for p in parameters):
        return 0, None
    dtypes = [_field(p, "mp_policy").param_dtype or p.sharded_param.dtype for p in parameters]
    dtype = _only(dtypes)
    numels = [_field(p, "padded_sharded_param_size").numel() for p in parameters]
    if dtype == torch.uint8:
        numels = [numel * d.itemsize for numel, d in zip(numels, dtypes)]
    return ranks * sum(numels), dtype


def _reduce_dtype(parameter: Any) -> Optional[torch.dtype]:
    """None: whatever the gradient has (2.15, `grad_dtype` set to None)."""
    policy = _field(parameter, "mp_policy")
    dtype: Optional[torch.dtype] = policy.reduce_dtype
    if dtype is None and not hasattr(parameter, "sharded_grad_dtype"):  # before 2.15: what gradients are computed in
        dtype = policy.param_dtype
    elif dtype is None and _field(parameter, "_has_sharded_grad_dtype_override"):
        return parameter.sharded_grad_dtype
    return dtype or parameter.sharded_param.dtype


def _reduced(parameters: List[Any], ranks: int) -> Tuple[int, Optional[torch.dtype]]:
    """Elements and dtype of the reduce-scatter's input: of several dtypes the one that holds all."""
    trained = [p for p in parameters if p.sharded_param.requires_grad]
    dtypes = [_reduce_dtype(parameter) for parameter in trained]
    known = [dtype for dtype in dtypes if dtype is not None]
    dtype = functools.reduce(torch.promote_types, known) if known and len(known) == len(dtypes) else None
    return ranks * sum(_field(p, "padded_sharded_param_size").numel() for p in trained), dtype


def _handles(state: Any) -> List[Any]:
    """FSDP2's groups of one state. From 2.12 on a list: `shard_placement_fn` may give parameters other meshes."""
    if hasattr(state, "_fsdp_param_groups"):
        return list(state._fsdp_param_groups)
    handle = _field(state, "_fsdp_param_group")
    return [] if handle is None else [handle]


def _group(name: str, module: FSDPModule, state: Any, index: int, siblings: int) -> Group:
    handle = _handles(state)[index]
    parameters = _field(handle, "fsdp_params")
    ranks = getattr(_field(handle, "mesh_info"), "shard_mesh_size", 1)
    gather_numel, gather_dtype = _gathered(parameters, ranks)
    reduce_numel, reduce_dtype = _reduced(parameters, ranks)
    for dtype in (gather_dtype, reduce_dtype):
        if dtype is not None:
            library_dtype(dtype)
    if siblings > 1:
        name = f"{name}[{index}]"
    return Group(name, module, ranks, _device(_field(handle, "device")), gather_numel, gather_dtype, reduce_numel,
                 reduce_dtype, _field(handle, "_all_gather_comm"), _field(handle, "_reduce_scatter_comm"), handle,
                 state, index, siblings)


def states_of(root: nn.Module) -> Dict[nn.Module, Any]:
    """The state of every fully_shard'ed module, by module in the order of named_modules. Modules that were sharded
    together share one."""
    return {module: _field(module, "_get_fsdp_state")() for module in root.modules() if isinstance(module, FSDPModule)}


def all_groups(root: nn.Module) -> List[Group]:
    """The groups of every state in the order of its modules, those of one rank too."""
    groups: List[Group] = []
    seen = set()
    for name, module in root.named_modules():
        if not isinstance(module, FSDPModule):
            continue
        state = module._get_fsdp_state()
        if id(state) not in seen:
            seen.add(id(state))
            siblings = len(_handles(state))
            groups += [_group(name or ROOT, module, state, index, siblings) for index in range(siblings)]
    return groups


def groups_of(root: nn.Module, any_version: bool = False) -> List[Group]:
    """The groups of a sharded module in the order of its modules, its own first. Groups of one rank communicate nothing
    and are left out.

    Raises InvalidArgument (not sharded, or part of a larger sharded module), Mismatch (groups on several devices),
    Unsupported (a PyTorch that is not known, other devices than CPUs and GPUs, nothing to communicate)."""
    check_version(any_version)
    if not isinstance(root, FSDPModule):
        raise InvalidArgument(f"{type(root).__name__} is not sharded: call torch.distributed.fsdp.fully_shard on its "
                              "layers and on it first")
    if _field(root._get_fsdp_state(), "_is_root") is False:
        raise InvalidArgument(f"{type(root).__name__} is part of a larger sharded module: hand over the root, which "
                              "ran forward first")
    groups = [group for group in all_groups(root) if group.ranks > 1]
    if not groups:
        raise Unsupported("nothing to pool: every group of parameters is sharded over one rank, where FSDP2 "
                          "communicates nothing")
    devices = {str(group.device): group.name for group in groups}
    if len(devices) > 1:
        raise Mismatch("a pool has memory of one device, but the module has groups on "
                       + ", ".join(f"{device} ({name})" for device, name in devices.items()))
    return groups
