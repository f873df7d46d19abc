# SPDX-License-Identifier: Apache-2.0
"""Compiles the decorator of PyTorch's allocator on this machine, for the PyTorch that is installed, and loads it.

A class of PyTorch's headers is the interface, and it changes in most releases, so no binary serves several. A C++
compiler takes a few seconds, once: the library is kept in $XDG_CACHE_HOME/bucketpool, or ~/.cache/bucketpool. Neither
nvcc nor a CUDA toolkit is needed: the headers of the CUDA runtime that pip installs with PyTorch are enough.
"""

import atexit
import contextlib
import ctypes
import fcntl
import functools
import glob
import hashlib
import os
import platform
import re
import shlex
import shutil
import subprocess
import tempfile
import time
from typing import Dict, Iterator, List, NamedTuple, Optional, Tuple

import torch

from ..._library import core
from ...errors import Unsupported
from ._virtuals import forwarding

__all__ = ["library"]

SECONDS = 300  # for the compiler; and another process's, that is waited for
HEADERS = ("status.h", "step_plan.h", "step_serve.h")  # that the decorators include


def refusal(text: str) -> Unsupported:
    return Unsupported(text + ". Nothing is served")


class Places(NamedTuple):
    """Folders: the decorators' sources, and the public headers."""

    sources: str
    headers: str


class Compiler(NamedTuple):
    command: List[str]
    version: str  # as it says


# ---- what there is ---------------------------------------------------------------------------------------------------


def places() -> Places:
    here = os.path.dirname(os.path.abspath(__file__))
    installed = os.path.join(here, "src")
    root = os.path.abspath(os.path.join(here, *[os.pardir] * 4))
    in_tree = Places(os.path.join(root, "src", "allocators", "torch"), os.path.join(root, "include"))
    for found in (Places(installed, installed), in_tree):
        if os.path.exists(os.path.join(found.sources, "decorator.h")):
            return found
    raise refusal(f"the sources of the decorators are not in {installed}; install the bucketpool wheel again")


def surroundings() -> Dict[str, str]:
    """Environment variables of the compiler: it speaks English, and libraries for PyTorch are not loaded into it."""
    return {**{name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}, "LC_ALL": "C"}


def compiler() -> Compiler:
    chosen = os.environ.get("CXX", "").strip()
    for command in [shlex.split(chosen)] if chosen else [["c++"], ["g++"], ["clang++"]]:
        try:
            said = subprocess.run([*command, "--version"], capture_output=True, text=True, errors="replace", timeout=60,
                                  env=surroundings())
        except (OSError, subprocess.TimeoutExpired):
            continue
        if said.returncode == 0:
            return Compiler(command, said.stdout.partition("\n")[0].strip())
    tried = f"CXX={chosen}" if chosen else "c++, g++ and clang++"
    raise refusal(f"no C++ compiler: {tried} cannot be run; install one, for example by apt-get install g++, or name "
                  "it in CXX")


def cuda_version_of(folder: str) -> int:
    """Of the runtime's headers in a folder, 12040 for 12.4; 0: there are none."""
    try:
        with open(os.path.join(folder, "cuda_runtime_api.h"), encoding="utf-8", errors="replace") as file:
            found = re.search(r"^#define\s+CUDART_VERSION\s+(\d+)", file.read(), re.MULTILINE)
    except OSError:
        return 0
    return int(found[1]) if found and os.path.exists(os.path.join(folder, "cuda.h")) else 0


