"""Streams that lose a message, are slow, swallow everything, or whose process is gone."""

import asyncio
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable

import psycopg
import pytest
import pytest_asyncio

from tenure import App, AsyncClient, NewTask, TaskOutcome, TaskState, Worker, current_task
from tenure.v1 import admin_service_pb2 as admin
from tenure.v1 import payload_pb2 as payload
from tenure_service.main import Server
from tenure_service.store import invariants
from tests.eventually import eventually
from tests.faults.conftest import StartServer
from tests.faults.line import Line
from tests.faults.processes import Troupe, by_hand
from tests.protocol import caller
from tests.protocol.caller import Caller
from tests.protocol.raw_worker import RawWorker
from tests.sdk.relay import Relay

SLOTS = 5
COUNT = 40
MANY = 500


async def until(probe: Callable[[], object], seconds: float = 30.0) -> None:
    assert await asyncio.to_thread(eventually, probe, seconds=seconds)


def sound(conn: psycopg.Connection) -> None:
    assert invariants.check_invariants(conn) == {}
    assert conn.execute("select count(*) from leases").fetchone() == (0,)


async def test_enqueue__stream_gone_and_renewals_go_on__goes_to_another_worker(
    near: Caller, conn: psycopg.Connection
) -> None:
    (held,) = await near.enqueue()
    one = await RawWorker.open(near, slots=2)
    first = (await one.tasks())[0]
    await one.accept()
    await one.cut()
    other = await RawWorker.open(near, slots=2)
    # Longer than the lease: the renewals by calls keep what it holds, and bring it nothing new.
    give_up_at = time.monotonic() + 2.5
    while time.monotonic() < give_up_at:
        began = time.monotonic()
        (task_id,) = await near.enqueue()
        await other.until(lambda task_id=task_id: task_id in other.out)  # type: ignore[misc]
        assert time.monotonic() - began < 1.0
        await other.report(caller.completed(other.out[task_id]))
        assert not (await near.renew(first.lease_token)).lost_lease_tokens
        await asyncio.sleep(0.1)  # tidy: the interval of the heartbeats
    shown = (await near.admin.ListWorkers(admin.ListWorkersRequest())).workers
    assert {each.session_id: each.receiving for each in shown} == {
        one.opened.session_id: False,
        other.opened.session_id: True,
    }
    assert await near.report(caller.completed(first)) == ["RECORDED"]
    assert await near.state(held) == "COMPLETED"
    await other.close()
    sound(conn)


@pytest_asyncio.fixture
async def patient(database: str, start_server: StartServer) -> AsyncIterator[Relay]:
    """A relay to a server whose leases are long, so that only a missing Accept is soon noticed."""
    running = await start_server(database, first_lease_seconds=20, lease_seconds=20)
    made = Relay(running.address)
    await made.start()
    yield made
    await made.stop()


async def test_assign__frame_lost_on_a_stream_that_lives__is_handed_out_again_unspent(
    patient: Relay, conn: psycopg.Connection
) -> None:
    app = App("faults", patient.address)
    client = AsyncClient(patient.upstream)
    attempts: list[tuple[int, int]] = []

    @app.task
    def note() -> None:
        attempts.append((current_task().attempt, current_task().delivery))

    async with Worker(app):
        first = await client.enqueue(NewTask(name="note"))
        await client.await_tasks([first.id], 20)
        patient.deafen()
        began = time.monotonic()
        task = await client.enqueue(NewTask(name="note"))
        leased = b"select count(*) from leases"
        await until(lambda: conn.execute(leased).fetchone() == (1,))
        await asyncio.sleep(0.3)  # tidy: the frame that is lost follows the commit
        for stream in patient._streams:
            stream.deaf = False
        outcome = (await client.await_tasks([task.id], 10)).get(task.id)
        assert isinstance(outcome, TaskOutcome)
        # The wait for an Accept is a second here, and whoever looks does so once a second.
        assert time.monotonic() - began < 5
    assert attempts == [(1, 1), (1, 2)]
    assert patient.opened_count == 1
    assert outcome.state is TaskState.COMPLETED
    sound(conn)


async def test_swallow__both_ways_without_an_end__worker_comes_back_on_a_new_connection(
    running: Server, client: AsyncClient, near: Caller, conn: psycopg.Connection
) -> None:
    async with Line(running.address) as line:
        app = App("faults", line.address)
        runs: Counter[str] = Counter()

        @app.task
        def note() -> None:
            runs[current_task().id] += 1

        # `near` keeps pushing past it, so that the hole is found although work arrives.
        async with Worker(app):
            empty = payload.Payload(data=b"{}")
            ids = await near.enqueue("note", 3, input=empty)
            left = set(ids)
            while left:
                left -= set(await client.await_tasks(sorted(left), 20))
            line.swallow()
            ids += await near.enqueue("note", 3, input=empty)
            began = time.monotonic()
            await until(lambda: len(runs) == 6)
            # Three heartbeats without an answer, and a pause of up to 1.5 s.
            assert time.monotonic() - began < 8
            while ids:
                for task_id in await client.await_tasks(ids, 20):
                    ids.remove(task_id)
        assert len(line.joined_at) == 2
    assert set(runs.values()) == {1}
    sound(conn)


