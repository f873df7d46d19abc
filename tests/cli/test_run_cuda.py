# SPDX-License-Identifier: Apache-2.0
"""`bucketpool run --device cuda` on the emulated driver: the same bytes with graphs and without, and what drivers do
not do.

Arguments: source directory, the bucketpool executable, the folder of the emulated libcuda.so.1, the NVTX injection
library ("": the library was built without NVTX). BUCKETPOOL_BRIEF, where it is set: every tenth model, and a share of
the options, the shapes and the faults.
"""

import json
import os
import subprocess
import sys
import unittest

from answers import InFolder

ROOT, TOOL, FAKE = sys.argv[1], os.path.abspath(sys.argv[2]), os.path.abspath(sys.argv[3])
NVTX = os.path.abspath(sys.argv[4]) if sys.argv[4] else ""
MODELS = os.path.join(ROOT, "examples", "models")
NANO = "examples/models/Nemotron-3-Nano-30B-A3B"
SMALL = "65536"
ALL_ROLES = ("--roles", "param,param_transpose,grad,grad_comm,state,main_grad,optimizer")
GRAPHS = ("off", "iteration", "units")
BRIEF = "BUCKETPOOL_BRIEF" in os.environ


def in_turn(values, number):
    """All of them; in brief one, another for each number."""
    return (values[number % len(values)],) if BRIEF else values


def run(*arguments, fake="", report=True, **environment):
    """With the emulated driver, whose memory the host cannot touch, and which reports at the end what was broken or
    left behind.
    """
    settings = ",".join(filter(None, (f"report={int(report)},host_faults=1", fake)))
    variables = {**os.environ, "LD_LIBRARY_PATH": FAKE, "FAKE_CUDA": settings, **environment}
    return subprocess.run([TOOL, "run", *arguments], capture_output=True, text=True, cwd=ROOT, timeout=600, check=False,
                          env=variables)


class Case(InFolder):
    def document(self, *arguments, **more):
        result = run(*arguments, "--json", **more)
        self.assertEqual((result.returncode, result.stderr), (0, ""), arguments)
        return json.loads(result.stdout)

    def verified(self, *arguments, **more):
        """Returns the verification, which is equal for all runs of the same steps."""
        document = self.document(*arguments, **more)
        self.assertEqual(document["verification"]["corrupted_buckets"], 0)
        self.assertGreater(document["verification"]["checked_buckets"], 0)
        return document["verification"]


