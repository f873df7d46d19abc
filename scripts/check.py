# SPDX-License-Identifier: Apache-2.0
"""The stages of ./check: build legs with their tests, and static checks. Prints the progress and the time of each, and one counted line."""

import functools
import glob
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
import traceback
from concurrent.futures import ThreadPoolExecutor

import progress
from progress import BUILDS, execute, lane, run, say, show_end
from sources import tracked

FULL = sys.argv[1:] == ["--full"]
LINES = ["-Dc_args=-g1", "-Dcpp_args=-g1"]  # reports need lines, no variables
LANES = 2  # legs beside each other: while one waits for a test that runs alone, the other compiles
# ccache: another clone of the same sources compiles to the same
os.environ.setdefault("CCACHE_BASEDIR", os.getcwd())
os.environ.setdefault("CCACHE_NOHASHDIR", "1")
GIGABYTES = 3  # of all builds
counts = {"passed": 0, "failed": 0, "skipped": 0}
failures = []


# Compilers whose warnings are known: a newer one may have new ones, which must not fail somebody's machine.
KNOWN_COMPILERS = ("gcc 12", "gcc 13", "gcc 14")


def werror():
    version = subprocess.run(["gcc", "-dumpversion"], capture_output=True, text=True, check=True).stdout.split(".")[0]
    return "true" if f"gcc {version.strip()}" in KNOWN_COMPILERS else "false"


def begin(name):
    """The time at which a stage begins."""
    say(f"{name} ...")
    lane.cpu = 0
    return time.monotonic()


def took(name, begun):
    say(f"{name}: {time.monotonic() - begun:.0f} s, of processors {lane.cpu:.0f} s")


def count(name, outcome, reason=""):
    counts[outcome] += 1
    if outcome == "failed":
        failures.append(f"{name}{' (' + reason + ')' if reason else ''}")
    if outcome != "passed":
        say(f"  {outcome}: {name}{' (' + reason + ')' if reason else ''}")


def count_tests(build):
    """Counts from what meson recorded, a JSON object a line; returns that, nothing where no test ran."""
    recorded = os.path.join(build, "meson-logs", "testlog.json")
    if not os.path.exists(recorded):
        return []
    with open(recorded, encoding="utf-8") as file:
        results = [json.loads(line) for line in file]
    for result in results:
        outcome = {"OK": "passed", "EXPECTEDFAIL": "passed", "SKIP": "skipped"}.get(result["result"], "failed")
        reason = "".join((result.get("stdout") or "").strip().splitlines()[-1:]) if outcome == "skipped" else ""
        if result["result"] == "TIMEOUT":
            reason = f"timed out after {result['duration']:.0f} s"
        count(f"{os.path.basename(build)}: {result['name']}", outcome, reason)
        if outcome == "failed":
            say((result.get("stdout") or "")[-3000:])
            say((result.get("stderr") or "")[-3000:])
    return results


def show_times(results):
    """Seconds of each suite and of the slowest tests, as they ran beside each other."""
    suites, tests = {}, []
    for result in results:
        names, _, test = result["name"].rpartition(" / ")
        tests.append((result["duration"], test))
        for suite in names.rpartition(":")[2].split("+"):
            suites[suite] = suites.get(suite, 0) + result["duration"]
    say("  seconds of suites:", ", ".join(f"{suite} {seconds:.0f}" for suite, seconds in sorted(suites.items(), key=lambda item: -item[1]) if seconds >= 1))
    say("  slowest tests:", ", ".join(f"{test} {seconds:.0f}" for seconds, test in sorted(tests, reverse=True)[:10]))


def run_tests(build, log, title, suites, without, options=(), env=None):
    """Runs the tests of suites (none: of all), counts them and shows their times; whether any ran."""
    words = [word for suite in suites for word in ("--suite", suite)] + [word for suite in without for word in ("--no-suite", suite)]
    # twice the time: another leg may run beside it. Failures are shown from meson's own log.
    before = os.path.getsize(log) if os.path.exists(log) else 0
    execute(["meson", "test", "-C", build, "--timeout-multiplier=2", *words, *options], log, title, env=env)
    results, counted = count_tests(build), progress.last_count(log, before)
    if results and counted and len(results) < counted[1]:  # somebody has killed meson
        count(title, "failed", f"ended after {len(results)} of {counted[1]} tests")
    if results:
        show_times(results)
    else:
        show_end(log)
    return bool(results)


