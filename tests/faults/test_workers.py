"""Workers that are killed, stopped, drained, or that hold up their own interpreter."""

import asyncio
import logging
import signal
import time
from collections.abc import Callable

import psycopg
import pytest

from tenure import AsyncClient, NewTask, TaskDetails, TaskOutcome, TaskState
from tenure_service.main import Server
from tenure_service.store import invariants
from tests.eventually import eventually
from tests.faults.processes import Troupe, by_hand, free_address

LEASE_SECONDS = 1.5


async def until(probe: Callable[[], object], seconds: float = 30.0) -> None:
    assert await asyncio.to_thread(eventually, probe, seconds=seconds)


async def enqueue(client: AsyncClient, name: str, seconds: float) -> str:
    task = await client.enqueue(NewTask(name=name, arguments={"seconds": seconds}))
    return task.id


async def over(client: AsyncClient, task_id: str, seconds: float = 30.0) -> TaskDetails:
    outcome = (await client.await_tasks([task_id], seconds))[task_id]
    assert isinstance(outcome, TaskOutcome)
    return await client.get_task(task_id, payloads=True)


def outcomes(details: TaskDetails) -> list[str]:
    return [str(one.outcome) for one in details.deliveries]


def sound(conn: psycopg.Connection) -> None:
    assert invariants.check_invariants(conn) == {}
    assert conn.execute("select count(*) from leases").fetchone() == (0,)


async def test_stop__past_the_lease__is_lost_and_completed_once_elsewhere(
    running: Server, client: AsyncClient, troupe: Troupe, conn: psycopg.Connection
) -> None:
    stopped = troupe.worker(running.address, "stopped", 1)
    task_id = await enqueue(client, "nap", 0.5)
    await until(lambda: troupe.lines("start"))
    stopped.signal(signal.SIGSTOP)
    other = troupe.worker(running.address, "other", 1)
    details = await over(client, task_id)
    assert details.task.output is not None
    assert details.task.output.json() == other.pid
    # It goes on with the handler and reports: too late, and it learns so.
    other.terminate()
    stopped.signal(signal.SIGCONT)
    await until(lambda: [line.pid for line in troupe.lines("end")] == [other.pid, stopped.pid])
    after = await enqueue(client, "nap", 0)
    assert (await over(client, after)).task.state is TaskState.COMPLETED
    again = await client.get_task(task_id, payloads=True)
    assert outcomes(again) == ["LOST", "DONE"]
    assert again.task.output == details.task.output
    shown = {one.name: one.held_count for one in await client.list_workers()}
    assert shown["stopped"] == 0
    sound(conn)


async def test_kill__only_slot_and_last_attempt__goes_to_the_next_worker_after_the_lease(
    running: Server,
    client: AsyncClient,
    troupe: Troupe,
    conn: psycopg.Connection,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "tenure_service")
    killed = troupe.worker(running.address, "killed", 1, FAULT_FACTOR="1000")
    task_id = await enqueue(client, "once", 0.05)
    await until(lambda: troupe.lines("start"))
    other = troupe.worker(running.address, "other", 1)
    killed.kill()
    began = time.monotonic()
    details = await over(client, task_id)
    assert time.monotonic() - began < LEASE_SECONDS + 3
    assert (details.task.state, details.task.attempt) == (TaskState.COMPLETED, 1)
    assert outcomes(details) == ["LOST", "DONE"]
    assert [line.pid for line in troupe.lines("end")] == [other.pid]
    assert {one.name: one.held_count for one in await client.list_workers()}["other"] == 0
    said = ["worker 'killed' opens a session", "stream of worker 'killed' ended without a goodbye"]
    for words in (*said, "1 task(s) were lost with their workers and go on"):
        assert caplog.text.count(words) == 1
    sound(conn)


async def test_drain__handler_outlasts_the_lease__ends_once_and_takes_nothing_new(
    running: Server, client: AsyncClient, troupe: Troupe, conn: psycopg.Connection
) -> None:
    old = troupe.worker(running.address, "same", 2)
    task_id = await enqueue(client, "nap", LEASE_SECONDS + 1)
    await until(lambda: troupe.lines("start"))
    new = troupe.worker(running.address, "same", 2)
    old.signal(signal.SIGTERM)
    told_at = time.monotonic()
    short: list[str] = []
    while old.running:
        short.append(await enqueue(client, "nap", 0))
        await asyncio.sleep(0.05)  # tidy: new work arrives steadily while it drains
    assert old.process.returncode == 0
    assert time.monotonic() - told_at > LEASE_SECONDS
    for one in short:
        assert outcomes(await over(client, one))[-1:] == ["DONE"]
    details = await over(client, task_id)
    assert outcomes(details) == ["DONE"]
    assert details.task.output is not None
    assert details.task.output.json() == old.pid
    # A moment for the signal to be seen by the process.
    late = [line for line in troupe.lines("start", *short) if line.at > told_at + 0.3]
    assert {line.pid for line in late} == {new.pid}
    assert set(troupe.counts("start").values()) == {1}
    sound(conn)


async def test_hold__interpreter_lock_in_c_for_less_than_the_lease__keeps_it(
    running: Server, client: AsyncClient, troupe: Troupe, conn: psycopg.Connection
) -> None:
    # No thread of a process runs while C holds the lock: beyond the lease it would be as dead, and
    # the task is handed out again.
    troupe.worker(running.address, "hog", 1)
    task_id = await enqueue(client, "hog", LEASE_SECONDS * 0.6)
    assert outcomes(await over(client, task_id)) == ["DONE"]
    sound(conn)


@by_hand
async def test_clock__of_server_and_worker_jumps_an_hour__no_lease_ends_early(
    database: str, troupe: Troupe, conn: psycopg.Connection
) -> None:
    ahead, behind = troupe.wrong_clock(3600), troupe.wrong_clock(-3600)
    address, other = free_address(), free_address()
    troupe.server(database, address, **ahead).until("listening on")
    troupe.worker(address, "behind", 2, **behind)
    # A second server, whose clock is right, sweeps too.
    troupe.server(database, other).until("listening on")
    client = AsyncClient(other)
    began = time.monotonic()
    delayed = await client.enqueue(NewTask(name="nap", arguments={"seconds": 0}, delay=1.5))
    long = await enqueue(client, "nap", LEASE_SECONDS + 1)
    assert outcomes(await over(client, delayed.id)) == ["DONE"]
    (start,) = troupe.lines("start", delayed.id)
    assert 1.4 < start.at - began < 4
    assert outcomes(await over(client, long)) == ["DONE"]
    assert set(troupe.counts("start").values()) == {1}
    sound(conn)
