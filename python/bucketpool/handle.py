"""Objects of the library that Python owns.

A Handle is the pointer. It ends its object when nothing refers to it any more: calls under way refer to it, so
closing an object in one thread while another is inside one of its calls is safe, and so is any order in which the
garbage collector finds objects. What the library keeps alive by itself (a device, while it has streams, events or
pools) needs no reference from here.

Nothing is ended at two moments: on a thread of a device, inside one of the library's calls back into Python, where
waiting for streams would wait for itself (it is ended at the next occasion); and when the interpreter has begun to
exit, which waits for calls that would run Python and leaves the rest to the system. In a forked child the library
itself refuses the parent's devices, and leaves them as they are when they are ended."""

import atexit
import collections
import os
import threading
from ctypes import byref, c_void_p
from types import TracebackType
from typing import Any, Callable, ClassVar, Deque, Generic, List, Optional, Tuple, Type, TypeVar

from ._library import core
from .errors import InvalidArgument

H = TypeVar("H", bound="Handle")
S = TypeVar("S", bound="Owner[Any]")


class _Here(threading.local):
    callbacks: int = 0  # how many calls of the library into Python this thread is inside


class _Life:
    """Of the process: held by reference where modules may be gone already."""

    over = False  # the interpreter exits
    here = _Here()
    late: Deque[Tuple[str, int, Tuple[Any, ...]]] = collections.deque()  # to be ended at the next occasion
    at_exit: List[Callable[[], None]] = []
    after_fork: List[Callable[[], None]] = []


def _end(name: str, address: int) -> None:
    getattr(core(), name)(byref(c_void_p(address)))


def end_late() -> None:
    """Ends what could not be ended when it was given up."""
    while _Life.late and _Life.here.callbacks == 0 and not _Life.over:
        try:
            name, address, _kept = _Life.late.popleft()
        except IndexError:  # another thread took it
            return
        _end(name, address)


class Handle(c_void_p):
    """A pointer that Python owns. `keeps`: what must live as long as the object, such as functions that it calls."""

    destroy: ClassVar[str] = ""
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


class Owner(Generic[H]):
    """What has a handle and can be closed. `with` closes it at the end."""

    _handle: Optional[H] = None

    @property
    def handle(self) -> H:
        """The object for functions of _abi.py, as an argument that keeps it alive. InvalidArgument when it is
        closed."""
        handle = self._handle
        if handle is None:
            raise InvalidArgument(f"this {type(self).__name__} is closed")
        return handle

    @property
    def closed(self) -> bool:
        """True after close()."""
        return self._handle is None

    def close(self) -> None:
        """Gives the object up; it ends when no call and nothing that was made of it uses it. Closing twice is
        nothing."""
        self._handle = None

    def __enter__(self: S) -> S:
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], value: Optional[BaseException],
                 trace: Optional[TracebackType]) -> None:
        self.close()


class calling_back:
    """Around Python that the library calls."""

    def __enter__(self) -> None:
        _Life.here.callbacks += 1

    def __exit__(self, *_exception: Any) -> None:
        _Life.here.callbacks -= 1


def at_exit(function: Callable[[], None]) -> None:
    """Called when the interpreter exits, before anything is taken apart."""
    _Life.at_exit.append(function)


def _exit() -> None:
    for function in _Life.at_exit:
        function()
    _Life.over = True


def after_fork(function: Callable[[], None]) -> None:
    """Called in forked children, which lack the threads of the parent."""
    _Life.after_fork.append(function)


def _forked() -> None:
    for function in _Life.after_fork:
        function()
    _Life.here = _Here()
    _Life.late.clear()


atexit.register(_exit)
os.register_at_fork(after_in_child=_forked)
