# SPDX-License-Identifier: Apache-2.0
"""Mistakes that people make at a prompt, and how the command answers them.

Arguments: source directory, the command."""

import gzip
import json
import os
import pickle
import re
import shutil
import signal
import struct
import subprocess
import sys
import unittest

from answers import InFolder, run

SOURCE, PROGRAM = sys.argv[1], os.path.abspath(sys.argv[2])
MODELS = os.path.join(SOURCE, "examples", "models")
MODEL = os.path.join(MODELS, "Llama-3.1-8B")
NANO = os.path.join(MODELS, "Nemotron-3-Nano-30B-A3B")
ROWS = "id,lower,upper,size\na,0,2,10\nb,1,3,5\n"


class Commands(InFolder):
    def test_unknown_commands(self):
        for word, suggestion in (("plna", 'unknown command "plna"; did you mean "plan"? '),
                                 ("shedule", 'did you mean "schedule"?'),
                                 ("frobnicate", 'unknown command "frobnicate" (')):
            self.refused(run(word), 2, suggestion, "bucketpool --help")
        self.refused(run("help", "plna"), 2, 'did you mean "plan"?')
        self.refused(run("bench", "frob"), 2, 'unknown benchmark "frob"')

    def test_help_and_version_in_every_form(self):
        for command in ("plan", "explain", "schedule", "run", "fit", "step", "pack", "view", "bench", "completion"):
            texts = {run(*arguments).stdout for arguments in ((command, "--help"), (command, "-h"), (command, "-?"),
                                                              ("help", command))}
            self.assertEqual(len(texts), 1, command)
            self.assertTrue(texts.pop().startswith(f"Usage: bucketpool {command}"))
        self.assertEqual(len({run(word).stdout for word in ("version", "--version", "-V")}), 1)

    def test_unknown_options(self):
        self.refused(run("plan", "--polcy", "max", MODEL), 2, 'plan: unknown option --polcy; did you mean "--policy"?')
        self.refused(run("plan", "--polcy=max", MODEL), 2, 'plan: unknown option --polcy; did you mean "--policy"?')
        self.refused(run("plan", "--frobnicate", MODEL), 2, "plan: unknown option --frobnicate (see")
        self.refused(run("plan", "-Z", MODEL), 2, "plan: unknown option -Z (see")
        self.refused(run("plan", MODEL, "--policy"), 2, "plan: option --policy requires a value")
        self.refused(run("plan", MODEL, "--json=3"), 2, "plan: option --json takes no value")

    def test_unknown_values(self):
        for option, value, nearest in (("--policy", "mx", "max"), ("--bucketing", "fsdp", "fsdp2"),
                                       ("--gpu", "h101", "h100")):
            self.refused(run("plan", MODEL, option, value), 2, f"{option}: expected one of ",
                         f'got "{value}"; did you mean "{nearest}"?')
        result = run("plan", MODEL, "--policy", "frobnicate")
        self.refused(result, 2, "dynamic, fixed, max, scheduled")
        self.assertNotIn("did you mean", result.stderr)
        self.refused(run("bench"), 2, "give logprob or offload")
        self.refused(run("bench", "frob"), 2, "give logprob or offload")

    def test_other_kinds_of_files(self):
        """Every reader says what the file is, and which command reads it."""
        plan, answer = os.path.join(self.folder, "plan.json"), os.path.join(self.folder, "answer.json")
        packed, pickled = os.path.join(self.folder, "x.gz"), os.path.join(self.folder, "x.pickle")
        run("plan", MODEL, "-o", plan)
        for path, data in ((answer, run("schedule", MODEL, "--json").stdout.encode()), (packed, gzip.compress(b"{}")),
                           (pickled, pickle.dumps({}, 2))):
            with open(path, "wb") as file:
                file.write(data)
        for command in ("plan", "explain", "schedule", "run"):
            self.refused(run(command, plan), 2,
                         "a plan (bucketpool.plan/1), not a model; `bucketpool run MODEL --plan FILE`")
            self.refused(run(command, answer), 2, "an answer of `bucketpool schedule --json`", "give the MODEL")
            self.refused(run(command, packed), 2, "compressed with gzip; gunzip it first")
        for command in ("step", "view"):
            self.refused(run(command, plan), 2, "a plan (bucketpool.plan/1); `bucketpool run MODEL --plan FILE`",
                         "give a snapshot")
            self.refused(run(command, answer), 2, "an answer of `bucketpool schedule --json`", "give a snapshot")
            self.refused(run(command, os.path.join(MODEL, "config.json")), 2,
                         "a model's configuration; `bucketpool plan FILE`")
        for path, words in ((pickled, "a pickle; `bucketpool step`"), (packed, "compressed with gzip"),
                            (answer, 'got "bucketpool.schedule/1"; `bucketpool plan MODEL -o FILE`')):
            self.refused(run("run", MODEL, "--plan", path), 2, words)

    def test_folder_as_output(self):
        target = os.path.join(self.folder, "x.svg")
        os.mkdir(target)
        for command, option in (("plan", "-o"), ("plan", "--plot"), ("schedule", "--plot")):
            self.refused(run(command, MODEL, option, target), 3,
                         f"{option} {target}: cannot be written: Is a directory")
        self.assertEqual((os.listdir(self.folder), os.listdir(target)), (["x.svg"], []))

    def test_closed_pipe(self):
        """As in `| head -1`: no message, the status of SIGPIPE, and no file that is half there."""
        target = os.path.join(self.folder, "plan.json")
        read, write = os.pipe()
        os.close(read)
        try:
            result = subprocess.run([PROGRAM, "plan", MODEL, "-o", target], stdout=write, stderr=subprocess.PIPE,
                                    text=True, timeout=600)
        finally:
            os.close(write)
        self.assertEqual((result.returncode, result.stderr), (141, ""))
        self.assertEqual(os.listdir(self.folder), [])


