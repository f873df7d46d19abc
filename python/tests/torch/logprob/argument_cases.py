# SPDX-License-Identifier: Apache-2.0
"""Wrong types on one rank, DTensors, and compiled calls over a process group. Run by logprob_ranks.py."""

import time

import numpy
import torch
import torch.distributed as dist
from torch.testing import assert_close

from bucketpool import errors
from bucketpool.torch import distillation as D
from bucketpool.torch import logprob as L
from bucketpool.torch.linear_loss import linear_cross_entropy, linear_logprobs_with_gradient
from logprob_cases import FP32, expect, reference, shares

AT_ONCE = 10  # seconds; torch's time-out is twice that


def mesh_of(ranks, shape=None, names=("tp", )):
    from torch.distributed.device_mesh import init_device_mesh
    return init_device_mesh("cpu", shape or (ranks, ), mesh_dim_names=names)


# ---- types ---------------------------------------------------------------------------------------------------------

WRONG = {
    "temperature": [None, "1", [1.0], torch.ones(2), torch.tensor(1j), 1j, 10**400],
    "mask": [[1], True, 3, "x", torch.ones(2, 5)],
    "ignore_index": ["a", 1.5, torch.tensor(1.5), 1 << 70],
    "chunk_size": ["a", 1.5, [4], -1],
    "vocab_start_index": ["a", 0.5, 3],
    "vocab_end_index": ["a", 0.5],
    "outside": ["no", None, 2, True, torch.ones(2)],
    "inference_only": ["no", None, 2],
    "in_place": ["no", None, 0.5],
    "soft_cap": ["x", [1.0], 0.0, -1.0, float("nan"), torch.ones(2)],
    "round_to": ["bfloat16", 16, torch.float32, torch.int8, [torch.bfloat16], torch.ones(2), numpy.float16],
}
NAMES = {"vocab_start_index": "vocab", "vocab_end_index": "vocab", "chunk_size": "chunk"}


def case_types_of_options(rank, ranks):
    """One rank passes a wrong type: all ranks raise InvalidArgument with its name, at once."""
    group = dist.group.WORLD
    logits, target = torch.randn(2, 6, 24), torch.zeros(2, 6, dtype=torch.int64)
    hidden, weight = torch.randn(2, 6, 8), torch.randn(24, 8)
    for name, values in WRONG.items():
        for value in values:
            wrong = {name: value} if rank == 0 else {}
            begin = time.monotonic()
            expect(errors.InvalidArgument, lambda: L.logprobs_from_logits(logits, target, group=group, **wrong),
                   NAMES.get(name, name), *(() if rank == 0 or ranks == 1 else ("rank 0", )))
            if name != "in_place":
                expect(errors.InvalidArgument, lambda: L.linear_logprobs(hidden, weight, target, group=group, **wrong),
                       NAMES.get(name, name), *(() if rank == 0 or ranks == 1 else ("rank 0", )))
            assert time.monotonic() - begin < AT_ONCE
    assert torch.isfinite(L.logprobs_from_logits(logits, target, group=group)).all()


def case_types_of_tensors(rank, ranks):
    group = dist.group.WORLD
    logits, target = torch.randn(2, 6, 24), torch.zeros(2, 6, dtype=torch.int64)
    hidden, weight = torch.randn(2, 6, 8), torch.randn(24, 8)
    for wrong in (None, [1.0], 3, "x", numpy.zeros((2, 6, 24)), torch.tensor(1.0)):
        bad = wrong if rank == 0 else logits
        expect(errors.InvalidArgument, lambda: L.logprobs_from_logits(bad, target, group=group), "logits")
        expect(errors.InvalidArgument, lambda: L.vocab_parallel_entropy(bad, group), "logits")
        bad = wrong if rank == 0 else hidden
        expect(errors.InvalidArgument, lambda: L.linear_logprobs(bad, weight, target, group=group), "hidden states")
        bad = wrong if rank == 0 else weight
        expect(errors.InvalidArgument, lambda: L.linear_logprobs(hidden, bad, target, group=group), "weight")
    for wrong in (None, [0], 3, numpy.zeros((2, 6)), target.float()):
        bad = wrong if rank == 0 else target
        expect(errors.InvalidArgument, lambda: L.logprobs_from_logits(logits, bad, group=group), "targets")
        expect(errors.InvalidArgument, lambda: L.linear_logprobs(hidden, weight, bad, group=group), "targets")
    assert torch.isfinite(L.logprobs_from_logits(logits, target, group=group)).all()


