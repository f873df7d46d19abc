"""`bucketpool step`: recorded training steps as PyTorch writes them. What is printed is computed here again from the
events, and each plan is checked against all recorded steps, event by event.

Arguments: source directory, the bucketpool executable.
"""

import bz2
import gzip
import io
import json
import lzma
import os
import pickle
import random
import re
import sqlite3
import subprocess
import sys
import tarfile
import unittest
import zipfile

from answers import InFolder
import snapshots
from recordings import Model, Recording, frame, rounded

ROOT, TOOL = sys.argv[1], os.path.abspath(sys.argv[2])
MIB = 1 << 20


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

    def phases(self, frames, rounds=3):
        """Rounds of two phases, generation and training, after which memory that is not live goes back to the device."""
        recording = Recording()
        recording.alloc_segment(512 * MIB, "state")
        for _ in range(rounds):
            for count, size, place in ((6, 1024, "rollout"), (7, 1126, "train")):
                for address in [recording.alloc_segment(size * MIB, place) for _ in range(count)]:
                    recording.free(address)
                recording.empty_cache(frames)
        return recording

    def test_empty_cache(self):
        """Memory that empty_cache released is not held in the next phase: default is as recorded."""
        right = (512 + 7 * 1126) * MIB
        for frames in ((), [{"name": "empty_cache", "filename": "/x/torch/cuda/memory.py", "line": 224}]):
            device = self.device(self.phases(frames).snapshot())
            self.assertEqual((device["recorded_bytes"], device["default_bytes"], device["peak_bytes"]), (right,) * 3)
            self.assertEqual(device["causes"]["cached"], 0)
            self.assertEqual(device["empty_caches"], 6)
        self.assertIn("follow 6 calls of torch.cuda.empty_cache", self.run_step("x.pickle").stdout)

    def test_empty_cache_without_segments(self):
        """As bucketpool.torch.trace records it."""
        recording = self.phases(())
        events = [event for event in recording.events if event["action"] != "segment_alloc"]
        for before, event in zip([None, *events], events):
            if event["action"] == "segment_free" and before["action"] == "free_completed":
                event.update(action="empty_cache", addr=0, size=0)
        recording.events = [event for event in events if event["action"] != "segment_free"]
        device = self.device(recording.snapshot())
        self.assertEqual(device["default_bytes"], (512 + 7 * 1126) * MIB)
        self.assertEqual((device["causes"]["cached"], device["empty_caches"], device["unknown_events"]), (0, 6, 0))

    def test_retries(self):
        """An allocation that finds no memory frees the cache: events like those of empty_cache, which no one called."""
        recording = Recording()
        for _ in range(3):
            for address in [recording.alloc_segment(1024 * MIB, "rollout") for _ in range(6)]:
                recording.free(address)
            first = recording.alloc_segment(1126 * MIB, "train")  # 7.1 GiB: the device is full
            recording.empty_cache()
            for address in [recording.alloc_segment(1126 * MIB, "train") for _ in range(5)] + [first]:
                recording.free(address)
            recording.empty_cache()
        recording.alloc_segment(1024 * MIB, "rollout")
        device = self.device(recording.snapshot())
        self.assertEqual(device["empty_caches"], 0)
        self.assertGreater(device["unclear_releases"], 0)
        self.assertEqual(device["default_bytes"], device["default_most_bytes"])
        self.assertGreater(device["default_most_bytes"], device["default_least_bytes"])
        self.assertRegex(self.run_step("x.pickle").stdout, r"\d releases .* does not tell. Default is \S+ GiB or \S+ GiB")

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

    # ---- what is a step --------------------------------------------------------------------------------------------

    def report(self, recording, *options):
        result = self.run_step(self.write(recording.snapshot()), *options)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result.stdout

    def steps_of(self, recording):
        device = self.device(recording.snapshot())
        self.assertEqual((device["peak_bytes"], device["peak_event"]), peak_of(recording.events))
        return device["steps_from"], len(device["steps"]), device["steps_peak_bytes"]

    def test_one_iteration(self):
        """The loop of its optimizer repeats, and is not a step."""
        for frames in (None, ()):
            recording = Recording()
            activations = [recording.alloc((i + 3) * 7 * MIB, frames=frames) for i in range(20)]
            for address in reversed(activations):
                recording.free(address)
            for _ in range(24):
                recording.alloc(4 * MIB, frames=frames)
                recording.free(recording.alloc(4 * MIB, frames=frames))
            self.assertEqual(self.steps_of(recording), ("whole", 1, 1750 * MIB))
            self.assertEqual(self.device(recording.snapshot())["peak_bytes"], 1750 * MIB)

    def test_layers_are_no_steps(self):
        """The forward pass of an inference, whose layers are all alike; layers that are recomputed in backward."""
        inference = Recording()
        x = inference.alloc(8 * MIB, place="forward")
        for _ in range(40):
            y = [inference.alloc(size * MIB, place="forward") for size in (3, 24, 5, 8)]
            for address in (x, *y[:3]):
                inference.free(address)
            x = y[3]
        self.assertEqual(self.steps_of(inference)[:2], ("whole", 1))
        checkpointed = Recording()
        inputs = [checkpointed.alloc(MIB, place="forward") for _ in range(40)]
        logits = [checkpointed.alloc(400 * MIB, place=place) for place in ("forward", "backward")]
        for address in logits:
            checkpointed.free(address)
        for address in reversed(inputs):
            inner = [checkpointed.alloc(size * MIB, place="backward") for size in (3, 170, 5)]
            for each in (address, *inner):
                checkpointed.free(each)
        self.assertEqual(self.steps_of(checkpointed)[:2], ("whole", 1))

    def test_microbatches(self):
        """Gradients are accumulated over microbatches: they are not steps, with frames and without."""
        for frames in (None, ()):
            for microbatches in (2, 4, 8):
                model = Model(3, layers=9)
                model.accumulate(microbatches, frames)
                if frames is None:
                    self.assertEqual(self.steps_of(model.rec)[:2], ("whole", 1), microbatches)
                for _ in range(3):
                    model.accumulate(microbatches, frames)
                source, count, _ = self.steps_of(model.rec)
                self.assertEqual(source, "repeats", (frames, microbatches))
                self.assertIn(count, (3, 4), (frames, microbatches))

    def test_state_of_first_step(self):
        """Two steps, of which the first one makes the optimizer's state, are no two equal ones."""
        model = Model(6, layers=24)
        for _ in range(2):
            model.step()
        source, count, _ = self.steps_of(model.rec)
        self.assertEqual((source, count), ("whole", 1))

    def test_lengths(self):
        """Marked steps of different lengths."""
        path = os.path.join(os.path.abspath(ROOT), "tests", "data", "recordings", "lengths.pickle.gz")
        with gzip.open(path) as packed, open(os.path.join(self.folder, "x.pickle"), "wb") as file:
            file.write(packed.read())
        result = self.run_step("x.pickle", "--json")
        device = json.loads(result.stdout)["devices"][0]
        self.assertEqual((device["steps_from"], len(device["steps"])), ("marks", 4))
        with open(os.path.join(self.folder, "x.pickle"), "rb") as file:
            events = pickle.load(file)["device_traces"][0]
        self.assertEqual((device["peak_bytes"], device["peak_event"]), peak_of(events))
        self.assertEqual(device["steps_peak_bytes"], device["peak_bytes"])
        self.assertIn("peak live    468.8 MiB", self.run_step("x.pickle").stdout)

    def test_marks(self):
        """Of the profiler, of programs, of optimizers; each with steps that nothing else would find."""
        def run(begin, end, lengths=(1, 3, 2, 4)):
            model = Model(7, layers=4)
            for number, factor in enumerate(lengths):
                begin(model.rec, number)
                model.step(factor=factor)
                end(model.rec, number)
            return model.rec

        def nothing(_rec, _number):
            pass

        def begins(name):
            return lambda rec, number: rec.mark(name.format(number))

        for name in ("ProfilerStep#{}", "step {}", "train_step", "Iteration {}", "## step {} ##"):
            recording = run(begins(name), nothing)
            self.assertEqual(self.steps_of(recording)[:2], ("marks", 4), name)
            self.check(recording, self.device(recording.snapshot()))
        for name in ("step {}: data", "backward", "stepping stone {}", "FSDP::pre_forward (model.layers.{})"):
            self.assertNotEqual(self.steps_of(run(begins(name), nothing))[0], "marks", name)
        # The last step ends with its range. Marks inside the profiler's steps do not count.
        closed = run(lambda rec, number: [rec.mark(f"ProfilerStep#{number}"), rec.mark("step")],
                     lambda rec, number: rec.mark(f"ProfilerStep#{number}", "END"))
        closed.free(closed.alloc(1 << 30))
        source, count, peak = self.steps_of(closed)
        self.assertEqual((source, count), ("marks", 4))
        self.assertLess(peak, 1 << 30)
        text = self.report(closed)
        self.assertIn("Warning: the peak of the recording, ", text)
        self.assertIn("4 marked steps of ", text)

    def test_misleading_marks(self):
        """Marks in one another, of parts of a step, out of order, and older than the events."""
        def run(around, steps=4):
            model = Model(7, layers=4)
            for number in range(steps):
                around(model, number)
            return model.rec

        def nested(model, number):
            model.rec.mark(f"iteration {number}")
            for _ in range(2):
                model.rec.mark("train_step")
                model.step(factor=1 + number)
                model.rec.mark("train_step", "END")
            model.rec.mark(f"iteration {number}", "END")
        self.assertEqual(self.steps_of(run(nested))[:2], ("marks", 4))

        def recursive(model, number):
            model.rec.mark("step")
            model.step()
            model.rec.mark("step")
            model.step(factor=1 + number)
            model.rec.mark("step", "END")
            model.rec.mark("step", "END")
        self.assertEqual(self.steps_of(run(recursive))[:2], ("marks", 4))

        def optimizer(model, number):
            model.step(factor=1 + number)
            model.rec.mark("step")
            model.rec.free(model.rec.alloc(5000, place="optimizer"))
            model.rec.mark("step", "END")
        self.assertNotEqual(self.steps_of(run(optimizer))[0], "marks")

        def named(model, number):
            model.rec.mark(f"epoch 0, training step {number} of 4")
            model.step(factor=1 + number)
        disordered = run(named)
        disordered.annotations.reverse()
        self.assertEqual(self.steps_of(disordered)[:2], ("marks", 4))
        ends = run(named)
        ends.annotations.append({"name": "step", "stage": "END", "device": 0, "time_us": 0})
        self.device(ends.snapshot())

        ring = run(named, steps=6)
        second = ring.annotations[2]["time_us"]
        ring.events[:] = [event for event in ring.events if event["time_us"] > second + 200]
        device = self.device(ring.snapshot())
        self.assertEqual((device["steps_from"], len(device["steps"])), ("marks", 3))

    def test_marks_of_optimizers(self):
        """A step ends behind its optimizers: one, two, or one for each layer during backward."""
        def optimizer(rec, name="AdamW"):
            rec.mark(f"Optimizer.step#{name}.step")
            rec.free(rec.alloc(4096))
            rec.mark(f"Optimizer.step#{name}.step", "END")

        for names in (("AdamW",), ("AdamW", "Muon"), ("SGD", "SGD", "SGD")):
            model = Model(8, layers=4)
            for factor in (1, 4, 2, 3):
                model.step(factor=factor)
                for name in names:
                    optimizer(model.rec, name)
            source, count, _ = self.steps_of(model.rec)
            self.assertEqual((source, count), ("marks", 3), names)
        layers = Recording()
        for _ in range(3):
            saved = [layers.alloc(size * MIB) for size in range(10, 20)]
            for address in reversed(saved):
                layers.free(layers.alloc(5 * MIB))
                layers.free(address)
                optimizer(layers)
        self.assertEqual(self.steps_of(layers)[:2], ("marks", 3))  # the first one is like the others
        once = Model(9, layers=4)
        once.step()
        optimizer(once.rec)
        self.assertEqual(self.steps_of(once.rec)[:2], ("whole", 1))

    def test_marks_of_devices(self):
        """Each device has separate marks, or else those of another: PyTorch's are of the current device."""
        model = Model(10)
        for number in range(3):
            model.rec.mark(f"ProfilerStep#{number}")
            model.step(factor=1 + number)
        snapshot = model.rec.snapshot()
        snapshot["device_traces"] = [[], model.rec.events]
        for segment in snapshot["segments"]:
            segment["device"] = 1
        for device in (0, 1):
            for annotation in snapshot["external_annotations"]:
                annotation["device"] = device
            self.assertEqual(self.device(snapshot)["steps_from"], "marks")
        snapshot["external_annotations"].append({"name": "f", "stage": "START", "device": 0, "time_us": 1})
        self.assertEqual(self.device(snapshot)["steps_from"], "marks")
        snapshot["external_annotations"] = [{**each, "device": 1 - each["device"]} for each in snapshot["external_annotations"]]
        self.assertNotEqual(self.device(snapshot)["steps_from"], "marks")
        for marks in (None, 5, [], [None, {}, {"name": 5}, {"name": "step", "stage": 3}], [{"name": "step 1"}] * 3):
            snapshot["external_annotations"] = marks
            self.device(snapshot)
        snapshot["external_annotations"] = [{"name": "step 1", "device": -1}]
        self.write(snapshot)
        self.refused(self.run_step("x.pickle"), 2, "external_annotations[0].device")

    def test_peak_before_the_recording(self):
        recording = Recording()
        early = recording.alloc(100 * MIB)
        recording.events.clear()
        recording.events.append({"action": "free_completed", "addr": early, "size": 100 * MIB, "stream": 0, "time_us": 5,
                                 "frames": []})
        recording.live.clear()
        recording.free(recording.alloc(MIB))
        device = self.device(recording.snapshot())
        self.assertEqual((device["peak_bytes"], device["peak_event"]), (100 * MIB, None))
        self.assertEqual([(h["live_at_start"], h["bytes"]) for h in device["holders"]], [(True, 100 * MIB)])
        text = self.run_step("x.pickle").stdout
        self.assertIn("The peak: 100.0 MiB live before the first event", text)
        self.assertIn("live before the recording", text)

    def test_nothing_to_plan(self):
        recording = Recording()
        recording.mark("step 0")
        for _ in range(3):
            recording.alloc(MIB)
        recording.mark("step 1")
        recording.free(recording.alloc(0))
        for option, file in (("-o", "plan.json"), ("--plot", "plan.svg")):
            result = self.run_step(self.write(recording.snapshot()), option, file)
            self.refused(result, 2, f"{option}: none of the ", "record whole training steps")

    # ---- requests that found no memory -----------------------------------------------------------------------------

    def test_out_of_memory(self):
        """Four equal steps, and a longer one that fails: the report is about the failure."""
        r = Recording()
        r.segments = True
        params = [r.alloc((20 + i) * MIB, frames=[frame("__init__", "/home/u/model.py", i)]) for i in range(10)]
        def step(scale, fails):
            saved = [r.alloc((11 + 3 * i) * MIB * scale, frames=[frame("layer", "/home/u/layer.py", 10 + i)]) for i in range(20)]
            if fails:
                r.event("oom", 900 * MIB, 4000 * MIB, 0, [frame("malloc", "??", 0), frame("logits_float", "/home/u/loss.py", 33),
                                                          frame("<module>", "/home/u/train.py", 5)])
                return
            r.free(r.alloc(97 * MIB * scale, frames=[frame("loss", "/home/u/loss.py", 33)]))
            for address in reversed(saved):
                r.free(address)
        for _ in range(4):
            step(1, False)
        step(7, True)
        live = sum(size for size, _ in r.live.values())
        device = self.device(r.snapshot())
        self.assertEqual(device["peak_bytes"], live)
        oom = device["oom"]
        self.assertEqual((oom["event"], oom["requested_bytes"], oom["device_free_bytes"], oom["live_bytes"]),
                         (len(r.events) - 1, 4000 * MIB, 900 * MIB, live))
        self.assertEqual([each["function"] for each in oom["frames"]], ["malloc", "logits_float", "<module>"])
        self.assertEqual(sum(h["bytes"] for h in oom["holders"]), live)
        self.assertEqual(oom["holders"][0]["line"], 29)
        self.assertEqual(len(params), 10)
        text = self.report(r)
        self.assertIn("OUT OF MEMORY at event", text)
        self.assertIn("a request of 3.906 GiB on stream 0\n  at loss.py:33 logits_float\n  at train.py:5\n", text)
        self.assertIn("Live when the request failed: 5.640 GiB", text)

    def oom_of(self, free, request=100 * MIB, device_free=10 * MIB, settings=()):
        """A failed request of stream 0: the free memory, and the text. Each of `free`: stream, pool, type of the segment, free ranges."""
        r, segments, address = Recording(), [], 0x7A0000000000
        for stream, pool, kind, ranges in free:
            blocks, begin = [], address
            for size in ranges:
                for bytes_, state in ((MIB, "active_allocated"), (size, "inactive")):
                    blocks.append({"address": address, "size": bytes_, "requested_size": bytes_, "state": state, "frames": []})
                    address += bytes_
            segments.append({"device": 1, "address": begin, "total_size": address - begin, "stream": stream,
                             "segment_type": kind, "segment_pool_id": pool,
                             "is_expandable": False, "frames": [], "blocks": blocks})
            address += 1 << 30
        r.free(r.alloc(512))
        r.event("oom", device_free, request)
        snapshot = r.snapshot()
        other = Recording() # another device, whose blocks are not those of this one
        other.alloc(500 * MIB)
        snapshot["segments"] = [*other.snapshot()["segments"], *segments]
        snapshot["device_traces"] = [[], r.events]
        snapshot["allocator_settings"].update(settings)
        oom = self.device(snapshot)["oom"]
        self.assertEqual(oom["reserved_bytes"], sum(s["total_size"] for s in segments))
        self.assertEqual(oom["reserved_bytes"], oom["live_bytes"] + sum(m["bytes"] for m in oom["free"]))
        return oom["free"], self.run_step("x.pickle").stdout

    def test_free_memory(self):
        """Of each stream and pool, and one sentence that says why none of it serves the request."""
        own, pool = (0, (0, 0)), (0, (1, 2))
        free, text = self.oom_of([(*own, "large", [30 * MIB, 40 * MIB, 25 * MIB])])
        self.assertEqual([(m["ranges"], m["bytes"], m["largest_bytes"]) for m in free], [(3, 95 * MIB, 40 * MIB)])
        self.assertIn("too small: PyTorch asks for 100.0 MiB", text)
        free, text = self.oom_of([(*own, "large", [30 * MIB]), (7, (0, 0), "large", [500 * MIB]), (*pool, "large", [200 * MIB])])
        self.assertEqual([(m["stream"], m["pool"], m["bytes"]) for m in free],
                         [(7, 0, 500 * MIB), (0, 1, 200 * MIB), (0, 0, 30 * MIB)])
        for words in ("of another stream", "of a private pool"):
            self.assertIn(words, text)
        limit, pieces, others = "The device had room", "The memory is there, in pieces", "A free range of another stream, pool or size"
        split, range_, pending = "in ranges that no setting joins", "A free range is large enough", "Enough is free with the pending memory"
        expandable = {"expandable_segments": True}
        cases = [
            ([(*own, "large", [30 * MIB, 64 * MIB])], {}, pieces),
            ([(*own, "large", [30 * MIB, 64 * MIB])], {"settings": expandable}, split),
            ([(*own, "large", [MIB] * 120)], {}, split), # expandable segments cannot give such pages back
            ([(7, (0, 0), "large", [MIB] * 120)], {}, split),
            ([(7, (0, 0), "large", [100 * MIB])], {}, others),
            ([(*own, "large", [100 * MIB])], {}, range_),
            ([(*own, "large", [30 * MIB])], {"device_free": 40 << 30}, limit),
            ([(*own, "large", [30 * MIB])], {}, "60.00 MiB more are needed, whatever the allocator"),
            ([(*own, "large", [4 * MIB])], {"request": 5 * MIB, "device_free": 12 * MIB}, "too small: PyTorch asks for 20.00 MiB"),
            ([(*own, "large", [4 * MIB])], {"request": 1000, "device_free": MIB}, "too small: PyTorch asks for 2.000 MiB"),
            ([(*own, "large", [4 * MIB])], {"request": 1000, "device_free": MIB}, others),
            ([(*own, "small", [MIB])], {"request": 4000, "device_free": MIB}, range_),
        ]
        for free, more, words in cases:
            self.assertIn(words, self.oom_of(free, **more)[1], (free, more))
        r = Recording()
        address = r.alloc(95 * MIB)
        r.event("free_requested", address, 95 * MIB)
        r.event("oom", 10 * MIB, 100 * MIB)
        snapshot = r.snapshot()
        snapshot["segments"][0]["blocks"][0]["state"] = "active_pending_free"
        oom = self.device(snapshot)["oom"]
        self.assertEqual((oom["pending_bytes"], oom["free"]), (95 * MIB, []))
        self.assertIn(pending, self.run_step("x.pickle").stdout)

    def test_failure_without_allocations(self):
        """The blocks at the end and the request are there."""
        r = Recording()
        r.alloc(40 * MIB)
        r.events.clear()
        r.event("oom", 5 * MIB, 80 * MIB)
        oom = self.device(r.snapshot())["oom"]
        self.assertEqual((oom["live_bytes"], oom["requested_bytes"]), (40 * MIB, 80 * MIB))
        text = self.run_step("x.pickle").stdout
        self.assertIn("No allocations were recorded", text)
        self.assertIn("75.00 MiB more are needed", text)

    def test_failed_requests_of_files(self):
        """In the report of several files, too."""
        r = Recording()
        r.free(r.alloc(5 * MIB))
        r.event("oom", 0, 8 * MIB)
        r.alloc(512)
        self.write(r.snapshot(), "a.pickle")
        self.write(Model(1).rec.snapshot(), "b.pickle")
        text = self.run_step("a.pickle", "b.pickle").stdout
        self.assertIn("a.pickle, cuda:0: OUT OF MEMORY at event 3", text)

    def test_warnings_of_files(self):
        """Steps that miss the peak, in one report and in the table of several."""
        model = Model(4)
        model.rec.free(model.rec.alloc(900 * MIB))
        for number in range(3):
            model.rec.mark(f"ProfilerStep#{number}")
            model.step()
        self.write(model.rec.snapshot(), "a.pickle")
        self.write(Model(1).rec.snapshot(), "b.pickle")
        text = self.run_step("a.pickle", "b.pickle").stdout
        self.assertRegex(text, r"(?m)^a.pickle, cuda:0: Warning: the peak of the recording, 9\d\d.\d MiB, is not in the steps after")
        self.assertRegex(text, r"(?m)^a.pickle +cuda:0 .* 1[.]\d\d optimal")
        text = self.run_step("a.pickle").stdout
        self.assertRegex(text, r"(?m)^planned .* 1[.]\d\d one address for each allocation of the steps, times their peak")
        self.assertRegex(text, r"(?m)^peak live +9\d\d.\d MiB +1.00 of the recording")

    def test_empty_allocations(self):
        model = Model(4)
        for _ in range(4):
            model.step()
            model.rec.free(model.rec.alloc(0, place="backward"))
        device = self.device(model.rec.snapshot())
        self.assertEqual(self.run_step("x.pickle", "-o", "plan.json").returncode, 0)
        self.assertEqual(self.check_plan(model.rec, device) > 0, True)

    # ---- places, modules, phases and kinds -------------------------------------------------------------------------

    def test_places(self):
        """The frame of the program or its framework, with a whole name."""
        torch, cxx = "/env/lib/python3.11/site-packages/torch/", frame("torch::unwind::unwind()", "??", 0)
        name = "a_function_with_a_name_that_is_much_longer_than_a_column_of_a_table"
        cases = [
            ([cxx, frame("linear", torch + "nn/functional.py", 5), frame("forward", "/home/model.py", 7)], "model.py:7 forward"),
            ([cxx, frame("<module>", "/home/train.py", 12)], "train.py:12 "),
            ([frame(name, f"/home/{name}.py", 7)], f"{name}.py:7 {name}"),
            ([frame("linear", torch + "nn/functional.py", 5), frame("run", "/env/lib/python3.11/threading.py", 3),
              frame("forward", "/env/lib/python3.11/site-packages/transformers/models/llama/modeling_llama.py", 9)],
             "modeling_llama.py:9 forward"),
            ([frame("__torch_function__", torch + "utils/_device.py", 5), frame("convert", torch + "nn/modules/module.py", 9)],
             "module.py:9 convert"),
            ([cxx, frame("at::_ops::mm::call(at::Tensor const&, at::Tensor const&)", "??", 0),
              frame("torch::autograd::generated::MmBackward0::apply(std::vector<at::Tensor>&&)", "Functions.cpp", 0),
              frame("torch::autograd::Engine::thread_main(std::shared_ptr<Task> const&)", "??", 0)],
             "torch::autograd::generated::MmBackward0::apply "),
            ([cxx, frame("at::_ops::mm::call(at::Tensor const&)", "??", 0)], "at::_ops::mm::call "),
            ([cxx], "without frames"),
        ]
        for frames, place in cases:
            recording = Recording()
            recording.alloc(MIB, frames=frames)
            text = self.report(recording)
            self.assertIn("\n" + place, text)
            self.assertNotIn("unwind", text)
            self.assertNotIn("<module>", text)

    def groups(self, device, names):
        return {each[names[:-1]]: each["bytes"] for each in device[names]}

    def test_groups(self):
        """Modules and phases that the recording names; the kinds that it names, and those that live ranges tell."""
        r = Recording()
        def alloc(size, module, phase, kind="", inner=()):
            address = r.alloc(size * MIB, frames=[frame("aten::mm", f"{module} ({phase})" if module and phase else module or phase, 0),
                                                  *inner, frame("train", "/home/train.py", 3)])
            r.events[-1]["user_metadata"] = kind
            return address
        alloc(10, "", "", inner=[frame("__init__", "/home/model.py", 5)])
        alloc(3, "", "", "kind=parameters")
        saved = [alloc(7, f"model.layers.{i}.mlp", "forward") for i in range(12)]
        gathered = alloc(5, "model", "forward", inner=[frame("all_gather", "/home/comm.py", 5)])
        workspace = alloc(2, "model", "forward", "kind=workspace")
        gradient = alloc(11, "model.norm", "backward")
        r.free(alloc(1, "model.norm", "backward"))
        state = alloc(20, "", "optimizer")
        r.free(alloc(1, "", "optimizer"))
        alloc(4, "model", "forward")
        device = self.device(r.snapshot())
        self.assertEqual(self.groups(device, "kinds"),
                         {"parameters": 13 * MIB, "activations": 88 * MIB, "communication": 5 * MIB, "workspace": 2 * MIB,
                          "gradients": 11 * MIB, "optimizer state": 20 * MIB})
        self.assertEqual(self.groups(device, "modules")["model.layers.*.mlp"], 84 * MIB)
        self.assertEqual(self.groups(device, "phases"),
                         {"setup": 10 * MIB, "forward": 98 * MIB, "backward": 11 * MIB, "optimizer": 20 * MIB})
        for grouping, name in (("kind", "optimizer state"), ("module", "model.layers.*.mlp"), ("phase", "backward")):
            text = self.report(r, "--by", grouping)
            self.assertRegex(text, rf"(?m)^{grouping.upper()} +ALLOCATIONS")
            self.assertRegex(text, rf"(?m)^{re.escape(name)} ")
        self.assertRegex(self.report(r), r"(?m)^train.py:3 train +model.layers.\*.mlp +forward +12 84.00 MiB")
        self.assertEqual(len({*saved, gathered, workspace, gradient, state}), 16)

    def test_phases_of_frames(self):
        """Those of PyTorch: checkpointing, autograd's thread, optimizers of several projects."""
        torch = "/env/site-packages/torch/"
        forward = frame("forward", "/home/model.py", 4)
        engine = frame("_engine_run_backward", torch + "autograd/graph.py", 4)
        cases = [
            ([forward, frame("train", "/home/train.py", 3)], "forward"),
            ([forward, frame("recompute_fn", torch + "utils/checkpoint.py", 5), engine], "recompute"),
            ([forward, frame("backward", "/home/megatron/core/tensor_parallel/random.py", 5)], "recompute"),
            ([engine, frame("backward", torch + "utils/checkpoint.py", 5), engine], "backward"),
            ([frame("backward", "/home/function.py", 4)], "backward"),
            ([], "backward"),
            ([frame("step", "/env/apex/optimizers/fused_adam.py", 4)], "optimizer"),
            ([frame("clip_grad_norm_", torch + "nn/utils/clip_grad.py", 4)], "optimizer"),
            ([frame("__init__", torch + "nn/modules/linear.py", 4), frame("build", "/home/optimal.py", 3)], "setup"),
            ([frame("__init__", "/home/cache.py", 4), forward], "forward"),
        ]
        for frames, phase in cases:
            recording = Recording()
            recording.free(recording.alloc(512, frames=[forward]))
            recording.alloc(MIB, frames=frames)
            self.assertEqual(self.groups(self.device(recording.snapshot()), "phases"), {phase: MIB}, frames)
        silent = Recording() # no frames at all: nothing is known
        silent.alloc(MIB, frames=[])
        device = self.device(silent.snapshot())
        self.assertEqual((self.groups(device, "phases"), self.groups(device, "kinds")), ({"unknown": MIB}, {"unknown": MIB}))

    def test_file_without_events(self):
        """The others are answered; exit code 2 says that one is not."""
        model = Model(4)
        for _ in range(3):
            model.step()
        good = model.rec.snapshot()
        self.write(good, "good.pickle")
        self.write({**good, "device_traces": [[]]}, "empty.pickle")
        self.write({"segments": []}, "other.pickle")
        alone = self.run_step("good.pickle")
        self.assertEqual(alone.returncode, 0, alone.stderr)
        for files in (("empty.pickle", "good.pickle"), ("good.pickle", "gone.pickle"), ("other.pickle", "good.pickle")):
            result = self.run_step(*files)
            self.assertEqual((result.returncode, result.stdout), (2, alone.stdout))
            (bad,) = set(files) - {"good.pickle"}
            self.assertRegex(result.stderr, rf"^bucketpool: {bad}: .*\n$")
        result = self.run_step("empty.pickle", "good.pickle", "other.pickle", "good.pickle", "--json")
        self.assertEqual((result.returncode, len(json.loads(result.stdout)["devices"])), (2, 2))
        self.assertEqual(len(result.stderr.splitlines()), 2)
        self.assertEqual(self.run_step("empty.pickle", "other.pickle").stdout, "")
        result = self.run_step("good.pickle", "empty.pickle", "-o", "plan.json")
        self.assertEqual(result.returncode, 2)
        self.assertIn("requires one device of one file, got 2", result.stderr)
        self.assertFalse(os.path.exists(os.path.join(self.folder, "plan.json")))

    def test_device_without_events(self):
        """PyTorch writes the moment of the snapshot for each device."""
        model = Model(4)
        for _ in range(3):
            model.step()
        good = model.rec.snapshot()
        good["device_traces"].append([{"action": "snapshot", "addr": 0, "size": 0, "stream": 0, "time_us": 9, "frames": []}])
        self.assertEqual(self.device(good)["device"], 0)

    def test_other_files(self):
        """Files of other tools are named, in `step` and in `view`."""
        model = Model(4)
        for _ in range(3):
            model.step()
        good = pickle.dumps(model.rec.snapshot(), 4)
        archive = io.BytesIO()
        with zipfile.ZipFile(archive, "w") as file:
            file.writestr("archive/data.pkl", good)
        with tarfile.open(os.path.join(self.folder, "x.tar"), "w") as file:
            file.add(TOOL, "x")
        with open(os.path.join(self.folder, "x.tar"), "rb") as file:
            tar = file.read(2048)
        database = sqlite3.connect(os.path.join(self.folder, "x.db"))
        database.execute("create table kernels (name text)")
        database.commit()
        database.close()
        with open(os.path.join(self.folder, "x.db"), "rb") as file:
            nsight = file.read()
        for name, data, words in (
            ("x.pickle.gz", gzip.compress(good), "x.pickle.gz: compressed with gzip; gunzip it first"),
            ("x.pickle", lzma.compress(good), "compressed with xz"),
            ("x.pickle", bz2.compress(good), "compressed with bzip2"),
            ("x.pickle", b"\x28\xb5\x2f\xfd" + good, "compressed with zstd"),
            ("x.pt", archive.getvalue(), "a zip archive"),
            ("x.tar", tar, "a tar archive"),
            ("x.sqlite", nsight, "an SQLite database"),
            ("x.nsys-rep", b"\x01\x02\x03binary", "a report of Nsight Systems"),
            ("x.json", b'{\n  "schemaVersion": 1,\n  "traceEvents": []}', "a Chrome trace"),
            ("x.json", b'[{"ph": "X", "ts": 1, "name": "gemm"}]', "a Chrome trace"),
            ("x.json", b'{"format": "bucketpool.plan/1", "slabs": []}', "a document bucketpool.plan/1"),
            ("x.json", b'{"name": "something else"}', "a JSON document"),
            ("x.html", b"\n<!DOCTYPE html>\n<html></html>", "a page"),
            ("x.npy", b"\x93NUMPY\x01\x00", "an array of NumPy"),
        ):
            with open(os.path.join(self.folder, name), "wb") as file:
                file.write(data)
            for command in ("step", "view"):
                result = subprocess.run([TOOL, command, name], capture_output=True, text=True, cwd=self.folder, check=False)
                self.refused(result, 2, f"{name}: ", words)

    def test_snapshot_of_pools(self):
        with open(os.path.join(self.folder, "pools.pickle"), "wb") as file:
            pickle.dump(snapshots.ours(), file, 2)
        self.refused(self.run_step("pools.pickle"), 2, "a snapshot of bucketpool's pools; use `bucketpool view`")

    def test_directory(self):
        model = Model(4)
        for _ in range(3):
            model.step()
        os.makedirs(os.path.join(self.folder, "d/rank"))
        self.refused(self.run_step("d"), 2, "d: a directory without snapshots, but with directories (rank)")
        self.refused(self.run_step("d/rank"), 2, "d/rank: an empty directory")
        for name in ("b.pickle", "a.pickle"):
            self.write(model.rec.snapshot(), f"d/{name}")
        both = self.run_step("d/a.pickle", "d/b.pickle")
        result = self.run_step("d/")
        self.assertEqual((result.returncode, result.stdout), (0, both.stdout))
        with open(os.path.join(self.folder, "d/notes.txt"), "w", encoding="utf-8") as file:
            file.write("x")
        self.refused(self.run_step("d"), 2, "d: a directory with snapshots (a.pickle, b.pickle) and other files (notes.txt)")

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
        for grouping in ("place", "module", "phase", "kind"):
            self.assertEqual(self.run_step("x.pickle", "--plot", "x.svg", "--by", grouping).returncode, 0)

    def test_mistakes(self):
        model = Model(4)
        for _ in range(3):
            model.step()
        good = model.rec.snapshot()
        refusals = [
            ({}, "expected \"segments\" and \"device_traces\""),
            ({**good, "device_traces": 5}, "no recorded allocations"),
            ({**good, "device_traces": [[]]}, "no recorded allocations"),
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
