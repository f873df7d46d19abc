# SPDX-License-Identifier: Apache-2.0
"""Unsharded parameters of FSDP2 from a pool, on two ranks (gloo): the same bits, constant addresses, refusals."""

import fsdp2_models as models
import process_group

KINDS = ("uniform", "sizes", "experts", "recompute", "tied", "frozen", "together", "dtypes")


def addresses(model, seen):
    """Notes where the parameters of each layer are in forward and backward."""
    for index, layer in enumerate(model.layers):
        layer.norm.register_forward_pre_hook(lambda module, _, index=index: seen.setdefault(index, set()).add(
            module.weight.data_ptr()))
        layer.norm.register_full_backward_hook(lambda module, *_, index=index: seen[index].add(
            module.weight.data_ptr()))


def trained(kind, mixed, policy, **options):
    from bucketpool.torch import fsdp2

    plain, model = models.train(models.build(kind, mixed=mixed), 3), models.build(kind, mixed=mixed)
    held = fsdp2.attach_parameters(model, policy=policy, **options)
    seen, slabs = {}, held.pool.slabs
    if kind == "sizes":
        addresses(model, seen)
    with fsdp2.attach(model, poison=True) as buffers:
        same = models.same(plain, models.train(model, 3))
    inside = all(any(slab.address <= address < slab.address + slab.bytes for slab in slabs)
                 for of_layer in seen.values() for address in of_layer)
    found = {"same": same, "served": held.served, "bytes": held.plan.bytes, "peak": held.peak_bytes,
             "one address": all(len(of_layer) == 1 for of_layer in seen.values()), "inside": inside,
             "live": len(held.pool.live()), "plain": dict(buffers.fallbacks)}
    held.detach()
    held.detach()
    models.loss_of(model, 5).backward()  # PyTorch's memory again
    return found


def all_kinds():
    return {**{kind: trained(kind, "", "scheduled") for kind in KINDS},
            "mixed": trained("sizes", "both", "scheduled"), "max": trained("sizes", "", "max"),
            "guarded": trained("sizes", "", "scheduled", guard="on")}


def test_same_bits():
    for found in process_group.run(all_kinds):
        for kind, answers in found.items():
            assert answers["same"], kind
            assert answers["one address"] and answers["inside"] and answers["live"] == 0 and not answers["plain"], kind
            assert answers["served"] > 9 and answers["bytes"] >= answers["peak"], (kind, answers)
        assert found["sizes"]["bytes"] == found["sizes"]["peak"] < found["max"]["bytes"]


def after_steps():
    """Attached in the middle of training, between micro-batches whose gradients are not reduced yet."""
    from bucketpool.torch import fsdp2

    results = []
    for pooled in (False, True):
        model = models.build("sizes")
        model.set_requires_gradient_sync(False)
        models.loss_of(model, 0).backward()
        held = fsdp2.attach_parameters(model) if pooled else None
        models.loss_of(model, 1).backward()
        if held is not None:
            held.detach()
        model.set_requires_gradient_sync(True)
        models.loss_of(model, 2).backward()
        results.append([parameter.grad.to_local().clone() for parameter in model.parameters()])
    return models.same(*results)


def test_between_micro_batches():
    assert all(process_group.run(after_steps))


def refused():
    import bucketpool as bp
    from bucketpool.torch import fsdp2

    answers, model = {}, models.build("sizes")

    def attempt(name, function):
        try:
            function()
        except bp.Error as error:
            answers[name] = type(error).__name__, str(error)

    attempt("policy", lambda: fsdp2.attach_parameters(model, policy="dynamic"))
    held = fsdp2.attach_parameters(model)
    attempt("second", lambda: fsdp2.attach_parameters(model))
    model.layers[0].unshard()
    attempt("unsharded", held.detach)
    attempt("order", model.layers[2].unshard)  # two layers at once
    return answers


def test_refusals():
    for answers in process_group.run(refused):
        assert answers["policy"][0] == "InvalidArgument" and "no fixed address" in answers["policy"][1]
        assert answers["second"][0] == "InvalidArgument" and "in a pool" in answers["second"][1]
        assert answers["unsharded"][0] == "ScheduleError" and "layers.0" in answers["unsharded"][1]
        assert answers["order"][0] == "ScheduleError" and "cannot move" in answers["order"][1], answers
