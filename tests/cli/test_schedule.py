# SPDX-License-Identifier: Apache-2.0
"""`bucketpool schedule` and the options of schedules: tables, documents, pictures, mistakes.

Arguments: source directory, the bucketpool executable. With UPDATE_GOLDEN=1 the golden files are written anew; look at
the difference before committing it.
"""

import functools
import json
import os
import subprocess
import sys
import unittest

import answers
from answers import InFolder, run

ROOT, TOOL = sys.argv[1], os.path.abspath(sys.argv[2])
MODELS = os.path.join(ROOT, "examples", "models")
NANO = "examples/models/Nemotron-3-Nano-30B-A3B"
QWEN = "examples/models/Qwen3-0.6B"
ALL_ROLES = ("--roles", "param,param_transpose,grad,grad_comm,state,main_grad,optimizer", "--param-dtype", "fp8",
             "--grad-comm-dtype", "bf16")
# Each changes what is live when.
CHANGES = (("--prefetch", "0"), ("--prefetch", "3"), ("--prefetch-backward", "2"), ("--grad-units", "1"),
           ("--grad-units", "4"),
           ("--unit-prefetch", "model.layers.9=4:2"), ("--passes", "eval"), ("--passes", "both"),
           ("--keep-after-forward",),
           ("--streams", "unified"), ("--outside", "successor"), ("--microbatches", "3"), ("--combined",),
           ("--combined", "--microbatches", "2", "--streams", "unified", "--outside", "successor", "--passes", "both"))
LANES = {"param": (0, 1), "param_transpose": (0, 1), "grad": (1, 2), "grad_comm": (1, 3), "state": (1, 1),
         "main_grad": (1, 1), "optimizer": (1, 1)}
document = functools.partial(answers.document, "schedule")


def report(*arguments):
    return answers.document("plan", *arguments)["models"]


def aligned(count):
    return (count + 255) // 256 * 256


def rows(text):
    """The cells of the table's numbered rows, by step: what stands between its columns' ends."""
    lines = text.splitlines()
    head = next(i for i, line in enumerate(lines) if line.startswith("STEP") or line.lstrip().startswith("STEP"))
    return {int(line.split()[0]): line for line in lines[head + 1:] if line.split() and line.split()[0].isdigit()}


class Case(InFolder):
    def units(self, name, sizes, schedule=None, model="tiny"):
        units = {"format": "bucketpool.units/1", "model": model,
                 "units": [{"name": f"layers.{i}", "buckets": [{"name": "all", "dtype": "bf16", "numel": n}]}
                           for i, n in enumerate(sizes)]}
        if schedule is not None:
            units["schedule"] = schedule
        with open(self.path(name), "w", encoding="utf-8") as file:
            json.dump(units, file)
        return self.path(name)

    def golden(self, name, *arguments):
        result = run(*arguments)
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        super().golden(name, result.stdout)


def param_events(*text):
    """"+0" acquires the parameters of layers.0, "-0" releases them."""
    return [{"acquire" if e[0] == "+" else "release": f"layers.{e[1:]}", "role": "param"} for e in text]


