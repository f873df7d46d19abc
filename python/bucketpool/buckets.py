# SPDX-License-Identifier: Apache-2.0
"""Buckets: the parameters of a model, flattened by the rule of a runtime, and their requests for memory."""

import ctypes
from typing import Any, Iterable, Iterator, List, Mapping, NamedTuple, Optional

from . import _abi
from ._library import call, configured, core
from .handle import Handle, Owner, handle_of
from .model import Model
from .names import DType, decoded, dtype, dtype_name, encoded, flag, mapping_of, member, role_bits, role_name


__all__ = ["Bucket", "Buckets", "Request"]


class BucketsHandle(Handle, _abi.bp_buckets):
    destroy = "bp_buckets_destroy"


class Bucket(NamedTuple):
    """A bucket, as bp_bucket in model.h.

    numel is without padding, padded_numel with it. unit and unit_index are None for persistent parameters.
    """

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
    """A request: memory for a bucket in a role. The id of a request is its index.

    numel is without padding, bytes is with it. bucket is an index of the buckets.
    """

    unit: str
    ordinal: int
    role: str
    dtype: str
    numel: int
    bytes: int
    bucket: int


class Buckets(Owner[BucketsHandle]):
    """The buckets and requests of a model.

        buckets = Buckets(Model.read("config.json"), dp=64, ep=8)
        print(len(buckets), sum(r.bytes for r in buckets.requests))

    len() and iteration are over Bucket records.

    - model: sharded by tp and ep (Model.shard); only read
    - bucketing: "megatron", "fsdp2" or "given"
    - padding: "megatron_lcm", "megatron_split", "flat", "given", "fsdp2" or "fsdp2_shard1" (stacked experts sharded
      along dimension 1); None: by bucketing
    - dp, ep: data-parallel ranks that a dense bucket is sharded over, and expert-parallel ranks; ep divides
      dp
    - roles: roles that get requests, such as "param", "grad", "state"
    - param_dtype, grad_dtype, grad_comm_dtype, main_grad_dtype, optimizer_dtype: None for the defaults in
      model.h
    - flat_alignment: elements, for padding "flat"
    - optimizer_tensors: tensors of the size of a shard; 3 for Adam
    - single_rank: buckets of one rank get requests, too, which communicate nothing

    Raises InvalidArgument (dp or ep is 0, ep does not divide dp, an empty model), SizeOverflow.
    """

    shared = True

    def __init__(self, model: Model, bucketing: str = "megatron", padding: Optional[str] = None, dp: int = 64,
                 ep: int = 1, roles: Iterable[Any] = ("param", "grad"), param_dtype: DType = None,
                 grad_dtype: DType = None, grad_comm_dtype: DType = None, main_grad_dtype: DType = None,
                 optimizer_dtype: DType = None, flat_alignment: Optional[int] = None,
                 optimizer_tensors: Optional[int] = None, single_rank: bool = False) -> None:
        config = configured(core().bp_buckets_config_init, _abi.bp_buckets_config,
                            bucketing=member("BP_BUCKETING_", bucketing,
                                             "bucketing"),
                            padding=None if padding is None else member("BP_PADDING_", padding, "padding"), dp=dp,
                            ep=ep, roles=role_bits(roles), param_dtype=dtype(param_dtype), grad_dtype=dtype(grad_dtype),
                            grad_comm_dtype=dtype(grad_comm_dtype), main_grad_dtype=dtype(main_grad_dtype),
                            optimizer_dtype=dtype(optimizer_dtype), flat_alignment=flat_alignment,
                            optimizer_tensors=optimizer_tensors, single_rank=flag(single_rank, "single_rank"))
        handle = BucketsHandle()
        call(core().bp_buckets_create, handle_of(model, Model, "model"), ctypes.byref(config), ctypes.byref(handle))
        self._handle = handle

    @classmethod
    def merged(cls, parts: Mapping[str, "Buckets"]) -> "Buckets":
        """Merges the buckets of several models that share a pool: unit u of part p is named "p/u".

        Make their schedules with Schedule.embedded and Schedule.merged. Raises InvalidArgument.
        """
        kept = [handle_of(part, Buckets, f"parts[{name!r}]") for name, part in mapping_of(parts, "parts").items()]
        pointers = (_abi.bp_buckets * len(kept))(*[handle.value for handle in kept])
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
            raise IndexError(f"bucket {index}: there are {count}; pass an index in [0, {count})")
        return self._all()[index]

    def __iter__(self) -> Iterator[Bucket]:
        return iter(self._all())

    @property
    def units(self) -> List[str]:
        """Names of the units; Bucket.unit_index is an index of this list."""
        handle = self.handle
        info = core().bp_buckets_get_info(handle).contents
        return [decoded(unit.name) for unit in info.units[:info.unit_count]]

    @property
    def root(self) -> Optional[int]:
        """The unit of FSDP2's root group, "(root)", which is the last; None: none."""
        handle = self.handle
        root = core().bp_buckets_get_info(handle).contents.root
        return None if root < 0 else int(root)

    @property
    def persistent_bytes(self) -> int:
        """Gathered bytes of all persistent parameters."""
        handle = self.handle
        return int(core().bp_buckets_get_info(handle).contents.persistent_bytes)

    @property
    def requests(self) -> List[Request]:
        """All requests, by id."""
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
