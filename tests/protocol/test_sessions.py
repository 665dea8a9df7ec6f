"""Rules 4 and 7: broken streams, resumes, closes, and assignments that are not accepted."""

import time
from typing import Any

import psycopg
import pytest

from tenure.v1 import work_stream_pb2 as stream
from tests.fix_server import RunningServer
from tests.protocol import caller
from tests.protocol.caller import Caller
from tests.protocol.raw_worker import RawWorker
from tests.protocol.wire import Wire

ACCEPT_SECONDS = 2.0
BRISK_SECONDS = 0.5
AT_ONCE_SECONDS = 1.0


def deliveries(conn: psycopg.Connection, task_id: str) -> list[Any]:
    return conn.execute(
        "select delivery, attempt, outcome::text, final from deliveries where task_id = %s "
        "order by delivery",
        [task_id],
    ).fetchall()


async def test_assign__not_accepted__is_handed_out_again_without_an_attempt(
    brisk: Caller, conn: psycopg.Connection
) -> None:
    task_id = (await brisk.enqueue())[0]
    deaf = await RawWorker.open(brisk)
    await deaf.tasks()
    began = time.monotonic()
    other = await RawWorker.open(brisk)
    again = (await other.tasks())[0]
    assert time.monotonic() - began < BRISK_SECONDS + 1.5
    assert (again.task_id, again.attempt, again.delivery) == (task_id, 1, 2)
    assert deliveries(conn, task_id) == [(1, 1, "LOST", False)]
    assert (await brisk.get(task_id)).task.lost_count == 1
    await other.accept()
    assert await deaf.report(caller.completed(deaf.assigned[0])) == ["LEASE_LOST"]
    assert await other.report(caller.completed(again)) == ["RECORDED"]
    await other.close()
    await deaf.cut()


async def test_assign__accepted__stays_past_the_accept_timeout(brisk: Caller) -> None:
    await brisk.enqueue()
    one = await RawWorker.open(brisk)
    await one.tasks()
    await one.accept()
    other = await RawWorker.open(brisk)
    await other.nothing_comes(seconds=BRISK_SECONDS + 1.3)
    await one.beat(one.token)
    assert await one.report(caller.completed(one.assigned[0])) == ["RECORDED"]
    await other.close()
    await one.close()


@pytest.mark.asyncio(loop_scope="module")
async def test_break__before_accept__is_handed_out_again_at_once(apart: Caller) -> None:
    task_id = (await apart.enqueue())[0]
    one = await RawWorker.open(apart)
    await one.tasks()
    other = await RawWorker.open(apart)
    began = time.monotonic()
    await one.cut()
    again = (await other.tasks())[0]
    assert time.monotonic() - began < AT_ONCE_SECONDS
    assert (again.task_id, again.attempt, again.delivery) == (task_id, 1, 2)
    await other.close()


async def test_break__wire_cut_before_accept__is_handed_out_again_at_once(
    server: RunningServer, client: Caller
) -> None:
    task_id = (await client.enqueue())[0]
    async with Wire(server.address) as wire:
        far = Caller(wire.address)
        one = await RawWorker.open(far)
        await one.tasks()
        other = await RawWorker.open(client)
        began = time.monotonic()
        wire.cut()
        again = (await other.tasks())[0]
        assert time.monotonic() - began < AT_ONCE_SECONDS
        assert (again.task_id, again.attempt) == (task_id, 1)
        await one.ended()
        await far.close()
    await other.close()


@pytest.mark.asyncio(loop_scope="module")
async def test_break__after_accept__keeps_the_lease_for_its_resume(
    apart: Caller, shared_conn: psycopg.Connection
) -> None:
    ids = await apart.enqueue(count=3)
    one = await RawWorker.open(apart, slots=2)
    await one.tasks(2)
    await one.accept()
    held = list(one.assigned)
    await one.cut()
    other = await RawWorker.open(apart, slots=0)
    left = "select sum(remaining) from leases where task_ids && %s::uuid[]"
    assert shared_conn.execute(left, [ids]).fetchone() == (2,)
    again = await RawWorker.open(
        apart, slots=2, resume=one, holding=[item.lease_token for item in held]
    )
    assert again.opened.resumed
    assert again.opened.session_id == one.opened.session_id
    # Its slots are taken by what it holds.
    await again.nothing_comes()
    assert await again.report(*map(caller.completed, held)) == ["RECORDED", "RECORDED"]
    await again.tasks(1)
    lost = "select count(*) from deliveries where outcome = 'LOST' and task_id = any(%s::uuid[])"
    assert shared_conn.execute(lost, [ids]).fetchone() == (0,)
    await again.close()
    await other.close()


