# SPDX-License-Identifier: Apache-2.0
"""The wheel: built by pip, installed without access to a compiler and to this clone, and used there."""

import os
import pathlib
import re
import subprocess
import sys
import venv
import zipfile

import pytest
import torch

from places import ROOT

LIBRARIES = {"libbucketpool.so.0", "libbucketpool-formats.so.0", "libbucketpool-logprob.so.0", "libjansson.so.4"}
BINDING = "_binding.abi3.so"  # where the build finds Python's headers
NATIVE = LIBRARIES | {"libsmartcols.so.1", "bucketpool"}  # the command and what it needs

USED = """
import sys
import bucketpool as bp
from bucketpool._library import logprob

model = bp.Model.read(sys.argv[1])
buckets = bp.Buckets(model, dp=8, roles=["param"])
plan = bp.Plan(buckets, bp.Schedule.training(buckets))
with bp.Device.host() as device, bp.Pool(device, plan) as pool:
    ids, stream = range(len(plan.requests)), device.stream()
    view, = pool.acquire(ids[:1], stream)
    stream.fill(view, 7)
    view.release()
    stream.synchronize()
logprob()
with open("/proc/self/maps", encoding="ascii") as file:
    loaded = {line.split()[-1] for line in file if "bucketpool" in line or "jansson" in line}
print(plan.bytes, plan.fingerprint, *sorted(path for path in loaded if ".so" in path))
"""

COMPILED = """
import sys
sys.path.append(sys.argv[1])  # of PyTorch
from bucketpool.torch.steps import _build
print(_build.places().sources, _build.library("cpu").bp_decorator_install())
"""


def run(*command, **more):
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=600, **more)


def isolated():
    """The environment without anything that names this build."""
    return {name: value for name, value in os.environ.items()
            if name not in ("PYTHONPATH", "BUCKETPOOL_LIBRARY_PATH", "LD_LIBRARY_PATH", "BUCKETPOOL_BUILD")}


def compiled_there():
    """Files that the package compiles on the user's machine: the decorators of PyTorch's allocators, and headers."""
    folder = os.path.join(ROOT, "src", "allocators", "torch")
    names = [name for name in os.listdir(folder) if name.startswith("decorator")]
    names += ["crt/" + name for name in os.listdir(os.path.join(folder, "crt"))]
    texts = "".join(pathlib.Path(folder, name).read_text(encoding="utf-8") for name in names)
    wanted, found = re.findall("^#include <(bucketpool/.+)>", texts, re.MULTILINE), set()
    while wanted:
        name = wanted.pop()
        if name not in found:
            found.add(name)
            text = pathlib.Path(ROOT, "include", name).read_text(encoding="utf-8")
            wanted += re.findall("^#include <(bucketpool/.+)>", text, re.MULTILINE)
    return {*names, *found}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    probe = run(*pip, "download", "-q", "--retries", "1", "--no-deps", "-d", str(folder / "probe"), "meson-python",
                env=isolated())
    if probe.returncode != 0:
        pytest.skip(f"meson-python cannot be had: {probe.stdout.strip().splitlines()[-1]}")
    result = run(*pip, "wheel", "--no-deps", "-w", str(folder),
                 "--config-settings=setup-args=-Dkernels=disabled", ROOT, env=isolated())
    assert result.returncode == 0, result.stdout[-4000:]
    path, = folder.glob("*.whl")
    return path


