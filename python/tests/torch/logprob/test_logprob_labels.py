# SPDX-License-Identifier: Apache-2.0
"""Labels that are ignored, or outside the vocabulary: each function without a group and over groups, options, several labels of a token,
and transforms of torch.func.
"""

import pytest
import torch

from bucketpool import errors
from bucketpool.torch import distillation as D
from bucketpool.torch import logprob as L
from label_cases import ALL, WIDTH, check, labels
from logprob_ranks import case_names, outcome
from torch.testing import assert_close


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("label", [label for _, label in labels(WIDTH)], ids=[name for name, _ in labels(WIDTH)])
def test_alone(name, label):
    check(name, label, 1, 0, None)


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("case", [case for module, case in case_names() if module == "label_cases"])
def test_ranks(ranks, case):
    wrong = outcome(ranks)[f"label_cases.{case}"]
    assert not wrong, "\n".join(wrong)


def test_forgotten_group():
    """The columns of the first of two shards, without the group: ids of the second one are named."""
    logits, target = torch.randn(1, 4, 10), torch.tensor([[3, 9, 10, 19]])
    with pytest.raises(errors.InvalidArgument, match=r"token 2 has target 10, .* 10 ids, \[0, 9\]; .* pass group="):
        L.logprobs_from_logits(logits, target)
    with pytest.raises(errors.InvalidArgument, match=r"token 0 has target 3, .* 10 ids, \[10, 19\]"):
        L.logprobs_from_logits(logits, target, vocab_start_index=10, vocab_end_index=20)


def test_options():
    logits, target = torch.randn(1, 3, 10, requires_grad=True), torch.tensor([[0, 10, -100]])
    lp = L.logprobs_from_logits(logits, target, outside="mask")
    gradient, = torch.autograd.grad(lp.sum(), logits)
    softmax = torch.softmax(logits.detach(), -1)
    assert lp[0, 1] == 0 and lp[0, 2] == 0 and (gradient[0, 2] == 0).all()
    assert_close(gradient[0, 1], -softmax[0, 1])
    lp = L.logprobs_from_logits(logits, target, outside="mask", ignore_index=None)
    assert_close(torch.autograd.grad(lp.sum(), logits)[0][0, 2], -softmax[0, 2])
    for options, bad in (({}, "10"), (dict(outside="check"), "10"), (dict(ignore_index=10), "-100"),
                         (dict(ignore_index=None), "10")):
        with pytest.raises(errors.InvalidArgument, match=f"target {bad}"):
            L.logprobs_from_logits(logits, target, **options)
    with pytest.raises(errors.InvalidArgument, match="'error', 'check', 'mask'"):
        L.logprobs_from_logits(logits, target, outside="ignore")
    with pytest.raises(errors.InvalidArgument, match="pass None"):
        L.logprobs_from_logits(logits, target, ignore_index=-1 << 63)
    inside = L.logprobs_from_logits(logits, torch.tensor([[0, 3, 0]]), ignore_index=0)  # an id of the vocabulary
    assert inside[0, 0] == 0 and inside[0, 2] == 0 and inside[0, 1] < 0
    masked = L.logprobs_from_logits(logits, target, mask=torch.tensor([[1, 0, 0]]), ignore_index=None)
    assert masked[0, 0] < 0 and (masked[0, 1:] == 0).all()
    L.check_targets()  # CPUs have reported everything


