# SPDX-License-Identifier: Apache-2.0
"""Calls of the library that are repeated with tensors of the same layouts: their structs are made once, and a
repeated call writes the addresses of its tensors into them.
"""

import ctypes
import functools
from typing import Any, Dict, Hashable, Optional, Sequence, Tuple

import torch

from .._library import logprob
from ._tensors import contiguous

Field = Tuple[int, str, bool]  # of an address: the struct, the path, and whether calls copy the tensor
MOST = 256  # for each group and for the process alone

_PLAIN = frozenset((int, float, bool, str, type(None), torch.dtype))
_KINDS = frozenset((torch.Tensor, torch.nn.Parameter))
transforms: Any = torch._C._are_functorch_transforms_active


def layouts(tensors: Sequence[Optional[torch.Tensor]]) -> Tuple[Hashable, ...]:
    return tuple([None if each is None else (each.shape, each.stride(), each.dtype, each.device, each.is_neg())
                  for each in tensors])


def key_of(options: Tuple[Any, ...], tensors: Sequence[Any]) -> Hashable:
    """Equal for calls that differ in addresses only: with options of the same types and values, and tensors of the same
    layouts. None if options have other values than numbers, or where tensors need a check in each call.
    """
    kinds = tuple(map(type, options))
    if not _PLAIN.issuperset(kinds) or transforms():
        return None
    for each in tensors:
        if each is not None and (type(each) not in _KINDS or each.layout is not torch.strided):
            return None
    return options, kinds, torch.get_num_threads(), layouts(tensors)


def keep(calls: Dict[Hashable, Any], key: Hashable, made: Any) -> Any:
    """Keeps what was made for a key, which may be None; the oldest is forgotten."""
    if key is not None:
        for oldest in list(calls)[:max(0, len(calls) + 1 - MOST)]:  # a list, because other threads add and remove
            calls.pop(oldest, None)
        calls[key] = made
    return made


@functools.lru_cache(maxsize=None)
def _raw(name: str, count: int) -> Any:
    """A function of the library for a client, addresses of structs and a stream, without checks of their types."""
    address = ctypes.cast(getattr(logprob(), name), ctypes.c_void_p).value
    assert address is not None
    return ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * count)(address)


@functools.lru_cache(maxsize=None)
def _word(kind: Any, path: str) -> int:
    """The index of the 8 bytes at a path of fields."""
    offset = 0
    for name in path.split("."):
        offset += getattr(kind, name).offset
        kind = dict(kind._fields_)[name]
    return offset // 8


class Call:
    """A function of the library with structs that lack the addresses of tensors.

    fields: of the tensors of a call, which copies those whose layout has no form in the struct. kept: what must live.
    One call at a time.
    """

    def __init__(self, function: str, structs: Sequence[ctypes.Structure], fields: Sequence[Field],
                 kept: Any = None) -> None:
        self.__name__ = function
        self._function = _raw(function, len(structs) + 2)
        self.structs, self._kept = structs, kept
        self._addresses = tuple(map(ctypes.addressof, structs))
        views = [memoryview(each).cast("B").cast("Q") for each in structs]
        self._words = [(views[i], _word(type(structs[i]), path)) for i, path, _ in fields]
        self._copied = [copied for *_, copied in fields]
        self._copies = any(self._copied)

    def __call__(self, client: Any, tensors: Sequence[torch.Tensor], stream: Any) -> int:
        if self._copies:
            tensors = [contiguous(each) if copied else each for each, copied in zip(tensors, self._copied)]
        for (view, word), each in zip(self._words, tensors):
            view[word] = each.data_ptr()
        status: int = self._function(client, *self._addresses, stream)
        return status

    def with_struct(self, function: str, struct: ctypes.Structure) -> "Call":
        """A call of another function, with one more struct."""
        other = Call.__new__(Call)
        other.__dict__.update(self.__dict__, __name__=function, structs=(*self.structs, struct),
                              _function=_raw(function, len(self.structs) + 3),
                              _addresses=(*self._addresses, ctypes.addressof(struct)))
        return other
