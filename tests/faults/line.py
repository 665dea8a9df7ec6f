"""A wire that is slow, or swallows everything without ending a connection."""

import asyncio
import contextlib

from tests.protocol.wire import Wire


class Line(Wire):
    """A wire with a delay each way, and with holes.

    Attributes:
        delay: Seconds that bytes are under way, in each direction.
        joined_at: When each connection was made, by the loop's clock.
    """

    def __init__(self, target: str, *, delay: float = 0.0) -> None:
        super().__init__(target)
        self.delay = delay
        self.joined_at: list[float] = []
        self._holes: set[asyncio.StreamWriter] = set()

    def swallow(self) -> None:
        """Lets nothing pass on the connections that stand; no end sees it."""
        self._holes |= self._ends

    async def _joined(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.joined_at.append(asyncio.get_running_loop().time())
        await super()._joined(reader, writer)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()

        def arrive(data: bytes) -> None:
            if sink not in self._holes and not sink.is_closing():
                sink.write(data)

        with contextlib.suppress(OSError):
            while data := await source.read(65536):
                loop.call_later(self.delay, arrive, data)
        if sink not in self._holes:
            loop.call_later(self.delay, sink.transport.abort)
