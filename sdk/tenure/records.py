"""What the clients answer with: frozen values, free of gRPC and protobuf.

Instants are aware datetimes in UTC, by the database's clock; None where the protocol says unset.
"""

from __future__ import annotations

import dataclasses
import enum
import json
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from tenure import check

if TYPE_CHECKING:
    import datetime

    from tenure.failure import Failure
    from tenure.policy import Retry, Timeouts

T = TypeVar("T")


class Named(enum.StrEnum):
    """Named is an enum of the protocol; a value of a newer server reads as UNKNOWN."""

    @classmethod
    def _missing_(cls, value: object) -> Named | None:  # noqa: ARG003 - enum passes it
        return cls.__members__.get("UNKNOWN")


class TaskState(Named):
    """TaskState is where a task stands."""

    UNKNOWN = "UNKNOWN"
    DELAYED = "DELAYED"
    READY = "READY"
    LEASED = "LEASED"
    RUNNING = "RUNNING"
    BACKOFF = "BACKOFF"
    COMPLETED = "COMPLETED"
    DEAD = "DEAD"
    CANCELLED = "CANCELLED"
    TIMED_OUT = "TIMED_OUT"

    @property
    def over(self) -> bool:
        """True if the task will not run again unless an operator replays it."""
        return self in {
            TaskState.COMPLETED,
            TaskState.DEAD,
            TaskState.CANCELLED,
            TaskState.TIMED_OUT,
        }


class DeliveryOutcome(Named):
    """DeliveryOutcome says how one hand-out of a task ended."""

    UNKNOWN = "UNKNOWN"
    DONE = "DONE"
    FAILED = "FAILED"
    TIMED_OUT = "TIMED_OUT"
    CANCELLED = "CANCELLED"
    LOST = "LOST"
    RELEASED = "RELEASED"
    SUSPENDED = "SUSPENDED"
    RESCHEDULED = "RESCHEDULED"


class DeadLetterReason(Named):
    """DeadLetterReason says why a task is in the dead letters."""

    UNKNOWN = "UNKNOWN"
    ATTEMPTS_EXHAUSTED = "ATTEMPTS_EXHAUSTED"
    NON_RETRYABLE = "NON_RETRYABLE"
    LEASE_LOST = "LEASE_LOST"


