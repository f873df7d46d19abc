"""Names of dtypes, roles, policies and other enumerations: strings here, integers in the library."""

import functools
import os
from ctypes import byref, c_int
from typing import Any, Dict, Iterable, List, Optional, Union

from . import _abi
from ._library import call, core
from .errors import InvalidArgument

DType = Any  # "bf16", "torch.bfloat16", torch.bfloat16, numpy.float32, an integer of the C interface
Path = Union[str, "os.PathLike[str]"]


def encoded(text: str, what: str) -> bytes:
    """A string for C. InvalidArgument where it is none, or has a NUL inside."""
    if not isinstance(text, str):
        raise InvalidArgument(f"{what} is a string, not {text!r}")
    if "\0" in text:
        raise InvalidArgument(f"{what} {text!r} has a NUL character")
    return text.encode(errors="surrogateescape")


def optional(text: Optional[str], what: str) -> Optional[bytes]:
    return None if text is None else encoded(text, what)


def encoded_path(path: Path) -> bytes:
    encoded(os.fsdecode(path), "a path")
    return os.fsencode(path)


def decoded(text: Optional[bytes]) -> str:
    return "" if text is None else text.decode(errors="replace")


def whole(value: Any, bits: int, what: str) -> int:
    """An unsigned number of so many bits; InvalidArgument instead of wrapping around."""
    try:
        number = value.__index__()
    except AttributeError:
        raise InvalidArgument(f"{what} is a whole number, not {value!r}") from None
    if not 0 <= number < 1 << bits:
        raise InvalidArgument(f"{what} is {number}, and must be at least 0 and less than 2^{bits}")
    return int(number)


@functools.lru_cache(maxsize=None)
def members(prefix: str) -> Dict[str, int]:
    """Of an enumeration of the C interface, by lower-case names: members("BP_STRICT_") is {"off": 1, "warn": 2,
    "error": 3}."""
    return {
        name[len(prefix):].lower(): value
        for name, value in vars(_abi).items() if name.startswith(prefix) and not name.endswith("_COUNT")
    }


def member(prefix: str, value: Any, what: str) -> int:
    """A member by its name, in which '-' and '_' are the same, or by its number."""
    known = members(prefix)
    if isinstance(value, int) and not isinstance(value, bool) and value in known.values():
        return value
    number = known.get(value.lower().replace("-", "_")) if isinstance(value, str) else None
    if number is None:
        raise InvalidArgument(f"{what} {value!r} is unknown; there are {', '.join(known)}")
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
    """A bp_dtype: of its canonical name or another spelling, or of a torch or numpy dtype. None: none.

    InvalidArgument lists the names."""
    if value is None:
        return _abi.BP_DTYPE_NONE
    if isinstance(value, int) and not isinstance(value, bool):
        if not 0 <= value < _abi.BP_DTYPE_COUNT:
            raise InvalidArgument(f"dtype {value} is unknown: there are {_abi.BP_DTYPE_COUNT}")
        return value
    if isinstance(value, type):  # numpy.float32
        value = value.__name__
    elif not isinstance(value, str):
        value = getattr(value, "name", None) or str(value)  # numpy's dtypes, torch's
    return _parsed(value)


def dtype_name(value: int) -> str:
    return decoded(core().bp_dtype_name(value))


def role(value: Any) -> int:
    """A bp_role by its name ("param") or number; runtimes' own roles are numbers."""
    if isinstance(value, int) and not isinstance(value, bool):
        return whole(value, 31, "a role")
    parsed = c_int()
    call(core().bp_role_parse, encoded(value, "a role"), byref(parsed))
    return parsed.value


def role_name(value: int) -> str:
    return decoded(core().bp_role_name(value)) if value < _abi.BP_ROLE_COUNT else str(value)


def role_bits(roles: Iterable[Any]) -> int:
    """The mask of several roles."""
    if isinstance(roles, str):
        roles = roles.split(",")
    bits = 0
    for each in roles:
        number = role(each)
        if number >= _abi.BP_ROLE_COUNT:
            raise InvalidArgument(f"role {number} is unknown")
        bits |= 1 << number
    return bits


def role_names(bits: int) -> List[str]:
    return [role_name(number) for number in range(_abi.BP_ROLE_COUNT) if bits >> number & 1]


def lane(value: Any) -> int:
    """A lane by its name ("gather", "compute", "reduce", "outer_reduce") or number; None: any."""
    if value is None:
        return _abi.BP_LANE_ANY
    if isinstance(value, int) and not isinstance(value, bool):
        return whole(value, 32, "a lane")
    return member("BP_LANE_", value, "lane")


def fingerprint_text(value: Optional[str]) -> Optional[bytes]:
    return optional(value, "a fingerprint")
