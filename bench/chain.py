"""The floor of latency: the hops and commits of a task, with nothing of Tenure in between.

A client calls a server (grpc.aio, unary), which commits one row on a thread, and answers; commits
a second time, as a lease, and sends the row's number on a worker's stream; the worker (another
process) sends it back with the time at which it came, and the server commits a third time. Each
commit is one prepared statement outside a transaction block, on a connection of its own kind. A
queue on this stack that loses nothing does at least that for each task.

python -m bench.chain serve DSN | work ADDRESS, for `measure`.
"""

import asyncio
import contextlib
import struct
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import grpc
import psycopg
from grpc import aio

from bench import rig

_SERVICE: Final = "bench.Chain"
_SENT: Final = struct.Struct("!q")
_BACK: Final = struct.Struct("!qd")
_TABLE: Final = "create table if not exists chain (number bigint primary key, taken boolean)"
_PUT: Final = "insert into chain (number, taken) values (%s, false)"
_TAKE: Final = "update chain set taken = true where number = %s"
_END: Final = "delete from chain where number = %s"


class _Commits:
    """Runs one statement, again and again, on a thread and a connection of its own."""

    def __init__(self, dsn: str, statement: str) -> None:
        self._conn = psycopg.connect(dsn, autocommit=True, prepare_threshold=0)
        self._statement = statement
        self._executor = ThreadPoolExecutor(1)

    async def run(self, number: int) -> float:
        """Commits for one number; gives when that began."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, self._run, number)

    def _run(self, number: int) -> float:
        began_at = time.time()
        self._conn.execute(self._statement, (number,))
        return began_at


class _Service:
    """The server of the chain."""

    def __init__(self, dsn: str) -> None:
        with psycopg.connect(dsn, autocommit=True) as conn:
            conn.execute(_TABLE)
        self._put, self._take, self._end = (_Commits(dsn, text) for text in (_PUT, _TAKE, _END))
        self._given: asyncio.Queue[int] = asyncio.Queue()
        self._back: dict[int, asyncio.Future[bytes]] = {}

    async def put(self, request: bytes, _: object) -> bytes:
        """Stores a number."""
        (number,) = _SENT.unpack(request)
        self._back[number] = asyncio.get_running_loop().create_future()
        await self._put.run(number)
        self._given.put_nowait(number)
        return b""

    async def told(self, request: bytes, _: object) -> bytes:
        """Answers with the times of a number once it has ended."""
        (number,) = _SENT.unpack(request)
        return await self._back[number]

    async def work(self, requests: AsyncIterator[bytes], context: Any) -> None:
        """Sends numbers to a worker, and ends those that come back."""

        async def send() -> None:
            while True:
                number = await self._given.get()
                await self._take.run(number)
                await context.write(_SENT.pack(number))

        async def end(number: int, started_at: float) -> None:
            ended_at = await self._end.run(number)
            self._back[number].set_result(struct.pack("!dd", started_at, ended_at))

        await context.send_initial_metadata(())
        ending: set[asyncio.Task[None]] = {asyncio.create_task(send())}
        async for message in requests:
            task = asyncio.create_task(end(*_BACK.unpack(message)))
            ending.add(task)
            task.add_done_callback(ending.discard)


async def _serve(dsn: str) -> None:
    service = _Service(dsn)
    handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
        "Put": grpc.unary_unary_rpc_method_handler(service.put),
        "Told": grpc.unary_unary_rpc_method_handler(service.told),
        "Work": grpc.stream_stream_rpc_method_handler(service.work),
    }
    server = aio.server()
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(_SERVICE, handlers)])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(f"127.0.0.1:{port}", flush=True)
    await server.wait_for_termination()


async def _work(address: str) -> None:
    async with aio.insecure_channel(address) as channel:
        call: Any = channel.stream_stream(f"/{_SERVICE}/Work")()
        await call.wait_for_connection()
        print("ready", flush=True)
        while (message := await call.read()) is not aio.EOF:
            await call.write(_BACK.pack(*_SENT.unpack(message), time.time()))


class Chain:
    """A client of the chain."""

    def __init__(self, channel: aio.Channel) -> None:
        self._put: Any = channel.unary_unary(f"/{_SERVICE}/Put")
        self._told: Any = channel.unary_unary(f"/{_SERVICE}/Told")

    async def follow(self, number: int) -> dict[str, float]:
        """Does one number; gives when what happened, by the names of `bench.latency`."""
        at = {"called": time.time()}
        await self._put(_SENT.pack(number))
        at["enqueued"] = time.time()
        at["started"], at["ended"] = struct.unpack("!dd", await self._told(_SENT.pack(number)))
        at["known"] = time.time()
        return at


@contextlib.contextmanager
def running(dsn: str) -> Iterator[str]:
    """Runs server and worker; gives the server's address."""

    def started(*words: str) -> tuple[subprocess.Popen[bytes], str]:
        command = [sys.executable, "-m", "bench.chain", *words]
        process = subprocess.Popen(command, cwd=rig.ROOT, stdout=subprocess.PIPE)
        said = process.stdout.readline().decode().strip() if process.stdout else ""
        return process, said

    server, address = started("serve", dsn)
    with rig.stopped(server):
        worker, _ = started("work", address)
        with rig.stopped(worker):
            yield address


def _main() -> None:
    parts: dict[str, Callable[[str], Any]] = {"serve": _serve, "work": _work}
    asyncio.run(parts[sys.argv[1]](sys.argv[2]))


if __name__ == "__main__":
    _main()
