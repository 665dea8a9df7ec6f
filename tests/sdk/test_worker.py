"""The worker on a real server: broken streams, stops, fair shares."""

import asyncio
import collections
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable

import grpc
import pytest
import pytest_asyncio

from tenure import (
    App,
    AsyncClient,
    DeliveryOutcome,
    Handle,
    NewTask,
    Retry,
    TaskOutcome,
    TaskState,
    Worker,
    aas_completed,
    current_task,
)
from tests.eventually import eventually
from tests.fix_server import RunningServer
from tests.sdk.relay import Relay


@pytest_asyncio.fixture
async def relay(server: RunningServer) -> AsyncIterator[Relay]:
    made = Relay(server.address)
    await made.start()
    yield made
    await made.stop()


@pytest.fixture
def client(server: RunningServer) -> AsyncClient:
    return AsyncClient(server.address, server.namespace)


async def over(client: AsyncClient, task_id: str, seconds: float = 30.0) -> TaskOutcome:
    """Waits for a task that has no handle."""
    outcome = (await client.await_tasks([task_id], seconds))[task_id]
    assert isinstance(outcome, TaskOutcome)
    return outcome


async def until(probe: Callable[[], bool], seconds: float = 20.0) -> None:
    assert await asyncio.to_thread(eventually, probe, seconds=seconds)


async def reaches(client: AsyncClient, task_id: str, state: TaskState) -> None:
    """Waits until a task is in a state."""
    async with asyncio.timeout(20):
        while (await client.get_task(task_id)).task.state is not state:  # noqa: ASYNC110 - no event
            await asyncio.sleep(0.02)  # tidy: polls the server, bounded


def spawn(code: str) -> subprocess.Popen[str]:
    """Starts a program whose output is read."""
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)


async def test_stream__ends_with_any_status__is_opened_again(
    relay: Relay, client: AsyncClient
) -> None:
    app = App("test", relay.address)
    runs: collections.Counter[str] = collections.Counter()
    gate = threading.Event()

    @app.task
    def run(name: str) -> str:
        runs[name] += 1
        gate.wait(10)
        return name

    codes = ["CANCELLED", "UNAVAILABLE", "INTERNAL", "UNKNOWN", "OK"]
    async with Worker(app):
        for count, name in enumerate(codes, 1):
            gate.clear()
            during = await client.enqueue(NewTask(name="run", arguments={"name": name}))
            await until(lambda name=name: runs[name] == 1)  # type: ignore[misc]
            relay.break_streams(grpc.StatusCode[name])
            gate.set()
            assert (await over(client, during.id)).state is TaskState.COMPLETED
            after = await client.enqueue(NewTask(name="run", arguments={"name": f"after {name}"}))
            assert (await over(client, after.id)).state is TaskState.COMPLETED
            assert relay.opened_count == count + 1
            # The lease outlived the stream: handed out once, run once.
            assert len((await client.get_task(during.id)).deliveries) == 1
    assert set(runs.values()) == {1}


async def test_stream__half_open__is_left_and_nothing_is_lost(
    relay: Relay, client: AsyncClient
) -> None:
    app = App("test", relay.address)
    runs: list[str] = []
    gate = threading.Event()

    @app.task
    def run() -> None:
        runs.append(current_task().id)
        gate.wait(20)

    async with Worker(app):
        task = await client.enqueue(NewTask(name="run"))
        # A hand-out that was never accepted is lost within seconds, whatever the lease.
        await reaches(client, task.id, TaskState.RUNNING)
        relay.silence()
        gate.set()
        # The worker notices by itself; the next stream passes.
        assert (await over(client, task.id)).state is TaskState.COMPLETED
    assert runs == [task.id]


async def test_report__acknowledgement_lost__is_sent_again_and_recorded_once(
    relay: Relay, client: AsyncClient
) -> None:
    app = App("test", relay.address)
    runs: list[str] = []

    @app.task
    def run() -> None:
        runs.append(current_task().id)

    worker = Worker(app)
    async with worker:
        await until(lambda: relay.opened_count == 1)
        first = await client.enqueue(NewTask(name="run"))
        await over(client, first.id)
        relay.deafen()
        # What is assigned now does not arrive, and is handed out again after the break.
        second = await client.enqueue(NewTask(name="run"))
        relay.break_streams(grpc.StatusCode.UNAVAILABLE)
        await over(client, second.id)
    assert sorted(runs) == sorted([first.id, second.id])
    deliveries = (await client.get_task(first.id)).deliveries
    assert [each.outcome for each in deliveries] == [DeliveryOutcome.DONE]


