"""Where verbs may be called, and what is refused inside a workflow."""

import asyncio
import threading
import warnings
from collections.abc import Callable
from typing import Any

import pytest

from tenure.errors import BranchUnknown, NotCheckpointed
from tenure.workflow.branches import Branch, extents, running
from tenure.workflow.calls import Step, StepOptions
from tenure.workflow.context import Context
from tenure.workflow.sync_context import SyncContext
from tests.sdk.workflow.storage import EPOCH, Flow, Storage, add


def plain(value: int = 1) -> int:
    return value + 1


declared: Step[[int], int] = Step(plain, StepOptions(name="declared"))


async def result_of(function: Callable[..., Any]) -> Any:
    storage = Storage()
    return storage.output(await storage.run(Flow(function)))


async def test_take_id__verbs_of_branches__are_paths_taken_at_the_call() -> None:
    async def branch(ctx: Context, count: int) -> None:
        for _ in range(count):
            await ctx.step(plain)

    async def flow(ctx: Context) -> None:
        late = ctx.step(plain, 1)
        await ctx.step(plain, 2)
        await asyncio.gather(branch(ctx, 1), branch(ctx, 2))
        async with asyncio.TaskGroup() as group:
            group.create_task(_nested(ctx))
        await late

    async def _nested(ctx: Context) -> None:
        await asyncio.create_task(branch(ctx, 1))

    storage = Storage()
    await storage.run(Flow(flow))
    assert sorted(storage.steps) == ["1", "1.1", "2", "2.1", "2.2", "3.1.1"]
    assert list(storage.steps)[-1] == "1"


async def test_take_id__very_deep_branches__stay_short_and_apart() -> None:
    async def down(ctx: Context, depth: int) -> None:
        await ctx.step(plain)
        if depth:
            await asyncio.create_task(down(ctx, depth - 1))

    async def flow(ctx: Context) -> None:
        await down(ctx, 120)

    storage = Storage()
    await storage.run(Flow(flow))
    assert len(storage.steps) == 121
    assert max(map(len, storage.steps)) <= 200


def test_extents__paths__are_the_highest_numbers_of_steps_and_branches() -> None:
    found = extents(["1", "2", "10", "3.1", "3.2.7", "4.1.1"])
    assert found[""] == (10, 4)
    assert (found["3"], found["3.2"]) == ((1, 2), (7, 0))
    branch = Branch("run", "", lambda path: found.get(path, (0, 0)), EPOCH)
    for _ in range(10):
        assert branch.replaying
        branch.take_id()
    assert branch.replaying
    for _ in range(4):
        branch.child()
    assert not branch.replaying


async def test_call__a_task_or_step_inside_a_workflow__is_refused_and_says_how() -> None:
    async def flow(ctx: Context) -> list[str]:
        told = []
        for function in (add, declared):
            try:
                function(1)
            except NotCheckpointed as exc:
                told.append(str(exc))
        return told

    task, step = await result_of(flow)
    assert "ctx.task(add, ...)" in task
    assert "ctx.step(add, ...)" in task
    assert "ctx.step(declared, ...)" in step
    assert (add(1), declared(1)) == (2, 2)


async def test_call__a_task_inside_a_step__is_a_plain_function() -> None:
    def blocking() -> int:
        return add(1) + declared(1)

    async def awaiting() -> int:
        return await asyncio.create_task(inner())

    async def inner() -> int:
        assert running.get() is None
        return add(2)

    async def flow(ctx: Context) -> list[int]:
        return [
            await ctx.step(blocking),
            await ctx.step(awaiting),
            await ctx.step(add, 5),
            await ctx.step(declared, 6),
        ]

    storage = Storage()
    assert storage.output(await storage.run(Flow(flow))) == [4, 3, 6, 7]
    assert [step.name for step in storage.steps.values()] == [
        "blocking",
        "awaiting",
        "add",
        "declared",
    ]


async def test_verb__in_a_step_a_callback_or_a_foreign_task__is_refused() -> None:
    told: list[str] = []
    asked: asyncio.Queue[Context] = asyncio.Queue()
    answered = asyncio.Event()

    def attempt(ctx: Context) -> None:
        try:
            ctx.step(plain).close()
        except BranchUnknown:
            told.append(threading.current_thread().name.split("-", maxsplit=1)[0])

    async def foreign() -> None:
        attempt(await asked.get())
        answered.set()

    async def in_step(ctx: Context) -> None:
        attempt(ctx)

    async def flow(ctx: Context) -> None:
        await ctx.step(attempt, ctx)
        await ctx.step(in_step, ctx)
        asyncio.get_running_loop().call_soon(attempt, ctx)
        await asyncio.to_thread(attempt, ctx)
        asked.put_nowait(ctx)
        await answered.wait()

    task = asyncio.create_task(foreign())
    storage = Storage()
    await storage.run(Flow(flow))
    await task
    assert len(told) == 5
    assert sorted(storage.steps) == ["1", "2"]


async def test_verb__in_a_thread_that_is_no_branch__is_refused() -> None:
    def flow(ctx: SyncContext) -> str:
        told: list[str] = []

        def attempt() -> None:
            try:
                ctx.step(plain)
            except BranchUnknown as exc:
                told.append(str(exc))

        thread = threading.Thread(target=attempt)
        thread.start()
        thread.join()
        return told[0]

    assert "ctx.thread" in await result_of(flow)


async def test_verb__blocking_inside_a_loop__is_refused() -> None:
    def flow(ctx: SyncContext) -> str:
        async def inner() -> str:
            try:
                ctx.step(plain)
            except RuntimeError as exc:
                return type(exc).__name__
            return "none"

        return asyncio.run(inner())

    assert await result_of(flow) == "BlockingCallInLoop"


async def test_await__a_verb_twice__is_refused_by_python_and_the_handle_gives_again() -> None:
    async def flow(ctx: Context) -> list[Any]:
        verb = ctx.step(plain, 1)
        found: list[Any] = [await verb]
        try:
            await verb
        except RuntimeError as exc:
            found.append(str(exc))
        handle = await ctx.start(add, 7)
        return [*found, await handle, await handle, await handle.result()]

    storage = Storage()
    output = storage.output(await storage.run(Flow(flow)))
    assert output == [2, "cannot reuse already awaited coroutine", 7, 7, 7]
    assert list(storage.steps) == ["1", "2"]


async def test_await__never__keeps_its_place_and_python_warns() -> None:
    async def flow(ctx: Context) -> int:
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            ctx.step(plain, 1)  # type: ignore[unused-coroutine] # what the test is about
        assert "never awaited" in str(seen[0].message)
        return await ctx.step(plain, 2)

    storage = Storage()
    storage.kill_at = 1
    assert storage.output(await storage.run(Flow(flow))) == 3
    assert list(storage.steps) == ["2"]


async def test_create_task__on_the_loop_of_others__is_no_branch() -> None:
    async def flow(ctx: Context) -> int:
        return await ctx.step(plain)

    await result_of(flow)
    seen = []

    async def other() -> None:
        seen.append(running.get())

    await asyncio.create_task(other())
    assert seen == [None]


@pytest.mark.parametrize("function", [1, "plain", None])
async def test_step__no_function__is_refused(function: Any) -> None:
    async def flow(ctx: Context) -> None:
        await ctx.step(function)

    result = await Storage().run(Flow(flow))
    assert result.failed.failure.type == "WrongType"
