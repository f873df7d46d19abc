# SPDX-License-Identifier: Apache-2.0
"""Recordings of bucketpool's log-probabilities and losses: their tensors against real runs, workspaces, refusals."""

import pytest
import torch

import bucketpool as bp
from bucketpool.torch import trace
from bucketpool.torch.distillation import divergence
from bucketpool.torch.linear_loss import linear_cross_entropy
from bucketpool.torch.logprob import free_clients, linear_logprobs, logprobs_and_entropy, logprobs_from_logits
from bucketpool.torch.loss import Loss
from trace_cases import measured

TOKENS, WIDTH, COLUMNS = (2, 600), 256, 4000


def tensors(device, dtype, hidden_dtype=None):
    hidden = torch.randn(*TOKENS, WIDTH, device=device).to(hidden_dtype or dtype).requires_grad_()
    weight = torch.randn(COLUMNS, WIDTH, device=device).to(dtype).requires_grad_()
    return hidden, weight, torch.zeros(TOKENS, dtype=torch.int64, device=device)


def head(device, dtype, hidden_dtype=None, autocast=False, sliced=False, tile=1):
    hidden, weight, targets = tensors(device, dtype, hidden_dtype)
    if sliced:
        hidden, targets = hidden.transpose(0, 1), targets.transpose(0, 1)
    with torch.autocast(device, torch.bfloat16, enabled=autocast):
        for _ in range(tile):
            linear_logprobs(hidden, weight, targets, chunk_size=128).sum().backward()


def known(device, dtype, call, memory=None):
    """Losses of hidden states; with `memory`, logits kept from forward to backward or not."""
    hidden, weight, targets = tensors(device, dtype)
    result = call(hidden, weight, targets, memory=memory)
    (result if isinstance(result, torch.Tensor) else result.loss).sum().backward()


def logits(device, dtype, call=logprobs_from_logits, padded=False):
    made = torch.randn(*TOKENS, COLUMNS, device=device).to(dtype).requires_grad_() * 1
    targets = torch.zeros(TOKENS, dtype=torch.int64, device=device)
    if padded:
        made = made[:, :, ::2]
    result = call(made, targets)
    (result if isinstance(result, torch.Tensor) else result[0] + result[1]).sum().backward()


PROGRAMS = {
    "head": (head, torch.bfloat16),
    "head-fp32": (head, torch.float32),
    "head-autocast": (head, torch.float32, None, True),
    "head-mixed": (head, torch.bfloat16, torch.float32),
    "head-strides": (head, torch.bfloat16, None, False, True),
    "head-twice": (head, torch.bfloat16, None, False, False, 2),
    "head-kept": (known, torch.bfloat16, linear_logprobs),
    "head-memory": (known, torch.bfloat16, linear_logprobs, 1 << 20),
    "loss": (known, torch.bfloat16, linear_cross_entropy),
    "loss-pieces": (known, torch.bfloat16, linear_cross_entropy, 1 << 20),
    "logits": (logits, torch.float32),
    "logits-bf16": (logits, torch.bfloat16, logprobs_and_entropy),
    "logits-columns": (logits, torch.bfloat16, logprobs_from_logits, True),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_tensors(name):
    """The peak of PyTorch's allocator on the CPU, where the library's calls bypass operators."""
    program, *options = PROGRAMS[name]
    free_clients()
    real = measured(lambda: (program("cpu", *options), [torch.empty(1) for _ in range(100)]))
    with trace.record(device="cpu") as recorded:
        program("cpu", *options)
    assert recorded.peak_bytes == pytest.approx(real, rel=0.001)


def workspaces(recorded):
    return [each.bytes for each in recorded.live() if each.op.startswith("bucketpool::") and each.op.endswith(" (workspace)")]


def test_workspaces():
    """Of a GPU: two chunks of logits, cuBLAS's, and rows of hidden states, once for each shape; a page for logits."""
    with trace.record(device="cuda") as recorded:
        head("cuda", torch.bfloat16)
        chunk = 128 * COLUMNS * 4
        pages = 2 * -(-chunk >> 21) + 16 + 1 + 1
        assert workspaces(recorded) == [pages << 21]
        head("cuda", torch.bfloat16, tile=2)
        assert len(workspaces(recorded)) == 1
        logits("cuda", torch.bfloat16)
        assert sorted(workspaces(recorded)) == [1 << 21, pages << 21]
        for length in range(1, 10):
            hidden, weight, targets = tensors("cuda", torch.float32)
            linear_logprobs(hidden, weight, targets, chunk_size=length).sum().backward()
        assert len(workspaces(recorded)) == 8  # clients that a process keeps


REFUSED = {
    "divergence": lambda: divergence(torch.randn(4, 8, 64), torch.randn(4, 8, 64), beta=0.5),
    "loss": lambda: Loss(max_sequences=4, device="cpu"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    """Calls of the library that would read memory of fake tensors."""
    with pytest.raises(bp.Unsupported, match="fake tensors have no values; "), trace.record(device="cpu"):
        REFUSED[name]()
