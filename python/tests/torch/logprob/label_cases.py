# SPDX-License-Identifier: Apache-2.0
"""Labels of every public function that takes them: in the vocabulary, ignored, outside, of another rank's shard. Run by test_logprob_labels.py
without a group, and by logprob_ranks.py over two ranks and more.
"""

import torch
import torch.distributed as dist
from torch.testing import assert_close

from bucketpool import errors
from bucketpool.torch import logprob as L
from bucketpool.torch.lm_head import FusedLinearLogprobEntropy

TOKENS, BAD, WIDTH, SIZE = 5, 3, 12, 9  # the token with the label; columns of a rank; size of hidden states
FP32 = dict(atol=1e-5, rtol=1e-4)


def compiled(function):
    def call(*arguments, **options):
        torch._dynamo.reset()
        return torch.compile(function, backend="aot_eager", fullgraph=True)(*arguments, **options)

    return call


# Log-probabilities of logits x and labels t, in a group or not; start: the first id of x.
OF_LOGITS = {
    "logprobs_from_logits": lambda x, t, group, start: L.logprobs_from_logits(x, t, group=group),
    "compiled logprobs_from_logits": lambda x, t, group, start: compiled(L.logprobs_from_logits)(x, t, group=group),
    "logprobs_and_entropy": lambda x, t, group, start: L.logprobs_and_entropy(x, t, group=group)[0],
    "token_statistics": lambda x, t, group, start: L.token_statistics(x, t, group=group).logprobs,
    "VocabParallelLogprobEntropy": lambda x, t, group, start: L.VocabParallelLogprobEntropy.apply(
        x, t, start, start + WIDTH, group)[0],
    "ChunkedDistributedLogprob": lambda x, t, group, start: L.ChunkedDistributedLogprob.apply(
        x, t, start, start + WIDTH, 2, group),
    "DistributedLogprob": lambda x, t, group, start: L.DistributedLogprob.apply(x, t, start, start + WIDTH, group),
    "gather_logprobs": lambda x, t, group, start: L.gather_logprobs(x, t, tp_group=group),
    "compiled gather_logprobs": lambda x, t, group, start: compiled(L.gather_logprobs)(x, t, tp_group=group),
    "gather_logprobs_entropy": lambda x, t, group, start: L.gather_logprobs_entropy(x, t, tp_group=group)[0],
}
# Of hidden states h and a weight w.
OF_HEADS = {
    "linear_logprobs": lambda h, w, t, group, start: L.linear_logprobs(h, w, t, group=group, chunk_size=2),
    "dropped linear_logprobs": lambda h, w, t, group, start: L.linear_logprobs(h, w, t, group=group, drop_masked=True),
    "compiled linear_logprobs": lambda h, w, t, group, start: compiled(L.linear_logprobs)(h, w, t, group=group),
    "linear_logprobs_and_entropy": lambda h, w, t, group, start: L.linear_logprobs_and_entropy(h, w, t, group=group)[0],
    "linear_token_statistics": lambda h, w, t, group, start: L.linear_token_statistics(h, w, t, group=group).logprobs,
    "FusedLinearLogprobEntropy": lambda h, w, t, group, start: FusedLinearLogprobEntropy.apply(
        h, w, t, start, start + WIDTH, 2, group, False, 1.0, None, False)[0],
    "FusedLinearChunkedDistributedLogprob": lambda h, w, t, group, start: L.FusedLinearChunkedDistributedLogprob.apply(
        h, w, t, start, start + WIDTH, 2, group, False, 1.0, None, False),
}
OF_SKYRL = "ChunkedDistributedLogprob", "DistributedLogprob", "FusedLinearChunkedDistributedLogprob"
OF_AREAL = "gather_logprobs", "compiled gather_logprobs", "gather_logprobs_entropy"
ALL = [*OF_LOGITS, "logprobs_with_gradient", *OF_HEADS]


def labels(vocab):
    """(name, label) of the token BAD."""
    return [("inside", vocab - 1), ("ignored", -100), ("below", -1), ("next", vocab), ("far above", 1 << 40),
            ("far below", -(1 << 62))]


def outcome_of(name, label, vocab, group):
    """"value"; "zero": no result, no gradient, and the row is not read; "mask": 0 with the gradient -p; "error"."""
    if 0 <= label < vocab:
        return "value"
    if name in OF_SKYRL or name in OF_AREAL and group is not None:
        return "mask"
    return "zero" if label == -100 and name not in OF_AREAL else "error"


