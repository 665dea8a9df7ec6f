"""The clock of a server: one cheap question a second, and whatever it says is due.

Expired leases, timers, overdue cancellations and lanes that hold a task are found by the one
statement `due`, so an idle server is quiet. A timer that is due earlier is waited for exactly; one
that this process sets itself wakes the loop.
"""

import asyncio
import logging
import time
from datetime import datetime

from tenure_service.dispatch.hub import Hub
from tenure_service.engine.states import Outcome
from tenure_service.loops.supervisor import Health
from tenure_service.store.leases import RANK_MIN
from tenure_service.store.rows import Due
from tenure_service.usecase import cancel, cancel_runs, expire, maintain, timeouts

_log = logging.getLogger(__name__)

_POLL_SECONDS = 1.0
# While somebody waits for tasks: the look at what they wait for is a part of their second.
_WAITED_POLL_SECONDS = 0.8
_TOUCH_SECONDS = 5.0
_HELD_REMINDER_SECONDS = 300.0


class DueLoop:
    """Asks what is due, and does it."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._soon = asyncio.Event()
        self._next_at = 0.0
        self._touched_at = 0.0
        self._held_told_at: float | None = None
        self._asked_at = float("-inf")
        self._lenient_until = float("-inf")
        hub.on_timer = self.timer_set

    def timer_set(self, due_ms: int) -> None:
        """Notes a timer that this process set."""
        at = time.monotonic() + due_ms / 1000
        if at < self._next_at:
            self._next_at = at
            self._soon.set()

    @property
    def every_seconds(self) -> float:
        """The pause between its passes, at most."""
        return _POLL_SECONDS

    @property
    def _pause_seconds(self) -> float:
        # The look-up is a part of the second within which callers are answered.
        return _WAITED_POLL_SECONDS if self._hub.waiters else _POLL_SECONDS

    async def run(self, health: Health) -> None:
        """Runs until it is cancelled."""
        while True:
            self._next_at = time.monotonic() + self._pause_seconds
            due = await asyncio.to_thread(
                maintain.due, self._hub.database, sorted(self._hub.leaser.served())
            )
            self._be_lenient()
            self._tell_held(due.timers_held_at)
            again = await self._act(due)
            health.succeeded()
            if again:
                continue
            if due.timer_due_ms is not None:
                self.timer_set(max(due.timer_due_ms, 0) + 1)
            await self._wait()

    async def _wait(self) -> None:
        """Waits for the next time, which may come nearer meanwhile."""
        while (left := self._next_at - time.monotonic()) > 0:
            self._soon.clear()
            try:
                await asyncio.wait_for(self._soon.wait(), left)
            except TimeoutError:
                return

    def _be_lenient(self) -> None:
        """Leaves what has run out alone for two heartbeats, if nobody could renew or report.

        The database was away for a heartbeat, or this server: workers come back with results of
        leases that ran out meanwhile, and to sweep those at once would be to run all of them again.
        Where that is so again and again the next lease is swept all the same.
        """
        now, durations = time.monotonic(), self._hub.durations
        heartbeat_seconds = durations.heartbeat.total_seconds()
        was_away = now - self._asked_at > heartbeat_seconds
        if was_away and now > self._lenient_until + durations.lease.total_seconds():
            self._lenient_until = now + 2 * heartbeat_seconds
        self._asked_at = now

    def _tell_held(self, held_at: datetime | None) -> None:
        """Warns, now and every few minutes, while timers are held; and says when they are not."""
        told_at, now = self._held_told_at, time.monotonic()
        if held_at is None:
            self._held_told_at = None
            if told_at is not None:
                _log.warning("timers were released; what is due fires now")
        elif told_at is None or now - told_at > _HELD_REMINDER_SECONDS:
            self._held_told_at = now
            _log.warning(
                "timers are held since %s: the database was restored to an earlier moment, and no "
                "delayed task, retry or timeout fires; look it over, then run "
                "`tenure restore-check --release`",
                f"{held_at:%Y-%m-%d %H:%M:%S %Z}",
            )

    async def _act(self, due: Due) -> bool:
        """Does what is due; True if there may be more at once."""
        hub = self._hub
        again = False
        lenient = time.monotonic() < self._lenient_until
        if due.lease_expired and not lenient:
            ends = await asyncio.to_thread(expire.expire, hub.database, hub.catalogue)
            if ends is not None:
                hub.ended(ends)
                again = True
                if lost_count := ends.tally.outcomes[Outcome.LOST]:
                    _log.warning("%d task(s) were lost with their workers and go on", lost_count)
        timer_due = due.timer_due_ms is not None and due.timer_due_ms <= 0
        # A timer may be due because the total timeout of its task is.
        if timer_due or (due.timeout_due and not lenient):
            overdue = await asyncio.to_thread(timeouts.sweep, hub.database, hub.catalogue)
            if overdue is not None:
                hub.ended(overdue)
                again = True
        if timer_due:
            fired = await asyncio.to_thread(expire.fire_timers, hub.database)
            if fired:
                ranks: dict[int, int] = {}
                for row in fired:
                    ranks[row.lane_id] = min(row.rank, ranks.get(row.lane_id, row.rank))
                await hub.readied(ranks)
                again = True
        if due.cancel_overdue:
            for end_overdue in (cancel.end_overdue, cancel_runs.end_overdue):
                ended = await asyncio.to_thread(end_overdue, hub.database, hub.catalogue)
                if ended is not None:
                    hub.ended(ended)
        if due.cancel_requested:
            await hub.tell_cancels()
            await hub.waking.press()
        if due.run_told:
            await hub.waking.look()
        if due.ready_lane_ids:
            await hub.leaser.wake(dict.fromkeys(due.ready_lane_ids, RANK_MIN))
        hub.leaser.freed()
        hub.check_accepts()
        hub.keep_leases()
        await hub.look_for_results()
        if time.monotonic() - self._touched_at > _TOUCH_SECONDS:
            self._touched_at = time.monotonic()
            await hub.touch_sessions()
            await hub.free_lost_slots()
        return again