class Table(Case):
    def test_golden(self):
        self.golden("schedule-nano.txt", "schedule", NANO, "--ep", "8")
        self.golden("help-schedule.txt", "schedule", "--help")

    def test_steps_of_a_short_schedule(self):
        text = run("schedule", self.units("units.json", (100, 200, 300))).stdout
        self.assertEqual(sorted(rows(text)), list(range(6)))
        self.assertNotIn("...", text)
        self.assertRegex(rows(text)[0], r"forward +layers\.0 +layers\.0, layers\.1 param +layers\.0 param +768 B")
        self.assertRegex(rows(text)[4], r"backward +layers\.1 .*grad$")

    def test_steps_of_a_long_schedule(self):
        found = rows(run("schedule", NANO, "--ep", "8").stdout)
        self.assertLess(len(found), 30)
        for step in (0, 51, 52, 53, 103):  # the ends, the turn, the peaks
            self.assertIn(step, found)

    def test_steps(self):
        for arguments, steps in ((("10-14",), range(10, 15)), (("7",), range(7, 8)), (("0-103",), range(104))):
            text = run("schedule", NANO, "--ep", "8", "--steps", *arguments).stdout
            self.assertEqual(sorted(rows(text)), list(steps))

    def test_roles(self):
        text = run("schedule", QWEN, "--role", "grad", "--steps", "28-30").stdout
        self.assertNotIn("param", text.split("Live at most:")[1])
        self.assertRegex(rows(text)[29], r"backward +model\.layers\.26 +layers\.26 +layers\.27 +61\.50 MiB grad")
        whole, part = document(QWEN, *ALL_ROLES), document(QWEN, *ALL_ROLES, "--role", "grad,state")
        self.assertEqual([p["role"] for p in part["peaks"]], ["grad", "state", "all"])
        self.assertEqual(part["peaks"][:2], [p for p in whole["peaks"] if p["role"] in ("grad", "state")])

    def test_recordings(self):
        path = self.units("units.json", (100, 200), param_events("+0", "+1", "-0", "-1"))
        text = run("schedule", path, "--roles", "param").stdout
        self.assertIn("recorded schedule of 4 events", text)
        self.assertRegex(rows(text)[2], r"recorded +layers\.0 +layers\.0 +512 B")

    def test_many_units_at_once(self):
        text = run("schedule", NANO, "--roles", "param,state", "--steps", "0").stdout
        self.assertIn("layers.0, layers.1 param+state, 50 units state", text)


