"""Workflow functions on a real server with real workers: what a program sees."""

import asyncio
import collections
import datetime
import functools
import threading
from collections.abc import AsyncIterator

import grpc
import pytest
import pytest_asyncio

from tenure import (
    App,
    AsyncClient,
    BlockedReason,
    Context,
    KeyTaken,
    NotCheckpointed,
    NotFound,
    RunCancelled,
    RunFailed,
    RunState,
    RunTimedOut,
    StepKind,
    SyncContext,
    Worker,
)
from tests.eventually import eventually_async, eventually_awaited
from tests.fix_server import RunningServer
from tests.sdk.relay import Relay


@pytest.fixture
def app(server: RunningServer) -> App:
    return App("runs", server.address, server.namespace)


@pytest.fixture
def client(server: RunningServer) -> AsyncClient:
    return AsyncClient(server.address, server.namespace)


@pytest_asyncio.fixture
async def relay(server: RunningServer) -> AsyncIterator[Relay]:
    made = Relay(server.address)
    await made.start()
    yield made
    await made.stop()


async def reaches(client: AsyncClient, run_id: str, state: RunState) -> None:
    """Waits until a run is in a state."""

    async def there() -> bool:
        return (await client.get_run(run_id)).state is state

    assert await eventually_awaited(there, seconds=20), (await client.get_run(run_id)).state


async def test_start__steps_and_a_task__gives_the_result_and_its_steps(app: App) -> None:
    calls: list[str] = []

    def reserve(order: int) -> str:
        calls.append("reserve")
        return f"stock-{order}"

    @app.task
    def charge(order: int) -> int:
        calls.append("charge")
        return order * 100

    @app.workflow
    async def fulfil(ctx: Context, order: int) -> str:
        stock = await ctx.step(reserve, order)
        paid = await ctx.task(charge, order)
        return f"{stock} paid {paid}"

    async with Worker(app):
        handle = await fulfil.using(key="order-7", attributes={"customer": "c"}).astart(7)
        assert await handle.aresult(20) == "stock-7 paid 700"
        status = await handle.astatus(payloads=True)
        steps = await handle.asteps()
    assert calls == ["reserve", "charge"]
    assert (status.state, status.key, status.step_count) == (RunState.COMPLETED, "order-7", 2)
    assert status.attributes == {"customer": "c"}
    assert status.version == fulfil.declaration.version
    assert status.input is not None
    assert status.input.json() == {"order": 7}
    assert [(each.id, each.name, each.kind) for each in steps] == [
        ("1", "reserve", StepKind.CALL),
        ("2", "charge", StepKind.TASK),
    ]
    assert steps[0].output is not None
    assert steps[0].output.json() == "stock-7"


async def test_start__blocking_forms_and_a_def_workflow__do_the_same(app: App) -> None:
    @app.workflow
    def double(ctx: SyncContext, number: int) -> int:
        return ctx.step(lambda: number * 2)

    def blocking() -> None:
        with Worker(app):
            handle = double.start(21)
            assert handle.result(20) == 42
            assert double.handle(handle.id).status().state is RunState.COMPLETED
            assert [each.kind for each in handle.steps()] == [StepKind.CALL]
            assert handle.cancel() is RunState.COMPLETED

    await asyncio.to_thread(blocking)


async def test_start__under_a_key__answers_with_the_same_run_and_refuses_another(app: App) -> None:
    @app.workflow
    async def echo(ctx: Context, text: str) -> str:
        return text

    keyed = echo.using(key="k")
    first, second = await keyed.astart("a"), await keyed.astart("a")
    assert (first.id, first.existing, second.existing) == (second.id, False, True)
    with pytest.raises(KeyTaken):
        await keyed.astart("b")
    assert (await echo.handle(key="k").astatus()).id == first.id
    with pytest.raises(NotFound):
        await echo.handle(key="other").astatus()
    async with Worker(app):
        assert await echo.handle(key="k").aresult(20) == "a"


