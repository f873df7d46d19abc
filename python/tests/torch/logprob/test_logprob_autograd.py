# SPDX-License-Identifier: Apache-2.0
"""The autograd contract: saved tensors, version counters, in-place gradients, modes, second derivatives; invalid input;
the cache of clients.
"""

import threading

import pytest
import torch

from bucketpool import errors
from bucketpool.torch import _clients
from bucketpool.torch import logprob as L
from devices import DEVICE

pytestmark = pytest.mark.usefixtures("on_device")


def batch(columns=50, **options):
    torch.manual_seed(0)
    return torch.randn(2, 6, columns, **options), torch.randint(0, columns, (2, 6))


# ---- what is written -----------------------------------------------------------------------------------------------


def test_unchanged_inputs():
    leaf, target = batch()
    before, version = leaf.clone(), leaf._version
    leaf.requires_grad_()
    lp, entropy = L.logprobs_and_entropy(leaf, target)
    (lp + entropy).sum().backward()
    assert torch.equal(leaf, before) and leaf._version == version
    assert leaf.grad.data_ptr() != leaf.data_ptr()


def test_changed_logits():
    leaf, target = batch(requires_grad=True)
    logits = leaf * 1
    lp = L.logprobs_from_logits(logits, target)
    logits.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        lp.sum().backward()
    lp = L.logprobs_from_logits(leaf * 1, target)
    target.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        lp.sum().backward()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_in_place(dtype):
    leaf, target = batch(requires_grad=True, dtype=dtype)
    wanted, = torch.autograd.grad(L.logprobs_from_logits(leaf * 1, target).sum(), leaf)
    logits = leaf * 1
    address, version, before = logits.data_ptr(), logits._version, logits.detach().clone()
    lp = L.logprobs_from_logits(logits, target, in_place=True)
    assert torch.equal(logits, before) and logits._version == version  # forward has not written yet
    seen = []
    logits.register_hook(lambda gradient: seen.append(gradient.data_ptr()))
    lp.sum().backward(retain_graph=True)
    assert torch.equal(leaf.grad, wanted)
    assert seen == [address] and torch.equal(logits, wanted) and logits._version > version
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        lp.sum().backward()


def test_in_place_with_other_uses():
    """SkyRL's issue 1648: backward of the log-probability overwrites logits that the entropy saved."""
    leaf, target = batch(requires_grad=True)
    logits = leaf * 1
    entropy = L.vocab_parallel_entropy(logits)
    lp = L.logprobs_from_logits(logits, target, in_place=True)
    lp.sum().backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        entropy.sum().backward()
    logits = leaf * 1  # torch's own functions notice as well
    other = torch.log_softmax(logits, -1)[..., 0].sum() + (logits * logits).sum()
    lp = L.logprobs_from_logits(logits, target, in_place=True)
    lp.sum().backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        other.backward()


def test_in_place_refusals():
    leaf, target = batch(requires_grad=True)
    with pytest.raises(errors.InvalidArgument, match="leaf"):
        L.logprobs_from_logits(leaf, target, in_place=True)
    with pytest.raises(errors.InvalidArgument, match="leaf"):
        L.logprobs_from_logits(leaf[:, 1:], target[:, 1:], in_place=True)
    with pytest.raises(errors.InvalidArgument, match="leaf"):  # a view of what needs none, and a leaf itself
        L.logprobs_from_logits(leaf.detach()[:].requires_grad_(), target, in_place=True)
    with pytest.raises(errors.InvalidArgument, match="strides"):
        L.logprobs_from_logits((leaf * 1)[:, :, ::2], target % 25, in_place=True)
    with pytest.raises(errors.InvalidArgument, match="strides"):
        L.logprobs_from_logits((leaf * 1)[:, :1].expand(-1, 6, -1), target, in_place=True)
    with torch.no_grad():  # nothing is overwritten without a backward
        L.logprobs_from_logits(leaf, target, in_place=True, inference_only=True)


