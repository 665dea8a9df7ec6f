"""Rule 1, slots are credits; and SetSlots and Pause."""

import asyncio
import random

import pytest

from tenure.v1 import work_stream_pb2 as stream
from tenure.v1 import worker_pb2 as worker
from tests.protocol import caller
from tests.protocol.caller import Caller
from tests.protocol.raw_worker import RawWorker

pytestmark = pytest.mark.asyncio(loop_scope="module")


def set_slots(total: int, by_queue: dict[str, int] | None = None) -> stream.SetSlots:
    return stream.SetSlots(slots=worker.Slots(total=total, by_queue=by_queue or {}))


async def holding(one: RawWorker) -> None:
    """Waits until a worker holds something."""
    await one.until(lambda: bool(one.out))


async def drain(one: RawWorker, count: int, choose: random.Random) -> None:
    """Reports so many tasks, some at a time in random order, until none is left."""
    done = 0
    while done < count:
        await one.until(lambda: bool(one.out))
        await one.accept()
        some = choose.sample(list(one.out.values()), choose.randint(1, len(one.out)))
        results = [caller.completed(item) for item in some]
        assert await one.report(*results) == ["RECORDED"] * len(some)
        done += len(some)


async def test_assign__more_tasks_than_slots__never_exceeds_the_total(apart: Caller) -> None:
    await apart.enqueue(count=60)
    one = await RawWorker.open(apart, slots=7)
    await one.tasks(7)
    await drain(one, 60, random.Random(1))  # noqa: S311 - guards nothing
    assert one.peak == 7
    assert len({item.task_id for item in one.assigned}) == len(one.assigned) == 60
    await one.close()


async def test_assign__several_lanes_and_random_reports__never_exceeds_any_bound(
    apart: Caller,
) -> None:
    choose = random.Random(2)  # noqa: S311 - guards nothing
    for number in range(30):
        for queue in ("red", "green", "blue"):
            await apart.enqueue(
                choose.choice(("a", "b")),
                queue=queue,
                lane=choose.choice(("", "x", "y")),
                priority=number % 3,
            )
    names = [f"{queue}/{name}" for queue in ("red", "green", "blue") for name in ("a", "b")]
    workers = [
        await RawWorker.open(apart, *names, slots=6, by_queue={"red": 1, "green": 3})
        for _ in range(2)
    ]
    done = 0
    while done < 90:
        for one in workers:
            if not one.out:
                continue
            await one.accept()
            some = choose.sample(list(one.out.values()), choose.randint(1, len(one.out)))
            await one.report(*(caller.completed(item) for item in some))
            done += len(some)
        if done < 90 and not any(one.out for one in workers):
            # Both wait: whichever is given something goes on.
            waits = [asyncio.create_task(holding(one)) for one in workers]
            _, pending = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for wait in pending:
                wait.cancel()
            await asyncio.gather(*pending, return_exceptions=True)
    for one in workers:
        assert one.peak <= 6
        assert one.peak_by_queue["red"] <= 1
        assert one.peak_by_queue["green"] <= 3
    given = [item.task_id for one in workers for item in one.assigned]
    assert len(given) == len(set(given)) == 90
    for one in workers:
        await one.close()


async def test_assign__queue_bound_of_zero__gives_other_queues_only(apart: Caller) -> None:
    await apart.enqueue(queue="shut")
    await apart.enqueue(queue="open")
    one = await RawWorker.open(apart, "shut/work", "open/work", slots=5, by_queue={"shut": 0})
    assert [item.queue for item in await one.tasks()] == ["open"]
    await one.nothing_comes()
    await one.close()


async def test_assign__no_slots__gives_nothing_until_set_slots(apart: Caller) -> None:
    await apart.enqueue(count=5)
    one = await RawWorker.open(apart, slots=0)
    await one.nothing_comes()
    await one.send(set_slots=set_slots(2))
    await one.tasks(2)
    await one.nothing_comes()
    assert one.peak == 2
    await one.close()


