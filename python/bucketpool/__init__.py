"""bucketpool: plans and pools the memory that sharded training gathers into and reduces from.

    buckets = Buckets(Model.read("config.json"), dp=64)
    plan = Plan(buckets, Schedule.training(buckets))
    with Pool(Device.host(), plan) as pool: ...

Needs nothing but the libraries: numpy and PyTorch are used where a view is asked for them. docs/python.md."""

from .buckets import Bucket, Buckets, Request
from .capture import Capture, CaptureSummary
from .comm import Comm
from .device import Device, Event, Stream, Usage
from .errors import *  # noqa: F401,F403
from .model import GivenBucket, Model, Parameter, Unit
from .plan import Assignment, Plan, PlanRole, PlanSlab
from .pool import BoundRequest, LiveRequest, Pool, PoolSlab, Statistics
from .registration import Entry, Registration, Window
from .schedule import Schedule, ScheduleEvent, Step, Wait
from .view import View


def version() -> str:
    """Of the library that is loaded."""
    from ._library import core

    return str(core().bp_version().decode())
