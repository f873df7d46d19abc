# SPDX-License-Identifier: Apache-2.0
"""Commit subjects: `area: summary`, at most 72 columns, and no merges on the way to HEAD.

scripts/commits.py             those since the rule began; exit status 77 where git cannot tell
scripts/commits.py FILE        the message in FILE, as the hook commit-msg is given it (git config core.hooksPath scripts/hooks)"""

import re
import shutil
import subprocess
import sys

BEGINNING = "950d0b6"  # commits after this one
COLUMNS = 72
SUBJECT = re.compile(r"[a-z0-9_./-]+(, [a-z0-9_./-]+)*: \S")


def faults_of(subject, parents=1):
    faults = []
    if len(subject) > COLUMNS:
        faults.append(f"{len(subject)} columns, at most {COLUMNS}")
    if not SUBJECT.match(subject):
        faults.append("not `area: summary`")
    if parents > 1:
        faults.append("a merge: rebase instead")
    return faults


def main():
    if len(sys.argv) > 1:
        with open(sys.argv[1], encoding="utf-8") as file:
            commits = [("this commit", 1, file.readline().rstrip("\n"))]
    else:
        if not shutil.which("git"):
            print("git is not installed")
            return 77
        log = subprocess.run(["git", "log", "--format=%h%x00%P%x00%s", f"{BEGINNING}..HEAD"], capture_output=True, text=True, check=False)
        if log.returncode != 0:
            print("git does not know the commits since the rule began")
            return 77
        rows = [line.split("\0") for line in log.stdout.splitlines()]
        commits = [(commit, len(parents.split()), subject) for commit, parents, subject in rows]
    judged = [(commit, subject, faults_of(subject, parents)) for commit, parents, subject in commits]
    bad = [row for row in judged if row[2]]
    for commit, subject, faults in bad:
        print(f"{commit}: {', '.join(faults)}: {subject}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
