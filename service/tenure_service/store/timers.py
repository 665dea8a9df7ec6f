"""Timers, and the one question of what is due."""

from collections.abc import Sequence
from datetime import datetime

from tenure_service.store import arrays, rows, statements
from tenure_service.store.database import Conn


def fire(conn: Conn, timer_count_max: int, *, now: datetime | None = None) -> list[rows.TimerFired]:
    """Makes tasks ready whose time has come; gives their lanes."""
    parameters = {"timer_count_max": timer_count_max, "now": now}
    return statements.many(conn, "timer_fire", rows.TimerFired, parameters)


def take_overdue(
    conn: Conn, task_count_max: int, *, now: datetime | None = None
) -> list[rows.WaitingOverdue]:
    """Takes waiting tasks whose timeout is due from where they wait."""
    parameters = {"task_count_max": task_count_max, "now": now}
    return statements.many(conn, "waiting_take_overdue", rows.WaitingOverdue, parameters)


def due(
    conn: Conn, served: Sequence[tuple[int, str, str, str]], *, now: datetime | None = None
) -> rows.Due:
    """Says what there is to do.

    `served` lists what the workers serve, as (namespace, queue, name, version); tasks have none.
    """
    parameters = {
        "namespace_ids": arrays.numbers(namespace_id for namespace_id, _, _, _ in served),
        "queues": [queue for _, queue, _, _ in served],
        "names": [name for _, _, name, _ in served],
        "app_versions": [app_version for _, _, _, app_version in served],
        "now": now,
    }
    return statements.one(conn, "due", rows.Due, parameters)


def clock(conn: Conn) -> rows.ClockRow:
    """Tells the database's time."""
    return statements.one(conn, "clock", rows.ClockRow, {})
