"""A function that waits for long leaves memory, and comes back to the same place."""

import asyncio
import contextlib
import gc
import weakref
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from tenure.workflow.context import Context
from tenure.workflow.sync_context import SyncContext
from tests import eventually
from tests.sdk.workflow.storage import Flow, Storage, add

DAY = timedelta(days=1)


def note(text: str, said: list[str]) -> None:
    said.append(text)


async def test_suspend__finally_with_a_step_around_a_long_sleep__cleans_up_once() -> None:
    said, entered = list[str](), list[str]()

    async def flow(ctx: Context) -> str:
        try:
            await ctx.step(note, "began", said)
            await ctx.sleep(DAY)
        finally:
            entered.append("finally")
            await ctx.step(note, "cleaned up", said)
        return "slept"

    storage = Storage()
    assert storage.output(await storage.run(Flow(flow))) == "slept"
    assert said == ["began", "cleaned up"]
    assert entered == ["finally", "finally"]
    assert storage.activation_count == 2
    assert [step.name for step in storage.steps.values()] == ["note", "sleep", "note"]


async def test_suspend__a_def_workflow_with_finally__cleans_up_once() -> None:
    said = list[str]()

    def flow(ctx: SyncContext) -> str:
        try:
            ctx.sleep(DAY)
        finally:
            ctx.step(note, "cleaned up", said)
        return "slept"

    storage = Storage()
    assert storage.output(await storage.run(Flow(flow))) == "slept"
    assert (said, storage.activation_count) == (["cleaned up"], 2)


async def test_suspend__only_sleeps_longer_than_the_limit__is_at_once() -> None:
    async def flow(ctx: Context) -> None:
        await asyncio.gather(ctx.sleep(DAY), ctx.sleep(60), ctx.sleep(3600))

    storage = Storage()
    started_at = asyncio.get_running_loop().time()
    result = await storage.activate(Flow(flow))
    assert asyncio.get_running_loop().time() - started_at < 5
    assert result is not None
    assert not result.suspended.waits
    assert 59 < result.suspended.wake_after.ToTimedelta().total_seconds() <= 60


async def test_suspend__tasks_that_are_not_over__names_a_set_a_wait() -> None:
    async def flow(ctx: Context) -> None:
        handles = [await ctx.start(add, value) for value in range(3)]
        await asyncio.gather(
            ctx.wait_any(handles), ctx.task(add, 5), ctx.map(add, range(4)), ctx.sleep(DAY)
        )

    storage = Storage()
    storage.held = {f"child-{each}" for each in ("1", "2", "3", "5")}
    storage.held |= {f"child-1.{each}" for each in range(1, 5)}
    result = await storage.activate(Flow(flow))
    assert result is not None
    waits = [(list(one.child_ids), one.needed_count) for one in result.suspended.waits]
    assert sorted(waits) == [
        (["child-1", "child-2", "child-3"], 1),
        ([f"child-1.{each}" for each in range(1, 5)], 4),
        (["child-5"], 1),
    ]


async def test_suspend__map_with_a_limit__wakes_for_half_of_it() -> None:
    async def flow(ctx: Context) -> list[int]:
        return await ctx.map(add, range(9), limit=4)

    storage = Storage()
    storage.held = {f"child-1.{each}" for each in range(1, 10)}
    result = await storage.activate(Flow(flow))
    assert result is not None
    (one,) = result.suspended.waits
    assert (len(one.child_ids), one.needed_count) == (4, 2)
    assert storage.output(await storage.run(Flow(flow))) == list(range(9))


async def _swallow(ctx: Context) -> None:
    with contextlib.suppress(BaseException):
        await ctx.sleep(DAY)


async def _swallow_in_finally(ctx: Context) -> int:
    try:
        await ctx.sleep(DAY)
    finally:
        return 1  # noqa: B012 - the fault of the test


async def _swallow_gathered(ctx: Context) -> None:
    with contextlib.suppress(BaseException):
        await asyncio.gather(ctx.sleep(DAY), ctx.sleep(DAY))


async def _swallow_awaited(ctx: Context) -> None:
    task = asyncio.create_task(_pause(ctx))
    with contextlib.suppress(BaseException):
        await task


async def _swallow_in_a_branch(ctx: Context) -> None:
    await asyncio.gather(_swallow(ctx), ctx.sleep(DAY))


async def _swallow_in_a_group(ctx: Context) -> None:
    with contextlib.suppress(BaseException):
        async with asyncio.TaskGroup() as group:
            group.create_task(_pause(ctx))


async def _replace(ctx: Context) -> None:
    try:
        await ctx.sleep(DAY)
    except BaseException as exc:
        raise RuntimeError("replaced") from exc


async def _pause(ctx: Context) -> None:
    await ctx.sleep(DAY)


def _swallow_blocking(ctx: SyncContext) -> None:
    with contextlib.suppress(BaseException):
        ctx.sleep(DAY)


