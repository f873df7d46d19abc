# SPDX-License-Identifier: Apache-2.0
"""The fused head on one rank against F.linear and log_softmax in fp64."""

import pytest
import torch

from bucketpool import errors
from bucketpool.torch import logprob as L
from torch.nn import functional as F
from torch.testing import assert_close

pytestmark = pytest.mark.usefixtures("on_device")

# Gradients are compared in units of their largest element: sums of products, in fp32, rounded to the dtype.
TOLERANCE = {
    torch.float32: dict(atol=1e-5, rtol=1e-4),
    torch.bfloat16: dict(atol=1e-2, rtol=1e-2),
    torch.float16: dict(atol=2e-3, rtol=2e-3)
}


def reference(hidden, weight, target, temperature=1.0):
    logs = torch.log_softmax(torch.nn.functional.linear(hidden, weight) / temperature, -1)
    return logs.gather(-1, target[..., None])[..., 0], -(logs.exp() * logs).sum(-1)


def batch(shape, features=16, columns=70, dtype=torch.float32):
    torch.manual_seed(len(shape))
    return ((torch.randn(*shape, features) / 2).to(dtype).requires_grad_(),
            torch.randn(columns, features).to(dtype).requires_grad_(), torch.randint(0, columns, shape))


def check(hidden, weight, target, dtype, **options):
    temperature = options.get("temperature", 1.0)
    h, w = hidden.detach().double().requires_grad_(), weight.detach().double().requires_grad_()
    lp, entropy = L.linear_logprobs_and_entropy(hidden, weight, target, **options)
    wanted = reference(h, w, target, temperature)
    up = torch.randn(target.shape), torch.randn(target.shape)
    assert_close(lp, wanted[0].float(), atol=1e-5, rtol=1e-4)
    assert_close(entropy, wanted[1].float(), atol=1e-5, rtol=1e-4)
    got = torch.autograd.grad((lp * up[0] + entropy * up[1]).sum(), (hidden, weight))
    expected = torch.autograd.grad((wanted[0] * up[0] + wanted[1] * up[1]).sum(), (h, w))
    for mine, theirs, source in zip(got, expected, (hidden, weight)):
        assert mine.dtype == source.dtype and mine.shape == source.shape
        scale = theirs.abs().max()
        assert_close((mine / scale).float(), (theirs / scale).float(), **TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape,chunk", [((2, 7), 3), ((1, 33), None), ((5, ), 1), ((2, 2, 9), 4), ((3, 8), 1024)])
def test_values(shape, chunk, dtype):
    check(*batch(shape, dtype=dtype), dtype, chunk_size=chunk, temperature=1.5)


def test_strides():
    hidden, weight, target = batch((4, 9), features=32)
    check(hidden[:, 1:, ::2], weight[:, 3:19], target[:, 1:], torch.float32, chunk_size=4)
    check(hidden.transpose(0, 1), weight[::2], target.t() % 35, torch.float32)
    check(hidden[:1].expand(4, -1, -1), weight.detach().t().contiguous().t().requires_grad_(), target, torch.float32)


def test_skyrl_arguments():
    hidden, weight, target = batch((2, 7))
    wanted = L.linear_logprobs(hidden, weight, target, chunk_size=3)
    got = L.FusedLinearChunkedDistributedLogprob.apply(hidden, weight, target, 0, 70, 3, None)
    assert torch.equal(got, wanted)
    for mine, theirs in zip(torch.autograd.grad(got.sum(), (hidden, weight)),
                            torch.autograd.grad(wanted.sum(), (hidden, weight))):
        assert torch.equal(mine, theirs)
    only = L.FusedLinearChunkedDistributedLogprob.apply(hidden, weight, target, 0, 70, 3, None, True)
    assert torch.equal(only, wanted) and not only.requires_grad


def test_single_gradients():
    hidden, weight, target = batch((2, 7))
    both = torch.autograd.grad(L.linear_logprobs(hidden, weight, target).sum(), (hidden, weight))
    assert torch.equal(
        torch.autograd.grad(L.linear_logprobs(hidden, weight.detach(), target).sum(), hidden)[0], both[0])
    assert torch.equal(
        torch.autograd.grad(L.linear_logprobs(hidden.detach(), weight, target).sum(), weight)[0], both[1])
    assert not L.linear_logprobs(hidden.detach(), weight.detach(), target).requires_grad


def test_mixed_dtypes():
    hidden, weight, target = batch((2, 7))
    narrow = hidden.detach().bfloat16().requires_grad_()
    lp = L.linear_logprobs(narrow, weight, target)
    assert torch.equal(lp, L.linear_logprobs(narrow.float(), weight, target))
    got = torch.autograd.grad(lp.sum(), (narrow, weight))
    assert got[0].dtype == torch.bfloat16 and got[1].dtype == torch.float32


def test_masks_and_empty_batches():
    hidden, weight, target = batch((2, 7))
    mask = torch.rand(2, 7) < 0.5
    mask[0, 0] = False
    states = hidden.detach().clone()
    states[~mask] = float("nan")
    states.requires_grad_()
    lp = L.linear_logprobs(states, weight, target, mask=mask)
    got = torch.autograd.grad(lp.sum(), (states, weight))
    wanted = torch.autograd.grad(L.linear_logprobs(hidden, weight, target)[mask].sum(), (hidden, weight))
    assert (lp[~mask] == 0).all() and (got[0][~mask] == 0).all()
    assert_close(got[0][mask], wanted[0][mask])
    assert_close(got[1], wanted[1], atol=1e-5, rtol=1e-5)
    empty = torch.randn(0, 5, 16, requires_grad=True)
    L.linear_logprobs(empty, weight, target[:0, :5]).sum().backward()
    assert empty.grad.shape == empty.shape and (weight.grad == 0).all()


def test_retained_and_changed_graphs():
    hidden, weight, target = batch((2, 7))
    lp = L.linear_logprobs(hidden, weight, target)
    first = torch.autograd.grad(lp.sum(), (hidden, weight), retain_graph=True)
    again = torch.autograd.grad(lp.sum(), (hidden, weight), create_graph=True)
    assert all(torch.equal(a, b) for a, b in zip(first, again))
    with pytest.raises(errors.Unsupported, match="differentiate once"):
        again[1].sum().backward()
    lp = L.linear_logprobs(hidden, weight, target)
    with torch.no_grad():
        weight.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        lp.sum().backward()


def test_refusals():
    hidden, weight, target = batch((2, 7))
    for part, arguments, options in ((r"\[70, 16\]", (hidden[..., :8], weight, target),
                                      {}), (r"\[16\]", (hidden, weight[0], target),
                                            {}), ("float64", (hidden.double(), weight, target),
                                                  {}), ("weights: unsupported dtype torch.float64",
                                                        (hidden, weight.double(), target),
                                                        {}), ("one for each token", (hidden, weight, target[:1]), {}),
                                     ("negative", (hidden, weight, target),
                                      dict(chunk_size=-3)), ("60 ids, but there are 70", (hidden, weight, target),
                                                             dict(vocab_start_index=10, vocab_end_index=70))):
        with pytest.raises(errors.InvalidArgument, match=part):
            L.linear_logprobs(*arguments, **options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tiles(dtype):
    """On CPUs the vocabulary is taken in tiles of 2048 here: every output, with a bias, as from the logits in fp64."""
    hidden, weight, target = batch((2, 9), features=2100, columns=4500, dtype=dtype)
    with torch.no_grad():
        weight /= 16
    bias = torch.randn(4500).requires_grad_()
    exact = [leaf.detach().double().requires_grad_() for leaf in (hidden, weight, bias)]
    wanted = F.linear(*exact)
    logs = torch.log_softmax(wanted, -1)
    expected = (logs.gather(-1, target[..., None])[..., 0], -(logs.exp() * logs).sum(-1), wanted.logsumexp(-1), logs.mean(-1))
    outputs = "logprobs", "entropy", "logsumexp", "mean_logprobs"
    found = L.linear_token_statistics(hidden, weight, target, bias=bias, chunk_size=4)
    up = torch.randn(4, 2, 9)
    for name, theirs in zip(outputs, expected):
        assert_close(getattr(found, name), theirs.float(), atol=2e-5, rtol=1e-4)
    got = torch.autograd.grad(sum((getattr(found, name) * u).sum() for name, u in zip(outputs, up)), (hidden, weight, bias))
    for mine, theirs in zip(got, torch.autograd.grad(sum((out * u).sum() for out, u in zip(expected, up)), exact)):
        scale = theirs.abs().max()
        assert_close((mine / scale).float(), (theirs / scale).float(), **TOLERANCE[dtype])
