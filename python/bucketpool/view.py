# SPDX-License-Identifier: Apache-2.0
"""Views: the memory of a live request, for Python."""

import ctypes
from typing import TYPE_CHECKING, Any, Optional, Tuple

from . import _abi, dlpack
from ._abi import Uncopied
from .device import Stream
from .errors import InvalidArgument, ScheduleError, Unsupported
from .names import DType, dtype, dtype_name, shown

__all__ = ["View"]

if TYPE_CHECKING:
    from .pool import Pool, Record


class View(Uncopied):
    """A view: one reference to a request, from Pool.acquire until release. It does not own the memory.

    Only release, of the view or of its id, drops the reference; garbage collection does not. A released view
    raises ScheduleError. Arrays, tensors and capsules made from it keep the memory mapped, but hold no reference
    to the request: after the release they read the bytes of the next request in the buffer.

    Acquire orders the stream, not the host. If the host can access the memory, numpy(), torch() and
    __dlpack__() wait for the acquiring stream, unless told not to. On GPUs they make the stream of the
    consumer wait, as DLPack requires.
    """

    __slots__ = ("pool", "id", "address", "stream", "_record", "_epoch", "_released", "__weakref__")

    def __init__(self, pool: "Pool", id: int, address: int, stream: Stream, record: "Record") -> None:
        self.pool, self.id, self.address, self.stream, self._record = pool, id, address, stream, record
        self._epoch = record.epoch
        self._released = False

    # ---- properties -------------------------------------------------------------------------------------------------

    @property
    def unit(self) -> str:
        """The unit; "" for persistent parameters."""
        return self._record.unit

    @property
    def ordinal(self) -> int:
        """Position of the bucket in its unit."""
        return self._record.ordinal

    @property
    def role(self) -> str:
        return self._record.role

    @property
    def dtype(self) -> str:
        """The storage dtype: fp8 is "uint8"."""
        return dtype_name(self._record.dtype)

    @property
    def bytes(self) -> int:
        """Bytes with padding."""
        return self._record.bytes

    @property
    def released(self) -> bool:
        """True after a release of this view, or of the last reference to the request."""
        return self._released or self._epoch != self._record.epoch

    def check(self) -> None:
        """Raises ScheduleError if the view is released, InvalidArgument if the pool is closed."""
        if self._released or self._epoch != self._record.epoch:
            raise ScheduleError(
                f"{self._record.text}: it was released, and another request may have its memory; acquire it again")
        if self.pool._handle is None:
            self.pool.handle

    def release(self, stream: Optional[Stream] = None) -> None:
        """Drops the reference. stream: the stream of the last work; None: the acquiring stream."""
        self.check()
        self.pool._release(self._record, self.stream if stream is None else stream)
        self._released = True

    # ---- as arrays and tensors -------------------------------------------------------------------------------------

    def numpy(self, dtype: DType = None, wait: bool = True) -> Any:
        """A writable, one-dimensional numpy array over all bytes of the bucket.

        - dtype: a name or a numpy dtype; None: that of the bucket. numpy lacks bf16 and fp8: pass "uint16" or
          "uint8" for the bits, or a dtype of ml_dtypes.
        - wait: first wait for the acquiring stream

        Raises Unsupported (memory that the host cannot access, an unknown dtype), InvalidArgument (a size
        that is not a multiple of the element size).
        """
        self.check()
        self._reach_from_host(wait)
        import numpy

        kind = self._numpy_type(numpy, dtype)
        if kind.hasobject:
            raise InvalidArgument(f"dtype: {kind} refers to Python objects; pass a dtype of numbers")
        if kind.itemsize == 0 or self.bytes % kind.itemsize:
            raise InvalidArgument(
                f"{self._record.text}: {self.bytes} bytes are not a multiple of the {kind.itemsize} bytes of {kind}; "
                "use \"uint8\"")
        if self.bytes == 0:
            return numpy.empty(0, kind)
        exported = dlpack.export(self.pool.handle, self.id, _abi.BP_DTYPE_UINT8, False)
        memory: Any = (ctypes.c_uint8 * self.bytes).from_address(self.address)
        memory.keeps = exported  # until the last array over this memory is gone
        return numpy.frombuffer(memory, kind)

    def _numpy_type(self, numpy: Any, wanted: DType) -> Any:
        if wanted is not None and not isinstance(wanted,
                                                 (str, int)) and type(wanted).__module__.split(".")[0] != "torch":
            try:
                return numpy.dtype(wanted)
            except (TypeError, ValueError) as error:
                raise InvalidArgument(f"dtype: {error}") from None
        number = self._record.dtype if wanted is None else dtype(wanted)
        name = {_abi.BP_DTYPE_FP64: "float64", _abi.BP_DTYPE_FP32: "float32",
                _abi.BP_DTYPE_FP16: "float16"}.get(number, dtype_name(number))
        try:
            return numpy.dtype(name)
        except TypeError:
            raise Unsupported(
                f"{self._record.text}: numpy has no {name}; use the bits, view.numpy(\"uint16\") or "
                "view.numpy(\"uint8\")") from None

    def torch(self, dtype: DType = None, wait: bool = True) -> Any:
        """A one-dimensional tensor over all bytes of the bucket. Autograd saves a reference, not a copy.

        - dtype: a name or a torch dtype; None: that of the bucket (fp8 buckets are uint8: pass
          torch.float8_e4m3fn)
        - wait: as in numpy(); on a GPU the current stream of torch waits for the acquiring stream

        Raises InvalidArgument (a size that is not a multiple of the element size), Unsupported.
        """
        self.check()
        try:
            known = self._record.tensors.get((self.address, dtype))
        except TypeError:  # a list
            raise InvalidArgument(f"dtype: expected a name or a torch dtype, got {shown(dtype)}") from None
        if known is not None and known.data_ptr() == self.address:
            if wait:
                self._reach_from_torch()
            return known.data  # another tensor, with its own version, over the same storage
        made = self._new_tensor(dtype, wait)
        if self.pool.keeps_tensors(self.address):
            self._record.tensors[self.address, dtype] = made
            return made.data
        return made

    def _reach_from_torch(self) -> None:
        if self.pool.device.is_host_accessible:
            self.stream.synchronize()
            return
        import torch
        self.pool.device.order(self.stream, torch.cuda.current_stream(self.pool.device.ordinal).cuda_stream or 1)

    def _new_tensor(self, dtype: DType, wait: bool) -> Any:
        import torch
        from torch.utils.dlpack import from_dlpack

        kind = dtype if isinstance(dtype, torch.dtype) else self._torch_type(torch, dtype)
        if kind.itemsize == 0 or self.bytes % kind.itemsize:
            raise InvalidArgument(
                f"{self._record.text}: {self.bytes} bytes are not a multiple of the {kind.itemsize} bytes of {kind}; "
                "use \"uint8\"")
        made: Any = from_dlpack(_Bytes(self, wait))
        return made if kind == torch.uint8 else made.view(kind)

    def _torch_type(self, torch: Any, wanted: DType) -> Any:
        number = self._record.dtype if wanted is None else dtype(wanted)
        name = _TORCH.get(number, dtype_name(number))
        kind = getattr(torch, name, None)
        if not isinstance(kind, torch.dtype):
            raise Unsupported(
                f"{self._record.text}: torch {torch.__version__} has no {name}; use the bits, view.torch(\"uint8\")")
        return kind

    # ---- DLPack ----------------------------------------------------------------------------------------------------

    def __dlpack_device__(self) -> Tuple[int, int]:
        """The DLPack device: (kDLCPU, 0) for host devices, (kDLCUDA, ordinal) for GPUs."""
        ordinal = self.pool.device.ordinal
        return (dlpack.CPU, 0) if ordinal is None else (dlpack.CUDA, ordinal)

    def __dlpack__(self, *, stream: Optional[int] = None, max_version: Optional[Tuple[int, int]] = None,
                   dl_device: Optional[Tuple[int, int]] = None, copy: Optional[bool] = None) -> Any:
        """A DLPack capsule of the bucket in its dtype; versioned if max_version allows it.

        stream: on GPUs the stream of the consumer, which waits for the acquiring one (None: the legacy
        default stream; -1: no wait). On hosts None waits for the acquiring stream and -1 does not. Raises
        BufferError (another device, a copy, a dtype that DLPack lacks).
        """
        return self._capsule(self._record.dtype, stream, max_version, dl_device, copy)

    def _capsule(self, kind: int, stream: Optional[int], max_version: Optional[Tuple[int, int]],
                 dl_device: Optional[Tuple[int, int]], copy: Optional[bool]) -> Any:
        self.check()
        here = self.__dlpack_device__()
        if copy:
            raise BufferError(
                f"{self._record.text}: copies through DLPack are unsupported; copy the array or tensor instead")
        for name, pair in (("dl_device", dl_device), ("max_version", max_version)):
            if pair is not None and not (isinstance(pair, (tuple, list)) and len(pair) == 2):
                raise InvalidArgument(f"{name}: expected two integers, got {shown(pair)}")
        if dl_device is not None and (int(dl_device[0]), int(dl_device[1])) != here:
            raise BufferError(f"{self._record.text}: DLPack device {tuple(dl_device)} requested, but the memory is on "
                              f"{here}; leave dl_device out")
        if here[0] == dlpack.CPU:
            if stream not in (None, -1):
                raise BufferError(f"{self._record.text}: stream {stream} for memory of the host; pass None or -1")
            self._reach_from_host(stream is None)
        elif stream != -1:
            self.pool.device.order(self.stream, stream)
        versioned = max_version is not None and tuple(max_version) >= dlpack.VERSION
        try:
            return dlpack.capsule(self.pool.handle, self.id, kind, versioned)
        except Unsupported as error:
            raise BufferError(str(error)) from None  # the type that DLPack's consumers expect

    def _reach_from_host(self, wait: bool) -> None:
        device = self.pool.device
        if not device.is_host_accessible:
            raise Unsupported(
                f"{self._record.text}: the host cannot access memory of device {device.name}; copy it with "
                "Stream.copy, or use torch")
        if wait:
            self.stream.synchronize()

    def __repr__(self) -> str:
        where = "released" if self.released else f"{self.bytes} bytes at {self.address:#x}"
        return f"<View of {self._record.text}, {where}>"


_TORCH = {
    _abi.BP_DTYPE_FP64: "float64", _abi.BP_DTYPE_FP32: "float32", _abi.BP_DTYPE_FP16: "float16",
    _abi.BP_DTYPE_BF16: "bfloat16", _abi.BP_DTYPE_FP8_E4M3: "float8_e4m3fn", _abi.BP_DTYPE_FP8_E5M2: "float8_e5m2",
    _abi.BP_DTYPE_FP8_E8M0: "float8_e8m0fnu"
}


class _Bytes:
    """Exports a view through DLPack as bytes, whatever its dtype."""

    def __init__(self, view: View, wait: bool) -> None:
        self._view, self._wait = view, wait

    def __dlpack_device__(self) -> Tuple[int, int]:
        return self._view.__dlpack_device__()

    def __dlpack__(self, *, stream: Optional[int] = None, max_version: Optional[Tuple[int, int]] = None,
                   dl_device: Optional[Tuple[int, int]] = None, copy: Optional[bool] = None) -> Any:
        return self._view._capsule(_abi.BP_DTYPE_UINT8, stream if self._wait else -1, max_version, dl_device, copy)
