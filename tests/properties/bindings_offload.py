"""Offload, with shorter names."""

from bindings import ROLE_MAIN_GRAD, ROLE_OPTIMIZER, _abi, constants, load  # noqa: F401

KEEP, DISCARD = constants("OFFLOAD_", "KEEP DISCARD")
ZERO, LEAVE = constants("RESTORE_", "ZERO LEAVE")
RESIDENT, OFFLOADING, OFFLOADED, RESTORING = constants("", "RESIDENT OFFLOADING OFFLOADED RESTORING")
BACKING_AUTO, BACKING_PINNED, BACKING_STAGED = constants("BACKING_", "AUTO PINNED STAGED")

OffloadConfig, Group = _abi.bp_offload_config, _abi.bp_offload_group
load_offload = load
