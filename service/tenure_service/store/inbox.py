"""Runs as their activations end, as they wait, and as they go on: locks, waits, inboxes."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from tenure_service.engine.states import RunBlocked, RunStatus
from tenure_service.store import arrays, rows, statements
from tenure_service.store.database import Conn
from tenure_service.store.jsonb import clean, jsonb_text

#: Before every id there is.
FIRST = "00000000-0000-0000-0000-000000000000"


@dataclass(frozen=True, slots=True)
class WaitSet:
    """Tasks and runs of which so many are to be over; each id is the task's or the run's own."""

    child_ids: Sequence[str]
    needed_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """What the end of an activation makes of its run; `failure` says why it is blocked."""

    run_id: str
    status: RunStatus
    blocked: RunBlocked | None = None
    failure: rows.Json | None = None
    version: str | None = None


def lock(conn: Conn, run_ids: Iterable[str]) -> dict[str, rows.RunLocked]:
    """Locks runs by id; one that does not exist is missing."""
    parameters = {"run_ids": arrays.uuids(sorted(set(run_ids)))}
    found = statements.many(conn, "run_lock", rows.RunLocked, parameters)
    return {row.run_id: row for row in found}


def lock_free(conn: Conn, run_ids: Collection[str]) -> dict[str, rows.RunLocked]:
    """Locks those of the runs that nobody is acting on."""
    parameters = {"run_ids": arrays.uuids(run_ids)}
    found = statements.many(conn, "run_lock_free", rows.RunLocked, parameters)
    return {row.run_id: row for row in found}


def settle(conn: Conn, settled: Sequence[Settled], *, now: datetime | None = None) -> list[str]:
    """Writes what has become of locked runs; gives the runs that are told of it."""
    parameters = {
        "run_ids": arrays.uuids(one.run_id for one in settled),
        "statuses": arrays.words(one.status for one in settled),
        "ended": arrays.booleans(one.status.is_over for one in settled),
        "blocked": arrays.texts([one.blocked for one in settled]),
        "failures": arrays.texts(
            [None if one.failure is None else jsonb_text(one.failure) for one in settled]
        ),
        "versions": arrays.texts(
            [None if one.version is None else clean(one.version) for one in settled]
        ),
        "now": now,
    }
    found = statements.many(conn, "run_settle", rows.RunNamed, parameters)
    return [row.run_id for row in found]


def pick(conn: Conn, run_count_max: int, *, after: str = FIRST) -> list[str]:
    """Finds runs with something in their inboxes, in the order of their ids."""
    parameters = {"after_run_id": after, "run_count_max": run_count_max}
    return [row.run_id for row in statements.many(conn, "inbox_pick", rows.RunNamed, parameters)]


def take(conn: Conn, run_ids: Collection[str], row_count_max: int) -> list[rows.InboxTaken]:
    """Takes what stands in the inboxes of locked runs, so many rows of each at most."""
    parameters = {"run_ids": arrays.uuids(run_ids), "row_count_max": row_count_max}
    return statements.many(conn, "inbox_take", rows.InboxTaken, parameters)


def drop(conn: Conn, run_ids: Collection[str]) -> None:
    """Empties the inboxes of those of the runs that do not exist."""
    statements.execute(conn, "inbox_drop", {"run_ids": arrays.uuids(run_ids)})


def forget_waits(conn: Conn, run_ids: Collection[str]) -> None:
    """Forgets what locked runs waited for."""
    statements.execute(conn, "wait_clear", {"run_ids": arrays.uuids(run_ids)})


def wait(conn: Conn, waits: Sequence[tuple[str, Sequence[WaitSet]]]) -> set[str]:
    """Notes what locked runs wait for; gives those of which a set is complete already.

    The caller has taken their inboxes in a statement before: what has happened meanwhile either
    was in there, or is in there now.
    """
    sets = [(run_id, number, one) for run_id, wanted in waits for number, one in enumerate(wanted)]
    if not sets:
        return set()
    set_parameters = {
        "run_ids": arrays.uuids(run_id for run_id, _, _ in sets),
        "set_numbers": arrays.numbers(number for _, number, _ in sets),
        "needed_counts": arrays.numbers(one.needed_count for _, _, one in sets),
    }
    statements.execute(conn, "wait_set_insert", set_parameters)
    children = [(run_id, number, child) for run_id, number, one in sets for child in one.child_ids]
    parameters = {
        "run_ids": arrays.uuids(run_id for run_id, _, _ in children),
        "set_numbers": arrays.numbers(number for _, number, _ in children),
        "child_ids": arrays.uuids(child_id for _, _, child_id in children),
    }
    statements.execute(conn, "wait_insert", parameters)
    run_ids = arrays.uuids({run_id for run_id, _, _ in sets})
    return _complete(statements.many(conn, "wait_look", rows.WaitSetCounted, {"run_ids": run_ids}))


def count(conn: Conn, taken: Sequence[rows.InboxTaken]) -> set[str]:
    """Counts what was taken from inboxes; gives the runs of which a set is complete now."""
    parameters = {
        "run_ids": arrays.uuids(row.run_id for row in taken),
        "child_ids": arrays.uuids(row.child_id for row in taken),
    }
    return _complete(statements.many(conn, "wait_count", rows.WaitSetCounted, parameters))


def _complete(counted: Iterable[rows.WaitSetCounted]) -> set[str]:
    return {row.run_id for row in counted if row.needed_count <= 0}


def go_on(
    conn: Conn, run_ids: Collection[str], *, recovered: bool = False
) -> list[rows.RunReadied]:
    """Makes those of locked runs ready that wait; what they waited for is forgotten."""
    parameters = {"run_ids": arrays.uuids(run_ids), "recovered": recovered}
    return statements.many(conn, "run_go_on", rows.RunReadied, parameters)


def overdue(conn: Conn, run_count_max: int, *, now: datetime | None = None) -> list[str]:
    """Finds runs that wait and whose total timeout is over."""
    parameters = {"run_count_max": run_count_max, "now": now}
    return [row.run_id for row in statements.many(conn, "run_overdue", rows.RunNamed, parameters)]


def take_overdue(
    conn: Conn, run_ids: Collection[str], *, now: datetime | None = None
) -> list[rows.WaitingTaken]:
    """Takes those locked runs from where they wait whose total timeout is over."""
    parameters = {"run_ids": arrays.uuids(run_ids), "now": now}
    return statements.many(conn, "run_take_overdue", rows.WaitingTaken, parameters)
