"""The pool's slabs, registered with the NCCL communicators that PyTorch made."""

import ctypes
from typing import Any, Dict, List

from ... import Device, Pool, _abi
from ..._library import call, configured, core, made
from ...errors import Unsupported
from ...names import member
from .groups import Group, _field


def _communicators(groups: List[Group]) -> Dict[int, str]:
    """ncclComm_t of every process group that gathers or reduces, each once, with what it is called in messages."""
    found: Dict[int, str] = {}
    for group in groups:
        for name in ("_all_gather_process_group", "_reduce_scatter_process_group"):
            process_group = _field(group.handle, name)
            backend = process_group._get_backend(group.device)
            if not hasattr(backend, "_comm_ptr"):
                raise Unsupported(f"{group.name}: its process group is {type(backend).__name__}, which has no NCCL "
                                  "communicator: registration is for NCCL on GPUs; leave it out elsewhere")
            pointer = int(backend._comm_ptr())
            if pointer == 0:
                raise Unsupported(f"{group.name}: its NCCL communicator does not exist yet: run a step first, or give "
                                  "init_process_group a device_id")
            found.setdefault(pointer, f"nccl.{process_group.group_name}")
    return found


class Registration:
    """One window for each slab and communicator, as comm.h says. Collective to make and to close, in the order of the
    groups.

    Written against the contracts of comm.h and of PyTorch's process groups; it has not run on a GPU."""

    def __init__(self, pool: Pool, device: Device, groups: List[Group], kind: str) -> None:
        library = core()
        self._comms: List[ctypes.c_void_p] = []
        self._registration = ctypes.c_void_p()
        entries: List[Any] = []
        wanted = member("BP_REGISTER_", kind, "registration")
        traffic = _abi.BP_TRAFFIC_GATHER | _abi.BP_TRAFFIC_REDUCE_SCATTER
        if any(not _field(group.handle, "force_sum_reduction_for_comms") for group in groups):
            traffic |= _abi.BP_TRAFFIC_FLOAT_AVG
        try:
            for pointer, name in _communicators(groups).items():
                config = configured(library.bp_nccl_config_init, _abi.bp_nccl_config, comm=pointer,
                                    device=device.handle.value, name=name.encode())
                self._comms.append(made(library.bp_comm_create_nccl, ctypes.byref(config)))
                entries.append(configured(library.bp_registration_entry_init, _abi.bp_registration_entry,
                                          comm=self._comms[-1].value, traffic=traffic))
                entries[-1].kind = wanted
            array = (_abi.bp_registration_entry * len(entries))(*entries)
            call(library.bp_registration_create, pool.handle, array, len(entries), ctypes.byref(self._registration))
        except BaseException:
            self.close()
            raise

    def report(self) -> str:
        """What was granted, a line for each window, and what would make it useless."""
        library, needed = core(), ctypes.c_size_t()
        call(library.bp_registration_report, self._registration, None, 0, ctypes.byref(needed))
        text = ctypes.create_string_buffer(needed.value)
        call(library.bp_registration_report, self._registration, text, needed.value, ctypes.byref(needed))
        return text.value.decode()

    def close(self) -> None:
        """Deregisters; no collective may be on its way. Closing twice is nothing."""
        core().bp_registration_destroy(ctypes.byref(self._registration))
        for comm in reversed(self._comms):
            core().bp_comm_destroy(ctypes.byref(comm))
        self._comms.clear()
