"""Rows of what moves tasks: keys, leases, hand-outs, cancellations, timers."""

from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from tenure_service.store.rows.json import Json


class LeasedTask(NamedTuple):
    """A task that was just leased, with what its worker needs."""

    lease_id: str
    run_id: str
    task_id: str
    rank: int
    seq: int
    attempt: int
    delivery: int
    policy_id: int
    input: bytes
    input_encoding: str | None
    input_schema: str | None
    traceparent: str | None
    wait_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class IdMade:
    """A new id."""

    id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestClaimed:
    """A request id that was not known before."""

    namespace_id: int
    request_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRow:
    """What an earlier call with this request id answered: 16 bytes an id, in order."""

    namespace_id: int
    request_id: str
    kind: str
    digest: bytes
    answer: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyClaimed:
    """An idempotency key that now stands for this task."""

    namespace_id: int
    kind: str
    key: str
    task_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRow:
    """An idempotency key that stood, and for what."""

    namespace_id: int
    kind: str
    key: str
    run_id: str
    task_id: str
    name: str
    input_hash: bytes
    expired: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneHead:
    """The first waiting task of a lane."""

    lane_id: int
    rank: int
    seq: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletedCount:
    """How many hand-outs a statement ended."""

    delivery_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseLive:
    """A lease that is there."""

    lease_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseRow:
    """A locked lease; the arrays run in parallel."""

    lease_id: str
    secret: bytes
    session_id: str
    namespace_id: int
    lane_id: int
    run_ids: list[str]
    task_ids: list[str]
    seqs: list[int]
    attempts: list[int]
    deliveries: list[int]
    ranks: list[int]
    lost_counts: list[int]
    total_bys: list[datetime | None] | None
    started_task_ids: list[str] | None
    started_at: list[datetime] | None
    details: Json | None
    alerted: list[str] | None
    read_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryInserted:
    """A hand-out that ended now."""

    task_id: str
    delivery: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryEnded:
    """A hand-out that had ended before."""

    task_id: str
    lease_id: str
    delivery: int
    outcome: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPolicyId:
    """Which policy a task was enqueued with."""

    task_id: str
    policy_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelRequested:
    """A task that is to be cancelled, and why."""

    task_id: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelStanding:
    """Whether any request to cancel stands."""

    standing: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelNotice:
    """What a worker is told of a request to cancel."""

    run_id: str
    task_id: str
    reason: str
    grace_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelOverdue:
    """A task or a run whose request to cancel somebody must see to."""

    namespace_id: int
    run_id: str
    task_id: str
    of_run: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseOfTask:
    """The lease that holds a task."""

    lease_id: str
    task_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingTaken:
    """A task that was taken from where it waited; the numbers are those of its next hand-out."""

    run_id: str
    task_id: str
    attempt: int
    delivery: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingOverdue:
    """A waiting task that was taken because a timeout is due; numbers of its next hand-out."""

    run_id: str
    task_id: str
    namespace_id: int
    lane_id: int
    rank: int
    seq: int | None
    attempt: int
    delivery: int
    lost_count: int
    total_by: datetime | None
    total_over: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TimerFired:
    """A task that became ready."""

    lane_id: int
    rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """What there is to do now, for all loops of a server."""

    timers_held_at: datetime | None
    lease_expired: bool
    timer_due_ms: int | None
    cancel_overdue: bool
    cancel_requested: bool
    run_told: bool
    timeout_due: bool
    ready_lane_ids: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseRenewed:
    """A lease that lives on."""

    lease_id: str
    secret: bytes
    namespace_id: int


class OutstandingTask(NamedTuple):
    """A task that a lease holds, with its secret and what its worker needs."""

    lease_id: str
    secret: bytes
    lane_id: int
    run_id: str
    task_id: str
    rank: int
    seq: int
    attempt: int
    delivery: int
    policy_id: int
    input: bytes
    input_encoding: str | None
    input_schema: str | None
    traceparent: str | None
