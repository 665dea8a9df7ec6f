"""Deliveries: ending hand-outs, and what is written for what follows from it."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from tenure_service.engine.retry import DeadReason
from tenure_service.engine.states import Outcome
from tenure_service.engine.tokens import TaskKey
from tenure_service.store import arrays, rows, statements
from tenure_service.store.database import Conn
from tenure_service.store.jsonb import jsonb_text


@dataclass(frozen=True, slots=True, kw_only=True)
class NewDelivery:
    """The end of one hand-out."""

    run_id: str
    task_id: str
    delivery: int
    attempt: int
    outcome: Outcome
    final: bool
    lease_id: str | None = None
    session_id: str | None = None
    run_ms: float | None = None
    output: bytes | None = None
    output_encoding: str | None = None
    output_schema: str | None = None
    failure: rows.Json | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PutBack:
    """A task that goes back to its lane, or to the clock; the numbers are of its next hand-out.

    A run that is suspended waits for its time, and without a delay for something to happen.
    """

    run_id: str
    task_id: str
    namespace_id: int
    lane_id: int
    rank: int
    attempt: int
    delivery: int
    lost_count: int
    seq: int | None = None
    delay_ms: int | None = 0
    suspended: bool = False
    total_by: datetime | None = None
    start_ms: int | None = None

    @property
    def is_timed(self) -> bool:
        """True if it goes to the clock."""
        return self.suspended or (self.delay_ms or 0) > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """A task that goes to the dead letters."""

    run_id: str
    task_id: str
    namespace_id: int
    delivery: int
    attempt: int
    reason: DeadReason


def insert(
    conn: Conn, ends: Sequence[NewDelivery], *, now: datetime | None = None
) -> set[tuple[str, int]]:
    """Ends hand-outs; gives (task id, delivery) of those that had not ended before."""
    parameters = {
        "run_ids": arrays.uuids([end.run_id for end in ends]),
        "task_ids": arrays.uuids([end.task_id for end in ends]),
        "lease_ids": arrays.uuids_or_null([end.lease_id for end in ends]),
        "session_ids": arrays.uuids_or_null([end.session_id for end in ends]),
        "run_ms": arrays.numbers_or_null([end.run_ms for end in ends]),
        "deliveries": arrays.numbers([end.delivery for end in ends]),
        "attempts": arrays.numbers([end.attempt for end in ends]),
        "outcomes": arrays.words([end.outcome for end in ends]),
        "finals": arrays.booleans([end.final for end in ends]),
        "outputs": arrays.blobs([end.output for end in ends]),
        "output_encodings": arrays.texts([end.output_encoding for end in ends]),
        "output_schemas": arrays.texts([end.output_schema for end in ends]),
        "failures": arrays.texts(
            [None if end.failure is None else jsonb_text(end.failure) for end in ends]
        ),
        "now": now,
    }
    found = statements.many(conn, "delivery_insert", rows.DeliveryInserted, parameters)
    return {(row.task_id, row.delivery) for row in found}


def classify(conn: Conn, results: Sequence[tuple[TaskKey, str]]) -> dict[tuple[str, str], Outcome]:
    """Says how hand-outs had ended, by (task id, lease id); one that had not is missing."""
    parameters = {
        "run_ids": arrays.uuids(key.run_id for key, _ in results),
        "task_ids": arrays.uuids(key.task_id for key, _ in results),
        "lease_ids": arrays.uuids(lease_id for _, lease_id in results),
    }
    found = statements.many(conn, "delivery_classify", rows.DeliveryEnded, parameters)
    return {(row.task_id, row.lease_id): Outcome(row.outcome) for row in found}


def details(conn: Conn, wanted: Sequence[tuple[TaskKey, int]]) -> dict[str, rows.DetailsRow]:
    """Reads, by task id, the details that a delivery left for the next one."""
    parameters = {
        "run_ids": arrays.uuids(key.run_id for key, _ in wanted),
        "task_ids": arrays.uuids(key.task_id for key, _ in wanted),
        "deliveries": arrays.numbers(delivery for _, delivery in wanted),
    }
    found = statements.many(conn, "details_list", rows.DetailsRow, parameters)
    return {row.task_id: row for row in found}


def policy_ids(conn: Conn, keys: Sequence[TaskKey]) -> dict[str, int]:
    """Reads, by task id, which policies tasks were enqueued with."""
    found = statements.many(conn, "task_policy_list", rows.TaskPolicyId, arrays.task_keys(keys))
    return {row.task_id: row.policy_id for row in found}


def put_back(conn: Conn, tasks: Sequence[PutBack], *, now: datetime | None = None) -> None:
    """Makes tasks ready again, those with a delay once it is over."""
    ready = [task for task in tasks if not task.is_timed]
    timed = [task for task in tasks if task.is_timed]
    if ready:
        parameters = _put_back_parameters(ready)
        parameters["seqs"] = arrays.numbers_or_null([task.seq for task in ready])
        statements.execute(conn, "ready_insert", parameters | {"now": now})
    if timed:
        parameters = _put_back_parameters(timed)
        parameters["namespace_ids"] = arrays.numbers([task.namespace_id for task in timed])
        parameters["kinds"] = arrays.words(
            ["WAIT" if task.suspended else "BACKOFF" for task in timed]
        )
        parameters["delays_ms"] = arrays.numbers_or_null([task.delay_ms for task in timed])
        statements.execute(conn, "timer_insert", parameters | {"now": now})


def _put_back_parameters(tasks: Sequence[PutBack]) -> dict[str, object]:
    return {
        "lane_ids": arrays.numbers([task.lane_id for task in tasks]),
        "ranks": arrays.numbers([task.rank for task in tasks]),
        "run_ids": arrays.uuids([task.run_id for task in tasks]),
        "task_ids": arrays.uuids([task.task_id for task in tasks]),
        "attempts": arrays.numbers([task.attempt for task in tasks]),
        "deliveries": arrays.numbers([task.delivery for task in tasks]),
        "lost_counts": arrays.numbers([task.lost_count for task in tasks]),
        "total_bys": arrays.instants_or_null([task.total_by for task in tasks]),
        "starts_ms": arrays.numbers_or_null([task.start_ms for task in tasks]),
    }


def bury(conn: Conn, deaths: Sequence[Death], *, now: datetime | None = None) -> None:
    """Puts tasks into the dead letters."""
    parameters = {
        "run_ids": arrays.uuids(death.run_id for death in deaths),
        "task_ids": arrays.uuids(death.task_id for death in deaths),
        "namespace_ids": arrays.numbers(death.namespace_id for death in deaths),
        "deliveries": arrays.numbers(death.delivery for death in deaths),
        "attempts": arrays.numbers(death.attempt for death in deaths),
        "reasons": arrays.words(death.reason for death in deaths),
        "now": now,
    }
    statements.execute(conn, "dead_letter_insert", parameters)
