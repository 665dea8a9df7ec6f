"""Rules 2 and 3: a stale token changes nothing, and a report counts once."""

from collections.abc import AsyncIterator, Callable
from typing import Any

import psycopg
import pytest
import pytest_asyncio

from tenure.v1 import work_stream_pb2 as stream
from tenure.v1 import worker_pb2 as worker
from tests.eventually import eventually
from tests.protocol import caller
from tests.protocol.caller import Caller
from tests.protocol.raw_worker import RawWorker

GARBAGE = {
    "zeros": "A" * 43,
    "no token": "not a token",
    "empty": "",
    "too long": "A" * 44,
    "nul": "A" * 42 + "\x00",
    "emoji": "\U0001f600" * 11,
}
STORED = """
    with ids as (select %s::uuid[] as ids)
    select
        (select count(*) from deliveries where task_id = any(ids)),
        (select array_agg(row(l.lease_id, l.remaining, l.expires_at, l.started_task_ids)::text
                          order by l.lease_id)
         from leases as l where l.task_ids && ids),
        (select count(*) from ready_tasks where task_id = any(ids)),
        (select count(*) from timers where task_id = any(ids)),
        (select count(*) from dead_letters where task_id = any(ids))
    from ids
"""


def stored(conn: psycopg.Connection, holder: RawWorker) -> Any:
    """Gives all that is stored of the holder's two tasks."""
    return conn.execute(STORED, [[item.task_id for item in holder.assigned[:2]]]).fetchone()


@pytest_asyncio.fixture(loop_scope="module")
async def holder(apart: Caller) -> AsyncIterator[RawWorker]:
    """A worker that has accepted two tasks, each under a lease of its own."""
    one = await RawWorker.open(apart, slots=2)
    for count in (1, 2):
        await apart.enqueue()
        await one.tasks(count)
    await one.accept()
    assert len({item.lease_token for item in one.assigned}) == 2
    yield one
    await one.cut()


def result(item: worker.Assignment, token: str) -> worker.Result:
    changed = caller.completed(item)
    changed.lease_token = token
    return changed


@pytest.mark.parametrize("token", GARBAGE.values(), ids=GARBAGE)
@pytest.mark.asyncio(loop_scope="module")
async def test_report__garbage_token__changes_nothing(
    apart: Caller, holder: RawWorker, shared_conn: psycopg.Connection, token: str
) -> None:
    before = stored(shared_conn, holder)
    results = [result(holder.assigned[0], token), result(holder.assigned[1], token)]
    refused = {"LEASE_LOST", "REFUSED"}
    assert set(await holder.report(*results)) <= refused
    assert set(await apart.report(*results)) <= refused
    assert stored(shared_conn, holder) == before


@pytest.mark.asyncio(loop_scope="module")
async def test_report__right_lease_and_wrong_secret__is_lost(
    apart: Caller, holder: RawWorker, shared_conn: psycopg.Connection
) -> None:
    before = stored(shared_conn, holder)
    token = holder.assigned[0].lease_token
    forged = token[:30] + ("A" if token[30] != "A" else "B") + token[31:]
    assert await holder.report(result(holder.assigned[0], forged)) == ["LEASE_LOST"]
    assert await apart.report(result(holder.assigned[0], forged)) == ["LEASE_LOST"]
    assert list((await apart.renew(forged)).lost_lease_tokens) == [forged]
    assert stored(shared_conn, holder) == before


@pytest.mark.asyncio(loop_scope="module")
async def test_report__token_of_another_task__is_lost(
    apart: Caller, holder: RawWorker, shared_conn: psycopg.Connection
) -> None:
    before = stored(shared_conn, holder)
    first, second = holder.assigned
    crossed = [result(first, second.lease_token), result(second, first.lease_token)]
    assert await holder.report(*crossed) == ["LEASE_LOST", "LEASE_LOST"]
    assert await apart.report(*crossed) == ["LEASE_LOST", "LEASE_LOST"]
    assert stored(shared_conn, holder) == before
    assert await holder.report(*map(caller.completed, (first, second))) == ["RECORDED"] * 2


