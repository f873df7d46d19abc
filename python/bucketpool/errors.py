"""Exceptions: one for each status of the library, with the sentence that it recorded."""

from typing import Dict, Type

from . import _abi


class Error(Exception):
    """What the library refused, in its own words: what happened, the numbers, what to do. `status` is its bp_status."""

    status: int = 0


class InvalidArgument(Error, ValueError):
    """A value that can never be right."""


class NoHostMemory(Error, MemoryError):
    """The host is out of memory."""


class NoDeviceMemory(Error, MemoryError):
    """The device, or the memory that a pool was made with, is used up."""


class NoDevice(Error):
    """There is no such device, or no driver for it."""


class ScheduleError(Error):
    """An acquire or release out of the order that the schedule allows. Names the request, its buffer and who holds
    it."""


class CaptureError(Error):
    """Not allowed while a graph is being captured."""


class Unsupported(Error):
    """Well-formed, but this library, device or communicator cannot do it."""


class SizeOverflow(Error, OverflowError):
    """A size does not fit 64 bits."""


class Infeasible(Error):
    """Well-formed, but no plan satisfies it."""


class FileError(Error, OSError):
    """A file is missing, unreadable, or cannot be written."""


class FormatError(Error, ValueError):
    """A file was read and is malformed. Names the line or the JSON path."""


class Mismatch(Error, ValueError):
    """Two things that must agree do not: a plan and its model, a size and its plan, ranks."""


class InternalError(Error):
    """The library broke its own invariant; please report it."""


class DeviceError(Error):
    """The device or its driver failed; its own words are in the message."""


class CommError(Error):
    """A communicator failed, here or on the rank that the message names."""


class RankTimeout(CommError, TimeoutError):
    """Ranks did not answer within the time-out of a communicator. The message names them where they are known."""


OF_STATUS: Dict[int, Type[Error]] = {
    _abi.BP_ERR_INVALID_ARGUMENT: InvalidArgument,
    _abi.BP_ERR_NO_HOST_MEMORY: NoHostMemory,
    _abi.BP_ERR_NO_DEVICE_MEMORY: NoDeviceMemory,
    _abi.BP_ERR_NO_DEVICE: NoDevice,
    _abi.BP_ERR_SCHEDULE: ScheduleError,
    _abi.BP_ERR_CAPTURE: CaptureError,
    _abi.BP_ERR_UNSUPPORTED: Unsupported,
    _abi.BP_ERR_OVERFLOW: SizeOverflow,
    _abi.BP_ERR_INFEASIBLE: Infeasible,
    _abi.BP_ERR_IO: FileError,
    _abi.BP_ERR_FORMAT: FormatError,
    _abi.BP_ERR_MISMATCH: Mismatch,
    _abi.BP_ERR_INTERNAL: InternalError,
    _abi.BP_ERR_DEVICE: DeviceError,
    _abi.BP_ERR_COMM: CommError,
    _abi.BP_ERR_TIMEOUT: RankTimeout,
}
for _status, _kind in OF_STATUS.items():
    _kind.status = _status
