"""Requests to cancel, and taking waiting tasks out of where they wait."""

from collections.abc import Collection, Sequence
from datetime import datetime

from tenure_service.engine import limits
from tenure_service.engine.tokens import TaskKey
from tenure_service.store import arrays, rows, statements
from tenure_service.store.database import Conn


def insert(
    conn: Conn,
    namespace_id: int,
    keys: Sequence[TaskKey],
    *,
    reason: str,
    grace_ms: int,
    now: datetime | None = None,
) -> None:
    """Asks for the end of tasks."""
    parameters = arrays.task_keys(keys) | {
        "namespace_id": namespace_id,
        "reason": reason,
        "grace_ms": grace_ms,
        "now": now,
    }
    statements.execute(conn, "cancel_request_insert", parameters)


def shorten(
    conn: Conn, keys: Sequence[TaskKey], *, grace_ms: int, now: datetime | None = None
) -> None:
    """Brings the end of the grace of standing requests forward; the caller has locked the leases."""
    parameters = arrays.task_keys(keys) | {"grace_ms": grace_ms, "now": now}
    statements.execute(conn, "cancel_request_shorten", parameters)


def requested(conn: Conn, keys: Sequence[TaskKey]) -> dict[str, str]:
    """Gives those of the tasks that are to be cancelled, by id, and why."""
    found = statements.many(
        conn, "cancel_request_list", rows.CancelRequested, arrays.task_keys(keys)
    )
    return {row.task_id: row.reason for row in found}


def delete(conn: Conn, keys: Sequence[TaskKey]) -> None:
    """Drops the requests of tasks that are over."""
    statements.execute(conn, "cancel_request_delete", arrays.task_keys(keys))


def delete_any(conn: Conn, keys: Sequence[TaskKey]) -> None:
    """Drops the requests of tasks that are over, for the hot path: mostly there is none."""
    if statements.one(conn, "cancel_request_any", rows.CancelStanding, {}).standing:
        delete(conn, keys)


def notices(conn: Conn) -> list[rows.CancelNotice]:
    """Lists the requests that stand."""
    return statements.many(conn, "cancel_request_recent", rows.CancelNotice, {"now": None})


def overdue(conn: Conn, *, now: datetime | None = None) -> list[rows.CancelOverdue]:
    """Finds tasks whose grace is over."""
    return statements.many(conn, "cancel_request_overdue", rows.CancelOverdue, {"now": now})


def spread(conn: Conn, run_ids: Sequence[str], *, reason: str, now: datetime | None = None) -> bool:
    """Asks for the end of what runs that are over have started; False: of nothing."""
    parameters = {
        "run_ids": arrays.uuids(run_ids),
        "reason": reason,
        "grace_ms": int(limits.CANCEL_GRACE_DEFAULT.total_seconds() * 1000),
        "now": now,
    }
    return statements.execute(conn, "cancel_request_spread", parameters) > 0


def idle(conn: Conn) -> list[rows.CancelOverdue]:
    """Finds requests that nobody is told of."""
    return statements.many(conn, "cancel_request_idle", rows.CancelOverdue, {})


def take_runs(
    conn: Conn, run_ids: Collection[str], *, delivery_max: int
) -> list[rows.WaitingTaken]:
    """Takes locked runs from where they wait, up to this number of their next hand-out."""
    parameters = {"run_ids": arrays.uuids(run_ids), "delivery_max": delivery_max}
    # In this order: what a timer makes ready meanwhile is found ready.
    timed = statements.many(conn, "run_timer_take", rows.WaitingTaken, parameters)
    return timed + statements.many(conn, "run_ready_take", rows.WaitingTaken, parameters)


def take_waiting(conn: Conn, keys: Sequence[TaskKey]) -> list[rows.WaitingTaken]:
    """Takes tasks out of their lanes and off the clock."""
    parameters = {"task_ids": arrays.uuids(key.task_id for key in keys)}
    ready = statements.many(conn, "ready_delete", rows.WaitingTaken, parameters)
    timed = statements.many(conn, "timer_delete", rows.WaitingTaken, parameters)
    return ready + timed


def of_leases(conn: Conn, lease_ids: Sequence[str]) -> list[rows.CancelNotice]:
    """Lists the requests to cancel tasks of some leases."""
    parameters = {"lease_ids": arrays.uuids(lease_ids)}
    return statements.many(conn, "cancel_request_of_lease", rows.CancelNotice, parameters)
