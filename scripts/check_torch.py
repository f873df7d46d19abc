# SPDX-License-Identifier: Apache-2.0
"""./check --torch: the tests that need PyTorch (python/tests/torch), in a virtual environment that this installs and keeps.

PyTorch's own wheel is installed, and of its libraries only those that this machine lacks: a CUDA toolkit's libraries are used where there is
one. No GPU is needed. Exits 0, 1 or, where PyTorch cannot be had (no network, no pip, no disk), 77 with the reason. Options are
pytest's: ./check --torch -k fsdp2. ./check --torch --peers DIR runs tests of other projects with ours instead (python/tests/peers), and
./check --torch --versions runs a short suite with each release of PyTorch (torch_versions.py)."""

import contextlib
import glob
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import venv
import xml.etree.ElementTree

import progress
import torch_versions
from progress import BUILDS, say

ROOT = os.getcwd()
FOLDER = os.path.join(BUILDS, "torch")
RELEASE = os.environ.get("BUCKETPOOL_TORCH", "2.11.0")  # other releases have separate environments
VENV = os.path.join(BUILDS, "torch-venv" + (f"-{RELEASE}" if RELEASE != "2.11.0" else ""))
PYTHON = os.path.join(VENV, "bin", "python")
LOG = os.path.join(BUILDS, "torch.log")
TESTS = os.path.join("python", "tests", "torch")
PEERS = os.path.join("python", "tests", "peers", "run.py")
MAX_SECONDS = 3600  # of the tests, which take half an hour on two cores that do nothing else

# Built for CUDA 13. Of its other requirements only imported ones: no Triton, no cuda-bindings.
TORCH = f"torch=={RELEASE}"
PACKAGES = ["typing-extensions", "sympy", "mpmath", "networkx", "jinja2", "markupsafe", "fsspec", "filelock", "setuptools<82", "numpy",
            "pytest", "iniconfig", "packaging", "pluggy", "pygments", "megatron-fsdp==0.6.1", "einops", "mypy==2.4.1", "mypy-extensions",
            "pathspec", "librt", "ast-serialize",
            # transformers, which model types are compared with and whose Trainer is run, and what it imports: 22 MB
            "transformers==5.23.0", "tokenizers==0.23.3", "huggingface_hub==2.4.0", "safetensors", "regex", "pyyaml", "tqdm", "httpx2==2.16.2",
            "httpcore2==2.16.2", "idna", "truststore", "h11", "accelerate==1.15.0", "psutil",
            # DeepSpeed, without compiled operators, and what it imports: 34 MB unpacked, 10 s
            "deepspeed==0.19.8", "hjson", "msgpack", "py-cpuinfo", "pydantic==2.14.4", "pydantic-core==2.50.5", "annotated-types",
            "typing-inspection"]
# Releases whose functions bucketpool.torch.adopt replaces (python/tests/torch/fixtures/adopt_releases.py), without what they need: 9 MB. In
# a folder beside the environment's packages, where others do not find them.
RELEASES = ["trl==1.16.0", "skyrl==0.3.0", "areal==1.0.4", "verl==0.9.1", "liger-kernel==0.8.5", "megatron-core==0.16.1"]
# Libraries that PyTorch is linked to, by soname: the package that has it, and its download size in MB. The machine's libraries are
# preferred; a package brings the release that PyTorch was built with (the requirements of torch 2.11.0 and of cuda-toolkit 13.0.2).
LIBRARIES = {
    "libcudart.so.13": ("nvidia-cuda-runtime==13.0.96", 2),
    "libcupti.so.13": ("nvidia-cuda-cupti==13.0.85", 11),
    "libcublas.so.13": ("nvidia-cublas==13.1.0.3", 423),
    "libcublasLt.so.13": ("nvidia-cublas==13.1.0.3", 423),
    "libcudnn.so.9": ("nvidia-cudnn-cu13==9.19.0.56", 366),
    "libcufft.so.12": ("nvidia-cufft==12.0.0.61", 214),
    "libcurand.so.10": ("nvidia-curand==10.4.0.35", 60),
    "libcusparse.so.12": ("nvidia-cusparse==12.6.3.3", 146),
    "libnvJitLink.so.13": ("nvidia-nvjitlink==13.0.88", 41),
    "libcufile.so.0": ("nvidia-cufile==1.15.1.6", 1),
    "libcusparseLt.so.0": ("nvidia-cusparselt-cu13==0.8.0", 170),
    "libnccl.so.2": ("nvidia-nccl-cu13==2.28.9", 196),
    "libnvshmem_host.so.3": ("nvidia-nvshmem-cu13==3.4.5", 60),
}
# Libraries that a release needs in newer versions than those above or CUDA 13.0: always from packages.
NEWER = {
    "2.15.0": {
        "libnccl.so.2": ("nvidia-nccl-cu13==2.30.7", 216),
        "libnvshmem_host.so.3": ("nvidia-nvshmem-cu13==3.7.2", 135),
    },
}.get(RELEASE, {})
LIBRARIES.update(NEWER)
TORCH_MB, UNPACKED = 530, 2.6  # and how much more room than the download it takes, once unpacked


