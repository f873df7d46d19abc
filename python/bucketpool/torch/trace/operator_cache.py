# SPDX-License-Identifier: Apache-2.0
"""Results of operators on fake tensors, by sizes and types of their arguments: a cache in front of FakeTensorMode.

Operators of a training step repeat in each layer. PyTorch's mode has a cache, too, whose hits cost 0.1 ms. An operator
is learned when PyTorch has run it, where its result is new tensors, views of an argument, or the argument itself, and
where the same can be made again: otherwise PyTorch runs it each time.
"""

from typing import Any, Dict, List, Optional, Tuple

import torch
from torch._subclasses.fake_tensor import FakeTensor

__all__ = ["Operator", "OperatorCache", "Result"]

_MOST = 1 << 14  # results of an operator
_NAMESPACES = ("aten::", "prims::", "fsdp::")
_NOT_CACHED = frozenset(f"aten::{each}" for each in (
    "lift", "lift_fresh", "lift_fresh_copy", "set_", "set_data", "resize_", "resize_as_", "_resize_output",
    "_resize_output_", "record_stream"))
_CHANGING = ("data_dependent_output", "dynamic_output_shape", "inplace_view")  # tags
_PLAIN = frozenset((int, float, bool, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format))
_CONSTANTS = (int, bool, type(None))
_META = torch.device("meta")
_STRIDED = torch.strided

# Functions of PyTorch that are not public. Without one of them nothing is cached.
_C: Any = torch._C
_subclass: Any = getattr(torch.Tensor, "_make_subclass", None)
_on_data_ptr: Any = {True: getattr(_C, "_set_warn_deprecated_on_mutable_data_ptr", None),
                     False: getattr(_C, "_set_throw_on_mutable_data_ptr", None)}
_WithoutDispatch: Any = getattr(_C, "_DisableTorchDispatch", None)
_dispatch_keys: Any = getattr(_C, "_dispatch_keys", None)
_active_mode: Any = getattr(_C, "_get_dispatch_mode", None)
_FAKE: Any = getattr(getattr(_C, "_TorchDispatchModeKey", None), "FAKE", None)
_PRIVATE = (_subclass, _WithoutDispatch, _dispatch_keys, _active_mode, _FAKE)

_default_dtype: Any = torch.get_default_dtype
_is_inference: Any = torch.is_inference_mode_enabled
_empty: Any = torch.empty_strided


class Part:
    """A tensor of a result: an argument (size is None), a view of one, or a new one (argument is -1); or a constant."""

    __slots__ = ("argument", "constant", "size", "stride", "offset", "end", "dtype", "device", "attributes")

    def __init__(self, argument: int, tensor: Any = None, constant: Any = None) -> None:
        self.argument, self.constant, self.size = argument, constant, None
        self.device: Any = None
        if tensor is not None:
            self.size, self.stride, self.offset = tuple(tensor.shape), tensor.stride(), tensor.storage_offset()
            self.end = 0 if 0 in self.size else tensor.element_size() * (1 + self.offset + sum(
                (size - 1) * stride for size, stride in zip(self.size, self.stride)))
            self.dtype, self.device, self.attributes = tensor.dtype, tensor.fake_device, dict(vars(tensor))


class Result:
    """container: tuple, list, or None for one tensor; has_new, has_bool: it has new tensors, and such of bool."""

    __slots__ = ("container", "parts", "has_new", "has_bool")

    def __init__(self, container: Any, parts: List[Part]) -> None:
        self.container, self.parts = container, parts
        new = [each for each in parts if each.argument < 0 and each.size is not None]
        self.has_new, self.has_bool = bool(new), any(each.dtype == torch.bool for each in new)


class Operator:
    """results: by signatures of arguments; None: not cached."""

    __slots__ = ("func", "name", "results", "numbers")

    def __init__(self, func: Any) -> None:
        self.func = func
        self.name: str = func._schema.name if hasattr(func, "_schema") else str(func)
        tags = getattr(func, "tags", ())
        is_cached = self.name.startswith(_NAMESPACES) and self.name not in _NOT_CACHED and not any(
            getattr(torch.Tag, each, None) in tags for each in _CHANGING)
        self.results: Optional[Dict[Any, Result]] = {} if is_cached else None
        self.numbers = not self.name.startswith("aten::_foreach_")  # optimizers have others in each step


def _describe(fakes: Any, values: Any, key: List[Any], tensors: List[Any], numbers: bool) -> bool:
    """numbers: the values of floats count, beside their types."""
    for each in values:
        kind = type(each)
        if kind is FakeTensor:
            if (each.fake_mode is not fakes or each.constant is not None or each.layout is not _STRIDED
                    or each.is_neg() or each.is_conj()):
                return False
            tensors.append(each)
            key += (each.shape, each.stride(), each.storage_offset(), each.dtype, each.fake_device, each.requires_grad,
                    each.is_inference())
        elif kind in _PLAIN:
            key += (kind, each if numbers or kind is not float else None)  # 1, 1.0 and True are equal
        elif kind is list or kind is tuple:
            kinds = tuple(map(type, each))
            key.append(kinds)
            if not numbers and kinds.count(float) == len(kinds):
                continue
            if _PLAIN.issuperset(kinds):
                key.append(tuple(each))
            elif not _describe(fakes, each, key, tensors, numbers):
                return False
        else:
            return False
    return True


