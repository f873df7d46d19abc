# SPDX-License-Identifier: Apache-2.0
"""Process groups of torch.distributed as communicators of the library, for logprob, lm_head and cp.

    from bucketpool.torch import comm

    comm.set_timeout(tp_group, 60)      # seconds until RankTimeout names the missing ranks
    comm.trust(tp_group)                # later calls do not compare their arguments

Calls with one group are collective: one thread at a time, in the same order on all ranks. Before each call ranks
compare sizes, dtypes and options by a small all-gather of host memory. A difference, or an error of one rank, is
an exception on all ranks that names the rank. trust() leaves the comparison out.

A missing rank ends the comparison after the time-out of the group: RankTimeout, also at once for later calls.
Collectives of tensors are those of torch, in memory of the library; an exception in one is the cause of the
CommError.
"""

import atexit
import ctypes
import datetime
import os
import struct
import threading
import time
import weakref
from typing import Any, Callable, Dict, List, NoReturn, Optional, Tuple

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import AllgatherOptions

from .. import _abi
from .._abi import Uncopied
from .._library import call, core, made, recorded, status_of, words_of
from ..errors import OF_STATUS, CommError, Error, InvalidArgument, Mismatch, RankTimeout, Unsupported
from . import _tensors

__all__ = ["close", "set_timeout", "trust"]

_OPERATIONS = {
    _abi.BP_REDUCE_SUM: dist.ReduceOp.SUM,
    _abi.BP_REDUCE_MAX: dist.ReduceOp.MAX,
    _abi.BP_REDUCE_MIN: dist.ReduceOp.MIN
}
_WORDS = 384  # bytes of a rank's message that the others see
_FACTS = 20
_FLOATS = "temperature", "soft_cap", "beta"  # numbers that are compared by the bits of their float32
_PATIENCE = 5.0  # seconds, for running calls and for answers of the store
_SETTLING = 0.5  # seconds, for gloo's thread at exit
_TOLD = struct.Struct(f"=i{_FACTS}q{_WORDS}s")


