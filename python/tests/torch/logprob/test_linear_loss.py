# SPDX-License-Identifier: Apache-2.0
"""Losses of hidden states whose gradients forward makes, against PyTorch in fp64 and against linear_logprobs."""

import ctypes
import sys

import pytest
import torch

from bucketpool import _abi, errors
from bucketpool._library import configured, logprob
from bucketpool.torch import _clients, _head, cp
from bucketpool.torch import logprob as L
from bucketpool.torch.linear_loss import linear_cross_entropy, linear_logprobs_with_gradient
from test_logprob_head import TOLERANCE, batch, reference
from torch.nn import functional as F
from torch.testing import assert_close

pytestmark = pytest.mark.usefixtures("on_device")
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def same(mine, theirs, dtype):
    """Gradients, in units of the largest element."""
    scale = theirs.abs().max().clamp(min=1e-30)
    assert_close((mine / scale).float(), (theirs / scale).float(), **TOLERANCE[dtype])


def in_fp64(*tensors):
    return [tensor.detach().double().requires_grad_() for tensor in tensors]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape,chunk", [((2, 7), 3), ((1, 33), None), ((5, ), 1), ((2, 2, 9), 4), ((3, 8), 1024)])
def test_cross_entropy(shape, chunk, dtype):
    """Of PyTorch, with ignored labels and label smoothing; backward with a factor."""
    hidden, weight, target = batch(shape, dtype=dtype)
    bias = torch.randn(70).to(dtype).requires_grad_()
    target[..., ::3] = -100
    sources = hidden, weight, bias
    wide = in_fp64(*sources)
    loss, logprobs = linear_cross_entropy(hidden, weight, target, bias=bias, label_smoothing=0.1, chunk_size=chunk)
    wanted = F.cross_entropy(F.linear(*wide).flatten(0, -2), target.flatten(), label_smoothing=0.1)
    assert_close(loss, wanted.float(), atol=1e-5, rtol=1e-4)
    assert torch.equal(logprobs, L.linear_logprobs(hidden, weight, target, bias=bias, chunk_size=chunk))
    assert not logprobs.requires_grad
    got = torch.autograd.grad(loss * 3, sources)
    for mine, theirs, source in zip(got, torch.autograd.grad(wanted * 3, wide), sources):
        assert mine.dtype == source.dtype and mine.shape == source.shape
        same(mine, theirs, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_token_weights(dtype, reduction):
    """Advantages, some of them 0 and some negative, with a mask, a temperature and a soft cap."""
    hidden, weight, target = batch((3, 11), dtype=dtype)
    advantages, mask = torch.randn(3, 11), torch.rand(3, 11) < 0.7
    advantages[0, :4] = 0
    options = dict(temperature=0.8, soft_cap=5.0, chunk_size=4)
    loss, _ = linear_cross_entropy(hidden, weight, target, token_weights=advantages, mask=mask, reduction=reduction,
                                   **options)
    h, w = in_fp64(hidden, weight)
    lp = torch.log_softmax(5.0 * torch.tanh(F.linear(h, w) / 5.0) / 0.8, -1).gather(-1, target[..., None])[..., 0]
    wanted = -(advantages * lp)[mask].sum() / (mask.sum() if reduction == "mean" else 1)
    assert_close(loss, wanted.float(), atol=1e-4, rtol=1e-4)
    for mine, theirs in zip(torch.autograd.grad(loss, (hidden, weight)), torch.autograd.grad(wanted, (h, w))):
        same(mine, theirs, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_with_gradient(dtype):
    """The values and gradients of linear_logprobs_and_entropy and autograd, without it."""
    hidden, weight, target = batch((2, 13), dtype=dtype)
    up = torch.randn(2, 13), torch.randn(2, 13)
    got = linear_logprobs_with_gradient(hidden, weight, target, *up, chunk_size=5)
    wide = in_fp64(hidden, weight)
    lp, entropy = reference(*wide, target)
    assert_close(got.logprobs, lp.float(), atol=1e-5, rtol=1e-4)
    assert_close(got.entropy, entropy.float(), atol=1e-5, rtol=1e-4)
    wanted = torch.autograd.grad((lp * up[0] + entropy * up[1]).sum(), wide)
    for mine, theirs, source in zip(got[2:4], wanted, (hidden, weight)):
        assert mine.dtype == source.dtype and not mine.requires_grad
        same(mine, theirs, dtype)
    assert got.bias_grad is None
    frozen = linear_logprobs_with_gradient(hidden, weight.detach(), target, up[0])
    assert frozen.weight_grad is None and frozen.entropy is None


@pytest.mark.parametrize("memory", [None, 1])
def test_kept_and_recomputed_logits(memory):
    """linear_logprobs keeps few logits and computes many again: both against fp64, and backward may be repeated."""
    hidden, weight, target = batch((2, 9))
    lp = L.linear_logprobs(hidden, weight, target, memory=memory)
    wide = in_fp64(hidden, weight)
    wanted = torch.autograd.grad(reference(*wide, target)[0].sum(), wide)
    first = torch.autograd.grad(lp.sum(), (hidden, weight), retain_graph=True)
    again = torch.autograd.grad(lp.sum(), (hidden, weight))
    for mine, other, theirs in zip(first, again, wanted):
        assert torch.equal(mine, other)
        same(mine, theirs, torch.float32)


@pytest.mark.parametrize("memory", [None, 1 << 20])
def test_memory_without_masked_tokens(memory):
    """drop_masked leaves tokens out and changes nothing else: the same clients, the same bits."""
    hidden, weight, target = batch((1, 4000))
    mask = torch.rand(1, 4000) < 0.9
    results, clients = [], []
    for drop in (True, False):
        L.free_clients()
        given = (hidden, target) if drop else (hidden[mask], target[mask])
        lp = L.linear_logprobs(given[0], weight, given[1], mask=mask if drop else None, drop_masked=drop, memory=memory)
        results.append((lp[mask] if drop else lp, *torch.autograd.grad(lp.sum(), (hidden, weight))))
        clients.append([key for key, _ in _clients.of(None).kept()])
    for mine, theirs in zip(*results):
        assert torch.equal(mine, theirs)
    assert clients[0] == clients[1]
    alone = L.linear_logprobs(hidden[0, 0], weight, target[0, 0], mask=mask[0, 0], drop_masked=True)
    assert_close(alone, L.linear_logprobs(hidden[0, 0], weight, target[0, 0], mask=mask[0, 0]))


def test_no_tokens_and_no_gradients():
    hidden, weight, target = batch((2, 7))
    loss, logprobs = linear_cross_entropy(hidden, weight, torch.full_like(target, -100))
    grads = torch.autograd.grad(loss, (hidden, weight))
    assert loss == 0 and (logprobs == 0).all() and all((grad == 0).all() for grad in grads)
    loss, logprobs = linear_cross_entropy(hidden[:, :0], weight, target[:, :0])
    grads = torch.autograd.grad(loss, (hidden, weight))
    assert loss == 0 and logprobs.shape == (2, 0) and all((grad == 0).all() for grad in grads)
    with torch.no_grad():
        alone = linear_cross_entropy(hidden, weight, target)
    assert not alone.loss.requires_grad
    assert_close(alone.loss, linear_cross_entropy(hidden, weight, target).loss.detach())


def test_loss_scale():
    """A scale of GradScaler in token_weights keeps fp16 gradients that would become 0 before backward scales them."""
    torch.manual_seed(5)
    scale, tokens = 65536.0, 2048
    target = torch.randint(0, 2000, (tokens, ))
    values = torch.randn(tokens, 16), 0.02 * torch.randn(2000, 16)
    exact = [tensor.double().requires_grad_() for tensor in values]
    F.cross_entropy(exact[0] @ exact[1].t(), target).backward()
    hidden, weight = [tensor.half().requires_grad_() for tensor in values]
    weights = torch.full((tokens, ), scale / tokens)
    linear_cross_entropy(hidden, weight, target, token_weights=weights, reduction="sum").loss.backward()
    for got, wanted in ((hidden.grad, exact[0].grad), (weight.grad, exact[1].grad)):
        assert (got.double() / scale - wanted).norm() < 1e-3 * wanted.norm()


def test_once():
    hidden, weight, target = batch((2, 7))
    loss, _ = linear_cross_entropy(hidden, weight, target)
    loss.backward(retain_graph=True)
    with pytest.raises(errors.Unsupported, match="use linear_logprobs"):
        loss.backward()
    with pytest.raises(errors.Unsupported, match="second derivatives"):
        torch.autograd.grad(linear_cross_entropy(hidden, weight, target).loss, hidden, create_graph=True)


@pytest.mark.parametrize("words,options", [
    ("token_weights require a gradient", dict(token_weights=torch.ones(2, 7, requires_grad=True))),
    ("token_weights: shape", dict(token_weights=torch.ones(2, 6))), ("reduction 'none'", dict(reduction="none")),
    ("label_smoothing 1.5", dict(label_smoothing=1.5)), ("memory: 0 bytes", dict(memory=0)),
    ("memory: 9999999999999999999", dict(memory=9999999999999999999)), ("chunk size -3", dict(chunk_size=-3)),
])
def test_refused(words, options):
    hidden, weight, target = batch((2, 7))
    with pytest.raises(errors.InvalidArgument, match=words):
        linear_cross_entropy(hidden, weight, target, **options)
    with pytest.raises(errors.InvalidArgument, match="pass one for each token"):
        linear_cross_entropy(hidden, weight, target[..., None].expand(2, 7, 2))


def test_compiled():
    hidden, weight, target = batch((2, 7))

    def loss(h, w):
        return linear_cross_entropy(h * 2, w, target, token_weights=target / 70)[0] * 3

    wanted = torch.autograd.grad(loss(hidden, weight), (hidden, weight))
    torch._dynamo.reset()
    compiled = torch.compile(loss, backend="aot_eager")
    for mine, theirs in zip(torch.autograd.grad(compiled(hidden, weight), (hidden, weight)), wanted):
        assert torch.equal(mine, theirs)


def test_default_memory():
    """Of Python and of the library."""
    default = configured(logprob().bp_lm_head_config_init, _abi.bp_lm_head_config)
    assert default.memory_bytes == _head.MEMORY


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="each interpreter has its own pointer types since Python 3.12")
def test_lost_pointer_types():
    """The import of ctypes in a subinterpreter clears the cache of pointer types of all."""
    hidden, weight, target = batch((2, 7))
    bias = torch.randn(70).requires_grad_()
    wanted = linear_cross_entropy(hidden, weight, target, bias=bias)[0]
    cache = ctypes._pointer_type_cache
    kept = dict(cache)
    cache.clear()
    try:
        loss, _ = linear_cross_entropy(hidden, weight, target, bias=bias)
        torch.autograd.grad(loss + L.linear_logprobs(hidden, weight, target, bias=bias).sum(), [hidden, weight, bias])
        assert cp.PackedSplit([0, 5, 8], rank=0, ranks=1).index_map("padded", "local").numel() > 0
    finally:
        cache.update(kept)
    assert torch.equal(loss, wanted)
