# SPDX-License-Identifier: Apache-2.0
"""Random models and random training schedules, run through pools of every policy as a runtime would.

Arguments: the core library. BUCKETPOOL_EXAMPLES: how many runs (default 200). The same examples every time.

Three streams: gather fills parameters, compute reads them and fills gradients, reduce reads gradients. Every acquire is
filled and every reading stream's copy is compared, while streams are delayed at random and blocked for some steps."""

import sys
import unittest
from ctypes import byref, c_int, c_void_p
from dataclasses import dataclass

from examples import SETTINGS

from hypothesis import event, given
from hypothesis import strategies as st

import bindings as b
import scenarios
from bindings import check, detail, filled, ids_array, made
from observed import Gates, Stream, Tape

lib = b.load(sys.argv[1])


@dataclass(frozen=True)
class Case:
    units: tuple
    roles: int
    options: scenarios.Options
    policy: str
    fallback: int
    alignment: int
    strict: int
    promised: bool  # streams are declared with bp_pool_set_stream
    early: tuple  # by step: try_acquire of the next step's parameters: 0 no, 1 keep, 2 cancel
    held: tuple  # by step: the stream that is blocked from it on: 0 none, 1 gather, 2 compute, 3 reduce
    opened: int  # the gates open every `opened` steps


@st.composite
def cases(draw):
    policy = draw(st.sampled_from(("fixed", "max", "first_fit", "dynamic")))
    both = 1 << b.ROLE_PARAM | 1 << b.ROLE_GRAD
    made_of = draw(scenarios.units(most=8))
    return Case(
        units=made_of,
        roles=draw(st.sampled_from((both, both, 1 << b.ROLE_PARAM, 1 << b.ROLE_GRAD))),
        options=draw(scenarios.options(len(made_of))), policy=policy,
        fallback=draw(st.sampled_from((b.FALLBACK_PERSISTENT, b.FALLBACK_DYNAMIC))),
        alignment=draw(st.sampled_from((256, 64, 1))),
        strict=draw(st.sampled_from((b.STRICT_ERROR, b.STRICT_WARN, b.STRICT_OFF))), promised=draw(st.booleans()),
        early=tuple(draw(st.just((0,)) | st.lists(st.integers(0, 2), min_size=1, max_size=5))),
        held=tuple(draw(st.lists(st.sampled_from((0, 0, 1, 2, 3)), min_size=1, max_size=5))),
        opened=draw(st.integers(1, 12)))


class Machine:
    """A device with the three streams, shared by all cases."""

    def __init__(self):
        config = b.HostConfig(max_delay_us=60, delay_seed=3)
        self.device = made(lib, "bp_device_create_host", config)
        self.gather, self.compute, self.reduce = (
            Stream(made(lib, "bp_stream_create", self.device, name.encode()), name, number)
            for number, name in enumerate(("gather", "compute", "reduce")))
        self.gates = Gates(lib)
        self.tape = Tape()
        self.events: list = []
        self.used = 0
        self.patterns = 0
        self.compared = 0

    def event(self):
        if self.used == len(self.events):
            self.events.append(made(lib, "bp_event_create", self.device))
        self.used += 1
        return self.events[self.used - 1]

    def settle(self, keep_events=False):
        self.gates.open()
        check(lib, lib.bp_device_synchronize(self.device), "bp_device_synchronize")
        self.gates.forget()
        self.used = self.used if keep_events else 0  # events of live requests are still needed
        self.compared += self.tape.verify()


MACHINE = Machine()


