# SPDX-License-Identifier: Apache-2.0
"""FSDP2 with a pool against plain FSDP2: losses, gradients and parameters bit for bit, memory measured for both."""

import os

import pytest

import fsdp2_models as models
import process_group

STEPS = 2 if os.environ.get("BUCKETPOOL_BRIEF") else 3


def in_parts(model, step, prepare):
    """A step of two micro-batches; prepare(last) comes before each."""
    losses = []
    for part in range(2):
        prepare(part == 1)
        loss = models.loss_of(model, 10 * step + part)
        loss.backward()
        losses.append(loss.detach())
    return losses


def accumulate(model, step):
    """Two micro-batches, the first without reduction and resharding."""
    def prepare(last):
        model.set_requires_gradient_sync(last)
        model.set_reshard_after_backward(last)

    return in_parts(model, step, prepare)


def not_the_last(model, step):
    """Two backward passes with reduce-scatters; only the second is marked as the last."""
    return in_parts(model, step, model.set_is_last_backward)


def with_evaluation(model, step):
    import torch

    model.eval()
    with torch.no_grad():
        loss = models.loss_of(model, 50 + step)
    model.train()
    return [loss] + models.plain_step(model, step)


def keep_a_layer(model):
    """Settings of a step's first micro-batch: the second one does not gather this layer in forward."""
    model.layers[0].set_reshard_after_backward(False)


def accumulate_with_a_layer_kept(model, step):
    return in_parts(model, step, model.layers[0].set_reshard_after_backward)


def evaluated(model):
    """Before anything is recorded; the root's parameters stay gathered."""
    import torch

    with torch.no_grad():
        models.loss_of(model, 70)


def prefetch(model, forward, backward):
    layers = list(model.layers)
    for index, layer in enumerate(layers):
        layer.set_modules_to_forward_prefetch(layers[index + 1:index + 1 + forward])
        if backward:
            layer.set_modules_to_backward_prefetch(layers[max(0, index - backward):index][::-1])


def without_all_reduce(model, step):
    """Hybrid sharding: the first micro-batch is reduce-scattered but not all-reduced."""
    return in_parts(model, step, model.set_requires_all_reduce)


def asynchronous(model):
    model._set_unshard_async_op(True)


def twice(model):
    model.passes = [0, 1, 1, 2, 0]


def keep_embedding(model):
    model.embedding.set_unshard_in_backward(False)


def keep_inputs(model, inputs):
    model.set_reduce_scatter_max_input_buffers(inputs)


# The step as predicted from the settings: its events are those of a recording; others, but a plan of them serves the
# step; or it does not (a module that runs twice, a backward that is not the last).
EXACT, ENOUGH, UNFORESEEN = "exact", "enough", "unforeseen"

# name: kind, options of build(), changes after it, one step, ranks, prediction
CASES = {
    "uniform": ("uniform", {}, None, models.plain_step, 2, EXACT),
    "sizes": ("sizes", {}, None, models.plain_step, 2, EXACT),
    "mixed_precision": ("sizes", {"mixed": "both"}, None, models.plain_step, 2, EXACT),
    "reduced_as_is": ("sizes", {"mixed": "params"}, None, models.plain_step, 2, EXACT),
    "packed_dtypes": ("dtypes", {}, None, models.plain_step, 2, EXACT),
    "experts_nested": ("experts", {}, None, models.plain_step, 2, EXACT),
    "frozen": ("frozen", {}, None, models.plain_step, 2, EXACT),
    "frozen_first": ("frozen_first", {}, None, models.plain_step, 2, EXACT),
    "embedding_alone": ("embedding", {}, None, models.plain_step, 2, EXACT),
    "tied": ("tied", {}, None, models.plain_step, 2, EXACT),
    "modules_together": ("together", {}, None, models.plain_step, 2, EXACT),
    "keeps_after_forward": ("sizes", {"reshard_after_forward": False}, None, models.plain_step, 2, EXACT),
    "recompute": ("recompute", {}, None, models.plain_step, 2, EXACT),
    "recompute_around": ("recompute_around", {}, None, models.plain_step, 2, EXACT),
    "prefetch_2": ("sizes", {}, (prefetch, 2, 0), models.plain_step, 2, EXACT),
    "prefetch_2_both_ways": ("sizes", {}, (prefetch, 2, 2), models.plain_step, 2, EXACT),
    "asynchronous": ("sizes", {}, (asynchronous,), models.plain_step, 2, EXACT),
    "not_gathered_in_backward": ("embedding", {}, (keep_embedding,), models.plain_step, 2, EXACT),
    "accumulation": ("sizes", {}, None, accumulate, 2, ENOUGH),
    "several_backwards": ("sizes", {}, None, not_the_last, 2, UNFORESEEN),
    "evaluation_between": ("sizes", {}, None, with_evaluation, 2, ENOUGH),
    "evaluation_before": ("sizes", {}, (evaluated,), models.plain_step, 2, EXACT),
    "keeps_after_backward": ("sizes", {}, (keep_a_layer,), accumulate_with_a_layer_kept, 2, ENOUGH),
    "twice": ("repeated", {}, (twice,), models.plain_step, 2, UNFORESEEN),
    "hybrid_sharding": ("sizes", {"mesh": "hybrid", "mixed": "both"}, None, models.plain_step, 4, EXACT),
    "hybrid_accumulation": ("sizes", {"mesh": "hybrid"}, None, without_all_reduce, 4, UNFORESEEN),
    "reshards_to_two": ("uniform", {"reshard_after_forward": 2}, None, models.plain_step, 4, EXACT),
}


