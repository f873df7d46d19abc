# SPDX-License-Identifier: Apache-2.0
"""Offload of release groups: their memory goes back to the device, and later returns at the same addresses
(bucketpool/offload.h)."""

import ctypes
from contextlib import contextmanager
from typing import Iterable, Iterator, List, NamedTuple, Optional, Sequence

from . import _abi
from ._library import call, configured, core, filled
from .device import Device
from .errors import InvalidArgument
from .handle import Handle, Owner, handle_of
from .names import decoded, encoded, flag, list_of, member
from .pool import Pool

__all__ = ["Lease", "Offload", "OffloadGroup", "Pinned", "PinnedStatistics"]

_RESIDENCIES = {
    _abi.BP_RESIDENT: "resident",
    _abi.BP_OFFLOADING: "offloading",
    _abi.BP_OFFLOADED: "offloaded",
    _abi.BP_RESTORING: "restoring"
}


class PinnedHandle(Handle, _abi.bp_pinned):
    destroy = "bp_pinned_destroy"


class OffloadHandle(Handle, _abi.bp_offload):
    destroy = "bp_offload_destroy"


class LeaseHandle(Handle, _abi.bp_lease):
    destroy = "bp_lease_return"


class PinnedStatistics(NamedTuple):
    """Counters, as bp_pinned_statistics in pinned.h. because: reason for the plain allocator."""

    pinned_bytes: int
    peak_pinned_bytes: int
    planned_pieces: int
    planned_bytes: int
    small_pieces: int
    small_bytes: int
    slab_bytes: int
    slab_used_bytes: int
    huge_bytes: int
    touch_ns: int
    pin_ns: int
    numa_node: int
    allocator: str
    because: str


class Pinned(Owner[PinnedHandle]):
    """A source of pinned host memory that several offloads share. Nothing is pinned yet.

    - allocator: of small pieces, "auto", "jemalloc" or "plain"
    - max_bytes: limit of all pinned memory; 0: no limit
    - slab_bytes, planned_bytes: slab of small pieces, smallest planned piece; 0: 64 MiB and 1 MiB
    - touch_threads: threads for the first touch of new memory; 0: one for each processor, at most 8
    - numa_node: -1: that of the device if known
    - huge_pages: False: ordinary pages

    Raises InvalidArgument, Unsupported (jemalloc is missing). Any thread.
    """

    def __init__(self, device: Device, allocator: str = "auto", max_bytes: int = 0, slab_bytes: int = 0,
                 planned_bytes: int = 0, touch_threads: int = 0, numa_node: int = -1, huge_pages: bool = True) -> None:
        config = configured(core().bp_pinned_config_init, _abi.bp_pinned_config,
                            allocator=member("BP_PINNED_", allocator, "allocator"), max_bytes=max_bytes,
                            slab_bytes=slab_bytes, planned_bytes=planned_bytes, touch_threads=touch_threads,
                            numa_node=numa_node, no_huge_pages=int(not huge_pages))
        handle = PinnedHandle()
        call(core().bp_pinned_create, handle_of(device, Device, "device"), ctypes.byref(config), ctypes.byref(handle))
        self._handle = handle

    @property
    def statistics(self) -> PinnedStatistics:
        """The counters now."""
        handle = self.handle
        s = filled(core().bp_pinned_statistics_get, _abi.bp_pinned_statistics, handle)
        values = {field: getattr(s, field) for field in PinnedStatistics._fields}
        return PinnedStatistics(**{**values, "allocator": decoded(s.allocator), "because": decoded(s.because)})


class OffloadGroup(NamedTuple):
    """The state of a release group, as bp_offload_group in offload.h.

    residency: "resident", "offloading", "offloaded" or "restoring". copied_bytes: progress of the last copies.
    """

    name: str
    residency: str
    slabs: int
    bytes: int
    resident_bytes: int
    kept_bytes: int
    host_bytes: int
    unreturned_bytes: int
    copied_bytes: int
    offloads: int
    restores: int
    leases: int
    pinned: bool