class DeadLetterState(Named):
    """DeadLetterState says what became of a dead letter."""

    UNKNOWN = "UNKNOWN"
    OPEN = "OPEN"
    REPLAYED = "REPLAYED"
    DISCARDED = "DISCARDED"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Payload:
    """Payload is user data to the byte, with the name of its encoding."""

    data: bytes
    encoding: str = "json"
    schema: str = ""

    def json(self) -> Any:
        """Returns the decoded JSON value; None for empty data.

        Raises:
            ValueError: the data is no JSON.
        """
        return json.loads(self.data) if self.data else None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Policy is how a task is retried and limited; None: nothing said."""

    retry: Retry | None = None
    timeouts: Timeouts | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NewTask:
    """NewTask is a task to enqueue by name.

    Attributes:
        name: Name of the handler; it need not be registered.
        arguments: Parameters by name, or a payload to the byte.
        queue: Queue; empty: `default`.
        priority: -100 to 100, larger first.
        delay: Seconds before it may run.
        key: Idempotency key; empty: none.
        key_duration: Seconds the key stays in force; None: 24 hours.
        lane: Lane key within the queue; empty: none.
        policy: Policy that goes before every other source; None: nothing said.
        traceparent: W3C trace context; empty: none.
    """

    name: str
    arguments: dict[str, Any] | Payload = dataclasses.field(default_factory=dict)
    queue: str = ""
    priority: int = 0
    delay: float = 0.0
    key: str = ""
    key_duration: float | None = None
    lane: str = ""
    policy: Policy | None = None
    traceparent: str = ""

    def __post_init__(self) -> None:
        # Bounds are left to the server, which names every field that is out of them at once.
        for field in ("name", "queue", "key", "lane", "traceparent"):
            check.instance(getattr(self, field), f"NewTask: {field}", str, "a text")
            check.encodes(getattr(self, field), f"NewTask: {field}")
        check.instance(self.priority, "NewTask: priority", int, "a whole number")
        expected = "a dict of parameters by name, or a Payload"
        check.instance(self.arguments, "NewTask: arguments", (dict, Payload), expected)
        check.seconds(self.delay, "NewTask: delay")
        if self.key_duration is not None:
            check.seconds(self.key_duration, "NewTask: key_duration")
        if self.policy is not None:
            check.kind(self.policy, "NewTask: policy", Policy, "Policy(retry=Retry(3))")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EnqueuedTask:
    """EnqueuedTask names a stored task; `existing` if it stood under its key before."""

    id: str
    existing: bool


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """Delivery is the record of one hand-out of a task to a worker."""

    delivery: int
    attempt: int
    outcome: DeliveryOutcome
    final: bool
    worker: str
    started_at: datetime.datetime | None
    ended_at: datetime.datetime | None
    failure: Failure | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TaskSnapshot:
    """TaskSnapshot is a task as it stood at one moment; payloads only where asked for.

    Attributes:
        ready_at: When it may run; of a READY one, since when it waits for a worker.
        started_at: When its handler started, while that runs.
        details: Progress that the handler told last, while that runs; not in lists.
        details_at: When it told it.
        traceparent: W3C trace context that it was enqueued with; empty: none.
    """

    id: str
    name: str
    queue: str
    lane: str
    state: TaskState
    priority: int
    attempt: int
    delivery: int
    lost_count: int
    policy: Policy
    input: Payload | None
    output: Payload | None
    failure: Failure | None
    enqueued_at: datetime.datetime | None
    ready_at: datetime.datetime | None
    ended_at: datetime.datetime | None
    worker: str
    key: str
    cancel_requested: bool
    started_at: datetime.datetime | None
    details: Payload | None
    details_at: datetime.datetime | None
    traceparent: str

    @property
    def trace_id(self) -> str:
        """Returns the id of its trace, 32 hexadecimal digits; empty: it has none."""
        parts = self.traceparent.split("-")
        return parts[1] if len(parts) > 1 else ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TaskDetails:
    """TaskDetails is a task with every delivery that ended, oldest first."""

    task: TaskSnapshot
    deliveries: list[Delivery]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TaskOutcome:
    """TaskOutcome is how a task was over."""

    id: str
    state: TaskState
    output: Payload | None
    failure: Failure | None
    attempt: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TaskExplanation:
    """TaskExplanation says why a task stands where it stands, the most important first."""

    state: TaskState
    reasons: list[str]
    ahead_count: int
    worker_count: int
    ready_at: datetime.datetime | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TaskDefinition:
    """TaskDefinition is what is known of one task name.

    Attributes:
        name: Name of the task.
        declared: What the newest registered code says; None: nothing.
        override: What an operator said; None: nothing.
        effective: What a task enqueued now without words of its own would get.
        app_version: Version of the code that declared it.
        updated_at: When it last changed.
        registered: True once a worker's code declared a task of this name.
    """

    name: str
    declared: Policy | None
    override: Policy | None
    effective: Policy
    app_version: str
    updated_at: datetime.datetime | None
    registered: bool


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """Queue is a queue as an operator set it; `paused_at` None: not paused."""

    name: str
    paused_at: datetime.datetime | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class QueueStatistics:
    """QueueStatistics counts the tasks of one name in one queue."""

    queue: str
    name: str
    ready_count: int
    delayed_count: int
    leased_count: int
    oldest_ready_at: datetime.datetime | None
    worker_count: int
    dead_count: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Namespace:
    """Namespace separates tenants."""

    name: str
    created_at: datetime.datetime | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HandlerInfo:
    """HandlerInfo is one task or workflow by name, on one queue, that a worker serves.

    Attributes:
        is_workflow: True for a workflow.
        version: Version of the workflow's code; empty for a task.
    """

    name: str
    queue: str
    is_workflow: bool = False
    version: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WorkerInfo:
    """WorkerInfo is a worker that holds a session.

    Attributes:
        receiving: True while it has a stream that takes tasks; heartbeats alone do not make it so.
        slots: Tasks it takes at a time.
        held_count: Tasks it holds and has not reported.
        seen_at: When its server last heard from it, to within a few seconds.
        gone: True if nobody has heard from it for a minute, and it holds nothing that it renews.
        key_id: Key that it opened or last resumed its session with; empty: none was asked for.
        key_name: Name of that key.
    """

    name: str
    session_id: str
    sdk: str
    sdk_version: str
    app_version: str
    handlers: list[HandlerInfo]
    slots: int
    held_count: int
    opened_at: datetime.datetime | None
    seen_at: datetime.datetime | None
    receiving: bool
    gone: bool
    key_id: str
    key_name: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """DeadLetter is a task that ended without success."""

    task_id: str
    name: str
    queue: str
    reason: DeadLetterReason
    state: DeadLetterState
    failure: Failure | None
    attempt: int
    died_at: datetime.datetime | None
    input: Payload | None
    task_state: TaskState


@dataclasses.dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """Page is one page of a list; an empty `next_page_token` says it was the last."""

    items: list[T]
    next_page_token: str
