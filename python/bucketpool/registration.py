# SPDX-License-Identifier: Apache-2.0
"""Registration of a pool's slabs with communicators (bucketpool/comm.h)."""

import ctypes
from typing import Any, List, NamedTuple, Optional, Sequence

from . import _abi
from ._library import call, configured, core, viewed
from .comm import Comm
from .errors import InvalidArgument
from .handle import Handle, Owner, handle_of
from .names import decoded, list_of, member, name_of, optional, shown, whole
from .pool import Pool


__all__ = ["Entry", "Registration", "Window"]


class RegistrationHandle(Handle, _abi.bp_registration):
    destroy = "bp_registration_destroy"


class Entry(NamedTuple):
    """The registration of the slabs of one release group with one communicator.

    - group: release group; None: all slabs
    - kind: the kind to ask for, "buffer", "window" or "symmetric"; a lesser kind is tried if it is not
      granted
    - exact: try no lesser kind
    - traffic: collectives in this memory, for warnings: "gather", "reduce_scatter", "float_avg",
      "in_place_ring"
    """

    comm: Comm
    group: Optional[str] = None
    kind: str = "symmetric"
    exact: bool = False
    traffic: Sequence[str] = ()


class Window(NamedTuple):
    """The registration of one slab with one communicator.

    entry: index of the Entry. asked, granted: kinds. because: the reason if a lesser kind was granted, else "".
    """

    slab: int
    entry: int
    address: int
    bytes: int
    asked: str
    granted: str
    because: str


class Registration(Owner[RegistrationHandle]):
    """Registers each slab of a pool with each communicator of its group.

    Creation and close() are collective, in the order of the entries, with no collective of these
    communicators in flight. Close it before the wrapped communicators are destroyed. A kind that NCCL does
    not grant is not an error: windows and report() have the granted kind and the reason.

    Raises Mismatch (the ranks differ; the message names one, and nothing was registered), ScheduleError
    (registered already, a sealed pool), CaptureError, CommError.
    """

    def __init__(self, pool: Pool, entries: Sequence[Entry]) -> None:
        entries = list_of(entries, "entries")
        for entry in entries:
            if not isinstance(entry, Entry):
                raise InvalidArgument(f"entries: expected a list of Entry, got {shown(entry)} in it")
        if not entries:
            raise InvalidArgument("registration: no entries; pass at least one Entry")
        comms = [handle_of(entry.comm, Comm, "Entry.comm") for entry in entries]
        structs: Any = (_abi.bp_registration_entry * len(entries))()
        for index, (entry, comm) in enumerate(zip(entries, comms)):
            structs[index] = configured(
                core().bp_registration_entry_init, _abi.bp_registration_entry, comm=comm.value,
                group=optional(entry.group, "a release group"), kind=member("BP_REGISTER_", entry.kind, "registration"),
                exact=int(entry.exact), traffic=sum({member("BP_TRAFFIC_", each, "traffic") for each in entry.traffic}))
        handle = RegistrationHandle(*comms)
        call(core().bp_registration_create, handle_of(pool, Pool, "pool"), structs, len(entries), ctypes.byref(handle))
        self._handle = handle
        pool.addresses_known = True
        self.entries = tuple(entries)

    @property
    def windows(self) -> List[Window]:
        """The registrations, one for each slab of each entry."""
        info = viewed(core().bp_registration_get_info, self.handle)
        return [Window(w.slab, w.entry, w.address or 0, w.bytes, name_of("BP_REGISTER_", w.asked),
                       name_of("BP_REGISTER_", w.granted), decoded(w.because))
                for w in info.windows[:info.window_count]]

    def warnings(self, entry: int) -> List[str]:
        """Reasons why granted windows of an entry have no effect."""
        info = viewed(core().bp_registration_get_info, self.handle)
        entry = whole(entry, 63, "an entry")
        return [decoded(w.text) for w in info.warnings[:info.warning_count] if w.entry == entry]

    def report(self) -> str:
        """The registration as text, one line for each window and warning."""
        handle, needed = self.handle, ctypes.c_size_t()
        call(core().bp_registration_report, handle, None, 0, ctypes.byref(needed))
        text = ctypes.create_string_buffer(needed.value)
        call(core().bp_registration_report, handle, text, len(text), ctypes.byref(needed))
        return decoded(text.value)