async def test_start__delay_and_a_run_that_raises__are_told(app: App) -> None:
    @app.workflow
    async def fail(ctx: Context) -> None:
        raise ValueError("no stock")

    async with Worker(app):
        handle = await fail.using(delay=0.5).astart()
        assert (await handle.astatus()).state is RunState.DELAYED
        with pytest.raises(RunFailed) as caught:
            await handle.aresult(20)
    assert (caught.value.failure.type, caught.value.failure.message) == ("ValueError", "no stock")


async def test_start_many__three_hundred_runs__all_end(app: App) -> None:
    @app.workflow
    async def square(ctx: Context, number: int) -> int:
        return await ctx.step(lambda: number**2)

    handles = await square.astart_many((number,) for number in range(300))
    async with Worker(app):
        found = await asyncio.gather(*(each.aresult(60) for each in handles))
    assert found == [number**2 for number in range(300)]


async def test_sleep__longer_than_memory_keeps_it__goes_on_in_another_activation(app: App) -> None:
    begun: list[str] = []

    @app.workflow
    async def nap(ctx: Context) -> float:
        begun.append(ctx.run_id)
        before = ctx.now()
        await ctx.sleep(0.1)
        await ctx.sleep(datetime.timedelta(seconds=2))
        return (ctx.now() - before).total_seconds()

    async with Worker(app):
        handle = await nap.astart()
        assert await handle.aresult(30) >= 2.1
        status = await handle.astatus()
        steps = await handle.asteps()
    assert len(begun) == status.activation_count == 2
    assert [each.kind for each in steps] == [StepKind.SLEEP, StepKind.SLEEP]


async def test_child__run_that_takes_long__suspends_the_parent_and_wakes_it(
    app: App, client: AsyncClient
) -> None:
    @app.workflow
    async def child(ctx: Context, seconds: float) -> str:
        await ctx.sleep(seconds)
        return ctx.parent_run_id

    @app.workflow
    async def parent(ctx: Context) -> list[str]:
        slow = await ctx.start(child, 3)
        return [await ctx.child(child, 0), await slow]

    async with Worker(app):
        handle = await parent.astart()
        await reaches(client, handle.id, RunState.WAITING)
        assert await handle.aresult(30) == [handle.id, handle.id]
        children = (await client.list_runs(parent_run_id=handle.id)).items
    assert {each.root_run_id for each in children} == {handle.id}
    assert {each.state for each in children} == {RunState.COMPLETED}


async def test_map__a_hundred_tasks__gives_results_in_order(app: App) -> None:
    @app.task
    def square(number: int) -> int:
        return number**2

    @app.workflow
    async def squares(ctx: Context, count: int) -> list[int]:
        return await ctx.map(square, range(count))

    async with Worker(app):
        handle = await squares.astart(100)
        assert await handle.aresult(60) == [number**2 for number in range(100)]
        assert (await handle.astatus()).step_count == 100


async def test_task__awaited_by_a_worker_with_one_slot__runs_in_it(app: App) -> None:
    @app.task
    def inner(number: int) -> int:
        return number + 1

    @app.workflow
    async def outer(ctx: Context, number: int) -> int:
        return await ctx.task(inner, await ctx.task(inner, number))

    async with Worker(app, concurrency=1, activations=1):
        handles = await outer.astart_many([(1,), (10,)])
        assert [await each.aresult(30) for each in handles] == [3, 12]


