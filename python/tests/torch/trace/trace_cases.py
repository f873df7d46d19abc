# SPDX-License-Identifier: Apache-2.0
"""Small training programs for the tests of bucketpool.torch.trace, and the memory that PyTorch takes for them."""

import bisect
import collections

import torch
import torch.nn.functional as F
from torch import nn
from torch.profiler import ProfilerActivity, profile
from torch.utils.checkpoint import checkpoint


class Block(nn.Module):
    """Attention and an MLP. Its attention is the math kernel, whose memory operators show on every device."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.before, self.between = heads, nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, tokens, width = x.shape
        q, k, v = (each.view(batch, tokens, self.heads, -1).transpose(1, 2)
                   for each in self.qkv(self.before(x)).chunk(3, -1))
        with nn.attention.sdpa_kernel(nn.attention.SDPBackend.MATH):
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, tokens, width))
        return x + self.down(F.gelu(self.up(self.between(x))))


class Transformer(nn.Module):
    """use_reentrant: of activation checkpointing; None: without."""

    def __init__(self, layers=3, width=128, words=1000, use_reentrant=None):
        super().__init__()
        self.embedding, self.head = nn.Embedding(words, width), nn.Linear(width, words, bias=False)
        self.layers, self.use_reentrant = nn.ModuleList(Block(width, 4) for _ in range(layers)), use_reentrant

    def forward(self, tokens):
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x) if self.use_reentrant is None else checkpoint(layer, x, use_reentrant=self.use_reentrant)
        return self.head(x)


def mlp(dtype):
    return nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(),
                         nn.Linear(1024, 256)).to(dtype)


OPTIMIZERS = {
    "adamw": lambda parameters: torch.optim.AdamW(parameters),
    "adamw-foreach": lambda parameters: torch.optim.AdamW(parameters, foreach=True),
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
}


def train(model, dtype=torch.float32, optimizer="adamw", microbatches=1, use_reentrant=None, autocast=False, steps=3,
          device="cpu", step=lambda: None):
    """A whole training, with everything that it allocates."""
    with torch.device(device):
        if model == "mlp":
            net, x = mlp(dtype), torch.randn(512, 256, dtype=dtype)
        else:
            net, x = Transformer(use_reentrant=use_reentrant).to(dtype), torch.randint(0, 1000, (4, 128))
    stepper = OPTIMIZERS[optimizer](net.parameters())
    for _ in range(steps):
        step()
        for _ in range(microbatches):
            with torch.autocast(device, torch.bfloat16, enabled=autocast):
                y = net(x)
            loss = y.float().pow(2).mean() if model == "mlp" else F.cross_entropy(y.flatten(0, 1).float(), x.flatten())
            loss.backward()
        stepper.step()
        stepper.zero_grad()


CASES = {
    "mlp": dict(model="mlp"),
    "mlp-bf16": dict(model="mlp", dtype=torch.bfloat16),
    "mlp-accumulated-sgd": dict(model="mlp", microbatches=4, optimizer="sgd"),
    "mlp-foreach": dict(model="mlp", optimizer="adamw-foreach"),
    "transformer": dict(model="transformer"),
    "transformer-bf16": dict(model="transformer", dtype=torch.bfloat16),
    "transformer-autocast": dict(model="transformer", autocast=True),
    "transformer-checkpoint": dict(model="transformer", use_reentrant=False),
    "transformer-reentrant": dict(model="transformer", use_reentrant=True),
    "transformer-accumulated": dict(model="transformer", microbatches=2, optimizer="sgd"),
    "transformer-checkpoint-foreach": dict(model="transformer", use_reentrant=False, optimizer="adamw-foreach"),
}


def measured(function, *arguments, **options):
    """Peak bytes of the CPU's allocator in a call: PyTorch's profiler records each allocation and free of it."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as profiler:
        function(*arguments, **options)
    events = [(event.start_ns(), event.nbytes()) for event in profiler.profiler.kineto_results.events()
              if event.name() == "[memory]"]
    live = peak = 0
    for _, size in sorted(events, key=lambda event: event[0]):
        live += size
        peak = max(peak, live)
    assert len(events) > 100
    return peak


def kinds(allocations):
    """Bytes of each kind."""
    sizes = collections.Counter()
    for each in allocations:
        sizes[each.kind] += each.bytes
    return sizes


def steps_in(snapshot):
    """(first event, event behind the last) of each step, as PyTorch's profiler annotates them."""
    marks = [each for each in snapshot["external_annotations"] if each["name"].startswith("ProfilerStep#")]
    starts, ends = marks[::2], marks[1::2]
    assert [(each["name"], each["stage"]) for each in marks] == [
        (f"ProfilerStep#{number}", stage) for number in range(len(starts)) for stage in ("START", "END")][:len(marks)]
    return [(start["time_us"], end["time_us"]) for start, end in zip(starts, ends)]


def checked(snapshot):
    """Asserts what holds for every recording: no two live allocations overlap, each free has its alloc, times do not
    decrease, and what is left is in the segments. Returns (peak bytes, live bytes) that the events say.
    """
    events, = snapshot["device_traces"]
    live, freed, size, peak, time = {}, {}, 0, 0, -1
    starts = []  # of live allocations, sorted
    for event in events:
        assert event["time_us"] >= time and event["frames"] and event["size"] > 0 or event["action"] == "empty_cache"
        time = event["time_us"]
        if event["action"] == "empty_cache":
            assert (event["addr"], event["size"], event["stream"]) == (0, 0, 0)
            continue
        first, end = event["addr"], event["addr"] + event["size"]
        if event["action"] == "alloc":
            place = bisect.bisect(starts, first)
            if place > 0:
                assert starts[place - 1] + live[starts[place - 1]]["size"] <= first
            if place < len(starts):
                assert end <= starts[place]
            assert first not in live
            starts.insert(place, first)
            live[first] = event
            size += event["size"]
            peak = max(peak, size)
        elif event["action"] == "free_requested":
            alloc = live.pop(first)
            starts.remove(first)
            assert (alloc["size"], alloc["stream"]) == (event["size"], event["stream"])
            freed[first] = event
            size -= event["size"]
        else:
            assert event["action"] == "free_completed" and freed.pop(first)["size"] == event["size"]
    assert not freed
    blocks = {block["address"]: block["requested_size"]
              for segment in snapshot["segments"] for block in segment["blocks"]}
    assert blocks == {first: event["size"] for first, event in live.items()}
    return peak, size
