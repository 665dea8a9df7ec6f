"""Rows of runs as they are read."""

from dataclasses import dataclass
from datetime import datetime

from tenure_service.store.rows.json import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class RunNamed:
    """The id of a run."""

    run_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlace:
    """The place of a step."""

    seq: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """A run in one snapshot; `state` is that of the protocol, without its prefix."""

    run_id: str
    name: str
    queue: str
    lane_key: str
    state: str
    blocked: str | None
    priority: int
    version: str | None
    activation_count: int
    recovery_count: int
    key: str | None
    attributes: Json | None
    parent_run_id: str | None
    root_run_id: str
    failure: Json | None
    created_at: datetime
    ended_at: datetime | None
    wakes_at: datetime | None
    worker: str | None
    cancel_requested: bool
    step_count: int
    input: bytes | None
    input_encoding: str | None
    input_schema: str | None
    output: bytes | None
    output_encoding: str | None
    output_schema: str | None
