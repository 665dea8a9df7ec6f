"""What a handler can know and say about the task it runs.

`current_task()` works in the handler's thread or asyncio task, and in what they start with their
context copied (`asyncio.create_task`, `asyncio.to_thread`).

Control flow, raised by handlers; `BaseException`s, so that `except Exception` lets them pass:

    ControlFlow
    +-- RetryAfter         fail this attempt, try again after a time of my choice
    +-- Reschedule         run the same task again later, no attempt spent
    +-- CancelRequested    raised by `heartbeat()` in a `def` handler whose task is to be cancelled
"""

from __future__ import annotations

import contextvars
import datetime
import logging
from typing import TYPE_CHECKING, Any, Protocol

from tenure import check, codec, errors, payload_codec, policy

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from tenure.v1 import payload_pb2, worker_pb2

# The server's limit for the details of a heartbeat or a reschedule.
DETAILS_BYTES_MAX = 64 * 1024


class ControlFlow(BaseException):
    """Root of what a handler raises to steer its task; catch with `except ControlFlow`."""


class RetryAfter(ControlFlow):
    """Fails the attempt; the next one, if the policy allows one, starts after `seconds`.

    Args:
        seconds: 0 s to 365 days, or a timedelta; kept as seconds.
        message: For people who read the failure.

    Raises:
        WrongType, WrongValue: another time.
    """

    def __init__(self, seconds: policy.Seconds, message: str = "") -> None:
        self.delay = policy.duration(seconds, "RetryAfter: seconds", check.RETRY_SECONDS_MAX)
        self.seconds = self.delay.ToTimedelta().total_seconds()
        super().__init__(message or f"the handler asked to be tried again after {seconds} s")


class Reschedule(ControlFlow):
    """Ends this hand-out and runs the same task again after `seconds`; no attempt is spent.

    Args:
        seconds: 0 s to 365 days, or a timedelta; kept as seconds.
        details: JSON value that the next run finds in `current_task().details`, at most 64 KiB.
            Another one fails the attempt, as `ValueRefused`.

    Raises:
        WrongType, WrongValue: another time.
    """

    def __init__(self, seconds: policy.Seconds, details: Any = None) -> None:
        self.delay = policy.duration(seconds, "Reschedule: seconds", check.RETRY_SECONDS_MAX)
        self.seconds = self.delay.ToTimedelta().total_seconds()
        self.details = details
        super().__init__(f"the handler asked to run again after {seconds} s")


class CancelRequested(ControlFlow):
    """The task is to be cancelled: clean up and let this pass (`finally`, or raise it again)."""


class Source(Protocol):
    """Source is what `TaskInfo` reads from the worker that runs the handler."""

    @property
    def assignment(self) -> worker_pb2.Assignment:
        """The task as it was handed out."""
        raise NotImplementedError

    @property
    def cancel_reason(self) -> str | None:
        """Why the task is to be cancelled; None: it is not."""
        raise NotImplementedError

    def time_left(self) -> float | None:
        """Returns seconds until the attempt's limit, negative once past it; None: no limit."""
        raise NotImplementedError

    def details(self) -> bytes:
        """Returns the JSON that an earlier hand-out left; empty: none."""
        raise NotImplementedError

    def progress(self, data: bytes) -> None:
        """Takes details, as JSON, for the next heartbeat of the worker."""
        raise NotImplementedError


def details_payload(data: bytes, hook: payload_codec.PayloadCodec | None) -> payload_pb2.Payload:
    """Returns details as they travel.

    Raises:
        ValueRefused: what travels would be longer than 64 KiB.
        CodecFailed: the app's codec could not encode them.
    """
    payload = payload_codec.write(data, "details", hook)
    if len(payload.data) > DETAILS_BYTES_MAX:
        raise errors.ValueRefused("details", f"{len(payload.data):,} bytes are more than 64 KiB")
    return payload


