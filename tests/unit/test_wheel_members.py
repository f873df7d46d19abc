# SPDX-License-Identifier: Apache-2.0
"""The final wheel and bills of materials (packaging/wheel_members.py, sbom.py), from a wheel as auditwheel leaves it: the same bytes at any
time, RECORD and the metadata fit the members, and the bill of a release has what the wheel contains.

Argument: source directory."""

import base64
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import unittest
import zipfile
from pathlib import Path

ROOT = Path(sys.argv[1]).resolve()
sys.path.insert(0, str(ROOT / "packaging"))
import sbom  # noqa: E402  pylint: disable=wrong-import-position

EPOCH = 1700000000
INFO = "bucketpool-1.0.0rc1.dist-info"
METADATA = """Metadata-Version: 2.4
Name: bucketpool
Version: 1.0.0rc1
License-Expression: Apache-2.0
License-File: LICENSE

Text.

Version: of the text
"""
MEMBERS = {
    f"{INFO}/METADATA": METADATA, f"{INFO}/RECORD": "", f"{INFO}/WHEEL": "Wheel-Version: 1.0\n", f"{INFO}/licenses/LICENSE": "Apache\n",
    "bucketpool/lib/libsmartcols.so.1": "library", "bucketpool/lib/bucketpool": "command", "bucketpool/__init__.py": "",
}


class Wheel(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def made(self, name, members, modified, label=""):
        """The final wheel from members that an archive has in this order and with this time."""
        folder = self.folder / name
        folder.mkdir()
        wheel = folder / "bucketpool-1.0.0rc1-py3-none-manylinux_2_28_x86_64.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            for path in members:
                member = zipfile.ZipInfo(path, modified)
                member.external_attr = (0o755 if path.endswith("lib/bucketpool") else 0o600) << 16
                archive.writestr(member, MEMBERS[path])
        (folder / "licence").write_text("a licence\n", encoding="utf-8")
        library = sbom.component("jansson", "2.14", "MIT", purl=sbom.purl("deb/debian", "jansson", "2.14-2", arch="source"))
        smartcols = {"version": "2.36.1-8", "source": "util-linux", "source_version": "2.36.1-8+a"}
        parts = {"epoch": EPOCH, "label": label, "libraries": [library], "tools": [sbom.component("gcc-10", "10.2", kind="application")],
                 "smartcols": smartcols, "licences": {"jansson/LICENSE": str(folder / "licence")}}
        (folder / "parts.json").write_text(json.dumps(parts), encoding="utf-8")
        subprocess.run([sys.executable, ROOT / "packaging" / "wheel_members.py", wheel, folder / "made", folder / "parts.json"], check=True,
                       env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"})
        final, = (folder / "made").iterdir()
        return final

    def test_same_bytes(self):
        first = self.made("first", MEMBERS, (2020, 1, 1, 0, 0, 0))
        second = self.made("second", list(reversed(MEMBERS)), (2021, 2, 3, 4, 5, 6))
        self.assertEqual((first.name, first.read_bytes()), (second.name, second.read_bytes()))

    def test_members(self):
        with zipfile.ZipFile(self.made("cpu", MEMBERS, (2020, 1, 1, 0, 0, 0), "cpu")) as archive:
            members = {member.filename: archive.read(member) for member in archive.infolist()}
            modes = {member.filename: member.external_attr >> 16 & 0o777 for member in archive.infolist()}
        self.assertTrue(archive.filename.endswith("/bucketpool-1.0.0rc1+cpu-py3-none-manylinux_2_28_x86_64.whl"))
        self.assertEqual({mode for path, mode in modes.items() if not path.endswith("lib/bucketpool")}, {0o644})
        self.assertEqual(modes["bucketpool/lib/bucketpool"], 0o755)
        info = "bucketpool-1.0.0rc1+cpu.dist-info"
        head, text = members[f"{info}/METADATA"].decode().split("\n\n", maxsplit=1)
        self.assertEqual(text, "Text.\n\nVersion: of the text\n")
        self.assertIn("Version: 1.0.0rc1+cpu\nLicense-Expression: Apache-2.0 AND LGPL-2.1-or-later AND MIT\n", head)
        files = [line.split(": ")[1] for line in head.splitlines() if line.startswith("License-File: ")]
        self.assertEqual(files, ["LICENSE", "jansson/LICENSE", "libsmartcols/README"])
        self.assertEqual(set(files), {path.split("/licenses/")[1] for path in members if "/licenses/" in path})
        self.assertIn(b"bucketpool-1.0.0rc1+cpu-wheel-sources.tar", members[f"{info}/licenses/libsmartcols/README"])
        recorded = dict(line.split(",", maxsplit=1) for line in members[f"{info}/RECORD"].decode().splitlines())
        self.assertEqual(recorded.pop(f"{info}/RECORD"), ",")
        self.assertEqual(recorded, {
            path: f"sha256={base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b'=').decode()},{len(content)}"
            for path, content in members.items() if path != f"{info}/RECORD"})

    def test_bill_of_a_release(self):
        wheel = self.made("wheel", MEMBERS, (2020, 1, 1, 0, 0, 0))
        other = self.folder / "bucketpool-1.0.0-rc1.tar.xz"
        other.write_bytes(b"sources")
        bill = json.loads(sbom.release("1.0.0-rc1", EPOCH, [other, wheel]))
        files = {part["name"]: part for part in bill["components"] if part["type"] == "file"}
        self.assertEqual({name: part["hashes"][0]["content"] for name, part in files.items()},
                         {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in (other, wheel)})
        inside = {part["name"]: part.get("version") for part in files[wheel.name]["components"]}
        self.assertEqual(inside, {"jansson": "2.14", "bucketpool/lib/bucketpool": None, "bucketpool/lib/libsmartcols.so.1": None})
        self.assertEqual([tool["name"] for tool in bill["formulation"][0]["components"]], ["gcc-10"])
        self.assertEqual(set(bill["dependencies"][0]["dependsOn"]), {part["bom-ref"] for part in bill["components"]})
        self.assertEqual(bill["metadata"]["timestamp"], "2023-11-14T22:13:20Z")
        self.assertEqual(sbom.release("1.0.0-rc1", EPOCH, [other, wheel]), sbom.release("1.0.0-rc1", EPOCH, [other, wheel]))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
