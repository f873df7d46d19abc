# SPDX-License-Identifier: Apache-2.0
"""Plans of FSDP2's buckets: stacked experts, the root group, groups of one rank.

Arguments: source directory, the bucketpool executable.
"""

import json
import os
import struct
import subprocess
import sys
import tempfile
import unittest

from answers import Answers

ROOT, TOOL = sys.argv[1], os.path.abspath(sys.argv[2])
MIB, GIB = 2 ** 20, 2 ** 30

LLAMA = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 256, "intermediate_size": 512,
         "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 65536,
         "torch_dtype": "float32", "tie_word_embeddings": False}
MIXTRAL = {**LLAMA, "model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "vocab_size": 1024,
           "num_local_experts": 4, "num_experts_per_tok": 2}
QWEN = {"model_type": "qwen3_5_text", "vocab_size": 248320, "hidden_size": 5120, "intermediate_size": 17408,
        "num_hidden_layers": 4, "num_attention_heads": 24, "num_key_value_heads": 4, "head_dim": 256,
        "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
        "linear_num_key_heads": 16, "linear_num_value_heads": 48, "torch_dtype": "bfloat16",
        "tie_word_embeddings": False}
# Elements of a layer: attention, norms, MLP; of MIXTRAL without experts: attention, norms, router.
LAYER = 4 * 256 * 256 + 2 * 256 + 3 * 256 * 512


