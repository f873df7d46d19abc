# SPDX-License-Identifier: Apache-2.0
"""`bucketpool fit`: documents as tables, documents that are wrong, and a Python that does what none should. Scripts take its place.

Arguments: source directory, the command."""

import copy
import json
import os
import select
import shlex
import signal
import subprocess
import sys
import time
import unittest

from answers import InFolder, run

SOURCE, PROGRAM = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
DATA = os.path.join("tests", "data", "fit")
MODEL = os.path.join(SOURCE, "examples", "models", "Llama-3.1-8B")
STEPS = os.path.join(SOURCE, "examples", "files", "llama_steps.pickle")
GIB = 1 << 30
MISSING = object()
LIMIT = 60  # seconds: only what hangs takes so long


def example(name="llama"):
    with open(os.path.join(SOURCE, DATA, f"{name}.json"), encoding="utf-8") as file:
        return json.load(file)


def set_member(document, path, value):
    *places, last = path
    for place in places:
        document = document[place]
    if value is MISSING:
        del document[last]
    else:
        document[last] = value


def set_figures(document, row, kind, above, runs):
    """Bytes of an allocator, so many GiB above the limit; whether it runs."""
    row[f"{kind}_bytes"] = document["limit_bytes"] + above * GIB
    if kind != "served":
        row[f"{kind}_retries"] = above if runs else None


def is_gone(process):
    """A process that has ended, or waits for its parent."""
    try:
        with open(f"/proc/{process}/stat", encoding="utf-8") as file:
            return file.read().rsplit(")", 1)[1].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


