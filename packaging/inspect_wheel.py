# SPDX-License-Identifier: Apache-2.0
"""Looks into a wheel without installing it: run by packaging/wheel.py in a root with the tools of PyPI.

- twine: the metadata that an index wants. wheel: the hashes of RECORD. auditwheel: the tag fits the symbols.
- The bill of materials is valid by CycloneDX's schema, and its hashes are those of the files.
- cuobjdump: the kernels that the version promises are in the library, for each architecture and as PTX.
- No file names the folder of the build.

usage: inspect_wheel.py WHEEL"""

from __future__ import annotations

import hashlib
import json
import os
import re
import struct
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

LIBRARIES = {"bucketpool", "libbucketpool.so.0", "libbucketpool-formats.so.0", "libbucketpool-logprob.so.0", "libsmartcols.so.1", "_binding.abi3.so"}
FATBIN = 0xBA55ED50
EXPECTED = {"sm_80", "sm_90", "sm_100", "PTX of sm_80"}


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


def kernels(library: Path) -> tuple[set[str], int]:
    """Architectures of the fatbin in a library, and its bytes; 0 without one."""
    content = library.read_bytes()
    begin = content.find(struct.pack("<IHH", FATBIN, 1, 16))
    if begin < 0:
        return set(), 0
    size = 16 + struct.unpack_from("<Q", content, begin + 8)[0]
    with tempfile.NamedTemporaryFile(suffix=".fatbin") as file:
        file.write(content[begin:begin + size])
        file.flush()
        listed = run(cuobjdump(), "--list-elf", "--list-ptx", file.name)
    found = {f"{'PTX of ' if kind == 'ptx' else ''}{code}" for code, kind in re.findall(r"\.(sm_\d+)\.(cubin|ptx)", listed)}
    return found, size


def cuobjdump() -> str:
    found = sorted(Path(sys.prefix).rglob("bin/cuobjdump"))
    expect(bool(found), "cuobjdump was not found")
    return str(found[0])


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
        found, size = kernels(folder / "bucketpool/lib/libbucketpool-logprob.so.0")
    expect(found == (set() if "+cpu-" in wheel.name else EXPECTED), f"kernels for {sorted(found)}")
    with zipfile.ZipFile(wheel) as archive:
        unpacked = sum(member.file_size for member in archive.infolist())
    print(f"twine, auditwheel ({platforms[0]}), RECORD, licences, bill of materials with {', '.join(' '.join(pair) for pair in libraries.items())}; "
          f"{wheel.stat().st_size} bytes, {unpacked} unpacked, {size} of kernels ({', '.join(sorted(found)) or 'none'})")


if __name__ == "__main__":
    main()