class Lease(Owner[LeaseHandle]):
    """A reader of a group, made by Offload.lease(); close() or the end of `with` returns the lease."""


class Offload(Owner[OffloadHandle]):
    """Offloads the release groups of a pool and restores them at the same addresses. A pool has at most one.

        offload = bucketpool.Offload(pool)
        with offload.offloaded(keep=["optimizer"], discard=["param", "grad"], zero=["main_grad"]):
            ...                                     # the device has the memory
        ...                                         # all groups are resident

    - backing: host memory for kept bytes: "pinned", "staged" (pageable, slower), or "auto": staged if that much
      memory cannot be pinned
    - chunk_bytes: chunk size of copies; 0: 32 MiB
    - pinned: a source of pinned memory; None: a separate one

    Copies start after all work that the streams of the device have at begin(). Until finish_restore() acquires
    and releases in the group are ScheduleErrors, try_acquire() is busy, and nothing may access the memory, views and
    tensors included: an access faults. Live requests refuse the offload, except for state roles and persistent
    requests. With a registered pool all calls but finish_restore() are collective: the same groups in the same
    order on all ranks; an error of one rank is an error of all.

    Raises ScheduleError (the pool has an offload), Unsupported (a device without memory, guard mode), CaptureError.
    One call at a time; lease() and groups: any thread.
    """

    def __init__(self, pool: Pool, backing: str = "auto", chunk_bytes: int = 0,
                 pinned: Optional[Pinned] = None) -> None:
        config = configured(core().bp_offload_config_init, _abi.bp_offload_config,
                            backing=member("BP_BACKING_", backing, "backing"), chunk_bytes=chunk_bytes,
                            pinned=None if pinned is None else handle_of(pinned, Pinned, "pinned").value)
        handle = OffloadHandle()
        call(core().bp_offload_create, handle_of(pool, Pool, "pool"), ctypes.byref(config), ctypes.byref(handle))
        self._handle = handle
        self.pool = pool
        pool.addresses_known = True

    # ---- one group -------------------------------------------------------------------------------------------------

    def begin(self, group: str, keep: bool = True, recapture: bool = False) -> None:
        """Begins the offload of a group; copies its bytes, or discards them. Does not wait.

        recapture: graphs with collectives in the group will be captured again; otherwise they refuse the offload.

        Raises InvalidArgument (unknown group; the message lists them), ScheduleError (a live request or a lease,
        which it names; not resident), Unsupported (keep of a joint slab), CaptureError, NoHostMemory. Nothing has
        changed then.
        """
        flags = _abi.BP_OFFLOAD_KEEP if flag(keep, "keep") else _abi.BP_OFFLOAD_DISCARD
        if flag(recapture, "recapture"):
            flags |= _abi.BP_OFFLOAD_RECAPTURE
        self.pool.forget_tensors()
        call(core().bp_offload_begin, self.handle, _group(group), flags)

    def finish(self, group: str) -> None:
        """Waits for the copies and returns the memory to the device.

        After an error of a copy the group is resident again. Raises ScheduleError (not begun), DeviceError.
        """
        call(core().bp_offload_finish, self.handle, _group(group))

    def begin_restore(self, group: str, zero: bool = False) -> None:
        """Maps memory at the same addresses and begins to copy the kept bytes.

        zero: discarded memory gets zeros; otherwise its contents are undefined. Raises ScheduleError (not
        offloaded), NoDeviceMemory: the group is offloaded as before, and the call can be repeated.
        """
        fill = _abi.BP_RESTORE_ZERO if flag(zero, "zero") else _abi.BP_RESTORE_LEAVE
        call(core().bp_restore_begin, self.handle, _group(group), fill)

    def finish_restore(self, group: str) -> None:
        """Waits for the copies. The group then serves requests."""
        call(core().bp_restore_finish, self.handle, _group(group))

    # ---- several groups --------------------------------------------------------------------------------------------

    def offload(self, keep: Sequence[str] = (), discard: Sequence[str] = (), recapture: bool = False) -> None:
        """Offloads groups: begin() for all, then finish(). keep: copied to the host; discard: bytes without use.

        After an error some groups may be offloading or offloaded; restore() restores them. Raises as both calls.
        """
        groups = _groups(keep, discard)
        for group in groups:
            self.begin(group, group in keep, recapture)
        for group in groups:
            self.finish(group)

    def restore(self, groups: Optional[Iterable[str]] = None, zero: Sequence[str] = ()) -> None:
        """Restores groups that are not resident, at whatever point an error has left them; None: all groups.

        zero: groups whose discarded memory gets zeros. May be repeated, for example after NoDeviceMemory.
        """
        names = [each.name for each in self.groups] if groups is None else _groups(list_of(groups, "groups"), ())
        zeroed = list_of(zero, "zero")
        for group in names:
            if self._residency(group) == "offloading":
                self.finish(group)
        for group in names:
            if self._residency(group) == "offloaded":
                self.begin_restore(group, group in zeroed)
        for group in names:
            if self._residency(group) == "restoring":
                self.finish_restore(group)

    @contextmanager
    def offloaded(self, keep: Sequence[str] = (), discard: Sequence[str] = (), zero: Sequence[str] = (),
                  recapture: bool = False) -> Iterator[None]:
        """A context with these groups offloaded; they are restored at its end, also after an exception.

        zero: groups to discard and to restore as zeros. Groups that were not resident before are refused.
        """
        groups = _groups(keep, [*list_of(discard, "discard"), *list_of(zero, "zero")])
        for group in groups:
            if self._residency(group) != "resident":
                raise InvalidArgument(f"group {group} is {self._residency(group)}; restore it first")
        try:
            self.offload(keep, [*discard, *zero], recapture)
            yield
        finally:
            self.restore(groups, zero)

    def trim(self) -> None:
        """Frees host memory that holds no bytes now."""
        core().bp_offload_trim(self.handle)

    # ---- state -----------------------------------------------------------------------------------------------------

    @property
    def groups(self) -> List[OffloadGroup]:
        """The groups, in the order of their first slab."""
        handle, count = self.handle, ctypes.c_size_t()
        call(core().bp_offload_groups, handle, (_abi.bp_offload_group * 1)(_abi.bp_offload_group()), 0,
             ctypes.byref(count))
        entries = (_abi.bp_offload_group * max(count.value, 1))(_abi.bp_offload_group())
        call(core().bp_offload_groups, handle, entries, count.value, ctypes.byref(count))
        return [_group_of(entry) for entry in entries[:count.value]]

    def _residency(self, group: str) -> str:
        known = {each.name: each.residency for each in self.groups}
        if group not in known:
            raise InvalidArgument(f"unknown group {group!r}; expected one of {', '.join(known)}")
        return known[group]

    def lease(self, group: str, reader: str) -> Lease:
        """Takes a lease: the group cannot be offloaded until it is returned, for example by a checkpoint.

        reader: a name for messages. Raises InvalidArgument (unknown group), ScheduleError (not resident).
        """
        handle = LeaseHandle(self.handle)
        call(core().bp_lease_take, self.handle, _group(group), encoded(reader, "a reader's name"), ctypes.byref(handle))
        lease = Lease()
        lease._handle = handle
        return lease

    def __repr__(self) -> str:
        if self.closed:
            return "<Offload, closed>"
        return f"<Offload: {', '.join(f'{group.name} {group.residency}' for group in self.groups)}>"


def _group_of(entry: _abi.bp_offload_group) -> OffloadGroup:
    values = {field: getattr(entry, field) for field in OffloadGroup._fields}
    return OffloadGroup(**{**values, "name": decoded(entry.name), "residency": _RESIDENCIES[entry.residency],
                           "pinned": bool(entry.pinned)})


def _group(name: str) -> bytes:
    return encoded(name, "a release group")


def _groups(keep: Iterable[str], discard: Iterable[str]) -> List[str]:
    names = [*list_of(keep, "keep"), *list_of(discard, "discard")]
    for name in names:
        if names.count(name) > 1:
            raise InvalidArgument(f"group {name!r} is listed twice; keep or discard it")
    return names
