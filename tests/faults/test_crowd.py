"""Crowds: many callers in one moment, a server that dies under all its workers, idle ones that wait."""

import asyncio
import logging
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence

import psycopg
import pytest
import pytest_asyncio

from tenure import App, Worker
from tenure.v1 import payload_pb2 as payload
from tenure_service.dispatch.hub import Hub
from tenure_service.dispatch.waiters import Waiter
from tenure_service.engine.tokens import TaskKey
from tenure_service.main import Server
from tenure_service.store import invariants
from tenure_service.store.rows import TaskResultRow
from tests.eventually import eventually_async, time_passes
from tests.faults.conftest import StartServer
from tests.faults.processes import Troupe, free_address
from tests.protocol import caller
from tests.protocol.caller import Caller
from tests.protocol.raw_worker import RawWorker

#: More than gRPC keeps for a server by its own defaults.
CALLS = 4_000
WAITERS = 1_000
WORKERS = 60
STREAMS = 40
ENDS = 20
COUNTED_SECONDS = 6.0


@pytest_asyncio.fixture
async def patient(database: str, start_server: StartServer) -> Server:
    """A server whose leases outlast a machine that is busy with something else."""
    return await start_server(database, first_lease_seconds=60, lease_seconds=60, accept_seconds=60)


@pytest_asyncio.fixture
async def near(patient: Server) -> AsyncIterator[Caller]:
    """A client without an SDK."""
    opened = Caller(patient.address)
    yield opened
    await opened.close()


async def until(probe: Callable[[], object], seconds: float = 60.0) -> None:
    assert await eventually_async(probe, seconds=seconds)


async def asked(server: Server) -> float:
    """Counts for some seconds how often a second a server turns to its database."""
    database = server._hub.database if server._hub is not None else None
    assert database is not None
    began, before = time.monotonic(), database.statistics()["requests_num"]
    await time_passes(seconds=COUNTED_SECONDS)
    return (database.statistics()["requests_num"] - before) / (time.monotonic() - began)


async def test_call__thousands_in_one_moment__are_all_answered(near: Caller) -> None:
    # They are sent before the server, on the same loop, takes the first.
    assert await asyncio.gather(*(near.healthy() for _ in range(CALLS))) == [True] * CALLS


async def test_await__a_thousand_callers__cost_one_question_a_second_and_are_answered(
    patient: Server, near: Caller, conn: psycopg.Connection
) -> None:
    ids = await near.enqueue("crowd", WAITERS)
    hub = patient._hub
    assert hub is not None

    async def answer(task_id: str) -> str:
        while not (found := (await near.wait(task_id, wait_seconds=20)).results):
            pass
        return found[0].task_id

    waits = [asyncio.create_task(answer(one)) for one in ids]
    await until(lambda: len(hub.waiters) == WAITERS)
    # Half a question a second is whether it takes writes, one what is due, one what they wait for.
    assert await asked(patient) < 4
    one = await RawWorker.open(near, "crowd", slots=WAITERS)
    while conn.execute("select count(*) from deliveries").fetchone() != (WAITERS,):
        await one.until(lambda: bool(one.out), seconds=60)
        out = list(one.out.values())
        await one.accept()
        assert set(await one.report(*map(caller.completed, out), seconds=60)) == {"RECORDED"}
    assert await asyncio.gather(*waits) == ids
    await one.close()
    assert invariants.check_invariants(conn) == {}