class Run:
    """One pool and the runtime that drives it."""

    def __init__(self, case: Case):
        self.case, self.m = case, MACHINE
        self.live: dict[int, list] = {}  # request -> pattern, address, event, filling stream
        self.tried_early = False
        self.busy = self.cancelled = self.acquires = 0
        self.undo: list = []

    def make(self):
        case = self.case
        buckets = scenarios.make_buckets(lib, case.units, case.roles)
        self.undo.append((lib.bp_buckets_destroy, buckets))
        self.requests = scenarios.read_requests(lib, buckets)
        schedule = scenarios.make_schedule(lib, buckets, case.options)
        self.undo.append((lib.bp_schedule_destroy, schedule))
        self.intervals = scenarios.read_intervals(lib, schedule, self.requests)
        self.steps = []  # the units that compute
        info = lib.bp_schedule_get_info(schedule).contents
        for step in info.steps[:info.step_count]:
            self.steps.append({f"u{unit}" for unit in (step.unit, step.forward_unit) if unit >= 0})
        self.floor = scenarios.make_plan(lib, buckets, schedule, b.POLICY_DYNAMIC, 0, b.FALLBACK_PERSISTENT,
                                      case.alignment)
        self.undo.append((lib.bp_plan_destroy, self.floor))
        if case.policy == "first_fit":
            offsets = scenarios.first_fit(self.requests, self.intervals, case.alignment)
            plan = scenarios.build_plan(lib, self.requests, offsets, case.alignment)
        else:
            policy = {"fixed": b.POLICY_FIXED, "max": b.POLICY_MAX, "dynamic": b.POLICY_DYNAMIC}[case.policy]
            plan = scenarios.make_plan(lib, buckets, schedule, policy, 0, case.fallback, case.alignment)
        self.undo.append((lib.bp_plan_destroy, plan))
        config = scenarios.pool_config(lib, strict=case.strict)
        self.pool = made(lib, "bp_pool_create", self.m.device, plan, config)
        self.undo.append((lib.bp_pool_destroy, self.pool))
        for parameters, stream in ((True, self.m.gather), (False, self.m.compute)) if case.promised else ():
            ids = [r for r in range(len(self.requests)) if self.is_parameter(r) == parameters]
            check(lib, lib.bp_pool_set_stream(self.pool, ids_array(ids), len(ids), stream.handle), "bp_pool_set_stream")

    def unmake(self):
        for destroy, thing in reversed(self.undo):
            destroy(byref(thing))

    # ---- runtime -----------------------------------------------------------------------------------------------------

    def is_parameter(self, r):
        return self.requests[r].role == b.ROLE_PARAM

    def acquire(self, chosen, stream, attempt):
        """Takes requests in one call and fills them on the stream."""
        ids = ids_array(chosen)
        addresses = (c_void_p * max(1, len(chosen)))()
        if attempt:
            yes = c_int(7)
            check(lib, lib.bp_pool_try_acquire(self.pool, ids, len(chosen), stream.handle, addresses, byref(yes)),
                  "bp_pool_try_acquire")
            if not yes.value:
                return False
        else:
            check(lib, lib.bp_pool_acquire(self.pool, ids, len(chosen), stream.handle, addresses), "bp_pool_acquire")
        self.acquires += len(chosen)
        for r, address in zip(chosen, addresses):
            count = self.requests[r].bytes
            assert bool(address) == bool(count), f"{self.requests[r].key}: {count} bytes at {address}"
            self.m.patterns = self.m.patterns % 251 + 1
            if count:
                check(lib, lib.bp_stream_fill(stream.handle, address, self.m.patterns, count), "bp_stream_fill")
            mark = self.m.event()
            check(lib, lib.bp_event_record(mark, stream.handle), "bp_event_record")
            self.live[r] = [self.m.patterns, address, mark, stream]
        return True

    def read(self, r, stream, what):
        """The stream waits for the data and copies it out."""
        pattern, address, mark, filler = self.live[r]
        count = self.requests[r].bytes
        if not count:
            return
        if stream is not filler:
            check(lib, lib.bp_stream_wait(stream.handle, mark), "bp_stream_wait")
        if not self.m.tape.room(count):
            self.m.settle(keep_events=True)
        self.m.tape.expect(lib, stream, address, count, pattern, f"{what} of {self.requests[r].key}, step {self.step}")

    def release(self, chosen):
        for parameters, stream in ((True, self.m.compute), (False, self.m.reduce)):
            ending = [r for r in chosen if self.is_parameter(r) == parameters]
            if not ending:
                continue
            for r in ending:
                self.read(r, stream, "last read")
                del self.live[r]
            ids = ids_array(ending)
            check(lib, lib.bp_pool_release(self.pool, ids, len(ending), stream.handle), "bp_pool_release")

    def starting(self, step):
        return [r for r, spans in enumerate(self.intervals) if any(begin == step for begin, _ in spans)]

    def run_step(self, iteration, step):
        case, m, self.step = self.case, self.m, step
        lib.bp_pool_set_step(self.pool, iteration * 1000 + step)
        held = case.held[(step + iteration) % len(case.held)]
        if held:
            m.gates.close((m.gather, m.compute, m.reduce)[held - 1])
        self.release([r for r, spans in enumerate(self.intervals) if any(end == step for _, end in spans)])
        due = [r for r in self.starting(step) if r not in self.live]
        units = self.steps[step]
        for ahead in (False, True):
            chosen = [r for r in due if self.is_parameter(r) and (self.requests[r].unit not in units) == ahead]
            if chosen:
                served = self.acquire(chosen, m.gather, attempt=ahead)
                assert served, f"a prefetch in step {step} got a no: {self.said(chosen)}"
        chosen = [r for r in due if not self.is_parameter(r)]
        if chosen:
            self.acquire(chosen, m.compute, attempt=False)
        for r in list(self.live):
            if self.requests[r].unit in units:
                self.read(r, m.compute, "compute")
        early = case.early[step % len(case.early)]
        chosen = [r for r in self.starting(step + 1) if self.is_parameter(r) and r not in self.live]
        if early and chosen:
            if not self.acquire(chosen, m.gather, attempt=True):
                self.busy += 1
            else:
                self.tried_early = True
                if early == 2:
                    ids = ids_array(chosen)
                    for r in chosen:
                        self.read(r, m.gather, "cancelled")
                        del self.live[r]
                    check(lib, lib.bp_pool_cancel(self.pool, ids, len(chosen)), "bp_pool_cancel")
                    self.cancelled += len(chosen)
        if (step + 1) % case.opened == 0:
            m.gates.open()

    def said(self, chosen):
        keys = [[self.requests[r].key for r in among] for among in (self.live, chosen)]
        return f"live {keys[0]}, wanted {keys[1]}, {detail(lib)}"

    def drive(self, iterations=2):
        for iteration in range(iterations):
            for step in range(len(self.steps)):
                self.run_step(iteration, step)
            self.step = len(self.steps)
            self.release([r for r, spans in enumerate(self.intervals) if any(end == self.step for _, end in spans)])
            assert not self.live, "the schedule ended with live requests"
            self.m.settle()

    # ---- checks ------------------------------------------------------------------------------------------------------

    def largest_sum(self, among):
        """Peak live bytes, aligned, computed from the intervals."""
        size = [scenarios.align(request.bytes, self.case.alignment) for request in self.requests]
        return max(sum(size[r] for r in among for begin, end in self.intervals[r] if begin <= step < end)
                   for step in range(len(self.steps)))

    def judge(self):
        statistics = filled(lib, "bp_pool_statistics_get", b.Statistics, self.pool)
        everything = range(len(self.requests))
        floor = scenarios.plan_info(lib, self.floor).lower_bound_bytes
        roles = sorted({request.role for request in self.requests})
        by_role = [self.largest_sum([r for r in everything if self.requests[r].role == role]) for role in roles]
        assert floor == sum(by_role), f"the plan's bound {floor}, from the intervals {by_role}"
        peak = self.largest_sum(everything)
        if not self.tried_early:
            assert statistics.peak_live_bytes == peak, f"peak {statistics.peak_live_bytes}, from the intervals {peak}"
            if len(roles) == 1:
                assert peak == floor, f"peak {peak}, the plan's bound {floor}"
        assert statistics.live_requests == statistics.live_bytes == statistics.refused == statistics.overflows == 0
        assert statistics.acquires == self.acquires
        assert (statistics.cancelled, statistics.busy) == (self.cancelled, self.busy)
        assert statistics.releases == self.acquires - self.cancelled
        if not self.tried_early:  # early requests may use free copies
            assert statistics.deviations == 0, f"{statistics.deviations} deviations although the schedule was followed"
        event(f"{self.case.policy}, strict {self.case.strict}")


class Schedules(unittest.TestCase):
    @SETTINGS
    @given(cases())
    def drive(self, case):
        run = Run(case)
        try:
            run.make()
            run.drive()
            run.judge()
        finally:
            try:
                MACHINE.gates.open()
            finally:
                run.unmake()
                check(lib, lib.bp_device_synchronize(MACHINE.device), "bp_device_synchronize")
                MACHINE.gates.forget()
                MACHINE.tape.checks, MACHINE.tape.used, MACHINE.used = [], 0, 0

    def test_schedules(self):
        self.drive()
        print("compared", MACHINE.compared, "bytes")
        self.assertGreater(MACHINE.compared, 0)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[2:], verbosity=1)