def test_in_place_of_views():
    leaf, target = batch(requires_grad=True)
    logits = leaf * 1
    rest = logits.detach()[:, 0].clone()
    L.logprobs_from_logits(logits[:, 1:], target[:, 1:], in_place=True).sum().backward()
    wanted, = torch.autograd.grad(L.logprobs_from_logits(leaf, target)[:, 1:].sum(), leaf)
    assert torch.equal(logits[:, 0], rest) and torch.allclose(leaf.grad, wanted)


# ---- autograd ------------------------------------------------------------------------------------------------------


def test_retain_graph():
    logits, target = batch(requires_grad=True)
    lp = L.logprobs_from_logits(logits, target)
    first, = torch.autograd.grad(lp.sum(), logits, retain_graph=True)
    assert torch.equal(first, torch.autograd.grad(lp.sum(), logits, retain_graph=True)[0])
    torch.autograd.grad(lp.sum(), logits)
    with pytest.raises(RuntimeError, match="second time"):
        lp.sum().backward()


def test_second_derivatives():
    logits, target = batch(requires_grad=True)
    for out in (L.logprobs_from_logits(logits, target), L.vocab_parallel_entropy(logits)):
        gradient, = torch.autograd.grad(out.sum(), logits, create_graph=True)
        with pytest.raises(errors.Unsupported, match="differentiate once"):
            gradient.sum().backward()
    lp = L.logprobs_from_logits(logits * 1, target, in_place=True)
    with pytest.raises(errors.InvalidArgument, match="create_graph"):
        torch.autograd.grad(lp.sum(), logits, create_graph=True)


def test_modes():
    logits, target = batch(requires_grad=True)
    wanted = L.logprobs_from_logits(logits, target)
    assert wanted.requires_grad
    with torch.no_grad():
        lp = L.logprobs_from_logits(logits, target)
        assert not lp.requires_grad and torch.equal(lp, wanted)
    with torch.inference_mode():
        lp = L.logprobs_from_logits(logits * 1, target)
        assert not lp.requires_grad and torch.equal(lp, wanted)
    lp = L.ChunkedDistributedLogprob.apply(logits, target, 0, 50, 4, None, True)
    assert not lp.requires_grad and torch.equal(lp, wanted)
    assert not L.vocab_parallel_entropy(logits, inference_only=True).requires_grad
    assert not L.logprobs_from_logits(logits.detach(), target).requires_grad


def test_gradients_of_single_outputs():
    logits, target = batch(requires_grad=True)
    lp, entropy = L.logprobs_and_entropy(logits, target)
    alone, = torch.autograd.grad(L.logprobs_from_logits(logits, target).sum(), logits)
    assert torch.equal(torch.autograd.grad(lp.sum(), logits, retain_graph=True)[0], alone)
    alone, = torch.autograd.grad(L.vocab_parallel_entropy(logits).sum(), logits)
    assert torch.allclose(torch.autograd.grad(entropy.sum(), logits)[0], alone, atol=1e-6)
    other = torch.zeros(3, requires_grad=True)
    lp = L.logprobs_from_logits(logits, target)
    assert torch.autograd.grad(other.sum(), [other, logits], allow_unused=True)[1] is None


def test_strides_of_upstream_gradients():
    logits, target = batch(requires_grad=True)
    lp = L.logprobs_from_logits(logits, target)
    for up in (torch.ones(
        ()).expand(2, 6), torch.randn(6, 2).t(), torch.randn(2, 12)[:, ::2], torch.randn(2, 1).expand(2, 6)):
        got, = torch.autograd.grad(lp, logits, up, retain_graph=True)
        assert torch.equal(got, torch.autograd.grad(lp, logits, up.contiguous(), retain_graph=True)[0])


def test_autocast():
    logits, target = batch(requires_grad=True)
    wanted = L.logprobs_from_logits(logits, target)
    gradient, = torch.autograd.grad(wanted.sum(), logits)
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        lp = L.logprobs_from_logits(logits, target)
        assert torch.equal(lp, wanted)  # fp32 is not cast
        assert torch.equal(torch.autograd.grad(lp.sum(), logits)[0], gradient)
        hidden, weight = torch.randn(2, 6, 8, requires_grad=True), torch.randn(50, 8, requires_grad=True)
        plain = torch.nn.functional.linear(hidden, weight)
        assert plain.dtype == torch.bfloat16
        head = L.linear_logprobs(hidden, weight, target)
        narrow = L.linear_logprobs(hidden.bfloat16(), weight.bfloat16(), target)
        assert torch.equal(head, narrow)  # in autocast's dtype
    head.sum().backward()
    assert hidden.grad.dtype == weight.grad.dtype == torch.float32


