"""Megatron-FSDP on a bucketpool pool: an allocator for its buckets, and the description of its buckets as units.json.

    from bucketpool.torch import megatron_fsdp as pooled

    with pooled.install(plan=bucketpool.Plan.read("plan.json")) as installed:
        model = megatron_fsdp.fully_shard_model(module, fsdp_unit_modules=[Block], fsdp_double_buffer=True, ...)
    pooled.describe(model).write("units.json")      # what `bucketpool plan units.json --bucketing given` plans

Without a plan `install` makes one from the module's own buckets while it is wrapped. Written for the package
megatron-fsdp 0.6.1 and the copy of it in Megatron-LM (megatron.core.distributed.fsdp.src.megatron_fsdp);
docs/guides/megatron_fsdp.md says what is served, how streams are ordered and what the limits are. Nothing here imports either
of them but install()."""

from .allocator import Bucket, BucketAllocator, PooledBuckets
from .install import Installed, install
from .units import Units, describe

__all__ = ["Bucket", "BucketAllocator", "Installed", "PooledBuckets", "Units", "describe", "install"]
