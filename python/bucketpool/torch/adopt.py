# SPDX-License-Identifier: Apache-2.0
"""Replaces functions of TRL, SkyRL, AReaL, verl and Liger Kernel that take logits by those of this package.

    import bucketpool.torch.adopt as adopt

    print(adopt.trl())                      # before trainers are created, in each process that trains
    with adopt.verl(): ...                  # or for a while; adopted.undo() also ends it

- trl, skyrl, areal, verl, liger: replace the functions of the installed package, all or none, and return an Adopted,
  whose text lists replaced functions and the modules that use them. functions: the names to replace; None: all but
  Liger's fused head.

A function is replaced in its module and in each loaded module that holds it by name; modules that are loaded later
import the replacement. Objects that took the function before (compiled copies, functools.partial) keep it.

Replacements keep arguments, shapes, dtypes, ignored labels and gradients of the original. A call that the kernels here
do not compute (fp64, DTensors, label smoothing over class weights, no tokens) goes to the original; Adopted.passed_on
counts them by reason. Differences: sums of 16-bit logits are not rounded to 16 bits in between, entropies take 0 log 0
as 0 where a logit is -inf, and an id outside the vocabulary raises InvalidArgument where a fused kernel of the original
reads beyond it.

Raises Unsupported: the package is missing, or a function has another signature than the release that this was written
for. docs/guides/log_probabilities_setup.md lists the functions, and those that stay.
"""

import functools
import importlib
import importlib.metadata
import importlib.util
import inspect
import sys
from types import ModuleType, TracebackType
from typing import Any, Callable, Dict, Iterable, Iterator, List, NamedTuple, Optional, Tuple, Type

import torch

from ..cuda import cuda_arch_list
from ..errors import InvalidArgument, Unsupported
from . import _replacements as ours

__all__ = ["Adopted", "areal", "liger", "skyrl", "trl", "verl"]

Names = Dict[str, Any]  # of a module

# ---- packages --------------------------------------------------------------------------------------------------------


class _Function(NamedTuple):
    """A function, or an autograd function's class, whose apply is replaced. ours: what computes it; newer: trailing
    parameters that older releases do not have. by_name: stays unless it is named.
    """

    module: str
    name: str
    replacement: Callable[..., Any]
    ours: str
    newer: int = 0
    by_name: bool = False


class _Package(NamedTuple):
    """distribution: its name in the package index; tested: release. stays: functions that are not replaced, and why."""

    call: str
    distribution: str
    tested: str
    functions: Tuple[_Function, ...]
    stays: str = ""


def _in(module: str, *rows: Any) -> Iterator[_Function]:
    return (_Function(module, *row) for row in rows)


MEGATRON = "skyrl.backends.skyrl_train.distributed.megatron.model_utils"
TRL = _Package("trl", "trl", "1.16.0", (*_in(
    "trl.trainer.utils", ("selective_log_softmax", ours.trl_logprobs, "logprobs_from_logits", 2),
    ("entropy_from_logits", ours.trl_entropy, "vocab_parallel_entropy"),
    ("selective_log_softmax_and_entropy", ours.trl_both, "logprobs_and_entropy")), ),
    "trl.kernels.ChunkedLogProbFunction, the head of the GRPO, RLOO, DPO, KTO and SFT trainers: it has only chunks of "
    "logits")
SKYRL = _Package("skyrl", "skyrl", "0.3.0", (
    *_in("skyrl.backends.skyrl_train.utils.torch_utils",
         ("logprobs_from_logits", ours.verl_logprobs, "logprobs_from_logits"),
         ("chunked_entropy_from_logits", ours.skyrl_entropy, "vocab_parallel_entropy", 1)),
    *_in(MEGATRON, ("DistributedLogprob", ours.skyrl_logprob, "DistributedLogprob"),
         ("ChunkedDistributedLogprob", ours.skyrl_chunks, "ChunkedDistributedLogprob"),
         ("FusedLinearChunkedDistributedLogprob", ours.skyrl_head, "linear_logprobs"),
         ("vocab_parallel_entropy", ours.tp_entropy, "vocab_parallel_entropy"))),
    "FusedLinearLogprobTriton, the Triton head: it has only chunks of logits")
AREAL = _Package("areal", "areal", "1.0.4", (*_in(
    "areal.utils.functional.vocab_parallel", ("gather_logprobs", ours.areal_logprobs, "gather_logprobs"),
    ("gather_logprobs_entropy", ours.areal_both, "gather_logprobs_entropy")), ),
    "the functions of context-parallel ranks: they take no group, and ours do")
VERL = _Package("verl", "verl", "0.9.1", (
    *_in("verl.utils.torch_functional", ("logprobs_from_logits", ours.verl_logprobs, "logprobs_from_logits"),
         ("entropy_from_logits", ours.verl_entropy, "vocab_parallel_entropy"),
         ("entropy_from_logits_with_chunking", ours.verl_entropy_chunks, "vocab_parallel_entropy")),
    *_in("verl.utils.megatron.tensor_parallel",
         ("vocab_parallel_log_probs_from_logits", ours.tp_logprobs, "logprobs_from_logits"),
         ("vocab_parallel_entropy", ours.tp_entropy, "vocab_parallel_entropy"),
         ("vocab_parallel_entropy_with_chunking", ours.tp_entropy_chunks, "vocab_parallel_entropy"))),
    "verl.utils.kernel.linear_cross_entropy, the fused head: it writes no logits")
