# SPDX-License-Identifier: Apache-2.0
"""`bucketpool run`: every byte of every bucket, wrong plans, traces, mistakes.

Arguments: source directory, the bucketpool executable. With UPDATE_GOLDEN=1 the golden files are written anew; look at
the difference before committing it. BUCKETPOOL_BRIEF, where it is set: every seventh model, and a share of the options.
"""

import functools
import hashlib
import json
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import time
import unittest

import answers
from answers import InFolder, run

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, "profile"))
import check_snapshot  # noqa: E402

ROOT, TOOL = sys.argv[1], os.path.abspath(sys.argv[2])
MODELS = os.path.join(ROOT, "examples", "models")
BRIEF = "BUCKETPOOL_BRIEF" in os.environ
NANO = "examples/models/Nemotron-3-Nano-30B-A3B"
SMALL = "65536"  # a scale at which every bundled model runs in a blink
ALL_ROLES = ("--roles", "param,param_transpose,grad,grad_comm,state,main_grad,optimizer")
document = functools.partial(answers.document, "run")


def masked(text):
    """Without what differs from run to run and from machine to machine: times, pages, the number of waits."""
    text = re.sub(r"[\d.]+ (ms of calls|million per second|s$)", r"_ \1", text, flags=re.MULTILINE)
    text = re.sub(r"\d+ (waits for|release events|elided)", r"_ \1", text)
    text = re.sub(r"[\d.]+ [KMG]iB of slabs", "_ of slabs", text)
    for member in ("seconds", "call_seconds", "acquires_per_second", "slab_bytes", "waits", "records", "elided"):
        text = re.sub(rf'("{member}": )[\d.e+-]+', r"\1_", text)
    return text


class Case(InFolder):
    def write(self, name, value):
        with open(self.path(name), "w", encoding="utf-8") as file:
            json.dump(value, file)
        return self.path(name)

    def clean(self, result):
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        self.assertRegex(result.stdout, r"(?m)^0 corrupted buckets of [1-9]")


class Golden(Case):
    def test_lines(self):
        result = run("run", NANO, "--ep", "8", "--scale", "64")
        self.clean(result)
        self.golden("run-nano.txt", masked(result.stdout))

    def test_document(self):
        result = run("run", NANO, "--ep", "8", "--scale", "1024", "--json")
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        self.golden("run-nano.json", masked(result.stdout))

    def test_help(self):
        self.golden("help-run.txt", run("run", "--help").stdout)


