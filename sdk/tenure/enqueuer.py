"""Enqueueing tasks and starting runs: concurrent calls gather into few.

While one call is on its way, what further callers send gathers; when it returns, that goes as one
call. There is no timer: a lone caller never waits, many callers share commits. Each call has its
own request_id, so that a retry answers with the same tasks or runs.

Everything here runs on the I/O loop, but `in_batches` and `send_ahead`, which callers use.
"""

from __future__ import annotations

import asyncio
import collections
import uuid
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from tenure import errors, methods, status
from tenure.io_thread import io_thread
from tenure.v1 import run_pb2
from tenure.v1 import task_service_pb2 as tasks
from tenure.v1 import workflow_service_pb2 as workflows

if TYPE_CHECKING:
    import concurrent.futures
    from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence

    from tenure.connection import Connection

# Limits of one call. A commit of 1,000 tasks takes some 10 ms; more would keep single callers
# waiting, and messages of more than 16 MiB are refused.
TASK_COUNT_MAX = 1_000
CALL_BYTES_MAX = 4 * 1024 * 1024

Answer: TypeAlias = tasks.EnqueuedTask | errors.ServiceError
RunAnswer: TypeAlias = workflows.StartedRun | errors.ServiceError
New = TypeVar("New", tasks.NewTask, run_pb2.NewRun)
T = TypeVar("T")
Stored = TypeVar("Stored", tasks.EnqueuedTask, workflows.StartedRun)


class _Gathering(Generic[New, Stored]):
    """_Gathering gathers what concurrent callers of one connection send."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._waiting: collections.deque[
            tuple[New, asyncio.Future[Stored | errors.ServiceError]]
        ] = collections.deque()
        self._sender: asyncio.Task[None] | None = None

    async def _batch(self, batch: Sequence[New]) -> list[Stored | errors.ServiceError]:
        """Sends 1 to 1,000 in one call and answers each, in order."""
        raise NotImplementedError

    async def _one(self, new: New) -> Stored:
        future: asyncio.Future[Stored | errors.ServiceError] = (
            asyncio.get_running_loop().create_future()
        )
        self._waiting.append((new, future))
        if self._sender is None:
            self._sender = asyncio.create_task(self._send(), name="tenure-enqueue")
        answer = await future
        if isinstance(answer, errors.ServiceError):
            raise answer
        return answer

    async def _send(self) -> None:
        try:
            while batch := self._take():
                answers: list[Stored | errors.ServiceError]
                try:
                    answers = await self._batch([new for new, _ in batch])
                except errors.ServiceError as error:
                    answers = [error] * len(batch)
                except Exception as exc:  # noqa: BLE001 - a caller must never hang on a bug here
                    answers = [errors.ServiceError(f"the call failed: {exc!r}")] * len(batch)
                for (_, future), answer in zip(batch, answers, strict=True):
                    if not future.done():
                        future.set_result(answer)
        finally:
            self._sender = None
            # Left over only if the loop stops.
            for _, future in self._waiting:
                future.cancel()
            self._waiting.clear()

    def _take(self) -> list[tuple[New, asyncio.Future[Stored | errors.ServiceError]]]:
        batch: list[tuple[New, asyncio.Future[Stored | errors.ServiceError]]] = []
        size_bytes = 0
        while self._waiting and len(batch) < TASK_COUNT_MAX:
            new, future = self._waiting[0]
            if future.cancelled():
                self._waiting.popleft()
                continue
            size_bytes += new.ByteSize()
            if batch and size_bytes > CALL_BYTES_MAX:
                break
            batch.append((new, future))
            self._waiting.popleft()
        return batch


class Enqueuer(_Gathering[tasks.NewTask, tasks.EnqueuedTask]):
    """Enqueuer gathers the tasks of concurrent callers of one connection."""

    async def enqueue(self, task: tasks.NewTask) -> tasks.EnqueuedTask:
        """Enqueues one task, in one call with those of other callers.

        Raises:
            ServiceError: the task was refused, or the call failed.
        """
        return await self._one(task)

    async def enqueue_batch(self, batch: Sequence[tasks.NewTask]) -> list[Answer]:
        """Enqueues 1 to 1,000 tasks in one call of their own and answers each, in order.

        Raises:
            ServiceError: the whole call failed; a retry by the caller may store tasks twice.
        """
        request = tasks.EnqueueTasksRequest(request_id=str(uuid.uuid4()), tasks=batch)
        response = await self._connection.call(methods.ENQUEUE_TASKS, request)
        _check_count(len(batch), len(response.results))
        return [
            result.task if result.HasField("task") else status.from_status(result.error)
            for result in response.results
        ]

    async def _batch(self, batch: Sequence[tasks.NewTask]) -> list[Answer]:
        return await self.enqueue_batch(batch)


class Starter(_Gathering[run_pb2.NewRun, workflows.StartedRun]):
    """Starter gathers the runs that concurrent callers of one connection start."""

    async def start(self, run: run_pb2.NewRun) -> workflows.StartedRun:
        """Starts one run, in one call with those of other callers.

        Raises:
            ServiceError: the run was refused, or the call failed.
        """
        return await self._one(run)

    async def start_batch(self, batch: Sequence[run_pb2.NewRun]) -> list[RunAnswer]:
        """Starts 1 to 1,000 runs in one call of their own and answers each, in order.

        Raises:
            ServiceError: the whole call failed; a retry by the caller may start runs twice.
        """
        request = workflows.StartRunsRequest(request_id=str(uuid.uuid4()), runs=batch)
        response = await self._connection.call(methods.START_RUNS, request)
        _check_count(len(batch), len(response.results))
        return [
            result.run if result.HasField("run") else status.from_status(result.error)
            for result in response.results
        ]

    async def _batch(self, batch: Sequence[run_pb2.NewRun]) -> list[RunAnswer]:
        return await self.start_batch(batch)


def in_batches(every: Iterable[New]) -> Iterator[list[New]]:
    """Yields what is to be sent as it fits into calls, in order."""
    batch: list[New] = []
    size_bytes = 0
    for new in every:
        new_bytes = new.ByteSize()
        if batch and (len(batch) >= TASK_COUNT_MAX or size_bytes + new_bytes > CALL_BYTES_MAX):
            yield batch
            batch, size_bytes = [], 0
        batch.append(new)
        size_bytes += new_bytes
    if batch:
        yield batch


def send_ahead(
    batches: Iterable[list[New]], send: Callable[[list[New]], Coroutine[Any, Any, list[T]]]
) -> list[T]:
    """Sends batches from a thread of the program; gives the answers to all, in order.

    The next batch is encoded while the one before is on its way.
    """
    answers: list[T] = []
    ahead: concurrent.futures.Future[list[T]] | None = None
    for batch in batches:
        if ahead is not None:
            answers += ahead.result()
        ahead = io_thread.submit(send(batch))
    if ahead is not None:
        answers += ahead.result()
    return answers


def _check_count(sent: int, answered: int) -> None:
    if sent != answered:
        raise errors.ServerBug(f"{sent} items were sent and {answered} were answered")
