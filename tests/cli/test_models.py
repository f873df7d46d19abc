# SPDX-License-Identifier: Apache-2.0
"""Models by name: the cache of the hub, bundled models, `bucketpool models`; notes about fields that are not read, and advice beside a
plan.

Arguments: source directory, the command."""

import json
import os
import re
import shutil
import subprocess
import sys
import unittest

from answers import InFolder

SOURCE, PROGRAM = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
MODELS = os.path.join(SOURCE, "examples", "models")
SMALL = os.path.join(SOURCE, "tests", "data", "architectures")
COMMIT = "0123456789abcdef0123456789abcdef01234567"
LLAMA = {"model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_hidden_layers": 2,
         "vocab_size": 1000}


def of_reader(notes):
    """Notes about the file, without those about the plan of a small model."""
    return re.sub("(; )?padding is [0-9]+ % of the gathered bytes", "", notes)


class Named(InFolder):
    def setUp(self):
        super().setUp()
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "HUGGINGFACE_", "XDG_"))}
        self.environment["HOME"] = self.path("home")

    def run_command(self, *arguments, **more):
        return subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, timeout=600, cwd=self.folder,
                              env={**self.environment, **more})

    def answered(self, *arguments, **more):
        result = self.run_command(*arguments, **more)
        self.assertEqual((result.returncode, result.stderr), (0, ""), arguments)
        return result.stdout

    def write(self, name, values):
        os.makedirs(os.path.dirname(self.path(name)), exist_ok=True)
        with open(self.path(name), "w", encoding="utf-8") as file:
            json.dump(values, file)
        return self.path(name)