async def test_handler__blocks_the_event_loop_past_the_lease__keeps_it(
    server: RunningServer, client: AsyncClient
) -> None:
    app = App("test", server.address)

    @app.task
    async def rude() -> None:
        # Longer than the lease of the test server, on the handlers' own loop.
        threading.Event().wait(8)

    async with Worker(app):
        task = await client.enqueue(NewTask(name="rude"))
        assert (await over(client, task.id)).state is TaskState.COMPLETED
    assert len((await client.get_task(task.id)).deliveries) == 1


async def test_close__handlers_running_and_waiting__end_or_go_back(
    server: RunningServer, client: AsyncClient
) -> None:
    app = App("test", server.address)
    started: list[str] = []

    @app.task(retry=Retry(2, initial_delay=60))
    def deaf() -> None:
        started.append("deaf")
        threading.Event().wait(6)

    @app.task(retry=Retry(2, initial_delay=60))
    async def obedient() -> None:
        started.append("obedient")
        await asyncio.Event().wait()

    @app.task
    def quick() -> None:
        started.append("quick")
        threading.Event().wait(0.3)

    handles: list[Handle[None]] = [await task.aenqueue() for task in (deaf, obedient, quick)]
    worker = Worker(app, concurrency=3)
    worker.start()
    await until(lambda: len(started) == 3)
    began_at = time.monotonic()
    await worker.aclose(grace=1)
    assert time.monotonic() - began_at < 5
    states = [(await client.get_task(each.id)).task for each in handles]
    assert [each.state for each in states] == [
        TaskState.BACKOFF,
        TaskState.BACKOFF,
        TaskState.COMPLETED,
    ]
    for each in states[:2]:
        assert each.failure is not None
        assert each.failure.type == "WorkerStopped"
    assert await client.list_workers() == []


async def test_workers__slow_tasks__are_shared_whatever_was_prefetched(
    server: RunningServer,
) -> None:
    app = App("test", server.address)

    @app.task
    def noop() -> None: ...

    @app.task
    def slow() -> None:
        threading.Event().wait(1.5)

    async with Worker(app, concurrency=4) as first:
        handles = await noop.aenqueue_many(() for _ in range(5_000))
        assert len([done async for done in aas_completed(handles, 60)]) == 5_000
        assert first.slots > 4
        async with Worker(app, concurrency=4):
            began_at = time.monotonic()
            slow_handles = await slow.aenqueue_many(() for _ in range(16))
            for handle in slow_handles:
                await handle.aresult(30)
            # Two rounds of 1.5 s on eight places, and what it takes to give tasks back.
            assert time.monotonic() - began_at < 5.5


async def test_run__sigterm__lets_handlers_end_and_exits(
    server: RunningServer, client: AsyncClient
) -> None:
    code = f"""
import threading, tenure
app = tenure.App("test", {server.address!r})

@app.task
def slow() -> str:
    print("started", flush=True)
    threading.Event().wait(1)
    return "ended"

tenure.Worker(app).run()
print("stopped", flush=True)
"""
    process = spawn(code)
    try:
        task = await client.enqueue(NewTask(name="slow"))
        assert process.stdout is not None
        assert await asyncio.to_thread(process.stdout.readline) == "started\n"
        os.kill(process.pid, signal.SIGTERM)
        output, _ = await asyncio.to_thread(process.communicate, None, 20)
    finally:
        process.kill()
    assert output == "stopped\n"
    assert process.returncode == 0
    outcome = await over(client, task.id)
    assert outcome.output is not None
    assert outcome.output.json() == "ended"


async def test_run__second_signal__ends_the_grace(
    server: RunningServer, client: AsyncClient
) -> None:
    code = f"""
import threading, tenure
app = tenure.App("test", {server.address!r})

@app.task
def endless() -> None:
    print("started", flush=True)
    threading.Event().wait(600)

tenure.Worker(app).run()
"""
    process = spawn(code)
    try:
        await client.enqueue(NewTask(name="endless"))
        assert process.stdout is not None
        assert await asyncio.to_thread(process.stdout.readline) == "started\n"
        os.kill(process.pid, signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            await asyncio.to_thread(process.wait, 0.5)
        os.kill(process.pid, signal.SIGINT)
        assert await asyncio.to_thread(process.wait, 15) == 0
    finally:
        process.kill()
        process.communicate()
