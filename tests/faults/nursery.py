"""Starts servers and workers by forking a process that has imported them: python -m tests.faults.nursery.

A start then costs a tenth of the time, so that a run by hand kills a thousand of them
(TENURE_FAULT_FORK=1). Each line it reads is a JSON object: program, arguments, variables, log; it
answers with the id of the process.
"""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any


class Forked:
    """A process that is nobody's child here: the part of `Popen` that the tests use."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._fd = os.pidfd_open(pid)

    def poll(self) -> int | None:
        """Gives -1 once it has ended; nobody here knows its exit code."""
        if self.returncode is None and select.select([self._fd], [], [], 0)[0]:
            self.returncode = -1
            os.close(self._fd)
        return self.returncode

    def wait(self, seconds: float) -> int:
        """Waits for its end."""
        deadline = time.monotonic() + seconds
        while self.poll() is None:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"process {self.pid} does not end")
            select.select([self._fd], [], [], left)
        return -1

    def send_signal(self, number: signal.Signals) -> None:
        """Sends a signal, if it still runs."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._fd, number)

    def kill(self) -> None:
        """Kills it."""
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        """Asks it to stop."""
        self.send_signal(signal.SIGTERM)


class Nursery:
    """The process that forks, as the tests see it."""

    def __init__(self, folder: Path) -> None:
        words = [sys.executable, "-m", "tests.faults.nursery"]
        self._process = subprocess.Popen(
            words, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def start(self, command: list[str], log: Path, variables: dict[str, str]) -> Forked:
        """Starts `-m MODULE ARGUMENT ...`."""
        into, out = self._process.stdin, self._process.stdout
        assert into is not None
        assert out is not None
        _, module, *arguments = command
        asked = {"module": module, "arguments": arguments, "log": str(log), "variables": variables}
        into.write(json.dumps(asked) + "\n")
        into.flush()
        return Forked(int(out.readline()))

    def close(self) -> None:
        """Ends it; what it has forked is killed one by one before."""
        self._process.communicate(timeout=20)


def _run(asked: dict[str, Any]) -> None:
    """Becomes the program that is asked for; runs in the child."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    log = os.open(asked["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    for number, file in ((0, os.open(os.devnull, os.O_RDONLY)), (1, log), (2, log)):
        os.dup2(file, number)
    os.environ.clear()
    os.environ.update(asked["variables"])
    from tests.faults.processes import CLOCK

    if "FAULT_CLOCK_SECONDS" in os.environ:
        exec(CLOCK, {})  # noqa: S102 - what sitecustomize.py does for a process of its own
    sys.argv = [asked["module"], *asked["arguments"]]
    if asked["module"] == "tests.faults.app":
        from tests.faults import app

        app.main()
    else:
        from tenure_service.cli import command

        raise SystemExit(command.run(asked["arguments"]))


def main() -> None:
    """Forks, once for each line."""
    import tests.faults.app  # noqa: F401 - what is imported now is not imported by each child

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        pid = os.fork()
        if not pid:
            try:
                _run(json.loads(line))
            except BaseException:  # noqa: BLE001 - nothing of the parent may run on in the child
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(1)
        print(pid, flush=True)  # noqa: T201 - the answer


if __name__ == "__main__":
    main()
