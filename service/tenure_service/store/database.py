"""Connections and transactions: the only place that opens, discards and retries them.

    DatabaseError         PostgreSQL refused the statement for a reason that is not ours to hide
    ├── DataRefused       a value it cannot take (class 22, 23): the batch is bisected
    │   └── PartitionMissing  no partition holds a new row's id (23514 without a constraint)
    └── Contention        locks or serialization, after the retries here (40001, 40P01, 55P03)

Whatever says that a connection is no good (class 08, 57P01 to 57P03, 25006) discards it and
becomes DATABASE_UNAVAILABLE; a transaction that failed before its COMMIT was sent is tried once
more on another connection first. One whose COMMIT was sent and not answered is never simply run
again: what became of it is asked first (`commits`).
"""

import logging
import random
import time
import weakref
from collections.abc import Callable
from typing import TypeVar, cast

import psycopg
from psycopg import conninfo, errors
from psycopg_pool import ConnectionPool, PoolTimeout

from tenure_service.engine.errors import Reason, TenureError, database_unavailable
from tenure_service.store import arrays, connections
from tenure_service.store.commits import Commits, Fate, Unanswered
from tenure_service.store.connections import Conn
from tenure_service.telemetry import metrics

__all__ = [
    "Conn",
    "Contention",
    "DataRefused",
    "Database",
    "DatabaseError",
    "PartitionMissing",
]

R = TypeVar("R")

_log = logging.getLogger(__name__)

_RETRIES = 5
_CHECKOUT_SECONDS = 5.0
_FRESH_SECONDS = 1.0
#: The pool doubles its pauses until it gives up, and the next checkout begins anew. With 60 s it sat
#: out as long again as PostgreSQL had been away, up to 29 s.
_RECONNECT_SECONDS = 3.0


class DatabaseError(Exception):
    """PostgreSQL refused a statement."""


class DataRefused(DatabaseError):
    """PostgreSQL cannot take a value; one item of a batch is at fault."""


class PartitionMissing(DataRefused):
    """No partition holds the id of a new row; it is created, and the transaction repeated."""


class Contention(TenureError, DatabaseError):
    """Transactions stood in each other's way more often than was retried."""

    def __init__(self, detail: str) -> None:
        super().__init__(Reason.CONTENTION, f"transactions stood in each other's way: {detail}")


