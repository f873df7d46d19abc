# SPDX-License-Identifier: Apache-2.0
"""Shared libraries that stand in for those of a CUDA toolkit, so that PyTorch can be imported without 2 GB of them on a machine without a GPU.

A stand-in has the soname that PyTorch's libraries ask for and every symbol that they take from it, with its version. All of its functions abort the
process with a sentence: PyTorch calls none of them before it has found a GPU."""

import glob
import os
import re
import subprocess

OWN = re.compile(r"lib(torch|c10|caffe2|shm)")
SYSTEM = re.compile(r"lib(c|m|dl|pthread|rt|gcc_s|stdc\+\+|z)\.so|ld-linux")
REAL = re.compile(r"lib(cudart|cupti|cuda)\.so")  # small, and asked for GPUs by PyTorch: the real ones
SOURCE = """\
#include <stdio.h>
#include <stdlib.h>
#define STAND_IN(number, name) \\
  void stand_in_##number(void); \\
  void stand_in_##number(void) {{ fputs("stand-in of {soname}: " name " was called; it needs a GPU\\n", stderr); abort(); }}
"""


def _readelf(*words):
    return subprocess.run(["readelf", "-W", *words], capture_output=True, text=True, check=True).stdout


def _needed(path):
    """Sonames that a library is linked to, and those of its versions of symbols: (names, {version: soname})."""
    names = re.findall(r"\(NEEDED\).*\[(.+)\]", _readelf("-d", path))
    versions, soname = {}, None
    for line in _readelf("-V", path).splitlines():
        file, name = re.search(r"File: (\S+)", line), re.search(r"Name: (\S+)  Flags", line)
        soname = file[1] if file else soname
        if name and soname:
            versions[name[1]] = soname
    return names, versions


def _symbols(path):
    """(taken, given) of a library, as name or name@VERSION; no weak ones among the taken."""
    taken, given = set(), set()
    for line in _readelf("--dyn-syms", path).splitlines():
        words = line.split()
        if len(words) < 8 or not words[0].endswith(":") or not words[0][:-1].isdigit():
            continue
        name = words[7].replace("@@", "@")
        if words[6] != "UND":
            given.add(name.split("@")[0])
        elif words[4] != "WEAK":
            taken.add(name)
    return taken, given


def _write(folder, soname, symbols):
    """Compiles one: symbols as name or name@VERSION."""
    source, script = os.path.join(folder, soname + ".c"), os.path.join(folder, soname + ".map")
    versions = sorted({symbol.partition("@")[2] for symbol in symbols} - {""})
    with open(script, "w", encoding="utf-8") as file:
        file.write("".join(f"{version} {{ }};\n" for version in versions) or "{ global: *; };\n")
    with open(source, "w", encoding="utf-8") as file:
        file.write(SOURCE.format(soname=soname))
        for number, symbol in enumerate(sorted(symbols)):
            name, _, version = symbol.partition("@")
            file.write(f'STAND_IN({number}, "{name}")\n')
            file.write(f'__asm__(".symver stand_in_{number}, {name}@{version}");\n' if version else
                       f'__asm__(".globl {name}\\n.set {name}, stand_in_{number}");\n')
    subprocess.run(["cc", "-shared", "-fPIC", "-O0", "-w", f"-Wl,-soname,{soname}", f"-Wl,--version-script={script}", "-o", os.path.join(folder, soname), source],
                   check=True)
    os.remove(source)
    os.remove(script)


def own(libraries):
    """PyTorch's libraries in its folder."""
    return [path for path in glob.glob(os.path.join(libraries, "*.so*")) if OWN.match(os.path.basename(path))]


def needed_by(libraries):
    """Sonames that PyTorch's libraries are linked to and that are not beside them."""
    return {name for path in own(libraries) for name in _needed(path)[0]} - set(os.listdir(libraries))


def write(libraries, folder):
    """Writes those of `needed_by` that are neither the system's nor REAL into a folder; their sonames."""
    wanted = {name: set() for name in needed_by(libraries) if not SYSTEM.match(name) and not REAL.match(name)}
    unversioned, given = set(), set()
    for path in own(libraries):
        versions = _needed(path)[1]
        taken, defined = _symbols(path)
        given |= defined
        for symbol in taken:
            name, _, version = symbol.partition("@")
            if not version:
                unversioned.add(name)
            elif versions.get(version) in wanted:
                wanted[versions[version]].add(symbol)
    for soname, symbols in sorted(wanted.items()):
        if not symbols:  # a library without versions: what begins with its name
            prefix = re.match(r"lib([a-z]+)", soname.lower())[1]
            symbols = {name for name in unversioned - given if name.lower().startswith(prefix)}
        _write(folder, soname, symbols)
    return sorted(wanted)
