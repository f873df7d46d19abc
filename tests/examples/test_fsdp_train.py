# SPDX-License-Identifier: Apache-2.0
"""The training loop: the same losses, bit by bit, for every policy and however slow its streams are; offloaded,
profiled, as CUDA graphs and registered; and the gradients of one process without shards.

Arguments: mpirun.sh, the program, "mpi" or "", folders of the emulated driver and NCCL or "", the kernels for them.
"""

import concurrent.futures
import glob
import os
import pickle
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

MPIRUN, PROGRAM, MPI, FAKES, KERNELS = sys.argv[1:6]
PROGRAM, KERNELS = map(os.path.abspath, (PROGRAM, KERNELS))
BUILT_WITH_MPI = bool(MPI)
MPI = BUILT_WITH_MPI and shutil.which("mpirun")
EXAMPLES_MPI = os.path.join(os.path.dirname(MPIRUN), "..", "..", "examples", "mpi")
BRIEF = bool(os.environ.get("BUCKETPOOL_BRIEF"))
RANKS = (1, 2, 4) if MPI else (1,)
STEPS = 4
LOSS = re.compile(r"step (\d+) loss (\S+) (\d+\.\d{16})")


def start(ranks, *options, seconds=300, **environment):
    command = [PROGRAM, *map(str, options)] if ranks == 1 else [MPIRUN, str(ranks), PROGRAM, *map(str, options)]
    return subprocess.run(command, capture_output=True, text=True, timeout=seconds, env={**os.environ, **environment})


def on_cuda(*options, faults=True):
    """The emulated NCCL touches memory of the device from the host."""
    fake = f"kernels={KERNELS},report=1,delay_us=10,host_faults={int(faults)}"
    path = ":".join(filter(None, (FAKES, os.environ.get("LD_LIBRARY_PATH"))))
    return start(1, "--device", "cuda", *options, LD_LIBRARY_PATH=path, FAKE_CUDA=fake)


