"""Tasks end to end: enqueued, run by a worker, answered, on a real server."""

import asyncio
import dataclasses
import datetime
import logging
import uuid
from typing import Any

import pytest

import tenure
from tenure import (
    App,
    AsyncClient,
    EnqueueManyFailed,
    KeyTaken,
    NewTask,
    NonRetryable,
    NotFound,
    Reschedule,
    ResultTimeout,
    Retry,
    RetryAfter,
    TaskCancelled,
    TaskFailed,
    TaskState,
    Worker,
    current_task,
)
from tests.fix_server import RunningServer

FAST = Retry(3, initial_delay=0.05, jitter=0)


@dataclasses.dataclass
class Order:
    id: uuid.UUID
    at: datetime.datetime
    lines: dict[str, int]
    blob: bytes = b""


@pytest.fixture
def app(server: RunningServer) -> App:
    return App("test", server.address, server.namespace)


async def test_enqueue__typed_arguments__come_back_typed(app: App) -> None:
    @app.task
    def echo(order: Order, *, number: int = 2**70) -> tuple[Order, int]:
        assert isinstance(order, Order)
        return order, number

    @app.task
    async def echo_later(order: Order) -> Order:
        await asyncio.sleep(0)  # tidy: gives the loop a turn, waits for nothing
        return order

    order = Order(uuid.uuid4(), datetime.datetime.now(datetime.UTC), {"a\0b": 2**53 + 1}, b"\xff\0")
    async with Worker(app):
        assert await (await echo.aenqueue(order)) == (order, 2**70)
        assert await (await echo_later.aenqueue(order=order)) == order


async def test_enqueue_many__thousands__are_all_answered_in_order(app: App) -> None:
    @app.task
    def double(a: int) -> int:
        return 2 * a

    handles = await double.aenqueue_many((number,) for number in range(2_500))
    async with Worker(app):
        done = [handle async for handle in tenure.aas_completed(handles, 60)]
        assert {handle.id for handle in done} == {handle.id for handle in handles}
        assert [await handle for handle in handles] == [2 * number for number in range(2_500)]


async def test_enqueue_many__blocking_forms__work_in_a_thread(app: App) -> None:
    @app.task
    def double(a: int) -> int:
        return 2 * a

    def blocking() -> list[int]:
        with Worker(app):
            handles = double.enqueue_many([(1,), {"a": 2}])
            assert [handle.wait(10) for handle in handles] == [TaskState.COMPLETED] * 2
            return sorted(handle.result() for handle in tenure.as_completed(handles, 10))

    assert await asyncio.to_thread(blocking) == [2, 4]


async def test_enqueue__many_callers_at_once__share_calls(app: App) -> None:
    @app.task
    def double(a: int) -> int:
        return 2 * a

    handles = await asyncio.gather(*(double.aenqueue(number) for number in range(500)))
    async with Worker(app):
        assert await asyncio.gather(*handles) == [2 * number for number in range(500)]


async def test_result__handler_raises__has_type_message_stack_and_cause(app: App) -> None:
    attempts: list[int] = []

    @app.task(retry=FAST)
    def fail() -> None:
        attempts.append(current_task().attempt)
        try:
            raise KeyError("inner\0")  # noqa: TRY301 - a cause is what is tested
        except KeyError as exc:
            raise ValueError("outer \ud800") from exc

    async with Worker(app):
        with pytest.raises(TaskFailed) as caught:
            await (await fail.aenqueue()).aresult(20)
    failure = caught.value.failure
    assert failure.type == "ValueError"
    assert failure.message == "outer \\ud800"
    assert "in fail" in failure.stack
    assert failure.cause is not None
    assert failure.cause.type == "KeyError"
    assert attempts == [1, 2, 3]


@pytest.mark.parametrize("kind", ["unless class", "unless name", "non-retryable"])
async def test_result__failure_that_must_not_be_retried__ends_at_once(app: App, kind: str) -> None:
    attempts: list[int] = []

    @app.task(retry=Retry(3, initial_delay=0.05, unless=[LookupError, "ZeroDivisionError"]))
    def fail(kind: str) -> None:
        attempts.append(current_task().attempt)
        if kind == "unless class":
            raise KeyError(kind)
        if kind == "unless name":
            raise ZeroDivisionError(kind)
        raise NonRetryable(kind, details={"code": 7})

    async with Worker(app):
        with pytest.raises(TaskFailed) as caught:
            await (await fail.aenqueue(kind)).aresult(20)
    assert attempts == [1]
    if kind == "non-retryable":
        assert caught.value.failure.details == {"code": 7}


