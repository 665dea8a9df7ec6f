"""A relay for the Work stream: passes bytes on to a real server, and breaks streams on demand."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio

METHOD = "/tenure.v1.WorkerService/Work"


class _Stream:
    """One relayed stream and what is wrong with it."""

    def __init__(self) -> None:
        self.silent = False
        self.deaf = False
        self.broken: asyncio.Future[grpc.StatusCode] = asyncio.get_running_loop().create_future()


class Relay:
    """Stands between a worker and a server.

    Attributes:
        address: Where the worker connects to.
        opened_count: Streams that were opened so far.
    """

    def __init__(self, upstream: str) -> None:
        self.upstream = upstream
        self.address = ""
        self.opened_count = 0
        self._server = grpc.aio.server()
        self._streams: set[_Stream] = set()
        self._refusal: grpc.StatusCode | None = None

    async def start(self, address: str = "127.0.0.1:0") -> None:
        """Starts to listen, on a free port unless told otherwise."""
        handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.stream_stream_rpc_method_handler(
            self._work
        )
        self._server.add_generic_rpc_handlers(
            [grpc.method_handlers_generic_handler("tenure.v1.WorkerService", {"Work": handler})]
        )
        self.address = f"127.0.0.1:{self._server.add_insecure_port(address)}"
        await self._server.start()

    async def stop(self) -> None:
        """Ends all streams and stops to listen."""
        self.break_streams(grpc.StatusCode.UNAVAILABLE)
        await self._server.stop(0.2)

    def silence(self) -> None:
        """Lets nothing pass any more on the streams that are open, without ending them."""
        for each in self._streams:
            each.silent = True

    def deafen(self) -> None:
        """Lets nothing pass from the server to the worker on the streams that are open."""
        for each in self._streams:
            each.deaf = True

    def refuse(self, code: grpc.StatusCode | None) -> None:
        """Ends streams that are opened from now on at once; None lets them pass again."""
        self._refusal = code

    def break_streams(self, code: grpc.StatusCode) -> None:
        """Ends every stream with a status; OK is a plain end."""
        for each in self._streams:
            if not each.broken.done():
                each.broken.set_result(code)

    async def _work(
        self, requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext[Any, Any]
    ) -> None:
        self.opened_count += 1
        if self._refusal is not None:
            await context.abort(self._refusal, "the test refuses streams")
        stream = _Stream()
        self._streams.add(stream)
        metadata = [(key, value) for key, value in context.invocation_metadata() or ()]
        own = [pair for pair in metadata if pair[0].startswith("tenure-")]
        async with grpc.aio.insecure_channel(
            self.upstream, options=[("grpc.use_local_subchannel_pool", 1)]
        ) as channel:
            call: Any = channel.stream_stream(METHOD)(metadata=own)

            async def up() -> None:
                async for message in requests:
                    if not stream.silent:
                        await call.write(message)
                await call.done_writing()

            async def down() -> None:
                while (message := await call.read()) is not grpc.aio.EOF:
                    if not stream.silent and not stream.deaf:
                        await context.write(message)

            parts = [asyncio.create_task(up()), asyncio.create_task(down())]
            ends: list[asyncio.Future[Any]] = [parts[1], stream.broken]
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            for part in parts:
                part.cancel()
                with contextlib.suppress(asyncio.CancelledError, grpc.aio.AioRpcError):
                    await part
            call.cancel()
        self._streams.discard(stream)
        if stream.broken.done() and stream.broken.result() is not grpc.StatusCode.OK:
            await context.abort(stream.broken.result(), "the test broke the stream")
