"""Handlers that do not end, and values that do not fit: what happens to their slots and mates."""

import asyncio
import logging
import threading
import time
from collections import Counter
from typing import Any

import psycopg
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
from tenure.v1 import payload_pb2 as payload
from tenure.v1 import policy_pb2 as policies
from tenure_service.main import Server
from tenure_service.store import invariants
from tests.eventually import eventually
from tests.protocol import caller
from tests.protocol.caller import Caller
from tests.protocol.raw_worker import RawWorker

SOON = Timeouts(start_to_close=Timeout(0.5, then="time_out"))


async def test_handlers__deaf_to_their_end__tasks_are_over_and_places_come_back(
    running: Server, conn: psycopg.Connection
) -> None:
    app = App("faults", running.address)
    release = threading.Event()
    started: Counter[str] = Counter()

    def thread() -> None:
        started[current_task().id] += 1
        while not release.wait(0.01):
            pass

    async def loop() -> None:
        started[current_task().id] += 1
        while not release.is_set():
            try:
                await asyncio.sleep(0.01)  # tidy: a handler that swallows its cancellation
            except asyncio.CancelledError:
                continue

    to_cancel = [app.task(name="thread 1")(thread), app.task(name="loop 1")(loop)]
    limited = app.task(name="thread 2", timeout=SOON), app.task(name="loop 2", timeout=SOON)
    to_time_out = [limited[0](thread), limited[1](loop)]

    @app.task
    def quick() -> str:
        return "done"

    gate = threading.Barrier(5, timeout=10)

    @app.task(retry=Retry(1))
    def meet() -> int:
        return gate.wait()

    async with Worker(app, concurrency=5):
        cancelled = [await each.aenqueue() for each in to_cancel]
        timed_out = [await each.aenqueue() for each in to_time_out]
        assert await asyncio.to_thread(eventually, lambda: len(started) == 4)
        began = time.monotonic()
        await AsyncClient(running.address).cancel_tasks([each.id for each in cancelled], grace=0.5)
        for each in cancelled:
            with pytest.raises(TaskCancelled):
                await each.aresult(10)
        for each in timed_out:
            with pytest.raises(TaskTimedOut):
                await each.aresult(10)
        assert time.monotonic() - began < 4
        # Nobody can end them: their places are taken until they end, others go on meanwhile.
        for _ in range(3):
            assert await (await quick.aenqueue()).aresult(10) == "done"
        release.set()
        all_places = [await meet.aenqueue() for _ in range(5)]
        assert sorted([await each.aresult(10) for each in all_places]) == [0, 1, 2, 3, 4]
    assert set(started.values()) == {1}
    assert invariants.check_invariants(conn) == {}


async def test_report__texts_that_postgres_cannot_store__are_kept_and_mates_unharmed(
    running: Server, caplog: pytest.LogCaptureFixture
) -> None:
    app = App("faults", running.address)

    @app.task(retry=Retry(1))
    def bad(kind: str) -> Any:
        logging.getLogger("handler").warning("a log with %s in it", chr(0))
        if kind == "nul":
            raise ValueError("a\0b")
        if kind == "surrogate":
            raise ValueError("a\ud800b")
        return {"returned": "\ud800", "infinite": float("inf")}[kind]

    @app.task
    def good(number: int) -> int:
        return number

    async with Worker(app, concurrency=1):
        kinds = ["nul", "surrogate", "returned", "infinite"]
        goods = await good.aenqueue_many((number,) for number in range(20))
        bads = await bad.aenqueue_many((kind,) for kind in kinds)
        goods += await good.aenqueue_many((number,) for number in range(20, 40))
        failures = []
        for handle in bads:
            with pytest.raises(TaskFailed) as failed:
                await handle.aresult(20)
            failures.append(failed.value.failure)
        assert [await handle.aresult(20) for handle in goods] == list(range(40))
    assert [one.type for one in failures] == ["ValueError"] * 2 + ["ValueRefused"] * 2
    assert "\0" not in failures[0].message
    assert failures[0].message.startswith("a")
    assert failures[1].message.startswith("a")
    assert failures[1].message.endswith("b")
    assert caplog.text.count("a log with") == 4


async def test_report__failed_while_its_key_stands__is_retried_and_the_key_still_names_it(
    near: Caller, conn: psycopg.Connection
) -> None:
    policy = policies.TaskPolicy()
    policy.retry.initial_delay.FromMilliseconds(300)
    fields: dict[str, Any] = {
        "key": "the same",
        "input": payload.Payload(data=b"1"),
        "policy": policy,
    }
    (task_id,) = await near.enqueue(**fields)
    one = await RawWorker.open(near)
    first = (await one.tasks())[0]
    await one.accept()
    assert await near.enqueue(**fields) == [task_id]
    assert await one.report(caller.failed(first)) == ["RECORDED"]
    assert await near.state(task_id) == "BACKOFF"
    assert await near.enqueue(**fields) == [task_id]
    second = (await one.tasks(2))[1]
    assert (second.task_id, second.attempt) == (task_id, 2)
    assert await one.report(caller.completed(second)) == ["RECORDED"]
    assert await near.enqueue(**fields) == [task_id]
    await one.nothing_comes()
    await one.close()
    assert conn.execute("select count(*) from tasks").fetchone() == (1,)
    assert invariants.check_invariants(conn) == {}