class Database:
    """A pool of connections to one schema, and transactions on them."""

    def __init__(self, dsn: str, *, schema: str, connection_count: int, name: str) -> None:
        """Prepares a pool; `open` connects.

        Args:
            dsn: libpq connection string.
            schema: Name of the schema that holds the tables.
            connection_count: Most connections that are held.
            name: application_name in pg_stat_activity.
        """
        self.dsn = dsn
        self.schema = schema
        self._commits = Commits()
        self._used_at: weakref.WeakKeyDictionary[Conn, float] = weakref.WeakKeyDictionary()
        #: Called, on any thread, when connections lead to another life of the server: one that took
        #: over may lack the last commits, and hand out their numbers anew.
        self.on_another_server: list[Callable[[], None]] = []
        self._life = 0
        self._pool: ConnectionPool[Conn] = ConnectionPool(
            dsn,
            kwargs=connections.for_statements(schema, name),
            min_size=1,
            max_size=connection_count,
            open=False,
            configure=self._prepare,
            check=self._check,
            name=name,
            timeout=_CHECKOUT_SECONDS,
            reconnect_timeout=_RECONNECT_SECONDS,
            max_idle=600,
        )

    def open(self) -> None:
        """Connects.

        Raises:
            TenureError: DATABASE_UNAVAILABLE, if no connection can be made within some seconds.
        """
        try:
            self._pool.open(wait=True, timeout=30)
        except PoolTimeout as exc:
            self._pool.close()
            raise database_unavailable(f"no connection to {_address(self.dsn)}: {exc}") from exc

    def close(self) -> None:
        """Closes all connections."""
        self._pool.close(timeout=5)

    def statistics(self) -> dict[str, int]:
        """Gives the pool's counters, as psycopg_pool names them."""
        return self._pool.get_stats()

    def transact(self, work: Callable[[Conn], R]) -> R:
        """Runs `work` in one transaction, and answers once that is committed.

        Deadlocks and serialization failures run it again, so `work` has no effect but on the
        connection it is given.

        Raises:
            Contention: it was tried often enough, or a lock was waited for too long.
            DataRefused: a value cannot be stored.
            TenureError: DATABASE_UNAVAILABLE (whether it was committed may then be unknown), or
                whatever `work` raises.
        """
        return self._run(work, writes=True)

    def read(self, work: Callable[[Conn], R]) -> R:
        """The same for work that only reads, outside a transaction: `now()` moves on within it."""
        return self._run(work, writes=False)

    def _run(self, work: Callable[[Conn], R], *, writes: bool) -> R:
        life = self._life
        for attempt in range(1, _RETRIES + 1):
            try:
                with self._pool.connection() as conn:
                    if writes and self._life != life:
                        # What it was to write may name numbers that mean something else now.
                        raise database_unavailable("it was restarted, or another took over")
                    return self._attempt(conn, work, writes=writes)
            except Unanswered as exc:
                fate = self._commits.fate(exc.mark, self.read)
                _log.warning("a commit was not answered; its transaction is %s", fate.name.lower())
                metrics.COMMITS_UNANSWERED.add(1, fate.name.lower())
                if fate is Fate.COMMITTED:
                    return cast("R", exc.result)
                if fate is Fate.UNKNOWN or attempt == _RETRIES:
                    raise database_unavailable("a commit was not answered") from exc
                metrics.TRANSACTIONS_RETRIED.add(1, "commit")
            except (errors.SerializationFailure, errors.DeadlockDetected) as exc:
                if attempt == _RETRIES:
                    raise Contention(type(exc).__name__) from exc
                deadlock = isinstance(exc, errors.DeadlockDetected)
                metrics.TRANSACTIONS_RETRIED.add(1, "deadlock" if deadlock else "serialization")
                # Jitter keeps two transactions that met from meeting again.
                time.sleep(random.uniform(0.001, 0.01) * attempt)  # noqa: S311 - no secret
            except (errors.LockNotAvailable, errors.QueryCanceled) as exc:
                raise Contention(type(exc).__name__) from exc
            except errors.ReadOnlySqlTransaction as exc:
                raise database_unavailable("it is read-only") from exc
            except errors.CheckViolation as exc:
                if exc.diag.constraint_name is None:
                    raise PartitionMissing("no partition for a row") from exc
                raise DataRefused(f"{exc.sqlstate} {exc.diag.constraint_name}") from exc
            except (psycopg.DataError, psycopg.IntegrityError) as exc:
                raise DataRefused(f"{exc.sqlstate} {exc.diag.constraint_name or ''}") from exc
            except (psycopg.OperationalError, psycopg.InterfaceError) as exc:
                # The others may be lost like this one: each is proved before it is used again.
                self._used_at.clear()
                if attempt > 1 or isinstance(exc, PoolTimeout):
                    raise database_unavailable(_reason(exc)) from exc
                _log.warning("a connection was lost; trying once more: %s", _reason(exc))
                metrics.TRANSACTIONS_RETRIED.add(1, "connection")
        raise AssertionError("unreachable: the last attempt returns or raises")

    def _attempt(self, conn: Conn, work: Callable[[Conn], R], *, writes: bool) -> R:
        # A read goes without BEGIN and COMMIT: each of its statements has a snapshot of its own anyway.
        if conn.autocommit is writes:
            conn.autocommit = not writes
        try:
            result = work(conn)
        except errors.ReadOnlySqlTransaction:
            # A demoted primary: the connection itself is healthy, and of no use any more.
            conn.close()
            raise
        mark = self._commits.mark(conn) if writes else None
        try:
            conn.commit()
        except psycopg.OperationalError as exc:
            if mark is None or _is_refusal(exc):
                raise
            raise Unanswered(mark, result) from exc
        self._used_at[conn] = time.monotonic()
        return result

    def _check(self, conn: Conn) -> None:
        """Proves a connection that was idle for a while; one that just worked is believed.

        If it was lost meanwhile the transaction is tried on another one, as always.
        """
        if time.monotonic() - self._used_at.get(conn, 0.0) > _FRESH_SECONDS:
            ConnectionPool.check_connection(conn)

    def _prepare(self, conn: Conn) -> None:
        """Makes a new connection ready for the pool."""
        arrays.register(conn)
        another = self._commits.meet(conn)
        conn.commit()
        if another:
            _log.warning("PostgreSQL was restarted, or another server took over")
            self._life += 1
            for call in self.on_another_server:
                call()


def _is_refusal(exc: psycopg.OperationalError) -> bool:
    """Says whether PostgreSQL answered, and no: it does not say so of what it has committed."""
    return exc.sqlstate is not None and not exc.sqlstate.startswith(("08", "57P"))


def _reason(exc: Exception) -> str:
    """Says what happened in one line, without the connection string."""
    return (str(exc).strip().splitlines() or [type(exc).__name__])[0]


def _address(dsn: str) -> str:
    """Names host and database of a connection string, never its password."""
    parts = conninfo.conninfo_to_dict(dsn)
    return f"{parts.get('host', 'localhost')}/{parts.get('dbname', '')}"