class Documents(InFolder):
    def write(self, document, name="fit.json"):
        with open(self.path(name), "w", encoding="utf-8") as file:
            file.write(document if isinstance(document, str) else json.dumps(document))
        return self.path(name)

    def printed(self, document, code=0, **environment):
        result = run("fit", self.write(document), env={**os.environ, **environment})
        self.assertEqual((result.returncode, result.stderr), (code, ""))
        return result.stdout

    def test_reports(self):
        for name, code in (("llama", 0), ("qwen3-moe", 0), ("too-large", 1), ("one-batch", 0)):
            result = run("fit", os.path.join(DATA, f"{name}.json"))
            self.assertEqual((result.returncode, result.stderr), (code, ""))
            self.golden(f"fit/{name}.txt", result.stdout)
            verdict, *rest = result.stdout.splitlines()
            self.assertTrue(verdict.startswith(("fits on H100 80GB: ", "does not fit on H100 80GB: ")), verdict)
            self.assertLessEqual(max(map(len, rest)), 100)

    def test_several(self):
        result = run("fit", *(os.path.join(DATA, f"{name}.json") for name in ("llama", "qwen3-moe", "too-large", "one-batch")))
        self.assertEqual((result.returncode, result.stderr), (1, ""))
        self.golden("fit/several.txt", result.stdout)
        result = run("fit", os.path.join(DATA, "llama.json"), self.write("{\"format\": \"bucketpool.fit/1\"}"))
        self.one_line(result, 2, "$.model: is missing")
        self.assertIn("Llama-3.1-8B", result.stdout)

    def test_help(self):
        self.golden("fit/help.txt", run("fit", "--help").stdout)

    def test_json(self):
        """The document as it came."""
        text = json.dumps(example(), indent=3)
        for words, more in (((self.write(text),), {}), (("-",), {"input": text})):
            result = run("fit", *words, "--json", **more)
            self.assertEqual((result.returncode, result.stderr, result.stdout), (0, "", text + "\n"))
        self.assertEqual(run("fit", os.path.join(DATA, "too-large.json"), "--json").returncode, 1)

    def verdict(self, change, code=0, name="llama"):
        document = example(name)
        change(document)
        return self.printed(document, code).splitlines()[0]

    def test_verdicts(self):
        """Figures of the rows, for every order of the allocators' edges."""
        def edges(default, expandable, served, smooth=(9, 9)):
            def change(document):
                table = document["tables"][0]
                document["tables"] = [table]
                for kind, largest, without in zip(("default", "expandable", "served"), (default, expandable, served), (*smooth, None)):
                    table["largest"][kind] = largest
                    for row in table["rows"]:
                        set_figures(document, row, kind, 3 if row["batch"] > largest else 0 if kind == "served" or row["batch"] <= without else 1,
                                    row["batch"] <= largest)
                    if without is not None:
                        table["largest_without_retries"][kind] = min(largest, without)
            return change
        for largest, expected in {
                (3, 4, 5): "4 of 8,192 tokens with expandable segments, 5 served (bucketpool.torch.steps), 3 with the default",
                (3, 3, 4): "3 of 8,192 tokens with expandable segments and with the default, 4 served (bucketpool.torch.steps)",
                (4, 4, 4): "4 of 8,192 tokens with each allocator",
                (0, 0, 2): "2 of 8,192 tokens served (bucketpool.torch.steps), none with expandable segments, none with the default",
                (4, 4, 4, (3, 4)): "4 of 8,192 tokens with expandable segments, served (bucketpool.torch.steps) and with the default "
                                   "(3 without retries)",
                (1, 4, 4, (0, 2)): "4 of 8,192 tokens with expandable segments (2 without retries) and served (bucketpool.torch.steps), "
                                   "1 with the default (none without retries)",
        }.items():
            self.assertEqual(self.verdict(edges(*largest)), f"fits on H100 80GB: micro-batch {expected}")
        self.assertRegex(self.verdict(edges(0, 0, 0), 1), r"^does not fit on H100 80GB: micro-batch 1 of 8,192 tokens takes 80\.77 GiB with the "
                         r"default, 80\.77 GiB served, 80\.77 GiB with expandable segments; 77\.77 GiB are there$")

        def python(document):
            edges(3, 4, 4)(document)
            document["sequence"], document["tables"][0]["checkpointing"], document["options"], document["parameters"] = None, "", {}, 0
        document = example()
        python(document)
        verdict, _, heading, gpu, *_ = self.printed(document).splitlines()
        self.assertEqual(verdict, "fits on H100 80GB: micro-batch 4 with expandable segments and served (bucketpool.torch.steps), 3 with the default")
        self.assertEqual((heading, gpu[:11]), ("Llama-3.1-8B", "H100 80GB: "))
        path = self.write(json.dumps(document))
        line = run("fit", path, path).stdout.splitlines()[1]
        self.assertEqual(line.split()[:3], ["Llama-3.1-8B", "H100", "80GB"])  # neither parameters nor sequence

        def checkpointed(document):
            document["tables"].reverse()
            document["shown"]["batch"] = 17
            document["changes"] = []
        self.assertEqual(self.verdict(checkpointed), "fits on H100 80GB with full checkpointing: micro-batch 18 of 8,192 tokens with expandable segments, "
                         "served (bucketpool.torch.steps) and with the default (17 without retries); without checkpointing 4")

        def none(document):
            document["tables"][1]["rows"][0]["served_bytes"] = document["limit_bytes"] - 1
            document["tables"][1]["largest"]["served"] = 1
        self.assertIn("; with full checkpointing 0 to 1", self.verdict(none, 1, "too-large"))

        def one(document):
            for kind, more in (("default", 3), ("expandable", 2), ("served", 1)):
                set_figures(document, document["tables"][0]["rows"][0], kind, more, False)
                document["tables"][0]["largest"][kind] = 0
        self.assertEqual(self.verdict(one, 1, "one-batch"), "does not fit on H100 80GB: micro-batch 5 of 8,192 tokens with expandable segments "
                         "(2.000 GiB short), served (1.000 GiB short), with the default (3.000 GiB short)")

        def some(document):
            one(document)
            set_figures(document, document["tables"][0]["rows"][0], "expandable", 2, True)
            document["tables"][0]["largest"]["expandable"] = 5
        self.assertEqual(self.verdict(some, 0, "one-batch"), "fits on H100 80GB: micro-batch 5 of 8,192 tokens with expandable segments (2 retries), "
                         "not served (1.000 GiB short), not with the default (3.000 GiB short)")

    def test_skewed_decides(self):
        """The larger figure of two routings."""
        document = example("qwen3-moe")
        table = document["tables"][0]
        self.assertLess(table["rows"][0]["default_bytes"], document["limit_bytes"])
        self.assertIn("with the default (none without retries)", self.printed(document).splitlines()[0])
        table["largest_without_retries"]["default"] = 1
        self.refused(run("fit", self.write(document)), 2, '$.tables[0].largest_without_retries: 1 is not the largest micro-batch of "default": by its '
                     "row, 1 does not fit")
        table["largest_without_retries"]["default"], table["rows"][0]["skewed"]["default_retries"] = 0, None
        self.refused(run("fit", self.write(document)), 2, '$.tables[0].largest: 1 is not the largest micro-batch of "default"')

    def test_options_with_a_document(self):
        path = os.path.join(DATA, "llama.json")
        for words in (("--dp", "8"), ("--batch", "auto"), ("--gpu", "h200"), ("--fresh",)):
            self.refused(run("fit", path, *words), 2, f"{words[0]} has no effect")
        for words, message in ((("--json",), "--json requires one model, got 2"), (("--plot", "x.svg"), "--plot requires one model, got 2")):
            self.refused(run("fit", path, path, *words), 2, message)

    def test_wrong_documents(self):
        shown = ("shown", "batch")
        for path, value, message in (
                (("format",), "bucketpool.fit/2", '$.format: expected "bucketpool.fit/1", got "bucketpool.fit/2"'),
                (("model",), "", "$.model: expected a name"), (("parameters",), -1, "$.parameters: expected an integer"),
                (("sequence",), 0, "$.sequence: expected a positive integer"), (("sequence",), MISSING, "$.sequence: is missing"),
                (("options",), [], "$.options: expected an object"), (("options", "batch"), "x", "$.options.batch: expected"),
                (("versions",), None, "$.versions: expected an object"), (("gpu", "bytes"), 1.5, "$.gpu.bytes: expected"),
                (("limit_bytes",), 5, "$.limit_bytes: 5 is not 84932978278 less 1428076625"),
                (("tables",), [], "$.tables: is empty"), (("tables", 0, "rows"), [], "$.tables[0].rows: is empty"),
                (("tables", 0, "rows", 1, "batch"), 1, "$.tables[0].rows[1]: micro-batch 1 is behind 1"),
                (("tables", 0, "rows", 2, "served_bytes"), MISSING, "rows[2].served_bytes: is missing"),
                (("tables", 0, "rows", 0, "skewed"), {}, "rows[0].skewed.default_bytes: is missing"),
                (("tables", 0, "rows", 0, "default_retries"), MISSING, "rows[0].default_retries: is missing"),
                (("tables", 0, "rows", 0, "default_retries"), "1", "rows[0].default_retries: expected"),
                (("tables", 0, "rows", 3, "expandable_retries"), None, '$.tables[0].largest: 4 is not the largest micro-batch of "expandable"'),
                (("tables", 0, "largest_without_retries"), {"default": 3}, "$.tables[0].largest_without_retries.expandable: is missing"),
                (("tables", 0, "largest_without_retries", "default"), 4, "$.tables[0].largest_without_retries: 4 is not the largest"),
                (("tables", 0, "largest", "served"), 5, "$.tables[0].largest: 5 is not the largest micro-batch"),
                (("tables", 0, "largest", "served"), 3, "$.tables[0].largest: 3 is not the largest micro-batch"),
                (shown, 6, "$.shown: micro-batch 6 is not in the first table"), (shown, 3, "$.changes[0]: micro-batch 4, but 3 is shown"),
                (("shown", "kinds", 0, "bytes"), "a", "$.shown.kinds[0].bytes: expected"),
                (("shown", "recording"), MISSING, "$.shown.recording: is missing"), (("notes",), ["a\nb"], "$.notes[0]: expected a name"),
                (("seconds",), -1, "$.seconds: expected a number"), (("is_cached",), 1, "$.is_cached: expected true or false"),
                (("more",), 1, '$: unknown member "more"')):
            document = example()
            set_member(document, path, value)
            with self.subTest(path=path):
                self.refused(run("fit", self.write(document)), 2, message)
        document = example("one-batch")
        document["options"]["batch"] = 4
        self.refused(run("fit", self.write(document)), 2, "$.shown: micro-batch 5 is shown, but 4 was asked for")
        self.refused(run("fit", self.write('{"format": "bucketpool.fit/1"')), 2, "expected ',' or '}', got the end of the text")
        self.refused(run("fit", "-", input='{"progress": "a", "done": 0, "total": 1}'), 2, "not an answer")

    def test_names(self):
        """Text of the document reaches no terminal as it is."""
        document = example()
        for path in (("gpu", "source"), ("options", "runtime"), ("changes", 0, "option"), ("tables", 0, "checkpointing")):
            set_member(document, path, "\x1b[31m" + "é" * 300)
        for locale in ("C", "C.UTF-8"):
            self.assertNotIn("\x1b", self.printed(document, LC_ALL=locale))

    def test_pictures_are_refused(self):
        document, target = example(), self.path("x.svg")
        for recording, message in ((None, "the answer names no recording"), (self.path("gone.pickle"), "the recording of the step is gone")):
            document["shown"]["recording"] = recording
            self.refused(run("fit", self.write(document), "--plot", target), 2, f"--plot: {message}")
        document["shown"]["recording"] = self.write("no pickle", "x.pickle")
        self.refused(run("fit", self.write(document), "--plot", target), 2, "x.pickle")
        self.assertFalse(os.path.exists(target))


