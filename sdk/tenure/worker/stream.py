"""One Work stream, from Open to whatever ends it.

The stream says how it ended and leaves it to `session` to open the next one: no status that a peer
sends is taken as a wish of ours to stop. gRPC raises CancelledError for a status CANCELLED of the
peer, therefore reading and writing happen in tasks of their own, whose cancellation says nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import grpc
import grpc.aio

from tenure import errors, status
from tenure.v1 import work_stream_pb2 as messages
from tenure.v1 import worker_service_pb2 as service

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

    from tenure.worker.outbox import Outbox

METHOD = "/tenure.v1.WorkerService/Work"
# Time from Open to Opened. A connection that is half open answers nothing, and the leases of the
# session must still live when the next one is tried.
OPEN_SECONDS = 5.0
# Heartbeats in a row without an answer after which the connection counts as dead.
HEARTBEATS_UNANSWERED_MAX = 3
# Time that reports on their way get when the stream is left on purpose.
FLUSH_SECONDS = 2.0
# Time for the server to end the stream after Close.
GOODBYE_SECONDS = 2.0
TOKEN_COUNT_MAX = 10_000
_HEARTBEAT_SECONDS_MIN = 0.02
_STATUS_LOST = "Internal error from Core"
_STATUS_LOST_TEXT = "the other side ended it while a message was written; its reason is lost"


# A Report comes from the outbox as it travels.
Outgoing: TypeAlias = service.WorkRequest | bytes


class Receiver(Protocol):
    """Receiver is what the stream tells of the server's messages; all on the I/O loop."""

    def opened(self, message: messages.Opened) -> None:
        """Takes the answer to Open."""
        raise NotImplementedError

    def assigned(self, message: messages.Assign) -> None:
        """Takes tasks."""
        raise NotImplementedError

    def reported(self, message: messages.ReportAck) -> None:
        """Takes what became of results."""
        raise NotImplementedError

    def renewed(self, message: messages.HeartbeatAck, sent_at: float) -> None:
        """Takes what became of the leases that a heartbeat of time `sent_at` named."""
        raise NotImplementedError

    def cancel(self, message: messages.Cancel) -> None:
        """Takes the request to cancel a task or run."""
        raise NotImplementedError

    def recorded(self, message: messages.StepAck) -> None:
        """Takes what became of steps."""
        raise NotImplementedError

    def resolved(self, message: messages.Resolved) -> None:
        """Takes how things were over that a run waits for."""
        raise NotImplementedError

    def lease_tokens(self) -> Sequence[str]:
        """Gives the tokens that a heartbeat is to name."""
        raise NotImplementedError

    def progress(self) -> list[messages.TaskProgress]:
        """Gives the progress to send with the next heartbeat, once."""
        raise NotImplementedError


@dataclasses.dataclass(frozen=True, slots=True)
class Ending:
    """Ending is why a stream is over.

    Attributes:
        text: For the log.
        error: What the server or gRPC said; None: the stream ended without an error.
        refusal: What no later stream will be spared, as far as anybody can tell; None: nothing.
        drained: True if the server asked for it: no reason to wait before the next one.
        half_open: True if the connection is not to be trusted any more.
    """

    text: str
    error: errors.ServiceError | None = None
    refusal: errors.TenureError | None = None
    drained: bool = False
    half_open: bool = False


