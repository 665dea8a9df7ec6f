"""What a worker says of handlers: once, by name, and never at the length of their data."""

import asyncio
import logging
import os
import threading
from types import SimpleNamespace

import pytest

from tenure import App, ArgumentsRefused, Retry, RetryAfter, TaskFailed, Worker, current_task
from tenure.channel import Target
from tenure.worker import endings
from tenure.worker.stream import Ending
from tests.fix_server import RunningServer


async def test_handler__blocks_the_event_loop__is_named_in_one_warning(
    server: RunningServer, caplog: pytest.LogCaptureFixture
) -> None:
    app = App("noise", server.address)

    @app.task
    async def rude() -> None:
        threading.Event().wait(2)

    @app.task
    async def polite() -> None:
        await asyncio.sleep(2)  # tidy: a handler that takes its time and lets others run

    @app.task
    def in_a_thread() -> None:
        threading.Event().wait(2)

    async with Worker(app):
        handles = [await task.aenqueue() for task in (polite, in_a_thread)]
        for handle in handles:
            await handle.aresult(30)
        assert "blocked the event loop" not in caplog.text
        for _ in range(2):
            await (await rude.aenqueue()).aresult(30)
    warnings = [each for each in caplog.records if "blocked the event loop" in each.getMessage()]
    assert len(warnings) == 1
    assert warnings[0].levelno == logging.WARNING
    assert "the async handler 'rude' has blocked" in warnings[0].getMessage()


async def test_handler__raises_five_megabytes__is_logged_clipped(
    server: RunningServer, caplog: pytest.LogCaptureFixture
) -> None:
    app = App("noise", server.address)

    @app.task(retry=Retry(1))
    def verbose(cause: bool) -> None:  # noqa: FBT001 - which one is long
        try:
            os.environ["x" * 5_000_000 if cause else "short"]
        except KeyError as exc:
            raise ValueError("short" if cause else "x" * 5_000_000) from exc

    async with Worker(app):
        for cause in (False, True):
            handle = await verbose.aenqueue(cause)
            with pytest.raises(TaskFailed) as caught:
                await handle.aresult(30)
            assert len(caught.value.failure.format()) < 150_000
    formatted = [logging.Formatter().format(each) for each in caplog.records]
    failures = [each for each in formatted if "attempt 1 of 1: ValueError" in each]
    assert len(failures) == 2
    assert max(map(len, formatted)) < 50_000
    assert all("in verbose" in each for each in failures)


async def test_handler__raises_a_short_message__is_logged_with_its_exception(
    server: RunningServer, caplog: pytest.LogCaptureFixture
) -> None:
    app = App("noise", server.address)

    @app.task(retry=Retry(1))
    def brief() -> None:
        raise ValueError("short")

    async with Worker(app):
        await (await brief.aenqueue()).await_(30)
    (record,) = [each for each in caplog.records if "attempt 1 of 1" in each.getMessage()]
    # Collectors of errors group by it.
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], ValueError)


async def test_arguments__the_handler_does_not_take_them__another_worker_may_unless_told(
    server: RunningServer,
) -> None:
    old, new = App("noise", server.address), App("noise", server.address)
    calls: list[int] = []

    @new.task(name="add")
    def enqueue(first: int, second: int) -> None: ...

    @old.task(name="add")
    def add(first: int) -> int:
        calls.append(first)
        return first

    async with Worker(old):
        retried = await enqueue.using(retry=Retry(2, initial_delay=0.01)).aenqueue(1, 2)
        given_up = await enqueue.using(retry=Retry(9, unless=[ArgumentsRefused])).aenqueue(1, 2)
        attempts = []
        for handle in (retried, given_up):
            with pytest.raises(TaskFailed) as caught:
                await handle.aresult(30)
            attempts.append(caught.value.attempt)
    assert attempts == [2, 1]
    assert calls == []
    del add


async def test_arguments__thousands_are_wrong__the_failure_is_short(server: RunningServer) -> None:
    right, wrong = App("noise", server.address), App("noise", server.address)

    @wrong.task(name="add")
    def enqueue(numbers: list[str]) -> None: ...

    @right.task(name="add", retry=Retry(1))
    def add(numbers: list[int]) -> None: ...

    secret = "a secret value " * 5
    handle = await enqueue.using(retry=Retry(1)).aenqueue([secret] * 10_000)
    async with Worker(right):
        with pytest.raises(TaskFailed) as caught:
            await handle.aresult(30)
    failure = caught.value.failure
    assert failure.type == "ArgumentsRefused"
    assert failure.message.startswith("arguments of task 'add': numbers.0: Input should be a valid")
    assert failure.message.endswith("; and 9,995 more")
    assert failure.cause is None
    assert "a secret value" not in failure.format()
    assert len(failure.format()) < 5_000
    del add


async def test_handler__fails__says_whether_that_is_news_a_warning_or_the_end(
    server: RunningServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "tenure.worker")
    app = App("noise", server.address)

    @app.task(retry=Retry(3, initial_delay=0.01))
    def thrice() -> None:
        if current_task().attempt == 1:
            raise RetryAfter(0.01)
        raise ValueError("again")

    @app.task
    def refused() -> int:
        return "a text"  # type: ignore[return-value]  # pyright: ignore[reportReturnType]

    async with Worker(app):
        for task in (thrice, refused):
            with pytest.raises(TaskFailed):
                await (await task.aenqueue()).aresult(30)
    found = [
        (each.levelno, each.getMessage().split()[1], "for good" in each.getMessage())
        for each in caplog.records
        if " failed" in each.getMessage()
    ]
    assert found == [
        (logging.INFO, "thrice", False),
        (logging.WARNING, "thrice", False),
        (logging.ERROR, "thrice", True),
        (logging.ERROR, "refused", True),
    ]


def test_stream__ends_for_the_same_reasons_again_and_again__is_said_once_a_minute(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1_000.0]
    monkeypatch.setattr("tenure.worker.endings.time", SimpleNamespace(monotonic=lambda: now[0]))
    said = endings.Endings(Target("127.0.0.1:1", "default", ""))

    def tries(count: int) -> int:
        caplog.clear()
        for number in range(count):
            said.say(Ending(f"reason {number % 2}"), connected_before=True, is_last=False)
            now[0] += 1.0
        return len(caplog.records)

    assert tries(50) == 2
    assert tries(9) == 0
    assert tries(50) == 2
