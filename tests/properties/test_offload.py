"""Random offload calls on pools of random plans, valid and invalid, in any order, against a reference model.

Arguments: the core library. BUCKETPOOL_EXAMPLES: how many pools (default 200). The same examples every time."""

import ctypes
import sys
import unittest
from ctypes import byref, c_size_t, c_uint32
from dataclasses import dataclass, field

from examples import EXAMPLES, SETTINGS

from hypothesis import seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (RuleBasedStateMachine, initialize, invariant, precondition, rule,
                                 run_state_machine_as_test)

import bindings as b
import bindings_offload as o
import scenarios
from bindings import OK, SCHEDULE, UNSUPPORTED, check, detail, ids_array, made

ROLES = (b.ROLE_PARAM, b.ROLE_GRAD, b.ROLE_STATE, o.ROLE_MAIN_GRAD, o.ROLE_OPTIMIZER)
NAMES = (b"weights", b"training", b"x")
SEEN: dict = {}  # counts of events, as evidence of coverage


def seen(what) -> None:
    SEEN[what] = SEEN.get(what, 0) + 1


@dataclass
class Slab:
    address: int
    group: bytes
    bytes: bytearray
    known: bytearray


@dataclass
class Group:
    name: bytes
    slabs: list
    residency: int = o.RESIDENT
    kept: bool = True
    fill: int = o.LEAVE
    offloads: int = 0
    restores: int = 0
    leases: list = field(default_factory=list)


@dataclass
class Request:
    id: int
    role: int
    slab: Slab
    offset: int
    count: int
    references: int = 0

    @property
    def lasting(self):
        return self.role >= b.ROLE_STATE


