"""Leases: taking tasks out of lanes, renewing, locking and spending leases."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from tenure_service.store import arrays, rows, statements
from tenure_service.store.database import Conn
from tenure_service.store.jsonb import jsonb_text

RANK_MIN = -32768
RANK_MAX = 32767


@dataclass(frozen=True, slots=True, kw_only=True)
class Pick:
    """Who takes how many tasks or runs from which lane, from above which place, down to which rank."""

    session_id: str
    epoch: int
    namespace_id: int
    lane_id: int
    task_count_max: int
    secret: bytes
    lease_ms: int
    low_rank: int = RANK_MIN
    low_seq: int = 0
    rank_max: int = RANK_MAX
    of_runs: bool = False


class Completion(NamedTuple):
    """An output, and the hand-out it belongs to as this server made it."""

    lease_id: str
    session_id: str
    run_id: str
    task_id: str
    delivery: int
    attempt: int
    run_ms: float | None
    output: bytes
    output_encoding: str | None
    output_schema: str | None


def take(conn: Conn, pick: Pick, *, now: datetime | None = None) -> list[rows.LeasedTask]:
    """Leases tasks of one lane under one new lease row, in the order of the lane."""
    parameters = {
        "session_id": pick.session_id,
        "epoch": pick.epoch,
        "namespace_id": pick.namespace_id,
        "lane_id": pick.lane_id,
        "task_count_max": pick.task_count_max,
        "secret": pick.secret,
        "lease_ms": pick.lease_ms,
        "low_rank": pick.low_rank,
        "low_seq": pick.low_seq,
        "rank_max": pick.rank_max,
        "now": now,
    }
    return statements.tuples(conn, "lease_take", rows.LeasedTask, parameters)


def heads(conn: Conn, lane_ids: Sequence[int]) -> list[rows.LaneHead]:
    """Finds the first waiting task of each lane that has one, the most urgent lane first."""
    return statements.many(conn, "lane_head", rows.LaneHead, {"lane_ids": arrays.numbers(lane_ids)})


def complete(conn: Conn, completions: Sequence[Completion]) -> int:
    """Records outputs in one statement; gives how many, for the caller to compare."""
    parameters = {
        "held_lease_ids": arrays.uuids({item.lease_id for item in completions}),
        "run_ids": arrays.uuids([item.run_id for item in completions]),
        "task_ids": arrays.uuids([item.task_id for item in completions]),
        "lease_ids": arrays.uuids([item.lease_id for item in completions]),
        "session_ids": arrays.uuids([item.session_id for item in completions]),
        "run_ms": arrays.numbers_or_null([item.run_ms for item in completions]),
        "deliveries": arrays.numbers([item.delivery for item in completions]),
        "attempts": arrays.numbers([item.attempt for item in completions]),
        "outputs": arrays.BytesArray([item.output for item in completions]),
        "output_encodings": arrays.texts([item.output_encoding for item in completions]),
        "output_schemas": arrays.texts([item.output_schema for item in completions]),
    }
    row = statements.one(conn, "delivery_complete", rows.CompletedCount, parameters)
    return row.delivery_count


def lock(
    conn: Conn, lease_ids: Sequence[str], *, now: datetime | None = None
) -> list[rows.LeaseRow]:
    """Locks leases by id; one that is gone has no row."""
    parameters = {"lease_ids": arrays.uuids(lease_ids), "now": now}
    return statements.many(conn, "lease_lock", rows.LeaseRow, parameters)


def lock_expired(
    conn: Conn, lease_count_max: int, *, now: datetime | None = None
) -> list[rows.LeaseRow]:
    """Locks leases that have run out and that nobody acts on."""
    parameters = {"lease_count_max": lease_count_max, "now": now}
    return statements.many(conn, "lease_lock_expired", rows.LeaseRow, parameters)


def lock_overdue(
    conn: Conn, lease_count_max: int, *, now: datetime | None = None
) -> list[rows.LeaseRow]:
    """Locks leases in which a timeout may be due and that nobody acts on."""
    parameters = {"lease_count_max": lease_count_max, "now": now}
    return statements.many(conn, "lease_lock_overdue", rows.LeaseRow, parameters)


def lock_session(
    conn: Conn, session_id: str, *, kept_lease_ids: Sequence[str] = ()
) -> list[rows.LeaseRow]:
    """Locks the leases of a session, without those that are kept."""
    parameters = {
        "session_id": session_id,
        "kept_lease_ids": arrays.uuids(kept_lease_ids),
        "now": None,
    }
    return statements.many(conn, "lease_lock_session", rows.LeaseRow, parameters)


def of_tasks(conn: Conn, task_ids: Sequence[str]) -> list[rows.LeaseOfTask]:
    """Finds the leases that name tasks."""
    parameters = {"task_ids": arrays.uuids(task_ids)}
    return statements.many(conn, "lease_of_task", rows.LeaseOfTask, parameters)


def spend(conn: Conn, ended: Counter[str]) -> None:
    """Subtracts ended hand-outs from locked leases, and deletes leases that are spent."""
    parameters = {
        "lease_ids": arrays.uuids(ended.keys()),
        "delivery_counts": arrays.numbers(ended.values()),
    }
    statements.execute(conn, "lease_delete", parameters)
    statements.execute(conn, "lease_spend", parameters)


class Token(NamedTuple):
    """The right to a lease, as somebody of a namespace claims it."""

    lease_id: str
    secret: bytes
    namespace_id: int


def renew(conn: Conn, tokens: Sequence[Token], lease_ms: int) -> set[Token]:
    """Gives leases their full duration; gives the tokens of those that live on."""
    parameters = {
        "lease_ids": arrays.uuids(token.lease_id for token in tokens),
        "secrets": arrays.BytesArray([token.secret for token in tokens]),
        "namespace_ids": arrays.numbers(token.namespace_id for token in tokens),
        "lease_ms": lease_ms,
    }
    found = statements.many(conn, "lease_renew", rows.LeaseRenewed, parameters)
    return {Token(row.lease_id, row.secret, row.namespace_id) for row in found}


@dataclass(frozen=True, slots=True)
class Started:
    """A handler that has started, `run_ms` milliseconds ago, under this lease and its secret."""

    lease_id: str
    secret: bytes
    task_id: str
    run_ms: float


@dataclass(frozen=True, slots=True)
class Progress:
    """What a running handler says of itself: {data (base64), encoding, schema}."""

    lease_id: str
    secret: bytes
    task_id: str
    details: rows.Json


@dataclass(frozen=True, slots=True)
class Deadline:
    """When a lease is to be looked at next, and what was told of its timeouts."""

    lease_id: str
    deadline_at: datetime | None
    alerted: Sequence[str]


def start(conn: Conn, started: Sequence[Started]) -> None:
    """Notes started handlers; what no lease of that secret holds is passed over."""
    parameters = {
        "lease_ids": arrays.uuids(one.lease_id for one in started),
        "secrets": arrays.BytesArray([one.secret for one in started]),
        "task_ids": arrays.uuids(one.task_id for one in started),
        "run_ms": arrays.numbers(one.run_ms for one in started),
    }
    statements.execute(conn, "lease_start", parameters)


def progress(conn: Conn, said: Sequence[Progress]) -> None:
    """Keeps what running handlers say of themselves."""
    parameters = {
        "lease_ids": arrays.uuids(one.lease_id for one in said),
        "secrets": arrays.BytesArray([one.secret for one in said]),
        "task_ids": arrays.uuids(one.task_id for one in said),
        "details": [jsonb_text(one.details) for one in said],
    }
    statements.execute(conn, "lease_progress", parameters)


def set_deadlines(conn: Conn, deadlines: Sequence[Deadline]) -> None:
    """Notes when locked leases are to be looked at next."""
    parameters = {
        "lease_ids": arrays.uuids(one.lease_id for one in deadlines),
        "deadlines_at": arrays.instants_or_null(one.deadline_at for one in deadlines),
        "alerted": [" ".join(one.alerted) or None for one in deadlines],
    }
    statements.execute(conn, "lease_set_deadline", parameters)


def outstanding(conn: Conn, lease_ids: Sequence[str]) -> list[rows.OutstandingTask]:
    """Reads again what leases hold that has not ended."""
    parameters = {"lease_ids": arrays.uuids(lease_ids)}
    return statements.tuples(conn, "lease_outstanding", rows.OutstandingTask, parameters)


def live(conn: Conn, lease_ids: Sequence[str]) -> set[str]:
    """Says which of these leases are still there."""
    parameters = {"lease_ids": arrays.uuids(lease_ids)}
    return {row.lease_id for row in statements.many(conn, "lease_live", rows.LeaseLive, parameters)}


def ready_lanes(conn: Conn, served: Sequence[tuple[int, str, str]]) -> list[rows.LaneHead]:
    """Finds the lanes of tasks that hold one, of those that (namespace, queue, name) serve."""
    parameters = {
        "namespace_ids": arrays.numbers(namespace_id for namespace_id, _, _ in served),
        "queues": [queue for _, queue, _ in served],
        "names": [name for _, _, name in served],
    }
    return statements.many(conn, "lane_ready", rows.LaneHead, parameters)
