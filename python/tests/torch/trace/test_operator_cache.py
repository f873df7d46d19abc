# SPDX-License-Identifier: Apache-2.0
"""Results of operators that a recording remembers: the same events, tensors and errors as without."""

import contextlib
from unittest import mock

import pytest
import torch
from torch.nn import functional

from bucketpool.torch import trace
from bucketpool.torch.trace import operator_cache


def transformer():
    layer = torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, dropout=0.1, device="cuda")
    model = torch.nn.TransformerEncoder(layer, 3)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        output = model(torch.randn(2, 16, 64, device="cuda"))
        output.float().logsumexp(-1).mean().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


def convolutions():
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU(inplace=True),
                                torch.nn.Conv2d(8, 8, 3), torch.nn.BatchNorm2d(8)).to("cuda")
    for _ in range(2):
        with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):  # frees in the order of addresses
            model(torch.zeros(4, 3, 16, 16, device="cuda")).sum().backward()


def views():
    for size in (8, 8, 16):
        whole = torch.zeros(4, size, device="cuda")
        parts = [*whole.chunk(2), *whole.unbind(0), whole.t(), whole[:, 1:3], whole.as_strided((2, 2), (1, 2), 3)]
        parts[0].add_(1)
        joined = torch.cat([each.reshape(-1) for each in parts])
        whole.resize_(4, 2 * size)
        torch.add(joined, joined, out=torch.empty(0, device="cuda"))
        with torch.inference_mode():
            functional.softmax(joined, 0)


def branches():
    for _ in range(2):
        mask = torch.zeros(8, device="cuda", dtype=torch.bool)
        for step in range(3):
            if not mask.any():
                mask = torch.full((8, ), step == 1, device="cuda")
            if bool(torch.isnan(torch.ones(step + 1, device="cuda")).any()):
                torch.empty(1 << 20, device="cuda")
        torch.empty(int(torch.arange(5, device="cuda").sum()), device="cuda")


def recorded(program, enabled):
    without = mock.patch.object(operator_cache, "_PRIVATE", (None, )) if not enabled else contextlib.nullcontext()
    with without, trace.record() as recording:
        program()
    return recording, [(action, block.address, block.bytes, block.kind, block.origin)
                       for action, block, _, _ in recording._events]


@pytest.mark.parametrize("program", [transformer, convolutions, views, branches])
def test_events(program):
    original, repeated = operator_cache.OperatorCache.made, []

    def made(self, *given):
        repeated.append(0)
        return original(self, *given)

    with mock.patch.object(operator_cache.OperatorCache, "made", made):
        first, events = recorded(program, True)
    assert len(repeated) > 20
    second, expected = recorded(program, False)
    assert events == expected and first.notes == second.notes and first.peak() == second.peak()


def test_repeated_results():
    """A repeated result is as the first: storages of views, versions, gradients, and the address of its memory."""
    with trace.record():
        seen = []
        for _ in range(3):
            weight = torch.nn.Parameter(torch.ones(4, 6, device="cuda"))
            product = (weight * 2).t()
            half = product[:3]
            half.mul_(3)
            assert half.untyped_storage()._cdata == product.untyped_storage()._cdata
            product.sum().backward()
            seen.append((type(half), half.shape, half.stride(), half.storage_offset(), half.device, half.dtype,
                         half._version, type(half.grad_fn).__name__, half._base is not None, weight.grad.shape,
                         half.data_ptr() - product.data_ptr(), half.is_leaf))
        assert seen[0] == seen[1] == seen[2]
        with torch.no_grad():
            kept = [torch.empty(4, device="cuda") for _ in range(3)]
        assert len({each.data_ptr() for each in kept}) == 3


def test_types_of_numbers():
    """1, 1.0 and True are equal, and give results of other types."""
    with trace.record():
        for _ in range(2):
            whole = torch.ones(3, device="cuda", dtype=torch.int64)
            assert [(whole * each).dtype for each in (1, 1.0, True)] == [torch.int64, torch.float32, torch.int64]
            torch.set_default_dtype(torch.float64)
            try:
                assert (whole * 1.0).dtype == torch.float64
            finally:
                torch.set_default_dtype(torch.float32)


def test_errors_repeat():
    with trace.record():
        for _ in range(2):
            with pytest.raises(RuntimeError, match="size"):
                torch.ones(3, device="cuda") @ torch.ones(4, device="cuda")


def test_views_of_freed_memory():
    """As FSDP makes them; they take no memory. PyTorch grows the storage of a fake tensor in set_()."""
    with trace.record() as recording:
        whole = torch.empty(1024, device="cuda")
        for freed in (False, True, True):
            if freed:
                whole.untyped_storage().resize_(0)
            view = whole.view(32, 32)
            assert view.shape == (32, 32) and recording.live_bytes == (0 if freed else 4096)
