# SPDX-License-Identifier: Apache-2.0
"""Tensors as arguments of the library: dtypes, strides, memory without copies, and torch's current streams."""

import atexit
import ctypes
import threading
from typing import Any, Dict, Optional, Tuple

import torch
import torch.distributed as dist

from .. import _abi
from .._library import call, configured, core, made
from ..errors import InvalidArgument, Unsupported
from .memory import tensor_at

DTYPES: Dict[torch.dtype, int] = {
    torch.float32: _abi.BP_DTYPE_FP32,
    torch.float16: _abi.BP_DTYPE_FP16,
    torch.bfloat16: _abi.BP_DTYPE_BF16,
    torch.int32: _abi.BP_DTYPE_INT32,
    torch.int64: _abi.BP_DTYPE_INT64,
}
TORCH_DTYPES: Dict[int, torch.dtype] = {number: dtype for dtype, number in DTYPES.items()}
FLOATS = (torch.float32, torch.bfloat16, torch.float16)

_mode_of: Any = torch._C._get_dispatch_mode
_FAKE: Any = torch._C._TorchDispatchModeKey.FAKE

_raw_stream: Any = getattr(torch._C, "_cuda_getCurrentRawStream", None)  # makes no object
_current: Any = getattr(torch._C, "_cuda_getDevice", None)

_lock = threading.RLock()
_devices: Dict[Tuple[str, int], ctypes.c_void_p] = {}
_streams: Dict[Tuple[int, int], ctypes.c_void_p] = {}

# ---- devices and streams -------------------------------------------------------------------------------------------


def device_of(device: torch.device) -> ctypes.c_void_p:
    """The library's device for tensors on `device`. Created on first use, kept until exit."""
    if device.type not in ("cpu", "cuda"):
        raise Unsupported(f"tensor on {device}: unsupported device; use cpu or cuda")
    _refuse_fake("bucketpool")
    ordinal = 0 if device.type == "cpu" else device.index if device.index is not None else torch.cuda.current_device()
    with _lock:
        if (device.type, ordinal) not in _devices:
            if device.type == "cpu":
                made_device = made(core().bp_device_create_host,
                                   ctypes.byref(configured(core().bp_host_config_init, _abi.bp_host_config)))
            else:
                config = configured(core().bp_cuda_config_init, _abi.bp_cuda_config, ordinal=ordinal)
                made_device = made(core().bp_device_create_cuda, ctypes.byref(config))
            _devices[device.type, ordinal] = made_device
        return _devices[device.type, ordinal]


def _refuse_fake(what: str) -> None:
    """Calls of the library read memory, which tensors of a FakeTensorMode lack."""
    if _mode_of(_FAKE) is not None:
        raise Unsupported(f"{what}: fake tensors have no values; of bucketpool, recordings and graphs take "
                          "log-probabilities and entropies of logits and of hidden states")


def stream_of(device: torch.device) -> Optional[ctypes.c_void_p]:
    """The current stream of torch, imported by its native handle. None on CPUs, where calls are synchronous."""
    if device.type == "cpu":
        return None
    index = torch.cuda.current_device() if device.index is None else device.index
    key = index, _raw_stream(index)
    known = _streams.get(key)
    if known is not None:
        return known
    native = key[1]
    with _lock:
        if key not in _streams:
            _streams[key] = made(core().bp_stream_import, device_of(device), native, f"torch.{native:x}".encode())
        return _streams[key]


def native_of(stream: Any) -> Optional[int]:
    """The native handle of a GPU's stream; None for a stream of the host."""
    native = ctypes.c_uint64()
    return native.value if core().bp_stream_native(stream, ctypes.byref(native)) == _abi.BP_OK else None


@atexit.register
def _close() -> None:
    with _lock:
        for objects, destroy in ((_streams, "bp_stream_destroy"), (_devices, "bp_device_destroy")):
            for handle in objects.values():
                getattr(core(), destroy)(ctypes.byref(handle))
            objects.clear()


# ---- memory --------------------------------------------------------------------------------------------------------


