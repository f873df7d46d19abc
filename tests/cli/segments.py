# SPDX-License-Identifier: Apache-2.0
"""Recordings of PyTorch's allocator with segments: a reference model of mapped memory, in pages."""

import random

import snapshots


class Segments:
    """A random recording of PyTorch's allocator: segments at addresses that others had before, with other sizes, and an
    expandable one, mapped and unmapped in parts. The memory is a table of pages.
    """

    PAGES = 40  # of a MiB, of segments, and as many of the expandable segment

    def __init__(self, seed, events):
        self.random, self.events, self.states = random.Random(seed), [], []
        self.mapped, self.live = {}, {}  # page: segment; first page: pages of the block
        self.segments = 0
        while len(self.events) < events:
            self.random.choice([self.map, self.unmap, self.alloc, self.alloc, self.free])()

    def event(self, action, page, pages):
        self.events.append({"action": action, "addr": snapshots.BASE + page * snapshots.MIB, "size": pages * snapshots.MIB,
                            "stream": 0, "time_us": 100 + len(self.events) // 3, "frames": []})
        self.states.append((dict(self.mapped), dict(self.live)))

    def used(self, page):
        return any(first <= page < first + pages for first, pages in self.live.items())

    def runs(self, good):
        """All ranges of pages for which this is true, of the segments and of the expandable one."""
        for low, high in ((0, self.PAGES), (self.PAGES, 2 * self.PAGES)):
            for first in range(low, high):
                for end in range(first + 1, high + 1):
                    if not good(end - 1):
                        break
                    yield first, end

    def map(self):
        runs = list(self.runs(lambda page: page not in self.mapped))
        if runs:
            first, end = self.random.choice(runs)
            self.segments += 1
            for page in range(first, end):
                self.mapped[page] = self.segments if first < self.PAGES else 0
            self.event("segment_alloc" if first < self.PAGES else "segment_map", first, end - first)

    def unmap(self):
        """A whole segment, or a part of the expandable one, of one mapping or several."""
        whole = [[page for page in self.mapped if self.mapped[page] == segment] for segment in {*self.mapped.values()} - {0}]
        runs = [(min(pages), max(pages) + 1) for pages in whole if not any(map(self.used, pages))]
        runs += list(self.runs(lambda page: self.mapped.get(page) == 0 and not self.used(page)))
        if runs:
            first, end = self.random.choice(runs)
            for page in range(first, end):
                del self.mapped[page]
            self.event("segment_free" if first < self.PAGES else "segment_unmap", first, end - first)

    def alloc(self):
        runs = [run for run in self.runs(lambda page: page in self.mapped and not self.used(page))
                if len({self.mapped[page] for page in range(*run)}) == 1]
        if runs:
            first, end = self.random.choice(runs)
            self.live[first] = end - first
            self.event("alloc", first, end - first)

    def free(self):
        if self.live:
            first = self.random.choice(list(self.live))
            self.event("free_completed", first, self.live.pop(first))

    def snapshot(self, lost):
        """Without the oldest events."""
        segments = []
        for page in sorted(self.mapped):
            last = segments[-1] if segments else None
            if last and last["page"] + last["pages"] == page and last["segment"] == self.mapped[page]:
                last["pages"] += 1
            else:
                segments.append({"page": page, "pages": 1, "segment": self.mapped[page]})
        return {"device_traces": [self.events[lost:]], "segments": [{
            "device": 0, "address": snapshots.BASE + s["page"] * snapshots.MIB, "total_size": s["pages"] * snapshots.MIB,
            "stream": 0, "segment_type": "large", "is_expandable": s["segment"] == 0, "blocks": [
                {"address": snapshots.BASE + first * snapshots.MIB, "size": pages * snapshots.MIB,
                 "requested_size": pages * snapshots.MIB, "state": "active_allocated", "frames": []}
                for first, pages in sorted(self.live.items()) if s["page"] <= first < s["page"] + s["pages"]]}
            for s in segments]}

    def answer(self, lost):
        """Live, mapped, free, the largest free range at the first peak, and the most that is mapped, all in pages."""
        states = self.states[max(lost - 1, 0):] if lost else [({}, {})] + self.states
        mapped, live = max(states, key=lambda state: sum(state[1].values()))
        free = [page for page in sorted(mapped) if not any(first <= page < first + pages for first, pages in live.items())]
        largest = length = 0
        for i, page in enumerate(free):
            joins = i > 0 and free[i - 1] == page - 1 and mapped[page] == mapped[page - 1]
            length = length + 1 if joins else 1
            largest = max(largest, length)
        return sum(live.values()), len(mapped), len(free), largest, max(len(state[0]) for state in states)
