# SPDX-License-Identifier: Apache-2.0
"""The command as people and scripts meet it: golden outputs, exit codes, one clear line for every mistake.

Arguments: source directory, the bucketpool executable. With UPDATE_GOLDEN=1 the golden files are written anew; look at
the difference before committing it.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import xml.dom.minidom

from answers import Answers, run

ROOT, TOOL = sys.argv[1], os.path.abspath(sys.argv[2])
GOLDEN = os.path.join(ROOT, "tests", "cli", "golden")
BRIEF = "BUCKETPOOL_BRIEF" in os.environ
NANO = "examples/models/Nemotron-3-Nano-30B-A3B"
QWEN = "examples/models/Qwen3-0.6B"


class Golden(Answers):
    def check(self, name, *arguments, code=0):
        result = run(*arguments)
        self.assertEqual((result.returncode, result.stderr), (code, ""))
        self.golden(name, result.stdout)

    def test_plan_table(self):
        self.check("plan-nano.txt", "plan", NANO, "--ep", "8")

    def test_plan_table_with_budget(self):
        self.check("plan-nano-budget.txt", "plan", NANO, "--gpu", "h100", "--policy", "fixed,max")

    def test_plan_infeasible(self):
        self.check("plan-infeasible.txt", "plan", NANO, "--buffers", "1", "--policy", "max", code=1)

    def test_plan_several_models(self):
        models = sorted(os.listdir(os.path.join(ROOT, "examples", "models")))
        self.assertGreaterEqual(len(models), 14)
        self.check("plan-models.txt", "plan", *[os.path.join("examples/models", m) for m in models], "--roles", "param")

    def test_exact_bytes(self):
        """Every bundled model, every policy, one and eight expert-parallel ranks."""
        models = [os.path.join("examples/models", m)
                  for m in sorted(os.listdir(os.path.join(ROOT, "examples", "models")))]
        lines = ["# model, ep, policy: bytes and lower bound of parameters, dp 64, prefetch 1, bf16\n"]
        for ep in ("1", "8"):
            report = json.loads(run("plan", *models, "--ep", ep, "--roles", "param", "--json").stdout)
            lines += [f"{m['model']}\t{ep}\t{p['policy']}\t{p['bytes']}\t{p['lower_bound_bytes']}\n"
                      for m in report["models"] for p in m["policies"]]
        path = os.path.join(GOLDEN, "bytes.tsv")
        if os.environ.get("UPDATE_GOLDEN"):
            with open(path, "w", encoding="utf-8") as file:
                file.writelines(lines)
        with open(path, encoding="utf-8") as file:
            self.assertEqual(file.readlines(), lines)

    def test_plan_report(self):
        self.check("plan-nano.json", "plan", NANO, "--ep", "8", "--json")

    def test_plan_fp8(self):
        self.check("plan-fp8.txt", "plan", "examples/models/Llama-3.1-8B", "--param-dtype", "fp8", "--roles",
                   "param,param_transpose,grad,grad_comm,state", "--grad-comm-dtype", "bf16")

    def test_plan_fsdp2(self):
        self.check("plan-fsdp2.txt", "plan", "examples/models/Qwen3-30B-A3B", "--bucketing", "fsdp2", "--dp", "16")

    def test_explain(self):
        self.check("explain-nano.txt", "explain", NANO, "--ep", "8")

    def test_help(self):
        self.check("help.txt", "--help")
        self.check("help-plan.txt", "plan", "--help")
        self.check("help-step.txt", "step", "--help")

    def test_version(self):
        self.assertRegex(run("--version").stdout, r"^bucketpool \d+\.\d+\.\d+(-rc\d+)?\n$")


class Report(unittest.TestCase):
    """The documented members of bucketpool.report/1, with the reference figures."""

    def test_members(self):
        report = json.loads(run("plan", NANO, "--ep", "8", "--json").stdout)
        self.assertEqual(report["format"], "bucketpool.report/1")
        (model,) = report["models"]
        self.assertEqual((model["model"], model["parameters"], model["units"]),
                         ("Nemotron-3-Nano-30B-A3B", 31577937344, 52))
        policies = {p["policy"]: p for p in model["policies"]}
        self.assertEqual(set(policies), {"dynamic", "fixed", "max", "scheduled"})
        for name, policy in policies.items():
            self.assertEqual(policy["bytes"], sum(r["bytes"] for r in policy["roles"]))
            self.assertEqual(policy["lower_bound_bytes"], sum(r["lower_bound_bytes"] for r in policy["roles"]))
            self.assertEqual(policy["optimal"], policy["bytes"] == policy["lower_bound_bytes"])
            for role in policy["roles"]:
                shared = sum(b["bytes"] * b["copies"] for b in role["buffers"])
                self.assertEqual(role["bytes"], role["pool_bytes"] + role["persistent_bytes"] + role["dynamic_bytes"])
                self.assertEqual(shared + role["dynamic_bytes"], 0 if name == "scheduled" else role["bytes"])
                self.assertEqual(sum(w["bytes"] for w in role["witness"]), role["lower_bound_bytes"])
                self.assertEqual(role["roles"], [role["role"]])
                self.assertGreaterEqual(role["proven_bytes"], role["lower_bound_bytes"])
                self.assertEqual(role["optimal"], role["bytes"] == role["proven_bytes"])
                self.assertEqual(role["method"] != "", name == "scheduled")
        self.assertEqual(policies["scheduled"]["bytes"], 2 * 457261056)
        param = policies["max"]["roles"][0]
        self.assertEqual((param["role"], param["bytes"], param["lower_bound_bytes"]), ("param", 738361344, 457261056))
        self.assertEqual(param["buffers"][0]["set_by"], {"unit": "backbone.layers.1", "bucket": "experts"})

    def test_several_models(self):
        report = json.loads(run("plan", NANO, "examples/models/Llama-3.1-8B", "--json").stdout)
        self.assertEqual([m["model"] for m in report["models"]], ["Nemotron-3-Nano-30B-A3B", "Llama-3.1-8B"])

    def test_joint(self):
        """Reductions that end before gathers begin leave them their memory."""
        options = ("plan", NANO, "--ep", "8", "--streams", "unified", "--policy", "scheduled", "--json")
        apart, joint = (json.loads(run(*options, *o).stdout)["models"][0] for o in ((), ("--joint",)))
        self.assertEqual([r["roles"] for r in joint["policies"][0]["roles"]], [["param", "grad"]])
        self.assertEqual((apart["options"]["joint"], joint["options"]["joint"]), (False, True))
        self.assertEqual([m["policies"][0]["bytes"] for m in (apart, joint)], [2 * 457261056, 826441728])
        table = run(*options[:-1], "--joint").stdout
        self.assertIn("joint bound", table)
        self.assertIn("param+grad", table)
        self.assertIn("param+grad", run("explain", *options[1:-1], "--joint").stdout)
        both = run("explain", *options[1:6], "--policy", "max,scheduled", "--joint", "--grad-dtype", "fp32").stdout
        self.assertIn("scheduled places it in the slab of param", both)

    def test_budget(self):
        for budget, fits in (("80GiB", True), ("1GiB", False)):
            report = json.loads(run("plan", NANO, "--ep", "8", "--json", "--budget", budget, "--policy", "max").stdout)
            (policy,) = report["models"][0]["policies"]
            state = report["models"][0]["state_bytes"]
            self.assertEqual(policy["needed_bytes"], policy["bytes"] + sum(state.values()))
            self.assertEqual(policy["fits"], fits)


class Files(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)

    def path(self, name):
        return os.path.join(self.folder, name)

    def write(self, name, text):
        with open(self.path(name), "w", encoding="utf-8") as file:
            file.write(text if isinstance(text, str) else json.dumps(text))
        return self.path(name)

    def units(self, *sizes):
        return {"format": "bucketpool.units/1", "model": "tiny",
                "units": [{"name": f"layers.{i}", "buckets": [{"name": "all", "dtype": "bf16", "numel": n}]}
                          for i, n in enumerate(sizes)]}

    def test_plan_file(self):
        result = run("plan", NANO, "--ep", "8", "-o", self.path("plan.json"))
        self.assertEqual(result.returncode, 0, result.stderr)
        with open(self.path("plan.json"), encoding="utf-8") as file:
            plan = json.load(file)
        self.assertEqual(plan["format"], "bucketpool.plan/1")
        self.assertEqual((plan["policy"], plan["model"]), ("scheduled", "Nemotron-3-Nano-30B-A3B"))
        self.assertEqual(sum(s["bytes"] for s in plan["slabs"]), 2 * 457261056)
        self.assertEqual(len(plan["requests"]), 150)
        self.assertRegex(plan["fingerprint"], "^[0-9a-f]{64}$")
        again = run("plan", NANO, "--ep", "8", "--policy", "scheduled", "-o", self.path("again.json"))
        self.assertEqual(again.returncode, 0)
        with open(self.path("plan.json"), "rb") as one, open(self.path("again.json"), "rb") as two:
            self.assertEqual(one.read(), two.read())

    def test_picture(self):
        result = run("plan", NANO, "--ep", "8", "--policy", "max,scheduled", "--joint", "--plot", self.path("pool.svg"))
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        with open(self.path("pool.svg"), encoding="utf-8") as file:
            text = file.read()
        self.assertIn("<svg", text)
        self.assertGreater(len(text), 5000)
        self.assert_shown_in_documents(text)

    def assert_shown_in_documents(self, text):
        """At their width without losing text to scaling, on dark pages too."""
        self.assertIn('viewBox="0 0 640 ', text)
        self.assertIn("prefers-color-scheme: dark", text)
        xml.dom.minidom.parseString(text)

    def test_pictures_of_documents(self):
        with open(os.path.join(ROOT, "docs", "images", "nemotron-3-nano.svg"), encoding="utf-8") as file:
            self.assert_shown_in_documents(file.read())

    def test_explicit_schedule(self):
        units = self.units(1024, 2048, 1024)
        units["schedule"] = [{"acquire": "layers.0", "role": "param"}, {"acquire": "layers.1", "role": "param"},
                             {"release": "layers.0", "role": "param"}, {"acquire": "layers.2", "role": "param"},
                             {"release": "layers.1", "role": "param"}, {"release": "layers.2", "role": "param"}]
        report = run("plan", self.write("units.json", units), "--roles", "param", "--json")
        self.assertEqual(report.returncode, 0, report.stderr)
        policies = {p["policy"]: p for p in json.loads(report.stdout)["models"][0]["policies"]}
        self.assertEqual(policies["dynamic"]["bytes"], 2 * 3072)
        self.assertEqual(policies["max"]["bytes"], 2 * 2 * 2048)
        self.assertEqual(policies["scheduled"]["bytes"], 2 * 3072)
        self.assertEqual(policies["fixed"]["bytes"], 2 * 2 * 1024 + 2 * 2048)

    def assert_refused(self, result, code, *words, outputs=()):
        self.assertEqual(result.returncode, code, result.stderr)
        self.assertEqual(result.stdout, "")
        self.assertEqual(result.stderr.count("\n"), 1, result.stderr)
        self.assertTrue(result.stderr.startswith("bucketpool: "), result.stderr)
        for word in words:
            self.assertIn(word, result.stderr)
        for name in outputs:
            self.assertFalse(os.path.exists(self.path(name)), name)
        self.assertEqual([n for n in os.listdir(self.folder) if n.endswith((".tmp", "~")) or n.startswith(".")], [])

    def refuse_model(self, path, *words):
        outputs = ["plan.json", "pool.svg"]
        result = run("plan", path, "-o", self.path("plan.json"), "--plot", self.path("pool.svg"))
        self.assert_refused(result, 2, *words, outputs=outputs)

    def test_bad_files(self):
        llama = {"model_type": "llama", "vocab_size": 100, "hidden_size": 64, "intermediate_size": 128,
                 "num_hidden_layers": 2, "num_attention_heads": 4}
        self.refuse_model(self.path("missing.json"), "missing.json", "No such file")
        self.refuse_model(self.write("text.json", "hello"), "text.json:1:")
        self.refuse_model(self.write("cut.json", '{"model_type": "llama",\n "hidden_size": '), "cut.json:2:")
        self.refuse_model(self.write("twice.json", '{"model_type": "llama", "model_type": "llama"}'), "twice.json:1:",
                          "model_type")
        self.refuse_model(self.write("config.json", {"model_type": "gpt2"}), "gpt2", "safetensors", "describe",
                          "units.json")
        self.refuse_model(self.write("config.json", {"model_type": "llama"}), "vocab_size", "missing")
        nulls = dict.fromkeys(("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads",
                               "intermediate_size"))
        self.refuse_model(self.write("config.json", {"model_type": "llama", **nulls}), "vocab_size", "null")
        for key, value, words in (("hidden_size", 0, ["positive", "0"]), ("hidden_size", -64, ["-64"]),
                                  ("hidden_size", 64.5, ["fraction"]),
                                  ("num_hidden_layers", "two", ["num_hidden_layers", "two"]),
                                  ("intermediate_size", 1 << 62, []), ("hidden_size", 10**30, [])):
            self.refuse_model(self.write("config.json", {**llama, key: value}), "config.json", *words)
        for sizes, words in (((), ["empty"]), ((-4,), ["$.units[0].buckets[0].numel", "-4"]), ((1.5,), ["fraction"]),
                             ((1 << 62, 1 << 62), [])):
            self.refuse_model(self.write("units.json", self.units(*sizes)), "units.json", *words)
        self.refuse_model(self.write("x.safetensors", "\xff" * 8), "x.safetensors")
        self.refuse_model(self.folder + "/empty-folder", "empty-folder")

    def test_uncounted_parts(self):
        note = "text part only; not counted: vision_config"
        gemma = "examples/models/Gemma-3-27B"
        self.assertIn(note, run("plan", gemma).stdout.splitlines()[1])
        self.assertIn(note, run("explain", gemma).stdout)
        self.assertIn(note, json.loads(run("plan", gemma, "--json").stdout)["models"][0]["notes"])
        llama = {"model_type": "llama", "vocab_size": 100, "hidden_size": 64, "intermediate_size": 128,
                 "num_hidden_layers": 2, "num_attention_heads": 4, "num_nextn_predict_layers": 1}
        self.assertEqual(run("plan", self.write("config.json", llama), "--dp", "2").stdout.splitlines()[1],
                         "not counted: 1 multi-token prediction layer (num_nextn_predict_layers)")
        self.assertNotIn("notes", json.loads(run("plan", NANO, "--json").stdout)["models"][0])

    def test_refused_plans(self):
        units = self.units(1024, 1024)
        units["schedule"] = [{"release": "layers.0", "role": "param"}]
        result = run("plan", self.write("units.json", units), "--roles", "param")
        self.assert_refused(result, 2, "event 0", "layers.0")
        result = run("plan", NANO, "--tp", "3")
        self.assert_refused(result, 2, "tp 3")
        result = run("plan", NANO, "--dp", "96", "--ep", "48")
        self.assert_refused(result, 2, "ep 48", "128")

    def test_bad_options(self):
        for options, words in ((["--dp", "nan"], ["--dp", "nan"]), (["--dp", "0"], ["--dp"]),
                               (["--dp", "-8"], ["--dp"]),
                               (["--dp", "1.5"], ["--dp"]), (["--dp", "99999999999999999999"], ["--dp"]),
                               (["--dp", "64", "--ep", "7"], ["multiple"]),
                               (["--policy", "best"], ["dynamic, fixed, max"]),
                               (["--policy", ""], ["--policy"]), (["--padding", "x"], ["megatron-lcm"]),
                               (["--roles", "param,x"], ["grad_comm"]), (["--param-dtype", "int3"], ["bf16"]),
                               (["--grad-dtype", "fp8"], ["gradients"]), (["--align", "3"], ["power of two"]),
                               (["--budget", "80 apples"], ["80GiB"]), (["--gpu", "tpu"], ["h100"]),
                               (["--policy", "max,fixed", "-o", "x"], ["one plan"]), (["--color", "blue"], ["always"]),
                               (["--policy", "max", "--joint"], ["--joint", "scheduled"]),
                               (["--policy", "max,fixed", "--work", "5"], ["--work", "scheduled"]),
                               (["--work", "0"], ["--work"])):
            self.assert_refused(run("plan", NANO, *options), 2, *words)
        self.assert_refused(run("plan"), 2, "no model")
        self.assert_refused(run("frobnicate"), 2, "frobnicate")
        self.assert_refused(run(), 2, "no command")
        for command in ("plan", "explain", "schedule", "run", "fit", "step", "pack", "view"):
            self.assert_refused(run(command, NANO, "--no-such-option"), 2,
                                f'bucketpool: {command}: unknown option --no-such-option')
        self.assert_refused(run("plan", NANO, "--dp"), 2, "--dp")
        self.assert_refused(run("plan", NANO, "--dp", "1\n2"), 2, "1<0A>2")

    def test_lost_output(self):
        for arguments in (["plan", NANO], ["plan", NANO, "--json"], ["explain", NANO], ["--help"], ["--version"],
                          ["plan", "--help"]):
            with open("/dev/full", "w", encoding="utf-8") as full:
                result = subprocess.run([TOOL, *arguments], stdout=full, stderr=subprocess.PIPE, text=True, cwd=ROOT,
                                        check=False)
            self.assertEqual(result.returncode, 3, arguments)
            self.assertEqual(result.stderr.count("\n"), 1, result.stderr)
        with open("/dev/full", "w", encoding="utf-8") as full:
            result = subprocess.run([TOOL, "plan", NANO, "-o", self.path("plan.json")], stdout=full, cwd=ROOT,
                                    stderr=subprocess.DEVNULL, check=False)
        self.assertEqual((result.returncode, os.listdir(self.folder)), (3, []))

    def test_atomic_outputs(self):
        with open(self.path("plan.json"), "w", encoding="utf-8") as file:
            file.write("old")
        result = run("plan", NANO, "-o", self.path("plan.json"), "--plot", self.path("no/such/folder/pool.svg"))
        self.assert_refused(result, 3)
        with open(self.path("plan.json"), encoding="utf-8") as file:
            self.assertEqual(file.read(), "old")
        self.assertEqual(os.listdir(self.folder), ["plan.json"])
        os.symlink("plan.json", self.path("link.json"))
        self.assertEqual(run("plan", NANO, "-o", self.path("link.json")).returncode, 0)
        self.assertTrue(os.path.islink(self.path("link.json")))
        with open(self.path("plan.json"), encoding="utf-8") as file:
            self.assertEqual(json.load(file)["format"], "bucketpool.plan/1")
        self.assertEqual(run("plan", NANO, "-o", "/dev/null").returncode, 0)
        self.assertTrue(os.path.exists("/dev/null") and not os.path.isfile("/dev/null"))

    def test_impossible_outputs(self):
        same = self.path("x.svg")
        self.assert_refused(run("plan", NANO, "-o", same, "--plot", same), 2, "same file", outputs=["x.svg"])
        self.assert_refused(run("plan", NANO, "-o", self.path("folder/")), 2, "is not a file name")
        with open(self.path("private.json"), "w", encoding="utf-8"):
            os.chmod(self.path("private.json"), 0o600)
        self.assertEqual(run("plan", NANO, "-o", self.path("private.json")).returncode, 0)
        self.assertEqual(os.stat(self.path("private.json")).st_mode & 0o777, 0o600)
        reader, writer = os.pipe()
        os.close(reader)
        result = subprocess.run([TOOL, "plan", NANO, "-o", self.path("p.json")], stdout=writer, stderr=subprocess.PIPE,
                                text=True, cwd=ROOT, check=False)
        os.close(writer)
        self.assertEqual((result.returncode, result.stderr), (141, ""))  # 128 + SIGPIPE, as shells report it
        self.assertEqual(os.listdir(self.folder), ["private.json"])

    def test_impossible_pictures(self):
        rows = self.write("x.csv", "id,lower,upper,size\na,0,2,10\n")
        for command in (("plan", QWEN, "--policy", "scheduled"), ("schedule", QWEN), ("pack", rows)):
            with self.subTest(command=command[0]):
                for name in ("x.bmp", "x", "x.png", "x.pdf", "folder.svg/x"):
                    target = self.path(name)
                    self.assert_refused(run(*command, "--plot", target), 2, f"--plot {target}: ", "ends in .svg", "rsvg-convert")
                target = self.path("no/such/folder/x.svg")
                result = run(*command, "--plot", target)
                self.assert_refused(result, 3, f"--plot {target}: ", "No such file or directory")
                self.assertNotIn(".x.", result.stderr)
        self.assertEqual(os.listdir(self.folder), ["x.csv"])

    def test_state_of_packed_buckets(self):
        """Gradients and optimizer count elements that are trained, however a runtime packs them."""
        def parameter(name, dtype, frozen=False):
            return {"name": name, "shape": [64, 64], "dtype": dtype, "frozen": frozen}
        path = self.write("units.json", {"format": "bucketpool.units/1", "units": [{"name": "u", "parameters": [
            parameter("a", "bf16"), parameter("b", "fp32"), parameter("c", "fp32", True)]}]})
        for rule in ("megatron", "fsdp2"):
            report = json.loads(run("plan", path, "--dp", "1", "--bucketing", rule, "--json").stdout)
            state = report["models"][0]["state_bytes"]
            self.assertEqual((state["grad_shards"], state["optimizer"]), (2 * 4096 * 4, 2 * 4096 * 12), rule)

    def test_state_bytes(self):
        """Without persistent parameters and alignment, model state equals the bytes of its roles."""
        def parameter(name, dtype, frozen=False):
            return {"name": name, "shape": [5, 33], "dtype": dtype, "frozen": frozen}
        parameters = {"name": "u", "parameters": [parameter("a", "bf16"), parameter("b", "fp32"),
                                                  parameter("c", "fp32", True)]}
        buckets = {"name": "v", "buckets": [{"dtype": "bf16", "numel": 1001},
                                            {"dtype": "bf16", "numel": 77, "frozen": True},
                                            {"dtype": "int32", "numel": 10},
                                            {"dtype": "fp32", "numel": 9, "expert": True}]}
        path = self.write("units.json", {"format": "bucketpool.units/1", "units": [parameters, buckets]})
        for options in ((), ("--bucketing", "fsdp2"), ("--ep", "2"),
                        ("--main-grad-dtype", "bf16", "--optimizer-tensors", "2"),
                        ("--optimizer-dtype", "uint8"), ("--optimizer-tensors", "0"), ("--passes", "both")):
            roles = ["state", "main_grad"] + ["optimizer"] * ("0" not in options)
            result = run("plan", path, "--dp", "4", "--align", "1", "--roles", ",".join(roles), *options, "--json",
                         "--gpu", "h100")
            (model,) = json.loads(result.stdout)["models"]
            state = model["state_bytes"]
            expected = dict(zip(("state", "main_grad", "optimizer"),
                                (state["param_shards"], state["grad_shards"], state["optimizer"])))
            self.assertEqual(expected.pop("optimizer", None) if "0" in options else 0, 0)
            for policy in model["policies"]:
                self.assertEqual({r["role"]: r["bytes"] for r in policy["roles"]}, expected,
                                 (options, policy["policy"]))
                self.assertEqual(policy["needed_bytes"], sum(state.values()))
        self.assertEqual(run("plan", path, "--roles", "optimizer", "--optimizer-tensors", "0").returncode, 2)
        text = run("plan", path, "--gpu", "h100", "--main-grad-dtype", "bf16", "--optimizer-tensors", "2").stdout
        self.assertIn("gradient shards (bf16)", text)
        self.assertIn("optimizer (2 x fp32)", text)

    def test_optimizer_options(self):
        path = self.write("units.json", self.units(1024))
        plan = self.path("plan.json")
        options = {"main_grad_dtype": "bf16", "optimizer_dtype": "fp64", "optimizer_tensors": 2}
        flags = [word for name, value in options.items() for word in ("--" + name.replace("_", "-"), str(value))]
        result = run("plan", path, "--roles", "param,main_grad,optimizer", *flags, "--json", "-o", plan)
        self.assertEqual(result.returncode, 0, result.stderr)
        reported = json.loads(result.stdout)["models"][0]["options"]
        self.assertEqual({name: reported[name] for name in options}, options)
        with open(plan, encoding="utf-8") as file:
            saved = json.load(file)
        self.assertEqual({name: saved["options"][name] for name in options}, {**options, "optimizer_tensors": "2"})
        self.assertEqual([slab["group"] for slab in saved["slabs"]], ["param", "main_grad", "optimizer"])
        for flag, value, word in (("--main-grad-dtype", "fp8", "cannot hold gradients"),
                                  ("--main-grad-dtype", "x", "bf16"),
                                  ("--optimizer-dtype", "x", "bf16"),
                                  ("--optimizer-tensors", "-1", "--optimizer-tensors")):
            self.assert_refused(run("plan", path, "--roles", "main_grad", flag, value), 2, word)

    def test_recorded_schedules(self):
        units = self.units(1024)
        units["schedule"] = [{"acquire": "layers.0", "role": "param"}, {"release": "layers.0", "role": "param"}]
        path = self.write("units.json", units)
        for command in ("plan", "explain"):
            output = run(command, path, "--roles", "param").stdout
            self.assertIn("2 events", output)
            self.assertNotIn("prefetch", output.splitlines()[1])
        report = json.loads(run("plan", path, "--roles", "param", "--json").stdout)
        self.assertEqual(report["models"][0]["options"]["schedule"], "recorded")
        report = json.loads(run("plan", path, NANO, "--roles", "param", "--prefetch", "2", "--policy", "max",
                                "--json").stdout)
        self.assertEqual([m["options"]["schedule"] for m in report["models"]], ["recorded", "training"])

    def test_options_without_effect(self):
        units = self.units(1024)
        units["schedule"] = [{"acquire": "layers.0", "role": "param"}, {"release": "layers.0", "role": "param"}]
        path = self.write("units.json", units)
        for options in (["--prefetch", "1"], ["--prefetch-backward", "2"], ["--unit-prefetch", "layers.0=2"],
                        ["--grad-units", "2"],
                        ["--passes", "both"], ["--keep-after-forward"], ["--recompute"], ["--streams", "separate"],
                        ["--outside", "successor"], ["--microbatches", "2"], ["--combined"]):
            for command in ("plan", "explain", "schedule", "run"):
                self.assert_refused(run(command, path, "--roles", "param", *options), 2,
                                    f"{options[0]} requires a generated schedule")
        for options in (["--eval"], ["--passes", "eval"], ["--overlap-window", "1"]):
            self.assertEqual(run("plan", path, "--roles", "param", *options).stderr, "")
        self.assert_refused(run("plan", NANO, "--overlap-window", "1"), 2,
                            "--overlap-window requires a recorded schedule")
        for options in (["--microbatches", "2"], ["--combined"]):
            self.assert_refused(run("plan", NANO, "--eval", *options), 2,
                                f"{options[0]} requires --passes train or both")

    def test_unit_counts(self):
        path = self.write("one.json", self.units(1024))
        for command in ("plan", "explain", "schedule"):
            output = run(command, path).stdout
            self.assertRegex(output, r"\b1 unit\b")
            self.assertNotRegex(output, r"\b1 (units|sets)\b")
        for options in (("--joint",), (), ("--roles", "param,grad,state"), ("--prefetch", "3"))[:1 if BRIEF else 4]:
            for policy in ("max", "scheduled"):
                if policy == "max" and "--joint" in options:
                    continue
                output = run("explain", NANO, *options, "--policy", policy).stdout
                found = re.findall(r"(\d+) units? holds? this much at once in step .*:\n((?:    \S+ holds .*\n)+)",
                                   output)
                self.assertGreater(len(found), 0, output)
                for count, lines in found:
                    units = [line.split()[0] for line in lines.splitlines()]
                    self.assertEqual((int(count), len(set(units))), (len(units), len(units)))

    def test_explain_rows(self):
        units = self.units(1024, 1024)
        units["units"][0]["buckets"][0]["roles"] = ["param"]
        units["units"][1]["buckets"][0]["roles"] = ["grad"]
        output = run("explain", self.write("units.json", units), "--policy", "max").stdout
        self.assertNotIn("buffer for buffer", output)
        self.assertIn("layers.1", output)

    def test_explain_failures(self):
        self.assert_refused(run("explain", NANO, self.path("missing.json")), 2, "missing.json")
        result = run("explain", NANO, "--buffers", "1", "--policy", "max")
        self.assertEqual(result.returncode, 1)
        self.assertIn("infeasible", result.stdout)

    def test_binary_names(self):
        folder = os.path.join(os.fsencode(self.folder), b"x\xff")
        shutil.copytree(os.fsencode(os.path.join(ROOT, NANO)), folder)
        result = run("plan", folder, "--json", "-o", self.path("plan.json"))
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        self.assertEqual(json.loads(result.stdout)["models"][0]["model"], "x?")

    def test_units_with_reach(self):
        """Parameters of a module far apart, and scalars, in the Megatron layout."""
        def parameter(name, *shape):
            return {"name": name, "shape": list(shape), "dtype": "bf16"}
        small = [parameter(f"u.small.{i}", 1) for i in range(400)]
        qkv = [parameter(f"u.attn.{p}_proj.weight", 64, 64) for p in "qkv"]
        for parameters in ([qkv[0], *small[:200], qkv[1], *small[200:], qkv[2]], [*small, *qkv],
                           [parameter("u.q_proj.weight"), parameter("u.k_proj.weight"),
                            parameter("u.v_proj.weight", 4)]):
            units = {"format": "bucketpool.units/1", "units": [{"name": "u", "parameters": parameters}]}
            path = self.write("units.json", units)
            counts = {json.loads(run("plan", path, "--json", "--layout", layout).stdout)["models"][0]["parameters"]
                      for layout in ("hf", "megatron")}
            self.assertEqual(len(counts), 1, counts)

    def test_evaluation_without_optimizer(self):
        report = json.loads(run("plan", NANO, "--eval", "--json", "--budget", "80GiB").stdout)
        state = report["models"][0]["state_bytes"]
        self.assertEqual((state["grad_shards"], state["optimizer"]), (0, 0))
        self.assertGreater(state["param_shards"], 0)

    def test_unwritable_output(self):
        result = run("plan", NANO, "-o", self.path("no/such/folder/plan.json"))
        self.assert_refused(result, 3, "no/such/folder")

    def test_saving_dynamic_plans(self):
        result = run("plan", NANO, "--policy", "dynamic", "-o", self.path("plan.json"))
        self.assert_refused(result, 2, "policy dynamic has no addresses", outputs=["plan.json"])
        result = run("plan", NANO, "--policy", "fixed", "--fallback", "dynamic", "-o", self.path("plan.json"))
        self.assert_refused(result, 2, "no fixed addresses", outputs=["plan.json"])
        result = run("plan", NANO, "--policy", "max", "--buffers", "1", "-o", self.path("plan.json"))
        self.assert_refused(result, 1, "infeasible", outputs=["plan.json"])


class Color(Answers):
    def test_pipe(self):
        self.assertNotIn("\033", run("plan", NANO).stdout)
        self.assertIn("\033", run("plan", NANO, "--color", "always").stdout)

    def test_terminal(self):
        def output(environment):
            return self.on_terminal([TOOL, "plan", NANO], "stdout", cwd=ROOT, env=environment)[1]

        terminal = {k: v for k, v in os.environ.items() if k != "NO_COLOR"} | {"TERM": "xterm"}
        self.assertIn(b"\033[", output(terminal))
        self.assertNotIn(b"\033[", output(terminal | {"NO_COLOR": "1"}))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
