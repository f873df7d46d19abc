# SPDX-License-Identifier: Apache-2.0
"""The what-if answers of `bucketpool explain`: what other schedules take, what sets the peak.

Arguments: source directory, the bucketpool executable. BUCKETPOOL_BRIEF, where it is set: every third case."""

import json
import os
import re
import sys
import unittest

from answers import InFolder, document, run

ROOT, TOOL = sys.argv[1], os.path.abspath(sys.argv[2])
MODELS = "examples/models/"
NANO, H47, H8 = MODELS + "Nemotron-3-Nano-30B-A3B", MODELS + "Nemotron-H-47B", MODELS + "Nemotron-H-8B"
QWEN, LLAMA, DEEPSEEK = MODELS + "Qwen3-0.6B", MODELS + "Llama-3.1-8B", MODELS + "DeepSeek-V3"
HEADINGS = ("Plans of other schedules", "Units that set the peak")
# Little of the search, so that other commands can be asked the same.
WORK = ("--work", "200000")
CASES = ((NANO, "--ep", "8", *WORK), (H8, "--prefetch", "2", "--joint", *WORK),
         (QWEN, "--streams", "unified", "--joint", *WORK),
         (H8, "--eval", *WORK), (QWEN, "--roles", "param,grad,state", "--grad-units", "3", *WORK),
         (H8, "--prefetch", "1", "--prefetch-backward", "0", "--unit-prefetch", "backbone.layers.4=3", *WORK))
BRIEF = "BUCKETPOOL_BRIEF" in os.environ
SOME = CASES[::3] if BRIEF else CASES


def answers(*arguments):
    return document("explain", *arguments)["models"][0]


def policies(*arguments):
    return {p["policy"]: p for p in document("plan", *arguments)["models"][0]["policies"]}


def without(arguments, *options):
    """Leaves out options, with the values of those that have one."""
    valued = set(options) - {"--joint"}
    return [a for i, a in enumerate(arguments) if a not in options and (i == 0 or arguments[i - 1] not in valued)]


class Case(InFolder):
    def recording(self, sizes, events):
        units = {"format": "bucketpool.units/1",
                 "units": [{"name": f"layers.{i}", "buckets": [{"dtype": "bf16", "numel": n}]}
                           for i, n in enumerate(sizes)],
                 "schedule": [{"acquire" if e[0] == "+" else "release": f"layers.{e[1:]}", "role": "param"}
                              for e in events]}
        with open(self.path("units.json"), "w", encoding="utf-8") as file:
            json.dump(units, file)
        return self.path("units.json")


