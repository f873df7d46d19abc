# SPDX-License-Identifier: Apache-2.0
"""The architecture: permitted includes between folders, needed libraries, exported symbols.

Arguments: source directory, core library, those of the formats, MPI and log-probability libraries that are built.
"""

import os
import re
import subprocess
import sys
import unittest

ROOT, CORE = os.path.abspath(sys.argv[1]), sys.argv[2]
sys.path.insert(0, os.path.join(ROOT, "scripts"))
from sources import tracked  # noqa: E402

FORMATS = next((library for library in sys.argv[3:] if "formats" in os.path.basename(library)), None)
MPI = next((library for library in sys.argv[3:] if "mpi" in os.path.basename(library)), None)
LOGPROB = next((library for library in sys.argv[3:] if "logprob" in os.path.basename(library)), None)

# The rooms of src, and the folders whose headers each may include: its own and core's besides. A room's folders are parts of one subject.
MAY_INCLUDE = {
    "core": set(),
    "devices": set(), "devices/memory": {"devices"}, "devices/pinned": {"devices"}, "devices/nvtx": set(),
    "planner/model": {"planner/model/families"}, "planner/model/families": {"planner/model"},
    "planner/packing": set(), "planner/schedule": {"planner/model"}, "planner/steps": set(),
    "planner": {"planner/model", "planner/schedule"},
    "allocators": {"devices", "devices/memory", "devices/nvtx", "planner"},
    "allocators/offload": {"allocators", "devices", "devices/memory", "devices/pinned"},
    "allocators/profile": {"allocators"}, "allocators/serve": set(), "allocators/torch": {"devices", "devices/memory"}, "allocators/torch/crt": set(),
    "comms": {"devices", "devices/memory", "devices/nvtx"}, "comms/mpi": {"comms"},
    "formats": {"formats/models"}, "formats/models": {"formats"}, "formats/snapshots": {"formats", "formats/models"},
}
# Libraries apart from the core: of it they see public headers, inline functions, what is compiled into each, and PRIVATE_HEADERS.
APART = ("formats", "formats/models", "formats/snapshots", "comms/mpi")
INLINE_HEADERS = {"core/address_map.h", "core/files.h", "core/hash.h", "core/index.h", "core/json_writer.h", "core/kinds.h", "core/memory.h", "core/print.h",
                  "core/clock.h", "core/text.h"}
