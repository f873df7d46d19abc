# SPDX-License-Identifier: Apache-2.0
"""Python has what C has: each function and field of the headers is used by the package, or is left out for a reason."""

import glob
import os
import re
import unittest

from bucketpool import _abi

PACKAGE = os.path.dirname(os.path.abspath(_abi.__file__))
ROOT = os.path.join(PACKAGE, "..", "..")
HEADERS = {os.path.basename(path): path for part in ("", "clients/logprob") for path in glob.glob(os.path.join(ROOT, part, "include", "bucketpool", "*.h"))}

PROVIDER = "for providers of devices and communicators in C; Python has Comm.callback"
TORCH_GRAPHS = "graphs are captured by the runtime (torch.cuda.graph), and Capture follows"
NAMES = "names.py has the names of enumerations"
TORCH_PINS = "PyTorch and numpy allocate pinned memory for tensors; Pinned is a source for offloads"
COLLECTIVES = "collectives of tensors are those of torch.distributed or NCCL; Comm is for agreement and registration"
HERE = "set by the caller's code in C; Python passes functions and objects"
OWN_WORKSPACE = "pools of the workspaces of internal clients, which are freed and created again"
INTERNAL = "of internal clients; bucketpool.torch chooses kernels and threads"
WATCHED = "for searches that another thread watches; work limits a search"
ALLOCATORS = "allocators in C++ call the server; bucketpool.torch.steps loads them"
ADDRESS, COPIES, HOLDERS = "PlanRequest has the address", "PlanRole.copies and bytes", "peaks() names the holders"

FUNCTIONS = {
    "bp_comm_create": PROVIDER, "bp_device_create": PROVIDER,
    "bp_graph_begin": TORCH_GRAPHS, "bp_graph_end": TORCH_GRAPHS, "bp_graph_launch": TORCH_GRAPHS,
    "bp_graph_destroy": TORCH_GRAPHS,
    "bp_policy_name": NAMES, "bp_policy_parse": NAMES, "bp_register_kind_name": NAMES, "bp_cp_order_name": NAMES,
    "bp_device_pin": TORCH_PINS, "bp_device_unpin": TORCH_PINS,
    "bp_pinned_allocate": TORCH_PINS, "bp_pinned_free": TORCH_PINS,
    "bp_comm_all_gather": COLLECTIVES, "bp_comm_all_reduce": COLLECTIVES, "bp_comm_reduce_scatter": COLLECTIVES,
    "bp_dtype_bits": "torch and numpy dtypes have sizes", "bp_dtype_bytes": "torch and numpy dtypes have sizes",
    "bp_dtype_storage": "Bucket and Request have the storage dtype",
    "bp_dtype_is_gradient": "Buckets raises for dtypes that are none",
    "bp_version": "bucketpool.__version__; the library of another version lacks functions, which ImportError names",
    "bp_packing_find_fault": "the message of Packing.check has the numbers of the items",
    "bp_safetensors_read": "Model.read reads safetensors, too",
    "bp_safetensors_parse": "headers are read from files",
    "bp_logprob_saved_bytes": "_passes.py allocates 8 or 12 bytes a token",
    "bp_cp_pool": OWN_WORKSPACE,
    **dict.fromkeys(("bp_step_server_config_init", "bp_step_server_create", "bp_step_server_destroy", "bp_step_server_allocate",
                     "bp_step_server_allocate_anywhere", "bp_step_server_free", "bp_step_server_use", "bp_step_server_mark",
                     "bp_step_server_pause", "bp_step_server_replace"), ALLOCATORS),
}

