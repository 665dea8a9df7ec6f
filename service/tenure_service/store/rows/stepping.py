"""Rows of the steps of runs."""

from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from tenure_service.store.rows.json import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLease:
    """A lease that holds an activation of a run."""

    lease_id: str
    run_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRun:
    """A locked run, and the first one of its tree."""

    run_id: str
    root_run_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFence:
    """An activation that runs, with the number of its steps where that was asked for."""

    lease_id: str
    run_id: str
    step_count: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepInserted:
    """A step that was recorded now."""

    run_id: str
    step_id: str
    seq: int
    recorded_at: datetime
    wake_at: datetime | None


class StepRow(NamedTuple):
    """A recorded step; `found_count` are those of its run that were looked at for its page."""

    run_id: str
    step_id: str
    seq: int
    recorded_at: datetime
    kind: str
    name: str
    child_id: str | None
    wake_at: datetime | None
    remaining_ms: int | None
    output: bytes | None
    output_encoding: str | None
    output_schema: str | None
    failure: Json | None
    found_count: int = 1


class ChildResultRow(NamedTuple):
    """How a task or a run was over that a run has started; no outcome: it is not over."""

    parent_id: str
    child_id: str
    outcome: str | None
    dead: bool
    ended_at: datetime | None
    output: bytes | None
    output_encoding: str | None
    output_schema: str | None
    failure: Json | None
    fits: bool = True
