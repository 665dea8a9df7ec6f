"""Large payloads: a server bounds what it holds, and its own trouble costs nobody a lease."""

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import grpc
import psycopg
import pytest
import pytest_asyncio

from tenure.v1 import payload_pb2 as payload
from tenure.v1 import task_service_pb2 as tasks
from tenure.v1 import worker_pb2 as worker
from tenure.v1 import worker_service_pb2 as workers
from tenure_service.dispatch import reporter
from tenure_service.dispatch.hub import Hub
from tenure_service.engine import limits
from tenure_service.main import Server
from tests.eventually import eventually_async
from tests.fix_server import server_config
from tests.protocol import caller, refusals
from tests.protocol.caller import Caller
from tests.protocol.raw_worker import RawWorker

MIB = 1024 * 1024
LARGE = payload.Payload(data=bytes(2 * MIB), encoding="binary")
LEASE_SECONDS = 4


@pytest_asyncio.fixture
async def small(database: str) -> AsyncIterator[Server]:
    """A server that holds 64 MiB of payloads, with short leases."""
    config = server_config(
        database,
        payload_memory_mib=64,
        lease_seconds=LEASE_SECONDS,
        first_lease_seconds=LEASE_SECONDS,
    )
    running = Server(config)
    await running.start()
    yield running
    await running.stop()


@pytest_asyncio.fixture
async def own(small: Server) -> AsyncIterator[Caller]:
    opened = Caller(small.address)
    yield opened
    await opened.close()


def _hub(server: Server) -> Hub:
    assert server._hub is not None
    return server._hub


async def test_assign__large_inputs__come_a_few_at_a_time(own: Caller) -> None:
    await own.enqueue(count=7, input=LARGE)
    await own.enqueue(count=7, input=LARGE)
    await own.enqueue(count=7, input=LARGE)
    one = await RawWorker.open(own, slots=100)
    await one.until(lambda: len(one.assigned) >= limits.ASSIGN_FIRST_COUNT)
    by_lease: dict[str, int] = {}
    await one.accept()
    while len(one.assigned) < 21:
        await one.report(*(caller.completed(item) for item in list(one.out.values())))
    for item in one.assigned:
        by_lease[item.lease_token] = by_lease.get(item.lease_token, 0) + 1
    assert max(by_lease.values()) <= limits.ASSIGN_FIRST_COUNT
    assert {item.delivery for item in one.assigned} == {1}
    await one.close()


async def test_lease__large_inputs_by_call__are_as_many_as_fit_and_none_is_put_back(
    own: Caller, conn: psycopg.Connection
) -> None:
    for _ in range(3):
        await own.enqueue(count=7, input=LARGE)
    answer = await own.lease(count=100)
    assert len(answer.assignments) in {7, 8}
    held = conn.execute("select sum(cardinality(task_ids)) from leases").fetchone()
    # At most the one that did not fit beside its frame.
    assert held is not None
    assert held[0] - len(answer.assignments) <= 1


async def test_assign__worker_does_not_read__holds_a_few_inputs_for_it(
    small: Server, own: Caller
) -> None:
    for _ in range(4):
        await own.enqueue(count=7, input=LARGE)
    work: Any = own.work.Work
    call = work()
    await call.write(workers.WorkRequest(open=RawWorker.open_message(slots=100)))
    hub = _hub(small)
    await eventually_async(lambda: any(one.outgoing_bytes for one in hub.leaser.sessions.values()))
    (session,) = hub.leaser.sessions.values()
    assert session.outgoing_bytes <= 2 * limits.ASSIGN_BYTES_MAX
    call.cancel()
    await eventually_async(lambda: not hub.leaser.sessions)
    assert hub.memory._held == 0
    # Whoever does read is given all of them.
    two = await RawWorker.open(own, slots=100)
    while len({item.task_id for item in two.assigned}) < 28:
        await two.until(lambda: bool(two.out))
        await two.report(*(caller.completed(item) for item in list(two.out.values())))
    await two.close()


