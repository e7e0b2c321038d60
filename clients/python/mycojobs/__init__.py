"""Submits jobs and flows to mycojobs, waits for them, and reads their results and logs. `Client` blocks, `AsyncClient`
is for asyncio."""
from .aio import AsyncArtifact, AsyncClient, AsyncFlow, AsyncJob
from .errors import (
    CannotShip,
    Conflict,
    Denied,
    Error,
    FlowFailed,
    Invalid,
    JobCancelled,
    JobFailed,
    NotFound,
    TooLarge,
    Unavailable,
    Unsupported,
    WaitTimeout,
)
from .http import Event
from .ship import Upload, job
from .sync import Artifact, Client, Flow, Job
from .version import __version__

__all__ = [
    "Artifact", "AsyncArtifact", "AsyncClient", "AsyncFlow", "AsyncJob", "CannotShip", "Client", "Conflict", "Denied", "Error", "Event", "Flow", "FlowFailed", "Invalid",
    "Job", "JobCancelled", "JobFailed", "NotFound", "TooLarge", "Unavailable", "Unsupported", "Upload", "WaitTimeout", "__version__", "job",
]  # fmt: skip
