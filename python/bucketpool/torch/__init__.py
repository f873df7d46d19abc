# SPDX-License-Identifier: Apache-2.0
"""Adapters of bucketpool for PyTorch; import each module by name.

    bucketpool.torch.fsdp2           communication buffers of FSDP2 from a pool
    bucketpool.torch.megatron_fsdp   double buffers of Megatron-FSDP from a pool
    bucketpool.torch.deepspeed       communication buffers of DeepSpeed ZeRO-3 from a pool
    bucketpool.torch.steps           the plan of a whole training step, served in any program
    bucketpool.torch.trainer         both in transformers' Trainer
    bucketpool.torch.titan           both in torchtitan, by one flag
    bucketpool.torch.logprob         log-probabilities and entropies, also with a split vocabulary
    bucketpool.torch.lm_head         the same from hidden states and the head's weight, without logits
    bucketpool.torch.linear_loss     their losses with gradients from the same call, for fine-tuning and policy gradients
    bucketpool.torch.distillation    divergences from a teacher, and its top-k log-probabilities
    bucketpool.torch.cp              packed sequences on context-parallel ranks
    bucketpool.torch.loss            their loss and its statistics over all ranks, and logit ranges
    bucketpool.torch.snapshots       memory snapshots of pools and of PyTorch's allocator in chosen steps
    bucketpool.torch.fit             whether a training fits on a GPU, and its largest micro-batch, without one
    bucketpool.torch.trace           the memory of a training step, recorded without a GPU
    bucketpool.torch.allocator       segments of torch.cuda.MemPool in a slab of the library
    bucketpool.torch.comm            process groups as communicators: trust(), set_timeout()
    bucketpool.torch.nccl            registration of a pool with NCCL communicators of process groups
    bucketpool.torch.capture         torch.cuda.graph with a pool inside
"""

from typing import Any


def __getattr__(name: str) -> Any:
    """bucketpool.torch.fit, when it is first used: adapters need little of it."""
    if name == "fit":
        from .fitting import fit
        return fit
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
