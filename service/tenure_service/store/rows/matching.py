"""Rows of versions of workflow functions, and of what runs are handed to workers with."""

from dataclasses import dataclass
from datetime import datetime

from tenure_service.store.rows.json import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivationRow:
    """What a run is handed with, beside its input and its steps."""

    run_id: str
    created_at: datetime
    version: str | None
    key: str | None
    recovery_count: int
    parent_run_id: str | None
    attributes: Json | None
    cancel_reason: str | None
    cancel_grace_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionVersion:
    """The version of a workflow function that a session came with."""

    session_id: str
    queue: str
    name: str
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OrphanedLane:
    """A lane whose runs wait for a version that nobody serves, and the version that may have them."""

    lane_id: int
    namespace_id: int
    queue: str
    name: str
    lane_key: str
    suspect: bool
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunAdopted:
    """The new lane of a run that was moved, and its rank there."""

    lane_id: int
    rank: int