def cuda_headers() -> Tuple[str, int]:
    """Folder and version of the CUDA runtime's headers, of the major version that PyTorch was built for."""
    if torch.version.hip or not torch.version.cuda:
        kind = "is for ROCm" if torch.version.hip else "is without CUDA"
        raise refusal(f"PyTorch {torch.__version__} {kind}; install one for CUDA")
    packages = os.path.dirname(os.path.dirname(os.path.abspath(torch.__file__)))
    roots = [os.environ.get(name, "") for name in ("CUDA_HOME", "CUDA_PATH")]
    conda = os.environ.get("CONDA_PREFIX", "")
    folders = sorted(glob.glob(os.path.join(packages, "nvidia", "*", "include")))
    folders += [os.path.join(root, "include") for root in roots + [conda] if root]
    folders += sorted(glob.glob(os.path.join(conda, "targets", "*", "include"))) if conda else []
    folders += ["/usr/local/cuda/include", *sorted(glob.glob("/usr/local/cuda-*/include"), reverse=True)]
    folders += ["/opt/cuda/include", "/usr/include"]
    found = [(folder, version) for folder in folders for version in [cuda_version_of(folder)] if version]
    major = int(torch.version.cuda.partition(".")[0])
    for folder, version in found:
        if version // 1000 == major:
            return folder, version
    others = f"those of CUDA {found[0][1] // 1000} in {found[0][0]} are for another PyTorch; " if found else ""
    package = "nvidia-cuda-runtime" + ("" if major >= 13 else f"-cu{major}")
    raise refusal(f"no headers of the CUDA {major} runtime: {others}install a toolkit and name it in CUDA_HOME, or run "
                  f"pip install {package}=={torch.version.cuda}.*")


def standard(release: str) -> str:
    """The C++ standard that PyTorch's headers need; later ones need not be known to the compiler."""
    major, minor = (int(part) for part in release.split(".")[:2])
    return "-std=c++2a" if (major, minor) >= (2, 14) else "-std=c++17"


# ---- compiling -------------------------------------------------------------------------------------------------------


def compile_options(device: str, release: str, include: str, cuda: str, where: Places) -> List[str]:
    """Of an object, from the decorator's source and forwarding.h in the current folder. include: PyTorch's headers."""
    system = [] if cuda in ("", "/usr/include") else ["-isystem", cuda]
    return [standard(release), "-O2", "-fPIC", "-pthread", "-fvisibility=hidden", "-DNDEBUG", "-I.",
            "-I" + where.headers, "-isystem", include, *system, "-idirafter", where.sources,
            os.path.join(where.sources, f"decorator_{device}.cpp")]


def libraries(device: str) -> List[str]:
    """PyTorch has loaded these, and the loader takes the loaded ones, by their names. libcudart comes with libc10_cuda.
    The functions of libbucketpool, which core() loads for all to see, are not looked for here."""
    folder = os.path.join(os.path.dirname(os.path.abspath(torch.__file__)), "lib")
    names = ["c10_cuda", "c10"] if device == "cuda" else ["c10"]
    for name in names:
        if not os.path.exists(os.path.join(folder, f"lib{name}.so")):
            raise refusal(f"PyTorch {torch.__version__} has no lib{name}.so in {folder}; install PyTorch's own wheel")
    return ["-L" + folder, "-Wl,--no-as-needed", *["-l" + name for name in names]]


def digest_of(texts: List[str], where: Places) -> str:
    """Of what decides the library: these texts, our sources and headers, and the library of PyTorch that it uses."""
    digest = hashlib.sha256()
    for text in texts:
        digest.update(text.encode() + b"\0")
    names = [name for name in sorted(os.listdir(where.sources)) if name.startswith("decorator")]
    files = [os.path.join(where.sources, name) for name in names]
    files += [os.path.join(where.headers, "bucketpool", name) for name in HEADERS]
    for path in files:
        with open(path, "rb") as file:
            digest.update(os.path.basename(path).encode() + b"\0" + file.read() + b"\0")
    built = os.stat(os.path.join(os.path.dirname(os.path.abspath(torch.__file__)), "lib", "libc10.so"))
    digest.update(f"{built.st_size}".encode())
    return digest.hexdigest()[:16]


def first_errors(text: str) -> str:
    lines = [line.strip() for line in text.splitlines()]
    errors = [line for line in lines if "error" in line or "undefined" in line or "cannot find" in line]
    return " | ".join((errors or [line for line in lines if line] or ["it says nothing"])[:3])[:600]


