"""Workers that are killed in the middle of a run: it goes on elsewhere, what is recorded stays."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tenure import AsyncClient, NewRun, RunOutcome
from tests.fix_server import RunningServer

ROOT = Path(__file__).parent.parent.parent


class Workers:
    """Starts worker processes of `flow_app`, and ends those that the test leaves."""

    def __init__(self, address: str, notes: Path) -> None:
        self.notes = notes
        self._address = address
        self._started: list[subprocess.Popen[bytes]] = []

    def start(self, name: str, dies_at: str = "") -> subprocess.Popen[bytes]:
        made = subprocess.Popen(
            [sys.executable, "-m", "tests.runs.flow_app", name],
            cwd=ROOT,
            env={
                **os.environ,
                "TENURE_ADDRESS": self._address,
                "FLOW_NOTES": str(self.notes),
                "FLOW_DIES_AT": dies_at,
            },
        )
        self._started.append(made)
        return made

    def end(self) -> None:
        for each in self._started:
            each.kill()
            each.wait()

    @property
    def noted(self) -> list[str]:
        return self.notes.read_text().split()


@pytest.fixture
def workers(server: RunningServer, tmp_path: Path) -> Iterator[Workers]:
    made = Workers(server.address, tmp_path / "notes")
    yield made
    made.end()


@pytest.mark.parametrize("name", ["steps", "plain"])
@pytest.mark.parametrize("dies_at", ["first", "second", "third", "fourth"])
async def test_kill__worker_in_a_step__others_are_not_done_again(
    server: RunningServer, workers: Workers, name: str, dies_at: str
) -> None:
    client = AsyncClient(server.address)
    first = workers.start("one", dies_at)
    run = await client.start(NewRun(name=name))
    assert await asyncio.to_thread(first.wait, 60) == -signal.SIGKILL
    workers.start("two")
    outcome = (await client.await_runs([run.id], 60))[run.id]
    assert isinstance(outcome, RunOutcome)
    assert outcome.output is not None, outcome
    assert outcome.output.json() == ["FIRST", "SECOND", "THIRD", "FOURTH"]
    done = ["first", "second", "third", "fourth"]
    at = done.index(dies_at)
    # Only what was under way when the process died is done again.
    assert workers.noted == [*done[: at + 1], *done[at:]]
    assert (await client.get_run(run.id)).step_count == len(done)
