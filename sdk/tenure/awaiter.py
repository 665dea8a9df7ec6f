"""Waiting for tasks and runs: AwaitTasks and AwaitRuns calls of some ids each, for any number of waiters.

A long poll ends with the first that is over, and the rest is asked for again: 10,000 ids in
one call would be 9,999 ids again after each end. So ids are followed in groups; a large call that
was answered goes on as several smaller ones. Many small groups are merged, so that a thousand
waiters do not hold a thousand calls. Calls are paced: where they end faster than calls are worth,
what is to be asked again gathers, and one call answers many.

Everything here runs on the I/O loop.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Generic, TypeAlias, TypeVar

from google.protobuf import duration_pb2

from tenure import errors, methods, status
from tenure.v1 import run_pb2, task_pb2
from tenure.v1 import task_service_pb2 as tasks
from tenure.v1 import workflow_service_pb2 as workflows

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
RunOutcome: TypeAlias = run_pb2.RunResult | errors.ServiceError
Result = TypeVar("Result", task_pb2.TaskResult, run_pb2.RunResult)


class _Following(Generic[Result]):
    """_Following follows what anybody waits for over one connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._waiters: dict[str, list[asyncio.Future[Result | errors.ServiceError]]] = {}
        self._wanted_next: list[str] = []
        self._polls: dict[asyncio.Task[None], list[str]] = {}
        self._paid_at = 0.0
        self._pruning = False

    async def _fetch(self, ids: list[str]) -> dict[str, Result | errors.ServiceError]:
        """Makes one call."""
        raise NotImplementedError

    def follow(self, ids: Iterable[str]) -> list[asyncio.Future[Result | errors.ServiceError]]:
        """Returns one future an id, done when it is over, unknown, or nobody can be asked.

        Its exception is what kept the server from being asked. A caller that goes away cancels its
        futures.
        """
        loop = asyncio.get_running_loop()
        futures = []
        for each in ids:
            future: asyncio.Future[Result | errors.ServiceError] = loop.create_future()
            future.add_done_callback(self._left)
            waiters = self._waiters.setdefault(each, [])
            if not waiters:
                self._ask([each])
            waiters.append(future)
            futures.append(future)
        return futures

    async def outcome(self, one_id: str) -> Result:
        """Waits until one task or run is over.

        Raises:
            ServiceError: it is unknown, or the server cannot be asked.
        """
        (future,) = self.follow([one_id])
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
        ids = [each for each in dict.fromkeys(ids) if self._wanted(each)]
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
            outcomes = await self._fetch(ids)
        except errors.ServiceError as error:
            self._fail(ids, error)
            return
        except Exception as exc:  # noqa: BLE001 - a waiter must never hang on a bug here
            self._fail(ids, errors.ServiceError(f"waiting failed: {exc!r}"))
            return
        for each, outcome in outcomes.items():
            for future in self._waiters.pop(each, ()):
                if not future.done():
                    future.set_result(outcome)
        self._ask([each for each in ids if each in self._waiters])

    def _fail(self, ids: list[str], error: errors.ServiceError) -> None:
        for each in ids:
            for future in self._waiters.pop(each, ()):
                if not future.done():
                    future.set_exception(error)

    def _left(self, future: asyncio.Future[Result | errors.ServiceError]) -> None:
        """Has polls that nobody waits for any more ended, soon after a waiter goes away."""
        if future.cancelled() and not self._pruning:
            self._pruning = True
            asyncio.get_running_loop().call_soon(self._prune)

    def _prune(self) -> None:
        self._pruning = False
        for poll, ids in self._polls.items():
            if not any(map(self._wanted, ids)):
                poll.cancel()

    def _wanted(self, one_id: str) -> bool:
        waiters = self._waiters.get(one_id)
        if waiters is None:
            return False
        waiters[:] = [future for future in waiters if not future.done()]
        if not waiters:
            del self._waiters[one_id]
        return bool(waiters)


class Awaiter(_Following[task_pb2.TaskResult]):
    """Awaiter follows the tasks of one connection that anybody waits for."""

    async def _fetch(self, ids: list[str]) -> dict[str, Outcome]:
        return await fetch(self._connection, ids, POLL_SECONDS)


class RunAwaiter(_Following[run_pb2.RunResult]):
    """RunAwaiter follows the runs of one connection that anybody waits for."""

    async def _fetch(self, ids: list[str]) -> dict[str, RunOutcome]:
        return await fetch_runs(self._connection, ids, POLL_SECONDS)


async def fetch(
    connection: Connection, ids: Sequence[str], wait_seconds: float
) -> dict[str, Outcome]:
    """Makes one AwaitTasks call for up to 10,000 ids.

    Returns:
        The outcome of each task that is over or unknown by then, by id.

    Raises:
        ServiceError: the call failed.
    """
    request = tasks.AwaitTasksRequest(task_ids=ids, wait_duration=_duration(wait_seconds))
    response = await connection.call(methods.AWAIT_TASKS, request, extra_seconds=wait_seconds)
    return {
        each.task_id: each.result if each.HasField("result") else status.from_status(each.error)
        for each in response.results
    }


async def fetch_runs(
    connection: Connection, ids: Sequence[str], wait_seconds: float
) -> dict[str, RunOutcome]:
    """Makes one AwaitRuns call for up to 10,000 ids; answers as `fetch`."""
    request = workflows.AwaitRunsRequest(run_ids=ids, wait_duration=_duration(wait_seconds))
    response = await connection.call(methods.AWAIT_RUNS, request, extra_seconds=wait_seconds)
    return {
        each.run_id: each.result if each.HasField("result") else status.from_status(each.error)
        for each in response.results
    }


def _duration(seconds: float) -> duration_pb2.Duration:
    whole = int(seconds)
    return duration_pb2.Duration(seconds=whole, nanos=int((seconds - whole) * 1_000_000_000))
