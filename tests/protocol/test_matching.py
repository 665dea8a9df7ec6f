"""Rule 11 and row 27: names are part of matching, and push and poll share one order."""

import asyncio

import pytest

from tenure.v1 import registry_service_pb2 as registry
from tests.eventually import eventually_async
from tests.protocol import caller
from tests.protocol.caller import Caller
from tests.protocol.raw_worker import RawWorker

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_assign__task_without_a_worker__blocks_nobody_in_its_queue(apart: Caller) -> None:
    stuck = await apart.enqueue("nobody", count=50, priority=100)
    served = await apart.enqueue("work", count=5)
    one = await RawWorker.open(apart, slots=10)
    await one.tasks(5)
    assert [item.task_id for item in one.assigned] == served
    await one.nothing_comes()
    assert await apart.state(stuck[0]) == "READY"
    assert not (await apart.lease("other", count=10)).assignments
    await one.close()


async def test_assign__several_workers__gives_each_only_what_it_serves(apart: Caller) -> None:
    workers = {
        names: await RawWorker.open(apart, *names, slots=100)
        for names in (("a",), ("b", "red/a"), ("red/c", "a"))
    }
    for queue in ("default", "red"):
        for name in ("a", "b", "c", "A", "a "):
            await apart.enqueue(name, queue=queue, count=4)
    expected = {("default", "a"), ("default", "b"), ("red", "a"), ("red", "c")}
    await asyncio.gather(
        workers["red/c", "a"].until(
            lambda: any(item.name == "c" for item in workers["red/c", "a"].assigned)
        ),
        workers["b", "red/a"].tasks(8),
    )
    given = set()
    for names, one in workers.items():
        served = {
            (queue or "default", name) for queue, _, name in (n.rpartition("/") for n in names)
        }
        got = {(item.queue, item.name) for item in one.assigned}
        assert got <= served
        given |= got
    assert given == expected
    for one in workers.values():
        await one.close()


async def test_assign__open_without_queue__serves_the_default_queue(apart: Caller) -> None:
    await apart.enqueue(queue="default")
    await apart.enqueue(queue="")
    one = await RawWorker.open(apart, slots=5)
    assert [item.queue for item in await one.tasks(2)] == ["default", "default"]
    await one.close()


async def in_order(client: Caller, *, push: bool, count: int) -> list[str]:
    """Takes tasks one by one; gives their ids in the order of hand-out."""
    order: list[str] = []
    if push:
        one = await RawWorker.open(client, "a", "b")
        for number in range(count):
            item = (await one.tasks(number + 1))[number]
            order.append(item.task_id)
            await one.accept()
            await one.report(caller.completed(item))
        await one.close()
        return order
    for _ in range(count):
        item = (await client.lease("a", "b")).assignments[0]
        order.append(item.task_id)
        await client.report(caller.completed(item))
    return order


async def backlog(client: Caller) -> list[str]:
    """Enqueues tasks of three priorities; gives their ids in the order in which they are due."""
    by_priority: dict[int, list[str]] = {}
    for _ in range(4):
        for priority in (0, 5, -7):
            ids = await client.enqueue("a", count=2, priority=priority)
            by_priority.setdefault(priority, []).extend(ids)
    return by_priority[5] + by_priority[0] + by_priority[-7]


async def test_assign__backlog_and_new_tasks__is_by_priority_then_first_in_first_out(
    apart: Caller,
) -> None:
    expected = await backlog(apart)
    assert await in_order(apart, push=True, count=24) == expected


async def test_lease__backlog__is_by_priority_then_first_in_first_out(apart: Caller) -> None:
    expected = await backlog(apart)
    assert await in_order(apart, push=False, count=24) == expected


async def test_assign__push_and_poll_together__follow_one_order(apart: Caller) -> None:
    expected = await backlog(apart)
    one = await RawWorker.open(apart, "a", slots=1)
    order: list[str] = []
    for number in range(12):
        item = (await one.tasks(number + 1))[number]
        order.append(item.task_id)
        await one.accept()
        # While the stream holds its only slot, the poll is next.
        polled = (await apart.lease("a")).assignments[0]
        order.append(polled.task_id)
        await apart.report(caller.completed(polled))
        await one.report(caller.completed(item))
    assert order == expected
    await one.close()


