# SPDX-License-Identifier: Apache-2.0
"""Eight ranks of FSDP2 in one process on one GPU: the fake process group, and communication objects that copy locally.

FSDP2 on a single rank skips its collectives. Here buffers, their order and their live ranges are those of rank 0 of eight. The other ranks'
shards are copies of the local one, so throughput shows the cost of the adapter and excludes the network."""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

RANKS = 8


def start(device_type):
    """The mesh of eight ranks; the group is created once per process."""
    if not dist.is_initialized():
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=RANKS)
    return init_device_mesh(device_type, (RANKS,))


class Gather:
    """Copies the local shard into every slot, on the current stream."""

    def allocate(self, size, *, dtype, device):
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(self, output_tensor, input_tensor, group, async_op=False):
        for place in output_tensor.view(group.size(), -1):
            if place.data_ptr() != input_tensor.data_ptr():  # FSDP2 casts the local shard into its slot beforehand
                place.copy_(input_tensor)


class ReduceScatter:
    """The sum or average of the slices, in rank order, on the current stream. Adds whole slices: the order of additions does not
    depend on the alignment of memory."""

    def allocate(self, size, *, dtype, device):
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(self, output_tensor, input_tensor, group, op, async_op=False):
        slices = input_tensor.view(group.size(), -1)
        torch.add(slices[0], slices[1], out=output_tensor)
        for part in slices[2:]:
            output_tensor.add_(part)
        if op == dist.ReduceOp.AVG:
            output_tensor.div_(group.size())


def install(modules):
    for module in modules:
        module.set_custom_all_gather(Gather())
        module.set_custom_reduce_scatter(ReduceScatter())
