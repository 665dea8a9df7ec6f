"""Why streams end: what the log says of it and of the next one, and whether another try can help.

A refusal is what no later stream will be spared: somebody has to change something first. A worker
that was never connected ends with one, if it was started to run until a signal: whoever started it
reads the error. One that was connected goes on trying, loudly: the server it came from may be
replaced by one that takes it, and its leases are worth waiting for.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from typing import TYPE_CHECKING, Final

from tenure import connection, diagnosis, errors

if TYPE_CHECKING:
    from tenure.channel import Target
    from tenure.v1 import work_stream_pb2 as messages
    from tenure.worker.stream import Ending

_log = logging.getLogger("tenure.worker")

# Time after which what goes on is said again: silence would look like health.
REMINDER_SECONDS = 60.0
# What to do, by the reason that a Tenure server gives.
_ADVICE: Final = {
    "FIELD_INVALID": "change what the worker or its tasks declare",
    # The server says how to create it.
    "NOT_REGISTERED": "or set TENURE_NAMESPACE to one that there is",
    "VERSION_UNSUPPORTED": "upgrade the older one of this package and the server",
    "UNAUTHENTICATED": "set TENURE_API_KEY, or pass api_key=..., to a key that the server knows",
    "SCOPE_MISSING": "use an API key that may run workers",
}
# The same by status, for answers of a proxy or of another gRPC server.
_FOREIGN_STATUSES: Final = frozenset({"UNIMPLEMENTED", "UNAUTHENTICATED", "PERMISSION_DENIED"})


class Endings:
    """Endings explains the ends of one worker's streams; used on the I/O loop."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._said: set[str] = set()
        self._remind_at = 0.0

    def say_opened(
        self, worker: str, message: messages.Opened, *, away_seconds: float | None
    ) -> None:
        """Logs that a stream was opened; what ended the one before may be said again.

        Args:
            worker: Name of the worker.
            message: What the server answered.
            away_seconds: Time without a stream; None: this is the first one.
        """
        self._said.clear()
        self._remind_at = 0.0
        again = "" if away_seconds is None else f" again after {away_seconds:.1f} s"
        _log.info(
            "worker %s is connected to %s%s (%s, server %s)",
            worker,
            self._target.address,
            again,
            "session resumed" if message.resumed else "new session",
            message.server_version or "of unknown version",
        )

    async def understood(self, ending: Ending, *, looks: bool) -> Ending:
        """Returns the ending with its refusal, if it is one.

        Args:
            ending: How the stream ended.
            looks: True if a look at what listens there may take some seconds.
        """
        error: errors.TenureError | None = ending.refusal or ending.error
        looks = looks and is_unreachable(ending)
        if looks and (cause := await diagnosis.mismatch(self._target)) is not None:
            error = errors.TransportMismatch(cause, status="UNAVAILABLE")
        found = None if error is None else _refusal(error, self._target.address)
        return dataclasses.replace(ending, refusal=found)

    def say(self, ending: Ending, *, connected_before: bool, is_last: bool) -> None:
        """Logs why a stream ended: refusals each time, the rest once for each text and minute."""
        if ending.refusal is not None:
            goes_on = "" if is_last else "; trying again, but no time cures this"
            _log.error("%s%s", ending.refusal, goes_on)
            return
        now = time.monotonic()
        if ending.text in self._said and now < self._remind_at:
            return
        if now >= self._remind_at:
            self._said.clear()
            self._remind_at = now + REMINDER_SECONDS
        self._said.add(ending.text)
        where = self._target.address
        if is_unreachable(ending) and not connected_before:
            hint = connection.START_HINT
            _log.warning(
                "no Tenure server answers at %s (%s), trying again; %s", where, ending.text, hint
            )
        else:
            _log.warning("the stream to %s ended (%s); connecting again", where, ending.text)


def is_unreachable(ending: Ending) -> bool:
    """Says whether no Tenure server has answered: nobody listens, or the connection broke."""
    error = ending.error
    return error is not None and error.status == "UNAVAILABLE" and not error.reason


def _refusal(error: errors.TenureError, address: str) -> errors.TenureError | None:
    """Returns the error with what to do about it, if no time cures it; else None."""
    if isinstance(error, errors.TransportMismatch | errors.UsageError):
        return error
    if not isinstance(error, errors.ServiceError):
        return None
    advice = _ADVICE.get(error.reason)
    kind, _, queue = error.metadata.get("scope", "").partition(" ")
    if error.reason == "SCOPE_MISSING" and kind == "queue" and queue:
        advice = (
            f"use an API key whose globs allow it (`tenure key create NAME --queue {queue}`), or "
            "serve other queues only (`tenure worker MODULE:NAME --queue Q`)"
        )
    if advice is None:
        if error.reason or error.status not in _FOREIGN_STATUSES:
            return None
        advice = connection.foreign_hint(address)
    error.args = (f"the server at {address} refuses this worker: {error}; {advice}",)
    return error