def linker():
    """The programs of tests are many: links them in half the time, where there is one that does."""
    name = next((name for name in ("gold", "lld") if shutil.which("ld." + name)), None)
    return [f"-Dc_link_args=-fuse-ld={name}", f"-Dcpp_link_args=-fuse-ld={name}"] if name else []


def leg(name, options, environment=None, suites=(), builds_all=True, without=("once",)):
    """Configures, builds and tests one way of building. With builds_all=False only what its suites run is built. Suite "once" is for the plain
    build: messages, growth and time, which another way of building does not change."""
    begun = begin(name)
    build = os.path.join(BUILDS, name)
    log = os.path.join(BUILDS, name + ".log")
    shutil.rmtree(build, ignore_errors=True)
    if os.path.exists(log):
        os.remove(log)
    env = {**os.environ, **(environment or {})}
    built = run(["meson", "setup", build, "-Dtests=enabled", "-Dwerror=" + werror(), *linker(), *options], log, env=env)
    built = built and (not builds_all or run(["ninja", "-C", build], log, env=env))
    if built:
        built = run_tests(build, log, f"{name}: tests", suites, without, ["--no-rebuild"] * builds_all, env)
    count(f"{name}: builds and runs its tests", "passed" if built else "failed")
    took(name, begun)
    return built


def load(times):
    """The plain build's tests, again and again, with three times as many at once as there are processors."""
    build, log = os.path.join(BUILDS, "plain"), os.path.join(BUILDS, "load.log")
    if not os.path.exists(os.path.join(build, "build.ninja")):
        run(["meson", "setup", build, "-Dtests=enabled", *linker(), *LINES], log)
    if not run(["ninja", "-C", build], log):
        count("load: builds", "failed")
        return
    for turn in range(1, times + 1):
        begun = begin(f"load: run {turn} of {times}")
        execute(["meson", "test", "-C", build, "--no-rebuild", f"--num-processes={3 * os.cpu_count()}"], log, f"load: run {turn} of {times}")
        count_tests(build)
        took(f"load: run {turn} of {times}, {len(failures)} failed until now", begun)


def compiled():
    """Sources that the plain build is made of: of a part and its stand-in only one is."""
    build = os.path.join(BUILDS, "plain")
    with open(os.path.join(build, "compile_commands.json"), encoding="utf-8") as file:
        return {os.path.relpath(os.path.join(build, command["file"])) for command in json.load(file)}


def static_checks():
    begun = begin("static")
    log = os.path.join(BUILDS, "static.log")
    sources = [f for f in tracked(".c", ".h") if not f.endswith(".in")]
    formatter = shutil.which("clang-format-14")
    if formatter:
        good = run([formatter, "--dry-run", "-Werror", *sources], log)
        count("clang-format", "passed" if good else "failed")
    else:
        count("clang-format", "skipped", "clang-format-14 is not installed")
    tidy = shutil.which("clang-tidy-14")
    if tidy:
        product = sorted(f for f in compiled() & set(sources) if f.startswith(("src/", "clients/logprob/src/", "tools/")))
        if not shutil.which("mpicc"):  # without its headers there is nothing to look at
            product = [f for f in product if not f.startswith("src/comms/mpi/")]
        # a third of the usual budget of paths in a function takes a third of the time; --full has all of it
        budget = [] if FULL else [f"--extra-arg={word}" for word in ("-Xclang", "-analyzer-config", "-Xclang", "max-nodes=75000")]
        names = os.path.join(BUILDS, "tidy.files")
        with open(names, "w", encoding="utf-8") as file:
            file.write("\n".join(product))
        good = run(["xargs", "-a", names, "-P", str(os.cpu_count()), "-n", "8", tidy, "--quiet", "-p", os.path.join(BUILDS, "plain"),
                    "--warnings-as-errors=*", *budget], log)
        count("clang-tidy", "passed" if good else "failed")
    else:
        count("clang-tidy", "skipped", "clang-tidy-14 is not installed")
    pages = execute(["docs/build", os.path.join(BUILDS, "site")], log, "static", env={**os.environ, "BUCKETPOOL_BUILD": os.path.join(BUILDS, "plain")})
    count("the site of the documentation", {0: "passed", 77: "skipped"}.get(pages, "failed"), "scripts/packages docs installs what it needs" if pages == 77 else "")
    if pages not in (0, 77):
        show_end(log)
    good = run([sys.executable, "scripts/language.py"], log)
    count("wording", "passed" if good else "failed")
    subjects = subprocess.run([sys.executable, "scripts/commits.py"], capture_output=True, text=True, check=False)
    count("subjects of commits", {0: "passed", 77: "skipped"}.get(subjects.returncode, "failed"), subjects.stdout.strip() if subjects.returncode else "")
    took("static", begun)