class Hub(Named):
    """The layout of huggingface_hub: models--owner--name/{refs/main,blobs,snapshots/COMMIT/config.json -> blob}."""

    def cache(self, folder, repository, values=None, commit=COMMIT, main=None):
        base = os.path.join(folder, "models--" + repository.replace("/", "--"))
        blob = self.write(os.path.join(base, "blobs", "b" * 40), values or LLAMA)
        snapshot = os.path.join(self.path(base), "snapshots", commit)
        os.makedirs(snapshot)
        os.symlink(os.path.relpath(blob, snapshot), os.path.join(snapshot, "config.json"))
        os.makedirs(self.path(os.path.join(base, "refs")), exist_ok=True)
        with open(self.path(os.path.join(base, "refs", "main")), "w", encoding="utf-8") as file:
            file.write(commit if main is None else main)
        return self.path(base)

    def test_folders(self):
        for folder, variables in (("home/.cache/huggingface/hub", {}), ("xdg/huggingface/hub", {"XDG_CACHE_HOME": "xdg"}),
                                  ("hf/hub", {"HF_HOME": "hf"}), ("old", {"HUGGINGFACE_HUB_CACHE": "old"}),
                                  ("hub", {"HF_HUB_CACHE": "hub", "HF_HOME": "hf"})):
            self.cache(folder, "owner/Some-1B", {**LLAMA, "num_hidden_layers": len(folder)})
            absolute = {name: self.path(value) for name, value in variables.items()}
            self.assertIn("Some-1B: ", self.answered("plan", "owner/Some-1B", **absolute))
            self.assertIn(f" in {len(folder)} units", self.answered("plan", "owner/Some-1B", **absolute))
        self.cache("home/.cache/huggingface/hub", "gpt9")
        self.assertTrue(self.answered("plan", "gpt9").startswith("gpt9: "))
        self.cache("home/tilde", "owner/Tilde")
        self.assertTrue(self.answered("plan", "owner/Tilde", HF_HUB_CACHE="~/tilde").startswith("Tilde: "))

    def test_cache_before_bundled(self):
        self.assertIn("8.030 B", self.answered("plan", "meta-llama/Llama-3.1-8B"))
        self.cache("home/.cache/huggingface/hub", "meta-llama/Llama-3.1-8B")
        self.assertNotIn("8.030 B", self.answered("plan", "meta-llama/Llama-3.1-8B"))
        self.assertIn("8.030 B", self.answered("plan", "Llama-3.1-8B"))

    def test_path_before_cache(self):
        self.cache("home/.cache/huggingface/hub", "owner/name")
        self.write("owner/name/config.json", {**LLAMA, "num_hidden_layers": 3})
        self.assertIn(" in 3 units", self.answered("plan", "owner/name"))

    def test_snapshots(self):
        base = self.cache("home/.cache/huggingface/hub", "owner/name")
        os.remove(os.path.join(base, "refs", "main"))
        self.assertIn(" in 2 units", self.answered("plan", "owner/name"))  # the only snapshot
        shutil.copytree(os.path.join(base, "snapshots", COMMIT), os.path.join(base, "snapshots", "f" * 40))
        self.refused(self.run_command("plan", "owner/name"), 2, "owner/name: No such file", "models--owner--name)")

    def test_not_found(self):
        result = self.run_command("plan", "meta-llama/Llama-3.1-8C", HF_HOME=self.path("elsewhere"))
        self.refused(result, 2, "not a bundled model (searched in ", os.path.realpath(MODELS),
                     f"the hub's cache ({self.path('elsewhere')}/hub/models--meta-llama--Llama-3.1-8C); "
                     "fetch it with `hf download meta-llama/Llama-3.1-8C config.json`; ", 'did you mean "meta-llama/Llama-3.1-8B"?')
        self.refused(self.run_command("plan", "someone/Llama-3.1-8B"), 2, "someone/Llama-3.1-8B: No such file")

    def test_hostile_caches(self):
        secret = self.write("secret/config.json", LLAMA)
        for number, main in enumerate(("../../../../secret", "/etc", "", "a/b", "..", "x" * 5000, "\0", "\x1b[31m", COMMIT[:-1] + "g")):
            self.cache("home/.cache/huggingface/hub", f"owner/bad{number}", main=main)
            self.refused(self.run_command("plan", f"owner/bad{number}"), 2, "No such file")
        base = self.cache("home/.cache/huggingface/hub", "owner/loop")
        link = os.path.join(base, "snapshots", COMMIT, "config.json")
        os.remove(link)
        os.symlink("config.json", link)
        self.refused(self.run_command("plan", "owner/loop"), 2, "owner/loop: No such file")
        os.remove(link)
        os.mkfifo(link)
        self.refused(self.run_command("plan", "owner/loop"), 2, "is a named pipe")
        os.remove(os.path.join(base, "refs", "main"))
        os.symlink("main", os.path.join(base, "refs", "main"))
        self.refused(self.run_command("plan", "owner/loop"), 2)
        for name in ("owner/../secret", "../secret/", "owner//name", "owner/name/more", "owner/", "/owner", "own er/name", "owner/na--me",
                     "owner/\x1b[31m", "-owner/name", "o" * 300 + "/n", "owner/n\xe4me", ".hidden/name"):
            result = self.run_command("plan", "--", name)
            if name == "../secret/":
                continue  # a path, wherever it leads
            self.assertEqual((result.returncode, result.stdout), (2, ""), name)
            self.assertEqual(result.stderr.count("\n"), 1, result.stderr)
            self.assertNotIn("\x1b", result.stderr)
        self.assertTrue(os.path.exists(secret))

    def test_python(self):
        self.cache("hf/hub", "owner/Some-1B")
        environment = {**self.environment, "HF_HOME": self.path("hf"), "PYTHONPATH": os.path.join(SOURCE, "python"),
                       "BUCKETPOOL_LIBRARY_PATH": ":".join(os.path.join(os.path.dirname(os.path.dirname(PROGRAM)), "src", name)
                                                           for name in ("", "logprob"))}
        code = ("import bucketpool as bp\n"
                "for name in ('owner/Some-1B', 'meta-llama/Llama-3.1-8B', 'Qwen3-0.6B'):\n"
                "    model = bp.Model.read(name)\n"
                "    print(model.name, model.numel)\n"
                "try:\n    bp.Model.read('owner/other')\nexcept bp.FileError as error:\n    print(error)\n")
        result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, cwd=self.folder,
                                check=True, timeout=120)
        lines = result.stdout.splitlines()
        self.assertEqual(lines[:3], ["Some-1B 210240", "Llama-3.1-8B 8030261248", "Qwen3-0.6B 596049920"])
        self.assertIn("models--owner--other)", lines[3])


