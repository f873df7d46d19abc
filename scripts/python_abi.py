# SPDX-License-Identifier: Apache-2.0
"""Writes python/bucketpool/_abi.py, the C interface as ctypes declarations, from include/bucketpool. Needs a C
preprocessor and pycparser.

usage: python3 scripts/python_abi.py [--check]     --check: writes nothing, fails where the file is not of these
headers"""

import argparse
import os
import re
import subprocess
import sys

try:
    from pycparser import c_ast, c_parser
except ImportError as error:
    print(f"pycparser is not installed: {error}")
    sys.exit(77)

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
FOLDERS = [os.path.join(ROOT, part, "include", "bucketpool") for part in ("", "clients/logprob")]
HEADERS = {name[:-2]: os.path.join(folder, name) for folder in FOLDERS for name in os.listdir(folder) if name.endswith(".h")}
OUTPUT = os.path.join(ROOT, "python", "bucketpool", "_abi.py")

# Headers of separate libraries; all others belong to the core. MPI's communicators are for C programs: Python has its
# own groups. kernels.h is for compiled clients.
LIBRARIES = {"formats": "formats", "logprob": "logprob", "lm_head": "logprob", "loss": "logprob",
             "cp": "logprob"}
LEFT_OUT = ("bucketpool", "comm_mpi", "kernels")

PLAIN = {"char": "c_char", "signed char": "c_int8", "unsigned char": "c_uint8", "int": "c_int", "unsigned": "c_uint",
         "unsigned int": "c_uint", "long": "c_long", "unsigned long": "c_ulong", "long long": "c_longlong",
         "unsigned long long": "c_ulonglong", "float": "c_float", "double": "c_double", "size_t": "c_size_t", "_Bool": "c_bool",
         "int8_t": "c_int8", "uint8_t": "c_uint8", "int16_t": "c_int16", "uint16_t": "c_uint16", "int32_t": "c_int32",
         "uint32_t": "c_uint32", "int64_t": "c_int64", "uint64_t": "c_uint64", "uintptr_t": "c_size_t"}

PREAMBLE = '''\
# SPDX-License-Identifier: Apache-2.0
"""The C interface, by its own names. Written by scripts/python_abi.py from include/bucketpool: change the headers, not
this file.

Each section names the header that documents it. Objects are c_void_p in fields and results, and typed pointers as
arguments, so that ctypes refuses another object; enumerations are plain integers. FUNCTIONS has, for each library, the
result and the arguments of its functions; _library.py declares them."""

%s
from typing import Any, Dict, List, Tuple


class Sized(Structure):
    """A struct that starts with its own size, which is set when it is made."""

    def __init__(self, **values: Any) -> None:
        super().__init__(size=sizeof(self), **values)


class Uncopied:
    """An object without copies and pickles: each would be another owner of the same object of the library."""

    __slots__ = ()

    def __copy__(self) -> Any:
        raise TypeError(f"a {type(self).__name__} cannot be copied: it is one object of the "
                        "library; pass it on instead")

    def __deepcopy__(self, memo: Any) -> Any:
        return self.__copy__()

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(f"a {type(self).__name__} cannot be pickled: it exists in this process only; create it again "
                        "in the other one")


'''


def parsed(header):
    """The declarations of one header, what it includes left out."""
    folders = ["-I" + os.path.dirname(folder) for folder in FOLDERS]
    text = subprocess.run(["cc", "-E", *folders, "-D__attribute__(x)=", "-D__extension__=", "-D__restrict=", "-D__inline=", "-include",
                           f"bucketpool/{header}.h", "-x", "c", os.devnull], check=True, capture_output=True, text=True).stdout
    tree = c_parser.CParser().parse(text)
    return [node for node in tree.ext if node.coord and str(node.coord.file).endswith(f"/bucketpool/{header}.h")]


def folded(entry, indent):
    """An entry that is too long for a line, as lines: cut after commas of the function type that it ends with."""
    inner = entry.rindex("CFUNCTYPE(", 0, entry.index("CFUNCTYPE(") + 10) + 10
    lines, text, depth = [], indent + entry[:inner], 0
    for part in re.split(r"(?<=,) ", entry[inner:]):
        if depth == 0 and len(text) + len(part) > 120:
            lines.append(text.rstrip())
            text = indent + " " * inner
        text += part + " "
        depth += part.count("(") - part.count(")")
    return [*lines, text.rstrip()]


