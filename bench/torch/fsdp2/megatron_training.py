# SPDX-License-Identifier: Apache-2.0
"""Megatron-FSDP with its own allocators and with pools: the hybrid of model.py on two ranks, which share one GPU and communicate with NCCL
through sockets. Losses are compared bit for bit.

usage: python3 bench/torch/fsdp2/megatron_training.py [--allocators ALLOCATOR...] [--peers DIR] [--seconds N] [--json FILE] [--device cpu --rehearse]

DIR has a wheel of megatron-fsdp where that is not installed. A CPU has gloo. Exits 0, 1 (a check failed, or a rank did not end) or 77 (nothing
can run here)."""

import contextlib
import datetime
import importlib.util
import os
import sys
import tempfile
import time

import options as settings
import peers
import ranks
from report import Report, skip_all

GROUP = "megatron-fsdp: two ranks on one device"
# allocator: Megatron-FSDP's options, policy of the pool
ALLOCATORS = {
    "no double buffers": ({}, None),
    "scheduled": ({"fsdp_double_buffer": True}, "scheduled"),
    "FixedPoolAllocator": ({"fsdp_double_buffer": True}, None),
    "MaxPoolAllocator": ({"fsdp_double_buffer": True, "maxpool_double_buffer": True}, None),
    "max": ({"fsdp_double_buffer": True}, "max"),
}
SIZES = (("repeats", 5, 1), ("sequence", 2048, 64), ("batch", 2, 2), ("steps", 8, 4), ("warmup", 2, 1))


def options_of():
    parser = settings.parser(__doc__.splitlines()[0])
    parser.add_argument("--peers", metavar="DIR", help="folder with a wheel of megatron-fsdp")
    parser.add_argument("--seconds", type=float, default=300, help="time for all allocators")
    parser.add_argument("--allocators", nargs="+", choices=list(ALLOCATORS), default=list(ALLOCATORS), metavar="ALLOCATOR", help=", ".join(ALLOCATORS))
    ranks.add_hidden(parser)
    return settings.complete(parser.parse_args(), SIZES)


class Training:
    """One rank's model, wrapped by Megatron-FSDP, and its optimizer."""

    def __init__(self, options, device, megatron_fsdp):
        import torch
        from torch.distributed.device_mesh import init_device_mesh

        import model as hybrid
        from bucketpool.torch import megatron_fsdp as pooled

        hybrid.deterministic()
        torch.manual_seed(1)
        torch.set_default_dtype(torch.bfloat16)
        with device:
            module = hybrid.Hybrid(options.width, options.heads, options.repeats, options.vocabulary)
        torch.set_default_dtype(torch.float32)
        for name, parameter in module.named_parameters():
            with torch.no_grad():
                parameter.fill_(1) if name.endswith("norm") else parameter.normal_(0, 0.02)
        self.parameters = hybrid.parameters_of(module)
        theirs, policy = ALLOCATORS[options.allocators[0]]
        with contextlib.nullcontext() if policy is None else pooled.install(policy=policy) as self.installed:
            self.model = megatron_fsdp.fully_shard_model(
                module, device_mesh=init_device_mesh(device.type, (ranks.RANKS, 1), mesh_dim_names=("dp", "tp")), dp_shard_dim="dp",
                tp_dim="tp", fsdp_unit_modules=[hybrid.Layer], device=device, zero_dp_strategy=3,
                calculate_per_token_loss=device.type == "cpu", **theirs)  # sums gradients: averages need NCCL
        self.optimizer = megatron_fsdp.fully_shard_optimizer(torch.optim.AdamW(self.model.parameters(), lr=1e-4))
        self.tokens = lambda number: hybrid.tokens_of(options, 10 * number + options.rank, device)

    def step(self, number):
        loss = self.model(self.tokens(number))
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.item()

    def described(self):
        """Parameters, and figures of the pool."""
        found = {"parameter_count": self.parameters}
        if self.installed is not None:
            counts, known = self.installed.counts, self.installed.pool.statistics
            found |= {"pool_bytes": known.slab_bytes, "plan_bytes": self.installed.plan.bytes, "deviations": known.deviations,
                      "plan_lower_bound_bytes": self.installed.plan.lower_bound_bytes, "served": counts.served,
                      "from_pytorch": counts.differing + counts.busy}
        return found


