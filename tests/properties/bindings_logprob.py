# SPDX-License-Identifier: Apache-2.0
"""bucketpool-logprob with shorter names, and communicators for it.

The library links the core: one object has the functions of both."""

import ctypes
import threading
from concurrent.futures import ThreadPoolExecutor

import bindings as b
from bindings import COMM, INT32, IO, _abi, check, constants  # noqa: F401

PACKED, PADDED, LOCAL, GATHERED = constants("CP_", "PACKED PADDED LOCAL GATHERED")
KEEP, NEXT, NEXT_WRAPPED = constants("CP_", "KEEP NEXT NEXT_WRAPPED")
AVERAGED, SUMMED = constants("LOSS_", "AVERAGED SUMMED")

SplitConfig, SplitInfo, CpTensor, CpConfig, Rearrangement = (
    _abi.bp_cp_split_config, _abi.bp_cp_split_info, _abi.bp_cp_tensor, _abi.bp_cp_config, _abi.bp_cp_rearrangement)
TokenValues, CommCallbacks = _abi.bp_token_values, _abi.bp_comm_callbacks
Exchange, AllGather = (dict(CommCallbacks._fields_)[name] for name in ("exchange", "all_gather"))


class LossConfig(_abi.bp_loss_config):
    PLACE = ("tp", "cp", "dp", "tp_rank", "cp_rank", "dp_rank")


class LossValues(_abi.bp_loss_values):
    PLANES = tuple(name for name, kind in _abi.bp_loss_values._fields_ if kind is TokenValues)


class LossStatistics(_abi.bp_loss_statistics):
    COUNTS = tuple(name for name, kind in _abi.bp_loss_statistics._fields_[1:] if kind is ctypes.c_uint64)
    SUMS = ("logprob_sum", "entropy_sum")
    NUMBERS = tuple(name for name, kind in _abi.bp_loss_statistics._fields_
                    if kind is ctypes.c_double and name not in ("logprob_sum", "entropy_sum"))


def load(path):
    return b.load(path, ("core", "logprob"))


def config_of(lib, kind, init, **values):
    """A struct with the defaults of its init function and the given fields."""
    config = kind()
    check(lib, getattr(lib, init)(ctypes.byref(config), ctypes.sizeof(config)), init)
    for name, value in values.items():
        setattr(config, name, value)
    return config


class Room:
    """Exchanges bytes between `ranks` threads: a callback communicator for each, kept until the process ends."""

    PATIENCE_S = 120

    def __init__(self, lib, ranks):
        self.lib, self.ranks, self.slots = lib, ranks, [b""] * ranks
        self.barrier = threading.Barrier(ranks, timeout=self.PATIENCE_S)
        self.kept, self.comms = [], []
        for rank in range(ranks):
            callbacks = CommCallbacks(rank=rank, ranks=ranks, exchange=Exchange(self.exchange(rank)),
                                      all_gather=AllGather(self.all_gather(rank)))
            self.kept.append(callbacks)
            self.comms.append(b.made(lib, "bp_comm_create_callback", ctypes.byref(callbacks), None, b"threads"))

    def meet(self, rank, mine, count, everything):
        try:
            self.slots[rank] = ctypes.string_at(mine, count)
            self.barrier.wait()
            if any(len(slot) != count for slot in self.slots):
                return self.lib.bp_error_record(IO, b"ranks exchange different numbers of bytes")
            ctypes.memmove(everything, b"".join(self.slots), count * self.ranks)
            self.barrier.wait()
            return b.OK
        except threading.BrokenBarrierError:
            return self.lib.bp_error_record(IO, b"not all ranks came")

    def exchange(self, rank):
        return lambda _, mine, count, everything: self.meet(rank, mine, count, everything)

    def all_gather(self, rank):
        def gather(_, mine, everything, count, stream):
            status = self.lib.bp_stream_synchronize(stream)
            return status if status != b.OK else self.meet(rank, mine, count, everything)
        return gather


class Team:
    """Threads as ranks, with a device and streams that are kept until the process ends."""

    MOST = 8

    def __init__(self, lib):
        self.lib = lib
        self.device = b.made(lib, "bp_device_create_host", None)
        self.streams = [b.made(lib, "bp_stream_create", self.device, b"rank") for _ in range(self.MOST)]
        self.threads = ThreadPoolExecutor(self.MOST)
        self.rooms = {}

    def room(self, ranks):
        if ranks not in self.rooms:
            self.rooms[ranks] = Room(self.lib, ranks)
        return self.rooms[ranks]

    def run(self, ranks, function):
        """Runs function(rank, communicator, stream) on all ranks at once and returns the results. An exception does not
        block the others.
        """
        room = self.room(ranks)

        def guarded(rank):
            try:
                return function(rank, room.comms[rank], self.streams[rank])
            except BaseException:
                room.barrier.abort()
                raise

        jobs = [self.threads.submit(guarded, rank) for rank in range(ranks)]
        errors = [error for error in (job.exception() for job in jobs) if error is not None]
        if errors:
            room.barrier.reset()
            raise next((error for error in errors if "not all ranks came" not in str(error)), errors[0])
        return [job.result() for job in jobs]
