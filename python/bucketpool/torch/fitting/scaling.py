# SPDX-License-Identifier: Apache-2.0
"""Recordings of other micro-batches, from two that were traced.

A step makes the same allocations for each micro-batch, and their sizes are linear in it, where no kernel changes its way:
then two recordings determine all others. Whether they do is checked by a third one (same()).
"""

from typing import Dict, List, Optional, Set, Tuple

from ..trace.recording import Block, Recording

__all__ = ["Scaling", "same"]


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
        old, distance = self._recording, batch - self._batch
        new = Recording(old.device)
        new.notes, new._steps, new._annotations = list(old.notes), list(old._steps), list(old._annotations)
        new._stacks = dict(old._stacks)
        stacks = list(old._stacks)
        made: Dict[int, Block] = {}  # by address in the old one
        slopes = iter(self._slopes)
        for action, block, stack, metadata in old._events:
            new._metadata = metadata
            if block is None:
                new._empty_cache(stacks[stack])
            elif action == "alloc":
                size = block.bytes + distance * next(slopes)
                if size < 0:
                    return None
                made[block.address] = new._allocate(size, block.stream, stacks[block.stack], block.origin, block.kind)
            elif action == "free_requested":
                new._free(made.pop(block.address))
        return new


def same(recording: Recording, other: Recording) -> bool:
    """The recordings have the same events with the same sizes."""
    return _alike(recording, other) and all(a.bytes == b.bytes for a, b in zip(_blocks(recording), _blocks(other)))


def _blocks(recording: Recording) -> List[Block]:
    """In the order of allocation."""
    return [block for action, block, _, _ in recording._events if action == "alloc" and block is not None]


def _alike(first: Recording, second: Recording) -> bool:
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
            if (a.stream, a.origin, a.kind) != (b.stream, b.origin, b.kind):
                return False
            numbers[0][a.address] = numbers[1][b.address] = number
        elif action == "free_requested":
            unpaired ^= {numbers[0][a.address]}
            unpaired ^= {numbers[1][b.address]}
    return not unpaired
