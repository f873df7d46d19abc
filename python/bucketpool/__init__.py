# SPDX-License-Identifier: Apache-2.0
"""Plans and serves the memory of FSDP training: one address for every bucket, and pools that serve the buckets there.

Begin with five names:

    Model      units with parameters or buckets, from config.json, safetensors or units.json
    Buckets    the buckets of a model by the rules of a runtime, and their requests for memory
    Schedule   the steps in which each request is live
    Plan       an address for each request, in as few bytes as the schedule allows
    Pool       the memory of a plan on a Device; acquire() gives Views: numpy arrays, tensors, DLPack

Plan a model, then serve a bucket on the CPU (Device.cuda(0): on a GPU):

    import bucketpool as bp

    buckets = bp.Buckets(bp.Model.read("config.json"), dp=64)
    plan = bp.Plan(buckets, bp.Schedule.training(buckets))
    device = bp.Device.host()
    with bp.Pool(device, plan) as pool:
        view, = pool.acquire([0], device.stream())
        view.numpy("uint8")[:] = 0
        view.release()

Further names: Capture (CUDA graphs), Comm, Registration and Entry (NCCL), Offload (release groups), Profile
(snapshots), Packing (offsets of any items), StepPlan (training steps), alternatives and peaks (what-if),
cuda_arch_list(), Error and its subclasses.
bucketpool.torch.fsdp2, bucketpool.torch.megatron_fsdp and bucketpool.torch.deepspeed attach pools to these runtimes.
numpy and PyTorch are imported when they are used. docs/reference/python.md describes the whole package.
"""

from .buckets import Bucket, Buckets, Request
from .capture import Capture, CaptureSummary
from .comm import Comm
from .cuda import cuda_arch_list
from .device import Device, Event, Gpu, Stream, Usage
from .errors import (CaptureError, CommError, DeviceError, Error, FileError, FormatError, Infeasible, InternalError,
                     InvalidArgument, Mismatch, NoDevice, NoDeviceMemory, NoHostMemory, RankTimeout, ScheduleError,
                     SizeOverflow, Unsupported)
from .model import GivenBucket, Model, Parameter, Unit
from .offload import Lease, Offload, OffloadGroup, Pinned, PinnedStatistics
from .packing import Packing, Placement
from .plan import Plan, PlanRequest, PlanRole, PlanSlab
from .pool import LiveRequest, Pool, PoolEvent, PoolSlab, Statistics
from .profile import Profile
from .registration import Entry, Registration, Window
from .schedule import Schedule, ScheduleEvent, Step
from .step_plan import StepEvent, StepItem, StepKind, StepPlan, StepWaits
from .view import View
from .whatif import Alternative, Holder, Peak, alternatives, peaks

__all__ = ["Alternative", "Bucket", "Buckets", "Capture", "CaptureError", "CaptureSummary", "Comm",
           "CommError", "Device", "DeviceError", "Entry", "Error", "Event", "FileError", "FormatError",
           "GivenBucket", "Gpu", "Holder", "Infeasible", "InternalError", "InvalidArgument", "Lease",
           "LiveRequest", "Mismatch", "Model", "NoDevice", "NoDeviceMemory", "NoHostMemory", "Offload",
           "OffloadGroup", "Packing", "Parameter", "Peak", "Pinned", "PinnedStatistics", "Placement", "Plan",
           "PlanRequest", "PlanRole", "PlanSlab", "Pool", "PoolEvent", "PoolSlab", "Profile", "RankTimeout",
           "Registration", "Request", "Schedule", "ScheduleError", "ScheduleEvent", "SizeOverflow",
           "Statistics", "Step", "StepEvent", "StepItem", "StepKind", "StepPlan", "StepWaits", "Stream",
           "Unit", "Unsupported", "Usage", "View", "Window", "__version__", "alternatives", "cuda_arch_list", "peaks"]

__version__ = "1.0.0-rc2"
