"""Leases that run out, sessions that end, and timers that fire.

Every hand-out of an expired lease that had not ended is lost: the DELIVERY says so, the task goes
back. A lease is live while its row exists, so a report that comes before this sweep is recorded,
however late it is. Holds INV-07, INV-08, INV-12.
"""

from collections.abc import Sequence
from datetime import datetime

from tenure_service.engine.states import Outcome
from tenure_service.engine.tokens import TaskKey
from tenure_service.store import leases, rows, sessions, timers
from tenure_service.store.database import Conn, Database
from tenure_service.telemetry import metrics
from tenure_service.usecase import end
from tenure_service.usecase.catalogue import Catalogue

_LEASES_A_PASS = 20
_TIMERS_A_PASS = 500


def expire(
    database: Database, catalogue: Catalogue, *, now: datetime | None = None
) -> end.Ends | None:
    """Ends what is left of some expired leases; None if there were none to lock.

    Tasks of a worker whose key has ended go back as if it had given them back: it was shut out, and
    nothing says that they have harmed it.
    """

    def work(conn: Conn) -> end.Ends | None:
        locked = leases.lock_expired(conn, _LEASES_A_PASS, now=now)
        if not locked:
            return None
        shut_out = sessions.shut_out(conn, {lease.session_id for lease in locked})
        endings = [
            each
            for lease in locked
            for each in _endings(
                lease, Outcome.RELEASED if lease.session_id in shut_out else Outcome.LOST
            )
        ]
        return end.end(conn, catalogue, endings, locked=locked, now=now)

    return database.transact(work)


def release_session(
    database: Database, catalogue: Catalogue, session_id: str, epoch: int
) -> end.Ends | None:
    """Closes a session and gives back, unspent, what it held; None if it is another server's."""

    def work(conn: Conn) -> end.Ends | None:
        if not sessions.close(conn, session_id, epoch):
            return None
        return give_back(conn, catalogue, leases.lock_session(conn, session_id))

    ends = database.transact(work)
    metrics.SESSIONS_CLOSED.add(ends is not None)
    return ends


def give_back(conn: Conn, catalogue: Catalogue, locked: Sequence[rows.LeaseRow]) -> end.Ends:
    """Ends what is left of locked leases, unspent: each task goes back to its place."""
    return _end_locked(conn, catalogue, locked, Outcome.RELEASED)


def lose_unheld(
    database: Database, catalogue: Catalogue, session_id: str, kept_lease_ids: Sequence[str]
) -> end.Ends:
    """Ends the leases of a resumed session that its worker does not know of."""

    def work(conn: Conn) -> end.Ends:
        locked = leases.lock_session(conn, session_id, kept_lease_ids=kept_lease_ids)
        return _end_locked(conn, catalogue, locked, Outcome.LOST)

    return database.transact(work)


def lose(
    database: Database,
    catalogue: Catalogue,
    session_id: str,
    epoch: int,
    lease_ids: Sequence[str],
) -> end.Ends | None:
    """Ends leases whose assignments were never accepted; None if the session moved elsewhere.

    A worker that has resumed on another server has told that one what it holds.
    """

    def work(conn: Conn) -> end.Ends | None:
        if not sessions.hold(conn, session_id, epoch):
            return None
        locked = leases.lock(conn, sorted(lease_ids))
        return _end_locked(conn, catalogue, locked, Outcome.LOST)

    return database.transact(work)


def fire_timers(database: Database, *, now: datetime | None = None) -> list[rows.TimerFired]:
    """Makes some tasks ready whose time has come."""
    fired = database.transact(lambda conn: timers.fire(conn, _TIMERS_A_PASS, now=now))
    metrics.TIMERS_FIRED.add(len(fired))
    return fired


def _end_locked(
    conn: Conn, catalogue: Catalogue, locked: Sequence[rows.LeaseRow], outcome: Outcome
) -> end.Ends:
    endings = [each for lease in locked for each in _endings(lease, outcome)]
    return end.end(conn, catalogue, endings, locked=locked)


def _endings(lease: rows.LeaseRow, outcome: Outcome) -> list[end.Ending]:
    return [
        end.Ending(
            lease_id=lease.lease_id,
            secret=None,
            key=TaskKey(run_id, task_id),
            outcome=outcome,
        )
        for run_id, task_id in zip(lease.run_ids, lease.task_ids, strict=True)
    ]
