# SPDX-License-Identifier: Apache-2.0
"""./check --torch --versions: compiles the decorators of PyTorch's allocators (src/allocators/torch) against the headers of each of its releases.

Takes the newest patch of each minor release from 2.6 on, and of its wheel the headers alone: pip's own code asks the package index that pip is
configured for, and reads the wheel's directory and the headers by requests of ranges, as for `--use-feature=fast-deps`: half a megabyte of
900. They stay in a folder, which is the first argument. Compiled with the options that users' machines take (bucketpool.torch.steps), and this
machine's CUDA headers. g++ also lists the table of virtual methods: none may be left to the default of PyTorch's class. Run it with a
Python that has pip and torch; check_torch.py does. Exit status 77, with a sentence: not possible here."""

import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile

from bucketpool.errors import Unsupported
from bucketpool.torch.steps import _build
from bucketpool.torch.steps._virtuals import CLASSES, INHERITED, OLDEST, forwarding

PARTS = ("torch/include/c10/", "torch/include/torch/headeronly/")
CHUNK = 1 << 16


class Impossible(Exception):
    pass


# ---- headers -----------------------------------------------------------------------------------------------------------


def newest(candidates):
    """The newest wheel of each minor release, as (major, minor): candidate. No pre-releases."""
    found = {}
    for candidate in candidates:
        version = candidate.version
        minor = (version.major, version.minor)
        if not candidate.link.is_wheel or version.is_prerelease or minor < OLDEST:
            continue
        if minor not in found or found[minor].version < version:
            found[minor] = candidate
    return found


def unpack(wheel, folder):
    """The headers of an open wheel, whole or not at all."""
    archive = zipfile.ZipFile(wheel)
    wanted = [info for info in archive.infolist() if info.filename.startswith(PARTS) and not info.is_dir()]
    if not any(info.filename.endswith("/c10/cuda/CUDACachingAllocator.h") for info in wanted):
        raise Impossible("the wheel is without CUDA")
    os.makedirs(os.path.dirname(folder), exist_ok=True)
    partial = tempfile.mkdtemp(dir=os.path.dirname(folder))
    try:
        for info in sorted(wanted, key=lambda info: info.header_offset):  # neighbours come in one request
            archive.extract(info, partial)
        os.rename(partial, folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def releases(folder):
    """Yields each release, the folder of its wheel's contents, and else the reason why they could not be had."""
    try:
        from pip._internal.commands.download import DownloadCommand
        from pip._internal.exceptions import PipError
        from pip._internal.models.target_python import TargetPython
        from pip._internal.network.lazy_wheel import HTTPRangeRequestUnsupported, LazyZipOverHTTP
        from pip._vendor.requests.exceptions import RequestException
    except ImportError as error:
        raise Impossible(f"this pip has no wheels by ranges: {error}") from error
    command = DownloadCommand("download", "")
    options, _ = command.parse_args(["--retries", "1", "torch"])
    with command.main_context():
        session = command.get_default_session(options)
        # Wheels of the Python that torch had at the time, whatever runs this; of Linux on x86_64, since only those are for CUDA.
        target = TargetPython(platforms=["manylinux_2_28_x86_64", "manylinux1_x86_64", "linux_x86_64"], py_version_info=(3, 11))
        finder = command._build_package_finder(options, session, target)
        try:
            found = newest(finder.find_all_candidates("torch"))
        except (PipError, RequestException, OSError) as error:
            raise Impossible(f"the package index does not answer: {error}") from error
        if not found:
            raise Impossible("the package index has no wheels of torch for Linux on x86_64, or does not answer")
        for _, candidate in sorted(found.items()):
            release = str(candidate.version)
            place = os.path.join(folder, release)
            reason = ""
            if not os.path.exists(place):
                try:
                    with LazyZipOverHTTP(candidate.link.url_without_fragment, session, CHUNK) as wheel:
                        unpack(wheel, place)
                except HTTPRangeRequestUnsupported:
                    reason = "the package index allows no requests of ranges"
                except (Impossible, PipError, RequestException, OSError, zipfile.BadZipFile) as error:
                    reason = str(error)
            yield release, place, reason


# ---- compiling ---------------------------------------------------------------------------------------------------------


def check_table(folder):
    """Raises Unsupported where the class Forwarding leaves a virtual method to PyTorch's class, by the compiler's table of them."""
    dump, = glob.glob(os.path.join(folder, "*.class"))
    with open(dump, encoding="utf-8") as file:
        table, = re.findall(r"^Vtable for \S+::Forwarding\n(.*?)\n\n", file.read(), re.MULTILINE | re.DOTALL)
    methods = re.findall(r"^\d+\s+\(int \(\*\)\(\.\.\.\)\)([A-Za-z_]\S*)$", table, re.MULTILINE)
    left = [name for name in methods if "::Forwarding::" not in name]
    if [name.rpartition("::")[2] for name in left] not in ([], list(INHERITED)):
        raise Unsupported(f"the decorator leaves methods to PyTorch's class: {', '.join(left)}")


def compiled(device, release, include, cuda, where, chosen):
    """A phrase of how it went. Raises Unsupported where it does not compile."""
    header = forwarding(include, device, release)
    dumped = [] if "clang" in chosen.version else ["-fdump-lang-class"]
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "forwarding.h"), "w", encoding="utf-8") as file:
            file.write(header)
        begin = time.monotonic()
        done = subprocess.run([*chosen.command, *dumped, *_build.compile_options(device, release, include, cuda, where), "-c", "-o", "decorator.o"],
                              cwd=folder, capture_output=True, text=True, timeout=_build.SECONDS, env=_build.surroundings())
        phrase = f"{device} {time.monotonic() - begin:.1f} s"
        if done.returncode != 0:
            raise Unsupported(_build.first_errors(done.stderr))
        if dumped:
            check_table(folder)
        return f"{phrase}, {header.count(' override ')} methods"


def main():
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    try:
        chosen, where = _build.compiler(), _build.places()
        cuda, version = _build.cuda_headers()
    except Unsupported as reason:
        print(reason)
        return 77
    print(f"torch: {chosen.version}, headers of CUDA {version // 1000}.{version % 1000 // 10}", flush=True)
    try:
        for release, place, reason in releases(os.path.abspath(sys.argv[1])):
            if reason:
                counts["skipped"] += 1
                print(f"torch {release}: skipped: {reason}", flush=True)
                continue
            include = os.path.join(place, "torch", "include")
            try:
                said = [compiled(device, release, include, cuda if device == "cuda" else "", where, chosen) for device in CLASSES]
                counts["passed"] += 1
                print(f"torch {release}: compiled ({'; '.join(said)})", flush=True)
            except Unsupported as error:
                counts["failed"] += 1
                print(f"torch {release}: {error}", flush=True)
    except Impossible as reason:
        print(f"./check --torch --versions is skipped: {reason}")
        return 77
    print(", ".join(f"{count} {name}" for name, count in counts.items()))
    return 1 if counts["failed"] else 0 if counts["passed"] else 77


if __name__ == "__main__":
    sys.exit(main())
