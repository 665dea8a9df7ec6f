"""The account that the server runs under, and what that account can reach.

PostgreSQL refuses to run as root; for root the server runs as `nobody`.
"""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from tenure_service.embedded.errors import EmbeddedUnavailable

if TYPE_CHECKING:
    from collections.abc import Sequence

SHARED_ROOT: Final = Path("/var/tmp")  # noqa: S108 - reachable by every account, survives a reboot


@dataclass(frozen=True, slots=True)
class Account:
    """The account that the server runs under, when it is not our own."""

    uid: int
    gid: int


def for_server() -> Account | None:
    """Returns the account for the server, None when our own will do."""
    if os.geteuid() != 0:
        return None
    try:
        entry = pwd.getpwnam("nobody")
    except KeyError as exc:
        raise EmbeddedUnavailable(
            "PostgreSQL does not run as root and there is no account `nobody`;"
            " run as an ordinary user, or give a database URL"
        ) from exc
    return Account(entry.pw_uid, entry.pw_gid)


def environment() -> dict[str, str]:
    """Returns what the server may see of ours: no PG* variable that would redirect it."""
    inherited = {k: v for k, v in os.environ.items() if k in {"PATH", "TMPDIR"}}
    return {"PATH": os.defpath, **inherited, "LC_ALL": "C"}


#: Becomes the account and then the program, in the same process.
_BECOME: Final = (
    "import os, sys; uid, gid = map(int, sys.argv[1:3]); os.umask(0o077); "
    "uid < 0 or (os.setgroups([]), os.setgid(gid), os.setuid(uid)); "
    "os.execv(sys.argv[3], sys.argv[3:])"
)


def as_account(command: Sequence[str | Path], account: Account | None) -> list[str]:
    """Returns the command line that runs a program as the account.

    An account or a umask handed to `subprocess` makes it fork instead of vfork, and a fork runs the
    handlers that gRPC registers, which can end the child before it becomes the program.
    """
    uid, gid = (account.uid, account.gid) if account else (-1, -1)
    become = [sys.executable, "-I", "-S", "-c", _BECOME, str(uid), str(gid)]
    return [*become, *(str(part) for part in command)]


def run(
    command: Sequence[str | Path], account: Account | None, *, stdin: str | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs one of our own binaries as the account, from a directory that it can be in."""
    return subprocess.run(  # noqa: S603 - our own binaries, no shell
        as_account(command, account),
        check=False,
        capture_output=True,
        text=True,
        input=stdin,
        cwd="/",
        env=environment(),
    )


def reachable(path: Path, test: Literal["-x", "-w"], account: Account | None) -> bool:
    """Asks as the account itself: mode bits alone miss access lists and read-only mounts."""
    script = f'test {test} "$1"'
    return run(["/bin/sh", "-c", script, "sh", path], account).returncode == 0


def refuse_foreign(directory: Path) -> None:
    """Shared directories are writable by everyone: what somebody else put there is not ours."""
    facts = directory.lstat()
    if directory.is_symlink() or not directory.is_dir() or facts.st_uid != os.geteuid():
        raise EmbeddedUnavailable(f"{directory} belongs to somebody else; remove it or ask them")


def give(path: Path, account: Account | None) -> None:
    """Makes the account the owner."""
    if account is not None:
        os.chown(path, account.uid, account.gid)


def command_line(pid: int) -> str:
    """Returns the arguments of a process, "" when it is gone or a zombie."""
    proc = Path("/proc") / str(pid) / "cmdline"
    if Path("/proc/self").exists():
        try:
            return proc.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            return ""
    found = run(["ps", "-o", "command=", "-p", str(pid)], None)
    return found.stdout if found.returncode == 0 else ""