class Document(Case):
    def replayed(self, found):
        """Live bytes of each step and role, made of the events alone."""
        requests, live = found["requests"], []
        held, sums = set(), {}
        at = 0
        for step in range(len(found["steps"])):
            while at < len(found["events"]) and found["events"][at]["step"] == step:
                event = found["events"][at]
                for r in range(event["first_request"], event["first_request"] + event["request_count"]):
                    self.assertEqual(r in held, not event["acquire"])
                    (held.add if event["acquire"] else held.remove)(r)
                    change = aligned(requests[r]["bytes"]) * (1 if event["acquire"] else -1)
                    for role in (requests[r]["role"], "all"):
                        sums[role] = sums.get(role, 0) + change
                at += 1
            live.append(dict(sums))
        self.assertTrue(all(e["step"] == len(live) and not e["acquire"] for e in found["events"][at:]))
        self.assertEqual(len(held), sum(e["request_count"] for e in found["events"][at:]))
        return live

    def check(self, *arguments):
        found = document(*arguments)
        self.assertEqual(found["format"], "bucketpool.schedule/1")
        roles = [p["role"] for p in found["peaks"]]
        live = self.replayed(found)
        for step, sums in zip(found["steps"], live):
            self.assertEqual(set(step["live_bytes"]), set(roles))
            for role in roles:
                self.assertEqual(step["live_bytes"][role], sums.get(role, 0))
        for peak in found["peaks"]:
            self.assertEqual(peak["bytes"], max(s["live_bytes"][peak["role"]] for s in found["steps"]))
            self.assertEqual(peak["step"], [s["live_bytes"][peak["role"]] for s in found["steps"]].index(peak["bytes"]))
        order = [(e["step"], e["acquire"], e["first_request"]) for e in found["events"]]
        self.assertEqual(order, sorted(order))
        for event in found["events"]:
            request = found["requests"][event["first_request"]]
            self.assertEqual(event["lane"], LANES[request["role"]][0 if event["acquire"] else 1])
            for r in range(event["first_request"], event["first_request"] + event["request_count"]):
                self.assertEqual([found["requests"][r][k] for k in ("unit", "role")],
                                 [request[k] for k in ("unit", "role")])
        return found

    def test_every_option(self):
        plain = self.check(QWEN)
        for options in CHANGES:
            with self.subTest(options=options):
                found = self.check(QWEN, *options)
                self.assertNotEqual((found["steps"], found["events"]), (plain["steps"], plain["events"]))
                self.assertNotEqual(found["options"], plain["options"])
        self.check(NANO, "--ep", "8", *ALL_ROLES, "--recompute", "--streams", "unified")

    def test_recompute(self):
        counts = [sum(e["acquire"] for e in document(QWEN, *ALL_ROLES, *o, "--role", "param")["events"])
                  for o in ((), ("--recompute",))]
        self.assertGreater(counts[1], counts[0])

    def test_peaks(self):
        """Of every role, and in the same step, as `plan` has it."""
        for model, options in ((NANO, ("--ep", "8")), (QWEN, ALL_ROLES), *((QWEN, o) for o in CHANGES)):
            with self.subTest(options=options):
                (planned,) = report(model, *options, "--policy", "dynamic")
                bounds = {r["role"]: (r["lower_bound_bytes"], r["lower_bound_step"])
                          for r in planned["policies"][0]["roles"]}
                peaks = {p["role"]: (p["bytes"], p["step"])
                         for p in document(model, *options)["peaks"] if p["role"] != "all"}
                self.assertEqual(peaks, bounds)

    def test_prefetch_of_units(self):
        def acquires(unit, *options):
            found = document(QWEN, "--role", "param", *options)
            return [e["step"] for e in found["events"]
                    if e["acquire"] and found["requests"][e["first_request"]]["unit"] == unit]
        self.assertEqual(acquires("model.layers.9"), [8, 45])
        self.assertEqual(acquires("model.layers.9", "--unit-prefetch", "model.layers.9=4:2"), [5, 44])
        self.assertEqual(acquires("model.layers.9", "--unit-prefetch", "model.layers.9=0,model.layers.4=3"), [9, 46])
        self.assertEqual(acquires("model.layers.4", "--unit-prefetch", "model.layers.9=0", "--unit-prefetch",
                                  "model.layers.4=3"), [1, 48])
        self.assertEqual(acquires("model.layers.9", "--prefetch-backward", "3"), [8, 43])

    def test_phases(self):
        def phases(*options):
            return [s["phase"] for s in document(self.units("units.json", (1, 2)), *options)["steps"]]
        self.assertEqual(phases(), ["forward"] * 2 + ["backward"] * 2)
        self.assertEqual(phases("--eval"), ["forward"] * 2)
        self.assertEqual(phases("--eval"), phases("--passes", "eval"))
        self.assertEqual(phases("--outside", "successor"), ["outside", "forward", "forward", "outside", "backward",
                                                            "backward"])
        self.assertEqual(phases("--streams", "unified")[2:], ["backward", "backward_gather"] * 2)
        self.assertEqual(phases("--combined"), ["forward"] * 2 + ["combined"] * 2 + ["backward"] * 2)
        combined = document(self.units("units.json", (1, 2)), "--combined")["steps"][2]
        self.assertEqual((combined["unit"], combined["forward_unit"]), ("layers.1", "layers.0"))

    def test_recordings(self):
        events = param_events("+0", "+1", "-0", "+2", "-1", "-2")
        found = self.check(self.units("units.json", (100, 200, 300), events), "--roles", "param")
        said = [("+" if e["acquire"] else "-") + found["requests"][e["first_request"]]["unit"][-1]
                for e in found["events"]]
        self.assertEqual(said, ["+0", "+1", "-0", "+2", "-1", "-2"])
        self.assertEqual([e["step"] for e in found["events"]], list(range(6)))

    def test_overlap_windows(self):
        """A host that releases before it acquires: the next gathers are to run under compute all the same."""
        path = self.units("units.json", (100, 200, 300, 400),
                          param_events("+0", "-0", "+1", "-1", "+2", "-2", "+3", "-3"))
        pairs = [{(o["earlier"], o["later"]) for o in self.check(path, "--roles", "param",
                                                                 "--overlap-window", w)["overlaps"]}
                 for w in ("0", "1", "2")]
        self.assertEqual(pairs[0], set())
        self.assertEqual(pairs[1], {(0, 1), (1, 2), (2, 3), (3, 0)})
        self.assertEqual(pairs[2], pairs[1] | {(0, 2), (1, 3), (2, 0), (3, 1)})
        text = run("schedule", path, "--roles", "param", "--overlap-window", "1").stdout
        self.assertIn("overlap window 1", text)
        self.assertIn("4 pairs are never live together, but kept apart", text)
        self.assertIn("layers.1/all (param) after layers.0/all (param)", text)
        many = self.units("many.json", [100] * 20, param_events(*(s + str(i) for i in range(20) for s in "+-")))
        self.assertIn("and 12 more", run("schedule", many, "--roles", "param", "--overlap-window", "1").stdout)
        for window, most in (("0", (800,)), ("1", (600, 800)), ("3", (200, 400, 600, 800))):
            (planned,) = report(path, "--roles", "param", "--overlap-window", window, "--policy", "scheduled")
            self.assertEqual(planned["policies"][0]["bytes"], sum(aligned(m) for m in most))

    def test_lanes(self):
        events = param_events("+0", "-0", "+1", "-1")
        events[0]["lane"], events[1]["lane"], events[3]["lane"] = "outer_reduce", "reduce", 7
        found = document(self.units("units.json", (100, 200), events), "--roles", "param")
        self.assertEqual([e["lane"] for e in found["events"]], [3, 2, 0, 7])
        self.assertIn("lanes gather, reduce, outer_reduce, 7.",
                      run("schedule", self.path("units.json"), "--roles", "param").stdout)