class Budgets(InFolder):
    def test_exit_status(self):
        for budget, code in (("80GiB", 0), ("1GiB", 1)):
            for arguments in ((MODEL,), (MODEL, "--json"), (MODEL, os.path.join(SOURCE, "examples", "models",
                                                                                "Nemotron-3-Nano-30B-A3B"))):
                result = run("plan", "--dp", "256", "--ep", "1", "--policy", "scheduled", "--budget", budget,
                             *arguments)
                self.assertEqual((result.returncode, result.stderr), (code, ""), (budget, arguments))
        # one policy that fits is enough
        self.assertEqual(run("plan", "--budget", "2GiB", "--dp", "4096", "--policy", "fixed,scheduled",
                             MODEL).returncode,
                         min(run("plan", "--budget", "2GiB", "--dp", "4096", "--policy", policy, MODEL).returncode
                             for policy in ("fixed", "scheduled")))

    def test_units(self):
        self.refused(run("plan", "--budget", "80", MODEL), 2,
                     '"80" is less than 1 MiB; write the unit, for example 80GiB')


class Plans(InFolder):
    """`run --plan` drives what was planned, or says which option differs."""

    def setUp(self):
        super().setUp()
        self.plan = self.path("plan.json")
        self.assertEqual(run("plan", NANO, "--ep", "8", "--policy", "max", "-o", self.plan).returncode, 0)

    def drive(self, *options):
        return run("run", NANO, "--plan", self.plan, "--device", "null", "--steps", "1", *options)

    def test_other_options(self):
        self.assertEqual(self.drive("--ep", "8").returncode, 0)
        for options, words in (
            ((), "planned with --ep 8, this run is with --ep 1"),
            (("--ep", "8", "--dp", "128"), "planned with --dp 64, this run is with --dp 128"),
            (("--ep", "8", "--prefetch", "0"), "planned with --prefetch 1, this run is with --prefetch 0"),
            (("--ep", "8", "--recompute"), "planned without --recompute, this run is with --recompute"),
            (("--ep", "8", "--streams", "unified"), "planned without --streams, this run is with --streams unified"),
            (("--ep", "8", "--eval"), 'planned for the schedule "training", this run is for the schedule "evaluation"'),
            (
                ("--ep", "8", "--unit-prefetch", "backbone.layers.0=2"),
                (
                    "planned without --unit-prefetch backbone.layers.0, this run is with --unit-prefetch"
                    " backbone.layers.0=2:2"
                ),
            ),
        ):
            self.refused(self.drive(*options), 2, f"{self.plan} was {words}; ", "--unchecked")
        self.assertEqual(self.drive("--ep", "8", "--prefetch", "0", "--unchecked").returncode, 0)

    def test_planning_options_with_plan(self):
        for option in (("--policy", "max"), ("--buffers", "3"), ("--fallback", "dynamic"), ("--joint",),
                       ("--work", "9"), ("--align", "4KiB")):
            self.refused(self.drive("--ep", "8", *option), 2, f"{option[0]} cannot be used with --plan")

    def test_default_policy(self):
        """-o writes scheduled, run plans scheduled."""
        run("plan", NANO, "-o", self.plan)
        with open(self.plan, encoding="utf-8") as file:
            self.assertEqual(json.load(file)["policy"], "scheduled")
        result = run("run", NANO, "--device", "null", "--json")
        self.assertEqual(json.loads(result.stdout)["plan"]["policy"], "scheduled")


