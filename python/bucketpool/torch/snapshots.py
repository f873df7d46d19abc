# SPDX-License-Identifier: Apache-2.0
"""Memory snapshots of chosen steps by configuration: pools of the library, and PyTorch's caching allocator.

    from bucketpool.torch.snapshots import Snapshots

    with Snapshots(attached.pool, steps=[2, 3], max_entries=200_000, coordinates="p0d1c0t1") as snapshots:
        for step in range(steps):
            snapshots.step(step)                    # writes the last step if it was recorded, begins this one
            train()

Each rank that records writes one file for each step and source, in a folder for the step:

    memory_snapshots/step_2/snapshot_rank03_p0d1c0t1.pickle      pools
    memory_snapshots/step_2/torch_rank03_p0d1c0t1.pickle         PyTorch's caching allocator

`bucketpool view` and pytorch.org/memory_viz read both, and merge() makes one of them. docs/guides/snapshots.md describes
them.
"""

import contextlib
import operator
import os
import pickle
import weakref
from types import TracebackType
from typing import Any, Dict, Iterable, Iterator, Optional, Sequence, Tuple, Type, Union

import torch
import torch.distributed as dist

from ..errors import FileError, InvalidArgument, Unsupported
from ..handle import at_exit
from ..names import optional, shown, whole
from ..pool import Pool
from ..profile import Profile

__all__ = ["Snapshots", "merge"]

_NAME = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")


class Snapshots:
    """Records chosen steps of this rank; see the module. Close it after the last step, before the pools.

    - pools: one, several, or () for PyTorch's allocator alone; their memory is kept until close()
    - steps, directory, record_ranks, coordinates, formats, plans: as in bucketpool.Profile
    - max_entries: events of each pool (rounded up to a power of two) and of PyTorch's allocator; the newest are kept
    - rank, ranks: None: those of torch.distributed, or one rank
    - allocator: record PyTorch's caching allocator; None: if PyTorch finds a GPU
    - context, stacks: of torch.cuda.memory._record_memory_history: events that have frames ("all", "alloc",
      "state", None), and their frames ("python", "all")

    PyTorch has one recording for each process: nothing else may record at the same time. Raises InvalidArgument,
    Unsupported (allocator=True without CUDA), ScheduleError (a sealed pool, a pool of another profile).
    """

    def __init__(self, pools: Union[Pool, Sequence[Pool]] = (), steps: Iterable[int] = (0, 1), *,
                 directory: Union[str, "os.PathLike[str]"] = "memory_snapshots", max_entries: int = 100_000,
                 rank: Optional[int] = None, ranks: Optional[int] = None, record_ranks: Optional[Iterable[int]] = None,
                 coordinates: Optional[str] = None, formats: Iterable[str] = ("pickle", ), plans: Any = None,
                 allocator: Optional[bool] = None, context: Optional[str] = "all", stacks: str = "python") -> None:
        self.rank, self.ranks = _ranks(rank, ranks)
        self.steps = frozenset(whole(step, 64, "steps") for step in steps)
        chosen = None if record_ranks is None else [whole(each, 32, "record_ranks") for each in record_ranks]
        optional(coordinates, "coordinates")
        if allocator is not None and not isinstance(allocator, bool):
            raise InvalidArgument(f"allocator: expected True, False or None, got {shown(allocator)}")
        if coordinates is not None and (not coordinates or not _NAME.issuperset(coordinates)):
            raise InvalidArgument(f"coordinates: expected letters, digits, '_' and '-', got {coordinates!r}")
        if allocator and not torch.cuda.is_available():
            raise Unsupported("allocator: PyTorch finds no GPU, so its caching allocator has no snapshots; pass None")
        self.directory, self.coordinates = os.fspath(directory), coordinates
        self.max_entries = whole(max_entries, 63, "max_entries") or 100_000
        self.allocator = (torch.cuda.is_available() if allocator is None else allocator) and (chosen is None
                                                                                             or self.rank in chosen)
        self.context, self.stacks = context, stacks
        self.torch_path = ""  # the file of PyTorch's allocator that was written last
        self._recorded: Optional[int] = None  # the step that PyTorch records
        self._profile: Optional[Profile] = None
        if isinstance(pools, Pool) or len(pools) > 0:
            self._profile = Profile(pools, sorted(self.steps), directory, self.max_entries, self.rank, self.ranks,
                                    chosen, coordinates, formats, plans)
        _open.add(self)

    @property
    def recording(self) -> bool:
        """True while a step is recorded."""
        return self._recorded is not None or (self._profile is not None and not self._profile.closed
                                              and self._profile.recording)

    @property
    def pickle_path(self) -> str:
        """The snapshot of the pools that was written last; "": none yet."""
        return "" if self._profile is None or self._profile.closed else self._profile.pickle_path

    def step(self, step: int) -> None:
        """Begins step `step`: ends the one before and writes its files if it was recorded; records if it is chosen.

        Raises FileError if a file cannot be written; the new step is recorded all the same, so training can
        continue.
        """
        number = whole(step, 64, "a step")
        failure = self._written()
        try:
            if self._profile is not None:
                self._profile.step(number)
        finally:
            if self.allocator and number in self.steps:
                _record(enabled="all", context=self.context, stacks=self.stacks, max_entries=self.max_entries)
                self._recorded = number
        if failure is not None:
            raise failure

    def close(self) -> None:
        """Writes the open step and ends the recording. May be repeated. Raises FileError. Exit of the interpreter
        closes it, too.
        """
        _open.discard(self)
        failure = self._written()
        if self._profile is not None:
            self._profile.close()
        if failure is not None:
            raise failure

    def __enter__(self) -> "Snapshots":
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], value: Optional[BaseException],
                 trace: Optional[TracebackType]) -> None:
        if kind is None:
            self.close()
            return
        try:  # an error of the files must not replace the exception
            self.close()
        except FileError:
            pass

    def _written(self) -> Optional[FileError]:
        """Ends PyTorch's recording and writes its file. Returns the error instead of raising it."""
        if self._recorded is None:
            return None
        name = "torch_rank{:0{}d}{}.pickle".format(self.rank, max(2, len(str(self.ranks - 1))),
                                                   f"_{self.coordinates}" if self.coordinates else "")
        path = os.path.join(self.directory, f"step_{self._recorded}", name)
        self._recorded = None
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with _replacing(path) as temporary:
                dump: Any = torch.cuda.memory._dump_snapshot
                dump(temporary)
        except OSError as error:
            return FileError(f"{path}: PyTorch's snapshot cannot be written: {error.strerror or error}")
        finally:
            _record(enabled=None)
        self.torch_path = path
        return None