class Alternatives(Case):
    def test_current_schedule(self):
        for case in SOME:
            with self.subTest(case=case):
                rows = answers(*case)["alternatives"]
                present = [a for a in rows if a["present"]]
                self.assertEqual(len(present), 1)
                planned = policies(*case)
                for member in ("bytes", "lower_bound_bytes", "optimal"):
                    self.assertEqual(present[0][member], planned["scheduled"][member], member)
                self.assertEqual(present[0]["max_bytes"], planned["max"]["bytes"])
                for row in rows:
                    self.assertLessEqual(row["live_bytes"], row["lower_bound_bytes"])
                    self.assertLessEqual(row["lower_bound_bytes"], row["proven_bytes"])
                    self.assertLessEqual(row["proven_bytes"], row["bytes"])
                    self.assertLessEqual(row["bytes"], row["max_bytes"])
                    self.assertEqual(row["optimal"], row["bytes"] == row["proven_bytes"])

    def test_rows_against_plan(self):
        for case in CASES[:1 if BRIEF else 2]:
            common = without(case, "--prefetch", "--joint", "--streams")
            rows = answers(*case)["alternatives"]
            self.assertEqual([(r["prefetch"], r["prefetch_backward"], r["streams"], r["joint"]) for r in rows],
                             [(p, p, s, j) for p in range(5) for s in ("separate", "unified") for j in (False, True)])
            for row in rows[::9 if BRIEF else 3]:
                with self.subTest(case=case, row=row):
                    planned = policies(*common, "--prefetch", str(row["prefetch"]), "--streams", row["streams"],
                                       *(["--joint"] if row["joint"] else []))
                    self.assertEqual(row["bytes"], planned["scheduled"]["bytes"])
                    self.assertEqual(row["lower_bound_bytes"], planned["scheduled"]["lower_bound_bytes"])
                    self.assertEqual(row["max_bytes"], planned["max"]["bytes"])

    def test_omitted_rows(self):
        self.assertEqual([r["prefetch"] for r in answers(H8, "--eval", *WORK)["alternatives"]], [0, 1, 2, 3, 4])
        rows = answers(H8, "--prefetch", "2", "--prefetch-backward", "1", *WORK)["alternatives"]
        self.assertEqual((len(rows), rows[0]["present"], rows[0]["prefetch"], rows[0]["prefetch_backward"]),
                         (21, True, 2, 1))
        rows = answers(QWEN, "--prefetch", "6", *WORK)["alternatives"]
        self.assertEqual((len(rows), rows[0]["present"], rows[0]["prefetch"]), (21, True, 6))

    def test_too_few_copies(self):
        rows = json.loads(run("explain", H8, "--buffers", "2", "--json", *WORK).stdout)["models"][0]["alternatives"]
        self.assertEqual([r["max_bytes"] is None for r in rows], [r["prefetch"] > 1 for r in rows])
        self.assertIn("infeasible", run("explain", H8, "--buffers", "2", *WORK).stdout)

    def test_unified_streams(self):
        """Once a reduction ends before the next gather begins, one slab saves a quarter, and half against max-pool on
        hybrids.
        """
        for model, ep, separate, unified in ((DEEPSEEK, "8", 13212057600, 9909043200),
                                             (NANO, "1", 5384601600, 5296521216)):
            rows = {(r["streams"], r["joint"]): r for r in answers(model, "--ep", ep)["alternatives"]
                    if r["prefetch"] == 1}
            self.assertEqual(rows["separate", False]["bytes"], separate)
            self.assertEqual(rows["unified", True]["bytes"], unified)
            self.assertTrue(rows["unified", True]["optimal"])
        self.assertAlmostEqual(unified / rows["unified", True]["max_bytes"], 0.51, 2)


class Peaks(Case):
    def test_sum_of_holders(self):
        for case in SOME:
            with self.subTest(case=case):
                peaks, roles = answers(*case)["peaks"], policies(*case)["scheduled"]["roles"]
                self.assertEqual([(p["roles"], p["bytes"], p["step"]) for p in peaks],
                                 [(r["roles"], r["lower_bound_bytes"], r["lower_bound_step"]) for r in roles])
                for peak in peaks:
                    self.assertEqual(sum(h["bytes"] for h in peak["holders"]), peak["bytes"])
                    self.assertEqual(len({(h["unit"], h["role"]) for h in peak["holders"]}), len(peak["holders"]))
                    self.assertEqual([h["bytes"] for h in peak["holders"]],
                                     sorted((h["bytes"] for h in peak["holders"]), reverse=True))

    def test_against_the_schedule(self):
        """By what is live in each step."""
        for case in (CASES[0], CASES[3]):
            with self.subTest(case=case):
                options = without(case, "--work")
                steps = document("schedule", *options)["steps"]
                for peak in answers(*case)["peaks"]:
                    live = [step["live_bytes"][peak["roles"][0]] for step in steps]
                    self.assertEqual((max(live), live.index(max(live)), live.count(max(live))),
                                     (peak["bytes"], peak["step"], peak["steps"]))
                    below = max((b for b in live if b < peak["bytes"]), default=0)
                    self.assertEqual((below, live.index(below) if below else 0),
                                     (peak["below_bytes"], peak["below_step"]))
                    self.assertEqual(peak["next_bytes"], peak["bytes"] if peak["sets"] > 1 else below)
                    self.assertLessEqual(peak["sets"], peak["steps"])

    def test_large_units(self):
        """Nemotron-H-47B: where its pattern has "-" after "-", two large units meet and set the whole peak, forward and
        backward.
        """
        with open(os.path.join(ROOT, H47, "config.json"), encoding="utf-8") as file:
            pattern = json.load(file)["hybrid_override_pattern"]
        pairs = {(f"backbone.layers.{i}", f"backbone.layers.{i + 1}")
                 for i in range(len(pattern) - 1) if pattern[i:i + 2] == "--"}
        self.assertEqual(len(pairs), 4)
        for options, steps in ((("--eval",), 4), (("--roles", "param"), 8)):
            with self.subTest(options=options):
                peak = answers(H47, *options, *WORK)["peaks"][0]
                self.assertIn(tuple(h["unit"] for h in peak["holders"]), pairs)
                self.assertEqual((peak["bytes"], peak["sets"], peak["steps"]), (2044723200, 4, steps))

    def test_windows(self):
        """The host released each unit before it acquired the next: only the window keeps neighbours apart."""
        path = self.recording((640, 1920, 1280, 640), [e + str(u) for u in range(4) for e in "+-"])
        model = answers(path, "--roles", "param", "--overlap-window", "1")
        self.assertIsNone(model["alternatives"])
        peak = model["peaks"][0]
        self.assertEqual([h["unit"] for h in peak["holders"]], ["layers.1", "layers.2"])
        self.assertEqual((peak["bytes"], peak["steps"], peak["next_bytes"]), (2 * (1920 + 1280), 0, 0))
        text = run("explain", path, "--roles", "param", "--overlap-window", "1").stdout
        self.assertIn("the schedule is recorded", text)
        self.assertIn("overlap window keeps them from sharing memory", text)


