"""What is said of loops that fail: enough to see it, and not so much that it hides the rest."""

import asyncio
import logging
from collections.abc import AsyncIterator

import pytest

from tenure_service.engine.errors import database_unavailable
from tenure_service.loops import supervisor
from tenure_service.loops.supervisor import Health, Supervisor, Trouble
from tests.eventually import eventually_async

#: What such a failure says.
AWAY = str(database_unavailable("no connection"))


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == supervisor.__name__]


@pytest.fixture
async def supervised() -> AsyncIterator[Supervisor]:
    made = Supervisor()
    yield made
    await made.stop()


def test_failed__again_and_again__is_told_at_once_and_then_each_half_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = 1000.0
    trouble = Trouble("due", clock=lambda: now)
    for _ in range(19):
        trouble.failed(database_unavailable("no connection"))
        now += 5
    assert lines(caplog) == [
        f"loop due failed and starts again: {AWAY}",
        f"loop due has failed 7 times in 30 s, and starts again: {AWAY}",
        f"loop due has failed 13 times in 60 s, and starts again: {AWAY}",
        f"loop due has failed 19 times in 90 s, and starts again: {AWAY}",
    ]
    trouble.over()
    trouble.over()
    assert lines(caplog)[4:] == ["loop due works again; it failed 19 times in 95 s"]
    trouble.failed(database_unavailable("no connection"))
    assert lines(caplog)[5:] == [f"loop due failed and starts again: {AWAY}"]


def test_failed__bug_while_the_database_is_away__is_told_with_its_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    trouble = Trouble("due", clock=lambda: 0.0)
    trouble.failed(database_unavailable("no connection"))
    for _ in range(2):
        try:
            int("none")
        except ValueError as exc:
            trouble.failed(exc)
    first, second = caplog.records
    assert first.exc_info is None
    assert second.exc_info is not None
    assert second.exc_info[0] is ValueError


async def test_run__loop_fails_thrice__is_counted_each_time_and_told_when_it_works(
    supervised: Supervisor, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "_PAUSE_FIRST_SECONDS", 0.001)
    caplog.set_level(logging.INFO)
    tries = 0

    async def loop(health: Health) -> None:
        nonlocal tries
        tries += 1
        if tries <= 3:
            raise database_unavailable("no connection")
        health.succeeded()
        await asyncio.Event().wait()

    supervised.start("due", loop, every_seconds=1.0)
    assert await eventually_async(lambda: len(lines(caplog)) == 2)
    assert supervised.health["due"].failure_count == 3
    first, last = lines(caplog)
    assert first == f"loop due failed and starts again: {AWAY}"
    assert last.startswith("loop due works again; it failed 3 times in ")


async def test_run__loop_without_passes__works_again_once_it_goes_on_for_long_enough(
    supervised: Supervisor, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "_PAUSE_FIRST_SECONDS", 0.001)
    monkeypatch.setattr(supervisor, "_PAUSE_MAX_SECONDS", 0.3)
    tries = 0

    async def loop(health: Health) -> None:
        nonlocal tries
        tries += 1
        # It begins well each time: that alone says nothing.
        health.succeeded()
        if tries <= 3:
            raise database_unavailable("no connection")
        await asyncio.Event().wait()

    supervised.start("listen", loop)
    assert await eventually_async(lambda: len(lines(caplog)) == 2)
    first, last = lines(caplog)
    assert first == f"loop listen failed and starts again: {AWAY}"
    assert last.startswith("loop listen works again; it failed 3 times in ")