def refused(rank, ranks, good, wrong, call, *parts):
    """Rank 0 passes each wrong value: all ranks raise InvalidArgument with these parts, at once."""
    for value in wrong:
        begin = time.monotonic()
        expect(errors.InvalidArgument, lambda: call(value if rank == 0 else good), *parts,
               *(() if rank == 0 or ranks == 1 else ("rank 0", )))
        assert time.monotonic() - begin < AT_ONCE


def case_types_of_head_arguments(rank, ranks):
    group = dist.group.WORLD
    hidden, weight, mask = torch.randn(2, 6, 8), torch.randn(24, 8), torch.ones(2, 6)
    target, bias = torch.zeros(2, 6, dtype=torch.int64), torch.zeros(24)
    biases = [1.0, "x", [0.0] * 24, numpy.zeros(24), bias.long(), bias[:23], bias[None], torch.tensor(1.0)]
    for function in (L.linear_logprobs, L.linear_logprobs_and_entropy, L.linear_token_statistics):
        refused(rank, ranks, bias, biases, lambda x: function(hidden, weight, target, bias=x, group=group), "bias")
    refused(rank, ranks, bias, biases, lambda x: D.linear_topk_logprobs(hidden, weight, 3, bias=x, group=group), "bias")
    refused(rank, ranks, bias, biases, lambda x: L.linear_logprobs(hidden, weight, target, bias=x, group=group,
                                                                   mask=mask, drop_masked=True), "bias")
    refused(rank, ranks, True, ["no", None, 2, 0.5, torch.ones(2)],
            lambda x: L.linear_logprobs(hidden, weight, target, group=group, mask=mask, drop_masked=x), "drop_masked")
    refused(rank, ranks, mask, [[1], 3, mask[0]],
            lambda x: L.linear_logprobs(hidden, weight, target, group=group, mask=x, drop_masked=True), "mask")
    for function in (lambda k: D.topk_logprobs(hidden, k, group=group),
                     lambda k: D.linear_topk_logprobs(hidden, weight, k, group=group)):
        refused(rank, ranks, 3, [None, "3", 1.5, [3], 0, -1, 129, 1 << 70, torch.tensor(1.5), torch.ones(2)], function,
                "k: ")
    assert torch.isfinite(L.linear_logprobs(hidden, weight, target, bias=bias, group=group)).all()


def case_types_of_references(rank, ranks):
    group = dist.group.WORLD
    hidden, weight, other, table = torch.randn(2, 6, 8), torch.randn(24, 8), torch.randn(2, 6, 4), torch.randn(24, 4)
    good = dict(reference_hidden=other, reference_weight=table, beta=0.5, bias=torch.zeros(24),
                reference_bias=torch.zeros(24))

    def call(name):
        return lambda value: D.linear_divergence(hidden, weight, group=group, **{**good, name: value})

    tensors = [None, 3, "x", [1.0], numpy.zeros((2, 6, 4))]
    biases = [3, "x", [0.0] * 24, numpy.zeros(24), torch.zeros(24).long(), torch.zeros(23), torch.zeros(24, 1)]
    for name, wrong, part in (
        ("reference_hidden", [*tensors, other.long(), other[0], other[..., :3], torch.tensor(1.0)], "reference hidden"),
        ("reference_weight", [*tensors, table.long(), table[:23], table[:, :3], table[0]], "reference"),
        ("bias", biases, "bias"), ("reference_bias", biases, "reference bias"),
        ("beta", [None, "x", [0.5], -0.1, 1.1, float("nan"), torch.ones(2)], "beta")):
        refused(rank, ranks, good[name], wrong, call(name), part)
    logits = torch.randn(2, 6, 24)
    refused(rank, ranks, logits, [*tensors, logits.long(), logits.bfloat16(), logits[0], logits[..., :23]],
            lambda x: D.divergence(logits, x, beta=0.5, group=group), "reference")
    assert torch.isfinite(call("beta")(0.5)).all()