@pytest.mark.parametrize(
    ("function", "place"),
    [
        (_swallow, (2, "_swallow")),
        (_swallow_in_finally, (2, "_swallow_in_finally")),
        (_swallow_gathered, (2, "_swallow_gathered")),
        (_swallow_awaited, (3, "_swallow_awaited")),
        (_swallow_in_a_group, (2, "_swallow_in_a_group")),
        (_replace, (2, "_replace")),
        (_swallow_blocking, (2, "_swallow_blocking")),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
async def test_suspend__swallowed__fails_and_names_the_line(
    function: Callable[..., Any], place: tuple[int, str]
) -> None:
    offset, name = place
    result = await Storage().activate(Flow(function))
    assert result is not None
    failure = result.failed.failure
    assert failure.type == "SuspendedSwallowed"
    line = function.__code__.co_firstlineno + offset
    assert f"{__file__}:{line}, in {name}" in failure.message


async def test_suspend__swallowed_in_a_branch__names_the_line_of_the_branch() -> None:
    result = await Storage().activate(Flow(_swallow_in_a_branch))
    assert result is not None
    line = _swallow.__code__.co_firstlineno + 2
    assert f"{__file__}:{line}, in _swallow" in result.failed.failure.message


async def _collected(ctx: Context) -> int:
    return len(await asyncio.gather(ctx.sleep(DAY), ctx.sleep(60), return_exceptions=True))


async def _waited(ctx: Context) -> int:
    done, _ = await asyncio.wait([asyncio.create_task(_pause(ctx)) for _ in range(2)])
    return len(done)


async def _grouped(ctx: Context) -> int:
    async with asyncio.TaskGroup() as group:
        group.create_task(_pause(ctx))
        group.create_task(_pause(ctx))
    return 2


async def _with_an_event(ctx: Context) -> int:
    event = asyncio.Event()

    async def second() -> int:
        await event.wait()
        return 2

    async def first() -> None:
        await ctx.sleep(DAY)
        event.set()

    found, _ = await asyncio.gather(second(), first())
    return found


async def _with_a_queue_and_a_lock(ctx: Context) -> int:
    queue, lock = asyncio.Queue[int](), asyncio.Lock()

    async def take() -> int:
        return await queue.get()

    async def give(value: int) -> None:
        async with lock:
            await ctx.sleep(DAY)
            queue.put_nowait(value)

    async with asyncio.TaskGroup() as group:
        taken = [group.create_task(take()) for _ in range(2)]
        for _ in range(2):
            group.create_task(give(1))
    return sum(task.result() for task in taken)


@pytest.mark.parametrize(
    "function", [_collected, _waited, _grouped, _with_an_event, _with_a_queue_and_a_lock]
)
async def test_suspend__branches_that_wait_for_each_other__leave_and_come_back(
    function: Callable[[Context], Awaitable[int]],
) -> None:
    storage = Storage()
    first = await storage.activate(Flow(function))
    assert first is not None
    assert first.WhichOneof("outcome") == "suspended"
    assert storage.output(await storage.run(Flow(function))) == 2


async def test_suspend__something_of_its_own_is_awaited__stays_in_memory_until_that_is_over() -> (
    None
):
    own = asyncio.Event()
    gate = asyncio.get_running_loop().create_future()

    async def flow(ctx: Context) -> None:
        async def foreign() -> None:
            own.set()
            await gate

        await asyncio.gather(foreign(), ctx.sleep(DAY))

    running = asyncio.create_task(Storage().activate(Flow(flow)))
    await own.wait()
    await eventually.time_passes(seconds=0.1)
    assert not running.done()
    gate.set_result(None)
    result = await running
    assert result is not None
    assert result.WhichOneof("outcome") == "suspended"


async def test_suspend__a_timer_of_its_own__is_waited_for() -> None:
    async def flow(ctx: Context) -> str:
        try:
            async with asyncio.timeout(0.05):
                await ctx.task(add, 1)
        except TimeoutError:
            return "too late"
        return "in time"

    storage = Storage()
    storage.held = {"child-1"}
    result = await storage.activate(Flow(flow))
    assert result is not None
    assert storage.output(result) == "too late"


async def test_suspend__looked_at_while_the_functions_timer_fires__waits_for_what_it_brings() -> (
    None
):
    looked = list[bool]()

    async def flow(ctx: Context) -> str:
        loop, alive = asyncio.get_running_loop(), storage.alive
        assert alive is not None
        waiting = asyncio.create_task(wait(ctx))

        def look() -> None:
            # As the loop has it: the timer is due, and its callback has not run.
            alive._consider()
            looked.append(True)
            waiting.cancel()

        when = loop.time() + 0.02
        loop.call_at(when, look)
        try:
            await waiting
        except asyncio.CancelledError:
            return "too late"
        return "in time"

    async def wait(ctx: Context) -> None:
        await ctx.task(add, 1)

    storage = Storage()
    storage.held = {"child-1.1"}
    result = await storage.activate(Flow(flow))
    assert result is not None
    assert (storage.output(result), looked) == ("too late", [True])


async def test_suspend__many_on_one_loop__nothing_stays_in_memory() -> None:
    class Ballast:
        """Something that a function holds."""

    kept: list[weakref.ref[Any]] = []

    async def flow(ctx: Context) -> None:
        ballast = Ballast()
        kept.append(weakref.ref(ballast))
        async with asyncio.TaskGroup() as group:
            group.create_task(ctx.sleep(DAY))
            group.create_task(_pause(ctx))

    def blocking(ctx: SyncContext) -> None:
        ballast = Ballast()
        kept.append(weakref.ref(ballast))
        ctx.thread(ctx.sleep, DAY).result()

    flows = [Flow(flow)] * 100 + [Flow(blocking)] * 10
    results = await asyncio.gather(*(Storage().activate(each) for each in flows))
    assert {str(result and result.WhichOneof("outcome")) for result in results} == {"suspended"}
    assert len(kept) == 110
    assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []

    def gone() -> bool:
        gc.collect()
        return not any(ref() for ref in kept)

    # A thread tells of its end before its last frame is gone.
    assert await eventually.eventually_async(gone)
