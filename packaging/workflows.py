#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the jobs of .github/workflows on this machine, each in a clean root (roots.py) with a fresh clone of HEAD.

usage: workflows.py [--list | --check] [--workflow NAME]... [--job NAME]... [--matrix KEY=VALUE]... [--event NAME] [--ref REF] [--keep]

--list     prints the jobs, their combinations of the matrix and the root of each
--check    checks all workflows without running them: syntax, features, roots, files that the commands name
--job      runs this job and those that it needs; --matrix: only combinations with this value
--event    the event that `if` conditions see: push (default), pull_request, schedule or workflow_dispatch
--ref      the branch or tag that they see, such as refs/tags/v1.0.0; the branch of HEAD unless it is given. The clone is HEAD's in any case
--keep     keeps the roots, for a look at what failed

Logs, uploaded artifacts: build-workflows. Steps of `uses`: checkout clones, cache binds a folder that is kept beside the roots,
upload-artifact and download-artifact copy. A feature that is not emulated is an error, never a step that is left out. Jobs with an
`environment` deploy something, and jobs on runners of other processors have no root: the table says so. Needs root rights and PyYAML."""

from __future__ import annotations

import argparse
import glob
import itertools
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Mapping, Sequence

import roots

try:
    import yaml
except ImportError:
    sys.exit("workflows: PyYAML is missing; apt-get install python3-yaml")

PROJECT = roots.PROJECT
FOLDER = PROJECT / ".github" / "workflows"
OUTPUT = PROJECT / "build-workflows"
WORKSPACE = "/root/bucketpool"
SYSTEMS = {"debian:12": "debian-12", "debian:13": "debian-13", "ubuntu:24.04": "ubuntu-24.04"}  # by container
MACHINE = "ubuntu-24.04"  # the runner, and the root of a job that has no container
ELSEWHERE = {"ubuntu-24.04-arm": "runs on arm64 only"}  # runners
ACTIONS = ("checkout", "cache", "upload-artifact", "download-artifact", "upload-pages-artifact")
KEYS = {
    "workflow": {"name", "on", "permissions", "concurrency", "env", "defaults", "jobs"},
    "job": {"name", "runs-on", "container", "needs", "if", "env", "defaults", "strategy", "steps", "timeout-minutes", "permissions",
            "environment", "concurrency"},
    "strategy": {"fail-fast", "matrix"},
    "defaults": {"run"},
    "defaults.run": {"shell", "working-directory"},
    "step": {"name", "id", "run", "uses", "with", "env", "if", "shell", "working-directory"},
}
OPTIONS = {  # of actions
    "checkout": {"fetch-depth", "persist-credentials"},
    "cache": {"path", "key", "restore-keys"},
    "upload-artifact": {"name", "path", "if-no-files-found", "retention-days"},
    "download-artifact": {"name", "path"},
    "upload-pages-artifact": {"path"},
}
SHELLS = {"sh": ["sh", "-e"], "bash": ["bash", "--noprofile", "--norc", "-eo", "pipefail"]}
STATUS_FUNCTIONS = re.compile(r"\b(always|failure|success|cancelled)\(")


class Unsupported(Exception):
    """A workflow uses what this program does not emulate, or is wrong."""


# ---- expressions --------------------------------------------------------------------------------------------------------

TOKEN = re.compile(r"\s*(?:(?P<string>'(?:[^']|'')*')|(?P<number>\d+)|(?P<name>[A-Za-z_][\w-]*(?:\.[\w-]+)*)|(?P<sign>==|!=|&&|\|\||[!(),]))")


class Expression:
    """Evaluates what is between ${{ and }}: literals, contexts, comparisons, logic, and the functions below."""

    def __init__(self, text: str, contexts: Mapping[str, Mapping[str, Any]], failed: bool = False) -> None:
        self.text, self.contexts, self.failed = text, contexts, failed
        self.tokens: list[tuple[str, str]] = []
        position, text = 0, text.rstrip()
        while position < len(text):
            match = TOKEN.match(text, position)
            if not match or not match.lastgroup:
                raise Unsupported(f'expression "{text}": cannot be read from "{text[position:]}"')
            self.tokens.append((match.lastgroup, match[match.lastgroup]))
            position = match.end()

    def value(self) -> Any:
        result = self._or()
        if self.tokens:
            raise Unsupported(f'expression "{self.text}": unexpected "{self.tokens[0][1]}"')
        return result

    def _takes(self, sign: str) -> bool:
        if self.tokens and self.tokens[0] == ("sign", sign):
            self.tokens.pop(0)
            return True
        return False

    def _or(self) -> Any:
        left = self._and()
        while self._takes("||"):
            right = self._and()
            left = left or right
        return left

    def _and(self) -> Any:
        left = self._equality()
        while self._takes("&&"):
            right = self._equality()
            left = left and right
        return left

    def _equality(self) -> Any:
        left = self._unary()
        for sign in ("==", "!="):
            if self._takes(sign):
                return (str(left).lower() == str(self._unary()).lower()) == (sign == "==")
        return left

    def _unary(self) -> Any:
        if self._takes("!"):
            return not self._unary()
        if self._takes("("):
            inner = self._or()
            if not self._takes(")"):
                raise Unsupported(f'expression "{self.text}": missing ")"')
            return inner
        kind, text = self.tokens.pop(0) if self.tokens else ("end", "")
        if kind == "string":
            return text[1:-1].replace("''", "'")
        if kind == "number":
            return int(text)
        if kind == "name" and self._takes("("):
            return self._call(text)
        if kind == "name":
            return text == "true" if text in ("true", "false") else self._look_up(text)
        raise Unsupported(f'expression "{self.text}": unexpected "{text}"')

    def _call(self, name: str) -> Any:
        words = []
        while not self._takes(")"):
            words.append(self._or())
            self._takes(",")
        if name == "startsWith" and len(words) == 2:
            return str(words[0]).lower().startswith(str(words[1]).lower())
        states = {"always": True, "success": not self.failed, "failure": self.failed, "cancelled": False}
        if name in states and not words:
            return states[name]
        raise Unsupported(f'expression "{self.text}": function {name} is not emulated')

    def _look_up(self, name: str) -> Any:
        context, _, key = name.partition(".")
        if context not in self.contexts or key not in self.contexts[context]:
            raise Unsupported(f'expression "{self.text}": {name} has no value here')
        return self.contexts[context][key]


def filled(text: Any, contexts: Mapping[str, Mapping[str, Any]]) -> str:
    """The text with the values of its expressions."""
    return re.sub(r"\$\{\{(.*?)\}\}", lambda match: str(Expression(match[1].strip(), contexts).value()), str(text), flags=re.DOTALL)


def holds(condition: Any, contexts: Mapping[str, Mapping[str, Any]], failed: bool) -> bool:
    """A step's or job's `if`: without a status function it also needs that nothing has failed."""
    text = re.sub(r"^\$\{\{(.*)\}\}$", r"\1", str(condition).strip())
    value = bool(Expression(text, contexts, failed).value())
    return value if STATUS_FUNCTIONS.search(text) else value and not failed


# ---- workflows ----------------------------------------------------------------------------------------------------------


def known(kind: str, found: Mapping[str, Any], place: str) -> None:
    unknown = {str(key) for key in found} - KEYS[kind]
    if unknown:
        raise Unsupported(f"{place}: {', '.join(sorted(unknown))} is not emulated in a {kind}")


def combinations(matrix: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The combinations of a matrix, with `include` and `exclude` as the forge defines them."""
    axes = {key: values for key, values in matrix.items() if key not in ("include", "exclude")}
    if not all(isinstance(values, list) for values in axes.values()):
        raise Unsupported("matrix: values must be lists")
    cells = [dict(zip(axes, values)) for values in itertools.product(*axes.values())] if axes else []
    cells = [cell for cell in cells if not any(all(cell.get(key) == value for key, value in entry.items()) for entry in matrix.get("exclude", []))]
    originals = list(cells)
    for entry in matrix.get("include", []):
        fitting = [cell for cell in originals if all(cell[key] == value for key, value in entry.items() if key in axes)]
        for cell in fitting:
            cell.update(entry)
        if not fitting:
            cells.append(dict(entry))
    return cells or [{}]


