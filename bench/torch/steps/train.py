# SPDX-License-Identifier: Apache-2.0
"""A training of a transformer, as users write it, without a line about served steps. Measured as it is and by the launcher:

    python3 bench/torch/steps/train.py
    python3 -m bucketpool.torch.steps bench/torch/steps/train.py

Options: --model llama|experts|small, --batch N, --length N, --layers N, --ranks 8 (FSDP2) or 1 (without), --steps N, --device cuda|cpu,
--rehearse (small sizes), --pool buckets|parameters (bucketpool's pools of FSDP2's buckets, and of parameters, too). --model llama is a Llama of 1.24 B parameters with random weights under FSDP2, eight emulated ranks. Each step prints
a line of JSON. With --paced a program on the other side of standard input names each action: a method of Actions, or "step 4"."""

import argparse
import json
import os
import resource
import statistics
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "fsdp2"))
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch  # noqa: E402

GIB = 1 << 30
# model: batch, length
SHAPES = {"llama": (2, 4096), "experts": (2, 4096), "small": (8, 192)}
WARMUP = 7  # steps before those that count: with serve(record=3) the fifth is the first whole step that is served


def configuration(options):
    """A model's sizes; the CPU's rehearsal has those of a toy."""
    import transformers
    toy = {"hidden_size": 64, "intermediate_size": 128, "vocab_size": 2048, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
           "num_hidden_layers": 3}
    if options.model == "llama":
        sizes = {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8,
                 "vocab_size": 128256, "tie_word_embeddings": True}
        kind = transformers.LlamaConfig
    elif options.model == "experts":
        sizes = {"hidden_size": 2048, "intermediate_size": 6144, "moe_intermediate_size": 768, "num_hidden_layers": 8, "num_attention_heads": 32,
                 "num_key_value_heads": 4, "head_dim": 128, "num_experts": 32, "num_experts_per_tok": 4, "vocab_size": 151936}
        toy |= {"moe_intermediate_size": 32, "num_experts": 4, "num_experts_per_tok": 2}
        kind = transformers.Qwen3MoeConfig
    else:
        sizes = {"hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 4, "num_attention_heads": 9, "num_key_value_heads": 3,
                 "vocab_size": 8192}
        toy |= {"num_hidden_layers": 2}
        kind = transformers.LlamaConfig
    sizes |= toy if options.rehearse else {}
    sizes |= {"num_hidden_layers": options.layers} if options.layers else {}
    config = kind(**sizes, max_position_embeddings=8192, use_cache=False)
    config._attn_implementation = "sdpa"
    if options.model == "experts":
        config._experts_implementation = "grouped_mm"
    return config


def described(options):
    """The configuration, and the model without memory."""
    import transformers
    config = configuration(options)
    with torch.device("meta"):
        return config, transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)


class Training:
    """The model, sharded by FSDP2 if there are several ranks, and AdamW."""

    def __init__(self, options):
        self.options, self.device = options, torch.device(options.device)
        torch.manual_seed(0)
        # Equal inputs make equal bits in each run; memory is not filled beforehand, which would take time.
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.utils.deterministic.fill_uninitialized_memory = False
        self.config, self.model = described(options)
        if options.ranks > 1:
            self._shard()
        self.model.to_empty(device=self.device)
        self._initialize()
        self.model.train()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, foreach=True)
        self.number, self.pools, self.attached = 0, [], None
        if options.pool:
            from bucketpool.torch import fsdp2
            self.pools = [fsdp2.attach_parameters(self.model)] if options.pool == "parameters" else []
            self.attached = fsdp2.attach(self.model, on_mismatch="plain")
            self.pools.append(self.attached)

    def _shard(self):
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        import fake_group
        mesh, layers = fake_group.start(self.options.device), list(self.model.model.layers)
        self.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        for module in [*layers, self.model]:
            fully_shard(module, mesh=mesh, mp_policy=policy)
        fake_group.install([*layers, self.model])

    def _initialize(self):
        generator = torch.Generator(self.device).manual_seed(1)
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                local = parameter.to_local() if hasattr(parameter, "to_local") else parameter
                local.fill_(1) if "norm" in name else local.normal_(0, 0.02, generator=generator)
        size = getattr(self.config, "head_dim", None) or self.config.hidden_size // self.config.num_attention_heads
        for name, buffer in self.model.named_buffers():
            if "inv_freq" in name:
                buffer.copy_(1.0 / (10000 ** (torch.arange(0, size, 2, device=self.device).float() / size)))

    def step(self):
        """One step. Returns its loss."""
        generator = torch.Generator().manual_seed(self.number)
        self.number += 1
        tokens = torch.randint(0, self.config.vocab_size, (self.options.batch, self.options.length), generator=generator).to(self.device)
        loss = self.model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.item()


