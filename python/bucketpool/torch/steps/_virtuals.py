# SPDX-License-Identifier: Apache-2.0
"""The virtual methods of PyTorch's allocators, read from the installed headers, and a class that passes each one on.

The class CUDAAllocator changes in most releases of PyTorch, and many of its methods have a default that throws or
does nothing: a decorator that leaves one out compiles, and fails at run time. So forwarding.h is written from the
headers that are there, and a method that is not in the tables below is refused by name.
"""

import os
import re
from typing import Dict, Iterator, List, NamedTuple, Optional, Tuple

from ...errors import Unsupported

__all__ = ["forwarding"]

# All that follows is of PyTorch 2.6 to 2.15.
OLDEST = (2, 6)
# Classes, the header of each, and the namespace whose names its methods use.
HEADERS = {
    "Allocator": "c10/core/Allocator.h",
    "DeviceAllocator": "c10/core/CachingDeviceAllocator.h",
    "CUDAAllocator": "c10/cuda/CUDACachingAllocator.h",
}
CLASSES = {"cpu": "Allocator", "cuda": "CUDAAllocator"}
NAMESPACES = {"cpu": "c10", "cuda": "c10::cuda::CUDACachingAllocator"}

# Methods that the decorator overrides: it cannot compile, or would miss calls, if they were others.
OVERRIDDEN = {
    "allocate": "DataPtr (size_t)",
    "raw_delete": "void (void*)",
    "recordStream": "void (const DataPtr&, CUDAStream)",
    "getBaseAllocation": "void* (void*, size_t*)",
    "shareIpcHandle": "ShareableHandle (void*)",
    "beginAllocateToPool": "void (DeviceIndex, MempoolId_t, std::function<bool(cudaStream_t)>)",
    "endAllocateToPool": "void (DeviceIndex, MempoolId_t)",
    "resetPeakStats": "void (DeviceIndex)",
    "resetAccumulatedStats": "void (DeviceIndex)",
}
# The class implements these by others, which the decorator overrides: native's version would pass by the decorator. The
# body has to call the other one.
INHERITED = {"recordStream": ("void (const DataPtr&, Stream)", "recordStream")}
# Methods that call the decorator's hooks: how the signature begins, and the body.
HOOKS = {
    "snapshot": ("SnapshotInfo (", "return shown(native->snapshot(ARGUMENTS));"),
    "emptyCache": ("void (", "before_empty_cache(); native->emptyCache(ARGUMENTS);"),
    "getDeviceStats": ("DeviceStats (DeviceIndex)", "return counted(a0, native->getDeviceStats(ARGUMENTS));"),
    "recordHistory": ("void (bool, CreateContextFn, size_t, RecordContext",
                      "native->recordHistory(ARGUMENTS); history(a0, a1, a2, a3);"),
    "getContextForPointer": ("std::shared_ptr<GatheredContext> (const void*)",
                             "return native->getContextForPointer(block_of(a0));"),
    "annotateMemory": ("void (const void*, const std::string&)", "native->annotateMemory(block_of(a0), a1);"),
}
HOOKS_TEXT = """\
  using CUDAAllocator::recordStream;
  virtual SnapshotInfo shown(SnapshotInfo info) { return info; }
  virtual void before_empty_cache() {}
  virtual DeviceStats counted(c10::DeviceIndex, DeviceStats stats) { return stats; }
  virtual void history(bool, CreateContextFn, size_t, RecordContext) {}
  virtual const void *block_of(const void *pointer) { return pointer; } // for native: of the slab, its beginning
"""
# Methods that a release may lack: since PyTorch 2.12 and 2.14.
OPTIONAL = {"getContextForPointer", "annotateMemory"}
# Methods that are native's alone. The slab is one block for them, which stays until serving stops.
PASSED_ON = {
    "allocateWithAddress", "attachAllocatorTraceTracker", "attachOomRejectionObserver", "attachOutOfMemoryObserver",
    "cacheInfo", "checkPoolLiveAllocations", "copy_data", "createOrIncrefPool", "enable", "enablePeerAccess",
    "ensureExistsAndIncrefPool", "getCheckpointState", "getExpandableSegmentSizes", "getIpcDevPtr",
    "getMemoryFraction", "getMemoryInfo", "getPoolUseCount", "getUserMetadata", "init", "initialized", "isEnabled",
    "isHistoryEnabled", "is_simple_data_ptr", "markCaptureBegin", "markCaptureEnd", "memcpyAsync", "name",
    "popCompileContext", "pushCompileContext", "raw_alloc", "raw_alloc_with_stream", "raw_deleter",
    "recordAnnotation", "releasePool", "setCheckpointPoolState", "setMemoryFraction", "setNoSplit", "setUseOnOOM",
    "setUserMetadata", "supportsUserMetadata",
}

