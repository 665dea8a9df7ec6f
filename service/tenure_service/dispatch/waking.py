"""Waking runs: whoever commits the end of what a run has started looks at the run's inbox next.

One pass runs at a time, over all runs that were hinted meanwhile. Hints are of this process only: it
wakes the run whatever server its worker is connected to, and `due` finds what was never hinted
(INV-10). A run that somebody has locked at that moment is looked at again, more and more slowly.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Final

from tenure_service.store import inbox
from tenure_service.store.database import Database
from tenure_service.usecase import cancel_runs, wake
from tenure_service.usecase.end import Ends

_AGAIN_SECONDS: Final = 0.005
#: Beyond it `due` comes by anyway.
_AGAIN_SECONDS_MAX: Final = 0.5


class Waking:
    """Wakes runs for one server; used on its event loop."""

    def __init__(
        self,
        database: Database,
        *,
        ended: Callable[[Ends], None],
        spawn: Callable[[Coroutine[object, object, None]], None],
    ) -> None:
        """Prepares it.

        Args:
            database: Where the runs are.
            ended: Called with what was done: lanes that have runs, what was cancelled.
            spawn: Runs something in the background.
        """
        self._database = database
        self._ended = ended
        self._spawn = spawn
        self._hinted: set[str] = set()
        self._busy = False

    def hint(self, run_ids: Iterable[str]) -> None:
        """Says that runs may have something new in their inboxes."""
        self._hinted.update(run_ids)
        if self._hinted and not self._busy:
            self._busy = True
            self._spawn(self._work())

    async def _work(self) -> None:
        pause = _AGAIN_SECONDS
        try:
            while self._hinted:
                batch = sorted(self._hinted)[: wake.RUNS_A_PASS]
                self._hinted.difference_update(batch)
                woken = await asyncio.to_thread(wake.wake, self._database, batch)
                self._ready(woken)
                if woken.left and pause <= _AGAIN_SECONDS_MAX:
                    self._hinted.update(woken.left)
                    if len(woken.left) == len(batch):
                        await asyncio.sleep(pause)
                        pause *= 2
        finally:
            self._busy = False

    async def look(self) -> None:
        """Looks at all inboxes in which something stands, whatever was or was not hinted."""
        after: str | None = inbox.FIRST
        while after is not None:
            woken, after = await asyncio.to_thread(wake.wake_any, self._database, after=after)
            self._ready(woken)

    def _ready(self, woken: wake.Woken) -> None:
        if woken.ready_lanes:
            self._ended(Ends(recorded=[], ready_lanes=woken.ready_lanes))

    async def press(self) -> None:
        """Sees to requests to cancel that nobody is told of; their ends may ask for it again."""
        ends = await asyncio.to_thread(cancel_runs.press, self._database)
        if ends is not None:
            self._ended(ends)
