# SPDX-License-Identifier: Apache-2.0
"""A cache of the library's clients (logprob, lm_head, cp) by configuration, with least-recently-used eviction."""

import atexit
import ctypes
import threading
import weakref
from collections import OrderedDict
from typing import Any, Callable, Dict, Hashable, List, Optional, Tuple

import torch

from .._abi import Uncopied
from .._library import logprob
from ..errors import ScheduleError
from .comm import GroupComm

MOST = 8  # clients for each group and for the process alone; each client has workspaces


class Handle(Uncopied):
    """A client, destroyed when neither the cache nor a running call refers to it. start: its first id."""

    def __init__(self, made: ctypes.c_void_p, destroy: str, generation: int, start: int = 0) -> None:
        self._value: Optional[ctypes.c_void_p] = made
        self._destroy = destroy
        self.generation = generation
        self.start = start

    @property
    def value(self) -> ctypes.c_void_p:
        if self._value is None:
            raise ScheduleError(
                "the client of this call was freed by free_clients or comm.close; run the forward again")
        return self._value

    def close(self) -> None:
        value, self._value = self._value, None
        if value is not None:
            getattr(logprob(), self._destroy)(ctypes.byref(value))

    __del__ = close


class Clients:
    """A cache of at most MOST clients, until clear()."""

    def __init__(self) -> None:
        self._kept: "OrderedDict[Hashable, Handle]" = OrderedDict()
        self._all: "weakref.WeakSet[Handle]" = weakref.WeakSet()
        self.calls: Dict[Hashable, Any] = {}  # see _calls.keep()
        self._generation = 0  # of the latest client; equal on all ranks of a group, because they create together

    def __len__(self) -> int:
        return len(self._kept)

    def kept(self) -> List[Tuple[Hashable, Handle]]:
        """The keys and clients of the cache."""
        return list(self._kept.items())

    def generation_of(self, key: Hashable) -> int:
        return self._kept[key].generation if key in self._kept else 0

    def get(self, key: Hashable, destroy: str, make: Callable[[], ctypes.c_void_p], renew: bool = False,
            start: int = 0) -> Handle:
        if renew:
            self._kept.pop(key, None)
        handle = self._kept.get(key)
        if handle is None:
            while len(self._kept) >= MOST:
                self._kept.popitem(last=False)
            self._generation += 1
            handle = self._kept[key] = Handle(make(), destroy, self._generation, start)
            self._all.add(handle)
        self._kept.move_to_end(key)
        return handle

    def known(self, key: Hashable, start: int) -> Optional[Handle]:
        """The client of `key` whose first id is `start`, if it is in the cache."""
        handle = self._kept.get(key)
        if handle is None or handle.start != start:
            return None
        self._kept.move_to_end(key)
        return handle

    def clear(self) -> None:
        self._kept.clear()
        self.calls.clear()
        for handle in list(self._all):
            handle.close()


_alone = Clients()
_alone_lock = threading.RLock()


def of(comm: Optional[GroupComm]) -> Clients:
    if comm is None:
        return _alone
    if comm.clients is None:
        comm.clients = Clients()
    return comm.clients


def lock_of(comm: Optional[GroupComm]) -> Any:
    """The lock of a communicator's clients: a workspace serves one call at a time."""
    return _alone_lock if comm is None else comm.lock


def shared(comm: Optional[GroupComm], key: Hashable, everybody: Optional[List[Dict[str, int]]], destroy: str,
           make: Callable[[], ctypes.c_void_p], start: int = 0) -> Handle:
    """The client of `key`. With a communicator its creation is collective: if the ranks have different generations
    (generation_of, "client" in everybody), all of them create it again.
    """
    renew = False
    if everybody is not None:
        known = {one["client"] for one in everybody}
        renew = len(known) != 1 or known == {0}
    return of(comm).get(key, destroy, make if comm is None else lambda: comm.run(make), renew, start)


def size_class(tokens: int) -> int:
    """The number of tokens, rounded up to a power of two, so that batches of similar size share a client."""
    return max(1024, 1 << (max(tokens, 1) - 1).bit_length())


@atexit.register
def free_clients() -> None:
    """Frees the workspaces of calls without a group. For those of groups: bucketpool.torch.comm.close()."""
    with _alone_lock:
        _alone.clear()