async def test_gather__steps_and_tasks_at_once__keep_their_branches(app: App) -> None:
    calls: collections.Counter[str] = collections.Counter()

    @app.task
    async def remote(name: str) -> str:
        return f"{name} remote"

    async def local(name: str) -> str:
        calls[name] += 1
        await asyncio.sleep(0.01)  # tidy: lets the branches interleave
        return name

    async def both(ctx: Context, name: str) -> str:
        await ctx.step(local, name)
        return await ctx.task(remote, name)

    @app.workflow
    async def fan(ctx: Context) -> list[str]:
        found = await asyncio.gather(*(both(ctx, name) for name in "abc"))
        # The second activation replays the branches.
        await ctx.sleep(2)
        return found

    async with Worker(app):
        handle = await fan.astart()
        assert await handle.aresult(30) == ["a remote", "b remote", "c remote"]
        ids = {each.id for each in await handle.asteps()}
    assert calls == {"a": 1, "b": 1, "c": 1}
    assert ids == {"1", "1.1", "1.2", "2.1", "2.2", "3.1", "3.2"}


async def test_call__of_a_task_or_step_inside_a_workflow__is_refused(app: App) -> None:
    @app.task
    def charge() -> int:
        return 1

    @app.step
    def reserve() -> int:
        return 1

    @app.workflow
    async def wrong(ctx: Context) -> list[str]:
        refused = []
        for function in (charge, reserve):
            try:
                function()
            except NotCheckpointed as exc:
                refused.append(str(exc))
        return refused

    assert charge() + reserve() == 2
    async with Worker(app):
        first, second = await (await wrong.astart()).aresult(20)
    assert "ctx.task(charge, ...)" in first
    assert "ctx.step(reserve, ...)" in second


@pytest.mark.parametrize("suspended", [False, True])
async def test_cancel__run_that_waits__lets_it_clean_up_once(
    app: App, client: AsyncClient, *, suspended: bool
) -> None:
    cleaned: list[str] = []

    @app.workflow
    async def careful(ctx: Context) -> None:
        try:
            if suspended:
                await ctx.sleep(datetime.timedelta(days=1))
            else:
                # What is no verb of the context keeps it in memory.
                async with asyncio.timeout(3600):
                    await ctx.sleep(86_400)
        finally:
            await ctx.step(cleaned.append, "cleaned")

    async with Worker(app):
        handle = await careful.astart()
        await reaches(client, handle.id, RunState.WAITING if suspended else RunState.RUNNING)
        assert await eventually_awaited(handle.asteps, seconds=20)
        await handle.acancel("nobody wants it")
        with pytest.raises(RunCancelled) as caught:
            await handle.aresult(30)
        kinds = [each.kind for each in await handle.asteps()]
    assert cleaned == ["cleaned"]
    assert kinds == [StepKind.SLEEP, StepKind.CALL]
    assert caught.value.failure is not None
    assert "nobody wants it" in caught.value.failure.message


async def test_timeout__run_that_waits_for_long__ends_it(app: App) -> None:
    @app.workflow(timeout=2)
    async def slow(ctx: Context) -> None:
        await ctx.sleep(3600)

    async with Worker(app):
        handle = await slow.astart()
        with pytest.raises(RunTimedOut):
            await handle.aresult(30)


