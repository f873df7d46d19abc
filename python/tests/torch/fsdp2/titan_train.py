# SPDX-License-Identifier: Apache-2.0
"""torchtitan's debug model on a CPU, for one rank of torchrun.

    torchrun ... titan_train.py FOLDER [FLAG]...

Writes losses, gradient norms and a digest of the weights into FOLDER/RANK.json. torchtitan trains on GPUs:
torch.cpu lacks calls that it makes, gloo has no sums with a factor, and FlexAttention of 0.3 has no backward. These
are replaced; everything else is torchtitan's.
"""

import hashlib
import json
import os
import sys
import types

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.fsdp import FSDPModule
from torch.nn.attention.flex_attention import create_mask

torch._utils._get_available_device_type = lambda: "cpu"
torch.cpu.get_device_name = lambda *_: "cpu"
torch.cpu.get_device_properties = lambda *_: types.SimpleNamespace(total_memory=1 << 34)
torch.cpu.get_device_capability = lambda *_: (0, 0)
torch.cpu.memory_stats = lambda *_: {}
torch.cpu.reset_peak_memory_stats = torch.cpu.empty_cache = lambda: None
torch.cpu.current_device = lambda: 0

from torchtitan.config import ConfigManager

HAS_MODULES = hasattr(ConfigManager, "_load_config")  # 0.3: --module and --config
STEPS = 3


def arguments(folder):
    data = os.path.join(folder, "data")
    common = ["--training.seq_len", "48", "--training.local_batch_size", "2", "--training.global_batch_size", "8",
              "--training.steps", str(STEPS), "--debug.seed", "3", "--debug.deterministic", "--metrics.log_freq", "1"]
    if HAS_MODULES:
        return ["--module", "llama3", "--config", "llama3_debugmodel", "--hf_assets_path", folder, "--dump_folder",
                folder, "--dataloader.dataset_path", data, *common]
    return ["--model.name", "llama3", "--model.flavor", "debugmodel", "--model.hf_assets_path", folder,
            "--job.dump_folder", folder, "--training.dataset", "c4_test", "--training.dataset_path", data, *common]


def dense(q, k, v, *, block_mask, scale, enable_gqa, **_):
    mask = create_mask(block_mask.mask_mod, q.shape[0], 1, q.shape[2], k.shape[2], device="cpu")
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale, enable_gqa=enable_gqa), None


def pools():
    """Describes the pools, and detaches them."""
    titan = sys.modules.get("bucketpool.torch.titan")
    found = []
    for attached in titan.attached if titan is not None else []:
        plan = attached.plan
        found.append({"policy": plan.policy, "bytes": plan.bytes, "bound": plan.lower_bound_bytes,
                      "live": attached.live(), "served": attached.served, "plain": sum(attached.fallbacks.values()),
                      "replans": len(attached.replans)})
        attached.detach()
    return found


def train(folder, flags):
    config = ConfigManager().parse_args([*arguments(folder), *flags])
    if HAS_MODULES:
        from torchtitan.models.common.attention import FlexAttention

        trainer = config.build()
        FlexAttention._compiled_flex_attn = staticmethod(dense)
    else:
        from torchtitan.train import Trainer

        trainer = Trainer(config)
    for part in trainer.model_parts:
        for module in part.modules():
            if isinstance(module, FSDPModule):
                module.set_force_sum_reduction_for_comms(True)
    seen = []
    trainer.metrics_processor.log = lambda step, *values, **_: seen.append([value.hex() for value in values[:3]])
    trainer.train()
    digest = hashlib.sha256()
    for part in trainer.model_parts:
        for parameter in part.parameters():
            digest.update(parameter.to_local().detach().contiguous().view(torch.uint8).numpy().tobytes())
    trainer.close()
    dist.destroy_process_group()
    return {"steps": seen, "weights": digest.hexdigest(), "pools": pools()}


def main(folder, *flags):
    found = train(folder, flags)
    with open(os.path.join(folder, os.environ["RANK"] + ".json"), "w", encoding="utf-8") as file:
        json.dump(found, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
