"""What is done to a database that was restored to an earlier moment."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Final

from tenure_service.store import rows, statements
from tenure_service.store.database import Conn

#: Sorts before every lease id.
FIRST_LEASE_ID: Final = "00000000-0000-0000-0000-000000000000"

#: Counting reads whole tables of live rows, which the settings of these connections make slow.
_SETTINGS: Final = ("set local enable_seqscan = on", "set local statement_timeout = 0")


def begin(conn: Conn, *, checked_by: str, data_until: datetime | None) -> rows.RestoreRow:
    """Holds timers, unless they are held already; gives the restore they are held for."""
    parameters = {"checked_by": checked_by, "data_until": data_until}
    begun = statements.many(conn, "restore_begin", rows.RestoreRow, parameters)
    return begun[0] if begun else statements.one(conn, "restore_held", rows.RestoreRow, {})


def held(conn: Conn) -> rows.RestoreRow | None:
    """Finds the restore that timers are held for."""
    found = statements.many(conn, "restore_held", rows.RestoreRow, {})
    return found[0] if found else None


def release(conn: Conn, *, released_by: str) -> rows.RestoreRow | None:
    """Lets timers go; None if they were not held."""
    parameters = {"released_by": released_by}
    found = statements.many(conn, "restore_release", rows.RestoreRow, parameters)
    return found[0] if found else None


def note(
    conn: Conn,
    restore: rows.RestoreRow,
    *,
    session_count: int = 0,
    lease_count: int = 0,
    task_count: int = 0,
) -> None:
    """Adds what this transaction voids."""
    parameters = {
        "restore_id": restore.restore_id,
        "session_count": session_count,
        "lease_count": lease_count,
        "task_count": task_count,
    }
    statements.execute(conn, "restore_note", parameters)


def data(conn: Conn) -> rows.RestoreData:
    """Says at which moment the data stands; while timers are held, the one that the check found."""
    return statements.one(conn, "restore_data", rows.RestoreData, {})


def counts(conn: Conn, *, void_until: datetime | None) -> rows.RestoreCounts:
    """Counts what is void up to an instant, or at all, and what waits for its time."""
    with _reading_whole(conn):
        return statements.one(
            conn, "restore_counts", rows.RestoreCounts, {"void_until": void_until}
        )


def ready(conn: Conn) -> list[rows.ReadyCount]:
    """Counts tasks that wait for a worker, by queue."""
    with _reading_whole(conn):
        return statements.many(conn, "restore_ready", rows.ReadyCount, {})


def close_sessions(conn: Conn, void_until: datetime, session_count_max: int) -> int:
    """Closes some sessions of the time before a restore; gives how many."""
    parameters = {"void_until": void_until, "session_count_max": session_count_max}
    return len(statements.many(conn, "restore_session_close", rows.SessionKey, parameters))


def lock_leases(
    conn: Conn, void_until: datetime, *, after: str, lease_count_max: int
) -> list[rows.LeaseRow]:
    """Locks some leases of the time before a restore, in order, after one of them."""
    parameters = {"void_until": void_until, "after": after, "lease_count_max": lease_count_max}
    return statements.many(conn, "restore_lease_lock", rows.LeaseRow, parameters)


@contextmanager
def _reading_whole(conn: Conn) -> Iterator[None]:
    """A transaction, since settings are local to one, also where the caller has none."""
    with conn.transaction():
        for setting in _SETTINGS:
            conn.execute(setting.encode())
        yield
