"""A wire between a client and a server that can be cut."""

import asyncio
import contextlib
from typing import Self


class Wire:
    """Listens, forwards bytes both ways, and breaks connections without a word."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = host, int(port)
        self._server: asyncio.Server | None = None
        self._ends: set[asyncio.StreamWriter] = set()
        self._pumps: set[asyncio.Task[None]] = set()
        self.address = ""

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._joined, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.close()
        self.cut()
        if self._pumps:
            await asyncio.wait(set(self._pumps))

    def cut(self) -> None:
        """Breaks every connection that stands."""
        for end in self._ends:
            end.transport.abort()
        self._ends.clear()

    async def _joined(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(*self._target)
        self._ends |= {writer, far_writer}
        loop = asyncio.get_running_loop()
        for source, sink in ((reader, far_writer), (far_reader, writer)):
            pump = loop.create_task(self._pump(source, sink))
            self._pumps.add(pump)
            pump.add_done_callback(self._pumps.discard)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(65536):
                sink.write(data)
                await sink.drain()
        sink.transport.abort()
