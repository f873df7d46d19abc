# SPDX-License-Identifier: Apache-2.0
"""Runs a program on fake tensors and follows their storages.

Two modes of PyTorch see each call: a function mode those in Python (attention kernels are chosen there), a dispatch
mode the operators that autograd and the composite functions arrive at. A storage is followed from the operator that
returned it until PyTorch frees it (a weak reference), or resizes it.
"""

import contextlib
import sys
import warnings
from types import FrameType
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

import torch
import torch.optim.optimizer as torch_optimizer
import torch.utils._foreach_utils as foreach_utils
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import (DataDependentOutputException, DynamicOutputShapeException, FakeTensor,
                                           FakeTensorMode, UnsupportedFakeTensorException, UnsupportedOperatorException)
from torch import _prims_common, overrides
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from ...errors import InvalidArgument, Unsupported
from .._passes import MEMORY
from . import emulation, flex, kernels, reductions
from .dynamic import counted
from .kinds import GRADIENTS, PARAMETERS
from .operator_cache import Operator, OperatorCache, Result, described_storages
from .recording import Recording
from .replaced import ASKS, asks_for_gpu, explained, replaced
from .storages import SILENT, Options, Storages
from .values import Traits, tensors_in

__all__ = ["recorded"]

aten = torch.ops.aten
_ASKED_DEVICE = torch.ops.prim.device.default
_FOR_AUTOGRAD = torch.device("meta", 7)  # the answer to autograd; programs use meta without an index
_REAL_BYTES = 1 << 20  # tensors of the CPU that are smaller have values
_REAL_RANKS = 1 << 10
_STORAGE_USES = 2  # of a tensor, and of the object that asks
_ATTENTION = functional.scaled_dot_product_attention
_SET_DATA: Any = getattr(torch.Tensor.data, "__set__")
_SET_GRAD: Any = getattr(torch.Tensor.grad, "__set__")
_READS = (torch.Tensor.tolist, torch.Tensor.numpy, torch.Tensor.__array__, torch.Tensor.__format__,
          torch.Tensor.data_ptr)
_ACCUMULATES = frozenset((aten.detach.default, aten.add.Tensor, aten.add_.Tensor, aten.clone.default,
                          aten.new_empty_strided.default))  # AccumulateGrad calls them
_UNSUPPORTED = (UnsupportedOperatorException, UnsupportedFakeTensorException, NotImplementedError, AssertionError,
                getattr(torch, "AcceleratorError", UnsupportedOperatorException))
_TEMPORARIES = {**kernels.TEMPORARIES, **reductions.TEMPORARIES}
_OTHER_STREAM = "record_stream: the other stream is done when the tensor is freed"
_ENGINE: Any = torch.autograd.graph._engine_run_backward
_FUNCTION_MODES: Callable[[], List[Any]] = overrides._get_current_function_mode_stack
_COLLECTIVES = ("c10d", "_c10d")
_METADATA_ONLY = frozenset((aten._local_scalar_dense.default, aten.is_pinned.default))
_WithoutFunctions: Any = torch._C.DisableTorchFunction
_dense: Any = getattr(_prims_common, "is_non_overlapping_and_dense_or_false", None)  # since PyTorch 2.11
_dense = _dense or getattr(_prims_common, "is_non_overlapping_and_dense")

_FakeMode: Any = FakeTensorMode  # their methods have no types
_FunctionMode: Any = overrides.TorchFunctionMode
_DispatchMode: Any = TorchDispatchMode


class _Fake(_FakeMode):
    """Fake tensors that never start CUDA, also while torch.cuda says that there is a GPU.

    depth: blocks that entered this mode. In a second one PyTorch asks for shapes (DTensor, of its operators on whole
    tensors), which takes no memory on a GPU either.
    """

    depth = 0

    def __enter__(self) -> Any:
        self.depth += 1
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        self.depth -= 1
        super().__exit__(*error)

    @property
    def avoid_device_init(self) -> bool:
        return True

    def create_symbolic_nested_int(self, **_: Any) -> Any:
        raise Unsupported("nested tensors: their sizes depend on values, which a recording lacks; use padded or packed "
                          "sequences while you record")


