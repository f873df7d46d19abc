# SPDX-License-Identifier: Apache-2.0
"""./check --gpu without a GPU: the runner with small commands, and the rehearsal of `proof`, whole and killed.

Arguments: source directory, build directory; "": without the rehearsal, which needs everything that can be built."""

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import unittest

SOURCE, BUILD = os.path.abspath(sys.argv[1]), sys.argv[2] and os.path.abspath(sys.argv[2])
os.chdir(SOURCE)
sys.path[:0] = [os.path.join(SOURCE, "scripts", "gpu"), os.path.join(SOURCE, "bench", "torch", "steps")]

import build  # noqa: E402
import machine  # noqa: E402
import overlap  # noqa: E402
import parts  # noqa: E402
import proof  # noqa: E402
import results  # noqa: E402
import torch_run  # noqa: E402
import variants  # noqa: E402
import wanted  # noqa: E402

HEAD = {"device": "Some GPU (80 GB)", "run": "proof", "date": "2026-01-02T03:04:05Z"}
WRITES_FIGURES = """
import json, os, signal, sys, time
path = sys.argv[sys.argv.index("--json") + 1]
for number in range(3):
    document = {"figures": [{"group": "g", "name": str(i)} for i in range(number + 1)],
                "skipped": [{"name": "s", "reason": "r"}]}
    open(path + ".new", "w").write(json.dumps(document))
    os.rename(path + ".new", path)
"""


def python(code):
    return [sys.executable, "-c", code]


def read(path):
    with open(path, encoding="utf-8") as file:
        return json.load(file)


class RunnerTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.results = results.Results(self.folder.name, "r", HEAD)

    def execute(self, *some, seconds=60):
        run = parts.Run(self.results, machine.Telemetry(), os.path.join(self.folder.name, "work"), seconds)
        run.execute(some)
        return {part["name"]: part for part in read(self.results.path)["parts"]}

    def test_outcomes(self):
        seen = self.execute(parts.program("good", 9, python("print('fine')")),
                            parts.program("bad", 9, python("import sys; print('3 of 4 differ'); sys.exit(1)")),
                            parts.program("absent", 9, python("import sys; print('no GPU here'); sys.exit(77)")),
                            parts.program("crash", 9, python("import os; os.kill(os.getpid(), 11)")),
                            parts.program("nowhere", 9, ["/nonexistent/program"]),
                            parts.Part("defect", 9, lambda running: 1 / 0), parts.program("last", 9, python("")))
        self.assertEqual([(name, part["outcome"]) for name, part in seen.items()],
                         [("good", "passed"), ("bad", "failed"), ("absent", "skipped"), ("crash", "failed"),
                          ("nowhere", "failed"), ("defect", "failed"), ("last", "passed")])
        self.assertEqual(seen["bad"]["reason"], "exit 1: 3 of 4 differ")
        self.assertEqual(seen["absent"]["reason"], "no GPU here")
        self.assertIn("signal 11", seen["crash"]["reason"])
        self.assertIn("ZeroDivisionError", seen["defect"]["reason"])
        with open(self.results.log, encoding="utf-8") as file:
            log = file.read()
        self.assertIn("3 of 4 differ", log)
        self.assertIn("1 / 0", log)

    def test_hanging_part(self):
        mark = os.path.join(self.folder.name, "mark")
        begin = time.monotonic()
        seen = self.execute(parts.program("hangs", 1, ["sh", "-c", f"(sleep 4; touch {mark}) & sleep 60"]),
                            parts.program("next", 9, python("")))
        self.assertLess(time.monotonic() - begin, 10)
        self.assertEqual((seen["hangs"]["outcome"], seen["next"]["outcome"]), ("cut", "passed"))
        time.sleep(4)
        self.assertFalse(os.path.exists(mark))

    def test_figures_of_failing_part(self):
        for end, outcome in (("os.kill(os.getpid(), 9)", "failed"), ("time.sleep(60)", "cut"),
                             ("sys.exit(1)", "failed")):
            with self.subTest(end):
                part = self.execute(parts.program("figures", 2, python(WRITES_FIGURES + end),
                                                  with_document=True))["figures"]
                self.assertEqual(part["outcome"], outcome)
                self.assertEqual([row["name"] for row in part["figures"]], ["0", "1", "2"])
                self.assertEqual(part["skipped"], [{"name": "s", "reason": "r"}])

    def test_figures_of_running_part(self):
        waits = f"""
end = time.monotonic() + 20
while time.monotonic() < end:
    if len(json.load(open({self.results.path!r}))["parts"][-1].get("figures", [])) == 3:
        sys.exit(0)
    time.sleep(0.1)
sys.exit("the figures did not come")
"""
        self.assertEqual(self.execute(parts.program("waits", 30, python(WRITES_FIGURES + waits),
                                                    with_document=True))["waits"]["outcome"], "passed")

    def test_stale_document(self):
        path = parts.document_path(os.path.join(self.folder.name, "work"), "stale")
        seen = self.execute(parts.program("writes", 9, python(f"open({path!r}, 'w').write('{{\"figures\": [1]}}')")),
                            parts.program("stale", 9, python("import sys; sys.exit(1)"), with_document=True))
        self.assertEqual((seen["writes"]["outcome"], seen["stale"]["outcome"]), ("passed", "failed"))
        self.assertNotIn("figures", seen["stale"])

    def test_parts_beyond_budget(self):
        seen = self.execute(parts.program("long", 60, python("import time; time.sleep(60)")),
                            parts.program("late", 9, python("")), seconds=parts.RESERVE_SECONDS + 4)
        self.assertEqual((seen["long"]["outcome"], seen["late"]["outcome"]), ("cut", "not run"))
        self.assertIn("used up", seen["late"]["reason"])

    def test_long_output(self):
        self.execute(parts.program("talks", 30, python("print('begin'); print('x' * 40_000_000); print('end')")))
        self.assertLess(os.path.getsize(self.results.log), 2 * results.LOGGED_BYTES)
        with open(self.results.log, encoding="utf-8") as file:
            text = file.read()
        self.assertIn("begin\n", text)
        self.assertIn("\nend\n", text)

    def test_rules_after_crash(self):
        names = proof.rule_names()
        self.assertGreater(len(names), 60)
        script = os.path.join(self.folder.name, "rules")
        # rule 3 crashes; rule 6 breaks the context; 8 differs; the last fails
        with open(script, "w", encoding="utf-8") as file:
            file.write(f"""#!{sys.executable}
import os, sys
names = {names!r}
first = names.index(sys.argv[2]) + 1 if len(sys.argv) > 1 else 0
for number, name in enumerate(names[first:], first):
    if number == 3:
        os.abort()
    special = {{6: f"failed {{name}}: error 700", 8: f"differs {{name}}: 0", len(names) - 1: f"failed {{name}}: 1"}}
    print(special.get(number, f"ok {{name}}"), flush=True)
    if number == 6:
        print(f"cannot prepare {{names[7]}}")
        sys.exit(3)
sys.exit(1)
""")
        os.chmod(script, 0o755)
        context = type("Context", (), {"build": type("Build", (), {"find": lambda self, path: script})(),
                                       "env": lambda self: None})()
        part = self.execute(proof.driver_rules(context))["rules-driver"]
        rules = part["rules"]
        self.assertEqual(list(rules), names)
        self.assertEqual([rules[names[i]] for i in (2, 3, 4, 6, 7, 8, -1)],
                         ["holds", "fails", "holds", "fails", "holds", "differs", "fails"])
        self.assertIn("signal 6", part["differing"][names[3]])
        self.assertEqual(part["outcome"], "failed")

    def test_nccl_rules(self):
        found = proof.rules_in(
            "    x.c:3: expected: a\nFAILS    one_rank: two (source)\nholds    other_rule: yes (s)\ndiffers  third: 0"
            " (s)\n1 rules hold\n"
        )
        self.assertEqual(found["rules"], {"one_rank": "fails", "other_rule": "holds", "third": "differs"})

    def test_defect_between_parts(self):
        def some():
            yield parts.program("first", 9, python(""))
            raise OSError("bench_gpu --list does not end")

        run = parts.Run(self.results, machine.Telemetry(), os.path.join(self.folder.name, "work"), 60)
        run.execute(some())
        seen = read(self.results.path)["parts"]
        self.assertEqual([part["outcome"] for part in seen], ["passed", "failed"])
        self.assertIn("bench_gpu --list does not end", seen[1]["reason"])

    def test_unfinished_run(self):
        self.execute(parts.program("long", 60, python("import time; time.sleep(60)")),
                     parts.program("late", 9, python("")), seconds=parts.RESERVE_SECONDS + 3.5)
        self.assertFalse(read(self.results.path)["finished"])

    def test_differing_rules(self):
        seen = self.execute(parts.program("rules-nccl", 9,
                                          python("print('holds    a: x (s)')\nprint('differs  b: 0 (s)')"),
                                          find=proof.rules_in))
        self.assertEqual(seen["rules-nccl"]["outcome"], "differs")

    def test_device_readings(self):
        telemetry, values = machine.Telemetry(), iter([345, 1980, 1700, 1975, 345])
        telemetry.read = lambda: {"sm_mhz": next(values), "throttle_reasons": 4}
        telemetry.begin()
        for _ in range(3):
            telemetry.sample()
        found = telemetry.end()
        self.assertEqual((found["during"]["sm_mhz"], found["before"]["sm_mhz"], found["throttle_reasons"]),
                         ([1700, 1975, 1980], 345, 4))

    def test_sanitizer_reports(self):
        ran = "[       OK ] x\n"
        for code, text, outcome, word in ((0, ran + "========= ERROR SUMMARY: 0 errors", "passed", ""),
                                          (9, ran + "========= ERROR SUMMARY: 2 errors", "failed", "2 errors"),
                                          (0, "========= ERROR SUMMARY: 0 errors", "failed", "ran no test"),
                                          (0, ran, "failed", "no summary"),
                                          (1, "========= Error: Device not supported", "skipped", "support"),
                                          (0, ran + "========= RACECHECK SUMMARY: 1 hazards displayed", "failed",
                                           "no summary")):
            self.assertEqual(proof.judged(code, text)[0], outcome, text)
            self.assertIn(word, proof.judged(code, text)[1])

    def test_profiler_counters(self):
        text = subprocess.run([os.path.join("tests", "fakes", "tools", "ncu"), "--csv", "--kernel-name", "regex:x",
                               "--metrics", ",".join(proof.METRICS),
                               "echo", "hello"], capture_output=True, text=True).stdout
        rows = proof.read_profile(text)
        self.assertEqual([row["name"] for row in rows], ["bp_forward_bf16", "bp_gradient_bf16_fp32"])
        self.assertEqual(rows[0]["dram_percent"], 1234.5)


