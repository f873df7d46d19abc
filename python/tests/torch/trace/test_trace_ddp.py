# SPDX-License-Identifier: Apache-2.0
"""DistributedDataParallel in recordings: the reducer against PyTorch's, in values, buckets and memory."""

import contextlib

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore

import bucketpool as bp
import process_group
from bucketpool.torch import trace
from bucketpool.torch.trace import ddp, emulation
from trace_cases import kinds, measured


class Net(nn.Module):
    """Some parameters are used in another order than they are registered in, and one may be unused."""

    def __init__(self, width=600):
        super().__init__()
        self.last, self.first = nn.Linear(width, width), nn.Linear(width, width)
        self.between = nn.Sequential(*(nn.Linear(width, width) for _ in range(8)))
        self.unused = nn.Linear(width, 1)

    def forward(self, x, unused=False):
        y = self.last(F.relu(self.between(F.relu(self.first(x)))))
        return y if unused else y * self.unused(x)


def train(steps=3, microbatches=1, unused=False, step=lambda: None, device="cpu", width=600, **options):
    """Gradients of each step."""
    torch.manual_seed(0)
    with torch.device(device):
        net = DistributedDataParallel(Net(width), bucket_cap_mb=4, **options)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    found = []
    for _ in range(steps):
        step()
        for microbatch in range(microbatches):
            x = torch.randn(64, width, device=device) + dist.get_rank()
            with net.no_sync() if microbatch + 1 < microbatches else contextlib.nullcontext():
                net(x, unused).pow(2).mean().backward()
        found.append([None if each.grad is None else each.grad.sum() for each in net.parameters()])
        optimizer.step()
        optimizer.zero_grad()
    return found


def both(options):
    """Gradients and peaks by PyTorch's reducer and by the one of recordings."""
    results = []
    for places in ([], ddp.replaced(lambda *_: None)):
        with emulation.patched(places):
            found = [[None if each is None else each.item() for each in step] for step in train(**options)]
            results.append((found, min(measured(train, **options) for _ in range(3))))  # gloo frees late at times
    return results


OPTIONS = {
    "default": {},
    "views": {"gradient_as_bucket_view": True},
    "microbatches": {"microbatches": 3},
    "unused": {"find_unused_parameters": True, "unused": True},
    "static": {"static_graph": True},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_reducer(name):
    """Averages of two ranks, and the peak of PyTorch's allocator: buckets that are rebuilt, and broadcasts."""
    ranks = process_group.run(both, OPTIONS[name])
    for (theirs, _), (ours, _) in ranks:
        for step, other in zip(theirs, ours):
            assert [each is None for each in step] == [each is None for each in other]
            for a, b in zip(step, other):
                assert a is None or a == pytest.approx(b, rel=1e-4, abs=1e-6)
    their_peak, our_peak = (min(rank[of][1] for rank in ranks) for of in (0, 1))
    assert our_peak == pytest.approx(their_peak, rel=0.01)


@pytest.mark.parametrize("name", ["default", "views"])
def test_recorded(name):
    """A recording's peak is that of PyTorch's reducer."""
    real = process_group.run(measured_train, OPTIONS[name])
    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    try:
        with trace.record(device="cpu") as recorded:
            train(step=recorded.step, **OPTIONS[name])
    finally:
        dist.destroy_process_group()
    assert recorded.peak_bytes == pytest.approx(min(real), rel=0.02)


def measured_train(options):
    train(steps=1, **options)
    return measured(train, **options)


@pytest.mark.parametrize("as_view", [False, True])
def test_buckets_on_cuda(as_view):
    """Beside the gradients, or instead of them; the first backward pass has one bucket, the next ones several."""
    dist.init_process_group("fake", rank=0, world_size=4, store=FakeStore())
    try:
        with trace.record(device="cuda") as recorded:
            with torch.device("cuda"):
                net = DistributedDataParallel(nn.Sequential(*(nn.Linear(1024, 1024, bias=False) for _ in range(8))),
                                              bucket_cap_mb=9, gradient_as_bucket_view=as_view)
            size = 8 * 4 << 20
            for step in range(2):
                recorded.step()
                net(torch.randn(4, 1024, device="cuda")).sum().backward()
                sizes = kinds(recorded.live())
                assert sizes["parameters"] == size and sizes["gradients"] == size
                assert sizes["communication"] == (0 if as_view else size)
                buckets = sorted(each.bytes >> 20 for each in recorded.live()
                                 if each.op == "aten::empty" and each.kind != "parameters")
                assert buckets == ([32] if step == 0 else [8, 12, 12])
                net.zero_grad()
    finally:
        dist.destroy_process_group()


def test_refused():
    dist.init_process_group("fake", rank=0, world_size=4, store=FakeStore())
    try:
        with pytest.raises(bp.Unsupported, match="communication hooks are not recorded; "), trace.record():
            net = DistributedDataParallel(nn.Linear(4, 4, device="cuda"))
            net.register_comm_hook(None, lambda state, bucket: None)
    finally:
        dist.destroy_process_group()
