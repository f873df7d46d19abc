# SPDX-License-Identifier: Apache-2.0
"""transformers' Trainer with FSDP2 on two ranks (gloo), without and with the callback: the same bits."""

import pytest

pytest.importorskip("transformers")
pytest.importorskip("accelerate")

import process_group  # noqa: E402


def runs(folder):
    import torch
    import torch.distributed as dist
    from accelerate import FullyShardedDataParallelPlugin
    from accelerate.utils import DistributedType
    from torch.distributed.fsdp import FSDPModule
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

    from bucketpool.torch.trainer import PoolCallback

    class OnCpu(Trainer):
        """accelerate chooses FSDP for kinds of GPUs alone; the rest is as on a GPU."""

        def create_accelerator_and_postprocess(self):
            super().create_accelerator_and_postprocess()
            self.accelerator.state.fsdp_plugin = FullyShardedDataParallelPlugin(
                fsdp_version=2, auto_wrap_policy="transformer_based_wrap",
                transformer_cls_names_to_wrap=["LlamaDecoderLayer"], cpu_ram_efficient_loading=False)
            self.accelerator.state.distributed_type = DistributedType.FSDP
            self.is_fsdp_enabled = True

    generator = torch.Generator().manual_seed(3)
    data = [{"input_ids": ids, "labels": ids} for ids in torch.randint(0, 64, (24, 8), generator=generator)]

    def train(*callbacks):
        torch.manual_seed(5)
        model = LlamaForCausalLM(LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=3,
                                             num_attention_heads=2, num_key_value_heads=2))
        arguments = TrainingArguments(folder, per_device_train_batch_size=2, gradient_accumulation_steps=2, max_steps=7,
                                      logging_steps=1, save_strategy="no", report_to=[], use_cpu=True, seed=5,
                                      disable_tqdm=True, eval_strategy="steps", eval_steps=2)
        trainer = OnCpu(model, arguments, train_dataset=data, eval_dataset=data[:4], callbacks=list(callbacks))
        trainer.train()
        for module in trainer.model.modules():
            if isinstance(module, FSDPModule):  # the last evaluation left the root gathered
                module.reshard()
        weights = [each.to_local().clone() for each in trainer.model.parameters()]
        return trainer.state.log_history, weights

    plain_log, plain = train()
    callback = PoolCallback(poison=True)
    log, pooled = train(callback)
    dist.barrier()
    losses = [[each[key] for each in history for key in ("loss", "eval_loss", "grad_norm") if key in each]
              for history in (plain_log, log)]
    return (losses[0] == losses[1] and len(losses[0]) > 5, all(map(torch.equal, plain, pooled)), callback.report,
            [each.get("pool_plain_buffers") for each in log if "loss" in each], callback.attached is None)


def test_same_bits(tmp_path):
    for losses, weights, report, plain_buffers, detached in process_group.run(runs, str(tmp_path), ranks=2):
        assert losses and weights and detached
        assert "served: " in report and plain_buffers[-1] is not None, report
        assert plain_buffers[-1] == plain_buffers[-3] <= 2, (plain_buffers, report)  # evaluations change what overlaps


def test_not_sharded():
    import torch

    import bucketpool as bp
    from bucketpool.torch.trainer import PoolCallback

    with pytest.raises(bp.InvalidArgument, match="fsdp_version=2"):
        PoolCallback().on_step_begin(None, None, None, model=torch.nn.Linear(2, 2))
