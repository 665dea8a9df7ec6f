"""Partitions of the tables that a run owns: made ahead of time, safely on every replica at once.

`CREATE ... PARTITION OF` and a DEFAULT partition make every insert wait behind any open reader, so
a partition is created as a table of its own and attached, with a short lock_timeout. Another
replica's success (42P07, 42710, 42P17, 23505) is as good as one's own; IF NOT EXISTS would claim it.
"""

import logging
import random
import re
import time
from datetime import UTC, datetime, timedelta

from psycopg import errors, sql

from tenure_service.engine import limits
from tenure_service.store import rows, statements
from tenure_service.store.database import Conn, Contention, Database

_ATTEMPTS = 20
#: Two `create table` may meet at the table, at its row type, at the unique index of the catalogue,
#: or at the bounds.
_MADE_BY_ANOTHER = (
    errors.DuplicateTable,
    errors.DuplicateObject,
    errors.UniqueViolation,
    errors.InvalidObjectDefinition,
)
PARENTS = ("tasks", "deliveries", "runs", "steps")

_log = logging.getLogger(__name__)
_LOWER_BOUND = re.compile(r"FROM \('([0-9a-f-]{36})'\)")


def uuid_at(at: datetime) -> str:
    """Gives the smallest UUIDv7-ordered value of an instant: its milliseconds, then zeros."""
    hexed = f"{int(at.timestamp() * 1000):012x}"
    return f"{hexed[:8]}-{hexed[8:]}-0000-0000-000000000000"


def widths(now: datetime, ahead: int) -> list[tuple[datetime, datetime]]:
    """Lists the widths that must exist: the one of `now`, one before, and `ahead` after.

    Widths are counted from the epoch, so that all servers agree on them. The one before is for a
    database clock that is set back a little.
    """
    seconds = limits.PARTITION_WIDTH.total_seconds()
    first = int(now.timestamp() // seconds)
    starts = [
        datetime.fromtimestamp(index * seconds, UTC)
        for index in range(first - 1, first + ahead + 1)
    ]
    return [(start, start + limits.PARTITION_WIDTH) for start in starts]


def ensure(database: Database, *, ahead: int = limits.PARTITIONS_AHEAD) -> list[str]:
    """Creates the partitions that are missing; gives the names of those that it made itself."""
    found, now = database.read(lambda conn: (_list(conn), _now(conn)))
    existing = {row.name for row in found}
    made: list[str] = []
    for start, end in widths(now, ahead):
        for parent in PARENTS:
            name = f"{parent}_p{start:%Y%m%d}"
            if name not in existing and _create(database, parent, name, start, end):
                made.append(name)
    if made:
        _log.info("created partitions: %s", ", ".join(made))
    return made


def ahead_duration(database: Database) -> timedelta:
    """Says how long, from now, every table has partitions without a gap."""
    return database.read(ahead)


def ahead(conn: Conn) -> timedelta:
    """The same, on a connection."""
    found, now = _list(conn), _now(conn)
    return min(_end(parent, found, now) for parent in PARENTS) - now


def _end(parent: str, found: list[rows.PartitionRow], now: datetime) -> datetime:
    """Finds the first instant from now on that no partition holds."""
    starts = [_start(row) for row in found if row.parent == parent]
    end = now
    for start in sorted(start for start in starts if start is not None):
        if start <= end < start + limits.PARTITION_WIDTH:
            end = start + limits.PARTITION_WIDTH
    return end


def _list(conn: Conn) -> list[rows.PartitionRow]:
    parameters = {"parents": list(PARENTS)}
    return statements.many(conn, "partition_list", rows.PartitionRow, parameters)


def _now(conn: Conn) -> datetime:
    return statements.one(conn, "clock", rows.ClockRow, {}).now


def _start(row: rows.PartitionRow) -> datetime | None:
    match = _LOWER_BOUND.search(row.bound)
    if match is None:
        return None
    return datetime.fromtimestamp(int(match[1].replace("-", "")[:12], 16) / 1000, UTC)


def _create(database: Database, parent: str, name: str, start: datetime, end: datetime) -> bool:
    """Creates and attaches one partition; False if somebody else did."""
    names = {"parent": sql.Identifier(parent), "name": sql.Identifier(name)}
    bounds = {"lower": sql.Literal(uuid_at(start)), "upper": sql.Literal(uuid_at(end))}
    create = sql.SQL("create table {name} (like {parent} including all)").format(**names)
    attach = sql.SQL(
        "alter table {parent} attach partition {name} for values from ({lower}) to ({upper})"
    ).format(**names, **bounds)

    def work(conn: Conn) -> bool:
        conn.execute("set local lock_timeout = '500ms'")
        try:
            conn.execute(create)
            conn.execute(attach)
        except _MADE_BY_ANOTHER:
            conn.rollback()
            return False
        return True

    for tried in range(1, _ATTEMPTS + 1):
        try:
            return database.transact(work)
        except Contention:
            # A reader holds the parent: waiting in line would hold up every writer behind us.
            if tried == _ATTEMPTS:
                raise
            time.sleep(random.uniform(0.05, 0.25))  # noqa: S311 - guards nothing
    raise AssertionError("unreachable: the last attempt returns or raises")