class FsdpTrain(unittest.TestCase):
    def losses(self, result):
        """The lines of the steps, as printed."""
        # MPI may have words about the machine
        own = [line for line in result.stderr.splitlines() if "fsdp_train" in line]
        self.assertEqual((result.returncode, own), (0, []), result.args)
        return [line for line in result.stdout.splitlines() if line.startswith("step ")]

    def run_all(self, cases):
        """Results of (ranks, options), in order; starting processes is mostly waiting."""
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            return list(pool.map(lambda case: start(case[0], *case[1]), cases))

    def check_peak(self, result, policy):
        peak, planned, bound = map(int, re.search(rf"^pool {policy}: peak (\d+) bytes, planned (\d+), bound (\d+),",
                                                  result.stdout, re.MULTILINE).groups())
        self.assertEqual(peak, planned)
        self.assertGreaterEqual(planned, bound)
        return planned

    def test_losses_of_all_modes(self):
        with tempfile.TemporaryDirectory() as folder:
            ways = [("scheduled", "--check-gradients"), ("fixed", "--slow", "gather", "--offload-every", 2),
                    ("max", "--slow", "compute", f"--profile={folder}"), ("dynamic", "--slow", "reduce"),
                    ("scheduled", "--slow", "all", "--offload-every", 1), ("dynamic", "--offload-every", 3)]
            everywhere = [(ranks, ("--policy", *way, "--steps", STEPS, "--slow-us", 100)) for ranks in RANKS
                          for way in (ways if ranks < 4 and not BRIEF else ways[:5:2])]
            results = self.run_all(everywhere)
            expected, bytes_of = {}, {}
            for (ranks, options), result in zip(everywhere, results):
                losses = self.losses(result)
                self.assertEqual([int(LOSS.fullmatch(line)[1]) for line in losses], list(range(STEPS)))
                self.assertEqual(losses, expected.setdefault(ranks, losses), (ranks, options))
                bytes_of[ranks, options[1]] = self.check_peak(result, options[1])
                if "--offload-every" in options:
                    self.assertRegex(result.stdout, r"(?m)^offload \d+ times, of \d+ bytes committed 0 left$")
            for ranks in RANKS:
                self.assertEqual(expected[ranks][0], expected[1][0])  # nothing has been added up differently yet
                self.assertLessEqual(bytes_of[ranks, "scheduled"], bytes_of[ranks, "max"])
                files = glob.glob(os.path.join(folder, "step_1", f"snapshot_rank{ranks - 1:02}*.pickle"))
                self.assertEqual(len(files), 1, ranks)

    def test_gradients(self):
        """In fp32 to 1e-6 of a tensor's norm; here also where the ranks' rows and the buckets' elements do not come out
        even.
        """
        odd = ("--rows", 5, "--hidden", 14, "--vocab", 17)
        cases = [(ranks, ("--check-gradients", "--steps", 1, "--precision", "fp32", *odd)) for ranks in RANKS]
        cases.append((RANKS[-1], ("--check-gradients", "--steps", 1)))
        for (ranks, options), result in zip(cases, self.run_all(cases)):
            self.losses(result)
            fp32, bf16 = map(
                float,
                re.search(
                    r"^gradients of 28 tensors: at most (\S+) of the norm apart in fp32, (\S+) in bf16",
                    result.stdout,
                    re.MULTILINE,
                ).groups(),
            )
            self.assertLessEqual(fp32, 1e-6, (ranks, options))
            self.assertEqual(fp32 > 0, ranks > 1)  # ranks add up in another order, one does not
            self.assertLessEqual(bf16, 2**-6)

    @unittest.skipUnless(MPI and not BRIEF, "without MPI, or in brief")
    def test_gradients_of_many_tokens(self):
        """Rounding errors of long sums are tolerated."""
        result = start(4, "--check-gradients", "--steps", 1, "--stack", "m", "--rows", 128, "--length", 64,
                       "--hidden", 16, "--vocab", 64, "--precision", "fp32")
        self.losses(result)
        fp32 = float(re.search(r"at most (\S+) of the norm apart in fp32", result.stdout)[1])
        self.assertTrue(1e-6 < fp32 < 1.6e-5, fp32)

    def test_decreasing_loss(self):
        lines = self.losses(start(1, "--steps", 40))
        first, last = (float(LOSS.fullmatch(line)[3]) for line in (lines[0], lines[-1]))
        self.assertGreater(first, 3.5)
        self.assertLess(last, 2)
        self.assertEqual([float.fromhex(LOSS.fullmatch(line)[2]) for line in (lines[0], lines[-1])], [first, last])
        self.assertNotEqual(self.losses(start(1, "--steps", 1, "--seed", 2)), lines[:1])

    @unittest.skipUnless(FAKES, "built without CUDA kernels")
    def test_cuda(self):
        """On the emulated driver, which notices misuse: kernels have the host's bits, graphs those of what they
        captured.
        """
        expected = self.losses(start(1, "--steps", STEPS))
        ways = [("scheduled",), ("max", "--graph"), ("fixed", "--graph", "--offload-every", 3),
                ("dynamic", "--slow", "gather"), ("scheduled", "--graph", "--slow", "all", "--check-gradients")]
        for way in ways[::2] if BRIEF else ways:
            result = on_cuda("--policy", *way, "--steps", STEPS, "--slow-us", 50)
            self.assertEqual((self.losses(result), result.stderr), (expected, ""), way)
            self.check_peak(result, way[0])
            if "--graph" in way:
                self.assertIn(f"graphs 1 captured, {STEPS - 1} launches\n", result.stdout)
            self.assertIn("ranks 1, collectives of self, on device cuda\n", result.stdout)

    @unittest.skipUnless(FAKES, "built without CUDA kernels")
    def test_nccl(self):
        expected = self.losses(start(1, "--steps", STEPS))
        for way, captures in ((("--policy", "max"), 0), (("--policy", "scheduled", "--graph"), 1),
                              (("--policy", "fixed", "--graph", "--offload-every", 2), 2)):
            result = on_cuda(*way, "--register", "--steps", STEPS, faults=False)
            self.assertEqual((self.losses(result), result.stderr), (expected, ""), way)
            self.assertEqual(result.stdout.count("symmetric window granted"), 2)
            if captures:  # windows are other ones after offloading
                self.assertIn(f"graphs {captures} captured, {STEPS - 1} launches\n", result.stdout)
        result = on_cuda("--nccl", "libnccl.so.7")
        self.assertEqual((result.returncode, result.stdout), (1, ""))
        self.assertIn("NCCL cannot be loaded", result.stderr)

    def test_options(self):
        for options, words in ((("--policy", "best"),
                                '--policy: expected fixed, max, scheduled or dynamic, got "best"'),
                               (("--graph",), "--graph requires --device cuda: the host device has no graphs"),
                               (("--register",), "--register requires --device cuda"),
                               (("--graph", "--device", "cuda", "--policy", "dynamic"),
                                "--graph requires --policy fixed, max or scheduled"),
                               (("--register", "--device", "cuda", "--policy", "dynamic"),
                                "--register requires --policy fixed"),
                               (("--steps", "-1"), '--steps: expected an integer in [0, 1000000], got "-1"'),
                               (("--rows", "0"), "--rows: expected an integer in [1, "),
                               (("--hidden", "7"), "--hidden: expected an even number"),
                               (("--seed", "1e3"), "--seed: expected an integer"),
                               (("--stack", ""), "--stack: expected up to 32 letters"),
                               (("--stack", "amx"), "--stack: expected up to 32 letters"),
                               (("--stack", "a" * 33), "--stack: expected up to"),
                               (("--slow", "disk"), "--slow: expected gather, compute, reduce or all"),
                               (("--device", "tpu"), "--device: expected host or cuda"),
                               (("--precision", "fp8"), "--precision: expected mixed"),
                               (("--offload-every", "0"), "--offload-every: expected an integer in [1, "),
                               (("--steps",), "option --steps requires a value; see fsdp_train --help"),
                               (("--graph=yes",), "option --graph takes no value"), (("7",), 'unexpected argument "7"'),
                               (("--profile=a", "7"), 'unexpected argument "7"'),
                               (("--profile", "--graph", "7"), 'unexpected argument "7"'),
                               (("--max-entries", "9"), "--max-entries requires --profile"),
                               (("--profile=a", "--max-entries", "0"), "--max-entries: expected an integer in [1, "),
                               (("-x",), "unknown option -x"),
                               (("--foo=3",), "unknown option --foo; see fsdp_train --help")):
            result = start(1, *options)
            self.assertEqual((result.returncode, result.stdout, result.stderr.count("\n")), (2, "", 1), options)
            self.assertIn("fsdp_train: " + words, result.stderr)
        self.assertEqual(len({start(1, form).stdout for form in ("--help", "-h", "-?")}), 1)
        self.assertTrue(start(1, "--usage").stdout.startswith("Usage: fsdp_train"))
        result = start(1, "--help")
        self.assertEqual(result.returncode, 0)
        for option in ("policy", "graph", "register", "offload-every", "profile", "slow", "check-gradients", "steps"):
            self.assertIn("--" + option, result.stdout)

    def test_guard_mode(self):
        """Memory that nobody holds is not touched, and nothing is read that was not written: acquired memory is NaN."""
        expected = self.losses(start(1, "--steps", 2))
        for policy in ("scheduled",) if BRIEF else ("fixed", "max", "scheduled"):
            guarded = start(1, "--steps", 2, "--policy", policy, "--check-gradients", BUCKETPOOL_GUARD="1")
            self.assertEqual(self.losses(guarded), expected)

    def test_few(self):
        for options in (("--steps", 0), ("--stack", "e", "--steps", 2),
                        ("--stack", "aa", "--rows", 1, "--length", 1, "--steps", 2),
                        ("--hidden", 2, "--vocab", 2, "--steps", 2)):
            self.assertEqual(len(self.losses(start(1, *options))), options[-1])

    def events(self, folder, *options):
        """Events of the snapshot of a step, and the number of lost ones."""
        self.losses(start(1, "--steps", 1, f"--profile={folder}/entries", *options))
        with open(os.path.join(folder, "entries", "step_0", "snapshot_rank00.pickle"), "rb") as file:
            pool = pickle.load(file)["bucketpool"]["pools"][0]
        return pool["events"], pool["lost_events"]

    def test_profile(self):
        """The printed files exist, and the last step's file was written or the reason is printed, for any number of
        steps.
        """
        with tempfile.TemporaryDirectory() as folder:
            for steps in (0, 1, 2, 3):
                place = os.path.join(folder, str(steps))
                form = (f"--profile={place}",) if steps % 2 else ("--profile", place)
                result = start(1, "--steps", steps, *form)
                self.assertEqual(len(self.losses(result)), steps)
                last = os.path.join(place, f"step_{min(steps, 2) - 1}", "snapshot_rank00.pickle")
                self.assertEqual(re.findall(r"(?m)^profile (.*)$", result.stdout), [last] if steps else [])
                self.assertEqual(os.path.exists(last), steps > 0)
            few, lost = self.events(folder, "--max-entries", 16)
            self.assertEqual((len(few), lost + 16), (16, len(self.events(folder)[0])))
            file = os.path.join(folder, "file")
            open(file, "w").close()
            for steps in (1, 2):
                result = start(1, "--steps", steps, f"--profile={file}")
                self.assertEqual(result.returncode, 1)
                self.assertIn(f"fsdp_train: rank 0: input or output failed: {file}: the folder cannot be made: ",
                              result.stderr)

    @unittest.skipUnless(MPI, "without MPI")
    def test_more_ranks_than_rows(self):
        result = start(4, "--rows", 3)
        self.assertEqual((result.returncode, result.stdout), (2, ""))
        self.assertIn("fsdp_train: 4 ranks cannot share 3 rows: --rows 4 or more, or fewer ranks\n", result.stderr)
        self.assertEqual(result.stderr.count("cannot share"), 1)

    @unittest.skipIf(BUILT_WITH_MPI, "with MPI")
    def test_processes_without_mpi(self):
        result = start(1, OMPI_COMM_WORLD_RANK="1", OMPI_COMM_WORLD_SIZE="2")
        self.assertEqual((result.returncode, result.stdout), (1, ""))
        self.assertIn(
            "fsdp_train: rank 1: unsupported: several processes were started, but this fsdp_train was built"
            " without MPI",
            result.stderr,
        )

    def start_with_more_for_rank_1(self, more, *options):
        script = 'test "${OMPI_COMM_WORLD_RANK:-$PMI_RANK}" = 0 || set -- "$@" "$0"; exec "$PROGRAM" "$@"'
        return subprocess.run([MPIRUN, "2", "/bin/sh", "-c", script, more, *options], capture_output=True, text=True,
                              timeout=600, env={**os.environ, "PROGRAM": PROGRAM})

    @unittest.skipUnless(MPI, "without MPI")
    def test_failing_rank(self):
        """Rank 1 cannot write, in the middle of training; the other waits for it in a collective."""
        with tempfile.NamedTemporaryFile() as file:
            result = self.start_with_more_for_rank_1(f"--profile={file.name}", "--steps", "100000")
        self.assertNotEqual(result.returncode, 0)
        self.assertIn(f"fsdp_train: rank 1: input or output failed: {file.name}: the folder cannot be made: ",
                      result.stderr)
        self.assertNotIn("fsdp_train: rank 0: ", result.stderr)

    @unittest.skipUnless(MPI, "without MPI")
    def test_ranks_with_other_options(self):
        """They would wait for each other."""
        for more, words in (("--steps=1", "steps 1 "), ("--policy=max", "policy max "),
                            ("--offload-every=1", "offload-every 1 ")):
            result = self.start_with_more_for_rank_1(more, "--steps", "3")
            self.assertEqual((result.returncode, result.stdout), (1, ""), more)
            self.assertRegex(result.stderr, f"fsdp_train: rank 1 has other options than rank 0: .*{words}")


