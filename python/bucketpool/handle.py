# SPDX-License-Identifier: Apache-2.0
"""Handles: objects of the library that Python owns.

A Handle is the pointer, of the type that functions of _abi.py expect: ctypes refuses another handle. It
destroys its object with the last Python reference. A running call keeps a reference, so an object may be closed
while another thread is inside one of its calls, and the garbage collector may find objects in any order. The
library itself keeps a device alive while it has streams, events or pools.

Objects are not destroyed

- on a thread of a device inside a callback from the library, where waiting for streams would be a deadlock:
  this is done at the next occasion;
- after the interpreter has begun to exit: _exit() waits for calls that would run Python, and the system frees
  the rest.

In a forked child the library refuses the devices of the parent and frees nothing when they are destroyed.

Copies. A copy of an object that never changes, of a device or of a stream (Owner.shared) is a second reference, also
as a part of what copy.deepcopy copies. Copies of other objects, and pickles of all but plans, which are their
documents, are TypeErrors.
"""

import atexit
import collections
import os
import threading
from ctypes import byref
from types import TracebackType
from typing import Any, Callable, ClassVar, Deque, Generic, List, Optional, Tuple, Type, TypeVar

from ._abi import Uncopied
from ._library import core
from .errors import InvalidArgument
from .names import shown

H = TypeVar("H", bound="Handle")
S = TypeVar("S", bound="Owner[Any]")


class _Here(threading.local):
    callbacks: int = 0  # depth of calls of the library into Python on this thread


class _Life:
    """State of the process, passed by reference because modules may be gone when it is used."""

    over = False  # the interpreter exits
    here = _Here()
    late: Deque[Tuple[str, int, Tuple[Any, ...]]] = collections.deque()  # objects whose destruction is postponed
    at_exit: List[Callable[[], None]] = []
    after_fork: List[Callable[[], None]] = []


def _end(name: str, address: int) -> None:
    destroy = getattr(core(), name)
    destroy(byref(destroy.argtypes[0]._type_(address)))


def end_late() -> None:
    """Destroys the objects whose destruction was postponed."""
    while _Life.late and _Life.here.callbacks == 0 and not _Life.over:
        try:
            name, address, _kept = _Life.late.popleft()
        except IndexError:  # another thread took it
            return
        _end(name, address)


class Handle(Uncopied):
    """A pointer that Python owns; subclasses are pointers of _abi.py too. `keeps`: objects that must live as long, such
    as functions that it calls.
    """

    destroy: ClassVar[str] = ""
    value: Optional[int]
    __hash__ = object.__hash__

    def __init__(self, *keeps: Any) -> None:
        super().__init__()
        self.keeps = keeps
        end_late()

    def __del__(self, life: Type[_Life] = _Life) -> None:
        if not self.value or life.over:
            return
        if life.here.callbacks:
            life.late.append((self.destroy, self.value, self.keeps))
        else:
            _end(self.destroy, self.value)


class Owner(Uncopied, Generic[H]):
    """An object of the library. close(), or the end of a `with` block, drops the reference to it."""

    shared: ClassVar[bool] = False  # a copy is a second reference, which is closed separately
    _handle: Optional[H] = None

    def __copy__(self: S) -> S:
        if not self.shared:
            super().__copy__()
        copied = type(self).__new__(type(self))
        copied.__dict__.update(self.__dict__)
        return copied

    @property
    def handle(self) -> H:
        """The handle for functions of _abi.py; it keeps the object alive. Raises InvalidArgument after close()."""
        handle = self._handle
        if handle is None:
            raise InvalidArgument(f"this {type(self).__name__} is closed")
        return handle

    @property
    def closed(self) -> bool:
        """True after close()."""
        return self._handle is None

    def close(self) -> None:
        """Drops the reference. The object is destroyed when no call and no other object uses it. May be repeated."""
        self._handle = None

    def __enter__(self: S) -> S:
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], value: Optional[BaseException],
                 trace: Optional[TracebackType]) -> None:
        self.close()


def handle_of(owner: Any, kind: Type[Owner[H]], what: str) -> H:
    """The handle of an argument. Raises InvalidArgument, which names the argument, if it is of another class or
    closed.
    """
    if not isinstance(owner, kind):
        raise InvalidArgument(f"{what}: expected a {kind.__name__}, got {shown(owner)}")
    if owner._handle is None:
        raise InvalidArgument(f"{what}: this {kind.__name__} is closed")
    return owner._handle


class calling_back:
    """A context around Python code that the library calls."""

    def __enter__(self) -> None:
        _Life.here.callbacks += 1

    def __exit__(self, *_exception: Any) -> None:
        _Life.here.callbacks -= 1


def exiting() -> bool:
    """True after the interpreter has begun to exit."""
    return _Life.over


def at_exit(function: Callable[[], None]) -> None:
    """Registers a function to call when the interpreter exits, before modules are destroyed."""
    _Life.at_exit.append(function)


def _exit() -> None:
    for function in _Life.at_exit:
        function()
    _Life.over = True


def after_fork(function: Callable[[], None]) -> None:
    """Registers a function to call in forked children, which lack the threads of the parent."""
    _Life.after_fork.append(function)


def _forked() -> None:
    for function in _Life.after_fork:
        function()
    _Life.here = _Here()
    _Life.late.clear()


atexit.register(_exit)
os.register_at_fork(after_in_child=_forked)
