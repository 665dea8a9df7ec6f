"""Rows of what is done to a database that was restored to an earlier moment."""

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreRow:
    """A restore that was checked; timers are held until it is released."""

    restore_id: int
    checked_at: datetime
    checked_by: str
    data_until: datetime | None
    void_until: datetime
    session_count: int
    lease_count: int
    task_count: int
    released_at: datetime | None
    released_by: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreData:
    """What was written last of each kind, and of all kinds."""

    delivery_ended_at: datetime | None
    task_enqueued_at: datetime | None
    lease_granted_at: datetime | None
    session_seen_at: datetime | None
    data_until: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreCounts:
    """What a restored database holds that is void, or waits for its time."""

    session_count: int
    present_count: int
    lease_count: int
    task_count: int
    timer_count: int
    timer_due_count: int
    timeout_due_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadyCount:
    """How many tasks of a queue wait for a worker."""

    namespace: str
    queue: str
    ready_count: int