class PythonTest(unittest.TestCase):
    """Programs of PyTorch."""

    def test_library_path(self):
        """PyTorch ships its libraries: a toolkit's in front of the path would replace them."""
        made = type("Build", (), {"folders": ["b"], "find": lambda self, path: os.path.join("b", path),
                                  "libraries": lambda self: ["src/libx.so"]})()
        context = type("Context", (), {"build": made, "rehearse": True})()
        os.environ["LD_LIBRARY_PATH"] = "/usr/somewhere"
        self.addCleanup(os.environ.pop, "LD_LIBRARY_PATH")
        env = torch_run.Python(context).env()  # unlike Context.env of __main__.py
        self.assertEqual((env["LD_LIBRARY_PATH"], env["BUCKETPOOL_LIBRARY_PATH"]), ("/usr/somewhere", "b/src"))

    def test_outcomes_of_interrupted_run(self):
        text = (
            "python/tests/torch/pools/test_views.py::test_a PASSED [  3%]\npython/tests/torch/pools/test_views.py::test_b[on the"
            " CPU] FAILED [  6%]\npython/tests/torch/pools/test_views.py::test_c SKIPPED (a GPU is needed) [ "
            " 9%]\npython/tests/torch/pools/test_views.py::test_d "
        )
        self.assertEqual([(check["name"], check["outcome"]) for check in torch_run.checks_in(text)["checks"]],
                         [("test_a", "passed"), ("test_b[on the CPU]", "failed"), ("test_c", "skipped")])


