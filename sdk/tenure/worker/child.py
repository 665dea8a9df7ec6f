"""A handler's process: takes one job after another over its pipe until the worker is gone.

The main thread imports the app and runs handlers; one thread reads the pipe, so that it learns of
a cancellation, and of the end of the worker, while a handler runs. What a handler raises, returns
and says of itself crosses as the bytes that the worker's own threads would have made.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import faulthandler
import importlib
import json
import logging
import os
import queue
import signal
import socket
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, Final

from tenure import errors, failure, isolation
from tenure.app import App
from tenure.v1 import worker_pb2
from tenure.worker.job import Job, cancel_asyncio
from tenure.worker.pipe import Kind, Pipe

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import FrameType

    from tenure.task import Declaration

# Details of heartbeats that come faster than this are sent once.
PROGRESS_SECONDS: Final = 0.1
_PR_SET_PDEATHSIG: Final = 1


class _IsolatedJob(Job):
    """_IsolatedJob is a job in its process; `said` is set when its handler left details."""

    __slots__ = ("said",)

    def __init__(
        self,
        assignment: worker_pb2.Assignment,
        declaration: Declaration,
        said: threading.Event,
        worker: str,
    ) -> None:
        super().__init__(assignment, declaration, time.monotonic(), worker=worker)
        self.said = said

    def progress(self, data: bytes) -> None:
        super().progress(data)
        self.said.set()


class Child:
    """Child runs jobs in this process.

    Args:
        pipe: Pipe to the worker.
    """

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe
        self._jobs: queue.SimpleQueue[_IsolatedJob | None] = queue.SimpleQueue()
        # Guards `_current`: nothing is sent for a job after its result.
        self._lock = threading.Lock()
        self._current: _IsolatedJob | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._said = threading.Event()
        self._worker = ""
        self._declarations: Mapping[str, Declaration] = {}

    def run(self) -> None:
        """Imports the app and runs jobs until the worker hangs up."""
        try:
            _, data = self._pipe.receive()
            boot = isolation.Boot.from_json(data)
            self._worker = boot.worker
            try:
                self._declarations = _load(boot)
            except BaseException as exc:  # noqa: BLE001 - whatever the import raises is data
                self._pipe.send(Kind.UNABLE, failure.from_exception(exc).SerializeToString())
                return
            _forward_logs(self._pipe, boot.log_level)
            self._pipe.send(Kind.READY)
        except EOFError:
            return
        for target, name in ((self._read, "tenure-pipe"), (self._tell, "tenure-progress")):
            threading.Thread(target=target, name=name, daemon=True).start()
        while (job := self._jobs.get()) is not None:
            result = asyncio.run(self._arun(job)) if job.is_async else job.run()
            with self._lock, contextlib.suppress(EOFError):
                self._current = self._loop = None
                self._pipe.send(Kind.RESULT, result)

    async def _arun(self, job: _IsolatedJob) -> bytes:
        with self._lock:
            self._loop = asyncio.get_running_loop()
            job.asyncio_task = asyncio.current_task()
            if job.cancel_reason is not None:
                self._loop.call_soon(cancel_asyncio, job)
        return await job.arun()

    def _read(self) -> None:
        try:
            while True:
                kind, data = self._pipe.receive()
                if kind is Kind.JOB:
                    self._take(worker_pb2.Assignment.FromString(data))
                elif kind is Kind.CANCEL:
                    self._cancel(json.loads(data))
        except EOFError:
            pass
        with self._lock:
            if self._current is not None:
                # The worker is gone, and with it the lease: whatever runs here, and whatever it
                # started, would run beside the next hand-out.
                os.killpg(os.getpid(), signal.SIGKILL)
        self._jobs.put(None)

    def _take(self, assignment: worker_pb2.Assignment) -> None:
        declaration = self._declarations[assignment.name]
        job = _IsolatedJob(assignment, declaration, self._said, self._worker)
        with self._lock:
            self._current = job
        self._pipe.send(Kind.STARTED)
        self._jobs.put(job)

    def _cancel(self, said: dict[str, Any]) -> None:
        with self._lock:
            job = self._current
            if job is None:
                return
            job.stopped = said["stopped"]
            job.cancel_reason = said["reason"]
            if self._loop is not None:
                self._loop.call_soon_threadsafe(cancel_asyncio, job)

    def _tell(self) -> None:
        """Sends the latest details of heartbeats, on a thread that may wait."""
        with contextlib.suppress(EOFError):
            while self._said.wait():
                self._said.clear()
                with self._lock:
                    job = self._current
                    if job is not None and job.progress_details is not None:
                        details, job.progress_details = job.progress_details, None
                        self._pipe.send(Kind.PROGRESS, details.SerializeToString())
                time.sleep(PROGRESS_SECONDS)


class _Forwarder(logging.Handler):
    """_Forwarder gives log records to the worker, whose handlers write them."""

    def __init__(self, pipe: Pipe) -> None:
        super().__init__()
        self._pipe = pipe

    def emit(self, record: logging.LogRecord) -> None:
        try:
            said = dict(record.__dict__, msg=record.getMessage(), args=None, exc_info=None)
            if record.exc_info and not record.exc_text:
                said["exc_text"] = logging.Formatter().formatException(record.exc_info)
            text = json.dumps(said, default=repr, ensure_ascii=True, skipkeys=True)
            self._pipe.send(Kind.LOG, text.encode())
        except EOFError:
            return
        except Exception:  # noqa: BLE001 - the interface of logging: never raises into the program
            self.handleError(record)


def _forward_logs(pipe: Pipe, level: int) -> None:
    """Has logs written by the worker, unless importing the app has set up logging here."""
    root = logging.getLogger()
    if not root.handlers:
        root.addHandler(_Forwarder(pipe))
        root.setLevel(level)


def _load(boot: isolation.Boot) -> Mapping[str, Declaration]:
    sys.argv[:] = boot.arguments
    module, _, variable = boot.app.partition(":")
    for name in (module, *boot.modules):
        importlib.import_module(name)
    app = getattr(sys.modules[module], variable, None)
    if not isinstance(app, App):
        raise errors.HandlerRefused(
            f"a new process that imports {module} finds no app {variable!r}"
        )
    for name in boot.tasks:
        if name not in app.tasks:
            raise errors.HandlerRefused(
                f"a new process that imports {', '.join(boot.modules)} finds no task {name!r} in"
                f" {boot.app}: declare it where those modules are imported"
            )
        app.tasks[name].declaration.signature.resolve()
    return {name: app.tasks[name].declaration for name in boot.tasks}


def _die_with_parent(parent_id: int) -> None:
    """Has the kernel kill this process with its worker, even while the interpreter lock is held."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent_id:
        os._exit(1)


def _leave_to_the_worker() -> None:
    """Has signals that mean the whole service do nothing here: the worker decides on the grace."""
    own_id = os.getpid()

    def ignored(number: int, frame: FrameType | None) -> None:
        del frame
        if os.getpid() != own_id:
            # A child that a handler forked, and that somebody wants to end.
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, ignored)


def main(descriptor: int, parent_id: int) -> None:
    """Runs this process until the worker hangs up.

    Args:
        descriptor: Open end of the pipe.
        parent_id: Process id of the worker.
    """
    isolation.inside = True
    _die_with_parent(parent_id)
    _leave_to_the_worker()
    os.set_inheritable(descriptor, False)
    faulthandler.enable()
    pipe = Pipe(socket.socket(fileno=descriptor))
    # A fork that outlives this process must not keep the pipe open in its place.
    os.register_at_fork(after_in_child=pipe.close)
    Child(pipe).run()