def build(command: List[str], header: str, folder: str, target: str) -> None:
    """Compiles in a folder beside the target, and moves the library there at once: nobody sees a part of it."""
    scratch = tempfile.mkdtemp(prefix=".compiling-", dir=folder)
    try:
        with open(os.path.join(scratch, "forwarding.h"), "w", encoding="utf-8") as file:
            file.write(header)
        try:
            done = subprocess.run([*command, "-o", "decorator.so"], cwd=scratch, capture_output=True, text=True,
                                  errors="replace", timeout=SECONDS, stdin=subprocess.DEVNULL, env=surroundings())
        except subprocess.TimeoutExpired:
            raise refusal(f"{command[0]} did not compile the decorator within {SECONDS} s; set CXX to another "
                          "compiler") from None
        if done.returncode != 0:
            raise refusal(f"the decorator of PyTorch {torch.__version__}'s allocator does not compile with "
                          f"{command[0]}: {first_errors(done.stderr)}; set CXX to another compiler, for "
                          "example a newer g++")
        os.rename(os.path.join(scratch, "decorator.so"), target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


@contextlib.contextmanager
def alone(folder: str) -> Iterator[None]:
    """One process at a time, so that the ranks of a machine compile once. Where the file system has no locks, and after
    waiting for as long as a compiler may take, each compiles for itself.
    """
    with open(os.path.join(folder, "lock"), "a", encoding="utf-8") as file:
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(0.05)
            except OSError:
                break
        yield


def cache() -> str:
    """The folder for libraries. A private one of this process where none can be written to."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    folder = os.path.join(base, "bucketpool")
    if os.path.isabs(folder):
        with contextlib.suppress(OSError):
            os.makedirs(folder, mode=0o700, exist_ok=True)
            with open(os.path.join(folder, "lock"), "a", encoding="utf-8"):
                if os.stat(folder).st_uid == os.getuid():  # what is there is executed
                    return folder
    folder = tempfile.mkdtemp(prefix="bucketpool-")
    atexit.register(shutil.rmtree, folder, True)
    return folder


def opened(path: str) -> Optional[ctypes.CDLL]:
    """A kept library. None: there is none, or it is damaged, so that it is to be written again."""
    try:
        return ctypes.CDLL(path) if os.path.exists(path) else None
    except OSError:
        return None


@functools.lru_cache(maxsize=None)
def library(device: str) -> ctypes.CDLL:
    """The decorator (decorator.h) for "cuda" or "cpu", compiled first where that has not been done.

    Raises Unsupported without a compiler, without headers, and for those of a PyTorch that is not known.
    """
    if device not in ("cuda", "cpu"):
        raise refusal(f'device "{device}": only "cuda" and "cpu" have decorators')
    release = str(torch.__version__).partition("+")[0]
    where = places()
    include = os.path.join(os.path.dirname(os.path.abspath(torch.__file__)), "include")
    header = forwarding(include, device, release)
    cuda, cuda_version = cuda_headers() if device == "cuda" else ("", 0)
    with_abi = bool(torch.compiled_with_cxx11_abi())
    chosen = compiler()
    command = [*chosen.command, "-shared", f"-D_GLIBCXX_USE_CXX11_ABI={int(with_abi)}",
               *compile_options(device, release, include, cuda, where), *libraries(device)]
    digest = digest_of([header, chosen.version, str(cuda_version), str(torch.version.git_version), platform.machine(),
                        *command], where)
    folder = cache()
    target = os.path.join(folder, f"decorator-{device}-torch-{torch.__version__}-{digest}.so")
    core()  # its functions are the decorator's
    found = opened(target)
    if found is None:
        with alone(folder):
            found = opened(target)  # of a process that had the lock before
            if found is None:
                build(command, header, folder, target)
    try:
        return found or ctypes.CDLL(target)
    except OSError as error:
        raise refusal(f"the decorator of PyTorch {torch.__version__}'s allocator was compiled and cannot be loaded: "
                      f"{error}; set CXX to the compiler that PyTorch was built with") from None
