"""How many tasks a worker asks for at a time.

As many as handlers may run, so that no task waits here while another worker idles. A round trip
then stands between two tasks of a slot, which short handlers feel: once the median of their
durations has been under 100 ms, the number grows step by step, up to what takes about one second
to work off. It falls at once when handlers turn out slow.

Pure: the caller passes the time and the counts.
"""

from __future__ import annotations

import collections
import statistics

# Handlers under this are short: a round trip is a good part of their time.
SHORT_SECONDS = 0.1
# Waiting work is sized to this time. Less would drain in a hiccup of the network, more would keep
# tasks from other workers.
WORK_SECONDS = 1.0
# A wrong step of handlers this short costs next to nothing (what would wait is handed back), so they
# earn faster: from 10 slots to 1,000 takes 0.2 s instead of 1.75 s, in which a worker could have
# drained 15,000 tasks. With handlers that do next to nothing it takes one step: in 0.2 s a worker
# drains 2,000 of those.
VERY_SHORT_SECONDS = 0.01
TINY_SECONDS = 0.001
STEP_SECONDS = 1.0
STEP_SECONDS_VERY_SHORT = 0.05
# A step that takes longer is not earned: the slots there are keep the worker busy.
STEP_SECONDS_MAX = 2.0
FACTOR = 2
FACTOR_VERY_SHORT = 4
FACTOR_TINY = 100
SAMPLE_COUNT = 256
SAMPLE_COUNT_MIN = 20


class SlotGovernor:
    """SlotGovernor says how many slots the worker asks for.

    Args:
        concurrency: Handlers that may run at once; slots are never fewer.
        prefetch_max: Slots are never more than this, or `concurrency` if that is more.
        now: Monotonic time, in seconds.
    """

    def __init__(self, concurrency: int, prefetch_max: int, now: float) -> None:
        self._concurrency = concurrency
        self._slots_max = max(concurrency, prefetch_max)
        self._durations: collections.deque[float] = collections.deque(maxlen=SAMPLE_COUNT)
        self._finished_count = 0
        self._stepped_at = now
        self.slots = concurrency

    @property
    def prefetches(self) -> bool:
        """True if more is asked for than can run at once."""
        return self.slots > self._concurrency

    def finished(self, run_seconds: float) -> None:
        """Notes that a handler ended after `run_seconds`."""
        self._durations.append(run_seconds)
        self._finished_count += 1

    def median(self) -> float | None:
        """Returns the median of the latest durations in seconds, None without enough of them."""
        if len(self._durations) < SAMPLE_COUNT_MIN:
            return None
        return statistics.median(self._durations)

    def step(self, now: float, running_count: int, slow_count: int) -> bool:
        """Decides anew, given how many handlers run and how many have run over 100 ms.

        Returns:
            True if `slots` changed.
        """
        before = self.slots
        # Slow handlers that have not ended yet are in no median: half of the threads say enough.
        if slow_count * 2 >= min(running_count, self._concurrency) and slow_count:
            self._forget(now)
            self.slots = self._concurrency
            return self.slots != before
        if now - self._stepped_at > STEP_SECONDS_MAX and self._finished_count < self.slots:
            self._stepped_at = now
            self._finished_count = 0
        median = self.median()
        if median is None:
            return False
        if median >= SHORT_SECONDS:
            self.slots = self._concurrency
            self._stepped_at = now
            return self.slots != before
        # No duration is 0, but the clock's resolution may say so.
        earned = int(self._concurrency * (1 + WORK_SECONDS / max(median, 1e-6)))
        ceiling = min(self._slots_max, earned)
        if self.slots > ceiling:
            self.slots = ceiling
            self._stepped_at = now
            return True
        very_short = median < VERY_SHORT_SECONDS
        pause = STEP_SECONDS_VERY_SHORT if very_short else STEP_SECONDS
        factor = FACTOR_VERY_SHORT if very_short else FACTOR
        if median < TINY_SECONDS:
            factor = FACTOR_TINY
        # As many tasks must have ended since the last step as were asked for, and within
        # STEP_SECONDS_MAX: a worker that has little to do learns nothing and needs no more.
        if self._finished_count < self.slots or now - self._stepped_at < pause:
            return False
        self._stepped_at = now
        self._finished_count = 0
        self.slots = min(ceiling, self.slots * factor)
        return self.slots != before

    def _forget(self, now: float) -> None:
        self._durations.clear()
        self._finished_count = 0
        self._stepped_at = now
