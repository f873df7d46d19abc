# SPDX-License-Identifier: Apache-2.0
"""Groups of a fully_shard'ed module: parameters that FSDP2 communicates together, and their buffers.

FSDP2 has setters for its communication objects but no getters, and does not expose its groups. Only this module
reads them from private state, as in PyTorch 2.9 to 2.15. Versions are told apart by attributes, not by number.
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

# Tests run with 2.11.0, 2.12.1, 2.13.0, 2.14.0 and 2.15.0, some with 2.9.1 and 2.10.0. The table
# in docs/guides/fsdp2.md has the differences.
KNOWN_VERSIONS = ((2, 9), (2, 10), (2, 11), (2, 12), (2, 13), (2, 14), (2, 15))
ROOT = "(root)"


@dataclasses.dataclass(eq=False)
class Group:
    """Parameters that FSDP2 communicates together. gather_numel, reduce_numel: elements of the whole buffer over all
    ranks; 0: no such collective.
    """

    name: str  # name of its first module in the root; "NAME[0]", "NAME[1]" if the module has several groups
    module: Any  # an FSDPModule
    ranks: int
    device: torch.device
    gather_numel: int
    gather_dtype: Optional[torch.dtype]  # None: extensions of the parameters decide (float8); needs a recording
    reduce_numel: int  # if every parameter has a gradient; less otherwise
    reduce_dtype: Optional[torch.dtype]  # None with elements: the dtype of the gradients; needs a recording
    all_gather: Any  # its communication objects before install()
    reduce_scatter: Any
    handle: Any  # FSDP2's object
    state: Any
    index: int = 0  # among the groups of its module
    siblings: int = 1  # number of groups of its module


def _version(version: Tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"


def check_version(any_version: bool = False) -> None:
    """Raises Unsupported for a PyTorch whose FSDP2 has not been checked, unless any_version."""
    found = re.match(r"(\d+)\.(\d+)", torch.__version__)
    version = (int(found.group(1)), int(found.group(2))) if found else (0, 0)
    if version not in KNOWN_VERSIONS and not any_version:
        known = ", ".join(map(_version, KNOWN_VERSIONS))
        raise Unsupported(
            f"PyTorch {torch.__version__}: the live ranges of FSDP2's buffers are checked for {known}; use "
            "one of these, or pass any_version=True and compare losses with and without the pool first"
        )


def _field(owner: Any, name: str) -> Any:
    try:
        return getattr(owner, name)
    except AttributeError:
        raise Unsupported(f"FSDP2 of PyTorch {torch.__version__}: {type(owner).__name__} has no {name}, which this "
                          f"adapter reads; use PyTorch {_version(KNOWN_VERSIONS[0])} to "
                          f"{_version(KNOWN_VERSIONS[-1])}") from None


def _device(device: torch.device) -> torch.device:
    if device.type == "cpu":
        return torch.device("cpu")
    if device.type == "cuda":
        return with_index(device)
    raise Unsupported(f"module on {device}: unsupported device; move it to cpu or cuda")


def _only(dtypes: List[torch.dtype]) -> torch.dtype:
    return dtypes[0] if len(set(dtypes)) == 1 else torch.uint8


def _gathered(parameters: List[Any], ranks: int) -> Tuple[int, Optional[torch.dtype]]:
    """Elements and dtype of the all-gather's output; FSDP2 packs mixed dtypes as bytes."""
    if any(hasattr(_field(p, "_sharded_local_tensor"), "fsdp_pre_all_gather") for p in parameters):
        return 0, None
    dtypes = [_field(p, "mp_policy").param_dtype or p.sharded_param.dtype for p in parameters]
    dtype = _only(dtypes)
    numels = [_field(p, "padded_sharded_param_size").numel() for p in parameters]
    if dtype == torch.uint8:
        numels = [numel * d.itemsize for numel, d in zip(numels, dtypes)]
    return ranks * sum(numels), dtype


def _reduce_dtype(parameter: Any) -> Optional[torch.dtype]:
    """The dtype of the reduce-scatter; None: that of the gradient (2.15, grad_dtype set to None)."""
    policy = _field(parameter, "mp_policy")
    dtype: Optional[torch.dtype] = policy.reduce_dtype
    if dtype is None and not hasattr(parameter, "sharded_grad_dtype"):  # before 2.15: the dtype of the computation
        dtype = policy.param_dtype
    elif dtype is None and _field(parameter, "_has_sharded_grad_dtype_override"):
        return parameter.sharded_grad_dtype
    return dtype or parameter.sharded_param.dtype


def _reduced(parameters: List[Any], ranks: int) -> Tuple[int, Optional[torch.dtype]]:
    """Elements and dtype of the reduce-scatter's input; several dtypes are promoted to one."""
    trained = [p for p in parameters if p.sharded_param.requires_grad]
    dtypes = [_reduce_dtype(parameter) for parameter in trained]
    known = [dtype for dtype in dtypes if dtype is not None]
    dtype = functools.reduce(torch.promote_types, known) if known and len(known) == len(dtypes) else None
    return ranks * sum(_field(p, "padded_sharded_param_size").numel() for p in trained), dtype


def _handles(state: Any) -> List[Any]:
    """FSDP2's groups of one state: one, or from 2.12 on a list, one for each mesh of shard_placement_fn."""
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
    """The state of every fully_shard'ed module, in the order of named_modules. Modules that were sharded together share
    a state.
    """
    return {module: _field(module, "_get_fsdp_state")() for module in root.modules() if isinstance(module, FSDPModule)}


def all_groups(root: nn.Module) -> List[Group]:
    """The groups of every state in the order of its modules, also groups of one rank."""
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
    """The groups of a sharded module in the order of its modules, without groups of one rank, which communicate
    nothing.

    Raises InvalidArgument (not sharded, or part of a larger sharded module), Mismatch (groups on several devices),
    Unsupported (an unchecked PyTorch, other devices than CPUs and GPUs, nothing to communicate).
    """
    check_version(any_version)
    if not isinstance(root, FSDPModule):
        raise InvalidArgument(
            f"{type(root).__name__}: it is not sharded; call torch.distributed.fsdp.fully_shard on its "
            "layers and on it first"
        )
    if _field(root._get_fsdp_state(), "_is_root") is False:
        raise InvalidArgument(f"{type(root).__name__}: it is part of a larger sharded module; pass the root, whose "
                              "forward runs first")
    groups = [group for group in all_groups(root) if group.ranks > 1]
    if not groups:
        raise Unsupported(
            f"{type(root).__name__}: nothing to pool, because every group is sharded over one rank; shard "
            "over several ranks, or train without a pool"
        )
    devices = {str(group.device): group.name for group in groups}
    if len(devices) > 1:
        raise Mismatch(f"{type(root).__name__}: it has groups on "
                       + ", ".join(f"{device} ({name})" for device, name in devices.items())
                       + ", and a pool has memory of one device; move the module to one")
    return groups
