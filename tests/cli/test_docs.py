# SPDX-License-Identifier: Apache-2.0
"""Runs the code blocks of README.md, CONTRIBUTING.md, docs/ and the manual page. pages.py describes how.

Arguments: source directory, build folder, "mpi" if the build has the examples with MPI. ./check --torch runs the blocks
that need PyTorch (python/tests/torch/programs/test_pages.py). With UPDATE_GOLDEN=1 changed output is written into the pages;
look at the difference before committing it."""

import collections
import contextlib
import difflib
import io
import os
import re
import sys
import tempfile
import unittest
import unittest.mock

import pages

ROOT, BUILD = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
HAS_MPI = "mpi" in sys.argv[3:]
ENVIRONMENT = pages.environment(BUILD)
PAGES = pages.documents()
os.environ.update(ENVIRONMENT)  # for the Python package in this process
sys.path.insert(0, os.path.join(ROOT, "python"))


def read(*path):
    with open(os.path.join(ROOT, *path), encoding="utf-8") as file:
        return file.read()


def compare_output(block, folder):
    """Runs a block of console; a Failure where the page shows other output, or the page with the new one."""
    new = pages.run_console(block, folder, ENVIRONMENT)
    if new and os.environ.get("UPDATE_GOLDEN"):
        text = read(block.page)
        with open(os.path.join(ROOT, block.page), "w", encoding="utf-8") as file:
            file.write(text.replace(block.code, new))
    elif new:
        lines = difflib.unified_diff(block.code.split("\n"), new.split("\n"), "shown", "printed", lineterm="", n=1)
        raise pages.Failure(f"{block}: the page shows other output; UPDATE_GOLDEN=1 renews it\n" + "\n".join(lines))


def run(block, folder, namespace):
    """Runs a block of any language but fragments of C."""
    if block.language == "sh":
        pages.run_shell(block, folder, ENVIRONMENT)
    elif block.language == "console":
        compare_output(block, folder)
    elif block.language == "c" and not block.is_fragment:
        pages.run_program(block, folder, ENVIRONMENT)
    elif block.language == "python":
        with contextlib.redirect_stdout(io.StringIO()), unittest.mock.patch.object(sys, "argv", [block.page]):
            pages.run_python(block, folder, namespace)
    elif block.language in ("json", "csv"):
        pages.run_data(block, folder, ENVIRONMENT)


def run_page(blocks):
    """Runs the blocks of a page in its order; (block, outcome, reason) of each."""
    left, fragments, namespace = pages.left_to_torch(blocks), [b for b in blocks if b.is_fragment], {}
    with tempfile.TemporaryDirectory() as folder:
        pages.fill(folder, BUILD)
        if fragments:
            pages.check_fragments(fragments, folder, ENVIRONMENT)
        for block in blocks:
            if block.reason:
                pages.check_syntax(block, folder, ENVIRONMENT)
                yield block, "marked as not run", block.reason
            elif block in left:
                yield block, "left to ./check --torch", ""
            elif block.needs_mpi and not HAS_MPI:
                yield block, "left out", "this build has no MPI"
            elif block.language == "text":
                yield block, "not commands", ""
            else:
                try:
                    run(block, folder, namespace)
                    yield block, "run", ""
                except pages.LeftOut as part:
                    yield block, "left out", f"this build has no {part}"


class Pages(unittest.TestCase):
    maxDiff = None

    def test_blocks(self):
        """Every block can be classified, and does what its page says. Nothing is run where one cannot be classified."""
        faults = [f"{block}: {block.fault()}" for blocks in PAGES.values() for block in blocks if block.fault()]
        self.assertEqual(faults, [])
        counts = collections.defaultdict(collections.Counter)
        for page, blocks in PAGES.items():
            with self.subTest(page):
                for block, outcome, reason in run_page(blocks):
                    counts[outcome][block.language] += 1
                    if reason:
                        print(f"{block}: {block.language} {outcome}: {reason}")
        for outcome, languages in sorted(counts.items()):
            numbers = ", ".join(f"{language} {number}" for language, number in sorted(languages.items()))
            print(f"{sum(languages.values())} blocks {outcome}: {numbers}")

    def test_quoted_files(self):
        """A page shows the examples that name it, without their licence and first line."""
        quoted = 0
        for name in sorted(os.listdir(os.path.join(ROOT, "examples"))):
            if name.endswith((".c", ".py")):
                _, first, code = read("examples", name).split("\n", 2)
                for page in re.findall(r"(\S+\.md) shows", first):
                    self.assertIn(code, [block.code for block in PAGES[page]], f"examples/{name} in {page}")
                    quoted += 1
        self.assertGreaterEqual(quoted, 3)
        units = read("examples", "files", "units.json")
        self.assertIn(units, [block.code for block in PAGES["docs/reference/formats.md"]])


class Mechanism(unittest.TestCase):
    """Blocks that are wrong fail."""

    def block(self, text):
        found, = pages.blocks_of("page.md", text)
        return found

    def fails(self, text):
        block = self.block(text)
        self.assertEqual(block.fault(), "")
        with tempfile.TemporaryDirectory() as folder, self.assertRaisesRegex(pages.Failure, "page.md:"):
            pages.fill(folder, BUILD)
            if block.is_fragment:
                pages.check_fragments([block], folder, ENVIRONMENT)
            else:
                run(block, folder, {})

    def test_failures(self):
        self.fails("```sh\nbucketpool plan Qwen3-0.6B --no-such-option\nbucketpool --version\n```")
        self.fails("```sh\nno-such-command\n```")
        self.fails("```c\nbp_pool_acquire(pool);\n```")
        self.fails("<!-- given: bp_pool *pool; -->\n```c\nbp_pool_acquire(pool);\n```")
        self.fails("```c\nint main(void)\n{\n    return 1;\n}\n```")
        self.fails("```python\nimport bucketpool\nbucketpool.no_such_name\n```")
        self.fails("```csv\nid,lower,upper\na,0,1\n```")
        with unittest.mock.patch.dict(os.environ):
            os.environ.pop("UPDATE_GOLDEN", None)
            self.fails("```console\n$ echo a; echo b\na\n```")
            self.fails("```console\n$ echo a; echo b; echo c\na\n...\nd\n```")

    def test_blocks_that_cannot_be_classified(self):
        for text in ("Text:\n\n    bucketpool plan\n", "```\nbucketpool plan\n```", "```ruby\nx\n```",
                     "```console\nx\n```", "```sh\npip install .\n```", "```sh\n./check\n```",
                     "<!-- not run: no reason -->\n```text\nx\n```"):
            self.assertNotEqual(self.block(text).fault(), "", text)
        with self.assertRaisesRegex(ValueError, "page.md:2: a mark without a block"):
            pages.blocks_of("page.md", "<!-- not run: it is text -->\nText\n")

    def test_output(self):
        shown = ["a 1.5 s", "...", "c"]
        self.assertTrue(pages.is_printed(shown, ["a   225.1 ms", "b", "c"]))
        self.assertFalse(pages.is_printed(shown, ["a   22.5 s", "b"]))
        self.assertFalse(pages.is_printed(["a 1", "b"], ["a  1", "b"]))
        self.assertEqual(pages.renewed(["a 1", "...", "b 1 x", "b 2", "..."], ["a 2", "f", "b 1 y", "b 3", "b 4"]),
                         ["a 2", "...", "b 1 y", "b 3", "..."])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