@pytest.mark.asyncio(loop_scope="module")
async def test_resume__leases_not_named__are_handed_out_again_at_once(
    apart: Caller, shared_conn: psycopg.Connection
) -> None:
    first = (await apart.enqueue())[0]
    one = await RawWorker.open(apart, slots=2)
    await one.tasks(1)
    second = (await apart.enqueue())[0]
    await one.tasks(2)
    await one.accept()
    await one.cut()
    kept, dropped = one.assigned
    other = await RawWorker.open(apart)
    began = time.monotonic()
    again = await RawWorker.open(apart, slots=1, resume=one, holding=[kept.lease_token])
    given = (await other.tasks())[0]
    assert time.monotonic() - began < AT_ONCE_SECONDS
    assert (kept.task_id, given.task_id) == (first, second)
    assert (given.attempt, given.delivery) == (1, 2)
    assert await again.report(caller.completed(dropped)) == ["LEASE_LOST"]
    assert await again.report(caller.completed(kept)) == ["RECORDED"]
    await again.close()
    await other.close()


async def test_resume__on_another_server__ends_the_old_streams_right_to_lease(
    pair: tuple[Caller, Caller], conn: psycopg.Connection
) -> None:
    here, there = pair
    await here.enqueue()
    old = await RawWorker.open(here, slots=3)
    await old.tasks()
    await old.accept()
    new = await RawWorker.open(there, slots=3, resume=old, holding=[old.token])
    assert new.opened.resumed
    ids = set(await here.enqueue(count=2))
    await new.tasks(2)
    assert {item.task_id for item in new.assigned} == ids
    assert len(old.assigned) == 1
    assert await new.report(caller.completed(old.assigned[0])) == ["RECORDED"]
    # The old stream breaks at last; what the session holds elsewhere stays.
    await new.accept()
    await old.cut()
    held = list(new.out.values())
    assert await new.report(*map(caller.completed, held)) == ["RECORDED"] * 2
    await new.close()


async def test_resume__not_accepted_before_on_another_server__keeps_the_lease(
    pair: tuple[Caller, Caller],
) -> None:
    here, there = pair
    await here.enqueue()
    old = await RawWorker.open(here)
    item = (await old.tasks())[0]
    new = await RawWorker.open(there, resume=old, holding=[item.lease_token])
    await new.accept(item.lease_token)
    # Past the time in which the first server waits for an Accept.
    await new.nothing_comes(seconds=ACCEPT_SECONDS + 1.3)
    assert not (await new.beat(item.lease_token)).lost_lease_tokens
    assert await new.report(caller.completed(item)) == ["RECORDED"]
    await new.close()
    await old.cut()


@pytest.mark.asyncio(loop_scope="module")
async def test_resume__same_server_while_the_old_stream_is_open__takes_it_over(
    apart: Caller,
) -> None:
    await apart.enqueue()
    old = await RawWorker.open(apart)
    item = (await old.tasks())[0]
    new = await RawWorker.open(apart, resume=old, holding=[item.lease_token])
    assert await old.ended() is None
    assert not (await new.beat(item.lease_token)).lost_lease_tokens
    assert await new.report(caller.completed(item)) == ["RECORDED"]
    await new.close()


@pytest.mark.asyncio(loop_scope="module")
async def test_resume__wrong_secret__opens_another_session_and_keeps_the_first(
    apart: Caller,
) -> None:
    await apart.enqueue()
    one = await RawWorker.open(apart)
    item = (await one.tasks())[0]
    await one.accept()
    secret = one.opened.session_secret
    one.opened.session_secret = "g" * 32
    thief = await RawWorker.open(apart, resume=one, holding=[item.lease_token])
    one.opened.session_secret = secret
    assert not thief.opened.resumed
    assert thief.opened.session_id != one.opened.session_id
    assert not (await one.beat(item.lease_token)).lost_lease_tokens
    assert await one.report(caller.completed(item)) == ["RECORDED"]
    await thief.close()
    await one.close()