@pytest.mark.parametrize("head", [False, True])
def test_several_labels(head):
    """An ignored one of several is 0 without a gradient; a token of ignored ones is not read."""
    torch.manual_seed(3)
    hidden, weight = torch.randn(1, 3, 6), torch.randn(11, 6)
    target = torch.tensor([[[3, -100, 3], [-100, -100, -100], [10, 0, -100]]])
    logits = torch.nn.functional.linear(hidden, weight)
    up = torch.randn(1, 3, 3)
    kept = target != -100
    wide = logits.double().requires_grad_()
    wanted = torch.log_softmax(wide, -1).gather(-1, target.clamp(min=0)).where(kept, 0.0)
    of_logits, = torch.autograd.grad((wanted * up).sum(), wide)
    for drop in (False, True) if head else (False, ):
        states = hidden.clone()
        states[0, 1] = float("nan")
        if head:
            h = states.requires_grad_()
            got = L.linear_logprobs(h, weight, target, drop_masked=drop)
            expected = of_logits @ weight.double()
        else:
            h = logits.clone()
            h[0, 1] = float("nan")
            got = L.logprobs_from_logits(h.requires_grad_(), target)
            expected = of_logits
        assert_close(got, wanted.detach().float(), atol=1e-5, rtol=1e-4)
        gradient, = torch.autograd.grad((got * up).sum(), h)
        assert_close(gradient, expected.float(), atol=1e-5, rtol=1e-4)
        assert (got[~kept] == 0).all() and (gradient[0, 1] == 0).all()
    with pytest.raises(errors.InvalidArgument, match="token 2 has target 11"):
        L.logprobs_from_logits(logits, torch.tensor([[[0, 1], [0, -100], [-100, 11]]]))


def test_entropy_of_ignored_tokens():
    """All results of a token that is ignored are 0: AReaL's functions ignore none."""
    logits, target = torch.randn(1, 2, 8), torch.tensor([[1, -100]])
    lp, entropy = L.logprobs_and_entropy(logits, target)
    assert lp[0, 1] == 0 and entropy[0, 1] == 0 and entropy[0, 0] > 0
    _, entropy = L.logprobs_and_entropy(logits, target, ignore_index=None, outside="mask")
    assert entropy[0, 1] > 0


def test_without_targets():
    """Results that need no targets, of a shard that does not begin at 0."""
    logits, hidden, weight = torch.randn(1, 2, 8), torch.randn(1, 2, 5), torch.randn(8, 5)
    bounds = dict(vocab_start_index=10, vocab_end_index=18)
    assert_close(L.vocab_parallel_entropy(logits, **bounds), L.logprobs_and_entropy(logits, torch.zeros(
        1, 2, dtype=torch.int64))[1])
    assert L.token_statistics(logits, **bounds).entropy.isfinite().all()
    assert L.linear_token_statistics(hidden, weight, **bounds).entropy.isfinite().all()


def test_logits_overwritten_with_an_error():
    """Both passes in one call have overwritten the logits before the label is reported: their version says so."""
    logits, target = torch.randn(1, 2, 8), torch.tensor([[1, 8]])
    version = logits._version
    with pytest.raises(errors.InvalidArgument, match="target 8"):
        L.logprobs_with_gradient(logits, target, torch.ones(1, 2))
    assert logits._version > version


def test_topk_with_nan():
    """Ids of top-k are in the vocabulary, also of rows that are NaN."""
    logits = torch.full((1, 2, 8), float("nan"))
    logits[0, 0] = torch.arange(8.0)
    logprobs, ids = D.topk_logprobs(logits, 3)
    assert ids[0, 0].tolist() == [7, 6, 5] and logprobs[0, 1].isnan().all()


def test_transforms():
    """torch.vmap and torch.func would see tensors without memory."""
    logits, target, weight = torch.randn(3, 2, 8), torch.randint(0, 8, (3, 2)), torch.randn(8, 8)
    for transformed in (lambda: torch.vmap(L.logprobs_from_logits)(logits, target),
                        lambda: torch.vmap(lambda t: L.logprobs_from_logits(logits[0], t))(target),
                        lambda: torch.vmap(lambda x, t: L.linear_logprobs(x, weight, t))(logits, target),
                        lambda: torch.func.grad(lambda x: L.logprobs_from_logits(x, target).sum())(logits),
                        lambda: torch.func.jvp(L.vocab_parallel_entropy, (logits, ), (logits, )),
                        lambda: torch.vmap(lambda x: D.divergence(x, x, beta=0.5))(logits)):
        with pytest.raises(errors.Unsupported, match="torch.vmap or a transform of torch.func"):
            transformed()
