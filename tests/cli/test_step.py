# SPDX-License-Identifier: Apache-2.0
"""`bucketpool step`: recorded training steps as PyTorch writes them. What is printed is computed here again from the
events, and each plan is checked against all recorded steps, event by event.

Arguments: source directory, the bucketpool executable.
"""

import bz2
import gzip
import json
import os
import resource
import pickle
import random
import subprocess
import sys
import unittest

from recordings import Model, Recording, rounded
from step_command import MIB, ROOT, TOOL, StepCommand, peak_of


class Steps(StepCommand):
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
            self.assertEqual(device["plan"]["total_bytes"] - device["plan"]["windows_bytes"], device["peak_bytes"])
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
        self.assertIn('1 event of unknown kinds ("teleport")', self.run_step("x.pickle").stdout)

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

    def test_empty_allocations(self):
        model = Model(4)
        for _ in range(4):
            model.step()
            model.rec.free(model.rec.alloc(0, place="backward"))
        device = self.device(model.rec.snapshot())
        self.assertEqual(self.run_step("x.pickle", "-o", "plan.json").returncode, 0)
        self.assertEqual(self.check_plan(model.rec, device) > 0, True)

    def plan(self, recording, *options):
        result = self.run_step(self.write(recording.snapshot()), "-o", "plan.json", *options)
        self.assertEqual(result.returncode, 0, result.stderr)
        with open(os.path.join(self.folder, "plan.json"), encoding="utf-8") as file:
            return json.load(file)

    def test_streams(self):
        """Windows of another stream's memory, and waits where memory changes streams."""
        recording = Recording()
        for step in range(4):
            recording.mark(f"step {step}")
            for _ in range(3):
                gathered = recording.alloc(4096, stream=7)
                saved = recording.alloc(1024)
                recording.free(gathered)
                output = recording.alloc(3072)
                recording.free(saved)
                recording.free(output)
        text = self.report(recording, "--lead", "3")
        self.assertRegex(text, r"\n  step +7.000 KiB .*optimal.*\n    windows +2.000 KiB .* of it, so that other streams need not wait\n")
        device = self.device(recording.snapshot(), "--lead", "3")
        self.assertEqual((device["plan"]["step_bytes"], device["plan"]["windows_bytes"]), (7168, 2048))
        self.assertEqual(self.device(recording.snapshot())["plan"]["windows_bytes"], 0)  # they would cost more than 2 %
        text = self.report(recording, "--lead", "0")
        self.assertIn("Waits of a step, where memory changes streams: 3 of stream 7 for 0, 3 of stream 0 for 7\n", text)
        device = self.device(recording.snapshot(), "--lead", "0")
        self.assertEqual((device["plan"]["step_bytes"], device["plan"]["windows_bytes"]), (5120, 0))
        self.assertEqual(device["plan"]["waits"],
                         [{"waiting": 7, "before": 0, "waits": 3}, {"waiting": 0, "before": 7, "waits": 3}])
        plan = self.plan(recording, "--lead", "0")
        self.assertEqual(plan["streams"], [7, 0])
        self.assertEqual(plan["waits"],
                         [{"waiting": 0, "before": 1, "waits": 3}, {"waiting": 1, "before": 0, "waits": 3}])
        self.assertEqual(plan["places"], ["ops.py:7 empty"])

    def test_many_streams(self):
        recording = Recording()
        for step in range(4):
            recording.mark(f"step {step}")
            for stream in range(33):
                recording.free(recording.alloc(MIB, stream=stream))
        text = self.report(recording)
        self.assertIn("Not planned: 33 streams; a plan has 32 at most.\n", text)
        self.assertNotIn("\nplanned ", text)
        self.assertNotIn("Warning", text)
        self.refused(self.run_step("x.pickle", "-o", "plan.json"), 2, "-o: the recording has 33 streams")
        device = self.device(recording.snapshot())
        self.assertEqual((device["steps_peak_bytes"], device["plan"]["kinds"]), (MIB, []))

    def test_late_frees(self):
        """record_stream delays the completion of a free; a plan uses the memory from the request on."""
        recording = Recording()
        for step in range(4):
            recording.mark(f"step {step}")
            first = recording.alloc(10 * MIB)
            recording.request_free(first)
            second = recording.alloc(10 * MIB)
            recording.complete_free(first)
            recording.free(second)
        device = self.device(recording.snapshot())
        self.assertEqual((device["peak_bytes"], device["steps_peak_bytes"]), (20 * MIB, 20 * MIB))
        self.assertEqual((device["plan"]["total_bytes"], device["plan"]["step_bytes"]), (10 * MIB, 10 * MIB))
        self.assertIn("The plan takes less than was live: ", self.report(recording))

    def test_ends_of_optimizers(self):
        """In marked steps, and without other marks, where steps begin behind them."""
        for marks in ("ProfilerStep#{}", None):
            model = Model(3, layers=4)
            for step in range(5):
                if marks:
                    model.rec.mark(marks.format(step))
                model.step()
                model.rec.mark("Optimizer.step#AdamW.step")
                model.rec.free(model.rec.alloc(512))
                model.rec.mark("Optimizer.step#AdamW.step", "END")
                if marks:
                    model.rec.free(model.rec.alloc(1024))
            plan = self.plan(model.rec)
            self.assertEqual([kind["first"] for kind in plan["kinds"]], [False, True])
            steady, first = plan["kinds"]
            count = len(steady["offsets"])
            self.assertEqual(steady["marks"], [count - 1] if marks else [0])
            # The first step makes the optimizer's state, which stays, behind the model.
            self.assertEqual(len(first["offsets"]), count + 2 * 4)
            self.assertEqual(first["marks"], [count + 2 * 4 - 1] if marks else [])
            self.assertEqual(first["offsets"].count(None), 2 * 4)
            self.assertEqual(first["steps"], 1)
            self.assertEqual(steady["offsets"].count(None), 0)
            self.assertEqual(steady["steps"], 4)

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
        self.assertEqual(result.returncode, 0, result.stderr)
        with open(os.path.join(self.folder, "x.svg"), encoding="utf-8") as file:
            self.assertIn("<svg", file.read())
        for grouping in ("place", "module", "phase", "kind"):
            self.assertEqual(self.run_step("x.pickle", "--plot", "x.svg", "--by", grouping).returncode, 0)

    def test_sizes_beyond_devices(self):
        """Above the addresses that an expandable segment reserves, 1.125 TiB for an unknown device."""
        block = {"address": 4096, "size": 32 << 20, "state": "active_allocated"}
        segment = {"address": 4096, "total_size": 32 << 20, "device": 0, "stream": 0, "segment_type": "large",
                   "is_expandable": False}
        for size in (2**40, 9 * 2**37, 9 * 2**37 + 1, 2**41, 2**50, 2**60 - 1):
            event = {"action": "alloc", "addr": 4096, "size": 512, "stream": 0, "frames": []}
            large = {**event, "addr": 2**40, "size": size}
            self.write({"segments": [], "device_traces": [[event, large, {**large, "action": "free_completed"}]]})
            result = self.run_step("x.pickle", "--json")
            self.assertEqual(result.returncode, 0, result.stderr)
            reserved = json.loads(result.stdout)["devices"][0]["expandable_bytes"]
            self.assertTrue(size <= reserved <= size + (22 << 20), (size, reserved))  # a page of each size
            for address in (4096, 2**39):
                self.write({"segments": [{**segment, "blocks": [{**block, "requested_size": size}]}],
                            "device_traces": [[{**event, "addr": address}]]})
                self.assertIn(self.run_step("x.pickle").returncode, (0, 2))

    def test_chosen_addresses(self):
        """Addresses that collide in a table with a known multiplicative hash take no longer than others."""
        inverse = pow(0x9E3779B97F4A7C15, -1, 2**64)
        spent = []
        for address in (lambda n: 4096 * n, lambda n: inverse * n % 2**64):
            places = [a for a in map(address, range(1, 60000)) if a < 2**64 - 512]
            event = {"action": "alloc", "size": 512, "stream": 0, "frames": []}
            self.write({"segments": [], "device_traces": [[{**event, "addr": a} for a in places]]})
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            self.assertEqual(self.run_step("x.pickle").returncode, 0)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            spent.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        self.assertLess(spent[1], 5 * spent[0] + 0.5)  # 7 s instead of 0.2 without a key of the process

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
            ({**good, "device_traces": [[{"action": "alloc", "addr": 0, "size": 1 << 60}]]}, "PyTorch refuses 1 EiB"),
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
