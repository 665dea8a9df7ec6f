"""The I/O thread, and the misuse that it refuses."""

import asyncio
import contextvars
import threading

import pytest

from tenure import (
    App,
    BlockingCallInLoop,
    Client,
    NoCurrentTask,
    Unavailable,
    Worker,
    connection,
    current_task,
    methods,
)
from tenure.io_thread import io_thread
from tenure.v1 import admin_service_pb2

app = App("test", "127.0.0.1:1")


@app.task
def noop() -> None: ...


async def test_blocking_forms__inside_a_loop__name_the_awaitable_one() -> None:
    handle = noop.handle("some id")
    for call, name in [
        (noop.enqueue, "noop.aenqueue"),
        (lambda: noop.enqueue_many([()]), "noop.aenqueue_many"),
        (handle.result, "aresult"),
        (handle.wait, "await_"),
        (handle.state, "astate"),
        (handle.cancel, "acancel"),
        (Client("127.0.0.1:1").list_workers, "AsyncClient.list_workers"),
        (Worker(app).close, "Worker.aclose"),
        (Worker(app).run, "async with Worker"),
    ]:
        with pytest.raises(BlockingCallInLoop, match=name.replace(".", r"\.")):
            call()


def test_current_task__outside_a_handler__says_so() -> None:
    with pytest.raises(NoCurrentTask):
        current_task()


def test_run__exception_of_the_coroutine__is_raised_here() -> None:
    async def fail() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        io_thread.run(fail())


def test_call__no_server__says_address_and_way_out() -> None:
    link = connection.connect(Client("127.0.0.1:1").target)
    call = link.call(
        methods.LIST_WORKERS, admin_service_pb2.ListWorkersRequest(), total_seconds=0.2
    )
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1:1.*tenure dev") as caught:
        io_thread.run(call)
    assert caught.value.address == "127.0.0.1:1"


_said: contextvars.ContextVar[int] = contextvars.ContextVar("said", default=-1)


async def test_arun__many_callers_at_once__each_gets_its_own_answer_or_error() -> None:
    async def work(number: int) -> tuple[int, int, str]:
        if number % 10 == 7:
            raise KeyError(number)
        if number % 3 == 0:
            await asyncio.to_thread(int)  # ends in another pass of the loop than its neighbours
        return number, _said.get(), threading.current_thread().name

    async def ask(number: int) -> tuple[int, int, str]:
        _said.set(number)
        return await io_thread.arun(work(number))

    answers = await asyncio.gather(*map(ask, range(500)), return_exceptions=True)
    for number, answer in enumerate(answers):
        if number % 10 == 7:
            assert isinstance(answer, KeyError)
            assert answer.args == (number,)
        else:
            assert answer == (number, number, "tenure-io")


async def test_arun__caller_cancelled__the_coroutine_is_cancelled_too_and_its_mates_are_not() -> (
    None
):
    begun, ended = threading.Event(), threading.Event()

    async def work() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async def mate() -> str:
        await asyncio.to_thread(ended.wait, 10)
        return "done"

    asked = [asyncio.create_task(io_thread.arun(each)) for each in (work(), mate())]
    assert await asyncio.to_thread(begun.wait, 10)
    asked[0].cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked[0]
    assert await asked[1] == "done"
    assert ended.is_set()


def test_arun__callers_on_loops_that_come_and_go__are_answered() -> None:
    async def work(number: int) -> int:
        return number

    async def ask() -> list[int]:
        return await asyncio.gather(*(io_thread.arun(work(number)) for number in range(20)))

    def go(found: list[list[int]]) -> None:
        found.extend(asyncio.run(ask()) for _ in range(20))

    found: list[list[int]] = []
    threads = [threading.Thread(target=go, args=(found,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert found == [list(range(20))] * 80
