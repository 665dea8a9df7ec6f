"""Several servers on one database: wake-ups by notification, and without."""

import asyncio
import time
from collections.abc import AsyncIterator

import psycopg
import pytest_asyncio

from tenure.v1 import worker_pb2 as worker
from tests.eventually import eventually
from tests.protocol import caller
from tests.protocol.caller import Caller
from tests.protocol.raw_worker import RawWorker

_LISTENERS = """
    select pid from pg_stat_activity
    where datname = current_database() and application_name = 'tenure listen'
"""


def listeners(conn: psycopg.Connection) -> set[int]:
    return {row[0] for row in conn.execute(_LISTENERS)}


def cut_listeners(conn: psycopg.Connection) -> None:
    for pid in listeners(conn):
        conn.execute("select pg_terminate_backend(%s)", [pid])


@pytest_asyncio.fixture
async def deaf_pair(
    pair: tuple[Caller, Caller], conn: psycopg.Connection
) -> AsyncIterator[tuple[Caller, Caller]]:
    """Two servers whose listening connections are cut again and again."""
    assert await asyncio.to_thread(eventually, lambda: len(listeners(conn)) == 2)
    stop = asyncio.Event()

    async def cut_on() -> None:
        while not stop.is_set():
            await asyncio.to_thread(cut_listeners, conn)
            try:
                await asyncio.wait_for(stop.wait(), 0.02)
            except TimeoutError:
                continue

    cutting = asyncio.create_task(cut_on())
    yield pair
    stop.set()
    await cutting


async def test_enqueue__worker_on_another_server__gets_it_at_once(
    pair: tuple[Caller, Caller],
) -> None:
    here, there = pair
    one = await RawWorker.open(there)
    for number in range(3):
        began = time.monotonic()
        await here.enqueue()
        await one.tasks(number + 1)
        assert time.monotonic() - began < 0.7
        await one.accept()
        await one.report(caller.completed(one.assigned[number]))
    await one.close()


async def test_enqueue__notification_lost__worker_on_another_server_gets_it_within_a_second(
    deaf_pair: tuple[Caller, Caller],
) -> None:
    here, there = deaf_pair
    one = await RawWorker.open(there)
    for number in range(3):
        began = time.monotonic()
        await here.enqueue()
        await one.tasks(number + 1)
        # The poll is once a second; the rest is room for this machine.
        assert time.monotonic() - began < 1.6
        await one.accept()
        await one.report(caller.completed(one.assigned[number]))
    await one.close()


async def test_await__task_ends_on_another_server__is_answered(
    pair: tuple[Caller, Caller],
) -> None:
    here, there = pair
    task_id = (await here.enqueue())[0]
    waiting = asyncio.create_task(here.wait(task_id, wait_seconds=20))
    one = await RawWorker.open(there)
    item = (await one.tasks())[0]
    await one.accept()
    began = time.monotonic()
    await one.report(caller.completed(item, b"there"))
    answer = await waiting
    assert time.monotonic() - began < 0.7
    assert answer.results[0].result.output.data == b"there"
    await one.close()


async def test_await__notification_lost__is_answered_within_a_second(
    deaf_pair: tuple[Caller, Caller],
) -> None:
    here, there = deaf_pair
    task_id = (await here.enqueue())[0]
    waiting = asyncio.create_task(here.wait(task_id, wait_seconds=20))
    one = await RawWorker.open(there)
    item = (await one.tasks())[0]
    await one.accept()
    began = time.monotonic()
    await one.report(caller.completed(item))
    answer = await waiting
    assert time.monotonic() - began < 1.6
    assert answer.results[0].task_id == task_id
    await one.close()


async def test_cancel__worker_on_another_server__is_told(pair: tuple[Caller, Caller]) -> None:
    here, there = pair
    task_id = (await here.enqueue())[0]
    one = await RawWorker.open(there)
    item = (await one.tasks())[0]
    await one.accept()
    await here.cancel(task_id, reason="no more")
    await one.until(lambda: bool(one.cancels), seconds=2)
    assert (one.cancels[0].task_id, one.cancels[0].reason) == (task_id, "no more")
    result = worker.Result(task_id=task_id, lease_token=item.lease_token)
    result.cancelled.SetInParent()
    assert await one.report(result) == ["RECORDED"]
    assert await here.state(task_id) == "CANCELLED"
    await one.close()


async def test_listen__connection_cut__listens_again(
    pair: tuple[Caller, Caller], conn: psycopg.Connection
) -> None:
    assert await asyncio.to_thread(eventually, lambda: len(listeners(conn)) == 2)
    before = listeners(conn)
    cut_listeners(conn)
    assert await asyncio.to_thread(
        eventually, lambda: len(listeners(conn)) == 2 and not listeners(conn) & before
    )
    here, there = pair
    one = await RawWorker.open(there)
    await here.enqueue()
    await one.tasks()
    await one.close()


async def test_assign__workers_on_two_servers__hands_out_each_task_once(
    pair: tuple[Caller, Caller], conn: psycopg.Connection
) -> None:
    workers = [await RawWorker.open(client, slots=5) for client in pair for _ in range(2)]
    ids = await pair[0].enqueue(count=100)

    async def work(one: RawWorker) -> None:
        while True:
            await one.until(lambda: bool(one.out), seconds=60)
            out = list(one.out.values())
            await one.accept()
            assert set(await one.report(*map(caller.completed, out))) == {"RECORDED"}

    working = [asyncio.create_task(work(one)) for one in workers]
    try:
        done = "select count(*) = 100 from deliveries where outcome = 'DONE'"
        assert await asyncio.to_thread(
            eventually, lambda: conn.execute(done).fetchone() == (True,), seconds=20
        )
    finally:
        for task in working:
            task.cancel()
        await asyncio.gather(*working, return_exceptions=True)
    given = [item.task_id for one in workers for item in one.assigned]
    assert sorted(given) == sorted(ids)
    assert all(one.peak <= 5 for one in workers)
    for one in workers:
        await one.close()
