# SPDX-License-Identifier: Apache-2.0
"""Loads the shared libraries and declares their functions.

core() is libbucketpool; formats() and logprob() are loaded on first use. A library is searched in the folders
of BUCKETPOOL_LIBRARY_PATH (separated by ':'), in lib beside this file (wheels), and by the loader of the
system. call(), made() and filled() call a function that returns a bp_status and raise its exception.
"""

import atexit
import ctypes
import functools
import importlib.machinery
import importlib.util
import operator
import os
import sys
from typing import Any, Dict, List, Tuple, Type, TypeVar

from . import _abi
from .errors import OF_STATUS, Error, InvalidArgument

T = TypeVar("T", bound=ctypes.Structure)


def _candidates(name: str) -> List[str]:
    file = f"lib{name}.so.0"
    folders = [folder for folder in os.environ.get("BUCKETPOOL_LIBRARY_PATH", "").split(":") if folder]
    folders.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib"))
    return [os.path.join(folder, file) for folder in folders if os.path.exists(os.path.join(folder, file))] + [file]


@functools.lru_cache(maxsize=None)
def _checked(kind: Any) -> Any:
    """The type of an argument, without ctypes' conversions: integers are not cut to the width of the argument, and
    numbers and texts are no addresses of objects.
    """
    if not issubclass(kind, ctypes._SimpleCData) or kind in (ctypes.c_char_p, ctypes.c_double, ctypes.c_float):
        return kind
    if issubclass(kind, ctypes.c_void_p):
        check = _address if kind is ctypes.c_void_p else functools.partial(_object, kind)
    else:
        bits, signed = 8 * ctypes.sizeof(kind), kind(-1).value < 0
        low, high = (-1 << bits - 1, 1 << bits - 1) if signed else (0, 1 << bits)
        check = functools.partial(_integer, kind, low, high)
    return type(kind)(kind.__name__, (kind, ), {"from_param": staticmethod(check)})


def _integer(kind: Any, low: int, high: int, value: Any) -> Any:
    number = operator.index(getattr(value, "value", value))  # ctypes' and numpy's integers, too
    if not low <= number < high:
        raise InvalidArgument(f"expected an integer in [{low}, {high}), got {number}")
    return kind(number)


def _address(value: Any) -> Any:
    if isinstance(value, str) or isinstance(value, int) and not 0 <= value < 1 << 64:
        raise InvalidArgument(f"expected an address in [0, 2^64), got {value!r}")
    return ctypes.c_void_p.from_param(value)


def _object(kind: Any, value: Any) -> Any:
    if value is not None and not isinstance(value, kind):
        raise InvalidArgument(f"expected a {kind.__name__}, got {type(value).__name__}")
    return value


def _load(name: str, functions: Dict[str, Tuple[Any, List[Any]]]) -> ctypes.CDLL:
    for candidate in _candidates(name):
        try:
            library = ctypes.CDLL(candidate, mode=ctypes.RTLD_GLOBAL)
            break
        except OSError as error:
            reason = error
    else:
        raise ImportError(
            f"lib{name}.so.0 was not found: {reason}; install the bucketpool wheel, or set BUCKETPOOL_LIBRARY_PATH "
            "to the folder of a build")
    for function, (result, arguments) in functions.items():
        declared = getattr(library, function, None)
        if declared is None:
            raise ImportError(f"{library._name}: no function {function}, because it is another version than this "
                              "package; install the same version of both")
        declared.restype, declared.argtypes = result, [_checked(kind) for kind in arguments]
    return library


def _check_interpreter() -> None:
    """Callbacks of the library, and ends of tensors, run in the main interpreter."""
    current: Any = ctypes.pythonapi.PyInterpreterState_Get
    number: Any = ctypes.pythonapi.PyInterpreterState_GetID
    current.restype, number.restype, number.argtypes = ctypes.c_void_p, ctypes.c_int64, [ctypes.c_void_p]
    if number(current()) != 0:
        raise ImportError("bucketpool: subinterpreters are unsupported; import it in the main interpreter")


@functools.lru_cache(maxsize=None)
def core() -> ctypes.CDLL:
    """libbucketpool: plans, pools, devices, communicators."""
    _check_interpreter()
    return _load("bucketpool", _abi.FUNCTIONS["core"])


@functools.lru_cache(maxsize=None)
def formats() -> ctypes.CDLL:
    """libbucketpool-formats: readers and writers."""
    core()
    return _load("bucketpool-formats", _abi.FUNCTIONS["formats"])


@functools.lru_cache(maxsize=None)
def logprob() -> ctypes.CDLL:
    """libbucketpool-logprob: log-probabilities, losses, the fused head."""
    core()
    return _load("bucketpool-logprob", _abi.FUNCTIONS["logprob"])


