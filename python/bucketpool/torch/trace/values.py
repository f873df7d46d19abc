# SPDX-License-Identifier: Apache-2.0
"""Values of fake tensors, as far as a program decides by them.

The contents of small tensors are computed on the CPU where all inputs are known: copies from the CPU, numbers that fill
a tensor, ranges. Of other storages one value is followed for all elements, which is 1 (True) unless operators say
otherwise: abstract interpretation. Results of type bool (comparisons, isnan) are always known, with 1 for unknown
inputs, by running the operator on tensors of one element. So isnan(loss).any() is False, isfinite(norm) is True, and
a sum over a mask counts its elements.
"""

import math
import weakref
from typing import Any, Callable, Dict, List, Set, Tuple

import torch
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor

__all__ = ["Traits", "Values", "tensors_in"]

aten = torch.ops.aten

# The number that an operator fills its result with.
_FILLS: Dict[Any, Callable[[Tuple[Any, ...]], Any]] = {
    aten.zeros.default: lambda _: 0, aten.zeros_like.default: lambda _: 0, aten.new_zeros.default: lambda _: 0,
    aten.zero_.default: lambda _: 0,
    aten.ones.default: lambda _: 1, aten.ones_like.default: lambda _: 1, aten.new_ones.default: lambda _: 1,
    aten.full.default: lambda args: args[1], aten.full_like.default: lambda args: args[1],
    aten.new_full.default: lambda args: args[2], aten.fill_.Scalar: lambda args: args[1],
    aten.scalar_tensor.default: lambda args: args[0],
}
_RANGES = frozenset((aten.arange.default, aten.arange.start, aten.arange.start_step, aten.linspace.default,
                     aten.eye.default, aten.eye.m, aten.tril_indices.default, aten.triu_indices.default))
_OVERWRITES = frozenset((aten.copy_.default, aten.fill_.Tensor))  # their second argument alone decides
_SUMS = frozenset((aten.sum.default, aten.sum.dim_IntList, aten.count_nonzero.default,
                   aten.count_nonzero.dim_IntList))
_TESTS = frozenset((aten._amp_foreach_non_finite_check_and_unscale_.default, ))  # their result is a number
_RANDOM = torch.Tag.nondeterministic_seeded
_SMALL = 4096  # elements of a tensor that is computed
_ERRORS = (RuntimeError, IndexError, ValueError, TypeError)


class Traits:
    """An operator, for Values. writes: positions or names of arguments that it writes."""

    __slots__ = ("writes", "overwrites", "is_random", "is_known", "is_range")

    def __init__(self, func: Any) -> None:
        arguments = func._schema.arguments if hasattr(func, "_schema") else []
        self.writes: List[Any] = [each.name if each.kwarg_only else place for place, each in enumerate(arguments)
                                  if each.alias_info is not None and each.alias_info.is_write]
        self.overwrites, self.is_range = func in _OVERWRITES, func in _RANGES
        self.is_random = _RANDOM in getattr(func, "tags", ())
        self.is_known = func in _FILLS or func in _TESTS  # also if no input is known


