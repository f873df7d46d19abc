# SPDX-License-Identifier: Apache-2.0
"""DLPack capsules over a pool's memory, for numpy.from_dlpack and torch.from_dlpack.

The library makes and deletes the tensors (dlpack.h), because a consumer may delete one on any thread, while
an exception is raised, or after the interpreter has ended. For the same reasons capsules have no destructor.
take_back() deletes tensors that no consumer took.
"""

import ctypes
import sys
from ctypes import c_char_p, c_int, c_void_p
from typing import Any, Set

from . import _abi
from ._library import call, configured, core
from .handle import Handle

CPU, CUDA = 1, 2  # DLDeviceType
VERSION = (1, 0)  # of versioned capsules

_NAMES = {False: b"dltensor", True: b"dltensor_versioned"}
_new: Any = ctypes.pythonapi.PyCapsule_New
_new.restype, _new.argtypes = ctypes.py_object, [c_void_p, c_char_p, c_void_p]
_is_valid: Any = ctypes.pythonapi.PyCapsule_IsValid
_is_valid.restype, _is_valid.argtypes = c_int, [ctypes.py_object, c_char_p]


class ExportHandle(Handle, c_void_p):
    """An exported tensor, deleted with the last reference in Python."""

    destroy = "bp_export_delete"


def export(pool: Handle, id: int, dtype: int, versioned: bool) -> ExportHandle:
    """Exports a tensor over the memory of a request, which keeps it mapped. Raises Unsupported, InvalidArgument,
    ScheduleError (dlpack.h).
    """
    what = configured(core().bp_export_config_init, _abi.bp_export_config, id=id, dtype=dtype, versioned=int(versioned))
    handle = ExportHandle()
    call(core().bp_pool_export, pool, ctypes.byref(what), ctypes.byref(handle))
    return handle


class _Offered:
    """An exported tensor in a capsule that no consumer has taken yet."""

    __slots__ = ("exported", "capsule", "name")

    def __init__(self, exported: ExportHandle, capsule: Any, name: bytes) -> None:
        self.exported, self.capsule, self.name = exported, capsule, name

    def references(self) -> int:
        return sys.getrefcount(self.capsule)


_ALONE = _Offered(ExportHandle(), object(), b"").references()
_offered: Set[_Offered] = set()


def capsule(pool: Handle, id: int, dtype: int, versioned: bool) -> Any:
    """Makes a capsule with a tensor over the memory of a request."""
    take_back()
    exported, name = export(pool, id, dtype, versioned), _NAMES[versioned]
    made = _new(exported, name, None)  # this frame's reference keeps take_back() of other threads from deleting it
    _offered.add(_Offered(exported, made, name))
    return made


def take_back() -> None:
    """Deletes tensors that consumers refused: their capsules have the original name, and no other references."""
    for offer in list(_offered):
        refused = offer.references() <= _ALONE  # before `taken`: without other references no consumer can take it now
        taken = not _is_valid(offer.capsule, offer.name)  # consumers rename it
        if taken:
            offer.exported.value = None  # the consumer deletes it
        if taken or refused:
            _offered.discard(offer)
