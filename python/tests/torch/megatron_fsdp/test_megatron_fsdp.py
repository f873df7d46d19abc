# SPDX-License-Identifier: Apache-2.0
"""bucketpool.torch.megatron_fsdp against the megatron-fsdp package: its grouping, pipelines and allocators, driven on
random modules with eight ranks of torch's fake process group."""

import collections
import functools
import os
import tempfile
import unittest
import unittest.mock
from typing import Any, Dict, Optional, Tuple

import pytest
import torch

pytest.importorskip("megatron_fsdp", reason="the megatron-fsdp package is not installed")

import bucketpool  # noqa: E402
from bucketpool import errors  # noqa: E402
from bucketpool.torch import megatron_fsdp as pooled  # noqa: E402
from bucketpool.torch.megatron_fsdp.units import bucket_id_of  # noqa: E402
from megatron_cpu import buffers, fake_ranks, random_stack, step, without_cuda, wrap  # noqa: E402

BRIEF = bool(os.environ.get("BUCKETPOOL_BRIEF"))
SEEDS = (0, 3) if BRIEF else (0, 1, 3, 5)
RANKS = 8
STEPS = 2
POLICIES = ("fixed", "max", "scheduled")


def rounded(size_bytes: int) -> int:
    """A buffer's bytes as plans count them; the CUDA caching allocator rounds to 512."""
    return (size_bytes + 255) // 256 * 256


@functools.lru_cache(maxsize=None)
def described(seed: int) -> Tuple[Any, pooled.Units]:
    """The parameter groups of a random module, and their Units."""
    with fake_ranks(RANKS), without_cuda():
        model = wrap(random_stack(seed), expert_parallel=2)
        return model.param_and_grad_buffer.parameter_groups, pooled.describe(model)


def run_theirs(seed: int, maxpool: bool, **options: Any) -> int:
    """Bytes that Megatron-FSDP's allocator allocates for units."""
    with fake_ranks(RANKS), without_cuda() as memory:
        model = wrap(random_stack(seed), maxpool=maxpool, expert_parallel=2, **options)
        groups = model.param_and_grad_buffer.parameter_groups
        outside = {f"_not_fit_in_fixed_pool_{index}_" for index, group in enumerate(groups)
                   if group.fsdp_unit_id is None}
        for number in range(STEPS):
            step(model, number)
            model.zero_grad()
        return sum(rounded(tensor.nbytes) for (name, _), tensor in memory.buffer.items()
                   if not any(part in name for part in outside))


class Ours:
    """A module with a pool, and all addresses that its allocators returned."""

    def __init__(self, seed: int, policy: str = "scheduled", plan: Optional[bucketpool.Plan] = None,
                 **options: Any) -> None:
        self.addresses: Dict[Tuple[str, int], set] = collections.defaultdict(set)
        served = pooled.BucketAllocator.allocate
        watched = self.addresses

        def allocate(self: pooled.BucketAllocator, bucket_id: int, *arguments: Any, **named: Any) -> pooled.Bucket:
            bucket = served(self, bucket_id, *arguments, **named)
            if self.groups[bucket_id].fsdp_unit_id is not None:
                watched[self.role, bucket_id].add(bucket.data.data_ptr())
            return bucket

        watching = unittest.mock.patch.object(pooled.BucketAllocator, "allocate", allocate)
        with fake_ranks(RANKS), without_cuda(), watching:
            with pooled.install(plan=plan, policy=policy) as self.installed:
                model = wrap(random_stack(seed), maxpool=True, expert_parallel=2, **options)
            for number in range(STEPS):
                step(model, number)
                model.zero_grad()
            self.units = pooled.describe(model)
            self.statistics = self.installed.pool.statistics