async def test_assign__new_tasks_arrive_steadily__never_overtake_the_backlog(
    apart: Caller,
) -> None:
    expected = await apart.enqueue("a", count=30)
    one = await RawWorker.open(apart, "a", slots=3)
    order: list[str] = []
    while len(order) < 60:
        await one.until(lambda: bool(one.out))
        out = list(one.out.values())
        order += [item.task_id for item in out]
        await one.accept()
        if len(expected) < 60:
            expected += await apart.enqueue("a")
        await one.report(*map(caller.completed, out))
    assert order == expected[: len(order)]
    await one.close()


async def test_assign__urgent_task_of_another_lane__goes_first(apart: Caller) -> None:
    low = await apart.enqueue("a", count=3)
    one = await RawWorker.open(apart, "a", "b")
    await one.tasks()
    urgent = (await apart.enqueue("b", priority=50))[0]
    await one.accept()
    await one.report(caller.completed(one.assigned[0]))
    await one.tasks(2)
    assert [item.task_id for item in one.assigned] == [low[0], urgent]
    await one.close()


async def test_assign__mixed_priorities_of_two_lanes__goes_on_without_a_pause(
    apart: Caller,
) -> None:
    # A pick of one priority that comes back short must not put the rest of its lane to sleep.
    await apart.enqueue("a", priority=9)
    await apart.enqueue("a", count=5)
    await apart.enqueue("b", count=5)
    one = await RawWorker.open(apart, "a", "b", slots=20)
    await one.tasks(11, seconds=0.6)
    await one.close()


async def test_assign__paused_queue__gives_nothing_until_it_is_open(apart: Caller) -> None:
    one = await RawWorker.open(apart, "slow/work", "work", slots=5)
    await apart.registry.SetQueue(
        registry.SetQueueRequest(name="slow", paused=True), metadata=apart.metadata
    )
    await apart.enqueue(queue="slow")
    await apart.enqueue()
    assert [item.queue for item in await one.tasks()] == ["default"]
    await one.nothing_comes()
    assert not (await apart.lease("slow/work")).assignments
    await apart.registry.SetQueue(
        registry.SetQueueRequest(name="slow", paused=False), metadata=apart.metadata
    )
    await one.tasks(2, seconds=2.5)
    await one.close()


async def test_assign__delayed_task__comes_when_its_time_has_come(apart: Caller) -> None:
    task_id = (await apart.enqueue(delay=caller.seconds(0.7)))[0]
    one = await RawWorker.open(apart)
    assert await apart.state(task_id) == "DELAYED"
    await one.nothing_comes(seconds=0.3)
    await one.tasks(seconds=2)
    await one.close()


async def test_assign__more_workers_than_one_look_takes_in__each_gets_its_turn(
    apart: Caller,
) -> None:
    """A cycle looks at 200 free workers of a lane: those that no pick was made for the longest."""
    workers = await asyncio.gather(*(RawWorker.open(apart) for _ in range(230)))
    for turn in (1, 2):
        await apart.enqueue(count=len(workers))
        await asyncio.gather(*(one.tasks(turn) for one in workers))
        assert {len(one.assigned) for one in workers} == {turn}
        for one in workers:
            await one.report(*(caller.completed(item) for item in one.out.values()))
    await asyncio.gather(*(one.close() for one in workers))


async def test_assign__fewer_tasks_than_workers__go_to_who_had_none_for_longest(
    apart: Caller,
) -> None:
    workers = await asyncio.gather(*(RawWorker.open(apart) for _ in range(12)))
    for _ in range(9):
        await apart.enqueue(count=4)
        assert await eventually_async(lambda: sum(bool(one.out) for one in workers) == 4)
        for one in workers:
            if one.out:
                await one.report(*(caller.completed(item) for item in one.out.values()))
    assert {len(one.assigned) for one in workers} == {3}
    await asyncio.gather(*(one.close() for one in workers))
