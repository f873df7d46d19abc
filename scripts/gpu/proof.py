# SPDX-License-Identifier: Apache-2.0
"""The run `proof`: our kernels and pools on the GPU's own driver, in order of value. Kernels come first, NCCL and the sanitizers last."""

import csv
import glob
import os
import re
import subprocess
import sys

import build
import machine
from parts import Part, absent, last_line, outcome_of, program

TEST_SECONDS = 45
KERNEL_TESTS = ("logprob", "head", "products", "cp", "loss", "cp-captures")
NCCL_TESTS = ("rules-nccl", "registration-one-rank", "registration-two-processes")
VARIANTS = 4  # of the first shape of log-probabilities; it and the groups of losses and rearrangements have kernels that no GPU has measured
PROFILED_SHAPE = "gpu: logprob 32768 x 50257 bf16, gradient fp32"


def wanted(made):
    """The programs of the suite and of the benchmark; in a rehearsal also the emulation."""
    return [*logprob_library(made), *sorted({path for path, _, _ in made.tests().values()}), build.BENCH, build.TRAIN,
            *(build.EMULATION if made.emulated else ())]


def logprob_library(made):
    """The library with the kernels, in a list; of a build without it an empty one."""
    return [path for path in made.libraries() if "logprob" in os.path.basename(path)]


def parts(context):
    """Lazily: what there is to run is known once it is built. `context`: see __main__.py."""
    made = context.build
    yield Part("build", 300, lambda running: made.make(running, wanted))
    context.describe_emulated()
    tests = made.tests()
    yield image(context)
    yield from (test(context, name, tests[name]) for name in KERNEL_TESTS if name in tests)
    groups = figure_groups(context)
    logprob = [group for group in groups if group.startswith("gpu: logprob")]
    changed = logprob[:VARIANTS] + [group for group in groups if group.startswith(("gpu: fused head", "gpu: loss", "gpu: rearrange"))]
    early = changed + [group for group in groups if group not in changed and group.startswith(("gpu: logprob", "gpu: range"))]
    late = [group for group in groups if group not in early]
    yield from (figures(context, group) for group in early)
    yield profile(context)
    yield driver_rules(context)
    others = [name for name in tests if name not in (*KERNEL_TESTS, *NCCL_TESTS, "rules-driver")]
    yield from (test(context, name, tests[name]) for name in sorted(others, key=lambda name: (not name.startswith("pool"), name)))
    yield from (figures(context, group) for group in late if not group.startswith("nccl"))
    yield training(context)
    yield from (test(context, name, tests[name]) for name in NCCL_TESTS if name in tests)
    yield from (figures(context, group) for group in late if group.startswith("nccl"))
    yield sanitizer(context, "memcheck", "clients/logprob/tests/test_gpu_logprob", "--small")
    yield sanitizer(context, "racecheck", "clients/logprob/tests/test_gpu_logprob", "--small", "random_*")
    yield sanitizer(context, "memcheck", "tests/test_pool_contract", "*scheduled on cuda*")


def image(context):
    """Loads the kernels of the build, and fatbins of a release that lie in BUILD/images."""
    libraries = list(filter(None, map(context.build.find, logprob_library(context.build))))
    if not libraries:
        return absent("kernels' image", "bucketpool-logprob was not built")
    files = [*libraries, *sorted(glob.glob(os.path.join(context.build.folders[0], "images", "*.fatbin")))]
    return program("kernels' image", 30, [sys.executable, os.path.join("scripts", "gpu", "image.py"), *files], context.env(build.LOGPROB_KERNELS),
                   with_document=True)


# ---- tests ---------------------------------------------------------------------------------------------------------------

RULE = re.compile(r"^(ok|holds|differs|failed|FAILS|skipped)\s+(\w+)(?:$|:\s*(.*))", re.MULTILINE)
WORDS = {"ok": "holds", "FAILS": "fails", "failed": "fails"}


def rules_in(text):
    """The outcome of each rule that a program tried, and what was found where it does not hold."""
    found = RULE.findall(text)
    return {"rules": {name: WORDS.get(word, word) for word, name, _ in found},
            "differing": {name: what for word, name, what in found if word in ("differs", "failed", "FAILS")}}