async def test_replay__changed_code__blocks_and_goes_on_with_the_right_one_once_resumed(
    server: RunningServer, client: AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    calls: list[str] = []

    def app_of(first: str) -> App:
        app = App("shop", server.address, version="v1")

        def old() -> None:
            calls.append("old")

        def new() -> None:
            calls.append("new")

        @app.workflow
        async def fulfil(ctx: Context) -> str:
            await ctx.step(old if first == "old" else new)
            await ctx.sleep(2)
            return "done"

        return app

    before, after = app_of("old"), app_of("new")
    async with Worker(before):
        handle = await before.workflows["fulfil"].astart()
        await reaches(client, handle.id, RunState.WAITING)
    async with Worker(after):
        await reaches(client, handle.id, RunState.BLOCKED)
        status = await handle.astatus()
    assert status.blocked is BlockedReason.HISTORY_MISMATCH
    assert status.failure is not None
    assert "'old'" in status.failure.message
    assert "'new'" in status.failure.message
    said = [record for record in caplog.records if "is BLOCKED until" in record.getMessage()]
    assert [(record.levelname, handle.id in record.getMessage()) for record in said] == [
        ("ERROR", True)
    ]
    async with Worker(before):
        assert await client.resume_runs([handle.id]) == [RunState.QUEUED]
        assert await handle.aresult(30) == "done"
    assert calls == ["old"]


async def test_close__run_in_the_middle__goes_on_with_another_worker(
    app: App, client: AsyncClient
) -> None:
    calls: list[str] = []
    gate = threading.Event()

    def first() -> None:
        calls.append("first")

    def second() -> None:
        calls.append("second")
        gate.wait(20)

    @app.workflow
    async def flow(ctx: Context) -> str:
        await ctx.step(first)
        await ctx.step(second)
        return "done"

    worker = Worker(app)
    worker.start()
    handle = await flow.astart()
    assert await eventually_async(lambda: "second" in calls)
    await worker.aclose(grace=0.1)
    assert (await client.get_run(handle.id)).state is RunState.QUEUED
    gate.set()
    async with Worker(app):
        assert await handle.aresult(30) == "done"
    # The step that was cut off is done again; the recorded one is not.
    assert calls == ["first", "second", "second"]


async def test_stream__breaks_again_and_again__records_each_step_once(
    server: RunningServer, relay: Relay
) -> None:
    app = App("runs", relay.address)
    calls: collections.Counter[int] = collections.Counter()

    def local(number: int) -> int:
        calls[number] += 1
        return number

    @app.task
    def remote(number: int) -> int:
        return number

    @app.workflow
    async def flow(ctx: Context, count: int) -> int:
        total = 0
        for number in range(count):
            total += await ctx.step(local, number)
            if number % 4 == 0:
                total += await ctx.task(remote, 100)
        return total

    def reached(count: int) -> bool:
        return len(calls) >= count

    producer = App("runs", server.address)
    handle = producer.workflow(name="flow")(flow.declaration.function)
    async with Worker(app):
        started = await handle.astart(16)
        for count in (4, 8, 12):
            assert await eventually_async(functools.partial(reached, count), seconds=20)
            relay.break_streams(grpc.StatusCode.UNAVAILABLE)
        assert await started.aresult(40) == sum(range(16)) + 400
        status = await started.astatus()
    assert set(calls.values()) == {1}
    assert (status.activation_count, status.step_count) == (1, 20)


async def test_lease__lost_while_the_function_runs__drops_it_and_records_nothing_more(
    server: RunningServer, relay: Relay, client: AsyncClient
) -> None:
    calls: list[str] = []
    gate = threading.Event()

    def app_of(name: str, address: str, gate: threading.Event | None) -> App:
        app = App(name, address)

        def first() -> None:
            calls.append(f"first by {name}")

        def second() -> None:
            calls.append(f"second by {name}")

        @app.workflow
        async def flow(ctx: Context) -> str:
            await ctx.step(first)
            if gate is not None:
                calls.append("one waits")
                try:
                    # Not a verb: the function stays in memory, with a branch that is not idle.
                    await asyncio.to_thread(gate.wait, 30)
                finally:
                    calls.append(f"left by {name}")
            await ctx.step(second)
            return name

        return app

    one, two = app_of("one", relay.address, gate), app_of("two", server.address, None)
    async with Worker(one):
        handle = await two.workflows["flow"].astart()
        assert await eventually_async(lambda: "one waits" in calls)
        relay.refuse(grpc.StatusCode.UNAVAILABLE)
        relay.break_streams(grpc.StatusCode.UNAVAILABLE)
        async with Worker(two):
            assert await handle.aresult(40) == "two"
        relay.refuse(None)
        # Before anybody lets it go on: the lease is gone, and that is all it takes.
        assert await eventually_async(lambda: "left by one" in calls, seconds=20)
        gate.set()
        assert (await client.get_run(handle.id)).state is RunState.COMPLETED
        assert [each.name for each in await handle.asteps()] == ["first", "second"]
    assert calls == ["first by one", "one waits", "second by two", "left by one"]