# libc, and the loader, which implements thread-local storage.
LIBC = {"libc.so.6", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1", "libc.so"}  # the last: musl
# Headers, not installed, of functions for other libraries and the command: exported as BUCKETPOOL_PRIVATE.
PRIVATE_HEADERS = {"core/print.h", "devices/cuda_driver.h", "devices/memory/slab_callbacks.h", "formats/fit_file.h", "formats/models/hub.h", "formats/packing_file.h",
                   "formats/snapshots/snapshot.h", "formats/snapshots/trace_file.h", "planner/from_info.h", "planner/model/arch_config.h",
                   "planner/steps/attribution.h", "planner/steps/stack_places.h", "planner/steps/steps.h", "planner/steps/trace.h"}
# Files in a folder: about 25; larger folders need a reason here.
LARGEST_FOLDER = 25
LARGEST_FOLDERS = {
    "tests/cli": 30, "tests/support": 26, "tests/contract": 28, "tests/offload": 28, "tests/gpu": 26, "tests/unit": 28,
    "tests/fakes/cuda": 37,  # the emulated driver: a file for each part of its interface
}
LARGE_FOLDERS = ("tests/data", "tests/fuzz/corpus")
# Other headers that declare such functions, for Python tests.
TEST_HEADERS = {"allocators/pool.h", "devices/device.h"}


def includes(path):
    with open(path, encoding="utf-8") as file:
        return re.findall(r'^#include "([^"]+)"', file.read(), re.MULTILINE)


def sources(folder):
    for directory, _, names in os.walk(os.path.join(ROOT, folder)):
        for name in names:
            if name.endswith((".c", ".h", ".cu", ".cuh")):
                yield os.path.join(directory, name)


class Structure(unittest.TestCase):
    def test_include_direction(self):
        folders = {os.path.relpath(os.path.dirname(path), os.path.join(ROOT, "src")) for path in sources("src")}
        self.assertEqual(folders, set(MAY_INCLUDE))
        for path in sources("src"):
            folder = os.path.relpath(os.path.dirname(path), os.path.join(ROOT, "src"))
            if os.path.basename(path).startswith("decorator"):  # compiled on the user's machine, from a folder of the wheel
                self.assertLessEqual(set(includes(path)), {*os.listdir(os.path.dirname(path)), "forwarding.h"}, path)
                continue
            for header in set(includes(path)) - {"version.h"} - (PRIVATE_HEADERS if folder in APART else set()):
                self.assertIn(os.path.dirname(header), MAY_INCLUDE[folder] | {folder, "core"}, f"{path} includes {header}")
                if folder in APART and header.startswith("core/"):
                    self.assertIn(header, INLINE_HEADERS, f"{path} includes {header}")

    def test_headers_of_clients(self):
        """Clients see public headers only: they build on an installed library."""
        own = {os.path.relpath(path, os.path.join(ROOT, "clients/logprob/src")) for path in sources("clients/logprob/src")}
        for path in sources("clients/logprob/src"):
            for header in includes(path):
                self.assertIn(header, own | {"simt.h"}, f"{path} includes {header}")  # the last: the emulation of a GPU

    def test_headers_of_tools(self):
        own = {os.path.relpath(path, os.path.join(ROOT, "tools")) for path in sources("tools")}
        for path in sources("tools"):
            for header in includes(path):
                self.assertIn(header, own | INLINE_HEADERS | PRIVATE_HEADERS, f"{path} includes {header}")

    def test_headers_of_examples(self):
        checked = 0
        for path in sources("examples"):
            own = set(os.listdir(os.path.dirname(path)))
            for header in includes(path):
                checked += 1
                self.assertIn(header, own, f"{path} includes {header}")
        self.assertGreater(checked, 20)

    def test_files_in_documents(self):
        for document in ("CONTRIBUTING.md", "docs/internals/architecture.md"):
            with open(os.path.join(ROOT, document), encoding="utf-8") as file:
                named = re.findall(r"`((?:[a-z_0-9]+/)+[a-z_0-9]+\.(?:c|h|py|cpp|cuh|cu))`", file.read())
            self.assertGreater(len(named), 10)
            for path in named:
                self.assertTrue(any(os.path.exists(os.path.join(ROOT, base, path)) for base in ("", "src", "include", "clients/logprob/src", "clients/logprob/include")),
                                f"{document}: {path}")

    def test_folder_sizes(self):
        """Small folders keep the tree readable."""
        for root in ("src", "clients", "tools", "bench", "tests"):
            for directory, _, names in os.walk(os.path.join(ROOT, root)):
                folder = os.path.relpath(directory, ROOT)
                if not folder.startswith(LARGE_FOLDERS):
                    count = len([name for name in names if not name.endswith(".pyc")])
                    self.assertLessEqual(count, LARGEST_FOLDERS.get(folder, LARGEST_FOLDER), f"{folder}: {count} files")

    def needed(self, library):
        text = subprocess.run(["readelf", "-d", library], check=True, capture_output=True, text=True).stdout
        return set(re.findall(r"\(NEEDED\).*\[(.+)\]", text))

    def needed_beyond_libc(self, library):
        system = LIBC | {"libm.so.6", "libgcc_s.so.1", "libpthread.so.0", "libdl.so.2"}
        return {name for name in self.needed(library) if "san" not in name} - system

    def test_needed_libraries(self):
        self.assertEqual(self.needed_beyond_libc(CORE), set())
        if FORMATS:
            self.assertEqual(self.needed_beyond_libc(FORMATS), {"libjansson.so.4", self.soname(CORE)})
        if MPI:
            others = self.needed_beyond_libc(MPI) - {self.soname(CORE)}
            self.assertEqual([name for name in others if not name.startswith("libmpi")], [])
            self.assertTrue(others)

    @unittest.skipUnless(LOGPROB, "not built")
    def test_needed_libraries_of_logprob(self):
        """OpenMP, BLAS and CUDA are loaded at run time."""
        self.assertEqual(self.needed_beyond_libc(LOGPROB), {self.soname(CORE)})

    def soname(self, library):
        text = subprocess.run(["readelf", "-d", library], check=True, capture_output=True, text=True).stdout
        return re.search(r"\(SONAME\).*\[(.+)\]", text).group(1)

    def test_static_tls(self):
        """Libraries loaded by dlopen share a small static TLS block: dlopen fails when it is full."""
        for library in filter(None, (CORE, FORMATS, MPI, LOGPROB)):
            text = subprocess.run(["readelf", "-dlW", library], check=True, capture_output=True, text=True).stdout
            segments = re.findall(r"^ +TLS +(?:0x\w+ +){4}(0x\w+)", text, re.MULTILINE)
            if "STATIC_TLS" in text:
                self.assertLessEqual(sum(int(size, 16) for size in segments), 16, library)
            else:
                self.assertIn("Dynamic section", text)

    def declared(self, paths, pattern=r"\b(bp_\w+)\("):
        names = set()
        for path in paths:
            with open(path, encoding="utf-8") as file:
                names |= set(re.findall(pattern, file.read()))
        return names

    def test_comments_of_public_functions(self):
        """A comment may cover several consecutive functions."""
        for path in [*sources("include"), *sources("clients/logprob/include")]:
            with open(path, encoding="utf-8") as file:
                text = file.read()
            for block in re.findall(r"\n\n((?:[^\n]+\n)*BP_API (?:[^\n]+\n)*)", text):
                self.assertTrue(block.startswith("/**"), f"{path}: no comment before: {block.splitlines()[0]}")

    def test_names_of_static_functions(self):
        """Unique names lead to one place in a debugger, a profile and a search."""
        files = {}
        for path in [*sources("src"), *sources("clients/logprob/src")]:
            with open(path, encoding="utf-8") as file:
                text = file.read() if path.endswith(".c") else ""
            for name in re.findall(r"^(?:static|BP_HOT|BP_SLOW)\b[^;={}()]*?\b([a-z_0-9]+)\([^;{]*\)\s*\n\{", text,
                                   re.MULTILINE):
                files.setdefault(name, set()).add(os.path.relpath(path, ROOT))
        self.assertGreater(len(files), 1000)
        self.maxDiff = None
        self.assertEqual({name: sorted(paths) for name, paths in files.items() if len(paths) > 1}, {})

    def version_nodes(self, script):
        with open(os.path.join(ROOT, script), encoding="utf-8") as file:
            text = file.read()
        return {node: set(re.findall(r"^ +(bp_\w+);", names, re.MULTILINE))
                for node, names in re.findall(r"^(BUCKETPOOL_\w[\w.]*) \{(.*?)^\}", text, re.MULTILINE | re.DOTALL)}

    def exported(self, libraries):
        """{version node: names} of what libraries export."""
        found = {}
        for library in libraries:
            text = subprocess.run(["nm", "-D", "--with-symbol-versions", "--defined-only", "--extern-only", library],
                                  check=True, capture_output=True, text=True).stdout
            names = [line.split()[2].partition("@@")[::2] for line in text.splitlines() if line.split()[1] != "A"]  # A: a node
            self.assertTrue(names)
            for name, version in names:
                found.setdefault(version, set()).add(name)
        return found

    def test_exported_symbols(self):
        public = r"BP_API\b[^;(]*?(?:BP_PRINTF\([^)]*\)[^;(]*?)?\b(bp_\w+)\("
        private = self.declared(os.path.join(ROOT, "src", header) for header in PRIVATE_HEADERS | TEST_HEADERS)
        with open(os.path.join(ROOT, "meson.build"), encoding="utf-8") as file:
            present = [int(part) for part in re.search(r"version: '(\d+)\.(\d+)", file.read()).groups()]
        for script, headers, libraries in (("src/bucketpool.map", "include", (CORE, FORMATS, MPI)),
                                           ("clients/logprob/logprob.map", "clients/logprob/include", (LOGPROB,))):
            nodes = self.version_nodes(script)
            versioned = {node: names for node, names in nodes.items() if node != "BUCKETPOOL_PRIVATE"}
            self.assertEqual(sorted(set().union(*versioned.values())), sorted(self.declared(sources(headers), public)), script)
            self.assertLessEqual(nodes.get("BUCKETPOOL_PRIVATE", set()), private)
            for node in versioned:
                self.assertLessEqual([int(part) for part in node.split("_")[1].split(".")], present, "a node of a later version")
            found = self.exported(library for library in libraries if library)
            if all(libraries):
                self.assertEqual(found, nodes, f"{script} against what the libraries export")

    def test_licences(self):
        """Each source file names the licence in its first line, a script in its second."""
        line = "SPDX-License-Identifier: Apache-2.0"
        folder = os.getcwd()
        os.chdir(ROOT)
        try:
            for path in (each for each in tracked("") if os.path.isfile(each) and not each.startswith(".")):
                with open(path, "rb") as file:
                    first, second, *_ = [*file.read(256).decode(errors="replace").split("\n"), ""]
                if path.endswith((".c", ".h", ".cu", ".cuh", ".cpp", ".py", ".sh")) or first.startswith("#!"):
                    found = second if first.startswith("#!") else first
                    self.assertIn(found, (f"# {line}", f"/* {line} */"), f"{path}: add \"{line}\"")
        finally:
            os.chdir(folder)

    def test_versions(self):
        """Clients that are built alone have the version of the whole."""
        versions = []
        for path in ("meson.build", "clients/meson.build"):
            with open(os.path.join(ROOT, path), encoding="utf-8") as file:
                versions.append(re.search(r"^  version: '(.*)'", file.read(), re.MULTILINE)[1])
        self.assertEqual(versions[0], versions[1])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
