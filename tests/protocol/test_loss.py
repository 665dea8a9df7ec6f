"""Rule 8: lost deliveries spend no attempt, make a suspect, and end in the dead letters."""

import asyncio
from typing import Any

import psycopg
import pytest

from tenure.v1 import admin_service_pb2 as admin
from tenure.v1 import payload_pb2 as payload
from tenure.v1 import task_pb2
from tests.eventually import eventually
from tests.protocol import caller
from tests.protocol.caller import Caller
from tests.protocol.raw_worker import RawWorker

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def lose(conn: psycopg.Connection, task_id: str, *, lost_count: int) -> None:
    """Lets the lease of a task run out, and any delay after it."""
    conn.execute(
        "update leases set expires_at = now() - interval '1 s' where task_ids @> %s::uuid[]",
        [[task_id]],
    )
    ended = "select count(*) from deliveries where task_id = %s and outcome = 'LOST'"

    def done() -> bool:
        conn.execute("update timers set fire_at = now() where task_id = %s", [task_id])
        return conn.execute(ended, [task_id]).fetchone() == (lost_count,)

    assert await asyncio.to_thread(eventually, done)


def hurry(conn: psycopg.Connection, task_id: str) -> Any:
    """Lets the task's delay be over."""
    return conn.execute("update timers set fire_at = now() where task_id = %s", [task_id])


async def lose_until_suspect(
    client: Caller, conn: psycopg.Connection, task_id: str, *, name: str = "work"
) -> None:
    """Lets a task be lost for the second time, by a worker that is gone."""
    lost_before(conn, task_id, 1)
    leased = (await client.lease(name)).assignments
    assert [item.task_id for item in leased] == [task_id]
    await lose(conn, task_id, lost_count=1)
    await asyncio.to_thread(eventually, lambda: _ready(conn, task_id))


def lost_before(conn: psycopg.Connection, task_id: str, lost_count: int) -> None:
    """Makes a waiting task one that was lost so often: losses themselves take seconds."""
    conn.execute("update ready_tasks set lost_count = %s where task_id = %s", [lost_count, task_id])


def _ready(conn: psycopg.Connection, task_id: str) -> bool:
    hurry(conn, task_id)
    row = conn.execute("select 1 from ready_tasks where task_id = %s", [task_id]).fetchone()
    return row is not None


async def test_expire__lease_runs_out__is_lost_and_spends_no_attempt(
    apart: Caller, shared_conn: psycopg.Connection
) -> None:
    task_id = (await apart.enqueue())[0]
    one = await RawWorker.open(apart)
    first = (await one.tasks())[0]
    await one.accept()
    await lose(shared_conn, task_id, lost_count=1)
    assert list((await one.beat(first.lease_token)).lost_lease_tokens) == [first.lease_token]
    second = (await one.tasks(2))[1]
    assert (second.task_id, second.attempt, second.delivery) == (task_id, 1, 2)
    assert second.lease_token != first.lease_token
    assert await one.report(caller.completed(first)) == ["LEASE_LOST"]
    shown = await apart.get(task_id)
    assert (shown.task.lost_count, shown.task.attempt) == (1, 1)
    assert await one.report(caller.completed(second)) == ["RECORDED"]
    await one.close()


async def test_expire__no_heartbeats__is_lost_when_the_first_lease_is_over(
    apart: Caller,
) -> None:
    await apart.enqueue()
    one = await RawWorker.open(apart)
    await one.tasks()
    await one.accept()
    other = await RawWorker.open(apart)
    # 3 s of first lease, and the sweep once a second.
    again = (await other.tasks(seconds=5))[0]
    assert (again.attempt, again.delivery) == (1, 2)
    await other.accept()
    assert await other.report(caller.completed(again)) == ["RECORDED"]
    await other.close()
    await one.close()


async def test_expire__five_losses__is_in_the_dead_letters(
    apart: Caller, shared_conn: psycopg.Connection
) -> None:
    task_id = (await apart.enqueue(input=payload.Payload(data=b"poison")))[0]
    lost_before(shared_conn, task_id, 3)
    for number in (1, 2):
        leased = (await apart.lease(wait_seconds=10)).assignments
        assert [(item.attempt, item.delivery) for item in leased] == [(1, number)]
        await lose(shared_conn, task_id, lost_count=number)
        if number == 1:
            assert await asyncio.to_thread(eventually, lambda: _ready(shared_conn, task_id))
    shown = (await apart.get(task_id)).task
    assert await apart.state(task_id) == "DEAD"
    assert shown.failure.type == "LeaseLost"
    letters = await apart.admin.ListDeadLetters(
        admin.ListDeadLettersRequest(include_payloads=True), metadata=apart.metadata
    )
    letter = letters.dead_letters[0]
    assert (letter.task_id, letter.reason) == (task_id, admin.DEAD_LETTER_REASON_LEASE_LOST)
    assert (letter.input.data, letter.attempt) == (b"poison", 1)
    answer = await apart.admin.ReplayDeadLetters(
        admin.ReplayDeadLettersRequest(task_ids=[task_id]), metadata=apart.metadata
    )
    assert answer.results[0].state == admin.DEAD_LETTER_STATE_REPLAYED
    again = (await apart.lease()).assignments[0]
    assert (again.task_id, again.attempt, again.delivery) == (task_id, 1, 3)


