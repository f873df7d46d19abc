# SPDX-License-Identifier: Apache-2.0
"""FSDP2's pool is offloaded between steps: the device has its memory, and later steps have the same bits."""

import fsdp2_models as models
import process_group

STEPS = 3


def offloaded_between_steps():
    """Answers of a rank: the bits are those of plain FSDP2, bytes of the device in each phase, the error of a step
    while the pool is offloaded.
    """
    import bucketpool as bp
    from bucketpool.torch import fsdp2

    plain = models.train(models.build("sizes"), STEPS)
    model, used, refusals = models.build("sizes"), [], []
    with fsdp2.attach(model, poison=True, on_mismatch="error") as attached, bp.Offload(attached.pool) as offload:
        groups = [group.name for group in offload.groups]

        def usage():
            used.append(attached.device.usage.committed_bytes)

        def step(module, number):
            losses = models.plain_step(module, number)
            usage()
            with offload.offloaded(discard=groups):
                usage()
                try:
                    models.loss_of(module, number)
                except bp.ScheduleError as error:
                    refusals.append(str(error))
            return losses

        pooled = models.train(model, STEPS, step)
        try:
            offload.begin(groups[0], keep=True)
        except bp.Unsupported as error:
            refusals.append(str(error))
        slab = attached.pool.statistics.slab_bytes
    return models.same(plain, pooled), used, slab, groups, refusals


def test_offload_between_steps():
    for same, used, slab, groups, refusals in process_group.run(offloaded_between_steps, ranks=2):
        assert same and groups == ["joint"]
        assert used == [slab, 0] * STEPS and slab > 0
        assert len(refusals) == STEPS + 1
        assert all("is offloaded" in refusal and "restore" in refusal for refusal in refusals[:-1]), refusals
        assert "joint" in refusals[-1]
