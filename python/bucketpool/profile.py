# SPDX-License-Identifier: Apache-2.0
"""Snapshots of pools in chosen steps (bucketpool/profile.h), for `bucketpool view` and PyTorch's memory viewer."""

import ctypes
import weakref
from typing import Any, Iterable, List, Optional, Sequence, Union

from . import _abi
from ._library import call, configured, core, viewed
from .errors import InvalidArgument
from .handle import Handle, Owner, at_exit, handle_of
from .names import Path, decoded, encoded_path, list_of, member, optional, whole
from .plan import Plan
from .pool import Pool

__all__ = ["Profile"]


class ProfileHandle(Handle, _abi.bp_profile):
    destroy = "bp_profile_destroy"


class Profile(Owner[ProfileHandle]):
    """Records the events of pools in chosen steps and writes a file for each step, rank and format.

        with bucketpool.Profile(pool, steps=[2, 3], max_entries=200_000, rank=rank, ranks=ranks) as profile:
            for step in range(steps):
                profile.step(step)                  # writes the last step if it was recorded, begins this one
                train()

    - pools: one or several; the profile keeps their memory until it is closed
    - steps: to record; (): only between start() and stop()
    - directory: created with the first file. Files: <directory>/step_3/snapshot_rank03_<coordinates>.pickle
    - max_entries: events in the ring of each pool, rounded up to a power of two; the newest are kept
    - rank, ranks: of this process, for file names and contents
    - record_ranks: ranks that record; None: all
    - coordinates: parallel coordinates of this rank for file names, such as "p0d1c0t1"
    - formats: "pickle" (bucketpool view, pytorch.org/memory_viz), "trace" (Perfetto)
    - plans: plans of the pools in their order, for lower bounds and roles

    For snapshots of PyTorch's allocator in the same steps: bucketpool.torch.snapshots. Raises InvalidArgument,
    ScheduleError (a sealed pool, a pool of another profile), CaptureError, NoHostMemory. One call at a time, with no
    acquire or release of the pools at the same time.
    """

    def __init__(self, pools: Union[Pool, Sequence[Pool]], steps: Iterable[int] = (0, 1),
                 directory: Path = "memory_snapshots", max_entries: int = 100_000, rank: int = 0, ranks: int = 1,
                 record_ranks: Optional[Iterable[int]] = None, coordinates: Optional[str] = None,
                 formats: Iterable[str] = ("pickle", ), plans: Union[None, Plan, Sequence[Plan]] = None) -> None:
        handles = _several(pools, Pool, "pools")
        plan_handles = _several(() if plans is None else plans, Plan, "plans")
        if plan_handles and len(plan_handles) != len(handles):
            raise InvalidArgument(f"plans: {len(plan_handles)} for {len(handles)} pools; pass one for each pool, or "
                                  "None")
        chosen = [whole(step, 64, "steps") for step in list_of(steps, "steps")]
        recording = None if record_ranks is None else [whole(each, 32, "record_ranks")
                                                       for each in list_of(record_ranks, "record_ranks")]
        config = configured(
            core().bp_profile_config_init, _abi.bp_profile_config, directory=encoded_path(directory),
            profile_steps=_array(ctypes.c_uint64, chosen), profile_step_count=len(chosen),
            max_entries=whole(max_entries, 64, "max_entries"), rank=whole(rank, 32, "rank"),
            ranks=whole(ranks, 32, "ranks"), coordinates=optional(coordinates, "coordinates"),
            record_ranks=None if recording is None else _array(ctypes.c_uint32, recording),
            record_rank_count=0 if recording is None else len(recording),
            formats=sum({member("BP_PROFILE_", each, "format") for each in list_of(formats, "formats")}),
            plans=_array(ctypes.c_void_p, [plan.value for plan in plan_handles]) if plan_handles else None)
        handle = ProfileHandle(*handles)
        call(core().bp_profile_create, _array(_abi.bp_pool, [each.value for each in handles]), len(handles),
             ctypes.byref(config), ctypes.byref(handle))
        self._handle = handle
        _open.add(self)

    def step(self, step: int) -> None:
        """Begins step `step`: ends the one before and writes it if it was recorded; records if `step` is chosen.

        Also sets the step of the pools. Raises FileError if a file cannot be written; the new step is recorded all
        the same, so training can continue.
        """
        call(core().bp_profile_step, self.handle, whole(step, 64, "a step"))

    def start(self, label: str) -> None:
        """Records until stop(), across steps. label: the name of the folder."""
        call(core().bp_profile_start, self.handle, optional(label, "a label"))

    def stop(self) -> None:
        """Stops recording and writes the files. Raises FileError, ScheduleError (not recording)."""
        call(core().bp_profile_stop, self.handle)

    def write(self, path: Path, format: str = "pickle") -> None:
        """Writes the pools and the recorded events to `path`, at any time, also after an error. Recording continues."""
        call(core().bp_profile_write, self.handle, member("BP_PROFILE_", format, "format"), encoded_path(path))

    @property
    def _info(self) -> Any:
        return viewed(core().bp_profile_get_info, self.handle)

    @property
    def recording(self) -> bool:
        return bool(self._info.recording)

    @property
    def pickle_path(self) -> str:
        """The snapshot that was written last; "": none yet."""
        return decoded(self._info.pickle_path)

    @property
    def trace_path(self) -> str:
        """The trace that was written last; "": none yet."""
        return decoded(self._info.trace_path)

    def close(self) -> None:
        """Writes the open step and ends the profile. Raises FileError. Exit of the interpreter closes it, too."""
        if self.closed:
            return
        try:
            if self.recording:
                self.stop()
        finally:
            super().close()
            _open.discard(self)


def _several(given: Any, kind: Any, what: str) -> List[Any]:
    """The handles of one object or of several."""
    several = list_of(given, what) if isinstance(given, (list, tuple)) else [given]
    return [handle_of(each, kind, what) for each in several]


def _array(kind: Any, values: Sequence[Any]) -> Any:
    """A C array, also of no values, where NULL means the default."""
    return (kind * max(len(values), 1))(*values)


_open: "weakref.WeakSet[Profile]" = weakref.WeakSet()


def _close_all() -> None:
    """Writes the steps that are open when the interpreter exits; afterwards nothing is destroyed."""
    for profile in list(_open):
        try:
            profile.close()
        except Exception:  # noqa: B902: exit continues
            pass


at_exit(_close_all)
