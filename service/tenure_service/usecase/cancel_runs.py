"""Cancelling runs: one that no worker has had is over at once, the others may clean up.

A run that waits for something is woken for it: its next activation is told after it was handed
out. Whoever ends an activation has locked the run, too, so the request is seen by whoever puts the
run back, and a run that was put back is found where it waits. What comes between a lane and a lease
does not matter: a request of a run may stand while it is ready. Holds INV-02, INV-04, INV-07.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from tenure_service.engine.states import Outcome, RunStatus
from tenure_service.engine.tokens import TaskKey
from tenure_service.store import cancels, inbox, leases, rows
from tenure_service.store.database import Conn, Database
from tenure_service.usecase import cancel, end, end_runs
from tenure_service.usecase.catalogue import Catalogue
from tenure_service.usecase.ending import Ending, Ends, why_cancelled

_FIRST_DELIVERY: Final = 1
_ANY_DELIVERY: Final = 2**31 - 1


def cancel_runs(
    database: Database,
    namespace_id: int,
    run_ids: Sequence[str],
    *,
    reason: str,
    grace_ms: int,
    now: datetime | None = None,
) -> Ends:
    """Asks for the end of runs of a namespace; those that are over or do not exist are left.

    A second request can shorten the grace of the first; the first one's reason stays.
    """

    def work(conn: Conn) -> Ends:
        locked = inbox.lock(conn, run_ids)
        live = [
            TaskKey(run_id, run_id)
            for run_id, row in locked.items()
            if row.namespace_id == namespace_id and not RunStatus(row.status).is_over
        ]
        if not live:
            return Ends(recorded=[])
        cancels.insert(conn, namespace_id, live, reason=reason, grace_ms=grace_ms, now=now)
        cancels.shorten(conn, live, grace_ms=grace_ms, now=now)
        return _stir(conn, live, now)

    return database.transact(work)


def _stir(conn: Conn, keys: Sequence[TaskKey], now: datetime | None) -> Ends:
    """Ends those of locked runs with a request that no worker has had, and wakes those that wait."""
    taken = cancels.take_runs(conn, [key.run_id for key in keys], delivery_max=_FIRST_DELIVERY)
    ends = _finish(conn, taken, now)
    over = {row.run_id for row in taken}
    woken = inbox.go_on(conn, [key.run_id for key in keys if key.run_id not in over])
    for row in woken:
        ends.readied({row.lane_id: row.rank})
    return ends


def _finish(conn: Conn, taken: Sequence[rows.WaitingTaken], now: datetime | None) -> Ends:
    reasons = cancels.requested(conn, [TaskKey(row.run_id, row.task_id) for row in taken])
    failures = {row.run_id: why_cancelled(reasons.get(row.run_id, "")) for row in taken}
    return end_runs.finish(conn, taken, Outcome.CANCELLED, failures, now)


def end_overdue(
    database: Database, catalogue: Catalogue, *, now: datetime | None = None
) -> Ends | None:
    """Ends runs whose grace is over, without their workers; None if there are none.

    One that is on its way to a worker at this moment is ended by the next look.
    """

    def work(conn: Conn) -> Ends | None:
        run_ids = {row.run_id for row in cancels.overdue(conn, now=now) if row.of_run}
        if not run_ids:
            return None
        found = leases.of_tasks(conn, sorted(run_ids))
        held = leases.lock(conn, sorted({row.lease_id for row in found}))
        endings = [
            Ending(
                lease_id=lease.lease_id,
                secret=None,
                key=TaskKey(task_id, task_id),
                outcome=Outcome.CANCELLED,
            )
            for lease in held
            for task_id in lease.task_ids
            if task_id in run_ids
        ]
        ends = end.end(conn, catalogue, endings, locked=held, now=now)
        locked = inbox.lock(conn, run_ids.difference(ends.over))
        ends.add(
            _finish(conn, cancels.take_runs(conn, locked.keys(), delivery_max=_ANY_DELIVERY), now)
        )
        over = [run_id for run_id, row in locked.items() if RunStatus(row.status).is_over]
        cancels.delete(conn, [TaskKey(run_id, run_id) for run_id in over])
        return ends

    return database.transact(work)


def press(database: Database, *, now: datetime | None = None) -> Ends | None:
    """Sees to requests that came from the ends of runs, and that nobody is told of; None: to none.

    Tasks that wait are over, runs are woken or over; what had ended before loses its request.
    """
    found = database.read(cancels.idle)
    if not found:
        return None
    ends = Ends(recorded=[])
    runs = [row.run_id for row in found if row.of_run]
    if runs:
        ends.add(database.transact(lambda conn: _press_runs(conn, runs, now)))
    for namespace_id in {row.namespace_id for row in found if not row.of_run}:
        keys = [
            TaskKey(row.run_id, row.task_id)
            for row in found
            if not row.of_run and row.namespace_id == namespace_id
        ]
        ends.add(cancel.press(database, namespace_id, keys, now=now))
    return ends


def _press_runs(conn: Conn, run_ids: Sequence[str], now: datetime | None) -> Ends:
    locked = inbox.lock(conn, run_ids)
    keys = {True: list[TaskKey](), False: list[TaskKey]()}
    for run_id, row in locked.items():
        keys[RunStatus(row.status).is_over].append(TaskKey(run_id, run_id))
    cancels.delete(conn, keys[True])
    return _stir(conn, keys[False], now) if keys[False] else Ends(recorded=[])
