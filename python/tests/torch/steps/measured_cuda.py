# SPDX-License-Identifier: Apache-2.0
"""The figures of bench/torch/steps on PyTorch's CUDA allocator, over the emulated runtime and driver. Prints a JSON object."""

import json
import os
import sys
import types

ROOT = os.path.abspath(__file__).rsplit("/python/tests/", 1)[0]
sys.path[:0] = [os.path.join(ROOT, "bench", "torch", folder) for folder in ("steps", "fsdp2", "")]

import torch  # noqa: E402

import device  # noqa: E402
import train  # noqa: E402
from bucketpool.torch import steps  # noqa: E402

MIB = 1 << 20


class Training:
    """Steps of three tensors that live together."""

    options, attached = types.SimpleNamespace(device="cuda", trace=""), None

    def step(self):
        kept = [torch.empty(4 * MIB, dtype=torch.uint8, device="cuda") for _ in range(3)]
        steps.mark()
        return float(len(kept))


def main():
    torch.cuda.set_per_process_memory_fraction(2**30 / torch.cuda.get_device_properties(0).total_memory)
    served = steps.serve(record=3, device="cuda")
    actions = train.Actions(Training())
    for _ in range(train.WARMUP):
        actions.step()
    first, step = actions.reset(), actions.step()
    found = {"first": first, "step": step, "memory": actions.memory(), "served": served.summary()}
    try:
        torch.empty(2**31, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError as error:
        found["out_of_memory"] = device.Gpu.is_out_of_memory(None, error)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)
