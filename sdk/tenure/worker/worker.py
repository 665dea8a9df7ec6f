"""The worker as a program sees it: run it, or start and close it."""

from __future__ import annotations

import asyncio
import importlib.metadata
import itertools
import os
import signal
import socket
import threading
from typing import TYPE_CHECKING, Any

from tenure import errors
from tenure.io_thread import io_thread, refuse_in_loop
from tenure.v1 import worker_pb2
from tenure.worker import session as sessions

if TYPE_CHECKING:
    import concurrent.futures
    from collections.abc import Mapping, Sequence
    from types import FrameType, TracebackType
    from typing import Self

    from tenure.app import App

CONCURRENCY = 10
PREFETCH_MAX = 1_000
GRACE_SECONDS = 30.0
_HANDLER_COUNT_MAX = 1_000
# Time for channel and tasks to end after the session has said goodbye.
_END_SECONDS = 5.0
_SLOT_COUNT_MAX = 10_000
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)

_numbers = itertools.count(1)


class Worker:
    """Worker runs the tasks of an app.

    `def` handlers run in up to `concurrency` threads, `async def` handlers on an event loop in a
    thread of its own; heartbeats and the stream have another one that handlers cannot block.

    Args:
        app: The app whose tasks it serves.
        queues: Queues to serve, for every task of the app; a mapping also says how many tasks of a
            queue it takes at a time. None: each task on the queue it declares.
        concurrency: Handlers that run at once.
        name: Name for people; default host, process id and a number.
        prefetch_max: Most tasks it takes at a time once handlers have proved short (their median
            under 100 ms); `concurrency` or less: no more than can run.
    """

    def __init__(
        self,
        app: App,
        queues: Sequence[str] | Mapping[str, int] | None = None,
        concurrency: int = CONCURRENCY,
        name: str | None = None,
        *,
        prefetch_max: int = PREFETCH_MAX,
    ) -> None:
        if isinstance(queues, str):
            raise errors.UsageError(f"queues is a list of names: [{queues!r}]")
        if not 1 <= concurrency <= _SLOT_COUNT_MAX:
            raise errors.UsageError(f"concurrency is 1 to {_SLOT_COUNT_MAX:,}: {concurrency}")
        if not 0 <= prefetch_max <= _SLOT_COUNT_MAX:
            raise errors.UsageError(f"prefetch_max is 0 to {_SLOT_COUNT_MAX:,}: {prefetch_max}")
        self.app = app
        self.name = name or f"{socket.gethostname()}-{os.getpid()}-{next(_numbers)}"
        self._queues = queues
        self._concurrency = concurrency
        self._prefetch_max = prefetch_max
        self._session: sessions.Session | None = None
        self._done: concurrent.futures.Future[None] | None = None
        self._hurry: asyncio.Event | None = None
        self._signals = 0

    @property
    def slots(self) -> int:
        """Tasks it asks for at a time; more than `concurrency` once handlers proved short."""
        return self._session.slots if self._session is not None else 0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    def run(self, grace: float = GRACE_SECONDS) -> None:
        """Runs until SIGTERM or SIGINT, then stops like `close(grace)`.

        A second signal ends the grace at once; a third one does what it would without a worker.
        To be called in the main thread, where Python delivers signals.

        Raises:
            UsageError: not in the main thread; use `start()` and `close()`.
        """
        refuse_in_loop("Worker.run", "async with Worker(...)")
        if threading.current_thread() is not threading.main_thread():
            raise errors.UsageError(
                "Worker.run() handles signals and needs the main thread;"
                " use start() and close() in others"
            )
        stop = threading.Event()
        before: dict[signal.Signals, Any] = {}

        def on_signal(number: int, frame: FrameType | None) -> None:
            del frame
            self._signals += 1
            if self._signals == 1:
                stop.set()
                return
            self._hurry_up()
            signal.signal(number, before[signal.Signals(number)])

        for number in _STOP_SIGNALS:
            before[number] = signal.signal(number, on_signal)
        try:
            self.start()
            # A bounded wait, so that signals are looked at on every platform.
            while not stop.wait(1.0):
                self._raise_if_dead()
            self.close(grace)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            self._signals = 0

    def start(self) -> None:
        """Starts serving and returns at once; connects, and connects again, by itself.

        Touches no signals.

        Raises:
            HandlerRefused: a handler's annotations cannot be resolved, or there is no handler.
            UsageError: it runs already.
            UsedAfterFork: this process was forked after its parent had connected.
        """
        if self._session is not None:
            raise errors.UsageError(f"the worker {self.name} runs already")
        settings = self._settings()
        self._session, self._done = sessions.start(self.app.target, settings)

    def close(self, grace: float = GRACE_SECONDS) -> None:
        """Stops: takes nothing new, lets handlers end, reports, closes the session.

        Tasks whose handlers have not started go back as they were. Handlers that still run after
        `grace` seconds are cancelled; an attempt that was cut off is spent. Does nothing if the
        worker does not run.
        """
        refuse_in_loop("Worker.close", "Worker.aclose")
        if self._session is not None:
            io_thread.run(self._close(self._session, grace))
            self._over()

    async def aclose(self, grace: float = GRACE_SECONDS) -> None:
        """Awaitable form of `close`."""
        if self._session is not None:
            await io_thread.arun(self._close(self._session, grace))
            self._over()

    async def _close(self, session: sessions.Session, grace: float) -> None:
        self._hurry = asyncio.Event()
        if self._signals > 1:
            self._hurry.set()
        await session.close(grace, self._hurry)
        if self._done is not None:
            await asyncio.wait([asyncio.wrap_future(self._done)], timeout=_END_SECONDS)

    def _over(self) -> None:
        self._session = self._done = self._hurry = None

    def _hurry_up(self) -> None:
        hurry = self._hurry
        if hurry is not None:
            io_thread.loop.call_soon_threadsafe(hurry.set)

    def _raise_if_dead(self) -> None:
        if self._done is not None and self._done.done():
            self._done.result()

    def _settings(self) -> sessions.Settings:
        declarations = {name: task.declaration for name, task in self.app.tasks.items()}
        if not declarations:
            raise errors.HandlerRefused(f"the app {self.app.name!r} has no tasks to serve")
        for declaration in declarations.values():
            declaration.signature.resolve()
        handlers = [
            declaration.handler(queue)
            for declaration in declarations.values()
            for queue in (self._queues if self._queues is not None else [declaration.queue])
        ]
        if not 1 <= len(handlers) <= _HANDLER_COUNT_MAX:
            raise errors.UsageError(
                f"{len(handlers)} pairs of task and queue: a worker registers 1 to 1,000"
            )
        # dict is the only mapping that is told apart at run time from a list of names.
        queue_slots = dict(self._queues) if isinstance(self._queues, dict) else {}
        return sessions.Settings(
            identity=worker_pb2.WorkerIdentity(
                name=self.name[:200],
                sdk="tenure-python",
                sdk_version=_version(),
                app_version=self.app.version,
            ),
            declarations=declarations,
            handlers=handlers,
            concurrency=self._concurrency,
            queue_slots=queue_slots,
            prefetch_max=self._prefetch_max,
        )


def _version() -> str:
    try:
        return importlib.metadata.version("tenure")
    except importlib.metadata.PackageNotFoundError:
        return "0"
