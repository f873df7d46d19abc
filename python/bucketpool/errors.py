# SPDX-License-Identifier: Apache-2.0
"""Exceptions: one for each status of the library, with its message. All derive from Error."""

from typing import Dict, Type

from . import _abi

__all__ = ["CaptureError", "CommError", "DeviceError", "Error", "FileError", "FormatError", "Infeasible",
           "InternalError", "InvalidArgument", "Mismatch", "NoDevice", "NoDeviceMemory", "NoHostMemory", "RankTimeout",
           "ScheduleError", "SizeOverflow", "Unsupported"]


class Error(Exception):
    """An error of the library. The message names the object, what is wrong and what to do. status: the bp_status."""

    status: int = 0


class InvalidArgument(Error, ValueError):
    """An argument is wrong, whatever the state of the object."""


class NoHostMemory(Error, MemoryError):
    """The host is out of memory."""


class NoDeviceMemory(Error, MemoryError):
    """The device, or the memory that a pool was created with, is used up."""


class NoDevice(Error):
    """The device or its driver was not found."""


class ScheduleError(Error):
    """A call in the wrong order, for example an acquire of memory that another request uses. The message names both
    requests and the buffer.
    """


class CaptureError(Error):
    """Not allowed while a graph is being captured."""


class Unsupported(Error):
    """A valid request that this library, device or communicator does not support."""


class SizeOverflow(Error, OverflowError):
    """A size does not fit 64 bits."""


class Infeasible(Error):
    """The input is valid, but no plan satisfies it."""


class FileError(Error, OSError):
    """A file is missing, unreadable, or cannot be written."""


class FormatError(Error, ValueError):
    """The contents of a file are malformed. The message has the line or the JSON path."""


class Mismatch(Error, ValueError):
    """Two inputs that must agree differ: a plan and its model, a size and its plan, the ranks."""


class InternalError(Error):
    """An invariant of the library is broken; please report it."""


class DeviceError(Error):
    """The device or its driver failed. The message quotes the driver."""


class CommError(Error):
    """A communicator failed on this rank or on the rank that the message names."""


class RankTimeout(CommError, TimeoutError):
    """Ranks did not answer within the time-out of a communicator. The message names them if the transport
    reports them. End the job: later calls fail at once.
    """


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