def padded(rows, row, ranks):
    return -(-rows // ranks) * ranks * row


def dense(ranks):
    """Elements of a layer of MIXTRAL without experts."""
    return 4 * padded(256, 256, ranks) + 2 * padded(256, 1, ranks) + padded(4, 256, ranks)


class Plans(Answers):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def write(self, name, document):
        path = os.path.join(self.folder, name)
        with open(path, "w", encoding="utf-8") as file:
            json.dump(document, file)
        return path

    def run_tool(self, *arguments):
        return subprocess.run([TOOL, *map(str, arguments)], capture_output=True, text=True, cwd=ROOT, timeout=600,
                              check=False)

    def plan(self, model, *options):
        """The report, and the lower bounds by role."""
        result = self.run_tool("plan", model, "--align", 1, "--policy", "dynamic,scheduled", *options, "--json")
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        model, = json.loads(result.stdout)["models"]
        return model, {role["role"]: role["lower_bound_bytes"]
                       for policy in model["policies"][:1] for role in policy["roles"]}

    def joint(self, model, *options):
        report, bounds = self.plan(model, "--joint", *options)
        return report["policies"][1]["lower_bound_bytes"], bounds

    # ---- stacked experts ------------------------------------------------------------------------------------------

    def test_mixtral(self):
        report, bounds = self.plan("Mixtral-8x7B", "--bucketing", "fsdp2")
        self.assertEqual(f"{bounds['param'] / GIB:.2f} {bounds['grad'] / GIB:.2f}", "42.16 21.08")
        self.assertIn("padding is 87 % of the gathered bytes", report["notes"])
        self.assertIn("--padding fsdp2-shard1", report["notes"])

    def test_stacked_experts(self):
        path = self.write("config.json", MIXTRAL)
        for ranks in (2, 3, 16, 64):
            stacked = padded(4, 2 * 512 * 256, ranks) + padded(4, 512 * 256, ranks)
            separate = 4 * (2 * padded(512, 256, ranks) + padded(256, 512, ranks))
            for options, experts in (((), stacked), (("--layout", "stacked"), stacked), (("--layout", "hf"), separate)):
                _, bounds = self.plan(path, "--bucketing", "fsdp2", "--dp", ranks, *options)
                self.assertEqual(bounds["param"], 2 * 4 * (dense(ranks) + experts), (ranks, options))
                self.assertEqual(bounds["grad"], 4 * (dense(ranks) + experts), (ranks, options))

    def test_shard1(self):
        path = self.write("config.json", MIXTRAL)
        for ranks in (16, 64):
            _, bounds = self.plan(path, "--bucketing", "fsdp2", "--dp", ranks, "--padding", "fsdp2-shard1")
            self.assertEqual(bounds["param"], 2 * 4 * (dense(ranks) + 4 * 3 * 512 * 256))
        self.refused(self.run_tool("plan", path, "--bucketing", "fsdp2", "--dp", 48, "--padding", "fsdp2-shard1"), 2,
                     "experts.gate_up_proj", "dimension 1 has 1024 elements, not a multiple of 48 ranks")

    def test_checkpoints(self):
        """Separate experts of a checkpoint are stacked; a units.json is taken as it is."""
        names = {f"layers.0.mlp.experts.{e}.{leaf}.weight": shape for e in range(3)
                 for leaf, shape in (("gate_proj", [32, 8]), ("up_proj", [32, 8]), ("down_proj", [8, 32]))}
        tensors = {name: {"dtype": "BF16", "shape": shape, "data_offsets": [512 * i, 512 * (i + 1)]}
                   for i, (name, shape) in enumerate(names.items())}
        header = json.dumps(tensors).encode()
        path = os.path.join(self.folder, "model.safetensors")
        with open(path, "wb") as file:
            file.write(struct.pack("<Q", len(header)) + header + bytes(512 * len(names)))
        copies = [{"name": f"layers.0.mlp.experts.*.{leaf}.weight", "shape": shape, "dtype": "bf16", "copies": 3,
                   "experts": True} for leaf, shape in (("gate_proj", [32, 8]), ("down_proj", [8, 32]))]
        stack = [{"name": "layers.0.mlp.experts.gate_up_proj", "shape": [3, 64, 8], "dtype": "bf16", "expert_dim": 0}]
        for model, elements in ((path, 8 * 3 * 256),
                                (self.units("copies.json", copies), 3 * 2 * 256),
                                (self.units("stack.json", stack), 8 * 512)):
            _, bounds = self.plan(model, "--bucketing", "fsdp2", "--dp", 8)
            self.assertEqual(bounds["param"], 2 * elements, model)

    def units(self, name, parameters, outside=()):
        units = [{"name": "layers.0", "parameters": parameters}] if parameters else []
        return self.write(name, {"format": "bucketpool.units/1", "units": units,
                                 "outside": {"parameters": list(outside)}})

    def test_experts_by_expert_parallelism(self):
        """Stacked experts outside a module "experts" are experts, too."""
        stack = [{"name": "moe.input_linear.weight", "shape": [8, 64, 8], "dtype": "bf16", "expert_dim": 0}]
        _, bounds = self.plan(self.units("units.json", stack), "--bucketing", "fsdp2", "--dp", 8, "--ep", 4)
        self.assertEqual(bounds["param"], 2 * 64 * 8 * 2)  # 2 of 8 experts, over 2 ranks

    def test_note_of_padding(self):
        """Printed from more than a tenth on, with advice that helps."""
        for shape, words in (([9, 10], None), ([17, 10], "padding is 29 % of the gathered bytes")):
            path = self.units("units.json", [{"name": "w", "shape": shape, "dtype": "bf16"}])
            ranks = 10 if words is None else 8
            notes = self.plan(path, "--bucketing", "fsdp2", "--dp", ranks)[0].get("notes", "")
            self.assertEqual(notes, words or "")

    def test_advice(self):
        """Only what helps this model is advised."""
        for model, ranks, shard1, separate in (("Mixtral-8x7B", 64, True, True), ("gpt-oss-120b", 512, False, False),
                                               ("GLM-4.5-Air", 512, False, True)):
            notes = self.plan(model, "--bucketing", "fsdp2", "--dp", ranks)[0]["notes"]
            self.assertEqual(("fsdp2-shard1" in notes, "--layout hf" in notes.rpartition("padding is")[2]),
                             (shard1, separate), model)
            for option in shard1 * [("--padding", "fsdp2-shard1")] + separate * [("--layout", "hf")]:
                self.assertNotIn("padding is", self.plan(model, "--bucketing", "fsdp2", "--dp", ranks,
                                                         *option)[0].get("notes", ""), (model, option))

    def test_prediction_layers(self):
        """transformers does not build them."""
        report, bounds = self.plan("DeepSeek-V3", "--bucketing", "fsdp2")
        self.assertEqual(bounds["param"], bounds["grad"] * 2)
        self.assertIn("prediction layers", report["notes"])
        self.assertGreater(self.plan("DeepSeek-V3", "--bucketing", "fsdp2", "--layout", "hf")[1]["param"], 0)

    # ---- the root group -------------------------------------------------------------------------------------------

    def test_root_group(self):
        """The embedding and the head are gathered in bf16 and reduced in fp32."""
        options = ("--bucketing", "fsdp2", "--dp", 8, "--param-dtype", "bf16", "--grad-dtype", "fp32")
        for tied, root in ((False, 2 * 65536 * 256 + 256), (True, 65536 * 256 + 256)):
            path = self.write("config.json", {**LLAMA, "tie_word_embeddings": tied})
            joint, bounds = self.joint(path, *options)
            self.assertEqual((joint, bounds), (4 * root, {"param": 2 * (root + LAYER), "grad": 4 * root}))
        report, _ = self.plan(path, *options)
        self.assertEqual((report["units"], report["outside_bytes"], report["root_bytes"]), (2, 0, 2 * root))
        self.assertIn("in 2 units and 32.00 MiB in the root group\n", self.run_tool("plan", path, *options).stdout)

    def test_qwen(self):
        path = self.write("config.json", QWEN)
        _, bounds = self.plan(path, "--bucketing", "fsdp2", "--grad-dtype", "fp32")
        self.assertEqual(f"{bounds['grad'] / GIB:.3f}", "9.473")

    def test_root_group_alone(self):
        path = self.units("units.json", [], [{"name": "w", "shape": [16, 4], "dtype": "bf16"}])
        self.assertEqual(self.plan(path, "--bucketing", "fsdp2", "--dp", 8)[1], {"param": 128, "grad": 128})

    def test_two_roots(self):
        path = self.write("units.json", {
            "format": "bucketpool.units/1",
            "units": [{"name": "(root)", "parameters": [{"name": "v", "shape": [4], "dtype": "bf16"}]}],
            "outside": {"parameters": [{"name": "w", "shape": [4], "dtype": "bf16"}]}})
        self.refused(self.run_tool("plan", path, "--bucketing", "fsdp2"), 2, 'unit "(root)"', "outside units")

    def test_state(self):
        """The shard of the root group counts once."""
        path = self.write("config.json", LLAMA)
        report, _ = self.plan(path, "--bucketing", "fsdp2", "--dp", 8, "--gpu", "h100")
        self.assertEqual(report["state_bytes"]["outside"], 0)
        self.assertEqual(report["state_bytes"]["param_shards"], report["parameters"] * 4 // 8)

    def test_unsharded_parameters(self):
        """FSDP2 copies gathered parameters out: those of the root group and a unit, or of all units, count for a budget."""
        path = self.write("config.json", LLAMA)
        root = 2 * 65536 * 256 + 256
        for options, unsharded in (((), 4 * (root + LAYER)), (("--keep-after-forward",), 4 * (root + 2 * LAYER)),
                                   (("--param-dtype", "bf16"), 2 * (root + LAYER)), (("--dp", 1), 0)):
            report, _ = self.plan(path, "--bucketing", "fsdp2", "--dp", 8, *options, "--gpu", "h100")
            self.assertEqual(report["state_bytes"]["unsharded"], unsharded)
        inner = [{"name": "w", "shape": [8, 8], "dtype": "bf16"}]
        nested = self.write("units.json", {"format": "bucketpool.units/1", "units": [
            {"name": "a", "parameters": [{"name": "v", "shape": [8, 4], "dtype": "bf16"}]},
            {"name": "a.b", "parent": "a", "parameters": inner}]})
        report, _ = self.plan(nested, "--bucketing", "fsdp2", "--dp", 8, "--gpu", "h100")
        self.assertEqual(report["state_bytes"]["unsharded"], 2 * (64 + 32))
        self.assertEqual(self.plan(path, "--dp", 8)[0]["state_bytes"]["unsharded"], 0)

    def test_shared_pools(self):
        path = self.write("config.json", LLAMA)
        one, _ = self.plan(path, "--bucketing", "fsdp2")
        two, bounds = self.plan(path, path, "--bucketing", "fsdp2", "--share")
        self.assertEqual((two["units"], two["root_bytes"]), (2 * one["units"], 2 * one["root_bytes"]))
        self.assertEqual(bounds, self.plan(path, "--bucketing", "fsdp2")[1])

    def test_options_of_megatron(self):
        path = self.write("config.json", LLAMA)
        for options, name in ((("--streams", "unified"), "streams unified"), (("--combined",), "combined"),
                              (("--outside", "successor"), "outside successor")):
            self.refused(self.run_tool("plan", path, "--bucketing", "fsdp2", *options), 2, name, "Megatron-FSDP")

    def test_steps(self):
        """Event by event, as FSDP2: docs/concepts/schedules.md."""
        path = self.write("config.json", LLAMA)
        result = self.run_tool("schedule", path, "--bucketing", "fsdp2", "--dp", 8)
        steps = [line.split()[:3] for line in result.stdout.splitlines() if line[:4].strip().isdigit()]
        layers = ["model.layers.0", "model.layers.1"]
        expected = [("forward", "(root)"), *[("forward", layer) for layer in layers], ("backward", "(root)")]
        for layer in reversed(layers):
            expected += [("backward", layer), ("reduce", layer)]
        expected.append(("reduce", "(root)"))
        self.assertEqual([tuple(step[1:]) for step in steps], expected)

    def test_driven_steps(self):
        """Bytes of whole steps through a pool."""
        path = self.write("config.json", {**LLAMA, "vocab_size": 512})
        for options in ((), ("--joint",), ("--prefetch", 3, "--grad-units", 4), ("--keep-after-forward",),
                        ("--passes", "both"), ("--microbatches", 2), ("--policy", "max"), ("--prefetch", 0)):
            result = self.run_tool("run", path, "--bucketing", "fsdp2", "--dp", 8, *options)
            self.assertEqual((result.returncode, result.stderr), (0, ""), options)
            self.assertIn("0 corrupted buckets", result.stdout)

    def test_explain(self):
        path = self.write("config.json", LLAMA)
        text = self.run_tool("explain", path, "--bucketing", "fsdp2", "--dp", 8).stdout
        self.assertIn("128.0 MiB are in the root group", text)
        self.assertNotIn("unified", text)

    # ---- groups of one rank ---------------------------------------------------------------------------------------

    def test_experts_of_one_rank(self):
        def unit(number):
            return {"name": str(number), "parameters": [
                {"name": f"{number}.attn", "shape": [256, 256], "dtype": "fp32"},
                {"name": f"{number}.experts.*", "shape": [256, 256], "dtype": "fp32", "copies": 64, "experts": True}]}
        path = self.write("units.json", {"format": "bucketpool.units/1", "units": [unit(i) for i in range(4)]})
        note = "expert groups of one rank (--dp 8, --ep 8) communicate nothing and are not planned"
        for rule, grads in (("megatron", 2), ("fsdp2", 1)):
            report, bounds = self.plan(path, "--dp", 8, "--ep", 8, "--bucketing", rule)
            self.assertEqual((bounds, report["notes"]),
                             ({"param": 2 * 256 * 256 * 4, "grad": grads * 256 * 256 * 4}, note))
            report, bounds = self.plan(path, "--dp", 8, "--ep", 4, "--bucketing", rule)
            self.assertEqual(bounds["param"], 2 * (1 + 16) * 256 * 256 * 4)
            self.assertNotIn("notes", report)

    def test_qwen_with_expert_parallelism(self):
        _, bounds = self.plan("Qwen3-30B-A3B", "--dp", 8, "--ep", 8)
        self.assertEqual(f"{bounds['param'] / MIB:.1f}", "73.1")

    def test_shards_of_one_rank(self):
        """The state of one rank is planned; what is not communicated is not."""
        path = self.units("units.json", [{"name": "w", "shape": [8, 8], "dtype": "bf16"}],
                          [{"name": "v", "shape": [8, 8], "dtype": "bf16"}])
        for rule in ("megatron", "fsdp2"):
            _, bounds = self.plan(path, "--dp", 1, "--roles", "param,grad,state", "--bucketing", rule)
            self.assertEqual(bounds, {"state": 128 if rule == "megatron" else 256})

    def test_one_rank(self):
        note = "one rank (--dp 1) communicates nothing: no all-gathers and reduce-scatters are planned"
        for rule in ("megatron", "fsdp2"):
            result = self.run_tool("plan", "Qwen3-0.6B", "--dp", 1, "--bucketing", rule)
            self.assertEqual((result.returncode, result.stdout.splitlines()[1]), (0, note))
            self.assertNotIn("POLICY", result.stdout)
            report, bounds = self.plan("Qwen3-0.6B", "--dp", 1, "--bucketing", rule)
            self.assertEqual((report["policies"], bounds, report["outside_bytes"]), ([], {}, 0))
        result = self.run_tool("plan", "Llama-3.1-70B", "--dp", 1, "--gpu", "h100")
        self.assertEqual(result.returncode, 1)
        self.assertIn("without a pool: does not fit", result.stdout)
        self.refused(self.run_tool("plan", "Qwen3-0.6B", "--dp", 1, "-o", os.path.join(self.folder, "plan.json")), 2,
                     "groups of one rank communicate nothing")
        for command in ("explain", "schedule", "run"):
            self.refused(self.run_tool(command, "Qwen3-0.6B", "--dp", 1), 2, "one rank", "nothing")

    def test_given_buckets_of_one_rank(self):
        """A runtime lists the buckets that it allocates."""
        path = self.write("units.json", {"format": "bucketpool.units/1", "units": [
            {"name": "u", "buckets": [{"dtype": "bf16", "numel": 64}]}]})
        self.assertEqual(self.plan(path, "--dp", 1)[1], {"param": 128, "grad": 128})


unittest.main(argv=sys.argv[:1])
