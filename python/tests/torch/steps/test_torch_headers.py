# SPDX-License-Identifier: Apache-2.0
"""./check --torch --versions, with a package index on this machine: headers out of wheels, by requests of ranges."""

import http.server
import io
import os
import pathlib
import re
import subprocess
import sys
import threading
import zipfile

import pytest
import torch

from bucketpool.errors import Unsupported
from bucketpool.torch.steps import _build
from bucketpool.torch.steps._virtuals import HEADERS
from places import ROOT

PACKAGES = pathlib.Path(torch.__file__).parent.parent
RELEASE = torch.__version__.partition("+")[0]


def wheel_of(edit=None, parts=("c10", os.path.join("torch", "headeronly"))):
    """A wheel with PyTorch's headers, and a large file that nobody asks for in front of them."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("torch/lib/libtorch.so", os.urandom(8 << 20))
        for part in parts:
            for folder, _, names in os.walk(PACKAGES / "torch" / "include" / part):
                for name in names:
                    path = os.path.relpath(os.path.join(folder, name), PACKAGES)
                    with open(os.path.join(folder, name), encoding="utf-8") as file:
                        text = file.read()
                    archive.writestr(path, edit(path, text) if edit else text)
    return packed.getvalue()


@pytest.fixture
def index(tmp_path):
    """Serves wheels, with or without ranges, and counts the bytes."""
    served = {"wheels": {}, "ranges": True, "bytes": 0}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_HEAD(self):
            self.answer(b"")

        def do_GET(self):
            self.answer(None)

        def answer(self, body):
            name = self.path.strip("/")
            content = served["wheels"].get(name)
            if content is None:
                content = "".join(f'<a href="/{name}">{name}</a>' for name in served["wheels"]).encode()
            asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
            begin, end = (int(asked[1]), int(asked[2]) + 1) if asked else (0, len(content))
            self.send_response(206 if asked else 200)
            self.send_header("Content-Type", "text/html" if name not in served["wheels"] else "application/octet-stream")
            self.send_header("Content-Length", str(len(content[begin:end])))
            if served["ranges"]:
                self.send_header("Accept-Ranges", "bytes")
            self.end_headers()
            if body is None:
                served["bytes"] += len(content[begin:end])
                self.wfile.write(content[begin:end])

        def log_message(self, format, *arguments):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    served["address"] = f"http://127.0.0.1:{server.server_address[1]}/"
    yield served
    server.shutdown()
    server.server_close()


def check_versions(index, folder):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PIP_") and not name.lower().endswith("_proxy")}
    environment.update(PIP_CONFIG_FILE=os.devnull, PIP_NO_INDEX="1", PIP_FIND_LINKS=index["address"])
    return subprocess.run([sys.executable, os.path.join(ROOT, "scripts", "torch_headers.py"), str(folder)], env=environment,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=300)


@pytest.fixture(autouse=True)
def needed():
    pytest.importorskip("pip._internal.network.lazy_wheel")
    try:
        _build.compiler(), _build.cuda_headers()
    except Unsupported as reason:
        pytest.skip(str(reason))


def name_of(release, tag="manylinux_2_28_x86_64"):
    return f"torch-{release}-cp311-cp311-{tag}.whl"


def test_releases(index, tmp_path):
    def newer(path, text):
        return text.replace("virtual void raw_delete(void* ptr)", "virtual void unheardOf(); virtual void raw_delete(void* ptr)")

    major, minor, patch = RELEASE.split(".")
    index["wheels"] = {
        name_of(RELEASE): wheel_of(),
        name_of(f"{major}.{minor}.{int(patch) + 1}rc1"): b"a pre-release",
        name_of(RELEASE, "macosx_11_0_arm64"): b"of another system",
        name_of("2.5.1"): b"too old",
        name_of("2.98.0"): wheel_of(parts=[os.path.join("c10", "core")]),
        name_of("2.99.0"): b"an older patch", name_of("2.99.1"): wheel_of(newer)}
    first = check_versions(index, tmp_path / "headers")
    lines = first.stdout.splitlines()
    assert first.returncode == 1, first.stdout + first.stderr
    assert re.fullmatch(rf"torch {re.escape(RELEASE)}: compiled \(cpu [\d.]+ s, 4 methods; cuda [\d.]+ s, \d\d methods\)", lines[1]), first.stdout
    assert lines[2:] == ["torch 2.98.0: skipped: the wheel is without CUDA",
                         "torch 2.99.1: PyTorch 2.99's allocator has a method that this version does not know: CUDAAllocator::unheardOf; "
                         "update bucketpool. Nothing is served", "1 passed, 1 failed, 1 skipped"]
    header = pathlib.Path("torch", "include", HEADERS["CUDAAllocator"])
    assert (tmp_path / "headers" / RELEASE / header).read_bytes() == (PACKAGES / header).read_bytes()
    assert index["bytes"] < 8 << 20  # without the large file of any wheel
    index["bytes"] = 0
    assert check_versions(index, tmp_path / "headers").stdout.splitlines()[2:] == lines[2:]
    assert index["bytes"] < 1 << 20  # kept: the index, and the directory of the wheel that is skipped


def test_no_ranges(index, tmp_path):
    index["wheels"], index["ranges"] = {name_of(RELEASE): wheel_of()}, False
    done = check_versions(index, tmp_path)
    assert done.returncode == 77
    assert f"torch {RELEASE}: skipped: the package index allows no requests of ranges\n0 passed, 0 failed, 1 skipped\n" in done.stdout
    assert os.listdir(tmp_path) == []


def test_no_wheels(index, tmp_path):
    done = check_versions(index, tmp_path)
    assert done.returncode == 77
    assert "./check --torch --versions is skipped: the package index has no wheels of torch for Linux on x86_64, or does not answer\n" in done.stdout
