"""Where handlers run: threads for `def`, one event loop for `async def`, or processes.

Jobs come in batches from the I/O loop and wait in two queues; at most `concurrency` handlers run,
of both kinds together, and a free place goes to the queue whose head has waited longer.

Built for short handlers. A thread takes the next job under the lock it needs anyway to hand in the
last one; there is no future and no message between threads for one job. The I/O loop is woken only
if it has looked since the last time. And `def` handlers that are known to be short take turns on
one thread, while longer ones use as many as they may: measured with handlers that do nothing, one
thread ends 26,000 a second and ten threads 10,000, because they take the interpreter lock and the
lock of the pool from each other.

A handler in a process of its own, of either kind, occupies a thread here that waits for it
(`process`); so places, order, cancellation and results are the same for all.
"""

from __future__ import annotations

import asyncio
import collections
import contextvars
import threading
import time
from typing import TYPE_CHECKING

from tenure.worker.job import KILL_SECONDS, cancel_asyncio
from tenure.worker.loop_watch import LoopWatch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tenure.worker.job import Job
    from tenure.worker.process import HandlerProcesses

# Below this a second thread costs more in switches than it brings.
SHORT_SECONDS = 0.0002
# A handler that has run this long is not short, whoever held the interpreter lock meanwhile.
SHORT_SECONDS_SURE = 0.02
# How fast an estimate rises per job; it falls at once. Waits for the interpreter lock make single
# jobs look 5 ms long, and must not count.
ESTIMATE_RISE = 1.1


