# SPDX-License-Identifier: Apache-2.0
"""Further functions of logits and of the fused head on any number of ranks, compared with fp64 on the whole
vocabulary. Run by logprob_ranks.py and, with one rank, by test_logprob_functions.py.
"""

import itertools

import torch
import torch.distributed as dist
from torch.testing import assert_close

from bucketpool import errors
from bucketpool.torch import distillation as D
from bucketpool.torch import logprob as L
from logprob_cases import expect, shares

OUTPUT = dict(atol=2e-5, rtol=1e-4)
GRADIENT = {torch.float32: dict(atol=2e-5, rtol=2e-4), torch.bfloat16: dict(atol=1.6e-2, rtol=8e-3)}


class Rounded(torch.autograd.Function):
    """Rounds to a dtype; passes the gradient through."""

    @staticmethod
    def forward(ctx, x, dtype):
        return x.to(dtype).to(x.dtype)

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


def prepared(logits, temperature=1.0, soft_cap=None, round_to=None):
    x = logits if round_to is None else Rounded.apply(logits, round_to)
    x = x if soft_cap is None else soft_cap * torch.tanh(x / soft_cap)
    return x / (temperature[..., None].double() if isinstance(temperature, torch.Tensor) else temperature)


def statistics(logits, target, mask=None, **options):
    """The results of token_statistics, in fp64."""
    logs = torch.log_softmax(prepared(logits, **options), -1)
    index = target.long() if target.dim() == logits.dim() else target.long()[..., None]
    lp = logs.gather(-1, index)
    out = [lp if target.dim() == logits.dim() else lp[..., 0], -(logs.exp() * logs).sum(-1),
           torch.logsumexp(prepared(logits, **options), -1), logs.mean(-1)]
    if mask is not None:
        out = [torch.where(mask[..., None] if one.dim() > mask.dim() else mask, one, 0.0) for one in out]
    return out


def divergence(logits, reference, beta, **options):
    p, q = (torch.log_softmax(prepared(x, **options), -1) for x in (logits, reference))
    m = p if beta == 0 else q if beta == 1 else torch.logaddexp(p + torch.tensor(1 - beta).log(),
                                                                q + torch.tensor(beta).log())
    of_reference, of_logits = (q.exp() * (q - m)).sum(-1), (p.exp() * (p - m)).sum(-1)
    return of_reference if beta == 0 else of_logits if beta == 1 else beta * of_reference + (1 - beta) * of_logits


def group_of(ranks):
    return dist.group.WORLD if ranks > 1 else None


def everywhere(tensor):
    """The tensor of rank 0."""
    if dist.is_initialized():
        dist.broadcast(tensor, 0)
    return tensor


OPTIONS = [dict(), dict(temperature=0.7), dict(soft_cap=3.0), dict(round_to=torch.bfloat16),
           dict(temperature=1.3, soft_cap=5.0, round_to=torch.bfloat16), dict(temperature="tensor", soft_cap=30.0)]


def drawn(options, shape):
    if options.get("temperature") == "tensor":
        return dict(options, temperature=0.5 + everywhere(torch.rand(shape)))
    return options


def compared(got, wanted, got_inputs, wanted_inputs, slices, tolerance):
    """Compares outputs, and the gradients of a random weighting of all of them."""
    ups = [everywhere(torch.randn(one.shape)) for one in wanted]
    for mine, true in zip(got, wanted):
        assert mine.dtype == torch.float32
        assert_close(mine, true.float(), **OUTPUT)
    mine = torch.autograd.grad(sum((one * up).sum() for one, up in zip(got, ups)), got_inputs)
    true = torch.autograd.grad(sum((one * up).sum() for one, up in zip(wanted, ups)), wanted_inputs)
    for one, other, part in zip(mine, true, slices):
        scale = other.abs().max().clamp(min=1).float()
        assert_close(one.float() / scale, other[part].float() / scale, **tolerance)


