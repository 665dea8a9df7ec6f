"""Handles: what enqueueing gives, and the way to a result.

A handle is an id with a way to read the answer; it owns nothing, and the task goes on without it.
Results are decoded where the caller runs, never on the I/O loop: validators are user code.
"""

from __future__ import annotations

import asyncio
import collections
import functools
import logging
import queue
import time
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from tenure import (
    awaiter,
    check,
    context,
    errors,
    failure,
    methods,
    policy,
    reading,
    records,
    status,
)
from tenure.io_thread import io_thread, refuse_in_loop
from tenure.v1 import task_pb2
from tenure.v1 import task_service_pb2 as tasks

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Generator, Iterable, Iterator

    from tenure.connection import Connection
    from tenure.v1 import payload_pb2

_log = logging.getLogger("tenure")

R = TypeVar("R")


class Handle(Generic[R]):
    """Handle names one task and reads its result, typed as its handler returns it."""

    __slots__ = ("_connection", "_decode", "_id", "_outcome", "existing")

    def __init__(
        self,
        connection: Connection,
        task_id: str,
        decode: Callable[[payload_pb2.Payload, str], R],
        *,
        existing: bool = False,
    ) -> None:
        self._connection = connection
        self._id = task_id
        self._decode = decode
        self._outcome: awaiter.Outcome | None = None
        self.existing = existing
        """True if the task stood under its key before it was enqueued this time."""

    def __repr__(self) -> str:
        return f"<Handle {self._id}>"

    def __await__(self) -> Generator[Any, None, R]:
        return self.aresult().__await__()

    @property
    def id(self) -> str:
        """Id of the task."""
        return self._id

    def result(self, timeout: float | None = None) -> R:
        """Waits until the task is over and returns what its handler returned.

        Args:
            timeout: Seconds to wait; None: as long as it takes.

        Raises:
            TaskFailed: its last attempt failed; `failure` says how.
            TaskCancelled: it was cancelled.
            TaskTimedOut: its own time limit ended it.
            ResultTimeout: it is not over within `timeout`; it goes on.
            ValueRefused, CodecFailed: the result is not what the annotation or the codec says.
            NotFound: the namespace has no such task.
            Unavailable: without a `timeout`, the server did not answer for 30 s.
            BlockingCallInLoop: inside a running event loop; use `aresult`.
        """
        refuse_in_loop("result", "aresult")
        check.wait(timeout)
        warn_in_handler()
        return self._read(io_thread.run(self._wait(timeout)))

    async def aresult(self, timeout: float | None = None) -> R:
        """Awaitable form of `result`; `await handle` is the same without a timeout."""
        check.wait(timeout)
        warn_in_handler()
        return self._read(await io_thread.arun(self._wait(timeout)))

    def wait(self, timeout: float | None = None) -> records.TaskState:
        """Waits until the task is over, in whatever way, and returns its state.

        Raises:
            ResultTimeout: it is not over within `timeout` seconds.
        """
        refuse_in_loop("wait", "await_")
        check.wait(timeout)
        warn_in_handler()
        return self._state(io_thread.run(self._wait(timeout)))

    async def await_(self, timeout: float | None = None) -> records.TaskState:
        """Awaitable form of `wait`; the underscore because `await` is a keyword."""
        check.wait(timeout)
        warn_in_handler()
        return self._state(await io_thread.arun(self._wait(timeout)))

    def state(self) -> records.TaskState:
        """Asks where the task stands now."""
        refuse_in_loop("state", "astate")
        return io_thread.run(self._ask_state())

    async def astate(self) -> records.TaskState:
        """Awaitable form of `state`."""
        return await io_thread.arun(self._ask_state())

    def cancel(self, reason: str = "", *, grace: policy.Seconds | None = None) -> records.TaskState:
        """Asks for the end of the task; a running handler gets `grace` (30 s) to end.

        Args:
            reason: For people, and for the handler.
            grace: Seconds or a timedelta, up to a day.

        Returns:
            The state after the call; a task that was over stays as it is.

        Raises:
            NotFound: the namespace has no such task.
            Unavailable: the server did not answer for 30 s.
        """
        refuse_in_loop("cancel", "acancel")
        return io_thread.run(self._cancel(reason, grace))

    async def acancel(
        self, reason: str = "", *, grace: policy.Seconds | None = None
    ) -> records.TaskState:
        """Awaitable form of `cancel`."""
        return await io_thread.arun(self._cancel(reason, grace))

    async def _wait(self, timeout: float | None) -> awaiter.Outcome:
        if self._outcome is not None:
            return self._outcome
        try:
            if timeout is not None and timeout <= 0:
                outcomes = await awaiter.fetch(self._connection, [self._id], 0)
                if self._id not in outcomes:
                    raise TimeoutError  # noqa: TRY301 - one place says it in words
                outcome = outcomes[self._id]
            else:
                async with asyncio.timeout(timeout):
                    outcome = await self._told(goes_on=timeout is not None)
        except TimeoutError:
            raise errors.ResultTimeout(
                f"task {self._id} is not over after {timeout} s; it goes on"
            ) from None
        self._outcome = outcome
        return outcome

    async def _told(self, *, goes_on: bool) -> awaiter.Outcome:
        """Waits until the task is over; through outages of any length if it `goes_on`."""
        while True:
            try:
                return await self._connection.awaiter.outcome(self._id)
            except errors.ServiceError as error:
                if not goes_on or not may_pass(error):
                    raise

    async def _ask_state(self) -> records.TaskState:
        request = tasks.GetTaskRequest(task_id=self._id)
        response = await self._connection.call(methods.GET_TASK, request)
        return reading.task_state(response.task.state)

    async def _cancel(self, reason: str, grace: policy.Seconds | None) -> records.TaskState:
        request = tasks.CancelTasksRequest(task_ids=[self._id], reason=reason)
        if grace is not None:
            request.grace_duration.CopyFrom(policy.duration(grace, "grace"))
        (answer,) = (await self._connection.call(methods.CANCEL_TASKS, request)).results
        if answer.HasField("error"):
            raise status.from_status(answer.error)
        return reading.task_state(answer.state)

    def _read(self, outcome: awaiter.Outcome) -> R:
        result = _known(outcome)
        if result.state == task_pb2.TASK_STATE_COMPLETED:
            where = f"result of task {self._id}"
            return self._decode(result.output, where)
        cause = failure.from_proto(result.failure) if result.HasField("failure") else None
        if result.state == task_pb2.TASK_STATE_CANCELLED:
            raise errors.TaskCancelled(
                f"task {self._id} was cancelled",
                task_id=self._id,
                failure=cause,
                attempt=result.attempt,
            )
        if result.state == task_pb2.TASK_STATE_TIMED_OUT:
            raise errors.TaskTimedOut(
                f"task {self._id} ran out of time",
                task_id=self._id,
                failure=cause,
                attempt=result.attempt,
            )
        raise errors.TaskFailed(
            task_id=self._id,
            failure=cause or failure.Failure(type="Unknown"),
            attempt=result.attempt,
        )

    @staticmethod
    def _state(outcome: awaiter.Outcome) -> records.TaskState:
        return reading.task_state(_known(outcome).state)