async def test_get__completed_after_losses__tells_how_many(
    apart: Caller, shared_conn: psycopg.Connection
) -> None:
    task_id = (await apart.enqueue())[0]
    for number in (1, 2):
        await apart.lease(wait_seconds=10)
        await lose(shared_conn, task_id, lost_count=number)
    assert (await apart.get(task_id)).task.lost_count == 2
    leased = (await apart.lease(wait_seconds=10)).assignments[0]
    assert await apart.report(caller.completed(leased)) == ["RECORDED"]
    over = (await apart.get(task_id)).task
    assert (over.state, over.lost_count) == (task_pb2.TASK_STATE_COMPLETED, 2)


async def test_assign__lost_twice__is_given_alone_to_an_empty_session(
    apart: Caller, shared_conn: psycopg.Connection
) -> None:
    suspect = (await apart.enqueue())[0]
    await lose_until_suspect(apart, shared_conn, suspect)
    await apart.enqueue(count=6)
    one = await RawWorker.open(apart, slots=3)
    await one.tasks(1)
    order = []
    for _ in range(10):
        out = list(one.out.values())
        ids = [item.task_id for item in out]
        assert suspect not in ids or ids == [suspect]
        order += ids
        await one.accept()
        await one.report(*map(caller.completed, out))
        if len(order) == 7:
            break
        await one.until(lambda: bool(one.out))
    assert suspect in order
    assert len(set(order)) == 7
    await one.close()


async def test_assign__suspect_and_busy_sessions__waits_for_an_empty_one(
    apart: Caller, shared_conn: psycopg.Connection
) -> None:
    suspect = (await apart.enqueue("rare"))[0]
    await lose_until_suspect(apart, shared_conn, suspect, name="rare")
    busy = []
    for _ in range(2):
        await apart.enqueue()
        busy.append(await RawWorker.open(apart))
        await busy[-1].tasks()
        await busy[-1].accept()
    await asyncio.gather(*(one.cut() for one in busy))
    held = [list(one.assigned) for one in busy]
    again = []
    for one, items in zip(busy, held, strict=True):
        tokens = [item.lease_token for item in items]
        again.append(
            await RawWorker.open(apart, "work", "rare", slots=2, resume=one, holding=tokens)
        )
    for one in again:
        await one.nothing_comes()
    first, second = again
    # The second is empty before the first that may have been set aside: it gets the suspect alone.
    await second.report(caller.completed(held[1][0]))
    await second.tasks()
    assert [item.task_id for item in second.assigned] == [suspect]
    await second.accept()
    await apart.enqueue(count=2)
    # The first is no longer set aside, and the second gets nothing beside its suspect.
    await first.tasks(1, seconds=2.5)
    await first.accept()
    await second.nothing_comes()
    assert len(second.out) == 1
    await first.report(caller.completed(held[0][0]))
    await first.tasks(2)
    await second.report(caller.completed(second.assigned[0]))
    for one in again:
        await one.close()


async def test_lease__suspect_by_call__is_given_alone(
    apart: Caller, shared_conn: psycopg.Connection
) -> None:
    suspect = (await apart.enqueue())[0]
    await lose_until_suspect(apart, shared_conn, suspect)
    others = await apart.enqueue(count=3)
    batches = []
    for _ in range(2):
        leased = (await apart.lease(count=10)).assignments
        batches.append({item.task_id for item in leased})
        await apart.report(*map(caller.completed, leased))
    assert sorted(batches, key=len) == [{suspect}, set(others)]


async def test_report__failed_after_losses__spends_its_first_attempt(
    apart: Caller, shared_conn: psycopg.Connection
) -> None:
    task_id = (await apart.enqueue())[0]
    await apart.lease()
    await lose(shared_conn, task_id, lost_count=1)
    again = (await apart.lease(wait_seconds=5)).assignments[0]
    assert await apart.report(caller.failed(again, retry_after=caller.seconds(0))) == ["RECORDED"]
    third = (await apart.lease(wait_seconds=5)).assignments[0]
    assert (third.attempt, third.delivery) == (2, 3)
