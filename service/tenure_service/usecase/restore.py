"""A database that was restored to an earlier moment: what it holds of that time is made harmless.

Its sessions and leases speak of workers that have gone on since; its timers of a time that has
passed. The order matters: timers are held first, so that none fires meanwhile; then sessions are
closed, so that no server hands anything to them any more; then their leases are ended, each task
going back to its place with nothing spent. Every transaction is bounded and leaves a sound
database, so a check that was cut short is run again. Holds INV-04, INV-07, INV-12.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from tenure_service.store import access, restores, rows
from tenure_service.store.database import Conn, Database
from tenure_service.usecase import expire
from tenure_service.usecase.catalogue import Catalogue
from tenure_service.usecase.end import Recorded

_SESSIONS_A_PASS = 500
_LEASES_A_PASS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Voided:
    """What was voided: sessions closed, leases ended, and the tasks that went back."""

    session_count: int = 0
    lease_count: int = 0
    task_count: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyInForce:
    """An API key that is accepted."""

    id: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What stands in a restored database.

    Attributes:
        restore: That timers are held for; None: they are not held.
        repeated: Timers were held before this call.
        data: What was written last, before anything was voided: by this check, or by the one that
            timers are held for.
        found: What was void, and what waited for its time, before anything was voided.
        ready: Tasks that wait for a worker, by queue, at the end.
        voided: What this call voided.
        keys: API keys in force; any of them may have been revoked since that moment.
    """

    restore: rows.RestoreRow | None
    repeated: bool
    data: rows.RestoreData
    found: rows.RestoreCounts
    ready: Sequence[rows.ReadyCount] = field(default_factory=list)
    voided: Voided = Voided()
    keys: Sequence[KeyInForce] = field(default_factory=list)


def look(database: Database) -> Findings:
    """Says what stands in a restored database; changes nothing."""

    def work(conn: Conn) -> Findings:
        restore = restores.held(conn)
        return Findings(
            restore=restore,
            repeated=restore is not None,
            data=restores.data(conn),
            found=restores.counts(conn, void_until=None if restore is None else restore.void_until),
            ready=restores.ready(conn),
            keys=[
                KeyInForce(id=key.key_id, name=key.name)
                for key in access.list_keys(conn, include_ended=False)
            ],
        )

    return database.read(work)


def check(
    database: Database, catalogue: Catalogue, *, checked_by: str, say: Callable[[Voided], None]
) -> Findings:
    """Holds timers, and voids the sessions and leases that the restored database holds.

    While timers are held, a repeated check voids what is left of the same: what was handed out
    since the first one stands.

    Args:
        database: The restored one.
        catalogue: Of that database.
        checked_by: Whom to name in `restores`.
        say: Is told what was voided so far, after each transaction.
    """
    before = look(database)
    restore = database.transact(
        lambda conn: restores.begin(conn, checked_by=checked_by, data_until=before.data.data_until)
    )
    voided = Voided()
    while closed := _close_sessions(database, restore):
        voided = replace(voided, session_count=voided.session_count + closed)
        say(voided)
    after = restores.FIRST_LEASE_ID
    while (ended := _end_leases(database, catalogue, restore, after)) is not None:
        after, lease_count, task_count = ended
        voided = replace(
            voided,
            lease_count=voided.lease_count + lease_count,
            task_count=voided.task_count + task_count,
        )
        say(voided)
    return replace(
        before,
        restore=database.read(restores.held) or restore,
        ready=database.read(restores.ready),
        voided=voided,
    )


def _close_sessions(database: Database, restore: rows.RestoreRow) -> int:
    def work(conn: Conn) -> int:
        count = restores.close_sessions(conn, restore.void_until, _SESSIONS_A_PASS)
        if count:
            restores.note(conn, restore, session_count=count)
        return count

    return database.transact(work)


def _end_leases(
    database: Database, catalogue: Catalogue, restore: rows.RestoreRow, after: str
) -> tuple[str, int, int] | None:
    """Ends some leases; gives the last one, how many, and of how many tasks. None: none is left."""

    def work(conn: Conn) -> tuple[str, int, int] | None:
        locked = restores.lock_leases(
            conn, restore.void_until, after=after, lease_count_max=_LEASES_A_PASS
        )
        if not locked:
            return None
        ends = expire.give_back(conn, catalogue, locked)
        task_count = ends.recorded.count(Recorded.RECORDED)
        restores.note(conn, restore, lease_count=len(locked), task_count=task_count)
        return locked[-1].lease_id, len(locked), task_count

    return database.transact(work)


def release(database: Database, *, released_by: str) -> tuple[rows.RestoreRow | None, Findings]:
    """Lets timers go: what is due fires at once.

    Returns:
        The restore that they were held for, None if they were not held; and what stood before.
    """
    before = look(database)
    restore = database.transact(lambda conn: restores.release(conn, released_by=released_by))
    return restore, before