FIELDS = {
    "bp_comm_traits": PROVIDER, "bp_comm_ops": PROVIDER, "bp_device_ops": PROVIDER, "bp_device_traits": PROVIDER,
    "bp_nccl_functions": "a table of NCCL's functions for C; Python uses the loaded NCCL",
    "bp_logprob_info": INTERNAL, "bp_lm_head_info": INTERNAL,
    "bp_lm_head_config.kernels": INTERNAL, "bp_loss_info.pool": OWN_WORKSPACE,
    "bp_lm_head_gradients.accumulate": "autograd adds gradients",
    "bp_lm_head_gradients.weight_grad_stride": "gradients of weights are contiguous",
    "bp_lm_head_batch.logits_stride": "kept logits are contiguous",
    **dict.fromkeys(("bp_lm_head_sizes.forward_tokens", "bp_lm_head_sizes.backward_tokens", "bp_lm_head_sizes.one_call_tokens",
                     "bp_lm_head_sizes.backward_columns"), "piece_tokens is the one that callers need"),
    "bp_lm_head_sizes.weight_grad_bytes": "on hosts, whose memory is not recorded",
    "bp_lm_head_gradients.saved_bytes": "set in _passes.py", "bp_cp_tensor.data": "set by position, in cp.py",
    "bp_packing_info": "the caller has the items", "bp_pack_progress": WATCHED, "bp_pack_config.progress": WATCHED,
    "bp_pool_config.user": HERE, "bp_offload_config.user": HERE,
    "bp_model_info.prediction_numel": "bucketpool plan reports it",
    "bp_plan_info.class_count": ADDRESS, "bp_plan_info.classes": ADDRESS, "bp_plan_class": ADDRESS,
    "bp_plan_role.buffer_count": COPIES, "bp_plan_buffer": COPIES,
    "bp_plan_role.witness_count": HOLDERS, "bp_plan_role.witnesses": HOLDERS,
    "bp_step_statistics.frees": "Served.summary() has the allocations",
    "bp_capture_slab": "CaptureSummary.bytes", "bp_comm_info.version_name": "torch.cuda.nccl.version()",
}


def interface():
    """{header: names of its functions, structs and constants}, in the order of _abi.py."""
    with open(_abi.__file__, encoding="utf-8") as file:
        text = file.read()
    headers, functions = {}, text[text.index("FUNCTIONS:"):]
    for header, section in re.findall(r"# ---- (\w+)\.h -+\n(.*?)(?=# ---- \w+\.h|FUNCTIONS:)", text, re.DOTALL):
        headers[header] = set(re.findall(r"^(?:class )?(\w+)", section, re.MULTILINE))
    known = set(re.findall(r'"(bp_\w+)": \(', functions))
    for header, names in headers.items():
        with open(HEADERS[header + ".h"], encoding="utf-8") as file:
            names |= known & set(re.findall(r"\b(bp_\w+)\(", file.read()))
    return headers


def modules():
    for path in glob.glob(os.path.join(PACKAGE, "**", "*.py"), recursive=True):
        if os.path.basename(path) != "_abi.py":
            with open(path, encoding="utf-8") as file:
                yield set(re.findall(r"\w+", file.read()))


@unittest.skipUnless("pool.h" in HEADERS, "the headers are not beside the package")
class Parity(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        self.words = list(modules())

    def compare(self, names, is_used, left_out):
        """Each name is used or left out, not both; left_out has no other names."""
        missing = {name for name in names if not is_used(name)}
        excused = {name for name in missing if name in left_out or name.split(".")[0] in left_out}
        self.assertEqual(sorted(missing - excused), [], "bind them in Python, or say here why not")
        known = missing | {name.split(".")[0] for name in missing}
        self.assertEqual(sorted(set(left_out) - known), [], "these are used, or are not in the headers")

    def test_functions(self):
        functions = {name for library in _abi.FUNCTIONS.values() for name in library}
        self.assertGreater(len(functions), 200)
        self.compare(functions, lambda name: any(name in words for words in self.words), FUNCTIONS)

    def test_fields(self):
        """A field is used if a module that uses its header has its name. Common names pass for several fields."""
        of_header = interface()
        fields, header_of = {}, {}
        for header, names in of_header.items():
            for name in sorted(names):
                struct = getattr(_abi, name, None)
                for field, *_ in getattr(struct, "_fields_", ()):
                    fields[f"{name}.{field}"] = field
                    header_of[f"{name}.{field}"] = header
        self.assertGreater(len(fields), 400)
        users = {header: [words for words in self.words if words & names] for header, names in of_header.items()}
        self.compare([name for name, field in fields.items() if field != "size"],
                     lambda name: any(fields[name] in words for words in users[header_of[name]]), FIELDS)


if __name__ == "__main__":
    unittest.main()
