# SPDX-License-Identifier: Apache-2.0
"""Models, buckets, schedules and plans: their contents, and refused input.

Argument: the command, which must make the same plans; without it those tests are skipped.
"""

import contextlib
import ctypes
import os
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

import bucketpool as bp
from bucketpool import _abi
from bucketpool._library import call, configured, core, viewed
from bucketpool.schedule import ScheduleHandle
from support import MODELS, needs_numpy, numpy, small_plan

COMMAND = sys.argv.pop(1) if len(sys.argv) > 1 and os.path.exists(sys.argv[1]) else None
NANO = os.path.join(MODELS, "Nemotron-3-Nano-30B-A3B")


def nano(ep=8):
    model = bp.Model.read(NANO).with_layout("megatron").shard(ep=ep)
    return model, bp.Buckets(model, dp=64, ep=ep)


class Models(unittest.TestCase):
    def test_published_model(self):
        model = bp.Model.read(NANO)
        self.assertEqual(model.name, "Nemotron-3-Nano-30B-A3B")
        self.assertEqual(len(model.units), 52)
        self.assertEqual(model.units[3], bp.Unit("backbone.layers.3", None))
        self.assertEqual(model.numel, 31577937344)
        named = {p.name: p for p in model.parameters}
        weight = named["backbone.layers.0.mixer.in_proj.weight"]
        self.assertEqual((weight.unit, weight.dtype, weight.gemm, weight.frozen), (0, "bf16", True, False))
        self.assertIsNone(named["backbone.embeddings.weight"].unit)
        self.assertEqual(bp.Model.read(NANO, name="mine", dtype="fp32").parameters[0].dtype, "fp32")

    def test_notes(self):
        self.assertEqual(bp.Model.read(NANO).notes, [])
        note, = bp.Model.read(os.path.join(os.path.dirname(NANO), "Gemma-3-27B")).notes
        self.assertIn("not counted: vision_config", note)

    def test_added_units_and_parameters(self):
        model = bp.Model("m")
        outer = model.add_unit("outer")
        inner = model.add_unit("outer.inner", parent=outer)
        model.add_parameter("outer.a", (3, 5), "fp32", unit=outer, frozen=True)
        model.add_parameter("outer.experts.*.w", [7, 2], "torch.bfloat16", unit=inner, gemm=True, expert_copies=4)
        model.add_parameter("scale", (), "fp16")
        self.assertEqual(model.units, [bp.Unit("outer", None), bp.Unit("outer.inner", 0)])
        a, w, scale = model.parameters
        self.assertEqual((a.name, a.unit, a.shape, a.dtype, a.frozen, a.copies),
                         ("outer.a", 0, (3, 5), "fp32", True, 1))
        self.assertEqual((w.unit, w.shape, w.dtype, w.gemm, w.copies), (inner, (7, 2), "bf16", True, 4))
        self.assertEqual((scale.unit, scale.shape, scale.dtype), (None, (), "fp16"))
        self.assertEqual(model.numel, 15 + 56 + 1)
        self.assertEqual(model.order, [0])

    def test_structs_of_an_older_caller(self):
        """As a program that was compiled when the struct ended earlier: what it lacks is as the defaults are."""
        class Older(ctypes.Structure):
            _fields_ = [field for field in _abi.bp_parameter._fields_
                        if field[0] not in ("copies", "tp_dim", "tp_parts", "expert_dim")]

        model = bp.Model("m")
        older = Older()
        as_known = ctypes.cast(ctypes.pointer(older), ctypes.POINTER(_abi.bp_parameter))
        call(core().bp_parameter_init, as_known, ctypes.sizeof(older))
        self.assertEqual((older.size, older.unit), (ctypes.sizeof(Older), _abi.BP_OUTSIDE))
        older.name, older.dims, older.dtype = b"w", 1, _abi.BP_DTYPE_BF16
        older.shape[0] = 4
        call(core().bp_model_add_parameter, model.handle, as_known)
        parameter, = model.parameters
        self.assertEqual((parameter.name, parameter.copies, parameter.tp_dim, parameter.expert_dim),
                         ("w", 1, None, None))

    def test_written_and_read_model(self):
        model = bp.Model("recorded")
        for unit in (model.add_unit("a"), model.add_unit("b")):
            model.add_bucket(unit, "bf16", 100, name="dense", padded_numel=128)
            model.add_bucket(unit, "uint8", 64, expert=True, frozen=True, roles=("param",))
        for acquire, unit, role in ((True, 0, "param"), (True, 1, "param"), (False, 0, "param"), (False, 1, "param")):
            model.add_event(acquire, unit, role, bucket=0, lane="gather")
        model.set_order([0, 1, 0])
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "units.json")
            model.write_units(path)
            read = bp.Model.read(path)
        self.assertEqual((read.name, read.units, read.buckets, read.events, read.order),
                         (model.name, model.units, model.buckets, model.events, [0, 1, 0]))
        self.assertEqual(read.buckets[1], bp.GivenBucket(None, 0, "uint8", 64, 0, True, True, ("param",)))

    @needs_numpy
    def test_numpy_dtypes(self):
        for dtype, name in ((numpy.float32, "fp32"), (numpy.dtype("float16"), "fp16"), (numpy.dtype("uint8"), "uint8")):
            model = bp.Model("m")
            model.add_bucket(model.add_unit("u"), dtype, 10)
            self.assertEqual(model.buckets[0].dtype, name)

    def refused(self, kind, words, function, *arguments, **more):
        with self.assertRaises(kind) as caught:
            function(*arguments, **more)
        for word in words:
            self.assertIn(word, str(caught.exception))
        return caught.exception

    def test_hostile_values(self):
        model = bp.Model("m")
        unit = model.add_unit("u")
        wrong = bp.InvalidArgument
        error = self.refused(wrong, ["bf61", "bf16", "fp32"], model.add_bucket, unit, "bf61", 10)
        self.assertIsInstance(error, ValueError)
        self.assertEqual(error.status, 1)
        self.refused(wrong, ["-1"], model.add_bucket, unit, "bf16", -1)
        self.refused(wrong, ["2^64"], model.add_bucket, unit, "bf16", 1 << 64)
        self.refused(wrong, ["numel", "'ten'"], model.add_bucket, unit, "bf16", "ten")
        self.refused(bp.SizeOverflow, [], model.add_bucket, unit, "fp64", (1 << 64) - 1)
        self.refused(wrong, ["7"], model.add_bucket, 7, "bf16", 10)
        self.refused(wrong, ["NUL"], model.add_unit, "a\0b")
        self.refused(wrong, ["string"], model.add_unit, 5)
        self.refused(wrong, ["parent"], model.add_unit, "v", parent=9)
        self.refused(wrong, ["9 dimensions", "8"], model.add_parameter, "w", (1,) * 9, "bf16")
        self.refused(wrong, ["dimension of w", "-2"], model.add_parameter, "w", (3, -2), "bf16")
        self.refused(wrong, ["role"], model.add_event, True, unit, "parm")
        self.refused(wrong, ["lane", "gather"], model.add_event, True, unit, "param", lane="fast")
        self.refused(wrong, ["layout", "megatron"], model.with_layout, "torch")
        self.refused(wrong, [], model.set_order, [0, 5])
        self.assertEqual(model.buckets, [])
        self.assertEqual(len(model.units), 1)

    def test_unreadable_files(self):
        with tempfile.TemporaryDirectory() as folder:
            missing = os.path.join(folder, "none.json")
            error = self.refused(bp.FileError, ["none.json"], bp.Model.read, missing)
            self.assertIsInstance(error, OSError)
            broken = os.path.join(folder, "config.json")
            with open(broken, "w", encoding="utf-8") as file:
                file.write('{"model_type": "llama",\n "hidden_size" 5}')
            self.refused(bp.FormatError, ["config.json", "2"], bp.Model.read, broken)
            with open(broken, "w", encoding="utf-8") as file:
                file.write('{"model_type": "abacus"}')
            self.refused(bp.Unsupported, ["abacus", "safetensors", "describe"], bp.Model.read, broken)
            self.refused(bp.FileError, [], bp.Plan.read, missing)


