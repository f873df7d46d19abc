# SPDX-License-Identifier: Apache-2.0
"""scripts/abi.py on a small library: which changes of an interface fail, and when the baseline may be renewed."""

import os
import platform
import shutil
import subprocess
import sys
import tempfile
import unittest

ABI = os.path.join(sys.argv[1], "scripts", "abi.py")
LIBRARIES = ("bucketpool", "bucketpool-formats", "bucketpool-logprob", "bucketpool-mpi")
HEADER = """#include <stddef.h>
typedef enum bp_kind { BP_A = 0, BP_B = 1 } bp_kind;
typedef struct bp_config {
    size_t size; /* set by the caller */
    int kind;
    bp_kind how;
} bp_config;
typedef struct bp_pair { int first, second; } bp_pair;
typedef struct bp_item {
    size_t size;
    int weight;
} bp_item;
typedef struct bp_list_info {
    size_t item_count;
    const bp_item *items;
} bp_list_info;
typedef struct bp_info { int count; } bp_info;
const bp_list_info *bp_list(void);
int bp_use(const bp_config *config);
const bp_info *bp_add(const bp_pair *pair);
int bp_old(int value);
"""
SOURCE = """#include "bucketpool.h"
static bp_info info;
static bp_item items[2];
static bp_list_info list = {2, items};
const bp_list_info *bp_list(void) { return &list; }
int bp_use(const bp_config *config) { return config->kind + config->how; }
const bp_info *bp_add(const bp_pair *pair) { info.count = pair->first + pair->second; return &info; }
int bp_old(int value) { return value; }
"""
OLD = "int bp_old(int value)"
# Replacements in header and source, and a word of the report.
INCOMPATIBLE = {
    "a function is gone": ([(OLD + ";", ""), (OLD + " { return value; }", "")], "bp_old"),
    "a field has another type": ([("int kind;", "long kind;")], "bp_config"),
    "values of an enumeration": ([("BP_A = 0, BP_B = 1", "BP_B = 0, BP_A = 1")], "bp_kind"),
    "a longer struct without size": ([("int first, second;", "int first, second, third;")], "bp_pair"),
    "a field between others": ([("bp_kind how;", "long between; bp_kind how;")], "bp_config"),
    "a parameter has another type": ([("int bp_old(int value)", "int bp_old(long value)")], "bp_old"),
    "a longer element of an array": ([("int weight;", "int weight; int more; long last;")], "bp_item"),  # the second element is elsewhere
}
COMPATIBLE = {
    "a function and a value": ([(OLD + ";", OLD + "; int bp_new(void);"), (OLD + " {", "int bp_new(void) { return 1; } " + OLD + " {"),
                                ("BP_B = 1", "BP_B = 1, BP_C = 2")], ""),
    "longer structs": ([("bp_kind how;", "bp_kind how; long more; int last;"), ("int count;", "int count, more;")], ", with longer structs"),
    "a private function": ([(OLD + " { return value; }", OLD + " { return value; } int bp_private(void) { return 2; }")], ""),
}
GONE = INCOMPATIBLE["a function is gone"][0]
MAP = "BUCKETPOOL_1.0 { global: bp_*; local: *; };\nBUCKETPOOL_PRIVATE { global: bp_private; };\n"


@unittest.skipUnless(shutil.which("abidiff") and platform.machine() == "x86_64", "needs abidiff on x86-64")
class Changes(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def install(self, version, changes):
        """A prefix with a version of the libraries."""
        prefix = os.path.join(self.folder, "prefix")
        shutil.rmtree(prefix, ignore_errors=True)
        texts = {"include/bucketpool.h": HEADER, "bucketpool.c": SOURCE, "lib/pkgconfig/bucketpool.pc": f"Version: {version}\n", "map": MAP}
        for name, text in texts.items():
            for old, new in changes:
                text = text.replace(old, new)
            path = os.path.join(prefix, name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
        for library in LIBRARIES:
            subprocess.run(["gcc", "-g", "-shared", "-fPIC", "-Iinclude", "-Wl,--version-script=map", "bucketpool.c", "-o", f"lib/lib{library}.so"],
                           check=True, cwd=prefix)
        return prefix

    def abi(self, *words):
        result = subprocess.run([sys.executable, ABI, *words], env={**os.environ, "BUCKETPOOL_ABI_BASELINE": os.path.join(self.folder, "baseline")},
                                capture_output=True, text=True, check=False)
        return result.returncode, result.stdout + result.stderr

    def release(self, version, changes=()):
        return self.abi("--write", self.install(version, changes))

    def test_incompatible(self):
        self.assertEqual(self.release("1.0.0"), (0, ""))
        for what, (changes, word) in INCOMPATIBLE.items():
            with self.subTest(what):
                code, text = self.abi(self.install("1.0.1", changes))
                self.assertEqual(code, 1, text)
                self.assertIn("bucketpool: 1.0.1 is incompatible with 1.0.0\n", text)
                self.assertIn(word, text)

    def test_compatible(self):
        self.release("1.0.0")
        for what, (changes, words) in {**COMPATIBLE, "nothing": ([], "")}.items():
            with self.subTest(what):
                code, text = self.abi(self.install("1.0.1", changes))
                self.assertEqual(code, 0, text)
                self.assertIn(f"bucketpool: 1.0.1 is compatible with 1.0.0{words}\n", text)

    def test_private_functions_may_go(self):
        self.release("1.0.0", COMPATIBLE["a private function"][0])
        self.assertEqual(self.abi(self.install("1.0.1", []))[0], 0)

    def test_renewal(self):
        """A candidate's interface and that of an earlier major version may change, that of a release may only grow."""
        for before, after, code in (("1.0.0-rc1", "1.0.0-rc2", 0), ("1.0.0-rc2", "1.0.0", 0), ("1.0.0", "1.1.0", 1), ("1.0.0", "2.0.0-rc1", 0)):
            with self.subTest(before=before, after=after):
                shutil.rmtree(os.path.join(self.folder, "baseline"), ignore_errors=True)
                self.release(before)
                found, text = self.release(after, GONE)
                self.assertEqual(found, code, text)
                now, text = self.abi(self.install("3.0.0", GONE))  # the baseline lacks the function only where it was renewed
                self.assertEqual(now, code, text)
        self.assertEqual(self.release("1.1.0", COMPATIBLE["longer structs"][0])[0], 0)
        self.assertEqual(self.abi(self.install("1.1.1", []))[0], 1)

    def test_stripped(self):
        """Names alone are not compared: types would not count."""
        self.release("1.0.0")
        prefix = self.install("1.0.1", INCOMPATIBLE["a field has another type"][0])
        subprocess.run(["strip", "-g", os.path.join(prefix, "lib", "libbucketpool.so")], check=True)
        for words in ([prefix], ["--write", prefix]):
            code, text = self.abi(*words)
            self.assertEqual((code, "libbucketpool.so has no debug information" in text), (1, True), text)

    def test_without(self):
        code, text = self.abi(self.install("1.0.0", []))
        self.assertEqual((code, "has no baseline" in text), (1, True), text)
        self.release("1.0.0")
        os.remove(os.path.join(self.folder, "prefix", "lib", "libbucketpool-mpi.so"))
        code, text = self.abi(os.path.join(self.folder, "prefix"))
        self.assertEqual((code, "bucketpool-mpi: not installed\n" in text), (0, True), text)
        os.remove(os.path.join(self.folder, "prefix", "lib", "libbucketpool-logprob.so"))
        code, text = self.abi(os.path.join(self.folder, "prefix"))
        self.assertEqual((code, "bucketpool-logprob: not installed\n" in text), (1, True), text)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