class Wrapper(unittest.TestCase):
    def wrapper(self, *arguments, **environment):
        leaks = ":".join(filter(None, ("detect_leaks=0", os.environ.get("ASAN_OPTIONS"))))  # as in mpirun.sh
        return subprocess.run([EXAMPLES_MPI, *arguments], capture_output=True, text=True, timeout=600,
                              env={**os.environ, "ASAN_OPTIONS": leaks, **environment})

    def test_programs(self):
        build = os.path.dirname(os.path.dirname(PROGRAM))
        result = self.wrapper("1", os.path.basename(PROGRAM), "--steps", "1", BUILD=build)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("collectives of self", result.stdout)
        if MPI:
            result = self.wrapper("2", os.path.basename(PROGRAM), "--steps", "1", BUILD=build)
            self.assertEqual((result.returncode, result.stdout.count("step 0 ")), (0, 1), result.stderr)
            self.assertIn("ranks 2, collectives of mpi", result.stdout)

    def test_without_mpirun(self):
        with tempfile.TemporaryDirectory() as folder:
            for name in ("sh", "dirname", "basename"):
                os.symlink(shutil.which(name), os.path.join(folder, name))
            result = self.wrapper("2", PROGRAM, PATH=folder)
            self.assertEqual((result.returncode, result.stdout), (77, ""))
            self.assertIn("Install openmpi-bin and libopenmpi-dev", result.stderr)
            self.assertEqual(self.wrapper("1", PROGRAM, "--steps", "1", PATH=folder).returncode, 0)

    def test_wrong(self):
        for arguments, words in (((), "usage: "), (("2",), "usage: "),
                                 (("0", PROGRAM), 'expected a number of processes, got "0"'),
                                 (("two", PROGRAM), 'expected a number of processes, got "two"'),
                                 (("2", "no_such"), "run ./quickstart")):
            result = self.wrapper(*arguments)
            self.assertEqual((result.returncode, result.stdout), (2, ""), arguments)
            self.assertIn(words, result.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
