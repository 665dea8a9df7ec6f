"""Brings a database to the schema of this release, and says whether it is there.

Owns: the files in migrations/, the table `schema_migrations`, the check of the PostgreSQL version.
Must not know: what any table means.

A file is NNNN_pre_name.sql (safe while the previous release runs) or NNNN_post_name.sql (run when
the previous release is gone). Comment lines at its top may say:

    --! no-transaction   one statement that PostgreSQL refuses inside a transaction; not retried
    --! breaking         a server that does not know this migration must not run

Each file runs in a transaction of its own under one advisory lock, with a short lock_timeout and
retries, so that a migration queueing behind a long reader does not stop the writers behind it.
There is no way down: a mistake is another migration.
"""

from __future__ import annotations

import contextlib
import hashlib
import random
import re
import time
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import psycopg
from psycopg import sql
from psycopg.rows import class_row

if TYPE_CHECKING:
    import datetime
    from collections.abc import Iterator, Sequence

Phase: TypeAlias = Literal["pre", "post"]

SERVER_VERSION_MIN: Final = 180000
_FILE_NAME: Final = re.compile(r"(\d{4})_(pre|post)_([a-z0-9_]+)\.sql")
_LOCK_NAMESPACE: Final = 0x7E4E5E  # the first half of the advisory key; the second is the schema's
_TURN_SECONDS: Final = 600.0  # a rolling deploy waits for the replica that migrates
_LOCK_TIMEOUT: Final = "2s"
_ATTEMPTS: Final = 20  # about a minute of tries against long readers

# MigrationError
# ├── DatabaseUnusable   cannot be reached, or older than PostgreSQL 18
# ├── MigrationBusy      somebody else migrates, or a table stayed locked
# ├── MigrationChanged   an applied file was edited, or the folder is malformed
# └── MigrationFailed    PostgreSQL refused a statement


class MigrationError(Exception):
    """The schema could not be changed or read; the message says what to do."""


class DatabaseUnusable(MigrationError):
    """No PostgreSQL 18 or newer answers."""


class MigrationBusy(MigrationError):
    """A lock was not to be had in time; nothing of the migration was applied."""


class MigrationChanged(MigrationError):
    """The files and the table of applied migrations contradict each other."""


