"""The lock of a folder that `tenure dev` uses: one at a time, and it says who that is.

The kernel lets go of the lock when its holder dies, however that happens; the file then stays
behind, and the next holder takes it over.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from typing import IO, TYPE_CHECKING, Any

from tenure_service.cli import exits

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FILE_NAME = "dev.lock"


class Hold:
    """A folder that is ours until the end of `folder`."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file
        self._facts: dict[str, Any] = {"process_id": os.getpid(), "began_at": time.time()}
        self.tell()

    def tell(self, **facts: Any) -> None:
        """Writes down what somebody who finds the folder held should know."""
        self._facts |= facts
        self._file.seek(0)
        self._file.write(json.dumps(self._facts))
        self._file.truncate()
        self._file.flush()


@contextlib.contextmanager
def folder(directory: Path) -> Iterator[Hold]:
    """Makes the folder if need be, and holds it.

    Raises:
        CommandFailed: another process holds it; the message says which.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        ignore = directory / ".gitignore"
        if not ignore.exists():
            ignore.write_text("*\n", encoding="utf-8")
    except OSError as exc:
        raise exits.CommandFailed(
            f"{directory} cannot be used: {exc.strerror}; name another folder with --dir"
        ) from exc
    path = directory / FILE_NAME
    with _locked(path) as file:
        try:
            yield Hold(file)
        finally:
            path.unlink(missing_ok=True)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[IO[str]]:
    while True:
        # Neither "w" nor "a": what another holder wrote stays, and what we write replaces it.
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        with open(descriptor, "r+", encoding="utf-8") as file:  # noqa: PTH123 - a descriptor
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise exits.CommandFailed(_held(path, file.read()), exits.CONFLICT) from None
            # A holder removes the file at its end: what was opened before that locks nobody out.
            if _same(path, file):
                yield file
                return


def _same(path: Path, file: IO[str]) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False


def _held(path: Path, text: str) -> str:
    try:
        facts = json.loads(text)
    except ValueError:
        facts = {}
    process_id = facts.get("process_id", "?")
    began = facts.get("began_at")
    since = f" since {time.strftime('%H:%M:%S', time.localtime(began))}" if began else ""
    first = f"another `tenure dev` holds {path.parent}: process {process_id}{since}"
    address = facts.get("address")
    if address is None:
        return f"{first}; it has not finished its start."
    return (
        f"{first}, server {address}.\n"
        f"  ask it        tenure task list --state READY --address {address}\n"
        f"  add a worker  tenure worker MODULE:NAME --address {address}\n"
        f"  stop it       kill {process_id}\n"
        "Or name another folder with --dir, and another port with --port."
    )
