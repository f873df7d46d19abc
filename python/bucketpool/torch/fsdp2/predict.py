"""The step that a module's settings say it will run, in the order of FSDP2's host: what a recording would show.

Modules run once each, in the order in which they are registered, nested ones within their parents. Inputs of the model
need no gradient; from the first trained parameter on everything does. Of the settings those that stand now count:
resharding after forward and backward, explicit prefetching both ways, frozen groups, gathers on the caller's stream."""

from typing import Any, Dict, List, NamedTuple, Optional, Set

from torch import nn
from torch.distributed.fsdp import FSDPModule

from ...errors import Unsupported
from .groups import Group, _field, groups_of, states_of
from .timeline import Slot, Timeline


class _Step:
    """FSDP2's bookkeeping of one step: which group is gathered, what is pending, what the last copy-out and reduction
    keep."""

    def __init__(self, groups: List[Group], root_state: Any) -> None:
        self.timeline = Timeline(group.name for group in groups)
        self.of_state: Dict[int, Group] = {id(group.state): group for group in groups}
        self.root_state = root_state
        self.unsharded: Set[str] = set()
        self.pending: Dict[str, Slot] = {}  # gathered, not copied out
        self.kept: Optional[Slot] = None  # the last copied-out gather of forward, which its successor gives back
        self.reducing: Optional[Slot] = None
        self.order: List[Group] = []  # as post-forward ran
        self.left: Set[int] = set()  # states that post-backward ran for

    def gather(self, group: Group, phase: str) -> None:
        if group.name in self.pending or group.name in self.unsharded:
            return
        if phase == "backward" and not _field(group.handle, "unshard_in_backward"):
            return
        assert group.gather_dtype is not None
        slot = self.timeline.acquire(group.name, "param", phase, group.gather_numel, group.gather_dtype)
        self.pending[group.name] = slot

    def copy_out(self, group: Group, phase: str) -> None:
        slot = self.pending.pop(group.name, None)
        if slot is None:
            return
        self.unsharded.add(group.name)
        if phase == "forward":
            self.give_back_kept()
        if phase == "forward" and not group.handle.unshard_async_op:
            self.kept = slot
        else:
            self.timeline.release(slot)

    def give_back_kept(self) -> None:
        if self.kept is not None:
            self.timeline.release(self.kept)
            self.kept = None

    def prefetch(self, states: List[Any], phase: str) -> None:
        for state in states:
            if id(state) in self.of_state:
                self.gather(self.of_state[id(state)], phase)

    def before_forward(self, state: Any) -> None:
        group = self.of_state.get(id(state))
        if group is not None:
            self.gather(group, "forward")
            self.copy_out(group, "forward")
        self.prefetch(_field(state, "_states_to_forward_prefetch"), "forward")

    def after_forward(self, state: Any) -> None:
        group = self.of_state.get(id(state))
        if group is None:
            return
        automatic_root = state is self.root_state and _field(state, "_auto_reshard_after_forward")
        if _field(group.handle, "post_forward_mesh_info") is not None and not automatic_root:
            self.unsharded.discard(group.name)
        self.order.append(group)

    def before_backward(self, state: Any) -> None:
        group, explicit = self.of_state.get(id(state)), _field(state, "_states_to_backward_prefetch")
        if group is not None:
            self.gather(group, "backward")
            self.copy_out(group, "backward")
            position = self.order.index(group)
            if not explicit and position > 0:
                self.gather(self.order[position - 1], "backward")
        self.prefetch(explicit, "backward")

    def after_backward(self, state: Any) -> None:
        self.left.add(id(state))
        group = self.of_state.get(id(state))
        if group is None:
            return
        if _field(group.handle, "reshard_after_backward"):
            self.unsharded.discard(group.name)
        if group.reduce_dtype is not None and _field(group.handle, "reduce_grads"):
            self.end_reduction()
            self.reducing = self.timeline.acquire(group.name, "grad", "", group.reduce_numel, group.reduce_dtype)

    def end_reduction(self) -> None:
        if self.reducing is not None:
            self.timeline.release(self.reducing)
            self.reducing = None

    def end(self, states: List[Any]) -> None:
        """The callback behind backward, state by state: post-backward where no input needed a gradient, then the end of
        gathers that were prefetched in vain."""
        for state in states:
            if id(state) not in self.left:
                self.after_backward(state)
            group = self.of_state.get(id(state))
            if group is not None and group.name in self.pending:
                self.timeline.release(self.pending.pop(group.name))
        self.end_reduction()


class _Passing(NamedTuple):
    entering: bool
    state: Any
    needs_gradient: bool  # what goes in, or comes out


def _passage(root: nn.Module) -> List[_Passing]:
    """States as forward enters and leaves them. One of several modules is entered with the first, left with the
    last."""
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


def predict(root: nn.Module, any_version: bool = False, first: bool = True) -> Timeline:
    """The timeline of one training step of a sharded module from its settings, without running it. first: all groups
    are sharded as it begins; False: those that backward does not reshard are gathered still.

    Raises what groups_of raises, and Unsupported where parameters have all-gather extensions, whose sizes only a
    recording shows."""
    groups = groups_of(root, any_version)
    for group in groups:
        if group.gather_dtype is None:
            raise Unsupported(f"{group.name} has parameters with all-gather extensions (float8), whose gather has a "
                              "size of its own: run a step inside bucketpool.torch.fsdp2.record() and plan from that")
    step = _Step(groups, _field(root, "_get_fsdp_state")())
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
