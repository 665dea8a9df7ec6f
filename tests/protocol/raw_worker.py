"""One Work stream driven by hand: nothing is accepted, renewed or reported by itself."""

import asyncio
import contextlib
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Self

import grpc
from grpc import aio

from tenure.v1 import work_stream_pb2 as stream
from tenure.v1 import worker_pb2 as worker
from tenure.v1 import worker_service_pb2 as service
from tests.protocol import caller, refusals
from tests.protocol.caller import Caller

_NAMES = itertools.count(1)


class RawWorker:
    """A stream, what came on it, and what of that is not reported yet."""

    def __init__(self, client: Caller) -> None:
        self.client = client
        self.opened = stream.Opened()
        self.assigned: list[worker.Assignment] = []
        self.out: dict[str, worker.Assignment] = {}
        self.peak = 0
        self.peak_by_queue: Counter[str] = Counter()
        self.acks: dict[int, stream.ReportAck] = {}
        self.beats: dict[int, stream.HeartbeatAck] = {}
        self.cancels: list[stream.Cancel] = []
        self.drains: list[stream.Drain] = []
        self.assign_sizes: list[int] = []
        self.refusal: refusals.Refusal | None = None
        self.code: grpc.StatusCode | None = None
        self._numbers = itertools.count(1)
        self._news = asyncio.Event()
        self._writing = asyncio.Lock()
        work: Any = client.work.Work
        self.call = work(metadata=client.metadata)
        self._reader = asyncio.get_running_loop().create_task(self._read())

    @classmethod
    async def open(
        cls,
        client: Caller,
        *names: str,
        slots: int = 1,
        by_queue: dict[str, int] | None = None,
        resume: "RawWorker | None" = None,
        holding: Sequence[str] = (),
    ) -> Self:
        """Opens a stream and waits for Opened; `resume` goes on with the session of another."""
        self = cls(client)
        message = self.open_message(*names, slots=slots, by_queue=by_queue)
        if resume is not None:
            message.resume.session_id = resume.opened.session_id
            message.resume.session_secret = resume.opened.session_secret
            message.resume.lease_tokens.extend(holding)
        await self.send(open=message)
        await self.until(lambda: bool(self.opened.session_id))
        return self

    @staticmethod
    def open_message(
        *names: str, slots: int = 1, by_queue: dict[str, int] | None = None
    ) -> stream.Open:
        """Gives an Open."""
        return stream.Open(
            worker=worker.WorkerIdentity(name=f"raw-{next(_NAMES)}", sdk="raw"),
            handlers=caller.handlers(names or ("work",)),
            slots=worker.Slots(total=slots, by_queue=by_queue or {}),
            protocol_version="1.0",
        )

    @property
    def token(self) -> str:
        """The token of the latest assignment."""
        return self.assigned[-1].lease_token

    async def send(self, **message: Any) -> None:
        """Sends one message."""
        async with self._writing:
            await self.call.write(service.WorkRequest(**message))

    async def until(self, probe: Callable[[], bool], *, seconds: float = 10.0) -> None:
        """Waits until something that came makes the probe true."""
        try:
            async with asyncio.timeout(seconds):
                while not probe():
                    self._news.clear()
                    if self._reader.done():
                        raise AssertionError(f"the stream ended: {self.refusal or self.code}")
                    await self._news.wait()
        except TimeoutError:
            raise AssertionError(f"not within {seconds:g} s; came: {self!r}") from None

    async def tasks(self, count: int = 1, *, seconds: float = 10.0) -> list[worker.Assignment]:
        """Waits until so many tasks have come in all; gives them."""
        await self.until(lambda: len(self.assigned) >= count, seconds=seconds)
        return self.assigned

    async def nothing_comes(self, *, seconds: float = 0.25) -> None:
        """Waits for a task that must not come."""
        before = len(self.assigned)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while len(self.assigned) == before:
                    self._news.clear()
                    await self._news.wait()
        assert self.assigned[before:] == []

    async def accept(self, *tokens: str) -> None:
        """Accepts leases: those that are named, else all that are out."""
        named = tokens or {one.lease_token for one in self.out.values()}
        await self.send(accept=stream.Accept(lease_tokens=named))

    async def report(self, *results: worker.Result, seconds: float = 10.0) -> list[str]:
        """Reports; gives the statuses that came back."""
        ack = await self.report_fully(*results, seconds=seconds)
        return [caller.status_name(status) for status in ack.statuses]

    async def report_fully(
        self, *results: worker.Result, seconds: float = 10.0
    ) -> stream.ReportAck:
        """Reports; gives the whole answer."""
        number = next(self._numbers)
        for result in results:
            held = self.out.get(result.task_id)
            if held is not None and held.lease_token == result.lease_token:
                del self.out[result.task_id]
        await self.send(report=stream.Report(report_id=number, results=results))
        await self.until(lambda: number in self.acks, seconds=seconds)
        return self.acks[number]

    async def beat(self, *tokens: str) -> stream.HeartbeatAck:
        """Sends a heartbeat; gives its answer."""
        number = next(self._numbers)
        await self.send(heartbeat=stream.Heartbeat(heartbeat_id=number, lease_tokens=tokens))
        await self.until(lambda: number in self.beats)
        return self.beats[number]

    async def close(self) -> None:
        """Closes the session, and waits for the end of the stream."""
        await self.send(close=stream.Close())
        await self.ended()

    async def cut(self) -> None:
        """Breaks the stream, without a word."""
        self.call.cancel()
        await self.ended()

    async def ended(self, *, seconds: float = 10.0) -> refusals.Refusal | None:
        """Waits for the end of the stream; gives the error it ended with, if any."""
        async with asyncio.timeout(seconds):
            await asyncio.shield(self._reader)
        return self.refusal

    async def _read(self) -> None:
        try:
            while True:
                message = await self.call.read()
                if message is aio.EOF:
                    break
                self._take(message)
                self._news.set()
            self.code = await self.call.code()
            if self.code is not grpc.StatusCode.OK:
                self._refused(await self._error())
        except aio.AioRpcError as error:
            self._refused(error)
        except asyncio.CancelledError:
            self.code = grpc.StatusCode.CANCELLED
        finally:
            self._news.set()

    async def _error(self) -> aio.AioRpcError:
        return aio.AioRpcError(
            await self.call.code(),
            await self.call.initial_metadata(),
            await self.call.trailing_metadata(),
            await self.call.details(),
        )

    def _refused(self, error: aio.AioRpcError) -> None:
        self.code = error.code()
        keys = {key for key, _ in error.trailing_metadata() or ()}
        if "grpc-status-details-bin" in keys:
            self.refusal = refusals.of(error)

    def _take(self, message: service.WorkResponse) -> None:
        kind = message.WhichOneof("message")
        if kind == "opened":
            self.opened = message.opened
        elif kind == "assign":
            self.assign_sizes.append(message.ByteSize())
            self._assigned(message.assign.assignments)
        elif kind == "report_ack":
            self.acks[message.report_ack.report_id] = message.report_ack
        elif kind == "heartbeat_ack":
            self.beats[message.heartbeat_ack.heartbeat_id] = message.heartbeat_ack
        elif kind == "cancel":
            self.cancels.append(message.cancel)
        elif kind == "drain":
            self.drains.append(message.drain)

    def _assigned(self, assignments: Iterable[worker.Assignment]) -> None:
        for one in assignments:
            self.assigned.append(one)
            self.out[one.task_id] = one
        self.peak = max(self.peak, len(self.out))
        by_queue = Counter(one.queue for one in self.out.values())
        for queue, count in by_queue.items():
            self.peak_by_queue[queue] = max(self.peak_by_queue[queue], count)

    def __repr__(self) -> str:
        return (
            f"{len(self.assigned)} tasks, {len(self.acks)} report acks, {len(self.beats)} beats, "
            f"{len(self.cancels)} cancels, ended: {self.refusal or self.code}"
        )
