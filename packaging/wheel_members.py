# SPDX-License-Identifier: Apache-2.0
"""Writes the final wheel of packaging/wheel.py, in its root: licences and the bill of materials of what it contains are
added, and its members have one order, one time, and modes that no umask changes.

usage: wheel_members.py WHEEL OUTPUT PARTS     PARTS: written by wheel.py"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import sys
import time
import zipfile
from pathlib import Path

import sbom

EXPRESSION = f"{sbom.LICENCE} AND LGPL-2.1-or-later AND MIT"
SMARTCOLS = """bucketpool/lib/libsmartcols.so.1 is the library of Debian's package libsmartcols1, version {version}, unchanged. It is free software under the
GNU Lesser General Public License, version 2.1 or later (LGPL-2.1, copyright).

Its complete source is Debian's source package {source} {source_version}:
- in bucketpool-{ours}-wheel-sources.tar, which is published where this wheel is;
- at https://snapshot.debian.org/package/{source}/{source_version}/.

The command `bucketpool` loads it as a shared library, nothing else does. To use your own, put it in the place of this file: any build of
util-linux's libsmartcols with the name (soname) libsmartcols.so.1.
"""


def licences(told: sbom.Json, ours: str) -> dict[str, bytes]:
    """By path below the folder `licenses`."""
    texts = {name: Path(path).read_bytes() for name, path in told["licences"].items()}
    return {**texts, "libsmartcols/README": SMARTCOLS.format(ours=ours, **told["smartcols"]).encode()}


def described(metadata: str, version: str, added: list[str]) -> str:
    """METADATA with the version, the licences of all contents, and the files that have them."""
    head, body = metadata.split("\n\n", maxsplit=1)
    head = re.sub("^Version: .*$", f"Version: {version}", head, flags=re.MULTILINE)
    head, expressions = re.subn("^License-Expression: .*$", f"License-Expression: {EXPRESSION}", head, flags=re.MULTILINE)
    assert expressions == 1, head
    return "\n".join([head, *(f"License-File: {name}" for name in added)]) + "\n\n" + body


def record(members: dict[str, bytes], name: str) -> bytes:
    def line(path: str, content: bytes) -> str:
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        return f"{path},sha256={digest},{len(content)}\n"

    return "".join(line(path, content) for path, content in sorted(members.items())).encode() + f"{name},,\n".encode()


def main() -> None:
    wheel, output, told = Path(sys.argv[1]), Path(sys.argv[2]), json.loads(Path(sys.argv[3]).read_text(encoding="utf-8"))
    with zipfile.ZipFile(wheel) as archive:
        members = {member.filename: archive.read(member) for member in archive.infolist() if not member.is_dir()}
        executable = {member.filename for member in archive.infolist() if member.external_attr >> 16 & 0o100}
    name, version, *tags = wheel.stem.split("-")
    if told["label"]:
        relabelled = f"{version}+{told['label']}"
        members = {re.sub(f"^{name}-{re.escape(version)}\\.", f"{name}-{relabelled}.", path): content for path, content in members.items()}
        version = relabelled
    info = f"{name}-{version}.dist-info"
    texts = licences(told, version)
    members[f"{info}/METADATA"] = described(members[f"{info}/METADATA"].decode(), version, sorted(texts)).encode()
    members.update({f"{info}/licenses/{path}": content for path, content in texts.items()})
    files = [sbom.component(path, kind="file", hashes=sbom.sha256(content)) for path, content in members.items() if path.startswith(f"{name}/lib/")]
    members[f"{info}/sboms/{name}.cdx.json"] = sbom.document(version, told["epoch"], told["libraries"] + files, told["tools"], "pypi")
    del members[f"{info}/RECORD"]
    members[f"{info}/RECORD"] = record(members, f"{info}/RECORD")
    output.mkdir()
    with zipfile.ZipFile(output / f"{'-'.join([name, version, *tags])}.whl", "w") as archive:
        for path in sorted(members, key=lambda path: (".dist-info/" in path, path)):  # readers look for dist-info at the end
            member = zipfile.ZipInfo(path, time.gmtime(told["epoch"])[:6])
            member.compress_type, member.create_system = zipfile.ZIP_DEFLATED, 3
            member.external_attr = (0o100755 if path in executable else 0o100644) << 16
            archive.writestr(member, members[path])


if __name__ == "__main__":
    main()
