"""Notices `async def` handlers that block the event loop which they share.

Heartbeats do not suffer, they have a thread of their own; all other `async def` handlers of the
worker do, and nothing else would say so.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tenure.worker.job import Job

_log = logging.getLogger("tenure.worker")

# Looks in a row, 20 a second, that the loop let pass. Looks are counted and not seconds: a process
# that was stopped as a whole has not looked either.
LOOKS_UNANSWERED_MAX: Final = 20


class LoopWatch:
    """LoopWatch asks the loop for a sign of life at each look, and warns once a handler's name."""

    def __init__(self) -> None:
        self._answered = True
        self._unanswered_count = 0
        self._named: set[str] = set()

    def look(self, loop: asyncio.AbstractEventLoop, running: Iterable[Job]) -> None:
        """Looks at the loop from another thread; to be called at even times."""
        if self._answered:
            self._answered = False
            self._unanswered_count = 0
            loop.call_soon_threadsafe(self._answer)
            return
        self._unanswered_count += 1
        if self._unanswered_count == LOOKS_UNANSWERED_MAX:
            self._warn(asyncio.current_task(loop), running)

    def _answer(self) -> None:
        self._answered = True

    def _warn(self, task: asyncio.Task[object] | None, running: Iterable[Job]) -> None:
        names = [job.name for job in running if job.asyncio_task is not None]
        own = [job.name for job in running if task is not None and job.asyncio_task is task]
        # A task that a handler started itself is not ours to know.
        named = own or sorted(set(names))
        for name in named:
            if name in self._named:
                return
        self._named.update(named)
        _log.warning(
            "the async handler %s has blocked the event loop for more than 1 s, and all others"
            " wait for it: make it a `def`, which runs in a thread, or move what blocks into"
            " `await asyncio.to_thread(...)`",
            " or ".join(map(repr, named)) or "of a task",
        )
