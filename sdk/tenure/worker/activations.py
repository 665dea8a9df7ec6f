"""The activations that a worker holds: how they get to the loop of the handlers, and back.

An activation lives on that loop; its place here says what the stream has to know of it. Everything
that the stream tells goes to the loop as a call, in the order in which it came; what comes of an
activation is collected as the results of handlers are. While it waits for a task of its own it holds
no slot of tasks.

`Activations` is used on the I/O loop, but for what is marked.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import contextvars
import logging
import time
from typing import TYPE_CHECKING

from tenure import failure, tracing
from tenure.v1 import worker_pb2
from tenure.workflow.activation import Activation
from tenure.workflow.port_stream import Recorder, StreamPort

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from opentelemetry.trace import Span

    from tenure.v1 import work_stream_pb2 as messages
    from tenure.workflow.declaration import WorkflowDeclaration

_log = logging.getLogger("tenure.worker")


class Hosted:
    """Hosted is one activation while this worker holds it.

    Attributes:
        assignment: The run as it was handed out.
        name: Name of the workflow.
        task_id: Id of the run.
        lease_token: Right to work on it.
        worker: Name of the worker.
        activation: The activation, on the loop of the handlers; None until it is there.
        started_at: Monotonic time of its start; 0.0 until then.
        cancelled: True once it was told that its run is to be cancelled.
        lost: True if the lease is gone: whatever comes of it is dropped.
        refused: True once the server refused a result, and a failure took its place.
        result: The Result that is reported, as it travels; None until it ended.
        span: Span of the activation; None: nobody traces it.
    """

    __slots__ = (
        "activation",
        "assignment",
        "cancelled",
        "lease_token",
        "lost",
        "name",
        "refused",
        "result",
        "span",
        "started_at",
        "task_id",
        "worker",
    )

    def __init__(self, assignment: worker_pb2.Assignment, worker: str) -> None:
        self.assignment = assignment
        self.worker = worker
        self.name = assignment.name
        self.task_id = assignment.task_id
        self.lease_token = assignment.lease_token
        self.activation: Activation | None = None
        self.started_at = 0.0
        self.cancelled = False
        self.lost = False
        self.refused = False
        self.result: bytes | None = None
        self.span: Span | None = None

    def released(self) -> bytes:
        """Returns the result of an activation that is given back."""
        return self.written(worker_pb2.Result(released=worker_pb2.Released()))

    def refused_result(self, why: str) -> bytes:
        """Returns what to report in place of a result that the server refused."""
        self.refused = True
        message = failure.failure_message("ResultRefused", why, non_retryable=True)
        return self.written(worker_pb2.Result(failed=worker_pb2.Failed(failure=message)))

    def written(self, result: worker_pb2.Result) -> bytes:
        """Returns a result as it travels."""
        result.task_id = self.task_id
        result.lease_token = self.lease_token
        if self.started_at:
            seconds = time.monotonic() - self.started_at
            result.run_duration.seconds = int(seconds)
            result.run_duration.nanos = int((seconds - int(seconds)) * 1e9)
        return result.SerializeToString()


class Activations:
    """Activations starts activations, tells them what comes, and collects what comes of them.

    Args:
        workflows: Workflows by name.
        recorder: Their way to the server.
        loop: Gives the loop of the handlers; called when the first one starts.
        wake: Called from any thread when some have ended and nobody was told since `drain`.
    """

    def __init__(
        self,
        workflows: Mapping[str, WorkflowDeclaration],
        recorder: Recorder,
        loop: Callable[[], asyncio.AbstractEventLoop],
        wake: Callable[[], None],
    ) -> None:
        self._workflows = workflows
        self._recorder = recorder
        self._loop_of_handlers = loop
        self._wake = wake
        self._woken = False
        self._hosted: dict[str, Hosted] = {}
        self._done: collections.deque[tuple[Hosted, worker_pb2.Result | None]] = collections.deque()
        # The loop keeps no tasks alive by itself.
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def idle(self) -> bool:
        """True if none runs, or has ended without being drained."""
        return not self._hosted

    def serves(self, name: str) -> bool:
        """Says whether a workflow of this name is declared here."""
        return name in self._workflows

    def start(self, every: Iterable[Hosted]) -> None:
        """Starts activations of workflows that are declared here."""
        for hosted in every:
            # A run comes again while the function of a lost activation is still being unwound.
            self._hosted[hosted.lease_token + hosted.task_id] = hosted
            self._call(self._begin, hosted)

    def resolved(self, message: messages.Resolved) -> None:
        """Takes how tasks and runs were over that an activation waits for."""
        self._recorder.resolved(message)
        for hosted in self._of_run(message.run_id):
            self._call(_resolve, hosted, message)

    def cancel(self, hosted: Hosted, reason: str, *, over: bool) -> None:
        """Has an activation told that its run is to be cancelled.

        Args:
            hosted: The activation.
            reason: For people.
            over: True if its time to end is over. One that was told before is then dropped.
        """
        if over and hosted.cancelled:
            self.lose(hosted)
            return
        hosted.cancelled = True
        self._call(_cancel, hosted, reason)

    def lose(self, hosted: Hosted) -> None:
        """Drops an activation whose lease is gone: from now on nothing of it is recorded."""
        hosted.lost = True
        self._recorder.forget(hosted.task_id, hosted.lease_token)
        if hosted.result is None:
            self._call(_drop, hosted)

    def release(self) -> None:
        """Has all functions unwound, to give their runs back."""
        for hosted in self._hosted.values():
            self._call(_release, hosted)

    def give_up(self) -> list[Hosted]:
        """Ends those whose functions do not end: what they still come to is dropped."""
        left = [hosted for hosted in self._hosted.values() if not hosted.lost]
        for hosted in left:
            self.lose(hosted)
            hosted.lost = False
            hosted.result = hosted.released()
        self._hosted.clear()
        return left

    def drain(self) -> list[Hosted]:
        """Takes those that ended since the last call; one without a result was lost."""
        self._woken = False
        ended = []
        while self._done:
            hosted, result = self._done.popleft()
            if self._hosted.pop(hosted.lease_token + hosted.task_id, None) is None:
                continue
            self._recorder.forget(hosted.task_id, hosted.lease_token)
            if result is not None and not hosted.lost:
                hosted.result = hosted.written(result)
            ended.append(hosted)
        return ended

    def _of_run(self, run_id: str) -> list[Hosted]:
        return [each for each in self._hosted.values() if each.task_id == run_id]

    def _call(self, function: Callable[..., None], *args: object) -> None:
        # The loop may be closed: then the worker is over, and nothing is left to be told.
        with contextlib.suppress(RuntimeError):
            loop = self._loop_of_handlers()
            loop.call_soon_threadsafe(function, *args, context=contextvars.Context())

    # On the loop of the handlers.

    def _begin(self, hosted: Hosted) -> None:
        port = StreamPort(self._recorder, hosted.task_id, hosted.lease_token)
        hosted.started_at = time.monotonic()
        workflow = self._workflows[hosted.name]
        hosted.activation = Activation(hosted.assignment, workflow, port)
        task = asyncio.get_running_loop().create_task(
            self._run(hosted, hosted.activation),
            name=f"tenure-{hosted.task_id}",
            context=contextvars.Context(),
        )
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, hosted: Hosted, activation: Activation) -> None:
        result: worker_pb2.Result | None
        try:
            with tracing.attempt(hosted):
                result = await activation.run()
                outcome = "dropped" if result is None else result.WhichOneof("outcome")
                if result is not None and result.HasField("blocked"):
                    _log.error(
                        "run %s of workflow %s is BLOCKED until somebody resumes it: %s",
                        hosted.task_id,
                        hosted.name,
                        result.blocked.failure.message,
                    )
                tracing.ended(hosted.span, outcome or "unknown")
        except asyncio.CancelledError:
            # The loop ends, and the worker with it.
            result = worker_pb2.Result(released=worker_pb2.Released())
        except BaseException:  # noqa: BLE001 - a defect of ours is no outcome of the run
            _log.exception("the activation of run %s broke, and is given back", hosted.task_id)
            result = worker_pb2.Result(released=worker_pb2.Released())
        hosted.activation = None
        self._done.append((hosted, result))
        if not self._woken:
            self._woken = True
            self._wake()


def _resolve(hosted: Hosted, message: messages.Resolved) -> None:
    if hosted.activation is not None:
        hosted.activation.resolve(message.children)


def _cancel(hosted: Hosted, reason: str) -> None:
    if hosted.activation is not None:
        hosted.activation.cancel(reason)


def _release(hosted: Hosted) -> None:
    if hosted.activation is not None:
        hosted.activation.release()


def _drop(hosted: Hosted) -> None:
    if hosted.activation is not None:
        hosted.activation.drop()
