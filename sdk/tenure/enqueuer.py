"""Enqueueing: concurrent calls gather into few.

While one EnqueueTasks call is on its way, the tasks of further callers gather; when it returns,
they go as one call. There is no timer: a lone caller never waits, many callers share commits. Each
call has its own request_id, so that a retry answers with the same tasks.

Everything here runs on the I/O loop.
"""

from __future__ import annotations

import asyncio
import collections
import uuid
from typing import TYPE_CHECKING, TypeAlias

from tenure import errors, methods, status
from tenure.v1 import task_service_pb2 as tasks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tenure.connection import Connection

# Limits of one call. A commit of 1,000 tasks takes some 10 ms; more would keep single callers
# waiting, and messages of more than 16 MiB are refused.
TASK_COUNT_MAX = 1_000
CALL_BYTES_MAX = 4 * 1024 * 1024

Answer: TypeAlias = tasks.EnqueuedTask | errors.ServiceError


class Enqueuer:
    """Enqueuer gathers the tasks of concurrent callers of one connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._waiting: collections.deque[tuple[tasks.NewTask, asyncio.Future[Answer]]] = (
            collections.deque()
        )
        self._sender: asyncio.Task[None] | None = None

    async def enqueue(self, task: tasks.NewTask) -> tasks.EnqueuedTask:
        """Enqueues one task, in one call with those of other callers.

        Raises:
            ServiceError: the task was refused, or the call failed.
        """
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting.append((task, future))
        if self._sender is None:
            self._sender = asyncio.create_task(self._send(), name="tenure-enqueue")
        answer = await future
        if isinstance(answer, errors.ServiceError):
            raise answer
        return answer

    async def enqueue_batch(self, batch: Sequence[tasks.NewTask]) -> list[Answer]:
        """Enqueues 1 to 1,000 tasks in one call of their own and answers each, in order.

        Raises:
            ServiceError: the whole call failed; a retry by the caller may store tasks twice.
        """
        request = tasks.EnqueueTasksRequest(request_id=str(uuid.uuid4()), tasks=batch)
        response = await self._connection.call(methods.ENQUEUE_TASKS, request)
        if len(response.results) != len(batch):
            raise errors.ServerBug(
                f"{len(batch)} tasks were sent and {len(response.results)} were answered"
            )
        return [
            result.task if result.HasField("task") else status.from_status(result.error)
            for result in response.results
        ]

    async def _send(self) -> None:
        try:
            while batch := self._take():
                try:
                    answers = await self.enqueue_batch([task for task, _ in batch])
                except errors.ServiceError as error:
                    answers = [error] * len(batch)
                except Exception as exc:  # noqa: BLE001 - a caller must never hang on a bug here
                    answers = [errors.ServiceError(f"EnqueueTasks failed: {exc!r}")] * len(batch)
                for (_, future), answer in zip(batch, answers, strict=True):
                    if not future.done():
                        future.set_result(answer)
        finally:
            self._sender = None
            # Left over only if the loop stops.
            for _, future in self._waiting:
                future.cancel()
            self._waiting.clear()

    def _take(self) -> list[tuple[tasks.NewTask, asyncio.Future[Answer]]]:
        batch: list[tuple[tasks.NewTask, asyncio.Future[Answer]]] = []
        size_bytes = 0
        while self._waiting and len(batch) < TASK_COUNT_MAX:
            task, future = self._waiting[0]
            if future.cancelled():
                self._waiting.popleft()
                continue
            size_bytes += task.ByteSize()
            if batch and size_bytes > CALL_BYTES_MAX:
                break
            batch.append((task, future))
            self._waiting.popleft()
        return batch
