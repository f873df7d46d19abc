# SPDX-License-Identifier: Apache-2.0
"""The loss of packed sequences over tensor-, context- and data-parallel ranks. Run by logprob_ranks.py."""

import functools
import math

import torch
import torch.distributed as dist
from torch.testing import assert_close

from bucketpool import errors
from bucketpool.torch import comm
from bucketpool.torch.cp import PackedSplit
from bucketpool.torch.logprob import logprobs_and_entropy
from bucketpool.torch.loss import Loss, Statistics, logit_range
from logprob_cases import expect

WIDTH = 12  # columns of a TP rank
EPSILON = 1e-5


class Places:
    """Groups of an arrangement; TP ranks are neighbours, then come CP and DP."""

    def __init__(self, rank, tp, cp, dp):
        self.sizes = tp, cp, dp
        self.tp_rank, self.cp_rank, self.dp_rank = rank % tp, rank // tp % cp, rank // tp // cp
        self.groups = {}
        for name, key in (("tp", lambda r: r // tp), ("cp", lambda r: (r % tp, r // tp // cp)),
                          ("dp", lambda r: r % (tp * cp)), ("all", lambda r: 0)):
            lists = {}
            for r in range(tp * cp * dp):
                lists.setdefault(key(r), []).append(r)
            for members in lists.values():
                group = dist.new_group(members)
                if rank in members:
                    self.groups[name] = group

    def loss(self, **options):
        return Loss(16, self.groups["all"], tp=self.groups["tp"], cp=self.groups["cp"], dp=self.groups["dp"], **options)

    def close(self):
        comm.close()
        for group in self.groups.values():
            dist.destroy_process_group(group)


def arrangements(ranks):
    return [(tp, cp, ranks // tp // cp) for tp in (1, 2, 4) for cp in (1, 2, 4) if ranks % (tp * cp) == 0]


def micro_batches(dp_rank, tp, empty=False):
    """(cu_seqlens, ids, mask, logits of the whole vocabulary) of a DP rank; the same on its TP and CP ranks."""
    generator = torch.Generator().manual_seed(100 + dp_rank)
    for lengths in ([5, 1, 9], [16, 0, 3 + dp_rank]):
        cu = torch.tensor([0, *lengths]).cumsum(0)
        total = int(cu[-1])
        ids = torch.randint(0, WIDTH * tp, (total, ), generator=generator)
        mask = torch.rand(total, generator=generator) < (0 if empty else 0.7)
        yield cu, ids, mask, 3 * torch.randn(total, WIDTH * tp, generator=generator)


def reference(tp, dp, empty=False):
    """Statistics, sequences by DP rank and gradients of the logits, in fp64 on one process."""
    lp_sum, entropy_sum, valid, sequences, perplexities, tokens = 0, 0, 0, [], [], 0
    least, largest, wholes = math.inf, -math.inf, []
    for dp_rank in range(dp):
        mine, leaves = [], []
        for cu, ids, mask, logits in micro_batches(dp_rank, tp, empty):
            leaf = logits.double().requires_grad_()
            leaves.append(leaf)
            logs = torch.log_softmax(leaf, -1)
            tokens += len(ids)
            for begin, end in zip(cu[:-1].tolist(), cu[1:].tolist()):
                places = [i for i in range(begin, end - 1) if mask[i + 1]]
                lp = logs[places, ids[[i + 1 for i in places]]].sum()
                entropy = -(logs[places].exp() * logs[places]).sum()
                lp_sum, entropy_sum, valid = lp_sum + lp, entropy_sum + entropy, valid + len(places)
                perplexity = math.exp(-lp.item() / len(places)) if places else 0.0
                mine.append((len(places), lp.item(), entropy.item(), perplexity))
                perplexities += [mine[-1][3]] if places else []
                if places:
                    least, largest = min(least, leaf[places].min().item()), max(largest, leaf[places].max().item())
        sequences.append(mine)
        wholes.append(leaves)
    loss = -lp_sum / (EPSILON + valid) if valid else lp_sum * 0
    bonus = -0.3 * entropy_sum / (EPSILON + valid) if valid else lp_sum * 0
    (loss + bonus).backward()
    statistics = Statistics(
        sum(map(len, sequences)), tokens, valid, lp_sum.item(), entropy_sum.item(), sum(perplexities),
        len(perplexities), least, largest, EPSILON, loss.item(), entropy_sum.item() / valid if valid else 0.0,
        sum(perplexities) / len(perplexities) if perplexities else 0.0)
    return statistics, sequences, [[leaf.grad for leaf in leaves] for leaves in wholes]


def close(got, wanted):
    for field in Statistics._fields:
        assert_close(float(getattr(got, field)), float(getattr(wanted, field)), rtol=1e-5, atol=1e-6, msg=field)


def computed(places, empty=False, gradients="averaged"):
    """Statistics, sequences and, for each micro-batch, (split, gradient of this rank's logits)."""
    tp, cp, _ = places.sizes
    columns = slice(places.tp_rank * WIDTH, (places.tp_rank + 1) * WIDTH)
    loss, passes = places.loss(gradients=gradients), []
    with loss.step():
        for cu, ids, mask, logits in micro_batches(places.dp_rank, tp, empty):
            split = PackedSplit(cu, places.groups["cp"])
            local = split.split(logits)[:, columns].requires_grad_()
            valid = split.split(mask, "next")
            lp, entropy = logprobs_and_entropy(local, split.split(ids, "next"), group=places.groups["tp"])
            loss.add(split, valid[None], lp[None], entropy, logit_range(local, valid))
            passes.append((split, valid, local, lp, entropy))
    results = []
    for split, valid, local, lp, entropy in passes:
        torch.autograd.backward([lp, entropy], [loss.seed(split, valid), loss.seed(split, valid.long(), -0.3)])
        results.append((split, local.grad))
    return loss.statistics, loss.sequences, results


def case_every_arrangement(rank, ranks):
    """Statistics and gradients equal those of one process in fp64, for all tp x cp x dp."""
    for sizes in arrangements(ranks):
        places = Places(rank, *sizes)
        tp, cp, dp = sizes
        for empty, gradients in ((False, "averaged"), (True, "averaged"), (False, "summed")):
            wanted, sequences, grads = reference(tp, dp, empty)
            got, mine, results = computed(places, empty, gradients)
            close(got, wanted)
            assert len(mine) == len(sequences[places.dp_rank])
            for one, other in zip(mine, sequences[places.dp_rank]):
                assert_close(torch.tensor(one).double(), torch.tensor(other).double(), rtol=1e-5, atol=1e-5)
            scale = 1 if gradients == "summed" else cp * dp
            columns = slice(places.tp_rank * WIDTH, (places.tp_rank + 1) * WIDTH)
            for (split, gradient), whole in zip(results, grads[places.dp_rank]):
                wanted_here = split.split(whole.float())[:, columns] * scale
                assert_close(gradient, wanted_here, rtol=1e-4, atol=1e-6)
        places.close()


def case_known_counts(rank, ranks):
    """Seeds of counts from the masks alone, and of a known n, are those of the statistics."""
    places = Places(rank, 1, ranks, 1)
    loss = places.loss()
    seeds = []
    splits = [(PackedSplit(cu, places.groups["cp"]), mask) for cu, _, mask, _ in micro_batches(0, 1)]
    loss.begin()
    for split, mask in splits:
        loss.add(split, split.split(mask, "next"))
    statistics = loss.reduce()
    assert statistics.logprob_sum == 0 and statistics.logit_min == math.inf
    for turn in range(2):
        seeds.append([loss.seed(split, split.split(mask, "next")) for split, mask in splits])
        loss = places.loss()
        expect(errors.ScheduleError, lambda: loss.seed(splits[0][0], splits[0][0].split(splits[0][1])), "not known")
        loss.set_count(statistics.valid)
    for first, second, (split, mask) in zip(*seeds, splits):
        assert torch.equal(first, second)
        wanted = -split.split(mask, "next").float() * ranks / (EPSILON + statistics.valid)
        assert_close(first, wanted, rtol=1e-6, atol=0)
    places.close()


def case_failed_rank(rank, ranks):
    """An error of one rank, of whatever kind, is an error of all that names it; the next step works."""
    places = Places(rank, 1, ranks, 1)
    loss = places.loss()
    split = PackedSplit([0, 4 * ranks], places.groups["cp"])
    mask, odd = torch.ones(4, dtype=torch.bool), rank == ranks - 1

    def step(body):
        with loss.step():
            body()
            loss.add(split, mask, torch.zeros(4))

    def fails(kind, words, body):
        named = (words, ) if odd else (words, f"rank {ranks - 1} of {ranks} (tp 0, cp {ranks - 1}, dp 0) failed")
        expect(kind if odd else errors.Error, lambda: step(lambda: body() if odd else None), *named)
        expect(errors.ScheduleError, lambda: loss.statistics, "no successful")
        assert loss.sequences == [] and torch.equal(loss.seed(split, mask), torch.zeros(4))
        step(lambda: None)
        assert loss.statistics.valid == 4 * ranks

    def loader():
        raise KeyError("shard 7")

    fails(KeyError, "shard 7", loader)
    fails(errors.InvalidArgument, "[5]", lambda: loss.add(split, torch.ones(5)))
    fails(errors.InvalidArgument, "float64", lambda: loss.add(split, mask, torch.zeros(4).double()))
    fails(errors.InvalidArgument, "max_sequences", lambda: loss.add(
        PackedSplit([0] * 17 + [4 * ranks], places.groups["cp"]), mask))

    def caught():  # the caller continues; the loss remembers
        expect(errors.InvalidArgument, lambda: loss.add(split, [1, 1, 1, 1]), "list")

    fails(errors.InvalidArgument, "list", caught)

    loss.begin()
    failure = OSError("disk") if odd else None
    expect(OSError if odd else errors.Error, lambda: loss.agree(failure), "disk")
    expect(OSError if odd else errors.Error, loss.reduce, "disk")
    loss.begin()
    loss.agree()
    loss.add(split, mask)
    assert loss.reduce().tokens == 4 * ranks
    expect(errors.Mismatch, lambda: step(lambda: loss.add(PackedSplit([0, 4 * ranks + 4 * ranks * odd],
                                                                      places.groups["cp"]),
                                                          torch.ones(4 + 4 * odd), torch.zeros(4 + 4 * odd))))
    places.close()


def case_creation(rank, ranks):
    everybody = dist.group.WORLD
    expect(errors.Mismatch, lambda: Loss(4, everybody, cp=(rank, ranks), dp=(0, 2)), str(ranks))
    expect(errors.Mismatch, lambda: Loss(4, everybody, cp=(0, ranks)), "rank")
    expect(errors.Mismatch, lambda: Loss(4 + (rank == 1), everybody, dp=(rank, ranks)), "rank")
    expect(errors.Error, lambda: Loss("x" if rank == 1 else 4, everybody, dp=(rank, ranks)), "max_sequences")
    expect(errors.Error, lambda: Loss(4, everybody, dp=(rank, ranks), gradients="mean" if rank == 0 else "summed"),
           "mean")
    loss = Loss(4, everybody, dp=(rank, ranks))
    loss.begin()
    loss.close()
    loss.close()
    expect(errors.ScheduleError, loss.begin, "create another")
    loss = Loss(4, everybody, dp=(rank, ranks))
    comm.close()
    expect(errors.ScheduleError, loss.begin, "create another")


def case_evaluation(rank, ranks):
    """Merged statistics of steps are those of one step with all micro-batches."""
    loss = Loss(16, dist.group.WORLD, dp=(rank, ranks))
    steps = []
    for together in (False, True):
        loss.begin()
        for cu, ids, mask, logits in micro_batches(rank, 1):
            split = PackedSplit(cu, rank=0, ranks=1)
            lp, entropy = logprobs_and_entropy(logits, split.split(ids, "next"))
            loss.add(split, split.split(mask, "next"), lp, entropy, logit_range(logits))
            if not together:
                steps.append(loss.reduce())
                loss.begin()
        if together:
            whole = loss.reduce()
    close(functools.reduce(Statistics.merged, steps), whole)
    loss.close()