class Stream:
    """Stream serves one call of Work.

    Args:
        channel: Channel to call on.
        metadata: Metadata of the call.
        outbox: Where the writer finds what to send.
        receiver: Who is told what came.
    """

    def __init__(
        self,
        channel: grpc.aio.Channel,
        metadata: tuple[tuple[str, str], ...],
        outbox: Outbox,
        receiver: Receiver,
    ) -> None:
        work: grpc.aio.StreamStreamMultiCallable[Outgoing, service.WorkResponse] = (
            channel.stream_stream(
                METHOD,
                request_serializer=_written,
                response_deserializer=service.WorkResponse.FromString,
            )
        )
        self._call = work(metadata=metadata)
        self._outbox = outbox
        self._receiver = receiver
        self._ending: asyncio.Future[Ending] = asyncio.get_running_loop().create_future()
        self._tasks: list[asyncio.Task[Ending]] = []
        self._heartbeat_seconds = 5.0
        self._heartbeats: dict[int, float] = {}
        self._answered_at = 0.0
        self._closing = False

    async def serve(self, open_message: messages.Open) -> Ending:
        """Opens the stream and serves it until it is over; returns why."""
        self._start(self._read(open_message), "read")
        try:
            return await self._ending
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            self._call.cancel()

    def leave(self, ending: Ending, after_seconds: float = 0.0) -> None:
        """Ends the stream after a time, once reports on their way are acknowledged."""
        self._start(self._leave(ending, after_seconds), "leave")

    async def close(self, reason: str) -> None:
        """Sends Close and waits for the server to end the stream, for a short time."""
        self._closing = True
        self._outbox.wake.set()
        goodbye = asyncio.create_task(self._say_goodbye(reason))
        await asyncio.wait([goodbye], timeout=GOODBYE_SECONDS)
        goodbye.cancel()
        await asyncio.gather(goodbye, return_exceptions=True)
        self._end(Ending("closed"))

    async def _say_goodbye(self, reason: str) -> None:
        # The writer ends between two messages; only then may another one write.
        for task in self._tasks:
            if task.get_name() == "write":
                await asyncio.wait([task])
                await self._call.write(service.WorkRequest(close=messages.Close(reason=reason)))
                await self._call.done_writing()
                # The reader ends when the server has taken it all in.
                await asyncio.wait([each for each in self._tasks if each.get_name() == "read"])

    def _start(self, part: Coroutine[Any, Any, Ending], name: str) -> None:
        task = asyncio.create_task(part, name=name)
        self._tasks.append(task)
        task.add_done_callback(self._part_ended)

    def _part_ended(self, task: asyncio.Task[Ending]) -> None:
        if self._ending.done() or (self._closing and task.get_name() == "write"):
            return
        if task.cancelled():
            cancelled = errors.Unavailable("the server cancelled the stream", status="CANCELLED")
            self._end(Ending(str(cancelled), cancelled))
            return
        exc = task.exception()
        if exc is None:
            self._end(task.result())
        elif isinstance(exc, grpc.aio.AioRpcError):
            error = status.from_rpc(exc)
            # gRPC gives this for a write in the moment in which the peer ends the call, and drops
            # the status that the peer sent: nobody can tell why it ended, the next try may.
            lost = exc.details() == _STATUS_LOST
            self._end(Ending(_STATUS_LOST_TEXT if lost else str(error), error))
        else:
            self._end(Ending(f"{type(exc).__name__}: {exc}", half_open=True))

    def _end(self, ending: Ending) -> None:
        if not self._ending.done():
            self._ending.set_result(ending)

    async def _read(self, open_message: messages.Open) -> Ending:
        try:
            async with asyncio.timeout(OPEN_SECONDS):
                await self._call.write(service.WorkRequest(open=open_message))
                first = await self._call.read()
        except TimeoutError:
            return Ending(f"no answer to Open within {OPEN_SECONDS:.0f} s", half_open=True)
        if not isinstance(first, service.WorkResponse):
            return await self._ended_by_server()
        if not first.HasField("opened"):
            return Ending("the first answer was not Opened", half_open=True)
        interval = first.opened.heartbeat_interval
        self._heartbeat_seconds = max(
            interval.seconds + interval.nanos / 1e9, _HEARTBEAT_SECONDS_MIN
        )
        self._answered_at = asyncio.get_running_loop().time()
        self._receiver.opened(first.opened)
        self._start(self._beat(), "beat")
        self._start(self._write(), "write")
        while True:
            response = await self._call.read()
            if not isinstance(response, service.WorkResponse):
                return await self._ended_by_server()
            self._received(response)

    async def _ended_by_server(self) -> Ending:
        code = await self._call.code()
        if code is grpc.StatusCode.OK:
            return Ending("the server ended the stream")
        error = status.from_rpc(
            grpc.aio.AioRpcError(
                code,
                await self._call.initial_metadata(),
                await self._call.trailing_metadata(),
                await self._call.details(),
            )
        )
        return Ending(str(error), error)

    def _received(self, response: service.WorkResponse) -> None:
        kind = response.WhichOneof("message")
        if kind == "assign":
            self._receiver.assigned(response.assign)
        elif kind == "report_ack":
            self._receiver.reported(response.report_ack)
        elif kind == "heartbeat_ack":
            ack = response.heartbeat_ack
            self._answered_at = asyncio.get_running_loop().time()
            sent_at = self._heartbeats.pop(ack.heartbeat_id, None)
            if sent_at is not None:
                self._receiver.renewed(ack, sent_at)
        elif kind == "cancel":
            self._receiver.cancel(response.cancel)
        elif kind == "step_ack":
            self._receiver.recorded(response.step_ack)
        elif kind == "resolved":
            self._receiver.resolved(response.resolved)
        elif kind == "drain":
            after = response.drain.reconnect_after
            self.leave(Ending("the server stops", drained=True), after.seconds + after.nanos / 1e9)
        # Kinds of newer servers are left alone.

    async def _write(self) -> Ending:
        outbox = self._outbox
        while not self._closing:
            request = outbox.next()
            if request is None:
                outbox.wake.clear()
                await outbox.wake.wait()
                continue
            try:
                await self._call.write(request)
            except asyncio.InvalidStateError:
                # The call is over; the reader knows why, and ends the stream with it.
                await asyncio.sleep(1.0)
                return Ending("the stream is over")
        return Ending("closed")

    async def _beat(self) -> Ending:
        loop = asyncio.get_running_loop()
        heartbeat_id = 0
        silence_max = self._heartbeat_seconds * HEARTBEATS_UNANSWERED_MAX
        while loop.time() - self._answered_at <= silence_max:
            heartbeat_id += 1
            self._heartbeats[heartbeat_id] = loop.time()
            self._outbox.heartbeat(
                messages.Heartbeat(
                    heartbeat_id=heartbeat_id,
                    lease_tokens=self._receiver.lease_tokens()[:TOKEN_COUNT_MAX],
                    progress=self._receiver.progress(),
                )
            )
            await asyncio.sleep(self._heartbeat_seconds)
        return Ending(
            f"{HEARTBEATS_UNANSWERED_MAX} heartbeats went without an answer", half_open=True
        )

    async def _leave(self, ending: Ending, after_seconds: float) -> Ending:
        await asyncio.sleep(after_seconds)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._outbox.reports_acknowledged.wait(), FLUSH_SECONDS)
        return ending


def _written(request: Outgoing) -> bytes:
    return request if isinstance(request, bytes) else request.SerializeToString()
