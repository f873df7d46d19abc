"""The architecture: permitted includes between folders, needed libraries, exported symbols.

Arguments: source directory, core library, those of the formats, MPI and log-probability libraries that are built.
"""

import os
import re
import subprocess
import sys
import unittest

ROOT, CORE = sys.argv[1:3]
FORMATS = next((library for library in sys.argv[3:] if "formats" in os.path.basename(library)), None)
MPI = next((library for library in sys.argv[3:] if "mpi" in os.path.basename(library)), None)
LOGPROB = next((library for library in sys.argv[3:] if "logprob" in os.path.basename(library)), None)

# A folder may include its own headers and those of the folders named here.
MAY_INCLUDE = {
    "core": {"core"},
    "files": {"core", "files"},
    "model": {"core", "model"},
    "packing": {"core", "packing"},
    "schedule": {"core", "model", "schedule"},
    "plan": {"core", "model", "schedule", "plan"},
    "whatif": {"core", "model", "schedule", "plan"},
    "devices": {"core", "devices"},
    "memory": {"core", "devices", "memory"},
    "nvtx": {"nvtx"},
    "pinned": {"core", "devices", "pinned"},
    "offload": {"core", "devices", "memory", "pinned", "allocators", "offload"},
    "allocators": {"core", "devices", "memory", "nvtx", "plan", "schedule", "allocators"},
    "comms": {"core", "devices", "memory", "nvtx", "comms"},
    "profile": {"core", "devices", "memory", "allocators", "files", "profile"},
    "steps": {"core", "steps"},
    "torch": {"core", "devices", "memory", "torch"},
    "formats": {"core", "files", "formats"},
    "logprob": {"core", "logprob"},
    "mpi": {"core", "mpi"},
}
# Separate libraries, which use the core's public headers, and sources that are compiled into several libraries.
OUTSIDE = ("files", "formats", "logprob", "mpi")
# The GPU emulation, for kernels that are compiled for it.
EMULATION = {os.path.join("src", "logprob", "cuda", "device.cuh"): "simt.h"}
# libc, and the loader, which implements thread-local storage.
LIBC = {"libc.so.6", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1", "libc.so"}  # the last: musl
# Core headers with inline functions only: other libraries may include them.
INLINE_HEADERS = {"core/fail.h", "core/arith.h", "core/halves.h", "core/hash.h", "core/index.h", "core/print.h", "core/structs.h", "core/text.h",
                  "core/timeout.h"}
# Headers, not installed, of functions for other libraries and the command: exported as BUCKETPOOL_PRIVATE.
PRIVATE_HEADERS = {"core/print.h", "devices/clients.h", "devices/cuda_driver.h", "formats/models/hub.h", "formats/packing_file.h",
                   "formats/snapshots/snapshot.h", "formats/snapshots/trace_file.h", "memory/slab_callbacks.h", "model/arch_config.h",
                   "plan/from_info.h", "steps/attribution.h", "steps/caching_allocator.h", "steps/failed_request.h",
                   "steps/playback.h", "steps/stack_places.h", "steps/steps.h", "steps/trace.h"}
# Files in a folder: about 25; larger folders need a reason here.
LARGEST_FOLDER = 25
LARGEST_FOLDERS = {
    "tests/cli": 29, "tests/contract": 28, "tests/offload": 28, "tests/gpu": 26, "tests/unit": 28,
    "src/planner/steps": 30,  # the steps of a trace, and the model of PyTorch's allocator beside them
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
        checked = 0
        for folder, allowed in MAY_INCLUDE.items():
            for path in sources(os.path.join("src", folder)):
                for header in includes(path):
                    if header == "version.h" or EMULATION.get(os.path.relpath(path, ROOT)) == header:
                        continue
                    checked += 1
                    if folder in OUTSIDE and header in PRIVATE_HEADERS:
                        continue
                    self.assertIn(header.split("/")[0], allowed, f"{path} includes {header}")
                    if folder in OUTSIDE and header.startswith("core/"):
                        self.assertIn(header, INLINE_HEADERS, f"{path} includes {header}")
        self.assertGreater(checked, 50)

    def test_headers_of_tools(self):
        own = {os.path.relpath(p, os.path.join(ROOT, "tools")) for p in sources("tools")}
        for path in sources("tools"):
            for header in includes(path):
                self.assertIn(header, own | {"core/fail.h", "core/text.h", "files/files.h",
                                             "files/json_writer.h", "files/kinds.h"} | PRIVATE_HEADERS,
                              f"{path} includes {header}")

    def test_headers_of_bench_command(self):
        own = {os.path.relpath(p, ROOT) for p in sources("bench/command")}
        own |= {os.path.relpath(p, os.path.join(ROOT, "tools")) for p in sources("tools/shared")}
        for path in sources("bench/command"):
            for header in includes(path):
                self.assertIn(header, own | {"core/fail.h", "core/text.h", "files/files.h",
                                             "files/json_writer.h"} | PRIVATE_HEADERS, f"{path} includes {header}")

    def test_headers_of_examples(self):
        checked = 0
        for path in sources("examples"):
            own = set(os.listdir(os.path.dirname(path)))
            for header in includes(path):
                checked += 1
                self.assertIn(header, own, f"{path} includes {header}")
        self.assertGreater(checked, 20)

    def test_folders(self):
        folders = {f for f in os.listdir(os.path.join(ROOT, "src")) if os.path.isdir(os.path.join(ROOT, "src", f))}
        self.assertEqual(folders, set(MAY_INCLUDE))

    def test_files_in_documents(self):
        for document in ("CONTRIBUTING.md", "docs/internals/architecture.md"):
            with open(os.path.join(ROOT, document), encoding="utf-8") as file:
                named = re.findall(r"`((?:[a-z_0-9]+/)+[a-z_0-9]+\.(?:c|h|py|cpp|cuh|cu))`", file.read())
            self.assertGreater(len(named), 10)
            for path in named:
                self.assertTrue(any(os.path.exists(os.path.join(ROOT, base, path)) for base in ("", "src", "include")),
                                f"{document}: {path}")

    def test_folder_sizes(self):
        """Small folders keep the tree readable."""
        for root in ("src", "tools", "bench", "tests"):
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
        for path in sources("include"):
            with open(path, encoding="utf-8") as file:
                text = file.read()
            for block in re.findall(r"\n\n((?:[^\n]+\n)*BP_API (?:[^\n]+\n)*)", text):
                self.assertTrue(block.startswith("/**"), f"{path}: no comment before: {block.splitlines()[0]}")

    def test_names_of_static_functions(self):
        """Unique names lead to one place in a debugger, a profile and a search."""
        files = {}
        for path in sources("src"):
            with open(path, encoding="utf-8") as file:
                text = file.read() if path.endswith(".c") else ""
            for name in re.findall(r"^(?:static|BP_HOT)\b[^;={}()]*?\b([a-z_0-9]+)\([^;{]*\)\s*\n\{", text,
                                   re.MULTILINE):
                files.setdefault(name, set()).add(os.path.relpath(path, ROOT))
        self.assertGreater(len(files), 1000)
        self.maxDiff = None
        self.assertEqual({name: sorted(paths) for name, paths in files.items() if len(paths) > 1}, {})

    def test_exported_symbols(self):
        with open(os.path.join(ROOT, "src", "bucketpool.map"), encoding="utf-8") as file:
            text = file.read()
        nodes = {node: re.findall(r"^ +(bp_\w+);", names, re.MULTILINE)
                 for node, names in re.findall(r"^(BUCKETPOOL_\w[\w.]*) \{(.*?)^\}", text, re.MULTILINE | re.DOTALL)}
        private_headers = (os.path.join(ROOT, "src", header) for header in PRIVATE_HEADERS | TEST_HEADERS)
        private = set(nodes.pop("BUCKETPOOL_PRIVATE"))
        public = [name for names in nodes.values() for name in names]
        declared = self.declared(sources("include"), r"BP_API\b[^;(]*?\b(bp_\w+)\(")
        self.assertEqual(sorted(public), sorted(declared), "bucketpool.map against include/")
        self.assertLessEqual(private, self.declared(private_headers))
        with open(os.path.join(ROOT, "meson.build"), encoding="utf-8") as file:
            present = re.search(r"version: '(\d+)\.(\d+)", file.read()).groups()
        for node in nodes:
            self.assertLessEqual([int(part) for part in node.split("_")[1].split(".")], [int(part) for part in present], "a node of a later version")
        found = {node: set() for node in (*nodes, "BUCKETPOOL_PRIVATE")}
        for library in filter(None, (CORE, FORMATS, MPI, LOGPROB)):
            text = subprocess.run(["nm", "-D", "--with-symbol-versions", "--defined-only", "--extern-only", library],
                                  check=True, capture_output=True, text=True).stdout
            exported = [line.split()[2].partition("@@")[::2] for line in text.splitlines() if line.split()[1] != "A"]  # A: a node
            self.assertTrue(exported)
            for name, version in exported:
                self.assertIn(version, list(found), f"{name} of {library} is in no version node")
                found[version].add(name)
        if FORMATS and LOGPROB and MPI:
            wanted = {**{node: set(names) for node, names in nodes.items()}, "BUCKETPOOL_PRIVATE": private}
            self.assertEqual(found, wanted, "listed in bucketpool.map, but no library has it")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