@pytest.mark.asyncio(loop_scope="module")
async def test_resume__unknown_session__opens_a_new_one(apart: Caller) -> None:
    lost = await RawWorker.open(apart)
    await lost.cut()
    lost.opened.session_id = "00000000-0000-7000-8000-000000000000"
    new = await RawWorker.open(apart, resume=lost)
    assert not new.opened.resumed
    assert new.opened.session_id != lost.opened.session_id
    await new.cut()
    again = await RawWorker.open(apart, resume=new)
    assert again.opened.resumed
    await again.close()


@pytest.mark.asyncio(loop_scope="module")
async def test_resume__secret_no_server_made__is_refused(apart: Caller) -> None:
    # A session that is gone is opened anew under the secret that came: it must not be weak.
    weak = RawWorker(apart)
    message = RawWorker.open_message()
    message.resume.session_id = "00000000-0000-7000-8000-000000000000"
    message.resume.session_secret = "short"  # noqa: S105 - none of ours
    await weak.send(open=message)
    refusal = await weak.ended()
    assert refusal is not None
    assert (refusal.reason, refusal.fields) == ("FIELD_INVALID", ("open.resume.session_secret",))


async def test_assign__worker_lets_it_lie__goes_to_others_until_it_speaks(
    brisk: Caller,
) -> None:
    deaf = await RawWorker.open(brisk, slots=5)
    await brisk.enqueue()
    await deaf.tasks()
    other = await RawWorker.open(brisk)
    await other.tasks()
    await other.accept()
    # Idle as the deaf one is, nothing goes there: its connection may be half open.
    await brisk.enqueue()
    await deaf.nothing_comes()
    assert len(deaf.assigned) == 1
    await deaf.beat()
    await deaf.tasks(2)
    await deaf.close()
    await other.close()


@pytest.mark.asyncio(loop_scope="module")
async def test_close__holding_tasks__releases_at_once_with_places_kept(
    apart: Caller, shared_conn: psycopg.Connection
) -> None:
    ids = await apart.enqueue(count=4)
    one = await RawWorker.open(apart, slots=2)
    await one.tasks(2)
    await one.accept()
    await one.close()
    # Nothing is spent, and the two are in front of the others again.
    leased = (await apart.lease(count=4)).assignments
    assert [item.task_id for item in leased] == ids
    assert [(item.attempt, item.delivery) for item in leased] == [(1, 2), (1, 2), (1, 1), (1, 1)]
    assert deliveries(shared_conn, ids[0]) == [(1, 1, "RELEASED", False)]
    assert (await apart.get(ids[0])).task.lost_count == 0


@pytest.mark.asyncio(loop_scope="module")
async def test_close__another_stream_waits__is_handed_what_was_held_at_once(
    apart: Caller,
) -> None:
    ids = await apart.enqueue(count=2)
    one = await RawWorker.open(apart, slots=2)
    await one.tasks(2)
    await one.accept()
    other = await RawWorker.open(apart, slots=2)
    began = time.monotonic()
    await one.close()
    await other.tasks(2)
    assert time.monotonic() - began < AT_ONCE_SECONDS
    assert [item.task_id for item in other.assigned] == ids
    await other.close()


@pytest.mark.asyncio(loop_scope="module")
async def test_close__reports_in_flight__records_them(apart: Caller) -> None:
    ids = await apart.enqueue(count=20)
    one = await RawWorker.open(apart, slots=20)
    await one.tasks(20)
    for number, item in enumerate(one.assigned):
        await one.send(report=stream.Report(report_id=number, results=[caller.completed(item)]))
    await one.close()
    assert len(one.acks) == 20
    answer = await apart.wait(*ids, wait_seconds=0)
    assert len(answer.results) == 20


@pytest.mark.asyncio(loop_scope="module")
async def test_close__resumed_afterwards__opens_a_new_session(apart: Caller) -> None:
    one = await RawWorker.open(apart)
    await one.close()
    again = await RawWorker.open(apart, resume=one)
    assert not again.opened.resumed
    await again.close()


@pytest.mark.asyncio(loop_scope="module")
async def test_end_of_requests__without_close__keeps_accepted_leases(apart: Caller) -> None:
    await apart.enqueue()
    one = await RawWorker.open(apart)
    item = (await one.tasks())[0]
    await one.accept()
    await one.beat(item.lease_token)
    await one.call.done_writing()
    await one.ended()
    again = await RawWorker.open(apart, resume=one, holding=[item.lease_token])
    assert again.opened.resumed
    assert await again.report(caller.completed(item)) == ["RECORDED"]
    await again.close()