class MigrationFailed(MigrationError):
    """PostgreSQL refused a statement; its transaction was rolled back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Migration:
    """One file.

    Attributes:
        id: number and phase, such as 0007_pre.
        name: the file's name without .sql.
        checksum: SHA-256 of the text, in hex.
    """

    id: str
    phase: Phase
    name: str
    text: str
    transactional: bool
    breaking: bool
    checksum: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """One row of schema_migrations."""

    id: str
    name: str
    checksum: str
    breaking: bool
    applied_at: datetime.datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """The schema against this release's files.

    Attributes:
        applied: every row, oldest first.
        pending: files that are not applied, in the order in which they would be.
        unknown: rows without a file here: a newer release was here.
        changed: rows whose file was edited afterwards.
    """

    applied: Sequence[Applied]
    pending: Sequence[Migration]
    unknown: Sequence[Applied]
    changed: Sequence[Applied]


@dataclass(frozen=True, slots=True, kw_only=True)
class Readiness:
    """Whether a server of this release may run: it may when there are no problems."""

    problems: Sequence[str]
    warnings: Sequence[str]

    @property
    def ready(self) -> bool:
        """No problem was found."""
        return not self.problems


def directory() -> Path:
    """Returns the folder of the files: in the package when installed, else in the checkout."""
    packaged = Path(str(resources.files("tenure_service"))) / "migrations"
    return packaged if packaged.is_dir() else Path(__file__).resolve().parents[3] / "migrations"


def find(folder: Path | None = None) -> list[Migration]:
    """Returns the files in the order in which they are applied: by number, pre before post.

    Raises:
        MigrationChanged: a name is malformed, or two files have one number and phase.
    """
    folder = folder or directory()
    found: dict[tuple[int, bool], Migration] = {}
    for path in sorted(folder.glob("*.sql")):
        if path.name == "schema.sql":
            continue
        match = _FILE_NAME.fullmatch(path.name)
        if match is None:
            raise MigrationChanged(f"{path} is not named NNNN_pre_name.sql or NNNN_post_name.sql")
        key = (int(match[1]), match[2] == "post")
        if key in found:
            raise MigrationChanged(f"{path.name} and {found[key].name} have one number and phase")
        found[key] = _read(path, f"{match[1]}_{match[2]}", "post" if key[1] else "pre")
    if not found:
        raise MigrationChanged(f"{folder} holds no migration; is the installation whole?")
    return [found[key] for key in sorted(found)]


def _read(path: Path, migration_id: str, phase: Phase) -> Migration:
    text = path.read_text(encoding="utf-8")
    marks = set[str]()
    for line in text.splitlines():
        if not line.startswith("--"):
            break
        if line.startswith("--!"):
            marks.add(line.removeprefix("--!").strip())
    unknown = marks - {"no-transaction", "breaking"}
    if unknown:
        raise MigrationChanged(f"{path.name} has an unknown mark: {', '.join(sorted(unknown))}")
    return Migration(
        id=migration_id,
        phase=phase,
        name=path.stem,
        text=text,
        transactional="no-transaction" not in marks,
        breaking="breaking" in marks,
        checksum=hashlib.sha256(text.encode()).hexdigest(),
    )


def migrate(
    dsn: str,
    schema: str = "tenure",
    *,
    phase: Phase | None = None,
    folder: Path | None = None,
) -> list[Applied]:
    """Applies every pending file and returns what this call applied, in order.

    Safe to call from any number of processes at once: one works, the others wait and find it done.

    Args:
        dsn: the database, as a URL or conninfo string.
        schema: the PostgreSQL schema for everything; created when absent.
        phase: only these files, for a deploy in two steps; None means all.
        folder: where the files are, for tests.

    Raises:
        DatabaseUnusable: no PostgreSQL 18 or newer answers.
        MigrationBusy: the lock was not free in time.
        MigrationChanged: an applied file was edited.
        MigrationFailed: PostgreSQL refused a statement; earlier files stay applied.
    """
    migrations = find(folder)
    with _connected(dsn) as conn:
        if conn.execute("show transaction_read_only").fetchone() == ("on",):
            raise DatabaseUnusable(
                "PostgreSQL takes no writes: a standby, or default_transaction_read_only of the role "
                "or database"
            )
        return _migrate(conn, schema, migrations, phase)


def _migrate(
    conn: psycopg.Connection, schema: str, migrations: Sequence[Migration], phase: Phase | None
) -> list[Applied]:
    with _turn(conn, schema):
        _create_table(conn, schema)
        state = _status(conn, schema, migrations)
        if state.changed:
            raise MigrationChanged(_changed_sentence(state.changed))
        wanted = [item for item in state.pending if phase is None or item.phase == phase]
        return [_apply(conn, schema, item) for item in wanted]


def status(dsn: str, schema: str = "tenure", *, folder: Path | None = None) -> Status:
    """Returns what is applied, pending and unknown; changes nothing.

    Raises:
        DatabaseUnusable: no PostgreSQL 18 or newer answers.
    """
    with _connected(dsn) as conn:
        return _status(conn, schema, find(folder))


def check_ready(dsn: str, schema: str = "tenure", *, folder: Path | None = None) -> Readiness:
    """Says whether a server of this release may run on the database; changes nothing.

    Problems: a `pre` migration is missing, an applied file was edited, an unknown migration is
    marked breaking. Warnings: a `post` migration is missing, an unknown one is not breaking.

    Raises:
        DatabaseUnusable: no PostgreSQL 18 or newer answers.
    """
    state = status(dsn, schema, folder=folder)
    missing = [item.name for item in state.pending if item.phase == "pre"]
    later = [item.name for item in state.pending if item.phase == "post"]
    breaking = [row.name for row in state.unknown if row.breaking]
    harmless = [row.name for row in state.unknown if not row.breaking]
    problems = [
        *([f"run `tenure migrate`: {_listed(missing)} not applied"] if missing else []),
        *([_changed_sentence(state.changed)] if state.changed else []),
        *([f"a newer release migrated this database: {_listed(breaking)}"] if breaking else []),
    ]
    warnings = [
        *([f"after the roll-out run `tenure migrate`: {_listed(later)}"] if later else []),
        *(
            [f"migrations of a newer release, harmless here: {_listed(harmless)}"]
            if harmless
            else []
        ),
    ]
    return Readiness(problems=problems, warnings=warnings)


def _listed(names: Sequence[str]) -> str:
    return f"{', '.join(names[:3])}{f' and {len(names) - 3} more' if len(names) > 3 else ''}"


def _changed_sentence(changed: Sequence[Applied]) -> str:
    names = _listed([row.name for row in changed])
    return (
        f"edited after they were applied: {names}; put the files back and add a migration instead"
    )


@contextlib.contextmanager
def _connected(dsn: str) -> Iterator[psycopg.Connection]:
    try:
        conn = psycopg.connect(dsn, autocommit=True, application_name="tenure migrate")
    except psycopg.OperationalError as exc:
        raise DatabaseUnusable(f"no database answers: {str(exc).strip()}") from exc
    except psycopg.ProgrammingError as exc:
        raise DatabaseUnusable(f"this is no URL or conninfo string: {exc}") from exc
    with contextlib.closing(conn):
        if conn.info.server_version < SERVER_VERSION_MIN:
            version = conn.info.parameter_status("server_version")
            raise DatabaseUnusable(f"PostgreSQL 18 or newer is needed, this is {version}")
        try:
            conn.execute("select pg_catalog.uuidv7()")
        except psycopg.errors.UndefinedFunction as exc:
            raise DatabaseUnusable("this PostgreSQL has no uuidv7()") from exc
        yield conn


@contextlib.contextmanager
def _turn(conn: psycopg.Connection, schema: str) -> Iterator[None]:
    """Holds the advisory lock of the schema.

    Polled, not awaited: a statement that waits holds a snapshot, and CREATE INDEX CONCURRENTLY in
    the process that has the lock would wait for that snapshot for ever.
    """
    deadline = time.monotonic() + _TURN_SECONDS
    key = {"namespace": _LOCK_NAMESPACE, "schema": schema}
    attempt = "select pg_try_advisory_lock(%(namespace)s::int, hashtext(%(schema)s::text))"
    while conn.execute(attempt, key).fetchone() != (True,):
        if time.monotonic() > deadline:
            raise MigrationBusy(f"another process has been migrating {schema} for ten minutes")
        time.sleep(0.1)
    try:
        yield
    finally:
        with contextlib.suppress(psycopg.OperationalError):  # a lost connection has let go of it
            conn.execute(
                "select pg_advisory_unlock(%(namespace)s::int, hashtext(%(schema)s::text))", key
            )


def _create_table(conn: psycopg.Connection, schema: str) -> None:
    statement = sql.SQL("""
        create schema if not exists {schema};
        create table if not exists {schema}.schema_migrations (
            id text not null,
            name text not null,
            checksum text not null,
            breaking boolean not null,
            applied_at timestamptz not null default now(),
            constraint schema_migrations_pkey primary key (id)
        )
    """)
    with _messages_hidden(conn):
        try:
            conn.execute(statement.format(schema=sql.Identifier(schema)))
        except psycopg.errors.InsufficientPrivilege as exc:
            raise MigrationFailed(f"the account may not make schema {schema}: {exc}") from exc


@contextlib.contextmanager
def _messages_hidden(conn: psycopg.Connection) -> Iterator[None]:
    conn.execute("set client_min_messages = warning")
    yield
    conn.execute("reset client_min_messages")


def _status(conn: psycopg.Connection, schema: str, migrations: Sequence[Migration]) -> Status:
    rows = _applied(conn, schema)
    files = {item.id: item for item in migrations}
    done = {row.id for row in rows}
    return Status(
        applied=rows,
        pending=[item for item in migrations if item.id not in done],
        unknown=[row for row in rows if row.id not in files],
        changed=[r for r in rows if r.id in files and r.checksum != files[r.id].checksum],
    )


def _applied(conn: psycopg.Connection, schema: str) -> list[Applied]:
    table = sql.Identifier(schema, "schema_migrations")
    present = conn.execute("select to_regclass(%(n)s::text)", {"n": table.as_string()}).fetchone()
    if present == (None,):
        return []
    statement = sql.SQL("""
        select id, name, checksum, breaking, applied_at from {table} order by applied_at, id
    """)
    with conn.cursor(row_factory=class_row(Applied)) as cursor:
        return cursor.execute(statement.format(table=table)).fetchall()


def _apply(conn: psycopg.Connection, schema: str, migration: Migration) -> Applied:
    if not migration.transactional:
        with _reported(migration):
            _prepare_session(conn, schema, lock_timeout="0")
            conn.execute(migration.text.encode())
            return _record(conn, schema, migration)
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            with _reported(migration), conn.transaction():
                _prepare_session(conn, schema, lock_timeout=_LOCK_TIMEOUT)
                conn.execute(migration.text.encode())
                return _record(conn, schema, migration)
        except MigrationBusy:
            if attempt == _ATTEMPTS:
                raise
            time.sleep(random.uniform(0.1, 1.0))  # noqa: S311 - jitter, not a secret
    raise AssertionError("the last attempt returns or raises")


@contextlib.contextmanager
def _reported(migration: Migration) -> Iterator[None]:
    try:
        yield
    except psycopg.errors.LockNotAvailable as exc:
        raise MigrationBusy(f"{migration.name}: a table is locked; nothing was applied") from exc
    except psycopg.Error as exc:
        raise MigrationFailed(f"{migration.name}: {exc.sqlstate} {str(exc).strip()}") from exc


def _prepare_session(conn: psycopg.Connection, schema: str, *, lock_timeout: str) -> None:
    conn.execute(
        sql.SQL("set search_path to {}; set lock_timeout to {}; set statement_timeout to 0").format(
            sql.Identifier(schema), sql.Literal(lock_timeout)
        )
    )


def _record(conn: psycopg.Connection, schema: str, migration: Migration) -> Applied:
    statement = sql.SQL("""
        insert into {table} (id, name, checksum, breaking, applied_at)
        values (%(id)s::text, %(name)s::text, %(checksum)s::text, %(breaking)s::boolean,
                clock_timestamp())
        returning id, name, checksum, breaking, applied_at
    """).format(table=sql.Identifier(schema, "schema_migrations"))
    values = {
        "id": migration.id,
        "name": migration.name,
        "checksum": migration.checksum,
        "breaking": migration.breaking,
    }
    with conn.cursor(row_factory=class_row(Applied)) as cursor:
        row = cursor.execute(statement, values).fetchone()
    assert row is not None, "an insert that did not raise returns its row"  # noqa: S101 - our bug
    return row
