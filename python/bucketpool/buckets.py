"""Buckets: a model's parameters as a runtime flattens them, and the requests for memory that come of them."""

import ctypes
from typing import Any, Iterable, Iterator, List, Mapping, NamedTuple, Optional

from . import _abi
from ._library import call, configured, core
from .handle import Handle, Owner
from .model import Model
from .names import DType, decoded, dtype, dtype_name, encoded, member, role_bits, role_name


class BucketsHandle(Handle):
    destroy = "bp_buckets_destroy"


class Bucket(NamedTuple):
    """As bp_bucket in model.h. numel is without, padded_numel with padding; unit and unit_index None: outside units."""

    unit: Optional[str]
    ordinal: int
    name: Optional[str]
    dtype: str
    numel: int
    padded_numel: int
    expert: bool
    frozen: bool
    shards: int
    parameters: int
    grad_numel: int
    grad_padded_numel: int
    unit_index: Optional[int]


class Request(NamedTuple):
    """Memory for a bucket in a role: numel elements without padding, bytes with it. bucket: index among the buckets."""

    unit: str
    ordinal: int
    role: str
    dtype: str
    numel: int
    bytes: int
    bucket: int


class Buckets(Owner[BucketsHandle]):
    """The buckets of a (sharded) model by a runtime's rules. Keeps nothing of the model. len() and iteration are over
    Bucket records.

    bucketing: "megatron", "fsdp2", "given". padding: "megatron_lcm", "megatron_split", "flat", "given", "fsdp2". dp:
    ranks a dense bucket is sharded over (64, as the command's --dp), ep of them expert-parallel. dtypes None: as model.h says. optimizer_tensors:
    of a shard's size each (Adam: 3). Raises InvalidArgument (dp or ep 0, ep does not divide dp, an empty model),
    SizeOverflow."""

    def __init__(self, model: Model, bucketing: str = "megatron", padding: str = "megatron_lcm", dp: int = 64,
                 ep: int = 1, roles: Iterable[Any] = ("param", "grad"), param_dtype: DType = None,
                 grad_dtype: DType = None, grad_comm_dtype: DType = None, main_grad_dtype: DType = None,
                 optimizer_dtype: DType = None, flat_alignment: Optional[int] = None,
                 optimizer_tensors: Optional[int] = None) -> None:
        config = configured(core().bp_buckets_config_init, _abi.bp_buckets_config,
                            bucketing=member("BP_BUCKETING_", bucketing,
                                             "bucketing"), padding=member("BP_PADDING_", padding, "padding"), dp=dp,
                            ep=ep, roles=role_bits(roles), param_dtype=dtype(param_dtype), grad_dtype=dtype(grad_dtype),
                            grad_comm_dtype=dtype(grad_comm_dtype), main_grad_dtype=dtype(main_grad_dtype),
                            optimizer_dtype=dtype(optimizer_dtype), flat_alignment=flat_alignment,
                            optimizer_tensors=optimizer_tensors)
        handle = BucketsHandle()
        call(core().bp_buckets_create, model.handle, ctypes.byref(config), ctypes.byref(handle))
        self._handle = handle

    @classmethod
    def merged(cls, parts: Mapping[str, "Buckets"]) -> "Buckets":
        """Those of several models that share a pool: unit u of part p is then called "p/u". Schedule.embedded and
        merged go with it."""
        kept = [part.handle for part in parts.values()]
        pointers = (ctypes.c_void_p * len(kept))(*[handle.value for handle in kept])
        names = (ctypes.c_char_p * len(kept))(*[encoded(name, "a part's name") for name in parts])
        handle = BucketsHandle()
        call(core().bp_buckets_create_merged, pointers, names, len(kept), ctypes.byref(handle))
        buckets = cls.__new__(cls)
        buckets._handle = handle
        return buckets

    def _all(self) -> List[Bucket]:
        handle = self.handle
        info = core().bp_buckets_get_info(handle).contents
        units = [decoded(unit.name) for unit in info.units[:info.unit_count]]
        return [
            Bucket(None if b.unit < 0 else units[b.unit], b.ordinal, None if b.name is None else decoded(b.name),
                   dtype_name(b.dtype), b.numel, b.padded_numel, bool(b.expert), bool(b.frozen), b.shards,
                   b.parameter_count, b.grad_numel, b.grad_padded_numel, None if b.unit < 0 else b.unit)
            for b in info.buckets[:info.bucket_count]
        ]

    def __len__(self) -> int:
        handle = self.handle
        return int(core().bp_buckets_get_info(handle).contents.bucket_count)

    def __getitem__(self, index: int) -> Bucket:
        count = len(self)
        if not -count <= index < count:
            raise IndexError(f"bucket {index} of {count}")
        return self._all()[index]

    def __iter__(self) -> Iterator[Bucket]:
        return iter(self._all())

    @property
    def units(self) -> List[str]:
        handle = self.handle
        info = core().bp_buckets_get_info(handle).contents
        return [decoded(unit.name) for unit in info.units[:info.unit_count]]

    @property
    def persistent_bytes(self) -> int:
        """Of all persistent parameters (outside units), gathered."""
        handle = self.handle
        return int(core().bp_buckets_get_info(handle).contents.persistent_bytes)

    @property
    def requests(self) -> List[Request]:
        """By id."""
        handle = self.handle
        info = core().bp_buckets_get_info(handle).contents
        buckets = self._all()
        requests = []
        for r in info.requests[:info.request_count]:
            bucket = buckets[r.bucket]
            requests.append(
                Request(bucket.unit or "", bucket.ordinal, role_name(r.role), dtype_name(r.dtype), r.numel, r.bytes,
                        r.bucket))
        return requests

    def __repr__(self) -> str:
        return "<Buckets, closed>" if self.closed else f"<Buckets: {len(self)} in {len(self.units)} units>"
