# SPDX-License-Identifier: Apache-2.0
"""Prediction of a step's timeline from the settings of a module, equal to a recording.

Modules run once each, in the order of registration, nested ones within their parents. The inputs of the model
need no gradient; everything from the first trained parameter on does. The current settings count: resharding
after forward and backward, explicit prefetch in both directions, frozen groups, all-gathers on the caller's
stream.
"""

from typing import Any, Dict, List, NamedTuple, Optional, Set

from torch import nn
from torch.distributed.fsdp import FSDPModule

from ...errors import Unsupported
from ..timeline import Slot, Timeline
from .groups import Group, _field, all_groups, groups_of, states_of

_INPUTS_KEPT = "reduce_scatter_max_input_buffers"  # of FSDP2's groups and communication context


class _Step:
    """The state of FSDP2 in one step: gathered groups, pending all-gathers, and buffers that the last copy-out and
    reduce-scatter keep.
    """

    def __init__(self, groups: List[Group], root_state: Any) -> None:
        self.timeline = Timeline(group.name for group in groups if group.ranks > 1)
        self.of_state: Dict[int, List[Group]] = {}
        for group in groups:
            self.of_state.setdefault(id(group.state), []).append(group)
        self.root_state = root_state
        self.unsharded: Set[str] = set()
        self.pending: Dict[str, Optional[Slot]] = {}  # gathered, not copied out; None: one rank, without a buffer
        self.kept: Optional[Slot] = None  # the last copied-out all-gather of forward, released by its successor
        self.reducing: List[Optional[Slot]] = []
        self.order: List[Group] = []  # order of post-forward
        self.left: Set[int] = set()  # states whose post-backward ran
        # From 2.12 on post-backward of a group without gradients also ends earlier reduce-scatters.
        self.frozen_end_reductions = hasattr(root_state, "_fsdp_param_groups")
        # From 2.15 on the callback after backward ends all-gathers once post-backward ran for all states, not for each.
        self.ends_together = hasattr(root_state, "_end_backward_iteration")
        # 2.12 ends earlier reduce-scatters in a loop, whose variable keeps the last one until post-backward returns.
        self.loop_keeps = self.frozen_end_reductions and not hasattr(groups[0].handle, _INPUTS_KEPT)
        self.inputs_kept = _inputs_kept(groups, root_state)

    def groups(self, state: Any) -> List[Group]:
        return self.of_state.get(id(state), [])

    def gather(self, group: Group, phase: str) -> None:
        if group.name in self.pending or group.name in self.unsharded:
            return
        if phase == "backward" and not _field(group.handle, "unshard_in_backward"):
            return
        slot = None
        if group.ranks > 1:
            assert group.gather_dtype is not None
            slot = self.timeline.acquire(group.name, "param", phase, group.gather_numel, group.gather_dtype)
        self.pending[group.name] = slot

    def copy_out(self, group: Group, phase: str) -> None:
        if group.name not in self.pending:
            return
        slot = self.pending.pop(group.name)
        self.unsharded.add(group.name)
        if phase == "forward":
            self.give_back_kept()
        if phase == "forward" and not group.handle.unshard_async_op:
            self.kept = slot
        else:
            self.release(slot)

    def release(self, slot: Optional[Slot]) -> None:
        if slot is not None:
            self.timeline.release(slot)

    def give_back_kept(self) -> None:
        self.release(self.kept)
        self.kept = None

    def prefetch(self, states: List[Any], phase: str) -> None:
        for state in states:
            groups = self.groups(state)
            for group in groups if phase == "forward" else reversed(groups):
                self.gather(group, phase)

    def before_forward(self, state: Any) -> None:
        for group in self.groups(state):
            self.gather(group, "forward")
            self.copy_out(group, "forward")
        self.prefetch(_field(state, "_states_to_forward_prefetch"), "forward")

    def after_forward(self, state: Any) -> None:
        automatic_root = state is self.root_state and _field(state, "_auto_reshard_after_forward")
        for group in self.groups(state):
            if _field(group.handle, "post_forward_mesh_info") is not None and not automatic_root:
                self.unsharded.discard(group.name)
            self.order.append(group)

    def before_backward(self, state: Any) -> None:
        explicit = _field(state, "_states_to_backward_prefetch")
        for group in self.groups(state):
            self.gather(group, "backward")
            self.copy_out(group, "backward")
            if not explicit:
                for target in self.implicit_prefetch(group):
                    self.gather(target, "backward")
        self.prefetch(explicit, "backward")

    def implicit_prefetch(self, group: Group) -> List[Group]:
        """The groups that FSDP2 prefetches without explicit settings.

        That is the group whose forward ran before this one. In a module of several groups, the second group prefetches
        all groups of the module before, the others none.
        """
        before = self.order[:self.order.index(group)][::-1]
        if group.siblings == 1:
            return before[:1]
        others = [each for each in before if each.state is not group.state]
        return [each for each in others if each.state is others[0].state] if group.index == 1 else []

    def after_backward(self, state: Any) -> None:
        self.left.add(id(state))
        for group in reversed(self.groups(state)):
            if _field(group.handle, "reshard_after_backward"):
                self.unsharded.discard(group.name)
            if _field(group.handle, "reduce_grads"):
                self.reduce(group)

    def reduce(self, group: Group) -> None:
        dtype, kept = group.reduce_dtype, None
        if group.index == group.siblings - 1 and (dtype is not None or self.frozen_end_reductions):
            if self.loop_keeps:
                kept = self.clear_reductions()
            while len(self.reducing) >= self.inputs_kept:
                self.release(self.reducing.pop(0))
        if dtype is not None:
            pooled = group.ranks > 1
            self.reducing.append(self.timeline.acquire(group.name, "grad", "", group.reduce_numel, dtype) if pooled
                                 else None)
        self.release(kept)

    def clear_reductions(self) -> Optional[Slot]:
        """Ends the reduce-scatters backwards, as list.clear() does, except the last one, which the variable of the loop
        before keeps. Returns it.
        """
        kept = self.reducing.pop() if self.reducing else None
        while self.reducing:
            self.release(self.reducing.pop())
        return kept

    def end_gathers(self, state: Any) -> None:
        for group in self.groups(state):
            self.release(self.pending.pop(group.name, None))

    def end(self, states: List[Any]) -> None:
        """The callback after backward: post-backward of states without inputs that need a gradient, and the end of
        unused prefetches.
        """
        for state in states:
            if id(state) not in self.left:
                self.after_backward(state)
            if not self.ends_together:
                self.end_gathers(state)
        for state in states:
            self.end_gathers(state)
        self.release(self.clear_reductions())


