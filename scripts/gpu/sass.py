# SPDX-License-Identifier: Apache-2.0
"""Compares the machine code that two ptxas make of one PTX: python3 scripts/gpu/sass.py PTX --ptxas ONE --ptxas OTHER

Needs nvdisasm, no GPU. For each kernel: the same code, or the same floating-point instructions, with their modifiers, signs, immediates and
predicates, in the same or another order. Which registers they connect is not compared: that both assemblers do what the PTX says is assumed,
and what is proven is that neither fuses, splits, adds or drops arithmetic. Other instructions are an error. So is an instruction of the PTX
that an assembler may contract, as PTX defines it: an addition or product in floating point without its rounding."""

import argparse
import collections
import re
import shutil
import subprocess
import sys
import tempfile

CONTRACTIBLE = re.compile(r"^\s*(?:@!?%\w+\s+)?((?:add|sub|mul|mad)(?:\.ftz|\.sat)*\.(?:f16x2|f16|bf16x2|bf16|f32|f64))\s", re.MULTILINE)
INSTRUCTION = re.compile(r"\s+/\*[0-9a-f]{4,}\*/\s+(@!?U?P\w+\s+)?(\S+)\s*([^;]*?)\s*;")
ARITHMETIC = re.compile(r"(?:F(?:ADD|MUL|FMA|MNMX|SET|SETP|CHK|RND|SWZADD|2F|2FP|2I|2IP|2F16)|D(?:ADD|MUL|FMA|MNMX|SETP)|"
                        r"H(?:ADD2|MUL2|FMA2|MNMX2|SET2|SETP2|MMA)|VHMNMX|MUFU|I2FP?)\d*(?:\.|$)")
OF_INTEGERS = re.compile(r"I2F\.U(?:32|64)\.RP|F2I(?:\.FTZ)?\.U(?:32|64)\.TRUNC(?:\.NTZ)?")  # steps of divisions of integers
OPERANDS = [(r"\.reuse\b", ""), (r"\bU?R(?:\d+|Z)\b", "R"), (r"\bU?P(?:\d|T)\b", "P"), (r"c\[0x\w+\]\[[^\]]*\]", "c"), (r"\s+", "")]


def without_operands(text):
    """The operands of an instruction without the numbers of registers and the places of constants."""
    for pattern, name in OPERANDS:
        text = re.sub(pattern, name, text)
    return text


def instructions(sass):
    """{kernel: its instructions} of what nvdisasm prints."""
    kernels, current = {}, None
    for line in sass.splitlines():
        if line.startswith(".text."):
            current = kernels.setdefault(line[len(".text."):].rstrip(":"), [])
        elif current is not None and (found := INSTRUCTION.match(line)):
            current.append(((found[1] or "").strip(), found[2], found[3]))
    return kernels


def arithmetic(code):
    """The floating-point instructions in their order. HFMA2 of zeros moves a constant."""
    return [" ".join(("@P" if predicate else "", name, without_operands(operands))).strip() for predicate, name, operands in code
            if ARITHMETIC.match(name) and not OF_INTEGERS.fullmatch(name) and not (name.startswith("HFMA2") and "-RZ, RZ" in operands)]


def compare(one, other):
    """Kernels with the same code, with the same arithmetic in the same order, and in another; {kernel: what only one or the other has}."""
    same, alike, reordered, differing = [], [], [], {}
    for name in sorted(set(one) | set(other)):
        first, second = arithmetic(one.get(name, [])), arithmetic(other.get(name, []))
        only, others = (collections.Counter(first) - collections.Counter(second)), (collections.Counter(second) - collections.Counter(first))
        if name not in one or name not in other:
            differing[name] = "one of the two has this kernel"
        elif only or others:
            differing[name] = "; ".join(", ".join(f"{count} {text}" for text, count in sorted(each.items())) or "none" for each in (only, others))
        else:
            (same if one[name] == other[name] else alike if first == second else reordered).append(name)
    return same, alike, reordered, differing


def assemble(ptxas, ptx, architecture, *more, fmad="false"):
    """The cubin, and what ptxas says of it, with the flags of clients/logprob/src/cuda/meson.build."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as cubin:
        done = subprocess.run([ptxas, f"-arch=sm_{architecture}", "-m64", "--fmad", fmad, *more, ptx, "-o", cubin.name], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            sys.exit(done.stderr)
        return cubin.read(), done.stderr


def disassemble(nvdisasm, cubin):
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        return instructions(subprocess.run([nvdisasm, "-c", file.name], capture_output=True, text=True, check=True).stdout)


def version_of(ptxas):
    return re.search(r"release ([\d.]+)", subprocess.run([ptxas, "--version"], capture_output=True, text=True, check=True).stdout)[1]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ptx")
    parser.add_argument("--ptxas", action="append", required=True)
    parser.add_argument("--architectures", default="80,90,100,120")
    options = parser.parse_args()
    nvdisasm = shutil.which("nvdisasm")
    if nvdisasm is None or len(options.ptxas) != 2:
        print("nvdisasm is not on PATH" if nvdisasm is None else "two --ptxas are compared")
        return 77
    with open(options.ptx, encoding="utf-8") as file:
        contractible = sorted(set(CONTRACTIBLE.findall(file.read())))
    print("in the PTX an assembler may contract " + ", ".join(contractible) if contractible else "the PTX has no instruction that an assembler may contract")
    failed = bool(contractible)
    one, other = map(version_of, options.ptxas)
    for architecture in options.architectures.split(","):
        codes = [disassemble(nvdisasm, assemble(ptxas, options.ptx, architecture)[0]) for ptxas in options.ptxas]
        same, alike, reordered, differing = compare(*codes)
        print(f"sm_{architecture}, ptxas {one} and {other}: {len(codes[0])} kernels, {sum(len(arithmetic(code)) for code in codes[0].values())} "
              f"floating-point instructions; {len(same)} kernels with the same code, {len(alike)} with the same arithmetic in the same order, "
              f"{len(reordered)} in another, {len(differing)} with other arithmetic")
        failed = failed or bool(differing) or not codes[0]
        for name, difference in differing.items():
            print(f"  {name}: {difference}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