def rank_main(options):
    """One rank. Writes each phase into its file."""
    ranks.end_with_parent()
    report = Report(os.path.join(options.folder, f"rank{options.rank}.json"), phases=["importing PyTorch"], losses=[], ns=[])
    import logging
    import warnings

    import torch
    import torch.distributed as dist

    import fsdp2_train as example
    peers.unpack(options.peers)
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    on_gpu = options.device == "cuda"
    backend, device, environment = example.placement(options.rank, ranks.RANKS, torch.cuda.device_count() if on_gpu else 0)
    example.prepare(device, {**environment, "CUDA_DEVICE_MAX_CONNECTIONS": "1"})
    dist.init_process_group(backend, init_method="file://" + os.path.join(options.folder, "store"), rank=options.rank, world_size=ranks.RANKS,
                            timeout=datetime.timedelta(seconds=options.seconds), device_id=device if on_gpu else None)
    with contextlib.ExitStack() as stack:
        if not on_gpu:
            sys.path.append(os.path.join(ranks.ROOT, "python", "tests", "torch", "fixtures"))
            import megatron_cpu
            stack.enter_context(megatron_cpu.without_cuda())
        import megatron_fsdp
        report.document["phases"].append("wrapping")
        training = Training(options, device, megatron_fsdp)
        report.document["phases"].append("steps")
        for number in range(options.steps):
            if on_gpu:
                torch.cuda.synchronize()
                if number == options.warmup:
                    torch.cuda.reset_peak_memory_stats()
            begin = time.perf_counter_ns()
            report.document["losses"].append(training.step(number).hex())
            if on_gpu:
                torch.cuda.synchronize()
            report.document["ns"].append(time.perf_counter_ns() - begin)
            report.write()
        report.document["figure"] = training.described()
        if on_gpu:
            dist.barrier()  # both ranks hold their memory
            free, total = torch.cuda.mem_get_info()
            report.document["figure"] |= {
                "torch_peak_reserved_bytes": torch.cuda.max_memory_reserved(), "torch_peak_allocated_bytes": torch.cuda.max_memory_allocated(),
                "driver_bytes_of_both_ranks": total - free, "num_alloc_retries": torch.cuda.memory_stats()["num_alloc_retries"]}
            dist.barrier()
    report.document["phases"].append("done")
    report.write()
    sys.stdout.flush()
    os._exit(0)  # Megatron-FSDP's modules outlive the process group


def measure(report, options, name, seconds, base):
    """The figure and the checks of an allocator. Returns its losses, of each rank."""
    with tempfile.TemporaryDirectory() as folder:
        statuses = ranks.run_ranks(folder, seconds, report, "--allocators", name)
        found = [ranks.read(folder, rank) for rank in range(ranks.RANKS)]
    for rank, (status, each) in enumerate(zip(statuses, found)):
        log = [line for line in each["log"].strip().splitlines() if line]
        report.check(f"{name}: rank {rank} ends", status == 0, f"status {status} in phase {each['phases'][-1]!r}" + (
            f": {log[-1]}" if log and status != 0 else ""))
    losses = [each["losses"] for each in found]
    if any(statuses) or None in statuses:
        return base
    first = found[0]
    report.figure(GROUP, name, first["ns"][options.warmup:], ranks=ranks.RANKS, losses=losses, **first["figure"])
    if base is not None:
        same = base == losses
        at = next((step for step in range(options.steps) if [each[step] for each in base] != [each[step] for each in losses]), None)
        report.check(f"{name}: losses of no double buffers, bit for bit", same, f"{options.steps} steps" if same else f"they differ from step {at} on")
    if "deviations" in first["figure"]:
        served = [(each["figure"]["served"], each["figure"]["from_pytorch"], each["figure"]["deviations"]) for each in found]
        report.check(f"{name}: the pool served every bucket", all(some and not others and not moved for some, others, moved in served),
                     "; ".join(f"rank {rank}: {some} served, {others} from PyTorch, {moved} deviations" for rank, (some, others, moved) in enumerate(served)))
    return base or losses


def main():
    options = options_of()
    settings.needs_timed_steps(options)
    if options.rank is not None:
        return rank_main(options)
    peers.unpack(options.peers)
    if importlib.util.find_spec("megatron_fsdp") is None:
        skip_all("megatron-fsdp is not installed, and --peers has no wheel of it")
    if options.device == "cuda":
        from attempt import gpu_is_there
        if not gpu_is_there():
            skip_all("PyTorch finds no GPU")
    report = Report(options.json, program="fsdp2/megatron_training", **settings.described(options))
    until, base, took = time.monotonic() + options.seconds, None, 0.0
    for name in options.allocators:
        begin = time.monotonic()
        if begin + took > until:
            report.skip(name, f"{until - begin:.0f} s are left, the one before took {took:.0f}")
            continue
        base = measure(report, options, name, until - begin, base)
        took = time.monotonic() - begin
    report.document.pop("ranks", None)
    report.write()
    return report.status()


if __name__ == "__main__":
    sys.exit(main())
