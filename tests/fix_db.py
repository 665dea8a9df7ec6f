"""One PostgreSQL a session, migrated once into a template; one clone a test.

By default the embedded server, without durability. TENURE_TEST_DATABASE_URL names another server
(the account must be allowed to create databases); TENURE_TEST_CONTAINER=1 starts a container.
"""

import contextlib
import os
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg import conninfo, sql
from psycopg.rows import TupleRow

from tenure_service.embedded import EmbeddedPostgres, binaries
from tenure_service.store import migrate
from tests.eventually import eventually

CONTAINER_IMAGE = "postgres:18-alpine"
_SCRATCH_BYTES = 4 * 1024**3
_LEAVING_SECONDS = 5.0  # a backend ends shortly after its client has closed the socket


def _source() -> str:
    if os.environ.get("TENURE_TEST_DATABASE_URL"):
        return "url"
    return "container" if os.environ.get("TENURE_TEST_CONTAINER") == "1" else "embedded"


def pytest_report_header() -> str:
    source = _source()
    if source == "url":
        with psycopg.connect(os.environ["TENURE_TEST_DATABASE_URL"]) as conn:
            return f"postgresql: {conn.info.parameter_status('server_version')}, by URL"
    if source == "container":
        return f"postgresql: {CONTAINER_IMAGE}, container"
    command = [str(binaries.installed() / "bin" / "postgres"), "--version"]
    version = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return f"postgresql: {version.strip()}, embedded"


@contextlib.contextmanager
def container() -> Iterator[str]:
    """Runs the container and yields its dsn."""
    from testcontainers.community.postgres import PostgresContainer

    with PostgresContainer(CONTAINER_IMAGE, driver=None) as running:
        yield running.get_connection_url()


def _scratch() -> str | None:
    """Returns memory where there is enough of it: a clone takes 50 ms there, 100 to 500 on disk."""
    memory = Path("/dev/shm")  # noqa: S108 - only the parent of a private directory
    roomy = memory.is_dir() and shutil.disk_usage(memory).free > _SCRATCH_BYTES
    return str(memory) if roomy else None


@contextlib.contextmanager
def _embedded() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="tenure-test-", dir=_scratch()) as folder:
        Path(folder).chmod(0o711)  # root's server is another account
        server = EmbeddedPostgres.start(
            Path(folder) / "postgres", durable=False, settings={"max_connections": "300"}
        )
        try:
            yield server.dsn("postgres")
        finally:
            server.remove()


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The dsn of the session's server, on a database that tests do not touch."""
    source = _source()
    if source == "url":
        yield os.environ["TENURE_TEST_DATABASE_URL"]
        return
    with container() if source == "container" else _embedded() as dsn:
        yield dsn


@pytest.fixture(scope="session")
def _admin(postgres: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(postgres, autocommit=True) as conn:
        yield conn


@pytest.fixture(scope="session")
def _template(postgres: str, _admin: psycopg.Connection) -> Iterator[str]:
    with _created(_admin, template="template0") as name:
        migrate.migrate(conninfo.make_conninfo(postgres, dbname=name))
        yield name


@contextlib.contextmanager
def _created(admin: psycopg.Connection, *, template: str) -> Iterator[str]:
    name = f"tenure_test_{uuid.uuid4().hex[:12]}"
    # Measured with the drop, in memory: 47 ms by file copy, 58 ms through the log.
    statement = "create database {} template {} strategy file_copy"
    admin.execute(sql.SQL(statement).format(sql.Identifier(name), sql.Identifier(template)))
    try:
        yield name
    finally:
        admin.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(name)))


def _backends(admin: psycopg.Connection, name: str) -> list[TupleRow]:
    return admin.execute(
        """
        select pid, application_name, state, left(query, 200)
        from pg_stat_activity
        where datname = %s and backend_type = 'client backend'
        """,
        [name],
    ).fetchall()


@contextlib.contextmanager
def _checked_clone(postgres: str, admin: psycopg.Connection, template: str) -> Iterator[str]:
    with _created(admin, template=template) as name:
        yield conninfo.make_conninfo(postgres, dbname=name)
        eventually(lambda: not _backends(admin, name), seconds=_LEAVING_SECONDS)
        left = _backends(admin, name)
        if left:
            lines = "\n".join(str(row) for row in left)
            pytest.fail(f"the test left connections open (pid, name, state, last query):\n{lines}")


@pytest.fixture
def database(postgres: str, _admin: psycopg.Connection, _template: str) -> Iterator[str]:
    """The dsn of a migrated database of the test's own; fails when connections are left behind."""
    with _checked_clone(postgres, _admin, _template) as dsn:
        yield dsn


@pytest.fixture
def empty_database(postgres: str, _admin: psycopg.Connection) -> Iterator[str]:
    """The same, not migrated."""
    with _checked_clone(postgres, _admin, "template0") as dsn:
        yield dsn


@pytest.fixture(scope="module")
def durable(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The dsn of a database on a server that writes to the disk, as `doctor` asks of one."""
    started = EmbeddedPostgres.start(tmp_path_factory.mktemp("durable") / "pg", durable=True)
    try:
        yield started.dsn()
    finally:
        started.remove()


@pytest.fixture(scope="session")
def read_only_conn(
    postgres: str, _admin: psycopg.Connection, _template: str
) -> Iterator[psycopg.Connection]:
    """One connection to a migrated database, for all the tests that only look."""
    with _created(_admin, template=_template) as name:
        dsn = conninfo.make_conninfo(postgres, dbname=name)
        options = "-c search_path=tenure -c default_transaction_read_only=on"
        with psycopg.connect(dsn, autocommit=True, options=options) as opened:
            yield opened


@pytest.fixture
def conn(database: str) -> Iterator[psycopg.Connection]:
    """A connection to `database` with our schema first in its search path, autocommit."""
    with psycopg.connect(database, autocommit=True, options="-c search_path=tenure") as opened:
        yield opened
