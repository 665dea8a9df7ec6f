"""The unary calls against the messages of the stream: same semantics, same stored rows."""

import asyncio
import time
import uuid
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from tenure.v1 import work_stream_pb2 as stream
from tenure.v1 import worker_pb2 as worker
from tenure.v1 import worker_service_pb2 as service
from tests.protocol import caller, refusals
from tests.protocol.caller import Caller
from tests.protocol.raw_worker import RawWorker

Outcome = Callable[[worker.Assignment], worker.Result]
OUTCOMES: dict[str, Outcome] = {
    "completed": lambda one: caller.completed(one, b"\x00out"),
    "failed": lambda one: caller.failed(one, message="no", stack="at x"),
    "failed_for_good": lambda one: caller.failed(one, non_retryable=True),
    "released": caller.released,
    "rescheduled": lambda one: caller.rescheduled(one, 3600, b"page 7"),
    "cancelled_unasked": lambda one: worker.Result(
        task_id=one.task_id,
        lease_token=one.lease_token,
        cancelled=worker.CancelledOutcome(),
    ),
}
ROWS = """
    select
        d.delivery, d.attempt, d.outcome::text, d.final, d.output, d.output_encoding,
        d.output_schema, d.failure, d.lease_id is null, d.session_id is null,
        (select count(*) from ready_tasks as r where r.task_id = d.task_id),
        (select count(*) from timers as m where m.task_id = d.task_id),
        (select count(*) from leases as l where d.task_id = any(l.task_ids)),
        (select x.reason::text from dead_letters as x where x.task_id = d.task_id)
    from deliveries as d
    where d.task_id = %s
"""


def _ready_count(conn: psycopg.Connection, ids: list[str]) -> int:
    row = conn.execute(
        "select count(*) from ready_tasks where task_id = any(%s::uuid[])", [ids]
    ).fetchone()
    assert row is not None
    return int(row[0])


def rows(conn: psycopg.Connection, task_id: str) -> list[Any]:
    return conn.execute(ROWS, [task_id]).fetchall()


@pytest.mark.parametrize("outcome", OUTCOMES.values(), ids=OUTCOMES)
@pytest.mark.asyncio(loop_scope="module")
async def test_report__by_stream_and_by_call__stores_the_same(
    apart: Caller, shared_conn: psycopg.Connection, outcome: Outcome
) -> None:
    streamed = (await apart.enqueue("a"))[0]
    called = (await apart.enqueue("b"))[0]
    one = await RawWorker.open(apart, "a")
    await one.tasks()
    await one.accept()
    await one.send(pause=stream.Pause(paused=True))
    assert await one.report(outcome(one.assigned[0])) == ["RECORDED"]
    by_stream = rows(shared_conn, streamed)

    other = (await apart.lease("b")).assignments[0]
    assert await apart.report(outcome(other)) == ["RECORDED"]
    by_call = rows(shared_conn, called)

    assert len(by_stream) == 1
    assert by_stream == by_call
    assert await apart.report(outcome(one.assigned[0])) == ["ALREADY_RECORDED"]
    assert await one.report(outcome(other)) == ["ALREADY_RECORDED"]
    await one.close()


@pytest.mark.asyncio(loop_scope="module")
async def test_lease__by_stream_and_by_call__hands_out_the_same(apart: Caller) -> None:
    fields: dict[str, Any] = {
        "input": {"data": b"\x00in", "encoding": "binary", "schema": "s"},
        "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "priority": 3,
    }
    await apart.enqueue(count=2, **fields)
    one = await RawWorker.open(apart)
    streamed = (await one.tasks())[0]
    leased = await apart.lease()
    called = leased.assignments[0]
    assert leased.lease_duration == one.opened.lease_duration
    for item in (streamed, called):
        assert item.lease_token
        item.ClearField("task_id")
        item.ClearField("lease_token")
    assert streamed == called
    assert called.max_attempts == 3
    await one.cut()