class Number:
    """As numpy's integers: none of Python's, but an index."""

    def __init__(self, value):
        self.value = value

    def __index__(self):
        return self.value


class Plans(unittest.TestCase):
    def test_plans_of_every_policy(self):
        _, buckets = nano()
        schedule = bp.Schedule.training(buckets)
        for policy in ("fixed", "max", "scheduled"):
            plan = bp.Plan(buckets, schedule, policy=policy)
            plan.check(buckets, schedule)
            self.assertEqual((plan.policy, plan.feasible, plan.stable), (policy, True, True))
            self.assertEqual(sum(slab.bytes for slab in plan.slabs), plan.bytes)
            self.assertGreaterEqual(plan.bytes, plan.lower_bound_bytes)
            self.assertEqual({r.placement for r in plan.requests}, {"planned"})
            self.assertEqual([(r.unit, r.role, r.bytes) for r in plan.requests],
                             [(r.unit, r.role, r.bytes) for r in buckets.requests])
        self.assertEqual((plan.bytes, plan.optimal), (plan.lower_bound_bytes, True))  # scheduled
        self.assertEqual([role.roles for role in plan.roles], [("param",), ("grad",)])
        floor = bp.Plan(buckets, schedule, policy="dynamic")
        self.assertEqual((floor.bytes, floor.stable), (plan.bytes, False))
        self.assertEqual({r.placement for r in floor.requests}, {"dynamic"})

    @unittest.skipUnless(COMMAND, "the command was not built")
    def test_versions(self):
        self.assertEqual(bp.__version__, core().bp_version().decode())

    @unittest.skipUnless(COMMAND, "the command was not named")
    def test_command_of_the_package(self):
        environment = {**os.environ, "PATH": os.path.dirname(COMMAND) + ":" + os.environ["PATH"]}
        for arguments, code, text in ((["version"], 0, f"bucketpool {bp.__version__}\n"),
                                      (["nonsense"], 2, 'unknown command "nonsense"'),
                                      (["describe", "/nowhere"], 2, "/nowhere")):
            result = subprocess.run([sys.executable, "-m", "bucketpool", *arguments], capture_output=True, text=True,
                                    env=environment)
            self.assertEqual(result.returncode, code, result.stderr)
            self.assertIn(text, result.stdout + result.stderr)
        bare = subprocess.run([sys.executable, "-m", "bucketpool", "plan"], capture_output=True, text=True,
                              env={**environment, "PATH": "/nowhere"})
        self.assertEqual(bare.returncode, 3)
        self.assertIn("install the wheel", bare.stderr)

    @unittest.skipUnless(COMMAND, "needs the command")
    def test_plan_of_the_command(self):
        _, buckets = nano()
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "plan.json")
            for policy, options, more in (("scheduled", {}, []), ("max", {"prefetch": 2}, ["--prefetch", "2"]),
                                          ("scheduled", {"streams": "unified"}, ["--streams", "unified"])):
                plan = bp.Plan(buckets, bp.Schedule.training(buckets, **options), policy=policy)
                subprocess.run([COMMAND, "plan", NANO, "--ep", "8", "--policy", policy, *more, "-o", path], check=True,
                               stdout=subprocess.DEVNULL)
                theirs = bp.Plan.read(path)
                self.assertEqual((theirs.fingerprint, theirs.bytes), (plan.fingerprint, plan.bytes))
                self.assertEqual(theirs.requests, plan.requests)

    def test_saved_plans(self):
        buckets, schedule, plan = small_plan()
        plan.model = "ours"
        plan.set_option("prefetch", "1")
        plan.set_group(0, "mine")
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "plan.json")
            plan.write(path)
            read = bp.Plan.read(path)
            self.assertEqual((read.model, read.options["prefetch"], read.slabs[0].group), ("ours", "1", "mine"))
            self.assertEqual(read.fingerprint, plan.fingerprint)
            read.check(buckets, schedule)
            with open(path, encoding="utf-8") as file:
                text = file.read()
            with open(path, "w", encoding="utf-8") as file:
                file.write(text.replace('"offset": 0', '"offset": 256', 1))
            self.assertRaises((bp.Mismatch, bp.FormatError), bp.Plan.read, path)

    def test_infeasible_plan(self):
        _, _, plan = small_plan(policy="max", copies=1)
        self.assertFalse(plan.feasible)
        self.assertIn("too few", plan.infeasible_because)
        with self.assertRaises(bp.Infeasible) as caught:
            bp.Pool(bp.Device.host(), plan)
        self.assertIn("too few", str(caught.exception))

    def test_check_with_other_buckets(self):
        buckets, schedule, plan = small_plan()
        others, other_schedule, _ = small_plan(sizes=(1000, 3000, 2000, 3000, 1001))
        self.assertRaises(bp.Mismatch, plan.check, others, other_schedule)
        with self.assertRaises(bp.InvalidArgument):
            bp.Plan(small_plan(sizes=(5, 5))[0], schedule)

    def test_defaults(self):
        """Every default that Python writes out is that of C."""
        different = []

        def noting(init, kind, /, **values):
            struct, default = configured(init, kind, **values), configured(init, kind)
            different.extend((kind.__name__, name, getattr(struct, name), getattr(default, name)) for name in values
                             if not isinstance(getattr(struct, name), ctypes._Pointer)
                             and getattr(struct, name) != getattr(default, name))
            return struct

        modules = [module for name, module in sys.modules.items()
                   if name.startswith("bucketpool.") and hasattr(module, "configured")]
        with contextlib.ExitStack() as stack:
            for module in modules:
                stack.enter_context(unittest.mock.patch.object(module, "configured", noting))
            buckets = bp.Buckets(bp.Model.read(NANO))
            schedule = bp.Schedule.training(buckets)
            plan = bp.Plan(buckets, schedule)
            bp.alternatives(small_plan()[0])
            packing = bp.Packing()
            packing.add(1, [(0, 1)])
            packing.pack()
            recorded = bp.Model("recorded")
            recorded.add_bucket(recorded.add_unit("u"), "bf16", 1)
            for acquire in (True, False):
                recorded.add_event(acquire, 0, "param")
            bp.Schedule.recorded(recorded, bp.Buckets(recorded, "given", roles=("param",)))
            with bp.Device.host() as device, bp.Pool(device, small_plan()[2]) as pool, bp.Pinned(device), \
                    bp.Offload(pool), tempfile.TemporaryDirectory() as folder:
                bp.Capture(pool)
                bp.Profile(pool, directory=folder).close()
        given = {("bp_buckets_config", "bucketing"), ("bp_buckets_config", "padding"), ("bp_buckets_config", "roles"),
                 ("bp_profile_config", "directory"), ("bp_pool_config", "on_message")}
        stands_for = {"queue_length": 16384, "chunk_bytes": 32 << 20, "profile_step_count": 2, "max_entries": 100_000,
                      "ranks": 1, "formats": 1}  # 0 in C or Python
        self.assertEqual([(kind, name, ours, theirs) for kind, name, ours, theirs in different if (kind, name) not in given
                          and {ours, theirs} != {0, stands_for.get(name)}], [])
        self.assertEqual(plan.policy, "scheduled")
        self.assertGreaterEqual(len(modules), 8)

    @unittest.skipUnless(COMMAND, "needs the command")
    def test_defaults_of_the_command(self):
        """The command without options plans as Python without arguments does, in the layout of the runtime."""
        for rule, layout in (("megatron", "megatron"), ("fsdp2", "stacked")):
            buckets = bp.Buckets(bp.Model.read(NANO).with_layout(layout), rule)
            plan = bp.Plan(buckets, bp.Schedule.training(buckets))
            with tempfile.TemporaryDirectory() as folder:
                path = os.path.join(folder, "plan.json")
                subprocess.run([COMMAND, "plan", NANO, "--bucketing", rule, "-o", path], check=True, capture_output=True,
                               timeout=300)
                made = bp.Plan.read(path)
            self.assertEqual((made.policy, made.alignment, made.bytes, made.requests),
                             (plan.policy, plan.alignment, plan.bytes, plan.requests))
            self.assertEqual({b.shards for b in buckets if not b.expert}, {64})

    def test_root_group(self):
        buckets = bp.Buckets(bp.Model.read(NANO).with_layout("stacked"), "fsdp2")
        self.assertEqual((buckets.units[buckets.root], buckets.root, buckets.persistent_bytes), ("(root)", 52, 0))
        self.assertIsNone(bp.Buckets(bp.Model.read(NANO)).root)
        self.assertTrue(bp.Model.read(NANO).published)
        self.assertFalse(bp.Model("m").published)

    def test_one_rank(self):
        model = bp.Model("m")
        model.add_parameter("w", [8, 8], "bf16", unit=model.add_unit("u"))
        self.assertEqual(bp.Buckets(model, dp=1).requests, [])
        self.assertEqual([r.role for r in bp.Buckets(model, dp=1, roles=("param", "state")).requests], ["state"])
        self.assertEqual(len(bp.Buckets(model, dp=1, single_rank=True).requests), 2)
        with self.assertRaisesRegex(bp.InvalidArgument, "one rank communicate nothing"):
            buckets = bp.Buckets(model, dp=1)
            bp.Plan(buckets, bp.Schedule.training(buckets))

    def test_hostile_options(self):
        model, buckets = nano()
        schedule = bp.Schedule.training(buckets)
        for words, function in (
                (["policy", "best", "scheduled"], lambda: bp.Plan(buckets, schedule, policy="best")),
                (["3"], lambda: bp.Plan(buckets, schedule, alignment=3)),
                (["copies", str(1 << 32)], lambda: bp.Plan(buckets, schedule, copies=1 << 32)),
                (["dp"], lambda: bp.Buckets(model, dp=0)),
                (["dp", "-1"], lambda: bp.Buckets(model, dp=-1)),
                (["dp", "'8'"], lambda: bp.Buckets(model, dp="8")),
                (["dp", str((1 << 32) + 8)], lambda: bp.Buckets(model, dp=Number((1 << 32) + 8))),
                (["ep"], lambda: bp.Buckets(model, dp=4, ep=3)),
                (["bucketing", "fsdp2"], lambda: bp.Buckets(model, bucketing="fsdp1")),
                (["padding"], lambda: bp.Buckets(model, padding="some")),
                (["parm"], lambda: bp.Buckets(model, roles=("parm",))),
                (["grad_units"], lambda: bp.Schedule.training(buckets, grad_units=0)),
                (["passes", "eval"], lambda: bp.Schedule.training(buckets, passes="night")),
                (["999"], lambda: bp.Schedule.training(buckets, overrides={999: (1, None)})),
                (["events"], lambda: bp.Schedule.recorded(model, buckets)),
                ([], lambda: bp.Schedule.merged([]))):
            with self.assertRaises(bp.InvalidArgument) as caught:
                function()
            for word in words:
                self.assertIn(word, str(caught.exception))

    def test_schedules(self):
        buckets, schedule, _ = small_plan()
        self.assertEqual(schedule.step_count, 10)
        self.assertEqual((schedule.steps[0].phase, schedule.steps[0].unit), ("forward", 0))
        self.assertEqual((schedule.steps[9].phase, schedule.steps[9].unit), ("backward", 0))
        self.assertEqual(schedule.intervals(0)[0], (0, 1))
        self.assertRaisesRegex(bp.InvalidArgument, "unknown request 1000000", schedule.intervals, 10 ** 6)
        self.assertEqual(schedule.overlaps, [])
        events = schedule.events
        self.assertEqual(sum(e.requests for e in events if e.acquire), sum(e.requests for e in events if not e.acquire))
        both = bp.Schedule.merged([schedule, bp.Schedule.training(buckets, passes="eval")])
        self.assertEqual(both.step_count, 15)
        self.assertRaises(TypeError, bp.Schedule)

    def test_configs_of_other_versions(self):
        """ctypes structs with fewer fields than the library's, and with more."""
        buckets, _, _ = small_plan()
        fields = _abi.bp_schedule_config._fields_

        class Older(ctypes.Structure):
            _fields_ = fields[:3]

        class Newer(ctypes.Structure):
            _fields_ = [*fields, ("later", ctypes.c_uint64)]

        def first_interval(config):
            schedule = ScheduleHandle()
            call(core().bp_schedule_create_training, buckets.handle,
                 ctypes.cast(ctypes.byref(config), ctypes.POINTER(_abi.bp_schedule_config)), ctypes.byref(schedule))
            info = viewed(core().bp_schedule_get_info, schedule)
            return info.requests[info.request_count - 2].intervals[0].begin  # the last unit's parameters

        for prefetch in range(4):
            self.assertEqual(first_interval(Older(ctypes.sizeof(Older), prefetch, 2)), 4 - prefetch)
        newer = Newer()
        call(core().bp_schedule_config_init, ctypes.cast(ctypes.byref(newer), ctypes.POINTER(_abi.bp_schedule_config)),
             ctypes.sizeof(newer))
        self.assertEqual((newer.size, newer.prefetch, first_interval(newer)), (ctypes.sizeof(Newer), 1, 3))
        newer.later = 1
        self.assertRaisesRegex(bp.Unsupported, "update the library", first_interval, newer)

    def test_shared_pool(self):
        a, b = small_plan()[0], small_plan(sizes=(4000, 10))[0]
        united = bp.Buckets.merged({"policy": a, "reference": b})
        self.assertEqual(united.units, [f"policy/u{n}" for n in range(5)] + ["reference/u0", "reference/u1"])
        schedule = bp.Schedule.merged([bp.Schedule.embedded(bp.Schedule.training(part), united, index)
                                       for index, part in enumerate((a, b))])
        plan = bp.Plan(united, schedule)
        plan.check(united, schedule)
        self.assertEqual(len(plan.requests), len(a.requests) + len(b.requests))
        self.assertLess(plan.bytes,
                        bp.Plan(a, bp.Schedule.training(a)).bytes + bp.Plan(b, bp.Schedule.training(b)).bytes)

    def test_records_of_buckets(self):
        _, buckets = nano()
        listed = list(buckets)
        self.assertEqual(len(listed), len(buckets))
        self.assertEqual(buckets[-1], listed[-1])
        with self.assertRaises(IndexError):
            buckets[len(buckets)]
        by_role = [r for r in buckets.requests if r.role == "param"]
        self.assertEqual(sum(r.bytes for r in by_role), sum(2 * b.padded_numel for b in listed if b.unit is not None))
        self.assertGreater(buckets.persistent_bytes, 0)


if __name__ == "__main__":
    unittest.main()
