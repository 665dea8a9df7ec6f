"""A real server in this process, on a clone of the template database."""

from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest_asyncio

from tenure_service.config import ServerConfig
from tenure_service.main import Server


@dataclass(frozen=True, slots=True)
class RunningServer:
    """Where a server answers, and on which database it stands."""

    address: str
    dsn: str
    namespace: str = "default"


def server_config(dsn: str, **settings: object) -> ServerConfig:
    """Gives the configuration of a test server: quick leases, any free port."""
    values: dict[str, object] = {
        "database": dsn,
        "listen": "127.0.0.1:0",
        "http": "",
        "lease_seconds": 6,
        "first_lease_seconds": 3,
        "heartbeat_seconds": 0.5,
        "accept_seconds": 2,
        "stop_grace_seconds": 5,
    }
    return ServerConfig.model_validate(values | settings)


@pytest_asyncio.fixture
async def server(database: str) -> AsyncIterator[RunningServer]:
    """Starts a server, and stops it after the test."""
    running = Server(server_config(database))
    await running.start()
    try:
        yield RunningServer(address=running.address, dsn=database)
    finally:
        await running.stop()
