"""Runs a program on fake tensors and follows their storages.

Two modes of PyTorch see each call: a function mode those in Python (attention kernels are chosen there), a dispatch
mode the operators that autograd and the composite functions arrive at. A storage is followed from the operator that
returned it until PyTorch frees it (a weak reference), or resizes it.
"""

import contextlib
import functools
import sys
import warnings
import weakref
from types import FrameType
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

import torch
import torch.optim.optimizer as torch_optimizer
import torch.utils._foreach_utils as foreach_utils
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import DynamicOutputShapeException, FakeTensor, FakeTensorMode
from torch import overrides
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from ...errors import Unsupported
from . import emulation, kernels
from .modules import Modules
from .recording import Frame, Recording

__all__ = ["Options", "recorded"]

aten = torch.ops.aten
_ASKED_DEVICE = torch.ops.prim.device.default
_FOR_AUTOGRAD = torch.device("meta", 7)  # the answer to autograd; programs use meta without an index
_REAL_BYTES = 1 << 20  # tensors of the CPU that are smaller have values
_REAL_RANKS = 1 << 10
_ATTENTION = functional.scaled_dot_product_attention
_SET_DATA: Any = getattr(torch.Tensor.data, "__set__")
_OTHER_STREAM = "record_stream: the other stream is done when the tensor is freed"
_ENGINE: Any = torch.autograd.graph._engine_run_backward
_FUNCTION_MODES: Callable[[], List[Any]] = overrides._get_current_function_mode_stack
_OWN = __file__.rpartition("/")[0] + "/"
_SILENT = ("torch/_ops.py", "torch/_compile.py", "torch/overrides.py", "torch/_dynamo/eval_frame.py",
           "torch/utils/_contextlib.py", "torch/utils/_stats.py")
_CHECKED_FINITE = aten._amp_foreach_non_finite_check_and_unscale_.default
_METADATA_ONLY = frozenset((aten._local_scalar_dense.default, aten.is_pinned.default))


_FakeMode: Any = FakeTensorMode  # their methods have no types
_FunctionMode: Any = overrides.TorchFunctionMode
_DispatchMode: Any = TorchDispatchMode


class _Fake(_FakeMode):
    """Fake tensors that never start CUDA, also while torch.cuda says that there is a GPU."""

    @property
    def avoid_device_init(self) -> bool:
        return True


class _OfTorch(type):
    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, FakeTensor) and sys._getframe(1).f_globals.get("__name__", "").startswith("torch.")


class _Traced(metaclass=_OfTorch):
    """torch._subclasses.FakeTensor, for PyTorch alone. Libraries that trace models look for fake tensors there, and
    avoid decisions that depend on values: transformers makes masks that it would leave out.
    """


class Options:
    """See record()."""

    def __init__(self, device: str, capability: Tuple[int, int], attention: str, frames: int,
                 item: Optional[Callable[[Any], Any]]) -> None:
        self.device = torch.device("cuda", 0) if device == "cuda" else torch.device(device)
        self.capability, self.attention, self.frames, self.item = capability, attention, frames, item


