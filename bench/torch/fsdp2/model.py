# SPDX-License-Identifier: Apache-2.0
"""A hybrid language model with FSDP units of different sizes: attention, MLP, attention, experts, repeated. Deterministic, bit for bit.

With a width of 2048 and 10 repeats: 20 units of attention (17 M parameters), 10 MLPs (34 M), 10 of eight experts (134 M), 134 M in the root:
2.15 G parameters, 0.9 G of them active per token. Experts are chosen by position (hash routing: Roller et al., 2021), which avoids indexing
and atomic additions. Layers are recomputed in backward; logits are computed for one sequence at a time, and recomputed."""

import torch
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import cross_entropy, gelu, rms_norm, scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

import fake_group

EXPERTS = 8
CAUSAL_KERNELS = [SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]  # both are deterministic in backward


def deterministic():
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # it would write every new PyTorch buffer, but no pool buffer
    torch.backends.cuda.matmul.allow_tf32 = False


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.inner, self.outer = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)

    def forward(self, x):
        batch, sequence, width = x.shape
        query, key, value = self.inner(x).view(batch, sequence, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        with sdpa_kernel(CAUSAL_KERNELS):
            mixed = scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.outer(mixed.transpose(1, 2).reshape(batch, sequence, width))


class Mlp(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x):
        return self.down(gelu(self.up(x)))


class Experts(nn.Module):
    """Position p goes to expert p modulo EXPERTS, weighted by the router's output for it."""

    def __init__(self, width):
        super().__init__()
        self.router = nn.Linear(width, EXPERTS, bias=False)
        self.up = nn.Parameter(torch.empty(EXPERTS, width, 2 * width))
        self.down = nn.Parameter(torch.empty(EXPERTS, 2 * width, width))

    def forward(self, x):
        batch, sequence, width = x.shape
        weight = torch.sigmoid(self.router(x)).view(batch, sequence // EXPERTS, EXPERTS, EXPERTS).diagonal(dim1=2, dim2=3)
        of_expert = x.view(-1, EXPERTS, width).transpose(0, 1)
        result = torch.bmm(gelu(torch.bmm(of_expert, self.up)), self.down)
        return result.transpose(0, 1).reshape(x.shape) * weight.reshape(batch, sequence, 1)


class Layer(nn.Module):
    def __init__(self, mixer, width):
        super().__init__()
        self.norm, self.mixer = nn.Parameter(torch.empty(width)), mixer

    def inner(self, x):
        return x + self.mixer(rms_norm(x, self.norm.shape, self.norm))

    def forward(self, x):
        return checkpoint(self.inner, x, use_reentrant=False, preserve_rng_state=False)


class Hybrid(nn.Module):
    """Maps tokens [batch, sequence + 1] to the mean loss. Embedding, head and the last norm belong to the root unit."""

    def __init__(self, width, heads, repeats, vocabulary):
        super().__init__()
        self.embedding, self.head = nn.Embedding(vocabulary, width), nn.Linear(width, vocabulary, bias=False)
        self.norm = nn.Parameter(torch.empty(width))
        self.layers = nn.ModuleList(Layer(mixer, width) for _ in range(repeats)
                                    for mixer in (Attention(width, heads), Mlp(width), Attention(width, heads), Experts(width)))

    def loss_of_one(self, x, target):
        return cross_entropy(self.head(rms_norm(x, self.norm.shape, self.norm)).float(), target)

    def forward(self, tokens):
        x = self.embedding(tokens[:, :-1])
        for layer in self.layers:
            x = layer(x)
        losses = [checkpoint(self.loss_of_one, one, target, use_reentrant=False, preserve_rng_state=False)
                  for one, target in zip(x, tokens[:, 1:])]
        return torch.stack(losses).mean()


def sharded(options, device):
    """Creates the model on the device, in the fake group, with the same weights in every process."""
    deterministic()
    mesh = fake_group.start(device.type)
    with torch.device("meta"):
        model = Hybrid(options.width, options.heads, options.repeats, options.vocabulary)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model.layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    fake_group.install([*model.layers, model])
    model.to_empty(device=device)
    generator = torch.Generator(device).manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("norm"):
                parameter.to_local().fill_(1)
            else:
                parameter.to_local().normal_(0, 0.02, generator=generator)
    return model


def parameters_of(model):
    return sum(parameter.numel() for parameter in model.parameters())


def length_of(options, step):
    """With --lengths, a quarter to all of the sequence, in multiples of a sixteenth."""
    if not options.lengths:
        return options.sequence
    sixteenths = torch.randint(4, 17, (), generator=torch.Generator().manual_seed(77 + step)).item()
    return options.sequence * sixteenths // 16 // EXPERTS * EXPERTS


def tokens_of(options, step, device):
    generator = torch.Generator().manual_seed(1000 + step)
    return torch.randint(0, options.vocabulary, (options.batch, length_of(options, step) + 1), generator=generator).to(device)
