# SPDX-License-Identifier: Apache-2.0
"""Steps that the plan does not fit: losses as without a pool, and a pool that fits the next pass."""

import fsdp2_models as models
import process_group

STEPS = 3


def kinds_of_steps():
    """Other sizes, layers, orders and dtypes than planned, bit for bit as without a pool."""
    import torch

    from bucketpool.torch import fsdp2

    answers = {}

    def compare(name, kind, timelines=None, change=None, passes=None, **options):
        plain, model = models.build(kind), models.build(kind)
        if passes:
            plain.passes = model.passes = passes[0]
        with fsdp2.attach(model, timelines, poison=True, **options) as attached:
            same, plans = True, [attached.plan.bytes]
            for number in range(STEPS):
                for each in (plain, model):
                    if passes:
                        each.passes = passes[number % len(passes)]
                    if change is not None:
                        change(each, number)
                same = same and models.same(models.train(plain, 1), models.train(model, 1))
                plans.append(attached.plan.bytes)
            before = dict(attached.fallbacks)
            models.train(plain, 1), models.train(model, 1)
            answers[name] = {"same": same, "plans": plans, "replans": list(attached.replans), "settled": not attached.live()
                             and before == attached.fallbacks, "report": attached.report(),
                             "served": dict(attached.served)}

    small = models.build("uniform")
    with fsdp2.record(small) as of_small:
        models.train(small, 1)
    compare("larger", "sizes", of_small)
    compare("order", "sizes", passes=([3, 1, 0, 2],))
    compare("repeated", "repeated", passes=([0, 1, 1, 2],))
    compare("alternating", "sizes", passes=([0, 1, 2, 3], [0, 2], [3, 2, 1, 0]))

    def dtype(model, number):
        from torch.distributed.fsdp import FSDPModule

        for module in model.modules():
            if isinstance(module, FSDPModule):
                for group in [module._get_fsdp_state()._fsdp_param_group]:
                    if group is not None:
                        group._reduce_dtype = torch.bfloat16 if number == 1 else None

    compare("dtype", "uniform", change=dtype)
    return answers


def test_kinds_of_steps():
    for answers in process_group.run(kinds_of_steps, ranks=2):
        for name, answer in answers.items():
            assert answer["same"], (name, answer)
            assert answer["replans"] and len(answer["replans"]) <= STEPS, (name, answer)
            assert "planned anew: " in answer["report"]
        for name in ("larger", "order", "repeated"):
            assert answers[name]["settled"] and len(answers[name]["replans"]) == 1, (name, answers[name])
        assert "elements of" in answers["larger"]["replans"][0] and "another dtype" not in answers["larger"]["report"]


def limits():
    """A pool whose addresses others know stays; plain mode never plans; a plan of another module is replaced."""
    import bucketpool as bp
    from bucketpool.torch import fsdp2

    answers, model = {}, models.build("sizes")
    model.passes = [3, 1, 0, 2]
    plain = models.train(made("sizes"), 2)
    with fsdp2.attach(model) as attached, bp.Offload(attached.pool):
        pool = attached.pool
        answers["kept"] = models.same(plain, models.train(model, 2)) and pool is attached.pool and attached.replans == []
        answers["counted"] = sum(attached.fallbacks.values()) > 0
    model = made("sizes")
    with fsdp2.attach(model, on_mismatch="plain") as attached:
        answers["plain"] = models.same(plain, models.train(model, 2)) and attached.replans == []
    with fsdp2.attach(models.build("uniform")) as other:
        foreign = other.plan
    model = made("sizes")
    with fsdp2.attach(model, plan=foreign) as attached:
        answers["foreign"] = attached.replans[0].startswith("the given plan") and models.same(plain, models.train(model, 2))
    model, most = models.build("sizes"), 40
    with fsdp2.attach(model) as attached:  # a module that never does the same twice
        orders = [[0], [1], [2], [3]] + [[a, b, c] for a in range(4) for b in range(4) for c in range(4)]
        for passes in orders[:most]:
            model.passes = passes
            models.train(model, 1)
        answers["many"] = len(attached.replans)
    return answers


def made(kind):
    model = models.build(kind)
    model.passes = [3, 1, 0, 2]
    return model


def test_limits():
    for answers in process_group.run(limits, ranks=2):
        many = answers.pop("many")
        assert all(answers.values()), answers
        assert 1 <= many <= 16