@pytest.fixture
def looked_up(patient: Server, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Lists the tasks of callers as they are looked up."""
    hub = patient._hub
    assert hub is not None
    found: list[str] = []
    results = hub._look_up

    async def counted(waiter: Waiter, keys: Sequence[TaskKey]) -> dict[str, TaskResultRow | None]:
        found.extend(key.task_id for key in keys)
        return await results(waiter, keys)

    monkeypatch.setattr(hub, "_look_up", counted)
    return found


async def test_await__output_recorded_here__is_answered_without_a_look(
    patient: Server, near: Caller, looked_up: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # The look at all that wait would tell of the end as well, if it came just then.
    monkeypatch.setattr(Hub, "look_for_results", lambda _: time_passes(seconds=0))
    (task_id,) = await near.enqueue("crowd", 1)
    wait = asyncio.create_task(near.wait(task_id, wait_seconds=20))
    await until(lambda: looked_up)
    one = await RawWorker.open(near, "crowd")
    await one.until(lambda: bool(one.out))
    (given,) = one.out.values()
    await one.report(caller.completed(given, b"[7]"))
    (answer,) = (await wait).results
    assert (answer.task_id, answer.result.output.data) == (task_id, b"[7]")
    assert answer.result == (await near.wait(task_id, wait_seconds=0)).results[0].result
    assert len(looked_up) == 2, "at the beginning, and by the second call"
    await one.close()


async def test_await__rest_is_asked_for_again__is_not_looked_up_again(
    patient: Server, near: Caller, looked_up: list[str]
) -> None:
    ids = await near.enqueue("crowd", ENDS * 10)
    hub = patient._hub
    assert hub is not None
    left = set(ids)
    for one in ids[:ENDS]:
        wait = asyncio.create_task(near.wait(*left, wait_seconds=20))
        await until(lambda: len(hub.waiters))
        await near.cancel(one)
        left -= {each.task_id for each in (await wait).results}
    assert len(left) == len(ids) - ENDS
    # Each once, and those that ended or share a bucket with one that did.
    assert len(looked_up) < len(ids) + 4 * ENDS


async def test_stand__idle_streams_that_beat__cost_two_questions_a_second(
    patient: Server, near: Caller
) -> None:
    streams = [await RawWorker.open(near, "idle") for _ in range(STREAMS)]
    stop = asyncio.Event()

    async def beat(one: RawWorker) -> int:
        count = 0
        while not stop.is_set():
            await one.beat()
            count += 1
            try:
                await asyncio.wait_for(stop.wait(), 0.5)
            except TimeoutError:
                continue
        return count

    beating = [asyncio.create_task(beat(one)) for one in streams]
    assert await asked(patient) < 3
    stop.set()
    assert min(await asyncio.gather(*beating)) > 1
    for one in streams:
        await one.close()


async def test_kill__server_of_sixty_workers_starts_again__all_come_back_and_are_assigned(
    database: str, troupe: Troupe, conn: psycopg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "tenure.worker")
    address = free_address()
    server = troupe.server(database, address)
    await asyncio.to_thread(server.until, "listening on")
    app = App("faults", address)
    let_go = threading.Event()
    held: Counter[int] = Counter()

    @app.task
    def hold(number: int) -> None:
        held[number] += 1
        let_go.wait(120)

    workers = [Worker(app, name=f"worker-{number}", concurrency=1) for number in range(WORKERS)]
    for worker in workers:
        worker.start()
    # Those that know their session: who has not heard of it yet opens another one.
    await until(lambda: caplog.text.count("(new session") == WORKERS)
    server.kill()
    again = troupe.server(database, address)
    await asyncio.to_thread(again.until, "listening on")
    near = Caller(address)
    await near.enqueue("hold", WORKERS, input=payload.Payload(data=b'{"number": 0}'))
    resumed = b"select count(*) from sessions where epoch > 1 and closed_at is null"
    await until(lambda: conn.execute(resumed).fetchone() == (WORKERS,))
    assigned = b"select count(distinct session_id) from leases"
    await until(lambda: conn.execute(assigned).fetchone() == (WORKERS,))
    await until(lambda: held[0] == WORKERS)
    let_go.set()
    done = b"select count(*) from deliveries where outcome = 'DONE'"
    await until(lambda: conn.execute(done).fetchone() == (WORKERS,))
    await asyncio.gather(*(worker.aclose() for worker in workers))
    await near.close()
    assert invariants.check_invariants(conn) == {}
