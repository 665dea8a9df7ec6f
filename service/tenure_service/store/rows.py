"""One class a row shape: what each named statement gives, compared with the catalogue by a test.

Ids are lower case UUID text: that is what travels, and making UUID objects of them costs more than
the rest of a row. Rows of the hot path are tuples with names, for the same reason.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

Json = dict[str, Any]


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
    """A task that is to be cancelled."""

    task_id: str


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
    """A task whose grace is over."""

    namespace_id: int
    run_id: str
    task_id: str


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

    lease_expired: bool
    timer_due_ms: int | None
    cancel_overdue: bool
    cancel_requested: bool
    timeout_due: bool
    ready_lane_ids: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionOpened:
    """A session and the epoch in which this server has it."""

    session_id: str
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRow:
    """An open session."""

    session_id: str
    worker: str
    sdk: str
    sdk_version: str
    app_version: str
    handlers: list[Json]
    slots: Json
    opened_at: datetime
    seen_at: datetime
    receiving: bool
    held_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseRenewed:
    """A lease that lives on."""

    lease_id: str
    secret: bytes
    namespace_id: int


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
    ended_at: datetime | None
    worker: str | None
    key: str | None
    cancel_requested: bool
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
class TaskResultRow:
    """How a task was over; `outcome` is None while it is not."""

    run_id: str
    task_id: str
    outcome: str | None
    dead: bool
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
    """What stands around a task."""

    worker_count: int
    registered: bool
    paused_at: datetime | None
    ahead_count: int
    suspect: bool


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


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterHeld:
    """A locked dead letter."""

    run_id: str
    task_id: str
    lane_id: int
    delivery: int
    state: str
    priority: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceRow:
    """A namespace."""

    namespace_id: int
    name: str
    created_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneRow:
    """A lane."""

    lane_id: int
    namespace_id: int
    queue: str
    name: str
    lane_key: str
    suspect: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRow:
    """A stored policy."""

    policy_id: int
    digest: bytes
    body: Json


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskDefRow:
    """What is known of a task name."""

    name: str
    declared: Json | None
    override: Json | None
    app_version: str
    updated_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskDefPolicies:
    """What code declares of a task name, and what an operator overrides."""

    namespace_id: int
    name: str
    declared: Json | None
    override: Json | None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueRow:
    """A queue and since when it is paused."""

    name: str
    paused_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueStatisticsRow:
    """Counts of one task name in one queue."""

    queue: str
    name: str
    ready_count: int
    delayed_count: int
    leased_count: int
    dead_count: int
    oldest_ready_at: datetime | None
    worker_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRow:
    """A partition and its bounds, as the catalogue prints them."""

    parent: str
    name: str
    bound: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockRow:
    """The database's time, and whether it refuses writes."""

    now: datetime
    read_only: bool


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


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionHeld:
    """Whether a session holds a lease."""

    holding: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Breach:
    """What breaks an invariant: the task (or the lease, twice), and what was found of it."""

    run_id: str
    task_id: str
    detail: str
