# SPDX-License-Identifier: Apache-2.0
"""The image of the CUDA kernels: its PTX before it is assembled, the entries of a fatbin, and their driver.

usage: fatbin.py lower PTX OUTPUT PTXAS           PTX for drivers, and for a ptxas, older than the nvcc that made it
       fatbin.py embed IMAGE OUTPUT HEADER NAME   a C array of 64-bit words, which the header declares
       fatbin.py codes FATBIN                     sm_80,sm_90,compute_80
       fatbin.py show FILE                        a table of a fatbin or of the one in a library

NVIDIA does not document the formats: these are what ptxas 12.9 and 13.0 and fatbinary 13.0 write."""

from __future__ import annotations

import re
import struct
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

MAGIC, CUBIN, PTX = 0xBA55ED50, 2, 1
HEADER, ENTRY = struct.Struct("<IHHQ"), struct.Struct("<HHIQIIHHI8xQQQ")
LZ4, ZSTD = 0x2000, 0x8000
OLDEST = (12, 0)  # driver of the library
ZSTD_READERS = (12, 4)  # nvcc's manual, --compress-mode
# The ELF of cubins before CUDA 13, and the one since then, which ptxas 12.8 and 12.9 already write for the GPUs that they were the first for.
ELF_12, ELF_13 = (0x33, 7), (0x41, 8)
# The first driver of a GPU, where that is not OLDEST: CUDA release notes, PTX ISA release history of .target.
GPUS = {100: (12, 8), 101: (12, 8), 103: (12, 9), 110: (13, 0), 120: (12, 8), 121: (12, 9)}
# The first driver that compiles a version of PTX, from OLDEST on: PTX ISA release history. Since 9.0, a minor version each.
PTX_VERSIONS = {(8, 1): (12, 1), (8, 2): (12, 2), (8, 3): (12, 3), (8, 4): (12, 4), (8, 5): (12, 5), (8, 6): (12, 7), (8, 7): (12, 8),
                (8, 8): (12, 9)}
PTX_OF_SM_80 = "7.0"  # the version that added the target

Version = tuple[int, int]


@dataclass
class Entry:
    """One code of a fatbin. `abi`: OS ABI and ABI version of a cubin's ELF, or the version of PTX. `bytes`: as stored."""

    code: str
    abi: Version
    compression: str
    bytes: int
    driver: Version

    def row(self) -> str:
        abi = f"PTX {self.abi[0]}.{self.abi[1]}" if self.code.startswith("compute") else f"ELF {self.abi[0]:#x}, {self.abi[1]}"
        return f"| {self.code} | {abi} | {self.compression} | {self.bytes} | {self.driver[0]}.{self.driver[1]} |"


def lower(text: str, ptxas: str, path: Path) -> None:
    """Writes the same code in the oldest PTX in which ptxas accepts it. nvcc writes its own version, and hints without a meaning, which need
    it (`used_bytes_mask`). Names of variables lose the hash of the source's path, at the same length."""
    text = re.sub(r'^\s*\.pragma (?!"nounroll").*\n', "", text, flags=re.MULTILINE)
    text = re.sub(r"(_INTERNAL_)[0-9a-f]{8}(_\d+_kernels_cu_)[0-9a-f]{8}", r"\g<1>00000000\g<2>00000000", text)
    version = PTX_OF_SM_80
    while True:
        path.write_text(re.sub(r"^\.version .*$", ".version " + version, text, count=1, flags=re.MULTILINE), encoding="utf-8")
        parsed = subprocess.run([ptxas, "-arch=compute_80", "-m64", str(path)], capture_output=True, text=True, check=False)
        needed = re.findall(r"requires PTX ISA \.version (\d+)\.(\d+)", parsed.stderr)
        if parsed.returncode == 0:
            return
        newest = max((tuple(map(int, each)) for each in needed), default=(0, 0))
        if newest <= tuple(map(int, version.split("."))):
            raise ValueError(parsed.stderr)
        version = f"{newest[0]}.{newest[1]}"
        print(f"fatbin.py: the kernels need PTX {version}, not {PTX_OF_SM_80}: the PTX of the image needs a newer driver")


def unpack(packed: bytes, limit: int) -> bytes:
    """The first bytes of an LZ4 block, at least `limit` if there are so many. Raises IndexError for what is not one."""
    made, place = bytearray(), 0

    def length(four: int) -> int:
        nonlocal place
        while four >= 15:
            four += packed[place]
            place += 1
            if packed[place - 1] != 255:
                break
        return four

    while place < len(packed) and len(made) < limit:
        token = packed[place]
        place += 1
        literals = length(token >> 4)
        made += packed[place:place + literals]
        place += literals
        if place < len(packed):
            back, = struct.unpack_from("<H", packed, place)
            place += 2
            if not 0 < back <= len(made):
                raise IndexError(back)
            for _ in range(length(token & 15) + 4):
                made.append(made[-back])
    return bytes(made)