class HandlerPool:
    """HandlerPool runs jobs and collects what they came to.

    Args:
        concurrency: Handlers that run at once.
        wake: Called from any thread when there are results and nobody was told since `drain`.
        processes: Where isolated jobs run; None if there are none.
    """

    def __init__(
        self,
        concurrency: int,
        wake: Callable[[], None],
        processes: HandlerProcesses | None = None,
    ) -> None:
        self._processes = processes
        self._concurrency = concurrency
        self._wake = wake
        self._woken = False
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._idle_count = 0
        self._thread_count = 0
        self._closed = False
        self._sync: collections.deque[Job] = collections.deque()
        self._async: collections.deque[Job] = collections.deque()
        self._running: set[Job] = set()
        self._done: collections.deque[Job] = collections.deque()
        self._estimates: dict[str, float] = {}
        # The job that occupies the one thread for short handlers.
        self._short_job: Job | None = None
        self._finished_count = 0
        self._nudged_count = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pump_called = False
        self._loop_watch = LoopWatch()

    @property
    def running(self) -> list[Job]:
        """Jobs whose handlers run now."""
        with self._lock:
            return list(self._running)

    @property
    def waiting_count(self) -> int:
        """Jobs whose handlers have not started."""
        return len(self._sync) + len(self._async)

    @property
    def idle(self) -> bool:
        """True if nothing runs, waits, or has ended without being drained."""
        with self._lock:
            return not (self._running or self._sync or self._async or self._done)

    def loop(self) -> asyncio.AbstractEventLoop:
        """Returns the event loop of `async def` handlers, started if need be."""
        with self._lock:
            return self._start_loop()

    def submit(self, jobs: Iterable[Job]) -> None:
        """Takes jobs to run, in order. All have handlers."""
        with self._lock:
            for job in jobs:
                if job.is_async and not job.isolated:
                    self._async.append(job)
                else:
                    self._sync.append(job)
            self._invite()

    def nudge(self, now: float) -> None:
        """Sees to it that a short handler that turned out long does not hold the others back.

        To be called 20 times a second; does nothing while jobs end between two calls. Kills the
        processes whose time is over and looks whether the event loop answers, too.
        """
        if self._processes is not None:
            self._processes.enforce(now)
        loop = self._loop
        if loop is not None:
            self._loop_watch.look(loop, self.running)
        with self._lock:
            stuck = self._finished_count == self._nudged_count
            self._nudged_count = self._finished_count
            for job in self._running:
                elapsed = now - job.started_at if job.started_at else 0.0
                if elapsed > SHORT_SECONDS_SURE:
                    self._estimates[job.name] = elapsed
                    if job is self._short_job:
                        self._short_job = None
            if stuck:
                self._invite()

    def drain(self) -> list[Job]:
        """Takes the jobs that ended since the last call; each has its result."""
        self._woken = False
        done = self._done
        jobs = []
        while done:
            jobs.append(done.popleft())
        return jobs

    def take_back(self, keep_count: int = 0) -> list[Job]:
        """Takes out the jobs that wait, except the first `keep_count`; they will never run."""
        with self._lock:
            waiting = sorted((*self._sync, *self._async), key=lambda job: job.received_at)
            taken = waiting[keep_count:]
            gone = set(taken)
            self._sync = collections.deque(job for job in self._sync if job not in gone)
            self._async = collections.deque(job for job in self._async if job not in gone)
            return taken

    def cancel(
        self, job: Job, reason: str, *, stopped: bool = False, grace_seconds: float = 0.0
    ) -> None:
        """Cancels a job: one that waits ends at once, one that runs is told.

        An `async def` handler gets CancelledError; a `def` handler sees it in its TaskInfo. The
        process of an isolated one is killed half a second after `grace_seconds`. A job that was
        told is not told again, which would cut short what it does to end: only its time may shrink.
        """
        with self._lock:
            told = job.cancel_reason is not None
            kill_at = time.monotonic() + grace_seconds + KILL_SECONDS
            job.kill_at = kill_at if job.kill_at is None else min(kill_at, job.kill_at)
            if job.cancel_reason is None:
                job.cancel_reason = reason
                job.stopped = stopped
            for queue in (self._sync, self._async):
                if job in queue:
                    queue.remove(job)
                    job.result = job.cancelled()
                    self._done.append(job)
                    return
            if job not in self._running:
                return
            loop = self._loop if job.asyncio_task is not None else None
        if job.isolated and self._processes is not None:
            self._processes.cancel(job)
        elif loop is not None and not told:
            loop.call_soon_threadsafe(cancel_asyncio, job)

    def give_up(self, job: Job, result: bytes) -> bool:
        """Ends a job whose handler does not: what the handler still comes to is dropped.

        Returns:
            False if it had ended by then.
        """
        with self._lock:
            if job not in self._running:
                return False
            self._running.discard(job)
            job.result = result
            self._done.append(job)
            return True

    def close(self) -> None:
        """Lets idle threads end, and the event loop after its handlers; does not wait."""
        with self._lock:
            self._closed = True
            self._work.notify_all()
            loop = self._loop
        if loop is not None:
            loop.call_soon_threadsafe(loop.stop)

    # Under the lock.

    def _invite(self) -> None:
        """Gets a thread, and the event loop, to look for work if there is some for it."""
        self._invite_thread()
        self._invite_loop()

    def _invite_thread(self) -> None:
        if not self._sync or len(self._running) >= self._concurrency:
            return
        if self._idle_count:
            self._work.notify()
        elif self._thread_count < self._concurrency:
            self._thread_count += 1
            threading.Thread(
                target=self._work_off, name=f"tenure-handler-{self._thread_count}", daemon=True
            ).start()

    def _invite_loop(self) -> None:
        if not self._async or self._pump_called or len(self._running) >= self._concurrency:
            return
        self._pump_called = True
        self._start_loop().call_soon_threadsafe(self._pump)

    def _start_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            threading.Thread(
                target=_run_loop, args=(self._loop,), name="tenure-async", daemon=True
            ).start()
        return self._loop

    def _take_sync(self) -> Job | None:
        if _first(self._sync, self._async):
            return self._start(self._sync, threaded=True)
        self._invite_loop()
        return None

    def _take_async(self) -> Job | None:
        if _first(self._async, self._sync):
            return self._start(self._async, threaded=False)
        self._invite_thread()
        return None

    def _start(self, queue: collections.deque[Job], *, threaded: bool) -> Job | None:
        if len(self._running) >= self._concurrency:
            return None
        job = queue[0]
        if job.isolated or self._estimates.get(job.name, 1.0) > SHORT_SECONDS:
            queue.popleft()
            self._running.add(job)
            self._invite()
            return job
        if threaded:
            if self._short_job is not None:
                return None
            self._short_job = job
        queue.popleft()
        self._running.add(job)
        return job

    def _finish(self, job: Job, result: bytes) -> bool:
        """Keeps a result; returns True if the I/O loop is to be woken."""
        if job is self._short_job:
            self._short_job = None
        if job not in self._running:
            return False
        self._running.discard(job)
        job.result = result
        self._done.append(job)
        self._finished_count += 1
        name = job.name
        known = self._estimates.get(name)
        seconds = job.run_seconds
        self._estimates[name] = (
            seconds if known is None else min(seconds, known * ESTIMATE_RISE + 1e-6)
        )
        if self._woken:
            return False
        self._woken = True
        return True

    # On handler threads.

    def _work_off(self) -> None:
        with self._lock:
            job = self._take_sync()
        while True:
            if job is None:
                with self._lock:
                    while (job := self._take_sync()) is None:
                        if self._closed:
                            self._thread_count -= 1
                            return
                        self._idle_count += 1
                        self._work.wait()
                        self._idle_count -= 1
            result = self._run_sync(job)
            with self._lock:
                wake = self._finish(job, result)
                job = self._take_sync()
            if wake:
                self._wake()

    def _run_sync(self, job: Job) -> bytes:
        if job.isolated and self._processes is not None:
            return self._processes.run(job)
        return job.run()

    # On the event loop of `async def` handlers.

    def _pump(self) -> None:
        self._pump_called = False
        loop = asyncio.get_running_loop()
        while True:
            with self._lock:
                job = self._take_async()
                if job is None:
                    return
                # Set under the lock, so that a cancellation finds it.
                job.asyncio_task = loop.create_task(
                    self._run(job), name=f"tenure-{job.task_id}", context=contextvars.Context()
                )

    async def _run(self, job: Job) -> None:
        result = await job.arun()
        with self._lock:
            wake = self._finish(job, result)
        if wake:
            self._wake()
        self._pump()


def _first(own: collections.deque[Job], other: collections.deque[Job]) -> bool:
    """True if the next free place belongs to `own`: its head has not waited less."""
    return bool(own) and not (other and other[0].received_at < own[0].received_at)


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        for task in asyncio.all_tasks(loop):
            task.cancel()
        # Cancelled handlers get one moment to clean up; a stop has waited its grace before.
        give_up_at = time.monotonic() + 1.0
        while asyncio.all_tasks(loop) and time.monotonic() < give_up_at:
            loop.run_until_complete(asyncio.sleep(0.01))
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()
