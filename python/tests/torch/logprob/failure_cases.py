# SPDX-License-Identifier: Apache-2.0
"""One rank fails unexpectedly: the others get its error at once, and the group stays usable."""

import contextlib
import time
from unittest import mock

import torch
import torch.distributed as dist

from bucketpool import errors
from bucketpool.torch import comm, cp
from bucketpool.torch import logprob as L
from logprob_cases import expect

AT_ONCE = 10  # seconds; torch's timeout is twice that


def told(rank, kind_here, function, *parts):
    """Rank 0 raises its own exception, the others one of the library that names rank 0, before torch's time-out."""
    begin = time.monotonic()
    if rank == 0:
        expect(kind_here, function)
    else:
        expect(errors.Error, function, "rank 0", *parts)
    took = time.monotonic() - begin
    assert took < AT_ONCE, f"that took {took:.1f} s"


def works(group):
    logits, target = torch.randn(2, 6, 24), torch.zeros(2, 6, dtype=torch.int64)
    assert torch.isfinite(L.logprobs_from_logits(logits, target, group=group)).all()


class Refused(Exception):
    """An exception of another package: a `status` that is not a bp_status, and a message that is not UTF-8."""
    status = "404"


class Index:
    def __index__(self):
        raise Refused("not found: \udcff")


def case_foreign_exceptions(rank, ranks):
    default_group = dist.group.WORLD
    logits, target = torch.randn(2, 6, 24), torch.zeros(2, 6, dtype=torch.int64)
    told(rank, Refused,
         lambda: L.logprobs_from_logits(logits, target, group=default_group, chunk_size=Index() if rank == 0 else None),
         "not found")
    works(default_group)
    told(rank, Exception, lambda: L.logprobs_from_logits(logits, target, group=default_group, chunk_size=1 << 70
                                                         if rank == 0 else 8))
    works(default_group)
    split = cp.PackedSplit([0, 2 * ranks], default_group)
    told(rank, errors.InvalidArgument, lambda: cp._Gathered.apply([1, 2] if rank == 0 else torch.ones(2), split, split.comm,
                                                          "packed", False))
    works(default_group)


def case_different_functions(rank, ranks):
    default_group = dist.group.WORLD
    logits, target = torch.randn(2, 6, 24), torch.zeros(2, 6, dtype=torch.int64)
    call = (lambda: L.logprobs_from_logits(logits, target, group=default_group)) if rank == 0 else (
        lambda: L.vocab_parallel_entropy(logits, default_group))
    try:
        call()
    except errors.Mismatch as error:
        assert f"rank 0 calls logprobs_from_logits, rank 1 calls vocab_parallel_entropy" in str(error), error
    else:
        raise AssertionError("accepted")
    works(default_group)


def case_out_of_memory(rank, ranks):
    """A pass allocates its memory before the ranks begin it together."""
    default_group = dist.group.WORLD
    logits, target = torch.randn(2, 6, 24, requires_grad=True), torch.zeros(2, 6, dtype=torch.int64)
    hidden, weight = torch.randn(2, 6, 8, requires_grad=True), torch.randn(24, 8, requires_grad=True)
    split = cp.PackedSplit([0, 2 * ranks], default_group)
    local = torch.ones(2, 3, requires_grad=True)
    loss = L.linear_logprobs(hidden, weight, target, group=default_group).sum()
    for function in (lambda: L.logprobs_from_logits(logits, target, group=default_group),
                     lambda: L.linear_logprobs(hidden, weight, target, group=default_group),
                     lambda: split.reassemble(local), loss.backward):
        with contextlib.ExitStack() as failing:
            for owner, name in ((torch, "empty"), (torch, "empty_like"), (torch.Tensor, "new_empty")) if rank == 0 else ():
                failing.enter_context(mock.patch.object(owner, name, side_effect=torch.OutOfMemoryError("used up")))
            told(rank, torch.OutOfMemoryError, function, "used up")
        works(default_group)


def case_changed_saved_tensors(rank, ranks):
    default_group = dist.group.WORLD
    target = torch.zeros(2, 6, dtype=torch.int64)
    leaf, weight = torch.randn(2, 6, 8, requires_grad=True), torch.randn(24, 8, requires_grad=True)
    hidden = leaf * 1
    loss = L.linear_logprobs(hidden, weight, target, group=default_group).sum()
    if rank == 0:
        with torch.no_grad():
            hidden.add_(1)
    told(rank, RuntimeError, loss.backward, "modified")
    works(default_group)


def case_recreated_groups(rank, ranks):
    """A communicator of a destroyed group is not used for another group at the same address."""
    for turn in range(4):
        group = dist.new_group(list(range(ranks)))
        works(group)
        dist.destroy_process_group(group)
        expect(errors.Error, lambda: works(group))
        del group


def case_references_of_threads(rank, ranks):
    """When a communicator is closed, no thread of gloo has references to the tensors of its last collective: a thread
    that frees tensors while the interpreter exits ends the process.
    """
    group, late, closed = dist.group.WORLD, 0, 0
    split = cp.PackedSplit([0, 4 * ranks], group)
    local = torch.ones(4, requires_grad=True)
    for turn in range(60):
        communicator = comm.comm_of(group)
        for call in (lambda: communicator.agree("test", dict(turn=turn), {}), lambda: split.reassemble(local),
                     split.reassemble(local).sum().backward):
            call()
            kept = communicator._last
            late += any(map(comm._is_shared, kept))
            communicator._settle()
            closed += any(map(comm._is_shared, kept))
            assert kept and communicator._last == ()
    assert closed == 0, f"{closed} of {late}"
