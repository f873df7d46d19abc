"""./check --gpu: builds with a C compiler, meson and ninja alone, runs everything that can run on this machine's GPU, and writes one JSON of
outcomes and figures to bench/results. A part that fails does not stop the others. Exits 0, 1 or, where there is no GPU, 77 with the reason.

For trying it out without a GPU: BP_TEST_DRIVER=FILE takes an emulated driver's libcuda.so.1; the JSON then stays in the build folder."""

import ctypes
import datetime
import glob
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import time

ROOT = os.getcwd()
BUILD = os.path.join(ROOT, "build-gpu")
LOG = os.path.join(BUILD, "check-gpu.log")
EMULATED = os.environ.get("BP_TEST_DRIVER", "real") not in ("", "real")
BEGIN = time.monotonic()
FOLDER = os.path.join(BUILD, "build")
# What goes with the emulated driver.
RULES_KERNELS, LOGPROB_KERNELS = "tests/fakes/cuda/libfake_cuda_kernels.so", "tests/simt/libfake_logprob_kernels.so"
TRAIN_KERNELS = "tests/libfake_train_kernels.so"
CUBLAS = "tests/fakes/cublas/libcublas.so.13"
MOST_SECONDS = 460  # of all, so that the JSON is written before anyone loses patience


def left(most):
    """Seconds that a part may take."""
    return max(10, min(most, MOST_SECONDS - (time.monotonic() - BEGIN)))


# ---- the machine -------------------------------------------------------------------------------------------------------


def driver_of_this_machine():
    """What the driver says, or the reason why there is no GPU."""
    name = os.environ["BP_TEST_DRIVER"] if EMULATED else "libcuda.so.1"
    try:
        driver = ctypes.CDLL(name)
    except OSError as error:
        return None, f"no CUDA driver: {error}"
    code = driver.cuInit(0)
    if code != 0:
        return None, f"the CUDA driver does not start: cuInit answers {code}"
    number, version, text = ctypes.c_int(), ctypes.c_int(), ctypes.create_string_buffer(128)
    if driver.cuDeviceGetCount(ctypes.byref(number)) != 0 or number.value == 0:
        return None, "the CUDA driver finds no GPU"
    driver.cuDriverGetVersion(ctypes.byref(version))
    device = ctypes.c_int()
    driver.cuDeviceGet(ctypes.byref(device), 0)
    driver.cuDeviceGetName(text, 128, device)
    return {"device": text.value.decode(errors="replace"), "devices": number.value, "driver_version": version.value}, None


def output_of(*command):
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=30).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""


def nccl_library():
    """The copy that a runtime on this machine would load: named, the system's, or the one that Python packages bring."""
    named = os.environ.get("BP_TEST_NCCL")
    if EMULATED and not named:
        named = os.path.join(os.path.dirname(os.environ["BP_TEST_DRIVER"]), "..", "nccl", "libnccl.so.2")
        return os.path.abspath(named) if os.path.exists(named) else None
    if named:
        return os.path.abspath(named) if "/" in named else named
    folders = [os.path.join(p, "nvidia", "nccl", "lib") for p in sys.path] + ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu"]
    found = [f for folder in folders for f in sorted(glob.glob(os.path.join(folder, "libnccl.so.2*")))]
    return found[0] if found else "libnccl.so.2"


def cublas_folder():
    """Where the loader may not look: a toolkit's or the Python packages' cuBLAS of the newest release. "": it is nowhere."""
    if EMULATED:
        return os.path.dirname(os.path.join(FOLDER, CUBLAS))
    folders = ["/usr/local/cuda/lib64", *(f for p in sys.path for f in sorted(glob.glob(os.path.join(p, "nvidia", "*", "lib"))))]
    return next((f for release in (13, 12) for f in folders if os.path.exists(os.path.join(f, f"libcublas.so.{release}"))), "")


def nccl_version(library):
    try:
        version = ctypes.c_int()
        return version.value if ctypes.CDLL(library).ncclGetVersion(ctypes.byref(version)) == 0 else None
    except (OSError, AttributeError, TypeError):
        return None


