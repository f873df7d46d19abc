# SPDX-License-Identifier: Apache-2.0
"""The soak: a process that runs random rounds does not grow, whatever is killed beside it, and its criterion finds leaks.

Arguments: the program soak, the command, source directory, library of the emulated driver. BUCKETPOOL_SOAK_SECONDS: length of the run; unset:
a number of rounds, which takes some ten seconds.
"""

import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest

SOAK, COMMAND, SOURCES, DRIVER = sys.argv[1:5]
SECONDS = os.environ.get("BUCKETPOOL_SOAK_SECONDS", "")
ROUNDS = "700"
SEED = 1
MODEL = os.path.join(SOURCES, "examples", "models", "Qwen3-0.6B")
# In memory, where there is such a filesystem: rounds wait for no disk.
FOLDERS = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
STAGED = re.compile(r"\.bucketpool-")


def commands(folder, seed):
    """Processes to kill: another soak, and commands that write files."""
    plan = [COMMAND, "plan", MODEL, "-o", os.path.join(folder, "command.plan.json")]
    run = [COMMAND, "run", MODEL, "--scale", "4096", "--steps", "2", "--profile", os.path.join(folder, "snapshots")]
    return [[SOAK, SOURCES, folder, DRIVER, "1000000", "victim", str(seed)], plan, run]


def kill_group(process):
    """With its forked children. True if it was still running."""
    running = process.poll() is None
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()
    return running


class Soak(unittest.TestCase):
    def test_growth(self):
        dice, killed, ended = random.Random(SEED), 0, 0
        with tempfile.TemporaryDirectory(dir=FOLDERS) as folder:
            worker = subprocess.Popen([SOAK, SOURCES, folder, DRIVER, SECONDS + "s" if SECONDS else ROUNDS, "soak", str(SEED)])
            self.addCleanup(worker.kill)
            while worker.poll() is None:
                victim = subprocess.Popen(dice.choice(commands(folder, killed + 100)), start_new_session=True, stdout=subprocess.DEVNULL)
                time.sleep(dice.random() ** 2 * 0.4)
                if kill_group(victim):
                    killed += 1
                else:
                    ended += 1
                    self.assertEqual(victim.returncode, 0)
                time.sleep(dice.random() * 0.2)
            print(f"{killed} other processes killed, {ended} ended before", flush=True)
            self.assertEqual(worker.returncode, 0)
            self.assertGreater(killed, 5)
            for command in commands(folder, 0)[1:]:  # remove what the last killed process had begun to write
                subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            left = [os.path.join(path, name) for path, _, names in os.walk(folder) for name in names]
            self.assertEqual([name for name in left if STAGED.match(os.path.basename(name))], [])
            for name in left:
                if name.endswith(".json"):
                    with open(name, encoding="utf-8") as file:
                        json.load(file)

    def test_planted_leaks(self):
        with tempfile.TemporaryDirectory(dir=FOLDERS) as folder:
            result = subprocess.run([SOAK, SOURCES, folder, DRIVER, "500", "soak", "2", "heap,descriptor,thread,mapping,file"],
                                    capture_output=True, text=True, check=False)
        self.assertEqual(result.returncode, 1, result.stderr)
        grown = {line.split("  ")[0].rstrip() for line in result.stdout.splitlines() if line.endswith(" grows")}
        self.assertLessEqual({"heap KiB", "descriptors", "threads", "mappings", "files"}, grown, result.stdout)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