def case_numbers_of_other_types(rank, ranks):
    """Accepted: numpy's numbers and tensors of one element, on one rank only."""
    group = dist.group.WORLD
    torch.manual_seed(2)
    logits, target = torch.randn(2, 6, 24), torch.randint(0, 24, (2, 6))
    wanted = L.logprobs_from_logits(logits, target, group=group, temperature=0.5, ignore_index=3)
    for half in (torch.tensor(0.5), numpy.float32(0.5), numpy.float64(0.5), torch.tensor(0.5, dtype=torch.bfloat16)):
        for three in (numpy.int32(3), torch.tensor(3)):
            given = dict(temperature=half, ignore_index=three) if rank == 0 else dict(temperature=0.5, ignore_index=3)
            assert torch.equal(L.logprobs_from_logits(logits, target, group=group, **given), wanted)
    assert torch.equal(L.logprobs_from_logits(logits, target, group=group, temperature=numpy.int64(1), in_place=0),
                       L.logprobs_from_logits(logits, target, group=group, inference_only=numpy.True_))


# ---- DTensors ------------------------------------------------------------------------------------------------------


def case_sharded_logits(rank, ranks):
    """Even and uneven shards, with the group of the mesh; the gradient is a DTensor."""
    from torch.distributed.tensor import DTensor, Shard, distribute_tensor
    mesh = mesh_of(ranks)
    for columns in (8 * ranks, 8 * ranks - 3, 3 * ranks - ranks // 2):
        torch.manual_seed(3)
        whole, target = torch.randn(2, 5, columns), torch.randint(0, columns, (2, 5))
        full = whole.clone().requires_grad_()
        lp, entropy = reference(full, target, 0.7)
        wanted, = torch.autograd.grad((lp + entropy).sum(), full)
        for dimension in (2, -1):
            logits = distribute_tensor(whole, mesh, [Shard(dimension)]).requires_grad_()
            for group in (None, mesh.get_group() if ranks > 1 else None):
                got_lp, got_entropy = L.logprobs_and_entropy(logits, target, group=group, temperature=0.7)
                assert type(got_lp) is torch.Tensor
                assert_close(got_lp, lp.detach().float(), **FP32)
                assert_close(got_entropy, entropy.detach().float(), **FP32)
                gradient, = torch.autograd.grad((got_lp + got_entropy).sum(), logits)
                assert isinstance(gradient, DTensor) and gradient.placements == logits.placements
                assert_close(gradient.full_tensor(), wanted, **FP32)


def case_sharded_weights(rank, ranks):
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
    mesh = mesh_of(ranks)
    torch.manual_seed(4)
    columns = 8 * ranks - 3
    table, states, target = torch.randn(columns, 6), torch.randn(2, 5, 6), torch.randint(0, columns, (2, 5))
    h, w = states.clone().requires_grad_(), table.clone().requires_grad_()
    lp, _ = reference(h @ w.T, target)
    wanted = torch.autograd.grad(lp.sum(), (h, w))
    for placement in (Shard(0), Replicate()):
        hidden, weight = states.clone().requires_grad_(), distribute_tensor(table, mesh, [placement]).requires_grad_()
        got_lp = L.linear_logprobs(hidden, weight, target)
        got = torch.autograd.grad(got_lp.sum(), (hidden, weight))
        assert_close(got_lp, lp.detach().float(), **FP32)
        assert_close(got[0], wanted[0], **FP32)
        assert isinstance(got[1], DTensor) and got[1].placements == (placement, )
        assert_close(got[1].full_tensor(), wanted[1], **FP32)
        loss = linear_cross_entropy(hidden, weight, target, reduction="sum").loss
        known = linear_logprobs_with_gradient(hidden, weight, target, -torch.ones(2, 5))
        for of_hidden, of_weight in (torch.autograd.grad(loss, (hidden, weight)), known[2:4]):
            assert_close(of_hidden, -wanted[0], **FP32)
            assert isinstance(of_weight, DTensor) and of_weight.placements == (placement, )
            assert_close(of_weight.full_tensor(), -wanted[1], **FP32)


def case_refused_placements(rank, ranks):
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
    mesh, group = mesh_of(ranks), dist.group.WORLD
    logits, target = torch.randn(2, 4, 8 * ranks), torch.zeros(2, 4, dtype=torch.int64)
    hidden, weight = torch.randn(2, 4, 8), torch.randn(8 * ranks, 8)
    for placement in (Shard(0), Shard(1), Partial()):
        bad = DTensor.from_local(logits, mesh, [placement], run_check=False)
        expect(errors.InvalidArgument, lambda: L.logprobs_from_logits(bad, target), "logits", repr(placement),
               "to_local")
    bad = distribute_tensor(weight, mesh, [Shard(1)])
    expect(errors.InvalidArgument, lambda: L.linear_logprobs(hidden, bad, target), "weights", "Shard(dim=1)",
           "Shard(0)")
    expect(errors.InvalidArgument, lambda: linear_cross_entropy(hidden, bad, target), "weights", "Shard(dim=1)")
    bad = distribute_tensor(logits, mesh, [Replicate()])
    expect(errors.InvalidArgument, lambda: L.logprobs_from_logits(bad, target, group=group), "logits", "group=None")
    bad = distribute_tensor(hidden, mesh, [Replicate()])
    expect(errors.InvalidArgument, lambda: L.linear_logprobs(bad, weight, target), "hidden states", "to_local")
    bad = distribute_tensor(target, mesh, [Replicate()])
    expect(errors.InvalidArgument, lambda: L.logprobs_from_logits(logits, bad), "targets", "to_local")
    expect(errors.InvalidArgument, lambda: L.logprobs_from_logits(logits, target, mask=bad), "mask", "to_local")
    # a placement that only one rank has: the others get its error
    odd = DTensor.from_local(logits, mesh, [Shard(1)], run_check=False) if rank == 0 else logits
    expect(errors.InvalidArgument, lambda: L.logprobs_from_logits(odd, target, group=group), "logits", "Shard(dim=1)")
    if ranks > 1:  # fewer columns than ranks
        empty = distribute_tensor(torch.randn(2, 4, ranks - 1), mesh, [Shard(2)])
        expect(errors.InvalidArgument, lambda: L.logprobs_from_logits(empty, target), "no columns")
        none = distribute_tensor(torch.randn(ranks - 1, 8), mesh, [Shard(0)])
        expect(errors.InvalidArgument, lambda: L.linear_logprobs(hidden, none, target), "column")
    assert torch.isfinite(L.logprobs_from_logits(distribute_tensor(logits, mesh, [Shard(2)]), target)).all()


def case_meshes_of_two_dimensions(rank, ranks):
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor
    if ranks < 4:
        return
    mesh = mesh_of(ranks, (2, ranks // 2), ("dp", "tp"))
    torch.manual_seed(5)
    whole, target = torch.randn(2, 5, 9), torch.randint(0, 9, (2, 5))
    logits = distribute_tensor(whole, mesh, [Replicate(), Shard(2)])
    assert_close(L.logprobs_from_logits(logits, target), reference(whole, target)[0].float(), **FP32)
    expect(errors.InvalidArgument, lambda: L.logprobs_from_logits(logits, target, group=dist.group.WORLD), "group",
           "mesh")
    both = distribute_tensor(torch.randn(2, 5, 8), mesh, [Shard(2), Shard(2)])
    expect(errors.InvalidArgument, lambda: L.logprobs_from_logits(both, target % 8), "at most one dimension")


# ---- compiled ------------------------------------------------------------------------------------------------------


def case_compiled(rank, ranks):
    """One graph with several shapes, over a group: the bits of the calls without a compiler."""
    import torch._dynamo.testing
    group = dist.group.WORLD
    begins = shares(ranks, True)
    width = begins[rank + 1] - begins[rank]
    weights = torch.randn(begins[-1], 8, generator=torch.Generator().manual_seed(6))
    table = weights[begins[rank]:begins[rank + 1]].clone().requires_grad_()

    def from_logits(x, target):
        lp, entropy = L.logprobs_and_entropy(x * 2, target, group=group, temperature=0.7)
        return lp + entropy + L.vocab_parallel_entropy(x, group)

    def from_hidden(x, target):
        return L.linear_logprobs(x * 2, table, target, group=group, chunk_size=3)

    def partial(x, target):
        return L.FusedLinearChunkedDistributedLogprob.apply(x * 2, table, target, begins[rank], begins[rank + 1], 3,
                                                            group)

    for function in (from_logits, from_hidden, partial):
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        compiled = torch.compile(function, fullgraph=True, dynamic=True, backend="aot_eager")
        for shape in ((2, 6), (3, 7), (5, 4)):
            x = torch.randn(*shape, width if function is from_logits else 8)
            target = torch.randint(0, begins[-1], shape, generator=torch.Generator().manual_seed(7))
            a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
            wanted, got = function(a, target), compiled(b, target)
            assert torch.equal(wanted, got)
            for mine, theirs in zip(torch.autograd.grad(got.sum(), (b, table), allow_unused=True),
                                    torch.autograd.grad(wanted.sum(), (a, table), allow_unused=True)):
                assert (mine is None) == (theirs is None) and (mine is None or torch.equal(mine, theirs))
        assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