@by_hand
async def test_renew__slow_wire_and_hundreds_of_tasks__loses_no_lease(
    database: str, start_server: StartServer, conn: psycopg.Connection
) -> None:
    running = await start_server(database, accept_seconds=3)
    client = AsyncClient(running.address)
    async with Line(running.address, delay=0.5) as line:
        app = App("faults", line.address)
        runs: Counter[str] = Counter()

        @app.task
        async def wait() -> None:
            runs[current_task().id] += 1
            await asyncio.sleep(2.5)  # tidy: longer than a lease

        async with Worker(app, concurrency=MANY):
            near = Caller(running.address)
            ids = await near.enqueue("wait", MANY, input=payload.Payload(data=b"{}"))
            await near.close()
            left = set(ids)
            while left:
                left -= set(await client.await_tasks(sorted(left), 30))
    assert runs == Counter(ids)
    lost = conn.execute("select count(*) from deliveries where outcome <> 'DONE'").fetchone()
    assert lost == (0,)
    sound(conn)


async def test_reconnect__server_breaks_all_streams__workers_come_back_apart(
    running: Server,
) -> None:
    async with Line(running.address) as line:
        app = App("faults", line.address)

        @app.task
        def note() -> None: ...

        hub = running._hub
        assert hub is not None
        sessions = hub.leaser.sessions
        workers = [Worker(app) for _ in range(COUNT)]
        for worker in workers:
            worker.start()
        await until(lambda: len(sessions) == COUNT)
        before = dict(sessions)
        line.cut()
        times: dict[str, float] = {}
        while len(times) < COUNT:
            for session_id, session in list(sessions.items()):
                if session is not before.get(session_id):
                    times.setdefault(session_id, time.monotonic())
            await asyncio.sleep(0.005)  # tidy: notes when each comes back
        # Pauses are drawn from 1.5 s; in step all would come within one of these moments.
        at = list(times.values())
        assert max(sum(one <= each < one + 0.3 for each in at) for one in at) < COUNT / 2
        await asyncio.gather(*(worker.aclose(0) for worker in workers))


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGKILL,
        # Only keepalive notices it, within 30 s.
        pytest.param(signal.SIGSTOP, marks=by_hand),
    ],
)
async def test_vanish__process_of_two_hundred_streams__frees_streams_and_leases(
    running: Server,
    near: Caller,
    troupe: Troupe,
    conn: psycopg.Connection,
    number: signal.Signals,
) -> None:
    count = 200
    ids = await near.enqueue("crowded", count)
    crowd = troupe.spawn("crowd", "-m", "tests.faults.crowd", running.address, str(count))
    await asyncio.to_thread(crowd.until, "ready")
    hub = running._hub
    assert hub is not None
    assert await asyncio.to_thread(eventually, lambda: len(hub.leaser.sessions) == count)
    crowd.signal(number)
    next_one = await RawWorker.open(near, "crowded", slots=count)
    while len(next_one.assigned) < count:
        await next_one.tasks(len(next_one.assigned) + 1)
        await next_one.accept()
        await next_one.beat(*{one.lease_token for one in next_one.assigned})
    assert {one.task_id for one in next_one.assigned} == set(ids)
    assert {one.attempt for one in next_one.assigned} == {1}
    await until(lambda: len(hub.leaser.sessions) == 1, 90)
    await next_one.report(*(caller.completed(one) for one in next_one.assigned))
    await next_one.close()
    sound(conn)


async def test_return__one_of_three_busy_workers__no_circle_and_no_task_twice(
    near: Caller, conn: psycopg.Connection
) -> None:
    ids = await near.enqueue("busy", 60)
    done: Counter[str] = Counter()
    stop = asyncio.Event()

    async def work(one: RawWorker) -> None:
        """Takes tasks, and needs 50 ms for each: steady, and at its slots."""
        while not stop.is_set():
            await asyncio.sleep(0.05)  # tidy: what a task takes
            if not one.out:
                continue
            await one.accept()
            await one.beat(*{each.lease_token for each in one.out.values()})
            task = next(iter(one.out.values()))
            if await one.report(caller.completed(task)) == ["RECORDED"]:
                done[task.task_id] += 1

    dying = await RawWorker.open(near, "busy", slots=SLOTS)
    await dying.tasks(SLOTS)
    await dying.accept()
    held = set(dying.out)
    first = await RawWorker.open(near, "busy", slots=SLOTS)
    steady = [asyncio.create_task(work(first))]
    second = await RawWorker.open(near, "busy", slots=SLOTS)
    steady.append(asyncio.create_task(work(second)))
    await dying.cut()
    await until(lambda: len(done) > 30)
    returned = await RawWorker.open(near, "busy", slots=SLOTS)
    steady.append(asyncio.create_task(work(returned)))
    await until(lambda: set(done) == set(ids))
    stop.set()
    await asyncio.gather(*steady)
    assert set(done.values()) == {1}
    assert max(one.peak for one in (first, second, dying, returned)) <= SLOTS
    # What the dying one held was lost once; everything else was handed out once.
    rows = conn.execute("select task_id::text from deliveries where outcome <> 'DONE'").fetchall()
    assert Counter(task_id for (task_id,) in rows) == Counter(held)
    for one in (first, second, returned):
        await one.close()
    sound(conn)