NOT_METHODS = {"using", "friend", "typedef", "template", "static", "static_assert"}  # first words of other members
QUALIFIERS = {"const", "volatile", "struct", "class", "enum", "typename"}
BUILTIN = {"void", "bool", "char", "short", "int", "long", "unsigned", "signed", "float", "double", "auto"}
# Types that are copied where they are taken by value; others are moved.
COPIED = {"size_t", "DeviceIndex", "MempoolId_t", "cudaStream_t", "CUDAStream", "CreateContextFn",
          "RecordContext"}
SCOPES = {"c10", "at", "cuda", "CUDACachingAllocator", "CachingDeviceAllocator"}

COMMENT = re.compile(r"""//[^\n]*|/\*.*?\*/|(?P<text>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])+')""", re.DOTALL)
TOKEN = re.compile(r"""\s*(::|->|[A-Za-z_]\w*|\d[\w.']*|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])+'|\S)""")
END = "update bucketpool. Nothing is served"
BRACKETS = {"(": ")", "[": "]", "{": "}", "<": ">"}


class Unclear(Exception):
    """The header is written in a way that is not understood: where, and what."""


class Method(NamedTuple):
    owner: str
    name: str
    result: List[str]
    parameters: List[List[str]]  # types
    qualifiers: List[str]  # behind the parameters: const, noexcept
    body: List[str]

    @property
    def signature(self) -> str:
        """Without the scopes that headers write or leave out."""
        parameters = ", ".join(text_of(plain(parameter)) for parameter in self.parameters)
        return f"{text_of(plain(self.result))} ({parameters}) {' '.join(self.qualifiers)}".strip()

    @property
    def key(self) -> str:
        """Methods of the same key override each other."""
        return self.name + self.signature[self.signature.index(" ("):].replace(" noexcept", "")


# ---- reading -------------------------------------------------------------------------------------------------------


def plain(tokens: List[str]) -> List[str]:
    found: List[str] = []
    for token in tokens:
        if token == "::" and found[-1:] and found[-1] in SCOPES:
            found.pop()
        elif token == "size_t" and found[-2:] == ["std", "::"]:
            found[-2:] = ["size_t"]
        else:
            found.append(token)
    return found


def text_of(tokens: List[str]) -> str:
    text = ""
    for before, token in zip([""] + tokens, tokens):
        words = (before[-1:].isalnum() or before[-1:] in tuple("_>&*")) and (token[0].isalnum() or token[0] == "_")
        text += (" " if words or before == "," else "") + token
    return text


def end_of(tokens: List[str], begin: int) -> int:
    """Place of the bracket that closes the one at `begin`. < and > are brackets where they are not in others."""
    closing: List[str] = []
    for place in range(begin, len(tokens)):
        token = tokens[place]
        angles = not set(closing) - {">"}
        if token in "([{" or token == "<" and angles:
            closing.append(BRACKETS[token])
        elif token in ")]}" or token == ">" and angles:
            if closing.pop() != token:
                break
            if not closing:
                return place
    raise Unclear(f"an unbalanced {tokens[begin]}")


def pieces(tokens: List[str], brackets: str) -> Iterator[List[str]]:
    """Single tokens, and pairs of brackets with what is between."""
    place = 0
    while place < len(tokens):
        end = end_of(tokens, place) + 1 if tokens[place] in brackets else place + 1
        yield tokens[place:end]
        place = end


def class_of(text: str, name: str) -> Tuple[Optional[str], List[str]]:
    """Base and contents of a class in the text of a header."""
    text = COMMENT.sub(lambda match: match["text"] or " ", text)
    bases = r"(:[^{;:]*(?:::[^{;:]*)*)?"
    heads = list(re.finditer(rf"\b(class|struct)\s+(?:[A-Z0-9_]+\s+)?{name}\s*(?:final\s*)?{bases}{{", text))
    if len(heads) != 1:
        raise Unclear(f"{len(heads)} definitions of the class")
    base: Optional[str] = None
    if heads[0][2] is not None:
        named = re.fullmatch(r":\s*(public\s+)?(?:c10::)?(\w+)\s*", heads[0][2])
        if not named or not (named[1] or heads[0][1] == "struct"):
            raise Unclear(f"the bases {heads[0][2].strip(': ')!r}")
        base = named[2]
    tokens = TOKEN.findall(text[heads[0].end() - 1:])
    contents = tokens[1:end_of(tokens, 0)]
    if "#" in contents:
        raise Unclear("preprocessor directives in the class")
    return base, contents if heads[0][1] == "class" else ["public", ":"] + contents