class TaskInfo:
    """TaskInfo is the task that a handler runs, and the way to talk about it."""

    __slots__ = ("_logger", "_raises", "_source")

    def __init__(self, source: Source, *, raises: bool) -> None:
        self._source = source
        self._raises = raises
        self._logger: logging.LoggerAdapter[logging.Logger] | None = None

    @property
    def id(self) -> str:
        """Id of the task, the same over all attempts."""
        return self._source.assignment.task_id

    @property
    def name(self) -> str:
        """Name of the task."""
        return self._source.assignment.name

    @property
    def queue(self) -> str:
        """Queue the task came from."""
        return self._source.assignment.queue

    @property
    def attempt(self) -> int:
        """Number of this attempt, from 1."""
        return self._source.assignment.attempt

    @property
    def delivery(self) -> int:
        """Number of this hand-out, from 1; above `attempt` if workers were lost."""
        return self._source.assignment.delivery

    @property
    def max_attempts(self) -> int:
        """Attempts that the policy allows in all."""
        return self._source.assignment.max_attempts

    @property
    def time_left(self) -> float | None:
        """Seconds until the attempt's time limit, by a clock nobody sets; None: no limit."""
        return self._source.time_left()

    @property
    def deadline(self) -> datetime.datetime | None:
        """The attempt's time limit as an instant of this machine's clock, UTC; None: no limit."""
        left = self._source.time_left()
        if left is None:
            return None
        return datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=left)

    @property
    def cancelled(self) -> bool:
        """True once the task is to be cancelled, or is no longer this worker's."""
        return self._source.cancel_reason is not None

    @property
    def cancel_reason(self) -> str:
        """Why it is to be cancelled; empty if it is not or nobody said why."""
        return self._source.cancel_reason or ""

    @property
    def details(self) -> Any:
        """JSON value of the latest `Reschedule` or heartbeat of an earlier hand-out, or None."""
        data = self._source.details()
        return codec.any_json.decode(data) if data else None

    @property
    def logger(self) -> logging.LoggerAdapter[logging.Logger]:
        """Logger `tenure.task` whose records carry `task_id`, `task_name` and `attempt`."""
        if self._logger is None:
            self._logger = _TaskLogger(
                logging.getLogger("tenure.task"),
                {"task_id": self.id, "task_name": self.name, "attempt": self.attempt},
            )
        return self._logger

    def heartbeat(self, details: Any = None) -> None:
        """Says that the handler makes progress; never blocks and may be called often.

        The worker keeps the lease alive by itself: this is for the policy's heartbeat timeout, for
        people who look, and to learn of a cancellation. The latest details win.

        Args:
            details: JSON value, at most 64 KiB, that readers and the next attempt see.

        Raises:
            CancelRequested: in a `def` handler, if the task is to be cancelled.
            ValueRefused: the details are no JSON value or too large.
            CodecFailed: the app's codec could not encode them.
        """
        self._source.progress(codec.any_json.encode(details))
        if self._raises and self._source.cancel_reason is not None:
            raise CancelRequested(self._source.cancel_reason or "the task is to be cancelled")


class _TaskLogger(logging.LoggerAdapter[logging.Logger]):
    def process(
        self, msg: Any, kwargs: MutableMapping[str, Any]
    ) -> tuple[Any, MutableMapping[str, Any]]:
        own = dict(self.extra or {})
        kwargs["extra"] = {**own, **(kwargs.get("extra") or {})}
        return f"[{own.get('task_name')} {own.get('task_id')}] {msg}", kwargs


current: contextvars.ContextVar[TaskInfo] = contextvars.ContextVar("tenure_current_task")


def current_task() -> TaskInfo:
    """Returns the task that the calling handler runs.

    Raises:
        NoCurrentTask: no handler runs here.
    """
    info = current.get(None)
    if info is None:
        raise errors.NoCurrentTask(
            "current_task() works only while a worker runs the handler;"
            " a test calls it inside tenure.testing.task_context()"
        )
    return info
