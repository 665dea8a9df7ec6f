"""Group commit: items that arrive while a transaction runs go into the next one.

There is no timer: an item that finds a batcher idle is flushed at once and alone, and the longer
flushes take the larger the next batches are, until a batch is full. Batches are filled round robin
over tenants, so that one tenant's flood does not stop another's trickle. A batch that PostgreSQL
refuses for its data, or that met a lock, is cut in two until the item at fault is alone with the
error; its mates are unaffected (INV-14).
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, TypeVar

from tenure_service.engine import limits
from tenure_service.engine.errors import Reason, TenureError
from tenure_service.store.database import Contention, DataRefused
from tenure_service.telemetry import metrics

T = TypeVar("T")
R = TypeVar("R")

_log = logging.getLogger(__name__)

#: How often an item that met a lock is tried once it is alone in its batch.
_TRIES_ALONE = 5


@dataclass(slots=True)
class _Waiting(Generic[T, R]):
    item: T
    count: int
    size: int
    future: asyncio.Future[R]


class Batcher(Generic[T, R]):
    """Collects items and flushes them in batches on threads of its own."""

    def __init__(
        self,
        name: str,
        flush: Callable[[Sequence[T]], Sequence[R]],
        *,
        threads: int = 1,
        count_max: int = limits.BATCH_COUNT_MAX,
        bytes_max: int = limits.BATCH_BYTES_MAX,
    ) -> None:
        """Prepares a batcher.

        Args:
            name: Names the threads.
            flush: Takes a batch, gives a result for each item in order; runs on a thread, in one
                transaction, and may be called again with parts of the batch.
            threads: How many batches may be under way at once.
            count_max: Items of one batch, as `submit` counts them.
            bytes_max: Size of one batch, as `submit` tells it.
        """
        self.name = name
        self._flush = flush
        self._threads = threads
        self._count_max = count_max
        self._bytes_max = bytes_max
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix=f"tenure-{name}")
        self._tenants: dict[int, deque[_Waiting[T, R]]] = {}
        self._running = 0
        self._waiting_count = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def submit(self, tenant: int, item: T, *, count: int = 1, size: int = 0) -> asyncio.Future[R]:
        """Queues an item of a tenant; the future has its result once its batch is committed.

        Raises:
            TenureError: OVERLOADED, if more is waiting than the server should hold.
        """
        if self._waiting_count and self._waiting_count + count > limits.QUEUED_COUNT_MAX:
            raise TenureError(
                Reason.OVERLOADED,
                f"the server has {self._waiting_count} items waiting to be written",
                retry_after=limits.OVERLOAD_PAUSE,
            )
        waiting: _Waiting[T, R] = _Waiting(
            item, count, size, asyncio.get_running_loop().create_future()
        )
        self._tenants.setdefault(tenant, deque()).append(waiting)
        self._waiting_count += count
        self._idle.clear()
        self._pump()
        return waiting.future

    @property
    def waiting_count(self) -> int:
        """Items that wait for a batch."""
        return self._waiting_count

    async def drain(self) -> None:
        """Waits until nothing is queued or under way."""
        await self._idle.wait()

    def close(self) -> None:
        """Ends the threads, after the batches that are under way."""
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _pump(self) -> None:
        while self._running < self._threads and self._tenants:
            batch = self._next_batch()
            self._running += 1
            loop = asyncio.get_running_loop()
            done = loop.run_in_executor(self._executor, self._flush_measured, batch)
            done.add_done_callback(self._flushed)

    def _next_batch(self) -> list[_Waiting[T, R]]:
        batch: list[_Waiting[T, R]] = []
        count = size = 0
        while self._tenants:
            tenant, queue = next(iter(self._tenants.items()))
            first = queue[0]
            full = count + first.count > self._count_max or size + first.size > self._bytes_max
            if batch and full:
                break
            queue.popleft()
            batch.append(first)
            count += first.count
            size += first.size
            # The tenant goes to the end of the order, or out of it.
            del self._tenants[tenant]
            if queue:
                self._tenants[tenant] = queue
        self._waiting_count -= count
        return batch

    def _flush_measured(
        self, batch: list[_Waiting[T, R]]
    ) -> list[tuple[_Waiting[T, R], R | Exception]]:
        began = time.perf_counter()
        parts = self._flush_parts(batch)
        metrics.BATCH_SECONDS.observe(time.perf_counter() - began, self.name)
        metrics.BATCH_ITEMS.observe(sum(waiting.count for waiting in batch), self.name)
        return parts

    def _flush_parts(
        self, batch: list[_Waiting[T, R]], tries: int = _TRIES_ALONE
    ) -> list[tuple[_Waiting[T, R], R | Exception]]:
        try:
            results = self._flush([waiting.item for waiting in batch])
        except (DataRefused, Contention) as exc:
            if len(batch) == 1:
                if isinstance(exc, Contention) and tries > 1:
                    return self._flush_parts(batch, tries - 1)
                return [(batch[0], exc)]
            middle = len(batch) // 2
            return self._flush_parts(batch[:middle]) + self._flush_parts(batch[middle:])
        except Exception as exc:  # noqa: BLE001 - every item must be answered
            if not isinstance(exc, TenureError):
                _log.exception("a batch of %s failed", self.name)
            return [(waiting, exc) for waiting in batch]
        return list(zip(batch, results, strict=True))

    def _flushed(self, done: asyncio.Future[list[tuple[_Waiting[T, R], R | Exception]]]) -> None:
        self._running -= 1
        if not done.cancelled():
            for waiting, result in done.result():
                if waiting.future.done():
                    continue
                if isinstance(result, Exception):
                    waiting.future.set_exception(result)
                    # Nobody may be there to look: the caller's stream may have ended.
                    waiting.future.exception()
                else:
                    waiting.future.set_result(result)
        if self._tenants:
            self._pump()
        elif self._running == 0:
            self._idle.set()