def members(contents: List[str]) -> Iterator[Tuple[str, List[List[str]], List[str]]]:
    """Access, pieces of the declaration, and body of each member."""
    access = "private"
    declaration: List[List[str]] = []
    for piece in pieces(contents, "([{"):
        if piece == [":"] and declaration in ([["public"]], [["protected"]], [["private"]]):
            access, declaration = declaration[0][0], []
        elif piece == [";"]:
            if declaration:
                yield access, declaration, []
            declaration = []
        elif piece[0] == "{" and any(before[0] == "(" for before in declaration) and (
                ["="] not in declaration or ["operator"] in declaration):  # else it begins a value
            yield access, declaration, piece
            declaration = []
        else:
            declaration.append(piece)
    if declaration:
        raise Unclear(f"a member without an end: {text_of(sum(declaration, []))[:80]}")


def parameter_types(tokens: List[str]) -> List[List[str]]:
    """Types of the parameters between brackets, without names and default arguments."""
    parameters: List[List[str]] = [[]]
    is_default = False
    for piece in pieces(tokens[1:-1], "([{<"):
        if piece == [","]:
            parameters.append([])
            is_default = False
        elif piece == ["="]:
            is_default = True
        elif not is_default:
            if piece[0] in "([{" or piece == ["."]:
                raise Unclear(f"the parameters {text_of(tokens)}")
            parameters[-1] += piece
    if parameters in ([[]], [["void"]]):
        return []
    for parameter in parameters:
        last, before = parameter[-1:], parameter[:-1]
        is_word = bool(last) and re.fullmatch(r"[A-Za-z_]\w*", last[0]) is not None
        if is_word and last[0] not in BUILTIN | QUALIFIERS and set(before) - QUALIFIERS and before[-1] != "::":
            parameter.pop()
        if not parameter:
            raise Unclear(f"the parameters {text_of(tokens)}")
    return parameters


def method_of(owner: str, declaration: List[List[str]], body: List[str]) -> Method:
    """Of a declaration without its first words, as virtual."""
    tokens = sum(declaration, [])
    place, angles = 0, list(pieces(tokens, "<(["))
    while place < len(angles) and angles[place][0] != "(":
        place += 1
    if place < 2 or place == len(angles) or not re.fullmatch(r"[A-Za-z_]\w*", angles[place - 1][0]):
        raise Unclear(f"a virtual method: {text_of(tokens)[:80]}")
    result, name = sum(angles[:place - 1], []), angles[place - 1][0]
    behind = sum(angles[place + 1:], [])
    if behind[-2:] in (["=", "0"], ["=", "default"]):
        del behind[-2:]
    qualifiers = [word for word in behind if word not in ("override", "final")]
    if {"operator", "auto", "decltype", "template", "static"}.intersection(result) or \
            not {"const", "noexcept"}.issuperset(qualifiers):
        raise Unclear(f"a virtual method: {text_of(tokens)[:80]}")
    return Method(owner, name, result, parameter_types(angles[place]), qualifiers, body)


def methods_of(owner: str, contents: List[str], known: Dict[str, Method]) -> Iterator[Method]:
    """Virtual methods that a class declares; known: those of its bases."""
    for access, declaration, body in members(contents):
        while declaration and declaration[0][0] == "[":  # attributes
            del declaration[0]
        words = [piece[0] for piece in declaration]
        text = text_of(sum(declaration, []))[:80]
        if "virtual" not in words and not {"override", "final"}.intersection(words):
            if "(" in words and words.index("(") == 1 and words[0] != owner:
                raise Unclear(f"a macro in the class: {text}")
            if "(" not in words or words[0] in NOT_METHODS or \
                    {"~", "operator", owner}.intersection(words[:words.index("(")]):
                continue
            method = method_of(owner, declaration, body) if any(
                inherited.name in words for inherited in known.values()) else None
            if method is None or method.key not in known:
                continue
        elif "~" in words:  # the destructor
            continue
        else:
            if words[0] == "virtual":
                del declaration[0]
            if not declaration or "virtual" in words[1:]:
                raise Unclear(f"a macro in the class: {text}")
            method = method_of(owner, declaration, body)
        if access != "public":
            raise Unclear(f"the {access} method {method.name}")
        yield method


