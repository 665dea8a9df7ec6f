"""Workers and servers that go on with a database that was restored under them: a copy of the first
one, made while a worker holds leases of it."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack

import psycopg
import pytest
import pytest_asyncio
from psycopg import conninfo

from tenure import App, AsyncClient, TaskOutcome, Worker
from tenure_service.loops import due
from tenure_service.main import Server
from tenure_service.store import invariants
from tenure_service.usecase import maintain
from tests import fix_db
from tests.cli.command import run_here
from tests.eventually import eventually
from tests.fix_server import server_config
from tests.protocol import caller
from tests.protocol.caller import Caller
from tests.protocol.raw_worker import RawWorker


class Restore:
    """A server on a database, and later one at the same address on a copy of it."""

    def __init__(self, dsn: str, stack: AsyncExitStack, copy: Callable[[], str]) -> None:
        self.dsn = dsn
        self._copy = copy
        self._stack = stack
        self._server: Server | None = None
        self.address = "127.0.0.1:0"

    async def start(self) -> Caller:
        """Starts a server; gives a client of it."""
        self._server = Server(server_config(self.dsn, listen=self.address))
        await self._server.start()
        self.address = self._server.address
        client = Caller(self.address)
        self._stack.push_async_callback(client.close)
        return client

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop()
            self._server = None

    async def restore(self) -> None:
        """Stops the server, and puts a copy of its database in its place."""
        await self.stop()
        self.dsn = await asyncio.to_thread(self._copy)

    async def command(self, *words: str) -> str:
        """Runs `tenure restore-check`; gives what it printed."""
        forced = () if words else ("--force",)
        done = await run_here("restore-check", "--database", self.dsn, *words, *forced)
        assert done.code == 0, done.err
        return done.out


@pytest_asyncio.fixture
async def restore(
    database: str, postgres: str, _admin: psycopg.Connection, _template: str
) -> AsyncIterator[Restore]:
    async with AsyncExitStack() as stack:

        def copy() -> str:
            name = str(conninfo.conninfo_to_dict(database)["dbname"])
            return stack.enter_context(fix_db._checked_clone(postgres, _admin, name))

        made = Restore(database, stack, copy)
        try:
            yield made
            with psycopg.connect(made.dsn, options="-c search_path=tenure") as conn:
                assert invariants.check_invariants(conn) == {}
        finally:
            await made.stop()


async def test_resume__checked_before_servers_start__opens_anew_and_old_tokens_are_lost(
    restore: Restore,
) -> None:
    client = await restore.start()
    (task_id,) = await client.enqueue()
    old = await RawWorker.open(client)
    item = (await old.tasks())[0]
    await old.accept()
    await old.beat(item.lease_token)
    await old.cut()
    await restore.restore()
    await restore.command()
    client = await restore.start()

    new = await RawWorker.open(client, resume=old, holding=[item.lease_token])
    assert not new.opened.resumed
    again = (await new.tasks())[0]
    await new.accept()
    assert (again.task_id, again.attempt, again.delivery) == (task_id, 1, 2)
    beat = await new.beat(item.lease_token, again.lease_token)
    assert list(beat.lost_lease_tokens) == [item.lease_token]
    assert await new.report(caller.completed(item, b"old")) == ["LEASE_LOST"]
    assert await new.report(caller.completed(again, b"new")) == ["RECORDED"]
    answer = await client.wait(task_id)
    assert answer.results[0].result.output.data == b"new"
    await new.close()


async def test_check__server_has_resumed_a_session__ends_its_stream_and_hands_out_again(
    restore: Restore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(due, "_TOUCH_SECONDS", 0.2)
    client = await restore.start()
    (task_id,) = await client.enqueue()
    old = await RawWorker.open(client)
    item = (await old.tasks())[0]
    await old.accept()
    await old.beat(item.lease_token)
    await old.cut()
    await restore.restore()
    client = await restore.start()
    back = await RawWorker.open(client, resume=old, holding=[item.lease_token])
    assert back.opened.resumed

    await restore.command()
    assert await back.ended() is None
    new = await RawWorker.open(client, resume=back, holding=[item.lease_token])
    assert not new.opened.resumed
    again = (await new.tasks())[0]
    await new.accept()
    assert (again.task_id, again.attempt, again.delivery) == (task_id, 1, 2)
    assert await new.report(caller.completed(item)) == ["LEASE_LOST"]
    assert await new.report(caller.completed(again)) == ["RECORDED"]
    await new.close()


async def test_work__database_restored_under_a_running_worker__runs_on_without_a_restart(
    restore: Restore,
) -> None:
    await restore.start()
    app = App("restored", restore.address)
    runs = 0
    ended: list[str] = []

    @app.task
    async def work() -> int:
        nonlocal runs
        runs += 1
        if runs == 1:
            try:
                await asyncio.Event().wait()
            finally:
                ended.append("the lease was lost")
        return runs

    async with Worker(app):
        handle = await asyncio.to_thread(work.enqueue)
        assert await asyncio.to_thread(eventually, lambda: runs == 1)
        await restore.restore()
        await restore.command()
        await restore.start()
        client = AsyncClient(restore.address)
        outcome = (await client.await_tasks([handle.id], 30))[handle.id]
    assert isinstance(outcome, TaskOutcome)
    assert (runs, ended) == (2, ["the lease was lost"])
    assert outcome.attempt == 1


async def test_hold__delayed_task_is_due__server_is_quiet_and_warns_until_the_release(
    restore: Restore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked_at: list[float] = []
    ask = maintain.due

    def noted(*arguments: object) -> object:
        asked_at.append(time.monotonic())
        return ask(*arguments)  # type: ignore[arg-type]

    client = await restore.start()
    (task_id,) = await client.enqueue(delay=caller.seconds(0.5))
    await restore.restore()
    await restore.command()
    monkeypatch.setattr(maintain, "due", noted)
    caplog.set_level(logging.WARNING, logger=due.__name__)
    client = await restore.start()
    worker = await RawWorker.open(client)
    assert await asyncio.to_thread(eventually, lambda: len(asked_at) >= 5)
    # Once a second, and once more for a session that came or a timer that was set.
    assert asked_at[4] - asked_at[0] > 2.5
    assert worker.assigned == []
    assert await client.state(task_id) == "DELAYED"
    assert caplog.text.count("timers are held since") == 1
    assert "`tenure restore-check --release`" in caplog.text

    await restore.command("--release")
    item = (await worker.tasks(seconds=3))[0]
    assert item.task_id == task_id
    assert "timers were released" in caplog.text
    await worker.accept()
    await worker.report(caller.completed(item))
    await worker.close()
