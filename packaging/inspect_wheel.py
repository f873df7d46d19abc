# SPDX-License-Identifier: Apache-2.0
"""Looks into a wheel without installing it: run by packaging/wheel.py in a root with the tools of PyPI.

- twine: the metadata that an index wants. wheel: the hashes of RECORD. auditwheel: the tag fits the symbols.
- The bill of materials is valid by CycloneDX's schema, and its hashes are those of the files.
- The kernels that the version promises are in the library, for each architecture and as PTX, and for the drivers that it promises.
- No file names the folder of the build.

usage: inspect_wheel.py WHEEL"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

sys.path.append(str(Path(__file__).resolve().parent.parent / "clients/logprob/src/cuda"))
import fatbin  # noqa: E402: beside what it reads

LIBRARIES = {"bucketpool", "libbucketpool.so.0", "libbucketpool-formats.so.0", "libbucketpool-logprob.so.0", "libsmartcols.so.1", "_binding.abi3.so"}
# Kernels and the first driver for each: GPUs of 10.0 and 12.0 came with 12.8.
EXPECTED = {"sm_80": (12, 0), "sm_90": (12, 0), "sm_100": (12, 8), "sm_120": (12, 8), "compute_80": (12, 0)}


def run(*words: str) -> str:
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    print("$", *words, "\n" + done.stdout)
    if done.returncode != 0:
        sys.exit(f"failed: {' '.join(words)}")
    return done.stdout


def expect(condition: bool, what: str) -> None:
    if not condition:
        sys.exit(f"failed: {what}")


def bill(folder: Path, info: Path) -> dict[str, str]:
    """Validates the bill of materials; returns the libraries that it says are inside, with their versions."""
    text = (info / "sboms" / "bucketpool.cdx.json").read_text(encoding="utf-8")
    error = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
    expect(error is None, f"bill of materials: {error}")
    components = json.loads(text)["components"]
    files = {part["name"]: part["hashes"][0]["content"] for part in components if part["type"] == "file"}
    found = {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in (folder / "bucketpool/lib").iterdir()}
    expect(files == found, f"bill of materials: {files}, expected {found}")
    return {part["name"]: part["version"] for part in components if part["type"] == "library" and part.get("scope") != "optional"}


def main() -> None:
    wheel = Path(sys.argv[1])
    run("twine", "check", "--strict", str(wheel))
    shown = run("auditwheel", "show", str(wheel))
    platforms = wheel.stem.split("-")[-1].split(".")
    expect(f'"{platforms[0]}"' in re.sub(r"\s+", " ", shown), f"auditwheel does not say {platforms[0]}")
    with tempfile.TemporaryDirectory() as temporary:
        run("wheel", "unpack", "--dest", temporary, str(wheel))
        folder, = Path(temporary).iterdir()
        info, = folder.glob("*.dist-info")
        names = set(os.listdir(folder / "bucketpool/lib"))
        expect(names == LIBRARIES, f"libraries {sorted(names)}")
        metadata = (info / "METADATA").read_text(encoding="utf-8")
        licences = re.findall("^License-File: (.+)$", metadata, re.MULTILINE)
        expect(len(licences) == 5 and all((info / "licenses" / name).is_file() for name in licences), f"licences {licences}")
        libraries = bill(folder, info)
        expect(set(libraries) == {"jansson", "libsmartcols", "NVTX"}, f"bill of materials: libraries {libraries}")
        for path in folder.rglob("*"):
            named = re.search(rb"/(build|srv|parts|tools|packaging)/[\w/.-]*", path.read_bytes()) if path.is_file() and path.parent.name == "lib" else None
            expect(named is None, f"{path.name} names {named[0].decode() if named else ''}")
        image = fatbin.image_of((folder / "bucketpool/lib/libbucketpool-logprob.so.0").read_bytes())
    found = {each.code: each.driver for each in fatbin.entries(image)} if image else {}
    print(fatbin.table(image) if image else "no kernels")
    expect(found == ({} if "+cpu-" in wheel.name else EXPECTED), f"kernels and drivers {found}")
    with zipfile.ZipFile(wheel) as archive:
        unpacked = sum(member.file_size for member in archive.infolist())
    print(f"twine, auditwheel ({platforms[0]}), RECORD, licences, bill of materials with {', '.join(' '.join(pair) for pair in libraries.items())}; "
          f"{wheel.stat().st_size} bytes, {unpacked} unpacked, {len(image)} of kernels ({', '.join(found) or 'none'})")


if __name__ == "__main__":
    main()
