"""The example of a workflow runs as it says, killed in the middle and started again."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tenure import AsyncClient
from tests.eventually import eventually_awaited
from tests.fix_server import RunningServer

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "workflow.py"


def start(server: RunningServer, *arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, str(EXAMPLE), *arguments],
        env={**os.environ, "TENURE_ADDRESS": server.address},
        stdout=subprocess.PIPE,
        text=True,
    )


async def said(program: "subprocess.Popen[str]") -> list[str]:
    """Waits for the end of a program; gives its lines."""
    text, _ = await asyncio.to_thread(program.communicate, timeout=60)
    return text.splitlines()


async def test_example__killed_while_it_sleeps__goes_on_where_it_stood(
    server: RunningServer,
) -> None:
    client = AsyncClient(server.address)
    first = start(server)

    async def sleeps() -> bool:
        runs = (await client.list_runs(name="fulfil")).items
        return bool(runs) and runs[0].step_count == 3

    assert await eventually_awaited(sleeps, seconds=30)
    first.kill()
    lines = await said(first)
    assert lines[1:] == ["reserve 3 item(s) of o-1", "charge c-7 for 3 item(s)"]
    lines = await said(start(server))
    assert lines[0].endswith("goes on")
    assert sorted(lines[1:4]) == ["pack chair", "pack lamp", "pack table"]
    assert "state='shipped'" in lines[4]
    assert [line.split()[1:] for line in lines[5:]] == [
        ["CALL", "reserve"],
        ["TASK", "charge"],
        ["SLEEP", "sleep"],
        *[["TASK", "pack"]] * 3,
    ]


@pytest.mark.parametrize("item", ["unicorn"])
async def test_example__step_that_raises__is_an_answer(server: RunningServer, item: str) -> None:
    lines = await said(start(server, "o-2", item))
    assert "refused: we have no unicorns" in lines[-2]
    assert lines[-1].split()[1:] == ["CALL", "reserve"]
