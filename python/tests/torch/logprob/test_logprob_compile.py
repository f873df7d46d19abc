# SPDX-License-Identifier: Apache-2.0
"""Compiled and exported calls: no graph breaks, one graph for all shapes, and the bits of calls without a compiler."""

import os
import shutil
import sysconfig

import pytest
import torch

import torch._dynamo
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_leaves

from bucketpool import errors
from bucketpool.torch import distillation as D
from bucketpool.torch import _head
from bucketpool.torch import logprob as L
from devices import DEVICE

pytestmark = pytest.mark.usefixtures("on_device")

COLUMNS = 50


def table(requires_grad=True):
    return torch.randn(20, COLUMNS, generator=torch.Generator().manual_seed(1), device="cpu").to(
        DEVICE).requires_grad_(requires_grad)


def batch(*shape, **options):
    return torch.randn(*shape, COLUMNS, **options), torch.randint(0, 20, shape)


def several(target):
    return torch.stack((target, (target + 1) % 20), -1)


def all_of(given):
    return given.logprobs.sum(-1) + given.entropy + given.logsumexp + given.mean_logprobs


FUNCTIONS = {
    "logprobs_from_logits": lambda x, t, w: L.logprobs_from_logits(x * 2, t, temperature=0.7),
    "masked": lambda x, t, w: L.logprobs_from_logits(x * 2, t, mask=t > 1, ignore_index=3, outside="check"),
    "vocab_parallel_entropy": lambda x, t, w: L.vocab_parallel_entropy(x * 2, mask=t > 1),
    "logprobs_and_entropy": lambda x, t, w: sum(L.logprobs_and_entropy(x * 2, t)),
    "inference_only": lambda x, t, w: x.sum(-1) + L.logprobs_from_logits(x * 2, t, inference_only=True),
    "ChunkedDistributedLogprob": lambda x, t, w: L.ChunkedDistributedLogprob.apply(x * 2, t, 0, x.shape[-1], 4, None),
    "DistributedLogprob": lambda x, t, w: L.DistributedLogprob.apply(x * 2, t, 0, x.shape[-1], None),
    "gather_logprobs": lambda x, t, w: L.gather_logprobs(x * 2, t, 0.5),
    "gather_logprobs_entropy": lambda x, t, w: sum(L.gather_logprobs_entropy(x * 2, t, 0.5)),
    "token_statistics": lambda x, t, w: all_of(L.token_statistics(x * 2, several(t), temperature=0.5 + t, soft_cap=9.0,
                                                                  round_to=torch.bfloat16)),
    "linear_token_statistics": lambda x, t, w: all_of(L.linear_token_statistics(
        x * 2, w, several(t), temperature=0.5 + t, bias=w[:, 0], soft_cap=9.0, chunk_size=3)),
    "linear_logprobs": lambda x, t, w: L.linear_logprobs(x * 2, w, t, chunk_size=3),
    "linear_logprobs_and_entropy": lambda x, t, w: sum(L.linear_logprobs_and_entropy(x * 2, w, t, mask=t > 1)),
    "FusedLinearChunkedDistributedLogprob":
        lambda x, t, w: L.FusedLinearChunkedDistributedLogprob.apply(x * 2, w, t, 0, 20, 3, None),
}


def same(function, other, shape, dtype=torch.float32):
    """Results and gradients have equal bits."""
    (x, target), weight = batch(*shape), table()
    x = x.to(dtype)
    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
    wanted, got = function(a, target, weight), other(b, target, weight)
    assert torch.equal(got, wanted)
    up = torch.randn(wanted.shape)
    for mine, theirs in zip(torch.autograd.grad(got, (b, weight), up, allow_unused=True),
                            torch.autograd.grad(wanted, (a, weight), up, allow_unused=True)):
        assert (mine is None) == (theirs is None)
        assert mine is None or mine.dtype == theirs.dtype and torch.equal(mine, theirs)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_one_graph_for_all_shapes(name):
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    compiled = torch.compile(FUNCTIONS[name], fullgraph=True, dynamic=True, backend="aot_eager")
    for shape in ((2, 6), (3, 7), (5, 4)):
        same(FUNCTIONS[name], compiled, shape)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


