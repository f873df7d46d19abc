# SPDX-License-Identifier: Apache-2.0
"""Checks comments, docstrings, documents and names against the wording that CONTRIBUTING.md asks for: no noun clause instead of a sentence at the
beginning of a comment or heading, and the field's terms instead of our own.

usage: python3 scripts/language.py [FILE | FOLDER]...     none: all of the project"""

import io
import os
import re
import sys
import tokenize

from sources import tracked

OPENERS = re.compile(r"(What|Who|Whose|Whom|Whether|Where|That|Which|How) (?!.*\?$)")

# In prose: what is said, and what the field says.
WORDS = (
    (r"as ever", "as always, or nothing"),
    (r"go(es|ing)? on(?! (a|the) (stream|device|rank|GPU|host))", "continues"),
    (r"for whom", "name who it is for"),
    (r"of (its|their) own", "separate, private, or nothing"),
    (r"on its way (back|there)", "returning, in flight"),
    (r"knows? of", "knows, finds"),
    (r"(is|are|was|were) away", "offloaded"),
    (r"tenants?", "live range, request"),
    (r"rivals?", "peer, baseline"),
    (r"said no", "busy"),
    (r"g(i|a)ves? up|giving up|given up", "cancels; ends the search"),
    (r"l(e|o)nds?|lent|lending", "exports"),
    (r"stands? behind", "is ordered after"),
    (r"units ahead", "prefetch depth"),
    (r"twins?", "reference model, second implementation"),
    (r"judge[ds]?|judgements?", "check, verdict"),
    (r"deals?|dealt", "split, generator"),
    (r"worlds?(?! size)", "fixture, scenario"),
    (r"is no [a-z]+", "is not a, unknown, unsupported"),
)
WORD = re.compile(r"\b(?:" + "|".join(f"(?P<w{i}>{pattern})" for i, (pattern, _) in enumerate(WORDS)) + r")\b", re.IGNORECASE)

# In names of files and identifiers, as a part between underscores.
NAMES = re.compile(r"(?:^|_)(tenants?|rivals?|twins?|judgements?|worlds?|deals?|lent|lend|lessons?)(?:_|$)")
FOREIGN_NAMES = re.compile(r"world_size|(^|_)WORLD(_|$)|torch_world")  # of MPI and PyTorch

# Texts in which a word is right: path, and what the line says.
EXCEPTIONS = (
    ("scripts/language.py", ""),
    ("python/bucketpool/torch/comm.py", "_world"),  # a private function of torch.distributed
    ("python/bucketpool/torch/comm.py", "WORLD"),  # PyTorch's group
)

C_TEXT = re.compile(r'/\*(?P<block>.*?)\*/|//(?P<line>[^\n]*)|"(?P<text>(?:[^"\\\n]|\\.)*)"|\'(?:[^\'\\\n]|\\.)+\'', re.DOTALL)


def c_prose(text):
    """(line, text, whether it is a comment) of each comment and string."""
    for match in C_TEXT.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        if match["text"] is not None:
            yield line, match["text"], False
        elif match["block"] is not None or match["line"] is not None:
            body = match["block"] if match["block"] is not None else match["line"]
            yield line, re.sub(r"\s*\n\s*\*?\s*", " ", body).strip(" *!<-/"), True


def python_prose(text):
    previous = None
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string.strip("#! "), True
        elif token.type == tokenize.STRING:
            is_docstring = previous in (None, tokenize.INDENT, tokenize.NEWLINE) and token.string.endswith('"""')
            yield token.start[0], re.sub(r"\s+", " ", token.string.strip("rbfu\"'")).strip(), is_docstring
        if token.type not in (tokenize.NL, tokenize.COMMENT):
            previous = token.type


def page_prose(text):
    is_code = False
    for number, line in enumerate(text.split("\n"), 1):
        if line.startswith("```"):
            is_code = not is_code
        elif not is_code and not line.startswith("\t"):
            yield number, re.sub(r"`[^`]*`", "`", line.strip("#- ")), line.startswith("#")


def names_in(path, text):
    if path.endswith((".c", ".h", ".cu", ".cuh", ".cpp", ".py")):
        for number, line in enumerate(text.split("\n"), 1):
            for name in set(re.findall(r"[A-Za-z_]\w*", line)):
                if NAMES.search(name) and not FOREIGN_NAMES.search(name):
                    yield number, name


def faults_of(path):
    """(line, what is wrong) of a file."""
    with open(path, encoding="utf-8") as file:
        text = file.read()
    prose = page_prose if path.endswith((".md", ".scd")) else python_prose if path.endswith(".py") else c_prose
    for line, said, opens in prose(text):
        shown = said if len(said) <= 90 else said[:87] + "..."
        if opens and OPENERS.match(said):
            yield line, f'"{shown}" opens with a noun clause; say who does what, with a verb'
        for match in WORD.finditer(said):
            instead = WORDS[int(match.lastgroup[1:])][1]
            yield line, f'"{match[0]}" in "{shown}"; say: {instead}'
    if not path.endswith((".md", ".scd")):
        for line, name in names_in(path, text):
            yield line, f'the name "{name}"; use a term of the field'


def main():
    wanted = tuple(os.path.normpath(path) for path in sys.argv[1:])
    paths = [path for path in tracked(".c", ".h", ".cu", ".cuh", ".cpp", ".py", ".md", ".scd")
             if not wanted or path in wanted or path.startswith(tuple(folder + "/" for folder in wanted))]
    faults = 0
    for path in paths:
        if NAMES.search(re.sub(r"[/.-]", "_", path)):
            faults += 1
            print(f"{path}: its name; use a term of the field")
        for line, what in faults_of(path):
            if not any(path == exception and words in what for exception, words in EXCEPTIONS):
                faults += 1
                print(f"{path}:{line}: {what}")
    print(f"{faults} faults of wording in {len(paths)} files")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
