"""Waiting for tasks: few AwaitTasks calls for many waiters.

Ids that are asked for together are followed together, by one long poll at a time. More than a few
polls at once are merged into one, so that a thousand waiters do not hold a thousand calls. After
an answer the next poll waits in proportion to the number of ids it names: asking for 10,000 ids
after each single end would cost more than the tasks.

Everything here runs on the I/O loop.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeAlias

from google.protobuf import duration_pb2

from tenure import errors, methods, status
from tenure.v1 import task_pb2
from tenure.v1 import task_service_pb2 as tasks

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tenure.connection import Connection

POLL_SECONDS = 30
POLL_COUNT_MAX = 4
ID_COUNT_MAX = 10_000
PAUSE_SECONDS_PER_ID = 20e-6

Outcome: TypeAlias = task_pb2.TaskResult | errors.ServiceError


class Awaiter:
    """Awaiter follows the tasks of one connection that anybody waits for."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._waiters: dict[str, list[asyncio.Future[Outcome]]] = {}
        self._fresh: list[str] = []
        self._polls: dict[asyncio.Task[None], list[str]] = {}
        self._pruning = False

    def follow(self, task_ids: Iterable[str]) -> list[asyncio.Future[Outcome]]:
        """Returns one future an id, done when the task is over or cannot be told.

        A caller that goes away cancels its futures.
        """
        loop = asyncio.get_running_loop()
        futures = []
        for task_id in task_ids:
            future: asyncio.Future[Outcome] = loop.create_future()
            future.add_done_callback(self._left)
            waiters = self._waiters.setdefault(task_id, [])
            if not waiters:
                if not self._fresh:
                    loop.call_soon(self._start)
                self._fresh.append(task_id)
            waiters.append(future)
            futures.append(future)
        return futures

    async def outcome(self, task_id: str) -> task_pb2.TaskResult:
        """Waits until one task is over.

        Raises:
            ServiceError: the task is unknown, or the server cannot be asked.
        """
        (future,) = self.follow([task_id])
        outcome = await future
        if isinstance(outcome, errors.ServiceError):
            raise outcome
        return outcome

    def _start(self) -> None:
        ids, self._fresh = self._fresh, []
        if len(self._polls) >= POLL_COUNT_MAX:
            for poll in self._polls:
                poll.cancel()
            ids = list(self._waiters)
        for start in range(0, len(ids), ID_COUNT_MAX):
            share = ids[start : start + ID_COUNT_MAX]
            poll = asyncio.create_task(self._poll(share), name="tenure-await")
            self._polls[poll] = share
            poll.add_done_callback(lambda done: self._polls.pop(done, None))

    async def _poll(self, ids: list[str]) -> None:
        while ids := [task_id for task_id in ids if self._wanted(task_id)]:
            try:
                outcomes = await fetch(self._connection, ids, POLL_SECONDS)
            except errors.ServiceError as error:
                outcomes = dict.fromkeys(ids, error)
            except Exception as exc:  # noqa: BLE001 - a waiter must never hang on a bug here
                outcomes = dict.fromkeys(ids, errors.ServiceError(f"AwaitTasks failed: {exc!r}"))
            for task_id, outcome in outcomes.items():
                for future in self._waiters.pop(task_id, ()):
                    if not future.done():
                        future.set_result(outcome)
            await asyncio.sleep(len(ids) * PAUSE_SECONDS_PER_ID)

    def _left(self, future: asyncio.Future[Outcome]) -> None:
        """Has polls that nobody waits for any more ended, soon after a waiter goes away."""
        if future.cancelled() and not self._pruning:
            self._pruning = True
            asyncio.get_running_loop().call_soon(self._prune)

    def _prune(self) -> None:
        self._pruning = False
        for poll, ids in self._polls.items():
            if not any(self._wanted(task_id) for task_id in ids):
                poll.cancel()

    def _wanted(self, task_id: str) -> bool:
        waiters = self._waiters.get(task_id)
        if waiters is None:
            return False
        waiters[:] = [future for future in waiters if not future.done()]
        if not waiters:
            del self._waiters[task_id]
        return bool(waiters)


async def fetch(
    connection: Connection, ids: Sequence[str], wait_seconds: float
) -> dict[str, Outcome]:
    """Makes one AwaitTasks call for up to 10,000 ids.

    Returns:
        The outcome of each task that is over or unknown by then, by id.

    Raises:
        ServiceError: the call failed.
    """
    whole = int(wait_seconds)
    request = tasks.AwaitTasksRequest(
        task_ids=ids,
        wait_duration=duration_pb2.Duration(
            seconds=whole, nanos=int((wait_seconds - whole) * 1_000_000_000)
        ),
    )
    response = await connection.call(methods.AWAIT_TASKS, request, extra_seconds=wait_seconds)
    return {
        each.task_id: each.result if each.HasField("result") else status.from_status(each.error)
        for each in response.results
    }
