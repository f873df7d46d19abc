# SPDX-License-Identifier: Apache-2.0
"""FSDP2's adapter with other versions of PyTorch: unchecked ones are refused; features of newer ones."""

import pytest

import fsdp2_models as models
import process_group
from test_fsdp2_refusals import said


def unknown_version():
    import torch

    from bucketpool import errors
    from bucketpool.torch import fsdp2

    model, torch.__version__ = models.build(), "2.16.0"
    message = said(errors.Unsupported, fsdp2.attach, model)
    with fsdp2.attach(model, any_version=True):
        models.train(model, 1)
    model.layers[0]._get_fsdp_state()._fsdp_param_group.fsdp_params[0].__dict__.pop("padded_sharded_param_size")
    return message, said(errors.Unsupported, fsdp2.attach, model, any_version=True)


def test_unknown_version():
    for message, blind in process_group.run(unknown_version):
        assert (
            message.startswith("PyTorch 2.16.0: ") and "checked for 2.9, 2.10, 2.11, 2.12, 2.13, 2.14, 2.15;" in message
        )
        assert "FSDPParam has no padded_sharded_param_size" in blind


def symmetric():
    """Allocation in symmetric memory needs GPUs; its setting does not."""
    from torch.distributed.fsdp._fully_shard import _fsdp_collectives

    from bucketpool import errors
    from bucketpool.torch import fsdp2

    model = models.build()
    group = model.layers[0]._get_fsdp_state()._fsdp_param_group
    kind = _fsdp_collectives.SymmMemAllGather
    group._all_gather_comm = kind.__new__(kind)
    message = said(errors.Unsupported, fsdp2.attach, model)
    return message, type(group._all_gather_comm) is kind


@pytest.mark.skipif(not hasattr(models.FSDPModule, "set_symm_mem_for_comm"), reason="PyTorch 2.12 and later have it")
def test_symmetric_memory():
    for message, kept in process_group.run(symmetric):
        assert kept and message.startswith(
            "layers.0: PyTorch owns its buffers, in symmetric memory (set_symm_mem_for_comm)"
        )


def interrupted():
    """Steps that end in an exception in forward and in backward, and the module after reset_iter_state."""
    import torch

    from bucketpool.torch import fsdp2

    class Stop(Exception):
        pass

    def stop(*_arguments):
        raise Stop

    def stopped(model, where):
        remove = where(model).remove
        try:
            models.loss_of(model, 7).backward()
        except Stop:
            pass
        else:
            raise AssertionError("nothing stopped it")
        remove()
        model.reset_iter_state()

    def in_forward(model):
        return model.layers[2].up.register_forward_hook(stop)

    def in_backward(model):
        return model.layers[1].up.register_full_backward_hook(stop)

    seen = []
    plain, model = models.build("sizes"), models.build("sizes")
    with fsdp2.attach(model, poison=True) as attached:
        for one in (plain, model):
            seen.append(models.train(one, 1))
            for where in (in_forward, in_backward):
                stopped(one, where)
                seen[-1] += models.train(one, 1)
        return models.same(*seen), attached.live(), torch.isfinite(seen[1][0]).item()


@pytest.mark.skipif(not hasattr(models.FSDPModule, "reset_iter_state"), reason="PyTorch 2.13 and later have it")
def test_reset_after_exception():
    for same, live, finite in process_group.run(interrupted):
        assert same and live == [] and finite


def any_gradient():
    """A parameter that takes gradients of any dtype, which are reduced in it."""
    import torch
    from torch import nn
    from torch.distributed.fsdp import fully_shard

    from bucketpool import errors
    from bucketpool.torch import fsdp2

    model = nn.Linear(8, 8)
    model.weight.grad_dtype = None
    fully_shard(model)
    message = said(errors.Unsupported, fsdp2.attach, model)
    with fsdp2.record(model) as recording:
        model(torch.ones(2, 8)).sum().backward()
    with fsdp2.attach(model, recording, poison=True) as attached:
        model(torch.ones(2, 8)).sum().backward()
        return message, attached.served["grad"]


@pytest.mark.skipif(not models.follows_grad_dtype(),
                    reason="FSDP2 reduces in param_dtype or reduce_dtype before PyTorch 2.15")
def test_unknown_gradient_dtype():
    for message, served in process_group.run(any_gradient):
        assert message.startswith("(root): it reduces in the dtype of its gradients") and served == 1
