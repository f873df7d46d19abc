# SPDX-License-Identifier: Apache-2.0
"""The training of these programs: the model, its optimizer and the pool of a variant."""

import torch

import model as hybrid
from bucketpool.torch import fsdp2
from options import VARIANTS


class Training:
    """attached: the pool, planned from the module's settings; None in variants without one. A buffer that is missing in the plan comes from
    PyTorch, and fails check(): the training continues, so that its figures are kept."""

    def __init__(self, options, device):
        self.options, self.device = options, device
        self.model = hybrid.sharded(options, device.torch_device)
        # fused: one kernel, without foreach's temporaries of the size of all parameters
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-4, fused=True)
        policy = VARIANTS[options.variant][1]
        self.attached = None if policy is None else fsdp2.attach(self.model, policy=policy, on_mismatch="plain")

    def tokens(self, step):
        return hybrid.tokens_of(self.options, step, self.device.torch_device)

    def backward(self, tokens):
        loss = self.model(tokens)
        loss.backward()
        return loss.detach()

    def update(self):
        self.optimizer.step()
        self.optimizer.zero_grad()

    def described(self):
        """Parameters, units, and figures of the pool."""
        known = {"parameter_count": hybrid.parameters_of(self.model), "ranks": hybrid.fake_group.RANKS,
                 "fsdp_units": len(self.model.layers) + 1}
        if self.attached is None:
            return known | {"pool_bytes": 0}
        statistics = self.attached.pool.statistics
        return known | {"pool_bytes": statistics.slab_bytes, "pool_peak_live_bytes": statistics.peak_live_bytes,
                        "plan_bytes": self.attached.plan.bytes, "plan_lower_bound_bytes": self.attached.plan.lower_bound_bytes,
                        "served": dict(self.attached.served), "fallbacks": dict(self.attached.fallbacks),
                        "report": self.attached.report().splitlines()}

    def check(self, report, steps):
        """The pool served every buffer of these steps."""
        if self.attached is None:
            return
        served, units = self.attached.served, len(self.model.layers) + 1
        # Every unit is all-gathered in forward, and all but the root again in backward.
        report.check("the pool served every all-gather and reduce-scatter",
                     (served["param"], served["grad"]) == (steps * (2 * units - 1), steps * units), f"{served}, {steps} steps of {units} units")
        report.check("no buffer came from PyTorch instead", not self.attached.fallbacks, str(self.attached.fallbacks or ""))

    def close(self):
        if self.attached is not None:
            self.device.synchronize()
            self.attached.detach()