class OperatorCache:
    """make: Operator, or a class of the recorder with more facts."""

    def __init__(self, fakes: Any, make: Any = Operator) -> None:
        self._fakes, self._make = fakes, make
        self._operators: Dict[int, Any] = {}  # by address: OpOverload hashes slowly
        self._mark: Any = _on_data_ptr.get(getattr(fakes, "_allow_unsafe_data_ptr_access", None))
        self.is_enabled = all(each is not None for each in (*_PRIVATE, self._mark)) and not getattr(
            fakes, "propagate_real_tensors", False)
        if self.is_enabled:
            fakes.cache_enabled = False  # PyTorch's, which would be asked for what is not in this one

    def operator(self, func: Any) -> Any:
        found = self._operators.get(id(func))
        if found is None:
            found = self._operators[id(func)] = self._make(func)
            if not self.is_enabled:
                found.results = None
        return found

    def signature(self, operator: Any, args: Any, kwargs: Any, tensors: List[Any],
                  only_shapes: bool) -> Optional[Tuple[Any, ...]]:
        """All that the result depends on; adds the tensors of the arguments to a list. None: not cached."""
        if operator.results is None or _active_mode(_FAKE) is not self._fakes:
            return None
        key: List[Any] = [only_shapes, _default_dtype(), _is_inference()]
        if not _describe(self._fakes, args, key, tensors, operator.numbers):
            return None
        if kwargs:
            key.append(tuple(kwargs))
            if not _describe(self._fakes, kwargs.values(), key, tensors, operator.numbers):
                return None
        return tuple(key)

    def made(self, result: Result, tensors: List[Any]) -> Optional[List[Any]]:
        """The parts of a result. tensors: of the arguments. None: a view of freed memory, which set_() would grow."""
        made: List[Any] = []
        with _WithoutDispatch():
            for part in result.parts:
                size, argument = part.size, part.argument
                if size is None:
                    made.append(part.constant if argument < 0 else tensors[argument])
                    continue
                if argument < 0:
                    tensor = _empty(size, part.stride, dtype=part.dtype, device=_META)
                else:
                    tensor = _empty((0, ), (1, ), dtype=part.dtype, device=_META)
                    storage = tensors[argument].untyped_storage()
                    if storage.nbytes() < part.end:
                        return None
                    tensor.set_(storage, part.offset, size, part.stride)
                tensor = _subclass(FakeTensor, tensor, False, dispatch_device=True, device_for_backend_keys=part.device)
                self._mark(tensor)
                tensor.__dict__.update(part.attributes)
                made.append(tensor)
        return made

    def learn(self, operator: Any, signature: Any, tensors: List[Any], storages: List[Any], result: Any) -> Any:
        """Remembers a result of PyTorch. signature, storages: from before it ran. None: it cannot be made again."""
        container = type(result) if type(result) in (tuple, list) else None
        outputs = [result] if container is None else list(result)
        addresses = [address for address, _ in storages]
        parts, new = [], set()
        for output in outputs:
            if type(output) in _CONSTANTS:
                parts.append(Part(-1, constant=output))
                continue
            if type(output) is not FakeTensor or output.layout is not _STRIDED:
                return None
            same = [place for place, each in enumerate(tensors) if each is output]
            address = output.untyped_storage()._cdata
            if len(same) > 1:  # which of the two is returned next time?
                return None
            if same:
                parts.append(Part(same[0]))
                parts[-1].device = output.fake_device
            elif addresses.count(address) == 1:
                parts.append(Part(addresses.index(address), output))
            elif address in addresses or address in new:
                return None
            else:
                new.add(address)
                parts.append(Part(-1, output))
        learned = Result(container, parts)
        made = self.made(learned, tensors) if storages == described_storages(tensors) else None
        if made is None or not self._is_equal(made, outputs):
            return None
        if len(operator.results) >= _MOST:
            operator.results.clear()
        operator.results[signature] = learned
        return learned

    def _is_equal(self, made: List[Any], outputs: List[Any]) -> bool:
        return all(each is output or type(each) in _CONSTANTS or _seen(each) == _seen(output) and all(
            value is None or value is self._fakes or isinstance(value, (bool, torch.device))
            for value in vars(output).values()) for each, output in zip(made, outputs))


def described_storages(tensors: List[Any]) -> List[Any]:
    """Addresses and bytes."""
    storages = [each.untyped_storage() for each in tensors]
    return [(each._cdata, each.nbytes()) for each in storages]


def _seen(tensor: Any) -> Tuple[Any, ...]:
    """All that is seen of a fake tensor, but its new storage."""
    return (tuple(tensor.shape), tensor.stride(), tensor.storage_offset(), tensor.untyped_storage().nbytes(),
            tensor.dtype, tensor.requires_grad, tensor.is_inference(), tensor.is_neg(), tensor.is_conj(),
            str(_dispatch_keys(tensor)), vars(tensor))