class StepTest(unittest.TestCase):
    """Programs of the run `step` that need no PyTorch."""

    def test_overlap(self):
        def event(stream, begin, end, cat="kernel"):
            return {"cat": cat, "ts": begin, "dur": end - begin, "args": {"stream": stream}}

        computing = [event(7, 0, 100), event(7, 90, 110), event(7, 150, 300)]
        gathers = [event(20, 40, 60), event(20, 105, 155, "gpu_memcpy"), event(21, 120, 160)]
        others = [{"cat": "cpu_op", "ts": 0, "dur": 1000, "args": {}}, {"ph": "M"}]
        found = overlap.measured(gathers + others + computing)
        # [40, 60) and [105, 160), of which [110, 150) is not covered
        self.assertEqual(found, {"communication_us": 75, "covered_us": 35, "covered_share": 0.4667, "busy_us": 300, "streams": 3})
        self.assertEqual(overlap.measured(computing + others), {})

    def test_overlap_of_random_intervals(self):
        rng = random.Random(1)
        for _ in range(200):
            first, second = [[(b, b + rng.randrange(1, 9)) for b in (rng.randrange(60) for _ in range(rng.randrange(9)))] for _ in range(2)]
            points = [{t for b, e in each for t in range(b, e)} for each in (first, second)]
            self.assertEqual(overlap.common(overlap.union(first), overlap.union(second)), len(points[0] & points[1]))
            self.assertEqual(overlap.length(overlap.union(first)), len(points[0]))

    def compared(self, **changes):
        """Outcomes by name for figures that reach all, with changes."""
        usual = {"reserved": 15 << 30, "live": 147 << 27, "plan": 250, "fastest": 248, "batch": 46, "share": 0.8} | changes
        rows = [{"group": "steps: llama", "name": name, "ns_median": ms * 1e6, "reserved_peak_bytes": reserved, "live_peak_bytes": usual["live"],
                 "profile": {"covered_share": share}}
                for name, ms, reserved, share in (("plain", 260, 17 << 30, 0.8), ("expandable", usual["fastest"], 18 << 30, 0.8),
                                                  ("plan", usual["plan"], usual["reserved"], usual["share"]))]
        rows += [{"group": wanted.BATCH, "name": name, "largest_batch": batch, "complete": True}
                 for name, batch in (("expandable", 40), ("plan, expandable", usual["batch"]))]
        with tempfile.TemporaryDirectory() as folder:
            path, out = os.path.join(folder, "a.json"), os.path.join(folder, "b.json")
            with open(path, "w", encoding="utf-8") as file:
                json.dump({"figures": rows}, file)
            code = subprocess.run([sys.executable, wanted.__file__, "--json", out, path, os.path.join(folder, "missing.json")],
                                  capture_output=True, check=False).returncode
            return code, [check["outcome"] == "passed" for check in read(out)["checks"]]

    def test_wanted(self):
        self.assertEqual(self.compared(), (0, [True] * 4))
        for at, change in enumerate(({"reserved": 20 << 30}, {"plan": 251}, {"share": 0.7}, {"batch": 45})):
            self.assertEqual(self.compared(**change), (1, [number != at for number in range(4)]), change)

    def test_nothing_to_compare(self):
        done = subprocess.run([sys.executable, wanted.__file__, "--device", "cpu", "missing.json"], capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stdout.splitlines()[-1]), (77, "nothing to compare: a CPU reserves nothing"))

    def test_commands(self):
        found = variants.command("plan, no windows", "cuda", "/p/llama", "/r.json", ["train.py", "--paced"])
        self.assertEqual(found[1:], ["-m", "bucketpool.torch.steps", "--device", "cuda", "--report", "/r.json", "--plan", "/p/llama-no-windows.json",
                                     "train.py", "--paced"])
        self.assertEqual(variants.command("expandable", "cuda", "p", "r", ["train.py"])[1:], ["train.py"])
        self.assertEqual([variants.environment(way).get("PYTORCH_CUDA_ALLOC_CONF") for way in ("plain", "expandable", "plan")],
                         [None, variants.EXPANDABLE, None])
        written = {variants.plan_of(way, "p") for way in variants.WAYS if way.startswith("in process")}
        self.assertEqual({variants.plan_of(way, "p") for way in variants.WAYS if way.startswith("plan")}, written)


