"""Tests of handlers without a server or a worker.

A task is still its function, so a test calls it; `task_context` is for functions that ask
`current_task()` about their attempt, or tell it of their progress:

    from tenure import RetryAfter, testing

    def test_poll__not_ready__comes_back():
        with testing.task_context(attempt=2) as task, pytest.raises(RetryAfter) as asked:
            poll("job-7")
        assert asked.value.seconds == 30
        assert task.heartbeats == [{"seen": 0}]

What a handler raises passes as it is: nothing retries, waits, or keeps time.
"""

from __future__ import annotations

import contextlib
import uuid
from typing import TYPE_CHECKING, Any

from tenure import check, codec, context
from tenure.v1 import worker_pb2

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["TaskContext", "task_context"]

_COUNT_MAX = 2**31 - 1


class TaskContext:
    """TaskContext is the task that the function under test believes to run.

    Attributes:
        heartbeats: Details of each `heartbeat()`, in order, as their JSON reads; None for one
            without details.
    """

    def __init__(
        self, assignment: worker_pb2.Assignment, details: Any, time_left: float | None
    ) -> None:
        self.heartbeats: list[Any] = []
        self._assignment = assignment
        self._details = b"" if details is None else codec.any_json.encode(details)
        self._time_left = time_left
        self._cancel_reason: str | None = None

    def cancel(self, reason: str = "") -> None:
        """Asks for the end of the task: `cancelled` is True from now on.

        The next `heartbeat()` of a `def` handler raises CancelRequested.
        """
        self._cancel_reason = reason

    # What `current_task()` reads.

    @property
    def assignment(self) -> worker_pb2.Assignment:
        """The task as a server would hand it out."""
        return self._assignment

    @property
    def cancel_reason(self) -> str | None:
        """Why the task is to be cancelled; None: it is not."""
        return self._cancel_reason

    def time_left(self) -> float | None:
        """Returns the time left as it was given: it does not pass."""
        return self._time_left

    def details(self) -> bytes:
        """Returns the JSON that an earlier hand-out left; empty: none."""
        return self._details

    def progress(self, data: bytes) -> None:
        """Takes the details of a heartbeat, as JSON."""
        context.details_payload(data, None)
        self.heartbeats.append(codec.any_json.decode(data))


@contextlib.contextmanager
def task_context(
    *,
    name: str = "task",
    queue: str = "default",
    attempt: int = 1,
    max_attempts: int = 10,
    delivery: int | None = None,
    id: str | None = None,  # noqa: A002 - the word of `current_task()`
    details: Any = None,
    time_left: float | None = None,
    is_async: bool = False,
) -> Iterator[TaskContext]:
    """Lets `current_task()` work inside, in this thread and what copies its context.

    Args:
        name: Name of the task.
        queue: Queue it came from.
        attempt: Number of the attempt, from 1.
        max_attempts: Attempts that the policy allows in all.
        delivery: Number of the hand-out; default the attempt's.
        id: Id of the task; default a new one.
        details: JSON value that a heartbeat or `Reschedule` of an earlier hand-out left.
        time_left: Seconds until the attempt's limit; None: no limit.
        is_async: True for an `async def` handler, whose `heartbeat()` never raises CancelRequested.

    Raises:
        WrongType, WrongValue: something that no worker is handed.
        ValueRefused: the details are no JSON value.
    """
    check.text(name, "name")
    check.text(queue, "queue")
    check.whole(attempt, "attempt", 1, _COUNT_MAX)
    check.whole(max_attempts, "max_attempts", 1, 1_000)
    if delivery is not None:
        check.whole(delivery, "delivery", 1, _COUNT_MAX)
    if id is not None:
        check.text(id, "id")
    check.wait(time_left, "time_left")
    assignment = worker_pb2.Assignment(
        task_id=id or str(uuid.uuid4()),
        name=name,
        queue=queue,
        attempt=attempt,
        delivery=delivery or attempt,
        max_attempts=max_attempts,
    )
    tested = TaskContext(assignment, details, time_left)
    token = context.current.set(context.TaskInfo(tested, raises=not is_async))
    try:
        yield tested
    finally:
        context.current.reset(token)