class Offload(RuleBasedStateMachine):
    lib = None  # set before a machine runs
    device = None
    streams: list = []
    patterns = 0

    def __init__(self):
        super().__init__()
        self.pool = self.offload = None

    # ---- setup -------------------------------------------------------------------------------------------------------

    @initialize(units=scenarios.units(most=4), roles=st.sets(st.sampled_from(ROLES), min_size=2),
                policy=st.sampled_from((b.POLICY_MAX, b.POLICY_SCHEDULED, b.POLICY_FIXED)), joint=st.booleans(),
                renamed=st.dictionaries(st.integers(0, 4), st.sampled_from(NAMES), max_size=3),
                chunk=st.sampled_from((1, 4096, 12288, 0)),
                backing=st.sampled_from((o.BACKING_AUTO, o.BACKING_PINNED, o.BACKING_STAGED)))
    def make(self, units, roles, policy, joint, renamed, chunk, backing):
        lib = self.lib
        buckets = scenarios.make_buckets(lib, units, sum(1 << role for role in roles))
        wanted = scenarios.read_requests(lib, buckets)
        schedule = scenarios.make_schedule(lib, buckets, scenarios.Options())
        config = b.PlanConfig()
        check(lib, lib.bp_plan_config_init(byref(config), ctypes.sizeof(config)), "bp_plan_config_init")
        config.policy = b.POLICY_SCHEDULED if joint else policy
        config.joint = joint
        plan = made(lib, "bp_plan_create", buckets, schedule, config)
        for slab, name in renamed.items():
            if slab < scenarios.plan_info(lib, plan).slab_count and not joint:
                check(lib, lib.bp_plan_set_group(plan, slab, name), "bp_plan_set_group")
        self.pool = made(lib, "bp_pool_create", self.device, plan, scenarios.pool_config(lib))
        lib.bp_plan_destroy(byref(plan))
        lib.bp_schedule_destroy(byref(schedule))
        lib.bp_buckets_destroy(byref(buckets))
        self._note_slabs()
        self._note_requests(wanted)
        config = o.OffloadConfig(chunk_bytes=chunk, backing=backing)
        self.offload = made(lib, "bp_offload_create", self.pool, config)
        assert len(self._groups_now()) == len(self.groups)

    def _note_slabs(self):
        self.slabs, self.groups = [], []
        for slab in scenarios.pool_slabs(self.lib, self.pool):
            noted = Slab(slab.address, slab.group, bytearray(slab.bytes), bytearray(slab.bytes))
            self.slabs.append(noted)
            group = next((g for g in self.groups if g.name == slab.group), None)
            if group is None:
                self.groups.append(group := Group(slab.group, []))
            group.slabs.append(noted)

    def _note_requests(self, wanted):
        self.requests = []
        for want in wanted:
            if not want.bytes:
                continue
            address, count = ctypes.c_void_p(), ctypes.c_uint64()
            check(self.lib, self.lib.bp_pool_address(self.pool, want.index, byref(address), byref(count)),
                  "bp_pool_address")
            slab = next(s for s in self.slabs if 0 <= address.value - s.address < len(s.bytes))
            request = Request(want.index, want.role, slab, address.value - slab.address, want.bytes)
            self.requests.append(request)
            if request.lasting:
                self._call("bp_pool_acquire", self.pool, ids_array([request.id]), 1, self.streams[0], None)
                request.references = 1
                self._write(request, self.streams[0])

    def _call(self, name, *arguments):
        check(self.lib, getattr(self.lib, name)(*arguments), name)

    def group_of(self, request):
        return next(g for g in self.groups if g.name == request.slab.group)

    def _write(self, request, stream):
        type(self).patterns = self.patterns % 251 + 1
        begin, end = request.offset, request.offset + request.count
        self._call("bp_stream_fill", stream, request.slab.address + begin, self.patterns, request.count)
        request.slab.bytes[begin:end] = bytes([self.patterns]) * request.count
        request.slab.known[begin:end] = b"\1" * request.count

    # ---- groups ------------------------------------------------------------------------------------------------------

    def _expect(self, status, possible, what):
        """`possible`: the permitted errors; empty: the call must succeed. Returns True if it succeeded."""
        if possible:
            assert status in possible, f"{what}: status {status}, expected one of {possible}: {detail(self.lib)}"
            seen(f"refused {what}")
            return False
        assert status == OK, f"{what}: status {status}: {detail(self.lib)}"
        seen(what)
        return True

    @rule(number=st.integers(0, 9), flags=st.sampled_from((o.KEEP, o.KEEP, o.DISCARD)))
    def begin_offload(self, number, flags):
        group = self.groups[number % len(self.groups)]
        wrong = set()
        if group.residency != o.RESIDENT or group.leases:
            wrong.add(SCHEDULE)
        if any(r.references and not r.lasting for r in self.requests if self.group_of(r) is group):
            wrong.add(SCHEDULE)
        if group.name == b"joint" and flags == o.KEEP:
            wrong.add(UNSUPPORTED)
        if self._expect(self.lib.bp_offload_begin(self.offload, group.name, flags), wrong, "begin"):
            group.residency, group.kept = o.OFFLOADING, flags == o.KEEP

    @rule(number=st.integers(0, 9))
    def finish_offload(self, number):
        group = self.groups[number % len(self.groups)]
        wrong = {SCHEDULE} if group.residency != o.OFFLOADING else set()
        if self._expect(self.lib.bp_offload_finish(self.offload, group.name), wrong, "finish"):
            group.residency = o.OFFLOADED
            group.offloads += 1

    @rule(number=st.integers(0, 9), fill=st.sampled_from((o.ZERO, o.LEAVE)))
    def begin_restore(self, number, fill):
        group = self.groups[number % len(self.groups)]
        wrong = {SCHEDULE} if group.residency != o.OFFLOADED else set()
        if self._expect(self.lib.bp_restore_begin(self.offload, group.name, fill), wrong, "restore"):
            group.residency, group.fill = o.RESTORING, fill

    @rule(number=st.integers(0, 9))
    def finish_restore(self, number):
        group = self.groups[number % len(self.groups)]
        wrong = {SCHEDULE} if group.residency != o.RESTORING else set()
        if self._expect(self.lib.bp_restore_finish(self.offload, group.name), wrong, "restored"):
            self._restored(group)

    def _restored(self, group):
        group.residency = o.RESIDENT
        group.restores += 1
        for slab in group.slabs:
            if not group.kept:
                slab.bytes[:] = bytes(len(slab.bytes))
                slab.known[:] = (b"\1" if group.fill == o.ZERO else b"\0") * len(slab.known)

    @rule(number=st.integers(0, 9), steps=st.integers(1, 4), flags=st.sampled_from((o.KEEP, o.DISCARD)),
          fill=st.sampled_from((o.ZERO, o.LEAVE)))
    def advance(self, number, steps, flags, fill):
        """A sequence of valid calls on one group: random calls alone rarely get this far."""
        group = self.groups[number % len(self.groups)]
        index = self.groups.index(group)
        for _ in range(steps):
            if group.residency == o.RESIDENT:
                self.begin_offload(index, flags)
            elif group.residency == o.OFFLOADING:
                self.finish_offload(index)
            elif group.residency == o.OFFLOADED:
                self.begin_restore(index, fill)
            else:
                self.finish_restore(index)

    @rule()
    def trim(self):
        self.lib.bp_offload_trim(self.offload)

    @rule(number=st.integers(0, 9))
    def lease(self, number):
        group = self.groups[number % len(self.groups)]
        if len(group.leases) > 2:
            return
        lease = b._abi.bp_lease()
        wrong = {SCHEDULE} if group.residency != o.RESIDENT else set()
        if self._expect(self.lib.bp_lease_take(self.offload, group.name, b"reader", byref(lease)), wrong, "lease"):
            group.leases.append(lease)

    @precondition(lambda self: any(g.leases for g in self.groups))
    @rule(number=st.integers(0, 9))
    def give_back(self, number):
        leased = [g for g in self.groups if g.leases]
        lease = leased[number % len(leased)].leases.pop()
        self.lib.bp_lease_return(byref(lease))
        assert not lease.value

    # ---- requests ----------------------------------------------------------------------------------------------------

    @rule(number=st.integers(0, 99), stream=st.integers(0, 2))
    def acquire(self, number, stream):
        request = self.requests[number % len(self.requests)]
        resident = self.group_of(request).residency == o.RESIDENT
        ids, answer = ids_array([request.id]), ctypes.c_int(7)
        if not resident:
            status = self.lib.bp_pool_acquire(self.pool, ids, 1, self.streams[stream], None)
            self._expect(status, {SCHEDULE}, "acquire of an offloaded request")
        status = self.lib.bp_pool_try_acquire(self.pool, ids, 1, self.streams[stream], None, byref(answer))
        check(self.lib, status, "bp_pool_try_acquire")
        assert resident or answer.value == 0
        others = any(r.references for r in self.requests if r.slab is request.slab)
        assert answer.value == 1 or not resident or others, "nobody holds it"
        if answer.value == 1:
            if request.references == 0:
                self._write(request, self.streams[stream])
                check(self.lib, self.lib.bp_stream_synchronize(self.streams[stream]), "bp_stream_synchronize")
            request.references += 1
            seen("acquire")

    @rule(number=st.integers(0, 99), stream=st.integers(0, 2))
    def release(self, number, stream):
        live = [r for r in self.requests if r.references > (1 if r.lasting else 0)]
        if not live:
            return
        request = live[number % len(live)]
        wrong = {SCHEDULE} if self.group_of(request).residency != o.RESIDENT else set()
        status = self.lib.bp_pool_release(self.pool, ids_array([request.id]), 1, self.streams[stream])
        if self._expect(status, wrong, "release"):
            request.references -= 1

    @rule(number=st.integers(0, 99))
    def work(self, number):
        """Writes without waiting: the copies of offload must be ordered after it."""
        live = [r for r in self.requests if r.lasting and self.group_of(r).residency == o.RESIDENT]
        if live:
            self._write(live[number % len(live)], self.streams[0])

    # ---- checks ------------------------------------------------------------------------------------------------------

    @rule()
    def compare(self):
        check(self.lib, self.lib.bp_device_synchronize(self.device), "bp_device_synchronize")
        for group in self.groups:
            if group.residency != o.RESIDENT:
                continue
            for slab in group.slabs:
                found = ctypes.string_at(slab.address, len(slab.bytes))
                if all(slab.known):
                    assert found == slab.bytes, f"bytes of {group.name}"
                    continue
                for i, known in enumerate(slab.known):
                    assert not known or found[i] == slab.bytes[i], f"byte {i} of {group.name}"

    def _groups_now(self):
        count, groups = c_size_t(), (o.Group * 16)()
        groups[0].size = ctypes.sizeof(o.Group)
        check(self.lib, self.lib.bp_offload_groups(self.offload, groups, len(groups), byref(count)),
              "bp_offload_groups")
        return groups[:count.value]

    @precondition(lambda self: self.offload is not None)
    @invariant()
    def groups_are_as_expected(self):
        for now, group in zip(self._groups_now(), self.groups):
            size = sum(len(slab.bytes) for slab in group.slabs)
            assert (now.name, now.residency, now.slabs, now.bytes) == (
                group.name, group.residency, len(group.slabs), size)
            assert now.resident_bytes == (0 if group.residency == o.OFFLOADED else size)
            if group.residency == o.OFFLOADED:
                assert now.kept_bytes == (size if group.kept else 0)
            assert now.host_bytes >= now.kept_bytes and now.unreturned_bytes == 0
            assert (now.offloads, now.restores, now.leases) == (group.offloads, group.restores, len(group.leases))

    def teardown(self):
        if self.offload is None:
            return
        for group in self.groups:
            while group.leases:
                self.lib.bp_lease_return(byref(group.leases.pop()))
            if group.residency == o.OFFLOADING:
                self._call("bp_offload_finish", self.offload, group.name)
                group.residency = o.OFFLOADED
                group.offloads += 1
            if group.residency == o.OFFLOADED:
                self._call("bp_restore_begin", self.offload, group.name, o.LEAVE)
                group.fill, group.residency = o.LEAVE, o.RESTORING
            if group.residency == o.RESTORING:
                self._call("bp_restore_finish", self.offload, group.name)
                self._restored(group)
        self.compare()
        self.groups_are_as_expected()
        self.lib.bp_offload_destroy(byref(self.offload))
        self.lib.bp_pool_destroy(byref(self.pool))


class Properties(unittest.TestCase):
    def test_offload(self):
        lib = o.load_offload(sys.argv[1])
        Offload.lib = lib
        Offload.device = made(lib, "bp_device_create_host", b.HostConfig(max_delay_us=20, delay_seed=7))
        Offload.streams = [made(lib, "bp_stream_create", Offload.device, b"s%d" % i) for i in range(3)]
        run_state_machine_as_test(seed(8)(Offload),
                                  settings=settings(SETTINGS, max_examples=EXAMPLES, stateful_step_count=40))
        print(", ".join(f"{name}: {count}" for name, count in sorted(SEEN.items())))
        for what in ("begin", "finish", "restore", "restored", "lease", "acquire", "refused begin"):
            self.assertIn(what, SEEN)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