class Pipelines(unittest.TestCase):
    def test_bytes_and_addresses(self) -> None:
        """No more memory than either of theirs, on modules of every kind, and one address for each bucket over all
        steps. What is planned is what the pipelines allocate: nothing in vain, nothing is missing."""
        for seed in SEEDS:
            fixed, most = run_theirs(seed, maxpool=False), run_theirs(seed, maxpool=True)
            for policy in POLICIES if seed == 3 else ("scheduled",):
                with self.subTest(seed=seed, policy=policy):
                    ours = Ours(seed, policy)
                    plan = ours.installed.plan
                    self.assertEqual({role_and_id: len(addresses) for role_and_id, addresses in ours.addresses.items()},
                                     {(each.role, bucket_id_of(each.bucket)): 1 for each in plan.requests})
                    self.assertEqual((ours.statistics.deviations, ours.statistics.refused), (0, 0))
                    if policy == "scheduled":
                        self.assertTrue(plan.optimal)
                        self.assertLessEqual(plan.bytes, min(fixed, most))
                        print(f"module {seed}: FixedPoolAllocator {fixed} bytes, MaxPoolAllocator {most}, "
                              f"planned {plan.bytes}")

    def test_buffer_count(self) -> None:
        """With fsdp_buffer_count=3 (which 0.6.1 does not have) the plan has three units at once, and the pipelines of
        two buffers still run in it."""
        made = pooled.Installed._make_allocator

        def of_three(self: pooled.Installed, *arguments: Any, **named: Any) -> Any:
            return made(self, *arguments, **{**named, "size": 3})

        two = Ours(3).installed
        with unittest.mock.patch.object(pooled.Installed, "_make_allocator", of_three):
            three = Ours(3)
        self.assertGreater(three.installed.plan.bytes, two.plan.bytes)
        self.assertIn("--prefetch 2 --grad-units 3", three.installed.units.command("units.json"))
        self.assertEqual((three.statistics.deviations, three.statistics.refused), (0, 0))

    def test_dynamic_outside(self) -> None:
        """Without fsdp_db_use_persist_buf_on_alloc_fail what lies outside units is PyTorch's, and the pool has the
        plan's bytes alone."""
        ours = Ours(1, persistent=False)
        slabs = ours.statistics.slab_bytes
        self.assertLess(slabs - ours.installed.plan.bytes, len(ours.installed.plan.slabs) * 65536)
        self.assertTrue(all(len(addresses) == 1 for addresses in ours.addresses.values()))

    def test_gradient_dtypes(self) -> None:
        """Gradients are planned in the dtype of their reduce-scatter."""
        from megatron_fsdp import MixedPrecisionPolicy
        for comm, expected in ((None, "fp32"), (torch.bfloat16, "bf16")):
            policy = MixedPrecisionPolicy(main_grads_dtype=torch.float32, grad_comm_dtype=comm)
            with fake_ranks(RANKS), without_cuda():
                with pooled.install() as installed:
                    model = wrap(random_stack(3), expert_parallel=2, policy=policy)
                step(model, 0)
            self.assertEqual({each.dtype for each in installed.plan.requests if each.role == "grad"}, {expected})

    def test_hybrid_sharding(self) -> None:
        """Replicated or sharded over outer groups; the outer reduction's copy is pooled where gradients are
        communicated in another dtype, and is a shard of the inner group."""
        from megatron_fsdp import MixedPrecisionPolicy
        for outer_strategy in (0, 1):
            for comm in (None, torch.bfloat16):
                policy = MixedPrecisionPolicy(main_grads_dtype=torch.float32, grad_comm_dtype=comm)
                with self.subTest(outer=outer_strategy, comm=comm), fake_ranks(RANKS), without_cuda():
                    with pooled.install() as installed:
                        model = wrap(random_stack(3), outer=2, policy=policy, outer_dp_sharding_strategy=outer_strategy)
                    model.set_model_auto_sync(True)
                    for number in range(2):
                        step(model, number)
                        model.zero_grad()
                    copies = [each for each in installed.plan.requests if each.role == "grad_comm"]
                    gradients = {each.bucket: each.bytes for each in installed.plan.requests if each.role == "grad"}
                    self.assertEqual({each.bucket: each.bytes * RANKS // 2 for each in copies},
                                     gradients if comm else {})
                    self.assertEqual(installed.pool.statistics.refused, 0)

    def test_guarded(self) -> None:
        """Freed buckets that anything still reads or writes would trap: with activations computed again, evaluations
        between steps, and forward passes whose backward never comes."""
        words = torch.zeros(2, 3, dtype=torch.long)
        for recompute in (False, True):
            with fake_ranks(RANKS), without_cuda():
                module = random_stack(3)
                module.recompute = recompute
                with pooled.install(guard="on") as installed:
                    model = wrap(module, expert_parallel=2)
                for number in range(2):
                    step(model, number)
                    model.zero_grad()
                    with torch.no_grad():
                        model(words)
                    model(words)
                statistics = installed.pool.statistics
                self.assertEqual((statistics.refused, statistics.deviations), (0, 0))
                self.assertEqual(statistics.acquires - statistics.releases, statistics.live_requests)


class TheirLayouts(unittest.TestCase):
    """The policies fixed and max equal FixedPoolAllocator and MaxPoolAllocator."""

    def _offsets(self, plan: bucketpool.Plan) -> Dict[int, int]:
        return {bucket_id_of(each.bucket): each.offset for each in plan.requests if each.role == "param"}

    def test_max(self) -> None:
        """Buckets that share a buffer there share one here: of one dtype and rank, in two copies."""
        for seed in SEEDS:
            groups, units = described(seed)
            theirs = buffers.MaxPoolAllocator(name="fsdp_params", fsdp_param_groups=groups, size=2)
            offsets = self._offsets(units.plan("max", copies=2))
            ranks: Dict[Any, set] = collections.defaultdict(set)
            for bucket_id, (_, rank) in theirs.bucket_alloc_index.items():
                ranks[groups[bucket_id].dtype, rank].add(offsets[bucket_id])
            self.assertLessEqual(max(len(places) for places in ranks.values()), 2)
            self.assertEqual(sum(len(places) for places in ranks.values()), len(set(offsets.values())))

    def test_fixed(self) -> None:
        """The same units share buffers; every other bucket has separate memory."""
        for seed in SEEDS:
            groups, units = described(seed)
            theirs = buffers.FixedPoolAllocator(name="fsdp_params", fsdp_param_groups=groups, size=2)
            shared = set(theirs.fsdp_double_buffer_units)
            offsets = self._offsets(units.plan("fixed", copies=2))
            places: Dict[int, set] = collections.defaultdict(set)
            for bucket_id, offset in offsets.items():
                places[offset].add(groups[bucket_id].fsdp_unit_id)
            for places_of in places.values():
                self.assertTrue(places_of <= shared or len(places_of) == 1, (places_of, shared))
            buckets_of = collections.Counter(group.fsdp_unit_id for group in groups)
            first = next(iter(shared))
            pool = {offsets[bucket_id] for bucket_id in offsets if groups[bucket_id].fsdp_unit_id in shared}
            self.assertLessEqual(len(pool), 2 * buckets_of[first])


class Export(unittest.TestCase):
    def test_sizes_and_names(self) -> None:
        """units.json equals the package's buffers, and a file that was written and read gives the same plan."""
        for seed in SEEDS:
            groups, units = described(seed)
            sizes = {index: group.model_weight_buffer.bucket_index.size for index, group in enumerate(groups)}
            with tempfile.TemporaryDirectory() as folder:
                path = os.path.join(folder, "units.json")
                command = units.write(path)
                read = bucketpool.Model.read(path)
            self.assertIn(f"--roles {','.join(units.roles)}", command)
            self.assertEqual({bucket_id_of(bucket.name): bucket.padded_numel for bucket in read.buckets}, sizes)
            for bucket in read.buckets:
                group = groups[bucket_id_of(bucket.name)]
                self.assertEqual(bucket.numel, sum(parameter.numel() for parameter in group.params))
                self.assertEqual((bucket.expert, bucket.frozen), (group.is_expert_param, not group.requires_grad))
                self.assertEqual(bucket.unit is None, group.fsdp_unit_id is None)
            self.assertEqual([unit.name for unit in read.units], [f"units.{index}" for index in range(len(read.units))])
            again = bucketpool.Buckets(read, bucketing="given", padding="given", dp=units.dp, ep=units.ep,
                                       roles=units.roles, grad_dtype=units.grad_dtype)
            schedule = bucketpool.Schedule.training(again, prefetch=1, grad_units=2)
            self.assertEqual(bucketpool.Plan(again, schedule).fingerprint, units.plan().fingerprint)

    def test_offline_plan(self) -> None:
        """A plan that was written and read serves the module that it was exported from."""
        with fake_ranks(RANKS), without_cuda():
            plan = pooled.describe(wrap(random_stack(4), expert_parallel=2)).plan()
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "plan.json")
            plan.write(path)
            ours = Ours(4, plan=path)
        self.assertEqual((ours.statistics.deviations, ours.installed.plan.fingerprint), (0, plan.fingerprint))
        self.assertTrue(ours.addresses)

    def test_planning_function(self) -> None:
        """A planning function, for other schedules than the default."""
        with fake_ranks(RANKS), without_cuda():
            planner = lambda units: units.plan("max", units.schedule(passes="both"), copies=3)  # noqa: E731
            with pooled.install(plan=planner) as installed:
                model = wrap(random_stack(3), expert_parallel=2)
            step(model, 0)
            self.assertEqual((installed.plan.policy, installed.plan.copies), ("max", 3))

    def test_no_plan(self) -> None:
        with self.assertRaisesRegex(errors.InvalidArgument,
                                    "a function of Units, or None, got 3"), pooled.install(plan=3):
            pass
        with fake_ranks(RANKS), without_cuda(), pooled.install(plan=lambda units: None), \
                self.assertRaisesRegex(errors.InvalidArgument, "returned None; return a Plan"):
            wrap(random_stack(3), expert_parallel=2)

    def test_closed(self) -> None:
        """After close() no other pool is created, although gradients are allocated after parameters."""
        with fake_ranks(RANKS), without_cuda():
            with pooled.install() as installed:
                model = wrap(random_stack(3), expert_parallel=2)
            installed.close()
            installed.close()
            with self.assertRaisesRegex(errors.ScheduleError, "the pool was closed"):
                installed.pool
            bucket, group = next((index, group)
                                 for index, group in enumerate(model.param_and_grad_buffer.parameter_groups)
                                 if group.fsdp_unit_id is not None)
            with self.assertRaisesRegex(errors.InvalidArgument, "Pool is closed"):
                installed.allocators["grad"].allocate(bucket, group.main_grad_buffer.bucket_index.size,
                                                      group.grad_dtype, torch.device("cpu"))

    def test_plan_of_another_module(self) -> None:
        """Detected while the module is wrapped, with the numbers."""
        with fake_ranks(RANKS), without_cuda():
            plan = described(0)[1].plan()
            with pooled.install(plan=plan, on_mismatch="error"), \
                    self.assertRaisesRegex(errors.Mismatch, r"module are .*, first "):
                wrap(random_stack(5), expert_parallel=2)
        with fake_ranks(RANKS), without_cuda():
            few = pooled.describe(wrap(random_stack(3), expert_parallel=2, policy=None))
        roles = bucketpool.Buckets(few.model, bucketing="given", padding="given", roles=("param",))
        plan = bucketpool.Plan(roles, bucketpool.Schedule.training(roles))
        with fake_ranks(RANKS), without_cuda(), pooled.install(plan=plan, on_mismatch="error"), \
                self.assertRaisesRegex(errors.Mismatch, "grad bucket 1 of unit 0"):
            wrap(random_stack(3), expert_parallel=2)

    def test_installing(self) -> None:
        """Only with double buffers; what was replaced is back afterwards, also after an
        exception."""
        before = buffers.FixedPoolAllocator, buffers.MaxPoolAllocator
        with fake_ranks(RANKS), without_cuda():
            with self.assertRaisesRegex(RuntimeError, "stop"), pooled.install():
                raise RuntimeError("stop")
            self.assertEqual((buffers.FixedPoolAllocator, buffers.MaxPoolAllocator), before)
            with self.assertRaisesRegex(errors.ScheduleError, "fsdp_double_buffer=True"), pooled.install() as installed:
                wrap(random_stack(0), expert_parallel=2, double_buffer=False)
            with self.assertRaisesRegex(errors.ScheduleError, "first wrap a module"):
                installed.pool
            with self.assertRaises(ImportError), pooled.install(package="no_such_fsdp"):
                pass

    def test_strategies(self) -> None:
        """Unsharded buffers are not pooled."""
        with fake_ranks(RANKS), without_cuda():
            gradients = pooled.describe(wrap(random_stack(5), strategy=2, expert_parallel=2))
            self.assertEqual(gradients.roles, ("grad",))
            with self.assertRaisesRegex(errors.Unsupported, "nothing to pool"):
                pooled.describe(wrap(random_stack(5), strategy=1, expert_parallel=2))
        with fake_ranks(1), without_cuda(), self.assertRaisesRegex(errors.Unsupported, "more than one rank"):
            pooled.describe(wrap(random_stack(5)))

    def test_nothing_to_pool(self) -> None:
        """Unsharded gradients get temporary buffers in a step that communicates in another dtype: from PyTorch."""
        from megatron_fsdp import MixedPrecisionPolicy
        narrow = MixedPrecisionPolicy(grad_comm_dtype=torch.bfloat16)
        for on_mismatch in ("replan", "plain", "error"):
            with self.subTest(on_mismatch), fake_ranks(RANKS), without_cuda():
                with pooled.install(on_mismatch=on_mismatch) as installed:
                    model = wrap(random_stack(5), strategy=1, expert_parallel=2)
                model.set_model_auto_sync(True)
                step(model, 0)
                with model.mixed_precision_context(narrow):
                    if on_mismatch == "error":
                        self.assertRaisesRegex(errors.Unsupported, "nothing to pool", step, model, 1)
                        continue
                    with self.assertWarnsRegex(RuntimeWarning, "nothing to pool"):
                        step(model, 1)
                    step(model, 2)
                self.assertGreater(installed.counts.differing, 1)
                self.assertEqual((installed.counts.served, installed.counts.replans), (0, 0))
                self.assertEqual([each for made in installed.allocators.values() for each in made.live], [])
                installed.only.next_step()
                installed.close()

    def test_not_wrapped(self) -> None:
        with self.assertRaisesRegex(errors.InvalidArgument, "fully_shard_model"):
            pooled.describe(torch.nn.Linear(2, 2))


if __name__ == "__main__":
    unittest.main()