def filled(begin, entries, end):
    """Lines of at most 120 characters with the entries between begin and end."""
    lines, text, indent = [], begin, " " * len(begin)
    for index, entry in enumerate(entries):
        entry += end if index == len(entries) - 1 else ","
        if len(text) + len(entry) > 120 and text.strip():
            lines.append(text.rstrip())
            text = indent
        if len(indent) + len(entry) > 120:
            lines += folded(entry, indent)
            text = indent
        else:
            text += entry + " "
    return [*lines, *([text.rstrip()] if text.strip() else [])]


class Writer:
    """Declarations in the order of the headers. Structs that are only named are opaque."""

    def __init__(self):
        self.lines = []
        self.structs = set()      # with fields
        self.function_types = {}  # name: is it one
        self.enums = set()
        self.opaque = {}          # objects that functions get, in their order
        self.is_argument = False  # of a function of the library
        self.functions = {"core": {}, "formats": {}, "logprob": {}}
        self.values = {}          # of enumerators and macros

    def value(self, node):
        if isinstance(node, c_ast.Constant):
            return int(node.value.rstrip("uUlL"), 0)
        if isinstance(node, c_ast.ID):
            return self.values[node.name]
        if isinstance(node, c_ast.UnaryOp) and node.op == "-":
            return -self.value(node.expr)
        if isinstance(node, c_ast.BinaryOp):
            left, right = self.value(node.left), self.value(node.right)
            return {"<<": left << right, "+": left + right, "|": left | right, "-": left - right,
                    "*": left * right}[node.op]
        raise SystemExit(f"an expression that is not understood, at {node.coord}")

    def type_of(self, node):
        """The ctypes expression of a type; None for void."""
        if isinstance(node, (c_ast.Decl, c_ast.Typename, c_ast.Typedef)):
            return self.type_of(node.type)
        if isinstance(node, c_ast.ArrayDecl):
            return f"{self.type_of(node.type)} * {self.value(node.dim)}"
        if isinstance(node, c_ast.PtrDecl):
            return self.pointer_to(node.type)
        name = node.type.name if isinstance(node.type, c_ast.Struct) else " ".join(node.type.names)
        if name == "void":
            return None
        if name in PLAIN:
            return PLAIN[name]
        if name in self.enums:
            return "c_int"
        if name in self.structs or name in self.function_types:
            return name
        raise SystemExit(f"a type that is not understood: {name}, at {node.coord}")

    def pointer_to(self, node):
        if isinstance(node, c_ast.FuncDecl):
            return self.function_type(node)
        if isinstance(node, c_ast.TypeDecl):
            names = [node.type.name] if isinstance(node.type, c_ast.Struct) else node.type.names
            if names == ["char"]:
                return "c_char_p"
            if names[0] in self.function_types:
                return names[0]
            is_opaque = names[0].startswith("bp_") and names[0] not in self.structs | self.enums
            if is_opaque and self.is_argument:
                self.opaque[names[0]] = True
                return names[0]
            if is_opaque or names == ["void"]:
                return "c_void_p"
        return f"POINTER({self.type_of(node)})"

    def function_type(self, node):
        return f"CFUNCTYPE({', '.join(map(str, [self.type_of(node.type), *self.arguments(node)]))})"

    def arguments(self, node):
        """An array that is an argument is a pointer."""
        types = []
        for parameter in node.args.params if node.args else ():
            inner = parameter.type
            types.append(self.pointer_to(inner.type) if isinstance(inner, c_ast.ArrayDecl) else self.type_of(inner))
        return [] if types == [None] else types

    def constant(self, name, value):
        self.values[name] = value
        self.lines.append(f"{name} = {value if abs(value) < 1 << 16 else hex(value)}")

    def enumeration(self, node):
        following = 0
        for entry in node.values.enumerators:
            following = self.value(entry.value) if entry.value else following
            self.constant(entry.name, following)
            following += 1

    def struct(self, name, node):
        fields = [(field.name, self.type_of(field.type)) for field in node.decls]
        base = "Sized" if fields[0] == ("size", "c_size_t") else "Structure"
        entries = [f'("{field}", {kind})' for field, kind in fields]
        self.lines += ["", "", f"class {name}({base}):", *filled("    _fields_ = [", entries, "]"), "", ""]
        self.structs.add(name)

    def declaration(self, node, library):
        kind = node.type
        if isinstance(node, c_ast.Typedef):
            inner = kind.type
            if isinstance(kind, c_ast.FuncDecl):
                self.lines.append(f"{node.name} = {self.function_type(kind)}")
                self.function_types[node.name] = True
            elif isinstance(inner, c_ast.Enum):
                self.enums.add(node.name)
                self.enumeration(inner)
            elif isinstance(inner, c_ast.Struct) and inner.decls:
                self.struct(node.name, inner)
            elif not isinstance(inner, c_ast.Struct):
                raise SystemExit(f"a typedef that is not understood: {node.name}, at {node.coord}")
        elif isinstance(kind, c_ast.Enum):
            self.enumeration(kind)
        elif isinstance(kind, c_ast.FuncDecl) and any(isinstance(parameter, c_ast.EllipsisParam) for parameter in kind.args.params):
            pass  # ctypes passes no variable arguments safely: Python formats its own text
        elif isinstance(kind, c_ast.FuncDecl):
            result = self.type_of(kind.type)
            self.is_argument = True
            self.functions[library][node.name] = (result, self.arguments(kind))
            self.is_argument = False
        elif isinstance(kind, c_ast.Struct) and kind.decls:
            self.struct(kind.name, kind)

    def macros(self, text):
        """Macros that stand for one whole number."""
        names = {"UINT32_MAX": 0xFFFFFFFF, "INT32_MAX": 0x7FFFFFFF, "UINT64_MAX": 0xFFFFFFFFFFFFFFFF, "INT64_MIN": -(1 << 63)}
        text = re.sub(r" *\\\n *", " ", text)  # continued lines
        for name, value in re.findall(r"^#define (BP_\w+) +\(?([^/\n]*?)\)? *(?:/\*.*)?$", text, re.MULTILINE):
            value = re.sub(r"BP_ROLE_BIT\((\w+)\)", r"(1 << \1)", value)
            value = re.sub(r"\b(0[xX][0-9a-fA-F]+|\d+)[uUlL]+\b", r"\1", value)
            try:
                result = eval(value, {"__builtins__": {}}, {**names, **self.values})  # our own headers
            except (SyntaxError, NameError, TypeError):
                continue
            if isinstance(result, int) and name not in self.values:
                self.constant(name, result)

    def header(self, name):
        with open(HEADERS[name], encoding="utf-8") as file:
            text = file.read()
        self.lines += ["", f"# ---- {name}.h ".ljust(118, "-"), ""]
        nodes = [node for node in parsed(name) if not isinstance(node, c_ast.FuncDef)]  # inline: without a symbol
        for node in nodes:  # macros may be the bounds of arrays, and are made of enumerators
            if isinstance(node.type, c_ast.Enum) or isinstance(getattr(node.type, "type", None), c_ast.Enum):
                self.declaration(node, None)
        self.macros(text)
        for node in nodes:
            if not (isinstance(node.type, c_ast.Enum) or isinstance(getattr(node.type, "type", None), c_ast.Enum)):
                self.declaration(node, LIBRARIES.get(name, "core"))

    def text(self):
        objects = [line for name in self.opaque for line in ("", "", f"class {name}(Uncopied, c_void_p):", "    pass")]
        lines = [*self.lines, *objects, "", "", "FUNCTIONS: Dict[str, Dict[str, Tuple[Any, List[Any]]]] = {"]
        for library, functions in self.functions.items():
            lines.append(f'    "{library}": {{')
            for name, (result, arguments) in functions.items():
                lines += filled(f'        "{name}": ({result}, [', arguments or [""], "]),")
            lines.append("    },")
        body = re.sub(r"\n{3,}", "\n\n\n", "\n".join([*lines, "}", ""]))
        kinds = sorted(set(PLAIN.values()) | {"c_char_p", "c_void_p"})
        used = [name for name in ("CFUNCTYPE", "POINTER", "Structure", *kinds, "sizeof")
                if name in ("Structure", "sizeof") or re.search(rf"\b{name}\b", body)]
        return PREAMBLE % "\n".join(filled("from ctypes import (", used, ")")) + body.lstrip("\n")


def order():
    """Each header after those that it includes."""
    done = []

    def visit(name):
        if name in done:
            return
        with open(HEADERS[name], encoding="utf-8") as file:
            for included in re.findall(r"#include <bucketpool/(\w+)\.h>", file.read()):
                visit(included)
        done.append(name)

    for name in sorted(HEADERS):
        if name not in LEFT_OUT:
            visit(name)
    return [name for name in done if name not in LEFT_OUT]


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--check", action="store_true")
    check = options.parse_args().check
    writer = Writer()
    for name in order():
        writer.header(name)
    text = writer.text()
    if check:
        with open(OUTPUT, encoding="utf-8") as file:
            same = file.read() == text
        print(f"{OUTPUT} is {'of these headers' if same else 'not of these headers: run scripts/python_abi.py'}")
        sys.exit(0 if same else 1)
    with open(OUTPUT, "w", encoding="utf-8") as file:
        file.write(text)


if __name__ == "__main__":
    main()
