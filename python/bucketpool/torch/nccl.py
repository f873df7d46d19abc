# SPDX-License-Identifier: Apache-2.0
"""Registration of a pool with the NCCL communicators of process groups."""

from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence, Union

import torch
import torch.distributed as dist

from ..comm import Comm
from ..device import Device
from ..errors import Unsupported
from ..pool import Pool
from ..registration import Entry, Registration


__all__ = ["Groups", "communicators", "register"]


def communicators(groups: Iterable[dist.ProcessGroup], device: torch.device) -> Dict[int, str]:
    """Maps the address of each group's ncclComm_t to its name in messages; groups may share one.

    Raises Unsupported if a group has another backend, or has not created its communicator yet.
    """
    found: Dict[int, str] = {}
    for group in groups:
        backend: Any = group._get_backend(torch.device(device))
        if not hasattr(backend, "_comm_ptr"):
            raise Unsupported(f"process group {group.group_name}: its backend {type(backend).__name__} has no NCCL "
                              "communicator; register only pools on GPUs with NCCL")
        pointer = int(backend._comm_ptr())
        if pointer == 0:
            raise Unsupported(f"process group {group.group_name}: its NCCL communicator does not exist yet; run a step "
                              "first, or pass device_id to init_process_group")
        found.setdefault(pointer, f"nccl.{group.group_name}")
    return found


Groups = Union[Iterable[dist.ProcessGroup], Mapping[str, Iterable[dist.ProcessGroup]]]
_TRAFFIC = {"param": ("gather",), "param_transpose": ("gather",), "grad": ("reduce_scatter",)}


def register(pool: Pool, device: Device, groups: Groups, torch_device: torch.device, kind: str = "symmetric",
             traffic: Sequence[str] = ("gather", "reduce_scatter")) -> Registration:
    """Registers the slabs of a pool with the NCCL communicators of process groups.

    - device: the device of the pool; torch_device: the same GPU in PyTorch
    - groups: for all slabs; or by role ({"param": [all_gather_group], "grad": [reduce_group]}), for the slabs of the
      release group of that name
    - kind, traffic: as in bucketpool.Entry; traffic only without roles

    Collective over the groups, in their order, between steps. The caller closes the registration, collectively,
    before the groups are destroyed. Raises as communicators() and bucketpool.Registration (InvalidArgument: no slab of
    a role). Has been run on the emulated NCCL only.
    """
    roles: Mapping[Optional[str], Iterable[dist.ProcessGroup]] = (
        {role: list(each) for role, each in groups.items()} if isinstance(groups, Mapping) else {None: list(groups)})
    comms: Dict[int, Comm] = {}
    entries: List[Entry] = []
    for role, used in roles.items():
        for pointer, name in communicators(used, torch_device).items():
            if pointer not in comms:
                comms[pointer] = Comm.nccl(pointer, device, name)
            entries.append(Entry(comms[pointer], group=role, kind=kind,
                                 traffic=traffic if role is None else _TRAFFIC.get(role, ())))
    return Registration(pool, entries)