@pytest.mark.asyncio(loop_scope="module")
async def test_report__stale_token__is_lost_and_the_new_holder_unharmed(
    apart: Caller, holder: RawWorker, shared_conn: psycopg.Connection
) -> None:
    stale = holder.assigned[0]
    await holder.report(caller.released(stale))
    await holder.tasks(3)
    await holder.accept()
    before = stored(shared_conn, holder)
    for outcome in (caller.completed, caller.failed):
        assert await holder.report(outcome(stale)) == ["LEASE_LOST"]
        assert await apart.report(outcome(stale)) == ["LEASE_LOST"]
    assert list((await holder.beat(stale.lease_token)).lost_lease_tokens) == [stale.lease_token]
    assert stored(shared_conn, holder) == before
    assert await holder.report(caller.completed(holder.assigned[2])) == ["RECORDED"]


@pytest.mark.asyncio(loop_scope="module")
async def test_report__token_of_another_namespace__is_lost(
    apart: Caller, holder: RawWorker, shared_conn: psycopg.Connection
) -> None:
    await apart.create_namespace("other")
    stranger = Caller(apart.address, "other")
    before = stored(shared_conn, holder)
    item = holder.assigned[0]
    assert await stranger.report(caller.completed(item)) == ["LEASE_LOST"]
    theirs = await RawWorker.open(stranger)
    assert await theirs.report(caller.completed(item)) == ["LEASE_LOST"]
    assert stored(shared_conn, holder) == before
    await theirs.close()
    await stranger.close()


@pytest.mark.asyncio(loop_scope="module")
async def test_renew__token_of_another_namespace__is_lost(
    apart: Caller, holder: RawWorker, shared_conn: psycopg.Connection
) -> None:
    await apart.create_namespace("other")
    stranger = Caller(apart.address, "other")
    before = stored(shared_conn, holder)
    token = holder.assigned[0].lease_token
    assert list((await stranger.renew(token)).lost_lease_tokens) == [token]
    assert stored(shared_conn, holder) == before
    await stranger.close()


@pytest.mark.asyncio(loop_scope="module")
async def test_start__forged_token__changes_nothing(
    apart: Caller, holder: RawWorker, shared_conn: psycopg.Connection
) -> None:
    before = stored(shared_conn, holder)
    first, second = holder.assigned
    forged = first.lease_token[:30] + "AAAA" + first.lease_token[34:]
    await holder.send(
        started=stream.Started(
            tasks=[
                stream.StartedTask(task_id=first.task_id, lease_token=forged),
                stream.StartedTask(task_id=second.task_id, lease_token=first.lease_token),
            ]
        )
    )
    # Started is written by the same batcher, in order.
    await holder.beat("A" * 43)
    assert stored(shared_conn, holder) == before


@pytest.mark.asyncio(loop_scope="module")
async def test_heartbeat__too_many_tokens__loses_no_lease(
    apart: Caller, holder: RawWorker, shared_conn: psycopg.Connection
) -> None:
    tokens = [holder.assigned[0].lease_token, *(f"{number:043d}" for number in range(10_000))]
    await holder.send(heartbeat=stream.Heartbeat(heartbeat_id=99, lease_tokens=tokens))
    refusal = await holder.ended()
    assert refusal is not None
    assert (refusal.status, refusal.reason) == ("INVALID_ARGUMENT", "FIELD_INVALID")
    assert refusal.fields == ("heartbeat.lease_tokens",)
    assert 99 not in holder.beats
    assert await apart.report(caller.completed(holder.assigned[0])) == ["RECORDED"]


Outcome = Callable[[worker.Assignment], worker.Result]