@dataclass
class Job:
    """A job with one combination of its matrix."""

    workflow: str
    key: str
    matrix: dict[str, Any]
    declared: Mapping[str, Any]
    contexts: dict[str, dict[str, Any]]
    system: str = ""  # of roots.py
    elsewhere: str = ""  # why it does not run here
    machine: bool = False  # no container: a user who has sudo, and bash
    shell: list[str] = field(default_factory=list)
    folder: str = "."
    result: str = ""
    steps: str = ""
    seconds: float = 0

    @property
    def name(self) -> str:
        return f"{self.workflow}: {self.key}"

    @property
    def cell(self) -> str:
        return ", ".join(str(value) for value in self.matrix.values() if value)[:40]

    @property
    def needs(self) -> list[str]:
        needs = self.declared.get("needs", [])
        return [needs] if isinstance(needs, str) else list(needs)


def github(event: str, ref: str = "") -> dict[str, Any]:
    def git(*words: str) -> str:
        if not (PROJECT / ".git").exists():  # a source tarball
            return ""
        return subprocess.run(["git", "-C", str(PROJECT), *words], capture_output=True, text=True, check=False).stdout.strip()

    ref = ref or f"refs/heads/{git('rev-parse', '--abbrev-ref', 'HEAD')}"
    return {"event_name": event, "ref": ref, "ref_name": ref.split("/", 2)[-1], "sha": git("rev-parse", "HEAD"), "run_id": 1,
            "workspace": WORKSPACE, "repository": "bucketpool/bucketpool"}