class Models(Case):
    def test_every_bundled_model(self):
        for number, model in list(enumerate(sorted(os.listdir(MODELS))))[::7 if BRIEF else 1]:
            for policy in (("dynamic",), ("fixed",), ("max",), ("scheduled",),
                           ("scheduled", "--joint", "--streams", "unified"), ("scheduled", "--delay", "50")):
                with self.subTest(model=model, policy=policy):
                    self.clean(run("run", os.path.join(MODELS, model), "--policy", *policy, "--ep", "18"[number % 2],
                                   "--scale", SMALL, "--steps", "2"))

    def test_options(self):
        every = (("--delay", "200", "--seed", "7"), ("--no-promises",), ("--guard",),
                 ("--strict", "warn"), ("--strict", "off"), ("--eval",), ("--prefetch", "4"),
                 ("--prefetch", "0", "--grad-units", "1"), ("--grad-units", "4"), ("--bucketing", "fsdp2"),
                 ("--policy", "fixed", "--fallback", "dynamic"), ("--policy", "max", "--buffers", "4"), ("--tp", "2"),
                 ("--align", "4096"), ("--param-dtype", "fp8", "--grad-comm-dtype", "bf16", *ALL_ROLES),
                 ("--policy", "dynamic", "--guard", *ALL_ROLES), ("--scale", "1048576"), ("--passes", "both"),
                 ("--prefetch-backward", "0"), ("--unit-prefetch", "backbone.layers.9=4:2"), ("--keep-after-forward",),
                 ("--streams", "unified", *ALL_ROLES), ("--outside", "successor"), ("--combined", "--delay", "100"),
                 ("--microbatches", "3", "--prefetch", "2"),
                 ("--param-dtype", "fp8", "--recompute", "--passes", "both", *ALL_ROLES),
                 ("--combined", "--streams", "unified", "--outside", "successor", "--passes", "both", *ALL_ROLES))
        for options in every[::4 if BRIEF else 1]:
            with self.subTest(options=options):
                self.clean(run("run", NANO, "--ep", "8", "--scale", SMALL, *options))
                if "--policy" not in options:
                    self.clean(run("run", NANO, "--ep", "8", "--scale", SMALL, *options, "--policy", "max"))

    def test_shared_pool(self):
        for policy in ("dynamic", "max", "scheduled"):
            self.clean(run("run", "examples/models/Qwen3-0.6B", "examples/models/Qwen2.5-0.5B", "--share",
                           "--scale", SMALL, "--policy", policy, *ALL_ROLES))

    def test_merged_recordings(self):
        for number, options in enumerate(((), ("--prefetch", "2"))):
            self.clean(run("run", NANO, "--ep", "8", "--scale", SMALL, "--trace", self.path(f"{number}.json"),
                           *options))
        for policy in ("max", "scheduled"):
            self.clean(run("run", self.path("0.json"), "--schedules", self.path("1.json"), "--scale", SMALL,
                           "--policy", policy))

    def test_scale_auto(self):
        report = document("examples/models/Nemotron-3-Ultra-550B-A55B", "--ep", "8", "--scale", "auto", "--steps", "1")
        scale = report["run"]["scale"]
        self.assertTrue(report["run"]["scale_picked"])
        self.assertGreater(scale, 1)
        self.assertEqual(scale & (scale - 1), 0)
        self.assertEqual(report["plan"]["alignment"], 256 * scale)
        self.assertEqual(report["verification"]["corrupted_buckets"], 0)

    def test_figures(self):
        """Scaling changes sizes, not what happens; peaks are those of the plan."""
        plan = json.loads(run("plan", NANO, "--ep", "8", "--policy", "dynamic", "--align", str(256 * 64),
                              "--json").stdout)
        small, large = (document(NANO, "--ep", "8", "--scale", scale, "--device", "null") for scale in ("64", "1"))
        bytes_at_once = plan["models"][0]["policies"][0]["bytes"]
        self.assertEqual(small["statistics"]["peak_live_bytes"] * 64, bytes_at_once)
        for member in ("acquires", "releases", "waits", "records", "elided", "requests"):
            self.assertEqual(small["statistics"][member], large["statistics"][member], member)
        self.assertEqual(small["sequence"], large["sequence"])
        self.assertEqual(small["statistics"]["acquires"], small["statistics"]["releases"])
        loose = document(NANO, "--ep", "8", "--scale", "64", "--device", "null", "--no-promises")["statistics"]
        self.assertEqual(loose["elided"], 0)
        self.assertGreater(loose["records"], small["statistics"]["records"])

    def test_null_device(self):
        for model in ("Nemotron-3-Ultra-550B-A55B", "DeepSeek-V3"):
            for policy in ("dynamic", "fixed", "max", "scheduled"):
                result = run("run", os.path.join(MODELS, model), "--device", "null", "--policy", policy)
                self.assertEqual((result.returncode, result.stderr), (0, ""))
                self.assertIn("not verified: device null has no memory", result.stdout)
        verification = document(NANO, "--device", "null")["verification"]
        self.assertEqual((verification["verified"], verification["checked_bytes"]), (False, 0))

    def test_too_little_host_memory(self):
        for policy in ("max", "dynamic"):
            model = self.write("units.json", {"format": "bucketpool.units/1", "units": [
                {"name": "u", "buckets": [{"dtype": "bf16", "numel": 1 << 50}]}]})
            self.refused(run("run", model, "--policy", policy), 3, "--scale auto")


