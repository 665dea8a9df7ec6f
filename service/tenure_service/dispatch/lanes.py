"""Which lanes may hold a task, and from where to pick: hints, never the truth (INV-10).

A lane is hot from the moment that something says that it may hold a task until a pick comes back
short. Above the bottom is a low-water mark, below which this server believes all rows to be dead:
stepping over dead index entries is what makes a pick slow while a snapshot is held. What was committed
late, or put back below it, is found from the bottom: at once where somebody says so, else within a
second, since `due` says each second which lanes hold a task.
"""

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Self

from tenure_service.engine import limits
from tenure_service.store.leases import RANK_MIN
from tenure_service.store.registry import Lane

#: How long picks may start above the bottom: a row that was committed late, or released to its old
#: place, is found within this time.
_LOW_WATER_SECONDS = 1.0
#: Places that are left below the last task of a pick that took all there was: for tasks that got their
#: places before it and are committed after it.
_LOW_WATER_MARGIN = 2_000
#: How long a lane must have been cold until it is forgotten.
_COLD_SECONDS = 600.0


class Handled(NamedTuple):
    """What the tasks or runs of a lane are, and a worker says that it can run."""

    namespace_id: int
    queue: str
    name: str
    #: As of `Lane`: empty for tasks.
    app_version: str = ""


@dataclass(slots=True)
class LaneHint:
    """What a server believes of one lane."""

    handled: Handled
    suspect: bool
    hot: bool = False
    #: Raised by each wake-up, so that a short pick that began before one does not cool the lane.
    woken: int = 0
    low: tuple[int, int] = (RANK_MIN, 0)
    low_until: float = 0.0
    served_at: int = 0
    woken_at: float = 0.0
    #: What an input of this lane is expected to have; None before the first one.
    input_bytes: float | None = None

    @classmethod
    def of(cls, lane: Lane) -> Self:
        """Gives what is believed of a lane at first."""
        handled = Handled(lane.namespace_id, lane.queue, lane.name, lane.app_version)
        return cls(handled, lane.suspect)

    @property
    def task_count_max(self) -> int:
        """How many tasks one pick may take, so that their inputs are not more than a message."""
        if self.input_bytes is None:
            return limits.ASSIGN_FIRST_COUNT
        fitting = int(limits.ASSIGN_BYTES_MAX / max(self.input_bytes, 1.0))
        return max(min(fitting, limits.LEASE_TASK_COUNT_MAX), 1)

    def measured(self, task_count: int, input_bytes: int) -> None:
        """Notes the inputs of a pick; larger ones count at once, smaller ones by and by."""
        mean = input_bytes / task_count
        before = mean if self.input_bytes is None else self.input_bytes
        self.input_bytes = max(mean, 0.75 * before + 0.25 * mean)

    def place(self, now: float) -> tuple[int, int]:
        """Gives the place above which to pick now."""
        if self.low[0] != RANK_MIN and now >= self.low_until:
            self.low = (RANK_MIN, 0)
        return self.low

    def wake(self, rank: int) -> None:
        """Notes that a task of this rank may be there."""
        self.hot = True
        self.woken += 1
        self.woken_at = time.monotonic()
        if rank < self.low[0]:
            self.low = (RANK_MIN, 0)

    def picked(
        self,
        place: tuple[int, int],
        *,
        last: tuple[int, int] | None,
        full: bool,
        more: bool,
        woken: int,
    ) -> None:
        """Notes what a pick above `place` found; `more`: there may be more than it asked for."""
        from_bottom = place[0] == RANK_MIN
        if self.low[0] == RANK_MIN and not from_bottom:
            # Woken meanwhile: what it did not look at, below its place, is the next to be picked.
            return
        if last is not None:
            if self.low[0] == RANK_MIN:
                self.low_until = time.monotonic() + _LOW_WATER_SECONDS
            self.low = last if full else (last[0], max(last[1] - _LOW_WATER_MARGIN, 0))
        if not full and not more and self.woken == woken:
            self.hot = False


class Lanes:
    """The lanes that a server knows of, and which of them are hot."""

    def __init__(self) -> None:
        self._known: dict[int, LaneHint] = {}
        #: A server may know of very many lanes that are not hot.
        self._hot: dict[int, LaneHint] = {}
        self._by_handled: defaultdict[Handled, set[int]] = defaultdict(set)

    def __getitem__(self, lane_id: int) -> LaneHint:
        return self._known[lane_id]

    @property
    def hot(self) -> Mapping[int, LaneHint]:
        """Those that may hold a task, by id."""
        return self._hot

    def unknown(self, lane_ids: Iterable[int]) -> list[int]:
        """Gives those that are not known."""
        return [lane_id for lane_id in lane_ids if lane_id not in self._known]

    def add(self, lane_id: int, hint: LaneHint) -> None:
        """Makes a lane known, unless it is."""
        if lane_id not in self._known:
            self._known[lane_id] = hint
            self._by_handled[hint.handled].add(lane_id)

    def wake(self, lane_id: int, rank: int) -> None:
        """Makes a known lane hot: a task of this rank may be there."""
        hint = self._known.get(lane_id)
        if hint is not None:
            hint.wake(rank)
            self._hot[lane_id] = hint

    def wake_handled(self, handled: Handled, rank: int) -> None:
        """Makes the known lanes of a handler hot."""
        for lane_id in self._by_handled.get(handled, ()):
            self.wake(lane_id, rank)

    def cool(self, lane_id: int) -> None:
        """Notes that a lane is empty."""
        hint = self._hot.pop(lane_id, None)
        if hint is not None:
            hint.hot = False

    def forget_cold(self) -> None:
        """Forgets what has been cold for long."""
        long_ago = time.monotonic() - _COLD_SECONDS
        known = self._known
        self._known = {}
        self._by_handled.clear()
        for lane_id, hint in known.items():
            if hint.hot or hint.woken_at > long_ago:
                self.add(lane_id, hint)

    def clear(self) -> None:
        """Forgets all."""
        self._known.clear()
        self._hot.clear()
        self._by_handled.clear()
