"""What is printed, where it cannot be, and where there is too much of it."""

import asyncio
import json
import subprocess
from pathlib import Path

import pytest

from tenure_service.cli import exits, show
from tests.cli.command import TENURE, environment, run_here
from tests.fix_server import RunningServer

FULL = "tenure: the output cannot be written: No space left on device\n"


def _into_full_disk(*words: str) -> tuple[int, str]:
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        done = subprocess.run(
            [*TENURE, *words],
            env=environment() | {"PYTHONUNBUFFERED": ""},
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=40,
            check=False,
        )
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("--help",),
        ("config", "--database", "postgresql://db/tenure"),
        ("config", "--database", f"postgresql://{'db' * 8_000}/tenure", "--json"),
    ],
    ids=["help", "table", "more than a buffer"],
)
def test_run__output_on_a_full_disk__says_one_sentence(words: tuple[str, ...]) -> None:
    assert _into_full_disk(*words) == (exits.FAILED, FULL)


async def test_task_list__output_on_a_full_disk__says_one_sentence(server: RunningServer) -> None:
    address = ("--address", server.address)
    assert (await run_here("task", "enqueue", "mail", *address)).code == 0
    done = await asyncio.to_thread(_into_full_disk, "task", "list", *address)
    assert done == (exits.FAILED, FULL)


def test_run__refusal_on_a_full_disk__keeps_its_code() -> None:
    code, said = _into_full_disk("config", "--database", "dbname=x", "--connections", "1")
    assert code == exits.USAGE
    assert said.startswith("tenure: one setting is wrong:\n  --connections: ")
    assert "Traceback" not in said


async def test_audit__name_of_thousands_of_bytes__is_clipped_for_people(
    server: RunningServer,
) -> None:
    name = "n" * 5_000
    address = ("--address", server.address)
    refused = await run_here("key", "create", name, "--scope", "admin", *address)
    assert refused.code == exits.USAGE
    table = await run_here("audit", "--refused", *address)
    assert "CreateApiKey" in table.out
    assert max(map(len, table.out.splitlines())) < 400
    assert "nnn…" in table.out
    # The record itself keeps some thousand letters of what a call said.
    kept = await run_here("audit", "--refused", "--json", *address)
    (event,) = json.loads(kept.out)["events"]
    assert len(event["request"]) > 400


def test_table__cell_as_long_as_may_be__is_shown_whole(capsys: pytest.CaptureFixture[str]) -> None:
    show.table(["name", "more"], [("a" * 200, "b" * 201)], empty="")
    _, line = capsys.readouterr().out.splitlines()
    assert line == f"{'a' * 200}  {'b' * 199}…"
