# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the package's tests: small models of given buckets, their plans and pools."""

import gc
import os
import subprocess
import sys
import textwrap
import unittest

import bucketpool as bp

try:
    import numpy
except ImportError:  # the distribution's package is optional
    numpy = None

SOURCES = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
MODELS = os.path.join(SOURCES, "examples", "models")
BRIEF = "BUCKETPOOL_BRIEF" in os.environ

needs_numpy = unittest.skipUnless(numpy, "python3-numpy is not installed")


def small_plan(sizes=(1000, 3000, 2000, 3000, 1000), dtype="bf16", policy="scheduled", roles=("param", "grad"),
               apart=False,
          **options):
    """(buckets, schedule, plan) of units "u0", "u1", ... of one bucket each. apart: no two share memory."""
    model = bp.Model("small")
    for number, numel in enumerate(sizes):
        model.add_bucket(model.add_unit(f"u{number}"), dtype, numel)
    buckets = bp.Buckets(model, bucketing="given", padding="given", roles=roles)
    schedule = bp.Schedule.training(buckets, keep_after_forward=apart, grad_units=len(sizes) if apart else 2)
    return buckets, schedule, bp.Plan(buckets, schedule, policy=policy, **options)


class Served:
    """A pool of a small plan on a device."""

    def __init__(self, device=None, dtype="bf16", sizes=(1000, 3000, 2000, 3000, 1000), policy="scheduled",
                 roles=("param", "grad"), apart=False, **options):
        self.buckets, self.schedule, self.plan = small_plan(sizes, dtype, policy, roles, apart)
        self.device = bp.Device.host() if device is None else device
        self.pool = bp.Pool(self.device, self.plan, **options)
        self.ids = list(range(len(self.plan.requests)))
        self.stream = self.device.stream("main")

    def param(self, unit):
        return self.ids[[(r.unit, r.role) for r in self.buckets.requests].index((f"u{unit}", "param"))]

    def take(self, unit):
        view, = self.pool.acquire([self.param(unit)], self.stream)
        return view


def committed(device):
    """Bytes that pools of the device have, once the garbage is gone."""
    gc.collect()
    return device.usage.committed_bytes


def run_python(code, *arguments, timeout=600):
    """Runs a program in a separate interpreter, for tests of interpreter exit."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    environment.pop("LD_LIBRARY_PATH", None)  # of the build that the tests run in
    return subprocess.run([sys.executable, "-c", textwrap.dedent(code), *arguments], capture_output=True, text=True,
                          timeout=timeout, env=environment)
