"""bucketpool-logprob through ctypes, and communicators for it: declarations by hand from cp.h, loss.h and comm.h.

The library brings the core along: one object has the functions of both."""

import ctypes
import threading
from concurrent.futures import ThreadPoolExecutor
from ctypes import (POINTER, c_char_p, c_double, c_float, c_int, c_int32, c_int64, c_size_t, c_uint8, c_uint32,
                    c_uint64, c_void_p)

import bindings as b
from bindings import HANDLE, OUT, Sized, check

IO, COMM = 10, 15

# bp_cp_order, bp_cp_shift
PACKED, PADDED, LOCAL, GATHERED = 0, 1, 2, 3
KEEP, NEXT, NEXT_WRAPPED = 0, 1, 2

# bp_loss_gradients
AVERAGED, SUMMED = 1, 2

INT32 = 18


class SplitConfig(Sized):
    _fields_ = [("size", c_size_t), ("cu_seqlens", c_void_p), ("cu_padded", c_void_p), ("cu_dtype", c_uint32),
                ("sequences", c_uint64), ("ranks", c_uint32), ("rank", c_uint32), ("multiple", c_uint64),
                ("total_multiple", c_uint64), ("last_is_dummy", c_int32), ("comm", HANDLE)]


class SplitInfo(Sized):
    _fields_ = [("size", c_size_t), ("ranks", c_uint32), ("rank", c_uint32)] + [(name, c_uint64) for name in (
        "sequences", "data_sequences", "data_tokens", "packed_tokens", "padded_tokens", "local_tokens", "longest",
        "fingerprint")]


class CpTensor(ctypes.Structure):
    _fields_ = [("data", c_void_p), ("tokens", c_uint64), ("token_bytes", c_uint64), ("stride", c_int64)]


class CpConfig(Sized):
    _fields_ = [("size", c_size_t), ("comm", HANDLE), ("max_gathered_bytes", c_uint64), ("threads", c_uint32),
                ("trusting", c_int32)]


class Rearrangement(Sized):
    _fields_ = [("size", c_size_t), ("from_order", c_uint32), ("to_order", c_uint32), ("source", CpTensor),
                ("to", CpTensor), ("shift", c_uint32), ("fill", c_uint8 * 16), ("fill_bytes", c_uint32)]


class TokenValues(ctypes.Structure):
    _fields_ = [("data", c_void_p), ("batch_stride", c_int64), ("stride", c_int64)]


class LossConfig(Sized):
    PLACE = ("tp", "cp", "dp", "tp_rank", "cp_rank", "dp_rank")
    _fields_ = [("size", c_size_t)] + [(name, c_uint32) for name in PLACE] + [
        ("comm", HANDLE), ("max_sequences", c_uint64), ("epsilon", c_double), ("gradients", c_uint32),
        ("threads", c_uint32)]


class LossValues(Sized):
    PLANES = ("mask", "logprob", "entropy", "logit_min", "logit_max")
    _fields_ = [("size", c_size_t), ("tokens", c_uint64)] + [(name, TokenValues) for name in PLANES]


class LossStatistics(Sized):
    COUNTS = ("sequences", "tokens", "valid", "perplexity_sequences")
    SUMS = ("logprob_sum", "entropy_sum")
    NUMBERS = ("perplexity_sum", "logit_min", "logit_max", "epsilon", "loss", "entropy", "perplexity")
    _fields_ = [("size", c_size_t), ("sequences", c_uint64), ("tokens", c_uint64), ("valid", c_uint64),
                ("logprob_sum", c_double), ("entropy_sum", c_double), ("perplexity_sum", c_double),
                ("perplexity_sequences", c_uint64)] + [(name, c_double) for name in (
                    "logit_min", "logit_max", "epsilon", "loss", "entropy", "perplexity")]


class LossSequence(Sized):
    _fields_ = [("size", c_size_t), ("valid", c_uint64), ("logprob_sum", c_double), ("entropy_sum", c_double),
                ("perplexity", c_double)]


Exchange = ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p, c_uint64, c_void_p)
AllGather = ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p, c_void_p, c_uint64, c_void_p)


class CommCallbacks(Sized):
    _fields_ = [("size", c_size_t), ("rank", c_uint32), ("ranks", c_uint32), ("exchange", Exchange),
                ("all_gather", AllGather), ("all_reduce", c_void_p), ("reduce_scatter", c_void_p), ("abort", c_void_p),
                ("destroy", c_void_p)]


STATUS_FUNCTIONS = {
    "bp_error_record": [c_int, c_char_p],
    "bp_comm_create_callback": [POINTER(CommCallbacks), c_void_p, c_char_p, OUT],
    "bp_cp_split_config_init": [POINTER(SplitConfig), c_size_t],
    "bp_cp_split_create": [POINTER(SplitConfig), OUT],
    "bp_cp_split_info_get": [HANDLE, POINTER(SplitInfo)],
    "bp_cp_split_cu_seqlens": [HANDLE, c_int, c_uint32, c_uint64, c_void_p],
    "bp_cp_split_map": [HANDLE, c_int, c_int, c_int, c_uint64, POINTER(c_int64)],
    "bp_cp_config_init": [POINTER(CpConfig), c_size_t],
    "bp_cp_create": [HANDLE, POINTER(CpConfig), OUT],
    "bp_cp_rearrangement_init": [POINTER(Rearrangement), c_size_t],
    "bp_cp_rearrange": [HANDLE, HANDLE, POINTER(Rearrangement), HANDLE],
    "bp_loss_config_init": [POINTER(LossConfig), c_size_t],
    "bp_loss_create": [HANDLE, POINTER(LossConfig), OUT],
    "bp_loss_begin": [HANDLE],
    "bp_loss_values_init": [POINTER(LossValues), c_size_t],
    "bp_loss_add": [HANDLE, HANDLE, POINTER(LossValues), HANDLE],
    "bp_loss_reduce": [HANDLE, c_int, HANDLE],
    "bp_loss_count_set": [HANDLE, c_uint64],
    "bp_loss_seed": [HANDLE, HANDLE, c_uint64, POINTER(TokenValues), c_float, POINTER(TokenValues), HANDLE],
    "bp_loss_statistics_init": [POINTER(LossStatistics), c_size_t],
    "bp_loss_statistics_get": [HANDLE, POINTER(LossStatistics)],
    "bp_loss_statistics_merge": [POINTER(LossStatistics), POINTER(LossStatistics)],
    "bp_loss_sequence_get": [HANDLE, c_uint64, POINTER(LossSequence)],
}

OTHER_FUNCTIONS = {
    "bp_comm_destroy": (None, [OUT]),
    "bp_cp_split_destroy": (None, [OUT]),
    "bp_cp_destroy": (None, [OUT]),
    "bp_loss_destroy": (None, [OUT]),
    "bp_loss_sequence_count": (c_uint64, [HANDLE]),
}


def load(path):
    lib = b.load(path)
    b.declare(lib, STATUS_FUNCTIONS, OTHER_FUNCTIONS)
    return lib


def config_of(lib, kind, init, **values):
    """A struct as its init function fills it, and then some fields."""
    config = kind()
    check(lib, getattr(lib, init)(ctypes.byref(config), ctypes.sizeof(config)), init)
    for name, value in values.items():
        setattr(config, name, value)
    return config


class Room:
    """Where `ranks` threads exchange bytes: a callback communicator for each, kept for the life of the process."""

    PATIENCE_S = 20

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
    """Threads that are ranks, with a device and streams that live as long as the process."""

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
        """function(rank, communicator, stream) on each rank at once: what they return. Nobody waits for who raises."""
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
