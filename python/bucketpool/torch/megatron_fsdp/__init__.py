# SPDX-License-Identifier: Apache-2.0
"""Megatron-FSDP with its double buffers in a pool.

    from bucketpool.torch import megatron_fsdp as pooled

    with pooled.install() as installed:         # plans the buckets of the module while it is wrapped
        model = megatron_fsdp.fully_shard_model(module, fsdp_unit_modules=[Block], fsdp_double_buffer=True, ...)
    ...                                         # train
    installed.close()

- install(plan="plan.json"): with a plan of the command instead
- describe(model).write("units.json"): writes the buckets for `bucketpool plan`, and returns its arguments
- Installed: modules, each with pool, plan, units, counts; register() with NCCL, capture() of CUDA graphs, close()

For the package megatron-fsdp 0.6.1 and its copy in Megatron-LM. docs/guides/megatron_fsdp.md describes which buffers
are served, the order of streams, and the limits.
"""

from .allocator import Bucket, BucketAllocator, Counts, PooledBuckets
from .install import Installed, Wrapped, install
from .units import Units, describe

__all__ = ["Bucket", "BucketAllocator", "Counts", "Installed", "PooledBuckets", "Units", "Wrapped", "describe",
           "install"]