_open: "weakref.WeakSet[Snapshots]" = weakref.WeakSet()


def _close_all() -> None:
    for snapshots in list(_open):
        try:
            snapshots.close()
        except Exception:  # noqa: B902: exit continues
            pass


at_exit(_close_all)


@contextlib.contextmanager
def _replacing(path: Union[str, "os.PathLike[str]"]) -> Iterator[str]:
    """A file to write, which gets this path at the end of the block; after an exception the former file stays."""
    temporary = f"{os.fspath(path)}.{os.getpid()}"
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        if os.path.exists(temporary):
            os.remove(temporary)


class _Plain(pickle.Unpickler):
    """Reads lists, dictionaries and numbers alone; other pickles can run code."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it contains an object of {module}.{name}")


def _read(path: Union[str, "os.PathLike[str]"]) -> Any:
    try:
        with open(path, "rb") as file:
            snapshot = _Plain(file).load()
    except OSError as error:
        raise FileError(f"{os.fspath(path)}: cannot be read: {error.strerror or error}") from None
    except Exception as error:  # pickle raises any
        raise FileError(f"{os.fspath(path)}: not a snapshot: {error}") from None
    if not isinstance(snapshot, dict) or not all(isinstance(snapshot.get(key), list)
                                                 for key in ("segments", "device_traces")):
        raise FileError(f"{os.fspath(path)}: not a snapshot: it has no segments and device_traces")
    return snapshot


def merge(to: Union[str, "os.PathLike[str]"], *paths: Union[str, "os.PathLike[str]"]) -> None:
    """Writes one snapshot with the memory of several of one process: pools and PyTorch's allocator. Events are in the
    order of their times, on one clock.

    pytorch.org/memory_viz shows both, `bucketpool view` the pools. Raises InvalidArgument (no file), FileError (a
    file that is not a snapshot, or that cannot be read or written).
    """
    if not paths:
        raise InvalidArgument("merge: no snapshot given; pass the file of the pools and that of PyTorch")
    merged: Dict[str, Any] = {"segments": [], "device_traces": []}
    for each in map(_read, paths):
        merged["segments"] += each["segments"]
        for device, events in enumerate(each["device_traces"]):
            if device == len(merged["device_traces"]):
                merged["device_traces"].append([])
            merged["device_traces"][device] += events
        for key, value in each.items():
            merged.setdefault(key, value)
    try:
        for events in merged["device_traces"]:
            events.sort(key=operator.itemgetter("time_us"))  # stable: events of one file keep their order
        with _replacing(to) as temporary, open(temporary, "wb") as file:
            pickle.dump(merged, file, protocol=4)
    except (KeyError, TypeError) as error:
        raise FileError(f"{', '.join(os.fspath(each) for each in paths)}: an event without time_us: {error}") from None
    except OSError as error:
        raise FileError(f"{os.fspath(to)}: cannot be written: {error.strerror or error}") from None


def _record(**options: Any) -> None:
    record: Any = torch.cuda.memory._record_memory_history
    record(**options)


def _ranks(rank: Optional[int], ranks: Optional[int]) -> Tuple[int, int]:
    if (rank is None) != (ranks is None):
        raise InvalidArgument(f"rank={rank} and ranks={ranks}: one is missing; pass both or none")
    if rank is not None and ranks is not None:
        if whole(rank, 32, "rank") >= whole(ranks, 32, "ranks"):
            raise InvalidArgument(f"rank: {rank} of {ranks} ranks; pass a rank below {ranks}")
        return whole(rank, 32, "rank"), whole(ranks, 32, "ranks")
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1
