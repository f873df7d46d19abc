# SPDX-License-Identifier: Apache-2.0
"""Code blocks of the documents: finding, classifying and running them.

Every fenced block is run. A comment above it, which the site does not show, prepares it or excludes it:

    <!-- given: CODE -->        code of the block's language before it, for later blocks of the page, too
    <!-- not run: REASON -->    only its syntax is checked

| language | run as |
|---|---|
| sh | a script, in the folder of the page, in the order of the page |
| console | commands behind "$ ", and the output below them, in which a line "..." is any lines |
| c | a program, compiled, linked and run; fragments as functions of one file for each page, compiled |
| python | in one namespace for each page, in the order of the page |
| json, csv | input of the command |
| text | not run: formulas and messages |

The folder of a page has the entries of the source tree, `build`, and a config.json."""

import ast
import glob
import os
import re
import shlex
import subprocess
import sys
import textwrap

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
CONFIG = "examples/models/Qwen3-0.6B/config.json"
LANGUAGES = ("sh", "console", "c", "cmake", "python", "json", "csv", "text")
SCRIPTS = ("sh", "console", "python")
INSTALLS = re.compile(r"^(\$ )?\./(quickstart|check)\b|\b(pip|apt|apt-get|sudo|meson|ninja|curl|wget) ", re.MULTILINE)
MARK = re.compile(r"<!-- (not run|given): *(.*?)\s*-->", re.DOTALL)

# Numbers that differ between runs and machines: durations, rates, numbers of waits, memory in whole pages.
NOISE = re.compile(r"[\d.]+ (?:[mnu]?s\b|"
                   r"(?=million per second|waits|release events|elided|[KMG]iB of slabs))")

LIBRARIES = {"formats.h": "bucketpool-formats", "logprob.h": "bucketpool-logprob", "lm_head.h": "bucketpool-logprob",
             "cp.h": "bucketpool-logprob", "loss.h": "bucketpool-logprob", "comm_mpi.h": "bucketpool-mpi"}


class Failure(AssertionError):
    """A block that does not do what its page says."""


class LeftOut(Exception):
    """A block whose parts this build lacks."""


class Block:
    """A block: its page and first line, language (None: it has none), code, the code given before it, and why it is not
    run ("": it is)."""

    def __init__(self, page, line, language, code):
        self.page, self.line, self.language, self.code = page, line, language, code
        self.given, self.given_line, self.reason = "", 0, ""

    def __str__(self):
        return f"{self.page}:{self.line}"

    def fault(self):
        """The reason why it cannot be classified; "": none."""
        if self.language is None:
            return "a block without a language; fence it and name one"
        if self.language not in LANGUAGES:
            return f'unknown language "{self.language}"; expected one of {", ".join(LANGUAGES)}'
        if self.reason and self.language not in ("sh", "c", "python"):
            return f"a block of {self.language} that is marked as not run; remove the mark"
        if self.language in ("sh", "console") and not self.reason and INSTALLS.search(self.code):
            return "commands that install, build or download; mark it as not run"
        if self.language == "console" and not self.code.startswith("$ "):
            return 'output without a command; begin with "$ COMMAND"'
        return ""

    @property
    def is_fragment(self):
        return self.language == "c" and not self.reason and not re.search(r"^int main\(", self.code, re.MULTILINE)

    @property
    def needs_torch(self):
        if self.language == "python":
            names = set(names_in(self.given + "\n" + self.code))
            return not names.isdisjoint(("torch", "transformers", "megatron_fsdp", "describe"))
        return re.search(r"\btorchrun\b|\bbench/torch\b|\bbucketpool describe\b", self.code) is not None

    @property
    def needs_mpi(self):
        return self.language in ("sh", "console") and re.search(r"\bmpicc\b|examples/mpi (?!1 )", self.code) is not None