@functools.lru_cache(maxsize=None)
def binding() -> Any:
    """The compiled calls of each step (python/binding.c), or None: for older versions than Python 3.11, without
    a GIL, with BUCKETPOOL_BINDING=off, and where it was not built. It is beside the libraries in a wheel, in python
    in a build, and in the package where the loader of the system finds the libraries.
    """
    libraries = os.path.dirname(core()._name)  # empty: the loader found them; the current folder is not searched
    folders = [libraries, os.path.join(libraries, os.pardir, "python")] if libraries else []
    folders.append(os.path.dirname(os.path.abspath(__file__)))
    paths = [path for path in (os.path.join(folder, "_binding.abi3.so") for folder in folders) if os.path.exists(path)]
    if not paths or sys.version_info < (3, 11) or "t" in sys.abiflags or os.environ.get("BUCKETPOOL_BINDING") == "off":
        return None
    loader = importlib.machinery.ExtensionFileLoader("bucketpool._binding", paths[0])
    spec = importlib.util.spec_from_file_location(loader.name, loader.path, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    from .device import StreamHandle, refuse_stream  # these import this module
    from .pool import PoolHandle
    addresses = [ctypes.cast(getattr(core(), name), ctypes.c_void_p).value
                 for name in ("bp_pool_try_acquire", "bp_pool_use", "bp_pool_release")]
    module.bind(*addresses, PoolHandle, StreamHandle, refuse_stream)
    atexit.register(module.stop)
    return module


def failure(status: int) -> Error:
    """The exception of a status, with the message of this thread."""
    detail = core().bp_error_detail().decode(errors="replace")
    name = core().bp_status_name(status).decode()
    kind = OF_STATUS.get(status, Error)
    error = kind(detail or name)
    error.status = status
    return error


def words_of(error: BaseException) -> bytes:
    """The message of any exception, as bytes for C."""
    try:
        text = str(error)
    except Exception:
        text = "an exception without a message"
    named = text if isinstance(error, Error) else f"{type(error).__name__}: {text}"
    return named.replace("\0", " ").encode(errors="backslashreplace")


def status_of(error: BaseException) -> int:
    """The bp_status for an exception: that of an Error, else BP_ERR_COMM."""
    return (error.status if isinstance(error, Error) else 0) or _abi.BP_ERR_COMM


def recorded(error: BaseException, where: str = "") -> int:
    """Records an exception of Python code that C called, and returns the status for C. Never raises, because C
    would take that for success.
    """
    words = words_of(error) if isinstance(error, Error) else where.encode(errors="backslashreplace") + words_of(error)
    return int(core().bp_error_record(status_of(error), words))


def call(function: Any, *arguments: Any) -> None:
    """Calls a function that returns a bp_status. Raises the exception of an error."""
    try:
        status = function(*arguments)
    except ctypes.ArgumentError as error:
        raise InvalidArgument(f"{function.__name__}: {error}") from None
    if status != _abi.BP_OK:
        raise failure(status)


def made(function: Any, *arguments: Any) -> ctypes.c_void_p:
    """Calls a function whose last argument is the created object. The caller owns the result."""
    handle: ctypes.c_void_p = function.argtypes[-1]._type_()
    call(function, *arguments, ctypes.byref(handle))
    return handle


def filled(function: Any, kind: Type[T], *arguments: Any) -> T:
    """Calls a getter whose last argument is a struct, and returns the struct."""
    struct = kind()
    call(function, *arguments, ctypes.byref(struct))
    return struct


def viewed(function: Any, handle: Any) -> Any:
    """The struct of bp_x_get_info. It keeps the handle and so the object alive; copy values before it is
    dropped.
    """
    info = function(handle).contents
    info.handle = handle
    return info


def configured(init: Any, kind: Type[T], /, **values: Any) -> T:
    """A configuration struct with the library's defaults and these values; None leaves the default."""
    struct = kind()
    call(init, ctypes.byref(struct), ctypes.sizeof(kind))
    for name, value in values.items():
        if not hasattr(struct, name):
            raise TypeError(f"{kind.__name__} has no field {name}")
        if value is not None:
            put(struct, name, value)
    return struct


def put(struct: ctypes.Structure, name: str, value: Any) -> None:
    """Sets a field of a struct. Raises InvalidArgument if the field cannot hold the value, which ctypes would
    truncate.
    """
    if hasattr(value, "__index__"):  # numpy's numbers, too
        value = operator.index(value)
    try:
        setattr(struct, name, value)
    except TypeError:
        raise InvalidArgument(f"{name}: unexpected type {type(value).__name__} of {value!r}") from None
    if isinstance(value, (int, bytes)) and getattr(struct, name) != value:
        raise InvalidArgument(f"{name}: {value!r} does not fit the field")
