"""A worker inside a web program: it starts and stops with it, and leaves signals alone."""

import asyncio
import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest

from tenure import App, AsyncClient, Worker, WrongType, WrongValue
from tests.fix_server import RunningServer

STOPS = (signal.SIGTERM, signal.SIGINT)


def make_app(address: str) -> App:
    app = App("web", address)

    @app.task
    def double(number: int) -> int:
        return number * 2

    return app


class Web:
    """What frameworks do with a lifespan: the messages of ASGI around a context manager."""

    def __init__(self, lifespan: Callable[[object], Any]) -> None:
        self._lifespan = lifespan
        self.sent: list[str] = []

    async def serve(self, receive: Callable[[], Any]) -> None:
        assert (await receive()) == "lifespan.startup"
        async with self._lifespan(self):
            self.sent.append("lifespan.startup.complete")
            assert (await receive()) == "lifespan.shutdown"
        self.sent.append("lifespan.shutdown.complete")


async def test_lifespan__web_program_starts_and_stops__so_does_the_worker(
    server: RunningServer,
) -> None:
    app = make_app(server.address)
    client = AsyncClient(server.address)
    before = [signal.getsignal(each) for each in STOPS]
    web = Web(app.lifespan(grace=5))
    messages: asyncio.Queue[str] = asyncio.Queue()
    serving = asyncio.create_task(web.serve(messages.get))
    await messages.put("lifespan.startup")
    assert await (await app.tasks["double"].aenqueue(21)).aresult(20) == 42
    assert [each.receiving for each in await client.list_workers()] == [True]
    assert [signal.getsignal(each) for each in STOPS] == before
    await messages.put("lifespan.shutdown")
    await serving
    assert web.sent == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
    assert await client.list_workers() == []
    assert [signal.getsignal(each) for each in STOPS] == before


async def test_lifespan__loop_of_another_thread__works_there(server: RunningServer) -> None:
    app = make_app(server.address)
    results: list[int] = []

    async def main() -> None:
        async with app.lifespan(worker=Worker(app, concurrency=1))(None):
            results.append(await (await app.tasks["double"].aenqueue(4)).aresult(20))

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    await asyncio.to_thread(thread.join, 30)
    assert results == [8]


async def test_lifespan__without_a_worker_or_a_server__starts_nevertheless() -> None:
    app = make_app("127.0.0.1:1")
    before = threading.active_count()
    async with app.lifespan(worker=False)(None):
        assert threading.active_count() == before
    async with app.lifespan()(None):
        pass


async def test_lifespan__body_raises__the_worker_stops_and_the_error_passes() -> None:
    app = make_app("127.0.0.1:1")
    worker = Worker(app)
    with pytest.raises(LookupError):
        async with app.lifespan(worker=worker)(None):
            raise LookupError
    worker.start()
    await worker.aclose(0)


def test_lifespan__wrong_arguments__are_refused() -> None:
    app = make_app("127.0.0.1:1")
    with pytest.raises(WrongType, match=r"worker is True, False or a tenure\.Worker, not 'yes'"):
        app.lifespan(worker="yes")  # type: ignore[arg-type]
    with pytest.raises(WrongValue, match="worker is one of the app 'web'"):
        app.lifespan(worker=Worker(make_app("127.0.0.1:1")))
    with pytest.raises(WrongValue, match="grace is a number"):
        app.lifespan(grace=-1)
