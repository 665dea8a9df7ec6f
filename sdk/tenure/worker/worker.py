"""The worker as a program sees it: run it, or start and close it."""

from __future__ import annotations

import asyncio
import importlib.metadata
import itertools
import os
import signal
import socket
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tenure import check, errors, isolation
from tenure.app import App
from tenure.io_thread import io_thread, refuse_in_loop
from tenure.v1 import worker_pb2
from tenure.worker import session as sessions
from tenure.worker.settings import Settings

if TYPE_CHECKING:
    import concurrent.futures
    from types import FrameType, TracebackType
    from typing import Self

    from tenure.task import Declaration
    from tenure.workflow.declaration import WorkflowDeclaration

CONCURRENCY = 10
ACTIVATIONS = 100
PREFETCH_MAX = 2_000
GRACE_SECONDS = 30.0
_HANDLER_COUNT_MAX = 1_000
# Time for channel and tasks to end after the session has said goodbye.
_END_SECONDS = 5.0
_SLOT_COUNT_MAX = 10_000
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)

_numbers = itertools.count(1)


class Worker:
    """Worker runs the tasks of an app, and the runs of its workflows.

    `def` handlers run in up to `concurrency` threads, `async def` handlers on an event loop in a
    thread of its own; heartbeats and the stream have another one that handlers cannot block.
    With `mode="process"` handlers of both kinds run in up to `concurrency` spawned processes: what
    they do, be it to hold the interpreter lock or to crash, ends with their own process, and so do
    they when they do not obey a cancellation.

    Args:
        app: The app whose tasks and workflows it serves.
        queues: Queues to serve, for every task and workflow of the app; a mapping also says how many
            tasks of a queue it takes at a time. None: each on the queue it declares.
        concurrency: Handlers that run at once.
        activations: Runs that it has in memory at once, apart from `concurrency`: one that waits
            for long leaves memory, and one that waits for a task takes no place from it.
        name: Name for people; default host, process id and a number.
        prefetch_max: Most tasks it takes at a time once handlers have proved short (their median
            under 100 ms); `concurrency` or less: no more than can run.
        mode: Where handlers run whose task says nothing: "thread" or "process". The app has to be
            importable for processes.

    Raises:
        WrongType, WrongValue: an argument that no worker could go by.
        HandlerRefused: a process could not import a handler that is to run in one.
    """

    def __init__(
        self,
        app: App,
        queues: Sequence[str] | Mapping[str, int] | None = None,
        concurrency: int = CONCURRENCY,
        name: str | None = None,
        *,
        prefetch_max: int = PREFETCH_MAX,
        mode: isolation.Mode = "thread",
        activations: int = ACTIVATIONS,
    ) -> None:
        check.kind(app, "what a worker serves", App, 'App("thumbs")')
        if queues is not None:
            queues = _queues(queues)
        check.whole(concurrency, "concurrency", 1, _SLOT_COUNT_MAX)
        check.whole(prefetch_max, "prefetch_max", 0, _SLOT_COUNT_MAX)
        check.whole(activations, "activations", 1, _SLOT_COUNT_MAX)
        if name is not None:
            check.text(name, "name")
        isolation.check_mode(mode)
        for task in app.tasks.values():
            if (task.declaration.mode or mode) == "process":
                isolation.check_importable(task.declaration.function, task.name)
        self.app = app
        self.name = name or f"{socket.gethostname()}-{os.getpid()}-{next(_numbers)}"
        self._queues = queues
        self._concurrency = concurrency
        self._prefetch_max = prefetch_max
        self._activations = activations
        self._mode = mode
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

        Args:
            grace: Seconds for handlers at the stop.

        Raises:
            BlockingCallInLoop: inside a running event loop; use `async with`.
            HandlerRefused, UsedAfterFork: as `start`.
            UsageError: not in the main thread; use `start()` and `close()`.
            ServiceError: a server answered before the first connection that it will not take this
                worker: an unknown namespace, a wrong key, a bad declaration, another version, TLS
                against plain text. Once connected, a worker only logs such answers.
        """
        refuse_in_loop("Worker.run", "async with Worker(...)")
        if threading.current_thread() is not threading.main_thread():
            raise errors.UsageError(
                "Worker.run() handles signals and needs the main thread;"
                " use start() and close() in others"
            )
        stop = threading.Event()
        before: dict[signal.Signals, Any] = {}

        process_id = os.getpid()

        def on_signal(number: int, frame: FrameType | None) -> None:
            del frame
            if os.getpid() != process_id:
                # A child that a handler forked: the signal means the child, not this worker.
                signal.signal(number, before[signal.Signals(number)])
                os.kill(os.getpid(), number)
                return
            self._signals += 1
            if self._signals == 1:
                stop.set()
                return
            self._hurry_up()
            signal.signal(number, before[signal.Signals(number)])

        for number in _STOP_SIGNALS:
            before[number] = signal.signal(number, on_signal)
        try:
            done = self._start(ends_refused=True)
            done.add_done_callback(lambda _: stop.set())
            # A bounded wait, so that signals are looked at on every platform.
            while not stop.wait(1.0):
                pass
            if done.done():
                self._over()
                done.result()
            self.close(grace)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            self._signals = 0

    def start(self) -> None:
        """Starts serving and returns at once; connects, and connects again, by itself.

        Touches no signals. Whatever a server answers, it goes on trying, and logs an ERROR each
        time it is refused for a reason that only a change cures.

        Raises:
            HandlerRefused: a handler's annotations cannot be resolved, a process could not import
                it, or there is no handler.
            UsageError: it runs already.
            UsedAfterFork: this process was forked after its parent had connected.
        """
        self._start(ends_refused=False)

    def _start(self, *, ends_refused: bool) -> concurrent.futures.Future[None]:
        _ = io_thread.loop
        if isolation.inside:
            raise errors.UsageError(
                "a worker was started while a handler's process imported the app: start it under"
                ' `if __name__ == "__main__":`, or in another module'
            )
        if self._session is not None:
            raise errors.UsageError(f"the worker {self.name} runs already")
        settings = self._settings(ends_refused=ends_refused)
        self._session, self._done = sessions.start(self.app.target, settings)
        return self._done

    def close(self, grace: float = GRACE_SECONDS) -> None:
        """Stops: takes nothing new, lets handlers end, reports, closes the session.

        Tasks whose handlers have not started go back as they were. Handlers that still run after
        `grace` seconds are cancelled; an attempt that was cut off is spent. Does nothing if the
        worker does not run.

        Raises:
            BlockingCallInLoop: inside a running event loop; use `aclose`.
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

    def _settings(self, *, ends_refused: bool) -> Settings:
        declarations = {name: task.declaration for name, task in self.app.tasks.items()}
        workflows = {name: each.declaration for name, each in self.app.workflows.items()}
        if not declarations and not workflows:
            raise errors.HandlerRefused(
                f"the app {self.app.name!r} has no tasks to serve: a task is there once the module of"
                " its @app.task is imported. Import those modules at the end of the app's own, or"
                " start the worker with one that imports them all (`tenure worker shop.tasks:app`)"
            )
        every: list[Declaration | WorkflowDeclaration] = [
            *declarations.values(),
            *workflows.values(),
        ]
        _resolve(every)
        isolated = [
            declaration
            for declaration in declarations.values()
            if (declaration.mode or self._mode) == "process"
        ]
        handlers = [
            declaration.handler(queue)
            for declaration in every
            for queue in (self._queues if self._queues is not None else [declaration.queue])
        ]
        if not 1 <= len(handlers) <= _HANDLER_COUNT_MAX:
            raise errors.UsageError(
                f"{len(handlers)} pairs of task or workflow and queue: a worker registers 1 to 1,000"
            )
        # dict is the only mapping that is told apart at run time from a list of names.
        queue_slots = dict(self._queues) if isinstance(self._queues, dict) else {}
        return Settings(
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
            workflows=workflows,
            activations=self._activations if workflows else 0,
            isolated=frozenset(declaration.name for declaration in isolated),
            boot=isolation.boot(self.app, isolated, self.name) if isolated else None,
            ends_refused=ends_refused,
        )


def _resolve(declarations: Iterable[Declaration | WorkflowDeclaration]) -> None:
    """Resolves all annotations, and refuses all handlers at once whose cannot be."""
    refused: list[errors.HandlerRefused] = []
    for declaration in declarations:
        try:
            declaration.signature.resolve()
        except errors.HandlerRefused as exc:
            refused.append(exc)
    if refused:
        raise errors.HandlerRefused("; ".join(map(str, refused))) from refused[0]


def _queues(given: object) -> Sequence[str] | Mapping[str, int]:
    expected = "a list of names such as ['mail'], or a mapping of names to how many tasks"
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise check.wrong_type("queues", expected, given)
    queues: dict[str, int] | list[str] = dict(given) if isinstance(given, Mapping) else list(given)
    for queue in queues:
        check.text(queue, "a name in queues")
    if isinstance(queues, dict):
        for queue, count in queues.items():
            check.whole(count, f"queues[{queue!r}]", 1, _SLOT_COUNT_MAX)
    if not queues:
        raise check.wrong_value("queues", f"{expected}, or None for those of the tasks", given)
    return queues


def _version() -> str:
    try:
        return importlib.metadata.version("tenure")
    except importlib.metadata.PackageNotFoundError:
        return "0"