def describe(machine, nccl):
    release = re.search(r"release ([\d.]+)", output_of("nvcc", "--version"))
    smi = "" if EMULATED else output_of("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    commit = output_of("git", "describe", "--always", "--dirty", "--tags") or os.environ.get("BP_COMMIT", "")
    return {
        "format": "bucketpool.gpu/1",
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "commit": commit or "unknown: not a git checkout, and BP_COMMIT is not set",
        "emulated": EMULATED,
        **machine,
        "driver_release": smi.splitlines()[0] if smi else None,
        "cuda_toolkit": release.group(1) if release else None,
        "nccl_version": nccl_version(nccl) if nccl else None,
        "compiler": "".join(output_of("cc", "--version").splitlines()[:1]),
        "kernel": platform.release(),
        "cores": os.cpu_count(),
    }


# ---- parts -------------------------------------------------------------------------------------------------------------

tests = []


def note(name, outcome, seconds=0.0, reason="", more=None):
    tests.append({"name": name, "outcome": outcome, "seconds": round(seconds, 2), **({"reason": reason} if reason else {}),
                  **(more or {})})
    print(f"  {outcome:8} {name}  {seconds:.1f} s{'  ' + reason if reason else ''}", flush=True)


def end_group(process):
    """Ends what was started and everything that it has started; what it had printed is kept."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            return process.communicate(timeout=8)[0]
        except ProcessLookupError:
            return process.communicate()[0]
        except subprocess.TimeoutExpired:
            continue
    return ""


def run(command, most, env=None):
    """Exit status (124: too long) and output; everything goes to the log too."""
    try:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                                   start_new_session=True, env={**os.environ, **(env or {})})
        try:
            output = process.communicate(timeout=left(most))[0]
            code = process.returncode
        except subprocess.TimeoutExpired:
            code, output = 124, end_group(process)
    except OSError as error:
        code, output = 127, str(error)
    with open(LOG, "a", encoding="utf-8") as log:
        print("$", " ".join(command), file=log)
        print(output, file=log)
    return code, output


def last_line(text):
    lines = [line.strip() for line in (text or "").splitlines() if line.strip()]
    return lines[-1][:200] if lines else ""


def tool(name, module):
    return [name] if shutil.which(name) else [sys.executable, "-m", module]


def programs():
    """What ninja has to build: the programs of the suite and the benchmark."""
    known = json.loads(output_of(*tool("meson", "mesonbuild.mesonmain"), "introspect", "--tests", FOLDER) or "[]")
    paths = {test["cmd"][0] for test in known if any(s.split(":")[-1] == "gpu" for s in test["suite"])}
    emulated = [RULES_KERNELS, TRAIN_KERNELS, CUBLAS, *([LOGPROB_KERNELS] if shutil.which("c++") else [])] if EMULATED else []
    return sorted(os.path.relpath(p, FOLDER) for p in paths) + ["bench/bench_gpu", "examples/fsdp_train", *emulated]


def build():
    """Configured anew, as somebody would who has just unpacked it."""
    options = ["-Dformats=disabled", "-Dmpi=disabled", "-Dcairo=disabled", "-Ddocs=disabled", "-Dcmocka=stand-in"]
    begin = time.monotonic()
    code, output = run([*tool("meson", "mesonbuild.mesonmain"), "setup", FOLDER, *options], 60)
    if code == 0:
        code, output = run([*tool("ninja", "ninja"), "-C", FOLDER, *programs()], 240)
    note("build", "passed" if code == 0 else "failed", time.monotonic() - begin, "" if code == 0 else last_line(output))
    if code != 0:
        print(output[-3000:])
    return code == 0


RULE = re.compile(r"^(ok|holds|failed|FAILS|skipped)\s+(\w+)(?=:)|^(ok)\s+(\w+)$", re.MULTILINE)
WORDS = {"ok": "holds", "FAILS": "fails", "failed": "fails"}


def details(result):
    """The outcome of each rule that a program tried, and what registration reported."""
    text = result.get("stdout") or ""
    rules = {m.group(2) or m.group(4): WORDS.get(m.group(1) or m.group(3), m.group(1)) for m in RULE.finditer(text)}
    if "registration" in result["name"]:
        return {"report": text.splitlines()[:40]}
    return {"rules": rules} if rules else None


OUTCOMES = {"OK": "passed", "EXPECTEDFAIL": "passed", "SKIP": "skipped"}


def suite(env):
    """The tests that meson knows for a GPU, one after the other: they measure nothing, but hold streams up and look on."""
    command = [*tool("meson", "mesonbuild.mesonmain"), "test", "-C", FOLDER, "--no-rebuild", "--suite", "gpu", "--num-processes", "1"]
    code, output = run(command, 330, env)
    try:
        with open(os.path.join(FOLDER, "meson-logs", "testlog.json"), encoding="utf-8") as file:
            results = [json.loads(line) for line in file]
    except OSError:
        results = []
    for result in results:
        outcome = OUTCOMES.get(result["result"], "failed")
        reason = "" if outcome == "passed" else last_line(result.get("stdout") or result.get("stderr"))
        note(result["name"].split(" / ")[-1], outcome, result.get("duration", 0), reason, details(result))
        if outcome == "failed":
            print("\n".join(((result.get("stdout") or "") + (result.get("stderr") or "")).splitlines()[-25:]))
    if code == 124 or not results:
        note("suite gpu", "failed", 0, "took too long" if code == 124 else last_line(output))


def sanitizer(env):
    """The contract under compute-sanitizer, which sees bad addresses of copies and fills, and memory that is left. The contract provokes
    errors of calls on purpose: those are not reported."""
    name = "compute-sanitizer memcheck: pool-contract"
    program = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    if EMULATED or not os.path.exists(program):
        return note(name, "skipped", 0, "emulated" if EMULATED else "compute-sanitizer is not installed")
    begin = time.monotonic()
    code, output = run([program, "--tool", "memcheck", "--report-api-errors", "no", "--error-exitcode", "9",
                        os.path.join(FOLDER, "tests", "test_pool_contract"), "*scheduled on cuda*"], 90, env)
    if "Device not supported" in output:
        return note(name, "skipped", time.monotonic() - begin, "compute-sanitizer does not support this device or system")
    return note(name, "passed" if code == 0 else "failed", time.monotonic() - begin, "" if code == 0 else last_line(output))


def figures(name, command, env):
    """A program that writes figures as JSON."""
    begin = time.monotonic()
    path = os.path.join(BUILD, re.sub(r"\W+", "-", name) + ".json")
    code, output = run([*command, "--json", path], 120, env)
    outcome = "passed" if code == 0 else "skipped" if code == 77 else "failed"
    note(name, outcome, time.monotonic() - begin, "" if code == 0 else last_line(output))
    if code != 0:
        return []
    with open(path, encoding="utf-8") as file:
        return json.load(file)["figures"]


TRAINING = [(policy, mode) for policy in ("fixed", "max", "scheduled", "dynamic") for mode in ((), ("--graph",), ("--graph", "--register"))
            if policy != "dynamic" or not mode]


def train(policy, mode, nccl, env):
    """Lines of the losses and the rest of what examples/fsdp_train prints, or None and why not."""
    command = [os.path.join(FOLDER, "examples", "fsdp_train"), "--policy", policy, "--steps", "30", "--check-gradients", *mode]
    if "--register" in mode:
        command += ["--nccl", nccl]
    code, output = run(command, 60, env)
    lines = output.splitlines()
    if code != 0:
        return None, last_line(output)
    return [line for line in lines if line.startswith("step ")], output


def training(nccl, env):
    """A training loop: the losses of every policy, eager, as a graph and registered, have the same bits; the pool takes the plan's bytes.
    Whether the host's losses have them too is noted, and no rule: its compiler is another one."""
    begin, rows, seen = time.monotonic(), [], {}
    host, output = train("max", (), nccl, env)
    for policy, mode in TRAINING:
        if "--register" in mode and not (nccl and nccl_version(nccl)):
            continue
        losses, output = train(policy, ("--device", "cuda", *mode), nccl, env)
        if losses is None:
            without = "built without nvcc" in output
            note("fsdp_train", "skipped" if without else "failed", time.monotonic() - begin,
                 output if without else f"{policy} {' '.join(mode)}: {output}")
            return []
        peak, planned = map(int, re.search(r"peak (\d+) bytes, planned (\d+)", output).groups())
        name = " ".join((policy, *mode)).replace("--", "")
        seen[name] = losses
        rows.append({"group": "fsdp_train", "name": name, "pool_peak_bytes": peak, "planned_bytes": planned,
                     "ns_median": float(re.search(r"time (\S+) ms a step", output).group(1)) * 1e6})
    first = next(iter(seen.values()))
    differ = [name for name, losses in seen.items() if losses != first]
    wrong = [row["name"] for row in rows if row["pool_peak_bytes"] != row["planned_bytes"]]
    reason = "; ".join(filter(None, (differ and f"other losses: {', '.join(differ)}", wrong and f"other bytes: {', '.join(wrong)}")))
    note("fsdp_train", "failed" if reason else "passed", time.monotonic() - begin, reason,
         {"runs": list(seen), "losses": first[::10], "same_bits_as_host": first == host})
    return rows


def figure_table(rows):
    print(f"\n  {'':74} {'median':>12} {'ratio':>7}  95 of 100")
    for row in rows:
        value = row["ns_median"]
        text = f"{value:.0f} ns" if value < 1e5 else f"{value / 1e6:.2f} ms"
        interval = row.get("ratio_interval_95")
        ratio = f"{row['ratio_median']:7.2f}  {interval[0]:.2f} to {interval[1]:.2f}" if interval else ""
        if "bandwidth_fraction" in row:
            of_logit = f"{row['bytes_per_logit']:g} bytes a logit, " if "bytes_per_logit" in row else ""
            ratio += f"  {of_logit}{row['bandwidth_fraction']:.3f} of the copy's bandwidth"
        print(f"  {(row['group'] + ': ' + row['name'])[:74]:74} {text:>12} {ratio}")


def write(document):
    slug = re.sub(r"[^a-z0-9]+", "-", document["device"].lower()).strip("-") or "gpu"
    folder = BUILD if EMULATED else os.path.join(ROOT, "bench", "results")
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, f"{'emulated' if EMULATED else 'gpu'}-{slug}-{document['date'][:10]}.json")
    with open(path, "w", encoding="utf-8") as file:
        json.dump(document, file, indent=2)
        file.write("\n")
    return os.path.relpath(path, ROOT)