class Values:
    """Known values, by storage. after() follows each operator."""

    def __init__(self) -> None:
        # By address of the storage: weak reference; a number, or the elements of the storage
        self._known: Dict[int, Tuple[Any, Any]] = {}
        self._guessed: Set[int] = set()  # those that follow from unknown inputs: they decide branches, but no sizes

    def of(self, tensor: Any) -> Any:
        """The value of all elements; None: unknown, or not the same."""
        if isinstance(tensor, FakeTensor):
            known = self._known.get(_key(tensor))
            if known is None or not isinstance(known[1], torch.Tensor):
                return None if known is None else known[1]
        content = self.content(tensor) if tensor.numel() > 0 else None
        if content is None:
            return None
        with fake_tensor.unset_fake_temporarily():
            first = content.flatten()[0]
            return first.item() if content.numel() == 1 or bool((content == first).all()) else None

    def content(self, tensor: Any) -> Any:
        """A small tensor of the CPU with these elements; None: unknown, or large."""
        if tensor.numel() > _SMALL:
            return None
        if not isinstance(tensor, FakeTensor):
            return tensor if tensor.device.type == "cpu" else None
        known = self._known.get(_key(tensor))
        if known is None:
            return None
        with fake_tensor.unset_fake_temporarily():
            if not isinstance(known[1], torch.Tensor):
                return torch.full((), known[1], dtype=tensor.dtype).expand(tensor.shape)
            if known[1].dtype != tensor.dtype or known[1].numel() < _elements(tensor):  # resized
                return None
            return known[1].as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())

    def after(self, func: Any, traits: Traits, args: Tuple[Any, ...], kwargs: Dict[str, Any], result: Any) -> None:
        """Learns or forgets values of the tensors that an operator returned or wrote."""
        writes = [each for place in traits.writes
                  for each in tensors_in(kwargs.get(place) if isinstance(place, str) else args[place:place + 1])]
        outputs = [each for each in writes or tensors_in(result) if isinstance(each, FakeTensor)]
        if not outputs:
            return
        inputs = tensors_in(args[1] if traits.overwrites else args)
        inputs += tensors_in([value for name, value in kwargs.items() if name != "out"])
        if not writes:
            shared = {_key(each) for each in inputs}
            outputs = [each for each in outputs if _key(each) not in shared]  # views have the values of their storage
        values: List[Any] = [None] * len(outputs)
        if func in _FILLS:
            values = [_FILLS[func](args)]
        elif not traits.is_random and outputs:
            if self._is_computed(traits, inputs, outputs):
                values = self._computed(func, args, kwargs, outputs, bool(writes))
            elif traits.overwrites:
                values = [self.of(args[1])]
            elif (inputs and all(self.of(each) is not None for each in inputs)) or func in _TESTS or any(
                    each.dtype == torch.bool for each in outputs):
                values = self._estimated(func, traits.writes if writes else [], args, kwargs, outputs)
        guessed = func not in _FILLS and any(each is not None for each in values) and (
            func in _TESTS or any(self._is_guess(each) for each in inputs))
        for output, value in zip(outputs, values):
            self._set(output, value)
            if guessed and value is not None:
                self._guessed.add(_key(output))

    def after_unknown(self, traits: Traits, args: Tuple[Any, ...], kwargs: Dict[str, Any], inputs: List[Any],
                      result: Any) -> bool:
        """after(), where it learns nothing, for fake tensors that repeat. inputs: all of them. False: it may learn."""
        if traits.is_known or "out" in kwargs or result.has_bool:
            return False
        if not traits.writes:
            if traits.is_random or not result.has_new:
                return True
            return not traits.is_range if not inputs else self._is_unknown(inputs)
        written = [each for place in traits.writes
                   for each in tensors_in(kwargs.get(place) if isinstance(place, str) else args[place:place + 1])]
        if not traits.is_random and not (self._is_unknown(tensors_in(args[1]) if traits.overwrites else inputs)):
            return False
        for each in written:
            if each.dtype == torch.bool:
                return False
        for each in written:
            self._known.pop(_key(each), None)
        return True

    def _is_unknown(self, fakes: List[Any]) -> bool:
        """The value of one of them is."""
        for each in fakes:
            if each.untyped_storage()._cdata not in self._known:
                return True
        return False

    def evaluate(self, func: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
        """The operator's result on tensors of one element."""
        with fake_tensor.unset_fake_temporarily():
            return func(*(_mapped(each, self._one) for each in args),
                        **{name: _mapped(each, self._one) for name, each in kwargs.items()})

    def exact(self, func: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
        """The operator's result where all inputs are known; None: they are not."""
        inputs = tensors_in(args) + tensors_in(list(kwargs.values()))
        if not inputs or any(self.content(each) is None or self._is_guess(each) for each in inputs):
            return None
        with fake_tensor.unset_fake_temporarily():
            return func(*(_mapped(each, self.content) for each in args),
                        **{name: _mapped(each, self.content) for name, each in kwargs.items()})

    def _is_guess(self, tensor: Any) -> bool:
        return isinstance(tensor, FakeTensor) and (_key(tensor) in self._guessed or _key(tensor) not in self._known)

    def _is_computed(self, traits: Traits, inputs: List[Any], outputs: List[Any]) -> bool:
        if any(_elements(each) > _SMALL for each in outputs):
            return False
        return traits.is_range if not inputs else all(self.content(each) is not None for each in inputs)

    def _computed(self, func: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any], outputs: List[Any],
                  written: bool) -> List[Any]:
        """Elements of the outputs' storages, by running the operator on the CPU."""
        nothing: List[Any] = [None] * len(outputs)
        bases: Dict[int, Any] = {}  # new elements of storages, by address

        def real(tensor: Any) -> Any:
            key = _key(tensor)
            if not written or not any(tensor is each for each in outputs):
                return self.content(tensor).clone()
            if key not in bases:
                known = self._known.get(key, (None, None))[1]
                if known is None and tensor.numel() < _elements(tensor):
                    raise ValueError("the rest is unknown")
                bases[key] = known.clone() if isinstance(known, torch.Tensor) else torch.full(
                    (_elements(tensor), ), 0 if known is None else known, dtype=tensor.dtype)
            return bases[key].as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())

        try:
            with fake_tensor.unset_fake_temporarily():
                result = func(*(_mapped(each, real) for each in args),
                              **{name: _mapped(each, real) for name, each in kwargs.items()})
                if written:
                    return [bases[_key(each)] for each in outputs]
                results = tensors_in(result)
                if len(results) != len(outputs):
                    return nothing
                for output, each in zip(outputs, results):
                    base = bases[_key(output)] = torch.zeros(_elements(output), dtype=output.dtype)
                    base.as_strided(output.size(), output.stride(), output.storage_offset()).copy_(each)
                return [bases[_key(each)] for each in outputs]
        except _ERRORS:
            return nothing

    def _estimated(self, func: Any, writes: List[Any], args: Tuple[Any, ...], kwargs: Dict[str, Any],
                   outputs: List[Any]) -> List[Any]:
        """One value of each output; None where the operator depends on shapes, or the number is not finite."""
        nothing: List[Any] = [None] * len(outputs)
        try:
            with fake_tensor.unset_fake_temporarily():
                small = [_mapped(each, self._one) for each in args]
                named = {name: _mapped(each, self._one) for name, each in kwargs.items()}
                result = func(*small, **named)
                if writes:
                    result = [named.get(place) if isinstance(place, str) else small[place] for place in writes]
                values = [each.flatten()[0].item() for each in tensors_in(result)]
        except _ERRORS:
            return nothing
        if len(values) != len(outputs):
            return nothing
        if func in _SUMS:
            values = [values[0] * (args[0].numel() // max(1, outputs[0].numel()))]
        return [_finite(each) for each in values]

    def _one(self, tensor: Any) -> Any:
        known = self.of(tensor)
        return torch.full([1] * tensor.dim(), 1 if known is None else known, dtype=tensor.dtype)

    def _set(self, tensor: Any, value: Any) -> None:
        """value: None, a number for the elements of the tensor, or all elements of its storage."""
        key = _key(tensor)
        if key == 0:
            return
        known = self._known.get(key)
        self._guessed.discard(key)
        if value is not None and not isinstance(value, torch.Tensor) and tensor.numel() < _elements(tensor) and (
                known is None or isinstance(known[1], torch.Tensor) or known[1] != value):
            value = None  # a part has another value than the rest
        if value is None:
            self._known.pop(key, None)
        else:
            self._known[key] = (known[0] if known is not None else weakref.ref(
                tensor.untyped_storage(), lambda _: self._forget(key)), value)

    def _forget(self, key: int) -> None:
        self._known.pop(key, None)
        self._guessed.discard(key)


def _key(tensor: Any) -> int:
    """Address of the storage; 0 for sparse tensors, which have several."""
    try:
        return int(tensor.untyped_storage()._cdata)
    except NotImplementedError:
        return 0


def _elements(tensor: Any) -> int:
    """Of the whole storage."""
    return int(tensor.untyped_storage().nbytes()) // tensor.element_size() if _key(tensor) != 0 else _SMALL + 1


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _mapped(value: Any, function: Callable[[Any], Any]) -> Any:
    """An argument with other tensors, on the CPU."""
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, (list, tuple)):
        return [_mapped(each, function) for each in value]
    if isinstance(value, torch.device):
        return torch.device("cpu")
    return None if isinstance(value, torch.Generator) else value


def tensors_in(value: Any) -> List[Any]:
    """Tensors in a value, its lists and tuples."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [each for item in value for each in tensors_in(item)]
    return []
