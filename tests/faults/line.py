"""A wire that is slow, or swallows everything without ending a connection."""

import asyncio
import contextlib
from typing import Literal

from tests.protocol.wire import Wire

_ORDER_SECONDS = 1e-6


class Line(Wire):
    """A wire with a delay each way, and with holes.

    Attributes:
        delay: Seconds that bytes are under way, in each direction; may change at any time.
        joined_at: When each connection was made, by the loop's clock.
    """

    def __init__(self, target: str, *, delay: float = 0.0) -> None:
        super().__init__(target)
        self.delay = delay
        self.joined_at: list[float] = []
        self._holes: set[asyncio.StreamWriter] = set()
        self._nears: set[asyncio.StreamWriter] = set()

    def swallow(self, towards: Literal["both", "client", "server"] = "both") -> None:
        """Lets nothing pass on the connections that stand; no end sees it."""
        if towards != "client":
            self._holes |= self._ends - self._nears
        if towards != "server":
            self._holes |= self._ends & self._nears

    async def _joined(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.joined_at.append(asyncio.get_running_loop().time())
        self._nears.add(writer)
        try:
            await super()._joined(reader, writer)
        except OSError:  # nobody listens there: the client learns it as it would without the line
            writer.transport.abort()

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        arrives_at = 0.0

        def arrive(data: bytes) -> None:
            if sink not in self._holes and not sink.is_closing():
                sink.write(data)

        with contextlib.suppress(OSError):
            while data := await source.read(65536):
                # Nothing overtakes what was sent before it, also when the delay shrinks.
                arrives_at = max(arrives_at + _ORDER_SECONDS, loop.time() + self.delay)
                loop.call_at(arrives_at, arrive, data)
        if sink not in self._holes:
            loop.call_later(max(self.delay, arrives_at - loop.time()), sink.transport.abort)