class Impossible(Exception):
    """PyTorch cannot be installed; the suite is skipped with this reason."""


def run(command, title=None):
    """Exit status and output, by way of the log."""
    before = os.path.getsize(LOG)
    code = progress.execute(command, LOG, title or f"torch: {os.path.basename(command[0])}")
    with open(LOG, encoding="utf-8", errors="replace") as log:
        log.seek(before)
        return code, log.read().partition("\n")[2]


def reason_of(text):
    """Reason of pip's failure: a broken connection, which pip prints before the packages that it could not find, else its last line."""
    broken = re.search(r"connection broken by '(.+?)': /", text)
    if broken:
        return f"no connection to the package index: {broken[1][:300]}"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR")]
    return (errors or lines or ["nothing was said"])[-1][:300]


# ---- PyTorch -----------------------------------------------------------------------------------------------------------


def loader_has():
    """Sonames in the cache of the dynamic loader."""
    tool = shutil.which("ldconfig") or "/sbin/ldconfig"
    try:
        return set(re.findall(r"^\s+(\S+) ", subprocess.run([tool, "-p"], capture_output=True, text=True).stdout, re.MULTILINE))
    except OSError:
        return set()


def toolkit_has(name):
    """A toolkit's copy that the loader does not look for."""
    places = ["/usr/local/cuda", "/opt/cuda", *sorted(glob.glob("/usr/local/cuda-13*"))]
    named = [os.environ[variable] for variable in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(variable)]
    return next((f for place in named + places for f in [os.path.join(place, "lib64", name)] if os.path.exists(f)), None)


def site_packages():
    return glob.glob(os.path.join(VENV, "lib", "python3*", "site-packages"))[0]


def pip_install(packages, *options):
    code, output = run([PYTHON, "-m", "pip", "install", "--no-deps", "--retries", "1", "--disable-pip-version-check",
                        "--progress-bar", "off", *options, *packages], "torch: pip downloads and unpacks")
    if code != 0:
        raise Impossible(f"pip cannot install {packages[0]} and what goes with it: {reason_of(output)}")


def imports():
    """Nothing, or why PyTorch cannot be imported."""
    code, output = run([PYTHON, "-c", "import torch, torch.distributed.fsdp; print(torch.__version__)"], "torch: imports PyTorch")
    return "" if code == 0 else reason_of(output)


def needs_room(megabytes):
    os.makedirs(BUILDS, exist_ok=True)
    free = shutil.disk_usage(BUILDS).free / 1e6
    if free < UNPACKED * megabytes:
        raise Impossible(f"PyTorch takes {UNPACKED * megabytes / 1e3:.1f} GB in {BUILDS}, where {free / 1e3:.1f} GB are free")