def test_contents(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    native = {name.rsplit("/", 1)[1] for name in names if name.startswith("bucketpool/lib/")}
    assert native - {BINDING} == NATIVE
    ours = {os.path.relpath(os.path.join(folder, name), os.path.join(ROOT, "python"))
            for folder, _, files in os.walk(os.path.join(ROOT, "python", "bucketpool")) for name in files
            if name.endswith((".py", "py.typed"))}
    assert {name for name in names if name.endswith((".py", "py.typed"))} == ours
    others = [name for name in names if not name.startswith(("bucketpool/lib/", "bucketpool/models/", "bucketpool-"))
              and name not in ours]
    assert set(others) == {"bucketpool/torch/steps/src/" + name for name in compiled_there()}
    models = {name.split("/")[2] for name in names if name.startswith("bucketpool/models/")}
    assert models >= set(os.listdir(os.path.join(ROOT, "examples", "models")))


def test_tags(wheel):
    assert re.fullmatch(r"bucketpool-[0-9.]+(rc[0-9]+)?-py3-none-linux_\w+\.whl", wheel.name)
    with zipfile.ZipFile(wheel) as file:
        folder, = {name.split("/")[0] for name in file.namelist() if ".dist-info/" in name}
        tags = re.findall("^Tag: (.+)$", file.read(folder + "/WHEEL").decode(), re.MULTILINE)
        metadata = file.read(folder + "/METADATA").decode()
    assert tags == [wheel.name.removesuffix(".whl").split("-", 2)[2]]
    assert "Author: The bucketpool developers" in metadata


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """The bin folder of an environment that has the wheel alone."""
    folder = tmp_path_factory.mktemp("venv")
    venv.create(folder, with_pip=True)
    result = run(str(folder / "bin" / "python"), "-m", "pip", "install", "-q", "--no-index", "--no-deps", str(wheel),
                 env=isolated())
    assert result.returncode == 0, result.stdout
    return folder / "bin"


def test_command(installed, tmp_path):
    bare = {**isolated(), "PATH": str(installed)}
    for command in ([str(installed / "bucketpool")], [str(installed / "python"), "-I", "-m", "bucketpool"]):
        assert re.fullmatch(r"bucketpool [0-9.]+(-rc[0-9]+)?\n", run(*command, "version", env=bare, cwd=tmp_path).stdout)
        planned = run(*command, "plan", "Llama-3.1-8B", "--dp", "8", "--plot", "pool.svg",  # a model of the wheel
                      env=bare, cwd=tmp_path)
        assert planned.returncode == 0 and "Llama-3.1-8B" in planned.stdout, planned.stdout
        assert (tmp_path / "pool.svg").read_text(encoding="utf-8").endswith("</svg>\n")
        assert run(*command, "plan", "Llama-3.1-8b", env=bare, cwd=tmp_path).returncode == 2
        described = run(*command, "describe", "config.json", env=bare, cwd=tmp_path)
        assert described.returncode in (2, 3) and "python3 -m bucketpool describe: " in described.stdout


def test_isolated_install(installed, tmp_path):
    python, bare = str(installed / "python"), {**isolated(), "PATH": str(installed)}
    model = os.path.join(ROOT, "examples", "models", "Qwen3-0.6B", "config.json")
    result = run(python, "-I", "-c", USED, model, env=bare, cwd=tmp_path)
    assert result.returncode == 0, result.stdout
    size, fingerprint, *loaded = result.stdout.split()
    assert int(size) > 0 and re.fullmatch("[0-9a-f]{64}", fingerprint)
    assert {os.path.basename(path) for path in loaded} == LIBRARIES
    assert all(path.startswith(str(installed.parent)) for path in loaded)


def test_decorators(installed, tmp_path):
    """Compiled from the wheel's sources, where there is PyTorch."""
    packages = os.path.dirname(os.path.dirname(torch.__file__))
    result = run(str(installed / "python"), "-I", "-c", COMPILED, packages, env={**isolated(), "XDG_CACHE_HOME": str(tmp_path)},
                 cwd=tmp_path)
    assert result.returncode == 0, result.stdout
    sources, status = result.stdout.split()
    assert sources.startswith(str(installed.parent)) and status == "0"
    assert [name.split("-")[1] for name in os.listdir(tmp_path / "bucketpool") if name != "lock"] == ["cpu"]


def test_needed_libraries(wheel, tmp_path):
    with zipfile.ZipFile(wheel) as file:
        file.extractall(tmp_path)
    for name in os.listdir(tmp_path / "bucketpool" / "lib"):
        text = run("readelf", "-d", str(tmp_path / "bucketpool" / "lib" / name)).stdout
        needed = set(re.findall(r"\(NEEDED\).*\[(.+)\]", text))
        assert needed <= {"libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "ld-linux-x86-64.so.2",
                          "ld-linux-aarch64.so.1", *NATIVE}, name
