"""Rows of keys, and of what operators did."""

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiKeyRow:
    """A key; `namespace` is none for a key of every namespace."""

    key_id: str
    namespace_id: int | None
    namespace: str | None
    name: str
    hash: bytes
    scopes: list[str]
    queue_globs: list[str]
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    used_at: datetime | None
    created_by: str | None
    ended: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiKeyWorkers:
    """How many workers take tasks with a key."""

    key_id: str
    worker_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskQueueRow:
    """On which queue a task is."""

    task_id: str
    queue: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEventRow:
    """One thing that an operator did."""

    audit_event_id: int
    at: datetime
    namespace: str | None
    actor: str
    action: str
    request: str
    outcome: str
    peer: str
