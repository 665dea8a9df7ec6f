"""Cancelling tasks: those that wait are over at once, those that run are told.

A task may move between the statements of this transaction: from a lane into a lease, or from a
lease back. The lease is therefore locked before the places of waiting are looked at again, until
each task is accounted for: taken from where it waits, held under a lock, or over. Whoever puts a
task back later sees the committed request (`end`). Holds INV-07, INV-12.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime

from tenure_service.engine.states import Outcome, TaskState
from tenure_service.engine.tokens import TaskKey
from tenure_service.store import cancels, deliveries, leases, rows, tasks
from tenure_service.store.database import Conn, Database
from tenure_service.telemetry import metrics
from tenure_service.usecase import end
from tenure_service.usecase.catalogue import Catalogue

_LOOKS = 10


def cancel(
    database: Database,
    namespace_id: int,
    keys: Sequence[TaskKey],
    *,
    reason: str,
    grace_ms: int,
    now: datetime | None = None,
) -> dict[str, TaskState]:
    """Asks for the end of tasks; gives their states after it, without those that do not exist.

    A second request for a task that runs can shorten its grace; the first one's reason stays.
    """

    def work(conn: Conn) -> tuple[dict[str, TaskState], int]:
        existing = tasks.read(conn, namespace_id, keys, include_payloads=False)
        states = {row.task_id: TaskState(row.state) for row in existing}
        live = [TaskKey(row.run_id, row.task_id) for row in existing if row.ended_at is None]
        taken: list[str] = []
        if live:
            cancels.insert(conn, namespace_id, live, reason=reason, grace_ms=grace_ms, now=now)
            taken = _take_waiting(conn, namespace_id, live, now)
            states |= dict.fromkeys(taken, TaskState.CANCELLED)
            ended = _already_over(conn, namespace_id, live)
            cancels.delete(conn, [key for key in live if key.task_id in ended])
            held = [key for key in live if key.task_id not in ended]
            # Of those whose leases are locked now: an earlier request may give them longer.
            cancels.shorten(conn, held, grace_ms=grace_ms, now=now)
            states |= ended
        return states, len(taken)

    states, cancelled_count = database.transact(work)
    metrics.TASKS_CANCELLED.add(cancelled_count)
    return states


def _take_waiting(
    conn: Conn, namespace_id: int, live: Sequence[TaskKey], now: datetime | None
) -> list[str]:
    """Ends those tasks that wait; the others are under leases that this transaction has locked."""
    left = {key.task_id: key for key in live}
    over: list[str] = []
    for _ in range(_LOOKS):
        found = leases.of_tasks(conn, list(left))
        locked = leases.lock(conn, sorted({row.lease_id for row in found}))
        taken = cancels.take_waiting(conn, list(left.values()))
        if taken:
            reasons = cancels.requested(conn, [left[row.task_id] for row in taken])
            deliveries.insert(
                conn,
                [
                    deliveries.NewDelivery(
                        run_id=row.run_id,
                        task_id=row.task_id,
                        delivery=row.delivery,
                        attempt=row.attempt - 1,
                        outcome=Outcome.CANCELLED,
                        final=True,
                        failure=end.why_cancelled(reasons.get(row.task_id, "")),
                    )
                    for row in taken
                ],
                now=now,
            )
            cancels.delete(conn, [left[row.task_id] for row in taken])
            over += [row.task_id for row in taken]
        for task_id in over:
            left.pop(task_id, None)
        for task_id in _held(conn, locked, left):
            left.pop(task_id)
        for task_id in _already_over(conn, namespace_id, list(left.values())):
            left.pop(task_id)
        if not left:
            break
    return over


def _held(conn: Conn, locked: Sequence[rows.LeaseRow], left: Mapping[str, TaskKey]) -> list[str]:
    """Gives those tasks whose hand-out under a locked lease has not ended."""
    named = [
        (left[task_id], lease.lease_id)
        for lease in locked
        for task_id in lease.task_ids
        if task_id in left
    ]
    if not named:
        return []
    ended = deliveries.classify(conn, named)
    return [key.task_id for key, lease_id in named if (key.task_id, lease_id) not in ended]


def _already_over(conn: Conn, namespace_id: int, keys: Sequence[TaskKey]) -> dict[str, TaskState]:
    found = tasks.read(conn, namespace_id, keys, include_payloads=False)
    return {row.task_id: TaskState(row.state) for row in found if row.ended_at is not None}


def end_overdue(
    database: Database, catalogue: Catalogue, *, now: datetime | None = None
) -> end.Ends | None:
    """Ends tasks whose grace is over, without their workers; None if there are none."""

    def work(conn: Conn) -> end.Ends | None:
        overdue = [row for row in cancels.overdue(conn, now=now) if not row.of_run]
        if not overdue:
            return None
        keys = {row.task_id: TaskKey(row.run_id, row.task_id) for row in overdue}
        found = leases.of_tasks(conn, list(keys))
        locked = leases.lock(conn, sorted({row.lease_id for row in found}))
        endings = [
            end.Ending(
                lease_id=lease.lease_id,
                secret=None,
                key=keys[task_id],
                outcome=Outcome.CANCELLED,
            )
            for lease in locked
            for task_id in lease.task_ids
            if task_id in keys
        ]
        ends = end.end(conn, catalogue, endings, locked=locked, now=now)
        for namespace_id in {row.namespace_id for row in overdue}:
            of_namespace = [
                keys[row.task_id] for row in overdue if row.namespace_id == namespace_id
            ]
            ends.add(_end_waiting(conn, namespace_id, of_namespace, now))
        return ends

    return database.transact(work)


def press(
    database: Database,
    namespace_id: int,
    keys: Sequence[TaskKey],
    *,
    now: datetime | None = None,
) -> end.Ends:
    """Sees to requests that somebody else has made: tasks that wait are over, as if asked for here."""
    return database.transact(lambda conn: _end_waiting(conn, namespace_id, keys, now))


def _end_waiting(
    conn: Conn, namespace_id: int, keys: Sequence[TaskKey], now: datetime | None
) -> end.Ends:
    """Ends those of tasks with a request that wait, and drops the requests of what is over."""
    taken = _take_waiting(conn, namespace_id, keys, now)
    ends = end.Ends(recorded=[], over=list(taken))
    ends.tally.outcomes[Outcome.CANCELLED] += len(taken)
    taken_ids = set(taken)
    ends.inboxes.update(
        key.run_id for key in keys if key.task_id in taken_ids and key.run_id != key.task_id
    )
    over = _already_over(conn, namespace_id, keys)
    cancels.delete(conn, [key for key in keys if key.task_id in over])
    return ends
