"""Cancelled, released and dropped activations."""

import asyncio
import threading
from datetime import timedelta

import pytest

from tenure import CancelRequested
from tenure.v1 import worker_pb2
from tenure.workflow import activation
from tenure.workflow.context import Context
from tenure.workflow.sync_context import SyncContext
from tests.eventually import eventually_async
from tests.sdk.workflow.storage import Flow, Storage, add, turn

DAY = timedelta(days=1)


def note(text: str, said: list[str]) -> None:
    said.append(text)


async def cancelled(storage: Storage, flow: Flow, reason: str = "too old") -> worker_pb2.Result:
    """Runs an activation that is cancelled as soon as it begins, as one that was woken for it."""
    running = asyncio.create_task(storage.activate(flow))
    await turn()
    assert storage.alive is not None
    storage.alive.cancel(reason)
    result = await running
    assert result is not None
    return result


async def test_cancel__a_run_that_waits__is_told_where_it_waits_and_cleans_up() -> None:
    said = list[str]()

    async def flow(ctx: Context) -> None:
        await ctx.step(note, "began", said)
        try:
            await ctx.sleep(DAY)
        except asyncio.CancelledError as exc:
            assert ctx.cancelled
            said.append(f"told: {exc}, {ctx.cancel_reason}")
            await ctx.step(note, "cleaned up", said)
            raise

    storage = Storage()
    assert await storage.activate(Flow(flow)) is not None
    result = await cancelled(storage, Flow(flow))
    assert result.cancelled.failure.message == "too old"
    assert said == ["began", "told: too old, too old", "cleaned up"]
    assert list(storage.steps) == ["1", "2", "3"]


async def test_cancel__the_next_step_is_new__is_told_before_it_runs() -> None:
    said = list[str]()

    async def flow(ctx: Context) -> None:
        await ctx.step(note, "first", said)
        try:
            await ctx.step(note, "never", said)
        finally:
            await ctx.step(note, "cleaned up", said)

    storage = Storage()
    storage.kill_at = 1
    assert await storage.activate(Flow(flow)) is None
    result = await cancelled(storage, Flow(flow))
    assert result.WhichOneof("outcome") == "cancelled"
    assert said == ["first", "cleaned up"]


async def test_cancel__branches_under_way__all_are_told_through_the_function() -> None:
    said = list[str]()

    async def branch(ctx: Context, name: str) -> None:
        try:
            await ctx.task(add, 1)
        finally:
            await ctx.step(note, name, said)

    async def flow(ctx: Context) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(branch(ctx, "a"))
            group.create_task(branch(ctx, "b"))

    storage = Storage()
    storage.held = {"child-1.1", "child-2.1"}
    assert await storage.activate(Flow(flow)) is not None
    result = await cancelled(storage, Flow(flow))
    assert result.WhichOneof("outcome") == "cancelled"
    assert sorted(said) == ["a", "b"]


async def test_cancel__the_function_returns_all_the_same__has_completed() -> None:
    async def flow(ctx: Context) -> str:
        try:
            await ctx.sleep(DAY)
        except asyncio.CancelledError:
            return "kept"
        return "slept"

    storage = Storage()
    await storage.activate(Flow(flow))
    assert storage.output(await cancelled(storage, Flow(flow))) == "kept"


async def test_cancel__a_task_of_the_clean_up_takes_long__is_not_suspended() -> None:
    async def flow(ctx: Context) -> None:
        try:
            await ctx.sleep(DAY)
        finally:
            await ctx.task(add, 1)

    storage = Storage()
    await storage.activate(Flow(flow))
    storage.random.seed(1)
    result = await cancelled(storage, Flow(flow))
    assert result.WhichOneof("outcome") == "cancelled"
    assert "child-2" in storage.over


async def test_cancel__a_def_workflow_that_waits__raises_from_the_verb_and_cleans_up() -> None:
    said = list[str]()

    def flow(ctx: SyncContext) -> None:
        branch = ctx.thread(ctx.sleep, DAY)
        try:
            branch.result()
        except CancelRequested as exc:
            said.append(f"told: {exc}")
            ctx.step(note, "cleaned up", said)
            raise

    storage = Storage()
    assert await storage.activate(Flow(flow)) is not None
    result = await cancelled(storage, Flow(flow))
    assert result.cancelled.failure.message == "too old"
    assert said == ["told: too old", "cleaned up"]


