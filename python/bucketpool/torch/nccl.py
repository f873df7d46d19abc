"""Registration of a pool with the NCCL communicators of PyTorch."""

from typing import Any, Dict, Iterable, List, Sequence

import torch
import torch.distributed as dist

from ..comm import Comm
from ..device import Device
from ..errors import Unsupported
from ..pool import Pool
from ..registration import Entry, Registration


def communicators(groups: Iterable[dist.ProcessGroup], device: torch.device) -> Dict[int, str]:
    """ncclComm_t of each process group, each once, with its name in messages. Raises Unsupported where a group has none
    (another backend), or has not made it yet."""
    found: Dict[int, str] = {}
    for group in groups:
        backend: Any = group._get_backend(torch.device(device))
        if not hasattr(backend, "_comm_ptr"):
            raise Unsupported(f"process group {group.group_name} is {type(backend).__name__}, which has no NCCL "
                              "communicator: registration is for NCCL on GPUs; leave it out elsewhere")
        pointer = int(backend._comm_ptr())
        if pointer == 0:
            raise Unsupported(f"process group {group.group_name}: its NCCL communicator does not exist yet: run a step "
                              "first, or give init_process_group a device_id")
        found.setdefault(pointer, f"nccl.{group.group_name}")
    return found


def register(pool: Pool, device: Device, groups: Iterable[dist.ProcessGroup], torch_device: torch.device,
             kind: str = "symmetric", traffic: Sequence[str] = ("gather", "reduce_scatter")) -> Registration:
    """Registers a pool's slabs with the communicators of process groups. Collective over them, in this order, between
    steps; the caller closes it, collectively, before the groups go.

    Written against the contracts of comm.h and of PyTorch's process groups: tried on the emulated NCCL only."""
    entries: List[Entry] = []
    for pointer, name in communicators(groups, torch_device).items():
        entries.append(Entry(Comm.nccl(pointer, device, name), kind=kind, traffic=traffic))
    return Registration(pool, entries)