class Shapes(Case):
    """Models whose schedules are not the usual ones; at full size, with all roles."""

    def units(self, units, **more):
        return self.write("units.json", {"format": "bucketpool.units/1", "model": "shapes", "units": units, **more})

    def drive(self, path, *options):
        for policy in ("dynamic", "fixed", "max"):
            for device in ("host", "null"):
                report = document(path, "--policy", policy, "--device", device, "--delay", "20", "--steps", "7",
                                  "--dp", "2", *ALL_ROLES, *options)
                self.assertEqual(report["finished_steps"], 7)
                self.assertEqual(report["verification"]["corrupted_buckets"], 0)
                self.assertEqual(report["statistics"]["acquires"], report["statistics"]["releases"])

    def test_odd_sizes(self):
        """Tails of words, four-bit types, empty buckets, frozen ones."""
        self.drive(self.units([{"name": f"u{i}", "buckets": [
            {"dtype": "uint8", "numel": n}, {"dtype": "fp4_e2m1", "numel": n},
            {"dtype": "bf16", "numel": n, "frozen": True},
            {"dtype": "bf16", "numel": 0}, {"dtype": "fp32", "numel": n}]}
                               for i, n in enumerate((1, 7, 8, 9, 511, 512, 513, 4097))]))

    def test_one_unit(self):
        self.drive(self.units([{"name": "only", "buckets": [{"dtype": "bf16", "numel": 100000}]}]))

    def test_nested_units(self):
        bucket = {"dtype": "bf16", "numel": 5000}
        self.drive(self.units([{"name": "outer", "buckets": [bucket]},
                               {"name": "a", "parent": "outer", "buckets": [bucket]},
                               {"name": "b", "parent": "outer", "buckets": [bucket, bucket]},
                               {"name": "deep", "parent": "b", "buckets": [bucket]},
                               {"name": "last", "buckets": [bucket]}]),
                   "--prefetch", "2")

    def test_repeated_units(self):
        bucket = {"dtype": "bf16", "numel": 5000}
        units = [{"name": name, "buckets": [bucket]} for name in "abcde"]
        self.drive(self.units(units, order=["a", "b", "a", "c", "d", "d", "b", "e", "a"]))

    def test_recorded_schedule(self):
        """Buckets of one unit apart, intervals that begin and end anywhere, state that is given back."""
        units = [{"name": f"u{i}", "buckets": [{"dtype": "bf16", "numel": 3000 + i,
                                                "roles": ["param", "grad", "state"]}] * 2}
                 for i in range(3)]
        def events(kind, unit, role, *buckets):
            return [{kind: f"u{unit}", "role": role, "bucket": b} for b in buckets]
        schedule = [*events("acquire", 0, "state", 0, 1), *events("acquire", 1, "state", 0, 1),
                    *events("acquire", 2, "state", 0, 1),
                    *events("acquire", 0, "param", 0), *events("acquire", 1, "param", 0, 1),
                    *events("acquire", 0, "param", 1),
                    *events("release", 0, "param", 0), *events("acquire", 2, "param", 1, 0),
                    *events("acquire", 2, "grad", 0, 1),
                    *events("release", 1, "param", 1, 0), *events("acquire", 0, "param", 0),
                    *events("release", 2, "grad", 1),
                    *events("acquire", 0, "grad", 0, 1), *events("acquire", 1, "grad", 1),
                    *events("release", 2, "grad", 0),
                    *events("acquire", 1, "grad", 0), *events("release", 0, "grad", 0, 1),
                    *events("release", 1, "grad", 0, 1),
                    *events("release", 0, "param", 0, 1), *events("release", 2, "param", 0, 1),
                    *events("release", 0, "state", 0, 1),
                    *events("release", 1, "state", 0, 1), *events("release", 2, "state", 0, 1)]
        path = self.units(units, schedule=schedule)
        self.drive(path, "--roles", "param,grad,state")
        self.drive(path, "--roles", "param")


# ---- plan files ------------------------------------------------------------------------------------------------------

DTYPES = {"fp32": 2, "bf16": 4, "uint8": 13}
ROLES = ["param", "param_transpose", "grad", "grad_comm", "state", "main_grad", "optimizer"]


