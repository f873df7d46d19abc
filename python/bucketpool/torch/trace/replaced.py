# SPDX-License-Identifier: Apache-2.0
"""Functions of PyTorch, beside torch.cuda, that are replaced while a step is recorded; errors that ask for a GPU."""

import contextlib
import functools
import sys
import traceback
from typing import Any, Callable, Iterator, List, Tuple

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd.profiler import record_function
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.data import dataloader
from torch.utils.data._utils import pin_memory, worker

from ...errors import Unsupported
from . import ddp
from .kinds import inner_tensors
from .recording import Recording

__all__ = ["ASKS", "asks_for_gpu", "explained", "replaced"]

_Workers: Any = dataloader._MultiProcessingDataLoaderIter
_WORKER_LOOP: Any = worker._worker_loop
_NO_GPU = ("CUDA error", "NVIDIA driver", "not compiled with CUDA", "No CUDA GPUs", "hasPrimaryContext",
           "for 'meta' device type")
ASKS = ("PyTorch asks for a GPU here, below its operators; choose an implementation in PyTorch's operators, or leave "
        "it out while you record")


def asks_for_gpu(error: BaseException) -> bool:
    return any(sentence in str(error) for sentence in _NO_GPU)


@contextlib.contextmanager
def explained() -> Iterator[None]:
    """Turns errors of PyTorch that want a GPU, and were raised outside of its functions in Python, into Unsupported."""
    try:
        yield
    except (RuntimeError, AssertionError) as error:
        if not asks_for_gpu(error):
            raise
        frames = [each for each in traceback.extract_tb(error.__traceback__)
                  if "/torch/" not in each.filename or "/tests/torch/" in each.filename]
        place = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "record"
        raise Unsupported(f"{place}: {ASKS}") from error


def replaced(storages: Any) -> List[Tuple[Any, str, Any]]:
    """Replacements of attributes, for emulation.patched()."""
    return [(torch.utils, "swap_tensors", _converted), *_annotated(storages.recording), *_eager(storages.recording),
            *_files(storages), *_left_out(storages), *ddp.replaced(storages.kinds.mark)]


def _converted(parameter: Any, converted: Any, swap: Callable[[Any, Any], None] = torch.utils.swap_tensors) -> None:
    """torch.utils.swap_tensors, with which Module.to() converts fake parameters. It refuses those that have weak
    references, which is why their data is set instead, as for real ones. Those of the meta device are swapped.
    """
    if type(parameter) is not FakeTensor or type(converted) is not FakeTensor:
        swap(parameter, converted)
    elif parameter.fake_device.type != "meta":
        parameter.data = converted
        parameter.fake_device = converted.fake_device
    else:
        parameter.__dict__, converted.__dict__ = converted.__dict__, parameter.__dict__
        torch._C._swap_tensor_impl(parameter, converted)


def _files(storages: Any) -> List[Tuple[Any, str, Any]]:
    """Files and data loaders."""
    recording, device = storages.recording, storages.options.device
    save, load, received = torch.save, torch.load, _Workers._try_get_data

    def is_recorded(obj: Any) -> bool:
        found = any(isinstance(each, FakeTensor) for each in inner_tensors(obj))
        if found:
            recording._note("files: objects with tensors of the recording are not written")
        return found

    def saved(obj: Any, f: Any, *arguments: Any, **named: Any) -> None:
        if is_recorded(obj):
            return
        with _disable_current_modes():
            save(obj, f, *arguments, **named)

    def loaded(*arguments: Any, **named: Any) -> Any:
        result = load(*arguments, **named)
        for tensor in inner_tensors(result):
            if isinstance(tensor, FakeTensor) and tensor.fake_device.type == device.type:
                tensor.fake_device = device
                storages.outputs("torch.load", [tensor])
        return result

    def batch(self: Any, *arguments: Any, **named: Any) -> Any:
        with _disable_current_modes():
            return received(self, *arguments, **named)

    places: List[Tuple[Any, str, Any]] = [
        (torch, "save", saved), (torch.serialization, "save", saved),
        (torch, "load", loaded), (torch.serialization, "load", loaded),
        (pin_memory, "pin_memory", lambda data, *_: data), (worker, "_worker_loop", _worker_loop),
        (_Workers, "_try_get_data", batch)]
    safetensors: Any = sys.modules.get("safetensors.torch")
    for name in ("_flatten", "_flatten_as_ptr"):  # depends on the version
        if hasattr(safetensors, name):
            places.append((safetensors, name, _unless(is_recorded, getattr(safetensors, name), None)))
    for name, nothing in (("serialize", b""), ("serialize_file", None)):
        if hasattr(safetensors, name):
            places.append((safetensors, name, _unless(lambda flat: flat is None, getattr(safetensors, name), nothing)))
    return places


