"""Rows of how runs end their activations, wait, and go on."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLocked:
    """A locked run."""

    run_id: str
    namespace_id: int
    status: str
    recovery_attempts: int
    version: str | None
    parent_run_id: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class InboxTaken:
    """A task or a run that is over, and the run that started it."""

    run_id: str
    child_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitSetCounted:
    """How many more of a set are to be over before its run goes on."""

    run_id: str
    needed_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReadied:
    """A run that goes on, in which lane."""

    run_id: str
    lane_id: int
    rank: int