def fingerprint(plan):
    """As docs/reference/formats.md has it."""
    data = bytearray()
    def text(value):
        data.extend(value.encode() + b"\0")
    def numbers(*values):
        data.extend(struct.pack(f"<{len(values)}Q", *values))
    text("bucketpool.plan/1")
    text(plan["policy"])
    numbers(plan["copies"], plan["bound"]["lower_bound_bytes"], int(plan["bound"]["optimal"]), plan["alignment"],
            len(plan["slabs"]))
    for slab in plan["slabs"]:
        text(slab["group"])
        numbers(slab["bytes"])
    numbers(len(plan["requests"]))
    for r in plan["requests"]:
        text(r["unit"])
        text(r["bucket"])
        numbers(r["ordinal"], ROLES.index(r["role"]), DTYPES[r["dtype"]], int("slab" in r), r.get("slab", 0),
                r.get("offset", 0), r["bytes"], r["used_bytes"])
    numbers(len(plan["classes"]))
    for c in plan["classes"]:
        numbers(c["slab"], DTYPES[c["dtype"]], c["copies"], c["offset"], c["stride"], c["bytes"])
    return hashlib.sha256(data).hexdigest()


def checksum(plan):
    """As docs/reference/formats.md has it."""
    options = plan["options"]
    data = b"".join(text.encode() + b"\0" for text in (plan["fingerprint"], plan["model"]))
    data += struct.pack("<Q", len(options))
    data += b"".join(text.encode() + b"\0" for option in options.items() for text in option)
    return hashlib.sha256(data).hexdigest()