def check(name, label, ranks, rank, group):
    """One function with one label, on this rank's shard; without a group the shard is the vocabulary."""
    torch.manual_seed(abs(label) % 1000)
    start, vocab = rank * WIDTH, ranks * WIDTH
    outcome = outcome_of(name, label, vocab, group)
    target = torch.randint(0, vocab, (1, TOKENS))
    target[0, BAD] = label
    hidden, weight = torch.randn(1, TOKENS, SIZE), torch.randn(vocab, SIZE)
    whole = torch.nn.functional.linear(hidden.double(), weight.double())
    logs = torch.log_softmax(whole, -1)
    known = target.clamp(0, vocab - 1)[..., None]
    wanted, of_logits = logs.gather(-1, known)[..., 0], torch.zeros_like(whole).scatter(-1, known, 1.0) - logs.exp()
    if outcome != "value":
        wanted[0, BAD] = 0
        of_logits[0, BAD] = 0 if outcome == "zero" else -logs.exp()[0, BAD]
    if outcome == "zero":  # the row is not read
        hidden[0, BAD], whole[0, BAD] = float("nan"), float("nan")
    x = whole[..., start:start + WIDTH].float().requires_grad_()
    h, w = hidden.clone().requires_grad_(), weight[start:start + WIDTH].clone().requires_grad_()

    def call():
        if name == "logprobs_with_gradient":
            result = L.logprobs_with_gradient(x, target, torch.ones(1, TOKENS), in_place=False, group=group)
            return result.logprobs, result.gradient
        if name in OF_LOGITS:
            got = OF_LOGITS[name](x, target, group, start)
            return (got, *torch.autograd.grad(got.sum(), x))
        got = OF_HEADS[name](h, w, target, group, start)
        return (got, *torch.autograd.grad(got.sum(), (h, w)))

    if outcome == "error":
        try:
            call()
        except errors.InvalidArgument as error:
            text = str(error)
        else:
            raise AssertionError(f"{name}: {label} is not refused")
        shown = label if abs(label) < 1 << 31 else "or more" if label > 0 else "or less"
        for part in (f"token {BAD} ", str(shown), f"{vocab} ids", f"[0, {vocab - 1}]",
                     "group=" if group is None else "vocab_start_index="):
            assert part in text, f"{part!r} is not in {text!r}"
        return
    got, *gradients = call()
    assert_close(got, wanted.float(), **FP32)
    part = of_logits[..., start:start + WIDTH]
    states = torch.where(hidden.isnan(), 0, hidden).double()
    expected = [part] if name not in OF_HEADS else [of_logits @ weight.double(), part[0].t() @ states[0]]
    for mine, theirs in zip(gradients, expected):
        assert_close(mine, theirs.float(), **FP32)
    if outcome == "zero":
        assert got[0, BAD] == 0 and (gradients[0][0, BAD] == 0).all()


def case_labels(rank, ranks):
    for name in ALL:
        slow = name.startswith("compiled")
        for kind, label in labels(ranks * WIDTH):
            if not slow or ranks == 2 and kind in ("ignored", "next"):
                check(name, label, ranks, rank, dist.group.WORLD)


def case_labels_of_one_rank(rank, ranks):
    """A rank alone has a label outside the vocabulary, which its neighbours know nothing of: an error of all."""
    vocab = ranks * WIDTH
    target = torch.zeros(1, TOKENS, dtype=torch.int64)
    logits, hidden, weight = torch.randn(1, TOKENS, WIDTH), torch.randn(1, TOKENS, SIZE), torch.randn(WIDTH, SIZE)
    target[0, BAD] = vocab if rank == 1 else 7
    for call in (lambda: L.logprobs_from_logits(logits, target, group=dist.group.WORLD),
                 lambda: L.linear_logprobs(hidden, weight, target, group=dist.group.WORLD)):
        try:
            call()
        except errors.InvalidArgument as error:
            text = str(error)
        else:
            raise AssertionError("not refused")
        for part in ((f"target {vocab},", f"{vocab} ids") if rank == 1 else ("on another rank", "7 on this one")):
            assert part in text and f"token {BAD} " in text, text
    masked = L.logprobs_from_logits(logits, target, group=dist.group.WORLD, outside="mask")
    assert masked.isfinite().all()


def case_different_options(rank, ranks):
    """ignore_index and outside are compared."""
    target, logits = torch.zeros(1, TOKENS, dtype=torch.int64), torch.randn(1, TOKENS, WIDTH)
    for option, mine, theirs in (("ignore_index", 3, None), ("outside", "mask", "error")):
        try:
            L.logprobs_from_logits(logits, target, group=dist.group.WORLD, **{option: theirs if rank else mine})
        except errors.Mismatch as error:
            assert option in str(error), str(error)
        else:
            raise AssertionError(f"{option} is not compared")