class GroupComm(Uncopied):
    """The communicator of a process group, made by comm_of(). It holds no reference to the group.

    Attributes: rank, ranks (of this process in the group); handle (bp_comm); trusting (see trust()); timeout
    (seconds, see set_timeout()).
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = weakref.ref(group)
        self.rank, self.ranks = dist.get_rank(group), dist.get_world_size(group)
        self.name = f"torch group {group.group_name}"
        self.devices = _devices_of(group)
        self.trusting = False
        self.own_timeout = _timeout_of(group, self.devices)
        self.timeout = _from_environment() or self.own_timeout
        self._first_timeout = ""
        self.lock = threading.RLock()  # one call at a time
        self.clients: Any = None  # Clients of logprob, lm_head and cp, created by _clients.of()
        self._raised: Optional[BaseException] = None
        self._last: Tuple[Any, ...] = ()  # tensors of the last collective of the host, see _settle()
        self._functions = _abi.bp_comm_callbacks(
            rank=self.rank, ranks=self.ranks, **{
                field[0]: field[1](self._guarded(getattr(self, "_" + field[0])))
                for field in _abi.bp_comm_callbacks._fields_[3:7]
            })
        self.handle: Optional[ctypes.c_void_p] = made(core().bp_comm_create_callback, ctypes.byref(self._functions),
                                                      None, self.name.encode())

    @property
    def group(self) -> dist.ProcessGroup:
        """The process group. Raises CommError if it was destroyed."""
        group = self._group()
        if group is None:
            raise CommError(f"{self.name} of {self.ranks} ranks was destroyed; call it before destroy_process_group")
        return group

    def close(self) -> None:
        """Destroys the clients of the group and the communicator. Not collective.

        Waits a few seconds for a call of another thread. If the call is blocked, nothing is destroyed, because the
        call uses it.
        """
        if not self.lock.acquire(timeout=_PATIENCE):
            return
        try:
            self._close()
        finally:
            self.lock.release()

    def _close(self) -> None:
        if self.clients is not None:
            self.clients.clear()
        self._settle()
        if self.handle is not None:
            core().bp_comm_destroy(ctypes.byref(self.handle))
            self.handle = None

    def _settle(self) -> None:
        """Waits until gloo's thread has dropped its references to the tensors of the last collective.

        It drops them after the waiting thread has continued. If it drops the last one while the interpreter exits,
        it waits for the GIL in a destructor, and the process ends with "terminate called without an active exception".
        """
        until = time.monotonic() + _SETTLING
        while not self._first_timeout and any(map(_is_shared, self._last)) and time.monotonic() < until:
            time.sleep(1e-4)
        self._last = ()

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
        """Collective: compares the arguments of a call on all ranks. Returns `told` of each rank.

        - same: numbers that must be equal on all ranks; told: numbers that may differ
        - failure: an exception of this rank. It is raised here, and on the other ranks as an exception of the same
          kind that names this rank.

        Raises Mismatch (`same` differs; with two ranks and their numbers), CommError, RankTimeout.
        """
        facts = {**same, **told}
        for name, value in facts.items():
            if not -1 << 63 <= value < 1 << 63 and failure is None:
                failure = InvalidArgument(f"{what}: {name} is {value}; pass a number of at most 64 bits")
        if failure is None:
            mine = _TOLD.pack(0, *_numbers(facts), what.encode()[:_WORDS])
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
        called = [message.rstrip(bytes(1)).decode(errors="replace") for *_, message in everybody]
        for r, theirs in enumerate(called):
            if theirs != called[0]:
                raise Mismatch(f"the ranks of {self.name} call different functions: rank 0 calls {called[0]}, rank {r} "
                               f"calls {theirs}; call the same on all ranks, in the same order")
        all_facts = [dict(zip(facts, one[1:])) for one in everybody]
        for r, theirs in enumerate(all_facts):
            for name in same:
                if theirs[name] != all_facts[0][name]:
                    raise Mismatch(f"{what}: the ranks of {self.name} differ in {name}: rank 0 has "
                                   f"{_shown(name, all_facts[0][name])}, rank {r} has {_shown(name, theirs[name])}; "
                                   "pass the same on all ranks")
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
                f"{what}: the ranks of {self.name} could not compare their arguments: {type(error).__name__}: {error}"
            ) from error
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
                                   "for a stopped, blocked or dead process there, then end all ranks")
            raise RankTimeout(self._first_timeout) from error

    def _gather_cpu(self, mine: torch.Tensor, everybody: torch.Tensor, group: dist.ProcessGroup) -> None:
        self._last = (everybody, mine)
        if self.timeout == self.own_timeout:
            dist.all_gather_into_tensor(everybody, mine, group=group)
            return
        options = AllgatherOptions()
        options.timeout = datetime.timedelta(seconds=self.timeout)
        group._allgather_base(everybody, mine, options).wait()

    def _gather_cuda(self, mine: torch.Tensor, everybody: torch.Tensor, group: dist.ProcessGroup) -> None:
        cuda: Any = torch.cuda
        until = time.monotonic() + self.timeout
        with cuda.stream(cuda.Stream()):  # not ordered after the work of the current stream
            gathered = torch.empty(everybody.numel(), dtype=torch.uint8, device="cuda")
            work: Any = dist.all_gather_into_tensor(gathered, mine.cuda(), group=group, async_op=True)
            while not work.is_completed():  # without polling, a missing rank would block the copy forever
                if time.monotonic() >= until:
                    raise TimeoutError(f"NCCL all-gather did not complete within {self.timeout:g} s")
                time.sleep(2e-5)
            work.wait()
            everybody.copy_(gathered)

    # ---- callbacks of the library ----------------------------------------------------------------------------------

    def _guarded(self, function: Callable[..., None]) -> Callable[..., int]:
        def guarded(user: Any, *arguments: Any) -> int:
            try:
                function(*arguments)
                return _abi.BP_OK
            except BaseException as error:  # exceptions must not cross C frames
                self._raised = error
                return recorded(error, f"{self.name}: ")

        return guarded

    def _exchange(self, mine: int, size: int, everybody: int) -> None:
        if size:
            self._gather_host(_tensors.memory(mine, size, torch.uint8, False),
                              _tensors.memory(everybody, size * self.ranks, torch.uint8, False))

    def _ordered(self, address: int, size: int, job: Callable[[bool], None]) -> None:
        stream = _abi.bp_stream(address)
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
        def job(cuda: bool) -> None:
            self._last = (_tensors.memory(everybody, size * self.ranks, torch.uint8, cuda),
                          _tensors.memory(mine, size, torch.uint8, cuda))
            dist.all_gather_into_tensor(*self._last, group=self.group)

        self._ordered(stream, size, job)

    def _reduced(self, source: int, target: int, counts: List[int], number: int, stream: int,
                 job: Callable[[torch.Tensor, torch.Tensor], Any]) -> None:
        dtype = _tensors.TORCH_DTYPES.get(number)
        if dtype is None:
            known = ", ".join(str(known) for known in _tensors.TORCH_DTYPES.values())
            raise Unsupported(f"{self.name}: reductions of dtype {number} are unsupported; use one of {known}")
        self._ordered(
            stream, counts[1], lambda cuda: job(*(_tensors.memory(address, count * dtype.itemsize, dtype, cuda)
                                                  for address, count in zip((source, target), counts))))

    def _all_reduce(self, source: int, target: int, count: int, number: int, reduction: int, stream: int) -> None:
        def job(given: torch.Tensor, reduced: torch.Tensor) -> None:
            if source != target:
                reduced.copy_(given)
            self._last = (reduced, )
            dist.all_reduce(reduced, op=_OPERATIONS[reduction], group=self.group)

        self._reduced(source, target, [count, count], number, stream, job)

    def _reduce_scatter(self, source: int, target: int, count: int, number: int, reduction: int, stream: int) -> None:
        def job(given: torch.Tensor, reduced: torch.Tensor) -> None:
            self._last = (reduced, given)
            dist.reduce_scatter_tensor(reduced, given, op=_OPERATIONS[reduction], group=self.group)

        self._reduced(source, target, [count * self.ranks, count], number, stream, job)


def _is_shared(tensor: Any) -> bool:
    """True if another thread has a reference to a tensor of the host or to its storage."""
    count: Any = torch._C._storage_Use_Count
    return not tensor.is_cuda and (tensor._use_count() > 1 or count(tensor.untyped_storage()._cdata) > 2)


# ---- missing ranks -------------------------------------------------------------------------------------------------

_VARIABLE = "BUCKETPOOL_COMM_TIMEOUT"
_counts: Dict[str, int] = {}  # arrivals by group; they outlive communicators, as the store's keys do


class _Arrivals:
    """Finds the missing ranks of an exchange, through the store of the group.

    An all-gather that times out does not name missing ranks. So each rank counts its exchanges in one key of the store.
    The first rank that times out writes the names of the missing ranks there for the other ranks, whose connections
    to it break at once.
    """

    def __init__(self, group: dist.ProcessGroup, rank: int, ranks: int) -> None:
        self._store = _store_of(group)
        self._ranks = ranks
        self._number = _counts[group.group_name] = _counts.get(group.group_name, 0) + 1
        try:
            if self._store is not None:
                self._store.set(f"bucketpool/{rank}", str(self._number))
        except Exception:  # noqa: B902: exchanges work without the store
            self._store = None

    def tell_missing(self) -> str:
        """The missing ranks, as "rank 2 of 4 has" or "ranks 2, 5 of 8 have"; "" if all have arrived."""
        if self._store is None:
            return f"some of {self._ranks} ranks (unknown which: the group has no store) have"
        missing = self._bounded(self._absent)
        if missing is None:
            return (f"some of {self._ranks} ranks (unknown which: the store of the group does not answer either; look "
                    "first at the rank that serves it, usually rank 0) have")
        if not missing:
            return ""
        names = ", ".join(map(str, missing[:8])) + (" ..." if len(missing) > 8 else "")
        one = len(missing) == 1
        words = f"{'rank' if one else 'ranks'} {names} of {self._ranks} {'has' if one else 'have'}"
        self._bounded(lambda: self._store.set(f"bucketpool/missing/{self._number}", words))
        return words

    def hear_missing(self) -> str:
        """The names that the first rank to time out wrote; "" if there are none within a few seconds."""
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
        """The result of `ask`, or None if the store does not answer, because its process may be missing."""
        answers: List[Any] = []

        def run() -> None:
            try:
                answers.append(ask())
            except Exception:  # noqa: B902: a closed store raises various exceptions
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
    except RuntimeError:  # a group without a store
        return None


def _timeout_of(group: dist.ProcessGroup, devices: List[str]) -> float:
    """The group's own time-out, in seconds."""
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
        raise InvalidArgument(f"agree: {len(facts)} numbers to compare; pass at most {_FACTS}")
    return list(facts.values()) + [0] * (_FACTS - len(facts))


