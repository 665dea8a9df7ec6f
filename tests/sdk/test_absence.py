"""How long a worker waits before it tries again, and what it says once it is back."""

import logging

import pytest

from tenure import App, Worker, errors
from tenure.worker import absence
from tenure.worker.absence import Absence
from tenure.worker.stream import Ending
from tests.eventually import eventually_async
from tests.fix_server import RunningServer
from tests.sdk.relay import Relay

REFUSED = Ending("nobody listens", errors.Unavailable("nobody listens", status="UNAVAILABLE"))
HANGING = Ending("no answer to Open", half_open=True)
BROKEN = Ending("the connection broke", errors.Unavailable("broke", status="UNAVAILABLE"))
HALF_SECOND = 0.5


def away(ending: Ending, seconds: float, *, try_seconds: float) -> float:
    """Has a worker lose its stream and try until it was away for so long; returns the next pause."""
    now = 1_000.0
    it = Absence(now)
    it.opened(now)
    now += 60
    it.ended(now - 60, now, BROKEN)
    end = now + seconds
    while True:
        pause = it.pause_seconds(now, ending)
        if now + pause >= end:
            return pause
        now += pause
        it.ended(now, now + try_seconds, ending)
        now += try_seconds


def test_pause__connections_are_refused__is_a_fifth_of_the_time_away_and_spread() -> None:
    pauses = [away(REFUSED, 10, try_seconds=0.005) for _ in range(300)]
    assert max(pauses) <= 2.0
    # Not in step: pauses of less than half a second are as likely as longer ones.
    assert max(pauses) > 1.0
    assert min(pauses) < HALF_SECOND
    long = [away(REFUSED, 3_600, try_seconds=0.005) for _ in range(20)]
    assert max(long) <= absence.PAUSE_SECONDS_MAX


@pytest.mark.parametrize(("ending", "try_seconds"), [(HANGING, 0.005), (REFUSED, 2.0)])
def test_pause__somebody_is_there_but_slow__doubles_with_each_try(
    ending: Ending, try_seconds: float
) -> None:
    assert max(away(ending, 60, try_seconds=try_seconds) for _ in range(300)) > 10


def test_pause__first_after_a_stream__is_short() -> None:
    it = Absence(0.0)
    it.opened(1.0)
    it.ended(0.0, 61.0, BROKEN)
    pauses = [it.pause_seconds(61.0, BROKEN) for _ in range(300)]
    assert max(pauses) <= absence.PAUSE_SECONDS_FIRST
    assert min(pauses) < HALF_SECOND


def test_pause__streams_open_and_break_at_once__stays_under_three_seconds() -> None:
    it = Absence(0.0)
    for now in range(1, 40):
        it.opened(float(now))
        it.ended(float(now), now + 0.1, BROKEN)
    assert it.failure_count == absence.OPENED_FAILURE_COUNT_MAX
    pauses = [it.pause_seconds(40.0, BROKEN) for _ in range(300)]
    assert absence.PAUSE_SECONDS_FIRST < max(pauses) <= 2 * absence.PAUSE_SECONDS_FIRST


def test_pause__server_asks_for_time__gets_it() -> None:
    it = Absence(0.0)
    error = errors.Unavailable("later", reason="SHUTTING_DOWN", retry_after=7.0)
    it.ended(0.0, 0.1, Ending("later", error))
    assert it.pause_seconds(0.1, Ending("later", error)) == 7.0


async def test_server__away_and_back__the_worker_says_both(
    server: RunningServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "tenure.worker")
    relay = Relay(server.address)
    await relay.start()
    app = App("test", relay.address)

    @app.task
    def run() -> None: ...

    def said(text: str) -> list[logging.LogRecord]:
        return [each for each in caplog.records if text in each.getMessage()]

    async with Worker(app, name="w"):
        assert await eventually_async(lambda: said("is connected"))
        (first,) = said("is connected")
        assert first.getMessage().startswith(f"worker w is connected to {relay.address} (new ses")
        await relay.stop()
        # Refused at least once: the next stream needs a new connection.
        assert await eventually_async(lambda: said("; connecting again"))
        again = Relay(server.address)
        await again.start(relay.address)
        try:
            assert await eventually_async(lambda: said("connected to") != [first])
        finally:
            await again.stop()
    _, back = said("is connected")
    assert back.levelno == logging.INFO
    assert f"w is connected to {relay.address} again after " in back.getMessage()
    assert "(session resumed, server " in back.getMessage()
