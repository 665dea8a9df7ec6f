"""Handlers that run on after the server has ended their tasks: their slots are not free."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator

import pytest_asyncio

from tenure import App, AsyncClient, NewTask, Retry, TaskState, Worker
from tests.eventually import eventually_async, eventually_awaited, time_passes
from tests.fix_server import RunningServer
from tests.protocol import caller
from tests.protocol.caller import Caller
from tests.protocol.raw_worker import RawWorker


@pytest_asyncio.fixture
async def client(server: RunningServer) -> AsyncIterator[AsyncClient]:
    yield AsyncClient(server.address)


async def _over(client: AsyncClient, ids: list[str]) -> None:
    async with asyncio.timeout(30):
        left = list(ids)
        while left:
            done = await client.await_tasks(left, timeout=5)
            left = [task_id for task_id in left if task_id not in done]


async def _shows_slots(client: AsyncClient, count: int) -> None:
    async def shows() -> bool:
        return (await client.list_workers())[0].slots == count

    assert await eventually_awaited(shows, seconds=15)


async def test_timeout__threads_do_not_end__their_slots_are_given_to_nobody(
    server: RunningServer, client: AsyncClient
) -> None:
    app = App("stuck", address=server.address)
    free = threading.Event()

    @app.task(timeout=0.3, retry=Retry(1))
    def stuck() -> None:
        free.wait(60)

    @app.task
    def quick() -> None:
        """Does nothing."""

    async with Worker(app, concurrency=2):
        held = [(await stuck.aenqueue()).id for _ in range(2)]
        await _over(client, held)
        waiting = [(await client.enqueue(NewTask(name="quick"))).id for _ in range(4)]
        # As long as it takes to see it go to and fro: 19 times a second, without the cure.
        await time_passes(seconds=3)
        details = [await client.get_task(task_id) for task_id in waiting]
        assert {one.task.state for one in details} == {TaskState.READY}
        assert max(len(one.deliveries) for one in details) <= 2
        await _shows_slots(client, 0)
        free.set()
        await _over(client, waiting)
        await _shows_slots(client, 2)


async def test_release__each_time_at_once__is_handed_out_more_and_more_slowly(
    server: RunningServer,
) -> None:
    client = Caller(server.address)
    (task_id,) = await client.enqueue()
    one = await RawWorker.open(client)
    until = time.monotonic() + 3
    while time.monotonic() < until:
        if one.out:
            results = [caller.released(item) for item in one.out.values()]
            assert await one.report(*results) == ["RECORDED"] * len(results)
        await eventually_async(lambda: bool(one.out), seconds=0.2)
    # 0.1, 0.2, 0.4, 0.8, 1.6 s apart.
    assert 3 <= len((await client.get(task_id)).deliveries) <= 7
    await one.tasks(len(one.assigned) + 1, seconds=10)
    assert await one.report(caller.completed(one.assigned[-1])) == ["RECORDED"]
    await one.close()
    await client.close()