def declared(path: Path, event: str, ref: str = "") -> list[Job]:
    """The jobs of a workflow file, one for each combination of their matrices."""
    with open(path, encoding="utf-8") as file:
        content = yaml.load(file, Loader=yaml.BaseLoader)  # no types: YAML takes `on` for true
    known("workflow", content, path.name)
    jobs = []
    for key, job in content["jobs"].items():
        place = f"{path.name}: job {key}"
        known("job", job, place)
        known("strategy", job.get("strategy", {}), place)
        for cell in combinations(job.get("strategy", {}).get("matrix", {})):
            contexts: dict[str, dict[str, Any]] = {"github": {**github(event, ref), "workflow": content.get("name", path.stem)},
                                                    "matrix": cell, "runner": {"os": "Linux"}, "env": {}}
            for level in (content, job):
                contexts["env"].update({name: filled(value, contexts) for name, value in level.get("env", {}).items()})
            jobs.append(Job(path.stem, key, cell, job, contexts))
            place_of(jobs[-1], content)
    for one in jobs:
        unknown = set(one.needs) - set(content["jobs"])
        if unknown:
            raise Unsupported(f"{path.name}: job {one.key} needs {', '.join(unknown)}, which does not exist")
    return jobs


def place_of(job: Job, content: Mapping[str, Any]) -> None:
    """Decides in which root a job runs, and with what shell."""
    runner = filled(job.declared["runs-on"], job.contexts)
    container = job.declared.get("container", "")
    if not isinstance(container, str):
        raise Unsupported(f"{job.name}: container must be the name of an image")
    container = filled(container, job.contexts)
    if "environment" in job.declared:
        job.elsewhere = f"deploys to {job.declared['environment']}"
    elif runner in ELSEWHERE:
        job.elsewhere = ELSEWHERE[runner]
    elif runner != MACHINE or container and container not in SYSTEMS:
        raise Unsupported(f'{job.name} ({job.cell}): no root for runner "{runner}" with container "{container}"; '
                          f'runner {MACHINE} with {", ".join(SYSTEMS)} has one')
    else:
        job.system, job.machine = SYSTEMS.get(container, MACHINE), not container
    run: dict[str, str] = {}
    for level in (content, job.declared):
        known("defaults", level.get("defaults", {}), job.name)
        known("defaults.run", level.get("defaults", {}).get("run", {}), job.name)
        run.update(level.get("defaults", {}).get("run", {}))
    job.shell, job.folder = shell(run.get("shell", "bash" if job.machine else "sh"), job), run.get("working-directory", ".")
    for step in job.declared["steps"]:
        known("step", step, job.name)
        if ("run" in step) == ("uses" in step):
            raise Unsupported(f"{job.name}: a step needs either run or uses")
        if re.search(r"GITHUB_(ENV|PATH|OUTPUT)", step.get("run", "")):
            raise Unsupported(f"{job.name}: files of variables, paths and outputs are not emulated: {step['run'].strip()}")
        shell(step.get("shell", "sh"), job)
        if "uses" in step and not job.elsewhere:
            action(step, job)


def shell(name: str, job: Job) -> list[str]:
    if name not in SHELLS:
        raise Unsupported(f'{job.name}: shell "{name}" is not emulated; use {" or ".join(SHELLS)}')
    return SHELLS[name]


