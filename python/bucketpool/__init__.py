"""bucketpool: plans and pools the memory that sharded training gathers into and reduces from."""

from .errors import *  # noqa: F401,F403