class Text(Case):
    def test_sections(self):
        text = run("explain", NANO, "--ep", "8").stdout
        self.assertEqual([h for h in HEADINGS if "\n" + h + "\n" in text], list(HEADINGS))
        self.assertEqual(len(re.findall(r"present *\n", text)), 1)
        self.assertRegex(text, r"\n1 +separate +by role +872\.2 MiB +optimal +872\.2 MiB +1\.375 GiB +1\.00 +present")
        self.assertRegex(
            text,
            r"backbone\.layers\.1 \(352\.1 MiB\) and backbone\.layers\.0 \(84\.00 MiB\) set the peak of 436\.1 MiB",
        )
        self.assertIn("unified streams and one slab for all roles take 788.2 MiB, 84.00 MiB less", text)

    def test_flat_schedule(self):
        text = run("explain", LLAMA, "--prefetch", "0", "--grad-units", "1", *WORK).stdout
        self.assertIn("All steps hold as much", text)

    def test_policies_without_scheduled(self):
        text = run("explain", NANO, "--policy", "max,fixed").stdout
        self.assertEqual([h for h in HEADINGS if h in text], [])

    def test_shared_pool(self):
        text = run("explain", QWEN, LLAMA, "--share", "--joint", *WORK).stdout
        self.assertIn("merged from several models", text)
        self.assertIn("Llama-3.1-8B/model.layers.", text.split(HEADINGS[1])[1])
        self.assertIsNone(answers(QWEN, LLAMA, "--share", *WORK)["alternatives"])

    def test_many_holders(self):
        text = run("explain", LLAMA, "--keep-after-forward", *WORK).stdout
        self.assertIn("and 27 more set the peak of 13.02 GiB", text)

    def test_several_models(self):
        models = document("explain", QWEN, LLAMA, *WORK)["models"]
        self.assertEqual([m["model"] for m in models], ["Qwen3-0.6B", "Llama-3.1-8B"])
        self.assertEqual(run("explain", QWEN, LLAMA, *WORK).stdout.count("\n" + HEADINGS[1] + "\n"), 2)



class Mistakes(Case):
    def test_options(self):
        self.refused(run("explain", NANO, "-o", self.path("x.json")), 2, "-o", "plan")
        self.refused(run("explain", NANO, "--policy", "max", "--json"), 2, "--json", "scheduled")
        self.refused(run("explain", NANO, "--plot", self.path("x.svg")), 2, "--plot", "plan")
        self.refused(run("explain", NANO, self.path("missing.json"), "--json"), 2, "missing.json")
        self.assertEqual(os.listdir(self.folder), [])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
