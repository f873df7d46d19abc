# SPDX-License-Identifier: Apache-2.0
"""Results of operators whose sizes depend on values, for a count that the program gives."""

from typing import Any, Callable, Dict, List, Tuple

import torch

__all__ = ["counted"]

aten = torch.ops.aten
_broadcast: Any = torch.broadcast_shapes


def counted(func: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any], count: Callable[[Any], int]) -> Any:
    """count(tensor): its elements that are true, or (unique) that differ. None: another operator."""
    if func is aten.nonzero.default:
        return _indices(args[0], count(args[0]))
    if func is aten.masked_select.default:
        tensor, mask = args
        shape = _broadcast(tensor.shape, mask.shape)
        return _empty(tensor, [count(mask) * shape.numel() // max(1, mask.numel())])
    if func is aten.index.Tensor:
        return func(args[0], _numbers(args[1], count))
    if func in (aten._unique2.default, aten.unique_consecutive.default):
        tensor = args[0]
        found = count(tensor)
        inverse, counts = _asked(func, args, kwargs)
        return (_empty(tensor, [found]), _empty(tensor, tensor.shape if inverse else [0], torch.int64),
                _empty(tensor, [found] if counts else [0], torch.int64))
    return None


def _empty(like: Any, shape: Any, dtype: Any = None) -> Any:
    return aten.new_empty.default(like, list(shape), dtype=like.dtype if dtype is None else dtype)


def _indices(mask: Any, found: int) -> Any:
    return _empty(mask, [found, mask.dim()], torch.int64)


def _numbers(indices: List[Any], count: Callable[[Any], int]) -> List[Any]:
    """Indices, those of booleans as numbers."""
    numbers: List[Any] = []
    for each in indices:
        if each is not None and each.dtype in (torch.bool, torch.uint8):
            numbers.extend(_indices(each, count(each)).unbind(1))
        else:
            numbers.append(each)
    return numbers


def _asked(func: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Tuple[bool, bool]:
    """unique also returns the place of each element; how often each occurs."""
    first = 2 if func is aten._unique2.default else 1
    named = ("return_inverse", "return_counts")
    inverse, counts = (bool(args[first + place] if len(args) > first + place else kwargs.get(name, False))
                       for place, name in enumerate(named))
    return inverse, counts
