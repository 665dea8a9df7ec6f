"""Counts the round trips between a server and PostgreSQL, by standing between them.

A round trip begins when a connection asks after it was answered last: statements that are sent
together, without waiting for each other's answers, are one.
"""

import asyncio
import contextlib
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

from psycopg import conninfo

_BYTES = 1 << 16


class Turns:
    """What went through so far."""

    def __init__(self) -> None:
        self.count = 0
        self._target = ""

    async def serve(self, path: str, target: str, ready: threading.Event) -> None:
        """Passes connections on for ever."""
        self._target = target
        async with await asyncio.start_unix_server(self._connected, path) as listener:
            ready.set()
            await listener.serve_forever()

    async def _connected(self, client: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        server, forth = await asyncio.open_unix_connection(self._target)
        asking = False

        async def ask() -> None:
            nonlocal asking
            while data := await client.read(_BYTES):
                if not asking:
                    self.count += 1
                asking = True
                forth.write(data)
                await forth.drain()

        async def answer() -> None:
            nonlocal asking
            while data := await server.read(_BYTES):
                asking = False
                back.write(data)
                await back.drain()

        ways = [asyncio.create_task(ask()), asyncio.create_task(answer())]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            # A side that is gone has nothing more to say.
            await asyncio.gather(*ways, return_exceptions=True)
            back.close()
            forth.close()


@contextlib.contextmanager
def between(dsn: str) -> Iterator[tuple[str, Turns]]:
    """Gives the conninfo of a way to the same database that is counted, and its counter."""
    parts = conninfo.conninfo_to_dict(dsn)
    name = f".s.PGSQL.{parts['port']}"
    target = str(Path(str(parts["host"])) / name)
    turns = Turns()
    loop = asyncio.new_event_loop()
    ready = threading.Event()
    with tempfile.TemporaryDirectory(prefix="tenure-turns-") as folder:

        def run() -> None:
            with contextlib.suppress(asyncio.CancelledError):
                loop.run_until_complete(serving)

        serving = loop.create_task(turns.serve(str(Path(folder) / name), target, ready))
        thread = threading.Thread(target=run)
        thread.start()
        try:
            if not ready.wait(10):
                raise RuntimeError("nothing listens between the server and PostgreSQL")
            yield conninfo.make_conninfo(dsn, host=folder), turns
        finally:
            loop.call_soon_threadsafe(serving.cancel)
            thread.join()
            loop.close()