def test(context, name, known):
    """A program of the suite: the emulated driver's environment is the test's own."""
    path, arguments, env = known
    file = context.build.find(path)
    if file is None:
        return absent(name, "it was not built")
    env = context.env(**{key: value for key, value in env.items() if key != "LD_LIBRARY_PATH"})
    if name.startswith("registration"):
        find = lambda text: {"report": text.splitlines()[:60]}  # noqa: E731
    else:
        find = rules_in if name.startswith("rules") else None
    return program(name, 120 if name == "rules-nccl" else TEST_SECONDS, [file, *arguments], env, find=find)


def rule_names():
    """Of the driver's rules, in the order of the table and of the program."""
    with open(os.path.join("tests", "fakes", "cuda", "rules.h"), encoding="utf-8") as file:
        text = file.read()
    return re.findall(r"^ +X\((\w+),", text[text.index("#define BP_CUDA_RULES"):text.index("clang-format on")], re.MULTILINE)


def driver_rules(context):
    """All rules, in one process as long as that lives: after a rule that crashes it, hangs, or breaks its context, in a new one."""
    file = context.build.find("tests/rules_driver")
    if file is None:
        return absent("rules-driver", "it was not built")

    def function(running):
        names, found, code = rule_names(), {"rules": {}, "differing": {}}, 0
        failed = False
        while len(found["rules"]) < len(names) and running.left() > 2:
            before = len(found["rules"])
            code, text = running.command([file, *(["--after", names[before - 1]] if before else [])], context.env(), seconds=20)
            for key, value in rules_in(text).items():
                found[key].update(value)
            running.entry.update(found)
            done = len(found["rules"])
            if code in (0, 1, 77):
                failed = failed or code == 1
                break
            if code != 3 or done == before:  # 3: the rule before broke the context, and has its verdict
                found["rules"][names[done]] = "fails"
                found["differing"][names[done]] = f"the program ended there: {outcome_of(code, text)[1]}"
                failed = True
        counts = {word: list(found["rules"].values()).count(word) for word in ("holds", "differs", "fails", "skipped")}
        reason = ", ".join(f"{number} {word}" for word, number in counts.items() if number)
        if not found["rules"]:
            return outcome_of(code, running.output)
        return ("failed" if failed or counts["fails"] else "differs" if counts["differs"] else "passed"), reason

    return Part("rules-driver", 90, function)


# ---- figures ---------------------------------------------------------------------------------------------------------------


def small(context):
    """Sizes of a rehearsal."""
    return ["--divide", "4096", "--turns", "3"] if context.rehearse else []


def figure_groups(context):
    """The groups of bench_gpu, in order of value."""
    file = context.build.find(build.BENCH)
    if file is None:
        return []
    return subprocess.run([file, "--list", *small(context)], capture_output=True, text=True, timeout=30, env=context.env()).stdout.splitlines()


def figures(context, group):
    nccl = ["--nccl", context.nccl] if group.startswith("nccl") else []
    return program(f"figures {group}", 60, [context.build.find(build.BENCH), "--only", group, *small(context), *nccl],
                   context.env(build.LOGPROB_KERNELS), with_document=True)


METRICS = {
    "gpu__time_duration.sum": "ns",
    "dram__bytes.sum": "bytes",
    "dram__throughput.avg.pct_of_peak_sustained_elapsed": "dram_percent",
    "sm__warps_active.avg.pct_of_peak_sustained_active": "occupancy_percent",
    "launch__registers_per_thread": "registers",
}


def read_profile(text):
    """Rows of ncu --csv, which come behind the program's own output: one for each metric of each launch."""
    lines = [line for line in text.splitlines() if line.startswith('"')]
    launches = {}
    for row in csv.DictReader(lines):
        if row.get("Metric Name") in METRICS and row.get("Metric Value"):
            launch = launches.setdefault(row["ID"], {"group": "ncu", "name": row["Kernel Name"]})
            try:
                launch[METRICS[row["Metric Name"]]] = float(row["Metric Value"].replace(",", ""))
            except ValueError:
                launch[METRICS[row["Metric Name"]]] = row["Metric Value"]
    return list(launches.values())


