# SPDX-License-Identifier: Apache-2.0
"""Completion of the command line in bash, zsh and fish. The shells run, in a pseudo-terminal where they need one.

Arguments: source directory, the command."""

import os
import re
import shutil
import subprocess
import sys
import unittest

from answers import InFolder, run

ROOT, PROGRAM = sys.argv[1], os.path.abspath(sys.argv[2])
COMMANDS = ("plan", "explain", "schedule", "models", "run", "fit", "step", "pack", "view", "bench logprob", "bench offload")
ALL = "plan explain schedule models run fit step pack view bench completion"

# A command line up to the cursor, and the candidates for its last word.
LINES = {
    "": ALL, "pl": "plan", "help sch": "schedule", "bench ": "logprob offload", "bench off": "offload",
    "completion ": "bash zsh fish", "completion bash ": "", "plan --pref": "--prefetch --prefetch-backward",
    "bench offload --gr": "--groups", "run --he": "--help", "plan --passes ": "train eval both",
    "plan --passes e": "eval", "plan --passes=b": "--passes=both", "plan --eval --passes ": "train eval both",
    "plan --dp ": "", "plan --dp 8 --rec": "--recompute", "pack --work ": "", "plan --policy s": "scheduled",
    "run --policy ma": "max", "plan --roles param,grad": "param,grad param,grad_comm",
    "plan --roles=param,opt": "--roles=param,optimizer", "schedule --role st": "state",
    "plan --gpu h1": "h100 h100-nvl", "plan --color ": "auto always never", "run --device n": "null",
    "bench logprob --device ": "host cuda", "fit --batch ": "auto", "fit --loss l": "labels logprobs",
    "fit mod": "model.json", "plan --param-dtype fp8_e5": "fp8_e5m2",
    "bench logprob --kernels ": "auto plain avx2 avx512 neon", "view --color=al": "--color=always",
    "plan --plot dra": "drawn.svg", "plan --plot=dra": "--plot=drawn.svg", "run --profile dra": "drawn.svg",
    "plan -o dra": "drawn.svg", "explain --json mod": "model.json", "run --plan mod": "model.json",
    "plan --schedules mod": "model.json", "pack mod": "model.json", "bench offload ": ""}


class Shells(InFolder):
    def setUp(self):
        super().setUp()
        self.home = os.path.join(self.folder, ".home")  # not completed to
        os.mkdir(self.home)
        for name in ("drawn.svg", "model.json"):
            self.write(name, "")
        homes = dict.fromkeys(("HOME", "ZDOTDIR", "XDG_CONFIG_HOME", "XDG_DATA_HOME"), self.home)
        path = f"{os.path.dirname(PROGRAM)}:{os.environ['PATH']}"
        self.environment = {**os.environ, **homes, "PATH": path, "TERM": "vt100", "LC_ALL": "C.UTF-8"}

    def write(self, name, text):
        with open(self.path(name), "w", encoding="utf-8") as file:
            file.write(text)

    def in_terminal(self, *command, typed=""):
        """Runs a shell until it ends; what it was typed is answered in the file .home/lines."""
        if shutil.which(command[0]) is None:
            self.skipTest(f"{command[0]} is not installed")
        code, shown = self.on_terminal(command, "stdin", "stdout", "stderr", typed=typed.encode(), cwd=self.folder,
                                       env=self.environment, start_new_session=True)
        self.assertEqual(code, 0, shown)
        with open(os.path.join(self.home, "lines"), encoding="utf-8") as file:
            return file.read().splitlines(), shown

    def completed(self, lines, shown):
        """Lines whose last word was replaced by all candidates."""
        self.assertEqual(len(lines), len(LINES), (lines, shown))
        for (line, expected), found in zip(LINES.items(), lines):
            known = len(f"bucketpool {line}x".split()) - 1
            self.assertEqual(sorted(found.split()[known:]), sorted(expected.split()), line)

    def test_bash(self):
        """Readline inserts all candidates (ESC *), and a function in place of the command writes the line."""
        self.write(".home/rc", """
            source <(bucketpool completion bash)
            bucketpool() { echo "bucketpool $*" >>.home/lines; }
            """)
        typed = "".join(f"bucketpool {line}\033*\n" for line in LINES) + "exit\n"
        self.completed(*self.in_terminal("bash", "--noprofile", "--rcfile", ".home/rc", "-i", typed=typed))

    def test_zsh(self):
        """A widget that runs when the prompt appears completes each line and inserts all candidates."""
        widget = """
            all() { compstate[insert]=all; }
            zle-line-init() {
                local line
                for line in "${(@f)$(<.home/typed)}"; do
                    BUFFER=$line CURSOR=$#line comppostfuncs=(all)
                    zle complete-word
                    print -r -- "$BUFFER" >>.home/lines
                done
                exit
            }
            zle -N zle-line-init"""
        self.write(".home/typed", "".join(f"bucketpool {line}\n" for line in LINES))
        self.write(".home/_bucketpool", run("completion", "zsh").stdout)
        for load in ("source <(bucketpool completion zsh)", ""):  # "": found in fpath
            path = "" if load else "fpath+=(~)\n"
            self.write(".home/.zshrc", f"{path}autoload -Uz compinit\ncompinit -u -D\n{load}\n{widget}")
            self.completed(*self.in_terminal("zsh", "-d", "-i"))
            os.remove(self.path(".home/lines"))

    def test_fish(self):
        if shutil.which("fish") is None:
            self.skipTest("fish is not installed")
        script = """
            bucketpool completion fish | source
            for line in $argv
                echo (string replace -r '\\S*$' '' $line) (complete -C $line | string replace -r '\\t.*' '')
            end"""
        shown = subprocess.run(["fish", "-c", script, *(f"bucketpool {line}" for line in LINES)], capture_output=True,
                               text=True, timeout=60, check=True, cwd=self.folder, env=self.environment)
        self.assertEqual(shown.stderr, "")
        self.completed(shown.stdout.splitlines(), shown.stderr)


class Replies(InFolder):
    def test_options_of_all_commands(self):
        """In replies, and in the manual page, which has a table that several commands share once."""
        page = run("completion", "manual").stdout
        for command in COMMANDS:
            reply = run("completion", "reply", *command.split(), "--").stdout
            words = [line.split("\t")[0] for line in reply.splitlines()]
            options = re.findall(r"^ +(?:-\w, |-\?, )?(--[\w-]+)", run(*command.split(), "--help").stdout, re.MULTILINE)
            self.assertEqual(sorted(words), sorted(set(options) - {"--usage"}), command)
            sections = re.findall(rf"^## (?:.*, )?{command}(?:,.*)?\n((?:(?!##).*\n)*)", page, re.MULTILINE)
            shown = re.findall(r"^(?:\*-\w\*, )?\*(--[\w-]+)\*", "".join(sections), re.MULTILINE)
            self.assertEqual(sorted([*shown, "--help"]), sorted(words), command)

    def test_unknown_words(self):
        for words in ("plna ", "plan --x", "plan --json=x", "plan --x=y", "bench x ", "completion bash x"):
            result = run("completion", "reply", *words.split(" "))
            self.assertEqual((result.returncode, result.stdout, result.stderr), (0, "", ""), words)

    def test_mistakes(self):
        self.refused(run("completion"), 2, "expected one shell, got 0")
        self.refused(run("completion", "csh"), 2, 'unknown shell "csh"')


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
