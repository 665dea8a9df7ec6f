"""What a server does by itself now and then: look for what is due, and tidy up."""

from collections.abc import Sequence

from tenure_service.store import cancels, keys, partitions, rows, sessions, timers
from tenure_service.store.database import Conn, Database


def due(database: Database, served: Sequence[tuple[int, str, str, str]]) -> rows.Due:
    """Says what there is to do; see `store.timers.due`."""
    return database.read(lambda conn: timers.due(conn, served))


def cancel_notices(database: Database) -> list[rows.CancelNotice]:
    """Lists the requests to cancel that workers are to be told of."""
    return database.read(cancels.notices)


def forget(database: Database) -> None:
    """Forgets requests, keys and sessions that are out of force."""

    def work(conn: Conn) -> None:
        keys.delete_old(conn)
        sessions.close_lost(conn)

    database.transact(work)


def ensure_partitions(database: Database) -> list[str]:
    """Creates the partitions that are missing; gives those that this call made."""
    return partitions.ensure(database)


def is_writable(database: Database) -> bool:
    """Proves that the database takes writes."""
    return not database.read(timers.clock).read_only
