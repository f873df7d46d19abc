#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Software bills of materials, as CycloneDX 1.6 in JSON: components of an artefact, and its tools.

CycloneDX, because the scanners of Python environments read it and auditwheel writes it, too; one document has the
components, their licences and the tools (`formulation`). The same input gives the same bytes: times come from `epoch`,
the serial number from the content.

usage: sbom.py OUTPUT ARTEFACT...     the bill of a release: its files, with what the wheels among them contain"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
import time
import uuid
import zipfile
from pathlib import Path
from typing import Any, Iterable
from urllib.parse import quote

Json = dict[str, Any]
LICENCE = "Apache-2.0"
VALIDATOR = "cyclonedx-python-lib[json-validation]==11.12.0"
NAMESPACE = uuid.UUID("6d0ff6f5-0a8c-5f5b-9d9c-6b1c2d0c6a11")

# Opened by dlopen while a program runs, never linked, and in no artefact: src/devices/cuda.c, comms/nccl.c, logprob/cuda/cublas.c,
# logprob/host/blas.c, logprob/host/jobs.c, pinned/jemalloc.c.
LOADED = {
    "libcuda": "the CUDA driver: pools and kernels on GPUs",
    "libnccl": "NCCL of the process: registration of slabs",
    "libcublas": "cuBLAS: the fused head on GPUs",
    "libblas": "any of OpenBLAS, BLIS, MKL, or PyTorch's: the fused head on the host",
    "libgomp": "OpenMP, of GCC or LLVM: threads of log-probabilities on the host",
    "libjemalloc": "jemalloc: pinned host memory",
}


def sha256(content: bytes) -> list[Json]:
    return [{"alg": "SHA-256", "content": hashlib.sha256(content).hexdigest()}]


def purl(kind: str, name: str, version: str, **qualifiers: str) -> str:
    """A package URL: purl("deb/debian", "gcc-10", "10.2.1-6", arch="amd64")."""
    more = "&".join(f"{key}={quote(value, safe='')}" for key, value in sorted(qualifiers.items()))
    return f"pkg:{kind}/{quote(name)}@{quote(version, safe='')}" + (f"?{more}" if more else "")


def component(name: str, version: str = "", licence: str = "", kind: str = "library", **more: Any) -> Json:
    """licence: an SPDX expression. more: members of the component by their names in CycloneDX."""
    made: Json = {"type": kind, "bom-ref": more.get("purl") or f"{kind}:{name}", "name": name}
    made.update({"version": version} if version else {})
    made.update({"licenses": [{"expression": licence}]} if licence else {})
    made.update(more)
    return made


def document(version: str, epoch: int, parts: Iterable[Json], tools: Iterable[Json] = (), kind: str = "generic", loads: bool = True) -> bytes:
    """The bill of bucketpool `version` that contains `parts` (components) and was made with `tools`. kind: of its package URL.

    loads: it has programs that load LOADED."""
    ours = component("bucketpool", version, LICENCE, purl=purl(kind, "bucketpool", version))
    inside = sorted(parts, key=lambda part: part["bom-ref"])
    loaded = [component(name, kind="library", scope="optional", description=f"{why}; loaded where it exists") for name, why in LOADED.items() if loads]
    made: Json = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json", "bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1,
        "metadata": {"timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(epoch)), "component": ours},
        "components": inside + sorted(loaded, key=lambda part: part["bom-ref"]),
        "dependencies": [{"ref": ours["bom-ref"], "dependsOn": sorted(part["bom-ref"] for part in inside + loaded)}],
    }
    built = sorted(tools, key=lambda tool: tool["bom-ref"])
    made.update({"formulation": [{"bom-ref": "build", "components": built}]} if built else {})
    made["serialNumber"] = uuid.uuid5(NAMESPACE, json.dumps(made, sort_keys=True)).urn
    return (json.dumps(made, indent=1, sort_keys=True) + "\n").encode()


def tools_of(bill: bytes) -> list[Json]:
    """The tools that a bill lists."""
    return [tool for made in json.loads(bill).get("formulation", []) for tool in made["components"]]


def of_wheel(wheel: Path) -> bytes:
    """The bill that a wheel has inside (PEP 770)."""
    with zipfile.ZipFile(wheel) as archive:
        name, = [name for name in archive.namelist() if ".dist-info/sboms/" in name]
        return archive.read(name)


def release(version: str, epoch: int, artefacts: Iterable[Path]) -> bytes:
    """The bill of a release: a component for each file. Wheels' have what is inside them, and their tools are the document's."""
    files, tools = [], {}
    for path in artefacts:
        file = component(path.name, kind="file", hashes=sha256(path.read_bytes()))
        if path.suffix == ".whl":
            inner = of_wheel(path)
            nested = [part for part in json.loads(inner)["components"] if part.get("scope") != "optional"]
            file["components"] = [{**part, "bom-ref": f"{path.name}:{part['bom-ref']}"} for part in nested]
            tools.update({tool["bom-ref"]: tool for tool in tools_of(inner)})
        files.append(file)
    return document(version, epoch, files, tools.values())


VALIDATION = """
import sys
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
sys.exit(JsonStrictValidator(SchemaVersion.V1_6).validate_str(open(sys.argv[1], encoding="utf-8").read()) and 1)
"""


def check(bill: Path) -> list[tuple[str, str, bool]]:
    """Validates a bill by CycloneDX's schema, in a clean root: (system, what was tried, whether it passed)."""
    import roots

    with roots.Root("debian-13") as root:
        root.install(["python3-venv"])
        root.run(f"python3 -m venv /venv; /venv/bin/pip install -q '{VALIDATOR}'")
        shutil.copy(bill, root.path / "bill.json")
        tried = root.run(["/venv/bin/python", "-c", VALIDATION, "/bill.json"], offline=True, check=False)
    return [("debian-13", "bill of materials: valid by the schema of CycloneDX 1.6", tried.returncode == 0)]


def main() -> int:
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    import source  # the version and the time of a commit

    output, *artefacts = map(Path, sys.argv[1:])
    output.write_bytes(release(source.version(), source.epoch(), artefacts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