def virtuals(include: str, name: str) -> Dict[str, Method]:
    """Virtual methods of a class and of its bases, by their keys; of those that override each other, the last."""
    path = os.path.join(include, *HEADERS[name].split("/"))
    try:
        with open(path, encoding="utf-8") as file:
            base, contents = class_of(file.read(), name)
        if base is not None and base not in HEADERS:
            raise Unclear(f"the base {base}")
        found = virtuals(include, base) if base else {}
        for method in methods_of(name, contents, found):
            found[method.key] = method
    except (OSError, UnicodeDecodeError) as error:
        raise Unsupported(f"PyTorch's header {HEADERS[name]}: {error}; install a PyTorch with its headers. Nothing is "
                          "served") from None
    except Unclear as error:
        raise Unsupported(f"PyTorch's header {HEADERS[name]}: class {name} is not understood: {error}; {END}") from None
    return found


# ---- writing -------------------------------------------------------------------------------------------------------


def passed(type: List[str], argument: str) -> str:
    is_moved = type[-2:] == ["&", "&"] or type[-1] not in COPIED | BUILTIN | {"&", "*"}
    return f"std::move({argument})" if is_moved else argument


def override(method: Method) -> str:
    parameters = ", ".join(f"{text_of(type)} a{i}" for i, type in enumerate(method.parameters))
    arguments = ", ".join(passed(type, f"a{i}") for i, type in enumerate(method.parameters))
    _, body = HOOKS.get(method.name, ("", f"return native->{method.name}(ARGUMENTS);"))
    qualifiers = "".join(f" {word}" for word in method.qualifiers)
    return (f"  {text_of(method.result)} {method.name}({parameters}){qualifiers} override "
            f"{{ {body.replace('ARGUMENTS', arguments)} }}\n")


def is_inherited(method: Method) -> bool:
    """Tells if the class implements the method by one that the decorator overrides."""
    signature, called = INHERITED.get(method.name, ("", ""))
    return method.signature == signature and (called, "(") in zip(method.body, method.body[1:])


def forwarding(include: str, device: str, release: str) -> str:
    """The text of forwarding.h for the headers in a folder: the class Forwarding, whose methods call those of another
    allocator, `native`, and the hooks that the decorator overrides. device: "cuda" or "cpu". release: PyTorch's.

    Raises Unsupported for a class that is not understood, and for methods that are not known.
    """
    name = CLASSES[device]
    major, minor = release.split(".")[:2]
    title = f"PyTorch {major}.{minor}'s allocator"
    if (int(major), int(minor)) < OLDEST:
        raise Unsupported(f"{title}: PyTorch {OLDEST[0]}.{OLDEST[1]} is the oldest that is known; update PyTorch. "
                          "Nothing is served")
    methods = [method for method in virtuals(include, name).values() if not is_inherited(method)]
    for method in methods:
        called = f"{method.owner}::{method.name}"
        known = OVERRIDDEN.get(method.name) or HOOKS.get(method.name, ("", ""))[0]
        if not known and method.name not in PASSED_ON:
            raise Unsupported(f"{title} has a method that this version does not know: {called}; {END}")
        if method.signature != known if method.name in OVERRIDDEN else not method.signature.startswith(known):
            raise Unsupported(f"{title} has {called} as {method.signature}, and this version knows it as {known}; "
                              f"{END}")
    required = set(OVERRIDDEN) | set(HOOKS) if device == "cuda" else {"allocate"}
    missing = required - OPTIONAL - {method.name for method in methods}
    if missing:
        raise Unsupported(f"{title} has no method {name}::{min(missing)}; {END}")
    hooks = HOOKS_TEXT if device == "cuda" else ""
    return f"""// Written by bucketpool from the headers of PyTorch {release}. Passes {name}'s methods to another.
#pragma once
#include <{HEADERS[name]}>
#include <utility>
#define BP_TORCH_VERSION {int(major) * 100 + int(minor)}
namespace {NAMESPACES[device]}::bucketpool {{
struct Forwarding : {name} {{
  {name} *const native;
  explicit Forwarding({name} *allocator) : native(allocator) {{}}
{hooks}{''.join(override(method) for method in methods)}}};
}}
using {NAMESPACES[device]}::bucketpool::Forwarding;
"""