class Bundled(Named):
    def test_list(self):
        text = self.answered("models")
        for name in os.listdir(MODELS):
            self.assertRegex(text, rf"(?m)^{re.escape(name)} +[\w-]+/[\w.-]+ +[\d.]+ [BM]$")
        self.assertIn(", llama, ", text)
        with open(os.path.join(SOURCE, "docs", "reference", "models.md"), encoding="utf-8") as file:
            page = file.read()
        with open(os.path.join(SOURCE, "examples", "README.md"), encoding="utf-8") as file:
            sources = file.read()
        types = re.findall(r"\w+", page.split("<!-- model types: begin -->\n")[1].split("\n\n")[0])
        listed = text[text.index("model_type"):].split("\n\n")[0].split(":\n")[1].replace("\n", " ").split(", ")
        self.assertEqual([word.strip(", ") for word in listed if word not in ("nemotron-nas", "minimax_m3")], types)
        for name, repository in re.findall(r"^(\S+) +(\S+/\S+) +[\d.]+ [BM]$", text, re.MULTILINE):
            self.assertRegex(sources, rf"(?m)^\| {re.escape(name)} \| {re.escape(repository)}[ |]")
            self.assertTrue(self.answered("plan", repository, "--policy", "max").startswith(repository.split("/")[1] + ": "))

    def test_own_folders(self):
        os.makedirs(self.path("mine/broken"))
        shutil.copytree(os.path.join(MODELS, "Qwen3-0.6B"), self.path("mine/Own-1B"))
        text = self.answered("models", BUCKETPOOL_MODELS=f"/no/such:{self.path('mine')}")
        self.assertRegex(text, r"(?m)^Own-1B +596\.050 M$")
        self.assertRegex(text, r"(?m)^broken +cannot be read$")

    def test_no_notes(self):
        """The bundled models and the small ones: only parts that are not counted, and how checkpoints are stored."""
        allowed = ("text part only; not counted: vision_config (python3 -m bucketpool describe counts the whole model)",
                   "not read: quantization_config (fp8); parameters have the dtype bf16",
                   "not read: quantization_config (mxfp4); parameters have the dtype bf16")
        paths = [os.path.join(MODELS, name) for name in os.listdir(MODELS)]
        paths += [os.path.join(SMALL, name) for name in os.listdir(SMALL) if name.endswith(".json")]
        self.assertGreater(len(paths), 180)
        report = json.loads(self.answered("plan", *paths, "--policy", "max", "--json"))
        for model in report["models"]:
            self.assertIn(of_reader(model.get("notes", "")), ("", *allowed), model["model"])


class Notes(Named):
    def plan(self, *options, **values):
        path = self.write("m/config.json", {**LLAMA, **values})
        return self.run_command("plan", path, "--policy", "max", *options)

    def test_strict(self):
        for values, words in (
                ({"adapter_rank": 999}, "not read, but may decide sizes: adapter_rank 999"),
                ({"num_key_value_head": 2}, "num_key_value_head 2 (meant: num_key_value_heads?)"),
                ({"quantization_config": {"quant_method": "fp8"}}, "not read: quantization_config (fp8)"),
                ({"architectures": ["LlamaForRewardModel"]}, "architectures names LlamaForRewardModel, a class that is not known")):
            note = of_reader(self.plan(**values).stdout.splitlines()[1])
            self.assertIn(words, note)
            self.refused(self.plan("--strict", **values), 2, f"config.json: {note}")
        self.assertEqual(self.plan("--strict").returncode, 0)
        inner = {"model_type": "brand_new_omni", "text_config": {**LLAMA, "adapter_rank": 999, "num_memory_tokens": 4096}}
        path = self.write("outer/config.json", inner)
        line = self.answered("plan", path, "--policy", "max").splitlines()[1]
        self.assertIn("model_type brand_new_omni of the whole is not known: planned as its text_config, llama", line)
        self.assertIn("adapter_rank 999, num_memory_tokens 4096", line)
        self.refused(self.run_command("plan", path, "--strict"), 2, "brand_new_omni", "num_memory_tokens 4096")

    def test_many_fields(self):
        result = self.plan(**{f"extra_{i}_size": i + 1 for i in range(100000)})
        self.assertEqual(result.returncode, 0)
        self.assertIn("and 99992 others", result.stdout.splitlines()[1])
        self.assertLess(len(result.stdout), 4000)