def case_statistics(rank, ranks):
    begins = shares(ranks, True)
    part = (..., slice(begins[rank], begins[rank + 1]))
    for options, dtype, several in itertools.product(OPTIONS, (torch.float32, torch.bfloat16), (None, 1, 5)):
        shape = (2, 7)
        whole = everywhere(3 * torch.randn(*shape, begins[-1])).to(dtype)
        target = everywhere(torch.randint(0, begins[-1], shape if several is None else (*shape, several)))
        if several == 5:
            target[..., 3] = target[..., 1]  # the same target twice
        mask = everywhere((torch.rand(shape) < 0.8).to(torch.uint8)).bool()
        options = drawn(options, shape)
        mine, full = whole[part].clone().requires_grad_(), whole.double().requires_grad_()
        got = L.token_statistics(mine, target, group=group_of(ranks), mask=mask, **options)
        compared(got, statistics(full, target, mask, **options), [mine], [full], [part], GRADIENT[dtype])


def case_statistics_of_head(rank, ranks):
    begins = shares(ranks, True)
    part = slice(begins[rank], begins[rank + 1])
    for options, several, chunk, with_bias in itertools.product(OPTIONS, (None, 3), (4, None), (False, True)):
        shape = (2, 7)
        hidden, weight = everywhere(torch.randn(*shape, 16)), everywhere(torch.randn(begins[-1], 16) / 2)
        bias = everywhere(torch.randn(begins[-1]))
        target = everywhere(torch.randint(0, begins[-1], shape if several is None else (*shape, several)))
        options = drawn(options, shape)
        mine = [hidden.clone().requires_grad_(), weight[part].clone().requires_grad_()]
        full = [hidden.double().requires_grad_(), weight.double().requires_grad_()]
        slices = [(...,), part]
        if with_bias:
            mine.append(bias[part].clone().requires_grad_())
            full.append(bias.double().requires_grad_())
            slices.append(part)
        got = L.linear_token_statistics(*mine[:2], target, bias=mine[2] if with_bias else None, group=group_of(ranks),
                                        chunk_size=chunk, **options)
        logits = torch.nn.functional.linear(*full)
        if options.get("round_to"):  # a logit at the border between two bf16 numbers may round to the other one
            assert_close(got[0], statistics(logits, target, **options)[0].float(), atol=2e-2, rtol=2e-2)
            continue
        compared(got, statistics(logits, target, **options), mine, full, slices, dict(atol=5e-5, rtol=5e-4))


def case_memory_of_shards(rank, ranks):
    """Memory for the kept logits of the smaller shards, but not of the larger ones: no rank keeps its logits."""
    begins = shares(ranks, True)
    part, tokens = slice(begins[rank], begins[rank + 1]), 6
    sizes = sorted({8 * tokens * (end - begin) for begin, end in zip(begins, begins[1:])})
    hidden, weight = everywhere(torch.randn(tokens, 16)), everywhere(torch.randn(begins[-1], 16) / 2)
    target = everywhere(torch.randint(0, begins[-1], (tokens, )))
    full = [hidden.double().requires_grad_(), weight.double().requires_grad_()]
    true = torch.log_softmax(full[0] @ full[1].T, -1).gather(-1, target[:, None])[:, 0]
    wanted = torch.autograd.grad(true.sum(), full)
    for memory in (sizes[0], sizes[0], sizes[-1]):
        mine = hidden.clone().requires_grad_(), weight[part].clone().requires_grad_()
        lp = L.linear_logprobs(*mine, target, group=group_of(ranks), memory=memory)
        got = torch.autograd.grad(lp.sum(), mine)
        assert_close(lp, true.float(), **OUTPUT)
        assert_close(got[0], wanted[0].float(), **GRADIENT[torch.float32])
        assert_close(got[1], wanted[1][part].float(), **GRADIENT[torch.float32])


def case_smoothing_and_z_loss(rank, ranks):
    """The recipes of the guide: label smoothing over the vocabulary of all ranks, as torch has it, and the z-loss."""
    begins = shares(ranks, False)
    part = (..., slice(begins[rank], begins[rank + 1]))
    whole, target = everywhere(torch.randn(9, begins[-1])), everywhere(torch.randint(0, begins[-1], (9, )))
    mine, full = whole[part].clone().requires_grad_(), whole.double().requires_grad_()
    got = L.token_statistics(mine, target, group=group_of(ranks))
    loss = -(0.9 * got.logprobs + 0.1 * got.mean_logprobs) + 1e-2 * got.logsumexp.square()
    true = torch.nn.functional.cross_entropy(full, target, reduction="none", label_smoothing=0.1)
    true = true + 1e-2 * full.logsumexp(-1).square()
    compared([loss], [true], [mine], [full], [part], GRADIENT[torch.float32])


