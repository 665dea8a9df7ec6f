"""Creates, starts, adopts, stops and kills one server process."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final, Literal, Self

from tenure_service.embedded import accounts, binaries, homes
from tenure_service.embedded.errors import EmbeddedError, EmbeddedStartFailed, EmbeddedStopFailed

if TYPE_CHECKING:
    from collections.abc import Mapping

SUPERUSER: Final = "tenure"
_LOG_BYTES_MAX: Final = 16 * 1024 * 1024
_START_SECONDS: Final = 60.0  # recovery after a crash replays the log before it accepts anyone
_STOP_SECONDS: Final = 30.0
_PAUSE_SECONDS: Final = 0.02
_NO_PROCESS: Final = "2147483647"  # above every kernel's largest process id
_STOP_SIGNALS: Final = {
    "smart": signal.SIGTERM,
    "fast": signal.SIGINT,
    "immediate": signal.SIGQUIT,
}
# Commits still reach the kernel, so that killing the server loses none; only the machine may.
_NOT_DURABLE: Final = {"fsync": "off", "full_page_writes": "off"}


def _quoted(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


class EmbeddedPostgres:
    """One running server; make it with `start`.

    Attributes:
        home: where its data, password and log are.
        adopted: the server was already running, left over by an owner that was killed or is busy.
    """

    def __init__(
        self,
        *,
        requested: Path,
        home: Path,
        account: accounts.Account | None,
        settings: Mapping[str, str],
        durable: bool,
    ) -> None:
        self.home = home
        self.adopted = False
        self._requested = requested
        self._account = account
        self._settings = settings
        self._durable = durable
        self._bin = binaries.reachable_by(account) / "bin"
        self._socket = home / "socket"  # made, or placed elsewhere, under the lock of _up
        self._password = ""
        self._process: subprocess.Popen[bytes] | None = None
        self._pid: int | None = None

    @classmethod
    def start(
        cls, data_dir: Path, *, settings: Mapping[str, str] | None = None, durable: bool = True
    ) -> Self:
        """Starts the server of a home directory, creating it with database `tenure` when empty.

        A server that is already running on it is adopted, with the settings it was started with;
        one that crashed is recovered by PostgreSQL itself.

        Args:
            data_dir: the home directory; made when absent.
            settings: PostgreSQL settings over the defaults here, by name.
            durable: False trades what a crash of the machine leaves for speed, for tests; a crash of the
                server still loses nothing.

        Raises:
            EmbeddedUnavailable: the extra is not installed, or a directory is not ours.
            EmbeddedDataMissing: the recorded data is gone.
            EmbeddedStartFailed: the server did not come up.
        """
        requested = data_dir.resolve()  # one name a directory: the running server is found by it
        account = accounts.for_server()
        home = homes.make(requested, account)
        server = cls(
            requested=requested,
            home=home,
            account=account,
            settings=dict(settings or {}),
            durable=durable,
        )
        server._up()
        return server

    def __enter__(self) -> Self:
        """Returns the running server."""
        return self

    def __exit__(self, *_: object) -> None:
        """Stops the server."""
        self.stop()

    @property
    def data(self) -> Path:
        """PGDATA."""
        return self.home / "data"

    @property
    def log_path(self) -> Path:
        """What the server printed."""
        return self.home / "server.log"

    @property
    def pid(self) -> int:
        """The postmaster's process id.

        Raises:
            EmbeddedError: the server is not running.
        """
        if self._pid is None:
            raise EmbeddedError("the embedded PostgreSQL is stopped")
        return self._pid

    @property
    def running(self) -> bool:
        """The server is up, as far as its process tells; False after a crash, until `restart`."""
        return self._alive()

    def dsn(self, database: str = "tenure") -> str:
        """Returns a conninfo string with the password in it, for processes of the same account."""
        return (
            f"host={_quoted(str(self._socket))} port={homes.PORT} user={SUPERUSER}"
            f" password={self._password} dbname={_quoted(database)}"
        )

    def stop(self, mode: Literal["smart", "fast", "immediate"] = "fast") -> None:
        """Stops the server and waits for its end; harmless when it is already down.

        Raises:
            EmbeddedStopFailed: the process outlived the signals.
        """
        if self._pid is None:
            return
        self._signal(_STOP_SIGNALS[mode])
        if not self._gone_within(_STOP_SECONDS):
            self._signal(signal.SIGQUIT)
            if not self._gone_within(_STOP_SECONDS):
                raise EmbeddedStopFailed(
                    f"PostgreSQL {self._pid} does not stop; {self._log_tail()}"
                )
        self._forget()
        with contextlib.suppress(OSError):
            self._socket.rmdir()

    def kill(self) -> None:
        """Kills the postmaster as a crash would; `restart` recovers.

        Raises:
            EmbeddedStopFailed: the process is still there.
        """
        self._signal(signal.SIGKILL)
        if not self._gone_within(_STOP_SECONDS):
            raise EmbeddedStopFailed(f"PostgreSQL {self._pid} does not die")
        self._forget()

    def restart(self, mode: Literal["smart", "fast", "immediate"] = "fast") -> None:
        """Stops the server if it runs and starts it again on the same socket and password."""
        self.stop(mode)
        self._up()

    def remove(self) -> None:
        """Stops the server and deletes all of its data, also where `location` points."""
        self.stop("immediate")
        shutil.rmtree(self._socket, ignore_errors=True)
        shutil.rmtree(self.home, ignore_errors=True)
        shutil.rmtree(self._requested, ignore_errors=True)

    # ------------------------------------------------------------------ bringing it up

    def _up(self) -> None:
        with homes.locked(self.home / "lock"):
            if not self.data.exists():
                self._create()
            self._password = (self.home / "password").read_text(encoding="utf-8").strip()
            self._socket = homes.socket_directory(self.home, self._account)
            running = self._running_pid()
            self.adopted = running is not None
            if running is None:
                self._disarm()
                self._launch()
            else:
                self._pid = running
                self._await_ready(time.monotonic() + _START_SECONDS)

    def _create(self) -> None:
        """Makes PGDATA aside, with the database in it, and moves it into place at the end."""
        staging = self.home / "data.new"
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir(mode=0o700)
        accounts.give(staging, self._account)
        password = secrets.token_hex(24)
        password_file = self.home / "password.initdb"
        homes.write_private(password_file, password)
        accounts.give(password_file, self._account)
        try:
            self._checked(
                self._bin / "initdb",
                f"--pgdata={staging}",
                f"--username={SUPERUSER}",
                f"--pwfile={password_file}",
                "--auth=scram-sha-256",
                "--encoding=UTF8",
                "--locale=C",
                "--locale-provider=builtin",
                "--builtin-locale=C.UTF-8",
                *([] if self._durable else ["--no-sync"]),
            )
        finally:
            password_file.unlink()
        # Single-user mode: nobody can connect before the database is there.
        self._checked(
            self._bin / "postgres",
            "--single",
            "-D",
            staging,
            *self._options({} if self._durable else _NOT_DURABLE),
            "template1",
            stdin="create database tenure\n",
        )
        homes.write_private(self.home / "password", password)
        staging.rename(self.data)

    def _checked(self, *command: str | Path, stdin: str | None = None) -> None:
        done = accounts.run(command, self._account, stdin=stdin)
        if done.returncode != 0 or "ERROR:" in done.stderr:
            name = Path(command[0]).name
            raise EmbeddedStartFailed(f"{name} failed ({done.returncode}): {done.stderr.strip()}")

    @staticmethod
    def _options(settings: Mapping[str, str]) -> list[str]:
        return [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]

    def _launch(self) -> None:
        deadline = time.monotonic() + _START_SECONDS
        settings = {
            "listen_addresses": "",
            "unix_socket_directories": str(self._socket),
            "unix_socket_permissions": "0700",
            "port": str(homes.PORT),
            "max_connections": "200",
            "timezone": "UTC",
            "log_timezone": "UTC",
            **({} if self._durable else _NOT_DURABLE),
            **self._settings,
        }
        while True:
            self._start_process(
                [f"{self._bin}/postgres", "-D", str(self.data), *self._options(settings)]
            )
            if self._await_ready(deadline):
                return

    def _start_process(self, command: list[str]) -> None:
        with self._open_log() as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own binary, no shell
                accounts.as_account(command, self._account),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                env=accounts.environment(),
                start_new_session=True,  # a terminal's Ctrl-C is for the owner, who stops it in order
            )
        self._pid = self._process.pid

    def _open_log(self) -> IO[bytes]:
        if self.log_path.exists() and self.log_path.stat().st_size > _LOG_BYTES_MAX:
            self.log_path.rename(self.log_path.with_name("server.log.1"))
        log = self.log_path.open("ab")
        self._log_start = log.tell()
        return log

    def _await_ready(self, deadline: float) -> bool:
        """Waits until the server accepts connections.

        Returns:
            False when the server should be started again: backends of a killed predecessor
            still hold its memory, and end by themselves within moments.
        """
        while time.monotonic() < deadline:
            lines = self._pid_file()
            if len(lines) > 7 and lines[0] == str(self._pid) and lines[7].strip() == "ready":
                return True
            if not self._alive():
                self._forget()
                time.sleep(_PAUSE_SECONDS)
                if "pre-existing shared memory block" in self._log_tail():
                    return False
                raise EmbeddedStartFailed(f"PostgreSQL did not start; {self._log_tail()}")
            time.sleep(_PAUSE_SECONDS)
        raise EmbeddedStartFailed(f"PostgreSQL is not ready in time; {self._log_tail()}")

    def _running_pid(self) -> int | None:
        """Returns the process id of a live server on our data."""
        lines = self._pid_file()
        if lines and lines[0].isdigit() and self._is_server(int(lines[0])):
            return int(lines[0])
        return None

    def _disarm(self) -> None:
        """Takes the process id of a dead server out of its lock files.

        An id that is a zombie, or that another program of the account got after a reboot, would
        make the server refuse to start. The line is overwritten, not the file removed: its shared
        memory key is how the server notices backends that outlived a killed postmaster.
        """
        lines = self._pid_file()
        if lines:
            path = self.data / "postmaster.pid"
            path.write_text("\n".join([_NO_PROCESS, *lines[1:]]) + "\n", encoding="utf-8")
        (self._socket / f".s.PGSQL.{homes.PORT}.lock").unlink(missing_ok=True)

    def _pid_file(self) -> list[str]:
        try:
            return (self.data / "postmaster.pid").read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return []

    # ------------------------------------------------------------------ taking it down

    def _signal(self, number: signal.Signals) -> None:
        if self._alive():
            os.kill(self.pid, number)

    def _alive(self) -> bool:
        if self._process is not None:
            return self._process.poll() is None
        return self._pid is not None and self._is_server(self._pid)

    def _is_server(self, pid: int) -> bool:
        """Tells our postmaster from a program that got its process id after a reboot."""
        return f" -D {self.data} " in accounts.command_line(pid)

    def _gone_within(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while self._alive():
            if time.monotonic() > deadline:
                return False
            time.sleep(_PAUSE_SECONDS)
        return True

    def _forget(self) -> None:
        self._process = None
        self._pid = None

    def _log_tail(self) -> str:
        try:
            with self.log_path.open("rb") as file:
                file.seek(getattr(self, "_log_start", 0))
                lines = file.read().decode(errors="replace").splitlines()
        except FileNotFoundError:
            lines = []
        return f"the end of {self.log_path}:\n" + "\n".join(lines[-20:])
