"""torch.distributed process groups as communicators of the library (bp_comm, of kind "callback").

The library's collectives are torch's, in the library's own memory: no copies, on CPUs (gloo) and on GPUs (nccl, in the
order of the stream that the call is on). What torch raises inside one becomes the library's error with torch's words,
and is the cause of the exception.

Ranks compare before they do something together: sizes, dtypes, options. Where one differs, or has failed before, all
ranks get an exception that names it, and none is left waiting. That is a small exchange of host memory for each call;
trust() leaves it out. A rank that does not come is named after the time-out of the group (set_timeout()), and later
calls with the group fail at once. Calls with one group come from one thread at a time, in the same order on all ranks,
as torch's collectives do."""

import atexit
import ctypes
import datetime
import os
import struct
import threading
import time
import weakref
from typing import Any, Callable, Dict, List, NoReturn, Optional

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import AllgatherOptions

from .. import _abi
from .._library import call, core, made, recorded, status_of, words_of
from ..errors import OF_STATUS, CommError, Error, InvalidArgument, Mismatch, RankTimeout
from . import _tensors

_OPERATIONS = {
    _abi.BP_REDUCE_SUM: dist.ReduceOp.SUM,
    _abi.BP_REDUCE_MAX: dist.ReduceOp.MAX,
    _abi.BP_REDUCE_MIN: dist.ReduceOp.MIN
}
_WORDS = 384  # bytes of a rank's message that the others see
_FACTS = 16
_PATIENCE = 5.0  # seconds
_TOLD = struct.Struct(f"=i{_FACTS}q{_WORDS}s")


