# SPDX-License-Identifier: Apache-2.0
"""MPI ranks that stop: the others report them by number within the time-out, and end. Arguments: mpirun.sh, the
program.
"""

import os
import re
import subprocess
import sys
import tempfile
import unittest

MPIRUN, PROGRAM = sys.argv[1:3]
RANKS = 4
TIMEOUT = 2.0  # of the program
AFTER = 30.0  # a busy machine
LINE = re.compile(r"rank (\d): (\w+): (.*?) after ([0-9.]+) s: (.*)")


class Timeouts(unittest.TestCase):
    def run_case(self, what, survivors=3, environment=None):
        """The lines of each rank, by rank and step: status, seconds, words. Processes end without MPI_Finalize, so
        mpirun treats the job as failed and kills the stopped ranks."""
        with tempfile.TemporaryDirectory() as folder:
            run = subprocess.run([MPIRUN, str(RANKS), PROGRAM, what, folder, str(survivors)], capture_output=True,
                                 text=True, check=False, timeout=600, env={**os.environ, **(environment or {})})
        steps = {}
        for rank, step, status, seconds, words in LINE.findall(run.stdout):
            steps[int(rank), step] = (status, float(seconds), words)
        self.assertTrue(steps, run.stdout + run.stderr)
        return steps

    def check(self, what, missing, agreement):
        steps = self.run_case(what, RANKS - len(missing))
        here = [rank for rank in range(RANKS) if rank not in missing]
        self.assertEqual(sorted(steps), sorted((rank, step) for rank in here for step in ("first", "second", "end")),
                         steps)
        names = f"rank{'s' if len(missing) > 1 else ''} {', '.join(map(str, missing))} of 4 ha"
        for rank in here:
            status, seconds, words = steps[rank, "first"]
            self.assertEqual(status, "timed out", words)
            self.assertTrue(TIMEOUT <= seconds < TIMEOUT + AFTER, seconds)
            self.assertTrue(words.startswith(f"{agreement} over communicator mpi: {names}"), words)
            self.assertIn("not answered within 2 s; ", words)
            again, at_once, same_words = steps[rank, "second"]
            self.assertEqual((again, same_words), (status, f"bp_comm_exchange: communicator mpi is broken: {words}"))
            self.assertLess(at_once, TIMEOUT / 2)
            self.assertEqual(steps[rank, "end"][0], "ok")
            self.assertLess(steps[rank, "end"][1], AFTER)

    def test_stopped_rank(self):
        self.check("stopped", [2], "bp_comm_exchange")

    def test_two_stopped_ranks(self):
        self.check("two", [0, 2], "bp_comm_exchange")

    def test_exchange_in_pieces(self):
        self.check("large", [2], "bp_comm_exchange")

    def test_registration(self):
        self.check("registration", [2], "agreement on the plan to register")

    def test_time_out_set_on_one_rank(self):
        self.check("shortest", [2], "bp_comm_exchange")

    def test_communicator_creation(self):
        steps = self.run_case("creation")
        self.assertEqual(sorted(steps), [(rank, "creation") for rank in (0, 1, 3)], steps)
        for status, seconds, words in steps.values():
            self.assertEqual(status, "timed out", words)
            self.assertTrue(TIMEOUT <= seconds < TIMEOUT + AFTER, seconds)
            self.assertIn("not all ranks created the communicator within 2 s", words)

    def test_environment_variable(self):
        """The default time-out of programs that set none; other values than numbers are refused."""
        steps = self.run_case("environment", environment={"BUCKETPOOL_COMM_TIMEOUT": "2"})
        self.assertEqual(sorted(rank for rank, step in steps if step == "first"), [0, 1, 3])
        for rank in (0, 1, 3):
            self.assertEqual(steps[rank, "first"][0], "timed out", steps)
        for wrong in ("2s", "-1", "1e3"):
            for status, _, words in self.run_case("environment",
                                                  environment={"BUCKETPOOL_COMM_TIMEOUT": wrong}).values():
                self.assertEqual(status, "invalid argument")
                self.assertIn(f'expected seconds in [0, 1000000] (0: no time-out), got "{wrong}"', words)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
