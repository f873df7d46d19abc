# SPDX-License-Identifier: Apache-2.0
"""The allocators of bucketpool.torch.megatron_fsdp called directly: random orders, contents, bad input."""

import collections
import contextlib
import json
import os
import random
import subprocess
import sys
import time
import unittest
import unittest.mock
import warnings
from types import SimpleNamespace
from typing import Dict, List

import torch

import bucketpool
from bucketpool import errors
from bucketpool.torch import megatron_fsdp as pooled, nccl
from bucketpool.torch.megatron_fsdp.units import bucket_name
from bucket_groups import Group, make_plan
from places import FAKES

CPU = torch.device("cpu")
HERE = os.path.dirname(os.path.abspath(__file__))
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


def random_groups(seed: int, units: int = 5) -> List[Group]:
    """Random parameter groups: bucket 0 is outside units, units have one to three buckets."""
    chance = random.Random(seed)
    groups = [Group(None, "bf16", 300)]
    for unit in range(units):
        groups += [Group(unit, chance.choice(("bf16", "fp32")), 8 * chance.randint(1, 200))
                   for _ in range(chance.randint(1, 3))]
    return groups


class Served:
    """Allocators of both roles over one pool, and the expected contents of each live bucket."""

    def __init__(self, groups: List[Group], policy: str = "scheduled", repeats: str = "accept",
                 **options: object) -> None:
        self.groups = groups
        self.pooled = pooled.PooledBuckets(make_plan(groups, policy), CPU, outside_bytes=65536, **options)
        self.of = {role: self.pooled.allocator(role, groups, repeats=repeats) for role in ("param", "grad")}
        self.filled: Dict[tuple, int] = {}
        self.addresses: Dict[tuple, set] = collections.defaultdict(set)

    def allocate(self, role: str, index: int, **named: object) -> pooled.Bucket:
        group = self.groups[index]
        return self.of[role].allocate(index, group.numel, DTYPES[group.dtype], CPU, **named)

    def take(self, role: str, unit: int, mark: int) -> None:
        for index in self.members(unit):
            bucket = self.allocate(role, index)
            self.addresses[role, index].add(bucket.data.data_ptr())
            bucket.data.fill_(mark % 97 + index)
            self.filled[role, index] = mark % 97 + index

    def give(self, role: str, unit: int, chance: random.Random) -> None:
        members = self.members(unit)
        chance.shuffle(members)
        for index in members:
            data = self.allocate(role, index).data  # again: the same one
            assert bool((data == self.filled.pop((role, index))).all()), f"{role} bucket {index} was written by another"
            self.of[role].free(index)

    def members(self, unit: int) -> List[int]:
        return [index for index, group in enumerate(self.groups) if group.fsdp_unit_id == unit]


def fp8_group(unit: int, numel: int) -> SimpleNamespace:
    """A parameter group of MXFP8 weights, as describe() reads it."""
    def buffer(dtype: torch.dtype) -> SimpleNamespace:
        return SimpleNamespace(is_data_distributed=True, dtype=dtype, dp_world_size=4,
                               bucket_index=SimpleNamespace(size=numel + 16))

    return SimpleNamespace(
        params=[torch.empty(numel, device="meta")], fsdp_unit_id=unit, dtype="float8", grad_dtype=torch.bfloat16,
        is_expert_param=False, requires_grad=True, model_weight_buffer=buffer(torch.uint8),
        transpose_weight_buffer=buffer(torch.uint8),
        main_grad_buffer=buffer(torch.bfloat16), hfsdp_helper_wbuf=None, hfsdp_helper_wtbuf=None,
        hfsdp_helper_gbuf=None, hsdp_comm_gbuf=None)