class GroupComm:
    """A process group that this process is in. Kept and made by comm_of(); close() ends it.

    `rank`, `ranks`: of this process in the group. `handle`: the bp_comm. `trusting`: calls do not compare first. The
    group itself is only looked at: destroying it is the caller's, and calls say so afterwards."""
    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = weakref.ref(group)
        self.rank, self.ranks = dist.get_rank(group), dist.get_world_size(group)
        self.name = f"torch group {group.group_name}"
        self.devices = _devices_of(group)
        self.trusting = False
        self.own_timeout = _timeout_of(group, self.devices)
        self.timeout = _from_environment() or self.own_timeout
        self._first_timeout = ""
        self.lock = threading.RLock()  # of calls: one at a time
        self.clients: Any = None  # of logprob and cp, made there
        self._raised: Optional[BaseException] = None
        self._functions = _abi.bp_comm_callbacks(
            rank=self.rank, ranks=self.ranks, **{
                field[0]: field[1](self._guarded(getattr(self, "_" + field[0])))
                for field in _abi.bp_comm_callbacks._fields_[3:7]
            })
        self.handle: Optional[ctypes.c_void_p] = made(core().bp_comm_create_callback, ctypes.byref(self._functions),
                                                      None, self.name.encode())

    @property
    def group(self) -> dist.ProcessGroup:
        """Raises CommError where the group was destroyed."""
        group = self._group()
        if group is None:
            raise CommError(f"{self.name} of {self.ranks} ranks was destroyed")
        return group

    def close(self) -> None:
        """Destroys the clients that were made for the group, then the communicator. Not collective. Lets a call of
        another thread finish, but waits for none that is stuck: what it uses is then left alone."""
        if not self.lock.acquire(timeout=_PATIENCE):
            return
        try:
            self._close()
        finally:
            self.lock.release()

    def _close(self) -> None:
        if self.clients is not None:
            self.clients.clear()
        if self.handle is not None:
            core().bp_comm_destroy(ctypes.byref(self.handle))
            self.handle = None

    # ---- calls -----------------------------------------------------------------------------------------------------

    def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Runs a call that may call back; an exception of torch inside is the cause of the raised one."""
        self._raised = None
        try:
            return function(*arguments)
        except Error as error:
            raised, self._raised = self._raised, None
            if raised is not None and not isinstance(raised, Exception):
                raise raised from error
            raise error from raised

    def agree(self, what: str, same: Dict[str, int], told: Dict[str, int],
              failure: Optional[BaseException] = None) -> List[Dict[str, int]]:
        """Collective: what all ranks are about to do. Returns `told` of each rank.

        `failure`: why this rank cannot take part; it is raised here, and on the other ranks an exception of its kind
        that names this one. Raises Mismatch, naming two ranks and the numbers, where `same` differs; CommError where
        the exchange fails."""
        facts = {**same, **told}
        for name, value in facts.items():
            if not -1 << 63 <= value < 1 << 63 and failure is None:
                failure = InvalidArgument(f"{what}: {name} is {value}: more than 64 bits")
        if failure is None:
            mine = _TOLD.pack(0, *_numbers(facts), b"")
        else:
            mine = _TOLD.pack(status_of(failure), *_numbers({}), words_of(failure)[:_WORDS])
        answers = self._exchanged(mine, what)
        everybody = [_TOLD.unpack_from(answers, r * _TOLD.size) for r in range(self.ranks)]
        if failure is not None:
            raise failure
        for r, (failed, *_, message) in enumerate(everybody):
            if failed:
                raise _of_rank(
                    failed, f"{what}: rank {r} of {self.ranks} ({self.name}) failed: "
                    f"{message.rstrip(bytes(1)).decode(errors='replace')}")
        all_facts = [dict(zip(facts, one[1:])) for one in everybody]
        for r, theirs in enumerate(all_facts):
            for name in same:
                if theirs[name] != all_facts[0][name]:
                    raise Mismatch(f"{what}: the ranks of {self.name} differ in {name}: rank 0 has "
                                   f"{_shown(name, all_facts[0][name])}, rank {r} has {_shown(name, theirs[name])}")
        return all_facts

    def _exchanged(self, mine: bytes, what: str) -> bytes:
        everybody = bytearray(len(mine) * self.ranks)
        try:
            self._gather_host(torch.frombuffer(bytearray(mine), dtype=torch.uint8),
                              torch.frombuffer(everybody, dtype=torch.uint8), what)
        except Error:
            raise
        except Exception as error:
            raise CommError(
                f"{what}: the ranks of {self.name} could not compare: {type(error).__name__}: {error}") from error
        return bytes(everybody)

    def _gather_host(self, mine: torch.Tensor, everybody: torch.Tensor, what: str = "an exchange") -> None:
        if self._first_timeout:
            raise RankTimeout(f"{what}: {self.name} is broken: {self._first_timeout}")
        group = self.group
        arrivals = _Arrivals(group, self.rank, self.ranks)
        began = time.monotonic()
        try:
            if "cpu" in self.devices:
                self._gather_cpu(mine, everybody, group)
            else:
                self._gather_cuda(mine, everybody, group)
        except Exception as error:
            late = time.monotonic() - began >= self.timeout
            missing = arrivals.tell_missing() if late else arrivals.hear_missing()
            if not missing:
                raise
            self._first_timeout = (f"{what} over {self.name}: {missing} not answered within {self.timeout:g} s; look "
                                   "there for a process that is stopped, stuck or dead, then end all ranks")
            raise RankTimeout(self._first_timeout) from error

    def _gather_cpu(self, mine: torch.Tensor, everybody: torch.Tensor, group: dist.ProcessGroup) -> None:
        if self.timeout == self.own_timeout:
            dist.all_gather_into_tensor(everybody, mine, group=group)
            return
        options = AllgatherOptions()
        options.timeout = datetime.timedelta(seconds=self.timeout)
        group._allgather_base(everybody, mine, options).wait()

    def _gather_cuda(self, mine: torch.Tensor, everybody: torch.Tensor, group: dist.ProcessGroup) -> None:
        cuda: Any = torch.cuda
        until = time.monotonic() + self.timeout
        with cuda.stream(cuda.Stream()):  # not behind the work of the current one
            gathered = torch.empty(everybody.numel(), dtype=torch.uint8, device="cuda")
            work: Any = dist.all_gather_into_tensor(gathered, mine.cuda(), group=group, async_op=True)
            while not work.is_completed():  # copying would wait for ever
                if time.monotonic() >= until:
                    raise TimeoutError(f"NCCL has not gathered within {self.timeout:g} s")
                time.sleep(2e-5)
            work.wait()
            everybody.copy_(gathered)

    # ---- what the library calls ------------------------------------------------------------------------------------

    def _guarded(self, function: Callable[..., None]) -> Callable[..., int]:
        def guarded(user: Any, *arguments: Any) -> int:
            try:
                function(*arguments)
                return _abi.BP_OK
            except BaseException as error:  # nothing may pass through the library's frames
                self._raised = error
                return recorded(error, f"{self.name}: ")

        return guarded

    def _exchange(self, mine: int, size: int, everybody: int) -> None:
        if size:
            self._gather_host(_tensors.memory(mine, size, torch.uint8, False),
                              _tensors.memory(everybody, size * self.ranks, torch.uint8, False))

    def _ordered(self, stream: int, size: int, job: Callable[[bool], None]) -> None:
        native = _tensors.native_of(stream)
        if native is None:
            call(core().bp_stream_synchronize, stream)
        if size == 0:
            return
        if native is None:
            job(False)
            return
        cuda: Any = torch.cuda
        with cuda.stream(cuda.ExternalStream(native) if native > 2 else cuda.default_stream()):
            job(True)

    def _all_gather(self, mine: int, everybody: int, size: int, stream: int) -> None:
        self._ordered(
            stream, size,
            lambda cuda: dist.all_gather_into_tensor(_tensors.memory(everybody, size * self.ranks, torch.uint8, cuda),
                                                     _tensors.memory(mine, size, torch.uint8, cuda), group=self.group))

    def _reduced(self, source: int, target: int, counts: List[int], number: int, stream: int,
                 job: Callable[[torch.Tensor, torch.Tensor], Any]) -> None:
        dtype = _tensors.TORCH_DTYPES.get(number)
        if dtype is None:
            raise OF_STATUS[_abi.BP_ERR_UNSUPPORTED](f"{self.name}: reductions of dtype {number}: " +
                                                     ", ".join(str(known) for known in _tensors.TORCH_DTYPES.values()) +
                                                     " are possible")
        self._ordered(
            stream, counts[1], lambda cuda: job(*(_tensors.memory(address, count * dtype.itemsize, dtype, cuda)
                                                  for address, count in zip((source, target), counts))))

    def _all_reduce(self, source: int, target: int, count: int, number: int, reduction: int, stream: int) -> None:
        def job(given: torch.Tensor, reduced: torch.Tensor) -> None:
            if source != target:
                reduced.copy_(given)
            dist.all_reduce(reduced, op=_OPERATIONS[reduction], group=self.group)

        self._reduced(source, target, [count, count], number, stream, job)

    def _reduce_scatter(self, source: int, target: int, count: int, number: int, reduction: int, stream: int) -> None:
        self._reduced(
            source, target,
            [count * self.ranks, count], number, stream, lambda given, reduced: dist.reduce_scatter_tensor(
                reduced, given, op=_OPERATIONS[reduction], group=self.group))


# ---- ranks that do not answer --------------------------------------------------------------------------------------

_VARIABLE = "BUCKETPOOL_COMM_TIMEOUT"
_counts: Dict[str, int] = {}  # of arrivals, by group: they outlive communicators, as the store's keys do


class _Arrivals:
    """The arrival of this rank at an exchange, noted in the store of the group, and who else has noted theirs.

    A gather that times out does not tell which ranks are missing. The store does: each rank keeps one key there, the
    number of its arrivals. The first rank that times out leaves the names to the others, whose connections to it break
    at once."""
    def __init__(self, group: dist.ProcessGroup, rank: int, ranks: int) -> None:
        self._store = _store_of(group)
        self._ranks = ranks
        self._number = _counts[group.group_name] = _counts.get(group.group_name, 0) + 1
        try:
            if self._store is not None:
                self._store.set(f"bucketpool/{rank}", str(self._number))
        except Exception:  # noqa: B902: exchanges can do without the store
            self._store = None

    def tell_missing(self) -> str:
        """"rank 2 of 4 has", "ranks 2, 5 of 8 have"; "" where all have come."""
        if self._store is None:
            return f"ranks of {self._ranks} (it is unknown which: the group shows no store) have"
        missing = self._bounded(self._absent)
        if missing is None:
            return (f"ranks of {self._ranks} (it is unknown which: the store of the group does not answer either, so "
                    "look at the rank that serves it, rank 0 as a rule, first) have")
        if not missing:
            return ""
        names = ", ".join(map(str, missing[:8])) + (" ..." if len(missing) > 8 else "")
        one = len(missing) == 1
        words = f"{'rank' if one else 'ranks'} {names} of {self._ranks} {'has' if one else 'have'}"
        self._bounded(lambda: self._store.set(f"bucketpool/missing/{self._number}", words))
        return words

    def hear_missing(self) -> str:
        """The message of the first rank that timed out in this exchange; "" if none arrives within a few
        seconds.
        """
        key = f"bucketpool/missing/{self._number}"

        def listen() -> str:
            until = time.monotonic() + _PATIENCE
            while not self._store.check([key]):
                if time.monotonic() > until:
                    return ""
                time.sleep(0.05)
            return str(self._store.get(key).decode())

        return (self._bounded(listen) or "") if self._store is not None else ""

    def _absent(self) -> List[int]:
        keys = [f"bucketpool/{rank}" for rank in range(self._ranks)]
        return [
            rank for rank, key in enumerate(keys)
            if not self._store.check([key]) or int(self._store.get(key)) < self._number
        ]

    @staticmethod
    def _bounded(ask: Callable[[], Any]) -> Any:
        """None if the store does not answer: its process may be the missing one."""
        answers: List[Any] = []

        def run() -> None:
            try:
                answers.append(ask())
            except Exception:  # noqa: B902: a store that is gone raises what it likes
                pass

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        thread.join(2 * _PATIENCE)
        return answers[0] if answers else None


def _store_of(group: dist.ProcessGroup) -> Any:
    try:
        return group.get_group_store()
    except AttributeError:  # before PyTorch 2.7
        known = dist.distributed_c10d._world.pg_map.get(group)
        return known[1] if known else None
    except RuntimeError:  # made without one
        return None


def _timeout_of(group: dist.ProcessGroup, devices: List[str]) -> float:
    """Seconds, of the group itself."""
    options = getattr(group._get_backend(torch.device("cpu" if "cpu" in devices else "cuda")), "options", None)
    timeout = getattr(options, "_timeout", None) or dist.distributed_c10d.default_pg_timeout
    return float(timeout.total_seconds())


def _from_environment() -> float:
    value = os.environ.get(_VARIABLE, "")
    if not value:
        return 0.0
    if not value.isascii() or not value.isdigit() or int(value) > 1000000:
        raise InvalidArgument(f"{_VARIABLE}: expected seconds in [0, 1000000] (0: no time-out), got {value!r}")
    return float(value)


def _numbers(facts: Dict[str, int]) -> List[int]:
    if len(facts) > _FACTS:
        raise InvalidArgument(f"{len(facts)} facts to compare: {_FACTS} are possible")
    return list(facts.values()) + [0] * (_FACTS - len(facts))


def _shown(name: str, value: int) -> str:
    if name == "dtype":
        return str(_tensors.TORCH_DTYPES.get(value, value))
    return str(struct.unpack("f", struct.pack("i", value))[0] if name == "temperature" else value)


def _of_rank(status: int, words: str) -> Error:
    error = OF_STATUS.get(status, CommError)(words)
    error.status = status
    return error


def _devices_of(group: dist.ProcessGroup) -> List[str]:
    return [entry.split(":")[0] for entry in dist.get_backend_config(group).split(",")]


# ---- groups --------------------------------------------------------------------------------------------------------

_lock = threading.RLock()
_comms: Dict[int, GroupComm] = {}


def _not_a_group(group: Any, because: str) -> NoReturn:
    raise InvalidArgument(f"{group!r}: expected a process group of this process; {because}")


def comm_of(group: Optional[dist.ProcessGroup]) -> Optional[GroupComm]:
    """The communicator of a process group, always the same one; None for None and for groups of one rank.

    `group` None means this process alone, not the default group, which is torch.distributed.group.WORLD. Not
    collective. Raises InvalidArgument (this process is not in the group, or the group was destroyed).
    """
    if group is None:
        return None
    if not isinstance(group, dist.ProcessGroup):
        _not_a_group(group, "new_group() gives one to its members only; None is this process alone")
    with _lock:
        known = _comms.get(id(group))
        try:  # of a known one, too: whoever still has the object may have destroyed the group
            rank, ranks = dist.get_rank(group), dist.get_world_size(group)
        except (ValueError, RuntimeError) as error:
            _not_a_group(group, str(error))
        if known is not None and known._group() is group:
            return known
        if rank < 0:
            _not_a_group(group, "its rank is -1")
        if ranks == 1:
            return None
        for key in [key for key, comm in _comms.items() if comm._group() is None or key == id(group)]:
            _comms.pop(key).close()
        _comms[id(group)] = GroupComm(group)
        return _comms[id(group)]


def trust(group: dist.ProcessGroup, trusting: bool = True) -> None:
    """Calls with this group no longer compare their arguments: no exchange but their own, and no waits of the
    host on GPUs.

    If a rank then differs or fails, the others wait until torch's timeout. Call it on all ranks. Vocabulary
    bounds must then be given.
    """
    comm = comm_of(group)
    if comm is not None:
        comm.trusting = trusting


def set_timeout(group: dist.ProcessGroup, seconds: Optional[float]) -> None:
    """Sets the time-out of exchanges with this group, in seconds.

    None: the timeout of the group, which is the default unless BUCKETPOOL_COMM_TIMEOUT (seconds) is set. Use
    the same value on all ranks, longer than the longest time between the arrivals of two ranks. RankTimeout
    names the missing ranks and is raised by all later calls with the group: end the job. Collectives of
    tensors keep torch's timeout.
    """
    if seconds is not None and not 0 < seconds <= 1e6:
        raise InvalidArgument(f"set_timeout: expected seconds in (0, 1000000], got {seconds!r}")
    comm = comm_of(group)
    if comm is not None:
        comm.timeout = comm.own_timeout if seconds is None else float(seconds)


@atexit.register
def close() -> None:
    """Closes all communicators and their clients, which are created again on demand. Not collective."""
    with _lock:
        for comm in _comms.values():
            comm.close()
        _comms.clear()
