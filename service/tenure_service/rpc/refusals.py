"""What is kept of calls that the guard refuses: a line of the log, a row of the record.

Both are bounded: a caller that may do nothing must not be able to fill a disk.
"""

import logging
from typing import Any

from tenure_service.engine.errors import Reason, TenureError
from tenure_service.rpc import operated
from tenure_service.rpc.call import PRINCIPAL, Calls, Context, address
from tenure_service.rpc.pacing import Paced, Recording
from tenure_service.telemetry.logs import CALM_SECONDS
from tenure_service.usecase.access import Keys

_log = logging.getLogger(__name__)


class Refusals:
    """Tells and records what was refused, each as often as does good."""

    def __init__(self, keys: Keys, calls: Calls) -> None:
        self._keys = keys
        self._calls = calls
        self._told = Paced(1, CALM_SECONDS)
        self._recorded = Recording("is refused")

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
        _log.warning("a caller at %s was refused: %s%s", address(context.peer()) or "?", why, more)

    async def record(self, action: str, request: Any, context: Context, error: TenureError) -> None:
        """Adds to the record that a key did not have the scope for a call of operators."""
        if self._recorded.take(PRINCIPAL.get().actor):
            await operated.record_refusal(self._calls, action, request, context, error)