class CanAllocate(unittest.TestCase):
    def test_agrees_with_allocate(self) -> None:
        """can_allocate() is True exactly if the frees and allocates that it describes succeed, in random states."""
        answers = collections.Counter()
        for seed in range(40):
            chance = random.Random(seed)
            groups = random_groups(seed)
            for _ in range(10):
                served = Served(groups, on_mismatch="error")
                allocator = served.of["param"]
                for index in chance.sample(range(1, len(groups)), chance.randint(0, 4)):
                    with contextlib.suppress(errors.ScheduleError):
                        served.allocate("param", index)
                releasable = {index for index in range(len(groups)) if chance.random() < 0.4}
                wanted = chance.sample(range(len(groups)), chance.randint(1, 3))
                live = allocator.live
                expected = allocator.can_allocate(wanted, releasable)
                self.assertEqual(allocator.live, live)
                for index in releasable:
                    allocator.free(index)
                try:
                    for index in wanted:
                        served.allocate("param", index)
                    succeeded = True
                except errors.ScheduleError:
                    succeeded = False
                self.assertEqual(expected, succeeded, (seed, live, wanted, releasable))
                answers[expected] += 1
                for index in allocator.live:
                    allocator.free(index)
                served.pooled.close()
        self.assertGreater(min(answers[True], answers[False]), 20, answers)

    def test_refused_ids(self) -> None:
        served = Served(random_groups(0))
        with self.assertRaises(errors.InvalidArgument):
            served.of["param"].can_allocate([1000])
        served.pooled.close()


class Fp8(unittest.TestCase):
    """Without Transformer Engine there are no fp8 modules to wrap: their groups are described and their buckets
    allocated."""

    def test_transposes(self) -> None:
        groups = [fp8_group(unit, 1024 * (unit + 1)) for unit in range(3)]
        units = pooled.describe(groups)
        self.assertEqual((units.roles, units.grad_dtype), (("param", "param_transpose", "grad"), None))
        plan = units.plan()
        self.assertEqual({(each.role, each.dtype) for each in plan.requests},
                         {("param", "uint8"), ("param_transpose", "uint8"), ("grad", "bf16")})
        served = pooled.PooledBuckets(plan, CPU, on_mismatch="error")
        rows, columns = (served.allocator(role, groups) for role in ("param", "param_transpose"))
        forward = rows.allocate(0, 1040, torch.uint8, CPU).data
        rows.free(0)
        backward = columns.allocate(0, 1040, torch.uint8, CPU).data
        self.assertEqual((forward.dtype, backward.numel()), (torch.uint8, 1040))
        columns.free(0)
        with self.assertRaisesRegex(errors.Mismatch, r"2080 bytes requested \(2080 elements of uint8\), 1040 planned"):
            columns.allocate(0, 2080, torch.uint8, CPU)

    def test_mixed_gradients(self) -> None:
        """Gradient dtypes that no option says are refused."""
        groups = [fp8_group(unit, 1024) for unit in range(2)]
        groups[1].grad_dtype = torch.float32
        self.assertRaisesRegex(errors.Unsupported, "gradients of bf16, fp32 in one module", pooled.describe, groups)


class RandomOrders(unittest.TestCase):
    def test_steps(self) -> None:
        """Forward and backward as the pipelines go, with prefetches that come early, late or not at all, and reductions
        that drain at any moment they may: contents stay, addresses stay."""
        for seed, policy in enumerate(("scheduled", "max", "fixed", "scheduled")):
            chance = random.Random(seed)
            served = Served(random_groups(seed), policy)
            units = 5
            for number in range(4):
                self._forward(served, chance, units, number)
                self._backward(served, chance, units, number)
                self.assertEqual([served.of["param"].live, served.of["grad"].live], [[], []])
            self.assertTrue(all(len(addresses) == 1 for addresses in served.addresses.values()))
            self.assertEqual(len(served.addresses), 2 * (len(served.groups) - 1))
            served.pooled.close()

    def _walk(self, served: Served, chance: random.Random, order: List[int], number: int, compute: object) -> None:
        ahead: List[int] = []
        for place, unit in enumerate(order):
            if unit not in ahead:
                served.take("param", unit, number + unit)
            if place + 1 < len(order) and chance.random() < 0.8:
                served.take("param", order[place + 1], number + order[place + 1])
                ahead.append(order[place + 1])
            compute(unit)
            served.give("param", unit, chance)

    def _forward(self, served: Served, chance: random.Random, units: int, number: int) -> None:
        self._walk(served, chance, list(range(units)), number, lambda unit: None)

    def _backward(self, served: Served, chance: random.Random, units: int, number: int) -> None:
        drains: List[int] = []

        def compute(unit: int) -> None:
            while len(drains) > 1 or (drains and chance.random() < 0.5):
                served.give("grad", drains.pop(0), chance)
            served.take("grad", unit, number + 7 * unit)
            drains.append(unit)

        self._walk(served, chance, list(reversed(range(units))), number, compute)
        for unit in drains:
            served.give("grad", unit, chance)

    def test_outside(self) -> None:
        """Buckets outside units: from the pool for the whole run, or from PyTorch, whose storage goes at free and comes
        back."""
        served = Served(random_groups(0))
        first = served.allocate("param", 0).data
        served.of["param"].free(0)
        self.assertEqual(served.allocate("param", 0).data.data_ptr(), first.data_ptr())
        dynamic = served.pooled.allocator("grad", served.groups, outside="dynamic")
        data = dynamic.allocate(0, 300, torch.bfloat16, CPU).data
        self.assertEqual(data.untyped_storage().nbytes(), 600)
        dynamic.free(0)
        self.assertEqual(data.untyped_storage().nbytes(), 0)
        self.assertIs(dynamic.allocate(0, 300, torch.bfloat16, CPU).data, data)
        self.assertEqual(data.untyped_storage().nbytes(), 600)