async def test_cancel__a_def_workflow_at_a_new_step__raises_before_it_runs() -> None:
    said, go_on = list[str](), threading.Event()

    def flow(ctx: SyncContext) -> None:
        assert go_on.wait(10)
        ctx.step(note, "never", said)

    storage = Storage()
    running = asyncio.create_task(storage.activate(Flow(flow)))
    await eventually_async(lambda: storage.alive)
    assert storage.alive is not None
    storage.alive.cancel("enough")
    go_on.set()
    result = await running
    assert result is not None
    assert result.cancelled.failure.message == "enough"
    assert said == []


async def test_cancel__a_def_workflow_whose_wait_is_over_by_then__raises_from_the_next_verb(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(activation, "SUSPEND_AFTER", 60.0)
    said = list[str]()

    def flow(ctx: SyncContext) -> None:
        said.append(str(ctx.task(add, 5)))
        ctx.step(note, "never", said)

    storage = Storage()
    storage.held = {"child-1"}
    running = asyncio.create_task(storage.activate(Flow(flow)))
    await eventually_async(lambda: storage.waits)
    assert storage.alive is not None
    storage.alive.resolve([storage.finish("child-1")])
    storage.alive.cancel("enough")
    result = await running
    assert result is not None
    assert (result.WhichOneof("outcome"), said) == ("cancelled", ["5"])


async def test_raise__cancelled_error_without_a_request__has_failed() -> None:
    async def flow(ctx: Context) -> None:
        raise asyncio.CancelledError

    result = await Storage().activate(Flow(flow))
    assert result is not None
    assert result.failed.failure.type == "CancelledError"


@pytest.mark.parametrize("how", ["release", "drop"])
async def test_release_and_drop__all_kinds_of_waits__unwind_and_record_nothing_more(
    how: str,
) -> None:
    ended, busy = list[str](), asyncio.Event()

    async def work() -> None:
        busy.set()
        await asyncio.Event().wait()

    async def foreign() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            ended.append("foreign")

    async def waits(ctx: Context) -> None:
        try:
            await ctx.task(add, 1)
        finally:
            ended.append("waits")
            await ctx.step(note, "never", ended)

    async def works(ctx: Context) -> None:
        try:
            await ctx.step(work)
        except BaseException as exc:
            ended.append(type(exc).__name__)
            raise

    async def flow(ctx: Context) -> None:
        await asyncio.gather(foreign(), waits(ctx), works(ctx))

    storage = Storage()
    storage.held = {"child-2.1"}
    running = asyncio.create_task(storage.activate(Flow(flow)))
    await busy.wait()
    await eventually_async(lambda: storage.waits)
    assert storage.alive is not None
    getattr(storage.alive, how)()
    result = await running
    assert (result is None) == (how == "drop")
    if result is not None:
        assert result.WhichOneof("outcome") == "released"
    assert sorted(ended) == ["Suspended", "foreign", "waits"]
    assert list(storage.steps) == ["2.1"]


async def test_run__the_port_raises__gives_the_run_back() -> None:
    async def flow(ctx: Context) -> None:
        try:
            await ctx.step(note, "once", [])
        except Exception as exc:
            raise AssertionError("the function does not see it") from exc

    storage = Storage()
    storage.broken = ConnectionError("no server")
    result = await storage.activate(Flow(flow))
    assert result is not None
    assert result.WhichOneof("outcome") == "released"


async def test_run__branches_left_behind__are_cancelled_at_the_end() -> None:
    ended = list[str]()

    async def behind(ctx: Context) -> None:
        try:
            await ctx.sleep(DAY)
        finally:
            ended.append("behind")

    async def flow(ctx: Context) -> str:
        task = asyncio.create_task(behind(ctx))
        await ctx.step(note, "one", [])
        assert not task.done()
        return "over"

    storage = Storage()
    started_at = asyncio.get_running_loop().time()
    result = await storage.run(Flow(flow))
    assert storage.output(result) == "over"
    assert ended == ["behind"]
    assert asyncio.get_running_loop().time() - started_at < activation.UNWIND_SECONDS