def pkg_config(prefix, libraries, *options):
    """Its words for libraries of a prefix, of which it escapes some bytes as a shell does."""
    env = {**os.environ, "PKG_CONFIG_PATH": os.path.join(prefix, "lib", "pkgconfig")}
    printed = subprocess.run(["pkg-config", *options, *libraries], env=env, check=True, capture_output=True).stdout
    return [os.fsdecode(os.fsencode(word)) for word in shlex.split(os.fsdecode(printed))]


def installation():
    """Installs into an empty prefix and builds examples against it, shared and static, as a user would."""
    begun = begin("install")
    log = os.path.join(BUILDS, "install.log")
    prefix = os.path.join(BUILDS, "prefix")
    shutil.rmtree(prefix, ignore_errors=True)
    build = os.path.join(BUILDS, "installed")
    shutil.rmtree(build, ignore_errors=True)
    good = run(["meson", "setup", build, "--prefix", prefix], log) and run(["meson", "install", "-C", build], log)
    known = json.loads(subprocess.run(["meson", "introspect", "--targets", build], capture_output=True, text=True, check=False).stdout or "[]")
    more = [target["name"] for target in known if target["type"] == "executable" and not target["installed"]]
    count("install: compiles no tests, benchmarks or examples" + f": {', '.join(more[:9])}" * bool(more), "failed" if more or not known else "passed")
    command = os.path.join(prefix, "bin", "bucketpool")  # finds its libraries by itself
    works = good and run([command, "plan", "examples/models/Llama-3.1-8B"], log, env={k: v for k, v in os.environ.items() if k != "LD_LIBRARY_PATH"})
    count("install: the command", "passed" if works else "failed")
    examples = [("plan_model", "", "gcc", "bucketpool-formats", [], "examples/models/Llama-3.1-8B"),
                ("logprob", "", "gcc", "bucketpool-logprob", [], ".")]
    if shutil.which("mpicc") and shutil.which("mpirun"):
        examples.append(("cp_sft_loss", "examples/cp_sft_model.c", "mpicc", "bucketpool-logprob bucketpool-mpi",
                         ["tests/mpi/mpirun.sh", "2", "--cp", "2"], "."))
        parts = [part for part in sorted(glob.glob("examples/fsdp_train/*.c"))
                 if os.path.basename(part) not in ("kernels.c", "main.c", "ranks_none.c")]
        examples.append(("fsdp_train/main", " ".join(["-D_GNU_SOURCE -ffp-contract=off", *parts]), "mpicc", "bucketpool-mpi",
                         ["examples/mpi", "2", "--steps", "2"], "."))
    for example, more, compiler, libraries, start, folder in examples:
        # static: of our libraries the archives, of everything else what the system has
        archives = ["-l" + library for library in [*reversed(libraries.split()), "bucketpool"]]
        flags_of = functools.partial(pkg_config, prefix, libraries.split())
        static = ["-Wl,-Bstatic", *archives, "-Wl,-Bdynamic,--as-needed", *(flags_of("--static", "--libs") if good else [])]
        for kind, flags in (("shared", flags_of("--libs") if good else []), ("static", static)):
            program = os.path.join(BUILDS, f"{os.path.dirname(example) or example}-{kind}")
            command = [compiler, "-std=c17", f"examples/{example}.c", *more.split(), "-o", program, *(flags_of("--cflags") if good else []),
                       f"-L{prefix}/lib", *flags, "-lm"]
            loaded = {"LD_LIBRARY_PATH": os.path.join(prefix, "lib")} if kind == "shared" else {}
            works = good and run(command, log) and run(
                [*start[:2], program, *start[2:]], log, cwd=folder, env={**os.environ, **loaded})
            count(f"install: {example}, {kind}", "passed" if works else "failed")
    clients, env = os.path.join(BUILDS, "clients"), {**os.environ, "PKG_CONFIG_PATH": os.path.join(prefix, "lib", "pkgconfig")}
    shutil.rmtree(clients, ignore_errors=True)
    works = (good and run(["meson", "setup", clients, "clients", "-Dkernels=disabled", "-Dwerror=" + werror()], log, env=env) and
             run(["ninja", "-C", clients], log) and
             run([os.path.join(BUILDS, "logprob-shared")], log, env={**os.environ, "LD_LIBRARY_PATH": f"{clients}/logprob:{prefix}/lib"}))
    count("install: the clients, built on what is installed", "passed" if works else "failed")
    if shutil.which("cmake"):
        folder = os.path.join(BUILDS, "cmake")
        shutil.rmtree(folder, ignore_errors=True)
        works = (good and run(["cmake", "-G", "Ninja", "-S", "examples/cmake", "-B", folder, f"-DCMAKE_PREFIX_PATH={prefix}"], log) and
                 run(["cmake", "--build", folder], log) and run([os.path.join(folder, "logprob")], log) and
                 run([os.path.join(folder, "plan_model")], log, cwd="examples/models/Llama-3.1-8B"))
        count("install: examples with CMake", "passed" if works else "failed")
        unknown = works and subprocess.run(["cmake", "-G", "Ninja", "-S", "examples/cmake", "-B", folder + "-unknown", f"-DCMAKE_PREFIX_PATH={prefix}",
                                            "-DEXAMPLE_COMPONENT=unknown"], capture_output=True, text=True, check=False)
        works = unknown and unknown.returncode != 0 and "libbucketpool-unknown is not installed" in " ".join(unknown.stderr.split())
        count("install: CMake refuses an unknown component", "passed" if works else "failed")
    else:
        count("install: examples with CMake", "skipped", "cmake is not installed")
    if good:
        interface(prefix)
    took("install", begun)


