# SPDX-License-Identifier: Apache-2.0
"""Communicators: groups of ranks that a runtime has made, for registration and for the log-prob client."""

import ctypes
from typing import Any, Callable, Optional

from . import _abi
from ._library import call, configured, core, recorded, viewed
from .device import Device
from .errors import InvalidArgument
from .handle import Handle, Owner, calling_back, handle_of
from .names import decoded, encoded, function_of, optional, shown, whole

Exchange = Callable[[int, int, int], Any]  # mine, bytes, all: addresses of host memory
AllGather = Callable[[int, int, int, int], Any]  # mine, all, bytes, stream
Reduce = Callable[[int, int, int, int, int, int], Any]  # from, to, count, dtype, reduction, stream


__all__ = ["Comm"]


class CommHandle(Handle, _abi.bp_comm):
    destroy = "bp_comm_destroy"


class Comm(Owner[CommHandle]):
    """A communicator: a group of ranks, for Registration. Made by Comm.self(), callback() or nccl().

    One call at a time.
    """

    def __init__(self) -> None:
        raise TypeError("Comm has no constructor; call Comm.self, Comm.callback or Comm.nccl")

    @classmethod
    def _made(cls, handle: CommHandle, function: Any, *arguments: Any) -> "Comm":
        call(function, *arguments, ctypes.byref(handle))
        comm = cls.__new__(cls)
        comm._handle = handle
        return comm

    @classmethod
    def self(cls) -> "Comm":
        """A communicator of one rank, whose collectives copy."""
        return cls._made(CommHandle(), core().bp_comm_create_self)

    @classmethod
    def callback(cls, rank: int, ranks: int, exchange: Exchange, all_gather: Optional[AllGather] = None,
                 all_reduce: Optional[Reduce] = None, reduce_scatter: Optional[Reduce] = None,
                 name: Optional[str] = None, abort: Optional[Callable[[], Any]] = None) -> "Comm":
        """A communicator over functions of the caller, called with the GIL on the calling thread.

        - exchange(mine, bytes, all): collective, blocking; addresses of host memory. `all` gets the bytes of
          all ranks in rank order.
        - all_gather(mine, all, bytes, stream)
        - all_reduce(source, to, count, dtype, reduction, stream)
        - reduce_scatter(source, to, count, dtype, reduction, stream)
        - abort(): aborts the group, for Comm.abort()

        all_gather, all_reduce and reduce_scatter get addresses of device memory, a bp_stream address (_abi.py), a
        bp_dtype and a bp_reduction. They work in stream order: they enqueue on the stream, or wait for it first. An
        exception of a function is raised by the call that used it. If exchange raises RankTimeout, every
        later call fails with it at once.
        """
        callbacks = _abi.bp_comm_callbacks(rank=whole(rank, 32, "rank"), ranks=whole(ranks, 32, "ranks"))
        fields: Any = dict(_abi.bp_comm_callbacks._fields_)  # type: ignore[arg-type]
        for field, function in (("exchange", exchange), ("all_gather", all_gather), ("all_reduce", all_reduce),
                                ("reduce_scatter", reduce_scatter), ("abort", abort)):
            if function is not None:
                setattr(callbacks, field, fields[field](_answered(function_of(function, field))))
        return cls._made(CommHandle(callbacks),
                         core().bp_comm_create_callback, ctypes.byref(callbacks), None,
                         encoded("callback" if name is None else name, "a communicator's name"))

    @classmethod
    def nccl(cls, comm: int, device: Device, name: Optional[str] = None, timeout: Optional[float] = None,
             control: Optional["Comm"] = None) -> "Comm":
        """Wraps an ncclComm_t of this process. Its creator destroys it, after the wrapper is closed.

        - comm: its address; calls go to the copy of NCCL that the process has loaded
        - device: the device of the communicator's GPU
        - timeout: seconds that an exchange waits for the other ranks; 0: no time-out; None:
          BUCKETPOOL_COMM_TIMEOUT
        - control: communicator of the same ranks in the same order, for exchanges; None: over NCCL

        Raises InvalidArgument, Unsupported (NCCL is not loaded), CommError.
        """
        other = None if control is None else handle_of(control, Comm, "control")
        at = handle_of(device, Device, "device")
        config = configured(core().bp_nccl_config_init, _abi.bp_nccl_config, comm=whole(comm, 64, "a communicator"),
                            device=at.value, name=optional(name, "a communicator's name"),
                            timeout_ms=_milliseconds(timeout), control=other if other is None else other.value)
        return cls._made(CommHandle(at, other), core().bp_comm_create_nccl, ctypes.byref(config))

    @property
    def _info(self) -> _abi.bp_comm_info:
        info: _abi.bp_comm_info = viewed(core().bp_comm_get_info, self.handle)
        return info

    @property
    def rank(self) -> int:
        return int(self._info.rank)

    @property
    def ranks(self) -> int:
        return int(self._info.ranks)

    @property
    def name(self) -> str:
        return decoded(self._info.name)

    def exchange(self, mine: bytes) -> bytes:
        """Collective: returns the bytes of all ranks in rank order. All ranks pass the same number of bytes.

        Raises CommError, RankTimeout, or the exception of the exchange function.
        """
        if not isinstance(mine, bytes):
            raise InvalidArgument(f"mine: expected bytes, got {shown(mine)}")
        everything = ctypes.create_string_buffer(len(mine) * self.ranks)
        call(core().bp_comm_exchange, self.handle, mine, len(mine), everything)
        return everything.raw

    def abort(self) -> None:
        """Aborts the wrapped communicator after a failure of a rank. Its registrations are gone; later calls are
        InvalidArgument. Not collective; any thread. Raises InvalidArgument (aborted before), CommError.
        """
        call(core().bp_comm_abort, self.handle)

    def forget(self) -> None:
        """As abort(), for a communicator that its creator has aborted or destroyed: it is not used any more."""
        core().bp_comm_forget(self.handle)

    def __repr__(self) -> str:
        return "<Comm, closed>" if self.closed else f"<Comm {self.name!r}: rank {self.rank} of {self.ranks}>"


def _milliseconds(timeout: Optional[float]) -> int:
    if timeout is None:
        return 0
    if timeout == 0:
        return _abi.BP_COMM_NO_TIMEOUT
    if not isinstance(timeout, (int, float)) or not 0.001 <= timeout <= 1000000:
        raise InvalidArgument(f"timeout: expected seconds, 0 or in [0.001, 1000000], got {shown(timeout)}")
    return int(timeout * 1000)


def _answered(function: Callable[..., Any]) -> Callable[..., int]:
    """The function for C: without C's first argument, and with exceptions as a status and its message."""

    def answer(_user: Any, *arguments: Any) -> int:
        with calling_back():
            try:
                function(*[0 if argument is None else argument for argument in arguments])
                return _abi.BP_OK
            except BaseException as error:
                return recorded(error)

    return answer
