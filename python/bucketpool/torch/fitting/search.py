# SPDX-License-Identifier: Apache-2.0
"""Finds the largest micro-batches that fit: two are traced, others scaled, and those at the edges are traced again."""

import functools
from typing import Callable, Dict, Generator, List, Optional, Set, Tuple

from ...errors import InvalidArgument, Unsupported
from ..trace import Recording
from .jobs import Job, Jobs, Search
from .measured import ALLOCATORS, Amounts, Measured, Program, Totals, measure, traced
from .scaling import Scaling

__all__ = ["Table"]

LISTED = 8  # so many micro-batches are all listed
MOST = 1 << 24
EXACT = 512  # smaller micro-batches are each tried; those above in steps of 1/256 or less
WITHIN = 0.01  # temporaries of some kernels are not linear in the micro-batch


class Table:
    """Micro-batches of one program under a limit: rows, and the largest that fits with each allocator.

    search() is for Jobs.run(). smooth: the largest for which PyTorch need not release its cache. is_scaled: rows that were
    not traced are of recordings whose sizes are on the line through two that were; deviation: by which share those at the
    edges, which are always traced, differed from that at most. traced_before: of a table of the same program with another limit.
    """

    def __init__(self, jobs: Jobs, program: Program, limit_bytes: int,
                 traced_before: Optional[Dict[int, Measured]] = None) -> None:
        self.program, self.limit_bytes = program, limit_bytes
        self.rows: Dict[int, Amounts] = {}
        self.traced: Dict[int, Measured] = {}
        self._before = traced_before or {}
        self.largest: Dict[str, int] = {}
        self.smooth: Dict[str, int] = {}
        self.is_scaled, self.deviation = False, 0.0
        self._jobs = jobs
        self._scalings: Tuple[Scaling, ...] = ()  # of each routing, from micro-batch _first on
        self._first = 1
        self._is_one = False

    # ---- rows --------------------------------------------------------------------------------------------------------

    def one(self, batch: int) -> Search:
        """This micro-batch alone."""
        self._is_one = True
        yield from self._trace(batch)
        self.largest = {name: batch if self._runs(name, batch) else 0 for name in ALLOCATORS}
        self.smooth = {name: batch if self._is_smooth(name, batch) else 0 for name in ALLOCATORS[:2]}

    def search(self) -> Search:
        """Finds the edge of each allocator."""
        yield from self._trace(1)
        if self.fits_any(1):
            yield from self._trace(2, *([3] if self._expected(3) <= self.limit_bytes else []))
            if self.fits_any(2):
                yield from self._trace(3)
            self._scale()
        yield from self._edges()
        yield from self._check()
        yield from self._fill()
        self.is_scaled = bool(self._other_rows())

    def row(self, batch: int) -> Search:
        """Makes the row of a micro-batch."""
        if batch in self.rows:
            return
        recordings = self._at(batch)
        if recordings is None:
            yield from self._trace(batch)
        else:
            job = self._jobs.submit(f"{self._named(batch)}, scaled", lambda: measure(recordings, self.limit_bytes))
            yield [job]
            self.rows[batch] = job.result()

    def recordings(self, batch: int) -> Optional[Tuple[Recording, ...]]:
        """Of a row."""
        return self.traced[batch].recordings if batch in self.traced else self._at(batch)

    @property
    def best(self) -> int:
        """The largest micro-batch that fits with some allocator; 0: none does."""
        return max(self.largest.get(name, 0) for name in ALLOCATORS)

    def fits_any(self, batch: int) -> bool:
        return any(self._runs(name, batch) for name in ALLOCATORS)

    @property
    def notes(self) -> List[str]:
        found = list(dict.fromkeys(note for each in self.traced.values() for note in each.notes))
        if max(self.largest.values(), default=0) >= EXACT and not self._is_one:
            found.append(f"micro-batches from {EXACT:,} on were tried in steps of 1/256 or less, up to {MOST:,}")
        return found

    def _named(self, batch: int) -> str:
        name = self.program.name
        return f"micro-batch {batch}{f', checkpointing {name}' if name else ''}"

    def _trace(self, *batches: int) -> Search:
        """repeats_itself was checked on the first micro-batch that was traced."""
        missing = [batch for batch in batches if batch not in self.traced]
        known = bool(self.traced) and all(each.repeats_itself for each in self.traced.values())
        jobs = [self._jobs.submit(f"{self._named(batch)}, traced", functools.partial(self._measured, batch, known))
                for batch in missing]
        yield jobs
        for batch, job in zip(missing, jobs):
            try:
                found: Measured = job.result()
            except (InvalidArgument, Unsupported) as error:
                raise type(error)(f"micro-batch {batch}: {error}") from None
            self.traced[batch], self.rows[batch] = found, found.amounts

    def _measured(self, batch: int, repeats_itself: bool) -> Measured:
        if batch not in self._before:
            return traced(self.program, batch, self.limit_bytes, repeats_itself)
        return self._before[batch]._replace(amounts=measure(self._before[batch].recordings, self.limit_bytes))

    def _other_rows(self) -> List[int]:
        return [batch for batch in self.rows if batch not in self.traced]

    # ---- scaling -----------------------------------------------------------------------------------------------------

    def _expected(self, batch: int) -> int:
        """Live bytes at the peak, roughly: what outlives the first micro-batch's steps, and the rest so many times."""
        first = self.traced[1].recordings[-1]
        return first.live_rounded_bytes + batch * (first.peak_rounded_bytes - first.live_rounded_bytes)

    def _scale(self) -> None:
        """From micro-batches 2 and 3, or from 1 and 2 where 3 is not traced: kernels treat a batch of one in other ways."""
        for self._first in (2, 1):
            if self._first + 1 in self.traced:
                pairs = zip(self.traced[self._first].recordings, self.traced[self._first + 1].recordings)
                found = [Scaling.of(a, self._first, b) for a, b in pairs]
                if all(found):
                    self._scalings = tuple(each for each in found if each is not None)
                    return

    def _at(self, batch: int) -> Optional[Tuple[Recording, ...]]:
        if not self._scalings or batch < self._first:
            return None
        made = [each.at(batch) for each in self._scalings]
        return tuple(each for each in made if each is not None) if all(made) else None

    def _check(self) -> Search:
        """Traces the micro-batches at the edges: the largest that run, and those that do not. Where sizes are not linear, they
        move; where they are far from it, nothing is scaled.
        """
        scaled = {batch: self.rows[batch].worst for batch in self._other_rows() if batch in self._at_edges()}
        while scaled:
            yield from self._trace(*scaled)
            self.deviation = max(self.deviation, *(_deviation(row, self.rows[batch].worst) for batch, row in scaled.items()))
            if self.deviation > WITHIN:
                self.deviation, self._scalings = 0.0, ()
                self.rows = {each: found.amounts for each, found in self.traced.items()}
            yield from self._edges()
            scaled = {batch: self.rows[batch].worst for batch in self._other_rows() if batch in self._at_edges()}

    def _at_edges(self) -> Set[int]:
        edges = [*self.largest.values(), *self.smooth.values()]
        return {*edges, *map(_next, edges)}

    # ---- edges -------------------------------------------------------------------------------------------------------

    def _runs(self, name: str, batch: int) -> bool:
        row = self.rows[batch].worst
        return row.served <= self.limit_bytes if name == "served" else getattr(row, f"{name}_retries") is not None

    def _is_smooth(self, name: str, batch: int) -> bool:
        return bool(getattr(self.rows[batch].worst, f"{name}_retries") == 0)

    def _edges(self) -> Search:
        for name in reversed(ALLOCATORS):
            self.largest[name] = yield from self._edge(functools.partial(self._runs, name), "peak")
        for name in ALLOCATORS[:2]:
            self.smooth[name] = yield from self._edge(functools.partial(self._is_smooth, name), name)

    def _edge(self, fits: Callable[[int], bool], bytes_of: str) -> Generator[List[Job], None, int]:
        """Narrows from the rows that are there: guesses lie on the line through the nearest two, or in the middle where that
        did not halve the range. bytes_of: what decides.
        """
        before = 0
        while True:
            known = sorted(self.rows)
            low = max((each for each in known if fits(each)), default=0)
            high = min((each for each in known if each > low), default=None)
            if high == _next(low) or low >= MOST:
                return low
            if high is not None and 0 < before < 2 * (high - low):
                guess = (low + high) // 2
            else:
                guess = self._guess(bytes_of, low, high, known)
            before = high - low if high is not None else 0
            yield from self.row(max(_next(low), guess - guess % _step(guess)))

    def _guess(self, bytes_of: str, low: int, high: Optional[int], known: List[int]) -> int:
        pair = known[-2:] if high is None or low == 0 else [low, high]
        first, last = ((each, getattr(self.rows[each].worst, bytes_of)) for each in (pair[0], pair[-1]))
        limit = 2 * low
        if last[1] > first[1]:
            limit = int(first[0] + (self.limit_bytes - first[1]) * (last[0] - first[0]) / (last[1] - first[1]))
        return min(max(low + 1, limit), MOST if high is None else high - 1)

    def _fill(self) -> Search:
        """Rows up to the first that fits no allocator, if they are few."""
        last = _next(self.best)
        if last <= LISTED and (self._scalings or last <= 3):
            for batch in range(1, last + 1):
                yield from self.row(batch)
        if last in self.rows:
            self.rows = {batch: each for batch, each in sorted(self.rows.items()) if batch <= last}


def _step(batch: int) -> int:
    """A power of two."""
    return 1 if batch < EXACT else 2 << batch.bit_length() - EXACT.bit_length()


def _next(batch: int) -> int:
    """The next micro-batch that is tried."""
    return batch + _step(batch)


def _deviation(scaled: Totals, traced_ones: Totals) -> float:
    """The largest share by which bytes differ."""
    return max(abs(a - b) / max(1, b) for a, b in zip(scaled[:4], traced_ones[:4]))