class Processes(InFolder):
    """Shell scripts as Python. `$3` is the request."""

    def script(self, text):
        path = self.path("python")
        with open(path, "w", encoding="utf-8") as file:
            file.write(f"#!/bin/sh\n{text}\n")
        os.chmod(path, 0o755)
        with open(self.path("answer"), "w", encoding="utf-8") as file:
            file.write(json.dumps(example()) + "\n")
        return {**os.environ, "BUCKETPOOL_PYTHON": path}

    @property
    def answer(self):
        return f"cat {shlex.quote(self.path('answer'))}"

    def fit(self, text, *words, more=None):
        return run("fit", MODEL, *words, env={**self.script(text), **(more or {})}, timeout=LIMIT)

    def test_answer(self):
        result = self.fit(self.answer)
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        self.assertEqual(result.stdout, run("fit", os.path.join(DATA, "llama.json")).stdout)
        self.assertEqual(json.loads(self.fit(self.answer, "--json").stdout), example())
        for status in ("exit 3", "kill -9 $$", "exec >&-; sleep 0.3"):  # the answer counts
            self.assertEqual(self.fit(f"{self.answer}\n{status}").stdout, result.stdout)
        self.assertEqual(self.fit(f"printf %s \"$({self.answer})\"").stdout, result.stdout)  # without a line end

    def test_request(self):
        """Each option that was given, by its name."""
        text = f"printf %s \"$3\" >{shlex.quote(self.path('request'))}; printf %s \"$BUCKETPOOL_COMMAND $PYTHONHASHSEED\" >&2\n{self.answer}"
        values = {"runtime": "ddp", "dp": 8, "ep": 2, "tp": 4, "gpu": "h200", "reserve": 0, "sequence": 8192, "batch": 3,
                  "checkpointing": "full", "optimizer": "sgd", "weights": "bf16", "param-dtype": "fp32", "reduce-dtype": "bf16",
                  "loss": "logprobs", "layers": 2}
        words = [word for name, value in values.items() for word in (f"--{name}", str(value))]
        model = {"model": os.path.join(SOURCE, "examples/models/Llama-3.1-8B/config.json"), "name": "Llama-3.1-8B"}
        for given, expected in (([], {}), (words, values), (["--no-reshard", "--fresh"], {"reshard": False, "fresh": True}),
                                (["--memory", "80g", "--batch", "auto"], {"memory": 80 * GIB}), (["--reserve", "1.5GiB"], {"reserve": 3 * GIB // 2})):
            result = self.fit(text, *given)
            self.assertEqual((result.returncode, result.stderr), (0, f"{PROGRAM} {os.environ.get('PYTHONHASHSEED', '0')}"))
            with open(self.path("request"), encoding="utf-8") as file:
                request = json.load(file)
            self.assertEqual({**request, "model": os.path.realpath(request["model"])}, {**model, "model": os.path.realpath(model["model"]), **expected})

    def test_models(self):
        """By name, id, folder, file; what has no config.json is refused before Python starts."""
        text = f"printf %s \"$3\" >&2\n{self.answer}"
        config = os.path.join(MODEL, "config.json")
        for given, name in (("Llama-3.1-8B", "Llama-3.1-8B"), ("meta-llama/Llama-3.1-8B", "Llama-3.1-8B"), (MODEL + "/", "Llama-3.1-8B"),
                            (config, "Llama-3.1-8B")):
            result = run("fit", given, env=self.script(text))
            request = json.loads(result.stderr)
            self.assertEqual((os.path.realpath(request["model"]), request["name"]), (os.path.realpath(config), name), given)
        env = self.script("echo started >&2; exit 1")
        os.mkdir(self.path("folder"))
        with open(self.path("x.pickle"), "wb") as file:
            file.write(b"\x80\x04.")
        self.refused(run("fit", self.path("x.pickle"), env=env), 2, "no config.json")
        self.refused(run("fit", self.path("folder"), env=env), 2, "no config.json")
        self.refused(run("fit", self.path("absent.json"), env=env), 2, "absent.json: No such file or directory")
        self.refused(run("fit", "Llama-3.1-8b", env=env), 2, 'did you mean "Llama-3.1-8B"?')
        self.refused(run("fit", env=env), 2, "fit: no model given")
        for words, message in ((("--memory", "80g", "--gpu", "h100"), "--memory and --gpu"), (("--memory", "80"), "less than 1 MiB"),
                               (("--batch", "0"), "--batch: expected an integer"), (("--batch", "many"), "--batch: expected"),
                               (("--reserve", "x"), "--reserve: expected a size"), (("--runtime", "fsdp"), 'did you mean "fsdp2"?'),
                               (("--optimizer", "adam"), '--optimizer: expected one of adamw, fused-adamw, ')):
            self.refused(run("fit", MODEL, *words, env=env), 2, message)

    def test_progress(self):
        lines = "".join(f"echo '{json.dumps({'progress': what, 'done': done, 'total': 4})}'\nsleep 0.3\n"
                        for done, what in enumerate(("micro-batch 1, traced", "micro-batch 2, traced")))
        result = self.fit(lines + self.answer, more={"BUCKETPOOL_PROGRESS": "0.1"})
        self.assertIn("bucketpool: micro-batch 1, traced: 0 of 4, 0 %\n", result.stderr)
        self.assertRegex(result.stderr, r"bucketpool: micro-batch 2, traced: 1 of 4, 25 %, \d:\d\d left\n")
        code, shown = self.on_terminal([PROGRAM, "fit", MODEL], "stderr", env=self.script(lines + lines + self.answer), columns=80,
                                       stdout=subprocess.DEVNULL)
        self.assertEqual(code, 0)
        self.assertIn(b"] micro-batch 2, traced: 1 of 4, 25 %", shown)
        self.assertTrue(shown.endswith(b"\r\x1b[K"), shown)

    def test_errors(self):
        for code in (1, 2, 3):
            line = json.dumps({"error": "aten::nonzero in model.layers.0.mlp: sizes depend on data", "exit": code})
            result = self.fit(f"echo '{line}'\n{self.answer}")
            self.refused(result, code, "bucketpool: aten::nonzero in model.layers.0.mlp: sizes depend on data\n")
        result = run("fit", MODEL, os.path.join(DATA, "llama.json"), env=self.script("echo '{\"error\": \"x\", \"exit\": 2}'"))
        self.assertEqual((result.returncode, result.stderr), (2, "bucketpool: x\n"))
        self.assertIn("Llama-3.1-8B", result.stdout)

    def test_no_answer(self):
        python = self.path("python")
        for text, message in (("exit 0", f"fit: {python} ended with exit status 0 and without an answer; BUCKETPOOL_PYTHON must name a Python"),
                              ("exit 7", f"fit: {python} ended with exit status 7 and without an answer; the reason is above"),
                              ("kill -9 $$", f"fit: {python} was ended by signal 9 (Killed) before its answer; the kernel"),
                              ("kill -11 $$", f"fit: {python} was ended by signal 11 (Segmentation fault) before its answer\n"),
                              ("echo '{\"progress\": \"a\", \"done\": 1, \"total\": 2}'; printf '{\"format\": \"buck'; kill -9 $$", "signal 9 (Killed)"),
                              (f"{self.answer} | head -c 900", f"fit: line 1 of {python}:1:"),
                              ("echo '{\"progress\": 5}'", "line 1 of"), ("echo '{}'; sleep 60", "$.format: is missing"),
                              ("echo '{\"progress\": \"a\", \"done\": 3, \"total\": 2}'; sleep 60", "$.done: expected an integer from 0 to 2"),
                              ("echo '{\"error\": \"a\", \"exit\": 0}'; sleep 60", "$.exit: expected an integer from 1 to 3")):
            with self.subTest(text=text):
                self.refused(self.fit(text), 3, message)

    def test_lines_of_others(self):
        """Output of the model's code goes to standard error."""
        result = self.fit(f"echo hello; printf 'a\\033b\\n\\n'\n{self.answer}; echo bye")
        self.assertEqual((result.returncode, result.stderr), (0, "hello\na<1B>b\n\nbye\n"))
        self.assertTrue(result.stdout.startswith("fits on H100 80GB: "))

    def test_long_line(self):
        begin = time.monotonic()
        result = self.fit("printf '{\"progress\": \"'; head -c 100000000 /dev/zero | tr '\\0' x; sleep 60")
        self.refused(result, 3, "line 1 of", "has more than 64 MiB")
        self.assertLess(time.monotonic() - begin, 30)

    def test_no_python(self):
        for path, reason in ((self.path("none"), "No such file or directory"), (self.folder, "Permission denied")):
            result = run("fit", MODEL, env={**os.environ, "BUCKETPOOL_PYTHON": path})
            self.refused(result, 3, f'"{path}" cannot be started: {reason}; install it, or name another Python in BUCKETPOOL_PYTHON')
        result = run("fit", MODEL, env={**os.environ, "BUCKETPOOL_PYTHON": "", "PATH": self.folder})
        self.refused(result, 3, '"python3" cannot be started: No such file')
        result = self.fit(f"exec {shlex.quote(sys.executable)} -I -S \"$@\"")  # no packages
        self.refused(result, 3, "has no torch, transformers and bucketpool; install torch, transformers and bucketpool there")

    def test_module(self):
        """The program that is started is the module's, with the request as its first argument."""
        for name in ("torch", "transformers", "bucketpool", "bucketpool/torch", "bucketpool/torch/fitting"):
            os.makedirs(self.path(name))
            with open(os.path.join(self.path(name), "__init__.py"), "w", encoding="utf-8"):
                pass
        with open(self.path("bucketpool/torch/fitting/__main__.py"), "w", encoding="utf-8") as file:
            file.write("import json, sys\nassert __name__ == '__main__' and len(sys.argv) == 2 and not sys.stdin.read()\n"
                       "print(json.dumps({'error': json.loads(sys.argv[1])['name'] + sys.argv[0], 'exit': 2}))\n")
        result = run("fit", MODEL, env={**os.environ, "BUCKETPOOL_PYTHON": sys.executable, "PYTHONPATH": self.folder})
        self.refused(result, 2, f"Llama-3.1-8B{self.path('bucketpool/torch/fitting/__main__.py')}")

    def test_entry_point(self):
        """`python3 -m bucketpool fit` names its Python, unless another one is named."""
        with open(self.path("bucketpool"), "w", encoding="utf-8") as file:
            file.write("#!/bin/sh\nprintf '%s %s' \"$BUCKETPOOL_PYTHON\" \"$*\"\n")
        os.chmod(self.path("bucketpool"), 0o755)
        env = {**os.environ, "PATH": f"{self.folder}:{os.environ['PATH']}", "PYTHONPATH": os.path.join(SOURCE, "python"),
               "PYTHONDONTWRITEBYTECODE": "1"}
        env.pop("BUCKETPOOL_PYTHON", None)
        for named, expected in (({}, sys.executable), ({"BUCKETPOOL_PYTHON": "another"}, "another")):
            result = subprocess.run([sys.executable, "-m", "bucketpool", "fit", "x"], env={**env, **named}, capture_output=True, text=True,
                                    timeout=LIMIT, check=False)
            self.assertEqual((result.stdout, result.stderr), (f"{expected} fit x", ""))

    def endless(self, **more):
        """A Python with a child that both run until they are ended; their process ids."""
        script = self.script("sleep 1000 & echo $$ $! >&2; wait")
        process = subprocess.Popen([PROGRAM, "fit", MODEL], env=script, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **more)
        self.addCleanup(process.kill)
        self.assertTrue(select.select([process.stderr], [], [], LIMIT)[0])
        return process, list(map(int, process.stderr.readline().split()))

    def ended(self, processes):
        until = time.monotonic() + LIMIT
        while not all(map(is_gone, processes)) and time.monotonic() < until:
            time.sleep(0.01)
        self.assertTrue(all(map(is_gone, processes)))

    def test_interrupt(self):
        for times in (1, 2):
            process, others = self.endless()
            for _ in range(times):
                process.send_signal(signal.SIGINT)
            out, error = process.communicate(timeout=LIMIT)
            self.assertEqual((process.returncode, out, error), (-signal.SIGINT, "", ""))
            self.ended(others)

    def test_command_ends(self):
        """Python ends with the command, and what it started, unless the command is killed."""
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGKILL):
            process, (python, child) = self.endless(preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL))  # nohup ignores it
            process.send_signal(number)
            self.assertEqual(process.wait(timeout=LIMIT), -number)
            self.ended([python] if number == signal.SIGKILL else [python, child])
            if number == signal.SIGKILL:
                os.kill(child, number)
            process.communicate(timeout=LIMIT)

    def test_stubborn(self):
        """One that ignores SIGTERM is killed."""
        script = self.script("trap '' TERM; echo $$ >&2; while :; do sleep 0.1; done")
        with subprocess.Popen([PROGRAM, "fit", MODEL], env=script, stderr=subprocess.PIPE, text=True) as process:
            other = int(process.stderr.readline())
            process.send_signal(signal.SIGINT)
            self.assertEqual(process.wait(timeout=LIMIT), -signal.SIGINT)
        self.ended([other])


class Pictures(InFolder):
    def test_kinds(self):
        """Kinds at the peak as `step` sums them up, and levels at their heights."""
        document, target = copy.deepcopy(example()), self.path("x.svg")
        device = json.loads(run("step", STEPS, "--json").stdout)["devices"][0]
        document["shown"]["recording"] = STEPS
        with open(self.path("fit.json"), "w", encoding="utf-8") as file:
            json.dump(document, file)
        result = run("fit", self.path("fit.json"), "--plot", target)
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        with open(target, encoding="utf-8") as file:
            text = file.read()
        units = ((GIB, "GiB", 1), (1 << 20, "MiB", 1), (1 << 10, "KiB", 1))
        for kind in device["kinds"]:
            size, unit = next(((kind["bytes"] / each, name) for each, name, _ in units if kind["bytes"] >= each), (0, ""))
            digits = 3 if size < 10 else 2 if size < 100 else 1
            self.assertIn(f">{kind['kind']} {size:.{digits}f} {unit}<", text)
        for words in ("limit 77.77 GiB", "default 80.89 GiB", "expandable 78.25 GiB", "served 75.90 GiB", "peak live 75.60 GiB",
                      ">forward<", ">backward<", ">optimizer<"):
            self.assertIn(words, text)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
