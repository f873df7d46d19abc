# SPDX-License-Identifier: Apache-2.0
"""Snapshots of chosen steps: file names, contents, limits, failures, and the step that is open at exit."""

import json
import os
import pickle
import tempfile
import unittest

import bucketpool as bp
from support import Served, run_python


def files(folder):
    return sorted(os.path.relpath(os.path.join(where, name), folder) for where, _, names in os.walk(folder)
                  for name in names)


def content(*path):
    with open(os.path.join(*path), "rb") as file:
        return pickle.load(file)["bucketpool"]


class Profiles(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def train(self, served, takes=3):
        for turn in range(takes):
            served.take(turn % 5).release()

    def test_steps_and_names(self):
        served = Served()
        with bp.Profile(served.pool, [1, 3], self.folder, rank=7, ranks=300, coordinates="p0d1c0t1",
                        formats=["pickle", "trace"], plans=served.plan) as profile:
            for step in range(5):
                profile.step(step)
                self.assertEqual(profile.recording, step in (1, 3))
                self.train(served)
            self.assertTrue(profile.pickle_path.endswith("step_3/snapshot_rank007_p0d1c0t1.pickle"))
            self.assertTrue(profile.trace_path.endswith("step_3/trace_rank007_p0d1c0t1.json"))
        self.assertEqual(files(self.folder), [
            f"step_{step}/{kind}_rank007_p0d1c0t1.{ending}" for step in (1, 3)
            for kind, ending in (("snapshot", "pickle"), ("trace", "json"))
        ])
        one = content(self.folder, "step_3", "snapshot_rank007_p0d1c0t1.pickle")
        self.assertEqual((one["rank"], one["ranks"], one["step"], len(one["pools"][0]["events"])), (7, 300, 3, 6))
        self.assertEqual(one["pools"][0]["plan"]["bytes"], served.plan.bytes)
        with open(os.path.join(self.folder, "step_1", "trace_rank007_p0d1c0t1.json"), encoding="utf-8") as file:
            self.assertEqual(json.load(file)["otherData"]["step"], 1)

    def test_default_steps(self):
        served = Served()
        with bp.Profile([served.pool], directory=self.folder) as profile:
            for step in range(4):
                profile.step(step)
        self.assertEqual(files(self.folder), ["step_0/snapshot_rank00.pickle", "step_1/snapshot_rank00.pickle"])

    def test_max_entries(self):
        """The ring keeps the newest events; the file says how many are lost."""
        served, sizes = Served(), []
        for most in (16, 1024):
            with bp.Profile(served.pool, [0], self.folder, max_entries=most) as profile:
                profile.step(0)
                self.train(served, 200)
            pool = content(profile_path(self.folder))["pools"][0]
            self.assertEqual(len(pool["events"]) + pool["lost_events"], 400)
            self.assertEqual(len(pool["events"]), min(most, 400))
            sizes.append(os.path.getsize(profile_path(self.folder)))
        self.assertLess(sizes[0] * 3, sizes[1])

    def test_by_hand(self):
        served, other = Served(), Served()
        path = os.path.join(self.folder, "now.pickle")
        with bp.Profile([served.pool, other.pool], (), self.folder) as profile:
            profile.step(0)
            self.assertFalse(profile.recording)
            profile.start("evaluation")
            self.assertRaises(bp.ScheduleError, profile.start, "again")
            self.train(other)
            profile.write(path)
            profile.stop()
            self.assertRaises(bp.ScheduleError, profile.stop)
        self.assertEqual([len(pool["events"]) for pool in content(path)["pools"]], [0, 6])
        self.assertEqual(content(self.folder, "evaluation", "snapshot_rank00.pickle")["label"], "evaluation")

    def test_chosen_ranks(self):
        served = Served()
        for ranks, recorded in (([0, 5], False), ([1], True), ([], False), (None, True)):
            with bp.Profile(served.pool, [0], self.folder, rank=1, ranks=8, record_ranks=ranks) as profile:
                profile.step(0)
                self.assertEqual(profile.recording, recorded)

    def test_failures(self):
        """A file that cannot be written is an error of its step; the next one is recorded."""
        served, wall = Served(), os.path.join(self.folder, "wall")
        open(wall, "w").close()
        profile = bp.Profile(served.pool, [0, 1, 2], wall)
        profile.step(0)
        with self.assertRaises(bp.FileError) as caught:
            profile.step(1)
        self.assertIn("wall", str(caught.exception))
        self.assertTrue(profile.recording)
        os.remove(wall)
        profile.step(2)
        self.assertRaises(bp.ScheduleError, bp.Profile, served.pool)
        profile.close()
        profile.close()
        self.assertEqual(files(wall), ["step_1/snapshot_rank00.pickle", "step_2/snapshot_rank00.pickle"])
        self.assertRaises(bp.InvalidArgument, profile.step, 3)
        for options in (dict(max_entries=-1), dict(max_entries=1 << 31), dict(rank=2, ranks=2), dict(steps=[-1]),
                        dict(coordinates="a/b"), dict(formats=["svg"]), dict(plans=[served.plan] * 2),
                        dict(directory="a\0b"), dict(record_ranks=[1 << 32])):
            with self.assertRaises(bp.InvalidArgument, msg=options):
                bp.Profile(served.pool, **options)
        self.assertRaises(bp.InvalidArgument, bp.Profile, [served.pool, served.pool])

    def test_lifetimes(self):
        """The pool's memory stays until the profile is closed, which writes the open step."""
        served = Served()
        profile = bp.Profile(served.pool, [0], self.folder)
        profile.step(0)
        self.train(served)
        served.pool.close()
        self.assertGreater(served.device.usage.committed_bytes, 0)
        profile.close()
        self.assertEqual(served.device.usage.committed_bytes, 0)
        self.assertEqual(len(content(profile_path(self.folder))["pools"][0]["events"]), 6)

    def test_exit(self):
        """The open step is written when the interpreter exits, also after an exception."""
        done = run_python("""
            import sys
            import bucketpool as bp
            from support import Served

            served = Served()
            profile = bp.Profile(served.pool, [0], sys.argv[1])
            profile.step(0)
            served.take(0).release()
            raise SystemExit(9)
        """, self.folder)
        self.assertEqual(done.returncode, 9, done.stderr)
        self.assertEqual(len(content(profile_path(self.folder))["pools"][0]["events"]), 2)


def profile_path(folder):
    return os.path.join(folder, "step_0", "snapshot_rank00.pickle")


if __name__ == "__main__":
    unittest.main()
