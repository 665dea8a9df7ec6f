"""One assignment on its way through a worker: decode, call the handler, encode, say how it ended.

`run` and `arun` are called on handler threads and on the async loop; they touch nothing of the
stream and return the result; the pool decides whether it still counts. What a handler raises
becomes data here: nothing escapes.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import time
from typing import TYPE_CHECKING, Any

from google.protobuf import duration_pb2

from tenure import codec, context, errors, failure, payload_codec, tracing
from tenure.v1 import work_stream_pb2, worker_pb2
from tenure.worker import wire

if TYPE_CHECKING:
    from opentelemetry.trace import Span

    from tenure.task import Declaration
    from tenure.v1 import payload_pb2

_log = logging.getLogger("tenure.worker")

# From the end of its grace until the process of a cancelled handler is killed. The sweep that does
# it comes 20 times a second: all in all it takes less than a second.
KILL_SECONDS = 0.5


class Job:
    """Job is one assignment while this worker holds it.

    Attributes:
        assignment: The task as it was handed out.
        declaration: Handler; None if this worker does not know the name.
        name: Name of the task.
        task_id: Id of the task.
        lease_token: Right to work on it; several jobs may share one.
        received_at: Monotonic time of its arrival.
        started_at: Monotonic time of the handler's start; 0.0 until then.
        run_seconds: Time the handler took; 0.0 until it ended.
        announced: True once a Started was sent.
        cancel_reason: Why it is to be cancelled; None: it is not.
        stopped: True if the worker's own stop cancelled it.
        lost: True if the lease is gone: whatever comes of it is dropped.
        refused: True once the server refused a result, and a failure took its place.
        result: The Result that is reported, as it travels; None until it ended. Set under the
            pool's lock.
        progress_details: Latest details of a heartbeat that were not sent yet, as they travel.
        asyncio_task: The task of an `async def` handler that runs.
        isolated: True if its handler runs in a process of its own.
        kill_at: Monotonic time at which that process is killed; None: never.
        worker: Name of the worker.
        span: Span of the attempt; None: nobody traces it.
    """

    __slots__ = (
        "announced",
        "assignment",
        "asyncio_task",
        "cancel_reason",
        "declaration",
        "isolated",
        "kill_at",
        "lease_token",
        "lost",
        "name",
        "progress_details",
        "received_at",
        "refused",
        "result",
        "run_seconds",
        "span",
        "started_at",
        "stopped",
        "task_id",
        "worker",
    )

    def __init__(
        self,
        assignment: worker_pb2.Assignment,
        declaration: Declaration | None,
        now: float,
        *,
        isolated: bool = False,
        worker: str = "",
    ) -> None:
        self.assignment = assignment
        self.worker = worker
        self.span: Span | None = None
        self.declaration = declaration
        self.name = assignment.name
        self.task_id = assignment.task_id
        self.lease_token = assignment.lease_token
        self.received_at = now
        self.started_at = 0.0
        self.run_seconds = 0.0
        self.announced = False
        self.cancel_reason: str | None = None
        self.stopped = False
        self.lost = False
        self.refused = False
        self.result: bytes | None = None
        self.progress_details: payload_pb2.Payload | None = None
        self.asyncio_task: asyncio.Task[Any] | None = None
        self.isolated = isolated
        self.kill_at: float | None = None

    @property
    def is_async(self) -> bool:
        """True if the handler is an `async def`."""
        return self.declaration is not None and self.declaration.is_async

    def is_gone(self, now: float) -> bool:
        """Says whether the server has ended the task, or is about to, while its handler runs on."""
        return self.lost or (self.kill_at is not None and now >= self.kill_at - KILL_SECONDS)

    def time_left(self) -> float | None:
        """Returns seconds until the attempt's limit; None: no limit."""
        if not self.assignment.HasField("start_to_close"):
            return None
        limit = self.assignment.start_to_close
        return self.started_at + limit.seconds + limit.nanos / 1e9 - time.monotonic()

    def details(self) -> bytes:
        """Returns the JSON that an earlier hand-out left; empty: none."""
        details = self.assignment.details
        return payload_codec.read(details, "details", self._hook) if details.data else b""

    def progress(self, data: bytes) -> None:
        """Keeps details for the next heartbeat."""
        self.progress_details = context.details_payload(data, self._hook)

    def take_progress(self) -> work_stream_pb2.TaskProgress | None:
        """Returns the details that the handler left since the last heartbeat; None: none."""
        details, self.progress_details = self.progress_details, None
        if details is None:
            return None
        return work_stream_pb2.TaskProgress(
            task_id=self.task_id, lease_token=self.lease_token, details=details
        )

    def started(self, now: float) -> work_stream_pb2.StartedTask:
        """Returns what the server is told of a handler that runs."""
        seconds = max(0.0, now - self.started_at)
        whole = int(seconds)
        return work_stream_pb2.StartedTask(
            task_id=self.task_id,
            lease_token=self.lease_token,
            run_duration=duration_pb2.Duration(seconds=whole, nanos=int((seconds - whole) * 1e9)),
        )

    def over_limit(self) -> str:
        """Says that the attempt's own limit ended it, where that is so; empty: it did not."""
        left = self.time_left() if self.started_at else None
        if left is None or left > 0:
            return ""
        limit = self.assignment.start_to_close
        seconds = limit.seconds + limit.nanos / 1e9
        return f"the server ended its attempt at the timeout of {seconds:g} s"

    def why_lost(self) -> str:
        """Says why the lease is gone, as far as a worker can know: it is told the token alone."""
        told = "" if self.stopped else self.cancel_reason
        return self.over_limit() or told or "the lease was lost"

    def log_lost(self, why: str) -> None:
        """Says of a handler that has not ended that its task is no longer this worker's."""
        threaded = self.started_at and not self.is_async and not self.isolated
        # A task that was cancelled has no next attempt.
        beside = "" if self.cancel_reason and not self.stopped else " beside the next attempt"
        goes_on = (
            f"; nobody can stop its thread: it runs on{beside}, unless it"
            " looks at current_task().cancelled, or is declared with mode='process'"
        )
        _log.warning(
            "task %s %s is no longer this worker's: %s%s",
            self.name,
            self.task_id,
            why,
            goes_on if threaded else "",
        )

    # The handler's life.

    def run(self) -> bytes:
        """Runs a `def` handler on this thread, in a context of its own."""
        return contextvars.Context().run(self._run_traced)

    async def arun(self) -> bytes:
        """Runs an `async def` handler in the asyncio task that calls this."""
        with tracing.attempt(self):
            return await self._arun()

    async def _arun(self) -> bytes:
        self.started_at = time.monotonic()
        context.current.set(context.TaskInfo(self, raises=False))
        declaration = self._declaration()
        try:
            positional, named = self._arguments(declaration)
            return self._complete(declaration, await declaration.function(*positional, **named))
        except asyncio.CancelledError as exc:
            return self.cancelled(exc)
        except BaseException as exc:  # noqa: BLE001 - whatever user code raises is data
            return self._raised(exc, declaration)

    def released(self) -> bytes:
        """Returns the result of a handler that never started."""
        return self._written(worker_pb2.Result(released=worker_pb2.Released()))

    def cancelled(self, exc: BaseException | None = None) -> bytes:
        """Returns the result of a handler that a cancellation ended, or kept from starting."""
        tracing.ended(self.span, "cancelled")
        if self.stopped:
            return self.stopped_early("the worker stopped and cancelled the handler")
        text = str(exc) if exc is not None else ""
        cause = failure.failure_message("Cancelled", text or self.cancel_reason or "")
        return self._written(
            worker_pb2.Result(cancelled=worker_pb2.CancelledOutcome(failure=cause))
        )

    def unstarted(self) -> bytes:
        """Returns the result of a handler that a cancellation kept from starting."""
        return self.released() if self.stopped else self.cancelled()

    def killed(self, why: str) -> bytes:
        """Returns the result of a handler whose process was killed after a cancellation."""
        if self.stopped:
            return self.stopped_early(f"the worker stopped: {why}")
        text = f"{self.cancel_reason}; {why}" if self.cancel_reason else why
        cause = failure.failure_message("Cancelled", text)
        return self._written(
            worker_pb2.Result(cancelled=worker_pb2.CancelledOutcome(failure=cause))
        )

    def failed(self, message: payload_pb2.Failure) -> bytes:
        """Returns the result of a handler that cannot say itself how it failed."""
        self._log_failure(message, None)
        return self._failed(message)

    def stopped_early(self, why: str) -> bytes:
        """Returns the result of a handler that the worker's stop cut off: a spent attempt."""
        return self._failed(failure.failure_message("WorkerStopped", why))

    def refused_result(self, why: str) -> bytes:
        """Returns what to report in place of a result that the server refused."""
        self.refused = True
        return self._failed(failure.failure_message("ResultRefused", why, non_retryable=True))

    def _run_traced(self) -> bytes:
        with tracing.attempt(self):
            return self._run()

    def _run(self) -> bytes:
        self.started_at = time.monotonic()
        context.current.set(context.TaskInfo(self, raises=True))
        declaration = self._declaration()
        try:
            positional, named = self._arguments(declaration)
            return self._complete(declaration, declaration.function(*positional, **named))
        except context.CancelRequested as exc:
            return self.cancelled(exc)
        except BaseException as exc:  # noqa: BLE001 - whatever user code raises is data
            return self._raised(exc, declaration)

    @property
    def _hook(self) -> payload_codec.PayloadCodec | None:
        return None if self.declaration is None else self.declaration.app.codec

    def _declaration(self) -> Declaration:
        if self.declaration is None:
            raise AssertionError("a job without a handler is released, never run")
        return self.declaration

    def _arguments(self, declaration: Declaration) -> tuple[list[Any], dict[str, Any]]:
        where = f"arguments of task {self.name!r}"
        # What this worker cannot read another one may, while a codec or a signature is being
        # rolled out: such a failure is retryable.
        try:
            data = payload_codec.read(self.assignment.input, where, declaration.app.codec)
            return declaration.signature.decode_call(data)
        except errors.ValueRefused as exc:
            raise errors.ArgumentsRefused(exc.where, exc.problem) from None

    def _complete(self, declaration: Declaration, value: Any) -> bytes:
        where = f"result of task {self.name!r}"
        try:
            data = declaration.signature.result.encode(value)
            if (hook := declaration.app.codec) is not None:
                output = payload_codec.write(data, where, hook)
                tracing.ended(self.span, "completed")
                return self._written(
                    worker_pb2.Result(completed=worker_pb2.Completed(output=output))
                )
            if len(data) > codec.PAYLOAD_BYTES_MAX:
                codec.check_size(len(data), where)
        except (errors.ValueRefused, errors.PayloadTooLarge) as exc:
            tracing.raised(self.span, exc)
            # The handler has done its work: another attempt would do it twice for the same end.
            message = failure.from_exception(exc, non_retryable=True)
            self._log_failure(message, None)
            return self._failed(message)
        except errors.CodecFailed as exc:
            tracing.raised(self.span, exc)
            _log.error("task %s %s: %s", self.name, self.task_id, exc)
            return self._failed(failure.from_exception(exc))
        tracing.ended(self.span, "completed")
        seconds = self.run_seconds = time.monotonic() - self.started_at
        return wire.completed(self.task_id, self.lease_token, seconds, data)

    def _raised(self, exc: BaseException, declaration: Declaration) -> bytes:
        if isinstance(exc, context.Reschedule):
            tracing.ended(self.span, "rescheduled")
            return self._rescheduled(exc)
        tracing.raised(self.span, exc)
        unless = declaration.retry.unless_classes if declaration.retry is not None else ()
        non_retryable = isinstance(exc, (errors.NonRetryable, *unless))
        message = failure.from_exception(exc, non_retryable=non_retryable)
        wanted = isinstance(exc, context.RetryAfter)
        if isinstance(exc, context.RetryAfter):
            message.retry_after.CopyFrom(exc.delay)
        shown = None if isinstance(exc, context.ControlFlow) else exc
        self._log_failure(message, shown, wanted=wanted)
        return self._failed(message)

    def _log_failure(
        self, message: payload_pb2.Failure, exc: BaseException | None, *, wanted: bool = False
    ) -> None:
        """Logs how an attempt failed: the last one as an error, one that wants another as news."""
        attempt, attempt_max = self.assignment.attempt, self.assignment.max_attempts
        last = message.non_retryable or 0 < attempt_max <= attempt
        level = logging.ERROR if last else logging.INFO if wanted else logging.WARNING
        stack = ""
        if exc is not None and failure.is_clipped(message):
            # A traceback of logging's own would repeat a message of any length.
            stack, exc = f"\n{message.stack}", None
        _log.log(
            level,
            "task %s %s failed%s, attempt %d of %d: %s: %s%s",
            self.name,
            self.task_id,
            " for good" if last else "",
            attempt,
            attempt_max,
            message.type,
            message.message,
            stack,
            exc_info=exc,
            extra={"task_id": self.task_id, "task_name": self.name, **tracing.log_fields(self)},
        )

    def _rescheduled(self, exc: context.Reschedule) -> bytes:
        details: payload_pb2.Payload | None = None
        if exc.details is not None:
            try:
                data = codec.any_json.encode(exc.details)
                details = context.details_payload(data, self._hook)
            except (errors.ValueRefused, errors.CodecFailed) as refused:
                return self._failed(failure.from_exception(refused))
        rescheduled = worker_pb2.Rescheduled(delay=exc.delay, details=details)
        return self._written(worker_pb2.Result(rescheduled=rescheduled))

    def _failed(self, message: payload_pb2.Failure) -> bytes:
        return self._written(worker_pb2.Result(failed=worker_pb2.Failed(failure=message)))

    def _written(self, result: worker_pb2.Result) -> bytes:
        result.task_id = self.task_id
        result.lease_token = self.lease_token
        if self.started_at:
            self.run_seconds = time.monotonic() - self.started_at
            seconds = int(self.run_seconds)
            result.run_duration.seconds = seconds
            result.run_duration.nanos = int((self.run_seconds - seconds) * 1e9)
        return result.SerializeToString()


def cancel_asyncio(job: Job) -> None:
    """Cancels the asyncio task of a handler; on the loop that runs it."""
    if job.asyncio_task is None:
        return
    # A task that has not begun would end without a result; `started_at` says that it has.
    if job.started_at:
        job.asyncio_task.cancel(job.cancel_reason)
    else:
        asyncio.get_running_loop().call_later(0.001, cancel_asyncio, job)