class BuildTest(unittest.TestCase):
    """A project of two programs, one of which needs kernels that do not compile."""

    def test_folder_of_another_machine(self):
        """Found at another path than where meson made it."""
        with tempfile.TemporaryDirectory() as folder:
            info = os.path.join(folder, "meson-info")
            os.makedirs(info)
            there = {"source": "/src", "build": "/build"}
            with open(os.path.join(info, "meson-info.json"), "w", encoding="utf-8") as file:
                json.dump({"directories": there}, file)
            with open(os.path.join(info, "intro-tests.json"), "w", encoding="utf-8") as file:
                json.dump([{"name": "gpu-t", "suite": ["bucketpool:gpu"], "cmd": ["/build/tests/t", "/src/data"],
                            "env": {"FAKE": "kernels=/build/src/libx.so", "PATHS": "/build/src:/src:/usr/src", "OTHER": "/srcs"}}], file)
            targets = [("src/liba.so.1", "shared library"), ("clients/b/libb.so.1", "shared library"), ("tests/fakes/libc.so.1", "shared library"),
                       ("src/libd.a", "static library"), ("tools/bucketpool", "executable")]
            with open(os.path.join(info, "intro-targets.json"), "w", encoding="utf-8") as file:
                json.dump([{"filename": [f"/build/{path}"], "type": kind} for path, kind in targets], file)
            made = build.Build(folder, False, True, False)
            self.assertEqual((made.libraries(), made.command()), (["src/liba.so.1", "clients/b/libb.so.1"], ["tools/bucketpool"]))
            self.assertEqual(made.tests(), {"t": ("tests/t", [os.path.join(SOURCE, "data")],
                                                  {"FAKE": f"kernels={folder}/src/libx.so", "PATHS": f"{folder}/src:{SOURCE}:/usr/src",
                                                   "OTHER": "/srcs"})})
            outcome, reason = made.make(None, lambda each: ["tests/t"])
            self.assertEqual((outcome, reason.endswith("tests/t")), ("failed", True))
            os.makedirs(os.path.join(folder, "tests"))
            open(os.path.join(folder, "tests", "t"), "w", encoding="utf-8").close()
            self.assertEqual(made.make(None, lambda each: ["tests/t"]), "passed")

    def test_compile_errors(self):
        with tempfile.TemporaryDirectory() as folder:
            files = {
                "meson.build": (
                    "project('p', 'c')\nexecutable('plain', 'plain.c')\nexecutable('client',"
                    " get_option('kernels').disabled() ? 'none.c' : 'kernels.c')\nexecutable('broken', 'broken.c')\n"
                ),
                "meson_options.txt": (
                    "option('kernels', type: 'feature', value: 'auto')\n"
                    + "".join(
                        f"option('{option[2:].split('=')[0]}', type: 'string')\n"
                        for option in build.OPTIONS
                        if "werror" not in option
                    )
                ),
                "plain.c": "int main(void) { return 0; }\n",
                "none.c": "int main(void) { return 0; }\n",
                "kernels.c": "#error a warning of another host compiler\n",
                "broken.c": "int main(void) { return nothing; }\n",
            }
            for name, text in files.items():
                with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
                    file.write(text)
            made = build.Build(os.path.join(folder, "build"), False, False, False)
            document = results.Results(os.path.join(folder, "results"), "r", HEAD)
            os.chdir(folder)
            try:
                run = parts.Run(document, machine.Telemetry(), os.path.join(folder, "work"), 60)
                run.execute(
                    [
                        parts.Part(
                            "build", 50, lambda running: made.make(running, lambda _: ["plain", "client", "broken"])
                        )
                    ]
                )
            finally:
                os.chdir(SOURCE)
            part = read(document.path)["parts"][0]
            self.assertEqual(part["outcome"], "failed")
            self.assertIn("2 of 3 targets were built, 1 without kernels", part["reason"])
            self.assertEqual([made.find(name) and os.path.basename(os.path.dirname(made.find(name)))
                              for name in ("plain", "client", "broken")],
                             ["build", "build-without-kernels", None])

    def test_failed_configuration(self):
        with tempfile.TemporaryDirectory() as folder:
            for name in ("gpu-run", "meson-private"):
                os.mkdir(os.path.join(folder, name))
            build.Build(folder, False, False, False)
            self.assertFalse(os.path.exists(folder))
            os.mkdir(folder)

    def test_foreign_folder(self):
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "thesis.tex"), "w", encoding="utf-8"):
                pass
            with self.assertRaises(SystemExit):
                build.Build(folder, False, False, False)
            self.assertTrue(os.path.exists(os.path.join(folder, "thesis.tex")))


