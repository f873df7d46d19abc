# SPDX-License-Identifier: Apache-2.0
"""Allocators of a pool on the emulated GPU: imported streams, and waits between them. Prints its findings as JSON.

The loader finds the emulated driver. PyTorch has no GPU, so its current stream is replaced by a stream of the driver,
and the tensor of a bucket is made at its address, which the host can access.
"""

import ctypes
import json
from types import SimpleNamespace
from unittest.mock import patch

import torch

from bucketpool import View
from bucketpool.torch import megatron_fsdp as pooled
from bucket_groups import Group, make_plan


def on_the_host(view: View, dtype: torch.dtype, wait: bool) -> torch.Tensor:
    return torch.frombuffer((ctypes.c_uint8 * view.bytes).from_address(view.address), dtype=dtype)


def main() -> None:
    gpu = torch.device("cuda", 0)
    groups = [Group(unit, "fp32", 4096) for unit in range(4)]
    served = pooled.PooledBuckets(make_plan(groups), gpu)
    streams = {name: served.pool.device.stream(name) for name in ("compute", "gather", "reduce")}
    current = SimpleNamespace(cuda_stream=0)
    params, grads = (served.allocator(role, groups) for role in ("param", "grad"))

    def on(name: str) -> None:
        current.cuda_stream = streams[name].native

    findings = {"device": served.pool.device.name}
    with patch.object(torch.cuda, "current_stream", lambda device: current), patch.object(View, "_new_tensor", on_the_host):
        for _ in range(3):
            for unit in range(4):  # as its pipelines call them
                on("gather")
                params.allocate(unit, 4096, torch.float32, gpu)
                on("compute")
                params.free(unit)
            for unit in reversed(range(4)):
                on("compute")
                grads.allocate(unit, 4096, torch.float32, gpu).data.fill_(unit)
                on("reduce")
                grads.allocate(unit, 4096, torch.float32, gpu)
                grads.free(unit)
        findings["imported"] = len(served.streams._imported)
        statistics = served.pool.statistics
        findings["acquires"], findings["waits"] = statistics.acquires, statistics.waits
        current.cuda_stream = 2  # CUDA's number for the per-thread default stream
        try:
            params.allocate(0, 4096, torch.float32, gpu)
        except ValueError as error:
            findings["refused"] = str(error)
    served.pool.device.synchronize()
    print(json.dumps(findings))


if __name__ == "__main__":
    main()