def install():
    """An environment from nothing."""
    found = loader_has() - set(NEWER)
    linked = {name: toolkit_has(name) for name in LIBRARIES if name not in found and name not in NEWER and toolkit_has(name)}
    wanted = dict(LIBRARIES[name] for name in LIBRARIES if name not in found and name not in linked)
    needs_room(TORCH_MB + sum(wanted.values()) + 120)
    say(f"torch: installs {TORCH} ({TORCH_MB} MB){''.join(f', {p} ({mb} MB)' for p, mb in wanted.items())} "
          f"and {len(PACKAGES)} small packages into {os.path.relpath(VENV, ROOT)}")
    try:
        venv.create(VENV, with_pip=True)
    except (subprocess.CalledProcessError, OSError) as error:
        raise Impossible(f"python3 -m venv fails (on Debian and Ubuntu it is the package python3-venv): {error}") from error
    pip_install([TORCH, *PACKAGES, *wanted])
    if linked:  # where PyTorch looks first
        folder = os.path.join(site_packages(), "nvidia", "cu13", "lib")
        os.makedirs(folder, exist_ok=True)
        for name, path in linked.items():
            os.symlink(path, os.path.join(folder, name))
    problem = imports()
    others = {package: mb for package, mb in LIBRARIES.values() if package not in wanted}
    if problem and others:  # the machine's are of another release
        say(f"torch: with this machine's libraries it does not load ({problem}): installs {', '.join(others)}")
        needs_room(sum(others.values()))
        shutil.rmtree(os.path.join(site_packages(), "nvidia", "cu13"), ignore_errors=True)
        pip_install(["--force-reinstall", *dict(LIBRARIES.values())])
        problem = imports()
    if problem:
        raise Impossible(f"{TORCH} cannot be imported: {problem}")


def environment():
    """The environment of an earlier run, when it is of the same packages and still works, or a new one."""
    if sys.version_info < (3, 10):
        raise Impossible(f"{TORCH} needs Python 3.10, this is {sys.version.split()[0]}")
    key = hashlib.sha256(json.dumps([sys.version, TORCH, PACKAGES, LIBRARIES, ROOT]).encode()).hexdigest()
    mark = os.path.join(VENV, "packages")
    if os.path.exists(mark):
        with open(mark, encoding="utf-8") as file:
            if file.read() == key and not imports():
                return
    shutil.rmtree(VENV, ignore_errors=True)
    install()
    with open(mark, "w", encoding="utf-8") as file:
        file.write(key)


def install_releases():
    """The tests that need them are skipped without."""
    folder = os.path.join(VENV, "releases")
    mark = os.path.join(folder, "packages")
    if os.path.exists(mark):
        with open(mark, encoding="utf-8") as file:
            if file.read() == json.dumps(RELEASES):
                return
    shutil.rmtree(folder, ignore_errors=True)
    try:
        pip_install(RELEASES, "--no-compile", "--target", folder)
    except Impossible as reason:
        say(f"torch: tests of bucketpool.torch.adopt are skipped: {reason}")
        return
    with open(mark, "w", encoding="utf-8") as file:
        file.write(json.dumps(RELEASES))


# ---- the library and the tests -----------------------------------------------------------------------------------------


def build_with(options):
    if not os.path.exists(os.path.join(FOLDER, "build.ninja")) and run(["meson", "setup", FOLDER, *options])[0] != 0:
        return False
    known = json.loads(subprocess.run(["meson", "introspect", "--targets", FOLDER], capture_output=True, text=True).stdout or "[]")
    paths = {os.path.relpath(target["filename"][0], FOLDER): target["type"] for target in known}
    libraries = ("src/", "clients/", "python/", "tests/fakes/cuda/", "tests/fakes/cudart/", "tests/fakes/nccl/", "tests/libstep_allocator")
    wanted = [path for path, kind in paths.items()
              if path == "tools/bucketpool" or kind in ("shared library", "shared module") and path.startswith(libraries)]
    return bool(wanted) and run(["ninja", "-C", FOLDER, *wanted])[0] == 0


def kernels():
    """The build's option: kernels are for the tests of a machine with a GPU."""
    asked = run([PYTHON, "-c", "import torch, sys; sys.exit(torch.cuda.is_available())"], "torch: asks PyTorch for a GPU")
    return "disabled" if asked[0] == 0 else "auto"


def build(kernels):
    """The libraries, the command, and the driver that stands in for a GPU's; not the tests of meson. Kept and continued;
    anew, where that fails."""
    options = ["-Dmpi=disabled", "-Ddocs=disabled", "-Dtests=enabled", "-Dcmocka=stand-in", "-Dkernels=" + kernels]
    if os.path.exists(FOLDER) and build_with(options):
        return True
    shutil.rmtree(FOLDER, ignore_errors=True)
    return build_with(options)


