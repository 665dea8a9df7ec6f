"""Which lanes may hold a task, and from where to pick: hints, never the truth (INV-10).

A lane is hot from the moment that something says that it may hold a task until a pick from its
bottom comes back short. Above the bottom is a low-water mark, below which this server knows rows to
be dead: stepping over dead index entries is what makes a pick slow while a snapshot is held.
"""

import time
from dataclasses import dataclass

from tenure_service.engine import limits
from tenure_service.store.leases import RANK_MIN

#: How long picks may start above the bottom: a row that was committed late, or released to its old
#: place, is found within this time.
_LOW_WATER_SECONDS = 1.0


@dataclass(slots=True)
class LaneHint:
    """What a server believes of one lane."""

    namespace_id: int
    queue: str
    name: str
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
        if full and last is not None:
            if self.low[0] == RANK_MIN:
                self.low_until = time.monotonic() + _LOW_WATER_SECONDS
            self.low = last
            return
        self.low = (RANK_MIN, 0)
        from_bottom = place[0] == RANK_MIN
        if from_bottom and not more and self.woken == woken:
            self.hot = False