@unittest.skipUnless(BUILD, "kernels, their emulation or the benchmarks were not built")
class RehearsalTest(unittest.TestCase):
    """`./check --gpu proof --rehearse` on the build that is tested."""

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.path = os.path.join(self.folder.name, "rehearsal-proof.json")

    def start(self, *options):
        return subprocess.Popen([sys.executable, "scripts/gpu", "proof", "--rehearse", "--build", BUILD, "--keep",
                                 "--commit", "abc",
                                 "--output", self.folder.name, *options], stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, text=True)

    def finish(self, process):
        text = process.communicate(timeout=600)[0]
        return read(self.path), text

    def test_kernels_image(self):
        """Of fatbins in files: loaded, refused by the driver, and none."""
        fatbin, none = os.path.join(BUILD, "clients", "logprob", "src", "cuda", "kernels.fatbin"), os.path.join(self.folder.name, "b.so")
        with open(none, "wb") as file:
            file.write(b"\x7fELF")
        kernels = f"kernels={os.path.join(BUILD, build.LOGPROB_KERNELS)}"
        loads = f"bytes={os.path.getsize(fatbin)}\npassed   kernels.fatbin loads\n"
        for files, driver, code, said in (((fatbin, none), kernels, 0, loads), ((fatbin,), f"{kernels},version=11040", 1, "FAILED   kernels.fatbin loads: "),
                                          ((none,), kernels, 77, "no kernels in b.so\n")):
            done = subprocess.run([sys.executable, "scripts/gpu/image.py", *files], capture_output=True, text=True,
                                  env={**os.environ, "FAKE_CUDA": driver, "LD_LIBRARY_PATH": os.path.dirname(os.path.join(BUILD, build.DRIVER))})
            self.assertEqual(done.returncode, code, done.stdout + done.stderr)
            self.assertIn(said, done.stdout)

    def test_parts_by_pattern(self):
        for pattern, code, answer in (("^logprob$", 0, "2 passed, 0 failed"), ("^nowhere$", 1, "no part has a name with ^nowhere$"),
                                      ("(", 2, "is not a regular expression")):
            process = self.start("--carried", "--only", pattern)
            text = process.communicate(timeout=120)[0]
            self.assertEqual(process.returncode, code, text)
            self.assertIn(answer, text)

    def test_complete_and_killed_runs(self):
        process = self.start()
        document, text = self.finish(process)
        self.assertEqual(process.returncode, 0, text)
        self.assertTrue(document["finished"])
        self.assertEqual((document["commit"], document["run"], document["rehearsal"]), ("abc", "proof", True))
        self.check_parts(document)
        self.check_killed([part["name"] for part in document["parts"]])

    def check_parts(self, document):
        seen = {part["name"]: part for part in document["parts"]}
        self.assertEqual([name for name, part in seen.items() if part["outcome"] != "passed"],
                         ["registration-two-processes"])
        bench = subprocess.run([os.path.join(BUILD, build.BENCH), "--list", "--divide", "4096"], capture_output=True,
                               text=True, check=True)
        groups = bench.stdout.splitlines()
        self.assertGreater(len(groups), 20)
        self.assertLessEqual({f"figures {group}" for group in groups}, set(seen))
        measured = [name for name in seen if name.startswith("figures") and seen[name].get("figures")]
        self.assertGreater(len(measured), len(groups) - 4)
        for name in ("kernels' image", "ncu", "fsdp_train"):
            self.assertTrue(seen[name]["figures"], name)
        self.assertEqual(len(seen["rules-driver"]["rules"]), len(proof.rule_names()))
        self.assertGreater(len(seen["rules-nccl"]["rules"]), 20)
        self.assertTrue(seen["registration-one-rank"]["report"])
        for name in ("logprob", *measured[:1]):
            self.assertGreater(seen[name]["gpu"]["after"]["power_w"], 0, name)
        low, middle, high = seen["products"]["gpu"]["during"]["sm_mhz"]
        self.assertTrue(1200 <= low <= middle <= high < 1900)
        order = list(seen)
        self.assertLess(order.index("logprob"), order.index(measured[0]))
        self.assertTrue(measured[0].startswith("figures gpu: logprob"))
        changed = [name for name in order if name.startswith(("figures gpu: fused head", "figures gpu: loss", "figures gpu: rearrange"))]
        first = order.index(measured[0])
        self.assertEqual(order[first + proof.VARIANTS:first + proof.VARIANTS + len(changed)], changed)
        self.assertLess(order.index(changed[-1]), order.index("rules-driver"))
        self.assertLess(order.index("rules-driver"), order.index("pool-contract"))
        self.assertLess(order.index("fsdp_train"), order.index("rules-nccl"))
        self.assertEqual(order[-3:-1], [f"compute-sanitizer {tool}: test_gpu_logprob"
                                        for tool in ("memcheck", "racecheck")])

    def await_parts(self, count):
        """Waits until a run has begun that many parts."""
        end = time.monotonic() + 150
        while time.monotonic() < end and not (os.path.exists(self.path) and len(read(self.path)["parts"]) >= count):
            time.sleep(0.05)

    def check_killed(self, order):
        os.remove(self.path)
        begun = random.randrange(5, len(order) // 2)
        process = self.start()
        self.await_parts(begun)
        process.kill()
        document, text = self.finish(process)
        printed = [line.split()[1:] for line in text.splitlines() if line.startswith("  ")]
        done = [part for part in document["parts"] if part["outcome"] != "running"]
        self.assertFalse(document["finished"])
        self.assertGreaterEqual(len(done), len(printed), f"killed when {begun} parts had begun")
        self.assertGreater(len(done), 3)
        self.assertLess(len(done), len(order))
        self.assertEqual([part["name"] for part in document["parts"]], order[:len(document["parts"])])

    def test_terminated_run(self):
        process = self.start()
        self.await_parts(3)
        process.send_signal(signal.SIGTERM)
        document, text = self.finish(process)
        outcomes = [part["outcome"] for part in document["parts"]]
        self.assertEqual(process.returncode, 1, text)
        self.assertIn("not run", outcomes)
        self.assertEqual(outcomes[-1], "not run")
        self.assertIn("SIGTERM", document["parts"][-1]["reason"])


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]], verbosity=2)