class Values(InFolder):
    def test_alignment(self):
        reports = [run("plan", MODEL, "--json", "--align", align).stdout for align in ("4096", "4KiB", "4k", "4 kib")]
        self.assertEqual(len(set(reports)), 1)
        self.assertIn('"scheduled"', reports[0])
        for text, words in (("4KB", '--align: expected a power of two, got "4KB"'), ("3", "expected a power of two"),
                            ("0", 'such as 256 or 4KiB, got "0"'), ("2TiB", "1TiB"), ("many", '"many"')):
            self.refused(run("plan", MODEL, "--align", text), 2, words)

    def test_units_without_effect(self):
        for command in ("plan", "explain", "schedule", "run"):
            self.refused(run(command, MODEL, "--units", "blocks.N"), 2,
                         "--units requires safetensors, and Llama-3.1-8B has units already")
        header = json.dumps({f"blocks.{i}.weight": {"dtype": "BF16", "shape": [8, 8],
                                                    "data_offsets": [128 * i, 128 * i + 128]}
                             for i in range(2)}).encode()
        with open(self.path("x.safetensors"), "wb") as file:
            file.write(struct.pack("<Q", len(header)) + header + bytes(256))
        with open(self.path("index.json"), "w", encoding="utf-8") as file:
            json.dump({"weight_map": {f"blocks.{i}.weight": "x.safetensors" for i in range(2)}}, file)
        for path in (self.path("x.safetensors"), self.path("index.json")):
            result = run("plan", path, "--units", "blocks.N")
            self.assertEqual((result.returncode, result.stderr), (0, ""), path)
            self.assertIn("in 2 units", result.stdout)


class Models(InFolder):
    """Models by name, wherever the command is started."""

    def test_names(self):
        here = run("plan", "Llama-3.1-8B", cwd=self.folder)
        self.assertEqual((here.returncode, here.stdout), (0, run("plan", MODEL).stdout))
        self.refused(run("plan", "Llama-3.1-8C", cwd=self.folder), 2, 'did you mean "Llama-3.1-8B"?',
                     f"searched in {os.path.realpath(MODELS)}")
        self.refused(run("plan", "llama-3.1-8b", cwd=self.folder), 2, 'did you mean "Llama-3.1-8B"?')
        self.refused(run("plan", "config.json", cwd=self.folder), 2,
                     "config.json: No such file or directory, and not a bundled model (searched")
        self.refused(run("plan", "a/Llama-3.1-8B", cwd=self.folder), 2, "No such file")

    def test_file_before_bundled_model(self):
        shutil.copytree(os.path.join(MODELS, "Qwen3-0.6B"), self.path("Llama-3.1-8B"))
        self.assertNotIn("8.030 B", run("plan", "Llama-3.1-8B", cwd=self.folder).stdout)

    def test_folders(self):
        os.mkdir(self.path("mine"))
        shutil.copytree(os.path.join(MODELS, "Qwen3-0.6B"), self.path("mine/Own-1B"))
        named = {**os.environ, "BUCKETPOOL_MODELS": f"/no/such:{self.path('mine')}"}
        self.assertTrue(run("plan", "Own-1B", env=named).stdout.startswith("Own-1B: "))
        self.assertEqual(run("plan", "Llama-3.1-8B", env=named).returncode, 0)
        self.refused(run("plan", "Own-2B", env=named), 2, 'did you mean "Own-1B"?', f"/no/such:{self.path('mine')}:")

    def test_installed(self):
        """Beside the command in the way that an installation has them: bin/bucketpool and share/bucketpool/models."""
        for folder in ("bin", "share/bucketpool/models"):
            os.makedirs(self.path(folder))
        copy = self.path("bin/bucketpool")
        shutil.copy(PROGRAM, copy)
        shutil.copytree(MODEL, self.path("share/bucketpool/models/Shared-8B"))
        build = os.path.dirname(os.path.dirname(PROGRAM))
        known = {**os.environ, "LD_LIBRARY_PATH": ":".join(os.path.join(build, part) for part in ("src", "clients/logprob"))}
        result = subprocess.run([copy, "plan", "Shared-8B"], capture_output=True, text=True, env=known, timeout=600)
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        self.assertTrue(result.stdout.startswith("Shared-8B: 8.030 B"))