class Streams(unittest.TestCase):
    """Order between streams, on the host device's own: threads, whose work is really late."""

    def test_waits_for_users(self) -> None:
        """A gradient is written on compute, reduced on another stream, freed on the former, as the reduction is under
        way: who gets its bytes next waits for the reduction. (In Megatron-FSDP the limit of two buffers makes the
        reduce stream wait, not compute.)"""
        groups = [Group(unit, "fp32", 4096) for unit in range(4)]
        served = Served(groups)
        offsets = {each.bucket: each.offset for each in make_plan(groups).requests if each.role == "grad"}
        first = 0
        second = next(index for index in range(1, 4) if offsets[bucket_name(index)] == offsets[bucket_name(first)])
        native = served.pooled.pool.device
        compute, reduce = native.stream("compute"), native.stream("reduce")
        reduced: List[int] = []

        def on(stream: bucketpool.Stream) -> None:
            served.pooled.streams.current = lambda: stream

        served.pooled.streams.settle = lambda stream: None
        on(compute)
        data = served.allocate("grad", first).data.view(torch.uint8)
        compute.fill(data.data_ptr(), 1, data.numel())
        on(reduce)
        self.assertEqual(served.allocate("grad", first).data.data_ptr(), data.data_ptr())
        reduce.wait(compute)
        reduce.call(lambda: (time.sleep(0.1), reduced.append(int(data.to(torch.int32).sum()))))
        on(compute)
        served.of["grad"].free(first)
        other = served.allocate("grad", second).data
        self.assertEqual(other.data_ptr(), data.data_ptr())
        compute.fill(other.data_ptr(), 2, data.numel())
        for stream in (compute, reduce):
            stream.synchronize()
        self.assertEqual(reduced, [data.numel()])
        self.assertEqual(int(data[0]), 2)
        served.of["grad"].free(second)

    def test_registered_roles(self) -> None:
        """Each role's slabs with its process groups; a communicator that both share is wrapped once. The communicators
        of NCCL are replaced: PyTorch has loaded the real library, which needs a GPU."""

        def process_group(name: str, pointer: int) -> SimpleNamespace:
            backend = SimpleNamespace(_comm_ptr=lambda: pointer)
            return SimpleNamespace(group_name=name, _get_backend=lambda _device: backend)

        served = Served([Group(0, "fp32", 64)])
        pool, cpu = served.pooled.pool, torch.device("cpu")
        gather, reduce = process_group("gather", 7), process_group("reduce", 8)
        made = lambda pointer, _device, name: (pointer, name)  # noqa: E731
        with unittest.mock.patch.object(nccl.Comm, "nccl", made), \
                unittest.mock.patch.object(nccl, "Registration", lambda _pool, entries: entries):
            entries = nccl.register(pool, pool.device, {"param": [gather], "grad": [gather, reduce]}, cpu)
            self.assertEqual([(each.comm, each.group, each.traffic) for each in entries],
                             [((7, "nccl.gather"), "param", ("gather",)), ((7, "nccl.gather"), "grad", ("reduce_scatter",)),
                              ((8, "nccl.reduce"), "grad", ("reduce_scatter",))])
            self.assertIs(entries[0].comm, entries[1].comm)
            everywhere = nccl.register(pool, pool.device, [gather, gather, reduce], cpu)
            self.assertEqual([(each.comm[0], each.group) for each in everywhere], [(7, None), (8, None)])
        with self.assertRaisesRegex(bucketpool.Unsupported, "no NCCL communicator"):
            nccl.register(pool, pool.device, {"param": [SimpleNamespace(group_name="g", _get_backend=lambda _: object())]},
                          cpu)

    @unittest.skipUnless(os.path.exists(os.path.join(FAKES, "libcuda.so.1")), f"no emulated driver in {FAKES}")
    def test_emulated_gpu(self) -> None:
        """Each stream is imported once; gathers wait for compute, compute for reductions; the per-thread default
        stream, which is a different one on every thread, is refused."""
        script = os.path.join(HERE, "megatron_streams.py")
        done = subprocess.run([sys.executable, script], capture_output=True, text=True,
                              env=dict(os.environ, LD_LIBRARY_PATH=FAKES, FAKE_CUDA="report=1"), timeout=600,
                              check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        found = json.loads(done.stdout.splitlines()[-1])
        self.assertTrue(found["device"].startswith("cuda"))
        self.assertEqual((found["imported"], found["acquires"]), (3, 24))
        self.assertGreaterEqual(found["waits"], 16)  # all but the first users of memory, each on another stream
        self.assertIn("per-thread default stream", found["refused"])


class BadInput(unittest.TestCase):
    def setUp(self) -> None:
        self.groups = random_groups(3)
        self.served = Served(self.groups, on_mismatch="error")
        self.params = self.served.of["param"]
        self.group = self.groups[1]
        self.dtype = DTYPES[self.group.dtype]

    def test_larger_than_planned(self) -> None:
        size = self.group.numel
        needs = rf"param bucket 1 of unit 0: \d+ bytes requested \({size + 8} elements.*\d+ planned"
        self.assertRaisesRegex(errors.Mismatch, needs, self.params.allocate, 1, size + 8, self.dtype, CPU)
        self.assertEqual(self.params.allocate(1, size - 8, self.dtype, CPU).data.numel(), size - 8)

    def test_unknown_ids(self) -> None:
        for bucket_id in (-1, len(self.groups), "3"):
            with self.assertRaisesRegex(
                errors.InvalidArgument, f"param bucket {bucket_id}: unknown id; the module has {len(self.groups)} param"
            ):
                self.params.allocate(bucket_id, 8, torch.float32, CPU)
        with self.assertRaisesRegex(errors.InvalidArgument, "parameter groups"):
            self.params.free(len(self.groups))

    def test_not_in_the_plan(self) -> None:
        more = self.groups + [Group(4, "bf16", 64)]
        allocator = self.served.pooled.allocator("param", more)
        with self.assertRaisesRegex(errors.Mismatch,
                                    rf"param bucket {len(more) - 1} of unit 4: not in the plan, which has the ids 1-"):
            allocator.allocate(len(more) - 1, 64, torch.bfloat16, CPU)
        with self.assertRaisesRegex(errors.Mismatch, "none of this role: plan with --roles param_transpose"):
            self.served.pooled.allocator("param_transpose", self.groups).allocate(1, self.group.numel, self.dtype, CPU)

    def test_dtypes(self) -> None:
        with self.assertRaisesRegex(errors.InvalidArgument,
                                    "param bucket 1 of unit 0: unsupported dtype torch.complex64.*torch.bfloat16"):
            self.params.allocate(1, 8, torch.complex64, CPU)
        with self.assertRaisesRegex(errors.Mismatch, "planned as .*, requested as fp16"):
            self.params.allocate(1, 8, torch.float16, CPU)

    def test_another_device(self) -> None:
        with self.assertRaisesRegex(errors.InvalidArgument, "requested on meta, the pool is on cpu"):
            self.params.allocate(1, self.group.numel, self.dtype, torch.device("meta"))
        with self.assertRaisesRegex(errors.Unsupported, "cuda and cpu"):
            pooled.PooledBuckets(make_plan(self.groups), "meta")

    def test_second_module(self) -> None:
        """Their buckets have the same ids; one is never handed to both."""
        other = self.served.pooled.allocator("param", self.groups)
        self.served.allocate("param", 1)
        with self.assertRaisesRegex(errors.ScheduleError, "param bucket 1 of unit 0: allocated by another allocator"):
            other.allocate(1, self.group.numel, self.dtype, CPU)
        self.params.free(1)
        other.allocate(1, self.group.numel, self.dtype, CPU)
        self.assertEqual(other.live, [1])

    def test_closed(self) -> None:
        """Streams go, too."""
        device = self.served.pooled.pool.device
        self.served.pooled.close()
        self.assertEqual(device.usage.streams, 0)

    def test_repeats(self) -> None:
        """As Megatron-FSDP's allocators: the same bucket again, and no complaint about a free too many; or both
        refused."""
        bucket = self.served.allocate("param", 1)
        self.assertEqual(self.served.allocate("param", 1).data.data_ptr(), bucket.data.data_ptr())
        with self.assertRaisesRegex(errors.Mismatch, "allocated as .*free it first"):
            self.params.allocate(1, self.group.numel - 8, self.dtype, CPU)
        self.params.free(1)
        self.params.free(1)
        strict = self.served.pooled.allocator("param", self.groups, repeats="error")
        self.assertRaisesRegex(errors.ScheduleError, "freed while it is not allocated", strict.free, 1)
        strict.allocate(1, self.group.numel, self.dtype, CPU)
        with self.assertRaisesRegex(errors.ScheduleError, "allocated while it is allocated"):
            strict.allocate(1, self.group.numel, self.dtype, CPU)
        strict.free(1)

    def test_strict_assignments(self) -> None:
        """More units live than planned: an exception that names the holder; not strict, other memory for this once and
        a warning. A later strict call has the planned address again."""
        for unit in range(2):
            self.served.take("param", unit, 1)
        late = self.served.members(2) + self.served.members(3) + self.served.members(4)
        blocked = [index for index in late if not self._free_now(index)]
        self.assertTrue(blocked)
        index = blocked[0]
        group = self.groups[index]
        self.assertRaisesRegex(errors.ScheduleError, "layers", self.served.allocate, "param", index)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            stand_in = self.served.allocate("param", index, strict_assignments=False).data
        self.assertEqual([str(each.message).split(":")[0] for each in caught],
                         [f"param bucket {index} of unit {group.fsdp_unit_id}"])
        planned = self.served.pooled.pool.address(self.served.pooled.planned["param", index].id)[0]
        self.assertNotEqual(stand_in.data_ptr(), planned)
        self.params.free(index)
        for unit in range(2):
            self.served.give("param", unit, random.Random(0))
        self.assertEqual(self.served.allocate("param", index).data.data_ptr(), planned)

    def _free_now(self, index: int) -> bool:
        return self.served.pooled.pool.can_acquire([self.served.pooled.planned["param", index].id])

    def test_refused_plans(self) -> None:
        with self.assertRaisesRegex(errors.Unsupported, "param and grad buckets in one slab.*plan without joint"):
            pooled.PooledBuckets(make_plan(self.groups, joint=True))
        for policy in ("dynamic", "fixed"):
            with self.assertRaisesRegex(errors.Unsupported, f"policy {policy} leaves buckets without an address"):
                pooled.PooledBuckets(make_plan(self.groups, policy, fallback="dynamic"))
        with self.assertRaisesRegex(errors.InvalidArgument, r"describe\(model\).write"):
            pooled.PooledBuckets(make_plan(self.groups, named=False))
        with self.assertRaisesRegex(errors.InvalidArgument, "unknown role 'weights'; expected one of param"):
            self.served.pooled.allocator("weights", self.groups)

    def test_registration_context(self) -> None:
        """nccl_ub's allocation context is not entered, and that is said once."""
        def context() -> None:
            raise AssertionError("entered")

        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for index in (1, 2):
                self.served.allocate("param", index, mem_alloc_context=context)
        self.assertEqual(len(caught), 1)
        self.assertIn("docs/guides/nccl.md", str(caught[0].message))


if __name__ == "__main__":
    unittest.main()
