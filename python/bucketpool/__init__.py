"""bucketpool: plans and pools the memory that sharded training gathers into and reduces from.

    buckets = Buckets(Model.read("config.json"), dp=64)
    plan = Plan(buckets, Schedule.training(buckets))
    with Pool(Device.host(), plan) as pool: ...

Needs nothing but the libraries: numpy and PyTorch are used where a view is asked for them. docs/reference/python.md."""

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
