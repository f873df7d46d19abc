# SPDX-License-Identifier: Apache-2.0
"""Eight ranks write at once: every file exists, is complete and keeps the rules. Arguments: mpirun.sh, the program, the
folder of check_snapshot.py.
"""

import os
import subprocess
import sys
import tempfile
import unittest

MPIRUN, PROGRAM, CHECKER = sys.argv[1:4]
RANKS = 8
sys.path.insert(0, CHECKER)

import check_snapshot as check  # noqa: E402


class Ranks(unittest.TestCase):
    def test_all_files(self):
        with tempfile.TemporaryDirectory() as folder:
            run = subprocess.run([MPIRUN, str(RANKS), PROGRAM, folder], capture_output=True, text=True, check=False)
            if run.returncode == 77:
                self.skipTest(run.stdout)
            self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
            top = os.path.join(folder, "not/yet/there")
            self.assertEqual(sorted(os.listdir(top)), ["step_0", "step_1"])
            for step in range(2):
                path = os.path.join(top, f"step_{step}")
                names = [f"{kind}_rank0{rank}_d{rank // 2}t{rank % 2}.{ending}" for rank in range(RANKS)
                         for kind, ending in (("snapshot", "pickle"), ("trace", "json"))]
                self.assertEqual(sorted(os.listdir(path)), sorted(names))
                for rank in range(RANKS):
                    self.check_rank(path, step, rank)

    def check_rank(self, path, step, rank):
        stem = f"rank0{rank}_d{rank // 2}t{rank % 2}"
        with open(os.path.join(path, f"snapshot_{stem}.pickle"), "rb") as file:
            snapshot = check.check_pickle(file.read())
        with open(os.path.join(path, f"trace_{stem}.json"), "rb") as file:
            trace = check.check_trace(file.read(), snapshot)
        ours = snapshot["bucketpool"]
        self.assertEqual((ours["rank"], ours["ranks"], ours["coordinates"], ours["step"]),
                         (rank, RANKS, stem[7:], step))
        self.assertGreater(len(ours["pools"][0]["events"]), 20)
        self.assertEqual(trace["otherData"]["step"], step)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