def interface(prefix):
    log = os.path.join(BUILDS, "interface.log")
    if os.path.exists(log):
        os.remove(log)
    code = execute([sys.executable, "scripts/abi.py", prefix], log, "interface")
    with open(log, encoding="utf-8") as file:
        text = file.read()
    count("the interface of the last version", {0: "passed", 77: "skipped"}.get(code, "failed"), (text.strip().split("\n") or [""])[-1])
    if code not in (0, 77):
        say(text)


def plain():
    # a kernel takes a minute of nvcc for each architecture
    more = ["-Dbenchmarks=auto"] + ["-Dkernels_arch=all"] * FULL
    if leg("plain", [*LINES, *more], {"BUCKETPOOL_EXAMPLES": "5000" if FULL else "200"}, without=()):
        static_checks()


# BUCKETPOOL_BRIEF: tests whose repetitions the plain leg has run do a share of them.


def sanitizers():
    # -O1 compiles in half the time and reports the same
    leg("sanitizers", ["-Db_sanitize=address,undefined", "-Doptimization=1", *LINES, "-Ddocs=disabled"],
        {"BUCKETPOOL_BRIEF": "1"})


def threads():
    leg("threads", ["-Db_sanitize=thread", "-Doptimization=1", *LINES, "-Dkernels=disabled",
                    "-Dmpi=disabled", "-Ddocs=disabled"], {"BUCKETPOOL_BRIEF": "1"},
        suites=("contract", "comms", "cuda", "threads", "examples"), builds_all=False)


