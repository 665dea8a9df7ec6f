"""Handlers in processes of their own: the same to a program, and no harm to others."""

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tenure import (
    App,
    AsyncClient,
    Failure,
    HandlerRefused,
    NewTask,
    TaskOutcome,
    TaskState,
    Worker,
)
from tests.eventually import eventually, eventually_awaited
from tests.fix_server import RunningServer
from tests.sdk.process_app import app

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs POSIX processes")

# What a machine under load may add to what is promised.
SLACK_SECONDS = 1.0


@pytest.fixture
def client(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> AsyncClient:
    monkeypatch.setenv("TENURE_ADDRESS", server.address)
    return AsyncClient(server.address)


@pytest_asyncio.fixture
async def worker(client: AsyncClient) -> AsyncIterator[Worker]:
    made = Worker(app, concurrency=3, mode="process")
    made.start()
    # What is enqueued by name alone gets the policy that the worker has declared by then.
    assert await eventually_awaited(client.list_workers, seconds=30)
    yield made
    await made.aclose(grace=0)


@pytest.fixture
def marks(tmp_path: Path) -> Iterator[Callable[[], str]]:
    """Gives names of files that handlers write their process ids to."""
    count = 0

    def make() -> str:
        nonlocal count
        count += 1
        return str(tmp_path / str(count))

    return make  # type: ignore[return-value]


async def enqueue(client: AsyncClient, name: str, **arguments: Any) -> str:
    return (await client.enqueue(NewTask(name=name, arguments=arguments))).id


async def over(client: AsyncClient, task_id: str, seconds: float = 120.0) -> TaskOutcome:
    outcome = (await client.await_tasks([task_id], seconds)).get(task_id)
    assert isinstance(outcome, TaskOutcome), (
        outcome,
        await client.get_task(task_id),
        await client.explain_task(task_id),
    )
    return outcome


async def answer(client: AsyncClient, name: str, **arguments: Any) -> Any:
    outcome = await over(client, await enqueue(client, name, **arguments))
    assert outcome.output is not None, outcome
    return outcome.output.json()


async def failure(client: AsyncClient, name: str, **arguments: Any) -> Failure:
    outcome = await over(client, await enqueue(client, name, **arguments))
    assert outcome.failure is not None, outcome
    return outcome.failure


async def process_id(path: str) -> int:
    """Waits for a handler to say which process it runs in."""
    mark = Path(path)
    assert await asyncio.to_thread(eventually, mark.exists, seconds=30)
    return int(await asyncio.to_thread(mark.read_text))


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        # A zombie, whose parent has not looked yet, has ended too.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except ProcessLookupError:
        return True
    except FileNotFoundError:
        return False


async def ends(pid: int, seconds: float = 10.0) -> bool:
    return await asyncio.to_thread(eventually, lambda: is_gone(pid), seconds=seconds)


def start(command: list[str]) -> subprocess.Popen[str]:
    """Starts a program whose output is read."""
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


async def test_run__both_kinds__run_on_main_threads_of_processes_that_are_kept(
    client: AsyncClient, worker: Worker
) -> None:
    first, on_main = await answer(client, "where")
    assert on_main
    assert first != os.getpid()
    assert await answer(client, "where_async") == [first, True]
    assert await answer(client, "where") == [first, True]
    assert await answer(client, "in_the_worker") == os.getpid()
    # One process a slot, and no more of them.
    ids = [await enqueue(client, "pause", seconds=0.7) for _ in range(6)]
    outcomes = [await over(client, each) for each in ids]
    assert len({each.output.json() for each in outcomes if each.output is not None}) == 3


async def test_run__handler_raises__fails_as_it_would_in_a_thread(
    client: AsyncClient, worker: Worker
) -> None:
    isolated = await failure(client, "fail", message="no")
    await worker.aclose()
    async with Worker(app):
        threaded = await failure(client, "fail", message="no")
    assert isolated == threaded
    assert isolated.cause is not None
    assert isolated.cause.type == "KeyError"
    assert isolated.details == {"code": 7}
    assert "process_app.py" in isolated.stack


async def test_run__class_in_unless_and_wrong_result__end_the_task_at_once(
    client: AsyncClient, worker: Worker
) -> None:
    by_class = await over(client, await enqueue(client, "fail_by_class"))
    assert (by_class.state, by_class.attempt) == (TaskState.DEAD, 1)
    assert (await failure(client, "unencodable")).type == "ValueRefused"


async def test_run__control_flow_details_and_logger__work(
    client: AsyncClient, worker: Worker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    assert await answer(client, "steer") == ["steer", 2, 3, 4, {"from": "heartbeat"}]
    records = [each for each in caplog.records if each.name == "tenure.task"]
    assert [each.getMessage().rpartition("] ")[2] for each in records] == [
        "delivery 1",
        "delivery 2",
        "delivery 3",
    ]
    assert records[1].__dict__["task_name"] == "steer"
    assert records[1].process != os.getpid()


@pytest.mark.parametrize("name", ["hold_the_lock", "spin", "deaf"])
async def test_cancel__handler_does_not_end__is_killed_within_grace_and_others_go_on(
    name: str, client: AsyncClient, worker: Worker, marks: Callable[[], str]
) -> None:
    path = marks()
    task_id = await enqueue(client, name, path=path)
    pid = await process_id(path)
    # Longer than all of this, and than a lease of the test server: its heartbeats go on.
    sibling = await enqueue(client, "pause", seconds=4)
    began_at = time.monotonic()
    await client.cancel_tasks([task_id], grace=1)
    assert await ends(pid)
    assert 0.9 < time.monotonic() - began_at < 2 + SLACK_SECONDS
    assert (await over(client, task_id)).state is TaskState.CANCELLED
    (ended,) = (await client.get_task(task_id)).deliveries
    assert ended.started_at is not None
    assert ended.ended_at is not None
    assert 0.9 < (ended.ended_at - ended.started_at).total_seconds() < 2 + 2 * SLACK_SECONDS
    assert (await over(client, sibling)).state is TaskState.COMPLETED
    assert len((await client.get_task(sibling)).deliveries) == 1
    # The slot is free: three at once, where three fit.
    paths = [marks() for _ in range(3)]
    ids = [await enqueue(client, "obedient", path=path) for path in paths]
    assert len({await process_id(path) for path in paths}) == 3
    await client.cancel_tasks(ids, grace=20)


async def test_hold__interpreter_lock_in_c_beyond_the_lease__keeps_it(
    client: AsyncClient, worker: Worker, marks: Callable[[], str]
) -> None:
    path = marks()
    task_id = await enqueue(client, "hold_the_lock", path=path)
    await process_id(path)
    # Longer than the lease of the test server, 6 s.
    sibling = await enqueue(client, "pause", seconds=8)
    assert (await over(client, sibling)).state is TaskState.COMPLETED
    held = await client.get_task(task_id)
    assert (held.task.state, held.task.delivery) == (TaskState.RUNNING, 1)
    assert held.deliveries == []
    assert len((await client.get_task(sibling)).deliveries) == 1


@pytest.mark.parametrize("name", ["obedient", "obedient_async"])
async def test_cancel__handler_obeys__ends_by_itself_and_its_process_is_kept(
    name: str, client: AsyncClient, worker: Worker, marks: Callable[[], str]
) -> None:
    path = marks()
    task_id = await enqueue(client, name, path=path)
    pid = await process_id(path)
    await client.cancel_tasks([task_id], grace=20)
    assert (await over(client, task_id, 10)).state is TaskState.CANCELLED
    assert await answer(client, "where") == [pid, True]


async def test_timeout__interpreter_lock_held__each_attempt_is_killed(
    client: AsyncClient, worker: Worker, marks: Callable[[], str]
) -> None:
    task_id = await enqueue(client, "hold_the_lock_limited")
    outcome = await over(client, task_id)
    assert outcome.failure is not None
    assert (outcome.failure.type, outcome.attempt) == ("StartToCloseTimeout", 2)
    deliveries = (await client.get_task(task_id)).deliveries
    assert [each.started_at is not None for each in deliveries] == [True, True]
    # Three at once, where three fit: the killed ones hold no slot any more.
    paths = [marks() for _ in range(3)]
    ids = [await enqueue(client, "obedient", path=path) for path in paths]
    assert len({await process_id(path) for path in paths}) == 3
    await client.cancel_tasks(ids, grace=20)
    assert [(await over(client, each)).state for each in ids] == [TaskState.CANCELLED] * 3


async def test_close__handlers_do_not_end__are_killed_within_grace(
    client: AsyncClient, marks: Callable[[], str]
) -> None:
    worker = Worker(app, concurrency=3, mode="process")
    worker.start()
    paths = {name: marks() for name in ("hold_the_lock", "spin", "deaf")}
    ids = [await enqueue(client, name, path=path) for name, path in paths.items()]
    pids = [await process_id(path) for path in paths.values()]
    began_at = time.monotonic()
    await worker.aclose(grace=0.5)
    assert time.monotonic() - began_at < 1.5 + SLACK_SECONDS
    assert all(is_gone(each) for each in pids)
    for each in ids:
        found = (await client.get_task(each)).task
        assert found.failure is not None
        assert found.failure.type == "WorkerStopped"


@pytest.mark.parametrize(
    ("how", "message", "details"),
    [
        ("exit", "ended by itself with exit code 3", {"exit_code": 3}),
        ("kill", "was killed by SIGKILL; often", {"signal": 9}),
        ("segfault", "was killed by SIGSEGV", {"signal": 11}),
        ("forked", "ended by itself with exit code 4", {"exit_code": 4}),
    ],
)
async def test_run__process_dies__only_its_attempt_fails(
    how: str, message: str, details: Any, client: AsyncClient, worker: Worker
) -> None:
    sibling = await enqueue(client, "pause", seconds=1.5)
    died = await failure(client, "die", how=how)
    assert died.type == "HandlerProcessDied"
    assert message in died.message
    assert died.details == details
    assert (await over(client, sibling)).state is TaskState.COMPLETED
    assert len((await client.get_task(sibling)).deliveries) == 1
    assert (await answer(client, "where"))[1]


async def test_run__idle_process_was_killed__another_takes_the_task(
    client: AsyncClient, worker: Worker
) -> None:
    pid, _ = await answer(client, "where")
    os.kill(pid, signal.SIGKILL)
    assert await ends(pid)
    task_id = await enqueue(client, "where")
    outcome = await over(client, task_id)
    assert outcome.output is not None
    assert outcome.output.json()[0] != pid
    assert len((await client.get_task(task_id)).deliveries) == 1


async def test_signal__meant_for_the_whole_service__leaves_the_grace_to_the_worker(
    client: AsyncClient, worker: Worker, marks: Callable[[], str]
) -> None:
    pid, _ = await answer(client, "where")
    task_id = await enqueue(client, "pause", seconds=1)
    for number in (signal.SIGTERM, signal.SIGINT):
        os.kill(pid, number)
    assert (await over(client, task_id)).state is TaskState.COMPLETED
    assert await answer(client, "where") == [pid, True]
    # In a session of its own: Ctrl-C on the worker's terminal does not reach it.
    assert os.getsid(pid) == pid


async def test_cancel__handler_started_a_program__it_is_killed_too(
    client: AsyncClient, worker: Worker, marks: Callable[[], str]
) -> None:
    path = marks()
    task_id = await enqueue(client, "start_child", path=path)
    pid = await process_id(path)
    await client.cancel_tasks([task_id], grace=0)
    assert await ends(pid)


async def test_run__app_cannot_be_imported__fails_with_the_error_and_recovers(
    client: AsyncClient, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROCESS_APP_FAILS", "1")
    task_id = await enqueue(client, "where")

    def failed() -> bool:
        return bool(asyncio.run(client.get_task(task_id)).deliveries)

    assert await asyncio.to_thread(eventually, failed, seconds=20)
    first = (await client.get_task(task_id)).deliveries[0].failure
    assert first is not None
    assert (first.type, first.message) == ("ImportError", "this module fails on purpose")
    monkeypatch.delenv("PROCESS_APP_FAILS")
    assert (await over(client, task_id)).state is TaskState.COMPLETED


async def test_worker__killed__its_processes_end_whatever_they_do(
    server: RunningServer, client: AsyncClient, marks: Callable[[], str]
) -> None:
    command = [sys.executable, "-m", "tenure_service", "worker", "tests.sdk.process_app:app"]
    command += ["--mode", "process", "--concurrency", "3", "--address", server.address]
    worker = start(command)
    pids: list[int] = []
    try:
        assert worker.stdout is not None
        await asyncio.to_thread(worker.stdout.readline)
        spoke = await enqueue(client, "speak", text="heard through the worker's own output")
        assert "heard through" in await asyncio.to_thread(worker.stdout.readline)
        outcome = await over(client, spoke)
        assert outcome.output is not None
        idle = outcome.output.json()
        paths = [marks(), marks()]
        for name, path in zip(["hold_the_lock", "obedient"], paths, strict=True):
            await enqueue(client, name, path=path)
        pids = [await process_id(path) for path in paths]
        worker.kill()
        for pid in (idle, *pids):
            assert await ends(pid)
    finally:
        worker.kill()
        # One that did not end holds the worker's output open.
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        await asyncio.to_thread(worker.communicate)


async def test_worker__of_a_program_that_is_its_own_app__says_what_to_do(
    server: RunningServer,
) -> None:
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "tests.sdk.process_app"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env=os.environ | {"TENURE_ADDRESS": server.address},
    )
    assert done.returncode == 1
    assert "HandlerRefused: task 'where' cannot run with mode='process'" in done.stderr
    assert "`__main__`" in done.stderr


def test_declare__handler_that_no_process_could_import__is_refused() -> None:
    here = App("here")

    def nested() -> None: ...

    with pytest.raises(HandlerRefused, match=r"'nested'.*inside another function"):
        here.task(mode="process")(nested)
    with pytest.raises(HandlerRefused, match=r"'short'.*a lambda"):
        here.task(name="short", mode="process")(lambda: None)
    assert not here.tasks
    here.task(nested)
    with pytest.raises(HandlerRefused, match="inside another function"):
        Worker(here, mode="process")


def test_start__app_is_no_variable_of_a_module__is_refused() -> None:
    hidden = App("hidden", "127.0.0.1:1")
    hidden.task(mode="process")(at_the_top)
    with pytest.raises(HandlerRefused, match="no imported module has it as a variable"):
        Worker(hidden).start()


def at_the_top() -> None: ...