def memory(address: Optional[int], size: int, dtype: torch.dtype, cuda: bool) -> torch.Tensor:
    """A tensor over `size` bytes at `address`, without a copy or ownership."""
    if size == 0 or not address:
        return torch.empty(0, dtype=dtype, device="cuda" if cuda else "cpu")
    return tensor_at(address, size // dtype.itemsize, dtype, torch.device("cuda" if cuda else "cpu"))


def empty_like(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A contiguous tensor of the same shape on the same device."""
    if tensor.dtype == dtype and tensor.is_contiguous():
        return torch.empty_like(tensor)  # which parses fewer arguments
    return torch.empty_like(tensor, dtype=dtype, memory_format=torch.contiguous_format)


# ---- views ---------------------------------------------------------------------------------------------------------


def pointer(tensor: Optional[torch.Tensor]) -> Optional[int]:
    return None if tensor is None else tensor.data_ptr()


def shape_of(shape: torch.Size) -> Tuple[int, int]:
    """[batch, sequence] of tokens of any shape."""
    return (shape[:-1].numel(), shape[-1]) if shape else (1, 1)


def _strides(tensor: torch.Tensor, trailing: int) -> Optional[Tuple[int, int]]:
    """Strides of batch and sequence, with all dimensions before the sequence merged into the batch. None if merging
    needs a copy.
    """
    if tensor.numel() == 0:
        return 0, 0
    sizes, strides = list(tensor.shape), list(tensor.stride())
    sizes, strides = sizes[:len(sizes) - trailing], strides[:len(strides) - trailing]
    stride = strides[-1] if strides else 0
    batch_stride, known = 0, False
    for i in reversed(range(len(sizes) - 1)):
        if sizes[i] == 1:
            continue
        if not known:
            batch_stride, expected, known = strides[i], strides[i] * sizes[i], True
        elif strides[i] != expected:
            return None
        else:
            expected *= sizes[i]
    return batch_stride, stride


def values(tensor: Optional[torch.Tensor],
           several: bool = False) -> Tuple[_abi.bp_token_values, Optional[torch.Tensor]]:
    """The argument for one value of each token, [..., sequence], or for several, [..., sequence, values]; and the
    tensor that it points into, which must live until the call has returned.
    """
    if tensor is None:
        return _abi.bp_token_values(), None
    if tensor.is_neg():
        tensor = contiguous(tensor)
    if several:
        strides = _strides(tensor, 1)
        if strides is None:
            tensor = tensor.contiguous()
            strides = _strides(tensor, 1) or (0, 0)
        return _abi.bp_token_values(tensor.data_ptr(), *strides, tensor.stride(-1)), tensor
    if tensor.dim() == 1:
        return _abi.bp_token_values(tensor.data_ptr(), 0, tensor.stride(0)), tensor
    strides = _strides(tensor, 0)
    if strides is None:
        tensor, strides = tensor.contiguous(), (tensor.shape[-1], 1)
    return _abi.bp_token_values(tensor.data_ptr(), strides[0], strides[1]), tensor


def contiguous(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor or a copy, whose memory has its values. That of a view of the imaginary part of a conjugate has them
    negated.
    """
    return tensor.resolve_neg().contiguous()


def rows_fit(tensor: torch.Tensor) -> bool:
    """True if rows [..., columns] can be read in place: each row is contiguous, and rows do not overlap."""
    if tensor.is_neg():
        return False
    if tensor.is_contiguous():
        return True
    strides = _strides(tensor, 1)
    if strides is None or (tensor.shape[-1] > 1 and tensor.stride(-1) != 1):
        return False
    return all(stride != 0 or size <= 1 for stride, size in zip(tensor.stride(), tensor.shape))


def readable(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or a copy whose rows can be read."""
    return tensor if rows_fit(tensor) else contiguous(tensor)


def rows(tensor: torch.Tensor) -> _abi.bp_token_rows:
    """A row for each token, [..., columns]; rows_fit() holds."""
    shape = tensor.shape
    columns = shape[-1]
    batch, sequence = shape_of(shape[:-1])
    if tensor.is_contiguous():
        return _abi.bp_token_rows(tensor.data_ptr(), DTYPES[tensor.dtype], batch, sequence, columns, sequence * columns,
                                  columns)
    batch_stride, stride = _strides(tensor, 1) or (0, 0)
    stride = columns if sequence <= 1 else stride
    batch_stride = sequence * stride if batch <= 1 else batch_stride
    return _abi.bp_token_rows(tensor.data_ptr(), DTYPES[tensor.dtype], batch, sequence, columns, batch_stride, stride)


# ---- checks of arguments -------------------------------------------------------------------------------------------


def check_floats(name: str, tensor: Any) -> None:
    if not isinstance(tensor, torch.Tensor):
        raise InvalidArgument(f"{name}: expected a tensor, got {type(tensor).__name__}")
    if tensor.dtype not in FLOATS:
        raise InvalidArgument(f"{name}: unsupported dtype {tensor.dtype}; use float32, bfloat16 or float16")
    if tensor.layout != torch.strided:
        raise InvalidArgument(f"{name}: unsupported layout {tensor.layout}; pass a strided tensor")
    if type(tensor) is not torch.Tensor:
        refuse_dtensor(name, tensor)
    refuse_transform(name, tensor)


def refuse_transform(name: str, tensor: torch.Tensor) -> None:
    functorch: Any = torch._C._functorch
    if functorch.is_functorch_wrapped_tensor(tensor):
        raise Unsupported(f"{name}: inside torch.vmap or a transform of torch.func (grad, vjp, jvp, ...); pass the "
                          "tensor with all its batch dimensions instead, and differentiate with backward() or "
                          "torch.autograd.grad")


def refuse_dtensor(name: str, tensor: Any) -> None:
    if is_dtensor(tensor):
        raise InvalidArgument(f"{name}: a DTensor with placements {tuple(tensor.placements)}; pass its local tensor "
                              "(to_local())")


def check_target(target: Any, shape: torch.Size, device: torch.device) -> int:
    """The number of targets of a token: [..., sequence] or [..., sequence, K]."""
    if not isinstance(target, torch.Tensor):
        raise InvalidArgument(f"targets: expected a tensor, got {type(target).__name__}")
    if target.dtype not in (torch.int64, torch.int32):
        raise InvalidArgument(f"targets: unsupported dtype {target.dtype}; use int64 or int32")
    several = target.shape != shape
    if several and (target.dim() != len(shape) + 1 or target.shape[:-1] != shape):
        raise InvalidArgument(f"targets: shape {list(target.shape)} for tokens {list(shape)}; pass one for each token, "
                              "or a last dimension of several")
    if several and not 1 <= target.shape[-1] <= _abi.BP_LOGPROB_MAX_TARGETS:
        raise InvalidArgument(f"targets: {target.shape[-1]} for each token; pass 1 to "
                              f"{_abi.BP_LOGPROB_MAX_TARGETS}")
    if target.device != device:
        raise InvalidArgument(f"targets: on {target.device}, but logits or hidden states are on {device}; move them")
    if type(target) is not torch.Tensor:
        refuse_dtensor("targets", target)
    refuse_transform("targets", target)
    return target.shape[-1] if several else 1


def token_gradient(name: str, tensor: Any, shape: torch.Size, device: torch.device) -> torch.Tensor:
    """An upstream gradient as float32."""
    if not isinstance(tensor, torch.Tensor) or not tensor.is_floating_point():
        raise InvalidArgument(f"{name}: expected a floating-point tensor, got {getattr(tensor, 'dtype', type(tensor))}")
    if tensor.shape != shape or tensor.device != device:
        raise InvalidArgument(f"{name}: shape {list(tensor.shape)} on {tensor.device}; pass {list(shape)} on {device}")
    refuse_dtensor(name, tensor)
    return tensor.detach().float()


def token_temperatures(tensor: torch.Tensor, shape: torch.Size, device: torch.device) -> torch.Tensor:
    if tensor.dtype != torch.float32 or tensor.shape != shape or tensor.device != device:
        raise InvalidArgument(
            f"temperature: {tensor.dtype} of shape {list(tensor.shape)} on {tensor.device} for tokens {list(shape)} on "
            f"{device}; pass a number, or float32 with one value for each token")
    refuse_dtensor("temperature", tensor)
    return tensor.detach()


def token_mask(mask: Any, shape: torch.Size, device: torch.device) -> Optional[torch.Tensor]:
    """The mask as bool for each token; False: the token is not read, and its result and gradient are 0."""
    if mask is None:
        return None
    if not isinstance(mask, torch.Tensor):
        raise InvalidArgument(f"mask: expected a tensor or None, got {type(mask).__name__}")
    if mask.shape != shape or mask.device != device:
        raise InvalidArgument(
            f"mask: {list(mask.shape)} on {mask.device} for tokens {list(shape)} on {device}; pass the shape and "
            "device of targets")
    refuse_dtensor("mask", mask)
    return bytes_of(mask)


def bytes_of(mask: torch.Tensor) -> torch.Tensor:
    """The mask as a tensor of bytes that are 0 or 1."""
    return mask if mask.dtype == torch.bool else mask != 0


# ---- DTensors ------------------------------------------------------------------------------------------------------


def is_dtensor(tensor: Any) -> bool:
    kind = type(tensor)
    if kind is torch.Tensor or kind is torch.nn.Parameter or not dist.is_available():
        return False
    from torch.distributed.tensor import DTensor
    return isinstance(tensor, DTensor)


def local_shard(name: str, tensor: Any, dimension: int, group: Any) -> Tuple[Any, Any]:
    """The local tensor of a DTensor that is sharded along its vocabulary, and the group of that mesh dimension; other
    tensors and `group` as they are. Its gradient is a DTensor of the same placements.
    """
    if not is_dtensor(tensor):
        return tensor, group
    dimension %= tensor.dim()
    mesh, placements = tensor.device_mesh, tuple(tensor.placements)
    shards = [i for i, placement in enumerate(placements) if not placement.is_replicate()]
    if len(shards) > 1 or any(not placements[i].is_shard(dimension) for i in shards):
        raise InvalidArgument(f"{name}: placements {placements} of a DTensor; expected Shard({dimension}), the "
                              "vocabulary, on at most one dimension of the mesh and Replicate() on the others; "
                              "redistribute it, or pass its local tensor (to_local()) and the group")
    if not shards:
        if group is not None:
            raise InvalidArgument(f"{name}: placements {placements} of a DTensor repeat the vocabulary on each rank, "
                                  "but a group is given; pass group=None")
    else:
        own = mesh.get_group(shards[0])
        ranks_of = dist.get_process_group_ranks
        if isinstance(group, dist.ProcessGroup) and ranks_of(group) != ranks_of(own):
            raise InvalidArgument(f"{name}: sharded over the ranks {ranks_of(own)}, but the group has "
                                  f"{ranks_of(group)}; pass group=None, or the group of the mesh")
        group = own if group is None else group
    return tensor.to_local(grad_placements=placements), group


def sharded_as(gradient: Optional[torch.Tensor], source: Any) -> Optional[torch.Tensor]:
    """The gradient of the local tensor of `source`, as a DTensor if that is one."""
    if gradient is None or not is_dtensor(source):
        return gradient
    from torch.distributed.tensor import DTensor
    whole: torch.Tensor = DTensor.from_local(gradient, source.device_mesh, source.placements, run_check=False,
                                             shape=source.shape, stride=source.stride())
    return whole


def run(device: torch.device, function: Any, *arguments: Any) -> None:
    """Calls the library with torch's current stream of `device` as the last argument, and the GPU current."""
    if _mode_of(_FAKE) is not None:
        _refuse_fake(function.__name__)
    if device.type == "cpu":
        call(function, *arguments, None)
    elif _current() == device.index:
        call(function, *arguments, stream_of(device))
    else:
        with torch.cuda.device(device):
            call(function, *arguments, stream_of(device))
