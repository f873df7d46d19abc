# SPDX-License-Identifier: Apache-2.0
"""Recordings of training steps as PyTorch writes them, made with Python's own pickle."""

import pickle
import random


def rounded(size):
    return (size + 511) // 512 * 512


def frame(name, file, line):
    return {"name": name, "filename": file, "line": line}


class Recording:
    """A trace of one device, made by allocations and frees. Addresses are never used twice."""

    def __init__(self, protocol=4):
        self.events, self.address, self.time, self.protocol, self.live = [], 0x7F0000000000, 0, protocol, {}
        self.annotations = []
        self.segments = {}

    def event(self, action, address, size, stream=0, frames=()):
        self.time += 10
        self.events.append({"action": action, "addr": address, "size": size, "stream": stream, "time_us": self.time,
                            "compile_context": "N/A", "user_metadata": "", "frames": list(frames)})

    def alloc(self, size, stream=0, place="f", frames=None):
        address, self.address = self.address, self.address + rounded(size)
        if frames is None:
            frames = frame("c10::alloc", "??", 0), frame("empty", "/x/torch/ops.py", 7), frame(place, "/home/model.py", 3)
        self.event("alloc", address, size, stream, frames)
        self.live[address] = (size, stream)
        return address

    def request_free(self, address):
        """The tensor is gone, but another stream may still use it."""
        self.event("free_requested", address, *self.live[address])

    def complete_free(self, address):
        self.event("free_completed", address, *self.live.pop(address))

    def free(self, address):
        self.request_free(address)
        self.complete_free(address)

    def mark(self, name, stage="START"):
        """An annotation: it lies before the next event."""
        self.annotations.append({"stage": stage, "name": name, "device": 0, "time_us": self.time + 10})

    def segment(self, action, address, size, frames=()):
        self.event(action, address, size, frames=frames)
        if action == "segment_alloc":
            self.segments[address] = size
        else:
            del self.segments[address]

    def alloc_segment(self, size, place="f"):
        """A block that is its segment."""
        self.segment("segment_alloc", self.address, size)
        return self.alloc(size, place=place)

    def empty_cache(self, frames=()):
        """Frees the segments without live blocks."""
        for address in [address for address in self.segments if address not in self.live]:
            self.segment("segment_free", address, self.segments[address], frames)

    def snapshot(self):
        segments = [{"device": 0, "address": address, "total_size": rounded(size), "stream": stream,
                     "segment_type": "large", "segment_pool_id": (0, 0), "is_expandable": False, "frames": [],
                     "blocks": [{"address": address, "size": rounded(size), "requested_size": size,
                                 "state": "active_allocated", "frames": []}]}
                    for address, (size, stream) in self.live.items()]
        return {"segments": segments, "device_traces": [self.events], "external_annotations": self.annotations,
                "allocator_settings": {"max_split_size": -1, "expandable_segments": False}}


class Model:
    """Training steps of layers: activations, gradients that the next step frees, temporaries, the optimizer's state."""

    def __init__(self, seed, layers=5, extra=0.0):
        self.random, self.rec = random.Random(seed), Recording()
        self.sizes = [[self.random.randrange(1, 64) * 4096 + self.random.randrange(512) for _ in range(3)]
                      for _ in range(layers)]
        self.extra, self.grads, self.state = extra, [], []
        self.params = [self.rec.alloc(size[0], place="build") for size in self.sizes]

    def accumulate(self, microbatches, frames=None):
        """A step of several forward and backward passes, whose gradients are added up, and of the optimizer."""
        r, grads = self.rec, []
        for _ in range(microbatches):
            saved = [r.alloc(size[2], place="forward", frames=frames) for size in self.sizes]
            for size, address in zip(reversed(self.sizes), reversed(saved)):
                made = r.alloc(size[0], place="backward", frames=frames)
                r.free(address)
                if len(grads) < len(self.sizes):
                    grads.append(made)
                else:
                    r.free(made)
        optimizer = [frame("adam", "/x/torch/optim/adam.py", 5), frame("train", "/home/train.py", 9)] if frames is None else frames
        r.free(r.alloc(sum(size[0] for size in self.sizes), frames=optimizer))
        for address in grads:
            r.free(address)

    def step(self, factor=1, evaluate=False):
        r = self.rec
        saved = []
        for size in self.sizes:
            temporary = r.alloc(size[1] * factor, 1, "attention")
            saved.append(r.alloc(size[2] * factor, place="forward"))
            r.free(temporary)
            if self.random.random() < self.extra:
                r.free(r.alloc(self.random.randrange(1, 99) * 777, place="router"))
        loss = r.alloc(4)
        if evaluate:
            for address in saved:
                r.free(address)
            r.free(loss)
            return
        for address in self.grads:
            r.free(address)
        self.grads = []
        for size, address in zip(reversed(self.sizes), reversed(saved)):
            self.grads.append(r.alloc(size[0], place="backward"))
            temporary = r.alloc(size[1] * factor, place="backward")
            r.free(address)
            r.free(temporary)
        if not self.state:
            self.state = [r.alloc(2 * size[0], place="optimizer") for size in self.sizes]
        r.free(r.alloc(sum(size[0] for size in self.sizes), place="optimizer"))
        r.free(loss)


def write_steps(path, steps=4, seed=7, layers=3):
    """A recording of equal steps of a small model."""
    model = Model(seed, layers)
    for _ in range(steps):
        model.step()
    with open(path, "wb") as file:
        pickle.dump(model.rec.snapshot(), file, 4)
