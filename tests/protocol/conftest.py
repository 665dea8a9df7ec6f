"""Servers for the protocol's tests: one, two on one database, and one for a whole module."""

import itertools
from collections.abc import AsyncIterator, Iterator

import psycopg
import pytest
import pytest_asyncio

from tenure_service.main import Server
from tests import fix_db
from tests.fix_server import RunningServer, server_config
from tests.protocol.caller import Caller

_NUMBERS = itertools.count(1)


@pytest_asyncio.fixture
async def client(server: RunningServer) -> AsyncIterator[Caller]:
    """A client of `server`."""
    opened = Caller(server.address)
    yield opened
    await opened.close()


@pytest_asyncio.fixture
async def pair(database: str) -> AsyncIterator[tuple[Caller, Caller]]:
    """Clients of two servers on one database."""
    running = [Server(server_config(database)) for _ in range(2)]
    for one in running:
        await one.start()
    clients = Caller(running[0].address), Caller(running[1].address)
    yield clients
    for client in clients:
        await client.close()
    for one in running:
        await one.stop()


@pytest_asyncio.fixture
async def brisk(database: str) -> AsyncIterator[Caller]:
    """A client of a server that waits half a second for an Accept."""
    running = Server(server_config(database, accept_seconds=0.5))
    await running.start()
    opened = Caller(running.address)
    yield opened
    await opened.close()
    await running.stop()


@pytest.fixture(scope="module")
def shared_database(postgres: str, _admin: psycopg.Connection, _template: str) -> Iterator[str]:
    """A database for all tests of a module; each looks only at what it made itself."""
    with fix_db._checked_clone(postgres, _admin, _template) as dsn:
        yield dsn


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_server(shared_database: str) -> AsyncIterator[RunningServer]:
    """A server for all tests of a module, on the module's event loop."""
    running = Server(server_config(shared_database))
    await running.start()
    yield RunningServer(address=running.address, dsn=shared_database)
    await running.stop()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(shared_server: RunningServer) -> AsyncIterator[Caller]:
    """A client of `shared_server`."""
    opened = Caller(shared_server.address)
    yield opened
    await opened.close()


@pytest_asyncio.fixture(loop_scope="module")
async def apart(shared_server: RunningServer) -> AsyncIterator[Caller]:
    """A client of `shared_server` in a namespace of the test's own."""
    name = f"test-{next(_NUMBERS)}"
    opened = Caller(shared_server.address, name)
    await opened.create_namespace(name)
    yield opened
    await opened.close()


@pytest.fixture(scope="module")
def shared_conn(shared_database: str) -> Iterator[psycopg.Connection]:
    """A connection to the database of `shared_server`."""
    options = "-c search_path=tenure"
    with psycopg.connect(shared_database, autocommit=True, options=options) as opened:
        yield opened


@pytest_asyncio.fixture
async def locked(database: str) -> AsyncIterator[Server]:
    """A server that requires keys."""
    running = Server(server_config(database, require_keys=True))
    await running.start()
    yield running
    await running.stop()
