"""What is written of calls that come again and again: bounded, whoever makes them.

A caller must not be able to fill a disk with lines of the log or rows of the record, which only
grows.
"""

import logging
import math
import time
from collections.abc import Callable
from typing import Final

from tenure_service.telemetry.logs import CALM_SECONDS

_log = logging.getLogger(__name__)

#: What one key may add to the record in a minute, of one kind: people see what was done or tried,
#: programs that do it in a loop add 60 rows.
_RECORDED_A_MINUTE: Final = 60
_MINUTE: Final = 60.0


class Paced:
    """Lets so many of a kind pass in a while, and counts the others."""

    def __init__(
        self, count_max: int, seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._count_max = count_max
        self._seconds = seconds
        self._clock = clock
        self._since = -math.inf
        self._count = 0

    def take(self) -> int | None:
        """Gives how many of the last while did not pass; None: this one does not either."""
        now = self._clock()
        held = 0
        if now - self._since >= self._seconds:
            held = max(0, self._count - self._count_max)
            self._since, self._count = now, 0
        self._count += 1
        return held if self._count <= self._count_max else None


class Recording:
    """Says which calls of one kind come into the record."""

    def __init__(self, deed: str) -> None:
        """Prepares it; `deed` is what a WARNING says that an actor does too often."""
        self._deed = deed
        self._warned = Paced(1, CALM_SECONDS)
        #: By actor: those have keys, of which there are tens.
        self._by_actor: dict[str, Paced] = {}

    def take(self, actor: str) -> bool:
        """Says whether this call does."""
        paced = self._by_actor.setdefault(actor, Paced(_RECORDED_A_MINUTE, _MINUTE))
        if paced.take() is not None:
            return True
        if self._warned.take() is not None:
            _log.warning("%s %s too often for each call to be recorded", actor, self._deed)
        return False
