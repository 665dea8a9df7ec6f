"""Rows of what is registered, of sessions, and of the database itself."""

from dataclasses import dataclass
from datetime import datetime

from tenure_service.store.rows.json import Json


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
    key_id: str | None
    key_name: str | None
    sdk: str
    sdk_version: str
    app_version: str
    handlers: list[Json]
    slots: Json
    opened_at: datetime
    seen_at: datetime
    receiving: bool
    held_count: int
    gone: bool


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
    app_version: str


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
class QueueDepthRow:
    """Counts of one task name in one queue of one namespace; or of all the others."""

    namespace: str
    queue: str
    name: str
    ready_count: int
    delayed_count: int
    leased_count: int
    dead_count: int
    oldest_seconds: float
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


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionMark:
    """The id of a transaction, none if it has written nothing."""

    xid: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionFate:
    """What pg_xact_status says; none if the transaction is too old."""

    status: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerIncarnation:
    """When a server started, and its own processes."""

    started_at: datetime
    own_pids: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionKey:
    """The id of a session."""

    session_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionHeld:
    """Whether a session holds a lease."""

    holding: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionTakes:
    """Whether a session may be given tasks."""

    takes: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Breach:
    """What breaks an invariant: the task (or the lease, twice), and what was found of it."""

    run_id: str
    task_id: str
    detail: str
