# SPDX-License-Identifier: Apache-2.0
"""Repeated calls: what one costs in Python functions, and that it differs from the first one in nothing else."""

import sys
import threading

import pytest
import torch
from bucketpool.errors import InvalidArgument
from bucketpool.torch import _calls, _clients
from bucketpool.torch import logprob as L
from torch.testing import assert_close

CONVERSIONS = {"fresh", "_batch", "_plan", "_plan_backward", "options_of", "outputs_struct", "set_tokens", "rows", "values", "upstream", "_integer"}


def functions_of(call):
    """The names of the package's Python functions that a call enters, in order."""
    names = []

    def note(frame, event, argument):
        if event == "call" and "bucketpool" in frame.f_globals.get("__name__", ""):
            names.append(frame.f_code.co_name)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(before)
    return [name for name in names if name not in ("<genexpr>", "<listcomp>", "<lambda>")]


def tensors():
    torch.manual_seed(0)
    return torch.randn(8, 16), torch.randint(0, 16, (8, ))


def eager(logits, target):
    return torch.log_softmax(logits, -1).gather(-1, target[..., None])[..., 0]


def backward_of(output, logits):
    return lambda: torch.autograd.grad(output, logits, torch.ones_like(output), retain_graph=True)


def test_functions_of_a_call():
    """Counts of frames on the path of a repeated call: more of them are slower."""
    logits, target = tensors()
    leaf = logits.clone().requires_grad_()
    for _ in range(2):
        L.logprobs_from_logits(logits, target)
        backward_of(L.logprobs_from_logits(leaf, target), leaf)()
    alone = functions_of(lambda: L.logprobs_from_logits(logits, target))
    saved = functions_of(lambda: L.logprobs_from_logits(leaf, target))
    backward = backward_of(L.logprobs_from_logits(leaf, target), leaf)
    seen = functions_of(backward)
    output = L.logprobs_from_logits(leaf, target)
    assert [node.name() for node, _ in output.grad_fn.next_functions if node is not None] == ["torch::autograd::AccumulateGrad"]
    assert not CONVERSIONS & {*alone, *saved, *seen}
    assert len(alone) <= 20 and len(saved) <= 22 and len(seen) <= 16, (alone, saved, seen)


def test_calls_of_the_library():
    """One for each pass."""
    logits, target = tensors()
    leaf, made = logits.clone().requires_grad_(), []
    kept = _calls.Call.__call__

    def counted(self, *arguments):
        made.append(self.__name__)
        return kept(self, *arguments)

    try:
        _calls.Call.__call__ = counted
        L.logprobs_and_entropy(leaf, target, mask=target > 3)[0].sum().backward()
        L.logprobs_with_gradient(logits.clone(), target, torch.ones(8))
    finally:
        _calls.Call.__call__ = kept
    assert made == ["bp_logprob_forward", "bp_logprob_backward", "bp_logprob_forward_backward"]


def layouts(tensor):
    """The same values in other layouts."""
    yield tensor
    yield torch.stack((tensor, tensor), -1)[..., 0]
    yield torch.cat((tensor, tensor), -1)[..., :tensor.shape[-1]]
    yield tensor[None].expand(1, *tensor.shape)[0]


@pytest.mark.parametrize("masked", [False, True, torch.uint8, torch.float32])
def test_layouts(masked):
    logits, target = tensors()
    mask = None if masked is False else (target > 3) if masked is True else (target > 3).to(masked)
    for _ in range(3):
        for values in layouts(logits):
            for ids in (*layouts(target), target.int()):
                logits_of, fill = values.detach().requires_grad_(), torch.rand(8)
                wanted = eager(logits, target) if mask is None else torch.where(mask != 0, eager(logits, target), 0)
                got = L.logprobs_from_logits(logits_of, ids, mask=mask)
                assert_close(got, wanted, atol=1e-5, rtol=1e-5)
                for above in layouts(fill):
                    gradient, = torch.autograd.grad(got, logits_of, above, retain_graph=True)
                    leaf = logits.clone().requires_grad_()
                    weights = fill if mask is None else fill * (mask != 0)
                    assert_close(gradient, torch.autograd.grad(eager(leaf, target), leaf, weights)[0], atol=1e-5, rtol=1e-5)


