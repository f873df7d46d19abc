"""Offload through ctypes: declarations by hand from include/bucketpool/offload.h."""

from ctypes import POINTER, c_char_p, c_int32, c_size_t, c_uint32, c_uint64, c_void_p

from bindings import HANDLE, OUT, Sized, declare, load

KEEP, DISCARD = 1, 2
ZERO, LEAVE = 1, 2
RESIDENT, OFFLOADING, OFFLOADED, RESTORING = 1, 2, 3, 4
BACKING_AUTO, BACKING_PINNED, BACKING_STAGED = 0, 1, 2
ROLE_MAIN_GRAD, ROLE_OPTIMIZER = 5, 6


class OffloadConfig(Sized):
    _fields_ = [("size", c_size_t), ("pinned", c_void_p), ("backing", c_uint32), ("chunk_bytes", c_uint64),
                ("progress", c_void_p), ("user", c_void_p)]


class Group(Sized):
    _fields_ = [("size", c_size_t), ("name", c_char_p), ("residency", c_uint32), ("slabs", c_uint32),
                ("bytes", c_uint64), ("resident_bytes", c_uint64), ("kept_bytes", c_uint64), ("host_bytes", c_uint64),
                ("unreturned_bytes", c_uint64), ("copied_bytes", c_uint64), ("offloads", c_uint64),
                ("restores", c_uint64), ("leases", c_uint32), ("pinned", c_int32)]


STATUS_FUNCTIONS = {
    "bp_offload_config_init": [POINTER(OffloadConfig), c_size_t],
    "bp_offload_create": [HANDLE, POINTER(OffloadConfig), OUT],
    "bp_offload_begin": [HANDLE, c_char_p, c_uint32],
    "bp_offload_finish": [HANDLE, c_char_p],
    "bp_restore_begin": [HANDLE, c_char_p, c_uint32],
    "bp_restore_finish": [HANDLE, c_char_p],
    "bp_offload_group_get": [HANDLE, c_size_t, POINTER(Group)],
    "bp_lease_take": [HANDLE, c_char_p, c_char_p, OUT],
    "bp_plan_set_group": [HANDLE, c_size_t, c_char_p],
}

OTHER_FUNCTIONS = {
    "bp_offload_destroy": (None, [OUT]),
    "bp_offload_trim": (None, [HANDLE]),
    "bp_offload_group_count": (c_size_t, [HANDLE]),
    "bp_lease_return": (None, [OUT]),
}


def load_offload(path: str):
    """The library with pools and offload declared."""
    lib = load(path)
    declare(lib, STATUS_FUNCTIONS, OTHER_FUNCTIONS)
    return lib