def entry(kind: int, flags: int, architecture: int, data: bytes) -> Entry:
    compression = "zstd" if flags & ZSTD else "LZ4" if flags & LZ4 else "none"
    if compression == "zstd":
        raise ValueError(f"sm_{architecture}: compressed by zstd, which drivers before CUDA {ZSTD_READERS[0]}.{ZSTD_READERS[1]} do not read")
    begin = unpack(data, 256) if compression == "LZ4" else data[:256]
    if kind == PTX:
        found = re.search(rb"\.version (\d+)\.(\d+)\n\.target sm_(\d+)", begin)
        if found is None or int(found[3]) != architecture:
            raise ValueError(f"compute_{architecture}: PTX that begins with {begin[:40]!r}")
        version = int(found[1]), int(found[2])
        newest = (13, version[1]) if version >= (9, 0) else PTX_VERSIONS.get(version, OLDEST)
        return Entry(f"compute_{architecture}", version, compression, len(data), newest)
    if kind != CUBIN or begin[:4] != b"\x7fELF":
        raise ValueError(f"sm_{architecture}: an entry of kind {kind} that begins with {begin[:8]!r}")
    flags, = struct.unpack_from("<I", begin, 48)
    abi = begin[7], begin[8]
    of_elf = {ELF_12: flags & 0xff, ELF_13: flags >> 8 & 0xff}.get(abi)
    if of_elf != architecture:
        raise ValueError(f"sm_{architecture}: an ELF of OS ABI {abi[0]:#x}, {abi[1]} with the flags {flags:#x}")
    driver = GPUS.get(architecture, OLDEST if abi == ELF_12 else (13, 0))
    return Entry(f"sm_{architecture}", abi, compression, len(data), driver)


def entries(image: bytes) -> list[Entry]:
    """Raises ValueError for what is not a fatbin, is damaged, or holds what is not known."""
    magic, version, place, size = HEADER.unpack_from(image.ljust(HEADER.size))
    if (magic, version) != (MAGIC, 1) or place + size > len(image):
        raise ValueError(f"not a fatbin of {len(image)} bytes")
    found, end = [], place + size
    while place < end:
        try:
            kind, _, header, padded, packed, _, _, _, architecture, flags, _, _ = ENTRY.unpack_from(image, place)
            begin, stored = place + header, packed if flags & (LZ4 | ZSTD) else padded
            if stored > padded or begin + padded > end:
                raise IndexError(stored)
            found.append(entry(kind, flags, architecture, image[begin:begin + stored]))
        except (IndexError, struct.error):
            raise ValueError(f"a damaged fatbin: entry {len(found) + 1}, at byte {place} of {len(image)}") from None
        place = begin + padded
    if not found:
        raise ValueError("a fatbin without code")
    return found


def image_of(content: bytes) -> bytes:
    """The fatbin in a library, or the fatbin itself; empty without one."""
    begin = content.find(struct.pack("<IHH", MAGIC, 1, HEADER.size))
    return content[begin:begin + HEADER.size + struct.unpack_from("<Q", content, begin + 8)[0]] if begin >= 0 else b""


def table(image: bytes) -> str:
    return "\n".join(["| code | version | compression | bytes | driver of CUDA |", "|---|---|---|---|---|", *(each.row() for each in entries(image))])


def embed(image: bytes, header: str, name: str) -> str:
    image += b"\0" * (8 - len(image) % 8)  # PTX is a string
    words = [f"0x{word:x}u" for word in struct.unpack(f"={len(image) // 8}Q", image)]
    lines = (", ".join(words[i:i + 6]) + ",\n" for i in range(0, len(words), 6))
    return f'#include "{header}"\n\nconst uint64_t {name}[] = {{\n' + "".join(lines) + "};\n"


def main(action: str, path: str, *output: str) -> None:
    content = Path(path).read_bytes()
    if action == "lower":
        lower(content.decode(), output[1], Path(output[0]))
    elif action == "embed":
        Path(output[0]).write_text(embed(content, *output[1:]), encoding="utf-8")
    elif action == "codes":
        print(",".join(each.code for each in entries(content)))
    elif action == "show":
        print(table(image_of(content)))
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except (OSError, ValueError) as error:
        sys.exit(f"fatbin.py: {error}")