class United(Case):
    """Several recordings of a model, and several models in one pool."""

    def test_recordings(self):
        one = self.units("one.json", (100, 200, 300), param_events("+0", "-0", "+1", "-1", "+2", "-2"))
        other = self.units("other.json", (100, 200, 300), param_events("+0", "+1", "-0", "-1", "+2", "-2"))
        third = self.units("third.json", (100, 200, 300), param_events("+1", "+2", "-1", "-2", "+0", "-0"))
        found = document(one, "--roles", "param", "--schedules", f"{other},{third}")
        self.assertEqual(len(found["steps"]), 18)
        self.assertEqual(found["options"]["schedules"], [other, third])
        self.assertEqual([e["step"] for e in found["events"]], list(range(18)))
        self.assertEqual(found["peaks"][0]["bytes"], aligned(400) + aligned(600))
        again = document(one, "--roles", "param", "--schedules", other, "--schedules", third)
        self.assertEqual(again["events"], found["events"])
        self.assertIn("recorded schedules of 18 events", run("schedule", one, "--roles", "param",
                                                             "--schedules", f"{other},{third}").stdout)
        for model, options in ((one, ()), (self.units("plain.json", (100, 200, 300)), ())):  # recorded and generated
            (planned,) = report(model, "--roles", "param", "--schedules", third, "--policy", "max", *options)
            self.assertEqual(planned["policies"][0]["lower_bound_bytes"], aligned(400) + aligned(600))

    def test_evaluation_beside_training(self):
        """A further recording needs no events for gradients; the first one does."""
        evaluation = self.units("evaluation.json", (100, 200, 300), param_events("+0", "+1", "-0", "+2", "-1", "-2"))
        plain = self.units("plain.json", (100, 200, 300))
        found = document(plain, "--prefetch", "0", "--schedules", evaluation)
        self.assertEqual(len(found["steps"]), 6 + 6)
        peaks = {p["role"]: p["bytes"] for p in found["peaks"]}
        self.assertEqual(peaks["param"], aligned(400) + aligned(600))  # of the evaluation: training holds one unit
        (planned,) = report(plain, "--prefetch", "0", "--schedules", evaluation, "--policy", "scheduled")
        self.assertEqual([r["bytes"] for r in planned["policies"][0]["roles"]], [peaks["param"], peaks["grad"]])
        self.refused(run("schedule", evaluation), 2, "layers.0/all (grad) has no events")

    def test_evaluation_trace(self):
        """It has no gradients, so its requests have other numbers than those of training."""
        train, evaluation = self.path("train.json"), self.path("eval.json")
        for path, options in ((train, ()), (evaluation, ("--eval",))):
            self.assertEqual(run("run", QWEN, "--scale", "1024", "--steps", "1", "--trace", path, *options).returncode,
                             0)
        alone, both = document(train), document(train, "--schedules", evaluation)
        self.assertEqual([p["role"] for p in both["peaks"]], ["param", "grad", "all"])
        self.assertEqual(len(both["steps"]), len(alone["steps"]) + len(document(evaluation,
                                                                                "--roles", "param")["steps"]))
        (planned,) = report(train, "--schedules", evaluation, "--policy", "max")
        self.assertEqual(planned["policies"][0]["feasible"], True)
        self.refused(run("plan", evaluation, "--schedules", train, "--policy", "max"), 2, "train.json",
                     "(grad) is not in the plan")

    def test_recordings_without_a_bucket(self):
        def grads(count):
            path = self.units("x.json", (100, 200), param_events("+0", "-0", "+1", "-1"))
            with open(path, encoding="utf-8") as file:
                units = json.load(file)
            for i, unit in enumerate(units["units"]):
                unit["buckets"][0]["roles"] = ["param", "grad"] if i < count else ["param"]
            for i in range(count):
                units["schedule"] += [{verb: f"layers.{i}", "role": "grad"} for verb in ("acquire", "release")]
            with open(self.path(f"grads{count}.json"), "w", encoding="utf-8") as file:
                json.dump(units, file)
            return self.path(f"grads{count}.json")
        none, one, two = (grads(count) for count in range(3))
        self.assertEqual(document(two, "--schedules", none)["peaks"], document(two)["peaks"])
        self.refused(run("schedule", two, "--schedules", one), 2, "it lacks layers.1/all (grad)")
        self.refused(run("schedule", one, "--schedules", two), 2, "layers.1/all (grad) is not in the plan")

    def test_recordings_of_other_buckets(self):
        events = param_events("+0", "-0", "+1", "-1")
        one = self.units("one.json", (100, 200), events)
        for sizes, words in (((100, 300), ("600 bytes", "layers.1/all", "400")),
                             ((100, 200, 300), ("3 units", "instead of 2"))):
            other = self.units("other.json", sizes, events + param_events(*(("+2", "-2") if len(sizes) > 2 else ())))
            self.refused(run("schedule", one, "--roles", "param", "--schedules", other), 2, "other.json", *words)
        with open(other, encoding="utf-8") as file:
            units = json.load(file)
        units["units"] = units["units"][:2]
        units["units"][1]["name"] = "elsewhere"
        units["schedule"] = events[:2]
        with open(other, "w", encoding="utf-8") as file:
            json.dump(units, file)
        self.refused(run("schedule", one, "--roles", "param", "--schedules", other), 2, "elsewhere", "layers.1")
        self.refused(run("schedule", one, "--roles", "param", "--schedules", self.units("x.json", (100, 200))), 2,
                     "x.json", "no recorded schedule")
        wrong = self.units("wrong.json", (100, 200), param_events("+0", "-0", "-1"))
        self.refused(run("schedule", one, "--roles", "param", "--schedules", wrong), 2, "wrong.json", "event 2")
        self.refused(run("plan", one, one, "--roles", "param", "--schedules", wrong), 2,
                     "--schedules", "requires one model, got 2")

    def test_shared_pool(self):
        small = self.units("small.json", (100, 200), model="reference")
        large = self.units("large.json", (3000, 1000, 1000), model="policy")
        found = document(large, small, "--share", "--roles", "param,grad,state")
        self.assertEqual(found["model"], "policy + reference")
        self.assertEqual(len(found["steps"]), 10)
        names = [r["unit"] for r in found["requests"]]
        self.assertEqual(sorted(set(names)), ["policy/layers.0", "policy/layers.1", "policy/layers.2",
                                              "reference/layers.0", "reference/layers.1"])
        apart = [document(m, "--roles", "param,grad,state") for m in (large, small)]
        for role in ("param", "grad"):
            peaks = [p["bytes"] for d in (found, *apart) for p in d["peaks"] if p["role"] == role]
            self.assertEqual(peaks[0], max(peaks[1:]))
        (planned,) = report(large, small, "--share", "--policy", "max", "--budget", "1GiB")
        sums = [report(m, "--policy", "max", "--budget", "1GiB")[0] for m in (large, small)]
        self.assertEqual(planned["units"], 5)
        for member in ("outside", "param_shards", "grad_shards", "optimizer"):
            self.assertEqual(planned["state_bytes"][member], sum(s["state_bytes"][member] for s in sums))
        self.assertEqual(planned["parameters"], 5300)
        self.assertEqual(planned["policies"][0]["lower_bound_bytes"],
                         sum(max(r["lower_bound_bytes"] for s in sums
                                 for r in s["policies"][0]["roles"] if r["role"] == role)
                             for role in ("param", "grad")))

    def test_same_model_twice(self):
        found = document(QWEN, QWEN, "--share", "--role", "param")
        self.assertEqual(found["model"], "Qwen3-0.6B + Qwen3-0.6B#2")
        self.assertEqual(found["peaks"][0]["bytes"], document(QWEN)["peaks"][0]["bytes"])
        output = run("plan", QWEN, QWEN, "--share", "--policy", "max", "-o", self.path("plan.json"))
        self.assertEqual((output.returncode, output.stderr), (0, ""))
        with open(self.path("plan.json"), encoding="utf-8") as file:
            plan = json.load(file)
        self.assertEqual((plan["model"], plan["options"]["share"]), ("Qwen3-0.6B + Qwen3-0.6B#2", "1"))
        self.assertEqual(len({a["unit"] for a in plan["requests"]}), 56)