def bare():
    """Without anything optional: the build of a machine that has only the required libraries."""
    leg("bare", ["-Dmpi=disabled", "-Dnvtx=disabled", "-Dkernels=disabled",
                 "-Ddocs=disabled", "-Dbuildtype=release"],
        {"BUCKETPOOL_BRIEF": "1"}, suites=("unit", "contract", "comms", "kernels", "cli", "examples"), builds_all=False)


def core():
    """With a C compiler alone: no files, no command, no client, and the stand-in for cmocka."""
    leg("core", ["-Doptimization=1", "-Ddebug=false", "-Dformats=disabled", "-Dcmocka=stand-in", "-Dmpi=disabled",
                 "-Dnvtx=disabled", "-Dlogprob=disabled", "-Ddocs=disabled"],
        {"BUCKETPOOL_BRIEF": "1"}, suites=("unit", "contract", "packing", "planner", "steps", "comms", "cuda", "fuzz"))


def integers():
    """Reports of unsigned arithmetic that wraps where it is not meant to: clang's sanitizer, which is not part of b_sanitize."""
    if not shutil.which("clang"):
        count("integers", "skipped", "clang is not installed")
        return
    wraps = "-fsanitize=unsigned-integer-overflow"
    ignored = os.path.join(os.getcwd(), "tests", "integer_overflow.ignore")
    leg("integers", [f"-Dc_args=-g1 {wraps} -fno-sanitize-recover=unsigned-integer-overflow -fsanitize-ignorelist={ignored}",
                     f"-Dc_link_args={wraps}", f"-Dcpp_link_args={wraps}", "-Db_lundef=false", "-Doptimization=1", "-Dkernels=disabled",
                     "-Dmpi=disabled", "-Ddocs=disabled"],
        {"CC": "clang", "CXX": "clang++", "BUCKETPOOL_BRIEF": "1"}, suites=("unit", "packing", "planner", "steps", "contract", "comms", "fuzz"),
        builds_all=False)


def fuzz(seconds=60, names=()):
    """Every fuzzer, or those named, for some seconds each: from the seeds and from what earlier runs found, which is kept and reduced."""
    if not shutil.which("clang"):
        count("fuzzing", "skipped", "clang is not installed")
        return
    begun = begin("fuzz")
    build, log = os.path.join(BUILDS, "fuzz"), os.path.join(BUILDS, "fuzz.log")
    shutil.rmtree(build, ignore_errors=True)
    good = run(["meson", "setup", build, "-Dtests=enabled", "-Dfuzzers=true", "-Db_sanitize=address,undefined", "-Dkernels=disabled",
                "-Dmpi=disabled", "-Ddocs=disabled", *LINES], log, env={**os.environ, "CC": "clang", "CXX": "clang++"})
    known = json.loads(subprocess.run(["meson", "introspect", "--targets", build], capture_output=True, text=True, check=False).stdout or "[]")
    programs = {target["name"].removeprefix("fuzz_"): target["filename"][0] for target in known if target["name"].startswith("fuzz_")}
    wrong = [name for name in names if name not in programs]
    if good and wrong:
        count(f"fuzz: unknown fuzzer {', '.join(wrong)}; there are {', '.join(sorted(programs))}", "failed")
        return
    programs = {name: program for name, program in programs.items() if not names or name in names}
    good = good and bool(programs) and run(["ninja", "-C", build, *(os.path.relpath(program, build) for program in programs.values())], log)
    count("fuzzers build", "passed" if good else "failed")
    if good:
        with ThreadPoolExecutor(os.cpu_count()) as several:
            for name, program in sorted(programs.items()):
                several.submit(stage, lambda name=name, program=program: fuzz_one(name, program, seconds))
    took("fuzz", begun)


