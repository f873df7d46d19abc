# SPDX-License-Identifier: Apache-2.0
"""`bucketpool run` while clocks jump, stand still, fail and overflow: it ends, and no time that it prints or writes is negative.

Arguments: source directory, the bucketpool executable, the preloaded library of clocks (wrong_clock.c).
"""

import json
import os
import subprocess
import sys
import tempfile
import unittest

ROOT, TOOL, CLOCKS = sys.argv[1], os.path.abspath(sys.argv[2]), os.path.abspath(sys.argv[3])
MODEL = os.path.join(os.path.abspath(ROOT), "examples", "models", "Llama-3.1-8B")


def numbers(value):
    """All numbers of a document."""
    if isinstance(value, (dict, list)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from numbers(item)
    elif isinstance(value, (int, float)):
        yield value


class Clocks(unittest.TestCase):
    def test_run(self):
        for mode in ("", "jumps", "still", "fails", "late"):
            with self.subTest(mode), tempfile.TemporaryDirectory() as folder:
                environment = {**os.environ, "WRONG_CLOCK": mode, "LD_PRELOAD": CLOCKS, "BUCKETPOOL_PROGRESS": "0.01"}
                made = subprocess.run([TOOL, "run", "--device=null", "--steps=3", "--json", "--profile", folder, MODEL], env=environment,
                                      capture_output=True, text=True, timeout=120, check=False)
                self.assertEqual(made.returncode, 0, made.stderr)
                self.assertGreaterEqual(min(numbers(json.loads(made.stdout))), 0)
                self.assertNotRegex(made.stderr.replace("Llama-3.1-8B", ""), r"-\d|nan|inf")
                with open(os.path.join(folder, "step_1", "trace_rank00.json"), encoding="utf-8") as file:
                    events = json.load(file)["traceEvents"]
                self.assertGreater(len(events), 100)
                for event in events:
                    self.assertGreaterEqual(event.get("dur", 0), 0, event)
                    self.assertLess(event.get("dur", 0), 120e6, event)  # microseconds


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
