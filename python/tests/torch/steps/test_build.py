# SPDX-License-Identifier: Apache-2.0
"""The decorators of PyTorch's allocators are compiled once, by any compiler, or refused with one sentence."""

import ctypes
import os
import pathlib
import re
import shutil
import stat
import subprocess
import sys

import pytest
import torch

from bucketpool.errors import Unsupported
from bucketpool.torch.steps import _build
from places import ROOT

SOURCE = """#include "forwarding.h"
extern "C" __attribute__((visibility("default"))) int answer() { return 41; }
extern "C" __attribute__((visibility("default"))) void check(const char *text) { TORCH_CHECK(false, std::string(text)); }
extern "C" int hidden() { return 1; }
"""
LOGGING = """#!/bin/sh
case "$*" in *-shared*) echo "$$" >> {log}; sleep {seconds};; esac
exec {compiler} "$@"
"""


@pytest.fixture
def small(tmp_path, monkeypatch):
    """A small decorator for the CPU, in a folder of sources, and an empty cache."""
    sources = tmp_path / "src"
    sources.mkdir()
    (sources / "decorator_cpu.cpp").write_text(SOURCE, encoding="utf-8")
    headers = tmp_path / "include" / "bucketpool"
    headers.mkdir(parents=True)
    for name in _build.HEADERS:
        (headers / name).write_text(f"/* {name} */\n", encoding="utf-8")
    monkeypatch.setattr(_build, "places", lambda: _build.Places(str(sources), str(tmp_path / "include")))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("CXX", raising=False)
    return tmp_path


def library(device="cpu"):
    return _build.library.__wrapped__(device)


def kept(folder):
    return sorted(name for name in os.listdir(folder / "cache" / "bucketpool") if name != "lock")


def logging_compiler(folder, seconds):
    """A compiler that logs its calls and takes a while."""
    path = folder / "logging-c++"
    path.write_text(LOGGING.format(log=folder / "log", seconds=seconds, compiler=shutil.which("c++")), encoding="utf-8")
    path.chmod(0o755)
    return str(path)


def calls(folder):
    return len((folder / "log").read_text(encoding="utf-8").split())


def test_kept(small, monkeypatch):
    monkeypatch.setenv("CXX", logging_compiler(small, 0))
    found = library()
    assert found.answer() == 41 and not hasattr(found, "hidden")
    name, = kept(small)
    assert name.startswith(f"decorator-cpu-torch-{torch.__version__}-") and found._name.endswith(name)
    assert library()._name == found._name and calls(small) == 1
    for path in (small / "src" / "decorator_cpu.cpp", small / "src" / "decorator_more.h", small / "include" / "bucketpool" / "step_plan.h"):
        with open(path, "a", encoding="utf-8") as file:
            file.write("// another\n")
        assert library()._name != found._name
    assert len(kept(small)) == calls(small) == 4
    monkeypatch.setenv("CXX", shutil.which("c++"))  # says the same, but is another command
    assert library().answer() == 41 and calls(small) == 4


def test_damaged(small, monkeypatch):
    """A file that cannot be loaded, as after a crash of the file system, is written again."""
    with monkeypatch.context() as patch:
        patch.setattr(_build, "build", lambda command, header, folder, target: pathlib.Path(target).write_bytes(b"\x7fELF"))
        with pytest.raises(Unsupported, match="was compiled and cannot be loaded: .*file too short"):
            library()
    damaged, = kept(small)
    assert library().answer() == 41 and kept(small) == [damaged]