def as_completed(handles: Iterable[Handle[R]], timeout: float | None = None) -> Iterator[Handle[R]]:
    """Yields handles as their tasks are over, each once; `result()` then answers at once.

    Few calls for many handles: one long poll for up to 10,000 of them.

    Args:
        handles: Handles, of one or several apps.
        timeout: Seconds for all of them; None: as long as it takes.

    Raises:
        ResultTimeout: some are not over within `timeout`.
        Unavailable: without a `timeout`, the server did not answer for 30 s.
    """
    refuse_in_loop("as_completed", "aas_completed")
    check.wait(timeout)
    warn_in_handler()
    return _as_completed(list(handles), timeout)


_warned_names: set[str] = set()


def warn_in_handler() -> None:
    """Warns, once for each task name, that a handler waits while it keeps its slot."""
    info = context.current.get(None)
    if info is None or info.name in _warned_names:
        return
    _warned_names.add(info.name)
    _log.warning(
        "the handler of task %s waits for another task or run and keeps its slot meanwhile: once every"
        " slot of every worker waits so, none is left for what they wait for. Enqueue the next task at"
        " the end of the handler instead, or serve what it waits for by other workers on another queue",
        info.name,
    )


def _as_completed(handles: list[Handle[R]], timeout: float | None) -> Iterator[Handle[R]]:
    give_up_at = None if timeout is None else time.monotonic() + timeout
    done: queue.SimpleQueue[Handle[R] | errors.ServiceError] = queue.SimpleQueue()
    following = io_thread.run(_follow(handles, done.put, goes_on=timeout is not None))
    try:
        for count in range(len(handles)):
            left = None if give_up_at is None else max(0.0, give_up_at - time.monotonic())
            try:
                told = done.get(timeout=left)
            except queue.Empty:
                raise _not_over(len(handles) - count, len(handles), timeout) from None
            if isinstance(told, errors.ServiceError):
                raise told
            yield told
    finally:
        _forget(following)