async def test_lease__by_call__counts_as_accepted(brisk: Caller) -> None:
    await brisk.enqueue()
    leased = (await brisk.lease()).assignments[0]
    one = await RawWorker.open(brisk)
    # Longer than the accept timeout of half a second; the lease has 6 s.
    await one.nothing_comes(seconds=1.8)
    assert await brisk.report(caller.completed(leased)) == ["RECORDED"]
    await one.cut()


@pytest.mark.asyncio(loop_scope="module")
async def test_lease__by_call__writes_a_lease_of_full_duration(
    apart: Caller, shared_conn: psycopg.Connection
) -> None:
    ids = await apart.enqueue()
    await apart.lease()
    row = shared_conn.execute(
        "select extract(epoch from expires_at - granted_at) from leases where task_ids @> %s::uuid[]",
        [ids],
    ).fetchone()
    assert row is not None
    assert float(row[0]) == pytest.approx(6, abs=0.1)


@pytest.mark.asyncio(loop_scope="module")
async def test_renew__by_stream_and_by_call__gives_full_duration(
    apart: Caller, shared_conn: psycopg.Connection
) -> None:
    ids = await apart.enqueue(count=2)
    one = await RawWorker.open(apart)
    await one.tasks()
    await one.accept()
    called = (await apart.lease()).assignments[0]
    garbage = "A" * 43
    ack = await one.beat(one.token, garbage, "no token")
    answer = await apart.renew(called.lease_token, garbage, "no token")
    assert list(ack.lost_lease_tokens) == list(answer.lost_lease_tokens) == [garbage, "no token"]
    assert answer.lease_duration == one.opened.lease_duration
    left = shared_conn.execute(
        "select extract(epoch from expires_at - now()) from leases where task_ids && %s::uuid[]",
        [ids],
    ).fetchall()
    assert len(left) == 2
    assert all(5 < float(row[0]) <= 6 for row in left)
    await one.cut()


@pytest.mark.asyncio(loop_scope="module")
async def test_renew__started_tasks__shows_them_running(apart: Caller) -> None:
    streamed, called = await apart.enqueue(count=2)
    one = await RawWorker.open(apart)
    first = (await one.tasks())[0]
    second = (await apart.lease()).assignments[0]
    assert [first.task_id, second.task_id] == [streamed, called]
    assert [await apart.state(streamed), await apart.state(called)] == ["LEASED", "LEASED"]
    await one.accept()
    began = stream.StartedTask(task_id=first.task_id, lease_token=first.lease_token)
    await one.send(started=stream.Started(tasks=[began]))
    await one.beat(first.lease_token)
    request = service.RenewLeasesRequest(lease_tokens=[second.lease_token])
    request.started.add(task_id=second.task_id, lease_token=second.lease_token)
    await apart.work.RenewLeases(request, metadata=apart.metadata)
    assert [await apart.state(streamed), await apart.state(called)] == ["RUNNING", "RUNNING"]
    await one.cut()


@pytest.mark.asyncio(loop_scope="module")
async def test_renew__cancel_requested__tells_both_the_same(apart: Caller) -> None:
    streamed, called = await apart.enqueue(count=2)
    one = await RawWorker.open(apart)
    await one.tasks()
    await one.accept()
    leased = (await apart.lease()).assignments[0]
    await apart.cancel(streamed, called, reason="not wanted", grace_seconds=20)
    await one.until(lambda: bool(one.cancels))
    ack = await one.beat(one.token)
    answer = await apart.renew(leased.lease_token)
    found = [one.cancels[0], *ack.cancels, *answer.cancels]
    assert [cancel.task_id for cancel in found] == [streamed, streamed, called]
    assert [cancel.reason for cancel in found] == ["not wanted"] * 3
    left = [cancel.grace_duration.ToTimedelta().total_seconds() for cancel in found]
    assert all(18 < seconds <= 20 for seconds in left), left
    # A shorter grace is told anew, to both; a longer one changes nothing.
    await apart.cancel(streamed, called, grace_seconds=60)
    await apart.cancel(streamed, called, grace_seconds=8)
    await one.until(lambda: len(one.cancels) > 1)
    ack = await one.beat(one.token)
    answer = await apart.renew(leased.lease_token)
    found = [one.cancels[1], *ack.cancels, *answer.cancels]
    left = [cancel.grace_duration.ToTimedelta().total_seconds() for cancel in found]
    assert all(5 < seconds <= 8 for seconds in left), left
    assert len(one.cancels) == 2
    await one.cut()