class _Storages:
    """Storages of the recorded device that are live, and their blocks."""

    def __init__(self, recording: Recording, options: Options) -> None:
        self.recording, self.options = recording, options
        self.modules, self.streams = Modules(), emulation.Streams(recording)
        self._blocks: Dict[int, Tuple[Any, Any]] = {}  # by address of the storage: weak reference, block or None
        self._workspaces: Dict[int, Any] = {}  # of streams

    def outputs(self, operator: str, tensors: List[Any]) -> None:
        """Storages that an operator returned: new ones, and those that it resized."""
        for tensor in tensors:
            try:
                storage = tensor.untyped_storage()
            except NotImplementedError:  # sparse tensors have several
                continue
            self.update(operator, storage)

    def update(self, operator: str, storage: Any) -> None:
        key, size = storage._cdata, storage.nbytes()
        known = self._blocks.get(key)
        if known is not None:
            if (known[1].bytes if known[1] is not None else 0) == size:
                return
            if known[1] is not None:
                self.recording._free(known[1])
            reference = known[0]
        else:
            reference = weakref.ref(storage, functools.partial(self._ended, key))
        self._blocks[key] = reference, self.allocate(operator, size) if size > 0 else None

    def resized(self, storage: Any) -> None:
        if storage._cdata in self._blocks:
            self.update("resize_", storage)

    def _ended(self, key: int, _reference: Any) -> None:
        _, block = self._blocks.pop(key)
        if block is not None:
            self.recording._free(block)

    def forget(self) -> None:
        """Storages that end after the recording are live at its end."""
        self._blocks.clear()

    def allocate(self, operator: str, size: int) -> Any:
        module, phase = self.modules.now()
        return self.recording._allocate(size, self.streams.current.number, self._frames(operator, module, phase),
                                        (module, phase, operator))

    def temporaries(self, operator: str, sizes: List[int]) -> None:
        blocks = [self.allocate(operator, size) for size in sizes if size > 0]
        for block in blocks:
            self.recording._free(block)

    def workspace(self) -> None:
        """Allocates the workspace of the current stream, which stays."""
        number = self.streams.current.number
        if number not in self._workspaces:
            self._workspaces[number] = self.allocate("cuBLAS workspace",
                                                     kernels.workspace_bytes(self.options.capability))

    def _frames(self, operator: str, module: str, phase: str) -> Tuple[Frame, ...]:
        """The operator with its module first, then frames of Python, innermost first."""
        frames: List[Frame] = [(f"{module} ({phase})" if module and phase else module or phase, 0, operator)]
        frame: Optional[FrameType] = sys._getframe(2)
        while frame is not None and len(frames) <= self.options.frames:
            code = frame.f_code
            if not code.co_filename.startswith(_OWN) and not code.co_filename.endswith(_SILENT):
                frames.append((code.co_filename, frame.f_lineno, code.co_name))
            frame = frame.f_back
        return tuple(frames)


