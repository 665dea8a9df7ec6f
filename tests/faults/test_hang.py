"""A PostgreSQL that neither answers nor refuses."""

import os
import signal

import psycopg
import pytest

from tests.eventually import eventually_awaited
from tests.fix_server import RunningServer
from tests.protocol.caller import Caller


def _backends(conn: psycopg.Connection) -> list[int]:
    rows = conn.execute(
        "select pid from pg_stat_activity where application_name = 'tenure server'"
    ).fetchall()
    return [pid for (pid,) in rows]


async def test_health__database_hangs__is_not_serving_until_it_answers(
    server: RunningServer, conn: psycopg.Connection
) -> None:
    if os.environ.get("TENURE_TEST_DATABASE_URL") or os.environ.get("TENURE_TEST_CONTAINER"):
        pytest.skip("stops processes of PostgreSQL, which must run on this machine")
    client = Caller(server.address)
    stopped: set[int] = set()

    def stop_all() -> None:
        for pid in set(_backends(conn)) - stopped:
            os.kill(pid, signal.SIGSTOP)
            stopped.add(pid)

    async def until(*, serving: bool) -> None:
        async def told() -> bool:
            if not serving:
                stop_all()
            return await client.healthy() is serving

        assert await eventually_awaited(told, seconds=60)

    try:
        await until(serving=True)
        await until(serving=False)
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
    await until(serving=True)
    await client.close()