def names_in(code):
    """Modules, variables and attributes that a Python program names."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom):
            yield from node.module.split(".")
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            for name in node.names:
                yield from name.name.split(".")
        elif isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr


def blocks_of(page, text):
    """The blocks of a Markdown page, without directives of the site such as "{toctree}"."""
    blocks, marks, number = [], {}, 0
    lines = text.split("\n")
    while number < len(lines):
        begin, line = number, lines[number]
        number += 1
        block = None
        if re.match(r"<!-- (not run|given):", line):
            while "-->" not in lines[number - 1]:
                number += 1
            kind, value = MARK.match("\n".join(lines[begin:number])).groups()
            marks[kind] = (value, begin + 1)
        elif line.startswith("```"):
            while lines[number] != "```":
                number += 1
            code = "".join(code + "\n" for code in lines[begin + 1:number])
            block = Block(page, begin + 2, line[3:].strip() or None, code)
            number += 1
        elif line.startswith(("    ", "\t")) and not lines[begin - 1].strip():
            while lines[number].strip():
                number += 1
            block = Block(page, begin + 1, None, textwrap.dedent("\n".join(lines[begin:number])))
        elif line.strip() and marks:
            raise ValueError(f"{page}:{begin + 1}: a mark without a block below it")
        if block and not (block.language or "").startswith("{"):
            block.given, block.given_line = marks.get("given", ("", 0))
            block.reason = marks.get("not run", ("", 0))[0]
            blocks.append(block)
            marks = {}
    return blocks


def examples_of(page, text):
    """The examples of a manual page: each paragraph is a script; "; not run: REASON" above excludes it."""
    section = re.search(r"^# EXAMPLES\n(.*?)^# ", text, re.MULTILINE | re.DOTALL)
    blocks, line = [], text.count("\n", 0, section.start(1)) + 1
    for part in section[1].split("\n\n"):
        code = [command for command in part.split("\n") if command.startswith("\t")]
        if code:
            script = "".join(command.strip().removesuffix("++").replace("\\", "") + "\n" for command in code)
            blocks.append(Block(page, line, "sh", script))
            mark = re.match(r"\n*; not run: (.*)", part)
            blocks[-1].reason = mark[1] if mark else ""
        line += part.count("\n") + 2
    return blocks


def documents():
    """The blocks of each page that has any, by its path in the source tree."""
    pages = {}
    for pattern in ("*.md", "docs/**/*.md", "docs/*.scd"):
        for path in sorted(glob.glob(pattern, root_dir=ROOT, recursive=True)):
            with open(os.path.join(ROOT, path), encoding="utf-8") as file:
                text = file.read()
            pages[path] = (examples_of if path.endswith(".scd") else blocks_of)(path, text)
    return {path: blocks for path, blocks in pages.items() if blocks}


def left_to_torch(blocks):
    """The blocks of a page that ./check --torch runs: its scripts and its Python, where one of them needs PyTorch.
    Sessions of a console and programs under MPI do not depend on them."""
    scripts = [block for block in blocks if block.language in SCRIPTS and not block.reason
               and (block.needs_torch or not (block.language == "console" or block.needs_mpi))]
    return scripts if any(block.needs_torch for block in scripts) else []


def fill(folder, build):
    """Links the source tree, the build and a configuration into the folder of a page."""
    for name in os.listdir(ROOT):
        if not name.startswith((".", "build")):
            os.symlink(os.path.join(ROOT, name), os.path.join(folder, name))
    os.symlink(build, os.path.join(folder, "build"))
    os.symlink(os.path.join(ROOT, CONFIG), os.path.join(folder, "config.json"))


def environment(build):
    """Variables of commands, as if command, libraries, pkg-config files and Python package were installed."""
    def before(name, *paths):
        return os.pathsep.join([*paths, *filter(None, [os.environ.get(name)])])

    libraries = [os.path.join(build, "src"), os.path.join(build, "clients", "logprob")]
    return {**os.environ, "BUCKETPOOL_PROGRESS": "0", "PYTHONDONTWRITEBYTECODE": "1",
            "BUCKETPOOL_LIBRARY_PATH": os.pathsep.join(libraries),
            "LD_LIBRARY_PATH": before("LD_LIBRARY_PATH", *libraries),
            "BUILD": build,  # of examples/mpi
            "PATH": before("PATH", os.path.join(build, "tools"), os.path.dirname(sys.executable)),
            "PKG_CONFIG_PATH": before("PKG_CONFIG_PATH", os.path.join(build, "meson-uninstalled")),
            "PYTHONPATH": before("PYTHONPATH", os.path.join(ROOT, "python"))}


def execute(block, words, folder, env, **more):
    """Standard output of a command; a Failure where it fails, or where our command warns."""
    done = subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, timeout=600, check=False, **more)
    if done.returncode or re.search("^bucketpool:", done.stderr, re.MULTILINE):
        said = done.stdout[-2000:] + done.stderr[-4000:]
        raise Failure(f"{block}: {shlex.join(words)} exits with {done.returncode}\n{said}")
    return done.stdout


def run_shell(block, folder, env):
    execute(block, ["sh", "-ec", block.given + "\n" + block.code], folder, env)


def sessions(code):
    """(command, lines of output below it) of a block of console."""
    found = []
    for line in code.split("\n")[:-1]:
        if line.startswith("$ "):
            found.append((line[2:], []))
        else:
            found[-1][1].append(line)
    return found


def is_printed(shown, printed):
    """True if the lines of a page were printed: "..." is any lines, noise is not compared."""
    if any(NOISE.search(line) for line in printed):  # of another width, it moves columns
        shown, printed = ([re.sub(" +", " ", NOISE.sub("_ ", line)) for line in lines] for lines in (shown, printed))
    pattern = "".join("(?:.*\n)*" if line == "..." else re.escape(line) + "\n" for line in shown)
    return re.fullmatch(pattern, "".join(line + "\n" for line in printed)) is not None


def renewed(shown, printed):
    """Lines for a page from what was printed: behind "..." from the line that begins with the same two words, as many
    as the page had."""
    new, at, rest = [], 0, list(shown)
    while rest:
        if rest[0] == "...":
            new.append(rest.pop(0))
            words = rest[0].split()[:2] if rest else None
            at = next((i for i in range(at, len(printed)) if printed[i].split()[:2] == words), at)
            continue
        part = rest[:rest.index("...")] if "..." in rest else rest
        end = at + len(part) if "..." in rest else len(printed)
        new, rest, at = new + printed[at:end], rest[len(part):], end
    return new


def run_console(block, folder, env):
    """Runs the commands. Returns the block with their output where the page shows another one, else None. Output that
    the page does not show at all is not compared."""
    lines, differs = [], False
    for command, shown in sessions(block.code):
        output = execute(block, ["sh", "-ec", block.given + "\n" + command], folder, env)
        printed = [line.rstrip() for line in output.split("\n")[:-1]]
        is_right = not shown or is_printed(shown, printed)
        differs |= not is_right
        lines += ["$ " + command, *(shown if is_right else renewed(shown, printed))]
    return "".join(line + "\n" for line in lines) if differs else None


def run_data(block, folder, env):
    """Each command that takes the format reads the block."""
    for command in ("plan", "explain", "schedule", "run") if block.language == "json" else ("pack",):
        execute(block, ["bucketpool", command, "-"], folder, env, input=block.code)


def compile_c(block, code, folder, env, *options):
    included = re.findall(r"#include <bucketpool/(\w+\.h)>", code)
    libraries = ["bucketpool", *sorted({LIBRARIES[header] for header in included if header in LIBRARIES})]
    links = [] if "-fsyntax-only" in options else ["--libs"]
    flags = execute(block, ["pkg-config", "--cflags", *links, *libraries], folder, env).split()
    warnings = ["-std=c17", "-Wall", "-Wextra", "-Werror"]
    words = [*shlex.split(os.environ.get("CC", "cc")), *warnings, "-x", "c", "-", *options, *flags]
    execute(block, words, folder, env, input=code)


def run_program(block, folder, env):
    compile_c(block, f'#line {block.line} "{block.page}"\n{block.code}', folder, env, "-o", "program")
    execute(block, [os.path.join(folder, "program")], folder, env)


def check_fragments(blocks, folder, env):
    """Compiles the fragments of a page: each is the body of a function, behind its given declarations."""
    folders = [os.path.join(ROOT, part, "include", "bucketpool") for part in ("", "clients/logprob")]
    headers = {name for folder in folders for name in os.listdir(folder) if name.endswith(".h")} - {"comm_mpi.h"}
    code = "".join(f"#include <bucketpool/{name}>\n" for name in sorted(headers))
    for number, block in enumerate(blocks):
        code += f'#line {block.given_line} "{block.page}"\n{block.given}\n'
        code += f"void block_{number}(void);\nvoid block_{number}(void)\n{{\n"
        code += f'#line {block.line} "{block.page}"\n{block.code}}}\n'
    compile_c(blocks[0], code, folder, env, "-fsyntax-only")


def run_python(block, folder, namespace):
    """Executes a block in the namespace and the folder of its page."""
    before = os.getcwd()
    os.chdir(folder)
    try:
        for code, line in ((block.given, block.given_line), (block.code, block.line)):
            if code:
                lines = "\n" * (line - 1) + code  # errors name the lines of the page
                exec(compile(lines, os.path.join(ROOT, block.page), "exec"), namespace)  # pylint: disable=exec-used
    except Exception as error:
        raise Failure(f"{block}: {type(error).__name__}: {error}") from error
    finally:
        os.chdir(before)


def check_syntax(block, folder, env):
    """Blocks that are not run are at least of their language."""
    if block.language == "python":
        compile(block.code, str(block), "exec")
    elif block.language == "sh":
        execute(block, ["sh", "-nc", block.code], folder, env)