class Plans(Case):
    def test_noted_options(self):
        def options(*arguments):
            self.assertEqual(run("plan", QWEN, "--policy", "max", "-o", self.path("plan.json"), *arguments).stderr, "")
            with open(self.path("plan.json"), encoding="utf-8") as file:
                return json.load(file)["options"]
        plain = options()
        self.assertEqual((plain["schedule"], plain["prefetch"], plain["eval"]), ("training", "1", "0"))
        for arguments, noted in ((("--prefetch-backward", "2"), {"prefetch_backward": "2"}),
                                 (("--unit-prefetch", "model.layers.9=4:2"), {"unit_prefetch.model.layers.9": "4:2"}),
                                 (("--passes", "both"), {"schedule": "training and evaluation"}),
                                 (("--eval",), {"schedule": "evaluation", "eval": "1"}),
                                 (("--keep-after-forward", "--recompute"),
                                  {"keep_after_forward": "1", "recompute": "1"}),
                                 (("--streams", "unified", "--outside", "successor"),
                                  {"streams": "unified", "outside": "successor"}),
                                 (("--microbatches", "4", "--combined"), {"microbatches": "4", "combined": "1"})):
            self.assertEqual(options(*arguments), plain | noted)

    def test_named_schedule(self):
        for arguments, words in (((), "prefetch 1;"), (("--prefetch", "2", "--prefetch-backward", "1"),
                                                       "prefetch 2 (backward 1);"),
                                 (("--unit-prefetch", "model.layers.9=4"), "prefetch 1, 1 unit with another prefetch;"),
                                 (("--passes", "both", "--grad-units", "3"),
                                  "training and evaluation, gradients of 3 units;"),
                                 (("--streams", "unified", "--keep-after-forward"),
                                  "kept after forward, unified streams;"),
                                 (("--microbatches", "4", "--combined"),
                                  "prefetch 1, 4 microbatches, combined passes;")):
            for command in ("plan", "schedule"):
                policy = ("--policy", "max") if command == "plan" else ()
                self.assertIn(words, run(command, QWEN, *arguments, *policy).stdout.splitlines()[1])