@pytest.mark.parametrize("outcome", [caller.completed, caller.failed, caller.released])
@pytest.mark.asyncio(loop_scope="module")
async def test_report__twice_in_one_message__is_recorded_once(
    apart: Caller, holder: RawWorker, shared_conn: psycopg.Connection, outcome: Outcome
) -> None:
    same = outcome(holder.assigned[0])
    assert sorted(await holder.report(same, same)) == ["ALREADY_RECORDED", "RECORDED"]
    other = outcome(holder.assigned[1])
    assert sorted(await apart.report(other, other)) == ["ALREADY_RECORDED", "RECORDED"]
    ids = [item.task_id for item in holder.assigned[:2]]
    counts = shared_conn.execute(
        "select count(*) from deliveries where task_id = any(%s::uuid[]) group by task_id", [ids]
    ).fetchall()
    assert counts == [(1,), (1,)]


@pytest.mark.asyncio(loop_scope="module")
async def test_report__twice_in_two_messages__is_recorded_once(holder: RawWorker) -> None:
    same = caller.completed(holder.assigned[0])
    assert await holder.report(same) == ["RECORDED"]
    assert await holder.report(same) == ["ALREADY_RECORDED"]


@pytest.mark.asyncio(loop_scope="module")
async def test_report__another_outcome_afterwards__is_lost_and_changes_nothing(
    apart: Caller, holder: RawWorker, shared_conn: psycopg.Connection
) -> None:
    first = holder.assigned[0]
    assert await holder.report(caller.completed(first, b"first")) == ["RECORDED"]
    before = stored(shared_conn, holder)
    assert await holder.report(caller.failed(first)) == ["LEASE_LOST"]
    assert await apart.report(caller.released(first)) == ["LEASE_LOST"]
    assert stored(shared_conn, holder) == before
    assert (await apart.get(first.task_id)).task.output.data == b"first"


@pytest.mark.asyncio(loop_scope="module")
async def test_report__after_a_reconnect_with_resume__is_recorded_once(
    apart: Caller, holder: RawWorker
) -> None:
    results = [caller.completed(item) for item in holder.assigned]
    assert await holder.report(results[0]) == ["RECORDED"]
    tokens = [item.lease_token for item in holder.assigned]
    await holder.cut()
    again = await RawWorker.open(apart, slots=2, resume=holder, holding=tokens)
    assert again.opened.resumed
    # The first acknowledgement may have been lost: both are sent.
    assert await again.report(*results) == ["ALREADY_RECORDED", "RECORDED"]
    assert await again.report(*results) == ["ALREADY_RECORDED", "ALREADY_RECORDED"]
    await again.close()


async def test_report__on_a_second_server__is_recorded_once(
    pair: tuple[Caller, Caller], conn: psycopg.Connection
) -> None:
    first, second = pair
    await first.enqueue(count=2)
    one = await RawWorker.open(first, slots=2)
    await one.tasks(2)
    await one.accept()
    results = [caller.completed(item) for item in one.assigned]
    assert await one.report(results[0]) == ["RECORDED"]
    assert await second.report(*results) == ["ALREADY_RECORDED", "RECORDED"]
    assert await one.report(*results) == ["ALREADY_RECORDED", "ALREADY_RECORDED"]
    assert conn.execute("select count(*) from deliveries").fetchone() == (2,)
    assert eventually(lambda: conn.execute("select count(*) from leases").fetchone() == (0,))
    await one.close()


@pytest.mark.asyncio(loop_scope="module")
async def test_report__after_expiry_and_before_the_sweep__is_recorded(
    apart: Caller, holder: RawWorker, shared_conn: psycopg.Connection
) -> None:
    statuses = []
    for item in holder.assigned[:2]:
        shared_conn.execute(
            "update leases set expires_at = now() - interval '1 hour' where task_ids @> %s::uuid[]",
            [[item.task_id]],
        )
        statuses += await holder.report(caller.completed(item))
    # The sweep is once a second: it can have come between for one of them, not for both.
    assert "RECORDED" in statuses
