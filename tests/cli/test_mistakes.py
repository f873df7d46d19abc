"""Mistakes that people make at a prompt, and how the command answers them.

Arguments: source directory, the command."""

import os
import subprocess
import sys
import unittest

from answers import InFolder

SOURCE, PROGRAM = sys.argv[1:3]
MODEL = os.path.join(SOURCE, "examples", "models", "Llama-3.1-8B")


def run(*arguments, **more):
    return subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, timeout=60, **more)


class Commands(InFolder):
    def test_unknown_commands(self):
        for word, suggestion in (("plna", 'unknown command "plna"; did you mean "plan"? '), ("shedule", 'did you mean "schedule"?'),
                                 ("frobnicate", 'unknown command "frobnicate" (')):
            self.refused(run(word), 2, suggestion, "bucketpool --help")
        self.refused(run("help", "plna"), 2, 'did you mean "plan"?')
        self.refused(run("bench", "frob"), 2, 'unknown benchmark "frob"')

    def test_help_and_version_in_every_form(self):
        for command in ("plan", "explain", "schedule", "run", "pack", "view", "bench"):
            texts = {run(*arguments).stdout for arguments in ((command, "--help"), (command, "-h"), (command, "-?"), ("help", command))}
            self.assertEqual(len(texts), 1, command)
            self.assertTrue(texts.pop().startswith(f"Usage: bucketpool {command}"))
        self.assertEqual(len({run(word).stdout for word in ("version", "--version", "-V")}), 1)

    def test_unknown_options(self):
        self.refused(run("plan", "--polcy", "max", MODEL), 2, 'plan: unknown option --polcy; did you mean "--policy"?')
        self.refused(run("plan", "--polcy=max", MODEL), 2, 'plan: unknown option --polcy; did you mean "--policy"?')
        self.refused(run("plan", "--frobnicate", MODEL), 2, "plan: unknown option --frobnicate; see")
        self.refused(run("plan", "-Z", MODEL), 2, "plan: unknown option -Z; see")
        self.refused(run("plan", MODEL, "--policy"), 2, "plan: option --policy requires a value")
        self.refused(run("plan", MODEL, "--json=3"), 2, "plan: option --json takes no value")

    def test_a_folder_is_no_output_file(self):
        target = os.path.join(self.folder, "x.svg")
        os.mkdir(target)
        for command, option in (("plan", "-o"), ("plan", "--svg"), ("explain", "--svg"), ("schedule", "--svg")):
            self.refused(run(command, MODEL, option, target), 3, f"{option} {target}: cannot be written: Is a directory")
        self.assertEqual((os.listdir(self.folder), os.listdir(target)), (["x.svg"], []))

    def test_a_reader_that_ends_is_no_error(self):
        """As in `| head -1`: no message, the status of SIGPIPE, and no file that is half there."""
        target = os.path.join(self.folder, "plan.json")
        read, write = os.pipe()
        os.close(read)
        try:
            result = subprocess.run([PROGRAM, "plan", MODEL, "-o", target], stdout=write, stderr=subprocess.PIPE, text=True, timeout=60)
        finally:
            os.close(write)
        self.assertEqual((result.returncode, result.stderr), (141, ""))
        self.assertEqual(os.listdir(self.folder), [])


class Budgets(InFolder):
    def test_exit_status(self):
        for budget, code in (("80GiB", 0), ("1GiB", 1)):
            for arguments in ((MODEL,), (MODEL, "--json"), (MODEL, os.path.join(SOURCE, "examples", "models", "Nemotron-3-Nano-30B-A3B"))):
                result = run("plan", "--dp", "256", "--ep", "1", "--policy", "scheduled", "--budget", budget, *arguments)
                self.assertEqual((result.returncode, result.stderr), (code, ""), (budget, arguments))
        # one policy that fits is enough
        self.assertEqual(run("plan", "--budget", "2GiB", "--dp", "4096", "--policy", "fixed,scheduled", MODEL).returncode,
                         min(run("plan", "--budget", "2GiB", "--dp", "4096", "--policy", policy, MODEL).returncode for policy in ("fixed", "scheduled")))

    def test_units(self):
        self.refused(run("plan", "--budget", "80", MODEL), 2, '"80" is less than 1 MiB; write the unit, for example 80GiB')


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
