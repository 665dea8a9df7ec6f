"""The I/O thread, and the misuse that it refuses."""

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
