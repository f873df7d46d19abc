# SPDX-License-Identifier: Apache-2.0
"""A small FSDP2 training on any number of ranks, plain and with its communication buffers in a pool:

    torchrun --nproc-per-node 2 examples/fsdp2_train.py --policy scheduled

NCCL where the machine has GPUs, which ranks share where there are too few; gloo on CPUs. The losses of both are printed
in full, and what both held for communication."""

import argparse
import os
import socket

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from bucketpool.torch import fsdp2


def placement(local_rank, local_ranks, gpus):
    """Backend, device and environment of a rank, decided alike by all ranks of a machine. NCCL refuses two ranks of one
    host on one GPU. So ranks that share GPUs have a host identifier each, and communicate through sockets."""
    if gpus == 0:
        return "gloo", torch.device("cpu"), {}
    device = torch.device("cuda", local_rank % gpus)
    if gpus >= local_ranks:
        return "nccl", device, {}
    return "nccl", device, {"NCCL_HOSTID": f"{socket.gethostname()}-{local_rank}", "NCCL_SOCKET_IFNAME": "lo",
                            "NCCL_NET": "Socket", "NCCL_IB_DISABLE": "1", "NCCL_MNNVL_ENABLE": "0"}


def prepare(device, environment):
    """Before the process group is made. Losses are compared bit for bit, so kernels have to be deterministic."""
    os.environ.update(environment)
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    if device.type == "cuda":
        torch.cuda.set_device(device)


class Layer(nn.Module):
    """Attention in even layers, MLPs of growing size in odd ones."""

    def __init__(self, index, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        hidden = 2 * width * (1 + index)
        self.mixer = nn.MultiheadAttention(width, 4, batch_first=True) if index % 2 == 0 else nn.Sequential(
            nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))

    def forward(self, x):
        y = self.norm(x)
        attends = isinstance(self.mixer, nn.MultiheadAttention)
        return x + (self.mixer(y, y, y, need_weights=False)[0] if attends else self.mixer(y))


class Model(nn.Module):
    def __init__(self, layers, width, words):
        super().__init__()
        self.embedding, self.head = nn.Embedding(words, width), nn.Linear(width, words, bias=False)
        self.layers = nn.ModuleList(Layer(index, width) for index in range(layers))

    def forward(self, tokens):
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def sharded(options, device):
    torch.manual_seed(0)
    model = Model(options.layers, options.width, options.words).to(device)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model.layers:
        fully_shard(layer, mp_policy=policy)
    return fully_shard(model, mp_policy=policy)


class Trainer:
    """A model, its optimizer and its losses."""

    def __init__(self, options, device):
        self.model, self.words, self.device = sharded(options, device), options.words, device
        self.optimizer, self.losses = torch.optim.Adam(self.model.parameters(), lr=1e-3), []

    def steps(self, count):
        for _ in range(count):
            generator = torch.Generator().manual_seed(1000 * len(self.losses) + dist.get_rank())
            tokens = torch.randint(0, self.words, (4, 33), generator=generator).to(self.device)
            logits = self.model(tokens[:, :-1]).float()
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.losses.append(loss.item())


def parsed(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policy", default="scheduled", choices=["scheduled", "max", "fixed", "dynamic"])
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--words", type=int, default=512)
    parser.add_argument("--register", action="store_true", help="register the pool with NCCL (GPUs)")
    return parser.parse_args(arguments)


def main():
    options = parsed()
    local_rank, local_ranks = (int(os.environ.get(name, usual)) for name, usual in (("LOCAL_RANK", 0), ("LOCAL_WORLD_SIZE", 1)))
    backend, device, environment = placement(local_rank, local_ranks, torch.cuda.device_count())
    prepare(device, environment)
    dist.init_process_group(backend)

    plain, pooled = Trainer(options, device), Trainer(options, device)
    plain.steps(options.steps)
    with fsdp2.record(pooled.model) as recording:  # the first step has plain memory, and is recorded
        pooled.steps(1)
    with fsdp2.attach(pooled.model, recording, policy=options.policy) as attached:
        if options.register:
            print(attached.register().report())
        pooled.steps(options.steps - 1)
        if dist.get_rank() == 0:
            for step, (one, other) in enumerate(zip(plain.losses, pooled.losses)):
                print(f"step {step}: loss {one!r} plain, {other!r} with the pool")
            print(f"plain FSDP2 held {recording.joint_peak_bytes} bytes at most: {recording.peak_bytes['param']} "
                  f"gathered, {recording.peak_bytes['grad']} to be reduced")
            print(attached.report())
    dist.destroy_process_group()
    if plain.losses != pooled.losses:
        raise SystemExit("the losses differ")


if __name__ == "__main__":
    main()
