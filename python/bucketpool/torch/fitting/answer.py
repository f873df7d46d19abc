# SPDX-License-Identifier: Apache-2.0
"""The answer of a fit: bucketpool.fit/1."""

import json
import os
import subprocess
import tempfile
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence

from ...errors import FileError, InternalError, InvalidArgument, Unsupported
from .gpus import Gpu
from .jobs import Jobs, Search
from .measured import ALLOCATORS, Amounts, Program, command
from .search import Table

__all__ = ["Change", "Fit", "explore"]


_CHECKPOINTING = {"none": "no activation checkpointing", "full": "full activation checkpointing"}


class Change(NamedTuple):
    """Another way to train. option: how to ask for it."""

    change: str
    option: str
    program: Program


class Fit:
    """The result of fit(): document is bucketpool.fit/1 (docs/reference/formats.md)."""

    def __init__(self, document: Dict[str, Any]) -> None:
        self.document = document

    @property
    def fits(self) -> bool:
        """A micro-batch fits with some allocator."""
        return any(self.largest.values())

    @property
    def largest(self) -> Dict[str, int]:
        """The largest micro-batch that runs with "default", "expandable" and "served"; 0: none."""
        return dict(self.document["tables"][0]["largest"])

    @property
    def rows(self) -> List[Dict[str, Any]]:
        """Each micro-batch: "batch", "default_bytes", "expandable_bytes", "served_bytes", "peak_bytes", "default_retries",
        "expandable_retries" (None: it finds no memory).
        """
        return list(self.document["tables"][0]["rows"])

    def write(self, path: "os.PathLike[str] | str") -> None:
        """Writes the document, which `bucketpool fit` prints. Raises FileError."""
        try:
            with open(path, "w", encoding="utf-8") as file:
                json.dump(self.document, file)
        except OSError as error:
            raise FileError(f"{os.fspath(path)}: cannot be written: {error.strerror or error}") from None

    def report(self) -> str:
        """The verdict and the table, as `bucketpool fit` prints them. Raises Unsupported (the command is missing), InternalError
        (it ended in another way than with an answer).
        """
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "fit.json")
            self.write(path)
            done = subprocess.run([command(), "fit", path], capture_output=True, text=True, check=False)
        if done.returncode not in (0, 1):  # it fits, or it does not
            raise InternalError(f"bucketpool fit: exit status {done.returncode}: {done.stderr.strip()[-300:]}")
        return done.stdout

    def __repr__(self) -> str:
        return f"<Fit: largest micro-batch {', '.join(f'{self.largest[name]} {name}' for name in ALLOCATORS)}>"


def explore(jobs: Jobs, gpu: Gpu, programs: Sequence[Program], changes: Callable[[str], Sequence[Change]],
            batch: Optional[int], keep: Callable[[], str], chooses: bool = False) -> Dict[str, Any]:
    """Searches the table of each program, and tries changes(name) of the one that is shown: the first, or if `chooses` the first
    that fits. keep: gives a path for the recording of the micro-batch that is shown. Returns the parts of the document that
    were found.
    """
    tables = [Table(jobs, program, gpu.limit_bytes) for program in programs]
    searches = [table.search() if batch is None else table.one(batch) for table in tables]
    errors = jobs.run([searches[0], *map(_tried, searches[1:])])
    failed = [(_CHECKPOINTING[table.program.name], error) for table, error in zip(tables, errors) if error]
    tables = [table for table, error in zip(tables, errors) if not error]
    if chooses and tables[0].best == 0:
        tables.sort(key=lambda table: table.best == 0)
    table, others = tables[0], tables[1:]
    at, path = batch or max(1, table.best), keep()
    tried = changes(table.program.name)
    compared = [*others, *(Table(jobs, each.program, gpu.limit_bytes) for each in tried)]
    errors = jobs.run([_tried(each.row(at)) for each in compared] + [_kept(jobs, table, at, path)])
    before = table.rows[at].worst
    found = [("expandable segments", "expandable_segments:True", before.expandable),
             ("served steps", "python -m bucketpool.torch.steps", before.served)]
    named = [(f"{_CHECKPOINTING[each.program.name]}", f"--checkpointing {each.program.name}") for each in others]
    named += [(each.change, each.option) for each in tried]
    found += [(*names, each.rows[at].worst.default) for names, each, error in zip(named, compared, errors) if not error]
    failed += [(change, error) for (change, _), error in zip(named, errors) if error]
    return {
        "parameters": next(iter(table.traced.values())).parameters,
        "tables": [_table(each) for each in tables],
        "shown": {"batch": at, "kinds": [{"kind": kind, "bytes": size} for kind, size in table.rows[at].kinds],
                  "recording": path},
        "changes": [{"change": change, "option": option, "batch": at, "before_bytes": before.default, "after_bytes": after}
                    for change, option, after in sorted(found, key=lambda each: each[2])],
        "notes": list(dict.fromkeys(note for each in (table, *others) for note in each.notes))
        + [f"{change}: not compared: {error}" for change, error in failed],
    }


def _tried(search: Search) -> Search:
    """The error of another way to train, which costs no answer; None: it can be recorded."""
    try:
        yield from search
    except (InvalidArgument, Unsupported) as error:
        return str(error)
    return None


def _kept(jobs: Jobs, table: Table, batch: int, path: str) -> Search:
    """Writes the recording of a row."""
    recordings = table.recordings(batch)
    assert recordings is not None, "a row is traced or scaled"
    job = jobs.submit("the recording", lambda: recordings[-1].write(path))
    yield [job]
    job.result()


def _table(table: Table) -> Dict[str, Any]:
    return {"checkpointing": table.program.name, "deviation": table.deviation if table.is_scaled else None, "largest": table.largest,
            "largest_without_retries": table.smooth,
            "rows": [{"batch": batch, "is_traced": batch in table.traced, **_totals(amounts, 0),
                      "skewed": _totals(amounts, -1) if len(amounts.totals) > 1 else None}
                     for batch, amounts in sorted(table.rows.items())]}


def _totals(amounts: Amounts, routing: int) -> Dict[str, Optional[int]]:
    return {name if name.endswith("_retries") else f"{name}_bytes": value
            for name, value in amounts.totals[routing]._asdict().items()}
