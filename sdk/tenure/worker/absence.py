"""How long a worker is without a server, and when it tries again.

A server that is away refuses connections at once. Trying costs next to nothing then, so the pauses
follow the time that it has been away: at most a fifth of it, and a worker is back within a fifth of
the outage. The bound is never under PAUSE_SECONDS_FIRST and the pause random below it, so that the
workers of a server that returns are spread over that time.

What answered, or took its time to fail, is there and may have too much to do already: such failures
in a row double the bound. What the server itself asks for counts besides.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final

from tenure.worker import endings

if TYPE_CHECKING:
    from tenure.worker.stream import Ending

# Of our own: workers of a program that seeds the shared one must not reconnect in step.
_jitter = random.Random()  # noqa: S311 - nothing secret

PAUSE_SECONDS_MIN: Final = 0.03
# So many workers as one server has do not come back in the same second.
PAUSE_SECONDS_FIRST: Final = 1.5
PAUSE_SECONDS_MAX: Final = 15.0
# Of the time away that a pause takes at most, where nobody listens.
PAUSE_SHARE: Final = 0.2
# A refused connection fails within milliseconds; one that takes longer meets something.
REFUSED_SECONDS: Final = 1.0
# A stream that lived this long was no failure. One that opened at all shows that the server is
# there: such failures in a row count as no more than this many.
HEALTHY_SECONDS: Final = 10.0
OPENED_FAILURE_COUNT_MAX: Final = 2


class Absence:
    """Absence is the time since the last stream of a worker, and what its tries have met.

    Args:
        now: Monotonic time, as all times here.

    Attributes:
        failure_count: Tries in a row that failed, for whatever reason.
    """

    def __init__(self, now: float) -> None:
        self.failure_count = 0
        self._since = now
        self._met_count = 0
        self._opened_at: float | None = None

    def opened(self, now: float) -> float:
        """Notes that a stream was opened; returns for how many seconds there was none."""
        self._opened_at = now
        return now - self._since

    def ended(self, began_at: float, now: float, ending: Ending) -> None:
        """Notes how a try that began at `began_at` has ended: a stream, or none."""
        opened_at, self._opened_at = self._opened_at, None
        if opened_at is not None:
            self._since = now
        if now - began_at >= HEALTHY_SECONDS or ending.drained:
            self.failure_count = self._met_count = 0
        if ending.drained:
            return
        self.failure_count += 1
        if opened_at is not None:
            self.failure_count = min(self.failure_count, OPENED_FAILURE_COUNT_MAX)
            self._met_count = min(self._met_count + 1, OPENED_FAILURE_COUNT_MAX)
        elif not endings.is_unreachable(ending) or now - began_at > REFUSED_SECONDS:
            self._met_count += 1

    def pause_seconds(self, now: float, ending: Ending) -> float:
        """Returns how long to wait before the next try."""
        bound = PAUSE_SHARE * (now - self._since)
        if self._met_count:
            bound = max(bound, PAUSE_SECONDS_FIRST * 2 ** min(self._met_count - 1, 10))
        bound = min(max(bound, PAUSE_SECONDS_FIRST), PAUSE_SECONDS_MAX)
        pause = _jitter.uniform(PAUSE_SECONDS_MIN, bound)
        if ending.error is not None and ending.error.retry_after is not None:
            pause = max(pause, min(ending.error.retry_after, PAUSE_SECONDS_MAX))
        return pause
