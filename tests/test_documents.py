"""README and tutorial are followed to the letter: files written, commands run, output compared."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests import documents
from tests.eventually import eventually

ROOT = Path(__file__).resolve().parent.parent
#: What a test cannot repeat here: it is running in what these make.
_DONE = ("pip install", "make ")
_LONG_RUNNING = ("tenure dev", "tenure server", "tenure worker app")
_SIGNS = {
    "tenure dev": "Try in another terminal",
    "tenure server": "listening on",
    "tenure worker app": "",
}


class Reader:
    """Somebody who does what a document says, in a folder of their own."""

    def __init__(self, folder: Path, database: str) -> None:
        self.folder = folder
        self._database = database
        self._running: list[subprocess.Popen[bytes]] = []
        self._logs: list[Path] = []
        self._use_free_port()

    def _use_free_port(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listening:
            self._address = f"127.0.0.1:{listening.getsockname()[1]}"

    def follow(self, step: documents.Step) -> None:
        """Writes a file or runs a command."""
        if isinstance(step, documents.File):
            (self.folder / step.name).write_text(step.text, encoding="utf-8")
        elif step.line.startswith("cd "):
            self.folder /= step.line.removeprefix("cd ")
        elif not step.line.startswith(_DONE):
            long_running = next((x for x in _LONG_RUNNING if step.line.startswith(x)), None)
            if long_running is not None:
                self._start(step.line, _SIGNS[long_running])
            else:
                self._run(step)

    def _environment(self) -> dict[str, str]:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        return os.environ | {
            "PATH": path,
            "TENURE_ADDRESS": self._address,
            "TENURE_LISTEN": self._address,
            "COLUMNS": "120",
        }

    def _run(self, step: documents.Command) -> None:
        done = subprocess.run(
            ["/bin/bash", "-c", step.line],
            cwd=self.folder,
            env=self._environment(),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, f"$ {step.line}\n{done.stdout}{done.stderr}"
        if step.expected:
            assert documents.matches(step.expected, done.stdout), f"$ {step.line}\n{done.stdout}"

    def _start(self, line: str, sign: str) -> None:
        if line.startswith("tenure server"):
            self.stop()
            self._use_free_port()
            line = line.replace("postgresql://tenure@db/tenure", f"'{self._database}'")
        if line.startswith("tenure dev"):
            line += f" --port {self._address.rpartition(':')[2]}"
        log = self.folder / f"log-{len(self._logs)}"
        with log.open("wb") as output:
            process = subprocess.Popen(
                ["/bin/bash", "-c", f"exec {line}"],
                cwd=self.folder,
                env=self._environment(),
                stdout=output,
                stderr=output,
            )
        self._running.append(process)
        self._logs.append(log)

        def ready() -> bool:
            assert process.poll() is None, f"$ {line}\n{log.read_text()}"
            return sign in log.read_text()

        eventually(ready, seconds=60)

    def stop(self) -> None:
        """Ends what still runs, as Ctrl-C would.

        In the background of a script SIGINT is ignored, by children too until they listen to it:
        one that has just started would not hear it.
        """
        ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        for process in reversed(self._running):
            process.send_signal(signal.SIGTERM if ignored else signal.SIGINT)
            process.wait(60)
        self._running.clear()


@pytest.mark.parametrize("name", ["README.md", "docs/tutorial.md", "docs/workflows.md"])
def test_follow__to_the_letter__prints_what_is_promised(
    name: str, tmp_path: Path, empty_database: str
) -> None:
    reader = Reader(tmp_path, empty_database)
    try:
        for step in documents.steps(ROOT / name):
            reader.follow(step)
    finally:
        reader.stop()


def test_match__another_output__differs() -> None:
    assert documents.matches(["a", "...", "b ... c"], "a\nx\ny\nb 1 c\n")
    assert not documents.matches(["a", "b"], "a\nc\n")
    assert not documents.matches(["a"], "a\nb\n")
