"""Handlers for tests of mode="process": a module that a new process can import."""

import asyncio
import ctypes
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from tenure import App, NonRetryable, Reschedule, Retry, RetryAfter, Worker, current_task

# Read once by each process: a test that sets it has this module fail to import in new ones.
if "PROCESS_APP_FAILS" in os.environ and "pytest" not in sys.modules:
    raise ImportError("this module fails on purpose")

app = App("process")
MARK = "TENURE_TEST_MARK"


def mark(path: str) -> None:
    """Tells the test which process runs, by writing its id to a file."""
    if path:
        unfinished = Path(f"{path}.new")
        unfinished.write_text(str(os.getpid()))
        unfinished.rename(path)


@app.task
def where() -> list[Any]:
    return [os.getpid(), threading.current_thread() is threading.main_thread()]


@app.task
async def where_async() -> list[Any]:
    await asyncio.sleep(0)  # tidy: one turn of the handler's own loop
    return [os.getpid(), threading.current_thread() is threading.main_thread()]


@app.task(mode="thread")
def in_the_worker() -> int:
    return os.getpid()


@app.task
def pause(seconds: float) -> int:
    threading.Event().wait(seconds)
    return os.getpid()


@app.task(retry=Retry(1))
def hold_the_lock(path: str = "") -> None:
    mark(path)
    # One call of C, which never lets go of the interpreter lock and would take until the sun dies.
    re.match(r"(a+)+$", "a" * 64 + "b")


@app.task(retry=Retry(2, initial_delay=0.01, jitter=0), timeout=0.6)
def hold_the_lock_limited() -> None:
    re.match(r"(a+)+$", "a" * 64 + "b")


@app.task(retry=Retry(1))
def spin(path: str = "") -> None:
    mark(path)
    while True:
        pass


@app.task(retry=Retry(1))
async def deaf(path: str = "") -> None:
    mark(path)
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            continue


@app.task(retry=Retry(1))
def obedient(path: str = "") -> None:
    mark(path)
    task = current_task()
    while not task.cancelled:
        threading.Event().wait(0.01)
    task.heartbeat()


@app.task(retry=Retry(1))
async def obedient_async(path: str = "") -> None:
    mark(path)
    await asyncio.Event().wait()


@app.task(retry=Retry(1))
def die(how: str) -> None:
    if how == "exit":
        os._exit(3)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "segfault":
        ctypes.string_at(0)
    # A process of the handler's own that outlives it and holds whatever it was given.
    if os.fork() == 0:
        threading.Event().wait(60)
    os._exit(4)


@app.task(retry=Retry(1))
def fail(message: str) -> None:
    try:
        os.environ["INNER"]
    except KeyError as exc:
        raise NonRetryable(message, details={"code": 7}) from exc


@app.task(retry=Retry(3, initial_delay=60, unless=[LookupError]))
def fail_by_class() -> None:
    raise KeyError("a subclass")


@app.task(retry=Retry(4, initial_delay=60))
def steer() -> list[Any]:
    task = current_task()
    task.logger.warning("delivery %d", task.delivery)
    if task.delivery == 1:
        raise Reschedule(0.05, details={"from": "reschedule"})
    if task.delivery == 2:
        assert task.details == {"from": "reschedule"}
        task.heartbeat({"from": "heartbeat"})
        # Until the worker has told the server, which its next heartbeat does.
        threading.Event().wait(1.5)
        raise RetryAfter(0.05, "not yet")
    return [task.name, task.attempt, task.delivery, task.max_attempts, task.details]


@app.task
def unencodable() -> int:
    return "no number"  # type: ignore[return-value]


@app.task
def speak(text: str) -> int:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
    return os.getpid()


@app.task(retry=Retry(1))
def start_child(path: str) -> None:
    child = subprocess.Popen(["/bin/sleep", "600"])
    unfinished = Path(f"{path}.new")
    unfinished.write_text(str(child.pid))
    unfinished.rename(path)
    while True:
        time.monotonic()


if __name__ == "__main__":
    Worker(app, mode="process").run()
