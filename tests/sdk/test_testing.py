"""Handlers that ask for their task, tested as functions."""

import asyncio
import datetime
from collections.abc import Callable
from typing import Any

import pytest

import tenure
from tenure import App, current_task, testing

app = App("tested", "127.0.0.1:1")


@app.task
def poll(job: str) -> str:
    task = current_task()
    task.heartbeat({"job": job, "at": (1, 2)})
    if task.attempt == 1:
        raise tenure.RetryAfter(datetime.timedelta(seconds=30), "not ready")
    if task.details is None:
        raise tenure.Reschedule(60, {"seen": 1})
    task.heartbeat()
    return f"{task.name} {task.queue} {task.id} {task.delivery}/{task.max_attempts}: {task.details}"


@app.task
async def wait_long() -> bool:
    await asyncio.sleep(0)  # tidy: gives the loop a turn, waits for nothing
    current_task().heartbeat("here")
    return current_task().cancelled


def test_call__in_a_context__sees_what_was_given_and_leaves_what_it_said() -> None:
    with testing.task_context(
        name="poll", queue="q", attempt=2, max_attempts=3, delivery=4, id="7", details={"seen": 1}
    ) as task:
        assert poll("a") == "poll q 7 4/3: {'seen': 1}"
    assert task.heartbeats == [{"job": "a", "at": [1, 2]}, None]


def test_call__control_flow__passes_and_says_how_long() -> None:
    with testing.task_context(), pytest.raises(tenure.RetryAfter, match="not ready") as later:
        poll("a")
    assert later.value.seconds == 30
    with testing.task_context(attempt=2), pytest.raises(tenure.Reschedule) as again:
        poll("a")
    assert (again.value.seconds, again.value.details) == (60, {"seen": 1})


def test_call__after_the_context__has_no_task_again() -> None:
    with testing.task_context(name="outer"):
        with testing.task_context(name="inner"):
            assert current_task().name == "inner"
        assert current_task().name == "outer"
    with pytest.raises(tenure.NoCurrentTask, match=r"tenure\.testing\.task_context"):
        poll("a")


def test_heartbeat__cancelled__raises_in_def_handlers_only() -> None:
    with testing.task_context() as task:
        task.cancel("enough")
        with pytest.raises(tenure.CancelRequested, match="enough"):
            poll("a")
        assert (current_task().cancelled, current_task().cancel_reason) == (True, "enough")

    async def in_loop() -> bool:
        with testing.task_context(is_async=True) as waiting:
            waiting.cancel()
            return await wait_long() and waiting.heartbeats == ["here"]

    assert asyncio.run(in_loop())


def test_time_left__as_given__does_not_pass() -> None:
    with testing.task_context(time_left=2.5):
        assert current_task().time_left == current_task().time_left == 2.5
        assert current_task().deadline is not None
    with testing.task_context():
        assert current_task().deadline is None


def enter(**options: Any) -> Callable[[], object]:
    return lambda: testing.task_context(**options).__enter__()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (enter(attempt=0), "attempt is a whole number from 1 to 2,147,483,647, not 0"),
        (enter(max_attempts="3"), "max_attempts is a whole number from 1 to 1,000, not '3'"),
        (enter(name=""), "name is a text of 1 to 200 bytes, not ''"),
        (enter(time_left="1"), "time_left is a number of seconds or None, not '1'"),
        (enter(details={1, object()}), "JSON value: "),
    ],
)
def test_enter__wrong_option__is_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(tenure.UsageError, match=message):
        make()


def test_heartbeat__details_too_large__are_refused_as_by_a_worker() -> None:
    with testing.task_context() as task:
        with pytest.raises(tenure.ValueRefused, match="more than 64 KiB"):
            current_task().heartbeat("x" * 70_000)
        assert task.heartbeats == []
