"""`bucketpool step`: recorded training steps as PyTorch writes them. What is printed is computed here again from the
events, and each plan is checked against all recorded steps, event by event.

Arguments: source directory, the bucketpool executable.
"""

import json
import os
import pickle
import random
import subprocess
import sys
import unittest

from answers import InFolder
from recordings import Model, Recording, rounded

ROOT, TOOL = sys.argv[1], os.path.abspath(sys.argv[2])


def live_at(events, upto):
    """Live allocations after an event: by address, their size."""
    live = {}
    for event in events[:upto + 1]:
        if event["action"] == "alloc":
            live[event["addr"]] = event["size"]
        elif event["action"] == "free_completed":
            live.pop(event["addr"], None)
    return live


def peak_of(events):
    """The peak live bytes of events that begin with nothing live, and the first event that reaches them."""
    sizes, now, peak = {}, 0, (0, 0)
    for index, event in enumerate(events):
        if event["action"] == "alloc":
            sizes[event["addr"]] = rounded(event["size"])
            now += sizes[event["addr"]]
        elif event["action"] == "free_completed":
            now -= sizes.pop(event["addr"])
        if now > peak[0]:
            peak = now, index
    return peak


class Steps(InFolder):
    def run_step(self, *arguments):
        return subprocess.run([TOOL, "step", *arguments], capture_output=True, text=True, cwd=self.folder, timeout=600,
                              check=False)

    def write(self, snapshot, name="x.pickle", protocol=4):
        with open(os.path.join(self.folder, name), "wb") as file:
            pickle.dump(snapshot, file, protocol)
        return name

    def device(self, snapshot, *options, protocol=4):
        result = self.run_step(self.write(snapshot, protocol=protocol), "--json", *options)
        self.assertEqual(result.returncode, 0, result.stderr)
        document = json.loads(result.stdout)
        self.assertEqual(document["format"], "bucketpool.step/1")
        return document["devices"][0]

    def check(self, recording, device):
        """The peak, the holders and the plan, from the events."""
        events = recording.events
        steps = device["steps"]
        self.assertTrue(all(a["end_event"] == b["begin_event"] for a, b in zip(steps, steps[1:])))
        peaks = []
        for step in steps:
            live = live_at(events, step["begin_event"] - 1)
            now = most = sum(map(rounded, live.values()))
            for event in events[step["begin_event"]:step["end_event"]]:
                if event["action"] == "alloc":
                    now += rounded(event["size"])
                elif event["action"] == "free_completed":
                    now -= rounded(event["size"])
                most = max(most, now)
            self.assertEqual(step["peak_bytes"], most)
            peaks.append(most)
        self.assertEqual(device["steps_peak_bytes"], max(peaks[1:] or peaks))
        self.assertEqual((device["peak_bytes"], device["peak_event"]), peak_of(events))
        live = live_at(events, device["peak_event"])
        self.assertEqual(device["peak_requested_bytes"], sum(live.values()))
        self.assertEqual(sum(h["bytes"] for h in device["holders"]), device["peak_bytes"])
        self.assertEqual(sum(h["allocations"] for h in device["holders"]), len(live))
        plan = device["plan"]
        self.assertEqual(plan["total_bytes"], plan["persistent_bytes"] + plan["step_bytes"] + plan["outside_bytes"])
        self.assertGreaterEqual(plan["total_bytes"], device["peak_bytes"])

    def check_plan(self, recording, device):
        """The written plan: no two allocations of steps that are live together share a byte, in the same step or in two.
        Returns how many were checked: those of steps that have all allocations of their kind.
        """
        result = self.run_step("x.pickle", "-o", "plan.json")
        self.assertEqual(result.returncode, 0, result.stderr)
        with open(os.path.join(self.folder, "plan.json"), encoding="utf-8") as file:
            plan = json.load(file)
        self.assertEqual(plan["format"], "bucketpool.plan/1")
        self.assertEqual(sum(slab["bytes"] for slab in plan["slabs"]), device["plan"]["step_bytes"])
        live, checked = {}, 0
        for step in device["steps"]:
            requests = [request for request in plan["requests"]
                        if request["unit"] == ("step" if step["kind"] == 0 else f"step.{step['kind']}")]
            whole, order = step["matched"] == step["allocations"] == len(requests), 0
            for event in recording.events[step["begin_event"]:step["end_event"]]:
                if event["action"] == "free_completed":
                    live.pop(event["addr"], None)
                if event["action"] != "alloc" or not whole:
                    continue
                request = requests[order]
                self.assertEqual((request["ordinal"], rounded(request["used_bytes"]), request["bucket"]),
                                 (order, rounded(event["size"]), f"stream.{event['stream']}"))
                order += 1
                if "offset" in request:
                    begin, end = request["offset"], request["offset"] + request["bytes"]
                    self.assertLessEqual(end, plan["slabs"][0]["bytes"])
                    self.assertTrue(all(end <= low or high <= begin for low, high in live.values()), (step, order))
                    live[event["addr"]] = (begin, end)
                    checked += 1
        return checked

    def test_regular_steps(self):
        for seed in range(8):
            model = Model(seed, layers=3 + seed)
            for _ in range(3 + seed % 4):
                model.step()
            device = self.device(model.rec.snapshot(), protocol=2 + seed % 4)
            self.assertEqual(device["steps_from"], "repeats")
            self.assertEqual(device["matched"], device["step_allocations"])
            self.check(model.rec, device)
            self.assertEqual(self.check_plan(model.rec, device), device["step_allocations"])
            # Parameters and state are persistent, and gradients, which the next step frees, are planned.
            self.assertEqual(device["plan"]["persistent_bytes"],
                             sum(rounded(size[0]) + rounded(2 * size[0]) for size in model.sizes))
            self.assertEqual(device["plan"]["outside_bytes"], 0)
            self.assertEqual(device["plan"]["total_bytes"], device["peak_bytes"])
            self.assertTrue(device["plan"]["optimal"])

    def test_many_equal_layers(self):
        """The distance of layers is not taken for the step."""
        model = Model(3, layers=1)
        model.sizes = model.sizes * 120
        for _ in range(5):
            model.step()
        device = self.device(model.rec.snapshot())
        self.assertGreaterEqual(len(device["steps"]), 3)
        self.assertEqual({step["allocations"] for step in device["steps"]}, {120 * 4 + 2})
        self.check(model.rec, device)

    def test_cut_recordings(self):
        """A recording that begins and ends within steps: what was live before it is known from its frees."""
        model = Model(5, layers=6)
        for _ in range(6):
            model.step()
        events = model.rec.events
        for begin, end in ((0, len(events) - 25), (40, len(events)), (97, len(events) - 61)):
            cut = Recording()
            cut.events = events[begin:end]
            snapshot = model.rec.snapshot()
            snapshot["device_traces"] = [cut.events]
            device = self.device(snapshot)
            self.assertEqual(device["steps_from"], "repeats", (begin, end))
            self.assertEqual({step["allocations"] for step in device["steps"]}, {6 * 4 + 2}, (begin, end))
            freed, early = set(), 0
            for event in cut.events:
                if event["action"] == "alloc":
                    freed.add(event["addr"])
                elif event["action"] == "free_completed" and event["addr"] not in freed:
                    early += 1
            silent = sum(1 for address in model.rec.live if address not in freed)
            self.assertGreaterEqual(device["live_at_start"], early)
            self.assertLessEqual(device["live_at_start"], early + silent)

    def test_irregular_steps(self):
        for seed in range(6):
            model = Model(seed, layers=12, extra=0.2)
            for _ in range(6):
                model.step()
            device = self.device(model.rec.snapshot())
            self.assertEqual(device["steps_from"], "repeats")
            self.assertLess(device["matched"], device["step_allocations"])
            self.assertGreater(device["matched"], 0.85 * device["step_allocations"])
            self.check(model.rec, device)

    def test_kinds(self):
        """Long and short sequences, and an evaluation in between, in one plan."""
        model = Model(11, layers=8)
        for turn in range(12):
            model.step(factor=1 + turn % 2)
        device = self.device(model.rec.snapshot())
        self.check(model.rec, device)
        self.assertEqual({step["allocations"] for step in device["steps"]}, {2 * (8 * 4 + 2)})  # the round of both
        self.assertGreater(self.check_plan(model.rec, device), 0)
        self.assertGreater(device["matched"], 0.95 * device["step_allocations"])

    def test_evaluation(self):
        """Gradients that live through one evaluation, and are freed one step later than in other steps."""
        for layers in (3, 8, 90):
            model = Model(12, layers=layers)
            for turn in range(14):
                model.step()
                if turn == 7:
                    model.step(evaluate=True)
            device = self.device(model.rec.snapshot())
            self.check(model.rec, device)
            counts = [step["allocations"] for step in device["steps"]]
            self.assertGreater(counts.count(layers * 4 + 2), 4, counts)
            self.assertGreater(self.check_plan(model.rec, device), 0)

    def test_no_repeat(self):
        recording = Recording()
        held = [recording.alloc(1000 * i) for i in range(1, 20)]
        for address in held[:10]:
            recording.free(address)
        device = self.device(recording.snapshot())
        self.assertEqual(device["steps_from"], "whole")
        self.check(recording, device)
        text = self.run_step("x.pickle")
        self.assertIn("the whole recording is one step", text.stdout)

    def test_missing_frees(self):
        recording = Recording()
        for _ in range(3):
            address = recording.alloc(4096)
            recording.address = address
        device = self.device(recording.snapshot())
        self.assertEqual(device["missing_frees"], 2)
        self.assertEqual(device["peak_bytes"], 4096)
        steps = Recording() # the first allocation of each step is made where one was live
        for _ in range(6):
            steps.address = 0x7E0000000000
            first = steps.alloc(1 << 20)
            steps.address = 0x7F0000000000
            for size in range(1, 20):
                steps.free(steps.alloc(size * 4096, place="backward"))
        device = self.device(steps.snapshot())
        self.assertEqual(device["steps_from"], "repeats")
        self.assertEqual(device["peak_bytes"], (1 << 20) + 19 * 4096)
        self.assertIn(first, steps.live)

    def test_unknown_events(self):
        model = Model(1)
        for _ in range(3):
            model.step()
        model.rec.events.insert(50, {"action": "teleport", "addr": 5, "time_us": 3})
        model.rec.events.insert(60, {"action": "oom", "device_free": 1 << 60, "size": 1 << 62, "stream": 0})
        model.rec.events.insert(70, {"action": "snapshot", "addr": 0, "size": 0, "stream": 0})
        device = self.device(model.rec.snapshot())
        self.assertEqual((device["unknown_events"], device["oom_events"]), (1, 1))
        self.assertIn('1 events of unknown kinds ("teleport")', self.run_step("x.pickle").stdout)

    def test_reserved(self):
        """Segment events of the recording: the most that PyTorch had."""
        model = Model(2)
        for _ in range(4):
            model.step()
        peak = self.device(model.rec.snapshot())["peak_bytes"]
        r = model.rec
        segment = rounded(peak) * 2
        r.events.insert(0, {"action": "segment_alloc", "addr": 0x7E0000000000, "size": segment, "stream": 0, "frames": [],
                            "time_us": 0})
        snapshot = r.snapshot()
        snapshot["segments"] = [{"device": 0, "address": 0x7E0000000000, "total_size": segment, "stream": 0,
                                 "segment_type": "large", "blocks": [], "frames": []}]
        device = self.device(snapshot)
        self.assertEqual(device["recorded_bytes"], segment)
        self.assertEqual(device["recorded_at_peak_bytes"], segment)

    def test_devices_and_files(self):
        models = [Model(seed) for seed in range(2)]
        for model in models:
            for _ in range(3):
                model.step()
        both = models[0].rec.snapshot()
        both["device_traces"] = [models[0].rec.events, [], models[1].rec.events]
        self.write(both, "both.pickle")
        self.write(models[1].rec.snapshot(), "one.pickle")
        result = self.run_step("both.pickle", "one.pickle")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual([line.split()[:2] for line in result.stdout.splitlines()[1:]],
                         [["both.pickle", "cuda:0"], ["both.pickle", "cuda:2"], ["one.pickle", "cuda:0"]])
        self.refused(self.run_step("both.pickle", "-o", "plan.json"), 2, "requires one device of one file, got 2")

    def test_plan_forwards(self):
        model = Model(4)
        for _ in range(3):
            model.step()
        self.write(model.rec.snapshot())
        results = [subprocess.run([TOOL, command, "x.pickle"], capture_output=True, text=True, cwd=self.folder, check=False)
                   for command in ("plan", "step")]
        self.assertEqual(results[0].stdout, results[1].stdout)
        self.assertEqual(results[0].returncode, 0)

    def test_pictures(self):
        model = Model(4)
        for _ in range(3):
            model.step()
        self.write(model.rec.snapshot())
        result = self.run_step("x.pickle", "--plot", "x.svg")
        if "--plot" in result.stderr: # built without cairo
            self.skipTest(result.stderr)
        self.assertEqual(result.returncode, 0, result.stderr)
        with open(os.path.join(self.folder, "x.svg"), encoding="utf-8") as file:
            self.assertIn("<svg", file.read())

    def test_mistakes(self):
        model = Model(4)
        for _ in range(3):
            model.step()
        good = model.rec.snapshot()
        refusals = [
            ({}, "expected \"segments\" and \"device_traces\""),
            ({**good, "device_traces": 5}, "no recorded events"),
            ({**good, "device_traces": [[]]}, "no recorded events"),
            ({**good, "device_traces": [[3]]}, "device_traces[0]: expected a list of events"),
            ({**good, "device_traces": [[{"action": "alloc", "addr": 1}] * 2]}, "an event without \"size\""),
            ({**good, "device_traces": [[{"action": "alloc", "size": 1}] * 2]}, "an event without \"addr\""),
            ({**good, "device_traces": [[{"action": "alloc", "addr": -1, "size": 1}]]}, "not a non-negative integer"),
            ({**good, "device_traces": [[{"action": "alloc", "addr": 1 << 63, "size": 1 << 63}]]}, "exceed 64 bits"),
            ({**good, "device_traces": [[good["device_traces"][0][0]] * 2]}, "an event is in two places"),
            ({**good, "device_traces": [good["device_traces"][0]] * 2}, "the events of another device"),
            ({**good, "device_traces": [good["device_traces"][0] + [7]]}, "a list of events has another item"),
            ({**good, "segments": [{"address": 0}]}, "total_size: missing"),
            ({**good, "segments": [{"address": 0, "total_size": 4, "blocks": [{"size": 8}]}]}, "exceed"),
            ({**good, "segments": [{"address": 0, "total_size": 4}] * 2}, "two segments overlap"),
            ({**good, "segments": [{"address": 0, "total_size": 4, "device": 400}]}, "expected less than 128"),
        ]
        for snapshot, words in refusals:
            self.write(snapshot)
            self.refused(self.run_step("x.pickle"), 2, "x.pickle", words)
        self.refused(self.run_step(), 2, "no file given")
        self.refused(self.run_step("absent.pickle"), 2, "absent.pickle")
        with open(os.path.join(self.folder, "evil.pickle"), "wb") as file:
            file.write(b"\x80\x04cos\nsystem\n(X\x04\x00\x00\x00true\x85R.")
        self.refused(self.run_step("evil.pickle"), 2, "names the global os.system")

    def test_hostile_texts(self):
        recording = Recording()
        for _ in range(3):
            for i in range(30):
                recording.free(recording.alloc(1000 * i + 1, place="\x1b[31m\u0000\n\u202e"))
        self.write(recording.snapshot())
        result = self.run_step("x.pickle")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertNotIn("\x1b", result.stdout)

    def test_truncated(self):
        model = Model(9)
        for _ in range(3):
            model.step()
        self.write(model.rec.snapshot())
        path = os.path.join(self.folder, "x.pickle")
        with open(path, "rb") as file:
            data = file.read()
        for length in [0, 1, 2, *random.Random(1).sample(range(len(data)), 60)]:
            with open(path, "wb") as file:
                file.write(data[:length])
            self.refused(self.run_step("x.pickle"), 2, "x.pickle")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