def surroundings():
    """Environment variables of the tests."""
    places = [os.path.join(ROOT, "python"), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(places), "BUCKETPOOL_BUILD": FOLDER, "PYTHONDONTWRITEBYTECODE": "1",
            "BUCKETPOOL_LIBRARY_PATH": os.path.join(FOLDER, "src") + ":" + os.path.join(FOLDER, "clients", "logprob"), "OMP_NUM_THREADS": "1"}


def test(options):
    """Runs pytest and prints its output; how many passed, failed and were skipped."""
    report = os.path.join(FOLDER, "pytest.xml")
    if os.path.exists(report):
        os.remove(report)
    steady = [] if sys.stdout.isatty() else ["-p", "steady", "-o", "console_output_style=classic"]  # on a terminal pytest's dots move
    variables = surroundings()
    variables["PYTHONPATH"] += os.pathsep + os.path.join(ROOT, TESTS, "fixtures")
    process = subprocess.Popen([PYTHON, "-m", "pytest", TESTS, "-q", "-rs", "-p", "no:cacheprovider", *steady, "--junitxml", report, *options],
                               env=variables, start_new_session=True)
    try:
        code = process.wait(timeout=MAX_SECONDS)
    except subprocess.TimeoutExpired:
        say(f"torch: the tests take more than {MAX_SECONDS} s: they end here, and what failed is named")
        process.send_signal(signal.SIGINT)  # pytest then reports
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=60)
        with contextlib.suppress(ProcessLookupError):  # the processes of its tests, if any are left
            os.killpg(process.pid, signal.SIGKILL)
        code = process.wait()
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    if os.path.exists(report):
        for suite in xml.etree.ElementTree.parse(report).getroot().iter("testsuite"):
            failed, skipped = int(suite.get("failures")) + int(suite.get("errors")), int(suite.get("skipped"))
            counts["failed"] += failed
            counts["skipped"] += skipped
            counts["passed"] += int(suite.get("tests")) - failed - skipped
    if code not in (0, 5) and not counts["failed"]:  # it ended otherwise than by a test that fails; 5: there were no tests
        counts["failed"] = 1
    return counts


def main():
    os.makedirs(BUILDS, exist_ok=True)
    begin = time.monotonic()
    with open(LOG, "w", encoding="utf-8"):
        pass
    versions = sys.argv[1:2] == ["--versions"]
    name = "check --torch --versions" if versions else "check --torch"
    first = "about an hour and a half on two cores, and downloads of 9 GB, which are kept" if versions else \
        "about half an hour on two cores, and the first time what a download of 0.8 to 2.2 GB takes"
    whole = len(sys.argv) == 1 + versions
    announced = progress.announce(name, first) if whole else "the options decide how long it takes"
    work = "builds the library and tries it with each release of PyTorch and each Python" if versions else \
        f"installs PyTorch {RELEASE}, builds the library and runs the tests"
    say(f"torch: {work}; {announced}")
    if not versions:
        try:
            environment()
            install_releases()
        except Impossible as reason:
            say(f"./check --torch is skipped: {reason}")
            return 77
        say(f"torch: environment {time.monotonic() - begin:.0f} s")
    if not build("disabled" if versions else kernels()):
        with open(LOG, encoding="utf-8") as file:
            say("".join(file.readlines()[-60:]))
        say("torch: the library does not build\n0 passed, 1 failed, 0 skipped")
        return 1
    if versions:
        code = torch_versions.main(surroundings(), sys.argv[2:], LOG)
    elif sys.argv[1:2] == ["--peers"]:
        code = subprocess.call([PYTHON, PEERS, *sys.argv[2:]], env=surroundings())
    else:
        counts = test(sys.argv[1:])
        say(f"torch: {time.monotonic() - begin:.0f} s")
        say(f"{counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped")
        code = 1 if counts["failed"] or not counts["passed"] else 0
    if whole and code in (0, 1):
        progress.record(name)
    return code


if __name__ == "__main__":
    sys.exit(main())