@pytest.mark.asyncio(loop_scope="module")
async def test_renew__calls_of_two_namespaces_at_once__tells_each_its_own(
    apart: Caller,
) -> None:
    await apart.create_namespace("other")
    other = Caller(apart.address, "other")
    mine = (await apart.enqueue())[0]
    theirs = (await other.enqueue())[0]
    my_token = (await apart.lease()).assignments[0].lease_token
    their_token = (await other.lease()).assignments[0].lease_token
    await apart.cancel(mine)
    await other.cancel(theirs)
    calls = [call for _ in range(60) for call in (apart.renew(my_token), other.renew(their_token))]
    answers = await asyncio.gather(*calls)
    told = [[cancel.task_id for cancel in answer.cancels] for answer in answers]
    assert told == [[mine], [theirs]] * 60
    await other.close()


@pytest.mark.asyncio(loop_scope="module")
async def test_lease__request_id_repeated__answers_the_same_leases(
    apart: Caller, shared_conn: psycopg.Connection
) -> None:
    ids = await apart.enqueue(count=5)
    request_id = str(uuid.uuid4())
    first = await apart.lease(count=3, request_id=request_id)
    again = await apart.lease(count=3, request_id=request_id)
    assert len(first.assignments) == 3
    assert again == first
    assert _ready_count(shared_conn, ids) == 2
    await apart.report(caller.completed(first.assignments[0]))
    later = await apart.lease(count=3, request_id=request_id)
    assert list(later.assignments) == list(first.assignments)[1:]


@pytest.mark.asyncio(loop_scope="module")
async def test_lease__request_id_repeated_at_once__answers_the_same_leases(
    apart: Caller, shared_conn: psycopg.Connection
) -> None:
    ids = await apart.enqueue(count=5)
    request_id = str(uuid.uuid4())
    answers = await asyncio.gather(*(apart.lease(count=3, request_id=request_id) for _ in range(8)))
    assert all(answer == answers[0] for answer in answers)
    assert len(answers[0].assignments) == 3
    assert _ready_count(shared_conn, ids) == 2


@pytest.mark.asyncio(loop_scope="module")
async def test_lease__request_id_for_another_call__is_refused(apart: Caller) -> None:
    await apart.enqueue(count=5)
    request_id = str(uuid.uuid4())
    await apart.lease(count=3, request_id=request_id)
    refusal = await refusals.refused(apart.lease(count=2, request_id=request_id))
    assert (refusal.status, refusal.reason) == ("ALREADY_EXISTS", "REQUEST_ID_REUSED")
    assert refusal.metadata == {"request_id": request_id}


@pytest.mark.asyncio(loop_scope="module")
async def test_lease__task_arrives_during_the_poll__returns_then(apart: Caller) -> None:
    began = time.monotonic()
    poll = asyncio.create_task(apart.lease(wait_seconds=20))
    empty = await apart.lease()
    assert list(empty.assignments) == []
    assert not poll.done()
    await apart.enqueue()
    assert len((await poll).assignments) == 1
    assert time.monotonic() - began < 5


@pytest.mark.asyncio(loop_scope="module")
async def test_lease__nothing_arrives__returns_empty_when_the_time_is_over(apart: Caller) -> None:
    began = time.monotonic()
    answer = await apart.lease(wait_seconds=0.5)
    assert list(answer.assignments) == []
    assert 0.5 <= time.monotonic() - began < 3


@pytest.mark.asyncio(loop_scope="module")
async def test_await__task_ends_during_the_call__returns_then(apart: Caller) -> None:
    task_id, other = await apart.enqueue(count=2)
    waiting = asyncio.create_task(apart.wait(other, task_id, wait_seconds=20))
    leased = (await apart.lease()).assignments[0]
    await apart.report(caller.completed(leased, b"42"))
    answer = await waiting
    assert [result.task_id for result in answer.results] == [leased.task_id]
    assert answer.results[0].result.output.data == b"42"