def main():
    machine, reason = driver_of_this_machine()
    if machine is None:
        print(f"./check --gpu is skipped: {reason}")
        return 77
    nccl = nccl_library()
    shutil.rmtree(BUILD, ignore_errors=True)
    os.makedirs(BUILD)
    document = describe(machine, nccl)
    if EMULATED:
        print("EMULATED: no GPU takes part in this; outcomes and figures say nothing about one.")
    print(f"{document['device']}, driver of CUDA {machine['driver_version'] // 1000}.{machine['driver_version'] % 1000 // 10}, NCCL {document['nccl_version'] or 'not found'}, "
          f"{document['commit']}", flush=True)
    env = {"BP_TEST_DRIVER": "real"}
    folders = [cublas_folder(), os.environ.get("LD_LIBRARY_PATH", "")]
    if nccl:
        env["BP_TEST_NCCL"] = nccl
        folders.insert(0, os.path.dirname(nccl))
    if EMULATED:  # found as the machine's would be
        folders.insert(0, os.path.dirname(os.path.abspath(os.environ["BP_TEST_DRIVER"])))
        kernels = "kernels=" + os.path.join(FOLDER, RULES_KERNELS)
        env["FAKE_CUDA"] = ",".join(filter(None, (os.environ.get("FAKE_CUDA"), kernels)))
    env["LD_LIBRARY_PATH"] = ":".join(f for f in folders if f)
    document["tests"], document["figures"] = tests, []
    if build():
        suite(env)
        sanitizer(env)
        document["figures"] += figures("bench_gpu", [os.path.join(FOLDER, "bench", "bench_gpu"),
                                                     *(("--turns", "11", "--divide", "4096") if EMULATED else ()),
                                                     *(("--nccl", nccl) if nccl else ())],
                                       {**env, "FAKE_CUDA": "kernels=" + os.path.join(FOLDER, LOGPROB_KERNELS)})
        document["figures"] += training(nccl, {**env, "FAKE_CUDA": "kernels=" + os.path.join(FOLDER, TRAIN_KERNELS)})
        if EMULATED:
            note("torch_allocator", "skipped", 0, "emulated")
        else:
            document["figures"] += figures("torch_allocator", [sys.executable, os.path.join("bench", "torch", "allocator.py")], env)
    document["seconds"] = round(time.monotonic() - BEGIN, 1)
    if document["figures"]:
        figure_table(document["figures"])
    counts = {outcome: sum(t["outcome"] == outcome for t in tests) for outcome in ("passed", "failed", "skipped")}
    print(f"\n{document['device']}{' (EMULATED)' if EMULATED else ''}: {write(document)}, {document['seconds']:.0f} s")
    print(f"{counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped")
    return 1 if counts["failed"] or not counts["passed"] else 0


sys.exit(main())
