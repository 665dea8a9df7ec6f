"""Runs the real command in processes of its own."""

import asyncio
import contextlib
import io
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tenure_service.cli import command
from tests.eventually import eventually

TENURE = [sys.executable, "-m", "tenure_service"]
_SECONDS = 40.0


@dataclass(frozen=True, slots=True)
class Done:
    """How a command ended."""

    code: int
    out: str
    err: str


def environment(**extra: str) -> dict[str, str]:
    """Gives this process's variables without settings of Tenure."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TENURE_")}
    return kept | {"PYTHONUNBUFFERED": "1"} | extra


def run(*arguments: str | Path, cwd: Path | None = None, **variables: str) -> Done:
    """Runs a command to its end."""
    done = subprocess.run(
        [*TENURE, *arguments],
        cwd=cwd,
        env=environment(**variables),
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
    )
    return Done(done.returncode, done.stdout, done.stderr)


async def run_here(*arguments: str) -> Done:
    """Runs a command in a thread of this process: a process of its own takes most of a second."""
    with (
        contextlib.redirect_stdout(io.StringIO()) as out,
        contextlib.redirect_stderr(io.StringIO()) as err,
    ):
        code = await asyncio.to_thread(command.run, arguments)
    return Done(code, out.getvalue(), err.getvalue())


class Running:
    """A command that goes on, with what it has printed so far."""

    def __init__(self, arguments: tuple[str | Path, ...], cwd: Path | None) -> None:
        self.process = subprocess.Popen(
            [*TENURE, *arguments],
            cwd=cwd,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        self.lines.extend(self.process.stdout)  # one by one: list.extend shows each as it comes

    @property
    def text(self) -> str:
        """All that it has printed."""
        return "".join(self.lines)

    def until(self, text: str, *, count: int = 1, seconds: float = 30.0) -> None:
        """Waits until it has printed a text `count` times."""

        def printed() -> bool:
            return self.text.count(text) >= count

        assert eventually(lambda: printed() or self.process.poll() is not None, seconds=seconds)
        assert eventually(printed, seconds=1.0), f"{text!r} is not in:\n{self.text}"

    def word(self, before: str) -> str:
        """Gives the word after a text that it has printed."""
        return self.text.partition(before)[2].split()[0]

    def end(self, number: signal.Signals = signal.SIGINT) -> int:
        """Sends a signal and returns the exit code."""
        self.process.send_signal(number)
        return self.process.wait(_SECONDS)

    def close(self) -> None:
        """Ends what a failed test left."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self._reader.join()
        assert self.process.stdout is not None
        self.process.stdout.close()


@contextlib.contextmanager
def running(*arguments: str | Path, cwd: Path | None = None) -> Iterator[Running]:
    """Starts a command, and ends it with the block."""
    started = Running(arguments, cwd)
    try:
        yield started
    finally:
        started.close()


def processes(*texts: str) -> list[str]:
    """Lists the command lines that contain one of the texts."""
    # -ww: the whole lines, however long.
    words = ["ps", "-A", "-ww", "-o", "args="]
    listed = subprocess.run(words, check=True, capture_output=True, text=True)
    return [
        line
        for line in listed.stdout.splitlines()
        if any(text in line for text in texts) and "defunct" not in line
    ]
