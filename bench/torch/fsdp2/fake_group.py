"""Eight ranks of FSDP2 in one process on one GPU: the fake process group, and communication objects that copy instead of communicating.

FSDP2 with one rank gathers and reduces nothing. Here buffers, their order and their lifetimes are those of rank 0 of eight. The other ranks'
shards are copies of its own, so throughput shows what the adapter costs and nothing of a network."""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

RANKS = 8


def start(device_type):
    """The mesh of eight; the group is made once in a process."""
    if not dist.is_initialized():
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=RANKS)
    return init_device_mesh(device_type, (RANKS,))


class Gather:
    """Copies the own shard into every place, on the current stream."""

    def allocate(self, size, *, dtype, device):
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(self, output_tensor, input_tensor, group, async_op=False):
        for place in output_tensor.view(group.size(), -1):
            if place.data_ptr() != input_tensor.data_ptr():  # FSDP2 casts the own shard into its place beforehand
                place.copy_(input_tensor)


class ReduceScatter:
    """The sum or average of the slices, in the order of the ranks, on the current stream. Additions of whole slices: no kernel whose order
    depends on the alignment of its memory."""

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