class Pipes(InFolder):
    """- is standard input, and of -o standard output."""

    def test_models(self):
        with open(os.path.join(MODEL, "config.json"), encoding="utf-8") as file:
            text = file.read()
        for command in ("plan", "explain", "schedule"):
            result = run(command, "-", input=text)
            self.assertEqual((result.returncode, result.stderr), (0, ""))
            self.assertEqual(result.stdout, run(command, MODEL).stdout.replace("Llama-3.1-8B", "stdin"))
        units = {"format": "bucketpool.units/1", "model": "tiny",
                 "units": [{"name": "u", "buckets": [{"dtype": "bf16", "numel": 64}]}]}
        self.assertTrue(run("plan", "-", input=json.dumps(units)).stdout.startswith("tiny: "))
        self.refused(run("plan", "-", "-", input=text), 2, "only one model can be standard input (-), got 2")
        self.refused(run("plan", "-", input='{"a":'), 2, "/dev/stdin:1:")

    def test_plans(self):
        result = run("plan", MODEL, "-o", "-")
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        self.assertEqual(json.loads(result.stdout)["format"], "bucketpool.plan/1")
        self.assertEqual(run("run", MODEL, "--plan", "-", "--device", "null", input=result.stdout).returncode, 0)
        self.refused(run("run", "-", "--plan", "-", input=""), 2, "cannot both be standard input (-)")
        self.refused(run("plan", MODEL, "-o", "-", "--json"), 2, "--json and -o - both write to standard output")
        with open("/dev/full", "w", encoding="utf-8") as full:
            lost = subprocess.run([PROGRAM, "plan", MODEL, "-o", "-"], stdout=full, stderr=subprocess.PIPE, text=True,
                                  timeout=600)
        self.assertEqual((lost.returncode, lost.stderr),
                         (3, "bucketpool: standard output cannot be written: No space left on device\n"))

    def test_other_outputs(self):
        """Would be mixed with the answer."""
        snapshot = os.path.join(SOURCE, "examples", "files", "step_1", "snapshot_rank00.pickle")
        for command, option in ((("plan", MODEL), "--plot"), (("run", MODEL), "--trace"),
                                (("view", snapshot), "--html"),
                                (("view", snapshot), "--flame"), (("pack", "-"), "--plot")):
            self.refused(run(*command, option, "-", input=""), 2,
                         f"{option} -: standard output is used for the report; give a file")

    def test_appended_output(self):
        """Standard output may be a file that others write to as well."""
        with open(self.path("all"), "a", encoding="utf-8") as file:
            file.write("before\n")
            file.flush()
            subprocess.run([PROGRAM, "pack", "-", "-o", "-"], input=ROWS, stdout=file, text=True, check=True,
                           timeout=600)
            file.write("after\n")
        with open(self.path("all"), encoding="utf-8") as file:
            self.assertEqual(file.read(), "before\nid,lower,upper,size,offset\na,0,2,10,0\nb,1,3,5,10\nafter\n")

    def test_packing(self):
        result = run("pack", "-", input=ROWS)
        self.assertEqual((result.returncode, result.stdout.splitlines()[0]), (0, "stdin: 2 items, live in 2 intervals"))
        placed = run("pack", "-", "-o", "-", input=ROWS).stdout
        self.assertEqual(run("pack", "--check", "-", input=placed).returncode, 0)
        self.refused(run("pack", "-", "-o", "-", "--json", input=ROWS), 2, "--json and -o -")
        self.refused(run("pack", "-", "-o", "-", "--capacity", "12", input=ROWS), 1, "stdin: infeasible, proven")
        self.refused(run("pack", "-", "-", input=ROWS), 2, "only one file can be standard input (-), got 2")


