"""What `tenure doctor` reads: on one connection of its own that only reads.

The connection is a plain one: the servers' pool insists on a database that takes writes, and plans
its statements for small look-ups.
"""

import contextlib
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Final

import psycopg
from psycopg import Connection

from tenure_service.store import invariants, migrate, partitions, rows, statements
from tenure_service.store.connections import Conn

#: What tables of ours were made with, by name; a partition of a hash table by its stem. Without
#: these, vacuum comes late and slowly to the tables whose rows live for seconds only.
TABLE_OPTIONS: Final = {
    "ready_tasks_p": {
        "fillfactor": "70",
        "autovacuum_vacuum_scale_factor": "0.01",
        "autovacuum_vacuum_cost_limit": "2000",
    },
    "leases": {
        "toast_tuple_target": "256",
        "fillfactor": "50",
        "autovacuum_vacuum_scale_factor": "0.01",
        "autovacuum_vacuum_cost_limit": "2000",
    },
    "timers": {
        "autovacuum_vacuum_scale_factor": "0.01",
        "autovacuum_vacuum_cost_limit": "2000",
    },
    "run_inbox": {
        "autovacuum_vacuum_scale_factor": "0.01",
        "autovacuum_vacuum_cost_limit": "2000",
    },
    "run_wait_sets": {"fillfactor": "70", "autovacuum_vacuum_scale_factor": "0.01"},
    "run_waits": {
        "autovacuum_vacuum_scale_factor": "0.01",
        "autovacuum_vacuum_cost_limit": "2000",
    },
}
_CONNECT_SECONDS: Final = 10


class NotChecked(Exception):
    """PostgreSQL did not answer a question; the message says why."""


class TooLong(NotChecked):
    """PostgreSQL had not answered when the time was over."""


@contextlib.contextmanager
def connected(dsn: str, schema: str) -> Iterator[Conn]:
    """Opens a connection whose transactions only read.

    Raises:
        NotChecked: no database answers.
    """
    with _answered():
        conn = Connection.connect(
            dsn,
            autocommit=True,
            application_name="tenure doctor",
            connect_timeout=_CONNECT_SECONDS,
            options=f"-c search_path={schema} -c lock_timeout=5s",
        )
    with contextlib.closing(conn):
        conn.read_only = True
        yield conn


@contextlib.contextmanager
def reading(conn: Conn, limit: timedelta) -> Iterator[None]:
    """Runs the statements of the block in one transaction, each for at most `limit`.

    Raises:
        NotChecked: one was refused, or took too long.
    """
    with _answered(), conn.transaction():
        conn.execute(
            "select set_config('statement_timeout', %s::text, true)",
            [str(max(1, int(limit.total_seconds() * 1000)))],
        )
        yield


@contextlib.contextmanager
def _answered() -> Iterator[None]:
    try:
        yield
    except psycopg.errors.QueryCanceled as exc:
        raise TooLong("it took too long") from exc
    except psycopg.Error as exc:
        lines = str(exc).strip().splitlines()
        raise NotChecked(lines[0] if lines else type(exc).__name__) from exc


def version(conn: Conn) -> tuple[int, str]:
    """Gives the version of PostgreSQL, as a number such as 180006 and as it calls itself."""
    return conn.info.server_version, conn.info.parameter_status("server_version") or "unknown"


def make_uuid(conn: Conn) -> str:
    """Lets PostgreSQL make an id.

    Raises:
        NotChecked: it does not.
    """
    with _answered():
        return statements.one(conn, "doctor_uuid", rows.DoctorUuid, {}).id


def migrations(dsn: str, schema: str) -> migrate.Status:
    """Compares the schema with this release.

    Raises:
        NotChecked: it cannot be read.
    """
    with _answered():
        try:
            return migrate.status(dsn, schema)
        except migrate.MigrationError as exc:
            raise NotChecked(str(exc)) from exc


def settings(conn: Conn, names: Sequence[str]) -> dict[str, rows.DoctorSetting]:
    """Reads settings by name."""
    parameters = {"names": list(names)}
    found = statements.many(conn, "doctor_setting_list", rows.DoctorSetting, parameters)
    return {row.name: row for row in found}


def database(conn: Conn) -> rows.DoctorDatabase:
    """Reads what the database says of itself."""
    return statements.one(conn, "doctor_database", rows.DoctorDatabase, {})


def rights(conn: Conn, schema: str) -> list[rows.DoctorRight]:
    """Lists what the role may not do and a server must."""
    parameters = {"schema": schema, "parents": list(partitions.PARENTS)}
    return statements.many(conn, "doctor_right_list", rows.DoctorRight, parameters)


def tables(conn: Conn, schema: str, *, now: datetime | None) -> list[rows.DoctorTable]:
    """Reads the tables that hold rows, by name."""
    parameters = {"schema": schema, "now": now}
    return statements.many(conn, "doctor_table_list", rows.DoctorTable, parameters)


def parts(conn: Conn, schema: str) -> list[rows.DoctorPart]:
    """Lists the indexes, constraints and triggers that there are."""
    return statements.many(conn, "doctor_part_list", rows.DoctorPart, {"schema": schema})


def columns(conn: Conn, schema: str) -> list[rows.DoctorColumn]:
    """Lists the columns that there are."""
    return statements.many(conn, "doctor_column_list", rows.DoctorColumn, {"schema": schema})


def functions(conn: Conn, schema: str) -> list[rows.DoctorFunction]:
    """Lists the functions that there are."""
    return statements.many(conn, "doctor_function_list", rows.DoctorFunction, {"schema": schema})


def holders(conn: Conn, held: timedelta, *, now: datetime | None) -> list[rows.DoctorHolder]:
    """Lists what has kept vacuum from its work for so long, the oldest first."""
    parameters = {"held": held, "now": now}
    return statements.many(conn, "doctor_holder_list", rows.DoctorHolder, parameters)


def running(conn: Conn, run: timedelta, *, now: datetime | None) -> list[rows.DoctorRunning]:
    """Lists tasks that have run for so long without a limit, the oldest first."""
    parameters = {"run": run, "now": now}
    return statements.many(conn, "doctor_running_list", rows.DoctorRunning, parameters)


def deaf(
    conn: Conn, silent: timedelta, *, polling_hash: bytes, now: datetime | None
) -> list[rows.DoctorDeaf]:
    """Lists workers that renew and have had no stream for so long."""
    parameters = {"silent": silent, "polling_hash": polling_hash, "now": now}
    return statements.many(conn, "doctor_deaf_list", rows.DoctorDeaf, parameters)


def unserved(
    conn: Conn, waited: timedelta, silent: timedelta, *, now: datetime | None
) -> list[rows.DoctorUnserved]:
    """Lists names that tasks wait for and nobody ever registered, or serves for some time."""
    parameters = {"waited": waited, "silent": silent, "now": now}
    return statements.many(conn, "doctor_unserved_list", rows.DoctorUnserved, parameters)


def dead(conn: Conn, late: timedelta, *, now: datetime | None) -> list[rows.DoctorDead]:
    """Counts the dead letters of the last while that nobody has dealt with."""
    parameters = {"late": late, "now": now}
    return statements.many(conn, "doctor_dead_list", rows.DoctorDead, parameters)


def breaches(conn: Conn, name: str, limit: timedelta) -> list[rows.Breach]:
    """Looks for breaches of one invariant's check.

    Raises:
        NotChecked: it took longer than `limit`.
    """
    with _answered():
        return invariants.check_one(conn, name, limit)
