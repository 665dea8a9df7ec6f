"""Forks: a child of a process that had connected is refused by name, and never hangs."""

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")

# What a child may try, with `app`, `noop`, `handle`, `worker` and `client` of its parent.
USES = {
    "enqueue": "noop.enqueue()",
    "enqueue_many": "noop.enqueue_many([()])",
    "aenqueue": "asyncio.run(noop.aenqueue())",
    "result": "handle.result()",
    "as_completed": "next(tenure.as_completed([handle]))",
    "client made before": "client.list_workers()",
    "client made after": "tenure.Client('127.0.0.1:2').list_workers()",
    "async client": "asyncio.run(tenure.AsyncClient('127.0.0.1:1').list_workers())",
    "worker made before": "worker.start()",
    "worker made after": "tenure.Worker(app).run()",
    "worker that runs": "running.close()",
}
PARENT = """
import asyncio, os, signal, sys, threading
import tenure
from tenure.io_thread import io_thread

app = tenure.App("fork", "127.0.0.1:1")

@app.task
def noop() -> None: ...

handle = noop.handle("some id")
client = tenure.Client("127.0.0.1:1")
worker, running = tenure.Worker(app), tenure.Worker(app)
"""


def run(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PARENT + code],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_use__in_a_child_forked_after_start__is_refused_with_a_way_out() -> None:
    code = f"""
running.start()
for name, use in {USES!r}.items():
    child = os.fork()
    if child == 0:
        signal.alarm(10)  # a child that hangs ends by it, and its status says so
        try:
            eval(use)
        except tenure.UsedAfterFork as error:
            print(name, "|", error, flush=True)
            os._exit(0)
        except BaseException as error:
            print(name, "|", repr(error), flush=True)
        os._exit(1)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
os._exit(0)
"""
    lines = run(code).splitlines()
    assert [each.split(" |")[0] for each in lines[::2]] == list(USES)
    assert lines[1::2] == ["0"] * len(USES)
    assert all("spawn" in each and "was forked from" in each for each in lines[::2])


def test_use__in_a_child_forked_before_start__works_whatever_was_locked() -> None:
    code = """
del handle  # it belongs to a connection of this process
taken, release = threading.Event(), threading.Event()

def hold():
    with io_thread._lock:
        taken.set()
        release.wait()

io_thread._loop = io_thread._thread = None
threading.Thread(target=hold, daemon=True).start()
taken.wait()
child = os.fork()
if child == 0:
    signal.alarm(10)
    async def answer(): return 42
    print(io_thread.run(answer()), flush=True)
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
os._exit(0)
"""
    assert run(code).split() == ["42", "0"]


def test_run__child_forked_by_a_handler_gets_sigterm__ends_by_it() -> None:
    code = """
child = []
alive, says = os.pipe()

def fork():
    child.append(os.fork())
    if child[0] == 0:
        signal.alarm(10)
        os.write(says, b".")
        while True:
            threading.Event().wait(0.05)  # handlers run between two waits
    os.read(alive, 1)  # Python forgets signals that come before a child is quite there
    os.kill(child[0], signal.SIGTERM)
    print(os.waitstatus_to_exitcode(os.waitpid(child[0], 0)[1]), flush=True)
    os.kill(os.getpid(), signal.SIGTERM)

# Forked by the main thread, as signals are handled there, while the worker waits for its end.
signal.signal(signal.SIGUSR1, lambda *_: fork())
threading.Timer(0.5, os.kill, [os.getpid(), signal.SIGUSR1]).start()
worker.run()
print("stopped", flush=True)
os._exit(0)
"""
    assert run(code).split() == ["-15", "stopped"]
