"""What is recorded of a run, and the way to record more.

Steps that the branches of a function record in one moment travel together, and one message at a
time is under way: what comes meanwhile goes with the next.
"""

from __future__ import annotations

import asyncio
import collections
import contextvars
import datetime
from typing import TYPE_CHECKING, TypeAlias

from tenure.v1 import run_pb2, work_stream_pb2
from tenure.workflow import branches

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from google.protobuf import timestamp_pb2

    from tenure.workflow.port import Port

_Sent: TypeAlias = "tuple[run_pb2.NewStep, asyncio.Future[work_stream_pb2.StepRecord]]"

STEP_COUNT_MAX = 1_000
BATCH_BYTES_MAX = 4 * 1024 * 1024
# Field of NewStep.operation by kind.
OPERATIONS: dict[run_pb2.StepKind.ValueType, str] = {
    run_pb2.STEP_KIND_CALL: "call",
    run_pb2.STEP_KIND_TASK: "task",
    run_pb2.STEP_KIND_CHILD: "child",
    run_pb2.STEP_KIND_SLEEP: "sleep",
    run_pb2.STEP_KIND_CHOICE: "choice",
    run_pb2.STEP_KIND_PATCH: "patch",
}

_CHILDREN = frozenset({run_pb2.STEP_KIND_TASK, run_pb2.STEP_KIND_CHILD})


class Journal:
    """Journal holds the recorded steps of one run, and how its tasks and child runs were over.

    Args:
        port: Way to the server.
        broken: Called with what recording raised; nothing is recorded any more.
    """

    def __init__(self, port: Port, broken: Callable[[Exception], None]) -> None:
        self._port = port
        self._broken = broken
        self._steps: dict[str, run_pb2.Step] = {}
        self._extents: dict[str, branches.Extent] = {}
        self._outcomes: dict[str, work_stream_pb2.ResolvedChild] = {}
        self._queue: collections.deque[_Sent] = collections.deque()
        self._flusher: asyncio.Task[None] | None = None
        self._closed = False

    def load(self, steps: Iterable[run_pb2.Step]) -> None:
        """Takes recorded steps of earlier activations."""
        for step in steps:
            if step.kind in _CHILDREN and not step.child_id:
                # Its task or run stays with the run that this one was forked from.
                step.child_id = f"step {step.step_id}"
            self._steps[step.step_id] = step
            if step.child_id and step.WhichOneof("outcome") is not None:
                self.note(outcome_of(step))

    def loaded(self) -> None:
        """Says that all steps of earlier activations are here."""
        self._extents = branches.extents(self._steps)

    def __len__(self) -> int:
        return len(self._steps)

    def find(self, step_id: str) -> run_pb2.Step | None:
        """Returns the step that is recorded under an id."""
        return self._steps.get(step_id)

    def extent(self, path: str) -> branches.Extent:
        """Returns the highest numbers that earlier activations recorded under a path."""
        return self._extents.get(path, (0, 0))

    def note(self, child: work_stream_pb2.ResolvedChild) -> bool:
        """Takes how a task or run was over; False: that is known."""
        if child.child_id in self._outcomes:
            return False
        self._outcomes[child.child_id] = child
        return True

    def outcome(self, child_id: str) -> work_stream_pb2.ResolvedChild | None:
        """Returns how a task or run was over; None: it is not, as far as is known."""
        return self._outcomes.get(child_id)

    def record(self, step: run_pb2.NewStep) -> asyncio.Future[work_stream_pb2.StepRecord]:
        """Sends a step to be recorded, together with others of this moment."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[work_stream_pb2.StepRecord] = loop.create_future()
        if self._closed:
            return future
        self._queue.append((step, future))
        if self._flusher is None:
            context = contextvars.Context()
            self._flusher = asyncio.Task(self._flush(), context=context)
        return future

    def close(self) -> None:
        """Records nothing more; what is under way may or may not be recorded."""
        self._closed = True
        self._queue.clear()
        if self._flusher is not None:
            self._flusher.cancel()

    async def _flush(self) -> None:
        try:
            while self._queue:
                # The other branches of this moment come first.
                await asyncio.sleep(0)
                batch = self._batch()
                records = await self._port.record([step for step, _ in batch])
                for (_, future), record in zip(batch, records, strict=True):
                    if record.WhichOneof("outcome") == "step":
                        self._steps[record.step.step_id] = record.step
                        if record.step.child_id and record.step.WhichOneof("outcome") is not None:
                            self.note(outcome_of(record.step))
                    if not future.done():
                        future.set_result(record)
        except Exception as exc:  # noqa: BLE001 - whatever the port raises ends the activation
            self._closed = True
            self._queue.clear()
            self._broken(exc)
        finally:
            self._flusher = None

    def _batch(self) -> list[_Sent]:
        batch: list[_Sent] = []
        size_bytes = 0
        while self._queue and len(batch) < STEP_COUNT_MAX:
            size_bytes += self._queue[0][0].ByteSize()
            if batch and size_bytes > BATCH_BYTES_MAX:
                break
            batch.append(self._queue.popleft())
        return batch


def outcome_of(step: run_pb2.Step) -> work_stream_pb2.ResolvedChild:
    """Returns how the task or run of a recorded step was over."""
    child = work_stream_pb2.ResolvedChild(child_id=step.child_id)
    if step.HasField("failure"):
        child.failure.CopyFrom(step.failure)
    else:
        child.output.CopyFrom(step.output)
    if step.HasField("ended_at"):
        child.ended_at.CopyFrom(step.ended_at)
    return child


def difference(
    step: run_pb2.Step,
    kind: run_pb2.StepKind.ValueType,
    name: str,
    line: Callable[[], str],
) -> str | None:
    """Says how a recorded step differs from what the code asks for; None: it does not.

    Args:
        step: The recorded one.
        kind: Kind that the code asks for.
        name: Name that it asks for.
        line: Gives the line of the code.
    """
    if step.kind == kind and step.name == name:
        return None
    return (
        f"step {step.step_id!r} is recorded as {_shown(step.kind, step.name)}, and the code asks for"
        f" {_shown(kind, name)} at {line()}; change the code of running runs with ctx.patch(...)"
    )


def instant(message: timestamp_pb2.Timestamp) -> datetime.datetime:
    """Returns an instant of the database's clock, UTC."""
    return message.ToDatetime(tzinfo=datetime.UTC)


def _shown(kind: run_pb2.StepKind.ValueType, name: str) -> str:
    try:
        word = run_pb2.StepKind.Name(kind).removeprefix("STEP_KIND_")
    except ValueError:
        word = f"kind {kind}"
    return f"{word} {name!r}"
