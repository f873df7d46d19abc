"""Every rule of tests/fakes/cuda/rules.h has a function that holds on the emulated driver, found as programs find a driver.

Arguments: source directory, the program, the emulated driver's library, the one with its kernels."""

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
    return subprocess.run([PROGRAM, *arguments], env=environment, capture_output=True, text=True, timeout=240, check=False)


class Rules(unittest.TestCase):
    def hold(self, arguments, **settings):
        answer = run(arguments, **settings)
        ids = rules()
        self.assertGreater(len(ids), 60)
        self.assertEqual(answer.stdout.split("\n"), [f"ok {id}" for id in ids] + [""], answer.stderr)
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

    def test_a_broken_rule_is_told(self):
        answer = run(["--driver", LIBRARY, "--rule", "streams_run_in_order"], FAKE_CUDA="fail=cuMemcpyAsync:2:719")
        self.assertIn("failed streams_run_in_order", answer.stdout)
        self.assertIn("CUDA_ERROR_LAUNCH_FAILED", answer.stdout)
        self.assertEqual(answer.returncode, 1)

    def test_settings_that_do_not_exist(self):
        for setting in ("colour=blue", "devices", "fail=cuNothing:1:1", "attribute=1000:1", "kernels=/nowhere.so"):
            answer = run(["--driver", LIBRARY], FAKE_CUDA=setting)
            self.assertLess(answer.returncode, 0, setting)
            self.assertIn("FAKE_CUDA: ", answer.stderr)

    def test_the_report(self):
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
