"""Rows of what readers see: tasks, deliveries, results, dead letters."""

from dataclasses import dataclass
from datetime import datetime

from tenure_service.store.rows.json import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskKey:
    """Names a task in a list."""

    run_id: str
    task_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRow:
    """A task as readers see it."""

    run_id: str
    task_id: str
    lane_id: int
    name: str
    queue: str
    lane_key: str
    state: str
    priority: int
    policy_id: int
    attempt: int
    delivery: int
    lost_count: int
    enqueued_at: datetime
    ready_at: datetime | None
    started_at: datetime | None
    details: Json | None
    ended_at: datetime | None
    worker: str | None
    key: str | None
    traceparent: str | None
    cancel_requested: bool
    cancel_reason: str | None
    cancel_deadline_at: datetime | None
    failure: Json | None
    input: bytes | None
    input_encoding: str | None
    input_schema: str | None
    output: bytes | None
    output_encoding: str | None
    output_schema: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryRow:
    """One ended hand-out."""

    delivery: int
    attempt: int
    outcome: str
    final: bool
    worker: str | None
    started_at: datetime | None
    ended_at: datetime
    failure: Json | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOver:
    """A task that is over."""

    task_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskResultRow:
    """How a task or a run was over; `outcome` is None while it is not."""

    run_id: str
    task_id: str
    outcome: str | None
    dead: bool
    of_run: bool
    attempt: int | None
    output: bytes | None
    output_encoding: str | None
    output_schema: str | None
    failure: Json | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DetailsRow:
    """Details that one hand-out left for the next."""

    task_id: str
    output: bytes
    output_encoding: str | None
    output_schema: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainRow:
    """What stands around a task.

    Attributes:
        full_count: Workers among those counted that have no free slot.
        elsewhere: By other queue, a worker that serves the name there.
    """

    timers_held_at: datetime | None
    worker_count: int
    full_count: int
    elsewhere: Json
    registered: bool
    paused_at: datetime | None
    ahead_count: int
    suspect: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class HolderRow:
    """A lease, and its worker.

    Attributes:
        seen_at: When a server last noted that it has the worker's stream.
        present: Whether a server has it now.
        key_name: The key that it came with; None: without one.
        key_ended_at: When that key ended; None: it is good.
    """

    granted_at: datetime
    expires_at: datetime
    seen_at: datetime
    present: bool
    key_name: str | None
    key_ended_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterRow:
    """Why a task is a dead letter, and what became of that."""

    reason: str
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AsideRow:
    """What keeps workers from a task that they serve.

    Attributes:
        alone_worker: One of them that runs a task which lost its workers, and nothing else.
        suspect_waits: Whether such a task waits in the namespace.
        shut_out: `worker`, `key` and `ended_at` of one of them whose key has ended.
    """

    alone_worker: str | None
    suspect_waits: bool
    shut_out: Json | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterRow:
    """A task that ended without success."""

    run_id: str
    task_id: str
    name: str
    queue: str
    reason: str
    state: str
    attempt: int
    died_at: datetime
    failure: Json | None
    input: bytes | None
    input_encoding: str | None
    input_schema: str | None
    page_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterHeld:
    """A locked dead letter."""

    run_id: str
    task_id: str
    lane_id: int
    delivery: int
    state: str
    priority: int