def _unless(condition: Callable[[Any], bool], function: Any, otherwise: Any) -> Callable[..., Any]:
    """The function, unless the condition holds for its first argument."""
    return lambda first, *arguments, **named: otherwise if condition(first) else function(first, *arguments, **named)


def _worker_loop(*arguments: Any, **named: Any) -> Any:
    """A forked worker of a data loader inherits the modes of the recording; its data have values."""
    with _disable_current_modes():
        return _WORKER_LOOP(*arguments, **named)


def _left_out(storages: Any) -> List[Tuple[Any, str, Any]]:
    """PyTorch's profiler of GPUs, which profiles the CPU only; others are refused in a sentence."""
    profile = torch.autograd.profiler.profile.__init__

    def profiled(self: Any, *arguments: Any, use_device: Any = None, **named: Any) -> None:
        profile(self, *arguments, use_device=None if use_device == "cuda" else use_device, **named)

    def launched(self: Any, *_: Any, **__: Any) -> None:
        raise Unsupported(f"{storages.place(getattr(self, '__name__', 'a kernel'))}: a kernel of Triton, which needs a "
                          "GPU; choose an implementation in PyTorch's operators while you record")

    def lazy(*_: Any, **__: Any) -> None:
        raise Unsupported("lazy modules: PyTorch cannot make them on fake tensors; give the sizes of inputs")

    places: List[Tuple[Any, str, Any]] = [
        (torch.autograd.profiler.profile, "__init__", profiled),
        (torch.nn.parameter.UninitializedParameter, "__new__", staticmethod(lazy)),
        (torch.nn.parameter.UninitializedBuffer, "__new__", staticmethod(lazy))]
    for module, kind in (("triton.runtime.jit", "JITFunction"), ("triton.runtime.autotuner", "Autotuner")):
        if module in sys.modules:
            places.append((getattr(sys.modules[module], kind), "run", launched))
    return places


def _annotated(recording: Recording) -> List[Tuple[Any, str, Any]]:
    """Annotations of the program (record_function) are in the file, as in snapshots of a GPU: those of optimizers,
    of FSDP, of PyTorch's profiler.
    """
    ranges: Any = record_function
    enter, leave = ranges.__enter__, ranges.__exit__

    def begin(self: Any) -> Any:
        recording._annotate("START", self.name)
        return enter(self)

    def end(self: Any, *error: Any) -> Any:
        recording._annotate("END", self.name)
        return leave(self, *error)

    return [(record_function, "__enter__", begin), (record_function, "__exit__", end)]


def _eager(recording: Recording) -> List[Tuple[Any, str, Any]]:
    """Compiled functions run as they are written."""
    from torch._dynamo import eval_frame, trace_rules
    rules = trace_rules.get_torch_obj_rule_map()  # of PyTorch's functions, not of their replacements

    def callback(compiled: Any) -> Any:
        if compiled not in (None, False):
            recording._note("torch.compile: recorded as eager; compiled code fuses operators, and may save fewer "
                            "activations and recompute others")
        return None

    return [(eval_frame, "_callback_from_stance", callback),
            (trace_rules, "get_torch_obj_rule_map", functools.lru_cache(None)(lambda: rules))]