def case_divergences(rank, ranks):
    begins = shares(ranks, True)
    part = (..., slice(begins[rank], begins[rank + 1]))
    for beta, dtype, options in itertools.product((0.0, 0.3, 0.5, 1.0), (torch.float32, torch.bfloat16), OPTIONS):
        shape = (3, 5)
        whole, other = (everywhere(2 * torch.randn(*shape, begins[-1])).to(dtype) for _ in range(2))
        options = drawn(options, shape)
        mine, full = whole[part].clone().requires_grad_(), whole.double().requires_grad_()
        got = D.divergence(mine, other[part], beta=beta, group=group_of(ranks), **options)
        compared([got], [divergence(full, other.double(), beta, **options)], [mine], [full], [part], GRADIENT[dtype])


def case_divergence_of_equal(rank, ranks):
    begins = shares(ranks, True)
    whole = everywhere(torch.randn(2, 5, begins[-1]))
    for beta in (0.0, 0.5, 1.0):
        mine = whole[..., begins[rank]:begins[rank + 1]].clone().requires_grad_()
        got = D.divergence(mine, mine.detach().clone(), beta=beta, group=group_of(ranks))
        got.sum().backward()
        assert got.abs().max() < 1e-6 and mine.grad.abs().max() < 1e-6


def case_divergences_of_heads(rank, ranks):
    """Student and teacher have other hidden sizes, and biases."""
    begins = shares(ranks, True)
    part = slice(begins[rank], begins[rank + 1])
    for beta, chunk, with_bias in itertools.product((0.0, 0.4, 1.0), (3, 100), (False, True)):
        hidden, weight = everywhere(torch.randn(2, 7, 16)), everywhere(torch.randn(begins[-1], 16) / 2)
        teacher, table = everywhere(torch.randn(2, 7, 24)), everywhere(torch.randn(begins[-1], 24) / 2)
        mask = everywhere((torch.rand(2, 7) < 0.7).to(torch.uint8)).bool()
        mine = [hidden.clone().requires_grad_(), weight[part].clone().requires_grad_()]
        full = [hidden.double().requires_grad_(), weight.double().requires_grad_()]
        biases, other = {}, teacher.double() @ table.double().t()
        if with_bias:
            bias, teacher_bias = (everywhere(torch.randn(begins[-1])) for _ in range(2))
            mine.append(bias[part].clone().requires_grad_())
            full.append(bias.double().requires_grad_())
            biases = dict(bias=mine[2], reference_bias=teacher_bias[part])
            other = other + teacher_bias
        got = D.linear_divergence(*mine[:2], teacher, table[part], beta=beta, group=group_of(ranks), chunk_size=chunk,
                                  mask=mask, temperature=0.8, **biases)
        true = divergence(torch.nn.functional.linear(*full), other, beta, temperature=0.8)
        compared([got], [torch.where(mask, true, 0.0)], mine, full, [(...,), part, part], dict(atol=5e-5, rtol=5e-4))


def case_top_k(rank, ranks):
    begins = shares(ranks, True)
    part = (..., slice(begins[rank], begins[rank + 1]))
    whole = everywhere(torch.stack([torch.randperm(begins[-1]) for _ in range(10)]).reshape(2, 5, -1)).float() / 7
    logs = torch.log_softmax(whole.double() / 0.7, -1)
    for k in (1, 6, 30):  # 30: more than the columns of a rank
        if k > begins[-1]:
            continue
        lp, ids = D.topk_logprobs(whole[part], k, group=group_of(ranks), temperature=0.7)
        values, indices = logs.topk(k, -1)
        assert torch.equal(ids, indices)
        assert_close(lp, values.float(), **OUTPUT)
    hidden, weight = everywhere(torch.randn(2, 5, 16)), everywhere(torch.randn(begins[-1], 16))
    logs = torch.log_softmax((hidden.double() @ weight.double().t()), -1)
    lp, ids = D.linear_topk_logprobs(hidden, weight[part[1]], 6, group=group_of(ranks), chunk_size=3)
    assert_close(lp, logs.topk(6, -1).values.float(), **OUTPUT)
    assert_close(lp, logs.gather(-1, ids).float(), **OUTPUT)
    # a student at the ids of its teacher: the forward divergence over the support is plain PyTorch
    student = everywhere(torch.randn(2, 5, begins[-1]))[part].clone().requires_grad_()
    at_ids = L.logprobs_from_logits(student, ids, group=group_of(ranks))
    (lp.exp() * (lp - at_ids)).sum().backward()
    assert student.grad.shape == student.shape


