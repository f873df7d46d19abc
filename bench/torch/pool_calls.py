# SPDX-License-Identifier: Apache-2.0
"""Cost of a buffer from Python on the CPU: a pool's acquire and release, the same with a tensor, PyTorch's own allocation, a
buffer of FSDP2 from its hook and from the pool, and a step of FSDP2 without and with a pool.

    python3 bench/torch/pool_calls.py

Prints medians in microseconds. The ways run in turns in one process, in a new order each turn."""

import argparse
import os
import random
import statistics
import sys
import time

import torch

import bucketpool as bp

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))),
                                "python", "tests"))
from support import small_plan  # noqa: E402

NUMEL = 1 << 16
CALLS = 500  # per turn and way
LAYERS = 32
_kept = []


def pool_ways():
    """A pool's calls: name -> function."""
    device = bp.Device.host()
    _buckets, _schedule, plan = small_plan([NUMEL] * 4)
    pool = bp.Pool(device, plan)
    stream = device.stream("compute")
    ids = [plan.find("u0", 0, "param")]

    def pair():
        pool.acquire(ids, stream)
        pool.release(ids, stream)

    def view():
        held, = pool.acquire(ids, stream)
        held.release()

    def tensor():
        held, = pool.acquire(ids, stream)
        held.torch()
        held.release()

    def empty():
        torch.empty(NUMEL, dtype=torch.bfloat16)

    return {"torch.empty": empty, "acquire and release of ids": pair, "acquire, release of the view": view,
            "acquire, tensor, release": tensor}


def fsdp2_ways():
    """A buffer of an all-gather of FSDP2 from both hooks, and what an aliased collective adds: name -> function."""
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard
    from torch.testing._internal.distributed.fake_pg import FakeStore

    from bucketpool.torch import fsdp2

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    mesh = dist.device_mesh.init_device_mesh("cpu", (2,))
    model = torch.nn.Sequential(*[torch.nn.Linear(256, 256, bias=False) for _ in range(4)])
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    attached = fsdp2.attach(model)
    comm = attached.groups[-1].module._get_fsdp_state()._fsdp_param_group._all_gather_comm
    cpu, size = torch.device("cpu"), (256 * 256,)
    group = object()

    class Nothing:
        def __call__(self, output_tensor, input_tensor, group, async_op=False):
            return None

    plain, shard = comm.plain, torch.empty(256 * 128)
    nothing = Nothing()
    nothing.allocate = plain.allocate
    comm.plain = nothing

    def default():
        nothing(plain.allocate(size, dtype=torch.float32, device=cpu), shard, group)

    def served():
        comm(comm.allocate(size, dtype=torch.float32, device=cpu), shard, group)

    def allocated():
        comm.allocate(size, dtype=torch.float32, device=cpu)

    models = [model, torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(LAYERS)]),
              torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(LAYERS)])]
    for each in models[1:]:
        for layer in each:
            fully_shard(layer, mesh=mesh)
        fully_shard(each, mesh=mesh)
    models.append(fsdp2.attach(models[2]))  # kept
    inputs = torch.ones(4, 64)

    def step(module):
        module(inputs).sum().backward()

    _kept.append(models)
    return {f"FSDP2: a step of {LAYERS} layers": lambda: step(models[1]),
            f"FSDP2: attached, a step of {LAYERS} layers": lambda: step(models[2]),
            "FSDP2: its hook": default, "FSDP2: attached, buffer": allocated,
            "FSDP2: attached, buffer and collective": served}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=60)
    options = parser.parse_args()
    torch.set_num_threads(1)
    ways = {**pool_ways(), **fsdp2_ways()}
    times = {name: [] for name in ways}
    for _ in range(options.turns):
        for name in random.sample(sorted(ways), len(ways)):
            function = ways[name]
            begin = time.perf_counter_ns()
            calls = CALLS // 100 if "step" in name else CALLS
            for _ in range(calls):
                function()
            times[name].append((time.perf_counter_ns() - begin) / calls / 1000)
    for name, each in times.items():
        print(f"{name:40} {statistics.median(each):8.2f} us")


if __name__ == "__main__":
    main()
