# SPDX-License-Identifier: Apache-2.0
"""Values and gradients of one rank against plain PyTorch in fp64: dtypes, shapes, strides, masks, temperatures, special
values."""

import math

import pytest
import torch

from bucketpool.torch import logprob as L
from torch.testing import assert_close

pytestmark = pytest.mark.usefixtures("on_device")

# Of the sum in fp32; a gradient in the logits' dtype is rounded to it once.
TOLERANCE = {
    torch.float32: dict(atol=1e-5, rtol=1e-4),
    torch.bfloat16: dict(atol=8e-3, rtol=8e-3),
    torch.float16: dict(atol=1e-3, rtol=1e-3)
}
OUTPUT = dict(atol=1e-5, rtol=1e-4)


def reference(logits, target, temperature=1.0):
    logs = torch.log_softmax(logits.double() / temperature, -1)
    terms = logs.exp() * torch.where(logs.isinf(), torch.zeros_like(logs), logs)
    return logs.gather(-1, target.long()[..., None])[..., 0], -terms.sum(-1)


def check(logits, target, temperature=1.0, **options):
    """Both outputs and one gradient of both."""
    logits = logits.detach().requires_grad_()
    whole = logits.detach().double().requires_grad_()
    lp, entropy = L.logprobs_and_entropy(logits, target, temperature=temperature, **options)
    wanted = reference(whole, target, temperature)
    up = torch.randn(target.shape), torch.randn(target.shape)
    assert lp.dtype == entropy.dtype == torch.float32 and lp.shape == entropy.shape == target.shape
    assert_close(lp, wanted[0].float(), **OUTPUT)
    assert_close(entropy, wanted[1].float(), **OUTPUT)
    got, = torch.autograd.grad((lp * up[0] + entropy * up[1]).sum(), logits)
    expected, = torch.autograd.grad((wanted[0] * up[0] + wanted[1] * up[1]).sum(), whole)
    assert got.dtype == logits.dtype and got.shape == logits.shape
    assert_close(got.float(), expected.float(), **TOLERANCE[logits.dtype])


def test_golden_values():
    x = torch.tensor([1.0, 2.0, 3.0, 4.0], requires_grad=True)
    lp = L.logprobs_from_logits(x, torch.tensor(2))
    assert lp.shape == () and lp.item() == pytest.approx(-1.440189699, abs=1e-6)
    (0.5 * lp).backward()
    assert x.grad.tolist() == pytest.approx([-.016029302, -.043572159, .381558591, -.321957130], abs=1e-6)
    entropy = L.vocab_parallel_entropy(x)
    assert entropy.item() == pytest.approx(0.947536964, abs=1e-6)
    assert torch.equal(L.vocab_parallel_entropy(x, chunk_size=2, chunk_memory_mb=64), entropy)
    gradient, = torch.autograd.grad(entropy, x)
    assert gradient.tolist() == pytest.approx([.079910965, .130076206, .116700968, -.326688139], abs=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape,columns", [((2, 7), 33), ((1, 1), 1), ((17, ), 5), ((2, 3, 5), 130), ((1, 65), 2051),
                                           ((3, 1), 8)])
def test_shapes(shape, columns, dtype):
    torch.manual_seed(columns)
    check((2 * torch.randn(*shape, columns)).to(dtype), torch.randint(0, columns, shape))


@pytest.mark.parametrize("seed", range(8))
def test_random(seed):
    torch.manual_seed(seed)
    sizes = torch.randint(1, 9, (3, )).tolist() + [int(torch.randint(1, 700, ()))]
    dtype = (torch.float32, torch.bfloat16, torch.float16)[seed % 3]
    logits = (3 * torch.randn(sizes) + float(torch.randn(()) * 100) * (dtype == torch.float32)).to(dtype)
    target = torch.randint(0, sizes[-1], sizes[:-1], dtype=torch.int32 if seed % 2 else torch.int64)
    check(logits, target, temperature=0.5 + seed / 4)


@pytest.mark.parametrize("view", [
    lambda x: x[:, 1:-1], lambda x: x[..., 3:-2], lambda x: x.transpose(0, 1), lambda x: x[::2, ::3],
    lambda x: x.transpose(1, 2), lambda x: x[:1].expand(4, -1, -1), lambda x: x[..., ::2],
    lambda x: x[:, :1, :1].expand(4, 9, 6)
])
def test_strides(view):
    """Rows with gaps, rows in other orders, rows that share memory, elements with gaps: the last three are copied."""
    torch.manual_seed(0)
    logits = view(torch.randn(4, 9, 24))
    check(logits, torch.randint(0, logits.shape[-1], logits.shape[:-1]))
    target = torch.randint(0, logits.shape[-1], logits.shape[1::-1]).t()
    check(logits, target)
    check(logits, torch.zeros((), dtype=torch.int64).expand(target.shape))


def test_chunk_sizes():
    torch.manual_seed(0)
    logits, target = torch.randn(2, 17, 301, requires_grad=True), torch.randint(0, 301, (2, 17))
    wanted = L.DistributedLogprob.apply(logits, target, 0, 301, None)
    gradient, = torch.autograd.grad(wanted.sum(), logits)
    for chunk in (None, 0, 1, 3, 5, 7, 16, 17, 1000):
        lp = L.ChunkedDistributedLogprob.apply(logits, target, 0, 301, chunk, None)
        assert torch.equal(lp, wanted)
        assert torch.equal(torch.autograd.grad(lp.sum(), logits)[0], gradient)
    assert torch.equal(L.gather_logprobs(logits, target, chunk_size=4), wanted)
    assert torch.equal(L.gather_logprobs_entropy(logits, target, chunk_size=4)[0], wanted)