class _Functions(_FunctionMode):
    """Calls in Python that a GPU would answer with other operators."""

    def __init__(self, options: Options, recording: Recording) -> None:
        super().__init__()
        self._options, self._recording = options, recording

    def __torch_function__(self, func: Any, types: Any, args: Tuple[Any, ...] = (),
                           kwargs: Optional[Dict[str, Any]] = None) -> Any:
        kwargs = kwargs or {}
        if func is _ATTENTION:
            func = self.attention
        elif func is torch.Tensor.pin_memory:
            return args[0]
        result = func(*args, **kwargs)
        if func == _SET_DATA and all(isinstance(each, FakeTensor) for each in args[:2]):
            args[0].fake_device = args[1].fake_device
        return result

    def attention(self, query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0,
                  is_causal: bool = False, scale: Optional[float] = None, enable_gqa: bool = False) -> Any:
        """scaled_dot_product_attention of the recorded device, by the operators that a GPU would run."""
        if not (isinstance(query, FakeTensor) and query.fake_device.type == "cuda"):
            return _ATTENTION(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
        if torch.is_autocast_enabled("cuda"):
            query, key, value, attn_mask = _autocast(query, key, value, attn_mask)
        kernel = kernels.attention_kernel(query, key, value, attn_mask, self._options.attention)
        self._recording._note(f"attention: the {kernel} kernel of PyTorch")
        if kernel == "flash":
            width = query.shape[-1]
            padded = -width % 8
            if padded:
                query, key, value = (functional.pad(each, (0, padded)) for each in (query, key, value))
            output = aten._scaled_dot_product_flash_attention(query, key, value, dropout_p, is_causal, False,
                                                              scale=width**-0.5 if scale is None else scale)[0]
            return output[..., :width] if padded else output
        if enable_gqa:
            key, value = (each.repeat_interleave(query.shape[-3] // each.shape[-3], -3) for each in (key, value))
        if kernel == "efficient":
            if attn_mask is not None:
                attn_mask = _bias(attn_mask, query)
            saves = torch.is_grad_enabled() and any(each.requires_grad for each in (query, key, value))
            return aten._scaled_dot_product_efficient_attention(query, key, value, attn_mask, saves, dropout_p,
                                                                is_causal, scale=scale)[0]
        return aten._scaled_dot_product_attention_math(query, key, value, attn_mask, dropout_p, is_causal, None,
                                                       scale=scale)[0]


def _autocast(*tensors: Any) -> List[Any]:
    """Tensors of fp32 in autocast's dtype, in which attention runs."""
    dtype = torch.get_autocast_dtype("cuda")
    return [each.to(dtype) if each is not None and each.dtype == torch.float32 else each for each in tensors]


def _bias(mask: Any, query: Any) -> Any:
    """The mask as scores to add, with the strides that the kernel needs: rows padded to 16 bytes."""
    if mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill_(mask.logical_not(), float("-inf"))
    columns = mask.shape[-1]
    if columns % 16:
        mask = functional.pad(mask, (0, -columns % 16))[..., :columns]
    return mask.expand(query.shape[0], query.shape[1], query.shape[2], columns)


class _Operators(_DispatchMode):
    """Operators: runs them on fake tensors, or on the CPU where all is small and there, and reports their storages."""

    def __init__(self, storages: _Storages, functions: _Functions) -> None:
        super().__init__()
        self._storages, self._functions = storages, functions
        self._options, self._recording = storages.options, storages.recording
        self._cuda = self._options.device.type == "cuda"
        self._callers = emulation.Callers() if self._cuda else None
        self._engines = 0  # runs of autograd's engine
        self._names: Dict[Any, str] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Tuple[Any, ...] = (),
                           kwargs: Optional[Dict[str, Any]] = None) -> Any:
        if func is _ASKED_DEVICE:
            return self._device(args[0])
        if any(not issubclass(each, FakeTensor) and each is not torch.nn.Parameter for each in types):
            return NotImplemented  # DTensor and the like run first, and arrive here with their local tensors
        kwargs = dict(kwargs or {})
        if kwargs.get("device") == _FOR_AUTOGRAD:
            kwargs["device"] = self._options.device
        if kwargs.get("pin_memory"):
            kwargs["pin_memory"] = False
        if func in _METADATA_ONLY and isinstance(args[0], FakeTensor):
            return self._item(args[0]) if func is not aten.is_pinned.default else False
        result = self._run(func, args, kwargs)
        if func is _CHECKED_FINITE:
            args[1].found_inf = 0.0
        tensors = [each for each in _flat(result) if each.device.type == self._options.device.type]
        if tensors:
            name = self._name(func)
            self._storages.outputs(name, tensors)
            if self._cuda:
                self._hidden(func, name, args)
        return result

    def _hidden(self, func: Any, name: str, args: Tuple[Any, ...]) -> None:
        """Memory that the kernel takes beside the operator's results."""
        if func in kernels.PRODUCTS:
            self._storages.workspace()
        temporary = kernels.TEMPORARIES.get(func)
        if temporary is not None:
            self._storages.temporaries(name + " (temporary)", temporary(args))

    def _run(self, func: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
        inputs = _flat(args) + _flat(tuple(kwargs.values()))
        device = kwargs.get("device")
        on_cpu = device is None or torch.device(device).type == "cpu"
        if on_cpu and inputs and not any(isinstance(each, FakeTensor) for each in inputs):
            with fake_tensor.unset_fake_temporarily():
                return func(*args, **kwargs)
        try:
            result = func(*args, **kwargs)
        except DynamicOutputShapeException:
            raise Unsupported(f"{self._name(func)}: the size of its result depends on values, which a recording lacks; "
                              "use a form with a fixed size (masks instead of indices, grouped experts)") from None
        if on_cpu and not inputs:
            made = _flat(result)
            if made and all(each.device.type == "cpu" for each in made) and self._is_small(made):
                with fake_tensor.unset_fake_temporarily():
                    return func(*args, **kwargs)
        return result

    def _is_small(self, tensors: List[Any]) -> bool:
        """On a recorded GPU the CPU has values. A recorded CPU has those of numbers (steps of optimizers), and of few
        integers (ranks of a mesh).
        """
        size = sum(each.numel() * each.element_size() for each in tensors)
        if self._cuda:
            return size <= _REAL_BYTES
        return all(each.dim() == 0 or not each.dtype.is_floating_point and size <= _REAL_RANKS for each in tensors)

    def _item(self, tensor: Any) -> Any:
        found_inf = getattr(tensor, "found_inf", None)
        if found_inf is not None:  # else GradScaler would leave out the optimizer's step
            return found_inf
        if tensor.constant is not None:
            return tensor.constant.item()
        if self._options.item is not None:
            return self._options.item(tensor)
        self._recording._note("item(): values on the recorded device are 1, or True")
        return True if tensor.dtype == torch.bool else 1.0 if tensor.dtype.is_floating_point else 1

    def _device(self, tensor: Any) -> Any:
        if not isinstance(tensor, FakeTensor):
            return tensor.device
        if tensor.fake_device.type == "cuda" and self._callers is not None:
            if self._engine_asks() or self._callers.records_node():
                return _FOR_AUTOGRAD
        return tensor.fake_device

    def _engine_asks(self) -> bool:
        """No Python runs between the start of autograd's engine and the question."""
        if not self._engines:
            return False
        frame: Optional[FrameType] = sys._getframe(1)
        while frame is not None and (frame.f_code.co_filename == __file__
                                     or frame.f_code.co_filename.endswith(_SILENT)):
            frame = frame.f_back
        return frame is not None and frame.f_code is _ENGINE.__code__

    def _name(self, func: Any) -> str:
        name = self._names.get(func)
        if name is None:
            name = self._names[func] = func._schema.name if hasattr(func, "_schema") else str(func)
        return name

    def engine(self, run: Any) -> Callable[..., Any]:
        """_engine_run_backward, with the function mode on for hooks and recomputation."""

        def backward(*args: Any, **kwargs: Any) -> Any:
            self._engines += 1
            hidden = self._functions not in _FUNCTION_MODES()
            try:
                with self._functions if hidden else contextlib.nullcontext():
                    return run(*args, **kwargs)
            finally:
                self._engines -= 1

        return backward


def _flat(value: Any) -> List[Any]:
    """Tensors in a value, in lists and tuples of it."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [each for item in value for each in _flat(item)]
    return []


def _converted(parameter: Any, converted: Any, swap: Callable[[Any, Any], None] = torch.utils.swap_tensors) -> None:
    """torch.utils.swap_tensors, with which Module.to() converts fake parameters. It refuses those that have weak
    references, which is why their data is set instead, as for real ones.
    """
    if type(parameter) is FakeTensor and type(converted) is FakeTensor:
        parameter.data = converted
        parameter.fake_device = converted.fake_device
    else:
        swap(parameter, converted)


@contextlib.contextmanager
def recorded(recording: Recording, options: Options) -> Iterator[None]:
    storages = _Storages(recording, options)
    functions = _Functions(options, recording)
    operators = _Operators(storages, functions)
    resize = torch.UntypedStorage.resize_

    def resized(storage: Any, size: int) -> Any:
        result = resize(storage, size)
        storages.resized(storage)
        return result

    engine = operators.engine(_ENGINE)
    places: List[Tuple[Any, str, Any]] = [
        (torch.UntypedStorage, "resize_", resized), (fake_tensor, "init_gpu_context", lambda _: None),
        (torch.autograd, "_engine_run_backward", engine), (torch.autograd.graph, "_engine_run_backward", engine),
        (functional, "scaled_dot_product_attention", functions.attention),
        (torch.utils, "swap_tensors", _converted), (torch._subclasses, "FakeTensor", _Traced),
        (torch_optimizer, "_foreach_supported_types", [*torch_optimizer._foreach_supported_types, FakeTensor]),
        (foreach_utils, "_foreach_supported_types", [*foreach_utils._foreach_supported_types, FakeTensor]),
    ]
    if options.device.type == "cuda":
        recording._note(kernels.LEFT_OUT)
        places.append((torch.Tensor, "record_stream", lambda *_: recording._note(_OTHER_STREAM)))
        places += emulation.torch_cuda(recording, storages.streams, options.capability, 80 << 30)
    with warnings.catch_warnings(), contextlib.ExitStack() as stack:
        stack.callback(storages.forget)
        fakes = _Fake(allow_non_fake_inputs=True)
        stack.enter_context(emulation.patched(places))
        stack.callback(storages.modules.stop)
        storages.modules.start()
        for mode in (fakes, operators, functions):
            stack.enter_context(mode)
        yield