def test_equal_options_of_other_types():
    """1 == 1.0 == True, of which a call refuses some."""
    logits, target = tensors()
    L.logprobs_from_logits(logits, target, vocab_start_index=0, vocab_end_index=16)
    with pytest.raises(InvalidArgument, match="vocab_start_index"):
        L.logprobs_from_logits(logits, target, vocab_start_index=0.0, vocab_end_index=16)
    L.logprobs_from_logits(logits, target, in_place=0)
    with pytest.raises(InvalidArgument, match="in_place"):
        L.logprobs_from_logits(logits, target, in_place=0.0)


def test_options_that_change():
    """Numbers in tensors are read in each call."""
    logits, target = tensors()
    for name, of in (("temperature", lambda number: logits / number), ("soft_cap", lambda number: number * torch.tanh(logits / number))):
        number = torch.tensor(0.5)
        for value in (0.5, 2.0):
            number.fill_(value)
            assert_close(L.logprobs_from_logits(logits, target, **{name: number}), eager(of(value), target), atol=1e-5, rtol=1e-5)
    temperatures = torch.full((8, ), 0.5)
    for value in (0.5, 2.0):
        temperatures.fill_(value)
        assert_close(L.logprobs_from_logits(logits, target, temperature=temperatures), eager(logits / value, target), atol=1e-5, rtol=1e-5)


def test_calls_are_forgotten():
    logits, target = tensors()
    calls = _clients.of(None).calls
    for tokens in range(1, _calls.MOST + 20):
        L.logprobs_from_logits(logits[:1].expand(tokens, 16).contiguous(), target[:1].expand(tokens), ignore_index=None)
    assert len(calls) == _calls.MOST
    L.free_clients()
    assert not calls
    assert_close(L.logprobs_from_logits(logits, target), eager(logits, target), atol=1e-5, rtol=1e-5)


def test_calls_of_threads():
    """Threads forget the oldest calls at the same time."""
    calls, failures, interval = {}, [], sys.getswitchinterval()

    def adds(thread):
        try:
            for i in range(100_000):
                _calls.keep(calls, (thread, i), i)
        except Exception as error:
            failures.append(error)

    try:
        sys.setswitchinterval(1e-6)
        threads = [threading.Thread(target=adds, args=(i, )) for i in range(3)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    finally:
        sys.setswitchinterval(interval)
    assert not failures and len(calls) <= _calls.MOST + 2


def test_negative_views():
    """Tensors whose memory has the values negated: autograd makes them of complex numbers."""
    logits, target = tensors()
    leaf, negated = logits.clone().requires_grad_(), torch._neg_view(-logits)
    temperatures = torch.rand(8) + 0.5
    for _ in range(2):
        assert_close(L.logprobs_from_logits(negated, target), eager(logits, target), atol=1e-5, rtol=1e-5)
        got = L.logprobs_from_logits(logits, target, temperature=torch._neg_view(-temperatures))
        assert_close(got, eager(logits / temperatures[:, None], target), atol=1e-5, rtol=1e-5)
        logprobs, entropies = L.logprobs_and_entropy(leaf, target)
        gradient, = torch.autograd.grad((torch.complex(logprobs, entropies).conj() * (1 + 2j)).real.sum(), leaf)
        log_p = torch.log_softmax(leaf, -1)
        wanted, = torch.autograd.grad(eager(leaf, target).sum() - 2 * (log_p.exp() * log_p).sum(), leaf)
        assert_close(gradient, wanted, atol=1e-5, rtol=1e-5)
        with pytest.raises(InvalidArgument, match="in_place"):
            L.logprobs_from_logits(torch._neg_view(leaf * 1), target, in_place=True)
        L.logprobs_from_logits(leaf, target)  # plans of the same strides
    weight, bias = torch.randn(5, 16), torch.randn(5)
    got = L.linear_logprobs(negated, torch._neg_view(-weight), target % 5, bias=torch._neg_view(-bias))
    assert_close(got, eager(logits @ weight.T + bias, target % 5), atol=1e-5, rtol=1e-5)
