# SPDX-License-Identifier: Apache-2.0
"""Headers of PyTorch's releases for CUDA, without their wheels: a folder for each, of the newest patch of each minor release.

pip's own code asks the package index that pip is configured for, and reads of each wheel its directory and the headers, by requests of ranges,
as for `--use-feature=fast-deps`: half a megabyte of 900. Run it with a Python that has pip, as
`python torch_headers.py FOLDER FIRST LAST`, for example `build-check/torch-headers 2.6 2.12`; check_torch.py does. It prints a line of JSON
for each release: {"release", "folder"}, or {"release", "reason"}. Exit status 77, with a sentence: pip cannot do so here."""

import json
import os
import shutil
import sys
import tempfile
import zipfile

PARTS = ("torch/include/c10/", "torch/include/torch/headeronly/", "torch/version.py")
CHUNK = 1 << 16


class Impossible(Exception):
    pass


def number(text):
    return tuple(int(part) for part in text.split("."))


def newest(candidates, first, last):
    """The newest wheel of each minor release from first to last, as (major, minor): candidate. No pre-releases."""
    found = {}
    for candidate in candidates:
        version = candidate.version
        minor = (version.major, version.minor)
        if not candidate.link.is_wheel or version.is_prerelease or not first <= minor <= last:
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


def releases(folder, first, last):
    """Yields a line for each release."""
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
            found = newest(finder.find_all_candidates("torch"), first, last)
        except (PipError, RequestException, OSError) as error:
            raise Impossible(f"the package index does not answer: {error}") from error
        if not found:
            raise Impossible("the package index has no wheels of torch for Linux on x86_64, or does not answer")
        for _, candidate in sorted(found.items()):
            release = str(candidate.version)
            place = os.path.join(folder, release)
            line = {"release": release, "folder": place}
            if not os.path.exists(place):
                try:
                    with LazyZipOverHTTP(candidate.link.url_without_fragment, session, CHUNK) as wheel:
                        unpack(wheel, place)
                except HTTPRangeRequestUnsupported:
                    line = {"release": release, "reason": "the package index allows no requests of ranges"}
                except (Impossible, PipError, RequestException, OSError, zipfile.BadZipFile) as error:
                    line = {"release": release, "reason": str(error)}
            yield line


def main():
    try:
        for line in releases(os.path.abspath(sys.argv[1]), number(sys.argv[2]), number(sys.argv[3])):
            print(json.dumps(line), flush=True)
    except Impossible as reason:
        print(reason)
        return 77
    return 0


if __name__ == "__main__":
    sys.exit(main())
