"""What the workers of these tests run: python -m tests.faults.app ADDRESS NAME CONCURRENCY.

Each start and end of a handler is a line in the file that FAULT_LEDGER names: `start` or `end`, task
id, attempt, process id, `time.monotonic()`, which all processes of a machine share, and the number of
the delivery. FAULT_FACTOR makes the handlers of one process slower or faster.
"""

import asyncio
import ctypes
import os
import signal
import sys
import threading
import time

from tenure import App, Retry, Worker, current_task

app = App("faults")
_FACTOR = float(os.environ.get("FAULT_FACTOR", "1"))


def note(word: str) -> None:
    """Writes one line; O_APPEND keeps lines of several processes whole."""
    task = current_task()
    line = f"{word} {task.id} {task.attempt} {os.getpid()} {time.monotonic()} {task.delivery}\n"
    file = os.open(os.environ["FAULT_LEDGER"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, line.encode())
    finally:
        os.close(file)


@app.task
def nap(seconds: float) -> int:
    """Waits on a thread; gives its process."""
    note("start")
    threading.Event().wait(seconds * _FACTOR)
    note("end")
    return os.getpid()


@app.task(retry=Retry(1))
async def once(seconds: float) -> int:
    """Waits on the event loop, and may be tried once."""
    note("start")
    await asyncio.sleep(seconds * _FACTOR)  # tidy: the length of the handler is what is tested
    note("end")
    return os.getpid()


@app.task(retry=Retry(2, initial_delay=0.1, jitter=0))
def fail_first() -> str:
    """Fails, and is better the second time."""
    note("start")
    if current_task().attempt == 1:
        raise OSError("the first time")
    return "better"


@app.task(retry=Retry(2, initial_delay=0.1, jitter=0))
def fail() -> None:
    """Never succeeds."""
    note("start")
    raise OSError("every time")


@app.task
def crash() -> None:
    """Ends its process as the kernel would, and takes its mates with it."""
    note("start")
    os.kill(os.getpid(), signal.SIGKILL)


@app.task
def hog(seconds: float) -> int:
    """Holds the interpreter lock in a call of C, so that no other Python runs."""
    note("start")
    ctypes.PyDLL(None).usleep(int(seconds * 1e6))
    note("end")
    return os.getpid()


def main() -> None:
    """Runs a worker."""
    address, name, concurrency = sys.argv[1:]
    os.environ["TENURE_ADDRESS"] = address
    Worker(app, name=name, concurrency=int(concurrency)).run()


if __name__ == "__main__":
    main()
