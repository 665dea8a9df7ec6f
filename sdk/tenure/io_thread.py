"""The one thread of a process on which all of this package's network traffic runs.

It runs an asyncio loop that owns every gRPC channel, the Work streams of workers and their
heartbeats. Handlers, validators and callbacks of the program never run on it, so nothing the
program does to its own loop or threads can delay a heartbeat, short of holding the interpreter
lock. One loop for everything is also what grpc.aio likes best: its completion queue is shared by
the process, and loops in several threads wake each other for nothing.

Both halves of the API end here: the blocking one waits for `run()`, the async one awaits
`arun()`.
"""

from __future__ import annotations

import asyncio
import atexit
import collections
import contextlib
import contextvars
import functools
import os
import threading
import weakref
from typing import TYPE_CHECKING, Any, TypeVar

from tenure import errors

if TYPE_CHECKING:
    import concurrent.futures
    from collections.abc import Awaitable, Callable, Coroutine

T = TypeVar("T")

# Time that channels get to say goodbye when the interpreter exits.
EXIT_SECONDS = 2.0


class _Passage:
    """_Passage takes calls of one other loop to the I/O loop, and their results back.

    The calls of one moment share a wake-up each way: to wake a loop of another thread costs more
    than to begin a call, and 64 callers of one loop would do so 64 times.
    """

    def __init__(self, there: asyncio.AbstractEventLoop, here: asyncio.AbstractEventLoop) -> None:
        self._there = there
        # The loop keeps this alive, not the other way round.
        self._here = weakref.ref(here)
        self._calls: collections.deque[_Call] = collections.deque()
        self._ended: collections.deque[_Call] = collections.deque()
        self._waking = False
        self._flushing = False

    async def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine on the I/O loop and awaits it here; cancelled with its caller."""
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        call = _Call(coroutine, answer, contextvars.copy_context())
        self._calls.append(call)
        # Looked at after the call is in the queue, and taken back there before the queue is emptied:
        # what rides along with another's wake-up is never left behind.
        if not self._waking:
            self._waking = True
            self._there.call_soon_threadsafe(self._begin)
        try:
            return await answer
        except asyncio.CancelledError:
            self._there.call_soon_threadsafe(call.cancel)
            raise

    def _begin(self) -> None:
        self._waking = False
        while self._calls:
            call = self._calls.popleft()
            if call.cancelled:
                call.coroutine.close()
                continue
            call.task = self._there.create_task(call.coroutine, context=call.context)
            call.task.add_done_callback(functools.partial(self._end, call))

    def _end(self, call: _Call, _: asyncio.Task[Any]) -> None:
        self._ended.append(call)
        if not self._flushing:
            # Behind what else ends in this pass of the loop.
            self._flushing = True
            self._there.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        here = self._here()
        if here is None or here.is_closed():
            self._ended.clear()
            return
        with contextlib.suppress(RuntimeError):  # closed in this very moment
            here.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        while self._ended:
            self._ended.popleft().deliver()


class _Call:
    """_Call is one coroutine on its way over and back."""

    __slots__ = ("answer", "cancelled", "context", "coroutine", "task")

    def __init__(
        self,
        coroutine: Coroutine[Any, Any, Any],
        answer: asyncio.Future[Any],
        context: contextvars.Context,
    ) -> None:
        self.coroutine = coroutine
        self.answer = answer
        self.context = context
        self.task: asyncio.Task[Any] | None = None
        self.cancelled = False

    def cancel(self) -> None:
        """Cancels it, on the I/O loop."""
        self.cancelled = True
        if self.task is not None:
            self.task.cancel()

    def deliver(self) -> None:
        """Gives its end to who awaits it, on the loop of that one."""
        if self.task is None or self.answer.done():
            return
        if self.task.cancelled():
            self.answer.cancel()
        elif (exc := self.task.exception()) is not None:
            self.answer.set_exception(exc)
        else:
            self.answer.set_result(self.task.result())


class IoThread:
    """IoThread starts its thread at the first use and keeps it until the interpreter exits."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._process_id = 0
        self._closers: list[Callable[[], Awaitable[None]]] = []
        self._passages: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Passage] = (
            weakref.WeakKeyDictionary()
        )

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop, started if need be.

        Raises:
            UsedAfterFork: the loop was started before this process was forked.
        """
        loop = self._loop
        if loop is not None and self._process_id == os.getpid():
            return loop
        return self._start()

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Starts a coroutine on the loop, from any other thread."""
        try:
            loop = self.loop
        except BaseException:
            coroutine.close()
            raise
        return asyncio.run_coroutine_threadsafe(coroutine, loop)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine on the loop and blocks until it is done.

        An interrupt of the waiting thread cancels the coroutine.
        """
        future = self.submit(coroutine)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    async def arun(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine on the loop and awaits it on the caller's loop."""
        try:
            there = self.loop
        except BaseException:
            coroutine.close()
            raise
        here = asyncio.get_running_loop()
        passage = self._passages.get(here)
        if passage is None:
            passage = self._passages[here] = _Passage(there, here)
        return await passage.run(coroutine)

    def at_exit(self, closer: Callable[[], Awaitable[None]]) -> None:
        """Has `closer` awaited on the loop when the interpreter exits."""
        self._closers.append(closer)

    def forked(self) -> None:
        """Makes the first use in a forked child answer: another thread may have held the lock."""
        self._lock = threading.Lock()

    def _start(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is not None:
                if self._process_id != os.getpid():
                    raise errors.UsedAfterFork(
                        f"process {os.getpid()} was forked from {self._process_id} after that had"
                        " connected to the server, and gRPC does not survive a fork: connect in"
                        " the child first, or start children with"
                        ' multiprocessing.get_context("spawn")'
                    )
                return self._loop
            loop = asyncio.new_event_loop()
            ready = threading.Event()
            self._thread = threading.Thread(
                target=self._run, args=(loop, ready), name="tenure-io", daemon=True
            )
            self._thread.start()
            ready.wait()
            self._process_id = os.getpid()
            self._loop = loop
            # threading's own hook runs before those of atexit, and before daemon threads freeze.
            atexit.register(self._close)
            return loop

    @staticmethod
    def _run(loop: asyncio.AbstractEventLoop, ready: threading.Event) -> None:
        asyncio.set_event_loop(loop)
        loop.call_soon(ready.set)
        try:
            loop.run_forever()
        finally:
            loop.close()

    def _close(self) -> None:
        loop, thread = self._loop, self._thread
        if loop is None or thread is None or self._process_id != os.getpid():
            return
        future = asyncio.run_coroutine_threadsafe(self._close_all(), loop)
        # The process exits: nobody is left to be told of an error.
        with contextlib.suppress(Exception):
            future.result(EXIT_SECONDS)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(EXIT_SECONDS)

    async def _close_all(self) -> None:
        for closer in self._closers:
            await closer()
        rest = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)


io_thread = IoThread()
if hasattr(os, "register_at_fork"):
    # gRPC reads this when it is first used. Its own care of forks, of no use to a child that may not
    # use it, kills one parent in ten (SIGSEGV); the Python side of it is off by default anyway.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    os.register_at_fork(after_in_child=io_thread.forked)


def refuse_in_loop(blocking: str, awaitable: str) -> None:
    """Raises BlockingCallInLoop if the calling thread runs an event loop.

    Args:
        blocking: Name of the form that was called.
        awaitable: Name of the form to call instead.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise errors.BlockingCallInLoop(blocking, awaitable)