class Plans(Case):
    MODEL = (NANO, "--ep", "8")
    SCALE = ("--scale", "256", "--steps", "2")

    def setUp(self):
        super().setUp()
        result = run("plan", *self.MODEL, "--policy", "max", "--align", str(256 * 256), "-o", self.path("plan.json"))
        self.assertEqual(result.returncode, 0, result.stderr)
        with open(self.path("plan.json"), encoding="utf-8") as file:
            self.plan = json.load(file)

    def find(self, unit, bucket, role="param"):
        return next(r for r in self.plan["requests"]
                    if (r["unit"], r["bucket"], r["role"]) == (f"backbone.layers.{unit}", bucket, role))

    def drive(self, *options, plan=None):
        """Writes the plan with its right hashes and drives it."""
        plan = plan or self.plan
        plan["fingerprint"] = fingerprint(plan)
        plan["checksum"] = checksum(plan)
        path = self.write("plan.json", plan)
        return run("run", *self.MODEL, "--plan", path, *self.SCALE, *options)

    def scheduled(self):
        """The same places without classes: any buffer may overlap any other."""
        self.plan["policy"] = "scheduled"
        self.plan["classes"] = []

    def test_documented_fingerprint(self):
        self.assertEqual(fingerprint(self.plan), self.plan["fingerprint"])
        self.assertEqual(checksum(self.plan), self.plan["checksum"])

    def test_valid_plans(self):
        self.clean(self.drive())
        self.clean(self.drive("--unchecked"))
        self.scheduled()
        result = self.drive("--delay", "50")
        self.clean(result)
        self.assertIn("policy scheduled", result.stdout)

    def test_edited_file(self):
        self.find(0, "dense")["offset"] += 1 << 20
        path = self.write("plan.json", self.plan)
        self.refused(run("run", *self.MODEL, "--plan", path, "--unchecked"), 2, "plan.json",
                     "changed after it was made")

    def collide(self):
        """Two buckets of units that are live together, on one copy of one class."""
        self.find(1, "dense")["offset"] = self.find(0, "dense")["offset"]

    def test_equal_addresses(self):
        self.collide()
        self.refused(self.drive(), 1, "plan.json does not fit Nemotron-3-Nano-30B-A3B")
        result = self.drive("--unchecked")
        self.one_line(result, 1, "backbone.layers.0", "backbone.layers.1", "training step 1, schedule step 0")
        self.assertIn("0 corrupted", result.stdout)
        result = self.drive("--unchecked", "--dump")
        self.assertEqual(result.returncode, 1)
        self.assertGreater(result.stderr.count("\n"), 2)
        self.assertIn("backbone.layers.0", result.stderr)

    def test_partial_overlap(self):
        self.scheduled()
        one, other = self.find(1, "experts"), self.find(0, "dense")
        other["offset"] = one["offset"] + (one["bytes"] // 2 & ~0xffff)
        self.refused(self.drive(), 1, "does not fit")
        self.one_line(self.drive("--unchecked"), 1, "backbone.layers.1", "experts", "backbone.layers.0")

    def test_refused_call(self):
        self.collide()
        result = self.drive("--unchecked", "--json")
        self.one_line(result, 1)
        failure = json.loads(result.stdout)["failure"]
        self.assertEqual((failure["kind"], failure["training_step"], failure["schedule_step"]), ("refused", 1, 0))
        self.assertIn(failure["detail"], result.stderr)
        self.assertNotEqual(failure["status"], "")

    def test_changed_addresses(self):
        """A bucket whose copy is held may have another one, if strict assignment lets it."""
        self.find(1, "experts")["offset"] = self.find(0, "dense")["offset"] # of the same class
        loose = self.drive("--unchecked", "--strict", "off", "--json")
        self.assertEqual((loose.returncode, loose.stderr), (0, ""))
        loose = json.loads(loose.stdout)
        self.assertGreater(loose["statistics"]["deviations"], 0)
        self.assertEqual(loose["verification"]["corrupted_buckets"], 0)
        warned = self.drive("--unchecked", "--strict", "warn", "--json")
        deviations = json.loads(warned.stdout)["statistics"]["deviations"]
        self.assertEqual((deviations, warned.returncode), (loose["statistics"]["deviations"], 0))
        self.assertEqual(warned.stderr.count("\n"), min(deviations, 3)) # the first few
        self.one_line(self.drive("--unchecked", "--strict", "error"), 1, "training step 1")

    def test_changed_size(self):
        self.find(0, "dense")["bytes"] -= 65536
        self.find(0, "dense")["used_bytes"] -= 65536
        self.refused(self.drive(), 1, "backbone.layers.0, dense")
        self.refused(self.drive("--unchecked"), 1, "backbone.layers.0")

    def test_missing_bucket(self):
        self.plan["requests"].pop()
        self.refused(self.drive(), 1, "149 requests", "150")
        self.refused(self.drive("--unchecked"), 1, "backbone.layers.51")

    def test_bucket_without_memory(self):
        for member in ("slab", "offset"):
            del self.find(0, "dense")[member]
        self.refused(self.drive(), 1, "is live but has no address")
        self.refused(self.drive("--unchecked"), 1, "backbone.layers.0", "has no memory")

    def test_requests_in_another_order(self):
        requests = self.plan["requests"]
        requests[0], requests[1] = requests[1], requests[0]
        self.refused(self.drive(), 1, "request 0")
        self.refused(self.drive("--unchecked"), 1, "request 0 has number 1")

    def test_plan_of_another_model(self):
        for options in ((), ("--unchecked",)):
            result = run("run", "examples/models/Llama-3.1-8B", "--plan", self.path("plan.json"), *self.SCALE, *options)
            self.refused(result, 1)

    def test_plan_of_another_schedule(self):
        self.refused(self.drive("--prefetch", "3"), 2,
                     "plan.json was planned with --prefetch 1, this run is with --prefetch 3")
        self.one_line(self.drive("--prefetch", "3", "--unchecked"), 1, "schedule step 0")

    def test_scale_of_odd_sizes(self):
        self.refused(run("run", *self.MODEL, "--plan", self.path("plan.json"), "--scale", str(1 << 17)), 2, "--align",
                     "--scale 65536")
        self.assertEqual(run("plan", *self.MODEL, "-o", self.path("fine.json"), "--align", "1").returncode, 0)
        self.refused(run("run", *self.MODEL, "--plan", self.path("fine.json"), "--scale", "auto"), 2, "--align")


# ---- traces ----------------------------------------------------------------------------------------------------------

class Traces(Case):
    def partly_frozen(self):
        """Buckets packed as bytes, where gradients and what is kept of them have other sizes than the parameters."""
        def parameter(name, shape, dtype, frozen=False):
            return {"name": name, "shape": shape, "dtype": dtype, "frozen": frozen}
        return self.write("packed.json", {"format": "bucketpool.units/1", "model": "packed", "units": [
            {"name": f"u{i}", "parameters": [parameter(f"u{i}.a", [6400, 64], "bf16"),
                                             parameter(f"u{i}.b", [1280, 64], "fp32"),
                                             parameter(f"u{i}.c", [2560, 64], "fp32", True)]} for i in range(4)]})

    def test_round_trip(self):
        """A run's trace, planned, takes what the model took, under every policy; and it runs."""
        for model, options, roles, again in (
                (NANO, (), "param,grad", ()), (NANO, ("--ep", "8", "--prefetch", "3", "--grad-units", "3"),
                                               "param,grad", ()),
                ("examples/models/Llama-3.1-8B", ("--grad-dtype", "fp32", "--bucketing", "fsdp2"), "param,grad", ()),
                ("examples/models/Llama-3.1-8B", ("--bucketing", "fsdp2", "--optimizer-tensors", "2",
                                                  "--optimizer-dtype", "bf16"),
                 "param,main_grad,optimizer", ("--optimizer-tensors", "2", "--optimizer-dtype", "bf16")),
                (self.partly_frozen(), ("--bucketing", "fsdp2", "--dp", "2"), "param,grad,state,main_grad,optimizer",
                 ("--dp", "2")),
                (self.partly_frozen(), ("--bucketing", "fsdp2", "--dp", "2"), "param,optimizer", ("--dp", "2")),
                ("examples/models/Qwen3-30B-A3B", ("--ep", "4", "--param-dtype", "fp8", "--grad-comm-dtype", "fp32"),
                 "param,param_transpose,grad,grad_comm,state,main_grad,optimizer", ("--ep", "4")),
                ("examples/models/Jamba-1.5-Mini", ("--eval",), "param", ())):
            with self.subTest(model=model, options=options):
                trace = self.path("trace.json")
                result = run("run", model, *options, "--roles", roles, "--scale", "4096", "--steps", "2",
                             "--trace", trace)
                self.clean(result)
                plans = [json.loads(run("plan", *arguments, "--roles", roles, "--json").stdout)["models"][0]["policies"]
                         for arguments in ((model, *options), (trace, *again))]
                self.assertEqual(*[[(p["policy"], p["bytes"], p["lower_bound_bytes"]) for p in policies]
                                   for policies in plans])
                self.clean(run("run", trace, *again, "--roles", roles, "--scale", "4096"))

    def test_equal_steps(self):
        for steps in ("1", "4"):
            self.assertEqual(run("run", NANO, "--device", "null", *ALL_ROLES, "--steps", steps, "--trace",
                                 self.path(f"{steps}.json")).returncode, 0)
        with open(self.path("1.json"), "rb") as one, open(self.path("4.json"), "rb") as four:
            self.assertEqual(one.read(), four.read())

    def test_impossible_files(self):
        result = run("run", NANO, "--device", "null", "--trace", self.path("no/such/folder/trace.json"))
        self.refused(result, 3, "--trace", "no/such/folder")
        with open("/dev/full", "w", encoding="utf-8") as full:
            result = subprocess.run([TOOL, "run", NANO, "--device", "null", "--trace", self.path("trace.json")],
                                    stdout=full, stderr=subprocess.PIPE, text=True, cwd=ROOT, check=False)
        self.assertEqual((result.returncode, os.listdir(self.folder)), (3, []))
        self.refused(run("run", NANO, "--policy", "max", "--buffers", "1", "--trace", self.path("trace.json")), 1,
                     "infeasible")
        self.assertEqual(os.listdir(self.folder), [])


class Profiles(Case):
    """--profile: what is in the files is for tests/profile; here they come from whole runs."""

    def load(self, *path):
        with open(self.path(os.path.join(*path)), "rb") as file:
            return check_snapshot.check_pickle(file.read())

    def trace_of(self, step, snapshot):
        with open(self.path(f"p/step_{step}/trace_rank00.json"), "rb") as file:
            return check_snapshot.check_trace(file.read(), snapshot)

    def test_policies(self):
        for policy in ("dynamic", "fixed", "max", "scheduled"):
            with self.subTest(policy=policy):
                self.clean(run("run", NANO, "--ep", "8", "--scale", SMALL, "--policy", policy, "--steps", "3",
                               *ALL_ROLES, "--profile", self.path("p/")))
                self.assertEqual(sorted(os.listdir(self.path("p"))), ["step_0", "step_1"])
                first, second = self.load("p/step_0/snapshot_rank00.pickle"), self.load(
                    "p/step_1/snapshot_rank00.pickle"
                )
                for step, snapshot in enumerate((first, second)):
                    pool = snapshot["bucketpool"]["pools"][0]
                    self.assertEqual((snapshot["bucketpool"]["step"], pool["lost_events"]), (step, 0))
                    self.assertGreater(len(pool["events"]), 100)
                    self.assertTrue(pool["live"])  # the state, for the whole run
                    self.trace_of(step, snapshot)
                shutil.rmtree(self.path("p"))

    def test_steps(self):
        self.clean(run("run", NANO, "--scale", SMALL, "--steps", "4", "--profile", self.path("p"),
                       "--profile-steps", "3,1,7"))
        self.assertEqual(sorted(os.listdir(self.path("p"))), ["step_1", "step_3"])
        self.load("p/step_3/snapshot_rank00.pickle")

    def test_max_entries(self):
        """The newest events are kept, and the file says how many are lost."""
        counts = {}
        for most in ("100", "4096"):
            self.clean(run("run", NANO, "--scale", SMALL, "--steps", "2", "--profile", self.path("p"), "--max-entries",
                           most))
            pool = self.load("p/step_1/snapshot_rank00.pickle")["bucketpool"]["pools"][0]
            counts[most] = len(pool["events"]), pool["lost_events"]
        events, lost = counts["4096"]
        self.assertEqual((counts["100"], lost), ((128, events - 128), 0))

    def test_profile_failures(self):
        with open(self.path("file"), "w", encoding="utf-8"):
            pass
        result = run("run", NANO, "--device", "null", "--profile", self.path("file/p"))
        self.one_line(result, 3, "--profile", "file", "cannot be written: Not a directory")
        self.assertEqual(result.stdout, "")  # before the run
        self.refused(run("run", NANO, "--profile", ""), 2, "--profile", "folder")
        self.refused(run("run", NANO, "--profile-steps", "1"), 2, "--profile-steps", "--profile")
        self.refused(run("run", NANO, "--profile", "p", "--profile-steps", "1,x"), 2, "profile-steps", "x")
        self.refused(run("run", NANO, "--profile", "p", "--trace", "t"), 2, "--profile", "--trace")
        self.refused(run("run", NANO, "--max-entries", "9"), 2, "--max-entries", "--profile")
        for number in ("0", "1073741825", "x"):
            self.refused(run("run", NANO, "--profile", "p", "--max-entries", number), 2, "--max-entries", number)


class Mistakes(Case):
    def test_bad_options(self):
        for options, words in ((["--policy", "best"], ["dynamic, fixed, max, scheduled"]),
                               (["--policy", "max,fixed"], ["max,fixed"]),
                               (["--device", "gpu"], ["host, null, cuda"]), (["--steps", "0"], ["--steps"]),
                               (["--steps", "many"], ["--steps"]), (["--scale", "3"], ["power of two"]),
                               (["--scale", "0"], ["--scale"]),
                               (["--scale", "big"], ["--scale"]), (["--delay", "-1"], ["--delay"]),
                               (["--seed", "x"], ["--seed"]), (["--strict", "maybe"], ["off, warn, error"]),
                               (["--unchecked"], ["--plan"]), (["--plan", "x", "--policy", "max"], ["--policy"]),
                               (["--guard", "--device", "null"], ["--guard"]),
                               (["--graph", "units"], ["--device cuda"]),
                               (["--graph", "all"], ["off, iteration, units"]),
                               (["--trace", "folder/"], ["is not a file name"]),
                               (["--plan", "no-such-plan.json"], ["no-such-plan.json", "No such file"]),
                               (["--dp", "64", "--ep", "7"], ["multiple"]), (["--align", "3"], ["power of two"]),
                               (["--align", str(1 << 40), "--scale", str(1 << 30)], ["64 bits"]),
                               (["--no-such"], ["--no-such"]),
                               (["--joint", "--policy", "max"], ["--joint requires --policy scheduled"]),
                               (["--work", "9", "--policy", "max"], ["--policy scheduled"]),
                               (["--buffers", "2"], ["--buffers requires --policy fixed or max"]),
                               (["--fallback", "dynamic", "--policy", "max"], ["--fallback requires --policy fixed"]),
                               (["--grad-units", "2"] * 80 + ["--joint", "--policy", "max"],
                                ["--joint requires --policy scheduled"]),
                               (["--share"], ["--share"]), (["--steps"], ["--steps"])):
            self.refused(run("run", NANO, *options), 2, *words)
        self.refused(run("run"), 2, "no model")
        self.refused(run("run", NANO, "examples/models/Llama-3.1-8B"), 2, "one model")
        self.refused(run("run", self.path("missing.json")), 2, "missing.json")

    def test_infeasible(self):
        self.refused(run("run", NANO, "--policy", "max", "--buffers", "1"), 1, "infeasible")

    def test_lost_output(self):
        for arguments in (["run", NANO, "--device", "null"], ["run", NANO, "--device", "null", "--json"],
                          ["run", "--help"]):
            with open("/dev/full", "w", encoding="utf-8") as full:
                result = subprocess.run([TOOL, *arguments], stdout=full, stderr=subprocess.PIPE, text=True, cwd=ROOT,
                                        check=False)
            self.assertEqual(result.returncode, 3, arguments)
            self.assertEqual(result.stderr.count("\n"), 1, result.stderr)


class Terminal(Case):
    def test_interrupt(self):
        with subprocess.Popen([TOOL, "run", NANO, "--scale", "64", "--steps", "1000000",
                               "--trace", self.path("trace.json")],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT) as process:
            time.sleep(1)
            process.send_signal(signal.SIGINT)
            output, errors = process.communicate(timeout=600)
        self.assertEqual(process.returncode, -signal.SIGINT, errors)
        self.assertIn("interrupted in training step", errors)
        self.assertEqual(errors.count("\n"), 1, errors)
        self.assertIn("0 corrupted buckets", output)
        self.assertEqual(os.listdir(self.folder), [])

    def test_progress(self):
        """On a terminal, and gone in the end; nowhere else."""
        command = [TOOL, "run", NANO, "--scale", SMALL, "--steps", "3", "--delay", "10000"]
        code, data = self.on_terminal(command, "stderr", stdout=subprocess.PIPE, cwd=ROOT)
        self.assertEqual(code, 0)
        self.assertRegex(data, rb"step \d+ of 312, \d+ %")
        self.assertTrue(data.endswith(b"\r\033[K"), data[-40:])


class Documents(unittest.TestCase):
    def read(self, *path):
        with open(os.path.join(ROOT, *path), encoding="utf-8") as file:
            return file.read()

    def test_documented_members(self):
        section = self.read("docs", "reference", "formats.md").split("## bucketpool.run/1", 1)[1]
        def members(value):
            for key, inner in value.items():
                yield key
                if isinstance(inner, dict) and key != "options":
                    yield from members(inner)
        for member in set(members(json.loads(run("run", NANO, "--device", "null", "--json").stdout))) - {"format"}:  # the heading
            self.assertIn(f"`{member}`", section)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
