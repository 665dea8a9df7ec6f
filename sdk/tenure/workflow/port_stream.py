"""The way of activations to the server over a worker's streams: what `port.Port` asks for.

`Recorder` lives on the I/O loop and outlives streams, as the outbox does: what no server has
answered goes again on the next one, in its order. `StreamPort` is the end of one activation, on the
loop of the handlers.
"""

from __future__ import annotations

import asyncio
import dataclasses
import random
from typing import TYPE_CHECKING

from tenure import connection, errors, methods, status
from tenure.io_thread import io_thread
from tenure.v1 import work_stream_pb2 as stream
from tenure.v1 import worker_service_pb2 as service
from tenure.workflow.port import ActivationLost

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from tenure.channel import Target
    from tenure.v1 import run_pb2

# Ids that one Wait names at most.
WAIT_COUNT_MAX = 10_000
# Of our own: a program that seeds the shared one must not make its workers act in step.
_jitter = random.Random()  # noqa: S311 - nothing secret


@dataclasses.dataclass(eq=False, slots=True)
class _Record:
    """_Record is one RecordSteps that waits for its answer."""

    message: stream.RecordSteps
    answer: asyncio.Future[Sequence[stream.StepRecord]]


@dataclasses.dataclass(eq=False, slots=True)
class _Waits:
    """_Waits is what one activation is to be told of: first what the server was not asked for."""

    lease_token: str
    unsent: dict[str, None]
    sent: dict[str, None]