async def test_enqueue__half_of_the_memory_taken__is_refused_with_a_time(
    small: Server, own: Caller, database: str
) -> None:
    request = tasks.EnqueueTasksRequest(tasks=[tasks.NewTask(name="work", input=LARGE)])
    with psycopg.connect(database) as blocker:
        blocker.execute("lock table tenure.tasks in share mode")
        calls: list[Any] = [own.task.EnqueueTasks(request, timeout=30) for _ in range(40)]
        await eventually_async(lambda: sum(call.done() for call in calls) >= 40 - 16)
        blocker.rollback()
    answers = await asyncio.gather(*calls, return_exceptions=True)
    refused = [answer for answer in answers if isinstance(answer, grpc.RpcError)]
    # 16 of 2 MiB are half of 64.
    assert len(refused) == 40 - 16
    for error in refused:
        refusal = refusals.of(error)
        assert (refusal.status, refusal.reason) == ("RESOURCE_EXHAUSTED", "OVERLOADED")
        assert refusal.retry_seconds
    assert _hub(small).memory._held == 0
    assert len(await own.enqueue(input=LARGE)) == 1


class Gate:
    """Holds back what a server records, until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._open = threading.Event()
        record = reporter.Reporter._record

        def late(self_: Any, items: Any) -> Any:
            assert self._open.wait(30)
            return record(self_, items)

        monkeypatch.setattr(reporter.Reporter, "_record", late)

    def open(self) -> None:
        self._open.set()


async def _leases_swept(conn: psycopg.Connection) -> None:
    """Waits until the leases that stand now would have ended, and been swept."""
    row = conn.execute("select max(expires_at) from leases").fetchone()
    assert row is not None
    await eventually_async(
        lambda: (
            conn.execute("select now() > %s::timestamptz + interval '2 seconds'", row).fetchone()
            == (True,)
        )
    )


async def test_report__waits_longer_than_its_lease__is_recorded_all_the_same(
    own: Caller, conn: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    (task_id,) = await own.enqueue()
    one = await RawWorker.open(own)
    item = (await one.tasks())[0]
    reported = asyncio.create_task(one.report(caller.completed(item), seconds=30))
    # It sends no heartbeat: whoever has reported holds nothing any more.
    await _leases_swept(conn)
    assert len(one.assigned) == 1
    gate.open()
    assert await reported == ["RECORDED"]
    deliveries = (await own.get(task_id)).deliveries
    assert [one.delivery for one in deliveries] == [1]
    await one.close()


async def test_read__memory_full_of_results__leases_of_the_unread_are_kept(
    small: Server, own: Caller, conn: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    ids = await own.enqueue(count=40)
    one = await RawWorker.open(own, slots=40)
    items = list(await one.tasks(40))
    await one.accept()
    sending = [asyncio.create_task(one.report(_with_output(item), seconds=30)) for item in items]
    hub = _hub(small)
    (session,) = hub.leaser.sessions.values()
    await eventually_async(lambda: session.stalled)
    assert hub.memory._held >= 64 * MIB
    assert not hub.memory.hands_out
    await _leases_swept(conn)
    gate.open()
    for answer in await asyncio.gather(*sending):
        assert answer == ["RECORDED"]
    assert hub.memory._held == 0
    assert len(one.assigned) == 40
    assert [await own.state(task_id) for task_id in ids] == ["COMPLETED"] * 40
    await one.close()


def _with_output(item: worker.Assignment) -> worker.Result:
    result = caller.completed(item)
    result.completed.output.CopyFrom(LARGE)
    return result


async def test_report__by_call_and_memory_full__is_to_be_sent_again(
    small: Server, own: Caller
) -> None:
    await own.enqueue()
    item = (await own.lease()).assignments[0]
    memory = _hub(small).memory
    memory.take(64 * MIB)
    refusal = await refusals.refused(
        own.work.ReportTasks(workers.ReportTasksRequest(results=[caller.completed(item)]))
    )
    assert (refusal.status, refusal.reason) == ("RESOURCE_EXHAUSTED", "OVERLOADED")
    memory.give(64 * MIB)
    assert await own.report(caller.completed(item)) == ["RECORDED"]
