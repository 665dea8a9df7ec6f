"""Waiting for tasks: AwaitTasks calls of some ids each, for any number of waiters.

A long poll ends with the first task that is over, and the rest is asked for again: 10,000 ids in
one call would be 9,999 ids again after each end. So ids are followed in groups; a large call that
was answered goes on as several smaller ones. Many small groups are merged, so that a thousand
waiters do not hold a thousand calls. Calls are paced: where tasks end faster than calls are worth,
what is to be asked again gathers, and one call answers many.

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
# Calls at once; with one more than these the smaller half is merged.
POLL_COUNT_MAX = 128
# Ids that one call names: at least these, if there are so many, else a share of what is to be asked.
GROUP_ID_COUNT_MIN = 128
GROUP_COUNT_MAX = 4
ID_COUNT_MAX = 10_000
# What a call is taken to cost client and server, in seconds; calls wait until the ones before are
# paid for, beyond what a burst may owe.
CALL_SECONDS = 2e-3
CALL_SECONDS_PER_ID = 10e-6
BURST_SECONDS = 20e-3

Outcome: TypeAlias = task_pb2.TaskResult | errors.ServiceError


class Awaiter:
    """Awaiter follows the tasks of one connection that anybody waits for."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._waiters: dict[str, list[asyncio.Future[Outcome]]] = {}
        self._wanted_next: list[str] = []
        self._polls: dict[asyncio.Task[None], list[str]] = {}
        self._paid_at = 0.0
        self._pruning = False

    def follow(self, task_ids: Iterable[str]) -> list[asyncio.Future[Outcome]]:
        """Returns one future an id, done when the task is over, unknown, or nobody can be asked.

        Its exception is what kept the server from being asked. A caller that goes away cancels its
        futures.
        """
        loop = asyncio.get_running_loop()
        futures = []
        for task_id in task_ids:
            future: asyncio.Future[Outcome] = loop.create_future()
            future.add_done_callback(self._left)
            waiters = self._waiters.setdefault(task_id, [])
            if not waiters:
                self._ask([task_id])
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

    def _ask(self, ids: list[str]) -> None:
        """Has ids asked for soon, together with others."""
        if ids and not self._wanted_next:
            loop = asyncio.get_running_loop()
            # Not at once: whoever follows many, follows them one after the other.
            loop.call_later(max(self._paid_at - BURST_SECONDS - loop.time(), 0.0), self._start)
        self._wanted_next += ids

    def _start(self) -> None:
        ids, self._wanted_next = self._wanted_next, []
        if len(self._polls) >= POLL_COUNT_MAX:
            by_size = sorted(self._polls, key=lambda poll: len(self._polls[poll]))
            for poll in by_size[: POLL_COUNT_MAX // 2]:
                ids += self._polls.pop(poll)
                poll.cancel()
        # An id that somebody followed anew while it was asked for is in two groups.
        ids = [task_id for task_id in dict.fromkeys(ids) if self._wanted(task_id)]
        size = min(max(GROUP_ID_COUNT_MIN, -(-len(ids) // GROUP_COUNT_MAX)), ID_COUNT_MAX)
        cost = 0.0
        for start in range(0, len(ids), size):
            group = ids[start : start + size]
            poll = asyncio.create_task(self._poll(group), name="tenure-await")
            self._polls[poll] = group
            poll.add_done_callback(lambda done: self._polls.pop(done, None))
            cost += CALL_SECONDS + len(group) * CALL_SECONDS_PER_ID
        self._paid_at = max(self._paid_at, asyncio.get_running_loop().time()) + cost

    async def _poll(self, ids: list[str]) -> None:
        try:
            outcomes = await fetch(self._connection, ids, POLL_SECONDS)
        except errors.ServiceError as error:
            self._fail(ids, error)
            return
        except Exception as exc:  # noqa: BLE001 - a waiter must never hang on a bug here
            self._fail(ids, errors.ServiceError(f"AwaitTasks failed: {exc!r}"))
            return
        for task_id, outcome in outcomes.items():
            for future in self._waiters.pop(task_id, ()):
                if not future.done():
                    future.set_result(outcome)
        self._ask([task_id for task_id in ids if task_id in self._waiters])

    def _fail(self, ids: list[str], error: errors.ServiceError) -> None:
        for task_id in ids:
            for future in self._waiters.pop(task_id, ()):
                if not future.done():
                    future.set_exception(error)

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