def test_processes_at_once(small):
    program = ("import sys; from bucketpool.torch.steps import _build\n"
               "_build.places = lambda: _build.Places(sys.argv[1] + '/src', sys.argv[1] + '/include')\n"
               "print(_build.library('cpu').answer())\n")
    environment = {**os.environ, "CXX": logging_compiler(small, 2), "PYTHONPATH": os.pathsep.join([os.path.join(ROOT, "python"), os.environ.get("PYTHONPATH", "")])}
    running = [subprocess.Popen([sys.executable, "-c", program, str(small)], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
               for _ in range(3)]
    for process in running:
        said, _ = process.communicate(timeout=120)
        assert (process.returncode, said) == (0, "41\n")
    assert calls(small) == 1 and len(kept(small)) == 1


@pytest.mark.parametrize("error", [BlockingIOError, OSError])
def test_without_locks(small, monkeypatch, error):
    """A file system without locks, and a lock that another process does not give back."""
    def refuse(file, operation):
        raise error

    monkeypatch.setattr(_build.fcntl, "flock", refuse)
    monkeypatch.setattr(_build, "SECONDS", 30 if error is OSError else 0.2)
    monkeypatch.setattr(_build, "build", lambda command, header, folder, target: shutil.copy(small / "made.so", target))
    subprocess.run(["c++", "-shared", "-fPIC", "-x", "c++", "-", "-o", small / "made.so"], input='extern "C" int answer() { return 5; }', text=True, check=True)
    assert library().answer() == 5


def test_surroundings(monkeypatch):
    """The libraries that a test or a profiler loads into PyTorch are not loaded into the compiler, and errors are in English."""
    monkeypatch.setenv("LD_PRELOAD", "/nowhere/libcudart.so")
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    found = _build.surroundings()
    assert "LD_PRELOAD" not in found and found["LC_ALL"] == "C" and found["PATH"] == os.environ["PATH"]


def test_no_compiler(small, monkeypatch):
    monkeypatch.setenv("PATH", str(small))
    with pytest.raises(Unsupported, match=r"^no C\+\+ compiler: c\+\+, g\+\+ and clang\+\+ cannot be run; install one, .*Nothing is served$"):
        library()
    monkeypatch.setenv("CXX", "/nowhere/g++ -m64")
    with pytest.raises(Unsupported, match=r"^no C\+\+ compiler: CXX=/nowhere/g\+\+ -m64 cannot be run; "):
        library()


def test_compile_error(small):
    (small / "src" / "decorator_cpu.cpp").write_text("#error not on this machine\n", encoding="utf-8")
    with pytest.raises(Unsupported, match=r"does not compile with c\+\+: .*#error not on this machine; set CXX .* Nothing is served$"):
        library()
    assert kept(small) == []


def test_slow_compiler(small, monkeypatch):
    monkeypatch.setenv("CXX", logging_compiler(small, 30))
    monkeypatch.setattr(_build, "SECONDS", 0.5)
    with pytest.raises(Unsupported, match=r"logging-c\+\+ did not compile the decorator within 0.5 s; set CXX "):
        library()
    assert kept(small) == []


def test_wrong_abi(small, monkeypatch):
    found = library()
    assert found.check  # a function of PyTorch that takes a std::string
    wrong = not torch.compiled_with_cxx11_abi()
    monkeypatch.setattr(torch, "compiled_with_cxx11_abi", lambda: wrong)
    with pytest.raises(Unsupported, match=r"was compiled and cannot be loaded: .*undefined symbol: .*; set CXX .* Nothing is served$"):
        library()


@pytest.mark.parametrize("others", [False, True])
def test_no_cache(small, monkeypatch, others):
    """The home cannot be written to, or the folder is another user's, whose libraries must not be executed."""
    if others:
        monkeypatch.setattr(os, "getuid", lambda: 12345)
    else:
        (small / "cache").write_text("", encoding="utf-8")
    found = library()
    folder = os.path.dirname(found._name)
    assert found.answer() == 41 and os.path.commonpath([folder, small]) != str(small)
    assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700 and not kept(small) if others else True
    shutil.rmtree(folder)


def test_unknown_device(small):
    with pytest.raises(Unsupported, match='device "xpu": only "cuda" and "cpu" have decorators'):
        library("xpu")


def test_places(tmp_path, monkeypatch):
    """The sources of this tree; those of a wheel, which lie beside the module, before them."""
    assert _build.places() == (os.path.join(ROOT, "src", "allocators", "torch"), os.path.join(ROOT, "include"))
    installed = tmp_path / "bucketpool" / "torch" / "steps"
    (installed / "src").mkdir(parents=True)
    monkeypatch.setattr(_build, "__file__", str(installed / "_build.py"))
    with pytest.raises(Unsupported, match="the sources of the decorators are not in .*; install the bucketpool wheel again"):
        _build.places()
    (installed / "src" / "decorator.h").write_text("", encoding="utf-8")
    assert _build.places() == (str(installed / "src"), str(installed / "src"))


def cuda_folder(folder, version):
    folder.mkdir(parents=True)
    (folder / "cuda.h").write_text("", encoding="utf-8")
    (folder / "cuda_runtime_api.h").write_text(f"#define CUDART_VERSION  {version}\n", encoding="utf-8")
    return str(folder)


def test_cuda_headers(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "thirteen"))
    monkeypatch.setenv("CUDA_PATH", str(tmp_path / "twelve"))
    thirteen, twelve = cuda_folder(tmp_path / "thirteen" / "include", 13010), cuda_folder(tmp_path / "twelve" / "include", 12040)
    monkeypatch.setattr(_build.glob, "glob", lambda pattern: [])
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    assert _build.cuda_headers() == (twelve, 12040)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    assert _build.cuda_headers() == (thirteen, 13010)
    monkeypatch.setattr(torch.version, "cuda", "11.8")
    with pytest.raises(Unsupported, match=r"^no headers of the CUDA 11 runtime: those of CUDA 13 in \S+ are for another PyTorch; install a toolkit and "
                                          r"name it in CUDA_HOME, or run pip install nvidia-cuda-runtime-cu11==11.8.\*. Nothing is served$"):
        _build.cuda_headers()
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(Unsupported, match="is without CUDA; install one for CUDA"):
        _build.cuda_headers()
    monkeypatch.setattr(torch.version, "hip", "6.4")
    with pytest.raises(Unsupported, match="is for ROCm; install one for CUDA"):
        _build.cuda_headers()


def declared():
    with open(os.path.join(ROOT, "src", "allocators", "torch", "decorator.h"), encoding="utf-8") as file:
        return set(re.findall(r"^BP_DECORATOR_API [^;]*?(bp_\w+)\(", file.read(), re.MULTILINE))


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_decorators(device, tmp_path, monkeypatch):
    """The real ones compile here, are loaded, and have the functions of decorator.h. CUDA's without the folder crt of its headers, as pip's
    package is.
    """
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    if device == "cuda":
        try:
            folder, version = _build.cuda_headers()
        except Unsupported as reason:
            pytest.skip(str(reason))
        bare = tmp_path / "include"
        bare.mkdir()
        for name in os.listdir(folder):
            if name != "crt":
                os.symlink(os.path.join(folder, name), bare / name)
        monkeypatch.setattr(_build, "cuda_headers", lambda: (str(bare), version))
    found = library(device)
    assert len(declared()) > 10 and declared() - {"bp_decorator_poison"} <= {name for name in declared() if hasattr(found, name)}
    found.bp_decorator_error.restype = ctypes.c_char_p
    assert found.bp_decorator_error() is not None
