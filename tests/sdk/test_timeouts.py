"""Timeouts as a program meets them: declared at the task, acted on by the server."""

import asyncio
import threading

import pytest

from tenure import (
    App,
    AsyncClient,
    Retry,
    TaskCancelled,
    TaskFailed,
    TaskTimedOut,
    Timeout,
    Timeouts,
    Worker,
    current_task,
)
from tests.eventually import eventually
from tests.fix_server import RunningServer

ONCE = Retry(1)
TWICE = Retry(2, initial_delay=0.05, jitter=0)


async def test_timeout__handler_runs_too_long__is_retried_and_then_dead(
    server: RunningServer,
) -> None:
    app = App("timeouts", address=server.address)
    cancelled: list[int] = []

    @app.task(timeout=0.5, retry=TWICE)
    async def stuck() -> None:
        try:
            await asyncio.sleep(60)  # tidy: the handler under test takes too long
        except asyncio.CancelledError:
            cancelled.append(current_task().attempt)
            raise

    async with Worker(app):
        handle = await stuck.aenqueue()
        with pytest.raises(TaskFailed) as failed:
            await handle.aresult(timeout=30)
    assert failed.value.failure.type == "StartToCloseTimeout"
    assert failed.value.attempt == 2
    assert cancelled == [1, 2]
    details = await AsyncClient(server.address).get_task(handle.id)
    assert [one.outcome for one in details.deliveries] == ["TIMED_OUT", "TIMED_OUT"]


async def test_timeout__blocking_handler__is_over_though_its_thread_goes_on(
    server: RunningServer,
) -> None:
    app = App("timeouts", address=server.address)
    release = threading.Event()

    @app.task(timeout=Timeouts(start_to_close=Timeout(0.5, then="time_out")), retry=TWICE)
    def deaf() -> None:
        release.wait(30)

    async with Worker(app):
        handle = await deaf.aenqueue()
        with pytest.raises(TaskTimedOut):
            await handle.aresult(timeout=30)
        release.set()


async def test_timeout__total__ends_a_task_that_nobody_takes(server: RunningServer) -> None:
    app = App("timeouts", address=server.address)

    @app.task(timeout=Timeouts(total=1.0))
    async def unserved() -> None: ...

    with pytest.raises(TaskTimedOut):
        await (await unserved.aenqueue()).aresult(timeout=30)


async def test_heartbeat__details__reach_the_next_attempt(server: RunningServer) -> None:
    app = App("timeouts", address=server.address)

    @app.task(timeout=Timeouts(heartbeat=1.5), retry=TWICE)
    async def resumes() -> object:
        task = current_task()
        if task.attempt == 2:
            return task.details
        task.heartbeat({"done": 17})
        await asyncio.sleep(60)  # tidy: the handler under test takes too long
        return None

    async with Worker(app):
        assert await (await resumes.aenqueue()).aresult(timeout=30) == {"done": 17}


async def test_cancel__cleanup_outlasts_heartbeats__is_not_cancelled_again(
    server: RunningServer,
) -> None:
    """Each heartbeat's answer repeats the cancellation, and a second one may shorten its grace."""
    app = App("timeouts", address=server.address)
    started, graces = asyncio.Event(), []
    loop = asyncio.get_running_loop()

    @app.task(retry=ONCE)
    async def tidy() -> str:
        loop.call_soon_threadsafe(started.set)
        try:
            await asyncio.sleep(60)  # tidy: the handler under test takes too long
        except asyncio.CancelledError:
            graces.append("cancelled")
            await asyncio.sleep(1.6)  # tidy: the clean-up is three heartbeats long
            graces.append("cleaned")
            raise
        return "never"

    client = AsyncClient(server.address)
    async with Worker(app):
        handle = await tidy.aenqueue()
        await started.wait()
        await client.cancel_tasks([handle.id], grace=30)
        await client.cancel_tasks([handle.id], grace=10)
        with pytest.raises(TaskCancelled):
            await handle.aresult(timeout=20)
    assert graces == ["cancelled", "cleaned"]


async def test_timeout__thread_runs_on__log_and_handler_are_told_which_limit_it_was(
    server: RunningServer, caplog: pytest.LogCaptureFixture
) -> None:
    app = App("timeouts", address=server.address)
    seen: list[str] = []
    told = threading.Event()

    def lines() -> list[str]:
        return [line for line in caplog.messages if "no longer this worker's" in line]

    @app.task(timeout=0.3, retry=ONCE)
    def deaf() -> None:
        # A handler that has ended by the next heartbeat is worth no line.
        assert eventually(lines, seconds=20)
        seen.append(current_task().cancel_reason)
        told.set()

    async with Worker(app):
        handle = await deaf.aenqueue()
        with pytest.raises(TaskFailed):
            await handle.aresult(timeout=30)
        assert await asyncio.to_thread(told.wait, 20)
    why = "the server ended its attempt at the timeout of 0.3 s"
    assert seen == [why]
    (line,) = lines()
    assert line.startswith(f"task deaf {handle.id} is no longer this worker's: {why}; nobody can")
    assert "mode='process'" in line


async def test_wait__in_a_handler__is_warned_of_once(
    server: RunningServer, caplog: pytest.LogCaptureFixture
) -> None:
    app = App("timeouts", address=server.address)

    @app.task
    def part() -> int:
        return 1

    @app.task
    def waits_for_part() -> int:
        return part.enqueue().result(timeout=20)

    async with Worker(app, concurrency=2):
        for _ in range(2):
            assert await (await waits_for_part.aenqueue()).aresult(timeout=30) == 1
    (line,) = [line for line in caplog.messages if "keeps its slot" in line]
    assert line.startswith("the handler of task waits_for_part waits for another task")