# ---- figures -----------------------------------------------------------------------------------------------------------------


class Actions:
    """Steps and their figures. Each method is an action, and returns what is printed."""

    def __init__(self, training):
        self.training, self.on_gpu, self.driver_peak = training, training.options.device == "cuda", 0

    def synchronize(self):
        if self.on_gpu:
            torch.cuda.synchronize()

    def step(self):
        self.synchronize()
        before, start = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter_ns()
        loss = self.training.step()
        self.synchronize()
        took, after = time.perf_counter_ns() - start, resource.getrusage(resource.RUSAGE_SELF)
        if self.on_gpu:
            free, total = torch.cuda.mem_get_info()
            self.driver_peak = max(self.driver_peak, total - free)
        return {"loss": loss.hex(), "ns": took, "page_faults": after.ru_minflt - before.ru_minflt,
                "processor_ns": round(1e9 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime))}

    def reset(self):
        """Memory is measured from here on. Returns the peaks so far."""
        self.synchronize()
        known = self.memory()
        if self.on_gpu:
            torch.cuda.reset_peak_memory_stats()
        self.driver_peak = 0
        return known

    def memory(self):
        """Peaks since reset(). On a GPU of PyTorch, and what the driver has given to all processes, after each step."""
        pools = {}
        if self.training.attached is not None:
            pools = {"pool_bytes": sum(each.plan.bytes for each in self.training.pools), "pool_served": sum(self.training.attached.served.values()),
                     "pool_fallbacks": sum(self.training.attached.fallbacks.values())}
        if not self.on_gpu:
            return {**pools, "maxrss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}
        known = torch.cuda.memory_stats()
        return {**pools, "reserved_peak_bytes": torch.cuda.max_memory_reserved(), "live_peak_bytes": torch.cuda.max_memory_allocated(),
                "driver_peak_bytes": self.driver_peak, "num_alloc_retries": known.get("num_alloc_retries"), "num_ooms": known.get("num_ooms")}

    def profile(self):
        """Three steps under the profiler: communication on side streams, and the part of it that computation covers."""
        from torch.profiler import ProfilerActivity
        from torch.profiler import profile

        import overlap
        self.synchronize()
        with profile(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self.on_gpu else [])]) as profiler:
            losses = [self.step()["loss"] for _ in range(3)]
        path = f"{self.training.options.trace}.{os.getpid()}"
        profiler.export_chrome_trace(path)
        with open(path, encoding="utf-8") as file:
            found = overlap.measured(json.load(file)["traceEvents"])
        os.remove(path)
        return {"losses": losses, **found}


def parse(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=list(SHAPES), default="llama")
    for name in ("batch", "length", "layers"):
        parser.add_argument(f"--{name}", type=int, default=0)
    parser.add_argument("--ranks", type=int, choices=(1, 8), default=8)
    parser.add_argument("--steps", type=int, default=WARMUP + 20)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--rehearse", action="store_true")
    parser.add_argument("--pool", choices=("buckets", "parameters"))
    parser.add_argument("--paced", action="store_true")
    parser.add_argument("--trace", default="trace.json", help="file for a profile, which is removed")
    options = parser.parse_args(arguments)
    batch, length = SHAPES[options.model]
    options.batch = options.batch or (8 if options.rehearse else batch)
    options.length = options.length or (64 if options.rehearse else length)
    return options


def answer(found):
    print(json.dumps(found), flush=True)


def main():
    options = parse()
    if options.device == "cuda" and not torch.cuda.is_available():
        print("PyTorch finds no GPU")
        return 77
    if options.device == "cpu":
        torch.set_num_threads(1)
    actions = Actions(Training(options))
    if options.paced:
        answer({"ready": True})
        for line in sys.stdin:
            name, _, count = line.partition(" ")
            answer({"steps": [actions.step() for _ in range(int(count))]} if name == "step" else getattr(actions, name.strip())())
        return 0
    steps = []
    for number in range(options.steps):
        if number == min(WARMUP, options.steps - 1):
            actions.reset()
            steps.clear()
        steps.append(actions.step())
        answer(steps[-1])
    answer({"ms_median": statistics.median(step["ns"] for step in steps) / 1e6, **actions.memory()})
    return 0


if __name__ == "__main__":
    sys.exit(main())
