"""The rank that runs a page of the documents, and small models and tensors for the pages, which name them in their
`given` comments."""

import contextlib
import functools
import os
import sys
import warnings

import torch
import torch.distributed as dist

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..")
sys.path.insert(0, os.path.join(ROOT, "tests", "cli"))
import pages  # noqa: E402

UNTIL_THE_END = contextlib.ExitStack()


def run_page(page, folder, build):
    """Runs the blocks of a page that need PyTorch as one rank of a group; their lines."""
    warnings.simplefilter("ignore")
    folder = os.path.join(folder, str(dist.get_rank()))
    os.mkdir(folder)
    pages.fill(folder, build)
    namespace, blocks = {"__name__": page}, pages.left_to_torch(pages.documents()[page])
    for block in blocks:
        if block.language == "python":
            pages.run_python(block, folder, namespace)
        else:
            pages.run_shell(block, folder, pages.environment(build))
    return [block.line for block in blocks]


def logits_of_a_rank():
    """Logits of this rank's columns, targets, the group of all ranks, and a mask."""
    torch.manual_seed(3)
    targets = torch.randint(0, 32 * dist.get_world_size(), (4, 6))
    return torch.randn(4, 6, 32, requires_grad=True), targets, dist.group.WORLD, torch.ones(4, 6, dtype=torch.bool)


def micro_batches_of_a_rank(cp_group):
    """Two packed batches (ids, mask, cu_seqlens), the same on the ranks of a CP group, and a small model."""
    torch.manual_seed(4)
    batches = [(torch.randint(0, 32, (19, )), torch.rand(19) < 0.8, torch.tensor([0, 7, 8, 19])) for _ in range(2)]
    return batches, torch.nn.Sequential(torch.nn.Embedding(32, 8), torch.nn.Linear(8, 32))


def released_trl():
    """The released TRL is importable."""
    import adopt_releases

    adopt_releases.trl()


@functools.lru_cache(maxsize=None)
def without_gpus():
    """From now on fully_shard_model works on a CPU, as one of 64 ranks of the fake process group."""
    import megatron_cpu
    import megatron_fsdp

    dist.destroy_process_group()
    UNTIL_THE_END.enter_context(megatron_cpu.without_cuda())
    UNTIL_THE_END.enter_context(megatron_cpu.fake_ranks(64))
    whole = megatron_fsdp.fully_shard_model

    def on_cpu(module, **options):
        mesh = dist.device_mesh.init_device_mesh("cpu", (64, 1), mesh_dim_names=("dp", "tp"))
        experts = dist.device_mesh.init_device_mesh("cpu", (8, 8, 1), mesh_dim_names=("ep", "dp", "tp"))
        return whole(module, device_mesh=mesh, dp_shard_dim="dp", tp_dim="tp", expt_device_mesh=experts,
                     device=megatron_cpu.CPU, calculate_per_token_loss=True, **options)

    megatron_fsdp.fully_shard_model = on_cpu
    return megatron_cpu


def megatron_on_cpu():
    """A module and the class of its units."""
    megatron_cpu = without_gpus()
    return megatron_cpu.random_stack(3), megatron_cpu.Unit


def deepspeed_on_cpu():
    """A model, a configuration of ZeRO-3, batches, and a function of an engine and a batch."""
    os.environ.update(DS_ACCELERATOR="cpu", LOCAL_RANK=str(dist.get_rank()))
    import deepspeed.ops
    from fsdp2_models import Block, Stack

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # a compiled copy of gloo's collectives
    zero = {"stage": 3, "stage3_prefetch_bucket_size": 2000, "stage3_param_persistence_threshold": 30,
            "stage3_max_live_parameters": 6000, "stage3_max_reuse_distance": 0, "reduce_bucket_size": 5000}
    config = {"train_micro_batch_size_per_gpu": 3, "zero_optimization": zero,
              "optimizer": {"type": "Adam", "params": {"torch_adam": True}}}

    def loss_of(engine, batch):
        tokens = torch.full((3, 5), batch)
        return torch.nn.functional.cross_entropy(engine(tokens).flatten(0, 1), tokens.flatten())

    return Stack([Block(48), Block(96)]), config, range(6), loss_of