def write_rows(path, items):
    """Writes an instance that is hard to pack."""
    with open(path, "w", encoding="utf-8") as file:
        file.write("id,lower,upper,size\n")
        file.writelines(f"i{i},{i * 7919 % 1000},{i * 7919 % 1000 + i * 104729 % 300 + 1},{i * 1299709 % 5000 + 1}\n"
                        for i in range(items))
    return path


class Progress(InFolder):
    RUN = ("run", NANO, "--scale", "65536", "--steps", "20", "--delay", "2000")

    def test_lines_without_terminal(self):
        often = {**os.environ, "BUCKETPOOL_PROGRESS": "0.05"}
        result = run(*self.RUN, env=often)
        self.assertEqual(result.returncode, 0)
        self.assertRegex(result.stderr, r"(?m)^bucketpool: step \d+ of 2080, \d+ %, \d+:\d\d left$")
        self.assertNotIn("\r", result.stderr)
        result = run("pack", write_rows(self.path("rows.csv"), 3000), "--work", "300000000", env=often)
        self.assertEqual(result.returncode, 0)
        self.assertRegex(result.stderr, r"(?m)^bucketpool: .*rows\.csv: packing 3000 items, "
                         r"best \d+, \d+\.\d\d % above the proven minimum, \d+:\d\d so far$")
        self.assertEqual(run(*self.RUN).stderr, "")

    def test_narrow_terminal(self):
        code, data = self.on_terminal([PROGRAM, *self.RUN], "stderr", columns=40, stdout=subprocess.DEVNULL)
        lines = [line for line in re.split(rb"\r|\033\[K", data) if line]
        self.assertEqual((code, max(map(len, lines))), (0, 39))


class Interrupts(InFolder):
    def interrupt(self, *arguments):
        often = {**os.environ, "BUCKETPOOL_PROGRESS": "0.01"}
        with subprocess.Popen([PROGRAM, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              env=often) as process:
            errors = ""
            while not re.search(r"(measurement \d{3,}|turn \d\d+) of|best \d+", errors):  # there is a result
                line = process.stderr.readline()
                self.assertNotEqual(line, "", errors)
                errors += line
            process.send_signal(signal.SIGINT)
            output, rest = process.communicate(timeout=600)
        self.assertEqual(process.returncode, -signal.SIGINT, rest)  # 130 in a shell
        return output, rest

    def test_best_placement(self):
        path = write_rows(self.path("rows.csv"), 3000)
        output, errors = self.interrupt("pack", path, "--work", str(1 << 40), "--json")
        found = json.loads(output)["files"][0]
        self.assertEqual(found["outcome"], "placed")
        self.assertRegex(errors, "(?m)^bucketpool: interrupted: the report has the best placement so far$")

    def test_partial_bench_output(self):
        shapes = ("--seq", "64", "--vocab", "1000,2000", "--turns", "10000", "--threads", "1")
        without_blas = "no BLAS library" in run("bench", "logprob", "--seq", "1", "--vocab", "8",
                                                   "--head", "8").stderr
        for options in ((), ("--head", "64"))[:1 if without_blas else 2]:
            output, errors = self.interrupt("bench", "logprob", *shapes, "--chunk", "none", *options)
            self.assertRegex(
                errors, r"(?m)^bucketpool: interrupted after \d+ of \d+ measurements; the medians are of those$"
            )
            rows = [line.split() for line in output.splitlines() if re.match(r"\s+64 ", line)]
            self.assertEqual([(row[1], row[-1] == "interrupted") for row in rows], [("1000", False), ("2000", True)],
                             output)
            self.assertIn("median of up to 10000 turns", output)
        output, errors = self.interrupt("bench", "logprob", *shapes, "--json")
        rows = json.loads(output)["rows"]
        self.assertTrue(rows[0]["time_ms"] > 0 and rows[0]["error"] is None, rows[0])
        self.assertEqual(rows[-1]["error"], "interrupted")

    def test_bench_offload(self):
        output, errors = self.interrupt("bench", "offload", "--bytes", "8MiB", "--turns", "10000", "--json")
        turns = json.loads(output)["turns"]
        self.assertTrue(0 < turns < 10000)
        self.assertIn(f"bucketpool: interrupted after {turns} of 10000 turns", errors)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
