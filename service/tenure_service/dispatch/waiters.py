"""Callers that wait for tasks to be over: woken by hints, answered with what is committed.

Outputs that this process recorded are given as they are; the rest is read from the database when a
hint comes: of tasks that this process ended otherwise, of other servers in coarse buckets over
NOTIFY; and once a second all that still wait are looked up in one statement, which is the truth.
What a caller was just told not to be over, and asks for again, is not looked up by itself: ten
thousand of them, each a call of its own, would be a look-up every few milliseconds.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence

from tenure_service.engine.states import Outcome
from tenure_service.engine.tokens import TaskKey
from tenure_service.store.leases import Completion
from tenure_service.store.rows import TaskResultRow

BUCKETS = 1024
#: For how long an answer that a task is not over is remembered: its caller asks again at once.
_SAID_SECONDS = 5.0


def bucket(task_id: str) -> int:
    """Gives the bucket of a task id: its last ten bits, which are random in a UUIDv7."""
    return int(task_id[-3:], 16) % BUCKETS


class Waiter:
    """One caller and the tasks, or runs, that it waits for."""

    __slots__ = ("event", "hinted", "keys", "known", "namespace_id", "of_runs")

    def __init__(
        self, namespace_id: int, keys: Iterable[TaskKey], *, of_runs: bool = False
    ) -> None:
        self.namespace_id = namespace_id
        self.of_runs = of_runs
        self.keys = {key.task_id: key for key in keys}
        self.hinted: set[str] = set()
        #: What was recorded here while it waited, by task id.
        self.known: dict[str, TaskResultRow] = {}
        self.event = asyncio.Event()

    def hint(self, task_ids: Iterable[str]) -> None:
        """Says that tasks may be over."""
        self.hinted.update(task_ids)
        self.event.set()


def _result(one: Completion, *, of_run: bool) -> TaskResultRow:
    return TaskResultRow(
        run_id=one.run_id,
        task_id=one.task_id,
        outcome=Outcome.DONE,
        dead=False,
        of_run=of_run,
        attempt=one.attempt,
        output=one.output,
        output_encoding=one.output_encoding,
        output_schema=one.output_schema,
        failure=None,
    )


class Waiters:
    """All callers of one process that wait."""

    def __init__(self) -> None:
        self._by_task: dict[str, set[Waiter]] = defaultdict(set)
        #: The same tasks by their buckets: news of one must not cost a look at 10,000 waiters.
        self._in_bucket: dict[int, set[str]] = defaultdict(set)
        self._listed_count = 0
        #: When somebody was last told that a task is not over.
        self._said: dict[tuple[int, TaskKey, bool], float] = {}
        #: When something was last heard of a bucket, while what was said is remembered.
        self._heard: dict[int, float] = {}

    def __len__(self) -> int:
        return len(self._by_task)

    def add(self, waiter: Waiter) -> None:
        """Begins to hint a waiter."""
        self._register(waiter, waiter.keys)

    def extend(self, waiter: Waiter, keys: Iterable[TaskKey]) -> list[str]:
        """Hints a waiter of more tasks; gives those that are new to it."""
        added = [key for key in dict.fromkeys(keys) if key.task_id not in waiter.keys]
        waiter.keys.update((key.task_id, key) for key in added)
        task_ids = [key.task_id for key in added]
        self._register(waiter, task_ids)
        return task_ids

    def _register(self, waiter: Waiter, task_ids: Iterable[str]) -> None:
        for task_id in task_ids:
            self._by_task[task_id].add(waiter)
            self._in_bucket[bucket(task_id)].add(task_id)

    def remove(self, waiter: Waiter) -> None:
        """Stops hinting it."""
        self._forget(waiter, waiter.keys)

    def drop(self, waiter: Waiter, task_ids: Sequence[str]) -> None:
        """Stops hinting it of some of its tasks."""
        self._forget(waiter, task_ids)
        for task_id in task_ids:
            waiter.keys.pop(task_id, None)

    def _forget(self, waiter: Waiter, task_ids: Iterable[str]) -> None:
        for task_id in task_ids:
            waiters = self._by_task.get(task_id)
            if waiters is not None:
                waiters.discard(waiter)
                if not waiters:
                    del self._by_task[task_id]
                    self._in_bucket[bucket(task_id)].discard(task_id)

    def said(self, namespace_id: int, keys: Iterable[TaskKey], *, of_runs: bool = False) -> None:
        """Notes that somebody is told that these tasks, or runs, are not over."""
        now = time.monotonic()
        self._said.update(((namespace_id, key, of_runs), now) for key in keys)

    def heard(self, waiter: Waiter) -> list[TaskKey]:
        """Lists those of a waiter's tasks that may be over: all but those just said not to be.

        What was heard of since counts as well.
        """
        since = time.monotonic() - _SAID_SECONDS
        found = []
        for task_id, key in waiter.keys.items():
            said = self._said.get((waiter.namespace_id, key, waiter.of_runs), 0.0)
            if said < since or self._heard.get(bucket(task_id), 0.0) >= said:
                found.append(key)
        return found

    def completed(self, completions: Iterable[tuple[int, Completion]]) -> None:
        """Gives outputs that were just committed to those that wait for them."""
        if not self._by_task:
            return
        for namespace_id, one in completions:
            key = TaskKey(one.run_id, one.task_id)
            for waiter in self._by_task.get(one.task_id, ()):
                # An id tells nothing to a namespace that is not its own.
                if waiter.namespace_id == namespace_id and waiter.keys[one.task_id] == key:
                    waiter.known[one.task_id] = _result(one, of_run=waiter.of_runs)
                    waiter.event.set()

    def over(self, task_ids: Iterable[str]) -> None:
        """Hints those that wait for one of these tasks."""
        now = time.monotonic()
        for task_id in task_ids:
            # Nearly nobody asks again, and ends are many.
            if self._said:
                self._heard[bucket(task_id)] = now
            for waiter in self._by_task.get(task_id, ()):
                waiter.hint((task_id,))

    def over_in(self, buckets: set[int]) -> None:
        """Hints those that wait for a task of one of these buckets."""
        now = time.monotonic()
        for number in buckets:
            self._heard[number] = now
            self.over(self._in_bucket.get(number, ()))

    def waited_for(self, count_max: int) -> list[TaskKey]:
        """Lists tasks that are waited for; of more than fit, the next ones at each call."""
        since = time.monotonic() - _SAID_SECONDS
        self._said = {key: at for key, at in self._said.items() if at >= since}
        task_ids = list(self._by_task)
        if len(task_ids) > count_max:
            start = self._listed_count % len(task_ids)
            task_ids = [*task_ids[start:], *task_ids[:start]][:count_max]
            self._listed_count += count_max
        return [next(iter(self._by_task[task_id])).keys[task_id] for task_id in task_ids]
