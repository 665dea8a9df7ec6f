"""Holds many Work streams in one process: python -m bench.streams ADDRESS CHANNELS STREAMS BEAT.

STREAMS is their number on each channel, BEAT the seconds between heartbeats, 0 for none. Prints
`ready` once all are open, and keeps them open. A stream with a task accepts it and holds it; one
that broke comes back as the protocol asks, reports what it held, and takes the next.
"""

import asyncio
import contextlib
import gc
import random
import sys
from typing import Any

from grpc import aio

from bench.calls import NAME, Calls
from tenure.v1 import payload_pb2, worker_pb2
from tenure.v1 import work_stream_pb2 as messages
from tenure.v1 import worker_service_pb2 as service

_OPENING_MAX = 50
_PAUSE_SECONDS_FIRST = 1.5
_PAUSE_SECONDS_MAX = 15.0


class Held:
    """One worker with one slot."""

    def __init__(self, calls: Calls, number: int, beat_seconds: float) -> None:
        self._calls = calls
        self._name = f"raw-{number}"
        self._beat_seconds = beat_seconds
        self._session = messages.Opened()
        self._out: worker_pb2.Assignment | None = None
        self._sending = asyncio.Lock()
        self.opened = asyncio.Event()

    async def run(self) -> None:
        """Serves streams for ever."""
        failure_count = 0
        while True:
            self.opened.clear()
            with contextlib.suppress(aio.AioRpcError):
                await self._serve()
            if self.opened.is_set():
                failure_count = 0
            pause = min(_PAUSE_SECONDS_FIRST * 2**failure_count, _PAUSE_SECONDS_MAX)
            failure_count += 1
            await asyncio.sleep(random.uniform(0.03, pause))

    async def _serve(self) -> None:
        call = self._calls.work.Work()
        beat: asyncio.Task[None] | None = None
        try:
            await call.write(service.WorkRequest(open=self._open()))
            first = await call.read()
            if first is aio.EOF:
                return
            self._session = first.opened
            self.opened.set()
            if self._out is not None:
                await self._report(call, self._out)
            if self._beat_seconds:
                beat = asyncio.create_task(self._beat(call))
            while (response := await call.read()) is not aio.EOF:
                for found in response.assign.assignments:
                    self._out = found
                    accept = messages.Accept(lease_tokens=[found.lease_token])
                    await self._send(call, service.WorkRequest(accept=accept))
        finally:
            if beat is not None:
                beat.cancel()
            call.cancel()

    def _open(self) -> messages.Open:
        opening = messages.Open(
            worker=worker_pb2.WorkerIdentity(name=self._name, sdk="bench"),
            handlers=[worker_pb2.Handler(name=NAME)],
            slots=worker_pb2.Slots(total=1),
            protocol_version="1.0",
        )
        if self._session.session_id:
            opening.resume.session_id = self._session.session_id
            opening.resume.session_secret = self._session.session_secret
            if self._out is not None:
                opening.resume.lease_tokens.append(self._out.lease_token)
        return opening

    async def _report(self, call: Any, held: worker_pb2.Assignment) -> None:
        result = worker_pb2.Result(
            task_id=held.task_id,
            lease_token=held.lease_token,
            completed=worker_pb2.Completed(output=payload_pb2.Payload(data=b"null")),
        )
        self._out = None
        report = messages.Report(report_id=1, results=[result])
        await self._send(call, service.WorkRequest(report=report))

    async def _beat(self, call: Any) -> None:
        await asyncio.sleep(random.uniform(0, self._beat_seconds))
        number = 0
        while True:
            number += 1
            held = [] if self._out is None else [self._out.lease_token]
            beat = messages.Heartbeat(heartbeat_id=number, lease_tokens=held)
            await self._send(call, service.WorkRequest(heartbeat=beat))
            await asyncio.sleep(self._beat_seconds)

    async def _send(self, call: Any, request: service.WorkRequest) -> None:
        async with self._sending:
            await call.write(request)


async def main() -> None:
    """Opens the streams some at a time, and holds them."""
    address, channel_count, stream_count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    beat_seconds = float(sys.argv[4])
    opening = asyncio.Semaphore(_OPENING_MAX)
    serving: list[asyncio.Task[None]] = []

    async def start(calls: Calls, number: int) -> None:
        async with opening:
            held = Held(calls, number, beat_seconds)
            serving.append(asyncio.create_task(held.run()))
            await held.opened.wait()

    base = random.getrandbits(40)
    channels = [Calls(address) for _ in range(channel_count)]
    await asyncio.gather(
        *(
            start(calls, base + index * stream_count + number)
            for index, calls in enumerate(channels)
            for number in range(stream_count)
        )
    )
    # What this process holds is not to be looked through beside what is measured.
    gc.freeze()
    print("ready", flush=True)
    await asyncio.gather(*serving)


if __name__ == "__main__":
    asyncio.run(main())