def fuzz_one(name, program, seconds):
    """One fuzzer: its corpus is in build-check/corpus, inputs that fail go to build-check/crashes."""
    corpus, crashes = os.path.join(BUILDS, "corpus", name), os.path.join(BUILDS, "crashes")
    log = os.path.join(BUILDS, f"fuzz-{name}.log")
    reduced, limits = corpus + ".reduced", ["-timeout=10", "-rss_limit_mb=2048", f"-artifact_prefix={crashes}/{name}-"]
    shutil.rmtree(reduced, ignore_errors=True)
    for folder in (corpus, reduced, crashes):
        os.makedirs(folder, exist_ok=True)
    if os.path.exists(log):
        os.remove(log)
    before = set(glob.glob(f"{crashes}/{name}-*"))
    good = run([program, f"-max_total_time={seconds}", *limits, corpus, os.path.join("tests", "fuzz", "corpus", name)], log)
    if good and run([program, "-merge=1", *limits, reduced, corpus], log):
        found = len(os.listdir(corpus))
        shutil.rmtree(corpus)
        os.rename(reduced, corpus)
        say(f"  fuzz {name}: {found} inputs, of which {len(os.listdir(corpus))} are kept")
    else:
        good = False
    count("fuzz " + name, "passed" if good else "failed")
    for crash in sorted(set(glob.glob(f"{crashes}/{name}-*")) - before):
        say(f"  to reproduce: {os.path.relpath(program)} {os.path.relpath(crash)}")


def soak():
    """An hour of random rounds of one process, which must not grow."""
    build, log = os.path.join(BUILDS, "plain"), os.path.join(BUILDS, "soak.log")
    begun = begin("soak")
    programs = [os.path.join(build, *path) for path in (("tests", "soak", "soak"), ("tools", "bucketpool"), ("tests", "fakes", "cuda", "libcuda.so.1"))]
    if not all(map(os.path.exists, programs)):
        count("soak", "skipped", "the plain build has no soak")
        return
    if os.path.exists(log):
        os.remove(log)
    good = run([sys.executable, os.path.join("tests", "soak", "soak.py"), *programs[:2], os.getcwd(), programs[2]], log,
               env={"BUCKETPOOL_SOAK_SECONDS": "3600", **os.environ, "OPENBLAS_NUM_THREADS": "1"})
    count("soak (figures in build-check/soak.log)", "passed" if good else "failed")
    took("soak", begun)


def finish():
    """The failures once more, below all that was printed since, and the counted line."""
    if failures:
        say("failed:", *failures, sep="\n  ")
    say(f"{counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped")
    return 1 if counts["failed"] > 0 or counts["passed"] == 0 else 0


def stage(function):
    """A defect of this program is a failure, not a stage that ends without a word."""
    try:
        function()
    except Exception:  # pylint: disable=broad-except
        traceback.print_exc()
        count(f"{function.__name__}: scripts/check.py", "failed")


def tests_done():
    return f"{sum(counts.values())} checks counted" + (f", {counts['failed']} FAILED" if counts["failed"] else "")


def main():
    os.makedirs(BUILDS, exist_ok=True)
    if sys.argv[1:2] == ["--load"]:
        load(int(sys.argv[2]))
        return finish()
    if sys.argv[1:2] == ["--fuzz"]:
        fuzz(int(sys.argv[2]), sys.argv[3:])
        return finish()
    name = "check --full" if FULL else "check"
    first = "the first time about two hours on two cores" if FULL else "about 25 min on two cores, less where ccache has compiled before"
    free = shutil.disk_usage(BUILDS).free / 1e9
    say(f"{name}: builds in five ways and tests each, installs, and checks the sources; {progress.announce(name, first, tests_done)}; "
        f"takes {GIGABYTES} GB in {os.path.relpath(BUILDS)}, where {free:.0f} GB are free and the logs are")
    with ThreadPoolExecutor(LANES) as lanes:
        for function in (plain, sanitizers, threads, bare, core, installation):
            lanes.submit(stage, function)
    if FULL:
        good = run(["meson", "test", "-C", os.path.join(BUILDS, "plain"), "--benchmark", "--verbose"],
                   os.path.join(BUILDS, "benchmarks.log"))
        count("benchmarks run (figures in build-check/benchmarks.log)", "passed" if good else "failed")
        with ThreadPoolExecutor(LANES) as lanes:
            lanes.submit(stage, soak)
            lanes.submit(lambda: (stage(integers), stage(fuzz)))
    progress.record(name)
    return finish()


if __name__ == "__main__":
    sys.exit(main())