def action(step: Mapping[str, Any], job: Job) -> str:
    match = re.fullmatch(r"actions/([a-z-]+)@\S+", step["uses"])
    if not match or match[1] not in ACTIONS:
        raise Unsupported(f"{job.name}: action {step['uses']} is not emulated")
    unknown = set(step.get("with", {})) - OPTIONS[match[1]]
    if unknown:
        raise Unsupported(f"{job.name}: option {', '.join(sorted(unknown))} of {match[1]} is not emulated")
    return match[1]


def all_jobs(event: str, ref: str, names: list[str]) -> list[Job]:
    paths = sorted(FOLDER.glob("*.yml"))
    unknown = set(names) - {path.stem for path in paths}
    if unknown:
        raise Unsupported(f"unknown workflow {', '.join(unknown)}; there are {', '.join(path.stem for path in paths)}")
    return [job for path in paths if not names or path.stem in names for job in declared(path, event, ref)]


# ---- runs ---------------------------------------------------------------------------------------------------------------


class Runner:
    """Runs a job's steps in one root."""

    def __init__(self, job: Job, root: roots.Root, log: Any) -> None:
        self.job, self.root, self.log = job, root, log
        self.binds: dict[str | Path, str] = {}
        self.artifacts = OUTPUT / "artifacts" / job.workflow

    def inside(self, path: str) -> str:
        path = re.sub(r"^~(?=/|$)", "/root", path.strip())
        return path if path.startswith("/") else f"{WORKSPACE}/{path}"

    def outside(self, path: str) -> Path:
        """The path on this machine of a path of the root."""
        for source, place in self.binds.items():
            if path == place or path.startswith(place + "/"):
                return Path(f"{source}{path[len(place):]}")
        return self.root.path / path.lstrip("/")

    def step(self, step: Mapping[str, Any]) -> bool:
        contexts = {**self.job.contexts, "env": dict(self.job.contexts["env"])}
        contexts["env"].update({name: filled(value, contexts) for name, value in step.get("env", {}).items()})
        if "uses" in step:
            options = {name: filled(value, contexts) for name, value in step.get("with", {}).items()}
            print(f"\n#### {step['uses']} {options}", file=self.log, flush=True)
            problem = str(getattr(self, action(step, self.job).replace("-", "_"))(options) or "")
            print(problem or "done", file=self.log, flush=True)
            return not problem
        script = filled(step["run"], contexts)
        print(f"\n#### {step.get('name', '')}\n{script}", file=self.log, flush=True)
        (self.root.path / "tmp/step.sh").write_text(script, encoding="utf-8")
        given = {"CI": "true", "GITHUB_ACTIONS": "true", "GITHUB_WORKSPACE": WORKSPACE, "GITHUB_STEP_SUMMARY": "/tmp/summary.md",
                 **{"GITHUB_" + name.upper(): str(contexts["github"][name]) for name in ("ref", "ref_name", "sha", "event_name", "run_id")}}
        words = shell(step["shell"], self.job) if "shell" in step else self.job.shell
        folder = self.inside(filled(step.get("working-directory", self.job.folder), contexts))
        self.outside(WORKSPACE).mkdir(parents=True, exist_ok=True)
        return self.root.run([*words, "/tmp/step.sh"], cwd=folder, binds=self.binds, env={**given, **contexts["env"]}, log=self.log,
                             check=False).returncode == 0

    def checkout(self, options: Mapping[str, str]) -> str:
        """A clone of HEAD; as on the forge without .git where the root has no git."""
        depth = options.get("fetch-depth", "1")
        target = self.outside(WORKSPACE)
        shutil.rmtree(target, ignore_errors=True)
        made = subprocess.run(["git", "clone", "--quiet", *([f"--depth={depth}"] if depth != "0" else []), f"file://{PROJECT}", str(target)],
                              stdout=self.log, stderr=subprocess.STDOUT, check=False)
        if not (self.root.path / "usr/bin/git").exists():
            shutil.rmtree(target / ".git", ignore_errors=True)
        return "" if made.returncode == 0 else "git clone failed"

    def cache(self, options: Mapping[str, str]) -> None:
        """Binds folders that are kept: newer than what a key alone would restore."""
        key = re.sub(r"\W+", "-", options.get("restore-keys", options["key"]).strip().split("\n")[0]).strip("-")
        for path in options["path"].strip().split("\n"):
            kept = roots.KEPT / "caches" / key / re.sub(r"\W+", "-", path).strip("-")
            kept.mkdir(parents=True, exist_ok=True)
            self.outside(self.inside(path)).mkdir(parents=True, exist_ok=True)
            self.binds[kept] = self.inside(path)

    def upload_artifact(self, options: Mapping[str, str]) -> str:
        target = self.artifacts / options["name"]
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        patterns = options["path"].strip().split("\n")
        found = [Path(path) for pattern in patterns for path in glob.glob(str(self.outside(self.inside(pattern))))]
        for path in found:
            if path.is_dir():
                shutil.copytree(path, target, dirs_exist_ok=True, symlinks=True)
            else:
                shutil.copy2(path, target)
        missing = not any(target.iterdir()) and options.get("if-no-files-found", "warn") == "error"
        return f"no files at {options['path'].strip()}" if missing else ""

    def upload_pages_artifact(self, options: Mapping[str, str]) -> str:
        return self.upload_artifact({"name": "github-pages", "path": options["path"], "if-no-files-found": "error"})

    def download_artifact(self, options: Mapping[str, str]) -> str:
        source = self.artifacts / options["name"]
        if not source.exists():
            return f"artifact {options['name']} was not uploaded"
        shutil.copytree(source, self.outside(self.inside(options.get("path", "."))), dirs_exist_ok=True)
        return ""