def case_known_gradients(rank, ranks):
    """logprobs_with_gradient gives the bits of forward and backward."""
    begins = shares(ranks, False)
    part = (..., slice(begins[rank], begins[rank + 1]))
    for dtype, entropy in itertools.product((torch.float32, torch.bfloat16), (False, True)):
        whole = everywhere(torch.randn(3, 7, begins[-1])).to(dtype)
        target, up, up_entropy = (everywhere(torch.randint(0, begins[-1], (3, 7))), everywhere(torch.randn(3, 7)),
                                  everywhere(torch.randn(3, 7)))
        mine = whole[part].clone().requires_grad_()
        lp, h = L.logprobs_and_entropy(mine, target, group=group_of(ranks))
        loss = (lp * up).sum() + ((h * up_entropy).sum() if entropy else 0)
        wanted, = torch.autograd.grad(loss, mine)
        for in_place in (True, False):
            logits = whole[part].clone()
            got = L.logprobs_with_gradient(logits, target, up, up_entropy if entropy else None, group=group_of(ranks),
                                           in_place=in_place)
            assert torch.equal(got.logprobs, lp)
            assert torch.equal(got.gradient, wanted)
            assert (got.gradient.data_ptr() == logits.data_ptr()) == in_place
            assert (got.entropy is not None) == entropy and (not entropy or torch.equal(got.entropy, h))


def case_dropped_tokens(rank, ranks):
    """drop_masked leaves masked tokens out of the products; the results are those with the mask."""
    begins = shares(ranks, True)
    part = slice(begins[rank], begins[rank + 1])
    hidden, weight = everywhere(torch.randn(3, 9, 16)), everywhere(torch.randn(begins[-1], 16))
    target = everywhere(torch.randint(0, begins[-1], (3, 9)))
    for share in (0.5, 0.0, 1.0):
        mask = everywhere((torch.rand(3, 9) < share).to(torch.uint8)).bool()
        results = []
        for drop in (False, True):
            h, w = hidden.clone().requires_grad_(), weight[part].clone().requires_grad_()
            lp = L.linear_logprobs(h, w, target, group=group_of(ranks), mask=mask, chunk_size=4, drop_masked=drop)
            (lp * torch.arange(lp.numel()).reshape(lp.shape)).sum().backward()
            results.append((lp.detach(), h.grad, w.grad))
        for one, other in zip(*results):
            assert_close(one, other, atol=1e-4, rtol=1e-4)


def case_refused_options(rank, ranks):
    begins = shares(ranks, False)
    mine, target = torch.randn(2, 3, 24), torch.zeros(2, 3, dtype=torch.int64)
    group = group_of(ranks)
    odd = rank == ranks - 1
    for name, value in (("temperature", "hot"), ("soft_cap", -1.0), ("soft_cap", "x"), ("round_to", torch.int8),
                        ("mask", [1]), ("temperature", torch.ones(7))):
        expect(errors.InvalidArgument,
               lambda: L.logprobs_from_logits(mine, target, group=group, **({name: value} if odd else {})), name)
    expect(errors.InvalidArgument,
           lambda: L.logprobs_from_logits(mine, torch.zeros((2, 3, 200), dtype=torch.int64), group=group), "200")
    expect(errors.InvalidArgument,
           lambda: D.divergence(mine, torch.randn(2, 3, 23) if odd else mine, beta=0.5, group=group), "reference")
    expect(errors.InvalidArgument, lambda: D.divergence(mine, mine, beta=1.5 if odd else 0.5, group=group), "beta")
    expect(errors.InvalidArgument, lambda: D.topk_logprobs(mine, begins[-1] + 1, group=group), "k")
    assert torch.isfinite(L.logprobs_from_logits(mine, target, group=group)).all()
