"""Memory of a pool as DLPack capsules: what numpy.from_dlpack and torch.from_dlpack read.

The structs are those of the DLPack specification 1.0 (github.com/dmlc/dlpack, include/dlpack/dlpack.h): managed tensors of one dimension,
with and without a version. A consumer keeps the mapping of the pool alive, never a hold on the buffer."""

import ctypes
import sys
from ctypes import CFUNCTYPE, POINTER, Structure, c_int32, c_int64, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p
from typing import Any, Dict, NamedTuple, Tuple

from . import _abi
from .names import dtype_name

CPU, CUDA = 1, 2  # DLDeviceType
VERSION = (1, 0)  # of what is made where a version is asked for

_INT, _UINT, _FLOAT, _BFLOAT, _COMPLEX, _BOOL = 0, 1, 2, 4, 5, 6  # DLDataTypeCode
_TYPES: Dict[int, Tuple[int, int]] = {
    _abi.BP_DTYPE_FP64: (_FLOAT, 64), _abi.BP_DTYPE_FP32: (_FLOAT, 32), _abi.BP_DTYPE_FP16: (_FLOAT, 16), _abi.BP_DTYPE_BF16: (_BFLOAT, 16),
    _abi.BP_DTYPE_UINT8: (_UINT, 8), _abi.BP_DTYPE_INT8: (_INT, 8), _abi.BP_DTYPE_UINT16: (_UINT, 16), _abi.BP_DTYPE_INT16: (_INT, 16),
    _abi.BP_DTYPE_UINT32: (_UINT, 32), _abi.BP_DTYPE_INT32: (_INT, 32), _abi.BP_DTYPE_UINT64: (_UINT, 64), _abi.BP_DTYPE_INT64: (_INT, 64),
    _abi.BP_DTYPE_BOOL: (_BOOL, 8), _abi.BP_DTYPE_COMPLEX64: (_COMPLEX, 64)}


class _Device(Structure):
    _fields_ = [("type", c_int32), ("id", c_int32)]


class _DataType(Structure):
    _fields_ = [("code", c_uint8), ("bits", c_uint8), ("lanes", c_uint16)]


class _Tensor(Structure):
    _fields_ = [("data", c_void_p), ("device", _Device), ("ndim", c_int32), ("dtype", _DataType), ("shape", POINTER(c_int64)),
                ("strides", POINTER(c_int64)), ("byte_offset", c_uint64)]


_deleter = CFUNCTYPE(None, c_void_p)


class _Managed(Structure):
    _fields_ = [("tensor", _Tensor), ("context", c_void_p), ("deleter", _deleter), ("extent", c_int64 * 2)]


class _ManagedVersioned(Structure):
    _fields_ = [("major", c_uint32), ("minor", c_uint32), ("context", c_void_p), ("deleter", _deleter), ("flags", c_uint64),
                ("tensor", _Tensor), ("extent", c_int64 * 2)]


class Lent(NamedTuple):
    """What a consumer has: the struct, whom it keeps alive, and the capsule, until somebody has taken it."""

    managed: Any
    keeps: Any
    capsule: Any


_lent: Dict[int, Lent] = {}


def _take(managed: int) -> None:
    _lent.pop(managed, None)


_back = _deleter(_take)


_new = ctypes.pythonapi.PyCapsule_New
_new.restype, _new.argtypes = ctypes.py_object, [c_void_p, ctypes.c_char_p, c_void_p]
_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_is_valid.restype, _is_valid.argtypes = ctypes.c_int, [ctypes.py_object, ctypes.c_char_p]
_NAMES = {False: b"dltensor", True: b"dltensor_versioned"}


def has_type(dtype: int) -> bool:
    """Whether DLPack has it; it has no packed 4-bit and 6-bit types here."""
    return dtype in _TYPES


def capsule(address: int, count: int, dtype: int, device: Tuple[int, int], keeps: Any, versioned: bool) -> Any:
    """A capsule of `count` elements at an address. `keeps` lives until the consumer gives the tensor back."""
    if dtype not in _TYPES:
        raise BufferError(f"DLPack has no {dtype_name(dtype)}: ask for uint8")
    take_back()
    code, bits = _TYPES[dtype]
    managed: Any = _ManagedVersioned() if versioned else _Managed()
    managed.extent[0], managed.extent[1] = count, 1
    first = ctypes.addressof(managed) + type(managed).extent.offset
    managed.tensor = _Tensor(address, _Device(*device), 1, _DataType(code, bits, 1), ctypes.cast(first, POINTER(c_int64)),
                             ctypes.cast(first + 8, POINTER(c_int64)), 0)
    managed.deleter = _back
    if versioned:
        managed.major, managed.minor = VERSION
    where = ctypes.addressof(managed)
    made = _new(where, _NAMES[versioned], None)
    _lent[where] = Lent(managed, keeps, made)
    return made


def _references(lent: Lent) -> int:
    return sys.getrefcount(lent.capsule)


_ALONE = _references(Lent(None, None, object()))


def take_back() -> None:
    """Takes back what consumers refused: a capsule that nobody has, still by its first name."""
    for where, lent in list(_lent.items()):
        if _references(lent) <= _ALONE and any(_is_valid(lent.capsule, name) for name in _NAMES.values()):
            _lent.pop(where, None)