@pytest.mark.skipif(not hasattr(torch.Tensor, "grad_dtype"), reason="grad_dtype is there since PyTorch 2.10")
def test_bf16_gradient_rounding():
    torch.manual_seed(0)
    logits, target = torch.randn(3, 5, 257).bfloat16(), torch.randint(0, 257, (3, 5))
    rounded = logits.clone().requires_grad_()
    L.logprobs_from_logits(rounded, target).sum().backward()
    for dtype in (torch.float32, None):  # None: any
        exact = logits.clone().requires_grad_()
        exact.grad_dtype = dtype
        L.logprobs_from_logits(exact, target).sum().backward()
        assert exact.grad.dtype == torch.float32
        assert not torch.equal(exact.grad, exact.grad.bfloat16().float())
        assert torch.equal(rounded.grad, exact.grad.bfloat16())


def test_masked_rows():
    torch.manual_seed(0)
    logits, target = torch.randn(2, 6, 40), torch.randint(0, 40, (2, 6))
    mask = torch.tensor([[1, 0, 1, 1, 0, 1], [0, 0, 1, 1, 1, 1]])
    logits[mask == 0] = math.nan
    for given in (mask, mask.bool(), mask.float()):
        x = logits.clone().requires_grad_()
        lp, entropy = L.logprobs_and_entropy(x, target, mask=given)
        (lp.sum() + entropy.sum()).backward()
        wanted = reference(logits[mask == 1], target[mask == 1])
        assert (lp[mask == 0] == 0).all() and (entropy[mask == 0] == 0).all() and (x.grad[mask == 0] == 0).all()
        assert_close(lp[mask == 1], wanted[0].float(), **OUTPUT)
        assert_close(entropy[mask == 1], wanted[1].float(), **OUTPUT)
    ignored = torch.where(mask == 1, target, -100)
    assert torch.equal(L.logprobs_from_logits(logits, ignored, ignore_index=-100), lp)
    assert torch.equal(L.logprobs_from_logits(logits, ignored, ignore_index=-100, mask=mask), lp)
    masked_entropy = L.vocab_parallel_entropy(logits, mask=mask)
    assert torch.equal(masked_entropy, entropy)


def test_targets_outside_the_vocabulary():
    logits, target = torch.randn(1, 3, 10, requires_grad=True), torch.tensor([[0, 10, -5]])
    lp = L.logprobs_from_logits(logits, target, outside="mask")
    assert lp[0, 1] == 0 and lp[0, 2] == 0
    gradient, = torch.autograd.grad(lp.sum(), logits)
    assert_close(gradient[0, 1:], -torch.softmax(logits.detach(), -1)[0, 1:], **OUTPUT)
    part = L.DistributedLogprob.apply(logits, target + 20, 20, 30, None)  # this rank's ids are 20 to 29
    assert torch.equal(part, lp)


def test_special_values():
    inf = math.inf
    logits = torch.tensor(
        [[[0.0, -inf, 1.0], [-200.0, -200.0, -200.0], [1e4, 1e4 + 1, 1e4 - 1], [-inf, -inf, -inf], [math.nan, 0, 0]]],
        requires_grad=True)
    lp, entropy = L.logprobs_and_entropy(logits, torch.zeros(1, 5, dtype=torch.int64))
    wanted = reference(logits.detach(), torch.zeros(1, 5, dtype=torch.int64))
    assert_close(lp[:, :3], wanted[0][:, :3].float(), **OUTPUT)
    assert_close(entropy[:, :3], wanted[1][:, :3].float(), **OUTPUT)
    assert lp[0, 3:].isnan().all() and entropy[0, 3:].isnan().all()
    gradient, = torch.autograd.grad((lp + entropy)[:, :3].sum(), logits)
    assert gradient[:, :3].isfinite().all() and gradient[0, 0, 1] == 0


@pytest.mark.parametrize("shape", [(0, ), (0, 4), (3, 0), (2, 0, 5)])
def test_empty_batches(shape):
    logits = torch.randn(*shape, 12, requires_grad=True)
    lp, entropy = L.logprobs_and_entropy(logits, torch.zeros(shape, dtype=torch.int64))
    (lp.sum() + entropy.sum()).backward()
    assert lp.shape == entropy.shape == shape and logits.grad.shape == logits.shape


@pytest.mark.filterwarnings("ignore:.*not a double precision")
def test_gradcheck():
    """gradcheck in fp32, the precision of the functions, with finite differences of 1e-2."""
    torch.manual_seed(0)
    logits, target = torch.randn(2, 3, 7, requires_grad=True), torch.randint(0, 7, (2, 3))
    for function in (lambda x: L.logprobs_from_logits(x, target, temperature=0.8),
                     lambda x: L.vocab_parallel_entropy(x), lambda x: L.logprobs_and_entropy(x, target)):
        assert torch.autograd.gradcheck(function, (logits, ), eps=1e-2, atol=2e-3, rtol=1e-2)
