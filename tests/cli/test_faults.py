# SPDX-License-Identifier: Apache-2.0
"""One allocation of a command fails: every command, with tables, documents and files, once for each allocation that it
makes.

Such a run does not answer, or it answers what the others answer, whole: never a part of it, no signal, no hang, and no
word of a mistake in the input.

Arguments: source directory, the bucketpool executable, the library of failing_malloc.c. Of each command a sample of the
allocations fails; from BUCKETPOOL_EXAMPLES=5000 on (`./check --full`) all, and of pictures, most of which are the
drawing libraries', about 5000. `--report` prints a line for each command and place, and changes no verdict.
"""

import collections
import json
import os
import re
import resource
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

import recordings
import snapshots

REPORT = "--report" in sys.argv
ROOT, TOOL, SHIM = (os.path.abspath(path) for path in sys.argv[1:4])
EXAMPLES = int(os.environ.get("BUCKETPOOL_EXAMPLES", "200"))
SAMPLE = 10 if "BUCKETPOOL_BRIEF" in os.environ else EXAMPLES if EXAMPLES >= 5000 else max(1, EXAMPLES // 4)
SECONDS = 400

UNITS = {
    "format": "bucketpool.units/1", "model": "small",
    "units": [{"name": f"layers.{i}", "parameters": [
        {"name": f"layers.{i}.a.weight", "shape": [64, 32 + 8 * i], "dtype": "bf16"},
        {"name": f"layers.{i}.a_longer_name_than_most_of_the_others.weight", "shape": [16], "dtype": "fp32"}]}
              for i in range(3)],
    "outside": {"parameters": [{"name": "embedding", "shape": [128, 64], "dtype": "bf16"}]}}
CONFIG = {"model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3,
          "num_attention_heads": 4,
          "num_key_value_heads": 2, "vocab_size": 256, "tie_word_embeddings": False, "max_position_embeddings": 128,
          "rms_norm_eps": 1e-5}
PACKING = "id,lower,upper,size\n" + "".join(f"item {i},{i % 5},{i % 5 + 2 + i % 3},{16 * (1 + i % 4)}\n"
                                            for i in range(12))
# Members that differ between two runs without faults: times and figures derived from them.
TIMED = {"time", "time_ms", "forward_ms", "backward_ms", "products_ms", "products_ratio", "bandwidth_fraction",
         "copy_bytes_per_s",
         "gib_per_s", "copy_gib_per_s", "plain_gib_per_s", "ratio", "whole_ratio", "ms", "without_copy_ms", "copy_ms",
         "plain_ms", "first_ms", "backing", "resident_bytes"}


class Server:
    """The command, stopped before main; a run for each call."""

    def __init__(self, folder, arguments):
        self.folder = folder
        orders, self.orders = os.pipe()
        self.answers, answers = os.pipe()
        environment = {**os.environ, "LD_PRELOAD": SHIM, "FAULT_IN": str(orders), "FAULT_OUT": str(answers),
                       "FAULT_FOLDER": folder,
                       "BUCKETPOOL_PROGRESS": "0",
                       "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen([TOOL, *arguments], env=environment, pass_fds=(orders, answers),
                                        stdin=subprocess.DEVNULL, cwd=folder, start_new_session=True)
        os.close(orders)
        os.close(answers)

    def run(self, fails):
        """The status that wait gives, None for a hang."""
        os.write(self.orders, b"%d\n" % fails)
        line = b""
        while not line.endswith(b"\n"):
            if not select.select([self.answers], [], [], SECONDS)[0]:
                return None
            part = os.read(self.answers, 32)
            if not part:
                raise RuntimeError("the server has ended")
            line += part
        return int(line)

    def read(self, name):
        try:
            with open(os.path.join(self.folder, name), "rb") as file:
                return file.read()
        except FileNotFoundError:
            return None

    def close(self):
        os.close(self.orders)
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        os.close(self.answers)


def without_times(value):
    if isinstance(value, dict):
        return {key: without_times(member) for key, member in value.items() if key not in TIMED}
    return [without_times(member) for member in value] if isinstance(value, list) else value


def comparable(name, output, timed):
    """The part of an output that is equal in all good runs; None if the output is incomplete."""
    if output is None:
        return None
    kind = os.path.splitext(name)[1]
    if not timed:
        return output
    text = output.decode()
    if not text.startswith("{"):
        return re.sub(r"[-\d.]+", "#", re.sub(r" +", " ", text))
    try:
        return without_times(json.loads(text))
    except ValueError:
        return None


class Faults(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)
        for name, text in {"units.json": json.dumps(UNITS), "config.json": json.dumps(CONFIG), "packing.csv": PACKING}.items():
            with open(os.path.join(self.folder, name), "w", encoding="utf-8") as file:
                file.write(text)

    def sweep(self, *arguments, files=(), timed=False):
        server = Server(self.folder, arguments)
        self.addCleanup(server.close)
        whole = server.run(0)
        self.assertEqual(whole, 0, server.read("stderr"))
        places = int(server.read("count"))
        self.assertGreater(places, 20)
        expected = {name: comparable(name, server.read(name), timed) for name in ("stdout", *files)}
        stride = 1 if EXAMPLES >= 5000 else max(1, places // SAMPLE)
        kinds, wrong = collections.Counter(), []
        for place in range(1, places + 1, stride):
            for name in files:
                if os.path.exists(os.path.join(self.folder, name)):
                    os.unlink(os.path.join(self.folder, name))
            status = server.run(place)
            kind = self.verdict(server, status, expected, timed)
            kinds[kind.split(":")[0]] += 1
            if kind not in ("answered", "failed"):
                wrong.append(f"allocation {place}: {kind}")
            if status is None:
                break
        if REPORT:
            print(f"{' '.join(arguments)}: {places} allocations, {dict(kinds)}", *wrong[:400], sep="\n  ", flush=True)
        self.assertEqual(wrong, [], f"{' '.join(arguments)}: {len(wrong)} of {sum(kinds.values())} ({places} places)")

    def verdict(self, server, status, expected, timed):
        if status is None:
            return "hang: no end within %d s" % SECONDS
        if os.WIFSIGNALED(status):
            return "signal: %s %r" % (signal.Signals(os.WTERMSIG(status)).name, server.read("stderr"))
        code, said = os.WEXITSTATUS(status), server.read("stderr")
        if code == 0:
            differs = [name for name in expected if comparable(name, server.read(name), timed) != expected[name]]
            return "lost: %s" % " ".join(differs) if differs else "answered"
        if code == 127 and said == b"out of memory\n":
            return "failed"  # of the loader, when a library is looked for
        if code != 3:
            return "code: %d %r" % (code, said)
        lines = [line for line in said.splitlines() if not line.startswith(b"Fontconfig ")]
        return "failed" if len(lines) == 1 and lines[0].startswith(b"bucketpool: ") else "message: %r" % said

    def test_plan(self):
        self.sweep("plan", "units.json")

    def test_plan_advice(self):
        self.sweep("plan", "config.json", "--policy", "max", "--ep", "2", "--dp", "2", "--budget", "4MiB", "--prefetch", "9")

    def test_models(self):
        self.sweep("models")

    def test_plan_json(self):
        self.sweep("plan", "units.json", "--json", "--dp", "4", "--budget", "1GiB")

    def test_plan_config(self):
        self.sweep("plan", "config.json", "units.json", "--json", "--joint")

    def test_plan_fsdp2(self):
        self.sweep("plan", "config.json", "--bucketing", "fsdp2", "--dp", "4", "--budget", "1GiB")

    def test_plan_models(self):
        self.sweep("plan", "config.json", "units.json")

    def test_plan_file(self):
        self.sweep("plan", "units.json", "--roles", "param", "-o", "plan.json", files=["plan.json"])

    def test_plan_to_standard_output(self):
        self.sweep("plan", "units.json", "--roles", "param", "-o", "-")

    def test_plan_picture(self):
        self.sweep("plan", "units.json", "--roles", "param", "--plot", "plan.svg", files=["plan.svg"])

    def test_explain(self):
        self.sweep("explain", "units.json")

    def test_explain_json(self):
        self.sweep("explain", "units.json", "--json")

    def test_schedule(self):
        self.sweep("schedule", "units.json")

    def test_schedule_json(self):
        self.sweep("schedule", "units.json", "--json")

    def test_schedule_picture(self):
        self.sweep("schedule", "units.json", "--plot", "schedule.svg", files=["schedule.svg"])

    def test_run(self):
        self.sweep("run", "units.json", timed=True)

    def test_run_json(self):
        self.sweep("run", "units.json", "--json", "--device", "null", timed=True)

    def test_pack(self):
        self.sweep("pack", "packing.csv")
        self.sweep("pack", "packing.csv", "packing.csv")

    def test_pack_json(self):
        self.sweep("pack", "packing.csv", "--json", "-o", "packed.csv", files=["packed.csv"])

    def test_pack_picture(self):
        self.sweep("pack", "packing.csv", "--plot", "packed.svg", files=["packed.svg"])

    def snapshots(self):
        for rank in range(2):
            snapshots.write(os.path.join(self.folder, f"rank{rank}.pickle"),
                            snapshots.ours(rank=rank, ranks=2, units=3, steps=1))
        return [f"rank{rank}.pickle" for rank in range(2)]

    def test_view(self):
        self.sweep("view", *self.snapshots())

    def test_view_json(self):
        self.sweep("view", *self.snapshots(), "--json")

    def test_view_page(self):
        self.sweep("view", *self.snapshots()[:1], "--html", "page.html", "--plot", "view.svg",
                   files=["page.html", "view.svg"])

    def test_step(self):
        recordings.write_steps(os.path.join(self.folder, "steps.pickle"), layers=1)
        self.sweep("step", "steps.pickle", "--json", "-o", "step.json", "--plot", "step.svg", files=["step.json", "step.svg"])

    def test_fit(self):
        recordings.write_steps(os.path.join(self.folder, "steps.pickle"), layers=1)
        with open(os.path.join(ROOT, "tests", "data", "fit", "llama.json"), encoding="utf-8") as file:
            document = json.load(file)
        document["shown"]["recording"] = os.path.join(self.folder, "steps.pickle")
        with open(os.path.join(self.folder, "fit.json"), "w", encoding="utf-8") as file:
            json.dump(document, file)
        self.sweep("fit", "fit.json", "--plot", "fit.svg", files=["fit.svg"])
        self.sweep("fit", "fit.json", "--json")

    def test_bench_offload(self):
        self.sweep("bench", "offload", "--bytes", "4MiB", "--turns", "1", "--backing", "pinned", timed=True)
        self.sweep("bench", "offload", "--bytes", "4MiB", "--turns", "1", "--backing", "staged", "--json", timed=True)


class SmallStack(unittest.TestCase):
    """128 KiB, as `ulimit -s 128` gives."""

    def run_on_it(self, text):
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            file.write(text)
            file.flush()
            return subprocess.run([TOOL, "plan", "--json", file.name], capture_output=True, text=True, check=False,
                                  timeout=SECONDS,
                                  preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_STACK, (128 << 10, 128 << 10)))

    def test_an_answer(self):
        result = self.run_on_it(json.dumps(UNITS))
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        self.assertEqual(json.loads(result.stdout)["models"][0]["model"], "small")

    def test_deep_documents(self):
        for text in ("[" * 1000000, '{"a":' * 1000000, "[" * 2000 + "]" * 2000):
            result = self.run_on_it(text)
            self.assertEqual((result.returncode, result.stdout), (2, ""))
            self.assertIn("nested deeper than 64 levels", result.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + [word for word in sys.argv[4:] if word != "--report"])