class Bytes(Case):
    """Eager, captured whole and captured unit by unit: the same buckets, bytes and digest, which are those of the host
    device.
    """

    def same(self, *arguments, delay=50, graphs=GRAPHS):
        wanted = self.verified(*arguments, "--device", "host")
        for number, graph in enumerate(graphs):
            with self.subTest(arguments=arguments, graph=graph):
                self.assertEqual(self.verified(*arguments, "--device", "cuda", "--graph", graph,
                                               fake=f"delay_us={delay},seed={number}"), wanted)

    def test_every_bundled_model(self):
        for number, model in list(enumerate(sorted(os.listdir(MODELS))))[::10 if BRIEF else 1]:
            arguments = (os.path.join(MODELS, model), "--ep", "18"[number % 2], "--scale", SMALL, "--steps", "3")
            self.same(*arguments, "--policy", ("fixed", "max", "scheduled")[number % 3])
            self.same(*arguments, "--policy", ("max", "scheduled", "fixed")[number % 3],
                      graphs=(GRAPHS[1 + number // 3 % 2],), delay=number // 6 % 2 * 10)
            self.same(*arguments, "--policy", "dynamic", graphs=("off",))

    def test_options(self):
        every = (("--no-promises",), ("--strict", "off"), ("--prefetch", "4"), ("--prefetch", "0", "--grad-units", "1"),
                 ("--policy", "scheduled", *ALL_ROLES), ("--policy", "scheduled", "--joint", "--streams", "unified"),
                 ("--param-dtype", "fp8", "--grad-comm-dtype", "bf16", *ALL_ROLES),
                 ("--streams", "unified", *ALL_ROLES),
                 ("--keep-after-forward",), ("--eval",), ("--passes", "both"),
                 ("--microbatches", "3", "--prefetch", "2"),
                 ("--param-dtype", "fp8", "--recompute", "--passes", "both", *ALL_ROLES),
                 ("--combined", "--streams", "unified", "--outside", "successor", "--passes", "both", *ALL_ROLES))
        for options in every[::3 if BRIEF else 1]:
            self.same(NANO, "--ep", "8", "--scale", SMALL, "--steps", "5", *options)

    @unittest.skipIf(BRIEF, "runs in the plain build")
    def test_buckets_larger_than_a_piece(self):
        """The largest in three."""
        self.same(NANO, "--ep", "8", "--scale", "64", "--steps", "3", delay=0)

    def test_pauses_of_the_command(self):
        self.same(NANO, "--ep", "8", "--scale", SMALL, "--steps", "3", "--delay", "100", "--seed", "9", delay=0)

    def test_shapes(self):
        sizes = (1, 7, 8, 9, 511, 512, 513, 4097)
        bucket = {"dtype": "bf16", "numel": 5000}
        models = ([{"name": f"u{i}", "buckets": [
                      {"dtype": "uint8", "numel": n}, {"dtype": "fp4_e2m1", "numel": n}, {"dtype": "bf16", "numel": 0},
                      {"dtype": "bf16", "numel": n, "frozen": True}, {"dtype": "fp32", "numel": n}]}
                   for i, n in enumerate(sizes)],
                  [{"name": "only", "buckets": [{"dtype": "bf16", "numel": 3000000}]}],
                  [{"name": "outer", "buckets": [bucket]}, {"name": "a", "parent": "outer", "buckets": [bucket]},
                   {"name": "b", "parent": "outer", "buckets": [bucket, bucket]},
                   {"name": "last", "buckets": [bucket]}])
        for number, units in enumerate(models):
            with open(self.path("units.json"), "w", encoding="utf-8") as file:
                json.dump({"format": "bucketpool.units/1", "model": "shapes", "units": units}, file)
            for policy in in_turn(("fixed", "max", "scheduled"), number):
                self.same(self.path("units.json"), "--policy", policy, "--steps", "7", "--dp", "2", *ALL_ROLES)

    def test_replayed_work(self):
        """Replays pass by the pool, and every third training step does not."""
        arguments = (NANO, "--ep", "8", "--scale", SMALL, "--steps", "5", "--device", "cuda")
        eager, whole, units = (self.document(*arguments, "--graph", graph) for graph in GRAPHS)
        self.assertEqual(eager["graphs"], {"captured": 0, "launches": 0, "replayed_steps": 0})
        self.assertEqual(whole["graphs"], {"captured": 1, "launches": 3, "replayed_steps": 3})
        self.assertEqual(units["graphs"]["launches"], 3 * units["graphs"]["captured"])
        self.assertGreater(units["graphs"]["captured"], 26)
        once = eager["statistics"]["acquires"] // 5
        self.assertEqual(whole["statistics"]["acquires"], 3 * once)  # two eager steps and the capture
        self.assertTrue(2 * once < units["statistics"]["acquires"] < 5 * once)
        for document in (whole, units):
            self.assertEqual(document["statistics"]["acquires"], document["statistics"]["releases"])
            self.assertEqual(document["finished_steps"], 5)

    def test_digests(self):
        arguments = (NANO, "--ep", "8", "--scale", SMALL, "--device", "cuda")
        digests = {self.verified(*arguments, *more)["digest"]
                   for more in ((), ("--seed", "2"), ("--steps", "4"), ("--prefetch", "2"))}
        self.assertEqual(len(digests), 3)  # how far ahead gathers run changes nothing about the bytes

    def test_trace(self):
        for graph in GRAPHS:
            self.verified(NANO, "--ep", "8", "--scale", SMALL, "--device", "cuda", "--graph", graph,
                          "--trace", self.path(graph))
        traces = set()
        for graph in GRAPHS:
            with open(self.path(graph), encoding="utf-8") as file:
                traces.add(file.read())
        self.assertEqual(len(traces), 1)

    def test_second_device(self):
        self.verified(NANO, "--ep", "8", "--scale", SMALL, "--device", "cuda:1", fake="devices=2")


class Wrong(Case):
    """Bytes corrupted by an omitted wait of pool or driver are detected on every path."""
    ARGUMENTS = (NANO, "--ep", "8", "--scale", SMALL, "--device", "cuda", "--steps", "3")

    def forgetful(self, graph, first, count):
        fails = ",".join(f"fail=cuStreamWaitEvent:{n}:-1" for n in range(first, first + count))
        result = run(*self.ARGUMENTS, "--graph", graph, "--json", fake=f"delay_us=200,{fails}", report=False)
        self.assertIn(result.returncode, (0, 1), result.stderr)
        document = json.loads(result.stdout)
        self.assertEqual(document["failure"] is None, result.returncode == 0)
        if result.returncode == 1 and document["failure"]["kind"] == "corrupted":
            self.assertIn("is corrupted: byte ", result.stderr)
            self.assertGreater(document["verification"]["corrupted_buckets"], 0)
            return document["failure"]["training_step"]
        return None

    def test_eager(self):
        self.assertEqual(self.forgetful("off", 0, 1), 1)  # 0: each

    def test_in_a_graph(self):
        """Of the waits of the second training step, somewhere in its capture, some are no edges."""
        waits = self.document(*self.ARGUMENTS, "--graph", "off")["statistics"]["waits"] // 3
        found = {self.forgetful("iteration", first, 60) for first in range(4 * waits, 5 * waits, waits // 5)}
        self.assertIn(2, found)


    def test_lost_work(self):
        """A check that did not run is a failure."""
        for graph, lost in (("iteration", "cuGraphLaunch:1"), ("units", "cuGraphLaunch:7"),
                            ("off", "cuLaunchHostFunc:0")):
            result = run(*self.ARGUMENTS, "--graph", graph, fake=f"fail={lost}:-1", report=False)
            self.refused(result, 3, "the device ran ", " checks that it was given")
        for nth in range(300, 320, 7 if BRIEF else 1):  # a fill or a check
            result = run(*self.ARGUMENTS, fake=f"fail=cuLaunchHostFunc:{nth}:-1", report=False)
            self.assertIn(result.returncode, (1, 3), result.stderr)


class Faults(Case):
    ARGUMENTS = (NANO, "--ep", "8", "--scale", SMALL, "--device", "cuda", "--steps", "3")

    def test_no_driver(self):
        for folder in ("", self.folder):
            self.refused(run(*self.ARGUMENTS, LD_LIBRARY_PATH=folder), 3, "libcuda.so.1")

    def test_drivers_and_devices(self):
        self.refused(run(*self.ARGUMENTS, fake="version=11080"), 3, "11.8", "12.0")
        self.refused(run(*self.ARGUMENTS, fake="devices=0"), 3, "no GPU")
        self.refused(run(*self.ARGUMENTS, "--device", "cuda:2", fake="devices=2"), 3, "no device 2", "has 2")

    def test_out_of_memory(self):
        plan = (NANO, "--ep", "8", "--scale", "256", "--device", "cuda")
        for graph in GRAPHS:
            self.refused(run(*plan, "--graph", graph, fake="memory=1m"), 3)
        self.refused(run(*plan, "--policy", "dynamic", fake="memory=1m"), 3)

    def test_failing_calls(self):
        """Each function of the driver fails once, early and late: one line, or none where it only undoes."""
        undoes = {"cuCtxPopCurrent", "cuDevicePrimaryCtxRelease", "cuEventDestroy", "cuGraphDestroy",
                  "cuGraphExecDestroy",
                  "cuMemAddressFree", "cuMemHostUnregister", "cuMemRelease", "cuMemUnmap", "cuStreamDestroy"}
        functions = ("cuDeviceGetCount", "cuDeviceGetName", "cuDevicePrimaryCtxRetain", "cuCtxPushCurrent",
                     "cuMemGetInfo",
                     "cuMemAddressReserve", "cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemHostRegister",
                     "cuStreamCreate",
                     "cuStreamWaitEvent", "cuStreamGetCaptureInfo", "cuStreamSynchronize", "cuLaunchHostFunc",
                     "cuMemcpyAsync",
                     "cuEventCreate", "cuEventRecord", "cuEventSynchronize", "cuStreamBeginCapture",
                     "cuStreamEndCapture", "cuGraphInstantiate", "cuGraphLaunch")
        for number, function in enumerate((*functions, *sorted(undoes))):
            for nth in in_turn((1, 3, 30), number):
                with self.subTest(function=function, nth=nth):
                    result = run(*self.ARGUMENTS, "--graph", "units", fake=f"fail={function}:{nth}:999",
                                 report=False)
                    self.assertIn(result.returncode, (0, 3), result.stderr)
                    self.assertEqual(result.stderr.count("\n"), int(result.returncode != 0), result.stderr)
                    if nth == 1 and function in functions:
                        self.assertEqual(result.returncode, 3)
                        self.assertIn("999", result.stderr)

    def test_freed_objects(self):
        """A failure half-way undoes what was made, and breaks no rule of the driver."""
        for graph in GRAPHS[1:]:
            for failure in ("cuGraphLaunch:1", "cuGraphInstantiate:1", "cuStreamBeginCapture:1", "cuMemHostRegister:4",
                            "cuLaunchHostFunc:200", "cuLaunchHostFunc:500", "cuEventRecord:400", "cuMemcpyAsync:600"):
                with self.subTest(graph=graph, failure=failure):
                    result = run(*self.ARGUMENTS, "--graph", graph, fake=f"fail={failure}:999")
                    self.assertEqual((result.returncode, result.stderr.count("\n")), (3, 1), result.stderr)

    def test_options(self):
        for options, words in ((("--device", "cuda:x"), ("--device",)), (("--device", "cuda:"), ("--device",)),
                               (("--device", "cuda:-1"), ("--device",)), (("--device", "gpu"), ("host, null, cuda",)),
                               (("--graph", "all"), ("off, iteration, units",)), (("--guard",), ("--guard",)),
                               (("--graph", "units", "--steps", "1"), ("--steps 2",)),
                               (("--graph", "units", "--policy", "dynamic"), ("stable addresses",)),
                               (("--graph", "units", "--policy", "fixed", "--fallback", "dynamic"),
                                ("stable addresses",)),
                               (("--graph", "units", "--device", "host"), ("--device cuda",))):
            self.refused(run(*self.ARGUMENTS, *options), 2, *words)


@unittest.skipIf(NVTX == "", "the library was built without NVTX")
class Annotations(Case):
    def annotated(self, *options, **variables):
        path = self.path("report.json")
        document = self.document(NANO, "--ep", "8", "--scale", SMALL, *options, FAKE_NVTX_REPORT=path, **variables)
        with open(path, encoding="utf-8") as file:
            report = json.load(file)
        for member in ("open_heaps", "open_regions", "open_ranges", "depth", "wrong"):
            self.assertEqual(report[member], 0, report["first"])
        return document, report

    def test_runs(self):
        for options in (("--device", "host"), *(("--device", "cuda", "--graph", graph) for graph in GRAPHS)):
            for policy in ("max", "scheduled"):
                document, report = self.annotated(*options, "--policy", policy, NVTX_INJECTION64_PATH=NVTX)
                self.assertTrue(document["run"]["annotated"])
                steps = document["run"]["steps"] * document["run"]["schedule_steps"]
                texts = set(report["texts"])
                self.assertIn("create Nemotron-3-Nano-30B-A3B", texts)
                self.assertIn("backbone.layers.0/dense param", texts)
                self.assertIn("Nemotron-3-Nano-30B-A3B step 0", texts)
                self.assertIn(f"Nemotron-3-Nano-30B-A3B step {steps}", texts)  # what follows the last one
                self.assertGreaterEqual(report["regions"], document["statistics"]["acquires"])
                captures = {text for text in texts if text.startswith("capture ")}
                self.assertEqual(len(captures), document["graphs"]["captured"])

    def test_off_and_on(self):
        off = self.document(NANO, "--ep", "8", "--scale", SMALL)
        on = self.document(NANO, "--ep", "8", "--scale", SMALL, "--nvtx")
        self.assertEqual((off["run"]["annotated"], on["run"]["annotated"]), (False, True))
        self.assertEqual(off["verification"], on["verification"])
        self.assertIn(", annotated\n", run(NANO, "--ep", "8", "--scale", SMALL, "--nvtx").stdout)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
