# SPDX-License-Identifier: Apache-2.0
"""Saved tensors in other memory: recomputed under checkpoints, moved and with other strides by hooks."""

import pytest
import torch
from bucketpool.torch import logprob as L
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

pytestmark = pytest.mark.usefixtures("on_device")


def logits_pass(logits, weight, target):
    return L.logprobs_and_entropy(logits @ weight, target, temperature=0.7, mask=target > 2)


def in_place_pass(logits, weight, target):
    return L.logprobs_and_entropy(logits @ weight, target, temperature=0.7, mask=target > 2, in_place=True)


def head_pass(hidden, weight, target):
    return L.linear_logprobs_and_entropy(hidden, weight.T.contiguous(), target, temperature=0.7, mask=target > 2)


def reference(hidden, weight, target):
    logs = torch.log_softmax(hidden @ weight / 0.7, -1)
    kept = target > 2
    return (torch.where(kept, logs.gather(-1, target.long()[..., None])[..., 0], 0),
            torch.where(kept, -(logs.exp() * logs).sum(-1), 0))


def gradients(function, hidden, weight, target):
    """Gradients of a weighted sum of both outputs. Other tensors overwrite freed memory in between."""
    lp, entropy = function(hidden, weight, target)
    waste = [torch.full((size, ), 1e6) for size in (20, 24, 30, 40, 60, 90, 120)]
    got = torch.autograd.grad((3 * lp + entropy).sum(), (hidden, weight))
    del waste
    return got


def other_strides(tensor):
    return (
        tensor.transpose(0, -1).contiguous().transpose(0, -1) if tensor.dim() > 1 else tensor.repeat_interleave(2)[::2]
    )


def within(manager, function):
    with manager:
        return function()


def hooks(unpack):
    return torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor.detach().clone(), unpack)


WAYS = {
    "checkpoint": lambda function, *arguments: checkpoint(function, *arguments, use_reentrant=False),
    "reentrant": lambda function, *arguments: checkpoint(function, *arguments, use_reentrant=True),
    "moved": lambda function, *arguments: within(hooks(torch.clone), lambda: function(*arguments)),
    "laid out anew": lambda function, *arguments: within(hooks(other_strides), lambda: function(*arguments)),
    "on the CPU": lambda function, *arguments: within(torch.autograd.graph.save_on_cpu(), lambda: function(*arguments)),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("function", [logits_pass, in_place_pass, head_pass])
def test_gradients(function, way):
    torch.manual_seed(0)
    hidden, weight = torch.randn(2, 5, 8, requires_grad=True), torch.randn(8, 20, requires_grad=True)
    target = torch.randint(0, 20, (2, 5), dtype=torch.int32)
    wanted = gradients(reference, hidden, weight, target)
    if way == "reentrant":  # refuses autograd.grad
        lp, entropy = WAYS[way](function, hidden, weight, target)
        (3 * lp + entropy).sum().backward()
        got = hidden.grad, weight.grad
    else:
        got = gradients(lambda *arguments: WAYS[way](function, *arguments), hidden, weight, target)
    for mine, theirs in zip(got, wanted):
        assert_close(mine, theirs, atol=1e-5, rtol=1e-4)