class _OfTorch(type):
    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, FakeTensor) and sys._getframe(1).f_globals.get("__name__", "").startswith("torch.")


class _Traced(metaclass=_OfTorch):
    """torch._subclasses.FakeTensor, for PyTorch alone. Libraries that trace models look for fake tensors there, and
    avoid decisions that depend on values: transformers makes masks that it would leave out.
    """


class _Functions(_FunctionMode):
    """Calls in Python that a GPU would answer with other operators."""

    def __init__(self, storages: Storages) -> None:
        super().__init__()
        self._options, self._recording, self._storages = storages.options, storages.recording, storages

    def __torch_function__(self, func: Any, types: Any, args: Tuple[Any, ...] = (),
                           kwargs: Optional[Dict[str, Any]] = None) -> Any:
        kwargs = kwargs or {}
        if func is _ATTENTION:
            func = self.attention
        elif func is flex.OPERATOR and isinstance(args[0], FakeTensor):
            func = flex.fused
            self._recording._note(flex.NOTE)
        elif func in (torch.Tensor.pin_memory, torch.Tensor.share_memory_):
            return args[0]
        elif func is torch.Tensor.__reduce_ex__ and isinstance(args[0], FakeTensor):
            raise Unsupported(f"{self._storages.place('pickle')}: a tensor of a recording has no values to write or to "
                              "send; leave this out while you record")
        elif func in _READS and isinstance(args[0], FakeTensor):
            return self._read(func, args, kwargs)
        elif func is torch.Tensor.type and len(args) > 1 and _type_name(args[1]).startswith("torch.cuda."):
            return args[0].to("cuda", getattr(torch.cuda, _type_name(args[1]).rpartition(".")[2]).dtype)
        try:
            result = func(*args, **kwargs)
        except (RuntimeError, AssertionError) as error:
            if not asks_for_gpu(error):
                raise
            raise Unsupported(f"{self._storages.place(getattr(func, '__name__', str(func)))}: {ASKS}") from None
        if func == _SET_DATA and all(isinstance(each, FakeTensor) for each in args[:2]):
            args[0].fake_device = args[1].fake_device
            if isinstance(args[0], torch.nn.Parameter):
                self._storages.kinds.mark(PARAMETERS, args[0])
        elif func is torch.Tensor.__deepcopy__ and isinstance(args[0], torch.nn.Parameter):
            self._storages.kinds.mark(PARAMETERS, result)
        elif func == _SET_GRAD:
            self._storages.kinds.mark(GRADIENTS, args[1])
        return result

    def _read(self, func: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
        """A function that reads memory gets a tensor with values, which are all the same."""
        tensor = args[0]
        if func is torch.Tensor.data_ptr:
            return self._storages.address(tensor)
        if func is torch.Tensor.__format__:
            return format(self._storages.item(tensor) if tensor.dim() == 0 else repr(tensor), *args[1:])
        with _disable_current_modes():
            return func(self._storages.real(tensor), *args[1:], **kwargs)

    def attention(self, query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0,
                  is_causal: bool = False, scale: Optional[float] = None, enable_gqa: bool = False) -> Any:
        """scaled_dot_product_attention of the recorded device, by the operators that a GPU would run."""
        if not (isinstance(query, FakeTensor) and query.fake_device.type == "cuda"):
            return _ATTENTION(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
        if torch.is_autocast_enabled("cuda"):
            query, key, value, attn_mask = _autocast(query, key, value, attn_mask)
        kernel = kernels.attention_kernel(query, key, value, attn_mask, self._options.attention,
                                          self._options.capability)
        self._recording._note("attention: cuDNN's kernel, with a workspace as large as flash's temporaries"
                              if kernel == "cudnn" else f"attention: the {kernel} kernel of PyTorch")
        saves = torch.is_grad_enabled() and any(each.requires_grad for each in (query, key, value))
        if kernel == "cudnn":
            if attn_mask is not None and attn_mask.dtype == torch.bool:
                attn_mask = _scores(attn_mask, query)
            return aten._scaled_dot_product_cudnn_attention(query, key, value, attn_mask, saves, dropout_p, is_causal,
                                                            False, scale=scale)[0]
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
            return aten._scaled_dot_product_efficient_attention(query, key, value, attn_mask, saves, dropout_p,
                                                                is_causal, scale=scale)[0]
        return aten._scaled_dot_product_attention_math(query, key, value, attn_mask, dropout_p, is_causal, None,
                                                       scale=scale)[0]


def _autocast(*tensors: Any) -> List[Any]:
    """Tensors of fp32 in autocast's dtype, in which attention runs."""
    dtype = torch.get_autocast_dtype("cuda")
    return [each.to(dtype) if each is not None and each.dtype == torch.float32 else each for each in tensors]


def _scores(mask: Any, query: Any) -> Any:
    return torch.zeros_like(mask, dtype=query.dtype).masked_fill_(mask.logical_not(), float("-inf"))


def _bias(mask: Any, query: Any) -> Any:
    """The mask as scores to add, with the strides that the kernel needs: rows padded to 16 bytes."""
    if mask.dtype == torch.bool:
        mask = _scores(mask, query)
    columns = mask.shape[-1]
    if columns % 16:
        mask = functional.pad(mask, (0, -columns % 16))[..., :columns]
    return mask.expand(query.shape[0], query.shape[1], query.shape[2], columns)


class _Known(Operator):
    """An operator, and what the recorder does after it."""

    __slots__ = ("is_metadata_only", "is_product", "temporaries", "is_client", "is_collective", "may_accumulate",
                 "traits")

    def __init__(self, func: Any) -> None:
        super().__init__(func)
        self.is_metadata_only, self.is_product = func in _METADATA_ONLY, func in kernels.PRODUCTS
        self.temporaries, self.is_client = _TEMPORARIES.get(func), func in MEMORY
        self.is_collective, self.may_accumulate = self.name.startswith(_COLLECTIVES), func in _ACCUMULATES
        self.traits = Traits(func)


class _Operators(_DispatchMode):
    """Operators: runs them on fake tensors, or on the CPU where all is small and there, and reports their storages."""

    supports_higher_order_operators = True  # to refuse them in one sentence

    def __init__(self, storages: Storages, functions: _Functions, fakes: _Fake) -> None:
        super().__init__()
        self._storages, self._functions, self._fakes = storages, functions, fakes
        self._options, self._recording = storages.options, storages.recording
        self._cuda = self._options.device.type == "cuda"
        self._callers = emulation.Callers() if self._cuda else None
        self._engines = 0  # runs of autograd's engine
        self._uses = 0  # see count_uses
        self._values, self._kinds = storages.values, storages.kinds
        self._cache = OperatorCache(fakes, _Known)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """PyTorch would wrap __torch_dispatch__, twice. Nothing is compiled in a recording."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Tuple[Any, ...] = (),
                           kwargs: Optional[Dict[str, Any]] = None) -> Any:
        if func is _ASKED_DEVICE:
            return self._device(args[0])
        for each in types:  # DTensor and the like run first, and arrive here with their local tensors
            if each is not FakeTensor and not issubclass(each, FakeTensor) and each not in (
                    torch.Tensor, torch.nn.Parameter):
                return NotImplemented
        kwargs = self._named(kwargs) if kwargs else {}
        operator, only_shapes = self._cache.operator(func), self._fakes.depth > 1
        if operator.is_metadata_only and not only_shapes and isinstance(args[0], FakeTensor):
            return self._storages.item(args[0]) if func is not aten.is_pinned.default else False
        if func is aten.add.Tensor and not kwargs and not only_shapes and self._sums_in_place(args):
            self._values.after(aten.add_.Tensor, self._cache.operator(aten.add_.Tensor).traits, args, kwargs, args[0])
            return args[0]
        inputs: List[Any] = []
        with _WithoutFunctions():
            signature = self._cache.signature(operator, args, kwargs, inputs, only_shapes)
            if signature is not None:
                known = operator.results.get(signature)
                made = self._cache.made(known, inputs) if known is not None else None
                if known is not None and made is not None:
                    return self._repeated(operator, known, made, args, kwargs, inputs, only_shapes)
                before = described_storages(inputs)
        result = func(*args, **kwargs) if only_shapes else self._run(func, args, kwargs)
        with _WithoutFunctions():
            if not only_shapes:
                self._values.after(func, operator.traits, args, kwargs, result)
                tensors = [each for each in tensors_in(result) if each.device.type == self._options.device.type]
                if tensors:
                    self._storages.outputs(operator.name, tensors)
                    self._follow(operator, args, kwargs, result, tensors)
            if signature is not None and signature == self._cache.signature(operator, args, kwargs, [], only_shapes):
                self._cache.learn(operator, signature, inputs, before, result)
        return result

    def _repeated(self, operator: _Known, known: Result, made: List[Any], args: Tuple[Any, ...],
                  kwargs: Dict[str, Any], inputs: List[Any], only_shapes: bool) -> Any:
        """The result of an operator that ran before with such arguments."""
        result = made[0] if known.container is None else known.container(made)
        if only_shapes:
            return result
        if not self._values.after_unknown(operator.traits, args, kwargs, inputs, known):
            self._values.after(operator.func, operator.traits, args, kwargs, result)
        device = self._options.device.type
        tensors = [each for each, part in zip(made, known.parts)
                   if part.device is not None and part.device.type == device]
        if tensors:
            for each in tensors:
                self._storages.update(operator.name, each.untyped_storage())
            self._follow(operator, args, kwargs, result, tensors)
        return result

    def _named(self, kwargs: Dict[str, Any]) -> Dict[str, Any]:
        """Named arguments as the recorded device has them."""
        kwargs = dict(kwargs)
        if kwargs.get("device") == _FOR_AUTOGRAD:
            kwargs["device"] = self._options.device
        if kwargs.get("pin_memory"):
            kwargs["pin_memory"] = False
        if kwargs.get("generator") is not None and torch.device(kwargs.get("device") or "cpu").type == "cuda":
            kwargs["generator"] = None
        return kwargs

    def _follow(self, operator: _Known, args: Tuple[Any, ...], kwargs: Dict[str, Any], result: Any,
                tensors: List[Any]) -> None:
        """Memory that the kernel takes beside the operator's results, and kinds of memory that it decides."""
        if self._cuda:
            if operator.is_product:
                self._storages.workspace(kernels.uses_lt(operator.func, args, kwargs))
            if operator.temporaries is not None:
                self._storages.temporaries(operator.name + " (temporary)", operator.temporaries(args))
        if operator.is_client:
            self._client(operator.func, operator.name, args)
        if operator.is_collective:
            self._kinds.collective(operator.name, args, result)
        elif operator.may_accumulate and self._storages.modules.accumulates():
            self._kinds.mark(GRADIENTS, tensors)
        elif self._kinds.vocabularies:
            self._kinds.logits(tensors)

    def _client(self, func: Any, name: str, args: Tuple[Any, ...]) -> None:
        """Memory that an operator of bucketpool takes beside its results. Workspaces on the CPU are not PyTorch's."""
        temporary, kept = MEMORY[func](*args)
        if self._cuda:
            self._storages.keep(name + " (workspace)", kept)
        self._storages.temporaries(name + " (temporary)", temporary)

    def _run(self, func: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
        inputs = tensors_in(args) + tensors_in(tuple(kwargs.values()))
        device = kwargs.get("device")
        on_cpu = device is None or torch.device(device).type == "cpu"
        self._adopt(inputs)
        if on_cpu and inputs and not any(isinstance(each, FakeTensor) for each in inputs):
            with fake_tensor.unset_fake_temporarily():
                return func(*args, **kwargs)
        if func is aten.copy_.default and not isinstance(args[0], FakeTensor) and args[0].device.type == "cpu":
            with fake_tensor.unset_fake_temporarily():
                return args[0].copy_(self._storages.real(args[1]))
        try:
            result = func(*args, **kwargs)
        except DynamicOutputShapeException:
            exact = self._values.exact(func, args, kwargs)
            if exact is not None:
                made = [aten._to_copy.default(each, device=self._options.device) for each in tensors_in(exact)]
                return made[0] if isinstance(exact, torch.Tensor) else tuple(made)
            result = self._counted(func, args, kwargs)
            if result is None:
                raise Unsupported(f"{self._place(func)}: the size of its result depends on values, which a recording "
                                  "lacks; use a form with a fixed size (masks instead of indices, grouped experts), or "
                                  "say how many with record(nonzero=...)") from None
        except DataDependentOutputException:
            exact = self._values.exact(func, args, kwargs)
            return self._values.evaluate(func, args, kwargs) if exact is None else exact
        except (RuntimeError, AssertionError) as error:
            raise self._explained(func, error) from None
        if on_cpu:
            made = tensors_in(result)
            if not inputs:
                if made and all(each.device.type == "cpu" for each in made) and self._is_small(made):
                    with fake_tensor.unset_fake_temporarily():
                        return func(*args, **kwargs)
            elif self._cuda and func is aten._to_copy.default and result.device.type == "cpu" and self._is_small(made):
                with fake_tensor.unset_fake_temporarily():
                    return self._storages.real(args[0]).to(result.dtype).clone()
        return result

    def _adopt(self, inputs: List[Any]) -> None:
        """Real tensors of the recorded device, which were made before the recording: live from their first use."""
        for each in inputs:
            if (not isinstance(each, FakeTensor) and each.device.type == self._options.device.type
                    and not self._storages.knows(each)):
                self._storages.outputs("before the recording", [each])
                if isinstance(each, torch.nn.Parameter):
                    self._kinds.mark(PARAMETERS, each)

    def _explained(self, func: Any, error: BaseException) -> BaseException:
        """The program's error as it is; else Unsupported, where PyTorch cannot run an operator on fake tensors."""
        if "fake impl" in str(error):
            return Unsupported(f"{self._place(func)}: a custom operator without sizes of its results; add them with "
                               "torch.library.register_fake, or choose an implementation in PyTorch's operators")
        if isinstance(error, _UNSUPPORTED) or isinstance(error.__context__, NotImplementedError):
            return Unsupported(f"{self._place(func)}: PyTorch cannot run this operator on fake tensors; use other "
                               "operators, or leave it out while you record")
        return error

    def _place(self, func: Any) -> str:
        return self._storages.place(self._cache.operator(func).name)

    def _counted(self, func: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
        """The result, of the size that the program gave; None: it gave none, or the operator has another form."""
        count = self._options.nonzero
        if count is None:
            return None

        def asked(tensor: Any) -> int:
            found = int(count(tensor))
            if not 0 <= found <= tensor.numel():
                raise InvalidArgument(f"nonzero: {found} for {self._place(func)}, a tensor of {tensor.numel()} elements; "
                                      f"return 0 to {tensor.numel()}")
            return found

        self._recording._note("sizes that depend on values: as record(nonzero=...) says")
        return counted(func, args, kwargs, asked)

    def _is_small(self, tensors: List[Any]) -> bool:
        """On a recorded GPU the CPU has values. A recorded CPU has those of numbers (steps of optimizers), and of few
        integers (ranks of a mesh).
        """
        size = sum(each.numel() * each.element_size() for each in tensors)
        if self._cuda:
            return size <= _REAL_BYTES
        return all(each.dim() == 0 or not each.dtype.is_floating_point and size <= _REAL_RANKS for each in tensors)

    def _device(self, tensor: Any) -> Any:
        if not isinstance(tensor, FakeTensor):
            return tensor.device
        if tensor.fake_device.type == "cuda" and self._callers is not None:
            if self._engine_asks() or self._callers.records_node():
                return _FOR_AUTOGRAD
        return tensor.fake_device

    def _sums_in_place(self, args: Tuple[Any, ...]) -> bool:
        """Autograd's engine adds gradients of one tensor (InputBuffer.cpp, can_accumulate_inplace): into the first, if
        nothing else refers to it. It never does for fake tensors.
        """
        if torch._C._current_graph_task_id() == -1 or not self._engine_asks():
            return False
        first, second = args
        uses = first._use_count()
        if not self._uses:
            self._uses = uses  # of the first sum, which is alone
        return bool(uses == self._uses and not torch.is_grad_enabled() and isinstance(first, FakeTensor)
                    and isinstance(second, torch.Tensor) and not second.is_sparse
                    and torch._C._storage_Use_Count(first.untyped_storage()._cdata) == _STORAGE_USES
                    and (first.is_contiguous() or _dense(first)))

    def count_uses(self) -> None:
        """References to the first gradient of a sum in the engine, with those of the modes."""
        x: Any = torch.ones((), device="meta", requires_grad=True)
        (x * 2 + x * 3).backward()

    def _engine_asks(self) -> bool:
        """No Python runs between the start of autograd's engine and the question."""
        if not self._engines:
            return False
        frame: Optional[FrameType] = sys._getframe(1)
        while frame is not None and (frame.f_code.co_filename == __file__
                                     or frame.f_code.co_filename.endswith(SILENT)):
            frame = frame.f_back
        return frame is not None and frame.f_code is _ENGINE.__code__

    def engine(self, run: Any) -> Callable[..., Any]:
        """_engine_run_backward, with the function mode on for hooks and recomputation."""

        def backward(*args: Any, **kwargs: Any) -> Any:
            self._engines += 1
            hidden = self._functions not in _FUNCTION_MODES()
            try:
                with self._functions if hidden else contextlib.nullcontext():
                    return run(*args, **kwargs)
            except RuntimeError as error:
                if not asks_for_gpu(error):
                    raise
                raise Unsupported(f"{self._storages.place('backward')}: PyTorch asks for a GPU to differentiate tensors in "
                                  "a wrapper, such as those of tensor parallelism (DTensor) and of torch.func.grad; "
                                  "record a rank's local module instead") from None
            finally:
                self._engines -= 1

        return backward


def _type_name(kind: Any) -> str:
    return kind if isinstance(kind, str) else f"{getattr(kind, '__module__', '')}.{getattr(kind, '__name__', '')}"


@contextlib.contextmanager
def recorded(recording: Recording, options: Options) -> Iterator[None]:
    storages = Storages(recording, options)
    functions = _Functions(storages)
    fakes = _Fake(allow_non_fake_inputs=True)
    operators = _Operators(storages, functions, fakes)
    resize, data_ptr = torch.UntypedStorage.resize_, torch.UntypedStorage.data_ptr
    parameter = torch.nn.Parameter.__new__

    def resized(storage: Any, size: int) -> Any:
        result = resize(storage, size)
        storages.resized(storage)
        return result

    def pointer(storage: Any) -> int:
        return int(data_ptr(storage)) or storages.storage_address(storage)

    def made(cls: Any, *arguments: Any, **named: Any) -> Any:
        result = parameter(cls, *arguments, **named)
        storages.kinds.mark(PARAMETERS, result)
        return result

    engine = operators.engine(_ENGINE)
    places: List[Tuple[Any, str, Any]] = [
        (torch.UntypedStorage, "resize_", resized), (torch.UntypedStorage, "data_ptr", pointer),
        (fake_tensor, "init_gpu_context", lambda _: None),
        (torch.autograd, "_engine_run_backward", engine), (torch.autograd.graph, "_engine_run_backward", engine),
        (functional, "scaled_dot_product_attention", functions.attention),
        (torch._subclasses, "FakeTensor", _Traced),
        (torch.nn.Parameter, "__new__", staticmethod(made)),
        (torch_optimizer, "_foreach_supported_types", [*torch_optimizer._foreach_supported_types, FakeTensor]),
        (foreach_utils, "_foreach_supported_types", [*foreach_utils._foreach_supported_types, FakeTensor]),
        (fake_tensor.log, "disabled", True), *replaced(storages),
    ]
    if options.device.type == "cuda":
        recording._note(kernels.LEFT_OUT)
        places.append((torch.Tensor, "record_stream", lambda *_: recording._note(_OTHER_STREAM)))
        places += emulation.torch_cuda(recording, storages.streams, options.capability, 80 << 30,
                                       storages.empty_cache)
    with warnings.catch_warnings(), contextlib.ExitStack() as stack:
        warnings.filterwarnings("ignore", "Accessing the data pointer of FakeTensor")  # deepcopy looks at it
        stack.callback(storages.forget)
        stack.callback(recording._finish)
        stack.enter_context(emulation.patched(places))
        stack.callback(storages.modules.stop)
        storages.modules.start()
        for mode in (fakes, operators, functions):
            stack.enter_context(mode)
        stack.enter_context(explained())
        operators.count_uses()
        yield
