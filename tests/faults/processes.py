"""Servers and workers as processes of their own, to be killed and stopped by the tests."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.eventually import eventually
from tests.faults.nursery import Forked, Nursery

ROOT = Path(__file__).resolve().parent.parent.parent
#: As short as a heartbeat of half a second allows.
LEASES = {
    "TENURE_LEASE_SECONDS": "1.5",
    "TENURE_FIRST_LEASE_SECONDS": "1.5",
    "TENURE_HEARTBEAT_SECONDS": "0.5",
    "TENURE_ACCEPT_SECONDS": "1",
    "TENURE_STOP_GRACE_SECONDS": "3",
}
_START_SECONDS = 60.0
#: Whether also those run that would make the suite long, where another test covers most of it.
LONG = os.environ.get("TENURE_FAULT_LONG") == "1"
#: What a process with a wrong clock runs first: after a while its clock jumps.
CLOCK = """
import os, time
born, shift = time.monotonic(), float(os.environ["FAULT_CLOCK_SECONDS"])
def wrong(real, unit):
    return lambda: real() + (int(shift) if time.monotonic() - born > 1.5 else 0) * unit
time.time, time.time_ns = wrong(time.time, 1), wrong(time.time_ns, 10**9)
"""
by_hand = pytest.mark.skipif(not LONG, reason="takes long; TENURE_FAULT_LONG=1 runs it")


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a ledger: a handler started, or ended."""

    word: str
    task_id: str
    attempt: int
    pid: int
    at: float
    delivery: int


class Spawned:
    """One process, started by a test and harmed by its id."""

    def __init__(
        self,
        command: Iterable[str],
        log: Path,
        variables: dict[str, str],
        nursery: Nursery | None = None,
    ) -> None:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("TENURE_")}
        variables = kept | {"PYTHONUNBUFFERED": "1"} | variables
        self._log = log
        self.process: subprocess.Popen[bytes] | Forked
        if nursery is not None:
            log.touch()
            self.process = nursery.start(list(command), log, variables)
            return
        with log.open("ab") as file:
            self.process = subprocess.Popen(
                [sys.executable, *command],
                cwd=ROOT,
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def text(self) -> str:
        """All that it has printed."""
        return self._log.read_text(errors="replace")

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def until(self, text: str) -> None:
        """Waits until it has printed a text."""
        eventually(lambda: text in self.text or not self.running, seconds=_START_SECONDS)
        assert text in self.text, self.text[-4000:]

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        """Kills it, and waits for its end."""
        self.process.kill()
        self.process.wait(20)

    def terminate(self) -> int:
        """Asks it to stop; gives its exit code."""
        self.process.terminate()
        return self.process.wait(40)


class Troupe:
    """The processes of one test, with their logs and their ledger in one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._count = 0
        self._all: list[Spawned] = []
        self._read_bytes = 0
        self._worked: set[int] = set()
        self._nursery = Nursery(ROOT) if os.environ.get("TENURE_FAULT_FORK") == "1" else None
        self.ledger_path = folder / "ledger"
        self.ledger_path.touch()

    def spawn(self, name: str, *command: str, **variables: str) -> Spawned:
        """Starts a program of Python."""
        self._count += 1
        log = self._folder / f"{self._count}-{name}.log"
        own = {"FAULT_LEDGER": str(self.ledger_path)}
        spawned = Spawned(command, log, own | variables, self._nursery)
        self._all.append(spawned)
        return spawned

    def server(self, dsn: str, address: str, **variables: str) -> Spawned:
        """Starts a server; `until("listening on")` waits for it."""
        words = ("-m", "tenure_service", "server", "--database", dsn, "--listen", address)
        return self.spawn("server", *words, **(LEASES | variables))

    def worker(
        self, address: str, name: str = "worker", concurrency: int = 4, **variables: str
    ) -> Spawned:
        """Starts a worker of the app."""
        words = ("-m", "tests.faults.app", address, name, str(concurrency))
        return self.spawn(name, *words, **variables)

    def wrong_clock(self, seconds: float) -> dict[str, str]:
        """Gives the variables of a process whose clock jumps by so much, soon after its start."""
        (self._folder / "sitecustomize.py").write_text(CLOCK)
        path = filter(None, [str(self._folder), os.environ.get("PYTHONPATH")])
        return {"PYTHONPATH": os.pathsep.join(path), "FAULT_CLOCK_SECONDS": str(seconds)}

    def lines(self, word: str, *task_ids: str) -> list[Line]:
        """Reads the ledger: starts or ends, of some tasks or of all."""
        found = []
        for text in self.ledger_path.read_text().splitlines():
            kind, task_id, attempt, pid, at, delivery = text.split()
            if kind == word and (not task_ids or task_id in task_ids):
                line = Line(kind, task_id, int(attempt), int(pid), float(at), int(delivery))
                found.append(line)
        return found

    def counts(self, word: str) -> Counter[str]:
        """Counts starts or ends by task."""
        return Counter(line.task_id for line in self.lines(word))

    def has_worked(self, one: Spawned) -> bool:
        """Says whether a worker has started a task, or a server serves."""
        text = self.ledger_path.read_bytes()[self._read_bytes :]
        self._read_bytes += len(text)
        self._worked |= {int(line.split()[3]) for line in text.splitlines()}
        return one.pid in self._worked or "listening on" in one.text

    def close(self) -> None:
        """Kills what still runs, also what is stopped."""
        for one in self._all:
            with contextlib.suppress(ProcessLookupError):
                one.process.kill()
        for one in self._all:
            one.process.wait(20)
        if self._nursery is not None:
            self._nursery.close()


def free_address() -> str:
    """Gives an address of this machine where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return f"127.0.0.1:{listening.getsockname()[1]}"
