"""Servers with short leases, processes to harm, and a PostgreSQL that may be killed."""

import contextlib
import tempfile
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import psycopg
import pytest
import pytest_asyncio

from tenure import AsyncClient
from tenure_service.embedded import EmbeddedPostgres
from tenure_service.main import Server
from tenure_service.store import invariants, migrate
from tests import fix_db
from tests.faults.processes import Troupe
from tests.fix_server import server_config
from tests.protocol.caller import Caller

StartServer = Callable[..., Awaitable[Server]]

#: The same as of the servers that are processes.
SHORT = {
    "lease_seconds": 1.5,
    "first_lease_seconds": 1.5,
    "heartbeat_seconds": 0.5,
    "accept_seconds": 1,
    "stop_grace_seconds": 3,
}


@pytest.fixture
def troupe(tmp_path: Path) -> Iterator[Troupe]:
    """Processes that are gone when the test is over."""
    made = Troupe(tmp_path)
    try:
        yield made
    finally:
        made.close()


@pytest_asyncio.fixture
async def start_server() -> AsyncIterator[StartServer]:
    """Starts servers in this process, whose inside the test reaches."""
    async with contextlib.AsyncExitStack() as stack:

        async def start(dsn: str, **settings: object) -> Server:
            made = Server(server_config(dsn, **(SHORT | settings)))
            stack.push_async_callback(made.stop)
            await made.start()
            return made

        yield start


@pytest_asyncio.fixture
async def running(database: str, start_server: StartServer) -> Server:
    """A server with short leases."""
    return await start_server(database)


@pytest_asyncio.fixture
async def near(running: Server) -> AsyncIterator[Caller]:
    """A client without an SDK."""
    opened = Caller(running.address)
    yield opened
    await opened.close()


@pytest.fixture
def client(running: Server) -> AsyncClient:
    """A client of the SDK."""
    return AsyncClient(running.address)


@pytest.fixture(scope="session")
def own_postgres() -> Iterator[EmbeddedPostgres]:
    """A PostgreSQL for the tests that stop it, kill it or change its settings."""
    with tempfile.TemporaryDirectory(prefix="tenure-fault-", dir=fix_db._scratch()) as folder:
        Path(folder).chmod(0o711)  # root's server is another account
        server = EmbeddedPostgres.start(Path(folder) / "postgres", durable=False)
        try:
            migrate.migrate(server.dsn())
            yield server
        finally:
            server.remove()


@pytest.fixture
def frail(own_postgres: EmbeddedPostgres) -> Iterator[str]:
    """The dsn of a migrated database in it, looked through for broken invariants at the end."""
    name = f"frail_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(own_postgres.dsn("postgres"), autocommit=True) as admin:
        admin.execute(f'create database "{name}" template tenure strategy file_copy'.encode())
    yield own_postgres.dsn(name)
    with psycopg.connect(own_postgres.dsn(name), options="-c search_path=tenure") as conn:
        assert invariants.check_invariants(conn) == {}
    with psycopg.connect(own_postgres.dsn("postgres"), autocommit=True) as admin:
        admin.execute(f'drop database "{name}" with (force)'.encode())
