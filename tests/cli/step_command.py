# SPDX-License-Identifier: Apache-2.0
"""`bucketpool step` for its tests: runs, and checks of its documents from the events. Arguments: source directory, the executable."""

import json
import os
import pickle
import subprocess
import sys

from answers import InFolder
from recordings import rounded

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


class StepCommand(InFolder):
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

    def report(self, recording, *options):
        result = self.run_step(self.write(recording.snapshot()), *options)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result.stdout

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
        self.assertEqual(plan["format"], "bucketpool.step_plan/1")
        self.assertEqual(plan["bytes"], device["plan"]["step_bytes"])
        live, checked = {}, 0
        kinds = [kind for kind in plan["kinds"] if not kind["first"]]
        for step in device["steps"]:
            kind = kinds[step["kind"]] if step["kind"] < len(kinds) else {"item_bytes": []}
            whole, order = step["matched"] == step["allocations"] == len(kind["item_bytes"]), 0
            for event in recording.events[step["begin_event"]:step["end_event"]]:
                if event["action"] == "free_completed":
                    live.pop(event["addr"], None)
                if event["action"] != "alloc" or not whole:
                    continue
                self.assertEqual((kind["item_bytes"][order], plan["streams"][kind["item_streams"][order]]),
                                 (event["size"], event["stream"]))
                begin = kind["offsets"][order]
                if begin is not None:
                    end = begin + rounded(event["size"])
                    self.assertLessEqual(end, plan["bytes"])
                    self.assertTrue(all(end <= low or high <= begin for low, high in live.values()), (step, order))
                    live[event["addr"]] = (begin, end)
                    checked += 1
                order += 1
        return checked

    def steps_of(self, recording):
        device = self.device(recording.snapshot())
        self.assertEqual((device["peak_bytes"], device["peak_event"]), peak_of(recording.events))
        return device["steps_from"], len(device["steps"]), device["steps_peak_bytes"]

    def groups(self, device, names):
        return {each[names[:-1]]: each["bytes"] for each in device[names]}
