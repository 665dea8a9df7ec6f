"""The worker of `tenure dev`: a child process, replaced when a file of the app changes.

A child that cannot import the app (exit code 2) has said why; the next one starts when a file has
changed. A child that ends in another way is replaced after a pause.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tenure_service.cli import apps, exits, watch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

LOOK_SECONDS: Final = 0.5
GRACE_SECONDS: Final = 3.0
_KILL_SECONDS: Final = 4.0
_PAUSE_SECONDS: Final = 1.0
_PAUSE_SECONDS_MAX: Final = 15.0


class Reloader:
    """Keeps one worker running, made of what the files say now.

    Args:
        spec: The app, as `module:name`.
        command: Arguments of the `tenure` command that runs a worker for it.
        say: Takes a line for people.
    """

    def __init__(self, spec: str, command: Sequence[str], say: Callable[[str], None]) -> None:
        self._command = command
        # The worker's own code may fork: what `tenure dev` sets for itself is not for it.
        self._environment = {
            name: value for name, value in os.environ.items() if name != "GRPC_ENABLE_FORK_SUPPORT"
        }
        self._say = say
        self._folder = watch.root(apps.split(spec)[0])
        self._files: watch.Snapshot = {}
        self._child: asyncio.subprocess.Process | None = None
        self._pipe: int | None = None
        self._hint = True  # what to type next is said until a worker was once up

    async def run(self) -> None:
        """Runs until it is cancelled; `stop` ends the worker then."""
        pause = _PAUSE_SECONDS
        # The first look is before the start: a change during the import must not be overlooked.
        self._files = await asyncio.to_thread(watch.snapshot, self._folder)
        while True:
            await self._start()
            code = await self._ended_or_changed()
            if code is None:
                pause = _PAUSE_SECONDS
                self._hint = False
                await self.stop()
                continue
            await self.stop()
            if code == exits.USAGE:
                self._say("  worker    waits until a file changes")
                await self._change()
                continue
            self._say(f"  worker    ended with code {code}; starts again in {pause:g} s")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._change()
            pause = min(pause * 2, _PAUSE_SECONDS_MAX)

    async def stop(self) -> None:
        """Ends the worker: asks it, and kills it if a handler does not let it end."""
        child, self._child = self._child, None
        pipe, self._pipe = self._pipe, None
        if child is not None and child.returncode is None:
            _signal(child, signal.SIGTERM)
            try:
                async with asyncio.timeout(GRACE_SECONDS + _KILL_SECONDS):
                    await child.wait()
            except BaseException as exc:
                _signal(child, signal.SIGKILL)
                await child.wait()
                if not isinstance(exc, TimeoutError):
                    raise
        if pipe is not None:
            os.close(pipe)

    async def _start(self) -> None:
        reading, self._pipe = os.pipe()
        try:
            # -P: the current directory is put on the path by the command, behind our own imports.
            self._child = await asyncio.create_subprocess_exec(
                sys.executable,
                "-P",
                "-m",
                "tenure_service",
                *self._command,
                f"--grace={GRACE_SECONDS:g}",
                f"--parent-fd={reading}",
                *(["--hint"] if self._hint else []),
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=[reading],
                env=self._environment,
                start_new_session=True,  # Ctrl-C is for `tenure dev`, which stops it in order
            )
        finally:
            os.close(reading)

    async def _ended_or_changed(self) -> int | None:
        """Waits for the first of both; returns the exit code, or None after a change."""
        assert self._child is not None, "called after _start"  # noqa: S101 - our bug
        ended = asyncio.ensure_future(self._child.wait())
        changed = asyncio.ensure_future(self._change())
        try:
            await asyncio.wait([ended, changed], return_when=asyncio.FIRST_COMPLETED)
            return None if changed.done() else ended.result()
        finally:
            ended.cancel()
            changed.cancel()

    async def _change(self) -> None:
        """Waits until a file differs from the last look, and says which."""
        while True:
            files = await asyncio.to_thread(watch.snapshot, self._folder)
            changed = watch.changed(self._files, files)
            self._files = files
            if changed:
                more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
                name = _short(changed[0])
                self._say(f"  worker    {name}{more} changed: starting again")
                return
            await asyncio.sleep(LOOK_SECONDS)


def _short(path: str) -> str:
    with contextlib.suppress(ValueError):
        return str(Path(path).relative_to(Path.cwd()))
    return path


def _signal(child: asyncio.subprocess.Process, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        child.send_signal(number)