async def aas_completed(
    handles: Iterable[Handle[R]], timeout: float | None = None
) -> AsyncIterator[Handle[R]]:
    """Awaitable form of `as_completed`: `async for handle in tenure.aas_completed(handles)`."""
    check.wait(timeout)
    warn_in_handler()
    every = list(handles)
    loop = asyncio.get_running_loop()
    give_up_at = None if timeout is None else loop.time() + timeout
    done: asyncio.Queue[Handle[R] | errors.ServiceError] = asyncio.Queue()

    def put(told: Handle[R] | errors.ServiceError) -> None:
        loop.call_soon_threadsafe(done.put_nowait, told)

    following = await io_thread.arun(_follow(every, put, goes_on=timeout is not None))
    try:
        for count in range(len(every)):
            try:
                async with asyncio.timeout_at(give_up_at):
                    told = await done.get()
            except TimeoutError:
                raise _not_over(len(every) - count, len(every), timeout) from None
            if isinstance(told, errors.ServiceError):
                raise told
            yield told
    finally:
        _forget(following)


async def _follow(
    handles: list[Handle[R]],
    put: Callable[[Handle[R] | errors.ServiceError], None],
    *,
    goes_on: bool,
) -> list[asyncio.Future[awaiter.Outcome]]:
    """Starts to follow the handles that are not known to be over; runs on the I/O loop.

    Args:
        handles: Which ones.
        put: Called with each handle that is over, or with why the server cannot be asked.
        goes_on: True if an outage is to be sat out.
    """
    following: list[asyncio.Future[awaiter.Outcome]] = []

    def start(connection: Connection, members: list[Handle[R]]) -> None:
        futures = connection.awaiter.follow(handle.id for handle in members)
        for handle, future in zip(members, futures, strict=True):
            future.add_done_callback(functools.partial(over, connection, handle))
        following.extend(futures)

    def over(
        connection: Connection, handle: Handle[R], future: asyncio.Future[awaiter.Outcome]
    ) -> None:
        if future.cancelled():
            return
        error = future.exception()
        if error is None:
            handle._outcome = future.result()  # noqa: SLF001 - a handle of this module
            put(handle)
        elif not isinstance(error, errors.ServiceError):
            put(errors.ServiceError(repr(error)))
        elif goes_on and may_pass(error):
            start(connection, [handle])
        else:
            put(error)

    groups: dict[Connection, list[Handle[R]]] = collections.defaultdict(list)
    for handle in handles:
        if handle._outcome is None:  # noqa: SLF001
            groups[handle._connection].append(handle)  # noqa: SLF001
        else:
            put(handle)
    for connection, members in groups.items():
        start(connection, members)
    return following


def _forget(following: list[asyncio.Future[awaiter.Outcome]]) -> None:
    def cancel() -> None:
        for future in following:
            future.cancel()

    io_thread.loop.call_soon_threadsafe(cancel)


def may_pass(error: errors.ServiceError) -> bool:
    """Says whether waiting may cure it: an outage, and no address that cannot be spoken to."""
    return isinstance(error, errors.Unavailable) and not isinstance(error, errors.TransportMismatch)


def _known(outcome: awaiter.Outcome) -> task_pb2.TaskResult:
    if isinstance(outcome, errors.ServiceError):
        raise outcome
    return outcome


def _not_over(count: int, total: int, timeout: float | None) -> errors.ResultTimeout:
    return errors.ResultTimeout(f"{count} of {total} tasks are not over after {timeout} s")
