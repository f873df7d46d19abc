# SPDX-License-Identifier: Apache-2.0
"""Recordings that follow from others: of a further step, and of other micro-batches.

A steady step is the first one without what the first one leaves behind, the optimizer's state. And a step makes the same
allocations for each micro-batch, with sizes that are linear in it, where no kernel changes its way: then two recordings
determine all others. Neither is taken for granted: repeats() and same() check them on recordings that were traced.
"""

from typing import Dict, List, Optional, Set, Tuple

from ..trace.recording import Block, Recording

__all__ = ["Scaling", "repeated", "repeats", "same"]


class _Copy:
    """A recording in the making, of the events of another one."""

    def __init__(self, old: Recording) -> None:
        self.old, self.new = old, Recording(old.device)
        self.new.notes, self.new._stacks = list(old.notes), dict(old._stacks)
        self._stacks = list(old._stacks)
        self._made: Dict[int, Block] = {}  # by address in the old one

    def event(self, number: int, size: Optional[int] = None) -> None:
        """Adds an event of the old recording; size: of an allocation, if not the old one."""
        action, block, stack, self.new._metadata = self.old._events[number]
        if block is None:
            self.new._empty_cache(self._stacks[stack])
        elif action == "alloc":
            self._made[block.address] = self.new._allocate(block.bytes if size is None else size, block.stream,
                                                           self._stacks[block.stack], block.origin, block.kind)
        elif action == "free_requested":
            self.new._free(self._made.pop(block.address))

    def marks(self, begin: int, end: int, places: List[int]) -> None:
        """Adds annotations at events from begin to end. places: of the events in the new recording, by number - begin."""
        for at, stage, name in self.old._annotations:
            if begin <= at <= end and not name.startswith("ProfilerStep#"):
                self.new._annotations.append((places[at - begin], stage, name))


class Scaling:
    """Two recordings with the same events; sizes of other micro-batches are on the line through theirs."""

    def __init__(self, recording: Recording, batch: int, slopes: List[int]) -> None:
        self._recording, self._batch, self._slopes = recording, batch, slopes

    @classmethod
    def of(cls, first: Recording, batch: int, second: Recording) -> Optional["Scaling"]:
        """From recordings of `batch` and of one more. None: their events differ."""
        if not _alike(first, second):
            return None
        slopes = [b.bytes - a.bytes for a, b in zip(_blocks(first), _blocks(second))]
        return cls(first, batch, slopes)

    def at(self, batch: int) -> Optional[Recording]:
        """The recording of a micro-batch. None: a size would be negative."""
        copy, slopes = _Copy(self._recording), iter(self._slopes)
        for number, (action, block, _, _) in enumerate(self._recording._events):
            size = None
            if action == "alloc" and block is not None:
                size = block.bytes + (batch - self._batch) * next(slopes)
                if size < 0:
                    return None
            copy.event(number, size)
        copy.new._steps, copy.new._annotations = list(self._recording._steps), list(self._recording._annotations)
        return copy.new


def repeated(recording: Recording, steps: int = 2) -> Optional[Recording]:
    """The recording of a first step, with others: the first without the allocations that it leaves behind.
    None: the first frees what was made before it, so that a second one would free something else.
    """
    events, begin = recording._events, recording._steps[0]
    end = recording._steps[1] if len(recording._steps) > 1 else len(events)
    left: Set[int] = set()  # addresses of blocks of the step that are live
    for action, block, _, _ in events[begin:end]:
        if block is not None and action == "alloc":
            left.add(block.address)
        elif block is not None and action == "free_requested":
            if block.address not in left:
                return None
            left.remove(block.address)
    copy, places = _Copy(recording), list(range(begin, end + 1))
    for number in range(end):
        copy.event(number)
    copy.new._annotations = [each for each in recording._annotations if each[0] < begin]
    for _ in range(steps):
        if copy.new._steps:
            places = []
            for number in range(begin, end):
                places.append(len(copy.new._events))
                block = events[number][1]
                if block is None or block.address not in left:
                    copy.event(number)
            places.append(len(copy.new._events))
        copy.new._annotations.append((places[0], "START", f"ProfilerStep#{len(copy.new._steps)}"))
        copy.marks(begin, end, places)
        copy.new._annotations.append((places[-1], "END", f"ProfilerStep#{len(copy.new._steps)}"))
        copy.new._steps.append(places[0])
    return copy.new


def repeats(recording: Recording) -> bool:
    """The second of two recorded steps is what repeated() makes of the first."""
    made = repeated(recording)
    return made is not None and same(made, recording)


def same(recording: Recording, other: Recording) -> bool:
    """The recordings have the same events with the same sizes; operators may differ: FSDP allocates gathered parameters with
    another one when it does so again.
    """
    return (_alike(recording, other, any_operator=True)
            and all(a.bytes == b.bytes for a, b in zip(_blocks(recording), _blocks(other))))


def _blocks(recording: Recording) -> List[Block]:
    """In the order of allocation."""
    return [block for action, block, _, _ in recording._events if action == "alloc" and block is not None]


def _alike(first: Recording, second: Recording, any_operator: bool = False) -> bool:
    """The events are the same but for sizes, and for the order of frees that follow each other: PyTorch frees the casts of
    autocast in the order of their addresses.
    """
    if first._steps != second._steps or len(first._events) != len(second._events):
        return False
    numbers: Tuple[Dict[int, int], Dict[int, int]] = ({}, {})  # of live blocks, by address
    unpaired: Set[int] = set()  # blocks that one of the two has freed
    for number, ((action, a, _, _), (other, b, _, _)) in enumerate(zip(first._events, second._events)):
        if action != other or (unpaired and not action.startswith("free")):
            return False
        if a is None or b is None:
            continue
        if action == "alloc":
            if (a.stream, a.kind) != (b.stream, b.kind) or a.origin[:2] != b.origin[:2]:
                return False
            if a.origin != b.origin and not any_operator:
                return False
            numbers[0][a.address] = numbers[1][b.address] = number
        elif action == "free_requested":
            unpaired ^= {numbers[0][a.address]}
            unpaired ^= {numbers[1][b.address]}
    return not unpaired