def run_job(job: Job, keep: bool) -> None:
    begun, failed, done = time.monotonic(), "", 0
    steps = job.declared["steps"]
    path = OUTPUT / (re.sub(r"\W+", "-", f"{job.name} {job.cell}").strip("-") + ".log")
    with open(path, "w", encoding="utf-8") as log, roots.Root(job.system, keep=keep) as root:
        runner = Runner(job, root, log)
        if job.machine:
            root.install(["sudo"], log)
        for number, step in enumerate(steps, 1):
            if "if" in step and not holds(step["if"], job.contexts, bool(failed)) or "if" not in step and failed:
                continue
            name = filled(step.get("name") or step.get("run", step.get("uses")), job.contexts).strip().split("\n")[0]
            at = time.monotonic()
            good = runner.step(step)
            print(f"  {'ok' if good else 'FAILED':6} {time.monotonic() - at:5.0f} s  {name[:100]}", flush=True)
            done += 1
            if not good and not failed:
                failed = f"step {number}: {name[:60]}"
        summary = root.path / "tmp/summary.md"
        if summary.exists():
            print("  " + summary.read_text(encoding="utf-8").strip().replace("\n", "\n  "))
        if keep:
            print(f"  root kept in {root.path}")
    job.seconds, job.steps = time.monotonic() - begun, f"{done} of {len(steps)}"
    job.result = f"FAILED: {failed}" if failed else "passed"
    if job.seconds > 60 * int(job.declared["timeout-minutes"]):  # this machine may be slower than the forge's
        job.result += f", but took more than its {job.declared['timeout-minutes']} minutes"
    if failed:
        print("".join(path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)[-60:]))
        print(f"  log: {path.relative_to(PROJECT)}")


def run_all(jobs: list[Job], keep: bool) -> int:
    OUTPUT.mkdir(exist_ok=True)
    dirty = subprocess.run(["git", "-C", str(PROJECT), "status", "--porcelain"], capture_output=True, text=True, check=True).stdout
    if dirty:
        print("workflows: uncommitted changes are not in the clones")
    waiting = list(jobs)
    while waiting:
        done = {(job.workflow, job.key) for job in jobs} - {(job.workflow, job.key) for job in waiting}
        job = next((job for job in waiting if all((job.workflow, need) in done for need in job.needs)), None)
        if job is None:
            raise Unsupported(f"jobs wait for each other: {', '.join(sorted({job.name for job in waiting}))}")
        waiting.remove(job)
        needed = [other.result for other in jobs if other.workflow == job.workflow and other.key in job.needs]
        print(f"{job.name} {f'({job.cell})' if job.cell else ''}", flush=True)
        if job.elsewhere:
            job.result = f"not here: {job.elsewhere}"
        elif not all(result.startswith("passed") for result in needed):
            job.result = "not run: a job that it needs has not passed"
        elif "if" in job.declared and not holds(job.declared["if"], job.contexts, False):
            job.result = f"not run: {job.declared['if']}"
        else:
            run_job(job, keep)
    table([("JOB", "MATRIX", "ROOT", "STEPS", "SECONDS", "RESULT")] +
          [(job.name, job.cell, job.system, job.steps, f"{job.seconds:.0f}" if job.seconds else "", job.result) for job in jobs])
    return 1 if any("FAILED" in job.result or job.result.startswith("not run: a job") for job in jobs) else 0


