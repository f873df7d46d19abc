# SPDX-License-Identifier: Apache-2.0
"""Every rule of tests/fakes/cuda/rules.h has a function that holds on the emulated driver, found as programs find a
driver.

Arguments: source directory, the program, the emulated driver's library, the one with its kernels.
"""

import os
import re
import subprocess
import sys
import unittest

ROOT, PROGRAM, LIBRARY, KERNELS = sys.argv[1:5]


def rules():
    with open(os.path.join(ROOT, "tests/fakes/cuda/rules.h"), encoding="utf-8") as file:
        text = file.read()
    block = text[text.index("#define BP_CUDA_RULES"):text.index("clang-format on")]
    return re.findall(r"^    X\((\w+),", block, re.MULTILINE)


def run(arguments, **settings):
    environment = dict(os.environ, **settings)
    return subprocess.run([PROGRAM, *arguments], env=environment, capture_output=True, text=True, timeout=600,
                          check=False)


class Rules(unittest.TestCase):
    def hold(self, arguments, **settings):
        answer = run(arguments, **settings)
        ids = rules()
        self.assertGreater(len(ids), 60)
        self.assertEqual(
            answer.stdout.splitlines(),
            [f"ok {id}" for id in ids] + [f"{len(ids)} hold, 0 differ, 0 fail, 0 skipped"],
            answer.stderr,
        )
        self.assertEqual(answer.returncode, 0)

    def test_by_path(self):
        self.hold(["--driver", LIBRARY], FAKE_CUDA=f"devices=2,kernels={KERNELS}")

    def test_by_name_with_delays(self):
        self.hold(["--driver", "libcuda.so.1"], LD_LIBRARY_PATH=os.path.dirname(LIBRARY),
                  FAKE_CUDA="devices=2,delay_us=300,seed=7,granularity=2m,memory=64m,version=12000,host_faults=1,"
                            f"kernels={KERNELS}")

    def test_without_kernels(self):
        answer = run(["--driver", LIBRARY, "--rule", "kernels_run_in_order"])
        self.assertIn("skipped kernels_run_in_order: the driver has no code", answer.stdout)
        self.assertEqual(answer.returncode, 0)

    def test_broken_rule(self):
        answer = run(["--driver", LIBRARY, "--rule", "streams_run_in_order"], FAKE_CUDA="fail=cuMemcpyAsync:2:719")
        self.assertIn("failed streams_run_in_order", answer.stdout)
        self.assertIn("CUDA_ERROR_LAUNCH_FAILED", answer.stdout)
        self.assertEqual(answer.returncode, 1)

    def test_inferred_rule(self):
        rule = ["--driver", LIBRARY, "--rule", "reservations_hold_mappings"]
        forgets = {"FAKE_CUDA": "fail=cuMemAddressFree:1:-1"}  # answers success
        answer = run([*rule, "--real"], **forgets)
        first, last = answer.stdout.splitlines()
        self.assertRegex(
            first, r"^differs reservations_hold_mappings: .*cuMemAddressFree.* \(Freeing a reservation that contains"
        )
        self.assertEqual(last, "0 hold, 1 differ, 0 fail, 0 skipped")
        self.assertEqual(answer.returncode, 0)
        answer = run(rule, **forgets)
        self.assertIn("failed reservations_hold_mappings: ", answer.stdout)
        self.assertEqual(answer.returncode, 1)

    def test_written_rule(self):
        answer = run(["--driver", LIBRARY, "--real", "--rule", "streams_run_in_order"],
                     FAKE_CUDA="fail=cuMemcpyAsync:2:719")
        self.assertIn("failed streams_run_in_order: ", answer.stdout)
        self.assertEqual(answer.stdout.splitlines()[-1], "0 hold, 0 differ, 1 fail, 0 skipped")
        self.assertEqual(answer.returncode, 1)

    def test_broken_context(self):
        """The third rule finds no stream: the runner starts a process behind the second."""
        ids = rules()
        answer = run(["--driver", LIBRARY, "--real"], FAKE_CUDA=f"kernels={KERNELS},fail=cuStreamCreate:7:719")
        self.assertEqual(answer.returncode, 3, answer.stdout)
        lines = answer.stdout.splitlines()
        self.assertEqual(lines[:2], [f"ok {id}" for id in ids[:2]])
        self.assertRegex(lines[2], rf"^broken {ids[1]}: {ids[2]}: .*CUDA_ERROR_LAUNCH_FAILED")
        self.assertEqual(lines[3:], ["2 hold, 0 differ, 0 fail, 0 skipped"])
        answer = run(["--driver", LIBRARY, "--real", "--after", ids[1]], FAKE_CUDA=f"devices=2,kernels={KERNELS}")
        self.assertEqual(answer.stdout.splitlines()[:-1], [f"ok {id}" for id in ids[2:]])
        self.assertEqual(answer.returncode, 0)

    def test_initially_broken_context(self):
        """The first rule of a process fails, so that a runner does not start processes without end."""
        answer = run(["--driver", LIBRARY, "--real", "--after", rules()[0]], FAKE_CUDA="fail=cuStreamCreate:1:719")
        self.assertIn(f"failed {rules()[1]}: ", answer.stdout)
        self.assertEqual(answer.returncode, 1)

    def test_list_without_driver(self):
        answer = run(["--driver", "/nowhere/libcuda.so.1", "--list"])
        self.assertEqual((answer.stdout.splitlines(), answer.returncode), (rules(), 0))

    def test_wrong_arguments(self):
        for arguments, text in ((["--after", "nothing"], '--after: unknown rule "nothing"'),
                                (["--rule", "x"], '--rule: unknown rule "x"'),
                                (["--fast"], "unknown option --fast"), (["--rule"], "--rule requires a value")):
            answer = run(arguments)
            self.assertEqual(answer.returncode, 2)
            self.assertIn(text, answer.stderr)

    def test_doubtful_rules(self):
        with open(os.path.join(ROOT, "tests/fakes/cuda/rules.h"), encoding="utf-8") as file:
            text = file.read()
        for id in ("work_needs_a_context", "launches_need_a_context", "reservations_hold_mappings",
                   "captured_events_stay_inside", "free_waits_for_work", "events_are_made_in_captures"):
            row = re.search(rf"X\({id},.*?\)\s*\\?\s*$", text, re.MULTILINE | re.DOTALL).group(0)
            self.assertIn("inferred", row, id)

    def test_unknown_settings(self):
        for setting in ("colour=blue", "devices", "fail=cuNothing:1:1", "attribute=1000:1", "kernels=/nowhere.so"):
            answer = run(["--driver", LIBRARY], FAKE_CUDA=setting)
            self.assertLess(answer.returncode, 0, setting)
            self.assertIn("FAKE_CUDA: ", answer.stderr)

    def test_report(self):
        answer = run(["--driver", LIBRARY, "--rule", "streams_run_in_order"],
                     FAKE_CUDA="report=1,fail=cuStreamDestroy:1:719")
        self.assertIn("released with 1 objects", answer.stderr)
        self.assertEqual(answer.returncode, 1)

    def test_no_driver(self):
        answer = run(["--driver", "/nowhere/libcuda.so.1"])
        self.assertEqual(answer.returncode, 77)
        self.assertIn("no CUDA driver", answer.stdout)
        self.assertEqual(run(["--driver", LIBRARY], FAKE_CUDA="devices=0").returncode, 77)


unittest.main(argv=sys.argv[:1])
