"""Memory for FSDP training: plans an address for every bucket, and serves the buckets from pools.

Plan a model, then serve its buckets on the CPU:

    import bucketpool as bp

    buckets = bp.Buckets(bp.Model.read("config.json"), dp=64)
    plan = bp.Plan(buckets, bp.Schedule.training(buckets))
    print(plan.bytes, plan.lower_bound_bytes)

    device = bp.Device.host()
    with bp.Pool(device, plan) as pool:
        stream = device.stream("gather")
        view, = pool.acquire([0], stream)
        view.numpy()[:] = 0
        view.release()

- Planning: Model, Buckets, Schedule, Plan
- Serving: Device, Stream, Event, Pool, View, Capture
- NCCL: Comm, Registration, Entry
- Errors: Error and its subclasses, one for each status of the library

The package needs only the libraries. numpy and PyTorch are imported when a view is converted to them.
docs/reference/python.md describes the whole package.
"""

from .buckets import Bucket, Buckets, Request
from .capture import Capture, CaptureSummary
from .comm import Comm
from .device import Device, Event, Stream, Usage
from .errors import (CaptureError, CommError, DeviceError, Error, FileError, FormatError, Infeasible, InternalError,
                     InvalidArgument, Mismatch, NoDevice, NoDeviceMemory, NoHostMemory, RankTimeout, ScheduleError,
                     SizeOverflow, Unsupported)
from .model import GivenBucket, Model, Parameter, Unit
from .plan import Plan, PlanRequest, PlanRole, PlanSlab
from .pool import LiveRequest, Pool, PoolSlab, Statistics
from .registration import Entry, Registration, Window
from .schedule import Schedule, ScheduleEvent, Step
from .view import View

__all__ = ["Bucket", "Buckets", "Capture", "CaptureError", "CaptureSummary", "Comm",
           "CommError", "Device", "DeviceError", "Entry", "Error", "Event", "FileError", "FormatError",
           "GivenBucket", "Infeasible", "InternalError", "InvalidArgument", "LiveRequest", "Mismatch",
           "Model", "NoDevice", "NoDeviceMemory", "NoHostMemory", "Parameter", "Plan", "PlanRequest", "PlanRole",
           "PlanSlab", "Pool", "PoolSlab", "RankTimeout", "Registration", "Request", "Schedule", "ScheduleError",
           "ScheduleEvent", "SizeOverflow", "Statistics", "Step", "Stream", "Unit", "Unsupported",
           "Usage", "View", "Window", "__version__"]

__version__ = "0.2.0"
