# SPDX-License-Identifier: Apache-2.0
"""Properties of the PyTorch of `./check --torch` that the other tests rely on."""

import inspect

import torch
import torch.distributed as dist
import process_group
from torch.distributed.fsdp import FSDPModule, fully_shard


def test_backends():
    assert dist.is_gloo_available() and dist.is_nccl_available()


def test_communication_objects():
    assert list(inspect.signature(FSDPModule.set_custom_all_gather).parameters)[1:] == ["comm"]
    assert list(inspect.signature(FSDPModule.set_custom_reduce_scatter).parameters)[1:] == ["comm"]


class CountingGather:
    """FSDP2's default all-gather, with a count of its allocations."""

    def __init__(self):
        self.numels = []

    def allocate(self, size, *, dtype, device):
        self.numels.append(torch.Size(size).numel())
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(self, output_tensor, input_tensor, group, async_op=False):
        return dist.all_gather_into_tensor(output_tensor, input_tensor, group=group, async_op=async_op)


def train_once():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Linear(16, 16))
    gather = CountingGather()
    for layer in model:
        fully_shard(layer)
        layer.set_custom_all_gather(gather)
    fully_shard(model)
    model(torch.ones(4, 16)).sum().backward()
    return gather.numels, tuple(model[0].weight.grad.to_local().shape)


def test_allocate_hook():
    layer = 16 * 16 + 16
    for numels, shape in process_group.run(train_once):
        assert numels[:2] == [layer, layer] and set(numels) == {layer}
        assert shape == (8, 16)
