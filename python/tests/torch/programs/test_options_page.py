# SPDX-License-Identifier: Apache-2.0
"""docs/reference/options.md: its names exist, and it has all options of the two packages."""

import dataclasses
import inspect
import os
import re
import unittest
from typing import Any, Dict, Iterator, List, Set, Tuple

import pytest
import torch

from places import ROOT
pytest.importorskip("megatron_fsdp", reason="the megatron-fsdp package is not installed")

import bucketpool  # noqa: E402
import megatron_fsdp  # noqa: E402
from bucketpool import _abi  # noqa: E402
from megatron_fsdp import MixedPrecisionPolicy  # noqa: E402
from megatron_fsdp.distributed_data_parallel_config import DistributedDataParallelConfig  # noqa: E402
from torch.distributed import fsdp  # noqa: E402

DOCS = os.path.join(ROOT, "docs")
COMMAND, PYTHON = 1, 2


def read(name: str) -> str:
    with open(os.path.join(DOCS, name), encoding="utf-8") as file:
        return file.read()


def section(title: str) -> str:
    return read(os.path.join("reference", "options.md")).split(f"\n## {title}\n")[1].split("\n## ")[0]


def quoted(text: str) -> List[str]:
    return re.findall(r"`([^`]+)`", text)


def newer(line: str) -> bool:
    """True if a row is of an option that PyTorch has "from 2.13" on, and this one is older, or that Megatron-LM has on
    its branch dev."""
    if "(dev)" in line.split("|")[1]:
        return True
    first = re.search(r"\(from (\d+)\.(\d+)\)", line.split("|")[1])
    have = [int(part) for part in torch.__version__.split(".")[:2]]
    return first is not None and have < [int(part) for part in first.groups()]


def cells(column: int) -> Iterator[str]:
    """The quoted values of a column of the tables."""
    for line in read(os.path.join("reference", "options.md")).splitlines():
        row = line.split("|")[1:-1]
        if line.startswith("| ") and len(row) == 3 and not line.startswith("| option"):
            yield from quoted(row[column])


class Names(unittest.TestCase):
    def test_command(self) -> None:
        """Options are the command's."""
        known = set(re.findall(r"^ +(?:-o, )?(--[a-z-]+)", read(os.path.join("..", "tests", "cli", "golden", "help-plan.txt")), re.MULTILINE))
        found = {option for text in cells(COMMAND) for option in re.findall(r"(?:^| )(--[a-z-]+)", text)}
        self.assertGreater(len(found), 20)
        self.assertEqual(found - known, set())

    def test_c(self) -> None:
        """Arguments have the names of fields of the headers."""
        structs = dict(re.findall(r"`([\w.]+)`\s(?:is\s)?`(bp_\w+)`", read(os.path.join("reference", "options.md"))))
        self.assertEqual(len(structs), 6)
        for text in set(cells(PYTHON)):
            function, _, argument = text.partition("(")
            if argument:
                fields = [each[0] for each in getattr(_abi, structs[function])._fields_]
                self.assertIn(argument.split("=")[0], fields, text)

    def test_python(self) -> None:
        """Arguments are those of the package."""
        for text in set(cells(PYTHON)):
            path, _, argument = text.partition("(")
            found: Any = bucketpool
            for part in path.split("."):
                found = getattr(found, part)
            if argument:
                self.assertIn(argument.split("=")[0], inspect.signature(found).parameters, text)


class Complete(unittest.TestCase):
    def _missing(self, title: str, names: Set[str]) -> Set[str]:
        return names - {word for text in quoted(section(title)) for word in re.findall(r"\w+", text)}

    def test_megatron_fsdp(self) -> None:
        names = set(inspect.signature(megatron_fsdp.fully_shard_model).parameters)
        for kind in (DistributedDataParallelConfig, MixedPrecisionPolicy):
            names |= {field.name for field in dataclasses.fields(kind)}
        self.assertEqual(self._missing("Megatron-FSDP", names), set())

    def test_fsdp2(self) -> None:
        names = set(inspect.signature(fsdp.fully_shard).parameters)
        names |= {field.name for field in dataclasses.fields(fsdp.MixedPrecisionPolicy)}
        names |= {name for name in vars(fsdp.FSDPModule) if not name.startswith("_")}
        self.assertEqual(self._missing("FSDP2", names), set())

    def test_unknown_names(self) -> None:
        """The first column has options of the package, or values of one."""
        both: Dict[str, Tuple[Any, ...]] = {
            "Megatron-FSDP": (set(inspect.signature(megatron_fsdp.fully_shard_model).parameters),
                              {field.name for field in dataclasses.fields(DistributedDataParallelConfig)},
                              {field.name for field in dataclasses.fields(MixedPrecisionPolicy)},
                              {"optim_grads_params", "optim_grads", "optim", "no_shard"}),
            "FSDP2": (set(inspect.signature(fsdp.fully_shard).parameters), set(vars(fsdp.FSDPModule)),
                      {field.name for field in dataclasses.fields(fsdp.MixedPrecisionPolicy)},
                      {"fully_shard", "CPUOffloadPolicy"})}
        for title, known in both.items():
            rows = [line.split("|")[1] for line in section(title).splitlines() if line.startswith("| ")
                    and not newer(line)]
            named = {name for row in rows for name in quoted(row)}
            self.assertGreater(len(named), 10)
            self.assertEqual(named - set().union(*known), set(), title)


if __name__ == "__main__":
    unittest.main()
