"""Handler processes as the worker sees them: one for each job that runs, started on demand, kept.

Not a ProcessPoolExecutor: that cannot end one job, breaks for all when one process dies, and forks.
A handler thread drives one process at a time: it sends the job and waits for the result, the end of
the process, or a kill. So everything that holds for jobs in threads holds here, and a process that
holds its own interpreter lock, or dies, takes nothing with it but its job.

Kills are due at a time that cancellation sets (`Job.kill_at`) and done by the I/O loop's sweep.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Final

from tenure import failure
from tenure.v1 import payload_pb2
from tenure.worker.pipe import Kind, Pipe

if TYPE_CHECKING:
    from tenure.isolation import Boot
    from tenure.worker.job import Job

_log = logging.getLogger("tenure.worker")

# Type of the failure of an attempt whose process ended, for `unless` and for people.
DIED: Final = "HandlerProcessDied"
# Time to import the app. An import that takes longer hangs, and would hold a slot for ever.
IMPORT_SECONDS: Final = 120.0
# Time for an idle process to run its exit handlers.
EXIT_SECONDS: Final = 2.0


class HandlerProcess:
    """HandlerProcess is one spawned process; a handler thread at a time runs jobs in it."""

    def __init__(self, boot: Boot) -> None:
        own, other = socket.socketpair()
        with other:
            code = (
                f"import sys; sys.path[:] = {[str(each) for each in sys.path]!r};"
                " from tenure.worker import child;"
                f" child.main({other.fileno()}, {os.getpid()})"
            )
            options = [f"-W{each}" for each in sys.warnoptions]
            self._process = subprocess.Popen(  # noqa: S603 - this interpreter, our own code
                [sys.executable, *options, "-c", code],
                stdin=subprocess.DEVNULL,
                pass_fds=[other.fileno()],
                # Ctrl-C is for the worker alone, and a kill takes what the handler started too.
                start_new_session=True,
            )
        self._pipe = Pipe(own)
        self._boot = boot
        # Guards `_job` and what is sent for it.
        self._lock = threading.Lock()
        self._job: Job | None = None
        self._ready = False
        self._began_at = time.monotonic()
        self._started = self._ran_before = False
        self._kill_reason = ""
        # Guards the process id: a process that was reaped may have given it to another one.
        self._reaping = threading.Lock()
        self.broken = False

    def run(self, job: Job) -> bytes | None:
        """Runs one job; returns its result, or None if the process had ended before it began."""
        with self._lock:
            self._job = job
        self._started = False
        try:
            return self._run(job)
        except EOFError:
            self.broken = True
            return self._died(job)
        finally:
            with self._lock:
                self._job = None

    def cancel(self, job: Job) -> None:
        """Tells the handler of a job that it is to end; never waits."""
        # Whoever holds the lock looks at `cancel_reason` itself, after it has let go of it.
        if self._lock.acquire(blocking=False):
            try:
                if self._job is job and job.started_at:
                    self._send_cancel(job)
            finally:
                self._lock.release()

    def enforce(self, now: float) -> None:
        """Kills the process if its time is over, and notices one that ended."""
        job = self._job
        if job is None:
            return
        if job.kill_at is not None and now >= job.kill_at:
            self.kill("it did not end when its task was cancelled")
        elif not self._ready and now - self._began_at > IMPORT_SECONDS:
            self.kill(f"it did not import {self._boot.app} within {IMPORT_SECONDS:.0f} s")
        elif self._is_dead():
            # A child of the handler's own may hold the pipe open.
            self._pipe.hang_up()

    def kill(self, reason: str) -> None:
        """Kills the process, and those that its handler started; its job ends at once."""
        with self._reaping:
            if self._process.returncode is None and not self._kill_reason:
                self._kill_reason = reason
                self._signal_group()
        self._pipe.hang_up()

    def hang_up(self) -> None:
        """Lets an idle process exit; does not wait."""
        self._pipe.hang_up()

    def end(self) -> None:
        """Lets an idle process exit, and kills it if it does not, or if it is broken."""
        self._pipe.hang_up()
        if not self.broken:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(EXIT_SECONDS)
        self._reap()
        self._pipe.close()

    def _run(self, job: Job) -> bytes | None:
        if not self._ready:
            unable = self._boot_up()
            if unable is not None:
                self.broken = True
                return job.failed(unable)
        if job.cancel_reason is not None:
            return job.unstarted()
        job.started_at = time.monotonic()
        with self._lock:
            self._pipe.send(Kind.JOB, job.assignment.SerializeToString())
        # After the lock is free: a cancellation that found it taken was left to this.
        with self._lock:
            self._send_cancel(job)
        while True:
            kind, data = self._pipe.receive()
            if kind is Kind.STARTED:
                self._started = True
            elif kind is Kind.PROGRESS:
                job.progress_details = payload_pb2.Payload.FromString(data)
            elif kind is Kind.LOG:
                _write_log(data)
            elif kind is Kind.RESULT:
                job.run_seconds = time.monotonic() - job.started_at
                self._ran_before = True
                return data

    def _boot_up(self) -> payload_pb2.Failure | None:
        """Waits until the app is imported; returns why it could not be."""
        self._pipe.send(Kind.BOOT, self._boot.to_json())
        kind, data = self._pipe.receive()
        if kind is Kind.UNABLE:
            return payload_pb2.Failure.FromString(data)
        self._ready = True
        return None

    def _send_cancel(self, job: Job) -> None:
        if job.cancel_reason is None:
            return
        said = {"reason": job.cancel_reason, "stopped": job.stopped}
        with contextlib.suppress(EOFError):
            self._pipe.send(Kind.CANCEL, json.dumps(said).encode())

    def _died(self, job: Job) -> bytes | None:
        code = self._reap()
        if job.cancel_reason is not None:
            if not job.started_at:
                return job.unstarted()
            return job.killed("the process of the handler did not end and was killed")
        if self._ran_before and not self._started:
            # It died while it was idle, or on the way of the job to it.
            return None
        message = failure.failure_message(DIED, f"the process of the handler {self._how(code)}")
        kind, number = ("signal", -code) if code < 0 else ("exit_code", code)
        message.details.encoding = "json"
        message.details.data = json.dumps({kind: number}).encode()
        return job.failed(message)

    def _how(self, code: int) -> str:
        if self._kill_reason:
            return f"was killed: {self._kill_reason}"
        if code >= 0:
            return f"ended by itself with exit code {code}"
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        hint = "; often that is the kernel, out of memory" if name == "SIGKILL" else ""
        return f"was killed by {name}{hint}"

    def _is_dead(self) -> bool:
        # Without waitid (macOS) the end of the pipe has to tell.
        if not hasattr(os, "waitid"):
            return False
        with self._reaping:
            if self._process.returncode is not None:
                return True
            options = os.WEXITED | os.WNOHANG | os.WNOWAIT
            return os.waitid(os.P_PID, self._process.pid, options) is not None

    def _reap(self) -> int:
        """Ends what is left of the process and its children; returns its exit code."""
        with self._reaping:
            if self._process.returncode is None:
                self._signal_group()
        if hasattr(os, "waitid") and self._process.returncode is None:
            # Not under the lock: a process that takes its time must not hold up the I/O loop.
            os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
        with self._reaping:
            return self._process.wait()

    def _signal_group(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)


class HandlerProcesses:
    """HandlerProcesses keeps the processes of a worker; never more than run at once."""

    def __init__(self, boot: Boot) -> None:
        self._boot = boot
        self._lock = threading.Lock()
        self._idle: list[HandlerProcess] = []
        self._busy: dict[Job, HandlerProcess] = {}
        self._closed = False

    def run(self, job: Job) -> bytes:
        """Runs a job in a process of its own and returns its result; on a handler thread."""
        while True:
            try:
                process = self._take(job)
            except OSError as exc:
                text = f"no process could be started for the handler: {exc}"
                return job.failed(failure.failure_message(DIED, text))
            result = process.run(job)
            self._give_back(job, process)
            if result is not None:
                return result

    def cancel(self, job: Job) -> None:
        """Tells the handler of a job, if it runs, that it is to end; never waits."""
        process = self._busy.get(job)
        if process is not None:
            process.cancel(job)

    def enforce(self, now: float) -> None:
        """Kills what is due; to be called often while jobs run."""
        with self._lock:
            busy = list(self._busy.values())
        for process in busy:
            process.enforce(now)

    def close(self) -> None:
        """Ends all processes; waits for those that are idle to exit, for a short time."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
            busy = list(self._busy.values())
        for process in busy:
            process.kill("the worker stopped")
        # All at once: each has the same time to exit.
        for process in idle:
            process.hang_up()
        for process in idle:
            process.end()

    def _take(self, job: Job) -> HandlerProcess:
        with self._lock:
            process = self._idle.pop() if self._idle else None
        if process is None:
            process = HandlerProcess(self._boot)
        with self._lock:
            self._busy[job] = process
        return process

    def _give_back(self, job: Job, process: HandlerProcess) -> None:
        with self._lock:
            del self._busy[job]
            keeps = not (process.broken or self._closed)
            if keeps:
                self._idle.append(process)
        if not keeps:
            process.end()


def _write_log(data: bytes) -> None:
    record = logging.makeLogRecord(json.loads(data))
    logger = logging.getLogger(record.name)
    if logger.isEnabledFor(record.levelno):
        logger.handle(record)