class Advice(Named):
    def notes(self, *arguments):
        return self.answered("plan", *arguments).splitlines()[1]

    def test_options_without_effect(self):
        for options, words in ((("--ep", "8"), "--ep 8 has no effect: no parameter is an expert's"),
                               (("--prefetch", "100"), "--prefetch 100 acts as 31: there are 32 units"),
                               (("--prefetch-backward", "99"), "--prefetch-backward 99 acts as 31"),
                               (("--grad-units", "50"), "--grad-units 50 acts as 32"),
                               (("--recompute",), "--recompute has no effect: no parameter is fp8"),
                               (("--flat-alignment", "64"), "--flat-alignment 64 has no effect without --padding flat"),
                               (("--optimizer-tensors", "2"), "--optimizer-tensors 2 has no effect without --budget"),
                               (("--budget", "80GiB", "--gpu", "h100"), "--budget 80GiB has no effect: --gpu follows it")):
            self.assertIn(words, self.notes("Llama-3.1-8B", "--policy", "max", *options), options)

    def test_given_buckets(self):
        buckets = [{"name": name, "buckets": [{"dtype": "bf16", "numel": 1024}]} for name in "ab"]
        path = self.write("m/units.json", {"format": "bucketpool.units/1", "model": "x", "units": buckets})
        self.assertIn("--dp 8 has no effect without --budget", self.notes(path, "--dp", "8"))
        self.assertNotIn("no effect", self.answered("plan", path, "--dp", "8", "--budget", "1GiB"))

    def test_options_with_effect(self):
        for model, options in (("Qwen3-30B-A3B", ("--ep", "8")), ("Llama-3.1-8B", ("--prefetch", "31")),
                               ("Llama-3.1-8B", ("--tp", "2", "--dp", "8", "--grad-units", "3", "--grad-dtype", "bf16")),
                               ("Llama-3.1-8B", ("--param-dtype", "fp8_e4m3", "--prefetch-backward", "0")),
                               ("Llama-3.1-8B", ("--optimizer-tensors", "2", "--budget", "80GiB"))):
            self.assertTrue(self.notes(model, "--policy", "max", *options).startswith("dp "), options)

    def test_verdict(self):
        words = "All policies take the same, 1.627 GiB: nothing to win here."
        self.assertIn(words, self.answered("plan", "Llama-3.1-8B"))
        self.assertNotIn("nothing to win", self.answered("plan", "Nemotron-3-Nano-30B-A3B"))
        self.assertNotIn("nothing to win", self.answered("plan", "Llama-3.1-8B", "--policy", "max"))

    def fits(self, *options):
        return self.run_command("plan", *options).stdout

    def test_ranks_that_fit(self):
        for model, ep, step in (("Llama-3.1-70B", 1, 1), ("Qwen3-235B-A22B", 4, 4)):
            options = (model, "--ep", str(ep), "--gpu", "h100", "--policy", "scheduled")
            text = self.fits(*options, "--dp", "8")
            found = re.search(r"\nFits from --dp (\d+): scheduled\.\n", text)
            self.assertTrue(found, text)
            dp = int(found.group(1))
            self.assertIn("scheduled: fits", self.fits(*options, "--dp", str(dp)))
            self.assertIn("scheduled: does not fit", self.fits(*options, "--dp", str(dp - step)))
        text = self.fits("Llama-3.1-70B", "--budget", "4GiB", "--dp", "8")
        self.assertRegex(text, r"\nFits with no --dp: dynamic, fixed, max, scheduled; the pool and parameters outside units take [\d.]+ GiB\.\n")
        self.assertNotIn("Fits ", self.fits("Qwen3-0.6B", "--gpu", "h100"))

    def test_gpus(self):
        for name, mib in (("h20", 97871), ("h800", 81559), ("l40s", 46068), ("gb300", 284208), ("b300", 275040)):
            report = json.loads(self.answered("plan", "Qwen3-0.6B", "--policy", "max", "--gpu", name, "--json"))
            self.assertEqual(report["models"][0]["budget_bytes"], mib << 20)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
