"""Small models for the tests of FSDP2, with all kinds of sharding, and their training."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.utils.checkpoint import checkpoint

WIDTH = 24


class Block(nn.Module):
    """A residual pair of linear layers with a configurable hidden size; odd sizes shard unevenly."""

    def __init__(self, hidden, recompute=False):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, hidden), nn.Linear(hidden, WIDTH)
        self.recompute = recompute

    def inner(self, x):
        return self.down(torch.relu(self.up(self.norm(x))))

    def forward(self, x):
        return x + (checkpoint(self.inner, x, use_reentrant=False) if self.recompute else self.inner(x))


class Experts(nn.Module):
    """A router and experts that are a separate sharded unit inside the layer."""

    def __init__(self, count, hidden):
        super().__init__()
        self.router = nn.Linear(WIDTH, count)
        self.experts = nn.ModuleList(Block(hidden) for _ in range(count))

    def forward(self, x):
        weights = self.router(x).softmax(-1)
        return x + sum(weights[..., i:i + 1] * expert(x) for i, expert in enumerate(self.experts))


class Stack(nn.Module):
    """Embedding, layers, head. passes: the order of layers in a forward, with repetitions or omissions."""

    def __init__(self, layers, tied=False):
        super().__init__()
        self.embedding = nn.Embedding(40, WIDTH)
        self.layers = nn.ModuleList(layers)
        self.head = nn.Linear(WIDTH, 40, bias=False)
        if tied:
            self.head.weight = self.embedding.weight
        self.passes = list(range(len(layers)))
        self.recompute = False  # of whole layers, with the hooks of their sharding

    def forward(self, tokens):
        x = self.embedding(tokens)
        for index in self.passes:
            x = checkpoint(self.layers[index], x, use_reentrant=False) if self.recompute else self.layers[index](x)
        return self.head(x)


def has_meshes():
    """Parameters of one module on several meshes, so several groups in it: PyTorch 2.12 and later."""
    from torch.distributed.fsdp._fully_shard import _fsdp_common

    return hasattr(_fsdp_common, "ShardPlacementResult")


def follows_grad_dtype():
    """Reduce-scatters in the grad_dtype of parameters: PyTorch 2.15 and later."""
    from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam

    return hasattr(FSDPParam, "unsharded_grad_dtype")


def on_three_meshes(layer):
    """Of a block the norm on this rank alone, `down` over all ranks by a separate process group, the rest unchanged."""
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp._fully_shard._fsdp_common import FSDPMeshInfo, ShardPlacementResult

    alone = [dist.new_group([rank]) for rank in range(dist.get_world_size())][dist.get_rank()]
    other = dist.new_group(list(range(dist.get_world_size())))
    alone, other = (FSDPMeshInfo(DeviceMesh.from_group(group, "cpu"), shard_mesh_dim=0) for group in (alone, other))
    placed = {parameter: alone for parameter in layer.norm.parameters()}
    placed.update({parameter: other for parameter in layer.down.parameters()})
    return lambda parameter: ShardPlacementResult(None, placed[parameter]) if parameter in placed else None


def build(kind="uniform", mesh=None, mixed="", **options):
    """A sharded model, the same on every rank and call. options: of fully_shard."""
    torch.manual_seed(7)
    if mixed:
        options["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16,
                                                    reduce_dtype=torch.float32 if mixed == "both" else None)
    if mesh == "hybrid":
        options["mesh"] = init_device_mesh("cpu", (dist.get_world_size() // 2, 2),
                                           mesh_dim_names=("replicate", "shard"))
    hidden = {"uniform": [48] * 4, "repeated": [48] * 3}.get(kind, [48, 17, 96, 31])
    if kind == "experts":
        layers = [Block(48), Experts(2, 40), Block(48), Experts(3, 64)]
    else:
        layers = [Block(size, recompute=kind == "recompute") for size in hidden]
    model = Stack(layers, tied=kind == "tied")
    model.recompute = kind == "recompute_around"
    if kind == "frozen":
        layers[1].requires_grad_(False)
        layers[2].up.requires_grad_(False)
    if kind == "frozen_first":  # no gradient is needed before layer 2, whose post-backward comes last then
        for part in (model.embedding, *layers[:2]):
            part.requires_grad_(False)
    if kind == "dtypes":  # one group of bf16 and fp32, packed as bytes; frozen, as FSDP2 reduces one dtype only
        layers[1].requires_grad_(False)
        layers[1].norm.to(torch.float64)
        layers[1].forward = lambda x, block=layers[1]: x + block.down(block.up(block.norm(x.double()).float()))
    for index, layer in enumerate(layers):
        if isinstance(layer, Experts):
            for expert in layer.experts:
                fully_shard(expert, **options)
        placement = {"shard_placement_fn": on_three_meshes(layer)} if kind == "meshes" and index % 2 == 0 else {}
        fully_shard(layer, **placement, **options)
    if kind in ("together", "embedding"):
        fully_shard([model.embedding, model.head] if kind == "together" else model.embedding, **options)
    return fully_shard(model, **options)


def batch(step):
    generator = torch.Generator().manual_seed(1000 * step + dist.get_rank())
    return torch.randint(0, 40, (3, 5), generator=generator)


def loss_of(model, step):
    return torch.nn.functional.cross_entropy(model(batch(step)).float().flatten(0, 1), batch(step + 1).flatten())


def plain_step(model, step):
    loss = loss_of(model, step)
    loss.backward()
    return [loss.detach()]


def train(model, steps, one_step=plain_step):
    """Losses, gradients of each step, and the parameters after Adam: local shards."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    seen = []
    for step in range(steps):
        seen += one_step(model, step)
        seen += [parameter.grad.to_local().clone() for parameter in model.parameters() if parameter.grad is not None]
        optimizer.step()
        optimizer.zero_grad()
    return seen + [parameter.to_local().clone() for parameter in model.parameters()]


def same(one, other):
    """True if all bits are equal. NaN differs from everything, so poison is detected."""
    return len(one) == len(other) and all(torch.equal(a, b) for a, b in zip(one, other))
