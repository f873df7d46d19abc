# SPDX-License-Identifier: Apache-2.0
"""./check --coverage: lines and branches of the C sources that the plain tests reach (gcovr), and lines of the Python package (coverage.py).

Writes build-check/coverage-report/c/index.html and python/index.html. Tests with PyTorch are not part of it: python/bucketpool/torch is
left out. The build is not optimized, so that branches are those of the sources."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig

import check

BUILD = os.path.join(check.BUILDS, "coverage")
REPORT = os.path.join(check.BUILDS, "coverage-report")
PYTHON = os.path.join(check.BUILDS, "coverage-python")  # measures every Python process of the tests
LOG = os.path.join(check.BUILDS, "coverage.log")
LEAST = 15  # files with the most lines that no test reaches


def measured_python():
    """Environment in which each Python process measures itself: a folder of user packages with a .pth file."""
    packages = sysconfig.get_path("purelib", "posix_user", {"userbase": PYTHON})
    os.makedirs(packages)
    with open(os.path.join(packages, "coverage.pth"), "w", encoding="utf-8") as file:
        file.write("import importlib.util; importlib.util.find_spec('coverage') and __import__('coverage').process_startup()\n")
    settings = os.path.join(PYTHON, "settings")
    with open(settings, "w", encoding="utf-8") as file:
        file.write(f"[run]\nparallel = true\nsource = {os.path.abspath('python/bucketpool')}\n"
                   f"data_file = {os.path.join(PYTHON, 'data')}\nomit = */torch/*\n")
    return {"PYTHONUSERBASE": PYTHON, "COVERAGE_PROCESS_START": settings}


def python_coverage(environment):
    """(lines, covered lines, rows of files) of python/bucketpool."""
    def coverage(*words):
        return check.run([sys.executable, "-m", "coverage", *words, f"--rcfile={environment['COVERAGE_PROCESS_START']}"], LOG)

    result = os.path.join(PYTHON, "result.json")
    if not (coverage("combine") and coverage("html", "-d", os.path.join(REPORT, "python")) and coverage("json", "-o", result)):
        return None
    with open(result, encoding="utf-8") as file:
        found = json.load(file)
    rows = [(about["summary"]["num_statements"], about["summary"]["covered_lines"], path) for path, about in found["files"].items()]
    return found["totals"]["num_statements"], found["totals"]["covered_lines"], rows


def c_coverage():
    """gcovr's summary of the libraries and the command."""
    os.makedirs(os.path.join(REPORT, "c"))
    result = os.path.join(REPORT, "c", "summary.json")
    good = check.run(["gcovr", "--root", ".", "--filter", "src/", "--filter", "tools/", "--merge-mode-functions=separate", "-j", str(os.cpu_count()),
                      "--html-details", os.path.join(REPORT, "c", "index.html"), "--json-summary", result, BUILD], LOG)
    if not good:
        return None
    with open(result, encoding="utf-8") as file:
        return json.load(file)


def least(rows):
    for lines, covered, path in sorted(rows, key=lambda row: row[1] - row[0])[:LEAST]:
        if lines > covered:
            check.say(f"  {lines - covered:5} of {lines:5} lines not reached: {os.path.relpath(path)}")


def main():
    missing = [name for name, there in (("gcovr", shutil.which("gcovr")),
                                        ("python3-coverage", not subprocess.call([sys.executable, "-c", "import coverage"], stderr=subprocess.DEVNULL)))
               if not there]
    if missing:
        check.say(f"./check --coverage is skipped: {' and '.join(missing)} missing; apt-get install {' '.join(missing)}")
        return 77
    os.makedirs(check.BUILDS, exist_ok=True)
    for folder in (BUILD, REPORT, PYTHON):
        shutil.rmtree(folder, ignore_errors=True)
    if os.path.exists(LOG):
        os.remove(LOG)
    environment = {**os.environ, **measured_python(), "BUCKETPOOL_BRIEF": "1"}
    # counters of threads must be exact: a lost update can make a negative count
    options = ["-Db_coverage=true", "-Doptimization=0", "-Dc_args=-fprofile-update=atomic", "-Dcpp_args=-fprofile-update=atomic", "-Dkernels=disabled",
               "-Dtests=enabled", "-Ddocs=disabled"]
    if not check.run(["meson", "setup", BUILD, *options], LOG) or not check.run(["ninja", "-C", BUILD], LOG):
        check.count("coverage: builds", "failed")
        return check.finish()
    # ./check tells whether tests pass: with counters those fail that take memory or files away, which the counters need too
    check.execute(["meson", "test", "-C", BUILD, "--no-rebuild", "--timeout-multiplier=5", "--no-suite", "once"], LOG, "coverage", env=environment)
    c, python = c_coverage(), python_coverage(environment)
    check.count("coverage: reports", "passed" if c and python else "failed")
    if c and python:
        least((file["line_total"], file["line_covered"], file["filename"]) for file in c["files"])
        check.say(f"coverage: {c['line_percent']:.1f} % of lines, {c['branch_percent']:.1f} % of branches ({c['line_total']} lines of C)")
        least(python[2])
        check.say(f"coverage: {100 * python[1] / python[0]:.1f} % of lines of the Python package without torch ({python[0]} lines)")
    return check.finish()


if __name__ == "__main__":
    sys.exit(main())