LIGER = _Package("liger", "liger-kernel", "0.8.5", (
    *_in("liger_kernel.ops.cross_entropy", ("LigerCrossEntropyFunction", ours.liger_loss, "token_statistics")),
    *_in("liger_kernel.ops.vocab_parallel_cross_entropy",
         ("LigerVocabParallelCEFunction", ours.liger_ranks, "token_statistics")),
    *_in("liger_kernel.ops.fused_linear_cross_entropy",
         ("LigerFusedLinearCrossEntropyFunction", ours.liger_head, "linear_loss.linear_cross_entropy", 3, True))),
    "LigerFusedLinearCrossEntropyFunction, unless it is named: it takes less memory; liger_kernel.chunked_loss: it has "
    "only chunks of logits")


def trl(functions: Optional[Iterable[str]] = None) -> "Adopted":
    """Replaces selective_log_softmax, entropy_from_logits and selective_log_softmax_and_entropy of TRL."""
    return _adopt(TRL, functions)


def skyrl(functions: Optional[Iterable[str]] = None) -> "Adopted":
    """Replaces SkyRL's log-probabilities and entropies, of FSDP and of Megatron."""
    return _adopt(SKYRL, functions)


def areal(functions: Optional[Iterable[str]] = None) -> "Adopted":
    """Replaces gather_logprobs and gather_logprobs_entropy of AReaL."""
    return _adopt(AREAL, functions)


def verl(functions: Optional[Iterable[str]] = None) -> "Adopted":
    """Replaces verl's log-probabilities and entropies, of FSDP and of Megatron."""
    return _adopt(VERL, functions)


def liger(functions: Optional[Iterable[str]] = None) -> "Adopted":
    """Replaces the cross entropies of logits of Liger Kernel, of one rank and of several; the fused head if named."""
    return _adopt(LIGER, functions)


# ---- signatures ------------------------------------------------------------------------------------------------------


def _parameters(function: Any, skipped: int = 0) -> List[inspect.Parameter]:
    """Without annotations. skipped: leading parameters that callers do not pass."""
    found = list(inspect.signature(function).parameters.values())[skipped:]
    return [one.replace(annotation=inspect.Parameter.empty) for one in found]


def _text(parameters: List[inspect.Parameter]) -> str:
    return str(inspect.Signature(parameters))


def _mismatch(row: _Function, original: Any) -> Optional[str]:
    """The signature that was found, if it is neither the expected one nor that of older releases."""
    is_class = inspect.isclass(original)
    try:
        found = _parameters(original.forward if is_class else original, 1 if is_class else 0)
    except (AttributeError, TypeError, ValueError):
        return f"a {type(original).__name__} without one"
    expected = _parameters(row.replacement, 1)
    return None if found in (expected, expected[:len(expected) - row.newer]) else _text(found)


# ---- replacing and undoing -------------------------------------------------------------------------------------------


def _places(value: Any) -> List[Tuple[Names, str, str]]:
    """The names under which loaded modules hold an object: names of the module, module, name."""
    found, seen = [], set()
    for module, loaded in list(sys.modules.items()):
        if not isinstance(loaded, ModuleType) or id(loaded.__dict__) in seen:
            continue
        seen.add(id(loaded.__dict__))
        found += [(loaded.__dict__, module, name) for name, held in list(loaded.__dict__.items()) if held is value]
    return found


class _Replaced:
    """A replaced function. count: adoptions that share it."""

    def __init__(self, row: _Function, original: Any) -> None:
        self.row, self.original, self.count = row, original, 0
        self.reasons: Dict[str, int] = {}
        self.places: List[Tuple[Names, str, str]] = []
        self.active = True
        self.made = self._made(vars(sys.modules[row.module]))

    def _made(self, module: Names) -> Any:
        is_class = inspect.isclass(self.original)
        whole = self.original.apply if is_class else self.original
        replacement = self.row.replacement

        @functools.wraps(whole)
        def call(*arguments: Any, **keywords: Any) -> Any:
            result = replacement(module, *arguments, **keywords) if self.active else "undone"
            if not isinstance(result, str):
                return result
            if self.active and not torch.compiler.is_compiling():
                self.reasons[result] = self.reasons.get(result, 0) + 1
            return whole(*arguments, **keywords)

        if not is_class:
            return call
        return type(self.original)(self.original.__name__, (self.original, ), {
            "apply": staticmethod(call), "__module__": self.original.__module__, "__doc__": self.original.__doc__})

    def put(self) -> None:
        self.count += 1
        places = _places(self.original)
        for names, _, name in places:
            names[name] = self.made
        self.places += places

    def take_back(self) -> List[str]:
        """Places that hold neither the replacement nor the original, once no adoption is left."""
        self.count -= 1
        if self.count:
            return []
        self.active = False
        _active.remove(self)
        for names, _, name in _places(self.made):  # those of modules that were loaded since, too
            names[name] = self.original
        return [f"{module}.{name}" for names, module, name in self.places if names.get(name) is not self.original]


