"""Callers that wait for tasks to be over: woken by hints, answered from the database.

This process tells of the tasks that it ended itself; other servers tell in coarse buckets over
NOTIFY; and once a second all that still wait are looked up in one statement, which is the truth.
What a caller was just told not to be over, and asks for again, is not looked up by itself: ten
thousand of them, each a call of its own, would be a look-up every few milliseconds.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import Iterable

from tenure_service.engine.tokens import TaskKey

BUCKETS = 1024
#: For how long an answer that a task is not over is remembered: its caller asks again at once.
_SAID_SECONDS = 5.0


def bucket(task_id: str) -> int:
    """Gives the bucket of a task id: its last ten bits, which are random in a UUIDv7."""
    return int(task_id[-3:], 16) % BUCKETS


class Waiter:
    """One caller and the tasks it waits for."""

    __slots__ = ("event", "hinted", "keys", "namespace_id")

    def __init__(self, namespace_id: int, keys: Iterable[TaskKey]) -> None:
        self.namespace_id = namespace_id
        self.keys = {key.task_id: key for key in keys}
        self.hinted: set[str] = set()
        self.event = asyncio.Event()

    def hint(self, task_ids: Iterable[str]) -> None:
        """Says that tasks may be over."""
        self.hinted.update(task_ids)
        self.event.set()


class Waiters:
    """All callers of one process that wait."""

    def __init__(self) -> None:
        self._by_task: dict[str, set[Waiter]] = defaultdict(set)
        #: The same tasks by their buckets: news of one must not cost a look at 10,000 waiters.
        self._in_bucket: dict[int, set[str]] = defaultdict(set)
        self._listed_count = 0
        #: When somebody was last told that a task is not over.
        self._said: dict[tuple[int, TaskKey], float] = {}
        #: When something was last heard of a bucket, while what was said is remembered.
        self._heard: dict[int, float] = {}

    def __len__(self) -> int:
        return len(self._by_task)

    def add(self, waiter: Waiter) -> None:
        """Begins to hint a waiter."""
        for task_id in waiter.keys:
            self._by_task[task_id].add(waiter)
            self._in_bucket[bucket(task_id)].add(task_id)

    def remove(self, waiter: Waiter) -> None:
        """Stops hinting it."""
        for task_id in waiter.keys:
            waiters = self._by_task.get(task_id)
            if waiters is not None:
                waiters.discard(waiter)
                if not waiters:
                    del self._by_task[task_id]
                    self._in_bucket[bucket(task_id)].discard(task_id)

    def said(self, namespace_id: int, keys: Iterable[TaskKey]) -> None:
        """Notes that somebody is told that these tasks are not over."""
        now = time.monotonic()
        self._said.update(((namespace_id, key), now) for key in keys)

    def heard(self, waiter: Waiter) -> list[TaskKey]:
        """Lists those of a waiter's tasks that may be over: all but those just said not to be.

        What was heard of since counts as well.
        """
        since = time.monotonic() - _SAID_SECONDS
        found = []
        for task_id, key in waiter.keys.items():
            said = self._said.get((waiter.namespace_id, key), 0.0)
            if said < since or self._heard.get(bucket(task_id), 0.0) >= said:
                found.append(key)
        return found

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