if models.has_meshes():  # 2.12
    CASES["several_groups"] = "meshes", {}, None, models.plain_step, 2, EXACT
    CASES["several_groups_prefetched"] = "meshes", {}, (prefetch, 1, 1), models.plain_step, 2, EXACT
if hasattr(models.FSDPModule, "set_reduce_scatter_max_input_buffers"):  # 2.13
    CASES["three_reductions"] = "sizes", {}, (keep_inputs, 3), models.plain_step, 2, EXACT
    CASES["two_reductions_of_groups"] = "meshes", {"mixed": "both"}, (keep_inputs, 2), models.plain_step, 2, EXACT


POLICIES = {"uniform": ("scheduled", "max", "fixed", "dynamic"), "sizes": ("scheduled", "max", "fixed", "dynamic"),
            "experts_nested": ("scheduled", "max"), "twice": ("scheduled", "max"),
            "mixed_precision": ("scheduled", "max")}


def made(name):
    kind, options, change = CASES[name][:3]
    model = models.build(kind, **options)
    if change is not None:
        change[0](model, *change[1:])
    return model


def compare(name):
    """Plain FSDP2 against a step that is recorded with the rest from a pool, and against whole runs with a pool; with
    poison, and with released memory out of reach where the plan is made from the settings."""
    from bucketpool.torch import fsdp2

    one_step, prediction = CASES[name][3], CASES[name][5]
    plain = models.train(made(name), STEPS, one_step)
    model, kept, pools = made(name), [], {}

    def recorded_first(module, step):
        if kept:
            return one_step(module, step)
        with fsdp2.record(module) as recording:
            losses = one_step(module, step)
        kept.extend([recording, fsdp2.attach(module, recording, poison=True)])
        return losses

    def answer(attached, pooled):
        return {"same": models.same(plain, pooled), "plan": attached.plan.bytes,
                "slabs": sum(s.planned_bytes for s in attached.pool.slabs),
                "served": dict(attached.served), "live": len(attached.live()),
                "in_use": attached.pool.statistics.peak_live_bytes}

    predicted = fsdp2.predict(model)
    pooled = models.train(model, STEPS, recorded_first)
    recording, attached = kept
    pools["scheduled", "recorded"] = answer(attached, pooled)
    attached.detach()
    for policy in POLICIES.get(name, ("scheduled",)):
        source = None if policy == "scheduled" else recording
        if policy == "scheduled" and prediction == UNFORESEEN:
            continue
        model = made(name)
        with fsdp2.attach(model, source, policy=policy, poison=True,
                          guard="on" if source is None else "off") as attached:
            pooled = models.train(model, STEPS, one_step)
            pools[policy, "predicted" if source is None else "recorded"] = answer(attached, pooled)
    return {"plain_peak": recording.joint_peak_bytes, "exact": predicted.events == recording.events, "pools": pools}


def compare_all(names):
    """Answers by name; the traceback instead where a case fails, and nothing behind it, as its ranks are no longer
    together."""
    import traceback

    answers = {}
    for name in names:
        try:
            answers[name] = compare(name)
        except Exception:
            answers[name] = traceback.format_exc()
            break
    return answers


@pytest.fixture(scope="module")
def answers():
    """Results of all cases, by rank: one process group of two ranks, one of four."""
    found = {}
    for ranks in (2, 4):
        names = [name for name in CASES if CASES[name][4] == ranks]
        by_rank = process_group.run(compare_all, names, ranks=ranks, seconds=240)
        found.update({name: [one.get(name, "not run: a case before it failed") for one in by_rank] for name in names})
    return found


@pytest.mark.parametrize("name", CASES)
def test_bits_and_memory(name, answers):
    for rank, one in enumerate(answers[name]):
        assert isinstance(one, dict), f"rank {rank}: {one}"
    first = answers[name][0]
    for (policy, source), pool in first["pools"].items():
        print(
            f"{name}: plain FSDP2 held {first['plain_peak']} bytes at most, the pool of policy {policy} ({source}) has"
            f" {pool['plan']}"
        )
    for one in answers[name]:
        for which, pool in one["pools"].items():
            assert pool["same"], f"{name} {which}: the bits differ from plain FSDP2's"
            assert pool["live"] == 0 and pool["served"]["param"] > 0 and pool["served"]["grad"] > 0
            assert pool["slabs"] == (0 if which[0] == "dynamic" else pool["plan"])
            assert pool["plan"] == first["pools"][which]["plan"], "ranks have other plans"
        assert one["exact"] == (CASES[name][5] == EXACT), "whether the settings alone tell the events"
    scheduled = first["pools"]["scheduled", "recorded"]["plan"]
    assert first["plain_peak"] <= scheduled, "less than was in use at once"
    assert scheduled <= first["plain_peak"] * 1.01 + 2048, "more than what was in use at once, with its rounding"
    assert scheduled <= first["pools"].get(("max", "recorded"), {"plan": scheduled})["plan"]