def table(rows: Sequence[tuple[str, ...]]) -> None:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        print("  ".join(text.ljust(width) for text, width in zip(row, widths)).rstrip())


# ---- checks -------------------------------------------------------------------------------------------------------------

REFERENCE = re.compile(r"(?:^|(?<=[\s=\"']))(?:\./)?((?:scripts|packaging|docs|tests|python|examples|tools|bench)/[\w./*-]+|(?<=\./)\w+|check|quickstart)(?=$|[\s;\"'])",
                       re.MULTILINE)


def faults(path: Path) -> list[str]:
    """Defects of a workflow that a run would not show, or only on the forge."""
    text = path.read_text(encoding="utf-8")
    content = yaml.load(text, Loader=yaml.BaseLoader)
    found = [f"{path.name}: {line.strip()}: pin the action by its commit, and name the version in a comment"
             for line in text.splitlines() if re.match(r"\s*(- )?uses:", line) and not re.search(r"@[0-9a-f]{40} # v\d", line)]
    if content.get("permissions") != {"contents": "read"}:
        found.append(f"{path.name}: permissions must be contents: read; a job that needs more asks for it")
    if "concurrency" not in content:
        found.append(f"{path.name}: concurrency is missing")
    found += [f"{path.name}: job {key}: timeout-minutes is missing" for key, job in content["jobs"].items() if "timeout-minutes" not in job]
    for one in declared(path, "push"):
        for step in one.declared["steps"] if not one.elsewhere else ():  # every expression has a value
            script, options = filled(step.get("run", ""), one.contexts), {key: filled(text, one.contexts) for key, text in step.get("with", {}).items()}
            for text in step.get("env", {}).values():
                filled(text, one.contexts)
            holds(step.get("if", "true"), one.contexts, False)
            if "," in options.get("key", "") + options.get("restore-keys", ""):
                found.append(f"{one.name}: keys of caches contain no commas")
            found += [f"{one.name}: {name} does not exist" for name in REFERENCE.findall(script) if not glob.glob(str(PROJECT / name))]
    return found


def selected(options: argparse.Namespace) -> list[Job]:
    jobs = all_jobs(options.event, options.ref, options.workflow)
    wanted = {(job.workflow, job.key) for job in jobs if not options.job or job.key in options.job}
    unknown = set(options.job) - {job.key for job in jobs}
    if unknown:
        raise Unsupported(f"unknown job {', '.join(unknown)}; --list prints all")
    grown = 0
    while grown != len(wanted):
        grown = len(wanted)
        wanted |= {(job.workflow, need) for job in jobs if (job.workflow, job.key) in wanted for need in job.needs}
    values = [pair.split("=", 1) for pair in options.matrix]
    if any(len(pair) != 2 for pair in values):
        raise Unsupported("--matrix takes KEY=VALUE")
    jobs = [job for job in jobs if (job.workflow, job.key) in wanted and all(job.matrix.get(key, value) == value for key, value in values)]
    if not jobs:
        raise Unsupported("no job has these values in its matrix; --list prints all")
    return jobs


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--event", default="push", choices=("push", "pull_request", "schedule", "workflow_dispatch"))
    parser.add_argument("--ref", default="")
    for name in ("--workflow", "--job", "--matrix"):
        parser.add_argument(name, action="append", default=[])
    options = parser.parse_args()
    try:
        if options.check:
            found = [fault for path in sorted(FOLDER.glob("*.yml")) for fault in faults(path)]
            print(*found, f"{len(all_jobs('push', '', []))} jobs, {len(found)} faults", sep="\n")
            return 1 if found else 0
        jobs = selected(options)
        if options.list:
            table([("JOB", "MATRIX", "ROOT")] + [(job.name, job.cell, job.system or f"not here: {job.elsewhere}") for job in jobs])
            return 0
        return run_all(jobs, options.keep)
    except (Unsupported, roots.Failed, yaml.YAMLError) as error:
        print(f"workflows: {error}", file=sys.stderr)
        return 1
    except roots.Missing as error:
        print(error, file=sys.stderr)
        return 77


if __name__ == "__main__":
    sys.exit(main())