def test_torch_compile():
    logits, target = batch()

    def step(x, function):
        return function(x * 2, target) + 1

    for function in (L.logprobs_from_logits, lambda x, t: L.ChunkedDistributedLogprob.apply(x, t, 0, 50, 4, None)):
        x, y = logits.clone().requires_grad_(), logits.clone().requires_grad_()
        wanted = step(x, function)
        wanted.sum().backward()
        got = torch.compile(step, backend="eager")(y, function)
        got.sum().backward()
        assert torch.equal(got, wanted) and torch.equal(x.grad, y.grad)


# ---- hostile input -------------------------------------------------------------------------------------------------


def refused(part, kind=errors.InvalidArgument, logits=None, target=None, bounds=(0, 50), chunk=None, group=None,
            **options):
    usual = batch()
    with pytest.raises(kind, match=part):
        L.logprobs_from_logits(usual[0] if logits is None else logits, usual[1] if target is None else target,
                               vocab_start_index=bounds[0], vocab_end_index=bounds[1], chunk_size=chunk, group=group,
                               **options)


def test_refusals():
    logits, target = batch()
    refused("float64", logits=logits.double())
    refused("int8", logits=logits.to(torch.int8))
    refused("list", logits=[1.0])
    refused("sparse", logits=logits.to_sparse())
    refused("float32", target=target.float())
    refused("int16", target=target.to(torch.int16))
    refused("one for each token", target=target[:, :5])
    refused("one for each token", target=target[None])
    refused("50 to 0 are not a range", bounds=(50, 0))
    refused("-1 to 49 are not a range", bounds=(-1, 49))
    refused("49 ids, but there are 50", bounds=(0, 49))
    refused("one is missing", bounds=(0, None))
    refused("negative", chunk=-1)
    refused("temperature 0", temperature=0.0)
    refused("temperature nan", temperature=float("nan"))
    refused("mask", mask=torch.ones(2, 5))
    refused("expected a process group", group="tp")
    refused("expected a process group", group=-100)  # new_group returns this to ranks that are not members
    refused("no columns", logits=logits[..., :0], bounds=(0, 0))
    refused("cpu or cuda", kind=errors.Unsupported, logits=logits.to("meta"), target=target.to("meta"))
    refused("targets: on meta", logits=logits, target=target.to("meta"))


# ---- clients -------------------------------------------------------------------------------------------------------


def test_client_cache():
    L.free_clients()
    logits, target = batch()
    for tokens in range(1, 7):
        L.logprobs_from_logits(logits[:, :tokens], target[:, :tokens])
    assert len(_clients.of(None)) == 1
    for columns in range(2, 2 + 3 * _clients.MOST):
        L.logprobs_from_logits(logits[..., :columns], target % columns)
    assert len(_clients.of(None)) == _clients.MOST
    L.free_clients()
    assert len(_clients.of(None)) == 0


def test_client_of_pending_backward():
    logits, target = batch(requires_grad=True)
    lp = L.logprobs_from_logits(logits, target)
    wanted, = torch.autograd.grad(lp.sum(), logits, retain_graph=True)
    for columns in range(2, 4 + _clients.MOST):
        L.logprobs_from_logits(logits.detach()[..., :columns], target % columns)
    assert torch.equal(torch.autograd.grad(lp.sum(), logits, retain_graph=True)[0], wanted)
    L.free_clients()  # backward creates a client again
    assert torch.equal(torch.autograd.grad(lp.sum(), logits)[0], wanted)


def test_threads():
    logits, target = batch(requires_grad=True)
    wanted = L.logprobs_from_logits(logits, target).detach()
    wrong = []

    def work():
        for _ in range(50):
            lp = L.logprobs_from_logits(logits, target)
            if not torch.equal(lp, wanted) or not torch.autograd.grad(lp.sum(), logits)[0].isfinite().all():
                wrong.append(lp)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
