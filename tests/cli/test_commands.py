"""The commands that ask a server, and `tenure worker`."""

import argparse
import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import tenure
from tenure_service.cli import apps, exits, parser
from tests.cli.command import Done, environment, run, run_here, running
from tests.fix_server import RunningServer

APP = """
from pathlib import Path
from tenure import App

app = App("shop")

@app.task
def ship(order: int) -> str:
    if not Path(__file__).with_name("open").exists():
        raise RuntimeError(f"closed for {order}")
    return f"shipped {order}"
"""


class _Asked:
    """Runs commands against the test's server."""

    def __init__(self, server: RunningServer) -> None:
        self.address = server.address

    async def __call__(self, *words: str) -> Done:
        return await run_here(*words, "--address", self.address)


@pytest.fixture
def ask(server: RunningServer) -> _Asked:
    """The command line with --address."""
    return _Asked(server)


def test_worker__log_of_objects__prints_nothing_else(server: RunningServer, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    words = ("worker", "app:app", "--address", server.address, "--log-format", "json")
    with running(*words, cwd=tmp_path) as worker:
        worker.until("serves ship on queue default")
        assert worker.end() == 0
    told = [json.loads(line) for line in worker.lines]
    assert [each["level"] for each in told if "serves ship on queue default" in each["event"]]


def test_worker__log_format_that_there_is_not__is_refused(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    done = run("worker", "app:app", cwd=tmp_path, TENURE_LOG_FORMAT="yaml")
    assert done.code == exits.USAGE
    assert done.err == "tenure: TENURE_LOG_FORMAT is text or json, not 'yaml'\n"


async def test_why__name_nobody_registered__says_so(ask: _Asked) -> None:
    enqueued = await ask("task", "enqueue", "nobody", "--input", "{}", "--priority", "5")
    task_id = enqueued.out.strip()
    why = await ask("task", "why", task_id)
    assert (why.code, why.out.splitlines()[0]) == (0, "READY")
    assert "No worker ever registered a task named 'nobody'" in why.out
    listed = await ask("task", "list", "--state", "ready", "--json")
    assert [task["id"] for task in json.loads(listed.out)] == [task_id]
    waited = await ask("task", "enqueue", "nobody", "--wait", "0.2")
    assert waited.code == 1
    assert "not over after 0.2 s" in waited.err
    assert "No worker ever registered" in waited.err


async def test_get__task_unknown__fails(ask: _Asked) -> None:
    unknown = await ask("task", "get", "019a0000-0000-7000-8000-000000000000")
    assert (unknown.code, unknown.out) == (1, "")
    assert "no task '019a0000" in unknown.err


async def test_enqueue__key_used_before__is_the_same_task_or_a_conflict(ask: _Asked) -> None:
    words = ("task", "enqueue", "pay", "--key", "order-1", "--input")
    first = await ask(*words, '{"order": 1}', "--json")
    second = await ask(*words, '{"order": 1}', "--json")
    assert json.loads(second.out) == json.loads(first.out) | {"existing": True}
    other = await ask(*words, '{"order": 2}')
    assert other.code == 3


async def test_cancel__one_unknown__cancels_the_other_and_fails(ask: _Asked) -> None:
    task_id = (await ask("task", "enqueue", "pay", "--delay", "1h")).out.strip()
    done = await ask("task", "cancel", task_id, "019a0000-0000-7000-8000-000000000000")
    assert (done.code, done.out) == (1, f"{task_id}  CANCELLED\n")
    assert "019a0000-0000-7000-8000-000000000000" in done.err


async def test_dead_letter__replayed__runs_again(ask: _Asked, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(APP)
    address = ("--address", ask.address)
    with running("worker", "shop:app", *address, "--name", "w1", cwd=tmp_path) as worker:
        words = ("task", "enqueue", "ship", "--input", '{"order": 7}', "--max-attempts", "1")
        failed = await ask(*words, "--wait", "20")
        assert failed.code == 1
        assert "DEAD after attempt 1: RuntimeError: closed for 7" in failed.err
        task_id = failed.out.strip()

        listed = await ask("dead-letter", "list")
        assert task_id in listed.out
        (letter,) = json.loads((await ask("dead-letter", "list", "--json")).out)
        assert letter["task_state"] == "DEAD"
        assert "input" not in letter
        assert 'raise RuntimeError(f"closed' in (await ask("dead-letter", "show", task_id)).out
        assert "ship (default)" in (await ask("worker", "list")).out

        (tmp_path / "open").touch()
        replayed = await ask("dead-letter", "replay", "--all", "--name", "ship")
        assert replayed.out == (
            "replayed 1 of 1, with the policy it was enqueued with: 1 attempt\n"
        )
        listed = await ask("dead-letter", "list", "--state", "REPLAYED", "--json")
        (letter,) = json.loads(listed.out)
        assert "task_state" not in letter
        await tenure.AsyncClient(ask.address).await_tasks([task_id], timeout=20)
        details = await ask("task", "get", task_id, "--payloads")
        assert '"shipped 7"' in details.out
        assert "COMPLETED" in details.out
        assert await asyncio.to_thread(worker.end) == 0


async def test_queue_and_namespace__set__are_listed(ask: _Asked) -> None:
    assert "is paused since" in (await ask("queue", "pause", "mail")).out
    listed = json.loads((await ask("queue", "list", "--json")).out)
    assert [each["paused_at"] is not None for each in listed["queues"]] == [True]
    assert (await ask("queue", "resume", "mail")).out == "mail is not paused\n"
    assert (await ask("namespace", "create", "team-a")).code == 0
    assert "team-a" in (await ask("namespace", "list")).out


def test_ask__nobody_listens__fails_at_once_with_advice() -> None:
    done = run("task", "list", "--state", "READY", "--address", "127.0.0.1:1")
    assert done.code == 1
    assert "tenure dev" in done.err


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--input", "[1]"], "as a JSON object"),
        (["--input", "{name: 1}"], "is no JSON"),
        (["--input", '{"a": NaN}'], "is no JSON"),
        (["--input-file", "missing.json"], "cannot be read"),
    ],
)
def test_enqueue__input_is_no_object__says_what_to_write(words: list[str], part: str) -> None:
    done = run("task", "enqueue", "x", *words)
    assert done.code == 2
    assert part in done.err


@pytest.mark.parametrize(
    ("spec", "part"),
    [
        ("shop", "say MODULE:NAME"),
        ("shop:nothing", "It has `shop:app`"),
        ("shop:ship", "of type SyncTask, not an App"),
        ("shoop:app", "has broken, needing, shop"),
        ("broken:app", "SyntaxError"),
        ("needing:app", "No module named 'not_installed'"),
    ],
)
def test_load__app_not_found__says_what_is_there(
    spec: str, part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in (("shop", APP), ("broken", "def f(:"), ("needing", "import not_installed")):
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)  # and takes it off again
    with pytest.raises(exits.CommandFailed, match=re.escape(part)) as raised:
        apps.load(spec)
    sys.modules.pop("shop", None)
    assert raised.value.code == exits.USAGE


def test_worker__app_not_found__exits_with_usage(tmp_path: Path) -> None:
    done = run("worker", "shop:app", cwd=tmp_path)
    assert done.code == 2
    assert "no module 'shop'" in done.err


def _commands(made: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    for action in made._actions:
        if isinstance(action, argparse._SubParsersAction):
            for child in action.choices.values():
                yield child
                yield from _commands(child)


def test_help__every_command__has_an_example_and_exit_codes() -> None:
    commands = list(_commands(parser.build()))
    assert len(commands) > 20
    for command in commands:
        text = command.format_help()
        assert "exit codes:" in text, command.prog
        assert "examples:" in text or "COMMAND --help` has an example" in text, command.prog


def test_help__imports_nothing_slow() -> None:
    code = (
        "import sys; from tenure_service.cli import command, parser; parser.build();"
        "print({'asyncio', 'grpc', 'psycopg', 'pydantic', 'rich', 'tenure'} & {*sys.modules})"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=True
    )
    assert done.stdout == "set()\n"
