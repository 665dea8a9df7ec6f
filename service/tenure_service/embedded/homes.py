"""The home directory of a server: where its data, lock and socket are."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tenure_service.embedded import accounts
from tenure_service.embedded.errors import EmbeddedDataMissing, EmbeddedUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

PORT: Final = 5432  # only names the socket file: the server listens on no address
_SOCKET_PATH_BYTES_MAX: Final = 103  # sun_path holds 104 bytes on macOS, 108 on Linux


def make(requested: Path, account: accounts.Account | None) -> Path:
    """Returns the directory that holds the data: the requested one, or the one it points to."""
    requested.mkdir(parents=True, exist_ok=True, mode=0o700 if account is None else 0o711)
    # Of two processes that start at once, one makes the home and the other finds it.
    with locked(requested / "location.lock"):
        return _make(requested, account)


def _make(requested: Path, account: accounts.Account | None) -> Path:
    pointer = requested / "location"
    if pointer.exists():
        home = Path(pointer.read_text(encoding="utf-8").strip())
        if not home.is_dir():
            raise EmbeddedDataMissing(
                f"{pointer} names {home}, which is gone; delete {pointer} to start empty"
            )
        accounts.refuse_foreign(home)
        return home
    if account is None or accounts.reachable(requested, "-x", account):
        return requested
    home = Path(tempfile.mkdtemp(prefix="tenure-data-", dir=accounts.SHARED_ROOT))
    home.chmod(0o711)
    write_private(pointer, f"{home}\n")
    return home


def write_private(path: Path, text: str) -> None:
    """Writes a file that only its owner reads; it is whole or absent."""
    staging = path.with_name(f"{path.name}.new")
    staging.unlink(missing_ok=True)
    with os.fdopen(os.open(staging, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    staging.rename(path)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds a lock file; the kernel lets go of it when its holder dies."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def socket_directory(home: Path, account: accounts.Account | None) -> Path:
    """Returns a directory of the server's account whose socket path the kernel accepts."""
    directory = home / "socket"
    if len(os.fsencode(directory / f".s.PGSQL.{PORT}")) > _SOCKET_PATH_BYTES_MAX:
        digest = hashlib.sha256(os.fsencode(home)).hexdigest()[:16]
        directory = Path("/tmp") / f"tenure-{os.geteuid()}-{digest}"  # noqa: S108 - see the check
    if not directory.exists():
        directory.mkdir(mode=0o700)
        accounts.give(directory, account)
    owner = account.uid if account else os.geteuid()
    facts = directory.lstat()
    if directory.is_symlink() or facts.st_uid != owner or facts.st_mode & 0o077:
        raise EmbeddedUnavailable(f"{directory} is not ours alone; remove it or ask its owner")
    return directory