def _inputs_kept(groups: List[Group], root_state: Any) -> int:
    """The number of reduce-scatter inputs in flight: one; from 2.13 on the largest setting of the groups when the
    module first runs.
    """
    resolved: Optional[int] = getattr(_field(root_state, "_comm_ctx"), _INPUTS_KEPT, None)
    return resolved or max(getattr(group.handle, _INPUTS_KEPT, 1) for group in groups)


class _Passing(NamedTuple):
    entering: bool
    state: Any
    needs_gradient: bool  # of the inputs if entering, else of the outputs


def _passage(root: nn.Module) -> List[_Passing]:
    """States in the order in which forward enters and leaves them. A state of several modules is entered with the first
    module and left with the last.
    """
    passage: List[_Passing] = []
    seen: Set[nn.Module] = set()
    remaining: Dict[int, int] = {}

    def visit(module: nn.Module, needs: bool) -> bool:
        seen.add(module)
        state = module._get_fsdp_state() if isinstance(module, FSDPModule) else None
        if state is not None:
            if id(state) not in remaining:
                remaining[id(state)] = len(_field(state, "_modules"))
                passage.append(_Passing(True, state, needs))
            remaining[id(state)] -= 1
        needs = needs or any(parameter.requires_grad for parameter in module.parameters(recurse=False))
        for child in module.children():
            if child not in seen:
                needs = visit(child, needs)
        if state is not None and remaining[id(state)] == 0:
            passage.append(_Passing(False, state, needs))
        return needs

    visit(root, False)
    return passage


def predict(root: nn.Module, any_version: bool = False, first: bool = True,
            unsharded: Optional[Set[str]] = None) -> Timeline:
    """The timeline of one training step of a sharded module, from its settings, without running it.

    - first: all groups are sharded at the begin; False: groups that backward does not reshard are still gathered
    - unsharded: an empty set, to which the names of groups are added when they are unsharded, and from which they are
      discarded when they are resharded

    Raises as groups_of; Unsupported (sizes or dtypes that only a recording shows: all-gather extensions, gradients).
    """
    for group in groups_of(root, any_version):
        if group.gather_dtype is None:
            raise Unsupported(
                f"{group.name}: its parameters have all-gather extensions (float8) of unknown size; run a "
                "step inside bucketpool.torch.fsdp2.record() and plan from that"
            )
        if group.reduce_dtype is None and group.reduce_numel > 0:
            raise Unsupported(
                f"{group.name}: it reduces in the dtype of its gradients, which is unknown before a step; "
                "set MixedPrecisionPolicy.reduce_dtype, or run a step inside "
                "bucketpool.torch.fsdp2.record() and plan from that"
            )
    groups = all_groups(root)
    step = _Step(groups, _field(root, "_get_fsdp_state")())
    if unsharded is not None:
        step.unsharded = unsharded
    if not first:
        step.unsharded.update(group.name for group in groups if not _field(group.handle, "reshard_after_backward"))
    passage = _passage(root)
    for entering, state, _ in passage:
        (step.before_forward if entering else step.after_forward)(state)
    step.give_back_kept()
    for entering, state, needs_gradient in reversed(passage):
        if needs_gradient:
            (step.after_backward if entering else step.before_backward)(state)
    step.end(list(states_of(root).values()))
    return step.timeline