_active: List[_Replaced] = []


class Adopted:
    """An adoption; its text lists the replaced functions. Ends with undo(), or as a context manager, not when it is
    collected.

    - package, version, functions (full names)
    - passed_on: calls that the originals computed, by function and reason
    - changed: after undo(), names that someone else has set since; they are left
    """

    def __init__(self, package: str, version: str, replaced: List[_Replaced], notes: List[str]) -> None:
        self.package, self.version, self._replaced, self._notes = package, version, replaced, notes
        self._undone = False
        self.changed: List[str] = []

    @property
    def functions(self) -> List[str]:
        return [f"{one.row.module}.{one.row.name}" for one in self._replaced]

    @property
    def passed_on(self) -> Dict[Tuple[str, str], int]:
        return {(one.row.name, reason): count for one in self._replaced for reason, count in one.reasons.items()}

    def undo(self) -> None:
        """Puts the originals back where the replacements are. May be repeated. Adoptions of the same function share
        it: the last undo() puts it back.
        """
        if not self._undone:
            self._undone = True
            self.changed = [place for one in self._replaced for place in one.take_back()]

    def __enter__(self) -> "Adopted":
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException],
                 traceback: Optional[TracebackType]) -> None:
        self.undo()

    def __str__(self) -> str:
        lines = []
        for one, name in zip(self._replaced, self.functions):
            users = sorted({module for _, module, _ in _places(one.made)} - {one.row.module})
            where = one.row.ours if "." in one.row.ours else f"logprob.{one.row.ours}"
            lines.append(f"{name} -> bucketpool.torch.{where}"
                         + (f"; used by {', '.join(users)}" if users else ""))
        lines += self._notes
        lines += [f"{name}: the original computed {count} call{'s' if count > 1 else ''}: {reason}"
                  for (name, reason), count in self.passed_on.items()]
        if self._undone:
            lines.append("undone")
        lines += [f"{place}: left as it is, because it was changed since" for place in self.changed]
        return "\n".join(f"{self.package} {self.version}: {line}" for line in lines)

    __repr__ = __str__


def _version(package: _Package, module: str) -> str:
    try:
        return importlib.metadata.version(package.distribution)
    except importlib.metadata.PackageNotFoundError:
        if importlib.util.find_spec(module) is None:
            raise Unsupported(f"adopt.{package.call}: {package.distribution} is not installed; install it, "
                              f"{package.distribution}=={package.tested} is the release that this was tested with"
                              ) from None
        return "without a version"


def _adopt(package: _Package, functions: Optional[Iterable[str]]) -> Adopted:
    what, known = f"adopt.{package.call}", [row.name for row in package.functions]
    usual = [row.name for row in package.functions if not row.by_name]
    names = usual if functions is None else [functions] if isinstance(functions, str) else list(functions)
    unknown = [repr(name) for name in names if name not in known]
    if unknown or not names:
        raise InvalidArgument(f"{what}: functions: got {', '.join(unknown) or 'no name'}; expected names of "
                              f"{', '.join(known)}")
    version = _version(package, package.functions[0].module.partition(".")[0])
    notes = [] if version == package.tested else [f"tested with {package.tested}; signatures agree"]
    found: List[Tuple[_Function, Any]] = []
    missing: Dict[str, ImportError] = {}
    for row in package.functions:
        if row.name not in names or row.module in missing:
            continue
        try:
            module = importlib.import_module(row.module)
        except ImportError as error:  # of a part that this machine does not use, as Megatron's
            missing[row.module] = error
            notes.append(f"{row.module}: not replaced, it cannot be imported: {error}")
            continue
        original = getattr(module, row.name, None)
        held = next((one for one in _active if one.made is original), None)
        signature = None if held else "nothing of this name" if original is None else _mismatch(row, original)
        if signature:
            others = [name for name in names if name != row.name]
            raise Unsupported(f"{what}: {package.distribution} {version}: {row.module}.{row.name}: expected "
                              f"{_text(_parameters(row.replacement, 1))}, the signature of release {package.tested}, "
                              f"found {signature}; install {package.distribution}=={package.tested}"
                              + (f", or leave the function out: {what}({others})" if others else ""))
        found.append((row, held or original))
    if not found:
        reasons = "; ".join(f"{module}: {error}" for module, error in missing.items())
        raise Unsupported(f"{what}: {package.distribution} {version}: nothing was replaced: {reasons}; install what is "
                          "missing") from next(iter(missing.values()))
    ours.KERNELS[:] = cuda_arch_list()
    replaced = []
    for row, original in found:
        one = original if isinstance(original, _Replaced) else _Replaced(row, original)
        if one not in _active:
            _active.append(one)
        one.put()
        replaced.append(one)
    if package.stays and functions is None:
        notes.append(f"stays: {package.stays}")
    return Adopted(package.distribution, version, replaced, notes)