async def test_handler__reschedules_and_retries_later__is_run_again(app: App) -> None:
    @app.task(retry=Retry(2, initial_delay=60))
    async def again() -> list[Any]:
        task = current_task()
        if task.delivery == 1:
            raise Reschedule(0.05, {"page": [2]})
        if task.attempt == 1:
            details = task.details
            assert details == {"page": [2]}
            raise RetryAfter(0.05)
        return [task.attempt, task.delivery, task.max_attempts]

    async with Worker(app):
        assert await (await again.aenqueue()).aresult(20) == [2, 3, 2]


async def test_result__not_in_time__says_so_and_the_task_goes_on(app: App) -> None:
    @app.task
    def never() -> None: ...

    handle = await never.aenqueue()
    for timeout in (0, 0.05):
        with pytest.raises(ResultTimeout):
            await handle.aresult(timeout)
    with pytest.raises(ResultTimeout):
        [done async for done in tenure.aas_completed([handle], 0.05)]
    assert await handle.astate() is TaskState.READY
    with pytest.raises(NotFound):
        await never.handle(str(uuid.uuid4())).aresult(5)


async def test_cancel__waiting_task__is_over_at_once(app: App) -> None:
    @app.task
    def never() -> None: ...

    handle = await never.using(delay=3_600).aenqueue()
    assert await handle.astate() is TaskState.DELAYED
    assert await handle.acancel("not needed") is TaskState.CANCELLED
    with pytest.raises(TaskCancelled):
        await handle


async def test_cancel__running_handlers__are_told(app: App) -> None:
    started = asyncio.Queue[str]()
    loop = asyncio.get_running_loop()
    cleaned: list[str] = []

    @app.task
    def sync() -> None:
        loop.call_soon_threadsafe(started.put_nowait, "sync")
        try:
            while True:
                current_task().heartbeat({"still": "here"})
        finally:
            cleaned.append("sync")

    @app.task
    async def coroutine() -> None:
        loop.call_soon_threadsafe(started.put_nowait, "coroutine")
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.append("coroutine")

    async with Worker(app):
        for task in (sync, coroutine):
            handle = await task.aenqueue()
            await asyncio.wait_for(started.get(), 10)
            await handle.acancel("enough")
            with pytest.raises(TaskCancelled):
                await handle.aresult(10)
    assert sorted(cleaned) == ["coroutine", "sync"]


async def test_using__key__answers_with_the_same_task_or_refuses(app: App) -> None:
    @app.task
    def pay(amount: int) -> None: ...

    first = await pay.using(key="order-1").aenqueue(5)
    again = await pay.using(key="order-1").aenqueue(5)
    assert (again.id, first.existing, again.existing) == (first.id, False, True)
    with pytest.raises(KeyTaken) as caught:
        await pay.using(key="order-1").aenqueue(6)
    assert caught.value.existing_task_id == first.id


async def test_enqueue_many__one_is_refused__others_are_stored(app: App) -> None:
    # Longer than the server takes, and the client leaves the bounds of these to it.
    @app.task(retry=Retry(unless=["x" * 300]))
    def long_name() -> None: ...

    with pytest.raises(EnqueueManyFailed) as caught:
        await long_name.aenqueue_many([(), ()])
    assert sorted(caught.value.errors) == [0, 1]
    assert caught.value.handles == [None, None]


async def test_worker__name_it_does_not_know__is_not_failed(
    app: App, server: RunningServer
) -> None:
    @app.task
    def known() -> int:
        return 1

    client = AsyncClient(server.address, server.namespace)
    unknown = await client.enqueue(NewTask(name="somebody else's"))
    async with Worker(app):
        assert await (await known.aenqueue()) == 1
        details = await client.get_task(unknown.id)
    assert details.task.state is TaskState.READY
    assert details.deliveries == []


async def test_handler__logs__carry_the_task(app: App, caplog: pytest.LogCaptureFixture) -> None:
    @app.task
    def talk() -> None:
        current_task().logger.warning("hello")

    async with Worker(app):
        handle = await talk.aenqueue()
        await handle
    (record,) = [each for each in caplog.records if each.name == "tenure.task"]
    assert record.levelno == logging.WARNING
    assert record.__dict__["task_id"] == handle.id