async def test_set_slots__lowered_below_what_is_out__takes_nothing_back(apart: Caller) -> None:
    await apart.enqueue(count=10)
    one = await RawWorker.open(apart, slots=4)
    await one.tasks(4)
    await one.accept()
    await one.send(set_slots=set_slots(1))
    # The answer proves that SetSlots was read.
    assert not (await one.beat(one.token)).lost_lease_tokens
    first, *others = list(one.out.values())
    await one.report(*(caller.completed(item) for item in others))
    await one.nothing_comes()
    await one.report(caller.completed(first))
    await one.tasks(5)
    await one.nothing_comes()
    assert len(one.out) == 1
    await one.close()


async def test_set_slots__changed_at_random__never_exceeds_what_was_granted(
    apart: Caller,
) -> None:
    choose = random.Random(3)  # noqa: S311 - guards nothing
    await apart.enqueue(count=80)
    one = await RawWorker.open(apart, slots=5)
    done, totals, since, count = 0, [5], 0, 0
    while done < 80:
        await one.until(lambda: bool(one.out))
        await one.accept()
        some = choose.sample(list(one.out.values()), choose.randint(1, len(one.out)))
        await one.report(*(caller.completed(item) for item in some))
        done += len(some)
        total = choose.randint(1, 9)
        await one.send(set_slots=set_slots(total))
        await one.beat()
        totals.append(total)
        # The peak is taken when tasks come. They come under a bound that stood when they were
        # planned, which is after the tasks before them were sent, and SetSlots does not take back.
        assert one.peak <= max(totals[since:])
        if len(one.assigned) > count:
            count, since = len(one.assigned), max(len(totals) - 3, 0)
        one.peak = 0
    await one.close()


async def test_pause__while_paused__gives_nothing_and_takes_reports(apart: Caller) -> None:
    await apart.enqueue(count=3)
    one = await RawWorker.open(apart)
    await one.tasks()
    await one.accept()
    await one.send(pause=stream.Pause(paused=True))
    assert await one.report(caller.completed(one.assigned[0])) == ["RECORDED"]
    await one.nothing_comes()
    await one.send(pause=stream.Pause(paused=False))
    await one.tasks(2)
    await one.close()


async def test_report__stale_token_of_a_task_that_is_out__frees_no_slot(
    apart: Caller,
) -> None:
    await apart.enqueue()
    one = await RawWorker.open(apart)
    await one.tasks()
    await one.accept()
    first = one.assigned[0]
    await one.report(caller.released(first))
    # The same task comes again, under another token.
    await one.tasks(2)
    await one.accept()
    await apart.enqueue(count=3)
    assert await one.report(caller.completed(first)) == ["LEASE_LOST"]
    await one.nothing_comes()
    assert len(one.out) == 1
    await one.close()


async def test_report__refused_item__frees_no_slot(apart: Caller) -> None:
    await apart.enqueue(count=3)
    one = await RawWorker.open(apart)
    await one.tasks()
    await one.accept()
    bare = worker.Result(task_id=one.assigned[0].task_id, lease_token=one.token)
    assert await one.report(bare) == ["REFUSED"]
    one.out[one.assigned[0].task_id] = one.assigned[0]
    await one.nothing_comes()
    assert await one.report(caller.completed(one.assigned[0])) == ["RECORDED"]
    await one.tasks(2)
    await one.close()


@pytest.mark.parametrize("slots", [1, 50])
async def test_heartbeat__many_reports_in_flight__is_answered(apart: Caller, slots: int) -> None:
    await apart.enqueue(count=200)
    one = await RawWorker.open(apart, slots=slots)
    await one.until(lambda: bool(one.out))
    for _ in range(3):
        await one.accept()
        reports = [one.report(caller.completed(item)) for item in list(one.out.values())]
        beats = [one.beat(*{item.lease_token for item in one.out.values()}) for _ in range(20)]
        await asyncio.gather(*reports, *beats)
        await one.until(lambda: bool(one.out))
    assert one.peak <= slots
    await one.close()