def profile(context):
    """Hardware counters of the forward and the backward kernel."""
    name, file = "ncu", context.build.find(build.BENCH)
    found = context.find_tool("ncu")
    if found is None or file is None:
        return absent(name, "ncu is not installed" if file else "bench_gpu was not built")

    def function(running):
        group = next(g for g in figure_groups(context) if context.rehearse or g == PROFILED_SHAPE)
        code, text = running.command([found, "--csv", "--print-units", "base", "--clock-control", "none", "--launch-count", "6", "--kernel-name",
                                      "regex:^bp_(forward_bf16|gradient_bf16_fp32)$", "--metrics", ",".join(METRICS), file, "--only", group, "--turns",
                                      "1", *(["--divide", "4096"] if context.rehearse else [])], context.env(build.LOGPROB_KERNELS))
        running.entry["figures"] = read_profile(text)
        if code == 0 and not running.entry["figures"]:
            return "failed", "ncu printed no metrics"
        return outcome_of(code, text)

    return Part(name, 60, function)


# ---- a training loop ---------------------------------------------------------------------------------------------------------

TRAINING = [(policy, mode) for mode in ((), ("--graph",), ("--graph", "--register")) for policy in ("scheduled", "max", "fixed", "dynamic")
            if policy != "dynamic" or not mode]


def training(context):
    """examples/fsdp_train: losses of every policy, eager, as a graph and registered, have the same bits; the pool takes the planned bytes.
    Equality with the host's losses is recorded, not required: its compiler is another one."""
    file = context.build.find(build.TRAIN)
    if file is None:
        return absent("fsdp_train", "it was not built")

    def once(running, policy, mode):
        command = [file, "--policy", policy, "--steps", "10" if context.rehearse else "30", "--check-gradients", *mode]
        if "--register" in mode:
            command += ["--nccl", context.nccl]
        code, text = running.command(command, context.env(build.TRAIN_KERNELS), seconds=TEST_SECONDS)
        return code, [line for line in text.splitlines() if line.startswith("step ")], text

    def function(running):
        seen, wrong, rows = {}, [], running.entry.setdefault("figures", [])
        host_exit, host, text = once(running, "max", ())
        for policy, mode in TRAINING[::3] if context.rehearse else TRAINING:
            if "--register" in mode and machine.nccl_version(context.nccl) is None:
                continue
            code, losses, text = once(running, policy, ("--device", "cuda", *mode))
            if "built without nvcc" in text:
                return "skipped", last_line(text)
            name = " ".join((policy, *mode)).replace("--", "")
            if code != 0:
                wrong.append(f"{name}: {outcome_of(code, text)[1]}")
                continue
            peak, planned = map(int, re.search(r"peak (\d+) bytes, planned (\d+)", text).groups())
            seen[name] = losses
            rows.append({"group": "fsdp_train", "name": name, "pool_peak_bytes": peak, "planned_bytes": planned,
                         "ns_median": float(re.search(r"time (\S+) ms a step", text).group(1)) * 1e6})
            running.run.results.write()
        first = next(iter(seen.values()), [])
        running.entry.update(losses=first[::10], same_bits_as_host=first == host if host_exit == 0 else None)
        wrong += [f"{name}: other losses" for name, losses in seen.items() if losses != first]
        wrong += [f"{row['name']}: other bytes than planned" for row in rows if row["pool_peak_bytes"] != row["planned_bytes"]]
        return "failed" if wrong else "passed", "; ".join(wrong)

    return Part("fsdp_train", 90, function)


# ---- compute-sanitizer ---------------------------------------------------------------------------------------------------------


def sanitizer(context, kind, path, *arguments):
    """Refused calls are provoked by tests on purpose: API errors are not reported."""
    name, file = f"compute-sanitizer {kind}: {os.path.basename(path)}", context.build.find(path)
    found = context.find_tool("compute-sanitizer")
    if found is None or file is None:
        return absent(name, "compute-sanitizer is not installed" if file else "the program was not built")

    def function(running):
        code, text = running.command([found, "--tool", kind, "--report-api-errors", "no", "--error-exitcode", "9", file, *arguments],
                                     context.env(build.LOGPROB_KERNELS, BUCKETPOOL_BRIEF="1"))
        return judged(code, text)

    return Part(name, 75, function)


def judged(code, text):
    """The outcome of a program under compute-sanitizer."""
    if "Device not supported" in text:
        return "skipped", "compute-sanitizer does not support this device or system"
    if code == 0 and not re.search(r"^\[ +OK *\]", text, re.MULTILINE):
        return "failed", f"the program ran no test: {last_line(text)}"
    if code == 0 and "ERROR SUMMARY: 0 errors" not in text and "RACECHECK SUMMARY: 0 hazards" not in text:
        return "failed", "compute-sanitizer printed no summary"
    return outcome_of(code, text)

