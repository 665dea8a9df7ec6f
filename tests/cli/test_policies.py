"""`tenure policy`."""

import asyncio
import json

from tenure import App, Retry, Worker
from tests.cli.command import run_here
from tests.eventually import eventually_awaited
from tests.fix_server import RunningServer


async def test_policy__set_and_cleared__goes_before_what_code_declares(
    server: RunningServer,
) -> None:
    app = App("policies", address=server.address)

    @app.task(retry=Retry(5))
    def charge() -> None:
        """Does nothing."""

    at = ("--address", server.address)
    worker = Worker(app)
    await asyncio.to_thread(worker.start)
    try:
        # What it declares comes with its session.
        async def receives() -> bool:
            return "receiving" in (await run_here("worker", "list", "--json", *at)).out

        assert await eventually_awaited(receives, seconds=20)
        listed = await run_here("policy", "list", *at)
        assert "max_attempts 5" in listed.out
        done = await run_here(
            *("policy", "set", "charge", "--max-attempts", "8", "--start-to-close", "30s", *at)
        )
        assert done.code == 0, done.err
        assert "max_attempts 8" in done.out
        assert "start_to_close 30 s (retry)" in done.out
        (known,) = json.loads((await run_here("policy", "list", "--json", *at)).out)
        assert known["override"]["retry"]["max_attempts"] == 8
        assert known["declared"]["retry"]["max_attempts"] == 5
        assert known["effective"]["retry"]["max_attempts"] == 8
        cleared = await run_here("policy", "clear", "charge", *at)
        assert cleared.code == 0
        (known,) = json.loads((await run_here("policy", "list", "--json", *at)).out)
        assert known["override"] is None
        assert known["effective"]["retry"]["max_attempts"] == 5
    finally:
        await asyncio.to_thread(worker.close, 0)


async def test_policy__nothing_said_or_out_of_bounds__is_refused(server: RunningServer) -> None:
    at = ("--address", server.address)
    nothing = await run_here("policy", "set", "charge", *at)
    assert nothing.code == 2
    assert "nothing to set" in nothing.err
    many = await run_here("policy", "set", "charge", "--max-attempts", "1001", *at)
    assert many.code == 2
    assert "1,000" in many.err or "1000" in many.err
