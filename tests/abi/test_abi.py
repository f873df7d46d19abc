# SPDX-License-Identifier: Apache-2.0
"""scripts/abi.py on a repository with a small library: which changes of an interface fail, and the order of tags."""

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

ABI = os.path.join(sys.argv[1], "scripts", "abi.py")
spec = importlib.util.spec_from_file_location("abi", ABI)
abi = importlib.util.module_from_spec(spec)
spec.loader.exec_module(abi)

MESON = """project('bucketpool', 'c', version: '{version}', default_options: ['libdir=lib'])
install_headers('bucketpool.h', subdir: 'bucketpool')
shared_library('bucketpool', 'bucketpool.c', install: true)
"""
OPTIONS = "".join(f"option('{name}', type: 'feature')\n" for name in ("tests", "benchmarks", "kernels"))
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
# By tag: replacements in header and source. The base is v1.0.0.
CHANGES = {
    "v1.0.1": [(OLD + ";", ""), (OLD + " { return value; }", "")],
    "v1.0.2": [("int kind;", "long kind;")],
    "v1.0.3": [("BP_A = 0, BP_B = 1", "BP_B = 0, BP_A = 1")],
    "v1.0.4": [("int first, second;", "int first, second, third;")],
    "v1.0.5": [("bp_kind how;", "long between; bp_kind how;")],
    "v1.0.6": [("int bp_old(int value)", "int bp_old(long value)")],
    "v1.0.7": [("int weight;", "int weight; int more; long last;")],  # the second element is elsewhere
    "v1.0.11": [(OLD + ";", OLD + "; int bp_new(void);"), (OLD + " {", "int bp_new(void) { return 1; } " + OLD + " {"),
                ("BP_B = 1", "BP_B = 1, BP_C = 2")],
    "v1.0.12": [("bp_kind how;", "bp_kind how; long more; int last;"), ("int count;", "int count, more;")],
    "v2.0.0": [(OLD + ";", ""), (OLD + " { return value; }", "")],
    "v1.1.0-rc1": [(OLD + ";", OLD + "; int bp_candidate(void);"), (OLD + " {", "int bp_candidate(void) { return 1; } " + OLD + " {")],
}


class Order(unittest.TestCase):
    def test_pre_releases(self):
        tags = ["v1.0.0-beta2", "v1.0.0-rc1", "v1.0.0-rc2", "v1.0.0-rc10", "v1.0.0", "v1.0.1-rc1", "v1.0.1", "v1.0.10", "v1.1.0"]
        self.assertEqual(sorted(reversed(tags), key=abi.order_of), tags)


@unittest.skipUnless(shutil.which("abidiff") and shutil.which("git") and shutil.which("meson"), "needs abidiff, git and meson")
class Changes(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.git("init", "-q")
        for tag in ("v1.0.0-rc1", "v1.0.0", "v1.0.1-rc1"):
            cls.commit(tag, [])
        for tag, changes in CHANGES.items():
            cls.commit(tag, changes)
            cls.git("checkout", "-q", "v1.0.1-rc1")

    @classmethod
    def git(cls, *words):
        subprocess.run(["git", "-c", "user.name=test", "-c", "user.email=test@localhost", *words], cwd=cls.folder.name, check=True, capture_output=True)

    @classmethod
    def commit(cls, tag, changes):
        texts = {"meson.build": MESON.format(version=tag[1:]), "meson_options.txt": OPTIONS, "bucketpool.h": HEADER, "bucketpool.c": SOURCE}
        for name, text in texts.items():
            for old, new in changes:
                text = text.replace(old, new)
            with open(os.path.join(cls.folder.name, name), "w", encoding="utf-8") as file:
                file.write(text)
        cls.git("add", *texts)
        cls.git("commit", "-qm", tag, "--no-verify")
        cls.git("tag", tag)

    def run_abi(self, *words):
        result = subprocess.run([sys.executable, ABI, *words, "builds"], cwd=self.folder.name, capture_output=True, text=True, check=False)
        return result.returncode, result.stdout + result.stderr

    def test_incompatible_tags(self):
        words = {"v1.0.1": "bp_old", "v1.0.2": "bp_config", "v1.0.3": "bp_kind", "v1.0.4": "bp_pair", "v1.0.5": "bp_config", "v1.0.6": "bp_old", "v1.0.7": "bp_item"}
        for tag, word in words.items():
            with self.subTest(tag):
                code, text = self.run_abi("v1.0.0", tag)
                self.assertEqual(code, 1, text)
                self.assertIn(f"bucketpool: {tag} is incompatible with v1.0.0\n", text)
                self.assertIn(word, text)

    def test_compatible_tags(self):
        for tag in ("v1.0.11", "v1.0.12"):  # a new function, a new value of an enumeration; longer structs
            with self.subTest(tag):
                code, text = self.run_abi(tag, "v1.0.0")  # in either order
                self.assertEqual(code, 0, text)
                self.assertIn(f"bucketpool: {tag} is compatible with v1.0.0", text)
        text = self.run_abi("v1.0.0", "v1.0.12")[1]
        self.assertTrue(all(word in text for word in ("with longer structs", "bp_config", "bp_info")), text)

    def test_other_series_and_unknown_tags(self):
        for older, newer, words in (("v1.0.0", "v2.0.0", "another series"), ("v1.1.0-rc1", "v2.0.0", "release candidate")):
            code, text = self.run_abi(older, newer)
            self.assertEqual((code, words in text, f"{newer} is incompatible with {older}" in text), (77, True, True), text)
        code, text = self.run_abi("v1.0.0", "v9.0.0")
        self.assertEqual((code, "unknown tag v9.0.0" in text), (1, True), text)

    def test_installed_tree(self):
        """The last tag is the release, not a candidate before or after it; a tree that lacks a function of it fails."""
        self.assertEqual(self.run_abi("v1.0.0", "v1.0.1")[0], 1)  # installs them
        code, text = self.run_abi(os.path.join("builds", "v1.0.1", "prefix"))
        self.assertEqual((code, "1.0.1-rc1 is incompatible with v1.0.0\n" in text), (1, True), text)
        code, text = self.run_abi(os.path.join("builds", "v1.0.0", "prefix"))
        self.assertEqual((code, "1.0.1-rc1 is compatible with v1.0.0\n" in text), (0, True), text)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