def _shown(name: str, value: int) -> str:
    if name in ("dtype", "round_to"):
        return str(_tensors.TORCH_DTYPES.get(value, value))
    if name == "temperature" and value == 0:
        return "one for each token"
    return str(struct.unpack("f", struct.pack("i", value))[0] if name in _FLOATS else value)


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
        _not_a_group(group, "new_group() returns one to members only; pass None for this process alone")
    with _lock:
        known = _comms.get(id(group))
        try:  # also for a known group, which may have been destroyed
            rank, ranks = dist.get_rank(group), dist.get_world_size(group)
        except (ValueError, RuntimeError) as error:
            _not_a_group(group, str(error))
        if known is not None and known._group() is group:
            return known
        if rank < 0:
            _not_a_group(group, "this process has rank -1 in it")
        if ranks == 1:
            return None
        for key in [key for key, comm in _comms.items() if comm._group() is None or key == id(group)]:
            _comms.pop(key).close()
        _comms[id(group)] = GroupComm(group)
        return _comms[id(group)]


def known_comms() -> List[GroupComm]:
    """The communicators that this process has made."""
    with _lock:
        return list(_comms.values())


def trust(group: dist.ProcessGroup, trusting: bool = True) -> None:
    """Calls with this group no longer compare their arguments, so the host does not wait for other ranks.

    If a rank differs or fails, the others then wait until torch's time-out. Call it on all ranks. Functions of
    logprob and lm_head then need vocabulary bounds. trusting=False: calls compare again.
    """
    comm = comm_of(group)
    if comm is not None:
        comm.trusting = trusting


def set_timeout(group: dist.ProcessGroup, seconds: Optional[float]) -> None:
    """Sets the time-out of comparisons with this group, in seconds; after it RankTimeout names the missing ranks.

    None: the time-out of the group. The default is BUCKETPOOL_COMM_TIMEOUT (seconds) if set, else that of the
    group. Use the same value on all ranks, longer than the longest delay between two ranks. After a RankTimeout
    every later call with the group raises it at once: end the job. Collectives of tensors keep torch's time-out.
    """
    if seconds is not None and not 0 < seconds <= 1e6:
        raise InvalidArgument(f"set_timeout: expected seconds in (0, 1000000], got {seconds!r}")
    comm = comm_of(group)
    if comm is not None:
        comm.timeout = comm.own_timeout if seconds is None else float(seconds)


@atexit.register
def close() -> None:
    """Frees all communicators and the workspaces of their calls; later calls create them again. Not collective."""
    with _lock:
        for comm in _comms.values():
            comm.close()
        _comms.clear()