class Picture(Case):
    def test_every_option(self):
        cases = [(QWEN, o) for o in ((), *CHANGES)] + [(NANO, ("--ep", "8", *ALL_ROLES))]
        cases.append((self.units("units.json", (100, 200), param_events("+0", "+1", "-0", "-1")), ("--roles", "param")))
        for model, options in cases:
            with self.subTest(options=options):
                result = run("schedule", model, *options, "--plot", self.path("schedule.svg"))
                self.assertEqual((result.returncode, result.stderr), (0, ""))
                with open(self.path("schedule.svg"), encoding="utf-8") as file:
                    text = file.read()
                self.assertIn("<svg", text)
                self.assertGreater(len(text), 3000)
                os.unlink(self.path("schedule.svg"))

    def test_atomic_outputs(self):
        self.refused(run("schedule", QWEN, "--plot", self.path("no/such/folder/x.svg")), 3, "no/such/folder")
        with open("/dev/full", "w", encoding="utf-8") as full:
            result = subprocess.run([TOOL, "schedule", QWEN, "--plot", self.path("x.svg")], stdout=full,
                                    stderr=subprocess.PIPE, text=True, cwd=ROOT, check=False)
        self.assertEqual((result.returncode, os.listdir(self.folder)), (3, []))


class Mistakes(Case):
    def test_bad_options(self):
        cases = ((("--prefetch", "x"), "--prefetch"), (("--prefetch-backward", "-1"), "--prefetch-backward"),
                 (("--prefetch-backward", "4294967295"), "[0, 4294967294]"),
                 (("--unit-prefetch", "model.layers.3=1:4294967295"), "[0, 4294967294]"),
                 (("--passes", "eval", "--roles", "grad"),
                  "--passes eval has only the roles param and state; add one of them to --roles"),
                 (("--eval", "--roles", "grad,grad_comm"), "--passes eval has only the roles param and state"),
                 (("--eval", "--roles", "main_grad,optimizer"), "--passes eval has only the roles param and state"),
                 (("--unit-prefetch", "model.layers.3"), "UNIT=F"), (("--unit-prefetch", "=3"), "UNIT=F"),
                 (("--unit-prefetch", "model.layers.3=1:2:3"), "1:2"[2:]),
                 (("--unit-prefetch", "model.layers.3=a"), "\"a\""),
                 (("--unit-prefetch", "nobody=3"), "nobody"),
                 (("--unit-prefetch", "model.layers.3=1,model.layers.3=2"), "twice"),
                 (("--unit-prefetch", "model.layers.3=1,"), "empty"), (("--passes", "twice"), "train, eval, both"),
                 (("--streams", "one"), "separate, unified"), (("--outside", "all"), "nothing, successor"),
                 (("--microbatches", "0"), "[1, 1024]"), (("--microbatches", "1025"), "[1, 1024]"),
                 (("--overlap-window", "-1"), "--overlap-window"),
                 (("--grad-units", "0"), "--grad-units"), (("--steps", "5-3"), "--steps"),
                 (("--steps", "-3"), "--steps"),
                 (("--steps", "a-b"), "--steps"), (("--steps", "3-56"), "[0, 55]"),
                 (("--steps", "99999999999"), "--steps"),
                 (("--role", "x"), "--role"), (("--role", "state"), "no buckets"),
                 (("--json", "--steps", "1"), "--steps"),
                 (("--share",), "--share"), (("--color", "blue"), "always"), (("--plot", "x.gif"), "x.gif"),
                 (("--plot", ""), "--plot"),
                 (("--schedules", "no-such-file.json"), "no-such-file.json"), (("--policy", "max"), "--policy"))
        for options, word in cases:
            with self.subTest(options=options):
                self.refused(run("schedule", QWEN, *options), 2, word)
        self.refused(run("schedule"), 2, "no model")
        self.refused(run("schedule", QWEN, NANO), 2, "one model, got 2", "--share")

    def test_largest_prefetch(self):
        self.assertEqual(run("schedule", QWEN, "--prefetch-backward", "4294967294", "--unit-prefetch",
                             "model.layers.3=1:4294967294").returncode, 0)

    def test_lost_output(self):
        for options in ((), ("--json",), ("--help",)):
            with open("/dev/full", "w", encoding="utf-8") as full:
                result = subprocess.run([TOOL, "schedule", QWEN, *options], stdout=full, stderr=subprocess.PIPE,
                                        text=True, cwd=ROOT, check=False)
            self.assertEqual(result.returncode, 3, options)
            self.assertEqual(result.stderr.count("\n"), 1, result.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
