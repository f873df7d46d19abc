# SPDX-License-Identifier: Apache-2.0
"""Registers, spills, shared memory, occupancy and traffic of the CUDA kernels, from ptxas: python3 scripts/gpu/kernels.py

Needs nvcc, no GPU. --ptxas takes another assembler than nvcc's, as -Dkernels_ptxas does. --write makes bench/results/kernels.md. A kernel that spills registers is an error."""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import sass

sys.path.append(str(Path(__file__).resolve().parents[2] / "clients/logprob/src/cuda"))
import fatbin  # noqa: E402: of the kernels

PAGE = os.path.join("bench", "results", "kernels.md")
HEAD = """# Kernels of log-probabilities

Made by `python3 scripts/gpu/kernels.py --write`, from ptxas {version}. Bytes a logit are read + written; a form with the gradient in the logits' memory moves the
same. Divergences read two logits for each column; on sm_120 two of them spill one register, outside the loop over tiles. Warps are those that fit on a multiprocessor by registers.

"""
SOURCE = os.path.join("clients", "logprob", "src", "cuda", "kernels.cu")
BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}
# Bytes of spills that are allowed: one register, stored before the tiles of a row and loaded behind them.
ONE_A_ROW = {("120", "bp_divergence_bf16"): 8, ("120", "bp_divergence_fp16"): 8}
REGISTERS, WARPS, BLOCKS = 65536, 64, 32  # of a multiprocessor (CUDA programming guide, compute capabilities 8.0, 9.0, 10.0)


def compile_ptx(nvcc, ptxas, path):
    """Writes the PTX, as clients/logprob/src/cuda/meson.build does."""
    command = [nvcc, "-std=c++17", "-ptx", "-fmad=false", "-arch=compute_80", "-Iinclude", "-Iclients/logprob/include", "-Iclients/logprob/src", SOURCE, "-o", path]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode != 0:
        sys.exit(f"{' '.join(command)}:\n{run.stderr}")
    fatbin.lower(Path(path).read_text(encoding="utf-8"), ptxas, Path(path))


def compiled(ptxas, ptx, architecture):
    """Numbers of each kernel."""
    _, printed = sass.assemble(ptxas, ptx, architecture, "-v")
    kernels = {}
    for part in re.split(r"Compiling entry function '", printed)[1:]:
        def number(pattern, text=part):
            found = re.search(pattern, text)
            return int(found.group(1)) if found else 0

        kernels[part.split("'")[0]] = {"registers": number(r"Used (\d+) registers"), "shared": number(r"(\d+) bytes smem"),
                                       "spills": number(r"(\d+) bytes spill stores") + number(r"(\d+) bytes spill loads"),
                                       "stack": number(r"(\d+) bytes stack frame")}
    return kernels


def traffic(name):
    """Bytes of memory for each logit, where the kernel moves logits: what it reads, and what it writes."""
    dtypes = [BYTES[word] for word in name.split("_") if word in BYTES]
    if name.startswith("bp_divergence_gradient"):
        return f"{2 * dtypes[0]} + {dtypes[1]}"
    if name.startswith("bp_divergence_") and dtypes:
        return str(2 * dtypes[0])
    if name.startswith(("bp_gradient", "bp_fused", "bp_rows_fp32")):
        return f"{dtypes[0]} + {dtypes[1]}"
    if name.startswith(("bp_forward", "bp_columns", "bp_range")):
        return str(dtypes[0])
    return {"bp_rows_32": "4 + 4", "bp_rows_16": "2 + 2"}.get(name, "")


def threads_of(name):
    return 512 if name in ("bp_sums", "bp_merge_sums") or name.startswith("bp_fused") else 128


def warps_of(registers, threads):
    """Resident warps of a multiprocessor, as far as registers and blocks limit them: a warp's registers are multiples of 256, and each of
    its four partitions has a quarter."""
    of_warp = -(-registers * 32 // 256) * 256
    block = -(-threads // 32)
    return min(REGISTERS // 4 // of_warp * 4, WARPS, BLOCKS * block) // block * block


def table(of_architectures):
    architectures = list(of_architectures)
    lines = [f"| kernel | bytes a logit | registers {', '.join('sm_' + a for a in architectures)} | spills | shared bytes | threads | warps |",
             "|---|---|---|---|---|---|---|"]
    main = of_architectures["90" if "90" in architectures else architectures[0]]
    for name, kernel in main.items():
        registers = ", ".join(str(of_architectures[a][name]["registers"]) for a in architectures)
        spills = sum(of_architectures[a][name]["spills"] + of_architectures[a][name]["stack"] for a in architectures)
        threads = threads_of(name)
        lines.append(f"| `{name}` | {traffic(name)} | {registers} | {spills} | {kernel['shared']} | {threads} | "
                     f"{warps_of(kernel['registers'], threads)} |")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--architectures", default="80,90,100,120", help="compute capabilities, without the dot")
    parser.add_argument("--ptxas", help="instead of nvcc's")
    parser.add_argument("--write", action="store_true", help=f"write {PAGE}")
    parser.add_argument("--source", help="folder of the project")
    options = parser.parse_args()
    if options.source:
        os.chdir(options.source)
    nvcc = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
    if nvcc is None:
        print("nvcc is not installed")
        return 77
    ptxas = options.ptxas or shutil.which("ptxas", path=os.path.dirname(os.path.realpath(nvcc)))
    with tempfile.TemporaryDirectory() as folder:
        ptx = os.path.join(folder, "kernels.ptx")
        compile_ptx(nvcc, ptxas, ptx)
        kernels = {architecture: compiled(ptxas, ptx, architecture) for architecture in options.architectures.split(",")}
    text = table(kernels)
    print(text, end="")
    if options.write:
        with open(PAGE, "w", encoding="utf-8") as file:
            file.write(HEAD.format(version=sass.version_of(ptxas)) + text)
    spilling = [f"sm_{a}: {name}" for a, of in kernels.items() for name, k in of.items()
                if k["spills"] > ONE_A_ROW.get((a, name), 0) or (k["stack"] > 0 and k["spills"] == 0)]
    if spilling:
        print(f"spills registers: {'; '.join(spilling)}", file=sys.stderr)
    return 1 if spilling else 0


if __name__ == "__main__":
    sys.exit(main())
