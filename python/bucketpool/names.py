# SPDX-License-Identifier: Apache-2.0
"""Conversion of names (dtypes, roles, policies and other enumerations) to the integers of the library."""

import collections.abc
import functools
import operator
import os
from ctypes import byref, c_int
from typing import Any, Dict, Iterable, List, Mapping, Optional, Union

from . import _abi
from ._library import call, core
from .errors import InvalidArgument

DType = Any  # "bf16", "torch.bfloat16", torch.bfloat16, numpy.float32, an integer of the C interface
Path = Union[str, "os.PathLike[str]"]


def encoded(text: str, what: str) -> bytes:
    """A string as bytes for C. Raises InvalidArgument if it is not a string or has a NUL."""
    if not isinstance(text, str):
        raise InvalidArgument(f"{what}: expected a string, got {shown(text)}")
    if "\0" in text:
        raise InvalidArgument(f"{what}: NUL character in {text!r}; leave it out")
    return utf8(text, what)


def utf8(text: str, what: str) -> bytes:
    """The bytes of a text. Raises InvalidArgument for half of a surrogate pair."""
    try:
        return text.encode(errors="surrogateescape")
    except UnicodeEncodeError:
        raise InvalidArgument(f"{what}: {shown(text)} is not a text: it has half of a surrogate pair") from None


def optional(text: Optional[str], what: str) -> Optional[bytes]:
    return None if text is None else encoded(text, what)


def encoded_path(path: Path) -> bytes:
    try:
        text = os.fsdecode(path)
    except TypeError:
        raise InvalidArgument(f"a path: expected a string or os.PathLike, got {shown(path)}") from None
    if not text:
        raise InvalidArgument("a path: empty; give the name of a file or a directory")
    return encoded(text, "a path")


def decoded(text: Optional[bytes]) -> str:
    return "" if text is None else text.decode(errors="replace")


def shown(value: Any) -> str:
    """An argument as messages show it: simple values, else the type."""
    if value is None or isinstance(value, (bool, int, float, str, bytes)):
        text = repr(value)
        return text if len(text) <= 60 else f"{text[:60]}..."
    name = value.__name__ if isinstance(value, type) else type(value).__name__
    article = "an" if name[:1] in "AEIOUaeiou" else "a"
    return f"the class {name}" if isinstance(value, type) else f"{article} {name}"


def list_of(value: Any, what: str) -> List[Any]:
    """The items of an argument. Raises InvalidArgument for texts and single values."""
    if isinstance(value, (str, bytes)) or not hasattr(type(value), "__iter__"):
        raise InvalidArgument(f"{what}: expected a list, got {shown(value)}; pass a list, also of one item")
    return list(value)


def flag(value: Any, what: str) -> int:
    """0 or 1. Raises InvalidArgument if the value is neither a bool nor 0 or 1: "false" would be true."""
    if isinstance(value, int) and value in (0, 1) or type(value).__name__ in ("bool", "bool_"):  # numpy's
        return int(value)
    raise InvalidArgument(f"{what}: expected True or False, got {shown(value)}")


def mapping_of(value: Any, what: str) -> Mapping[Any, Any]:
    """A mapping. Raises InvalidArgument if the value is none."""
    if not isinstance(value, collections.abc.Mapping):
        raise InvalidArgument(f"{what}: expected a dictionary, got {shown(value)}")
    return value


def function_of(value: Any, what: str) -> Any:
    """A function. Raises InvalidArgument if the value cannot be called."""
    if not callable(value):
        raise InvalidArgument(f"{what}: expected a function, got {shown(value)}")
    return value


def whole(value: Any, bits: int, what: str) -> int:
    """An unsigned integer of at most `bits` bits. Raises InvalidArgument instead of wrapping around."""
    try:
        number = operator.index(value)
    except TypeError:
        raise InvalidArgument(f"{what}: expected an integer, got {shown(value)}") from None
    if not 0 <= number < 1 << bits:
        raise InvalidArgument(f"{what}: expected an integer in [0, 2^{bits}), got {number}")
    return int(number)


@functools.lru_cache(maxsize=None)
def members(prefix: str) -> Dict[str, int]:
    """Members of a C enumeration by lower-case name: members("BP_STRICT_") is {"off": 1, "warn": 2, "error": 3}."""
    return {
        name[len(prefix):].lower(): value
        for name, value in vars(_abi).items() if name.startswith(prefix) and not name.endswith("_COUNT")
    }


def member(prefix: str, value: Any, what: str) -> int:
    """The value of a member, by name ('-' and '_' are equal) or number."""
    known = members(prefix)
    if isinstance(value, int) and not isinstance(value, bool) and value in known.values():
        return value
    number = known.get(value.lower().replace("-", "_")) if isinstance(value, str) else None
    if number is None:
        raise InvalidArgument(f"unknown {what} {value!r}; expected one of {', '.join(known)}")
    return number


def name_of(prefix: str, value: int) -> str:
    for name, number in members(prefix).items():
        if number == value:
            return name
    return str(value)


@functools.lru_cache(maxsize=256)
def _parsed(spelling: str) -> int:
    parsed = c_int()
    call(core().bp_dtype_parse, encoded(spelling, "a dtype"), byref(parsed))
    return parsed.value


def dtype(value: DType) -> int:
    """The bp_dtype of a name in any spelling, or of a torch or numpy dtype. None: BP_DTYPE_NONE.

    Raises InvalidArgument, which lists the names.
    """
    if value is None:
        return _abi.BP_DTYPE_NONE
    if isinstance(value, int) and not isinstance(value, bool):
        if not 0 <= value < _abi.BP_DTYPE_COUNT:
            raise InvalidArgument(f"unknown dtype {value}; expected a number in [0, {_abi.BP_DTYPE_COUNT})")
        return value
    if isinstance(value, type):  # numpy.float32
        value = value.__name__
    elif not isinstance(value, str):
        value = getattr(value, "name", None) or str(value)  # numpy's dtypes, torch's
    return _parsed(value)


def dtype_name(value: int) -> str:
    return decoded(core().bp_dtype_name(value))


def role(value: Any) -> int:
    """The bp_role of a name ("param") or number. Runtimes may use other numbers for their roles."""
    if isinstance(value, int) and not isinstance(value, bool):
        return whole(value, 31, "a role")
    parsed = c_int()
    call(core().bp_role_parse, encoded(value, "a role"), byref(parsed))
    return parsed.value


def role_name(value: int) -> str:
    return decoded(core().bp_role_name(value)) if value < _abi.BP_ROLE_COUNT else str(value)


def role_bits(roles: Iterable[Any]) -> int:
    """The BP_ROLE_BIT mask of several roles."""
    if isinstance(roles, str):
        roles = roles.split(",")
    bits = 0
    for each in list_of(roles, "roles"):
        number = role(each)
        if number >= _abi.BP_ROLE_COUNT:
            raise InvalidArgument(f"unknown role {number}; expected a number in [0, {_abi.BP_ROLE_COUNT})")
        bits |= 1 << number
    return bits


def role_names(bits: int) -> List[str]:
    return [role_name(number) for number in range(_abi.BP_ROLE_COUNT) if bits >> number & 1]


def lane(value: Any) -> int:
    """The lane of a name ("gather", "compute", "reduce", "outer_reduce") or number; None: any."""
    if value is None:
        return _abi.BP_LANE_ANY
    if isinstance(value, int) and not isinstance(value, bool):
        return whole(value, 32, "a lane")
    return member("BP_LANE_", value, "lane")


def fingerprint_text(value: Optional[str]) -> Optional[bytes]:
    return optional(value, "a fingerprint")
