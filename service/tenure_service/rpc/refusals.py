"""What is kept of calls that the guard refuses: a line of the log, a row of the record.

Both are bounded: a caller that may do nothing must not be able to fill a disk.
"""

import logging
import math
import time
from collections.abc import Callable
from typing import Any, Final

from tenure_service.engine.errors import Reason, TenureError
from tenure_service.rpc import operated
from tenure_service.rpc.call import PRINCIPAL, Calls, Context
from tenure_service.telemetry.logs import CALM_SECONDS
from tenure_service.usecase.access import Keys

_log = logging.getLogger(__name__)

#: What one key may add to the record in a minute: people see what was tried, programs that try it
#: in a loop add 60 rows.
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


class Refusals:
    """Tells and records what was refused, each as often as does good."""

    def __init__(self, keys: Keys, calls: Calls) -> None:
        self._keys = keys
        self._calls = calls
        self._told = Paced(1, CALM_SECONDS)
        self._warned = Paced(1, CALM_SECONDS)
        #: By actor: those have keys, of which there are tens.
        self._recorded: dict[str, Paced] = {}

    async def tell(self, secret: str | None, error: TenureError, context: Context) -> None:
        """Writes to the log that a credential was refused: from where and why, never what it was."""
        if error.reason is not Reason.UNAUTHENTICATED:
            return
        held = self._told.take()
        if held is None:
            return
        why = error.message.partition(":")[0]
        if secret is not None:
            try:
                why = await self._calls.run(self._keys.why_refused, secret)
            except TenureError as exc:
                _log.info("the refused key could not be looked up: %s", exc)
        more = f"; {held} more calls in the last {CALM_SECONDS:.0f} s or longer" if held else ""
        _log.warning("a caller at %s was refused: %s%s", context.peer() or "?", why, more)

    async def record(self, action: str, request: Any, context: Context, error: TenureError) -> None:
        """Adds to the record that a key did not have the scope for a call of operators."""
        actor = PRINCIPAL.get().actor
        held = self._recorded.setdefault(actor, Paced(_RECORDED_A_MINUTE, _MINUTE)).take()
        if held is None:
            if self._warned.take() is not None:
                _log.warning("%s is refused too often for each call to be recorded", actor)
            return
        await operated.record_refusal(self._calls, action, request, context, error)