class Recorder:
    """Recorder has steps recorded, and children waited for, for all activations of a worker.

    Args:
        target: Server and namespace.
        wake: Called when there is something to write.
    """

    def __init__(self, target: Target, wake: Callable[[], None]) -> None:
        self._target = target
        self._wake = wake
        self._record_id = 0
        self._unsent: dict[int, _Record] = {}
        self._sent: dict[int, _Record] = {}
        self._waits: dict[str, _Waits] = {}
        self._to_ask: dict[str, None] = {}

    async def record(
        self, run_id: str, lease_token: str, steps: Sequence[run_pb2.NewStep]
    ) -> Sequence[stream.StepRecord]:
        """Records steps, over as many streams as it takes.

        Raises:
            ActivationLost: the lease is gone.
            ServiceError: a refusal that no time cures.
        """
        self._record_id += 1
        record_id = self._record_id
        self._unsent[record_id] = _Record(
            stream.RecordSteps(
                record_id=record_id, run_id=run_id, lease_token=lease_token, steps=steps
            ),
            asyncio.get_running_loop().create_future(),
        )
        self._wake()
        try:
            return await self._unsent[record_id].answer
        finally:
            # Nobody waits for it any more, whatever becomes of it.
            self._unsent.pop(record_id, None)
            self._sent.pop(record_id, None)

    def wait(self, run_id: str, lease_token: str, child_ids: Iterable[str]) -> None:
        """Has the activation told of children, until `forget`."""
        waits = self._waits.get(run_id)
        if waits is None or waits.lease_token != lease_token:
            waits = self._waits[run_id] = _Waits(lease_token, {}, {})
        waits.unsent.update(dict.fromkeys(child_ids))
        self._to_ask[run_id] = None
        self._wake()

    async def list_steps(
        self, run_id: str, lease_token: str, page_token: str
    ) -> service.ListStepsResponse:
        """Gives a further page of recorded steps.

        Raises:
            ActivationLost: the lease is gone.
            ServiceError: any other refusal, or no answer within 30 s.
        """
        request = service.ListStepsRequest(
            run_id=run_id, lease_token=lease_token, page_token=page_token
        )
        try:
            return await connection.connect(self._target).call(methods.LIST_STEPS, request)
        except errors.ServiceError as error:
            if error.reason == "LEASE_LOST":
                raise ActivationLost(str(error)) from error
            raise

    # What the stream's writer and reader call.

    def next(self) -> service.WorkRequest | None:
        """Returns the next message to write; None if there is none."""
        if self._unsent:
            record_id = next(iter(self._unsent))
            record = self._sent[record_id] = self._unsent.pop(record_id)
            return service.WorkRequest(record_steps=record.message)
        while self._to_ask:
            run_id = next(iter(self._to_ask))
            waits = self._waits.get(run_id)
            if waits is None or not waits.unsent:
                del self._to_ask[run_id]
                continue
            asked = list(waits.unsent)[:WAIT_COUNT_MAX]
            for child_id in asked:
                del waits.unsent[child_id]
            waits.sent.update(dict.fromkeys(asked))
            message = stream.Wait(run_id=run_id, lease_token=waits.lease_token, child_ids=asked)
            return service.WorkRequest(wait=message)
        return None

    def acknowledged(self, message: stream.StepAck) -> None:
        """Takes the answer to a RecordSteps."""
        record = self._sent.get(message.record_id)
        if record is None or record.answer.done():
            return
        if not message.HasField("error"):
            record.answer.set_result(message.records)
            return
        error = status.from_status(message.error)
        if error.reason == "LEASE_LOST":
            record.answer.set_exception(ActivationLost(str(error)))
        elif error.reason in status.TRANSIENT:
            # Not at once: what was refused for load or a database that is away would be again.
            pause = max(_jitter.uniform(0.2, 1.0), error.retry_after or 0.0)
            asyncio.get_running_loop().call_later(pause, self._again, message.record_id)
        else:
            record.answer.set_exception(error)

    def resolved(self, message: stream.Resolved) -> None:
        """Notes that what it names need not be asked for again."""
        waits = self._waits.get(message.run_id)
        if waits is not None:
            for child in message.children:
                waits.sent.pop(child.child_id, None)
                waits.unsent.pop(child.child_id, None)

    def stream_broke(self) -> None:
        """Makes ready for the next stream: what has no answer goes again, in its order."""
        self._unsent = dict(sorted((self._sent | self._unsent).items()))
        self._sent = {}
        for run_id, waits in self._waits.items():
            waits.unsent = waits.sent | waits.unsent
            waits.sent = {}
            self._to_ask[run_id] = None

    def forget(self, run_id: str, lease_token: str) -> None:
        """Drops everything of an activation that is over, or lost."""
        waits = self._waits.get(run_id)
        if waits is not None and waits.lease_token == lease_token:
            del self._waits[run_id]
        for record in (*self._unsent.values(), *self._sent.values()):
            if record.message.lease_token == lease_token and record.message.run_id == run_id:
                _lose(record.answer)

    def _again(self, record_id: int) -> None:
        record = self._sent.pop(record_id, None)
        if record is not None:
            self._unsent[record_id] = record
            self._wake()


class StreamPort:
    """StreamPort is the port of one activation; used on the loop of the handlers."""

    def __init__(self, recorder: Recorder, run_id: str, lease_token: str) -> None:
        self._recorder = recorder
        self._run_id = run_id
        self._lease_token = lease_token

    async def record(self, steps: Sequence[run_pb2.NewStep]) -> Sequence[stream.StepRecord]:
        """Records steps; see `port.Port`."""
        return await io_thread.arun(self._recorder.record(self._run_id, self._lease_token, steps))

    def wait(self, child_ids: Sequence[str]) -> None:
        """Asks to be told of tasks and runs; see `port.Port`."""
        io_thread.loop.call_soon_threadsafe(
            self._recorder.wait, self._run_id, self._lease_token, child_ids
        )

    async def more_steps(self, page_token: str) -> service.ListStepsResponse:
        """Gives a further page of recorded steps; see `port.Port`."""
        return await io_thread.arun(
            self._recorder.list_steps(self._run_id, self._lease_token, page_token)
        )


def _lose(answer: asyncio.Future[Sequence[stream.StepRecord]]) -> None:
    if not answer.done():
        answer.set_exception(ActivationLost("the lease is gone"))
        # It may be that nobody waits any more.
        answer.exception()