@pytest.mark.parametrize("name", ["logprobs_and_entropy", "linear_logprobs"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_dtypes(name, dtype):
    torch._dynamo.reset()
    same(FUNCTIONS[name], torch.compile(FUNCTIONS[name], fullgraph=True, backend="aot_eager"), (2, 6), dtype)


def test_empty_batches():
    torch._dynamo.reset()
    for name in ("logprobs_and_entropy", "linear_logprobs"):
        same(FUNCTIONS[name], torch.compile(FUNCTIONS[name], fullgraph=True, backend="aot_eager"), (0, 6))


def test_code_generator():
    header = os.path.join(sysconfig.get_paths()["include"], "Python.h")
    if shutil.which("g++") is None or not os.path.exists(header):
        pytest.skip("PyTorch's code generator needs g++ and Python.h")
    torch._dynamo.reset()
    same(FUNCTIONS["masked"], torch.compile(FUNCTIONS["masked"], fullgraph=True), (2, 6))


def test_no_gradients():
    torch._dynamo.reset()
    (x, target), weight = batch(2, 6), table(False)
    for name in FUNCTIONS:
        compiled = torch.compile(FUNCTIONS[name], fullgraph=True, backend="aot_eager")
        got = compiled(x, target, weight)
        assert not got.requires_grad and torch.equal(got, FUNCTIONS[name](x, target, weight))


def test_autocast():
    torch._dynamo.reset()
    (x, target), weight = batch(2, 6, requires_grad=True), table()
    compiled = torch.compile(L.linear_logprobs, fullgraph=True, backend="aot_eager")
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        wanted, got = L.linear_logprobs(x, weight, target), compiled(x, weight, target)
    assert torch.equal(got, wanted) and not torch.equal(got, L.linear_logprobs(x, weight, target))
    for mine, theirs in zip(torch.autograd.grad(got.sum(), (x, weight)),
                            torch.autograd.grad(wanted.sum(), (x, weight))):
        assert torch.equal(mine, theirs)


def test_changing_temperatures():
    torch._dynamo.reset()
    x, target = batch(2, 6)
    compiled = torch.compile(lambda x, t: L.logprobs_from_logits(x, target, temperature=t), dynamic=True,
                             backend="aot_eager")
    for temperature in (0.5, 0.7, 1.0, torch.tensor(0.5)):
        assert torch.equal(compiled(x, temperature), L.logprobs_from_logits(x, target, temperature=temperature))


@pytest.mark.parametrize("strict", [True, False])
def test_export(strict):
    class Losses(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(table(False))

        def forward(self, x, target):
            return (L.linear_logprobs(x, self.weight, target), L.logprobs_and_entropy(x @ self.weight.T, target),
                    L.vocab_parallel_entropy(x))

    module = Losses()
    sizes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("sequence")}
    exported = torch.export.export(module, batch(2, 6), dynamic_shapes={"x": sizes, "target": sizes}, strict=strict)
    for shape in ((2, 6), (3, 9)):
        given = batch(*shape)
        for mine, theirs in zip(tree_leaves(exported.module()(*given)), tree_leaves(module(*given))):
            assert torch.equal(mine, theirs)


@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
def test_traced_gradients(mode):
    """make_fx, with the gradient in the graph."""
    def gradient(x, target):
        x = x.detach().requires_grad_()
        return torch.autograd.grad(sum(L.logprobs_and_entropy(x, target)).sum(), x)[0]

    traced = make_fx(gradient, tracing_mode=mode)(*batch(2, 6))
    given = batch(2, 6)
    assert torch.equal(traced(*given), gradient(*given))
    targets = {str(node.target) for node in traced.graph.nodes}
    assert {"bucketpool.logits_forward.default", "bucketpool.logits_backward.default"} <= targets


def options(outputs, start=None, end=None, chunk=None, temperature=0.7, ignore_index=None, soft_cap=None,
            round_to=None, outside="error"):
    """Options of the operators, in the order of their schemas."""
    return "test", outputs, "", start, end, chunk, temperature, ignore_index, soft_cap, round_to, outside


def operators():
    """Arguments of the operators, in the order of their schemas."""
    (x, t), w = batch(2, 6, requires_grad=True), table()
    plain, head, up, bias = x.detach(), w.detach(), torch.randn(2, 6), torch.randn(20, requires_grad=True)
    several, hot = torch.randint(0, 20, (2, 6, 3)), torch.rand(2, 6) + 0.5
    no, some = (None, None), (True, False, False)
    logits = L._logits_forward(plain, t, *no, *options(3), *some)[4:]
    states = _head._head_forward(plain, head, None, t, *no, *options(3), False, True, torch.float32, 1 << 30, True)[4:]
    return {
        "both": (L._logits_forward, (x, t, *no, *options(3), *some)),
        "mask": (L._logits_forward, (x, t, t > 3, None, *options(1, 0, 50, 4, 1.0, 3, outside="check"), True, False, False)),
        "entropy": (L._logits_forward, (x, None, *no, *options(2), *some)),
        "several targets": (L._logits_forward, (x, several, None, hot, *options(15, soft_cap=5.0,
                                                                                round_to=torch.bfloat16), *some)),
        "no gradient": (L._logits_forward, (plain, t, *no, *options(1), False, False, False)),
        "backward": (L._logits_backward, (up, up, None, None, plain, t, *no, *logits, *options(3), False)),
        "fp32 gradient": (L._logits_backward, (up, None, up, up, plain.bfloat16(), t, t > 3, None, *logits,
                                               *options(3), True)),
        "head": (_head._head_forward, (x, w, None, t, *no, *options(3, chunk=4), False, True, torch.float32, 1 << 30,
                                         False)),
        "head with bias": (_head._head_forward, (x, w, bias, several, None, hot, *options(15, soft_cap=5.0), False,
                                                   True, torch.float32, 1 << 30, True)),
        "head in bf16": (_head._head_forward, (x, w, None, t, t > 2, None, *options(1), False, True,
                                                 torch.bfloat16, 1 << 30, False)),
        "backward of the head": (_head._head_backward, (up, up, None, None, plain, head, bias.detach(), t, *no, *states,
                                                          *options(3), False, torch.float32, 1 << 30, True, False,
                                                          True)),
        "both of the head": (_head._head_both, (up, up, None, plain, head, bias.detach(), t, *no, *options(3), False,
                                                torch.float32, 1 << 30, True, True, True)),
    }


OPERATORS = ["both", "mask", "entropy", "several targets", "no gradient", "backward", "fp32 gradient", "head",
             "head with bias", "head in bf16", "backward of the head", "both of the head"]


@pytest.mark.parametrize("name", OPERATORS)
def test_operators(name):
    torch.library.opcheck(*operators()[name])


def test_second_derivatives():
    x, target = batch(2, 6, requires_grad=True)
    both = L._logits_forward(x, target, None, None, *options(3), True, False, False)
    gradient, = torch.autograd.grad(both[0].sum(), x, create_graph=True)
    with pytest.raises(errors.Unsupported, match="differentiate once"):
        gradient.sum().backward()


@pytest.mark.parametrize("fullgraph", [True, False])
def test_in_place(fullgraph):
    torch._dynamo.reset()
    x, target = batch(2, 6, requires_grad=True)
    compiled = torch.compile(lambda x: L.logprobs_from_logits(x * 2, target, in_place=True), fullgraph=fullgraph,
                             backend="aot_eager")
    with pytest.raises(Exception, match="in_place is unsupported in graphs"):
        compiled(x)
    with torch.no_grad():  # nothing would be overwritten
        assert torch.equal(compiled(x.detach()), L.logprobs_from_logits(x.detach() * 2, target))


def test_dispatch_modes():
    """Modes see the operators, and calls under them have the usual results."""
    from torch.utils._python_dispatch import TorchDispatchMode
    seen = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.append(str(function))
            return function(*args, **(kwargs or {}))

    x, target = batch(2, 6, requires_grad=True)
    wanted = L.logprobs_from_logits(x, target, temperature=0.5)
    with Watch():
        got = L.logprobs_from_logits(x, target, temperature=torch.tensor(0.5))
        with pytest.raises(errors.InvalidArgument, match="in_place"):
            L.logprobs_from_logits(x * 1, target, in_place=True)
    assert torch.equal(got, wanted) and "bucketpool.logits_forward.default" in seen
    assert torch.equal(torch.autograd.grad(got.sum(), x)[0], torch.autograd.grad(wanted.sum(), x)[0])


@pytest.mark.parametrize("name", ["divergence", "linear_divergence", "topk_logprobs", "logprobs_with_gradient"])
def test_graph_breaks(name):
    """These functions break the graph, with the bits of calls without a compiler."""
    torch._dynamo.reset()
    (x, target), weight = batch(2, 6), table()
    function = {
        "divergence": lambda x: D.divergence(x * 2, x.detach() + 1, beta=0.5),
        "linear_divergence": lambda x: D.linear_divergence(x * 2, weight, x.detach(), weight, beta=0.5),
        "topk_logprobs": lambda x: D.topk_logprobs(x * 2, 5)[0],
        "logprobs_with_gradient": lambda x: x.sum() + L.logprobs_with_gradient(
            x * 2, target, torch.ones(2, 6)).gradient,
    }[name]
    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
    wanted, got = function(a), torch.compile(function, backend="aot_eager")(b)
    assert torch.equal(wanted, got)
    assert torch.equal(torch.autograd.grad(wanted.sum(), a)[0], torch.autograd.grad(got.sum(), b)[0])
    torch._dynamo.reset()
    with pytest.raises(Exception, match="(?i)graph|disable"):
        torch.compile(function, fullgraph=True, backend="aot_eager")(b)
